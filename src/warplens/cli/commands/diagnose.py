"""`warplens diagnose`: what limits the program, what to do about it, and how to check that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warplens.analysis.hostpace import host_pace
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import Format, FormatOption, ProfileArgument, RangeOption, WindowOption
from warplens.cli.selection import select
from warplens.diagnosis import diagnose as diagnose_window
from warplens.profile import NoteLevel
from warplens.readers.counters import read_counters
from warplens.report import format as fmt
from warplens.report.diagnosis.data import diagnosis_data
from warplens.report.diagnosis.pace import pace_lines
from warplens.report.diagnosis.tables import findings_frame, phases_table, predictions_table
from warplens.report.diagnosis.wording import coverage_lines, evidence_text, places, standing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.hostpace import HostPace
    from warplens.cli.selection import Selection
    from warplens.diagnosis import Diagnosis, Finding
    from warplens.report.document import Table

__all__ = ["diagnose"]


def diagnose(
    path: ProfileArgument,
    counters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="A report of Nsight Compute on the same program (.ncu-rep or CSV): what happens inside kernels.",
        ),
    ] = None,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """What limits the program, what to do about it, and how to check that.

    Findings stand worst first, each with the most that it could bring, its evidence, remedies, and the experiment that
    would refute it. Predictions are modelled.
    """
    report = read_counters(counters) if counters is not None else None
    selection = select(path, window, range_name, launch_configuration=True)
    with progress("diagnosing"):
        found = diagnose_window(selection.timeline, selection.window, report, notes=selection.notes)
        pace = host_pace(selection.timeline, selection.window)
    if form is Format.JSON:
        _show_json(selection, found, pace)
    elif form is Format.CSV:
        _to_stderr(selection, found)
        with answering() as stdout:
            stdout.write(findings_frame(found).drop("at_most").write_csv())
    else:
        _show_text(selection, found, pace, markdown=form is Format.MD)


def _show_json(selection: Selection, found: Diagnosis, pace: HostPace | None) -> None:
    from warplens.report.jsonout import envelope, window_data  # noqa: PLC0415  the other formats do without

    data = {"window": window_data(selection.window), **diagnosis_data(found), "pace": pace}
    text = envelope("diagnose", selection.timeline.trace.capture.source, data, found.notes)
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def _show_text(selection: Selection, found: Diagnosis, pace: HostPace | None, *, markdown: bool) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415  the other formats do without
    from warplens.report.terminal import print_table  # noqa: PLC0415

    with answering() as stdout:
        if markdown:
            source, *rest = _head(selection)
            lines = [
                f"## {escaped(source)}",
                *map(escaped, rest),
                *(f"> {escaped(line)}" for line in _note_lines(found)),
            ]
            lines.append(f"**{escaped(f'verdict: {found.verdict}')}** {escaped(found.headline)}")
            lines.extend("\n".join(_finding_markdown(rank, item)) for rank, item in _numbered(found))
            stdout.write("\n\n".join(lines) + "\n\n")
        else:
            stdout.write("".join(f"{one_line(line)}\n" for line in _head(selection)))
            stdout.flush()
            _to_stderr(selection, found, head=False)
            stdout.write(f"\nverdict: {found.verdict}\n{one_line(found.headline)}\n")
            for rank, item in _numbered(found):
                stdout.write("\n" + "".join(f"{line}\n" for line in _finding_lines(rank, item)))
            stdout.write("\n")
        for table in _tables(found):
            stdout.write(f"**{escaped(table.caption)}**\n\n" if markdown else "")
            print_table(table, "md" if markdown else "table", stdout)
            stdout.write("\n")
        between, closing = ("\n\n" if markdown else "\n"), (*pace_lines(pace), *coverage_lines(found))
        stdout.write("".join((escaped(line) if markdown else one_line(line)) + between for line in closing))


def _numbered(found: Diagnosis) -> Iterator[tuple[int, Finding]]:
    return iter(enumerate(found.findings, start=1))


def _tables(found: Diagnosis) -> Iterator[Table]:
    if found.per_phase:
        yield phases_table(found)
    if found.predictions:
        yield predictions_table(found)


def _head(selection: Selection) -> Iterator[str]:
    capture, window = selection.timeline.trace.capture, selection.window
    yield f"{capture.source} · {f'{capture.tool} {capture.tool_version or str()}'.strip()}"
    inside = f", work launched inside {window.range_name!r}" if window.range_name is not None else ""
    yield f"window: {fmt.duration(window.duration_ns)}, {window.how}{inside}"


def _finding_lines(rank: int, finding: Finding) -> Iterator[str]:
    yield f"{rank}. {finding.id}: {standing(finding)}"
    yield f"   {one_line(finding.title)}"
    yield f"   evidence: {one_line(evidence_text(finding.evidence))}"
    if finding.where:
        yield f"   mostly in: {one_line(places(finding))}"
    for remedy in finding.remedies:
        yield f"   do: {one_line(remedy.action)} [{one_line(remedy.expected)}]"
        yield f"       {one_line(remedy.how)}"
    yield f"   refuted if: {one_line(finding.refute)}"


def _finding_markdown(rank: int, finding: Finding) -> Iterator[str]:
    from warplens.report.markdown import escaped  # noqa: PLC0415

    yield f"{rank}. **{escaped(finding.id)}**: {escaped(standing(finding))}"
    yield f"   {escaped(finding.title)}"
    yield f"   - evidence: {escaped(evidence_text(finding.evidence))}"
    if finding.where:
        yield f"   - mostly in: {escaped(places(finding))}"
    for remedy in finding.remedies:
        yield f"   - do: {escaped(remedy.action)} ({escaped(remedy.expected)}): {escaped(remedy.how)}"
    yield f"   - refuted if: {escaped(finding.refute)}"


def _note_lines(found: Diagnosis) -> Iterator[str]:
    """The notes that limit the answer; what is merely good to know stands in the report."""
    for item in found.notes:
        if item.level is not NoteLevel.INFO:
            tag = "missing" if item.level is NoteLevel.BLOCKING else "caution"
            yield f"{tag}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")


def _to_stderr(selection: Selection, found: Diagnosis, *, head: bool = True) -> None:
    for line in [*(_head(selection) if head else ()), *_note_lines(found)]:
        note(line)
