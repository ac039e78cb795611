"""The own kernels against float64, at sizes that no tile divides, with their gradients."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from warplens.workloads.attention.kernels import BackwardTiles, ForwardTiles
from warplens.workloads.attention.problem import ERROR_FLOORS, HEAD_DIMS, KERNELS, compared
from warplens.workloads.settings import AttentionCell

pytestmark = pytest.mark.usefixtures("interpreter")

OWN = [name for name, kernel in KERNELS.items() if kernel.origin == "own"]


def _float64_autograd(q, k, v, causal, d_out):
    """Output and gradients of the formula by torch's own differentiation, in float64."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    scores = leaves[0] @ leaves[1].transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        seq_len = q.shape[-2]
        scores = scores.masked_fill(torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1), float("-inf"))
    out = torch.softmax(scores, -1) @ leaves[2]
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out.double())]


def _inputs(size, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(dtype) for _ in range(4)]


def _functions():
    """The module that needs triton: loaded by tests that asked for the interpreter."""
    return importlib.import_module("warplens.workloads.attention.functions")


def _with_gradients(run, q, k, v, causal, d_out):
    """What a kernel computes: its output, and the gradients of the inputs."""
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out = run(*leaves, causal)
    return [out, *torch.autograd.grad(out, leaves, d_out)]


def _relative(tensor, exact):
    return float((tensor.detach().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_output_and_gradients_in_fp32_are_those_of_float64_autograd(name, causal):
    q, k, v, d_out = _inputs((1, 2, 37, 16), torch.float32)
    found = _with_gradients(KERNELS[name].run, q, k, v, causal, d_out)
    for tensor, exact in zip(found, _float64_autograd(q, k, v, causal, d_out), strict=True):
        assert _relative(tensor, exact) < 1e-6


PROBLEMS = [AttentionCell("", seq_len, 32, 2, 1, "float16", mode="both") for seq_len in (1, 16, 70)]
PROBLEMS += [AttentionCell("", 21, head_dim, 1, 1, "float32", causal=False, mode="both") for head_dim in HEAD_DIMS]


@pytest.mark.parametrize("cell", PROBLEMS, ids=lambda cell: f"{cell.seq_len}-{cell.head_dim}-{cell.dtype}")
@pytest.mark.parametrize("name", OWN)
def test_any_length_and_every_head_dimension_pass_the_gate(name, cell):
    outcome = compared(KERNELS[name], replace(cell, kernel=name), "cpu").check
    assert outcome.passed, outcome.errors


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 32), (32, 16)])
def test_flash_computes_the_same_whatever_its_tiles(block_m, block_n, tma, causal):
    q, k, v, d_out = _inputs((1, 2, 75, 16), torch.float32)
    tiles = ForwardTiles(block_m, block_n, 4, 2, tma=tma)
    gradient_tiles = BackwardTiles(block_m, block_n, block_n, block_m, 4, 4, 1, 1)
    flash = partial(_functions().flash_attention, tiles=tiles, gradient_tiles=gradient_tiles)
    found = _with_gradients(flash, q, k, v, causal, d_out)
    for tensor, exact in zip(found, _float64_autograd(q, k, v, causal, d_out), strict=True):
        assert _relative(tensor, exact) < 1e-6


def test_flash_saves_the_log_sum_exp_in_powers_of_two():
    q, k, v, _ = _inputs((2, 40, 16), torch.float32)
    _, saved = _functions().flash_forward(q, k, v, causal=False, scale=0.25)
    exact = torch.logsumexp(q.double() @ k.double().transpose(1, 2) * 0.25, -1) / math.log(2)
    assert torch.allclose(saved.double(), exact, atol=1e-5)


@pytest.mark.parametrize("name", OWN)
def test_with_a_causal_mask_the_future_does_not_matter(name):
    q, k, v, _ = _inputs((1, 1, 40, 16), torch.float32)
    before = KERNELS[name].run(q, k, v, True)
    k[..., 30:, :], v[..., 30:, :] = 1e4, -1e4
    assert torch.equal(KERNELS[name].run(q, k, v, True)[..., :30, :], before[..., :30, :])


# Keys past the end have scores of zero, far above these rows' sums: their weights overflow, and are never stored.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2", "ignore:invalid value encountered")
@pytest.mark.parametrize("name", OWN)
def test_large_scores_do_not_overflow(name):
    q, k, v, d_out = _inputs((1, 1, 33, 16), torch.float32)
    q *= 300
    found = _with_gradients(KERNELS[name].run, q, k, v, True, d_out)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    assert _relative(found[0], _float64_autograd(q, k, v, True, d_out)[0]) < 1e-4


@pytest.mark.parametrize("name", OWN)
def test_inputs_need_not_be_contiguous(name):
    rows_first = [tensor.transpose(1, 2) for tensor in _inputs((1, 2, 20, 16), torch.float32)[:3]]
    strided = KERNELS[name].run(*rows_first, False)
    assert torch.equal(strided, KERNELS[name].run(*(tensor.contiguous() for tensor in rows_first), False))


def test_gradients_are_the_same_bits_in_every_run():
    q, k, v, d_out = _inputs((1, 1, 50, 16), torch.float32)
    runs = [_with_gradients(KERNELS["flash"].run, q, k, v, True, d_out) for _ in range(2)]
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_own_kernels_refuse_what_they_cannot_do(monkeypatch):
    refusal = KERNELS["flash"].refusal
    assert "48" in refusal(AttentionCell(head_dim=48), "cuda")
    assert "bfloat16" in refusal(AttentionCell(dtype="bfloat16"), "cpu")
    assert all(refusal(AttentionCell(dtype=dtype), "cuda:0") is None for dtype in ERROR_FLOORS)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "GPU" in refusal(AttentionCell(dtype="float16"), "cpu")
