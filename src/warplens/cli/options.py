"""Arguments and options shared by several commands, so that they behave the same everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from warplens.analysis.window import parse_span
from warplens.patterns import NUMBER

#: Default of `--limit` for `table` and `md`: about as many rows as a terminal shows.
TABLE_ROWS: Final = 20


#: Output formats of a table.
Format: TypeAlias = Literal["table", "json", "csv", "md"]


def _complete_windows(incomplete: str) -> list[str]:
    return [word for word in ("steady", "all") if word.startswith(incomplete)]


def _checked_window(spec: str) -> str:
    """Check a window before a large profile is read."""
    if spec not in ("steady", "all"):
        parse_span(spec)
    return spec


def argument(metavar: str, meaning: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, show_default=False, help=meaning)


def option(metavar: str, meaning: str, *names: str, **more: Any) -> Any:
    """An option with a value, named after its parameter unless `names` are given; its default is not shown."""
    return typer.Option(*names, metavar=metavar, help=meaning, **{"show_default": False, **more})


ProfileArgument = Annotated[
    Path,
    argument(
        "PATH",
        "A profile from Nsight Systems (.sqlite, .nsys-rep) or the PyTorch profiler (.json), also compressed.",
    ),
]

FormatOption = Annotated[
    Format,
    typer.Option("--format", "-f", help="Output for people (table, md), or exact numbers for programs (json, csv)."),
]

WindowOption = Annotated[
    str,
    option(
        "steady|all|START:END",
        "Part of the profile: its steady steps without warm-up, everything, or a span such as 1.5s:2s or 250ms:",
        "--window",
        "-w",
        callback=_checked_window,
        autocompletion=_complete_windows,
        show_default=True,
    ),
]

RangeOption = Annotated[
    str | None,
    option("NAME", "Only work launched inside ranges (NVTX, record_function) of this name.", "--range", "-r"),
]

StepTimeOption = Annotated[
    str | None,
    option(
        "TIME",
        "Time of a step without a profiler, as you measured it (12.5ms): it tells how much the profiler slowed down "
        "the host, which is otherwise assumed.",
        "--step-time",
    ),
]

LimitOption = Annotated[
    int | None,
    option(
        "N",
        f"Rows to print, 0 for all; by default {TABLE_ROWS} in table and md, all in json and csv.",
        "--limit",
        "-n",
        min=0,
    ),
]


def documents_option(name: str) -> Any:
    """The `--output` of a command that otherwise prints its answer."""
    meaning = f"Write {name}.html, .md and .json to this folder, or the one FILE named so, instead of printing."
    return option("DIR", meaning, "--output", "-o")


def share_in(text: str) -> float | None:
    """A percentage (`5%`) or a number below 1 (`0.05`) as a share, at least 0 and finite; None for any other text."""
    number, sign, rest = text.strip().partition("%")
    if rest.strip() or not NUMBER.fullmatch(number):
        return None
    share = float(number) / (100 if sign else 1)
    return share if 0 <= share < (float("inf") if sign else 1) else None


def given_share(text: str) -> float:
    """The share below 1 given as a percentage (`5%`) or a number (`0.05`).

    Raises:
        BadParameter: the text is neither.
    """
    if (share := share_in(text)) is None or share >= 1:
        raise typer.BadParameter(f"{text!r} is no share: write a percentage below 100%, such as 2%, or 0.02")
    return share


def share_option(meaning: str) -> Any:
    """An option for a share, as read by `given_share`; checked before any profile is read."""

    def check(text: str | None) -> str | None:
        if text is not None:
            given_share(text)
        return text

    return option("PERCENT", f"{meaning} Written as 5% or 0.05.", callback=check, show_default=True)


def flag(name: str, meaning: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=meaning)


def words_option(*names: str, words: Sequence[str], meaning: str, several: bool = False) -> Any:
    """An option whose value is one of these words, or `several` joined by commas; checked before a profile is read."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [before + comma + word for word in words if word.startswith(last)]

    return typer.Option(
        *names, metavar="|".join(words), callback=_only(words, several), autocompletion=complete, help=meaning
    )


def group_by(*keys: str, several: bool = False) -> Any:
    """The `--by` option of a table that can be grouped by these keys, or by several of them at once."""
    joined = f"; several may be joined: {keys[0]},{keys[1]}" if several else ""
    return words_option("--by", words=keys, meaning=f"What a row stands for{joined}.", several=several)


def with_parameters(command: Callable[..., None], parameters: Mapping[str, tuple[Any, Any]]) -> None:
    """Give a function of keywords these parameters (annotation and default), of which Typer makes its options."""
    command.__annotations__ = {name: kind for name, (kind, _) in parameters.items()}
    command.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in parameters.items()
    ])  # fmt: skip


def _only(words: Sequence[str], several: bool) -> Callable[[str], str]:
    def checked(value: str) -> str:
        chosen = value.split(",") if several else [value]
        for word in chosen:
            if word not in words:
                raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}")
        if len(set(chosen)) < len(chosen):
            raise typer.BadParameter(f"{value!r} names something twice")
        return value

    return checked
