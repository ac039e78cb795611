"""The operator at which each piece of GPU work is counted, so that no work is counted twice.

Operators nest: `aten::linear` calls `aten::addmm`, which launches the kernels. Each piece of GPU work goes to the
innermost operator around its launch with a model; where two operators chosen in this way enclose one another, the outer
one stands for both. So products are counted where they are launched, and an operator without a formula is counted
through its caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.categories import classify_names
from warplens.analysis.frames import duration_ns, ratio
from warplens.analysis.kernel_names import HALF_SUMS
from warplens.analysis.phases import phase_of_work
from warplens.analysis.roofs import ITEM
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import Window
from warplens.analysis.work.amounts import FAMILIES, MATMUL_FAMILIES
from warplens.analysis.work.formulas import BYTES_ONLY, work_of
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.peaks import peaks_of
from warplens.profile.schema import Column, Int64s, name_categories

_INPUTS = ("name", "input_shapes", "input_types", "input_strides", "concrete_inputs")

#: Result of a model. Either the family or the reason is null.
_MODEL_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "family": pl.Enum(FAMILIES),
    **dict.fromkeys(("flops", "flops_full", "known_bytes", "untyped"), pl.Int64),
    "reason": pl.String,
}


@dataclass(frozen=True, eq=False)
class Counting:
    """The operators at which GPU work is counted."""

    #: for each row of `Timeline.work` the innermost operator around its launch, a row of `Trace.ranges`; `NO_RANGE` for
    #: none
    launcher: Int64s
    counted_at: Int64s  #: the operator at which its work is counted; `NO_RANGE` where none has a model
    models: pl.DataFrame  #: `range` (an operator that launched GPU work, itself or through others) and `_MODEL_SCHEMA`


def count_work(timeline: Timeline) -> Counting:
    """Models every operator that launched GPU work, and chooses the operator at which each piece is counted."""
    tree, count = timeline.operators, timeline.trace.ranges.height
    work = timeline.work
    launched = work["range"].fill_null(NO_RANGE).to_numpy()
    launcher = tree.of(np.where(work["inferred"].to_numpy(), NO_RANGE, launched))
    pieces = np.bincount(launcher[launcher != NO_RANGE], minlength=count)
    models = _models(timeline, np.flatnonzero(tree.forest.inclusive(pieces) > 0))
    modelled = np.zeros(count, dtype=np.int64)
    rows = models.filter(pl.col("family").is_not_null())["range"].to_numpy()
    modelled[rows] = rows + 1
    innermost = np.r_[tree.forest.innermost_match(modelled), 0][launcher] - 1
    selected = np.zeros(count, dtype=np.int64)
    innermost_used = innermost[innermost != NO_RANGE]
    selected[innermost_used] = innermost_used + 1
    counted_at = np.r_[tree.forest.outermost_match(selected), 0][innermost] - 1
    return Counting(launcher, counted_at, models)


#: Upper bound of an operator's work: 1e18 FLOPs take the fastest GPU minutes, and no memory holds 1e18 bytes.
_LARGEST_WORK: Final = 10**18


def _model(inputs: tuple[str | None, ...]) -> dict[str, Any]:
    name, *recorded = inputs
    work = work_of(name or "", *recorded)
    if isinstance(work, str):
        return {"reason": work}
    full = work.flops if work.flops_full is None else work.flops_full
    if max(full, work.flops, work.bytes) > _LARGEST_WORK:  # a trace may contain wrong shapes
        return {"reason": "its shapes are larger than any memory"}
    counted = {"flops": work.flops, "flops_full": full, "known_bytes": work.bytes, "untyped": work.untyped}
    return {"family": work.family, **counted}


def _models(timeline: Timeline, rows: Int64s) -> pl.DataFrame:
    """The models of these operators (rows of `Trace.ranges`); each distinct combination of inputs is evaluated once."""
    names = timeline.trace.ranges["name"].gather(rows)
    modules = pl.DataFrame({"range": rows, "name": names}, schema_overrides={"range": pl.Int64})
    recorded = timeline.trace.operators.select("range", *_INPUTS[1:])
    joined = modules.join(recorded, on="range", how="left", maintain_order="left")
    combinations = joined.group_by(_INPUTS, maintain_order=True).agg("range")
    inputs = combinations.select(pl.col(_INPUTS).cast(pl.String)).iter_rows()
    models = pl.DataFrame([*map(_model, inputs)], schema=_MODEL_SCHEMA, orient="row")
    return combinations.select("range").hstack(models).explode("range").sort("range")


OPERATOR_WORK: Final = table(
    "operators with modelled work",
    "One operator whose work is counted. `warplens.analysis.work.catalogue.operator_work`.",
    column("range", dtype=pl.Int64, help="row of the operator in `ranges`", kind="count"),
    "name input_shapes input_types",
    column("family").but(dtype=pl.Enum(FAMILIES), help="kind of work, as above"),
    "phase device precision tensor_cores",
    Column("link", pl.Boolean, "whether it moved data between host and GPU"),
    "kernels gpu_ns flops flops_full bytes",
    column("peak_flops_per_s", help="rate of the GPU for that format; null where it is not known"),
    "peak_bytes_per_s",
    name="operator",
    phase="`backward`, `optimizer`, `forward` or `none`, from names of enclosing ranges",
    device="ordinal of the GPU",
    precision="format of the operands, from the name of its longest kernel, of a product from that of the kernel that"
    " multiplies, or else the inputs; null where neither reveals it",
    tensor_cores="whether tensor cores do the arithmetic of that kernel; null where its name does not reveal it",
    kernels="pieces of GPU work that it launched, itself or through others, in the window",
    gpu_ns="their summed duration",
    flops="modelled FLOPs; 0 where the operator's first work began before the window",
    bytes="modelled bytes; null where a type is not known",
)

UNMODELLED: Final = table(
    "work without a model",
    "One operator name and reason. `unmodelled` in the JSON of `warplens flops`.",
    "name reason operators kernels gpu_ns share",
    name="operator that launched the work; null for work that no operator launched",
    reason="why its work is not known",
    kernels="pieces of GPU work",
    gpu_ns="summed duration of that work",
    share="share of the summed time of all GPU work in the window",
)

#: Copies of these directions stay on the GPU.
_ON_DEVICE: Final = ("device-to-device",)

#: Where lists hold tensors of unrecorded type, the kernel's name gives the size: PyTorch copies opaque items of this
#: many bytes, or names the type.
_OPAQUE: Final = r"OpaqueType<(\d+)"
#: Operand types with one possible format; a product of `float` may be computed as tf32.
_FORMATS: Final = {"c10::Half": "fp16", "c10::BFloat16": "bf16", "double": "fp64", "c10::Float8_e4m3fn": "fp8"}
_FIRST_TYPE: Final = r'^\["([^"]*)"'


@dataclass(frozen=True, eq=False)
class ModelledWork:
    """Modelled work with measured time, over one window."""

    operators: pl.DataFrame  #: `OPERATOR_WORK`, in the order of the profile
    unmodelled: pl.DataFrame  #: `UNMODELLED`, the largest first
    total_ns: int  #: summed time of all GPU work of the window
    peak_sources: tuple[str, ...]  #: sources of the peaks, one sentence for each kind of GPU

    @property
    def modelled_ns(self) -> int:
        """Time of the GPU work whose operator has a model."""
        return int(self.operators["gpu_ns"].sum())

    @property
    def bytes_only_ns(self) -> int:
        """Time of generated kernels, of which the bytes alone are known."""
        return int(self.unmodelled.filter(pl.col("reason") == BYTES_ONLY)["gpu_ns"].sum())

    @property
    def coverage_share(self) -> float | None:
        """Share of the GPU time whose operator has a model; None without GPU work."""
        return self.modelled_ns / self.total_ns if self.total_ns else None

    @property
    def flops(self) -> int:
        """All modelled FLOPs."""
        return int(self.operators["flops"].sum())

    @property
    def matmul_flops(self) -> int:
        """FLOPs of matrix products, convolutions and attention: the usual subject of FLOP counters."""
        products = self.operators.filter(pl.col("family").cast(pl.String).is_in(MATMUL_FAMILIES))
        return int(products["flops"].sum())


def operator_work(timeline: Timeline, window: Window) -> ModelledWork:
    """The modelled work of the operators in the window, with the measured time of the work they launched.

    An operator's work counts in the window in which the first of its GPU work begins, so that adjoining windows add up.

    Returns:
        Empty tables where the profile holds no operators.
    """
    pieces = _pieces(timeline)
    inside = np.zeros(pieces.height, dtype=np.bool_)
    inside[timeline.work_rows_in(window)] = True
    pieces = pieces.with_columns(pl.Series("inside", inside))
    counting = count_work(timeline)
    pieces = pieces.with_columns(
        pl.Series("range", counting.counted_at), pl.Series("launcher", counting.launcher), phase_of_work(timeline)
    )
    total = int(pieces.filter("inside")["duration_ns"].sum())
    counted = pieces.filter(pl.col("range") != NO_RANGE)
    uncounted = pieces.filter((pl.col("range") == NO_RANGE) & pl.col("inside"))
    sources = {
        peaks.source for peaks in map(peaks_of, timeline.trace.capture.devices) if peaks is not None and peaks.source
    }
    return ModelledWork(
        _operators(timeline, counted, counting.models),
        _unmodelled(timeline, uncounted, counting.models, total),
        total,
        tuple(sorted(sources)),
    )


def _pieces(timeline: Timeline) -> pl.DataFrame:
    """All GPU work with the facts from its kernels' names."""
    work = timeline.work.select("kind", "row", "device", "api_row", "range", duration_ns().alias("duration_ns")).rename(
        {"range": "held"}
    )
    kernels = timeline.trace.kernels
    # Names are searched once per distinct name, not per kernel.
    names, full_names = name_categories(kernels["full_name"]), kernels["full_name"].to_physical()
    opaque = names.str.extract(_OPAQUE).cast(pl.Int64)
    kernel_facts = classify_names(kernels).select(
        pl.col("precision", "category").cast(pl.String),
        "tensor_cores",
        pl.coalesce(
            opaque.gather(full_names),
            pl.col("precision").cast(pl.String).replace_strict(ITEM, default=None, return_dtype=pl.Int64),
        ).alias("item_bytes"),
        kernels["graph_node"].is_not_null().alias("replayed"),
        names.str.contains(HALF_SUMS).gather(full_names).alias("half_sums"),
    )
    kernel_facts = kernel_facts.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64), kind=pl.lit("kernel"))
    directions = timeline.trace.copies["direction"].cast(pl.String)
    copies = pl.DataFrame({"link": ~directions.is_in(_ON_DEVICE)}).with_row_index("row")
    copies = copies.with_columns(pl.col("row").cast(pl.Int64), kind=pl.lit("copy"))
    work = work.with_columns(pl.col("kind").cast(pl.String))
    return work.join(kernel_facts, on=["kind", "row"], how="left", maintain_order="left").join(
        copies, on=["kind", "row"], how="left", maintain_order="left"
    )


