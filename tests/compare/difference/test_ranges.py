"""GPU work by range and phase on both sides."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings

from tests.compare.difference.programs import US, Launch, any_side, program, side
from warplens.compare.difference import Side, phase_changes, range_changes
from warplens.compare.difference.places import range_paths


def _row(table: pl.DataFrame, path: str) -> dict[str, Any]:
    return table.row(by_predicate=pl.col("path") == path, named=True)


def test_ranges_of_one_name_path_are_compared() -> None:
    table = range_changes(
        side(program([Launch(range="attention", gpu=8 * US), Launch(range="mlp", gpu=9 * US)])),
        side(program([Launch(range="attention", gpu=3 * US), Launch(range="mlp", gpu=9 * US), Launch(range="reduce")])),
    )
    assert _row(table, "attention")["change_ns_per_step"] == -5 * US
    assert _row(table, "mlp")["change_ns_per_step"] == 0
    assert (_row(table, "reduce")["in"], _row(table, "reduce")["variant_kernels_per_step"]) == ("variant", 1)
    assert _row(table, "")["change_ns_per_step"] == (2 - 5) * US


def test_the_largest_change_stands_first() -> None:
    table = range_changes(
        side(program([Launch(range="a", gpu=8 * US), Launch(range="b", gpu=9 * US)])),
        side(program([Launch(range="a", gpu=7 * US), Launch(range="b", gpu=99 * US)])),
    )
    assert table["path"].to_list() == ["", "b", "a"]


def test_the_steps_own_range_and_what_is_around_it_are_no_place() -> None:
    paths = range_paths(side(program([Launch(range="attention")])).timeline)
    assert paths.paths == ((), ("attention",))


def test_layers_are_one_place_when_merged() -> None:
    one = side(program([Launch(range=f"block_{number}") for number in range(4)]))
    assert range_changes(one, one)["path"].to_list() == ["", "block_0", "block_1", "block_2", "block_3"]
    merged = range_changes(one, one, merged=True)
    assert merged["path"].to_list() == ["", "block_N"]
    assert _row(merged, "block_N")["baseline_kernels_per_step"] == 4


def test_phases_are_compared_where_names_tell_them() -> None:
    work = [Launch(range="forward", gpu=10 * US), Launch(range="backward", gpu=20 * US)]
    slower = [Launch(range="forward", gpu=10 * US), Launch(range="backward", gpu=26 * US)]
    table = phase_changes(side(program(work)), side(program(slower)))
    assert table.select("phase", "change_ns_per_step").rows() == [("forward", 0), ("backward", 6 * US)]
    assert not phase_changes(side(program([Launch()])), side(program([Launch()]))).height


@settings(max_examples=50, deadline=None)
@given(any_side(), any_side())
def test_own_times_add_up_to_all_gpu_work(baseline: Side, variant: Side) -> None:
    table = range_changes(baseline, variant)
    for one, name in ((baseline, "baseline"), (variant, "variant")):
        total = (one.work["end_ns"] - one.work["start_ns"]).sum()
        assert table[f"{name}_own_ns"].sum() == total
        assert _row(table, "")[f"{name}_ns"] == total
