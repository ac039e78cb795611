"""The host's pace as sentences: what issuing work costs, where the launching thread's time goes, who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.hostpace import HostPace

__all__ = ["pace_lines"]

#: What the parts of the launching thread's time are called.
_PARTS: Final = {
    "launching": "in launching calls",
    "synchronization": "waiting for the GPU",
    "blocking-copy": "in copies that block",
    "allocation": "in allocator calls",
    "other-cuda": "in other CUDA calls",
    "profiler": "held up by the profiler",
    "outside": "between calls (framework, Python)",
    "stalled": "in long pauses without a call",
}

#: Parts below this share of the window are not worth a word.
_SMALL: Final = 0.01


def pace_lines(pace: HostPace | None) -> Iterator[str]:
    """Two or three sentences about the thread that launches the most; none where no launching call was recorded."""
    if pace is None:
        return
    cost = "" if pace.host_ns_per_launch is None else f", one costs the host {fmt.duration(pace.host_ns_per_launch[1])}"
    standing = (
        f"ahead of the GPU: {fmt.share(1 - pace.behind_share)} of the work found it busy"
        if pace.is_ahead
        else f"behind the GPU: {fmt.share(pace.behind_share)} of the work started as soon as it was launched"
    )
    yield f"host: {fmt.count(pace.launches)} launches, {fmt.rate(pace.per_second)}{cost}; it is {standing}"
    if pace.layer is not None:
        layer = pace.layer
        yield (
            f"a step repeats {fmt.count(layer.launches)} launches {fmt.count(layer.layers)} times; a repetition takes "
            f"the host {fmt.duration(layer.host_ns)}, its kernels the GPU {fmt.duration(layer.gpu_ns)}"
        )
    whole = sum(pace.thread_ns.values())
    parts = sorted(((spent, name) for name, spent in pace.thread_ns.items() if spent >= _SMALL * whole), reverse=True)
    shares = (f"{fmt.share(spent / whole)} {_PARTS.get(name, name.replace('-', ' '))}" for spent, name in parts)
    yield f"time of the launching thread: {', '.join(shares)}"
