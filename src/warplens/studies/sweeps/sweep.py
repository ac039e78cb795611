"""The data model of a sweep: a baseline and a variant measured at the points of a grid, and resampled times.

A point is a combination of settings that both sides share, such as input size and batch. Settings that distinguish the
sides (the method, say) are not axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.compare import SIDES
from warplens.compare.decisions import Comparison, compare
from warplens.compare.shift import Samples, t_quantile, units
from warplens.errors import MissingDataError, UsageError
from warplens.profile.schema import Bools, Float64s, Int64s, Table
from warplens.studies.policies.choosing import is_number


@dataclass(frozen=True, eq=False)
class Cell:
    """One side at one point."""

    status: str  #: one of `warplens.profile.measurements.STATUSES`
    #: wall times of a step, or times between CUDA events where calls were issued back to back; None if not measured or
    #: if only a rate is known
    wall: Samples | None = None
    reason: str | None = None  #: explains any status but `measured`
    #: median wall time of a step, or derived from a published rate where there are no samples; None if not measured
    time_ns: float | None = None
    gpu: Samples | None = None  #: times between the CUDA events around a step, where known
    gpu_ns: float | None = None  #: their median, or the file's figure where it holds no samples
    items: int | None = None  #: items per step (the batch)
    unit: str | None = None  #: name of one item
    #: macs, flops: modelled arithmetic of a step, where known
    macs: int | None = None
    flops: int | None = None
    #: kernels, copies and fills that a step launches, where known; a CUDA graph counts as one
    launches: float | None = None
    launch: str | None = None  #: launch mode of a step: `eager`, `compile` or `graph`, where known
    #: further fields of the cell in the measurements file (`tokens`, the token counts of each block, …)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_timed(self) -> bool:
        """Whether the step time is known."""
        return self.time_ns is not None


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the grid."""

    settings: Mapping[str, Any]  #: its value on each axis
    #: baseline, variant: the measurements at this point; None if the file lacks that side
    baseline: Cell | None
    variant: Cell | None

    @property
    def sides(self) -> tuple[tuple[str, Cell | None], ...]:
        """(name, cell) of baseline and variant."""
        return tuple(zip(SIDES, (self.baseline, self.variant), strict=True))

    @property
    def durations(self) -> tuple[Samples, Samples] | None:
        """Wall times of baseline and variant; None unless both were measured repeatedly."""
        before = self.baseline.wall if self.baseline else None
        after = self.variant.wall if self.variant else None
        return (before, after) if before is not None and after is not None else None

    @property
    def lacking(self) -> str | None:
        """The first side that was not measured, with the reason: `variant: out-of-memory (…)`; None if both were."""
        for side, cell in self.sides:
            if cell is None:
                return f"{side}: absent"
            if cell.status != "measured":
                return f"{side}: {cell.status}" + (f" ({cell.reason})" if cell.reason else "")
        return None

    @property
    def speedup(self) -> float | None:
        """Baseline time / variant time; None unless both were measured."""
        before = self.baseline.time_ns if self.baseline else None
        after = self.variant.time_ns if self.variant else None
        return before / after if before and after else None


@dataclass(frozen=True, eq=False)
class Sweep:
    """A baseline and a variant over a grid."""

    source: str  #: name of the file
    workload: str  #: name of the workload
    axes: tuple[str, ...]  #: settings that vary from point to point, in the order of the file; numeric or text
    #: baseline, variant: the settings that distinguish the sides, such as `{"method": "topk", "keep": 0.1}`
    baseline: Mapping[str, Any]
    variant: Mapping[str, Any]
    shared: Mapping[str, Any]  #: settings that are the same everywhere
    points: tuple[Point, ...]  #: every combination that one of the sides has, in rising order of the axes
    environment: Mapping[str, Any]  #: GPU, driver and versions
    paired: bool  #: whether the sides were measured in alternation
    #: the interpretation of a published table's column titles, where they differ from ours
    read_as: tuple[str, ...] = ()

    def lines(self, axis: str) -> Iterator[tuple[dict[str, Any], list[Point]]]:
        """For each combination of values of the other axes: the values, and its points in rising order of this axis."""
        others = [name for name in self.axes if name != axis]
        points_by_key: dict[tuple[Any, ...], list[Point]] = {}
        for point in self.points:
            points_by_key.setdefault(tuple(point.settings[name] for name in others), []).append(point)
        for key, points in points_by_key.items():
            yield dict(zip(others, key, strict=True)), sorted(points, key=lambda point: float(point.settings[axis]))


