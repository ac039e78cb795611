"""Device-projected ranges: which range GPU work belongs to, and the sums over names and paths.

CUDA calls are traced to the operator, the range and the line of the program that they come from.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import AUTOGRAD_THREAD, call, copy, kernel, launch, nvtx, python_call, trace
from tests.analysis.operators.programs import annotation, operator, program
from warplens.analysis import trees
from warplens.analysis.code import code_places, is_own_line
from warplens.analysis.intervals import edges_until
from warplens.analysis.ranges import projected_spans, range_coverage, range_instances, range_statistics
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, range_forest
from warplens.analysis.window import plain_range_name
from warplens.profile import Trace


def _statistics(profile: Trace, by: str = "name") -> dict[str, dict[str, int]]:
    timeline = Timeline(profile)
    return {row["name"]: row for row in range_statistics(timeline, timeline.window("all"), by).iter_rows(named=True)}


_ONE = {"kernels": [kernel(20, 30, correlation=1)], "api": [launch(5, 6, 1)]}
#: Work and ranges, and what of it belongs to which range.
BELONGS = {
    "to the innermost range that is open at its launch, however late it runs": (
        {
            "kernels": [kernel(1000, 1010, correlation=1), kernel(1010, 1030, correlation=2)],
            "api": [launch(2, 3, 1), launch(6, 7, 2)], "ranges": [nvtx(0, 10, "step"), nvtx(1, 5, "layer")],
        },
        {
            "layer": {"gpu_ns": 10, "gpu_exclusive_ns": 10},
            "step": {"gpu_ns": 30, "gpu_exclusive_ns": 20, "span_ns": 30, "host_ns": 10},
        },
    ),
    # The helper's range is open when the main one begins, but the main thread's ranges cover more time.
    "to no range of a helper that the training loop would lie in": (
        {
            "kernels": [kernel(100, 110, correlation=1)], "api": [launch(8, 9, 1)],
            "ranges": [nvtx(5, 100, "step"), nvtx(0, 20, "prefetch", thread=AUTOGRAD_THREAD)],
        },
        {"prefetch": {"gpu_ns": 0}},
    ),
    "to the later of touching siblings where it is launched on the border": (
        {**_ONE, "ranges": [nvtx(0, 5, "first"), nvtx(5, 10, "second")]}, {"first": {"ops": 0}, "second": {"ops": 1}},
    ),
    "to no empty range": (
        {**_ONE, "ranges": [nvtx(0, 10, "outer"), nvtx(5, 5, "mark")]},
        {"outer": {"gpu_exclusive_ns": 10}, "mark": {"gpu_ns": 0}},
    ),
    "to both of two ranges that cross": (
        {
            "kernels": [kernel(100 + at, 110 + at, correlation=at) for at in (1, 20, 40)],
            "api": [launch(2, 3, 1), launch(6, 7, 20), launch(12, 13, 40)],
            "ranges": [nvtx(0, 10, "a", kind="start-end"), nvtx(5, 15, "b", kind="start-end")],
        },
        {"a": {"gpu_ns": 20, "ops": 2}, "b": {"gpu_ns": 20, "ops": 2}},
    ),
    "to a range with its copies, though kernels are counted apart": (
        {
            "kernels": _ONE["kernels"], "api": [launch(5, 6, 1), launch(7, 8, 2, "cudaMemcpyAsync")],
            "ranges": [nvtx(0, 10, "load")], "copies": [copy(30, 34, correlation=2)],
        },
        {"load": {"ops": 2, "kernels": 1, "gpu_ns": 14}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", BELONGS)
def test_work_belongs(place):
    tables, expected = BELONGS[place]
    found = _statistics(trace(**tables))

    assert {name: {column: found[name][column] for column in each} for name, each in expected.items()} == expected


def test_backward_kernels_belong_to_the_range_that_the_waiting_thread_holds_open():
    timeline = Timeline(
        trace(
            [kernel(100, 110, correlation=1), kernel(110, 150, correlation=2)],
            [launch(2, 3, 1), launch(20, 21, 2, thread=AUTOGRAD_THREAD)],
            [nvtx(0, 50, "step"), nvtx(1, 5, "forward"), nvtx(10, 40, "backward")],
        )
    )
    window = timeline.window("all")
    rows = {row["name"]: row for row in range_statistics(timeline, window, "name").iter_rows(named=True)}
    assert rows["backward"]["gpu_ns"] == rows["backward"]["inferred_ns"] == 40
    assert rows["forward"]["inferred_ns"] == 0
    assert rows["step"]["gpu_ns"] == 50
    coverage = range_coverage(timeline, window)
    assert (coverage.same_thread_ns, coverage.inferred_ns, coverage.unattributed_ns) == (10, 40, 0)
    assert coverage.inferred_share == 0.8


def test_ranges_of_the_helping_thread_stand_inside_the_range_of_the_waiting_one():
    timeline = Timeline(
        trace(
            [kernel(110, 150, correlation=2)],
            [launch(20, 21, 2, thread=AUTOGRAD_THREAD)],
            [nvtx(0, 50, "backward"), nvtx(15, 30, "AddmmBackward0", thread=AUTOGRAD_THREAD)],
        )
    )
    tree = range_statistics(timeline, timeline.window("all"), "tree")
    assert tree.select("depth", "name", "gpu_ns", "inferred_ns").rows() == [
        (0, "backward", 40, 40),
        (1, "AddmmBackward0", 40, 0),
    ]


def test_another_process_lends_no_range():
    profile = trace([kernel(100, 110, correlation=1, process=2)], [launch(8, 9, 1, process=2)], [nvtx(0, 50, "step")])
    timeline = Timeline(profile)
    assert range_coverage(timeline, timeline.window("all")).unattributed_ns == 10


def test_the_same_name_under_two_parents_is_two_rows_of_the_tree_and_one_by_name():
    profile = trace(
        [kernel(20, 30, correlation=1), kernel(30, 50, correlation=2)],
        [launch(2, 3, 1), launch(12, 13, 2)],
        [nvtx(0, 10, "forward"), nvtx(1, 5, "matmul"), nvtx(10, 20, "backward"), nvtx(11, 15, "matmul")],
    )
    timeline = Timeline(profile)
    tree = range_statistics(timeline, timeline.window("all"), "tree")
    assert tree.select("depth", "name", "gpu_ns").rows() == [
        (0, "backward", 20),
        (1, "matmul", 20),
        (0, "forward", 10),
        (1, "matmul", 10),
    ]
    assert _statistics(profile)["matmul"]["instances"] == 2


@pytest.mark.parametrize("by", ["name", "full_name"])
def test_what_lies_in_a_range_of_the_same_name_is_a_part_of_it(by):
    profile = trace(
        [kernel(20, 30, correlation=1), kernel(30, 50, correlation=2)],
        [launch(2, 3, 1), launch(4, 5, 2)],
        [nvtx(0, 10, "block"), nvtx(1, 8, "other"), nvtx(3, 7, "block"), nvtx(12, 14, "block")],
    )
    block = _statistics(profile, by)["block"]
    assert {name: block[name] for name in ("instances", "host_ns", "gpu_ns", "gpu_exclusive_ns", "span_ns")} == {
        "instances": 3, "host_ns": 12, "gpu_ns": 30, "gpu_exclusive_ns": 20, "span_ns": 30,
    }  # fmt: skip
    assert (block["ops"], block["kernels"], block["share"]) == (2, 2, 1)


def test_running_numbers_of_operators_do_not_make_names():
    assert plain_range_name("aten::copy_, op_id = 991065") == "aten::copy_"
    assert plain_range_name("AddmmBackward0, seq = 12, op_id = 7") == "AddmmBackward0"
    assert plain_range_name("layer 7") == "layer 7"
    profile = trace([], [], [nvtx(0, 1, "aten::add, op_id = 1"), nvtx(2, 3, "aten::add, op_id = 2")])
    assert _statistics(profile)["aten::add"]["instances"] == 2
    assert len(_statistics(profile, "full_name")) == 2


def test_the_projected_span_of_a_range_reaches_from_its_first_to_its_last_work():
    timeline = Timeline(
        trace(
            [kernel(100, 110, correlation=1), kernel(150, 160, correlation=2, device=1)],
            [launch(2, 3, 1), launch(4, 5, 2)],
            [nvtx(0, 10, "step")],
        )
    )
    assert [edge.tolist() for edge in projected_spans(timeline, np.array([0]))] == [[100], [160]]
    assert [edge.tolist() for edge in projected_spans(timeline, np.array([0]), device=0)] == [[100], [110]]


def test_a_profile_without_ranges_gives_empty_tables():
    timeline = Timeline(trace([kernel(0, 10)]))
    assert range_statistics(timeline, timeline.window("all")).height == 0
    assert range_coverage(timeline, timeline.window("all")).attributed_share == 0


_SPAN = st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from([1, 2]), st.sampled_from("abc"))


@given(st.lists(_SPAN, max_size=8), st.lists(st.tuples(st.integers(0, 70), st.sampled_from([1, 2])), max_size=8))
def test_inclusive_time_on_the_launching_thread_is_containment(spans, launches):
    ranges = [nvtx(start, start + length, name, thread=thread) for start, length, thread, name in spans]
    kernels = [kernel(100 + i, 101 + 2 * i, correlation=i + 1) for i in range(len(launches))]
    calls = [launch(when, when, i + 1, thread=thread) for i, (when, thread) in enumerate(launches)]
    timeline = Timeline(trace(kernels, calls, ranges))
    instances = range_instances(timeline, timeline.window("all"))
    for row in instances.iter_rows(named=True):
        annotated = ranges[row["row"]]
        inside = [
            k["end_ns"] - k["start_ns"]
            for k, c in zip(kernels, calls, strict=True)
            if c["thread"] == annotated["thread"] and annotated["start_ns"] <= c["start_ns"] < annotated["end_ns"]
        ]
        assert row["gpu_ns"] - row["inferred_ns"] == sum(inside)
        assert row["same_thread_ops"] == len(inside)


def _lent(ranges: list[dict], process: int, thread: int, when: int, own: int) -> int:
    """The plain rule: each thread of more cover is asked in turn for the last range that it opened and holds open."""

    def last_open(of: int) -> int:
        here = [i for i, r in enumerate(ranges) if r["thread"] == of and r["start_ns"] <= when < r["end_ns"]]
        here = [i for i in here if ranges[i]["process"] == process and (of == own or ranges[i]["kind"] != "cpu-op")]
        return max(here, key=lambda i: (ranges[i]["start_ns"], ranges[i]["depth"], i), default=NO_RANGE)

    if own != NO_RANGE and last_open(own) != NO_RANGE:
        return last_open(own)
    lending = [r for r in ranges if r["process"] == process and r["kind"] != "cpu-op"]
    covered: dict[int, set[int]] = {r["thread"]: set() for r in lending}
    for r in lending:
        covered[r["thread"]].update(range(r["start_ns"], r["end_ns"]))
    order = sorted(covered, key=lambda of: (-len(covered[of]), of))
    asked = order[: order.index(thread)] if thread in covered else order
    return next((row for row in map(last_open, asked) if row != NO_RANGE), NO_RANGE)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 40))
def test_work_and_outermost_ranges_belong_to_the_first_waiting_thread(seed, threads, size):
    rng = np.random.default_rng(seed)
    kinds = ["push-pop", "start-end", "cpu-op"]
    spans = zip(rng.integers(0, 60, size), rng.integers(0, 25, size), strict=True)
    rows = [
        nvtx(start, start + length, "r", kind=kinds[rng.integers(3)], **_place(rng, threads))
        for start, length in ((int(start), int(length)) for start, length in spans)
    ]
    table = trace(ranges=rows).ranges
    ranges = table.to_dicts()
    forest = range_forest(table)
    launches = [{**_place(rng, threads), "when": int(rng.integers(-1, 90))} for _ in range(40)]
    columns = [np.array([at[name] for at in launches]) for name in ("process", "thread", "when")]
    found, inferred = forest.attribute(*columns)
    plain = [_lent(ranges, at["process"], at["thread"], at["when"], own=at["thread"]) for at in launches]
    assert found.tolist() == plain
    assert [i for i in np.flatnonzero(inferred) if ranges[plain[i]]["thread"] == launches[i]["thread"]] == []
    for row, r in enumerate(ranges):
        if r["parent"] is None:
            above = _lent(ranges, r["process"], r["thread"], r["start_ns"], own=NO_RANGE)
            if above != NO_RANGE and ranges[above]["end_ns"] < r["end_ns"]:
                above = NO_RANGE
            assert (forest.parent[row], forest.parent_inferred[row]) == (above, above != NO_RANGE)
        else:
            assert forest.parent[row] == r["parent"]


def _place(rng: np.random.Generator, threads: int) -> dict[str, int]:
    return {"process": int(rng.integers(1, 3)), "thread": int(rng.integers(1, threads + 2))}


def test_a_thread_for_each_request_takes_time_in_proportion(monkeypatch):
    times_searched = 0

    def counted(edges, times):
        nonlocal times_searched
        times_searched += len(times)
        return edges_until(edges, times)

    monkeypatch.setattr(trees, "edges_until", counted)
    count = 512
    table = trace(ranges=[nvtx(10 * i, 10 * i + 8, "request", thread=i + 1) for i in range(count)]).ranges
    forest = range_forest(table)
    forest.attribute(np.ones(count, np.int64), np.arange(count) + 1, 10 * np.arange(count) + 9)
    assert times_searched < 40 * count


@given(st.lists(_SPAN, max_size=8), st.lists(st.tuples(st.integers(0, 70), st.sampled_from([1, 2])), max_size=8))
def test_each_piece_of_work_is_counted_once_among_exclusive_times(spans, launches):
    ranges = [nvtx(start, start + length, name, thread=thread) for start, length, thread, name in spans]
    kernels = [kernel(100 + i, 101 + 2 * i, correlation=i + 1) for i in range(len(launches))]
    calls = [launch(when, when, i + 1, thread=thread) for i, (when, thread) in enumerate(launches)]
    timeline = Timeline(trace(kernels, calls, ranges))
    window = timeline.window("all")
    coverage = range_coverage(timeline, window)
    tree = range_statistics(timeline, window, "tree")
    assert tree["gpu_exclusive_ns"].sum() == coverage.total_ns - coverage.unattributed_ns
    children = tree.group_by("parent").agg(pl.col("gpu_ns").sum().alias("inside"))
    joined = tree.join(children, left_on="id", right_on="parent", how="inner")
    if not timeline.forest.crossing.any():
        assert (joined["gpu_ns"] - joined["gpu_exclusive_ns"] == joined["inside"]).all()


@pytest.mark.parametrize(
    "name",
    ["train.py(88): step", "src/models/vit.py(12): forward", "transformers/generation/utils.py(2811): _sample",
     "C:\\code\\train.py(3): main", "lib/python3.12/site-packages/timm/layers/mlp.py(40): forward"],
)  # fmt: skip
def test_lines_of_the_program_and_of_its_models_are_its_own(name):
    assert is_own_line(name)


@pytest.mark.parametrize(
    "name",
    ["torch/optim/adam.py(953): <genexpr>", "threading.py(975): run", "numpy/core/fromnumeric.py(2): sum",
     "/usr/lib/python3.12/contextlib.py(141): __exit__", "<built-in method item of Tensor object at 0x7f>",
     "nn.Module: Linear_3", "lib/python3.12/site-packages/torch/functional.py(1): norm", ""],
)  # fmt: skip
def test_foundations_and_calls_without_a_line_are_not(name):
    assert not is_own_line(name)


def test_a_wait_is_found_in_its_operator_its_range_and_the_line_that_asked():
    timeline = program(
        [kernel(10, 90, correlation=1)],
        [launch(5, 8, 1), call(150, 250, "cudaStreamSynchronize", correlation=2)],
        [
            operator(100, 300, "aten::item"),
            operator(120, 280, "aten::_local_scalar_dense"),
            annotation(50, 400, "log#7"),
        ],
        python=[python_call(0, 500, "train.py(88): step"), python_call(90, 310, "torch/_tensor.py(1): item")],
    )
    rows = code_places(timeline, timeline.window("all")).rows(named=True)
    wait = next(row for row in rows if row["call"] == "sync")
    assert (wait["operator"], wait["range"], wait["line"]) == (
        "aten::_local_scalar_dense",
        "log",
        "train.py(88): step",
    )
    assert (wait["calls"], wait["host_ns"], wait["share"]) == (1, 100, 1.0)


def test_the_place_with_the_most_host_time_stands_first_whatever_its_calls_do():
    calls = [launch(0, 50, 1), call(60, 70, "cudaStreamSynchronize", correlation=2), launch(80, 85, 3)]
    ranges = [annotation(0, 55, "forward"), annotation(58, 90, "log")]
    timeline = program([kernel(10, 90, correlation=1)], calls, ranges)
    rows = code_places(timeline, timeline.window("all"))
    assert rows.select("call", "range", "host_ns").rows() == [
        ("launch", "forward", 50), ("sync", "log", 10), ("launch", "log", 5),
    ]  # fmt: skip


def test_without_stacks_and_ranges_nothing_is_guessed():
    timeline = program([kernel(10, 90, correlation=1)], [launch(5, 8, 1)], [])
    (row,) = code_places(timeline, timeline.window("all")).rows(named=True)
    assert (row["call"], row["operator"], row["range"], row["line"]) == ("launch", None, None, None)


def test_only_calls_inside_the_range_asked_for_are_placed():
    kernels = [kernel(10, 90, correlation=1), kernel(110, 190, correlation=2)]
    timeline = program(kernels, [launch(5, 8, 1), launch(105, 108, 2)], [annotation(0, 50, "forward")])
    (row,) = code_places(timeline, timeline.window("all", "forward")).rows(named=True)
    assert (row["range"], row["calls"]) == ("forward", 1)
