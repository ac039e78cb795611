"""What the native reader makes of reports: small ones written by hand, and real ones beside what ncu says of them."""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard

from tests.readers.ncu_reports import (
    PROCESS,
    SECRET,
    THREAD,
    Float,
    Instanced,
    Report,
    UInt32,
    details,
    push_pop,
    put,
    rule,
    value_message,
)
from warplens.errors import MissingDataError, UnreadableInputError
from warplens.profile import NoteLevel
from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters
from warplens.readers.ncu.container import content_of
from warplens.readers.ncu.metrics import unit_of
from warplens.readers.ncu.report import read_ncu_rep

DURATION = "gpu__time_duration.sum"
THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.fixture
def read(tmp_path):
    def read_report(report: Report, **options: Any) -> KernelCounters:
        path = report.write(tmp_path / "profile.ncu-rep")
        return read_ncu_rep(path, path, **options)

    return read_report


def codes(counters: KernelCounters) -> list[str]:
    return [note.code for note in counters.capture.notes]


def note(counters: KernelCounters, code: str) -> str:
    (found,) = [note.text for note in counters.capture.notes if note.code == code]
    return found


def test_a_launch_has_its_names_its_sizes_and_its_place(read):
    launch = read(
        Report().launch("gemm", {"launch__device_id": 0}, full_name="gemm<8>(T *)", grid=(12, 5, 2), block=(32, 4, 1))
    ).launches.row(0, named=True)
    assert launch == {
        "launch": 0, "kind": "kernel", "name": "gemm", "full_name": "gemm<8>(T *)",
        "device": 0, "context": 1, "stream": 7, "process": PROCESS,
        "grid_x": 12, "grid_y": 5, "grid_z": 2, "block_x": 32, "block_y": 4, "block_z": 1,
        "nvtx": None,
    }  # fmt: skip


def test_launches_stand_in_the_order_of_the_file_each_with_its_process(read):
    report = Report().launch("first", {DURATION: 1.0}, process=10).launch("second", {DURATION: 2.0}, process=20)
    launches = read(report.launch("first", {DURATION: 3.0}, process=10)).launches
    assert launches["name"].to_list() == ["first", "second", "first"]
    assert launches["process"].to_list() == [10, 20, 10]


def test_ranges_graphs_and_command_lists_are_results_too(read):
    report = Report().launch("gemm", {DURATION: 1.0}).result(7, {DURATION: 2.0})
    report.result(8, {DURATION: 3.0}, put(12, 9) + put(18, "the list")).result(9, {DURATION: 4.0}, put(12, 9))
    counters = read(report)
    assert counters.launches["kind"].to_list() == ["kernel", "range", "cmdlist", "graph"]
    assert counters.launches["name"].to_list() == ["gemm", "range", "the list", "graph"]
    assert counters.launches["stream"].to_list() == [7, None, 9, 9]
    assert counters.launches["context"].to_list() == [1, 3, 3, 3]
    assert counters.launches["grid_x"].to_list() == [4, None, None, None]
    assert counters.values(DURATION).to_list() == [1.0, 2.0, 3.0, 4.0]


def test_a_launch_that_failed_has_no_size(read):
    report = Report().launch("gemm", {DURATION: 1.0}).launch("too_large", grid=(0, 0, 0), block=(0, 0, 0))
    assert read(report).launches.select("grid_x", "block_z").rows() == [(4, 1), (None, None)]


def test_machine_code_is_passed_over_unseen(read):
    no_message = b"\xff" * 5000  # a reader that looked into it would stop here
    counters = read(Report().launch("gemm", {DURATION: 1.0}, sources=[no_message, no_message]))
    assert counters.values(DURATION).to_list() == [1.0]
    assert counters.capture.notes == ()


def test_results_of_an_unknown_kind_are_passed_over_and_mentioned(read):
    report = Report().launch("gemm", {DURATION: 1.0})
    report.block(put(10, 1), trailing=b"\x05\x00\x00\x00hello").launch("gemm", {DURATION: 2.0})
    counters = read(report)
    assert counters.values(DURATION).to_list() == [1.0, 2.0]
    assert note(counters, "unknown-results").startswith("9 bytes")


