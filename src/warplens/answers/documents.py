"""The report on one or several profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from warplens.answers.diagnosing import diagnose_selection, run_answer
from warplens.answers.inputs import Profile, selected, timelines_of
from warplens.answers.results import DiagnosisAnswer, ReportAnswer
from warplens.diagnosis.across import RunDiagnosis
from warplens.ranks import one_run
from warplens.report.overview.numbers import examine
from warplens.report.write import report_data

if TYPE_CHECKING:
    from warplens.report.document import Document


@dataclass(frozen=True)
class _Contents:
    """What a report contains; computed when it is first needed."""

    diagnosed: tuple[DiagnosisAnswer, ...]
    run: RunDiagnosis | None

    @cached_property
    def examined(self) -> list[Any]:
        """The numbers of each profile."""
        return [examine(answer.timeline, answer.window, diagnosis=answer.diagnosis) for answer in self.diagnosed]

    def data(self) -> dict[str, Any]:
        """The data of the JSON."""
        return report_data(self.examined, self.run)

    def document(self) -> Document:
        """The report itself."""
        from warplens.report.overview.document import report_document  # charts take half a second to import

        return report_document(self.examined, self.run)

    def __getstate__(self) -> dict[str, Any]:
        """Without `examined`, which is computed again."""
        return {"diagnosed": self.diagnosed, "run": self.run}


def report(
    profiles: Profile | Sequence[Profile], *, window: str = "steady", range_name: str | None = None
) -> ReportAnswer:
    """Everything about one or several profiles; `save("report.html")` writes the report.

    Args:
        profiles: the profiles; a folder means all profiles in it. The ranks of one run are also diagnosed together.
        window, range_name: as for `diagnose`, for each profile.

    Raises:
        TypeError: an argument is not a profile.
        UsageError: a window lies outside of its profile, or there is no such range.
        UnreadableInputError: a file cannot be read.
    """
    selections = [selected(timeline, window, range_name) for timeline in timelines_of(profiles, "report")]
    diagnosed = tuple(map(diagnose_selection, selections))
    run = None
    if len(selections) > 1 and range_name is None:
        run = one_run([selection.timeline for selection in selections], lambda timeline: timeline.window(window))
    sources = tuple(selection.source for selection in selections)

    contents = _Contents(diagnosed, run)
    rows = [
        {
            "source": answer.sources[0],
            "verdict": answer.verdict,
            "severity": answer.findings[0].severity,
            "expected": answer.findings[0].expected,
            "bound": answer.findings[0].bound,
            "wall_ns": answer.window.duration_ns,
            "steps": len(answer.window.steps),
        }
        for answer in diagnosed
    ]
    schema = {"source": pl.String, "verdict": pl.String, "severity": pl.String, "expected": pl.Float64}
    schema |= {"bound": pl.Float64, "wall_ns": pl.Int64, "steps": pl.Int64}
    return ReportAnswer(
        command="report",
        source=sources,
        frame=pl.DataFrame(rows, schema=schema),
        facts=(*(() if run is None else (run.headline,)), *(answer.headline for answer in diagnosed)),
        notes=tuple(note for selection in selections for note in selection.notes),
        tables=(),
        data=contents.data,
        profiles=diagnosed,
        run=None if run is None else run_answer(run, sources),
        _report=contents.document,
    )
