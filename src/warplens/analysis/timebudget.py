"""Why the GPU was idle: each gap split by what the host was doing while the next work was not yet there.

The work that ends a gap tells which thread had to issue it and when. That splits the gap in two:

* *before the launching call began*, the host had not issued the work. What its thread was inside of at each instant
  names the cause: a synchronization, an allocation, a blocking copy, the profiler, another CUDA call. Outside of CUDA
  calls, a short pause between two calls is the ordinary cost of issuing work (`launch`), a long one is the host doing
  something else (`host`). Where the launching thread is outside of CUDA, the other launching threads of the process are
  asked;
* *after it began*: the rest of the call is still `launch`. From its return on, the work was queued: a short wait is the
  device's `start-latency`; a long one is a `dependency` where the work before it ran on another stream or other devices
  were at work meanwhile, and otherwise `submission` (batched submission under Windows, another program on the GPU).

Where the GPU ran dry while the host waited in a synchronization, the time from that call's return until the next work
begins is `refill`: what a drained pipeline pays. Only as much counts as the host lost by waiting: without the wait it
would have been at the same place earlier by the time that it waited for a busy GPU. What the next work would have come
late by anyhow stays `launch`. Where a CUDA graph is what the GPU waited for, issuing it is `graph-launch`.

All parts are exact integers and sum to the gap. Causes at this level are descriptions of the time, not yet a diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import Spent, all_equal, chosen, numbered, sum_by
from warplens.analysis.hostpace import HostCalls
from warplens.analysis.intervals import (
    Intervals,
    Owned,
    clip,
    complement,
    measure_before,
    owned_union,
    subtract,
    total,
    touches,
    union,
)
from warplens.analysis.ranges import projected_spans
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import PART_GROUPS, table
from warplens.profile.schema import Bools, Int64s, name_categories

#: Cause → what it means, in the order of presentation.
IDLE_CAUSES = {
    "launch": "the host had not launched the next work yet (launch cost)",
    "graph-launch": "the host had not launched the next CUDA graph yet",
    "synchronization": "the host was waiting for the GPU in a synchronization call and could not launch more work",
    "refill": "a synchronization had let the GPU run dry, and the host was launching the first work after it",
    "allocation": "the host was inside a memory allocation or release",
    "blocking-copy": "the host was blocked in a copy (pageable memory, or a synchronous call)",
    "host": "the host was busy or asleep outside CUDA for long (input pipeline, Python, garbage collection)",
    "dependency": "the work was queued, but waited for work on another stream or device",
    "submission": "the work was queued, but held back by the driver or another program",
    "start-latency": "the work was queued, and the GPU was about to start it",
    "profiler": "the profiler blocked the host",
    "unknown": "the profile does not record what launched the next work",
}

#: Queued work that has not started after this time is waiting for something: an idle GPU starts a kernel 2–8 µs after
#: its launch call returns, and back-to-back kernels of one stream are 1–2 µs apart.
_START_LATENCY_NS = 10_000


@dataclass(frozen=True, eq=False)
class IdleGaps:
    """Idle intervals of one device and the causes of each."""

    gaps: Intervals  #: the idle intervals, disjoint
    #: for each cause of `IDLE_CAUSES` the nanoseconds of each gap; they sum to the gaps' lengths
    parts: dict[str, Spent]
    #: shape (n,), the first row of `Timeline.work_on(device)` that begins at the gap's end or later; as many as there
    #: are rows for none
    ended_by: Int64s

    @cached_property
    def totals(self) -> dict[str, int]:
        """Nanoseconds of each cause over all gaps."""
        return {cause: spent.total for cause, spent in self.parts.items()}

    def frame(self) -> pl.DataFrame:
        """One row a gap: `start_ns`, `end_ns`, `main_cause`, and a column `<cause>_ns` for each cause."""
        causes = list(self.parts)
        columns = [pl.Series("start_ns", self.gaps.starts), pl.Series("end_ns", self.gaps.ends)]
        matrix = np.stack([spent.whole() for spent in self.parts.values()])
        main = pl.Series("main_cause", causes, dtype=pl.Enum(causes)).gather(matrix.argmax(axis=0).astype(np.int64))
        return pl.DataFrame(
            [*columns, main, *(pl.Series(f"{cause}_ns", spent) for cause, spent in zip(causes, matrix, strict=True))]
        )


def idle_gaps(timeline: Timeline, device: int, gaps: Intervals) -> IdleGaps:
    """Splits each gap of one device by cause. `gaps` are disjoint intervals in which the device runs nothing."""
    work = timeline.work_on(device)
    ended_by = np.searchsorted(work["start_ns"].to_numpy(), gaps.ends, side="left")
    # After the last work nobody is known to have had to issue more; the last launching thread is watched instead.
    position = np.minimum(ended_by, max(work.height - 1, 0))
    call = work["api_row"].gather(position).fill_null(-1).to_numpy() if work.height else np.empty(0, np.int64)
    known = call >= 0
    parts = _IdleParts(len(gaps.starts))
    unknown = np.flatnonzero(~known)
    parts.add("unknown", unknown, gaps.ends[unknown] - gaps.starts[unknown])
    rows = slice(None) if known.all() else np.flatnonzero(known)
    begins, ends, call, position = gaps.starts[rows], gaps.ends[rows], call[rows], position[rows]
    numbers = np.arange(len(known))[rows]
    if not len(numbers):
        return IdleGaps(gaps, parts.columns, ended_by)

    calls = timeline.trace.api_calls
    issued = np.minimum(np.maximum(calls["start_ns"].to_numpy()[call], begins), ends)
    returned = np.minimum(np.maximum(calls["end_ns"].to_numpy()[call], issued), ends)
    behind_all = ended_by[-1] == work.height  # gaps are in order of time: only the last one can lie behind all work
    if behind_all:
        issued[-1] = returned[-1] = ends[-1]
    queued = ends - returned
    long = np.flatnonzero(queued > _START_LATENCY_NS)
    depends = _may_depend(timeline, device, position[long], begins[long], ends[long])
    parts.add("dependency", numbers[long[depends]], queued[long[depends]])
    parts.add("submission", numbers[long[~depends]], queued[long[~depends]])
    queued[long] = 0

    # Issuing other work, or outside of CUDA but not for long, unless the host's own calls tell otherwise.
    before = issued - begins
    refilling, lost = np.zeros_like(before), np.zeros_like(before)
    late = np.flatnonzero(before > 0)
    issuers, issuer = _issuers(calls, call[late])
    hosts = {pid: HostCalls.of(timeline, pid) for pid in issuers["process"].unique().sort()}
    for number, (pid, tid) in enumerate(issuers.iter_rows()):
        mine = late[issuer == number] if issuers.height > 1 else late
        states = hosts[pid].states(tid)
        until = issued[mine]
        since, lost[mine] = _drains(timeline, device, states["synchronization"], begins[mine], until)
        refilling[mine] = until - since
        for cause, intervals in states.items():
            touched = np.flatnonzero(touches(intervals, begins[mine], until))
            if not len(touched):
                continue
            rows, reached = mine[touched], measure_before(intervals, until[touched])
            spent = reached - measure_before(intervals, begins[rows])
            parts.add(cause, numbers[rows], spent)
            before[rows] -= spent
            refilling[rows] -= reached - measure_before(intervals, since[touched])
    if behind_all:
        lost[-1] = 0
    _add_issuing(parts, numbers, _is_graph_launch(calls, call), before, refilling, returned - issued, queued, lost)
    return IdleGaps(gaps, parts.columns, ended_by)


def _issuers(calls: pl.DataFrame, rows: Int64s) -> tuple[pl.DataFrame, Int64s]:
    """The processes and threads that made these calls, and which of them made each; most profiles have one or two."""
    lane = ("process", "thread")
    apart = [name for name in lane if not all_equal(calls[name])]
    if not apart:
        return calls.select(lane).head(min(len(rows), 1)), np.broadcast_to(np.int64(0), len(rows))
    issuers, issuer = numbered(calls.select(apart)[rows], apart)
    same = (pl.lit(calls[name][0], dtype=calls.schema[name]).alias(name) for name in lane if name not in apart)
    return issuers.with_columns(same).select(lane), issuer


def _add_issuing(
    parts: _IdleParts,
    numbers: Int64s,
    graph: Bools,
    before: Int64s,
    refilling: Int64s,
    inside: Int64s,
    queued: Int64s,
    lost: Int64s,
) -> None:
    """Adds the time that it took to issue the work and to start it, of which a drained pipeline claims its part.

    Args:
        numbers: shape (n,), the gaps.
        graph: whether the work is a CUDA graph's.
        before: time before the launching call; `refilling` the part of it after the synchronization's return.
        inside: time inside the launching call.
        queued: time from the call's return until the GPU began.
        lost: what the host lost by waiting in the synchronization; 0 where none let the GPU run dry.
    """
    issuing = before + inside
    drained = np.flatnonzero(lost)
    left = lost[drained]
    claimed_before = np.minimum(left, refilling[drained])
    # A graph's launching call says itself what it is.
    claimed_inside = np.where(graph[drained], 0, np.minimum(left - claimed_before, inside[drained]))
    claimed_queued = np.minimum(left - claimed_before - claimed_inside, queued[drained])
    parts.add("refill", numbers[drained], claimed_before + claimed_inside + claimed_queued)
    queued[drained] -= claimed_queued
    issuing[drained] -= claimed_before + claimed_inside
    parts.add("start-latency", numbers, queued)
    for cause, which in (("launch", ~graph), ("graph-launch", graph)):
        if which.all():
            parts.add(cause, numbers, issuing)
        else:
            parts.add(cause, numbers[which], issuing[which])


def _drains(timeline: Timeline, device: int, waits: Intervals, begins: Int64s, issued: Int64s) -> tuple[Int64s, Int64s]:
    """Which gaps began while the host waited in a synchronization that returned before the next work was issued.

    Args:
        waits: when the host was inside synchronizations, disjoint.
        begins, issued: shape (n,), the begin of each gap and of the call that issued the work that ends it.

    Returns:
        From when on the pipeline was refilled (`issued` where it had not been drained), and for how long the host had
        waited while the GPU still worked (0 where it had not been drained).
    """
    busy = timeline.busy(device)
    if not len(waits.starts) or not len(busy.starts):
        return issued, np.zeros_like(begins)
    # A gap at the window's edge began before it.
    worked = np.searchsorted(busy.starts, begins, side="right") - 1
    ran_dry = np.where(worked >= 0, np.minimum(busy.ends[worked], begins), begins)
    wait = np.searchsorted(waits.starts, ran_dry, side="right") - 1
    entered, returned = waits.starts[wait], waits.ends[wait]
    drained = np.flatnonzero((wait >= 0) & (worked >= 0) & (ran_dry < returned) & (returned <= issued))
    since, lost = issued.copy(), np.zeros_like(begins)
    begun, back = begins[drained], returned[drained]
    waited = measure_before(busy, ran_dry[drained]) - measure_before(busy, entered[drained])
    lost[drained] = np.maximum(waited - np.maximum(begun - back, 0), 0)
    since[drained] = np.where(lost[drained] > 0, np.maximum(back, begun), since[drained])
    return since, lost


def _is_graph_launch(calls: pl.DataFrame, rows: Int64s) -> Bools:
    found: Bools = (api_kinds(calls["name"].gather(rows)) == "graph-launch").to_numpy()
    return found


class _IdleParts:
    """The nanoseconds of each gap by cause; a cause that no gap has takes no room."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._spent: dict[str, Int64s] = {}

    def add(self, cause: str, rows: Int64s, spent: Int64s) -> None:
        """Adds time to some gaps, in their order; what is added belongs to the parts from then on."""
        if not len(rows):
            return
        if len(rows) == self._count and cause not in self._spent:
            self._spent[cause] = spent
            return
        if cause not in self._spent:
            self._spent[cause] = np.zeros(self._count, dtype=np.int64)
        self._spent[cause][rows] += spent

    @property
    def columns(self) -> dict[str, Spent]:
        """For each cause of `IDLE_CAUSES` the nanoseconds of each gap; they are given up here, one after the other."""
        none, found = Spent.none(self._count), {}
        for cause in IDLE_CAUSES:
            found[cause] = Spent.of(self._spent.pop(cause)) if cause in self._spent else none
        return found


