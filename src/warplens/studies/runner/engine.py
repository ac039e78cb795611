"""Unattended runs: tasks, the loop that executes them despite failures and interruptions, and the ledger of results."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from statistics import fmean
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from warplens._version import __version__
from warplens.errors import UnreadableInputError, UsageError
from warplens.report.text import span
from warplens.workloads.registry import json_text, write_measurements

if TYPE_CHECKING:
    from pathlib import Path


#: Messages of PyTorch, the CUDA runtime, C++ and the system when memory runs out.
_LACK_OF_MEMORY: Final = re.compile(r"out of memory|OutOfMemory|bad_alloc|annot allocate memory|MemoryError", re.I)

#: Last lines of a program's output that tell why it failed.
_TAIL: Final = 12

# The folders of an absolute path, which contain user names.
_FOLDERS: Final = re.compile(r"(?<![\w.:/])/(?:[^\s/'\",;]+/)+(?=[^\s/])")


def ending_of(code: int, output: str) -> dict[str, str]:
    """The `status` (`out-of-memory` or `failed`) and `reason` of a process that failed, by its last lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip()][-_TAIL:]
    status = "out-of-memory" if any(_LACK_OF_MEMORY.search(line) for line in lines) else "failed"
    how = f"ended with code {code}"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        how = f"was killed ({name})"
        how += ", as the system does when its memory runs out" if name == "SIGKILL" else ""
    last = f": {without_folders(lines[-1])}" if lines else ""
    return {"status": status, "reason": f"the process {how}{last}"}


def without_folders(text: str) -> str:
    """The text as one line, with absolute paths reduced to file names, since folders contain user names."""
    return _FOLDERS.sub("", " ".join(text.split()))


def command_line(*words: str, **options: Any) -> str:
    """A shell command without folders. A tuple repeats its option; options that are None or False are left out."""
    command = list(words)
    for name, option in options.items():
        for value in option if isinstance(option, tuple) else (option,):
            if value is not None and value is not False:
                command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return without_folders(shlex.join(command))


def end_group(process: subprocess.Popen[Any], grace_s: float = 0.0) -> None:
    """End a process and the group that it leads: by SIGTERM if there is a grace period, then by SIGKILL."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (getattr(signal, "SIGKILL", signal.SIGTERM), None)):
        if process.poll() is None and patience_s != 0:
            with suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, number)
                else:  # without process groups, its children cannot be reached
                    process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)


#: Result of a task, as stored in the ledger: `records` of cells, or the `times_ns` or `status` of one run of a command.
Result = Mapping[str, Any]

#: Statuses that another try could change.
FAILURES = ("out-of-memory", "failed")


@dataclass(frozen=True)
class Task:
    """The unit of work of a run."""

    key: str  #: unique in the run, and readable: `input_size=224 batch=1`
    #: settings (as JSON) of the cells that it measures; in alternation, if the run has rounds
    cells: tuple[Mapping[str, Any], ...] = ()
    group: str | None = None  #: tasks of one group measure one cell; once one of them fails, the others are skipped
    command: tuple[str, ...] = ()  #: instead of cells: the words of a command to run

    def description(self) -> dict[str, Any]:
        """The identity of the task, as JSON: tasks with equal descriptions are interchangeable."""
        description: dict[str, Any] = {"key": self.key, "cells": [dict(cell) for cell in self.cells]}
        return description | ({"command": list(self.command)} if self.command else {})


#: Executes one task. Failures of the measured program are results; a UsageError means that no task can be executed (no
#: PyTorch, no such device).
Doing: TypeAlias = "Callable[[Task], Result]"


@dataclass(frozen=True)
class RunOptions:
    """Options of execution, without influence on the measurements."""

    one_process: bool = False  #: one process for all tasks, as long as nothing fails
    timeout_s: float | None = None  #: most time for a task
    fresh: bool = False  #: discard the results of an earlier run
    retry: bool = False  #: repeat failed tasks


class Run(Protocol):
    """A plan of measurements, and the conversion of its results to a measurements file."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, in the order of execution."""
        ...

    def description(self) -> dict[str, Any]:
        """The identity of the plan; a ledger is only continued by a run of an equal description."""
        ...

    def doing(self, options: RunOptions, done: Mapping[str, Result]) -> AbstractContextManager[Doing]:
        """Context that provides the function to execute tasks, and ends all its processes on exit.

        `done` are the results of an earlier run.
        """
        ...

    def summary(self, result: Result) -> str:
        """A result in few words: `3.07 ms, 3.40 ms`."""
        ...

    def content(self, results: Mapping[str, Result]) -> Mapping[str, Any] | None:
        """The measurements file of the results so far; None while no cell is complete."""
        ...

    def preview(self, waiting: Sequence[Task], options: RunOptions) -> tuple[list[str], str]:
        """Lines on the tasks, and a line on the duration for the case that no task has been timed."""
        ...


