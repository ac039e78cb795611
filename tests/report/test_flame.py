"""Icicle views: their sums are those of the tables of kernels, ranges and operators, to the nanosecond."""

from __future__ import annotations

import polars as pl
import pytest

import warplens
from tests import shipped
from warplens.analysis.kernels import statistics_of
from warplens.analysis.operators.statistics import operators_by
from warplens.analysis.ranges import range_statistics
from warplens.analysis.timeline import Timeline
from warplens.report.flame import Flame, flame_difference, flames

PROFILES = {
    "ranges": shipped.capture("lm_small_ctx256_train"),
    "copies": shipped.capture("copies_and_syncs"),
    "operators": shipped.FOLDERS[1] / "pairs/development/bert_checkpointing__before.pt.trace.json.gz",
}


@pytest.fixture(scope="module", params=PROFILES)
def timeline(request):
    return Timeline(warplens.read(PROFILES[request.param]))


def _paths(flame: Flame) -> dict[tuple[str, ...], int]:
    """Time by path of names."""
    paths: list[tuple[str, ...]] = []
    for node in flame.nodes:
        paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.full or node.name))
    return {path: node.total_ns for path, node in zip(paths, flame.nodes, strict=True)}


def test_every_view_divides_all_work_of_the_window(timeline):
    window = timeline.window()
    work = timeline.work_in(window)
    found = flames(timeline, window)
    assert found
    for flame in found:
        assert flame.total_ns == (work["end_ns"] - work["start_ns"]).sum()
        inside: dict[int, tuple[int, int]] = {}
        for node in flame.nodes:
            time, count = inside.get(node.parent, (0, 0))
            inside[node.parent] = time + node.total_ns, count + node.count
        assert inside[-1] == (flame.total_ns, work.height)
        for number, sums in inside.items():
            if number >= 0:
                assert sums == (flame.nodes[number].total_ns, flame.nodes[number].count)


def test_kernels_have_the_times_of_their_table(timeline):
    window = timeline.window()
    table = statistics_of(timeline.kernels_in(window), "full_name")
    times = dict(table.select("full_name", "total_ns").iter_rows())
    shown = {path[-1]: spent for path, spent in _paths(flames(timeline, window)[-1]).items() if path[-1] in times}
    assert shown
    assert all(times[name] == spent for name, spent in shown.items())


def test_ranges_have_the_times_of_their_tree(timeline):
    window = timeline.window()
    view = next((flame for flame in flames(timeline, window) if flame.id == "ranges"), None)
    table = range_statistics(timeline, window, "tree", operators=False)
    if view is None:
        assert not table.height
        return
    names: dict[int, tuple[str, ...]] = {}
    paths = _paths(view)
    compared = 0
    for id_, parent, name, gpu_ns in table.select("id", "parent", "name", "gpu_ns").iter_rows():
        names[id_] = (*names.get(parent, ()), name)
        if names[id_] in paths:
            assert paths[names[id_]] == gpu_ns
            compared += 1
    assert compared > 0


def test_modules_and_functions_have_the_times_of_the_operators_table(timeline):
    window = timeline.window()
    views = {flame.id: flame for flame in flames(timeline, window)}
    if "program" not in views:
        assert not timeline.has_operators or "operators" in views
        return
    table = operators_by(timeline, window, "module").filter(pl.col("level").is_in(["module", "annotation"]))
    names: dict[int, tuple[str, ...]] = {}
    paths = _paths(views["program"])
    compared = 0
    for id_, parent, name, total_ns in table.select("id", "parent", "name", "total_ns").iter_rows():
        names[id_] = (*names.get(parent, ()), name)
        if names[id_] in paths:
            assert paths[names[id_]] == total_ns
            compared += 1
    assert compared > 0


def test_a_difference_is_that_of_the_times_of_a_step():
    before, after = (
        Timeline(warplens.read(shipped.capture(f"deit224_bs1_{name}"))) for name in ("baseline", "topk0.1")
    )
    for first in flames(before, before.window()):
        second = next(flame for flame in flames(after, after.window()) if flame.id == first.id)
        found = flame_difference(first, second)
        outer = [place for place, node in enumerate(found.flame.nodes) if node.parent < 0]
        assert sum(found.before_ns[place] for place in outer) == pytest.approx(first.total_ns / first.steps)
        assert sum(found.after_ns[place] for place in outer) == pytest.approx(second.total_ns / second.steps)
        # What only the reduced model runs took nothing before.
        if first.id == "kernels":
            new = [place for place, spent in enumerate(found.before_ns) if spent == 0]
            assert any(
                "sort" in found.flame.nodes[place].name.lower() or "topk" in found.flame.nodes[place].name.lower()
                for place in new
            )
