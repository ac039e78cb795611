"""Exports of Nsight Systems in miniature, for what the real ones do not show and for a clone that has none of them.

    export = Export()
    export.call(0, 5, "cudaLaunchKernel_v7000", correlation=1)
    export.kernel(10, 20, "gemm", correlation=1)
    export.write(path)

A table gets the columns of the rows that were added to it, so that a test can leave out or add what a version did.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 77
THREAD = 78
#: Stands where a real export holds the program's environment.
SECRET = "API_TOKEN=do-not-print-me"

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NONE = 0xFFFFFFFF


def global_pid(process: int = PROCESS, machine: int = 1) -> int:
    return machine << 48 | process << 24


def global_tid(thread: int = THREAD, process: int = PROCESS) -> int:
    return global_pid(process) | thread


class Export:
    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {"StringIds": [], "TARGET_INFO_SESSION_START_TIME": []}
        self._ids: dict[str | bytes, int] = {}
        self.string(SECRET)

    def string(self, text: str | bytes) -> int:
        """The id of a string; bytes are stored as text, however badly they are encoded."""
        if text not in self._ids:
            self._ids[text] = len(self._ids) + 1
            self.row("StringIds", id=self._ids[text], value=text)
        return self._ids[text]

    def row(self, table: str, **columns: Any) -> None:
        self.tables.setdefault(table, []).append(columns)

    def empty(self, table: str, *columns: str) -> None:
        self.tables[table] = [dict.fromkeys(columns)]

    def kernel(self, start: int, end: int, name: str = "gemm", correlation: int = 1, **columns: Any) -> None:
        row = {
            "start": start,
            "end": end,
            "deviceId": 0,
            "streamId": 7,
            "correlationId": correlation,
            "globalPid": global_pid(),
            "shortName": self.string(name),
            "demangledName": self.string(f"void {name}<float>(float *)"),
            "gridX": 4,
            "gridY": 1,
            "gridZ": 1,
            "blockX": 128,
            "blockY": 1,
            "blockZ": 1,
            "registersPerThread": 32,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": 1024,
            "graphNodeId": None,
        }
        self.row(KERNELS, **row | columns)

    def call(
        self, start: int, end: int, name: str | bytes = "cudaLaunchKernel_v7000", correlation: int = 1, **columns: Any
    ) -> None:
        row = {
            "start": start,
            "end": end,
            "eventClass": 0,
            "globalTid": global_tid(),
            "correlationId": correlation,
            "nameId": self.string(name),
            "returnValue": 0,
        }
        self.row(CALLS, **row | columns)

    def copy(self, start: int, end: int, kind: int = 1, correlation: int = 1, **columns: Any) -> None:
        row = {
            "start": start,
            "end": end,
            "deviceId": 0,
            "streamId": 7,
            "correlationId": correlation,
            "globalPid": global_pid(),
            "bytes": 1000,
            "copyKind": kind,
            "srcKind": 0,
            "dstKind": 2,
        }
        self.row(COPIES, **row | columns)

    def range(self, start: int, end: int | None, text: str | bytes | None = "step", **columns: Any) -> None:
        row = {
            "start": start,
            "end": end,
            "eventType": 59,
            "text": text,
            "globalTid": global_tid(),
            "textId": None,
            "domainId": 0,
        }
        self.row("NVTX_EVENTS", **row | columns)

    def gpu(self, number: int, name: str, **columns: Any) -> None:
        row = {"id": number, "name": name, "cuDevice": number, "smCount": 132, "computeMajor": 9, "computeMinor": 0}
        self.row("TARGET_INFO_GPU", **row | columns)

    def write(self, path: Path) -> Path:
        with closing(sqlite3.connect(path)) as file:
            for table, rows in self.tables.items():
                columns = list(dict.fromkeys(name for row in rows for name in row)) or ["unused"]
                types = {"id": "INTEGER PRIMARY KEY", "value": "TEXT", "name": "TEXT", "text": "TEXT"}
                if table != "StringIds":
                    types.pop("id")
                listed = ", ".join(f'"{name}" {types.get(name, "INTEGER")}' for name in columns)
                file.execute(f'CREATE TABLE "{table}" ({listed})')
                for row in rows:
                    if any(value is not None for value in row.values()):
                        places = ", ".join("CAST(? AS TEXT)" if isinstance(row.get(c), bytes) else "?" for c in columns)
                        file.execute(f'INSERT INTO "{table}" VALUES ({places})', [row.get(c) for c in columns])
            file.commit()
        return path
