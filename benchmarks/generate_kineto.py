"""Writes a Chrome trace as the PyTorch profiler does: `python -m benchmarks.generate_kineto EVENTS OUTPUT`.

The program is a data-parallel training step of a transformer: a forward pass of operators with their shapes, backward
operators on autograd's own thread with arrows from the forward ones, allocator events, runtime calls with arrows to
their kernels, and an all-reduce on a stream of its own. Layout, key order and number format are those of Kineto in
PyTorch 2.11. The same arguments give the same file.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.training_step import KERNELS

__all__ = ["generate", "main"]

_PROCESS = 683
_MAIN, _AUTOGRAD = 683, 708
_COMPUTE_STREAM, _NCCL_STREAM = 7, 20
_BASE_NS = 1_790_857_026_000_000_000
_FIRST_NS = 4_371_753_723_337_734

_HEADER = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472
    }
    ],
      "distributedInfo": {"backend": "nccl", "rank": %(rank)d, "world_size": %(ranks)d, "pg_count": 1},
      "profile_memory": 1,
      "cuda_driver_version": 13000,
      "record_shapes": 1,
      "cuda_runtime_version": 13000,
      "cupti_version": 130001,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %(base)d,
  "traceEvents": [
"""

_TRAILER = """
  ],
  "traceName": "trace.json"
}
"""

#: Operator, the operators inside it, and the kernel that the innermost one launches (None: it only makes a view).
_FORWARD: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("aten::layer_norm", "aten::native_layer_norm"), "add"),
    (("aten::linear", "aten::t", "aten::transpose"), None),
    (("aten::matmul", "aten::mm"), "gemm"),
    (("aten::view",), None),
    (("aten::transpose", "aten::as_strided"), None),
    (("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention"), "attention"),
    (("aten::reshape", "aten::clone", "aten::empty_like"), "mul"),
    (("aten::add",), "add"),
    (("aten::gelu",), "mul_scalar"),
    (("aten::mul",), "mul"),
)

_SHAPES = ("[4, 256, 768]", "[768, 768]", "[4, 256, 12, 64]", "[48, 256, 64]", "[4, 256, 3072]", "[3072]", "[]")


def _kernel_names() -> dict[str, str]:
    names = {key: kernel.full_name for key, kernel in KERNELS.items()}
    plain = {
        key: name.replace("(int)", "").replace("<unnamed>", "(anonymous namespace)") for key, name in names.items()
    }
    first = next(iter(plain.values()))
    return {key: plain.get(key, first) for key in ("add", "mul", "mul_scalar")} | {
        "gemm": next((name for key, name in plain.items() if "gemm" in key), first),
        "attention": next((name for key, name in plain.items() if "flash" in key or "attention" in key), first),
        "nccl": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    }


