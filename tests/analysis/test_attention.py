"""Softmax against the two products of attention: layers counted by hand, and a real capture counted with SQL."""

from __future__ import annotations

import statistics

import pytest

from tests import shipped
from tests.analysis.builders import kernel, launch, nvtx, trace
from tests.analysis.plain_sql import held, in_steps, opened, ops
from warplens.analysis.timeline import Timeline
from warplens.readers import read
from warplens.studies.grid.kernels import model_size, phased_work
from warplens.studies.grid.training import attention_time, missing_attention_ranges


def layers(names=("computing_attention_scores", "computing_softmax", "final_matmul"), count=2):
    """Two forward passes of `count` layers, after a warm-up that is ten times as slow.

    A layer takes 30 ns for a product, 10 for scaling, 20 + 25 for the softmax and 40 for the other product.
    """
    kernels, calls, ranges = [], [], []
    at = 0
    for step, slow in enumerate((10, 1, 1)):
        begin = at
        for _ in range(count):
            for name, works in (
                (names[0], (("sgemm_tn", 30), ("scale", 10))),
                (names[1], (("softmax_max<float>", 20), ("softmax_exp<float>", 25))),
                (names[2], (("sgemm_nn", 40),)),
            ):
                opened_at = at
                for kernel_name, duration in works:
                    correlation = len(calls)
                    calls.append(launch(at, at + 1, correlation))
                    kernels.append(kernel(at + 2, at + 2 + slow * duration, kernel_name, correlation=correlation))
                    at += slow * duration + 10
                ranges.append(nvtx(opened_at, at, name))
        ranges.append(nvtx(begin, at, "forward_pass"))
        ranges.append(nvtx(begin, at, "warmup" if step == 0 else "step"))
        at += 100
    return Timeline(trace(kernels, calls, ranges))


def test_each_part_is_measured_per_layer_without_warm_up():
    timeline = layers()
    attention = attention_time(timeline, phased_work(timeline))
    assert attention.layers == 2
    assert attention.passes.height == 2
    assert attention.per_layer("scores_ns").median == 40
    assert attention.per_layer("scores_matmul_ns").median == 30
    assert attention.per_layer("softmax_ns").median == 45
    assert attention.per_layer("values_ns").median == 40
    assert attention.products.median == 70
    assert attention.softmax_kernels == 2


def test_the_ratio_is_softmax_over_both_products():
    timeline = layers()
    attention = attention_time(timeline, phased_work(timeline))
    assert attention.runtime_ratio.median == 45 / 70
    assert attention.range_ratio.median == 45 / 80
    assert attention.times_slower_per_flop(model_size("small")) == pytest.approx(45 / 70 * 51.2)


def test_names_with_blanks_are_the_same_parts():
    timeline = layers(("computing attention scores", "Computing Softmax", "computing final matmul"))
    assert missing_attention_ranges(timeline) == ()
    assert attention_time(timeline, phased_work(timeline)).per_layer("softmax_ns").median == 45


def test_missing_ranges_are_named_as_they_should_be_added():
    timeline = layers(("computing_attention_scores", "soft", "final_matmul"))
    assert missing_attention_ranges(timeline) == ("computing_softmax",)
    assert attention_time(timeline, phased_work(timeline)) is None


def test_rates_are_modelled_work_over_measured_time():
    timeline = layers()
    attention = attention_time(timeline, phased_work(timeline))
    small = model_size("small")
    # 2 · 4 · 12 · 512² · 64 FLOP in 30 ns, 5 · 4 · 12 · 512² in 45 ns
    assert attention.product_flops_per_s("scores", small, 4, 512) == pytest.approx(1_610_612_736 / 30e-9)
    assert attention.softmax_flops_per_s(small, 4, 512) == pytest.approx(62_914_560 / 45e-9)


def test_the_traffic_of_an_unknown_softmax_is_not_guessed():
    timeline = layers()  # two kernels are neither the five of the assignment nor one fused
    attention = attention_time(timeline, phased_work(timeline))
    assert attention.single_precision is True
    assert attention.softmax_bytes_per_s(model_size("small"), 4, 512) is None


def test_real_capture_equals_a_count_with_sql():
    path = shipped.capture("lm_small_ctx512_forward")
    timeline = Timeline(read(path))
    attention = attention_time(timeline, phased_work(timeline))
    with opened(path) as connection:
        work = ops(connection)
        per_pass = {}
        for part in ("computing_attention_scores", "computing_softmax", "final_matmul"):
            sums = [
                [
                    sum(op.duration for op in held(work, inner) if part == "computing_softmax" or "gemm" in op.name)
                    for inner in in_steps(connection, part)
                    if inner.inside(forward)
                ]
                for forward in in_steps(connection, "forward_pass")
            ]
            assert [len(each) for each in sums] == [12, 12, 12]
            per_pass[part] = [sum(each) for each in sums]
    scores, softmax, values = per_pass.values()
    assert attention.passes["softmax_ns"].to_list() == softmax
    assert attention.passes["scores_matmul_ns"].to_list() == scores
    assert attention.passes["values_matmul_ns"].to_list() == values
    assert attention.layers == 12
    assert attention.softmax_kernels == 5
    ratios = [s / (q + v) for s, q, v in zip(softmax, scores, values, strict=True)]
    assert attention.runtime_ratio.median == pytest.approx(statistics.median(ratios))
    # max 1, subtract 2, exponential 2, sum 1, divide 2: eight accesses of 4 bytes for each of B·H·S² scores
    moved = 8 * 4 * 4 * 12 * 512**2 / (statistics.median(softmax) / 12 * 1e-9)
    assert attention.softmax_bytes_per_s(model_size("small"), 4, 512) == pytest.approx(moved)
