"""Where in the program the time of a finding is lost: operators, ranges, modules and lines.

A rule declares how its finding is located (`Rule.located`): by the calls that block the host, or by the claimed work. A
pause belongs to the call in which it starts or lies, not to the work that comes next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.code import PLACE, places_of_calls, places_of_work
from warplens.analysis.frames import Spent, once, sum_by
from warplens.analysis.intervals import Intervals, union
from warplens.analysis.launches import launching_threads
from warplens.analysis.trees import is_operator
from warplens.analysis.window import unnumbered_name
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.evidence import time_inside, waits_of_host
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import Finding, Located, Place
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.copies import HOST_COPIES
from warplens.diagnosis.structure import StructureRule
from warplens.patterns import lazy_pattern
from warplens.profile.schema import Int64s

#: Most places of a finding.
_MOST: Final = 3
#: Least share of a finding at a place.
_LEAST_SHARE: Final = 0.01

#: Name of Inductor's graphs, with a hash of their code that is of no use.
_COMPILED: Final = lazy_pattern(r"^## Call (?P<name>CompiledFxGraph) \w+ ##$")
_LINE: Final = lazy_pattern(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)


def located(facts: Facts, claims: Claims, finding: Finding) -> Finding:
    """The finding with its main places, and with `where` by these places if it is located by calls."""
    by = rule(finding.id).located
    if by is None:
        return finding
    main = places(facts, claims, finding.id, by)
    names = tuple(dict.fromkeys(name for place in main if (name := place.operator or place.range)))
    return replace(finding, places=main, where=names if names and by != "work" else finding.where)


def places(facts: Facts, claims: Claims, id_: str, by: Located) -> tuple[Place, ...]:
    """The places with the most of a finding's claimed time, the largest first; none if they have no names."""
    if by == "work":
        spent = claims.pieces(id_).plus(_of_next_work(facts, claims.pauses(id_))).whole()
        spent = spent if spent.any() or (place_time := rule(id_).place_time(facts)) is None else place_time
        kind = "launches" if claims.idle_ns(id_) > claims.busy_ns(id_) else "kernels"
        own = claims.pieces(id_).whole() > 0
        if isinstance(rule(id_), StructureRule) and spent[~own].any():
            # A host that need not issue this work is in time for other work as well, which is not where the cause is.
            spent, kind = np.where(own, spent, 0), "kernels"
        rows = np.flatnonzero(spent > 0)
        return _largest(places_of_work(facts.timeline, facts.rows[rows]), kind, spent[rows], _around(facts))
    gaps = claims.of_gaps(id_).to_numpy()
    if by == "pauses":
        calls, spent = _pauses(facts, gaps)
    else:
        calls = _calls(facts, by)
        spent = _of_last_call(facts, calls, gaps) if by == "waits" else _inside(facts, calls, gaps)
        if by == "copies":
            spent += _of_launched(calls, facts.work, claims.of_work(id_))
    return _largest(places_of_calls(facts.timeline, calls), by, spent, _around(facts))


def _of_next_work(facts: Facts, pauses: Spent) -> Spent:
    """Time of the pauses that each piece of work ended."""
    if not pauses:
        return Spent.none(facts.work.height)
    spent = np.zeros(facts.work.height + 1, dtype=np.int64)
    np.add.at(spent, facts.program.gap_next[pauses.at], pauses.ns)
    return Spent.of(spent[:-1])  # the last one counts pauses that no work ended


def _pauses(facts: Facts, gaps: Int64s) -> tuple[pl.DataFrame, Int64s]:
    """The pauses as moments on the thread that launches the most, and the time of each."""
    rows = np.flatnonzero(gaps > 0)
    process, thread = facts.host.launches.thread or (-1, -1)
    middle = (facts.gaps["start_ns"] + facts.gaps["end_ns"]).to_numpy()[rows] // 2
    return pl.DataFrame({"process": process, "thread": thread, "start_ns": middle}), gaps[rows]


def _calls(facts: Facts, by: Located) -> pl.DataFrame:
    """The calls of this kind on the window's launching threads, by their start."""
    timeline, window = facts.timeline, facts.window
    if by == "waits":
        return waits_of_host(timeline, window).calls.sort("start_ns")
    if by == "copies" and window.kind != "all":
        # A step begins on the GPU, so that its first copies were issued before.
        launched = timeline.work_in(window)["launch_start_ns"].drop_nulls().to_numpy()
        window = replace(window, start_ns=int(launched.min(initial=window.start_ns)))
    calls = timeline.api_calls_in(window)
    calls = calls.filter(api_kinds(calls["name"]) == ("copy" if by == "copies" else "allocation"))
    calls = calls.join(launching_threads(timeline, facts.window), on=["process", "thread"], how="semi")
    calls = calls.sort("start_ns")
    if by == "copies":
        over_link = timeline.trace.copies.filter(pl.col("direction").is_in(HOST_COPIES))
        return calls.join(over_link, on=["process", "correlation"], how="semi", maintain_order="left")
    return calls


