"""Notes on two sides of a comparison: what makes them hard to compare, or not comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from warplens.analysis.quality import HIDDEN_SHARE, SAME_KERNELS_SHARE, STEPS_FOR_SPREAD, aborted_steps
from warplens.analysis.streams import graph_summary
from warplens.compare.side import Side, range_times
from warplens.compare.work import KernelChanges
from warplens.profile import Note, NoteLevel
from warplens.profile.trace import worst_first

if TYPE_CHECKING:
    from warplens.compare.difference import WallSplit

#: Work between steps below this share of the GPU time is not reported.
_BETWEEN_SHARE: Final = 0.01

#: If less than this share of the kernel time is matched by name, the sides run different programs.
_MATCHED_SHARE: Final = 0.5

#: Steps of other names, or guessed on both sides, that differ by this factor are different parts of a program.
_OTHER_PARTS: Final = 1.8


def comparability_notes(baseline: Side, variant: Side, wall: WallSplit, kernels: KernelChanges) -> tuple[Note, ...]:
    """Notes on the comparability of two sides, the most severe first."""
    notes = (
        *_without_work(baseline, variant),
        *aborted_notes(baseline, variant),
        *_environment(baseline, variant),
        *_same_recording(baseline, variant),
        *_repetitions(baseline, variant),
        *_hidden(baseline, variant),
        *_alike(baseline, variant, kernels),
        *_profiled(baseline, variant),
        *_devices(baseline, variant),
        *_between(baseline, variant, wall),
    )
    return worst_first(notes)


def _without_work(*sides: Side) -> Iterator[Note]:
    for side in sides:
        if not side.work.height:
            text = f"{side.name} has no GPU work in its window: nothing of the other side has a counterpart"
            yield Note("no-gpu-work", NoteLevel.BLOCKING, text, "Record with CUDA tracing, or choose another window")


def aborted_notes(*sides: Side) -> Iterator[Note]:
    """Notes on sides with steps that did not finish."""
    for side in sides:
        aborted = aborted_steps(side.timeline, side.window)
        if aborted:
            reason = aborted[0].reasons[0]
            text = (
                f"{side.name}: {len(aborted)} of {side.repeats} steps did not finish ({reason}); a step that stops "
                "early looks fast"
            )
            yield Note("aborted-steps", NoteLevel.BLOCKING, text, "Compare windows whose steps finished")


def _environment(baseline: Side, variant: Side) -> Iterator[Note]:
    """Notes on GPUs, profilers and recorded tables that are not the same on both sides."""
    before, after = baseline.timeline.trace.capture, variant.timeline.trace.capture
    names = [sorted({device.name for device in capture.devices}) for capture in (before, after)]
    if names[0] and names[1] and names[0] != names[1]:
        text = f"The GPUs differ: {', '.join(names[0])} and {', '.join(names[1])}"
        yield Note("different-gpu", NoteLevel.WARNING, text, "Record both sides on the same GPU")
    elif bool(names[0]) != bool(names[1]):
        known, unknown = (baseline, variant) if names[0] else (variant, baseline)
        text = f"{known.name} ran on {', '.join(names[0] or names[1])}; {unknown.name} does not name its GPU"
        yield Note("unknown-gpu", NoteLevel.WARNING, text)
    if before.tool != after.tool:
        text = (
            f"The profilers differ ({before.tool} and {after.tool}): each adds a different time to a launch, so the "
            "times of the host and idle times do not compare"
        )
        yield Note("different-tool", NoteLevel.WARNING, text, "Record both sides with the same tool and options")
    elif before.tool_version != after.tool_version:
        text = (
            f"{before.tool} has version {before.tool_version or 'unknown'} on one side and "
            f"{after.tool_version or 'unknown'} on the other"
        )
        yield Note("different-tool-version", NoteLevel.INFO, text)
    missing = sorted({"api_calls", "ranges"} & (before.recorded ^ after.recorded))
    if missing:
        text = f"Only one side recorded {', '.join(missing)}: what follows from it is known for that side only"
        yield Note("different-tables", NoteLevel.WARNING, text, "Record both sides with the same options")


def _same_recording(baseline: Side, variant: Side) -> Iterator[Note]:
    # Two runs never agree in the begin and end of all work to the nanosecond.
    times = [side.work.select("start_ns", "end_ns") for side in (baseline, variant)]
    if times[0].height and times[0].equals(times[1]):
        text = "Both sides are one recording: it is compared with itself"
        yield Note("same-recording", NoteLevel.WARNING, text, "Give another run as the variant, or another window")


def _repetitions(baseline: Side, variant: Side) -> Iterator[Note]:
    """Notes on steps: none, guessed ones, too few, or not the same ones on both sides."""
    without = [side.name for side in (baseline, variant) if not side.has_steps]
    if len(without) == 2:
        text = (
            "Neither window is divided into steps: numbers are per window, which compare only if both sides did the "
            "same number of repetitions"
        )
        yield Note("no-steps", NoteLevel.WARNING, text, "Annotate steps, or choose windows of the same work")
    elif without:
        text = f"{without[0]} is not divided into steps: its whole window stands against one step of the other side"
        remedy = "Annotate steps on both sides, or choose a window that holds one step (--window)"
        yield Note("steps-on-one-side", NoteLevel.BLOCKING, text, remedy)
    else:
        guessed = [side.name for side in (baseline, variant) if side.timeline.steps.source == "sequence"]
        if guessed:
            text = (
                f"The steps of {' and '.join(guessed)} are the shortest sequence of kernels that repeats, which may "
                "be a part of a step, or several; the other side's may be another part"
            )
            yield Note("guessed-steps", NoteLevel.WARNING, text, "Annotate steps on both sides")
        yield from _other_parts(baseline, variant, guessed)
        if baseline.repeats != variant.repeats:
            text = f"{baseline.repeats} and {variant.repeats} steps: numbers are means per step"
            yield Note("different-steps", NoteLevel.INFO, text)
        few = [f"{side.name} {side.repeats}" for side in (baseline, variant) if side.repeats < STEPS_FOR_SPREAD]
        if few:
            text = f"Too few steps to know their spread ({', '.join(few)})"
            yield Note("few-steps", NoteLevel.WARNING, text, f"Record {STEPS_FOR_SPREAD} steps or more, after warm-up")
    if baseline.window.range_name != variant.window.range_name:
        text = (
            f"One side counts {baseline.window.range_name or 'all work'}, the other "
            f"{variant.window.range_name or 'all work'}"
        )
        yield Note("different-ranges", NoteLevel.WARNING, text)
    elif (name := baseline.window.range_name) is not None and not without:
        yield from _in_some_steps(baseline, variant, name)


def _other_parts(baseline: Side, variant: Side, guessed: Sequence[str]) -> Iterator[Note]:
    """A note on steps that are different parts of a program: guessed, or named otherwise, and with other work.

    Args:
        guessed: names of the sides whose steps are not annotated.
    """
    names = [side.timeline.steps.name for side in (baseline, variant)]
    pieces = [side.work.height / side.repeats for side in (baseline, variant)]
    if not all(pieces):
        return
    factor = max(pieces) / min(pieces)
    if len(guessed) == 1 and factor > 1 + SAME_KERNELS_SHARE:
        why = f"the steps of {guessed[0]} are guessed"
    elif len(guessed) == 2 and factor >= _OTHER_PARTS:
        why = "the steps of both are guessed"
    elif not guessed and names[0] != names[1] and factor >= _OTHER_PARTS:
        why = f"the one is called {names[0]}, the other {names[1]}"
    else:
        return
    text = (
        f"A step of {baseline.name} is {pieces[0]:.4g} pieces of work, one of {variant.name} {pieces[1]:.4g}, and "
        f"{why}: they may be different parts of the program"
    )
    yield Note("other-steps", NoteLevel.WARNING, text, "Annotate the same steps, by the same name, on both sides")


def _in_some_steps(baseline: Side, variant: Side, name: str) -> Iterator[Note]:
    """A note on a range that is in another share of the steps of each side.

    Windows of steps that have it at times begin and end anywhere in its period: one step more or less is no difference.
    """
    counts = [int((range_times(side, name) > 0).sum()) for side in (baseline, variant)]
    repeats = [side.repeats for side in (baseline, variant)]
    apart = abs(counts[0] * repeats[1] - counts[1] * repeats[0])  # the difference of the shares, times both repeats
    in_all = [count == steps for count, steps in zip(counts, repeats, strict=True)]
    if apart > (0 if any(in_all) else max(repeats)):
        text = (
            f"The range is in {counts[0]} of {baseline.repeats} steps of {baseline.name}, and in {counts[1]} of "
            f"{variant.repeats} of {variant.name}: times are those of a step with it, not of how often it runs"
        )
        yield Note("range-in-some-steps", NoteLevel.WARNING, text, "Compare whole steps, without --range")


def _hidden(*sides: Side) -> Iterator[Note]:
    for side in sides:
        graphs = graph_summary(side.timeline, side.window)
        if graphs.whole_launches and (graphs.hidden_share or 0.0) > HIDDEN_SHARE:
            text = (
                f"{side.name}: {100 * (graphs.hidden_share or 0.0):.0f} % of the GPU's busy time is inside CUDA "
                "graphs that were traced as a whole: their kernels are missing from it, not removed"
            )
            yield Note("hidden-graphs", NoteLevel.WARNING, text, "Record with --cuda-graph-trace=node")


def _alike(baseline: Side, variant: Side, kernels: KernelChanges) -> Iterator[Note]:
    """A note on sides that may run different programs."""
    matched, likeness = kernels.matched_share, kernels.likeness
    if matched is None or any((side.work["kind"] == "graph").any() for side in (baseline, variant)):
        return
    same = f"only {100 * likeness.launches_share:.0f} % of the launches have the same kernel and size on both sides"
    if likeness.is_different:
        products = " and ".join(f"{number:.4g}" for number in likeness.products)
        text = f"The two run different programs: {same}, few in the same order, and a step has {products} products"
        remedy = "Compare recordings of one program, before and after a change"
        yield Note("different-programs", NoteLevel.WARNING, text, remedy)
    elif matched < _MATCHED_SHARE:
        text = (
            f"Only {100 * matched:.0f} % of the kernels' time has a counterpart on the other side: the two run "
            "different programs, or other libraries"
        )
        yield Note("few-matches", NoteLevel.WARNING, text)
    elif likeness.is_doubtful:
        text = f"The two may run different programs: {same}"
        yield Note("few-matches", NoteLevel.WARNING, text)


def _profiled(*sides: Side) -> Iterator[Note]:
    tools = dict.fromkeys(side.timeline.trace.capture.tool for side in sides if side.timeline.trace.api_calls.height)
    if tools:
        text = (
            f"Times are those under the profiler ({', '.join(tools)}), which adds to every launch: a step that waits "
            "for launches is slower here than without it, and its GPU idle for longer"
        )
        yield Note("profiled-times", NoteLevel.INFO, text, "Time both sides without a profiler: warplens bench")


def _devices(baseline: Side, variant: Side) -> Iterator[Note]:
    counts = [side.work["device"].n_unique() for side in (baseline, variant)]
    if max(counts) > 1:
        text = (
            f"The number of devices that work ran on is {counts[0]} and {counts[1]}: parts of the wall time are "
            "means over the devices, kernels and ranges sums"
        )
        yield Note("several-devices", NoteLevel.INFO if counts[0] == counts[1] else NoteLevel.WARNING, text)


def _between(baseline: Side, variant: Side, wall: WallSplit) -> Iterator[Note]:
    for side, of_side in ((baseline, wall.baseline), (variant, wall.variant)):
        if side.has_gaps:
            share = float(of_side.between_ns / of_side.wall_ns)
            text = (
                f"{side.name}: {100 * share:.1f} % of the wall time lies between the end of a step and the next "
                "one's begin, and counts"
            )
            yield Note("time-between-steps", NoteLevel.INFO, text)
        work = side.timeline.work_in(side.window)
        total = int((work["end_ns"] - work["start_ns"]).sum())
        outside = total - int((side.work["end_ns"] - side.work["start_ns"]).sum())
        if outside > _BETWEEN_SHARE * max(total, 1):
            text = (
                f"{side.name}: {100 * outside / total:.1f} % of the GPU work's time begins outside of the steps, and "
                "is in no table of kernels and ranges"
            )
            yield Note("work-between-steps", NoteLevel.INFO, text)
