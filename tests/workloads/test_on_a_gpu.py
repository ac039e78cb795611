"""What only a GPU can show: graphs and compiled models compute what the eager step computes."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")


from warplens.workloads.attention.problem import KERNELS, compared
from warplens.workloads.registry import OFF, Setting
from warplens.workloads.settings import AttentionCell, TokenReductionCell
from warplens.workloads.vision import prepare

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WAYS = [
    {"method": "none"},
    {"method": "none", "attention": "fused"},
    {"method": "topk", "keep": 0.1},
    {"method": "topk", "keep": 0.1, "attention": "fused"},
    {"method": "topk-fused", "keep": 0.1},
    {"method": "topk-fused", "keep": 0.1, "attention": "fused"},
    {"method": "evit-fused", "keep": 0.5},
    {"method": "dynamicvit", "keep": 0.5},
]


def _scores(cell):
    """Class scores of the cell's step, after memory that nobody held was given away and written over."""
    program = prepare(cell, Setting("cuda", OFF))
    gc.collect()
    torch.cuda.empty_cache()
    junk = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(256)]
    scores = program.step().clone()
    del junk
    return scores


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_a_graph_gives_the_scores_of_the_eager_step(way):
    eager = TokenReductionCell(batch=2, precision="fp32", **way)
    expected = _scores(eager)
    assert expected.isfinite().all()
    torch.testing.assert_close(_scores(replace(eager, execution="graph")), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_the_compiled_model_gives_the_scores_of_the_eager_step(attention):
    """Without a selection: where scores are nearly equal, other roundings choose other tokens."""
    eager = TokenReductionCell(batch=2, precision="fp32", method="none", attention=attention)
    torch.testing.assert_close(_scores(replace(eager, execution="compile")), _scores(eager), rtol=1e-3, atol=1e-3)


def test_a_compiled_model_takes_the_fused_kernel_in():
    scores = _scores(TokenReductionCell(method="topk-fused", keep=0.1, precision="fp32", execution="compile"))
    assert scores.isfinite().all()


def test_the_fused_kernel_gives_the_scores_of_the_eager_sequence():
    plain = TokenReductionCell(batch=2, precision="fp32", method="topk", keep=0.1)
    torch.testing.assert_close(_scores(replace(plain, method="topk-fused")), _scores(plain), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["naive", "tiled", "flash"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_own_attention_is_as_exact_as_pytorchs(name, dtype, causal, head_dim):
    outcome = compared(KERNELS[name], AttentionCell(name, 333, head_dim, 2, 4, dtype, causal, "both")).check
    assert outcome.passed, outcome


def test_launches_are_those_of_the_step():
    published = prepare(TokenReductionCell(method="topk", keep=0.1), Setting("cuda", OFF)).details
    fused = prepare(TokenReductionCell(method="topk-fused", keep=0.1), Setting("cuda", OFF)).details
    graph = prepare(TokenReductionCell(method="topk", keep=0.1, execution="graph"), Setting("cuda", OFF)).details
    assert graph["launches"] == 1
    assert graph["kernels"] == published["kernels"]
    # Three reductions: eight kernels for one, nine where cuBLAS or the sort splits a product or a row.
    assert published["kernels"] - fused["kernels"] >= 3 * 6