@dataclass
class _Program:
    """The clock and the counters of the program while its events are written."""

    rank: int
    random: random.Random
    now_ns: int = _FIRST_NS
    gpu_ns: int = _FIRST_NS
    nccl_ns: int = _FIRST_NS
    correlation: int = 10
    operator: int = 1
    index: int = 0
    sequence: int = 100
    flow: int = 0
    allocated: int = 2_904_848_896
    kernels: dict[str, str] = field(default_factory=_kernel_names)

    def step(self, number: int) -> Iterator[str]:
        """One training step: forward with 24 layers, backward, all-reduce, optimizer."""
        begin = self.now_ns
        events: list[str] = []
        pending: list[tuple[int, int]] = []
        for _ in range(24):
            for names, kernel in _FORWARD:
                self._operator(events, names, kernel, _MAIN, pending)
        for sequence, flow in reversed(pending):
            self._backward(events, sequence, flow)
            if sequence % 60 == 0:
                self._all_reduce(events)
        self.now_ns = max(self.now_ns, self.gpu_ns) + 20_000
        yield (
            f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": {_PROCESS}, '
            f'"tid": {_MAIN},\n    "ts": {_us(begin)}, "dur": {_us(self.now_ns - begin)},\n    "args": {{\n      '
            f'"External id": {self._next()},"Record function id": 0, "Ev Idx": {self.index}\n    }}\n  }}'
        )
        yield from events

    def _next(self) -> int:
        self.operator += 1
        self.index += 1
        return self.operator

    def _pass(self, low: int, high: int) -> int:
        self.now_ns += self.random.randrange(low, high)
        return self.now_ns

    def _operator(
        self, events: list[str], names: Sequence[str], kernel: str | None, thread: int, pending: list[tuple[int, int]]
    ) -> None:
        self.sequence += 1
        begins = [self._pass(600, 2_500) for _ in names]
        place = len(events)
        inner = self.operator + len(names)
        if kernel is not None:
            self._allocation(events, thread)
            self._launch(events, kernel, thread, inner)
        ends = [self._pass(300, 1_200) for _ in names][::-1]
        rows = []
        for depth, (name, begin, end) in enumerate(zip(names, begins, ends, strict=True)):
            shapes = [self.random.choice(_SHAPES) for _ in range(1 + self.random.randrange(3))]
            sequence = f'"Sequence number": {self.sequence}, "Fwd thread id": 0, ' if depth == len(names) - 1 else ""
            rows.append(_operator_event(name, thread, begin, end - begin, self._next(), sequence, shapes, self.index))
        self.flow += 1
        rows.append(_arrow("s", "fwdbwd", self.flow, _PROCESS, thread, begins[-1]))
        events[place:place] = rows
        pending.append((self.sequence, self.flow))

    def _backward(self, events: list[str], sequence: int, flow: int) -> None:
        name = f"{('Mm', 'View', 'Add', 'Gelu', 'Mul', 'NativeLayerNorm')[sequence % 6]}Backward0"
        outer = self._pass(700, 2_000)
        begin = self._pass(500, 1_500)
        place = len(events)
        self._allocation(events, _AUTOGRAD)
        for kernel in ("gemm", "mul") if sequence % 3 else ("add",):
            self._launch(events, kernel, _AUTOGRAD, self.operator + 2)
        end, outer_end = self._pass(300, 900), self._pass(300, 900)
        link = f'"Sequence number": {sequence}, "Fwd thread id": 1, '
        shapes = [self.random.choice(_SHAPES)]
        events[place:place] = [
            f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: {name}", '
            f'"pid": {_PROCESS}, "tid": {_AUTOGRAD},\n    "ts": {_us(outer)}, "dur": {_us(outer_end - outer)},\n'
            f'    "args": {{\n      "External id": {self._next()},"Record function id": 0, {link}"Ev Idx": '
            f"{self.index}\n    }}\n  }}",
            _operator_event(name, _AUTOGRAD, begin, end - begin, self._next(), link, shapes, self.index),
            _arrow("f", "fwdbwd", flow, _PROCESS, _AUTOGRAD, begin),
        ]

    def _allocation(self, events: list[str], thread: int) -> None:
        size = self.random.choice((512, 3_145_728, 12_582_912)) * self.random.choice((1, -1))
        self.allocated += size
        self.index += 1
        events.append(
            f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": {_PROCESS}, '
            f'"tid": {thread},\n    "ts": {_us(self._pass(100, 300))},\n    "args": {{\n      "Total Reserved": '
            f'3290431488, "Total Allocated": {self.allocated}, "Bytes": {size}, "Device Id": 0, "Device Type": 1, '
            f'"Addr": {140_000_000_000_000 + 512 * self.random.randrange(10**9)}, "finished": false, "Ev Idx": '
            f"{self.index}\n    }}\n  }}"
        )

    def _launch(self, events: list[str], kernel: str, thread: int, operator: int) -> None:
        self.correlation += 11
        begin = self._pass(300, 1_500)
        duration = self.random.randrange(2_500, 7_000)
        self.now_ns += duration
        start = max(begin + duration - 400, self.gpu_ns) + self.random.randrange(200, 1_500)
        length = self.random.randrange(900, 90_000 if kernel == "gemm" else 9_000)
        self.gpu_ns = start + length
        self._work(events, kernel, start, length, _COMPUTE_STREAM, operator, "")
        self._call(events, begin, duration, thread, operator)

    def _all_reduce(self, events: list[str]) -> None:
        self.correlation += 11
        begin = self._pass(300, 1_500)
        start = max(begin + 5_000, self.nccl_ns, self.gpu_ns)
        length = self.random.randrange(80_000, 400_000)
        self.nccl_ns = start + length
        described = (
            ', "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568, "Group size": 2, '
            '"dtype": "Float", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
            '"Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"'
        )
        self._work(events, "nccl", start, length, _NCCL_STREAM, self.operator, described)
        self._call(events, begin, 4_000, _AUTOGRAD, self.operator)

    def _work(
        self, events: list[str], kernel: str, start: int, length: int, stream: int, operator: int, more: str
    ) -> None:
        blocks = self.random.choice((32, 64, 396, 768, 3_072))
        events.append(
            f'  {{\n    "ph": "X", "cat": "kernel", "name": "{self.kernels[kernel]}", "pid": 0, "tid": {stream},\n'
            f'    "ts": {_us(start)}, "dur": {_us(length)},\n    "args": {{\n      "External id": {operator},"queued": '
            f'0, "device": 0, "context": 1,\n      "stream": {stream}, "correlation": {self.correlation},\n      '
            f'"registers per thread": 32,\n      "shared memory": 0,\n      "blocks per SM": {blocks / 132:.6f},\n'
            f'      "warps per SM": {blocks * 4 / 132:.6f},\n      "grid": [{blocks}, 1, 1],\n      "block": '
            f'[128, 1, 1],\n      "est. achieved occupancy %": 62{more}\n    }}\n  }}'
        )
        events.append(_arrow("f", "ac2g", self.correlation, 0, stream, start))

    def _call(self, events: list[str], begin: int, duration: int, thread: int, operator: int) -> None:
        events.append(
            f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {_PROCESS}, "tid": '
            f'{thread},\n    "ts": {_us(begin)}, "dur": {_us(duration)},\n    "args": {{\n      "External id": '
            f'{operator},"cbid": 211, "correlation": {self.correlation}\n    }}\n  }}'
        )
        events.append(_arrow("s", "ac2g", self.correlation, _PROCESS, thread, begin))