def test_a_report_without_a_launch_says_that_it_answers_nothing(read):
    counters = read(Report().session(details(version="2025.3.1.0")))
    assert counters.launches.height == 0
    assert [(note.code, note.level) for note in counters.capture.notes] == [("no-launches", NoteLevel.BLOCKING)]


def test_values_keep_their_type_and_every_bit(read):
    values = {
        "large": 2**64 - 1, "odd": 2**53 + 1, "zero": 0, "small": UInt32(7), "real": 0.1, "half": Float(0.5),
        "text": "Größe", "empty": "",
    }  # fmt: skip
    metrics = read(Report().launch(metrics=values)).metrics
    assert metrics.row(0, named=True) == {
        "large": 2**64 - 1, "odd": 2**53 + 1, "zero": 0, "small": 7, "real": 0.1, "half": 0.5,
        "text": "Größe", "empty": "",
    }  # fmt: skip
    assert metrics.dtypes == [*[pl.UInt64] * 4, *[pl.Float64] * 2, *[pl.String] * 2]


def test_what_was_not_collected_for_a_launch_is_null_and_never_zero(read):
    report = Report().launch(metrics={"count": 5, "rate": 1.5, "text": "on"}).launch(metrics={"other": 3})
    metrics = read(report).metrics
    assert metrics.row(1, named=True) == {"count": None, "rate": None, "text": None, "other": 3}
    assert metrics.row(0, named=True) == {"count": 5, "rate": 1.5, "text": "on", "other": None}
    assert metrics.dtypes == [pl.UInt64, pl.Float64, pl.String, pl.UInt64]


def test_a_ratio_of_nothing_to_nothing_is_null(read):
    counters = read(Report().launch(metrics={"hit_rate": math.nan}).launch(metrics={"hit_rate": 50.0}))
    assert counters.values("hit_rate").to_list() == [None, 50.0]


def test_a_metric_that_has_only_instances_has_no_value(read):
    counters = read(Report().launch(metrics={"per_pc": Instanced(None, [(16, 4), (32, 5)]), DURATION: 1.0}))
    assert counters.values("per_pc").to_list() == [None]
    with pytest.raises(MissingDataError, match="per_pc"):
        counters.require("per_pc", DURATION)


def test_a_count_that_is_real_in_one_launch_is_real_in_all(read):
    counters = read(Report().launch(metrics={"passes": 3}).launch(metrics={"passes": 2.5}).launch(metrics={"x": 1}))
    assert counters.values("passes").to_list() == [3.0, 2.5, None]


def test_only_the_metrics_asked_for_are_read(read):
    report = Report().launch(metrics={"launch__device_id": 2, "a": 1, DURATION: 4.0, "b": "x"})
    counters = read(report, metrics=[DURATION, "never collected"])
    assert counters.metrics.columns == [DURATION]
    assert counters.metrics.rows() == [(4.0,)]
    assert counters.launches["device"].to_list() == [2]
    assert read(report, metrics=[]).metrics.width == 0


def test_names_are_found_in_the_tables_of_all_blocks_so_far(read):
    report = Report()
    for number in range(5):
        report.launch(metrics={f"metric_{at}": number * 10 + at for at in range(number + 1)})
    metrics = read(report).metrics
    assert metrics.columns == [f"metric_{at}" for at in range(5)]
    assert metrics["metric_2"].to_list() == [None, None, 22, 32, 42]


def test_many_names_need_numbers_of_more_than_one_byte(read):
    values = {f"metric_{at}": at * at for at in range(300)}
    assert read(Report().launch(metrics=values)).metrics.row(0, named=True) == values


def test_the_fields_of_a_metric_may_stand_in_any_order(read):
    report = Report().launch(metrics={"a": 1})
    backwards = put(4, 0) + put(2, value_message(2.5)) + put(99, "future") + put(1, report.names.index("a"))
    twice = put(1, report.names.index("a")) + put(2, value_message(1)) + put(2, value_message(3))
    report.launch(extra=put(13, backwards)).launch(extra=put(13, twice))
    assert read(report).values("a").to_list()[:2] == [1.0, 2.5]


