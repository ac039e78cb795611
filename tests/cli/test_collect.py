"""`warplens collect`: the commands it prints and runs, what it leaves, how it fails. The profilers are stand-ins.

`warplens doctor`: exit codes and the two formats.
"""

from __future__ import annotations

import importlib
import json
import lzma
import shlex
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.collect.machines import NCU, NSYS, Machine, gpu_machine, laptop
from warplens.collect.machine import System

COMMAND = importlib.import_module("warplens.cli.commands.collect")
DATA = Path(str(resources.files("warplens"))) / "data"
TRACE = DATA / "captures" / "deit224_bs1_baseline.sqlite.xz"


@pytest.fixture(autouse=True)
def _recorded_tools(monkeypatch, tmp_path):
    """Tools that answer with their version only, and a folder to work in."""
    machine = Machine(programs={"/usr/local/cuda/bin/nsys": NSYS["2025.3"], "/usr/local/cuda/bin/ncu": NCU["2025.3"]})
    monkeypatch.setattr(COMMAND, "machine", lambda: machine)
    monkeypatch.chdir(tmp_path)


def stand_in(folder: Path, name: str, version: str, body: str) -> str:
    """A program that answers as a profiler, and does what `body` says with `words`, the arguments."""
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport os, pathlib, shutil, sys\nwords = sys.argv[1:]\n"
        f"if words == ['--version']:\n    print({version!r})\n    raise SystemExit\n{body}"
    )
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def nsys(tmp_path, export, monkeypatch):
    """An nsys that exports a small profile."""
    monkeypatch.setattr(COMMAND, "machine", System)
    return stand_in(
        tmp_path,
        "nsys",
        NSYS["2023.4"],
        "output = next(word for word in words if word.startswith('--output=')).removeprefix('--output=')\n"
        "if words[0] == 'export':\n"
        f"    shutil.copy({str(export)!r}, output)\n"
        "else:\n"
        "    pathlib.Path(output + '.nsys-rep').write_bytes(b'report')\n"
        "    print('recording', os.environ['WARPLENS_COLLECT'])\n"
        "    raise SystemExit(7 if 'fails' in words else 0)\n",
    )


def ncu_that(folder: Path, body: str) -> str:
    return stand_in(folder, "ncu", NCU["2024.1"], "report = words[words.index('--export') + 1]\n" + body)


def test_a_dry_run_prints_the_commands_and_runs_nothing(tmp_path, warplens):
    options = ("--dry-run", "--capture", "cuda-profiler", "-o", "out")
    run = warplens("collect", "nsys", *options, "--", "python", "train.py", "--lr", "1")

    record, exported = (shlex.split(line) for line in run.out.splitlines())
    assert record[:3] == ["WARPLENS_COLLECT=nsys", "/usr/local/cuda/bin/nsys", "profile"]
    assert record[-5:] == ["--output=out/train", "python", "train.py", "--lr", "1"]
    assert "--capture-range=cudaProfilerApi" in record
    assert exported[1:3] == ["export", "--type=sqlite"]
    assert exported[-1] == "out/train.nsys-rep"
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_recorded_exported_and_listed(tmp_path, nsys, warplens):
    run = warplens("collect", "nsys", "--tool", nsys, "--", "python", str(tmp_path / "train.py"), "--token", "abc")

    assert run.code == 0
    assert run.out.splitlines() == ["collected/train.nsys-rep", "collected/train.sqlite"]
    assert "recording nsys" in run.err
    assert run.err.splitlines()[-1] == "next: warplens report collected/train.sqlite -o collected/report"
    text = (tmp_path / "collected" / "manifest.json").read_text()
    (entry,) = json.loads(text)["runs"]
    assert (entry["tool"], entry["version"], entry["exit_code"]) == ("nsys", "2023.4.4.54", 0)
    assert [file["name"] for file in entry["files"]] == ["train.nsys-rep", "train.sqlite"]
    assert entry["commands"][0][-4:] == ["python", "train.py", "--token", "[removed]"]
    assert str(tmp_path) not in text


