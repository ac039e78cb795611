"""Every collective of one rank: what it was, when its kernel ran, and how much of it nothing hid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.intervals import measure_before
from warplens.analysis.ranks.kinds import KINDS, UNKNOWN_KIND, kind_of_description, kind_of_kernel, kind_of_range
from warplens.analysis.ranks.kinds import size_bytes as size_of
from warplens.analysis.ranks.measures import communication_rows
from warplens.analysis.spread import conform
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.ranks.measures import BusyTime
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["COLLECTIVE_SCHEMA", "rank_collectives"]

Int64s = npt.NDArray[np.int64]

_KIND = pl.Enum(KINDS)

#: One row a communication kernel of one rank, in order of its begin. Times are in the file's own clock.
COLLECTIVE_SCHEMA: Final = pl.Schema(
    {
        "kind": pl.Enum(KINDS),  # what the framework, the enclosing range or the kernel's name says, in this order
        "kernel_kind": pl.Enum(KINDS),  # what the kernel's name alone says
        "group": pl.String(),  # process group; null where the profile does not record it
        "group_ranks": pl.String(),  # its global ranks, JSON
        "group_size": pl.Int32(),
        "sequence": pl.Int64(),  # its number in the group
        "size_bytes": pl.Int64(),  # as nccl-tests counts it; null where the profile does not record it
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "stream": pl.Int32(),
        "exposed_ns": pl.Int64(),  # the part that no compute hid
        "in_window": pl.Boolean(),  # whether it begins in the analysed window
    }
)


def rank_collectives(timeline: Timeline, device: int, busy: BusyTime, window: Window) -> pl.DataFrame:
    """All communication kernels of the device, over the whole profile.

    A kernel that carries several described operations (a coalesced call) is one row with their summed size.

    Returns:
        `COLLECTIVE_SCHEMA`.
    """
    kernels = timeline.trace.kernels
    rows = communication_rows(timeline)
    rows = rows[(kernels["device"] == device).to_numpy()[rows]]
    rows = rows[np.argsort(kernels["start_ns"].to_numpy()[rows], kind="stable")]
    picked = kernels.select("start_ns", "end_ns", "stream", "full_name")[rows]
    named = [kind_of_kernel(text) for text in name_categories(kernels["full_name"])]
    by_name = pl.Series("kernel_kind", named, dtype=_KIND).gather(picked["full_name"].to_physical())
    described = _described(timeline.trace.collectives)
    frame = (
        picked.drop("full_name")
        .with_columns(pl.Series("kernel", rows), by_name)
        .join(described, on="kernel", how="left", maintain_order="left")
    )
    unclear = frame["kind"].is_null() & frame["kernel_kind"].is_in([UNKNOWN_KIND, "send_recv"])
    by_range = _kinds_of_ranges(timeline, rows[unclear.to_numpy()]) if unclear.any() else None
    told = frame["kind"]
    if by_range is not None:
        told = told.scatter(unclear.arg_true(), by_range)
    starts, ends = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    exposed = measure_before(busy.exposed, ends) - measure_before(busy.exposed, starts)
    inside = np.full(len(rows), True)
    if window.kind != "all":
        inside = (starts >= window.start_ns) & (starts < window.end_ns)
    frame = frame.with_columns(
        pl.Series("kind", told).fill_null(frame["kernel_kind"]),
        pl.Series("exposed_ns", exposed),
        pl.Series("in_window", inside),
    )
    return conform(frame, COLLECTIVE_SCHEMA)


def _described(collectives: pl.DataFrame) -> pl.DataFrame:
    """What the framework said about each kernel: a row a kernel."""
    known = collectives.filter(pl.col("kernel").is_not_null()).with_columns(
        pl.col("name", "group", "group_ranks", "dtype").cast(pl.String)
    )
    distinct = known.select("name", "in_elements", "out_elements", "dtype").unique()
    kinds = [kind_of_description(name) for name in distinct["name"]]
    sizes = [size_of(kind, *row) for kind, row in zip(kinds, distinct.drop("name").iter_rows(), strict=True)]
    looked_up = distinct.with_columns(
        pl.Series("kind", kinds, dtype=_KIND), pl.Series("size_bytes", sizes, dtype=pl.Int64)
    )
    return (
        known.join(looked_up, on=["name", "in_elements", "out_elements", "dtype"], how="left", nulls_equal=True)
        .group_by("kernel")
        .agg(
            pl.col("kind", "group", "group_ranks", "group_size").first(),
            pl.col("sequence").min(),
            pl.when(pl.col("size_bytes").is_not_null().all()).then(pl.col("size_bytes").sum()).alias("size_bytes"),
        )
    )


def _kinds_of_ranges(timeline: Timeline, kernels: Int64s) -> pl.Series:
    """The kind that the outermost enclosing range names that speaks of a collective; null where none does.

    An all-to-all runs as a kernel of sends and receives: only the call around it (`nccl:all_to_all`) tells.
    """
    ranges = timeline.trace.ranges
    nothing = pl.Series("kind", [None], dtype=_KIND).gather(np.zeros(len(kernels), dtype=np.int64))
    if not ranges.height:
        return nothing
    codes = np.array([KINDS.index(kind_of_range(text)) for text in name_categories(ranges["name"])], dtype=np.int64)
    label = codes[ranges["name"].to_physical().to_numpy()]
    label = np.where(label == KINDS.index(UNKNOWN_KIND), 0, label + 1)
    work = timeline.work
    is_kernel = (work["kind"] == "kernel").to_numpy()
    range_of_kernel = np.full(timeline.trace.kernels.height, NO_RANGE, dtype=np.int64)
    range_of_kernel[work["row"].to_numpy()[is_kernel]] = work["range"].fill_null(NO_RANGE).to_numpy()[is_kernel]
    found = np.r_[timeline.forest.outermost_match(label), 0][range_of_kernel[kernels]]
    return pl.Series("kind", [None, *KINDS], dtype=_KIND).gather(found)
