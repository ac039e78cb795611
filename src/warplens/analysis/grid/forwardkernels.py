"""Which kernels a forward pass spends its GPU time in, how often each runs in it, and which model part asks for it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from warplens.analysis.grid.passes import MATMUL
from warplens.analysis.ranges import plain_range_name
from warplens.analysis.timeline import Timeline

__all__ = [
    "KERNEL_USE_SCHEMA",
    "LABEL_USE_SCHEMA",
    "ModelPart",
    "TopKernel",
    "kernel_use",
    "label_use",
    "model_parts",
    "top_kernel",
    "top_label",
]

#: One row a kernel function. `gpu_ns` and `calls` are summed over all repetitions; `share` is of all GPU work of the
#: scope; `calls_min` and `calls_max` are the fewest and the most calls in one repetition.
KERNEL_USE_SCHEMA = pl.Schema(
    {
        "name": pl.String(),
        "full_name": pl.String(),
        "category": pl.String(),
        "gpu_ns": pl.Int64(),
        "calls": pl.Int64(),
        "calls_min": pl.Int64(),
        "calls_max": pl.Int64(),
        "share": pl.Float64(),
    }
)

#: One row a category of kernels, or a kind of other GPU work; shares sum to 1.
LABEL_USE_SCHEMA = pl.Schema(
    {
        "label": pl.String(),
        "gpu_ns": pl.Int64(),
        "calls": pl.Int64(),
        "calls_min": pl.Int64(),
        "calls_max": pl.Int64(),
        "share": pl.Float64(),
    }
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
    """GPU time by kernel function, the largest first (`KERNEL_USE_SCHEMA`).

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
    return used.select(KERNEL_USE_SCHEMA.names()).sort(["gpu_ns", "full_name"], descending=[True, False])


def label_use(work: pl.DataFrame, repetition: str = "pass") -> pl.DataFrame:
    """GPU time by category of kernel and by kind of other work, the largest first (`LABEL_USE_SCHEMA`)."""
    used = _use(work, ["label"], repetition, work[repetition].n_unique(), int(work["duration_ns"].sum()))
    return used.select(LABEL_USE_SCHEMA.names()).sort(["gpu_ns", "label"], descending=[True, False])


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

    Launches that only the range of the phase itself holds are told apart from those in a range inside it.
    """
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
