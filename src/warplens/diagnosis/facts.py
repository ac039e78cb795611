"""Input of the rules: every piece of GPU work with the wall time that it owns, and every pause with its causes.

Work and pauses add up to the window, to the nanosecond. A piece of work owns the time in which it alone decides whether
the GPU is busy (with the precedence of `warplens.analysis.timebudget`); a pause belongs to the work that ended it.
Therefore any selection of both, such as a phase of a training step, has a wall time, and disjoint selections add up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.api import IS_PAGEABLE
from warplens.analysis.categories import CATEGORIES, CLASSES, OTHER, categories_of, classify_names
from warplens.analysis.frames import Spent, all_equal, numbered, once, sum_by
from warplens.analysis.headroom import PIECES, Headroom
from warplens.analysis.headroom.work import SOURCE
from warplens.analysis.intervals import Intervals, union
from warplens.analysis.phases import PHASE, phase_of_work
from warplens.analysis.prediction import Change, Prediction
from warplens.analysis.timebudget import IDLE_CAUSES, TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import PHASES, Window, unnumbered_name
from warplens.diagnosis.devices import IN_TURN, UNEVEN, Sharing, sharings, split_causes
from warplens.diagnosis.evidence import (
    COUNTED,
    CounterVerdicts,
    HostLoad,
    host_load,
    mark_loops,
    mark_optimizers,
    needed_ns,
)
from warplens.diagnosis.findings import ISSUING, UnprofiledStep
from warplens.diagnosis.program import Program
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.unprofiled import Gain, HostSpeed, Less, Pace
from warplens.patterns import lazy_pattern
from warplens.profile import Device, Note
from warplens.profile.columns import column, table
from warplens.profile.peaks import Peaks, peaks_of
from warplens.profile.schema import Bools, Column, Float64s, Int64s, Table, name_categories
from warplens.profile.trace import WORK_KINDS

#: Labels of work other than kernels; a copy of another direction is `other`.
_OTHER_LABELS: Final = (
    *("host-to-device", "device-to-host", "device-to-device", "peer-to-peer", "host-to-host"),
    *("memset", "graph"),
)
_KIND: Final = pl.Enum(list(WORK_KINDS))

WORK: Final = table(
    "diagnosis: work",
    "One piece of work that runs in the window. `warplens.diagnosis.facts`.",
    column("kind", dtype=_KIND, help="kernel, copy, memset, graph launch"),
    "row start_ns end_ns",
    Column("own_ns", pl.Int64, "wall time that it owns; sums to the busy time"),
    "device stream process",
    Column("launch_start_ns", pl.Int64, "begin of the call that issued it; null where that was not recorded"),
    Column("launch_end_ns", pl.Int64, "end of it"),
    column("range", dtype=pl.Int64, help="row of the innermost range around that call"),
    column("phase", dtype=PHASE),
    column("label", dtype=pl.Enum([*CATEGORIES, *_OTHER_LABELS]), help="category of a kernel, direction of a copy"),
    CLASSES.column("precision"),
    "tensor_cores",
    Column("vector_product", pl.Boolean, "a product of a matrix with a vector, by its name"),
    Column("fill_share", pl.Float64, "blocks of the grid over multiprocessors, at most 1; null where not recorded"),
    "bytes",
    Column("pageable", pl.Boolean, "whether a copy has a side in pageable memory"),
    COUNTED.columns,
    row="in the table of that kind",
    bytes="of a copy",
)

GAPS: Final = table(
    "diagnosis: pauses",
    "One pause of a GPU: its interval, and the work that ended it. `warplens.diagnosis.facts`.",
    "start_ns end_ns device",
    column("range", dtype=pl.Int64, help="row of the innermost range around the launch of the work that ended it"),
    column("phase", dtype=PHASE),
)

#: Columns of `Timeline.work` that `WORK` takes over.
_TAKEN_OVER: Final = (
    *("kind", "row", "start_ns", "end_ns", "device", "stream", "process"),
    *("launch_start_ns", "launch_end_ns", "range"),
)

#: Products with a vector read each number of the matrix once, so no arithmetic unit makes them faster.
_VECTOR_PRODUCT: Final = lazy_pattern(r"gemv|dot_kernel|\bger_", re.IGNORECASE)

_START_LATENCY: Final = "start-latency"

#: Causes of a late host. The GPU's own latency after such a pause counts to them as well: work queued in time would
#: have hidden it.
_LATE: Final[tuple[str, ...]] = (
    "launch",
    "graph-launch",
    "refill",
    "synchronization",
    "allocation",
    "blocking-copy",
    "host",
)


@dataclass(eq=False)
class Facts:
    """The window as the rules see it.

    `diagnose` adds the predictions, which are made beside it, and drops the results of rules before
    `hand_over_to_phases` takes away what only the whole window needs.
    """

    #: timeline, window: the profile and the analysed part of it
    timeline: Timeline
    window: Window
    work: pl.DataFrame  #: `WORK`
    gaps: pl.DataFrame  #: `GAPS`
    #: cause of `IDLE_CAUSES` → its time in each pause; waits for another GPU of the process are a cause of `devices`
    causes: Mapping[str, Spent]
    host: HostLoad  #: activity of the launching threads
    devices: tuple[Device, ...] = ()  #: the GPUs that worked, as far as the profile describes them
    predictions: Mapping[str, Prediction] = field(default_factory=dict)  #: modelled step times, by change
    thresholds: Thresholds = DEFAULTS  #: the limits that rules compare with
    phase: str | None = None  #: the phase that these facts describe; None for the whole window
    attributed_share: float | None = None  #: share of the idle time of the whole window with a recorded cause
    notes: tuple[Note, ...] = ()  #: gaps in what the profile recorded
    #: the headroom of each GPU over the whole window, computed on first use
    headrooms: Callable[[], Sequence[Headroom]] = tuple
    budgets: tuple[TimeBudget, ...] = ()  #: the time budgets of the whole window
    sharings: tuple[Sharing, ...] = ()  #: processes that drive several GPUs
    whole: Facts | None = None  #: for a phase, the facts of the whole window
    #: part, gap_part: for a phase, its rows in `whole.work` and `whole.gaps`
    part: Int64s = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    gap_part: Int64s = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    #: results of functions marked `once` or `remembered`
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def lengths(self) -> Int64s:
        """Duration of each piece of work."""
        return (self.work["end_ns"] - self.work["start_ns"]).to_numpy()

    @cached_property
    def pause_lengths(self) -> Int64s:
        """Duration of each pause."""
        return (self.gaps["end_ns"] - self.gaps["start_ns"]).to_numpy()

    @cached_property
    def peaks(self) -> tuple[Peaks, ...]:
        """The peak rates of the GPUs, as far as they are known."""
        return tuple(peaks for device in self.devices if (peaks := peaks_of(device)) is not None)

    @cached_property
    def busy_ns(self) -> int:
        """Time during which GPUs worked."""
        return int(self.work["own_ns"].sum())

    @cached_property
    def idle_ns(self) -> int:
        """Time during which GPUs were idle."""
        return int(self.pause_lengths.sum())

    @property
    def no_share(self) -> Float64s:
        """A share of 0 of each piece of work, which takes no memory."""
        return np.broadcast_to(0.0, self.work.height)

    @property
    def own_idle_ns(self) -> int:
        """Idle time without that in which a GPU waits for another one of its process, which only sharing removes."""
        return self.idle_ns - self.idle(UNEVEN, IN_TURN)

    @property
    def wall_ns(self) -> int:
        """Busy plus idle time: the window's length times the number of GPUs that worked, or a phase's part of that."""
        return self.busy_ns + self.idle_ns

    @property
    def busy_share(self) -> float:
        """Busy time over wall time."""
        return self.busy_ns / self.wall_ns if self.wall_ns else 0.0

    @cached_property
    def at_roof(self) -> pl.DataFrame:
        """Operations, bytes and time at the roofs of each row of `work` (`PIECES`); null for links, which have no roof.

        Counters that measured a kernel near the peak of a pipe or of memory take precedence over its modelled work.
        """
        if self.whole is not None:
            return self.whole.at_roof[self.part]
        parts = [headroom.pieces for headroom in self.headrooms()]
        pieces = pl.concat(parts, rechunk=len(parts) > 1) if parts else PIECES.empty().clear(self.work.height)
        near = self.work["bound_share"] >= self.thresholds.roof_share
        if not near.any():
            return pieces
        return pieces.with_columns(
            pl.when(near).then("owned_ns").otherwise("roof_ns").alias("roof_ns"),
            pl.when(near).then(pl.lit("counters", dtype=SOURCE)).otherwise("known").alias("known"),
        )

    @cached_property
    def known_work_share(self) -> float:
        """Share of the busy time of work whose operations and bytes are known, as in `warplens headroom`."""
        known = self.at_roof.select(pl.col("owned_ns").filter(pl.col("known") != "none").sum()).item()
        return int(known) / self.busy_ns if self.busy_ns else 0.0

    @cached_property
    def above_roof_share(self) -> float:
        """Share of the wall time that work takes above its practical roof; unknown work counts as none."""
        above = self.at_roof.select((pl.col("owned_ns") - pl.col("roof_ns")).sum()).item()
        # If all work is at its roof, the sum is a rounding error of either sign.
        return max(0.0, float(above)) / self.wall_ns if self.wall_ns else 0.0

    @cached_property
    def to_roof_share(self) -> float:
        """Headroom to the practical roof over wall time: `above_roof_share`, idle time and links."""
        return 1 - float(self.at_roof["roof_ns"].sum()) / self.wall_ns if self.wall_ns else 0.0

    @property
    def steps(self) -> float:
        """Steps in the window, with the parts of those that it cuts.

        1 if it has no whole step, so that quantities per step are quantities per window.
        """
        return max(1, self.window.step_count)

    @cached_property
    def processes(self) -> int:
        """Processes whose work runs in the window."""
        if self.whole is not None:
            return self.whole.processes
        return max(1, self.timeline.work_in(self.window)["process"].n_unique())

    @property
    def process_steps(self) -> float:
        """Steps of all processes: host figures per step are those of one process, the mean of several."""
        return self.steps * self.processes

    @property
    def sure(self) -> bool:
        """Whether the window has several steps, so that its numbers are typical of the workload."""
        return len(self.window.steps) > 1

    @property
    def is_part(self) -> bool:
        """Whether these facts describe a phase, or the work of ranges of one name, and not a whole window."""
        return self.phase is not None or self.window.range_name is not None

    def idle(self, *causes: str) -> int:
        """Idle time of these causes; 0 for unknown causes."""
        return sum(self.causes[cause].total for cause in causes if cause in self.causes)

    @property
    def issuing_ns(self) -> int:
        """Idle time in which the host issued work, which tracing slows down."""
        return self.idle(*ISSUING)

    @property
    def other_ns(self) -> int:
        """Idle time of the host or the program in which it did not issue work."""
        return max(self.idle_ns - self.issuing_ns - self.idle("submission", "profiler"), 0)

    @cached_property
    def host_needed_ns(self) -> int:
        """Host time to issue the work, without waits for a busy GPU."""
        step = self.program.step if self.is_part else np.zeros(self.work.height, dtype=np.int32)
        needed = needed_ns(self.host, self.work, step)
        return min(needed, self.wall_ns)

    def unprofiled_ns(self, saved_ns: int = 0) -> int:
        """Duration of the window without a profiler, if the GPU's work took `saved_ns` less.

        Host and GPU work in parallel, and the slower one sets the pace. Pauses during which the host does not issue
        work are added.
        """
        host = int(self.unprofiled_host_ns)
        return max(self.busy_ns - saved_ns, min(host, self.wall_ns - self.other_ns)) + self.other_ns

    @property
    def unprofiled_share(self) -> float:
        """The host's time to issue work without this profiler, over that with it."""
        return self.timeline.host_share.usual

    @property
    def unprofiled_host_ns(self) -> float:
        """Host time to issue the work without a profiler; below `busy_ns`, the host is ahead of the GPU."""
        return self.unprofiled_share * self.host_needed_ns

    @property
    def added_ns(self) -> int:
        """Idle time that the profiler added by slowing down launches and by blocking the host."""
        return int((1 - self.unprofiled_share) * self.issuing_ns) + self.idle("profiler")

    @cached_property
    def alike(self) -> bool:
        """Whether one GPU worked, or one for each process: then the process with the most work stands for all."""
        pairs, _ = numbered(self.work, ("process", "device"))
        return pairs["device"].n_unique() == 1 or pairs.height == pairs["process"].n_unique()

    @cached_property
    def pace(self) -> Pace | None:
        """The schedule of the window at the host's pace without a profiler; None if it cannot be replayed.

        With several processes, it is that of the one with the most work.
        """
        if self.is_part or not self.alike:
            return None
        return Pace.of(self.timeline, self.window)

    @cached_property
    def unprofiled_step(self) -> UnprofiledStep | None:
        """A step without the profiler (the window, if it has none) of the process with the most work, on each GPU.

        GPU work takes as long without a profiler, and no step is shorter than that; the profiler makes none shorter.
        """
        if self.pace is None:
            return None
        share = self.timeline.host_share
        if share.step_ns is not None:
            host_share = share.usual if share.shows else None
            return UnprofiledStep(share.step_ns, share.step_ns, share.step_ns, measured=True, host_share=host_share)
        busy = round(int(self.work["own_ns"].sum()) / (self.steps * max(self.work["device"].n_unique(), 1)))
        recorded = max(round(self.window.duration_ns / self.steps), busy)
        times = [min(max(round(self.pace.duration_ns(speed) / self.pace.steps), busy), recorded) for speed in HostSpeed]
        return UnprofiledStep(times[0], min(times), max(times), measured=False, host_share=share.usual)

    def replayed(
        self,
        *changes: Change,
        time: Float64s | None = None,
        calls: Float64s | None = None,
        residual_share: float = 0.0,
        stalls: float = 1.0,
        elsewhere: bool = False,
        waits: bool = False,
        direction: str | None = None,
        staying: Bools | None = None,
    ) -> Gain | None:
        """Gain of changes without a profiler, by a replay; None if the window cannot be replayed.

        Args:
            changes: of `prediction.CHANGES`, made together.
            time: share of the time of each piece of work that goes away.
            calls: share of the host's time for issuing each piece that goes away.
            residual_share: share of the saved time that is expected to stay.
            stalls: share of the host's other time before that work that goes away like its calls.
            elsewhere: whether the host's other time before other work shrinks with the number of launches, because it
                is spent on the results, the graph and the parameters of what is launched.
            waits: whether the host no longer waits for the GPU between calls that go away, even in part.
            direction: of the copies that the changes concern, as in the `copies` table; None for both.
            staying: pauses of the window in which the host's long pauses stay.
        """
        if self.pace is None:
            return None
        spans = None if staying is None else union(Intervals.of(self.gaps.filter(pl.Series(staying))))
        if time is None and calls is None:
            return self.pace.gain(*changes, residual_share=residual_share, direction=direction, staying=spans)

        rows = self.replayed_rows

        def of_schedule(shares: Float64s | None) -> Float64s:
            return np.zeros(len(rows)) if shares is None or not len(shares) else np.where(rows >= 0, shares[rows], 0.0)

        less = Less(of_schedule(time), of_schedule(calls), stalls, elsewhere, waits)
        return self.pace.gain(*changes, less=less, residual_share=residual_share, direction=direction, staying=spans)

    @cached_property
    def replayed_rows(self) -> Int64s:
        """Row in `work` of each piece of the replayed schedule; −1 for none."""
        if self.pace is None:
            return np.empty(0, dtype=np.int64)
        row_in_work = np.full(self.timeline.work.height, -1, dtype=np.int64)
        row_in_work[self.rows] = np.arange(self.work.height)
        return row_in_work[self.pace.usual.work_row]

    @cached_property
    def copies(self) -> pl.DataFrame:
        """The copies among `work`."""
        columns = ("label", "start_ns", "end_ns", "bytes", "pageable")
        return self.work.select(columns)[np.flatnonzero(self.program.having("kind", "copy"))]

    @cached_property
    def program(self) -> Program:
        """The work in stream order, with the properties that names and grids of kernels reveal."""
        return Program(self)

    @property
    def of_nvidia(self) -> bool:
        """Whether counters of the recorded GPUs come from Nsight Compute."""
        return self.timeline.trace.capture.recorder.counters == "ncu"

    @cached_property
    def trains(self) -> bool:
        """Whether ranges, operators or kernel names show a backward pass or an optimizer."""
        if self.whole is not None:
            return self.whole.trains
        phases = self.work["phase"].is_in(["backward", "optimizer"]).any()
        differentiates = self.program.marked("differentiating").any()
        return bool(phases or differentiates or self.program.labelled("optimizer").any())

    @cached_property
    def compiled(self) -> bool:
        """Whether a compiler generated most of the work that is no product: compiling it again would gain nothing."""
        program = self.program
        generated = program.marked("generated")
        others = generated | program.passes
        return bool(program.own_ns[generated].sum() > self.thresholds.dominant_share * program.own_ns[others].sum())

    @cached_property
    def graphed(self) -> bool:
        """Whether CUDA graphs launch most of the kernels already: several kernels then share one launching call."""
        graph_ns = self.own_ns_having("kind", "graph")
        if graph_ns > self.thresholds.dominant_share * self.busy_ns:
            return True
        launched = self.work.select("process", "launch_start_ns").filter(self.work["kind"] == "kernel").drop_nulls()
        is_one_process = all_equal(launched["process"])
        sharing = 0
        for process in launched["process"].unique():
            of_process = launched if is_one_process else launched.filter(pl.col("process") == process)
            starts = of_process["launch_start_ns"].to_numpy()
            starts = starts if (starts[1:] >= starts[:-1]).all() else np.sort(starts)
            same = starts[1:] == starts[:-1]
            sharing += int((np.r_[same, False] | np.r_[False, same]).sum())
        return launched.height > 0 and sharing > self.thresholds.dominant_share * launched.height

    @cached_property
    def waits_inside(self) -> bool:
        """Whether the host waits inside the steps, and not only at their ends."""
        return self.host.waits > self.normal_waits

    @property
    def normal_waits(self) -> float:
        """So many waits of the window may all be at the ends of its steps.

        Steps that no range names may be anything that repeats, such as a layer: a wait in each of them counts as one
        inside.
        """
        named = self.timeline.steps.source == "range" and len(self.window.steps) > 0
        return self.process_steps * (self.thresholds.normal_waits_per_step if named else 0.5)

    @property
    def waits_crowded(self) -> bool:
        """Whether the host waits inside the steps after every few launches, so that it never gets ahead."""
        limits, waits = self.thresholds, self.host.waits
        crowded = self.work.height <= 2 * limits.launches_behind_wait * waits
        return self.waits_inside and crowded and waits >= limits.launches_behind_wait * self.process_steps

    @property
    def rows(self) -> Int64s:
        """Row in `Timeline.work` of each row of `work`. Not cached: it is large and rarely needed."""
        if self.whole is not None:
            return self.whole.rows[self.part]
        parts = [_rows(self.timeline, budget) for budget in self.budgets]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def own_ns(self, which: pl.Expr) -> int:
        """Wall time owned by the work for which an expression over `WORK` holds."""
        return int(self.work.select(pl.col("own_ns").filter(which).sum()).item())

    @once
    def own_ns_having(self, column: str, *values: str) -> int:
        """Wall time owned by the work with one of these values in an enumeration column."""
        return int(self.program.own_ns[np.flatnonzero(self.program.having(column, *values))].sum())

    def forget(self) -> None:
        """Frees cached answers; they are computed again if needed."""
        self.cache.clear()
        for name in ("pace", "replayed_rows", "copies", "lengths"):
            vars(self).pop(name, None)

    def wall_of_phase(self, phase: str) -> int:
        """The time of the work of one phase, and of the pauses that it ended."""
        pauses = self.pause_lengths[(self.gaps["phase"] == phase).to_numpy()]
        return self.own_ns_having("phase", phase) + int(pauses.sum())

    def hand_over_to_phases(self) -> list[Facts]:
        """The facts of each phase that has any time: its work, and the pauses that it ended.

        Rows are moved, not copied, so that those of a million kernels exist once. Afterwards the window has only the
        columns that phases read from the whole.
        """
        phases = [phase for phase in PHASES if self.wall_of_phase(phase)]
        rows, pauses = (
            [np.flatnonzero((frame["phase"] == phase).to_numpy()) for phase in phases]
            for frame in (self.work, self.gaps)
        )
        parts = [
            replace(
                self,
                part=part,
                gaps=self.gaps[gap_part],
                gap_part=gap_part,
                causes={cause: spent.among(gap_part) for cause, spent in self.causes.items()},
                phase=phase,
                whole=self,
                predictions={},
                cache={},
            )
            for phase, part, gap_part in zip(phases, rows, pauses, strict=True)
        ]
        work, kept = self.work, ("kind", "own_ns", "phase", "label", "precision", "bound_share")
        self.program.give_up()
        for facts in (self, *parts):
            facts.work = work.select(kept)
        self.gaps, self.causes = self.gaps.select("start_ns", "end_ns", "phase"), {}
        columns_of_parts: list[list[pl.DataFrame]] = [[] for _ in parts]
        rows_of_parts = [pl.Series(part, dtype=pl.UInt32) for part in rows]
        for name in work.columns:  # one column at a time, so that only one exists twice
            column, work = work.select(name), work.drop(name)
            for columns, part in zip(columns_of_parts, rows_of_parts, strict=True):
                columns.append(column[part])
        for facts, columns in zip(parts, columns_of_parts, strict=True):
            facts.work = pl.concat(columns, how="horizontal")
        return parts


