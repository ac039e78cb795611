"""The time budget: a window's wall time split into parts that sum to it exactly.

At every instant the device is doing one of these, asked in this order:

1. compute: a kernel that is not communication runs. Where several run at once, the instant belongs to the one that
   began first, so that categories add up;
2. a CUDA graph traced as a whole runs: busy, but its inside is hidden;
3. communication that no compute hides ("exposed");
4. copies and fills that neither compute nor communication hides;
5. nothing: idle, by cause (`warplens.analysis.idle`).

Everything is an interval union in integer nanoseconds: durations that overlap are never added up, and the residual is
zero by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.idle import IdleGaps, idle_gaps
from warplens.analysis.intervals import Intervals, Owned, clip, complement, owned_union, subtract, total, union
from warplens.analysis.ranges import projected_spans
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.schema import name_categories

__all__ = ["BUDGET_SCHEMA", "PART_GROUPS", "TimeBudget", "budgets_within", "time_budgets"]

Int64s = npt.NDArray[np.int64]

#: Groups of parts in the order of presentation.
PART_GROUPS = ("compute", "graph", "communication", "copy", "idle")

#: Schema of `TimeBudget.parts`: one row a part.
BUDGET_SCHEMA = pl.Schema(
    {"group": pl.Enum(PART_GROUPS), "part": pl.String(), "time_ns": pl.Int64(), "share": pl.Float64()}
)


@dataclass(frozen=True, eq=False)
class TimeBudget:
    """Where one device's time went.

    Attributes:
        device: CUDA ordinal.
        window: the window that was split.
        duration_ns: the time that was split: the window's length, or with a range the summed spans of its instances.
        parts: `BUDGET_SCHEMA`, largest first within a group; `time_ns` sums to `duration_ns`.
        gaps: every idle interval with its causes.
        attributed_share: share of the idle time whose cause the profile reveals; None where there is no idle time.
    """

    device: int
    window: Window
    duration_ns: int
    parts: pl.DataFrame
    gaps: IdleGaps

    @property
    def busy_ns(self) -> int:
        """Time in which the device did anything."""
        return self.duration_ns - self.idle_ns

    @property
    def idle_ns(self) -> int:
        """Time in which the device did nothing."""
        return total(self.gaps.gaps)

    @property
    def attributed_share(self) -> float | None:
        """Share of the idle time whose cause the profile reveals."""
        return 1 - self.gaps.totals["unknown"] / self.idle_ns if self.idle_ns else None

    def group_ns(self, group: str) -> int:
        """Time of one group of parts (`PART_GROUPS`)."""
        return int(self.parts.filter(pl.col("group") == group)["time_ns"].sum())


def time_budgets(timeline: Timeline, window: Window) -> tuple[TimeBudget, ...]:
    """One budget for each device that did any work in the window, in device order; none if no device did."""
    devices = timeline.work_in(window)["device"].unique().sort().to_list()
    return tuple(_budget(timeline, window, device, _segments(timeline, window, device)) for device in devices)


def budgets_within(timeline: Timeline, window: Window, segments: Intervals) -> tuple[TimeBudget, ...]:
    """The budget of some disjoint pieces of a window's time, such as its steps, for each device that worked in it.

    The window's range, if it has one, does not count: the pieces say which time is split.
    """
    devices = timeline.work_in(window)["device"].unique().sort().to_list()
    return tuple(_budget(timeline, window, device, union(segments)) for device in devices)


def _budget(timeline: Timeline, window: Window, device: int, segments: Intervals) -> TimeBudget:
    work = timeline.work_on(device)
    touching = (work["end_ns"].to_numpy() > window.start_ns) & (work["start_ns"].to_numpy() < window.end_ns)
    if not touching.all():
        work = work.filter(pl.Series(touching))
    labels, names = _labels(timeline, work)
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    outside = complement(segments, *_hull(starts, ends, segments))
    spent: dict[tuple[str, str], int] = {}
    covered = Intervals.none()
    for group in PART_GROUPS[:-1]:
        of_group = np.array([name[0] == group for name in names], dtype=np.bool_)[labels]
        rows = np.flatnonzero(of_group)
        if not len(rows):
            continue
        pieces = owned_union(starts[rows], ends[rows])
        pieces = subtract(subtract(pieces, outside), covered)
        amounts = _sum_by(labels[rows[pieces.owner]], pieces.ends - pieces.starts, len(names))
        spent.update({name: amount for name, amount in zip(names, amounts, strict=True) if name[0] == group and amount})
        covered = union(
            Intervals(np.concatenate((covered.starts, pieces.starts)), np.concatenate((covered.ends, pieces.ends)))
        )
    gaps = idle_gaps(timeline, device, _gaps(segments, covered))
    spent.update({("idle", cause): amount for cause, amount in gaps.totals.items() if amount})
    duration = total(segments)
    return TimeBudget(device, window, duration, _parts(spent, duration), gaps)


def _segments(timeline: Timeline, window: Window, device: int) -> Intervals:
    if window.range_name is None:
        return Intervals(np.array([window.start_ns]), np.array([window.end_ns]))
    spans = projected_spans(timeline, timeline.range_rows(window.range_name), device)
    return union(clip(spans, window.start_ns, window.end_ns))


def _gaps(segments: Intervals, covered: Intervals) -> Intervals:
    pieces = subtract(Owned(*segments, np.arange(len(segments.starts))), covered)
    return Intervals(pieces.starts, pieces.ends)


def _hull(starts: Int64s, ends: Int64s, segments: Intervals) -> tuple[int, int]:
    bounds = np.concatenate((starts, segments.starts)), np.concatenate((ends, segments.ends))
    return (int(bounds[0].min()), int(bounds[1].max())) if len(bounds[0]) else (0, 0)


def _labels(timeline: Timeline, work: pl.DataFrame) -> tuple[Int64s, list[tuple[str, str]]]:
    """For each piece of work the position of its (group, part) in the list of them."""
    trace = timeline.trace
    label = {
        "kernel": categories_of(trace.kernels["full_name"]),
        "copy": trace.copies["direction"],
        "memset": _constant("memset", trace.memsets.height),
        "graph": _constant("hidden inside CUDA graphs", trace.graph_launches.height),
    }
    names: list[tuple[str, str]] = []
    codes = np.zeros(work.height, dtype=np.int64)
    for kind, texts in label.items():
        rows = np.flatnonzero((work["kind"] == kind).to_numpy())
        codes[rows] = texts.to_physical().to_numpy()[work["row"].to_numpy()[rows]] + len(names)
        names.extend((_group(kind, text), text) for text in name_categories(texts))
    return codes, names


def _constant(text: str, count: int) -> pl.Series:
    return pl.Series([text], dtype=pl.Enum([text])).gather(np.zeros(count, dtype=np.int64))


def _group(kind: str, part: str) -> str:
    if kind == "kernel":
        return "communication" if part == "communication" else "compute"
    return "graph" if kind == "graph" else "copy"


def _sum_by(labels: Int64s, amounts: Int64s, count: int) -> list[int]:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, labels, amounts)
    return [int(value) for value in sums]


def _parts(spent: dict[tuple[str, str], int], duration: int) -> pl.DataFrame:
    order = {group: position for position, group in enumerate(PART_GROUPS)}
    rows = sorted(spent.items(), key=lambda item: (order[item[0][0]], -item[1], item[0][1]))
    return pl.DataFrame(
        {
            "group": [group for (group, _), _ in rows],
            "part": [part for (_, part), _ in rows],
            "time_ns": [amount for _, amount in rows],
            "share": [amount / duration if duration else 0.0 for _, amount in rows],
        },
        schema=BUDGET_SCHEMA,
    )
