"""A counter report joined with a trace, and comparisons of counter reports, for the terminal and for documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.counters.comparison import COMPARED, METRIC_CHANGES, UNPAIRED, Comparison
from warplens.analysis.counters.coverage import COVERAGE, RANKING, UNMATCHED
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.counters.numbers import BOUND, bound_title, shown_share
from warplens.report.document import Block, Notes, Paragraph, SectionOf, Table, pick, quiet, with_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from warplens.report.counters.numbers import Joined


_COVERED: Final = pick(COVERAGE, "name grid block launches launches_profiled total_ns share matched")
_RANKED: Final = pick(RANKING, "name grid block share bound throughput_share gain_share fault stall")
_IN_REPORT: Final = pick(RANKING, "name grid block launches share throughput_share gain_share", BOUND, column("reason"))
_UNMATCHED: Final = pick(UNMATCHED, "name grid block launches_profiled launches_elsewhere")


def coverage_lines(joined: Joined) -> Iterator[str]:
    """The lines above the tables: the trace and its window, matched launches, coverage, and the kind of sample."""
    coverage = joined.coverage
    yield f"trace: {joined.trace}, window of {fmt.duration(joined.window.duration_ns)}, {joined.window.how}"
    yield f"matched: {_matched(joined)}"
    if coverage.exact_share is not None:
        yield f"coverage: {_covered(joined)}"
    yield f"sample: {coverage.sample} ({coverage.sample_how})"


def coverage_tables(joined: Joined, limit: int | None = 15, at: str = "") -> Iterator[Table]:
    """Coverage and ranking of the window's kernels, and profiled kernels that are not in the window, if any."""
    coverage = joined.coverage
    empty = "No kernel in the window."
    yield Table(f"{at}coverage", "Coverage of the window", _COVERED, coverage.groups, limit, empty=empty)
    caption = "What the window's kernel time could lose at most, if a kernel ran at its roof"
    empty = "No kernel of the window was profiled with its grid and block."
    yield Table(f"{at}ranking", caption, _RANKED, coverage.ranking, limit, empty=empty)
    if coverage.unmatched.height:
        yield Table(f"{at}unmatched", "Profiled, but not in the window", _UNMATCHED, coverage.unmatched, limit)


def next_run_lines(joined: Joined) -> Iterator[str]:
    """The next command to run, and the reason."""
    run = joined.next_run
    if run.command is None or run.launches is None or run.passes is None:
        yield f"next run: none: {run.reason}"
        return
    yield f"next run (ncu {run.ncu_version}): {run.reason}"
    yield (
        f"it closes {shown_share(run.covered_share)} of a gap of {shown_share(run.gap_share)} of the kernel time with "
        f"{fmt.count(run.launches)} launches in about {fmt.count(run.passes)} passes "
        f"({run.passes_how})"
    )


def _sampled(joined: Joined, file: str) -> Iterator[Block]:
    yield Paragraph(f"{fmt.printable(file)}: {_matched(joined)}. {fmt.capitalised(_covered(joined))}.")
    yield quiet(f"The sample is {joined.coverage.sample}: {joined.coverage.sample_how}.")


def coverage_blocks(joined: Sequence[Joined]) -> Iterator[Block]:
    """For the document on counters: how much of the given traces the report covers."""
    for number, item in enumerate(joined, start=1):
        yield from _sampled(item, item.trace)
        if item.matches:
            yield from coverage_tables(item, at=f"t{number}-")


def joined_blocks(joined: Sequence[Joined]) -> Iterator[Block]:
    """For the report on a trace: its profiled kernels, those with the most to gain first, and the next run."""
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
    """`coverage`, `ranking` and `next_run` of the JSON, one entry per report."""
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
    """The ranking with verdict and reason of each kernel.

    Kernels are matched by short name, since full names can be spelled differently; ambiguous ones are left out.
    """
    keys = ["name", "grid", "block"]
    reasons = joined.reasons.unique(keys, keep="none", maintain_order=True).select(*keys, "verdict", "reason")
    ranking = joined.coverage.ranking.join(reasons, on=keys, how="left", maintain_order="left")
    return ranking.with_columns(pl.coalesce("verdict", "bound").alias("verdict"))


