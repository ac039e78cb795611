"""Grids of cells: what is combined, what is measured, and what becomes of a cell that fails."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest

from warplens.errors import UsageError
from warplens.workloads import Program, Workload, register, workload
from warplens.workloads.cells import cell_grid, default_device, run_cells, run_cells_in_turns
from warplens.workloads.registry import Plan, document, write_measurements
from warplens.workloads.settings import AttentionCell, LMCell, TokenReductionCell, setting_value

PLAN = Plan.exactly(6, warmup_steps=1)


def test_a_grid_is_every_combination_the_last_axis_fastest():
    cells, impossible = cell_grid(LMCell, {"size": ["small", "medium"], "context": [128, 256]})
    assert [(cell.size, cell.context) for cell in cells] == [
        ("small", 128), ("small", 256), ("medium", 128), ("medium", 256),
    ]  # fmt: skip
    assert impossible == []


def test_cells_that_come_to_the_same_are_one():
    cells, _ = cell_grid(TokenReductionCell, {"method": ["none", "topk"], "keep": [0.1, 0.5]})
    assert [(cell.method, cell.keep) for cell in cells] == [("none", 1.0), ("topk", 0.1), ("topk", 0.5)]
    cells, _ = cell_grid(LMCell, {"mode": ["forward", "train"], "optimizer": ["reference", "torch"]})
    assert [(cell.mode, cell.optimizer) for cell in cells] == [
        ("forward", "none"), ("train", "reference"), ("train", "torch"),
    ]  # fmt: skip


def test_settings_that_exclude_one_another_are_recorded_beside_those_that_do_not():
    cells, impossible = cell_grid(TokenReductionCell, {"method": ["topk", "ats"], "execution": ["eager", "graph"]})
    assert len(cells) == 3
    (record,) = impossible
    assert (record["status"], record["cell"]["method"], record["cell"]["batch"]) == ("unsupported", "ats", 1)
    assert "CUDA graph" in record["reason"]


@pytest.mark.parametrize(
    ("cell", "wrong", "reason"),
    [
        (LMCell, {"size": "huge"}, "known are tiny, small"),
        (LMCell, {"mode": "backward"}, "known are forward"),
        (LMCell, {"context": 0}, "at least 1"),
        (LMCell, {"mode": "train", "execution": "graph"}, "bias correction"),
        (TokenReductionCell, {"input_size": 230}, "multiple of the patch, 16"),
        (TokenReductionCell, {"keep": 0.0}, "above 0"),
        (TokenReductionCell, {"locations": (3, 12)}, "blocks 0 to 11"),
        (TokenReductionCell, {"locations": (6, 3)}, "rising order"),
        (TokenReductionCell, {"schedule": (0.5,)}, "1 shares for 3 locations"),
        (TokenReductionCell, {"attention": "fused", "method": "ats"}, "attention weights"),
        (AttentionCell, {"dtype": "fp16"}, "known are float16"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_could(cell, wrong, reason):
    with pytest.raises(UsageError, match=reason):
        cell(**wrong)


def test_a_schedule_gives_each_location_its_own_share():
    assert TokenReductionCell(keep=0.5).shares == (0.5, 0.5, 0.5)
    assert TokenReductionCell(schedule=(0.7, 0.5, 0.3)).shares == (0.7, 0.5, 0.3)


def test_the_three_workloads_are_known_and_others_are_not():
    assert [workload(name).cell for name in ("lm", "token-reduction", "attention")] == [
        LMCell, TokenReductionCell, AttentionCell,
    ]  # fmt: skip
    with pytest.raises(UsageError, match="known are lm"):
        workload("lmm")


def test_without_pytorch_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r'pip install "warplens\[gpu\]"'):
        default_device()


@dataclass(frozen=True)
class Trouble:
    """What a step of the test's own workload runs into."""

    kind: str = "none"


def _prepare(cell, setting):
    torch = pytest.importorskip("torch", reason="running cells needs PyTorch")

    def step():
        if cell.kind == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB\nand more words")
        if cell.kind == "host memory":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 byte")
        if cell.kind == "defect":
            raise RuntimeError("shapes do not match")
        if cell.kind == "usage":
            raise UsageError("not on this device")

    return Program(step=step, items=3, unit="row")


