"""A report of counters beside a trace, and several reports side by side, for the terminal and for documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.counters.comparison import COMPARED, METRIC_CHANGES, UNPAIRED, Comparison
from warplens.analysis.counters.coverage import COVERAGE, RANKING, UNMATCHED
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.counters.numbers import BOUND, bound_title, kernel_count
from warplens.report.document import Block, Notes, Paragraph, SectionOf, Table, pick, quiet, with_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from warplens.report.counters.numbers import Joined


_COVERED: Final = pick(COVERAGE, "name grid block launches launches_profiled total_ns share matched")
_RANKED: Final = pick(RANKING, "name grid block share bound throughput_share gain_share fault stall")
_IN_REPORT: Final = pick(RANKING, "name grid block launches share throughput_share gain_share", BOUND, column("reason"))
_UNMATCHED: Final = pick(UNMATCHED, "name grid block launches_profiled launches_elsewhere")


def coverage_lines(joined: Joined) -> Iterator[str]:
    """What matched, and what to make of it, before the tables."""
    covered = joined.coverage
    yield f"trace: {joined.trace}, window of {fmt.duration(joined.window.duration_ns)}, {joined.window.how}"
    yield f"matched: {_matched(joined)}"
    if covered.exact_share is not None:
        yield f"coverage: {_covered(joined)}"
    yield f"sample: {covered.sample} ({covered.sample_how})"


def coverage_tables(joined: Joined, limit: int | None = 15, at: str = "") -> Iterator[Table]:
    """Coverage, ranking, and what the trace lacks, if anything."""
    covered = joined.coverage
    empty = "No kernel in the window."
    yield Table(f"{at}coverage", "Coverage of the window", _COVERED, covered.groups, limit, empty=empty)
    yield Table(
        f"{at}ranking",
        "What the window's kernel time could lose at most, if a kernel ran at its roof",
        _RANKED,
        covered.ranking,
        limit,
        empty="No kernel of the window was profiled with its grid and block.",
    )
    if covered.unmatched.height:
        yield Table(f"{at}unmatched", "Profiled, but not in the window", _UNMATCHED, covered.unmatched, limit)


def next_run_lines(joined: Joined) -> Iterator[str]:
    """The next command, and why."""
    further = joined.next_run
    if further.command is None or further.launches is None or further.passes is None:
        yield f"next run: none: {further.reason}"
        return
    yield f"next run (ncu {further.ncu_version}): {further.reason}"
    yield (
        f"it closes {_share(further.covered_share)} of a gap of {_share(further.gap_share)} of the kernel time with "
        f"{fmt.count(further.launches)} launches in about {fmt.count(further.passes)} passes "
        f"({further.passes_how})"
    )


def _sampled(joined: Joined, file: str) -> Iterator[Block]:
    yield Paragraph(f"{fmt.printable(file)}: {_matched(joined)}. {fmt.capitalised(_covered(joined))}.")
    yield quiet(f"The sample is {joined.coverage.sample}: {joined.coverage.sample_how}.")


def coverage_blocks(joined: Sequence[Joined]) -> Iterator[Block]:
    """For the document on counters: how much of the traces given beside the report it speaks of."""
    for number, item in enumerate(joined, start=1):
        yield from _sampled(item, item.trace)
        if item.matches:
            yield from coverage_tables(item, at=f"t{number}-")


def joined_blocks(joined: Sequence[Joined]) -> Iterator[Block]:
    """For the report on a trace: what the counters say of its kernels, those with the most to gain first."""
    for number, item in enumerate(joined, start=1):
        yield from _sampled(item, item.source)
        ranking = _with_reasons(item)
        if not ranking.is_empty():
            caption = "Profiled kernels of the window by the most that they could save"
            yield Table(f"counters-{number}", caption, _IN_REPORT, ranking)
        missing = item.coverage.groups.filter(pl.col("matched") != "exact")
        if item.matches and not missing.is_empty():
            caption = "Kernels of the window without counters of their own grid and block"
            yield Table(f"uncovered-{number}", caption, _COVERED, missing, limit=5)
        if item.next_run.command is not None:
            yield Paragraph(f"{fmt.capitalised(item.next_run.reason)}:")
            yield Paragraph(item.next_run.command)
    yield quiet(
        "Counters are from another run than this trace, under Nsight Compute: a kernel was found again by its "
        "name, grid and block. “Worth” is a ceiling, of one kernel at a time."
    )


def joined_data(joined: Sequence[Joined]) -> dict[str, Any]:
    """`coverage`, `ranking` and `next_run` of the JSON: an entry a report."""
    from warplens.report.jsonout import window_data

    return {
        "coverage": [
            {
                "source": item.source,
                "trace": item.trace,
                "window": window_data(item.window),
                **{key: value for key, value in vars(item.coverage).items() if key != "ranking"},
            }
            for item in joined
        ],
        "ranking": [{"source": item.source, "rows": item.coverage.ranking} for item in joined],
        "next_run": [{"source": item.source, **vars(item.next_run)} for item in joined],
    }


def _with_reasons(joined: Joined) -> pl.DataFrame:
    """The ranking with the sentence on each kernel; names can be spelled otherwise, and short names are the same."""
    which = ["name", "grid", "block"]
    reasons = joined.reasons.unique(which, keep="none", maintain_order=True).select(*which, "verdict", "reason")
    ranking = joined.coverage.ranking.join(reasons, on=which, how="left", maintain_order="left")
    return ranking.with_columns(pl.coalesce("verdict", "bound").alias("verdict"))


def _matched(joined: Joined) -> str:
    covered = joined.coverage
    return (
        f"{fmt.count(covered.launches_matched)} of {fmt.count(covered.launches_profiled)} profiled launches "
        "occur in the window with the same grid and block"
    )


def _covered(joined: Joined) -> str:
    covered = joined.coverage
    return (
        f"of {fmt.duration(covered.total_ns)} kernel time, {_share(covered.exact_share)} was profiled, "
        f"{_share(covered.kernel_share)} in another grid or block, {_share(covered.name_share)} is other kernels "
        f"of the same short name, {_share(covered.missing_share)} was not profiled"
    )


def _share(part: float | None) -> str:
    return fmt.value(part, "share")


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
        limit: the most rows of a table; None for all.
        metrics: those to show; `KEY_METRICS` that changed unless there are any.
        at: begin of the tables' ids.
    """
    shares = {f"{name}_change": partial(_points, share=f"{name}_share") for name, _, _ in _POINTS}
    groups = with_texts(found.groups, renamed=_renamed, **shares, bounds=_bounds)
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
    named = chosen.with_columns(kernel=pl.col("pair").replace_strict(names, default=None, return_dtype=pl.String))
    return with_texts(named, change=_change)


