"""The program `warplens`: its options, and lazy loading of commands, so that `--help` is fast."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from warplens._version import __version__
from warplens.cli.catalogue import COMMANDS, Command
from warplens.cli.process import (
    TERMINATED,
    State,
    TerminatedError,
    answering,
    be_quiet,
    complain,
    end_in_order,
    guarded,
)
from warplens.errors import UsageError

# Some versions of Typer include a copy of Click and others use the installed one; the classes of contexts and commands
# have no public name that fits both, hence `Any` below.

_SHARED_FLAGS = ("quiet", "debug", "memory", "gpu")

#: The shared options as typed, without and with a value, and options that end the program by themselves.
_SHARED_WORDS = ("--quiet", "-q", "--debug")
_TAKE_A_VALUE = ("--memory", "--gpu")
_OWN_WORDS = ("--help", "-h", "--version", "--install-completion", "--show-completion")

#: Options whose value is the name of a range, not a path.
_NAMES_A_RANGE = ("--range", "-r")

#: Prefix of the names of shipped profiles, equal to `warplens.readers.shipped.PREFIX`, whose module is imported only if
#: such a name occurs.
_SHIPPED = "demo:"


def register(app: typer.Typer) -> None:
    """Register every command of the catalogue by name and summary, without importing it."""
    for command in COMMANDS.values():
        app.command(command.name, help=command.summary)(_placeholder)


class _PlainValues:
    """A command that converts plain values itself, and whose help shows arguments by name.

    Typer converts values with Pydantic, whose import takes longer than many a command here. It is used only for values
    that are not plain, and for errors. Versions of Typer without this hook are not affected.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """The arguments and options, including `--help`."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                _call_by_name(param)
            if hasattr(param, "get_runtime_param") and not isinstance(param.get_runtime_param, _Conversion):
                param.get_runtime_param = _Conversion(param.get_runtime_param)
        return params


def _call_by_name(argument: Any) -> None:
    """Make usage and help show `PATH`, or `PATH…` for several, instead of Typer's `{PATH}` and `PATH <path>`."""
    name = argument.metavar or argument.name.upper()
    if argument.nargs == -1 and "…" not in name:
        name += "…"
        argument.metavar = name
    usage = name if argument.required or name.startswith("[") else f"[{name}]"
    argument.get_usage_pieces = lambda _: [usage]
    argument.display_type_rich = lambda **_: ""