def _of_last_call(facts: Facts, calls: pl.DataFrame, gaps: Int64s) -> Int64s:
    """Time of the pauses after each of these calls, up to the next such call of its process."""
    spent = np.zeros(calls.height, dtype=np.int64)
    process, begins = calls["process"].to_numpy(), calls["start_ns"].to_numpy()
    after = facts.program.gap_next
    of_gap = np.where(after >= 0, np.r_[facts.work["process"].to_numpy(), -1][after], -1)
    for one in np.unique(process):
        own = np.flatnonzero(process == one)
        pauses = (gaps > 0) & (of_gap == one)
        last = np.searchsorted(begins[own], facts.gaps["end_ns"].to_numpy()[pauses], side="right") - 1
        np.add.at(spent, own[last[last >= 0]], gaps[pauses][last >= 0])
    return spent


def _inside(facts: Facts, calls: pl.DataFrame, gaps: Int64s) -> Int64s:
    """Claimed time of the pauses inside each of these calls."""
    claimed = facts.gaps.select("start_ns", "end_ns").filter(pl.Series(gaps > 0))
    return time_inside(union(Intervals.of(claimed)), calls)


def _of_launched(calls: pl.DataFrame, work: pl.DataFrame, claimed: pl.Series) -> Int64s:
    """Claimed time of the work that each of these calls launched."""
    launched = work.select("process", start_ns="launch_start_ns").with_columns(claimed).drop_nulls()
    sums = launched.group_by("process", "start_ns").agg(pl.col("claimed_ns").sum())
    found = calls.join(sums, on=["process", "start_ns"], how="left", maintain_order="left")
    return found["claimed_ns"].fill_null(0).to_numpy().astype(np.int64)


@once
def _around(facts: Facts) -> list[str]:
    """Names of ranges in which the whole window was launched; they tell no place."""
    ranges = facts.timeline.trace.ranges
    begin, end = facts.work["launch_start_ns"].min(), facts.work["launch_end_ns"].max()
    if begin is None or end is None:
        return []
    held = ranges.filter((pl.col("start_ns") <= begin) & (pl.col("end_ns") >= end) & ~pl.Series(is_operator(ranges)))
    return list(map(unnumbered_name, held["name"].cast(pl.String).unique()))


def _largest(found: tuple[pl.DataFrame, Int64s], kind: str, spent: Int64s, around: Sequence[str]) -> tuple[Place, ...]:
    """The places with the most time, or with the most calls if none costs time by itself.

    Args:
        around: names of ranges that tell no place.
    """
    named, which = found
    if not named.height:
        return ()
    named = named.with_columns(pl.when(~pl.col("range").cast(pl.String).is_in(around)).then("range"))
    # Calls are grouped by all attributes; work only by a few, because it is spread over many operators but few lines.
    lines = bool(named["line"].is_not_null().any())
    keys = (
        list(PLACE) if kind not in ("launches", "kernels") else ["line", "module"] if lines else ["range", "operator"]
    )
    same = [
        pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name)
        for name in PLACE
        if name not in keys
    ]
    total, every = int(spent.sum()), len(which)
    share = pl.col("spent") / total if total else pl.col("count") / every
    counts = np.bincount(which, minlength=named.height)
    rows = (
        named.with_columns(
            pl.Series("spent", sum_by(which, spent, named.height)), pl.Series("count", counts, dtype=pl.Int64)
        )
        .group_by(keys)
        .agg(pl.col("spent", "count").sum(), *same)
        .cast(dict.fromkeys(PLACE, pl.String))
        .with_columns(share=share)
        .filter(pl.col("share") >= _LEAST_SHARE)
        .sort("spent", "count", *PLACE, descending=[True, True, *(False for _ in PLACE)], nulls_last=True)
        .head(_MOST)
    )
    known = rows.select(pl.any_horizontal(pl.col(PLACE).is_not_null())).to_series().any()
    return tuple(_place(kind, every, row) for row in rows.iter_rows(named=True)) if known else ()


def _place(kind: str, every: int, row: dict[str, Any]) -> Place:
    """A place from a row of `_largest`, with only the last folder of the file."""
    source = _LINE.match(row["line"] or "")
    return Place(
        kind=kind,
        count=row["count"],
        of_count=every,
        share=row["share"],
        operator=row["operator"],
        range=_COMPILED.sub(r"\g<name>", row["range"]) if row["range"] else None,
        module=row["module"],
        file="/".join(re.split(r"[/\\]", source["file"])[-2:]) if source else None,
        line=int(source["line"]) if source else None,
        function=source["function"] if source else None,
    )
