"""Counting launches without a profiler; the driver is played by a stand-in."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch", reason="the workloads compute with PyTorch")

from warplens.workloads import launching as launch_count
from warplens.workloads.launching import Launches, launches_of
from warplens.workloads.vision import _launches

KERNEL, COPY, FILL, EMPTY = 0, 1, 2, 5


class Driver:
    """A graph with these nodes, as the CUDA driver tells of it: first how many there are, then which."""

    def __init__(self, kinds, status=0):
        self.kinds, self.status = kinds, status

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self.kinds)
        for place in range(len(self.kinds) if nodes is not None else 0):
            nodes[place] = 1000 + place
        return self.status

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.kinds[node.value - 1000]
        return self.status


def test_without_a_gpu_nothing_is_counted_and_the_step_is_not_run():
    assert launches_of(lambda: pytest.fail("the step ran"), "cpu") is None


def test_each_node_of_a_graph_is_asked_for_its_kind(monkeypatch):
    kinds = [KERNEL, FILL, KERNEL, COPY, EMPTY, KERNEL]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(kinds))
    assert [kind for _, kind in launch_count.graph_nodes(4711)] == kinds


def test_an_error_of_the_driver_is_no_count(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver([KERNEL], status=1))
    with pytest.raises(RuntimeError, match="returned 1"):
        launch_count.graph_nodes(4711)


def test_a_step_that_cannot_be_captured_has_no_count_and_does_no_harm(monkeypatch):
    monkeypatch.setattr(launch_count, "is_cuda", lambda device: True)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    assert launches_of(lambda: None, "cuda") is None  # there is no GPU here to capture anything


def test_a_graph_is_one_launch_whatever_it_launches_in_turn():
    assert _launches(Launches(212, 3), graph=False) == {"launches": 215, "kernels": 212, "copies_and_fills": 3}
    assert _launches(Launches(212, 3), graph=True)["launches"] == 1
    assert _launches(None, graph=False) == {}
