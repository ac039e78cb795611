"""One case of the readers alone: a changed file is opened and read, its tables are checked and compared with others'.

A hundred times as many of these as of whole commands can be tried in the same time. What is asked of each:

* it is read, or refused in one line; nothing else is raised, and within the same bounds as a command;
* the tables have their columns and types, no event ends before it begins, names are no longer than they may be;
* a database is refused if SQLite's own check of its pages finds damage; otherwise kernels, copies and calls are those
  that Python's `sqlite3` gives;
* of changed but valid traces the kernels, operators and calls are those that Python's `json` gives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import polars as pl

from tests.fuzz.judge import OWN, Ended, TooLongError, memory_folder, place_of, placed, watched
from tests.fuzz.mutators import database, mutated
from tests.fuzz.reference import changed_trace, of_database, of_trace, tables_of
from tests.fuzz.seeds import Seed, one_of, seeds
from warplens.cli import process
from warplens.profile import Trace
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import LONGEST_NAME
from warplens.profile.trace import TABLES
from warplens.readers import EVERYTHING
from warplens.readers.opening import Kind, ReadOptions, kind_of

#: How many of the changed files stay valid, so that what they hold can be compared with what others read.
_VALID = {"sqlite": 0.3, "trace": 0.3}


def made(random: Random) -> tuple[Seed, bytes, str]:
    """A seed, what became of it, and whether it stayed `valid` or may be `damaged`."""
    seed = one_of(read_by_readers(), random)
    if random.random() < _VALID.get(seed.kind, 0):
        if seed.kind == "sqlite":
            return seed, database(seed.content, random, valid=True), "valid"
        return seed, changed_trace(seed.content, random), "valid"
    return seed, mutated(seed.kind, seed.content, random), "damaged"


def read_ended(seed: Seed, content: bytes, state: str) -> Ended:
    """Reads a file and says what is wrong with how that ended."""
    path = placed(seed, content, place() / "case")

    def read() -> str:
        with EVERYTHING.opened(path, None) as (reader, file):
            return _wrong(reader.read(file, ReadOptions()), path, state)

    result = bounded(read, "read", seed)
    if state == "valid" and "damaged" in result.detail:
        return Ended(result.code, "a valid file is called damaged", result.detail)
    return result


def bounded(run: Callable[[], str], what: str, seed: Seed) -> Ended:
    """Carries out what gives the name of a defect or nothing, within the bounds of a case."""
    code, wrong, line = 0, "", ""
    try:
        with watched() as grown:
            wrong = run()
    except TooLongError as error:
        return Ended(None, f"too long: {what} at {place_of(error)}", seed.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        code, text = process._verdict(error)
        line = process.one_line(text)[:300]
        if code != process.UNUSABLE:
            wrong = f"defect {code}: {type(error).__name__} at {place_of(error)}"
    if more := grown():
        return Ended(code, f"memory: {what}", more)
    return Ended(code, wrong, line)


def _wrong(content: object, path: Path, state: str) -> str:
    if isinstance(content, KernelCounters):
        if content.metrics.width and content.metrics.height != content.launches.height:
            return "counters: metrics of other launches"
        return ""
    if not isinstance(content, Trace):
        return ""
    for name, table in TABLES.items():
        frame = table.checked(getattr(content, name))
        if (
            "end_ns" in frame.columns
            and frame.height
            and frame.select((pl.col("end_ns") < pl.col("start_ns")).any()).item()
        ):
            return f"{name}: an end before its begin"
    for name in ("kernels", "ranges"):
        lengths = getattr(content, name)["name"].cast(pl.String).str.len_chars()
        if lengths.len() and lengths.max() > LONGEST_NAME:
            return f"{name}: a name of more than {LONGEST_NAME} characters"
    if content.capture.format == "nsys-sqlite" and kind_of(path) is Kind.SQLITE:  # else it is packed
        expected = of_database(path)
        if isinstance(expected, str):
            return f"read without a word: {expected}"
        return _differences(expected, tables_of(content, expected))
    if state == "valid":
        expected = of_trace(path)
        return _differences(expected, tables_of(content, expected, from_first=True))
    return ""


def _differences(expected: dict[str, list[tuple[object, ...]]], found: dict[str, list[tuple[object, ...]]]) -> str:
    differing = [name for name in expected if expected[name] != found[name]]
    return f"silently wrong: {', '.join(differing)} differ from the reference" if differing else ""


@cache
def read_by_readers() -> tuple[Seed, ...]:
    return tuple(seed for seed in seeds() if any(command.startswith("read ") for command in seed.commands))


@cache
def place() -> Path:
    """A folder in memory where there is one."""
    return Path(tempfile.mkdtemp(prefix=OWN, dir=memory_folder()))
