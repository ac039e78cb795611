"""Icicle views: whose GPU time it is, from the program's parts down to kernels, and what changed between two profiles.

Each view is a tree of names. A node's time is the summed duration of the GPU work below it, so that a parent is the sum
of its children and the root is all work of the window, as in the tables of kernels, ranges and operators. Work belongs
to a module, range, operator or Python function by the same rules as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.operators.places import module_name
from warplens.analysis.operators.statistics import LEVELS, levels_of_work
from warplens.analysis.ranges import plain_range_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, name_paths, nearest
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, Int64s, name_categories
from warplens.report import text as fmt
from warplens.report.document import Block, View
from warplens.report.overview.numbers import Numbers
from warplens.report.timeline import WorkName, named_work

#: Nodes below this share of the window's work stand together as one: they would be thinner than a pixel.
_LEAST_SHARE: Final = 1 / 2_000

#: Longer names are cut.
_LONGEST_NAME: Final = 400

#: What the parts of the program are coloured like; work has the colour of its category.
_FILLS: Final = {"module": "softmax", "range": "reduction", "operator": "gather-scatter", "function": "sort-topk"}

#: Where work stands that belongs to nothing in a view.
_OUTSIDE: Final = {
    "program": "outside all operators",
    "operators": "outside all operators",
    "ranges": "outside all ranges",
    "python": "outside all functions",
}


@dataclass
class Node:
    """A name in a tree."""

    parent: int  #: number of the node above; −1 for an outermost one
    name: str  #: as it is shown; `full` where that is shortened
    full: str | None
    fill: str  #: colour token
    total_ns: int  #: GPU time of the work below
    count: int  #: pieces of that work


@dataclass(frozen=True)
class Flame:
    """One view: parents stand before their children."""

    id: str  #: `program`, `ranges`, `operators`, `python` or `kernels`
    title: str  #: what leads to kernels in it
    nodes: tuple[Node, ...]
    total_ns: int  #: the sum of the outermost ones, which is all GPU work of the window
    steps: int  #: repetitions that the window holds; 1 where it has none


@dataclass(frozen=True, eq=False)
class _Paths:
    """Where each piece of work stands in a tree of paths (`NO_RANGE`: nowhere), and that tree."""

    of_work: Int64s
    parent: list[int]
    name: list[str]
    kind: str


def flames(timeline: Timeline, window: Window) -> tuple[Flame, ...]:
    """The views that the profile has something to show in, the most telling first; none without GPU work.

    Args:
        window: only work that begins inside it counts.
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
        operators = _operators(timeline, rows)
        if parts := _parts_of_program(timeline, rows):
            contexts.append(("program", "Modules and operators", [*parts, operators]))
        contexts.append(("operators", "Operators", [operators]))
    if timeline.trace.ranges.height and not is_operator(timeline.trace.ranges).all():
        contexts.append(("ranges", "Ranges", [_annotations(timeline, work)]))
    if timeline.trace.python_functions.height:
        contexts.append(("python", "Python functions", [_functions(timeline, rows)]))
    contexts = [each for each in contexts if any((paths.of_work != NO_RANGE).any() for paths in each[2])]
    category = _Paths(leaf, [NO_RANGE] * len(leaves), [name.kind for name in leaves], "category")
    contexts.append(("kernels", "Kinds of work", [category]))
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    total, steps = int(duration.sum()), max(1, len(window.steps))
    return tuple(
        Flame(id_, title, _nodes(id_, paths, leaf, leaves, duration), total, steps) for id_, title, paths in contexts
    )


