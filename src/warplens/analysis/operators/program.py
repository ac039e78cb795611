"""Rows for the parts of the program: modules, and where there are none annotations or operators; Python functions.

A part's backward time is that of the backward operators whose forward operator ran in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.operators.places import Places, module_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, Forest, depth_first, name_paths, nearest
from warplens.analysis.window import Window, generic_name, is_step_name, phase_of_name
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Int64s, name_categories, name_labels

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Nodes:
    """What nodes cost on the host, and which GPU work belongs to them."""

    forest: Forest  #: which node lies in which, n of them
    counted: Bools  #: shape (n,), whether it counts in the window (`counted`), so that its host time does
    host_ns: Int64s  #: shape (n,), its duration on the host
    #: duration_ns, is_kernel: shape (m,), of each piece of GPU work
    duration_ns: Int64s
    is_kernel: Bools
    launched_by: Int64s  #: shape (m,), the innermost node that launched the work; `NO_RANGE` for none
    #: for each piece of GPU work the nodes that it is backward work of, each shape (m,); the innermost first
    backward_of: tuple[Int64s, ...]
    #: api_ns, host_self_ns: shape (n,), as in the schema; None where they are not known
    api_ns: Int64s | None = None
    host_self_ns: Int64s | None = None

    def causing(self) -> Bools:
        """Nodes that GPU work belongs to, forward or backward, itself or through a node inside."""
        caused = np.zeros(len(self.counted), dtype=np.int64)
        for where in (self.launched_by, *self.backward_of):
            caused[where[where != NO_RANGE]] = 1
        causing: Bools = self.forest.latest(caused) > 0
        return causing

    def sums(self, rows: Int64s, group: Int64s, count: int) -> pl.DataFrame:
        """One row a group: every piece of work, and every instant of the host, counts once in each group it is in.

        Args:
            rows: the nodes that are listed.
            group: shape (rows,), the group of each of them, from 0.
        """
        of_node = np.full(len(self.counted), NO_RANGE, dtype=np.int64)
        of_node[rows] = group
        counts = self.counted[rows]
        outer = counts & ~self.forest.repeats(of_node)[rows]
        launched, backward = [self.launched_by], list(self.backward_of)
        first = np.r_[of_node, NO_RANGE]
        columns = {
            "id": np.arange(count),
            "calls": sum_at(count, group, counts.astype(np.int64)),
            "host_ns": sum_at(count, group[outer], self.host_ns[rows][outer]),
            "gpu_ns": self._inside(of_node, launched, self.duration_ns, count),
            "gpu_self_ns": sum_at(count, first[self.launched_by], self.duration_ns),
            "backward_ns": self._inside(of_node, backward, self.duration_ns, count),
            "backward_self_ns": sum_at(count, first[backward[0]], self.duration_ns)
            if backward
            else np.zeros(count, int),
            "total_ns": self._inside(of_node, [*launched, *backward], self.duration_ns, count),
            "kernels": self._inside(of_node, launched, self.is_kernel.astype(np.int64), count),
        }
        if self.api_ns is not None:
            columns["api_ns"] = sum_at(count, group[outer], self.api_ns[rows][outer])
        if self.host_self_ns is not None:
            columns["host_self_ns"] = sum_at(count, group[counts], self.host_self_ns[rows][counts])
        return pl.DataFrame(columns)

    def _inside(self, group: Int64s, starts: list[Int64s], amounts: Int64s, count: int) -> Int64s:
        """Amounts of the work by group, where it belongs to a node of the group or to one inside such a node."""
        pairs = [np.empty(0, dtype=np.int64)]
        for start in starts:
            work = np.flatnonzero(start != NO_RANGE)
            node = start[work]
            while len(work):
                known = group[node] != NO_RANGE
                pairs.append(work[known] * count + group[node][known])
                node = self.forest.parent[node]
                work, node = work[node != NO_RANGE], node[node != NO_RANGE]
        # Sorting beats the hash table of `np.unique`, which such regular keys fill badly.
        ordered = np.sort(np.concatenate(pairs))
        distinct = ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered
        return sum_at(count, distinct % max(count, 1), amounts[distinct // max(count, 1)])


def counted(timeline: Timeline, window: Window, calls: pl.DataFrame, forest: Forest, launched_by: Int64s) -> Bools:
    """Which host intervals a window counts: those whose first GPU work begins in it.

    Those without GPU work count where they begin themselves. So a step has all of its operators, however far the host
    runs ahead of the GPU.

    Args:
        calls: a table of host intervals, the nodes of the forest.
        launched_by: the innermost of them that launched each row of `Timeline.work`; `NO_RANGE` for none.
    """
    within = timeline.lie_in_range(window, calls)
    if window.kind == "all":
        return within
    never = np.iinfo(np.int64).max
    first = np.full(calls.height, never)
    known = launched_by != NO_RANGE
    np.minimum.at(first, launched_by[known], timeline.work["start_ns"].to_numpy()[known])
    first = forest.earliest(first)
    when = np.where(first == never, calls["start_ns"].to_numpy(), first)
    inside: Bools = within & (when >= window.start_ns) & (when < window.end_ns)
    return inside


def by_group(nodes: Nodes, code: Int64s, wanted: Bools) -> pl.DataFrame:
    """Nodes of the same code (column `code`) as one row, most GPU time first.

    Args:
        wanted: which nodes may be listed; those that neither count in the window nor have GPU work in it are not.
    """
    rows = np.flatnonzero(wanted & (nodes.counted | nodes.causing()))
    codes, group = np.unique(code[rows], return_inverse=True)
    table = nodes.sums(rows, group.reshape(-1), len(codes)).with_columns(pl.Series("code", codes, dtype=pl.Int64))
    return table.sort("total_ns", "host_ns", "code", descending=[True, True, False])


def by_path(nodes: Nodes, code: Int64s, wanted: Bools) -> pl.DataFrame:
    """Nodes at the same path of codes as one row; parents before their children. `code` is that of the last name."""
    rows = np.flatnonzero(wanted & (nodes.counted | nodes.causing()))
    paths = name_paths(code, rows, nodes.forest.parent[rows])
    table = nodes.sums(rows, paths.path, len(paths.code)).with_columns(
        pl.Series("parent", paths.parent, dtype=pl.Int64).replace(NO_RANGE, None),
        pl.Series("depth", paths.depth, dtype=pl.Int64),
        pl.Series("code", paths.code, dtype=pl.Int64),
    )
    return depth_first(table, "total_ns", "host_ns", "code")


def sum_at(count: int, places: Int64s | Sequence[int], amounts: Int64s) -> Int64s:
    """The amounts summed by place; those at `NO_RANGE` are left out."""
    where = np.asarray(places, dtype=np.int64)
    known = where != NO_RANGE
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, where[known], amounts[known])
    return sums


#: What names a place in the program, the finest first.
LEVELS: Final = ("module", "annotation", "operator", "none")

OPERATORS: Final = table(
    "operators",
    "One operator name, path of names, part of the program or Python function. `warplens operators`.",
    "id parent depth",
    column(
        "level",
        help="with `--by module` what the row is: `module`, `annotation`, `operator` (an outermost one) or `none`;"
        " else null",
        title="Is a",
    ),
    "name input_shapes input_types calls host_ns",
    Column(
        "api_ns",
        pl.Int64,
        "part of `host_ns` in CUDA API calls; null for modules and Python functions",
        title="In CUDA",
    ),
    Column(
        "host_self_ns",
        pl.Int64,
        "host time in neither operators inside nor CUDA API calls of its own; null for modules and Python functions",
        title="Framework",
    ),
    "gpu_ns",
    Column(
        "gpu_self_ns", pl.Int64, "the part of it launched by itself, not by something inside", title="Launched itself"
    ),
    "backward_ns",
    Column("backward_self_ns", pl.Int64, "the part of it that belongs to itself", title="Its backward"),
    column("total_ns", help="`gpu_ns` and `backward_ns`, each piece of work counted once"),
    "kernels share",
    id="number of the row, for `parent`",
    parent="`id` of the row that it lies in; null for the outermost, and where rows are no tree",
    depth="0 for an outermost row, 1 for one directly inside, …; null where rows are no tree",
    name="operator, module, annotation, or Python function with its file and line",
    input_shapes="JSON list of the inputs' shapes; with `--by shapes` only, null where they were not recorded",
    input_types="JSON list of the inputs' types; likewise",
    calls="how many of them the window counts: those whose first GPU work begins in it, and those without any that"
    " begin in it themselves",
    host_ns="duration on the host of those calls, what lies inside included",
    gpu_ns="GPU time of the work launched inside; for modules and Python functions without that of the backward pass",
    backward_ns="GPU time of the backward operators that belong to it, or to something inside",
    kernels="number of kernels launched inside",
    share="`total_ns` as a share of the GPU time of all work in the window",
)


def finished(rows: pl.DataFrame, total_ns: int) -> pl.DataFrame:
    """The rows with all columns of the schema; those that do not apply are null.

    Args:
        total_ns: all GPU time of the window.
    """
    absent = [
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in OPERATORS.schema.items() if name not in rows.columns
    ]
    share = pl.col("total_ns") / total_ns if total_ns else pl.lit(0.0)
    return rows.with_columns(absent).with_columns(share.alias("share")).pipe(OPERATORS.conform)


#: Annotations of whole passes say no more than the phase does; an optimizer's annotation names the part itself.
_WHOLE_PASSES = ("forward", "backward")


@dataclass(frozen=True, eq=False)
class Levels:
    """For each piece of work the finest part of the program that is known; arrays alongside `Places`."""

    level: Codes  #: position in `LEVELS`
    #: of the module in `Trace.python_functions`, of the annotation or outermost operator in `Trace.ranges`; `NO_RANGE`
    #: for `none`
    row: Int64s


_ANNOTATION, _NONE = (np.int8(LEVELS.index(name)) for name in ("annotation", "none"))


def levels_of_work(timeline: Timeline, found: Places) -> Levels:
    """Module, else annotation, else outermost operator, of each piece of work."""
    if not timeline.has_operators and not timeline.trace.python_functions.height:
        # The range that it was launched in tells all: asked of each range instead of each piece.
        rows = np.arange(timeline.trace.ranges.height)
        nearest_telling = nearest(timeline.forest.parent, _telling(timeline), rows)
        row = np.r_[nearest_telling, NO_RANGE][found.range]
        return Levels(np.where(row != NO_RANGE, _ANNOTATION, _NONE), row)
    origin = found.origin
    # Backward work without a known forward operator stays where it was launched.
    operator = np.where(origin != NO_RANGE, origin, found.operator)
    held = np.where(found.linked, operator, found.range)
    annotation = nearest(timeline.forest.parent, _telling(timeline), held)
    outermost = _outermost(timeline, operator)
    level = np.full(len(held), _NONE, dtype=np.int8)
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
        used = int(numbered["id"].max()) + 1  # type: ignore[arg-type]
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
        "name": "outside all operators",
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
        where: the innermost node that each row of `Timeline.work` belongs to, forward or backward.
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

    def tells(name: str) -> bool:
        return not is_step_name(generic_name(name)) and phase_of_name(name) not in _WHOLE_PASSES

    telling: Bools = (name_labels(timeline.trace.ranges["name"], tells) > 0) & ~timeline.operators.is_operator
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
