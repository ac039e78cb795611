"""`warplens counters` and `warplens roofline`: bounds of kernels from Nsight Compute counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import polars.selectors as cs

from warplens.analysis.counters.comparison import Comparison, compare_counters
from warplens.analysis.counters.coverage import counter_notes
from warplens.analysis.counters.roofline import LEVELS, PRECISIONS, Roofline, roofline_points
from warplens.analysis.timeline import Timeline
from warplens.cli.answer import Answer, Part, emit, most_rows, note_lines, print_lines, recorded_by
from warplens.cli.options import FormatOption, LimitOption, WindowOption, argument, flag, group_by, option
from warplens.cli.process import State, progress
from warplens.errors import UsageError
from warplens.profile import Capture
from warplens.profile.counters import KernelCounters
from warplens.readers import discover_counters, read, read_counters
from warplens.report.counters.beside import (
    comparison_data,
    comparison_lines,
    comparison_tables,
    coverage_lines,
    coverage_tables,
    joined_data,
    next_run_lines,
)
from warplens.report.counters.hardware import numbered_points, roof_lines, roofline_table, why_no_chart
from warplens.report.counters.numbers import COUNTER_KEYS, Joined, join_counters, summarised
from warplens.report.jsonout import named
from warplens.writing import write_whole

_REPORTS: Final = argument("PATH…", "Reports of Nsight Compute (.ncu-rep, or their CSV), or folders of them.")


def counters(
    paths: Annotated[list[Path], _REPORTS],
    by: Annotated[str, group_by(*COUNTER_KEYS)] = "group",
    metric: Annotated[
        list[str] | None, option("NAME", "Show this metric, too. May be repeated.", "--metric", "-m")
    ] = None,
    trace: Annotated[
        Path | None,
        option(
            "FILE", "A trace of the same program, to show how much of its time the counters cover.", "--trace", "-t"
        ),
    ] = None,
    window: WindowOption = "steady",
    ncu_version: Annotated[
        str | None, option("VERSION", "Version of ncu for the next run; by default the report's.")
    ] = None,
    compare: Annotated[bool, flag("--compare", "Compare the reports with the first one.")] = False,
    pair: Annotated[
        list[str] | None, option("BEFORE=AFTER", "Compare these kernels although their names differ. May be repeated.")
    ] = None,
    form: FormatOption = "table",
    limit: LimitOption = None,
) -> None:
    """What limits each kernel, and why: from Nsight Compute counters.

    A row is a group of launches of the same kernel with the same grid and block, with medians over them; or what was
    profiled inside the same NVTX ranges, added up. Shares are of the peak, inside the kernel: they say nothing about
    the time between kernels. With a trace of the same program, the
    kernels are found again in its window: how much of the time they cover, which has the most to gain, and the command
    that collects the rest. With --compare, what changed from the first report to each of the others.
    """
    metrics, most, paths = metric or [], most_rows(form, limit), discover_counters(paths)
    if pair and not compare:
        raise UsageError("--pair says which kernels to compare: add --compare")
    if compare and len(paths) < 2:
        raise UsageError("--compare needs two reports or more: name them, the one to compare with first")
    if compare and trace is not None:
        raise UsageError("--compare and --trace answer different questions: ask for one at a time")
    if trace is None and (window != "steady" or ncu_version is not None or State.gpu is not None):
        raise UsageError("--window, --ncu-version and --gpu are about a trace of the same program: add --trace")
    pairs = _parse_pairs(pair or [])
    reports = [load_counters(path) for path in paths]
    if compare:
        emit(_side_by_side(reports, pairs, metrics, most), form)
        return
    summaries = [summarised(report, by, metrics, most) for report in reports]
    joined = _join_trace(reports, trace, window, ncu_version) if trace else ()
    rows = pl.concat(
        (summary if most is None else summary.head(most)).select(
            pl.lit(report.capture.source).alias("source"), pl.all()
        )
        for report, (summary, _) in zip(reports, summaries, strict=True)
    )
    parts, notes = [], []
    for index, (report, (_, table)) in enumerate(zip(reports, summaries, strict=True)):
        # With a trace, the coverage is known.
        report_notes = [note for note in counter_notes(report) if not (joined and note.code == "coverage-unknown")]
        notes += report_notes
        head = [recorded_by(report.capture, devices=True)]
        parts.append(Part(head=head, notes=note_lines(report_notes, all_of_them=True), tables=[table]))
        if joined:
            parts.append(_joined_part(joined[index], most))
    flat = rows.select(pl.exclude("evidence", "fault_evidence"))
    flat = flat.with_columns(cs.by_name("co_limiters", require_all=False).list.join(" "))

    def data() -> dict[str, Any]:
        facts = list(map(_facts, reports))
        return {"by": by, "reports": facts, "rows": rows, **(joined_data(joined) if joined else {})}

    sources = [report.capture.source for report in reports]
    emit(Answer("counters", sources, parts, flat, data, list(dict.fromkeys(notes))), form)


def load_counters(path: Path) -> KernelCounters:
    """Read a report of Nsight Compute, or its CSV."""
    with progress(f"reading {path.name}") as tell:
        return read_counters(path, progress=tell)


def _join_trace(
    reports: Sequence[KernelCounters], trace: Path, window: str, ncu_version: str | None
) -> tuple[Joined, ...]:
    """Each report joined with the same window of the trace."""
    with progress(f"reading {trace.name}") as tell:
        timeline = Timeline(read(trace, progress=tell, gpu=State.gpu))
        selected = timeline.window(window)
        return tuple(join_counters(report, timeline, selected, ncu_version) for report in reports)


def _facts(report: KernelCounters) -> dict[str, object]:
    facts = named(report.capture, "source tool_version devices")
    return {**facts, "launches": report.launches.height, "session": report.session}


def _joined_part(joined: Joined, most: int | None) -> Part:
    """Coverage, ranking and the next run, to follow the table of a report."""
    lines, tables = list(coverage_lines(joined)), list(coverage_tables(joined, most))
    return Part(lines=lines, tables=tables, closing=list(next_run_lines(joined)), command=joined.next_run.command)


def _parse_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Texts `BEFORE=AFTER` as pairs of names, split at the first `=`."""
    pairs = []
    for text in texts:
        before, sign, after = text.partition("=")
        if not (before.strip() and sign and after.strip()):
            raise UsageError(f"{text!r} names no pair: write BEFORE=AFTER, each a kernel's name")
        pairs.append((before.strip(), after.strip()))
    return pairs


