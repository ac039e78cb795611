"""The timeline's marks, of one profile and of ranks: sums and instants are those of the tables, on every level."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import polars as pl
import pytest

import warplens
from tests import shipped
from tests.analysis import builders as b
from tests.cli.rank_files import STEPS, WAIT_US, write_ranks
from tests.diagnosis import programs
from tests.diagnosis.machine import MS, US, Machine
from tests.shipped import files
from warplens.analysis.timebudget import IDLE_CAUSES, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import diagnose
from warplens.ranks import one_run
from warplens.report.document import View
from warplens.report.overview.numbers import examine
from warplens.report.timeline import timeline_view
from warplens.report.timelines import run_timeline, run_view, timeline_blocks
from warplens.report.tracks import Marks, TimelineView, packed

#: Two streams and copies; a training step of PyTorch with operators on two threads.
PROFILES = {
    "copies": shipped.capture("copies_and_syncs"),
    "training": shipped.FOLDERS[1] / "pairs/development/bert_checkpointing__before.pt.trace.json.gz",
}


@pytest.fixture(scope="module", params=PROFILES)
def timeline(request):
    return Timeline(warplens.read(PROFILES[request.param]))


def _view(timeline: Timeline, **limits: int) -> TimelineView:
    window = timeline.window()
    return timeline_view(timeline, window, diagnose(timeline, window), **limits)


def _of_kind(view: TimelineView, level: Marks, *kinds: str) -> np.ndarray:
    rows = [range(track.first, track.first + track.rows) for track in view.tracks if track.kind in kinds]
    return np.isin(level.row, [row for each in rows for row in each])


@pytest.mark.parametrize("most_marks", [400_000, 800])
def test_every_level_has_the_number_and_the_time_of_the_events(timeline, most_marks):
    view = _view(timeline, most_marks=most_marks)
    trace = timeline.trace
    tables = {
        "stream": timeline.work,
        "calls": trace.api_calls,
        "ranges": trace.ranges,
        "python": trace.python_functions,
    }
    assert len(view.levels) > 1 or len(view.levels[0].row) <= most_marks
    for level in view.levels:
        for kind, table in tables.items():
            mine = _of_kind(view, level, kind)
            assert level.count[mine].sum() == table.height
            assert level.busy_ns[mine].sum() == (table["end_ns"] - table["start_ns"]).sum()


@pytest.mark.parametrize("most_marks", [400_000, 800])
def test_idle_time_by_cause_is_that_of_the_budget_on_every_level(timeline, most_marks):
    view, window = _view(timeline, most_marks=most_marks), timeline.window()
    budgets = time_budgets(timeline, window)
    for level in view.levels:
        for cause, spent in zip(IDLE_CAUSES, level.parts, strict=True):
            assert spent.sum() == sum(budget.gaps.totals[cause] for budget in budgets)


def test_marks_of_a_row_never_overlap(timeline):
    for level in _view(timeline, most_marks=2_000).levels:
        same = level.row[1:] == level.row[:-1]
        assert np.all(level.start_ns[1:][same] >= level.end_ns[:-1][same])


def test_the_step_it_opens_on_is_drawn_event_by_event_where_others_are_thinned():
    timeline = Timeline(warplens.read(shipped.capture("deit224_bs1_baseline")))
    whole = _view(timeline)
    touching = (whole.levels[0].end_ns >= whole.opens[0]) & (whole.levels[0].start_ns < whole.opens[1])
    view = _view(timeline, most_marks=int(2 * touching.sum()))
    finest = view.levels[0]
    assert view.thinned.in_blocks > 0
    assert len(finest.row) <= 2 * touching.sum()
    inside = (finest.end_ns >= view.opens[0]) & (finest.start_ns < view.opens[1])
    for found, expected in ((finest.start_ns, whole.levels[0].start_ns), (finest.end_ns, whole.levels[0].end_ns)):
        assert sorted(found[inside & (finest.count == 1)].tolist()) == sorted(expected[touching].tolist())


def test_what_the_page_gets_is_what_was_computed(timeline):
    view = _view(timeline)
    head, columns = _unpacked(packed(view))
    assert int(head["origin"]) == view.origin_ns
    at = 0
    for level, said in zip(view.levels, head["levels"], strict=True):
        steps, extent, name, more, busy = columns[at : at + 5]
        at += 5 + len(IDLE_CAUSES)
        begins = np.concatenate([np.cumsum(part) for part in np.split(steps, np.cumsum(said["rows"])[:-1])])
        assert np.array_equal(begins + view.origin_ns, level.start_ns)
        assert np.array_equal(begins + extent + view.origin_ns, level.end_ns)
        assert np.array_equal(more + 1, level.count)
        assert np.array_equal(np.where(more > 0, busy, extent), level.busy_ns)
        assert [head["names"][number][0] for number in name[:50]] == [
            view.names[number][0] for number in level.name[:50]
        ]
    # Each kernel's launching call, where the arrow begins, is a call of its thread to the nanosecond.
    ago, calls_row = columns[at], columns[at + 1]
    finest = view.levels[0]
    launched = np.flatnonzero(ago)
    assert len(launched) == timeline.work["launch_start_ns"].is_not_null().sum()
    calls = set(zip(finest.row.tolist(), finest.start_ns.tolist(), strict=True))
    begins = finest.start_ns[launched] - ago[launched] + 1
    assert set(zip((calls_row[launched] - 1).tolist(), begins.tolist(), strict=True)) <= calls


def _unpacked(text: str) -> tuple[dict, list[np.ndarray]]:
    """Reads the stream as its description says."""
    stream = zlib.decompress(base64.b64decode(text))
    length = int.from_bytes(stream[:4], "little")
    head = json.loads(stream[4 : 4 + length])
    counts = []
    for level in head["levels"]:
        counts += [sum(level["rows"])] * 5 + [level["idle"]] * len(head["causes"])
    counts += [sum(head["levels"][0]["rows"])] * 4
    columns, at = [], 4 + length
    for count, width in zip(counts, head["widths"], strict=True):
        planes = np.frombuffer(stream, np.uint8, count * width, at).reshape(width, count).astype(np.int64)
        columns.append(sum((plane << 8 * place for place, plane in enumerate(planes)), np.zeros(count, np.int64)))
        at += count * width
    assert at == len(stream)
    return head, columns


def test_a_profile_without_events_has_an_empty_timeline():
    view = _view(Timeline(b.trace()))
    assert [len(level.row) for level in view.levels] == [0]
    assert _unpacked(packed(view))[0]["names"] == []


def test_the_longest_pause_that_was_planted_is_the_worst_moment():
    def step(machine: Machine) -> None:
        for _ in range(20):
            machine.launch(30 * US, times=5)
        machine.wait()
        machine.think(3 * MS if machine.host > 9 * MS and not pauses else 1 * MS)
        if machine.host > 12 * MS and not pauses:
            pauses.append(machine.host)

    pauses: list[int] = []
    timeline = Timeline(programs.record(step))
    window = timeline.window()
    moment = next(each for each in diagnose(timeline, window).moments if each.finding == "host-stall")
    longest = max(zip(*_pauses(timeline), strict=True), key=lambda pause: pause[1] - pause[0])
    assert (moment.what, moment.name) == ("pause", "host")
    assert (moment.start_ns, moment.end_ns) == longest
    assert moment.claimed_ns > 2.9 * MS


def _pauses(timeline: Timeline) -> tuple[list[int], list[int]]:
    """By hand: from each kernel's end to the next one's begin, inside of the window."""
    window, work = timeline.window(), timeline.work
    inside = work.filter(pl.col("start_ns").is_between(window.start_ns, window.end_ns, closed="left"))
    return inside["end_ns"][:-1].to_list(), inside["start_ns"][1:].to_list()


def test_a_cause_in_thousands_of_small_pauses_is_shown_where_they_are_densest():
    timeline = Timeline(programs.record(programs.launch_bound))
    window = timeline.window()
    moments = [each for each in diagnose(timeline, window).moments if each.finding == "launch-overhead"]
    assert [moment.what for moment in moments] == ["stretch"] * 3
    for moment in moments:
        assert moment.pieces > 1
        assert 0 < moment.claimed_ns <= moment.end_ns - moment.start_ns


def _products(machine: Machine) -> None:
    """Of products in single precision, every second takes longer; none takes a twentieth of the step."""
    for _ in range(30):
        machine.launch(100 * US, programs.FP32_GEMM)
        machine.launch(150 * US, programs.FP32_GEMM.replace("128x64", "128x128"))
    machine.wait()


@pytest.mark.parametrize(
    ("step", "finding", "what", "costliest"),
    [
        (programs.launch_bound, "launch-overhead", "pauses", "waiting for a launch"),
        (_products, "precision", "pieces of work", "ampere_sgemm_128x128_tn"),
    ],
    ids=["pauses", "kernels"],
)
def test_a_stretch_tells_what_it_consists_of_and_names_the_costliest(step, finding, what, costliest):
    timeline = Timeline(programs.record(step))
    numbers = examine(timeline, timeline.window())
    moments = [each for each in numbers.diagnosis.moments if each.finding == finding]
    (view,) = (block for block in timeline_blocks(numbers) if isinstance(block, View))
    told = [row.cells[1] for row in view.rows if row.cells[0] == finding]
    assert told == [f"{moment.pieces} {what}, the costliest: {costliest}" for moment in moments]
    for moment in moments:
        inside = timeline.work.filter(pl.col("start_ns").is_between(moment.start_ns, moment.end_ns, closed="left"))
        # A pause ends where work begins, and the last of them is not followed by any.
        assert inside.height == moment.pieces - bool(moment.pauses)


RANKS = files("planted", "ddp_straggler-gpu_rank*.json.xz")


def run_of(paths):
    timelines = [Timeline(warplens.read(path)) for path in paths]
    found = one_run(timelines, lambda timeline: timeline.window())
    return found, [examine(timeline, timeline.window()) for timeline in timelines]


@pytest.fixture(scope="module")
def planted():
    return run_of(RANKS)


def marks_of(view, group: str, name: str) -> list[tuple[int, int]]:
    """Begin and end of the marks of a rank whose names hold a word."""
    finest, wanted = view.levels[0], {number for number, (label, *_) in enumerate(view.names) if name in label}
    rows = {
        row
        for track in view.tracks
        if track.group.startswith(group) and track.kind == "stream"
        for row in range(track.first, track.first + track.rows)
    }
    mine = np.isin(finest.row, list(rows)) & np.isin(finest.name, list(wanted))
    return sorted(zip(finest.start_ns[mine].tolist(), finest.end_ns[mine].tolist(), strict=True))


def test_collectives_of_two_ranks_end_together_on_it(planted):
    found, profiles = planted
    view = run_view(found, profiles)
    ends = [[end for _, end in marks_of(view, f"rank {rank} ", "AllReduce")] for rank in (0, 1)]
    least = min(map(len, ends))
    apart = np.abs(np.subtract(ends[0][-least:], ends[1][-least:]))
    assert least > 20
    # Each end is that far from the median of the two, so that the two are twice as far apart.
    assert np.median(apart) <= 2 * found.run.result.alignment.residual_median_ns + 2


def test_it_holds_all_work_and_all_idle_time_of_every_file(planted):
    found, profiles = planted
    view = run_view(found, profiles)
    finest = view.levels[0]
    idle = finest.parts.shape[1]
    work = sum(int((each.timeline.work["end_ns"] - each.timeline.work["start_ns"]).sum()) for each in profiles)
    assert int(finest.busy_ns[idle:].sum()) == work
    assert int(finest.parts.sum()) == sum(budget.idle_ns for each in profiles for budget in each.budgets)
    for level in view.levels:
        assert (np.diff(level.row) >= 0).all()
        assert int(level.busy_ns.sum()) == int(finest.busy_ns.sum())


def test_a_planted_wait_is_seen_as_long_as_it_is(tmp_path):
    found, profiles = run_of(write_ranks(tmp_path, 3))
    view = run_view(found, profiles)
    lengths = [[end - start for start, end in marks_of(view, f"rank {rank} ", "AllReduce")] for rank in range(3)]
    assert [len(each) for each in lengths] == [STEPS] * 3
    waited = {early - late for early, late in zip(lengths[0], lengths[1], strict=True)}
    assert waited == {WAIT_US * 1_000}


def test_one_file_of_several_ranks_has_its_own_timeline_alone():
    (path,) = files("planted", "ddp_straggler-gpu.sqlite.xz")
    timeline = Timeline(warplens.read(path))
    found = one_run([timeline], lambda each: each.window())
    assert run_timeline(found, [examine(timeline, timeline.window())]) is None
