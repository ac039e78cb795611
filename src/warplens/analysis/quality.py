"""Quality notes: what a profile cannot tell, and what makes its numbers doubtful. Every report opens with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import OUT_OF_MEMORY, api_kinds
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import once
from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.launches import count_per_step
from warplens.analysis.phases import phase_steps
from warplens.analysis.ranges import range_coverage
from warplens.analysis.streams import graph_summary
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import PHASES, Step, Window, phase_of_name
from warplens.profile import Note, NoteLevel
from warplens.profile.schema import Int64s, name_labels
from warplens.profile.trace import worst_first

# --- Training steps that did not finish ---
#
# What gives them away, in the GPU work of the step: * it runs a forward pass and hardly anything besides: no backward
# pass, under that name or without a name, or the begin of one and no optimizer; * its optimizer range holds no GPU
# work, because optimizers skip parameters that got no gradient; * it is shorter than the shortest forward pass of the
# profile; * an allocation failed in it for lack of memory, and no backward pass followed.

#: A backward pass costs about twice its forward pass (two matrix products for each of the forward's). Less than this
#: part of it is what a loss or a memory fill leaves behind, not a backward pass.
_BACKWARD_OF_FORWARD: Final = 0.1

#: With gradient accumulation only every second, fourth, … step updates the weights: a step without optimizer work is
#: conspicuous only where more than this share of the steps has some.
_USUAL: Final = 0.5


@dataclass(frozen=True)
class AbortedStep:
    """A training step that cannot stand for the workload."""

    step: Step  #: the step; the whole window, with index 0, where the profile has no steps
    reasons: tuple[str, ...]  #: sentences for people, at least one


@once
def aborted_steps(timeline: Timeline, window: Window) -> tuple[AbortedStep, ...]:
    """The steps of the window that began to train and did not finish, with the reasons.

    Only profiles whose ranges name a backward pass or an optimizer can tell. Where no steps were found, the window as a
    whole is judged, if it names a backward pass: compilers and libraries have ranges called after optimizers, too.
    """
    begins, shortest_forward_ns = _phase_ranges(timeline)
    if not len(begins["backward"]) and not (window.steps and len(begins["optimizer"])):
        return ()
    window = replace(window, range_name=None)  # a step is judged by all of its work, whichever part is asked about
    steps = window.steps or (Step(0, window.start_ns, window.end_ns),)
    gpu = phase_steps(timeline, replace(window, steps=steps))
    all_steps = timeline.steps.steps or steps
    of_profile = gpu
    if all_steps != steps:
        of_profile = phase_steps(timeline, replace(window, kind="all", steps=all_steps))
    updates_usually = bool((of_profile["optimizer_ns"] > 0).mean() > _USUAL)  # type: ignore[operator]
    usual_update = updates_usually and len(begins["optimizer"]) > 0
    begins[_OUT_OF_MEMORY] = out_of_memory_ns(timeline)
    edges = np.array([(step.start_ns, step.end_ns) for step in steps], dtype=np.int64)
    held = {what: np.diff(np.searchsorted(when, edges), axis=1)[:, 0] > 0 for what, when in begins.items()}
    found = []
    for place, (step, row) in enumerate(zip(steps, gpu.iter_rows(named=True), strict=True)):
        reasons = [*_reasons(row, {what for what, begun in held.items() if begun[place]}, usual_update)]
        if shortest_forward_ns is not None and step.duration_ns < shortest_forward_ns:
            reasons.append("it is shorter than the shortest forward pass of the profile")
        if reasons:
            found.append(AbortedStep(step, tuple(reasons)))
    return tuple(found)


def out_of_memory_ns(timeline: Timeline) -> Int64s:
    """When calls that ask for memory failed for lack of it, in order of time."""
    calls = timeline.trace.api_calls
    failed = (api_kinds(calls["name"]) == "allocation") & (calls["return_value"] == OUT_OF_MEMORY)
    return np.sort(calls["start_ns"].filter(failed).to_numpy())


#: What a step may hold besides ranges named after phases: operators inside a range of the optimizer (it ran, on the
#: host where it has no work on the GPU), and allocations that failed.
_ON_HOST: Final = "operators of the optimizer"
_OUT_OF_MEMORY: Final = "out of memory"


def _reasons(gpu: dict[str, int], holds: set[str], usual_update: bool) -> Iterator[str]:
    """Why a step is not whole, by the GPU time of its phases and what begins in it."""
    forward, backward, optimizer, unnamed = (gpu[f"{phase}_ns"] for phase in (*PHASES, "none"))
    # A step between training steps that neither has nor announces backward and optimizer work evaluates.
    if backward or optimizer or holds & {"backward", "optimizer"}:
        # What follows the backward pass did not fail, and ran: a forward pass may do what needs no gradient.
        followed = optimizer > 0 and _OUT_OF_MEMORY not in holds
        if forward and not (backward and followed) and backward + unnamed < _BACKWARD_OF_FORWARD * forward:
            began = f"its backward pass stopped after {100 * backward / forward:.0f} % of the forward pass's GPU time"
            yield began if backward else "it has a forward pass, but no backward work on the GPU"
        on_host = _ON_HOST in holds and _OUT_OF_MEMORY not in holds  # its parameters are kept there
        if not optimizer and not on_host and ("optimizer" in holds or usual_update):
            yield "its optimizer has no work on the GPU"
    elif forward and _OUT_OF_MEMORY in holds:
        yield "an allocation failed in it, and no backward pass followed"


def _phase_ranges(timeline: Timeline) -> tuple[dict[str, Int64s], int | None]:
    """Begins of the outermost ranges named after each phase and of operators of the optimizer; the shortest forward."""
    ranges = timeline.trace.ranges
    number = {phase: position for position, phase in enumerate(PHASES, start=1)}
    label = name_labels(ranges["name"], lambda name: number.get(phase_of_name(name), 0))
    # The entry at the end answers for "no parent".
    above = np.r_[label, 0][ranges["parent"].fill_null(NO_RANGE).to_numpy()]
    inside = (label > 0) & (above == label)
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    begins = {phase: np.sort(starts[(label == code) & ~inside]) for phase, code in number.items()}
    operators = (ranges["kind"] == "cpu-op").to_numpy() & (above == number["optimizer"])
    lasting = (ends - starts)[(label == number["forward"]) & ~inside & (ends > starts)]
    return {**begins, _ON_HOST: np.sort(starts[operators])}, int(lasting.min()) if len(lasting) else None


#: Migrations for this share of a window are what a finding costs that is raised.
_MIGRATION_SHARE: Final = 0.02

#: Every launch has its API call in a complete capture; a few at the edges of the recording may miss theirs.
_COMPLETE_LAUNCH_SHARE: Final = 0.99

#: No work begins before its launch: a few that seem to are the last digit of a clock, more are two clocks.
_EARLY_SHARE: Final = 0.01

#: Work outside all ranges is normal around a loop; beyond this share of the GPU time, tables by range mislead.
_OUTSIDE_RANGES_SHARE: Final = 0.05

#: Ranges that leave out more than this say little about the program.
_MOSTLY: Final = 0.5

#: A median of three is the least that one disturbed step cannot move to itself.
_STEPS_FOR_SPREAD: Final = 3

#: Repetitions of one workload run the same kernels; beyond this difference the steps are not comparable (other sequence
#: lengths, evaluation in between, a recompilation).
_SAME_KERNELS_SHARE: Final = 0.05

#: Below this share of the busy time, hidden graph interiors change no ranking.
_HIDDEN_SHARE: Final = 0.01

#: Profilers cost some percent of host time in any case; beyond this the host side of the budget is the profiler's.
_OVERHEAD_SHARE: Final = 0.05

#: The largest part of the GPU time that may stay without a category before "other" hides an answer.
_UNCLASSIFIED_SHARE: Final = 0.05


#: Less of the backward pass linked to forward operators than this is worth knowing.
_LINKED_SHARE: Final = 0.95


def quality_notes(timeline: Timeline, window: Window) -> tuple[Note, ...]:
    """What the reader noticed and what the analyses can tell about the window, worst first.

    A profile in which nothing is doubtful gives no notes.
    """
    found: list[Note] = []
    if timeline.trace.has_device_work:
        for check in (
            _aborted,
            _out_of_memory,
            _hidden_graphs,
            _launches,
            _ranges,
            _backward,
            _steps,
            _profiler,
            _contents,
        ):
            found.extend(check(timeline, window))
    # An analysis knows more about a matter that the reader noticed, too: what it means for the window.
    codes = {note.code for note in found}
    noticed = [note for note in timeline.trace.capture.notes if note.code not in codes]
    return worst_first([*noticed, *found])


def _aborted(timeline: Timeline, window: Window) -> Iterator[Note]:
    if any(note.level is NoteLevel.BLOCKING for note in timeline.trace.capture.notes):
        return  # where kernels were lost, a step that lacks some proves nothing about the program
    found = aborted_steps(timeline, window)
    if not found:
        return
    every = len(found) >= len(window.steps)
    reasons = "; ".join(dict.fromkeys(reason for aborted in found for reason in aborted.reasons))
    which = "The only step" if every and len(found) == 1 else f"{len(found)} of {len(window.steps)} steps"
    yield Note(
        "aborted-step",
        NoteLevel.BLOCKING if every else NoteLevel.WARNING,
        f"{which} did not finish ({reasons}): their times are not those of a training step.",
        "Look for an out-of-memory error in the program's output, and repeat with a smaller batch or context",
    )


def _out_of_memory(timeline: Timeline, window: Window) -> Iterator[Note]:
    calls = timeline.api_calls_in(window)
    failed = ((api_kinds(calls["name"]) == "allocation") & (calls["return_value"] == OUT_OF_MEMORY)).sum()
    if failed:
        yield Note(
            "failed-allocations",
            NoteLevel.WARNING,
            f"Memory allocations that failed for lack of memory: {failed:,}.",
            "Check that the program finished; PyTorch frees its cache and retries, which costs time",
        )


def _hidden_graphs(timeline: Timeline, window: Window) -> Iterator[Note]:
    graphs = graph_summary(timeline, window)
    if graphs.hidden_share:
        yield Note(
            "graph-level-tracing",
            NoteLevel.WARNING if graphs.hidden_share > _HIDDEN_SHARE else NoteLevel.INFO,
            f"{100 * graphs.hidden_share:.1f} % of the GPU's busy time lies inside "
            f"{graphs.whole_launches:,} CUDA graph "
            "executions traced as a whole: the GPU is busy, but its kernels are unknown.",
            "Record the nodes of the graphs: add --cuda-graph-trace=node to nsys profile",
        )


def _migrates(timeline: Timeline, work: pl.DataFrame) -> pl.Series:
    """Which work is a migration of pages of managed memory."""
    directions = timeline.trace.copies["direction"].cast(pl.String)
    unified = directions.str.starts_with("unified-").fill_null(value=False)
    if not unified.any():
        return pl.repeat(False, work.height, dtype=pl.Boolean, eager=True)
    of_copy = unified.gather(pl.select(pl.when(work["kind"] == "copy").then(work["row"]).otherwise(0)).to_series())
    return (work["kind"] == "copy") & of_copy


def _of_managed_memory(timeline: Timeline, migrations: pl.DataFrame, window: Window) -> Note:
    moved = int(timeline.trace.copies["bytes"].gather(migrations["row"]).sum())
    spent = total(union(Intervals(migrations["start_ns"].to_numpy(), migrations["end_ns"].to_numpy())))
    share = spent / max(window.duration_ns, 1)
    return Note(
        "managed-memory",
        NoteLevel.WARNING if share > _MIGRATION_SHARE else NoteLevel.INFO,
        f"Managed memory migrates between host and GPU: {migrations.height:,} times, {moved / 1e6:,.1f} MB, for "
        f"{100 * share:.1f} % of the window. What waits for a page is not recorded: kernels last longer, and so does "
        "the host.",
        "Move it ahead of its use (cudaMemPrefetchAsync), or use cudaMalloc and copies",
    )


def _launches(timeline: Timeline, window: Window) -> Iterator[Note]:
    work = timeline.work_in(window)
    migrates = _migrates(timeline, work)
    if migrates.any():
        yield _of_managed_memory(timeline, work.filter(migrates), window)
        # No call launches them: host or GPU ask for a page when they touch it.
        work = work.filter(~migrates)
    known = 1 - work["api_row"].null_count() / max(work.height, 1)
    if work.height and not timeline.trace.api_calls.height:
        yield Note(
            "no-api-calls",
            NoteLevel.WARNING,
            "No CUDA API calls were recorded: what launched the work, and why the GPU was idle, is unknown.",
            timeline.trace.capture.recorder.remedies.get("no-api-calls"),
        )
    elif known < _COMPLETE_LAUNCH_SHARE:
        yield Note(
            "unknown-launches",
            NoteLevel.WARNING,
            f"The launching API call, and with it range and idle cause, is known for only {100 * known:.1f} % of "
            "the GPU work.",
            "Record from the program's start, and look for dropped events in the profiler's messages",
        )
    early = (work["launch_start_ns"] - work["start_ns"]).drop_nulls()
    before = early.filter(early > 0)
    if before.len() > _EARLY_SHARE * early.len():
        most = max(int(before.max()), 0)  # type: ignore[arg-type]
        yield Note(
            "clocks-apart",
            NoteLevel.WARNING,
            f"{100 * before.len() / early.len():.1f} % of the GPU work begins before the call that launched it, by up "
            f"to {most / 1e3:,.1f} µs: the clocks of host and GPU disagree, and queue times, waits and idle "
            "causes are wrong by as much.",
            "Record again, for a shorter time, and do not change the machine's clock meanwhile",
        )


def _ranges(timeline: Timeline, window: Window) -> Iterator[Note]:
    if not timeline.trace.ranges.height:
        yield Note(
            "no-ranges",
            NoteLevel.WARNING,
            "No annotated ranges were recorded: GPU time cannot be attributed to steps, phases or layers.",
            timeline.trace.capture.recorder.remedies.get("no-ranges"),
        )
        return
    coverage = range_coverage(timeline, window)
    if not coverage.total_ns:
        return
    # Work whose launch is not in the profile lies in no range that is known of; `_launches` tells of it.
    work = timeline.work_in(window)
    unlaunched = int((work["end_ns"] - work["start_ns"]).filter(work["api_row"].is_null()).sum())
    outside = (coverage.unattributed_ns - unlaunched) / coverage.total_ns
    if outside > _OUTSIDE_RANGES_SHARE:
        operators = timeline.has_operators
        yield Note(
            "work-outside-ranges",
            NoteLevel.WARNING if outside > _MOSTLY else NoteLevel.INFO,
            f"{100 * outside:.1f} % of the GPU time was launched outside of all "
            f"{'operators and annotations' if operators else 'annotated ranges'}.",
            f"Put a {'torch.profiler.record_function' if operators else 'range'} around the whole step, "
            "so that every launch lies inside one",
        )
    if coverage.inferred_share:
        yield Note(
            "inferred-ranges",
            NoteLevel.INFO,
            f"{100 * coverage.inferred_share:.1f} % of the GPU time was launched by threads without a range of their "
            "own (autograd's, for one) and is attributed to the range that another thread of the process had open.",
        )


def _backward(timeline: Timeline, window: Window) -> Iterator[Note]:
    if not timeline.has_operators:
        return
    from warplens.analysis.operators.coverage import operator_coverage

    coverage = operator_coverage(timeline, window)
    linkable = coverage.backward_ns - coverage.accumulation_ns
    if linkable and coverage.linked_ns < _LINKED_SHARE * linkable:
        yield Note(
            "unlinked-backward",
            NoteLevel.INFO,
            f"{100 * coverage.linked_ns / linkable:.1f} % of the backward pass's GPU time, summing of gradients "
            "aside, is linked to the forward operators that it belongs to; the rest is counted where it was launched.",
            "Record whole steps, so that the forward pass of each backward pass is in the profile",
        )


def _steps(timeline: Timeline, window: Window) -> Iterator[Note]:
    count = len(window.steps)
    if not count:
        # Whoever asked for all of the profile, or for a part of it, knows that it is not cut into steps.
        asked_for = window.kind in ("all", "explicit")
        yield Note(
            "no-steps",
            NoteLevel.INFO if asked_for else NoteLevel.WARNING,
            "The window has no repeating steps: the numbers may include warm-up, and none is per step.",
            None if asked_for else timeline.trace.capture.recorder.remedies.get("no-steps"),
        )
        return
    if count < _STEPS_FOR_SPREAD:
        yield Note(
            "few-steps",
            NoteLevel.INFO,
            f"The window has {'one step' if count == 1 else f'{count} steps'}: how much steps vary is unknown.",
            f"Record at least {_STEPS_FOR_SPREAD} steps after warm-up",
        )
    work = timeline.work_in(window).select("kind", "process", "start_ns", "end_ns")
    kernels = count_per_step(work.filter(pl.col("kind") == "kernel"), window)
    if kernels is not None and kernels.max - kernels.min > _SAME_KERNELS_SHARE * kernels.median:
        yield Note(
            "unequal-steps",
            NoteLevel.WARNING,
            f"The steps run between {kernels.min:,} and {kernels.max:,} kernels: they do not do the same work.",
            "Choose a window of equal steps",
        )


def _profiler(timeline: Timeline, window: Window) -> Iterator[Note]:
    overhead = timeline.trace.profiler_overhead
    spent = total(union(clip(Intervals.of(overhead), window.start_ns, window.end_ns)))
    share = spent / window.duration_ns if window.duration_ns > 0 else 0.0
    if share > _OVERHEAD_SHARE:
        yield Note(
            "profiler-overhead",
            NoteLevel.WARNING,
            f"The profiler itself blocked host threads during {100 * share:.1f} % of the window.",
            timeline.trace.capture.recorder.remedies.get("profiler-overhead"),
        )


def _contents(timeline: Timeline, window: Window) -> Iterator[Note]:
    work = timeline.work_in(window)
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    kernel = (work["kind"] == "kernel").to_numpy()
    category = categories_of(timeline.trace.kernels["full_name"].gather(work["row"].to_numpy()[kernel]))
    unknown = int(duration[kernel][(category == "other").to_numpy()].sum())
    share = unknown / int(duration.sum()) if unknown else 0.0
    if share > _UNCLASSIFIED_SHARE:
        yield Note(
            "unclassified-kernels",
            NoteLevel.INFO,
            f"{100 * share:.1f} % of the GPU time is in kernels of unknown category.",
        )

    devices, processes = work["device"].n_unique(), work["process"].n_unique()
    if devices > 1 or processes > 1:
        yield Note(
            "several-devices" if devices > 1 else "several-processes",
            NoteLevel.INFO,
            f"GPUs used in the window: {devices}; processes: {processes}. Tables sum over them, time budgets are "
            "per GPU.",
        )
