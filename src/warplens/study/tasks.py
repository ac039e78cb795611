"""What an unattended run consists of: tasks, each done by one process and finished as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from warplens.workloads.plan import Plan

__all__ = ["FAILURES", "Measuring", "Result", "Runner", "Task", "failures"]

#: What became of a task, as the ledger holds it: `records` of cells, or what one run of a command gave.
Result = Mapping[str, Any]

#: What a cell may end as that another try could mend.
FAILURES = ("out-of-memory", "failed")


@dataclass(frozen=True)
class Task:
    """The smallest piece of a run: either done or not.

    Attributes:
        key: unique in the run, and readable: `input_size=224 batch=1`.
        cells: settings of the cells that it measures, as JSON has them; in turns, if the run says so.
        group: tasks of one group are one cell; once one of them has failed, the others are left out.
        command: instead of cells: the words of a command to run.
    """

    key: str
    cells: tuple[Mapping[str, Any], ...] = ()
    group: str | None = None
    command: tuple[str, ...] = ()

    def description(self) -> dict[str, Any]:
        """What makes it this task, as JSON: two of the same description are interchangeable."""
        found: dict[str, Any] = {"key": self.key, "cells": [dict(cell) for cell in self.cells]}
        return found | ({"command": list(self.command)} if self.command else {})


@dataclass(frozen=True)
class Measuring:
    """How the cells of a registered workload are measured.

    Attributes:
        workload: its name.
        plan: how often, and when that is enough; in turns, its repetitions are those of one turn.
        rounds: turns of each cell of a task; None for one cell after the other.
        device: as PyTorch names it; None for the GPU if there is one.
        modules: imported first, to register workloads.
    """

    workload: str
    plan: Plan
    rounds: int | None = None
    device: str | None = None
    modules: tuple[str, ...] = field(default=())

    def description(self) -> dict[str, Any]:
        """As JSON; also what a child process is told."""
        return {
            "workload": self.workload, "plan": asdict(self.plan), "rounds": self.rounds, "device": self.device,
            "modules": list(self.modules),
        }  # fmt: skip

    def alone(self) -> Measuring:
        """The same repetitions at one stretch, for a cell that has nobody to take turns with: it is no pair's half."""
        if self.rounds is None:
            return self
        repetitions = self.rounds * self.plan.most
        plan = replace(self.plan, fewest=repetitions, least=repetitions, most=repetitions)
        return replace(self, plan=plan, rounds=None)


class Runner(Protocol):
    """Does tasks, one at a time."""

    def run(self, task: Task) -> Result:
        """What became of the task. Failures of what is measured are results.

        Raises:
            UsageError: nothing of the run can be done (no PyTorch, no such device).
        """
        ...

    def close(self) -> None:
        """End every process that is still there."""
        ...


def failures(result: Result) -> list[str]:
    """The statuses in a result that say that something went wrong."""
    statuses = [record["status"] for record in result.get("records", ())] + [result.get("status", "measured")]
    return [status for status in statuses if status in FAILURES]