def gather(
    timeline: Timeline,
    window: Window,
    counted: CounterVerdicts | None = None,
    thresholds: Thresholds = DEFAULTS,
    budgets: Sequence[TimeBudget] | None = None,
    notes: Sequence[Note] = (),
    headrooms: Callable[[], Sequence[Headroom]] = tuple,
) -> Facts:
    """The facts of a window, for the rules."""
    budgets = time_budgets(timeline, window) if budgets is None else budgets
    # These come first because they free much memory, which the rest then reuses.
    host, phases = host_load(timeline, window, thresholds.readback_bytes), _phases(timeline, window)
    work = _contiguous([_work(timeline, budget, phases, counted) for budget in budgets], WORK)
    gaps = _contiguous([_gaps(timeline, budget, phases) for budget in budgets], GAPS)
    causes = _causes(budgets)
    shared = () if len(budgets) < 2 or window.range_name else tuple(sharings(timeline, window, work, gaps, causes))
    if shared:
        causes = split_causes(causes, (gaps["end_ns"] - gaps["start_ns"]).to_numpy(), shared)
    idle = sum(budget.idle_ns for budget in budgets)
    unknown = sum(budget.gaps.totals["unknown"] for budget in budgets)
    ordinals = work["device"].unique().sort().to_list()
    devices = (timeline.trace.capture.device(ordinal) for ordinal in ordinals)
    return Facts(
        timeline=timeline,
        window=window,
        work=work,
        gaps=gaps,
        causes=causes,
        host=host,
        devices=tuple(device for device in devices if device is not None),
        thresholds=thresholds,
        attributed_share=1 - unknown / idle if idle else None,
        notes=tuple(notes),
        headrooms=headrooms,
        budgets=tuple(budgets),
        sharings=shared,
    )


