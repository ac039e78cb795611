"""Kernels with one planted fault each, profiled on an H200, and healthy ones: the fault is named first, or none is.

What was planted, and what must be found, stands in the index beside the report. The kernels are in
`captures/planted_kernels.cu`.
"""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import warplens
from warplens.analysis.counters.bounds import kernel_bounds, kernel_faults
from warplens.analysis.counters.coverage import counter_notes
from warplens.analysis.counters.groups import counters_summary
from warplens.analysis.counters.memoryaccess import memory_access
from warplens.analysis.counters.occupancy import launch_occupancy
from warplens.analysis.counters.roofline import roofline, roofline_points
from warplens.analysis.counters.speedoflight import speed_of_light
from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters
from warplens.secrets import FORBIDDEN

SHIPPED = Path(warplens.__file__).parent / "data" / "counters"
INDEX = json.loads((SHIPPED / "INDEX.json").read_text(encoding="utf-8"))
(REPORT,) = INDEX["reports"]
LAUNCHES: list[dict[str, Any]] = REPORT["launches"]
NAMES = [entry["kernel"] for entry in LAUNCHES]
FAULTY = [entry["kernel"] for entry in LAUNCHES if entry["fault"]]
HEALTHY = [entry["kernel"] for entry in LAUNCHES if not entry["fault"]]
PRODUCT = HEALTHY[-1]

#: What the section SourceCounters adds, that the verdicts prefer; without it others have to do.
SOURCE_COUNTERS = re.compile(
    r"^(memory_l[12]_|derived__memory_l|smsp__branch|smsp__sass_branch|smsp__sass_average_branch)"
)


@cache
def report() -> KernelCounters:
    return read_counters(SHIPPED / REPORT["file"])


@cache
def without_source_counters() -> KernelCounters:
    counters = report()
    dropped = [name for name in counters.metrics.columns if SOURCE_COUNTERS.match(name)]
    assert len(dropped) > 10
    return replace(counters, metrics=counters.metrics.drop(dropped))


def of(name: str, frame: pl.DataFrame) -> dict[str, Any]:
    return frame.row(by_predicate=pl.col("launch") == NAMES.index(name), named=True)


def test_the_folder_holds_what_its_index_says():
    assert {path.name for path in SHIPPED.iterdir()} == {"INDEX.json", REPORT["file"]}
    assert report().launches["name"].cast(pl.String).to_list() == NAMES
    assert report().session.clock_control == "none"
    assert INDEX["tools"]["ncu"] in (report().capture.tool_version or "")


@pytest.mark.parametrize("name", FAULTY)
def test_the_planted_fault_is_named_and_no_other(name):
    found, planted = of(name, kernel_bounds(report())), LAUNCHES[NAMES.index(name)]

    assert found["fault"] == planted["fault"]
    assert found["occupancy_limiter"] == planted["limiter"]
    assert (found["bound"], found["unit"]) == (planted["bound"], planted["unit"])
    assert found["healthy"] is False
    assert found["fault_evidence"]
    assert kernel_faults(report()).filter(launch=NAMES.index(name))["fault"].to_list() == [planted["fault"]]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_kernel_is_called_healthy(name):
    found, planted = of(name, kernel_bounds(report())), LAUNCHES[NAMES.index(name)]

    assert (found["healthy"], found["fault"], found["at_roof"]) == (True, None, True)
    assert (found["bound"], found["unit"]) == (planted["bound"], planted["unit"])
    assert found["inconsistent"] is None


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_does_not_hang_on_source_counters(name):
    verdict = ["bound", "unit", "fault", "occupancy_limiter", "healthy"]

    with_them, without = (of(name, kernel_bounds(c)) for c in (report(), without_source_counters()))

    assert [without[column] for column in verdict] == [with_them[column] for column in verdict]


