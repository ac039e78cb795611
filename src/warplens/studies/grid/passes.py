"""Forward passes and training steps of a profile: assignment of GPU work to steps and phases, by ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import blocks_host
from warplens.analysis.categories import categories_of
from warplens.analysis.phases import PHASE
from warplens.analysis.repetition import warmup_labels
from warplens.analysis.steps import WARMUP_SLOWDOWN
from warplens.analysis.streams import busy_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import NO_PHASE, PHASES, Step, phase_numbers
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, name_categories


@dataclass(frozen=True, eq=False)
class PhaseInstances:
    """The outermost ranges that are named after a phase, in the order of their start."""

    rows: Int64s  #: rows of `Trace.ranges`
    phase: Int64s  #: phase of each, as position in `(NO_PHASE, *PHASES)`
    #: for every range, and a last entry for `NO_RANGE`: the row of the outermost phase range around it, or `NO_RANGE`
    outermost: Int64s
    phase_of_range: Int64s  #: for every range, and a last entry for `NO_RANGE`: the phase of that row
    seen: frozenset[str]  #: the phases that occur


def phase_instances(timeline: Timeline) -> PhaseInstances:
    """The outermost ranges of a profile that are named after a phase."""
    ranges = timeline.trace.ranges
    own_phase = phase_numbers(ranges["name"])
    row = np.arange(ranges.height, dtype=np.int64)
    outermost = timeline.forest.outermost_match(np.where(own_phase > 0, row + 1, 0)) - 1
    in_phase = outermost != NO_RANGE
    phase = np.where(in_phase, own_phase[np.maximum(outermost, 0)], 0) if ranges.height else own_phase
    rows = np.flatnonzero(outermost == row)
    rows = rows[np.argsort(ranges["start_ns"].to_numpy()[rows], kind="stable")]
    seen = frozenset(PHASES[number - 1] for number in set(own_phase[rows].tolist()))
    return PhaseInstances(rows, own_phase[rows], np.r_[outermost, NO_RANGE], np.r_[phase, 0], seen)


def repeated_steps(timeline: Timeline, instances: PhaseInstances) -> tuple[tuple[Step, ...], str]:
    """The steady steps of a profile, and one sentence on how they were found; empty where nothing repeats."""
    search = timeline.steps
    if search.source == "range" and search.steady:
        return search.steady, search.how
    # Without step ranges, phases are more reliable than a repeating kernel sequence, which in a profile of a single
    # step is that of the layers.
    grouped = _steps_from_phases(timeline, instances)
    if grouped:
        return grouped, "steps from the ranges of the phases, from a forward pass to the next one after an optimizer"
    return search.steady, search.how


def _steps_from_phases(timeline: Timeline, instances: PhaseInstances) -> tuple[Step, ...]:
    """Steps from phases: each ends with the last kind of phase, and the next one begins with a forward pass."""
    settled = timeline.forest.outermost_match(warmup_labels(timeline.trace.ranges))[instances.rows] == 0
    rows, phase = instances.rows[settled], instances.phase[settled]
    forward, last = PHASES.index("forward") + 1, int(phase.max(initial=0))
    # A step ends with the program's last kind of phase: with gradient accumulation, several forward and backward passes
    # belong to one optimizer step.
    begins = (phase == forward) & np.r_[True, phase[:-1] == last]
    if not begins.any():
        return ()
    group = np.full(timeline.trace.ranges.height + 1, NO_RANGE, dtype=np.int64)
    group[rows] = np.cumsum(begins) - 1
    work = timeline.work
    owner = instances.outermost[work["range"].fill_null(NO_RANGE).to_numpy()]
    step = group[owner]  # the last entry answers for NO_RANGE
    count = int(begins.sum())
    launched = step != NO_RANGE
    first = np.full(count, np.iinfo(np.int64).max)
    reach = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, step[launched], work["start_ns"].to_numpy()[launched])
    np.maximum.at(reach, step[launched], work["end_ns"].to_numpy()[launched])
    used = np.flatnonzero(reach > first)
    if not len(used) or np.any(np.diff(first[used]) <= 0):
        return ()
    first, reach = first[used], reach[used]
    kept = _leading_warmup(reach - first)
    ends = np.r_[first[1:], reach[-1]]
    steps = [Step(number + 1, int(first[number]), int(ends[number])) for number in range(len(first))]
    return tuple(steps[kept:])


def _leading_warmup(durations: Int64s) -> int:
    """The number of leading steps that are much slower than the later half; 0 if more than half would be."""
    usual = float(np.median(durations[len(durations) // 2 :]))
    slow = durations > WARMUP_SLOWDOWN * usual
    leading = int(np.argmin(slow)) if not slow.all() else 0
    return leading if leading <= len(durations) // 2 else 0


# --- Forward passes and training steps of a profile ------------------------------------------------------------------
# A forward pass is an outermost range named after one (`warplens.analysis.phases`), with all GPU work launched inside
# it. A step is one repetition of the workload: a step range or, where the program has none, the phases from one forward
# pass to the next optimizer.

#: Category of matrix products.
MATMUL: Final = "gemm"

#: Kind of GPU work other than kernels → its label, in place of a kernel category.
WORK_LABELS: Final = {"copy": "memory copies", "memset": "memory fills", "graph": "hidden inside CUDA graphs"}

PASSES: Final = table(
    "forward passes",
    "One forward pass of the steady steps. The grid document.",
    "pass step",
    column(
        "range",
        dtype=pl.Int64,
        help="row of its range in `Trace.ranges`; null where the whole step is the pass",
        kind="count",
    ),
    "host_ns",
    Column(
        "synchronised", pl.Boolean, "the host waited inside the range until its GPU work was done", title="Waits inside"
    ),
    Column("drained", pl.Boolean, "the GPU had nothing left to do when the range began"),
    Column(
        "elapsed_ns",
        pl.Int64,
        "from the range's start on the host to the end of its GPU work (to its own end if synchronised); null"
        " unless drained",
    ),
    "gpu_ns busy_ns span_ns kernels ops",
    Column("hidden_ns", pl.Int64, "part of `gpu_ns` in CUDA graphs traced as a whole"),
)

PHASE_TIMES: Final = table(
    "phases of each step, in full",
    "One step and phase, also where the phase did nothing. The grid document.",
    "step wall_ns phase gpu_ns busy_ns span_ns matmul_ns inferred_ns kernels ops",
)


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of repeated measurements, and their number."""

    median: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: pl.Series) -> Spread | None:
        """The spread of the values that are not null; None where there are none."""
        known = values.drop_nulls().to_numpy()
        if not len(known):
            return None
        return cls(float(np.median(known)), float(known.min()), float(known.max()), len(known))

    def scaled(self, divisor: float) -> Spread:
        """Each value divided by the same number."""
        return Spread(self.median / divisor, self.minimum / divisor, self.maximum / divisor, self.count)


