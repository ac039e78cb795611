"""`Device`: what a GPU can do at most, as far as the profile says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum

import polars as pl

from warplens.profile.tables import TABLES


@dataclass(frozen=True)
class Device:
    """A GPU that the profiled program used. A limit that the profile does not state is None, never a guess."""

    ordinal: int
    name: str
    chip: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    clock_hz: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    l2_bytes: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    max_threads_per_block: int | None = None
    registers_per_sm: int | None = None
    shared_bytes_per_sm: int | None = None


def worst_first(notes: Iterable[Note]) -> tuple[Note, ...]:
    """The notes, those that limit the answers most first, else in their order."""
    order = (NoteLevel.BLOCKING, NoteLevel.WARNING, NoteLevel.INFO)
    return tuple(sorted(notes, key=lambda note: order.index(note.level)))


@dataclass(frozen=True)
class Recorder:
    """A profiler: what holds for every profile that it recorded. The reader of its files fills it in.

    Attributes:
        name: for people (`Nsight Systems`).
        call_overhead_ns: what this profiler adds to the host's time for each CUDA call that it records.
        operator_overhead_ns: the same for each operator of a framework.
        unprofiled_share: of the time that the GPU waits for launches under this profiler, what it waits without.
        remedies: by code of a `Note`, how to record with this profiler what a profile lacks.
    """

    name: str
    unprofiled_share: float = 1.0
    call_overhead_ns: float = 0.0
    operator_overhead_ns: float = 0.0
    remedies: Mapping[str, str] = field(default_factory=dict, hash=False)


# --- `Capture` ---
#
# Nothing in here identifies a person or a machine: no environment, host, user, command line or path.


class NoteLevel(str, Enum):
    """How much a note limits the answers."""

    INFO = "info"
    WARNING = "warning"
    BLOCKING = "blocking"


@dataclass(frozen=True)
class Note:
    """One thing that the reader or an analysis wants the user to know before the numbers.

    Attributes:
        code: stable identifier, for machines (`no-kernel-table`, `dropped-events`, …).
        level: `blocking` means that the profile cannot answer the main questions.
        text: what was found, one sentence.
        remedy: what to do about it, often the exact command; None where there is nothing to do.
    """

    code: str
    level: NoteLevel
    text: str
    remedy: str | None = None


@dataclass(frozen=True)
class Capture:
    """Facts about one profile file.

    Attributes:
        source: the file's own name, without folders.
        format: `nsys-sqlite`, …
        recorder: the profiler.
        tool_version: version that wrote the file; None where it does not say.
        schema_version: version of the file's schema; None where it does not say.
        devices: the GPUs that the program used, in CUDA order.
        window_ns: begin and end of the recorded time, in the profile's clock.
        epoch_ns: Unix time of the clock's zero, to place several files on one clock; None where the file does not say.
        rank: the process's number in a distributed run; None where the file does not say.
        world_size: number of processes of the distributed run; None where the file does not say.
        recorded: which of the schema's tables the file held, empty or not.
        notes: what the reader noticed.
        stream_kinds: process, stream, and `legacy-default`, `blocking` (takes turns with that) or `non-blocking`.
    """

    source: str
    format: str
    recorder: Recorder
    tool_version: str | None = None
    schema_version: str | None = None
    devices: tuple[Device, ...] = ()
    window_ns: tuple[int, int] = (0, 0)
    epoch_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    recorded: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = field(default=())
    stream_kinds: tuple[tuple[int, int, str], ...] = ()

    @property
    def tool(self) -> str:
        """The profiler, for people."""
        return self.recorder.name

    def device(self, ordinal: int) -> Device | None:
        """The GPU with this CUDA ordinal, where the profile describes it."""
        return next((device for device in self.devices if device.ordinal == ordinal), None)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One profile as tables. Each is checked against `warplens.profile.tables.TABLES` on entry.

    A table that the source lacks is an empty frame of the right schema, and `capture.recorded` does not name it:
    "no copies happened" and "copies were not recorded" stay distinguishable.

    Raises:
        SchemaError: a frame does not fit its table.
    """

    capture: Capture
    kernels: pl.DataFrame = field(default_factory=TABLES["kernels"].empty)
    copies: pl.DataFrame = field(default_factory=TABLES["copies"].empty)
    memsets: pl.DataFrame = field(default_factory=TABLES["memsets"].empty)
    graph_launches: pl.DataFrame = field(default_factory=TABLES["graph_launches"].empty)
    api_calls: pl.DataFrame = field(default_factory=TABLES["api_calls"].empty)
    synchronizations: pl.DataFrame = field(default_factory=TABLES["synchronizations"].empty)
    ranges: pl.DataFrame = field(default_factory=TABLES["ranges"].empty)
    memory: pl.DataFrame = field(default_factory=TABLES["memory"].empty)
    allocations: pl.DataFrame = field(default_factory=TABLES["allocations"].empty)
    operators: pl.DataFrame = field(default_factory=TABLES["operators"].empty)
    autograd_links: pl.DataFrame = field(default_factory=TABLES["autograd_links"].empty)
    python_functions: pl.DataFrame = field(default_factory=TABLES["python_functions"].empty)
    collectives: pl.DataFrame = field(default_factory=TABLES["collectives"].empty)
    os_calls: pl.DataFrame = field(default_factory=TABLES["os_calls"].empty)
    profiler_overhead: pl.DataFrame = field(default_factory=TABLES["profiler_overhead"].empty)

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name != "capture":
                object.__setattr__(self, item.name, TABLES[item.name].checked(getattr(self, item.name)))

    def __repr__(self) -> str:
        """One line: where it came from, and which tables hold how many rows."""
        rows = {item.name: getattr(self, item.name).height for item in fields(self) if item.name != "capture"}
        held = ", ".join(f"{count:,} {name}" for name, count in rows.items() if count) or "no events"
        gpus = ", ".join(dict.fromkeys(device.name for device in self.capture.devices))
        return f"<Trace {' · '.join(filter(None, (self.capture.source, self.capture.tool, gpus)))}: {held}>"

    @property
    def has_device_work(self) -> bool:
        """Whether anything at all ran on a GPU in this profile."""
        return any(frame.height for frame in (self.kernels, self.copies, self.memsets, self.graph_launches))
