"""Tables of a comparison of traces: parts of the wall difference, kernels, ranges and phases, per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn
from warplens.report.overview.words import part_title, phase_title

if TYPE_CHECKING:
    from warplens.compare.difference import WallSplit

__all__ = ["kernel_table", "part_name", "part_table", "phase_table", "place_table", "range_table", "waterfall_rows"]

#: Parts that change by less than this share of all changes together are drawn as one.
_DRAWN_SHARE: Final = 0.01

#: From so many times the whole change on, its parts are opposing changes that nearly cancel: shares of it, in hundreds
#: of percent, would say nothing.
_OPPOSING: Final = 5.0

_GROUPS: Final = {
    "compute": "GPU work",
    "graph": "CUDA graphs",
    "communication": "communication",
    "copy": "copies",
    "idle": "idle",
}

_PART_COLUMNS: Final = (
    TableColumn("title", "Part", "text"),
    TableColumn("baseline_ns", "Baseline", "duration_ns", "Per step."),
    TableColumn("variant_ns", "Variant", "duration_ns", "Per step."),
    TableColumn("change_ns", "Change", "duration_ns", "Variant minus baseline: above zero the variant takes longer."),
    TableColumn("share", "Of the change", "share", "Share of the whole change; parts that shrink while the step grows "
                "have negative ones."),
)  # fmt: skip

_LAUNCHES: Final = (
    TableColumn("baseline_launches_per_step", "Launches before", "count", "Per step."),
    TableColumn("variant_launches_per_step", "after", "count", "Per step."),
)

_TIMES: Final = (
    TableColumn("baseline_ns_per_step", "Time before", "duration_ns", "Per step."),
    TableColumn("variant_ns_per_step", "after", "duration_ns", "Per step."),
    TableColumn("change_ns_per_step", "Change", "duration_ns", "Variant minus baseline, per step."),
)

_KERNEL_COLUMNS: Final = (
    TableColumn("name", "Kernel", "kernel", full="full_name"),
    TableColumn("change", "What", "text", "Kept everywhere; changed somewhere (range, shape or name); added; removed."),
    *_LAUNCHES,
    *_TIMES,
    TableColumn("sure", "Decided", "text", "Whether the difference is more than chance among so many kernels."),
    TableColumn("before", "In place of", "kernel", "The kernel that stood there before, where it was another."),
)

_PLACE_COLUMNS: Final = (
    TableColumn("name", "Kernel", "kernel", full="full_name"),
    TableColumn("what", "What", "text", "Kept: the same kernel, range, grid and block on both sides."),
    TableColumn("place", "Range", "name"),
    TableColumn("matched", "Matched by", "text"),
    *_LAUNCHES,
    *_TIMES,
)

_RANGE_COLUMNS: Final = (
    TableColumn("title", "Range", "name"),
    TableColumn("baseline_kernels_per_step", "Kernels before", "count", "Per step."),
    TableColumn("variant_kernels_per_step", "after", "count", "Per step."),
    TableColumn("baseline_ns_per_step", "GPU time before", "duration_ns", "Per step, with what lies inside."),
    TableColumn("variant_ns_per_step", "after", "duration_ns", "Per step, with what lies inside."),
    TableColumn("change_ns_per_step", "Change", "duration_ns", "Variant minus baseline, per step."),
    TableColumn("own_change_ns_per_step", "of it own", "duration_ns", "Without ranges inside."),
)

_TRANSFER_COLUMNS: Final = (
    TableColumn("title", "What", "text"),
    TableColumn("baseline_count_per_step", "Count before", "count", "Per step."),
    TableColumn("variant_count_per_step", "after", "count", "Per step."),
    TableColumn("baseline_bytes_per_step", "Size before", "bytes", "Per step."),
    TableColumn("variant_bytes_per_step", "after", "bytes", "Per step."),
    TableColumn("baseline_ns_per_step", "Time before", "duration_ns", "Per step, on the GPU."),
    TableColumn("variant_ns_per_step", "after", "duration_ns", "Per step, on the GPU."),
    TableColumn("exposed_change_ns_per_step", "Exposed change", "duration_ns", "Of the time that no compute hides."),
)

_PHASE_COLUMNS: Final = (
    TableColumn("title", "Phase", "text"),
    TableColumn("baseline_ns_per_step", "GPU time before", "duration_ns", "Per step."),
    TableColumn("variant_ns_per_step", "after", "duration_ns", "Per step."),
    TableColumn("change_ns_per_step", "Change", "duration_ns", "Variant minus baseline, per step."),
)


def part_name(group: str, part: str) -> str:
    """A part of the wall difference as people call it: `GPU work: matrix products (GEMM)`."""
    return f"{_GROUPS.get(group, group)}: {part_title(group, part)}"


def part_table(wall: WallSplit, most: int | None = None, per: str = "step") -> Table:
    """Every part of a step's wall time on both sides; the last row is their sum, which is the wall time itself.

    Args:
        wall: the split.
        most: parts to name, those that change most first; the rest stands in one row. None for all.
        per: what the times are of, `step` or `window`.
    """
    rows = wall.frame().with_columns(pl.col("group").cast(pl.String))
    titles = [part_name(*key) for key in rows.select("group", "part").iter_rows()]
    rows = rows.with_columns(pl.Series("title", titles, dtype=pl.String))
    if most is not None:
        rows = _most_changed(rows, most)
    total = pl.DataFrame(
        {
            "title": [per],
            "baseline_ns": [float(wall.baseline.wall_ns)],
            "variant_ns": [float(wall.variant.wall_ns)],
            "change_ns": [float(wall.change_ns)],
            "share": [1.0 if wall.change_ns else None],
        },
        schema_overrides={"share": pl.Float64},
    )
    caption = f"The wall time of a {per}, part by part"
    columns: tuple[TableColumn, ...] = _PART_COLUMNS
    if sum(abs(part.change_ns) for part in wall.parts) > _OPPOSING * abs(wall.change_ns):
        columns = _PART_COLUMNS[:-1]
        caption += ": opposing changes that nearly cancel"
    return Table(
        "parts",
        caption,
        columns,
        pl.concat([rows, total], how="diagonal"),
        None,
    )


def _most_changed(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """The rows that change most, in their order, and the sum of the others."""
    if rows.height <= most + 1:
        return rows
    place = pl.col("change_ns").abs().rank("ordinal", descending=True)
    named = rows.filter(place <= most)
    rest = rows.filter(place > most)
    row = rest.select(
        pl.format("{} smaller parts", pl.len()).first().alias("title"),
        pl.col("baseline_ns", "variant_ns", "change_ns").sum(),
        pl.when(pl.col("share").count() > 0).then(pl.col("share").sum()).first(),
    )
    return pl.concat([named, row], how="diagonal")


def waterfall_rows(wall: WallSplit) -> pl.DataFrame:
    """The parts as `waterfall_chart` draws them: `name`, `delta`, `detail`; small ones together as the last.

    They sum to the change of the wall time but for the rounding of floating-point numbers.
    """
    rows = wall.frame()
    threshold = _DRAWN_SHARE * float(rows["change_ns"].abs().sum())
    drawn: list[tuple[str, float, str]] = []
    small: list[tuple[str, float, str]] = []
    for row in rows.iter_rows(named=True):
        name = part_name(str(row["group"]), row["part"])
        detail = f"{fmt.duration(row['baseline_ns'])} → {fmt.duration(row['variant_ns'])}"
        (drawn if abs(row["change_ns"]) > threshold else small).append((name, row["change_ns"], detail))
    # What saves time first, then what costs it: the totals' difference is what the second eats of the first.
    drawn.sort(key=lambda item: item[1])
    if rest := sum(change for _, change, _ in small):
        drawn.append(
            (f"{len(small)} smaller parts" if len(small) > 1 else small[0][0], rest, "too small to draw apart")
        )
    return pl.DataFrame(drawn, schema={"name": pl.String, "delta": pl.Float64, "detail": pl.String}, orient="row")


def kernel_table(kernels: pl.DataFrame, limit: int | None = 15, *, narrow: bool = False) -> Table:
    """Kernels removed, added and changed, by name (`KERNEL_GROUP_SCHEMA`), the largest change first.

    Args:
        kernels: the rows.
        limit: rows shown at first; None for all.
        narrow: for a terminal, without the kernels that stood in the place of others.
    """
    both = kernels.select("baseline_full_name", "variant_full_name").iter_rows()
    # Other template arguments make another kernel, too; but to read the same name twice helps nobody.
    renamed = pl.Series([_reads_otherwise(*names) for names in both], dtype=pl.Boolean)
    unknown = (pl.col("adjusted_p").is_null()) & ~pl.col("decided")
    rows = kernels.with_columns(
        pl.coalesce("variant_full_name", "baseline_full_name").alias("full_name"),
        pl.when(renamed).then("baseline_full_name").alias("before"),
        pl.when("decided").then(pl.lit("yes")).when(unknown).then(pl.lit("not repeated"))
        .when(pl.col("verdict") == "same").then(pl.lit("the same")).otherwise(pl.lit("no")).alias("sure"),
    )  # fmt: skip
    caption = "Kernels, the largest change first"
    columns = tuple(
        column for column in _KERNEL_COLUMNS if column.key != "before" or (rows["before"].count() and not narrow)
    )
    return Table("kernels", caption, columns, rows, limit, empty="Neither side has kernels.")


def _reads_otherwise(before: str | None, after: str | None) -> bool:
    return before is not None and after is not None and fmt.shorten_kernel(before) != fmt.shorten_kernel(after)


def place_table(kernels: pl.DataFrame, limit: int | None = 15) -> Table:
    """The same kernels one by one, each at its place in the program (`KERNEL_CHANGE_SCHEMA`)."""
    rows = kernels.with_columns(
        pl.col("change").cast(pl.String).alias("what"),
        pl.col("matched_by").cast(pl.String).alias("matched"),
        pl.coalesce("variant_full_name", "baseline_full_name").alias("full_name"),
        pl.coalesce("variant_range", "baseline_range").alias("place"),
    )
    return Table("kernel-places", "The same by place in the program", _PLACE_COLUMNS, rows, limit)


def range_table(ranges: pl.DataFrame, limit: int | None = 15) -> Table:
    """GPU work by range (`RANGE_CHANGE_SCHEMA`), as a tree."""
    rows = ranges.with_columns(pl.when(pl.col("depth") == 0).then(pl.lit("step")).otherwise("name").alias("title"))
    return Table("ranges", "GPU work by range", _RANGE_COLUMNS, rows, limit, depth="depth")


def transfer_table(transfers: pl.DataFrame) -> Table:
    """Copies, fills and communication (`TRANSFER_CHANGE_SCHEMA`)."""
    titles = [part_title(*key) for key in transfers.select("group", "part").iter_rows()]
    rows = transfers.with_columns(pl.Series("title", titles, dtype=pl.String))
    return Table("transfers", "Copies, fills and communication of a step", _TRANSFER_COLUMNS, rows, None)


def phase_table(phases: pl.DataFrame) -> Table:
    """GPU work by phase (`PHASE_CHANGE_SCHEMA`)."""
    titles = pl.Series("title", [phase_title(phase) for phase in phases["phase"]], dtype=pl.String)
    return Table("phases", "GPU work by phase", _PHASE_COLUMNS, phases.with_columns(titles), None)
