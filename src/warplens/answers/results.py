"""The types of answers: immutable, with `.frame`, `.to_dict()`, `.save()`, a short repr and a card for notebooks."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.writing import harmless, plural, unfinished, write_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import polars as pl

    from warplens.analysis.headroom import Headroom
    from warplens.analysis.ranks.across import RanksResult
    from warplens.analysis.timebudget import TimeBudget
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis import Diagnosis, Finding
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.profile import Note
    from warplens.report.brief import Line
    from warplens.report.comparison.numbers import StepNumbers
    from warplens.report.document import Document, Table

#: Rows of a table in `str(answer)`; `.frame` has all.
_PRINTED_ROWS: Final = 10

_SUFFIXES: Final = (".json", ".csv", ".parquet", ".html", ".md")


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """An answer. `print` shows it as text, a notebook as a card.

    Attributes:
        command: the equivalent command, which names the schema of the JSON.
        source: file name without folders; a tuple if the question is about several files.
        frame: one row per part of the answer, exact; times in nanoseconds, sizes in bytes.
        facts: sentences to display with it, coverage among them.
        notes: limits of the answer.
        tables: tables for display.
        data: makes the data of `to_dict`, with frames and dataclasses not yet converted.
        problems: errors of profiles that could not be used; () if all could.
    """

    command: str
    source: str | tuple[str, ...]
    frame: pl.DataFrame
    facts: tuple[str, ...]
    notes: tuple[Note, ...]
    tables: tuple[Table, ...]
    data: Callable[[], Mapping[str, Any]]
    problems: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the files."""
        return (self.source,) if isinstance(self.source, str) else self.source

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values: `data` of the JSON that the command prints."""
        data: dict[str, Any] = json.loads(self.to_json())["data"]
        return data

    def to_json(self) -> bytes:
        """The JSON that the command prints with `--format json`."""
        from warplens.report.jsonout import envelope

        return envelope(self.command, self.source, self.data(), [*self.notes, *self.problems])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the answer to a file in the format of its suffix; CSV and Parquet hold `frame`, others all of it.

        An existing file is replaced. The charts of a Markdown file are written beside it, to `images`.

        Returns:
            The file.

        Raises:
            UsageError: the suffix is not supported, or the folder does not exist.
        """
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix not in _SUFFIXES:
            raise UsageError(f"{target.name}: an answer is saved as {', '.join(_SUFFIXES)}: name such a file")
        if not target.absolute().parent.is_dir():
            raise UsageError(f"{target.name}: there is no folder {target.parent.name} to write it to")
        if suffix == ".json":
            write_whole(target, self.to_json())
        elif suffix == ".csv":
            write_whole(target, harmless(self.frame).write_csv())
        elif suffix == ".parquet":
            with unfinished(target) as partial:
                self.frame.write_parquet(partial)
        else:
            from warplens.report.write import write_document

            write_document(self._document(), target.parent, (suffix[1:],), target.stem)
        return target

    def _document(self) -> Document:
        from warplens.report.document import Document, Paragraph, Section

        facts = tuple(Paragraph(fact) for fact in self.facts)
        return Document(
            title=f"{self.command.capitalize()} of {' and '.join(self.sources)}",
            lead="",
            sections=(Section(self.command, self.command.capitalize(), (*facts, *self.tables)),),
        )

    def _summary(self) -> str:
        """A few words on the answer, for the repr."""
        return plural(self.frame.height, "row")

    def __repr__(self) -> str:
        return f"<warplens.{self.command}: {', '.join(self.sources)}; {self._summary()}>"

    def __str__(self) -> str:
        from warplens.report.terminal import print_table

        text = io.StringIO()
        text.write("".join(f"{fact}\n" for fact in self.facts))
        for table in self.tables:
            text.write("\n")
            print_table(table if table.limit is None else replace(table, limit=_PRINTED_ROWS), text)
        return text.getvalue().strip("\n")

    def _repr_html_(self) -> str:
        from warplens.report.card import table_card

        return table_card(repr(self)[1:-1], self.facts, self.tables)


@dataclass(frozen=True, eq=False, repr=False)
class TableAnswer(Answer):
    """One table on one profile, or on a report of hardware counters."""


@dataclass(frozen=True, eq=False, repr=False)
class BudgetAnswer(Answer):
    """Where the time went; `budgets` has one `TimeBudget` per GPU."""

    budgets: tuple[TimeBudget, ...]

    def _repr_html_(self) -> str:
        from warplens.report.card import verdict_card

        return verdict_card(repr(self)[1:-1], (), self.budgets)


@dataclass(frozen=True, eq=False, repr=False)
class HeadroomAnswer(Answer):
    """From the measured step time down to the limit of the GPU; `devices` has one `Headroom` per GPU."""

    devices: tuple[Headroom, ...]