def _may_depend(timeline: Timeline, device: int, ended_by: Int64s, begins: Int64s, ends: Int64s) -> Bools:
    """Whether the work that ends each gap can have waited for other work: of another stream, or of another device."""
    if not len(ended_by):
        return np.empty(0, dtype=np.bool_)
    work = timeline.work_on(device)
    stream = work["stream"].to_numpy()
    finish = work["end_ns"].to_numpy()
    latest = np.maximum.accumulate(finish)
    finishing = np.maximum.accumulate(np.where(finish >= latest, np.arange(len(finish)), 0))
    other_stream = (ended_by > 0) & (stream[finishing[np.maximum(ended_by - 1, 0)]] != stream[ended_by])
    elsewhere = timeline.work.select("start_ns", "end_ns", "device").filter(pl.col("device") != device)
    running = union(Intervals(elsewhere["start_ns"].to_numpy(), elsewhere["end_ns"].to_numpy()))
    others_ran = measure_before(running, ends) > measure_before(running, begins)
    depends: Bools = other_stream | others_ran
    return depends


# --- The time budget ---
#
# At every instant the device is doing one of these, asked in this order: 1. compute: a kernel that is not
# communication runs. Where several run at once, the instant belongs to the one that began first, so that categories
# add up; 2. a CUDA graph traced as a whole runs: busy, but its inside is hidden; 3. communication that no compute
# hides ("exposed"); 4. exposed copies and fills; 5. nothing: idle, by cause. Everything is an interval union in integer
# nanoseconds: durations that overlap are never added up, and the residual is zero by construction.

