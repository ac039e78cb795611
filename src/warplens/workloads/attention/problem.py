"""The attention problem, its inputs and float64 reference, the correctness check, and every kernel by name.

    out = softmax(q kᵀ · scale + mask) v        q, k, v: [batch, heads, seq_len, head_dim], scale = head_dim^−½

The mask is causal (a row sees itself and earlier rows) or absent. Kernels are the own ones, and torch's
scaled_dot_product_attention by backend as baselines.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import warnings
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from warplens.errors import UsageError, WarplensError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from warplens.workloads.settings import AttentionCell


#: Head dimensions that the own kernels accept: powers of two that fill a tensor-core fragment and fit into registers.
HEAD_DIMS: Final = (16, 32, 64, 128)

#: Backward = 5 matrix products where forward has 2 (scores again, dV, dP, dQ, dK): the convention of Dao's benchmarks.
BACKWARD_FACTOR: Final = 2.5

#: Seed of the inputs of the correctness check; timing uses another.
_SEED: Final = 1


def attention_flops(cell: AttentionCell) -> float:
    """Floating-point operations that a run is credited with, whatever the kernel really does.

    Two matrix products of 2·S²·D each per head; the softmax is not counted; causal counts half; backward is 2.5 times
    forward (five products for two; a kernel that computes the scores twice gets no credit for it).
    """
    forward = 4.0 * cell.batch * cell.heads * cell.seq_len**2 * cell.head_dim * (0.5 if cell.causal else 1.0)
    return forward * {"forward": 1.0, "backward": BACKWARD_FACTOR, "both": 1.0 + BACKWARD_FACTOR}[cell.mode]


def attention_inputs(
    cell: AttentionCell, device: str, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values: standard normal, drawn in fp32 from a seeded generator, then rounded to the format."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    size = (cell.batch, cell.heads, cell.seq_len, cell.head_dim)

    def draw() -> torch.Tensor:
        numbers = torch.randn(size, generator=generator, device=device, dtype=torch.float32)
        return numbers.to(getattr(torch, cell.dtype)).requires_grad_(cell.mode != "forward")

    return draw(), draw(), draw()


#: Query rows at a time: bounds the float64 scores of one block to 8 · 512 · seq_len bytes per head.
_ROWS: Final = 512


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, d_out: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Output and, with `d_out`, the gradients d_q, d_k, d_v of Σ out ∘ d_out: the formulas in float64 on that device.

    All are [heads, seq_len, head_dim], as the inputs.
    The gradients are the derivatives written out (dS = P ∘ (dP − rowsum(P ∘ dP))), not another framework's.
    """
    import torch

    q, k, v = q.detach().double(), k.detach().double(), v.detach().double()
    seq_len = q.shape[1]
    out = torch.empty_like(q)
    d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    columns = torch.arange(seq_len, device=q.device)
    for first in range(0, seq_len, _ROWS):
        rows = slice(first, min(first + _ROWS, seq_len))
        scores = q[:, rows] @ k.transpose(1, 2) * scale
        if causal:
            scores.masked_fill_(columns[None, :] > columns[rows, None], float("-inf"))
        p = torch.softmax(scores, dim=-1)
        out[:, rows] = p @ v
        if d_out is not None:
            d_o = d_out[:, rows].detach().double()
            d_v += p.transpose(1, 2) @ d_o
            d_p = d_o @ v.transpose(1, 2)
            d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * scale
            d_q[:, rows] = d_s @ k
            d_k += d_s.transpose(1, 2) @ q[:, rows]
    return (out, d_q, d_k, d_v) if d_out is not None else (out,)


#: How many times the trusted implementation's error is accepted; see the module's text.
ALLOWED_RATIO: Final = 2.0

#: Relative error that is always accepted: where the trusted implementation happens to come closer than the format's
#: rounding, a kernel need not. A quarter of the spacing of numbers near one (2^-10, 2^-7), which is about the mean
#: rounding error; for fp32 what three TF32 products reach.
ERROR_FLOORS: Final = {"float16": 2.0**-12, "bfloat16": 2.0**-9, "float32": 4e-6}


