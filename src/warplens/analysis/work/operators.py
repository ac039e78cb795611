"""Operators with their modelled work and their measured GPU time, and the GPU time whose work no model covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.categories import classify_names
from warplens.analysis.phases import phase_of_work
from warplens.analysis.spread import conform, ratio
from warplens.analysis.work.amounts import FAMILIES, MATMUL_FAMILIES
from warplens.analysis.work.counting import count_work
from warplens.profile.peaks import peaks_of
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["OPERATOR_WORK_SCHEMA", "UNMODELLED_SCHEMA", "ModelledWork", "operator_work"]

#: One row an operator whose work is counted. Modelled: `flops`, `flops_full` (with what a mask leaves out), `bytes`
#: (null where the type of its tensors is not known). Measured: `gpu_ns`, the summed time of what it launched.
#: `precision` and `tensor_cores` are those of its longest kernel; `link`: it moved data between host and GPU.
OPERATOR_WORK_SCHEMA: Final = pl.Schema(
    {
        "range": pl.Int64(),
        "name": pl.String(),
        "input_shapes": pl.String(),
        "input_types": pl.String(),
        "family": pl.Enum(FAMILIES),
        "phase": pl.String(),
        "device": pl.Int32(),
        "precision": pl.String(),
        "tensor_cores": pl.Boolean(),
        "link": pl.Boolean(),
        "kernels": pl.Int64(),
        "gpu_ns": pl.Int64(),
        "flops": pl.Int64(),
        "flops_full": pl.Int64(),
        "bytes": pl.Int64(),
        "peak_flops_per_s": pl.Float64(),
        "peak_bytes_per_s": pl.Float64(),
    }
)

#: One row an operator name and reason; `name` is null for work that no operator launched.
UNMODELLED_SCHEMA: Final = pl.Schema(
    {
        "name": pl.String(),
        "reason": pl.String(),
        "operators": pl.Int64(),
        "kernels": pl.Int64(),
        "gpu_ns": pl.Int64(),
        "share": pl.Float64(),
    }
)

#: Copies of these directions stay on the GPU.
_ON_DEVICE: Final = ("device-to-device",)

#: Where lists hold tensors of unrecorded type, the kernel's name tells their size: PyTorch copies opaque items of so
#: many bytes, or names the type.
_OPAQUE: Final = r"OpaqueType<(\d+)"
#: Types of operands that are only ever multiplied in one format; a product of `float` may be computed as tf32.
_FORMATS: Final = {"c10::Half": "fp16", "c10::BFloat16": "bf16", "double": "fp64", "c10::Float8_e4m3fn": "fp8"}
_FIRST_TYPE: Final = r'^\["([^"]*)"'
_SIZES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, eq=False)
class ModelledWork:
    """Modelled work with measured time, over one window.

    Attributes:
        operators: `OPERATOR_WORK_SCHEMA`, in the order of the profile.
        unmodelled: `UNMODELLED_SCHEMA`, the largest first.
        total_ns: summed time of all GPU work of the window.
        peak_sources: where the roofs come from, one sentence for each kind of GPU.
    """

    operators: pl.DataFrame
    unmodelled: pl.DataFrame
    total_ns: int
    peak_sources: tuple[str, ...]

    @property
    def modelled_ns(self) -> int:
        """Time of the GPU work whose operator has a model."""
        return int(self.operators["gpu_ns"].sum())

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
        """FLOPs of matrix products, convolutions and attention alone: what FLOP counters usually count."""
        products = self.operators.filter(pl.col("family").cast(pl.String).is_in(MATMUL_FAMILIES))
        return int(products["flops"].sum())


def operator_work(timeline: Timeline, window: Window) -> ModelledWork:
    """The modelled work of the operators in the window, beside the measured time of what they launched.

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
    rest = pieces.filter((pl.col("range") == NO_RANGE) & pl.col("inside"))
    sources = {
        found.source for found in map(peaks_of, timeline.trace.capture.devices) if found is not None and found.source
    }
    return ModelledWork(
        _operators(timeline, counted, counting.models),
        _unmodelled(timeline, rest, counting.models, total),
        total,
        tuple(sorted(sources)),
    )


