"""The common timeline of ranks, against what the files hold: the same work, and collectives that end together."""

from __future__ import annotations

import numpy as np
import pytest

import warplens
from tests.cli.rank_files import STEPS, WAIT_US, write_ranks
from tests.shipped import files
from warplens.analysis.timeline import Timeline
from warplens.ranks import one_run
from warplens.report.overview.numbers import examine
from warplens.report.ranktimeline import run_timeline, run_view

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
