from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.analysis.counters.builders import counters, launch
from warplens.analysis.counters.occupancy import CONFIGURATIONS, launch_occupancy, theoretical_occupancy
from warplens.errors import UsageError

#: 70 random configurations for each compute capability, and the blocks that fit by each resource as NVIDIA's occupancy
#: calculator gives them (`cuda_occupancy.h` of CUDA 13.0, largest carve-out, seed 20261121). An empty field: no limit.
CALCULATED = Path(__file__).parent / "data" / "occupancy.csv"


def configuration(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int = 0,
    barriers: int = 1,
    carveout: int | None = None,
) -> pl.DataFrame:
    values = (*capability, threads, registers, shared, barriers, carveout)
    return pl.DataFrame([values], schema={c.name: c.dtype for c in CONFIGURATIONS.columns}, orient="row")


def occupancy(*arguments: object, **more: object) -> dict[str, object]:
    return theoretical_occupancy(configuration(*arguments, **more)).row(0, named=True)


@pytest.fixture(scope="module")
def calculated():
    table = pl.read_csv(CALCULATED).with_columns(pl.all().cast(pl.Int64))
    assert table.select("major", "minor").n_unique() == 14
    return table


@pytest.mark.parametrize("limit", ["registers", "shared_memory", "warps", "blocks"])
def test_blocks_by_each_resource_are_those_of_nvidias_calculator(calculated, limit):
    ours = theoretical_occupancy(calculated.with_columns(carveout_bytes=pl.lit(None, dtype=pl.Int64)))

    theirs = calculated[f"{limit}_blocks"]
    assert (theirs.is_null() | (ours[f"{limit}_blocks"] == theirs)).all()
    assert theirs.is_not_null().sum() > 300


def test_blocks_that_fit_are_those_of_nvidias_calculator(calculated):
    ours = theoretical_occupancy(calculated.with_columns(carveout_bytes=pl.lit(None, dtype=pl.Int64)))

    assert ours["blocks_per_sm"].equals(calculated["blocks_per_sm"], check_names=False)
    barriers_alone = (
        calculated["blocks_per_sm"]
        < calculated.select(
            pl.min_horizontal("registers_blocks", "shared_memory_blocks", "warps_blocks", "blocks_blocks")
        ).to_series()
    )
    assert set(ours.filter(barriers_alone & (ours["blocks_per_sm"] > 0))["limiter"]) == {"barriers"}


def test_a_block_more_fits_when_the_limiter_gives_way_by_the_next_step(calculated):
    inputs = calculated.with_columns(carveout_bytes=pl.lit(None, dtype=pl.Int64))
    ours = theoretical_occupancy(inputs)
    promised = ours["next_share"].is_not_null()
    names = {
        "registers_per_thread": "next_registers_per_thread",
        "shared_bytes_per_block": "next_shared_bytes_per_block",
        "barriers": "next_barriers",
        "threads_per_block": "next_threads_per_block",
    }
    stepped = theoretical_occupancy(
        inputs.with_columns(pl.coalesce(ours[step], pl.col(name)).alias(name) for name, step in names.items()).filter(
            promised
        )
    )

    assert promised.sum() > 300
    assert stepped["theoretical_share"].equals(ours.filter(promised)["next_share"], check_names=False)
    assert (stepped["theoretical_share"] > ours.filter(promised)["theoretical_share"]).all()


def test_one_register_more_than_the_next_step_does_not_help():
    now = occupancy((8, 0), 256, 72)
    step = now["next_registers_per_thread"]
    assert isinstance(step, int)

    assert (now["blocks_per_sm"], step) == (3, 64)
    assert occupancy((8, 0), 256, step)["blocks_per_sm"] == 4
    assert occupancy((8, 0), 256, step + 1)["blocks_per_sm"] == 3


