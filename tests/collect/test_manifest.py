"""The manifest says what was done, and nothing of who did it where."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from warplens.collect.recording import add_run, known_failure, without_paths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/someone/bin/nsys", "nsys"),
        ("--output=/scratch/someone/out/run", "--output=run"),
        ("~/models/small.pt", "small.pt"),
        ("../data/train.py", "train.py"),
        ("C:\\Users\\someone\\train.py", "train.py"),
        ("https://host.example/models/x", "https:x"),
        ("/home/John Doe/train.py", "train.py"),
        ("--data=/home/John Doe/set", "--data=set"),
        ("--master=10.1.2.3:8786", "--master=[removed]:8786"),
        ("someone@host.example:x", "[removed]:x"),
        ("--steps", "--steps"),
        ("regex:^(a/b)$", "regex:^(a/b)$"),
        ("step/", "step/"),
    ],
)
def test_folders_are_left_out(word: str, kept: str) -> None:
    assert without_paths([word]) == [kept]


def test_values_that_sound_secret_are_left_out() -> None:
    words = ["train.py", "--hf-token", "abc", "--api_key=xyz", "PASSWORD=q", "--steps", "5"]

    kept = without_paths(words)

    assert kept == ["train.py", "--hf-token", "[removed]", "--api_key=[removed]", "PASSWORD=[removed]", "--steps", "5"]


def test_a_folder_keeps_the_runs_of_several_tools_and_a_repeated_one_once(tmp_path: Path) -> None:
    for name in ("a.sqlite", "b.ncu-rep"):
        (tmp_path / name).write_bytes(b"1234")

    for tool, name, code in (("nsys", "a.sqlite", 1), ("ncu", "b.ncu-rep", 0), ("nsys", "a.sqlite", 0)):
        add_run(tmp_path, tool=tool, version="1", commands=[["x"]], files=[tmp_path / name], exit_code=code)

    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["schema"] == "warplens.collection/1"
    assert [(run["tool"], run["exit_code"]) for run in content["runs"]] == [("ncu", 0), ("nsys", 0)]
    assert content["runs"][0]["files"] == [{"name": "b.ncu-rep", "bytes": 4}]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
            " on the target device 0.",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==WARNING== No kernels were profiled.", "no kernel passed the filters"),
        ("==ERROR== Nsight Compute failed to connect to the CUDA driver", "warplens doctor"),
        ("Importer error status: The importer binary and its dependencies were not found.", "install all of"),
    ],
)
def test_known_failures_come_with_their_fix(line: str, advice: str) -> None:
    assert advice in (known_failure(line) or "")


def test_other_lines_are_no_failure() -> None:
    assert known_failure("step 5: loss 3.2") is None
