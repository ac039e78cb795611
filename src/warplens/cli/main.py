"""The program `warplens`: its options, and commands that are imported when they run, so that `--help` costs nothing."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from warplens._version import __version__
from warplens.cli.catalogue import COMMANDS, Command
from warplens.cli.edge import TERMINATED, State, TerminatedError, answering, be_quiet, complain, end_in_order, guarded
from warplens.errors import UsageError

# Typer brings its own copy of Click in some versions and uses the installed one in others; the classes of contexts and
# commands have no public name that fits both, hence `Any` below.

_SHARED_FLAGS = ("quiet", "debug", "memory", "gpu")

#: The same as they are typed, and those that end the program by themselves.
_SHARED_WORDS = ("--quiet", "-q", "--debug")
_TAKE_A_VALUE = ("--memory", "--gpu")
_OWN_WORDS = ("--help", "-h", "--version", "--install-completion", "--show-completion")

#: Options whose value is a name and no path.
_NAMES_A_RANGE = ("--range", "-r")

#: What names a profile that comes with Warplens begins with; the same as `warplens.readers.shipped.PREFIX`, whose
#: module is imported only where there is such a name.
_SHIPPED = "demo:"


def register(app: typer.Typer) -> None:
    """Make every command of the catalogue known to the program by name and summary only."""
    for command in COMMANDS.values():
        app.command(command.name, help=command.summary)(_placeholder)


class _PlainValues:
    """A command whose arguments and options take plain values as they are, and whose help calls them by their names.

    Typer checks values with Pydantic, whose import takes longer than many a question here. It is asked for what is not
    plain, errors among it. Versions of Typer that do not have this hook work as they always did.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, `--help` included."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                _call_by_name(param)
            if hasattr(param, "get_runtime_param") and not isinstance(param.get_runtime_param, _Conversion):
                param.get_runtime_param = _Conversion(param.get_runtime_param)
        return params


def _call_by_name(argument: Any) -> None:
    """Let usage and help say `PATH`, and `PATH…` of several, where Typer says `{PATH}` and `PATH <path>`."""
    name = argument.metavar or argument.name.upper()
    if argument.nargs == -1 and "…" not in name:
        name += "…"
        argument.metavar = name
    usage = name if argument.required or name.startswith("[") else f"[{name}]"
    argument.get_usage_pieces = lambda _: [usage]
    argument.display_type_rich = lambda **_: ""


class _Conversion:
    """What the values of one parameter are converted with; `typers` makes Typer's own, when it is needed."""

    def __init__(self, typers: Callable[[], Any]) -> None:
        self._typers = typers

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
                return [_plain(each, kind) for each in value]
        except LookupError:
            pass
        return self._typers().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, kind: Any) -> Any:
    """The value of a text as this kind, if it can be nothing else.

    Raises:
        LookupError: it takes more than that, or has a fault.
    """
    if kind is str and isinstance(value, str):
        return value
    if kind is Path and isinstance(value, (str, Path)) and os.access(value, os.R_OK):
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value if isinstance(value, kind) else {member.value: member for member in kind}[value]
    raise LookupError


class _PlainCommand(_PlainValues, TyperCommand):
    pass


class _PlainGroup(_PlainValues, TyperGroup):
    pass


class LazyGroup(_PlainGroup):
    """Lists commands from the catalogue, imports the one that is called, and ends every run through `edge.guarded`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, imported, with the flags that it shares with the program itself."""
        name, placeholder, rest = super().resolve_command(ctx, _meant(args))
        if name is None or placeholder is None:
            return name, placeholder, rest
        command = _load(COMMANDS[name])
        rest = _subcommand_first(rest, COMMANDS[name].parts)
        shared = [param for param in self.params if param.name in _SHARED_FLAGS]
        for each in (command, *getattr(command, "commands", {}).values()):
            own = {option for param in each.params for option in param.opts}
            # collect has its own --memory; only answers about single profiles ask for roofs.
            reads = "--window" in own and name != "ranks"
            each.params.extend(p for p in shared if own.isdisjoint(p.opts) and (reads or p.name != "gpu"))
        if State.gpu is not None and name == "ranks":  # behind its name the option is unknown already
            raise UsageError("ranks has no --gpu: no answer about ranks depends on the GPU's name. Leave it out")
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
        name = prog_name or "warplens"
        given = _with_command(given)
        sys.exit(guarded(lambda: run(with_shipped_profiles(given), name, *rest, **extra), debug="--debug" in given))


def _with_command(words: list[str]) -> list[str]:
    """The words of a line with the command that goes without saying, where options stand before the paths."""
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
    if first.startswith("-") and first not in _OWN_WORDS and any(_is_path(word) for word in words):
        return ["answer", *words]
    return words


def _is_path(word: str) -> bool:
    return word == "-" or (
        not word.startswith("-")
        and (
            word.startswith(_SHIPPED) or "." in word or os.sep in word or os.path.exists(word)  # noqa: PTH110
        )
    )


def _meant(words: list[str]) -> list[str]:
    """The words of a command: paths without one are a question for the answer, `help NAME` is `NAME --help`."""
    first = words[0]
    if first in COMMANDS:
        return words
    if first == "help":
        return [*(words[1:] or ["answer"]), "--help"]
    return ["answer", *words] if _is_path(first) else words


def _subcommand_first(words: list[str], parts: tuple[str, ...]) -> list[str]:
    """The words with the subcommand in front, before which options may stand."""
    place = next((place for place, word in enumerate(words) if word in parts), 0)
    return [*words[place : place + 1], *words[:place], *words[place + 1 :]]


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
    """The words of a command line with paths for `demo:NAME`, which names a profile that comes with Warplens.

    What follows `--` is another program's command line; a range may have any name.

    Raises:
        UsageError: nothing of that name comes with Warplens.
    """
    own = list(words[: words.index("--")] if "--" in words else words)
    for place, word in enumerate(own):
        option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if value == _SHIPPED and own[:place] in ([], ["answer"]):
            continue  # which lists them
        if value.startswith(_SHIPPED) and {option, own[place - 1] if place else ""}.isdisjoint(_NAMES_A_RANGE):
            from warplens.readers.shipped import located

            own[place] = f"{option}{sign}{located(value)}"
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
    """Carry out what the command line says. Exits with one of the codes of `warplens.cli.edge`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Files and programs get UTF-8 under every locale; a terminal that cannot show µ gets a question mark.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    app()


#: When the collector looks for circles of objects: a short process makes few, and with Python's own thresholds it
#: spends a tenth of the time of a report looking. The peak of memory stays the same.
_RARELY: Final = (50_000, 20, 100)


def script() -> NoReturn:
    """`run`, and then the end of the process at once: taking a million rows apart for nobody takes a tenth of a second.

    Everything is written by then: answers are flushed as they are given, files are closed by those who wrote them.
    Under a profiler the process ends in the usual way, for profilers write what they have at its end.
    """
    code: object = 0
    gc.set_threshold(*_RARELY)
    end_in_order()
    try:
        run()
    except SystemExit as leaving:
        code = leaving.code
    except TerminatedError:  # between two of the steps that see to it themselves
        complain("terminated")
        code = TERMINATED
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # a stream may be closed, or absent
            stream.flush()
    if os.environ.get("WARPLENS_COLLECT"):
        sys.exit(code)  # type: ignore[arg-type]
    os._exit(code if isinstance(code, int) else 0)
