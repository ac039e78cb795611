"""A sweep: a baseline and a variant measured at the points of a grid, its cells, and its times, resampled.

A point is a combination of settings that both sides share, such as input size and batch. What tells the sides apart
(the method, say) is no axis. Every question about a sweep starts from this model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.compare.decisions import Comparison, compare
from warplens.compare.shift import Samples, t_quantile
from warplens.errors import MissingDataError, UsageError
from warplens.profile.schema import Bools, Float64s, Int64s, Table
from warplens.studies.policies.choosing import is_number

#: The sides of a sweep, as settings, columns and messages name them.
SIDES: Final = ("baseline", "variant")


@dataclass(frozen=True, eq=False)
class Cell:
    """One side at one point."""

    status: str  #: one of `warplens.profile.measurements.STATUSES`
    #: wall times of a step, or times between events where calls were issued back to back; None if it was not measured,
    #: or if only a rate is known
    wall: Samples | None = None
    reason: str | None = None  #: of any status but `measured`
    #: median wall time of a step; from a published rate where there are no samples. None if not measured.
    time_ns: float | None = None
    gpu: Samples | None = None  #: times between events round a step, where known
    gpu_ns: float | None = None  #: their median, or what the file states where it holds no single times
    items: int | None = None  #: what a step processes (its batch)
    unit: str | None = None  #: what one of those is
    #: macs, flops: arithmetic of a step, modelled, where known
    macs: int | None = None
    flops: int | None = None
    #: kernels (and other pieces of work) that a step launches, where known; a CUDA graph counts as one
    launches: float | None = None
    launch: str | None = None  #: how a step is issued: `eager`, `compile` or `graph`, where known
    #: further facts, as they stand in the measurements file (`tokens`, the token counts of each block, …)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_timed(self) -> bool:
        """Whether a time of a step is known."""
        return self.time_ns is not None


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the grid."""

    settings: Mapping[str, Any]  #: its value on each axis
    #: baseline, variant: what was measured there; None if the file does not have that side
    baseline: Cell | None
    variant: Cell | None

    @property
    def sides(self) -> tuple[tuple[str, Cell | None], ...]:
        """Both cells with the names of their sides, the baseline first."""
        return tuple(zip(SIDES, (self.baseline, self.variant), strict=True))

    @property
    def durations(self) -> tuple[Samples, Samples] | None:
        """Wall times of baseline and variant; None unless both were measured repeatedly."""
        before = self.baseline.wall if self.baseline else None
        after = self.variant.wall if self.variant else None
        return (before, after) if before is not None and after is not None else None

    @property
    def lacking(self) -> str | None:
        """The first side that was not measured, and why: `variant: out-of-memory (…)`; None if both were."""
        for side, cell in self.sides:
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
    """A baseline and a variant over a grid."""

    source: str  #: name of the file
    workload: str  #: what was measured
    axes: tuple[str, ...]  #: settings that vary from point to point, in the order of the file; numeric or text
    #: baseline, variant: the settings that tell the sides apart, such as `{"method": "topk", "keep": 0.1}`
    baseline: Mapping[str, Any]
    variant: Mapping[str, Any]
    shared: Mapping[str, Any]  #: settings that are the same everywhere
    points: tuple[Point, ...]  #: every combination that one of the sides has, in rising order of the axes
    environment: Mapping[str, Any]  #: GPU, driver and versions
    paired: bool  #: whether the sides were measured in turns
    #: how the titles of a published table were read, where they are not those of our columns
    read_as: tuple[str, ...] = ()

    def lines(self, axis: str) -> Iterator[tuple[dict[str, Any], list[Point]]]:
        """For each combination of the other axes their values, and the points that have them, rising along the axis."""
        others = [name for name in self.axes if name != axis]
        found: dict[tuple[Any, ...], list[Point]] = {}
        for point in self.points:
            found.setdefault(tuple(point.settings[name] for name in others), []).append(point)
        for key, points in found.items():
            yield dict(zip(others, key, strict=True)), sorted(points, key=lambda point: float(point.settings[axis]))


