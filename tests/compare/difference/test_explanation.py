"""The cause of a difference: the right one for programs in which it is known, with its numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.compare.difference.programs import NCCL, US, Launch, any_side, program, settled
from warplens.compare.difference import Explanation, Side, explanation, step_difference
from warplens.profile import Trace


def _explained(baseline: Trace, variant: Trace, **options: tuple[float, float]) -> Explanation:
    return explanation(step_difference(settled(baseline), settled(variant), **options))


def test_less_gpu_work_and_more_launches_are_slower_where_the_host_is_the_limit() -> None:
    """The founding question: half of the GPU work, two more launches, and a slower step."""
    found = _explained(
        program([Launch(gpu=4 * US, host=10 * US)] * 20),
        program([Launch(gpu=2 * US, host=10 * US)] * 22),
        flops=(10e9, 3e9),
    )
    assert (found.cause, found.direction) == ("host-issue-bound", "slower")
    assert found.is_paradox
    assert found.gpu_change_share == pytest.approx(44 / 80 - 1)
    assert found.launches_change == 2
    assert found.added_ns_per_launch == pytest.approx(10 * US)
    # Two launches more, and the last kernel ends 2 µs sooner.
    assert found.change_ns == 2 * 10 * US - 2 * US
    assert found.share == pytest.approx(1, abs=0.05)
    assert found.flops_ratio == pytest.approx(0.3)
    assert (found.baseline_bound, found.variant_bound) == ("host-issue", "host-issue")


def test_less_gpu_work_is_the_cause_where_the_gpu_is_the_limit() -> None:
    found = _explained(program([Launch(gpu=100 * US)] * 20), program([Launch(gpu=60 * US)] * 22))
    assert (found.cause, found.direction) == ("gpu-work", "faster")
    assert not found.is_paradox
    assert found.variant_bound == "gpu"


def test_a_step_that_goes_from_the_gpus_limit_to_the_hosts_lost_gpu_work() -> None:
    found = _explained(program([Launch(gpu=100 * US)] * 20), program([Launch(gpu=2 * US, host=30 * US)] * 20))
    assert (found.cause, found.direction) == ("gpu-work", "faster")
    assert found.share is not None
    assert found.share > 1
    assert (found.baseline_bound, found.variant_bound) == ("gpu", "host-issue")
    against = {item.cause: item.change_ns for item in found.contributions}
    assert against["host-issue-bound"] > 0


def test_what_work_saves_and_launches_take_back_is_the_hosts() -> None:
    found = _explained(program([Launch(gpu=20 * US)] * 20), program([Launch(gpu=5 * US, host=24 * US)] * 20))
    assert (found.cause, found.direction) == ("host-issue-bound", "slower")
    assert (found.baseline_bound, found.variant_bound) == ("gpu", "host-issue")


def test_exposed_communication_is_named() -> None:
    found = _explained(program([Launch(gpu=50 * US)] * 5), program([*[Launch(gpu=50 * US)] * 5, Launch(NCCL, 90 * US)]))
    assert (found.cause, found.direction) == ("communication", "slower")


def test_a_host_that_does_something_else_is_named() -> None:
    busy = [Launch(gpu=20 * US)] * 10
    found = _explained(program(busy), program([*busy, Launch(gpu=20 * US, host=3_000 * US), *busy]))
    assert found.cause == "idle: host"


def test_within_the_margin_there_is_no_difference_to_explain() -> None:
    found = _explained(program([Launch(gpu=100 * US)] * 20), program([Launch(gpu=101 * US)] * 20))
    assert (found.cause, found.direction, found.share) == ("no-difference", "same", None)
    assert found.change_ns > 0


@settings(max_examples=100, deadline=None)
@given(any_side(), any_side())
def test_contributions_add_up_to_the_change(baseline: Side, variant: Side) -> None:
    found = explanation(step_difference(baseline, variant))
    assert sum(item.change_ns for item in found.contributions) == pytest.approx(found.change_ns, abs=1e-3)
    if found.cause != "no-difference":
        assert found.share is not None
        assert found.share > 0


@settings(max_examples=50, deadline=None)
@given(any_side())
def test_any_profile_and_itself_have_no_difference(one: Side) -> None:
    found = explanation(step_difference(one, one))
    assert (found.cause, found.change_ns) == ("no-difference", 0)
    assert not found.contributions
    assert not found.is_paradox


@settings(max_examples=50, deadline=None)
@given(any_side(), any_side())
def test_exchanging_the_sides_exchanges_faster_and_slower(baseline: Side, variant: Side) -> None:
    there, back = (explanation(step_difference(*pair)) for pair in ((baseline, variant), (variant, baseline)))
    assert there.change_ns == -back.change_ns
    assert (there.baseline_bound, there.variant_bound) == (back.variant_bound, back.baseline_bound)
    assert {item.cause: -item.change_ns for item in there.contributions} == {
        item.cause: item.change_ns for item in back.contributions
    }