@dataclass(frozen=True)
class TensorError:
    """How far one tensor is from float64."""

    tensor: str  #: "out", "d_q", "d_k" or "d_v"
    relative_norm: float  #: ‖tensor − reference‖ / ‖reference‖ (Frobenius)
    max_abs: float  #: largest deviation of an element
    #: trusted_norm, trusted_max_abs: the same of the trusted implementation
    trusted_norm: float
    trusted_max_abs: float
    finite: bool  #: no NaN and no infinity anywhere in the full tensor
    passed: bool  #: finite, and near enough


@dataclass(frozen=True)
class Check:
    """Outcome of the gate."""

    passed: bool  #: every tensor passed
    errors: tuple[TensorError, ...]  #: one entry per compared tensor
    heads: int  #: how many of the batch · heads were compared
    reference_device: str  #: where float64 was computed

    @property
    def summary(self) -> str:
        """One line: the worst tensor and its error."""
        worst = max(
            self.errors, key=lambda error: (not error.finite, error.relative_norm / (error.trusted_norm or 1e-300))
        )
        text = f"{worst.tensor} ‖error‖ {worst.relative_norm:.2e} (trusted {worst.trusted_norm:.2e})"
        return text if worst.finite else f"{worst.tensor} holds NaN or infinity"


@dataclass(frozen=True)
class Comparison:
    """Results of a kernel and of the formula in float64 on the compared heads, and the errors of the kernel."""

    names: tuple[str, ...]  #: of the tensors: "out", and with gradients "d_q", "d_k", "d_v"
    #: computed, exact: each tensor, [heads, seq_len, head_dim]; the last in float64
    computed: tuple[torch.Tensor, ...]
    exact: tuple[torch.Tensor, ...]
    errors: tuple[TensorError, ...]

    @property
    def check(self) -> Check:
        """The outcome of the check, without tensors."""
        passed = all(error.passed for error in self.errors)
        return Check(passed, self.errors, len(self.computed[0]), self.exact[0].device.type)


def compared(kernel: AttentionKernel, cell: AttentionCell, device: str = "cuda") -> Comparison:
    """Runs the kernel on fresh random inputs, and the formula in its format and in float64 on the same heads.

    All run on the same device; mode `forward` leaves the gradients out.
    """
    import torch

    inputs = attention_inputs(cell, device, seed=_SEED)
    generator = torch.Generator(device=device).manual_seed(_SEED + 1)
    size, dtype = inputs[0].shape, inputs[0].dtype
    d_out = torch.randn(size, generator=generator, device=device).to(dtype) if cell.mode != "forward" else None
    _poison(size, dtype, device)
    results = _run(kernel.run, inputs, cell.causal, d_out)
    finite = [bool(torch.isfinite(tensor).all()) for tensor in results]

    picked = sorted({0, cell.batch * cell.heads - 1})
    few = [_heads(tensor, picked) for tensor in inputs]
    few_d_out = _heads(d_out, picked) if d_out is not None else None
    exact = reference(*few, causal=cell.causal, scale=cell.head_dim**-0.5, d_out=few_d_out)
    trusted, computed = _trusted(few, cell.causal, few_d_out), tuple(_heads(tensor, picked) for tensor in results)
    names = ("out", "d_q", "d_k", "d_v")[: len(computed)]
    errors = tuple(
        _compare(*tensors, ERROR_FLOORS[cell.dtype])
        for tensors in zip(names, computed, trusted, exact, finite, strict=True)
    )
    return Comparison(names, computed, exact, errors)


def _heads(tensor: torch.Tensor, picked: list[int]) -> torch.Tensor:
    """These heads of a [batch, heads, seq_len, head_dim] tensor, as [heads, seq_len, head_dim]."""
    return tensor.detach().reshape(-1, *tensor.shape[-2:])[picked]


def _run(
    run: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], causal: bool, d_out: torch.Tensor | None
) -> list[torch.Tensor]:
    """Output and, with `d_out`, the three gradients."""
    import torch

    out = run(*inputs, causal)
    if d_out is None:
        return [out]
    return [out.detach(), *torch.autograd.grad(out, list(inputs), d_out)]


def _trusted(few: list[torch.Tensor], causal: bool, d_out: torch.Tensor | None) -> list[torch.Tensor]:
    """The formula as plain torch operators on the compared heads; every intermediate has the inputs' format."""
    import torch

    leaves = [tensor.clone().requires_grad_(d_out is not None) for tensor in few]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        if is_causal:
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    return _run(run, leaves, causal, d_out)


