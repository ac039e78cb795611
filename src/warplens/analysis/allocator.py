"""The framework's own allocator over time: what it had handed out, what it held, and whose memory stood at the peak.

PyTorch asks CUDA for large segments and hands out parts of them; what it holds beyond what it has handed out is cached
or fragmented. Each event of a trace states both amounts after it, so what stood there before the recording began is
known as an amount, though not what it is.

Below, the same of what CUDA itself handed out, where the profiler recorded calls of cudaMalloc and the like.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import polars as pl

from warplens.analysis.frames import number, numbered, ratio
from warplens.analysis.phases import forward_pass
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import NO_PHASE, PHASES, Window, phase_of_name
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Int64s, name_categories

ALLOCATIONS: Final = table(
    "allocations",
    "One allocation or release by the framework's allocator. `warplens memory --by event`.",
    "time_ns process device delta_bytes allocated_bytes reserved_bytes",
    device="ordinal of the GPU; null for host memory",
)

ALIVE: Final = table(
    "memory alive at the peak",
    "One group of blocks that were in use at the peak of a process and device. `warplens memory --by operator`,"
    " with a column `owner` for people.",
    "process device operator forward phase",
    Column(
        "from_before",
        pl.Boolean,
        "whether it was allocated before the recording began, so that its owner is unknown",
    ),
    Column("blocks", pl.Int64, "number of blocks; null for what was allocated before the recording"),
    "bytes share",
    device="ordinal of the GPU; null for host memory",
    phase="`backward`, `optimizer`, `forward` or `none`",
    bytes="how much",
    share="share of the peak",
)

ALLOCATIONS_BY_STEP: Final = table(
    "allocations of each step",
    "One step, process and device. `warplens memory --by step`.",
    "step process device allocations releases",
    column("allocated_bytes", help="sum of the allocations"),
    Column("released_bytes", pl.Int64, "sum of the releases"),
    "peak_bytes",
    device="ordinal of the GPU; null for host memory",
)

_HOME: Final = ["process", "device"]

#: Operators that do nothing but allocate: the memory belongs to the one that called them.
_ALLOCATING: Final = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
    | {"aten::resize_", "aten::empty_permuted", "aten::empty_quantized"}
)


@dataclass(frozen=True)
class AllocatorUse:
    """What one process had allocated on one device during a window."""

    process: int
    device: int | None  #: ordinal of the GPU; None for host memory
    #: begin_bytes, end_bytes: in use at the window's edges
    begin_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_ns: int  #: when that was first reached
    reserved_bytes: int | None  #: what the allocator held at the peak; None where it was not recorded
    most_reserved_bytes: int | None
    #: allocations, releases: how many there were in the window
    allocations: int
    releases: int
    allocated_bytes: int  #: sum of all allocations in the window (churn)
    unseen_bytes: int  #: part of the peak that was allocated before the recording began: whose it is cannot be known
    mismatches: int  #: events of the profile whose own running total differs from the sum of the events before it

    @property
    def idle_bytes(self) -> int | None:
        """Held by the allocator at the peak, but not handed out: cached or lost to fragmentation."""
        return None if self.reserved_bytes is None else max(0, self.reserved_bytes - self.peak_bytes)

    @property
    def known_share(self) -> float | None:
        """Share of the peak whose allocation is in the recording; None where nothing was allocated."""
        return 1 - self.unseen_bytes / self.peak_bytes if self.peak_bytes else None


@dataclass(frozen=True, eq=False)
class Allocations:
    """What is known of the allocator in one window; each answer is worked out when it is first asked for."""

    _timeline: Timeline
    _window: Window
    _events: pl.DataFrame

    @cached_property
    def timeline(self) -> pl.DataFrame:
        """Every allocation and release inside the window with the amounts after it (`ALLOCATIONS`)."""
        inside = _inside(self._window) | (self._window.kind == "all")
        return ALLOCATIONS.conform(self._events.filter(inside))

    @cached_property
    def use(self) -> tuple[AllocatorUse, ...]:
        """What was in use at the edges of the window, at its peak and when, by process and device, GPUs first."""
        uses = []
        for (process, device), mine in self._events.group_by(_HOME, maintain_order=True):
            when = mine["time_ns"].to_numpy()
            level = mine["allocated_bytes"].to_numpy()
            first, end = np.searchsorted(when, (self._window.start_ns, self._window.end_ns)).tolist()
            if self._window.kind == "all":
                first, end = 0, len(when)
            start = int(level[0] - mine["delta_bytes"][0])
            begin = int(level[first - 1]) if first else start
            inside = mine[first:end]
            highest = first + int(np.argmax(level[first:end])) if end > first else first - 1
            peak = int(level[highest]) if highest >= 0 else start
            if peak <= begin:  # nothing in the window exceeds what stood there at its begin
                highest, peak = first - 1, begin
            delta, most = inside["delta_bytes"], number(inside["reserved_bytes"].max())
            uses.append(
                AllocatorUse(
                    process=int(str(process)),
                    device=None if device is None else int(str(device)),
                    begin_bytes=begin,
                    end_bytes=int(level[end - 1]) if end else start,
                    peak_bytes=peak,
                    peak_ns=int(when[highest]) if highest >= first else self._window.start_ns,
                    # PyTorch's allocator of host memory holds nothing back; it reports 0.
                    reserved_bytes=None if device is None else mine["reserved_bytes"][max(highest, 0)],
                    most_reserved_bytes=None if device is None or most is None else int(most),
                    allocations=int((delta > 0).sum()),
                    releases=int((delta < 0).sum()),
                    allocated_bytes=int(delta.filter(delta > 0).sum()),
                    unseen_bytes=peak - int(mine["delta_bytes"].to_numpy()[_alive(mine, highest)].sum()),
                    mismatches=int(mine["differs"].sum()),
                )
            )
        return tuple(sorted(uses, key=lambda use: (use.device is None, -use.peak_bytes, use.process, use.device or 0)))

    @cached_property
    def alive_at_peak(self) -> pl.DataFrame:
        """Whose memory was in use at the peak of each process and device (`ALIVE`), the largest groups first.

        A block belongs to the innermost operator that was open on its thread when it was allocated, operators that only
        allocate (`aten::empty`) left aside; without an operator, to the innermost annotation.
        """
        parts = [ALIVE.empty()]
        for use in self.use:
            home = pl.lit(use.process, dtype=pl.Int32), pl.lit(use.device, dtype=pl.Int32)
            mine = self._events.filter((pl.col("process") == home[0]) & pl.col("device").eq_missing(home[1]))
            peaks = np.flatnonzero((mine["time_ns"] <= use.peak_ns).to_numpy())
            blocks = mine[np.flatnonzero(_alive(mine, int(peaks[-1]) if len(peaks) else -1))]
            owned = _owners(self._timeline, blocks).with_columns(blocks["delta_bytes"].alias("bytes"))
            groups = owned.group_by("operator", "forward", "phase", maintain_order=True).agg(
                pl.len().cast(pl.Int64).alias("blocks"), pl.col("bytes").sum(), from_before=pl.lit(value=False)
            )
            before = pl.DataFrame({"phase": [NO_PHASE], "bytes": [use.unseen_bytes], "from_before": [True]})
            both = pl.concat([groups, before.filter(pl.col("bytes") > 0)], how="diagonal").with_columns(
                process=home[0], device=home[1], share=ratio(pl.col("bytes"), pl.lit(use.peak_bytes))
            )
            parts.append(ALIVE.conform(both).sort("bytes", "operator", descending=[True, False]))
        return pl.concat(parts)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """How much was allocated and released in each step of the window, and its peak (`ALLOCATIONS_BY_STEP`)."""
        numbers, starts, ends = self._window.step_edges
        when = self._events["time_ns"].to_numpy()
        place = np.searchsorted(starts, when, side="right") - 1
        inside = (place >= 0) & (when < np.r_[ends, 0][place])
        delta, allocated = pl.col("delta_bytes"), pl.col("allocated_bytes")
        steps = (
            self._events.filter(pl.Series(inside))
            .with_columns(pl.Series("step", numbers[place[inside]]))
            .group_by("step", *_HOME, maintain_order=True)
            .agg(
                allocations=(delta > 0).sum(),
                releases=(delta < 0).sum(),
                allocated_bytes=delta.filter(delta > 0).sum(),
                released_bytes=delta.filter(delta < 0).sum().neg(),
                # What stood there when the step began counts as well.
                peak_bytes=pl.max_horizontal(allocated.max(), allocated.first() - delta.first()),
            )
        )
        return ALLOCATIONS_BY_STEP.conform(steps).sort("step", *_HOME, nulls_last=True)


def allocations(timeline: Timeline, window: Window) -> Allocations | None:
    """What is known of the framework's allocator; None where the profile recorded no allocations: that is not zero."""
    events = _events(timeline, "allocations", _HOME)
    return None if events is None else Allocations(timeline, window, events)


