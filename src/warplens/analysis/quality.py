"""Quality notes: what a profile cannot tell, and what makes its numbers doubtful. Every report opens with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.abortedsteps import aborted_steps
from warplens.analysis.apikinds import OUT_OF_MEMORY, api_kinds
from warplens.analysis.categories import categories_of
from warplens.analysis.graphs import graph_summary
from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.launches import count_per_step
from warplens.analysis.operators import operator_coverage
from warplens.analysis.ranges import range_coverage
from warplens.profile import Note, NoteLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["quality_notes"]

#: Every launch has its API call in a complete capture; a few at the edges of the recording may miss theirs.
_COMPLETE_LAUNCH_SHARE: Final = 0.99

#: Work outside of all ranges is normal around a loop; beyond this share of the GPU time, tables by range mislead.
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


#: Format of the PyTorch profiler's traces.
_PYTORCH: Final = "kineto-json"

#: Less of the backward pass linked to forward operators than this is worth knowing.
_LINKED_SHARE: Final = 0.95

#: What to do about a note, for profiles of the PyTorch profiler and for others.
_REMEDIES: Final = {
    "no-api-calls": (
        "Record them as well: ProfilerActivity.CPU and ProfilerActivity.CUDA together",
        "Record them as well: nsys profile --trace=cuda,nvtx",
    ),
    "no-ranges": (
        "Record the CPU side, too (ProfilerActivity.CPU), and put torch.profiler.record_function around parts of it",
        "Add ranges (torch.cuda.nvtx.range, or PyTorch's emit_nvtx) and trace them: nsys profile --trace=cuda,nvtx",
    ),
    "no-steps": (
        "Call profiler.step() after each step, or name a window",
        "Put a range around each step, torch.cuda.nvtx.range('step') for example, or name a window",
    ),
    "profiler-overhead": (
        "Record fewer things at once (no with_stack, no profile_memory), or choose a window after its start",
        "Record fewer things at once (no CPU sampling, no backtraces), or choose a window after its start",
    ),
}

_WORST_FIRST: Final = {NoteLevel.BLOCKING: 0, NoteLevel.WARNING: 1, NoteLevel.INFO: 2}


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
            _unknown_launches,
            _ranges,
            _backward,
            _steps,
            _profiler,
            _categories,
            _devices,
        ):
            found.extend(check(timeline, window))
    # An analysis knows more about a matter that the reader noticed, too: what it means for the window.
    codes = {note.code for note in found}
    noticed = [note for note in timeline.trace.capture.notes if note.code not in codes]
    return tuple(sorted([*noticed, *found], key=lambda note: _WORST_FIRST[note.level]))


def _remedy(timeline: Timeline, code: str) -> str:
    of_pytorch, of_others = _REMEDIES[code]
    return of_pytorch if timeline.trace.capture.format == _PYTORCH else of_others


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
        f"{which} did not finish ({reasons}): such times are not those of a training step.",
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
            "Check that the program got through; PyTorch frees its cache and tries again, which costs time",
        )


def _hidden_graphs(timeline: Timeline, window: Window) -> Iterator[Note]:
    graphs = graph_summary(timeline, window)
    if graphs.hidden_share:
        yield Note(
            "graph-level-tracing",
            NoteLevel.WARNING if graphs.hidden_share > _HIDDEN_SHARE else NoteLevel.INFO,
            f"{100 * graphs.hidden_share:.1f} % of the GPU's busy time lies inside "
            f"{graphs.whole_launches:,} CUDA graph "
            "executions traced as a whole: busy, but with unknown kernels.",
            "Record the nodes of the graphs: add --cuda-graph-trace=node to nsys profile",
        )


def _unknown_launches(timeline: Timeline, window: Window) -> Iterator[Note]:
    work = timeline.work_in(window)
    if not work.height:
        return
    if not timeline.trace.api_calls.height:
        yield Note(
            "no-api-calls",
            NoteLevel.WARNING,
            "No CUDA API calls were recorded: who launched the work, and why the GPU was idle, is unknown.",
            _remedy(timeline, "no-api-calls"),
        )
        return
    known = 1 - work["api_row"].null_count() / work.height
    if known < _COMPLETE_LAUNCH_SHARE:
        yield Note(
            "unknown-launches",
            NoteLevel.WARNING,
            f"The launching API call is known for {100 * known:.1f} % of the GPU work only, "
            "and so are ranges and idle causes.",
            "Record from the program's start, and look for dropped events in the profiler's messages",
        )


def _ranges(timeline: Timeline, window: Window) -> Iterator[Note]:
    if not timeline.trace.ranges.height:
        yield Note(
            "no-ranges",
            NoteLevel.WARNING,
            "No annotated ranges were recorded: GPU time cannot be attributed to steps, phases or layers.",
            _remedy(timeline, "no-ranges"),
        )
        return
    coverage = range_coverage(timeline, window)
    if not coverage.total_ns:
        return
    outside = coverage.unattributed_ns / coverage.total_ns
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
            "own (autograd's, for one) and is counted in the range that another thread of the process held open.",
        )


def _backward(timeline: Timeline, window: Window) -> Iterator[Note]:
    if not timeline.has_operators:
        return
    coverage = operator_coverage(timeline, window)
    linkable = coverage.backward_ns - coverage.accumulation_ns
    if linkable and coverage.linked_ns < _LINKED_SHARE * linkable:
        yield Note(
            "unlinked-backward",
            NoteLevel.INFO,
            f"{100 * coverage.linked_ns / linkable:.1f} % of the backward pass's GPU time is linked to the forward "
            "operators that it belongs to; the rest is counted where it was launched.",
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
            "The window has no repeating steps: warm-up may be part of the numbers, and none of them is per step.",
            None if asked_for else _remedy(timeline, "no-steps"),
        )
        return
    if count < _STEPS_FOR_SPREAD:
        yield Note(
            "few-steps",
            NoteLevel.INFO,
            f"The window has {'one step' if count == 1 else f'{count} steps'}: how much steps vary cannot be known.",
            f"Record at least {_STEPS_FOR_SPREAD} steps after warm-up",
        )
    kernels = count_per_step(timeline.work_in(window).filter(pl.col("kind") == "kernel"), window)
    if kernels is not None and kernels.max - kernels.min > _SAME_KERNELS_SHARE * kernels.median:
        yield Note(
            "unequal-steps",
            NoteLevel.WARNING,
            f"The steps run between {kernels.min:,} and {kernels.max:,} kernels: they do not repeat the same work.",
            "Choose a window of equal steps",
        )


def _profiler(timeline: Timeline, window: Window) -> Iterator[Note]:
    overhead = timeline.trace.profiler_overhead
    held = Intervals(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy())
    spent = total(union(clip(held, window.start_ns, window.end_ns)))
    share = spent / window.duration_ns if window.duration_ns > 0 else 0.0
    if share > _OVERHEAD_SHARE:
        yield Note(
            "profiler-overhead",
            NoteLevel.WARNING,
            f"The profiler itself held host threads up during {100 * share:.1f} % of the window.",
            _remedy(timeline, "profiler-overhead"),
        )


def _categories(timeline: Timeline, window: Window) -> Iterator[Note]:
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
            f"{100 * share:.1f} % of the GPU time is spent in kernels whose names fit no category.",
        )


def _devices(timeline: Timeline, window: Window) -> Iterator[Note]:
    work = timeline.work_in(window)
    devices, processes = work["device"].n_unique(), work["process"].n_unique()
    if devices > 1 or processes > 1:
        yield Note(
            "several-devices" if devices > 1 else "several-processes",
            NoteLevel.INFO,
            f"GPUs that worked in the window: {devices}; processes: {processes}. "
            "Tables add them up, time budgets are per GPU.",
        )
