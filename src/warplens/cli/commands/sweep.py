"""`warplens sweep`: a baseline and a variant over a grid, measured or read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line
from warplens.cli.options import Format, FormatOption, RunOrReport
from warplens.errors import UsageError
from warplens.study.asked import DEFAULT_ROUNDS, PER_TURN, PROCESSES, WARMUP_STEPS, SweepAsked, one_process
from warplens.study.cellrun import Conduct, measure_cells, preview
from warplens.study.commandsweep import (
    DEFAULT_REPEATS,
    TIME_UNITS,
    CommandAsked,
    measure_commands,
    preview_commands,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["sweep"]


def sweep(
    doing: Annotated[
        RunOrReport, typer.Argument(metavar="run|report", show_default=False, help="Measure a sweep, or read one.")
    ],
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD|FILE]",
            show_default=False,
            help="run: the workload, such as token-reduction; without one, baseline and variant are commands. "
            "report: a file of measurements, or a published table (CSV).",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis", metavar="NAME=VALUE,…", show_default=False, help="run: the values of a setting. May be repeated."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME=VALUE,…|CMD", show_default=False, help="Settings of the baseline; or its command."),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME=VALUE,…|CMD", show_default=False, help="Settings of the variant; or its command."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default=False,
            help=f"run, workload: turns of each side; {DEFAULT_ROUNDS} by default.",
        ),
    ] = None,
    repetitions: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default=False, help=f"run, workload: steps in a turn; {PER_TURN} by default."
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            show_default=False,
            help=f"run, workload: steps before the first turn; {WARMUP_STEPS} by default.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="run, workload: as PyTorch names it; the GPU if there is one."
        ),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="NAME",
            show_default=False,
            help="run, workload: a Python module to import first, which registers it. May be repeated.",
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PROCESSES),
            show_default=False,
            help="run, workload: a process for each point (the default), or one for all, which starts sooner.",
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default=False, help=f"run, commands: runs of each; {DEFAULT_REPEATS} by default."
        ),
    ] = None,
    time_from: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            show_default=False,
            help="run, commands: finds the time in what they print, 'step_ms=([0-9.]+)'; else wall time is taken.",
        ),
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(TIME_UNITS), show_default=False, help="run, commands: of the time printed; ms by default."
        ),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS",
            show_default=False,
            help="run, commands: the axis that says how many items a step processes.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, show_default=False, help="run: most time for a point, or for a command."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="run: forget what an interrupted run has done.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="run: measure once more what has failed.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="run: say what would be measured; measure nothing.")
    ] = False,
    level: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", show_default=False, help="report: confidence of the intervals, together; 0.95 by default."
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", show_default=False, help="report: differences that do not matter; 0.02 by default."
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default=False, help="report: profiles of cells, which tell what bounds each of them."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            show_default=False,
            help="run: the file to write. report: a folder; without it, the answer is printed.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Measure a baseline and a variant over a grid, or read what such a sweep says.

    A run that was interrupted goes on when the same command is given again.
    """
    of_workloads = {
        "--rounds": rounds, "--repetitions": repetitions, "--warmup": warmup, "--device": device,
        "--module": module, "--processes": processes,
    }  # fmt: skip
    of_commands = {"--repeats": repeats, "--time-from": time_from, "--time-unit": time_unit, "--items": items}
    of_runs = {
        "--axis": axis, **of_workloads, **of_commands, "--timeout": timeout, "--fresh": fresh, "--retry": retry,
        "--dry-run": dry_run,
    }  # fmt: skip
    if doing is RunOrReport.REPORT:
        _refuse(of_runs, "for sweep run; a report measures nothing")
        _report(subject, baseline, variant, output, form, level, margin, profiles)
        return
    _refuse({"--level": level, "--margin": margin, "--profiles": profiles}, "for sweep report")
    if output is None:
        raise UsageError("sweep run needs --output FILE, where it writes the measurements")
    if baseline is None or variant is None:
        raise UsageError("sweep run needs --baseline and --variant")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output.name}: the output must be a file in a folder that exists")
    conduct = Conduct(one_process(processes or PROCESSES[0]), timeout, fresh, retry)
    axes = tuple(axis or ())
    if subject is None:
        _refuse(of_workloads, "for a workload, and none is named")
        commands = CommandAsked(
            axes, baseline, variant, repeats or DEFAULT_REPEATS, time_from, time_unit or "ms", items
        )
        if dry_run:
            _print(preview_commands(commands, output, conduct))
            return
        measure_commands(commands, output, conduct, note)
    else:
        _refuse(of_commands, f"for commands, and {subject} is a workload")
        asked = SweepAsked(
            subject, axes, baseline, variant, rounds or DEFAULT_ROUNDS, repetitions or PER_TURN,
            WARMUP_STEPS if warmup is None else warmup, device, tuple(module or ()),
        )  # fmt: skip
        if dry_run:
            _print(preview(asked.run(), output, conduct))
            return
        measure_cells(asked.run(), output, conduct, note)
    _print([str(output)])
    note(f"next: warplens sweep report {output.name}")


def _report(
    subject: str | None,
    baseline: str | None,
    variant: str | None,
    output: Path | None,
    form: Format,
    level: float | None,
    margin: float | None,
    profiles: Path | None,
) -> None:
    from warplens.cli.sweepreporting import report_sweep  # noqa: PLC0415  measuring does without

    if subject is None:
        raise UsageError("sweep report needs a file: warplens sweep report FILE")
    report_sweep(
        Path(subject), baseline, variant, output, form, 0.95 if level is None else level,
        0.02 if margin is None else margin, profiles,
    )  # fmt: skip


def _refuse(options: Mapping[str, object], why: str) -> None:
    if given := [name for name, value in options.items() if value not in (None, [], False)]:
        raise UsageError(f"{given[0]} is {why}")


def _print(lines: list[str]) -> None:
    with answering() as stdout:
        stdout.write("".join(f"{one_line(line)}\n" for line in lines))
