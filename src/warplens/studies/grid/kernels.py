"""Modelled work of the transformer language models of Stanford's CS336 assignments: parameters, FLOPs, bytes.

Everything here follows from shapes, nothing is measured. A FLOP is one multiplication or one addition: a matrix product
of [m, k] and [k, n] is 2·m·k·n FLOPs (m·k·n multiply-accumulates).

The model: separate q, k, v and output projections, hand-written attention over full (not causal) score matrices, SwiGLU
with three matrices, RMSNorm, untied head, no biases. Vocabulary 10,000. Sizes: assignment 2, editions of spring 2025
(`xl` with d_model 1600 and `2.7B`) and spring 2026 (`xl` with d_model 2560, which is the older `2.7B`, and `10B`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import blocks_host
from warplens.analysis.attribution import is_operator
from warplens.analysis.categories import categories_of
from warplens.analysis.intervals import owned_union
from warplens.analysis.phases import PHASE
from warplens.analysis.ranges import plain_range_name
from warplens.analysis.sequence import warmup_labels
from warplens.analysis.steps import WARMUP_SLOWDOWN
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, nearest
from warplens.analysis.window import NO_PHASE, PHASES, Step, phase_of_name
from warplens.profile.columns import KERNEL_NAME, column, table
from warplens.profile.schema import Column, name_categories, name_labels
from warplens.workloads.settings import LM_SIZES, VOCABULARY

#: Maximum, subtraction, exponential, sum and division: one each for every score.
SOFTMAX_FLOPS_PER_SCORE: Final = 5

#: Launches that the assignment's AdamW makes for one parameter tensor in a step: decay 2, first moment 4, second
#: moment 5, update 5; two of them are fills, from the `zeros_like` that `state.get(…, zeros_like(p))` always evaluates.
REFERENCE_ADAMW_LAUNCHES_PER_TENSOR: Final = 16

#: Bytes that those launches move for one fp32 parameter, caches not counted: 33 reads and writes of the arithmetic and
#: 2 writes of the fills, 4 bytes each.
REFERENCE_ADAMW_BYTES_PER_PARAMETER: Final = (33 + 2) * 4


@dataclass(frozen=True)
class ModelSize:
    """Widths of one model; `edition` names the assignment's year, empty where all editions agree."""

    name: str
    d_model: int
    d_ff: int
    layers: int
    heads: int
    edition: str = ""

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    @property
    def parameters(self) -> int:
        """Trained numbers: embedding and head, and in each layer four projections, three matrices and two norms."""
        layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model
        return 2 * VOCABULARY * self.d_model + self.layers * layer + self.d_model

    @property
    def parameter_tensors(self) -> int:
        """Trained tensors: nine in each layer, the embedding, the last norm and the head."""
        return 9 * self.layers + 3


#: Editions of sizes on which they differ, by the name in `LM_SIZES`; the more widespread one has the plain name.
_EDITIONS: Final = {"xl": "spring 2025", "xl-2026": "spring 2026", "2.7B": "spring 2025", "10B": "spring 2026"}

#: Every size by its canonical name, the more widespread edition first.
MODEL_SIZES: Final[tuple[ModelSize, ...]] = tuple(
    ModelSize(name.removesuffix("-2026"), size.d_model, size.d_ff, size.layers, size.heads, _EDITIONS.get(name, ""))
    for name, size in LM_SIZES.items()
    if name != "tiny"
)

_BILLIONS = re.compile(r"^(\d+)(?:[._p-](\d+))?b$")


def canonical_model(text: str) -> str | None:
    """The name under which a size is known (`2p7b`, `2_7B` → `2.7B`; `SMALL` → `small`); None for any other text."""
    lowered = text.strip().lower()
    if billions := _BILLIONS.match(lowered):
        lowered = f"{billions[1]}.{billions[2]}b" if billions[2] else f"{billions[1]}b"
    return next((size.name for size in MODEL_SIZES if size.name.lower() == lowered), None)


def model_size(name: str, layers: int | None = None) -> ModelSize | None:
    """The widths of a model by name; where editions differ, the one with this many layers, else the first.

    Args:
        name: canonical name.
        layers: how many layers the profile shows; None where that is not known.

    Returns:
        None for a name that is not in the table, or where the profile shows another number of layers than it says.
    """
    named = [size for size in MODEL_SIZES if size.name == name]
    if layers is not None:
        named = [size for size in named if size.layers == layers]
    return named[0] if named else None