def _contiguous(parts: list[pl.DataFrame], declared: Table) -> pl.DataFrame:
    """The rows of all parts in one chunk, so that columns become arrays without a copy."""
    return parts[0].rechunk() if len(parts) == 1 else pl.concat([declared.empty(), *parts], rechunk=True)


def _phases(timeline: Timeline, window: Window) -> pl.Series:
    """The phase of each row of `Timeline.work`.

    Kernels reveal an optimizer that no range names, and other loops over the parameters. Work that a range or gradient
    operators place in a forward or backward pass is neither.
    """
    phases = phase_of_work(timeline).cast(PHASE)
    named = (phases == "optimizer").any()
    marked = mark_loops(timeline, window) & ~phases.is_in(["forward", "backward"]).to_numpy()
    if not named:
        marked |= mark_optimizers(timeline, window)
    return constant("optimizer", len(phases), PHASE).zip_with(pl.Series(marked), phases) if marked.any() else phases


def constant(value: str, count: int, dtype: pl.DataType) -> pl.Series:
    """A series with one repeated value."""
    return pl.Series([value], dtype=dtype).new_from_index(0, count)


def _work(timeline: Timeline, budget: TimeBudget, phases: pl.Series, counted: CounterVerdicts | None) -> pl.DataFrame:
    """The work of one device that owns time of the window."""
    rows = _rows(timeline, budget)
    if not len(rows):
        return WORK.empty()
    # The rows are nearly always contiguous; a slice copies nothing.
    is_slice = len(rows) == int(rows[-1]) - int(rows[0]) + 1
    every = timeline.work.select(_TAKEN_OVER)
    work = every.slice(int(rows[0]), len(rows)) if is_slice else every[rows]
    phase = phases.slice(int(rows[0]), len(rows)) if is_slice else phases.gather(rows)
    own = pl.Series("own_ns", budget.owned_ns[budget.owned_ns > 0])
    work = work.with_columns(phase.alias("phase"), _labels(timeline, work), own)
    # A column that the profile does not have is a literal null, which takes no memory.
    absent = [pl.lit(None, dtype=WORK.schema[name]).alias(name) for name in ("fill_share", *COUNTED.names)]
    properties = _properties(timeline, work, counted).get_columns()
    return WORK.conform(work.with_columns(absent).with_columns(properties))


