"""Commands that run a Python program under PyTorch's profiler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warplens.collect.machine import System
from warplens.errors import UsageError

#: Runs by itself in the program's own interpreter, which need not have Warplens.
_WRAPPER: Final = Path(__file__).with_name("torch_run.py")

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")

#: Options of the interpreter that take the next word as their value.
_WITH_VALUE: Final = frozenset({"-W", "-X"})


_VERSION_PROGRAM: Final = "from importlib.metadata import version; print('torch=' + version('torch'))"


@dataclass(frozen=True)
class Schedule:
    """Which steps are recorded, where the program says `warplens.step()` at the end of each."""

    wait: int = 2  #: steps before the profiler is switched on
    warmup: int = 1  #: steps with the profiler on whose record is thrown away
    active: int = 3  #: steps that are recorded


def wrapped_command(
    program: Sequence[str],
    trace: str,
    schedule: Schedule | None = None,
    *,
    shapes: bool = True,
    memory: bool = False,
    stacks: bool = False,
    modules: bool = False,
) -> list[str]:
    """The words of the command that runs a Python program under torch.profiler and writes a trace.

    Args:
        program: `python [OPTION …] SCRIPT …` or `python [OPTION …] -m MODULE …`.
        trace: the file to write.
        schedule: the steps to record; None for the whole program.
        shapes: whether to record the shapes of operators' inputs.
        memory: whether to record allocations.
        stacks: whether to record Python's frames.
        modules: whether to record the modules of scripted models that operators belong to.

    Raises:
        UsageError: it is no Python program.
    """
    if not program or not _PYTHON.fullmatch(Path(program[0]).name):
        raise UsageError("collect torch runs Python programs: collect torch -- python SCRIPT, or python -m MODULE")
    at = _end_of_options(program)
    if at >= len(program) or program[at] in ("-c", "-"):
        raise UsageError("collect torch needs a script or -m MODULE to run, not code on the command line")
    options = ["--trace", trace]
    if schedule is not None:
        options += ["--schedule", f"{schedule.wait},{schedule.warmup},{schedule.active}"]
    wanted = {"--shapes": shapes, "--memory": memory, "--stacks": stacks, "--modules": modules}
    options += [name for name, is_wanted in wanted.items() if is_wanted]
    return [*program[:at], str(_WRAPPER), *options, "--", *program[at:]]


def torch_version(system: System, program: Sequence[str]) -> str:
    """The version of PyTorch that the program's interpreter has, without importing it.

    Raises:
        UsageError: it has none, or is no interpreter.
    """
    answer = system.run([*program[: _end_of_options(program)], "-c", _VERSION_PROGRAM])
    found = re.search(r"^torch=(\S+)", answer.text, re.MULTILINE) if answer else None
    if found is None:
        raise UsageError(f"{Path(program[0]).name} has no PyTorch: install torch there, or name another Python")
    return found[1]


def _end_of_options(program: Sequence[str]) -> int:
    """Where the interpreter's own options end and what it is to run begins."""
    at = 1
    while at < len(program) and program[at].startswith("-") and program[at] not in ("-m", "-c", "-"):
        at += 2 if program[at] in _WITH_VALUE else 1
    return at
