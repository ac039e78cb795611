"""How long an idle GPU takes to start work: the latency of its driver and hardware, from the profile itself."""

from __future__ import annotations

from typing import Final

import numpy as np

from warplens.analysis.frames import once
from warplens.analysis.timeline import Timeline
from warplens.profile.schema import Float64s

#: Of the starts on an idle GPU, this part is taken as not held back by anything else.
_UNDISTURBED: Final = 10
#: The latency varies by less than this: most starts on an idle MI300X lie within 6 % of each other.
_SPREAD: Final = 1.25
#: Of fewer starts none stands for the others.
_LEAST_STARTS: Final = 10


@once
def start_latency_ns(timeline: Timeline) -> float:
    """The most that an idle GPU of this profile takes to start a kernel after its launching call returned.

    From the kernels that were launched when their GPU had nothing left to do. In traces of NVIDIA's GPUs it is at most
    3 µs; of an MI250 it is 7 µs, of an MI300X 30 µs. 0 where the profile has too few such kernels.
    """
    starts = np.concatenate(
        [np.zeros(0), *(_on_idle_gpu(timeline, device) for device in timeline.work["device"].unique().sort())]
    )
    if len(starts) < _LEAST_STARTS:
        return 0.0
    return _SPREAD * float(np.percentile(starts, _UNDISTURBED))


def _on_idle_gpu(timeline: Timeline, device: int) -> Float64s:
    """Time from the return of the call to the start, of each kernel launched after all work before it had ended."""
    work, calls = timeline.work_on(device), timeline.trace.api_calls
    issued, returned = (calls[name].gather(work["api_row"]) for name in ("start_ns", "end_ns"))
    late = (issued >= work["end_ns"].cum_max().shift(1)) & (work["kind"] == "kernel")
    return (work["start_ns"] - returned).filter(late.fill_null(value=False)).to_numpy().astype(np.float64)