def _operators(timeline: Timeline, counted: pl.DataFrame, models: pl.DataFrame) -> pl.DataFrame:
    """Operators with their modelled work and their measured GPU time (`OPERATOR_WORK`)."""
    duration, inside = pl.col("duration_ns"), pl.col("inside")
    longest = duration.arg_max()
    # What multiplies: tensor cores, else kernels named as products, else unknown ones. Conversions of layout and sums
    # over a bias may take longer, but none of the product's FLOPs are theirs.
    rank = (
        pl.when("tensor_cores").then(3)
        .when(pl.col("category").is_in(MATMUL_FAMILIES)).then(2)
        .when(pl.col("category").is_not_null() & pl.col("tensor_cores").is_null()).then(1)
        .otherwise(0)
    )  # fmt: skip
    multiplying = pl.when((rank == rank.max()) & (rank > 0)).then(duration).arg_max()
    measured = counted.group_by("range", maintain_order=True).agg(
        # Work is sorted by begin: the first piece decides which window the operator belongs to.
        inside.first().alias("begins_inside"),
        pl.col("phase").first().cast(pl.String),
        pl.col("device").first(),
        *(pl.col(name).get(longest) for name in ("precision", "tensor_cores", "item_bytes")),
        *(pl.col(name).get(multiplying).alias(f"{name}_of_product") for name in ("precision", "tensor_cores")),
        pl.col("half_sums").get(multiplying).fill_null(value=False),
        pl.col("link").fill_null(value=False).any(),
        inside.sum().cast(pl.Int64).alias("kernels"),
        duration.filter(inside).sum().alias("gpu_ns"),
    )
    measured = measured.filter(pl.col("kernels") > 0)
    frame = measured.join(models, on="range", how="left", maintain_order="left").join(
        timeline.trace.operators.select("range", "input_shapes", "input_types"), on="range", how="left"
    )
    begins = pl.col("begins_inside")
    size = pl.when(pl.col("untyped") > 0).then(pl.col("untyped") * pl.col("item_bytes")).otherwise(0)
    frame = frame.with_columns(
        timeline.trace.ranges["name"].gather(frame["range"]).cast(pl.String),
        *(pl.when(begins).then(name).otherwise(0).alias(name) for name in ("flops", "flops_full")),
        pl.when(begins).then(pl.col("known_bytes") + size).otherwise(0).alias("bytes"),
    )
    return OPERATOR_WORK.conform(_with_peaks(timeline, frame).sort("range"))


