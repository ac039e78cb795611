"""Training steps that did not finish: out of memory in the forward pass leaves a short "step" that looks fast.

What gives them away, in the GPU work of the step:

* it runs a forward pass and hardly anything besides: no backward pass, under that name or without a name;
* its optimizer range holds no GPU work, because optimizers skip parameters that got no gradient;
* it is shorter than the shortest forward pass of the profile;
* an allocation failed in it for lack of memory, and no backward pass followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.analysis.apikinds import OUT_OF_MEMORY, api_kinds
from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.once import once
from warplens.analysis.phasenames import PHASES, phase_of_name
from warplens.analysis.phases import phase_steps
from warplens.analysis.window import Step, Window
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    import numpy.typing as npt

    from warplens.analysis.timeline import Timeline

__all__ = ["AbortedStep", "aborted_steps", "out_of_memory_ns"]

#: A backward pass costs about twice its forward pass (two matrix products for each of the forward's). Less than this
#: part of it is what a loss or a memory fill leaves behind, not a backward pass.
_BACKWARD_OF_FORWARD: Final = 0.1

#: With gradient accumulation only every second, fourth, … step updates the weights: a step without optimizer work is
#: conspicuous only where more than this share of the steps has some.
_USUAL: Final = 0.5


@dataclass(frozen=True)
class AbortedStep:
    """A training step that cannot stand for the workload.

    Attributes:
        step: the step; the whole window, with index 0, where the profile has no steps.
        reasons: sentences for people, at least one.
    """

    step: Step
    reasons: tuple[str, ...]


@once
def aborted_steps(timeline: Timeline, window: Window) -> tuple[AbortedStep, ...]:
    """The steps of the window that began to train and did not finish, with the reasons.

    Only profiles whose ranges name a backward pass or an optimizer can tell. Where no steps were found, the window as a
    whole is judged.
    """
    phases = _PhaseRanges.of(timeline)
    if not phases.trains:
        return ()
    window = replace(window, range_name=None)  # a step is judged by all of its work, whichever part is asked about
    steps = window.steps or (Step(0, window.start_ns, window.end_ns),)
    gpu = phase_steps(timeline, replace(window, steps=steps))
    all_steps = timeline.steps.steps or steps
    of_profile = gpu
    if all_steps != steps:
        of_profile = phase_steps(timeline, replace(window, kind="all", steps=all_steps))
    updates_usually = bool((of_profile["optimizer_ns"] > 0).mean() > _USUAL)  # type: ignore[operator]
    memory_ran_out = out_of_memory_ns(timeline)
    found = []
    for step, row in zip(steps, gpu.iter_rows(named=True), strict=True):
        first, stop = np.searchsorted(memory_ran_out, (step.start_ns, step.end_ns))
        reasons = _reasons(step, row, phases, updates_usually, bool(stop > first))
        if reasons:
            found.append(AbortedStep(step, reasons))
    return tuple(found)


def out_of_memory_ns(timeline: Timeline) -> npt.NDArray[np.int64]:
    """When calls that ask for memory failed for lack of it, in order of time."""
    calls = timeline.trace.api_calls
    failed = (api_kinds(calls["name"]) == "allocation") & (calls["return_value"] == OUT_OF_MEMORY)
    return np.sort(calls["start_ns"].filter(failed).to_numpy())


def _reasons(
    step: Step, gpu: dict[str, int], phases: _PhaseRanges, updates_usually: bool, memory_ran_out: bool
) -> tuple[str, ...]:
    forward, backward, optimizer, unnamed = (gpu[f"{phase}_ns"] for phase in (*PHASES, "none"))
    has_backward, has_optimizer = (phases.begins_in(phase, step) for phase in ("backward", "optimizer"))
    reasons = []
    # A step between training steps that neither has nor announces backward and optimizer work evaluates.
    if has_backward or has_optimizer or backward or optimizer:
        if forward and backward + unnamed < _BACKWARD_OF_FORWARD * forward:
            began = f"its backward pass stopped after {100 * backward / forward:.0f} % of the forward pass's GPU time"
            reasons.append(began if backward else "it has a forward pass, but no backward work on the GPU")
        if not optimizer and (has_optimizer or (phases.has("optimizer") and updates_usually)):
            reasons.append("its optimizer has no work on the GPU")
    elif forward and memory_ran_out:
        reasons.append("an allocation failed in it, and no backward pass followed")
    if phases.shortest_forward_ns is not None and step.duration_ns < phases.shortest_forward_ns:
        reasons.append("it is shorter than the shortest forward pass of the profile")
    return tuple(reasons)


@dataclass(frozen=True, eq=False)
class _PhaseRanges:
    """Begins and lengths of the outermost ranges named after each phase."""

    begins: dict[str, npt.NDArray[np.int64]]
    shortest_forward_ns: int | None

    @classmethod
    def of(cls, timeline: Timeline) -> _PhaseRanges:
        ranges = timeline.trace.ranges
        number = {phase: position for position, phase in enumerate(PHASES, start=1)}
        by_name = [number.get(phase_of_name(name), 0) for name in name_categories(ranges["name"])]
        label = np.array(by_name, dtype=np.int64)[ranges["name"].to_physical().to_numpy()]
        parent = ranges["parent"].fill_null(NO_RANGE).to_numpy()
        # The entry at the end answers for "no parent".
        inside = (label > 0) & (np.r_[label, 0][parent] == label)
        starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
        forward = (label == number["forward"]) & ~inside & (ends > starts)
        return cls(
            {phase: np.sort(starts[(label == code) & ~inside]) for phase, code in number.items()},
            int((ends - starts)[forward].min()) if forward.any() else None,
        )

    @property
    def trains(self) -> bool:
        return self.has("backward") or self.has("optimizer")

    def has(self, phase: str) -> bool:
        return bool(len(self.begins[phase]))

    def begins_in(self, phase: str, step: Step) -> bool:
        first, stop = np.searchsorted(self.begins[phase], (step.start_ns, step.end_ns))
        return bool(stop > first)
