"""The shipped planted-cause suite: complete, true to its own measurements, readable, and nobody can be told from it."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.diagnosis.peers import claims_of_nsys, claims_of_nsys_ai
from benchmarks.diagnosis.suite import HELD_OUT, Case, cases

from tests.tiers import thinned
from warplens.diagnosis import FINDING_IDS
from warplens.readers import read
from warplens.secrets import FORBIDDEN

SHIPPED = Path(__file__).parents[1] / "data" / "planted"
INDEX: dict[str, Any] = json.loads((SHIPPED / "INDEX.json").read_text(encoding="utf-8"))
FILES = sorted(SHIPPED.glob("*.xz"))
ALL = [*cases(), *cases(HELD_OUT)]
CASES = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
PUBLISHED = [*FILES, *sorted(HELD_OUT.glob("*.xz"))]
#: Files change seldom: `make test` opens one of six.
EVERY = 6


def test_the_index_names_every_file_and_no_other() -> None:
    named = {name for case in INDEX["cases"] for v in case["variants"].values() for name in v["files"].values()}
    for run in INDEX["ddp"]:
        named |= {run["files"]["nsys"], *run["files"]["torch"]}
    assert named == {path.name for path in FILES}


def test_there_are_enough_causes_and_controls_in_both_formats() -> None:
    for source in ("nsys", "torch"):
        recorded = [case for case in cases() if case.path(source)]
        assert sum(not case.is_healthy and bool(case.verdicts) for case in recorded) >= 16
        assert sum(case.is_control(source) for case in recorded) >= 6
    assert {case.verdicts[0] for case in cases() if case.verdicts} >= {
        *("launch-overhead", "host-sync", "host-stall", "blocking-copy", "allocator-churn", "memory-bandwidth"),
        *("precision", "small-kernels", "unfused-optimizer", "graph-opaque", "incomplete-profile", "saturated"),
    }


@CASES
def test_right_verdicts_are_findings_that_exist(case: Case) -> None:
    assert set(case.verdicts) <= set(FINDING_IDS)
    assert case.second in {"", *FINDING_IDS}


@CASES
def test_what_a_remedy_saves_follows_from_the_measured_times(case: Case) -> None:
    for remedy, gain in case.entry["measured"].get("gain_share", {}).items():
        before, after = case.step_ns(), case.step_ns(remedy)
        assert before is not None
        assert after is not None
        work = 32 if (case.name, remedy) == ("four_blocks", "larger-batch") else 1
        assert gain == pytest.approx(1 - after / work / before, abs=1e-3)
        assert gain > -0.02


def test_the_suite_is_small_enough_to_be_shipped() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 6_000_000


@pytest.mark.parametrize("path", thinned(PUBLISHED, quick=PUBLISHED[::EVERY]), ids=lambda path: path.name)
def test_no_profile_tells_of_people_or_machines(path: Path) -> None:
    content = lzma.decompress(path.read_bytes())
    assert not FORBIDDEN.search(content)
    assert not re.search(
        rb"/(?:tmp|opt|usr|var|work|mnt|proc|dev)/\w|ENVIRONMENT_VARIABLE|WORKING_DIR|Hostname", content
    )
    assert not re.search(rb"traceName|trace_id|stdout\.log|ARGUMENT_\d", content)


@pytest.mark.parametrize("case", thinned(ALL, quick=ALL[::EVERY]), ids=lambda case: case.name)
def test_every_profile_can_be_read_and_shows_work_on_the_gpu(case: Case) -> None:
    for source in ("nsys", "torch"):
        if (path := case.path(source)) is not None:
            trace = read(path)
            assert trace.has_device_work
            assert [device.name for device in trace.capture.devices] == ["NVIDIA H200"]


@pytest.mark.parametrize("run", INDEX["ddp"], ids=lambda run: run["name"])
def test_both_ranks_of_a_run_on_two_gpus_are_there(run: dict[str, Any]) -> None:
    ranks = [read(SHIPPED / name).capture for name in run["files"]["torch"]]
    assert [capture.rank for capture in ranks] == [0, 1]
    assert {capture.world_size for capture in ranks} == {2}
    assert read(SHIPPED / run["files"]["nsys"]).kernels["device"].n_unique() == 2
    assert {record["rank"] for record in run["ranks"]} == {0, 1}


def test_claims_of_nsys_analyze_are_ranked_by_time_and_idle_comes_last() -> None:
    rows = {"gpu_time_util": [1e9], "cuda_api_sync": [10.0, 20.0], "cuda_memcpy_sync": [40.0], "gpu_gaps": []}
    assert claims_of_nsys(rows) == ["blocking-copy", "host-sync", "idle"]
    assert claims_of_nsys({"gpu_gaps": []}) == []


def test_claims_of_nsys_ai_are_ranked_by_severity_and_information_is_none() -> None:
    findings = [
        {"severity": "info", "label": "Excessive Synchronization"},
        {"severity": "warning", "label": "GPU Idle Gap (5.07ms)"},
        {"severity": "warning", "label": "Small Kernel Overhead: gemm (5us avg)"},
        {"severity": "critical", "label": "NCCL Serialization"},
    ]
    assert claims_of_nsys_ai(findings) == ["exposed-communication", "launch-overhead", "idle"]
    assert claims_of_nsys_ai([{"severity": "error", "label": "no kernels"}]) == ["error"]
