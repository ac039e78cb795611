"""Why the GPU was idle: each gap split by what the host did until the next work started.

The work that ends a gap gives the thread that had to issue it, and when. That splits the gap in two:

* *before the launching call began*, the host had not issued the work. The state of its thread at each instant names the
  cause: a synchronization, an allocation, a blocking copy, the profiler, another CUDA call. Outside of CUDA calls, a
  short pause between two calls is the ordinary cost of issuing work (`launch`), a long one is the host doing something
  else (`host`). While the launching thread is outside of CUDA, the other launching threads of the process are asked;
* *after it began*: the rest of the call is still `launch`. From its return on, the work was queued: a short wait is the
  device's `start-latency`; a long one is a `dependency` where the work before it ran on another stream or other devices
  were at work meanwhile, and otherwise `submission` (batched submission under Windows, another program on the GPU).

A host that waits in a synchronization while another device of its process works waits for that device, because this
one is idle: this is a `dependency` as well.

Where the GPU ran dry while the host waited in a synchronization, the time from that call's return until the next work
begins is `refill`: the cost of a drained pipeline. It is limited to the time that the host lost by waiting: without the
wait the host would have been at the same place earlier by the time it waited for a busy GPU. The delay that the next
work would have had anyway stays `launch`. Where the GPU waited for a CUDA graph, issuing it is `graph-launch`.

All parts are exact integers and sum to the gap. Causes at this level describe the time; they are not yet a diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from warplens.analysis.api import launches_graph
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import Spent, all_equal, numbered, select_rows, sum_by
from warplens.analysis.hostpace import HostCalls
from warplens.analysis.intervals import (
    Intervals,
    LabelledIntervals,
    clip,
    complement,
    intersection,
    measure_before,
    owned_union,
    subtract,
    total,
    touches,
    union,
    without,
)
from warplens.analysis.ranges import projected_spans
from warplens.analysis.startlatency import start_latency_ns
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import PART_GROUPS, table
from warplens.profile.schema import Bools, Int64s, name_categories, rows_named

#: Cause → what it means, in the order of presentation.
IDLE_CAUSES = {
    "launch": "the host had not launched the next work yet (launch cost)",
    "graph-launch": "the host had not launched the next CUDA graph yet",
    "synchronization": "the host was waiting for the GPU in a synchronization call and could not launch more work",
    "refill": "a synchronization had let the GPU run dry, and the host was launching the first work after it",
    "allocation": "the host was inside a memory allocation or release",
    "blocking-copy": "the host was blocked in a copy (pageable memory, or a synchronous call)",
    "host": "the host was busy or asleep outside CUDA for long (input pipeline, Python, garbage collection)",
    "dependency": "the work was queued and waited for another stream or device, or the host waited for another device",
    "submission": "the work was queued, but held back by the driver or another program",
    "start-latency": "the work was queued, and the GPU was about to start it",
    "profiler": "the profiler blocked the host",
    "unknown": "the profile does not record what launched the next work",
}

#: Queued work that has not started after this time waits for something else: an idle GPU starts a kernel 2–8 µs after
#: its launch call returns, and back-to-back kernels of one stream are 1–2 µs apart. Where a profile's GPU takes longer,
#: `start_latency_ns` holds.
_START_LATENCY_NS = 10_000


@dataclass(frozen=True, eq=False)
class IdleGaps:
    """Idle intervals of one device and the causes of each."""

    gaps: Intervals  #: the idle intervals, disjoint
    #: for each cause of `IDLE_CAUSES` the nanoseconds of each gap; they sum to the gaps' lengths
    parts: dict[str, Spent]
    #: shape (n,), the first row of `Timeline.work_on(device)` that begins at the gap's end or later; the number of rows
    #: where there is none
    ended_by: Int64s

    @cached_property
    def totals(self) -> dict[str, int]:
        """Nanoseconds of each cause over all gaps."""
        return {cause: cause_ns.total for cause, cause_ns in self.parts.items()}

    def frame(self) -> pl.DataFrame:
        """One row per gap: `start_ns`, `end_ns`, `main_cause`, and a column `<cause>_ns` for each cause."""
        causes = list(self.parts)
        columns = [pl.Series("start_ns", self.gaps.starts), pl.Series("end_ns", self.gaps.ends)]
        matrix = np.stack([cause_ns.whole() for cause_ns in self.parts.values()])
        main = pl.Series("main_cause", causes, dtype=pl.Enum(causes)).gather(matrix.argmax(axis=0).astype(np.int64))
        return pl.DataFrame(
            [
                *columns,
                main,
                *(pl.Series(f"{cause}_ns", cause_ns) for cause, cause_ns in zip(causes, matrix, strict=True)),
            ]
        )


def idle_gaps(timeline: Timeline, device: int, gaps: Intervals) -> IdleGaps:
    """Split each gap of one device by cause. `gaps` are disjoint intervals in which the device runs nothing."""
    work = timeline.work_on(device)
    ended_by = np.searchsorted(work["start_ns"].to_numpy(), gaps.ends, side="left")
    # Behind the last work no next launch is known; the last launching thread is watched instead.
    position = np.minimum(ended_by, max(work.height - 1, 0))
    call = work["api_row"].gather(position).fill_null(-1).to_numpy() if work.height else np.empty(0, np.int64)
    has_call = call >= 0
    parts = _IdleParts(len(gaps.starts))
    unknown = np.flatnonzero(~has_call)
    parts.add("unknown", unknown, gaps.ends[unknown] - gaps.starts[unknown])
    rows = slice(None) if has_call.all() else np.flatnonzero(has_call)
    gap_starts, gap_ends, call, position = gaps.starts[rows], gaps.ends[rows], call[rows], position[rows]
    gap_rows = np.arange(len(has_call))[rows]
    if not len(gap_rows):
        return IdleGaps(gaps, parts.columns, ended_by)

    calls = timeline.trace.api_calls
    issued = np.minimum(np.maximum(calls["start_ns"].to_numpy()[call], gap_starts), gap_ends)
    returned = np.minimum(np.maximum(calls["end_ns"].to_numpy()[call], issued), gap_ends)
    last_gap_open = ended_by[-1] == work.height  # gaps are in time order: only the last one can lie behind all work
    if last_gap_open:
        issued[-1] = returned[-1] = gap_ends[-1]
    queued_ns = gap_ends - returned
    long_queued = np.flatnonzero(queued_ns > max(_START_LATENCY_NS, start_latency_ns(timeline)))
    depends = _may_depend(timeline, device, position[long_queued], gap_starts[long_queued], gap_ends[long_queued])
    parts.add("dependency", gap_rows[long_queued[depends]], queued_ns[long_queued[depends]])
    parts.add("submission", gap_rows[long_queued[~depends]], queued_ns[long_queued[~depends]])
    queued_ns[long_queued] = 0

    # The rest is the ordinary cost of issuing work, unless the host's own calls show another cause.
    not_issued_ns = issued - gap_starts
    refilling, lost_ns = np.zeros_like(not_issued_ns), np.zeros_like(not_issued_ns)
    issued_late = np.flatnonzero(not_issued_ns > 0)
    issuers, issuer = _issuers(calls, call[issued_late])
    host_calls = {pid: HostCalls.of(timeline, pid) for pid in issuers["process"].unique().sort()}
    for number, (pid, tid) in enumerate(issuers.iter_rows()):
        own_gaps = issued_late[issuer == number] if issuers.height > 1 else issued_late
        states = host_calls[pid].states(tid)
        issued_at = issued[own_gaps]
        refill_start, lost_ns[own_gaps] = _drains(
            timeline, device, states["synchronization"], gap_starts[own_gaps], issued_at
        )
        refilling[own_gaps] = issued_at - refill_start
        for cause, intervals in _by_device(timeline, device, pid, tid, states).items():
            overlapping = np.flatnonzero(touches(intervals, gap_starts[own_gaps], issued_at))
            if not len(overlapping):
                continue
            rows, measured = own_gaps[overlapping], measure_before(intervals, issued_at[overlapping])
            part_ns = measured - measure_before(intervals, gap_starts[rows])
            parts.add(cause, gap_rows[rows], part_ns)
            not_issued_ns[rows] -= part_ns
            refilling[rows] -= measured - measure_before(intervals, refill_start[overlapping])
    if last_gap_open:
        lost_ns[-1] = 0
    _add_issuing(
        parts, gap_rows, _is_graph_launch(calls, call), not_issued_ns, refilling, returned - issued, queued_ns, lost_ns
    )
    return IdleGaps(gaps, parts.columns, ended_by)


def _by_device(
    timeline: Timeline, device: int, process: int, thread: int, states: dict[str, Intervals]
) -> dict[str, Intervals]:
    """The states of a thread during pauses of this device: its waits while others of the process work are for those.

    A thread that launches nothing on other devices waits for its own.
    """
    work = timeline.work
    if timeline.work_on(device).height == work.height:
        return states
    others = work.filter((work["device"] != device) & (work["process"] == process))
    if not (others["thread"].is_null() | (others["thread"] == thread)).any():
        return states
    elsewhere, waits = union(Intervals.of(others)), states["synchronization"]
    return {**states, "synchronization": without(waits, elsewhere), "dependency": intersection(waits, elsewhere)}


def _issuers(calls: pl.DataFrame, rows: Int64s) -> tuple[pl.DataFrame, Int64s]:
    """The distinct processes and threads of these calls, and each call's index among them."""
    keys = ("process", "thread")
    varying = [name for name in keys if not all_equal(calls[name])]
    if not varying:
        return calls.select(keys).head(min(len(rows), 1)), np.broadcast_to(np.int64(0), len(rows))
    issuers, issuer = numbered(calls.select(varying)[rows], varying)
    constant = (pl.lit(calls[name][0], dtype=calls.schema[name]).alias(name) for name in keys if name not in varying)
    return issuers.with_columns(constant).select(keys), issuer


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
    """Add the time taken to issue the work and to start it, of which a drained pipeline claims its part.

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
    unclaimed = lost[drained]
    claimed_before = np.minimum(unclaimed, refilling[drained])
    # The time inside a graph's launching call stays `graph-launch`.
    claimed_inside = np.where(graph[drained], 0, np.minimum(unclaimed - claimed_before, inside[drained]))
    claimed_queued = np.minimum(unclaimed - claimed_before - claimed_inside, queued[drained])
    parts.add("refill", numbers[drained], claimed_before + claimed_inside + claimed_queued)
    queued[drained] -= claimed_queued
    issuing[drained] -= claimed_before + claimed_inside
    parts.add("start-latency", numbers, queued)
    for cause, mask in (("launch", ~graph), ("graph-launch", graph)):
        if mask.all():
            parts.add(cause, numbers, issuing)
        else:
            parts.add(cause, numbers[mask], issuing[mask])


def _drains(timeline: Timeline, device: int, waits: Intervals, begins: Int64s, issued: Int64s) -> tuple[Int64s, Int64s]:
    """Begin of the refill, and the host's lost time, of each gap that began during a synchronization.

    Only synchronizations that returned before the next issuing call count.

    Args:
        waits: when the host was inside synchronizations, disjoint.
        begins, issued: shape (n,), the begin of each gap and of the call that issued the work that ends it.

    Returns:
        When the refill of the pipeline began (`issued` where it was not drained), and for how long the host had waited
        while the GPU still worked (0 where it was not drained).
    """
    busy = timeline.busy(device)
    if not len(waits.starts) or not len(busy.starts):
        return issued, np.zeros_like(begins)
    # A gap at the window's edge began before it.
    last_busy = np.searchsorted(busy.starts, begins, side="right") - 1
    ran_dry = np.where(last_busy >= 0, np.minimum(busy.ends[last_busy], begins), begins)
    wait = np.searchsorted(waits.starts, ran_dry, side="right") - 1
    entered, returned = waits.starts[wait], waits.ends[wait]
    drained = np.flatnonzero((wait >= 0) & (last_busy >= 0) & (ran_dry < returned) & (returned <= issued))
    refill_start, lost_ns = issued.copy(), np.zeros_like(begins)
    gap_begins, wait_ends = begins[drained], returned[drained]
    waited_ns = measure_before(busy, ran_dry[drained]) - measure_before(busy, entered[drained])
    lost_ns[drained] = np.maximum(waited_ns - np.maximum(gap_begins - wait_ends, 0), 0)
    refill_start[drained] = np.where(lost_ns[drained] > 0, np.maximum(wait_ends, gap_begins), refill_start[drained])
    return refill_start, lost_ns


def _is_graph_launch(calls: pl.DataFrame, rows: Int64s) -> Bools:
    return rows_named(calls["name"], launches_graph)[rows]


class _IdleParts:
    """The nanoseconds of each gap by cause; a cause without time takes no memory."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._spent: dict[str, Int64s] = {}

    def add(self, cause: str, rows: Int64s, part_ns: Int64s) -> None:
        """Add time to some gaps, in their order; `part_ns` is kept and may be changed."""
        if not len(rows):
            return
        if len(rows) == self._count and cause not in self._spent:
            self._spent[cause] = part_ns
            return
        if cause not in self._spent:
            self._spent[cause] = np.zeros(self._count, dtype=np.int64)
        self._spent[cause][rows] += part_ns

    @property
    def columns(self) -> dict[str, Spent]:
        """For each cause of `IDLE_CAUSES` the nanoseconds of each gap; clears the stored arrays one by one."""
        none, columns_by_cause = Spent.none(self._count), {}
        for cause in IDLE_CAUSES:
            columns_by_cause[cause] = Spent.of(self._spent.pop(cause)) if cause in self._spent else none
        return columns_by_cause


