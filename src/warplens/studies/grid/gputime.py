"""Where the GPU time of forward passes and training steps goes: kernels, parts of the model, attention, the optimizer.

Attention: the softmax against the two matrix products, in measured GPU time and modelled FLOPs. The parts are told
apart by annotated ranges around them, words separated by blanks or by underscores: `computing attention scores` (q·kᵀ,
scaling, mask), `computing softmax`, `final matmul` (weights·v). A part's time is the GPU time of the work launched
inside its range; the products are the matrix-product kernels in the first and last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.ranges import plain_range_name
from warplens.analysis.streams import busy_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, nearest
from warplens.analysis.window import NO_PHASE, PHASES
from warplens.profile.columns import KERNEL_NAME, column, table
from warplens.profile.schema import Column, name_categories
from warplens.studies.grid.cells import (
    REFERENCE_ADAMW_BYTES_PER_PARAMETER,
    REFERENCE_ADAMW_LAUNCHES_PER_TENSOR,
    attention_matmul_flops,
    flop_ratio,
    softmax_flops,
)
from warplens.studies.grid.passes import MATMUL, PhasedWork, Spread, median
from warplens.workloads.settings import LMSize

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


def kernel_use(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by kernel function, the largest first (`KERNEL_USES`).

    Args:
        timeline: the profile that the work is from.
        work: rows of `PhasedWork.work`.
        repetition: column that numbers the repetitions, `pass` or `step`.
    """
    kernels = work.filter(pl.col("kind") == "kernel").rename({"label": "category"})
    names = timeline.trace.kernels.select("name", "full_name")[kernels["row"]]
    used = _use(kernels.hstack(names), ["full_name", "name", "category"], work, repetition)
    return used.select(KERNEL_USES.names).sort(["gpu_ns", "full_name"], descending=[True, False])


