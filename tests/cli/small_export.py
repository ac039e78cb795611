"""A tiny Nsight Systems export whose every number can be counted by hand.

Four equal steps, 1 ms apart, each 900 µs long and annotated `step`. In each, inside `forward_pass`, one copy of
1,000,000 bytes to the GPU (10 µs), a matrix product (100 µs) and a softmax (50 µs), one after the other, launched by
calls of 5 µs; then the host waits for the GPU.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 4
STEP_NS = 900_000
GEMM_NS = 100_000
SOFTMAX_NS = 50_000
COPY_NS = 10_000
COPY_BYTES = 1_000_000
GEMM = "ampere_sgemm_128x64_tn"
SOFTMAX = "softmax_warp_forward"
SOFTMAX_FULL = "void softmax_warp_forward<float, float, float, 8, true>(float *, const float *, int, int, int)"
#: Stands where a real export holds the program's environment; it may appear in no output.
SECRET = "API_TOKEN=do-not-print-me"

_GEMM_ID, _SOFTMAX_ID, _SOFTMAX_FULL_ID, _LAUNCH_ID, _COPY_ID, _SYNC_ID, _STEP_ID, _FORWARD_ID = range(1, 9)
_NAMES = {
    _GEMM_ID: GEMM,
    _SOFTMAX_ID: SOFTMAX,
    _SOFTMAX_FULL_ID: SOFTMAX_FULL,
    _LAUNCH_ID: "cudaLaunchKernel_v7000",
    _COPY_ID: "cudaMemcpyAsync_v3020",
    _SYNC_ID: "cudaDeviceSynchronize_v3020",
    _STEP_ID: "step",
    _FORWARD_ID: "forward_pass",
}
_PROCESS = 77 << 24
_THREAD = _PROCESS | 78

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, cuDevice INTEGER, name TEXT, busLocation TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER, shortName INTEGER, registersPerThread INTEGER,
    gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
    staticSharedMemory INTEGER, dynamicSharedMemory INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER,
    returnValue INTEGER
);
CREATE TABLE NVTX_EVENTS (
    start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER
);
"""


def write_export(path: Path, extra_kernel_name: str | None = None, *, annotated: bool = True) -> Path:
    """Write the export.

    Args:
        path: the file to make.
        extra_kernel_name: the name of one more kernel in every step (1 µs), after the others.
        annotated: whether the export has annotated ranges.
    """
    with sqlite3.connect(path) as file:
        file.executescript(_SCHEMA)
        file.executemany("INSERT INTO StringIds VALUES (?, ?)", _NAMES.items())
        file.execute("INSERT INTO StringIds VALUES (99, ?)", (extra_kernel_name or "unused",))
        file.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3')")
        file.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Environment', 0, ?)", (SECRET,))
        file.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H200', '0000:01:00.0')")
        for step in range(STEPS):
            _write_step(file, 1_000_000 * (step + 1), 10 * step, extra_kernel_name is not None)
        if not annotated:
            file.execute("DROP TABLE NVTX_EVENTS")
    file.close()
    return path


def _write_step(file: sqlite3.Connection, begin: int, correlation: int, with_extra_kernel: bool) -> None:
    ranges = [(begin, begin + STEP_NS, _STEP_ID), (begin + 10_000, begin + 400_000, _FORWARD_ID)]
    file.executemany(
        f"INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, {_THREAD}, ?, 0)",
        ranges,
    )
    calls = [
        (begin + 20_000, begin + 25_000, correlation + 1, _COPY_ID),
        (begin + 50_000, begin + 55_000, correlation + 2, _LAUNCH_ID),
        (begin + 60_000, begin + 65_000, correlation + 3, _LAUNCH_ID),
        (begin + 70_000, begin + 235_000, correlation + 4, _SYNC_ID),
    ]
    kernels = [
        (begin + 60_000, begin + 60_000 + GEMM_NS, correlation + 2, _GEMM_ID, _GEMM_ID),
        (begin + 170_000, begin + 170_000 + SOFTMAX_NS, correlation + 3, _SOFTMAX_FULL_ID, _SOFTMAX_ID),
    ]
    if with_extra_kernel:
        calls.append((begin + 240_000, begin + 245_000, correlation + 5, _LAUNCH_ID))
        kernels.append((begin + 250_000, begin + 251_000, correlation + 5, 99, 99))
    file.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, {_THREAD}, ?, ?, 0)", calls)
    file.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES "
        f"(?, ?, 0, 7, ?, {_PROCESS}, ?, ?, 32, 1, 1, 1, 128, 1, 1, 0, 0)",
        kernels,
    )
    file.execute(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, ?, {_PROCESS}, ?, 1, 1, 2)",
        (begin + 30_000, begin + 30_000 + COPY_NS, correlation + 1, COPY_BYTES),
    )