@dataclass(frozen=True, eq=False)
class ComparedPoint:
    """A point with the comparison of its sides."""

    point: Point
    comparison: Comparison | None  #: None where a side was not measured, or not repeatedly
    remark: str | None  #: why there is no comparison; None if there is one


def compared_points(
    points: Sequence[Point], *, margin: float, level: float, unrepeated: str
) -> tuple[ComparedPoint, ...]:
    """Compares the two sides of each point.

    The intervals are simultaneous: with n points each is made for `level` / n (Bonferroni). Without the correction,
    five of a hundred equal points would seem to differ. Differences up to the share `margin` count as none.
    `unrepeated` is the remark on points whose sides were measured, but not repeatedly.
    """
    repeated = sum(point.durations is not None for point in points)
    compared = []
    for point in points:
        if point.durations is None:
            compared.append(ComparedPoint(point, None, point.lacking or unrepeated))
        else:
            comparison = compare(*point.durations, margin=margin, level=level / repeated)
            compared.append(ComparedPoint(point, comparison, None))
    return tuple(compared)


def only_of(sweep: Sweep, side: str) -> list[Point]:
    """The points that the other side lacks."""
    other = SIDES[1 - SIDES.index(side)]
    return [point for point in sweep.points if getattr(point, other) is None]


def framed(rows: Sequence[Mapping[str, Any]], axes: Sequence[str], table: Table) -> pl.DataFrame:
    """A frame of the axes (types inferred), then the columns of a table; keys that a row lacks become null."""
    schema = table.schema
    right = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema, orient="row")
    if not axes or not rows:
        return right
    left = pl.DataFrame([{name: row[name] for name in axes} for row in rows], infer_schema_length=None)
    return pl.concat((left, right), how="horizontal")


# --- Resampled times of the points of a sweep, from which crossovers and the break-even model get their intervals ----
# Blocks are resampled, never single durations. Where the sides were measured in alternation, block i of one side is
# drawn together with block i of the other; where all points have the same number of blocks, with block i of every
# point as well, because a disturbance of a round affects all of it.

#: Fewer blocks do not determine the spread between them: the t quantile of three blocks is 4.3.
LEAST_BLOCKS: Final = 4

#: A single block is cut into at most this many pieces, so that correlated neighbours in time stay together.
_MOST_PIECES: Final = 20

#: Minimum number of durations in a piece of a single block.
_LEAST_IN_PIECE: Final = 2


@dataclass(frozen=True, eq=False)
class Replicates:
    """Log times of points, as measured and as resampled."""

    #: baseline, variant: estimates, one per point
    baseline: Float64s
    variant: Float64s
    #: baseline_draws, variant_draws: resampled, draws × points; equal to the estimate where the noise is unknown
    baseline_draws: Float64s
    variant_draws: Float64s
    known: Bools  #: whether the noise of the point is known
    within: Bools  #: whether it is only the noise within a single block

    @property
    def ratio(self) -> Float64s:
        """Log of variant / baseline, one per point: negative where the variant is faster."""
        return self.variant - self.baseline