def _may_depend(timeline: Timeline, device: int, ended_by: Int64s, begins: Int64s, ends: Int64s) -> Bools:
    """Whether the work that ends each gap may have waited for other work, of another stream or another device."""
    if not len(ended_by):
        return np.empty(0, dtype=np.bool_)
    work = timeline.work_on(device)
    stream = work["stream"].to_numpy()
    ends_of_work = work["end_ns"].to_numpy()
    latest = np.maximum.accumulate(ends_of_work)
    finishing = np.maximum.accumulate(np.where(ends_of_work >= latest, np.arange(len(ends_of_work)), 0))
    other_stream = (ended_by > 0) & (stream[finishing[np.maximum(ended_by - 1, 0)]] != stream[ended_by])
    elsewhere = timeline.work.select("start_ns", "end_ns", "device").filter(pl.col("device") != device)
    running = union(Intervals(elsewhere["start_ns"].to_numpy(), elsewhere["end_ns"].to_numpy()))
    others_ran = measure_before(running, ends) > measure_before(running, begins)
    depends: Bools = other_stream | others_ran
    return depends


# --- The time budget ---
#
# Each instant of the device belongs to the first of these that applies: 1. compute: a kernel that is not communication
# runs. Where several run at once, the instant belongs to the one that began first, so that categories add up; 2. a CUDA
# graph traced as a whole runs: busy, but its inside is hidden; 3. communication that no compute hides ("exposed"); 4.
# exposed copies and fills; 5. nothing: idle, by cause. Everything is an interval union in integer nanoseconds:
# overlapping durations are never added up, and the residual is zero by construction.

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
    """One device's time in a window, divided into parts."""

    device: int  #: CUDA ordinal
    window: Window
    duration_ns: int  #: the window's length, or with a range the summed spans of its instances
    parts: pl.DataFrame  #: `BUDGET`, largest first within a group; `time_ns` sums to `duration_ns`
    gaps: IdleGaps  #: every idle interval with its causes
    owned_ns: Int64s  #: for each row of `Timeline.work_on(device)` the time it owns; each instant has one owner

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
    """One budget for each device that worked in the window, in device order."""
    devices = timeline.devices_in(window)
    return tuple(_budget(timeline, window, device, segments_of(timeline, window, device)) for device in devices)


