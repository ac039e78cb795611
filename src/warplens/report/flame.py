"""Icicle charts: GPU time by part of the program, down to kernels, and the difference between two profiles.

Each view is a tree of names. The time of a node is the summed duration of the GPU work below it: a parent is the sum of
its children, and the root is all work of the window. Work is attributed to modules, ranges, operators and Python
functions by the same rules as in their tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.operators.places import module_name
from warplens.analysis.operators.statistics import LEVELS, levels_of_work
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, name_paths, nearest
from warplens.analysis.window import Window, plain_range_name
from warplens.profile.schema import Bools, Int64s, name_categories
from warplens.report import text as fmt
from warplens.report.document import Block, View
from warplens.report.overview.numbers import Numbers
from warplens.report.timeline import WorkName, named_work

#: Nodes below this share of the window's work are merged with each other: they would be thinner than a pixel.
_LEAST_SHARE: Final = 1 / 2_000

#: Names are cut to this many characters.
_LONGEST_NAME: Final = 400

#: Colour tokens of the parts of the program; GPU work has the colour of its category.
_FILLS: Final = {"module": "softmax", "range": "reduction", "operator": "gather-scatter", "function": "sort-topk"}

#: Name of the node for work without a place in a view.
_OUTSIDE: Final = {
    "program": "outside all operators",
    "operators": "outside all operators",
    "ranges": "outside all ranges",
    "python": "outside all functions",
}


@dataclass
class Node:
    """A name in a tree."""

    parent: int  #: index of the parent; −1 for a root
    name: str  #: as displayed
    full: str | None  #: the full name, if `name` is shortened
    fill: str  #: colour token
    total_ns: int  #: GPU time of the work below
    count: int  #: number of GPU work items below


@dataclass(frozen=True)
class Flame:
    """One view; parents precede their children."""

    id: str  #: `program`, `ranges`, `operators`, `python` or `kernels`
    title: str  #: names the levels above the kernels
    nodes: tuple[Node, ...]
    total_ns: int  #: all GPU work of the window, the sum of the roots
    steps: float  #: steps of the window, with the parts of cut ones; at least 1


@dataclass(frozen=True, eq=False)
class _Paths:
    """A tree of names, and the node of each GPU work item in it."""

    of_work: Int64s  # node of each work item, or `NO_RANGE`
    parent: list[int]  # parent of each node, or `NO_RANGE`
    name: list[str]  # name of each node
    kind: str  # key of `_FILLS`, or `category`


def flames(timeline: Timeline, window: Window) -> tuple[Flame, ...]:
    """The views that the profile has data for, the most informative first; none without GPU work.

    Only work that begins inside the window counts.
    """
    rows = timeline.work_rows_in(window)
    work = (
        timeline.work[rows] if not isinstance(rows, slice) else timeline.work.slice(rows.start, rows.stop - rows.start)
    )
    if not work.height:
        return ()
    leaf, leaves = named_work(timeline, work, _LONGEST_NAME)
    contexts: list[tuple[str, str, list[_Paths]]] = []
    if timeline.has_operators:
        tree, launched_by = timeline.operators, timeline.places.part(rows).operator
        names = timeline.trace.ranges["name"]
        operators = _paths(names, tree.is_operator, tree.forest.parent, launched_by, "operator")
        if parts := _parts_of_program(timeline, rows):
            contexts.append(("program", "Modules and operators", [*parts, operators]))
        contexts.append(("operators", "Operators", [operators]))
    if timeline.trace.ranges.height and not is_operator(timeline.trace.ranges).all():
        contexts.append(("ranges", "Ranges", [_annotations(timeline, work)]))
    if timeline.trace.python_functions.height:
        contexts.append(("python", "Python functions", [_functions(timeline, rows)]))
    contexts = [context for context in contexts if any((paths.of_work != NO_RANGE).any() for paths in context[2])]
    category = _Paths(leaf, [NO_RANGE] * len(leaves), [name.kind for name in leaves], "category")
    contexts.append(("kernels", "Kinds of work", [category]))
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    total, steps = int(duration.sum()), max(1, window.step_count)
    return tuple(
        Flame(id_, title, _nodes(id_, paths, leaf, leaves, duration), total, steps) for id_, title, paths in contexts
    )


def _paths(names: pl.Series, wanted: Bools, parent: Int64s, of_work: Int64s, kind: str) -> _Paths:
    """The tree of the names of the `wanted` rows of a table, with the node of each work item.

    `parent` is the row of each row's parent, and `of_work` the row that each work item belongs to.
    """
    texts = [_plain(text) for text in name_categories(names)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    by_code = np.array([numbers[text] for text in texts], dtype=np.int64)
    rows = np.flatnonzero(wanted)
    tree = name_paths(by_code[names.to_physical().to_numpy()], rows, parent[rows])
    path = np.full(len(wanted) + 1, NO_RANGE, dtype=np.int64)
    path[rows] = tree.path
    labels = list(numbers)
    return _Paths(path[of_work], tree.parent.tolist(), [labels[code] for code in tree.code.tolist()], kind)


def _plain(text: str) -> str:
    return fmt.printable(module_name(text) or plain_range_name(text))[:_LONGEST_NAME]


def _annotations(timeline: Timeline, work: pl.DataFrame) -> _Paths:
    ranges = timeline.trace.ranges
    annotated = ~is_operator(ranges)
    parents = timeline.forest.parent
    range_of_work = nearest(parents, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
    return _paths(ranges["name"], annotated, nearest(parents, annotated, parents), range_of_work, "range")


def _parts_of_program(timeline: Timeline, rows: slice | Int64s) -> list[_Paths]:
    """The trees of modules, and of annotations for work without a module, as in `operators --by module`."""
    levels = levels_of_work(timeline, timeline.places)
    level, row = levels.level[rows], levels.row[rows]
    calls, frames, ranges = timeline.trace.python_functions, timeline.python, timeline.trace.ranges
    parts = []
    if (level == LEVELS.index("module")).any():
        row_of_work = np.where(level == LEVELS.index("module"), row, NO_RANGE)
        parts.append(_paths(calls["name"], frames.is_module, frames.module_parent, row_of_work, "module"))
    if (level == LEVELS.index("annotation")).any():
        row_of_work = np.where(level == LEVELS.index("annotation"), row, NO_RANGE)
        is_listed = np.zeros(ranges.height, dtype=np.bool_)
        is_listed[levels.row[levels.level == LEVELS.index("annotation")]] = True
        parents = timeline.forest.parent
        parts.append(_paths(ranges["name"], is_listed, nearest(parents, is_listed, parents), row_of_work, "range"))
    return parts


def _functions(timeline: Timeline, rows: slice | Int64s) -> _Paths:
    calls, frames = timeline.trace.python_functions, timeline.python
    wanted = frames.enclosing_function == np.arange(calls.height)
    return _paths(calls["name"], wanted, frames.function_parent, timeline.places.part(rows).function, "function")


class _Tree:
    """Nodes in the order in which they were added, distinct by parent and name."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._index: dict[tuple[int, str], int] = {}

    def add(self, parent: int, name: str, full: str | None, fill: str, total_ns: int, count: int) -> int:
        """Add time and count to a node, which is created if it is new, and return its index."""
        index = self._index.setdefault((parent, full or name), len(self.nodes))
        if index == len(self.nodes):
            self.nodes.append(Node(parent, name, full, fill, 0, 0))
        self.nodes[index].total_ns += total_ns
        self.nodes[index].count += count
        return index


