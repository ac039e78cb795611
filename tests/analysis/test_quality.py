from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.analysis.builders import (
    AUTOGRAD_THREAD,
    Row,
    call,
    copy,
    graph,
    kernel,
    launch,
    nvtx,
    overhead,
    trace,
)
from tests.diagnosis.machine import ADD, US, Machine
from warplens.analysis.quality import aborted_steps, quality_notes
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step, Window
from warplens.profile import Note, NoteLevel

STEP_NS = 1_000
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"


class Rows(NamedTuple):
    """What one training step leaves in each table."""

    kernels: list[Row]
    calls: list[Row]
    ranges: list[Row]


def _step(number: int, *, forward: int = 100, backward: int = 200, optimizer: int = 50) -> Rows:
    """A training step of `STEP_NS` whose phases run one kernel of the given length each, or none for 0."""
    begin = number * STEP_NS
    step = Rows([], [], [nvtx(begin, begin + STEP_NS, "step")])
    phases = (("forward", 10, forward), ("backward", 200, backward), ("optimizer", 600, optimizer))
    for place, (name, offset, length) in enumerate(phases):
        launched = begin + offset + 10
        step.ranges.append(nvtx(begin + offset, begin + offset + 100, name))
        if length:
            step.calls.append(launch(launched, launched + 2, 10 * number + place))
            step.kernels.append(kernel(launched + 10, launched + 10 + length, GEMM, correlation=10 * number + place))
    return step


def _training(*steps: Rows, **tables: list[Row]) -> Timeline:
    """The profile of these steps, with further rows."""
    kernels, calls, ranges = ([row for step in steps for row in step[table]] for table in range(3))
    return Timeline(trace(kernels, [*calls, *tables.pop("api", [])], ranges, **tables))


def _window(*numbers: int, length: int = STEP_NS) -> Window:
    steps = tuple(Step(number + 1, number * STEP_NS, number * STEP_NS + length) for number in numbers)
    return Window(steps[0].start_ns, steps[-1].end_ns, "steady", "ranges named 'step'", steps)


HEALTHY = _training(*(_step(number) for number in range(4)))


def _codes(timeline: Timeline, window: Window) -> list[str]:
    return [note.code for note in quality_notes(timeline, window)]


def test_a_healthy_profile_gives_no_notes():
    assert quality_notes(HEALTHY, _window(1, 2, 3)) == ()


def test_notes_of_the_reader_come_first_within_their_level_and_the_worst_come_first():
    notes = [
        Note("odd", NoteLevel.INFO, "odd"),
        Note("bad", NoteLevel.WARNING, "bad"),
        Note("no", NoteLevel.BLOCKING, "no"),
    ]
    timeline = Timeline(trace(kernels=[kernel(0, 10, GEMM)], api=[], notes=notes))

    codes = _codes(timeline, Window(0, 10, "all", ""))

    assert codes == ["no", "bad", "no-api-calls", "no-ranges", "odd", "no-steps"]


def test_a_matter_that_reader_and_analysis_both_noticed_is_told_once():
    reader = Note("no-ranges", NoteLevel.WARNING, "no NVTX ranges")
    timeline = Timeline(trace(kernels=[kernel(0, 10, GEMM)], notes=[reader]))

    assert _codes(timeline, Window(0, 10, "all", "")).count("no-ranges") == 1


def test_a_profile_without_gpu_work_has_only_the_readers_notes():
    nothing = Note("no-cuda-data", NoteLevel.BLOCKING, "nothing")

    assert quality_notes(Timeline(trace(notes=[nothing])), Window(0, 1, "all", "")) == (nothing,)


def test_a_step_without_backward_work_was_aborted():
    timeline = _training(_step(0), _step(1), _step(2, backward=0), _step(3))

    note = quality_notes(timeline, _window(1, 2, 3))[0]

    assert (note.code, note.level) == ("aborted-step", NoteLevel.WARNING)
    assert note.text.startswith("1 of 3 steps did not finish (it has a forward pass, but no backward work on the GPU)")


