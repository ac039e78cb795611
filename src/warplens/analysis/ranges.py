"""Device-projected ranges: the GPU time of an annotated range is the time of the work launched inside it.

A range's own duration on the host says when work was *launched*, not when or how long it ran. Here each piece of GPU
work belongs to the innermost range of `warplens.analysis.trees`. A range's inclusive time adds that of everything
inside it, its exclusive time does not. Both are sums of the work's durations; `span_ns` runs from the first start to
the last end (NVIDIA's "projected" time, idle time included).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import running_sum, select_rows, sum_by
from warplens.analysis.intervals import Intervals
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, depth_first, is_operator, name_paths, nearest
from warplens.analysis.window import Window, plain_range_name
from warplens.errors import UsageError
from warplens.profile.columns import COLUMNS, column, optional, table
from warplens.profile.schema import Column, Int64s, name_categories

INSTANCES = table(
    "instances of ranges",
    "One range that launched work in the window, or began in it. `warplens.analysis.ranges.range_instances`.",
    column("row", help="row in `Trace.ranges`"),
    "parent host_ns gpu_ns gpu_exclusive_ns inferred_ns",
    Column("first_ns", pl.Int64, "first start of that work on the GPU; 0 without work"),
    Column("last_ns", pl.Int64, "last end of that work on the GPU; 0 without work"),
    "span_ns ops kernels",
    Column("same_thread_ops", pl.Int64, "pieces of work launched on the range's own thread while it was open"),
    Column(
        "same_thread_span_ns",
        pl.Int64,
        "from the first start to the last end of that work, as `nsys stats` projects ranges",
    ),
    parent="row of the enclosing range, across threads; −1 for none",
    gpu_ns="summed duration of the GPU work launched inside, inner ranges included",
)

_NO_WORK = "null where no GPU work was recorded"

RANGES = table(
    "ranges",
    "One path of range names (`--by tree`), or one name. `warplens ranges`. Where a range lies in another of the same"
    " name, a name's times are those of the outer one.",
    "id parent depth name",
    Column("instances", pl.Int64, "how many ranges are summed up", title="Times"),
    "host_ns",
    optional(
        pl.Int64,
        gpu_ns=f"summed duration of the GPU work launched inside, inner ranges included; {_NO_WORK}",
        gpu_exclusive_ns=f"{COLUMNS['gpu_exclusive_ns'].help}; {_NO_WORK}",
        inferred_ns=f"{COLUMNS['inferred_ns'].help}; {_NO_WORK}",
        span_ns=f"summed over instances: from the first start to the last end of the work on the GPU; {_NO_WORK}",
        ops=f"{COLUMNS['ops'].help}; {_NO_WORK}",
        kernels=f"{COLUMNS['kernels'].help}; {_NO_WORK}",
    ),
    optional(share=f"`gpu_ns` of all GPU work of the window; {_NO_WORK}"),
    parent="`id` of the enclosing row; null for an outermost one, and always for `--by name`",
    depth="0 for an outermost row",
    name="name of the range",
    host_ns="summed duration of the ranges on the host",
)

#: Columns about GPU work.
_WORK_COLUMNS = ("gpu_ns", "gpu_exclusive_ns", "inferred_ns", "span_ns", "ops", "kernels", "share")

#: Identity elements for minimum and maximum.
_IDENTITY: dict[np.ufunc, int] = {np.minimum: np.iinfo(np.int64).max, np.maximum: np.iinfo(np.int64).min}


@dataclass(frozen=True)
class RangeCoverage:
    """Summed duration of the GPU work attributed to ranges, by rule."""

    total_ns: int
    same_thread_ns: int  #: attributed to a range on the launching thread
    inferred_ns: int  #: attributed to a range that another, waiting thread holds open

    @property
    def unattributed_ns(self) -> int:
        """Launched outside of every range, or by an unknown call."""
        return self.total_ns - self.same_thread_ns - self.inferred_ns

    @property
    def attributed_share(self) -> float | None:
        """Share of the GPU work's time that belongs to some range; None where there was no work."""
        return 1 - self.unattributed_ns / self.total_ns if self.total_ns else None

    @property
    def inferred_share(self) -> float | None:
        """Share of the GPU work's time whose range was inferred; None where there was no work."""
        return self.inferred_ns / self.total_ns if self.total_ns else None