def _rows(timeline: Timeline, budget: TimeBudget) -> Int64s:
    """The rows of `Timeline.work` that own time of a budget."""
    return timeline.rows_on(budget.device, budget.owned_ns > 0)


def _labels(timeline: Timeline, work: pl.DataFrame) -> pl.Series:
    """The category of each kernel, the direction of each copy."""
    trace, rows = timeline.trace, work["row"].to_numpy()
    dtype = WORK.schema["label"]
    kernels = categories_of(trace.kernels["full_name"]).cast(dtype)
    directions = trace.copies["direction"].cast(dtype, strict=False).fill_null(OTHER)
    parts = {
        "kernel": kernels,
        "copy": directions,
        "memset": constant("memset", trace.memsets.height, dtype),
        "graph": constant("graph", trace.graph_launches.height, dtype),
    }
    codes = np.zeros(work.height, dtype=np.uint32)
    for kind, labels in parts.items():
        at = np.flatnonzero((work["kind"] == kind).to_numpy())
        codes[at] = labels.to_physical().to_numpy()[rows[at]]
    return pl.Series("label", dtype.categories, dtype=dtype).gather(codes).alias("label")  # type: ignore[attr-defined]


def _properties(timeline: Timeline, work: pl.DataFrame, counted: CounterVerdicts | None) -> pl.DataFrame:
    """Properties of kernels and copies, alongside `work`; null for work of another kind."""
    trace, rows = timeline.trace, work["row"]
    kernel, copy = (work["kind"] == kind for kind in ("kernel", "copy"))
    of_kernel = rows.to_frame().select(pl.when(kernel).then("row")).to_series()
    of_copy = rows.to_frame().select(pl.when(copy).then("row")).to_series()
    classes = _classes(trace.kernels)
    fills = _fills(timeline, trace.capture.device(int(work["device"][0])))
    copies = trace.copies.select("bytes", pageable=IS_PAGEABLE)
    columns = [series.gather(of_kernel) for series in (*classes, *fills)]
    columns += [series.gather(of_copy) for series in copies]
    if counted is not None:
        columns += [series.gather(of_kernel) for series in counted.of(trace.kernels)]
    return pl.DataFrame(columns)


