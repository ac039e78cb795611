"""GPU time of kernels by name, category and matrix unit; memory copies and fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from warplens.analysis.categories import CLASSES, OTHER, classify_names
from warplens.analysis.frames import duration_ns, ratio, spread, spread_of_counts
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.streams import busy_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile.columns import KERNEL_NAME, SPREAD, column, spread_columns, table
from warplens.profile.schema import Column

_NAMES = ("name", "full_name")

#: What kernels can be grouped by.
GROUPINGS = (*_NAMES, *CLASSES.names, "device", "stream", "process")

_SHARE = "share of the summed kernel time of the window"

KERNELS = table(
    "kernels",
    "One kernel by its short or full name. `warplens kernels`.",
    KERNEL_NAME,
    "full_name category library precision tensor_cores calls",
    SPREAD,
    "share",
    full_name="demangled name; null where one short name stands for several",
    category="kernel category (see [categories](categories.md)); where one short name stands for several full names,"
    " that of the one with most of the time, and so for the next three columns",
    share=_SHARE,
)

KERNEL_GROUPS = table(
    "kernels by group",
    "One category, library, precision, …: `warplens kernels --by category`. The column that rows are grouped by stands"
    " first.",
    "kernels calls",
    SPREAD,
    "share",
    kernels="number of different full names",
    share=_SHARE,
)


def kernel_statistics(timeline: Timeline, window: Window, by: str = "name") -> pl.DataFrame:
    """Calls and durations of the kernels that begin in the window, the most expensive first.

    Args:
        by: one of `GROUPINGS`. `full_name` is what `nsys stats` groups by, `name` its `:base` variant.

    Returns:
        `KERNELS` for the names, else the column `by` followed by `KERNEL_GROUPS`.

    Raises:
        UsageError: kernels cannot be grouped by that.
    """
    return statistics_of(timeline.kernels_in(window, launches=False), by)


def statistics_of(kernels: pl.DataFrame, by: str = "name") -> pl.DataFrame:
    """`kernel_statistics` of a frame with the columns of `Trace.kernels`.

    A short name can stand for several full names (`elementwise_kernel` does any arithmetic). Its `full_name` is then
    null, and its class is that of the full name with most of its time.
    """
    kernels, duration = kernels.with_columns(duration_ns().alias("duration_ns")), pl.col("duration_ns")
    return _grouped(kernels, by, [pl.len().alias("calls"), *spread(duration)], duration)


def statistics_of_counts(counts: pl.DataFrame, by: str = "name") -> pl.DataFrame:
    """`kernel_statistics` of distinct kernels with counts: their names, `by`, `duration_ns`, and the number of `calls`.

    The standard deviation agrees with `statistics_of` up to rounding, everything else exactly.
    """
    counts = counts.sort("duration_ns")
    return _grouped(counts, by, spread_of_counts(), pl.col("duration_ns") * pl.col("calls"))


def _grouped(kernels: pl.DataFrame, by: str, statistics: list[pl.Expr], duration: pl.Expr) -> pl.DataFrame:
    if by not in GROUPINGS:
        raise UsageError(f"kernels cannot be grouped by {by!r}; choose one of {', '.join(GROUPINGS)}")
    if by in CLASSES.names:
        kernels = kernels.with_columns(classify_names(kernels).get_column(by))
    distinct_kernels = [] if by in _NAMES else [pl.col("full_name").n_unique().alias("kernels")]
    groups = kernels.group_by(by).agg(*statistics, *distinct_kernels)
    groups = groups.with_columns(ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    if by in _NAMES:
        by_name = KERNELS.conform(groups.join(_classed(kernels, by, duration), on=by))
        return by_name.sort("total_ns", *_NAMES, descending=[True, False, False])
    by_class = KERNEL_GROUPS.conform(groups)
    label = groups[by].cast(pl.String) if isinstance(groups.schema[by], pl.Enum) else groups[by]
    return by_class.insert_column(0, label).sort("total_ns", by, descending=[True, False], nulls_last=True)


def _classed(kernels: pl.DataFrame, by: str, duration: pl.Expr) -> pl.DataFrame:
    """For each distinct `by`, which is one of the two names, the other name and the class."""
    variants = kernels.group_by("full_name").agg(pl.col("name").first(), duration.sum().alias("variant_ns"))
    variants = variants.with_columns(classify_names(variants).get_columns())
    if by == "full_name":
        return variants.drop("variant_ns")
    full_name = pl.when(pl.len() == 1).then(pl.col("full_name").first())
    by_time = variants.sort("variant_ns", pl.col("full_name").cast(pl.String), descending=[True, False])
    return by_time.group_by("name", maintain_order=True).agg(
        pl.col(*CLASSES.names).first(), full_name.alias("full_name")
    )


@dataclass(frozen=True)
class CategoryCoverage:
    """Share of the kernel time whose names reveal a category and a precision."""

    total_ns: int  #: summed duration of the kernels counted
    categorised_ns: int  #: that of kernels whose category is not `other`
    precision_ns: int  #: that of kernels whose name reveals a precision

    @property
    def category_share(self) -> float | None:
        """Share of the kernel time that has a category; None without kernels."""
        return self.categorised_ns / self.total_ns if self.total_ns else None

    @property
    def precision_share(self) -> float | None:
        """Share of the kernel time whose precision is known; None without kernels."""
        return self.precision_ns / self.total_ns if self.total_ns else None


def category_coverage(classed: pl.DataFrame) -> CategoryCoverage:
    """Shares of the kernel time whose names reveal a category and a precision.

    Args:
        classed: `total_ns`, `category` and `precision` of each distinct kernel (`time_by_class`).
    """
    return CategoryCoverage(
        total_ns=_time(classed, pl.lit(True)),
        categorised_ns=_time(classed, pl.col("category") != OTHER),
        precision_ns=_time(classed, pl.col("precision").is_not_null()),
    )


@dataclass(frozen=True)
class TensorCoreUse:
    """Time of matrix products by execution unit, as far as kernel names reveal it."""

    total_ns: int  #: summed duration of the kernels counted
    product_ns: int  #: time of matrix products (`kernel_names.PRODUCTS`); the sum of the next three
    #: time of products on tensor cores, on vector units, and where the name does not tell
    tensor_core_ns: int
    vector_ns: int
    unknown_ns: int


def tensor_core_use(classed: pl.DataFrame) -> TensorCoreUse:
    """Share of the time of matrix products spent on tensor cores.

    Args:
        classed: `total_ns`, `category` and `tensor_cores` of each distinct kernel (`time_by_class`).
    """
    products = classed.filter(pl.col("category").is_in(PRODUCTS))
    return TensorCoreUse(
        total_ns=_time(classed, pl.lit(True)),
        product_ns=_time(products, pl.lit(True)),
        tensor_core_ns=_time(products, pl.col("tensor_cores")),
        vector_ns=_time(products, ~pl.col("tensor_cores")),
        unknown_ns=_time(products, pl.col("tensor_cores").is_null()),
    )


def time_by_class(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Summed duration and class of each distinct kernel of the window."""
    kernels = timeline.kernels_in(window, launches=False)
    variants = kernels.group_by("full_name").agg(duration_ns().sum().alias("total_ns"))
    return variants.with_columns(classify_names(variants).get_columns())


