"""The tables of a `Trace`: what readers fill and analyses read, with every column's type, unit and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from warplens.profile.columns import column, optional, table
from warplens.profile.schema import NAME, Column, Table

_SPAN = "start_ns end_ns"
_CORRELATION = optional(pl.Int64, correlation="joins the work to the API call that launched it, within the process")
_ON_DEVICE = (
    *(column(name) for name in ("start_ns", "end_ns", "device", "stream")),
    column("process", help="id of the process that launched the work"),
    *_CORRELATION,
)
#: Blocks of a kernel's grid and threads of one block: expressions on `kernels`, and on the launches of counters.
#: Null where one of the sizes is.
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
            optional(pl.Int32, **{f"grid_{axis}": f"blocks of the grid, {axis}" for axis in "xyz"}),
            optional(pl.Int32, **{f"block_{axis}": f"threads of a block, {axis}" for axis in "xyz"}),
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