def test_a_metric_without_a_known_name_is_left_out_and_counted(read):
    unknown = put(1, 77) + put(2, value_message(1))
    counters = read(Report().launch(metrics={"a": 1}, extra=put(13, unknown) + put(13, b"") + put(13, b"\xff")))
    assert counters.metrics.columns == ["a"]
    assert note(counters, "unreadable-metrics").startswith("3 metrics")


def test_instances_come_with_what_they_belong_to(read):
    report = Report().launch(metrics={"a": 1, "per_pc": Instanced(9, [(0xFFFF0010, 4), (0xFFFF0020, 5)])})
    report.launch(metrics={"per_pc": Instanced(1, [(0xFFFF0010, 1)])})
    report.launch(metrics={"a": 1, "names": Instanced(None, [(0, "first"), (1, "second")])})
    instances = read(report, metrics=["a"], instances=["per_pc", "names", "absent"]).instances
    assert instances["per_pc"].rows(named=True) == [
        {"launch": 0, "index": 0, "value": 4, "key": 0xFFFF0010},
        {"launch": 0, "index": 1, "value": 5, "key": 0xFFFF0020},
        {"launch": 1, "index": 0, "value": 1, "key": 0xFFFF0010},
    ]
    assert instances["names"]["value"].to_list() == ["first", "second"]
    assert instances["absent"].height == 0


def test_instances_without_keys_have_no_column_for_them(read):
    report = Report().launch(metrics={"samples": 0})
    listed = put(1, 0) + b"".join(put(3, put(2, value_message(number))) for number in (1.5, 2.5))
    instances = read(report.launch(extra=put(13, listed)), instances=["samples"]).instances["samples"]
    assert instances.rows() == [(1, 0, 1.5), (1, 1, 2.5)]


def test_nvtx_ranges_of_the_launching_thread_stand_outermost_first(read):
    other = put(2, put(1, THREAD + 1) + put(2, put(1, 0) + put(3, put(1, "data loader"))))
    report = Report().launch(extra=put(21, push_pop("step", "forward", "attention") + other))
    report.launch(extra=put(21, push_pop())).launch()
    assert read(report).launches["nvtx"].to_list() == [["step", "forward", "attention"], [], None]


def test_ranges_of_several_domains_are_ordered_by_when_they_were_opened(read):
    process_wide = put(3, put(1, 1) + put(3, put(1, 5) + put(2, "epoch") + put(4, 2)))
    state = push_pop("step", "layer", calls=(3, 8)) + process_wide
    assert read(Report().launch(extra=put(21, state))).launches["nvtx"].to_list() == [["epoch", "step", "layer"]]


def test_each_thing_that_a_rule_says_is_a_row_as_ncu_prints_it(read):
    stalls = rule(
        "CPIStall",
        (4, "Look at @section:SourceCounters:Source Counters@.", (1, 81.5)),
        (1, "See the @url:Profiling Guide:https://docs.nvidia.com/x.html#y@ for more.", None),
        section="WarpStateStats",
    )
    whole = rule("SOLBottleneck", (2, "Only 3 blocks.", (2, 97.5)))
    silent = rule("Compute", section="SpeedOfLight")
    rules = read(Report().launch().launch(extra=put(19, stalls) + put(19, silent) + put(19, whole))).rules
    see = "See the Profiling Guide (https://docs.nvidia.com/x.html#y) for more."
    assert rules.rows() == [
        (1, "CPIStall", "Cpistall", "WarpStateStats", "optimization", "Look at Source Counters.", "local", 81.5),
        (1, "CPIStall", "Cpistall", "WarpStateStats", "ok", see, None, None),
        (1, "SOLBottleneck", "Solbottleneck", None, "warning", "Only 3 blocks.", "global", 97.5),
    ]