def budgets_within(timeline: Timeline, window: Window, segments: Intervals) -> tuple[TimeBudget, ...]:
    """The budget of disjoint pieces of a window, such as its steps, for each device that worked in it.

    The window's range, if any, is ignored: the segments define the time that is split.
    """
    return tuple(_budget(timeline, window, device, union(segments)) for device in timeline.devices_in(window))


def _budget(timeline: Timeline, window: Window, device: int, segments: Intervals) -> TimeBudget:
    """The GPU's time in these segments of the window, by kind of work and by cause of idle time."""
    work = timeline.work_on(device)
    owned = np.zeros(work.height, dtype=np.int64)
    overlaps = (work["end_ns"].to_numpy() > window.start_ns) & (work["start_ns"].to_numpy() < window.end_ns)
    overlapping_rows = np.flatnonzero(overlaps)
    work = select_rows(work, overlaps)
    labels, names = _labels(timeline, work)
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    outside = complement(segments, *_hull(starts, ends, segments))
    times: dict[tuple[str, str], int] = {}
    covered = Intervals.none()
    for group in PART_GROUPS[:-1]:
        in_group = np.array([name[0] == group for name in names], dtype=np.bool_)[labels]
        rows = np.flatnonzero(in_group)
        if not len(rows):
            continue
        pieces = owned_union(starts[rows], ends[rows])
        pieces = subtract(subtract(pieces, outside), covered)
        owners, lengths = rows[pieces.owner], pieces.ends - pieces.starts
        if (owners[1:] > owners[:-1]).all():  # every owner has one piece
            owned[overlapping_rows[owners]] = lengths
        else:
            np.add.at(owned, overlapping_rows[owners], lengths)
        amounts = sum_by(labels[owners], lengths, len(names)).tolist()
        times.update({name: amount for name, amount in zip(names, amounts, strict=True) if name[0] == group and amount})
        covered = _merged(covered, Intervals(pieces.starts, pieces.ends))
    gaps = idle_gaps(timeline, device, _gaps(segments, covered))
    times.update({("idle", cause): amount for cause, amount in gaps.totals.items() if amount})
    duration = total(segments)
    return TimeBudget(device, window, duration, _parts(times, duration), gaps, owned)


