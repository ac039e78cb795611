"""NVTX ranges of an nsys export: their names, and which of them encloses which.

Nesting. Push-pop ranges of one NVTX domain nest on their thread by construction, but each domain has a stack of its
own, and start-end ranges may end whenever the program likes. In practice they nest across domains, too (a library's
ranges lie inside the application's), and that is what a reader of the profile wants to see. So all ranges of a thread
are nested together wherever they do nest. Where some of a thread cross, its start-end ranges are set apart; where the
others still cross, each domain of that thread is nested on its own. Other threads are not touched by this.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.nesting import nest
from warplens.readers.nsys_strings import Strings
from warplens.readers.sqlite_file import SqliteFile

__all__ = ["RANGE_KINDS", "range_kinds", "ranges_of", "with_nesting"]

Int64s = npt.NDArray[np.int64]

#: ENUM_NSYS_EVENT_TYPE: NVTX's ranges and those of its text importer (NVTXT). Marks, names and domains are no ranges.
RANGE_KINDS = {59: "push-pop", 60: "start-end", 70: "push-pop", 71: "start-end"}
_RANGE_TYPE_NAMES = {
    "NvtxPushPopRange": "push-pop",
    "NvtxStartEndRange": "start-end",
    "NvtxtPushPopRange": "push-pop",
    "NvtxtStartEndRange": "start-end",
}


def range_kinds(file: SqliteFile) -> Mapping[int, str]:
    """The event types of this export that are ranges: its own table of them, else the numbers of all known versions."""
    kinds = {}
    if {"id", "name"} <= set(file.tables.get("ENUM_NSYS_EVENT_TYPE", ())):
        for code, name in file.rows("SELECT id, name FROM ENUM_NSYS_EVENT_TYPE"):
            kind = _RANGE_TYPE_NAMES.get(name.decode("utf-8", "replace")) if isinstance(name, bytes) else None
            if kind is not None and isinstance(code, int):
                kinds[code] = kind
    return kinds or RANGE_KINDS


def ranges_of(loaded: pl.DataFrame, strings: Strings, kinds: Mapping[int, str], capture_end_ns: int) -> pl.DataFrame:
    """The trace's table of ranges; one that was still open at the end of the capture ends there.

    Args:
        loaded: the rows of NVTX_EVENTS that are ranges.
        strings: the strings that the rows refer to.
        kinds: what the event types of this export are.
        capture_end_ns: the last instant that the capture recorded.
    """
    end_ns = pl.max_horizontal(pl.col("end_ns").fill_null(capture_end_ns), "start_ns")
    kind_codes = loaded.get_column("kind").replace_strict(kinds, return_dtype=pl.String)
    frame = loaded.with_columns(
        end_ns,
        pl.col("domain").fill_null(0),
        _names(loaded, strings),
        kind_codes.cast(pl.Enum(["push-pop", "start-end"])).alias("kind"),
    )
    return with_nesting(frame)


def _names(loaded: pl.DataFrame, strings: Strings) -> pl.Series:
    """The text of each range: its registered string where it has one, as nsys's own reports decide, else its own."""
    texts = strings.decode_all(loaded.get_column("text"))
    registered = loaded.get_column("registered")
    if registered.null_count() < registered.len():
        known = registered.set(registered.is_in(list(strings.missing)) & (texts != ""), None)
        texts = strings.encode(known).cast(pl.String).zip_with(known.is_not_null(), texts)
    return texts.cast(pl.Enum(texts.unique(maintain_order=True))).alias("name")


def with_nesting(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their `depth` and `parent`; see the module's text for which of them are nested together."""
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = _group_numbers(ranges["process"].to_numpy(), ranges["thread"].to_numpy())
    style = (ranges["kind"].cast(pl.String) == "start-end").to_numpy()
    domain = ranges["domain"].to_numpy()
    group = thread
    for finer in (style, domain):
        crossing = _crossing_groups(start, end, group) if len(np.unique(finer)) > 1 else np.empty(0, np.int64)
        if len(crossing):
            group = _group_numbers(group, np.where(np.isin(group, crossing), finer, 0))
    # Start-end ranges that were set apart may still cross each other. They get a call of their own, so that the others
    # keep the fast method of `nest`.
    apart = style & (np.isin(group, np.unique(group[~style]), invert=True))
    depth = np.empty(len(start), np.int64)
    parent = np.full(len(start), -1, np.int64)
    for rows in (np.flatnonzero(~apart), np.flatnonzero(apart)):
        nesting = nest(start[rows], end[rows], group[rows])
        depth[rows] = nesting.depth
        parent[rows] = np.where(nesting.parent >= 0, rows[nesting.parent], -1) if len(rows) else -1
    return ranges.with_columns(
        pl.Series("depth", depth, dtype=pl.Int32), pl.Series("parent", parent).replace(-1, None).alias("parent")
    )


def _group_numbers(coarse: npt.NDArray[np.generic], fine: npt.NDArray[np.generic]) -> Int64s:
    """A number for each different pair."""
    outer = np.unique(coarse, return_inverse=True)[1].reshape(-1).astype(np.int64)
    values, inner = np.unique(fine, return_inverse=True)
    numbers: Int64s = outer * (len(values) + 1) + inner.reshape(-1)
    return numbers


def _crossing_groups(start: Int64s, end: Int64s, group: Int64s) -> Int64s:
    """The groups in which two ranges overlap without one enclosing the other.

    Walk through all begins and ends of a group in time. Ranges nest exactly if each finds as many others open after its
    end as before its begin: the first-begun of the ranges that another one crosses does not. Ranges of no length cross
    nothing and are left out.
    """
    rows = np.flatnonzero(end > start)
    rows = rows[np.lexsort((-end[rows], start[rows], group[rows]))]
    count = len(rows)
    place = np.arange(count)
    # At one instant ends come before begins, inner ends before outer ones, outer begins before inner ones.
    is_begin = np.r_[np.zeros(count, np.int8), np.ones(count, np.int8)]
    order = np.lexsort((np.r_[-place, place], is_begin, np.r_[end[rows], start[rows]], np.r_[group[rows], group[rows]]))
    open_after = np.empty(2 * count, np.int64)
    open_after[order] = np.cumsum(2 * is_begin[order].astype(np.int64) - 1)
    crossing = open_after[:count] != open_after[count:] - 1
    return np.unique(group[rows[crossing]])
