"""Launches: what each of them cost the host, what the added ones cost, and what limits a step."""

from __future__ import annotations

import pytest

from tests.analysis.builders import graph, launch, trace
from tests.compare.difference.programs import CALL, GEMM, US, Launch, program, settled, side
from warplens.compare.difference import LaunchChange, Side, kernel_changes, launch_change, wall_split


def _launches(baseline: Side, variant: Side) -> LaunchChange:
    split = wall_split(baseline, variant)
    return launch_change(baseline, variant, (split.baseline, split.variant), kernel_changes(baseline, variant))


def test_a_launch_costs_the_time_since_the_launch_before_it() -> None:
    one = settled(program([Launch(host=10 * US), Launch(host=25 * US)]))
    assert one.issue_ns is not None
    assert one.issue_ns.tolist() == [10 * US, 25 * US] * 4


def test_waiting_for_the_gpu_is_no_cost_of_launching() -> None:
    # The host waits 300 µs at the end of each step.
    one = settled(program([Launch(gpu=300 * US, host=10 * US)]))
    assert one.issue_ns is not None
    assert set(one.issue_ns.tolist()) == {10 * US}


def test_added_launches_cost_what_the_host_needed_for_them() -> None:
    work = [Launch(host=10 * US)] * 5
    changes = _launches(
        settled(program(work)), settled(program([*work, *[Launch("gatherTopK", host=15 * US, range="reduce")] * 2]))
    )
    assert changes.kernels_change == changes.calls_change == changes.added == 2
    assert changes.added_cost_ns == pytest.approx(2 * 15 * US)
    assert changes.added_ns_per_launch == pytest.approx(15 * US)
    assert changes.removed_ns_per_launch is None
    assert changes.pace_cost_ns == pytest.approx(0)


def test_a_slower_host_shows_in_the_launches_of_both_sides() -> None:
    changes = _launches(settled(program([Launch(host=10 * US)] * 5)), settled(program([Launch(host=12 * US)] * 5)))
    assert changes.added_cost_ns == 0
    assert changes.pace_cost_ns == pytest.approx(5 * 2 * US)
    assert changes.baseline.host_ns_per_launch == pytest.approx(10 * US)
    assert changes.variant.host_ns_per_launch == pytest.approx(12 * US)


def test_a_step_that_waits_for_launches_is_bound_by_the_host() -> None:
    changes = _launches(settled(program([Launch(gpu=2 * US)] * 9)), settled(program([Launch(gpu=200 * US)] * 9)))
    assert changes.baseline.bound == "host-issue"
    assert changes.variant.bound == "gpu"
    for one in (changes.baseline, changes.variant):
        assert one.busy_share + one.issue_share + one.host_share + one.waiting_share == pytest.approx(1)


def test_without_launching_calls_nothing_is_said_about_the_host() -> None:
    blind = program([Launch()] * 3)
    blind = type(blind)(**{**vars(blind), "api_calls": blind.api_calls.clear()})
    one = side(blind, window="all")
    changes = _launches(one, side(program([Launch()] * 3)))
    assert changes.baseline.issue_ns is None
    assert changes.baseline.host_ns_per_launch is None
    assert changes.added_cost_ns is None
    assert changes.baseline.bound == "waiting"


def test_graphs_that_hide_their_kernels_leave_their_number_open() -> None:
    hidden = trace(
        [],
        [launch(0, CALL, 1, "cudaGraphLaunch")],
        graph_launches=[graph(6 * US, 90 * US, correlation=1)],
        window_ns=(0, 90 * US),
    )
    changes = _launches(side(program([Launch(GEMM)])), side(hidden, window="all"))
    assert changes.kernels_change is None
    assert changes.variant.graph_launches == 1
    assert changes.calls_change == 0
