"""Real pairs of profiles whose difference is known from how they were made."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

import warplens
from tests import shipped
from warplens.analysis.kernels import kernel_statistics
from warplens.analysis.phases import step_statistics
from warplens.analysis.ranges import range_statistics
from warplens.compare.difference import Explanation, StepDifference, explanation, step_difference
from warplens.compare.many import many_differences
from warplens.compare.side import Side

PLANTED = Path(__file__).resolve().parents[3] / "data" / "planted"
TRACES = next(
    (
        folder
        for parent in Path(__file__).resolve().parents
        if (folder := parent / "shared" / "data" / "kineto").is_dir()
    ),
    None,
)


@cache
def _side(path: Path) -> Side:
    timeline = warplens.Timeline(warplens.read(path))
    return Side(path.name.split(".")[0], timeline, timeline.window("steady"))


@cache
def _difference(baseline: Path, variant: Path) -> StepDifference:
    return step_difference(_side(baseline), _side(variant))


def _capture(name: str) -> Path:
    return shipped.capture(name)


def _planted(name: str, variant: str, ending: str = "sqlite") -> Path:
    return PLANTED / f"{name}__{variant}.{ending}.xz"


def _explained(baseline: Path, variant: Path) -> Explanation:
    return explanation(_difference(baseline, variant))


@pytest.fixture(scope="module")
def paradox():
    return _difference(_capture("deit224_bs1_baseline"), _capture("deit224_bs1_topk0.1"))


def test_less_gpu_work_is_slower_because_the_host_limits_it(paradox):
    """captures/README.md: 177 → 209 kernels a step, 0.76 → 0.69 ms of GPU time, 4.18 → 4.55 ms a step."""
    found = explanation(paradox)
    assert paradox.kernels.launches_per_step == (177, 209)
    assert [round(time / 1e6, 2) for time in paradox.kernels.ns_per_step] == [0.76, 0.69]
    assert [float(one.wall_ns) / 1e6 for one in (paradox.wall.baseline, paradox.wall.variant)] == pytest.approx(
        [4.18, 4.55], rel=0.01
    )
    assert (found.cause, found.direction) == ("host-issue-bound", "slower")
    assert found.is_paradox
    assert found.launches_change == 32
    assert found.share == pytest.approx(1, abs=0.05)
    assert (found.baseline_bound, found.variant_bound) == ("host-issue", "host-issue")


def test_the_added_kernels_are_those_of_the_reduction_and_of_smaller_products(paradox):
    added = paradox.kernels.table.filter(pl.col("change") == "added")
    by_range = dict(added.group_by("variant_range").agg(pl.col("variant_launches_per_step").sum()).iter_rows())
    # Products of few rows are split along K, and a second kernel adds up what the first left.
    assert by_range == {"block_N / token_reduction": 23, "block_N / mlp": 9}
    assert "splitKreduce_kernel" in added["name"].to_list()
    assert not paradox.kernels.table.filter(pl.col("change") == "removed").height


def test_added_launches_cost_more_than_the_step_lost(paradox):
    launches = paradox.launches
    assert launches.added_cost_ns > float(paradox.wall.change_ns) > 0 > launches.pace_cost_ns
    assert launches.added_cost_ns + launches.pace_cost_ns == pytest.approx(float(paradox.wall.change_ns), rel=0.05)


def test_every_figure_agrees_with_the_analysis_of_one_profile(paradox):
    for one, of_side, name in (
        (paradox.baseline, paradox.wall.baseline, "baseline"),
        (paradox.variant, paradox.wall.variant, "variant"),
    ):
        steps = step_statistics(one.timeline, one.window)
        assert float(of_side.wall_ns - of_side.between_ns) == pytest.approx(steps["wall_ns"].mean())
        kernels = kernel_statistics(one.timeline, one.window)
        assert paradox.kernels.table[f"{name}_ns"].sum() == kernels["total_ns"].sum()
        ranges = range_statistics(one.timeline, one.window, by="name")
        row = ranges.row(by_predicate=pl.col("name") == "attention", named=True)
        found = paradox.merged_ranges.row(by_predicate=pl.col("path") == "block_N / attention", named=True)
        assert found[f"{name}_ns"] == row["gpu_ns"]


def test_at_a_larger_size_the_reduction_pays_because_gpu_work_falls():
    """captures/README.md: 9.24 → 3.78 ms of GPU time; 213 → 242 kernels."""
    found = _explained(_capture("deit448_bs8_baseline"), _capture("deit448_bs8_topk0.1"))
    assert (found.cause, found.direction) == ("gpu-work", "faster")
    assert found.gpu_change_share == pytest.approx(3.78 / 9.24 - 1, abs=0.01)
    assert (found.launches_change, found.baseline_bound) == (29, "gpu")
    assert not found.is_paradox


@pytest.mark.parametrize("traced", ["nodes", "whole"])
def test_a_cuda_graph_takes_the_waiting_for_launches_away(traced):
    found = _explained(_capture("deit224_bs1_baseline"), _capture(f"deit224_bs1_graph_{traced}"))
    assert (found.cause, found.direction) == ("host-issue-bound", "faster")
    assert found.share == pytest.approx(1, abs=0.01)
    assert found.gpu_change_share == pytest.approx(0, abs=0.02)
    assert found.launches_change == (0 if traced == "nodes" else None)


def test_a_graphs_kernels_are_those_of_the_eager_program():
    kernels = _difference(_capture("deit224_bs1_baseline"), _capture("deit224_bs1_graph_nodes")).kernels
    assert kernels.count("kept") == 177
    assert set(kernels.table["change"].to_list()) == {"kept"}


#: Planted program, its remedy → the cause that went away.
_REMEDIED = {
    ("deep_mlp_bs1", "cuda-graph"): "host-issue-bound",
    ("vit_bs1", "cuda-graph"): "host-issue-bound",
    ("fp32_products", "tf32"): "gpu-work",
    ("sleeping_input", "prefetch"): "idle: host",
    ("pageable_input", "pinned"): "copies",
    ("item_per_layer", "no-sync"): "idle: synchronization",
}


@pytest.mark.parametrize("ending", ["sqlite", "json"])
@pytest.mark.parametrize(("program", "remedy"), list(_REMEDIED))
def test_what_a_remedy_takes_away_is_the_planted_cause(program, remedy, ending):
    found = _explained(_planted(program, "baseline", ending), _planted(program, remedy, ending))
    assert (found.cause, found.direction) == (_REMEDIED[program, remedy], "faster")
    back = _explained(_planted(program, remedy, ending), _planted(program, "baseline", ending))
    assert back.change_ns == -found.change_ns


def test_flops_do_not_change_with_the_precision_but_the_time_does():
    difference = _difference(_planted("fp32_products", "baseline", "json"), _planted("fp32_products", "tf32", "json"))
    assert difference.work.source == "modelled"
    assert difference.work.flops_ratio == 1
    assert difference.wall.ratio < 0.2
    unknown = _difference(_planted("fp32_products", "baseline"), _planted("fp32_products", "tf32")).work
    assert (unknown.source, unknown.flops_ratio) == (None, None)


@pytest.mark.parametrize("program", ["vit_bs1", "for_loop_adam", "written_out_norms", "healthy_lm_training"])
def test_two_tools_saw_the_same_kernels_of_one_program(program):
    difference = _difference(_planted(program, "baseline"), _planted(program, "baseline", "json"))
    assert set(difference.kernels.table["change"].to_list()) == {"kept"}
    before, after = difference.kernels.ns_per_step
    assert after == pytest.approx(before, rel=0.01)
    assert "different-tool" in {note.code for note in difference.notes}


def test_an_aborted_step_is_noted_before_any_number():
    difference = _difference(_planted("healthy_lm_training", "baseline"), _planted("aborted_step", "baseline"))
    assert difference.notes[0].code == "aborted-steps"


def test_training_with_a_longer_context_takes_longer_in_every_phase():
    difference = _difference(_capture("lm_small_ctx512_train"), _capture("lm_small_ctx1024_train"))
    changes = dict(difference.phases.select("phase", "change_ns_per_step").iter_rows())
    assert changes["backward"] > changes["forward"] > 0
    # The optimizer's work depends on the parameters alone.
    optimizer = difference.phases.row(by_predicate=pl.col("phase") == "optimizer", named=True)
    assert abs(changes["optimizer"]) < 0.02 * optimizer["baseline_ns_per_step"]
    assert explanation(difference).cause == "gpu-work"


def test_halves_of_one_profile_show_no_differences_between_kernels():
    timeline = _side(_capture("deit224_bs1_baseline")).timeline
    steps = timeline.window("steady").steps
    middle = len(steps) // 2
    halves = [
        Side("half", timeline, timeline.window(f"{part[0].start_ns}:{part[-1].end_ns}"))
        for part in (steps[:middle], steps[middle:])
    ]
    verdicts = many_differences(*step_difference(*halves).kernels.samples())["verdict"].cast(pl.String)
    assert verdicts.is_in(["same", "undecided"]).mean() >= 0.95


def test_kernels_of_smaller_matrices_are_decided_to_be_faster():
    kernels = _difference(_capture("deit448_bs8_baseline"), _capture("deit448_bs8_topk0.1")).kernels
    verdicts = kernels.table.with_columns(many_differences(*kernels.samples())["verdict"])
    of_change = {
        change: rows.select((pl.col("verdict") == "faster").mean()).item()
        for (change,), rows in verdicts.partition_by("change", as_dict=True).items()
    }
    assert of_change["changed"] > 0.8
    assert of_change["added"] == 0
    assert verdicts.filter(pl.col("change") == "added")["verdict"].unique().to_list() == ["slower"]


@pytest.mark.skipif(TRACES is None, reason="the public traces (shared/data/kineto) are not here")
@pytest.mark.parametrize(
    ("baseline", "variant"),
    [
        ("hta_trace_diff_control.json.gz", "hta_trace_diff_test.json.gz"),
        ("tracelens_h100_qwen0p5b.json.gz", "tracelens_mi300_qwen0p5b.json.gz"),
        ("hta_alexnet.json.gz", "hta_amd_mi250_minitoy.json.gz"),
        ("hta_cpu_only_rank34.json.gz", "hta_alexnet.json.gz"),
    ],
)
def test_any_two_traces_are_split_exactly(baseline, variant):
    difference = _difference(TRACES / baseline, TRACES / variant)
    assert difference.wall.residual_ns == 0
    for one, name in ((difference.baseline, "baseline"), (difference.variant, "variant")):
        kernels = one.work.filter(pl.col("kind") == "kernel")
        assert difference.kernels.table[f"{name}_launches"].sum() == kernels.height
