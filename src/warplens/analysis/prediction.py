"""Predicted step times under a change: model results, with the model's own error.

The window's schedule (`warplens.analysis.recorder`) is replayed once unchanged, which shows how far the model can be
trusted, and once for each change that affects it. A change alters the host's part: it removes waits, pauses or the cost
of calls. GPU work keeps its measured duration; only copies that leave pageable memory become faster. The overlap that
results follows from the replay: removing one cause uncovers the next, so the gains of two changes do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import polars as pl

from warplens.analysis.hostpace import ALLOCATION, BLOCKING_COPY, SMALL_COPY_BYTES, SYNCHRONIZATION
from warplens.analysis.intervals import Intervals, total, union
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.replay import (
    DEFAULT_LATENCY_NS,
    GRAPH_GAP_NS,
    GRAPH_LAUNCH_NS,
    RecordedSchedule,
    Replayed,
    Schedule,
    as_graphs,
    replay,
    replayed_ns,
    without_profiler,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile import Device
from warplens.profile.schema import Bools, Int64s

# --- Changes to a schedule ---


Change = Literal[
    "free-launches",
    "cuda-graph",
    "no-synchronization",
    "async-copies",
    "overlapped-copies",
    "cached-allocation",
    "no-host-stall",
]

#: Change → description, in one sentence for people.
CHANGES: Final[dict[Change, str]] = {
    "free-launches": "issuing and starting work costs nothing; waits, allocations, blocking copies and stalls stay",
    "cuda-graph": "what a step launches between two waits of the host is launched by one CUDA graph",
    "no-synchronization": "the host waits for the GPU only at the end",
    "async-copies": "copies to and from pageable memory use pinned memory and do not hold the host",
    "overlapped-copies": "large copies between host and device run from pinned memory, on streams of their own",
    "cached-allocation": "memory comes from a cache: allocations and releases cost nothing and wait for nothing",
    "no-host-stall": "the host's long pauses outside of CUDA do not happen (input prefetched, work moved elsewhere)",
}

#: Remaining duration of a call that no longer waits or allocates: a call into the driver that finds its work done.
_SHORT_CALL_NS: Final = 2_000
#: Copies from this size on show the rate of the link; smaller ones show its latency.
_RATE_BYTES: Final = 1 << 20
#: Pinned copies over PCIe x16 by the GPU's compute capability, where the window holds none: generation 5 from Hopper
#: on (55 GB/s measured on the H200), 4 for Ampere and Ada, 3 before. Bytes per nanosecond.
_LINK_RATES: Final = (((9, 0), 50.0), ((8, 0), 24.0), ((0, 0), 12.0))


#: Changes of how data is copied.
_COPY_CHANGES: Final = frozenset({"async-copies", "overlapped-copies"})

_WORK_STAYS: Final = "the work itself takes as long as measured"


@dataclass(frozen=True, eq=False)
class Changed:
    """A changed schedule and its assumptions."""

    schedule: Schedule
    assumptions: tuple[str, ...]


def apply(changes: Sequence[str], recorded: RecordedSchedule, devices: Sequence[Device]) -> Changed | None:
    """The schedule under these changes together; None where they would alter nothing."""
    assumptions: dict[str, None] = {}
    altered = False
    # A graph captures the remaining calls, so it comes after the changes that remove some.
    for change in sorted(changes, key=lambda change: change == "cuda-graph"):
        if (changed := _APPLY[change](recorded, devices)) is not None:
            recorded, altered = replace(recorded, schedule=changed.schedule), True
            assumptions |= dict.fromkeys(changed.assumptions)
    return Changed(recorded.schedule, tuple(assumptions)) if altered else None


def one_way(recorded: RecordedSchedule, direction: str) -> RecordedSchedule:
    """The schedule in which changes find only the copies in this direction, and calls that block for them."""
    others = (recorded.direction != direction).fill_null(value=False)
    cause, calls = recorded.cause.copy(), recorded.schedule.call[others.to_numpy()]
    cause[calls[cause[calls] == BLOCKING_COPY]] = SYNCHRONIZATION
    return replace(recorded, cause=cause, direction=recorded.direction.set(others, None))


def without_stalls_in(recorded: RecordedSchedule, spans: Intervals) -> RecordedSchedule:
    """The schedule in which changes do not find the host's long pauses that end in one of these disjoint spans."""
    begun = np.searchsorted(spans.starts, recorded.called_ns, side="right")
    is_inside = begun > np.searchsorted(spans.ends, recorded.called_ns, side="left")
    return replace(recorded, stall_ns=np.where(is_inside, 0, recorded.stall_ns))


