"""`warplens sweep`, `study` and `policy`: runs, plans and reports from stored measurements, and what they refuse."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import sys
from importlib import resources
from importlib.resources import files
from pathlib import Path

import pytest

from warplens.studies.policies.document import regret_sentence
from warplens.studies.policies.regret import Regret
from warplens.studies.runner.studies import STUDIES, Collection, StudyOptions, recorded_cells


def printing(time):
    code = f"print('step_ms=%s' % ({time}))"
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(code)}"


@pytest.fixture
def sides():
    return ("--baseline", printing("2 * {n}"), "--variant", printing("1 + {n}"), "--time-from", "step_ms=([0-9.]+)")


def test_a_sweep_over_commands_is_run_and_read(warplens, sides, tmp_path):
    output = tmp_path / "sweep.json"
    run = warplens("sweep", "run", "--axis", "n=1,3", *sides, "--repeats", "6", "--output", output)
    assert run.code == 0, run.err
    assert run.out == f"{output}\n"
    assert "[24/24]" in run.err
    assert "next: warplens sweep report sweep.json" in run.err
    report = warplens("sweep", "report", output, "--format", "json")
    assert report.code == 0, report.err
    rows = report.data["rows"]
    assert [(row["n"], row["baseline_ns"], row["variant_ns"]) for row in rows] == [(1, 2e6, 2e6), (3, 6e6, 4e6)]


@pytest.mark.parametrize(("fails", "code"), [("0 / 0", 1), ("1 / ({n} - 1)", 0)])
def test_a_side_that_fails_in_every_cell_fails_the_run(warplens, tmp_path, fails, code):
    output = tmp_path / "sweep.json"
    run = warplens(
        "sweep", "run", "--axis", "n=1,2", "--baseline", printing("{n}"), "--variant", printing(fails),
        "--time-from", "step_ms=([0-9.]+)", "--repeats", "2", "--output", output,
    )  # fmt: skip
    assert run.code == code
    assert ("no run of the variant succeeded: sweep.json says why" in run.err) == (code == 1)
    assert len(json.loads(output.read_text())["measurements"]) == 4


def test_the_same_command_again_has_nothing_left_to_do(warplens, sides, tmp_path):
    asked = ("sweep", "run", "--axis", "n=1", *sides, "--repeats", "2", "--output", tmp_path / "sweep.json")
    warplens(*asked)
    assert "nothing was left to do" in warplens(*asked).err
    other = warplens(*asked[:-4], "--repeats", "3", *asked[-2:])
    assert other.code == 2
    assert "repeats was 2, is 3" in other.err
    assert other.err.count("\n") == 1


def test_a_dry_run_shows_what_would_be_done(warplens, sides, tmp_path):
    run = warplens("sweep", "run", "--axis", "n=1,3", *sides, "--output", tmp_path / "sweep.json", "--dry-run")
    assert run.code == 0
    assert "4 cells × 10 repetitions = 40 runs, 40 to do" in run.out
    assert list(tmp_path.iterdir()) == []


def test_options_may_stand_before_the_subcommand_as_they_once_did(warplens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = warplens(
        "sweep", "-o", "x.json", "--baseline", "a {n}", "--axis", "n=1", "run", "--variant", "b", "--dry-run"
    )
    assert run.code == 0, run.err
    assert "n=1 baseline: a 1" in run.out


def test_a_report_on_another_workload_is_refused(warplens, tmp_path):
    cell = {"cell": {"side": "a"}, "status": "failed", "reason": "x"}
    content = {
        "schema": "warplens.measurements/1", "version": "0", "workload": "command", "environment": {}, "plan": {},
        "measurements": [cell],
    }  # fmt: skip
    (tmp_path / "measurements.json").write_text(json.dumps(content))
    run = warplens("study", "attention", "report", "--output", tmp_path)
    assert run.code == 2
    assert "it measures 'command'" in run.err


STORED = Path(str(resources.files("warplens") / "data" / "measurements" / "token_reduction.json.xz"))
DOCS = Path(__file__).parents[2] / "docs"
SIDES = ("--baseline", "method=none,attention=explicit", "--variant", "method=topk")


@pytest.fixture
def policy_file(warplens, tmp_path):
    path = tmp_path / "policy.json"
    assert warplens("policy", "fit", STORED, *SIDES, "--output", path).code == 0
    return path


def runs_the_baseline(path):
    document = json.loads(path.read_text())
    for point in document["points"]:
        point["run"] = "method=none"
    path.write_text(json.dumps(document))


def test_the_gate_closes_on_a_choice_that_costs_too_much(warplens, policy_file, tmp_path):
    runs_the_baseline(policy_file)
    run = warplens("policy", "check", policy_file, STORED, *SIDES, "--fail-on", "2%", "--format", "json")
    assert run.code == 1
    assert "beyond the limit of 2 %: slower than the best side by 155" in run.err
    data = run.data
    assert data["failed"] is True
    assert data["regret"]["worst"] == max(row["regret_share"] for row in data["rows"]) > 1.5
    assert warplens("policy", "check", policy_file, STORED, *SIDES).code == 0, "without a limit it is a report"


def test_a_check_without_sides_takes_cells_with_the_shared_settings_of_the_policy(warplens, policy_file):
    study = warplens(
        "policy", "check", policy_file, "demo:token_reduction_study", "--fail-on", "2%", "--format", "json"
    )
    assert study.code == 0
    times = {}
    measurements = json.loads(lzma.decompress(STORED.with_name("token_reduction_study.json.xz").read_bytes()))
    for cell in measurements["measurements"]:
        at = cell["cell"]
        if at["attention"] == "explicit" and at["keep"] in (0.1, 1.0) and cell["status"] == "measured":
            place = (at["input_size"], at["batch"], at["execution"], f"method={at['method']}")
            times.setdefault(place, set()).add(cell["latency_ns"]["median"])
    for row in study.data["rows"]:
        stated = times[row["input_size"], row["batch"], row["execution"], row["chosen"]]
        # Cells with equal settings are one, so that its median lies between theirs.
        assert 0.999 * min(stated) <= row["chosen_ns"] <= 1.001 * max(stated)


def test_a_gate_without_a_point_to_compare_is_refused(warplens, policy_file, tmp_path):
    runs_the_baseline(policy_file)
    alone = json.loads(lzma.decompress(STORED.read_bytes()))
    for cell in alone["measurements"]:
        if cell["cell"]["method"] == "topk":
            cell |= {"status": "failed", "reason": "x"}
    (tmp_path / "alone.json").write_text(json.dumps(alone))
    run = warplens("policy", "check", policy_file, tmp_path / "alone.json", "--fail-on", "2%")
    assert run.code == 2
    assert "nothing to go by" in run.err


def test_on_another_gpu_a_policy_is_checked_as_it_would_run_there(warplens, policy_file, tmp_path):
    other = json.loads(lzma.decompress(Path(STORED).read_bytes()))
    other["environment"]["device"]["name"] = "NVIDIA A100"
    (tmp_path / "other.json").write_text(json.dumps(other))
    run = warplens("policy", "check", policy_file, tmp_path / "other.json", *SIDES, "--fail-on", "2%")
    assert run.code == 1
    assert "fitted on NVIDIA H200, measured on NVIDIA A100: the fallback runs there" in run.out
    assert "\nother-machine: slower than the best side by 155" in run.out
    assert "interpolated:" not in run.out


def test_a_policy_is_not_written_over_its_measurements(warplens, tmp_path):
    path = tmp_path / "sweep.json"
    path.write_bytes(lzma.decompress(Path(STORED).read_bytes()))
    run = warplens("policy", "fit", path, *SIDES, "--output", path)
    assert (run.code, run.out) == (2, "")
    assert json.loads(path.read_bytes())["schema"] == "warplens.measurements/1"


def test_choices_that_could_not_run_are_not_counted_as_right():
    regret = Regret(cells=6, worst=0.0, mean=0.0, where=(3,), not_run=1)
    sentence = "the best side or its equal in all of 5 choices; at 1 more the chosen side could not run"
    assert regret_sentence(regret, ["batch"]) == sentence


def test_every_key_of_the_file_and_of_the_output_is_explained(warplens, policy_file):
    page = (DOCS / "reference" / "policy.md").read_text("utf-8")
    documented = set(re.findall(r"`([^`\n]+)`", page))
    shown = warplens("policy", "show", policy_file, "--format", "json").data
    checked = warplens("policy", "check", policy_file, STORED, *SIDES, "--format", "json").data
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


def test_a_number_of_points_that_no_sweep_has_is_refused(warplens, policy_file):
    document = json.loads(policy_file.read_text())
    document["regret"]["measured"]["cells"] = 10**30
    policy_file.write_text(json.dumps(document))
    run = warplens("policy", "show", policy_file, "--format", "json")
    assert (run.code, run.out) == (2, "")
    assert "must be a number of points" in run.err


DATA = Path(str(files("warplens") / "data"))
COUNTERS = Path(__file__).parents[2] / "data" / "counters"

#: What stands in for the tools: each leaves what was recorded of the cell that the name of its output tells.
_NSYS = """
import lzma, pathlib, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA Nsight Systems version 2025.3.2.474-253236389321v0")
    raise SystemExit
