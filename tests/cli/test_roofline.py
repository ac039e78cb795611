"""`warplens roofline`, on the kernels with planted faults."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import warplens as package

PLANTED = Path(package.__file__).parent / "data" / "counters" / "planted_h200.ncu-rep.xz"
MODES = Path(__file__).resolve().parents[1] / "readers" / "data" / "counter_modes"


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
        (["--ceiling", "hbm=4T"], "is no roof"),
        (["--ceiling", "dram=fast"], "is no roof"),
        (["--ceiling", "dram=-1"], "is no roof"),
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