def label_use(work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by category of kernel and by kind of other work, the largest first (`LABEL_USES`)."""
    used = _use(work, ["label"], work, repetition)
    return used.select(LABEL_USES.names).sort(["gpu_ns", "label"], descending=[True, False])


def _use(rows: pl.DataFrame, keys: list[str], whole: pl.DataFrame, repetition: str) -> pl.DataFrame:
    """Sums of some rows by keys; shares are of the whole work, which also says how many repetitions there are."""
    each = rows.group_by(*keys, repetition).agg(pl.col("duration_ns").sum(), pl.len().cast(pl.Int64).alias("calls"))
    # A repetition in which the kernel did not run at all has no row.
    ran_always = pl.len() == whole[repetition].n_unique()
    return (
        each.group_by(keys)
        .agg(
            pl.col("duration_ns").sum().alias("gpu_ns"),
            pl.col("calls").sum(),
            pl.when(ran_always).then(pl.col("calls").min()).otherwise(0).cast(pl.Int64).alias("calls_min"),
            pl.col("calls").max().alias("calls_max"),
        )
        .with_columns(
            (pl.col("gpu_ns") / max(1, int(whole["duration_ns"].sum()))).alias("share"), pl.col(keys).cast(pl.String)
        )
    )


def top_kernel(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> dict[str, Any] | None:
    """The kernel function with the most GPU time, as `_leading` has it; None where the work holds no kernel."""
    used = kernel_use(timeline, work, repetition)
    if not used.height:
        return None
    row = used.row(0, named=True)
    kernels = work.filter(pl.col("kind") == "kernel")
    mine = kernels.filter(timeline.trace.kernels["full_name"].gather(kernels["row"]) == row["full_name"])
    return _leading(timeline, row, mine, work[repetition].n_unique())


def top_label(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> dict[str, Any] | None:
    """The category with the most GPU time; None where there is no work."""
    used = label_use(work, repetition)
    if not used.height:
        return None
    row = used.row(0, named=True)
    row["name"] = row["full_name"] = row["category"] = label = row.pop("label")
    return _leading(timeline, row, work.filter(pl.col("label") == label), work[repetition].n_unique())


def _leading(timeline: Timeline, row: dict[str, Any], mine: pl.DataFrame, repetitions: int) -> dict[str, Any]:
    """A row of uses with `repetitions` (passes or steps), what falls to one of them, and the model's `parts`.

    Where repetitions differ in their calls, `calls_each` is None: no such number exists.
    """
    calls = row["calls_min"] if row["calls_min"] == row["calls_max"] else None
    own = {"calls_each": calls, "gpu_ns_each": row["gpu_ns"] / repetitions, "repetitions": repetitions}
    return {**row, **own, "parts": model_parts(timeline, mine)}


def model_parts(timeline: Timeline, work: pl.DataFrame) -> pl.DataFrame:
    """The innermost ranges that hold these launches, by name, largest first: `part`, `gpu_ns`, `launches`, `share`.

    Launches that only the range of the phase itself holds are told apart from those in a range inside it. An operator
    of a framework is no part of the model: its launches belong to the range around it. `share` is of the GPU time.
    """
    annotated = ~is_operator(timeline.trace.ranges)
    if not annotated.all():
        held = nearest(timeline.forest.parent, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
        work = work.with_columns(pl.Series("range", held).replace(NO_RANGE, None))
    rows = work["range"].unique().drop_nulls()
    names = timeline.trace.ranges["name"].cast(pl.String).gather(rows)
    by_row = dict(zip(rows, map(plain_range_name, names), strict=True))
    named = work["range"].replace_strict(by_row, default="outside all ranges", return_dtype=pl.String)
    alone = pl.col("range") == pl.col("outermost")
    part = pl.when(alone).then(pl.format("{}, outside of inner ranges", named)).otherwise(named)
    return (
        work.select("duration_ns", part=part)
        .group_by("part")
        .agg(pl.col("duration_ns").sum().alias("gpu_ns"), pl.len().alias("launches"))
        .sort(["gpu_ns", "part"], descending=[True, False])
        .with_columns(share=pl.col("gpu_ns") / max(1, int(work["duration_ns"].sum())))
    )


#: Part → what its range is called, and the name to give to one that is missing.
ATTENTION_PARTS: Final[dict[str, tuple[re.Pattern[str], str]]] = {
    "scores": (re.compile(r"^(?:comput(?:e|ing) )?(?:attention )?scores$"), "computing_attention_scores"),
    "softmax": (re.compile(r"^(?:comput(?:e|ing) )?(?:attention )?softmax$"), "computing_softmax"),
    "values": (re.compile(r"^(?:comput(?:e|ing) )?final matmul$"), "final_matmul"),
}

ATTENTION_TIMES: Final = table(
    "parts of self-attention",
    "One forward pass, summed over its layers. The grid document, question e.",
    "pass layers",
    Column("scores_ns", pl.Int64, "GPU time of the scores (q·kᵀ, scaling, mask)", title="Scores, all"),
    Column("scores_matmul_ns", pl.Int64, "part of it in matrix products", title="q·kᵀ"),
    Column("softmax_ns", pl.Int64, "GPU time of the softmax"),
    Column("softmax_kernels", pl.Int64, "kernels of the softmax", title="Its kernels"),
    Column("values_ns", pl.Int64, "GPU time of weights · v"),
    Column("values_matmul_ns", pl.Int64, "part of it in matrix products", title="weights·v"),
)

#: Reads and writes of one score by a softmax in five kernels: maximum 1, subtraction 2, exponential 2, sum 1, division
#: 2; by a softmax in one kernel: 2. For other kernel counts the traffic is not known.
_SOFTMAX_ACCESSES: Final = {5: 8, 1: 2}

_HALF_PRECISION = re.compile(r"half|bfloat16|__nv_bfloat16", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class AttentionTime:
    """Time inside self-attention of one profile's forward passes, per layer."""

    passes: pl.DataFrame  #: `ATTENTION_TIMES`
    layers: int | None  #: attention layers in one pass; None where passes differ
    #: the softmax kernels' names speak of fp32 and of no shorter type; None where they say nothing
    single_precision: bool | None


def attention_row(
    found: AttentionTime, size: LMSize | None, batch: int | None, context: int, bandwidth: int | None
) -> dict[str, Any]:
    """Time per layer inside attention, and the ratios of times and FLOPs: the medians over passes, by column.

    Rates are modelled work over measured time; what needs the batch, the model's widths or the memory's bandwidth
    (bytes per second) is left out where that is not known. Products are the kernels of both, where each is known to
    have one; ratios by ranges count scaling and mask as part of the scores. The softmax's traffic, caches not counted,
    is known of the kernels of a known form in fp32.
    """
    passes, layers = found.passes, found.passes["layers"]
    products = passes["scores_matmul_ns"] + passes["values_matmul_ns"]
    known = bool((passes["scores_matmul_ns"] > 0).all() and (passes["values_matmul_ns"] > 0).all())
    times = {name: Spread.of(passes[name] / layers) for name in ATTENTION_TIMES.names if name.endswith("_ns")}
    ratio = Spread.of(passes["softmax_ns"] / products) if known else None
    each = (passes["softmax_kernels"] / layers).unique().to_list()
    kernels = int(each[0]) if len(each) == 1 and float(each[0]).is_integer() else None
    softmax = times["softmax_ns"]
    row: dict[str, Any] = {name: median(spread) for name, spread in times.items()} | {
        "layers": found.layers,
        "passes": passes.height,
        "softmax_min_ns": softmax and softmax.minimum,
        "softmax_max_ns": softmax and softmax.maximum,
        "softmax_kernels": kernels,
        "products_ns": median(Spread.of(products / layers)) if known else None,
        "runtime_ratio": median(ratio),
        "runtime_ratio_min": ratio and ratio.minimum,
        "runtime_ratio_max": ratio and ratio.maximum,
        "range_ratio": median(Spread.of(passes["softmax_ns"] / (passes["scores_ns"] + passes["values_ns"]))),
    }
    if size is None:
        return row
    row["flop_ratio"] = flop_ratio(size.d_head)
    row["times_slower_per_flop"] = ratio.median * row["flop_ratio"] if ratio else None
    if batch is None:
        return row
    product = attention_matmul_flops(batch, size.heads, context, size.d_head)
    row |= {"scores_flops": product, "softmax_flops": softmax_flops(batch, size.heads, context)}
    accesses = _SOFTMAX_ACCESSES.get(kernels or 0) if found.single_precision else None
    moved = accesses * 4 * batch * size.heads * context**2 if accesses else None
    for name, amount, spent in (
        ("scores_flops_per_s", product, row["scores_matmul_ns"]),
        ("values_flops_per_s", product, row["values_matmul_ns"]),
        ("softmax_flops_per_s", row["softmax_flops"], row["softmax_ns"]),
        ("softmax_bytes_per_s", moved, row["softmax_ns"]),
    ):
        row[name] = amount / (spent * 1e-9) if amount is not None and spent else None
    rate = row["softmax_bytes_per_s"]
    return {**row, "softmax_bandwidth_share": rate / bandwidth if rate and bandwidth else None}


def missing_attention_ranges(timeline: Timeline) -> tuple[str, ...]:
    """The names of the ranges that the profile would need and has not, in the order of the computation."""
    texts = {_plain(name) for name in name_categories(timeline.trace.ranges["name"])}
    return tuple(name for pattern, name in ATTENTION_PARTS.values() if not any(pattern.match(text) for text in texts))


def attention_time(timeline: Timeline, phased: PhasedWork) -> AttentionTime | None:
    """Time inside self-attention in the forward passes of a profile.

    None where a range is missing (`missing_attention_ranges`), or no forward pass holds such ranges.
    """
    work = phased.pass_work
    if missing_attention_ranges(timeline) or not work.height:
        return None
    part, instance = _parts(timeline, work)
    mine = work.with_columns(part, instance).filter(pl.col("part").is_not_null())
    duration = pl.col("duration_ns")
    sums = [
        duration.filter(pl.col("part") == name).sum().alias(f"{name}_ns") for name in ATTENTION_PARTS
    ] + [
        duration.filter((pl.col("part") == name) & (pl.col("label") == MATMUL)).sum().alias(f"{name}_matmul_ns")
        for name in ("scores", "values")
    ]  # fmt: skip
    in_softmax = pl.col("part") == "softmax"
    passes = (
        mine.group_by("pass")
        .agg(
            pl.col("instance").filter(in_softmax).n_unique().cast(pl.Int64).alias("layers"),
            (in_softmax & (pl.col("kind") == "kernel")).sum().cast(pl.Int64).alias("softmax_kernels"),
            *sums,
        )
        .filter(pl.min_horizontal("layers", "scores_ns", "softmax_ns", "values_ns") > 0)
        .sort("pass")
        .select(ATTENTION_TIMES.names)
    )
    if not passes.height:
        return None
    layers = passes["layers"].unique().to_list()
    softmax = mine.filter(in_softmax & (pl.col("kind") == "kernel"))
    names = timeline.trace.kernels["full_name"].gather(softmax["row"]).cast(pl.String).unique().to_list()
    return AttentionTime(passes, layers[0] if len(layers) == 1 else None, _single_precision(names))


def _parts(timeline: Timeline, work: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The attention part of each row of work, and the row of the range that makes it one; null for neither."""
    names = timeline.trace.ranges["name"]
    keys = list(ATTENTION_PARTS)
    by_name = np.array([_part_number(name) for name in name_categories(names)], dtype=np.int64)
    own = by_name[names.to_physical().to_numpy()]
    row = np.arange(len(own), dtype=np.int64)
    instance = np.r_[timeline.forest.outermost_match(np.where(own > 0, row + 1, 0)) - 1, NO_RANGE]
    held = instance[work["range"].fill_null(NO_RANGE).to_numpy()]
    number = np.where(held != NO_RANGE, own[np.maximum(held, 0)], 0)
    texts = pl.Series([None, *keys], dtype=pl.Enum(keys))
    found = pl.Series("instance", held)
    return texts.gather(number).alias("part"), found.set(found == NO_RANGE, None)


def _part_number(name: str) -> int:
    plain = _plain(name)
    return next((number for number, (pattern, _) in enumerate(ATTENTION_PARTS.values(), 1) if pattern.match(plain)), 0)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().lower()


def _single_precision(kernel_names: list[str]) -> bool | None:
    if any(_HALF_PRECISION.search(name) for name in kernel_names):
        return False
    return True if all("float" in name for name in kernel_names) else None


PHASE_SPLIT: Final = table(
    "training step split",
    "One phase, summed over the steps. The grid document, question d.",
    "phase gpu_ns busy_ns span_ns matmul_ns inferred_ns kernels ops share",
    column("matmul_share", help="`matmul_ns` of the phase's own `gpu_ns`; null without work"),
    share="share of all GPU time",
)

#: An optimizer whose GPU runs dry for more than the first share of its time waits for launches; below the second, the
#: launches keep up. In between both matter.
_LAUNCH_BOUND_ABOVE: Final = 0.2
_GPU_BOUND_BELOW: Final = 0.05


@dataclass(frozen=True, eq=False)
class TrainingSplit:
    """The GPU time of a profile's training steps by phase."""

    phases: pl.DataFrame  #: `PHASE_SPLIT`; the rows' `gpu_ns` sum to `gpu_ns`
    steps: int  #: how many steps were added up
    wall: Spread  #: wall time of a step
    gpu_ns: int  #: GPU time of all steps, summed durations
    busy_ns: int  #: time in which the GPU did anything, of all steps
    wall_ns: int  #: wall time of all steps

    def phase(self, name: str) -> dict[str, int]:
        """The row of one phase."""
        return self.phases.row(by_predicate=pl.col("phase") == name, named=True)

    @property
    def idle_ns(self) -> int:
        """Time of the steps in which the GPU did nothing."""
        return self.wall_ns - self.busy_ns

    @property
    def matmul_share(self) -> float | None:
        """Share of all GPU time that matrix products take."""
        return int(self.phases["matmul_ns"].sum()) / self.gpu_ns if self.gpu_ns else None

    @property
    def residual_ns(self) -> int:
        """GPU time that no row accounts for; zero by construction, shown because it was not always so elsewhere."""
        return self.gpu_ns - int(self.phases["gpu_ns"].sum())


def training_split(phased: PhasedWork) -> TrainingSplit | None:
    """The GPU time of the steps by phase; None where there are no steps."""
    walls = pl.Series([item.duration_ns for item in phased.steps], dtype=pl.Int64)
    wall = Spread.of(walls)
    if wall is None:
        return None
    work = phased.work
    total = int(work["duration_ns"].sum())
    order = {phase: position for position, phase in enumerate((*PHASES, NO_PHASE))}
    sums = ["gpu_ns", "busy_ns", "span_ns", "matmul_ns", "inferred_ns", "kernels", "ops"]
    phases = (
        phased.phases.group_by("phase")
        .agg(pl.col(sums).sum())
        .sort(pl.col("phase").replace_strict(order))
        .with_columns(
            (pl.col("gpu_ns") / max(1, total)).alias("share"),
            pl.when(pl.col("gpu_ns") > 0).then(pl.col("matmul_ns") / pl.col("gpu_ns")).alias("matmul_share"),
        )
        .select(PHASE_SPLIT.names)
    )
    # Work may outlast its step by a little; what reaches beyond the end is not this step's time.
    ends = {step.index: step.end_ns for step in phased.steps}
    inside = work.with_columns(pl.min_horizontal("end_ns", pl.col("step").replace_strict(ends, return_dtype=pl.Int64)))
    busy_ns = int(busy_by(inside, ["step"])["busy_ns"].sum())
    return TrainingSplit(phases, len(phased.steps), wall, total, busy_ns, int(walls.sum()))


def optimizer_cost(
    phased: PhasedWork, split: TrainingSplit, size: LMSize | None, peak_bytes_per_s: int | None
) -> dict[str, Any] | None:
    """What one optimizer step costs, and whether launches or the GPU set its pace; None without work on the GPU.

    Of the span, the GPU works (`busy_share`), has run dry (`starved_share`: the call that launches its next work had
    not returned when the work before ended), or starts work that was launched in time (`between_share`: a GPU needs
    about 1 µs for the next kernel of a stream). Traffic is that of the assignment's AdamW in fp32, where the optimizer
    launches what that AdamW launches. `pace`: `launches` (the GPU waits for the host), `gpu`, or `both`.

    Args:
        peak_bytes_per_s: memory bandwidth of the device, where the profile says.
    """
    row = split.phase("optimizer")
    if not row["ops"]:
        return None
    starved_ns, between_ns = _gaps(phased.work.filter(pl.col("phase") == "optimizer"))
    launches, gpu_ns, span_ns = (row[name] / split.steps for name in ("ops", "gpu_ns", "span_ns"))
    per_tensor = launches / size.parameter_tensors if size else None
    moved = None
    if size and per_tensor == REFERENCE_ADAMW_LAUNCHES_PER_TENSOR:
        moved = REFERENCE_ADAMW_BYTES_PER_PARAMETER * size.parameters / (gpu_ns * 1e-9)
    starved = starved_ns / row["span_ns"]
    return {
        "launches": launches,
        "launches_per_tensor": per_tensor,
        "gpu_ns": gpu_ns,
        "span_ns": span_ns,
        "busy_share": row["busy_ns"] / row["span_ns"],
        "starved_share": starved,
        "between_share": between_ns / row["span_ns"],
        "span_ns_per_launch": span_ns / launches,
        "gpu_ns_per_launch": gpu_ns / launches,
        "modelled_bytes_per_s": moved,
        "bandwidth_share": moved / peak_bytes_per_s if moved and peak_bytes_per_s else None,
        "pace": "launches" if starved > _LAUNCH_BOUND_ABOVE else "gpu" if starved < _GPU_BOUND_BELOW else "both",
    }


def _gaps(work: pl.DataFrame) -> tuple[int, int]:
    """Time between pieces of work of a step: while the next was not launched yet, and although it was."""
    reach = pl.col("end_ns").cum_max().shift(1).over("step")
    gaps = work.sort("step", "start_ns").select(
        pl.max_horizontal(pl.col("start_ns") - reach, pl.lit(0)).alias("gap"),
        (pl.col("launch_end_ns") > reach).fill_null(False).alias("late"),
    )
    late = int(gaps.filter("late")["gap"].sum())
    return late, int(gaps["gap"].sum()) - late