def segments_of(timeline: Timeline, window: Window, device: int) -> Intervals:
    """The time that a budget splits: the window, or with a range the spans of its instances on the device."""
    if window.range_name is None:
        return Intervals(np.array([window.start_ns]), np.array([window.end_ns]))
    spans = projected_spans(timeline, timeline.range_rows(window.range_name), device)
    return union(clip(spans, window.start_ns, window.end_ns))


def _merged(covered: Intervals, pieces: Intervals) -> Intervals:
    """The union of two sets that do not overlap each other."""
    if not len(covered.starts):
        return pieces
    position = np.searchsorted(covered.starts, pieces.starts)
    return Intervals(np.insert(covered.starts, position, pieces.starts), np.insert(covered.ends, position, pieces.ends))


def _gaps(segments: Intervals, covered: Intervals) -> Intervals:
    if len(segments.starts) == 1:
        return complement(covered, int(segments.starts[0]), int(segments.ends[0]))
    pieces = subtract(LabelledIntervals(*segments, np.arange(len(segments.starts))), covered)
    return Intervals(pieces.starts, pieces.ends)


def _hull(starts: Int64s, ends: Int64s, segments: Intervals) -> tuple[int, int]:
    bounds = np.concatenate((starts, segments.starts)), np.concatenate((ends, segments.ends))
    return (int(bounds[0].min()), int(bounds[1].max())) if len(bounds[0]) else (0, 0)