BUDGET = table(
    "time budget",
    "One part of one GPU's time. `warplens budget`; in its JSON and CSV a column `device` (CUDA ordinal) stands"
    " before these.",
    "group part time_ns share",
    part="kernel category, direction of a copy, or idle cause (see [time budget](../explanation/time-budget.md))",
    time_ns="time of the part; the parts of a device sum to the window exactly",
    share="share of the window",
)


@dataclass(frozen=True, eq=False)
class TimeBudget:
    """Where one device's time went."""

    device: int  #: CUDA ordinal
    window: Window
    duration_ns: int  #: the time that was split: the window's length, or with a range the summed spans of its instances
    parts: pl.DataFrame  #: `BUDGET`, largest first within a group; `time_ns` sums to `duration_ns`
    gaps: IdleGaps  #: every idle interval with its causes
    owned_ns: Int64s  #: the time that each row of `Timeline.work_on(device)` owns, so that each instant counts once

    @property
    def busy_ns(self) -> int:
        """Time in which the device did anything."""
        return self.duration_ns - self.idle_ns

    @cached_property
    def idle_ns(self) -> int:
        """Time in which the device did nothing."""
        return total(self.gaps.gaps)

    @property
    def attributed_share(self) -> float | None:
        """Share of the idle time whose cause the profile reveals."""
        return 1 - self.gaps.totals["unknown"] / self.idle_ns if self.idle_ns else None

    def group_ns(self, group: str) -> int:
        """Time of one group of parts (`PART_GROUPS`)."""
        return int(self.parts.filter(pl.col("group") == group)["time_ns"].sum())


