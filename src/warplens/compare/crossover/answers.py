"""What is answered about an axis: from where on the variant pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import polars as pl

__all__ = ["CROSSING_SCHEMA", "LINE_SCHEMA", "Answer", "AxisCrossover", "Crossing", "crossing_frame"]

#: `crosses`: it starts or stops to pay somewhere between measured points. `always`, `none-in-range`: it is faster, or
#: not faster, at each of them. `undecided`: noise does not tell.
Answer: TypeAlias = Literal["crosses", "always", "none-in-range", "undecided"]

#: One row a measured value of the axis. `ratio` is variant / baseline time: below 1 where the variant is faster.
#: `sign`: `faster`, `slower` or `undecided`, at a level that holds for all values of the axis at once.
LINE_SCHEMA = pl.Schema(
    {
        "value": pl.Float64(),
        "baseline_ns": pl.Float64(),
        "variant_ns": pl.Float64(),
        "ratio_low": pl.Float64(),
        "ratio": pl.Float64(),
        "ratio_high": pl.Float64(),
        "sign": pl.Enum(["faster", "slower", "undecided"]),
    }
)

#: One row a crossing, or one row without a crossing for a line that has none; before these stand the other axes.
CROSSING_SCHEMA = pl.Schema(
    {
        "axis": pl.String(),
        "answer": pl.Enum(["crosses", "always", "none-in-range", "undecided"]),
        "pays": pl.Enum(["above", "below"]),
        "at": pl.Float64(),
        "low": pl.Float64(),
        "high": pl.Float64(),
        "bracket_low": pl.Float64(),
        "bracket_high": pl.Float64(),
        "decided": pl.Boolean(),
        "extrapolated": pl.Boolean(),
        "range_low": pl.Float64(),
        "range_high": pl.Float64(),
        "reason": pl.String(),
    }
)


@dataclass(frozen=True)
class Crossing:
    """A place on an axis where the faster side changes.

    Attributes:
        pays: the variant is the faster one above it, or below it.
        at: estimate: straight line between neighbours, log of the axis against log of the ratio.
        low, high: interval; covers noise and what the curve may do between its measured points. None: not bounded
            within the range that was measured.
        bracket: the measured values next to it whose own ratio is decided; None on a side that has none.
        decided: whether both ends of the bracket are: then that it lies between them does not depend on any curve.
        extrapolated: whether it lies beyond the values that were measured.
    """

    pays: Literal["above", "below"]
    at: float
    low: float | None
    high: float | None
    bracket: tuple[float | None, float | None]
    decided: bool
    extrapolated: bool = False


@dataclass(frozen=True, eq=False)
class AxisCrossover:
    """The answer for one line of the grid: one axis varies, the others stand still.

    Attributes:
        axis: the one that varies.
        others: value of each other axis.
        answer: see `Answer`.
        crossings: rising along the axis. With the answer `undecided` they are candidates.
        undecided_at: measured values at which noise does not tell the faster side, other than inside a bracket.
        span: least and greatest measured value.
        level: nominal, of the intervals.
        line: `LINE_SCHEMA`.
        reason: why there is no better answer; None if there is nothing to say.
        doubts: what the figures do not account for.
    """

    axis: str
    others: Mapping[str, Any]
    answer: Answer
    crossings: tuple[Crossing, ...]
    undecided_at: tuple[float, ...]
    span: tuple[float, float]
    level: float
    line: pl.DataFrame
    reason: str | None = None
    doubts: tuple[str, ...] = ()


def crossing_frame(crossovers: tuple[AxisCrossover, ...]) -> pl.DataFrame:
    """All crossings as one table: the other axes, then `CROSSING_SCHEMA`."""
    rows = []
    for found in crossovers:
        common = {
            **found.others,
            "axis": found.axis,
            "answer": found.answer,
            "range_low": found.span[0],
            "range_high": found.span[1],
            "reason": found.reason,
        }
        rows += [
            {
                **common,
                "pays": crossing.pays,
                "at": crossing.at,
                "low": crossing.low,
                "high": crossing.high,
                "bracket_low": crossing.bracket[0],
                "bracket_high": crossing.bracket[1],
                "decided": crossing.decided,
                "extrapolated": crossing.extrapolated,
            }
            for crossing in found.crossings
        ] or [common]
    others = list(crossovers[0].others) if crossovers else []
    left = pl.DataFrame([{name: row[name] for name in others} for row in rows], infer_schema_length=None)
    right = pl.DataFrame(
        [{name: row.get(name) for name in CROSSING_SCHEMA} for row in rows], schema=CROSSING_SCHEMA, orient="row"
    )
    return pl.concat((left, right), how="horizontal") if others else right
