"""The program `warplens`: its global options, and the commands of the catalogue."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from warplens._version import __version__
from warplens.cli.edge import answering
from warplens.cli.lazygroup import LazyGroup, register
from warplens.cli.messages import be_quiet

__all__ = ["app", "run", "script"]

_EPILOG = """\b
Begin with:  warplens demo
             warplens report profile.nsys-rep
             warplens kernels profile.sqlite --by category
\b
Exit codes:  0 done · 1 a gate failed · 2 wrong usage or unusable file · 70 a defect of Warplens
"""

app = typer.Typer(
    name="warplens",
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    # Plain help: drawing it with Rich would more than double the time until it stands there.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
register(app)


def _print_version(value: bool) -> None:
    if value:
        with answering() as stdout:
            stdout.write(f"warplens {__version__}\n")
        raise typer.Exit


@app.callback()
def warplens(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", callback=be_quiet, expose_value=False, help="No progress and no notes on stderr."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", expose_value=False, help="Print the traceback when something fails.")
    ] = False,
) -> None:
    """Where the GPU time of a transformer went, why, and what to do about it.

    Warplens reads the profiles that Nsight Systems and PyTorch's profiler write: on any machine, without a GPU and
    without NVIDIA software.
    """
    if ctx.invoked_subcommand is None:
        with answering() as stdout:
            stdout.write(ctx.get_help() + "\n")


def run() -> None:
    """Carry out what the command line says. Exits with one of the codes of `warplens.cli.edge`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Files and programs get UTF-8 under every locale; a terminal that cannot show µ gets a question mark.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    app()


def script() -> NoReturn:
    """`run`, and then the end of the process at once: taking a million rows apart for nobody takes a tenth of a second.

    Everything is written by then: answers are flushed as they are given, files are closed by those who wrote them.
    """
    code: object = 0
    try:
        run()
    except SystemExit as leaving:
        code = leaving.code
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # a stream may be closed, or absent
            stream.flush()
    os._exit(code if isinstance(code, int) else 0)