#: Configurations (capability, threads, registers, shared memory, barriers, carve-out), and what they allow.
_HALF = {"warps_per_sm": 32, "theoretical_share": 0.5, "limiter": "registers", "next_registers_per_thread": 48}
ALLOWED = {
    # 64 × 32 = 2,048 registers a warp; 16,384 / 2,048 = 8 warps in each of 4 sub-partitions; 32 of 64 warps. Next,
    # 40 warps: 10 in a sub-partition, 16,384 / 10 → 1,536 / 32.
    "64 registers with 256 threads are half the warps of Ampere": (((8, 0), 256, 64), _HALF),
    "64 registers with 256 threads are half the warps of Hopper": (((9, 0), 256, 64), _HALF),
    "the same kernel fills a multiprocessor of Turing": (((7, 5), 256, 64), {"theoretical_share": 1.0}),
    "a block whose warps do not divide those of the multiprocessor wastes some": (
        ((9, 0), 96, 32), {"warps_per_sm": 63, "limiter": "warps", "next_threads_per_block": 128, "next_share": 1.0},
    ),
    "small blocks run out of blocks": (
        ((8, 6), 32, 16),
        {"blocks_per_sm": 16, "theoretical_share": 16 / 48, "limiter": "blocks", "next_threads_per_block": 96},
    ),
    # (8,192 + 1,024) B into 102,400 B: 11.1; a twelfth block fits at 102,400 / 12 = 8,533 → 8,448 − 1,024.
    "shared memory limits with what the driver takes": (
        ((8, 6), 32, 56, 8192),
        {"blocks_per_sm": 11, "limiter": "shared-memory", "next_shared_bytes_per_block": 7424},
    ),
    "a carve-out below the largest does not limit where blocks do": (
        ((8, 0), 32, 16, 0, 1, 32 * 1024), {"co_limiters": ["blocks"]},
    ),
    "a carve-out below the largest limits where nothing else does": (
        ((8, 0), 64, 16, 1024, 1, 32 * 1024), {"co_limiters": ["shared-memory"]},
    ),
    "nothing limits at full occupancy": (
        ((9, 0), 256, 32), {"theoretical_share": 1.0, "limiter": None, "next_share": None},
    ),
    "what cannot be launched fits no block": (((9, 0), 1024, 128), {"blocks_per_sm": 0}),
}  # fmt: skip


@pytest.mark.parametrize("kernel", ALLOWED)
def test_a_configuration_allows_what_was_worked_out_by_hand(kernel):
    configured, allowed = ALLOWED[kernel]
    found = occupancy(*configured)

    assert {name: found[name] for name in allowed} == allowed


def test_an_unknown_compute_capability_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match=r"6\.1 is not known; known are 7\.0, .*, 12\.1"):
        occupancy((6, 1), 256, 32)


def test_a_reported_occupancy_that_its_configuration_forbids_is_refused():
    reported = {
        "sm__maximum_warps_per_active_cycle_pct": 100.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 62.0,
    }

    found = launch_occupancy(counters(launch(registers=64, **reported))).row(0, named=True)

    assert (found["theoretical_share"], found["limiter"]) == (0.5, "registers")
    assert found["inconsistent"] == "the reported theoretical occupancy is not that of the reported configuration"


def test_an_achieved_occupancy_above_the_theoretical_one_is_refused():
    found = launch_occupancy(
        counters(launch(registers=64, **{"sm__warps_active.avg.pct_of_peak_sustained_active": 62.0}))
    )

    assert found["inconsistent"].to_list() == ["the achieved occupancy is above the theoretical one"]


def test_waves_and_the_tail_they_leave():
    found = launch_occupancy(counters(launch(grid=132 * 8), launch(grid=132 * 8 + 1), launch(grid=132 * 40 + 66)))

    # 8 blocks of 256 threads fill 64 warps.
    assert found["waves"].to_list() == [1.0, 1 + 1 / 1056, 5.0625]
    assert found["tail_share"].to_list() == [0.0, 0.5, 1 / 6]


def test_a_launch_that_does_not_say_its_registers_has_no_theoretical_occupancy():
    found = launch_occupancy(counters(launch(registers=None), launch()))

    assert found["theoretical_share"].to_list() == [None, 1.0]