def model_rank(name: str) -> tuple[int, int, str]:
    """Sorts names by size: known models by their parameters, all others after them by name."""
    size = model_size(name)
    return (0, size.parameters, name) if size else (1, 0, name)


def attention_matmul_flops(batch: int, heads: int, context: int, d_head: int) -> int:
    """FLOPs of one of the two matrix products of one attention layer (q·kᵀ, or weights·v): 2·B·H·S²·d."""
    return 2 * batch * heads * context**2 * d_head


def softmax_flops(batch: int, heads: int, context: int) -> int:
    """FLOPs of the softmax of one attention layer: 5·B·H·S²."""
    return SOFTMAX_FLOPS_PER_SCORE * batch * heads * context**2


def flop_ratio(d_head: int) -> float:
    """FLOPs of both attention products over those of the softmax: 2·2·d / 5, whatever batch, heads and context are."""
    return 2 * 2 * d_head / SOFTMAX_FLOPS_PER_SCORE


def forward_flops(size: ModelSize, batch: int, context: int) -> int:
    """FLOPs of the matrix products of one forward pass: 2T·L(4d² + 3·d·d_ff) + 4·B·S²·d·L + 2T·d·V, with T = B·S."""
    tokens = batch * context
    linear = 2 * tokens * size.layers * (4 * size.d_model**2 + 3 * size.d_model * size.d_ff)
    attention = 2 * size.layers * attention_matmul_flops(batch, size.heads, context, size.d_head)
    return linear + attention + 2 * tokens * size.d_model * VOCABULARY


# --- Steps by their phases -------------------------------------------------------------------------------------------


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PhaseInstances:
    """The outermost ranges that are named after a phase, in the order of their begin.

    Attributes:
        rows: rows of `Trace.ranges`.
        phase: of each, its position in `(NO_PHASE, *PHASES)`.
        outermost: for every range of the profile, and a last entry for "no range", the row of its outermost phase, or
            `NO_RANGE`.
        phase_of_range: for every range, and a last entry, the phase of that row.
        seen: the phases that occur.
    """

    rows: Int64s
    phase: Int64s
    outermost: Int64s
    phase_of_range: Int64s
    seen: frozenset[str]


def phase_instances(timeline: Timeline) -> PhaseInstances:
    """The outermost ranges of a profile that are named after a phase."""
    ranges = timeline.trace.ranges
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    own_phase = name_labels(ranges["name"], lambda name: numbers[phase_of_name(name)])
    row = np.arange(ranges.height, dtype=np.int64)
    outermost = timeline.forest.outermost_match(np.where(own_phase > 0, row + 1, 0)) - 1
    held = outermost != NO_RANGE
    phase = np.where(held, own_phase[np.maximum(outermost, 0)], 0) if ranges.height else own_phase
    rows = np.flatnonzero(outermost == row)
    rows = rows[np.argsort(ranges["start_ns"].to_numpy()[rows], kind="stable")]
    seen = frozenset(PHASES[number - 1] for number in set(own_phase[rows].tolist()))
    return PhaseInstances(rows, own_phase[rows], np.r_[outermost, NO_RANGE], np.r_[phase, 0], seen)


def repeated_steps(timeline: Timeline, instances: PhaseInstances) -> tuple[tuple[Step, ...], str]:
    """The steady steps of a profile, and one sentence on how they were found; none where nothing repeats."""
    search = timeline.steps
    if search.source == "range" and search.steady:
        return search.steady, search.how
    # Without step ranges the phases are better evidence than a repeating kernel sequence: in a profile of one single
    # step that sequence is the layers.
    grouped = _steps_from_phases(timeline, instances)
    if grouped:
        return grouped, "steps from the ranges of the phases, from a forward pass to the next one after an optimizer"
    return (search.steady, search.how) if search.steady else ((), search.how)