def _events(timeline: Timeline, kind: Literal["allocations", "memory"], home: list[str]) -> pl.DataFrame | None:
    """All events in order of time; `differs` marks those whose recorded total is not the sum of the events so far.

    Amounts are summed by `home`. What was released without having been seen allocated, `unseen`, stood there before.
    """
    if kind not in timeline.trace.capture.recorded:
        return None
    events: pl.DataFrame = getattr(timeline.trace, kind).sort("time_ns", maintain_order=True)
    delta = pl.col("delta_bytes")
    recorded = pl.col("allocated_bytes") if kind == "allocations" else pl.lit(None, dtype=pl.Int64)
    summed = delta.cum_sum().over(home)
    # Before the first event stood what it says less its own amount; unless it says nothing, then what must have stood
    # there for no address to fall below zero.
    unseen = _unseen_blocks(events, home).group_by(home).agg(pl.col("unseen").sum())
    events = events.join(unseen, on=home, how="left", nulls_equal=True, maintain_order="left")
    before = pl.coalesce((recorded - delta).first().over(home), pl.col("unseen"))
    return events.with_columns((summed + before).alias("summed")).with_columns(
        (recorded.is_not_null() & (recorded != pl.col("summed"))).alias("differs"),
        pl.coalesce(recorded, pl.col("summed")).alias("allocated_bytes"),
    )


