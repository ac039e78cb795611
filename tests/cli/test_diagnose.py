"""`warplens diagnose` on the shipped profiles and on a small one: all formats say the same."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shipped
from tests.analysis.counters.builders import SHARED, needs_reports
from tests.cli.rank_files import SLOW_RANK, WAIT_US, write_ranks

if TYPE_CHECKING:
    pass

CAPTURES = Path(str(files("warplens") / "data" / "captures"))
LAUNCH_BOUND = CAPTURES / "deit224_bs1_baseline.sqlite.xz"
TRAINING = shipped.capture("lm_small_ctx128_train")


def test_the_pace_of_the_host_splits_the_window(asked):
    data = asked("diagnose", LAUNCH_BOUND)["data"]
    pace, window = data["pace"], data["window"]
    assert sum(pace["thread_ns"].values()) == window["end_ns"] - window["start_ns"]
    low, middle, high = pace["host_ns_per_launch"]
    assert 0 < low <= middle <= high
    assert pace["launches"] == 10 * (177 + 2)  # kernels a step, as the captures' README says, and two fills


def test_a_range_is_judged_by_itself(asked):
    data = asked("diagnose", TRAINING, "--range", "optimizer_step")["data"]
    assert data["verdict"] == "unfused-optimizer"
    assert data["window"]["range"] == "optimizer_step"


@needs_reports
def test_counters_are_read_and_their_coverage_is_told(warplens):
    report = SHARED / "h200_deit448_bs8.ncu-rep"
    run = warplens("diagnose", CAPTURES / "deit448_bs8_baseline.sqlite.xz", "--counters", report)
    assert run.code == 0
    assert f"{report.name} has none of the window's kernels" in run.out


@pytest.mark.slow
def test_of_the_ranks_of_a_run_the_late_one_is_the_verdict(asked):
    ranks = shipped.files("planted", "ddp_straggler-gpu_rank*.json.xz")
    data = asked("diagnose", *ranks)["data"]
    assert data["verdict"] == data["findings"][0]["id"] == "straggler"
    assert data["together"]["late_rank"] == 1
    finding = data["findings"][0]
    assert finding["where"][:2] == ["rank 1", "extra_work"]
    # Without a profiler the step took as long with the planted 12 ms as without: the hosts set the pace (INDEX.json).
    low, high = finding["expected_interval"]
    assert low <= 1.02 < high


@pytest.mark.slow
def test_where_the_host_costs_more_the_late_rank_is_told_all_the_same(asked, warplens, tmp_path):
    write_ranks(tmp_path, 3)
    late = (
        f"Rank {SLOW_RANK} is late and the others wait for it, {WAIT_US / 1000} ms per step, of which 0.0 ms cost time"
    )
    text = warplens("diagnose", tmp_path).out
    assert text.index("3. straggler: ") < text.index(late) < text.index("Each rank separately")
    found = asked("diagnose", tmp_path)
    assert found["source"] == [f"rank{rank}.json.gz" for rank in range(3)]
    data = found["data"]
    ids = [finding["id"] for finding in data["findings"]]
    assert ids == ["host-stall", "exposed-communication", "straggler"]
    assert data["together"]["late_rank"] == SLOW_RANK
    alone = asked("diagnose", tmp_path / "rank0.json.gz")["data"]
    assert set(alone) <= set(data)
    assert data["headline_share"] in [rank["headline_share"] for rank in data["ranks"]]
    assert data["ranks"][0]["findings"] == alone["findings"]


@pytest.mark.slow  # golden outputs hold such a report
def test_a_report_on_the_ranks_of_a_run_begins_with_the_run(warplens, tmp_path):
    ranks = write_ranks(tmp_path, 2)
    run = warplens("report", *ranks, "-o", tmp_path / "out", "-f", "md,json")
    assert run.code == 0
    text = (tmp_path / "out/report.md").read_text("utf-8")
    assert text.startswith("# 2 ranks of one run")
    assert text.index(f"Rank {SLOW_RANK} is late") < text.index("All profiles") < text.index("rank0.json.gz\n")
    data = json.loads((tmp_path / "out/report.json").read_text("utf-8"))["data"]
    assert data["run"]["together"]["late_rank"] == SLOW_RANK
    assert [profile["source"] for profile in data["profiles"]] == ["rank0.json.gz", "rank1.json.gz"]


def test_where_no_gpu_work_was_recorded_nothing_is_said_of_it(warplens):
    """Ranges and API calls alone: how busy the GPU was is not known, which is not 0 %."""
    ranges = Path(__file__).parents[1] / "golden" / "inputs" / "lm_small_ctx128_forward_ranges.sqlite.xz"
    run = warplens("diagnose", ranges)
    assert run.code == 0, run.err
    assert "no GPU work: no kernels, copies or memsets" in run.out
    assert "0.0 %" not in run.out
    (finding,) = warplens("diagnose", ranges, "-f", "json").data["findings"]
    assert finding["evidence"] == {}
    rows = warplens("ranges", ranges, "-f", "json").data["rows"]
    assert {row["gpu_ns"] for row in rows} == {row["share"] for row in rows} == {None}
    assert min(row["host_ns"] for row in rows) > 0
