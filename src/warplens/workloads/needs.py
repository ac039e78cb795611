"""PyTorch, or one line that says how to get it."""

from __future__ import annotations

from typing import Any

from warplens.errors import UsageError

__all__ = ["torch_or_advice"]


def torch_or_advice() -> Any:
    """The module `torch`.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import torch  # noqa: PLC0415  everything else of Warplens works without it
    except ImportError as error:
        raise UsageError(
            'workloads need PyTorch, which is not installed: pip install "warplens[gpu]", or install PyTorch as '
            "pytorch.org says for your CUDA version"
        ) from error
    return torch
