"""Two or more reports of counters side by side: tables and sentences for the command and for the document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.counters.comparison import COMPARED, METRIC_CHANGES, UNPAIRED
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.counters.words import bound_title, kernel_count
from warplens.report.document import Notes, Paragraph, SectionOf, Table, pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.counters.comparison import Comparison
    from warplens.report.document import Block

#: What explains most changes of time: configuration, work, traffic, and where the data was found. Shown unless the user
#: names others.
KEY_METRICS: Final = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__waves_per_multiprocessor",
    "smsp__inst_executed.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "dram__bytes.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "local_load_requests",
)

#: Shares of which a comparison shows both sides: name, heading, what it is.
_POINTS: Final = (
    ("compute", "Compute", "of its peak"),
    ("memory", "Memory", "of its peak"),
    ("achieved", "Occupancy", "achieved"),
)

_GROUP_COLUMNS: Final = pick(
    COMPARED,
    "name_after",
    Column("renamed", help="its name before, where that was another", title="before"),
    "matched duration_ns_before duration_ns_after time_ratio cycles_ratio",
    *(
        Column(f"{name}_change", help=f"{meaning} before and after; percentage points", title=title)
        for name, title, meaning in _POINTS
    ),
    Column("bounds", help="before, and after where it changed", title="Bound"),
)

_METRIC_COLUMNS: Final = pick(
    METRIC_CHANGES,
    column("kernel", help="", kind="name"),
    "metric unit before after",
    column("change", help="percentage points of percentages; otherwise after / before"),
)

_UNPAIRED_COLUMNS: Final = pick(
    UNPAIRED, column("source").but(title="Only in"), "name grid block launches total_ns bound"
)


def comparison_lines(found: Comparison) -> list[str]:
    """What was compared with what, and how much of both that is."""
    before, after = fmt.printable(found.before), fmt.printable(found.after)
    if found.groups.is_empty():
        hint = "--pair BEFORE=AFTER compares kernels of different names"
        return [f"{after} against {before}: they have no kernel in common; {hint}"]
    shares = " and ".join(
        f"{fmt.value(share, 'share')} of the time of {source}"
        for share, source in ((found.paired_share_before, before), (found.paired_share_after, after))
    )
    return [f"{after} against {before}: {kernel_count(found.groups.height)} in both, {shares}"]


def comparison_tables(
    found: Comparison, limit: int | None, metrics: Sequence[str] = (), at: str = ""
) -> tuple[Table, ...]:
    """The kernels side by side, metrics of theirs, and what only one report has.

    Args:
        found: the comparison.
        limit: the most rows of a table; None for all.
        metrics: those to show; `KEY_METRICS` that changed unless there are any.
        at: begin of the tables' ids.
    """
    rows = found.groups.to_dicts()
    groups = found.groups.with_columns(
        pl.Series("renamed", [_renamed(row) for row in rows], dtype=pl.String),
        *(
            pl.Series(f"{name}_change", [_points(row, f"{name}_share") for row in rows], dtype=pl.String)
            for name, _, _ in _POINTS
        ),
        pl.Series("bounds", [_bounds(row) for row in rows], dtype=pl.String),
    )
    renamed = any(groups["renamed"].is_not_null())
    columns = tuple(column for column in _GROUP_COLUMNS if renamed or column.name != "renamed")
    caption = f"{fmt.printable(found.after)} against {fmt.printable(found.before)}"
    tables = [Table(f"{at}compared", caption, columns, groups, limit, empty="Nothing in common.")]
    changes = _changes(found, metrics)
    if changes.height:
        tables.append(Table(f"{at}metric-changes", "What changed in them", _METRIC_COLUMNS, changes, limit))
    if found.unpaired.height:
        sources = {"before": found.before, "after": found.after}
        unpaired = found.unpaired.with_columns(source=pl.col("side").replace_strict(sources, return_dtype=pl.String))
        tables.append(Table(f"{at}unpaired", "Kernels that only one report has", _UNPAIRED_COLUMNS, unpaired, limit))
    return tuple(tables)


def comparison_blocks(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    """All comparisons with the first report."""
    for number, found in enumerate(comparisons, start=1):
        yield from (Paragraph(f"{line}.") for line in comparison_lines(found))
        if found.notes and not found.groups.is_empty():
            yield Notes(found.notes)
        if not found.groups.is_empty():
            yield from comparison_tables(found, 15, at=f"c{number}-")


#: Of documents that compare reports of counters.
SIDE_BY_SIDE: Final = SectionOf["Sequence[Comparison]"]("comparison", "Side by side", comparison_blocks)


def comparison_data(found: Comparison) -> dict[str, Any]:
    """The same as plain data, every metric included."""
    return {
        "before": found.before,
        "after": found.after,
        "paired_share_before": found.paired_share_before,
        "paired_share_after": found.paired_share_after,
        "rows": found.groups,
        "metrics": found.metrics,
        "unpaired": found.unpaired,
        "notes": list(found.notes),
    }


def point_text(points: float | None) -> str:
    """A difference in percentage points: `+12.3 pp`."""
    if points is None:
        return fmt.MISSING
    text = f"{abs(points):.1f}"
    return f"{'' if text == '0.0' else '+' if points > 0 else '−'}{text} pp"


def _changes(found: Comparison, metrics: Sequence[str]) -> pl.DataFrame:
    chosen = found.metrics.filter(pl.col("metric").is_in(list(metrics or KEY_METRICS)))
    if not metrics:
        chosen = chosen.filter(pl.col("before") != pl.col("after"))
    names = dict(zip(found.groups["pair"], map(fmt.shorten_kernel, found.groups["full_name_after"]), strict=True))
    order = {name: place for place, name in enumerate(metrics or KEY_METRICS)}
    place = pl.col("metric").replace_strict(order, return_dtype=pl.Int64)
    chosen = chosen.sort("pair", place)
    changes = [
        f"× {fmt.number(row['ratio'])}"
        if row["points"] is None and row["ratio"] is not None
        else point_text(row["points"])
        for row in chosen.iter_rows(named=True)
    ]
    return chosen.with_columns(
        kernel=pl.col("pair").replace_strict(names, default=None, return_dtype=pl.String),
        change=pl.Series(changes, dtype=pl.String),
    )


def _renamed(row: dict[str, Any]) -> str | None:
    """What the kernel was called before, or the size that it had, where that was another."""
    if row["matched"] in ("stated", "name") and row["full_name_before"] != row["full_name_after"]:
        return fmt.shorten_kernel(row["full_name_before"])
    sizes = [(row[f"grid_{side}"], row[f"block_{side}"]) for side in ("before", "after")]
    if sizes[0] == sizes[1]:
        return None
    return f"grid {sizes[0][0]} × block {sizes[0][1]}, now {sizes[1][0]} × {sizes[1][1]}"


def _points(row: dict[str, Any], share: str) -> str:
    before, after = row[f"{share}_before"], row[f"{share}_after"]
    if before is None or after is None:
        return f"{fmt.value(before, 'share')} → {fmt.value(after, 'share')}"
    return f"{fmt.share(before)} → {fmt.share(after)} ({point_text(row[share.replace('_share', '_points')])})"


def _bounds(row: dict[str, Any]) -> str:
    before, after = (
        bound_title({name: row[f"{name}_{side}"] for name in ("bound", "unit", "healthy")})
        for side in ("before", "after")
    )
    return after if before == after else f"{before} → {after}"
