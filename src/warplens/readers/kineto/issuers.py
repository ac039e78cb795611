"""Which process issued each piece of GPU work, and on which GPU it ran, also where several traces were merged into one.

An event of a GPU bears the GPU's number where others bear their process; the call with the same correlation id tells
the process. Programs that merge the traces of ranks (SGLang's, and many a script) put one after the other, and most
change the number that stands for the process: by a label, or by an offset for each rank. Each trace counts its calls
and, where it sees one GPU only, its GPUs from the same number on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from warplens.readers.kineto.gpu import int32, short_numbers
from warplens.readers.kineto.spans import Spans

#: What ran on a GPU, and the waits for it.
_ISSUED: Final = ("kernel", "copy", "memset", "wait")
_WORK: Final = _ISSUED[:3]
_LANE: Final = ("process", "device")

#: Of the work of one GPU, what has to begin no earlier than the call that is taken for its own: clocks are aligned to
#: microseconds, so that single short queues seem to begin before their call.
_AGREES: Final = 0.98


@dataclass
class Issued:
    """What `with_issuers` found out."""

    processes: int = 1  #: how many made calls
    shared: int = 0  #: work whose correlation id several processes' calls bear
    unknown: int = 0  #: how much of that could not be given to one of them
    #: by number of a GPU that another trace of the file has as well, the number that its own trace gives it
    renumbered: dict[int, int] = field(default_factory=dict)


def with_issuers(frames: dict[str, pl.DataFrame], host: int) -> Issued:
    """Gives what ran on GPUs an `issuer` and a `device` that no other trace's GPU shares; frames are replaced."""
    found = Issued()
    for kind in _ISSUED:
        device = pl.coalesce("device", "process", 0) if kind in _WORK else pl.col("device")
        numbers = device.pipe(int32).cast(pl.Int64).alias("device")
        frames[kind] = frames[kind].with_columns(numbers, issuer=pl.lit(host, pl.Int64))
    calls = frames["call"].select("correlation", "process", begun="start_ns").drop_nulls()
    found.processes = max(1, calls["process"].n_unique())
    if found.processes == 1:
        return found
    owners = calls.select("correlation", "process").unique(maintain_order=True)
    shared = owners.filter(pl.col("correlation").is_duplicated())
    first = owners.unique("correlation", keep="first", maintain_order=True).rename({"process": "owner"})
    lanes = pl.concat([frames[kind].select(*_LANE, "correlation", "start_ns") for kind in _WORK])
    in_doubt = lanes.join(shared.select("correlation").unique(), on="correlation", how="semi")
    found.shared = in_doubt.height
    by_lane = _by_lane(lanes, calls, shared["process"].unique(maintain_order=True)) if in_doubt.height else None
    if by_lane is None:
        found.unknown = found.shared
    for kind in _ISSUED:
        events = frames[kind].join(first, on="correlation", how="left", maintain_order="left")
        if by_lane is not None and kind in _WORK:
            events = events.join(by_lane, on=_LANE, how="left", maintain_order="left", nulls_equal=True)
            events = events.with_columns(pl.coalesce("lane_owner", "owner").alias("owner")).drop("lane_owner")
        frames[kind] = events.with_columns(issuer=pl.col("owner").fill_null(host)).drop("owner")
    found.renumbered = _told_apart(frames, lanes)
    return found


def _by_lane(lanes: pl.DataFrame, calls: pl.DataFrame, processes: pl.Series) -> pl.DataFrame | None:
    """The process of each GPU of each trace, as `lane_owner`; None where that cannot be told.

    Merged traces stand one after the other, so that processes and GPUs come in the same order. It has to agree with the
    clock: work does not begin before its call.
    """
    each = lanes.select(_LANE).unique(maintain_order=True)
    if each.height != processes.len():
        return None
    owned = each.with_columns(lane_owner=processes)
    begun = calls.unique(["correlation", "process"], keep="first")
    pairs = lanes.join(owned, on=_LANE, nulls_equal=True).join(
        begun, left_on=["correlation", "lane_owner"], right_on=["correlation", "process"]
    )
    agreeing = pairs.group_by(_LANE).agg((pl.col("start_ns") >= pl.col("begun")).mean().alias("share"))
    agrees = agreeing.height == each.height and (agreeing["share"] >= _AGREES).all()
    return owned if agrees else None


def _told_apart(frames: dict[str, pl.DataFrame], lanes: pl.DataFrame) -> dict[int, int]:
    """Gives GPUs of equal number, but of different traces, numbers of their own; by new number the recorded one."""
    each = lanes.select(_LANE).unique(maintain_order=True)
    again = each.filter(~pl.col("device").is_first_distinct())
    if not again.height:
        return {}
    free = 1 + max(each["device"].to_list())
    numbers = again.with_columns(other=pl.int_range(free, free + again.height, dtype=pl.Int64))
    for kind in _WORK:
        events = frames[kind].join(numbers, on=_LANE, how="left", maintain_order="left", nulls_equal=True)
        frames[kind] = events.with_columns(pl.coalesce("other", "device").alias("device")).drop("other")
    return dict(numbers.select("other", "device").iter_rows())


def shorten_processes(spans: Spans) -> None:
    """Gives processes of labelled ranks (`[TP01] 4711`) numbers of 31 bits, no two the same; frames are replaced."""
    hosts = [kind for kind in spans.frames if kind not in _WORK]
    parts = [spans.arrows["process"], *(spans.frames[kind]["process"] for kind in hosts)]
    known = pl.concat(parts).drop_nulls().unique().sort()
    if not (known >= 2**31).any():
        return
    short = pl.Series(short_numbers(known.to_list()), dtype=pl.Int64)
    process = pl.col("process").replace(known, short)
    spans.arrows = spans.arrows.with_columns(process)
    spans.frames.update({kind: spans.frames[kind].with_columns(process) for kind in hosts})
