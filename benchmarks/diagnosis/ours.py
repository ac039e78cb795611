"""What Warplens says of the suite: verdicts, findings, and the step times that it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.analysis.prediction import predictions
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import DEFAULTS, Diagnosis, Thresholds, diagnose
from warplens.readers import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.diagnosis.suite import Case

__all__ = ["CHANGES", "Foretold", "Profiled", "claims_of", "foretold", "profiled"]

#: What each remedy of the suite is called among the predictions, by case where cases differ.
CHANGES = {
    "cuda-graph": "cuda-graph",
    "no-sync": "no-synchronization",
    "caching": "cached-allocation",
    "hoisted": "no-host-stall",
    "no-gc": "no-host-stall",
    "no-stall": "no-host-stall",
    "prefetch": "no-host-stall",
    "tokenized-before": "no-host-stall",
    "no-log": "no-host-stall",
    "pinned": "overlapped-copies",
    ("copy_in_the_way", "prefetch"): "overlapped-copies",
    ("launches_and_copy", "pinned"): "async-copies",
}

#: Where the steps that were found are not the program's own, their number is off by more than this.
_OTHER_STEPS = 0.2


@dataclass(frozen=True)
class Profiled:
    """One profile of the suite, read."""

    case: Case
    source: str
    timeline: Timeline

    def diagnosis(self, thresholds: Thresholds = DEFAULTS) -> Diagnosis:
        """What `warplens diagnose` says of it."""
        return diagnose(self.timeline, self.timeline.window(), thresholds=thresholds)


@dataclass(frozen=True)
class Foretold:
    """A predicted step time beside the measured one, in nanoseconds.

    Attributes:
        remedy: the variant of the case.
        change: the prediction's name for it.
        baseline_ns: the step without the remedy.
        predicted_ns: the step with it, as predicted; None where no prediction is made.
        measured_ns: the step with it, as measured.
        model_error: how far the replay of the unchanged schedule is off.
    """

    case: str
    source: str
    remedy: str
    change: str
    baseline_ns: float
    predicted_ns: float | None
    measured_ns: float
    model_error: float | None

    @property
    def error(self) -> float | None:
        """By how much the predicted step is too long (+) or too short (-), as a share of the measured one."""
        return None if self.predicted_ns is None else self.predicted_ns / self.measured_ns - 1


def profiled(case: Case, source: str, variant: str = "baseline") -> Profiled | None:
    """A profile of the suite; None where there is none."""
    path = case.path(source, variant)
    return None if path is None else Profiled(case, source, Timeline(read(path)))


def claims_of(diagnosis: Diagnosis) -> list[str]:
    """The verdict, then every other finding that is worth a warning."""
    serious = [found.id for found in diagnosis.findings if found.severity != "info"]
    return list(dict.fromkeys([diagnosis.verdict, *serious]))


def foretold(profile: Profiled, unprofiled: bool) -> Iterator[Foretold]:
    """Predictions for the remedies of a case whose effect was measured.

    Args:
        profile: the baseline.
        unprofiled: compare steps without a profiler: the prediction is told how long the baseline's take. Else steps
            under the same profiler, which exist for the variants that were profiled.
    """
    case, source = profile.case, profile.source
    window = profile.timeline.window()
    own = case.profiled_step_ns(source)
    if own is None or not window.steps:
        return
    # Programs without ranges may have steps that repeat inside: a layer. Their number relates to the program's own.
    ratio = window.duration_ns / len(window.steps) / own
    ratio = ratio if abs(ratio - 1) > _OTHER_STEPS else 1.0
    baseline = case.step_ns() if unprofiled else own
    if baseline is None:
        return
    told = {
        found.change: found for found in predictions(profile.timeline, window, baseline * ratio if unprofiled else None)
    }
    for remedy in case.entry.get("remedies", ()):
        change = CHANGES.get((case.name, remedy), CHANGES.get(remedy))
        measured = case.step_ns(remedy) if unprofiled else case.profiled_step_ns(source, remedy)
        if change is None or measured is None:
            continue
        found = told.get(change)
        yield Foretold(
            case=case.name,
            source=source,
            remedy=remedy,
            change=change,
            baseline_ns=baseline,
            predicted_ns=found.predicted_ns / ratio if found else None,
            measured_ns=measured,
            model_error=found.model_error if found else None,
        )
