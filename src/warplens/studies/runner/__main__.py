"""Sweeps and studies on a machine that has PyTorch, and neither Typer nor Polars nor a way to install them.

    PYTHONPATH=src python3 -m warplens.studies.runner token-reduction --output FOLDER
    PYTHONPATH=src python3 -m warplens.studies.runner sweep token-reduction --axis batch=1,2 … --output sweep.json

GPU machines without a network are such: the source tree is copied there, and this is why a parser of Python's own
library stands beside the commands. It measures only, through the same calls; `warplens study NAME report` and
`warplens sweep report FILE` read the result on any machine, without PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from warplens.errors import WarplensError
from warplens.studies.runner.commandsweep import DEFAULT_ROUNDS, PER_TURN, PROCESSES, WARMUP_STEPS, WorkloadSweep
from warplens.studies.runner.engine import RunOptions, measure, preview
from warplens.studies.runner.studies import MEASUREMENTS, STUDIES, StudyOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.studies.runner.cellsweep import CellRun


def main(words: Sequence[str] | None = None) -> int:
    """Do what the words ask for; the exit code is as `warplens` has it (0 done, 2 wrong usage, 130 interrupted)."""
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
        command.set_defaults(command=_study, study=study)
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


if __name__ == "__main__":
    sys.exit(main())
