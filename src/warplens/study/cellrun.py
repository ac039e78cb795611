"""A run over cells of one registered workload, from its plan to the measurements file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.study.engine import carry_out, to_do
from warplens.study.ledger import Ledger
from warplens.study.wording import span
from warplens.study.worker import CellRunner
from warplens.workloads.files import document, write_measurements

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from warplens.study.tasks import Measuring, Result, Task

__all__ = ["STARTING_S", "CellRun", "Conduct", "ledger_of", "measure_cells", "preview"]

#: What starting a process with PyTorch and a GPU takes, in seconds: measured 5 to 8 on an H200's host.
STARTING_S: Final = 8.0


@dataclass(frozen=True)
class CellRun:
    """What to measure.

    Attributes:
        measuring: the workload, and how.
        tasks: one a process (unless one process does all).
        impossible: records of combinations that exclude one another.
        head: further keys of the measurements file.
        command: that asks for the same, without folders.
    """

    measuring: Measuring
    tasks: tuple[Task, ...]
    impossible: tuple[Mapping[str, Any], ...] = ()
    head: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None

    def description(self) -> dict[str, Any]:
        """What a ledger must agree with to be gone on with."""
        return {**self.measuring.description(), "tasks": [task.description() for task in self.tasks]}


@dataclass(frozen=True)
class Conduct:
    """How a run is carried out; changes nothing of what is measured.

    Attributes:
        one_process: one process for all tasks, as long as nothing fails.
        timeout_s: most time for a task.
        fresh: forget what an earlier run has done.
        retry: do what has failed once more.
    """

    one_process: bool = False
    timeout_s: float | None = None
    fresh: bool = False
    retry: bool = False


def ledger_of(output: Path) -> Path:
    """Where the ledger of a measurements file is: beside it, `sweep.json` → `sweep.ledger.jsonl`."""
    return output.with_name(f"{output.stem}.ledger.jsonl")


def measure_cells(run: CellRun, output: Path, conduct: Conduct, tell: Callable[[str], None]) -> None:
    """Measure what is not measured yet, and write the measurements file.

    Args:
        run: what to measure.
        output: the measurements file; the ledger is beside it.
        conduct: how.
        tell: gets lines for people.

    Raises:
        UsageError: the ledger belongs to another plan or machine, or nothing can be measured here.
        KeyboardInterrupt: it was ended; what is done is in both files.
    """
    runner = _OneMachine(CellRunner(run.measuring, keep=conduct.one_process, timeout_s=conduct.timeout_s))
    with Ledger(ledger_of(output), run.description(), fresh=conduct.fresh) as ledger:
        runner.expect(ledger)
        carry_out(
            run.tasks, ledger, runner,
            tell=tell, told=_told, update=lambda: _write(run, ledger, output), retry=conduct.retry,
        )  # fmt: skip


class _OneMachine:
    """A runner that refuses to go on with a run of another machine: its figures would not compare."""

    def __init__(self, runner: CellRunner) -> None:
        self.runner = runner
        self.machine: tuple[str, str] | None = None

    def expect(self, ledger: Ledger) -> None:
        """Take the machine from what is done."""
        self.machine = next(filter(None, map(_machine, ledger.results.values())), None)

    def run(self, task: Task) -> Result:
        result = self.runner.run(task)
        found = _machine(result)
        if found and self.machine and found != self.machine:
            raise UsageError(
                f"this run was begun on {' with torch '.join(self.machine)}, and here is {' with torch '.join(found)}:"
                " choose another output, or start over with --fresh"
            )
        self.machine = self.machine or found
        return result

    def close(self) -> None:
        self.runner.close()


def _machine(result: Result) -> tuple[str, str] | None:
    facts = result.get("environment")
    return (facts["device"]["name"], facts["versions"]["torch"]) if facts else None


def _write(run: CellRun, ledger: Ledger, output: Path) -> None:
    found = [ledger.results[task.key] for task in run.tasks if task.key in ledger.results]
    records = [record for result in found for record in result["records"]]
    facts = next((result["environment"] for result in found if result.get("environment")), _UNKNOWN)
    if not records:
        return
    measuring = run.measuring
    content = document(measuring.workload, measuring.plan, facts, [*records, *run.impossible], run.command)
    cells = content.pop("measurements")
    write_measurements(output, {**content, **run.head, "measurements": cells})


#: Where no process lived long enough to say what it ran on.
_UNKNOWN: Final = {"device": {"name": "unknown"}, "versions": {"torch": "unknown"}}


def _told(result: Result) -> str:
    """The results of a task in few words: `3.07 ms, 3.40 ms`."""
    return ", ".join(_told_one(record) for record in result["records"])


def _told_one(record: Mapping[str, Any]) -> str:
    if record["status"] != "measured":
        return str(record["status"])
    spread = record.get("latency_ns") or record.get("gpu_ns")
    return f"{spread['median'] / 1e6:.3g} ms" if spread else "measured"


def _counted(cells: int) -> str:
    return f"{cells} cell{'' if cells == 1 else 's'}"


def preview(run: CellRun, output: Path, conduct: Conduct) -> list[str]:
    """What a run would do, for people: its tasks, how many, and about how long."""
    done: dict[str, float] = {}
    waiting = list(run.tasks)
    path = ledger_of(output)
    if path.is_file() and not conduct.fresh:
        with Ledger(path, run.description()) as ledger:
            waiting, done = to_do(run.tasks, ledger, retry=conduct.retry), dict(ledger.seconds)
    cells = sum(len(task.cells) for task in run.tasks)
    lines = [f"{task.key}: {_counted(len(task.cells))}{'' if task in waiting else ', done'}" for task in run.tasks]
    lines += [f"{record['reason']}: left out" for record in run.impossible]
    lines.append(f"{_counted(cells)} at {len(run.tasks)} points, {len(waiting)} of them to do")
    if not waiting:
        return lines
    if done:
        lines.append(f"about {span(sum(done.values()) / len(done) * len(waiting))}, as the others took")
        return lines
    starts = 1 if conduct.one_process else len(waiting)
    lines.append(
        f"starting processes takes about {span(starts * STARTING_S)} on a GPU; how long measuring takes is "
        "known after the first point"
    )
    return lines
