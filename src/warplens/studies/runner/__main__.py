"""Sweeps and studies on a machine that has PyTorch, and neither Typer nor Polars nor a way to install them.

    PYTHONPATH=src python3 -m warplens.studies.runner token-reduction --output FOLDER
    PYTHONPATH=src python3 -m warplens.studies.runner sweep token-reduction --axis batch=1,2 … --output sweep.json

GPU machines without a network are such: the source tree is copied there, and this is why a parser of Python's own
library stands beside the commands. It measures only, through the same calls; `warplens study NAME report` and
`warplens sweep report FILE` read the result on any machine, without PyTorch.

With the word `child` alone it is the process that measures: it reads tasks from standard input and answers each with
one line of JSON. A fresh interpreter for each task starts from the same state; the other end is
`workloadsweep.CellRunner`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from warplens.errors import UsageError, WarplensError
from warplens.studies.runner.engine import RunOptions, measure, preview
from warplens.studies.runner.studies import MEASUREMENTS, PROFILES, STUDIES, Collection, StudyOptions
from warplens.studies.runner.workloadsweep import (
    DEFAULT_ROUNDS,
    PER_TURN,
    PROCESSES,
    WARMUP_STEPS,
    CellRun,
    WorkloadSweep,
)
from warplens.workloads.registry import Plan, workload


def main(words: Sequence[str] | None = None) -> int:
    """Do what the words ask for; the exit code is as `warplens` has it (0 done, 2 wrong usage, 130 interrupted)."""
    if list(sys.argv[1:] if words is None else words) == ["child"]:
        serve()
        return 0
    options = _parser().parse_args(words)
    try:
        options.command(options)
    except WarplensError as error:
        _log(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _log("interrupted; the same command goes on where it was")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    """The parser of the command line, with a command for each study."""
    parser = argparse.ArgumentParser(
        prog="python -m warplens.studies.runner",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sweep = commands.add_parser("sweep", help="baseline and variant of a workload over a grid")
    sweep.add_argument("workload")
    sweep.add_argument("--axis", action="append", default=[], metavar="NAME=VALUE,…")
    sweep.add_argument("--baseline", required=True, metavar="NAME=VALUE,…")
    sweep.add_argument("--variant", required=True, metavar="NAME=VALUE,…")
    sweep.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    sweep.add_argument("--repetitions", type=int, default=PER_TURN, help="in a turn")
    sweep.add_argument("--warmup", type=int, default=WARMUP_STEPS)
    sweep.add_argument("--output", type=Path, required=True, metavar="FILE")
    _add_common(sweep)
    sweep.add_argument("--module", action="append", default=[], help="imported first, to register workloads")
    sweep.set_defaults(command=_sweep)
    for study in STUDIES.values():
        command = commands.add_parser(study.name, help=study.summary)
        command.add_argument("--output", type=Path, required=True, metavar="FOLDER")
        command.add_argument("--axis", action="append", default=[], metavar="NAME=VALUE,…", help="other values")
        command.add_argument("--rounds", type=int)
        command.add_argument("--quick", action="store_true", help="few tiny cells on the CPU")
        _add_common(command)
        if study.name == "token-reduction":
            command.add_argument("--collect", action="store_true", help="after the times record timelines and counters")
            command.add_argument("--launches", type=int, metavar="N", help="that ncu profiles of each cell, 0 for all")
            command.add_argument("--nsys", metavar="PROGRAM")
            command.add_argument("--ncu", metavar="PROGRAM")
        command.set_defaults(command=_study, study=study)
    cell = commands.add_parser("cell", help="a few steps of one cell with ranges, for a profiler")
    cell.add_argument("workload")
    cell.add_argument("settings", help="as JSON")
    cell.add_argument("--warmup", type=int, default=3)
    cell.add_argument("--steps", type=int, default=5)
    cell.add_argument("--device")
    cell.set_defaults(command=_cell)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device")
    parser.add_argument("--processes", choices=PROCESSES, default="point")
    parser.add_argument("--timeout", type=float, metavar="S", help="most time for a task")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has done")
    parser.add_argument("--retry", action="store_true", help="do what has failed once more")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")


def _sweep(options: argparse.Namespace) -> None:
    sweep = WorkloadSweep(
        options.workload, tuple(options.axis), options.baseline, options.variant, options.rounds, options.repetitions,
        options.warmup, options.device, tuple(options.module),
    )  # fmt: skip
    _measure(sweep.run(), options.output, options)


def _study(options: argparse.Namespace) -> None:
    run = options.study.run(StudyOptions(tuple(options.axis), options.rounds, options.device, options.quick))
    if not options.dry_run:
        options.output.mkdir(parents=True, exist_ok=True)
    _measure(run, options.output / MEASUREMENTS, options)
    if not getattr(options, "collect", False):
        return
    folder = options.output / PROFILES
    collection = Collection(folder, options.nsys, options.ncu, options.launches, options.fresh, _log)
    if options.dry_run:
        sys.stdout.write("".join(f"{line}\n" for line in collection.commands(run)))
    elif failed := collection.record(run):
        raise WarplensError(f"not recorded: {', '.join(failed)}")


def _cell(options: argparse.Namespace) -> None:
    from warplens.workloads.cells import run_cells
    from warplens.workloads.registry import Ranges

    cell = cell_of(workload(options.workload).cell, json.loads(options.settings))
    plan = Plan.exactly(options.steps, warmup_steps=options.warmup)
    for record in run_cells(options.workload, [cell], plan=plan, device=options.device, ranges=Ranges(on=True)):
        _log(f"{record['status']}: {record.get('reason', '')}".rstrip(": "))


def _measure(run: CellRun, output: Path, options: argparse.Namespace) -> None:
    run_options = RunOptions(options.processes == "all", options.timeout, options.fresh, options.retry)
    if options.dry_run:
        for line in preview(run, output, run_options):
            sys.stdout.write(f"{line}\n")
        return
    measure(run, output, run_options, _log)


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def serve() -> None:
    """Answer until there is nothing more to read."""
    # What programs print must not get into the answers: those have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line)), allow_nan=False) + "\n")
        answers.flush()


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a task, given as a `Measuring` in JSON with the `cells` to measure.

    `records`, one a cell, and the `environment`; or, where nothing can be measured here, `usage`: why.
    """
    try:
        return _measured(request)
    except UsageError as error:
        return {"usage": str(error)}
    except Exception as error:  # a user's program may fail in any way; the run goes on, and says how this ended
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"records": [{"cell": cell, "status": "failed", "reason": reason} for cell in request["cells"]]}


