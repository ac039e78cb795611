"""`warplens.capture`, `warplens.step` and the wrapper of `collect torch`, on PyTorch for the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import warplens

#: A Python that has PyTorch; this one, unless it has none.
PYTHON = next(
    (
        python
        for python in (os.environ.get("WARPLENS_TORCH_PYTHON"), sys.executable)
        if python
        and shutil.which(python)
        and subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    ),
    None,
)
needs_torch = pytest.mark.skipif(PYTHON is None, reason="no Python with PyTorch; name one by WARPLENS_TORCH_PYTHON")
WRAPPER = Path(warplens.__file__).parent / "collect" / "torch_run.py"


def run(folder: Path, program: str, *words: str, collecting: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of PyTorch's Python, which finds Warplens where this one does."""
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(warplens.__file__).parents[1])}
    environment.pop("WARPLENS_COLLECT", None)
    if collecting:
        environment["WARPLENS_COLLECT"] = collecting
    command = [str(PYTHON), *(words or ("program.py",))]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def wrapped(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run(folder, program, str(WRAPPER), "--trace", "t.json", *options, "--", "program.py", "--lr", "1")


def names(trace: Path) -> list[str]:
    return [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if "name" in event]


@needs_torch
def test_a_capture_is_a_trace_that_can_be_read(tmp_path):
    done = run(
        tmp_path,
        "import torch, warplens\n"
        "torch.ones(3) * 2\n"
        "with warplens.capture('inside.json'):\n    torch.ones(3) + 1\n"
        "@warplens.capture('called.json.gz')\ndef f(x): return torch.ones(3) - x\n"
        "f(1); f(2)\n",
    )

    assert done.returncode == 0, done.stderr
    operators = names(tmp_path / "inside.json")
    assert "aten::add" in operators
    assert "aten::mul" not in operators
    pytest.importorskip("polars", reason="traces are read with Polars, which this machine lacks")
    trace = warplens.read(tmp_path / "called.json.gz")
    assert "aten::sub" in trace.ranges["name"].cast(str).to_list()


@needs_torch
def test_only_the_active_steps_are_recorded(tmp_path):
    done = run(
        tmp_path,
        "import torch, warplens\n"
        "with warplens.capture('t.json', wait=1, warmup=1, active=2) as recording:\n"
        "    for size in range(1, 7):\n        torch.ones(size) + 1; recording.step()\n",
    )

    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "t.json").count("aten::add") == 2


@needs_torch
def test_a_capture_with_too_few_steps_says_so(tmp_path):
    done = run(
        tmp_path,
        "import warplens\nwith warplens.capture('t.json', wait=4, active=2) as r:\n    r.step()\n",
    )

    assert "step() was called too seldom" in done.stderr
    assert not (tmp_path / "t.json").exists()


@needs_torch
def test_under_another_profiler_a_capture_writes_nothing(tmp_path):
    program = "import torch, warplens\nwith warplens.capture('t.json'):\n    torch.ones(3) + 1\n"

    assert run(tmp_path, program, collecting="nsys").returncode == 0
    assert not (tmp_path / "t.json").exists()


@needs_torch
def test_the_wrapper_records_the_steps_that_the_program_tells(tmp_path):
    done = wrapped(
        tmp_path,
        "import sys, torch, warplens\nprint(sys.argv, __name__)\n"
        "for i in range(8):\n    torch.ones(2) + i\n    warplens.step()\n",
        "--schedule",
        "2,1,3",
    )

    assert (done.returncode, done.stdout) == (0, "['program.py', '--lr', '1'] __main__\n")
    assert names(tmp_path / "t.json").count("aten::add") == 3


@needs_torch
def test_the_wrapper_records_programs_that_know_nothing_of_it(tmp_path):
    (tmp_path / "beside.py").write_text("value = 3\n")

    done = wrapped(tmp_path, "import torch, beside\ntorch.ones(2) + beside.value\nraise SystemExit(4)\n")

    assert done.returncode == 4
    assert names(tmp_path / "t.json").count("aten::add") == 1


@needs_torch
@pytest.mark.parametrize("ending", ["os._exit(5)", "sys.exit(5)"])
def test_a_program_that_ends_at_once_leaves_its_trace(ending, tmp_path):
    done = wrapped(tmp_path, f"import os, sys, torch\ntorch.ones(2) + 1\n{ending}\n", "--stacks", "--modules")

    assert done.returncode == 5
    assert names(tmp_path / "t.json").count("aten::add") == 1
    assert any("program.py" in name for name in names(tmp_path / "t.json"))


@needs_torch
def test_a_child_that_ends_at_once_ends_as_it_asked(tmp_path):
    program = "import os, torch\nif os.fork() == 0:\n    os._exit(3)\nprint(os.wait()[1] >> 8)\ntorch.ones(2) + 1\n"

    done = wrapped(tmp_path, program)

    assert (done.returncode, done.stdout) == (0, "3\n")
    assert names(tmp_path / "t.json").count("aten::add") == 1


@needs_torch
def test_steps_that_the_program_never_tells_are_missed(tmp_path):
    done = wrapped(tmp_path, "import torch\ntorch.ones(2) + 1\n", "--schedule", "2,1,3")

    assert done.returncode == 3
    assert "warplens.step()" in done.stderr


def test_importing_the_names_costs_no_pytorch():
    script = (
        "import sys, warplens; warplens.capture; warplens.step()\n"
        "print([name in sys.modules for name in ('torch', 'polars')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[False, False]\n"


@pytest.mark.parametrize(
    ("path", "options"),
    [("trace.txt", {}), ("t.json", {"wait": 1}), ("t.json", {"active": 0}), ("t.json", {"active": 1, "wait": -1})],
)
def test_captures_that_make_no_sense_are_refused(path, options):
    with pytest.raises(warplens.UsageError):
        warplens.capture(path, **options)
