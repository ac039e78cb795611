"""A program and a GPU in miniature, one event at a time: the independent reference of the schedule model.

`run` executes a list of host operations the obvious way, with a clock for the host and one for each stream, and returns
the profile that a lossless profiler would have recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.analysis.builders import call, copy, kernel, nvtx, trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from warplens.profile import Trace

LATENCY_NS = 2_000
GAP_NS = 1_000
LAUNCH_NS = 4_000


@dataclass
class Machine:
    """The clocks and what was recorded so far."""

    host: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def pause(self, time: int) -> None:
        """The host does something without CUDA."""
        self.host += time

    def launch(self, duration: int, stream: int = 7, name: str = "kernel", held: int = LAUNCH_NS) -> None:
        """One kernel, which starts when it has arrived and its stream is free."""
        number = len(self.calls) + 1
        self.calls.append(call(self.host, self.host + held, "cudaLaunchKernel", number))
        self.host += held
        start = self._start(self.host + LATENCY_NS, stream)
        self.streams[stream] = start + duration
        self.kernels.append(kernel(start, start + duration, name, stream=stream, correlation=number))

    def synchronize(self, name: str = "cudaDeviceSynchronize", after: int = 5_000) -> None:
        """The host waits until the GPU has nothing left to do, and `after` longer."""
        back = max(self.host + after, max(self.streams.values(), default=0) + after)
        self.calls.append(call(self.host, back, name, len(self.calls) + 1))
        self.host = back

    def allocate(self, duration: int, name: str = "cudaMalloc") -> None:
        """The host obtains memory, which waits for nothing; a release waits for the GPU."""
        if name == "cudaFree":
            self.synchronize(name, duration)
            return
        self.calls.append(call(self.host, self.host + duration, name, len(self.calls) + 1))
        self.host += duration

    def blocking_copy(self, size: int, duration: int, stream: int = 7) -> None:
        """A copy from pageable memory, which holds the host until it is done."""
        number = len(self.calls) + 1
        begin = self.host
        start = self._start(begin + 3_000, stream)
        self.streams[stream] = start + duration
        self.host = start + duration + 2_000
        self.calls.append(call(begin, self.host, "cudaMemcpyAsync", number))
        self.copies.append(copy(start, start + duration, size=size, stream=stream, correlation=number))

    def async_copy(self, duration: int, held: int, stream: int = 7) -> None:
        """A copy between pinned memory and the device, which the call only issues."""
        number = len(self.calls) + 1
        self.calls.append(call(self.host, self.host + held, "cudaMemcpyAsync", number))
        self.host += held
        start = self._start(self.host + LATENCY_NS, stream)
        self.streams[stream] = start + duration
        self.copies.append(copy(start, start + duration, stream=stream, correlation=number, source="pinned"))

    def launch_graph(self, durations: Sequence[int], held: int, gap: int, stream: int = 7) -> None:
        """One graph of kernels, each starting `gap` after the one before it."""
        number = len(self.calls) + 1
        self.calls.append(call(self.host, self.host + held, "cudaGraphLaunch", number))
        self.host += held
        end = 0
        for node, duration in enumerate(durations):
            start = end + gap if node else self._start(self.host + LATENCY_NS, stream)
            end = start + duration
            self.kernels.append(kernel(start, end, stream=stream, correlation=number, graph_node=node))
        self.streams[stream] = end

    def step(self, operations: Iterable[tuple[Any, ...]]) -> None:
        """One annotated repetition: each operation is a method's name and its arguments."""
        begin = self.host
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
        self.steps.append(nvtx(begin, self.host, "step"))

    def trace(self) -> Trace:
        """The profile."""
        return trace(self.kernels, self.calls, self.steps, copies=self.copies)

    def _start(self, arrival: int, stream: int) -> int:
        return max(arrival, self.streams[stream] + GAP_NS) if stream in self.streams else arrival


def run(operations: Iterable[tuple[Any, ...]], steps: int = 4) -> Trace:
    """A program that does the same in each step."""
    machine = Machine()
    for _ in range(steps):
        machine.step(list(operations))
    return machine.trace()