def _classes(kernels: pl.DataFrame) -> list[pl.Series]:
    """Arithmetic of each kernel, by its name."""
    classes = classify_names(kernels)
    by_name = pl.Series(
        "vector_product", [_VECTOR_PRODUCT.search(name) is not None for name in name_categories(kernels["name"])]
    )
    codes = kernels["name"].to_physical()
    return [classes["precision"], classes["tensor_cores"], by_name.cast(pl.Boolean).gather(codes)]


def _fills(timeline: Timeline, device: Device | None) -> list[pl.Series]:
    """Share of the multiprocessors that the grid of each kernel can reach, at one block per multiprocessor."""
    count = device.sm_count if device is not None else None
    kinds, of_kernel = timeline.launch_kinds
    if not count or kinds["blocks"].null_count() == kinds.height:
        return []
    shares = kinds.select((pl.col("blocks") / count).clip(0.0, 1.0).alias("fill_share")).to_series()
    return [shares.gather(of_kernel)]


def _gaps(timeline: Timeline, budget: TimeBudget, phases: pl.Series) -> pl.DataFrame:
    """The pauses of one device, with the range and phase of the work after each."""
    rows = timeline.rows_on(budget.device)
    gaps = budget.gaps.gaps
    after = rows[np.minimum(budget.gaps.ended_by, len(rows) - 1)] if len(gaps.starts) else np.empty(0, np.int64)
    pauses = pl.DataFrame(
        {
            "start_ns": gaps.starts,
            "end_ns": gaps.ends,
            "range": timeline.work["range"].gather(after),
            "phase": phases.gather(after),
        }
    )
    # A literal takes no memory.
    return GAPS.conform(pauses.with_columns(pl.lit(budget.device, dtype=pl.Int32).alias("device")))


