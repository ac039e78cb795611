"""Policy files: what is written is what is read, and what is no policy is refused in one clear line."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compare.policy.sweeps import BATCHES, EXECUTIONS, SIZES, fitted, grid, points, sweep
from warplens.errors import UnreadableInputError
from warplens.studies.policies.files import document_of, policy_of, read_policy, write_policy
from warplens.studies.policies.fitting import fit_policy


@pytest.fixture(scope="module")
def policy():
    at = grid(input_size=SIZES, batch=BATCHES, execution=EXECUTIONS)
    return fitted(points(at), ("input_size", "batch", "execution"), shared={"model": "deit", "fused": False})


def test_what_is_written_is_what_is_read(policy, tmp_path):
    write_policy(policy, tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json") == policy
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]


def test_a_policy_without_a_model_or_with_sides_that_did_not_run_is_read_as_well(tmp_path):
    found = fit_policy(sweep(grid(batch=(1, 2), mode=("a", "b")), lambda at: (None if at["batch"] == 2 else 2.0, 1.0)))
    assert found.rule == "log-linear"
    write_policy(found, tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json") == found


def test_no_folder_is_in_the_file(policy):
    assert "/" not in json.dumps(document_of(policy)).replace("warplens.policy/1", "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe\x00", "no text"),
        (b'{"schema": "warplens.policy/1"', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"schema": NaN}', "NaN is no number"),
        (b'{"schema": 1, "schema": 2}', "names a key twice"),
        (b"[]", "does not say that it holds a policy"),
        (b'{"schema": "warplens.policy/2"}', "warplens.policy/1 is read here"),
        (b'{"schema": "warplens.measurements/1", "measurements": []}', "warplens.policy/1 is read here"),
        (b'{"schema": "warplens.policy/1"}', "the policy lacks version"),
        (b"9" * 10_000, "no JSON"),
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
        (("points", 3, "at", "batch"), 3, "no value of that axis"),
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
        (("model", "curves", 0, "words", "execution"), "compile", "no value of that axis"),
        (("model", "exponents", "method=none", "batch"), 1e300, "at most 10"),
        (("fallback",), 0, "must name a side"),
        (("margin",), 2, "at most 1"),
        (("shared",), {"model": [1]}, "numbers or words"),
        (("environment",), {"device": 1}, "must be a text"),
        (("regret", "edge", "worst"), "much", "must be a number"),
        (("regret", "measured", "cells"), 1.5, "number of points"),
    ],
)
def test_a_file_that_contradicts_its_schema_is_refused(policy, path, value, reason):
    document = copy.deepcopy(document_of(policy))
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


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_stands_in_a_file_is_read_or_refused_and_a_policy_that_was_read_chooses(policy, data):
    document = json.loads(json.dumps(document_of(policy)))
    places = [path for path in _places(document) if path]
    _set(document, data.draw(st.sampled_from(places)), data.draw(_JSON))
    try:
        found = policy_of(document, "policy.json")
    except UnreadableInputError:
        return
    if [axis.name for axis in found.axes] == ["input_size", "batch", "execution"]:
        for size, batch in ((224, 1), (300, 3), (448, 16)):
            assert found.choose(input_size=size, batch=batch, execution="eager").side
