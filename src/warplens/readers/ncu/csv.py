"""Nsight Compute's CSV exports as `KernelCounters`: the raw page (wide) and the details page (long), of 2020 to 2026.

`csv_text` finds the table in the file and parses its cells, `csv_labels` maps the details page's labels to metrics and
classifies ncu's own lines; this module reads the launches and combines everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Capture, Device, Note, NoteLevel
from warplens.profile.counters import LAUNCHES, RULES, KernelCounters, Session
from warplens.profile.spelling import short_name
from warplens.readers.ncu import NCU
from warplens.readers.ncu.container import without_folders
from warplens.readers.ncu.csv_labels import metric_of, rule_name, section_of
from warplens.readers.ncu.csv_text import Cells, DecimalCommaError, Table
from warplens.readers.ncu.report import DEVICE_ATTRIBUTES, RECORD, device_of, encoded
from warplens.writing import plural

# --- The launches of an Nsight Compute CSV export: the columns before the metrics -------------------------------------
#
# The names of the process and of the host among these columns are never read.

#: Columns before the metrics, in some releases or in all.
COLUMNS = frozenset((
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
))  # fmt: skip

_PERSONAL = frozenset(("Process Name", "Host Name"))

_NUMBERS = {"device": "Device", "context": "Context", "stream": "Stream", "process": "Process ID"}

_KINDS = ("range", "graph", "cmdlist")

_XYZ = r"^\s*\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?\s*$"

#: The state of NVTX: a thread, then its ranges in quotes, the outermost first.
_RANGES = re.compile(r'"([^"]*)"')
_OF_ONE_THREAD = re.compile(r'\s*\d*\s*((?:"[^"]*"\s*)+)')

#: A range is its domain and name, then colour, payload and message, each with its type.
_FIELDS_AFTER_NAME = 6


def is_nvtx(column: str) -> bool:
    """Whether a column holds the state of NVTX at the launch."""
    return "Push/Pop_Range" in column or "Start/Stop_Range" in column


def is_fact(column: str) -> bool:
    """Whether a column identifies launches; names of processes and hosts do not, and are never read."""
    return (column in COLUMNS and column not in _PERSONAL) or is_nvtx(column)


def launch_table(header: Sequence[str], launches: Sequence[Sequence[str]]) -> pl.DataFrame:
    """`LAUNCHES` of launches given as their fields under this header."""
    at = {name: position for position, name in enumerate(header)}
    count = len(launches)

    def column(name: str) -> pl.Series:
        if name not in at:
            return pl.Series([None] * count, dtype=pl.String)
        return pl.Series([launch[at[name]] for launch in launches], dtype=pl.String)

    names = column("Kernel Name").fill_null("").to_list()
    short = {name: short_name(name) for name in dict.fromkeys(names)}
    columns: dict[str, Any] = {
        "launch": pl.Series(range(count), dtype=pl.Int64),
        "kind": pl.Series([name if name in _KINDS else "kernel" for name in names], dtype=LAUNCHES.schema["kind"]),
        "name": encoded("name", [short[name] for name in names]),
        "full_name": encoded("full_name", names),
    }
    for column_name, printed in _NUMBERS.items():
        columns[column_name] = column(printed).cast(LAUNCHES.schema[column_name], strict=False)
    # For a graph, ncu prints the sizes of one of its kernels.
    of_kernels = columns["kind"].cast(pl.String) == "kernel"
    for column_name, printed in (("grid", "Grid Size"), ("block", "Block Size")):
        columns |= _sizes(column_name, column(printed), of_kernels)
    states = [position for position, name in enumerate(header) if is_nvtx(name)]
    # Ranges of the process come after those of the thread in a row, but were usually opened before them.
    ranges = [[name for at in reversed(states) for name in open_ranges(launch[at])] for launch in launches]
    columns["nvtx"] = pl.Series(ranges if states else [None] * count, dtype=pl.List(pl.String))
    return LAUNCHES.checked(pl.DataFrame(columns))


def _sizes(name: str, printed: pl.Series, of_kernels: pl.Series) -> dict[str, pl.Series]:
    """Three columns of a size; null for a failed launch (printed as `(0, 0, 0)`) and for merged kernels."""
    sizes = [printed.str.extract(_XYZ, group).cast(pl.Int32, strict=False) for group in (1, 2, 3)]
    is_valid = (sizes[0] > 0) & of_kernels
    null_size = pl.Series([None], dtype=pl.Int32)
    return {
        f"{name}_{axis}": size.zip_with(is_valid.fill_null(False), null_size)
        for axis, size in zip("xyz", sizes, strict=True)
    }


def open_ranges(state: str) -> list[str]:
    """Names of the NVTX ranges open at a launch, outermost first, from their printed state."""
    thread = _OF_ONE_THREAD.match(state)
    return [_range_name(range_text) for range_text in _RANGES.findall(thread[1])] if thread else []


def _range_name(printed: str) -> str:
    name = printed.rsplit(":", _FIELDS_AFTER_NAME)[0]
    domain, colon, rest = name.partition(":")
    return rest if colon else domain


_EXPORT_AGAIN = "Export it again: ncu --import REPORT.ncu-rep --page raw --csv"

#: Kinds of results of rules, as printed.
_RULE_KINDS = {"OPT": "optimization", "WRN": "warning", "INF": "ok", "OK": "ok", "ERR": "error"}

#: The details page prints two decimals, of a scaled unit.
_ROUNDED = Note(
    "rounded-values",
    NoteLevel.INFO,
    "The details page rounds values to two decimals of a scaled unit.",
    "For all digits give the .ncu-rep file, or export it with --page raw --print-units base",
)


def read_ncu_csv(path: Path, known_as: Path, metrics: Collection[str] | None = None) -> KernelCounters:
    """The counters in a CSV export, as far as it is intact.

    Numbers are returned in base units and as `Float64`, however they were printed. A label of the details page becomes
    the metric's own name if known, else `label:section/label`.
    """
    try:
        return _Reading(path, known_as, metrics, decimal_comma=False).counters()
    except DecimalCommaError:
        return _Reading(path, known_as, metrics, decimal_comma=True).counters()


class _Reading:
    """The reading of one export."""

    def __init__(self, path: Path, known_as: Path, metrics: Collection[str] | None, decimal_comma: bool) -> None:
        self._known_as = known_as
        self._asked = None if metrics is None else frozenset(metrics)
        self._table = Table(path, known_as)
        self._cells = Cells(None if metrics is None else {*metrics, *DEVICE_ATTRIBUTES}, decimal_comma)
        self._facts: list[str] = []
        self._known_texts: dict[str, str] = {}
        self._launches: list[tuple[str, ...]] = []
        self._sections: dict[str, None] = {}
        self._rules: list[tuple[int, str, str, str | None, str, str, str | None, float | None]] = []
        self._damaged = 0
        self._details = False

    def counters(self) -> KernelCounters:
        """The whole export as `KernelCounters`."""
        self._read()
        if self._table.cut and not self._launches:
            raise UnreadableInputError(self._known_as, "the export ends before its first launch", _EXPORT_AGAIN)
        values = self._cells.frame(len(self._launches), self._known_as)
        launches = launch_table(self._facts, self._launches)
        devices = self._devices(values, launches)
        if self._asked is not None:
            values = values.select([name for name in values.columns if name in self._asked])
        capture = Capture(
            source=self._known_as.name,
            format="ncu-csv",
            recorder=NCU,
            devices=devices,
            recorded=frozenset({"launches", "metrics", *(["rules"] if self._rules else [])}),
            notes=tuple(self._notes()),
        )
        units = self._cells.units()
        return KernelCounters(
            capture=capture,
            session=Session(sections=tuple(sorted(self._sections))),
            launches=launches,
            metrics=values,
            units={name: units[name] for name in values.columns if name in units},
            rules=pl.DataFrame(self._rules, RULES.schema, orient="row"),
        )

    def _read(self) -> None:
        take: Callable[[list[str]], None] | None = None
        launch_rows: dict[tuple[Any, ...], int] = {}
        header: list[str] = []
        for row in self._table.records():
            if take is None or row[0] == "ID":
                header, launch_rows = row, {}
                take = self._details_rows(header, launch_rows) if "Metric Name" in header else self._raw_rows(header)
            else:
                take(row)

    def _adopt(self, facts: Sequence[str]) -> None:
        """Set the columns that identify a launch; a second table in the file must have the same."""
        if self._launches and list(facts) != self._facts:
            found = "two tables with different columns stand in it, one after the other"
            raise UnreadableInputError(self._known_as, found, "Give each table as a file of its own")
        self._facts = list(facts)

    def _shared(self, facts: Sequence[str]) -> tuple[str, ...]:
        """The facts about one launch; texts shared with others are stored once."""
        return tuple(self._known_texts.setdefault(text, text) for text in facts)

    def _raw_rows(self, header: Sequence[str]) -> Callable[[list[str]], None]:
        """Read rows of the raw page: the first holds the units, every other is a launch."""
        names = [name.strip() for name in header]
        facts = [at for at, name in enumerate(names) if is_fact(name)]
        if "Kernel Name" not in names:
            raise UnreadableInputError(self._known_as, "its table does not name the kernels", _EXPORT_AGAIN)
        self._adopt([names[at] for at in facts])
        started = False
        chosen: list[int] = []

        def start(units: Sequence[str]) -> None:
            nonlocal started
            started = True
            places: dict[int, tuple[int, tuple[int, int, bool]]] = {}
            for at, name in enumerate(names):
                if name and not (name in COLUMNS or is_fact(name)) and (place := self._cells.column(name, units[at])):
                    places.setdefault(place[0], (at, place))
            chosen.extend(at for at, _ in places.values())
            self._cells.begin_table([place for _, place in places.values()], len(self._launches))

        def take(row: list[str]) -> None:
            if len(row) != len(names):
                self._damaged += 1
                return
            if not row[0]:
                if not started:
                    start(row)
                return
            if not started:  # a guess could be wrong by powers of a thousand
                found = "the row of units below the header is missing or damaged, so that its numbers mean nothing"
                raise UnreadableInputError(self._known_as, found, _EXPORT_AGAIN)
            self._launches.append(self._shared([row[at] for at in facts]))
            if len(chosen) == 1:
                self._cells.take_row([row[chosen[0]]])
            elif chosen:
                self._cells.take_row(itemgetter(*chosen)(row))

        return take

    def _details_rows(
        self, header: Sequence[str], launch_rows: dict[tuple[Any, ...], int]
    ) -> Callable[[list[str]], None]:
        """Read rows of the details page: each one metric, or one result of a rule, of one launch."""
        names = [name.strip() for name in header]
        at = {name: position for position, name in enumerate(names)}
        needed = ("Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
        if absent := [name for name in needed if name not in at]:
            found = f"its table lacks the columns {', '.join(absent)}"
            raise UnreadableInputError(self._known_as, found, _EXPORT_AGAIN)
        self._details = True
        section, label, unit, value = (at[name] for name in needed[1:])
        chart = at.get("Body Item Label")
        facts = [position for position, name in enumerate(names) if is_fact(name)]
        self._adopt([names[position] for position in facts])
        identity = itemgetter(*facts)
        last = max(section, label, unit, value, chart or 0, *facts)
        places: dict[tuple[str, str, str, str], tuple[int, int, bool] | None] = {}
        current: tuple[str, ...] = ()
        launch = -1

        def take(row: list[str]) -> None:
            """Takes a row of the details page: the value of a metric, or the result of a rule."""
            nonlocal current, launch
            # A metric's row ends after its value, a rule's row has all fields.
            if not row[0] or len(row) <= last or len(row) > len(names):
                self._damaged += 1
                return
            found = identity(row)
            if found != current:
                current, launch = found, launch_rows.setdefault(found, len(self._launches))
                if launch == len(self._launches):
                    self._launches.append(self._shared(found))
            if row[label]:
                key = (row[section], row[chart] if chart is not None else "", row[label], row[unit])
                if key not in places:
                    places[key] = self._cells.column(metric_of(*key[:3]), key[3])
                    self._add_section(key[0])
                if (place := places[key]) is not None:
                    self._cells.take(launch, place, row[value])
            elif "Rule Name" in at and len(row) > at["Rule Name"] and row[at["Rule Name"]]:
                self._add_section(row[section])
                self._add_rule(launch, row, at)

        return take

    def _add_section(self, displayed: str) -> None:
        if name := section_of(displayed):
            self._sections[name] = None

    def _add_rule(self, launch: int, row: Sequence[str], at: dict[str, int]) -> None:
        """Adds what a rule of Nsight Compute says about a launch."""

        def cell(name: str) -> str:
            return row[at[name]] if name in at and at[name] < len(row) else ""

        try:
            speedup = float(cell("Estimated Speedup"))
        except ValueError:
            speedup = None
        kind = cell("Rule Type")
        self._rules.append(
            (
                launch,
                cell("Rule Name"),
                rule_name(cell("Rule Name")),
                section_of(cell("Section Name")) or None,
                _RULE_KINDS.get(kind.upper(), "none"),
                without_folders(cell("Rule Description")),
                cell("Estimated Speedup Type") or None,
                speedup,
            )
        )

    def _devices(self, values: pl.DataFrame, launches: pl.DataFrame) -> tuple[Device, ...]:
        """The GPUs that the launches ran on, as far as the export describes them."""
        known = values.select([name for name in values.columns if name in DEVICE_ATTRIBUTES])
        ordinals = launches["device"]
        devices = []
        for ordinal in sorted(ordinals.drop_nulls().unique().to_list()):
            row = ordinals.index_of(ordinal)
            attributes: dict[str, Any] = dict(known.row(row, named=True)) if row is not None and known.width else {}
            if "CC" in self._facts and row is not None:
                major, _, minor = self._launches[row][self._facts.index("CC")].partition(".")
                for name, text in (("major", major), ("minor", minor)):
                    if text.isdecimal() and len(text) < 4:
                        attributes.setdefault(f"device__attribute_compute_capability_{name}", int(text))
            devices.append(device_of(ordinal, attributes))
        return tuple(devices)

    def _notes(self) -> Iterator[Note]:
        if not self._launches:
            yield Note("no-launches", NoteLevel.BLOCKING, "The export holds no profiled kernel launch.", RECORD)
        if self._table.cut:
            text = "The export ends within a row; that row was left out, and what came after it is missing."
            yield Note("incomplete-report", NoteLevel.WARNING, text, _EXPORT_AGAIN)
        if self._damaged:
            text = f"{plural(self._damaged, 'row')} left out, with another number of fields than the header."
            yield Note("unreadable-rows", NoteLevel.WARNING, text, _EXPORT_AGAIN)
        messages = sorted(self._table.messages.notes(), key=lambda note: note.level is NoteLevel.INFO)
        yield from messages
        if self._details:
            yield _ROUNDED
        if self._table.passed_over:
            text = f"{plural(self._table.passed_over, 'line')} skipped, outside of ncu's table."
            yield Note("foreign-lines", NoteLevel.INFO, text)
