"""Rows for the parts of the program: modules, and where there are none annotations or operators; Python functions.

A part's backward time is that of the backward operators whose forward operator ran in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.forest import NO_RANGE, Forest, nearest
from warplens.analysis.operators.nodes import Nodes, by_group, by_path, counted
from warplens.analysis.operators.pythonframes import module_name
from warplens.analysis.operators.schema import LEVELS
from warplens.analysis.phasenames import generic_name, is_step_name, phase_of_name
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.operators.places import Places
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["Levels", "levels_of_work", "module_rows", "python_rows"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Annotations of whole passes say no more than the phase does; an optimizer's annotation names the part itself.
_WHOLE_PASSES = ("forward", "backward")


@dataclass(frozen=True, eq=False)
class Levels:
    """For each piece of work the finest part of the program that is known; arrays alongside `Places`.

    Attributes:
        level: position in `LEVELS`.
        row: of the module in `Trace.python_functions`, of the annotation or outermost operator in `Trace.ranges`;
            `NO_RANGE` for `none`.
    """

    level: npt.NDArray[np.int64]
    row: Int64s


def levels_of_work(timeline: Timeline, found: Places) -> Levels:
    """Module, else annotation, else outermost operator, of each piece of work."""
    origin = found.origin
    # Backward work without a known forward operator stays where it was launched.
    operator = np.where(origin != NO_RANGE, origin, found.operator)
    held = np.where(found.linked, operator, found.range)
    annotation = nearest(timeline.forest.parent, _telling(timeline), held)
    outermost = _outermost(timeline, operator)
    level = np.full(len(held), LEVELS.index("none"), dtype=np.int64)
    row = np.full(len(held), NO_RANGE, dtype=np.int64)
    for name, rows in (("operator", outermost), ("annotation", annotation), ("module", found.module)):
        known = rows != NO_RANGE
        level[known], row[known] = LEVELS.index(name), rows[known]
    return Levels(level, row)


def module_rows(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Modules as a tree, then annotations and operators with the work that no module is known for."""
    levels = levels_of_work(timeline, timeline.places)
    nowhere = _nowhere(timeline, window, levels)
    parts = [
        _modules(timeline, window, levels),
        _annotations(timeline, window, levels),
        _outermost_operators(timeline, window, levels),
        nowhere,
    ]
    shown, used = [], 0
    for name, part in zip(LEVELS, parts, strict=True):
        if not part.height:
            continue
        numbered = part.with_columns(pl.lit(name).alias("level"), pl.col("id", "parent") + used)
        used = _after(numbered)
        shown.append(numbered)
    return pl.concat(shown, how="diagonal") if shown else nowhere