def _change(row: Mapping[str, Any]) -> str:
    in_points = row["points"] is not None or row["ratio"] is None
    return point_text(row["points"]) if in_points else f"× {fmt.number(row['ratio'])}"


def _renamed(row: Mapping[str, Any]) -> str | None:
    """What the kernel was called before, or the size that it had, where that was another."""
    if row["matched"] in ("stated", "name") and row["full_name_before"] != row["full_name_after"]:
        return fmt.shorten_kernel(row["full_name_before"])
    sizes = [(row[f"grid_{side}"], row[f"block_{side}"]) for side in ("before", "after")]
    if sizes[0] == sizes[1]:
        return None
    return f"grid {sizes[0][0]} × block {sizes[0][1]}, now {sizes[1][0]} × {sizes[1][1]}"


def _points(row: Mapping[str, Any], share: str) -> str:
    before, after = row[f"{share}_before"], row[f"{share}_after"]
    if before is None or after is None:
        return f"{fmt.value(before, 'share')} → {fmt.value(after, 'share')}"
    return f"{fmt.share(before)} → {fmt.share(after)} ({point_text(row[share.replace('_share', '_points')])})"


def _bounds(row: Mapping[str, Any]) -> str:
    before, after = (
        bound_title({name: row[f"{name}_{side}"] for name in ("bound", "unit", "healthy")})
        for side in ("before", "after")
    )
    return after if before == after else f"{before} → {after}"
