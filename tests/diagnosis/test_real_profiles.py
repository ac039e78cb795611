"""Verdicts on real captures whose limits are known: from the captures' own description, timings without a profiler, and
what else is in the file. Third-party profiles are read in place and skipped where they are not at hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import warplens
from tests import shipped
from tests.shipped import of_others
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis, diagnose
from warplens.readers import read, read_counters
from warplens.report.brief import answer_block, brief


@cache
def _shipped(name: str) -> Diagnosis:
    return _diagnosed(shipped.capture(name))


def _diagnosed(path: Path, counters: Path | None = None) -> Diagnosis:
    timeline = Timeline(read(path))
    return diagnose(timeline, timeline.window(), read_counters(counters) if counters else None)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("deit224_bs1_baseline", "launch-overhead"),
        ("deit224_bs1_topk0.1", "launch-overhead"),
        ("deit448_bs8_baseline", "unfused-attention"),
        ("deit224_bs1_graph_whole", "graph-opaque"),
        ("lm_small_ctx128_forward", "launch-overhead"),
        ("lm_small_ctx1024_forward", "precision"),
        ("lm_medium_ctx1024_train", "precision"),
        ("lm_large_ctx1024_forward", "precision"),
        ("lm_large_ctx1024_train", "incomplete-profile"),
    ],
)
def test_the_verdict_on_a_shipped_capture(name: str, verdict: str) -> None:
    assert _shipped(name).verdict == verdict


def test_a_busy_gpu_is_told_of_attention_that_is_written_out() -> None:
    """785 tokens, scores scaled in fp32, a softmax, and products that are aligned to two bytes alone."""
    found = _shipped("deit448_bs8_baseline").findings[0]
    assert found.evidence["attentions_per_step"] == 12
    assert found.severity == "critical"


def test_the_launch_bound_reading_rests_on_the_timeline_not_on_a_cost_per_launch() -> None:
    """177 launches at 8 µs would be 1.4 ms of the step's 4.17 ms; the GPU was idle for 3.4 ms of it."""
    found = _shipped("deit224_bs1_baseline").findings[0]
    assert found.evidence["launches_per_step"] == 177
    assert found.evidence["idle_ns"] / 10 == pytest.approx(3.39e6, rel=0.01)
    # Without a profiler a step takes 2.60 ms, and 0.76 ms from a CUDA graph: 3.4 times as fast.
    assert found.expected == pytest.approx(3.4, rel=0.2)
    assert found.bound > 4.167 / 0.78


@pytest.mark.parametrize(("name", "trains"), [("deit224_bs1_baseline", False), ("lm_small_ctx128_train", True)])
def test_only_a_training_step_is_told_of_optimizers_and_data_loaders(name: str, trains: bool) -> None:
    found = _shipped(name).finding("launch-overhead")
    assert found is not None
    code = "\n".join(remedy.how for remedy in found.remedies)
    assert ("AdamW" in code, "DataLoader" in code) == (trains, trains)


def test_products_in_four_bits_are_not_told_to_use_a_narrower_format() -> None:
    """A decoder's graphs with MXFP4 weights, launched before the window."""
    path = of_others("kineto/tracelens_vllm_graph_execution.json.gz")
    found = _diagnosed(path).finding("tensor-compute")
    assert found is not None
    assert not any("fp8" in remedy.how for remedy in found.remedies)
    assert not any("0 launches" in line for line in warplens.diagnose(path).facts)


@pytest.mark.parametrize(
    ("name", "asked"), [("kineto/tracelens_vllm_graph_execution.json.gz", False), ("pairs/healthy_gpt.sqlite", True)]
)
def test_shapes_are_asked_for_where_the_trace_has_none(name: str, asked: bool) -> None:
    found = _diagnosed(of_others(name)).finding("below-roof")
    assert found is not None
    assert any("record_shapes" in remedy.how for remedy in found.remedies) is asked


def test_a_gpu_that_is_not_named_is_asked_for() -> None:
    path = of_others("kineto/tracelens_vllm_graph_execution.json.gz")
    unnamed = _diagnosed(path)
    assert "does not name its GPU" in unnamed.headline
    assert unnamed.findings[0].remedies[0].action == "Name the GPU that it ran on"

    # It is an AMD GPU: the trace has its limits, and lacks its name.
    (counters,) = warplens.diagnose(warplens.read(path, gpu="MI300X")).findings[0].remedies
    assert "rocprof-compute profile" in counters.how
    assert "ncu --set" not in counters.how