def _free_launches(recorded: RecordedSchedule, _: Sequence[Device]) -> Changed | None:
    schedule = recorded.schedule
    is_issuing = (recorded.cause == 0) & (schedule.waits_for < 0)
    if not (is_issuing & recorded.issues).any():
        return None
    held = np.where(is_issuing, 0, schedule.held_ns)
    pause = recorded.lasting_stall_ns
    pause[0] = schedule.pause_ns[0]
    changed = replace(
        schedule,
        held_ns=held,
        pause_ns=pause,
        offset_ns=np.where(is_issuing[schedule.call], 0, schedule.offset_ns),
        gap_ns=np.minimum(schedule.gap_ns, 0),
    )
    return Changed(changed, (_WORK_STAYS, "a bound, not a remedy: no program issues work at no cost"))


def _cuda_graph(recorded: RecordedSchedule, _: Sequence[Device]) -> Changed | None:
    graphs_schedule = as_graphs(recorded)
    if graphs_schedule is None:
        return None
    schedule, launches, graphs = graphs_schedule
    steps = recorded.window.step_count
    if steps:
        scope = f"{launches / steps:,.0f} launches per step become {_count(graphs / steps)}"
    else:
        scope = f"{launches:,} launches become {_count(graphs)} (no steps were found)"
    return Changed(
        schedule,
        (
            _WORK_STAYS,
            scope,
            "the program can be captured: fixed shapes and addresses, no decision on the host that depends on results",
            f"launching a graph takes {GRAPH_LAUNCH_NS // 1000} µs, and its nodes follow at {GRAPH_GAP_NS / 1000:g} µs",
        ),
    )


def _no_synchronization(recorded: RecordedSchedule, _: Sequence[Device]) -> Changed | None:
    schedule = recorded.schedule
    waits = (recorded.cause == SYNCHRONIZATION) & (schedule.waits_for >= 0)
    # Where the program marks its steps, a wait for the whole device at their end is intended.
    ends_step = _ends_step(recorded) & recorded.whole_device & recorded.marked
    dropped = waits & ~ends_step & ~_after_copy(recorded)
    if not dropped.any():
        return None
    assumptions = [_WORK_STAYS, "nothing that the host does next depends on the values that it waited for"]
    if (waits & ends_step).any():
        assumptions.append("the wait for the whole device at the end of each step stays")
    return Changed(without_waits(recorded, dropped), tuple(assumptions))


def _async_copies(recorded: RecordedSchedule, devices: Sequence[Device]) -> Changed | None:
    """The schedule if blocking copies used pinned memory and did not block; None if no copy blocks."""
    schedule = recorded.schedule
    blocking = recorded.cause == BLOCKING_COPY
    if not blocking.any():
        return None
    changed = without_waits(recorded, blocking | _after_copy(recorded))
    duration, rate_notes = schedule.duration_ns.copy(), []
    pageable = blocking[schedule.call] & (recorded.bytes > 0)
    for direction in np.unique(recorded.direction.to_numpy()[pageable].astype(str)):
        of_kind = (recorded.direction == direction).fill_null(value=False).to_numpy()
        rows = np.flatnonzero(pageable & of_kind)
        pinned_examples = of_kind & recorded.pinned & (recorded.bytes >= _RATE_BYTES) & (schedule.duration_ns > 0)
        if pinned_examples.any():
            rate = float(np.median(recorded.bytes[pinned_examples] / schedule.duration_ns[pinned_examples]))
            rate_notes.append(f"{direction} copies run at {rate:.0f} GB/s, as pinned copies of this window do")
        else:
            rate = _link_rate(devices, recorded.device)
            rate_notes.append(
                f"{direction} copies run at {rate:.0f} GB/s, as usual for this generation of GPU over PCIe x16"
            )
        duration[rows] = np.minimum(duration[rows], np.round(recorded.bytes[rows] / rate).astype(np.int64))
    return Changed(
        replace(changed, duration_ns=duration),
        (
            *rate_notes,
            "copies stay in order with the kernels of their stream; on one of their own they could hide behind kernels",
            "what is copied to the host is read only after a later wait",
        ),
    )


