"""One trace of several processes or GPUs becomes one trace a rank, as if each had been recorded on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile import Note, NoteLevel, Trace
from warplens.profile.schema import TABLES

__all__ = ["RankTrace", "split_ranks"]

Int64s = npt.NDArray[np.int64]

#: Columns that hold row numbers of another table (or of their own): table → column → table that is pointed into.
_POINTERS = {
    "ranges": {"parent": "ranges"},
    "operators": {"range": "ranges"},
    "autograd_links": {"forward": "ranges", "backward": "ranges"},
    "python_functions": {"parent": "python_functions"},
    "collectives": {"kernel": "kernels"},
}

#: Tables of which a row without the row that it points to would say nothing.
_OWNED = ("operators", "autograd_links", "collectives")


@dataclass(frozen=True, eq=False)
class RankTrace:
    """The part of a file that belongs to one rank.

    Attributes:
        process, device: where its kernels ran; None where the file holds one rank, or no kernel at all.
        trace: its part of the tables; the whole trace where the file holds one rank.
    """

    process: int | None
    device: int | None
    trace: Trace


def split_ranks(trace: Trace) -> tuple[RankTrace, ...]:
    """The ranks of a trace: one for each pair of process and GPU that ran kernels or graphs, by device and process.

    What a process did on another GPU without ever running a kernel there (a stray context, a copy) belongs to no rank;
    a note says how much that is. Host tables go by process alone, so that two GPUs of one process share its host side.
    """
    homes = pl.concat([trace.kernels.select("process", "device"), trace.graph_launches.select("process", "device")])
    pairs = homes.unique().sort("device", "process").rows()
    if len(pairs) <= 1:
        process, device = pairs[0] if pairs else (None, None)
        return (RankTrace(process, device, trace),)
    stray = sum(
        frame.select("process", "device").join(homes.unique(), on=["process", "device"], how="anti").height
        for frame in (trace.copies, trace.memsets)
    )
    if stray:
        note = Note(
            "work-outside-ranks",
            NoteLevel.INFO,
            f"{stray} copies and fills ran on a GPU where their process ran no kernel; they belong to no rank.",
        )
        trace = replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))
    return tuple(RankTrace(process, device, _part(trace, process, device)) for process, device in pairs)


def _part(trace: Trace, process: int, device: int) -> Trace:
    kept: dict[str, Int64s] = {}
    for name in TABLES:
        if name not in _OWNED:
            kept[name] = np.flatnonzero(_belongs(getattr(trace, name), process, device))
    frames: dict[str, Any] = {name: getattr(trace, name)[rows] for name, rows in kept.items()}
    for name in _OWNED:
        frames[name] = getattr(trace, name)
    for name, pointers in _POINTERS.items():
        for column, target in pointers.items():
            renumbered = _renumbered(frames[name][column], kept[target], getattr(trace, target).height)
            frames[name] = frames[name].with_columns(renumbered.alias(column))
        if name in _OWNED:
            frames[name] = frames[name].drop_nulls(list(pointers))
    capture = trace.capture
    devices = tuple(found for found in capture.devices if found.ordinal == device)
    return Trace(replace(capture, devices=devices), **frames)


def _belongs(frame: pl.DataFrame, process: int, device: int) -> npt.NDArray[np.bool_]:
    mine = pl.lit(True)
    if "process" in frame.columns:
        mine = mine & (pl.col("process") == process)
    if "device" in frame.columns:
        mine = mine & (pl.col("device").is_null() | (pl.col("device") == device))
    found: npt.NDArray[np.bool_] = frame.select(mine.alias("mine") if frame.width else mine)["mine"].to_numpy()
    return np.broadcast_to(found, (frame.height,)) if len(found) != frame.height else found


def _renumbered(pointer: pl.Series, kept: Int64s, height: int) -> pl.Series:
    """Row numbers of the whole table as row numbers of its kept rows; null where the row is not kept."""
    place = np.full(height + 1, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    moved = place[pointer.fill_null(height).to_numpy()]
    return pl.Series(pointer.name, moved).replace(-1, None)