@pytest.fixture
def trouble(monkeypatch):
    pytest.importorskip("torch", reason="running cells needs PyTorch")
    monkeypatch.setattr("warplens.workloads.registry.WORKLOADS", {})
    register(Workload("trouble", "Fails as told.", Trouble, _prepare))
    monkeypatch.setattr("warplens.workloads.registry.workload", _registered)


def _registered(name):
    from warplens.workloads import registry

    return registry.WORKLOADS[name]


@pytest.mark.usefixtures("trouble")
def test_a_cell_that_fails_is_recorded_and_the_next_one_is_measured():
    kinds = ["memory", "host memory", "defect", "usage", "none"]
    records = list(run_cells("trouble", [Trouble(kind) for kind in kinds], plan=PLAN, device="cpu"))
    assert [record["status"] for record in records] == [
        "out-of-memory", "out-of-memory", "failed", "unsupported", "measured",
    ]  # fmt: skip
    assert records[0]["reason"] == "CUDA out of memory. Tried to allocate 80 GiB"
    assert records[-1]["items"] == 3


@pytest.mark.usefixtures("trouble")
def test_throughput_times_latency_is_the_batch():
    (record,) = run_cells("trouble", [Trouble()], plan=PLAN, device="cpu")
    assert record["throughput_per_s"] * record["latency_ns"]["median"] / 1e9 == pytest.approx(3)
    assert record["sustained_per_s"] * record["latency_ns"]["mean"] / 1e9 == pytest.approx(3)


@pytest.mark.usefixtures("trouble")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="'cuda:99'"):
        next(run_cells("trouble", [Trouble()], plan=PLAN, device="cuda:99"))


def test_a_name_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setattr("warplens.workloads.registry.WORKLOADS", {})
    register(Workload("mine", "x", Trouble, _prepare))
    register(Workload("mine", "x", Trouble, _prepare))
    with pytest.raises(UsageError, match="another workload"):
        register(Workload("mine", "y", Trouble, _prepare))


