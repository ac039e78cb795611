"""Which files of a folder are reports of counters, and which are traces: by content alone."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

import warplens
from tests.cli.small_export import write_export
from warplens.errors import UnreadableInputError
from warplens.readers import discover_both, holds_counters

PLANTED = Path(warplens.__file__).parent / "data" / "counters" / "planted_h200.ncu-rep.xz"
MODES = Path(__file__).parent / "data" / "counter_modes"

CSV = lzma.decompress((MODES / "ranges.raw.csv.xz").read_bytes()).decode()


@pytest.fixture
def folder(tmp_path):
    write_export(tmp_path / "trace.sqlite")
    shutil.copy(PLANTED, tmp_path / "counters.dat")
    (tmp_path / "table.csv").write_text("name,value\na,1\n")
    (tmp_path / "export.csv").write_text(CSV)
    (tmp_path / "notes.txt").write_text("Kernel Name and other words\n")
    (tmp_path / "empty.csv").write_text("")
    return tmp_path


def test_a_folder_gives_traces_and_counters_by_content(folder):
    traces, counters = discover_both([folder])

    assert [path.name for path in traces] == ["trace.sqlite"]
    assert [path.name for path in counters] == ["counters.dat", "export.csv"]


def test_a_folder_of_counters_alone_is_no_error(tmp_path):
    shutil.copy(PLANTED, tmp_path)

    assert discover_both([tmp_path]) == ([], [tmp_path / PLANTED.name])


def test_a_folder_of_neither_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("name,value\na,1\n")

    with pytest.raises(UnreadableInputError, match="none of the 1 files"):
        discover_both([tmp_path])


def test_a_named_file_that_is_neither_counts_as_a_trace_so_that_it_is_reported(folder):
    assert discover_both([folder / "table.csv"]) == ([folder / "table.csv"], [])


def test_an_export_beside_its_report_is_the_same_report(tmp_path):
    for name in ("ranges.ncu-rep.xz", "ranges.raw.csv.xz", "graph.raw.csv.xz"):
        shutil.copy(MODES / name, tmp_path)
    (tmp_path / "graph.details.csv").write_text(CSV)

    found = [path.name for path in discover_both([tmp_path])[1]]

    assert found == ["graph.raw.csv.xz", "ranges.ncu-rep.xz"]


def test_what_is_no_report_holds_no_counters(folder):
    assert not holds_counters(folder / "trace.sqlite")
    assert not holds_counters(folder / "notes.txt")
    assert not holds_counters(folder / "absent.ncu-rep")
