"""`warplens diagnose`: what limits a program, what to do about it, and how to check that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from warplens.analysis.hostpace import host_pace
from warplens.cli.answer import Answer, Part, emit, note_lines, select
from warplens.cli.edge import one_line, progress
from warplens.cli.options import Format, FormatOption, ProfileArgument, RangeOption, WindowOption, option
from warplens.diagnosis import diagnose as diagnose_window
from warplens.readers import read_counters
from warplens.report.jsonout import window_data
from warplens.report.verdict import (
    coverage_lines,
    diagnosis_data,
    diagnosis_tables,
    evidence_text,
    findings_frame,
    pace_lines,
    places,
    standing,
)

if TYPE_CHECKING:
    from warplens.diagnosis import Finding


def diagnose(
    path: ProfileArgument,
    counters: Annotated[
        Path | None,
        option(
            "FILE", "A report of Nsight Compute on the same program (.ncu-rep or CSV): what happens inside kernels."
        ),
    ] = None,
    changes: Annotated[
        str | None,
        option("CHANGE,…", "Predict these changes made together: names of predictions, such as cuda-graph.", "--if"),
    ] = None,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """What limits the program, what to do about it, and how to check that.

    Findings stand worst first, each with the most that it could bring, its evidence, remedies, and the experiment that
    would refute it. Predictions are modelled.
    """
    from warplens.report.markdown import escaped

    report = read_counters(counters) if counters is not None else None
    selection = select(path, window, range_name, launch_configuration=True)
    with progress("diagnosing"):
        found = diagnose_window(selection.timeline, selection.window, report, notes=selection.notes)
        if changes is not None:
            from warplens.analysis.prediction import predictions

            together = predictions(selection.timeline, selection.window, together=changes.split(","))
            asked = tuple(item for item in together if item.change == changes)
            found = replace(found, predictions=tuple(dict.fromkeys([*asked, *found.predictions])))
        pace = host_pace(selection.timeline, selection.window)
    part = Part(
        head=selection.head,
        notes=note_lines(found.notes),
        entries=[
            (
                f"verdict: {found.verdict}\n{one_line(found.headline)}",
                f"**{escaped(f'verdict: {found.verdict}')}** {escaped(found.headline)}",
            ),
            *(_entry(rank, finding) for rank, finding in enumerate(found.findings, start=1)),
        ],
        tables=diagnosis_tables(found)[1:],
        closing=[*pace_lines(pace), *coverage_lines(found)],
    )
    data = {"window": window_data(selection.window), **diagnosis_data(found), "pace": pace}
    rows = findings_frame(found).drop("gain", "at_most")
    emit(Answer("diagnose", selection.source, [part], rows, lambda: data, found.notes), form)


def _entry(rank: int, finding: Finding) -> tuple[str, str]:
    """A finding for a terminal and as Markdown."""
    from warplens.report.markdown import escaped

    text = [f"{rank}. {finding.id}: {standing(finding)}", f"   {one_line(finding.title)}"]
    markdown = [f"{rank}. **{escaped(finding.id)}**: {escaped(standing(finding))}", f"   {escaped(finding.title)}"]
    facts = {"evidence": evidence_text(finding.evidence), "mostly in": places(finding) if finding.where else ""}
    for label, fact in facts.items():
        if fact or label == "evidence":
            text.append(f"   {label}: {one_line(fact)}")
            markdown.append(f"   - {label}: {escaped(fact)}")
    for item in finding.remedies:
        text += [f"   do: {one_line(item.action)} [{one_line(item.expected)}]", f"       {one_line(item.how)}"]
        markdown.append(f"   - do: {escaped(item.action)} ({escaped(item.expected)}): {escaped(item.how)}")
    text.append(f"   refuted if: {one_line(finding.refute)}")
    markdown.append(f"   - refuted if: {escaped(finding.refute)}")
    return "\n".join(text), "\n".join(markdown)