def replicates(points: Sequence[Point], count: int, level: float, seed: int) -> Replicates:
    """Bootstrap of points whose two sides were both measured.

    The time of a side is the median over blocks of the block's median. With paired blocks, the ratio is the median
    over blocks of the ratio within the block, and the variant's time is the baseline's times that ratio.

    Deviations of the draws are widened by √(n/(n−1)) · t/z for n blocks, since a bootstrap of few blocks is too narrow
    by about that factor (Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69,
    2015).

    `count` is the number of draws, `level` that of the intervals that are made of them.
    """
    generator = np.random.default_rng(seed)
    sides = [(_block_medians(point.baseline), _block_medians(point.variant)) for point in points]
    sizes = {len(logs) for pair in sides for logs, _ in pair}
    equal_sizes = len(sizes) == 1 and min(sizes) > 0
    common_draw = generator.integers(min(sizes), size=(count, min(sizes))) if equal_sizes else None
    columns = []
    for point, ((before, cut_before), (after, cut_after)) in zip(points, sides, strict=True):
        if min(len(before), len(after)) < LEAST_BLOCKS:
            columns.append(_without_noise(point, count))
            continue
        paired = len(before) == len(after) and all(samples.paired for samples in point.durations or ())
        drawn = generator.integers(len(before), size=(count, len(before))) if common_draw is None else common_draw
        if paired:
            middle, ratio = float(np.median(before)), float(np.median(after - before))
            varied = _widened(before, drawn, level)
            estimate, draws = (middle, middle + ratio), (varied, varied + _widened(after - before, drawn, level))
        else:
            drawn_after = generator.integers(len(after), size=(count, len(after)))
            drawn_before = generator.integers(len(before), size=(count, len(before)))
            estimate = (float(np.median(before)), float(np.median(after)))
            draws = (_widened(before, drawn_before, level), _widened(after, drawn_after, level))
        columns.append((*estimate, *draws, True, cut_before or cut_after))
    baseline, variant, baseline_draws, variant_draws, known, within = zip(*columns, strict=True)
    return Replicates(
        np.array(baseline), np.array(variant), np.stack(baseline_draws, axis=1), np.stack(variant_draws, axis=1),
        np.array(known), np.array(within),
    )  # fmt: skip


