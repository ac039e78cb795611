"""`warplens bench`: what it measures, how it says so, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from warplens.cli.catalogue import COMMANDS
from warplens.cli.commands.bench import axes_of
from warplens.readers.measurements import read_measurements


def test_without_pytorch_one_line_says_what_to_install(warplens, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    run = warplens("bench", "lm", "--size", "tiny")
    assert run.code == 2
    assert run.err.startswith('error: workloads need PyTorch, which is not installed: pip install "warplens[gpu]"')
    assert run.err.count("\n") == 1


def test_texts_become_settings_of_their_type():
    given = {"locations": "3+6+9,1+2", "schedule": "0.7+0.5+0.3", "keep": "0.1,0.5", "batch": "1,16", "method": "topk"}
    assert axes_of("token-reduction", given) == {
        "locations": [(3, 6, 9), (1, 2)], "schedule": [(0.7, 0.5, 0.3)], "keep": [0.1, 0.5], "batch": [1, 16],
        "method": ["topk"],
    }  # fmt: skip
    assert axes_of("attention", {"causal": "yes,no", "seq_len": None}) == {"causal": [True, False]}


def test_nothing_of_the_program_imports_pytorch_before_it_is_needed():
    modules = sorted({command.function().__module__ for command in COMMANDS.values()})
    modules += ["warplens", "warplens.cli.main", "warplens.workloads", "warplens.workloads.settings"]
    modules += ["warplens.workloads.cells", "warplens.workloads.registry", "warplens.readers.measurements"]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.fixture
def _torch():
    pytest.importorskip("torch", reason="measuring needs PyTorch")


@pytest.mark.usefixtures("_torch")
def test_a_grid_of_the_language_model_is_measured_and_stored(warplens, tmp_path):
    path = tmp_path / "lm.json"
    run = warplens(
        "bench", "lm", "--size", "tiny", "--context", "8,16", "--batch", "2", "--mode", "forward,train",
        "--device", "cpu", "--repetitions", "6", "--output", path,
    )  # fmt: skip
    assert run.code == 0, run.err
    found = read_measurements(path)
    assert found.cells.select("context", "mode").rows() == [
        (8, "forward"), (8, "train"), (16, "forward"), (16, "train"),
    ]  # fmt: skip
    assert set(found.cells.get_column("status")) == {"measured"}
    assert found.command == (
        "warplens bench lm --size tiny --context 8,16 --batch 2 --mode forward,train --warmup 5 --repetitions 6"
    )
    assert "Sequences" in run.out


@pytest.mark.usefixtures("_torch")
def test_cells_that_exclude_settings_stand_beside_those_that_ran(warplens):
    run = warplens(
        "bench", "token-reduction", "--model", "tiny", "--input-size", "16", "--method", "none,ats", "--keep", "0.5",
        "--locations", "1+2", "--precision", "fp32", "--execution", "eager,graph", "--device", "cpu", "--rounds", "6",
        "--format", "json",
    )  # fmt: skip
    rows = run.data["rows"]
    assert [(row["method"], row["execution"], row["status"]) for row in rows] == [
        ("none", "eager", "measured"),
        ("none", "graph", "unsupported"),
        ("ats", "eager", "measured"),
        ("ats", "graph", "unsupported"),
    ]
    assert rows[0]["rounds"] == 6


@pytest.mark.usefixtures("_torch")
def test_attention_kernels_are_checked_and_timed(warplens):
    run = warplens(
        "bench", "attention", "--kernel", "sdpa-math,none-such", "--seq-len", "16", "--heads", "2", "--head-dim", "8",
        "--dtype", "float32", "--device", "cpu", "--repetitions", "6", "--format", "json",
    )  # fmt: skip
    assert run.code == 0, run.err
    found = run.data
    assert [row["status"] for row in found["rows"]] == ["measured", "unsupported"]
    # causal: half of 4 · S² · D · heads
    assert found["rows"][0]["flops"] == 2 * 16 * 16 * 8 * 2
    assert found["details"][0]["check"]["passed"] is True


@pytest.mark.usefixtures("_torch")
def test_kernels_are_held_against_float64_without_being_timed(warplens, tmp_path):
    words = ("--kernel", "sdpa-math", "--seq-len", "16,32", "--head-dim", "16", "--heads", "2", "--device", "cpu")
    run = warplens(
        "bench", "attention", "--check", *words, "--dtype", "float16", "--report", tmp_path / "page", "-f", "json"
    )

    assert run.code == 0, run.err
    rows = run.data["rows"]
    assert [row["tokens"] for row in rows] == [16, 32]
    assert all(0 < row["relative"] <= 2 * row["formula_relative"] for row in rows)
    assert (tmp_path / "page" / "errors.html").is_file()


@pytest.mark.usefixtures("_torch")
def test_a_kernel_that_computes_something_else_fails_the_check(warplens, monkeypatch):
    from warplens.workloads.attention import problem

    wrong = problem.AttentionKernel("wrong", "torch", lambda q, k, v, causal: q + 0 * k * v)
    monkeypatch.setattr(problem, "KERNELS", {"wrong": wrong})
    words = ("--kernel", "wrong", "--seq-len", "16", "--head-dim", "16", "--heads", "1", "--device", "cpu")
    run = warplens("bench", "attention", "--check", *words, "--dtype", "float32", "-f", "json")

    assert run.code == 1
    assert [row["near_enough"] for row in run.data["rows"]] == [False]
