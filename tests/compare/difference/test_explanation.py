"""The cause of a difference: the right one for programs in which it is known, with its numbers.

Launches: what each of them cost the host, what the added ones cost, and what limits a step.

GPU work by range and phase on both sides.

Copies, fills and communication: how much there is, and how much of it shows in the wall time.

What is said before any number when two profiles are hard to compare.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given

from tests.analysis.builders import Row, copy, graph, kernel, launch, memset, nvtx, trace
from tests.analysis.random_traces import GEMM, NCCL, SOFTMAX, US
from tests.compare.difference.programs import CALL, Launch, any_side, program, settled, side
from warplens.compare.difference import Explanation, explanation, step_difference, wall_split
from warplens.compare.host import LaunchChange, launch_change
from warplens.compare.notes import comparability_notes
from warplens.compare.places import phase_changes, range_changes, range_paths
from warplens.compare.side import Side
from warplens.compare.work import kernel_changes, transfer_changes
from warplens.profile import Device, NoteLevel, Recorder, Trace

PROFILE = program([Launch()] * 3)


def _hidden(kernels: list[Row]) -> Trace:
    """A graph that hides its kernels, and these beside it."""
    graphs = [graph(6 * US, 90 * US, correlation=1)]
    return trace(kernels, [launch(0, CALL, 1, "cudaGraphLaunch")], graph_launches=graphs, window_ns=(0, 90 * US))


def _explained(baseline: list[Launch], variant: list[Launch], **options: tuple[float, float]) -> Explanation:
    return explanation(step_difference(settled(program(baseline)), settled(program(variant)), **options))


def test_less_gpu_work_and_more_launches_are_slower_where_the_host_is_the_limit():
    """The founding question: half of the GPU work, two more launches, and a slower step."""
    found = _explained([Launch(gpu=4 * US)] * 20, [Launch(gpu=2 * US)] * 22, flops=(10e9, 3e9))
    assert (found.cause, found.direction) == ("host-issue-bound", "slower")
    assert found.is_paradox
    assert found.gpu_change_share == pytest.approx(44 / 80 - 1)
    assert found.launches_change == 2
    assert found.added_ns_per_launch == pytest.approx(10 * US)
    # Two launches more, and the last kernel ends 2 µs sooner.
    assert found.change_ns == 2 * 10 * US - 2 * US
    assert found.share == pytest.approx(1, abs=0.05)
    assert found.flops_ratio == pytest.approx(0.3)
    assert (found.baseline_bound, found.variant_bound) == ("host-issue", "host-issue")


def test_less_gpu_work_is_the_cause_where_the_gpu_is_the_limit():
    found = _explained([Launch(gpu=100 * US)] * 20, [Launch(gpu=60 * US)] * 22)
    assert (found.cause, found.direction) == ("gpu-work", "faster")
    assert not found.is_paradox
    assert found.variant_bound == "gpu"


def test_a_step_that_goes_from_the_gpus_limit_to_the_hosts_lost_gpu_work():
    found = _explained([Launch(gpu=100 * US)] * 20, [Launch(gpu=2 * US, host=30 * US)] * 20)
    assert (found.cause, found.direction) == ("gpu-work", "faster")
    assert found.share > 1
    assert (found.baseline_bound, found.variant_bound) == ("gpu", "host-issue")
    against = {item.cause: item.change_ns for item in found.contributions}
    assert against["host-issue-bound"] > 0


def test_what_work_saves_and_launches_take_back_is_the_hosts():
    found = _explained([Launch(gpu=20 * US)] * 20, [Launch(gpu=5 * US, host=24 * US)] * 20)
    assert (found.cause, found.direction) == ("host-issue-bound", "slower")
    assert (found.baseline_bound, found.variant_bound) == ("gpu", "host-issue")


def test_exposed_communication_is_named():
    found = _explained([Launch(gpu=50 * US)] * 5, [*[Launch(gpu=50 * US)] * 5, Launch(NCCL, 90 * US)])
    assert (found.cause, found.direction) == ("communication", "slower")


def test_a_host_that_does_something_else_is_named():
    busy = [Launch(gpu=20 * US)] * 10
    found = _explained(busy, [*busy, Launch(gpu=20 * US, host=3_000 * US), *busy])
    assert found.cause == "idle: host"


def test_within_the_margin_there_is_no_difference_to_explain():
    found = _explained([Launch(gpu=100 * US)] * 20, [Launch(gpu=101 * US)] * 20)
    assert (found.cause, found.direction, found.share) == ("no-difference", "same", None)
    assert found.change_ns > 0


@given(any_side(), any_side())
def test_contributions_add_up_to_the_change(baseline, variant):
    found = explanation(step_difference(baseline, variant))
    assert sum(item.change_ns for item in found.contributions) == pytest.approx(found.change_ns, abs=1e-3)
    if found.cause != "no-difference":
        assert found.share > 0


@given(any_side())
def test_any_profile_and_itself_have_no_difference(one):
    found = explanation(step_difference(one, one))
    assert (found.cause, found.change_ns) == ("no-difference", 0)
    assert not found.contributions
    assert not found.is_paradox


@given(any_side(), any_side())
def test_exchanging_the_sides_exchanges_faster_and_slower(baseline, variant):
    there, back = (explanation(step_difference(*pair)) for pair in ((baseline, variant), (variant, baseline)))
    assert there.change_ns == -back.change_ns
    assert (there.baseline_bound, there.variant_bound) == (back.variant_bound, back.baseline_bound)
    assert {item.cause: -item.change_ns for item in there.contributions} == {
        item.cause: item.change_ns for item in back.contributions
    }


def _launches(baseline: Side, variant: Side) -> LaunchChange:
    split = wall_split(baseline, variant)
    return launch_change(baseline, variant, (split.baseline, split.variant), kernel_changes(baseline, variant))


def _settled_launches(baseline: list[Launch], variant: list[Launch]) -> LaunchChange:
    return _launches(settled(program(baseline)), settled(program(variant)))


def test_a_launch_costs_the_time_since_the_launch_before_it():
    one = settled(program([Launch(host=10 * US), Launch(host=25 * US)]))
    assert one.issue_ns.tolist() == [10 * US, 25 * US] * 4


def test_waiting_for_the_gpu_is_no_cost_of_launching():
    # The host waits 300 µs at the end of each step.
    one = settled(program([Launch(gpu=300 * US, host=10 * US)]))
    assert set(one.issue_ns.tolist()) == {10 * US}


def test_added_launches_cost_what_the_host_needed_for_them():
    work = [Launch(host=10 * US)] * 5
    changes = _settled_launches(work, [*work, *[Launch("gatherTopK", host=15 * US, range="reduce")] * 2])
    assert changes.kernels_change == changes.calls_change == changes.added == 2
    assert changes.added_cost_ns == pytest.approx(2 * 15 * US)
    assert changes.added_ns_per_launch == pytest.approx(15 * US)
    assert changes.removed_ns_per_launch is None
    assert changes.pace_cost_ns == pytest.approx(0)


def test_a_slower_host_shows_in_the_launches_of_both_sides():
    changes = _settled_launches([Launch(host=10 * US)] * 5, [Launch(host=12 * US)] * 5)
    assert changes.added_cost_ns == 0
    assert changes.pace_cost_ns == pytest.approx(5 * 2 * US)
    assert changes.baseline.host_ns_per_launch == pytest.approx(10 * US)
    assert changes.variant.host_ns_per_launch == pytest.approx(12 * US)


def test_a_step_that_waits_for_launches_is_bound_by_the_host():
    changes = _settled_launches([Launch(gpu=2 * US)] * 9, [Launch(gpu=200 * US)] * 9)
    assert changes.baseline.bound == "host-issue"
    assert changes.variant.bound == "gpu"
    for one in (changes.baseline, changes.variant):
        assert one.busy_share + one.issue_share + one.host_share + one.waiting_share == pytest.approx(1)


def test_without_launching_calls_there_is_no_statement_on_the_host():
    blind = replace(PROFILE, api_calls=PROFILE.api_calls.clear())
    changes = _launches(side(blind, window="all"), side(PROFILE))
    assert changes.baseline.issue_ns is None
    assert changes.baseline.host_ns_per_launch is None
    assert changes.added_cost_ns is None
    assert changes.baseline.bound == "waiting"


def test_graphs_that_hide_their_kernels_leave_their_number_open():
    changes = _launches(side(program([Launch(GEMM)])), side(_hidden([]), window="all"))
    assert changes.kernels_change is None
    assert changes.variant.graph_launches == 1
    assert changes.calls_change == 0


def _row(table: pl.DataFrame, path: str) -> dict[str, Any]:
    return table.row(by_predicate=pl.col("path") == path, named=True)


def test_ranges_of_one_name_path_are_compared():
    table = range_changes(
        side(program([Launch(range="attention", gpu=8 * US), Launch(range="mlp", gpu=9 * US)])),
        side(program([Launch(range="attention", gpu=3 * US), Launch(range="mlp", gpu=9 * US), Launch(range="reduce")])),
    )
    assert _row(table, "attention")["change_ns_per_step"] == -5 * US
    assert _row(table, "mlp")["change_ns_per_step"] == 0
    assert (_row(table, "reduce")["in"], _row(table, "reduce")["variant_kernels_per_step"]) == ("variant", 1)
    assert _row(table, "")["change_ns_per_step"] == (2 - 5) * US


def test_the_largest_change_stands_first():
    table = range_changes(
        side(program([Launch(range="a", gpu=8 * US), Launch(range="b", gpu=9 * US)])),
        side(program([Launch(range="a", gpu=7 * US), Launch(range="b", gpu=99 * US)])),
    )
    assert table["path"].to_list() == ["", "b", "a"]


def test_the_steps_own_range_and_what_is_around_it_are_no_place():
    paths = range_paths(side(program([Launch(range="attention")])).timeline)
    assert paths.paths == ((), ("attention",))


def test_layers_are_one_place_when_merged():
    one = side(program([Launch(range=f"block_{number}") for number in range(4)]))
    assert range_changes(one, one)["path"].to_list() == ["", "block_0", "block_1", "block_2", "block_3"]
    merged = range_changes(one, one, merged=True)
    assert merged["path"].to_list() == ["", "block_N"]
    assert _row(merged, "block_N")["baseline_kernels_per_step"] == 4


def test_phases_are_compared_where_names_tell_them():
    work = [Launch(range="forward", gpu=10 * US), Launch(range="backward", gpu=20 * US)]
    slower = [Launch(range="forward", gpu=10 * US), Launch(range="backward", gpu=26 * US)]
    table = phase_changes(side(program(work)), side(program(slower)))
    assert table.select("phase", "change_ns_per_step").rows() == [("forward", 0), ("backward", 6 * US)]
    assert not phase_changes(side(program([Launch()])), side(program([Launch()]))).height


@given(any_side(), any_side())
def test_own_times_add_up_to_all_gpu_work(baseline, variant):
    table = range_changes(baseline, variant)
    for one, name in ((baseline, "baseline"), (variant, "variant")):
        total = (one.work["end_ns"] - one.work["start_ns"]).sum()
        assert table[f"{name}_own_ns"].sum() == total
        assert _row(table, "")[f"{name}_ns"] == total


def _table(baseline: Side, variant: Side) -> pl.DataFrame:
    return transfer_changes(baseline, variant, wall_split(baseline, variant))


def _transfer(table: pl.DataFrame, part: str) -> dict[str, Any]:
    return table.row(by_predicate=pl.col("part") == part, named=True)


def test_a_copy_hidden_behind_compute_is_there_and_costs_nothing():
    hidden = trace(
        [kernel(0, 10, GEMM)], copies=[copy(2, 8, size=600, stream=8)], memsets=[memset(10, 13, 5)], window_ns=(0, 13)
    )
    bare = trace([kernel(0, 10, GEMM)], window_ns=(0, 10))
    table = _table(side(bare, window="all"), side(hidden, window="all"))
    row = _transfer(table, "host-to-device")
    assert (row["baseline_count_per_step"], row["variant_count_per_step"]) == (0, 1)
    assert (row["baseline_bytes_per_step"], row["variant_bytes_per_step"]) == (0, 600)
    assert (row["change_ns_per_step"], row["exposed_change_ns_per_step"]) == (6, 0)
    assert _transfer(table, "memset")["exposed_change_ns_per_step"] == 3


def test_the_bytes_of_collectives_are_not_known():
    one = side(program([Launch(gpu=50 * US), Launch(NCCL, gpu=30 * US)]))
    row = _transfer(_table(one, one), "communication")
    assert (row["variant_count_per_step"], row["variant_bytes_per_step"]) == (1, None)
    assert row["variant_exposed_ns_per_step"] == 30 * US


def test_programs_without_transfers_have_none():
    one = side(program([Launch()]))
    assert not _table(one, one).height


@given(any_side(), any_side())
def test_exposed_times_are_those_of_the_wall_split(baseline, variant):
    split = wall_split(baseline, variant)
    table = transfer_changes(baseline, variant, split)
    for group in ("copy", "communication"):
        exposed = table.filter(pl.col("group") == group)["exposed_change_ns_per_step"].sum()
        assert exposed == pytest.approx(float(split.change_of(group)))


def _notes(baseline: Trace, variant: Trace, *windows: str) -> dict[str, NoteLevel]:
    one, other = (side(*sided) for sided in zip((baseline, variant), "ab", windows or ("steady",) * 2, strict=True))
    notes = comparability_notes(one, other, wall_split(one, other), kernel_changes(one, other))
    order = list(NoteLevel)[::-1]
    assert [order.index(note.level) for note in notes] == sorted(order.index(note.level) for note in notes)
    return {note.code: note.level for note in notes}


def _captured(**changes: object) -> Trace:
    return replace(PROFILE, capture=replace(PROFILE.capture, **changes))


def test_for_equal_profiles_the_only_advice_is_to_profile_more():
    another_run = replace(PROFILE, kernels=PROFILE.kernels.with_columns(pl.col("end_ns") - 1))
    assert _notes(PROFILE, another_run) == {"profiled-times": NoteLevel.INFO}


def test_a_comparison_of_a_recording_with_itself_is_noted():
    assert _notes(PROFILE, PROFILE)["same-recording"] == NoteLevel.WARNING


_GUESSED = program([Launch(GEMM), Launch(SOFTMAX), Launch("other_kernel")], steps=6, named=False)
_PAUSED = program([Launch()] * 3, pause=500 * US)
_TWO_GPUS = trace([kernel(0, 40, GEMM), kernel(0, 10, NCCL, device=1)], window_ns=(0, 40))
#: What makes two profiles hard to compare: both, their windows where not the steady ones, the note and its level.
HARD_TO_COMPARE = {
    "another GPU":
        (PROFILE, _captured(devices=(Device(ordinal=0, name="Another GPU"),)), (), "different-gpu", "WARNING"),
    "a GPU without a name": (PROFILE, _captured(devices=()), (), "unknown-gpu", "WARNING"),
    "another tool": (PROFILE, _captured(recorder=Recorder("another tool")), (), "different-tool", "WARNING"),
    "another version of the tool": (PROFILE, _captured(tool_version="9"), (), "different-tool-version", "INFO"),
    "a table that one side lacks":
        (PROFILE, _captured(recorded=PROFILE.capture.recorded - {"api_calls"}), (), "different-tables", "WARNING"),
    "steps on one side": (PROFILE, PROFILE, ("steady", "all"), "steps-on-one-side", "BLOCKING"),
    "no steps": (PROFILE, PROFILE, ("all", "all"), "no-steps", "WARNING"),
    "other numbers of steps": (program([Launch()] * 3, steps=2), PROFILE, (), "different-steps", "INFO"),
    "few steps": (program([Launch()] * 3, steps=2), PROFILE, (), "few-steps", "WARNING"),
    "steps guessed from the kernels": (_GUESSED, _GUESSED, (), "guessed-steps", "WARNING"),
    "a side without GPU work":
        (PROFILE, trace([], [launch(0, 50, 1)], window_ns=(0, 50)), ("steady", "all"), "no-gpu-work", "BLOCKING"),
    "different programs":
        (program([Launch("one_kernel")] * 3), program([Launch("other_kernel")] * 3), (), "few-matches", "WARNING"),
    "time between steps": (_PAUSED, _PAUSED, (), "time-between-steps", "INFO"),
    "other numbers of devices": (PROFILE, _TWO_GPUS, ("steady", "all"), "several-devices", "WARNING"),
    "several devices": (_TWO_GPUS, _TWO_GPUS, ("all", "all"), "several-devices", "INFO"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("baseline", "variant", "windows", "code", "level"), HARD_TO_COMPARE.values(), ids=HARD_TO_COMPARE
)
def test_cautions_of_a_comparison_are_sorted_by_severity(baseline, variant, windows, code, level):
    assert _notes(baseline, variant, *windows)[code] is NoteLevel[level]


#: A program of eight products, each with the passes over its result, and changes of it.
_LAYER = [(GEMM, 100), *((f"{name}_kernel", 40) for name in ("bias", "scale", "mask"))]


def _layers(*names: tuple[str, int], times: int = 8) -> Trace:
    return program([Launch(name, grid=(size, 1, 1)) for name, size in names * times])


@pytest.mark.parametrize(
    ("variant", "codes"),
    [
        (_layers(*_LAYER), set()),
        (_layers(*((name, 4 * size) for name, size in _LAYER)), {"few-matches"}),  # a batch four times as large
        (_layers(("other_gemm", 7), *_LAYER[1:]), set()),  # products in another format
        (_layers(("other_gemm", 7), ("fused_kernel", 40)), {"few-matches"}),  # also compiled: as many products
        (_layers((GEMM, 7), ("softmax_kernel", 40), times=11), {"different-programs"}),
        (_layers(("fused_kernel", 40)), {"few-matches"}),  # written as kernels of its own
    ],
)
def test_a_change_of_a_program_is_no_other_program(variant, codes):
    notes = _notes(_layers(*_LAYER), variant)
    assert {"few-matches", "different-programs"} & set(notes) == codes


def _called(profile: Trace, name: str) -> Trace:
    """The same steps under another name."""
    names = pl.Series("name", [name] * profile.ranges.height, pl.Enum([name]))
    return replace(profile, ranges=profile.ranges.with_columns(names))


_MICRO_BATCH = [Launch(GEMM), Launch(SOFTMAX), Launch("other_kernel")]


@pytest.mark.parametrize(
    ("baseline", "variant", "other"),
    [
        (program(_MICRO_BATCH * 4, steps=6), _called(program(_MICRO_BATCH, steps=24), "microbatch"), True),
        (program(_MICRO_BATCH * 4, steps=6), _called(program(_MICRO_BATCH * 4, steps=6), "iteration"), False),
        (program(_MICRO_BATCH * 4, steps=6), program(_MICRO_BATCH * 2, steps=6), False),  # half of the work is gone
        (program(_MICRO_BATCH * 4, steps=6), program(_MICRO_BATCH, steps=24, named=False), True),  # guessed on one side
        (program(_MICRO_BATCH, steps=24), program(_MICRO_BATCH, steps=24, named=False), False),
        (program(_MICRO_BATCH, steps=24, named=False), program(_MICRO_BATCH, steps=24, named=False), False),
        (  # guessed on both sides, and not the same part
            program(_MICRO_BATCH, steps=24, named=False),
            program([*_MICRO_BATCH, *[Launch("fourth_kernel"), Launch(GEMM)] * 2], steps=6, named=False),
            True,
        ),
    ],
)
def test_steps_that_are_other_parts_of_a_program_are_noted(baseline, variant, other):
    for sides in ((baseline, variant), (variant, baseline)):
        assert ("other-steps" in _notes(*sides)) is other


@pytest.mark.parametrize(
    ("every", "steps", "noted"),
    # in 4 of 12 steps of the other side; every third step is in 4 of 11 and of 10 steps, too
    [(1, 12, True), (2, 12, True), (3, 12, False), (3, 11, False), (3, 10, False)],
)
def test_a_range_that_runs_in_more_of_the_steps_of_one_side_is_noted(every, steps, noted):
    def profile(every: int, steps: int) -> Trace:
        kernels, api, ranges = [], [], []
        for step in range(steps):
            begin = 1000 * step
            for place in range(3):
                number, now = 10 * step + place + 1, begin + 100 * place
                api.append(launch(now, now + 5, number))
                kernels.append(kernel(now + 10, now + 60, GEMM, correlation=number))
            ranges.append(nvtx(begin, begin + 400, "step"))
            if step % every == 0:
                ranges.append(nvtx(begin + 190, begin + 390, "eval"))
        return trace(kernels, api, ranges)

    def of_range(profile: Trace, name: str) -> Side:
        found = side(profile, name)
        return replace(found, window=replace(found.window, range_name="eval"))

    one, other = of_range(profile(3, 12), "a"), of_range(profile(every, steps), "b")
    codes = [note.code for note in comparability_notes(one, other, wall_split(one, other), kernel_changes(one, other))]
    assert ("range-in-some-steps" in codes) is noted


def test_hidden_graphs_are_missing_kernels_and_no_other_program():
    notes = _notes(program([Launch(GEMM)]), _hidden([kernel(0, 1, SOFTMAX)]), "steady", "all")
    assert notes["hidden-graphs"] == NoteLevel.WARNING
    assert "few-matches" not in notes
