"""A machine of one host thread and one GPU, to run small programs on whose lost time is planted and so known.

    machine = Machine()
    for _ in range(5):
        with machine.step():
            machine.launch(20 * US)
            machine.wait()
    machine.trace()

The host issues work at its own pace; the GPU runs it in order, each piece a little after it was launched and never
before the one in front of it. Everything is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.analysis.builders import Row, call, copy, graph, kernel, launch, memset, nvtx, trace
from warplens.profile import Device, Trace

US = 1_000
MS = 1_000_000

#: Names as the libraries give them, so that categories, formats and units are read as in real profiles.
BF16_GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN"
FP32_GEMM = "ampere_sgemm_128x64_tn"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int)"
)
ADDCDIV = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::addcdiv_cuda_kernel>>(int)"
)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

#: What one launch costs the host: the call, and Python around it.
CALL_NS, PYTHON_NS = 4 * US, 4 * US

#: An idle GPU starts work this long after its launch returned; behind other work, this long after that.
START_NS, BETWEEN_NS = 2 * US, 1 * US

H200 = Device(ordinal=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132)
FULL_GRID = (1056, 1, 1)


@dataclass
class Machine:
    """The clocks of host and GPU, and what happened so far."""

    python_ns: int = PYTHON_NS
    between_ns: int = BETWEEN_NS
    device: Device | None = H200
    host: int = 0
    gpu: int = 0
    count: int = 0
    kernels: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    copies: list[Row] = field(default_factory=list)
    memsets: list[Row] = field(default_factory=list)
    graphs: list[Row] = field(default_factory=list)
    ranges: list[Row] = field(default_factory=list)

    def launch(
        self, duration: int, name: str = BF16_GEMM, grid: tuple[int, int, int] = FULL_GRID, times: int = 1
    ) -> None:
        """Kernels of this length, one after the other."""
        for _ in range(times):
            self._issue("cudaLaunchKernel")
            start, end = self._run(duration)
            short = re.split(r"[<(]", name, maxsplit=1)[0].rpartition("::")[2].removeprefix("void ")
            self.kernels.append(kernel(start, end, short, correlation=self.count, full_name=name, grid=grid))

    def graph(self, duration: int) -> None:
        """One CUDA graph, traced as a whole."""
        self._issue("cudaGraphLaunch")
        start, end = self._run(duration)
        self.graphs.append(graph(start, end, correlation=self.count))

    def copy(self, duration: int, size: int, direction: str = "host-to-device", *, pinned: bool) -> None:
        """A copy; from pageable memory it holds the host until it is done."""
        self._issue("cudaMemcpyAsync")
        start, end = self._run(duration)
        kinds = ["pinned" if pinned else "pageable", "device"]
        source, target = kinds if direction == "host-to-device" else kinds[::-1]
        if direction == "device-to-device":
            source = target = "device"
        self.copies.append(copy(start, end, direction, size, correlation=self.count, source=source, destination=target))
        if not pinned:
            self.host = max(self.host, end)
            self.calls[-1] = {**self.calls[-1], "end_ns": self.host}

    def clear(self, duration: int) -> None:
        """`cudaMemsetAsync`."""
        self._issue("cudaMemsetAsync")
        start, end = self._run(duration)
        self.memsets.append(memset(start, end, correlation=self.count))

    def wait(self, *, whole_device: bool = False) -> None:
        """`cudaStreamSynchronize`, or `cudaDeviceSynchronize`: until the GPU has done all."""
        name = "cudaDeviceSynchronize" if whole_device else "cudaStreamSynchronize"
        self._hold(name, max(self.gpu + 2 * US - self.host, 3 * US))

    def item(self) -> None:
        """`tensor.item()`: four bytes to pageable memory, and a wait."""
        self.copy(1 * US, 4, "device-to-host", pinned=False)
        self.wait()

    def allocate(self, duration: int) -> None:
        """`cudaMalloc`: the host is held, and the GPU gets nothing new."""
        self._hold("cudaMalloc", duration)

    def free(self, duration: int) -> None:
        """`cudaFree`: waits for the GPU, too."""
        self._hold("cudaFree", max(self.gpu - self.host, 0) + duration)

    def think(self, duration: int) -> None:
        """The host does something else, with no CUDA call."""
        self.host += duration

    @contextmanager
    def step(self) -> Iterator[None]:
        """One repetition of the workload."""
        with self.range("step"):
            yield

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """An annotated part of the program."""
        begin = self.host
        yield
        self.host += 100
        self.ranges.append(nvtx(begin, self.host, name))

    def trace(self) -> Trace:
        """What a profiler would have recorded."""
        profile = trace(
            self.kernels,
            self.calls,
            sorted(self.ranges, key=lambda row: (row["start_ns"], -row["end_ns"])),
            copies=self.copies,
            memsets=self.memsets,
            graph_launches=self.graphs,
        )
        if self.device is None:
            return profile
        return replace(profile, capture=replace(profile.capture, devices=(self.device,)))

    def _issue(self, name: str) -> None:
        self.host += self.python_ns
        self.count += 1
        self.calls.append(launch(self.host, self.host + CALL_NS, self.count, name))
        self.host += CALL_NS

    def _run(self, duration: int) -> tuple[int, int]:
        start = max(self.gpu + self.between_ns, self.host + START_NS)
        self.gpu = start + duration
        return start, self.gpu

    def _hold(self, name: str, duration: int) -> None:
        self.count += 1
        self.host += 1 * US
        self.calls.append(call(self.host, self.host + duration, name, self.count))
        self.host += duration
