"""torch's scaled_dot_product_attention, one backend at a time: the baselines that the own kernels are held against."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from warplens.errors import WarplensError

if TYPE_CHECKING:
    import torch

__all__ = ["BACKENDS", "BackendRefusedError", "sdpa"]

#: Our name of a backend → torch's.
BACKENDS: Final = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


#: How torch says that it has no kernel: on a GPU, and on a CPU.
_REFUSALS: Final = ("No available kernel", "No viable backend")


class BackendRefusedError(WarplensError):
    """torch will not run this backend on these inputs; the text is torch's reason."""


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, *, backend: str) -> torch.Tensor:
    """Attention of [batch, heads, seq_len, head_dim] inputs by one backend of `BACKENDS` and no other.

    Raises:
        BackendRefusedError: the backend does not support the device, the format or the shape.
    """
    import torch  # noqa: PLC0415
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

    chosen = getattr(SDPBackend, BACKENDS[backend], None)
    if chosen is None:
        message = f"torch {torch.__version__} has no SDPA backend {BACKENDS[backend]}"
        raise BackendRefusedError(message)
    try:
        with sdpa_kernel([chosen]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    except RuntimeError as error:
        if not any(words in str(error) for words in _REFUSALS):
            raise
    with warnings.catch_warnings(record=True) as spoken, sdpa_kernel([chosen]):
        # Once more, to hear why: torch gives its reasons as warnings, and only when no backend is left.
        warnings.simplefilter("always")
        try:
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        except RuntimeError as error:
            raise BackendRefusedError(_reason(backend, [str(entry.message) for entry in spoken])) from error
    message = f"SDPA backend {backend} refused once and then ran"
    raise BackendRefusedError(message)


def _reason(backend: str, spoken: list[str]) -> str:
    """Torch's warnings about one backend as one line, without the lines that only say which backend is meant."""
    lines = [line.split(" (Triggered internally")[0].strip() for text in spoken for line in text.splitlines()]
    told = [
        line for line in lines if line and "not used because" not in line and "has been runtime disabled" not in line
    ]
    return "; ".join(dict.fromkeys(told)) or f"no available kernel for SDPA backend {backend}"