def test_a_short_backward_pass_was_aborted_only_where_no_optimizer_followed():
    def reasons(**last: int) -> list[str]:
        found = aborted_steps(_training(_step(0), _step(1), _step(2, backward=5, **last)), _window(1, 2))
        return [reason for step in found for reason in step.reasons]

    assert reasons(optimizer=50) == []
    assert "its backward pass stopped after 5 % of the forward pass's GPU time" in reasons(optimizer=0)


def test_a_profile_whose_every_step_was_aborted_cannot_answer():
    timeline = _training(_step(0, backward=0, optimizer=1))

    notes = quality_notes(timeline, _window(0))

    assert (notes[0].code, notes[0].level) == ("aborted-step", NoteLevel.BLOCKING)
    assert notes[0].text.startswith("The only step did not finish")


def test_a_step_that_the_user_cut_is_no_aborted_one():
    assert "aborted-step" not in _codes(HEALTHY, HEALTHY.window("2100:2250"))


def test_a_step_whose_optimizer_ran_nothing_was_aborted():
    timeline = _training(*(_step(number, optimizer=0 if number == 2 else 50) for number in range(4)))

    (aborted,) = aborted_steps(timeline, _window(1, 2, 3))

    assert (aborted.step.index, aborted.reasons) == (3, ("its optimizer has no work on the GPU",))


def test_an_optimizer_that_ran_its_operators_on_the_host_has_finished():
    steps = [_step(number, optimizer=0) for number in range(4)]
    ranges = [row for step in steps for row in step.ranges]
    inside = [
        nvtx(row["start_ns"] + 10, row["start_ns"] + 20, "aten::addcdiv_", kind="cpu-op")
        for row in ranges
        if "optimizer" in row["name"]
    ]
    kernels, calls = ([row for step in steps for row in step[table]] for table in range(2))
    whole = trace(kernels, calls, sorted([*ranges, *inside], key=lambda row: (row["start_ns"], -row["end_ns"])))

    assert len(inside) == 4
    assert aborted_steps(Timeline(whole), _window(1, 2, 3)) == ()


def test_a_step_shorter_than_the_shortest_forward_pass_was_aborted():
    (aborted,) = aborted_steps(HEALTHY, _window(1, length=50))

    assert aborted.reasons == ("it is shorter than the shortest forward pass of the profile",)


def test_an_evaluation_step_is_not_an_aborted_training_step():
    evaluation = Rows(
        [kernel(2_030, 2_130, GEMM, correlation=20)],
        [launch(2_020, 2_022, 20)],
        [nvtx(2_000, 3_000, "step"), nvtx(2_010, 2_110, "forward")],
    )
    timeline = _training(_step(0), _step(1), evaluation, _step(3))

    assert aborted_steps(timeline, _window(1, 2, 3)) == ()


def test_steps_without_update_are_normal_where_gradients_accumulate():
    updating = [_step(1), _step(3)]
    accumulating = [_step(number, optimizer=0) for number in (0, 2)]
    for step in accumulating:
        step.ranges.pop()  # no optimizer range either
    timeline = _training(*updating, *accumulating)

    assert aborted_steps(timeline, _window(0, 1, 2, 3)) == ()


def _ahead(steps_ahead: int, updates: Callable[[int], bool], *, failing: int | None = None) -> Timeline:
    """24 training steps whose host is so many steps ahead of the GPU.

    Args:
        updates: whether a step has an optimizer range.
        failing: the place of a step whose optimizer range launches nothing.
    """
    machine, ends = Machine(), list[int]()
    for step in range(24):
        if step >= steps_ahead:
            machine.host = max(machine.host, ends[step - steps_ahead] if steps_ahead else machine.gpu)
        with machine.step():
            with machine.range("forward"):
                machine.launch(100 * US, times=10)
            with machine.range("backward"):
                machine.launch(100 * US, times=20)
            if updates(step):
                with machine.range("optimizer"):
                    machine.launch(100 * US, ADD, times=0 if step == failing else 12)
        ends.append(machine.gpu)
    return Timeline(machine.trace())


