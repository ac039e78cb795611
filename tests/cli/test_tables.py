"""The table commands on a profile that can be counted by hand (`small_export`)."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warplens as package
from tests.cli.small_export import (
    COPY_BYTES,
    COPY_NS,
    GEMM,
    GEMM_NS,
    SECRET,
    SOFTMAX,
    SOFTMAX_FULL,
    SOFTMAX_NS,
    STEP_NS,
    STEPS,
    write_export,
)
from warplens.report.terminal import wrapped


def csv_text(value: int | str | bool) -> str:
    """A value of JSON as CSV writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


TABLES = ("budget", "steps", "phases", "kernels", "ranges", "launches", "copies", "api")
WORK_NS = GEMM_NS + SOFTMAX_NS + COPY_NS


@pytest.fixture
def asked(warplens, export):
    """The object that a command prints with `--format json`."""

    def ask(command: str, *arguments: object) -> dict[str, Any]:
        run = warplens(command, export, "--format", "json", *arguments)
        assert (run.code, run.err) == (0, "")
        return json.loads(run.out)

    return ask


@pytest.mark.parametrize("command", TABLES)
def test_the_window_and_how_it_was_found_are_stated(command, asked):
    window = asked(command)["data"]["window"]

    assert (window["start_ns"], window["end_ns"]) == (1_000_000, 1_000_000 * STEPS + STEP_NS)
    assert window["kind"] == "steady"
    assert "step" in window["how"]
    assert len(window["steps"]) == STEPS
    assert window["range"] is None


def test_kernels_carry_names_calls_and_exact_times(asked):
    gemm, softmax = asked("kernels")["data"]["rows"]

    assert (gemm["name"], gemm["full_name"]) == (GEMM, GEMM)
    assert (softmax["name"], softmax["full_name"]) == (SOFTMAX, SOFTMAX_FULL)
    assert (gemm["category"], softmax["category"]) == ("gemm", "softmax")
    expected = dict.fromkeys(("mean_ns", "median_ns", "min_ns", "max_ns"), GEMM_NS)
    assert {key: gemm[key] for key in expected} == expected
    assert (gemm["calls"], gemm["total_ns"], gemm["stdev_ns"]) == (STEPS, STEPS * GEMM_NS, 0)
    assert gemm["share"] == pytest.approx(GEMM_NS / (GEMM_NS + SOFTMAX_NS))


def test_kernels_by_category(asked):
    rows = asked("kernels", "--by", "category")["data"]["rows"]

    assert {row["category"]: row["total_ns"] for row in rows} == {
        "gemm": STEPS * GEMM_NS,
        "softmax": STEPS * SOFTMAX_NS,
    }


def test_the_budget_adds_up_to_the_window(asked):
    data = asked("budget")["data"]
    (device,) = data["devices"]

    assert sum(row["time_ns"] for row in data["rows"]) == data["window"]["duration_ns"] == device["duration_ns"]
    assert sum(row["share"] for row in data["rows"]) == pytest.approx(1)
    assert device["busy_ns"] == STEPS * WORK_NS
    assert device["hidden_ns"] == 0


def test_each_step_is_a_row(asked):
    rows = asked("steps")["data"]["rows"]

    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert {(row["wall_ns"], row["busy_ns"], row["kernels"], row["copies"]) for row in rows} == {
        (STEP_NS, WORK_NS, 2, 1)
    }


def test_all_work_of_the_forward_range_is_forward(asked):
    (forward,) = asked("phases")["data"]["rows"]

    assert (forward["phase"], forward["gpu_ns"], forward["matmul_ns"]) == (
        "forward",
        STEPS * WORK_NS,
        STEPS * GEMM_NS,
    )


def test_ranges_form_a_tree(asked):
    data = asked("ranges")["data"]
    step, forward = data["rows"]

    assert (step["name"], step["depth"], step["parent"]) == ("step", 0, None)
    assert (forward["name"], forward["depth"], forward["parent"]) == ("forward_pass", 1, step["id"])
    assert step["gpu_ns"] == forward["gpu_exclusive_ns"] == STEPS * WORK_NS
    assert data["coverage"]["attributed_share"] == 1


def test_a_limited_tree_keeps_its_largest_ranges(asked):
    rows = asked("ranges", "--limit", 1)["data"]["rows"]

    assert [row["name"] for row in rows] == ["step"]


def test_launches_know_the_call_that_made_them(asked):
    data = asked("launches", "--by", "api")["data"]
    (row,) = data["rows"]

    assert (row["api"], row["launches"], row["api_total_ns"]) == ("cudaLaunchKernel", 2 * STEPS, 2 * STEPS * 5_000)
    assert data["summary"]["coverage_share"] == 1


def test_copies_have_sizes_and_bandwidth(asked):
    (row,) = asked("copies")["data"]["rows"]

    assert (row["direction"], row["source_memory"], row["destination_memory"]) == ("host-to-device", "pinned", "device")
    assert row["total_bytes"] == STEPS * COPY_BYTES
    assert row["bandwidth_bytes_per_s"] == pytest.approx(COPY_BYTES / (COPY_NS / 1e9))


def test_api_calls_by_thread(asked):
    (row,) = asked("api", "--by", "process,thread")["data"]["rows"]

    assert (row["process"], row["thread"], row["calls"]) == (77, 78, 4 * STEPS)


def test_a_window_and_a_range_can_be_asked_for(asked):
    data = asked("kernels", "--window", "1ms:2ms", "--range", "forward_pass")["data"]

    assert (data["window"]["kind"], data["window"]["range"]) == ("explicit", "forward_pass")
    assert [row["calls"] for row in data["rows"]] == [1, 1]


