"""Where a cell of a line should lie, by the other cells: lines that are smooth in logarithms, or have a kink.

Where all other cells lie on a power of the axis, or on a fixed cost plus work, that trend is *validated*, and the cell
should lie between what it, and a smooth curve through the neighbours, say. Where they do not, because of a kink (the
larger of host and GPU time changes hands) or a bend, the neighbours bound the cell: anywhere between the ways in which
a smooth or a kinked line may pass from them. A kink cannot be fitted and trusted: with one cell beyond it, nothing says
where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from warplens.compare.shift import Samples, t_quantile, two_sided
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s, Int64s
from warplens.studies.policies.choosing import is_number
from warplens.studies.sweeps.sweep import SIDES, Cell, Point, Sweep, framed

#: Places and times of cells, and places that are wanted → values there; all logarithms, times as draws × cells.
Curve: TypeAlias = Callable[[Float64s, Float64s, Float64s], Float64s]

#: A trend fits if the others lie around it by less than this: tile sizes and clocks leave cells of real machines off
#: any smooth line by about as much, and a line that bends at its end lies further off.
_ROUGHNESS: Final = 0.01

#: Or by less than this many standard errors of a cell.
_ERRORS: Final = 1.5


def expected(x: Float64s, y: Float64s, place: int, error: float) -> tuple[Float64s, Float64s, bool]:
    """Where a cell should lie.

    Args:
        x: logarithms of the axis, rising.
        y: logarithms of times, draws × cells; the first row is the estimate, by which trends are judged.
        place: of the cell; neither the first nor the last.
        error: standard error of a cell's logarithm.

    Returns:
        Least and greatest logarithm, one for each draw; and whether they are those of trends that fit all other cells.
    """
    others = np.delete(np.arange(x.size), place)
    tolerance = max(_ROUGHNESS, _ERRORS * error)
    places, pairs = np.append(x[others], x[place]), _pairs(x, place)
    found: list[Float64s] = []
    for curve in (_power, _affine):
        fitted = curve(x[others], y[:, others], places)
        residual = y[0, others] - fitted[0, :-1]
        if math.sqrt(float(residual @ residual) / (others.size - 2)) <= tolerance:
            found.append(fitted[:, -1])
            if len(pairs) == 1:  # next to an end of the line: with one cell beyond, a kink there is unseen
                pair = list(pairs[0])
                found.append(curve(x[pair], y[:, pair], x[place : place + 1])[:, 0])
    # A trend that fits may still bend a little, as a smooth curve through the neighbours does.
    bounds = np.stack([*found, _lagrange(x, y, place)]) if found else _passing(x, y, place)
    return bounds.min(axis=0), bounds.max(axis=0), bool(found)


def _least_squares(columns: Float64s, y: Float64s, wanted: Float64s) -> Float64s:
    """Values at wanted places of the linear fit to each row of y."""
    return np.asarray(y @ np.linalg.pinv(columns).T @ wanted.T)


def _power(x: Float64s, y: Float64s, places: Float64s) -> Float64s:
    return _least_squares(np.vander(x, 2), y, np.vander(places, 2))


def _affine(x: Float64s, y: Float64s, places: Float64s) -> Float64s:
    """A fixed cost plus work: a straight line without logarithms, fitted to relative errors."""
    times = np.exp(y)
    # Weights are those of the estimate, so that all draws are one linear problem.
    weights = 1 / times[0]
    fitted = _least_squares(np.vander(np.exp(x), 2) * weights[:, None], times * weights, np.vander(np.exp(places), 2))
    # A line that falls to nothing is no time.
    return np.asarray(np.log(np.maximum(fitted, times.min(axis=1, keepdims=True) / 1e3)))


def _passing(x: Float64s, y: Float64s, place: int) -> Float64s:
    """Where smooth and kinked lines through the neighbours may pass a cell: predictions × draws."""
    last = x.size - 1
    # A kink on the far side leaves the line straight on this one.
    found = [item for pair in _pairs(x, place) for item in _through(x, y, place, pair)]
    found.append(_lagrange(x, y, place))
    if place < 2 or place > last - 2:
        # With one neighbour on a side, nothing says whether a kink lies there.
        found += _through(x, y, place, (place - 1, place + 1))
    # Nor does time rise and fall again. (Falling and rising again is what an axis with an optimum in it shows.)
    return np.minimum(np.stack(found), np.maximum(y[:, place - 1], y[:, place + 1]))


def _pairs(x: Float64s, place: int) -> list[tuple[int, int]]:
    """The two cells on each side that has two."""
    pairs = ((place - 1, place - 2), (place + 1, place + 2))
    return [(one, two) for one, two in pairs if 0 <= two < x.size]


def _through(x: Float64s, y: Float64s, place: int, pair: tuple[int, int]) -> list[Float64s]:
    """A power of the axis, and a fixed cost plus work, through two cells."""
    cells, at = list(pair), x[place : place + 1]
    straight = _affine(x[cells], y[:, cells], at)[:, 0]
    # A line that falls to nothing is no prediction; half the smaller neighbour is as far as any would go.
    least = y[:, cells].min(axis=1) - math.log(2)
    return [_power(x[cells], y[:, cells], at)[:, 0], np.maximum(straight, least)]


def _lagrange(x: Float64s, y: Float64s, place: int) -> Float64s:
    """The polynomial through the two neighbours on each side, or the one where there is one."""
    around = [item for item in (place - 2, place - 1, place + 1, place + 2) if 0 <= item < x.size]
    total = np.zeros(y.shape[0])
    for one in around:
        weight = math.prod((x[place] - x[other]) / (x[one] - x[other]) for other in around if other != one)
        total += weight * y[:, one]
    return total


# --- Cells that break the trend of their line by more than noise -----------------------------------------------------
# A line is one side's times along one axis, all other axes held. Step times are smooth in logarithms (fixed cost +
# work, powers) except for a kink, where the larger of host and GPU time changes hands; kernels that do not fill the GPU
# add steps of some per cent. None of these is an anomaly. So a cell is predicted from the others by every smooth or
# kinked trend that fits them (`expected`), and only what lies outside all of these predictions counts.
#
# Each test asks whether the excess is above zero, given the noise of the cell and of its neighbours, from blocks drawn
# with replacement. All tests of a sweep together are held to one level (Holm, A simple sequentially rejective multiple
# test procedure, Scandinavian Journal of Statistics 6, 1979): of a hundred cells without anomaly, five would otherwise
# seem to have one.


#: Less than this is no anomaly, however sure: kernels that do not fill the GPU move cells by some per cent.
_LEAST_SHARE: Final = 0.05

#: Blocks that a cell needs: fewer do not show their spread.
_LEAST_BLOCKS: Final = 5

#: Cells that a line needs: one, and three that say where it should be.
_LEAST_CELLS: Final = 4

#: Resampled medians, from which standard errors are taken.
_DRAWS: Final = 400

ANOMALIES: Final = table(
    "sweep: cells tested for anomalies",
    "A cell of a sweep along an axis. `warplens sweep report`; the axes stand before these columns.",
    "side axis",
    column("time_ns").but(dtype=pl.Float64, help="median time of a step"),
    Column("expected_low_ns", pl.Float64, "least time that the others let expect", title="Expected from"),
    Column("expected_high_ns", pl.Float64, "most time that they let expect", title="to"),
    Column(
        "excess_share",
        pl.Float64,
        "by how much the time lies outside of both: above 0 slow, below fast, 0 inside",
        title="Beyond",
    ),
    column("p_value", help="how often noise alone would show as much in any of the cells tested", title="Chance"),
    Column(
        "validated",
        pl.Boolean,
        "whether one trend fits all other cells; otherwise the neighbours alone bound the cell, and widely",
    ),
    Column("least_slow_share", pl.Float64, "smallest slow-down that would have been found here"),
    Column("anomaly", pl.Boolean, "whether it is one"),
)


@dataclass(frozen=True, eq=False)
class Anomalies:
    """Which cells break their trend."""

    tests: pl.DataFrame  #: one row a tested cell and axis: its axes, then `ANOMALIES`
    level: float  #: how often a sweep without anomalies shows one all the same, at most
    untested: tuple[str, ...]  #: why cells were not tested, in sentences

    @property
    def found(self) -> pl.DataFrame:
        """The tests that found one, the surest first."""
        return self.tests.filter("anomaly").sort("p_value", pl.col("excess_share").abs(), descending=[False, True])


@dataclass(frozen=True, eq=False)
class _Line:
    """One side along an axis: logarithms of the axis and of times, and the latter resampled (draws × cells)."""

    side: str
    axis: str
    points: tuple[Point, ...]
    x: Float64s
    y: Float64s
    draws: Float64s
    freedom: int  #: blocks of the cell that has the fewest, less one

    @classmethod
    def of(
        cls, side: str, axis: str, points: Sequence[Point], generator: np.random.Generator, shared: Int64s | None
    ) -> _Line:
        blocks = [np.log([np.median(block) for block in _wall(point, side).blocks]) for point in points]
        drawn = [
            generator.integers(logs.size, size=(_DRAWS, logs.size)) if shared is None else shared for logs in blocks
        ]
        draws = [np.median(logs[rows], axis=1) for logs, rows in zip(blocks, drawn, strict=True)]
        x = np.log([float(point.settings[axis]) for point in points])
        y = np.array([float(np.median(logs)) for logs in blocks])
        return cls(side, axis, tuple(points), x, y, np.stack(draws, axis=1), min(logs.size for logs in blocks) - 1)

    def without(self, point: Point) -> _Line:
        keep = [place for place, other in enumerate(self.points) if other is not point]
        points = tuple(self.points[place] for place in keep)
        return _Line(self.side, self.axis, points, self.x[keep], self.y[keep], self.draws[:, keep], self.freedom)

    def tests(self) -> list[_Test]:
        """Every cell but the ends against what the others let expect; none where too few are left."""
        found: list[_Test] = []
        if self.x.size < _LEAST_CELLS:
            return found
        times = np.vstack([self.y, self.draws])
        noise = float(np.median(self.draws.std(axis=0)))
        for place in range(1, self.x.size - 1):
            low, high, validated = expected(self.x, times, place, noise)
            own = times[:, place]
            excess = float(max(own[0] - high[0], 0.0) + min(own[0] - low[0], 0.0))
            # The error is that of the distance to the bound which was passed; inside, of that to the nearer one.
            nearer = high if abs(own[0] - high[0]) <= abs(own[0] - low[0]) else low
            # Resampled blocks spread less than blocks do, by √(1 − 1/n) (Hesterberg, The American Statistician 69,
            # 2015).
            error = float(np.std(own[1:] - nearer[1:])) * math.sqrt((self.freedom + 1) / self.freedom)
            z = abs(excess) / error if error > 0 else math.inf if excess else 0.0
            # Two bounds could be passed by chance.
            p_value = min(float(two_sided(z, self.freedom)), 1.0) if math.isfinite(z) else 0.0
            bounds = float(low[0]), float(high[0])
            found.append(_Test(self.points[place], float(own[0]), bounds, excess, p_value, error, validated))
        return found


@dataclass(frozen=True)
class _Test:
    """A cell against the trend of its line; all but the p-value are logarithms."""

    point: Point
    time: float
    bounds: tuple[float, float]
    excess: float
    p_value: float
    error: float  #: standard error of the excess
    validated: bool  #: whether the bounds are those of a trend that fits all other cells


def anomalies(sweep: Sweep, *, level: float = 0.05, least_share: float = _LEAST_SHARE, seed: int = 0) -> Anomalies:
    """Cells whose time breaks the trend of their neighbours by more than noise and by more than a share.

    The first and the last cell of a line are not tested: with neighbours on one side only, a change of trend cannot be
    told from an anomaly.

    Args:
        level: how often a sweep without anomalies may show one all the same.
        least_share: excesses up to this share do not matter.
    """
    lines, untested = _lines(sweep, seed)
    tests = [line.tests() for line in lines]
    count, least = sum(map(len, tests)), math.log1p(least_share)
    found: list[tuple[_Line, _Test, float]] = []
    while True:
        chances = count - len(found)
        suspects = {
            number: [test for test in items if abs(test.excess) >= least and test.p_value * chances < level]
            for number, items in enumerate(tests)
        }
        worst = max(
            (number for number, items in suspects.items() if items),
            key=lambda number: max(abs(test.excess) for test in suspects[number]),
            default=None,
        )
        if worst is None:
            break
        culprit = _culprit(lines[worst], suspects[worst])
        found.append((lines[worst], culprit, culprit.p_value * chances))
        # The line is judged anew without the cell, which its neighbours were predicted from.
        lines[worst] = lines[worst].without(culprit.point)
        tests[worst] = lines[worst].tests()
    rest = [
        (line, test, min(test.p_value * count, 1.0)) for line, items in zip(lines, tests, strict=True) for test in items
    ]
    rows: list[dict[str, Any]] = []
    for line, test, p_value in (*found, *rest):
        low, high = test.bounds
        # Found half the time: the excess reaches what the level asks for of the most significant of all tests.
        needed = max(least, float(t_quantile(level / count, line.freedom)) * test.error)
        rows.append(
            {
                **test.point.settings,
                "side": line.side,
                "axis": line.axis,
                "time_ns": math.exp(test.time),
                "expected_low_ns": math.exp(low),
                "expected_high_ns": math.exp(high),
                "excess_share": math.expm1(test.excess),
                "p_value": p_value,
                "validated": test.validated,
                "least_slow_share": math.expm1(max(high - min(test.time, high), 0.0) + needed),
                "anomaly": len(rows) < len(found),
            }
        )
    frame = framed(rows, sweep.axes, ANOMALIES).sort("side", "axis", *(sweep.axes if rows else ()))
    return Anomalies(frame, level, tuple(untested))


def _culprit(line: _Line, suspects: Sequence[_Test]) -> _Test:
    """An anomaly spoils the trend of its neighbours, too: the culprit is the one without which the line has one."""

    def left_over(test: _Test) -> float:
        return sum(abs(other.excess) for other in line.without(test.point).tests())

    return min(suspects, key=lambda test: (left_over(test) - abs(test.excess), -abs(test.excess)))


def _wall(point: Point, side: str) -> Samples:
    """The times of a side whose blocks are known to be enough."""
    cell: Cell = getattr(point, side)
    assert cell.wall is not None
    return cell.wall


def _lines(sweep: Sweep, seed: int) -> tuple[list[_Line], list[str]]:
    """Lines with enough cells whose noise is known, and why others are not among them."""
    generator = np.random.default_rng(seed)
    shared = _common_draws(sweep, generator)
    axes = [
        axis
        for axis in sweep.axes
        if all(is_number(point.settings[axis]) and point.settings[axis] > 0 for point in sweep.points)
    ]
    lines: list[_Line] = []
    short: set[str] = set()
    silent = False
    for axis in axes:
        for (_, points), side in product(sweep.lines(axis), SIDES):
            timed = [point for point in points if (cell := getattr(point, side)) is not None and cell.is_timed]
            known = [p for p in timed if (wall := getattr(p, side).wall) and len(wall.blocks) >= _LEAST_BLOCKS]
            silent |= len(known) < len(timed)
            if len(known) >= _LEAST_CELLS:
                lines.append(_Line.of(side, axis, known, generator, shared))
            elif known:
                short.add(axis)
    return lines, list(_untested(axes, [axis for axis in axes if axis in short], {line.axis for line in lines}, silent))


def _untested(axes: Sequence[str], short: Sequence[str], drawn: Set[str], silent: bool) -> Iterator[str]:
    """Why cells are not tested.

    Args:
        axes: that have numbers above zero.
        short: those of which a line has too few cells.
        drawn: those of which a line has enough.
        silent: whether the noise of some cells is unknown.
    """
    if not axes:
        yield "no axis has numbers above zero, along which times could have a trend"
    if silent:
        yield (
            f"cells with fewer than {_LEAST_BLOCKS} independent blocks of repetitions have unknown noise and were not "
            "tested: measure in rounds (--rounds)"
        )
    for axis in short:
        all_of = "" if axis in drawn else ", none of its lines"
        yield f"along {axis}, lines with fewer than {_LEAST_CELLS} cells show no trend and were not tested{all_of}"
    if drawn:
        yield "the first and the last cell of a line are not tested: a change of trend looks the same there"


def _common_draws(sweep: Sweep, generator: np.random.Generator) -> Int64s | None:
    """Rounds drawn for all cells alike, where all were measured in turns: what disturbs a round disturbs all of it."""
    walls = [cell.wall for point in sweep.points for _, cell in point.sides if cell and cell.wall]
    sizes = {len(wall.blocks) for wall in walls}
    if len(sizes) != 1 or not all(wall.paired for wall in walls):
        return None
    size = sizes.pop()
    return generator.integers(size, size=(_DRAWS, size))
