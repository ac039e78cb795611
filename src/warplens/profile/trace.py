"""`Trace`: a profile's events as tables whose columns have type, unit and meaning; and the `Device` they ran on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

import polars as pl

from warplens.errors import shown_name
from warplens.profile.columns import column, optional, table
from warplens.profile.schema import NAME, Column, Table

_SPAN = "start_ns end_ns"
_ON_DEVICE = (
    *(column(name) for name in ("start_ns", "end_ns", "device", "stream")),
    column("process", help="id of the process that launched the work"),
    *optional(pl.Int64, correlation="joins the work to the API call that launched it, within the process"),
)
#: Columns of a launch's size, in `kernels` and in the launches of counters, and their names.
SIZE_COLUMNS: Final = optional(
    pl.Int32,
    **{f"grid_{axis}": f"blocks of the grid, {axis}" for axis in "xyz"},
    **{f"block_{axis}": f"threads of a block, {axis}" for axis in "xyz"},
)
LAUNCH_SIZE: Final = tuple(size.name for size in SIZE_COLUMNS)
#: Blocks of a kernel's grid and threads of one block: expressions on `kernels` and on the launches of counters, null
#: where one of the sizes is.
GRID_BLOCKS: Final = (pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")).alias("blocks")
BLOCK_THREADS: Final = (pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z")).alias("threads")

_GRAPH_NODE = optional(pl.Int64, graph_node="CUDA graph node, where the work was replayed from a graph")
_ON_THREAD = f"{_SPAN} process thread"
_KINDS_OF_MEMORY = "pageable, pinned, device, managed, …"
_DEVICE = optional(pl.Int32, device="CUDA ordinal of the GPU")
_ADDRESS = optional(pl.Int64, address="address, to match a free with its allocation")


def _name(meaning: str, name: str = "name") -> Column:
    return Column(name, NAME, meaning)


TABLES: Final[Mapping[str, Table]] = {
    declared.name: declared
    for declared in (
        table(
            "kernels",
            "one kernel execution on a GPU",
            _ON_DEVICE,
            _name("short name: the function without namespace arguments and template parameters"),
            _name("demangled name with template parameters and arguments", "full_name"),
            SIZE_COLUMNS,
            optional(
                pl.Int32,
                registers_per_thread="registers that each thread uses",
                static_shared_bytes="shared memory of a block, fixed at compile time",
                dynamic_shared_bytes="shared memory of a block, requested at launch",
            ),
            _GRAPH_NODE,
        ),
        table(
            "copies",
            "one memory copy",
            _ON_DEVICE,
            column("bytes", help="bytes moved"),
            _name("host-to-device, device-to-host, device-to-device, peer-to-peer, …", "direction"),
            optional(NAME, source_memory=_KINDS_OF_MEMORY, destination_memory=_KINDS_OF_MEMORY),
            _GRAPH_NODE,
        ),
        table(
            "memsets",
            "one memory fill (memset)",
            _ON_DEVICE,
            column("bytes", help="bytes filled"),
            optional(NAME, memory=_KINDS_OF_MEMORY),
            _GRAPH_NODE,
        ),
        table(
            "graph_launches",
            "one CUDA graph execution traced as a whole, its inside hidden",
            _ON_DEVICE,
            optional(pl.Int64, graph="id of the graph", graph_exec="id of the instantiated graph"),
        ),
        table(
            "api_calls",
            "one call of the CUDA runtime or driver API on the host",
            _ON_THREAD,
            column("correlation", help="joins the call to the work it issued, within the process"),
            _name("function, without the version suffix that tools append"),
            optional(pl.Int32, return_value="cudaError_t or CUresult; 0 is success"),
        ),
        table(
            "synchronizations",
            "one wait of the host for the device, or of a stream for an event",
            _SPAN,
            _DEVICE,
            optional(pl.Int64, stream="CUDA stream id"),
            "process",
            optional(pl.Int64, correlation="joins the wait to its API call, within the process"),
            _name("event, stream-wait-event, stream, context", "kind"),
        ),
        table(
            "ranges",
            "one annotated interval of a host thread: NVTX, an operator, a user annotation",
            _ON_THREAD,
            _name("the annotation's text"),
            _name("push-pop, start-end, cpu-op, user-annotation, python-function", "kind"),
            Column("domain", pl.Int64, "NVTX domain; 0 is the default one"),
            column(
                "depth", dtype=pl.Int32, help="0 for an outermost range of its thread, 1 for one directly inside, …"
            ),
            optional(pl.Int64, parent="row of the enclosing range on the same thread"),
        ),
        table(
            "memory",
            "one recorded allocation or free of device memory",
            "time_ns process",
            _DEVICE,
            _ADDRESS,
            "delta_bytes",
            optional(NAME, memory=_KINDS_OF_MEMORY),
        ),
        table(
            "allocations",
            "one allocation or free by the framework's own allocator (PyTorch's caching allocator)",
            "time_ns process thread",
            optional(pl.Int32, device="ordinal of the GPU; null for host memory"),
            _ADDRESS,
            "delta_bytes",
            optional(
                pl.Int64,
                allocated_bytes=("bytes in use after it, as the allocator counts", "Allocated"),
                reserved_bytes=("bytes reserved by the allocator after it", "Reserved"),
            ),
        ),
        table(
            "operators",
            "what a framework's operator (a range of kind cpu-op) recorded about itself",
            column(
                "range",
                dtype=pl.Int64,
                help="row of the operator in `ranges`; ascending, each at most once",
                kind="count",
            ),
            optional(
                pl.Int64,
                external_id="the profiler's number of the operator",
                sequence="autograd sequence number; a backward operator has that of its forward operator",
                forward_thread="number of the thread that ran the forward operator; 0 or null in the forward pass",
            ),
            optional(
                NAME,
                input_shapes="JSON list of the inputs' shapes, tensor lists nested",
                input_types="JSON list of the inputs' types",
                input_strides="JSON list of the inputs' strides",
                concrete_inputs="JSON list of the values of scalar inputs, as text",
            ),
        ),
        table(
            "autograd_links",
            "one recorded link from a forward operator to a backward one",
            column(
                "forward", dtype=pl.Int64, help="row of the forward operator in `ranges`", title="Forward", kind="count"
            ),
            Column("backward", pl.Int64, "row of the backward operator in `ranges`"),
        ),
        table(
            "python_functions",
            "one call of a Python function or of a torch.nn module",
            _ON_THREAD,
            _name("file(line): function, or nn.Module: class_number"),
            column("depth", dtype=pl.Int32, help="0 for an outermost call of its thread, 1 for one directly inside, …"),
            optional(pl.Int64, parent="row of the calling function on the same thread"),
        ),
        table(
            "collectives",
            "one collective communication as the framework described it",
            optional(pl.Int64, kernel="row of its kernel in `kernels`"),
            _name("allreduce, allgather, reduce_scatter, broadcast, send, recv, …"),
            optional(NAME, group="name of the process group", group_ranks="JSON list of the group's global ranks"),
            optional(pl.Int32, group_size="ranks of the group"),
            optional(
                pl.Int64,
                in_elements="input elements per rank",
                out_elements="output elements per rank",
            ),
            optional(NAME, dtype="type of the elements"),
            optional(pl.Int64, sequence="number of the collective in its group"),
        ),
        table("os_calls", "one blocking call into the operating system", _ON_THREAD, _name("function")),
        table(
            "profiler_overhead",
            "one interval in which the profiler itself blocked a host thread",
            _ON_THREAD,
            _name("what the profiler was doing"),
        ),
    )
}


#: Tables of GPU work, by kind of work.
WORK_KINDS: Final = {"kernel": "kernels", "copy": "copies", "memset": "memsets", "graph": "graph_launches"}
WORK_TABLES: Final = tuple(WORK_KINDS.values())

#: Beside the numbers of rows by table in an estimate of a profile's size: distinct names, and their bytes.
TEXTS: Final = "texts"
TEXT_BYTES: Final = "text_bytes"


@dataclass(frozen=True)
class Device:
    """A GPU used by the profiled program. A limit that the profile does not state is None, never a guess."""

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
    """The notes sorted by level, the most limiting first."""
    order = (NoteLevel.BLOCKING, NoteLevel.WARNING, NoteLevel.INFO)
    return tuple(sorted(notes, key=lambda note: order.index(note.level)))


@dataclass(frozen=True)
class Recorder:
    """A profiler: facts that hold for every profile it recorded, given by the reader of its files."""

    name: str  #: for people (`Nsight Systems`)
    #: host time for issuing work without this profiler, as a share of the time with it
    unprofiled_share: float = 1.0
    #: whether it starts inside the program, so that the first recorded step pays for the start
    slows_first_step: bool = False
    #: the tool that reads hardware counters on the GPUs of the profile
    counters: Literal["ncu", "rocprof-compute"] = "ncu"
    #: by code of a `Note`, how to record the missing data with this profiler
    remedies: Mapping[str, str] = field(default_factory=dict, hash=False)


# --- `Capture` ---
#
# Nothing in it identifies a person or a machine: no environment, host, user, command line or path.


class NoteLevel(str, Enum):
    """Severity of a note: how much it limits the results."""

    INFO = "info"
    WARNING = "warning"
    BLOCKING = "blocking"


@dataclass(frozen=True)
class Note:
    """A finding of the reader or an analysis that users should know before the numbers.

    Attributes:
        code: stable identifier, for machines (`no-kernel-table`, `dropped-events`, …).
        level: `blocking` means that the profile cannot answer the main questions.
        text: the finding, one sentence.
        remedy: what to do about it, often the exact command; None where nothing can be done.
    """

    code: str
    level: NoteLevel
    text: str
    remedy: str | None = None


@dataclass(frozen=True)
class Capture:
    """Facts about one profile file.

    Attributes:
        source: the file's own name (`shown_name`), without folders.
        format: `nsys-sqlite`, …
        tool_version: version of the tool that wrote the file; None if not stated.
        schema_version: version of the file's schema; None if not stated.
        devices: the GPUs that the program used, in CUDA order.
        window_ns: begin and end of the recorded time, in the profile's clock.
        epoch_ns: Unix time of the clock's zero, to place several files on one clock; None if not stated.
        began_ns: Unix time at which the recording began, to put files in order; None if not stated.
        rank: the process's number in a distributed run; None if not stated.
        world_size: number of processes of the distributed run; None if not stated.
        recorded: which of the schema's tables the file held, empty or not.
        notes: findings of the reader.
        stream_kinds: process, stream, and `legacy-default`, `blocking` (takes turns with it) or `non-blocking`.
    """

    source: str
    format: str
    recorder: Recorder
    tool_version: str | None = None
    schema_version: str | None = None
    devices: tuple[Device, ...] = ()
    window_ns: tuple[int, int] = (0, 0)
    epoch_ns: int | None = None
    began_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    recorded: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = field(default=())
    stream_kinds: tuple[tuple[int, int, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", shown_name(self.source))

    @property
    def tool(self) -> str:
        """Name of the profiler, for people."""
        return self.recorder.name

    def device(self, ordinal: int) -> Device | None:
        """The GPU with this CUDA ordinal; None if the profile does not describe it."""
        return next((device for device in self.devices if device.ordinal == ordinal), None)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One profile as tables. Each is checked against `warplens.profile.trace.TABLES` on construction.

    A table that the source lacks is an empty frame with the right schema, and `capture.recorded` does not name it: "no
    copies happened" and "copies were not recorded" stay distinguishable.

    Raises:
        SchemaError: a frame does not match its table.
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
        for name, declared in TABLES.items():
            object.__setattr__(self, name, declared.checked(getattr(self, name)))

    def __repr__(self) -> str:
        """One line: source, tool, GPUs, and the number of rows of each table."""
        rows = ((name, getattr(self, name).height) for name in TABLES)
        counts = ", ".join(f"{count:,} {name}" for name, count in rows if count) or "no events"
        gpus = ", ".join(dict.fromkeys(device.name for device in self.capture.devices))
        return f"<Trace {' · '.join(filter(None, (self.capture.source, self.capture.tool, gpus)))}: {counts}>"

    @property
    def has_device_work(self) -> bool:
        """Whether anything ran on a GPU in this profile."""
        return any(getattr(self, name).height for name in WORK_TABLES)