def test_the_numbers_are_those_that_the_kernels_were_written_for():
    access, occupancy = memory_access(report()), launch_occupancy(report())

    structures = of("uncoalesced", access)
    assert structures["global_load_sectors_per_request"] == 32
    assert structures["global_load_bytes_per_sector"] == pytest.approx(4)
    assert structures["global_wasted_share"] == pytest.approx(28 / 36)  # of 32 + 4 sectors, 4 + 4 would do
    tile = of("bank_conflicts", access)
    assert tile["shared_conflict_ways"] == pytest.approx(32, rel=0.02)  # a load takes 32 passes, a store one
    assert of("shared_memory_limited", occupancy)["theoretical_share"] == 2 * 4 / 64
    assert of("register_limited", occupancy)["theoretical_share"] == 8 / 64
    assert of("tiny_grid", occupancy)["waves"] == pytest.approx(4 / (132 * 8))


def test_a_fault_costs_no_more_than_it_is_said_to():
    # Without a profiler, against the same work without the fault (captures/README.md).
    measured = {
        "uncoalesced": 1 - 0.103 / 0.274,
        "bank_conflicts": 1 - 0.157 / 0.349,
        "register_limited": 1 - 0.170 / 0.619,
        "divergent": 1 - 0.034 / 0.163,
    }
    bounds = kernel_bounds(report())

    for name, saved in measured.items():
        assert of(name, bounds)["fault_gain_share"] >= saved - 0.02, name


def test_the_copy_streams_and_its_missed_caches_are_no_fault():
    copy = of("streaming_copy", memory_access(report()))

    assert copy["streaming"]
    assert copy["l1_hit_share"] < 0.05
    assert copy["dram_bytes_per_s"] > 4e12


def test_the_matrix_product_is_near_the_roof_of_the_tensor_cores():
    roofs = roofline(report()).filter(launch=NAMES.index(PRODUCT), main=True)
    duration_s = of(PRODUCT, speed_of_light(report()))["duration_ns"] / 1e9

    assert set(roofs["precision"]) == {"tensor"}
    (flops,), shares = roofs["flops_per_s"].unique().to_list(), roofs["roof_share"].to_list()
    assert flops == pytest.approx(2 * 8192**3 / duration_s, rel=0.05)  # each counted in another pass, at another clock
    assert [share > 0.9 for share in shares] == [True] * 3  # of DRAM, L2 and L1


def test_nothing_is_said_of_the_time_between_kernels():
    columns = counters_summary(report(), by="launch").columns
    notes = " ".join(note.text for note in counter_notes(report()))

    assert not [name for name in columns if re.search("idle|gap|between", name)]
    assert not re.search(r"\bidle\b", notes)
    assert "not in this file" in notes  # what the GPU did between the launches


def test_the_shipped_report_identifies_nobody():
    content = lzma.decompress((SHIPPED / REPORT["file"]).read_bytes())

    assert not FORBIDDEN.search(content)
    assert not re.search(rb"LD_LIBRARY_PATH|PATH=|HOME=|Hostname|/tmp/|/opt/|/usr/", content)


def test_conflicts_are_counted_where_they_are_as_nsight_compute_does():
    """Its rule: "on average a 32.4 - way bank conflict across all 2097152 shared load requests"; stores have none."""
    ways = memory_access(report())["shared_conflict_ways"][NAMES.index("bank_conflicts")]
    (told,) = (rule["message"] for rule in report().rules.to_dicts() if rule["rule"] == "SharedMemoryConflicts")
    assert f"a {ways:.1f} - way bank conflict" in told


def test_a_kernel_that_writes_more_than_it_reads_is_held_against_the_way_in():
    """`streaming_copy` fills 51.4 % of the links into L2, and 21.0 % of those out of it."""
    points = roofline_points(report()).points
    (copied,) = points.filter(pl.col("full_name").cast(pl.String).str.contains("streaming_copy"))["l2_share"]
    assert copied == pytest.approx(0.514, abs=0.001)
