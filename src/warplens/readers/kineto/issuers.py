"""The process that issued each piece of GPU work, and its GPU, also where several traces were merged into one.

An event of a GPU has the GPU's number where others have their process; the call with the same correlation id gives the
process. Programs that merge the traces of ranks (SGLang's, and many a script) write one after the other, and most
change the number of the process: by a label, or by an offset for each rank. Each trace numbers its calls and, where it
sees one GPU only, its GPUs from the same number on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from warplens.readers.kineto.gpu import int32, shorten
from warplens.readers.kineto.spans import Spans
from warplens.readers.kineto.values import GPU_KINDS

#: Kinds of events that have an issuer: those that ran on a GPU, and waits for it.
_ISSUED: Final = (*GPU_KINDS, "wait")
_LANE: Final = ("process", "device")

#: Share of a GPU's work that must begin no earlier than its assigned call: clocks are aligned to microseconds, so that
#: single short queues seem to begin before their call.
_AGREES: Final = 0.98


@dataclass
class Issued:
    """Result of `with_issuers`."""

    processes: int = 1  #: number of processes that made calls
    shared: int = 0  #: number of pieces of work whose correlation id occurs in calls of several processes
    unknown: int = 0  #: number of those that could not be assigned
    #: the number in its own trace of each renumbered GPU
    renumbered: dict[int, int] = field(default_factory=dict)


def with_issuers(frames: dict[str, pl.DataFrame], host: int) -> Issued:
    """Add an `issuer` to GPU events, and make `device` unique across merged traces; frames are replaced.

    Work without these arguments has its GPU as process, which a label of the rank may precede, its stream as thread.
    """
    result = Issued()
    issued = {kind: frames[kind].with_columns(issuer=pl.lit(host, pl.Int64)) for kind in _ISSUED}
    for kind in GPU_KINDS:
        device = pl.coalesce("device", pl.col("process").pipe(int32).cast(pl.Int64), 0)
        issued[kind] = issued[kind].with_columns(device=device, stream=pl.coalesce("stream", "thread", 0))
    for column in ("device", "stream"):
        shorten(issued, column)
    frames.update(issued)
    calls = frames["call"].select("correlation", "process", begun="start_ns").drop_nulls()
    result.processes = max(1, calls["process"].n_unique())
    if result.processes == 1:
        return result
    ids_by_process = calls.select("correlation", "process").unique(maintain_order=True)
    shared = ids_by_process.filter(pl.col("correlation").is_duplicated())
    first = ids_by_process.unique("correlation", keep="first", maintain_order=True).rename({"process": "owner"})
    lanes = pl.concat([frames[kind].select(*_LANE, "correlation", "start_ns") for kind in GPU_KINDS])
    ambiguous = lanes.join(shared.select("correlation").unique(), on="correlation", how="semi")
    result.shared = ambiguous.height
    by_lane = _by_lane(lanes, calls, shared["process"].unique(maintain_order=True)) if ambiguous.height else None
    if by_lane is None:
        result.unknown = result.shared
    for kind in _ISSUED:
        events = frames[kind].join(first, on="correlation", how="left", maintain_order="left")
        if by_lane is not None and kind in GPU_KINDS:
            events = events.join(by_lane, on=_LANE, how="left", maintain_order="left", nulls_equal=True)
            events = events.with_columns(pl.coalesce("lane_owner", "owner").alias("owner")).drop("lane_owner")
        frames[kind] = events.with_columns(issuer=pl.col("owner").fill_null(host)).drop("owner")
    result.renumbered = _renumber_gpus(frames, lanes)
    return result


def _by_lane(lanes: pl.DataFrame, calls: pl.DataFrame, processes: pl.Series) -> pl.DataFrame | None:
    """The process of each GPU of each trace, as `lane_owner`; None if it cannot be determined.

    Merged traces follow one another, so that processes and GPUs come in the same order. The assignment must agree with
    the clock: work does not begin before its call.
    """
    distinct_lanes = lanes.select(_LANE).unique(maintain_order=True)
    if distinct_lanes.height != processes.len():
        return None
    with_owner = distinct_lanes.with_columns(lane_owner=processes)
    call_starts = calls.unique(["correlation", "process"], keep="first")
    pairs = lanes.join(with_owner, on=_LANE, nulls_equal=True).join(
        call_starts, left_on=["correlation", "lane_owner"], right_on=["correlation", "process"]
    )
    agreeing = pairs.group_by(_LANE).agg((pl.col("start_ns") >= pl.col("begun")).mean().alias("share"))
    agrees = agreeing.height == distinct_lanes.height and (agreeing["share"] >= _AGREES).all()
    return with_owner if agrees else None


def _renumber_gpus(frames: dict[str, pl.DataFrame], lanes: pl.DataFrame) -> dict[int, int]:
    """Give GPUs with equal numbers in different traces new numbers; return the recorded number by new number."""
    distinct_lanes = lanes.select(_LANE).unique(maintain_order=True)
    duplicates = distinct_lanes.filter(~pl.col("device").is_first_distinct())
    if not duplicates.height:
        return {}
    next_number = 1 + max(distinct_lanes["device"].to_list())
    numbers = duplicates.with_columns(other=pl.int_range(next_number, next_number + duplicates.height, dtype=pl.Int64))
    for kind in GPU_KINDS:
        events = frames[kind].join(numbers, on=_LANE, how="left", maintain_order="left", nulls_equal=True)
        frames[kind] = events.with_columns(pl.coalesce("other", "device").alias("device")).drop("other")
    return dict(numbers.select("other", "device").iter_rows())


def shorten_ids(spans: Spans) -> None:
    """Shorten processes of labelled ranks (`[TP01] 4711`) and handles of threads; frames are replaced."""
    hosts = {kind: frame for kind, frame in spans.frames.items() if kind not in GPU_KINDS} | {"arrow": spans.arrows}
    for column in ("process", "thread"):
        shorten(hosts, column)
    spans.arrows = hosts.pop("arrow")
    spans.frames.update(hosts)