def _us(ns: int) -> str:
    return f"{ns // 1_000}.{ns % 1_000:03d}"


def _arrow(phase: str, name: str, number: int, process: int, thread: int, when: int) -> str:
    binding = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {process}, "tid": {thread}, "ts": {_us(when)},\n'
        f'    "cat": "{name}", "name": "{name}"{binding}\n  }}'
    )


def _operator_event(
    name: str, thread: int, begin: int, duration: int, number: int, link: str, shapes: list[str], index: int
) -> str:
    concrete = ", ".join(['""'] * len(shapes))
    types = ", ".join(['"float"'] * len(shapes))
    dims = ", ".join(shapes)
    return (
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {_PROCESS}, "tid": {thread},\n    "ts": '
        f'{_us(begin)}, "dur": {_us(duration)},\n    "args": {{\n      "External id": {number},{link}"Record function '
        f'id": 0, "Concrete Inputs": [{concrete}], "Input type": [{types}], "Input Strides": [{dims}], "Input Dims": '
        f'[{dims}], "Ev Idx": {index}\n    }}\n  }}'
    )


def _opened(output: Path) -> IO[bytes]:
    return gzip.GzipFile(output, "wb", compresslevel=6, mtime=0) if output.suffix == ".gz" else output.open("wb")


def generate(events: int, output: Path, *, rank: int = 0, ranks: int = 1) -> int:
    """Writes a trace with at least `events` events, whole steps only, and returns how many it has.

    Args:
        events: how many, of all kinds.
        output: the file; compressed if its name ends in `.gz`.
        rank, ranks: where in a distributed run the process stands.
    """
    program = _Program(rank, random.Random(20_260 + rank))
    written = step = 0
    with _opened(output) as file:
        file.write((_HEADER % {"rank": rank, "ranks": ranks, "base": _BASE_NS}).encode())
        while written < events:
            rows = list(program.step(step))
            file.write(((",\n" if written else "") + ",\n".join(rows)).encode())
            written += len(rows)
            step += 1
        file.write(_TRAILER.encode())
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate_kineto", description=__doc__.partition(":")[0])
    parser.add_argument("events", type=int, help="number of events, of all kinds")
    parser.add_argument("output", type=Path, help="file to write; compressed if its name ends in .gz")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1, help="number of processes of the distributed run")
    options = parser.parse_args(arguments)
    written = generate(options.events, options.output, rank=options.rank, ranks=options.ranks)
    print(f"{options.output.name}: {written:,} events, {options.output.stat().st_size / 1e6:,.0f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
