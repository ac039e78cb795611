"""Which axes of a sweep changed together, so that nobody can tell their effects apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s
from warplens.studies.sweeps.sweep import Point, Sweep

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
    points = [point for point in sweep.points if point.speedup is not None]
    levels = {axis: list(dict.fromkeys(point.settings[axis] for point in points)) for axis in sweep.axes}
    varied = [axis for axis in sweep.axes if len(levels[axis]) > 1]
    codes = {axis: _codes(points, axis, levels[axis]) for axis in varied}
    aliased = [axis for axis in varied if _is_aliased(codes, axis)]
    rows = [(axis, len(levels[axis]), _contrasts(points, sweep.axes, axis), axis not in aliased) for axis in varied]
    found = [*_pairs(sweep, codes, varied), *_jointly(codes, aliased)]
    single = [axis for axis in sweep.axes if len(levels[axis]) == 1]
    return Confounding(
        found=(*found, *_sides(sweep)),
        axes=pl.DataFrame(rows, schema=AXES.schema, orient="row"),
        unvaried=(*single, *(name for name, value in sweep.shared.items() if value not in ("", None))),
    )


def _codes(points: Sequence[Point], axis: str, levels: Sequence[Any]) -> Float64s:
    """Indicator columns of all values but the first: one row a point."""
    at = np.array([levels.index(point.settings[axis]) for point in points])
    return np.asarray(at[:, None] == np.arange(1, len(levels))[None, :], dtype=np.float64)


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


def _pairs(sweep: Sweep, codes: Mapping[str, Float64s], varied: Sequence[str]) -> Iterator[Confounded]:
    nested = []
    for one, other in combinations(varied, 2):
        forth, back = _determines(codes, one, other), _determines(codes, other, one)
        if forth and back:
            yield Confounded(
                (one, other),
                "together",
                f"at all points {one} and {other} changed together: a difference between them is an effect of both, "
                f"and no claim about either alone has support; measure {_missing(sweep, one, other)}",
            )
        elif forth or back:
            first, second = (one, other) if forth else (other, one)
            nested.append(
                Confounded(
                    (first, second),
                    "nested",
                    f"each {first} was measured at one {second} only: an effect of {second} may be one of {first}",
                )
            )
    yield from nested


def _missing(sweep: Sweep, one: str, other: str) -> str:
    """A combination that would tell the two apart."""
    points = [point.settings for point in sweep.points if point.speedup is not None]
    first, second = points[0], next(item for item in points if item[one] != points[0][one])
    return f"{one} {first[one]} with {other} {second[other]} as well"


def _jointly(codes: Mapping[str, Float64s], aliased: Sequence[str]) -> Iterator[Confounded]:
    """Axes that are aliased although no two of them determine each other: too few combinations were measured."""
    loose = [
        axis
        for axis in aliased
        if not any(
            _determines(codes, one, other) for other in codes for one in codes if one != other and axis in (one, other)
        )
    ]
    if loose:
        yield Confounded(
            tuple(loose),
            "jointly",
            f"too few combinations of {', '.join(loose)} were measured to tell their effects apart",
        )


def _contrasts(points: Sequence[Point], axes: Sequence[str], axis: str) -> int:
    """Pairs of points that differ in this axis alone."""
    others = [name for name in axes if name != axis]
    found: dict[tuple[Any, ...], int] = {}
    for point in points:
        key = tuple(point.settings[name] for name in others)
        found[key] = found.get(key, 0) + 1
    return sum(count * (count - 1) // 2 for count in found.values())


def _sides(sweep: Sweep) -> Iterator[Confounded]:
    """Settings in which the variant differs from the baseline, where there are several."""
    differing = [
        name for name in sweep.variant if name in sweep.baseline and sweep.variant[name] != sweep.baseline[name]
    ]
    if len(differing) > 1:
        told = "; ".join(f"{name} {_shown(sweep.baseline[name])} → {_shown(sweep.variant[name])}" for name in differing)
        yield Confounded(
            tuple(differing),
            "sides",
            f"the variant differs from the baseline in several settings at once ({told}): a difference is that of all "
            "of them",
        )


def _shown(value: Any) -> str:
    return "–" if value in ("", None) else str(value)