def test_sections_are_those_of_all_launches(read):
    report = Report()
    for names in (("LaunchStats", "Occupancy"), ("Occupancy", "SpeedOfLight")):
        report.launch(extra=b"".join(put(17, put(1, name) + put(2, name.lower())) for name in names))
    assert read(report).session.sections == ("LaunchStats", "Occupancy", "SpeedOfLight")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ncu -o out python train.py", ("base", "all", "kernel")),
        ("ncu --clock-control none --cache-control=none app", ("none", "none", "kernel")),
        ("ncu --replay-mode app-range --clock-control boost app", ("boost", "all", "app-range")),
        ('ncu --replay-mode "application" app', ("base", "all", "application")),
        (None, (None, None, None)),
    ],
)
def test_the_command_line_tells_what_the_numbers_mean(read, command, expected):
    session = read(Report().session(details(command=command)).launch()).session
    assert (session.clock_control, session.cache_control, session.replay_mode) == expected


def test_the_settings_of_the_gui_count_before_the_command_line(read):
    report = Report().session(details(settings={8: "None", 11: "Application", 7: SECRET}, command="ncu-ui")).launch()
    assert (read(report).session.clock_control, read(report).session.replay_mode) == ("none", "application")


@pytest.mark.parametrize(("asked", "control"), [(1, "base"), (0, "none")])
def test_launches_tell_of_the_clocks_where_no_command_line_does(read, asked, control):
    counters = read(Report().launch(extra=put(25, put(1, asked) + put(2, asked))))
    assert counters.session.clock_control == control
    assert counters.session.cache_control is None
    assert codes(counters) == []


def test_clocks_that_could_not_be_locked_are_mentioned(read):
    counters = read(Report().launch(extra=put(25, put(1, 1) + put(2, 0))).launch(extra=put(25, put(1, 1) + put(2, 1))))
    assert "1 of 2 launches" in note(counters, "clocks-not-locked")


def test_a_gpu_that_ncu_did_not_support_is_mentioned(read):
    assert "1 of 1 launches" in note(read(Report().launch(extra=put(20, 1))), "unsupported-gpu")


def test_the_gpus_are_those_that_launches_ran_on(read):
    attributes: dict[str, Any] = {
        "device__attribute_display_name": "NVIDIA H200",
        "device__attribute_compute_capability_major": 9, "device__attribute_compute_capability_minor": 0,
        "device__attribute_multiprocessor_count": 132, "device__attribute_clock_rate": 1_980_000,
        "device__attribute_memory_clock_rate": 3_201_000, "device__attribute_global_memory_bus_width": 6016,
        "device__attribute_total_memory": 150_109_880_320, "device__attribute_limits_max_cta_per_sm": 32,
    }  # fmt: skip
    report = Report().session(details(version="2025.3.1.0 (build 1)", devices={0: {}, 1: attributes}))
    counters = read(report.launch(metrics={"launch__device_id": 1}))
    (device,) = counters.capture.devices
    assert (device.ordinal, device.name, device.compute_capability) == (1, "NVIDIA H200", (9, 0))
    assert (device.sm_count, device.clock_hz, device.max_blocks_per_sm) == (132, 1_980_000_000, 32)
    assert device.memory_bandwidth_bytes_per_s == 4_814_304_000_000  # 4.8 TB/s by NVIDIA's data sheet
    assert device.l2_bytes is None
    assert counters.capture.tool_version == "2025.3.1.0"


def test_without_session_details_a_gpu_is_known_by_a_launch_on_it(read):
    metrics = {"launch__device_id": 0, "device__attribute_display_name": "NVIDIA A10G", "a": 1}
    (device,) = read(Report().launch(metrics=metrics), metrics=["a"]).capture.devices
    assert device.name == "NVIDIA A10G"


def test_nothing_that_tells_of_people_or_machines_is_read(read):
    report = Report().session(details(version="2025.1.0.0", command=f"ncu --set full {SECRET}", devices={0: {}}))
    counters = read(report.launch(metrics={DURATION: 1.0}))
    shown = (
        repr(counters.capture) + repr(counters.session) + counters.launches.write_json() + counters.rules.write_json()
    )
    assert SECRET.encode() in report.content
    assert SECRET not in shown
    assert "do-not-print" not in shown


