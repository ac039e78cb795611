"""Unattended runs: tasks, each done by one process, the loop that does them, whatever ends or fails, and its ledger."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from statistics import fmean
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from warplens._version import __version__
from warplens.errors import UnreadableInputError, UsageError
from warplens.report.text import span
from warplens.workloads.registry import write_measurements

if TYPE_CHECKING:
    from pathlib import Path


#: What programs say when memory is at its end: PyTorch, the CUDA runtime, C++, the system.
_LACK_OF_MEMORY: Final = re.compile(r"out of memory|OutOfMemory|bad_alloc|annot allocate memory|MemoryError", re.I)

# The folders of an absolute path; they carry user names.
_FOLDERS: Final = re.compile(r"(?<![\w.:/])/(?:[^\s/'\",;]+/)+(?=[^\s/])")


def failure_status(lines: Iterable[str]) -> str:
    """The status of a cell whose process ended badly, by its last lines: `out-of-memory` or `failed`."""
    return "out-of-memory" if any(_LACK_OF_MEMORY.search(line) for line in lines) else "failed"


def how_it_ended(code: int, lines: Iterable[str]) -> str:
    """One line on a process that ended badly."""
    said = list(lines)
    last = f": {without_folders(said[-1])}" if said else ""
    if code >= 0:
        return f"the process ended with code {code}{last}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return f"the process was killed (SIGKILL), as the system does when its memory runs out{last}"
    return f"the process was killed ({name}){last}"


def without_folders(text: str) -> str:
    """The text as one line, with the bare names of files: folders carry the names of people."""
    return _FOLDERS.sub("", " ".join(text.split()))


def command_line(*words: str, **options: Any) -> str:
    """The command that asks for the same, without folders: each option once a value, those without one left out."""
    said = list(words)
    for name, given in options.items():
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and value is not False:
                said += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return without_folders(shlex.join(said))


def end_group(process: subprocess.Popen[Any], grace_s: float = 0.0) -> None:
    """End a process that leads a group, and the group; first by asking, where there is time for that."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (getattr(signal, "SIGKILL", signal.SIGTERM), None)):
        if process.poll() is None and patience_s != 0:
            with suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, number)
                else:  # without process groups, what the process has started is out of reach
                    process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)


#: What became of a task, as the ledger holds it: `records` of cells, or what one run of a command gave.
Result = Mapping[str, Any]

#: Lines of a program's output that are kept, to be shown where it fails.
TAIL: Final = 12

#: What a cell may end as that another try could mend.
FAILURES = ("out-of-memory", "failed")


@dataclass(frozen=True)
class Task:
    """The smallest piece of a run: either done or not."""

    key: str  #: unique in the run, and readable: `input_size=224 batch=1`
    #: settings of the cells that it measures, as JSON has them; in turns, if the run says so
    cells: tuple[Mapping[str, Any], ...] = ()
    group: str | None = None  #: tasks of one group are one cell; once one of them has failed, the others are left out
    command: tuple[str, ...] = ()  #: instead of cells: the words of a command to run

    def description(self) -> dict[str, Any]:
        """What makes it this task, as JSON: two of the same description are interchangeable."""
        found: dict[str, Any] = {"key": self.key, "cells": [dict(cell) for cell in self.cells]}
        return found | ({"command": list(self.command)} if self.command else {})


