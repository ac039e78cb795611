"""Small programs with known costs, as traces: each launch costs the host and the GPU what the test says.

The host issues the launches of a step one after the other, waits for the GPU at the step's end, and then pauses until
the next step begins. A kernel starts `LATENCY` after its call returned, or when the one before it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.analysis.builders import call, copy, graph, kernel, launch, nvtx, overhead, trace
from warplens.analysis.timeline import Timeline
from warplens.compare.difference.host import Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.profile import Trace

US = 1_000

GEMM = "ampere_sgemm_128x32_nn"
SOFTMAX = "softmax_warp_forward"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

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


_NAMES = st.sampled_from([GEMM, NCCL, SOFTMAX, "no_such_kernel"])
_CALLS = st.sampled_from(["cudaLaunchKernel", "cudaMalloc", "cudaDeviceSynchronize", "cudaMemcpy", "cudaGraphLaunch"])
_TIME = st.integers(0, 400 * US)
_LENGTH = st.integers(0, 60 * US)


@st.composite
def any_side(draw: st.DrawFn) -> Side:
    """A side with work, calls and steps anywhere: apart from each other, touching, or none at all."""
    ids = st.integers(1, 6)
    kernels = [
        kernel(
            start,
            start + draw(_LENGTH),
            draw(_NAMES),
            stream=draw(st.integers(1, 3)),
            correlation=draw(ids),
            device=draw(st.sampled_from([0, 0, 0, 1])),
            grid=(draw(st.integers(1, 2)), 1, 1),
        )
        for start in draw(st.lists(_TIME, min_size=1, max_size=8))
    ]
    api = [
        call(start, start + draw(_LENGTH), draw(_CALLS), draw(ids), thread=draw(st.integers(1, 2)))
        for start in draw(st.lists(_TIME, max_size=8))
    ]
    copies = [copy(start, start + draw(_LENGTH), correlation=draw(ids)) for start in draw(st.lists(_TIME, max_size=3))]
    graphs = [graph(start, start + draw(_LENGTH), correlation=draw(ids)) for start in draw(st.lists(_TIME, max_size=2))]
    held = [overhead(start, start + draw(_LENGTH)) for start in draw(st.lists(_TIME, max_size=2))]
    edges = sorted(draw(st.lists(_TIME, max_size=8, unique=True)))
    steps = [nvtx(begin, end, "step") for begin, end in zip(edges[::2], edges[1::2], strict=False)]
    if draw(st.booleans()):
        steps = [nvtx(begin, end, "step") for begin, end in pairwise(edges)]
    profile = trace(kernels, api, steps, copies=copies, graph_launches=graphs, profiler_overhead=held)
    return side(profile, window=draw(st.sampled_from(["all", "steady"])))
