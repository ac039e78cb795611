"""Writes an Nsight Systems SQLite export of any size: `python -m benchmarks.generate_nsys OUT [--kernels N]`.

The tables and columns are those of a real export (schema 3.20.3, `nsys_schema.sql`); the rows are those of a simulated
training run (`simulation.py`). The same arguments give the same rows.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.simulation import Calls, Ranges, simulate
from benchmarks.training_step import KERNELS, CallKind, Kernel

__all__ = ["generate"]

Int64s = npt.NDArray[np.int64]

#: A column of a table: one value per row, or the one value of all rows.
Column: TypeAlias = "Int64s | list[str] | int"
Table: TypeAlias = "dict[str, Column]"

_SCHEMA = Path(__file__).with_name("nsys_schema.sql")
_ROWS_PER_INSERT = 100_000

# nsys packs virtual machine, process and thread into one number.
_PROCESS = 526
_MACHINE = 1 << 48
_GLOBAL_PROCESS = _MACHINE | (_PROCESS << 24)
_MAIN_THREAD = _GLOBAL_PROCESS | _PROCESS
_AUTOGRAD_THREAD = _GLOBAL_PROCESS | 561
_COMPUTE_STREAM, _COMMUNICATION_STREAM = 7, 20
_PUSH_POP = 59  # NvtxPushPopRange of ENUM_NSYS_EVENT_TYPE
_STREAM_SYNC = 3  # of ENUM_CUPTI_SYNC_TYPE
_NO_EVENT = 0xFFFFFFFF

_API_NAMES = {
    CallKind.KERNEL: "cudaLaunchKernel_v7000",
    CallKind.MEMSET: "cudaMemsetAsync_v3020",
    CallKind.COPY_IN: "cudaMemcpyAsync_v3020",
    CallKind.COPY_OUT: "cudaMemcpyAsync_v3020",
    CallKind.COPY_WITHIN: "cudaMemcpyAsync_v3020",
    CallKind.RECORD_EVENT: "cudaEventRecord_v3020",
    CallKind.SYNCHRONIZE: "cudaStreamSynchronize_v3020",
}

#: By kind of copy: direction, and the kind of memory at both ends (ids of nsys's enumerations), and bytes.
_COPIES = {
    CallKind.COPY_IN: (1, 1, 2, 65_536),
    CallKind.COPY_OUT: (2, 2, 0, 4),
    CallKind.COPY_WITHIN: (8, 2, 2, 3_145_728),
}

_GPU = {
    "vmId": _MACHINE,
    "id": 0,
    "name": "NVIDIA H200",
    "isDiscrete": 1,
    "l2CacheSize": 62_914_560,
    "totalMemory": 150_109_880_320,
    "memoryBandwidth": 4_814_304_000_000,
    "clockRate": 1_980_000_000,
    "smCount": 132,
    "chipName": "GH100",
    "cuDevice": 0,
    "maxRegistersPerSm": 65_536,
    "maxShmemPerSm": 233_472,
    "threadsPerWarp": 32,
    "maxWarpsPerSm": 64,
    "maxBlocksPerSm": 32,
    "maxThreadsPerBlock": 1_024,
    "computeMajor": 9,
    "computeMinor": 0,
    "smMajor": 9,
    "smMinor": 0,
}


class _Strings:
    """The table StringIds: gives each text its number."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def rows(self) -> list[tuple[int, str]]:
        return [(number, text) for text, number in self._ids.items()]


def generate(path: Path, kernels: int = 1_000_000, seed: int = 1, *, one_thread: bool = False) -> dict[str, int]:
    """Writes the export and returns how many rows its larger tables have.

    Args:
        path: the file to write; an existing one is replaced.
        kernels: how many kernels it holds.
        seed: of the random numbers.
        one_thread: whether the main thread launches the backward pass, too, so that every kernel lies inside ranges of
            its own thread; else autograd's thread does, which has no ranges.
    """
    calls, ranges = simulate(kernels, seed)
    if one_thread:
        calls = replace(calls, autograd=np.zeros_like(calls.autograd))
    strings = _Strings()
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;")
        connection.executescript(_SCHEMA.read_text(encoding="utf-8"))
        counts = {name: _insert(connection, name, columns) for name, columns in _tables(calls, ranges, strings)}
        _describe_capture(connection, strings, end=int(calls.end[-1]), events=sum(counts.values()))
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.rows())
        connection.commit()
    return counts


