"""Which axes of a sweep changed together, so that nobody can tell their effects apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s
from warplens.studies.sweeps.sweep import Sweep

AXES: Final = table(
    "sweep: axes",
    "An axis of a sweep with several values. `warplens sweep report`.",
    column("axis", help="its name", title="Axis"),
    Column("values", pl.Int64, "how many it has at points where both sides were measured"),
    Column("pairs", pl.Int64, "pairs of points that differ in it alone"),
    Column(
        "alone", pl.Boolean, "whether its effect can be told from that of the other axes", title="Can be told apart"
    ),
)


@dataclass(frozen=True)
class Confounded:
    """Settings whose effects cannot be told apart."""

    settings: tuple[str, ...]
    #: `together`: each value of the one goes with one value of the other; `nested`: each value of the first goes with
    #: one value of the second; `jointly`: only all of them together determine one another; `sides`: the variant differs
    #: from the baseline in all of them
    kind: Literal["together", "nested", "jointly", "sides"]
    text: str  #: one sentence for people


@dataclass(frozen=True, eq=False)
class Confounding:
    """What the grid cannot tell apart."""

    found: tuple[Confounded, ...]  #: settings that changed together; the worst first
    axes: pl.DataFrame  #: `AXES`
    #: settings with one value at all points that both sides have: nothing is known of other values
    unvaried: tuple[str, ...]

    @property
    def confounded_axes(self) -> tuple[str, ...]:
        """Axes whose effect cannot be told from that of others."""
        return tuple(self.axes.filter(~pl.col("alone")).get_column("axis"))


def confounding(sweep: Sweep) -> Confounding:
    """Which settings of a sweep changed together.

    Only points at which both sides were measured count: a speedup exists nowhere else.
    """
    points = [point.settings for point in sweep.points if point.speedup is not None]
    levels = {axis: list(dict.fromkeys(point[axis] for point in points)) for axis in sweep.axes}
    varied = [axis for axis in sweep.axes if len(levels[axis]) > 1]
    codes: dict[str, Float64s] = {}  # indicator columns of all values but the first: one row a point
    for axis in varied:
        at = np.array([levels[axis].index(point[axis]) for point in points])
        codes[axis] = np.asarray(at[:, None] == np.arange(1, len(levels[axis]))[None, :], dtype=np.float64)
    aliased = [axis for axis in varied if _is_aliased(codes, axis)]
    rows = [(axis, len(levels[axis]), _contrasts(points, sweep.axes, axis), axis not in aliased) for axis in varied]
    single = [axis for axis in sweep.axes if len(levels[axis]) == 1]
    return Confounding(
        found=(*_determined(points, codes, aliased), *_sides(sweep)),
        axes=pl.DataFrame(rows, schema=AXES.schema, orient="row"),
        unvaried=(*single, *(name for name, value in sweep.shared.items() if value not in ("", None))),
    )


def _determined(
    points: Sequence[Mapping[str, Any]], codes: Mapping[str, Float64s], aliased: Sequence[str]
) -> Iterator[Confounded]:
    """Axes of which one says what the other is; and those that are aliased although no two of them do."""
    nested, loose = [], list(aliased)
    for one, other in combinations(codes, 2):
        forth, back = _determines(codes, one, other), _determines(codes, other, one)
        if forth or back:
            loose = [axis for axis in loose if axis not in (one, other)]
        if forth and back:
            first, second = points[0], next(item for item in points if item[one] != points[0][one])
            yield Confounded(
                (one, other),
                "together",
                f"at all points {one} and {other} changed together: a difference between them is an effect of both, "
                f"and no claim about either alone has support; measure {one} {first[one]} with {other} {second[other]} "
                "as well",
            )
        elif forth or back:
            inner, outer = (one, other) if forth else (other, one)
            text = f"each {inner} was measured at one {outer} only: an effect of {outer} may be one of {inner}"
            nested.append(Confounded((inner, outer), "nested", text))
    yield from nested
    if loose:
        text = f"too few combinations of {', '.join(loose)} were measured to tell their effects apart"
        yield Confounded(tuple(loose), "jointly", text)


def _contrasts(points: Sequence[Mapping[str, Any]], axes: Sequence[str], axis: str) -> int:
    """Pairs of points that differ in this axis alone."""
    counts = Counter(tuple(point[name] for name in axes if name != axis) for point in points)
    return sum(count * (count - 1) // 2 for count in counts.values())


def _sides(sweep: Sweep) -> Iterator[Confounded]:
    """Settings in which the variant differs from the baseline, where there are several."""
    shown = {
        name: [str(value) if value not in ("", None) else "–" for value in (sweep.baseline[name], value)]
        for name, value in sweep.variant.items()
        if name in sweep.baseline and value != sweep.baseline[name]
    }
    if len(shown) > 1:
        told = "; ".join(f"{name} {before} → {after}" for name, (before, after) in shown.items())
        text = (
            f"the variant differs from the baseline in several settings at once ({told}): a difference is that of all "
            "of them"
        )
        yield Confounded(tuple(shown), "sides", text)


def _rank(codes: Mapping[str, Float64s], axes: Sequence[str]) -> int:
    count = next(iter(codes.values())).shape[0]
    return int(np.linalg.matrix_rank(np.column_stack([np.ones(count), *(codes[axis] for axis in axes)])))


def _is_aliased(codes: Mapping[str, Float64s], axis: str) -> bool:
    """Whether some contrast between the axis's values is also one between values of the others."""
    others = [name for name in codes if name != axis]
    return bool(_rank(codes, [*others, axis]) - _rank(codes, others) < codes[axis].shape[1])


def _determines(codes: Mapping[str, Float64s], one: str, other: str) -> bool:
    """Whether each value of the one goes with a single value of the other."""
    return _rank(codes, [one, other]) == _rank(codes, [one])
