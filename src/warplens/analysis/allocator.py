"""PyTorch's allocator over time: memory allocated and reserved, and the owners of the memory in use at the peak.

PyTorch asks CUDA for large segments and hands out parts of them; reserved memory beyond the allocated is cached or
fragmented. Each recorded event states both amounts after it, so the amount allocated before the recording began is
known, but not its owners.

The second half of the module does the same for memory allocated from CUDA itself, where the profiler recorded
`cudaMalloc` and the like.
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

#: Operators that only allocate: the memory belongs to their caller.
_ALLOCATING: Final = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
    | {"aten::resize_", "aten::empty_permuted", "aten::empty_quantized"}
)


@dataclass(frozen=True)
class AllocatorUse:
    """Memory that one process had allocated on one device during a window."""

    process: int
    device: int | None  #: ordinal of the GPU; None for host memory
    #: begin_bytes, end_bytes: in use at the window's edges
    begin_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_ns: int  #: when the peak was first reached
    reserved_bytes: int | None  #: reserved by the allocator at the peak; None where it was not recorded
    most_reserved_bytes: int | None
    #: allocations, releases: how many there were in the window
    allocations: int
    releases: int
    allocated_bytes: int  #: sum of all allocations in the window (churn)
    unseen_bytes: int  #: part of the peak that was allocated before the recording began; its owners are unknown
    mismatches: int  #: events of the profile whose own running total differs from the sum of the events before it

    @property
    def idle_bytes(self) -> int | None:
        """Reserved at the peak but not allocated: cached, or lost to fragmentation."""
        return None if self.reserved_bytes is None else max(0, self.reserved_bytes - self.peak_bytes)

    @property
    def known_share(self) -> float | None:
        """Share of the peak whose allocation is in the recording; None where nothing was allocated."""
        return 1 - self.unseen_bytes / self.peak_bytes if self.peak_bytes else None


@dataclass(frozen=True, eq=False)
class Allocations:
    """The allocator's events in one window; each result is computed when first needed."""

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
        """Memory in use at the window's edges and at its peak, by process and device, GPUs first."""
        uses = []
        for (process, device), events in self._events.group_by(_HOME, maintain_order=True):
            time = events["time_ns"].to_numpy()
            allocated = events["allocated_bytes"].to_numpy()
            first, stop = np.searchsorted(time, (self._window.start_ns, self._window.end_ns)).tolist()
            if self._window.kind == "all":
                first, stop = 0, len(time)
            initial_bytes = int(allocated[0] - events["delta_bytes"][0])
            bytes_at_begin = int(allocated[first - 1]) if first else initial_bytes
            window_events = events[first:stop]
            peak_row = first + int(np.argmax(allocated[first:stop])) if stop > first else first - 1
            bytes_at_peak = int(allocated[peak_row]) if peak_row >= 0 else initial_bytes
            if bytes_at_peak <= bytes_at_begin:  # nothing in the window exceeds what stood there at its begin
                peak_row, bytes_at_peak = first - 1, bytes_at_begin
            delta, most_reserved = window_events["delta_bytes"], number(window_events["reserved_bytes"].max())
            uses.append(
                AllocatorUse(
                    process=int(str(process)),
                    device=None if device is None else int(str(device)),
                    begin_bytes=bytes_at_begin,
                    end_bytes=int(allocated[stop - 1]) if stop else initial_bytes,
                    peak_bytes=bytes_at_peak,
                    peak_ns=int(time[peak_row]) if peak_row >= first else self._window.start_ns,
                    # PyTorch's allocator of host memory holds nothing back; it reports 0.
                    reserved_bytes=None if device is None else events["reserved_bytes"][max(peak_row, 0)],
                    most_reserved_bytes=None if device is None or most_reserved is None else int(most_reserved),
                    allocations=int((delta > 0).sum()),
                    releases=int((delta < 0).sum()),
                    allocated_bytes=int(delta.filter(delta > 0).sum()),
                    unseen_bytes=bytes_at_peak - int(events["delta_bytes"].to_numpy()[_alive(events, peak_row)].sum()),
                    mismatches=int(events["differs"].sum()),
                )
            )
        return tuple(sorted(uses, key=lambda use: (use.device is None, -use.peak_bytes, use.process, use.device or 0)))

    @cached_property
    def alive_at_peak(self) -> pl.DataFrame:
        """Owners of the memory in use at the peak of each process and device (`ALIVE`), the largest groups first.

        A block belongs to the innermost operator open on its thread when it was allocated, leaving aside operators that
        only allocate (`aten::empty`); without an operator, to the innermost annotation.
        """
        parts = [ALIVE.empty()]
        for use in self.use:
            process, device = pl.lit(use.process, dtype=pl.Int32), pl.lit(use.device, dtype=pl.Int32)
            events = self._events.filter((pl.col("process") == process) & pl.col("device").eq_missing(device))
            until_peak = np.flatnonzero((events["time_ns"] <= use.peak_ns).to_numpy())
            blocks = events[np.flatnonzero(_alive(events, int(until_peak[-1]) if len(until_peak) else -1))]
            owned = _owners(self._timeline, blocks).with_columns(blocks["delta_bytes"].alias("bytes"))
            groups = owned.group_by("operator", "forward", "phase", maintain_order=True).agg(
                pl.len().cast(pl.Int64).alias("blocks"), pl.col("bytes").sum(), from_before=pl.lit(value=False)
            )
            before = pl.DataFrame({"phase": [NO_PHASE], "bytes": [use.unseen_bytes], "from_before": [True]})
            alive = pl.concat([groups, before.filter(pl.col("bytes") > 0)], how="diagonal").with_columns(
                process=process,
                device=device,
                share=ratio(pl.col("bytes"), pl.lit(use.peak_bytes)),
            )
            parts.append(ALIVE.conform(alive).sort("bytes", "operator", descending=[True, False]))
        return pl.concat(parts)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Allocations, releases and peak of each step of the window (`ALLOCATIONS_BY_STEP`)."""
        numbers, starts, ends = self._window.step_edges
        time = self._events["time_ns"].to_numpy()
        step = np.searchsorted(starts, time, side="right") - 1
        in_step = (step >= 0) & (time < np.r_[ends, 0][step])
        delta, allocated = pl.col("delta_bytes"), pl.col("allocated_bytes")
        steps = (
            self._events.filter(pl.Series(in_step))
            .with_columns(pl.Series("step", numbers[step[in_step]]))
            .group_by("step", *_HOME, maintain_order=True)
            .agg(
                allocations=(delta > 0).sum(),
                releases=(delta < 0).sum(),
                allocated_bytes=delta.filter(delta > 0).sum(),
                released_bytes=delta.filter(delta < 0).sum().neg(),
                # Memory in use when the step began counts as well.
                peak_bytes=pl.max_horizontal(allocated.max(), allocated.first() - delta.first()),
            )
        )
        return ALLOCATIONS_BY_STEP.conform(steps).sort("step", *_HOME, nulls_last=True)


def allocations(timeline: Timeline, window: Window) -> Allocations | None:
    """The framework's allocator in a window; None (not zero) where the profile recorded no allocations."""
    events = _events(timeline, "allocations", _HOME)
    return None if events is None else Allocations(timeline, window, events)


