"""Counters make claims about the inside of kernels possible, weighted by the kernels' share of the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tests.analysis.counters.builders import counters, launch
from tests.analysis.counters.test_bounds import DRAM, PLANTED, SECTORS, TENSOR, THREADS
from tests.diagnosis.machine import FULL_GRID, US, Machine
from tests.diagnosis.programs import record
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis, diagnose
from warplens.readers import read, read_counters

BLOCK = (128, 1, 1)


def _mine(machine: Machine) -> None:
    """A kernel of one's own for three quarters of the time, library products for the rest."""
    machine.launch(300 * US, "my_kernel", times=10)
    machine.launch(100 * US, times=10)


def _with(*launches: dict[str, Any]) -> Diagnosis:
    timeline = Timeline(record(_mine))
    return diagnose(timeline, timeline.window(), counters(*launches))


@pytest.mark.parametrize("fault", ["uncoalesced", "bank-conflicts", "divergence"])
def test_a_fault_that_counters_measured_is_the_verdict(fault: str) -> None:
    found = _with(launch("my_kernel", grid=FULL_GRID, block=BLOCK, **PLANTED[fault]))
    assert found.verdict == fault
    assert found.findings[0].where == ("my_kernel",)
    assert found.findings[0].evidence["kernels_share"] == pytest.approx(0.75, abs=0.01)
    assert found.coverage.counters_share == pytest.approx(0.75, abs=0.01)


def test_counters_do_not_take_the_time_of_a_librarys_products_from_their_cause() -> None:
    """Written-out attention over 785 tokens: its products load two bytes at a time, which nobody can mend in them."""
    folder = Path(__file__).resolve().parents[2] / "data" / "counters"
    timeline = Timeline(read(shipped.capture("deit448_bs8_baseline")))
    plain, counted = (
        diagnose(timeline, timeline.window(), report)
        for report in (None, read_counters(folder / "deit448_bs8_baseline.ncu-rep.xz"))
    )
    assert counted.coverage.counters_share > 0.9
    assert counted.verdict == plain.verdict == "unfused-attention"
    assert counted.findings[0].expected > 1.5  # 2.2× without; a part of the passes between is the counters'


def test_the_ceiling_is_the_kernels_loss_times_its_share() -> None:
    """7,000 of 8,000 sectors wasted at 85 % of the bandwidth are 74 % of the kernel, 3/4 of that of the window."""
    found = _with(launch("my_kernel", grid=FULL_GRID, block=BLOCK, **PLANTED["uncoalesced"])).findings[0]
    lost = 7 / 8 * 0.85 * 0.75
    assert found.expected == pytest.approx(1 / (1 - lost), rel=0.02)
    assert found.confidence == "medium"


def test_few_warps_far_from_every_roof_are_low_occupancy_with_its_limiter() -> None:
    measured = launch(
        "my_kernel",
        grid=FULL_GRID,
        block=BLOCK,
        registers=255,
        sm=20.0,
        memory=20.0,
        **{
            "sm__warps_active.avg.pct_of_peak_sustained_active": 12.0,
            THREADS: 32.0,
            SECTORS: 10.0,
            f"{SECTORS}_ideal": 10.0,
        },
    )
    found = _with(measured)
    assert found.verdict == "occupancy"
    assert "registers" in found.findings[0].title


def test_memory_at_its_roof_is_measured_not_inferred() -> None:
    found = _with(
        launch(
            "my_kernel",
            grid=FULL_GRID,
            block=BLOCK,
            sm=5.0,
            memory=91.0,
            **{DRAM: 91.0, SECTORS: 9.0, f"{SECTORS}_ideal": 9.0},
        )
    )
    assert found.verdict == "memory-bandwidth"
    finding = found.findings[0]
    assert finding.confidence == "high"
    assert "inferred" not in finding.title
    assert finding.evidence["memory_roof_median_share"] == pytest.approx(0.91)


def test_a_full_tensor_pipe_says_that_nothing_is_wrong() -> None:
    name = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN"
    measured = launch(
        name, grid=FULL_GRID, block=BLOCK, sm=88.0, memory=45.0, **{TENSOR: 88.0, DRAM: 45.0, THREADS: 32.0}
    )
    timeline = Timeline(record(lambda machine: machine.launch(300 * US, times=10)))
    found = diagnose(timeline, timeline.window(), counters(measured))
    assert found.verdict == "tensor-compute"
    assert found.findings[0].evidence["at_tensor_roof_share"] == 1
    assert all(finding.severity == "info" for finding in found.findings)


def test_counters_of_other_kernels_say_nothing_and_that_is_said() -> None:
    found = _with(launch("elsewhere", grid=FULL_GRID, block=BLOCK, **PLANTED["uncoalesced"]))
    assert found.verdict == "below-roof"
    assert found.coverage.counters_share is None
    assert any("has none of the window's kernels" in line for line in found.coverage.unavailable)


def test_the_same_kernel_with_another_grid_is_another_one() -> None:
    found = _with(launch("my_kernel", grid=(7, 1, 1), block=BLOCK, **PLANTED["uncoalesced"]))
    assert found.finding("uncoalesced") is None