def test_the_report_can_be_written_at_once(tmp_path, nsys, warplens):
    assert warplens("collect", "nsys", "--tool", nsys, "--report", "--", "./program").code == 0
    assert list((tmp_path / "collected" / "report").glob("*.html"))


def test_the_folder_can_be_reported_on_as_it_is(tmp_path, nsys, warplens):
    warplens("collect", "nsys", "--tool", nsys, "--", "./program")
    (tmp_path / "collected" / "program.nsys-rep").unlink()  # the stand-in's is none

    assert warplens("report", "collected", "-o", "report").code == 0


def test_nothing_is_written_over_unless_asked(nsys, warplens):
    command = ("collect", "nsys", "--tool", nsys)
    assert warplens(*command, "--", "./program").code == 0

    again = warplens(*command, "--", "./program")

    assert again.code == 2
    assert "program.nsys-rep: is there already" in again.err
    assert warplens(*command, "--force", "--", "./program").code == 0


def test_a_program_that_fails_fails_the_run_but_keeps_what_was_recorded(nsys, warplens):
    run = warplens("collect", "nsys", "--tool", nsys, "--", "./program", "fails")

    assert run.code == 1
    assert "ended with code 7" in run.err.splitlines()[-1]
    assert "kept in collected: program.nsys-rep, program.sqlite" in run.err.splitlines()[-1]
    assert json.loads(Path("collected/manifest.json").read_text())["runs"][0]["exit_code"] == 7


def test_a_missing_tool_is_one_line_that_says_how_to_get_it(monkeypatch, warplens):
    monkeypatch.setattr(COMMAND, "machine", Machine)

    run = warplens("collect", "ncu", "--", "./program")

    assert run.code == 2
    assert run.err.startswith("error: ncu (Nsight Compute) was not found on this machine: install")
    assert len(run.err.splitlines()) == 1


def test_the_permission_error_of_ncu_comes_with_its_fix(tmp_path, monkeypatch, warplens):
    monkeypatch.setattr(COMMAND, "machine", System)
    ncu = ncu_that(tmp_path, "print('==ERROR== ERR_NVGPUCTRPERM - The user does not have permission')\nsys.exit(1)\n")

    run = warplens("collect", "ncu", "--tool", ncu, "--", "./program")

    assert run.code == 1
    assert "NVreg_RestrictProfilingToAdminUsers=0" in run.err.splitlines()[-1]
    assert not Path("collected/manifest.json").exists()


def test_the_price_stands_before_the_commands_of_ncu(warplens):
    run = warplens("collect", "ncu", "--dry-run", "--phase", "light", "--launches", "50", "--", "python", "train.py")

    assert "light: 50 launches × about 9 passes = 450 passes" in run.err
    (line,) = run.out.splitlines()
    assert "--launch-count 50" in line
    assert "--clock-control none" in line
    assert "--export collected/train_light python train.py" in line


def test_a_trace_tells_which_launches_are_one_steady_step(warplens):
    run = warplens("collect", "ncu", "--dry-run", "--trace", TRACE, "--", "python", "vit.py")

    light, targeted = (shlex.split(line) for line in run.out.splitlines())
    # 177 kernels a step; the shipped capture begins 1 ms before the first steady one.
    assert light[light.index("--launch-count") + 1] == "177"
    assert light[light.index("--launch-skip") + 1] == "46"
    assert targeted[targeted.index("-k") + 1].startswith("regex:^(")
    assert "WarpStateStats" in targeted
    assert "% of the kernel time)" in run.err


def test_a_preset_is_one_run_with_its_counters_alone(warplens):
    command = ("collect", "ncu", "--dry-run", "--preset", "cache", "--preset", "memory", "--", "python", "train.py")
    run = warplens(*command)

    cache, memory = (shlex.split(line) for line in run.out.splitlines())
    assert cache[cache.index("--cache-control") + 1] == "none"
    assert "lts__t_sector_hit_rate.pct" in cache[cache.index("--metrics") + 1]
    assert "MemoryWorkloadAnalysis_Tables" in memory
    assert memory[memory.index("--cache-control") + 1] == "all"
    assert [words[words.index("--export") + 1] for words in (cache, memory)] == [
        "collected/train_cache",
        "collected/train_memory",
    ]
    assert "cache: 50 launches × about" in run.err