def _tables(calls: Calls, ranges: Ranges, strings: _Strings) -> Iterator[tuple[str, Table]]:
    yield "CUPTI_ACTIVITY_KIND_RUNTIME", _api_calls(calls, strings)
    yield "CUPTI_ACTIVITY_KIND_KERNEL", _kernels(calls, strings)
    yield "CUPTI_ACTIVITY_KIND_MEMSET", _work(calls, CallKind.MEMSET)[1] | {"value": 0, "bytes": 4_608, "memKind": 2}
    yield "CUPTI_ACTIVITY_KIND_MEMCPY", _copies(calls)
    yield "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _synchronizations(calls)
    yield (
        "NVTX_EVENTS",
        {
            "start": ranges.start,
            "end": ranges.end,
            "eventType": _PUSH_POP,
            "text": [ranges.names[name] for name in ranges.name.tolist()],
            "globalTid": _MAIN_THREAD,
            "domainId": 0,
        },
    )


def _correlation(rows: Int64s) -> Int64s:
    """The correlation id of each call: its place in the order of calls."""
    return rows + 1


def _api_calls(calls: Calls, strings: _Strings) -> Table:
    names = np.array([strings(_API_NAMES[kind]) for kind in range(len(_API_NAMES))])
    return {
        "start": calls.start,
        "end": calls.end,
        "eventClass": 0,
        "globalTid": np.where(calls.autograd, _AUTOGRAD_THREAD, _MAIN_THREAD),
        "correlationId": _correlation(np.arange(len(calls.kind))),
        "nameId": names[calls.kind],
        "returnValue": 0,
    }


def _work(calls: Calls, kind: int) -> tuple[Int64s, Table]:
    """The calls of one kind in the order in which their work begins, and the columns that all tables of work share."""
    rows = np.flatnonzero(calls.kind == kind)
    rows = rows[np.argsort(calls.work_start[rows], kind="stable")]
    return rows, {
        "start": calls.work_start[rows],
        "end": calls.work_end[rows],
        "deviceId": 0,
        "contextId": 1,
        "greenContextId": 0,
        "streamId": np.where(calls.communication[rows], _COMMUNICATION_STREAM, _COMPUTE_STREAM),
        "correlationId": _correlation(rows),
        "globalPid": _GLOBAL_PROCESS,
    }


def _kernels(calls: Calls, strings: _Strings) -> Table:
    rows, columns = _work(calls, CallKind.KERNEL)

    def each(values: Iterator[int]) -> Int64s:
        return np.array(list(values))[calls.kernel[rows]]

    return columns | {
        "demangledName": each(strings(kernel.full_name) for kernel in KERNELS.values()),
        "shortName": each(strings(kernel.name) for kernel in KERNELS.values()),
        "mangledName": each(strings(_mangled(kernel)) for kernel in KERNELS.values()),
        "launchType": 1,
        "cacheConfig": 1,
        "registersPerThread": each(kernel.registers for kernel in KERNELS.values()),
        "gridX": each(kernel.blocks for kernel in KERNELS.values()),
        "gridY": 1,
        "gridZ": 1,
        "blockX": each(kernel.threads for kernel in KERNELS.values()),
        "blockY": 1,
        "blockZ": 1,
        "staticSharedMemory": 0,
        "dynamicSharedMemory": 0,
        "localMemoryPerThread": 0,
        "localMemoryTotal": 250_871_808,
        "gridId": np.arange(1, len(rows) + 1),
        "sharedMemoryExecuted": 32_768,
        "sharedMemoryLimitConfig": 0,
    }


def _mangled(kernel: Kernel) -> str:
    return f"_Z{len(kernel.name)}{kernel.name}v"


def _copies(calls: Calls) -> Table:
    parts: list[dict[str, Int64s]] = []
    for kind, (direction, source, destination, size) in _COPIES.items():
        rows, columns = _work(calls, kind)
        columns |= {
            "bytes": size,
            "copyKind": direction,
            "srcKind": source,
            "dstKind": destination,
            "copyCount": 1,
        }
        parts.append({name: np.broadcast_to(np.asarray(column), len(rows)) for name, column in columns.items()})
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(joined["start"], kind="stable")
    return {name: column[order] for name, column in joined.items()}