def _side_by_side(
    reports: Sequence[KernelCounters], pairs: Sequence[tuple[str, str]], metrics: Sequence[str], most: int | None
) -> Answer:
    """The comparison of each further report with the first."""
    comparisons = [compare_counters(reports[0], report, pairs) for report in reports[1:]]
    unknown = [
        name for name in metrics if not any((comparison.metrics["metric"] == name).any() for comparison in comparisons)
    ]
    if unknown:
        raise UsageError(f"no kernel has {', '.join(unknown)} in both reports")
    parts = [
        Part(
            head=comparison_lines(comparison),
            notes=note_lines(comparison.notes, all_of_them=True),
            tables=comparison_tables(comparison, most, metrics),
        )
        for comparison in comparisons
    ]

    def data() -> dict[str, Any]:
        entries = [comparison_data(comparison) for comparison in comparisons]
        if most is not None:
            entries = [{**entry, **{key: entry[key].head(most) for key in ("rows", "unpaired")}} for entry in entries]
        return {"comparisons": entries}

    rows = pl.concat([_flat(comparison, metrics, most) for comparison in comparisons])
    warnings = list(dict.fromkeys(note for comparison in comparisons for note in comparison.notes))
    return Answer("counters", [report.capture.source for report in reports], parts, rows, data, warnings)


def _flat(comparison: Comparison, metrics: Iterable[str], most: int | None) -> pl.DataFrame:
    """The groups of a comparison with both sources, and columns of the given metrics."""
    rows = comparison.groups if most is None else comparison.groups.head(most)
    for name in metrics:
        of_metric = comparison.metrics.filter(pl.col("metric") == name).select(
            "pair", pl.col("before", "after", "points", "ratio").name.prefix(f"{name} ")
        )
        rows = rows.join(of_metric, on="pair", how="left", maintain_order="left")
    return rows.select(pl.lit(comparison.before).alias("before"), pl.lit(comparison.after).alias("after"), pl.all())


_PICTURES: Final = (".png", ".svg")
_CHARTS: Final = (".html", *_PICTURES)

#: Prefixes of the unit of a roof.
_PREFIXES: Final = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}

#: A rate as people write it and as the answer prints it (`4.2T`, `4.20 TB/s`), for roofs of arithmetic and of memory.
_RATES: Final = {
    roofs: re.compile(rf"([\d.]+(?:e\+?\d+)?)\s*([GTP]?)(?:{unit})?", re.IGNORECASE)
    for roofs, unit in ((PRECISIONS, "FLOPS?(?:/s)?"), (LEVELS, "B/s"))
}