def test_chains_of_passes_are_named_on_an_amd_gpu_and_its_counters_are_read_by_its_makers_tool() -> None:
    trace = warplens.read(of_others("kineto/tracelens_mi300_qwen0p5b.json.gz"), gpu="MI300X")
    assert trace.capture.recorder.counters == "rocprof-compute"
    assert warplens.read(of_others("kineto/tracelens_h100_qwen0p5b.json.gz")).capture.recorder.counters == "ncu"
    # The same model on both: norms, rotary embeddings and activations in separate passes.
    assert warplens.diagnose(trace).verdict == "unfused-chain"


def test_a_hand_written_optimizer_limits_its_phase() -> None:
    by_phase = {part.phase: part for part in _shipped("lm_small_ctx128_train").per_phase}
    assert by_phase["optimizer"].verdict == "unfused-optimizer"
    assert by_phase["forward"].verdict == by_phase["backward"].verdict == "launch-overhead"
    # 110 parameter tensors, 16 launches each and two fills (the capture's description: AdamW tensor by tensor).
    evidence = _shipped("lm_small_ctx128_train").finding("unfused-optimizer").evidence  # type: ignore[union-attr]
    assert evidence["launches_per_step"] == pytest.approx(110 * 16, rel=0.02)


@pytest.mark.parametrize("form", ["sqlite.xz", "pt.trace.json.xz"])
def test_an_optimizer_on_lists_is_not_told_to_use_lists(form: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "data" / "pairs" / "held_out"
    found = _diagnosed(next(folder.glob(f"mistral_foreach_optimizer__before.{form[:6]}*"))).finding("unfused-optimizer")
    assert found is not None
    assert not any("foreach=True" in remedy.how for remedy in found.remedies)
    assert found.evidence.get("optimizer_share") != 0  # where nothing tells it from other work, it is not known


def test_a_step_that_ran_out_of_memory_is_not_diagnosed() -> None:
    found = _shipped("lm_large_ctx1024_train")
    assert [finding.id for finding in found.findings] == ["incomplete-profile"]
    assert found.per_phase == ()


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("nsys/h200_lm_small_lost_kernels.sqlite", "incomplete-profile"),
        ("nsys/wsl2_no_cuda_tables.sqlite", "incomplete-profile"),
        ("nsys/empty_capture_old.sqlite", "incomplete-profile"),
        ("nsys/a100_lm2p7b_cudagraph.sqlite", "graph-opaque"),
        ("nsys/a100_lm2p7b_nvtx.sqlite", "precision"),
        ("nsys/a100_lm_small_no_nvtx.sqlite", "launch-overhead"),
        ("nsys/rtx5000_lm_small_windows.sqlite", "launch-overhead"),
        ("nsys/h100x2_before.sqlite", "below-roof"),
        ("kineto/h200_topk_deit224_bs1.json.gz", "launch-overhead"),
        ("kineto/hta_cpu_only_rank34.json.gz", "incomplete-profile"),
    ],
)
def test_the_verdict_on_a_profile_from_elsewhere(name: str, verdict: str) -> None:
    assert _diagnosed(of_others(name)).verdict == verdict


def test_what_was_found_comes_before_naming_the_gpu_and_a_late_rank_that_costs_nothing_is_not_told() -> None:
    """Casts and elementwise passes take 30 % of the time; rank 1 is late, but its hosts would be as late without it."""
    found = _diagnosed(of_others("nsys/h100x2_before.sqlite"))
    assert (found.verdict, found.verdict_known) == ("below-roof", False)
    lines = {line.label: line for line in brief(found, path="it.sqlite")}
    assert lines["do"].text.startswith("Compile the blocks.")
    assert lines["also"].text.startswith("Name the GPU")
    assert lines["also"].code == ("warplens diagnose it.sqlite --gpu '<name>'  # such as H100 PCIe",)
    assert answer_block(found, ()).do == "Compile the blocks"
    assert found.finding("straggler") is None


