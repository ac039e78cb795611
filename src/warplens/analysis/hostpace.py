"""The pace of the host: what issuing work costs it, where its other time goes, and whether it keeps ahead of the GPU.

The thread that launches the most is the program's critical resource on the host. Its time in the window is split
without remainder into launching calls, other calls by what they do, short pauses (the framework, Python) and long ones.
What a launch costs is the time from one launching call to the next without the time in which something else held the
thread up. A host that is ahead of the GPU has work queued; one that is behind lets each launch start at once, because
the GPU was waiting for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.hostcalls import HOLDING_CAUSES, HostCalls
from warplens.analysis.intervals import Intervals, Owned, clip, measure_before, owned_union, subtract, total, union
from warplens.analysis.launches import PROMPT_START_NS

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["THREAD_PARTS", "HostPace", "LayerPace", "host_pace"]

Int64s = npt.NDArray[np.int64]

#: What a launching thread's time goes into, in the order of presentation.
THREAD_PARTS: Final = (
    "launching",  # inside calls that issue work
    *HOLDING_CAUSES,  # inside calls that hold the thread
    "other-cuda",  # inside other calls
    "profiler",  # held up by the profiler
    "outside",  # short pauses between calls: the framework, Python
    "stalled",  # long ones
)

#: A pattern of launches within a step is a layer if it repeats at least so often …
_LEAST_LAYERS: Final = 3
#: … and together makes up this much of the step's launches.
_LEAST_LAYER_SHARE: Final = 0.25
#: Distances that are tried as the length of a layer; each costs one pass over a step.
_MAX_PERIODS: Final = 16


@dataclass(frozen=True)
class LayerPace:
    """A sequence of launches that repeats within a step, such as the layers of a model.

    Attributes:
        layers: how often it repeats without interruption, in the step that was looked at.
        launches: kernels of one repetition.
        host_ns: median time from the first launch of a layer to that of the next.
        gpu_ns: median time of a layer's kernels on the GPU, summed.
    """

    layers: int
    launches: int
    host_ns: int
    gpu_ns: int


@dataclass(frozen=True)
class HostPace:
    """What the busiest launching thread did in a window.

    Attributes:
        process, thread: whose pace it is.
        launches: calls of it that issued work in the window.
        per_second: those over the window's length.
        host_ns_per_launch: quartiles of the time from one launching call to the next, without what held the thread up
            in between; None with fewer than two launches.
        thread_ns: the window's length split into `THREAD_PARTS`; the parts sum to it.
        queue_mean: pieces of work that were launched and had not started, averaged over time.
        queue_max: the most there were at once.
        queue_empty_share: share of the window in which there were none.
        lead_median_ns: median time from the return of a launching call to the begin of its work.
        behind_share: share of the work that started less than `PROMPT_START_NS` after its call returned: the GPU was
            waiting for it, the host was behind.
        layer: the repeating part of a step; None where nothing repeats.
    """

    process: int
    thread: int
    launches: int
    per_second: float
    host_ns_per_launch: tuple[float, float, float] | None
    thread_ns: dict[str, int]
    queue_mean: float
    queue_max: int
    queue_empty_share: float
    lead_median_ns: float
    behind_share: float
    layer: LayerPace | None

    @property
    def is_ahead(self) -> bool:
        """Whether most work found the GPU busy: then the host does not limit it."""
        return self.behind_share < 0.5


def host_pace(timeline: Timeline, window: Window) -> HostPace | None:
    """The pace of the thread that launched the most work of the window; None where no launching call was recorded."""
    work = timeline.work_in(window).drop_nulls(["api_row", "thread"])
    if not work.height or window.duration_ns <= 0:
        return None
    threads = work.group_by("process", "thread").agg(pl.len().alias("launches"))
    order = ["launches", "process", "thread"]
    process, thread = threads.sort(order, descending=[True, False, False]).row(0)[:2]
    work = work.filter((pl.col("process") == process) & (pl.col("thread") == thread))
    host = HostCalls.of(timeline, process)
    states = host.states(thread)
    issuing = timeline.trace.api_calls.select("start_ns", "end_ns")[work["api_row"].unique().sort()]
    begins = issuing.sort("start_ns")["start_ns"].to_numpy()
    inside = begins[(begins >= window.start_ns) & (begins < window.end_ns)]
    mean, most, empty = _queue(work, window)
    lead = (work["start_ns"] - work["launch_end_ns"]).to_numpy()
    return HostPace(
        process=process,
        thread=thread,
        launches=len(inside),
        per_second=len(inside) / window.duration_ns * 1e9,
        host_ns_per_launch=_cost(begins, states),
        thread_ns=_split(host, thread, states, issuing, window),
        queue_mean=mean,
        queue_max=most,
        queue_empty_share=empty,
        lead_median_ns=float(np.median(lead)),
        behind_share=float(np.mean(lead < PROMPT_START_NS)),
        layer=_layer(timeline, work, window),
    )


def _cost(begins: Int64s, states: dict[str, Intervals]) -> tuple[float, float, float] | None:
    if len(begins) < 2:
        return None
    held = union(
        Intervals(
            np.concatenate([state.starts for state in states.values()]),
            np.concatenate([state.ends for state in states.values()]),
        )
    )
    low, middle, high = np.percentile(np.diff(begins) - np.diff(measure_before(held, begins)), [25, 50, 75])
    return float(low), float(middle), float(high)


def _split(
    host: HostCalls, thread: int, states: dict[str, Intervals], issuing: pl.DataFrame, window: Window
) -> dict[str, int]:
    """The window's time of the thread by what it was inside of; the first of these that holds decides."""
    own = host.thread == thread
    held = states["profiler"]
    calls = subtract(owned_union(host.starts[own], host.ends[own]), held)
    cause = host.cause[own][calls.owner]
    launches = subtract(owned_union(issuing["start_ns"].to_numpy(), issuing["end_ns"].to_numpy()), held)
    parts = {name: _clipped(calls, cause == number, window) for number, name in enumerate(HOLDING_CAUSES, start=1)}
    other = Owned(calls.starts[cause == 0], calls.ends[cause == 0], calls.owner[cause == 0])
    elsewhere = total(clip(_plain(subtract(other, _plain(launches))), window.start_ns, window.end_ns))
    parts["other-cuda"] = elsewhere
    parts["launching"] = _clipped(calls, cause == 0, window) - elsewhere
    parts["profiler"] = total(clip(held, window.start_ns, window.end_ns))
    covered = union(Intervals(np.r_[calls.starts, held.starts], np.r_[calls.ends, held.ends]))
    stalls = states["host"]
    alone = subtract(Owned(stalls.starts, stalls.ends, np.arange(len(stalls.starts))), covered)
    parts["stalled"] = total(clip(_plain(alone), window.start_ns, window.end_ns))
    parts["outside"] = window.duration_ns - sum(parts.values())
    return {name: parts[name] for name in THREAD_PARTS}