output = next(word for word in words if word.startswith("--output=")).removeprefix("--output=")
if words[0] == "export":
    side = "topk0.1" if "method=topk" in output else "baseline"
    size = "448_bs8" if "448" in output else "224_bs1"
    source = pathlib.Path({captures!r}) / f"deit{{size}}_{{side}}.sqlite.xz"
    pathlib.Path(output).write_bytes(lzma.decompress(source.read_bytes()))
elif not ({fails!r} and {fails!r} in output):
    pathlib.Path(output + ".nsys-rep").write_bytes(b"report")
else:
    raise SystemExit(1)
"""
_NCU = """
import lzma, pathlib, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880) (public-release)")
    raise SystemExit
report = words[words.index("--export") + 1]
side = "topk0.1" if "method=topk" in report else "baseline"
size = "448_bs8" if "448" in report else "224_bs1"
source = pathlib.Path({counters!r}) / f"deit{{size}}_{{side}}.ncu-rep.xz"
pathlib.Path(report + ".ncu-rep").write_bytes(lzma.decompress(source.read_bytes()))
"""


def stand_ins(folder: Path, fails: str = "") -> dict[str, str]:
    """An nsys and an ncu that leave recordings of an H200; the recording whose name holds `fails` fails."""
    made = {}
    for name, body in (("nsys", _NSYS), ("ncu", _NCU)):
        text = body.format(captures=str(DATA / "captures"), counters=str(COUNTERS), fails=fails)
        made[name] = str(folder / name)
        Path(made[name]).write_text(f"#!{sys.executable}\n{text}")
        Path(made[name]).chmod(0o755)
    return made


def grid_run():
    """The study with its measured corners alone."""
    axes = ("input_size=224,448", "batch=1,8", "execution=eager", "keep=1.0,0.1", "attention=explicit")
    return STUDIES["token-reduction"].run(StudyOptions(axes))


def test_the_corners_of_the_grid_are_what_is_recorded():
    assert [cell.name for cell in recorded_cells(grid_run())] == [
        "input_size=224,batch=1,method=none",
        "input_size=224,batch=1,method=topk,keep=0.1",
        "input_size=448,batch=8,method=none",
        "input_size=448,batch=8,method=topk,keep=0.1",
    ]


@pytest.mark.slow
def test_timelines_and_counters_are_recorded_unattended_and_told_of_in_the_findings(warplens, tmp_path):
    profiles = tmp_path / "profiles"
    assert Collection(profiles, **stand_ins(tmp_path)).record(grid_run()) == []
    assert len(list(profiles.glob("*.sqlite"))) == len(list(profiles.glob("*.ncu-rep"))) == 4
    measured = lzma.decompress((DATA / "measurements" / "token_reduction.json.xz").read_bytes())
    (tmp_path / "measurements.json").write_bytes(measured)

    run = warplens("study", "token-reduction", "report", "-o", tmp_path, "--profiles", profiles)

    assert run.code == 0, run.err
    text = (tmp_path / "findings_report.md").read_text()
    assert "At input size 224, batch 1: H1, H2" in text
    assert "H4c" in text
    assert "input size 448, batch 8" in text


def test_a_phase_that_fails_is_told_and_the_others_follow(tmp_path):
    profiles, told = tmp_path / "profiles", []
    tools = stand_ins(tmp_path, fails="448,batch=8,method=none")
    failed = Collection(profiles, **tools, launches=10, tell=told.append).record(grid_run())

    assert failed == ["timeline of input_size=448,batch=8,method=none"]
    index = json.loads((profiles / "profiles.json").read_text())
    assert len(index) == 7
    assert index["input_size=448,batch=8,method=none.ncu-rep"]["batch"] == "8"
    assert any("or the program that it ran ended with code 1" in line for line in told)


def test_what_is_recorded_already_is_kept(tmp_path, monkeypatch):
    profiles = tmp_path / "profiles"
    collection = Collection(profiles, **stand_ins(tmp_path))
    collection.record(grid_run())
    monkeypatch.setattr("warplens.studies.runner.studies.run_command", lambda *_: pytest.fail("recorded again"))

    assert collection.record(grid_run()) == []


def test_the_whole_study_runs_by_itself(warplens, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="measuring needs PyTorch")
    tools = stand_ins(tmp_path)
    options = [word for name, path in tools.items() for word in (f"--{name}", path)]
    run = warplens("study", "token-reduction", "--quick", "--collect", "-o", tmp_path / "study", *options)

    assert run.code == 0, run.err
    assert len(list((tmp_path / "study" / "profiles").glob("*.ncu-rep"))) == 4
    assert (tmp_path / "study" / "findings_report.html").is_file()
