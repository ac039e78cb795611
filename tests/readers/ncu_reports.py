"""Nsight Compute reports in miniature, written byte by byte, for a clone that has no real ones.

    report = Report()
    report.launch("gemm", metrics={"gpu__time_duration.sum": 1500.0})
    report.write(path)

The reader's own code is not used: what a report consists of is said here a second time, by NVIDIA's message
descriptions (`extras/FileFormat` of Nsight Compute). NVIDIA's `ncu-report` reads these reports.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.readers.nsys_reports import varint

MAGIC = b"NVR\x00"
PROCESS = 4711
THREAD = 4712
#: Stands where a real report holds the program's environment, command line, host or user.
SECRET = "API_TOKEN=do-not-print-me"

Metric = int | float | str | None


@dataclass(frozen=True)
class Float:
    """A number that is stored in 4 bytes instead of 8."""

    value: float


@dataclass(frozen=True)
class UInt32:
    """An integer that is stored in the field for 32 bits."""

    value: int


@dataclass(frozen=True)
class Instanced:
    """A metric with instances: keys and values."""

    value: Metric
    instances: Sequence[tuple[Metric, Metric]]


def put(number: int, value: int | float | str | bytes | Float | None) -> bytes:
    """One field of a message; nothing for None."""
    if value is None:
        return b""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, Float):
        return varint(number << 3 | 5) + struct.pack("<f", value.value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def sized(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def value_message(value: Any) -> bytes:
    match value:
        case str():
            return put(1, value)
        case Float():
            return put(2, value)
        case float():
            return put(3, value)
        case UInt32():
            return put(4, value.value)
        case _:
            return put(5, value)


def sizes(x: int, y: int = 1, z: int = 1) -> bytes:
    return put(1, x) + put(2, y) + put(3, z)


def push_pop(*names: str, thread: int = THREAD, calls: Sequence[int] | None = None) -> bytes:
    """An NVTX state in which one thread has these ranges open."""
    stack = b"".join(
        put(3, put(1, name) + put(3, call)) for name, call in zip(names, calls or range(1, len(names) + 1), strict=True)
    )
    domain = put(1, 0) + put(2, "<default domain>")
    return put(1, domain) + put(2, put(1, thread) + put(2, put(1, 0) + stack)) + put(4, 0)


def rule(identifier: str, *said: tuple[int, str, tuple[int, float] | None], section: str | None = None) -> bytes:
    """A result of a rule: kind, text, and where there is one the kind and size of a speedup."""
    items = b"".join(
        put(1, put(1, put(1, text) + put(2, kind)) + (put(10, put(1, gain[0]) + put(2, gain[1])) if gain else b""))
        for kind, text, gain in said
    )
    return put(1, identifier) + put(2, identifier.title()) + (put(3, items) if said else b"") + put(4, section)


@dataclass
class Report:
    """A report that grows block by block, as a real one does."""

    content: bytearray = field(default_factory=lambda: bytearray(MAGIC + sized(put(1, 7))))
    names: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def block(
        self,
        header: bytes = b"",
        *,
        sources: Sequence[bytes] = (),
        results: Mapping[int, Sequence[bytes]] | None = None,
        process: int | None = PROCESS,
        payload: int | None = None,
        trailing: bytes = b"",
    ) -> Report:
        """Adds a block; `results` by the number of the header's field that counts them."""
        results = results or {}
        messages = [*sources, *(message for number in (2, 7, 8, 9) for message in results.get(number, ()))]
        body = b"".join(map(sized, messages)) + trailing
        counts = b"".join(put(number, len(found)) for number, found in results.items())
        owner = put(6, put(1, process) + put(2, SECRET) + put(3, SECRET)) if process is not None else b""
        header = put(1, len(sources)) + header + counts + put(5, len(body) if payload is None else payload) + owner
        self.starts.append(len(self.content))
        self.content += sized(header) + body
        return self

    def session(self, details: bytes) -> Report:
        return self.block(put(3, details))

    def strings(self, *names: str) -> bytes:
        """A table with those of the names that no table has yet."""
        new = [name for name in dict.fromkeys(names) if name not in self.names]
        self.names += new
        return put(4, b"".join(put(1, name) for name in new))

    def metric(self, name: str, value: Any) -> bytes:
        """The message of one metric whose name stands in a table."""
        instances: Sequence[tuple[Metric, Metric]] = ()
        if isinstance(value, Instanced):
            value, instances = value.value, value.instances
        return (
            put(1, self.names.index(name))
            + (put(2, value_message(value)) if value is not None else b"")
            + b"".join(put(3, put(1, value_message(key)) + put(2, value_message(of))) for key, of in instances)
        )

    def launch(
        self,
        name: str = "gemm",
        metrics: Mapping[str, Any] | None = None,
        *,
        full_name: str | None = None,
        grid: tuple[int, ...] = (4, 2, 1),
        block: tuple[int, ...] = (128, 1, 1),
        extra: bytes = b"",
        process: int | None = PROCESS,
        sources: Sequence[bytes] = (),
    ) -> Report:
        """Adds one profiled kernel in a block of its own."""
        header = self.strings(*(metrics or {}))
        kernel = (
            put(1, THREAD) + put(2, 1) + put(3, 1) + put(4, 1)
            + put(5, f"_Z{name}") + put(6, name) + put(7, full_name or f"{name}(float *)")
            + put(8, 3) + put(9, sizes(0, 0, 0)) + put(10, sizes(*grid)) + put(11, sizes(*block))
            + b"".join(put(13, self.metric(metric, value)) for metric, value in (metrics or {}).items())
            + put(14, 1_700_000_000) + put(15, put(1, 1)) + put(16, 0) + put(22, 1) + put(23, 7)
            + extra
        )  # fmt: skip
        return self.block(header, results={2: [kernel]}, process=process, sources=sources)

    def result(self, number: int, metrics: Mapping[str, Any], extra: bytes = b"") -> Report:
        """Adds a result of another kind: 7 a range, 8 a command list, 9 a graph."""
        header = self.strings(*metrics)
        message = (
            put(1, THREAD) + put(2, 1)
            + b"".join(put(4, self.metric(metric, value)) for metric, value in metrics.items())
            + put(5, 1_700_000_000) + put(6, 0) + put(11, 3)
            + extra
        )  # fmt: skip
        return self.block(header, results={number: [message]})

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content)
        return path


def details(
    *, version: str | None = None, command: str | None = None, settings: Mapping[int, str] | None = None,
    devices: Mapping[int, Mapping[str, Metric]] | None = None,
) -> bytes:  # fmt: skip
    """Session details with secrets in all places where real ones have them."""
    executable = put(1, SECRET) + put(2, SECRET) + put(3, SECRET) + put(4, SECRET)
    return (
        put(1, PROCESS)
        + put(3, put(1, "Linux") + put(5, SECRET) + put(7, put(1, SECRET)))
        + b"".join(
            put(6, put(1, ordinal) + put(2, "GPU of this session") + b"".join(
                put(3, put(1, name) + put(2, value_message(value))) for name, value in attributes.items()
            ))
            for ordinal, attributes in (devices or {}).items()
        )
        + put(7, SECRET)
        + (put(8, put(1, "Nsight Compute Target") + put(2, version)) if version else b"")
        + put(9, executable)
        + (put(10, b"".join(put(number, text) for number, text in settings.items())) if settings else b"")
        + put(11, command)
    )  # fmt: skip
