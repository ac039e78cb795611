"""From millions of events to the few hundred marks of a chart: exact bins and levels, nothing drawn here."""

from __future__ import annotations

import numpy as np
import polars as pl

from warplens.profile.schema import Int64s

#: Bins per power of ten of a duration: fine enough to tell two modes apart, coarse enough not to show noise.
_BINS_PER_DECADE = 8

#: Cells of copies per power of ten, of their size and of their bandwidth.
_CELLS_PER_DECADE = 6

#: Stretches of time in a timeline of one GPU: about one for two pixel columns of a wide page. Several share as many
#: marks again, however many there are.
_TIMELINE_BINS = 480

#: Steps drawn one by one; more are merged by neighbours.
_MOST_STEPS = 240

#: Points of a memory line.
_MOST_LEVELS = 240


def log_bins(durations_ns: pl.Series | Int64s, series: str, floor_ns: float = 1.0) -> pl.DataFrame:
    """How many durations fall between each two neighbours of a logarithmic grid.

    Args:
        durations_ns: any, negative ones included.
        series: title of the distribution.
        floor_ns: begin of the lowest bin; shorter durations count in it.

    Returns:
        `series`, `from_ns`, `to_ns` (Float64), `count` (Int64), `share` of all durations; bins from the first to the
        last that holds anything, empty ones between included.
    """
    values = np.asarray(durations_ns, dtype=np.float64)
    schema = {"series": pl.String, "from_ns": pl.Float64, "to_ns": pl.Float64, "count": pl.Int64, "share": pl.Float64}
    if not len(values):
        return pl.DataFrame(schema=schema)
    place = np.floor(np.log10(np.maximum(values, floor_ns)) * _BINS_PER_DECADE + 1e-9).astype(np.int64)
    first = int(place.min())
    counts = np.bincount(place - first)
    edges = 10.0 ** (np.arange(first, first + len(counts) + 1) / _BINS_PER_DECADE)
    return pl.DataFrame(
        {
            "series": [series] * len(counts),
            "from_ns": edges[:-1],
            "to_ns": edges[1:],
            "count": counts,
            "share": counts / len(values),
        },
        schema=schema,
    )


def timeline_bins(lanes: int) -> int:
    """Into how many stretches a timeline divides the window, so that its lanes together stay a small chart."""
    return _TIMELINE_BINS if lanes == 1 else max(60, 2 * _TIMELINE_BINS // lanes)


def busy_bins(starts: Int64s, ends: Int64s, window: tuple[int, int], lane: str, bins: int) -> pl.DataFrame:
    """The share of each of `bins` equal stretches of the window that the intervals cover.

    Args:
        starts: begins of disjoint intervals sorted by time, shape (n,), nanoseconds.
        window: begin and end, nanoseconds.
        bins: how many stretches at most; never shorter than 1 ns.

    Returns:
        `lane`, `start_ns`, `end_ns` (relative to the window's begin), `busy_share`.
    """
    begin, end = window
    bins = max(1, min(bins, end - begin))
    edges = begin + (np.arange(bins + 1, dtype=np.int64) * (end - begin)) // bins
    covered = _covered_before(edges, starts, ends)
    width = np.diff(edges)
    return pl.DataFrame(
        {
            "lane": [lane] * bins,
            "start_ns": edges[:-1] - begin,
            "end_ns": edges[1:] - begin,
            "busy_share": np.diff(covered) / np.maximum(width, 1),
        }
    )


def _covered_before(times: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """For each time, how much of the disjoint, sorted intervals lies before it."""
    if not len(starts):
        return np.zeros(len(times), dtype=np.int64)
    before = np.r_[0, np.cumsum(ends - starts)]
    index = np.searchsorted(starts, times, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(ends[last] - times, 0), 0)
    covered: Int64s = before[index] - beyond
    return covered


def merged_steps(steps: pl.DataFrame, most: int = _MOST_STEPS) -> pl.DataFrame:
    """Steps as `steps_chart` draws them: each alone, or the means of neighbours where there are more than `most`.

    Args:
        steps: `index`, `wall_ns`, `busy_ns`, `in_window`, in order.
    """
    group = -(-max(1, steps.height) // most)
    merged = (
        steps.with_row_index("row")
        .group_by(pl.col("row") // group, maintain_order=True)
        .agg(
            pl.col("index").first().alias("first"),
            pl.col("index").last().alias("last"),
            pl.col("wall_ns", "busy_ns").mean(),
            pl.col("in_window").all(),
        )
    )
    label = (
        pl.when(pl.col("first") == pl.col("last"))
        .then(pl.format("step {}", "first"))
        .otherwise(pl.format("mean of steps {}–{}", "first", "last"))
    )
    return merged.select(label.alias("label"), pl.col("first").alias("position"), "wall_ns", "busy_ns", "in_window")


def bandwidth_cells(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies gathered by direction, size and bandwidth on a logarithmic grid.

    Args:
        copies: `direction`, `bytes`, `start_ns`, `end_ns`; copies without bytes or without duration are left out.

    Returns:
        `direction`, `bytes` and `bandwidth_bytes_per_s` (means of the cell), `count`.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    return (
        copies.filter((pl.col("bytes") > 0) & (duration > 0))
        .select(
            pl.col("direction").cast(pl.String),
            pl.col("bytes").cast(pl.Float64),
            (pl.col("bytes") * 1e9 / duration).alias("bandwidth_bytes_per_s"),
        )
        .group_by(
            "direction",
            (pl.col("bytes").log10() * _CELLS_PER_DECADE).floor().alias("size_cell"),
            (pl.col("bandwidth_bytes_per_s").log10() * _CELLS_PER_DECADE).floor().alias("speed_cell"),
        )
        .agg(pl.col("bytes", "bandwidth_bytes_per_s").mean(), pl.len().cast(pl.Int64).alias("count"))
        .sort("direction", "bytes", "bandwidth_bytes_per_s")
        .drop("size_cell", "speed_cell")
    )


def thinned_levels(levels: pl.DataFrame, most: int = _MOST_LEVELS) -> pl.DataFrame:
    """Levels over time with fewer points: of each short stretch the highest, the lowest and the last stay.

    Args:
        levels: `memory` (title of the line), `time_ns`, `level_bytes`, sorted by kind and time.
        most: stretches of each line; at most three times as many points stay.
    """
    place, total = pl.int_range(pl.len()).over("memory"), pl.len().over("memory")
    level = pl.col("level_bytes")
    stretch = ["memory", "stretch"]
    return (
        levels.with_columns((place * most // pl.max_horizontal(total, pl.lit(most))).alias("stretch"))
        .with_columns(pl.int_range(pl.len()).over(stretch).alias("inside"))
        .filter(
            (pl.col("inside") == level.arg_max().over(stretch))
            | (pl.col("inside") == level.arg_min().over(stretch))
            | (pl.col("inside") == pl.len().over(stretch) - 1)
        )
        .select("memory", "time_ns", "level_bytes")
    )
