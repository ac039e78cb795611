"""What counts as work, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="the kernels are written in Triton")

from warplens.errors import UsageError
from warplens.workloads.attention.kernels import backward_tiles, forward_tiles
from warplens.workloads.attention.measurement import time_calls
from warplens.workloads.attention.problem import KERNELS, attention_flops
from warplens.workloads.registry import Plan
from warplens.workloads.settings import AttentionCell


def test_forward_work_is_four_b_h_s_squared_d():
    # One head of the smallest language model at context 512, batch 4: twice 1,610,612,736 (QK and PV).
    assert attention_flops(AttentionCell("", 512, 64, 4, 12, causal=False)) == 2 * 1_610_612_736


def test_causal_counts_half_and_backward_two_and_a_half_times():
    cell = AttentionCell("", 2048, 128, causal=False)
    full = attention_flops(cell)
    assert attention_flops(replace(cell, causal=True)) == full / 2
    assert attention_flops(replace(cell, mode="backward")) == full * 2.5
    assert attention_flops(replace(cell, causal=True, mode="both")) == full * 3.5 / 2


def test_work_is_what_torch_counts_for_its_own_attention():
    counter = pytest.importorskip("torch.utils.flop_counter", reason="torch is not installed")
    cell, size = AttentionCell("", 32, 16, 2, 3, causal=False), (2, 3, 32, 16)
    assert attention_flops(cell) == counter.sdpa_flop_count(size, size, size)
    backward = counter.sdpa_backward_flop_count(size, size, size, size)
    assert attention_flops(replace(cell, mode="backward")) == backward


def test_a_problem_without_tokens_is_refused():
    with pytest.raises(UsageError, match="sequence length is 0"):
        AttentionCell("", seq_len=0)


def test_own_kernels_come_in_the_order_of_their_expected_speed():
    assert [name for name, kernel in KERNELS.items() if kernel.origin == "own"] == ["naive", "tiled", "flash"]
    assert {name for name, kernel in KERNELS.items() if kernel.origin == "torch"} == {
        "sdpa-flash",
        "sdpa-efficient",
        "sdpa-cudnn",
        "sdpa-math",
    }


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
def test_only_gpus_with_a_tensor_memory_accelerator_are_asked_to_use_it(head_dim, capability):
    assert forward_tiles(head_dim, 2, capability).tma == (capability >= (9, 0))
    assert backward_tiles(head_dim, 2, capability).skip


def test_importing_the_kernels_loads_neither_torch_nor_triton():
    code = (
        "import sys, warplens, warplens.workloads.attention\n"
        "assert not {'torch', 'triton'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_timing_stops_once_the_median_is_known():
    pytest.importorskip("torch", reason="torch is not installed")
    calls = []
    samples, warmup_calls = time_calls(
        lambda: calls.append(sum(range(20_000))), "cpu", Plan(least=10, most=400, precision=0.5, warmup_ns=0)
    )
    assert warmup_calls == 3
    assert len(calls) == 3 + len(samples)
    assert 10 <= len(samples) < 400


def test_timing_takes_no_more_than_the_most_samples():
    pytest.importorskip("torch", reason="torch is not installed")
    plan = Plan(least=10, most=25, precision=0.0, warmup_ns=0)
    samples, _ = time_calls(lambda: sum(range(100)), "cpu", plan)
    assert len(samples) == 25
