"""The tables of a `Trace`, declared once: every column with its type, unit and meaning.

Conventions that every table keeps:

* time is `Int64` nanoseconds in the profile's own clock, in columns that end in `_ns`; bytes end in `_bytes`;
* `process` and `thread` are operating-system ids, `device` is the CUDA ordinal in the profile;
* host and device are joined on `(process, correlation)`: the same correlation id does occur in two processes of one
  file;
* names are dictionary-encoded (`polars.Enum`), because a capture holds millions of launches of a few hundred kernels;
* a quantity that the source does not record is null, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import SchemaError

__all__ = ["TABLES", "Column", "Table", "encode_names", "name_categories", "table"]

PolarsType: TypeAlias = "type[pl.DataType] | pl.DataType"

#: Marks a column of dictionary-encoded text; its concrete dtype is an `Enum` whose categories differ from file to file.
NAME = pl.Enum


@dataclass(frozen=True)
class Column:
    """One column: its type, whether it may be null, and what it means (with the unit)."""

    name: str
    dtype: PolarsType
    meaning: str
    nullable: bool = False

    def accepts(self, dtype: pl.DataType) -> bool:
        """Whether a frame's column of this dtype may stand here."""
        if self.dtype is NAME:
            return isinstance(dtype, pl.Enum)
        return dtype == self.dtype

    def empty(self) -> pl.Series:
        """A series of length zero with this column's name and type."""
        return pl.Series(self.name, [], dtype=pl.Enum([]) if self.dtype is NAME else self.dtype)


@dataclass(frozen=True)
class Table:
    """One table of the domain model: its columns in order, and what a row is."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def empty(self) -> pl.DataFrame:
        """A frame without rows that still has the whole schema."""
        return pl.DataFrame([column.empty() for column in self.columns])

    def checked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with exactly this table's columns, in order.

        Raises:
            SchemaError: a column is absent, has another type, or holds nulls where none may stand.
        """
        for column in self.columns:
            if column.name not in frame.columns:
                raise SchemaError(f"table {self.name}: column {column.name} is absent; found {frame.columns}")
            series = frame.get_column(column.name)
            if not column.accepts(series.dtype):
                raise SchemaError(
                    f"table {self.name}: column {column.name} has type {series.dtype}, expected {column.dtype}"
                )
            if not column.nullable and series.null_count():
                raise SchemaError(f"table {self.name}: column {column.name} holds {series.null_count()} nulls")
        return frame.select([column.name for column in self.columns])


def encode_names(codes: npt.NDArray[np.integer] | pl.Series, values: Iterable[str]) -> pl.Series:
    """Dictionary-encoded names: `values[codes[i]]` for each row.

    Args:
        codes: positions in `values`, one a row; a null code gives a null name.
        values: the distinct texts; repeated ones are merged.
    """
    texts = list(values)
    distinct = list(dict.fromkeys(texts))
    dictionary = pl.Series(texts, dtype=pl.Enum(distinct))
    positions = codes if isinstance(codes, pl.Series) else pl.Series(codes)
    return dictionary.gather(positions)


def name_categories(names: pl.Series) -> pl.Series:
    """The distinct texts that a dictionary-encoded column can hold, in the order of its codes (`to_physical`).

    Raises:
        SchemaError: the column is not dictionary-encoded.
    """
    if not isinstance(names.dtype, pl.Enum):
        raise SchemaError(f"column {names.name} is not dictionary-encoded but {names.dtype}")
    return names.dtype.categories


def _columns(*parts: Column | tuple[Column, ...]) -> tuple[Column, ...]:
    flat: list[Column] = []
    for part in parts:
        flat.extend((part,) if isinstance(part, Column) else part)
    return tuple(flat)


_SPAN = (
    Column("start_ns", pl.Int64, "begin"),
    Column("end_ns", pl.Int64, "end; never before the begin"),
)
_ON_DEVICE = (
    *_SPAN,
    Column("device", pl.Int32, "CUDA ordinal of the GPU"),
    Column("stream", pl.Int32, "CUDA stream id"),
    Column("process", pl.Int32, "process id that issued the work"),
    Column("correlation", pl.Int64, "joins the work to the API call that issued it, within the process", nullable=True),
)
_GRAPH_NODE = Column("graph_node", pl.Int64, "CUDA graph node, where the work was replayed from a graph", nullable=True)
_ON_THREAD = (
    *_SPAN,
    Column("process", pl.Int32, "process id"),
    Column("thread", pl.Int32, "thread id"),
)