@pytest.mark.parametrize("every", [2, 4])
@pytest.mark.parametrize("steps_ahead", range(4))
def test_a_host_that_is_ahead_of_the_gpu_aborts_no_step_of_accumulated_gradients(steps_ahead, every):
    timeline = _ahead(steps_ahead, lambda step: step % every == every - 1)

    assert aborted_steps(timeline, timeline.window("steady")) == ()


@pytest.mark.parametrize("steps_ahead", range(4))
def test_the_step_whose_optimizer_ran_nothing_is_found_behind_a_host_that_is_ahead(steps_ahead):
    timeline = _ahead(steps_ahead, lambda step: step == 13, failing=13)

    (aborted,) = aborted_steps(timeline, timeline.window("steady"))

    assert (aborted.step.index, aborted.reasons) == (14, ("its optimizer has no work on the GPU",))


def test_inference_cannot_be_an_aborted_training_step():
    timeline = Timeline(
        trace(
            kernels=[kernel(30, 130, GEMM, correlation=1)],
            api=[launch(20, 22, 1)],
            ranges=[nvtx(0, 1_000, "step"), nvtx(10, 110, "forward")],
        )
    )

    assert aborted_steps(timeline, _window(0)) == ()


def test_a_range_called_after_an_optimizer_is_no_step_where_none_were_found():
    compiling = [nvtx(0, 100, "adam"), nvtx(200, 400, "compute")]
    timeline = Timeline(trace([kernel(230, 330, GEMM, correlation=1)], [launch(220, 222, 1)], compiling))

    assert "aborted-step" not in _codes(timeline, Window(0, 1_000, "all", ""))


def test_a_profile_that_lost_kernels_says_nothing_about_aborted_steps():
    lost = Note("lost-gpu-work", NoteLevel.BLOCKING, "kernels were lost")
    step = _step(0, backward=0)
    timeline = Timeline(trace(step.kernels, step.calls, step.ranges, notes=[lost]))

    assert "aborted-step" not in _codes(timeline, _window(0))


def test_allocations_that_failed_for_lack_of_memory_are_told():
    refused = [
        call(1_500, 1_510, "cudaMalloc", 900, return_value=2),
        call(1_520, 1_530, "cudaEventQuery", 901, return_value=600),
    ]
    timeline = _training(*(_step(number) for number in range(4)), api=refused)

    (note,) = quality_notes(timeline, _window(1, 2, 3))

    assert (note.code, note.text) == ("failed-allocations", "Memory allocations that failed for lack of memory: 1.")


def test_hidden_graph_interiors_are_told_with_their_share_of_the_busy_time():
    hidden = [graph(number * STEP_NS + 800, number * STEP_NS + 835, correlation=900 + number) for number in range(4)]
    calls = [
        launch(number * STEP_NS + 790, number * STEP_NS + 795, 900 + number, "cudaGraphLaunch") for number in range(4)
    ]
    timeline = _training(*(_step(number, forward=65) for number in range(4)), graph_launches=hidden, api=calls)

    (note,) = quality_notes(timeline, _window(1, 2, 3))

    assert (note.code, note.level) == ("graph-level-tracing", NoteLevel.WARNING)
    assert note.text.startswith("10.0 % of the GPU's busy time lies inside 3 CUDA graph executions")


def test_work_whose_launch_was_not_recorded_is_told():
    orphan = Rows([kernel(900, 940, GEMM)], [], [])
    timeline = _training(_step(0), orphan)

    codes = _codes(timeline, _window(0))
    assert "unknown-launches" in codes
    assert "work-outside-ranges" not in codes  # where it was launched, nobody knows


@pytest.mark.parametrize(("length", "level"), [(200, NoteLevel.WARNING), (2, NoteLevel.INFO)])
def test_pages_that_migrate_are_no_work_whose_launch_is_unknown(length, level):
    moved = [copy(900, 900 + length, "unified-host-to-device", 4_000_000, correlation=None)]
    timeline = _training(*(_step(number) for number in range(3)), copies=moved)

    notes = {note.code: note for note in quality_notes(timeline, _window(0, 1, 2))}

    assert "unknown-launches" not in notes
    assert notes["managed-memory"].level is level
    assert "1 times, 4.0 MB" in notes["managed-memory"].text