def python_rows(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Python functions with a source line, by the GPU time of what they launched themselves."""
    calls = timeline.trace.python_functions
    frames = timeline.python
    wanted = frames.enclosing_function == np.arange(calls.height)
    parent = np.where(wanted, frames.function_parent, NO_RANGE)
    nodes = _nodes(timeline, window, timeline.places.function, calls, Forest.of(parent), wanted)
    names = calls["name"]
    table = by_group(nodes, names.to_physical().cast(pl.Int64).to_numpy(), wanted)
    return _named(table, name_categories(names).to_list()).sort(
        pl.col("gpu_self_ns") + pl.col("backward_self_ns"), "total_ns", "name", descending=[True, True, False]
    )


def _modules(timeline: Timeline, window: Window, levels: Levels) -> pl.DataFrame:
    calls = timeline.trace.python_functions
    frames = timeline.python
    wanted = frames.is_module
    parent = np.where(wanted, frames.module_parent, NO_RANGE)
    mine = np.where(levels.level == LEVELS.index("module"), levels.row, NO_RANGE)
    nodes = _nodes(timeline, window, mine, calls, Forest.of(parent), wanted)
    table = by_path(nodes, calls["name"].to_physical().cast(pl.Int64).to_numpy(), wanted)
    texts = [module_name(text) or text for text in name_categories(calls["name"])]
    return _named(table, texts)


def _annotations(timeline: Timeline, window: Window, levels: Levels) -> pl.DataFrame:
    ranges = timeline.trace.ranges
    telling = _telling(timeline)
    above = timeline.forest.parent
    parent = np.where(telling, nearest(above, telling, above), NO_RANGE)
    mine = np.where(levels.level == LEVELS.index("annotation"), levels.row, NO_RANGE)
    nodes = _nodes(timeline, window, mine, ranges, Forest.of(parent), telling)
    table = by_path(nodes, ranges["name"].to_physical().cast(pl.Int64).to_numpy(), telling & nodes.causing())
    return _named(table, name_categories(ranges["name"]).to_list())


def _outermost_operators(timeline: Timeline, window: Window, levels: Levels) -> pl.DataFrame:
    ranges = timeline.trace.ranges
    wanted = timeline.operators.is_outermost
    alone = Forest.of(np.full(ranges.height, NO_RANGE, dtype=np.int64))
    mine = np.where(levels.level == LEVELS.index("operator"), levels.row, NO_RANGE)
    nodes = _nodes(timeline, window, mine, ranges, alone, wanted)
    table = by_group(nodes, ranges["name"].to_physical().cast(pl.Int64).to_numpy(), wanted & nodes.causing())
    return _named(table, name_categories(ranges["name"]).to_list()).with_columns(_no_tree())


def _nowhere(timeline: Timeline, window: Window, levels: Levels) -> pl.DataFrame:
    rows = timeline.work_rows_in(window)
    found = timeline.places.part(rows)
    lost = levels.level[rows] == LEVELS.index("none")
    row = {
        "id": 0,
        "name": "outside of all operators",
        "gpu_ns": int(found.duration_ns[lost].sum()),
        "gpu_self_ns": int(found.duration_ns[lost].sum()),
        "backward_ns": 0,
        "backward_self_ns": 0,
        "total_ns": int(found.duration_ns[lost].sum()),
        "kernels": int((lost & found.is_kernel).sum()),
    }
    return pl.DataFrame([row]).with_columns(_no_tree()).filter(pl.lit(bool(lost.any())))


def _nodes(
    timeline: Timeline, window: Window, where: Int64s, calls: pl.DataFrame, forest: Forest, wanted: Bools
) -> Nodes:
    """Nodes that are rows of a table of host intervals (`calls`), with the GPU work that belongs to them.

    Args:
        timeline, window: what is looked at.
        where: the innermost node that each row of `Timeline.work` belongs to, forward or backward.
        calls: the table.
        forest: which of its rows lies in which.
        wanted: which of them are nodes.
    """
    launched = np.where(timeline.places.backward, NO_RANGE, where)
    backward = np.where(timeline.places.backward, where, NO_RANGE)
    rows = timeline.work_rows_in(window)
    found = timeline.places.part(rows)
    return Nodes(
        forest,
        counted(timeline, window, calls, forest, launched) & wanted,
        (calls["end_ns"] - calls["start_ns"]).to_numpy(),
        found.duration_ns,
        found.is_kernel,
        launched[rows],
        (backward[rows],),
    )


def _telling(timeline: Timeline) -> Bools:
    """Annotations that say which part of the program work belongs to: neither a step nor a whole pass."""
    names = timeline.trace.ranges["name"]
    if not names.len():
        return np.zeros(0, dtype=np.bool_)
    by_name = np.array(
        [
            not is_step_name(generic_name(text)) and phase_of_name(text) not in _WHOLE_PASSES
            for text in name_categories(names)
        ],
        dtype=np.bool_,
    )
    telling: Bools = by_name[names.to_physical().to_numpy()] & ~timeline.operators.is_operator
    return telling


def _outermost(timeline: Timeline, operators: Int64s) -> Int64s:
    tree = timeline.operators
    row = np.arange(1, len(tree.is_operator) + 1)
    outermost = tree.forest.outermost_match(np.where(tree.is_operator, row, 0)) - 1
    found: Int64s = np.r_[outermost, NO_RANGE][operators]
    return found


def _named(table: pl.DataFrame, texts: Sequence[str]) -> pl.DataFrame:
    return table.with_columns(pl.Series(texts, dtype=pl.String).gather(table["code"]).alias("name")).drop("code")


def _no_tree() -> list[pl.Expr]:
    return [pl.lit(None, dtype=pl.Int64).alias("parent"), pl.lit(0, dtype=pl.Int64).alias("depth")]


def _after(rows: pl.DataFrame) -> int:
    return int(rows["id"].max()) + 1  # type: ignore[arg-type]
