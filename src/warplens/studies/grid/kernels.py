"""Which kernels, parts of the model and labels a forward pass spends its GPU time in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.attribution import is_operator
from warplens.analysis.ranges import plain_range_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, nearest
from warplens.profile.columns import KERNEL_NAME, table
from warplens.studies.grid.passes import MATMUL

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
    """The kernel, or the category, with the most GPU time of a scope."""

    name: str  #: short name of the kernel; the category itself for a category
    full_name: str  #: demangled name; equal to `name` for a category
    category: str
    gpu_ns: int  #: GPU time over all repetitions
    share: float  #: of all GPU work of the scope
    repetitions: int  #: how many passes (or steps) were looked at
    calls: int  #: over all repetitions
    #: calls_min, calls_max: the fewest and the most calls in one repetition
    calls_min: int
    calls_max: int
    parts: tuple[ModelPart, ...]  #: model parts that launch it, largest first

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
    named = work["range"].replace_strict(by_row, default="outside all ranges", return_dtype=pl.String)
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
