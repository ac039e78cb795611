"""Small programs with known costs, as traces: each launch costs the host and the GPU what the test says.

The host issues the launches of a step one after the other, waits for the GPU at the step's end, and then pauses until
the next step begins. A kernel starts `LATENCY` after its call returned, or when the one before it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.analysis.builders import call, kernel, launch, nvtx, trace
from tests.analysis.random_traces import GEMM, US, any_trace
from warplens.analysis.timeline import Timeline
from warplens.compare.side import Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.profile import Trace

#: From the end of a launching call to the begin of its kernel on an idle GPU; time inside the call.
LATENCY = 2 * US
CALL = 4 * US


@dataclass(frozen=True)
class Launch:
    """One launch: `host` from the end of the call before it to the end of its own, `gpu` the kernel's duration."""

    name: str = GEMM
    gpu: int = 2 * US
    host: int = 10 * US
    range: str | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    full_name: str | None = None


def program(
    launches: Sequence[Launch], *, steps: int = 5, pause: int = 0, named: bool = True, file_format: str = "nsys-sqlite"
) -> Trace:
    """A profile of `steps` repetitions of these launches."""
    kernels, api, ranges = [], [], []
    now = gpu_free = 0
    correlation = 0
    for _ in range(steps):
        begin = now
        for item in launches:
            correlation += 1
            opened = now
            now += item.host
            api.append(launch(now - CALL, now, correlation))
            start = max(gpu_free, now + LATENCY)
            gpu_free = start + item.gpu
            kernels.append(
                kernel(
                    start,
                    gpu_free,
                    item.name,
                    correlation=correlation,
                    grid=item.grid,
                    full_name=item.full_name,
                )
            )
            if item.range is not None:
                ranges.append(nvtx(opened, now, item.range))
        correlation += 1
        api.append(call(now, max(gpu_free, now + 1), "cudaDeviceSynchronize", correlation))
        now = max(gpu_free, now + 1)
        if named:
            ranges.append(nvtx(begin, now, "step"))
        now += pause
    return trace(kernels, api, ranges, file_format=file_format)


def side(profile: Trace, name: str = "a", window: str = "steady") -> Side:
    """The profile as one side of a comparison."""
    timeline = Timeline(profile)
    return Side(name, timeline, timeline.window(window))


def settled(profile: Trace, name: str = "a") -> Side:
    """The profile without its first step, before which nobody knows what the host did."""
    one = side(profile, name)
    return side(profile, name, f"{one.window.steps[1].start_ns}:{one.window.end_ns}")


@st.composite
def any_side(draw: st.DrawFn) -> Side:
    """A side with work, calls and steps anywhere, most of it on one device."""
    profile = draw(any_trace((0, 0, 0, 1), steps=True))
    return side(profile, window=draw(st.sampled_from(["all", "steady"])))