def _labels(timeline: Timeline, work: pl.DataFrame) -> tuple[Int64s, list[tuple[str, str]]]:
    """For each piece of work its index in the returned list of (group, part)."""
    trace = timeline.trace
    labels_by_kind = {
        "kernel": categories_of(trace.kernels["full_name"]),
        "copy": trace.copies["direction"],
        "memset": _constant_labels("memset", trace.memsets.height),
        "graph": _constant_labels("hidden inside CUDA graphs", trace.graph_launches.height),
    }
    names: list[tuple[str, str]] = []
    codes = np.zeros(work.height, dtype=np.int64)
    for kind, texts in labels_by_kind.items():
        rows = np.flatnonzero((work["kind"] == kind).to_numpy())
        codes[rows] = texts.to_physical().to_numpy()[work["row"].to_numpy()[rows]] + len(names)
        names.extend((_group(kind, text), text) for text in name_categories(texts))
    return codes, names


def _constant_labels(text: str, count: int) -> pl.Series:
    return pl.Series([text], dtype=pl.Enum([text])).gather(np.zeros(count, dtype=np.int64))


def _group(kind: str, part: str) -> str:
    if kind == "kernel":
        return "communication" if part == "communication" else "compute"
    return "graph" if kind == "graph" else "copy"


def _parts(time_ns: dict[tuple[str, str], int], duration: int) -> pl.DataFrame:
    order = {group: position for position, group in enumerate(PART_GROUPS)}
    rows = sorted(time_ns.items(), key=lambda item: (order[item[0][0]], -item[1], item[0][1]))
    return pl.DataFrame(
        {
            "group": [group for (group, _), _ in rows],
            "part": [part for (_, part), _ in rows],
            "time_ns": [amount for _, amount in rows],
            "share": [amount / duration if duration else 0.0 for _, amount in rows],
        },
        schema=BUDGET.schema,
    )
