"""Standard error, exit codes, and reuse of freed memory. Standard output is only for answers."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import typer

from warplens._start import LARGE_BYTES
from warplens.errors import UsageError, WarplensError

#: Progress is shown for work that takes longer than this.
_SILENT_S: Final = 1.0

_REDRAW_S: Final = 0.2

#: Characters of an error message, some lines of a terminal; names that it quotes may be longer.
_LONGEST_ERROR: Final = 500

# Names in a profile can contain anything; escape sequences in them must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class State:
    """Values of the options that all commands share."""

    quiet = False
    memory: int | None = None  # bytes
    gpu: str | None = None  # name of the GPU for profiles that do not contain it


def start_afresh() -> None:
    """Reset the shared options, which an earlier run in this process may have set."""
    State.quiet, State.memory, State.gpu = False, None, None


def be_quiet(value: bool = True) -> None:
    """Suppress progress and notes from now on; errors are always shown."""
    if value:
        State.quiet = True


def one_line(text: object) -> str:
    """The text as one line without control characters."""
    return _CONTROL.sub(" ", str(text)).strip()


def complain(text: object) -> None:
    """Print an error as exactly one line, `error: …`. A long one loses its middle, since the remedy is at the end."""
    line = one_line(text)
    if len(line) > _LONGEST_ERROR:
        line = f"{line[: _LONGEST_ERROR // 2]} … {line[-_LONGEST_ERROR // 2 :]}"
    _write(f"error: {line}\n")


def end_with(problems: Iterable[object], noun: str) -> None:
    """Report files that could not be read, and exit with `UNUSABLE` if there are any.

    `noun` is the result for the other profiles: `report` or `answer`.
    """
    problems = list(problems)
    for problem in problems:
        complain(f"{problem} (the {noun} is on the other profiles)")
    if problems:
        raise typer.Exit(UNUSABLE)


def note(text: object, *, always: bool = False) -> None:
    """Print a note to standard error: one line, wrapped on a terminal; nothing with `--quiet`, unless `always`."""
    if State.quiet and not always:
        return
    line = one_line(text)
    if sys.stderr is not None and sys.stderr.isatty():
        from warplens.report.terminal import wrapped

        line = "\n".join(wrapped(line, shutil.get_terminal_size().columns))
    _write(f"{line}\n")


@contextmanager
def progress(activity: str) -> Iterator[Callable[[str], None]]:
    """Show the activity if it takes longer than `_SILENT_S` and standard error is a terminal.

    Yields a function that changes the activity.
    """
    if State.quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    line = _StatusLine(activity)
    thread = threading.Thread(target=line.show, daemon=True)
    thread.start()
    try:
        yield line.change
    finally:
        line.done.set()
        thread.join()


class _StatusLine:
    """One line on the terminal that is redrawn until the work is done, and then removed."""

    def __init__(self, activity: str) -> None:
        self.activity = activity
        self.done = threading.Event()

    def change(self, activity: str) -> None:
        self.activity = activity

    def show(self) -> None:
        began = time.monotonic()
        width = 0
        wait = _SILENT_S
        while not self.done.wait(wait):
            wait = _REDRAW_S
            text = f"{one_line(self.activity)} … {time.monotonic() - began:.0f} s"
            _write("\r" + text.ljust(width))
            width = len(text)
        if width:
            _write("\r" + " " * width + "\r")


def _write(text: str) -> None:
    # A closed terminal, or a character that its encoding lacks, must not cause another failure.
    stream = sys.stderr
    if stream is not None:
        encoding = stream.encoding or "utf-8"
        with suppress(OSError):
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()


# --- Exit codes; on failure there is also one line on standard error --------------------------------------------------
#
# | code | meaning |
# |---|---|
# | 0 | done |
# | 1 | a gate failed (for example a comparison above its limit), or a program that was to be run (a side of a sweep) |
# | 2 | wrong usage, or an input or output file that cannot be used |
# | 70 | a bug in Warplens (`EX_SOFTWARE` of BSD's sysexits.h) |
# | 130 | interrupted (Ctrl-C), as a shell reports it: 128 + SIGINT |
# | 143 | terminated (`kill`, a scheduler's time limit): 128 + SIGTERM |
#
# If the reader of the output stops reading (`… | head`), the run ends quietly with 0.


DONE: Final = 0
GATE_FAILED: Final = 1
UNUSABLE: Final = 2
DEFECT: Final = 70
INTERRUPTED: Final = 130
TERMINATED: Final = 143

#: More threads than any machine has processors; Polars creates any number that is set.
_MOST_THREADS: Final = 4096

#: Typer's base class of usage errors. It has no public name, but its subclass has one in all versions.
_WRONG_USAGE: Final[type[Exception]] = typer.BadParameter.__mro__[1]


@contextmanager
def answering() -> Iterator[TextIO]:
    """Standard output, for writing an answer; flushed at the end.

    If it is closed, from the start or by its reader (`… | head`), the rest of the answer is discarded, and the run ends
    with its usual exit code: a gate that fails still fails.
    """
    if sys.stdout is None:  # closed by the parent process
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for as long as the program runs
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()


def guarded(run: Callable[[], Any], *, debug: bool) -> int:
    """Execute a run and turn every outcome into an exit code: its own, or that of success for anything else it returns.

    With `debug`, the traceback of a failure is printed before its line.
    """
    start_afresh()
    try:
        _check_environment()
        code = run()
        if code == INTERRUPTED:  # newer versions of Typer return this for Ctrl-C
            complain("interrupted")
        return code if isinstance(code, int) else DONE
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return INTERRUPTED
    except TerminatedError:
        complain("terminated")
        return TERMINATED
    except BrokenPipeError:
        _silence_stdout()
        return DONE
    except BaseException as error:  # every failure ends as one line, including bugs of Warplens
        # Panics of Rust libraries are not derived from `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if debug:
            traceback.print_exc()
        code, text = _verdict(error)
        complain(text)
        return code


class TerminatedError(BaseException):
    """SIGTERM was received. Not an `Exception`, like `KeyboardInterrupt`, so that only clean-up code runs."""


def end_in_order() -> None:
    """Make SIGTERM raise `TerminatedError`, so that temporary and partial files are removed as after Ctrl-C."""

    def terminate(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise TerminatedError

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)


def _check_environment() -> None:
    """Check environment variables with which libraries would fail later with messages of their own."""
    threads = os.environ.get("POLARS_MAX_THREADS", "1")
    if not (threads.isascii() and threads.isdigit() and 0 < int(threads[:9]) <= _MOST_THREADS):
        raise UsageError(
            f"POLARS_MAX_THREADS is {threads!r}: unset it, or set it to a number from 1 to {_MOST_THREADS}"
        )


#: Messages of the dynamic loader and of thread creation when the address space of the process is used up.
_NO_MEMORY: Final = ("failed to map segment from shared object", "cannot allocate memory", "can't start new thread")


def _verdict(error: BaseException) -> tuple[int, str]:
    if isinstance(error, _WRONG_USAGE):
        return UNUSABLE, _usage_text(error)
    if isinstance(error, WarplensError):
        return UNUSABLE, str(error)
    if isinstance(error, OSError) and error.strerror:
        file = f"{os.path.basename(os.fsdecode(error.filename))}: " if error.filename else ""  # noqa: PTH119
        return UNUSABLE, f"{file}{error.strerror}"
    if isinstance(error, MemoryError) or any(message in str(error) for message in _NO_MEMORY):
        return UNUSABLE, "there is not enough memory for this profile. Use a machine with more"
    description = f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__
    return DEFECT, f"{description}. This is a bug in Warplens: please run again with --debug and report the output"


#: Prefixes of messages by Pydantic.
_LIBRARY_WORDS: Final = re.compile(r"Value error, |Input (?=should be )")


def _usage_text(error: Any) -> str:
    text = _LIBRARY_WORDS.sub("", one_line(error.format_message()))
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    return f"{text if text.endswith(('.', '?')) else text + '.'} See {context.command_path} --help"


def _silence_stdout() -> None:
    """Redirect standard output to the null device, so that the interpreter does not fail to flush it at exit."""
    # There may be no stream at all, or one without a descriptor (in tests).
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Parameters of mallopt, from <malloc.h> of glibc. Blocks up to the given size are taken from the heap instead of fresh
# pages, the heap is not returned while the program runs, and all threads share one heap instead of one each.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGEST_REUSED_BLOCK: Final = 1 << 30


def reuse_freed_memory(paths: Iterable[Path]) -> None:
    """Make glibc reuse freed memory for new arrays if the input is large.

    By default glibc returns freed blocks of 32 MB or more to the system at once, and the next block of that size takes
    a page fault per 4 KB: for a million kernels a quarter of all processor time. A command ends soon after its
    analysis, so memory need not be returned. With other C libraries (musl, macOS, Windows) nothing changes.
    """
    if sum(path.stat().st_size for path in paths if path.is_file()) < LARGE_BYTES:
        return
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None
    except ValueError:
        glibc = None
    if glibc:
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_REUSED_BLOCK)
        library.mallopt(_M_TRIM_THRESHOLD, -1)
        library.mallopt(_M_ARENA_MAX, 1)
