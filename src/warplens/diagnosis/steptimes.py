"""Timeline of one step as recorded, and as replayed without a profiler and with one remedy.

The times are those of the replays behind the what-if numbers (`Pace`); there is no second model. If a finding expects a
part of its replay's savings to stay, each time is interpolated between the two replays by the same share (`Gain`). The
remaining difference to the reported step time, because steps differ or a finding expects more than its replay,
stretches the whole step evenly by the factor `stretched`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import API_KIND
from warplens.analysis.intervals import Intervals
from warplens.analysis.replay import RecordedSchedule, Replayed
from warplens.diagnosis.facts import Facts
from warplens.profile.schema import Bools, Int64s, name_categories

#: Neighbours on a lane shorter than this share of the longest step become one mark: two pixels of a wide page.
_CELL: Final = 1 / 500

#: Steps whose lengths differ by less are as long as each other.
_AS_LONG: Final = 0.02

#: Most streams that are drawn, those with the most work in the step.
MOST_STREAMS: Final = 4


@dataclass(frozen=True, eq=False)
class Lane:
    """Activity of the host, or of one stream, in a step. Arrays have one entry per mark."""

    stream: int | None  #: its number; None for the host's calls
    #: start_ns, end_ns: from the start of the step
    start_ns: Int64s
    end_ns: Int64s
    #: kind of call (`API_KIND`) or label of work (`facts.WORK`) of the longest piece of each mark
    label: tuple[str, ...]
    pieces: int  #: calls or pieces of work in all marks


@dataclass(frozen=True, eq=False)
class StepTimes:
    """One step."""

    length_ns: int
    share: float  #: share of its replay's savings, from 0 to 1; 0 without a remedy
    stretched: float  #: factor by which all times are then longer, to fill `length_ns`
    lanes: tuple[Lane, ...]  #: the host, then the streams


@dataclass(frozen=True, eq=False)
class StepPictures:
    """The same step as recorded, without a profiler and with each remedy."""

    step: int | None  #: its number in the profile; None if the whole window is one step
    recorded: StepTimes  #: measured, with the profiler; a step lasts until the next one begins
    now: StepTimes  #: without a profiler. Modelled.
    after: dict[str, StepTimes]  #: by finding, with its remedy. Modelled.
    cell_ns: int  #: neighbours shorter than this were merged
    streams_left_out: int  #: those with the least work


@dataclass(frozen=True, eq=False)
class _Times:
    """Starts and ends of all calls and work of the schedule, and the bounds of its steps."""

    calls: Intervals
    work: Intervals
    bounds: Int64s

    def of_step(self, step: int) -> list[Bools]:
        """Which calls and which work overlap a step."""
        begin, end = self.bounds[step], self.bounds[step + 1]
        return [(each.ends > begin) & (each.starts < end) for each in (self.calls, self.work)]

    def since(self, step: int, calls: Int64s, work: Int64s) -> list[Int64s]:
        """Starts and ends of these calls and of this work from the start of a step."""
        chosen = ((self.calls, calls), (self.work, work))
        return [edges[rows] - self.bounds[step] for spans, rows in chosen for edges in spans]


class StepReplays:
    """Replays of one schedule, of which the same step is drawn.

    Args:
        recorded: the schedule without the profiler's time.
        replayed: its replay.
    """

    def __init__(self, facts: Facts, recorded: RecordedSchedule, replayed: Replayed) -> None:
        """Takes the recorded schedule and its replay without changes, and chooses a typical step."""
        self._kinds, window = recorded.kind, recorded.window
        work = facts.timeline.work[recorded.work_row]
        self._begun, self._stream = work["start_ns"].to_numpy(), work["stream"].cast(pl.Int64).to_numpy()
        rows, labels = facts.replayed_rows, facts.work["label"]
        self._labels: list[str] = [*API_KIND.categories, *name_categories(labels), "other"]
        codes = labels.to_physical().to_numpy()[np.maximum(rows, 0)].astype(np.int64) + len(API_KIND.categories)
        self._code = np.where(rows >= 0, codes, len(self._labels) - 1)
        steps = window.steps
        inner = [step.start_ns for step in steps[1:]]
        self._inner = np.array(inner, dtype=np.int64)
        self._seen = _Times(
            Intervals(recorded.called_ns, recorded.returned_ns),
            Intervals(self._begun, work["end_ns"].to_numpy()),
            np.array([window.start_ns, *inner, window.end_ns], dtype=np.int64),
        )
        self._before = self._times(recorded, replayed)
        self._step = _typical(np.diff(self._seen.bounds))
        self._index = steps[self._step].index if steps else None
        self._after: dict[str, tuple[_Times, int]] = {}

    def add(self, finding: str, recorded: RecordedSchedule, replayed: Replayed, length_ns: int) -> None:
        """Adds the replay with the remedy of a finding, and the reported step time."""
        self._after[finding] = self._times(recorded, replayed), length_ns

    def _times(self, recorded: RecordedSchedule, replayed: Replayed) -> _Times:
        begin = recorded.begin_ns(replayed)
        inner = np.interp(self._inner, *_host_times(recorded, replayed)).round().astype(np.int64)
        if len(inner) and not recorded.marked:  # steps that begin with a piece of work
            at = np.searchsorted(self._begun, self._inner, sorter=np.argsort(self._begun, kind="stable"))
            first = np.argsort(self._begun, kind="stable")[np.minimum(at, len(self._begun) - 1)]
            inner = np.where(self._begun[first] == self._inner, replayed.starts[first], inner)
        bounds = np.r_[begin, inner, begin + recorded.duration_ns(replayed)]
        calls = Intervals(replayed.call_starts, replayed.call_ends)
        return _Times(calls, Intervals(replayed.starts, replayed.ends), bounds)

    def pictures(self, now_ns: int) -> StepPictures | None:
        """The timelines of the step; None if the replay does not show it. `now_ns`: step time without a profiler."""
        measured = int(np.diff(self._seen.bounds)[self._step])
        if min(measured, int(np.diff(self._before.bounds)[self._step])) <= 0:
            return None
        cell = max(round(max(measured, now_ns, *(length for _, length in self._after.values())) * _CELL), 1)
        _, in_step = self._seen.of_step(self._step)
        streams, which = np.unique(self._stream[in_step], return_inverse=True)
        lengths = (self._seen.work.ends - self._begun)[in_step]
        spent = np.bincount(which.reshape(-1), lengths, minlength=len(streams))
        shown = streams[np.sort(np.argsort(-spent, kind="stable")[:MOST_STREAMS])].tolist()
        return StepPictures(
            self._index,
            self._drawn(self._seen, None, measured, cell, shown),
            self._drawn(self._before, None, now_ns, cell, shown),
            {
                id_: self._drawn(self._before, after, length, cell, shown)
                for id_, (after, length) in self._after.items()
            },
            cell,
            len(streams) - len(shown),
        )

    def _drawn(
        self, times: _Times, after: _Times | None, length_ns: int, cell_ns: int, streams: Sequence[int]
    ) -> StepTimes:
        """The step, stretched to `length_ns`, between its replays without and with a change (`after`), by lane."""
        touching = [times.of_step(self._step), *(() if after is None else (after.of_step(self._step),))]
        calls, work = (np.flatnonzero(np.logical_or.reduce(masks)) for masks in zip(*touching, strict=True))
        drawn = [each.astype(np.float64) for each in times.since(self._step, calls, work)]
        length, share = float(np.diff(times.bounds)[self._step]), 0.0
        if after is not None:
            changed = float(np.diff(after.bounds)[self._step])
            share = min(max((length - length_ns) / (length - changed), 0.0), 1.0) if changed < length else 1.0
            later = after.since(self._step, calls, work)
            drawn = [(1 - share) * one + share * other for one, other in zip(drawn, later, strict=True)]
            length += share * (changed - length)
        stretched = length_ns / max(length, 1.0)
        called, returned, starts, ends = (np.round(each * stretched).astype(np.int64) for each in drawn)
        kinds, code, on = self._kinds[calls].astype(np.int64), self._code[work], self._stream[work]
        lanes = [self._lane(None, called, returned, kinds, length_ns, cell_ns)]
        for stream in streams:
            on_stream = on == stream
            lanes.append(self._lane(stream, starts[on_stream], ends[on_stream], code[on_stream], length_ns, cell_ns))
        return StepTimes(length_ns, share, stretched, tuple(lanes))

    def _lane(self, stream: int | None, start: Int64s, end: Int64s, code: Int64s, length_ns: int, cell_ns: int) -> Lane:
        """The marks inside the step; neighbours that are too short to be visible are merged."""
        start, end = np.maximum(start, 0), np.minimum(end, length_ns)
        kept = np.flatnonzero(end > start)
        kept = kept[np.argsort(start[kept], kind="stable")]
        start, end, code = start[kept], end[kept], code[kept]
        short, cell = end - start < cell_ns, start // cell_ns
        joins = short[1:] & short[:-1] & (cell[1:] == cell[:-1])
        begins = np.flatnonzero(np.r_[np.ones(min(len(start), 1), dtype=np.bool_), ~joins])
        if not len(begins):
            return Lane(stream, start, end, (), 0)
        longest = np.maximum.reduceat((end - start) * len(self._labels) + code, begins) % len(self._labels)
        labels = tuple(self._labels[number] for number in longest.tolist())
        return Lane(stream, start[begins], np.maximum.reduceat(end, begins), labels, len(start))


def _typical(lengths: Int64s) -> int:
    """The step of median length; one as long between two others if there is one, as the first and last may be cut."""
    off = np.abs(lengths / max(int(np.sort(lengths)[(len(lengths) - 1) // 2]), 1) - 1)
    is_edge = np.isin(np.arange(len(lengths)), (0, len(lengths) - 1))
    return int(np.lexsort((off, is_edge, off > _AS_LONG))[0])


def _host_times(recorded: RecordedSchedule, replayed: Replayed) -> tuple[Int64s, Int64s]:
    """Start and return of each call of the host, as recorded and as replayed."""
    seen = np.column_stack([recorded.called_ns, recorded.returned_ns]).reshape(-1)
    then = np.column_stack([replayed.call_starts, replayed.call_ends]).reshape(-1)
    return seen, then