def _block_medians(cell: Cell | None) -> tuple[Float64s, bool]:
    """Logs of the medians of independent blocks, and whether these are pieces cut from a single block."""
    if cell is None or cell.wall is None:
        return np.empty(0), False
    samples = cell.wall
    if len(samples.blocks) > 1:
        return units(samples), False
    pieces = min(_MOST_PIECES, samples.count // _LEAST_IN_PIECE)
    if pieces < LEAST_BLOCKS:
        return np.empty(0), False
    return np.log([np.median(piece) for piece in np.array_split(samples.values, pieces)]), True


def _without_noise(point: Point, count: int) -> tuple[float, float, Float64s, Float64s, bool, bool]:
    before, after = (math.log(cell.time_ns) if cell and cell.time_ns else math.nan for _, cell in point.sides)
    return before, after, np.full(count, before), np.full(count, after), False, False


def _widened(logs: Float64s, drawn: Int64s, level: float) -> Float64s:
    quantiles = t_quantile(1 - level, np.array([logs.size - 1, np.inf]))
    widening = math.sqrt(logs.size / (logs.size - 1)) * float(quantiles[0] / quantiles[1])
    middle = np.median(logs)
    return np.asarray(middle + (np.median(logs[drawn], axis=1) - middle) * widening)


#: Measure of work from which the GPU time is modelled: token counts of each block, FLOPs, or only the number of items.
Work: TypeAlias = Literal["tokens", "flops", "items"]

#: Share of a transformer block's linear work that grows with the entering tokens: the projections (4·N·d²) process the
#: entering tokens, the MLP (8·N'·d²) the leaving ones. Other MLP widths change the share a little.
_ENTERING_SHARE: Final = 1 / 3


@dataclass(frozen=True)
class Known:
    """The fields that all measured cells of a sweep have."""

    work: Work  #: the most detailed measure of work that all of them have
    missing: tuple[str, ...]  #: names of fields that would make a better model: `tokens`, `flops`, `items`, `launches`


@dataclass(frozen=True)
class Size:
    """The size of one item, in each measure of work."""

    #: tokens of each block: [entering, query, leaving]; None where unknown
    tokens: tuple[tuple[float, float, float], ...] | None
    flops: float | None  #: FLOPs of an item; None where unknown
    launches: float | None  #: launches of a step; None where unknown

    def amount(self, work: Work) -> float:
        """The size as a single number: tokens that enter the first block, FLOPs, or 1."""
        first = self.tokens[0][0] if self.tokens else None
        amount = {"tokens": first, "flops": self.flops, "items": 1.0}[work]
        if amount is None:
            raise UsageError(f"the cell has no {work}, which this model needs")
        return float(amount)


@dataclass(frozen=True, eq=False)
class Observed:
    """One side of one point, as input of a fit."""

    settings: Mapping[str, Any]  #: of the point
    side: int  #: 0 for the baseline, 1 for the variant
    #: values of the non-numeric axes (execution, …): host time differs between groups, work does not
    group: tuple[Any, ...]
    items: float  #: items per step
    size: Size  #: of one item


def known_fields(points: Sequence[Point]) -> Known:
    """The fields that the measured cells of all points have.

    Raises:
        MissingDataError: not all cells have tokens, FLOPs, or items.
    """
    cells = [cell for point in points for cell in measured_sides(point)]
    items = all(cell.items for cell in cells)
    tokens = items and all(_tokens(cell) for cell in cells)
    flops = all(cell.flops for cell in cells)
    if not cells or not (tokens or flops or items):
        raise MissingDataError("a break-even model needs token counts, FLOPs or the number of items of each cell")
    work: Work = "tokens" if tokens else "flops" if flops else "items"
    launches = all(cell.launches for cell in cells)
    present = {"tokens": tokens, "flops": flops, "items": items, "launches": launches}
    return Known(work, tuple(name for name, known in present.items() if not known))


def measured_sides(point: Point) -> tuple[Cell, ...]:
    """Baseline and variant if both have a time, else an empty tuple."""
    cells = tuple(cell for _, cell in point.sides if cell is not None and cell.time_ns)
    return cells if len(cells) == 2 else ()


def groups_of(sweep: Sweep) -> tuple[str, ...]:
    """The non-numeric axes."""
    return tuple(name for name in sweep.axes if not all(is_number(point.settings[name]) for point in sweep.points))


def observed(points: Sequence[Point], groups: Sequence[str]) -> list[Observed]:
    """Both sides of each point, baseline first."""
    cells = []
    for point in points:
        group = tuple(point.settings[name] for name in groups)
        for side, cell in enumerate(measured_sides(point)):
            items = float(cell.items or 1)
            size = Size(_tokens(cell), cell.flops / items if cell.flops else None, cell.launches or None)
            cells.append(Observed(point.settings, side, group, items, size))
    return cells


def _tokens(cell: Cell) -> tuple[tuple[float, float, float], ...] | None:
    blocks = cell.details.get("tokens")
    if not isinstance(blocks, list | tuple) or not blocks:
        return None
    if not all(isinstance(block, list | tuple) and len(block) == 3 and all(map(is_number, block)) for block in blocks):
        return None
    return token_counts(blocks)


def token_counts(blocks: Iterable[Sequence[float]]) -> tuple[tuple[float, float, float], ...]:
    """Rows of three numbers as the `tokens` of a `Size`."""
    return tuple((float(entering), float(query), float(leaving)) for entering, query, leaving in blocks)


def block_table(size: Size) -> Float64s:
    """One row per block: tokens in linear layers, token products of attention, whether it reduces the tokens (0/1)."""
    entering, query, leaving = np.array(size.tokens).T
    linear = _ENTERING_SHARE * entering + (1 - _ENTERING_SHARE) * leaving
    return np.stack([linear, entering * query, (leaving < entering).astype(float)], axis=1)