def median(spread: Spread | None) -> float | None:
    """The median of a spread; None for None."""
    return spread.median if spread else None


#: Least share of the GPU time of steps that only run forward passes which is inside these passes.
_WHOLE_STEP: Final = 0.5


@dataclass(frozen=True, eq=False)
class PhasedWork:
    """The GPU work of a profile's steady steps by step, phase and forward pass."""

    steps: tuple[Step, ...]  #: in time order; may be empty
    how: str  #: one sentence on how they were found
    #: rows of `Timeline.work` in the steps, with `duration_ns`, `step`, `phase`, `pass` (null outside of forward
    #: passes), `label` (category of a kernel, `WORK_LABELS` otherwise) and `outermost` (row of the phase's range)
    work: pl.DataFrame
    passes: pl.DataFrame  #: `PASSES`
    phases: pl.DataFrame  #: `PHASE_TIMES`
    pass_is_step: bool  #: whether whole steps were taken as passes: no range holds one, and the user states that mode
    phases_seen: frozenset[str]  #: phases that any range of the profile names, warm-up included

    @property
    def pass_work(self) -> pl.DataFrame:
        """The GPU work of forward passes."""
        return self.work.filter(pl.col("pass").is_not_null())

    def ranges_of(self, phase: str) -> int:
        """The number of ranges of a phase with GPU work in the steps."""
        return self.work.filter(pl.col("phase") == phase)["outermost"].n_unique()


