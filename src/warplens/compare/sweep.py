"""A sweep: a baseline and a variant measured at the points of a grid, and read from any measurements file.

A point is a combination of settings that both sides share, such as input size and batch. What tells the sides apart
(the method, say) is no axis. Every question about a sweep starts from this model: `surface`, `crossover`, `breakeven`
and `policy` import nothing of each other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from warplens.compare.samples import Samples

__all__ = ["Cell", "Point", "Sweep"]


@dataclass(frozen=True, eq=False)
class Cell:
    """One side at one point.

    Attributes:
        status: one of `warplens.profile.measurements.STATUSES`.
        wall: wall times of a step, or times between events where calls were issued back to back; None if it was not
            measured, or if only a rate is known.
        reason: of any status but `measured`.
        time_ns: median wall time of a step; from a published rate where there are no samples. None if not measured.
        gpu: times between events round a step, where known.
        items: what a step processes (its batch).
        unit: what one of those is.
        macs, flops: arithmetic of a step, modelled, where known.
        launches: kernels (and other pieces of work) that a step launches, where known; a CUDA graph counts as one.
        launch: how a step is issued: `eager`, `compile` or `graph`, where known.
        details: further facts, as they stand in the measurements file (`tokens`, the token counts of each block, …).
    """

    status: str
    wall: Samples | None = None
    reason: str | None = None
    time_ns: float | None = None
    gpu: Samples | None = None
    items: int | None = None
    unit: str | None = None
    macs: int | None = None
    flops: int | None = None
    launches: float | None = None
    launch: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the grid.

    Attributes:
        settings: its value on each axis.
        baseline, variant: what was measured there; None if the file does not have that side.
    """

    settings: Mapping[str, Any]
    baseline: Cell | None
    variant: Cell | None

    @property
    def durations(self) -> tuple[Samples, Samples] | None:
        """Wall times of baseline and variant; None unless both were measured repeatedly."""
        before = self.baseline.wall if self.baseline else None
        after = self.variant.wall if self.variant else None
        return (before, after) if before is not None and after is not None else None

    @property
    def lacking(self) -> str | None:
        """The first side that was not measured, and why: `variant: out-of-memory (…)`; None if both were."""
        for side, cell in (("baseline", self.baseline), ("variant", self.variant)):
            if cell is None:
                return f"{side}: absent"
            if cell.status != "measured":
                return f"{side}: {cell.status}" + (f" ({cell.reason})" if cell.reason else "")
        return None

    @property
    def speedup(self) -> float | None:
        """How many times as fast the variant is: baseline time / variant time; None unless both were measured."""
        before = self.baseline.time_ns if self.baseline else None
        after = self.variant.time_ns if self.variant else None
        return before / after if before and after else None


@dataclass(frozen=True, eq=False)
class Sweep:
    """A baseline and a variant over a grid.

    Attributes:
        source: name of the file.
        workload: what was measured.
        axes: settings that vary from point to point, in the order of the file; numeric or text.
        baseline, variant: the settings that tell the sides apart, such as `{"method": "topk", "keep": 0.1}`.
        shared: settings that are the same everywhere.
        points: every combination that one of the sides has, in rising order of the axes.
        environment: GPU, driver and versions.
        paired: whether the sides were measured in turns.
    """

    source: str
    workload: str
    axes: tuple[str, ...]
    baseline: Mapping[str, Any]
    variant: Mapping[str, Any]
    shared: Mapping[str, Any]
    points: tuple[Point, ...]
    environment: Mapping[str, Any]
    paired: bool

    def frame(self) -> pl.DataFrame:
        """One row a point: its axes, `baseline_ns`, `variant_ns`, `speedup`; null where a side was not measured."""
        return pl.DataFrame(
            [
                {
                    **point.settings,
                    "baseline_ns": point.baseline.time_ns if point.baseline else None,
                    "variant_ns": point.variant.time_ns if point.variant else None,
                    "speedup": point.speedup,
                }
                for point in self.points
            ],
            infer_schema_length=None,
        )
