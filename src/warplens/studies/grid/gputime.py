"""GPU time of forward passes and training steps by kernel, model part, part of attention, and phase.

Attention: the softmax is compared with the two matrix products, in measured GPU time and modelled FLOPs. Annotated
ranges identify the parts, their words separated by blanks or underscores: `computing attention scores` (q·kᵀ, scaling,
mask), `computing softmax`, `final matmul` (weights·v). A part's time is the GPU time of the work launched inside its
range; the products are the matrix-product kernels in the first and last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.streams import busy_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, nearest
from warplens.analysis.window import NO_PHASE, PHASES, plain_range_name
from warplens.profile.columns import KERNEL_NAME, column, table
from warplens.profile.schema import Column, name_categories, name_labels
from warplens.studies.grid.cells import (
    REFERENCE_ADAMW_BYTES_PER_PARAMETER,
    REFERENCE_ADAMW_LAUNCHES_PER_TENSOR,
    attention_matmul_flops,
    flop_ratio,
    softmax_flops,
)
from warplens.studies.grid.passes import MATMUL, PhasedWork, Spread, median
from warplens.workloads.settings import LMSize

_SUMMED: Final = {
    "gpu_ns": "GPU time, summed over all repetitions",
    "calls": "calls, summed over all repetitions",
    "share": "share of all GPU work of the scope",
}
KERNEL_USES: Final = table(
    "kernels of a forward pass or step",
    "One kernel function. The grid document, questions b and c.",
    KERNEL_NAME,
    "full_name category gpu_ns calls calls_min calls_max share",
    **_SUMMED,
)

LABEL_USES: Final = table(
    "categories of a forward pass or step",
    "One category of kernels, or one kind of other GPU work. The grid document, questions b and c.",
    "label gpu_ns calls calls_min calls_max share",
    **_SUMMED,
)


def kernel_use(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by kernel function in rows of `PhasedWork.work`, the largest first (`KERNEL_USES`).

    `repetition` is the column that numbers the repetitions: `pass` or `step`.
    """
    kernels = work.filter(pl.col("kind") == "kernel").rename({"label": "category"})
    names = timeline.trace.kernels.select("name", "full_name")[kernels["row"]]
    used = _use(kernels.hstack(names), ["full_name", "name", "category"], work, repetition)
    return used.select(KERNEL_USES.names).sort(["gpu_ns", "full_name"], descending=[True, False])


