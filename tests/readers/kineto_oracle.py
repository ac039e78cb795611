"""The events of a Chrome trace the slow and plain way: Python's own `json`, one object per event.

The reader never parses a whole trace like this. What it finds has to be the same.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from warplens.readers.kineto.values import KINDS, LISTED, arguments_of, kind_of_category

PHASES = {"allocation": "iIX", "flow": "stf"}


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,40}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    if isinstance(value, Decimal) and (not value.is_finite() or value.adjusted() > 40):
        return None
    low = int(value) % 2**64
    return low - 2**64 if low >= 2**63 else low


def _nanoseconds(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    if isinstance(value, Decimal) and (not value.is_finite() or value.adjusted() > 20):
        return None
    found = round(Decimal(value) * 1000)  # half to even
    return found if abs(found) < 2**63 else None


def _identity(value: Any) -> int | None:
    if isinstance(value, str) and not re.fullmatch(r"\s*[+-]?\d{1,40}\s*", value):
        found = re.search(r"(\d{1,18})\D*$", value)
        return int(found.group(1)) if found else None
    return _whole(value)


def _holds(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) or (isinstance(value, list) and any(_holds(one, kinds) for one in value))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if _holds(value, dict):  # no profiler writes objects where texts and lists belong
        return None
    return json.dumps(value, default=float, ensure_ascii=False)


def _is_whole_list(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(value, list) and not _holds(value, (dict, type(None)))


def rows_of(document: str) -> dict[str, list[dict[str, Any]]]:
    """The events that are read, by kind, each with the columns that the reader's frames have."""
    loaded = json.loads(document, parse_float=Decimal)
    events = loaded if isinstance(loaded, list) else loaded["traceEvents"]
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for event in events:
        kind = kind_of_category(_text(event.get("cat")) or "")
        phase = event.get("ph", "X")
        if kind is None or phase not in tuple(PHASES.get(kind, "XBE")):
            continue
        args = event.get("args")
        row = {
            "phase": ord(phase),
            "begin_ns": _nanoseconds(event.get("ts")),
            "duration_ns": _nanoseconds(event.get("dur")),
            "process": _identity(event.get("pid")),
            "thread": _identity(event.get("tid")),
            "name": _text(event.get("name")),
        }
        for argument in arguments_of(kind):
            holder = event if argument.is_member else args if isinstance(args, dict) else {}
            written = [key for key in holder if key in argument.keys]
            value = holder[written[-1]] if written else None
            if argument.column in LISTED and not _is_whole_list(value):
                value = None  # inputs with gaps tell nothing
            row[argument.column] = _text(value) if argument.is_text else _whole(value)
        rows[kind].append(row)
    return rows
