"""Forward, backward, optimizer, from the names of ranges.

Softmax against the two products of attention: layers counted by hand, and a real capture counted with SQL.

Forward passes and steps by phase: the busy time of groups, and which steps are looked at.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import shipped
from tests.analysis.builders import AUTOGRAD_THREAD, Row, kernel, launch, nvtx, trace
from tests.analysis.lm_steps import WHOLE, Program
from tests.analysis.plain_sql import held, in_steps, opened, ops
from warplens.analysis import window
from warplens.analysis.phases import phase_statistics, phase_steps, step_statistics
from warplens.analysis.ranges import range_statistics
from warplens.analysis.streams import busy_by
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import AUTOGRAD_ENGINE, PHASES, Step, phase_of_name
from warplens.profile.schema import encode_names
from warplens.readers import read
from warplens.studies.grid.cells import model_size
from warplens.studies.grid.gputime import attention_row, attention_time, missing_attention_ranges
from warplens.studies.grid.passes import PASSES, PHASE_TIMES, Spread, phased_work

GEMM = "ampere_sgemm_128x32_nn"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward_pass", "forward"),
        ("Forward", "forward"),
        ("fwd step", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("backward_pass", "backward"),
        ("AddmmBackward0", "backward"),
        ("autograd::engine::evaluate_function: MulBackward0", "backward"),
        ("optimizer_step", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("AdamW", "optimizer"),
        ("forward_backward", "none"),
        ("flash_attn::_flash_attn_forward", "none"),
        ("straightforward", "none"),
        ("triton_per_fused_native_layer_norm_backward_nll_loss_forward_3", "none"),
        ("triton_poi_fused_nll_loss_forward_0", "none"),
        ("step", "none"),
        ("feed_forward", "none"),
        ("FeedForward", "none"),
        ("PositionwiseFeedForward.forward", "none"),
        ("feed-forward", "none"),
        ("fast_forward_dataloader", "none"),
        ("forward_pre_hook", "none"),
        ("backward_hook", "backward"),
    ],
)
def test_names_speak_of_phases(name, phase):
    assert phase_of_name(name) == phase


def training_step() -> tuple[list[Row], list[Row], list[Row]]:
    """Kernels, calls and ranges of one step."""
    return (
        [
            kernel(100, 110, GEMM, correlation=1),
            kernel(110, 150, GEMM, correlation=2),
            kernel(150, 155, "other", correlation=3),
            kernel(155, 158, "other", correlation=4),
        ],
        [
            launch(2, 3, 1),
            launch(20, 21, 2, thread=AUTOGRAD_THREAD),
            launch(42, 43, 3),
            launch(48, 49, 4),
        ],
        [nvtx(0, 50, "step"), nvtx(1, 5, "forward"), nvtx(10, 40, "backward"), nvtx(41, 45, "optimizer")],
    )


def _training_step() -> Timeline:
    return Timeline(trace(*training_step()))


def test_the_phases_sum_to_the_gpu_time_of_the_step():
    timeline = _training_step()
    table = phase_statistics(timeline, timeline.window("all"))
    assert table.select("phase", "gpu_ns", "inferred_ns", "matmul_ns").rows() == [
        ("forward", 10, 0, 10),
        ("backward", 40, 40, 40),
        ("optimizer", 5, 0, 0),
        ("none", 3, 0, 0),
    ]
    assert table["gpu_ns"].sum() == 58
    assert table["share"].sum() == pytest.approx(1)


def test_work_below_a_range_of_autograds_own_thread_is_inferred_too():
    """The thread says what it computes, not that this is the backward pass: `ranges` counts it as inferred as well."""
    kernels, calls, ranges = training_step()
    own = nvtx(18, 25, "aten::mm", thread=AUTOGRAD_THREAD)
    timeline = Timeline(trace(kernels, calls, [*ranges, own]))
    window = timeline.window("all")
    backward = phase_statistics(timeline, window).row(1, named=True)
    (named,) = range_statistics(timeline, window, "name").filter(pl.col("name") == "backward").rows(named=True)
    assert (backward["gpu_ns"], backward["inferred_ns"]) == (40, 40) == (named["gpu_ns"], named["inferred_ns"])


def test_a_forward_pass_recomputed_inside_the_backward_pass_is_backward_work():
    timeline = Timeline(
        trace([kernel(10, 20, correlation=1)], [launch(5, 6, 1)], [nvtx(0, 9, "backward"), nvtx(4, 8, "forward")])
    )
    assert phase_statistics(timeline, timeline.window("all"))["phase"].to_list() == ["backward"]


def test_each_step_has_its_phases():
    calls = [launch(1000 * i + 10 * j, 1000 * i + 10 * j + 1, 2 * i + j + 1) for i in range(3) for j in range(2)]
    kernels = [
        kernel(1000 * i + 10 * j + 2, 1000 * i + 10 * j + 5 + j, "k", correlation=2 * i + j + 1)
        for i in range(3)
        for j in range(2)
    ]
    ranges = [
        row
        for i in range(3)
        for row in (
            nvtx(1000 * i, 1000 * i + 30, "step"),
            nvtx(1000 * i, 1000 * i + 8, "forward"),
            nvtx(1000 * i + 9, 1000 * i + 20, "backward"),
        )
    ]
    timeline = Timeline(trace(kernels, calls, ranges))
    table = phase_steps(timeline, timeline.window())
    assert table["forward_ns"].to_list() == [3, 3, 3]
    assert table["backward_ns"].to_list() == [4, 4, 4]
    assert table["none_ns"].to_list() == [0, 0, 0]


def test_with_a_range_the_times_of_a_step_are_those_of_its_spans_on_the_gpu():
    kernels = [
        *(kernel(10, 20, correlation=1), kernel(22, 30, correlation=2), kernel(40, 70, correlation=3)),
        kernel(0, 100, correlation=3, device=1),
    ]
    timeline = Timeline(trace(kernels, [launch(1, 2, 1), launch(3, 4, 2), launch(6, 7, 3)], [nvtx(0, 5, "forward")]))
    window = replace(timeline.window("all"), steps=(Step(1, 0, 25), Step(2, 25, 100)))
    columns = ["wall_ns", "busy_ns", "idle_ns", "gpu_ns", "kernels"]
    of_range = step_statistics(timeline, replace(window, range_name="forward"))
    assert of_range.select(columns).rows() == [(15, 13, 2, 18, 2), (5, 5, 0, 0, 0)]
    assert of_range.select(pl.col("wall_ns", "busy_ns").sum()).row(0) == next(
        (budget.duration_ns, budget.busy_ns) for budget in time_budgets(timeline, timeline.window("all", "forward"))
    )


def test_the_busiest_gpu_counts_though_none_of_its_work_begins_in_the_step():
    timeline = Timeline(trace([kernel(0, 100, device=1), kernel(40, 50)]))
    window = replace(timeline.window("40:80"), steps=(Step(1, 40, 80),))
    assert step_statistics(timeline, window).select("busy_ns", "idle_ns", "kernels").rows() == [(40, 0, 1)]


def test_without_ranges_all_work_is_outside_of_phases():
    timeline = Timeline(trace([kernel(0, 10)]))
    assert phase_statistics(timeline, timeline.window("all"))["phase"].to_list() == ["none"]


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


def row_of(timeline):
    """Of the small model with four sequences of 512 tokens."""
    return attention_row(attention_time(timeline, phased_work(timeline)), model_size("small"), 4, 512, None)


def test_each_part_is_measured_per_layer_without_warm_up():
    row = row_of(layers())
    assert (row["layers"], row["passes"], row["softmax_kernels"]) == (2, 2, 2)
    times = ("scores_ns", "scores_matmul_ns", "softmax_ns", "values_ns", "products_ns")
    assert [row[name] for name in times] == [40, 30, 45, 40, 70]


def test_the_ratio_is_softmax_over_both_products():
    row = row_of(layers())
    assert row["runtime_ratio"] == 45 / 70
    assert row["range_ratio"] == 45 / 80
    assert row["times_slower_per_flop"] == pytest.approx(45 / 70 * 51.2)


def test_names_with_blanks_are_the_same_parts():
    timeline = layers(("computing attention scores", "Computing Softmax", "computing final matmul"))
    assert missing_attention_ranges(timeline) == ()
    assert row_of(timeline)["softmax_ns"] == 45


def test_missing_ranges_are_named_as_they_should_be_added():
    timeline = layers(("computing_attention_scores", "soft", "final_matmul"))
    assert missing_attention_ranges(timeline) == ("computing_softmax",)
    assert attention_time(timeline, phased_work(timeline)) is None


def test_rates_are_modelled_work_over_measured_time():
    row = row_of(layers())
    # 2 · 4 · 12 · 512² · 64 FLOP in 30 ns, 5 · 4 · 12 · 512² in 45 ns
    assert row["scores_flops_per_s"] == pytest.approx(1_610_612_736 / 30e-9)
    assert row["softmax_flops_per_s"] == pytest.approx(62_914_560 / 45e-9)


def test_the_traffic_of_an_unknown_softmax_is_not_guessed():
    timeline = layers()  # two kernels are neither the five of the assignment nor one fused
    assert attention_time(timeline, phased_work(timeline)).single_precision is True
    assert row_of(timeline)["softmax_bytes_per_s"] is None


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
    row = row_of(timeline)
    assert (row["layers"], row["softmax_kernels"]) == (12, 5)
    ratios = [s / (q + v) for s, q, v in zip(softmax, scores, values, strict=True)]
    assert row["runtime_ratio"] == pytest.approx(statistics.median(ratios))
    # max 1, subtract 2, exponential 2, sum 1, divide 2: eight accesses of 4 bytes for each of B·H·S² scores
    moved = 8 * 4 * 4 * 12 * 512**2 / (statistics.median(softmax) / 12 * 1e-9)
    assert row["softmax_bytes_per_s"] == pytest.approx(moved)


INTERVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), max_size=25)


@given(INTERVALS)
def test_busy_time_of_a_group_is_the_number_of_its_covered_instants(rows):
    covered = [
        len({t for g, start, length in rows if g == group for t in range(start, start + length)}) for group in range(4)
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    work = pl.DataFrame({"group": columns[:, 0], "start_ns": columns[:, 1], "end_ns": columns[:, 1] + columns[:, 2]})
    found = dict(busy_by(work, ["group"]).rows())
    assert [found.get(group, 0) for group in range(4)] == covered


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**12)), max_size=9))
def test_a_spread_is_over_what_was_measured(values):
    known = sorted(value for value in values if value is not None)
    spread = Spread.of(pl.Series(values, dtype=pl.Int64))
    if not known:
        assert spread is None
    else:
        assert (spread.minimum, spread.maximum, spread.count) == (known[0], known[-1], len(known))
        assert spread.minimum <= spread.median <= spread.maximum


def test_tables_keep_their_schema_with_and_without_work():
    whole = phased_work(Program().step().step().timeline())
    nothing = phased_work(Program().step({"setup": (("kernel", 10),)}, name=None).timeline())
    for phased in (whole, nothing):
        assert phased.passes.schema == PASSES.schema
        assert phased.phases.schema == PHASE_TIMES.schema
    assert nothing.passes.height == 0


def test_leading_slow_steps_are_warm_up_where_only_phases_tell_steps():
    program = Program().step({phase: tuple((n, 9 * d) for n, d in works) for phase, works in WHOLE.items()}, name=None)
    for _ in range(4):
        program.step(name=None)
    phased = phased_work(program.timeline())
    assert [step.index for step in phased.steps] == [2, 3, 4, 5]
    assert phased.passes["gpu_ns"].to_list() == [400] * 4


def test_a_single_step_is_one_step_however_its_layers_repeat():
    layers = {"forward_pass": (("sgemm", 30), ("elementwise_kernel", 10)) * 20}
    phased = phased_work(Program().step(layers).timeline())
    assert len(phased.steps) == 1
    assert phased.passes["kernels"].to_list() == [40]


@pytest.mark.parametrize(("wait", "synchronised"), [("phase", True), ("step", False)])
def test_a_wait_after_the_range_does_not_count_as_one_inside(wait, synchronised):
    program = Program().step(wait=wait).step(wait=wait)
    assert phased_work(program.timeline()).passes["synchronised"].to_list() == [synchronised] * 2


def test_phases_of_many_names_are_those_of_each_and_few_names_are_looked_at(monkeypatch):
    names = ["Forward", "layer.bwdPass", "adamw step", "weight_update", "sgd", "aten::forward", "forward backward"]
    names += [f"{AUTOGRAD_ENGINE}: Mul"] + ["".join(letters) for letters in itertools.product("abcdef", repeat=4)]
    asked = []
    monkeypatch.setattr(window, "phase_of_name", lambda name: asked.append(name) or phase_of_name(name))
    found = window.phase_numbers(encode_names(np.arange(len(names)), names))
    assert [("none", *PHASES)[number] for number in found] == [phase_of_name(name) for name in names]
    assert found[:8].tolist() == [1, 2, 3, 3, 3, 0, 0, 2]
    assert asked == names[:8]