def _events(timeline: Timeline, kind: Literal["allocations", "memory"], home: list[str]) -> pl.DataFrame | None:
    """All events in time order with the amount allocated after each, summed by the columns `home`.

    `differs` marks events whose recorded total is not the sum of the events so far. `unseen` is the amount released
    without a recorded allocation, which must have been allocated before the recording.
    """
    if kind not in timeline.trace.capture.recorded:
        return None
    events: pl.DataFrame = getattr(timeline.trace, kind).sort("time_ns", maintain_order=True)
    delta = pl.col("delta_bytes")
    recorded = pl.col("allocated_bytes") if kind == "allocations" else pl.lit(None, dtype=pl.Int64)
    summed = delta.cum_sum().over(home)
    # The initial amount is the first event's recorded total less its own change. Where no total was recorded, it is the
    # least with which no address falls below zero.
    unseen = _unseen_blocks(events, home).group_by(home).agg(pl.col("unseen").sum())
    events = events.join(unseen, on=home, how="left", nulls_equal=True, maintain_order="left")
    before = pl.coalesce((recorded - delta).first().over(home), pl.col("unseen"))
    return events.with_columns((summed + before).alias("summed")).with_columns(
        (recorded.is_not_null() & (recorded != pl.col("summed"))).alias("differs"),
        pl.coalesce(recorded, pl.col("summed")).alias("allocated_bytes"),
    )


def _unseen_blocks(events: pl.DataFrame, home: list[str]) -> pl.DataFrame:
    """For each address of each home, the least amount that must have been allocated before the first event."""
    blocks, block = numbered(events, [*home, "address"])
    if not events.height:
        return blocks.with_columns(unseen=pl.lit(0, dtype=pl.Int64))
    order = np.argsort(block, kind="stable")
    delta = events["delta_bytes"].to_numpy()[order]
    firsts = np.flatnonzero(np.r_[True, np.diff(block[order]) > 0])
    sums = np.cumsum(delta)
    running = sums - np.repeat(sums[firsts] - delta[firsts], np.diff(np.r_[firsts, events.height]))
    return blocks.with_columns(unseen=pl.Series(np.maximum(-np.minimum.reduceat(running, firsts), 0)))