def _unseen_blocks(events: pl.DataFrame, home: list[str]) -> pl.DataFrame:
    """For each address of each home what stood there before the first event, at least."""
    blocks, block = numbered(events, [*home, "address"])
    if not events.height:
        return blocks.with_columns(unseen=pl.lit(0, dtype=pl.Int64))
    order = np.argsort(block, kind="stable")
    delta = events["delta_bytes"].to_numpy()[order]
    firsts = np.flatnonzero(np.r_[True, np.diff(block[order]) > 0])
    sums = np.cumsum(delta)
    held = sums - np.repeat(sums[firsts] - delta[firsts], np.diff(np.r_[firsts, events.height]))
    return blocks.with_columns(unseen=pl.Series(np.maximum(-np.minimum.reduceat(held, firsts), 0)))


def _alive(events: pl.DataFrame, position: int) -> Bools:
    """Which allocations of one home stand right after the event at this position; none for −1."""
    count = events.height
    address = events["address"].fill_null(NO_RANGE).to_numpy()
    order = np.argsort(address, kind="stable")
    until = np.full(count, count, dtype=np.int64)
    # A block stands until the next event at its address.
    same = address[order[1:]] == address[order[:-1]]
    until[order[:-1][same]] = order[1:][same]
    alive: Bools = (events["delta_bytes"].to_numpy() > 0) & (np.arange(count) <= position) & (until > position)
    return alive


def _owners(timeline: Timeline, blocks: pl.DataFrame) -> pl.DataFrame:
    """`operator`, `forward` and `phase` of each allocation."""
    ranges = timeline.trace.ranges
    if not ranges.height:
        nothing = pl.lit(None, dtype=pl.String)
        unknown = blocks.with_columns(operator=nothing, forward=nothing, phase=pl.lit(NO_PHASE))
        return unknown.select("operator", "forward", "phase")
    tree, names = timeline.operators, ranges["name"]
    texts = name_categories(names).to_list()
    codes = names.to_physical().to_numpy()
    held = timeline.forest.open_on(
        blocks["process"].to_numpy().astype(np.int64),
        blocks["thread"].to_numpy().astype(np.int64),
        blocks["time_ns"].to_numpy(),
    )
    computing = np.array([text not in _ALLOCATING for text in texts], dtype=np.bool_)[codes] & tree.is_operator
    rows = np.where(computing, np.arange(1, ranges.height + 1), 0)
    inner = tree.of(held)
    caller = np.r_[tree.forest.innermost_match(rows), 0][inner] - 1
    owner = np.where(caller != NO_RANGE, caller, np.where(inner != NO_RANGE, inner, held))
    backward = np.r_[timeline.autograd.in_backward, False][owner]
    forward = np.full(len(owner), NO_RANGE, dtype=np.int64)
    for link in timeline.autograd.forward_chain(np.where(backward, owner, NO_RANGE)):
        forward = np.where(link != NO_RANGE, link, forward)
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    by_name = np.array([numbers[phase_of_name(text)] for text in texts], dtype=np.int64)[codes]
    phases = timeline.forest.outermost_match(by_name)
    if not (phases == numbers["forward"]).any():  # nobody named the forward pass
        phases = np.where((phases == numbers[NO_PHASE]) & forward_pass(timeline), numbers["forward"], phases)
    phase = np.where(backward, numbers["backward"], np.r_[phases, 0][owner])

    def named(rows: Int64s) -> pl.Series:
        return names.gather(pl.Series(rows).replace(NO_RANGE, None)).cast(pl.String)

    of_phase = pl.Series([NO_PHASE, *PHASES], dtype=pl.String).gather(phase)
    return pl.DataFrame({"operator": named(owner), "forward": named(forward), "phase": of_phase})


