"""The document on hardware counters: its sections, for one report or several with a comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from warplens.analysis.counters.bounds import FAULTS, LOW_OCCUPANCY
from warplens.analysis.counters.comparison import Comparison
from warplens.analysis.counters.groups import SUMMARY
from warplens.analysis.counters.nextrun import NextRun
from warplens.profile.columns import column
from warplens.profile.counters import RULES
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.counters import hardware
from warplens.report.counters.beside import (
    SIDE_BY_SIDE,
    changes_sentence,
    comparison_data,
    coverage_blocks,
    joined_data,
)
from warplens.report.counters.numbers import (
    BOUND,
    FAULT_TITLES,
    CounterNumbers,
    compared_with_first,
    evidence_text,
    limiter_title,
    remedy_for,
    shown_columns,
    with_names,
)
from warplens.report.document import (
    Answer,
    Block,
    Document,
    Figure,
    Notes,
    Paragraph,
    Section,
    SectionOf,
    Segment,
    Strip,
    Table,
    limits,
    pick,
    quiet,
    sections,
    with_texts,
    yes_or_no,
)
from warplens.report.jsonout import envelope, named
from warplens.report.verdict import checklist_blocks
from warplens.report.write import REPORT_FORMATS, ReportFormat, write_document

#: Bars of the ranking; the table below it has all kernels.
_RANKED: Final = 10

#: The words for kernels of each bound, and their colour in the ranking.
_BOUNDS: Final = {
    "memory": ("bound by memory", "transfer"),
    "compute": ("bound by compute", "gemm"),
    "latency": ("bound by latency", "idle-3"),
    "small": ("in grids too small to fill the GPU", "idle-1"),
    "unknown": ("of unknown bound", "other"),
}


_FACT_COLUMNS: Final = (Column("fact", title="Setting"), column("value", dtype=pl.String, help="", kind="text"))


def measured(numbers: CounterNumbers) -> Iterator[Block]:
    """What was profiled, and how it was collected."""
    counters, summary = numbers.counters, numbers.summary
    total_ns = float(summary["total_ns"].sum())
    yield Paragraph(
        f"{numbers.measured} (a kernel is a function with one grid and block), {fmt.duration(total_ns)} of GPU time in "
        "all."
    )
    session = counters.session
    facts = {
        "Sections": ", ".join(session.sections) or None,
        "Clock control": session.clock_control,
        "Cache control": session.cache_control,
        "Replay mode": session.replay_mode,
        "Metrics": fmt.count(counters.metrics.width) if counters.metrics.width else None,
        "Multiprocessor clock": _clock(summary["sm_hz"]),
        "Memory clock": _clock(summary["dram_hz"]),
    }
    rows = pl.DataFrame(
        [(fact, value or "not stated") for fact, value in facts.items()], schema=["fact", "value"], orient="row"
    )
    yield Table("session", "How it was collected", _FACT_COLUMNS, rows, limit=None)
    if not numbers.joined:
        yield quiet(
            "How much of the program's GPU time these launches are is not in the report. Give a trace of the same "
            "program beside it (warplens report TRACE COUNTERS) to see it."
        )


def _clock(clocks: pl.Series) -> str | None:
    known = clocks.drop_nulls()
    if known.is_empty():
        return None
    least, most = (f"{value / 1e9:.2f}" for value in (known.min(), known.max()))  # type: ignore[operator]
    return f"{most} GHz" if least == most else f"{least} to {most} GHz"


def semantics(numbers: CounterNumbers) -> Iterator[Block]:
    """Notes on the meaning of the numbers, given how they were collected."""
    yield Notes(numbers.semantics) if numbers.semantics else quiet("The report does not say how it was collected.")
    yield quiet(
        "Shares are of the peak while a kernel ran. A low one does not mean that the GPU was idle between kernels: "
        "that is in a trace."
    )


_KERNEL_COLUMNS: Final = pick(
    SUMMARY,
    "name grid block launches total_ns",
    column("share").but(help="of the profiled time"),
    BOUND,
    column("reason"),
)


def kernels(numbers: CounterNumbers) -> Iterator[Block]:
    """The kernels by time, each with its bound and the reason."""
    summary = numbers.summary
    timed = summary.filter(pl.col("total_ns") > 0)
    if timed.height:
        from warplens.report.charts import bars

        rows = timed.head(_RANKED)
        ranked = pl.DataFrame(
            {
                "name": [
                    f"{fmt.shorten_kernel(row['full_name'], 44)} · {row['verdict']}"
                    for row in rows.iter_rows(named=True)
                ],
                "full_name": [fmt.printable(name) for name in rows["full_name"]],
                "value": rows["total_ns"],
                "share": rows["share"],
                "fill": [_BOUNDS[bound][1] for bound in rows["bound"]],
                "detail": rows["reason"],
            }
        )
        alt = "; ".join(
            f"{name}: {fmt.share(share)}" for name, share in ranked.select("name", "share").head(3).iter_rows()
        )
        yield Figure("ranking", "Profiled time by kernel", bars.ranked_chart(ranked), alt)
    yield Table("kernels-table", "Kernels", _KERNEL_COLUMNS, summary, empty="The report holds no profiled kernel.")


_BOUND_COLUMNS: Final = pick(
    SUMMARY,
    "name grid",
    BOUND,
    "unit_share",
    *(SUMMARY.column(name).but(dtype=pl.String, kind="text") for name in ("balanced", "healthy")),
    "fault fault_gain_share",
    SUMMARY.column("evidence").but(dtype=pl.String),
)


def bounds(numbers: CounterNumbers) -> Iterator[Block]:
    """The bound of each kernel, with its evidence."""
    summary = with_texts(numbers.summary, evidence=lambda row: evidence_text(row["evidence"])).with_columns(
        pl.col("fault").replace(FAULT_TITLES),
        *yes_or_no("balanced", "healthy"),
    )
    columns = shown_columns(_BOUND_COLUMNS, summary)
    yield Table("bounds-table", "What limits each kernel", columns, summary, empty="No kernel.")
    yield quiet(
        "A unit at 60 % of its peak or more is the bound; from 80 % on it is as good as full. Below, a kernel waits: "
        "its grid is too small to fill the GPU, or latency holds it back. The limits are Nsight Compute's."
    )


_FAULT_COLUMNS: Final = pick(
    FAULTS,
    SUMMARY.column("name"),
    "fault gain_share",
    Column("total_gain_share", pl.Float64, "of the profiled time", title="of all"),
    "evidence",
    column("remedy", help="", title="What to do"),
)


def faults(numbers: CounterNumbers) -> Iterator[Block]:
    """Faults of the kernels, the costliest first, with remedies."""
    titled = _titled_faults(numbers)
    if titled.is_empty():
        yield quiet(
            "No fault was found that could cost a tenth of a kernel's time, as far as the collected metrics tell."
        )
        return
    yield Table("faults-table", "Faults and remedies", _FAULT_COLUMNS, titled)
    yield quiet(
        "The cost is a ceiling: without this fault the kernel would not get faster by more. Relief of one fault often "
        "uncovers the next."
    )


def _titled_faults(numbers: CounterNumbers) -> pl.DataFrame:
    """The faults with display names, and their maximum cost as a share of the profiled time, the costliest first."""
    rows = with_names(numbers, numbers.faults)
    total = numbers.summary["total_ns"].sum()
    cost = pl.col("gain_share") * pl.col("total_ns") / total if total else pl.lit(None, dtype=pl.Float64)
    titled = with_texts(
        rows,
        evidence=lambda row: evidence_text(row["evidence"]),
        remedy=lambda row: remedy_for(row["fault"], row["full_name"]),
    ).with_columns(total_gain_share=cost, fault=pl.col("fault").replace(FAULT_TITLES))
    return titled.sort("total_gain_share", descending=True, nulls_last=True, maintain_order=True)


_RULE_COLUMNS: Final = pick(
    RULES,
    SUMMARY.column("name"),
    RULES.column("name").but(name="rule_name"),
    "message",
    RULES.column("speedup_percent").but(name="speedup_share", title="Estimate", kind="share"),
    "speedup_kind",
)

#: Kinds of rule results that are shown.
_SHOWN_KINDS: Final = ("optimization", "warning", "error")


def rules(numbers: CounterNumbers) -> Iterator[Block]:
    """Results of Nsight Compute's own rules; nothing if they did not run."""
    launches = numbers.counters.launches.select("launch", pl.col("name", "full_name").cast(pl.String))
    results = numbers.counters.rules.filter(pl.col("kind").is_in(_SHOWN_KINDS)).rename({"name": "rule_name"})
    if results.is_empty():
        return
    shown = results.join(launches, on="launch", maintain_order="left").with_columns(
        speedup_share=pl.col("speedup_percent") / 100
    )
    shown = shown.unique(["full_name", "rule", "message"], keep="first", maintain_order=True)
    shown = shown.sort("speedup_share", descending=True, nulls_last=True, maintain_order=True)
    yield Table("rules-table", "Results of Nsight Compute's rules", _RULE_COLUMNS, shown, limit=10)


