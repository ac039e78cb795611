"""A sweep over arbitrary commands: one process per repetition, baseline and variant in random order in each round.

A repetition is timed from outside, or by times that the program prints. Processes are independent of each other, so
each is a block of its own, however many times it prints.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from statistics import median
from typing import Any, Final

from warplens.compare import SIDES
from warplens.errors import UsageError
from warplens.studies.runner.engine import (
    FAILURES,
    Doing,
    Result,
    RunOptions,
    Task,
    command_line,
    end_group,
    ending_of,
)
from warplens.studies.runner.workloadsweep import key_of, pairs_from, sweep_head
from warplens.workloads.cells import combinations_of, plain_environment
from warplens.workloads.registry import Plan, document
from warplens.workloads.samples import summary

#: Rounds at a point. The 95 % interval of the median of ten excludes the fastest and the slowest.
DEFAULT_REPEATS: Final = 10

#: Nanoseconds in a unit that programs print.
TIME_UNITS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


#: A year: a larger printed number is not a time, and might overflow the file's 64-bit nanoseconds.
_MOST_NS: Final = 365 * 24 * 3600 * 10**9


@dataclass(frozen=True)
class CommandSweep:
    """A sweep over two commands."""

    axes: tuple[str, ...]  #: texts `name=value,value`
    #: baseline, variant: commands in which `{name}` stands for the value of an axis
    baseline: str
    variant: str
    repeats: int = DEFAULT_REPEATS  #: rounds at each point
    #: pattern with one group, the time that the program prints; None: the wall time of the process
    time_from: str | None = None
    time_unit: str = "ms"  #: of printed times, one of `TIME_UNITS`
    items: str | None = None  #: axis that holds the number of items of a step; None for one item

    def __post_init__(self) -> None:
        """Refuses options that are malformed or do not fit to the commands."""
        if self.repeats < 1:
            raise UsageError("--repeats must be at least 1")
        if self.time_unit not in TIME_UNITS:
            raise UsageError(f"--time-unit is one of {', '.join(TIME_UNITS)}, not {self.time_unit!r}")
        try:
            groups = re.compile(self.time_from or "()").groups
        except re.error as error:
            raise UsageError(f"--time-from {self.time_from!r} is not a regular expression: {error}") from error
        if groups != 1:
            raise UsageError(f"--time-from {self.time_from!r} must have one group, the time: 'step_ms=([0-9.]+)'")
        axes = pairs_from("--axis", self.axes)
        if "side" in axes:
            raise UsageError("an axis cannot be named side, which is what tells baseline and variant apart")
        for name in axes:
            if not any(f"{{{name}}}" in command for command in (self.baseline, self.variant)):
                raise UsageError(f"--axis {name} is in neither command: write {{{name}}} where its value goes")
        counts = self.grid().get(self.items, [""]) if self.items is not None else []
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise UsageError(f"--items {self.items} is not an axis of whole numbers above zero")

    def grid(self) -> dict[str, list[Any]]:
        """The values of each axis, as numbers if all of an axis are numbers."""
        return {name: _numbers(values) for name, values in pairs_from("--axis", self.axes).items()}

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """The machine."""
        return plain_environment()

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """A task for each repetition: point by point, round by round, the sides in random order."""
        texts, draw = pairs_from("--axis", self.axes), random.Random(0)  # noqa: S311  no secret
        tasks: list[Task] = []
        for point in combinations_of(texts):
            order = list(SIDES)
            words = {side: self._words(side, point) for side in SIDES}
            name = key_of(point)
            for number in range(1, self.repeats + 1):
                draw.shuffle(order)
                tasks += [Task(f"{name} {side} {number}", (), f"{name} {side}", words[side]) for side in order]
        return tuple(tasks)

    def _words(self, side: str, point: Mapping[str, str]) -> tuple[str, ...]:
        template: str = getattr(self, side)
        try:
            words = shlex.split(template)
        except ValueError as error:
            raise UsageError(f"--{side}: {error}") from error
        if not words:
            raise UsageError(f"--{side} is empty")
        for name, value in point.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return tuple(words)

    def description(self) -> dict[str, Any]:
        """The identity of the plan, see `Run`."""
        return {
            "commands": asdict(self),
            "machine": self.environment["device"]["name"],
            "tasks": [task.description() for task in self.tasks],
        }

    def command(self) -> str:
        """The `warplens` command that requests this sweep, without folders."""
        return command_line(
            "warplens", "sweep", "run", axis=self.axes, baseline=self.baseline, variant=self.variant,
            repeats=self.repeats, time_from=self.time_from or None,
            time_unit=self.time_unit if self.time_from else None, items=self.items or None,
        )  # fmt: skip

    @contextmanager
    def doing(self, options: RunOptions, done: Mapping[str, Result]) -> Iterator[Doing]:
        """Executes each task in a process."""
        yield partial(run_command, self, options.timeout_s)

    def summary(self, result: Result) -> str:
        """The median of the times of one run, or its status and reason."""
        if "status" in result:
            return f"{result['status']} ({result['reason']})"
        return f"{median(result['times_ns']) / 1e6:.4g} ms"

    def content(self, results: Mapping[str, Result]) -> Mapping[str, Any] | None:
        """The measurements file; None while no side has a complete round."""
        records, grid = [], self.grid()
        texts = combinations_of(pairs_from("--axis", self.axes))
        for point, written in zip(combinations_of(grid), texts, strict=True):
            records += _point(self, point, key_of(written), results)
        if not records:
            return None
        sizes = [len(record["samples"]["wall_ns"]) // record["rounds"] for record in records if "samples" in record]
        plan = Plan.exactly(max(sizes, default=1), warmup_steps=0)
        head = sweep_head(grid, *({"side": side} for side in SIDES))
        return document("command", plan, self.environment, records, self.command(), head)

    def preview(self, waiting: Sequence[Task], options: RunOptions) -> tuple[list[str], str]:
        """A line for each command, then the totals."""
        commands = {task.group: task.command for task in self.tasks}
        lines = [f"{group}: {shlex.join(words)}" for group, words in commands.items()]
        runs = f"{len(self.tasks)} runs, {len(waiting)} to do"
        lines.append(f"{len(commands)} cells × {self.repeats} repetitions = {runs}")
        return lines, "how long that takes is known after the first run"


def _numbers(values: Sequence[str]) -> list[Any]:
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(value) for value in values]
    return list(values)


def run_command(sweep: CommandSweep, timeout_s: float | None, task: Task) -> Result:
    """Runs the task's command in a process group of its own: `times_ns`, or `status` and `reason` of a failure.

    Raises:
        UsageError: there is no such program.
    """
    start = time.perf_counter_ns()
    try:
        process = subprocess.Popen(  # noqa: S603  a list of words, no shell
            task.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{os.path.basename(task.command[0])}: {error.strerror}") from error  # noqa: PTH119
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
            wall_ns = time.perf_counter_ns() - start
        except subprocess.TimeoutExpired:
            return {"status": "failed", "reason": f"it took longer than {timeout_s:g} s, and was ended"}
        finally:
            end_group(process)
    if code := process.returncode:
        return ending_of(code, output)
    return {"times_ns": [wall_ns]} if sweep.time_from is None else _printed(sweep, sweep.time_from, output)


def _printed(sweep: CommandSweep, pattern: str, output: str) -> Result:
    """The times in the output of a command."""
    try:
        numbers = [float(text) for text in re.findall(pattern, output)]
    except ValueError as error:
        return {"status": "failed", "reason": f"what {pattern} matches is not a number: {error}"}
    times_ns = [number * TIME_UNITS[sweep.time_unit] for number in numbers]
    if not times_ns:
        return {"status": "failed", "reason": f"its output has no match for {pattern}"}
    # The comparison is false for `nan` as well.
    if not all(1 <= time_ns < _MOST_NS for time_ns in times_ns):
        shown = next(number for number, time_ns in zip(numbers, times_ns, strict=True) if not 1 <= time_ns < _MOST_NS)
        reason = f"what it printed holds a time that is not above zero, or can be none: {shown:g} ({pattern})"
        return {"status": "failed", "reason": reason}
    return {"times_ns": [round(time_ns) for time_ns in times_ns]}


def _point(
    sweep: CommandSweep, point: Mapping[str, Any], name: str, results: Mapping[str, Result]
) -> list[dict[str, Any]]:
    """The records of both sides at a point, from the runs done so far."""
    done = {}
    for side in SIDES:
        runs = [results.get(f"{name} {side} {number}") for number in range(1, sweep.repeats + 1)]
        done[side] = [run for run in runs if run is not None]
    failed = {side: next((run for run in runs if run.get("status") in FAILURES), None) for side, runs in done.items()}
    # An interruption may leave one side a round ahead; only rounds of both sides form pairs.
    rounds = min((len(done[side]) for side in SIDES if failed[side] is None), default=0)
    records = []
    for side in SIDES:
        cell, failure = {**point, "side": side}, failed[side]
        if failure is not None:
            reason = f"in round {len(done[side])} of {sweep.repeats}: {failure['reason']}"
            records.append({"cell": cell, "status": failure["status"], "reason": reason})
        elif rounds:
            items = point[sweep.items] if sweep.items else 1
            blocks = [run["times_ns"] for run in done[side][:rounds]]
            records.append({"cell": cell, **_figures(sweep, items, blocks)})
    return records


def _figures(sweep: CommandSweep, items: int, blocks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The measurement of one cell from the times of its runs, in blocks."""
    doubts = []
    if len({len(block) for block in blocks}) > 1:
        blocks = [[round(median(block))] for block in blocks]
        doubts.append("its runs printed different numbers of times: each run counts with its median")
    times = [spent for block in blocks for spent in block]
    spread = summary(times, rounds=len(blocks))
    if spread.low is None:
        doubts.append("there are too few repetitions for an interval")
    timed = "wall time of the process" if sweep.time_from is None else f"printed by the program: {sweep.time_from}"
    return {
        "status": "measured",
        "launch": "process",
        "unit": "item" if sweep.items else "run",
        "items": items,
        "latency_ns": asdict(spread),
        "rounds": len(blocks),
        "gpu_ns": None,
        "throughput_per_s": items * 1e9 / spread.median,
        "sustained_per_s": items * 1e9 / spread.mean,
        "work": None,
        "stopped": "most repetitions",
        "doubts": doubts,
        "details": {"timed": timed},
        "samples": {"wall_ns": times},
    }
