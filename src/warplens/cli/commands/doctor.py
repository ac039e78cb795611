"""`warplens doctor`: what this machine can record."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from warplens.cli.edge import GATE_FAILED, answering
from warplens.cli.messages import complain, one_line, progress
from warplens.collect.doctor import examine_machine, missing
from warplens.collect.system import System, ThisMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.collect.doctor import Diagnosis

__all__ = ["doctor"]

#: What is looked at; tests put recorded machines here.
machine: Callable[[], System] = ThisMachine


class DoctorFormat(str, Enum):
    """What the checks can be printed as."""

    TABLE = "table"
    JSON = "json"


def doctor(
    form: Annotated[
        DoctorFormat, typer.Option("--format", "-f", help="For people (table), or for programs (json).")
    ] = (DoctorFormat.TABLE),
    require: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT[,WHAT]",
            show_default=False,
            help="Exit with 1 unless these can be recorded with here: gpu, torch, nsys, ncu.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM",
            show_default=False,
            help="The Python of your programs; else the first on the search path.",
        ),
    ] = None,
) -> None:
    """What this machine can record, and how to mend what it cannot.

    Looks at the driver and its GPUs, the CUDA toolkit, PyTorch, nsys and ncu, the permission to read counters, WSL2,
    containers, MIG, memory, other programs on the GPUs, and disk space. It changes nothing.
    """
    with progress("looking at this machine"):
        diagnosis = examine_machine(machine(), python=python)
    lacking = missing(diagnosis, require) if require is not None else []
    if form is DoctorFormat.JSON:
        _print_json(diagnosis)
    else:
        _print_for_people(diagnosis)
    if lacking:
        complain(f"required, but not possible here: {', '.join(lacking)}")
        raise typer.Exit(GATE_FAILED)


def _print_json(diagnosis: Diagnosis) -> None:
    from warplens.report.jsonout import envelope  # noqa: PLC0415  the table does without

    data = {"checks": list(diagnosis.checks), "can": diagnosis.can, "works": diagnosis.works}
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(envelope("doctor", None, data) + b"\n")


def _print_for_people(diagnosis: Diagnosis) -> None:
    name_width = max(len(check.name) for check in diagnosis.checks)
    status_width = max(len(check.status) for check in diagnosis.checks)
    lines = []
    for check in diagnosis.checks:
        lines.append(f"{check.status:<{status_width}}  {check.name:<{name_width}}  {one_line(check.found)}")
        if check.fix:
            lines.append(f"{'':{status_width + name_width + 4}}→ {one_line(check.fix)}")
    with answering() as stdout:
        stdout.write("\n".join(lines) + f"\n\n{one_line(diagnosis.works)}.\n")