def next_runs(numbers: CounterNumbers) -> Iterator[Block]:
    """The most informative command to run next, for each trace or for the report alone."""
    runs: list[tuple[NextRun, str | None]] = [(item.next_run, item.trace) for item in numbers.joined if item.matches]
    runs = runs or [(numbers.next_run, None)]
    for run, trace in runs:
        with_trace = f"With {trace}: " if trace and len(runs) > 1 else ""
        yield Paragraph(fmt.sentence(f"{with_trace}{run.reason}"))
        if run.command is not None:
            yield Paragraph(run.command)
            scope = "kernel time of the window" if trace else "profiled time"
            launches = fmt.plural(run.launches or 0, "launch", "launches")
            yield quiet(
                f"It closes {fmt.value(run.covered_share, 'share')} of a gap of {fmt.value(run.gap_share, 'share')} of "
                f"the {scope} with {launches} in about {fmt.value(run.passes, 'count')} passes "
                f"({run.passes_how}); valid from Nsight Compute {run.ncu_version} on."
            )


def bound_shares(numbers: CounterNumbers) -> list[tuple[str, float, str]]:
    """Title, share of the profiled time and colour token of each bound, the largest first; healthy kernels separate."""
    timed = numbers.summary.filter(pl.col("total_ns") > 0)
    total = float(timed["total_ns"].sum())
    sums: dict[tuple[str, str], float] = {}
    for row in timed.select("bound", "healthy", "total_ns").iter_rows(named=True):
        key = _bound_title(row)
        sums[key] = sums.get(key, 0.0) + row["total_ns"]
    return sorted(((title, part / total, fill) for (title, fill), part in sums.items()), key=lambda item: -item[1])