def test_work_outside_of_all_ranges_is_told():
    outside = Rows([kernel(5_010, 5_110, GEMM, correlation=99)], [launch(5_000, 5_002, 99)], [])
    timeline = _training(_step(0), _step(1), _step(2), outside)

    notes = quality_notes(timeline, Window(0, 6_000, "all", "", _window(0, 1, 2).steps))

    (note,) = [note for note in notes if note.code == "work-outside-ranges"]
    assert note.text.startswith("8.7 %")  # 100 of 1,150 ns


def test_work_attributed_across_threads_is_told():
    step = _step(0)
    step.calls[1]["thread"] = AUTOGRAD_THREAD
    timeline = _training(step)

    (note,) = [note for note in quality_notes(timeline, _window(0)) if note.code == "inferred-ranges"]

    assert note.level is NoteLevel.INFO
    assert note.text.startswith("57.1 %")  # 200 of 350 ns


def test_a_window_without_steps_is_doubtful_unless_it_was_asked_for():
    levels = {
        kind: [note.level for note in quality_notes(HEALTHY, Window(0, 4_000, kind, "")) if note.code == "no-steps"]
        for kind in ("device", "all", "explicit")
    }

    assert levels == {"device": [NoteLevel.WARNING], "all": [NoteLevel.INFO], "explicit": [NoteLevel.INFO]}


def test_work_that_begins_before_its_launch_tells_of_clocks_that_are_apart():
    steps = [_step(number) for number in range(4)]
    kernels = [
        {**row, "start_ns": row["start_ns"] - 15, "end_ns": row["end_ns"] - 15} for step in steps for row in step[0]
    ]
    apart = Timeline(
        trace(kernels, [row for step in steps for row in step[1]], [row for step in steps for row in step[2]])
    )

    (note,) = [note for note in quality_notes(apart, _window(1, 2, 3)) if note.code == "clocks-apart"]

    assert note.text.startswith("100.0 % of the GPU work begins before the call that launched it, by up to 0.0 µs")


@pytest.mark.parametrize(("behind", "told"), [(4, "50.0 %"), (2, None)])
def test_work_between_and_behind_the_steps_is_told_if_it_is_much_of_all(behind, told):
    steps = [_step(number, forward=50, backward=0, optimizer=0) for number in range(4)]
    starts = range(9_000, 9_000 + 100 * behind, 100)
    calls = [launch(start, start + 2, start) for start in starts]
    rest = Rows([kernel(start + 10, start + 60, GEMM, correlation=start) for start in starts], calls, [])
    timeline = _training(*steps, rest)

    texts = [note.text for note in quality_notes(timeline, timeline.window()) if note.code == "work-outside-steps"]

    assert [text.partition(" of")[0] for text in texts] == [told] * (told is not None)
    assert all("(4 of 4)" in text for text in texts)
    asked_for = quality_notes(timeline, timeline.window("all"))
    assert "work-outside-steps" not in [note.code for note in asked_for]


def test_too_few_steps_have_no_spread():
    assert _codes(HEALTHY, _window(2, 3)) == ["few-steps"]


def test_steps_that_run_different_work_are_told():
    longer = _step(3)
    longer.kernels.extend(kernel(start, start + 10, GEMM, correlation=32) for start in (3_800, 3_820))
    timeline = _training(_step(0), _step(1), _step(2), longer)

    (note,) = quality_notes(timeline, _window(1, 2, 3))

    assert (note.code, note.text.startswith("The steps run between 3 and 5 kernels")) == ("unequal-steps", True)


def test_profiler_overhead_counts_as_time_not_as_a_sum_over_threads():
    held = [overhead(1_000, 1_300), overhead(1_100, 1_300, thread=AUTOGRAD_THREAD)]
    timeline = _training(*(_step(number) for number in range(4)), profiler_overhead=held)

    (note,) = quality_notes(timeline, _window(1, 2, 3))

    assert (note.code, note.text) == (
        "profiler-overhead",
        "The profiler itself blocked host threads during 10.0 % of the window.",
    )


