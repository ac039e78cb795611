"""Detection of cells whose time breaks the trend of their line, where lines are smooth in logarithms or have a kink.

If all other cells lie on a power of the axis, or on a fixed cost plus work, that trend is *validated*, and the cell is
expected between the trend and a smooth curve through its neighbours. Otherwise, because of a kink (host and GPU time
exchange the role of the larger one) or a bend, only the neighbours bound the cell, by all smooth or kinked lines that
pass through them. A kink is not fitted: with one cell beyond it, its position is undetermined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from warplens.compare import SIDES
from warplens.compare.shift import t_quantile, two_sided, units
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s, Int64s
from warplens.studies.policies.choosing import is_number
from warplens.studies.sweeps.sweep import Point, Sweep, framed

#: (axis values of cells, times of cells as draws × cells, axis values to predict) → predicted times; all logarithms.
Curve: TypeAlias = Callable[[Float64s, Float64s, Float64s], Float64s]

#: A trend fits if the residuals' standard deviation is below this: tile sizes and clocks move cells of real machines
#: off any smooth line by about as much, and a line that bends at its end has larger residuals.
_ROUGHNESS: Final = 0.01

#: Or below this many standard errors of a cell.
_ERRORS: Final = 1.5


def expected(x: Float64s, y: Float64s, index: int, error: float) -> tuple[Float64s, Float64s, bool]:
    """The range in which a cell is expected, given the other cells of its line.

    Args:
        x: logarithms of the axis, rising.
        y: logarithms of times, draws × cells; the first row is the estimate, by which the fit of trends is judged.
        index: of the cell; neither the first nor the last.
        error: standard error of a cell's logarithm.

    Returns:
        Least and greatest logarithm, one per draw; and whether they come from trends that fit all other cells.
    """
    others = np.delete(np.arange(x.size), index)
    tolerance = max(_ROUGHNESS, _ERRORS * error)
    wanted, pairs = np.append(x[others], x[index]), _pairs(x, index)
    trends: list[Float64s] = []
    for curve in (_power, _affine):
        fitted = curve(x[others], y[:, others], wanted)
        residual = y[0, others] - fitted[0, :-1]
        if math.sqrt(float(residual @ residual) / (others.size - 2)) <= tolerance:
            trends.append(fitted[:, -1])
            if len(pairs) == 1:  # next to an end of the line: a kink before the single cell beyond would be invisible
                pair = list(pairs[0])
                trends.append(curve(x[pair], y[:, pair], x[index : index + 1])[:, 0])
    # A trend that fits may still bend a little, as a smooth curve through the neighbours does.
    bounds = np.stack([*trends, _lagrange(x, y, index)]) if trends else _lines_through_neighbours(x, y, index)
    return bounds.min(axis=0), bounds.max(axis=0), bool(trends)


def _least_squares(columns: Float64s, y: Float64s, wanted: Float64s) -> Float64s:
    """The linear fit to each row of y, evaluated at the wanted rows of the design matrix."""
    return np.asarray(y @ np.linalg.pinv(columns).T @ wanted.T)


def _power(x: Float64s, y: Float64s, wanted: Float64s) -> Float64s:
    return _least_squares(np.vander(x, 2), y, np.vander(wanted, 2))


def _affine(x: Float64s, y: Float64s, wanted: Float64s) -> Float64s:
    """A fixed cost plus work: a straight line on linear scales, fitted to relative errors."""
    times = np.exp(y)
    # All draws use the weights of the estimate, so that they share one linear problem.
    weights = 1 / times[0]
    fitted = _least_squares(np.vander(np.exp(x), 2) * weights[:, None], times * weights, np.vander(np.exp(wanted), 2))
    # The line may fall below zero, which is not a time.
    return np.asarray(np.log(np.maximum(fitted, times.min(axis=1, keepdims=True) / 1e3)))


def _lines_through_neighbours(x: Float64s, y: Float64s, index: int) -> Float64s:
    """Predictions of a cell by smooth and kinked lines through its neighbours: predictions × draws."""
    last = x.size - 1
    # A kink on one side leaves the line straight on the other.
    predictions = [prediction for pair in _pairs(x, index) for prediction in _through(x, y, index, pair)]
    predictions.append(_lagrange(x, y, index))
    if index < 2 or index > last - 2:
        # With a single neighbour on one side, a kink there can neither be seen nor excluded.
        predictions += _through(x, y, index, (index - 1, index + 1))
    # Time does not rise and fall again. (It may fall and rise again, along an axis with an optimum.)
    return np.minimum(np.stack(predictions), np.maximum(y[:, index - 1], y[:, index + 1]))


def _pairs(x: Float64s, index: int) -> list[tuple[int, int]]:
    """The two nearest cells on each side that has two."""
    pairs = ((index - 1, index - 2), (index + 1, index + 2))
    return [(one, two) for one, two in pairs if 0 <= two < x.size]


def _through(x: Float64s, y: Float64s, index: int, pair: tuple[int, int]) -> list[Float64s]:
    """Predictions by a power of the axis, and by a fixed cost plus work, through two cells."""
    cells, wanted = list(pair), x[index : index + 1]
    straight = _affine(x[cells], y[:, cells], wanted)[:, 0]
    # A straight line may fall below zero; a prediction below half the smaller neighbour is implausible.
    least = y[:, cells].min(axis=1) - math.log(2)
    return [_power(x[cells], y[:, cells], wanted)[:, 0], np.maximum(straight, least)]


def _lagrange(x: Float64s, y: Float64s, index: int) -> Float64s:
    """The polynomial through up to two neighbours on each side, evaluated at the cell."""
    around = [item for item in (index - 2, index - 1, index + 1, index + 2) if 0 <= item < x.size]
    total = np.zeros(y.shape[0])
    for one in around:
        weight = math.prod((x[index] - x[other]) / (x[one] - x[other]) for other in around if other != one)
        total += weight * y[:, one]
    return total


# --- Tests for cells that break the trend of their line by more than noise --------------------------------------------
# A line is one side's times along one axis, all other axes fixed. Step times are smooth in logarithms (fixed cost +
# work, powers) except for a kink where the larger of host and GPU time changes; kernels that do not fill the GPU add
# steps of some per cent. None of these is an anomaly. A cell is predicted from the others by every smooth or kinked
# trend that fits them (`expected`), and only the excess over all of these predictions counts.
#
# Each test asks whether the excess differs from zero, given the noise of the cell and of its neighbours (bootstrap of
# blocks). All tests of a sweep share one family-wise level (Holm, A simple sequentially rejective multiple test
# procedure, Scandinavian Journal of Statistics 6, 1979): of a hundred cells without anomaly, five would otherwise seem
# to have one.

#: Smaller excesses never count: kernels that do not fill the GPU move cells by some per cent.
_LEAST_SHARE: Final = 0.05

#: Minimum number of blocks of a cell: fewer do not determine their spread.
_LEAST_BLOCKS: Final = 5

#: Minimum number of cells of a line: the tested one, and three that predict it.
_LEAST_CELLS: Final = 4

#: Resampled medians from which standard errors are computed.
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
    """Results of the tests for anomalies in a sweep."""

    tests: pl.DataFrame  #: one row per tested cell and axis: the cell's settings, then `ANOMALIES`
    level: float  #: family-wise error rate: the chance of a false anomaly in the whole sweep, at most
    untested: tuple[str, ...]  #: why cells were not tested, in sentences

    @property
    def found(self) -> pl.DataFrame:
        """The tests that found an anomaly, the most significant first."""
        return self.tests.filter("anomaly").sort("p_value", pl.col("excess_share").abs(), descending=[False, True])


@dataclass(frozen=True, eq=False)
class _Line:
    """The times of one side along an axis."""

    side: str
    axis: str
    points: tuple[Point, ...]
    x: Float64s  #: logarithms of the axis
    y: Float64s  #: logarithms of times
    draws: Float64s  #: `y` resampled: draws × cells
    freedom: int  #: degrees of freedom: least number of blocks of a cell, less one

    @classmethod
    def of(
        cls, side: str, axis: str, points: Sequence[Point], generator: np.random.Generator, shared: Int64s | None
    ) -> _Line:
        blocks = [units(getattr(point, side).wall) for point in points]
        drawn = [
            generator.integers(logs.size, size=(_DRAWS, logs.size)) if shared is None else shared for logs in blocks
        ]
        draws = [np.median(logs[rows], axis=1) for logs, rows in zip(blocks, drawn, strict=True)]
        x = np.log([float(point.settings[axis]) for point in points])
        y = np.array([float(np.median(logs)) for logs in blocks])
        return cls(side, axis, tuple(points), x, y, np.stack(draws, axis=1), min(logs.size for logs in blocks) - 1)

    def without(self, point: Point) -> _Line:
        keep = [index for index, other in enumerate(self.points) if other is not point]
        points = tuple(self.points[index] for index in keep)
        return _Line(self.side, self.axis, points, self.x[keep], self.y[keep], self.draws[:, keep], self.freedom)

    def tests(self) -> list[_Test]:
        """A test of every cell but the ends against its expected range; empty where the line is too short."""
        tests: list[_Test] = []
        if self.x.size < _LEAST_CELLS:
            return tests
        times = np.vstack([self.y, self.draws])
        noise = float(np.median(self.draws.std(axis=0)))
        for index in range(1, self.x.size - 1):
            low, high, validated = expected(self.x, times, index, noise)
            own = times[:, index]
            excess = float(max(own[0] - high[0], 0.0) + min(own[0] - low[0], 0.0))
            # Standard error of the distance to the nearer bound, which is the exceeded one outside of the range.
            nearer = high if abs(own[0] - high[0]) <= abs(own[0] - low[0]) else low
            # The bootstrap spread of n blocks is too small by √(1 − 1/n) (Hesterberg, The American Statistician 69,
            # 2015).
            error = float(np.std(own[1:] - nearer[1:])) * math.sqrt((self.freedom + 1) / self.freedom)
            z = abs(excess) / error if error > 0 else math.inf if excess else 0.0
            # Two-sided: either bound may be exceeded by chance.
            p_value = min(float(two_sided(z, self.freedom)), 1.0) if math.isfinite(z) else 0.0
            bounds = float(low[0]), float(high[0])
            tests.append(_Test(self.points[index], float(own[0]), bounds, excess, p_value, error, validated))
        return tests


@dataclass(frozen=True)
class _Test:
    """A cell against the trend of its line; all but the p-value are logarithms."""

    point: Point
    time: float
    bounds: tuple[float, float]
    excess: float
    p_value: float
    error: float  #: standard error of the excess
    validated: bool  #: whether the bounds come from a trend that fits all other cells


def anomalies(sweep: Sweep, *, level: float = 0.05, least_share: float = _LEAST_SHARE, seed: int = 0) -> Anomalies:
    """Tests for cells whose time breaks the trend of their neighbours by more than noise and by more than a share.

    The first and the last cell of a line are not tested: with neighbours on one side only, an anomaly looks like a
    change of trend. `level` is the family-wise error rate: the chance of a false anomaly in the whole sweep.
    """
    lines, untested = _lines(sweep, seed)
    tests = [line.tests() for line in lines]
    count, least = sum(map(len, tests)), math.log1p(least_share)
    anomalous: list[tuple[_Line, _Test, float]] = []
    while True:
        untested_count = count - len(anomalous)
        suspects = {
            number: [test for test in items if abs(test.excess) >= least and test.p_value * untested_count < level]
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
        anomalous.append((lines[worst], culprit, culprit.p_value * untested_count))
        # The line is tested again without the cell, since its neighbours were predicted from it.
        lines[worst] = lines[worst].without(culprit.point)
        tests[worst] = lines[worst].tests()
    remaining = [
        (line, test, min(test.p_value * count, 1.0)) for line, items in zip(lines, tests, strict=True) for test in items
    ]
    rows: list[dict[str, Any]] = []
    for line, test, p_value in (*anomalous, *remaining):
        low, high = test.bounds
        # Detected with probability one half: an excess at the threshold of the most significant test (Holm).
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
                "anomaly": len(rows) < len(anomalous),
            }
        )
    frame = framed(rows, sweep.axes, ANOMALIES).sort("side", "axis", *(sweep.axes if rows else ()))
    return Anomalies(frame, level, tuple(untested))


def _culprit(line: _Line, suspects: Sequence[_Test]) -> _Test:
    """The suspect whose removal reduces the excesses of the line most: an anomaly distorts its neighbours' trend."""

    def remaining_excess(test: _Test) -> float:
        return sum(abs(other.excess) for other in line.without(test.point).tests())

    return min(suspects, key=lambda test: (remaining_excess(test) - abs(test.excess), -abs(test.excess)))


