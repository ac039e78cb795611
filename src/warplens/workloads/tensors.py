"""Numerical comparison of tensors: reading of saved tensors, and errors of attention kernels.

Formats: NumPy's .npy and .npz, PyTorch's .pt and .pth, and .safetensors. No code in a file is executed: NumPy's pickles
are refused, and PyTorch loads weights only. PyTorch and safetensors are needed for their own files only. Attention
kernels are compared cell by cell with float64, and with the formula in the kernel's own format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.analysis.numerics import ATTENTION_ERRORS, FORMATS, Tensor, numeric_differences
from warplens.errors import UnreadableInputError
from warplens.workloads.attention.measurement import outcome_of
from warplens.workloads.attention.problem import Comparison, compared, kernel_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warplens.workloads.settings import AttentionCell


#: Name of a tensor without a name.
UNNAMED: Final = "tensor"

_ADVICE: Final = "Give .npy, .npz, .pt, .pth or .safetensors with tensors of real numbers"


def read_tensors(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Every tensor of real numbers in a file, by name; and the names of those of other types.

    Raises:
        UnreadableInputError: the file has another format or no such tensor, or the library for it is not installed.
    """
    if not path.is_file():
        raise UnreadableInputError(path, "there is no such file", "Check the path")
    try:
        found = dict(_read(path))
    except UnreadableInputError:
        raise
    except Exception as error:  # the libraries raise arbitrary errors on damaged files
        raise UnreadableInputError(path, f"it cannot be read as tensors ({type(error).__name__})", _ADVICE) from error
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    if not tensors:
        raise UnreadableInputError(path, "it holds no tensor of real numbers", _ADVICE)
    return tensors, [name for name in found if name not in tensors]


def _read(path: Path) -> Iterator[tuple[str, Tensor | None]]:
    """Name and tensor; None for a tensor of another type."""
    if path.suffix in (".npy", ".npz"):
        loaded = np.load(path, allow_pickle=False)
        arrays = {UNNAMED: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        for name, array in arrays.items():
            kind = _format(array.dtype.name)
            yield name, None if kind is None else Tensor(array, kind)
    elif path.suffix in (".pt", ".pth"):
        yield from _of_torch(_library("torch", path).load(path, map_location="cpu", weights_only=True), "")
    elif path.suffix == ".safetensors":
        _library("torch", path)
        yield from _of_torch(_library("safetensors.torch", path).load_file(path), "")
    else:
        raise UnreadableInputError(path, f"its name ends in {path.suffix or 'nothing'}", _ADVICE)


def _format(dtype: str) -> str | None:
    """The key of `FORMATS` for a type of NumPy or PyTorch; None for all others, such as complex numbers and uint64."""
    if dtype == "bool" or (dtype != "uint64" and dtype.lstrip("u").startswith("int")):
        return "int64"
    return dtype if dtype in FORMATS else None


def _of_torch(item: Any, name: str) -> Iterator[tuple[str, Tensor | None]]:
    """The tensors of a saved object: a tensor, or nested mappings and sequences, whose keys form the name."""
    if isinstance(item, dict):
        for key, inner in item.items():
            yield from _of_torch(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(item, (list, tuple)):
        for number, inner in enumerate(item):
            yield from _of_torch(inner, f"{name}.{number}" if name else str(number))
    elif hasattr(item, "is_floating_point"):
        kind = _format(str(item.dtype).removeprefix("torch."))
        yield name or UNNAMED, None if kind is None else _tensor(item, kind)


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UnreadableInputError(path, f"it needs {package}, which is not installed", f"Install {package}") from None


def attention_errors(cells: Sequence[AttentionCell], device: str) -> pl.DataFrame:
    """`ATTENTION_ERRORS` of each kernel on fresh random inputs, relative to float64 on the same device, without timing.

    One row per tensor, the gradients included but in mode `forward`; one row with the reason for a kernel that cannot
    run a cell.

    Raises:
        UsageError: there is no such kernel.
    """
    rows: list[dict[str, Any]] = []
    for cell in cells:
        kernel = kernel_of(cell)
        mask = "causal" if cell.causal else "no mask"
        head = {
            "implementation": cell.kernel,
            "shapes": f"{cell.batch}×{cell.heads}×{cell.seq_len}×{cell.head_dim}, {cell.dtype}, {mask}, {cell.mode}",
            "tokens": cell.seq_len,
        }
        if (refusal := kernel.refusal(cell, device)) is not None:
            rows.append({**head, "status": "unsupported", "reason": refusal})
            continue
        try:
            comparison = compared(kernel, cell, device)
        except Exception as error:  # a kernel may fail in any way; its row holds the reason, and the next cells follow
            status, reason = outcome_of(error)
            rows.append({**head, "status": status, "reason": reason})
        else:
            rows += [{**head, **row} for row in _rows(comparison, cell.dtype)]
    return ATTENTION_ERRORS.conform(pl.DataFrame(rows, schema=ATTENTION_ERRORS.schema))


def _rows(comparison: Comparison, dtype: str) -> list[dict[str, Any]]:
    exact, computed = (
        {name: _tensor(tensor, kind) for name, tensor in zip(comparison.names, tensors, strict=True)}
        for tensors, kind in ((comparison.exact, "float64"), (comparison.computed, dtype))
    )
    checks = {error.tensor: asdict(error) for error in comparison.errors}
    return [
        {
            **row,
            "status": "compared",
            "formula_relative": checks[row["tensor"]]["trusted_norm"],
            "near_enough": checks[row["tensor"]]["passed"],
        }
        for row in numeric_differences(computed, exact, "").drop("pair").iter_rows(named=True)
    ]


def _tensor(values: torch.Tensor, dtype: str) -> Tensor:
    """Copies the tensor to the host; bfloat16, which NumPy lacks, becomes float32 without loss."""
    on_host = values.detach().cpu()
    return Tensor((on_host.float() if dtype == "bfloat16" else on_host).numpy(), dtype)
