"""Changed but valid files: kernels as the reader gives them, and as Python's own `sqlite3` and `json` do."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutators import database
from tests.fuzz.seeds import by_name
from warplens.errors import UnreadableInputError
from warplens.readers import read

CASES = 150

Rows = list[tuple[object, ...]]

#: What a kernel must have to be one: a begin, and an end that is no earlier.
_KERNELS = """
    SELECT start, end, coalesce(s.value, 'unnamed (' || demangledName || ')')
    FROM CUPTI_ACTIVITY_KIND_KERNEL LEFT JOIN StringIds AS s ON s.id = demangledName
    WHERE start IS NOT NULL AND end >= start
"""


def of_reader(path: Path) -> Rows:
    kernels = read(path).kernels
    names = kernels["full_name"].cast(str)
    return sorted(zip(kernels["start_ns"].to_list(), kernels["end_ns"].to_list(), names.to_list(), strict=True))


@pytest.mark.parametrize("seed", ["export", "extra", "plain"])
def test_kernels_of_a_changed_export_are_those_that_sqlite_gives(seed: str, tmp_path: Path) -> None:
    compared, path = 0, tmp_path / "case.sqlite"
    for number in range(CASES):
        path.write_bytes(database(by_name(seed).content, Random(f"valid {number}"), valid=True))
        with closing(sqlite3.connect(path)) as file:
            try:
                expected = sorted(file.execute(_KERNELS).fetchall())
            except sqlite3.OperationalError:  # the table or one of these columns is gone
                continue
        if not all(isinstance(name, str) and "\0" not in name for _, _, name in expected):
            continue
        try:
            found = of_reader(path)
        except UnreadableInputError:  # a number that is none of its column
            continue
        assert found == expected, number
        compared += 1

    assert compared > CASES // 2


def _changed(document: dict, random: Random) -> dict:
    events = document["traceEvents"]
    for _ in range(random.choice((1, 3, 10))):
        at = random.randrange(len(events))
        roll = random.random()
        if roll < 0.3:
            events[at]["ts"] = random.choice((0, 1, 10**6, 10**12, 0.001, 0.5, 1e3, 123456789.125, 2**40 + 0.001))
        elif roll < 0.6:
            events[at]["dur"] = random.choice((0, 1, 10**6, 0.001, 0.25, 1e2, 12345.678))
        elif roll < 0.7:
            del events[at]
        elif roll < 0.8:
            events.insert(random.randrange(len(events)), dict(events[at]))
        elif roll < 0.9:
            events[at]["name"] = random.choice(("", "é", "a\\b", 'q"q', "\u2028", "tab\t", "😀", "x" * 500))
        else:
            events[at], events[-1] = events[-1], events[at]
    return document


def _from_first(rows: Rows) -> Rows:
    """Times counted from the first kernel: the zero of a trace is its first event."""
    zero = rows[0][0] if rows else 0
    return [(start - zero, end - zero, name) for start, end, name in rows]  # type: ignore[operator]


def _once(events: list[dict]) -> list[dict]:
    """Each event once: profilers repeat some, which a note says."""
    return list({repr(sorted(event.items(), key=str)): event for event in events}.values())


@pytest.mark.parametrize("seed", ["trace", "links"])
def test_kernels_of_a_changed_trace_are_those_that_json_gives(seed: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    for number in range(CASES):
        random = Random(f"valid {number}")
        text = json.dumps(
            _changed(json.loads(by_name(seed).content), random),
            ensure_ascii=random.random() < 0.5, indent=random.choice((None, 1)),
        )  # fmt: skip
        path.write_text(text, "utf-8")
        expected = sorted(
            (int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000), event["name"])
            for event in _once(json.loads(text, parse_float=Decimal, parse_int=Decimal)["traceEvents"])
            if event.get("cat") == "kernel" and "dur" in event
        )
        assert _from_first(of_reader(path)) == _from_first(expected), number