def failures(result: Result) -> list[str]:
    """The statuses of failure in a result."""
    statuses = [record["status"] for record in result.get("records", ())] + [result.get("status", "measured")]
    return [status for status in statuses if status in FAILURES]


def ledger_of(output: Path) -> Path:
    """Path of the ledger of a measurements file: `sweep.json` → `sweep.ledger.jsonl`."""
    return output.with_name(f"{output.stem}.ledger.jsonl")


#: Least time between two updates of the output, in seconds: it holds every repetition of every cell.
_UPDATE_S: Final = 5.0


def measure(run: Run, output: Path, options: RunOptions, log: Callable[[str], None]) -> None:
    """Execute the tasks that are not done yet, and write the measurements file, with the ledger beside it.

    The file is also written at the end and on interruption. `log` receives a line for people after each task.

    Raises:
        UsageError: the ledger belongs to another plan or machine, or nothing can be measured here.
        KeyboardInterrupt: interrupted (Ctrl-C, SIGTERM); both files hold the results so far.
    """
    with (
        Ledger(ledger_of(output), run.description(), fresh=options.fresh) as ledger,
        run.doing(options, ledger.results) as do,
        _sigterm_as_ctrl_c(),
    ):

        def update() -> None:
            if (content := run.content(ledger.results)) is not None:
                write_measurements(output, content)

        waiting = to_do(run.tasks, ledger, retry=options.retry)
        done = len(run.tasks) - len(waiting)
        if done:
            log(f"{done} of {len(run.tasks)} are done already")
        began = updated = time.monotonic()
        failed_groups: set[str | None] = set()
        try:
            for position, task in enumerate(waiting):
                done += 1
                if task.group in failed_groups:
                    continue
                start = time.monotonic()
                result = do(task)
                now = time.monotonic()
                ledger.add(task.key, result, now - start)
                if task.group is not None and failures(result):
                    failed_groups.add(task.group)
                following = sum(other.group not in failed_groups for other in waiting[position + 1 :])
                left = f" · about {span(fmean(ledger.seconds.values()) * following)} left" if following else ""
                took = f"{span(now - start)}{left}"
                log(f"[{done}/{len(run.tasks)}] {task.key}: {run.summary(result)} · {took}")
                if now - updated > _UPDATE_S:
                    update()
                    updated = time.monotonic()
            log(f"done, in {span(time.monotonic() - began)}" if waiting else "nothing was left to do")
        finally:
            update()


def preview(run: Run, output: Path, options: RunOptions) -> list[str]:
    """Lines for people on a run without executing it: its tasks, their number, and the approximate duration."""
    waiting, seconds = list(run.tasks), list[float]()
    path = ledger_of(output)
    if path.is_file() and not options.fresh:
        with Ledger(path, run.description()) as ledger:
            waiting, seconds = to_do(run.tasks, ledger, retry=options.retry), list(ledger.seconds.values())
    lines, unknown = run.preview(waiting, options)
    if waiting:
        lines.append(f"about {span(fmean(seconds) * len(waiting))}, as the others took" if seconds else unknown)
    return lines


