"""Device-projected ranges: the GPU time of an annotated range is the time of the work launched inside it.

A range's own duration on the host says when work was *launched*, not when or how long it ran. Here each piece of GPU
work belongs to the innermost range of `warplens.analysis.trees`; a range's inclusive time adds that of everything
inside it, its exclusive time does not. Both are sums of the work's durations; `span_ns` is from the first start to the
last end (NVIDIA's "projected" time, idle time included).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import chosen, running_sum, sum_by
from warplens.analysis.intervals import Intervals
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, depth_first, is_operator, name_paths, nearest
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.patterns import lazy_pattern
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
    "One path of range names (`--by tree`), or one name. `warplens ranges`.",
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

#: Columns that speak of GPU work.
_OF_WORK = ("gpu_ns", "gpu_exclusive_ns", "inferred_ns", "span_ns", "ops", "kernels", "share")

#: Where there is no least or greatest time.
_NEVER: dict[np.ufunc, int] = {np.minimum: np.iinfo(np.int64).max, np.maximum: np.iinfo(np.int64).min}

# PyTorch's emit_nvtx appends running numbers and shapes to operator names; they make every instance a name of its own.
_RUNNING_NUMBERS = lazy_pattern(r",\s*(?:op_id|seq|sizes|input_op_ids)\s*=.*$")


#: The number of a step or call behind its name, and that of a layer within a path.
_TRAILING_NUMBER = lazy_pattern(r"[#_ :=.-]+\d+$")
_LAYER = lazy_pattern(r"\.\d+\.")

_PROFILER_STEP = lazy_pattern(r"^ProfilerStep#\d+$")

#: Names read so far are kept, up to a number that only recorded operators with running numbers exceed.
_REMEMBERED_NAMES = 65_536


@dataclass(frozen=True)
class RangeCoverage:
    """How much of the GPU work's summed duration belongs to ranges, and by which rule."""

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


def plain_range_name(name: str) -> str:
    """The name without the running numbers that PyTorch appends.

    `emit_nvtx` numbers operators (`aten::add, op_id = 7` → `aten::add`), the profiler steps (`ProfilerStep#3` →
    `ProfilerStep#N`).
    """
    return _PROFILER_STEP.sub("ProfilerStep#N", _RUNNING_NUMBERS.sub("", name))


@lru_cache(maxsize=_REMEMBERED_NAMES)
def unnumbered_name(name: str) -> str:
    """The name without what tells steps, calls and layers apart, so that all of them are one place.

    >>> [unnumbered_name(name) for name in ("ProfilerStep#4", "aten::mm, op_id = 7", "step 12", "layers.3.mlp")]
    ['ProfilerStep', 'aten::mm', 'step', 'layers.*.mlp']
    """
    return _LAYER.sub(".*.", _TRAILING_NUMBER.sub("", _RUNNING_NUMBERS.sub("", name))) or name


def range_coverage(timeline: Timeline, window: Window, *, operators: bool = True) -> RangeCoverage:
    """How much of the window's GPU work belongs to ranges; without `operators`, to the annotations alone."""
    work = _work_of(timeline, window, operators)
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    attributed = work["range"].is_not_null().to_numpy()
    inferred = work["inferred"].to_numpy()
    return RangeCoverage(
        int(duration.sum()), int(duration[attributed & ~inferred].sum()), int(duration[attributed & inferred].sum())
    )


