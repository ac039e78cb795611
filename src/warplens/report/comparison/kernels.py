"""Kernels of a comparison by name: what was launched more or less often, and which differences are decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.compare.difference import kernel_changes
from warplens.compare.difference.work import KERNEL_CHANGES
from warplens.compare.statistics import many_differences
from warplens.profile.columns import column, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.difference import KernelChanges, Side


Float64s = npt.NDArray[np.float64]

KERNEL_GROUPS: Final = table(
    "comparison: kernels by name",
    "One kernel, or one that took another's place. `warplens compare`; `data.kernels.rows`.",
    column("change", title="What"),
    "name",
    KERNEL_CHANGES.only("baseline_full_name variant_full_name").columns,
    "category places",
    KERNEL_CHANGES.only("baseline_launches_per_step variant_launches_per_step").columns,
    "baseline_ns_per_step variant_ns_per_step change_ns_per_step",
    column("low_ns", dtype=pl.Float64, help="lower end of the interval of the change; null where nothing was repeated"),
    column("high_ns", dtype=pl.Float64),
    "adjusted_p verdict decided",
)


def kernel_groups(
    changes: KernelChanges,
    further: Sequence[tuple[Side, Side]] = (),
    *,
    hidden: bool = False,
    margin: float = 0.02,
    level: float = 0.05,
) -> pl.DataFrame:
    """The matched kernels by name (`KERNEL_GROUPS`), and which of them take another time.

    Args:
        changes: the kernels of both sides, matched.
        further: further pairs of files of the same two sides: then files are compared instead of the steps of two.
        hidden: whether CUDA graphs hide kernels: what only one side shows may then be inside the other's graphs, so
            that nothing is decided of it.
        margin: differences of this share and less do not matter.
        level: 0.05 for 95 % confidence.
    """
    groups = _grouped(changes.table)
    members = groups["rows"].to_list()
    before, after = (_sums(matrix, members) for matrix in changes.samples())
    if further:
        before, after = _over_files(groups, (before, after), further)
    files = np.arange(len(further) + 1) if further else None
    found = many_differences(
        before, after, baseline_blocks=files, variant_blocks=files, margin=margin, level=level
    ).select("low_ns", "high_ns", "adjusted_p", pl.col("verdict").cast(pl.String))
    alone, differs = pl.col("change").is_in(["added", "removed"]), pl.col("verdict").is_in(["faster", "slower"])
    # A kernel of some steps only may be missing on the other side by chance.
    in_each_step = pl.max_horizontal("baseline_launches_per_step", "variant_launches_per_step") >= 1
    decided = differs & ~alone if hidden else differs | (alone & in_each_step)
    finite = [pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in ("low_ns", "high_ns")]
    rows = pl.concat([groups, found], how="horizontal").with_columns(*finite, decided.alias("decided"))
    return KERNEL_GROUPS.conform(rows)


def _grouped(table: pl.DataFrame) -> pl.DataFrame:
    sums = [
        *(f"{side}_{what}_per_step" for what in ("launches", "ns") for side in ("baseline", "variant")),
        "change_ns_per_step",
    ]
    # What is kept and what is changed of one kernel stands in one row: by name, the two do the same work.
    both = pl.col("baseline_full_name").is_not_null() & pl.col("variant_full_name").is_not_null()
    changed = (pl.col("change") == "changed").any()
    return (
        table.with_row_index("row")
        .with_columns(both.alias("both"))
        .group_by("both", "baseline_full_name", "variant_full_name", maintain_order=True)
        .agg(
            pl.when(changed)
            .then(pl.lit("changed"))
            .otherwise(pl.col("change").first().cast(pl.String))
            .alias("change"),
            pl.col("name", "category").first(),
            pl.len().cast(pl.Int64).alias("places"),
            pl.col(sums).sum(),
            pl.col("row").alias("rows"),
        )
        .sort(pl.col("change_ns_per_step").abs(), descending=True, maintain_order=True)
    )


def _sums(matrix: Float64s, members: list[list[int]]) -> Float64s:
    """The time of each group in each step: shape (steps, groups)."""
    if not members:
        return np.zeros((matrix.shape[0], 0))
    return np.stack([matrix[:, rows].sum(axis=1) for rows in members], axis=1)


def _over_files(
    groups: pl.DataFrame, times: tuple[Float64s, Float64s], further: Sequence[tuple[Side, Side]]
) -> tuple[Float64s, Float64s]:
    """The mean step of each file instead of each step: shape (files, groups). A group that a file lacks takes none."""
    rows = [[matrix.mean(axis=0) for matrix in times]]
    keys = list(groups.select("baseline_full_name", "variant_full_name").iter_rows())
    for before, after in further:
        other = _grouped(kernel_changes(before, after).table)
        found = {
            (first, second): spent
            for first, second, *spent in other.select(
                "baseline_full_name", "variant_full_name", "baseline_ns_per_step", "variant_ns_per_step"
            ).iter_rows()
        }
        rows.append([np.array([found.get(key, (0.0, 0.0))[side] for key in keys]) for side in (0, 1)])
    return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
