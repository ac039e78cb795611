"""Published tables of results, CSV or JSON, as measurements without samples (docs/reference/published-tables.md).

One row per cell. Columns that are not listed here are settings. A unit is part of a column's name, and
multiply-accumulates (MACs) are not floating-point operations (FLOPs), of which each has two: a column that does not
state which of the two it counts is refused.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson
import polars as pl

from warplens._version import __version__
from warplens.errors import UnreadableInputError, shown_name
from warplens.patterns import NUMBER
from warplens.profile.measurements import CELL_PHASES, CELLS, SAMPLES, STATUSES, Measurements
from warplens.readers.limits import document_bytes
from warplens.readers.measurements import MeasurementsFile, json_of, measurements_of, read_measurements
from warplens.readers.opening import compression_of, head_of
from warplens.readers.titles import UNITS_NS, flattened, read_titles, words_of

PUBLISHED_SCHEMA_NAME: Final = "warplens.published/1"

_PREFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

_LATENCY: Final = re.compile(r"latency_(s|ms|us|ns)")
_ARITHMETIC: Final = re.compile(r"([kmgt]?)(macs|flops)(_per_item)?")

#: Column names of arithmetic that do not state what they count.
_AMBIGUOUS: Final = re.compile(r"(?:[kmgt]?f|[kmgt]?ops|gflop|ops|compute|complexity|work|operations)", re.IGNORECASE)

#: Words of a title of arithmetic that is none of `_ARITHMETIC`: `GFLOPs`, `FLOPs (G)`.
_WORK: Final = re.compile(r"[kmgt]? ?(?:macs?|flops?)(?: [kmgt])?")

_FACTS: Final = ("throughput_per_s", "items", "unit", "status", "reason")
_NUMBERS: Final = _FACTS[:2]

#: Texts that stand for no result.
_MISSING: Final = {"", "-", "–", "nan", "n/a", "na", "null", "none"}
_OUT_OF_MEMORY: Final = {"oom", "out of memory", "out-of-memory"}

#: Larger figures, and times and rates nearer to zero, are misprints; larger whole numbers do not fit 64 bits.
_GREATEST: Final = 10**18
_LEAST: Final = 1e-9

#: Largest power of ten of a number in text: writing out a larger one would take all memory.
_MAX_POWER: Final = 300

#: Separators of spreadsheets where the comma is the decimal sign, or of tab-separated files.
_OTHER_SEPARATORS: Final = {";": "semicolons", "\t": "tabs"}

#: Printed figures have about three digits: two columns for the same quantity agree within this tolerance.
_PRINTED_TOLERANCE: Final = 0.02

#: Characters of an invalid value shown in a message.
_SHOWN_CHARACTERS: Final = 40

#: Longest field, in characters: a setting or a number is short.
_LONGEST_FIELD: Final = 1_000

#: Number of titles named in an error.
_SHOWN_TITLES: Final = 8

_ADVICE: Final = "See the columns of a published table in docs/reference/published-tables.md"


def read_published(path: Path | str) -> Measurements:
    """The measurements in a published table.

    Raises:
        UnreadableInputError: the file is missing or not a table, a row lacks a speed, a column does not state what it
            counts, or two columns contradict each other.
    """
    source = Path(path)
    try:
        text = document_bytes(source, source).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        found = (error.strerror or "it cannot be read") if isinstance(error, OSError) else "it is not a text in UTF-8"
        advice = _ADVICE if isinstance(error, OSError) else "Save it as CSV in UTF-8"
        raise UnreadableInputError(source, found, advice) from None
    if text.lstrip().startswith(("{", "[")):
        return published_of(json_of(text, source, _ADVICE), source)
    return _measurements(source, *_csv_rows(source, text))


def published_of(document: Any, source: Path | str) -> Measurements:
    """The measurements in a parsed table with any nesting of its rows."""
    path = Path(source)
    facts = {name: item for name, item in document.items() if name != "rows"} if isinstance(document, dict) else {}
    schema = facts.pop("schema", PUBLISHED_SCHEMA_NAME)
    rows = document.get("rows") if isinstance(document, dict) else document
    if schema == PUBLISHED_SCHEMA_NAME and not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        rows = flattened(document)
    elif isinstance(rows, list) and any(
        isinstance(item, dict) for row in rows if isinstance(row, dict) for item in row.values()
    ):
        rows = flattened(rows)
    if any(not isinstance(item, dict) for item in _sweep_parts(facts.get("sweep"))):
        raise UnreadableInputError(path, "its sweep has no settings as baseline and variant", _ADVICE)
    if schema != PUBLISHED_SCHEMA_NAME or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UnreadableInputError(path, "it is not a list of rows", _ADVICE)
    return _measurements(path, facts, rows)


def _sweep_parts(sweep: Any) -> list[Any]:
    """The sides stated by a table."""
    if sweep is None:
        return []
    return [sweep[side] for side in ("baseline", "variant") if side in sweep] if isinstance(sweep, dict) else [sweep]


def _csv_rows(path: Path, text: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Facts from lines such as `# device: NVIDIA TITAN RTX`, and the rows below."""
    facts, lines = {}, []
    for line in text.splitlines():
        if line.startswith("#"):
            name, colon, value = line.lstrip("# ").partition(":")
            if colon:
                facts[name.strip().lower()] = value.strip()
        elif line.strip():
            lines.append(line)
    reader = csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True)
    rows = []
    try:
        _check_header(path, [name.strip() for name in reader.fieldnames or ()])
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise UnreadableInputError(path, f"row {number} has not as many fields as the header", _ADVICE)
            # The csv module's own limit is global, and the reader of counters raises it.
            if max(map(len, row.values())) > _LONGEST_FIELD:
                raise UnreadableInputError(
                    path, f"it is not valid CSV of results (a field of row {number} is huge)", _ADVICE
                )
            rows.append({name.strip(): _value(item.strip()) for name, item in row.items()})
    except csv.Error as error:
        raise UnreadableInputError(path, f"it is not valid CSV ({error})", _ADVICE) from None
    return facts, rows


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Refuse a header with duplicate or empty names, or with other separators than commas."""
    if len(names) == 1 and (found := [word for sign, word in _OTHER_SEPARATORS.items() if sign in names[0]]):
        raise UnreadableInputError(
            path, f"{found[0]} separate its columns", "Save it with commas between columns, and points in numbers"
        )
    if "" in names:
        raise UnreadableInputError(path, f"column {names.index('') + 1} has no name", _ADVICE)
    if twice := [name for name in names if names.count(name) > 1]:
        raise UnreadableInputError(path, f"two columns are named {twice[0]!r}", "Give each column its own name")


def _value(text: str) -> Any:
    """A field of a CSV file: a whole number, a number, or text."""
    if not NUMBER.fullmatch(text):
        return text
    number = Decimal(text)
    if not number.is_finite() or abs(number.adjusted()) > _MAX_POWER:
        return text
    return int(number) if number == number.to_integral_value() and "." not in text else float(number)


def _measurements(path: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Measurements:
    """The rows of a published table as `Measurements`; columns that are no figures are settings.

    A table without a time, or with a figure of unclear meaning, is refused.
    """
    if not rows:
        raise UnreadableInputError(path, "it has no rows", _ADVICE)
    reading = read_titles(list(dict.fromkeys(name for row in rows for name in row)))
    rows = [{column: row[old] for old, column in reading.columns.items() if column and old in row} for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    settings = [name for name in names if not _is_figure(name)]
    if ambiguous := [name for name in settings if _AMBIGUOUS.fullmatch(name)]:
        raise UnreadableInputError(
            path,
            f"the column {ambiguous[0]!r} does not say whether it counts MACs or FLOPs (one MAC is two FLOPs)",
            "Name it gmacs_per_item or gflops_per_item, after what was counted",
        )
    if unclear := [name for name in settings if _WORK.fullmatch(" ".join(words_of(name)))]:
        raise UnreadableInputError(
            path,
            f"the column {unclear[0]!r} does not say whether it counts the work of a step or of an item",
            "Name it gflops or gflops_per_item (gmacs, gmacs_per_item)",
        )
    if reserved := [name for name in settings if name in CELLS.names]:
        raise UnreadableInputError(path, f"a setting cannot be named {reserved[0]!r}, which is a figure here", _ADVICE)
    if not any(name == "throughput_per_s" or _LATENCY.fullmatch(name) for name in names):
        found = ", ".join(names[:_SHOWN_TITLES]) + (", …" if len(names) > _SHOWN_TITLES else "")
        what = f"no column is a throughput_per_s or a latency_ms, with a row a side and point; there are: {found}"
        raise UnreadableInputError(path, what, _ADVICE)
    records = [_record(path, number, row) for number, row in enumerate(rows, start=1)]
    setting_columns = pl.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in settings})
    figures = pl.DataFrame(records, schema=CELLS.schema, orient="row")
    device = facts.get("device")
    return Measurements(
        source=shown_name(path.name),
        workload=str(facts.get("workload", "published table")),
        version=__version__,
        command=None,
        environment={"device": device if isinstance(device, Mapping) else {"name": device}} if device else {},
        plan={
            "published": True,
            **({"source": facts["source"]} if "source" in facts else {}),
            **({"read_as": list(reading.notes)} if reading.notes else {}),
        },
        settings=tuple(settings),
        cells=pl.concat((setting_columns, figures), how="horizontal"),
        details=({},) * len(rows),
        phases=CELL_PHASES.empty(),
        samples=SAMPLES.empty(),
        sweep=facts["sweep"] if isinstance(facts.get("sweep"), Mapping) else None,
    )


def _column(name: str, values: list[Any]) -> pl.Series:
    """A column of settings; mixed numbers become floats, and numbers among texts become texts."""
    plain = [",".join(map(str, item)) if isinstance(item, list) else item for item in values]
    kinds = {isinstance(item, bool) for item in plain if item is not None}
    beyond = any(isinstance(item, int) and abs(item) >= _GREATEST for item in plain)
    if len(kinds) > 1 or beyond or any(isinstance(item, str | dict) for item in plain):
        return pl.Series(name, [None if item is None else str(item) for item in plain], dtype=pl.String)
    if any(isinstance(item, float) for item in plain):
        return pl.Series(name, [None if item is None else float(item) for item in plain], dtype=pl.Float64)
    return pl.Series(name, plain)


def _is_figure(name: str, facts: Sequence[str] = _FACTS) -> bool:
    return name in facts or bool(_LATENCY.fullmatch(name) or _ARITHMETIC.fullmatch(name))


def _record(path: Path, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of `CELLS`."""

    def refuse(found: str) -> UnreadableInputError:
        return UnreadableInputError(path, f"row {number}: {found}", _ADVICE)

    status = _status(row)
    if status not in STATUSES:
        raise refuse(f"its status is {status!r}, none of {', '.join(STATUSES)}")
    record: dict[str, Any] = dict.fromkeys(CELLS.names)
    reason = str(row.get("reason") or "") or (None if status == "measured" else "not in the table")
    record |= {"status": status, "reason": reason, "unit": str(row.get("unit") or "item"), "doubts": []}
    items = row["items"] if _number(row.get("items")) is not None else row.get("batch")
    is_count = isinstance(items, int) and not isinstance(items, bool) and 0 < items < _GREATEST
    record["items"] = items if is_count else None
    if status != "measured":
        return record
    figures = {
        name: _figure(refuse, name, row[name])
        for name in row
        if _is_figure(name, _NUMBERS) and not _is_missing(row[name])
    }
    record |= _pace(refuse, figures, record["items"])
    return record | _work(refuse, figures, record)