@dataclass(frozen=True, eq=False)
class ComparedPoint:
    """The two sides of a point, held against each other."""

    point: Point
    comparison: Comparison | None  #: None where a side was not measured, or not repeatedly
    remark: str | None  #: why there is none; None if there is one


def compared_points(
    points: Sequence[Point], *, margin: float, level: float, unrepeated: str, seed: int = 0
) -> tuple[ComparedPoint, ...]:
    """Each point with its two sides compared.

    With n points each interval is made for `level` / n (Bonferroni), so that all of them together miss the truth no
    more often than `level`: with a hundred points, five would otherwise differ by chance.

    Args:
        margin: differences of this share and less do not matter.
        level: 0.05 for 95 % confidence.
        unrepeated: what to remark where both sides were measured, but not repeatedly.
    """
    repeated = sum(point.durations is not None for point in points)
    found = []
    for point in points:
        if point.durations is None:
            found.append(ComparedPoint(point, None, point.lacking or unrepeated))
        else:
            comparison = compare(*point.durations, margin=margin, level=level / repeated, seed=seed)
            found.append(ComparedPoint(point, comparison, None))
    return tuple(found)


def only_of(sweep: Sweep, side: str) -> list[Point]:
    """The points that the other side lacks."""
    other = SIDES[1 - SIDES.index(side)]
    return [point for point in sweep.points if getattr(point, other) is None]


def framed(rows: Sequence[Mapping[str, Any]], axes: Sequence[str], table: Table) -> pl.DataFrame:
    """Rows as a frame: the axes in types of their own, then a table's columns; what a row leaves out is null."""
    schema = table.schema
    right = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema, orient="row")
    if not axes or not rows:
        return right
    left = pl.DataFrame([{name: row[name] for name in axes} for row in rows], infer_schema_length=None)
    return pl.concat((left, right), how="horizontal")


# --- Resampled times of the points of a sweep: the noise that crossover and break-even carry into their intervals ----
# Blocks are drawn, never single durations. Where the sides were measured in turns, block i of the one is drawn together
# with block i of the other, and, where all points have equally many, with block i of every point: what disturbed a
# round disturbed all of it.


#: With fewer blocks the spread between them is unknown for practical purposes: the t quantile of three is 4.3.
LEAST_BLOCKS: Final = 4

#: A single block is cut into this many pieces at most: neighbours in time resemble each other, and stay together.
_MOST_PIECES: Final = 20

#: Durations that a piece of a single block holds at least.
_LEAST_IN_PIECE: Final = 2


@dataclass(frozen=True, eq=False)
class Replicates:
    """Logarithms of the times of points, as measured and as resampled."""

    #: baseline, variant: estimates, one a point
    baseline: Float64s
    variant: Float64s
    #: baseline_draws, variant_draws: resampled, one row a draw, one column a point; equal to the estimate where a point
    #: has no noise that could be resampled
    baseline_draws: Float64s
    variant_draws: Float64s
    known: Bools  #: whether the noise of the point is known
    within: Bools  #: whether it is only that within one block

    @property
    def ratio(self) -> Float64s:
        """Log of variant / baseline, one a point: negative where the variant is faster."""
        return self.variant - self.baseline

    @property
    def ratio_draws(self) -> Float64s:
        """The same, resampled: one row a draw."""
        return self.variant_draws - self.baseline_draws