#: Does one task. Failures of what is measured are results; a UsageError says that nothing of the run can be done (no
#: PyTorch, no such device).
Doing: TypeAlias = "Callable[[Task], Result]"


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; changes nothing of what is measured."""

    one_process: bool = False  #: one process for all tasks, as long as nothing fails
    timeout_s: float | None = None  #: most time for a task
    fresh: bool = False  #: forget what an earlier run has done
    retry: bool = False  #: do what has failed once more


class Run(Protocol):
    """What to measure, and the measurements file that it becomes."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """In the order in which they are done."""
        ...

    def description(self) -> dict[str, Any]:
        """What a ledger must agree with to be gone on with."""
        ...

    def doing(self, options: RunOptions, done: Mapping[str, Result]) -> AbstractContextManager[Doing]:
        """What does the tasks; `done` are results of an earlier try. Its end ends every process that is still there."""
        ...

    def summary(self, result: Result) -> str:
        """A result in few words: `3.07 ms, 3.40 ms`."""
        ...

    def content(self, results: Mapping[str, Result]) -> Mapping[str, Any] | None:
        """The measurements file as far as tasks are done; None where that is not far enough for any cell."""
        ...

    def preview(self, waiting: Sequence[Task], options: RunOptions) -> tuple[list[str], str]:
        """What would be done, in lines; and a line on how long that takes, while no task has been done."""
        ...


def failures(result: Result) -> list[str]:
    """The statuses in a result that say that something went wrong."""
    statuses = [record["status"] for record in result.get("records", ())] + [result.get("status", "measured")]
    return [status for status in statuses if status in FAILURES]


def ledger_of(output: Path) -> Path:
    """Where the ledger of a measurements file is: beside it, `sweep.json` → `sweep.ledger.jsonl`."""
    return output.with_name(f"{output.stem}.ledger.jsonl")


def measure(run: Run, output: Path, options: RunOptions, log: Callable[[str], None]) -> None:
    """Measure what is not measured yet, and write the measurements file.

    Args:
        output: the measurements file; the ledger is beside it.
        log: gets lines for people.

    Raises:
        UsageError: the ledger belongs to another plan or machine, or nothing can be measured here.
        KeyboardInterrupt: it was ended; what is done is in both files.
    """
    with Ledger(ledger_of(output), run.description(), fresh=options.fresh) as ledger:

        def update() -> None:
            if (content := run.content(ledger.results)) is not None:
                write_measurements(output, content)

        with run.doing(options, ledger.results) as do:
            run_tasks(run.tasks, ledger, do, log=log, describe=run.summary, update=update, retry=options.retry)


def preview(run: Run, output: Path, options: RunOptions) -> list[str]:
    """What a run would do, for people: its tasks, how many, and about how long."""
    waiting, seconds = list(run.tasks), list[float]()
    path = ledger_of(output)
    if path.is_file() and not options.fresh:
        with Ledger(path, run.description()) as ledger:
            waiting, seconds = to_do(run.tasks, ledger, retry=options.retry), list(ledger.seconds.values())
    lines, unknown = run.preview(waiting, options)
    if waiting:
        lines.append(f"about {span(fmean(seconds) * len(waiting))}, as the others took" if seconds else unknown)
    return lines


#: The output is brought up to date no more often than this, in seconds: it holds every repetition of every cell.
_UPDATE_S: Final = 5.0


def run_tasks(
    tasks: Sequence[Task],
    ledger: Ledger,
    do: Doing,
    *,
    log: Callable[[str], None],
    describe: Callable[[Result], str],
    update: Callable[[], None],
    retry: bool = False,
) -> None:
    """Do what the ledger does not yet have.

    Args:
        tasks: in the order in which they are done.
        do: does one.
        log: gets a line for people after each task.
        update: brings the output up to date with the ledger; also called at the end, and when interrupted.
        retry: do what has failed once more.

    Raises:
        UsageError: nothing can be measured here.
        KeyboardInterrupt: somebody wants it to end (Ctrl-C, SIGTERM). What is done is in the ledger and the output.
    """
    waiting = to_do(tasks, ledger, retry=retry)
    done = len(tasks) - len(waiting)
    if done:
        log(f"{done} of {len(tasks)} are done already")
    began = updated = time.monotonic()
    given_up: set[str | None] = set()
    try:
        with _ended_like_by_ctrl_c():
            for position, task in enumerate(waiting):
                done += 1
                if task.group in given_up:
                    continue
                start = time.monotonic()
                result = do(task)
                now = time.monotonic()
                ledger.add(task.key, result, now - start)
                if task.group is not None and failures(result):
                    given_up.add(task.group)
                following = sum(other.group not in given_up for other in waiting[position + 1 :])
                left = time_left(list(ledger.seconds.values()), following)
                log(f"[{done}/{len(tasks)}] {task.key}: {describe(result)} · {span(now - start)}{left}")
                if now - updated > _UPDATE_S:
                    update()
                    updated = time.monotonic()
        log(f"done, in {span(time.monotonic() - began)}" if waiting else "nothing was left to do")
    finally:
        update()


def to_do(tasks: Sequence[Task], ledger: Ledger, *, retry: bool = False) -> list[Task]:
    """The tasks that are not done, without those of a cell that has failed.

    With `retry`, failures count as not done; then the other tasks of such a cell are to do as well.
    """
    failed = {key for key, result in ledger.results.items() if failures(result)}
    given_up = set() if retry else {task.group for task in tasks if task.group is not None and task.key in failed}
    return [
        task
        for task in tasks
        if task.group not in given_up and (task.key not in ledger.results or (retry and task.key in failed))
    ]


def time_left(seconds: Sequence[float], tasks: int) -> str:
    """An estimate for people from how long tasks took so far; empty if there are none left."""
    if not tasks or not seconds:
        return ""
    return f" · about {span(sum(seconds) / len(seconds) * tasks)} left"


@contextmanager
def _ended_like_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, by which `timeout`, batch systems and containers end programs, raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


LEDGER_SCHEMA: Final = "warplens.ledger/1"

_ADVICE: Final = "Choose another output, or start over with --fresh"


class Ledger:
    """Finished tasks of one plan, by key, in the order in which they were finished; on the disk, a line each.

    The first line describes the plan. A run that was interrupted, by whatever, goes on where it was: each task is on
    the disk before the next one begins; a line that was cut off while it was written is dropped, its task done again.

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

    def __exit__(self, *_: object) -> None:
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
