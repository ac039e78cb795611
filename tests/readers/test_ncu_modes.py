"""Reports of every way in which Nsight Compute takes a result, captured on an H200, against ncu's own exports of them.

They were made by `captures/capture_counter_modes.sh`, the exports by the same ncu.
"""

from __future__ import annotations

import csv
import io
import lzma
import re
from functools import cache
from pathlib import Path

import pytest

from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters
from warplens.secrets import FORBIDDEN

DATA = Path(__file__).parent / "data" / "counter_modes"
MODES = sorted(path.name.removesuffix(".ncu-rep.xz") for path in DATA.glob("*.ncu-rep.xz"))


@cache
def report(mode: str) -> KernelCounters:
    return read_counters(DATA / f"{mode}.ncu-rep.xz")


def test_every_way_is_here() -> None:
    assert sorted(MODES) == [
        *("app_ranges", "application", "clusters", "full", "graph", "graph_nodes", "nvtx", "nvtx_ranges", "products"),
        "ranges",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_every_value_is_what_ncu_prints_to_the_last_digit(mode: str) -> None:
    text = lzma.decompress((DATA / f"{mode}.raw.csv.xz").read_bytes()).decode()
    names, _, *rows = csv.reader(io.StringIO(text))
    metrics = report(mode).metrics
    assert metrics.height == len(rows)
    compared = 0
    for launch, row in zip(metrics.to_dicts(), rows, strict=True):
        for name, printed in list(zip(names, row, strict=True))[names.index("CC") + 1 :]:
            value, digits = launch[name], printed.replace(",", "")
            if value is None:
                assert printed in ("no data", "n/a", "", "nan"), name
            elif isinstance(value, str):
                assert value == printed, name
            else:
                last_digit = 0.5 * 10.0 ** -len(digits.partition(".")[2]) if "." in digits else 0.0
                assert abs(value - float(digits)) <= last_digit * 1.001, f"{name}: {value} is not {printed}"
            compared += 1
    assert compared > 500


@pytest.mark.parametrize("mode", MODES)
def test_ncus_export_of_it_is_read_as_the_same_results(mode: str) -> None:
    one, other = report(mode), read_counters(DATA / f"{mode}.raw.csv.xz")

    for column in ("kind", "name", "grid_x", "block_x"):
        assert one.launches[column].to_list() == other.launches[column].to_list()
    name = "gpu__time_duration.sum"
    assert one.values(name).to_list() == pytest.approx(other.values(name).to_list(), rel=1e-4)


@pytest.mark.parametrize(
    ("mode", "kind", "results", "replay"),
    [
        ("ranges", "range", 2, "range"),
        ("app_ranges", "range", 2, "app-range"),
        ("nvtx_ranges", "range", 1, "range"),
        ("graph", "graph", 2, "kernel"),
        ("graph_nodes", "kernel", 6, "kernel"),
        ("application", "kernel", 1, "application"),
        ("full", "kernel", 1, "kernel"),
    ],
)
def test_what_was_profiled_as_one_result_is_told(mode: str, kind: str, results: int, replay: str) -> None:
    counters = report(mode)

    assert counters.launches["kind"].to_list() == [kind] * results
    assert counters.session.replay_mode == replay
    assert counters.session.clock_control == "none"
    assert counters.session.cache_control == ("none" if mode == "application" else "all")
    assert [note.code for note in counters.capture.notes] == []


def test_a_range_and_a_graph_have_no_grid() -> None:
    for mode in ("ranges", "graph"):
        sizes = report(mode).launches.select("grid_x", "block_x")
        assert sizes.null_count().row(0) == (2, 2)


def test_open_nvtx_ranges_are_told_of_kernels_and_of_ranges() -> None:
    assert report("nvtx").launches["nvtx"].to_list() == [["step", "elementwise"]] * 2
    assert report("nvtx_ranges").launches["nvtx"].to_list() == [["step"]]


def test_nodes_of_a_graph_are_kernels_with_their_own_grids() -> None:
    launches = report("graph_nodes").launches

    assert launches["name"].to_list() == ["scale", "add", "dense_products"] * 2
    assert launches["grid_x"].to_list() == [65536, 65536, 1056] * 2


def test_they_hold_nothing_of_people_and_machines() -> None:
    for path in DATA.glob("*.xz"):
        content = lzma.decompress(path.read_bytes())
        assert not FORBIDDEN.search(content)
        assert not re.search(rb"PATH=|LD_LIBRARY", content)
