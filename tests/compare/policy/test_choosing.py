"""What a policy runs: at measured points, between them, outside of them, and on other machines.

Policy files: what is written is what is read, and what is no policy is refused in one clear line.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.policy.sweeps import BATCHES, EXECUTIONS, SIDES, SIZES, fitted, grid, points, sweep, truth
from warplens.compare.shift import Samples
from warplens.errors import UnreadableInputError, UsageError
from warplens.studies.policies.choosing import Side
from warplens.studies.policies.files import document_of, policy_of, read_policy, write_policy
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


def test_a_side_that_is_faster_for_certain_runs_where_the_fastest_is_not():
    steady = [Samples.of([[time * (1 + place / 1e3)] for place in range(8)]) for time in (15e6, 10.1e6)]
    wild = Samples.of([[time] for time in (4e6, 30e6, 5e6, 40e6, 9e6, 9.5e6, 8e6, 35e6)])
    samples = (steady[0], wild, steady[1])
    assert wild.median_ns < steady[1].median_ns
    measured = [PointTimes({"batch": batch}, tuple(one.median_ns for one in samples), samples) for batch in (1, 2)]
    policy = fitted(measured, ("batch",), sides=[*SIDES, Side("method=tome", {"method": "tome"})])
    assert [(point.side, point.decided) for point in policy.points] == [(2, True), (2, True)]


@pytest.mark.parametrize("count", [0, 9])
def test_what_could_not_be_read_back_is_not_fitted(count):
    axes = [f"axis{number}" for number in range(count)]
    measured = [PointTimes(dict.fromkeys(axes, value), (2e6, 1e6)) for value in (1, 2)]
    with pytest.raises(UsageError, match="chooses by one to 8 settings that vary"):
        fitted(measured, axes)


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
        "import sys; from warplens.studies.policies import read_policy; "
        "from warplens.studies.policies.fitting import fit_points; "
        "found = {'polars', 'numpy', 'torch'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="module")
def fitted_policy():
    at = grid(input_size=SIZES, batch=BATCHES, execution=EXECUTIONS)
    return fitted(points(at), ("input_size", "batch", "execution"), shared={"model": "deit", "fused": False})


def test_a_written_policy_is_read_back_unchanged(fitted_policy, tmp_path):
    write_policy(fitted_policy, tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json") == fitted_policy
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]


def test_a_policy_without_a_model_or_with_sides_that_did_not_run_is_read_as_well(tmp_path):
    found = fit_policy(sweep(grid(batch=(1, 2), mode=("a", "b")), lambda at: (None if at["batch"] == 2 else 2.0, 1.0)))
    assert found.rule == "log-linear"
    write_policy(found, tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json") == found


def test_no_folder_is_in_the_file(fitted_policy):
    assert "/" not in json.dumps(document_of(fitted_policy)).replace("warplens.policy/1", "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not text"),
        (b'{"schema": "warplens.policy/1"', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"schema": NaN}', "NaN is not a number"),
        (b'{"schema": 1, "schema": 2}', "names a key twice"),
        (b"[]", "does not say that it holds a policy"),
        (b'{"schema": "warplens.policy/2"}', "warplens.policy/1 is read here"),
        (b'{"schema": "warplens.measurements/1", "measurements": []}', "warplens.policy/1 is read here"),
        (b'{"schema": "warplens.policy/1"}', "the policy lacks version"),
        (b"9" * 10_000, "not valid JSON"),
    ],
)
def test_what_is_no_policy_is_refused(tmp_path, content, reason):
    path = tmp_path / "policy.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=reason) as caught:
        read_policy(path)
    assert str(caught.value).startswith("policy.json: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path):
    with pytest.raises(UnreadableInputError, match="cannot be read"):
        read_policy(tmp_path / "nothing.json")
    with pytest.raises(UnreadableInputError):
        read_policy(tmp_path)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UnreadableInputError, match="bytes"):
        read_policy(huge)


def _set(document, path, value):
    *way, last = path
    for step in way:
        document = document[step]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("extra",), 1, "'extra'"),
        (("sides",), [], "sides must be two or more"),
        (("sides", 1, "name"), "method=none", "with different names"),
        (("axes", 1, "values"), [1, 4, 2, 8, 16], "numbers rising"),
        (("axes", 1, "name"), "input_size", "axes must be different"),
        (("points", 3, "at", "batch"), 3, "not a value of that axis"),
        (("points", 3, "times_ns", "method=none"), -1, "above 0"),
        (("points", 3, "times_ns", "method=none"), 10**400, "at most"),
        (("points", 3, "times_ns", "method=none"), True, "must be a number"),
        (("points", 3, "run"), "method=tome", "must name a side"),
        (("points", 3, "decided"), "yes", "true, false or null"),
        (("points",), [], "points must be one or more"),
        (("rule",), "magic", "host-or-work, log-linear, nearest"),
        (("rule",), ["magic"], "rule must be one of"),
        (("rule",), "nearest", "model belongs to the rule"),
        (("model", "curves", 0, "host_ns"), None, "must be a number"),
        (
            ("model", "curves", 0),
            {"side": "method=none", "words": {"execution": "eager"}, "host_ns": 0, "fixed_ns": 0, "work_ns": 0},
            "takes no time",
        ),
        (("model", "curves", 0, "words", "execution"), "compile", "not a value of that axis"),
        (("model", "exponents", "method=none", "batch"), 1e300, "at most 10"),
        (("fallback",), 0, "must name a side"),
        (("margin",), 2, "at most 1"),
        (("shared",), {"model": [1]}, "numbers or words"),
        (("environment",), {"device": 1}, "must be a text"),
        (("regret", "edge", "worst"), "much", "must be a number"),
        (("regret", "measured", "cells"), 1.5, "number of points"),
    ],
)
def test_a_file_that_contradicts_its_schema_is_refused(fitted_policy, path, value, reason):
    document = copy.deepcopy(document_of(fitted_policy))
    _set(document, path, value)
    with pytest.raises(UnreadableInputError, match=reason):
        policy_of(document, "policy.json")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


@given(st.data())
def test_any_file_is_read_or_refused_and_a_policy_that_was_read_chooses(fitted_policy, data):
    document = json.loads(json.dumps(document_of(fitted_policy)))
    places = [path for path in _places(document) if path]
    # A number that could be a time is read at a third of the places, so that some of the policies choose.
    _set(document, data.draw(st.sampled_from(places)), data.draw(st.floats(1, 1e9) | _JSON))
    try:
        found = policy_of(document, "policy.json")
    except UnreadableInputError:
        return
    if [axis.name for axis in found.axes] == ["input_size", "batch", "execution"]:
        for size, batch in ((224, 1), (300, 3), (448, 16)):
            assert found.choose(input_size=size, batch=batch, execution="eager").side
