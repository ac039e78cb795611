"""`warplens counters --compare`: reports side by side, in each of the four formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.counters.comparison import compare_counters
from warplens.cli.answer import most_rows
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line
from warplens.cli.options import Format
from warplens.errors import UsageError
from warplens.profile import NoteLevel
from warplens.report.counters.comparison import comparison_data, comparison_lines, comparison_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.counters.comparison import Comparison
    from warplens.profile.counters import KernelCounters

__all__ = ["check_comparison", "parse_pairs", "show_comparison"]


def check_comparison(reports: int, compare: bool, pairs: Sequence[str], with_trace: bool) -> None:
    """Refuse what makes no comparison, before any report is read.

    Raises:
        UsageError: there is one report, or pairs without a comparison, or a trace beside it.
    """
    if pairs and not compare:
        raise UsageError("--pair says which kernels to compare: add --compare")
    if compare and reports < 2:
        raise UsageError("--compare needs two reports or more: name them, the one to compare with first")
    if compare and with_trace:
        raise UsageError("--compare and --trace answer different questions: ask for one at a time")


def parse_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """`BEFORE=AFTER` as two names; a kernel's full name may hold `=` only within `==`, `<=` and the like.

    Raises:
        UsageError: a text is not of that form.
    """
    pairs = []
    for text in texts:
        before, sign, after = text.partition("=")
        if not (before.strip() and sign and after.strip()):
            raise UsageError(f"{text!r} names no pair: write BEFORE=AFTER, each a kernel's name")
        pairs.append((before.strip(), after.strip()))
    return pairs


def show_comparison(
    reports: Sequence[KernelCounters],
    pairs: Sequence[tuple[str, str]],
    metrics: Sequence[str],
    form: Format,
    limit: int | None,
) -> None:
    """Print each report against the first."""
    comparisons = [compare_counters(reports[0], after, pairs) for after in reports[1:]]
    unknown = [name for name in metrics if not any((found.metrics["metric"] == name).any() for found in comparisons)]
    if unknown:
        raise UsageError(f"no kernel has {', '.join(unknown)} in both reports")
    most = most_rows(form, limit)
    if form is Format.JSON:
        _show_json(reports, comparisons, most)
    elif form is Format.CSV:
        _show_csv(comparisons, metrics, most)
    else:
        _show_for_people(comparisons, metrics, form, most)


def _show_json(reports: Sequence[KernelCounters], comparisons: Sequence[Comparison], most: int | None) -> None:
    from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

    entries = [comparison_data(found) for found in comparisons]
    if most is not None:
        entries = [{**entry, **{name: entry[name].head(most) for name in ("rows", "unpaired")}} for entry in entries]
    sources = [report.capture.source for report in reports]
    warnings = list(dict.fromkeys(item for found in comparisons for item in found.notes))
    text = envelope("counters", sources, {"comparisons": entries}, warnings)
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def _show_csv(comparisons: Sequence[Comparison], metrics: Sequence[str], most: int | None) -> None:
    for line in (line for found in comparisons for line in (*comparison_lines(found), *_note_lines(found))):
        note(line)
    frames = []
    for found in comparisons:
        rows = found.groups if most is None else found.groups.head(most)
        for name in metrics:
            own = found.metrics.filter(pl.col("metric") == name)
            rows = rows.join(
                own.select("pair", pl.col("before", "after", "points", "ratio").name.prefix(f"{name} ")),
                on="pair",
                how="left",
                maintain_order="left",
            )
        frames.append(rows.select(pl.lit(found.before).alias("before"), pl.lit(found.after).alias("after"), pl.all()))
    with answering() as stdout:
        stdout.write(pl.concat(frames).write_csv())


def _show_for_people(comparisons: Sequence[Comparison], metrics: Sequence[str], form: Format, most: int | None) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    markdown = form is Format.MD
    for found in comparisons:
        lines, notes = comparison_lines(found), list(_note_lines(found))
        with answering() as stdout:
            if markdown:
                texts = [f"## {escaped(lines[0])}", *map(escaped, lines[1:]), *(f"> {escaped(line)}" for line in notes)]
                stdout.write("\n\n".join(texts) + "\n\n")
            else:
                stdout.write("".join(f"{one_line(line)}\n" for line in lines))
                stdout.flush()
                for line in notes:
                    note(line)
            for table in comparison_tables(found, most, metrics):
                stdout.write(f"**{escaped(table.caption)}**\n\n" if markdown else "\n")
                print_table(table, "md" if markdown else "table", stdout)
                stdout.write("\n" if markdown else "")


def _note_lines(found: Comparison) -> Iterator[str]:
    tags = {NoteLevel.BLOCKING: "missing", NoteLevel.WARNING: "caution", NoteLevel.INFO: "note"}
    for item in found.notes:
        yield f"{tags[item.level]}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")
