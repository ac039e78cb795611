"""Random programs, physically consistent, as profilers would have recorded them: `generated(seed)`.

A host thread issues work, waits, copies and allocates; streams run it in order, each piece after its launch. Then the
recording loses what real ones lose: tables, ranges, launches, both ends; its clocks are shifted, its GPUs unknown.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from tests.analysis.builders import Row, call, copy, graph, kernel, memset, nvtx, os_call, trace
from tests.diagnosis.machine import ADD, ADDCDIV, BF16_GEMM, FP32_GEMM, NCCL
from warplens.profile import Device, Note, Trace
from warplens.readers.losses import lost_level

US: Final = 1_000
_DEVICES: Final = (
    Device(0, "NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bandwidth_bytes_per_s=4_800_000_000_000),
    Device(0, "NVIDIA A100-SXM4-80GB", compute_capability=(8, 0), sm_count=108),
    Device(0, "Tesla V100-SXM2-16GB", compute_capability=(7, 0), sm_count=80, clock_hz=1_530_000_000),
    Device(0, "Tesla T4", compute_capability=(7, 5), sm_count=40),
    Device(0, "NVIDIA GeForce GTX 1060", compute_capability=(6, 1), sm_count=10),
    Device(0, "NVIDIA GeForce RTX 5090", compute_capability=(12, 0), sm_count=170),
    Device(0, "Some GPU"),
    Device(0, "AMD Instinct MI300X"),
)
_VOLTA: Final = "volta_sgemm_128x64_tn"
_HALF: Final = "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"
_DOUBLE: Final = "ampere_dgemm_64x64_nn"
_DEPTHWISE: Final = "void at::native::conv_depthwise2d_forward_kernel<3, float, int>(int)"
_FLASH: Final = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false>>(int)"
_SOFTMAX: Final = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(int)"
_NORM: Final = "void at::native::vectorized_layer_norm_kernel<float, float>(int, float)"
_GATHER: Final = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)"
_TRITON: Final = "triton_per_fused__to_copy_add_native_layer_norm_3"
_FUSED_ADAM: Final = (
    "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(int)"
)
_CONVERT: Final = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)"
_OTHER: Final = "my_kernel(float*, int)"
_NAMES: Final = (
    *(BF16_GEMM, FP32_GEMM, _VOLTA, _HALF, _DOUBLE, _DEPTHWISE, _FLASH, _SOFTMAX, _NORM, _GATHER, _TRITON, _CONVERT),
    *(ADD, ADDCDIV, _OTHER, _FUSED_ADAM, NCCL),
)


@dataclass
class _Gpu:
    """When each stream, and the copy engines, are free."""

    free: dict[int, int] = field(default_factory=dict)


@dataclass
class _Thread:
    """One host thread of one process with its streams."""

    process: int
    number: int
    device: int
    streams: tuple[int, ...]
    gpu: _Gpu
    tables: dict[str, list[Row]]
    counter: list[int]
    python_ns: int
    now: int = 0

    def _call(self, name: str, duration: int) -> int:
        self.counter[0] += 1
        row = call(self.now, self.now + duration, name, self.counter[0], thread=self.number, process=self.process)
        self.tables["api"].append(row)
        self.now += duration
        return self.counter[0]

    def _run(self, duration: int, stream: int) -> tuple[int, int]:
        start = max(self.gpu.free.get(stream, 0) + 700, self.now + 1_900)
        self.gpu.free[stream] = start + duration
        return start, start + duration

    def _place(self, stream: int, correlation: int) -> dict[str, Any]:
        return {"stream": stream, "correlation": correlation, "device": self.device, "process": self.process}

    def kernel(self, name: str, duration: int, blocks: int, stream: int) -> None:
        self.now += self.python_ns
        number = self._call("cudaLaunchKernel", 3_500)
        start, end = self._run(duration, stream)
        short = name.partition("(")[0].partition("<")[0].rpartition("::")[2].removeprefix("void ")
        where = self._place(stream, number)
        self.tables["kernels"].append(kernel(start, end, short, full_name=name, grid=(blocks, 1, 1), **where))

    def graph(self, durations: list[int], stream: int, *, whole: bool) -> None:
        number = self._call("cudaGraphLaunch", 9_000)
        start, end = self._run(sum(durations) + 900 * len(durations), stream)
        if whole:
            self.tables["graph_launches"].append(graph(start, end, **self._place(stream, number)))
            return
        for node, duration in enumerate(durations):
            name = _NAMES[node % 4]
            where = self._place(stream, number)
            row = kernel(start, start + duration, name[:20], full_name=name, graph_node=node + 1, **where)
            self.tables["kernels"].append(row)
            start += duration + 900

    def copy(self, size: int, direction: str, stream: int, *, pageable: bool) -> None:
        self.now += self.python_ns
        number = self._call("cudaMemcpyAsync", 4_000)
        rate = 12 if pageable else 50  # bytes a nanosecond
        start, end = self._run(max(size // rate, 900), stream)
        host = "pageable" if pageable else "pinned"
        ends = (host, "device") if direction == "host-to-device" else ("device", host)
        if direction == "device-to-device":
            ends = ("device", "device")
        where = self._place(stream, number)
        self.tables["copies"].append(copy(start, end, direction, size, source=ends[0], destination=ends[1], **where))
        if pageable and direction != "device-to-device":
            self.tables["api"][-1]["end_ns"] = self.now = max(self.now, end + 500)

    def fill(self, size: int, stream: int) -> None:
        number = self._call("cudaMemsetAsync", 3_000)
        if size:  # nothing to fill leaves no trace on the GPU
            start, end = self._run(1_200, stream)
            self.tables["memsets"].append(memset(start, end, size, **self._place(stream, number)))

    def wait(self, name: str) -> None:
        until = max(self.gpu.free.values(), default=0) + 2_500
        self._call(name, max(until - self.now, 2_000))

    def call(self, name: str, duration: int) -> None:
        self._call(name, duration)

    def think(self, duration: int, *, traced: bool) -> None:
        if traced and duration > 10_000:
            self.tables["os_calls"].append(
                os_call(self.now + 500, self.now + duration - 500, thread=self.number, process=self.process)
            )
        self.now += duration


_Operation = tuple[str, tuple[Any, ...], dict[str, Any]]


def _layer(chance: random.Random, streams: int) -> list[_Operation]:
    """A few operations that a program repeats."""
    scale = chance.choice((2, 5, 20, 100, 800)) * US
    names = chance.sample(_NAMES[:15], chance.randint(1, 4))
    done: list[_Operation] = []
    for _ in range(chance.randint(1, 5)):
        stream = chance.randrange(streams)
        blocks = chance.choice((1, 4, 80, 132, 1056, 20_000))
        duration = max(1, int(scale * chance.uniform(0.3, 2)))
        done.append(("kernel", (chance.choice(names), duration, blocks, stream), {}))
    extra = chance.random()
    if extra < 0.08:
        done.append(("copy", (4, "device-to-host", 0), {"pageable": True}))
    elif extra < 0.13:
        done.append(("wait", (chance.choice(("cudaStreamSynchronize", "cudaDeviceSynchronize")),), {}))
    elif extra < 0.17:
        done.append(("call", (chance.choice(("cudaMalloc", "cudaFree")), chance.choice((5, 90, 900)) * US), {}))
    elif extra < 0.2:
        done.append(("kernel", (_OTHER, 0, 1, 0), {}))
    elif extra < 0.23:
        done.append(("copy", (chance.choice((64, 1 << 20)), "device-to-device", 0), {"pageable": False}))
    return done


def _step(chance: random.Random, streams: int) -> list[tuple[str, list[_Operation]]]:
    """Parts of a step, each with a name for a range."""
    before: list[_Operation] = []
    if chance.random() < 0.4:
        size = chance.choice((64, 4096, 1 << 20, 1 << 26))
        before.append(("copy", (size, "host-to-device", 0), {"pageable": chance.random() < 0.5}))
    if chance.random() < 0.3:
        before.append(("think", (chance.choice((50, 1_000, 8_000)) * US,), {"traced": chance.random() < 0.5}))
    if chance.random() < 0.2:
        before.append(("fill", (chance.choice((0, 4096)), 0), {}))
    layer = _layer(chance, streams)
    forward = [each for _ in range(chance.choice((1, 3, 12, 24))) for each in layer]
    if chance.random() < 0.15:
        nodes = [max(1, int(chance.uniform(1, 60) * US)) for _ in range(chance.choice((3, 40)))]
        forward = [("graph", (nodes, 0), {"whole": chance.random() < 0.5})] * chance.choice((1, 4))
    parts = [("data", before), ("forward", forward)]
    if chance.random() < 0.4:
        optimizer: list[_Operation] = [("kernel", (_FUSED_ADAM, 40 * US, 2_000, 0), {})] * 2
        if chance.random() < 0.5:
            optimizer = [("kernel", (name, 2 * US, 8, 0), {}) for _ in range(20) for name in (ADD, ADD, ADDCDIV)]
        parts += [("backward", [*reversed(forward), *forward]), ("optimizer", optimizer)]
    if chance.random() < 0.2:
        collectives: list[_Operation] = [("kernel", (NCCL, 300 * US, 24, streams - 1), {})]
        parts.append(("all_reduce", collectives * chance.choice((1, 6))))
    end: list[_Operation] = []
    if chance.random() < 0.5:
        end.append(("wait", ("cudaDeviceSynchronize",), {}))
    elif chance.random() < 0.3:
        end.append(("copy", (4, "device-to-host", 0), {"pageable": True}))
    return [part for part in (*parts, ("log", end)) if part[1]]


def generated(seed: int) -> Trace:
    """The recording of a random program."""
    chance = random.Random(seed)
    tables: dict[str, list[Row]] = {
        name: []
        for name in ("kernels", "api", "ranges", "copies", "memsets", "graph_launches", "synchronizations", "os_calls")
    }
    processes, gpus = chance.choice((1, 1, 1, 2)), chance.choice((1, 1, 1, 2))
    steps = chance.choice((1, 2, 3, 5, 8, 20))
    marks = chance.choice(("step", "step", "phases", "none", "iteration"))
    devices = [_Gpu() for _ in range(gpus)]
    for process in range(1, processes + 1):
        counter = [0]
        for number in range(1, chance.choice((1, 1, 1, 2)) + 1):
            streams = tuple(range(7, 7 + chance.choice((1, 1, 2, 4))))
            at = (process + number) % gpus
            pace = chance.choice((500, 3_000, 12_000))
            thread = _Thread(process, number, at, streams, devices[at], tables, counter, pace)
            thread.now = chance.choice((0, 0, 40_000, 3_000_000))
            _program(chance, thread, steps, marks)
    profile = trace(
        tables["kernels"],
        tables["api"],
        sorted(tables["ranges"], key=lambda row: (row["start_ns"], -row["end_ns"])),
        copies=tables["copies"],
        memsets=tables["memsets"],
        graph_launches=tables["graph_launches"],
        os_calls=tables["os_calls"],
        file_format=chance.choice(("nsys-sqlite", "nsys-sqlite", "kineto-json")),
    )
    device = chance.choice(_DEVICES)
    known = tuple(replace(device, ordinal=each.ordinal) for each in profile.capture.devices)
    profile = replace(profile, capture=replace(profile.capture, devices=known, source=f"seed {seed}"))
    for change in chance.sample(_LOSSES, chance.choice((0, 0, 1, 1, 2))):
        profile = change(chance, profile)
    return _with_note(profile)


def _with_note(profile: Trace) -> Trace:
    """With the note by which readers say that launches have no work."""
    issued = profile.api_calls.filter(pl.col("name").cast(pl.String).str.contains("Launch"))
    ran = pl.concat([table["correlation"] for table in (profile.kernels, profile.graph_launches)])
    lost = (
        int((~issued["correlation"].is_in(ran.implode())).sum()) if ran.null_count() < ran.len() or not ran.len() else 0
    )
    if not lost or not profile.has_device_work:
        return profile
    note = Note("lost-gpu-work", lost_level(lost / issued.height), f"{lost:,} launches have no work: work was lost.")
    return replace(profile, capture=replace(profile.capture, notes=(note,)))


def _program(chance: random.Random, thread: _Thread, steps: int, marks: str) -> None:
    parts = _step(chance, len(thread.streams))
    if chance.choice((0, 1)):  # a first pass, slower
        for _, operations in parts:
            _perform(thread, operations, chance, slower=3)
            thread.call("cudaMalloc", 300 * US)
    for _ in range(steps):
        begin = thread.now
        for name, operations in parts:
            inside = thread.now
            _perform(thread, operations, chance)
            if marks in ("phases", "iteration"):
                _mark(thread, inside, name)
        if marks in ("step", "iteration"):
            _mark(thread, begin, marks)
    if chance.random() < 0.5:
        thread.wait("cudaDeviceSynchronize")


def _mark(thread: _Thread, begin: int, name: str) -> None:
    thread.now += 200
    thread.tables["ranges"].append(nvtx(begin, thread.now, name, thread=thread.number, process=thread.process))


def _perform(thread: _Thread, operations: list[_Operation], chance: random.Random, slower: float = 1) -> None:
    for name, arguments, options in operations:
        varied = list(arguments)
        if name == "kernel":
            varied[1] = int(varied[1] * chance.uniform(0.97, 1.03) * slower)
        if name in ("kernel", "graph", "copy", "fill"):
            varied[-1] = thread.streams[varied[-1] % len(thread.streams)]
        getattr(thread, name)(*varied, **options)


def _without(*names: str) -> Callable[[random.Random, Trace], Trace]:
    def lose(chance: random.Random, profile: Trace) -> Trace:
        capture = replace(profile.capture, recorded=profile.capture.recorded - set(names))
        return replace(profile, capture=capture, **{name: getattr(profile, name).clear() for name in names})

    return lose


def _some_launches(chance: random.Random, profile: Trace) -> Trace:
    share = chance.choice((0.01, 0.3, 0.95))
    keep = [chance.random() > share for _ in range(profile.api_calls.height)]
    return replace(profile, api_calls=profile.api_calls.filter(pl.Series(keep, dtype=pl.Boolean)))


def _some_kernels(chance: random.Random, profile: Trace) -> Trace:
    share = chance.choice((0.01, 0.3, 0.99))
    keep = [chance.random() > share for _ in range(profile.kernels.height)]
    return replace(profile, kernels=profile.kernels.filter(pl.Series(keep, dtype=pl.Boolean)))


def _cut(chance: random.Random, profile: Trace) -> Trace:
    """Only what lies wholly in a part of the time, as `--delay` and `--duration` leave it."""
    begin, end = profile.capture.window_ns
    low, high = sorted((chance.uniform(0, 0.6), chance.uniform(0.4, 1)))
    first, last = int(begin + low * (end - begin)), int(begin + high * (end - begin))
    inside = (pl.col("start_ns") >= first) & (pl.col("end_ns") <= last)
    names = ("kernels", "api_calls", "copies", "memsets", "graph_launches", "os_calls")
    parts = {name: getattr(profile, name).filter(inside) for name in names}
    ranges = _filtered_ranges(profile.ranges, inside)
    return replace(profile, capture=replace(profile.capture, window_ns=(first, last)), ranges=ranges, **parts)


def _filtered_ranges(ranges: pl.DataFrame, inside: pl.Expr) -> pl.DataFrame:
    numbered = ranges.with_row_index("place").filter(inside)
    place = {old: new for new, old in enumerate(numbered["place"].to_list())}
    above = [place.get(parent) for parent in numbered["parent"].to_list()]
    return numbered.drop("place").with_columns(pl.Series("parent", above, dtype=ranges.schema["parent"]))


def _shifted(chance: random.Random, profile: Trace) -> Trace:
    """Another zero of the clock, such as Unix time."""
    by = chance.choice((-5_000_000, 1_700_000_000_000_000_000))
    names = ("kernels", "api_calls", "copies", "memsets", "graph_launches", "os_calls", "ranges")
    parts = {name: getattr(profile, name).with_columns(pl.col("start_ns", "end_ns") + by) for name in names}
    begin, end = profile.capture.window_ns
    return replace(profile, capture=replace(profile.capture, window_ns=(begin + by, end + by)), **parts)


def _early_gpu(chance: random.Random, profile: Trace) -> Trace:
    """The GPU's clock is behind the host's: work seems to start before its launch."""
    by = chance.choice((1_500, 30_000))
    names = ("kernels", "copies", "memsets", "graph_launches")
    return replace(
        profile, **{name: getattr(profile, name).with_columns(pl.col("start_ns", "end_ns") - by) for name in names}
    )


def _no_correlations(chance: random.Random, profile: Trace) -> Trace:
    names = ("kernels", "copies", "memsets")
    lost = pl.lit(None, dtype=pl.Int64).alias("correlation")
    return replace(
        profile,
        **{
            name: getattr(profile, name).with_columns(lost.cast(getattr(profile, name).schema["correlation"]))
            for name in names
        },
    )


def _one_kernel(chance: random.Random, profile: Trace) -> Trace:
    return replace(_without("copies", "memsets", "graph_launches")(chance, profile), kernels=profile.kernels.head(1))


_LOSSES: Final = (
    _without("api_calls"),
    _without("ranges"),
    _without("kernels", "graph_launches"),
    _without("copies", "memsets"),
    _without("os_calls", "ranges"),
    *(_some_launches, _some_kernels, _cut, _cut, _shifted, _early_gpu, _no_correlations, _one_kernel),
)
