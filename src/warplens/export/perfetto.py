"""A profile as a Perfetto trace: the viewer at ui.perfetto.dev, and SQL through its trace processor.

GPUs come first, one track a stream; then the host's threads, each with its annotated ranges, its CUDA API calls, and
whatever else the profile holds of it. Arrows lead from a launching call to its work. Where the memory of a GPU was
recorded there is a counter track. Slices carry their numbers as arguments (grid, block, registers, bytes, category).

Source of the format: Perfetto's reference "Writing TrackEvent Protos Synthetically" and its published schema. Names are
interned, and every packet of one kind has one length (`warplens.export.wire`), so that writing costs no loop over
events.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError
from warplens.export.perfetto_packets import ARGUMENTS, Layer, PacketWriter

__all__ = ["PerfettoSummary", "write_perfetto"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PerfettoSummary:
    """What was written: numbers of tracks, slices and arrows, and the size of the file."""

    tracks: int
    slices: int
    flows: int
    bytes: int


def write_perfetto(timeline: Timeline, target: Path) -> PerfettoSummary:
    """Writes a profile as a Perfetto trace (protobuf).

    Args:
        timeline: the profile.
        target: file to write; it is replaced.

    Raises:
        UsageError: the profile holds nothing that lasts.
    """
    trace = timeline.trace
    layers = [layer for layer in (*_device_layers(timeline), *_host_layers(timeline)) if layer.frame.height]
    if not layers:
        raise UsageError(f"{trace.capture.source}: the profile holds nothing to draw")
    writer = PacketWriter(_zero(timeline))
    packets: list[npt.NDArray[np.uint8]] = []
    for layer in layers:
        packets.extend(writer.slices(layer))
    for name, frame in _memory_levels(timeline).items():
        packets.append(writer.levels(name, frame))
    head = b"".join((*writer.descriptors(timeline), writer.dictionary()))
    with target.open("wb") as file:
        file.write(head)
        file.flush()
        for packet in packets:
            packet.tofile(file)
    size = target.stat().st_size
    return PerfettoSummary(len(writer.tracks), writer.slice_count, writer.flow_count, size)


def _zero(timeline: Timeline) -> int:
    """The time that becomes zero: the profile's own zero, unless something stands before it."""
    trace = timeline.trace
    first = [
        int(frame["start_ns"].min() or 0)  # type: ignore[arg-type]
        for frame in (timeline.work, trace.ranges, trace.api_calls, trace.os_calls, trace.profiler_overhead)
        if frame.height
    ]
    return min(0, *first) if first else 0


# ── what is drawn ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _device_layers(timeline: Timeline) -> list[Layer]:
    trace = timeline.trace
    flows = _flows(timeline)
    frames = {
        "kernel": trace.kernels.with_columns(categories_of(trace.kernels["full_name"]).alias("category")),
        "copy": trace.copies.with_columns(
            pl.format("copy {}", pl.col("direction").cast(pl.String)).alias("name"), pl.lit("copy").alias("category")
        ),
        "memset": trace.memsets.with_columns(pl.lit("memset").alias("name"), pl.lit("memset").alias("category")),
        "graph": trace.graph_launches.with_columns(
            pl.lit("CUDA graph").alias("name"), pl.lit("graph").alias("category")
        ),
    }
    columns = ("start_ns", "end_ns", "name", "category", "device", "stream", *ARGUMENTS, "flow")
    # All kinds of work of a stream stand on one track, so they are laid out together.
    drawn = [
        frame.with_columns(
            pl.Series("flow", flows[kind]), pl.col("name").cast(pl.String), pl.col("category").cast(pl.String)
        ).select(name for name in columns if name in {*frame.columns, "flow"})
        for kind, frame in frames.items()
        if frame.height
    ]
    if not drawn:
        return []
    return [Layer(pl.concat(drawn, how="diagonal_relaxed"), ("device", "stream"), "", nests=False)]


def _flows(timeline: Timeline) -> dict[str, Int64s]:
    """For each table of GPU work the number of the arrow that ends at each row: row of the launching call + 1."""
    work = timeline.work.select("kind", "row", "api_row", "start_ns").filter(pl.col("api_row").is_not_null())
    # A graph's call issues many kernels; the arrow leads to the first of them.
    first = work.sort("start_ns", maintain_order=True).unique("api_row", keep="first", maintain_order=True)
    trace = timeline.trace
    heights = {
        "kernel": trace.kernels.height,
        "copy": trace.copies.height,
        "memset": trace.memsets.height,
        "graph": trace.graph_launches.height,
    }
    flows = {}
    for kind, height in heights.items():
        mine = first.filter(pl.col("kind") == kind)
        flows[kind] = np.zeros(height, dtype=np.int64)
        flows[kind][mine["row"].to_numpy()] = mine["api_row"].to_numpy() + 1
    return flows


def _host_layers(timeline: Timeline) -> list[Layer]:
    trace = timeline.trace
    calls = trace.api_calls
    flow = np.zeros(calls.height, dtype=np.int64)
    launching = timeline.work["api_row"].drop_nulls().unique().to_numpy()
    flow[launching] = launching + 1
    owner = ("process", "thread")
    return [
        Layer(_named(trace.ranges, pl.col("kind").cast(pl.String)), owner, ""),
        Layer(_named(trace.python_functions, pl.lit("python")), owner, "Python"),
        Layer(_named(calls, pl.lit("api")).with_columns(pl.Series("flow", flow)), owner, "CUDA API"),
        Layer(_named(trace.os_calls, pl.lit("os")), owner, "operating system"),
        Layer(_named(trace.profiler_overhead, pl.lit("profiler")), owner, "profiler"),
    ]


def _named(frame: pl.DataFrame, category: pl.Expr) -> pl.DataFrame:
    return frame.with_columns(pl.col("name").cast(pl.String), category.alias("category"))


def _memory_levels(timeline: Timeline) -> dict[str, pl.DataFrame]:
    """Name of a counter → its values over time (`time_ns`, `bytes`)."""
    trace = timeline.trace
    levels = {}
    recorded = trace.allocations.filter(pl.col("device").is_not_null())
    for column, what in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")):
        for (device,), rows in recorded.group_by("device", maintain_order=True):
            known = rows.filter(pl.col(column).is_not_null()).sort("time_ns", maintain_order=True)
            if known.height:
                levels[f"GPU {device} memory {what}"] = known.select("time_ns", pl.col(column).alias("bytes"))
    return levels
