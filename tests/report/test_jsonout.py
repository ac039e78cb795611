"""Machine output: exact numbers, one object, fast."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from warplens._version import __version__
from warplens.profile import Note, NoteLevel
from warplens.report.jsonout import dumps, envelope


@dataclass(frozen=True)
class Answer:
    device: int
    rows: pl.DataFrame


def test_the_envelope_names_schema_version_source_and_warnings():
    note = Note("lost", NoteLevel.WARNING, "Events were dropped.")
    found = json.loads(envelope("kernels", "a.sqlite", {"rows": []}, [note, "plain"]))
    assert found == {
        "schema": "warplens.kernels/1",
        "version": __version__,
        "source": "a.sqlite",
        "data": {"rows": []},
        "warnings": [
            {"code": "lost", "level": "warning", "text": "Events were dropped.", "remedy": None},
            "plain",
        ],
    }


def test_a_frame_becomes_rows_with_exact_integers_and_null_for_the_undefined():
    rows = pl.DataFrame(
        {
            "name": pl.Series(["<k>\u2028\0", "ü"], dtype=pl.Enum(["<k>\u2028\0", "ü"])),
            "total_ns": [2**63 - 1, -1],
            "mean_ns": [float("nan"), float("inf")],
            "stdev_ns": [None, 0.5],
        }
    )
    assert json.loads(dumps(Answer(0, rows))) == {
        "device": 0,
        "rows": [
            {"name": "<k>\u2028\0", "total_ns": 2**63 - 1, "mean_ns": None, "stdev_ns": None},
            {"name": "ü", "total_ns": -1, "mean_ns": None, "stdev_ns": 0.5},
        ],
    }


def test_an_empty_frame_is_an_empty_list():
    assert dumps({"rows": pl.DataFrame({"a": []})}) == b'{"rows":[]}'


def test_paths_lose_their_folders_which_may_name_a_user():
    assert json.loads(dumps(Path("/home/someone/a.sqlite"))) == "a.sqlite"


def test_numpy_enums_and_sets_become_plain():
    value = {"a": np.int64(3), "b": np.array([1, 2]), "c": NoteLevel.INFO, "d": frozenset({"y", "x"})}
    assert json.loads(dumps(value)) == {"a": 3, "b": [1, 2], "c": "info", "d": ["x", "y"]}


def test_what_has_no_json_form_is_refused_rather_than_guessed():
    with pytest.raises(TypeError, match="object"):
        dumps({"a": object()})


def test_a_hundred_thousand_rows_take_well_under_a_second():
    rows = pl.DataFrame({f"c{column}": range(100_000) for column in range(11)})
    begin = time.perf_counter()
    found = dumps({"rows": rows})
    assert time.perf_counter() - begin < 2, "about 0.2 s on a laptop; ten times that means rows became Python objects"
    assert len(found) > 10_000_000