def test_kernels_that_the_user_names_are_profiled_whatever_their_share(warplens):
    reduced = DATA / "captures" / "deit224_bs1_topk0.1.sqlite.xz"
    command = ("collect", "ncu", "--dry-run", "--trace", reduced)
    named = ("--target", "token-reduction", "--kernel", "^Kernel2$")
    counters = ("--set", "basic", "--section", "WarpStateStats", "--metrics", "a.sum,b.sum")
    run = warplens(*command, *named, *counters, "--", "./a")

    (line,) = run.out.splitlines()
    words = shlex.split(line)
    pattern = words[words.index("-k") + 1]
    assert pattern.startswith("regex:TopK|")
    assert pattern.endswith("|^Kernel2$")
    assert words[words.index("--set") + 1] == "basic"
    assert words[words.index("--metrics") + 1] == "a.sum,b.sum"
    assert "--launch-skip" in words
    assert "gatherTopK" in run.err
    absent = warplens(*command, "--kernel", "nothing", "--", "./a")
    assert absent.code == 2
    assert "no kernel of a step is called like 'nothing'; its longest are" in absent.err


def test_options_of_pytorch_reach_the_wrapper(monkeypatch, warplens):
    machine = Machine(programs={"python -c": "torch=2.13.0\n"})
    monkeypatch.setattr(COMMAND, "machine", lambda: machine)
    options = ("--stacks", "--modules", "--no-shapes", "--memory")

    run = warplens("collect", "torch", "--dry-run", *options, "--", "python", "train.py")

    words = shlex.split(run.out)
    assert words[words.index("--trace") + 2 : words.index("--")] == ["--memory", "--stacks", "--modules"]


def test_a_recording_that_cannot_be_imported_names_the_libraries(tmp_path, monkeypatch, warplens):
    monkeypatch.setattr(COMMAND, "machine", System)
    (tmp_path / "bin").mkdir()
    (tmp_path / "host-linux-x64").mkdir()
    nsys = stand_in(tmp_path / "bin", "nsys", NSYS["2023.4"], "print('importing'); raise SystemExit(1)\n")
    stand_in(tmp_path / "host-linux-x64", "QdstrmImporter", "", "")
    ldd = stand_in(tmp_path, "ldd", "", "print('\\tlibssh.so => not found')\n")
    monkeypatch.setenv("PATH", f"{Path(ldd).parent}:/usr/bin:/bin")

    run = warplens("collect", "nsys", "--tool", nsys, "--", "./program")

    assert run.code == 1
    assert "its importer lacks libssh.so" in run.err.splitlines()[-1]
    assert len(run.err.splitlines()[-1]) < 400


def test_without_a_trace_the_light_report_chooses_the_kernels(tmp_path, monkeypatch, warplens):
    monkeypatch.setattr(COMMAND, "machine", System)
    planted = tmp_path / "planted.ncu-rep"
    planted.write_bytes(lzma.decompress((DATA / "counters" / "planted_h200.ncu-rep.xz").read_bytes()))
    ncu = ncu_that(tmp_path, f"shutil.copy({str(planted)!r}, report + '.ncu-rep')\n")

    run = warplens("collect", "ncu", "--tool", ncu, "--", "./planted")

    assert run.code == 0, run.err
    assert run.out.splitlines() == ["collected/planted_light.ncu-rep", "collected/planted_targeted.ncu-rep"]
    runs = json.loads(Path("collected/manifest.json").read_text())["runs"]
    assert [len(entry["files"]) for entry in runs] == [1, 1]
    targeted = runs[1]["commands"][0]
    assert targeted[targeted.index("-k") + 1].startswith("regex:^(")