def _with_peaks(timeline: Timeline, frame: pl.DataFrame) -> pl.DataFrame:
    """The peaks of each operator: those of its GPU, for the format of a product's kernel, or of the longest one."""
    products = pl.col("family").cast(pl.String).is_in(MATMUL_FAMILIES)
    # Everything else computes on the vector units in fp32, whatever its storage format; only fp64 stays fp64.
    operand = pl.col("input_types").cast(pl.String).str.extract(_FIRST_TYPE)
    of_inputs = operand.replace_strict(_FORMATS, default=None, return_dtype=pl.String)
    multiplied = pl.coalesce("precision_of_product", of_inputs)
    wide = pl.when(pl.col("precision") == "fp64").then(pl.lit("fp64")).otherwise(pl.lit("fp32"))
    frame = frame.with_columns(
        pl.when(products).then(multiplied).otherwise(wide).alias("format"),
        pl.when(products).then("tensor_cores_of_product").otherwise(pl.lit(False)).alias("on_tensor_cores"),
        pl.when(products).then(multiplied).otherwise("precision").alias("precision"),
        pl.when(products).then("tensor_cores_of_product").otherwise("tensor_cores").alias("tensor_cores"),
    )
    arithmetic = ["device", "format", "on_tensor_cores", "half_sums"]
    keys = frame.select(arithmetic).unique()
    rows = []
    for device, precision, tensor_cores, half_sums in keys.iter_rows():
        peaks = peaks_of(timeline.trace.capture.device(device))
        compute = None if peaks is None else peaks.of(precision, tensor_cores=tensor_cores, half_sums=half_sums)
        rows.append((device, precision, tensor_cores, half_sums, compute, None if peaks is None else peaks.bytes_per_s))
    roofs = pl.DataFrame(
        rows,
        schema={**keys.schema, "peak_flops_per_s": pl.Float64(), "peak_bytes_per_s": pl.Float64()},
        orient="row",
    )
    joined = frame.join(roofs, on=arithmetic, how="left", nulls_equal=True)
    # Transfers between host and GPU are bound by the link, whose speed is not in the profile.
    return joined.with_columns(
        pl.when(pl.col("link")).then(None).otherwise("peak_bytes_per_s").alias("peak_bytes_per_s")
    )


