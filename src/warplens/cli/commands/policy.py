"""`warplens policy`: which of two variants to run for which shape, as a file that programs ask at run time."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warplens.cli.edge import GATE_FAILED, answering
from warplens.cli.messages import note, one_line
from warplens.cli.options import Format, FormatOption
from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.compare.policy import Policy, Regret
    from warplens.compare.sweep import Sweep
    from warplens.report.document import Table

__all__ = ["policy"]


class Doing(str, Enum):
    """What to do with a policy."""

    FIT = "fit"
    SHOW = "show"
    CHECK = "check"


def policy(
    doing: Annotated[
        Doing,
        typer.Argument(
            metavar="fit|show|check", show_default=False, help="Fit a policy, read one, or hold one against a sweep."
        ),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", show_default=False, help="fit: the sweep. show, check: the policy.")
    ],
    against: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SWEEP]", show_default=False, help="check: other measurements, best of points left out of the fit."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="fit: the policy file to write."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            show_default=False,
            help="fit, check: settings of the baseline, if the file has none.",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            show_default=False,
            help="fit, check: settings of a variant. May be repeated, to choose from several.",
        ),
    ] = None,
    margin: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="fit: a variant must be faster than the baseline by more than this."),
    ] = "1%",
    fallback: Annotated[
        str | None,
        typer.Option(
            metavar="SIDE", show_default=False, help="fit: what runs outside the range; by default the baseline."
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="PERCENT",
            show_default=False,
            help="check: exit with 1 if a choice is slower than the best side by more than this, such as 2%.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Fit, show and check policies: which variant to run for which shape.

    `fit` takes a sweep and writes a small file; warplens.AdaptiveModule chooses by it at run time. `check` says what
    its choices would have cost where other measurements have both sides.
    """
    _check_arguments(doing, against, output, baseline, variant, fallback, fail_on)
    limit = None if fail_on is None else _share("--fail-on", fail_on)
    if doing is Doing.CHECK:
        assert against is not None
        _check(file, against, baseline, variant, limit, form)
        return
    if doing is Doing.FIT:
        found = _fitted(file, baseline, variant, _share("--margin", margin), fallback)
        if output is not None:
            _write(found, output)
    else:
        from warplens.compare.policy import read_policy  # noqa: PLC0415  only here

        found = read_policy(file)
    _show_policy(found, form)


def _check_arguments(
    doing: Doing,
    against: Path | None,
    output: Path | None,
    baseline: str | None,
    variant: list[str] | None,
    fallback: str | None,
    fail_on: str | None,
) -> None:
    if doing is Doing.CHECK and against is None:
        raise UsageError("check needs measurements beside the policy: warplens policy check policy.json SWEEP")
    if doing is not Doing.CHECK and against is not None:
        raise UsageError(f"{doing.value} takes one file, and no second one ({against.name})")
    of = {
        "--output": (output, (Doing.FIT,)),
        "--baseline": (baseline, (Doing.FIT, Doing.CHECK)),
        "--variant": (variant, (Doing.FIT, Doing.CHECK)),
        "--fallback": (fallback, (Doing.FIT,)),
        "--fail-on": (fail_on, (Doing.CHECK,)),
    }
    for option, (value, allowed) in of.items():
        if value is not None and doing not in allowed:
            raise UsageError(f"{option} is no option of policy {doing.value}")


def _share(option: str, text: str) -> float:
    """A share, written as a percentage."""
    number, sign, rest = text.strip().partition("%")
    try:
        value = float(number) / 100
    except ValueError:
        value = -1.0
    if not sign or rest or not 0 <= value < 1:
        raise UsageError(f"{option} takes a percentage below 100%, such as 2%, not {text!r}")
    return value


def _sweeps(file: Path, baseline: str | None, variant: Sequence[str] | None) -> list[Sweep]:
    from warplens.compare.surface.reading import side_of, sweep_of  # noqa: PLC0415
    from warplens.readers.sweeps import read_sweep  # noqa: PLC0415

    measurements = read_sweep(file)
    before = side_of(baseline) if baseline is not None else None
    return [sweep_of(measurements, before, side_of(one) if one is not None else None) for one in variant or [None]]  # type: ignore[list-item]