def test_kernels_whose_names_fit_no_category_are_told():
    steps = [_step(number) for number in range(4)]
    for row in (row for step in steps for row in step.kernels):
        row["name"] = row["full_name"] = "frobnicate"

    assert _codes(_training(*steps), _window(1, 2, 3)) == ["unclassified-kernels"]


def test_several_gpus_are_told():
    steps = [_step(number) for number in range(4)]
    for row in steps[2].kernels:
        row["device"] = 1

    assert _codes(_training(*steps), _window(1, 2, 3)) == ["several-devices"]


@pytest.mark.parametrize(
    ("process", "begin", "told"),
    [
        (2, 0, "process 1 for 90.0 %, process 2 for 50.0 %; at the same time for 45.0 %"),
        (2, 400, "process 1 for 90.0 %, process 2 for 50.0 %; at the same time for 40.0 %"),
        (2, 1_000, None),
        (1, 0, None),
    ],
)
def test_processes_that_share_a_gpu_are_told(process, begin, told):
    other = kernel(begin, begin + 500, "k", process=process, stream=8)
    found = Timeline(trace([kernel(0, 450, "k", process=1), kernel(550, 1_000, "k", process=1), other]))
    notes = [note for note in quality_notes(found, found.window("all")) if note.code == "shared-gpu"]
    assert [told in note.text for note in notes] == ([True] if told else [])


@pytest.mark.parametrize("second", [1, 2])
def test_no_change_is_predicted_on_a_gpu_that_processes_use_in_turn(second):
    times = [(time, second if time % 2_000 else 1) for time in range(1_000, 21_000, 1_000)]
    calls = [launch(time - 90, time - 80, time, process=process) for time, process in times]
    kernels = [kernel(time, time + 900, "k", correlation=time, process=process) for time, process in times]
    found = Timeline(trace(kernels, calls))
    notes = [note.text for note in quality_notes(found, found.window("all")) if note.code == "shared-gpu"]
    told = "process 1 for 45.0 %, process 2 for 45.0 %; at the same time for 0.0 %"
    assert [told in text for text in notes] == [True] * (second - 1)
    assert (recorded_schedule(found, found.window("all")) is None) == (second == 2)


@pytest.mark.parametrize(("helper_ns", "shared"), [(1, False), (100, True)])
def test_a_helper_counts_by_its_own_time_and_not_by_the_span_between_its_kernels(helper_ns, shared):
    own = [kernel(time, time + 700, "k", process=1) for time in range(0, 20_000, 1_000)]
    of_helper = [kernel(time, time + helper_ns, "k", process=2) for time in range(1_800, 19_000, 4_000)]
    found = Timeline(trace([*own, *of_helper]))

    notes = [note.code for note in quality_notes(found, found.window("all"))]

    assert ("shared-gpu" in notes) == shared


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("launches", "told"), [(10, None), (40, "40.0 %")])
def test_other_work_is_told_as_a_share_of_all_work_after_the_warm_up(inside, launches, told):
    rows = Rows([], [], [])
    time = 0
    for step in range(24):
        begin = time
        for place in range(10 + (launches if step in (4, 9, 11, 17) else 0)):
            rows.calls.append(launch(time, time + 2, len(rows.calls)))
            rows.kernels.append(kernel(time + 3, time + 13, GEMM, correlation=len(rows.kernels)))
            time += 20
            if place == 9:
                rows.ranges.append(nvtx(begin, time, "step"))
        if inside:
            rows.ranges[-1]["end_ns"] = time
        time += 20
    timeline = _training(rows)

    texts = [note.text for note in quality_notes(timeline, timeline.window()) if note.code == "work-outside-steps"]

    # Of 24 steps with 10 launches each, four are followed by other work, or hold it.
    assert [text.partition(" of")[0] for text in texts] == ([told] if told else [])