def _pace(refuse: Any, figures: Mapping[str, float], items: int | None) -> dict[str, float | None]:
    """Latency and throughput of a row, as stated; a latency that is not stated follows from the throughput."""
    per_second = figures.get("throughput_per_s")
    times = {name: figures[name] * UNITS_NS[match[1]] for name in figures if (match := _LATENCY.fullmatch(name))}
    smallest = min([*times.values(), *([per_second] if per_second is not None else [])], default=_LEAST)
    if smallest <= 0:
        raise refuse("a time or a rate is not above zero")
    if smallest < _LEAST:
        raise refuse("a time or a rate is so close to zero that it must be a misprint")
    if per_second is None and not times:
        raise refuse("it has neither a throughput nor a latency; say why in a column `status`")
    if per_second is not None and items is None:
        raise refuse("a throughput needs the items of a step, in a column `items` or `batch`")
    latency_ns = next(iter(times.values()), None)
    if per_second is not None and items is not None:
        from_rate = items * 1e9 / per_second
        if latency_ns is not None and not math.isclose(latency_ns, from_rate, rel_tol=_PRINTED_TOLERANCE):
            raise refuse(f"throughput × latency is {per_second * latency_ns / 1e9:.3g}, but a step has {items} items")
        latency_ns = from_rate if latency_ns is None else latency_ns
    return {"latency_ns": latency_ns, "throughput_per_s": per_second}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.lower() in _MISSING)