def replicates(points: Sequence[Point], count: int, level: float, seed: int) -> Replicates:
    """Resamples points whose two sides were both measured.

    The time of a side is the median over blocks of the block's median. With pairs, the ratio is the median over blocks
    of the ratio within the block, and the variant's time is the baseline's times that ratio.

    Deviations of the draws are widened by √(n/(n−1)) · t/z for n blocks, since a bootstrap of few blocks is too narrow
    by about that (Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015).

    Args:
        points: their `baseline` and `variant` have a time.
        level: of the intervals that are made of the draws.
    """
    generator = np.random.default_rng(seed)
    sides = [(_blocks(point.baseline), _blocks(point.variant)) for point in points]
    sizes = {len(logs) for pair in sides for logs, _ in pair}
    alike = len(sizes) == 1 and min(sizes) > 0
    together = generator.integers(min(sizes), size=(count, min(sizes))) if alike else None
    columns = []
    for point, ((before, cut_before), (after, cut_after)) in zip(points, sides, strict=True):
        if min(len(before), len(after)) < LEAST_BLOCKS:
            columns.append(_silent(point, count))
            continue
        paired = len(before) == len(after) and all(samples.paired for samples in point.durations or ())
        drawn = generator.integers(len(before), size=(count, len(before))) if together is None else together
        if paired:
            middle, ratio = float(np.median(before)), float(np.median(after - before))
            varied = _widened(before, drawn, level)
            estimate, draws = (middle, middle + ratio), (varied, varied + _widened(after - before, drawn, level))
        else:
            other = generator.integers(len(after), size=(count, len(after)))
            own = generator.integers(len(before), size=(count, len(before)))
            estimate = (float(np.median(before)), float(np.median(after)))
            draws = (_widened(before, own, level), _widened(after, other, level))
        columns.append((*estimate, *draws, True, cut_before or cut_after))
    base, against, base_draws, against_draws, known, within = zip(*columns, strict=True)
    return Replicates(
        np.array(base), np.array(against), np.stack(base_draws, axis=1), np.stack(against_draws, axis=1),
        np.array(known), np.array(within),
    )  # fmt: skip


