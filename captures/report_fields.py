"""Infers the meaning of the message fields of a report: for each column of its export, the fields with its values.

    python captures/report_fields.py REPORT EXPORT [TABLE]

Events and rows are matched by their begin and end. For each column of each table it prints how many rows have a value,
how many different ones, and the fields that agree in at least nine tenths of the rows. A column of one value only, or
with several fields that agree, is settled by another pair.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from warplens.readers.nsys.report_container import opened
from warplens.wire import BYTES, VARINT, WireError, fields_of, varint

Fields = dict[tuple[int, ...], Any]

_DEPTH = 4
_AGREE = 0.9


def fields(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """For each field of a message its key, and its number and 0, or where its content begins and ends."""
    stop = begin
    for number, kind, value, whole in fields_of(content[begin:end]):
        stop += len(whole)
        yield number << 3 | kind, *((varint(value, 0)[0], 0) if kind == VARINT else (stop - len(value), stop))


def all_fields(content: bytes, begin: int, end: int, path: tuple[int, ...] = ()) -> Fields:
    """All fields of a message and its submessages, by the path of field numbers."""
    by_path: Fields = {}
    for key, value, stop in fields(content, begin, end):
        here = (*path, key >> 3)
        if key & 7 != BYTES:
            by_path[here] = value - 2**64 if value >= 2**63 else value
            continue
        by_path[here] = content[value:stop]
        if len(here) < _DEPTH:
            with suppress(WireError):  # a text
                by_path |= all_fields(content, value, stop, here)
    return by_path


def events_of(path: Path) -> dict[tuple[int, int | None], list[Fields]]:
    """The events of a report by begin and end, for every position of these in the message."""
    found: dict[tuple[int, int | None], list[Fields]] = {}
    with opened(path, path) as source:
        for block, spans, _ in source.blocks():
            for span in spans:
                for _, first, last in fields(block.data, *span):
                    event = all_fields(block.data, first, last)
                    payload = max((path[0] for path in event), default=0)
                    begin = event.get((payload, 2 if payload == 102 else 1))
                    end = event.get((payload, 10 if payload == 102 else 2))
                    if isinstance(begin, int):
                        found.setdefault((begin, end if isinstance(end, int) else None), []).append(event)
    return found


def show(table: str, rows: list[dict[str, Any]], events: dict[tuple[int, int | None], list[Fields]]) -> None:
    """Prints the result for one table."""
    pairs = [(row, events.get((row["start"], row.get("end")), [])) for row in rows]
    sure = [(row, found[0]) for row, found in pairs if len(found) == 1]
    kinds = Counter(event.get((1,)) for _, event in sure)
    print(f"{table}: {len(rows):,} rows, {len(sure):,} matched, event types {dict(kinds)}")
    paths = {path for _, event in sure for path in event}
    for column in rows[0] if sure else ():
        values = [row[column] for row, _ in sure]
        known = sum(value is not None for value in values)
        agreeing = Counter(
            {
                path: sum(v is not None and event.get(path) == v for v, (_, event) in zip(values, sure, strict=True))
                for path in paths
            }
        )
        best = [
            ".".join(map(str, path)) for path, count in agreeing.most_common(6) if known and count >= _AGREE * known
        ]
        print(f"    {column:28} {known:8,} of {len(set(values)):8,} kinds   {', '.join(best)}")


def main() -> None:
    """Compares one pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("export", type=Path)
    parser.add_argument("table", nargs="?")
    options = parser.parse_args()
    events = events_of(options.report)
    with closing(sqlite3.connect(options.export)) as database:
        database.text_factory = bytes
        database.row_factory = sqlite3.Row
        names = [row[0].decode() for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            rows = [dict(row) for row in database.execute(f'SELECT * FROM "{name}"')]
            if rows and "start" in rows[0] and options.table in (None, name):
                show(name, rows, events)


if __name__ == "__main__":
    main()
