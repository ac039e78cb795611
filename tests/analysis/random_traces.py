"""Traces with work, calls and steps anywhere: apart from each other, touching, or none at all."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from tests.analysis.builders import call, copy, graph, kernel, nvtx, overhead, trace
from warplens.profile import Trace

US = 1_000
GEMM = "ampere_sgemm_128x32_nn"
SOFTMAX = "softmax_warp_forward"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

_NAMES = st.sampled_from([GEMM, NCCL, SOFTMAX, "no_such_kernel"])
_CALLS = st.sampled_from(["cudaLaunchKernel", "cudaMalloc", "cudaDeviceSynchronize", "cudaMemcpy", "cudaGraphLaunch"])
TIME = st.integers(0, 400 * US)
_LENGTH = st.integers(0, 60 * US)


@st.composite
def any_trace(draw: st.DrawFn, devices: tuple[int, ...] = (0,), *, steps: bool = False) -> Trace:
    """A trace of these devices; with steps, apart or touching, or without."""
    ids = st.integers(1, 6)

    def spans(least: int, most: int) -> list[tuple[int, int]]:
        return [(start, start + draw(_LENGTH)) for start in draw(st.lists(TIME, min_size=least, max_size=most))]

    kernels = [
        kernel(
            *span, draw(_NAMES), stream=draw(st.integers(1, 3)), correlation=draw(ids),
            device=draw(st.sampled_from(devices)), grid=(draw(st.integers(1, 2)), 1, 1),
        )
        for span in spans(1, 8)
    ]  # fmt: skip
    api = [call(*span, draw(_CALLS), draw(ids), thread=draw(st.integers(1, 2))) for span in spans(0, 8)]
    edges = sorted(draw(st.lists(TIME, max_size=8, unique=True))) if steps else []
    touching = pairwise(edges) if draw(st.booleans()) else zip(edges[::2], edges[1::2], strict=False)
    return trace(
        kernels,
        api,
        [nvtx(begin, end, "step") for begin, end in touching] if steps else None,
        copies=[copy(*span, correlation=draw(ids)) for span in spans(0, 3)],
        graph_launches=[graph(*span, correlation=draw(ids)) for span in spans(0, 2)],
        profiler_overhead=[overhead(*span) for span in spans(0, 2)],
    )
