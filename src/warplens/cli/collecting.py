"""What `warplens collect` runs: the commands of each tool in their order, the files they leave, and what comes next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.cli.messages import note, one_line
from warplens.collect.manifest import add_run
from warplens.collect.recording import COLLECTING
from warplens.collect.running import run_command
from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from warplens.collect.ncu import Cost

__all__ = ["CollectionFailedError", "Stage", "collect_stages", "cost_line", "shown"]


class CollectionFailedError(Exception):
    """A tool failed; the text is for people, and the tool has said the rest."""


@dataclass(frozen=True)
class Stage:
    """One command, and what it leaves.

    Attributes:
        tool: that it belongs to: nsys, ncu or torch.
        version: of the tool; empty where it is the program's own.
        command: its words.
        leaves: the file that it writes; it must be there afterwards.
        runs_program: whether it starts the user's program, which is told by which tool.
    """

    tool: str
    version: str
    command: Sequence[str]
    leaves: Path
    runs_program: bool = True


def shown(stage: Stage) -> str:
    """The command as a shell would take it, with the variable that tells the program which tool is recording."""
    return (f"{COLLECTING}={stage.tool} " if stage.runs_program else "") + shlex.join(stage.command)


def collect_stages(stages: Sequence[Stage], folder: Path, *, force: bool) -> list[Path]:
    """Run commands one after the other; what is there of a failed run is kept and listed in the manifest, too.

    Returns:
        The files that they left.

    Raises:
        UsageError: a file would be written over, or a program does not exist.
        CollectionFailedError: a command failed, or left no file.
    """
    for stage in stages:
        if stage.leaves.exists() and not force:
            raise UsageError(f"{stage.leaves.name}: is there already; use another --name, or --force to replace it")
    folder.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        stage.leaves.unlink(missing_ok=True)
    code, failed = 0, None
    for stage in stages:
        note(f"running {stage.tool}: {shown(stage)}")
        variables = {COLLECTING: stage.tool} if stage.runs_program else {}
        ran = run_command(stage.command, variables, lambda line: note(f"  {line}"))
        code = code or ran.code
        if not stage.leaves.exists() or ran.code:
            failed = _failure(stage, ran.code, ran.tail, ran.failure)
        if not stage.leaves.exists():
            break
    files = [stage.leaves for stage in stages if stage.leaves.exists()]
    if files:
        commands = [stage.command for stage in stages]
        add_run(folder, tool=stages[0].tool, version=stages[0].version, commands=commands, files=files, exit_code=code)
    if failed and files:
        failed += f" (kept in {folder.name}: {', '.join(file.name for file in files)})"
    if failed:
        raise CollectionFailedError(failed)
    return files


def _failure(stage: Stage, code: int, tail: Sequence[str], known: str | None) -> str:
    what = f"{stage.tool} or the program that it ran ended with code {code}" if code else f"{stage.tool} left no file"
    if known:
        return f"{what}: {known}"
    last = " | ".join(one_line(line) for line in tail[-3:])
    return f"{what}. Its last lines: {last}" if last else what


def cost_line(phase: str, cost: Cost) -> str:
    """What a phase will take, for people."""
    if cost.passes is None or cost.least_s is None or cost.most_s is None:
        return f"{phase}: about {cost.passes_each} passes for each launch, of as many as there are"
    time = f"{_time(cost.least_s)} to {_time(cost.most_s)}"
    return (
        f"{phase}: {cost.launches} launches × about {cost.passes_each} passes = {cost.passes} passes, roughly {time}"
        " beside the program's own time"
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