def test_a_cut_report_gives_the_launches_before_the_cut(tmp_path):
    report = Report().session(details(version="2025.3.1.0"))
    for number in range(3):
        report.launch("gemm", {DURATION: float(number), "count": number}, sources=[b"x" * 40])
    ends = [*report.starts[1:], len(report.content)]  # of the session's block and of each launch
    path = tmp_path / "cut.ncu-rep"
    for size in range(report.starts[1], len(report.content), 7):
        path.write_bytes(report.content[:size])
        whole = sum(end <= size for end in ends[1:])
        if not whole and size not in ends:
            with pytest.raises(UnreadableInputError, match="without a complete launch"):
                read_ncu_rep(path, path)
            continue
        counters = read_ncu_rep(path, path)
        assert counters.values(DURATION).to_list() == [float(number) for number in range(whole)]
        assert (size in ends) or f"byte {size}" in note(counters, "incomplete-report")


def test_the_launches_before_a_damaged_one_are_read_and_the_place_is_named(read):
    report = Report().launch("gemm", {DURATION: 1.0}).launch("gemm", {DURATION: 2.0})
    place = report.content.rindex(b"\x32\x04gemm")  # the name of the second kernel
    report.content[place] = 0x37  # no such type of field
    counters = read(report)
    assert counters.values(DURATION).to_list() == [1.0]
    (warning,) = [note for note in counters.capture.notes if note.code == "incomplete-report"]
    assert warning.level is NoteLevel.WARNING
    (byte,) = re.findall(r"from byte (\d+) on", warning.text)
    assert report.starts[1] < int(byte) < place


def test_a_file_that_ends_in_zeros_is_read_up_to_them(read):
    report = Report().launch("gemm", {DURATION: 1.0})
    report.content += bytes(1_000_000)
    counters = read(report)
    assert counters.values(DURATION).to_list() == [1.0]
    assert f"byte {len(report.content) - 1_000_000}" in note(counters, "incomplete-report")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"PK\x03\x04 something else", "does not begin with NVR"),
        (b"NVR\x00", "first bytes"),
        (b"NVR\x00\x02\x00\x00\x00\xff\xff", "first bytes"),
        (b"NVR\x00\x02\x00\x00\x00\x08\x08", "version 8"),
        (b"NVR\x00\x02\x00\x00\x00\x08\x07\x03\x00\x00\x00\xff\xff\xff", "damaged"),
        (b"NVR\x00\x02\x00\x00\x00\x08\x07\x03\x00\x00\x00\x00\x01\x00", "begins no field"),
        (b"", "empty"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path, content, found):
    path = tmp_path / "odd.ncu-rep"
    path.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=found) as refused:
        read_ncu_rep(path, path)
    assert str(refused.value).startswith("odd.ncu-rep: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("gpu__time_duration.sum", "ns"),
        ("dram__bytes_read.sum", "byte"),
        ("dram__bytes.sum.per_second", "byte/second"),
        ("dram__bytes.sum.peak_sustained", "byte/cycle"),
        ("sm__cycles_elapsed.avg", "cycle"),
        ("smsp__cycles_elapsed.avg.per_second", "hz"),
        ("lts__t_sectors_srcunit_tex.sum.per_second", "sector/second"),
        ("sm__inst_executed.avg.per_cycle_active", "inst/cycle"),
        ("sm__warps_active.avg.per_cycle_active", "warp"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
        ("l1tex__t_sector_hit_rate.pct", "%"),
        ("smsp__average_warp_latency_per_inst_issued.ratio", "cycle"),
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", "byte/sector"),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", None),
        ("launch__registers_per_thread", "register/thread"),
        ("launch__shared_mem_per_block_static", "byte/block"),
        ("launch__occupancy_limit_registers", "block"),
        ("launch__grid_size", None),
        ("TPC.TriageCompute.sm__cycles_active.avg", "cycle"),
        ("breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed", None),
        ("device__attribute_max_warps_per_multiprocessor", None),
    ],
)
def test_the_name_of_a_metric_tells_its_unit(metric, unit):
    assert unit_of(metric) == unit