def roofline(
    paths: Annotated[list[Path], _REPORTS],
    output: Annotated[
        Path | None, option("FILE", "Write the chart: .html, .png or .svg by its suffix.", "--output", "-o")
    ] = None,
    ceiling: Annotated[
        list[str] | None,
        option(
            "ROOF=RATE",
            "Use this roof, such as a measured one: dram=4.2T (bytes/s), fp32=60T (FLOP/s). May be repeated.",
        ),
    ] = None,
    form: FormatOption = "table",
    limit: LimitOption = None,
) -> None:
    """Roofline: how far each kernel is from the peaks of its GPU.

    A row is a group of launches of the same kernel with the same grid and block. Operations and bytes are counted, at
    each level of memory (DRAM, L2, L1); roofs are the peaks in the report unless you state others.
    """
    paths = discover_counters(paths)
    if output is not None:
        suffix = output.suffix.lower()
        if suffix not in _CHARTS:
            raise UsageError(f"{output.name}: a chart is written as {', '.join(_CHARTS)}; name such a file")
        if suffix in _PICTURES and len(paths) > 1:
            raise UsageError(f"{output.name}: a picture holds the chart of one report; name one, or write .html")
        if not output.absolute().parent.is_dir():
            raise UsageError(f"{output.name}: there is no folder {output.parent.name} to write it to")
        if form != "table":
            raise UsageError(f"--output writes the chart alone, but --format says {form}: give one of them")
    if State.gpu is not None:
        raise UsageError("roofline has no --gpu: its roofs are the report's. State others with --ceiling")
    ceilings = dict(map(_parse_ceiling, ceiling or ()))
    if len(ceilings) < len(ceiling or ()):
        raise UsageError("--ceiling states one roof twice: state each once")
    counted = [load_counters(path) for path in paths]
    reports = [(report.capture, roofline_points(report, ceilings)) for report in counted]
    if output is not None:
        with progress("drawing"):
            _write(output, reports)
        print_lines([output])
        return
    most = most_rows(form, limit)
    parts, warnings, rows = [], [], []
    for capture, analysis in reports:
        head = [recorded_by(capture, devices=True), *roof_lines(analysis)]
        known = {*analysis.roofs["precision"], *analysis.roofs["roof"]}
        unused = [f"the stated roof {roof} holds for no kernel here" for roof in ceilings if roof not in known]
        for reason in filter(None, (why_no_chart(analysis), *unused)):
            head.append(f"caution: {reason}")
            warnings.append(f"{capture.source}: {reason}")
        tables = [roofline_table(numbered_points(analysis), limit=most)] if analysis.counted else []
        parts.append(Part(head=head, tables=tables))
        points = analysis.points if most is None else analysis.points.head(most)
        rows.append(points.select(pl.lit(capture.source).alias("source"), pl.all()))
    roofs = [{"source": capture.source, "roofs": analysis.roofs} for capture, analysis in reports]
    table = pl.concat(rows)
    sources = [capture.source for capture, _ in reports]
    emit(Answer("roofline", sources, parts, table, lambda: {"reports": roofs, "rows": table}, warnings), form)


def _parse_ceiling(text: str) -> tuple[str, float]:
    roof, _, rate = text.partition("=")
    roof = roof.strip().lower()
    match = next((pattern.fullmatch(rate.strip()) for roofs, pattern in _RATES.items() if roof in roofs), None)
    try:
        value = float(match[1]) * _PREFIXES[match[2].upper()] if match else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        names = ", ".join(chain(*_RATES))
        raise UsageError(f"{text!r} is not a roof: write it as dram=4.2T or fp32=60T; roofs are {names}")
    return roof, value


def _write(output: Path, reports: Sequence[tuple[Capture, Roofline]]) -> None:
    from warplens.report.counters.hardware import roofline_document, roofline_figure

    suffix = output.suffix.lower()
    if suffix == ".html":
        from warplens.report.html import render_html

        write_whole(output, render_html(roofline_document(reports)))
        return
    capture, analysis = reports[0]
    figure = roofline_figure(analysis, numbered_points(analysis))
    if figure is None:
        raise UsageError(f"{capture.source}: {why_no_chart(analysis)}")
    write_whole(output, figure.chart.svg(figure.alt) if suffix == ".svg" else figure.chart.png(figure.alt))