def _unmodelled(timeline: Timeline, rest: pl.DataFrame, models: pl.DataFrame, total: int) -> pl.DataFrame:
    """GPU time without modelled work, by operator and reason (`UNMODELLED`), the largest first."""
    ranges = timeline.trace.ranges
    outside = (
        pl.when(pl.col("replayed") | (pl.col("kind") == "graph"))
        .then(pl.lit("replayed from a CUDA graph"))
        .when(pl.col("api_row").is_null())
        .then(pl.lit("its launching call is not in the profile"))
        .otherwise(pl.lit("launched outside all operators"))
    )
    names = ranges["name"].gather(pl.Series(rest["launcher"].to_numpy()).replace(NO_RANGE, None))
    named = rest.with_columns(names.cast(pl.String).alias("name")).join(
        models.select(pl.col("range").alias("launcher"), "reason"), on="launcher", how="left"
    )
    groups = (
        named.with_columns(pl.when(pl.col("launcher") == NO_RANGE).then(outside).otherwise("reason").alias("reason"))
        .group_by("name", "reason")
        .agg(
            pl.col("launcher").filter(pl.col("launcher") != NO_RANGE).n_unique().alias("operators"),
            pl.len().alias("kernels"),
            pl.col("duration_ns").sum().alias("gpu_ns"),
        )
        .with_columns(ratio(pl.col("gpu_ns"), pl.lit(total)).alias("share"))
    )
    return UNMODELLED.conform(groups).sort("gpu_ns", "name", "reason", descending=[True, False, False], nulls_last=True)


# --- Achieved rates of groups of operators, and where they stand under the roofs ---
#
# A roofline says what a GPU could do at best with this much work; how far a group of operators stays below has many
# reasons. Because bytes are the least that must move, a group can seem faster than the memory: then what it reads was
# still in a cache (S. Williams et al., "Roofline", CACM 52(4), 2009).

#: What operators can be grouped by → the columns that then tell groups apart.
_GROUPING_KEYS: Final = {
    "name": ("name", "family"),
    "shapes": ("name", "family", "input_shapes", "input_types"),
    "family": ("family",),
    "phase": ("phase",),
    "precision": ("precision",),
    "device": ("device",),
}
GROUPINGS: Final = tuple(_GROUPING_KEYS)

