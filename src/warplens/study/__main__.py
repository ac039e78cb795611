"""Sweeps and studies on a machine that has PyTorch and nothing else of what Warplens needs for its reports.

    PYTHONPATH=src python3 -m warplens.study token-reduction --output FOLDER
    PYTHONPATH=src python3 -m warplens.study sweep token-reduction --axis batch=1,2 … --output sweep.json

Measures only; `warplens study NAME report --output FOLDER` and `warplens sweep report FILE` read the result on any
machine, without PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from warplens.errors import WarplensError
from warplens.study.asked import DEFAULT_ROUNDS, PER_TURN, PROCESSES, WARMUP_STEPS, SweepAsked
from warplens.study.cellrun import Conduct, measure_cells, preview
from warplens.study.studies import MEASUREMENTS, STUDIES, StudyAsked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.study.cellrun import CellRun

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Do what the words ask for; the exit code is as `warplens` has it (0 done, 2 wrong usage, 130 interrupted)."""
    options = _parser().parse_args(words)
    try:
        options.carry_out(options)
    except WarplensError as error:
        _tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _tell("interrupted; the same command goes on where it was")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warplens.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    sweep.set_defaults(carry_out=_sweep)
    for study in STUDIES.values():
        command = commands.add_parser(study.name, help=study.summary)
        command.add_argument("--output", type=Path, required=True, metavar="FOLDER")
        command.add_argument("--axis", action="append", default=[], metavar="NAME=VALUE,…", help="other values")
        command.add_argument("--rounds", type=int)
        command.add_argument("--quick", action="store_true", help="few tiny cells on the CPU")
        _add_common(command)
        command.set_defaults(carry_out=_study, study=study)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device")
    parser.add_argument("--processes", choices=PROCESSES, default="point")
    parser.add_argument("--timeout", type=float, metavar="S", help="most time for a task")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has done")
    parser.add_argument("--retry", action="store_true", help="do what has failed once more")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")


def _sweep(options: argparse.Namespace) -> None:
    asked = SweepAsked(
        options.workload, tuple(options.axis), options.baseline, options.variant, options.rounds, options.repetitions,
        options.warmup, options.device, tuple(options.module),
    )  # fmt: skip
    _measure(asked.run(), options.output, options)


def _study(options: argparse.Namespace) -> None:
    asked = StudyAsked(tuple(options.axis), options.rounds, options.device, options.quick)
    run = options.study.run(asked)
    if not options.dry_run:
        options.output.mkdir(parents=True, exist_ok=True)
    _measure(run, options.output / MEASUREMENTS, options)


def _measure(run: CellRun, output: Path, options: argparse.Namespace) -> None:
    conduct = Conduct(options.processes == "all", options.timeout, options.fresh, options.retry)
    if options.dry_run:
        for line in preview(run, output, conduct):
            sys.stdout.write(f"{line}\n")
        return
    measure_cells(run, output, conduct, _tell)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