def _nodes(
    id_: str, paths: Sequence[_Paths], leaf: Int64s, leaves: Sequence[WorkName], duration: Int64s
) -> tuple[Node, ...]:
    """The nodes of a view: the trees of `paths` nested in order, with the kernels (`leaves`) below them."""
    keys = [f"path{number}" for number in range(len(paths))]
    columns = {key: tree.of_work for key, tree in zip(keys, paths, strict=True)}
    grouped = (
        pl.DataFrame({**columns, "leaf": leaf, "ns": duration})
        .group_by(*keys, "leaf")
        .agg(pl.col("ns").sum(), pl.len().alias("count"))
        .sort("ns", *keys, "leaf", descending=[True, *[False] * (len(keys) + 1)])
    )
    merged = _Tree()
    # One iteration per distinct path and kernel, not per kernel launch.
    for *path_nodes, leaf_index, total_ns, count in grouped.iter_rows():
        parent, name = NO_RANGE, leaves[leaf_index]
        for path_node, tree in zip(path_nodes, paths, strict=True):
            fill = name.fill if tree.kind == "category" else _FILLS[tree.kind]
            for node in _down_to(tree.parent, path_node):
                parent = merged.add(parent, tree.name[node], None, fill, total_ns, count)
        if parent == NO_RANGE:
            parent = merged.add(parent, _OUTSIDE[id_], None, "other", total_ns, count)
        merged.add(parent, name.label, name.full, name.fill, total_ns, count)
    return _without_slivers(merged.nodes, _LEAST_SHARE * int(duration.sum()))


def _down_to(parent: Sequence[int], node: int) -> list[int]:
    """The nodes from the root down to this one; none for `NO_RANGE`."""
    path = []
    while node != NO_RANGE:
        path.append(node)
        node = parent[node]
    return path[::-1]


