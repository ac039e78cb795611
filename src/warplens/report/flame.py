"""Icicle views: whose GPU time it is, from the program's parts down to kernels, and what changed between two profiles.

Each view is a tree of names. A node's time is the summed duration of the GPU work below it, so that a parent is the sum
of its children and the root is all work of the window, as in the tables of kernels, ranges and operators. Work belongs
to a module, range, operator or Python function by the same rules as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.attribution import is_operator
from warplens.analysis.categories import categories_of
from warplens.analysis.operators.places import module_name
from warplens.analysis.operators.statistics import LEVELS, levels_of_work
from warplens.analysis.ranges import plain_range_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, name_paths, nearest
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, Int64s, name_categories
from warplens.report import text as fmt
from warplens.report.document import Block, View
from warplens.report.overview.numbers import Numbers
from warplens.report.theme import category_fill

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


@dataclass(frozen=True)
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
    leaf, leaves = _leaves(timeline, work)
    contexts: list[tuple[str, str, list[_Paths]]] = []
    if timeline.has_operators:
        operators = _operators(timeline, rows)
        parts = _parts_of_program(timeline, rows)
        if parts:
            contexts.append(("program", "Modules and operators", [*parts, operators]))
        contexts.append(("operators", "Operators", [operators]))
    if timeline.trace.ranges.height and not is_operator(timeline.trace.ranges).all():
        contexts.append(("ranges", "Ranges", [_annotations(timeline, work)]))
    if timeline.trace.python_functions.height:
        contexts.append(("python", "Python functions", [_functions(timeline, rows)]))
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    steps = max(1, len(window.steps))
    found = []
    for id_, title, paths in contexts:
        if any((each.of_work != NO_RANGE).any() for each in paths):
            found.append(_flame(id_, title, paths, leaf, leaves, duration, steps))
    category = _Paths(leaf, [NO_RANGE] * len(leaves), [each[1] for each in leaves], "category")
    return (*found, _flame("kernels", "Kinds of work", [category], leaf, leaves, duration, steps))


def _leaves(timeline: Timeline, work: pl.DataFrame) -> tuple[Int64s, list[tuple[str, str, str | None, str]]]:
    """For each piece of work the number of its name; of each name label, kind of work, full name and colour."""
    trace = timeline.trace
    kernels = trace.kernels["full_name"]
    texts = name_categories(kernels)
    kinds = categories_of(pl.Series(texts, dtype=kernels.dtype)).cast(pl.String).to_list()
    leaves = []
    for text, kind in zip(texts, kinds, strict=True):
        label, full = fmt.shorten_kernel(text), fmt.printable(text)[:_LONGEST_NAME]
        leaves.append((label, fmt.category_title(kind), full if full != label else None, category_fill(kind)))
    code = np.zeros(work.height, dtype=np.int64)
    row = work["row"].to_numpy()
    kind = work["kind"]
    of_kernel = (kind == "kernel").to_numpy()
    code[of_kernel] = kernels.to_physical().to_numpy()[row[of_kernel]]
    of_copy = (kind == "copy").to_numpy()
    directions = trace.copies["direction"].to_physical().cast(pl.Int64).to_numpy()  # as bytes they could not count on
    code[of_copy] = directions[row[of_copy]] + len(leaves)
    leaves += [
        (f"copy {text}", "copies and fills", None, "transfer") for text in name_categories(trace.copies["direction"])
    ]
    for name, label, what, fill in (
        ("memset", "memory fill", "copies and fills", "transfer"),
        ("graph", "CUDA graph", "CUDA graphs, inside hidden", "graph"),
    ):
        code[(kind == name).to_numpy()] = len(leaves)
        leaves.append((label, what, None, fill))
    return code, leaves


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


@dataclass
class _Tree:
    """Nodes by their parent and name, in the order in which they were first met."""

    at: dict[tuple[int, str], int] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    full: list[str | None] = field(default_factory=list)
    fill: list[str] = field(default_factory=list)
    total_ns: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    def add(self, parent: int, name: str, full: str | None, fill: str, total_ns: int, count: int) -> int:
        """Adds an amount to a node, which is made if need be."""
        key = (parent, full or name)
        if key not in self.at:
            self.at[key] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
            self.full.append(full)
            self.fill.append(fill)
            self.total_ns.append(0)
            self.count.append(0)
        node = self.at[key]
        self.total_ns[node] += total_ns
        self.count[node] += count
        return node


def _flame(
    id_: str,
    title: str,
    paths: Sequence[_Paths],
    leaf: Int64s,
    leaves: Sequence[tuple[str, str, str | None, str]],
    duration: Int64s,
    steps: int,
) -> Flame:
    keys = [f"path{place}" for place in range(len(paths))]
    grouped = (
        pl.DataFrame(
            {**{key: each.of_work for key, each in zip(keys, paths, strict=True)}, "leaf": leaf, "ns": duration}
        )
        .group_by(*keys, "leaf")
        .agg(pl.col("ns").sum(), pl.len().alias("count"))
        .sort("ns", *keys, "leaf", descending=[True, *[False] * (len(keys) + 1)])
    )
    tree = _Tree()
    # One turn for each distinct place of a distinct kernel, not for each kernel.
    for *places, name, total_ns, count in grouped.iter_rows():
        above = NO_RANGE
        for place, each in zip(places, paths, strict=True):
            for node in _down_to(each.parent, place):
                fill = leaves[name][3] if each.kind == "category" else _FILLS[each.kind]
                above = tree.add(above, each.name[node], None, fill, total_ns, count)
        label, _, full, fill = leaves[name]
        if above == NO_RANGE:
            above = tree.add(above, _OUTSIDE[id_], None, "other", total_ns, count)
        tree.add(above, label, full, fill, total_ns, count)
    total = int(duration.sum())
    return Flame(id_, title, _without_slivers(tree, total), total, steps)


def _down_to(parent: Sequence[int], node: int) -> list[int]:
    """The nodes from an outermost one down to this one; none for `NO_RANGE`."""
    way = []
    while node != NO_RANGE:
        way.append(node)
        node = parent[node]
    return way[::-1]


def _without_slivers(tree: _Tree, total_ns: int) -> tuple[Node, ...]:
    """The nodes, those that are too small to be seen put together with the small ones beside them."""
    least = _LEAST_SHARE * total_ns
    small: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parent):
        if tree.total_ns[node] < least:
            small.setdefault(parent, []).append(node)
    number: dict[int, int] = {NO_RANGE: NO_RANGE}
    nodes: list[Node] = []
    for node, parent in enumerate(tree.parent):
        lone = tree.total_ns[node] < least and len(small[parent]) == 1
        if parent in number and (tree.total_ns[node] >= least or lone):
            number[node] = len(nodes)
            nodes.append(
                Node(
                    number[parent],
                    tree.name[node],
                    tree.full[node],
                    tree.fill[node],
                    tree.total_ns[node],
                    tree.count[node],
                )
            )
    for parent, members in small.items():
        if parent in number and len(members) > 1:
            spent, count = (sum(column[node] for node in members) for column in (tree.total_ns, tree.count))
            nodes.append(Node(number[parent], f"{len(members)} smaller", None, "other", spent, count))
    return tuple(nodes)


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
    spent: list[dict[int, int]] = [{}, {}]
    for side, flame in enumerate((before, after)):
        number = {NO_RANGE: NO_RANGE}
        for place, node in enumerate(flame.nodes):
            name = "smaller" if node.name.endswith(" smaller") else node.name
            at = tree.add(number[node.parent], name, node.full, node.fill, side * node.total_ns, side * node.count)
            number[place] = at
            spent[side][at] = spent[side].get(at, 0) + node.total_ns
    everything = tuple(
        Node(*each)
        for each in zip(tree.parent, tree.name, tree.full, tree.fill, tree.total_ns, tree.count, strict=True)
    )
    first, second = (
        tuple(spent[side].get(place, 0) / flame.steps for place in range(len(everything)))
        for side, flame in enumerate((before, after))
    )
    return Difference(Flame(after.id, after.title, everything, after.total_ns, after.steps), first, second)


def flame_blocks(numbers: Numbers) -> Iterator[Block]:
    """Whose GPU time it is, as trees to zoom into."""
    found = flames(numbers.timeline, numbers.window)
    if found:
        yield View(
            id="flame-view",
            kind="flame",
            caption="GPU time by part of the program, down to kernels",
            alt=_in_words(found),
            data={"views": [_data(flame) for flame in found]},
        )


def difference_blocks(before: tuple[Timeline, Window], after: tuple[Timeline, Window]) -> Iterator[Block]:
    """What got slower and what faster, as trees to zoom into; of the views that both profiles have."""
    first = {flame.id: flame for flame in flames(*before)}
    both = [flame_difference(first[flame.id], flame) for flame in flames(*after) if flame.id in first]
    if both:
        yield View(
            id="flame-view",
            kind="flame",
            caption="GPU time of a step, before and after: red takes longer, blue less",
            alt=_difference_in_words(both),
            data={"views": [{**_data(each.flame), "before": each.before_ns, "after": each.after_ns} for each in both]},
        )


def _data(flame: Flame) -> dict[str, Any]:
    fills = sorted({node.fill for node in flame.nodes})
    return {
        "id": flame.id,
        "title": flame.title,
        "steps": flame.steps,
        "total": flame.total_ns,
        "fills": fills,
        "nodes": [
            [
                node.parent,
                node.name,
                fills.index(node.fill),
                node.total_ns,
                node.count,
                *([node.full] if node.full else []),
            ]
            for node in flame.nodes
        ],
    }


def _in_words(found: Sequence[Flame]) -> str:
    first = found[0]
    outer = sorted((node for node in first.nodes if node.parent == NO_RANGE), key=lambda node: -node.total_ns)
    named = ", ".join(f"{node.name} {fmt.share(node.total_ns / max(first.total_ns, 1))}" for node in outer[:3])
    return (
        f"{first.title} by GPU time, {fmt.duration(first.total_ns)} in all; the largest: {named}. Arrow keys go from "
        "part to part, Enter zooms in, Escape out. The tables below have the same sums."
    )


def _difference_in_words(found: Sequence[Difference]) -> str:
    each = found[0]
    outer = [place for place, node in enumerate(each.flame.nodes) if node.parent == NO_RANGE]
    before, after = (sum(side[place] for place in outer) for side in (each.before_ns, each.after_ns))
    return f"GPU time of a step: {fmt.duration(before)} before, {fmt.duration(after)} after."
