"""Reports of Nsight Compute of every mode, against ncu's exports; and what odd ones take, which is bounded."""

from __future__ import annotations

import csv
import io
import lzma
import re
import struct
import tracemalloc
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers.ncu_reports import (
    Float,
    Instanced,
    Report,
    UInt32,
    details,
    push_pop,
    put,
    rule,
    sized,
)
from warplens.errors import UnreadableInputError
from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters
from warplens.readers.ncu.report import read_ncu_rep
from warplens.secrets import FORBIDDEN


def whole_report() -> Report:
    report = Report().session(
        details(
            version="2025.3.1.0",
            command="ncu --replay-mode range app",
            devices={0: {"device__attribute_clock_rate": 5}},
        )
    )
    metrics = {
        "launch__device_id": 0, "count": 2**63, "real": 1.5, "half": Float(0.5), "small": UInt32(1), "text": "on",
        "per_pc": Instanced(3, [(16, 1), (32, 2)]), "names": Instanced(None, [("a", "b")]),
    }  # fmt: skip
    extra = put(17, put(1, "Occupancy")) + put(19, rule("Rule", (4, "said", (1, 5.0)))) + put(21, push_pop("step"))
    for number in range(3):
        report.launch(f"kernel_{number}", metrics, extra=extra, sources=[b"code" * 10])
    return report.result(7, {"count": 1}).result(9, {"count": 2})


_WHOLE = whole_report()
_LAUNCHES = 5


#: Decoding takes some arrays of a batch at a time; what a small file makes it take beyond that would be a defect.
_BYTES = 64 * 2**20


def _read(path: Path, content: bytes) -> KernelCounters:
    path.write_bytes(content)
    tracemalloc.start()
    counters = read_ncu_rep(path, path, instances=["per_pc", "names", "text"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < _BYTES
    return counters


@given(metrics=st.lists(st.binary(max_size=40), max_size=6), extra=st.binary(max_size=60))
def test_metrics_of_anything(tmp_path, metrics, extra):
    report = Report().launch("good", {"count": 1, "per_pc": 2})
    report.launch("odd", extra=b"".join(put(13, metric) for metric in metrics))
    report.launch("odder", extra=put(19, extra) + put(21, extra) + put(25, extra) + put(17, extra))
    counters = _read(tmp_path / "metrics.ncu-rep", bytes(report.content))
    assert counters.values("count").to_list()[0] == 1


@given(value=st.binary(max_size=30), elements=st.lists(st.binary(max_size=30), max_size=4))
def test_values_and_instances_of_anything(tmp_path, value, elements):
    report = Report().launch("good", {"count": 1, "per_pc": 2})
    metric = put(1, 1) + put(2, value) + b"".join(put(3, element) for element in elements)
    report.launch("odd", extra=put(13, metric))
    counters = _read(tmp_path / "values.ncu-rep", bytes(report.content))
    assert counters.launches.height == 2
    assert counters.instances["per_pc"].height == len(elements)


@pytest.mark.parametrize("count", [2, 1_000, 2**32 - 1])
@pytest.mark.parametrize("number", [1, 2, 7, 8, 9])
def test_more_messages_announced_than_there_are(tmp_path, number, count):
    report = whole_report()
    header = put(number, count) + put(5, 2**32 - 1)
    counters = _read(tmp_path / "announced.ncu-rep", bytes(report.content) + sized(header) + sized(bytes(40)))
    assert counters.launches.height == _LAUNCHES
    assert "incomplete-report" in [note.code for note in counters.capture.notes]


def test_a_huge_declared_size_takes_no_memory(tmp_path):
    content = bytes(_WHOLE.content) + struct.pack("<I", 2**32 - 1) + b"\x08\x00"
    counters = _read(tmp_path / "huge.ncu-rep", content)
    assert counters.launches.height == _LAUNCHES


def test_launches_that_share_no_metric_are_refused(tmp_path):
    report = Report()
    names = [f"m{number}" for number in range(4_000)]
    launches = b"".join(
        sized(put(2, 1) + put(6, "kernel_name") + put(13, put(1, number) + put(2, put(5, 1))))
        for number in range(len(names))
    )
    table = put(4, b"".join(put(1, name) for name in names))
    report.content += sized(table + put(2, len(names)) + put(5, len(launches))) + launches
    path = tmp_path / "sparse.ncu-rep"
    with pytest.raises(UnreadableInputError, match="4,000 launches"):
        read_ncu_rep(report.write(path), path)
    chosen = read_ncu_rep(path, path, metrics=["m7"])
    assert chosen.values("m7").drop_nulls().to_list() == [1]


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(put(13, b""), id="empty metrics"),
        pytest.param(put(13, put(1, 0)), id="one metric over and over", marks=pytest.mark.slow),
        pytest.param(put(17, b""), id="empty sections", marks=pytest.mark.slow),
        pytest.param(put(19, b""), id="empty rules", marks=pytest.mark.slow),
        pytest.param(put(500, 0), id="unknown fields", marks=pytest.mark.slow),
    ],
)
def test_a_flood_of_tiny_fields_is_bounded(tmp_path, flood):
    report = Report().launch("good", {"count": 1}).launch("flooded", extra=flood * (3_000_000 // len(flood)))
    path = report.write(tmp_path / "flood.ncu-rep")
    tracemalloc.start()
    counters = read_ncu_rep(path, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counters.values("count").to_list()[0] == 1
    assert peak < 200 * 2**20


DATA = Path(__file__).parent / "data" / "counter_modes"
MODES = sorted(path.name.removesuffix(".ncu-rep.xz") for path in DATA.glob("*.ncu-rep.xz"))


@cache
def report(mode: str) -> KernelCounters:
    return read_counters(DATA / f"{mode}.ncu-rep.xz")


def test_every_way_is_here():
    assert sorted(MODES) == [
        *("app_ranges", "application", "clusters", "full", "graph", "graph_nodes", "nvtx", "nvtx_ranges", "products"),
        "ranges",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_every_value_is_what_ncu_prints_to_the_last_digit(mode):
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
def test_ncus_export_of_it_is_read_as_the_same_results(mode):
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
def test_what_was_profiled_as_one_result_is_told(mode, kind, results, replay):
    counters = report(mode)

    assert counters.launches["kind"].to_list() == [kind] * results
    assert counters.session.replay_mode == replay
    assert counters.session.clock_control == "none"
    assert counters.session.cache_control == ("none" if mode == "application" else "all")
    assert [note.code for note in counters.capture.notes] == []


def test_a_range_and_a_graph_have_no_grid():
    for mode in ("ranges", "graph"):
        sizes = report(mode).launches.select("grid_x", "block_x")
        assert sizes.null_count().row(0) == (2, 2)


def test_open_nvtx_ranges_are_told_of_kernels_and_of_ranges():
    assert report("nvtx").launches["nvtx"].to_list() == [["step", "elementwise"]] * 2
    assert report("nvtx_ranges").launches["nvtx"].to_list() == [["step"]]


def test_nodes_of_a_graph_are_kernels_with_their_own_grids():
    launches = report("graph_nodes").launches

    assert launches["name"].to_list() == ["scale", "add", "dense_products"] * 2
    assert launches["grid_x"].to_list() == [65536, 65536, 1056] * 2


def test_they_hold_nothing_of_people_and_machines():
    for path in DATA.glob("*.xz"):
        content = lzma.decompress(path.read_bytes())
        assert not FORBIDDEN.search(content)
        assert not re.search(rb"PATH=|LD_LIBRARY", content)