def _without_slivers(nodes: Sequence[Node], least: float) -> tuple[Node, ...]:
    """The nodes, with several siblings below `least` (ns) merged into one."""
    small: dict[int, list[Node]] = {}
    for node in nodes:
        if node.total_ns < least:
            small.setdefault(node.parent, []).append(node)
    new_index: dict[int, int] = {NO_RANGE: NO_RANGE}
    kept: list[Node] = []
    for index, node in enumerate(nodes):
        if node.parent in new_index and (node.total_ns >= least or len(small[node.parent]) == 1):
            new_index[index] = len(kept)
            kept.append(replace(node, parent=new_index[node.parent]))
    for parent, members in small.items():
        if parent in new_index and len(members) > 1:
            total_ns, count = sum(node.total_ns for node in members), sum(node.count for node in members)
            kept.append(Node(new_index[parent], f"{len(members)} smaller", None, "other", total_ns, count))
    return tuple(kept)


@dataclass(frozen=True)
class Difference:
    """Two views of the same kind compared, with times per step of each profile."""

    flame: Flame  #: names and parents of the nodes of both; its times are those of the profile after the change
    #: before_ns, after_ns: time per step of each node
    before_ns: tuple[float, ...]
    after_ns: tuple[float, ...]


def flame_difference(before: Flame, after: Flame) -> Difference:
    """The time per step of each node before and after; 0 if the node is missing.

    Nodes that are merged because they are too small in one of the profiles count as "smaller" there.
    """
    tree = _Tree()
    times_ns: list[dict[int, float]] = [{}, {}]
    for side, flame in enumerate((before, after)):
        new_index = {NO_RANGE: NO_RANGE}
        for old, node in enumerate(flame.nodes):
            name = "smaller" if node.name.endswith(" smaller") else node.name
            new = tree.add(new_index[node.parent], name, node.full, node.fill, side * node.total_ns, side * node.count)
            new_index[old] = new
            times_ns[side][new] = times_ns[side].get(new, 0) + node.total_ns
    before_ns, after_ns = (
        tuple(times_ns[side].get(index, 0) / flame.steps for index in range(len(tree.nodes)))
        for side, flame in enumerate((before, after))
    )
    return Difference(replace(after, nodes=tuple(tree.nodes)), before_ns, after_ns)


def flame_blocks(numbers: Numbers) -> Iterator[Block]:
    """GPU time by part of the program, as icicle charts."""
    views = flames(numbers.timeline, numbers.window)
    if not views:
        return
    first = views[0]
    roots = sorted((node for node in first.nodes if node.parent == NO_RANGE), key=lambda node: -node.total_ns)
    largest = ", ".join(f"{node.name} {fmt.share(node.total_ns / max(first.total_ns, 1))}" for node in roots[:3])
    yield View(
        id="flame-view",
        kind="flame",
        caption="GPU time by part of the program, down to kernels",
        alt=f"{first.title} by GPU time, {fmt.duration(first.total_ns)} in all; the largest: {largest}. Arrow keys go "
        "from part to part, Enter zooms in, Escape out. The tables below have the same sums.",
        data={"views": [_data(flame) for flame in views]},
    )


def difference_blocks(before: tuple[Timeline, Window], after: tuple[Timeline, Window]) -> Iterator[Block]:
    """Changes of GPU time per step, as icicle charts, for the views that both profiles have."""
    first = {flame.id: flame for flame in flames(*before)}
    both = [flame_difference(first[flame.id], flame) for flame in flames(*after) if flame.id in first]
    if not both:
        return
    roots = [index for index, node in enumerate(both[0].flame.nodes) if node.parent == NO_RANGE]
    before_ns, after_ns = (sum(side[index] for index in roots) for side in (both[0].before_ns, both[0].after_ns))
    yield View(
        id="flame-view",
        kind="flame",
        caption="GPU time of a step, before and after: red takes longer, blue less",
        alt=f"GPU time of a step: {fmt.duration(before_ns)} before, {fmt.duration(after_ns)} after.",
        data={"views": [{**_data(diff.flame), "before": diff.before_ns, "after": diff.after_ns} for diff in both]},
    )


def _data(flame: Flame) -> dict[str, Any]:
    fills = sorted({node.fill for node in flame.nodes})
    nodes = (
        (node.parent, node.name, fills.index(node.fill), node.total_ns, node.count, node.full) for node in flame.nodes
    )
    return {
        "id": flame.id,
        "title": flame.title,
        "steps": flame.steps,
        "total": flame.total_ns,
        "fills": fills,
        "nodes": [node if node[-1] else node[:-1] for node in nodes],
    }
