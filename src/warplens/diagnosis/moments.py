"""Where in the window each finding costs the most: the instants to look at first.

A finding claims pauses and pieces of work (`warplens.diagnosis.claims`). If single ones stand out, they are its worst
moments: a wait of a millisecond, a copy that blocks. If it consists of thousands of small ones, a single one shows
nothing, and the worst moments are the stretches of the window with the most of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import Finding
from warplens.profile.schema import name_categories

#: Moments of each finding: several show that the first is no accident.
MOST_MOMENTS: Final = 3

#: Least share of the finding's time per step for a piece to stand out; also the length of stretches, of a step.
_LEAST_SHARE: Final = 0.05

#: Shortest stretch: shorter ones have no more than one kernel.
_LEAST_STRETCH_NS: Final = 20_000


@dataclass(frozen=True)
class Moment:
    """One instance of a finding."""

    finding: str
    #: start_ns, end_ns: the half-open interval, in the profile's clock, cut at the window
    start_ns: int
    end_ns: int
    device: int  #: CUDA ordinal of the GPU
    claimed_ns: int
    what: str  #: `pause`, `work`, or `stretch` of several
    name: str  #: name of the work as recorded, or the main cause of the pause; of a stretch, of its costliest piece
    pieces: int  #: claimed pauses and pieces of work
    pauses: int  #: how many of these are pauses


def worst_moments(facts: Facts, claims: Claims, findings: Sequence[Finding]) -> tuple[Moment, ...]:
    """The worst moments of each finding that claims time, in the order of the findings, the worst first."""
    return tuple(moment for finding in findings for moment in _of_finding(facts, claims.of(finding.id), finding.id))


def _of_finding(facts: Facts, claims: Claims, id_: str) -> Iterator[Moment]:
    """The largest pauses and pieces of work that a finding claims, or stretches of it if no single one stands out."""
    if id_ not in claims.causes:
        return
    span = ("start_ns", "end_ns", "device")
    inside = pl.col("start_ns", "end_ns").clip(facts.window.start_ns, facts.window.end_ns)
    parts = ((facts.gaps, claims.pauses(id_), "pause"), (facts.work, claims.pieces(id_), "work"))
    claimed = pl.concat(
        [
            table.select(span)[rows]
            .with_columns(pl.Series("row", rows, dtype=pl.UInt32), pl.Series("claimed_ns", spent.ns[spent.ns > 0]))
            .with_columns(inside, pl.lit(what).alias("what"))
            for table, spent, what in parts
            for rows in [np.flatnonzero(spent.ns > 0) if spent.rows is None else spent.rows[spent.ns > 0]]
        ]
    )
    if not claimed.height:
        return
    least_ns = _LEAST_SHARE * int(claimed["claimed_ns"].sum()) / facts.steps
    largest = claimed.top_k(MOST_MOMENTS, by="claimed_ns").sort(
        "claimed_ns", "start_ns", descending=[True, False], maintain_order=True
    )
    single = largest.filter(pl.col("claimed_ns") >= least_ns)
    if not single.height:
        yield from _stretches(facts, id_, claimed)
        return
    for piece in single.iter_rows(named=True):
        start, end, device = (int(piece[column]) for column in span)
        claimed_ns, what, pauses = int(piece["claimed_ns"]), piece["what"], int(piece["what"] == "pause")
        yield Moment(id_, start, end, device, claimed_ns, what, _name(facts, piece["row"], what), 1, pauses)


def _stretches(facts: Facts, id_: str, claimed: pl.DataFrame) -> Iterator[Moment]:
    """The stretches of the window with the most of it, from the start of the first piece to the end of the last.

    The window is cut into cells, and pieces belong to the cell in which they start, so that stretches overlap by at
    most one piece.
    """
    length = max(int(_LEAST_SHARE * facts.window.duration_ns / facts.steps), _LEAST_STRETCH_NS)
    cell = (pl.col("start_ns") - facts.window.start_ns) // length
    best = (
        claimed.group_by("device", cell.alias("cell"))
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("row", "what").get(pl.col("claimed_ns").arg_max()),
            pl.col("claimed_ns").sum(),
            pl.len().alias("pieces"),
            (pl.col("what") == "pause").sum().alias("pauses"),
        )
        .sort("claimed_ns", "start_ns", "device", descending=[True, False, False])
    )
    for row in best.head(MOST_MOMENTS).iter_rows(named=True):
        start, end, device, spent = (row[column] for column in ("start_ns", "end_ns", "device", "claimed_ns"))
        name = _name(facts, row["row"], row["what"])
        yield Moment(id_, start, end, device, spent, "stretch", name, row["pieces"], row["pauses"])


def _name(facts: Facts, row: int, what: str) -> str:
    return _cause(facts, row) if what == "pause" else _work(facts, row)


def _cause(facts: Facts, row: int) -> str:
    chosen = np.array([row])
    spent = {cause: int(spent.among(chosen).whole()[0]) for cause, spent in facts.causes.items()}
    return max(spent, key=lambda cause: spent[cause])


def _work(facts: Facts, row: int) -> str:
    kind, place, label = facts.work.select("kind", "row", "label").row(row)
    if kind != "kernel":
        return str(label)
    names = facts.timeline.trace.kernels["full_name"]
    return str(name_categories(names)[int(names.to_physical()[place])])
