"""How long a step would take if one thing were different: modelled times, with the model's own error beside them.

The window's schedule (`warplens.analysis.schedule`) is replayed once unchanged, which says how far the model can be
trusted, and once for each change that touches something in it. A change alters what the host does: it drops waits,
pauses or the cost of calls. The work itself stays as it was measured; only copies that leave pageable memory become
faster. What then does not overlap follows from the replay: removing one cause uncovers the next, so the gains of two
changes do not add up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from warplens.analysis.calibration import without_profiler
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.replay import replay
from warplens.analysis.whatif import CHANGES, apply

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["Prediction", "predictions"]

#: Smaller effects cannot be told from the error of the model and the spread of the steps.
_LEAST_EFFECT: Final = 0.005
#: From its error on unchanged schedules: what the replay cannot reproduce it cannot predict.
_HIGH_CONFIDENCE_ERROR, _MEDIUM_CONFIDENCE_ERROR, _LARGEST_ERROR = 0.03, 0.10, 0.25

#: Of longer windows, so much work in whole steps from their middle is replayed: hundreds of steps of most programs, of
#: which each is much like the next.
_REPLAYED_WORK: Final = 60_000


@dataclass(frozen=True)
class Prediction:
    """The modelled effect of one change on the time of a step. Never to be shown as a measurement.

    Attributes:
        change: what is different, one of `CHANGES`.
        measured_ns: wall time of a step (of the window where no steps were found).
        predicted_ns: the same under the change.
        speedup: `measured_ns / predicted_ns`.
        model_error: how far the replay of the unchanged schedule is from the measurement, as a share of it.
        how: one sentence for people.
        assumptions: what must hold for the prediction to come true.
    """

    change: str
    measured_ns: int
    predicted_ns: int
    speedup: float
    model_error: float
    how: str
    assumptions: tuple[str, ...]

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """How far the model can be trusted for this program, by how well it reproduces what was measured."""
        if self.model_error <= _HIGH_CONFIDENCE_ERROR:
            return "high"
        return "medium" if self.model_error <= _MEDIUM_CONFIDENCE_ERROR else "low"


def predictions(timeline: Timeline, window: Window, step_ns: float | None = None) -> tuple[Prediction, ...]:
    """The modelled step time under each change that would make the window faster, the fastest first.

    Where several processes or devices worked, they speak of the one with the most work. None are made without API
    calls, for a single range, or where the replay of the unchanged schedule is more than a quarter off.

    Args:
        timeline: the profile.
        window: the part of it that counts.
        step_ns: what a step takes without a profiler, where it was timed; predictions then speak of the program
            without a profiler (`warplens.analysis.calibration`), else of the profiled one.
    """
    whole, window = window, _excerpt(timeline, window)
    recorded = recorded_schedule(timeline, window)
    if recorded is None or window.duration_ns <= 0:
        return ()
    steps = max(len(window.steps), 1)
    measured = window.duration_ns
    unchanged = recorded.duration_ns(replay(recorded.schedule))
    error = abs(unchanged - measured) / measured
    if error > _LARGEST_ERROR:
        return ()
    assumed: tuple[str, ...] = ()
    if step_ns is not None:
        measured = round(step_ns * steps)
        recorded = without_profiler(recorded, measured)
        unchanged = recorded.duration_ns(replay(recorded.schedule))
        assumed = ("without a profiler only the host is faster",)
    if window is not whole:
        first, last = window.steps[0].index, window.steps[-1].index
        assumed += (f"modelled on steps {first}–{last}; the others are like them",)
    found = []
    for change, meaning in CHANGES.items():
        changed = apply(change, recorded, timeline.trace.capture.devices)
        if changed is None:
            continue
        predicted = recorded.duration_ns(replay(changed.schedule))
        if step_ns is not None and measured < unchanged:
            predicted = round(predicted * measured / unchanged)  # the GPU itself was faster without the profiler
        if predicted >= min(unchanged * (1 - _LEAST_EFFECT), measured):
            continue
        found.append(
            Prediction(
                change=change,
                measured_ns=measured // steps,
                predicted_ns=max(predicted // steps, 1),
                speedup=measured / max(predicted, 1),
                model_error=error,
                how=meaning,
                assumptions=(*changed.assumptions, *assumed),
            )
        )
    return tuple(sorted(found, key=lambda prediction: prediction.predicted_ns))


def _excerpt(timeline: Timeline, window: Window) -> Window:
    """The window, or whole steps from its middle where it holds more work than is worth replaying."""
    work = timeline.work_in(window).height
    kept = max(1, len(window.steps) * _REPLAYED_WORK // max(work, 1))
    if kept >= len(window.steps) or work <= _REPLAYED_WORK:
        return window
    first = (len(window.steps) - kept) // 2
    steps = window.steps[first : first + kept]
    return replace(window, start_ns=steps[0].start_ns, end_ns=steps[-1].end_ns, steps=steps)