def to_do(tasks: Sequence[Task], ledger: Ledger, *, retry: bool = False) -> list[Task]:
    """The tasks without a result, except those in the group of a failed task; with `retry`, also the failed ones."""
    failed = {key for key, result in ledger.results.items() if failures(result)}
    failed_groups = set() if retry else {task.group for task in tasks if task.group is not None and task.key in failed}
    return [
        task
        for task in tasks
        if task.group not in failed_groups and (task.key not in ledger.results or (retry and task.key in failed))
    ]


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Context in which SIGTERM, sent by `timeout`, batch systems and containers, raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set there
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
    """Results of finished tasks of one plan, by key, in the order of completion; a file with one JSON line per task.

    The first line describes the plan. Each result is on the disk before the next task begins, so that an interrupted
    run can be continued; a truncated last line is dropped and its task repeated.

    A context manager that locks the file: a second run at the same time is refused.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open or create a ledger; `fresh` discards the content of an existing file.

        Raises:
            UsageError: it belongs to another plan, or another run is using it.
            UnreadableInputError: it is not a ledger, or is damaged other than at its end.
        """
        self.path = path
        self.results: dict[str, Result] = {}  #: by key of the task
        self.seconds: dict[str, float] = {}  #: duration of each task
        # Converted through JSON (tuples become lists) to compare with a plan read from a file.
        self._plan = json.loads(json_text(plan))
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
        """Reads the entries, or begins a new ledger; a last line that was cut is removed.

        Another plan, or another kind of file, is refused.
        """
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        complete = [line for line in lines[:-1] if line]
        if not complete:
            # A truncated first line may be that of a ledger, or of another kind of file.
            begin = json_text({"schema": LEDGER_SCHEMA})[:-1].encode()
            if not (begin.startswith(lines[-1]) or lines[-1].startswith(begin)):
                raise UnreadableInputError(self.path, "line 1 is not an entry of a ledger", _ADVICE)
            self._file.truncate(0)
            self._append({"schema": LEDGER_SCHEMA, "version": __version__, "plan": self._plan})
            return
        if lines[-1]:
            self._file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        head, *rest = (self._parsed(number, line) for number, line in enumerate(complete, start=1))
        if head.get("schema") != LEDGER_SCHEMA:
            problem = f"its schema is {head.get('schema')!r}, not {LEDGER_SCHEMA}"
            raise UnreadableInputError(self.path, problem, _ADVICE)
        if head.get("plan") != self._plan:
            differences = ", ".join(_differences(head.get("plan") or {}, self._plan))
            raise UsageError(f"{self.path.name}: it belongs to another plan ({differences}). {_ADVICE}")
        for entry in rest:
            self._note(entry)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        entry: Any = None
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
        if not (
            _is_entry(entry) if number > 1 else isinstance(entry, dict) and isinstance(entry.get("plan", {}), dict)
        ):
            raise UnreadableInputError(self.path, f"line {number} is not an entry of a ledger", _ADVICE)
        return dict(entry)

    def _note(self, entry: Mapping[str, Any]) -> None:
        # The latest try of a task counts, also for the order.
        self.results.pop(entry["task"], None)
        self.results[entry["task"]] = entry["result"]
        self.seconds[entry["task"]] = entry["seconds"]

    def add(self, task: str, result: Result, seconds: float) -> None:
        """Record a finished task, synchronously on the disk."""
        entry = {"task": task, "seconds": round(seconds, 3), "result": result}
        self._append(entry)
        self._note(entry)

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(json_text(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _is_entry(entry: Any) -> bool:
    """Whether it has the form of a finished task, with times, a status, or records of cells."""
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
    """The differences of two plans, for people."""
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