def _figure(refuse: Any, name: str, value: Any) -> float:
    """The figure as a number; a text in its place (`2.5 ms`, `1,234`) would otherwise be lost silently."""
    number = _number(value)
    if number is None:
        raise refuse(f"its {name} is {str(value)[:_SHOWN_CHARACTERS]!r}, which is not a number")
    if abs(number) >= _GREATEST:
        raise refuse(f"its {name} is {number:g}, which is too much to be one")
    if number < 0:
        raise refuse(f"its {name} is {number:g}, which is not above zero")
    return number


def _status(row: Mapping[str, Any]) -> str:
    if (stated := row.get("status")) not in (None, ""):
        return str(stated).lower()
    texts = [str(row[name]).lower() for name in row if name == "throughput_per_s" or _LATENCY.fullmatch(name)]
    return "out-of-memory" if any(text in _OUT_OF_MEMORY for text in texts) else "measured"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _work(refuse: Any, figures: Mapping[str, float], record: Mapping[str, Any]) -> dict[str, Any]:
    """MACs and FLOPs of a step as the table states them; without FLOPs, they are twice the MACs."""
    operations: dict[str, int] = {}
    for name, value in figures.items():
        match = _ARITHMETIC.fullmatch(name)
        if match is None:
            continue
        if match[3] and record["items"] is None:
            raise refuse(f"{name} needs the items of a step, in a column `items` or `batch`")
        if match[2] in operations:
            raise refuse(f"it states its {match[2]} twice")
        # Decimal, because 17.57 × 10⁹ in binary would be 17569999999.999998.
        operations[match[2]] = round(Decimal(str(value)) * _PREFIXES[match[1]] * (record["items"] if match[3] else 1))
        # FLOPs are twice the MACs, and both are 64-bit integers.
        if operations[match[2]] > 4 * _GREATEST:
            raise refuse(f"{name} makes {operations[match[2]]:g} operations a step, which is too much to be one")
    macs, flops = operations.get("macs"), operations.get("flops")
    doubts = []
    if macs and flops and not math.isclose(flops, 2 * macs, rel_tol=_PRINTED_TOLERANCE):
        doubts.append(f"the table's FLOPs are {flops / macs:.3g} times its MACs; two are by definition")
    latency_ns = record["latency_ns"]
    flops = 2 * macs if macs is not None and flops is None else flops
    return {
        "macs": macs,
        "flops": flops,
        "flops_per_s": flops * 1e9 / latency_ns if flops is not None and latency_ns else None,
        "doubts": doubts,
    }


def read_sweep(path: Path | str) -> Measurements:
    """Measurements from a measurements file or a published table.

    Raises:
        UnreadableInputError: it is neither, or cannot be read.
    """
    source = Path(path)
    if source.is_dir():
        raise UnreadableInputError(source, "it is a folder", "Give the file that `warplens sweep run` wrote")
    if compression_of(head_of(source)) is not None:
        return read_measurements(source)
    try:
        document = orjson.loads(source.read_bytes())
    except orjson.JSONDecodeError:
        # A damaged measurements file is no table.
        return read_measurements(source) if MeasurementsFile().sniff(head_of(source)) else read_published(source)
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema.startswith("warplens.") and schema != PUBLISHED_SCHEMA_NAME:
        return measurements_of(document, source)
    return published_of(document, source)
