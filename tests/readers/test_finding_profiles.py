"""Which files of a folder are profiles."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.readers.exports import Export
from warplens.errors import UnreadableInputError
from warplens.readers import discover, discover_both

REPORT = b"NVIDIA Tegra Profiler Report 2024@6@2@225-246235"


@pytest.fixture
def folder(tmp_path):
    export = Export().write(tmp_path / "content").read_bytes()
    (tmp_path / "content").unlink()
    for name, content in {
        "b/run.sqlite": export,
        "a/no_suffix": export,
        "a/packed.sqlite.gz": gzip.compress(export),
        "a/packed.json.gz": gzip.compress(b'{"traceEvents": []}'),
        "b/run.nsys-rep": REPORT,
        "b/alone.nsys-rep": REPORT,
        "b/kernels.ncu-rep": b"NVR\x00",
        "b/notes.txt": b"a text",
        "b/renamed.sqlite": b"a text",
        "b/empty.csv": b"",
        "b/damaged.gz": gzip.compress(export)[:50],
        ".cache/hidden.sqlite": export,
        "b/.hidden.sqlite": export,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def _names(folder: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in found]


def test_a_folder_gives_its_profiles_by_content_in_order(folder):
    assert _names(folder, discover([folder])) == [
        "a/no_suffix",
        "a/packed.sqlite.gz",
        "b/alone.nsys-rep",
        "b/run.sqlite",  # and not b/run.nsys-rep, the same capture
    ]


def test_an_empty_file_where_a_profile_should_be_is_kept_so_that_it_is_reported(folder):
    for name in (
        "b/failed.sqlite",
        "b/failed.sqlite.gz",
        "b/rank1.pt.trace.json",
        "b/alone.sqlite",
        "b/failed.ncu-rep",
    ):
        (folder / name).touch()
    assert _names(folder, discover([folder / "b"])) == ["b/alone.nsys-rep", "b/run.sqlite"]
    assert _names(folder, discover([folder / "b"], failed=True)) == [
        "b/alone.nsys-rep",  # and not b/alone.sqlite, the same capture
        "b/failed.sqlite",
        "b/failed.sqlite.gz",
        "b/rank1.pt.trace.json",
        "b/run.sqlite",
    ]
    assert _names(folder, discover_both([folder])[1]) == ["b/failed.ncu-rep", "b/kernels.ncu-rep"]


def test_a_file_that_is_named_is_kept_whatever_it_is(folder):
    named = [folder / "b/notes.txt", folder / "b/run.nsys-rep", folder / ".cache/hidden.sqlite"]
    assert discover(named) == named
    assert discover([str(path) for path in named]) == named


def test_what_is_named_twice_comes_once_and_in_its_first_place(folder):
    found = discover([folder / "b/run.sqlite", folder])
    assert _names(folder, found) == ["b/run.sqlite", "a/no_suffix", "a/packed.sqlite.gz", "b/alone.nsys-rep"]


def test_a_folder_without_profiles_is_an_error(folder):
    (folder / "c").mkdir()
    (folder / "c/notes.txt").write_text("nothing to see")
    with pytest.raises(UnreadableInputError, match=r"c: none of the 1 files in this folder"):
        discover([folder / "c"])


def test_a_path_that_does_not_exist_is_an_error(folder):
    with pytest.raises(UnreadableInputError, match="no such file or folder"):
        discover([folder / "d"])
