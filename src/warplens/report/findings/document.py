"""A study told end to end, every number computed from its evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from warplens.compare.policy.regret import summary
from warplens.report import format as fmt
from warplens.report.comparison.causes import cause_sentence, step_answer, work_sentence
from warplens.report.comparison.steptables import part_table
from warplens.report.comparison.words import capitalised
from warplens.report.document import Document, Notes, Paragraph, Section
from warplens.report.findings.hypotheses import hypotheses_section
from warplens.report.findings.remedies import best_words, predicted_section, remedies_section
from warplens.report.sweep.breakeven import breakeven_lines
from warplens.report.sweep.tables import point_table
from warplens.report.sweep.words import answer, crossing_text, machine_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.report.document import Block
    from warplens.report.findings.evidence import Evidence, ProfiledPair
    from warplens.report.sweep.numbers import SweepNumbers

__all__ = ["findings_document"]

#: Verdicts in the order in which they are told.
_VERDICTS: Final = ("faster", "slower", "same", "undecided")

#: Parts of a step's difference that are named; the rest stands in one row.
_MOST_PARTS: Final = 8


def findings_document(evidence: Evidence, title: str) -> Document:
    """Problem, evidence, hypotheses, cause, remedies, policy and limits of a study.

    Args:
        evidence: what it rests on.
        title: of the page.
    """
    sections = [_answer(evidence), _problem(evidence)]
    if evidence.pairs:
        sections += [
            Section("evidence", "Evidence", (), tuple(_pair(pair, index) for index, pair in enumerate(evidence.pairs))),
            hypotheses_section(evidence.pairs),
        ]
    sections.append(_cause(evidence))
    if evidence.remedies is not None:
        sections.append(remedies_section(evidence))
    if (predicted := predicted_section(evidence)) is not None:
        sections.append(predicted)
    if evidence.policy is not None:
        sections.append(_policy(evidence))
    sections.append(_limits(evidence))
    return Document(
        title=title,
        lead=_lead(evidence),
        sections=tuple(sections),
        meta=(("Machine", machine_line(evidence.measurements.environment)),),
    )


def _lead(evidence: Evidence) -> str:
    """Where the variant is faster, in each execution; and the cause at the first profiled point."""
    told = []
    for name, numbers in evidence.sweeps.items():
        verdicts = Counter(item.comparison.verdict for item in numbers.points if item.comparison is not None)
        counts = ", ".join(f"{word} at {fmt.count(verdicts[word])}" for word in _VERDICTS if verdicts[word])
        told.append(f"{name}, {counts} of {fmt.plural(len(numbers.points), 'point')}")
    first = capitalised(f"{'; '.join(told)}.")
    if not evidence.pairs:
        return first
    pair = evidence.pairs[0]
    return f"{first} At {pair.title}, {cause_sentence(pair.numbers.difference, pair.numbers.why)}."


def _answer(evidence: Evidence) -> Section:
    """The study in a few paragraphs."""
    texts = [capitalised(f"{name}: {answer(numbers)}") for name, numbers in evidence.sweeps.items()]
    if evidence.remedies is not None:
        texts += list(best_words(evidence))[:1]
    return Section("answer", "In short", tuple(Paragraph(text) for text in texts))


def _problem(evidence: Evidence) -> Section:
    inner = tuple(
        Section(
            f"sweep-{name}",
            capitalised(name),
            (replace(point_table(numbers), id=f"points-{name}"),),
        )
        for name, numbers in evidence.sweeps.items()
    )
    return Section("problem", "Problem", (), inner)


def _pair(pair: ProfiledPair, index: int) -> Section:
    numbers = pair.numbers
    blocks: list[Block] = [Paragraph(" ".join(step_answer(numbers)))]
    if work := work_sentence(numbers):
        blocks.append(Paragraph(capitalised(work)))
    blocks.append(replace(part_table(numbers.difference.wall, _MOST_PARTS), id=f"parts-{index}"))
    sources = (
        f"From {', '.join((*numbers.baseline.sources, *numbers.variant.sources))}; times are those under a profiler."
    )
    blocks.append(Paragraph(sources, quiet=True))
    return Section(f"pair-{index}", capitalised(pair.title), tuple(blocks))


def _cause(evidence: Evidence) -> Section:
    blocks: list[Block] = []
    for name, numbers in evidence.sweeps.items():
        blocks += [Paragraph(capitalised(f"{name}: {line}.")) for line in _crossings(numbers)]
        blocks += [Paragraph(capitalised(f"{name}: model: {line}."), quiet=True) for line in breakeven_lines(numbers)]
    return Section("cause", "From where on it pays", tuple(blocks))


def _crossings(numbers: SweepNumbers) -> Iterator[str]:
    for found in numbers.crossovers.values():
        yield from map(crossing_text, found)
    for axis, reason in numbers.no_crossovers.items():
        yield f"no crossover along {axis.replace('_', ' ')}: {reason}"


def _policy(evidence: Evidence) -> Section:
    told = []
    for what, reasons in (("it was fitted to", ("measured",)), ("it had not seen", ("interpolated", "outside"))):
        found = [regret for regret in evidence.regrets if regret.reason in reasons]
        if not found:
            continue
        whole = summary(found)
        chosen = Counter(regret.chosen == regret.best for regret in found)
        worst = fmt.share(whole.worst) if whole.worst is not None else fmt.MISSING
        told.append(
            f"At {fmt.plural(len(found), 'point')} that {what}, the policy chose the faster side {chosen[True]} times; "
            f"its choice was at most {worst} slower than the best."
        )
    return Section("policy", "Policy", tuple(Paragraph(text) for text in told))


def _limits(evidence: Evidence) -> Section:
    blocks: list[Block] = []
    for pair in evidence.pairs:
        if pair.numbers.notes:
            blocks += [Paragraph(f"Profiles at {pair.title}:"), Notes(pair.numbers.notes)]
    for name, numbers in evidence.sweeps.items():
        if numbers.notes:
            blocks += [Paragraph(f"Measurements, {name}:"), Notes(numbers.notes)]
    blocks.append(
        Paragraph(
            "One GPU, one model with random weights, one machine: accuracy was not looked at, and other hosts and GPUs "
            "move every crossover.",
            quiet=True,
        )
    )
    return Section("limits", "Limits", tuple(blocks))