def _overlapped_copies(recorded: RecordedSchedule, devices: Sequence[Device]) -> Changed | None:
    """The schedule if large copies ran beside the kernels, on streams of their own; None without large copies."""
    large = _large_copies(recorded)
    if not large.any():
        return None
    pinned = _async_copies(recorded, devices)
    schedule = recorded.schedule if pinned is None else pinned.schedule
    schedule = without_waits(replace(recorded, schedule=schedule), _after_copy(recorded))
    _, direction_of = np.unique(recorded.direction.filter(pl.Series(large)).to_numpy().astype(str), return_inverse=True)
    stream = schedule.stream.copy()
    stream[large] = len(schedule.ready_ns) + direction_of
    ready_times = np.full(int(direction_of.max()) + 1, recorded.window.start_ns, dtype=np.int64)
    independent = large | (large[schedule.after] & (schedule.after >= 0))
    after = np.where(independent, -1, schedule.after)
    _await_link(recorded.last_work, large, direction_of, schedule.duration_ns, after)
    changed = replace(
        schedule,
        stream=stream,
        after=after,
        after_gap_ns=np.where(independent, 0, schedule.after_gap_ns),
        ready_ns=np.r_[schedule.ready_ns, ready_times],
    )
    rates = () if pinned is None else tuple(text for text in pinned.assumptions if "GB/s" in text)
    return Changed(
        changed, (*rates, "each copy is issued early enough: inputs a step ahead, results fetched while the next runs")
    )


def _await_link(last: int, large: Bools, direction: Int64s, duration: Int64s, after: Int64s) -> None:
    """Make the begin of the next step (`last`, which ends the window) wait for the copies of the busier direction.

    Copies that run ahead of their steps hide behind kernels, but the link still limits how much a step can move.

    Args:
        large: which work is such a copy; `direction` and its time are those of the copies in order.
        after: the work that each piece waits for, −1 for none; changed in place.
    """
    if last < 0 or large[last] or after[last] >= 0:
        return
    copies = np.flatnonzero(large)
    inside = copies < last
    if inside.any():
        ns_by_direction = np.bincount(direction[inside], duration[copies[inside]])
        after[last] = copies[inside & (direction == int(np.argmax(ns_by_direction)))][-1]


def _cached_allocation(recorded: RecordedSchedule, _: Sequence[Device]) -> Changed | None:
    schedule = recorded.schedule
    allocates = recorded.cause == ALLOCATION
    if not allocates.any():
        return None
    # Memory from a cache needs no call.
    changed = replace(
        schedule,
        held_ns=np.where(allocates, 0, schedule.held_ns),
        waits_for=np.where(allocates, -1, schedule.waits_for),
        return_ns=np.where(allocates, 0, schedule.return_ns),
    )
    return Changed(changed, (_WORK_STAYS, "the memory needed fits in the cache"))


def _no_host_stall(recorded: RecordedSchedule, _: Sequence[Device]) -> Changed | None:
    schedule = recorded.schedule
    if not recorded.stall_ns.any():
        return None
    ordinary_pauses = schedule.pause_ns[recorded.stall_ns == 0]
    ordinary_pause = int(np.median(ordinary_pauses)) if len(ordinary_pauses) else 0
    stalled = recorded.stall_ns > 0
    pause = np.where(
        stalled,
        schedule.pause_ns - recorded.stall_ns + np.minimum(ordinary_pause, recorded.stall_ns),
        schedule.pause_ns,
    )
    return Changed(
        replace(schedule, pause_ns=pause),
        (_WORK_STAYS, "what the host did in those pauses can be done ahead of time, on another thread or process"),
    )


_APPLY: Final[dict[str, Callable[[RecordedSchedule, Sequence[Device]], Changed | None]]] = {
    "free-launches": _free_launches,
    "cuda-graph": _cuda_graph,
    "no-synchronization": _no_synchronization,
    "async-copies": _async_copies,
    "overlapped-copies": _overlapped_copies,
    "cached-allocation": _cached_allocation,
    "no-host-stall": _no_host_stall,
}


def without_waits(recorded: RecordedSchedule, calls: Bools) -> Schedule:
    """The schedule in which these calls neither wait nor take longer than a short call."""
    schedule = recorded.schedule
    held = np.where(calls, np.minimum(schedule.held_ns, _SHORT_CALL_NS), schedule.held_ns)
    # A call that blocked the host issued its work somewhere inside; a short one issues it like other calls.
    offset = np.where(calls[schedule.call], held[schedule.call] + DEFAULT_LATENCY_NS, schedule.offset_ns)
    return replace(
        schedule,
        held_ns=held,
        waits_for=np.where(calls, -1, schedule.waits_for),
        return_ns=np.where(calls, 0, schedule.return_ns),
        offset_ns=np.minimum(offset, schedule.offset_ns),
    )


