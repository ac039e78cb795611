"""`warplens policy`: fit, show, check, and what it refuses."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from warplens.studies.policies.files import read_policy

STORED = Path(str(resources.files("warplens") / "data" / "measurements" / "token_reduction.json.xz"))
DOCS = Path(__file__).parents[2] / "docs"
SIDES = ("--baseline", "method=none,attention=explicit", "--variant", "method=topk")


@pytest.fixture
def policy_file(warplens, tmp_path):
    path = tmp_path / "policy.json"
    assert warplens("policy", "fit", STORED, *SIDES, "--output", path).code == 0
    return path


def test_a_policy_is_fitted_to_a_sweep_and_written(warplens, tmp_path):
    run = warplens("policy", "fit", STORED, *SIDES, "-o", tmp_path / "policy.json")
    assert run.code == 0
    assert "NVIDIA H200" in run.out
    assert "between them (each value but the least and the greatest left out in turn): the best side" in run.out
    assert "policy.json: written" in run.err
    policy = read_policy(tmp_path / "policy.json")
    assert policy.choose(input_size=448, batch=8, execution="eager").side == "method=topk"


def test_a_policy_is_shown_in_every_format(warplens, policy_file):
    assert warplens("policy", "show", policy_file).out == warplens("policy", "fit", STORED, *SIDES).out
    found = json.loads(warplens("policy", "show", policy_file, "--format", "json").out)
    assert found["schema"] == "warplens.policy/1"
    assert found["data"]["policy"] == json.loads(policy_file.read_text())
    assert len(found["data"]["rows"]) == 20
    header, *rows = warplens("policy", "show", policy_file, "--format", "csv").out.strip().split("\n")
    assert header == "input_size,batch,execution,run,run_ns,other,other_ns,ratio,decided"
    assert len(rows) == 20
    assert "| method=topk |" in warplens("policy", "show", policy_file, "--format", "md").out


def test_a_policy_is_held_against_measurements(warplens, policy_file):
    run = warplens("policy", "check", policy_file, STORED, *SIDES, "--fail-on", "2%")
    assert run.code == 0
    assert "measured: the best side or its equal in all of 20 choices" in run.out


def test_the_gate_closes_on_a_choice_that_costs_too_much(warplens, policy_file, tmp_path):
    document = json.loads(policy_file.read_text())
    for point in document["points"]:
        point["run"] = "method=none"
    policy_file.write_text(json.dumps(document))
    run = warplens("policy", "check", policy_file, STORED, *SIDES, "--fail-on", "2%", "--format", "json")
    assert run.code == 1
    assert "beyond the limit of 2 %: slower than the best side by 155" in run.err
    data = json.loads(run.out)["data"]
    assert data["failed"] is True
    assert data["regret"]["worst"] == max(row["regret_share"] for row in data["rows"]) > 1.5
    assert warplens("policy", "check", policy_file, STORED, *SIDES).code == 0, "without a limit it is a report"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("check", "POLICY"), "check needs measurements"),
        (("show", "POLICY", "POLICY"), "takes one file"),
        (("show", "POLICY", "--output", "x.json"), "--output is no option of policy show"),
        (("fit", STORED, *SIDES, "--fail-on", "2%"), "--fail-on is no option of policy fit"),
        (("check", "POLICY", STORED, *SIDES, "--fail-on", "2"), "percentage"),
        (("fit", STORED, *SIDES, "--margin", "200%"), "percentage"),
        (("fit", STORED, "--baseline", "method", "--variant", "method=topk"), "has no '='"),
        (("fit", STORED, *SIDES, "--fallback", "tome"), "no side is called 'tome'"),
        (("fit", "POLICY", *SIDES), "policy.json"),
        (("show", STORED), "no text"),
        (("show", "nothing.json"), "cannot be read"),
        (("fit", STORED, *SIDES, "--output", "no/such/folder/policy.json"), "a folder that exists"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(warplens, policy_file, arguments, reason):
    run = warplens("policy", *(policy_file if word == "POLICY" else word for word in arguments))
    assert run.code == 2
    assert reason in run.err
    assert len([line for line in run.err.splitlines() if line.startswith("error:")]) == 1


def test_every_key_of_the_file_and_of_the_output_is_explained(warplens, policy_file):
    page = (DOCS / "reference" / "policy.md").read_text("utf-8")
    documented = set(re.findall(r"`([^`\n]+)`", page))
    shown = json.loads(warplens("policy", "show", policy_file, "--format", "json").out)["data"]
    checked = json.loads(warplens("policy", "check", policy_file, STORED, *SIDES, "--format", "json").out)["data"]
    #: Under these stand names of the user's settings and sides.
    given = ("settings", "shared", "at", "words", "times_ns", "exponents", "where")

    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from () if key in given else keys(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    assert {*keys(shown), *keys(checked)} - {"input_size", "batch", "execution"} <= documented


def test_a_policy_is_checked_by_its_own_sides_in_a_file_with_more_of_them(warplens):
    policy = STORED.parents[1] / "policies" / "token_reduction.json"
    checked = STORED.with_name("token_reduction_policy_check.json.xz")
    run = warplens("policy", "check", policy, checked, "--fail-on", "2%", "--format", "json")
    assert run.code == 0, run.err
    assert {row["chosen"] for row in json.loads(run.out)["data"]["rows"]} == {"method=none", "method=topk"}


def test_a_number_of_points_that_no_sweep_has_is_refused(warplens, policy_file):
    document = json.loads(policy_file.read_text())
    document["regret"]["measured"]["cells"] = 10**30
    policy_file.write_text(json.dumps(document))
    run = warplens("policy", "show", policy_file, "--format", "json")
    assert (run.code, run.out) == (2, "")
    assert "must be a number of points" in run.err