TABLES: Mapping[str, Table] = {
    declared.name: declared
    for declared in (
        Table(
            "kernels",
            "one kernel execution on a GPU",
            _columns(
                _ON_DEVICE,
                Column("name", NAME, "short name: the function without namespace arguments and template parameters"),
                Column("full_name", NAME, "demangled name with template parameters and arguments"),
                Column("grid_x", pl.Int32, "blocks of the grid, x", nullable=True),
                Column("grid_y", pl.Int32, "blocks of the grid, y", nullable=True),
                Column("grid_z", pl.Int32, "blocks of the grid, z", nullable=True),
                Column("block_x", pl.Int32, "threads of a block, x", nullable=True),
                Column("block_y", pl.Int32, "threads of a block, y", nullable=True),
                Column("block_z", pl.Int32, "threads of a block, z", nullable=True),
                Column("registers_per_thread", pl.Int32, "registers that each thread uses", nullable=True),
                Column(
                    "static_shared_bytes", pl.Int32, "shared memory of a block, fixed at compile time", nullable=True
                ),
                Column(
                    "dynamic_shared_bytes", pl.Int32, "shared memory of a block, asked for at launch", nullable=True
                ),
                _GRAPH_NODE,
            ),
        ),
        Table(
            "copies",
            "one memory copy",
            _columns(
                _ON_DEVICE,
                Column("bytes", pl.Int64, "bytes moved"),
                Column("direction", NAME, "host-to-device, device-to-host, device-to-device, peer-to-peer, …"),
                Column("source_memory", NAME, "pageable, pinned, device, managed, …", nullable=True),
                Column("destination_memory", NAME, "pageable, pinned, device, managed, …", nullable=True),
                _GRAPH_NODE,
            ),
        ),
        Table(
            "memsets",
            "one memory fill",
            _columns(
                _ON_DEVICE,
                Column("bytes", pl.Int64, "bytes filled"),
                Column("memory", NAME, "pageable, pinned, device, managed, …", nullable=True),
                _GRAPH_NODE,
            ),
        ),
        Table(
            "graph_launches",
            "one CUDA graph execution traced as a whole, its inside hidden",
            _columns(
                _ON_DEVICE,
                Column("graph", pl.Int64, "id of the graph", nullable=True),
                Column("graph_exec", pl.Int64, "id of the instantiated graph", nullable=True),
            ),
        ),
        Table(
            "api_calls",
            "one call of the CUDA runtime or driver API on the host",
            _columns(
                _ON_THREAD,
                Column("correlation", pl.Int64, "joins the call to the work it issued, within the process"),
                Column("name", NAME, "function, without the version suffix that tools append"),
                Column("return_value", pl.Int32, "cudaError_t or CUresult; 0 is success", nullable=True),
            ),
        ),
        Table(
            "synchronizations",
            "one wait of the host for the device, or of a stream for an event",
            _columns(
                _SPAN,
                Column("device", pl.Int32, "CUDA ordinal of the GPU", nullable=True),
                Column("stream", pl.Int64, "CUDA stream id", nullable=True),
                Column("process", pl.Int32, "process id"),
                Column("correlation", pl.Int64, "joins the wait to its API call, within the process", nullable=True),
                Column("kind", NAME, "event, stream-wait-event, stream, context"),
            ),
        ),
        Table(
            "ranges",
            "one annotated interval of a host thread: NVTX, an operator, a user annotation",
            _columns(
                _ON_THREAD,
                Column("name", NAME, "the annotation's text"),
                Column("kind", NAME, "push-pop, start-end, cpu-op, user-annotation, python-function"),
                Column("domain", pl.Int64, "NVTX domain; 0 is the default one"),
                Column("depth", pl.Int32, "0 for an outermost range of its thread, 1 for one directly inside, …"),
                Column("parent", pl.Int64, "row of the enclosing range on the same thread", nullable=True),
            ),
        ),
        Table(
            "memory",
            "one allocation or release of memory that the source recorded",
            _columns(
                Column("time_ns", pl.Int64, "when"),
                Column("process", pl.Int32, "process id"),
                Column("device", pl.Int32, "CUDA ordinal of the GPU", nullable=True),
                Column("address", pl.Int64, "address, to match a release with its allocation", nullable=True),
                Column("delta_bytes", pl.Int64, "bytes allocated (positive) or released (negative)"),
                Column("memory", NAME, "pageable, pinned, device, managed, …", nullable=True),
            ),
        ),
        Table(
            "allocations",
            "one allocation or release by the framework's own allocator (PyTorch's caching allocator)",
            _columns(
                Column("time_ns", pl.Int64, "when"),
                Column("process", pl.Int32, "process id"),
                Column("thread", pl.Int32, "thread id"),
                Column("device", pl.Int32, "ordinal of the GPU; null for host memory", nullable=True),
                Column("address", pl.Int64, "address, to match a release with its allocation", nullable=True),
                Column("delta_bytes", pl.Int64, "bytes allocated (positive) or released (negative)"),
                Column("allocated_bytes", pl.Int64, "bytes in use after it, as the allocator counts", nullable=True),
                Column("reserved_bytes", pl.Int64, "bytes that the allocator holds after it", nullable=True),
            ),
        ),
        Table(
            "operators",
            "what a framework's operator (a range of kind cpu-op) recorded about itself",
            _columns(
                Column("range", pl.Int64, "row of the operator in `ranges`; ascending, each at most once"),
                Column("external_id", pl.Int64, "the profiler's number of the operator", nullable=True),
                Column(
                    "sequence",
                    pl.Int64,
                    "autograd sequence number; a backward operator bears the one of its forward operator",
                    nullable=True,
                ),
                Column(
                    "forward_thread",
                    pl.Int64,
                    "number of the thread that ran the forward operator; 0 or null in the forward pass",
                    nullable=True,
                ),
                Column("input_shapes", NAME, "JSON list of the inputs' shapes, tensor lists nested", nullable=True),
                Column("input_types", NAME, "JSON list of the inputs' types", nullable=True),
                Column("input_strides", NAME, "JSON list of the inputs' strides", nullable=True),
                Column("concrete_inputs", NAME, "JSON list of the values of scalar inputs, as text", nullable=True),
            ),
        ),
        Table(
            "autograd_links",
            "one recorded link from a forward operator to a backward one",
            _columns(
                Column("forward", pl.Int64, "row of the forward operator in `ranges`"),
                Column("backward", pl.Int64, "row of the backward operator in `ranges`"),
            ),
        ),
        Table(
            "python_functions",
            "one call of a Python function or of a torch.nn module",
            _columns(
                _ON_THREAD,
                Column("name", NAME, "file(line): function, or nn.Module: class_number"),
                Column("depth", pl.Int32, "0 for an outermost call of its thread, 1 for one directly inside, …"),
                Column("parent", pl.Int64, "row of the calling function on the same thread", nullable=True),
            ),
        ),
        Table(
            "collectives",
            "one collective communication as the framework described it",
            _columns(
                Column("kernel", pl.Int64, "row of its kernel in `kernels`", nullable=True),
                Column("name", NAME, "allreduce, allgather, reduce_scatter, broadcast, send, recv, …"),
                Column("group", NAME, "name of the process group", nullable=True),
                Column("group_ranks", NAME, "JSON list of the group's global ranks", nullable=True),
                Column("group_size", pl.Int32, "ranks of the group", nullable=True),
                Column("in_elements", pl.Int64, "elements that each rank puts in", nullable=True),
                Column("out_elements", pl.Int64, "elements that each rank gets out", nullable=True),
                Column("dtype", NAME, "type of the elements", nullable=True),
                Column("sequence", pl.Int64, "number of the collective in its group", nullable=True),
            ),
        ),
        Table(
            "os_calls",
            "one blocking call into the operating system",
            _columns(_ON_THREAD, Column("name", NAME, "function")),
        ),
        Table(
            "profiler_overhead",
            "one interval in which the profiler itself held a host thread up",
            _columns(_ON_THREAD, Column("name", NAME, "what the profiler was doing")),
        ),
    )
}


def table(name: str) -> Table:
    """The declaration of one table of a `Trace`.

    Raises:
        SchemaError: there is no table of that name.
    """
    try:
        return TABLES[name]
    except KeyError:
        raise SchemaError(f"there is no table {name}; the tables are {', '.join(TABLES)}") from None
