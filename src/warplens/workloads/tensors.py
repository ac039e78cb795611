"""Tensors that programs saved: NumPy's .npy and .npz, PyTorch's .pt and .pth, and .safetensors.

Nothing of a file is executed: NumPy's pickles are refused, and PyTorch loads weights only. PyTorch and safetensors are
needed for their own files alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from warplens.analysis.numerics import FORMATS, Tensor
from warplens.errors import UnreadableInputError

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