def _pieces(timeline: Timeline) -> pl.DataFrame:
    """All GPU work with what its kernel's name tells."""
    work = timeline.work.select(
        "kind", "row", "device", "api_row", "range", (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    ).rename({"range": "held"})
    kernels = timeline.trace.kernels
    # What stands in a name is looked up once for each distinct name, not for each kernel.
    opaque = name_categories(kernels["full_name"]).str.extract(_OPAQUE).cast(pl.Int64)
    told = classify_names(kernels).select(
        pl.col("precision").cast(pl.String),
        "tensor_cores",
        pl.coalesce(
            opaque.gather(kernels["full_name"].to_physical()),
            pl.col("precision").cast(pl.String).replace_strict(_SIZES, default=None, return_dtype=pl.Int64),
        ).alias("item_bytes"),
        kernels["graph_node"].is_not_null().alias("replayed"),
    )
    told = told.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64), kind=pl.lit("kernel"))
    directions = timeline.trace.copies["direction"].cast(pl.String)
    copies = pl.DataFrame({"link": ~directions.is_in(_ON_DEVICE)}).with_row_index("row")
    copies = copies.with_columns(pl.col("row").cast(pl.Int64), kind=pl.lit("copy"))
    work = work.with_columns(pl.col("kind").cast(pl.String))
    return work.join(told, on=["kind", "row"], how="left", maintain_order="left").join(
        copies, on=["kind", "row"], how="left", maintain_order="left"
    )


def _operators(timeline: Timeline, counted: pl.DataFrame, models: pl.DataFrame) -> pl.DataFrame:
    duration, inside = pl.col("duration_ns"), pl.col("inside")
    longest = duration.arg_max()
    measured = counted.group_by("range", maintain_order=True).agg(
        # Work is in order of its begin: the first piece decides which window the operator belongs to.
        inside.first().alias("begins_inside"),
        pl.col("phase").first().cast(pl.String),
        pl.col("device").first(),
        *(pl.col(name).get(longest) for name in ("precision", "tensor_cores", "item_bytes")),
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
    return conform(_with_peaks(timeline, frame).sort("range"), OPERATOR_WORK_SCHEMA)


def _with_peaks(timeline: Timeline, frame: pl.DataFrame) -> pl.DataFrame:
    """The roofs of each operator: those of its GPU, for the format that its longest kernel multiplies."""
    products = pl.col("family").cast(pl.String).is_in(MATMUL_FAMILIES)
    # Everything else computes on the vector units in fp32, whatever it stores; only fp64 stays what it is.
    operand = pl.col("input_types").cast(pl.String).str.extract(_FIRST_TYPE)
    multiplied = pl.coalesce("precision", operand.replace_strict(_FORMATS, default=None, return_dtype=pl.String))
    frame = frame.with_columns(
        pl.when(products | (pl.col("precision") == "fp64")).then(multiplied).otherwise(pl.lit("fp32")).alias("format"),
        pl.when(products).then("tensor_cores").otherwise(pl.lit(False)).alias("on_tensor_cores"),
    )
    keys = frame.select("device", "format", "on_tensor_cores").unique()
    rows = []
    for device, precision, tensor_cores in keys.iter_rows():
        peaks = peaks_of(timeline.trace.capture.device(device))
        compute = None if peaks is None else peaks.of(precision, tensor_cores=tensor_cores)
        rows.append((device, precision, tensor_cores, compute, None if peaks is None else peaks.bytes_per_s))
    roofs = pl.DataFrame(
        rows,
        schema={**keys.schema, "peak_flops_per_s": pl.Float64(), "peak_bytes_per_s": pl.Float64()},
        orient="row",
    )
    joined = frame.join(roofs, on=["device", "format", "on_tensor_cores"], how="left", nulls_equal=True)
    # What crosses the link between host and GPU is bound by the link, whose speed is not in the profile.
    return joined.with_columns(
        pl.when(pl.col("link")).then(None).otherwise("peak_bytes_per_s").alias("peak_bytes_per_s")
    )


def _unmodelled(timeline: Timeline, rest: pl.DataFrame, models: pl.DataFrame, total: int) -> pl.DataFrame:
    ranges = timeline.trace.ranges
    outside = (
        pl.when(pl.col("replayed") | (pl.col("kind") == "graph"))
        .then(pl.lit("replayed from a CUDA graph"))
        .when(pl.col("api_row").is_null())
        .then(pl.lit("its launching call is not in the profile"))
        .otherwise(pl.lit("launched outside of every operator"))
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
    return conform(groups, UNMODELLED_SCHEMA).sort(
        "gpu_ns", "name", "reason", descending=[True, False, False], nulls_last=True
    )