@pytest.mark.parametrize("name", ["held_out/masks_image_by_image", "development/bert_empty_cache"])
def test_the_same_program_gets_the_same_verdict_from_both_profilers(name: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "data" / "pairs"
    nsys = _diagnosed(folder / f"{name}__before.sqlite.xz")
    torch = _diagnosed(next(folder.glob(f"{name}__before.pt.trace.json.*")))
    assert nsys.verdict == torch.verdict
    assert nsys.findings[0].expected == pytest.approx(torch.findings[0].expected, rel=0.15)


def test_counters_of_the_warm_up_say_nothing_of_the_steps() -> None:
    """The report holds the first 30 launches of the program, which set its weights up."""
    found = _diagnosed(shipped.capture("deit448_bs8_baseline"), of_others("ncu/h200_deit448_bs8.ncu-rep"))
    assert found.verdict == "unfused-attention"
    assert found.coverage.counters_share is None
    assert any("warplens counters" in line for line in found.coverage.unavailable)


def test_a_recording_that_takes_longer_than_what_it_records_says_so() -> None:
    """A step takes 0.193 ms without a profiler (median of 40, `captures/profiler_overhead.py`)."""
    folder = Path(__file__).resolve().parents[2] / "data" / "recordings"
    plain, stacks = (_diagnosed(folder / f"overhead_{name}.json.xz") for name in ("plain", "stacks"))
    (found,) = [finding for finding in stacks.findings if finding.id == "profiler-overhead"]
    lost = 1 - 0.193e6 / (stacks.coverage.wall_ns / stacks.coverage.steps)
    assert found.evidence["python_calls_per_step"] > 1_800  # two for each of 300 words, and what str and dict are asked
    assert lost / 2 < found.evidence["recording_share"] < lost
    assert "profiler-overhead" not in {finding.id for finding in plain.findings}


def test_sums_beside_a_pipeline_are_not_told_as_its_transfers() -> None:
    found = _diagnosed(shipped.FOLDERS[1] / "pairs" / "ranks" / "pipeline_of_one.sqlite.xz")
    assert found.findings[0].title.endswith(": 1 micro-batch for 2 stages")
    sums = found.finding("exposed-communication")  # the transfers are claimed by the pipeline
    assert "backward pass" in sums.remedies[0].action


_DATA = Path(__file__).parents[2] / "data"


def test_pauses_in_which_a_profiler_records_operators_are_partly_its_own() -> None:
    """A recurrent network whose weights lie in pieces: the host copies them inside one operator after another."""
    found = _diagnosed(_DATA / "pairs/sixteenth/recurrent_weights_in_pieces__before.pt.trace.json.xz")
    assert found.verdict == "host-stall"
    assert (found.unprofiled_share or 0.0) < 0.8 * (found.headline_share or 0.0)
    (gain,) = (line.text for line in brief(found) if line.label == "gain")
    assert "without a profiler, whose cost is part of the" in gain


def test_a_remedy_that_leaves_a_part_of_the_communication_is_not_put_down_to_the_host() -> None:
    found = _diagnosed(_DATA / "planted/ddp_exposed_rank1.json.xz")
    assert found.verdict == "exposed-communication"
    assert "; the first remedy saves a part of it; about" in found.headline


_PAIRS = shipped.FOLDERS[1] / "pairs"


def test_a_cause_before_a_larger_gain_says_why_and_the_answer_keeps_it() -> None:
    found = _diagnosed(_PAIRS / "thirtieth" / "scan_registration__before.pt.trace.json.xz")
    told = " It comes before launch-overhead (about 1.61×): a host that waits cannot get ahead of the GPU"
    assert told in found.headline
    assert told in next(iter(brief(found))).text


def test_a_later_finding_says_what_else_its_remedy_removes() -> None:
    """Its pauses are 2.9 % of the time; most of the gain is of pauses inside the first finding's waits."""
    found = _diagnosed(_PAIRS / "fourth" / "forecast_anomaly_mode__before.pt.trace.json.xz").findings[1]
    assert found.id == "host-stall"
    assert found.remedies[0].expected.endswith("; it also removes other pauses")


def test_waiting_during_which_hosts_are_busy_is_not_told_as_the_cost_of_a_late_rank() -> None:
    ranks = sorted((_PAIRS / "ranks").glob("sharded_by_linear__rank*"))
    found = warplens.diagnose(ranks).diagnosis.finding("straggler")
    assert found is not None
    assert "486.2 ms per step, of which 23.4 ms cost time" in found.title
    assert len({remedy.action for remedy in found.remedies}) == len(found.remedies)


def test_half_of_the_bytes_gain_no_more_than_the_pace_of_the_host_lets_them() -> None:
    found = _diagnosed(of_others("kineto/hta_negative_queue_rank0.json.gz")).finding("exposed-communication")
    assert found is not None
    less = next(remedy for remedy in found.remedies if remedy.action == "Communicate less")
    assert "; with half of the bytes, and in proportion to them; the host then sets the pace" in less.expected


def test_without_a_roof_no_share_of_known_work_is_told() -> None:
    """Operations are known all the same, as `warplens flops` shows."""
    found = _diagnosed(of_others("kineto/tracelens_vllm_graph_execution.json.gz")).finding("below-roof")
    assert found is not None
    assert "known_work_share" not in found.evidence


def test_a_program_that_only_answers_is_not_advised_on_its_optimizer_or_training() -> None:
    found = _diagnosed(_PAIRS / "sixteenth" / "windows_to_and_fro__before.pt.trace.json.xz").finding("host-stall")
    assert found is not None
    code = " ".join(remedy.how for remedy in found.remedies)
    assert "program.py" in code
    assert "optimizer" not in code
    assert "train.py" not in code