def time_budgets(timeline: Timeline, window: Window) -> tuple[TimeBudget, ...]:
    """One budget for each device that did any work in the window, in device order; none if no device did."""
    devices = timeline.work_in(window)["device"].unique().sort().to_list()
    return tuple(_budget(timeline, window, device, _segments(timeline, window, device)) for device in devices)


def budgets_within(timeline: Timeline, window: Window, segments: Intervals) -> tuple[TimeBudget, ...]:
    """The budget of some disjoint pieces of a window's time, such as its steps, for each device that worked in it.

    The window's range, if it has one, does not count: the pieces say which time is split.
    """
    devices = timeline.work_in(window)["device"].unique().sort().to_list()
    return tuple(_budget(timeline, window, device, union(segments)) for device in devices)


def _budget(timeline: Timeline, window: Window, device: int, segments: Intervals) -> TimeBudget:
    work = timeline.work_on(device)
    owned = np.zeros(work.height, dtype=np.int64)
    touches = (work["end_ns"].to_numpy() > window.start_ns) & (work["start_ns"].to_numpy() < window.end_ns)
    touching = np.flatnonzero(touches)
    work = chosen(work, touches)
    labels, names = _labels(timeline, work)
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    outside = complement(segments, *_hull(starts, ends, segments))
    spent: dict[tuple[str, str], int] = {}
    covered = Intervals.none()
    for group in PART_GROUPS[:-1]:
        of_group = np.array([name[0] == group for name in names], dtype=np.bool_)[labels]
        rows = np.flatnonzero(of_group)
        if not len(rows):
            continue
        pieces = owned_union(starts[rows], ends[rows])
        pieces = subtract(subtract(pieces, outside), covered)
        owners, lengths = rows[pieces.owner], pieces.ends - pieces.starts
        if (owners[1:] > owners[:-1]).all():  # each in one piece
            owned[touching[owners]] = lengths
        else:
            np.add.at(owned, touching[owners], lengths)
        amounts = sum_by(labels[owners], lengths, len(names)).tolist()
        spent.update({name: amount for name, amount in zip(names, amounts, strict=True) if name[0] == group and amount})
        covered = _with(covered, Intervals(pieces.starts, pieces.ends))
    gaps = idle_gaps(timeline, device, _gaps(segments, covered))
    spent.update({("idle", cause): amount for cause, amount in gaps.totals.items() if amount})
    duration = total(segments)
    return TimeBudget(device, window, duration, _parts(spent, duration), gaps, owned)


