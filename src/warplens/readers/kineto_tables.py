"""From the events of a Kineto trace to the tables of a `Trace`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from warplens.profile.nesting import nest
from warplens.profile.schema import TABLES
from warplens.readers.kineto_collectives import collectives_of
from warplens.readers.kineto_gpu import copies_of, kernels_of, memsets_of, waits_of
from warplens.readers.kineto_operators import autograd_links_of, operators_of
from warplens.readers.kineto_rows import int32, named, together, with_threads
from warplens.readers.kineto_spans import Spans

__all__ = ["host_process", "recorded_tables", "tables_of"]

#: torch.profiler's device type (c10::DeviceType) of host memory.
_HOST_MEMORY = 0

#: Overhead that CUDA has without a profiler, too: compiling, loading lazily, a full command buffer.
_NOT_THE_PROFILERS = r"(?i)compil|lazy|command buffer"

#: A call without a correlation id issued no work that could be told.
_NO_CORRELATION = -1


def host_process(spans: Spans) -> int:
    """The process of most host events, 0 where there are none."""
    for kind in ("call", "operator", "annotation", "python"):
        counts = spans.frames[kind]["process"].drop_nulls().value_counts(sort=True)
        if counts.height:
            return int(counts["process"][0])
    return 0


def tables_of(spans: Spans) -> dict[str, pl.DataFrame]:
    """The tables by name; the spans' frames are let go of one by one."""
    host = host_process(spans)
    frames = spans.frames
    calls, operators = frames.pop("call"), frames.pop("operator")
    kernels = kernels_of(frames.pop("kernel"), calls, host)
    tables = {
        "kernels": kernels,
        "collectives": collectives_of(kernels, operators, calls),
        "copies": copies_of(frames.pop("copy"), calls, host),
        "memsets": memsets_of(frames.pop("memset"), calls, host),
        "synchronizations": waits_of(frames.pop("wait"), calls, host),
    }
    tables["kernels"] = TABLES["kernels"].checked(kernels)
    del kernels
    tables["api_calls"] = with_threads(
        calls.select("start_ns", "end_ns", "process", "thread", pl.col("correlation").fill_null(_NO_CORRELATION)), host
    ).with_columns(named(calls["name"]), return_value=pl.lit(None, pl.Int32))
    del calls
    overheads = frames.pop("overhead")
    overheads = with_threads(overheads, host).with_columns(named(overheads["name"]))
    tables["profiler_overhead"] = overheads.filter(~pl.col("name").cast(pl.String).str.contains(_NOT_THE_PROFILERS))
    tables["ranges"] = _ranges(operators, frames.pop("annotation"), host)
    tables["operators"] = operators_of(operators)
    tables["autograd_links"] = autograd_links_of(spans.arrows, operators, tables["ranges"], host)
    del operators
    functions = frames.pop("python")
    tables["python_functions"] = _nested(with_threads(functions, host).with_columns(named(functions["name"])))
    tables["allocations"] = _allocations(frames.pop("allocation"), host)
    return {name: TABLES[name].checked(tables[name]) if name in tables else TABLES[name].empty() for name in TABLES}


def _ranges(operators: pl.DataFrame, annotations: pl.DataFrame, host: int) -> pl.DataFrame:
    """Operators first, in their order, then annotations."""
    columns = ("start_ns", "end_ns", "process", "thread")
    rows = with_threads(pl.concat([operators.select(columns), annotations.select(columns)]), host)
    kinds = pl.Enum(["cpu-op", "user-annotation"])
    rows = rows.with_columns(
        together([named(operators["name"]), named(annotations["name"])]).alias("name"),
        pl.concat(
            [
                pl.repeat("cpu-op", operators.height, dtype=kinds, eager=True),
                pl.repeat("user-annotation", annotations.height, dtype=kinds, eager=True),
            ]
        ).alias("kind"),
        domain=pl.lit(0, pl.Int64),
    )
    return _nested(rows)


def _nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows on threads with `depth` and `parent`."""
    thread = rows["process"].to_numpy().astype(np.int64) * 2**32 + rows["thread"].to_numpy()
    nesting = nest(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy(), thread)
    return rows.with_columns(
        pl.Series("depth", nesting.depth, dtype=pl.Int32),
        pl.Series("parent", nesting.parent).replace(-1, None).alias("parent"),
    )


def _allocations(events: pl.DataFrame, host: int) -> pl.DataFrame:
    found = with_threads(events, host).filter(pl.col("delta_bytes").is_not_null())
    on_gpu = pl.col("device_type").fill_null(_HOST_MEMORY) != _HOST_MEMORY
    return found.rename({"start_ns": "time_ns"}).with_columns(
        pl.when(on_gpu).then("device_number").pipe(int32).alias("device")
    )


def recorded_tables(tables: Mapping[str, pl.DataFrame], header: Mapping[str, Any]) -> frozenset[str]:
    """Which tables the trace has, empty or not.

    GPU activities are recorded together, and so is all that operators bring along.
    """
    recorded = {name for name, frame in tables.items() if frame.height}
    if recorded & {"kernels", "copies", "memsets"}:
        recorded |= {"kernels", "copies", "memsets"}
    if "operators" in recorded:
        recorded |= {"ranges", "autograd_links"}
    if header.get("profile_memory") == 1:
        recorded.add("allocations")
    if header.get("with_stack") == 1:
        recorded.add("python_functions")
    return frozenset(recorded)