def _matched(joined: Joined) -> str:
    coverage = joined.coverage
    return (
        f"{fmt.count(coverage.launches_matched)} of {fmt.count(coverage.launches_profiled)} profiled launches "
        "occur in the window with the same grid and block"
    )


def _covered(joined: Joined) -> str:
    coverage = joined.coverage
    return (
        f"of {fmt.duration(coverage.total_ns)} kernel time, {shown_share(coverage.exact_share)} was profiled, "
        f"{shown_share(coverage.kernel_share)} in another grid or block, {shown_share(coverage.name_share)} is other "
        f"kernels of the same short name, {shown_share(coverage.missing_share)} was not profiled"
    )


#: Metrics shown by default in a comparison, which explain most changes of time: configuration, work, traffic, cache
#: hits.
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

#: Shares shown for both sides of a comparison: name, heading, meaning.
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


def comparison_lines(comparison: Comparison) -> list[str]:
    """How much of two reports is in kernels that they have in common, and what changed in these."""
    before, after = fmt.printable(comparison.before), fmt.printable(comparison.after)
    if comparison.groups.is_empty():
        hint = "--pair BEFORE=AFTER compares kernels of different names"
        return [f"{after} against {before}: they have no kernel in common; {hint}"]
    shares = " and ".join(
        f"{fmt.value(share, 'share')} of the time of {source}"
        for share, source in ((comparison.paired_share_before, before), (comparison.paired_share_after, after))
    )
    in_both = f"{fmt.plural(comparison.groups.height, 'kernel')} in both, {shares}"
    return [in_both, changes_sentence(comparison)]


def changes_sentence(comparison: Comparison) -> str:
    """The answer of a comparison: the time of a launch of each kernel in both, and the largest change."""
    timed = comparison.groups.drop_nulls("time_ratio")
    if timed.is_empty():
        return "No kernel in both has a duration" if comparison.groups.height else "They have no kernel in common"
    changed = int(comparison.groups["bound_changed"].sum())
    bounds = f"the bound of {fmt.plural(changed, 'kernel')} changed" if changed else "no bound changed"
    before, after = (float(timed[f"duration_ns_{side}"].sum()) for side in ("before", "after"))
    total = (
        f"A launch of each takes {fmt.duration(after)}, {fmt.duration(before)} before (ratio {_ratio(after, before)})"
    )
    changed_times = timed.filter((pl.col("time_ratio") - 1).abs() >= _LEAST_CHANGE).sort(_TIME_CHANGE, descending=True)
    if changed_times.is_empty():
        return f"{total}; the time of none changed by {fmt.share(_LEAST_CHANGE)}; {bounds}"
    most = changed_times.row(0, named=True)
    before, after = most["duration_ns_before"], most["duration_ns_after"]
    largest = f"{fmt.shorten_kernel(most['full_name_after'])}, {fmt.duration(before)} → {fmt.duration(after)}"
    return f"{total}; the largest change is {largest} (ratio {_ratio(after, before)}); {bounds}"


def _ratio(after: float, before: float) -> str:
    return fmt.number(after / before) if before else fmt.MISSING


#: Times and metrics of two runs of the same program differ by less than this anyway, or by less than a point.
_LEAST_CHANGE: Final = 0.01

#: Change of the time of a launch.
_TIME_CHANGE: Final = (pl.col("duration_ns_after") - pl.col("duration_ns_before")).abs()


