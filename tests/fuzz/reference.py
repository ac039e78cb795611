"""What files hold by Python's own `sqlite3` and `json`, for comparison with what the readers made of them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from warplens.profile import Trace

Rows = list[tuple[object, ...]]

#: What an event must have to be one: a begin within 73 years of the clock's zero, and an end that is no earlier and at
#: most 52 days later.
_EVENT = f"start BETWEEN {-(2**61)} AND {2**61} AND end - start BETWEEN 0 AND {2**52}"
_QUERIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernels", f"""
        SELECT start, end, coalesce(s.value, 'unnamed (' || demangledName || ')')
        FROM CUPTI_ACTIVITY_KIND_KERNEL LEFT JOIN StringIds AS s ON s.id = demangledName WHERE {_EVENT}"""),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "copies", f"SELECT start, end, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE {_EVENT}"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "api_calls", f"SELECT start, end, coalesce(correlationId, -1) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {_EVENT}"),
}  # fmt: skip
#: The columns of a trace's table that a query above, or an event of a trace of PyTorch, tells.
_COLUMNS = {
    "kernels": ("start_ns", "end_ns", "full_name"),
    "copies": ("start_ns", "end_ns", "bytes"),
    "api_calls": ("start_ns", "end_ns", "correlation"),
}


def of_database(path: Path) -> dict[str, Rows] | str:
    """The rows of each table that a reader must find, or what SQLite's own check of the pages says is damaged."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        file.text_factory = bytes
        try:
            ((said,),) = file.execute("PRAGMA quick_check(1)").fetchall()
            tables = {name.decode() for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.DatabaseError as error:
            return str(error)
        if said != b"ok":
            return "SQLite's check of its pages finds damage"
        found: dict[str, Rows] = {}
        for table, (name, query) in _QUERIES.items():
            if table not in tables:
                continue
            try:
                rows = file.execute(query).fetchall()
            except sqlite3.OperationalError:  # one of these columns is gone
                continue
            texts = [row[2] for row in rows] if name == "kernels" else []
            if all(isinstance(text, bytes) and text.isascii() and b"\0" not in text for text in texts):
                rows = [(*row[:2], row[2].decode()) for row in rows] if name == "kernels" else rows
                found[name] = sorted(rows, key=repr)
    return found


def of_trace(path: Path) -> dict[str, Rows]:
    """The kernels of a trace of PyTorch, in nanoseconds, counted from the first of them."""
    events = _once(json.loads(path.read_text("utf-8"), parse_float=Decimal, parse_int=Decimal)["traceEvents"])
    kernels = [
        (int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000), event["name"])
        for event in events
        if event.get("cat") == "kernel" and "dur" in event
    ]
    return {"kernels": _from_first(kernels)}


def tables_of(trace: Trace, expected: dict[str, Rows], *, from_first: bool = False) -> dict[str, Rows]:
    """The same of a trace as it was read."""
    found: dict[str, Rows] = {}
    for name in expected:
        columns = [getattr(trace, name)[column] for column in _COLUMNS[name]]
        rows = list(
            zip(*(c.cast(str).to_list() if c.name == "full_name" else c.to_list() for c in columns), strict=True)
        )
        found[name] = _from_first(rows) if from_first else sorted(rows, key=repr)
    return found


def changed_trace(content: bytes, random: Random) -> bytes:
    """A trace of PyTorch whose events were changed in ways that leave no doubt about what they are."""
    document = json.loads(content)
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
    ascii_only, indent = random.random() < 0.5, random.choice((None, 1))
    return json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8")


def _from_first(rows: Rows) -> Rows:
    """Sorted, with times counted from the first kernel: the zero of a trace is its first event."""
    rows = sorted(rows)
    zero = rows[0][0] if rows else 0
    return [(start - zero, end - zero, name) for start, end, name in rows]


def _once(events: list[dict]) -> list[dict]:
    """Each event once: profilers repeat some, which a note says."""
    return list({repr(sorted(event.items(), key=str)): event for event in events}.values())
