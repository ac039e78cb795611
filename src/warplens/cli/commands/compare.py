"""`warplens compare`: why a variant is slower or faster than its baseline, and whether that is decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warplens.cli.comparing import Content, find_sides
from warplens.cli.comparisonoutcomes import Asked, of_counters, of_measurements, of_traces
from warplens.cli.comparisonoutput import show_outcome, write_outcome
from warplens.cli.edge import GATE_FAILED, answering
from warplens.cli.messages import complain, note, one_line, progress
from warplens.cli.options import Format, FormatOption, LimitOption, RangeOption, WindowOption
from warplens.cli.reporting import checked_folder
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.cli.comparisonoutput import Outcome

__all__ = ["compare"]


#: A variant a hundred times as slow is beyond what a gate is for; more is a slip of the keyboard.
_MOST_LIMIT: Final = 100.0

#: Nearer to 100 % no interval of a few steps is finite.
_MOST_CONFIDENCE: Final = 0.999999


def _limit(text: str | None) -> str | None:
    """Refuse now, not after two large profiles were read."""
    if text is not None and _share(text) > _MOST_LIMIT:
        raise typer.BadParameter(f"{text!r} is no limit: write at most {100 * _MOST_LIMIT:.0f}%")
    return text


def _margin(text: str) -> str:
    if _share(text) >= 1:
        raise typer.BadParameter(f"{text!r} is no margin: within 100% and more all that is faster is the same")
    return text


def _share(text: str) -> float:
    number, sign, rest = text.strip().partition("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = -1.0
    if not sign or rest.strip() or not 0 <= share < float("inf"):
        raise typer.BadParameter(f"{text!r} is no percentage: write 5% for five in a hundred")
    return share


def _confidence(text: str) -> str:
    if not 0.5 <= _share(text) <= _MOST_CONFIDENCE:
        most = f"{100 * _MOST_CONFIDENCE:g}%"
        raise typer.BadParameter(f"{text!r} is no confidence: write a percentage from 50% to {most}, such as 95%")
    return text


def _flops(text: str | None) -> str | None:
    if text is not None:
        _both_flops(text)
    return text


def _both_flops(text: str) -> tuple[float, float]:
    try:
        before, after = (float(part) for part in text.split(","))
    except ValueError:
        before = after = -1.0
    if not (0 < before < float("inf") and 0 < after < float("inf")):
        raise typer.BadParameter(f"{text!r} is no pair of numbers above zero: write 35.1e9,11.1e9")
    return before, after


def compare(
    baseline: Annotated[
        Path,
        typer.Argument(
            metavar="BASELINE",
            show_default=False,
            help="A trace, a folder of repeats, a measurements file, or a report of Nsight Compute.",
        ),
    ],
    variant: Annotated[
        Path,
        typer.Argument(metavar="VARIANT", show_default=False, help="The same of what is held against it."),
    ],
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="PERCENT",
            show_default=False,
            callback=_limit,
            help="Exit with 1 if the variant is slower by more than this, decided: 5%.",
        ),
    ] = None,
    margin: Annotated[
        str,
        typer.Option(metavar="PERCENT", callback=_margin, help="Differences within this do not matter."),
    ] = "2%",
    level: Annotated[
        str,
        typer.Option(metavar="PERCENT", callback=_confidence, help="Confidence of the intervals."),
    ] = "95%",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    baseline_where: Annotated[
        str | None,
        typer.Option(
            "--baseline-where",
            metavar="SETTING=VALUE,…",
            show_default=False,
            help="Of measurements, only cells with these settings: method=none.",
        ),
    ] = None,
    variant_where: Annotated[
        str | None,
        typer.Option(
            "--variant-where", metavar="SETTING=VALUE,…", show_default=False, help="The same of the other side."
        ),
    ] = None,
    counters_baseline: Annotated[
        Path | None,
        typer.Option(
            "--counters-baseline",
            metavar="FILE",
            show_default=False,
            help="A report of Nsight Compute on the baseline (.ncu-rep or CSV), beside traces.",
        ),
    ] = None,
    counters_variant: Annotated[
        Path | None,
        typer.Option("--counters-variant", metavar="FILE", show_default=False, help="The same of the variant."),
    ] = None,
    flops: Annotated[
        str | None,
        typer.Option(
            "--flops",
            metavar="BASELINE,VARIANT",
            show_default=False,
            callback=_flops,
            help="FLOPs of a step of each side, where the traces do not tell: 35.1e9,11.1e9.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            show_default=False,
            help="Write compare.html, compare.md and compare.json to this folder instead of printing.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Why a variant is slower or faster than its baseline, and whether that is decided.

    The difference of a step's wall time is split into parts that add up to it exactly. Steps are samples, files of a
    folder are repeats: only repeats are independent of each other. Undecided is an answer, and does not fail the gate.
    """
    folder = checked_folder(output) if output else None
    asked = Asked(
        margin=_share(margin),
        level=round(1 - _share(level), 9),
        fail_on=None if fail_on is None else _share(fail_on),
        window=window,
        range_name=range_name,
        where=(baseline_where, variant_where),
        counters=(counters_baseline, counters_variant),
        flops=None if flops is None else _both_flops(flops),
    )
    sides = find_sides(baseline, variant)
    _check(sides[0].content, asked)
    find = {Content.TRACES: of_traces, Content.MEASUREMENTS: of_measurements, Content.COUNTERS: of_counters}
    outcome = find[sides[0].content](sides, asked)
    if folder is None:
        show_outcome(outcome, form, limit)
    else:
        with progress("writing"):
            written = write_outcome(outcome, folder)
        with answering() as stdout:
            stdout.write("".join(f"{one_line(path)}\n" for path in written))
    _end_gate(outcome)


def _check(content: Content, asked: Asked) -> None:
    """Refuse options that say nothing about sides of this kind, rather than pass over them.

    Raises:
        UsageError: there is such an option.
    """
    if content is not Content.MEASUREMENTS and any(asked.where):
        raise UsageError(
            f"--baseline-where and --variant-where choose cells of measurements; each side is {content.value}"
        )
    if content is not Content.TRACES and (asked.window != "steady" or asked.range_name is not None):
        raise UsageError(f"--window and --range choose a part of a trace; each side is {content.value}")
    if content is not Content.TRACES and any(asked.counters):
        raise UsageError(
            f"--counters-baseline and --counters-variant stand beside traces; each side is {content.value}"
        )
    if content is not Content.TRACES and asked.flops is not None:
        raise UsageError(f"--flops tells what traces cannot; each side is {content.value}")
    if sum(path is not None for path in asked.counters) == 1:
        raise UsageError("counters are compared with counters: give both --counters-baseline and --counters-variant")
    if content is Content.COUNTERS and asked.fail_on is not None:
        raise UsageError(
            "--fail-on needs repeated step times, which reports of Nsight Compute lack: gate on traces or measurements"
        )


def _end_gate(outcome: Outcome) -> None:
    if outcome.failed:
        # Never silent, whatever else --quiet suppresses: whoever reads the log of a failed run looks for this line.
        complain("; ".join(outcome.gate))
        raise typer.Exit(GATE_FAILED)
    for line in outcome.gate:
        note(line)
