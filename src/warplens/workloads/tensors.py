"""Tensors whose numbers are compared: those that programs saved, and those that attention kernels compute.

Of files: NumPy's .npy and .npz, PyTorch's .pt and .pth, and .safetensors. Nothing of a file is executed: NumPy's
pickles are refused, and PyTorch loads weights only. PyTorch and safetensors are needed for their own files alone. Of
attention kernels: how far each is from float64, cell by cell, and from what the formula gives in its own format.
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
from warplens.workloads.attention.problem import AttentionShape, Comparison, compared, kernel_of, mode_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warplens.workloads.settings import AttentionCell


#: How a tensor is called that has no name.
UNNAMED: Final = "tensor"

_ADVICE: Final = "Give .npy, .npz, .pt, .pth or .safetensors with tensors of floating-point numbers"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of floating-point numbers in a file, by name.

    Raises:
        UnreadableInputError: it is no such file, holds none, or the library that it needs is not installed.
    """
    if not path.is_file():
        raise UnreadableInputError(path, "there is no such file", "Check the path")
    try:
        found = dict(_read(path))
    except UnreadableInputError:
        raise
    except Exception as error:  # the libraries raise whatever their formats meet
        raise UnreadableInputError(path, f"it cannot be read as tensors ({type(error).__name__})", _ADVICE) from error
    if not found:
        raise UnreadableInputError(path, "it holds no tensor of floating-point numbers", _ADVICE)
    return found


def _read(path: Path) -> Iterator[tuple[str, Tensor]]:
    if path.suffix in (".npy", ".npz"):
        loaded = np.load(path, allow_pickle=False)
        arrays = {UNNAMED: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        for name, array in arrays.items():
            if array.dtype.name in FORMATS:
                yield name, Tensor(array, array.dtype.name)
    elif path.suffix in (".pt", ".pth"):
        yield from _of_torch(_library("torch", path).load(path, map_location="cpu", weights_only=True), "")
    elif path.suffix == ".safetensors":
        _library("torch", path)
        yield from _of_torch(_library("safetensors.torch", path).load_file(path), "")
    else:
        raise UnreadableInputError(path, f"its name ends in {path.suffix or 'nothing'}", _ADVICE)


def _of_torch(item: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors in what was saved: one, or mappings and sequences of them, whose keys make the name."""
    if isinstance(item, dict):
        for key, inner in item.items():
            yield from _of_torch(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(item, (list, tuple)):
        for number, inner in enumerate(item):
            yield from _of_torch(inner, f"{name}.{number}" if name else str(number))
    elif hasattr(item, "is_floating_point") and item.is_floating_point():
        dtype = str(item.dtype).removeprefix("torch.")
        if dtype in FORMATS:
            plain = item.detach().cpu()
            yield name or UNNAMED, Tensor((plain.float() if dtype == "bfloat16" else plain).numpy(), dtype)


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UnreadableInputError(path, f"it needs {package}, which is not installed", f"Install {package}") from None


def attention_errors(cells: Sequence[AttentionCell], device: str) -> pl.DataFrame:
    """What each kernel computes on fresh random inputs, against float64 (`problem.reference`), times nothing.

    Args:
        cells: problems; a cell of mode `forward` has its output compared, others the gradients as well.
        device: as PyTorch names it; float64 is computed there, too.

    Returns:
        `ATTENTION_ERRORS`, a row a tensor; of a kernel that cannot run a cell one row with the reason.

    Raises:
        UsageError: there is no such kernel.
    """
    rows: list[dict[str, Any]] = []
    for cell in cells:
        kernel, shape = kernel_of(cell), AttentionShape.of(cell)
        mask = "causal" if cell.causal else "no mask"
        head = {
            "implementation": cell.kernel,
            "shapes": f"{shape}, {cell.dtype}, {mask}, {cell.mode}",
            "tokens": cell.seq_len,
        }
        if (refusal := kernel.refusal(shape, cell.dtype, device)) is not None:
            rows.append({**head, "status": "unsupported", "reason": refusal})
            continue
        try:
            found = compared(kernel, shape, cell.dtype, causal=cell.causal, mode=mode_of(cell), device=device)
        except Exception as error:  # a kernel may fail in any way; its row says how, and the table goes on
            status, reason = outcome_of(error)
            rows.append({**head, "status": status, "reason": reason})
        else:
            rows += [{**head, **row} for row in _rows(found, cell.dtype)]
    return ATTENTION_ERRORS.conform(pl.DataFrame(rows, schema=ATTENTION_ERRORS.schema))


def _rows(found: Comparison, dtype: str) -> list[dict[str, Any]]:
    exact = {name: _tensor(tensor, "float64") for name, tensor in zip(found.names, found.exact, strict=True)}
    own = {name: _tensor(tensor, dtype) for name, tensor in zip(found.names, found.computed, strict=True)}
    checks = {error.tensor: asdict(error) for error in found.errors}
    return [
        {
            **row,
            "status": "compared",
            "formula_relative": checks[row["tensor"]]["trusted_norm"],
            "near_enough": checks[row["tensor"]]["passed"],
        }
        for row in numeric_differences(own, exact, "").drop("pair").iter_rows(named=True)
    ]


def _tensor(values: torch.Tensor, dtype: str) -> Tensor:
    """The numbers on the host; NumPy has no bfloat16, which float32 holds exactly."""
    held = values.detach().cpu()
    return Tensor((held.float() if dtype == "bfloat16" else held).numpy(), dtype)