@pytest.mark.parametrize("mode", ["forward", "forward-backward", "train"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_mode_and_precision_of_the_language_model_runs(mode, precision):
    pytest.importorskip("torch", reason="running cells needs PyTorch")
    cell = LMCell("tiny", context=8, batch=2, mode=mode, precision=precision)
    (record,) = run_cells("lm", [cell], plan=PLAN, device="cpu")
    assert record["status"] == "measured", record["reason"]
    phases = {"forward": 1, "forward-backward": 2, "train": 3}[mode]
    assert list(record["phases_ns"]) == ["forward_pass", "backward_pass", "optimizer_step"][:phases]
    assert record["details"] == {"parameters": 27_040, "tokens": 16, "layers": 2}
    factor = 1 if mode == "forward" else 3
    # by hand: 16 tokens · 2 layers · (4·32² + 3·32·64) + 2·2·8²·32·2 scores and values + 16·32·100 logits
    assert record["work"]["macs"] == factor * (16 * 2 * 10_240 + 16_384 + 51_200)


@pytest.mark.parametrize("optimizer", ["reference", "torch", "torch-fused"])
def test_a_training_step_changes_the_weights_and_a_forward_pass_does_not(optimizer):
    torch = pytest.importorskip("torch", reason="running cells needs PyTorch")
    from warplens.workloads.registry import OFF, Setting
    from warplens.workloads.settings import LM_SIZES
    from warplens.workloads.transformer_lm import TransformerLM, _Steps

    torch.manual_seed(0)
    model, tokens = TransformerLM(LM_SIZES["tiny"], 8), torch.randint(100, (2, 9))
    before = [parameter.clone() for parameter in model.parameters()]
    steps = _Steps(LMCell("tiny", 8, 2, "train", optimizer=optimizer), Setting("cpu", OFF), model, tokens)
    steps.forward()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    losses = [steps.train().item() for _ in range(12)]
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert losses[-1] < losses[0]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", ["none", "random", "topk", "evit", "tome", "dynamicvit", "ats"])
def test_every_token_reduction_runs_and_says_how_many_tokens_are_where(method):
    pytest.importorskip("torch", reason="running cells needs PyTorch")
    cell = TokenReductionCell("tiny", input_size=20, batch=2, method=method, locations=(1, 2), precision="fp32")
    (record,) = run_cells("token-reduction", [cell], plan=PLAN, device="cpu")
    assert record["status"] == "measured", record["reason"]
    details = record["details"]
    assert len(details["tokens"]) == 4
    assert details["tokens"][0] == [26, 26, 26]
    assert record["work"]["flops"] == 2 * details["macs_per_image"] * 2
    assert details["torchprofile_macs_per_image"] > details["macs_per_image"]
    assert (details["tokens"][-1][2] == 26) == (method == "none")


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("method", ["topk-fused", "evit-fused"])
def test_a_fused_reduction_counts_the_same_work_and_needs_a_gpu_or_an_interpreter(method, monkeypatch):
    cells = [
        TokenReductionCell("tiny", input_size=20, method=name, locations=(1, 2), precision="fp32")
        for name in (method, method.removesuffix("-fused"))
    ]
    fused, plain = run_cells("token-reduction", cells, plan=Plan.exactly(1, warmup_steps=1), device="cpu")
    assert fused["status"] == "measured", fused["reason"]
    assert fused["details"] == plain["details"]
    assert fused["work"] == plain["work"]
    monkeypatch.setattr("warplens.workloads.token_reduction.fused.kernel.INTERPRETED", False)
    (refused,) = run_cells("token-reduction", cells[:1], plan=PLAN, device="cpu")
    assert (refused["status"], "needs a GPU" in refused["reason"]) == ("unsupported", True)


def test_the_parts_of_a_step_are_annotated():
    torch = pytest.importorskip("torch", reason="running cells needs PyTorch")
    from warplens.workloads.registry import Ranges

    ranges = Ranges(on=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (record,) = run_cells(
            "lm", [LMCell("tiny", 8, 2, "train")], plan=Plan.exactly(3, warmup_steps=2), device="cpu", ranges=ranges
        )
    assert record["status"] == "measured"
    seen = [event.name for event in profile.events()]
    once_a_step = ("forward_pass", "backward_pass", "optimizer_step", "loss", "lm_head", "layer_0", "layer_1")
    assert {name: seen.count(name) for name in once_a_step} == dict.fromkeys(once_a_step, 5)
    per_layer = ("self_attention", "feed_forward", "scaled_dot_product_attention", "computing_attention_scores")
    per_layer += ("computing_softmax", "final_matmul")
    assert {name: seen.count(name) for name in per_layer} == dict.fromkeys(per_layer, 10)
    assert (seen.count("warmup"), seen.count("step")) == (2, 3)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "measurements.json"
    for number in (1, 2):
        records = [{"cell": {"kind": str(index)}, "status": "failed", "reason": "x"} for index in range(number)]
        write_measurements(path, document("trouble", PLAN, {"device": {"name": "CPU"}}, records))
        assert len(json.loads(path.read_text())["measurements"]) == number
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", True), ("True", True), ("true", True), ("1", True), ("no", False), ("False", False), ("0", False)],
)
def test_a_yes_or_no_may_be_typed_as_measurements_and_python_write_it(text, value):
    assert setting_value("--axis causal", text, not value) is value


def test_a_cell_that_cannot_run_is_left_out_of_the_turns():
    pytest.importorskip("torch", reason="measuring needs PyTorch")
    cells = [
        TokenReductionCell("tiny", 20, method="none", precision="fp32", execution="graph"),
        TokenReductionCell("tiny", 20, method="none", precision="fp32"),
        TokenReductionCell("tiny", 20, method="topk", locations=(1, 2), precision="fp32"),
    ]
    records = run_cells_in_turns("token-reduction", cells, rounds=6, plan=Plan.exactly(2), device="cpu")
    assert [record["status"] for record in records] == ["unsupported", "measured", "measured"]
    assert [record["cell"]["method"] for record in records] == ["none", "none", "topk"]
    assert [len(record["samples"]["wall_ns"]) for record in records[1:]] == [12, 12]
    assert records[1]["rounds"] == 6
