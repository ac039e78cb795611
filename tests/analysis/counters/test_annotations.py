"""What was profiled inside NVTX ranges, by hand and against `ncu --import … --page raw --csv` of the same report."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests import shipped
from tests.analysis.counters.builders import counters, launch
from warplens.analysis.counters.annotations import annotated
from warplens.errors import MissingDataError
from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters

(TOPK,) = shipped.files("counters", "deit224_bs1_topk0.1.ncu-rep.xz")


def _inside(ranges: list[list[str] | None], *launches: dict) -> KernelCounters:
    made = counters(*launches)
    open_ranges = pl.Series("nvtx", ranges, dtype=pl.List(pl.String))
    return replace(made, launches=made.launches.with_columns(open_ranges))


def test_rows_add_up_and_shares_of_the_peak_are_means_by_time():
    made = _inside(
        [["bench", "mine"], ["bench", "mine"], ["bench", "theirs"], []],
        launch("a", ns=1000, sm=80.0, memory=10.0),
        launch("b", ns=3000, sm=20.0, memory=90.0),
        launch("a", ns=2000, sm=70.0, memory=30.0),
        launch("c", ns=4000, sm=None, memory=None),
    )
    rows = {row["name"]: row for row in annotated(made).iter_rows(named=True)}
    assert list(rows) == ["bench / mine", None, "bench / theirs"]  # equal times in the order of the report
    mine = rows["bench / mine"]
    assert (mine["launches"], mine["kernels"], mine["total_ns"], mine["share"]) == (2, 2, 4000, 0.4)
    assert mine["compute_share"] == pytest.approx((0.8 * 1000 + 0.2 * 3000) / 4000)
    assert mine["memory_share"] == pytest.approx((0.1 * 1000 + 0.9 * 3000) / 4000)
    assert (mine["bound"], mine["bound_time_share"]) == ("memory", 0.75)
    assert (rows["bench / theirs"]["bound"], rows["bench / theirs"]["bound_time_share"]) == ("compute", 1.0)
    assert rows[None]["compute_share"] is None
    assert rows[None]["bound"] == "unknown"


def test_a_launch_without_a_duration_has_no_part_in_time():
    made = _inside([["x"], ["x"], ["y"]], *(launch(ns=ns, sm=50.0, memory=50.0) for ns in (None, 500, None)))
    rows = {row["name"]: row for row in annotated(made).iter_rows(named=True)}
    assert (rows["x"]["launches"], rows["x"]["total_ns"], rows["x"]["share"]) == (2, 500, 1.0)
    assert (rows["y"]["total_ns"], rows["y"]["share"], rows["y"]["compute_share"]) == (None, None, None)


def test_times_and_launches_of_a_real_report_are_those_of_ncus_own_export():
    """Summed by the two columns of NVTX that ncu prints; of twelve paths the first three, and the last."""
    rows = annotated(read_counters(TOPK)).select("name", "launches", "total_ns").rows()
    assert rows[:3] == [
        ("step / patch_embedding", 7, 115_168),
        ("step / block_1 / attention", 9, 48_256),
        ("step / block_3 / attention", 9, 47_712),
    ]
    assert (len(rows), sum(row[1] for row in rows)) == (12, 87)


def test_a_report_without_ranges_says_how_to_collect_them():
    with pytest.raises(MissingDataError, match=r"no NVTX ranges\. Collect them with ncu --nvtx"):
        annotated(_inside([None, None], launch(), launch()))
