"""Results of Warplens on the suite: verdicts, findings, and predicted step times."""

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

#: Remedy of the suite (or case and remedy, where cases differ) → name of the change among the predictions.
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

#: The steps that were found are not the program's own if their duration differs by more than this share.
_OTHER_STEPS = 0.2


@dataclass(frozen=True)
class Profiled:
    """A profile of the suite that has been read."""

    case: Case
    source: str
    timeline: Timeline

    def diagnosis(self, thresholds: Thresholds = DEFAULTS) -> Diagnosis:
        """The diagnosis, as by `warplens diagnose`."""
        return diagnose(self.timeline, self.timeline.window(), thresholds=thresholds)


@dataclass(frozen=True)
class Foretold:
    """A predicted step time beside the measured one, in nanoseconds.

    Attributes:
        remedy: the variant of the case.
        change: name of the prediction.
        baseline_ns: step time without the remedy.
        predicted_ns: predicted step time with it; None without a prediction.
        measured_ns: measured step time with it.
        model_error: error of the replay of the unchanged schedule.
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
        """predicted_ns / measured_ns − 1; None without a prediction."""
        return None if self.predicted_ns is None else self.predicted_ns / self.measured_ns - 1


def profiled(case: Case, source: str, variant: str = "baseline") -> Profiled | None:
    """A profile of the suite; None where there is none."""
    path = case.path(source, variant)
    return None if path is None else Profiled(case, source, Timeline(read(path)))


def claims_of(diagnosis: Diagnosis) -> list[str]:
    """The verdict, then every other finding that warns."""
    warnings = [finding.id for finding in diagnosis.findings if finding.severity != "info"]
    return list(dict.fromkeys([diagnosis.verdict, *warnings]))


def foretold(profile: Profiled, unprofiled: bool) -> Iterator[Foretold]:
    """Predictions for the remedies of a case whose effect was measured.

    Args:
        profile: the baseline.
        unprofiled: compare steps without a profiler, the baseline's step time being an input of the prediction; else
            steps under the same profiler, for variants that were profiled.
    """
    case, source = profile.case, profile.source
    window = profile.timeline.window()
    profiled_ns = case.profiled_step_ns(source)
    if profiled_ns is None or not window.steps:
        return
    # In programs without ranges, a part of a step that repeats (a layer) may be found as a step.
    ratio = window.duration_ns / len(window.steps) / profiled_ns
    ratio = ratio if abs(ratio - 1) > _OTHER_STEPS else 1.0
    baseline = case.step_ns() if unprofiled else profiled_ns
    if baseline is None:
        return
    step_ns = baseline * ratio if unprofiled else None
    by_change = {prediction.change: prediction for prediction in predictions(profile.timeline, window, step_ns)}
    for remedy in case.entry.get("remedies", ()):
        change = CHANGES.get((case.name, remedy), CHANGES.get(remedy))
        measured = case.step_ns(remedy) if unprofiled else case.profiled_step_ns(source, remedy)
        if change is None or measured is None:
            continue
        prediction = by_change.get(change)
        yield Foretold(
            case=case.name,
            source=source,
            remedy=remedy,
            change=change,
            baseline_ns=baseline,
            predicted_ns=prediction.predicted_ns / ratio if prediction else None,
            measured_ns=measured,
            model_error=prediction.model_error if prediction else None,
        )
