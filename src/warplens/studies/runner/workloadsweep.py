"""Sweeps over a registered workload: baseline and variant at each point of a grid, one child process per point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from warplens.errors import UsageError
from warplens.report.text import span
from warplens.studies.runner.engine import (
    FAILURES,
    Doing,
    Result,
    RunOptions,
    Task,
    command_line,
    end_group,
    ending_of,
    failures,
    without_folders,
)
from warplens.workloads.cells import cells_at, combinations_of
from warplens.workloads.registry import Plan, Workload, document, workload
from warplens.workloads.settings import defaults_of, setting_value

#: Bytes at the end of a child's standard error that are searched for its last lines.
_MOST_STDERR: Final = 2**16

#: Seconds between SIGTERM and SIGKILL of a child.
_GRACE_S: Final = 10

_ALONE: Final = "measured alone, not in turns with the other cells of its point, for together they failed"


@dataclass(frozen=True)
class Measuring:
    """How the cells of a registered workload are measured."""

    workload: str
    plan: Plan  #: repetitions and stopping rule; with rounds, the repetitions of one round
    rounds: int | None = None  #: rounds in which the cells of a task alternate; None for one cell after the other
    device: str | None = None  #: PyTorch name; None for the GPU if there is one
    modules: tuple[str, ...] = field(default=())  #: imported first, to register workloads

    def alone(self) -> Measuring:
        """The same number of repetitions without rounds, for a cell that is measured alone."""
        if self.rounds is None:
            return self
        repetitions = self.rounds * self.plan.most
        plan = replace(self.plan, fewest=repetitions, least=repetitions, most=repetitions)
        return replace(self, plan=plan, rounds=None)


@dataclass
class CellRunner:
    """Measures tasks in child processes, of which none is started yet.

    A child that ran out of memory, failed or died is not reused, since its state (a broken CUDA context, fragmented
    memory) would affect the next cells. If several cells of a task fail together, each is repeated in a process of its
    own, so that one that does not fit does not prevent the measurement of the others.
    """

    measuring: Measuring
    options: RunOptions  #: with `one_process`, one child is reused as long as nothing fails, which saves starting time
    machine: tuple[str, str] | None  #: (GPU, version of torch) of a continued run; results of another one are refused
    _worker: _Worker | None = field(default=None, init=False)

    def run(self, task: Task) -> Result:
        """Measures the cells of a task.

        Raises:
            UsageError: nothing can be measured here, or this is another machine than that of a continued run.
        """
        answer, died = self._ask(task.cells)
        records = list(answer["records"])
        if len(records) > 1 and (died or self.measuring.rounds is not None):
            for position, together in enumerate(records):
                if together["status"] in FAILURES:
                    alone, _ = self._ask([task.cells[position]], alone=True)
                    answer = {**alone, **answer}
                    records[position] = record = alone["records"][0]
                    if record["status"] == "measured" and self.measuring.rounds is not None:
                        record["doubts"] = [*record.get("doubts", ()), _ALONE]
        machine = _machine(answer)
        if machine and self.machine and machine != self.machine:
            raise UsageError(
                f"this run was begun on {' with torch '.join(self.machine)}, and here is "
                f"{' with torch '.join(machine)}: choose another output, or start over with --fresh"
            )
        self.machine = self.machine or machine
        return {**answer, "records": records}

    def _ask(self, cells: Sequence[Mapping[str, Any]], *, alone: bool = False) -> tuple[dict[str, Any], bool]:
        """The child's answer on some cells, and whether the child died."""
        measuring = self.measuring.alone() if alone else self.measuring
        if self._worker is None:
            self._worker = _Worker()
        answer = self._worker.ask({**asdict(measuring), "cells": cells}, self.options.timeout_s)
        if died := "reason" in answer:
            answer = {"records": [{"cell": dict(cell), **answer} for cell in cells]}
        if "usage" in answer:
            raise UsageError(answer["usage"])
        for record in answer["records"]:
            if "reason" in record:
                record["reason"] = without_folders(record["reason"])
        if not self.options.one_process or failures(answer):
            self.close()
        return answer, died

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class _Worker:
    """A child process, in a group of its own, so that its own children end with it."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "warplens.studies.runner", "child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def ask(self, request: Mapping[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """The child's answer; or `status` and `reason` if it ended without an answer or took too long."""
        process, late = self._process, threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None

        def give_up() -> None:
            late.set()
            end_group(process)

        timer = threading.Timer(timeout_s or 0.0, give_up)
        if timeout_s is not None:
            timer.start()
        with suppress(BrokenPipeError):  # the child has died, which is handled below
            process.stdin.write(json.dumps(request, default=list) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        if late.is_set():
            return {"status": "failed", "reason": f"it took longer than {timeout_s:g} s, and was ended"}
        self._stderr.seek(-min(self._stderr.seek(0, os.SEEK_END), _MOST_STDERR), os.SEEK_END)
        return ending_of(code, self._stderr.read().decode(errors="replace"))

    def end(self) -> None:
        """End the child and its process group."""
        end_group(self._process, _GRACE_S)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(OSError):
                assert stream is not None
                stream.close()


#: Seconds to start a process with PyTorch and a GPU: measured 5 to 8 on an H200's host.
STARTING_S: Final = 8.0

#: Environment if no process lived long enough to report one.
_UNKNOWN: Final = {"device": {"name": "unknown"}, "versions": {"torch": "unknown"}}


@dataclass(frozen=True)
class CellRun:
    """A `Run` over cells of a registered workload."""

    measuring: Measuring
    tasks: tuple[Task, ...]  #: one per process (unless one process executes all)
    impossible: tuple[Mapping[str, Any], ...] = ()  #: records of invalid combinations of settings
    head: Mapping[str, Any] = field(default_factory=dict)  #: further keys of the measurements file
    command: str | None = None  #: the `warplens` command that requests this run, without folders

    def description(self) -> dict[str, Any]:
        """The identity of the plan, see `Run`."""
        return {**asdict(self.measuring), "tasks": [task.description() for task in self.tasks]}

    @contextmanager
    def doing(self, options: RunOptions, done: Mapping[str, Result]) -> Iterator[Doing]:
        """Executes tasks in child processes; refuses another machine than that of earlier results."""
        machine = next(filter(None, map(_machine, done.values())), None)
        with closing(CellRunner(self.measuring, options, machine)) as runner:
            yield runner.run

    def summary(self, result: Result) -> str:
        """The time, or the status, of each cell."""
        return ", ".join(_cell_summary(record) for record in result["records"])

    def content(self, results: Mapping[str, Result]) -> Mapping[str, Any] | None:
        """The measurements file; None while there is no record."""
        done = [results[task.key] for task in self.tasks if task.key in results]
        records = [record for result in done for record in result["records"]]
        environment = next((result["environment"] for result in done if result.get("environment")), _UNKNOWN)
        if not records:
            return None
        records += self.impossible
        return document(self.measuring.workload, self.measuring.plan, environment, records, self.command, self.head)

    def preview(self, waiting: Sequence[Task], options: RunOptions) -> tuple[list[str], str]:
        """A line for each point, then those left out and the totals; and the time to start processes."""
        cells = sum(len(task.cells) for task in self.tasks)
        lines = [f"{task.key}: {_counted(len(task.cells))}{'' if task in waiting else ', done'}" for task in self.tasks]
        lines += [f"{record['reason']}: left out" for record in self.impossible]
        lines.append(f"{_counted(cells)} at {len(self.tasks)} points, {len(waiting)} of them to do")
        starting = span((1 if options.one_process else len(waiting)) * STARTING_S)
        unknown = "how long measuring takes is known after the first point"
        return lines, f"starting processes takes about {starting} on a GPU; {unknown}"


def _machine(result: Result) -> tuple[str, str] | None:
    facts = result.get("environment")
    return (facts["device"]["name"], facts["versions"]["torch"]) if facts else None


def _cell_summary(record: Mapping[str, Any]) -> str:
    if record["status"] != "measured":
        return str(record["status"])
    spread = record.get("latency_ns") or record.get("gpu_ns")
    return f"{spread['median'] / 1e6:.3g} ms" if spread else "measured"


def _counted(cells: int) -> str:
    return f"{cells} cell{'' if cells == 1 else 's'}"


#: Default rounds at a point, and repetitions of each side in a round. With twenty rounds, the 95 % interval of the
#: ratio by order statistics spans about the middle ten of them.
DEFAULT_ROUNDS: Final = 20
PER_TURN: Final = 4

#: Warm-up steps of each side before its first round.
WARMUP_STEPS: Final = 10

#: Distribution of points over processes: one each, or one for all.
PROCESSES: Final = ("point", "all")


def one_process(text: str) -> bool:
    """Whether all points share a process.

    Raises:
        UsageError: the text is none of `PROCESSES`.
    """
    if text not in PROCESSES:
        raise UsageError(f"--processes is {' or '.join(PROCESSES)}, not {text!r}")
    return text == "all"


@dataclass(frozen=True)
class WorkloadSweep:
    """A sweep over a registered workload."""

    workload: str
    axes: tuple[str, ...]  #: texts `name=value,value`
    #: baseline, variant: texts `name=value,name=value`
    baseline: str
    variant: str
    rounds: int = DEFAULT_ROUNDS  #: rounds at a point
    repetitions: int = PER_TURN  #: of each side in a round
    warmup: int = WARMUP_STEPS  #: steps of each side before its first round
    device: str | None = None  #: PyTorch name; None for the GPU if there is one
    modules: tuple[str, ...] = ()  #: imported first, to register workloads

    def run(self) -> CellRun:
        """The run of this sweep.

        Raises:
            UsageError: no such workload, setting or value.
        """
        import_modules(self.modules)
        kind = workload(self.workload)
        axes = axes_from(kind, "--axis", self.axes)
        baseline = settings_from(kind, "--baseline", self.baseline)
        variant = settings_from(kind, "--variant", self.variant)
        if baseline == variant:
            raise UsageError("--baseline and --variant are the same")
        tasks, impossible = cell_tasks(kind, axes, (baseline, variant))
        # The cells of a workload that measures itself cannot alternate: they follow one another.
        rounds = self.rounds if kind.prepare is not None else None
        repetitions = self.repetitions if rounds else self.repetitions * self.rounds
        measuring = Measuring(
            self.workload, Plan.exactly(repetitions, warmup_steps=self.warmup), rounds, self.device, self.modules
        )
        command = command_line(
            "warplens", "sweep", "run", self.workload, axis=self.axes, baseline=self.baseline, variant=self.variant,
            rounds=self.rounds, repetitions=self.repetitions, warmup=self.warmup, device=self.device or None,
            module=self.modules,
        )  # fmt: skip
        return CellRun(measuring, tasks, tuple(impossible), sweep_head(axes, baseline, variant), command)


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register workloads, also from the current folder, as the measuring processes do.

    Raises:
        UsageError: one of them cannot be imported.
    """
    here = str(Path.cwd())
    if names and here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # noqa: PERF203  the user's module may fail in any way
            raise UsageError(f"--module {name}: it cannot be imported ({type(error).__name__}: {error})") from error


def pairs_from(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses axes `name=value,value`; values remain texts.

    Raises:
        UsageError: a text of another form, an axis given twice, or a value given twice.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name, values = name.strip().replace("-", "_"), [value.strip() for value in rest.split(",")]
        if not (name and equals and all(values)):
            raise UsageError(f"{option} takes NAME=VALUE,…, such as batch=1,2,4, not {text!r}")
        if name in axes:
            raise UsageError(f"{option} {name} is given twice")
        if len(set(values)) < len(values):
            raise UsageError(f"{option} {name} names something twice: {rest}")
        axes[name] = values
    return axes


def axes_from(kind: Workload, option: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parses axes `name=value,value` of a sweep over a workload.

    Raises:
        UsageError: no such setting, or a value of another type.
    """
    defaults = defaults_of(kind.cell)
    axes = {}
    for name, values in pairs_from(option, texts).items():
        _check_name(kind, option, name, defaults)
        axes[name] = [setting_value(f"{option} {name}", value, defaults[name]) for value in values]
    return axes


def settings_from(kind: Workload, option: str, text: str) -> dict[str, Any]:
    """Parses the settings `name=value,name=value` of one side.

    Raises:
        UsageError: no such setting, a value of another type, or a text of another form.
    """
    defaults, settings = defaults_of(kind.cell), {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals):
            raise UsageError(f"{option} takes NAME=VALUE,…, such as method=topk,keep=0.1, not {text!r}")
        _check_name(kind, option, name, defaults)
        settings[name] = setting_value(f"{option} {name}", value.strip(), defaults[name])
    return settings


def _check_name(kind: Workload, option: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise UsageError(f"{option}: {kind.name} has no setting {name!r}; known are {', '.join(known)}")


def cell_tasks(
    kind: Workload, axes: Mapping[str, Sequence[Any]], sides: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Task, ...], list[dict[str, Any]]]:
    """A task for each point of the axes, with a cell for each side; the last axis changes fastest.

    Returns:
        The tasks, and for each invalid combination of settings a finished record with the reason.

    Raises:
        UsageError: an axis is also a setting of a side; or every combination is invalid.
    """
    if both := [name for side in sides for name in side if name in axes]:
        raise UsageError(f"{both[0]} is an axis, and cannot be what tells the sides apart as well")
    return tasks_at(kind, combinations_of(axes), sides, [name for name, values in axes.items() if len(values) > 1])


def tasks_at(
    kind: Workload, points: Sequence[Mapping[str, Any]], sides: Sequence[Mapping[str, Any]], varying: Sequence[str]
) -> tuple[tuple[Task, ...], list[dict[str, Any]]]:
    """`cell_tasks` for a list of points, which differ in the settings `varying`."""
    by_point, impossible = cells_at(kind.cell, points, sides)
    tasks = (
        Task(key_of({name: point[name] for name in varying}), tuple(map(asdict, cells)))
        for point, cells in zip(points, by_point, strict=True)
        if cells
    )
    return tuple(tasks), impossible


def key_of(point: Mapping[str, Any]) -> str:
    """A point as the key of its task: `input_size=224 batch=1`."""
    joined = {name: "+".join(map(str, item)) for name, item in point.items() if isinstance(item, tuple | list)}
    return " ".join(f"{name}={value}" for name, value in {**point, **joined}.items()) or "the only point"


def sweep_head(
    axes: Mapping[str, Sequence[Any]], baseline: Mapping[str, Any], variant: Mapping[str, Any]
) -> dict[str, Any]:
    """The description of a sweep in the measurements file."""
    listed = {name: list(values) for name, values in axes.items()}
    return {"sweep": {"axes": listed, "baseline": dict(baseline), "variant": dict(variant)}}
