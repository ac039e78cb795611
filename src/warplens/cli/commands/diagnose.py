"""`warplens diagnose`: what limits a program, what to do about it, and how to verify it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from warplens.answers import diagnose_selection, run_answer
from warplens.cli.answer import Part, answered, emit, head, select, with_measured_step
from warplens.cli.options import Format, FormatOption, RangeOption, StepTimeOption, WindowOption, argument, option
from warplens.cli.process import State, end_with, one_line, progress
from warplens.errors import UsageError
from warplens.readers import discover, read_counters
from warplens.report import text as fmt
from warplens.report.brief import ways
from warplens.report.terminal import Marked
from warplens.report.verdict import (
    brings,
    evidence_label,
    evidence_text,
    finding_facts,
    standing,
    steps_judged,
    verdict_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.answers.results import VerdictAnswer
    from warplens.diagnosis import Diagnosis, Finding
    from warplens.diagnosis.across import RunDiagnosis


def diagnose(
    paths: Annotated[
        list[Path],
        argument(
            "PATH…",
            "A profile from Nsight Systems (.sqlite, .nsys-rep) or the PyTorch profiler (.json), also compressed; "
            "or several of the ranks of one run, or a folder of them.",
        ),
    ],
    counters: Annotated[
        Path | None,
        option("FILE", "An Nsight Compute report on the same program (.ncu-rep or CSV): what happens inside kernels."),
    ] = None,
    changes: Annotated[
        str | None,
        option(
            "NAME,…",
            "Predict these together: findings (unfused-optimizer,host-sync; all), or changes such as cuda-graph.",
            "--if",
        ),
    ] = None,
    step_time: StepTimeOption = None,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = "table",
) -> None:
    """What limits the program, what to do about it, and how to verify the change.

    The finding to mend first comes first, then the others, worst first: each with its gain, evidence, remedies, and the
    experiment that would refute it. A cause of others, such as a wait that no graph captures, precedes a larger gain.
    Predictions are modelled. Of several profiles, which must be the ranks of one run, what they cost each other comes
    first: a late rank, small collectives, a pipeline's bubble; then each rank separately.
    """
    profile_paths = discover(paths)
    if len(profile_paths) > 1:
        if any(given is not None for given in (counters, changes, range_name, step_time)):
            raise UsageError("--counters, --if, --step-time and --range are about one profile: name it")
        _diagnose_run(discover(paths, failed=True), window, form)
        return
    report = read_counters(counters) if counters is not None else None
    selection = select(paths[0], window, range_name, launch_configuration=True)
    measured = with_measured_step(selection.timeline, selection.window, step_time)
    selection = replace(selection, timeline=measured)
    with progress("diagnosing"):
        together = [name.strip() for name in changes.split(",")] if changes is not None else []
        diagnosed = diagnose_selection(selection, report, together)
    part = Part(head=head(selection), entries=list(_entries(diagnosed)), closing=diagnosed.facts)
    emit(answered(diagnosed, part, None), form)


def _diagnose_run(paths: list[Path], window: str, form: Format) -> None:
    from warplens.cli.memory import REPORT, workers_that_fit
    from warplens.ranks import diagnose_ranks

    with progress(f"reading {fmt.plural(len(paths), 'profile')}") as tell:
        workers = workers_that_fit(paths, None, REPORT)
        run = diagnose_ranks(paths, window, workers=workers, progress=tell, gpu=State.gpu)
    diagnosed = run_answer(run.diagnosis, run.sources, run.problems)
    *head, closing = diagnosed.facts
    emit(answered(diagnosed, Part(head=head, entries=list(_entries(diagnosed)), closing=[closing]), None), form)
    end_with(run.problems, "answer")


def _entries(answer: VerdictAnswer) -> Iterator[tuple[list[str | Marked], str]]:
    """The verdict and each finding, for a terminal and as Markdown."""
    from warplens.report.markdown import escaped

    verdict = f"verdict: {verdict_words(answer.findings[0])}"
    text: list[str | Marked] = [Marked(verdict, "", "verdict"), one_line(answer.headline)]
    yield text, f"**{escaped(verdict)}** {escaped(answer.headline)}"
    yield from (_entry(rank, finding, answer.diagnosis) for rank, finding in enumerate(answer.findings, start=1))


def _entry(rank: int, finding: Finding, diagnosis: Diagnosis | RunDiagnosis) -> tuple[list[str | Marked], str]:
    """A finding, for a terminal and as Markdown."""
    from warplens.report.markdown import escaped, fenced

    mark = f"{rank}. {finding.id}: {finding.severity}"
    text: list[str | Marked] = [
        Marked(mark, standing(finding).removeprefix(finding.severity), finding.severity),
        f"   {one_line(finding.title)}",
    ]
    markdown = [f"{rank}. **{escaped(finding.id)}**: {escaped(standing(finding))}", f"   {escaped(finding.title)}"]
    evidence = evidence_text(finding.evidence, steps=steps_judged(diagnosis))
    for label, fact in ((evidence_label(finding, diagnosis), evidence), *finding_facts(finding)):
        if fact:
            text.append(f"   {label}: {one_line(fact)}")
            markdown.append(f"   - {label}: {escaped(fact)}")
    for remedy in finding.remedies:
        text.append(Marked("   do: ", f"{one_line(remedy.action)} [{one_line(brings(remedy))}]", "do"))
        text += [f"       {one_line(line)}" for line in ways(remedy.how)]
        markdown += [f"   - do: {escaped(remedy.action)} ({escaped(brings(remedy))})", fenced(remedy.how, "     ")]
    text.append(f"   refuted if: {one_line(finding.refute)}")
    markdown.append(f"   - refuted if: {escaped(finding.refute)}")
    return text, "\n".join(markdown)