@dataclass(frozen=True, eq=False, repr=False)
class VerdictAnswer(Answer):
    """What limits a program; `frame` has one row per finding.

    Attributes:
        diagnosis: the complete diagnosis.
        lines: the answer in five lines.
    """

    diagnosis: Diagnosis | RunDiagnosis

    @property
    def verdict(self) -> str:
        """The id of the main limiter."""
        return self.diagnosis.verdict

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        return self.diagnosis.headline

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes of lost time: the verdict first, then the others, worst first."""
        return self.diagnosis.findings

    @property
    def lines(self) -> tuple[Line, ...]:
        """The answer in five lines: limited by (and where), gain, do, sure, and cautions."""
        from warplens.report.brief import brief

        return brief(self.diagnosis)

    def _summary(self) -> str:
        from warplens.report.verdict import gain_words

        first = self.findings[0]
        gain = gain_words(first)
        return f"{self.verdict}, {gain} {first.gained}" if gain else self.verdict

    def __str__(self) -> str:
        from warplens.report.terminal import brief_text

        return brief_text(self.lines).rstrip("\n")


@dataclass(frozen=True, eq=False, repr=False)
class DiagnosisAnswer(VerdictAnswer):
    """What limits the program of one profile, with its `timeline` and `window`."""

    diagnosis: Diagnosis
    timeline: Timeline
    window: Window

    def _document(self) -> Document:
        from warplens.report.brief import answer_block
        from warplens.report.document import Document, SectionOf, sections
        from warplens.report.verdict import finding_blocks

        rooms = sections((SectionOf("findings", "Findings", finding_blocks),), self.diagnosis)
        return Document(self.sources[0], self.headline, rooms, answer=answer_block(self.diagnosis, ()))

    def _repr_html_(self) -> str:
        from warplens.analysis.timebudget import time_budgets
        from warplens.report.card import verdict_card
        from warplens.report.timeline import timeline_view

        budgets = time_budgets(self.timeline, self.window)
        view = timeline_view(self.timeline, self.window, budgets=budgets)
        return verdict_card(self.sources[0], self.lines, budgets, view)


@dataclass(frozen=True, eq=False, repr=False)
class RunAnswer(VerdictAnswer):
    """What limits a run of several ranks; in `frame` the rank of findings of the whole run is null."""

    diagnosis: RunDiagnosis

    @property
    def ranks(self) -> dict[int, Diagnosis]:
        """The diagnosis of each rank."""
        return self.diagnosis.ranks

    def _document(self) -> Document:
        from warplens.report.run import run_document

        return run_document(self.diagnosis)

    def _repr_html_(self) -> str:
        from warplens.report.card import verdict_card

        return verdict_card(f"{len(self.ranks)} ranks of one run", self.lines, ())


@dataclass(frozen=True, eq=False, repr=False)
class ReportAnswer(Answer):
    """Everything about one or several profiles; `frame` has one row per profile. `save` writes the report.

    Attributes:
        profiles: the diagnosis of each profile.
        run: the diagnosis of their run, if they are the ranks of one.
    """

    profiles: tuple[DiagnosisAnswer, ...]
    run: RunAnswer | None
    _report: Callable[[], Document]

    def _document(self) -> Document:
        return self._report()

    def _summary(self) -> str:
        return ", ".join(profile.verdict for profile in self.profiles) if self.run is None else self.run._summary()

    def __str__(self) -> str:
        run = () if self.run is None else (str(self.run),)
        return "\n\n".join((*run, *(f"{profile.sources[0]}\n{profile}" for profile in self.profiles)))

    def _repr_html_(self) -> str:
        run = "" if self.run is None else self.run._repr_html_()
        return run + "".join(profile._repr_html_() for profile in self.profiles)


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonAnswer(Answer):
    """Why a variant differs from its baseline; `frame` has the parts of the difference in wall time per step.

    Attributes:
        numbers: all results of the comparison.
    """

    numbers: StepNumbers

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `same` or `undecided`, for the variant."""
        return self.numbers.comparison.verdict

    @property
    def headline(self) -> str:
        """The answer in sentences."""
        from warplens.report.comparison.words import step_answer

        return " ".join(step_answer(self.numbers))

    def _document(self) -> Document:
        from warplens.report.comparison.document import step_document

        return step_document(self.numbers)

    def _summary(self) -> str:
        return f"variant {self.verdict}"


@dataclass(frozen=True, eq=False, repr=False)
class RanksAnswer(Answer):
    """The ranks of one run; `frame` has one row per rank.

    Attributes:
        result: the analysis across ranks.
    """

    result: RanksResult
    _diagnose: Callable[[], RunAnswer] | None = field(default=None)

    @cached_property
    def run(self) -> RunAnswer | None:
        """The diagnosis of the run, as by `warplens.diagnose`; None if it is not recognisable as one run.

        Computed on first access, since it needs a diagnosis of each rank.
        """
        try:
            return self._diagnose() if self._diagnose is not None else None
        except UsageError:
            return None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the run, the verdict first; () if it is not recognisable as one run."""
        return self.run.findings if self.run is not None else ()

    @property
    def headline(self) -> str:
        """The answer in two or three sentences."""
        from warplens.report.ranks import answer

        return answer(self.result)

    def _document(self) -> Document:
        from warplens.report.ranks import ranks_document

        return ranks_document(self.result, self.notes)

    def _summary(self) -> str:
        return f"{len(self.result.ranks)} ranks"
