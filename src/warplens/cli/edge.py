"""Every way a run can end: an exit code, and on failure one line on standard error. No traceback unless asked for.

| code | meaning |
|---|---|
| 0 | done |
| 1 | a gate failed (for example a comparison above its limit) |
| 2 | wrong usage, or an input or output file that cannot be used |
| 70 | a defect of Warplens (`EX_SOFTWARE` of BSD's sysexits.h) |
| 130 | interrupted (Ctrl-C), as a shell reports it: 128 + SIGINT |
| 141 | whoever read the output stopped reading (`… | head`): 128 + SIGPIPE |
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import typer

from warplens.cli.messages import complain, one_line, start_afresh
from warplens.errors import WarplensError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

__all__ = ["DEFECT", "DONE", "GATE_FAILED", "INTERRUPTED", "OUTPUT_CLOSED", "UNUSABLE", "answering", "guarded"]

DONE: Final = 0
GATE_FAILED: Final = 1
UNUSABLE: Final = 2
DEFECT: Final = 70
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141

#: What Typer raises for wrong usage. Its base has a public name in no version of Typer, but this heir has in all.
_WRONG_USAGE: Final[type[Exception]] = typer.BadParameter.__mro__[1]


class _OutputClosedError(Exception):
    """Whoever read our standard output has gone. Not an `OSError`, for Typer exits by itself with code 1 on those."""


@contextmanager
def answering() -> Iterator[TextIO]:
    """Standard output, for writing an answer to it; all of it has been written at the end."""
    if sys.stdout is None:  # closed by whoever started us
        raise _OutputClosedError
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise _OutputClosedError from None


def guarded(run: Callable[[], Any], *, debug: bool) -> int:
    """Carry a run out; whatever happens becomes an exit code.

    Args:
        run: what to do. A returned number is the exit code.
        debug: print the traceback of a failure before its line.
    """
    start_afresh()
    try:
        code = run()
        if code == INTERRUPTED:  # new versions of Typer turn Ctrl-C into this
            complain("interrupted")
        return code if isinstance(code, int) else DONE
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return INTERRUPTED
    except (_OutputClosedError, BrokenPipeError):
        _silence_stdout()
        return OUTPUT_CLOSED
    except Exception as error:  # every failure ends as one line, defects of our own included
        if debug:
            traceback.print_exc()
        code, text = _verdict(error)
        complain(text)
        return code


def _verdict(error: Exception) -> tuple[int, str]:
    if isinstance(error, _WRONG_USAGE):
        return UNUSABLE, _usage_text(error)
    if isinstance(error, WarplensError):
        return UNUSABLE, str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.path.basename(os.fsdecode(error.filename))}: " if error.filename else ""  # noqa: PTH119
        return UNUSABLE, f"{where}{error.strerror}"
    if isinstance(error, MemoryError):
        return UNUSABLE, "there is not enough memory for this profile. Use a machine with more"
    what = f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__
    return DEFECT, f"{what}. This is a defect of Warplens: run again with --debug and report what it prints, please"


def _usage_text(error: Any) -> str:
    text = one_line(error.format_message())
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    return f"{text if text.endswith(('.', '?')) else text + '.'} See {context.command_path} --help"


def _silence_stdout() -> None:
    """Keep the interpreter from complaining, on its way out, that it cannot flush."""
    # There may be no stream at all, or one without a descriptor, as in tests.
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