def comparison_tables(
    comparison: Comparison, limit: int | None, metrics: Sequence[str] = (), at: str = ""
) -> tuple[Table, ...]:
    """Kernels of both reports, their changed metrics, and kernels that only one report has.

    The metrics are those of `KEY_METRICS` that changed by `_LEAST_CHANGE`, unless others are given. `at` prefixes the
    ids of the tables.
    """
    shares = {f"{name}_change": partial(_points, share=f"{name}_share") for name, _, _ in _POINTS}
    groups = with_texts(comparison.groups, renamed=_renamed, **shares, bounds=_bounds)
    renamed = any(groups["renamed"].is_not_null())
    columns = tuple(column for column in _GROUP_COLUMNS if renamed or column.name != "renamed")
    caption = f"{fmt.printable(comparison.after)} against {fmt.printable(comparison.before)}"
    tables = [Table(f"{at}compared", caption, columns, groups, limit, empty="Nothing in common.")]
    changes = _changes(comparison, metrics)
    if changes.height:
        tables.append(Table(f"{at}metric-changes", "What changed in them", _METRIC_COLUMNS, changes, limit))
    if comparison.unpaired.height:
        sources = {"before": comparison.before, "after": comparison.after}
        unpaired = with_texts(
            comparison.unpaired,
            source=lambda row: sources[row["side"]],
            bound=lambda row: bound_title({**row, "unit": None}),
        )
        tables.append(Table(f"{at}unpaired", "Kernels that only one report has", _UNPAIRED_COLUMNS, unpaired, limit))
    return tuple(tables)


def comparison_blocks(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    """Lines, notes and tables of each comparison."""
    for number, comparison in enumerate(comparisons, start=1):
        yield from (Paragraph(f"{line}.") for line in comparison_lines(comparison))
        if comparison.groups.is_empty():
            continue
        if comparison.notes:
            yield Notes(comparison.notes)
        yield from comparison_tables(comparison, 15, at=f"c{number}-")


#: The section of documents that compare counter reports.
SIDE_BY_SIDE: Final = SectionOf["Sequence[Comparison]"]("comparison", "Side by side", comparison_blocks)


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The JSON data of a comparison, with every metric."""
    from warplens.report.jsonout import named

    return {
        "answer": changes_sentence(comparison),
        **named(comparison, "before after paired_share_before paired_share_after"),
        "rows": comparison.groups,
        **named(comparison, "metrics unpaired notes"),
    }


def point_text(points: float | None) -> str:
    """A difference in percentage points: `+12.3 pp`."""
    if points is None:
        return fmt.MISSING
    text = f"{abs(points):.1f}"
    return f"{'' if text == '0.0' else '+' if points > 0 else '−'}{text} pp"


def _changes(comparison: Comparison, metrics: Sequence[str]) -> pl.DataFrame:
    """The given metrics, or those of `KEY_METRICS` that changed, the kernel whose time changed the most first.

    Of a kernel given metrics keep their order, and others come by the size of their change.
    """
    chosen = comparison.metrics.filter(pl.col("metric").is_in(list(metrics or KEY_METRICS)))
    if not metrics:
        chosen = chosen.filter(_METRIC_CHANGE.fill_null(1.0) >= _LEAST_CHANGE, pl.col("before") != pl.col("after"))
    order = {name: position for position, name in enumerate(metrics)}
    rank = pl.col("metric").replace_strict(order, return_dtype=pl.Int64) if metrics else -_METRIC_CHANGE.fill_null(1.0)
    kernels = comparison.groups.select("pair", _TIME_CHANGE.alias("time_change"), kernel="full_name_after")
    chosen = chosen.join(kernels, on="pair", how="left", maintain_order="left").sort(
        "time_change", "pair", rank, descending=[True, False, False], nulls_last=True, maintain_order=True
    )
    return with_texts(chosen, kernel=lambda row: fmt.shorten_kernel(row["kernel"]), change=_change)


#: Size of the change of a metric, as a share: of percentages, the difference; null where it was 0 before.
_METRIC_CHANGE: Final = pl.coalesce(pl.col("points").abs() / 100, (pl.col("ratio") - 1).abs())


def _change(row: Mapping[str, Any]) -> str:
    in_points = row["points"] is not None or row["ratio"] is None
    return point_text(row["points"]) if in_points else f"× {fmt.number(row['ratio'])}"


def _renamed(row: Mapping[str, Any]) -> str | None:
    """The kernel's name before, or its size before and now, if they differ."""
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
