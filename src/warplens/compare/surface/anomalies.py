"""Cells that break the trend of their line by more than noise.

A line is one side's times along one axis, all other axes held. Step times are smooth in logarithms (fixed cost + work,
powers) except for a kink, where the larger of host and GPU time changes hands; kernels that do not fill the GPU add
steps of some per cent. None of these is an anomaly. So a cell is predicted from the others by every smooth or kinked
trend that fits them (`warplens.compare.surface.trends`), and only what lies outside all of these predictions counts.

Each test asks whether the excess is above zero, given the noise of the cell and of its neighbours, from blocks drawn
with replacement. All tests of a sweep together are held to one level (Holm, A simple sequentially rejective multiple
test procedure, Scandinavian Journal of Statistics 6, 1979): of a hundred cells without anomaly, five would otherwise
seem to have one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.compare.surface.trends import expected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from warplens.compare.sweep import Cell, Point, Sweep

__all__ = ["ANOMALY_SCHEMA", "Anomalies", "anomalies"]

Float64s = npt.NDArray[np.float64]

#: Less than this is no anomaly, however sure: kernels that do not fill the GPU move cells by some per cent.
_LEAST_SHARE: Final = 0.05

#: Blocks that a cell needs: fewer do not show their spread.
_LEAST_BLOCKS: Final = 5

#: Cells that a line needs: one, and three that say where it should be.
_LEAST_CELLS: Final = 4

#: Resampled medians, from which standard errors are taken.
_DRAWS: Final = 400

#: One row a tested cell: its axes stand before these columns. `excess_share`: by how much its time lies outside what
#: the others let expect; above 0 it is slow, below fast, 0 inside. `expected_low_ns`, `expected_high_ns`: these bounds.
#: `p_value`: adjusted for all tests. `validated`: whether one trend fits all other cells; where none does, the cell is
#: bounded by its neighbours alone, and widely. `least_slow_share`: the smallest slow-down that would have been found.
ANOMALY_SCHEMA = pl.Schema(
    {
        "side": pl.String(),
        "axis": pl.String(),
        "time_ns": pl.Float64(),
        "expected_low_ns": pl.Float64(),
        "expected_high_ns": pl.Float64(),
        "excess_share": pl.Float64(),
        "p_value": pl.Float64(),
        "validated": pl.Boolean(),
        "least_slow_share": pl.Float64(),
        "anomaly": pl.Boolean(),
    }
)


@dataclass(frozen=True, eq=False)
class Anomalies:
    """Which cells break their trend.

    Attributes:
        tests: one row a tested cell and axis: its axes, then `ANOMALY_SCHEMA`.
        level: how often a sweep without anomalies shows one all the same, at most.
        untested: why cells were not tested, in sentences.
    """

    tests: pl.DataFrame
    level: float
    untested: tuple[str, ...]

    @property
    def found(self) -> pl.DataFrame:
        """The tests that found one, the surest first."""
        return self.tests.filter("anomaly").sort("p_value", pl.col("excess_share").abs(), descending=[False, True])


@dataclass(frozen=True, eq=False)
class _Line:
    """One side along an axis: logarithms of the axis and of times, and the latter resampled (draws × cells).

    `freedom`: blocks of the cell that has the fewest, less one.
    """

    side: Literal["baseline", "variant"]
    axis: str
    points: tuple[Point, ...]
    x: Float64s
    y: Float64s
    draws: Float64s
    freedom: int

    def without(self, point: Point) -> _Line:
        keep = [place for place, other in enumerate(self.points) if other is not point]
        points = tuple(self.points[place] for place in keep)
        return _Line(self.side, self.axis, points, self.x[keep], self.y[keep], self.draws[:, keep], self.freedom)


@dataclass(frozen=True)
class _Test:
    line: int
    point: Point
    time: float
    low: float
    high: float
    excess: float
    p_value: float
    #: Standard error of the excess.
    error: float
    #: Whether the bounds are those of a trend that fits all other cells.
    validated: bool


def anomalies(sweep: Sweep, *, level: float = 0.05, least_share: float = _LEAST_SHARE, seed: int = 0) -> Anomalies:
    """Cells whose time breaks the trend of their neighbours by more than noise and by more than a share.

    The first and the last cell of a line are not tested: with neighbours on one side only, a change of trend cannot be
    told from an anomaly.

    Args:
        sweep: a baseline and a variant over a grid.
        level: how often a sweep without anomalies may show one all the same.
        least_share: excesses up to this share do not matter.
        seed: of the resampling.
    """
    lines, untested = _lines(sweep, seed)
    tests = {number: list(_tests(number, line)) for number, line in enumerate(lines)}
    count = sum(map(len, tests.values()))
    found: list[tuple[_Test, float]] = []
    remaining, given_up = dict(enumerate(lines)), 0
    while True:
        ranked = [test for items in tests.values() for test in items if abs(test.excess) >= math.log1p(least_share)]
        ranked = [test for test in ranked if test.p_value * (count - given_up) < level]
        surest = max(ranked, key=lambda test: abs(test.excess), default=None)
        if surest is None:
            break
        surest = _culprit(remaining[surest.line], [test for test in ranked if test.line == surest.line])
        found.append((surest, surest.p_value * (count - given_up)))
        given_up += 1
        # The line is judged anew without the cell, which its neighbours were predicted from.
        remaining[surest.line] = remaining[surest.line].without(surest.point)
        tests[surest.line] = list(_tests(surest.line, remaining[surest.line]))
    rows = [_row(test, lines, p_value, True, level, count, least_share) for test, p_value in found]
    for items in tests.values():
        rows += [_row(test, lines, min(test.p_value * count, 1.0), False, level, count, least_share) for test in items]
    axes = {axis: pl.Series(axis, [point.settings[axis] for point in sweep.points]).dtype for axis in sweep.axes}
    frame = pl.DataFrame(rows, schema={**axes, **ANOMALY_SCHEMA}, orient="row") if rows else _empty(axes)
    return Anomalies(frame.sort("side", "axis", *sweep.axes), level, tuple(untested))


def _culprit(line: _Line, suspects: Sequence[_Test]) -> _Test:
    """An anomaly spoils the trend of its neighbours, too: the culprit is the one without which the line has one."""

    def left_over(test: _Test) -> float:
        return sum(abs(other.excess) for other in _tests(test.line, line.without(test.point)))

    return min(suspects, key=lambda test: (left_over(test) - abs(test.excess), -abs(test.excess)))


def _empty(axes: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(schema={**axes, **ANOMALY_SCHEMA})


def _row(
    test: _Test, lines: Sequence[_Line], p_value: float, anomaly: bool, level: float, count: int, least: float
) -> dict[str, Any]:
    line = lines[test.line]
    # Found half the time: the excess reaches what the level asks for of the most significant of all tests.
    needed = max(math.log1p(least), _quantile(level / count / 2, line.freedom) * test.error)
    return {
        **test.point.settings,
        "side": line.side,
        "axis": line.axis,
        "time_ns": math.exp(test.time),
        "expected_low_ns": math.exp(test.low),
        "expected_high_ns": math.exp(test.high),
        "excess_share": math.expm1(test.excess),
        "p_value": p_value,
        "validated": test.validated,
        "least_slow_share": math.expm1(max(test.high - min(test.time, test.high), 0.0) + needed),
        "anomaly": anomaly,
    }


# --- lines ------------------------------------------------------------------------------------------------------------


def _lines(sweep: Sweep, seed: int) -> tuple[list[_Line], list[str]]:
    """Lines with enough cells whose noise is known, and why others are not among them."""
    generator = np.random.default_rng(seed)
    lines: list[_Line] = []
    short: dict[str, int] = {}
    silent = 0
    axes = [axis for axis in sweep.axes if all(_is_size(point.settings[axis]) for point in sweep.points)]
    shared = _common_draws(sweep, generator)
    for axis in axes:
        others = [name for name in sweep.axes if name != axis]
        groups: dict[tuple[Any, ...], list[Point]] = {}
        for point in sweep.points:
            groups.setdefault(tuple(point.settings[name] for name in others), []).append(point)
        sides: tuple[Literal["baseline", "variant"], ...] = ("baseline", "variant")
        for points in groups.values():
            for side in sides:
                timed = [point for point in points if _is_timed(getattr(point, side))]
                known = [point for point in timed if _has_noise(getattr(point, side))]
                silent += len(timed) - len(known)
                if len(known) < _LEAST_CELLS:
                    short[axis] = short.get(axis, 0) + bool(known)
                    continue
                known.sort(key=lambda point: float(point.settings[axis]))
                lines.append(_line(side, axis, known, generator, shared))
    return lines, list(_reasons(axes, lines, short, silent))


def _reasons(axes: Sequence[str], lines: Sequence[_Line], short: Mapping[str, int], silent: int) -> Iterator[str]:
    if not axes:
        yield "no axis has numbers above zero, along which times could have a trend"
    if silent:
        yield (
            f"cells with fewer than {_LEAST_BLOCKS} independent blocks of repetitions have unknown noise and were not "
            "tested: measure in rounds (--rounds)"
        )
    drawn = {line.axis for line in lines}
    for axis, count in short.items():
        if count:
            all_of = "" if axis in drawn else ", none of its lines"
            yield f"along {axis}, lines with fewer than {_LEAST_CELLS} cells show no trend and were not tested{all_of}"
    if lines:
        yield "the first and the last cell of a line are not tested: a change of trend looks the same there"


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_timed(cell: Cell | None) -> bool:
    return cell is not None and cell.time_ns is not None


def _has_noise(cell: Cell) -> bool:
    return cell.wall is not None and len(cell.wall.blocks) >= _LEAST_BLOCKS


def _common_draws(sweep: Sweep, generator: np.random.Generator) -> npt.NDArray[np.int64] | None:
    """Rounds drawn for all cells alike, where all were measured in turns: what disturbs a round disturbs all of it."""
    cells = [cell for point in sweep.points for cell in (point.baseline, point.variant) if cell and cell.wall]
    sizes = {len(cell.wall.blocks) for cell in cells if cell.wall}
    if len(sizes) != 1 or not all(cell.wall.paired for cell in cells if cell.wall):
        return None
    size = sizes.pop()
    return generator.integers(size, size=(_DRAWS, size))


def _line(
    side: Literal["baseline", "variant"],
    axis: str,
    points: Sequence[Point],
    generator: np.random.Generator,
    shared: npt.NDArray[np.int64] | None,
) -> _Line:
    y, draws, blocks = [], [], []
    for point in points:
        cell: Cell = getattr(point, side)
        assert cell.wall is not None
        logs = np.log([np.median(block) for block in cell.wall.blocks])
        drawn = generator.integers(logs.size, size=(_DRAWS, logs.size)) if shared is None else shared
        y.append(float(np.median(logs)))
        draws.append(np.median(logs[drawn], axis=1))
        blocks.append(logs.size)
    x = np.log([float(point.settings[axis]) for point in points])
    return _Line(side, axis, tuple(points), x, np.array(y), np.stack(draws, axis=1), min(blocks) - 1)


# --- tests ------------------------------------------------------------------------------------------------------------


def _beyond(t: float, freedom: int) -> float:
    """How often Student's t exceeds this by chance.

    Through the normal deviate of Wallace (Bounds on normal approximations to Student's and the chi-square
    distributions, Annals of Mathematical Statistics 30, 1959).
    """
    scale = _wallace(freedom)
    return NormalDist().cdf(-scale * math.sqrt(freedom * math.log1p(t * t / freedom)))


def _quantile(chance: float, freedom: int) -> float:
    """What Student's t exceeds with this chance: the inverse of `_beyond`."""
    z = -NormalDist().inv_cdf(chance) / _wallace(freedom)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