def _poison(size: torch.Size, dtype: torch.dtype, device: str) -> None:
    """Leaves NaN in the allocator's free blocks, so that unwritten elements are detected."""
    import torch

    blocks = [torch.full(size, float("nan"), dtype=dtype, device=device) for _ in range(4)]
    del blocks


def _compare(
    name: str, tensor: torch.Tensor, trusted: torch.Tensor, exact: torch.Tensor, finite: bool, floor: float
) -> TensorError:
    # The gradients of a single token's scores are zero: the error is then relative to numbers of size one.
    scale = float(exact.norm()) or math.sqrt(exact.numel())

    def deviation(candidate: torch.Tensor) -> tuple[float, float]:
        difference = candidate.to(exact.device).double() - exact
        return float(difference.norm()) / scale, float(difference.abs().max())

    norm, largest = deviation(tensor)
    trusted_norm, trusted_largest = deviation(trusted)
    # A comparison with NaN is false, so a NaN can never pass.
    passed = finite and norm <= max(ALLOWED_RATIO * trusted_norm, floor)
    return TensorError(name, norm, largest, trusted_norm, trusted_largest, finite, passed)


#: Our name of a backend → torch's.
BACKENDS: Final = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}

#: Messages of torch without an available kernel, on a GPU and on a CPU.
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
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel([chosen]):
        # Repeated for the reasons, which torch gives as warnings, and only when no backend is left.
        warnings.simplefilter("always")
        try:
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        except RuntimeError as error:
            raise BackendRefusedError(_reason(backend, [str(entry.message) for entry in caught])) from error
    raise BackendRefusedError(f"SDPA backend {backend} refused once and then ran")


def _reason(backend: str, messages: list[str]) -> str:
    """Torch's warnings about one backend as one line, without the lines that only name the backend."""
    lines = [line.split(" (Triggered internally")[0].strip() for text in messages for line in text.splitlines()]
    reasons = [
        line for line in lines if line and "not used because" not in line and "has been runtime disabled" not in line
    ]
    return "; ".join(dict.fromkeys(reasons)) or f"no available kernel for SDPA backend {backend}"


@dataclass(frozen=True)
class AttentionKernel:
    """One implementation of attention, differentiable in q, k and v."""

    name: str
    origin: Literal["own", "torch"]  #: "own" (Triton kernels of this package) or "torch" (a baseline)
    #: (q, k, v, causal) → out, all [batch, heads, seq_len, head_dim]
    run: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

    def refusal(self, cell: AttentionCell, device: str) -> str | None:
        """Why this kernel cannot run such a problem on "cpu" or "cuda[:n]"; None where only a run can tell."""
        if self.origin == "torch":
            return None
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
            return "own kernels need a GPU, or TRITON_INTERPRET=1 for Triton's interpreter"
        if not device.startswith("cuda") and cell.dtype == "bfloat16":
            return "Triton's interpreter does not compute in bfloat16"
        if cell.head_dim not in HEAD_DIMS:
            return f"head dimension {cell.head_dim} is none of {', '.join(map(str, HEAD_DIMS))}"
        return None


def _own(function: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Runs a function of `functions`, which is loaded, with torch and triton, when a kernel first runs."""
    module = importlib.import_module("warplens.workloads.attention.functions")
    out: torch.Tensor = getattr(module, function)(q, k, v, causal)
    return out


#: Name → kernel: own ones first, in the order in which theory says they get faster. `naive`: one kernel per formula;
#: scores and probabilities are written to memory. `tiled`: online softmax in small tiles; every block is computed and
#: masked. `flash`: one normalisation, masks only where they cut; on Hopper, warps have roles.
KERNELS: Final[Mapping[str, AttentionKernel]] = MappingProxyType(
    {name: AttentionKernel(name, "own", partial(_own, f"{name}_attention")) for name in ("naive", "tiled", "flash")}
    | {f"sdpa-{name}": AttentionKernel(f"sdpa-{name}", "torch", partial(sdpa, backend=name)) for name in BACKENDS}
)


def kernel_of(cell: AttentionCell) -> AttentionKernel:
    """The kernel that a cell names.

    Raises:
        UsageError: there is none.
    """
    if cell.kernel not in KERNELS:
        raise UsageError(f"{cell.kernel!r} is not an attention kernel; known are {', '.join(KERNELS)}")
    return KERNELS[cell.kernel]
