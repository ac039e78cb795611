"""Operators, modules and Python functions with host time, GPU time, and the GPU time of their backward pass.

GPU figures count the work that begins in the window. Host figures count the operators whose first GPU work does, and
those without any that begin in it themselves: so a step has all of its operators, however far the host runs ahead. A
part's backward time is that of the backward operators whose forward operator ran in it.

Inclusive times never count anything twice: an operator inside another one of the same name adds nothing to the name's
host or GPU time. (`torch.profiler`'s tables add both.) `aten::mm` runs in the forward pass, and again to compute its
own gradient: that work is GPU time and backward time of `aten::mm`, and once in its total.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import sum_by
from warplens.analysis.operators.places import Places, module_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, Forest, depth_first, look_up, name_paths, nearest
from warplens.analysis.window import PHASES, Window, names_step, phase_numbers
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Int64s, name_categories

#: Groupings of rows.
GROUPINGS: Final = ("name", "shapes", "tree", "module", "python")


#: Kinds of places in the program, the finest first.
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


def operators_by(timeline: Timeline, window: Window, by: str = "name") -> pl.DataFrame:
    """Operators and the parts of the program around them (`OPERATORS`), most GPU time (forward and backward) first.

    Args:
        window: the part of it to look at.
        by: `name`; `shapes` (name, input shapes and types); `tree` (path of names, parents before children);
            `module` (`torch.nn` modules as a tree, and the best other place where there is none, see `level`);
            `python` (function with source line, by the time of what it launched itself).

    Raises:
        UsageError: `by` is none of these.
    """
    if by not in GROUPINGS:
        raise UsageError(f"operators cannot be grouped by {by!r}; use {', '.join(GROUPINGS)}")
    if not timeline.has_operators:
        return OPERATORS.empty()
    if by == "module":
        rows = _module_rows(timeline, window)
    elif by == "python":
        rows = _python_rows(timeline, window)
    else:
        rows = _operator_rows(timeline, window, by)
    absent = (
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in OPERATORS.schema.items() if name not in rows.columns
    )
    total_ns = int(timeline.places.part(timeline.work_rows_in(window)).duration_ns.sum())
    share = pl.col("total_ns") / total_ns if total_ns else pl.lit(0.0)
    return OPERATORS.conform(rows.with_columns(absent).with_columns(share=share))


def _operator_rows(timeline: Timeline, window: Window, by: str) -> pl.DataFrame:
    """Calls and times of operators, by name, by shapes, or as a tree."""
    tree, ranges = timeline.operators, timeline.trace.ranges
    work_places = timeline.places.part(timeline.work_rows_in(window))
    counts = counted(timeline, window, ranges, tree.forest, timeline.places.operator) & tree.is_operator
    nodes = Nodes(
        tree.forest,
        counts,
        tree.host_ns,
        work_places.duration_ns,
        work_places.is_kernel,
        work_places.operator,
        work_places.forwards,
        tree.api_ns,
        tree.self_ns,
    )
    if by != "shapes":
        rows = (by_path if by == "tree" else by_group)(nodes, _codes(ranges), tree.is_operator)
        return _named(rows, ranges)
    keys = ["name", "input_shapes", "input_types"]
    operators = (
        ranges.select("name", pl.int_range(pl.len()).alias("range"))
        .filter(pl.Series(tree.is_operator))
        .join(timeline.trace.operators.select("range", *keys[1:]), on="range", how="left", maintain_order="left")
        .with_columns(pl.struct(keys).rank("dense").cast(pl.Int64).alias("code"))
    )
    code = np.zeros(ranges.height, dtype=np.int64)
    code[operators["range"].to_numpy()] = operators["code"].to_numpy()
    labels = operators.select("code", pl.col(keys).cast(pl.String)).unique("code")
    return by_group(nodes, code, tree.is_operator).join(labels, on="code", how="left", maintain_order="left")


def _module_rows(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Modules as a tree, then annotations and operators for the work without a known module."""
    levels = levels_of_work(timeline, timeline.places)
    ranges, range_parent = timeline.trace.ranges, timeline.forest.parent
    is_place, modules = _is_place(timeline), timeline.python
    tables, row_count = [], 0
    for level, calls, is_level, parent in (
        ("module", timeline.trace.python_functions, modules.is_module, modules.module_parent),
        ("annotation", ranges, is_place, nearest(range_parent, is_place, range_parent)),
        ("operator", ranges, timeline.operators.is_outermost, np.full(ranges.height, NO_RANGE)),
    ):
        node_of_work = np.where(levels.level == LEVELS.index(level), levels.row, NO_RANGE)
        nodes = _nodes(timeline, window, node_of_work, calls, np.where(is_level, parent, NO_RANGE), is_level)
        rows = by_path(nodes, _codes(calls), is_level if level == "module" else is_level & nodes.causing())
        numbered = _named(rows, calls, (lambda text: module_name(text) or text) if level == "module" else str)
        tables.append(numbered.with_columns(pl.col("id", "parent") + row_count, level=pl.lit(level)))
        row_count += rows.height
    work = timeline.work_rows_in(window)
    work_places, is_nowhere = timeline.places.part(work), levels.level[work] == LEVELS.index("none")
    if is_nowhere.any():
        nowhere_ns = int(work_places.duration_ns[is_nowhere].sum())
        nowhere = {
            "id": row_count,
            "depth": 0,
            "level": "none",
            "name": "outside all operators",
            "gpu_ns": nowhere_ns,
            "gpu_self_ns": nowhere_ns,
            "backward_ns": 0,
            "backward_self_ns": 0,
            "total_ns": nowhere_ns,
            "kernels": int((is_nowhere & work_places.is_kernel).sum()),
        }
        tables.append(pl.DataFrame([nowhere]))
    return pl.concat(tables, how="diagonal")