def _lines(sweep: Sweep, seed: int) -> tuple[list[_Line], list[str]]:
    """The lines with enough cells of known noise, and sentences on cells that were left out."""
    generator = np.random.default_rng(seed)
    shared = _common_draws(sweep, generator)
    axes = [
        axis
        for axis in sweep.axes
        if all(is_number(point.settings[axis]) and point.settings[axis] > 0 for point in sweep.points)
    ]
    lines: list[_Line] = []
    short: set[str] = set()
    unknown_noise = False
    for axis in axes:
        for (_, points), side in product(sweep.lines(axis), SIDES):
            timed = [point for point in points if (cell := getattr(point, side)) is not None and cell.is_timed]
            known = [p for p in timed if (wall := getattr(p, side).wall) and len(wall.blocks) >= _LEAST_BLOCKS]
            unknown_noise |= len(known) < len(timed)
            if len(known) >= _LEAST_CELLS:
                lines.append(_Line.of(side, axis, known, generator, shared))
            elif known:
                short.add(axis)
    tested = {line.axis for line in lines}
    return lines, list(_untested(axes, [axis for axis in axes if axis in short], tested, unknown_noise))


def _untested(axes: Sequence[str], short: Sequence[str], tested: Set[str], unknown_noise: bool) -> Iterator[str]:
    """Why cells are not tested, by the axes with numbers above zero, with too short lines, and with tested ones."""
    if not axes:
        yield "no axis has numbers above zero, along which times could have a trend"
    if unknown_noise:
        yield (
            f"cells with fewer than {_LEAST_BLOCKS} independent blocks of repetitions have unknown noise and were not "
            "tested: measure in rounds (--rounds)"
        )
    for axis in short:
        none_tested = "" if axis in tested else ", none of its lines"
        yield f"along {axis}, lines with fewer than {_LEAST_CELLS} cells show no trend and were not tested{none_tested}"
    if tested:
        yield "the first and the last cell of a line are not tested: a change of trend looks the same there"


def _common_draws(sweep: Sweep, generator: np.random.Generator) -> Int64s | None:
    """Rounds drawn jointly for all cells if all were measured in alternation: a disturbance affects a whole round."""
    walls = [cell.wall for point in sweep.points for _, cell in point.sides if cell and cell.wall]
    sizes = {len(wall.blocks) for wall in walls}
    if len(sizes) != 1 or not all(wall.paired for wall in walls):
        return None
    size = sizes.pop()
    return generator.integers(size, size=(_DRAWS, size))