def _measured(request: Mapping[str, Any]) -> dict[str, Any]:
    from warplens.workloads.cells import attempted, default_device, environment, run_cells, run_cells_in_turns

    for module in request["modules"]:
        import_module(module)
    kind, plan = workload(request["workload"]), Plan(**request["plan"])
    cells = [cell_of(kind.cell, settings) for settings in request["cells"]]
    device = request["device"] or default_device()
    records: list[dict[str, Any]]
    if request["rounds"] is None or kind.prepare is None:
        records = list(run_cells(kind.name, cells, plan=plan, device=device))
    else:
        done, trouble = attempted(
            lambda: run_cells_in_turns(kind.name, cells, rounds=request["rounds"], plan=plan, device=device)
        )
        if trouble.get("status") == "unsupported":
            raise UsageError(trouble["reason"])
        records = [{"cell": asdict(cell), **trouble} for cell in cells] if done is None else done
    return {"records": records, "environment": environment(device)}


def cell_of(kind: type, settings: Mapping[str, Any]) -> Any:
    """Settings that went through JSON, which knows no tuples.

    Raises:
        UsageError: the settings exclude one another, or there is no such setting.
    """
    known = {item.name for item in fields(kind)}
    if strange := [name for name in settings if name not in known]:
        raise UsageError(f"there is no setting {strange[0]!r}; known are {', '.join(sorted(known))}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()})


if __name__ == "__main__":
    sys.exit(main())
