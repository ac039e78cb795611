"""Times that a program measured itself, from CSV or JSON, to compare with a profile.

One row per step, or one row per cell with statistics. A column's title gives its content; words are separated by
anything that is not a letter or digit, case and order do not matter:

| column | titles | |---|---| | model | `model`, `size`, `model_size`, `model_name` | | context length | `context`,
`ctx`, `context_length`, `ctx_len`, `seq`, `seq_len`, `sequence_length` | | kind of step | `mode`, `kind` (`forward`,
`train`, …); optional | | batch | `batch`, `batch_size`, `bs`; optional | | step number | `step`, `index`, `iteration`,
`run`; optional | | number of samples | `n`, `samples`, `count`, `steps`, `iterations`; optional |

Every other title made of these words is a time: a phase (`forward`/`fwd`, `backward`/`bwd`, `optimizer`/`opt`,
`step`/`total`), a statistic (`mean`, `std`, `median`, `min`, `max`; without one: a single measurement) and a unit (`s`,
`ms`, `us`, `ns`): `forward_s`, `fwd_mean_ms`, `std (ms)`. A time without a phase is of the phase named by the row's
kind of step. Empty fields, `nan`, `n/a` and `oom` are not measurements. Other columns are ignored.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.patterns import NUMBER
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.readers.limits import document_bytes
from warplens.readers.measurements import MEASUREMENTS_SCHEMA_NAME, json_of, measurements_of
from warplens.readers.opening import Input, Kind, Reader, ReadOptions, head_of, plain
from warplens.readers.titles import FILLERS, STATISTIC_WORDS, UNITS_NS, flattened, words_of

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements
    from warplens.readers.scrubbing import Removed

#: Phases of a time.
TIMING_PHASES: Final = ("forward", "backward", "optimizer", "step")

#: A single measurement, or a statistic over several.
STATISTICS: Final = ("sample", "mean", "median", "minimum", "maximum", "deviation")

TIMINGS: Final = table(
    "measured timings (input)",
    "One time that a program measured itself, as read from a CSV file.",
    "model context mode batch",
    column("phase").but(dtype=pl.Enum(TIMING_PHASES), help="`forward`, `backward`, `optimizer` or `step`"),
    Column(
        "statistic",
        pl.Enum(STATISTICS),
        "`sample` for one measurement, else `mean`, `median`, `minimum`, `maximum`, `deviation`",
    ),
    column("index", help="number of the step"),
    column("samples", help="number of measurements behind a statistic"),
    "time_ns",
    model="as written in the file",
    context="context length in tokens",
    mode="kind of step as written in the file; null where it has no such column",
    time_ns="the time",
)

_COLUMNS: Final = {
    "model": {"model", "size", "model size", "model name"},
    "context": {
        "context",
        "ctx",
        "context length",
        "ctx len",
        "ctx length",
        "seq",
        "seq len",
        "sequence length",
        "context len",
        "length",
    },
    "mode": {"mode", "kind", "pass", "pass type", "phase"},
    "batch": {"batch", "batch size", "bs", "batchsize"},
    "index": {"step", "index", "iteration", "run"},
    "samples": {"n", "samples", "count", "steps", "iterations"},
}
_PHASE_WORDS: Final = {
    "forward": "forward", "fwd": "forward", "backward": "backward", "bwd": "backward", "optimizer": "optimizer",
    "optim": "optimizer", "opt": "optimizer", "step": "step", "total": "step",
}  # fmt: skip

_NO_MEASUREMENT: Final = {"", "nan", "n/a", "na", "none", "null", "oom", "-", "–"}

#: Upper bound of counts and times; fits 64 bits.
_GREATEST: Final = 10**18

_ADVICE = "Give columns such as model, context, mode, step, forward_s, backward_s, optimizer_s, step_s"


class _TimeColumn(NamedTuple):
    title: str
    phase: str | None
    statistic: str
    factor: int


def read_timings(path: Path | str) -> pl.DataFrame:
    """The times in a file (`TIMINGS`), in the order of the file.

    A CSV file separated by commas, semicolons or tabs; JSON with the same titles as keys, with any nesting of its rows;
    or a file of `warplens bench lm --output FILE`. See the module's text for the columns.

    Raises:
        UnreadableInputError: the file cannot be read, lacks model, context or any time, has a time without a unit, or
            holds other text where a number is needed.
    """
    source = Path(path)
    with plain(source) as content:
        head = head_of(content).lstrip(b"\xef\xbb\xbf \t\r\n")
        if not head.startswith((b"{", b"[")):
            return _timings(content, source)
        document = json_of(document_bytes(content, source), source, _ADVICE)
    if isinstance(document, dict) and document.get("schema") == MEASUREMENTS_SCHEMA_NAME:
        return _measured(measurements_of(document, source), source)
    rows = flattened(document)
    if rows is None:
        raise UnreadableInputError(source, "no row of it holds a time", _ADVICE)
    header = list(dict.fromkeys(name for row in rows for name in row))
    lines = [["" if row.get(name) is None else str(row[name]) for name in header] for row in rows]
    return _parse_table(source, header, lines)


def _measured(measurements: Measurements, source: Path) -> pl.DataFrame:
    """Times of `warplens bench lm`: single ones where the file keeps them, else medians.

    Cells in several precisions or executions are different programs: where there are such, those in eager fp32 are
    used, since the grid's programs run so.
    """
    cells = measurements.cells.with_row_index("cell").filter(pl.col("status") == "measured")
    if missing := [name for name in ("size", "context", "mode") if name not in measurements.settings]:
        raise UnreadableInputError(source, f"its cells have no {' and no '.join(missing)}", _ADVICE)
    for name, usual in (("execution", "eager"), ("precision", "fp32"), ("optimizer", "reference")):
        if name in measurements.settings:
            is_usual = pl.col(name).is_in([usual, "none"]) if name == "optimizer" else pl.col(name) == usual
            usual_cells = cells.filter(is_usual)
            cells = usual_cells if usual_cells.height else cells
    rows: list[dict[str, Any]] = []
    for cell in cells.iter_rows(named=True):
        batch = cell.get("batch")
        common = {"model": str(cell["size"]), "context": cell["context"], "mode": cell["mode"], "batch": batch}
        is_cell = pl.col("cell") == cell["cell"]
        samples = measurements.samples.filter(is_cell).select("of", "index", "time_ns").rows()
        medians = [("wall", cell["latency_ns"]), *measurements.phases.filter(is_cell).select("phase", "time_ns").rows()]
        for of, index, time_ns in samples:
            rows += [
                {**common, "phase": phase, "statistic": "sample", "index": index, "time_ns": time_ns}
                for phase in _phases_of(of, cell["mode"])
            ]
        for of, time_ns in medians:
            if time_ns is None or any(sampled == of for sampled, _, _ in samples):
                continue
            rows += [
                {**common, "phase": phase, "statistic": "median", "samples": cell["samples"], "time_ns": round(time_ns)}
                for phase in _phases_of(of, cell["mode"])
            ]
    return pl.DataFrame(rows, schema=TIMINGS.schema, orient="row")


def _phases_of(of: str, mode: str) -> tuple[str, ...]:
    """The phases of a time of the benchmark: the whole step, which in forward mode is the forward pass, too."""
    if of == "wall":
        return ("forward", "step") if mode == "forward" else ("step",)
    phase = of.partition("_")[0]
    return (phase,) if phase in TIMING_PHASES and mode != "forward" else ()


class Timings(Reader[pl.DataFrame]):
    """Any table of times written by hand or by a script."""

    kinds = frozenset({Kind.TEXT})

    def sniff(self, head: bytes) -> bool:  # any other table may look like one
        return False

    def read(self, file: Input, options: ReadOptions) -> pl.DataFrame:
        return _timings(file.path, file.known_as)

    def scrub(self, file: Input, copy: Path) -> Removed:
        return _copy(file, copy)


def _rows(path: Path, source: Path) -> tuple[str, list[str], list[list[str]]]:
    """The separator, the titles and the lines of a table."""
    try:
        text = document_bytes(path, source).decode("utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        header, *lines = list(csv.reader(StringIO(text, newline=""), delimiter=separator)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnreadableInputError(source, f"cannot be read as CSV ({type(error).__name__})", _ADVICE) from error
    return separator, header, lines


def _timings(path: Path, source: Path) -> pl.DataFrame:
    _, header, lines = _rows(path, source)
    return _parse_table(source, header, lines)


def _parse_table(source: Path, header: list[str], lines: list[list[str]]) -> pl.DataFrame:
    columns, times = _columns(source, header)
    rows: list[dict[str, Any]] = []
    stated: dict[tuple[Any, ...], int] = {}
    for number, line in enumerate(lines, start=2):
        if not any(field.strip() for field in line):
            continue
        fields = dict(zip(header, (field.strip() for field in line), strict=False))
        for row in _times(source, number, fields, columns, times):
            key = tuple(row[name] for name in ("model", "context", "mode", "batch", "phase", "statistic"))
            if row["statistic"] != "sample" and stated.setdefault(key, row["time_ns"]) != row["time_ns"]:
                what = f"{row['statistic']} of {row['phase']} for {row['model']} at {row['context']}"
                raise UnreadableInputError(source, f"line {number} states a second {what}", "Keep one of them")
            rows.append(row)
    return pl.DataFrame(rows, schema=TIMINGS.schema, orient="row")


def _columns(source: Path, header: list[str]) -> tuple[dict[str, str], list[_TimeColumn]]:
    columns: dict[str, str] = {}
    times: list[_TimeColumn] = []
    for title in header:
        words = words_of(title)
        column_name = next((column_name for column_name, titles in _COLUMNS.items() if " ".join(words) in titles), None)
        if column_name is not None:
            columns.setdefault(column_name, title)
        elif (time := _time_column(source, title, words)) is not None:
            times.append(time)
    missing = [column_name for column_name in ("model", "context") if column_name not in columns]
    if missing or not times:
        lacking = " and no ".join([*missing, *([] if times else ["time with a unit"])])
        raise UnreadableInputError(source, f"no {lacking} among its columns ({', '.join(header)})", _ADVICE)
    return columns, times


def _time_column(source: Path, title: str, words: list[str]) -> _TimeColumn | None:
    phases = [_PHASE_WORDS[word] for word in words if word in _PHASE_WORDS]
    statistics = [STATISTIC_WORDS[word] for word in words if word in STATISTIC_WORDS]
    units = [UNITS_NS[word] for word in words if word in UNITS_NS]
    known = {*_PHASE_WORDS, *STATISTIC_WORDS, *UNITS_NS, *FILLERS}
    if not words or any(word not in known for word in words) or not (phases or statistics or units):
        return None
    # `forward_step_ms`: the step is the unit of repetition, the forward pass was timed.
    distinct = [phase for phase in dict.fromkeys(phases) if phase != "step"] or phases[:1]
    if len(distinct) > 1 or len(statistics) > 1 or len(units) > 1:
        return None
    if not units:
        raise UnreadableInputError(
            source,
            f"column {title!r} is a time without a unit",
            f"Call it {title}_s, {title}_ms, {title}_us or {title}_ns",
        )
    return _TimeColumn(title, next(iter(distinct), None), next(iter(statistics), "sample"), units[0])


def _times(
    source: Path, line: int, fields: dict[str, str], columns: dict[str, str], times: list[_TimeColumn]
) -> list[dict[str, Any]]:
    """The times of one line, each with the settings of the line; cells without a measurement are left out."""

    def whole(what: str) -> int | None:
        title = columns.get(what)
        text = fields.get(title, "").lower() if title is not None else ""
        if title is None or text in _NO_MEASUREMENT:
            return None
        return int(_number(source, line, title, re.sub(r"^(?:ctx|seq|bs)_?", "", text)))

    context = whole("context")
    if context is None:
        raise UnreadableInputError(source, f"line {line} has no context length", _ADVICE)
    mode = fields.get(columns["mode"], "") or None if "mode" in columns else None
    mode_phase = _phase_of_mode(mode)
    if mode_phase not in ("forward", "step"):  # the row is a phase of any kind of step
        mode = None
    common = {"model": fields.get(columns["model"], ""), "context": context, "mode": mode, "batch": whole("batch")}
    rows = []
    for time in times:
        text = fields.get(time.title, "")
        if text.lower() in _NO_MEASUREMENT:
            continue
        time_ns = _number(source, line, time.title, text, _GREATEST // time.factor) * time.factor
        rows.append(
            {
                **common,
                "phase": time.phase or mode_phase,
                "statistic": time.statistic,
                "index": whole("index"),
                "samples": whole("samples"),
                "time_ns": int(time_ns.to_integral_value()),
            }
        )
    return rows


def _phase_of_mode(mode: str | None) -> str:
    """The phase of a time without one: the phase named by the kind of step, else the whole step."""
    words = [_PHASE_WORDS[word] for word in re.findall(r"[a-z]+", (mode or "").lower()) if word in _PHASE_WORDS]
    if (mode or "").lower() == "inference":
        return "forward"
    return words[0] if len(words) == 1 else "step"


def _number(source: Path, line: int, title: str, text: str, limit: int = _GREATEST) -> Decimal:
    number = Decimal(text if NUMBER.fullmatch(text) else "NaN")
    if not number.is_finite() or not 0 <= number < limit:
        raise UnreadableInputError(
            source, f"line {line}, column {title!r}: {text!r} is not a number", "Correct it, or leave the field empty"
        )
    return number


#: Titles of columns with texts that describe the measurement.
_TEXT_COLUMNS = re.compile(
    r"model|size|model size|model name|mode|kind|keep|execution|dtype|precision|optimizer|input size"
)
_NUMBER = re.compile(r"(?:(?:ctx|seq|bs)_?)?[-+]?[\d.]*\d\.?(?:e[-+]?\d+)?|nan|n/?a|none|null|oom|[-–]|", re.IGNORECASE)


def _copy(file: Input, copy: Path) -> Removed:
    """Writes a copy with the columns of numbers and of known texts, these cleaned; returns what was removed."""
    _timings(file.path, file.known_as)  # refuses a file without timings
    separator, header, lines = _rows(file.path, file.known_as)
    from warplens.readers.scrubbing import Removed, refuse_remains
    from warplens.secrets import Cleaner, Secrets

    secrets = Secrets()
    for cell in (cell for line in lines for cell in line):
        secrets.add_home_owners(cell.encode())
    cleaner = Cleaner(secrets)
    kept, removed = [], Counter[str]()
    for at, title in enumerate(header):
        cells = [line[at].strip() for line in lines if at < len(line)]
        words = " ".join(re.findall(r"[a-z0-9]+", title.lower()))
        if all(_NUMBER.fullmatch(cell) for cell in cells) or _TEXT_COLUMNS.fullmatch(words):
            kept.append(at)
        else:
            removed["column"] += len(cells)
    with copy.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target, delimiter=separator, lineterminator="\n")
        for line in (header, *lines):
            writer.writerow([cleaner.text("cell", line[at]) for at in kept if at < len(line)])
    refuse_remains(copy.read_bytes(), secrets, file.known_as)
    return Removed.of(cleaner, ("cells of columns", "other lines"), +removed, {})
