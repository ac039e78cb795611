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
MODES = Path(__file__).resolve().parents[1] / "readers" / "data" / "counter_modes"
NODES, NVTX, APPLICATION = (MODES / f"{name}.ncu-rep.xz" for name in ("graph_nodes", "nvtx", "application"))


def test_csv_has_columns_for_a_metric_that_was_asked_for(warplens):
    name = "launch__registers_per_thread"
    run = warplens("counters", NODES, NVTX, "--compare", "--metric", name, "--format", "csv")

    rows = list(csv.DictReader(io.StringIO(run.out)))
    assert [row[f"{name} ratio"] for row in rows] == ["1.0", "1.0"]


def test_kernels_of_other_names_can_be_paired(warplens):
    alone = warplens("counters", APPLICATION, MODES / "clusters.ncu-rep.xz", "--compare")
    paired = warplens(
        *("counters", APPLICATION, MODES / "clusters.ncu-rep.xz", "--compare", "--pair", "scale=clustered_sum"),
        *("--format", "md"),
    )

    assert "they have no kernel in common; --pair BEFORE=AFTER" in alone.out
    assert "| clustered_sum | scale | stated |" in paired.out


def test_a_report_without_counters_for_a_roofline_has_no_table_of_dashes(warplens):
    run = warplens("roofline", NVTX)
    assert "no counters for a roofline" in run.out + run.err
    assert "Kernels under their roofs" not in run.out


def test_a_report_on_counters_alone(warplens, tmp_path):
    shutil.copy(NVTX, tmp_path)
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")

    run = warplens("report", tmp_path, "-o", tmp_path / "out", "--format", "md,json")

    assert run.code == 0, run.err
    assert [Path(line).name for line in run.out.splitlines()[-4:]] == ["counters.md", "counters.json"]
    assert not (tmp_path / "out" / "report.json").exists()


def test_json_alone_is_printed(warplens):
    answer = json.loads(warplens("report", NODES, NVTX, "--format", "json").out)

    assert answer["schema"] == "warplens.counters-report/1"
    assert len(answer["data"]["comparisons"]) == 1


def test_counters_that_cannot_be_read_do_not_stop_the_others(warplens, tmp_path):
    broken = tmp_path / "broken.ncu-rep"
    broken.write_bytes(b"NVR\0" + bytes(3))

    run = warplens("report", broken, NVTX, "-o", tmp_path / "out", "--format", "json")

    assert run.code == 2
    assert "broken.ncu-rep" in run.err
    assert (tmp_path / "out" / "counters.json").exists()
    assert warplens("report", broken, "-o", tmp_path / "none").code == 2


def test_json_holds_points_and_roofs(warplens):
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


@pytest.mark.parametrize("stated", ["dram=4.2T", "DRAM=4.20 TB/s", "dram=4200gb/s", "dram=4.2e12"])
def test_a_roof_is_stated_as_the_answer_prints_it(warplens, stated):
    roofs = warplens("roofline", MODES / "products.ncu-rep.xz", "--ceiling", stated, "-f", "json").data["reports"][0]
    (dram,) = (roof for roof in roofs["roofs"] if roof["roof"] == "dram")
    assert (dram["peak"], dram["source"]) == (pytest.approx(4.2e12), "given by the user")


def test_a_stated_roof_that_no_kernel_is_under_is_told(warplens):
    run = warplens("roofline", MODES / "products.ncu-rep.xz", "--ceiling", "fp64=34T", "--ceiling", "dram=4T")
    assert run.out.count("the stated roof fp64 holds for no kernel here") == 1
    assert "stated roof dram" not in run.out


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<svg"), (".html", b"<!doctype html>")])
def test_the_chart_is_written_as_its_suffix_says(warplens, tmp_path, suffix, begin):
    target = tmp_path / f"roof{suffix}"

    run = warplens("roofline", PLANTED, "-o", target)

    assert (run.code, run.out.strip()) == (0, str(target))
    assert target.read_bytes().lower().startswith(begin.lower())


def test_a_report_without_the_metrics_says_what_to_collect(warplens, tmp_path):
    run = warplens("roofline", MODES / "nvtx.ncu-rep.xz")
    assert run.code == 0
    assert "--section SpeedOfLight_HierarchicalSingleRooflineChart" in run.out

    refused = warplens("roofline", MODES / "nvtx.ncu-rep.xz", "-o", tmp_path / "roof.svg")
    assert refused.code == 2
    assert "--section SpeedOfLight_HierarchicalSingleRooflineChart" in refused.err


def test_ranges_of_the_command_are_those_of_python(warplens):
    run = warplens("counters", NVTX, "--by", "range", "-f", "json")
    found = run.data
    frame = package.counters(NVTX, by="range").frame
    assert found["by"] == "range"
    assert [row["total_ns"] for row in found["rows"]] == frame["total_ns"].to_list()
    refused = warplens("counters", NVTX, "--by", "range", "--metric", "dram__bytes_read.sum")
    assert (refused.code, "ask for one at a time" in refused.err) == (2, True)
