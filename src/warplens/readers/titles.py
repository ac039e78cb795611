"""Titles and nested JSON of hand-written results, mapped to the columns that the readers of tables know.

`tp`, `images/s` and `throughput` are `throughput_per_s`; `mean_time_ms`, `Median (us)` and `elapsed_s` are a latency in
that unit; `batch_size` and `bs` are `batch`. A spread (`std_ms`, `min_time_ms`) is neither a setting nor a latency: it
is left out, and reported. Any other title is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

#: Nanoseconds of a unit of time, as titles write it.
UNITS_NS: Final = {
    "s": 10**9, "sec": 10**9, "secs": 10**9, "seconds": 10**9, "ms": 10**6, "msec": 10**6, "us": 10**3, "µs": 10**3,
    "μs": 10**3, "usec": 10**3, "ns": 1,
}  # fmt: skip
STATISTIC_WORDS: Final = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "median", "p50": "median", "min": "minimum",
    "minimum": "minimum", "max": "maximum", "maximum": "maximum", "std": "deviation", "stdev": "deviation",
    "stddev": "deviation", "sd": "deviation",
}  # fmt: skip
#: Words without further meaning (`forward_pass_time_ms`, `training_step_s`); and those without meaning where phases are
#: not distinguished.
FILLERS: Final = {"time", "times", "pass", "duration", "elapsed", "latency", "wall", "train", "training", "in"}
_STEP_WORDS: Final = {"per", "batch", "iter", "iteration", "step", "total", "forward", "fwd", "inference"}

_RATE: Final = re.compile(
    r"tp|tput|fps|qps|(?:mean |avg )?throughput(?: (?:per s|img s|imgs s|images s|images per s|images sec))?"
    r"|(?:im|img|imgs|image|images|sample|samples|item|items|sequences)(?: per)? (?:s|sec|second)"
)
_BATCH: Final = re.compile(r"bs|batch ?size|batchsize")

_KNOWN: Final = ("throughput_per_s", "batch")

#: Keys that hold the rows of a document.
_ROWS: Final = ("rows", "results", "benchmarks", "measurements", "data", "records", "runs")

#: Statistics that become the latency column; the first one present is used.
_CENTRES: Final = ("median", "mean", "")


class Reading(NamedTuple):
    """Interpretation of the titles of a table."""

    columns: dict[str, str | None]  #: the title of the file → the column that it became; None where it was left out

    @property
    def notes(self) -> tuple[str, ...]:
        """Renamed and dropped titles, a phrase each."""
        renamed = [f"{old} as {new}" for old, new in self.columns.items() if new is not None and new != old]
        dropped = [old for old, new in self.columns.items() if new is None]
        return (*renamed, *([f"{', '.join(dropped)} left out"] if dropped else []))


def words_of(title: str) -> list[str]:
    """The words of a title, in lower case."""
    return re.findall(r"[a-z0-9µμ]+", title.lower())


def read_titles(titles: Sequence[str]) -> Reading:
    """The column for each title of a table of results.

    Of several times (`mean_ms`, `median_ms`) the median is used, else the mean; the others, and every spread, are left
    out, and so is a second rate or batch. A title that is a known column is kept.
    """
    columns: dict[str, str | None] = {title: title for title in titles}
    used = set(titles)
    times: dict[str, tuple[str, str]] = {}
    for title in titles:
        words = words_of(title)
        text = " ".join(words)
        if re.fullmatch(r"latency_(?:s|ms|us|ns)", title):
            times[title] = ("", title)
        elif title not in _KNOWN and (column := _column(text)) is not None:
            columns[title] = None if column in used else column
            used.add(column)
        elif (time := _time(words)) is not None:
            times[title] = time
    chosen = next((title for centre in _CENTRES for title in times if times[title][0] == centre), None)
    for title, (_, column) in times.items():
        columns[title] = column if title in (chosen, column) else None
    return Reading(columns)


def _column(text: str) -> str | None:
    """The column that a title's words are a synonym of."""
    if _RATE.fullmatch(text):
        return "throughput_per_s"
    return "batch" if _BATCH.fullmatch(text) else None


def _time(words: list[str]) -> tuple[str, str] | None:
    """Statistic and column of a title that is a time with a unit; None for any other."""
    units = [word for word in words if word in UNITS_NS]
    statistics = [STATISTIC_WORDS[word] for word in words if word in STATISTIC_WORDS]
    rest = set(words) - UNITS_NS.keys() - STATISTIC_WORDS.keys()
    if len(units) != 1 or len(statistics) > 1 or not rest <= FILLERS | _STEP_WORDS:
        return None
    unit = {10**9: "s", 10**6: "ms", 10**3: "us", 1: "ns"}[UNITS_NS[units[0]]]
    return (statistics[0] if statistics else ""), f"latency_{unit}"


def flattened(document: Any) -> list[dict[str, Any]] | None:
    """The rows of a JSON document of results with any nesting; None if there are none.

    Members of objects inside a row become columns under their own keys. A key above a row that is not a word for
    results identifies the row (`{"flash": {"2048": {"mean_ms": 1.2}}}`): it becomes the column `name`, or `size` where
    all such keys are whole numbers.
    """
    rows = list(_rows(document, {}))
    return rows or None


def _rows(value: Any, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows in nested JSON, each with the facts and names around it."""
    if isinstance(value, list):
        for item in value:
            yield from _rows(item, known)
        return
    if not isinstance(value, dict):
        return
    plain = {name: item for name, item in value.items() if not isinstance(item, dict) and not _is_rows(item)}
    nested = {name: item for name, item in value.items() if name not in plain}
    is_row = any(_is_result(name) for name in plain)
    inside = [item for item in nested.values() if isinstance(item, dict)]
    if is_row or (any(_is_result(name) for item in inside for name in item) and _is_one_row(plain, nested)):
        row = {**known, **plain}
        for item in inside:
            row.update({name: part for name, part in item.items() if not isinstance(part, dict | list)})
        yield row
        return
    facts = {name: item for name, item in plain.items() if isinstance(item, str | int | float)}
    for name, item in nested.items():
        if name in _ROWS or _is_rows(item):
            label = {} if name in _ROWS else {"name": name}
            yield from _rows(item, {**known, **facts, **label})
        else:
            key = "size" if all(other.isdigit() for other in nested) else "name"
            key = key if key not in known else f"{key}_{len(known)}"
            yield from _rows(item, {**known, **facts, key: int(name) if name.isdigit() else name})


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _is_result(title: str) -> bool:
    words = words_of(title)
    return title == "throughput_per_s" or _RATE.fullmatch(" ".join(words)) is not None or _time(words) is not None


def _is_one_row(plain: Mapping[str, Any], nested: Mapping[str, Any]) -> bool:
    """Whether inner objects are parts of one row (`{"config": {…}, "timing": {…}}`), not separate rows."""
    results = [item for item in nested.values() if isinstance(item, dict) and any(map(_is_result, item))]
    return len(results) == 1 and (bool(plain) or len(nested) > 1)
