"""Where the phases of a step end: CUDA events in the stream, so that nobody has to wait in the middle of a step."""

from __future__ import annotations

import time
from typing import Any

import torch

__all__ = ["Marks", "Stamp", "is_cuda"]


def is_cuda(device: str) -> bool:
    """Whether that is a GPU."""
    return str(torch.device(device).type) == "cuda"


class Stamp:
    """A point in time: on a GPU when its stream gets there, else on the host's clock, now."""

    def __init__(self, device: str) -> None:
        self._event: Any = None
        self._host_ns = 0
        if is_cuda(device):
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        else:
            self._host_ns = time.perf_counter_ns()

    def ns_since(self, earlier: Stamp) -> int:
        """Nanoseconds from an earlier stamp to this one; both must have been reached.

        CUDA events resolve about half a microsecond.
        """
        if self._event is not None:
            milliseconds: float = earlier._event.elapsed_time(self._event)
            return round(milliseconds * 1e6)
        return self._host_ns - earlier._host_ns


class Marks:
    """Told at the end of each phase of a step; whoever measures asks for the times afterwards.

    Args:
        device: where the step runs.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._ends: list[tuple[str, Stamp]] = []

    def begin(self) -> None:
        """A step begins: forget the last one."""
        self._ends = []

    def end(self, phase: str) -> None:
        """A phase ends here; the next one begins."""
        self._ends.append((phase, Stamp(self.device)))

    def phases_ns(self, start: Stamp) -> dict[str, int]:
        """Duration of each phase of the last step, from the step's start on; the device must be done with it."""
        durations: dict[str, int] = {}
        for phase, stamp in self._ends:
            durations[phase] = durations.get(phase, 0) + stamp.ns_since(start)
            start = stamp
        return durations
