"""Findings name the operator and the line of the calls that cause them, not of the work that comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis.builders import python_call
from tests.analysis.operators.programs import annotation, operator, program
from tests.diagnosis import programs
from tests.diagnosis.machine import Machine
from warplens.diagnosis import diagnose
from warplens.report.verdict import place_lines, place_words


def located(step: programs.Step, within: dict[str, str]):
    """What is said of the program, each of whose calls stands in an operator; `within`: those of calls of a name."""
    machine = Machine()
    for _ in range(programs.STEPS):
        with machine.step():
            step(machine)
    operators = [
        operator(row["start_ns"] - 5, row["end_ns"] + 5, within.get(row["name"], "aten::layer_norm"))
        for row in machine.calls
    ]
    steps = [annotation(row["start_ns"], row["end_ns"], row["name"]) for row in machine.ranges]
    frames = [python_call(row["start_ns"] + 1, row["end_ns"] - 1, "src/model/train.py(88): step") for row in steps]
    inner = [python_call(row["start_ns"] - 1, row["end_ns"] + 1, "torch/_tensor.py(12): call") for row in operators]
    timeline = program(
        machine.kernels, machine.calls, [*operators, *steps], python=[*frames, *inner], copies=machine.copies
    )
    return diagnose(timeline, timeline.window())


@pytest.mark.parametrize(
    ("step", "id_", "within", "kind", "count"),
    [
        (programs.item_per_layer, "host-sync", {"cudaStreamSynchronize": "aten::item"}, "waits", 12),
        (programs.allocating, "allocator-churn", {"cudaMalloc": "aten::empty", "cudaFree": "aten::empty"},
         "allocations", 40),
        (programs.pageable_input, "blocking-copy", {"cudaMemcpyAsync": "aten::to"}, "copies", 1),
    ],
)  # fmt: skip
def test_what_holds_the_host_is_found_where_it_is_called(step, id_, within, kind, count):
    found = located(step, within)
    finding = found.finding(id_)
    place = finding.places[0]
    (called,) = set(within.values())
    assert (place.kind, place.operator, place.range) == (kind, called, "step")
    assert (place.file, place.line, place.function) == ("model/train.py", 88, "step")
    assert place.count == place.of_count == count * found.coverage.steps
    assert place.share == 1
    assert finding.where == (called,)
    assert next(place_lines(finding)).endswith(f" in {called}, model/train.py:88 (step)")


def test_work_is_found_at_the_line_that_launches_it():
    (place, *_) = located(programs.launch_bound, {}).finding("launch-overhead").places
    assert (place.kind, place.operator, place.file, place.line) == (
        "launches",
        "aten::layer_norm",
        "model/train.py",
        88,
    )


def test_a_finding_that_claims_no_time_has_no_place():
    assert all(not found.places for found in programs.verdict(programs.whole_graph).findings)


@pytest.mark.parametrize(("name", "place"), [("loop", None), ("attention", "attention")])
def test_a_range_around_all_of_the_window_is_no_place(name, place):
    """`loop` is around all launches, `attention` around each wait; steps are told by their launches."""
    machine = Machine()
    for _ in range(programs.STEPS):
        with machine.step():
            programs.item_per_layer(machine)
    waits = [row for row in machine.calls if row["name"] == "cudaStreamSynchronize"]
    spans = [(0, machine.calls[-1]["end_ns"] + 5)] if name == "loop" else [(w["start_ns"], w["end_ns"]) for w in waits]
    ranges = [annotation(begin, end, name) for begin, end in spans]
    timeline = program(machine.kernels, machine.calls, ranges, copies=machine.copies)
    found = diagnose(timeline, timeline.window()).finding("host-sync")
    assert [each.range for each in found.places] == ([] if place is None else [place])


def test_a_place_with_nothing_but_the_step_says_that_it_is_outside_of_what_is_in_it():
    (place, *_) = located(programs.item_per_layer, {"cudaStreamSynchronize": "aten::item"}).finding("host-sync").places
    only_step = replace(place, operator=None, file=None, line=None, function=None, range="ProfilerStep")
    assert place_words(only_step) == "outside all operators and ranges inside the step"
    assert place_words(replace(only_step, range="forward")) == "in forward"
    assert place_words(replace(only_step, range=None)) == "outside all operators and ranges"
