"""The wall difference: parts that add up to it exactly, whatever the two profiles look like."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import kernel, launch, nvtx, trace
from tests.analysis.random_traces import GEMM, NCCL, SOFTMAX, US
from tests.compare.difference.programs import CALL, LATENCY, Launch, any_side, program, settled, side
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step, Window
from warplens.compare.difference import wall_split
from warplens.compare.side import Side, gpu_work_samples, step_samples


def _changes(baseline: Side, variant: Side) -> dict[str, Fraction]:
    return {part.part: part.change_ns for part in wall_split(baseline, variant).parts if part.change_ns}


def test_a_kernel_that_takes_longer_makes_its_category_the_whole_difference():
    slow = side(program([Launch(gpu=90 * US), Launch(SOFTMAX, gpu=90 * US)]))
    fast = side(program([Launch(gpu=70 * US), Launch(SOFTMAX, gpu=90 * US)]))
    assert _changes(slow, fast)["gemm"] == -20 * US
    assert wall_split(slow, fast).change_ns == -20 * US


def test_a_slower_host_makes_launch_time_the_whole_difference():
    baseline = settled(program([Launch(host=10 * US)] * 4))
    variant = settled(program([Launch(host=13 * US)] * 4))
    assert wall_split(baseline, variant).change_ns == 4 * 3 * US
    assert _changes(baseline, variant)["launch"] == 4 * 3 * US


def test_exposed_communication_is_a_part_of_its_own():
    baseline = side(program([Launch(gpu=50 * US)]))
    variant = side(program([Launch(gpu=50 * US), Launch(NCCL, gpu=30 * US)]))
    assert _changes(baseline, variant)["communication"] == 30 * US


def test_the_time_between_steps_counts_once_for_each_pause():
    baseline, variant = side(program([Launch()] * 2)), side(program([Launch()] * 2, pause=500 * US))
    split = wall_split(baseline, variant)
    assert split.variant.between_ns == 500 * US
    assert split.change_ns == 500 * US
    assert split.residual_ns == 0


def test_the_wall_time_of_contiguous_steps_is_the_window_over_the_steps():
    one = side(program([Launch(), Launch(SOFTMAX)]))
    assert wall_split(one, one).baseline.wall_ns == Fraction(one.window.duration_ns, len(one.window.steps))
    assert wall_split(one, one).baseline.wall_ns == 2 * 10 * US + LATENCY + 2 * US


def test_numbers_are_per_step_when_the_sides_have_different_numbers_of_them():
    work = [Launch(gpu=70 * US), Launch(SOFTMAX, gpu=70 * US)]
    split = wall_split(settled(program(work, steps=4)), settled(program(work, steps=8)))
    assert split.change_ns == 0
    assert all(part.change_ns == 0 for part in split.parts)


def test_work_of_several_devices_fills_the_same_wall_time():
    profile = trace(
        [kernel(0, 40, GEMM, device=0), kernel(0, 10, GEMM, device=1)], ranges=[nvtx(0, 40, "x")], window_ns=(0, 40)
    )
    one = side(profile, window="all")
    split = wall_split(one, one)
    assert split.baseline.wall_ns == 40
    assert split.baseline.busy_ns == Fraction(40 + 10, 2)


def test_a_side_without_gpu_work_is_idle_for_reasons_unknown():
    empty = trace([], [launch(0, 50, 1)], window_ns=(0, 50))
    split = wall_split(side(empty, window="all"), side(program([Launch()])))
    assert split.baseline.parts == {("idle", "unknown"): Fraction(50)}
    assert split.residual_ns == 0


def test_a_range_is_compared_by_the_spans_of_its_work():
    def of_range(gpu: int) -> Side:
        profile = program([Launch(range="forward", gpu=gpu), Launch(range="backward")])
        timeline = Timeline(profile)
        return Side("a", timeline, timeline.window("steady", "forward"))

    split = wall_split(of_range(20 * US), of_range(35 * US))
    assert split.change_ns == 15 * US
    assert split.residual_ns == 0


def test_the_table_of_parts_has_shares_that_add_up_to_one():
    split = wall_split(side(program([Launch()] * 2)), side(program([Launch(gpu=9 * US, host=12 * US)] * 3)))
    table = split.frame()
    assert abs(table["share"].sum() - 1) < 1e-12
    assert abs(table["change_ns"].sum() - float(split.change_ns)) < 1e-6


@given(any_side(), any_side())
def test_the_parts_add_up_to_the_difference_exactly(baseline, variant):
    split = wall_split(baseline, variant)
    assert split.residual_ns == 0
    for of_side in (split.baseline, split.variant):
        assert sum(of_side.parts.values()) == of_side.wall_ns
        assert of_side.busy_ns + of_side.idle_ns == of_side.wall_ns
        idle = sum(time for (group, _), time in of_side.parts.items() if group == "idle")
        assert idle == of_side.idle_ns


@given(any_side(), any_side())
def test_exchanging_the_sides_turns_every_sign(baseline, variant):
    there, back = wall_split(baseline, variant), wall_split(variant, baseline)
    changes = {(part.group, part.part): part.change_ns for part in there.parts}
    assert {(part.group, part.part): -part.change_ns for part in back.parts} == changes
    assert back.change_ns == -there.change_ns


@given(any_side(), st.lists(st.integers(0, 400 * US), min_size=2, max_size=9, unique=True))
def test_the_wall_time_is_the_mean_step_and_the_mean_gap(one, edges):
    edges = sorted(edges)
    steps = tuple(
        Step(number, begin, end) for number, (begin, end) in enumerate(zip(edges[::2], edges[1::2], strict=False))
    )
    window = Window(steps[0].start_ns, steps[-1].end_ns, "explicit", "for the test", steps)
    cut = Side("a", one.timeline, window)
    if not one.timeline.work_in(window).height:
        return
    wall = wall_split(cut, cut).baseline
    inside = sum(step.duration_ns for step in steps)
    expected = Fraction(inside, len(steps))
    if len(steps) > 1:
        expected += Fraction(window.duration_ns - inside, len(steps) - 1)
    assert wall.wall_ns == expected


def test_the_samples_are_the_durations_of_the_steps():
    one = side(program([Launch()] * 2, steps=4))
    samples = step_samples(one)
    assert len(samples.blocks) == 1
    assert samples.values.tolist() == [step.duration_ns for step in one.window.steps]


def test_a_step_lasts_until_the_next_where_much_happens_in_between():
    one = side(program([Launch()] * 2, steps=4, pause=500 * US))
    steps = one.window.steps
    begins = [step.start_ns for step in steps]
    assert step_samples(one).values.tolist() == np.diff(begins).tolist()
    assert CALL < steps[0].duration_ns < 500 * US


def test_a_window_without_steps_is_one_sample():
    one = side(program([Launch()] * 2), window="all")
    assert step_samples(one).values.tolist() == [one.window.duration_ns]


def test_the_gpu_work_of_each_step_is_that_of_the_parts_without_communication():
    work = [Launch(gpu=70 * US), Launch(NCCL, gpu=30 * US), Launch(SOFTMAX, gpu=20 * US)]
    for pause in (0, 500 * US):
        one = side(program(work, pause=pause))
        samples = gpu_work_samples(one)
        assert samples is not None
        (times,) = samples.blocks
        assert times.tolist() == [90.0 * US] * step_samples(one).count
        parts = wall_split(one, one).parts
        assert sum(part.baseline_ns for part in parts if part.group == "compute") == 90 * US


def test_a_step_without_computing_has_no_gpu_work_to_compare():
    assert gpu_work_samples(side(program([Launch(NCCL, gpu=30 * US)]))) is None
