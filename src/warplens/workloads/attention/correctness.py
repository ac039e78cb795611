"""The gate before every timing: does the kernel compute attention, on this shape, in this format, on this device?

A kernel's output (and gradients) are compared with float64. How close they can be expected to come depends on the
format, so the yardstick is measured, not guessed: a trusted implementation, the formula in plain torch operators, in
the same format on the same inputs, is compared with float64 too, and a kernel may err at most twice as much. Twice,
because two correct implementations round in different places; a wrong mask, index or scale errs tens to thousands of
times as much.

The kernel runs on the full problem, so that offsets past 2³¹ elements and partial tiles are exercised; the comparison
takes the first and the last head, and NaN or infinity anywhere fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.workloads.attention.problem import AttentionShape, Mode, attention_inputs, torch_dtype
from warplens.workloads.attention.reference import reference
from warplens.workloads.attention.registry import AttentionKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["ALLOWED_RATIO", "Check", "TensorError", "check"]

#: How many times the trusted implementation's error is accepted; see the module's text.
ALLOWED_RATIO: Final = 2.0

#: Relative error that is always accepted: where the trusted implementation happens to come closer than the format's
#: rounding, a kernel need not. A quarter of the spacing of numbers near one (2^-10, 2^-7), which is about the mean
#: rounding error; for fp32 what three TF32 products reach.
ERROR_FLOORS: Final = {"float16": 2.0**-12, "bfloat16": 2.0**-9, "float32": 4e-6}


@dataclass(frozen=True)
class TensorError:
    """How far one tensor is from float64.

    Attributes:
        tensor: "out", "d_q", "d_k" or "d_v".
        relative_norm: ‖tensor − reference‖ / ‖reference‖ (Frobenius).
        max_abs: largest deviation of an element.
        trusted_norm, trusted_max_abs: the same of the trusted implementation.
        finite: no NaN and no infinity anywhere in the full tensor.
        passed: finite, and near enough.
    """

    tensor: str
    relative_norm: float
    max_abs: float
    trusted_norm: float
    trusted_max_abs: float
    finite: bool
    passed: bool


@dataclass(frozen=True)
class Check:
    """Outcome of the gate.

    Attributes:
        passed: every tensor passed.
        errors: one entry per compared tensor.
        heads: how many of the batch · heads were compared.
        reference_device: where float64 was computed.
    """

    passed: bool
    errors: tuple[TensorError, ...]
    heads: int
    reference_device: str

    @property
    def summary(self) -> str:
        """One line: the worst tensor and its error."""
        worst = max(
            self.errors, key=lambda error: (not error.finite, error.relative_norm / (error.trusted_norm or 1e-300))
        )
        text = f"{worst.tensor} ‖error‖ {worst.relative_norm:.2e} (trusted {worst.trusted_norm:.2e})"
        return text if worst.finite else f"{worst.tensor} holds NaN or infinity"


def check(
    kernel: AttentionKernel,
    shape: AttentionShape,
    dtype: str,
    *,
    causal: bool,
    mode: Mode = "both",
    device: str = "cuda",
    reference_device: str | None = None,
    seed: int = 1,
) -> Check:
    """Runs the kernel on fresh random inputs and compares it with float64.

    Args:
        kernel: what to check.
        shape: full size of the problem.
        dtype: one of `DTYPES`.
        causal: with a causal mask.
        mode: "forward" leaves the gradients out.
        device: where the kernel runs.
        reference_device: where float64 is computed; None: same device.
        seed: of the inputs; the gate and the timing use different ones.
    """
    import torch  # noqa: PLC0415

    gradients = mode != "forward"
    inputs = attention_inputs(shape, dtype, device, seed=seed, requires_grad=gradients)
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    size = inputs[0].shape
    d_out = torch.randn(size, generator=generator, device=device).to(torch_dtype(dtype)) if gradients else None
    _poison(size, torch_dtype(dtype), device)
    results = _run(kernel.run, inputs, causal, d_out)
    finite = [bool(torch.isfinite(tensor).all()) for tensor in results]

    picked = sorted({0, shape.batch * shape.heads - 1})
    few = [_heads(tensor, picked) for tensor in inputs]
    few_d_out = _heads(d_out, picked) if d_out is not None else None
    exact_device = reference_device or device
    exact = reference(
        *(tensor.to(exact_device) for tensor in few),
        causal=causal,
        scale=shape.scale,
        d_out=few_d_out.to(exact_device) if few_d_out is not None else None,
    )
    exact_tensors = [tensor for tensor in (exact.out, exact.d_q, exact.d_k, exact.d_v) if tensor is not None]
    trusted = _trusted(few, causal, few_d_out)
    errors = tuple(
        _compare(name, _heads(tensor, picked), close, target, is_finite, ERROR_FLOORS[dtype])
        for name, tensor, close, target, is_finite in zip(
            ("out", "d_q", "d_k", "d_v"), results, trusted, exact_tensors, finite, strict=False
        )
    )
    return Check(all(error.passed for error in errors), errors, len(picked), exact_device)


def _heads(tensor: torch.Tensor, picked: list[int]) -> torch.Tensor:
    """These heads of a [batch, heads, seq_len, head_dim] tensor, as [heads, seq_len, head_dim]."""
    return tensor.detach().reshape(-1, *tensor.shape[-2:])[picked]


def _run(run: object, inputs: Sequence[torch.Tensor], causal: bool, d_out: torch.Tensor | None) -> list[torch.Tensor]:
    """Output and, with `d_out`, the three gradients."""
    import torch  # noqa: PLC0415

    assert callable(run)
    out = run(*inputs, causal)
    if d_out is None:
        return [out]
    return [out.detach(), *torch.autograd.grad(out, list(inputs), d_out)]


def _trusted(few: list[torch.Tensor], causal: bool, d_out: torch.Tensor | None) -> list[torch.Tensor]:
    """The formula as plain torch operators on the compared heads; every intermediate has the inputs' format."""
    import torch  # noqa: PLC0415

    leaves = [tensor.clone().requires_grad_(d_out is not None) for tensor in few]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        if is_causal:
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    return _run(run, leaves, causal, d_out)


def _poison(size: torch.Size, dtype: torch.dtype, device: str) -> None:
    """Leaves NaN in the allocator's free blocks, so that an element nobody writes does not look right by luck."""
    import torch  # noqa: PLC0415

    blocks = [torch.full(size, float("nan"), dtype=dtype, device=device) for _ in range(4)]
    del blocks


def _compare(
    name: str, tensor: torch.Tensor, trusted: torch.Tensor, exact: torch.Tensor, finite: bool, floor: float
) -> TensorError:
    # The gradients of a single token's scores are zero: then the error is measured against numbers of size one.
    scale = float(exact.norm()) or math.sqrt(exact.numel())

    def deviation(candidate: torch.Tensor) -> tuple[float, float]:
        difference = candidate.to(exact.device).double() - exact
        return float(difference.norm()) / scale, float(difference.abs().max())

    norm, largest = deviation(tensor)
    trusted_norm, trusted_largest = deviation(trusted)
    # A comparison with NaN is false, so a NaN can never pass.
    passed = finite and norm <= max(ALLOWED_RATIO * trusted_norm, floor)
    return TensorError(name, norm, largest, trusted_norm, trusted_largest, finite, passed)