def _blocks(cell: Cell | None) -> tuple[Float64s, bool]:
    """Logs of the medians of independent blocks, and whether they are only pieces of a single block."""
    if cell is None or cell.wall is None:
        return np.empty(0), False
    samples = cell.wall
    if len(samples.blocks) > 1:
        return np.log([np.median(block) for block in samples.blocks]), False
    pieces = min(_MOST_PIECES, samples.count // _LEAST_IN_PIECE)
    if pieces < LEAST_BLOCKS:
        return np.empty(0), False
    return np.log([np.median(piece) for piece in np.array_split(samples.values, pieces)]), True


def _silent(point: Point, count: int) -> tuple[float, float, Float64s, Float64s, bool, bool]:
    before, after = (math.log(cell.time_ns) if cell and cell.time_ns else math.nan for _, cell in point.sides)
    return before, after, np.full(count, before), np.full(count, after), False, False


def _widened(logs: Float64s, drawn: Int64s, level: float) -> Float64s:
    quantiles = t_quantile(1 - level, np.array([logs.size - 1, np.inf]))
    widening = math.sqrt(logs.size / (logs.size - 1)) * float(quantiles[0] / quantiles[1])
    middle = np.median(logs)
    return np.asarray(middle + (np.median(logs[drawn], axis=1) - middle) * widening)


#: From what the GPU time is modelled: token counts of each block, arithmetic, or only the number of items.
Work: TypeAlias = Literal["tokens", "flops", "items"]

#: Tokens that the linear layers of a transformer block see: projections (4·N·d²) those that enter, the MLP (8·N'·d²)
#: those that leave. Other widths of the MLP change the shares a little.
_ENTERING_SHARE: Final = 1 / 3


@dataclass(frozen=True)
class Known:
    """Which facts all measured cells of a sweep have."""

    work: Work  #: the best description of the GPU's work that all of them have
    items: bool  #: whether the number of items is known
    launches: bool  #: whether the number of launches is known
    missing: tuple[str, ...]  #: names of facts that would make a better model


@dataclass(frozen=True)
class Size:
    """How large one item is, as each kind of work counts it."""

    #: [entering, asking, leaving] of each block; None where unknown
    tokens: tuple[tuple[float, float, float], ...] | None
    flops: float | None  #: arithmetic of an item; None where unknown
    launches: float | None  #: that a step issues; None where unknown

    @property
    def first(self) -> float | None:
        """Tokens that enter the first block."""
        return self.tokens[0][0] if self.tokens else None

    def amount(self, work: Work) -> float:
        """The number that stands for the size on an axis: tokens at entry, FLOPs, or 1."""
        found = {"tokens": self.first, "flops": self.flops, "items": 1.0}[work]
        if found is None:
            raise UsageError(f"the cell has no {work}, which this model needs")
        return float(found)


@dataclass(frozen=True, eq=False)
class Observed:
    """One side of one point, ready to be fitted."""

    settings: Mapping[str, Any]  #: of the point
    side: int  #: 0 for the baseline, 1 for the variant
    #: values of the axes that are no numbers (execution, …): the host differs between them, the work does not
    group: tuple[Any, ...]
    items: float  #: that a step processes
    size: Size  #: of one item
    pair: int  #: number of the point


def known_fields(points: Sequence[Point]) -> Known:
    """What the measured cells of points have in common.

    Raises:
        MissingDataError: they have neither tokens, FLOPs nor items.
    """
    cells = [cell for point in points for cell in measured_sides(point)]
    items = all(cell.items for cell in cells)
    tokens = items and all(_tokens(cell) for cell in cells)
    flops = all(cell.flops for cell in cells)
    launches = all(cell.launches for cell in cells)
    if not cells or not (tokens or flops or items):
        raise MissingDataError("a break-even model needs token counts, FLOPs or the number of items of each cell")
    work: Work = "tokens" if tokens else "flops" if flops else "items"
    missing = [
        name
        for name, there in (("tokens", tokens), ("flops", flops), ("items", items), ("launches", launches))
        if not there
    ]
    return Known(work, items, launches, tuple(missing))


def measured_sides(point: Point) -> tuple[Cell, ...]:
    """Baseline and variant if both have a time, else nothing."""
    cells = tuple(cell for _, cell in point.sides if cell is not None and cell.time_ns)
    return cells if len(cells) == 2 else ()


def groups_of(sweep: Sweep) -> tuple[str, ...]:
    """Axes that are no numbers."""
    return tuple(name for name in sweep.axes if not all(is_number(point.settings[name]) for point in sweep.points))


def observed(points: Sequence[Point], groups: Sequence[str]) -> list[Observed]:
    """Both sides of each point, baseline first."""
    found = []
    for number, point in enumerate(points):
        for side, cell in enumerate(measured_sides(point)):
            group = tuple(point.settings[name] for name in groups)
            found.append(Observed(point.settings, side, group, float(cell.items or 1), size_of(cell), number))
    return found


def size_of(cell: Cell) -> Size:
    """The size of one item of a cell."""
    tokens = _tokens(cell)
    flops = cell.flops / (cell.items or 1) if cell.flops else None
    return Size(tokens, flops, float(cell.launches) if cell.launches else None)


def _tokens(cell: Cell) -> tuple[tuple[float, float, float], ...] | None:
    blocks = cell.details.get("tokens")
    if not isinstance(blocks, list | tuple) or not blocks:
        return None
    if not all(isinstance(block, list | tuple) and len(block) == 3 and all(map(is_number, block)) for block in blocks):
        return None
    return tuple((float(block[0]), float(block[1]), float(block[2])) for block in blocks)


def block_table(size: Size) -> Float64s:
    """One row a block: tokens in linear layers, products of tokens in attention, whether it reduces."""
    entering, asking, leaving = np.array(size.tokens).T
    linear = _ENTERING_SHARE * entering + (1 - _ENTERING_SHARE) * leaving
    return np.stack([linear, entering * asking, (leaving < entering).astype(float)], axis=1)