def _paths(names: pl.Series, wanted: Bools, parent: Int64s, of_work: Int64s, kind: str) -> _Paths:
    """The tree of the names of some rows of a table, and where the work that belongs to those rows stands in it."""
    texts = [_plain(text) for text in name_categories(names)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    by_code = np.array([numbers[text] for text in texts], dtype=np.int64)
    rows = np.flatnonzero(wanted)
    found = name_paths(by_code[names.to_physical().to_numpy()], rows, parent[rows])
    path = np.full(len(wanted) + 1, NO_RANGE, dtype=np.int64)
    path[rows] = found.path
    labels = list(numbers)
    return _Paths(path[of_work], found.parent.tolist(), [labels[code] for code in found.code.tolist()], kind)


def _plain(text: str) -> str:
    return fmt.printable(module_name(text) or plain_range_name(text))[:_LONGEST_NAME]


def _annotations(timeline: Timeline, work: pl.DataFrame) -> _Paths:
    ranges = timeline.trace.ranges
    annotated = ~is_operator(ranges)
    above = timeline.forest.parent
    held = nearest(above, annotated, work["range"].fill_null(NO_RANGE).to_numpy())
    return _paths(ranges["name"], annotated, nearest(above, annotated, above), held, "range")


def _operators(timeline: Timeline, rows: slice | Int64s) -> _Paths:
    tree = timeline.operators
    launched_by = timeline.places.part(rows).operator
    return _paths(timeline.trace.ranges["name"], tree.is_operator, tree.forest.parent, launched_by, "operator")


def _parts_of_program(timeline: Timeline, rows: slice | Int64s) -> list[_Paths]:
    """Modules, and annotations where no module is known: what `operators --by module` lists as trees."""
    levels = levels_of_work(timeline, timeline.places)
    level, row = levels.level[rows], levels.row[rows]
    calls, frames, ranges = timeline.trace.python_functions, timeline.python, timeline.trace.ranges
    parts = []
    if (level == LEVELS.index("module")).any():
        mine = np.where(level == LEVELS.index("module"), row, NO_RANGE)
        parts.append(_paths(calls["name"], frames.is_module, frames.module_parent, mine, "module"))
    if (level == LEVELS.index("annotation")).any():
        mine = np.where(level == LEVELS.index("annotation"), row, NO_RANGE)
        named = np.zeros(ranges.height, dtype=np.bool_)
        named[levels.row[levels.level == LEVELS.index("annotation")]] = True
        above = timeline.forest.parent
        parts.append(_paths(ranges["name"], named, nearest(above, named, above), mine, "range"))
    return parts


def _functions(timeline: Timeline, rows: slice | Int64s) -> _Paths:
    calls, frames = timeline.trace.python_functions, timeline.python
    wanted = frames.enclosing_function == np.arange(calls.height)
    return _paths(calls["name"], wanted, frames.function_parent, timeline.places.part(rows).function, "function")


class _Tree:
    """Nodes by their parent and name, in the order in which they were first met."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._at: dict[tuple[int, str], int] = {}

    def add(self, parent: int, name: str, full: str | None, fill: str, total_ns: int, count: int) -> int:
        """Adds an amount to a node, which is made if need be; returns its number."""
        place = self._at.setdefault((parent, full or name), len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(Node(parent, name, full, fill, 0, 0))
        self.nodes[place].total_ns += total_ns
        self.nodes[place].count += count
        return place


def _nodes(
    id_: str, paths: Sequence[_Paths], leaf: Int64s, leaves: Sequence[WorkName], duration: Int64s
) -> tuple[Node, ...]:
    """The nodes of a view: the paths one below the other, kernels at their ends."""
    keys = [f"path{place}" for place in range(len(paths))]
    columns = {key: each.of_work for key, each in zip(keys, paths, strict=True)}
    grouped = (
        pl.DataFrame({**columns, "leaf": leaf, "ns": duration})
        .group_by(*keys, "leaf")
        .agg(pl.col("ns").sum(), pl.len().alias("count"))
        .sort("ns", *keys, "leaf", descending=[True, *[False] * (len(keys) + 1)])
    )
    tree = _Tree()
    # One turn for each distinct place of a distinct kernel, not for each kernel.
    for *places, number, total_ns, count in grouped.iter_rows():
        above, name = NO_RANGE, leaves[number]
        for place, each in zip(places, paths, strict=True):
            fill = name.fill if each.kind == "category" else _FILLS[each.kind]
            for node in _down_to(each.parent, place):
                above = tree.add(above, each.name[node], None, fill, total_ns, count)
        if above == NO_RANGE:
            above = tree.add(above, _OUTSIDE[id_], None, "other", total_ns, count)
        tree.add(above, name.label, name.full, name.fill, total_ns, count)
    return _without_slivers(tree.nodes, _LEAST_SHARE * int(duration.sum()))


def _down_to(parent: Sequence[int], node: int) -> list[int]:
    """The nodes from an outermost one down to this one; none for `NO_RANGE`."""
    way = []
    while node != NO_RANGE:
        way.append(node)
        node = parent[node]
    return way[::-1]


def _without_slivers(nodes: Sequence[Node], least: float) -> tuple[Node, ...]:
    """The nodes, those that are too small to be seen put together with the small ones beside them."""
    small: dict[int, list[Node]] = {}
    for node in nodes:
        if node.total_ns < least:
            small.setdefault(node.parent, []).append(node)
    number: dict[int, int] = {NO_RANGE: NO_RANGE}
    kept: list[Node] = []
    for place, node in enumerate(nodes):
        if node.parent in number and (node.total_ns >= least or len(small[node.parent]) == 1):
            number[place] = len(kept)
            kept.append(replace(node, parent=number[node.parent]))
    for parent, members in small.items():
        if parent in number and len(members) > 1:
            spent, count = sum(node.total_ns for node in members), sum(node.count for node in members)
            kept.append(Node(number[parent], f"{len(members)} smaller", None, "other", spent, count))
    return tuple(kept)


@dataclass(frozen=True)
class Difference:
    """Two views of the same kind, held against each other. Times are those of a step of each profile."""

    flame: Flame  #: names and parents of the nodes of both; its times are those of the profile after the change
    #: before_ns, after_ns: of each node, a step
    before_ns: tuple[float, ...]
    after_ns: tuple[float, ...]


def flame_difference(before: Flame, after: Flame) -> Difference:
    """What each node took before and after; a node that one of them lacks took nothing there.

    What is too small to be shown in one of the two profiles has no names there: it counts under "smaller".
    """
    tree = _Tree()
    spent: list[dict[int, float]] = [{}, {}]
    for side, flame in enumerate((before, after)):
        number = {NO_RANGE: NO_RANGE}
        for place, node in enumerate(flame.nodes):
            name = "smaller" if node.name.endswith(" smaller") else node.name
            at = tree.add(number[node.parent], name, node.full, node.fill, side * node.total_ns, side * node.count)
            number[place] = at
            spent[side][at] = spent[side].get(at, 0) + node.total_ns
    first, second = (
        tuple(spent[side].get(place, 0) / flame.steps for place in range(len(tree.nodes)))
        for side, flame in enumerate((before, after))
    )
    return Difference(replace(after, nodes=tuple(tree.nodes)), first, second)


def flame_blocks(numbers: Numbers) -> Iterator[Block]:
    """Whose GPU time it is, as trees to zoom into."""
    found = flames(numbers.timeline, numbers.window)
    if not found:
        return
    first = found[0]
    outer = sorted((node for node in first.nodes if node.parent == NO_RANGE), key=lambda node: -node.total_ns)
    named = ", ".join(f"{node.name} {fmt.share(node.total_ns / max(first.total_ns, 1))}" for node in outer[:3])
    yield View(
        id="flame-view",
        kind="flame",
        caption="GPU time by part of the program, down to kernels",
        alt=f"{first.title} by GPU time, {fmt.duration(first.total_ns)} in all; the largest: {named}. Arrow keys go "
        "from part to part, Enter zooms in, Escape out. The tables below have the same sums.",
        data={"views": [_data(flame) for flame in found]},
    )


def difference_blocks(before: tuple[Timeline, Window], after: tuple[Timeline, Window]) -> Iterator[Block]:
    """What got slower and what faster, as trees to zoom into; of the views that both profiles have."""
    first = {flame.id: flame for flame in flames(*before)}
    both = [flame_difference(first[flame.id], flame) for flame in flames(*after) if flame.id in first]
    if not both:
        return
    outer = [place for place, node in enumerate(both[0].flame.nodes) if node.parent == NO_RANGE]
    was, now = (sum(side[place] for place in outer) for side in (both[0].before_ns, both[0].after_ns))
    yield View(
        id="flame-view",
        kind="flame",
        caption="GPU time of a step, before and after: red takes longer, blue less",
        alt=f"GPU time of a step: {fmt.duration(was)} before, {fmt.duration(now)} after.",
        data={"views": [{**_data(each.flame), "before": each.before_ns, "after": each.after_ns} for each in both]},
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