def _bound_title(row: Mapping[str, Any]) -> tuple[str, str]:
    """The words for a kernel's bound and their colour; those of healthy kernels are separate."""
    title, fill = _BOUNDS[row["bound"]]
    return (f"{title} and healthy", "attention") if row["healthy"] else (title, fill)


def _how_near(numbers: CounterNumbers, title: str) -> str:
    """How near the kernels of a bound are to its peak, and what limits their occupancy, as a clause.

    From 60 % of a peak on, it is the bound. That leaves much, which fewer warps than fit may be the reason for.
    """
    rows = [row for row in numbers.summary.iter_rows(named=True) if row["total_ns"] and _bound_title(row)[0] == title]
    shares = [share for row in rows if (share := row.get(f"{row['bound']}_share")) is not None]
    text = f", at {_span(shares)} of its peak" if shares else ""
    low = [row for row in rows if row["at_roof"] is False and (row["theoretical_share"] or 1.0) <= LOW_OCCUPANCY]
    if shares and (limits := [*filter(None, dict.fromkeys(map(limiter_title, low)))]):
        text += f"; occupancy is {_span([row['theoretical_share'] for row in low])}, limited by {' and '.join(limits)}"
    return text


def _span(parts: Sequence[float]) -> str:
    """A share, or the least and the largest."""
    least, most = fmt.share(min(parts)), fmt.share(max(parts))
    return least if least == most else f"{least} to {most}"


#: Bounds named in the answer, so that its sentence stays readable.
_MOST_SHARES: Final = 3