def phased_work(timeline: Timeline, *, step_is_forward: bool = False) -> PhasedWork:
    """Assigns the GPU work of a profile's steady steps to steps, phases and forward passes.

    `step_is_forward`: the program only runs forward passes; where no range holds one, a step is one.
    """
    instances = phase_instances(timeline)
    steps, how = repeated_steps(timeline, instances)
    work = _labelled_work(timeline, instances, steps)
    in_forward = pl.col("phase") == "forward"
    forward_work = work.filter(in_forward)
    numbered = forward_work["outermost"].unique(maintain_order=True)
    # Ranges such as `mlp.forward`, several in a step and together a small part of it, are no passes.
    are_parts = (
        numbered.len() >= 2 * len(steps)
        and int(forward_work["duration_ns"].sum()) < _WHOLE_STEP * int(work["duration_ns"].sum())
        and instances.seen == {"forward"}
    )
    pass_is_step = step_is_forward and bool(steps) and (are_parts or not instances.seen)
    if pass_is_step:
        work = work.with_columns(pl.lit("forward").cast(PHASE).alias("phase"), pl.col("step").alias("pass"))
    else:
        number = {row: position + 1 for position, row in enumerate(numbered.to_list())}
        of_range = pl.col("outermost").replace_strict(number, default=None, return_dtype=pl.Int64)
        work = work.with_columns(pl.when(in_forward).then(of_range).alias("pass"))
    passes = _passes(timeline, work, None if pass_is_step else numbered)
    return PhasedWork(steps, how, work, passes, _phase_times(work, steps), pass_is_step, instances.seen)


