"""A command group that imports a command when it runs, so that `warplens --help` costs no imports of the library."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Any

import typer
from typer.core import TyperGroup

from warplens.cli.catalogue import COMMANDS, Command
from warplens.cli.edge import guarded

__all__ = ["LazyGroup", "register"]

# Typer brings its own copy of Click in some versions and uses the installed one in others; the classes of contexts and
# commands have no public name that fits both, hence `Any` below.

_SHARED_FLAGS = ("quiet", "debug")


def register(app: typer.Typer) -> None:
    """Make every command of the catalogue known to the program by name and summary only."""
    for command in COMMANDS.values():
        app.command(command.name, help=command.summary)(_placeholder)


class LazyGroup(TyperGroup):
    """Lists commands from the catalogue, imports the one that is called, and ends every run through `edge.guarded`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, imported, with the flags that it shares with the program itself."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        if name is None or placeholder is None:
            return name, placeholder, rest
        command = _load(COMMANDS[name])
        command.params.extend(param for param in self.params if param.name in _SHARED_FLAGS)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, under the headings of the catalogue."""
        for section, commands in groupby(COMMANDS.values(), key=lambda command: command.section):
            with formatter.section(section):
                formatter.write_dl([(command.name, command.summary) for command in commands])

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> Any:
        """Run the program and exit; see `edge` for the exit codes."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False  # errors come through, instead of being printed by Typer
        run = super().main
        sys.exit(guarded(lambda: run(args, prog_name or "warplens", *rest, **extra), debug="--debug" in given))


def _placeholder() -> None:
    raise AssertionError("a command must be resolved before it runs")


def _load(command: Command) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(command.name)(command.function())
    return typer.main.get_command(single)