#: The sections in reading order.
_SECTIONS: Final[tuple[SectionOf[CounterNumbers], ...]] = (
    SectionOf("measured", "What was measured", measured),
    SectionOf("coverage-section", "Share of the program", coverage_blocks, lambda numbers: numbers.joined),
    SectionOf("kernels", "Kernels", kernels),
    SectionOf("bounds", "Bounds", bounds),
    SectionOf("faults", lambda numbers: "Faults" if numbers.faults.is_empty() else "Faults and remedies", faults),
    SectionOf("speed-of-light", "Speed of light", hardware.speed_of_light),
    SectionOf("roofline-section", "Roofline", hardware.roofline, lambda numbers: numbers.roofline),
    SectionOf("occupancy", "Occupancy", hardware.occupancy),
    SectionOf("launch", "Launch configuration", hardware.launch),
    SectionOf("stalls", "Warp stalls", hardware.stalls),
    SectionOf("memory", "Memory access", hardware.memory),
    SectionOf("rules", "What Nsight Compute's own rules say", rules),
    SectionOf("checklist", "Checklist", checklist_blocks, lambda numbers: numbers.checklist),
    SectionOf("next-run", "The next run", next_runs),
    SectionOf("semantics", "What these numbers mean", semantics),
    SectionOf("quality", "Limits of these numbers", limits, lambda numbers: numbers.warnings),
)


def counters_document(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison] | None = None) -> Document:
    """One document on all reports: the answer, what was measured, then every analysis.

    The comparisons of each further report with the first are computed unless given.
    """
    if len(reports) == 1:
        only = reports[0]
        title = fmt.printable(only.capture.source)
        return Document(title, counters_lead(only), sections(_SECTIONS, only), _meta(only), counters_answer(only))
    comparisons = compared_with_first(reports) if comparisons is None else comparisons
    report_sections = []
    for position, numbers in enumerate(reports, start=1):
        facts = quiet(" · ".join(f"{label}: {text}" for label, text in _meta(numbers)))
        title, subsections = fmt.printable(numbers.capture.source), sections(_SECTIONS, numbers, f"p{position}-")
        report_sections.append(Section(f"p{position}", title, (Paragraph(counters_lead(numbers)), facts), subsections))
    return Document(
        title=f"{len(reports)} reports of hardware counters",
        lead=_comparison_lead(comparisons),
        sections=(*sections([SIDE_BY_SIDE], comparisons), *report_sections),
    )


def counters_lead(numbers: CounterNumbers) -> str:
    """The answer in two sentences: the profiled time by bound, and the bound of the most expensive kernel."""
    summary = numbers.summary
    if summary.is_empty():
        return "The report holds no profiled kernel."
    measured = numbers.measured
    shares = bound_shares(numbers)
    if not shares:
        metrics = numbers.counters.metrics
        is_empty = all(values.null_count() == metrics.height for values in metrics)
        reason = "they failed, or nothing was collected" if is_empty else "it was not collected"
        return f"{measured}, none of which has a duration: {reason}."
    total = fmt.duration(float(summary["total_ns"].sum()))
    split = ", ".join(f"{fmt.share(share)} {title}" for title, share, _ in shares[:_MOST_SHARES])
    first = summary.row(0, named=True)
    name = fmt.shorten_kernel(first["full_name"])
    return (
        f"{measured} took {total}: {split}. The most expensive is {name} ({fmt.share(first['share'])} of that time); "
        f"its bound: {first['verdict']}. {fmt.capitalised(first['reason'])}."
    )


