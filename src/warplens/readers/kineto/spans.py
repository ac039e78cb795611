"""The events of a trace as intervals on one clock: begins with their ends, without invalid and repeated ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from warplens.profile.schema import name_categories
from warplens.readers.kineto.values import KINDS

GPU_KINDS = ("kernel", "copy", "memset")

_BEGIN, _END, _COMPLETE = map(ord, "BEX")
_MEMORY = "[memory]"

#: What tells two events of a kind apart, even if they are equal in everything else.
_IDENTITIES = {
    **dict.fromkeys(GPU_KINDS, "correlation"),
    "call": "correlation",
    "operator": "external_id",
    "annotation": "external_id",
}


@dataclass
class Spans:
    """Events by kind with `start_ns` and `end_ns` from the first event on, and what was noticed."""

    frames: dict[str, pl.DataFrame]  #: for each kind but arrows its events
    arrows: pl.DataFrame  #: ends of arrows from forward to backward operators, with `start_ns`
    zero_ns: int | None = None  #: the first event on the trace's own clock; None where there is none
    last_ns: int = 0
    invalid: int = 0  #: events left out because they have no begin, no duration, or a negative one
    still_open: int = 0  #: host events without an end; they end with the trace
    repeated: int = 0  #: events left out because the trace holds them twice
    is_whole_microseconds: bool = False  #: whether no time has a fraction of a microsecond


def spans_of(frames: dict[str, pl.DataFrame]) -> Spans:
    """The events as intervals; the frames given are taken out one by one."""
    spans = Spans({}, frames.pop("flow"))
    for kind in KINDS:
        if kind in frames:
            spans.frames[kind] = _valid(kind, frames.pop(kind), spans)
    _place_on_clock(spans)
    return spans


def _valid(kind: str, events: pl.DataFrame, spans: Spans) -> pl.DataFrame:
    begin, duration = pl.col("begin_ns"), pl.col("duration_ns")
    if kind == "allocation":
        known = name_categories(events["name"]).index_of(_MEMORY)
        named = (
            events["name"].to_physical() == known if known is not None else pl.repeat(False, events.height, eager=True)
        )
        return events.filter(named, begin.is_not_null())
    if not (events["phase"] == _COMPLETE).all():
        events = _with_ends(events, spans)
    sound = begin.is_not_null() & (duration >= 0)
    if kind not in GPU_KINDS:
        sound |= begin.is_not_null() & duration.is_null()
    valid = events if events.select(sound.fill_null(False).all()).item() else events.filter(sound)
    spans.invalid += events.height - valid.height
    identity = _IDENTITIES.get(kind)
    if identity is not None:
        unique = _without_repeated(valid, identity)
        spans.repeated += valid.height - unique.height
        valid = unique
    return valid


def _with_ends(events: pl.DataFrame, spans: Spans) -> pl.DataFrame:
    """Complete events, those told by their begin and end (`B`, `E`) among them.

    On each thread an end closes the innermost event that is open: the one that began at the same depth before it.
    """
    edges = events.filter(pl.col("phase") != _COMPLETE, pl.col("begin_ns").is_not_null())
    edges = edges.sort("process", "thread", "begin_ns", maintain_order=True)
    step = np.where(edges["phase"].to_numpy() == _BEGIN, 1, -1)
    level = np.cumsum(step) + (step < 0)  # an end has the level of the begin that it closes
    thread = edges.select(pl.struct("process", "thread").rank("dense")).to_series().to_numpy()
    order = np.lexsort((np.arange(len(step)), level, thread))
    is_begin = step[order] == 1
    follows = np.r_[(thread[order][1:] == thread[order][:-1]) & (level[order][1:] == level[order][:-1]), False]
    closed = is_begin & follows & np.r_[~is_begin[1:], False]
    starts = edges["begin_ns"].to_numpy()[order]
    durations = pl.Series(np.r_[starts[1:] - starts[:-1], 0] if len(starts) else starts)
    begun = edges[order].with_columns(
        duration_ns=durations.zip_with(pl.Series(closed), pl.Series([None], dtype=pl.Int64))
    )
    begun = begun.filter(pl.Series(is_begin))
    spans.invalid += int(edges.height - begun.height - closed.sum()) if len(step) else 0
    complete = events.filter((pl.col("phase") == _COMPLETE) | pl.col("begin_ns").is_null())
    return pl.concat([complete, begun])


def _without_repeated(events: pl.DataFrame, identity: str) -> pl.DataFrame:
    """Events without those that say the same as an earlier one, id included.

    Kernels of a CUDA graph share the id of the call that launched them; as long as they differ they are all kept.
    """
    ids = events[identity]
    if ids.null_count() == ids.len() or ids.drop_nulls().n_unique() == ids.len() - ids.null_count():
        return events
    repeated = events.with_row_index("row").filter(ids.is_not_null() & ids.is_duplicated())
    # Where anything but the time is shared by several different events (the nodes of a graph), equal ones may be meant.
    alike = repeated.group_by(identity).agg(
        pl.col("begin_ns").n_unique().alias("begins"), pl.col("row").min().alias("first"), pl.col("row").max()
    )
    suspects = repeated.join(alike.filter(pl.col("begins") == 1).select(identity), on=identity, how="semi")
    columns = [name for name in events.columns if name != "phase"]
    doubles = suspects.filter(~suspects.select(pl.struct(columns).is_first_distinct()).to_series())
    if not doubles.height:
        return events
    return (
        events.with_row_index("row")
        .join(doubles.select("row"), on="row", how="anti", maintain_order="left")
        .drop("row")
    )


def _place_on_clock(spans: Spans) -> None:
    begin, end = pl.col("begin_ns"), pl.col("begin_ns") + pl.col("duration_ns").fill_null(0)
    extent = [
        frame.select(begin.min().alias("begin"), end.max().alias("end"), fraction=((begin % 1_000) != 0).any()).row(0)
        for frame in spans.frames.values()
        if frame.height
    ]
    if extent:
        spans.zero_ns, spans.last_ns = min(row[0] for row in extent), max(row[1] for row in extent)
        spans.is_whole_microseconds = not any(row[2] for row in extent)
    zero = spans.zero_ns or 0
    spans.last_ns -= zero
    for kind, frame in spans.frames.items():
        if kind != "allocation":
            spans.still_open += frame["duration_ns"].null_count()
        end = (begin + pl.col("duration_ns") - zero).fill_null(spans.last_ns)
        spans.frames[kind] = frame.with_columns(start_ns=begin - zero, end_ns=end).drop(
            "begin_ns", "duration_ns", "phase"
        )
    spans.arrows = spans.arrows.with_columns(start_ns=begin - zero).drop("begin_ns", "duration_ns")