WORK: Final = table(
    "modelled work",
    "One group of operators. `warplens flops`; of the first seven columns, those of `--by` stand there. FLOPs and"
    " bytes are [modelled](flops.md), time is measured.",
    "name family input_shapes input_types phase precision device operators gpu_ns share flops flops_full"
    " bytes flops_per_s",
    column("bytes_per_s", help="`bytes` over `gpu_ns`", title="Bandwidth"),
    column("intensity", help="`flops` over `bytes`", title="FLOP/B"),
    column(
        "peak_flops_per_s",
        help="what the GPU could compute in that time in the formats of these operators; null where it is not known",
    ),
    "peak_bytes_per_s",
    Column("flops_share", pl.Float64, "`flops_per_s` over its peak"),
    Column(
        "bytes_share", pl.Float64, "`bytes_per_s` over its peak; 1 where it is above, for then data came from a cache"
    ),
    "side",
    column(
        "roof_share",
        help="how much of the roof at this intensity was reached: the larger of the two shares",
        title="Of roof",
    ),
    name="operator",
    precision="format of the operands, from the name of the longest kernel, of a product from that of the kernel that"
    " multiplies, or else the inputs; null where neither reveals it",
    gpu_ns="summed duration of what the operators launched",
    share="share of the summed time of all GPU work in the window, modelled or not",
    bytes="modelled bytes: every tensor moved once; null where a type is not known",
    keys="name family input_shapes input_types phase precision device",
    side="`memory` left of the ridge of the roofline, `compute` right of it",
)


def work_statistics(modelled: ModelledWork, by: str = "name") -> pl.DataFrame:
    """Modelled work by group of operators, most GPU time first.

    Args:
        modelled: result of `operator_work`.
        by: one of `GROUPINGS`.

    Returns:
        `WORK` by the columns of the grouping. `share` is of all GPU work's time in the window, modelled or not; `side`
        is `memory` left of the ridge where the two roofs meet, else `compute`; `roof_share` is the share of its roof
        that a group reached. Null where not applicable or unknown.

    Raises:
        UsageError: operators cannot be grouped by that.
    """
    if by not in _GROUPING_KEYS:
        raise UsageError(f"operators cannot be grouped by {by!r}; choose one of {', '.join(GROUPINGS)}")
    keys = _GROUPING_KEYS[by]
    operators = modelled.operators
    time = pl.col("gpu_ns")
    groups = operators.group_by(keys, maintain_order=True).agg(
        pl.len().alias("operators"),
        time.sum(),
        pl.col("flops", "flops_full").sum(),
        pl.when(pl.col("bytes").null_count() == 0).then(pl.col("bytes").sum()).alias("bytes"),
        *(_mean_over_time(peak, time) for peak in _PEAKS),
    )
    seconds = pl.col("gpu_ns") / 1e9
    groups = groups.with_columns(
        ratio(time, pl.lit(modelled.total_ns)).alias("share"),
        ratio(pl.col("flops"), seconds).alias("flops_per_s"),
        ratio(pl.col("bytes"), seconds).alias("bytes_per_s"),
        ratio(pl.col("flops"), pl.col("bytes")).alias("intensity"),
    ).with_columns(
        ratio(pl.col("flops_per_s"), pl.col("peak_flops_per_s")).alias("flops_share"),
        ratio(pl.col("bytes_per_s"), pl.col("peak_bytes_per_s")).clip(upper_bound=1.0).alias("bytes_share"),
    )
    ridge = pl.col("peak_flops_per_s") / pl.col("peak_bytes_per_s")
    groups = groups.with_columns(
        pl.when(pl.col("intensity") >= ridge)
        .then(pl.lit("compute"))
        .when(pl.col("intensity") < ridge)
        .then(pl.lit("memory"))
        .alias("side"),
        # Achieved / roof is FLOP/s / min(peak, intensity × bandwidth): the larger of the two shares.
        pl.when(pl.col("bytes_share").is_not_null() & pl.col("flops_share").is_not_null())
        .then(pl.max_horizontal("flops_share", "bytes_share"))
        .alias("roof_share"),
    )
    return (
        WORK.by(*keys).conform(groups).sort("gpu_ns", *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
    )


_PEAKS: Final = ("peak_flops_per_s", "peak_bytes_per_s")
#: Operators without a peak (copies over a link, unknown formats) hide that of their group above this share of its time.
_MOST_WITHOUT_PEAK: Final = 0.01


def _mean_over_time(peak: str, time: pl.Expr) -> pl.Expr:
    """The mean peak of a group, weighted by time; null if operators without one matter."""
    known = time.filter(pl.col(peak).is_not_null()).sum()
    matters = known < (1 - _MOST_WITHOUT_PEAK) * time.sum()
    return pl.when((known > 0) & ~matters).then((pl.col(peak) * time).sum() / known).alias(peak)
