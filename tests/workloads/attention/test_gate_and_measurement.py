"""The gate catches kernels that are wrong, and the table says what happened to each kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from warplens.workloads.attention.measurement import measured
from warplens.workloads.attention.problem import (
    KERNELS,
    AttentionKernel,
    attention_inputs,
    compared,
    reference,
)
from warplens.workloads.registry import Plan
from warplens.workloads.settings import AttentionCell

CELL = AttentionCell("", 24, 16, 2, 2)
QUICK = Plan(least=6, most=6, warmup_ns=0, most_ns=0)


def _kernel(run):
    return AttentionKernel("planted", "torch", run)


def _attention(q, k, v, causal, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def _record(kernel, dtype="bfloat16", causal=True, mode="backward"):
    return measured(kernel, replace(CELL, dtype=dtype, causal=causal, mode=mode), QUICK, "cpu")


def _status(run, *options):
    return _record(_kernel(run), *options)


def _last_row_is_nan(q, k, v, causal):
    out = _attention(q, k, v, causal).clone()
    out[..., -1, :] = float("nan")
    return out


def _one_key_too_many(q, k, v, causal):
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril(1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return _attention(q, k, v, True)

    @staticmethod
    def backward(ctx, d_out):
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            d_q, d_k, d_v = torch.autograd.grad(_attention(*leaves, True), leaves, d_out)
        return d_q, d_k * 1.05, d_v


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, k, v, causal: _attention(q, k, v, False),
        lambda q, k, v, causal: _attention(q, k, v, causal, scale=0.3),
        lambda q, k, v, causal: _attention(q, k, v, causal) * 1.01,
        _one_key_too_many,
        _last_row_is_nan,
        lambda q, k, v, causal: _WrongGradient.apply(q, k, v),
    ],
    ids=["no mask", "scale", "one percent", "mask off by one", "NaN in one row", "gradient of k"],
)
def test_a_wrong_kernel_is_reported_with_numbers_and_never_timed(wrong):
    result = _status(wrong)
    assert result["status"] == "incorrect"
    assert not result.keys() & {"samples", "gpu_ns", "latency_ns"}
    assert not result["details"]["check"]["passed"]
    assert result["reason"]


def test_the_report_names_the_tensor_that_is_wrong():
    result = _status(lambda q, k, v, causal: _WrongGradient.apply(q, k, v))
    assert {error["tensor"] for error in result["details"]["check"]["errors"] if not error["passed"]} == {"d_k"}
    assert result["reason"].startswith("d_k")


def test_an_element_that_nobody_writes_does_not_pass():
    def leaves_a_row_out(q, k, v, causal):
        out = torch.empty_like(q)
        out[..., :-1, :] = _attention(q, k, v, causal)[..., :-1, :]
        return out

    outcome = compared(_kernel(leaves_a_row_out), replace(CELL, dtype="float32"), "cpu").check
    assert not outcome.passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_kernel_is_timed(dtype, causal):
    result = _status(_attention, dtype, causal)
    assert result["status"] == "measured", result["reason"]
    assert result["latency_ns"]["samples"] == len(result["samples"]["wall_ns"]) == 6
    assert result["gpu_ns"] is None
    # Two products of 2·S²·D for each of 2 · 2 heads, half of that with a mask, 2.5 times that for the gradients.
    assert result["work"]["flops"] == 4 * 2 * 2 * 24**2 * 16 * 2.5 / (2 if causal else 1)


def test_running_out_of_memory_is_a_row_and_not_the_end():
    def greedy(q, k, v, causal):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    result = _status(greedy)
    assert (result["status"], result["reason"]) == ("out-of-memory", "tried to allocate 80 GiB")


def test_a_crash_is_a_row_that_names_the_error():
    def broken(q, k, v, causal):
        raise ValueError("illegal instruction\nat 0x0")

    result = _status(broken)
    assert (result["status"], result["reason"]) == ("failed", "ValueError: illegal instruction")


def test_a_backend_that_torch_refuses_is_unsupported_with_a_reason():
    result = _record(KERNELS["sdpa-cudnn"], "float16", False, "forward")
    assert result["status"] == "unsupported"
    assert "cudnn" in result["reason"].lower()


def test_torchs_math_backend_passes_the_gate():
    result = _record(KERNELS["sdpa-math"], "float32", True, "both")
    assert result["status"] == "measured", result["reason"]


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_what_autograd_says_in_float64(causal):
    # Longer than one block of rows, so that the blocks' contributions to dK and dV must add up.
    inputs = attention_inputs(AttentionCell("", 530, 4, 1, 2, "float32"), "cpu")
    leaves = [tensor[0].double().requires_grad_() for tensor in inputs]
    d_out = torch.randn(2, 530, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    scores = leaves[0] @ leaves[1].transpose(1, 2) * 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(530, 530, dtype=torch.bool).triu(1), float("-inf"))
    out = torch.softmax(scores, -1) @ leaves[2]
    exact = [out, *torch.autograd.grad(out, leaves, d_out)]
    ours = reference(*leaves, causal=causal, scale=0.5, d_out=d_out)
    for tensor, target in zip(ours, exact, strict=True):
        assert torch.allclose(tensor, target, rtol=1e-10, atol=1e-12)


def test_inputs_repeat_with_their_seed_and_differ_without():
    first, again, other = (attention_inputs(CELL, "cpu", seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])
