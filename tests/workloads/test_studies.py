"""Studies and sweeps with PyTorch, at tiny size on the CPU, in the processes that a real run has."""

from __future__ import annotations

import json

import pytest

from warplens.studies.runner.engine import RunOptions, measure
from warplens.studies.runner.studies import STUDIES, StudyOptions
from warplens.studies.runner.workloadsweep import WorkloadSweep

pytest.importorskip("torch", reason="measuring needs PyTorch")

#: What keeps a study to one point or two.
SMALL = {
    "token-reduction": ("input_size=16", "batch=1,2"),
    "lm-grid": ("context=8", "mode=forward,train"),
    "attention": ("seq_len=32",),
}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_study_runs_on_any_machine(name, tmp_path):
    run = STUDIES[name].run(StudyOptions(SMALL[name], quick=True, rounds=6 if name == "token-reduction" else None))
    output, lines = tmp_path / "measurements.json", []
    measure(run, output, RunOptions(one_process=True), lines.append)
    statuses = [record["status"] for record in json.loads(output.read_text())["measurements"]]
    if name == "attention":
        # Own kernels need a GPU, or Triton's interpreter, which is not asked for.
        assert statuses == ["unsupported", "measured", "measured"]
    else:
        assert statuses == ["measured"] * sum(len(task.cells) for task in run.tasks)
    assert lines[-1].startswith("done, in ")


def test_a_sweep_of_token_reduction_compares_the_same_point_in_turns(tmp_path):
    axes = ("model=tiny", "precision=fp32", "locations=1+2", "input_size=16,32", "execution=eager,graph")
    asked = WorkloadSweep("token-reduction", axes, "method=none", "method=topk,keep=0.1", rounds=6, device="cpu")
    measure(asked.run(), tmp_path / "sweep.json", RunOptions(), lambda _: None)
    found = json.loads((tmp_path / "sweep.json").read_text())
    rows = [
        (record["cell"]["input_size"], record["cell"]["method"], record["rounds"])
        for record in found["measurements"]
        if record["cell"]["execution"] == "eager"
    ]
    assert rows == [(16, "none", 6), (16, "topk", 6), (32, "none", 6), (32, "topk", 6)]
    graphs = [record for record in found["measurements"] if record["cell"]["execution"] == "graph"]
    assert {record["reason"] for record in graphs} == {"a CUDA graph needs a CUDA device"}
    assert found["sweep"] == {
        "axes": {
            "model": ["tiny"], "precision": ["fp32"], "locations": [[1, 2]], "input_size": [16, 32],
            "execution": ["eager", "graph"],
        },
        "baseline": {"method": "none"},
        "variant": {"method": "topk", "keep": 0.1},
    }  # fmt: skip
