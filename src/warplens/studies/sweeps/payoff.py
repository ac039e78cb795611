"""From where on a variant pays: one kind of answer, whatever it rests on.

A crossover in measured times (`crossover`), the threshold of a fitted model (`breakeven`), and the place where a
policy's choice changes are answers to one question; `pays_off` gives each of them as `PaysOff`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import polars as pl

from warplens.studies.sweeps.sweep import framed

if TYPE_CHECKING:
    from collections.abc import Sequence


#: `crosses`: it starts or stops to pay somewhere between the places looked at. `always`, `none-in-range`: it is faster,
#: or not faster, at each of them. `undecided`: noise does not tell.
Answer: TypeAlias = Literal["crosses", "always", "none-in-range", "undecided"]

#: `measured`: between measured points. `modelled`: by a fitted model, also beyond them. `policy`: between the points of
#: a policy, by what it chooses there.
Evidence: TypeAlias = Literal["measured", "modelled", "policy"]

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
class PaysOff:
    """From where on the variant pays along one axis, the others held.

    Attributes:
        evidence: what the answer rests on.
        axis: the one that varies; of a model also `items` and `size`.
        others: value of each other axis.
        answer: see `Answer`.
        crossings: rising along the axis. With the answer `undecided` they are candidates.
        span: least and greatest value that was measured.
        level: nominal, of the intervals; None where they are no intervals of chance.
        interval: of the least place from which it pays, also where the estimate has none; None beyond what was looked
            at. Of measured answers that of each crossing counts.
        undecided_at: measured values at which noise does not tell the faster side, other than inside a bracket.
        line: of measured answers, the times along the axis (`crossover.LINE_SCHEMA`).
        reason: why there is no better answer; None if there is nothing to say.
        doubts: what the figures do not account for.
    """

    evidence: Evidence
    axis: str
    others: Mapping[str, Any]
    answer: Answer
    crossings: tuple[Crossing, ...]
    span: tuple[float, float]
    level: float | None
    interval: tuple[float | None, float | None] = (None, None)
    undecided_at: tuple[float, ...] = ()
    line: pl.DataFrame | None = None
    reason: str | None = None
    doubts: tuple[str, ...] = ()


def crossing_frame(answers: Sequence[PaysOff]) -> pl.DataFrame:
    """All crossings as one table: the other axes, then `CROSSING_SCHEMA`."""
    rows = []
    for found in answers:
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
    return framed(rows, list(answers[0].others) if answers else [], CROSSING_SCHEMA)