def _labelled_work(timeline: Timeline, instances: PhaseInstances, steps: tuple[Step, ...]) -> pl.DataFrame:
    """The work of the steps in order of begin, with its step, phase, outermost range and label."""
    work = timeline.work
    owner = work["range"].fill_null(NO_RANGE).to_numpy()
    begun = work["start_ns"].to_numpy()
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    place = np.searchsorted(starts, begun, side="right") - 1
    inside = place >= 0
    inside[inside] = begun[inside] < ends[place[inside]]
    index = np.array([step.index for step in steps], dtype=np.int64)
    selected = np.flatnonzero(inside)
    phases = pl.Series("phase", [NO_PHASE, *PHASES], dtype=PHASE)
    return (
        work[selected]
        .with_columns(
            (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
            pl.Series("step", index[place[selected]], dtype=pl.Int64),
            phases.gather(instances.phase_of_range[owner[selected]]),
            pl.Series("outermost", instances.outermost[owner[selected]]),
            _labels(timeline, work[selected]),
        )
        .sort("start_ns", maintain_order=True)
    )


def _labels(timeline: Timeline, work: pl.DataFrame) -> pl.Series:
    category = categories_of(timeline.trace.kernels["full_name"])
    categories = name_categories(category).to_list()
    texts = list(dict.fromkeys([*categories, *WORK_LABELS.values()]))
    code_of_kind = np.array([texts.index(WORK_LABELS.get(kind, texts[0])) for kind in name_categories(work["kind"])])
    codes = code_of_kind[work["kind"].to_physical().to_numpy()]
    is_kernel = (work["kind"] == "kernel").to_numpy()
    codes[is_kernel] = category.to_physical().to_numpy()[work["row"].to_numpy()[is_kernel]]
    return pl.Series("label", texts, dtype=pl.Enum(texts)).gather(codes)


def _phase_times(work: pl.DataFrame, steps: tuple[Step, ...]) -> pl.DataFrame:
    """GPU time of each phase of each step (`PHASE_TIMES`)."""
    if not steps:
        return PHASE_TIMES.empty()
    order = (*PHASES, NO_PHASE)
    grid = pl.DataFrame(
        [(step.index, step.duration_ns, phase) for step in steps for phase in order],
        schema={"step": pl.Int64, "wall_ns": pl.Int64, "phase": pl.String},
        orient="row",
    ).with_row_index("group")
    placed = work.with_columns(pl.col("phase").cast(pl.String)).join(grid, on=["step", "phase"], maintain_order="left")
    sums = placed.group_by("group").agg(
        pl.col("duration_ns").sum().alias("gpu_ns"),
        (pl.col("end_ns").max() - pl.col("start_ns").min()).alias("span_ns"),
        pl.col("duration_ns").filter(pl.col("label") == MATMUL).sum().alias("matmul_ns"),
        pl.col("duration_ns").filter("inferred").sum().alias("inferred_ns"),
        (pl.col("kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
        pl.len().cast(pl.Int64).alias("ops"),
    )
    return (
        grid.join(sums, on="group", how="left", maintain_order="left")
        .join(busy_by(placed, ["group"]), on="group", how="left", maintain_order="left")
        .with_columns(pl.col("gpu_ns", "busy_ns", "span_ns", "matmul_ns", "inferred_ns", "kernels", "ops").fill_null(0))
        .select(PHASE_TIMES.names)
    )


def _passes(timeline: Timeline, work: pl.DataFrame, rows: pl.Series | None) -> pl.DataFrame:
    """One row per forward pass; `rows` are their ranges, None where a pass is a whole step."""
    pass_work = work.filter(pl.col("pass").is_not_null())
    if not pass_work.height:
        return PASSES.empty()
    sums = (
        pass_work.group_by("pass", maintain_order=True)
        .agg(
            pl.col("step").first(),
            pl.col("duration_ns").sum().alias("gpu_ns"),
            pl.col("start_ns").min().alias("first_ns"),
            pl.col("end_ns").max().alias("last_ns"),
            (pl.col("kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
            pl.len().cast(pl.Int64).alias("ops"),
            pl.col("duration_ns").filter(pl.col("kind") == "graph").sum().alias("hidden_ns"),
        )
        .sort("first_ns")
    )
    busy = busy_by(pass_work, ["pass"])
    sums = sums.join(busy, on="pass", maintain_order="left").with_columns(
        span_ns=pl.col("last_ns") - pl.col("first_ns")
    )
    if rows is None:
        nothing = [pl.lit(None, dtype=PASSES.schema[name]).alias(name) for name in _HOST_COLUMNS]
        return sums.with_columns(nothing).select(PASSES.names)
    of_range = rows.gather(sums["pass"] - 1).alias("range")
    ranges = timeline.trace.ranges[of_range]
    start, end = ranges["start_ns"], ranges["end_ns"]
    synchronised = _waits_inside(timeline, ranges) & (sums["last_ns"] <= end)
    drained = pl.Series(_end_of_earlier_work(timeline, start.to_numpy()) <= start.to_numpy())
    finish = pl.select(pl.when(synchronised).then(end).otherwise(sums["last_ns"])).to_series()
    return sums.with_columns(
        of_range,
        (end - start).alias("host_ns"),
        synchronised.alias("synchronised"),
        drained.alias("drained"),
        pl.select(pl.when(drained).then(finish - start)).to_series().alias("elapsed_ns"),
    ).select(PASSES.names)


def host_passes(timeline: Timeline) -> pl.DataFrame:
    """Forward passes by their host ranges alone: `host_ns`, and whether the host `synchronised` inside.

    Warm-up is left out: ranges inside a warm-up range, and leading passes that are much slower than the later half.
    """
    instances = phase_instances(timeline)
    ranges = timeline.trace.ranges
    in_warmup = timeline.forest.outermost_match(warmup_labels(ranges))
    rows = instances.rows[instances.phase == PHASES.index("forward") + 1]
    forward: pl.DataFrame = ranges[rows[in_warmup[rows] == 0].tolist()]
    if not forward.height:
        return forward.select(host_ns=pl.lit(0, dtype=pl.Int64), synchronised=pl.lit(value=False)).clear()
    waits = _waits_inside(timeline, forward)
    passes = forward.select(host_ns=pl.col("end_ns") - pl.col("start_ns"), synchronised=waits)
    return passes.slice(_leading_warmup(passes["host_ns"].to_numpy()))


_HOST_COLUMNS = ("range", "host_ns", "synchronised", "drained", "elapsed_ns")


def _waits_inside(timeline: Timeline, ranges: pl.DataFrame) -> pl.Series:
    """For each range, whether a call that blocks the host until the GPU is done starts inside, on the same thread."""
    calls = timeline.trace.api_calls
    waiting = [name for name in name_categories(calls["name"]) if blocks_host(name)]
    waits = calls.filter(pl.col("name").cast(pl.String).is_in(waiting)).sort("start_ns")
    waits_inside = np.zeros(ranges.height, dtype=np.bool_)
    for process, thread in ranges.select("process", "thread").unique().rows():
        on_thread = (pl.col("process") == process) & (pl.col("thread") == thread)
        wait_starts = waits.filter(on_thread)["start_ns"].to_numpy()
        rows = np.flatnonzero(ranges.select(on_thread).to_series().to_numpy())
        before_start = np.searchsorted(wait_starts, ranges["start_ns"].to_numpy()[rows])
        before_end = np.searchsorted(wait_starts, ranges["end_ns"].to_numpy()[rows])
        waits_inside[rows] = before_end > before_start
    return pl.Series(waits_inside)


def _end_of_earlier_work(timeline: Timeline, when: Int64s) -> Int64s:
    """The latest end of all GPU work that was launched before each time."""
    launched = timeline.work.select(pl.coalesce("launch_start_ns", "start_ns").alias("at"), "end_ns").sort("at")
    reach = np.maximum.accumulate(launched["end_ns"].to_numpy())
    before = np.searchsorted(launched["at"].to_numpy(), when)
    return np.where(before > 0, reach[np.maximum(before - 1, 0)], np.iinfo(np.int64).min)