def test_compressed_reports_are_read_by_their_content(tmp_path):
    content = bytes(Report().launch("gemm", {DURATION: 1.0, THROUGHPUT: 5.0}).content)
    for name, packed in {
        "a.ncu-repz": zstandard.compress(content),
        "b.ncu-rep.gz": gzip.compress(content),
        "c.dat": content,
    }.items():
        path = tmp_path / name
        path.write_bytes(packed)
        counters = read_counters(path, [DURATION])
        assert counters.metrics.rows() == [(1.0,)]
        assert counters.capture.source == name


def test_other_profiles_are_refused_with_what_to_do(tmp_path):
    for content, advice in {
        b"SQLite format 3\x00" + bytes(100): "warplens report",
        gzip.compress(b"NVIDIA Tegra Profiler Report 2024"): "warplens report",
        b'{"traceEvents": []}': "ncu --import",
        b"": "the file is empty",
    }.items():
        path = tmp_path / "other"
        path.write_bytes(content)
        with pytest.raises(UnreadableInputError, match=re.escape(advice)):
            read_counters(path)


REPORTS = ("a100_tiny_2021", "a10g_sgemm_4", "a10g_sgemm_5", "gb200_full_set", "h200_deit448_bs8")


@cache
def counters_of(path: Path) -> KernelCounters:
    return read_ncu_rep(path, path)


def printed(path: Path) -> tuple[list[str], list[str], list[list[str]]]:
    with path.open(newline="") as file:
        names, units, *rows = csv.reader(file)
    return names, units, rows


def base(unit: str) -> str | None:
    """The base unit of a printed one."""
    if unit in ("us", "ms", "s"):
        return "ns"
    return re.sub(r"(^|/)[KMGT](?=byte|hz)", r"\1", unit).replace("/s", "/second") or None


def test_units_are_those_that_ncu_prints(captured):
    units = counters_of(captured("ncu/h200_deit448_bs8.ncu-rep")).units
    names, printed_units, _ = printed(captured("ncu/h200_deit448_bs8.raw.csv"))
    shown = {name: base(unit.replace("Ghz", "hz")) for name, unit in zip(names, printed_units, strict=True)}
    differing = {name: (units.get(name), unit) for name, unit in shown.items() if unit and units.get(name) != unit}
    # Instructions by their name; ncu's own reading of the same file gives the one unit or the other.
    spilling = [f"sass__inst_executed_register_spilling_mem_{memory}" for memory in ("local", "shared")]
    assert differing == dict.fromkeys(spilling, ("inst", "byte"))
    assert len([unit for unit in shown.values() if unit]) > 350


def test_the_gpus_of_real_reports_are_described(captured):
    expected = {
        "a100_tiny_2021": ("A100-PCIE-40GB", (8, 0), 108, 1_555_200_000_000, 64),
        "a10g_sgemm_4": ("NVIDIA A10G", (8, 6), 80, 600_096_000_000, 48),
        "gb200_full_set": ("NVIDIA GB200", (10, 0), 152, 7_936_000_000_000, 64),
        "h200_deit448_bs8": ("NVIDIA H200", (9, 0), 132, 4_814_304_000_000, 64),
    }
    for name, facts in expected.items():
        (device,) = counters_of(captured(f"ncu/{name}.ncu-rep")).capture.devices
        assert facts == (
            device.name, device.compute_capability, device.sm_count, device.memory_bandwidth_bytes_per_s,
            device.max_warps_per_sm,
        )  # fmt: skip


def test_sessions_of_real_reports_are_described(captured):
    old, new = (counters_of(captured(f"ncu/{name}.ncu-rep")) for name in ("a100_tiny_2021", "gb200_full_set"))
    assert (old.capture.tool_version, new.capture.tool_version) == ("2020.3.1.0", "2025.3.1.0")
    assert (old.session.clock_control, old.session.cache_control) == ("base", None)
    assert (new.session.clock_control, new.session.cache_control, new.session.replay_mode) == ("base", "all", "kernel")
    assert {"SpeedOfLight", "Occupancy", "WarpStateStats", "PmSampling"} < set(new.session.sections)
    assert old.launches["nvtx"].to_list() == [[]] * 6