def _causes(budgets: Sequence[TimeBudget]) -> dict[str, Spent]:
    """The time of all pauses by cause."""
    of_devices = [_with_latency(budget.gaps.parts, len(budget.gaps.gaps.starts)) for budget in budgets]
    return {cause: Spent.together([parts[cause] for parts in of_devices]) for cause in IDLE_CAUSES}


def _with_latency(parts: dict[str, Spent], pauses: int) -> dict[str, Spent]:
    """The causes of each pause; the GPU's start latency goes to the main reason for a late host, if there is one."""
    late = [cause for cause in _LATE if parts[cause]]
    if not late:
        return parts
    longest, main = np.zeros(pauses, dtype=np.int64), np.full(pauses, -1, dtype=np.int8)
    for position, cause in enumerate(late):
        spent = parts[cause]
        longer = np.flatnonzero(spent.ns > longest[spent.at])
        rows = longer if spent.rows is None else spent.rows[longer]
        longest[rows], main[rows] = spent.ns[longer], position
    latency = parts[_START_LATENCY].where(main >= 0)
    moved = {cause: parts[cause].plus(latency.where(main == position)) for position, cause in enumerate(late)}
    return {**parts, **moved, _START_LATENCY: parts[_START_LATENCY].plus(latency, -1)}


#: Most names in `Finding.where`.
_MOST_NAMES: Final = 3