def counters_answer(numbers: CounterNumbers) -> Answer | None:
    """The first screen: the profiled time by bound, and the costliest fault with its remedy, or else the next run.

    None if no launch has a duration.
    """
    shares, costliest = bound_shares(numbers), _titled_faults(numbers)
    if not shares:
        return None
    largest, largest_share, _ = shares[0]
    run = next((item.next_run for item in numbers.joined if item.matches), numbers.next_run)
    gain, gain_range = "Little", "No fault was found that could cost a tenth of a kernel's time."
    do, brings, code = fmt.sentence(run.reason), "", run.command or ""
    if run.command:  # there are metrics left to collect
        without = "" if numbers.stalls.height else ", without the reasons for which warps stall"
        gain, gain_range = "Not known", f"No fault was found in what was collected{without}."
        do, brings = "Collect what is missing", do
    elif largest == _BOUNDS["unknown"][0]:
        gain, gain_range = "Not known", "The bound of most of it was not measured."
    if costliest.height:
        first = costliest.row(0, named=True)
        name = fmt.shorten_kernel(first["full_name"])
        if (share := first["total_gain_share"]) is not None:
            gain, gain_range = f"≤ {fmt.share(share)}", f"{first['fault']}, in {name}"
        do, brings, code = fmt.sentence(first["remedy"]), f"In {name}: {first['evidence']}", ""
    total = fmt.duration(float(numbers.summary["total_ns"].sum()))
    segments = tuple(
        Segment(title, share * float(numbers.summary["total_ns"].sum()), share, fill) for title, share, fill in shares
    )
    return Answer(
        id="answer",
        verdict=f"{'All' if len(shares) == 1 else fmt.share(largest_share)} of the profiled time is {largest}"
        f"{_how_near(numbers, largest)}.",
        severity="info",
        gain=gain,
        unit=" of the profiled time" if gain.startswith("≤") else "",
        gain_range=gain_range,
        do=do,
        code=code,
        brings=brings,
        notes=numbers.warnings,
        strips=(Strip("bounds", 0, f"What bounds the profiled time ({total})", segments),),
        others=(("kernels", "every kernel with its bound", ""), ("next-run", "what to collect next", "")),
        also="More",
    )


def _meta(numbers: CounterNumbers) -> tuple[tuple[str, str], ...]:
    capture = numbers.capture
    gpus = fmt.gpu_names(capture)
    return (
        *((("GPU", gpus),) if gpus else ()),
        ("Recorded with", fmt.recorded_with(capture)),
        ("Profiled", numbers.measured),
    )


def _comparison_lead(comparisons: Sequence[Comparison]) -> str:
    in_common = [comparison for comparison in comparisons if not comparison.groups.is_empty()]
    if not in_common:
        return "These reports have no kernel in common; each has a part of its own below."
    best = max(in_common, key=lambda comparison: comparison.groups.height)
    sources = f"{fmt.printable(best.after)} and {fmt.printable(best.before)}"
    common = fmt.plural(best.groups.height, "kernel")
    return f"{sources} have {common} in common. {changes_sentence(best)}."


def counters_data(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The JSON data: each report, and the comparison of each further report with the first."""
    return {
        "reports": [_report(numbers) for numbers in reports],
        "comparisons": [comparison_data(comparison) for comparison in comparisons],
    }


def _report(numbers: CounterNumbers) -> dict[str, Any]:
    """The JSON data of a report of counters."""
    counters = numbers.counters
    capture = counters.capture
    return {
        "source": capture.source,
        "answer": counters_lead(numbers),
        **named(capture, "tool tool_version"),
        "devices": list(capture.devices),
        "session": counters.session,
        "launches": counters.launches.height,
        "notes": list(numbers.notes),
        "kernels": {"rows": numbers.summary},
        "configurations": {"rows": numbers.configurations},
        "breakdown": {"rows": numbers.breakdown},
        "faults": {"rows": numbers.faults},
        "roofline": {"rows": numbers.roofline.points, "roofs": numbers.roofline.roofs},
        "stalls": {"rows": numbers.stalls},
        "memory_access": {"rows": numbers.memory},
        "instructions": {"rows": numbers.instructions},
        "rules": {"rows": counters.rules},
        "checklist": {"rows": numbers.checklist},
        "next_run": numbers.next_run,
        "traces": joined_data(numbers.joined) if numbers.joined else None,
    }


def write_counters(
    reports: Sequence[CounterNumbers], folder: Path, formats: Collection[ReportFormat] = REPORT_FORMATS
) -> list[Path]:
    """Write one document on all reports as `counters.html`, `counters.md` and `counters.json`; return these files."""
    comparisons = compared_with_first(reports)
    document = counters_document(reports, comparisons)
    return write_document(document, folder, formats, "counters", lambda: counters_json(reports, comparisons))


def counters_json(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison] | None = None) -> bytes:
    """`counters.json`: every table of every report in full (schema `warplens.counters-report/1`)."""
    comparisons = compared_with_first(reports) if comparisons is None else comparisons
    warnings = list(dict.fromkeys(note for numbers in reports for note in numbers.notes))
    sources = [numbers.capture.source for numbers in reports]
    return envelope("counters-report", sources, counters_data(reports, comparisons), warnings)
