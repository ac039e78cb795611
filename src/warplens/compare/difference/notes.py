"""What makes two profiles hard to compare: said before any number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.analysis.abortedsteps import aborted_steps
from warplens.analysis.graphs import graph_summary
from warplens.profile import Note, NoteLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.compare.difference.kernels import KernelChanges
    from warplens.compare.difference.sides import Side
    from warplens.compare.difference.wall import WallSplit

__all__ = ["comparability_notes"]

#: Fewer steps than this have no spread that could tell a difference from noise.
_STEPS_FOR_SPREAD: Final = 3

#: Work between steps below this share of the GPU time changes nothing.
_BETWEEN_SHARE: Final = 0.01

#: Graphs that hide less of the busy time than this hide no answer.
_HIDDEN_SHARE: Final = 0.01

#: Where less than this of the kernels' time found its counterpart by name, the two run different programs.
_MATCHED_SHARE: Final = 0.5

#: Repetitions of one workload that launch other numbers of kernels are not alike.
_SAME_KERNELS_SHARE: Final = 0.05


def comparability_notes(baseline: Side, variant: Side, wall: WallSplit, kernels: KernelChanges) -> tuple[Note, ...]:
    """What to know before comparing the two sides, the gravest first."""
    notes = [
        *_without_work(baseline, variant),
        *_aborted(baseline, variant),
        *_environment(baseline, variant),
        *_repetitions(baseline, variant),
        *_hidden(baseline, variant),
        *_alike(baseline, variant, kernels),
        *_profiled(baseline, variant),
        *_devices(baseline, variant),
        *_between(baseline, variant, wall),
    ]
    order = [NoteLevel.BLOCKING, NoteLevel.WARNING, NoteLevel.INFO]
    return tuple(sorted(notes, key=lambda note: order.index(note.level)))


def _without_work(*sides: Side) -> Iterator[Note]:
    for side in sides:
        if not side.work.height:
            text = f"{side.name} has no GPU work in its window: nothing of the other side has a counterpart"
            yield Note("no-gpu-work", NoteLevel.BLOCKING, text, "record with CUDA tracing, or choose another window")


def _aborted(*sides: Side) -> Iterator[Note]:
    for side in sides:
        aborted = aborted_steps(side.timeline, side.window)
        if aborted:
            reason = aborted[0].reasons[0]
            text = f"{side.name}: {len(aborted)} of {side.repeats} steps did not finish ({reason}); a step that stops "
            text += "early looks fast"
            yield Note("aborted-steps", NoteLevel.BLOCKING, text, "compare windows whose steps finished")


def _environment(baseline: Side, variant: Side) -> Iterator[Note]:
    before, after = baseline.timeline.trace.capture, variant.timeline.trace.capture
    names = [sorted({device.name for device in capture.devices}) for capture in (before, after)]
    if names[0] and names[1] and names[0] != names[1]:
        text = f"the GPUs differ: {', '.join(names[0])} and {', '.join(names[1])}"
        yield Note("different-gpu", NoteLevel.WARNING, text, "record both sides on the same GPU")
    elif bool(names[0]) != bool(names[1]):
        known, unknown = (baseline, variant) if names[0] else (variant, baseline)
        text = f"{known.name} ran on {', '.join(names[0] or names[1])}; {unknown.name} does not name its GPU"
        yield Note("unknown-gpu", NoteLevel.WARNING, text)
    if before.tool != after.tool:
        text = f"the profilers differ ({before.tool} and {after.tool}): each adds other time to a launch, so that the "
        text += "times of the host and idle times do not compare"
        yield Note("different-tool", NoteLevel.WARNING, text, "record both sides with the same tool and options")
    elif before.tool_version != after.tool_version:
        text = f"{before.tool} has version {before.tool_version or 'unknown'} on one side and "
        text += f"{after.tool_version or 'unknown'} on the other"
        yield Note("different-tool-version", NoteLevel.INFO, text)
    missing = sorted({"api_calls", "ranges"} & (before.recorded ^ after.recorded))
    if missing:
        text = f"only one side recorded {', '.join(missing)}: what is told from it is known of that side alone"
        yield Note("different-tables", NoteLevel.WARNING, text, "record both sides with the same options")


def _repetitions(baseline: Side, variant: Side) -> Iterator[Note]:
    without = [side.name for side in (baseline, variant) if not side.has_steps]
    if len(without) == 2:
        text = "neither window is divided into steps: numbers are per window, which compare only if both sides did the "
        text += "same number of repetitions"
        yield Note("no-steps", NoteLevel.WARNING, text, "annotate steps, or choose windows of the same work")
    elif without:
        text = f"{without[0]} is not divided into steps: its whole window stands against one step of the other side"
        remedy = "annotate steps on both sides, or choose a window that holds one step (--window)"
        yield Note("steps-on-one-side", NoteLevel.BLOCKING, text, remedy)
    else:
        guessed = [side.name for side in (baseline, variant) if side.timeline.steps.source == "sequence"]
        if guessed:
            text = f"the steps of {' and '.join(guessed)} are the shortest sequence of kernels that repeats, which may "
            text += "be a part of a step, or several; the other side's may be another part"
            yield Note("guessed-steps", NoteLevel.WARNING, text, "annotate steps on both sides")
        if baseline.repeats != variant.repeats:
            text = f"{baseline.repeats} and {variant.repeats} steps: numbers are means per step"
            yield Note("different-steps", NoteLevel.INFO, text)
        few = [f"{side.name} {side.repeats}" for side in (baseline, variant) if side.repeats < _STEPS_FOR_SPREAD]
        if few:
            text = f"too few steps to know their spread ({', '.join(few)})"
            yield Note("few-steps", NoteLevel.WARNING, text, f"record {_STEPS_FOR_SPREAD} steps or more, after warm-up")
    if baseline.window.range_name != variant.window.range_name:
        text = f"one side counts {baseline.window.range_name or 'all work'}, the other "
        text += f"{variant.window.range_name or 'all work'}"
        yield Note("different-ranges", NoteLevel.WARNING, text)


def _hidden(*sides: Side) -> Iterator[Note]:
    for side in sides:
        graphs = graph_summary(side.timeline, side.window)
        if graphs.whole_launches and (graphs.hidden_share or 0.0) > _HIDDEN_SHARE:
            text = f"{side.name}: {100 * (graphs.hidden_share or 0.0):.0f} % of the GPU's busy time is inside CUDA "
            text += "graphs that were traced as a whole: their kernels are missing from it, not removed"
            yield Note("hidden-graphs", NoteLevel.WARNING, text, "record with --cuda-graph-trace=node")


def _alike(baseline: Side, variant: Side, kernels: KernelChanges) -> Iterator[Note]:
    for side in (baseline, variant):
        if len(side.window.steps) < 2:
            continue
        counts = np.bincount(side.step_of_work, minlength=side.repeats)
        if counts.max() - counts.min() > _SAME_KERNELS_SHARE * max(float(np.median(counts)), 1.0):
            text = f"{side.name}: its steps launch {counts.min()} to {counts.max()} pieces of work; a mean step stands "
            text += "for none of them"
            yield Note("unequal-steps", NoteLevel.WARNING, text, "choose a window of like steps")
    matched = kernels.matched_share
    hidden = any((side.work["kind"] == "graph").any() for side in (baseline, variant))
    if matched is not None and matched < _MATCHED_SHARE and not hidden:
        text = f"only {100 * matched:.0f} % of the kernels' time has a counterpart on the other side: the two run "
        text += "different programs, or other libraries"
        yield Note("few-matches", NoteLevel.WARNING, text)


def _profiled(*sides: Side) -> Iterator[Note]:
    tools = dict.fromkeys(side.timeline.trace.capture.tool for side in sides if side.timeline.trace.api_calls.height)
    if tools:
        text = (
            f"times are those under the profiler ({', '.join(tools)}), which adds to every launch: a step that waits "
        )
        text += "for launches is slower here than without it, and its GPU idle for longer"
        yield Note("profiled-times", NoteLevel.INFO, text, "time both sides without a profiler: warplens bench")


def _devices(baseline: Side, variant: Side) -> Iterator[Note]:
    counts = [side.work["device"].n_unique() for side in (baseline, variant)]
    if max(counts) > 1:
        text = f"the number of devices that work ran on is {counts[0]} and {counts[1]}: parts of the wall time are "
        text += "means over the devices, kernels and ranges sums"
        yield Note("several-devices", NoteLevel.INFO if counts[0] == counts[1] else NoteLevel.WARNING, text)


def _between(baseline: Side, variant: Side, wall: WallSplit) -> Iterator[Note]:
    for side, of_side in ((baseline, wall.baseline), (variant, wall.variant)):
        if side.has_gaps:
            share = float(of_side.between_ns / of_side.wall_ns)
            text = f"{side.name}: {100 * share:.1f} % of the wall time lies between the end of a step and the next "
            text += "one's begin, and counts"
            yield Note("time-between-steps", NoteLevel.INFO, text)
        work = side.timeline.work_in(side.window)
        total = int((work["end_ns"] - work["start_ns"]).sum())
        outside = total - int((side.work["end_ns"] - side.work["start_ns"]).sum())
        if outside > _BETWEEN_SHARE * max(total, 1):
            text = (
                f"{side.name}: {100 * outside / total:.1f} % of the GPU work's time begins outside of the steps, and "
            )
            text += "is in no table of kernels and ranges"
            yield Note("work-between-steps", NoteLevel.INFO, text)