def range_names(facts: Facts, rows: pl.Series, amounts: pl.Series | Spent) -> tuple[str, ...]:
    """The names of the ranges with the largest summed times, by the row of `Trace.ranges` of each piece.

    The largest first; none for a phase, and none if most of the time lies outside all ranges.
    """
    time_by_name: dict[str, int] = {}
    if facts.phase is not None:
        return ()
    for text, amount in sorted(time_by_range(facts, rows, amounts).items(), key=lambda item: -item[1]):
        name = unnumbered_name(text)
        time_by_name[name] = time_by_name.get(name, 0) + amount
    if 2 * sum(time_by_name.values()) < (amounts.ns if isinstance(amounts, Spent) else amounts).sum():
        return ()
    return tuple(sorted(time_by_name, key=lambda name: -time_by_name[name])[:_MOST_NAMES])


def time_by_range(facts: Facts, rows: pl.Series, amounts: pl.Series | Spent) -> dict[str, int]:
    """The summed times by range name, in the order in which the profile numbers names."""
    if isinstance(amounts, Spent):
        rows, amounts = rows if amounts.rows is None else rows.gather(amounts.rows), pl.Series(amounts.ns)
    names = facts.timeline.trace.ranges["name"]
    chosen = np.flatnonzero((rows.is_not_null() & (amounts > 0)).to_numpy())
    if not len(chosen) or not names.len():
        return {}
    ranges = rows if len(chosen) == rows.len() else rows.gather(chosen)
    codes, texts = names.to_physical().to_numpy()[ranges.to_numpy()], name_categories(names)
    sums = sum_by(codes, amounts.to_numpy()[chosen], texts.len())
    return {texts[code]: int(sums[code]) for code in np.flatnonzero(sums).tolist()}


def kernel_names(facts: Facts, amounts: pl.Series | Spent) -> tuple[str, ...]:
    """The short names of the kernels with the largest summed times, the largest first; none for a phase."""
    if facts.phase is not None:
        return ()
    rows, spent = (amounts.at, amounts.ns) if isinstance(amounts, Spent) else (slice(None), amounts.to_numpy())
    chosen = np.flatnonzero(facts.program.is_kernel[rows] & (spent > 0))
    names = facts.timeline.trace.kernels["name"]
    codes = names.to_physical().to_numpy()[facts.work["row"].to_numpy()[rows][chosen]]
    texts = name_categories(names)
    # Whole nanoseconds far below 2⁵³, which floating point adds up exactly.
    sums = np.bincount(codes, weights=spent[chosen], minlength=texts.len())
    ordered = sorted(np.flatnonzero(sums).tolist(), key=lambda code: (-sums[code], texts[code]))
    return tuple(texts[code] for code in ordered[:_MOST_NAMES])