def _ends_step(recorded: RecordedSchedule) -> Bools:
    """Mask of the calls after the last work of a step and before the first of the next."""
    issues = np.flatnonzero(recorded.issues)
    following = np.searchsorted(issues, np.arange(len(recorded.step)), side="left")
    last = following == len(issues)
    next_step = recorded.step[issues[np.minimum(following, len(issues) - 1)]]
    ends: Bools = last | (next_step > recorded.step)
    return ends


def _after_copy(recorded: RecordedSchedule) -> Bools:
    """Mask of the waits that only complete the large copy to or from the host issued by the call before them."""
    schedule, large = recorded.schedule, _large_copies(recorded)
    copies = np.zeros(len(schedule.pause_ns), dtype=np.bool_)
    copies[schedule.call[large]] = True
    follows: Bools = (recorded.cause == SYNCHRONIZATION) & np.r_[False, copies[:-1]] & ~recorded.whole_device
    return follows


def _large_copies(recorded: RecordedSchedule) -> Bools:
    """Mask of the copies between host and device whose duration is that of the transfer."""
    between = recorded.direction.is_in(["host-to-device", "device-to-host"]).fill_null(value=False).to_numpy()
    large: Bools = between & (recorded.bytes > SMALL_COPY_BYTES)
    return large


def _works_on_results(recorded: RecordedSchedule) -> bool:
    """Whether all large copies are short, fetch results, and are followed by the host's work on these.

    Copied in another way, only that work would run beside the GPU, which is what `no-host-stall` predicts.
    """
    large = _large_copies(recorded)
    if not large.any() or (recorded.direction.filter(pl.Series(large)) != "device-to-host").any():
        return False
    calls = np.unique(recorded.schedule.call[large])
    waits = np.r_[recorded.cause == SYNCHRONIZATION, False, False]
    stalls = np.r_[recorded.stall_ns > 0, True, True]  # what ends the window may be such work
    works = stalls[calls + 1] | (waits[calls + 1] & stalls[calls + 2])
    copied_ns = int(recorded.schedule.duration_ns[large].sum())
    return bool(works.all()) and copied_ns < _LEAST_EFFECT * recorded.window.duration_ns


def _link_rate(devices: Sequence[Device], device: int) -> float:
    """Bytes per nanosecond of pinned copies over the GPU's link, by its generation."""
    capability = next((known.compute_capability for known in devices if known.ordinal == device), None)
    return next(rate for since, rate in _LINK_RATES if (capability or (8, 0)) >= since)


def _count(graphs: float) -> str:
    return "1 graph" if round(graphs) == 1 else f"{graphs:,.0f} graphs"


# --- Predictions ---

#: Smaller effects are within the error of the model and the spread of the steps.
_LEAST_EFFECT: Final = 0.005
#: Limits of the error on the unchanged schedule: the replay cannot predict what it cannot reproduce.
_HIGH_CONFIDENCE_ERROR, _MEDIUM_CONFIDENCE_ERROR, LARGEST_ERROR = 0.03, 0.10, 0.25

#: Of longer windows, this much work in whole steps from their middle is replayed: hundreds of steps of most programs,
#: each much like the next.
_REPLAYED_WORK: Final = 60_000


@dataclass(frozen=True)
class Prediction:
    """The modelled effect of changes on the time of a step. Never to be shown as a measurement."""

    change: str  #: one of `CHANGES`, or several of them joined by commas
    measured_ns: int  #: wall time of a step (of the window where no steps were found)
    predicted_ns: int  #: the same under the change
    speedup: float  #: `measured_ns / predicted_ns`
    model_error: float  #: relative difference between the replay of the unchanged schedule and the measurement
    how: str  #: one sentence for people
    assumptions: tuple[str, ...]  #: conditions for the prediction to come true

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """Confidence in the model for this program, by how well it reproduces the measurement."""
        if self.model_error <= _HIGH_CONFIDENCE_ERROR:
            return "high"
        return "medium" if self.model_error <= _MEDIUM_CONFIDENCE_ERROR else "low"