def _clipped(pieces: Owned, which: npt.NDArray[np.bool_], window: Window) -> int:
    return total(clip(Intervals(pieces.starts[which], pieces.ends[which]), window.start_ns, window.end_ns))


def _plain(pieces: Owned) -> Intervals:
    return Intervals(pieces.starts, pieces.ends)


def _queue(work: pl.DataFrame, window: Window) -> tuple[float, int, float]:
    """Mean and largest number of pieces of work launched but not started, and the share of time with none."""
    launched = np.minimum(work["launch_end_ns"].to_numpy(), work["start_ns"].to_numpy())
    edges = np.concatenate((launched, work["start_ns"].to_numpy()))
    change = np.repeat(np.array([1, -1], dtype=np.int64), work.height)
    order = np.lexsort((-change, edges))
    depth, times = np.cumsum(change[order]), np.clip(edges[order], window.start_ns, window.end_ns)
    length = np.diff(np.r_[times, window.end_ns])
    leading = int(times[0]) - window.start_ns
    empty = int(length[depth == 0].sum()) + leading
    waiting = int((depth * length).sum())
    return waiting / window.duration_ns, int(depth[length > 0].max(initial=0)), empty / window.duration_ns


def _layer(timeline: Timeline, work: pl.DataFrame, window: Window) -> LayerPace | None:
    """The repeating launches of the step in the middle of the window (of the whole window where it has no steps)."""
    if window.steps:
        step = window.steps[len(window.steps) // 2]
        work = work.filter((pl.col("start_ns") >= step.start_ns) & (pl.col("start_ns") < step.end_ns))
    work = work.filter(pl.col("kind") == "kernel").sort("launch_start_ns", "start_ns")
    codes = timeline.trace.kernels["full_name"].to_physical().gather(work["row"]).to_numpy()
    period, begin, stop = _repetition(codes)
    layers = (stop - begin) // period if period else 0
    if layers < _LEAST_LAYERS or layers * period < _LEAST_LAYER_SHARE * len(codes):
        return None
    rows = slice(begin, begin + layers * period)
    launched = work["launch_start_ns"].to_numpy()[rows][::period]
    spent = (work["end_ns"] - work["start_ns"]).to_numpy()[rows].reshape(layers, period).sum(axis=1)
    return LayerPace(layers, period, int(np.median(np.diff(launched))), int(np.median(spent)))


def _repetition(codes: npt.NDArray[np.generic]) -> tuple[int, int, int]:
    """Period, begin and stop of the longest stretch that repeats itself; (0, 0, 0) for none.

    Where several periods explain stretches of the same length, the shortest is the layer.
    """
    order = np.argsort(codes, kind="stable")
    distances = np.diff(order)[codes[order][1:] == codes[order][:-1]]
    lengths, counts = np.unique(distances, return_counts=True)
    tried = np.sort(lengths[np.argsort(-counts, kind="stable")[:_MAX_PERIODS]]).tolist()
    best = (0, 0, 0)
    for period in tried:
        same = np.r_[False, codes[period:] == codes[:-period], False]
        turns = np.flatnonzero(np.diff(same))
        begins, stops = turns[::2], turns[1::2]
        if not len(begins):
            continue
        longest = int(np.argmax(stops - begins))
        begin, stop = int(begins[longest]), int(stops[longest]) + period
        # Fewer than three kernels are a loop inside of a layer, not the layer.
        if period >= _LEAST_LAYERS and stop - begin >= _LEAST_LAYERS * period and stop - begin > best[2] - best[1]:
            best = (period, begin, stop)
    return best