def _segments(timeline: Timeline, window: Window, device: int) -> Intervals:
    if window.range_name is None:
        return Intervals(np.array([window.start_ns]), np.array([window.end_ns]))
    spans = projected_spans(timeline, timeline.range_rows(window.range_name), device)
    return union(clip(spans, window.start_ns, window.end_ns))


def _with(covered: Intervals, pieces: Intervals) -> Intervals:
    """Both together, which are disjoint and of which neither covers any of the other."""
    if not len(covered.starts):
        return pieces
    place = np.searchsorted(covered.starts, pieces.starts)
    return Intervals(np.insert(covered.starts, place, pieces.starts), np.insert(covered.ends, place, pieces.ends))


def _gaps(segments: Intervals, covered: Intervals) -> Intervals:
    if len(segments.starts) == 1:
        return complement(covered, int(segments.starts[0]), int(segments.ends[0]))
    pieces = subtract(Owned(*segments, np.arange(len(segments.starts))), covered)
    return Intervals(pieces.starts, pieces.ends)


def _hull(starts: Int64s, ends: Int64s, segments: Intervals) -> tuple[int, int]:
    bounds = np.concatenate((starts, segments.starts)), np.concatenate((ends, segments.ends))
    return (int(bounds[0].min()), int(bounds[1].max())) if len(bounds[0]) else (0, 0)


def _labels(timeline: Timeline, work: pl.DataFrame) -> tuple[Int64s, list[tuple[str, str]]]:
    """For each piece of work the position of its (group, part) in the list of them."""
    trace = timeline.trace
    label = {
        "kernel": categories_of(trace.kernels["full_name"]),
        "copy": trace.copies["direction"],
        "memset": _constant("memset", trace.memsets.height),
        "graph": _constant("hidden inside CUDA graphs", trace.graph_launches.height),
    }
    names: list[tuple[str, str]] = []
    codes = np.zeros(work.height, dtype=np.int64)
    for kind, texts in label.items():
        rows = np.flatnonzero((work["kind"] == kind).to_numpy())
        codes[rows] = texts.to_physical().to_numpy()[work["row"].to_numpy()[rows]] + len(names)
        names.extend((_group(kind, text), text) for text in name_categories(texts))
    return codes, names


def _constant(text: str, count: int) -> pl.Series:
    return pl.Series([text], dtype=pl.Enum([text])).gather(np.zeros(count, dtype=np.int64))


def _group(kind: str, part: str) -> str:
    if kind == "kernel":
        return "communication" if part == "communication" else "compute"
    return "graph" if kind == "graph" else "copy"


def _parts(spent: dict[tuple[str, str], int], duration: int) -> pl.DataFrame:
    order = {group: position for position, group in enumerate(PART_GROUPS)}
    rows = sorted(spent.items(), key=lambda item: (order[item[0][0]], -item[1], item[0][1]))
    return pl.DataFrame(
        {
            "group": [group for (group, _), _ in rows],
            "part": [part for (_, part), _ in rows],
            "time_ns": [amount for _, amount in rows],
            "share": [amount / duration if duration else 0.0 for _, amount in rows],
        },
        schema=BUDGET.schema,
    )
