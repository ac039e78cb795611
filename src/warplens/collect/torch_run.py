"""Runs a Python program under torch.profiler. A script for the program's interpreter, so it does not import Warplens.

    python torch_run.py --trace FILE [--schedule WAIT,WARMUP,ACTIVE] [--shapes] [--memory] [--stacks] [--modules]
        -- SCRIPT|-m MODULE [ARG …]

With a schedule, the program calls `warplens.step()` at the end of each step; without one, all of it is recorded. The
trace is also written if the program ends by `os._exit`.
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

#: Name of the module in `sys.modules` through which `warplens.step` finds the running profiler.
ACTIVE_PROFILER = "_warplens_active_profiler"

_NOTHING = (
    "nothing was recorded: the program ended before its recorded steps. It has to call warplens.step() at the end of"
    " each step, and more often than it is made to wait and warm up\n"
)


def main(words: list[str]) -> int:
    """Run the program and return its exit code, or 3 if no step was recorded."""
    options, program = _parse(words)
    torch: Any = import_module("torch")  # after the options have been checked
    sys.path.pop(0)  # the folder of this file, which the program must not import from
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
    end_at_once, own_pid = os._exit, os.getpid()

    def finish() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler.stop()

    def end(status: int) -> None:
        """Replaces `os._exit`, to write the trace first; forked children end without it."""
        if os.getpid() == own_pid:
            finish()
            if not recorded.done:
                sys.stderr.write(_NOTHING)
            sys.stderr.flush()
        end_at_once(status)

    os._exit = end  # type: ignore[assignment]
    profiler.start()
    try:
        _run(program)
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else int(request.code is not None)
        if isinstance(request.code, str):
            sys.stderr.write(f"{request.code}\n")
    finally:
        os._exit = end_at_once
        finish()
    if not recorded.done:
        sys.stderr.write(_NOTHING)
        return code or 3
    return code


class _Recorded:
    """Writes the trace when the profiler has finished it, once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.done = False

    def write(self, profiler: Any) -> None:
        if not self.done:
            profiler.export_chrome_trace(self._path)
            self.done = True


def _nothing() -> None:
    """`step` without a schedule."""


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
