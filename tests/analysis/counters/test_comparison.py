from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import warplens
from tests.analysis.counters.builders import SHARED, counters, launch, needs_reports
from warplens.analysis.counters.comparison import compare_counters
from warplens.errors import UsageError
from warplens.profile.counters import KernelCounters, Session
from warplens.readers import read_counters

HIT_RATE = "l1tex__t_sector_hit_rate.pct"
BYTES = "dram__bytes.sum"
PLANTED = Path(warplens.__file__).parent / "data" / "counters" / "planted_h200.ncu-rep.xz"


def full(name: str, full_name: str) -> KernelCounters:
    """A report of one launch of a kernel with this demangled name."""
    report = counters(launch(name))
    whole = pl.Series("full_name", [full_name], dtype=pl.Enum([full_name]))
    return replace(report, launches=report.launches.with_columns(whole))


def test_percentages_change_in_points_and_amounts_in_ratios():
    before = counters(launch(ns=200.0, sm=70.0, memory=20.0, **{HIT_RATE: 40.0, BYTES: 1000.0}))
    after = counters(launch(ns=100.0, sm=45.0, memory=85.0, **{HIT_RATE: 65.0, BYTES: 250.0}))

    found = compare_counters(before, after)

    row = found.groups.row(0, named=True)
    assert (row["matched"], row["time_ratio"]) == ("exact", 0.5)
    assert (row["compute_points"], row["memory_points"]) == (pytest.approx(-25.0), pytest.approx(65.0))
    assert (row["bound_before"], row["bound_after"], row["bound_changed"]) == ("compute", "memory", True)
    changes = {item["metric"]: (item["points"], item["ratio"]) for item in found.metrics.to_dicts()}
    assert changes[HIT_RATE] == (25.0, None)
    assert changes[BYTES] == (None, 0.25)


def test_what_only_one_report_has_is_unpaired():
    found = compare_counters(counters(launch("a"), launch("b")), counters(launch("a"), launch("c")))

    assert found.unpaired.select("side", "name").rows() == [("before", "b"), ("after", "c")]
    assert found.paired_share_before == found.paired_share_after == 0.5


def test_a_kernel_in_another_size_is_found_where_there_is_no_doubt():
    one = compare_counters(counters(launch("a", grid=100)), counters(launch("a", grid=200)))
    two = compare_counters(counters(launch("a", grid=100)), counters(launch("a", grid=200), launch("a", grid=300)))

    assert one.groups["matched"].to_list() == ["kernel"]
    assert two.groups.is_empty(), "which of the two it became, nobody knows"


def test_another_instance_of_a_template_is_found_by_its_short_name():
    found = compare_counters(full("f", "void f<128>(float *)"), full("f", "void f<256>(float *)"))

    assert found.groups["matched"].to_list() == ["name"]


def test_tools_that_spell_a_literal_in_other_ways_mean_the_same_kernel():
    found = compare_counters(full("f", "void f<(int)128, (bool)0>(float *)"), full("f", "void f<128, false>(float*)"))

    assert found.groups["matched"].to_list() == ["exact"]


def test_a_kernel_that_was_renamed_is_compared_if_the_user_says_so():
    before, after = counters(launch("naive", ns=900.0)), counters(launch("tiled", ns=300.0))

    assert compare_counters(before, after).groups.is_empty()
    row = compare_counters(before, after, [("naive", "tiled")]).groups.row(0, named=True)
    assert (row["matched"], row["name_before"], row["name_after"]) == ("stated", "naive", "tiled")
    assert row["time_ratio"] == pytest.approx(1 / 3)
    with pytest.raises(UsageError, match="there is no kernel 'tilde'; there are tiled"):
        compare_counters(before, after, [("naive", "tilde")])


def test_other_ways_of_collecting_are_mentioned():
    clock = "sm__cycles_elapsed.avg.per_second"
    before = counters(launch(**{clock: 1.2e9}), session=Session(("A",), "base", "all", "kernel"))
    after = counters(launch(**{clock: 1.9e9}), session=Session(("B",), "none", "none", None))
    after = replace(after, capture=replace(after.capture, tool_version="2026.1.0"))

    codes = [note.code for note in compare_counters(before, after).notes]

    assert codes == [
        *("other-clock-control", "other-cache-control", "unknown-replay-mode", "other-tool-version"),
        *("clocks-differ", "other-sections"),
    ]


def test_reports_that_were_collected_alike_compare_without_a_note():
    settings = Session(("A",), "none", "all", "kernel")

    assert compare_counters(*(counters(launch(), session=settings) for _ in range(2))).notes == ()


@pytest.mark.slow
def test_a_report_against_itself_changed_in_nothing():
    report = read_counters(PLANTED)

    found = compare_counters(report, report)

    assert found.groups["matched"].to_list() == ["exact"] * 9
    assert set(found.groups["time_ratio"]) == set(found.groups["cycles_ratio"]) == {1.0}
    assert not found.groups["bound_changed"].any()
    assert (found.metrics["before"] == found.metrics["after"]).all()
    assert found.metrics.height > 9 * 1900


@needs_reports
def test_the_ladder_of_matrix_products_climbs():
    before, after = (read_counters(SHARED / f"a10g_sgemm_{step}.ncu-rep") for step in (4, 5))

    found = compare_counters(before, after, [("esmm_shmem_multi3", "warptiling")])

    row = found.groups.row(0, named=True)
    assert found.groups.height == 1
    assert row["time_ratio"] == pytest.approx(8_577_888 / 90_236_288)
    assert (row["unit_before"], row["unit_after"]) == ("l1", "issue")
    registers = found.metrics.filter(metric="launch__registers_per_thread").row(0, named=True)
    assert (registers["before"], registers["after"], registers["ratio"]) == (40.0, 128.0, 3.2)
    assert found.notes == ()
