"""The ledger of a run: what is done, a line for each task, on the disk before the next one begins.

The first line describes the plan; each further line is a finished task. A run that was interrupted, by whatever, goes
on where it was. A line that was cut off while it was written is dropped, and its task is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from warplens._version import __version__
from warplens.errors import UnreadableInputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from warplens.studies.runner.engine import Result


LEDGER_SCHEMA: Final = "warplens.ledger/1"

_ADVICE: Final = "Choose another output, or start over with --fresh"


class Ledger:
    """Finished tasks of one plan, by key, in the order in which they were finished.

    Used as a context manager: two runs at once would undo each other, so that the second is refused.

    Attributes:
        seconds: how long each took.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open a ledger, or begin one.

        Args:
            plan: describes the run; only a ledger of an equal plan is gone on with.

        Raises:
            UsageError: it belongs to another plan, or another run is using it.
            UnreadableInputError: it is no ledger, or damaged other than at its end.
        """
        self.path = path
        self.results: dict[str, Result] = {}
        self.seconds: dict[str, float] = {}
        # Through JSON, as a plan that is read back has been: it knows no tuples.
        self._plan = json.loads(_text(plan))
        self._file: IO[bytes] = path.open("a+b")
        try:
            _lock(self._file, path)
            if fresh:
                self._file.truncate(0)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        complete = [line for line in lines[:-1] if line]
        if not complete:
            if not _may_begin_a_ledger(lines[-1]):
                raise UnreadableInputError(self.path, "line 1 is not an entry of a ledger", _ADVICE)
            self._file.truncate(0)
            self._append({"schema": LEDGER_SCHEMA, "version": __version__, "plan": self._plan})
            return
        if lines[-1]:
            self._file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        head, *rest = (self._parsed(number, line) for number, line in enumerate(complete, start=1))
        if head.get("schema") != LEDGER_SCHEMA:
            found = f"its schema is {head.get('schema')!r}, not {LEDGER_SCHEMA}"
            raise UnreadableInputError(self.path, found, _ADVICE)
        if head.get("plan") != self._plan:
            differences = ", ".join(_differences(head.get("plan") or {}, self._plan))
            raise UsageError(
                f"{self.path.name}: it belongs to another plan ({differences}). Choose another output, or start over "
                "with --fresh"
            )
        for entry in rest:
            self._note(entry)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnreadableInputError(self.path, f"line {number} is not an entry of a ledger", _ADVICE) from error
        if not (
            _is_entry(entry) if number > 1 else isinstance(entry, dict) and isinstance(entry.get("plan", {}), dict)
        ):
            raise UnreadableInputError(self.path, f"line {number} is not an entry of a ledger", _ADVICE)
        return dict(entry)

    def _note(self, entry: Mapping[str, Any]) -> None:
        # The latest try of a task is the one that counts, also for the order.
        self.results.pop(entry["task"], None)
        self.results[entry["task"]] = entry["result"]
        self.seconds[entry["task"]] = entry["seconds"]

    def add(self, task: str, result: Result, seconds: float) -> None:
        """Write a finished task down. It is on the disk when this returns."""
        entry = {"task": task, "seconds": round(seconds, 3), "result": result}
        self._append(entry)
        self._note(entry)

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(_text(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _may_begin_a_ledger(cut: bytes) -> bool:
    """Whether a first line that was cut off is one of a ledger, and not of a file of another kind."""
    head = _text({"schema": LEDGER_SCHEMA})[:-1].encode()
    return head.startswith(cut) or cut.startswith(head)


def _is_entry(entry: Any) -> bool:
    """Whether it has the form of a finished task: times, a status, or records of cells."""
    if not isinstance(entry, dict) or not isinstance(entry.get("task"), str):
        return False
    seconds, result = entry.get("seconds"), entry.get("result")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isinstance(result, dict):
        return False
    times, records = result.get("times_ns", [1]), result.get("records", [])
    return (
        isinstance(times, list)
        and bool(times)
        and all(isinstance(time_ns, int) and time_ns > 0 for time_ns in times)
        and isinstance(records, list)
        and all(isinstance(record, dict) and "status" in record for record in records)
    )


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UsageError(f"{path.name}: another run is writing to it. Wait for it, or choose another output") from error


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What two plans differ in, for people."""
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "tasks" and isinstance(old or [], list):
            kept = sum(task in (old or ()) for task in new or ())
            yield f"{len(old or ())} tasks then, {len(new or ())} now, {kept} the same"
        elif isinstance(old, dict) and isinstance(new, dict):
            changed = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
            yield ", ".join(f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed)
        else:
            yield f"{name} was {old}, is {new}"
