"""Copies, fills and communication: how much there is, and how much of it shows in the wall time."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings

from tests.analysis.builders import copy, kernel, memset, trace
from tests.compare.difference.programs import GEMM, NCCL, US, Launch, any_side, program, side
from warplens.compare.difference import Side, transfer_changes, wall_split


def _table(baseline: Side, variant: Side) -> pl.DataFrame:
    return transfer_changes(baseline, variant, wall_split(baseline, variant))


def _row(table: pl.DataFrame, part: str) -> dict[str, Any]:
    return table.row(by_predicate=pl.col("part") == part, named=True)


def test_a_copy_hidden_behind_compute_is_there_and_costs_nothing() -> None:
    hidden = trace(
        [kernel(0, 10, GEMM)], copies=[copy(2, 8, size=600, stream=8)], memsets=[memset(10, 13, 5)], window_ns=(0, 13)
    )
    bare = trace([kernel(0, 10, GEMM)], window_ns=(0, 10))
    table = _table(side(bare, window="all"), side(hidden, window="all"))
    row = _row(table, "host-to-device")
    assert (row["baseline_count_per_step"], row["variant_count_per_step"]) == (0, 1)
    assert (row["baseline_bytes_per_step"], row["variant_bytes_per_step"]) == (0, 600)
    assert (row["change_ns_per_step"], row["exposed_change_ns_per_step"]) == (6, 0)
    assert _row(table, "memset")["exposed_change_ns_per_step"] == 3


def test_the_bytes_of_collectives_are_not_known() -> None:
    one = side(program([Launch(gpu=50 * US), Launch(NCCL, gpu=30 * US)]))
    row = _row(_table(one, one), "communication")
    assert (row["variant_count_per_step"], row["variant_bytes_per_step"]) == (1, None)
    assert row["variant_exposed_ns_per_step"] == 30 * US


def test_programs_without_transfers_have_none() -> None:
    one = side(program([Launch()]))
    assert not _table(one, one).height


@settings(max_examples=50, deadline=None)
@given(any_side(), any_side())
def test_exposed_times_are_those_of_the_wall_split(baseline: Side, variant: Side) -> None:
    split = wall_split(baseline, variant)
    table = transfer_changes(baseline, variant, split)
    for group in ("copy", "communication"):
        exposed = table.filter(pl.col("group") == group)["exposed_change_ns_per_step"].sum()
        assert exposed == pytest.approx(float(split.change_of(group)))