def predictions(
    timeline: Timeline,
    window: Window,
    step_ns: float | None = None,
    *,
    together: Sequence[str] = (),
) -> tuple[Prediction, ...]:
    """The modelled step time under each change that would make the window faster, the fastest first.

    Where several processes or devices worked, predictions are about the one with the most work. There are none without
    API calls, for a single range, on a GPU that several processes use, or where the replay of the unchanged schedule is
    more than a quarter off.

    Args:
        step_ns: duration of a step without a profiler, where it was timed; predictions are then about the program
            without a profiler (`warplens.analysis.recorder`), else about the profiled one.
        together: changes made at once, as one more prediction; its `change` names them joined by commas. Gains do not
            add up: one change may remove a cost that another uncovers.

    Raises:
        UsageError: there is no change of such a name.
    """
    if unknown := [change for change in together if change not in CHANGES]:
        raise UsageError(f"there is no change {unknown[0]!r} to predict; choose among {', '.join(CHANGES)}")
    full_window, window = window, excerpt(timeline, window)
    recorded = recorded_schedule(timeline, window)
    if recorded is None or window.duration_ns <= 0:
        return ()
    steps = max(window.step_count, 1)
    measured = window.duration_ns
    as_recorded = replay(recorded.schedule)
    unchanged, overlap_ns = recorded.duration_ns(as_recorded), _overlap_ns(as_recorded)
    error = abs(unchanged - measured) / measured
    if error > LARGEST_ERROR:
        return ()
    common_assumptions: tuple[str, ...] = ()
    if step_ns is not None:
        measured = round(step_ns * steps)
        recorded = without_profiler(recorded, measured)
        unchanged = replayed_ns(recorded)
        common_assumptions = ("without a profiler only the host is faster",)
    if window is not full_window:
        first, last = window.steps[0].index, window.steps[-1].index
        common_assumptions += (f"modelled on steps {first}–{last}; the others are like them",)
    results = []
    change_sets = dict.fromkeys([*((change,) for change in CHANGES), *((tuple(together),) if together else ())])
    works_on_results = _works_on_results(recorded)
    for changes in change_sets:
        changed = apply(changes, recorded, timeline.trace.capture.devices)
        if changed is None or (works_on_results and _COPY_CHANGES.issuperset(changes)):
            continue
        replayed = replay(changed.schedule)
        predicted = recorded.duration_ns(replayed)
        if step_ns is not None and measured < unchanged:
            predicted = round(predicted * measured / unchanged)  # the GPU itself was faster without the profiler
        if predicted >= min(unchanged * (1 - _LEAST_EFFECT), measured):
            continue
        assumptions = (*changed.assumptions, *common_assumptions)
        more_overlap_ns = _overlap_ns(replayed) - overlap_ns
        if more_overlap_ns > _LEAST_EFFECT * predicted and "overlapped-copies" not in changes:
            longer = f"{more_overlap_ns / steps / 1e6:,.2f} ms longer" + " per step" * bool(window.step_count)
            assumptions += (f"streams run side by side for {longer} than in the profile",)
        results.append(
            Prediction(
                change=",".join(changes),
                measured_ns=int(measured // steps),
                predicted_ns=max(int(predicted // steps), 1),
                speedup=measured / max(predicted, 1),
                model_error=error,
                how="; ".join(CHANGES[change] for change in changes),
                assumptions=assumptions,
            )
        )
    return tuple(sorted(results, key=lambda prediction: prediction.predicted_ns))


def _overlap_ns(replayed: Replayed) -> int:
    """How much longer all work together runs than the GPU is busy."""
    intervals = Intervals(replayed.starts, replayed.ends)
    return total(intervals) - total(union(intervals))


def excerpt(timeline: Timeline, window: Window) -> Window:
    """The window, or whole steps (whole cycles of them) from its middle where it holds too much work to replay."""
    work, cycle = timeline.work_in(window).height, timeline.steps.cycle
    kept_steps = max(1, len(window.steps) * _REPLAYED_WORK // max(work, 1))
    kept_steps -= kept_steps % cycle if kept_steps > cycle else 0
    if kept_steps >= len(window.steps) or work <= _REPLAYED_WORK:
        return window
    first = (len(window.steps) - kept_steps) // 2
    steps = window.steps[first : first + kept_steps]
    return replace(window, start_ns=steps[0].start_ns, end_ns=steps[-1].end_ns, steps=steps, cut_steps=0.0)
