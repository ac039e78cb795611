"""Quality notes: missing data in a profile and reasons to doubt its numbers. Every report opens with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import OUT_OF_MEMORY, api_kinds
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import largest, once
from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.launches import counts_of_steps
from warplens.analysis.phases import phase_steps
from warplens.analysis.ranges import range_coverage
from warplens.analysis.sharing import shared_gpus
from warplens.analysis.streams import graph_summary
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import PHASES, Step, Window, phase_numbers
from warplens.profile import Note, NoteLevel
from warplens.profile.schema import Int64s
from warplens.profile.trace import worst_first

# --- Training steps that did not finish ---
#
# Signs of it:
# * the step runs a forward pass and hardly anything else on the GPU: no backward pass, under that name or without a
#   name, or the begin of one and no optimizer;
# * its optimizer range holds no GPU work, because optimizers skip parameters that got no gradient;
# * it is shorter than the shortest forward pass of the profile;
# * an allocation failed in it for lack of memory, and no backward pass followed.

#: A backward pass costs about twice its forward pass (two matrix products for each of the forward's). GPU time below
#: this share of it is a loss or a memory fill, not a backward pass.
_BACKWARD_OF_FORWARD: Final = 0.1

#: With gradient accumulation only every second, fourth, … step updates the weights: a step without optimizer work is
#: suspicious only where more than this share of the steps has some, and no cycle of steps is known.
_USUAL: Final = 0.5


@dataclass(frozen=True)
class AbortedStep:
    """A training step that did not finish and does not represent the workload."""

    step: Step  #: the step; the whole window, with index 0, where the profile has no steps
    reasons: tuple[str, ...]  #: sentences for people, at least one


@once
def aborted_steps(timeline: Timeline, window: Window) -> tuple[AbortedStep, ...]:
    """The steps of the window that began to train and did not finish, with the reasons.

    This needs ranges that name a backward pass or an optimizer. Where no steps were found, the window as a whole is
    judged, if it names a backward pass: compilers and libraries have ranges named after optimizers, too. A window that
    the user chose and that holds no whole step is not judged.
    """
    if window.kind == "explicit" and not window.steps:
        return ()
    begins, shortest_forward_ns = _phase_ranges(timeline)
    if not len(begins["backward"]) and not (window.steps and len(begins["optimizer"])):
        return ()
    window = replace(window, range_name=None)  # a step is judged by all of its work, not only that of the range
    steps = window.steps or (Step(0, window.start_ns, window.end_ns),)
    phase_times = phase_steps(timeline, replace(window, steps=steps))
    all_steps = timeline.steps.steps or steps
    all_phase_times = phase_times
    if all_steps != steps:
        all_phase_times = phase_steps(timeline, replace(window, kind="all", steps=all_steps))
    updating = (all_phase_times["optimizer_ns"] > 0).to_numpy()
    updates_usually = timeline.steps.cycle == 1 and bool(updating.mean() > _USUAL)
    usual_update = updates_usually and len(begins["optimizer"]) > 0
    begins[_OUT_OF_MEMORY] = out_of_memory_ns(timeline)
    edges = _edges_on_host(timeline, steps)
    happens_in = {part: np.diff(np.searchsorted(when, edges), axis=1)[:, 0] > 0 for part, when in begins.items()}
    aborted = []
    for row_number, (step, times) in enumerate(zip(steps, phase_times.iter_rows(named=True), strict=True)):
        reasons = [*_reasons(times, {part for part, begun in happens_in.items() if begun[row_number]}, usual_update)]
        if shortest_forward_ns is not None and step.duration_ns < shortest_forward_ns:
            reasons.append("it is shorter than the shortest forward pass of the profile")
        if reasons:
            aborted.append(AbortedStep(step, tuple(reasons)))
    return tuple(aborted)


def _edges_on_host(timeline: Timeline, steps: Sequence[Step]) -> Int64s:
    """Begin and end of each step on the host, shape (steps, 2).

    Where the host runs ahead, a step begins with its first work on the GPU; on the host, with the launch of that work.
    """
    edges = np.array([(step.start_ns, step.end_ns) for step in steps], dtype=np.int64)
    starts = timeline.work["start_ns"]
    begun_ns = np.append(starts.to_numpy(), -1)
    launched_ns = np.append(timeline.work["launch_start_ns"].fill_null(starts).to_numpy(), -1)
    first = np.searchsorted(begun_ns[:-1], edges)
    return np.where(begun_ns[first] == edges, launched_ns[first], edges)


def out_of_memory_ns(timeline: Timeline) -> Int64s:
    """Sorted times at which allocations failed for lack of memory."""
    calls = timeline.trace.api_calls
    failed = (api_kinds(calls["name"]) == "allocation") & (calls["return_value"] == OUT_OF_MEMORY)
    return np.sort(calls["start_ns"].filter(failed).to_numpy())


#: Events of a step besides ranges named after phases: operators inside a range of the optimizer (it ran, on the host
#: where it has no work on the GPU), and failed allocations.
_ON_HOST: Final = "operators of the optimizer"
_OUT_OF_MEMORY: Final = "out of memory"


def _reasons(phase_times: dict[str, int], events: set[str], usual_update: bool) -> Iterator[str]:
    """Why a step is incomplete, from the GPU time of its phases and the events in it."""
    forward, backward, optimizer, outside = (phase_times[f"{phase}_ns"] for phase in (*PHASES, "none"))
    # A step between training steps without backward and optimizer work, and without their ranges, is an evaluation.
    if backward or optimizer or events & {"backward", "optimizer"}:
        # Where the work after the backward pass ran and did not fail, a forward pass without gradients is not
        # suspicious.
        completed = optimizer > 0 and _OUT_OF_MEMORY not in events
        if forward and not (backward and completed) and backward + outside < _BACKWARD_OF_FORWARD * forward:
            began = f"its backward pass stopped after {100 * backward / forward:.0f} % of the forward pass's GPU time"
            yield began if backward else "it has a forward pass, but no backward work on the GPU"
        on_host = _ON_HOST in events and _OUT_OF_MEMORY not in events  # the parameters are kept on the host
        if not optimizer and not on_host and ("optimizer" in events or usual_update):
            yield "its optimizer has no work on the GPU"
    elif forward and _OUT_OF_MEMORY in events:
        yield "an allocation failed in it, and no backward pass followed"


def _phase_ranges(timeline: Timeline) -> tuple[dict[str, Int64s], int | None]:
    """Begins of each phase's outermost ranges and of the optimizer's operators; the shortest forward range."""
    ranges = timeline.trace.ranges
    number_of_phase = {phase: position for position, phase in enumerate(PHASES, start=1)}
    label = phase_numbers(ranges["name"])
    # The last entry stands for "no parent".
    parent_label = np.r_[label, 0][ranges["parent"].fill_null(NO_RANGE).to_numpy()]
    nested = (label > 0) & (parent_label == label)
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    begins = {phase: np.sort(starts[(label == code) & ~nested]) for phase, code in number_of_phase.items()}
    operators = (ranges["kind"] == "cpu-op").to_numpy() & (parent_label == number_of_phase["optimizer"])
    lengths = (ends - starts)[(label == number_of_phase["forward"]) & ~nested & (ends > starts)]
    return {**begins, _ON_HOST: np.sort(starts[operators])}, int(lengths.min()) if len(lengths) else None


#: From this share of a window on, migrations cost as much as a finding that is raised.
_MIGRATION_SHARE: Final = 0.02

#: Every launch has its API call in a complete capture; a few at the edges of the recording may miss theirs.
_COMPLETE_LAUNCH_SHARE: Final = 0.99

#: No work begins before its launch: a few that seem to are within clock resolution; more mean that the clocks differ.
_EARLY_SHARE: Final = 0.01

#: Work outside all ranges is normal around a loop; beyond this share of the GPU time, tables by range mislead.
_OUTSIDE_RANGES_SHARE: Final = 0.05

#: Ranges that leave out more than this share say little about the program.
_MOSTLY: Final = 0.5

#: A median of three is the smallest that one disturbed step cannot determine.
STEPS_FOR_SPREAD: Final = 3

#: Repetitions of one workload run the same kernels; beyond this difference the steps are not comparable (other sequence
#: lengths, evaluation in between, a recompilation).
SAME_KERNELS_SHARE: Final = 0.05

#: Work between and behind the steps matters like theirs from this share of all work on.
_LEFT_OUT_SHARE: Final = 1 / 3

#: What comes before the first step that counts, as in the table `left-out`.
_BEFORE_STEPS: Final = ("start-up", "compilation", "warm-up", "not recorded")

#: Below this share of the busy time, hidden graph interiors change no ranking.
HIDDEN_SHARE: Final = 0.01

#: Profilers always cost some percent of host time; beyond this share the host side of the budget is the profiler's.
_OVERHEAD_SHARE: Final = 0.05

#: The largest part of the GPU time that may stay without a category before "other" hides an answer.
_UNCLASSIFIED_SHARE: Final = 0.05


#: From this share of the GPU time on, products that are faster than the GPU can be are no oddity of a few kernels.
_BEYOND_PEAK_SHARE: Final = 0.05

#: Below this linked share of the backward pass a note is given.
_LINKED_SHARE: Final = 0.95


def quality_notes(timeline: Timeline, window: Window) -> tuple[Note, ...]:
    """Notes of the reader and of the analyses about the window, worst first.

    A profile without any doubt gives no notes.
    """
    found: list[Note] = []
    if timeline.trace.has_device_work:
        for check in (
            _aborted,
            _out_of_memory,
            _outside_steps,
            _shared,
            _hidden_graphs,
            _launches,
            _ranges,
            _backward,
            _unrecorded_steps,
            _steps_without_work,
            _lone_pauses,
            _number_of_steps,
            _unequal_steps,
            _profiler,
            _contents,
            _beyond_peak,
        ):
            found.extend(check(timeline, window))
    # An analysis knows more about a problem that the reader noticed, too: its effect on the window.
    codes = {note.code for note in found}
    reader_notes = [note for note in timeline.trace.capture.notes if note.code not in codes]
    return worst_first([*reader_notes, *found])


def _aborted(timeline: Timeline, window: Window) -> Iterator[Note]:
    if any(note.level is NoteLevel.BLOCKING for note in timeline.trace.capture.notes):
        return  # where kernels were lost, a step that lacks some proves nothing about the program
    unfinished = aborted_steps(timeline, window)
    if not unfinished:
        return
    all_steps = len(unfinished) >= len(window.steps)
    reasons = "; ".join(dict.fromkeys(reason for step in unfinished for reason in step.reasons))
    subject = (
        "The only step" if all_steps and len(unfinished) == 1 else f"{len(unfinished)} of {len(window.steps)} steps"
    )
    times = "its time is not that" if len(unfinished) == 1 else "their times are not those"
    yield Note(
        "aborted-step",
        NoteLevel.BLOCKING if all_steps else NoteLevel.WARNING,
        f"{subject} did not finish ({reasons}): {times} of a training step.",
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
            NoteLevel.WARNING if graphs.hidden_share > HIDDEN_SHARE else NoteLevel.INFO,
            f"{100 * graphs.hidden_share:.1f} % of the GPU's busy time lies inside "
            f"{graphs.whole_launches:,} CUDA graph "
            "executions traced as a whole: the GPU is busy, but its kernels are unknown.",
            "Record the nodes of the graphs: add --cuda-graph-trace=node to nsys profile",
        )


def _migrates(timeline: Timeline, work: pl.DataFrame) -> pl.Series:
    """Mask of the work that is a page migration of managed memory."""
    directions = timeline.trace.copies["direction"].cast(pl.String)
    is_migration = directions.str.starts_with("unified-").fill_null(value=False)
    if not is_migration.any():
        return pl.repeat(False, work.height, dtype=pl.Boolean, eager=True)
    migrates = is_migration.gather(
        pl.select(pl.when(work["kind"] == "copy").then(work["row"]).otherwise(0)).to_series()
    )
    return (work["kind"] == "copy") & migrates


def _managed_memory_note(timeline: Timeline, migrations: pl.DataFrame, window: Window) -> Note:
    moved = int(timeline.trace.copies["bytes"].gather(migrations["row"]).sum())
    migration_ns = total(union(Intervals(migrations["start_ns"].to_numpy(), migrations["end_ns"].to_numpy())))
    share = migration_ns / max(window.duration_ns, 1)
    return Note(
        "managed-memory",
        NoteLevel.WARNING if share > _MIGRATION_SHARE else NoteLevel.INFO,
        f"Managed memory migrates between host and GPU: {migrations.height:,} times, {moved / 1e6:,.1f} MB, for "
        f"{100 * share:.1f} % of the window. What waits for a page is not recorded: kernels last longer, and so does "
        "the host.",
        "Move it ahead of its use (cudaMemPrefetchAsync), or use cudaMalloc and copies",
    )


def _launches(timeline: Timeline, window: Window) -> Iterator[Note]:
    """Notes on managed memory, on unknown launching calls, and on clocks of host and GPU that disagree."""
    work = timeline.work_in(window)
    migrates = _migrates(timeline, work)
    if migrates.any():
        yield _managed_memory_note(timeline, work.filter(migrates), window)
        # No call launches them: host or GPU request a page when they touch it.
        work = work.filter(~migrates)
    known_share = 1 - work["api_row"].null_count() / max(work.height, 1)
    if work.height and not timeline.trace.api_calls.height:
        yield Note(
            "no-api-calls",
            NoteLevel.WARNING,
            "No CUDA API calls were recorded: what launched the work, and why the GPU was idle, is unknown.",
            timeline.trace.capture.recorder.remedies.get("no-api-calls"),
        )
    elif known_share < _COMPLETE_LAUNCH_SHARE:
        yield Note(
            "unknown-launches",
            NoteLevel.WARNING,
            f"The launching API call, and with it range and idle cause, is known for only {100 * known_share:.1f} % of "
            "the GPU work.",
            "Record from the program's start, and look for dropped events in the profiler's messages",
        )
    lead_ns = (work["launch_start_ns"] - work["start_ns"]).drop_nulls()
    early = lead_ns.filter(lead_ns > 0)
    if early.len() > _EARLY_SHARE * lead_ns.len():
        yield Note(
            "clocks-apart",
            NoteLevel.WARNING,
            f"{100 * early.len() / lead_ns.len():.1f} % of the GPU work begins before the call that launched it, by up "
            f"to {largest(early) / 1e3:,.1f} µs: the clocks of host and GPU disagree, and queue times, waits and idle "
            "causes are wrong by as much.",
            "Record again, for a shorter time, and do not change the machine's clock meanwhile",
        )


def _ranges(timeline: Timeline, window: Window) -> Iterator[Note]:
    """Notes on missing ranges, on GPU time outside of ranges, and on ranges of another thread."""
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
    # Work whose launch is not in the profile lies in no known range; `_launches` reports it.
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


def _unrecorded_steps(timeline: Timeline, window: Window) -> Iterator[Note]:
    if lost := timeline.steps.unrecorded:
        numbers = _numbers([step.index for step in lost])
        yield Note(
            "unrecorded-steps",
            NoteLevel.WARNING,
            f"Of {len(timeline.steps.steps)} steps, {numbers} {'have' if len(lost) > 1 else 'has'} no kernels in the "
            "capture, or not all: the steady window leaves them out.",
            "Record again, for a shorter time",
        )


def _steps_without_work(timeline: Timeline, window: Window) -> Iterator[Note]:
    if empty := timeline.steps.without_work:
        yield Note(
            "steps-without-work",
            NoteLevel.INFO,
            f"{empty:,} further {'range' if empty == 1 else 'ranges'} named {timeline.steps.name!r} "
            f"{'holds' if empty == 1 else 'hold'} no GPU work, and count as no steps.",
            "Where they should, record again, for a shorter time",
        )


def _lone_pauses(timeline: Timeline, window: Window) -> Iterator[Note]:
    for pause in timeline.steps.pauses if window.kind == "steady" else ():
        yield Note(
            "lone-pause",
            NoteLevel.INFO,
            f"{pause.told} If it recurs as often, it takes {100 * pause.share:.1f} % of the time.",
            "Record more steps, which shows whether it recurs; --window all counts it",
        )


def _number_of_steps(timeline: Timeline, window: Window) -> Iterator[Note]:
    count = len(window.steps)
    if not count:
        # A user who asked for all of the profile, or for an explicit part, knows that it is not divided into steps.
        asked_for = window.kind in ("all", "explicit")
        yield Note(
            "no-steps",
            NoteLevel.INFO if asked_for else NoteLevel.WARNING,
            "The window has no repeating steps: the numbers may include warm-up, and none is per step.",
            None if asked_for else timeline.trace.capture.recorder.remedies.get("no-steps"),
        )
    elif count < STEPS_FOR_SPREAD:
        yield Note(
            "few-steps",
            NoteLevel.INFO,
            f"The window has {'one step' if count == 1 else f'{count} steps'}: how much steps vary is unknown.",
            f"Record at least {STEPS_FOR_SPREAD} steps after warm-up",
        )


def _unequal_steps(timeline: Timeline, window: Window) -> Iterator[Note]:
    """A note if the steps run different numbers of kernels, in a cycle or not."""
    if not window.steps:
        return
    count, cycle = len(window.steps), timeline.steps.cycle
    work = timeline.work_in(window).select("kind", "process", "start_ns", "end_ns")
    kernels = counts_of_steps(work.filter(pl.col("kind") == "kernel"), window)
    allowed = SAME_KERNELS_SHARE * float(np.median(kernels))
    if int(np.ptp(kernels)) <= allowed:
        return
    # Steps that do more in turn are compared with those at the same place of their cycle.
    if cycle > 1 and max(int(np.ptp(kernels[place::cycle])) for place in range(min(cycle, count))) <= allowed:
        parts = "" if count % cycle == 0 else f" The window holds {count} steps, which are no whole cycles."
        yield Note(
            "steps-in-turn",
            NoteLevel.WARNING if parts else NoteLevel.INFO,
            f"The steps run between {kernels.min():,} and {kernels.max():,} kernels in turn, in cycles of {cycle} "
            f"steps: times per step are means over the steps of a cycle.{parts}",
            f"Choose a window of whole cycles ({cycle} steps)" if parts else None,
        )
    else:
        yield Note(
            "unequal-steps",
            NoteLevel.WARNING,
            f"The steps run between {kernels.min():,} and {kernels.max():,} kernels: they do not do the same work.",
            "Choose a window of equal steps",
        )


def _outside_steps(timeline: Timeline, window: Window) -> Iterator[Note]:
    left_out = _left_out_share(timeline, window) if window.kind == "steady" else 0.0
    if left_out > _LEFT_OUT_SHARE:
        yield Note(
            "work-outside-steps",
            NoteLevel.WARNING,
            f"{100 * left_out:.1f} % of the time in which the GPU works after the warm-up is other work, between the "
            "steps, beside their work in some, or behind them: numbers of the window's steps "
            f"({len(window.steps):,} of {len(timeline.steps.steps):,}) leave it out.",
            "Examine it, too: --window all, or a span such as --window 1s:2s",
        )


def _left_out_share(timeline: Timeline, window: Window) -> float:
    """Share of the work that interrupts the steps or follows them in all work from the first step after the warm-up."""
    left_out = [stretch for stretch in timeline.steps.left_out if stretch.what in ("interruption", "rest")]
    if not left_out or not window.steps:
        return 0.0
    busy = union(*(timeline.busy(device) for device in timeline.work["device"].unique()))
    usual = total(clip(busy, window.start_ns, window.end_ns)) / len(window.steps)
    steps, outside = np.array([step.start_ns for step in timeline.steps.steps]), 0.0
    for stretch in left_out:
        # A step that runs other work beside its own counts without its own.
        within = np.diff(np.searchsorted(steps, (stretch.start_ns, stretch.end_ns)))[0]
        end = stretch.end_ns if stretch.what != "rest" else int(busy.ends[-1])  # work goes on after its last launch
        outside += max(total(clip(busy, stretch.start_ns, end)) - usual * within, 0.0)
    before = [stretch.end_ns for stretch in timeline.steps.left_out if stretch.what in _BEFORE_STEPS]
    begin = max((end for end in before if end <= window.start_ns), default=int(steps[0]))
    return outside / max(total(clip(busy, begin, int(busy.ends[-1]))), 1)


def _numbers(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, those that follow one another as spans: `1–3 and 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return " and ".join("–".join(map(str, span)) for span in spans)


def _profiler(timeline: Timeline, window: Window) -> Iterator[Note]:
    overhead = timeline.trace.profiler_overhead
    overhead_ns = total(union(clip(Intervals.of(overhead), window.start_ns, window.end_ns)))
    share = overhead_ns / window.duration_ns if window.duration_ns > 0 else 0.0
    if share > _OVERHEAD_SHARE:
        yield Note(
            "profiler-overhead",
            NoteLevel.WARNING,
            f"The profiler itself blocked host threads during {100 * share:.1f} % of the window.",
            timeline.trace.capture.recorder.remedies.get("profiler-overhead"),
        )


def _contents(timeline: Timeline, window: Window) -> Iterator[Note]:
    """Notes on kernels of unknown category, and on several GPUs or processes."""
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

    devices, processes = len(timeline.devices_in(window)), work["process"].n_unique()
    if devices > 1 or processes > 1:
        yield Note(
            "several-devices" if devices > 1 else "several-processes",
            NoteLevel.INFO,
            f"GPUs used in the window: {devices}; processes: {processes}. Tables sum over them, time budgets are "
            "per GPU.",
        )


def _shared(timeline: Timeline, window: Window) -> Iterator[Note]:
    for gpu in shared_gpus(timeline, window):
        parts = [f"process {process} for {100 * share:.1f} %" for process, share in gpu.share_by_process.items()]
        yield Note(
            "shared-gpu",
            NoteLevel.WARNING,
            f"Kernels of {len(parts)} processes run on GPU {gpu.device}, in turn or at the same time (time slicing, "
            f"MPS): of the window, {', '.join(parts)}; at the same time for {100 * gpu.together_share:.1f} %. They "
            "slow each other down, times of kernels may include those of the others, and no change is predicted.",
            "Record one process alone. If each has its own GPU (CUDA_VISIBLE_DEVICES), record them one by one",
        )


def _beyond_peak(timeline: Timeline, window: Window) -> Iterator[Note]:
    """A note if matrix products are faster than the GPU's data sheet allows."""
    if not timeline.has_operators:
        return
    from warplens.analysis.roofs import MOST_OF_PEAK
    from warplens.analysis.work.catalogue import operator_work

    modelled = operator_work(timeline, window)
    at_peak_ns = pl.col("flops") / pl.col("peak_flops_per_s") * 1e9
    beyond = modelled.operators.filter((pl.col("family") == "gemm") & (at_peak_ns > MOST_OF_PEAK * pl.col("gpu_ns")))
    beyond_ns = int(beyond["gpu_ns"].sum())
    if beyond_ns <= _BEYOND_PEAK_SHARE * modelled.total_ns:
        return
    needed_ns = float(beyond.select(at_peak_ns.sum()).item())
    names = {device.name for row in beyond["device"].unique() if (device := timeline.trace.capture.device(row))}
    yield Note(
        "beyond-peak",
        NoteLevel.WARNING,
        f"Matrix products in {100 * beyond_ns / modelled.total_ns:.1f} % of the GPU time are "
        f"{needed_ns / beyond_ns:.1f} times as fast as the data sheet of {' and '.join(sorted(names))} allows: the "
        "GPU's name, shapes, formats or sparsity are not what they seem, and numbers about peaks and roofs are wrong.",
        "Name the GPU that ran it (--gpu), and record the shapes of what ran",
    )