def _synchronizations(calls: Calls) -> Table:
    rows = np.flatnonzero(calls.kind == CallKind.SYNCHRONIZE)
    return {
        "start": calls.start[rows] + 400,  # what the driver does before and after the wait itself
        "end": calls.end[rows] - 300,
        "deviceId": 0,
        "contextId": 1,
        "streamId": _COMPUTE_STREAM,
        "correlationId": _correlation(rows),
        "globalPid": _GLOBAL_PROCESS,
        "syncType": _STREAM_SYNC,
        "eventId": _NO_EVENT,
        "eventSyncId": _NO_EVENT,
    }


def _insert(connection: sqlite3.Connection, table: str, columns: Table) -> int:
    """Inserts all rows; a column that is not named stays null. Returns how many there are."""
    count = next(len(column) for column in columns.values() if not isinstance(column, int))
    query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for first in range(0, count, _ROWS_PER_INSERT):
        chunk = slice(first, first + _ROWS_PER_INSERT)
        connection.executemany(query, zip(*(_values(column, chunk) for column in columns.values()), strict=False))
    return count


def _values(column: Column, chunk: slice) -> Iterator[object]:
    if isinstance(column, int):
        return repeat(column)
    return iter(column[chunk].tolist() if isinstance(column, np.ndarray) else column[chunk])


def _describe_capture(connection: sqlite3.Connection, strings: _Strings, *, end: int, events: int) -> None:
    """The small tables: the tool, the GPU, the process, and what the tool said about the capture."""
    epoch_ns, begun = 1_767_225_600_000_000_000, "2026-01-01T00:00:00"
    small: dict[str, list[tuple[object, ...]]] = {
        "ThreadNames": [
            (strings("python3"), 20, _MAIN_THREAD),
            (strings("pt_autograd_0"), 20, _AUTOGRAD_THREAD),
        ],
        "TARGET_INFO_CUDA_DEVICE": [(0, 0, _PROCESS)],
        "TARGET_INFO_CUDA_CONTEXT_INFO": [(_COMPUTE_STREAM, 0, 1, _PROCESS, 0, 1, 0, 0)],
        "TARGET_INFO_CUDA_STREAM": [
            (_COMPUTE_STREAM, 0, 1, _PROCESS, 1, 0, 3),
            (_COMMUNICATION_STREAM, 0, 1, _PROCESS, 1, 0, 2),
        ],
        "TARGET_INFO_SESSION_START_TIME": [(epoch_ns, begun, begun)],
        "ANALYSIS_DETAILS": [(_MACHINE, end, 0, end)],
        "DIAGNOSTIC_EVENT": [
            (0, 1, 3, 1, "Profiling has started.", None),
            (end, 2, 3, 1, f"Number of events collected: {events}.", _GLOBAL_PROCESS),
            (end, 1, 3, 1, "Profiling has stopped.", None),
        ],
        "META_DATA_CAPTURE": [
            ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
            ("CAPTURE_EVENT_TYPE", "Cuda"),
            ("PROCESS_0:COLLECT_NVTX_TRACE", "true"),
            ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
        ],
        "META_DATA_EXPORT": [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", "2025.3.2.0"),
            ("EXPORT_SCHEMA_VERSION", "3.20.3"),
            ("EXPORT_SCHEMA_VERSION_MAJOR", "3"),
            ("EXPORT_SCHEMA_VERSION_MINOR", "20"),
            ("EXPORT_SCHEMA_VERSION_MICRO", "3"),
            ("EXPORT_PLATFORM", "linux-desktop"),
            ("EXPORT_ARCH", "x64"),
        ],
    }
    for table, rows in small.items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    marks = ", ".join("?" * len(_GPU))
    connection.execute(f"INSERT INTO TARGET_INFO_GPU ({', '.join(_GPU)}) VALUES ({marks})", list(_GPU.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generate_nsys", description="Writes an Nsight Systems SQLite export of any size."
    )
    parser.add_argument("out", type=Path, help="the SQLite file to write")
    parser.add_argument("--kernels", type=int, default=1_000_000, help="how many kernels (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one-thread", action="store_true", help="launch the backward pass inside ranges, too")
    options = parser.parse_args(arguments)
    for table, count in generate(options.out, options.kernels, options.seed, one_thread=options.one_thread).items():
        print(f"{count:>12,}  {table}")
    print(f"{options.out.stat().st_size / 1e6:>12,.0f}  MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
