from __future__ import annotations

from tests.analysis.builders import copy, graph, kernel, launch, trace
from warplens.analysis.streams import GRAPHS, graph_statistics, graph_summary
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window

WINDOW = Window(0, 1_000, "explicit", "as asked for")

# Graph 4 runs twice, 30 and 50 ns, its inside hidden; 20 ns of other kernels, 10 of which run beside a graph.
WHOLE = Timeline(
    trace(
        kernels=[kernel(20, 40, stream=2, correlation=1)],
        graph_launches=[graph(0, 30, correlation=2, graph_id=4), graph(100, 150, correlation=3, graph_id=4)],
        api=[launch(0, 1, 1), launch(0, 1, 2, "cudaGraphLaunch"), launch(50, 51, 3, "cudaGraphLaunch")],
    )
)

# A graph of two kernels and a copy is replayed twice; one kernel lacks the node id, but the graph's launch started it.
NODES = Timeline(
    trace(
        kernels=[
            kernel(10, 20, correlation=1, graph_node=70),
            kernel(25, 30, correlation=1),
            kernel(110, 120, correlation=2, graph_node=70),
            kernel(120, 125, correlation=2, graph_node=71),
            kernel(200, 300, correlation=3),
        ],
        copies=[copy(20, 22, correlation=1, graph_node=72), copy(125, 129, correlation=2, graph_node=72)],
        api=[launch(0, 1, 1, "cudaGraphLaunch"), launch(90, 91, 2, "cudaGraphLaunch"), launch(92, 93, 3)],
    )
)


def test_a_graph_traced_as_a_whole_is_busy_and_hidden() -> None:
    summary = graph_summary(WHOLE, WINDOW)

    assert (summary.whole_launches, summary.node_launches, summary.nodes_per_launch) == (2, 0, None)
    assert (summary.hidden_ns, summary.busy_ns, summary.gpu_busy_ns) == (80, 80, 90)
    assert summary.hidden_share == 80 / 90


def test_hidden_time_is_cut_at_the_edges_of_the_window() -> None:
    assert graph_summary(WHOLE, Window(10, 120, "explicit", "")).hidden_ns == 40


def test_nodes_are_counted_per_launch_with_their_copies() -> None:
    summary = graph_summary(NODES, WINDOW)

    assert (summary.node_launches, summary.nodes, summary.nodes_per_launch) == (2, 6, (3, 3.0, 3))
    assert (summary.hidden_ns, summary.hidden_share) == (0, 0.0)
    assert (summary.busy_ns, summary.gpu_busy_ns) == (17 + 19, 136)


def test_a_launch_lasts_from_its_first_work_to_its_last() -> None:
    assert graph_statistics(NODES, WINDOW).select(
        "traced", "graph", "launches", "nodes_per_launch", "total_ns"
    ).rows() == [("nodes", 70, 2, 3.0, 20 + 19)]
    assert graph_statistics(WHOLE, WINDOW).select(
        "traced", "graph", "launches", "nodes_per_launch", "max_ns"
    ).rows() == [("whole", 4, 2, None, 50)]


def test_without_graphs_there_is_nothing_to_report() -> None:
    timeline = Timeline(trace(kernels=[kernel(0, 10, correlation=1)], api=[launch(0, 1, 1)]))

    assert (graph_statistics(timeline, WINDOW).height, graph_statistics(timeline, WINDOW).schema) == (0, GRAPHS.schema)
    assert graph_summary(timeline, WINDOW).busy_share == 0.0
    assert graph_summary(Timeline(trace()), WINDOW).busy_share is None
