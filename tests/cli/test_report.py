"""`warplens report` and `warplens demo`: which documents are written, where, and what is said about it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests import shipped
from tests.cli.small_export import SECRET
from tests.report.evidence import evidence
from warplens.cli.commands import report as demo
from warplens.report import write

if TYPE_CHECKING:
    from pathlib import Path


GRID = ("lm_small_ctx128_forward.sqlite.xz", "lm_small_ctx256_forward.sqlite.xz")


@pytest.fixture
def grid_folder(tmp_path):
    """A folder with profiles of two cells, and a file that is no profile."""
    folder = tmp_path / "grid"
    folder.mkdir()
    for name in GRID:
        shutil.copy(shipped.capture(name), folder)
    (folder / "notes.txt").write_text("No profile.")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow  # golden outputs hold such reports
def test_a_report_is_a_page_and_its_numbers_and_markdown_where_asked_for(tmp_path, export, warplens):
    run = warplens("report", export, "-o", tmp_path / "new" / "folder")

    written = tmp_path / "new" / "folder"
    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines()[-2:] == [str(written / f"report.{form}") for form in ("html", "json")]
    assert names(written) == {"report.html", "report.json"}
    warplens("report", export, "-o", written, "--format", "md")
    assert names(written) == {"report.html", "report.md", "report.json", "images"}
    for name in ("report.html", "report.md", "report.json"):
        assert SECRET not in (written / name).read_text("utf-8")


def test_the_default_folder_stands_in_the_current_one(tmp_path, export, warplens, monkeypatch):
    monkeypatch.chdir(tmp_path)

    run = warplens("report", export, "--format", "html,json")

    assert run.code == 0
    assert names(tmp_path / "warplens-report") == {"report.html", "report.json"}


def test_json_alone_goes_to_standard_output(tmp_path, export, warplens, monkeypatch):
    monkeypatch.chdir(tmp_path)

    run = warplens("report", export, "--format", "json")

    answer = json.loads(run.out)
    assert (run.code, run.err) == (0, "")
    assert answer["schema"] == "warplens.report/1"
    assert answer["source"] == ["small.sqlite"]
    assert names(tmp_path) == set()


def test_printed_and_written_json_are_the_same(tmp_path, export, warplens):
    printed = warplens("report", export, "--format", "json").out
    warplens("report", export, "--format", "json", "-o", tmp_path)

    assert json.loads(printed) == json.loads((tmp_path / "report.json").read_text("utf-8"))


def test_the_window_of_a_report_can_be_chosen(export, warplens):
    out = warplens("report", export, "-f", "json", "--window", "1ms:2ms", "--range", "forward_pass").out

    window = json.loads(out)["data"]["profiles"][0]["window"]
    assert (window["start_ns"], window["end_ns"], window["range"]) == (1_000_000, 2_000_000, "forward_pass")


@pytest.mark.parametrize("name", ["x.html", "x.md", "x.json", "new/x.html"])
@pytest.mark.parametrize("command", [["report"], ["answer"]])
def test_a_name_with_a_suffix_is_the_document_itself(command, name, tmp_path, export, warplens):
    run = warplens(*command, export, "-o", tmp_path / name)
    assert run.code == 0
    assert run.out.rstrip().endswith(str(tmp_path / name))
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert {path for path in written if not path.endswith(".svg")} == {name}
    begins = {"html": "<!doctype html>", "md": "# ", "json": "{"}
    assert (tmp_path / name).read_text("utf-8").startswith(begins[name.rpartition(".")[2]])


def test_output_that_is_a_file_is_refused_before_anything_is_read(tmp_path, warplens):
    taken = tmp_path / "report"
    taken.write_text("mine")

    run = warplens("report", tmp_path / "missing.sqlite", "-o", taken)

    assert run.code == 2
    assert run.err == "error: report is a file, but reports are written to a folder: name another with --output\n"
    assert taken.read_text() == "mine"


def test_profiles_of_one_cell_are_no_grid_unless_asked_for(grid_folder, tmp_path, warplens):
    profile = grid_folder / GRID[0]

    warplens("report", profile, "-o", tmp_path / "plain", "-f", "json")
    warplens("report", profile, "-o", tmp_path / "asked", "-f", "json", "--cell", "lm_small_ctx128_forward=small,128")

    assert names(tmp_path / "plain") == {"report.json"}
    assert names(tmp_path / "asked") == {"report.json", "grid.json"}


def test_every_profile_of_the_index_is_shipped():
    entries = demo.shipped_profiles()

    assert len(entries) > len(demo._ALSO_IN_REPORT)
    assert all((demo._CAPTURES / entry["file"]).is_file() for entry in entries)
    assert set(demo._ALSO_IN_REPORT) <= {entry["file"] for entry in entries}
    assert (demo._CAPTURES / demo._TIMINGS).is_file()


def test_all_shipped_language_models_ran_with_the_same_batch():
    workloads = [entry["workload"] for entry in demo.shipped_profiles() if "model" in entry]

    assert all(f"batch {demo._BATCH}," in workload for workload in workloads)


def test_the_demo_says_what_limits_each_profile_and_where_the_documents_are(tmp_path, warplens, monkeypatch):
    few = {"deit224_bs1_baseline.sqlite.xz", *GRID}
    entries = [entry for entry in demo.shipped_profiles() if entry["file"] in few]
    monkeypatch.setattr(demo, "shipped_profiles", lambda: entries)
    monkeypatch.setattr(demo, "shipped_evidence", evidence)

    run = warplens("demo", "--output", tmp_path)

    assert (run.code, run.err) == (0, "")
    documents = {"report.html", "report.json", "grid.html", "grid.json", "findings_report.html"}
    assert names(tmp_path) == documents
    for name in documents:
        assert f"{tmp_path / name}\n" in run.out
    assert "the step is limited by the host's launch rate" in " ".join(run.out.split())
    (shown,) = json.loads((tmp_path / "report.json").read_text("utf-8"))["data"]["profiles"]
    assert shown["source"] == "deit224_bs1_baseline.sqlite.xz"
    first = shown["diagnosis"]["findings"][0]
    assert f"[{first['id']}]" in run.out
    assert f"About {first['expected']:.2f}× as fast" in run.out
    assert first["remedies"][0]["action"] in run.out
    assert "DeiT-B/16, fp16, eager, input 224, batch 1 (deit224_bs1_baseline)" in run.out


def test_an_installation_without_profiles_says_so(tmp_path, warplens, monkeypatch):
    monkeypatch.setattr(demo, "_CAPTURES", tmp_path)

    run = warplens("demo", "--output", tmp_path)

    assert run.code == 2
    assert "without its profiles" in run.err
    assert run.err.count("\n") == 1


def test_a_table_of_more_rows_than_the_limit_is_cut_and_tells_how_many_there_are(warplens, export, monkeypatch):
    rows = warplens("kernels", export, "--format", "json").data["rows"]
    whole = warplens("report", export, "--format", "json").data["profiles"][0]["kernels"]
    monkeypatch.setattr(write, "MOST_ROWS", 1)
    cut = warplens("report", export, "--format", "json").data["profiles"][0]["kernels"]
    assert len(rows) > 1
    assert whole == {"rows": whole["rows"]}
    assert cut == {"rows": whole["rows"][:1], "rows_total": len(rows)}
