"""`warplens compare` on traces: the verdict, what it rests on, and the gate."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.cli.small_export import write_export
from tests.cli.stretched import stretch, write_stretched
from tests.cli.torch_trace import write_trace
from warplens.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Sequence


DATA = Path(str(files("warplens") / "data"))
CAPTURES = DATA / "captures"
BASELINE = CAPTURES / "deit224_bs1_baseline.sqlite.xz"
TOPK = CAPTURES / "deit224_bs1_topk0.1.sqlite.xz"
LARGE, LARGE_TOPK = CAPTURES / "deit448_bs8_baseline.sqlite.xz", CAPTURES / "deit448_bs8_topk0.1.sqlite.xz"
#: Runs of one program: their times differ by a percent from run to run.
NOISE = (1.0, 1.01, 0.99, 1.004, 0.995)


def _repeats(folder: Path, source: Path, factors: Sequence[float]) -> Path:
    folder.mkdir()
    for number, factor in enumerate(factors):
        write_stretched(source, folder / f"run{number}.sqlite", factor)
    return folder


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """Five runs each of the baseline, of a change that costs 10 %, and of one that costs nothing."""
    folder = tmp_path_factory.mktemp("repeats")
    return {
        "baseline": _repeats(folder / "baseline", BASELINE, NOISE),
        "slower": _repeats(folder / "slower", BASELINE, [1.1 * factor for factor in reversed(NOISE)]),
        "same": _repeats(folder / "same", BASELINE, [1.0005 * factor for factor in NOISE]),
    }


@pytest.fixture(scope="module")
def paradox():
    result = CliRunner().invoke(app, ["compare", str(BASELINE), str(TOPK), "--format", "json", "--quiet"])
    return json.loads(result.stdout)


def test_the_parts_add_up_to_the_wall_difference(paradox):
    data = paradox["data"]
    assert paradox["schema"] == "warplens.compare/1"
    assert paradox["source"] == [BASELINE.name, TOPK.name]
    assert data["wall"]["residual_ns"] == 0
    assert sum(row["change_ns"] for row in data["rows"]) == pytest.approx(data["wall"]["change_ns"], abs=1e-3)
    assert sum(row["baseline_ns"] for row in data["rows"]) == pytest.approx(data["wall"]["baseline_ns"], abs=1e-3)


def test_kernels_by_name_sum_to_those_by_place(paradox):
    names, places = paradox["data"]["kernels"]["rows"], paradox["data"]["kernel_places"]["rows"]
    for column in ("baseline_ns_per_step", "variant_ns_per_step", "variant_launches_per_step"):
        assert sum(row[column] for row in names) == pytest.approx(sum(row[column] for row in places))
    changes = [abs(row["change_ns_per_step"]) for row in names]
    assert changes == sorted(changes, reverse=True)


def test_the_same_file_twice_has_no_decided_difference(asked, warplens):
    assert "both sides are the same file" in warplens("compare", BASELINE, BASELINE).err
    data = asked("compare", BASELINE, BASELINE)["data"]
    assert data["verdict"]["verdict"] in ("same", "undecided")
    assert not any(row["decided"] for row in data["kernels"]["rows"])
    assert {row["change_ns"] for row in data["rows"]} == {0}


def test_a_folder_of_repeats_is_a_block_a_file(asked, repeated):
    data = asked("compare", repeated["baseline"], repeated["slower"])["data"]
    assert data["baseline"]["name"] == "baseline"
    assert [len(times) for times in data["variant"]["step_times_ns"]] == [10] * 5
    assert data["verdict"]["verdict"] == "slower"
    assert data["verdict"]["ratio"]["estimate"] == pytest.approx(1.1, rel=0.01)
    assert data["verdict"]["ratio"]["low"] < 1.1 < data["verdict"]["ratio"]["high"]


def test_a_planted_slowdown_fails_the_gate_and_says_why(asked, warplens, repeated):
    run = warplens("compare", repeated["baseline"], repeated["slower"], "--fail-on", "5%", "--quiet")
    assert run.code == 1
    assert run.err.startswith("error: gate failed: slower by more than 5.0 % (95 %: ")
    assert run.err.count("\n") == 1
    assert asked("compare", repeated["baseline"], repeated["slower"], "--fail-on", "5%", code=1)["data"]["gate"][
        "found"
    ]


def test_a_limit_beyond_the_slowdown_passes(warplens, repeated):
    run = warplens("compare", repeated["baseline"], repeated["slower"], "--fail-on", "15%")
    assert run.code == 0
    assert "gate passed: not slower by more than 15.0 %" in run.err


@pytest.mark.slow
def test_noise_is_no_regression(asked, warplens, repeated):
    run = warplens("compare", repeated["baseline"], repeated["same"], "--fail-on", "5%")
    assert run.code == 0
    data = asked("compare", repeated["baseline"], repeated["same"])["data"]
    assert data["verdict"]["verdict"] in ("same", "undecided")


def test_a_gate_has_nothing_to_go_by_with_another_program(warplens):
    run = warplens("compare", BASELINE, "demo:lm_small_ctx256_train", "--fail-on", "5%", "--quiet")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: the gate has nothing to go by: The two run different programs")
    assert warplens("compare", BASELINE, "demo:lm_small_ctx256_train").code == 0


def test_a_gate_that_may_compare_two_programs_says_so_even_with_quiet(warplens):
    run = warplens("compare", BASELINE, LARGE, "--fail-on", "10000%", "--quiet")
    assert (run.code, run.err.count("\n")) == (0, 1)
    assert run.err.startswith("caution: ")


def test_what_is_open_does_not_fail_but_says_what_would_decide(warplens, asked):
    run = warplens("compare", BASELINE, TOPK, "--fail-on", "5%")
    assert run.code == 0
    assert "gate undecided (not a failure)" in run.err
    assert "steps of each side would decide the gate" in run.err
    data = asked("compare", BASELINE, TOPK, "--fail-on", "5%")["data"]
    gate = data["gate"]
    assert data["gpu_work"].keys() == data["verdict"].keys()
    assert data["gpu_work"]["verdict"] == "faster"
    assert f"About {gate['needed_blocks']:,} steps of each side" in gate["sentence"]


def test_what_is_open_may_fail_and_is_told_even_with_quiet(warplens):
    gate = ("compare", BASELINE, TOPK, "--fail-on", "5%", "--quiet")
    assert warplens(*gate).err.startswith("gate undecided (not a failure): ")
    run = warplens(*gate, "--fail-on-undecided")
    assert (run.code, run.err[: len("error: gate undecided: ")]) == (1, "error: gate undecided: ")
    run = warplens("compare", BASELINE, TOPK, "--fail-on-undecided")
    assert (run.code, run.err.count("\n")) == (2, 1)


def test_pages_tell_the_result_of_the_gate(warplens, tmp_path):
    assert warplens("compare", BASELINE, TOPK, "--fail-on", "5%", "-o", tmp_path / "out").code == 0
    for page in ("compare.md", "compare.html"):
        assert "gate undecided (not a failure)" in (tmp_path / "out" / page).read_text("utf-8")


def test_there_is_no_gate_on_files_of_different_gpus(warplens, tmp_path):
    """One of three files of a side, and not the typical one, is of another GPU."""
    for side in "bv":
        (tmp_path / side).mkdir()
        for run in range(3):
            _recorded(tmp_path / side / f"{run}.sqlite", 1 + run / 100 + (side == "v") / 1000, run)
    with closing(sqlite3.connect(tmp_path / "v" / "2.sqlite")) as file, file:
        file.execute("UPDATE TARGET_INFO_GPU SET name = 'Another GPU'")
    run = warplens("compare", tmp_path / "b", tmp_path / "v", "--fail-on", "5%")
    assert run.code == 2
    assert "The files were recorded on different GPUs: Another GPU, " in run.err


def test_copies_of_one_run_are_no_repeats(asked, tmp_path):
    for side, source in (("a", BASELINE), ("b", TOPK)):
        (tmp_path / side).mkdir()
        for number in (1, 2, 3):
            shutil.copy(source, tmp_path / side / f"run{number}.sqlite.xz")
    copied = asked("compare", tmp_path / "a", tmp_path / "b")
    single = asked("compare", BASELINE, TOPK)
    assert copied["data"]["verdict"]["ratio"] == single["data"]["verdict"]["ratio"]
    assert [warning["code"] for warning in copied["warnings"]].count("copied-repeat") == 2


def test_a_copy_on_the_other_side_is_the_same_file_and_nothing_for_a_gate(warplens, tmp_path):
    copy = shutil.copy(BASELINE, tmp_path / "other.sqlite.xz")
    assert "both sides are the same file" in warplens("compare", BASELINE, copy).err
    for other in (BASELINE, copy):
        run = warplens("compare", BASELINE, other, "--fail-on", "0%", "--quiet")
        assert (run.code, run.out) == (2, "")
        assert run.err.startswith("error: the gate has nothing to go by: Both sides are one recording")


def _recorded(path: Path, factor: float, minute: int | None) -> None:
    """A run of the small export, with its times multiplied; begun at this minute, if that is to be known."""
    write_export(path)
    with closing(sqlite3.connect(path)) as file, file:
        stretch(file, factor)
        if minute is not None:
            file.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")
            file.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
            time = 1_790_000_000_000_000_000 + 60_000_000_000 * minute
            file.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (time,))


@pytest.mark.parametrize("recorded", ["in turns", "one side after the other", "unknown"])
def test_the_order_of_files_is_that_of_their_recording_and_not_of_their_names(asked, tmp_path, recorded):
    """Twelve runs a side, each 1 % slower than the one before; run10 comes before run2 by name."""
    noise = (0.1, -0.2, 0.15, 0, -0.1, 0.2, -0.05, 0.1, 0.05, -0.15, 0.1, -0.1)
    for side, slower in (("b", 1.0), ("v", 1.03)):
        (tmp_path / side).mkdir()
        for turn in range(12):
            minute = 2 * turn + (side == "v") if recorded == "in turns" else turn + 12 * (side == "v")
            factor = slower * 1.01**turn * (1 + noise[(turn + 5 * (side == "v")) % 12] / 100)
            path = tmp_path / side / f"run{turn + 1}.sqlite"
            _recorded(path, factor, None if recorded == "unknown" else minute)
    found = asked("compare", tmp_path / "b", tmp_path / "v")
    verdict, order = found["data"]["verdict"], [f"run{turn + 1}.sqlite" for turn in range(12)]
    assert (found["data"]["variant"]["sources"] == order) == (recorded != "unknown")
    doubts = " ".join(warning["text"] for warning in found["warnings"])
    assert ("were not taken in turns: what changed" in doubts) == (recorded == "one side after the other")
    assert ("do not tell in which order" in doubts) == (recorded == "unknown")
    assert ("Times of" in doubts) == (recorded == "one side after the other")
    assert ("turns" in verdict["how"]) == (recorded == "in turns")
    assert verdict["verdict"] == ("slower" if recorded == "in turns" else "undecided")
    if recorded == "in turns":
        assert verdict["ratio"]["high"] - verdict["ratio"]["low"] < 0.01


def test_few_turns_are_compared_side_by_side_and_not_doubted(asked, tmp_path):
    for side in "bv":
        (tmp_path / side).mkdir()
        for turn in range(3):
            _recorded(tmp_path / side / f"{turn}.sqlite", 1 + turn / 100 + (side == "v") / 10, 2 * turn + (side == "v"))
    found = asked("compare", tmp_path / "b", tmp_path / "v")
    assert "3 blocks against the medians of 3 blocks" in found["data"]["verdict"]["how"]
    doubts = " ".join(warning["text"] for warning in found["warnings"])
    assert "turns" not in doubts


def test_a_repeat_that_left_an_empty_file_is_told(warplens, tmp_path):
    shutil.copy(BASELINE, tmp_path / "run1.sqlite.xz")
    (tmp_path / "run2.sqlite").touch()
    run = warplens("compare", tmp_path, TOPK)
    assert run.code == 0
    assert "the folder holds files that are not traces; they were skipped: run2.sqlite" in run.err


def test_files_of_several_programs_are_no_repeats(asked, warplens, tmp_path):
    for source in (BASELINE, TOPK):
        shutil.copy(source, tmp_path)
    found = asked("compare", tmp_path, TOPK)
    assert "unlike-repeats" in [warning["code"] for warning in found["warnings"]]
    run = warplens("compare", tmp_path, TOPK)
    assert "a step of its files launches 179 to 211 pieces of work" in run.err


def test_copies_of_a_step_stand_with_their_size_and_what_nothing_hides(paradox):
    rows = {row["part"]: row for row in paradox["data"]["transfers"]["rows"]}
    # Two fills a step of each side, a few bytes each; no copy.
    assert set(rows) == {"memset"}
    assert (rows["memset"]["baseline_count_per_step"], rows["memset"]["variant_count_per_step"]) == (2, 2)
    (part,) = [row for row in paradox["data"]["rows"] if row["group"] == "copy"]
    assert rows["memset"]["exposed_change_ns_per_step"] == pytest.approx(part["change_ns"])


def test_a_range_is_compared_by_itself(asked):
    data = asked("compare", BASELINE, TOPK, "--range", "attention")["data"]
    assert data["baseline"]["windows"][0]["range"] == "attention"
    assert data["wall"]["residual_ns"] == 0
    # The verdict is on the range, too, and not on the steps that hold it.
    for side in ("baseline", "variant"):
        times = data[side]["step_times_ns"][0]
        assert sum(times) / len(times) == pytest.approx(data["wall"][f"{side}_ns"])
    assert data["answer"].startswith(("Range attention of the variant", "Whether range attention of the variant"))


def test_windows_without_steps_have_no_interval_but_parts(asked, warplens, tmp_path):
    plain = write_export(tmp_path / "plain.sqlite", annotated=False)
    more = write_export(tmp_path / "more.sqlite", "another_kernel", annotated=False)
    run = warplens("compare", plain, more, "--window", "all", "--fail-on", "5%")
    assert run.code == 0
    data = asked("compare", plain, more, "--window", "all")["data"]
    assert data["wall"]["residual_ns"] == 0
    assert [row["name"] for row in data["kernels"]["rows"] if row["change"] == "added"] == ["another_kernel"]


def test_a_trace_of_pytorch_is_held_against_one_of_nsight(asked, tmp_path):
    kineto, nsys = write_trace(tmp_path / "torch.json"), write_export(tmp_path / "nsys.sqlite")
    found = asked("compare", nsys, kineto)
    assert found["data"]["wall"]["residual_ns"] == 0
    assert "different-tool" in [warning["code"] for warning in found["warnings"]]


def test_a_gate_has_nothing_to_go_by_with_another_profiler(warplens, tmp_path):
    kineto, nsys = write_trace(tmp_path / "torch.json"), write_export(tmp_path / "nsys.sqlite")
    for sides in ((nsys, kineto), (kineto, nsys)):
        run = warplens("compare", *sides, "--fail-on", "5%", "--quiet")
        assert (run.code, run.out) == (2, "")
        assert run.err.startswith("error: the gate has nothing to go by: ")


def test_a_capture_in_which_nothing_happened_is_named(warplens, tmp_path):
    source, hollow = write_export(tmp_path / "full.sqlite"), tmp_path / "hollow.sqlite"
    shutil.copy(source, hollow)
    with closing(sqlite3.connect(hollow)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table.startswith(("CUPTI_ACTIVITY", "NVTX")):
                database.execute(f'DELETE FROM "{table}"')
    run = warplens("compare", source, hollow)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: hollow.sqlite: ")


def test_there_is_no_gate_on_a_step_that_ran_out_of_memory(warplens):
    """It ends before its backward pass, and would pass as much faster."""
    sides = CAPTURES / "lm_small_ctx256_train.sqlite.xz", CAPTURES / "lm_large_ctx1024_train.sqlite.xz"
    assert warplens("compare", *sides, "--quiet").code == 0
    run = warplens("compare", *sides, "--fail-on", "5%", "--quiet")
    assert (run.code, run.out) == (2, "")
    assert "the gate has nothing to go by" in run.err
    assert "did not finish" in run.err
