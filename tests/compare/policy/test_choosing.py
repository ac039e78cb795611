"""What a policy runs: at measured points, between them, outside of them, and on other machines."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from tests.compare.policy.sweeps import BATCHES, EXECUTIONS, SIDES, SIZES, fitted, grid, points, sweep, truth
from warplens.errors import UsageError
from warplens.studies.policies.choosing import Side
from warplens.studies.policies.fitting import PointTimes, fit_policy

AXES = ("input_size", "batch", "execution")


@pytest.fixture(scope="module")
def policy():
    return fitted(points(grid(input_size=SIZES, batch=BATCHES, execution=EXECUTIONS)), AXES, shared={"model": "deit"})


def test_at_a_measured_point_the_faster_side_runs(policy):
    for at in grid(input_size=SIZES, batch=BATCHES, execution=EXECUTIONS):
        choice, times = policy.choose(**at), truth(at)
        assert choice.reason == "measured"
        assert choice.side == SIDES[times.index(min(times))].name
        assert choice.times_ns == pytest.approx(dict(zip((side.name for side in SIDES), times, strict=True)))


def test_between_points_the_estimates_decide(policy):
    choice = policy.choose(input_size=384, batch=4, execution="eager")
    assert (choice.side, choice.reason) == ("method=none", "interpolated"), "a straight line would say top-k"
    assert policy.choose(input_size=384, batch=8, execution="eager").side == "method=topk"
    assert policy.choose(input_size=300.5, batch=3, execution="graph").reason == "interpolated"


@pytest.mark.parametrize(
    "settings",
    [
        {"input_size": 448, "batch": 17, "execution": "eager"},
        {"input_size": 112, "batch": 1, "execution": "eager"},
        {"input_size": 448, "batch": 16, "execution": "compile"},
        {"input_size": 448, "batch": 16, "execution": "graph", "model": "other"},
    ],
)
def test_outside_the_fitted_range_the_baseline_runs(policy, settings):
    choice = policy.choose(**settings)
    assert (choice.side, choice.reason, choice.times_ns) == ("method=none", "outside", {})


def test_a_shared_setting_may_be_named(policy):
    assert policy.choose(input_size=448, batch=16, execution="graph", model="deit").reason == "measured"


def test_another_fallback_can_be_asked_for():
    policy = fitted(points(grid(input_size=SIZES, batch=BATCHES)), AXES[:2], fallback="method=topk")
    assert policy.choose(input_size=448, batch=64).side == "method=topk"
    with pytest.raises(UsageError, match="no side is called 'tome'"):
        fitted(points(grid(input_size=SIZES, batch=BATCHES)), AXES[:2], fallback="tome")


def test_on_another_machine_the_fallback_runs(policy):
    settings = {"input_size": 448, "batch": 16, "execution": "graph"}
    assert policy.on("NVIDIA H200").choose(**settings).reason == "measured"
    elsewhere = policy.on("NVIDIA A100").choose(**settings)
    assert (elsewhere.side, elsewhere.reason) == ("method=none", "other-machine")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"batch": 1, "execution": "eager"}, "give input_size"),
        ({"input_size": 224, "batch": 1, "execution": "eager", "depth": 3}, "no setting 'depth'"),
        ({"input_size": "224", "batch": 1, "execution": "eager"}, "input_size is a number"),
        ({"input_size": 224, "batch": True, "execution": "eager"}, "batch is a number"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(policy, settings, reason):
    with pytest.raises(UsageError, match=reason):
        policy.choose(**settings)


def test_a_tie_goes_to_the_baseline():
    measured = [PointTimes({"batch": batch}, (1.005e6, 1.0e6)) for batch in (1, 2, 4)]
    assert fitted(measured, ("batch",)).choose(batch=2).side == "method=none"
    assert fitted(measured, ("batch",), margin=0.001).choose(batch=2).side == "method=topk"


def test_a_difference_that_the_samples_do_not_decide_is_a_tie():
    close = points(grid(batch=(1, 2, 4), input_size=(224,)), noise=0.3, rounds=6, seed=4)
    policy = fitted(close, ("batch",))
    for point in policy.points:
        assert point.decided is not False or point.side == 0
    clear = fitted(points(grid(batch=(8, 16), input_size=(448,)), noise=0.02, rounds=20), ("batch",))
    assert [(point.side, point.decided) for point in clear.points] == [(1, True), (1, True)]


def test_a_side_that_ran_out_of_memory_is_never_run_there():
    def times(at):
        return (None if at["batch"] == 16 else 2e6, None if at["batch"] == 1 else 1e6)

    policy = fit_policy(sweep(grid(batch=(1, 4, 16)), times))
    assert [policy.choose(batch=batch).side for batch in (1, 4, 16)] == ["method=none", "method=topk", "method=topk"]
    assert policy.choose(batch=8).side == "method=topk", "what is not known to run on one side of the point is not run"
    assert policy.choose(batch=2).side == "method=none"


def test_three_sides_are_chosen_from():
    sides = [*SIDES, Side("method=tome", {"method": "tome"})]
    measured = [
        PointTimes({"batch": batch}, times)
        for batch, times in {1: (1e6, 2e6, 3e6), 4: (4e6, 2e6, 3e6), 16: (16e6, 8e6, 3e6)}.items()
    ]
    policy = fitted(measured, ("batch",), sides=sides)
    assert [policy.choose(batch=batch).side for batch in (1, 4, 16)] == ["method=none", "method=topk", "method=tome"]


def test_several_sweeps_of_a_file_make_one_policy():
    def times(at, keep):
        return 2e6, 1e6 + abs(at["batch"] - keep) * 1e5

    by_keep = [
        sweep(grid(batch=(1, 2, 4)), partial(times, keep=keep), variant={"method": "topk", "keep": keep})
        for keep in (1, 4)
    ]
    policy = fit_policy(by_keep)
    assert [side.name for side in policy.sides] == ["method=none", "method=topk,keep=1", "method=topk,keep=4"]
    assert [policy.choose(batch=batch).side for batch in (1, 4)] == ["method=topk,keep=1", "method=topk,keep=4"]
    with pytest.raises(UsageError, match="one file"):
        fit_policy([by_keep[0], sweep(grid(batch=(1, 2)), partial(times, keep=1), source="other")])
    with pytest.raises(UsageError, match="same settings"):
        fit_policy([by_keep[0], by_keep[0]])
    with pytest.raises(UsageError, match="different settings"):
        fit_policy([by_keep[0], sweep(grid(context=(1, 2)), lambda at: (1.0, 2.0))])


def test_a_sweep_without_a_measured_point_makes_no_policy():
    with pytest.raises(UsageError, match="no point of the sweep was measured"):
        fit_policy(sweep(grid(batch=(1, 2)), lambda at: (None, None)))


def test_asking_a_policy_imports_neither_polars_nor_numpy_nor_torch():
    program = (
        "import sys; from warplens.studies.policies import read_policy, fit_points; "
        "found = {'polars', 'numpy', 'torch'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
