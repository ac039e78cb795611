"""Every attention kernel by name: the own ones, and torch's scaled_dot_product_attention by backend as baselines."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from warplens.errors import WarplensError
from warplens.workloads.attention.problem import HEAD_DIMS, AttentionShape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


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
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, BACKENDS[backend], None)
    if chosen is None:
        raise BackendRefusedError(f"torch {torch.__version__} has no SDPA backend {BACKENDS[backend]}")
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
    raise BackendRefusedError(f"SDPA backend {backend} refused once and then ran")


def _reason(backend: str, spoken: list[str]) -> str:
    """Torch's warnings about one backend as one line, without the lines that only say which backend is meant."""
    lines = [line.split(" (Triggered internally")[0].strip() for text in spoken for line in text.splitlines()]
    told = [
        line for line in lines if line and "not used because" not in line and "has been runtime disabled" not in line
    ]
    return "; ".join(dict.fromkeys(told)) or f"no available kernel for SDPA backend {backend}"


@dataclass(frozen=True)
class AttentionKernel:
    """One implementation of attention, differentiable in q, k and v."""

    name: str
    origin: Literal["own", "torch"]  #: "own" (Triton kernels of this package) or "torch" (a baseline)
    summary: str
    #: (q, k, v, causal) → out, all [batch, heads, seq_len, head_dim]
    run: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

    def refusal(self, shape: AttentionShape, dtype: str, device: str) -> str | None:
        """Why this kernel cannot run such a problem on "cpu" or "cuda[:n]"; None where only a run can tell."""
        if self.origin == "torch":
            return None
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
            return "own kernels need a GPU, or TRITON_INTERPRET=1 for Triton's interpreter"
        if not device.startswith("cuda") and dtype == "bfloat16":
            return "Triton's interpreter does not compute in bfloat16"
        if shape.head_dim not in HEAD_DIMS:
            return f"head dimension {shape.head_dim} is none of {', '.join(map(str, HEAD_DIMS))}"
        return None


def _own(function: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Runs a function of `functions`, which is loaded, with torch and triton, when a kernel first runs."""
    module = importlib.import_module("warplens.workloads.attention.functions")
    out: torch.Tensor = getattr(module, function)(q, k, v, causal)
    return out


def _sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return sdpa(q, k, v, causal, backend=backend)


_OWN: Final = {
    "naive": "one kernel per formula; scores and probabilities are written to memory",
    "tiled": "online softmax in small tiles; no scores in memory, every block computed and masked",
    "flash": "one normalisation, masks only where they cut, log-sum-exp saved; on Hopper, warps have roles",
}
_TORCH: Final = {
    "flash": "torch SDPA, FlashAttention-2 kernels",
    "efficient": "torch SDPA, memory-efficient kernels (CUTLASS)",
    "cudnn": "torch SDPA, cuDNN's fused attention",
    "math": "torch SDPA, composed of separate torch operators",
}

#: Name → kernel: own ones first, in the order in which theory says they get faster.
KERNELS: Final[Mapping[str, AttentionKernel]] = MappingProxyType(
    {name: AttentionKernel(name, "own", text, partial(_own, f"{name}_attention")) for name, text in _OWN.items()}
    | {
        f"sdpa-{backend}": AttentionKernel(f"sdpa-{backend}", "torch", _TORCH[backend], partial(_sdpa, backend))
        for backend in BACKENDS
    }
)
