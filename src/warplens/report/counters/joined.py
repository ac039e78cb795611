"""A report of counters beside a trace: coverage, ranking and the next run, for the terminal and for documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.counters.coverage import COVERAGE, RANKING, UNMATCHED
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.counters.words import BOUND
from warplens.report.document import Paragraph, Table, pick, quiet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.report.counters.numbers import Joined
    from warplens.report.document import Block


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
            caption = "Profiled kernels of the window by what they could save at most"
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