class _Conversion:
    """Converts the values of one parameter, by Typer's own conversion if they are not plain."""

    def __init__(self, typer_conversion: Callable[[], Any]) -> None:
        self._typer_conversion = typer_conversion

    def __call__(self) -> _Conversion:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        kind = get_args(param.type_descriptor.annotation)[0] if several else param.type_descriptor.annotation
        if value is None:
            return () if several else None
        try:
            if not several:
                return _plain(value, kind)
            if not isinstance(value, str):
                return [_plain(item, kind) for item in value]
        except LookupError:
            pass
        return self._typer_conversion().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, kind: Any) -> Any:
    """The value converted to this type, if the conversion is trivial.

    Raises:
        LookupError: it is not, or the value is invalid.
    """
    if kind is str and isinstance(value, str):
        return value
    if kind is Path and isinstance(value, (str, Path)) and os.access(value, os.R_OK):
        return Path(value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    raise LookupError


class _PlainCommand(_PlainValues, TyperCommand):
    pass


class _PlainGroup(_PlainValues, TyperGroup):
    pass


class LazyGroup(_PlainGroup):
    """Lists commands from the catalogue, imports the one that is called, and executes runs by `process.guarded`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the arguments name, and add the shared options to it."""
        name, placeholder, rest = super().resolve_command(ctx, _with_answer_command(args))
        if name is None or placeholder is None:
            return name, placeholder, rest
        command = _load(COMMANDS[name])
        rest = _subcommand_first(rest, COMMANDS[name].parts)
        shared = [param for param in self.params if param.name in _SHARED_FLAGS]
        for subcommand in (command, *getattr(command, "commands", {}).values()):
            own = {option for param in subcommand.params for option in param.opts}
            # collect has its own --memory; only answers about single profiles use roofs.
            uses_roofs = "--window" in own and name != "ranks"
            subcommand.params.extend(p for p in shared if own.isdisjoint(p.opts) and (uses_roofs or p.name != "gpu"))
        if State.gpu is not None and name == "ranks":  # after the command's name, the option is unknown anyway
            raise UsageError("ranks has no --gpu: no answer about ranks depends on the GPU's name. Leave it out")
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, under the headings of the catalogue."""
        for section, commands in groupby(COMMANDS.values(), key=lambda command: command.section):
            with formatter.section(section):
                formatter.write_dl([(command.name, command.summary) for command in commands])

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> Any:
        """Run the program and exit; see `process` for the exit codes."""
        words = _with_command(list(sys.argv[1:] if args is None else args))
        extra["standalone_mode"] = False  # errors are raised, instead of being printed by Typer
        run = super().main
        name = prog_name or "warplens"
        sys.exit(guarded(lambda: run(with_shipped_profiles(words), name, *rest, **extra), debug="--debug" in words))


def _with_command(words: list[str]) -> list[str]:
    """The command line with `answer` added, if options of it precede its paths."""
    if words == ["help"]:
        return ["--help"]
    rest = iter(words)
    for first in rest:
        if first in _TAKE_A_VALUE:
            next(rest, None)
        elif first not in _SHARED_WORDS and first.partition("=")[0] not in _TAKE_A_VALUE:
            break
    else:
        return words
    if first.startswith("-") and first not in _OWN_WORDS and (first == "--" or any(map(_is_path, words))):
        return ["answer", *words]
    return words


def _is_path(word: str) -> bool:
    return word == "-" or (
        not word.startswith("-")
        and (
            word.startswith(_SHIPPED) or "." in word or os.sep in word or os.path.exists(word)  # noqa: PTH110
        )
    )


def _with_answer_command(words: list[str]) -> list[str]:
    """The command line with `answer` added before a path, and `help NAME` replaced by `NAME --help`."""
    first = words[0]
    if first in COMMANDS:
        return words
    if first == "help":
        return [*(words[1:] or ["answer"]), "--help"]
    return ["answer", *words] if _is_path(first) else words


def _subcommand_first(words: list[str], parts: tuple[str, ...]) -> list[str]:
    """The words with the subcommand moved to the front, since options may precede it."""
    index = next((index for index, word in enumerate(words) if word in parts), 0)
    return [*words[index : index + 1], *words[:index], *words[index + 1 :]]


def _placeholder() -> None:
    raise AssertionError("a command must be resolved before it runs")


def _load(command: Command) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if command.parts:
        single.callback(cls=_PlainGroup)(command.function())
        for name, part in command.subcommands().items():
            single.command(name, cls=_PlainCommand)(part)
    else:
        single.command(command.name, cls=_PlainCommand)(command.function())
    return typer.main.get_command(single)


def with_shipped_profiles(words: Sequence[str]) -> list[str]:
    """The command line with `demo:NAME`, the name of a shipped profile, replaced by its path.

    The words after `--` are another program's command line and not replaced, nor are names of ranges.

    Raises:
        UsageError: there is no shipped file of that name.
    """
    own = list(words[: words.index("--")] if "--" in words else words)
    for index, word in enumerate(own):
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if value == _SHIPPED and own[:index] in ([], ["answer"]):
            continue  # `answer demo:` lists the shipped profiles
        if value.startswith(_SHIPPED) and {option, own[index - 1] if index else ""}.isdisjoint(_NAMES_A_RANGE):
            from warplens.readers.shipped import located

            own[index] = f"{option}{equals}{located(value)}"
    return [*own, *words[len(own) :]]


_EPILOG = """\b
Begin with:  warplens demo
             warplens profile.nsys-rep
             warplens kernels profile.sqlite --by category
A command:   warplens help kernels
\b
Exit codes: 0 done · 1 a gate failed · 2 wrong usage or unusable file ·
70 a bug in Warplens
"""

app = typer.Typer(
    name="warplens",
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    # Plain help: with Rich, it would take more than twice as long.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
register(app)


def _print_version(value: bool) -> None:
    if value:
        with answering() as stdout:
            stdout.write(f"warplens {__version__}\n")
        raise typer.Exit


def _name_gpu(value: str | None) -> None:
    if value is not None:
        State.gpu = value


def _limit_memory(value: str | None) -> None:
    if value is not None:
        from warplens.cli.memory import limit_to

        limit_to(value)


@app.callback()
def warplens(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", callback=be_quiet, expose_value=False, help="Print neither progress nor notes to stderr."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", expose_value=False, help="Print the traceback on failure.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            callback=_limit_memory,
            expose_value=False,
            help="Most memory to use, such as 2GB; half of the free memory by default.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            callback=_name_gpu,
            expose_value=False,
            help="The GPU that it ran on (H100 PCIe, MI300X), where the profile does not say.",
        ),
    ] = None,
) -> None:
    """Where the GPU time of a transformer went, why, and what to do about it.

    Warplens reads what Nsight Systems, PyTorch's profiler and Nsight Compute write: on any machine, without a GPU and
    without NVIDIA software.
    """
    if ctx.invoked_subcommand is None:
        with answering() as stdout:
            stdout.write(ctx.get_help() + "\n")


def run() -> None:
    """Execute the command line, and exit with one of the codes of `warplens.cli.process`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Files and programs get UTF-8 under every locale; a terminal without µ gets a question mark.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    app()


#: Thresholds of the garbage collector. A short process makes few reference cycles, and with Python's own thresholds
#: the collector takes a tenth of the time of a report. Peak memory is the same.
_GC_THRESHOLDS: Final = (50_000, 20, 100)


def script() -> NoReturn:
    """`run`, and then end the process at once: freeing the objects of a million rows takes 0.1 s.

    By then everything is written: answers are flushed, and files are closed. Under `warplens collect` the process ends
    in the usual way, since profilers write their results at exit.
    """
    code: object = 0
    gc.set_threshold(*_GC_THRESHOLDS)
    end_in_order()
    try:
        run()
    except SystemExit as request:
        code = request.code
    except TerminatedError:  # outside of `guarded`
        complain("terminated")
        code = TERMINATED
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # a stream may be closed, or absent
            stream.flush()
    if os.environ.get("WARPLENS_COLLECT"):
        sys.exit(code)  # type: ignore[arg-type]
    os._exit(code if isinstance(code, int) else 0)