def test_a_report_of_2021_has_counts_as_real_numbers(captured):
    counters = counters_of(captured("ncu/a100_tiny_2021.ncu-rep"))
    assert counters.values("launch__registers_per_thread").to_list()[0] == 16.0
    assert counters.launches["device"].to_list() == [0] * 6


def test_a_cut_in_the_eighth_launch_leaves_seven(captured, tmp_path):
    whole = captured("ncu/h200_deit448_bs8.ncu-rep")
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes(whole.read_bytes()[:5_700_000])
    counters = read_ncu_rep(path, path)
    assert counters.launches.height == 7
    assert counters.metrics.equals(counters_of(whole).metrics.head(7))
    assert "byte 5700000" in note(counters, "incomplete-report")


def test_instances_of_a_real_report_add_up(captured):
    path = captured("ncu/gb200_full_set.ncu-rep")
    counters = read_ncu_rep(path, path, metrics=["inst_executed"], instances=["inst_executed"])
    by_launch = counters.instances["inst_executed"].group_by("launch", maintain_order=True).agg(pl.col("value").sum())
    assert by_launch["value"].to_list() == counters.values("inst_executed").to_list()
    assert counters.instances["inst_executed"]["key"].min() > 0  # addresses of instructions


@pytest.mark.oracle
@pytest.mark.parametrize("name", REPORTS)
def test_ncu_report_reads_the_same(captured, name):
    ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's ncu-report is not installed")
    path = captured(f"ncu/{name}.ncu-rep")
    _assert_equal(counters_of(path), [action for group in ncu_report.load_report(str(path)) for action in group])


@pytest.mark.oracle
def test_ncu_report_reads_a_report_written_by_hand_the_same(tmp_path):
    ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's ncu-report is not installed")
    state = push_pop("step", "layer") + put(2, put(1, THREAD + 1) + put(2, put(1, 0) + put(3, put(1, "loader"))))
    report = Report().session(details(version="2025.3.1.0")).launch(
        "gemm", {"a": 1, "b": 0.5, "c": "x", "d": Float(0.25), "e": UInt32(3)},
        extra=put(21, state) + put(19, rule("R", (4, "said", (2, 5.0)), section="S")), sources=[put(1, 1)],
    )  # fmt: skip
    report.result(7, {"a": 2}).result(9, {"a": 3}).result(8, {"a": 4}, put(18, "the list"))
    path = report.write(tmp_path / "by_hand.ncu-rep")
    counters = read_ncu_rep(path, path)
    actions = [action for group in ncu_report.load_report(str(path)) for action in group]
    _assert_equal(counters, actions)
    kinds = {0: "kernel", 1: "range", 2: "cmdlist", 3: "graph"}
    assert counters.launches["kind"].to_list() == [kinds[action.workload_type()] for action in actions]
    assert counters.launches["name"].to_list() == [action.name() for action in actions]
    domain = actions[0].nvtx_state().domain_by_id(0)
    assert counters.launches["nvtx"].to_list()[0] == list(domain.push_pop_ranges())


def _assert_equal(counters: KernelCounters, actions: Collection[Any]) -> None:
    names = {name for action in actions for name in action.metric_names()}
    assert set(counters.metrics.columns) == names
    assert counters.metrics.height == len(actions)
    for launch, action in zip(counters.metrics.to_dicts(), actions, strict=True):
        for name in action.metric_names():
            metric = action[name]
            value = metric.value() if metric.has_value() else None
            undefined = isinstance(value, float) and math.isnan(value)
            assert launch[name] == (None if undefined else value), name
    rules = [
        (launch, said["rule_identifier"], said["name"], said["section_identifier"])
        for launch, action in enumerate(actions)
        for said in action.rule_results_as_dicts()
    ]
    assert counters.rules.select("launch", "rule", "name", "section").rows() == rules


def test_a_report_that_becomes_shorter_while_it_is_read_is_read_as_it_was(tmp_path):
    """Touching mapped memory behind the new end would end the process by a signal."""
    report = tmp_path / "report.ncu-rep"
    report.write_bytes(b"NVR\0" + b"x" * 100_000)
    with content_of(report, report) as content:
        os.truncate(report, 10)
        assert content[-1] == ord("x")