def _time(classed: pl.DataFrame, condition: pl.Expr) -> int:
    return int(classed.filter(condition)["total_ns"].sum())


# --- Memory copies and fills: counts, times, sizes, bandwidth, and the kinds of memory on both sides ---

CopyGrouping = Literal["memory", "direction"]

_KIND: Final = pl.Enum(["copy", "memset"])
_NS_PER_S: Final = 1e9

COPIES: Final = table(
    "copies and fills",
    "One kind of copy or fill. `warplens copies`.",
    column("kind", dtype=_KIND, help="`copy` or `memset`"),
    Column("direction", pl.String, "host-to-device, device-to-host, …; null for a memset"),
    column(
        "source_memory", help="pageable, pinned, device, managed, …; null for a memset, and where it was not recorded"
    ),
    column("destination_memory", help="likewise; for a memset the memory that it fills"),
    "calls",
    SPREAD,
    "share",
    spread_columns(unit="bytes", of="sizes"),
    "busy_ns",
    Column("bandwidth_bytes_per_s", pl.Float64, "`total_bytes` over `busy_ns`; null where they took no time"),
    share="share of the summed time of all copies and memsets in the window",
    busy_ns="time with at least one of them in flight, summed over GPUs",
)

_GROUPS: Final[dict[str, list[str]]] = {
    "memory": ["kind", "direction", "source_memory", "destination_memory"],
    "direction": ["kind", "direction"],
}


def copy_statistics(timeline: Timeline, window: Window, by: CopyGrouping = "memory") -> pl.DataFrame:
    """Times, sizes and bandwidth of the copies and memsets of the window, largest total time first.

    With `by="direction"` the rows, times and sizes are those of `nsys stats -r cuda_gpu_mem_time_sum` and `-r
    cuda_gpu_mem_size_sum`, where `host-to-device` is called `[CUDA memcpy Host-to-Device]` and a memset `[CUDA
    memset]`. Bandwidth is bytes over the time in which any of the group's operations runs on a device, so that two
    copies that share a link are not counted as two links.

    Args:
        by: `memory` (direction and the kinds of memory on both sides) or `direction` (memory columns are null).

    Raises:
        UsageError: `by` is something else.
    """
    if by not in _GROUPS:
        raise UsageError(f"copies cannot be grouped by {by!r}; use {', '.join(_GROUPS)}")
    keys = _GROUPS[by]
    # The two tables are grouped one by one: the categories of their names differ, and text is slow to group by.
    null_text = pl.lit(None, dtype=pl.String)
    fills = timeline.memsets_in(window).with_columns(
        direction=null_text, source_memory=null_text, destination_memory=pl.col("memory")
    )
    parts = []
    for kind, moves in (("copy", timeline.copies_in(window)), ("memset", fills)):
        operations = moves.with_columns(kind=pl.lit(kind, dtype=_KIND))
        busy = busy_by(operations, [*keys, "device"]).group_by(keys).agg(pl.col("busy_ns").sum())
        sums = operations.group_by(keys).agg(
            pl.len().alias("calls"), *spread(duration_ns()), *spread(pl.col("bytes"), unit="bytes")
        )
        text_columns = (
            pl.col(key).cast(pl.String) if key in keys else null_text.alias(key) for key in _GROUPS["memory"][1:]
        )
        parts.append(sums.join(busy, on=keys, nulls_equal=True).with_columns(text_columns))
    statistics = pl.concat(parts)
    statistics = statistics.with_columns(
        ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"),
        (ratio(pl.col("total_bytes"), pl.col("busy_ns")) * _NS_PER_S).alias("bandwidth_bytes_per_s"),
    )
    order = ["total_ns", *_GROUPS["memory"]]
    return COPIES.conform(statistics).sort(order, descending=[True, *(False for _ in order[1:])])
