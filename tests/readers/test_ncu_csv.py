"""Nsight Compute's CSV exports: both pages, all releases, and what goes wrong on the way into a file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from warplens.errors import UnreadableInputError
from warplens.profile import NoteLevel
from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters
from warplens.readers.ncu.csv import open_ranges, read_ncu_csv
from warplens.readers.ncu.csv_labels import metric_of, section_of
from warplens.readers.ncu.csv_text import base_unit, looks_like_ncu_csv
from warplens.readers.ncu.report import read_ncu_rep

_KERNEL = "void ns::copy<float, (int)4>(float *, const char (&)[3], int)"
_FACTS = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
_FACTS += ["Block Size", "Grid Size", "Device", "CC"]
_DETAILS = ["Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description"]
_NEW_DETAILS = [*_DETAILS, "Estimated Speedup Type", "Estimated Speedup"]
_SOL = "GPU Speed Of Light Throughput"


def _launch(number: int = 0, kernel: str = _KERNEL) -> list[str]:
    sizes = ("(128, 1, 1)", "(1728, 2, 1)")
    return [str(number), "77", "secret_program", "secret-host", kernel, "1", "7", *sizes, "0", "9.0"]


def _written(
    rows: Sequence[Sequence[str]], before: str = "", quoting: int = csv.QUOTE_ALL, delimiter: str = ","
) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=quoting, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return before + text.getvalue()


def _raw(metrics: dict[str, tuple[str, list[str]]]) -> str:
    """A raw page: of each metric its unit and its printed values, one a launch."""
    launches = max(len(values) for _, values in metrics.values())
    rows = [[*_FACTS, *metrics], [*[""] * len(_FACTS), *(unit for unit, _ in metrics.values())]]
    rows += [[*_launch(row), *(values[row] for _, values in metrics.values())] for row in range(launches)]
    return _written(rows)


def _details(*metrics: tuple[str, str, str, str]) -> str:
    """A details page of one launch as new releases write it: rows of metrics end after the value."""
    rows: list[list[str]] = [[*_FACTS, *_NEW_DETAILS]]
    rows += [[*_launch(), *metric, ""] for metric in metrics]
    return _written(rows)


def _rule(*fields: str) -> list[str]:
    return [*_launch(), "SpeedOfLight", "", "", "", *fields]


def _read(folder: Path, text: str | bytes, metrics: Sequence[str] | None = None) -> KernelCounters:
    path = folder / "profile.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_ncu_csv(path, path, metrics)


def _refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(UnreadableInputError) as caught:
        _read(folder, text)
    return str(caught.value)


def test_scaled_units_of_the_raw_page_come_back_in_base_units(tmp_path):
    counters = _read(
        tmp_path,
        _raw(
            {
                "gpu__time_duration.sum": ("us", ["4.800000", "7.136000"]),
                "dram__bytes.sum.per_second": ("Tbyte/s", ["1.475627", "0.006493"]),
                "launch__shared_mem_config_size": ("Kbyte", ["32.768000", "102.400000"]),
                "sm__cycles_elapsed.avg.per_second": ("Ghz", ["1.960000", "1.980000"]),
                "inst_executed": ("inst", ["13485", "9007199254740991"]),
            }
        ),
    )
    assert counters.values("gpu__time_duration.sum").to_list() == [4800.0, 7136.0]
    assert counters.values("dram__bytes.sum.per_second").to_list() == [1475627000000.0, 6493000000.0]
    assert counters.values("launch__shared_mem_config_size").to_list() == [32768.0, 102400.0]
    assert counters.values("sm__cycles_elapsed.avg.per_second").to_list() == [1.96e9, 1.98e9]
    assert counters.values("inst_executed").to_list() == [13485.0, 9007199254740991.0]
    assert dict(counters.units) == {
        "gpu__time_duration.sum": "ns",
        "dram__bytes.sum.per_second": "byte/second",
        "launch__shared_mem_config_size": "byte",
        "sm__cycles_elapsed.avg.per_second": "hz",
        "inst_executed": "inst",
    }


def test_both_pages_give_a_metric_the_same_name_and_unit(tmp_path):
    details = _read(
        tmp_path,
        _details(
            (_SOL, "Duration", "us", "4.80"),
            (_SOL, "Elapsed Cycles", "cycle", "13,485"),
            (_SOL, "Memory Throughput", "%", "30.92"),
            ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "1,475.63"),
            ("Command line profiler metrics", "dram__bytes_read.sum", "Mbyte", "2.35"),
            ("Command line profiler metrics", "flop_count_hp.sum", "", "n/a"),
            ("Launch Statistics", "Function Cache Configuration", "", "CachePreferNone"),
        ),
    )
    assert details.metrics.row(0, named=True) == {
        "gpu__time_duration.sum": 4800.0,
        "gpc__cycles_elapsed.max": 13485.0,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 30.92,
        "dram__bytes.sum.per_second": 1475630000000.0,
        "dram__bytes_read.sum": 2350000.0,
        "flop_count_hp.sum": None,
        "launch__func_cache_config": "CachePreferNone",
    }
    assert details.units["dram__bytes.sum.per_second"] == "byte/second"
    assert details.session.sections == ("LaunchStats", "MemoryWorkloadAnalysis", "SpeedOfLight")
    assert [note.code for note in details.capture.notes] == ["rounded-values"]


def test_a_launch_is_told_by_the_columns_before_its_metrics(tmp_path):
    counters = _read(tmp_path, _raw({"gpu__time_duration.sum": ("ns", ["1", "2"])}))
    assert counters.launches.select(pl.exclude("name", "full_name")).row(1, named=True) == {
        "launch": 1,
        "kind": "kernel",
        "device": 0,
        "context": 1,
        "stream": 7,
        "process": 77,
        "grid_x": 1728,
        "grid_y": 2,
        "grid_z": 1,
        "block_x": 128,
        "block_y": 1,
        "block_z": 1,
        "nvtx": None,
    }
    assert counters.launches["name"].to_list() == ["copy", "copy"]
    assert counters.launches["full_name"].to_list() == [_KERNEL, _KERNEL]
    assert counters.capture.devices[0].compute_capability == (9, 0)


def test_host_and_process_names_are_nowhere_in_the_result(tmp_path):
    for text in (_raw({"inst_executed": ("inst", ["1"])}), _details((_SOL, "Duration", "us", "1.00"))):
        counters = _read(tmp_path, text)
        everything = repr((counters.capture, counters.session, counters.units))
        everything += counters.launches.write_json() + counters.metrics.write_json() + counters.rules.write_json()
        assert "secret" not in everything


def test_metrics_that_were_not_asked_for_are_left_out(tmp_path):
    raw = _raw({"a__b.sum": ("", ["1"]), "device__attribute_display_name": ("", ["GPU X"]), "c__d.sum": ("us", ["3"])})
    counters = _read(tmp_path, raw, ["c__d.sum", "no__such.metric"])
    assert counters.metrics.to_dicts() == [{"c__d.sum": 3000.0}]
    assert counters.capture.devices[0].name == "GPU X"
    details = _details((_SOL, "Duration", "us", "4.80"), (_SOL, "Elapsed Cycles", "cycle", "13,485"))
    assert _read(tmp_path, details, ["gpc__cycles_elapsed.max"]).metrics.columns == ["gpc__cycles_elapsed.max"]


def test_rules_come_with_their_kind_and_speedup(tmp_path):
    rows = [
        [*_FACTS, *_NEW_DETAILS],
        _rule("SOLBottleneck", "OPT", 'A "long", text.', "", ""),
        _rule("AchievedOccupancy", "OPT", "Text.", "local", "50.85"),
        _rule(
            "CPIStall",
            "WRN",
            "Failed in\n/home/me/Nsight Compute/Sections/NvRules.py:2062, see https://a.b/c/d",
            "",
            "",
        ),
    ]
    rules = _read(tmp_path, _written(rows)).rules
    assert rules["rule"].to_list() == ["SOLBottleneck", "AchievedOccupancy", "CPIStall"]
    assert rules["name"].to_list() == ["Bottleneck", "Achieved Occupancy", "Warp Stall"]
    assert rules["kind"].to_list() == ["optimization", "optimization", "warning"]
    assert rules["section"].unique().to_list() == ["SpeedOfLight"]
    assert rules["speedup_percent"].to_list() == [None, 50.85, None]
    assert rules["message"].to_list()[2] == "Failed in\nNvRules.py:2062, see https://a.b/c/d"


def test_the_header_of_2022_has_neither_sizes_nor_speedups(tmp_path):
    header = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"]
    launch = ["0", "77", "secret_program", "secret-host", _KERNEL, "2023-May-07 19:59:29", "1", "7"]
    rows = [
        [*header, *_DETAILS],
        [
            *launch,
            "Command line profiler metrics",
            "sm__cycles_elapsed.avg.per_second",
            "cycle/second",
            "935,474,537.04",
            "",
        ],
        [*launch, "Command line profiler metrics", "gpu__time_duration.sum", "usecond", "5.76", ""],
        [*launch, "Occupancy", "", "", "", "Occupancy", "WRN", "Limited."],
    ]
    before = "==PROF== Connected to process 77 (/home/me/bin/python3)\n==PROF== Disconnected from process 77\n"
    counters = _read(tmp_path, _written(rows, before))
    assert counters.values("sm__cycles_elapsed.avg.per_second").to_list() == [935474537.04]
    assert counters.values("gpu__time_duration.sum").to_list() == [5760.0]
    assert counters.units["sm__cycles_elapsed.avg.per_second"] == "hz"
    assert counters.launches["grid_x"].to_list() == [None]
    assert counters.rules["kind"].to_list() == ["warning"]


def test_launches_of_a_details_page_are_told_apart_even_where_their_rows_mix(tmp_path):
    rows = [[*_FACTS, *_NEW_DETAILS]]
    rows += [[*_launch(n), _SOL, "Duration", "us", f"{n + 1}.00", ""] for n in (0, 1, 2)]
    rows += [[*_launch(n), _SOL, "Elapsed Cycles", "cycle", f"{n}", ""] for n in (2, 0)]
    counters = _read(tmp_path, _written(rows))
    assert counters.values("gpu__time_duration.sum").to_list() == [1000.0, 2000.0, 3000.0]
    assert counters.values("gpc__cycles_elapsed.max").to_list() == [0.0, None, 2.0]


def test_a_metric_printed_in_two_sections_keeps_its_first_value(tmp_path):
    name = "gpu__time_duration.sum"
    counters = _read(tmp_path, _details((_SOL, name, "us", "n/a"), (_SOL, name, "us", "4.80"), (_SOL, name, "ns", "9")))
    assert counters.values(name).to_list() == [4800.0]


def test_nvtx_ranges_stand_outermost_first(tmp_path):
    rest = ":none" * 6
    state = f'634  "<default domain>:block3{rest}"  "<default domain>:a:b{rest}" '
    assert open_ranges(state) == ["block3", "a:b"]
    header = [*_FACTS, "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg", "x__y.sum"]
    rows = [header, [""] * len(header), [*_launch(), state, "1"], [*_launch(1), "", "2"]]
    assert _read(tmp_path, _written(rows)).launches["nvtx"].to_list() == [["block3", "a:b"], []]


@pytest.mark.parametrize(
    ("printed", "base", "power"),
    [
        ("us", "ns", 3),
        ("msecond", "ns", 6),
        ("second", "ns", 9),
        ("Kbyte/block", "byte/block", 3),
        ("Kbyte/cycle", "byte/cycle", 3),
        ("Gbyte/second", "byte/second", 9),
        ("cycle/nsecond", "hz", 9),
        ("cycle/second", "hz", 0),
        ("Mhz", "hz", 6),
        ("sector/us", "sector/second", 6),
        ("sectors", "sector", 0),
        ("branches", "branch", 0),
        ("register/thread", "register/thread", 0),
        ("%/Kbyte", "%/byte", 3),
        ("%", "%", 0),
        ("furlong", "furlong", 0),
        ("", None, 0),
    ],
)
def test_base_units(printed, base, power):
    assert base_unit(printed) == (base, power)


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("13,485", 13485.0),
        ("1,234,567.89", 1234567.89),
        ("12,34,567", 1234567.0),
        ("1'234.5", 1234.5),
        ("1\u202f234", 1234.0),
        ("377 (3; 3; 6)", 377.0),
        ("2,295 (1: 7; 16: 7)", 2295.0),
        ("1e+06", 1000000.0),
        ("n/a", None),
        ("no data", None),
        ("nan", None),
        ("(0; 1)", None),
        ("", None),
    ],
)
def test_numbers_as_printed(tmp_path, printed, number):
    assert _read(tmp_path, _raw({"a__b.sum": ("inst", [printed, "1"])})).values("a__b.sum").to_list() == [number, 1.0]


def test_a_decimal_comma_is_recognised_for_the_whole_file(tmp_path):
    counters = _read(
        tmp_path,
        _details(
            (_SOL, "Elapsed Cycles", "cycle", "9.428"),
            (_SOL, "Duration", "us", "4,80"),
            (_SOL, "SM Active Cycles", "cycle", "1.234.567,5"),
        ),
    )
    assert counters.metrics.row(0) == (9428.0, 4800.0, 1234567.5)


def test_values_without_a_unit_of_a_known_metric_are_in_its_base_unit(tmp_path):
    counters = _read(tmp_path, _details((_SOL, "Duration", "", "5184")))
    assert (counters.values("gpu__time_duration.sum")[0], counters.units["gpu__time_duration.sum"]) == (5184.0, "ns")


def test_a_known_metric_in_an_unknown_unit_has_no_value(tmp_path):
    counters = _read(tmp_path, _raw({"gpu__time_duration.sum": ("foo", ["9.6"]), "inst_executed": ("inst", ["1"])}))
    assert counters.metrics.columns == ["inst_executed"]


def test_a_raw_page_without_its_row_of_units_is_refused(tmp_path):
    lines = _raw({"gpu__time_duration.sum": ("us", ["4.8"])}).splitlines(keepends=True)
    assert "units" in _refusal(tmp_path, lines[0] + lines[2])


def test_a_column_of_mixed_values_is_text(tmp_path):
    counters = _read(tmp_path, _raw({"launch__tpc_enabled": ("", ["all", "3", "n/a"])}))
    assert counters.values("launch__tpc_enabled").to_list() == ["all", "3", None]


def test_labels_are_told_by_their_section():
    assert metric_of(_SOL, "", "SM Frequency") == "gpc__cycles_elapsed.avg.per_second"
    roofline = "GPU Speed Of Light Roofline Chart"
    assert metric_of(roofline, "Single Precision Roofline", "SM Frequency") == "sm__cycles_elapsed.avg.per_second"
    assert (
        metric_of(roofline, "Single Precision Achieved Value", "SM Frequency") == "smsp__cycles_elapsed.avg.per_second"
    )
    assert (
        metric_of("Warp State Statistics", "Warp State (All Cycles)", "Stall Long Scoreboard")
        == "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    )


def test_labels_whose_metric_differs_between_releases_stay_labels():
    assert metric_of("Compute Workload Analysis", "", "SM Busy") == "label:ComputeWorkloadAnalysis/SM Busy"
    assert metric_of("A section of 2031", "", "Duration") == "label:A section of 2031/Duration"
    assert section_of("Command line profiler metrics") is None


def test_names_printed_in_place_of_labels_or_behind_them_are_taken():
    assert metric_of(_SOL, "", "gpu__time_duration.sum") == "gpu__time_duration.sum"
    assert metric_of(_SOL, "", "Compute (SM) Throughput (sm__throughput.avg.pct)") == "sm__throughput.avg.pct"


@pytest.mark.parametrize(
    ("message", "says", "advises"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "performance counters", "root"),
        ("==ERROR== Option '--section .*Speed.*' did not match any section.", "does not have", "--list-sections"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "another tool", "dcgmi"),
        ("==ERROR== unrecognised option '--warmup-iters'", "options", "--help"),
        ("==ERROR== The application returned an error code (1).", "program failed", "without ncu"),
        ("==ERROR== Something new about /home/me/secret", "does not know", "==ERROR== lines"),
        ("==WARNING== No kernels were profiled.", "no kernel", "--target-processes all"),
        ("==PROF== Disconnected from process 77", "only messages", "Run it again"),
    ],
)
def test_a_failed_run_saved_as_csv_is_told_as_such(tmp_path, message, says, advises):
    text = _refusal(tmp_path, f"==PROF== Connected to process 77 (/home/me/python)\n{message}\n")
    assert says in text
    assert advises in text
    assert "/home" not in text


@pytest.mark.parametrize("before", ["", "==PROF== Connected to process 77 (/home/me/python)\nepoch 1\n"])
@pytest.mark.parametrize(
    "where", ["Context 1, Stream 7, Device 0, CC 9.0", "2021-Feb-01 12:00:00, Context 1, Stream 7"]
)
def test_what_ncu_prints_for_people_is_told_as_such(tmp_path, before, where):
    printed = f"{before}[77] python3@127.0.0.1\n  f(float *) (8, 1, 1)x(256, 1, 1), {where}\n    Section: Occupancy\n"
    file = tmp_path / "profile.txt"
    file.write_text(printed, "utf-8")
    with pytest.raises(UnreadableInputError, match=r"prints without --csv.*--export"):
        read_counters(file)


def test_lines_of_the_program_and_of_ncu_are_kept_out_of_the_table(tmp_path):
    table = _details((_SOL, "Duration", "us", "4.80"), (_SOL, "Elapsed Cycles", "cycle", "13,485"))
    header, first, second = table.splitlines()
    lines = [
        'epoch 1, loss "0.5',
        "==PROF== Connected",
        header,
        first,
        "==WARNING== Failed to detect compute capability, x",
    ]
    counters = _read(tmp_path, "\n".join([*lines, "epoch 2, loss 0.4", second, "==PROF== Disconnected", ""]))
    assert counters.metrics.row(0) == (4800.0, 13485.0)
    assert [note.code for note in counters.capture.notes] == ["unsupported-gpu", "rounded-values", "foreign-lines"]


def test_rows_of_a_table_about_the_machine_are_not_damaged_rows(tmp_path):
    machine = '"GPU ID","GPU Name","CPU Affinity"\n"0","NVIDIA H200","0-15"\n"1","NVIDIA H200","16-31"\n'
    counters = _read(tmp_path, _details((_SOL, "Duration", "us", "4.80")) + machine)
    assert counters.metrics.row(0) == (4800.0,)
    assert [note.code for note in counters.capture.notes] == ["rounded-values", "foreign-lines"]


def test_a_row_with_a_damaged_number_does_not_hide_the_rows_after_it(tmp_path):
    lines = _details(*((_SOL, label, "us", "4.80") for label in ("Duration", "b", "c"))).splitlines()
    counters = _read(tmp_path, "\n".join([lines[0], lines[1], lines[2].replace('"0"', '"?"', 1), lines[3], ""]))
    assert counters.metrics.width == 2


def test_an_error_beside_a_table_is_a_warning_about_it(tmp_path):
    text = _raw({"a__b.sum": ("inst", ["1"])}) + "==ERROR== The application returned an error code (11).\n"
    (note,) = _read(tmp_path, text).capture.notes
    assert (note.code, note.level) == ("run-failed", NoteLevel.WARNING)


def test_a_header_without_rows_is_an_export_without_launches(tmp_path):
    counters = _read(tmp_path, _details())
    assert counters.launches.height == 0
    assert counters.capture.notes[0].code == "no-launches"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"Process ID","Process Name","Host Name","Kernel Name","Invocations"\n', "summary"),
        ('==WARNING== x\n"Process ID","Process Name","Host Name","Kernel Name","Invocations"\n', "summary"),
        ('Launch Settings\n"Launch Attribute","Value"\n', "session page"),
        ('"Kernel Name","k"\n"Address","Source"\n', "source page"),
        ("a,b\n1,2\n", "no table"),
        ("", "no table"),
        ('"ID","Process ID","Section Name"\n"0","1","x"\n', "does not name the kernels"),
        ('"ID","Process ID","Metric Name"\n"0","1","x"\n', "lacks the columns"),
    ],
)
def test_other_tables_are_refused_by_name(tmp_path, text, says):
    assert says in _refusal(tmp_path, text)


def test_content_tells_the_format():
    assert looks_like_ncu_csv(_details().encode())
    assert looks_like_ncu_csv(b"==ERROR== Option '--section x' did not match any section.\n")
    assert looks_like_ncu_csv(b'output of a program\n"ID","Process ID","Process Name"\n')
    assert looks_like_ncu_csv(_details().encode("utf-16"))
    assert not looks_like_ncu_csv(b"time,value\n1,2\n")
    assert not looks_like_ncu_csv(b"== a heading ==\n")
    assert not looks_like_ncu_csv(b"")
    assert not looks_like_ncu_csv(b"\xff\xfe\x00")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_exports_of_windows_shells_are_read(tmp_path, encoding):
    text = _details((_SOL, "Duration", "us", "4.80")).replace("\n", "\r\n")
    assert _read(tmp_path, text.encode(encoding)).metrics.row(0) == (4800.0,)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_exports_saved_again_by_a_spreadsheet_are_read(tmp_path, delimiter):
    rows = list(csv.reader(io.StringIO(_raw({"gpu__time_duration.sum": ("us", ["4.8", "1,204.8"])}))))
    counters = _read(tmp_path, _written(rows, quoting=csv.QUOTE_MINIMAL, delimiter=delimiter).rstrip("\n"))
    assert counters.values("gpu__time_duration.sum").to_list() == [4800.0, 1204800.0]


def test_a_second_table_of_the_same_columns_adds_its_launches(tmp_path):
    first = _raw({"gpu__time_duration.sum": ("us", ["4.8"])})
    second = _raw({"gpu__time_duration.sum": ("ms", ["2.5"]), "a__b.sum": ("", ["1"])})
    counters = _read(tmp_path, first + second)
    assert counters.metrics.rows() == [(4800.0, None), (2500000.0, 1.0)]


def test_a_row_cut_off_by_the_end_of_the_file_is_left_out(tmp_path):
    whole = _details((_SOL, "Duration", "us", "4.80"), (_SOL, "Elapsed Cycles", "cycle", "13,485"))
    counters = _read(tmp_path, whole[: whole.index("13,485") + 3])
    assert counters.metrics.columns == ["gpu__time_duration.sum"]
    assert counters.capture.notes[0].code == "incomplete-report"


def test_an_export_that_ends_before_its_first_launch_is_refused(tmp_path):
    whole = _details((_SOL, "Duration", "us", "4.80"))
    assert "ends before its first launch" in _refusal(tmp_path, whole[: whole.index("4.80")])


def test_a_row_with_a_field_too_few_is_left_out_and_told(tmp_path):
    lines = _raw({"a__b.sum": ("inst", ["1", "2", "3"])}).splitlines(keepends=True)
    lines[3] = lines[3].replace('"9.0",', "")
    counters = _read(tmp_path, "".join(lines))
    assert counters.values("a__b.sum").to_list() == [1.0, 3.0]
    assert counters.capture.notes[0].code == "unreadable-rows"


def _last_digit(printed: str) -> float:
    """The value of one step of the last printed digit."""
    return 10.0 ** -len(printed.partition(".")[2])


def test_the_raw_page_agrees_with_the_report_to_the_last_printed_digit(captured):
    path = captured("ncu/h200_deit448_bs8.raw.csv")
    report = captured("ncu/h200_deit448_bs8.ncu-rep")
    counters, reference = read_ncu_csv(path, path), read_ncu_rep(report, report)
    with path.open() as file:
        header, units, *rows = list(csv.reader(file))
    assert counters.launches.height == len(rows) == 30
    compared = 0
    for name in counters.metrics.columns:
        values, exact = counters.metrics[name], reference.values(name)
        if values.dtype == pl.String:
            assert (
                values.drop_nulls().to_list()
                == exact.cast(pl.String).drop_nulls().replace("", None).drop_nulls().to_list()
            )
            continue
        at = header.index(name)
        scale = 10.0 ** base_unit(units[at])[1]
        for row, value, expected in zip(rows, values.to_list(), exact.to_list(), strict=True):
            if value is None or expected is None:
                assert row[at] in ("no data", "n/a", "nan", ""), name
                continue
            assert math.isclose(value, expected, abs_tol=0.51 * scale * _last_digit(row[at]), rel_tol=1e-12), name
            compared += 1
    assert compared > 18_000
    sizes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    for column in ["name", "device", "context", "stream", "process", *sizes]:
        assert counters.launches[column].cast(pl.String).equals(reference.launches[column].cast(pl.String)), column
    assert counters.capture.devices == reference.capture.devices


def test_the_details_page_agrees_with_the_report(captured):
    path = captured("ncu/h200_deit448_bs8.details.csv")
    report = captured("ncu/h200_deit448_bs8.ncu-rep")
    counters, reference = read_ncu_csv(path, path), read_ncu_rep(report, report)
    printed: dict[tuple[int, str], tuple[float, float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["Metric Name"]:
                name = metric_of(row["Section Name"], "", row["Metric Name"])
                scale = 10.0 ** base_unit(row["Metric Unit"])[1]
                printed.setdefault((int(row["ID"]), name), (scale, _last_digit(row["Metric Value"])))
    compared = 0
    for (launch, name), (scale, digit) in printed.items():
        value = counters.values(name)[launch]
        if name.startswith("label:") or not isinstance(value, float):
            continue
        assert math.isclose(value, reference.values(name)[launch], abs_tol=0.51 * scale * digit, rel_tol=1e-12), name
        assert counters.units.get(name) == reference.units.get(name), name
        compared += 1
    assert compared > 1_400
    assert counters.session.sections == reference.session.sections
    same = ["launch", "rule", "name", "section", "kind", "message", "speedup_kind"]
    key = ["launch", "rule", "message"]
    assert counters.rules.select(same).sort(key).equals(reference.rules.select(same).sort(key))


def test_raw_and_details_page_of_one_report_agree(captured):
    raw_path, details_path = (
        captured("ncu/h200_topk_reduction.raw.csv"),
        captured("ncu/h200_topk_reduction.details.csv"),
    )
    raw, details = read_ncu_csv(raw_path, raw_path), read_ncu_csv(details_path, details_path)
    assert raw.launches.equals(details.launches)
    assert raw.launches["nvtx"].to_list()[0] == ["block3", "token_reduction"]
    known = [name for name in details.metrics.columns if not name.startswith("label:")]
    assert len(known) > 60
    for name in known:
        for one, other in zip(raw.values(name).to_list(), details.values(name).to_list(), strict=True):
            assert one == other or math.isclose(one, other, rel_tol=6e-3, abs_tol=6e-3), name


@pytest.mark.parametrize("name", ["a100_bert_attention_old.csv", "a100_gpt2_attention_old.csv"])
def test_exports_of_2022_are_read(captured, name):
    path = captured(f"ncu/{name}")
    counters = read_ncu_csv(path, path)
    assert counters.metrics.shape == (26, 60)
    assert counters.rules.height == 51
    assert not [column for column in counters.metrics.columns if column.startswith("label:")]


_EXPORTS_OF_A_KERNEL = (
    "details",
    "metrics",
    "section_MemoryWorkloadAnalysis",
    "section_Occupancy",
    "section_SchedulerStats",
    "section_SpeedOfLight",
    "section_SpeedOfLight_RooflineChart",
)


@pytest.mark.parametrize("kernel", ["0001", "0005", "0012"])
@pytest.mark.parametrize("export", _EXPORTS_OF_A_KERNEL)
def test_every_export_of_the_rtx_5090_is_read(captured, kernel, export):
    path = captured(f"ncu/rtx5090_deepseek_ocr_kernel_{kernel}/ncu.{export}.csv")
    counters = read_ncu_csv(path, path)
    assert counters.launches.height == 1
    assert counters.metrics.width
    assert counters.capture.devices[0].compute_capability == (12, 0)
    assert {note.code for note in counters.capture.notes} == {"rounded-values"}


def test_thousands_and_scaled_units_of_the_rtx_5090(captured):
    path = captured("ncu/rtx5090_deepseek_ocr_kernel_0001/ncu.details.csv")
    counters = read_ncu_csv(path, path)
    assert counters.values("gpc__cycles_elapsed.max").to_list() == [13485.0]
    assert counters.values("dram__bytes_read.sum").to_list() == [2330000.0]
    assert counters.values("flop_count_hp.sum").to_list() == [None]
