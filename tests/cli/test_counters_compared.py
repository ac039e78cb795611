"""`warplens counters --compare`, and reports of counters given to `warplens report`."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import warplens as package

DATA = Path(package.__file__).parent / "data"
PLANTED = DATA / "counters" / "planted_h200.ncu-rep.xz"
TRACE = DATA / "captures" / "deit224_bs1_topk0.1.sqlite.xz"
MODES = Path(__file__).resolve().parents[1] / "readers" / "data" / "counter_modes"
NODES, NVTX, APPLICATION = (MODES / f"{name}.ncu-rep.xz" for name in ("graph_nodes", "nvtx", "application"))


def test_kernels_stand_side_by_side(warplens) -> None:
    run = warplens("counters", NODES, NVTX, "--compare")

    assert run.code == 0
    assert run.out.startswith("nvtx.ncu-rep.xz against graph_nodes.ncu-rep.xz: 2 kernels in both, ")
    assert "Kernels that only one report has" in run.out
    assert "dense_products" in run.out.split("Kernels that only one report has")[1]


def test_other_ways_of_collecting_are_cautioned_about(warplens) -> None:
    run = warplens("counters", NVTX, APPLICATION, "--compare")

    assert "caution: --cache-control was all before and none after" in run.err
    assert "caution: --replay-mode was kernel before and application after" in run.err


def test_json_holds_each_report_against_the_first(warplens) -> None:
    answer = json.loads(warplens("counters", NODES, NVTX, APPLICATION, "--compare", "--format", "json").out)

    assert answer["schema"] == "warplens.counters/1"
    found = answer["data"]["comparisons"]
    assert [(item["before"], item["after"]) for item in found] == [
        ("graph_nodes.ncu-rep.xz", "nvtx.ncu-rep.xz"),
        ("graph_nodes.ncu-rep.xz", "application.ncu-rep.xz"),
    ]
    assert [len(item["rows"]) for item in found] == [2, 1]
    row = found[0]["rows"][0]
    assert row["memory_points"] == 100 * (row["memory_share_after"] - row["memory_share_before"])
    assert len(found[0]["metrics"]) > 600


def test_csv_has_columns_for_a_metric_that_was_asked_for(warplens) -> None:
    name = "launch__registers_per_thread"
    run = warplens("counters", NODES, NVTX, "--compare", "--metric", name, "--format", "csv")

    rows = list(csv.DictReader(io.StringIO(run.out)))
    assert [row[f"{name} ratio"] for row in rows] == ["1.0", "1.0"]


def test_kernels_of_other_names_can_be_paired(warplens) -> None:
    alone = warplens("counters", APPLICATION, MODES / "clusters.ncu-rep.xz", "--compare")
    paired = warplens(
        *("counters", APPLICATION, MODES / "clusters.ncu-rep.xz", "--compare", "--pair", "scale=clustered_sum"),
        *("--format", "md"),
    )

    assert "they have no kernel in common; --pair BEFORE=AFTER" in alone.out
    assert "| clustered_sum | scale | stated |" in paired.out


def test_what_makes_no_comparison_is_refused(warplens) -> None:
    for arguments, found in (
        ([NODES, "--compare"], "--compare needs two reports or more"),
        ([NODES, NVTX, "--pair", "a=b"], "add --compare"),
        ([NODES, NVTX, "--compare", "--pair", "a"], "write BEFORE=AFTER"),
        ([NODES, NVTX, "--compare", "--pair", "a=scale"], "there is no kernel 'a'"),
        ([NODES, NVTX, "--compare", "--trace", TRACE], "ask for one at a time"),
        ([NODES, NVTX, "--compare", "--metric", "no__such"], "no kernel has no__such in both reports"),
    ):
        run = warplens("counters", *arguments)
        assert (run.code, found in run.err) == (2, True), run.err


# ---- in reports


def test_a_report_on_counters_alone(warplens, tmp_path: Path) -> None:
    shutil.copy(PLANTED, tmp_path)
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")

    run = warplens("report", tmp_path, "-o", tmp_path / "out", "--format", "md,json")

    assert run.code == 0, run.err
    assert [Path(line).name for line in run.out.splitlines()[-4:]] == ["counters.md", "counters.json"]
    assert not (tmp_path / "out" / "report.json").exists()


def test_json_alone_is_printed(warplens) -> None:
    answer = json.loads(warplens("report", NODES, NVTX, "--format", "json").out)

    assert answer["schema"] == "warplens.counters-report/1"
    assert len(answer["data"]["comparisons"]) == 1


def test_a_trace_and_counters_know_of_each_other(warplens, tmp_path: Path) -> None:
    run = warplens("report", TRACE, PLANTED, "-o", tmp_path, "--format", "md,json")

    assert [Path(line).name for line in run.out.splitlines()[-4:]] == [
        *("report.md", "report.json", "counters.md", "counters.json"),
    ]
    text = (tmp_path / "report.md").read_text()
    assert "## Counters" in text
    assert "0 of 9 profiled launches occur in the window" in text
    counters = json.loads((tmp_path / "report.json").read_bytes())["data"]["profiles"][0]["counters"]
    assert counters["coverage"][0]["launches_profiled"] == 9
    assert "## Share of the program" in (tmp_path / "counters.md").read_text()


def test_a_report_without_counters_does_not_speak_of_them(warplens, tmp_path: Path) -> None:
    warplens("report", TRACE, "-o", tmp_path, "--format", "md")

    assert "## Counters" not in (tmp_path / "report.md").read_text()


def test_counters_that_cannot_be_read_do_not_stop_the_others(warplens, tmp_path: Path) -> None:
    broken = tmp_path / "broken.ncu-rep"
    broken.write_bytes(b"NVR\0" + bytes(3))

    run = warplens("report", broken, PLANTED, "-o", tmp_path / "out", "--format", "json")

    assert run.code == 2
    assert "broken.ncu-rep" in run.err
    assert (tmp_path / "out" / "counters.json").exists()
    assert warplens("report", broken, "-o", tmp_path / "none").code == 2