def range_coverage(timeline: Timeline, window: Window, *, operators: bool = True) -> RangeCoverage:
    """Share of the window's GPU work that belongs to ranges; without `operators`, to the annotations alone."""
    work = _work_of(timeline, window, operators)
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    attributed = work["range"].is_not_null().to_numpy()
    inferred = work["inferred"].to_numpy()
    return RangeCoverage(
        int(duration.sum()), int(duration[attributed & ~inferred].sum()), int(duration[attributed & inferred].sum())
    )


def _work_of(timeline: Timeline, window: Window, operators: bool) -> pl.DataFrame:
    """The window's work. Without `operators`, work of an operator is attributed to the annotation around it."""
    work = timeline.work_in(window)
    annotated = ~is_operator(timeline.trace.ranges)
    if operators or annotated.all():
        return work
    annotation = nearest(timeline.forest.parent, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
    # An operator of another thread lies in the range that a waiting thread holds open.
    annotation_thread = np.r_[timeline.trace.ranges["thread"].to_numpy(), np.int32(-1)][annotation]
    other_thread = (annotation != NO_RANGE) & (annotation_thread != work["thread"].fill_null(-1).to_numpy())
    return work.with_columns(
        pl.Series("range", annotation).replace(NO_RANGE, None),
        pl.Series("inferred", work["inferred"].to_numpy() | other_thread),
    )


def range_instances(timeline: Timeline, window: Window, *, operators: bool = True) -> pl.DataFrame:
    """Every range with GPU work in the window, or begun in it (`INSTANCES`), in the order of `Trace.ranges`.

    Without `operators`, ranges recorded by a framework's profiler are left out; their work counts in the annotations
    around them.
    """
    ranges = timeline.trace.ranges
    if not ranges.height:
        return INSTANCES.empty()
    forest = timeline.forest
    work = _work_of(timeline, window, operators)
    attributed = select_rows(
        work.select("range", "start_ns", "end_ns", "inferred", "kind"), work["range"].is_not_null()
    )
    direct = _directly(attributed, ranges.height)
    direct_kernels, direct_inferred = (
        _directly(attributed.filter(condition), ranges.height)
        for condition in (pl.col("kind") == "kernel", pl.col("inferred"))
    )
    contained = _contained(ranges, work)
    parent, listed = forest.parent, np.ones(ranges.height, dtype=np.bool_)
    if not operators:
        listed = ~is_operator(ranges)
        parent = nearest(parent, listed, parent)
    gpu_ns = forest.inclusive(direct.duration)
    ops = forest.inclusive(direct.ops)
    # Work shared by two crossing ranges belongs to both, which no tree can express: there, containment in time counts.
    # So does the time that outermost ranges of other threads add to a range, at any depth.
    crossing_threads = np.flatnonzero(forest.parent_inferred)
    lent = sum_by(forest.parent[crossing_threads], contained.duration[crossing_threads], ranges.height)
    inferred = forest.inclusive(direct_inferred.duration + lent)
    gpu_ns = np.where(forest.crossing, contained.duration + inferred, gpu_ns)
    ops = np.where(forest.crossing, np.maximum(ops, contained.ops), ops)
    first = np.minimum(forest.earliest(direct.first), contained.first)
    last = np.maximum(forest.latest(direct.last), contained.last)
    selected = (ops > 0) & listed
    if window.range_name is None:
        starts = ranges["start_ns"].to_numpy()
        selected |= listed & ((window.kind == "all") | ((starts >= window.start_ns) & (starts < window.end_ns)))
    return pl.DataFrame(
        {
            "row": np.arange(ranges.height),
            "parent": parent,
            "host_ns": ranges["end_ns"] - ranges["start_ns"],
            "gpu_ns": gpu_ns,
            "gpu_exclusive_ns": direct.duration,
            "inferred_ns": gpu_ns - contained.duration,
            "first_ns": np.where(ops > 0, first, 0),
            "last_ns": np.where(ops > 0, last, 0),
            "span_ns": np.where(ops > 0, last - first, 0),
            "ops": ops,
            "kernels": forest.inclusive(direct_kernels.ops),
            "same_thread_ops": contained.ops,
            "same_thread_span_ns": np.where(contained.ops > 0, contained.last - contained.first, 0),
        },
        schema=INSTANCES.schema,
    ).filter(pl.Series(selected))


def range_statistics(timeline: Timeline, window: Window, by: str = "tree", *, operators: bool = True) -> pl.DataFrame:
    """Ranges summed over their instances (`RANGES`).

    Args:
        window: only work that begins inside it counts.
        by: `tree` (by path of names, parents before children, largest first), `name` (by name wherever it stands;
            running numbers of PyTorch operators dropped) or `full_name` (by name as recorded).
        operators: whether the operators that a framework's profiler recorded are ranges, too, or only annotations.

    Raises:
        UsageError: `by` is none of these.
    """
    if by not in ("tree", "name", "full_name"):
        raise UsageError(f"ranges cannot be grouped by {by!r}; use tree, name or full_name")
    instances = range_instances(timeline, window, operators=operators)
    if not instances.height:
        return RANGES.empty()
    names = timeline.trace.ranges["name"]
    categories = name_categories(names)
    texts = pl.Series([text if by == "full_name" else plain_range_name(text) for text in categories], dtype=pl.String)
    distinct = texts.unique(maintain_order=True)
    name_code = texts.cast(pl.Enum(distinct)).to_physical().cast(pl.Int64).to_numpy()
    code = name_code[names.to_physical().to_numpy()]
    rows = instances["row"].to_numpy()
    counts = np.ones(len(rows), dtype=np.bool_)
    if by == "tree":
        group, group_parent, group_code, depth = name_paths(code, rows, instances["parent"].to_numpy())
    else:
        group_code, group = np.unique(code[rows], return_inverse=True)
        group, depth = group.reshape(-1), np.zeros(len(group_code), dtype=np.int64)
        group_parent = np.full(len(group_code), NO_RANGE, dtype=np.int64)
        label = -1 - np.arange(len(code))  # ranges that are not listed enclose none of their own name
        label[rows] = code[rows]
        counts = ~timeline.forest.repeats(label)[rows]
    total_ns = range_coverage(timeline, window).total_ns
    # What lies in a range of the same name is a part of it already.
    inclusive = ("host_ns", "gpu_ns", "inferred_ns", "span_ns", "ops", "kernels")
    numbered = instances.with_columns(pl.Series("id", group), pl.Series("counts", counts))
    summed = numbered.group_by("id").agg(
        pl.len().cast(pl.Int64).alias("instances"),
        pl.col("gpu_exclusive_ns").sum(),
        pl.col(inclusive).filter("counts").sum(),
    )
    table = RANGES.conform(
        summed.sort("id").with_columns(
            pl.Series("parent", group_parent).replace(NO_RANGE, None),
            pl.Series("depth", depth),
            distinct.gather(group_code).alias("name"),
            share=pl.col("gpu_ns") / total_ns if total_ns else pl.lit(0.0),
        )
    )
    if by == "tree":
        table = depth_first(table, "gpu_ns", "host_ns", "name")
    else:
        table = table.sort(["gpu_ns", "host_ns", "name"], descending=[True, True, False])
    if timeline.work.height:
        return table
    return table.with_columns(pl.lit(None).alias(name) for name in _WORK_COLUMNS).pipe(RANGES.conform)


def projected_spans(timeline: Timeline, rows: Int64s, device: int | None = None) -> Intervals:
    """From the first begin to the last end of the GPU work launched inside each of these ranges, at any depth.

    Args:
        rows: rows of `Trace.ranges`. Where one encloses another, the outer one's span is given.
        device: only work on this device counts; None for all.
    """
    label = np.zeros(timeline.trace.ranges.height, dtype=np.int64)
    label[rows] = np.arange(1, len(rows) + 1)
    outermost = np.r_[timeline.forest.outermost_match(label), 0]
    work = timeline.work
    instance = outermost[work["range"].fill_null(NO_RANGE).to_numpy()]
    selected = instance > 0
    if device is not None:
        selected &= (work["device"] == device).to_numpy()
    instance_row = instance[selected] - 1
    first = _extreme(instance_row, work["start_ns"].to_numpy()[selected], len(rows), np.minimum)
    last = _extreme(instance_row, work["end_ns"].to_numpy()[selected], len(rows), np.maximum)
    not_empty = last > first
    return Intervals(first[not_empty], last[not_empty])


class _Work(NamedTuple):
    """Per range, in one sense of belonging: number of pieces of work, their duration, first begin and last end."""

    ops: Int64s
    duration: Int64s
    first: Int64s
    last: Int64s


def _directly(work: pl.DataFrame, count: int) -> _Work:
    """Per range, the work that belongs to it directly, not to a range inside it."""
    owner, start, end = (work[column].to_numpy() for column in ("range", "start_ns", "end_ns"))
    first, last = _extreme(owner, start, count, np.minimum), _extreme(owner, end, count, np.maximum)
    return _Work(np.bincount(owner, minlength=count), sum_by(owner, end - start, count), first, last)


def _contained(ranges: pl.DataFrame, work: pl.DataFrame) -> _Work:
    """Per range, the work launched on its own thread while it was open, regardless of other ranges."""
    ops, duration = np.zeros((2, ranges.height), dtype=np.int64)
    first, last = (np.full(ranges.height, _IDENTITY[function]) for function in (np.minimum, np.maximum))
    launched = work.select("process", "thread", "launch_start_ns", "start_ns", "end_ns")
    launched = select_rows(launched, launched["thread"].is_not_null())
    threads = ranges.select("process", "thread").unique().rows()
    for process, thread in threads:
        on_thread = (pl.col("process") == process) & (pl.col("thread") == thread)
        launches = select_rows(launched, launched.select(on_thread).to_series())
        if not launches.height:
            continue
        if not launches["launch_start_ns"].is_sorted():
            launches = launches.sort("launch_start_ns", maintain_order=True)
        rows = np.flatnonzero(ranges.select(on_thread).to_series().to_numpy())
        launch_times = launches["launch_start_ns"].to_numpy()
        low = np.searchsorted(launch_times, ranges["start_ns"].to_numpy()[rows], side="left")
        high = np.searchsorted(launch_times, ranges["end_ns"].to_numpy()[rows], side="left")
        rows, low, high = rows[high > low], low[high > low], high[high > low]
        if not len(rows):
            continue
        start, end = launches["start_ns"].to_numpy(), launches["end_ns"].to_numpy()
        before = running_sum(end - start)
        ops[rows] = high - low
        duration[rows] = before[high] - before[low]
        first[rows] = _reduce_slices(start, low, high, np.minimum)
        last[rows] = _reduce_slices(end, low, high, np.maximum)
    return _Work(ops, duration, first, last)


def _reduce_slices(values: Int64s, low: Int64s, high: Int64s, function: np.ufunc) -> Int64s:
    """`function` over each `values[low[i]:high[i]]`, none of which is empty."""
    # reduceat reduces [e[i], e[i+1]) for consecutive edges; the odd results, between slices, are dropped.
    edges = np.stack((low, high), axis=1).reshape(-1)
    padded = values if int(high.max()) < len(values) else np.r_[values, values[-1:]]  # an edge may equal the length
    result: Int64s = function.reduceat(padded, edges)[::2]
    return result


def _extreme(groups: Int64s, values: Int64s, count: int, function: np.ufunc) -> Int64s:
    best = np.full(count, _IDENTITY[function], dtype=np.int64)
    function.at(best, groups, values)
    return best
