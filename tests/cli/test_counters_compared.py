"""`warplens counters --compare`, and reports of counters given to `warplens report`.

`warplens roofline`, on the kernels with planted faults.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

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


@pytest.mark.slow  # `report/test_counters_document.py` tests what either document says of the other
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


def test_a_table_for_people_says_the_roofs_and_the_distances(warplens) -> None:
    run = warplens("roofline", PLANTED)

    assert run.code == 0
    assert run.out.startswith("planted_h200.ncu-rep.xz · Nsight Compute 2025.3.1.0 · NVIDIA H200\n")
    assert "tensor cores, BF16 863 TFLOP/s; " in run.out
    line = next(line for line in run.out.splitlines() if "multiply_add" in line)
    assert "94.2 %" in line
    assert "5.8 %" in line


def test_json_holds_points_and_roofs(warplens) -> None:
    answer = json.loads(warplens("roofline", PLANTED, MODES / "products.ncu-rep.xz", "--format", "json").out)

    assert answer["schema"] == "warplens.roofline/1"
    assert answer["source"] == ["planted_h200.ncu-rep.xz", "products.ncu-rep.xz"]
    rows = answer["data"]["rows"]
    assert len(rows) == 9 + 2
    copy = next(row for row in rows if row["name"] == "streaming_copy")
    assert (copy["roof"], copy["precision"]) == ("dram", None)
    assert copy["roof_share"] == pytest.approx(0.886, abs=1e-3)
    roofs = answer["data"]["reports"][1]["roofs"]
    assert [(roof["precision"], roof["sparse"]) for roof in roofs[:2]] == [("tensor", True), ("tensor", False)]


def test_csv_and_markdown(warplens) -> None:
    rows = list(csv.DictReader(io.StringIO(warplens("roofline", PLANTED, "--format", "csv", "--limit", "3").out)))
    assert [row["name"] for row in rows] == [
        *("tiny_grid", "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT", "register_limited"),
    ]
    text = warplens("roofline", PLANTED, "--format", "md").out
    assert "## planted_h200.ncu-rep.xz" in text
    assert "| 5 | multiply_add |" in text


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<svg"), (".html", b"<!doctype html>")])
def test_the_chart_is_written_as_its_suffix_says(warplens, tmp_path: Path, suffix: str, begin: bytes) -> None:
    target = tmp_path / f"roof{suffix}"

    run = warplens("roofline", PLANTED, "-o", target)

    assert (run.code, run.out.strip()) == (0, str(target))
    assert target.read_bytes().lower().startswith(begin.lower())


def test_a_measured_roof_can_be_stated(warplens) -> None:
    run = warplens("roofline", PLANTED, "--ceiling", "dram=4.3T", "--ceiling", "fp32=60e12", "--format", "json")

    roofs = {roof["precision"] or roof["roof"]: roof for roof in json.loads(run.out)["data"]["reports"][0]["roofs"]}
    assert (roofs["dram"]["peak"], roofs["dram"]["source"]) == (4.3e12, "given by the user")
    assert (roofs["fp32"]["peak"], roofs["l2"]["source"]) != (60e12, "given by the user")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--ceiling", "hbm=4T"], "is not a roof"),
        (["--ceiling", "dram=fast"], "is not a roof"),
        (["--ceiling", "dram=-1"], "is not a roof"),
        (["-o", "roof.pdf"], "a chart is written as .html, .png, .svg"),
        (["-o", "absent/roof.png"], "there is no folder absent"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(warplens, arguments: list[str], found: str) -> None:
    run = warplens("roofline", "absent.ncu-rep", *arguments)

    assert run.code == 2
    assert found in run.err


def test_a_picture_holds_one_chart(warplens, tmp_path: Path) -> None:
    run = warplens("roofline", PLANTED, PLANTED, "-o", tmp_path / "roof.png")

    assert run.code == 2
    assert "the chart of one report" in run.err


def test_a_report_without_the_metrics_says_what_to_collect(warplens, tmp_path: Path) -> None:
    run = warplens("roofline", MODES / "nvtx.ncu-rep.xz")
    assert run.code == 0
    assert "--section SpeedOfLight_HierarchicalSingleRooflineChart" in run.out

    refused = warplens("roofline", MODES / "nvtx.ncu-rep.xz", "-o", tmp_path / "roof.svg")
    assert refused.code == 2
    assert "--section SpeedOfLight_HierarchicalSingleRooflineChart" in refused.err