def _alive(events: pl.DataFrame, position: int) -> Bools:
    """Mask of the allocations of one home in use right after the event at this position; none for −1."""
    count = events.height
    address = events["address"].fill_null(NO_RANGE).to_numpy()
    order = np.argsort(address, kind="stable")
    released_at = np.full(count, count, dtype=np.int64)
    # A block is in use until the next event at its address.
    same_block = address[order[1:]] == address[order[:-1]]
    released_at[order[:-1][same_block]] = order[1:][same_block]
    alive: Bools = (events["delta_bytes"].to_numpy() > 0) & (np.arange(count) <= position) & (released_at > position)
    return alive


def _owners(timeline: Timeline, blocks: pl.DataFrame) -> pl.DataFrame:
    """`operator`, `forward` and `phase` of each allocation."""
    ranges = timeline.trace.ranges
    if not ranges.height:
        null_text = pl.lit(None, dtype=pl.String)
        unknown = blocks.with_columns(operator=null_text, forward=null_text, phase=pl.lit(NO_PHASE))
        return unknown.select("operator", "forward", "phase")
    tree, names = timeline.operators, ranges["name"]
    texts = name_categories(names).to_list()
    codes = names.to_physical().to_numpy()
    innermost = timeline.forest.open_on(
        blocks["process"].to_numpy().astype(np.int64),
        blocks["thread"].to_numpy().astype(np.int64),
        blocks["time_ns"].to_numpy(),
    )
    computing = np.array([text not in _ALLOCATING for text in texts], dtype=np.bool_)[codes] & tree.is_operator
    computing_label = np.where(computing, np.arange(1, ranges.height + 1), 0)
    inner_op = tree.of(innermost)
    caller = np.r_[tree.forest.innermost_match(computing_label), 0][inner_op] - 1
    owner = np.where(caller != NO_RANGE, caller, np.where(inner_op != NO_RANGE, inner_op, innermost))
    backward = np.r_[timeline.autograd.in_backward, False][owner]
    forward = np.full(len(owner), NO_RANGE, dtype=np.int64)
    for link in timeline.autograd.forward_chain(np.where(backward, owner, NO_RANGE)):
        forward = np.where(link != NO_RANGE, link, forward)
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    phase_label = np.array([numbers[phase_of_name(text)] for text in texts], dtype=np.int64)[codes]
    phases = timeline.forest.outermost_match(phase_label)
    if not (phases == numbers["forward"]).any():  # no range is named after the forward pass
        phases = np.where((phases == numbers[NO_PHASE]) & forward_pass(timeline), numbers["forward"], phases)
    phase = np.where(backward, numbers["backward"], np.r_[phases, 0][owner])

    def names_of(computing_label: Int64s) -> pl.Series:
        return names.gather(pl.Series(computing_label).replace(NO_RANGE, None)).cast(pl.String)

    phase_names = pl.Series([NO_PHASE, *PHASES], dtype=pl.String).gather(phase)
    return pl.DataFrame({"operator": names_of(owner), "forward": names_of(forward), "phase": phase_names})


# --- Device memory over time, where the profile recorded allocations and releases ---
#
# Allocations made before the recording began are not in the profile. Releases without a recorded allocation prove that
# at least that much was in use before; the amount is added throughout, so that no figure falls below what must have
# been allocated, and is stated as `unseen_bytes`.

MEMORY_EVENTS: Final = table(
    "memory over time",
    "One allocation or release of memory of CUDA. `warplens memory --by event`, where no allocator was recorded.",
    "time_ns process device memory delta_bytes",
    column(
        "allocated_bytes",
        help="allocated after the event, by the process, on the GPU, of this kind of memory",
        title="Allocated",
    ),
)

#: Amounts are summed separately by process, device and kind of memory.
_CUDA_HOME: Final = [*_HOME, "memory"]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one kind that one process had allocated on one device during a window."""

    process: int
    device: int | None  #: CUDA ordinal; None where the source does not say
    memory: str | None  #: device, pinned, managed, …; None where the source does not say
    #: begin_bytes, end_bytes: allocated at the window's edges
    begin_bytes: int
    end_bytes: int
    peak_bytes: int  #: the most that was allocated at once inside the window
    peak_ns: int  #: when the peak was first reached
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
    """Memory allocated at the window's edges and at its peak, by process, device and kind of memory.

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
            # Where nothing in the window exceeds the amount at its begin, that was the peak.
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