def _sweeps_of(policy: Policy, file: Path) -> list[Sweep]:
    """The policy's own sides, where the file has cells of all of them; else the sides that the file names."""
    from warplens.compare.surface.reading import sweep_of  # noqa: PLC0415
    from warplens.readers.sweeps import read_sweep  # noqa: PLC0415

    measurements = read_sweep(file)
    first, *others = policy.sides
    try:
        return [sweep_of(measurements, first.settings, other.settings) for other in others]
    except UsageError:
        return [sweep_of(measurements)]


def _fitted(
    file: Path, baseline: str | None, variant: Sequence[str] | None, margin: float, fallback: str | None
) -> Policy:
    from warplens.compare.policy import fit_policy  # noqa: PLC0415

    return fit_policy(_sweeps(file, baseline, variant), margin=margin, fallback=fallback)


def _write(found: Policy, output: Path) -> None:
    from warplens.compare.policy import write_policy  # noqa: PLC0415

    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output.name}: the output must be a file in a folder that exists")
    write_policy(found, output)
    note(f"{output.name}: written")


def _show_policy(found: Policy, form: Format) -> None:
    from warplens.compare.policy.files import document_of  # noqa: PLC0415
    from warplens.report.policy import points_table, policy_facts, policy_rows  # noqa: PLC0415

    _answer(
        found.source,
        list(policy_facts(found)),
        points_table(found),
        {"policy": document_of(found), "rows": policy_rows(found)},
        form,
    )


def _check(
    file: Path,
    against: Path,
    baseline: str | None,
    variant: Sequence[str] | None,
    limit: float | None,
    form: Format,
) -> None:
    from warplens.compare.policy import read_policy, regrets_on  # noqa: PLC0415
    from warplens.compare.policy.regret import summary  # noqa: PLC0415
    from warplens.report.policy import check_table, regret_rows, regret_sentence  # noqa: PLC0415

    found = read_policy(file)
    sweeps = _sweeps_of(found, against) if baseline is None and not variant else _sweeps(against, baseline, variant)
    cells = regrets_on(found, sweeps)
    axes = [axis.name for axis in found.axes]
    whole = summary(cells)
    by_reason = {
        reason: summary(cell for cell in cells if cell.reason == reason)
        for reason in dict.fromkeys(cell.reason for cell in cells)
    }
    facts = [f"{file.name} (fitted to {found.source}), held against {sweeps[0].source}"]
    facts += [f"{reason}: {regret_sentence(one, axes)}" for reason, one in by_reason.items()]
    failed = limit is not None and (whole.not_run > 0 or whole.worst is None or whole.worst > limit)
    data = {"regret": _plain(whole), "by_reason": {reason: _plain(one) for reason, one in by_reason.items()}}
    data |= {"limit": limit, "failed": failed, "rows": regret_rows(cells, axes)}
    _answer(sweeps[0].source, facts, check_table(cells, axes), data, form)
    if failed:
        where = f": {regret_sentence(whole, axes)}"
        note(f"the policy is beyond the limit of {100 * (limit or 0):g} %{where}")
        raise typer.Exit(GATE_FAILED)


def _plain(regret: Regret) -> dict[str, Any]:
    where = list(regret.where) if regret.where is not None else None
    return {
        "cells": regret.cells, "worst": regret.worst, "mean": regret.mean, "where": where, "not_run": regret.not_run,
    }  # fmt: skip


def _answer(source: str, facts: Sequence[str], table: Table, data: Mapping[str, Any], form: Format) -> None:
    if form is Format.JSON:
        from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

        with answering() as stdout:
            stdout.flush()
            stdout.buffer.write(envelope("policy", source, data) + b"\n")
        return
    if form is Format.CSV:
        for fact in facts:
            note(fact)
        with answering() as stdout:
            stdout.write(table.rows.write_csv())
        return
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    with answering() as stdout:
        if form is Format.MD:
            from warplens.report.markdown import escaped  # noqa: PLC0415

            stdout.write("\n\n".join(escaped(one_line(fact)) for fact in facts) + "\n\n")
            print_table(table, "md", stdout)
            return
        stdout.write("".join(f"{one_line(fact)}\n" for fact in facts) + "\n")
        stdout.flush()
        print_table(table, "table", stdout)
