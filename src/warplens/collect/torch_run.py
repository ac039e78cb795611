"""Runs a Python program under torch.profiler. Started by its path, in the program's interpreter: imports no Warplens.

    python torch_run.py --trace FILE [--schedule WAIT,WARMUP,ACTIVE] [--shapes] [--memory] [--stacks] [--modules]
        -- SCRIPT|-m MODULE [ARG …]

With a schedule, the program ends each step with `warplens.step()`; without one, all of it is recorded. A program that
ends by `os._exit` leaves its trace as well.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

#: Under this name `warplens.step` looks for the profiler that is running.
ACTIVE_PROFILER = "_warplens_active_profiler"

_NOTHING = (
    "nothing was recorded: the program ended before its recorded steps. It has to call warplens.step() at the end of"
    " each step, and more often than it is made to wait and warm up\n"
)


def main(words: list[str]) -> int:
    """Run the program; its exit code, or 3 where no step was recorded."""
    options, program = _parse(words)
    torch: Any = import_module("torch")  # what is wrong with the options is said first
    sys.path.pop(0)  # the folder of this file, which is no affair of the program
    recorded = _Recorded(options.trace)
    schedule = None
    if options.schedule:
        wait, warmup, active = map(int, options.schedule.split(","))
        schedule = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    profiler = torch.profiler.profile(
        schedule=schedule,
        on_trace_ready=recorded.write,
        record_shapes=options.shapes,
        profile_memory=options.memory,
        with_stack=options.stacks,
        with_modules=options.modules,
    )
    module = types.ModuleType(ACTIVE_PROFILER)
    module.step = profiler.step if schedule else _nothing  # type: ignore[attr-defined]
    sys.modules[ACTIVE_PROFILER] = module
    code = 0
    end_at_once, own = os._exit, os.getpid()

    def finish() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler.stop()

    def end(status: int) -> None:
        """What the program takes for `os._exit`, which would leave nothing; children of a fork end as they asked."""
        if os.getpid() == own:
            finish()
            if not recorded.done:
                sys.stderr.write(_NOTHING)
            sys.stderr.flush()
        end_at_once(status)

    os._exit = end  # type: ignore[assignment]
    profiler.start()
    try:
        _run(program)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
    finally:
        os._exit = end_at_once
        finish()
    if not recorded.done:
        sys.stderr.write(_NOTHING)
        return code or 3
    return code


class _Recorded:
    """Writes the trace when the profiler has it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.done = False

    def write(self, profiler: Any) -> None:
        if not self.done:
            profiler.export_chrome_trace(self._path)
            self.done = True


def _nothing() -> None:
    """A step, where all of the program is recorded."""


def _parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", required=True)
    parser.add_argument("--schedule")
    for name in ("--shapes", "--memory", "--stacks", "--modules"):
        parser.add_argument(name, action="store_true")
    at = words.index("--")
    return parser.parse_args(words[:at]), words[at + 1 :]


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).resolve().parent))  # as `python SCRIPT` does
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