def label_use(work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by category of kernel and by kind of other work, the largest first (`LABEL_USES`)."""
    used = _use(work, ["label"], work, repetition)
    return used.select(LABEL_USES.names).sort(["gpu_ns", "label"], descending=[True, False])


def _use(rows: pl.DataFrame, keys: list[str], all_work: pl.DataFrame, repetition: str) -> pl.DataFrame:
    """Sums of rows by keys; `all_work` gives the total for the shares and the number of repetitions."""
    by_repetition = rows.group_by(*keys, repetition).agg(
        pl.col("duration_ns").sum(), pl.len().cast(pl.Int64).alias("calls")
    )
    # A repetition in which the kernel did not run has no row, but counts as zero calls.
    ran_always = pl.len() == all_work[repetition].n_unique()
    return (
        by_repetition.group_by(keys)
        .agg(
            pl.col("duration_ns").sum().alias("gpu_ns"),
            pl.col("calls").sum(),
            pl.when(ran_always).then(pl.col("calls").min()).otherwise(0).cast(pl.Int64).alias("calls_min"),
            pl.col("calls").max().alias("calls_max"),
        )
        .with_columns(
            (pl.col("gpu_ns") / max(1, int(all_work["duration_ns"].sum()))).alias("share"), pl.col(keys).cast(pl.String)
        )
    )


def top_kernel(timeline: Timeline, work: pl.DataFrame, repetition: str = "pass") -> dict[str, Any] | None:
    """The kernel function with the most GPU time; None where the work holds no kernel.

    A row of `KERNEL_USES` with `repetitions` (passes or steps), `calls_each` and `gpu_ns_each` for one of them, and
    the `parts` that launch it (see `model_parts`). `calls_each` is None where repetitions differ.
    """
    used = kernel_use(timeline, work, repetition)
    if not used.height:
        return None
    row = used.row(0, named=True)
    kernels = work.filter(pl.col("kind") == "kernel")
    calls = kernels.filter(timeline.trace.kernels["full_name"].gather(kernels["row"]) == row["full_name"])
    return _leading(timeline, row, calls, work[repetition].n_unique())


def top_label(timeline: Timeline, work: pl.DataFrame) -> dict[str, Any] | None:
    """The category with the most GPU time of a pass, in the form of `top_kernel`; None where there is no work."""
    used = label_use(work)
    if not used.height:
        return None
    row = used.row(0, named=True)
    row["name"] = row["full_name"] = row["category"] = label = row.pop("label")
    return _leading(timeline, row, work.filter(pl.col("label") == label), work["pass"].n_unique())


def _leading(timeline: Timeline, row: dict[str, Any], work: pl.DataFrame, repetitions: int) -> dict[str, Any]:
    return {
        **row,
        "calls_each": row["calls_min"] if row["calls_min"] == row["calls_max"] else None,
        "gpu_ns_each": row["gpu_ns"] / repetitions,
        "repetitions": repetitions,
        "parts": model_parts(timeline, work),
    }


def model_parts(timeline: Timeline, work: pl.DataFrame) -> pl.DataFrame:
    """GPU time by name of the innermost range around the launch, largest first.

    Columns: `part`, `gpu_ns`, `launches`, `share` of the GPU time. Launches directly inside the range of a phase form a
    part of their own. Framework operators are skipped: their launches belong to the annotated range around them.
    """
    annotated = ~is_operator(timeline.trace.ranges)
    if not annotated.all():
        innermost = nearest(timeline.forest.parent, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
        work = work.with_columns(pl.Series("range", innermost).replace(NO_RANGE, None))
    rows = work["range"].unique().drop_nulls()
    names = timeline.trace.ranges["name"].cast(pl.String).gather(rows)
    by_row = dict(zip(rows, map(plain_range_name, names), strict=True))
    named = work["range"].replace_strict(by_row, default="outside all ranges", return_dtype=pl.String)
    directly_in_phase = pl.col("range") == pl.col("outermost")
    part = pl.when(directly_in_phase).then(pl.format("{}, outside of inner ranges", named)).otherwise(named)
    return (
        work.select("duration_ns", part=part)
        .group_by("part")
        .agg(pl.col("duration_ns").sum().alias("gpu_ns"), pl.len().alias("launches"))
        .sort(["gpu_ns", "part"], descending=[True, False])
        .with_columns(share=pl.col("gpu_ns") / max(1, int(work["duration_ns"].sum())))
    )


#: Part → pattern of its range's name, and the name to suggest where it is missing.
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

#: Kernels of a softmax → its reads and writes per score. Five kernels: maximum 1, subtraction 2, exponential 2, sum 1,
#: division 2. For other kernel counts the traffic is not known.
_SOFTMAX_ACCESSES: Final = {5: 8, 1: 2}

_HALF_PRECISION = re.compile(r"half|bfloat16|__nv_bfloat16", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class AttentionTime:
    """Time inside self-attention in the forward passes of one profile."""

    passes: pl.DataFrame  #: `ATTENTION_TIMES`
    layers: int | None  #: attention layers in one pass; None where passes differ
    #: whether the softmax kernels compute in fp32, by their names; None where these do not tell
    single_precision: bool | None


def attention_row(
    attention: AttentionTime, size: LMSize | None, batch: int | None, context: int, bandwidth: int | None
) -> dict[str, Any]:
    """Time per layer inside attention and the ratios of times and FLOPs, as medians over passes.

    Rates are modelled work / measured time. Values that need the batch, the model's widths or the memory bandwidth
    (bytes per second) are left out where these are not known. Products are the matrix-product kernels of scores and
    values, if both have some; `range_ratio` counts scaling and mask as part of the scores. The softmax's traffic,
    caches not counted, is modelled for fp32 softmaxes of one or five kernels only.
    """
    passes, layers = attention.passes, attention.passes["layers"]
    products = passes["scores_matmul_ns"] + passes["values_matmul_ns"]
    has_products = bool((passes["scores_matmul_ns"] > 0).all() and (passes["values_matmul_ns"] > 0).all())
    times = {name: Spread.of(passes[name] / layers) for name in ATTENTION_TIMES.names if name.endswith("_ns")}
    ratio = Spread.of(passes["softmax_ns"] / products) if has_products else None
    kernels = _only_whole((passes["softmax_kernels"] / layers).unique().to_list())
    softmax = times["softmax_ns"]
    row: dict[str, Any] = {name: median(spread) for name, spread in times.items()} | {
        "layers": attention.layers,
        "passes": passes.height,
        "softmax_min_ns": softmax and softmax.minimum,
        "softmax_max_ns": softmax and softmax.maximum,
        "softmax_kernels": kernels,
        "products_ns": median(Spread.of(products / layers)) if has_products else None,
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
    accesses = _SOFTMAX_ACCESSES.get(kernels or 0) if attention.single_precision else None
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


def _only_whole(numbers: Sequence[float]) -> int | None:
    """The only number of these, if there is just one and it is whole."""
    return int(numbers[0]) if len(numbers) == 1 and float(numbers[0]).is_integer() else None


def missing_attention_ranges(timeline: Timeline) -> tuple[str, ...]:
    """The names of the attention ranges that the profile lacks, in the order of the computation."""
    present = {_plain(name) for name in name_categories(timeline.trace.ranges["name"])}
    return tuple(name for pattern, name in ATTENTION_PARTS.values() if not any(map(pattern.match, present)))


def attention_time(timeline: Timeline, phased: PhasedWork) -> AttentionTime | None:
    """Time inside self-attention in the forward passes of a profile.

    None where a range is missing (`missing_attention_ranges`), or where no forward pass has all parts.
    """
    work = phased.pass_work
    if missing_attention_ranges(timeline) or not work.height:
        return None
    part, instance = _parts(timeline, work)
    inside = work.with_columns(part, instance).filter(pl.col("part").is_not_null())
    duration, in_part = pl.col("duration_ns"), {name: pl.col("part") == name for name in ATTENTION_PARTS}
    products = {f"{name}_matmul_ns": in_part[name] & (pl.col("label") == MATMUL) for name in ("scores", "values")}
    chosen = {f"{name}_ns": rows for name, rows in in_part.items()} | products
    sums = [duration.filter(rows).sum().alias(name) for name, rows in chosen.items()]
    in_softmax = in_part["softmax"]
    passes = (
        inside.group_by("pass")
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
    softmax = inside.filter(in_softmax & (pl.col("kind") == "kernel"))
    names = timeline.trace.kernels["full_name"].gather(softmax["row"]).cast(pl.String).unique().to_list()
    return AttentionTime(passes, layers[0] if len(layers) == 1 else None, _single_precision(names))


def _parts(timeline: Timeline, work: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The attention part of each row of work, and the row of that part's range (`instance`); null outside of parts."""
    names = timeline.trace.ranges["name"]
    keys = list(ATTENTION_PARTS)
    number_of_range = name_labels(names, _part_number)
    row = np.arange(len(number_of_range), dtype=np.int64)
    outermost = timeline.forest.outermost_match(np.where(number_of_range > 0, row + 1, 0)) - 1
    instance = np.r_[outermost, NO_RANGE][work["range"].fill_null(NO_RANGE).to_numpy()]
    number = np.where(instance != NO_RANGE, number_of_range[np.maximum(instance, 0)], 0)
    part_of_number = pl.Series([None, *keys], dtype=pl.Enum(keys))
    instances = pl.Series("instance", instance)
    return part_of_number.gather(number).alias("part"), instances.set(instances == NO_RANGE, None)


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

#: Share of the optimizer's span in which the GPU has run out of launched work: above the first, the optimizer is
#: launch-bound; below the second, GPU-bound; in between, both matter.
_LAUNCH_BOUND_ABOVE: Final = 0.2
_GPU_BOUND_BELOW: Final = 0.05


@dataclass(frozen=True, eq=False)
class TrainingSplit:
    """The GPU time of a profile's training steps by phase."""

    phases: pl.DataFrame  #: `PHASE_SPLIT`; the rows' `gpu_ns` sum to `gpu_ns`
    steps: int  #: number of steps
    wall: Spread  #: wall time of a step
    gpu_ns: int  #: GPU time (summed durations) of all steps
    busy_ns: int  #: time with GPU work running, of all steps
    wall_ns: int  #: wall time of all steps

    def phase(self, name: str) -> dict[str, int]:
        """The row of one phase."""
        return self.phases.row(by_predicate=pl.col("phase") == name, named=True)

    @property
    def idle_ns(self) -> int:
        """GPU idle time of all steps."""
        return self.wall_ns - self.busy_ns

    @property
    def matmul_share(self) -> float | None:
        """Share of all GPU time that matrix products take."""
        return int(self.phases["matmul_ns"].sum()) / self.gpu_ns if self.gpu_ns else None

    @property
    def residual_ns(self) -> int:
        """GPU time that no row accounts for: zero by construction, reported as a check."""
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
    # Work may outlast its step a little; the part beyond the end is not counted as this step's time.
    ends = {step.index: step.end_ns for step in phased.steps}
    inside = work.with_columns(pl.min_horizontal("end_ns", pl.col("step").replace_strict(ends, return_dtype=pl.Int64)))
    busy_ns = int(busy_by(inside, ["step"])["busy_ns"].sum())
    return TrainingSplit(phases, len(phased.steps), wall, total, busy_ns, int(walls.sum()))


def optimizer_cost(
    phased: PhasedWork, split: TrainingSplit, size: LMSize | None, peak_bytes_per_s: int | None
) -> dict[str, Any] | None:
    """Cost of one optimizer step, and whether launches or the GPU set its pace; None without GPU work.

    The span divides into `busy_share` (the GPU works), `starved_share` (idle before work whose launch call had not
    returned when the previous work ended) and `between_share` (idle before work that was launched in time: a GPU needs
    about 1 µs to start the next kernel of a stream). Traffic is modelled as that of the assignment's AdamW in fp32, if
    the optimizer makes the same number of launches per tensor. `pace`: `launches` (the GPU waits for the host), `gpu`,
    or `both`.
    """
    row = split.phase("optimizer")
    if not row["ops"]:
        return None
    starved_ns, between_ns = _gaps(phased.work.filter(pl.col("phase") == "optimizer"))
    launches, gpu_ns, span_ns = (row[name] / split.steps for name in ("ops", "gpu_ns", "span_ns"))
    per_tensor = launches / size.parameter_tensors if size else None
    bytes_per_s = None
    if size and per_tensor == REFERENCE_ADAMW_LAUNCHES_PER_TENSOR:
        bytes_per_s = REFERENCE_ADAMW_BYTES_PER_PARAMETER * size.parameters / (gpu_ns * 1e-9)
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
        "modelled_bytes_per_s": bytes_per_s,
        "bandwidth_share": bytes_per_s / peak_bytes_per_s if bytes_per_s and peak_bytes_per_s else None,
        "pace": "launches" if starved > _LAUNCH_BOUND_ABOVE else "gpu" if starved < _GPU_BOUND_BELOW else "both",
    }


def _gaps(work: pl.DataFrame) -> tuple[int, int]:
    """Idle time between pieces of work of a step: before work launched too late, and before work launched in time."""
    previous_end = pl.col("end_ns").cum_max().shift(1).over("step")
    gaps = work.sort("step", "start_ns").select(
        pl.max_horizontal(pl.col("start_ns") - previous_end, pl.lit(0)).alias("gap"),
        (pl.col("launch_end_ns") > previous_end).fill_null(False).alias("late"),
    )
    late_ns = int(gaps.filter("late")["gap"].sum())
    return late_ns, int(gaps["gap"].sum()) - late_ns
