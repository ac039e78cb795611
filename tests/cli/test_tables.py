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

import pytest

import warplens as package
from tests import shipped
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
def asked(asked, export):
    return lambda command, *arguments: asked(command, export, *arguments)


@pytest.mark.parametrize("command", TABLES)
def test_the_window_and_how_it_was_found_are_stated(command, asked):
    window = asked(command)["data"]["window"]

    assert (window["start_ns"], window["end_ns"]) == (1_000_000, 1_000_000 * STEPS + STEP_NS)
    assert window["kind"] == "steady"
    assert "step" in window["how"]
    assert len(window["steps"]) == STEPS
    assert window["range"] is None


#: Rows of each table, counted by hand: the columns that are named.
COUNTED: dict[str, list[dict[str, object]]] = {
    "kernels": [
        {
            "name": GEMM, "full_name": GEMM, "category": "gemm", "calls": STEPS, "total_ns": STEPS * GEMM_NS,
            **dict.fromkeys(("mean_ns", "median_ns", "min_ns", "max_ns"), GEMM_NS), "stdev_ns": 0,
            "share": pytest.approx(GEMM_NS / (GEMM_NS + SOFTMAX_NS)),
        },
        {"name": SOFTMAX, "full_name": SOFTMAX_FULL, "category": "softmax"},
    ],
    "kernels --by category": [
        {"category": "gemm", "total_ns": STEPS * GEMM_NS}, {"category": "softmax", "total_ns": STEPS * SOFTMAX_NS},
    ],
    "kernels --window 1ms:2ms --range forward_pass": [{"calls": 1}, {"calls": 1}],
    "steps": [
        {"step": step, "wall_ns": STEP_NS, "busy_ns": WORK_NS, "kernels": 2, "copies": 1} for step in (1, 2, 3, 4)
    ],
    "phases": [{"phase": "forward", "gpu_ns": STEPS * WORK_NS, "matmul_ns": STEPS * GEMM_NS}],
    "ranges": [
        {"id": 0, "name": "step", "depth": 0, "parent": None, "gpu_ns": STEPS * WORK_NS},
        {"name": "forward_pass", "depth": 1, "parent": 0, "gpu_exclusive_ns": STEPS * WORK_NS},
    ],
    "ranges --limit 1": [{"name": "step"}],
    "launches --by api": [
        {"api": "cudaLaunchKernel", "launches": 2 * STEPS, "api_total_ns": 2 * STEPS * 5_000}
    ],
    "copies": [
        {
            "direction": "host-to-device", "source_memory": "pinned", "destination_memory": "device",
            "total_bytes": STEPS * COPY_BYTES, "bandwidth_bytes_per_s": pytest.approx(COPY_BYTES / (COPY_NS / 1e9)),
        }
    ],
    "api --by process,thread": [{"process": 77, "thread": 78, "calls": 4 * STEPS}],
}  # fmt: skip


@pytest.mark.parametrize("line", COUNTED)
def test_rows_are_those_counted_by_hand(line, asked):
    rows = asked(*line.split())["data"]["rows"]

    assert [{key: row[key] for key in counted} for row, counted in zip(rows, COUNTED[line], strict=True)] == COUNTED[
        line
    ]


def test_the_parts_of_each_table_are_the_whole(asked):
    budget, window = asked("budget")["data"], asked("kernels", "--window", "1ms:2ms", "--range", "forward_pass")["data"]
    (device,) = budget["devices"]

    assert sum(row["time_ns"] for row in budget["rows"]) == budget["window"]["duration_ns"] == device["duration_ns"]
    assert sum(row["share"] for row in budget["rows"]) == pytest.approx(1)
    assert (device["busy_ns"], device["hidden_ns"]) == (STEPS * WORK_NS, 0)
    assert asked("ranges")["data"]["coverage"]["attributed_share"] == 1
    assert asked("launches", "--by", "api")["data"]["summary"]["coverage_share"] == 1
    assert (window["window"]["kind"], window["window"]["range"]) == ("explicit", "forward_pass")


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
    command, warplens, export, on_terminal
):
    wide = warplens(command, export).out
    narrow = on_terminal(command, export)

    quantity = re.compile(r"(?<![\d.,])[\d.,]+ (?:[nµm]?s|%|[kMG]?B(?:/s)?)(?=\s)")
    assert max(map(len, narrow.splitlines())) <= 80
    assert quantity.findall(narrow)
    assert set(quantity.findall(narrow)) <= set(quantity.findall(wide))
    headings = (line for line, below in itertools.pairwise(wide.splitlines()) if below.startswith(" ──"))
    titles = {title for line in headings for title in re.split(r"\s{2,}", line.strip())}
    assert titles
    assert all(title in narrow for title in titles)


@pytest.mark.parametrize(("name", "whose"), [("two_processes", True), ("streams_full", False)])
def test_launches_per_step_say_of_which_process_they_are(name, whose, warplens):
    run = warplens("launches", Path(__file__).parents[2] / "data" / "recordings" / f"{name}.sqlite.xz")

    assert "\nlaunches per step" in run.out
    assert ("launches per step of the process with the most GPU time: " in run.out) == whose


def test_no_launches_per_step_are_told_where_graphs_launched_everything(warplens):
    run = warplens("launches", shipped.capture("deit224_bs1_graph_nodes"))

    assert "CUDA graphs: 10 launches (1,770 kernels replayed and recorded)" in run.out
    assert "launches per step" not in run.out


def test_a_terminal_of_80_columns_shows_by_what_launches_stand(export, on_terminal):
    shown = on_terminal("launches", export).splitlines()
    heading = next(line for line, below in itertools.pairwise(shown) if below.startswith(" ──"))
    assert "GPU time" in heading


def test_sentences_are_wrapped_between_words_and_numbers_stay_with_their_units():
    line = "   evidence: idle 33.9 ms, idle 81.3 %, launch interval median 22.8 µs, host needed 4.16 ms a step"

    for width in range(40, 100):
        pieces = wrapped(line, width)
        assert all(len(piece) <= width for piece in pieces)
        assert " ".join(piece.strip() for piece in pieces) == line.strip()
        assert all(piece.startswith("   ") for piece in pieces)
        assert not any(re.search(r"\d$", piece) or re.match(r"\s*(ms|µs|%)", piece) for piece in pieces)


def test_what_is_wrapped_of_a_numbered_entry_stands_behind_its_number():
    entry = "12. host-sync: info, confidence high, about 1.10× (1.01× to 1.35×), at most 14.7× as fast without it"
    first, *further = wrapped(entry, 60)
    assert first.startswith("12. host-sync")
    assert further
    assert all(piece.startswith("    ") and piece[4] != " " for piece in further)


def test_help_says_where_several_paths_may_stand(warplens):
    assert "[OPTIONS] PATH…\n" in warplens("report", "--help").out
    assert "[OPTIONS] PATH\n" in warplens("kernels", "--help").out


def test_counters_keep_what_bounds_a_kernel_on_a_terminal_of_80_columns(on_terminal):
    counters = Path(package.__file__).parent / "data" / "counters" / "planted_h200.ncu-rep.xz"
    (row,) = (line for line in on_terminal("counters", counters).splitlines() if line.startswith(" bank_conflicts"))

    assert "memory (L1)" in row