def _work_of(timeline: Timeline, window: Window, operators: bool) -> pl.DataFrame:
    """The window's work; without operators, that of an operator belongs to the annotation around it."""
    work = timeline.work_in(window)
    annotated = ~is_operator(timeline.trace.ranges)
    if operators or annotated.all():
        return work
    held = nearest(timeline.forest.parent, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
    # An operator of another thread lies in what a waiting thread holds open.
    holder = np.r_[timeline.trace.ranges["thread"].to_numpy(), np.int32(-1)][held]
    lent = (held != NO_RANGE) & (holder != work["thread"].fill_null(-1).to_numpy())
    return work.with_columns(
        pl.Series("range", held).replace(NO_RANGE, None), pl.Series("inferred", work["inferred"].to_numpy() | lent)
    )


def range_instances(timeline: Timeline, window: Window, *, operators: bool = True) -> pl.DataFrame:
    """Every range with GPU work in the window, or begun in it (`INSTANCES`), in the order of `Trace.ranges`.

    Without `operators`, those that a framework's profiler recorded are left out; their work stays in the annotations
    around them.
    """
    ranges = timeline.trace.ranges
    if not ranges.height:
        return INSTANCES.empty()
    forest = timeline.forest
    work = _work_of(timeline, window, operators)
    attributed = chosen(work.select("range", "start_ns", "end_ns", "inferred", "kind"), work["range"].is_not_null())
    own = _directly(attributed, ranges.height)
    own_kernels, own_inferred = (
        _directly(attributed.filter(which), ranges.height) for which in (pl.col("kind") == "kernel", pl.col("inferred"))
    )
    held = _contained(ranges, work)
    parent, listed = forest.parent, np.ones(ranges.height, dtype=np.bool_)
    if not operators:
        listed = ~is_operator(ranges)
        parent = nearest(parent, listed, parent)
    gpu = forest.inclusive(own.duration)
    ops = forest.inclusive(own.ops)
    # What two crossing ranges share belongs to both, which no tree can say: there, containment in time counts.
    # So does the time that outermost ranges of other threads bring into a range, at any depth.
    linked = np.flatnonzero(forest.parent_inferred)
    lent = sum_by(forest.parent[linked], held.duration[linked], ranges.height)
    inferred = forest.inclusive(own_inferred.duration + lent)
    gpu = np.where(forest.crossing, held.duration + inferred, gpu)
    ops = np.where(forest.crossing, np.maximum(ops, held.ops), ops)
    first = np.minimum(forest.earliest(own.first), held.first)
    last = np.maximum(forest.latest(own.last), held.last)
    selected = (ops > 0) & listed
    if window.range_name is None:
        begun = ranges["start_ns"].to_numpy()
        selected |= listed & ((window.kind == "all") | ((begun >= window.start_ns) & (begun < window.end_ns)))
    return pl.DataFrame(
        {
            "row": np.arange(ranges.height),
            "parent": parent,
            "host_ns": ranges["end_ns"] - ranges["start_ns"],
            "gpu_ns": gpu,
            "gpu_exclusive_ns": own.duration,
            "inferred_ns": gpu - held.duration,
            "first_ns": np.where(ops > 0, first, 0),
            "last_ns": np.where(ops > 0, last, 0),
            "span_ns": np.where(ops > 0, last - first, 0),
            "ops": ops,
            "kernels": forest.inclusive(own_kernels.ops),
            "same_thread_ops": held.ops,
            "same_thread_span_ns": np.where(held.ops > 0, held.last - held.first, 0),
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
    if by == "tree":
        group, group_parent, group_code, depth = name_paths(code, rows, instances["parent"].to_numpy())
    else:
        group_code, group = np.unique(code[rows], return_inverse=True)
        group, depth = group.reshape(-1), np.zeros(len(group_code), dtype=np.int64)
        group_parent = np.full(len(group_code), NO_RANGE, dtype=np.int64)
    total_ns = range_coverage(timeline, window).total_ns
    sums = ("host_ns", "gpu_ns", "gpu_exclusive_ns", "inferred_ns", "span_ns", "ops", "kernels")
    summed = instances.group_by(pl.Series("id", group)).agg(
        pl.len().cast(pl.Int64).alias("instances"), pl.col(sums).sum()
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
    return table.with_columns(pl.lit(None).alias(name) for name in _OF_WORK).pipe(RANGES.conform)


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
    mine = instance > 0
    if device is not None:
        mine &= (work["device"] == device).to_numpy()
    place = instance[mine] - 1
    first = _extreme(place, work["start_ns"].to_numpy()[mine], len(rows), np.minimum)
    last = _extreme(place, work["end_ns"].to_numpy()[mine], len(rows), np.maximum)
    found = last > first
    return Intervals(first[found], last[found])


class _Work(NamedTuple):
    """Per range: how many pieces of work belong to it in some sense, their duration, first begin and last end."""

    ops: Int64s
    duration: Int64s
    first: Int64s
    last: Int64s


def _directly(work: pl.DataFrame, count: int) -> _Work:
    """Per range: the work that belongs to it directly, not to a range inside it."""
    owner, start, end = (work[column].to_numpy() for column in ("range", "start_ns", "end_ns"))
    first, last = _extreme(owner, start, count, np.minimum), _extreme(owner, end, count, np.maximum)
    return _Work(np.bincount(owner, minlength=count), sum_by(owner, end - start, count), first, last)


def _contained(ranges: pl.DataFrame, work: pl.DataFrame) -> _Work:
    """Per range: the work launched on its own thread while it was open, whatever else was open."""
    ops, duration = np.zeros((2, ranges.height), dtype=np.int64)
    first, last = (np.full(ranges.height, _NEVER[function]) for function in (np.minimum, np.maximum))
    launched = work.select("process", "thread", "launch_start_ns", "start_ns", "end_ns")
    launched = chosen(launched, launched["thread"].is_not_null())
    threads = ranges.select("process", "thread").unique().rows()
    for process, thread in threads:
        here = (pl.col("process") == process) & (pl.col("thread") == thread)
        mine = chosen(launched, launched.select(here).to_series())
        if not mine.height:
            continue
        if not mine["launch_start_ns"].is_sorted():
            mine = mine.sort("launch_start_ns", maintain_order=True)
        rows = np.flatnonzero(ranges.select(here).to_series().to_numpy())
        when = mine["launch_start_ns"].to_numpy()
        low = np.searchsorted(when, ranges["start_ns"].to_numpy()[rows], side="left")
        high = np.searchsorted(when, ranges["end_ns"].to_numpy()[rows], side="left")
        rows, low, high = rows[high > low], low[high > low], high[high > low]
        if not len(rows):
            continue
        start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
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
    best = np.full(count, _NEVER[function], dtype=np.int64)
    function.at(best, groups, values)
    return best