def _steps_from_phases(timeline: Timeline, instances: PhaseInstances) -> tuple[Step, ...]:
    settled = timeline.forest.outermost_match(warmup_labels(timeline.trace.ranges))[instances.rows] == 0
    rows, phase = instances.rows[settled], instances.phase[settled]
    forward, last = PHASES.index("forward") + 1, int(phase.max(initial=0))
    # A step ends with the last kind of phase that the program has: with accumulated gradients several forward and
    # backward passes belong to one optimizer step.
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
    """How many leading steps are much slower than the later half; never more than half of them."""
    usual = float(np.median(durations[len(durations) // 2 :]))
    slow = durations > WARMUP_SLOWDOWN * usual
    leading = int(np.argmin(slow)) if not slow.all() else 0
    return leading if leading <= len(durations) // 2 else 0


# --- Forward passes and training steps of a profile ------------------------------------------------------------------
# A forward pass is an outermost range that is named after one (`warplens.analysis.phases`), with all GPU work that was
# launched inside it. A step is one repetition of the workload: a range that is called a step, or, where the program has
# none, the phases from one forward pass to the next optimizer.


#: Category of matrix products.
MATMUL: Final = "gemm"

#: What stands in the place of a category for GPU work that is no kernel.
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
        "from the range's begin on the host to the end of its GPU work (to its own end if synchronised); null"
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
    """Median, least and greatest of repeated measurements, and how many there were."""

    median: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: pl.Series) -> Spread | None:
        """The spread of the values that are not null; None where there are none."""
        found = values.drop_nulls().to_numpy()
        if not len(found):
            return None
        return cls(float(np.median(found)), float(found.min()), float(found.max()), len(found))

    def scaled(self, divisor: float) -> Spread:
        """Each value divided by the same number."""
        return Spread(self.median / divisor, self.minimum / divisor, self.maximum / divisor, self.count)


@dataclass(frozen=True, eq=False)
class PhasedWork:
    """The GPU work of a profile's steady steps, told apart by step, phase and forward pass.

    Attributes:
        steps: in time order; empty where the profile shows none.
        how: one sentence on how they were found.
        work: rows of `Timeline.work` in the steps, with `duration_ns`, `step`, `phase`, `pass` (null outside of forward
            passes), `label` (category of a kernel, `WORK_LABELS` otherwise) and `outermost` (row of the phase's range).
        passes: `PASSES`.
        phases: `PHASE_TIMES`.
        pass_is_step: there are no forward ranges, and the whole step was taken as the pass, as the user said.
        phases_seen: phases that any range of the profile names, warm-up included.
    """

    steps: tuple[Step, ...]
    how: str
    work: pl.DataFrame
    passes: pl.DataFrame
    phases: pl.DataFrame
    pass_is_step: bool
    phases_seen: frozenset[str]

    @property
    def pass_work(self) -> pl.DataFrame:
        """The GPU work of forward passes."""
        return self.work.filter(pl.col("pass").is_not_null())


def phased_work(timeline: Timeline, *, step_is_forward: bool = False) -> PhasedWork:
    """The steady steps of a profile by phase.

    Args:
        step_is_forward: the program does nothing but forward passes; without forward ranges, a step is one.
    """
    instances = phase_instances(timeline)
    steps, how = repeated_steps(timeline, instances)
    work = _labelled_work(timeline, instances, steps)
    pass_is_step = step_is_forward and not instances.seen and bool(steps)
    numbered = work.filter(pl.col("phase") == "forward")["outermost"].unique(maintain_order=True)
    if pass_is_step:
        work = work.with_columns(pl.lit("forward").cast(PHASE).alias("phase"), pl.col("step").alias("pass"))
    else:
        number = {row: position + 1 for position, row in enumerate(numbered.to_list())}
        work = work.with_columns(
            pl.when(pl.col("phase") == "forward")
            .then(pl.col("outermost").replace_strict(number, default=None, return_dtype=pl.Int64))
            .alias("pass")
        )
    passes = _passes(timeline, work, None if pass_is_step else numbered)
    return PhasedWork(steps, how, work, passes, _phase_times(work, steps), pass_is_step, instances.seen)


# ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _labelled_work(timeline: Timeline, instances: PhaseInstances, steps: tuple[Step, ...]) -> pl.DataFrame:
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
    code = np.array([texts.index(WORK_LABELS.get(kind, texts[0])) for kind in name_categories(work["kind"])])
    codes = code[work["kind"].to_physical().to_numpy()]
    is_kernel = (work["kind"] == "kernel").to_numpy()
    codes[is_kernel] = category.to_physical().to_numpy()[work["row"].to_numpy()[is_kernel]]
    return pl.Series("label", texts, dtype=pl.Enum(texts)).gather(codes)


def busy_by_group(group: Int64s, starts: Int64s, ends: Int64s, count: int) -> Int64s:
    """The time that the intervals of each group cover, overlaps counted once."""
    covered = np.zeros(count, dtype=np.int64)
    if len(starts):
        # Groups are moved apart on the time axis, so that one union serves them all.
        reach = int(ends.max() - starts.min()) + 1
        shift = group * reach - starts.min()
        pieces = owned_union(starts + shift, ends + shift)
        np.add.at(covered, group[pieces.owner], pieces.ends - pieces.starts)
    return covered


def _phase_times(work: pl.DataFrame, steps: tuple[Step, ...]) -> pl.DataFrame:
    if not steps:
        return PHASE_TIMES.empty()
    order = (*PHASES, NO_PHASE)
    grid = pl.DataFrame(
        [(step.index, step.duration_ns, phase) for step in steps for phase in order],
        schema={"step": pl.Int64, "wall_ns": pl.Int64, "phase": pl.String},
        orient="row",
    ).with_row_index("group")
    placed = work.with_columns(pl.col("phase").cast(pl.String)).join(grid, on=["step", "phase"], maintain_order="left")
    busy = busy_by_group(
        placed["group"].cast(pl.Int64).to_numpy(),
        placed["start_ns"].to_numpy(),
        placed["end_ns"].to_numpy(),
        grid.height,
    )
    sums = placed.group_by("group").agg(
        pl.col("duration_ns").sum().alias("gpu_ns"),
        (pl.col("end_ns").max() - pl.col("start_ns").min()).alias("span_ns"),
        pl.col("duration_ns").filter(pl.col("label") == MATMUL).sum().alias("matmul_ns"),
        pl.col("duration_ns").filter("inferred").sum().alias("inferred_ns"),
        (pl.col("kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
        pl.len().cast(pl.Int64).alias("ops"),
    )
    return (
        grid.with_columns(pl.Series("busy_ns", busy))
        .join(sums, on="group", how="left", maintain_order="left")
        .with_columns(pl.col("gpu_ns", "span_ns", "matmul_ns", "inferred_ns", "kernels", "ops").fill_null(0))
        .select(PHASE_TIMES.names)
    )


# ── forward passes ────────────────────────────────────────────────────────────────────────────────────────────────────


def _passes(timeline: Timeline, work: pl.DataFrame, rows: pl.Series | None) -> pl.DataFrame:
    """One row a forward pass; `rows` are their ranges, None where a pass is a whole step."""
    mine = work.filter(pl.col("pass").is_not_null())
    if not mine.height:
        return PASSES.empty()
    sums = (
        mine.group_by("pass", maintain_order=True)
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
    position = {number: place for place, number in enumerate(sums["pass"].to_list())}
    group = mine["pass"].replace_strict(position, return_dtype=pl.Int64).to_numpy()
    busy = busy_by_group(group, mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy(), sums.height)
    sums = sums.with_columns(pl.Series("busy_ns", busy), (pl.col("last_ns") - pl.col("first_ns")).alias("span_ns"))
    if rows is None:
        nothing = [pl.lit(None, dtype=PASSES.schema[name]).alias(name) for name in _HOST_COLUMNS]
        return sums.with_columns(nothing).select(PASSES.names)
    of_range = rows.gather(sums["pass"] - 1).alias("range")
    ranges = timeline.trace.ranges[of_range]
    begin, end = ranges["start_ns"], ranges["end_ns"]
    synchronised = _waits_inside(timeline, ranges) & (sums["last_ns"] <= end)
    drained = pl.Series(_reach_of_earlier_work(timeline, begin.to_numpy()) <= begin.to_numpy())
    finish = pl.select(pl.when(synchronised).then(end).otherwise(sums["last_ns"])).to_series()
    return sums.with_columns(
        of_range,
        (end - begin).alias("host_ns"),
        synchronised.alias("synchronised"),
        drained.alias("drained"),
        pl.select(pl.when(drained).then(finish - begin)).to_series().alias("elapsed_ns"),
    ).select(PASSES.names)


def host_passes(timeline: Timeline) -> pl.DataFrame:
    """Forward passes by their ranges on the host alone: `host_ns`, and whether the host `synchronised` inside.

    Warm-up is left out: ranges inside one that is named after it, and leading passes that are much slower than the
    later half.
    """
    instances = phase_instances(timeline)
    ranges = timeline.trace.ranges
    inside = timeline.forest.outermost_match(warmup_labels(ranges))
    rows = instances.rows[instances.phase == PHASES.index("forward") + 1]
    rows = rows[inside[rows] == 0]
    mine: pl.DataFrame = ranges[rows.tolist()]
    if not mine.height:
        return mine.select(host_ns=pl.lit(0, dtype=pl.Int64), synchronised=pl.lit(value=False)).clear()
    spent = mine.select(host_ns=pl.col("end_ns") - pl.col("start_ns"), synchronised=_waits_inside(timeline, mine))
    return spent.slice(_leading_warmup(spent["host_ns"].to_numpy()))


_HOST_COLUMNS = ("range", "host_ns", "synchronised", "drained", "elapsed_ns")


def _waits_inside(timeline: Timeline, ranges: pl.DataFrame) -> pl.Series:
    """Whether a call that makes the host wait for the GPU lies inside each range, on its thread."""
    calls = timeline.trace.api_calls
    waiting = [name for name in name_categories(calls["name"]) if blocks_host(name)]
    waits = calls.filter(pl.col("name").cast(pl.String).is_in(waiting)).sort("start_ns")
    found = np.zeros(ranges.height, dtype=np.bool_)
    for process, thread in ranges.select("process", "thread").unique().rows():
        here = (pl.col("process") == process) & (pl.col("thread") == thread)
        when = waits.filter(here)["start_ns"].to_numpy()
        mine = np.flatnonzero(ranges.select(here).to_series().to_numpy())
        edges = (np.searchsorted(when, ranges[column].to_numpy()[mine]) for column in ("start_ns", "end_ns"))
        before, until = edges
        found[mine] = until > before
    return pl.Series(found)


def _reach_of_earlier_work(timeline: Timeline, when: Int64s) -> Int64s:
    """The latest end of all GPU work that was launched before each time."""
    launched = timeline.work.select(pl.coalesce("launch_start_ns", "start_ns").alias("at"), "end_ns").sort("at")
    reach = np.maximum.accumulate(launched["end_ns"].to_numpy())
    before = np.searchsorted(launched["at"].to_numpy(), when)
    return np.where(before > 0, reach[np.maximum(before - 1, 0)], np.iinfo(np.int64).min)


# --- Which kernels a forward pass spends its GPU time in -------------------------------------------------------------


KERNEL_USES: Final = table(
    "kernels of a forward pass or step",
    "One kernel function. The grid document, questions b and c.",
    KERNEL_NAME,
    "full_name category gpu_ns calls calls_min calls_max share",
    gpu_ns="GPU time, summed over all repetitions",
    calls="calls, summed over all repetitions",
    share="share of all GPU work of the scope",
)

LABEL_USES: Final = table(
    "categories of a forward pass or step",
    "One category of kernels, or one kind of other GPU work. The grid document, questions b and c.",
    "label gpu_ns calls calls_min calls_max share",
    gpu_ns="GPU time, summed over all repetitions",
    calls="calls, summed over all repetitions",
    share="share of all GPU work of the scope",
)


@dataclass(frozen=True)
class ModelPart:
    """A part of the model, by the innermost range that holds the launches; `share` is of the kernel's GPU time."""

    name: str
    gpu_ns: int
    launches: int
    share: float


@dataclass(frozen=True)
class TopKernel:
    """The kernel, or the category, with the most GPU time of a scope.

    Attributes:
        name: short name of the kernel; the category itself for a category.
        full_name: demangled name; equal to `name` for a category.
        category: what kind of kernel it is.
        gpu_ns: GPU time over all repetitions.
        share: of all GPU work of the scope.
        repetitions: how many passes (or steps) were looked at.
        calls: over all repetitions.
        calls_min, calls_max: the fewest and the most calls in one repetition.
        parts: model parts that launch it, largest first.
    """

    name: str
    full_name: str
    category: str
    gpu_ns: int
    share: float
    repetitions: int
    calls: int
    calls_min: int
    calls_max: int
    parts: tuple[ModelPart, ...]

    @property
    def calls_each(self) -> int | None:
        """Calls in a single repetition; None where repetitions differ, so that no such number exists."""
        return self.calls_min if self.calls_min == self.calls_max else None

    @property
    def gpu_ns_each(self) -> float:
        """GPU time of one repetition on average."""
        return self.gpu_ns / self.repetitions


def kernel_use(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by kernel function, the largest first (`KERNEL_USES`).

    Args:
        timeline: the profile that the work is from.
        work: rows of `PhasedWork.work`.
        repetition: column that numbers the repetitions, `pass` or `step`.
    """
    kernels = work.filter(pl.col("kind") == "kernel")
    table = timeline.trace.kernels
    named = kernels.select(repetition, "duration_ns", pl.col("label").alias("category")).with_columns(
        table["name"].gather(kernels["row"]), table["full_name"].gather(kernels["row"])
    )
    keys = ["full_name", "name", "category"]
    used = _use(named, keys, repetition, work[repetition].n_unique(), int(work["duration_ns"].sum()))
    return used.select(KERNEL_USES.names).sort(["gpu_ns", "full_name"], descending=[True, False])


def label_use(work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by category of kernel and by kind of other work, the largest first (`LABEL_USES`)."""
    used = _use(work, ["label"], repetition, work[repetition].n_unique(), int(work["duration_ns"].sum()))
    return used.select(LABEL_USES.names).sort(["gpu_ns", "label"], descending=[True, False])


def top_kernel(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> TopKernel | None:
    """The kernel function with the most GPU time; None where the work holds no kernel."""
    used = kernel_use(timeline, work, repetition)
    if not used.height:
        return None
    row = used.row(0, named=True)
    name = timeline.trace.kernels["full_name"].gather(work.filter(pl.col("kind") == "kernel")["row"])
    mine = work.filter(pl.col("kind") == "kernel").filter(name == row["full_name"])
    return TopKernel(repetitions=work[repetition].n_unique(), parts=model_parts(timeline, mine), **row)


def top_label(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> TopKernel | None:
    """The category with the most GPU time; None where there is no work."""
    used = label_use(work, repetition)
    if not used.height:
        return None
    row = used.row(0, named=True)
    label = row.pop("label")
    mine = work.filter(pl.col("label") == label)
    return TopKernel(
        name=label,
        full_name=label,
        category=label,
        repetitions=work[repetition].n_unique(),
        parts=model_parts(timeline, mine),
        **row,
    )


def model_parts(timeline: Timeline, work: pl.DataFrame) -> tuple[ModelPart, ...]:
    """The innermost ranges that hold these launches, by name, with their shares of the GPU time.

    Launches that only the range of the phase itself holds are told apart from those in a range inside it. An operator
    of a framework is no part of the model: its launches belong to the range around it.
    """
    annotated = ~is_operator(timeline.trace.ranges)
    if not annotated.all():
        held = nearest(timeline.forest.parent, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
        work = work.with_columns(pl.Series("range", held).replace(NO_RANGE, None))
    total = int(work["duration_ns"].sum())
    names = timeline.trace.ranges["name"].cast(pl.String)
    innermost = pl.Series(
        "part", [plain_range_name(text) for text in names.gather(work["range"].unique()).drop_nulls()]
    )
    by_row = dict(zip(work["range"].unique().drop_nulls().to_list(), innermost, strict=True))
    named = work["range"].replace_strict(by_row, default="outside of all ranges", return_dtype=pl.String)
    sums = (
        work.select(
            "duration_ns",
            pl.when(pl.col("range") == pl.col("outermost"))
            .then(pl.format("{}, outside of inner ranges", named))
            .otherwise(named)
            .alias("part"),
        )
        .group_by("part")
        .agg(pl.col("duration_ns").sum(), pl.len().alias("launches"))
        .sort(["duration_ns", "part"], descending=[True, False])
    )
    return tuple(ModelPart(name, spent, count, spent / total if total else 0.0) for name, spent, count in sums.rows())


def matmul_share(work: pl.DataFrame) -> float | None:
    """Share of the GPU time that matrix products take; None where there is no GPU time."""
    total = int(work["duration_ns"].sum())
    return int(work.filter(pl.col("label") == MATMUL)["duration_ns"].sum()) / total if total else None


def _use(work: pl.DataFrame, keys: list[str], repetition: str, repetitions: int, total_ns: int) -> pl.DataFrame:
    each = work.group_by(*keys, repetition).agg(pl.col("duration_ns").sum(), pl.len().cast(pl.Int64).alias("calls"))
    return (
        each.group_by(keys)
        .agg(
            pl.col("duration_ns").sum().alias("gpu_ns"),
            pl.col("calls").sum().alias("calls"),
            # A repetition in which the kernel did not run at all has no row.
            pl.when(pl.len() < repetitions).then(0).otherwise(pl.col("calls").min()).alias("calls_min"),
            pl.col("calls").max().alias("calls_max"),
        )
        .with_columns((pl.col("gpu_ns") / max(1, total_ns)).alias("share"), pl.col(keys).cast(pl.String))
        .with_columns(pl.col("calls_min").cast(pl.Int64))
    )