@pytest.mark.parametrize(
    ("words", "foreign"),
    [
        ("torch --tool nsys", "--tool (nsys, ncu)"),
        ("torch --capture cuda-profiler", "--capture (nsys, ncu)"),
        ("ncu --memory", "--memory (nsys, torch)"),
        ("ncu --graphs graph", "--graphs (nsys)"),
        ("torch --also osrt", "--also (nsys)"),
        ("nsys --phase light", "--phase (ncu)"),
        ("nsys --trace t.sqlite", "--trace (ncu)"),
        ("torch --launches 0", "--launches (ncu)"),
        ("nsys --kernel gemm", "--kernel (ncu)"),
        ("nsys --target gemm", "--target (ncu)"),
        ("torch --replay application", "--replay (ncu)"),
        ("nsys --clocks base", "--clocks (ncu)"),
        ("nsys --preset memory", "--preset (ncu)"),
        ("nsys --set full", "--set (ncu)"),
        ("nsys --section Occupancy", "--section (ncu)"),
        ("nsys --metrics x", "--metrics (ncu)"),
        ("nsys --steps 1,1,1", "--steps (torch)"),
        ("ncu --no-shapes", "--no-shapes (torch)"),
        ("nsys --stacks --steps 1,1,1 --modules", "--steps (torch), --stacks (torch), --modules (torch)"),
    ],
)
def test_options_of_another_profiler_are_refused_in_one_line(words, foreign, warplens):
    run = warplens("collect", *words.split(), "--dry-run", "--", "python", "x.py")

    assert run.code == 2
    assert run.err.splitlines() == [f"error: not for collect {words.split()[0]}: {foreign}"]


@pytest.mark.parametrize(
    "words",
    [
        ("nsys",),
        ("gdb", "--", "./program"),
        ("nsys", "--capture", "steps", "--", "./program"),
        ("nsys", "--name", "../x", "--", "./program"),
        ("ncu", "--phase", "targeted", "--", "./program"),
        ("torch", "--", "./program"),
        ("torch", "--steps", "1,2", "--", "python", "x.py"),
        ("torch", "--steps", "1,1,0", "--", "python", "x.py"),
        ("ncu", "--preset", "everything", "--", "./program"),
        ("ncu", "--kernel", "gemm(", "--", "./program"),
    ],
)
def test_requests_that_make_no_sense_are_wrong_usage(words, warplens):
    run = warplens("collect", *words)

    assert run.code == 2
    assert len(run.err.splitlines()) <= 2


@pytest.fixture
def on(monkeypatch):
    return lambda machine: monkeypatch.setattr(COMMAND, "machine", lambda: machine)


def test_a_machine_without_gpu_is_no_failure(on, warplens):
    on(laptop())

    run = warplens("doctor")

    assert run.code == 0
    assert run.out.splitlines()[0].split()[:2] == ["problem", "gpu"]
    assert run.out.endswith("recording needs a machine with a GPU.\n")


@pytest.mark.parametrize(("required", "code"), [("nsys", 0), ("nsys,ncu,gpu,torch", 0), ("", 2), ("cuda", 2)])
def test_requirements_that_are_met(required, code, on, warplens):
    on(gpu_machine())

    assert warplens("doctor", "--require", required).code == code


def test_requirements_that_are_not_met_fail_by_name(on, warplens):
    machine = gpu_machine()
    machine.files["/proc/driver/nvidia/params"] = "RmProfilingAdminOnly: 1\n"
    on(machine)

    run = warplens("doctor", "--require", "nsys,ncu")

    assert (run.code, run.err) == (1, "error: required, but not possible here: ncu\n")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in run.out


def test_programs_get_the_checks_by_name(on, warplens):
    on(gpu_machine())

    answer = json.loads(warplens("doctor", "--format", "json").out)

    assert answer["schema"] == "warplens.doctor/1"
    assert answer["data"]["can"] == {"gpu": True, "torch": True, "nsys": True, "ncu": True}
    checks = {check["name"]: check for check in answer["data"]["checks"]}
    assert checks["nsys"].keys() == {"name", "status", "found", "fix"}
    assert checks["nsys"]["found"].startswith("Nsight Systems 2025.3.2.367")


def test_this_machine_can_be_examined(warplens):
    answer = json.loads(warplens("doctor", "--format", "json").out)

    assert {"gpu", "torch", "nsys", "ncu", "counters", "disk"} <= {check["name"] for check in answer["data"]["checks"]}
