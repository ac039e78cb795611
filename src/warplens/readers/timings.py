"""Times that a program measured itself, from a CSV file: the counterpart of what a profiler saw.

One row a step, or one row a cell with statistics. A column's title says what it holds; words are separated by anything
that is not a letter or digit, upper and lower case are alike, order does not matter:

| column | titles |
|---|---|
| model | `model`, `size`, `model_size`, `model_name` |
| context length | `context`, `ctx`, `context_length`, `ctx_len`, `seq`, `seq_len`, `sequence_length` |
| kind of step | `mode`, `kind` (`forward`, `train`, …); optional |
| batch | `batch`, `batch_size`, `bs`; optional |
| step number | `step`, `index`, `iteration`, `run`; optional |
| number of samples | `n`, `samples`, `count`, `steps`, `iterations`; optional |

Every other title made of these words is a time: a phase (`forward`/`fwd`, `backward`/`bwd`, `optimizer`/`opt`,
`step`/`total`), a statistic (`mean`, `std`, `median`, `min`, `max`; without one: a single measurement) and a unit (`s`,
`ms`, `us`, `ns`): `forward_s`, `fwd_mean_ms`, `std (ms)`. A time without a phase belongs to what the row's kind of step
says. Empty fields, `nan`, `n/a` and `oom` are no measurement. Other columns are ignored.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.readers.limits import document_bytes
from warplens.readers.opening import Asked, Input, Kind, Reader

if TYPE_CHECKING:
    from warplens.readers.scrubbing import Removed

#: What a time may be of.
TIMING_PHASES: Final = ("forward", "backward", "optimizer", "step")

#: What a time may be: one measurement, or a statistic over several.
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
    "context": {"context", "ctx", "context length", "ctx len", "seq", "seq len", "sequence length", "context len"},
    "mode": {"mode", "kind"},
    "batch": {"batch", "batch size", "bs"},
    "index": {"step", "index", "iteration", "run"},
    "samples": {"n", "samples", "count", "steps", "iterations"},
}
_PHASE_WORDS: Final = {
    "forward": "forward", "fwd": "forward", "backward": "backward", "bwd": "backward", "optimizer": "optimizer",
    "optim": "optimizer", "opt": "optimizer", "step": "step", "total": "step",
}  # fmt: skip
_STATISTIC_WORDS: Final = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "median", "p50": "median", "min": "minimum",
    "max": "maximum", "std": "deviation", "stdev": "deviation", "sd": "deviation",
}  # fmt: skip
_UNITS_NS: Final = {
    "s": 10**9, "sec": 10**9, "seconds": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "μs": 10**3, "ns": 1,
}  # fmt: skip
#: Words that say nothing more: `forward_pass_time_ms`, `training_step_s`.
_FILLERS: Final = {"time", "times", "pass", "duration", "elapsed", "latency", "wall", "train", "training", "in"}

_NO_MEASUREMENT: Final = {"", "nan", "n/a", "na", "none", "null", "oom", "-", "–"}

#: Nothing that is counted or timed reaches this, and 64 bits hold it.
_GREATEST: Final = 10**18

_ADVICE = "Give columns such as model, context, mode, step, forward_s, backward_s, optimizer_s, step_s"


class _TimeColumn(NamedTuple):
    title: str
    phase: str | None
    statistic: str
    factor: int


def read_timings(path: Path | str) -> pl.DataFrame:
    """The times in a CSV file (`TIMINGS`), in the order of the file.

    The separator is a comma, a semicolon or a tab. See the module's text for the columns.

    Raises:
        UnreadableInputError: the file cannot be read, lacks model, context or any time, has a time without a unit, or
            holds something that is no number where one is needed.
    """
    source = Path(path)
    return _timings(source, source)


class Timings(Reader[pl.DataFrame]):
    """Any table of times that was written by hand or by a script."""

    kinds = frozenset({Kind.TEXT})

    def sniff(self, head: bytes) -> bool:  # whatever may be such a table may be any other
        return False

    def read(self, file: Input, asked: Asked) -> pl.DataFrame:
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
    columns, times = _columns(source, header)
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=2):
        if not any(field.strip() for field in line):
            continue
        fields = dict(zip(header, (field.strip() for field in line), strict=False))
        rows.extend(_times(source, number, fields, columns, times))
    return pl.DataFrame(rows, schema=TIMINGS.schema, orient="row")


def _columns(source: Path, header: list[str]) -> tuple[dict[str, str], list[_TimeColumn]]:
    columns: dict[str, str] = {}
    times: list[_TimeColumn] = []
    for title in header:
        words = re.findall(r"[a-z0-9µμ]+", title.lower())
        what = next((what for what, titles in _COLUMNS.items() if " ".join(words) in titles), None)
        if what is not None:
            columns.setdefault(what, title)
        elif (time := _time_column(source, title, words)) is not None:
            times.append(time)
    missing = [what for what in ("model", "context") if what not in columns]
    if missing or not times:
        lacking = " and no ".join([*missing, *([] if times else ["time with a unit"])])
        raise UnreadableInputError(source, f"no {lacking} among its columns ({', '.join(header)})", _ADVICE)
    return columns, times


def _time_column(source: Path, title: str, words: list[str]) -> _TimeColumn | None:
    phases = [_PHASE_WORDS[word] for word in words if word in _PHASE_WORDS]
    statistics = [_STATISTIC_WORDS[word] for word in words if word in _STATISTIC_WORDS]
    units = [_UNITS_NS[word] for word in words if word in _UNITS_NS]
    known = {*_PHASE_WORDS, *_STATISTIC_WORDS, *_UNITS_NS, *_FILLERS}
    if not words or any(word not in known for word in words) or not (phases or statistics or units):
        return None
    # `forward_step_ms`: the step is the unit of repetition, the phase is what was timed.
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
    def whole(what: str) -> int | None:
        text = fields.get(columns.get(what, ""), "").lower()
        if text in _NO_MEASUREMENT:
            return None
        return int(_number(source, line, columns[what], re.sub(r"^(?:ctx|seq|bs)_?", "", text)))

    context = whole("context")
    if context is None:
        raise UnreadableInputError(source, f"line {line} has no context length", _ADVICE)
    mode = fields.get(columns.get("mode", ""), "") or None
    common = {"model": fields.get(columns["model"], ""), "context": context, "mode": mode, "batch": whole("batch")}
    rows = []
    for time in times:
        text = fields.get(time.title, "")
        if text.lower() in _NO_MEASUREMENT:
            continue
        spent = _number(source, line, time.title, text, _GREATEST // time.factor) * time.factor
        rows.append(
            {
                **common,
                "phase": time.phase or _timed(mode),
                "statistic": time.statistic,
                "index": whole("index"),
                "samples": whole("samples"),
                "time_ns": int(spent.to_integral_value()),
            }
        )
    return rows


def _timed(mode: str | None) -> str:
    """What a time without a phase is of: the phase that the kind of step names, the whole step for any other."""
    words = [_PHASE_WORDS[word] for word in re.findall(r"[a-z]+", (mode or "").lower()) if word in _PHASE_WORDS]
    return "forward" if words == ["forward"] or (mode or "").lower() == "inference" else "step"


def _number(source: Path, line: int, title: str, text: str, limit: int = _GREATEST) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not 0 <= number < limit:
        raise UnreadableInputError(
            source, f"line {line}, column {title!r}: {text!r} is no number", "Correct it, or leave the field empty"
        )
    return number


# --- A copy that can be shared: numbers, and the texts that say what they are of --------------------------------------

#: Titles of columns whose texts say what was timed.
_TOLD = re.compile(r"model|size|model size|model name|mode|kind|keep|execution|dtype|precision|optimizer|input size")
_NUMBER = re.compile(r"(?:(?:ctx|seq|bs)_?)?[-+]?[\d.]*\d\.?(?:e[-+]?\d+)?|nan|n/?a|none|null|oom|[-–]|", re.IGNORECASE)


def _copy(file: Input, copy: Path) -> Removed:
    _timings(file.path, file.known_as)  # refuses what holds none
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
        if all(_NUMBER.fullmatch(cell) for cell in cells) or _TOLD.fullmatch(words):
            kept.append(at)
        else:
            removed["column"] += len(cells)
    with copy.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target, delimiter=separator, lineterminator="\n")
        for line in (header, *lines):
            writer.writerow([cleaner.written("cell", line[at].encode()).decode() for at in kept if at < len(line)])
    refuse_remains(copy.read_bytes(), secrets, file.known_as)
    return Removed(
        dict(+removed), {}, cleaner.rewritten(), len(secrets.all), ("cells of columns", "other lines"), cleaner.kinds()
    )