@pytest.mark.parametrize("command", TABLES)
def test_csv_holds_the_same_numbers_as_json(command, asked, warplens, export):
    rows = asked(command)["data"]["rows"]

    table = list(csv.DictReader(io.StringIO(warplens(command, export, "--format", "csv").out)))

    assert [list(row) for row in table] == [list(row) for row in rows]
    for found, expected in zip(table, rows, strict=True):
        exact = {key: value for key, value in expected.items() if isinstance(value, (int, str))}
        assert {key: found[key] for key in exact} == {key: csv_text(value) for key, value in exact.items()}


@pytest.mark.parametrize("command", TABLES)
def test_a_table_for_people_opens_with_source_and_window(command, warplens, export):
    run = warplens(command, export)

    source, window, *_ = run.out.splitlines()
    assert run.code == 0
    assert source.startswith("small.sqlite · Nsight Systems")
    assert window.startswith("window: 3.90 ms, steps 1–4 of 4")
    assert SECRET not in run.out + run.err


def test_people_see_the_first_rows_and_programs_see_all(warplens, export):
    limited = warplens("kernels", export, "--limit", 1)

    assert GEMM in limited.out
    assert SOFTMAX not in limited.out
    assert "1 of 2 rows" in limited.out
    assert SOFTMAX in warplens("kernels", export, "--limit", 0).out


def test_the_budget_states_what_is_known_of_idle_time(warplens, export):
    out = warplens("budget", export).out

    assert "GPU 0: busy 640 µs of 3.90 ms" in out
    assert "the cause is known for 100.0 % of the idle time" in out
    assert "sum" in out


def test_a_kernel_named_like_markup_stays_text(tmp_path, warplens):
    name = "<img src=x onerror=alert(1)>[bold]\x1b[2J"
    profile = write_export(tmp_path / "markup.sqlite", extra_kernel_name=name)

    for form in ("table", "csv"):
        assert "<img src=x onerror=alert(1)>[bold]" in warplens("kernels", profile, "--format", form).out
    assert "\x1b" not in warplens("kernels", profile).out
    assert "<img" not in warplens("kernels", profile, "--format", "md").out


def test_notes_go_to_standard_error_and_can_be_silenced(tmp_path, warplens):
    profile = write_export(tmp_path / "unannotated.sqlite", annotated=False)
    spoken = warplens("kernels", profile)

    assert spoken.err.startswith("caution: ")
    assert "caution: " not in spoken.out
    assert "> caution: " in warplens("kernels", profile, "--format", "md").out
    assert warplens("kernels", profile, "--quiet").err == ""
    assert warplens("--quiet", "kernels", profile).err == ""


def test_a_folder_with_one_profile_stands_for_it(tmp_path, warplens):
    write_export(tmp_path / "only.sqlite")

    assert warplens("kernels", tmp_path).out.startswith("only.sqlite")


def test_a_folder_with_several_profiles_is_wrong_usage(tmp_path, warplens):
    for name in ("a.sqlite", "b.sqlite"):
        write_export(tmp_path / name)

    run = warplens("kernels", tmp_path)

    assert run.code == 2
    assert "2 profiles (a.sqlite, b.sqlite)" in run.err
    assert run.err.count("\n") == 1


def test_a_real_process_prints_json_and_nothing_else(export):
    done = subprocess.run(
        [sys.executable, "-m", "warplens", "kernels", str(export), "--format", "json"],
        capture_output=True,
        check=True,
    )

    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1
    assert json.loads(done.stdout)["schema"] == "warplens.kernels/1"


def test_pipes_get_utf8_whatever_the_locale(export):
    done = subprocess.run(
        [sys.executable, "-m", "warplens", "budget", str(export)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert "640 µs" in done.stdout.decode("utf-8")


@pytest.mark.parametrize("command", TABLES)
def test_a_terminal_of_80_columns_shows_whole_numbers_and_names_the_columns_that_do_not_fit(
    command, warplens, export, monkeypatch
):
    wide = warplens(command, export).out
    monkeypatch.setenv("FORCE_COLOR", "1")  # the output is taken for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    narrow = re.sub(r"\x1b\[[\d;]*m", "", warplens(command, export).out)

    quantity = re.compile(r"(?<![\d.,])[\d.,]+ (?:[nµm]?s|%|[kMG]?B(?:/s)?)(?=\s)")
    assert max(map(len, narrow.splitlines())) <= 80
    assert quantity.findall(narrow)
    assert set(quantity.findall(narrow)) <= set(quantity.findall(wide))
    headings = (line for line, below in itertools.pairwise(wide.splitlines()) if below.startswith(" ──"))
    titles = {title for line in headings for title in re.split(r"\s{2,}", line.strip())}
    assert titles
    assert all(title in narrow for title in titles)


def test_sentences_are_wrapped_between_words_and_numbers_stay_with_their_units():
    line = "   evidence: idle 33.9 ms, idle 81.3 %, launch interval median 22.8 µs, host needed 4.16 ms a step"

    for width in range(40, 100):
        pieces = wrapped(line, width)
        assert all(len(piece) <= width for piece in pieces)
        assert " ".join(piece.strip() for piece in pieces) == line.strip()
        assert all(piece.startswith("   ") for piece in pieces)
        assert not any(re.search(r"\d$", piece) or re.match(r"\s*(ms|µs|%)", piece) for piece in pieces)


def test_counters_keep_what_bounds_a_kernel_on_a_terminal_of_80_columns(warplens, monkeypatch):
    counters = Path(package.__file__).parent / "data" / "counters" / "planted_h200.ncu-rep.xz"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = re.sub(r"\x1b\[[\d;]*m", "", warplens("counters", counters).out)
    (row,) = (line for line in narrow.splitlines() if line.startswith(" bank_conflicts"))

    assert "memory (L1)" in row
