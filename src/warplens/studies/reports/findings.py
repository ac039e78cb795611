"""The findings report of a study, with all numbers computed from its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from warplens.profile import Note
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.comparison.steps import part_table
from warplens.report.comparison.words import cause_sentence, step_answer, work_sentence
from warplens.report.document import Block, Document, Notes, Paragraph, Section, Table, quiet
from warplens.report.verdict import evidence_text
from warplens.studies.policies.regret import summary
from warplens.studies.reports.evidence import COMMAND, Evidence, ProfiledPair
from warplens.studies.reports.remedies import (
    best_ways,
    best_ways_section,
    best_ways_words,
    best_words,
    predicted_section,
    predicted_times,
    remedies_section,
    remedy_rows,
)
from warplens.studies.reports.token_reduction import speedup_figures, token_growth
from warplens.studies.sweeps.document import breakeven_lines, point_table
from warplens.studies.sweeps.numbers import SweepNumbers
from warplens.studies.sweeps.words import answer, crossing_text, machine_line, settings_text, verdict_counts

#: Hypothesis → continuation of the sentence "SHARE …".
_OF: Final = {
    "H1": "of the step's change is host time of added launches",
    "H2": "of the kernel time falls to multiprocessors without a block",
    "H2c": "of the profiled kernel time goes to kernels that wait",
    "H3": "of the GPU time that is saved goes to added kernels",
    "H4": "of the change, or of what is saved, is memory being moved",
    "H4c": "of the sectors that they touch hold nothing that was asked for",
}

#: Standing → its wording in a sentence, where that differs.
_STANDINGS: Final = {"partly": "partly confirmed"}

HYPOTHESES: Final = table(
    "findings: hypotheses",
    "A hypothesis at a profiled point. The findings of a token-reduction study.",
    column("id", dtype=pl.String, help="`H1` to `H4`; with a `c`, judged from hardware counters", title="Hypothesis"),
    Column("claim", pl.String, "what it says", title="Says"),
    "point",
    Column("standing", pl.String, "confirmed: half or more; refuted: less than a tenth; partly: between them",
           title="Is"),
    column("share", help="of what it should explain; above 100 % where something else gives back"),
    column("of", help="what the share is of"),
    column("evidence", help="what it rests on"),
)  # fmt: skip


def hypotheses_section(pairs: tuple[ProfiledPair, ...]) -> Section:
    """The section on every hypothesis at every point."""
    rows = [
        {
            "id": item.id,
            "claim": item.claim,
            "point": pair.title,
            "standing": item.standing,
            "share": item.share,
            "of": _OF[item.id] if item.share is not None else "",
            "evidence": evidence_text(item.evidence),
        }
        for items in zip(*(pair.hypotheses for pair in pairs), strict=True)
        for pair, item in zip(pairs, items, strict=True)
    ]
    frame = pl.DataFrame(rows, schema=HYPOTHESES.schema)
    table = Table("hypotheses-table", "Each hypothesis at each profiled point", HYPOTHESES.columns, frame, limit=None)
    blocks: list[Block] = [Paragraph(standings(pair)) for pair in pairs]
    method_note = (
        "H2c and H4c are judged from counters of the variant alone, which speak of the launches that were profiled;"
        " counters coverage says what share of the window's kernel time such launches take."
    )
    missing = any(item.standing == "not judged" for pair in pairs for item in pair.hypotheses)
    if missing:
        method_note += f" Where they are not judged, this records what would judge them: {COMMAND}"
    return Section("hypotheses", "Hypotheses", (*blocks, table, quiet(method_note)))


def standings(pair: ProfiledPair) -> str:
    """The standings at a point: `At input size 224, batch 1: H1, H2 confirmed; H3 partly confirmed; H4 refuted.`."""
    by_standing: dict[str, list[str]] = {}
    for item in pair.hypotheses:
        by_standing.setdefault(item.standing, []).append(item.id)
    parts = (f"{', '.join(ids)} {_STANDINGS.get(standing, standing)}" for standing, ids in by_standing.items())
    return fmt.printable(f"At {pair.title}: {'; '.join(parts)}.")


def _confirmed(pair: ProfiledPair) -> str:
    """The claims of the confirmed hypotheses, for readers who do not know their numbers."""
    claims = [f"{item.id} says that {item.claim}" for item in pair.hypotheses if item.standing == "confirmed"]
    return f"{'; '.join(claims)}." if claims else ""


#: The execution in which profiles are recorded.
_PROFILED_AS: Final = "eager"

#: Parts of a step's difference listed by name; the rest shares one row.
_MOST_PARTS: Final = 8


def findings_document(evidence: Evidence, title: str) -> Document:
    """Problem, evidence, hypotheses, cause, remedies, policy and limits of a study."""
    ways, predicted = best_ways(evidence), predicted_times(evidence)
    sections = [_answer(evidence, ways), _problem(evidence)]
    if evidence.pairs:
        pairs = tuple(_pair(evidence, pair, index) for index, pair in enumerate(evidence.pairs))
        sections += [Section("evidence", "Evidence", (), pairs), hypotheses_section(evidence.pairs)]
    sections.append(_cause(evidence))
    if (growth_part := token_growth(evidence.grid)) is not None:
        sections.append(replace(growth_part, blocks=(*speedup_figures(evidence.measurements), *growth_part.blocks)))
    sections.append(remedies_section(evidence, remedy_rows(evidence)))
    if ways.height:
        sections.append(best_ways_section(ways))
    if predicted.height:
        sections.append(predicted_section(predicted))
    if evidence.policy is not None:
        sections.append(_policy(evidence))
    sections += [_limits(evidence), _files(evidence)]
    return Document(
        title=title,
        lead=_lead(evidence),
        sections=tuple(sections),
        meta=(("Machine", machine_line(evidence.measurements.environment)),),
    )


def _lead(evidence: Evidence) -> str:
    """The count of verdicts in each execution, and the cause at the first profiled point."""
    parts = []
    for name, numbers in evidence.sweeps.items():
        counts = verdict_counts(item.comparison.verdict for item in numbers.points if item.comparison is not None)
        parts.append(f"{name}, {counts} of {fmt.plural(len(numbers.points), 'point')}")
    first = fmt.capitalised(f"{'; '.join(parts)}.")
    if not evidence.pairs:
        return first
    pair = evidence.pairs[0]
    return f"{first} At {pair.title}, {cause_sentence(pair.numbers.difference, pair.numbers.why)}."


def _answer(evidence: Evidence, ways: pl.DataFrame) -> Section:
    """The summary section."""
    texts = [fmt.capitalised(f"{name}: {answer(numbers)}") for name, numbers in evidence.sweeps.items()]
    texts += [f"{standings(pair)} {_confirmed(pair)}".strip() for pair in evidence.pairs[:1]]
    texts += [best_ways_words(ways)] if ways.height else list(best_words(remedy_rows(evidence)))[:1]
    return Section("answer", "In short", tuple(Paragraph(text) for text in texts))


def _problem(evidence: Evidence) -> Section:
    tables = {name: replace(point_table(numbers), id=f"points-{name}") for name, numbers in evidence.sweeps.items()}
    inner = (Section(f"sweep-{name}", fmt.capitalised(name), (table,)) for name, table in tables.items())
    return Section("problem", "Problem", (), tuple(inner))


def _pair(evidence: Evidence, pair: ProfiledPair, index: int) -> Section:
    numbers = pair.numbers
    profiled = " ".join(step_answer(numbers))
    texts = [*_timed(evidence, pair), f"In the profiles: {profiled[:1].lower()}{profiled[1:]}"]
    if work := work_sentence(numbers):
        texts.append(fmt.capitalised(work))
    sources = ", ".join((*numbers.baseline.sources, *numbers.variant.sources))
    blocks: tuple[Block, ...] = (
        *map(Paragraph, texts),
        replace(part_table(numbers.difference, _MOST_PARTS), id=f"parts-{index}"),
        quiet(f"From {sources}; times are those under a profiler."),
    )
    return Section(f"pair-{index}", fmt.capitalised(pair.title), blocks)


def _timed(evidence: Evidence, pair: ProfiledPair) -> Iterator[str]:
    """The verdict at the profiled point without a profiler, since single profiles seldom suffice for one."""
    if (numbers := evidence.sweeps.get(_PROFILED_AS)) is None:
        return
    for item in numbers.points:
        settings = {**numbers.sweep.shared, **item.point.settings}
        if item.comparison is None or any(settings.get(axis) != value for axis, value in pair.settings.items()):
            continue
        ratio = item.comparison.ratio
        yield (
            f"Timed without a profiler ({_PROFILED_AS}), the variant is {item.comparison.verdict}: "
            f"{fmt.number(1 / ratio.estimate)}× as fast ({fmt.number(1 / ratio.high)} to "
            f"{fmt.number(1 / ratio.low)}). The profiles below, one run of each side, show where the time goes."
        )


def _cause(evidence: Evidence) -> Section:
    inner = []
    for name, numbers in evidence.sweeps.items():
        blocks: list[Block] = [Paragraph(f"Measured: {line}.") for line in _crossings(numbers)]
        blocks += [quiet(f"Model: {line}.") for line in breakeven_lines(numbers)]
        blocks += [quiet(text) for text in _disagreements(numbers)]
        inner.append(Section(f"pays-{name}", fmt.capitalised(name), tuple(blocks)))
    return Section("cause", "From where on it pays", (), tuple(inner))


def _crossings(numbers: SweepNumbers) -> Iterator[str]:
    """Crossovers in sentences; an answer that is the same on all lines of an axis is stated once."""
    for axis, lines in numbers.crossovers.items():
        answers = {(line.answer, line.span) for line in lines}
        if len(lines) > 1 and len(answers) == 1 and lines[0].answer in ("always", "none-in-range"):
            others = ", ".join(name.replace("_", " ") for name in lines[0].others)
            yield f"at every {others}, along {axis.replace('_', ' ')}: {crossing_text(replace(lines[0], others={}))}"
        else:
            yield from map(crossing_text, lines)
    for axis, reason in numbers.no_crossovers.items():
        yield f"no crossover along {axis.replace('_', ' ')}: {reason}"


def _disagreements(numbers: SweepNumbers) -> Iterator[str]:
    """A sentence on the decided points at which the model disagrees with the measurement."""
    model = numbers.breakeven
    if model is None or not model.usable:
        return
    wrong, decided = [], 0
    ratios = {tuple(settings.items()): ratio for settings, ratio in model.ratios}
    for item in numbers.points:
        if item.comparison is None or item.comparison.verdict not in ("faster", "slower"):
            continue
        decided += 1
        modelled = ratios[tuple(item.point.settings.items())]
        if (modelled > 1) != (item.comparison.verdict == "slower"):
            speedups = fmt.number(1 / item.comparison.ratio.estimate), fmt.number(1 / modelled)
            wrong.append(f"{settings_text(item.point.settings)} (measured {speedups[0]}×, modelled {speedups[1]}×)")
    if wrong:
        yield (
            f"At {fmt.count(len(wrong))} of {fmt.plural(decided, 'point')} that are decided, the model names the other "
            f"side than the measurements, which hold: {'; '.join(wrong)}."
        )
    elif decided:
        yield f"At all {fmt.plural(decided, 'point')} that are decided, the model names the side that was measured."


def _policy(evidence: Evidence) -> Section:
    texts = []
    for kind, reasons in (("it was fitted to", ("measured",)), ("it had not seen", ("interpolated", "outside"))):
        regrets = [regret for regret in evidence.regrets if regret.reason in reasons]
        if not regrets:
            continue
        right = sum(regret.chosen == regret.best for regret in regrets)
        text = f"At {fmt.plural(len(regrets), 'point')} that {kind}, the policy chose the faster side"
        if right == len(regrets):
            texts.append(f"{text} every time.")
            continue
        total = summary(regrets)
        worst = fmt.share(total.worst) if total.worst is not None else fmt.MISSING
        texts.append(f"{text} {fmt.count(right)} times; its choice was at most {worst} slower than the best.")
    return Section("policy", "Policy", tuple(Paragraph(text) for text in texts))


def _limits(evidence: Evidence) -> Section:
    of_pairs = [(f"Profiles at {pair.title}:", pair.numbers.notes) for pair in evidence.pairs]
    of_sweeps = [(f"Measurements, {name}:", numbers.notes) for name, numbers in evidence.sweeps.items()]
    blocks: list[Block] = []
    for common, groups in (("All profiles:", of_pairs), ("All measurements:", of_sweeps)):
        for heading, notes in _without_repetition(common, groups):
            blocks += [Paragraph(heading), Notes(notes)]
    last = (
        "One GPU, one model with random weights, one machine: accuracy was not looked at, and other hosts and GPUs "
        "move every crossover."
    )
    return Section("limits", "Limits", (*blocks, quiet(last)))


FILES: Final = table(
    "findings: files",
    "A file that the findings rest on. The findings of a token-reduction study.",
    "source",
    column("what").but(help="what it holds", title="Holds"),
    Column("command", pl.String, "that made it, where the file says so; else null", title="Made by"),
)


def _files(evidence: Evidence) -> Section:
    """The appendix: every file, its content, and the command that made it."""
    measured = [
        (evidence.measurements, "the grid of both sides"),
        (evidence.remedies, "what was tried"),
        (evidence.grid, "several ways to run both sides"),
    ]
    rows = [
        (item.source, f"measurements: {what}, {fmt.plural(item.cells.height, 'cell')}", item.command)
        for item, what in measured
    ]
    for pair in evidence.pairs:
        for side in (pair.numbers.baseline, pair.numbers.variant):
            rows += [(source, f"profile of {side.name} at {pair.title}", None) for source in side.sources]
    if evidence.policy is not None:
        rows.append((evidence.policy.source, "measurements that the policy was fitted to", None))
    frame = pl.DataFrame(rows, schema=FILES.schema, orient="row").unique(maintain_order=True)
    return Section("files", "Files", (Table("files-table", "Sources", FILES.columns, frame, limit=None),))


def _without_repetition(
    common: str, groups: Sequence[tuple[str, Sequence[Note]]]
) -> Iterator[tuple[str, tuple[Note, ...]]]:
    """Notes under their headings, preceded by those that all groups have, under a common heading."""
    texts = [{note.text for note in notes} for _, notes in groups]
    shared = set.intersection(*texts) if len(texts) > 1 else set()
    if shared:
        yield common, tuple(_as_sentence(note) for note in groups[0][1] if note.text in shared)
    for heading, notes in groups:
        if remaining := tuple(_as_sentence(note) for note in notes if note.text not in shared):
            yield heading, remaining


def _as_sentence(note: Note) -> Note:
    return replace(note, text=fmt.sentence(note.text), remedy=note.remedy and fmt.capitalised(note.remedy))