# --- Device memory over time, where the profile recorded allocations and releases ---
#
# What a program allocated before the recording began is not in the profile. Releases without a recorded allocation
# prove that at least so much stood there already; that amount is added throughout, so that no figure falls below what
# must have been allocated, and is stated as `unseen_bytes`.

MEMORY_EVENTS: Final = table(
    "memory over time",
    "One allocation or release inside the window. `warplens.analysis.allocator.memory_timeline`.",
    "time_ns process device memory delta_bytes",
    column(
        "allocated_bytes",
        help="allocated after the event, by the process, on the GPU, of this kind of memory",
        title="Allocated",
    ),
)

#: Amounts are kept apart by process, device and kind of memory.
_CUDA_HOME: Final = [*_HOME, "memory"]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one kind that one process held on one device during a window."""

    process: int
    device: int | None  #: CUDA ordinal; None where the source does not say
    memory: str | None  #: device, pinned, managed, …; None where the source does not say
    #: begin_bytes, end_bytes: allocated at the window's edges
    begin_bytes: int
    end_bytes: int
    peak_bytes: int  #: the most that was allocated at once inside the window
    peak_ns: int  #: when that amount was first reached
    #: allocations, releases: how many there were in the window
    allocations: int
    releases: int
    unseen_bytes: int  #: part of all these amounts that must have been allocated before the recording began


def memory_timeline(timeline: Timeline, window: Window) -> pl.DataFrame | None:
    """Every allocation and release inside the window with the amount allocated after it (`MEMORY_EVENTS`).

    Returns:
        None where the profile recorded no memory events at all: unknown is not zero.
    """
    events = _events(timeline, "memory", _CUDA_HOME)
    return None if events is None else MEMORY_EVENTS.conform(events.filter(_inside(window)))


def memory_use(timeline: Timeline, window: Window) -> tuple[MemoryUse, ...] | None:
    """What was allocated at the edges of the window, at its peak and when, by process, device and kind of memory.

    Returns:
        One entry for each home of memory with any event in the profile, the largest peak first; None where the
        profile recorded no memory events at all.
    """
    events = _events(timeline, "memory", _CUDA_HOME)
    if events is None:
        return None
    allocated, delta = pl.col("allocated_bytes"), pl.col("delta_bytes")
    before, inside = pl.col("time_ns") < window.start_ns, _inside(window)
    highest = allocated.filter(inside).max()
    use = (
        events.group_by(_CUDA_HOME)
        .agg(
            allocated.filter(before).last().fill_null(pl.col("unseen").first()).alias("begin_bytes"),
            allocated.filter(before | inside).last().alias("end_bytes"),
            highest.alias("peak_bytes"),
            pl.col("time_ns").filter(inside & (allocated == highest)).first().alias("peak_ns"),
            (inside & (delta > 0)).sum().alias("allocations"),
            (inside & (delta < 0)).sum().alias("releases"),
            pl.col("unseen").first().alias("unseen_bytes"),
        )
        .with_columns(
            pl.col("end_bytes").fill_null(pl.col("begin_bytes")),
            # Where nothing in the window exceeds what stood there at its begin, that was the peak.
            pl.max_horizontal("peak_bytes", "begin_bytes"),
            pl.when(pl.col("peak_bytes") > pl.col("begin_bytes"))
            .then("peak_ns")
            .otherwise(window.start_ns)
            .alias("peak_ns"),
        )
        .with_columns(pl.col("memory").cast(pl.String))
        .sort(["peak_bytes", *_CUDA_HOME], descending=[True, False, False, False])
    )
    return tuple(MemoryUse(**home) for home in use.iter_rows(named=True))


def _inside(window: Window) -> pl.Expr:
    return pl.col("time_ns").is_between(window.start_ns, window.end_ns, closed="left")