def _wallace(freedom: int) -> float:
    return (8 * freedom + 1) / (8 * freedom + 3)


def _tests(number: int, line: _Line) -> Iterator[_Test]:
    if line.x.size < _LEAST_CELLS:
        return
    times = np.vstack([line.y, line.draws])
    noise = float(np.median(line.draws.std(axis=0)))
    for place in range(1, line.x.size - 1):
        bounds = expected(line.x, times, place, noise)
        own = times[:, place]
        excess = np.maximum(own - bounds.high, 0.0) + np.minimum(own - bounds.low, 0.0)
        # The error is that of the distance to the bound which was passed; inside, of that to the nearer one.
        nearer = bounds.high if abs(own[0] - bounds.high[0]) <= abs(own[0] - bounds.low[0]) else bounds.low
        # Resampled blocks spread less than blocks do, by √(1 − 1/n) (Hesterberg, The American Statistician 69, 2015).
        error = float(np.std(own[1:] - nearer[1:])) * math.sqrt((line.freedom + 1) / line.freedom)
        z = abs(excess[0]) / error if error > 0 else math.inf if excess[0] else 0.0
        # Two bounds could be passed by chance.
        p_value = min(2 * _beyond(z, line.freedom), 1.0) if math.isfinite(z) else 0.0
        low, high = float(bounds.low[0]), float(bounds.high[0])
        yield _Test(
            number, line.points[place], float(own[0]), low, high, float(excess[0]), p_value, error, bounds.validated
        )
