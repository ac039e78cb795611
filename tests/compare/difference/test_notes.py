"""What is said before any number when two profiles are hard to compare."""

from __future__ import annotations

from dataclasses import replace

from tests.analysis.builders import graph, kernel, launch, nvtx, trace
from tests.compare.difference.programs import GEMM, NCCL, SOFTMAX, US, Launch, program, side
from warplens.compare.difference import Side, comparability_notes, kernel_changes, wall_split
from warplens.profile import Device, NoteLevel, Recorder, Trace


def _notes(baseline: Side, variant: Side) -> dict[str, NoteLevel]:
    notes = comparability_notes(baseline, variant, wall_split(baseline, variant), kernel_changes(baseline, variant))
    return {note.code: note.level for note in notes}


def _captured(profile: Trace, **changes: object) -> Trace:
    return replace(profile, capture=replace(profile.capture, **changes))


def test_alike_profiles_are_only_told_to_be_profiled() -> None:
    one = side(program([Launch()] * 3))
    assert _notes(one, one) == {"profiled-times": NoteLevel.INFO}


def test_another_gpu_or_tool_is_said() -> None:
    profile = program([Launch()] * 3)
    other = _captured(profile, devices=(Device(ordinal=0, name="Another GPU"),), recorder=Recorder("another tool"))
    notes = _notes(side(profile), side(other))
    assert notes["different-gpu"] == notes["different-tool"] == NoteLevel.WARNING


def test_another_version_of_the_tool_is_no_more_than_worth_knowing() -> None:
    profile = program([Launch()] * 3)
    assert _notes(side(profile), side(_captured(profile, tool_version="9")))["different-tool-version"] == NoteLevel.INFO


def test_a_table_that_only_one_side_recorded_is_said() -> None:
    profile = program([Launch()] * 3)
    blind = _captured(profile, recorded=profile.capture.recorded - {"api_calls"})
    assert "different-tables" in _notes(side(profile), side(blind))


def test_steps_on_one_side_only_compare_nothing() -> None:
    profile = program([Launch()] * 3)
    assert _notes(side(profile), side(profile, window="all"))["steps-on-one-side"] == NoteLevel.BLOCKING
    assert "no-steps" in _notes(side(profile, window="all"), side(profile, window="all"))


def test_numbers_of_steps_are_said() -> None:
    few, many = side(program([Launch()] * 3, steps=2)), side(program([Launch()] * 3, steps=9))
    assert {"different-steps", "few-steps"} <= set(_notes(few, many))


def test_steps_guessed_from_the_kernels_are_said() -> None:
    guessed = program([Launch(GEMM), Launch(SOFTMAX), Launch("other_kernel")], steps=6, named=False)
    assert "guessed-steps" in _notes(side(guessed), side(guessed))


def test_a_side_without_gpu_work_has_nothing_to_compare() -> None:
    empty = side(trace([], [launch(0, 50, 1)], window_ns=(0, 50)), window="all")
    assert _notes(side(program([Launch()])), empty)["no-gpu-work"] == NoteLevel.BLOCKING


def test_hidden_graphs_are_missing_kernels_and_no_other_program() -> None:
    hidden = trace(
        [kernel(0, 1, GEMM)],
        [launch(0, 2, 1, "cudaGraphLaunch")],
        graph_launches=[graph(5 * US, 90 * US, correlation=1)],
    )
    notes = _notes(side(program([Launch(GEMM)])), side(hidden, window="all"))
    assert notes["hidden-graphs"] == NoteLevel.WARNING
    assert "few-matches" not in notes


def test_different_programs_are_said() -> None:
    one, other = program([Launch("one_kernel")] * 3), program([Launch("other_kernel")] * 3)
    assert "few-matches" in _notes(side(one), side(other))


def test_unequal_steps_are_said() -> None:
    kernels = [kernel(start, start + 5, GEMM, correlation=start) for start in (0, 10, 100, 200, 210, 220)]
    api = [launch(start - 3, start - 1, start) for start in (0, 10, 100, 200, 210, 220)]
    ranges = [nvtx(begin, begin + 90, "step") for begin in (-5, 95, 195)]
    one = side(trace(kernels, api, ranges))
    assert len(one.window.steps) > 1
    assert "unequal-steps" in _notes(one, one)


def test_time_between_steps_is_said() -> None:
    paused = side(program([Launch()] * 3, pause=500 * US))
    assert "time-between-steps" in _notes(paused, paused)


def test_several_devices_are_said() -> None:
    both = trace([kernel(0, 40, GEMM), kernel(0, 10, NCCL, device=1)], window_ns=(0, 40))
    assert "several-devices" in _notes(side(both, window="all"), side(both, window="all"))


def test_the_gravest_note_stands_first() -> None:
    profile = program([Launch()] * 3)
    one, other = side(profile), side(profile, window="all")
    notes = comparability_notes(one, other, wall_split(one, other), kernel_changes(one, other))
    order = list(NoteLevel)[::-1]
    assert [order.index(note.level) for note in notes] == sorted(order.index(note.level) for note in notes)