def _python_rows(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Python functions with a source line, by the GPU time of the work they launched themselves."""
    calls, frames = timeline.trace.python_functions, timeline.python
    is_outermost = frames.enclosing_function == np.arange(calls.height)
    parent = np.where(is_outermost, frames.function_parent, NO_RANGE)
    nodes = _nodes(timeline, window, timeline.places.function, calls, parent, is_outermost)
    return _named(by_group(nodes, _codes(calls), is_outermost), calls).sort(
        pl.col("gpu_self_ns") + pl.col("backward_self_ns"), "total_ns", "name", descending=[True, True, False]
    )


@dataclass(frozen=True, eq=False)
class Nodes:
    """Host costs of nodes, and the GPU work that belongs to them."""

    forest: Forest  #: the nesting of the n nodes
    counted: Bools  #: shape (n,), whether it counts in the window (`counted`)
    host_ns: Int64s  #: shape (n,), its duration on the host
    #: duration_ns, is_kernel: shape (m,), of each piece of GPU work
    duration_ns: Int64s
    is_kernel: Bools
    launched_by: Int64s  #: shape (m,), the innermost node that launched the work; `NO_RANGE` for none
    #: for each piece of GPU work the nodes whose backward work it is, each shape (m,); the innermost first
    backward_of: tuple[Int64s, ...]
    #: api_ns, host_self_ns: shape (n,), as in the schema; None where unknown
    api_ns: Int64s | None = None
    host_self_ns: Int64s | None = None

    def causing(self) -> Bools:
        """Nodes with GPU work, forward or backward, their own or of a node inside."""
        has_work = np.zeros(len(self.counted), dtype=np.int64)
        for node_of_work in (self.launched_by, *self.backward_of):
            has_work[node_of_work[node_of_work != NO_RANGE]] = 1
        causing: Bools = self.forest.latest(has_work) > 0
        return causing

    def sums(self, rows: Int64s, group: Int64s, count: int) -> pl.DataFrame:
        """One row per group: every piece of work, and every instant of the host, counts once in each group it is in.

        Args:
            rows: the nodes that are listed.
            group: shape (rows,), the group of each of them, from 0.
        """
        of_node = np.full(len(self.counted), NO_RANGE, dtype=np.int64)
        of_node[rows] = group
        counts = self.counted[rows]
        is_outermost = counts & ~self.forest.repeats(of_node)[rows]
        launched, backward = [self.launched_by], list(self.backward_of)
        no_nodes = np.full(len(self.launched_by), NO_RANGE)
        group_of = np.r_[of_node, NO_RANGE]
        columns = {
            "id": np.arange(count),
            "calls": sum_at(count, group, counts.astype(np.int64)),
            "host_ns": sum_at(count, group[is_outermost], self.host_ns[rows][is_outermost]),
            "gpu_ns": self._inside(of_node, launched, self.duration_ns, count),
            "gpu_self_ns": sum_at(count, group_of[self.launched_by], self.duration_ns),
            "backward_ns": self._inside(of_node, backward, self.duration_ns, count),
            "backward_self_ns": sum_at(count, group_of[(backward or [no_nodes])[0]], self.duration_ns),
            "total_ns": self._inside(of_node, [*launched, *backward], self.duration_ns, count),
            "kernels": self._inside(of_node, launched, self.is_kernel.astype(np.int64), count),
        }
        if self.api_ns is not None:
            columns["api_ns"] = sum_at(count, group[is_outermost], self.api_ns[rows][is_outermost])
        if self.host_self_ns is not None:
            columns["host_self_ns"] = sum_at(count, group[counts], self.host_self_ns[rows][counts])
        return pl.DataFrame(columns)

    def _inside(self, group: Int64s, starts: list[Int64s], amounts: Int64s, count: int) -> Int64s:
        """Amounts of the work by group, where it belongs to a node of the group or to a node inside one."""
        pairs = [np.empty(0, dtype=np.int64)]
        for start in starts:
            work = np.flatnonzero(start != NO_RANGE)
            node = start[work]
            while len(work):
                known = group[node] != NO_RANGE
                pairs.append(work[known] * count + group[node][known])
                node = self.forest.parent[node]
                work, node = work[node != NO_RANGE], node[node != NO_RANGE]
        # Sorting is faster than the hash table of `np.unique`, which such regular keys fill badly.
        ordered = np.sort(np.concatenate(pairs))
        distinct = ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered
        return sum_at(count, distinct % max(count, 1), amounts[distinct // max(count, 1)])


def counted(timeline: Timeline, window: Window, calls: pl.DataFrame, forest: Forest, launched_by: Int64s) -> Bools:
    """Mask of the host intervals that count in a window: those whose first GPU work begins in it.

    Intervals without GPU work count where they begin themselves. So a step has all of its operators, however far the
    host runs ahead of the GPU.

    Args:
        calls: a table of host intervals, the nodes of the forest.
        launched_by: the innermost interval that launched each row of `Timeline.work`; `NO_RANGE` for none.
    """
    in_range = timeline.lie_in_range(window, calls)
    if window.kind == "all":
        return in_range
    never = np.iinfo(np.int64).max
    first = np.full(calls.height, never)
    known = launched_by != NO_RANGE
    np.minimum.at(first, launched_by[known], timeline.work["start_ns"].to_numpy()[known])
    first = forest.earliest(first)
    counted_at = np.where(first == never, calls["start_ns"].to_numpy(), first)
    in_window: Bools = in_range & (counted_at >= window.start_ns) & (counted_at < window.end_ns)
    return in_window


def by_group(nodes: Nodes, code: Int64s, selected: Bools) -> pl.DataFrame:
    """One row per code (column `code`), most GPU time first.

    Args:
        selected: nodes that may be listed; those that neither count in the window nor have GPU work in it are left out.
    """
    rows = np.flatnonzero(selected & (nodes.counted | nodes.causing()))
    codes, group = np.unique(code[rows], return_inverse=True)
    table = nodes.sums(rows, group.reshape(-1), len(codes)).with_columns(pl.Series("code", codes, dtype=pl.Int64))
    return table.sort("total_ns", "host_ns", "code", descending=[True, True, False])


def by_path(nodes: Nodes, code: Int64s, selected: Bools) -> pl.DataFrame:
    """One row per path of codes, parents before their children. `code` is that of the path's last name."""
    rows = np.flatnonzero(selected & (nodes.counted | nodes.causing()))
    paths = name_paths(code, rows, nodes.forest.parent[rows])
    table = nodes.sums(rows, paths.path, len(paths.code)).with_columns(
        pl.Series("parent", paths.parent, dtype=pl.Int64).replace(NO_RANGE, None),
        pl.Series("depth", paths.depth, dtype=pl.Int64),
        pl.Series("code", paths.code, dtype=pl.Int64),
    )
    return depth_first(table, "total_ns", "host_ns", "code")


def sum_at(count: int, places: Int64s, amounts: Int64s) -> Int64s:
    """The amounts summed by place; those at `NO_RANGE` are left out."""
    known = places != NO_RANGE
    return sum_by(places[known], amounts[known], count)


#: Annotations of whole passes only name the phase; an optimizer's annotation names the part itself.
_WHOLE_PASSES = ("forward", "backward")


@dataclass(frozen=True, eq=False)
class Levels:
    """For each piece of work the finest known part of the program; arrays alongside `Places`."""

    level: npt.NDArray[np.int8]  #: position in `LEVELS`
    #: row of the module in `Trace.python_functions`, of the annotation or outermost operator in `Trace.ranges`;
    #: `NO_RANGE` for `none`
    row: Int64s


_ANNOTATION, _NONE = (np.int8(LEVELS.index(name)) for name in ("annotation", "none"))


def levels_of_work(timeline: Timeline, work_places: Places) -> Levels:
    """Module, else annotation, else outermost operator of each piece of work."""
    if not timeline.has_operators and not timeline.trace.python_functions.height:
        # The launch's range determines the level: computed per range instead of per piece of work.
        rows = np.arange(timeline.trace.ranges.height)
        nearest_place = nearest(timeline.forest.parent, _is_place(timeline), rows)
        row = look_up(nearest_place, work_places.range)
        return Levels(np.where(row != NO_RANGE, _ANNOTATION, _NONE), row)
    origin = work_places.origin
    # Backward work without a known forward operator stays where it was launched.
    operator = np.where(origin != NO_RANGE, origin, work_places.operator)
    innermost = np.where(work_places.linked, operator, work_places.range)
    annotation = nearest(timeline.forest.parent, _is_place(timeline), innermost)
    tree = timeline.operators
    operator_label = np.where(tree.is_operator, np.arange(1, len(tree.is_operator) + 1), 0)
    outermost = look_up(tree.forest.outermost_match(operator_label) - 1, operator)
    level = np.full(len(innermost), _NONE, dtype=np.int8)
    row = np.full(len(innermost), NO_RANGE, dtype=np.int64)
    for name, rows in (("operator", outermost), ("annotation", annotation), ("module", work_places.module)):
        known = rows != NO_RANGE
        level[known], row[known] = LEVELS.index(name), rows[known]
    return Levels(level, row)


def _nodes(
    timeline: Timeline, window: Window, node_of_work: Int64s, calls: pl.DataFrame, parent: Int64s, selected: Bools
) -> Nodes:
    """Nodes that are rows of a table of host intervals (`calls`), with the GPU work that belongs to them.

    Args:
        node_of_work: the innermost node that each row of `Timeline.work` belongs to, forward or backward.
    """
    forest = Forest.of(parent)
    launched = np.where(timeline.places.backward, NO_RANGE, node_of_work)
    backward = np.where(timeline.places.backward, node_of_work, NO_RANGE)
    rows = timeline.work_rows_in(window)
    work_places = timeline.places.part(rows)
    return Nodes(
        forest,
        counted(timeline, window, calls, forest, launched) & selected,
        (calls["end_ns"] - calls["start_ns"]).to_numpy(),
        work_places.duration_ns,
        work_places.is_kernel,
        launched[rows],
        (backward[rows],),
    )


def _is_place(timeline: Timeline) -> Bools:
    """Annotations that name a part of the program: neither a step nor a whole pass."""
    names = timeline.trace.ranges["name"]
    whole_passes = [PHASES.index(phase) + 1 for phase in _WHOLE_PASSES]
    is_place: Bools = (
        ~names_step(names) & ~np.isin(phase_numbers(names), whole_passes) & ~timeline.operators.is_operator
    )
    return is_place


def _codes(calls: pl.DataFrame) -> Int64s:
    return calls["name"].to_physical().cast(pl.Int64).to_numpy()


def _named(rows: pl.DataFrame, calls: pl.DataFrame, shown: Callable[[str], str] = str) -> pl.DataFrame:
    texts = pl.Series([shown(text) for text in name_categories(calls["name"])], dtype=pl.String)
    return rows.with_columns(texts.gather(rows["code"]).alias("name"))
