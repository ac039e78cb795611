"""The edge of the program: standard error, exit codes, and memory. Standard output belongs to the answer alone."""

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

from warplens.errors import UsageError, WarplensError

#: Work that takes less than this is over before a person wonders.
_SILENT_S: Final = 1.0

_REDRAW_S: Final = 0.2

#: Characters of an error: some lines of a terminal. Names that it quotes may be of any length.
_LONGEST_ERROR: Final = 500

# Names in a profile are whatever its program wrote; an escape sequence in one must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class State:
    """What the options of the program itself ask for."""

    quiet = False
    memory: int | None = None  # bytes
    gpu: str | None = None  # what the profiles were recorded on, where they do not say


def start_afresh() -> None:
    """Forget what the options of a former run in this process asked for."""
    State.quiet, State.memory, State.gpu = False, None, None


def be_quiet(value: bool = True) -> None:
    """Suppress progress and notes from now on; errors are always shown."""
    if value:
        State.quiet = True


def one_line(text: object) -> str:
    """The text as one line without control characters."""
    return _CONTROL.sub(" ", str(text)).strip()


def complain(text: object) -> None:
    """Why the run failed: exactly one line, `error: …`; a long one without its middle, for what to do stands last."""
    line = one_line(text)
    if len(line) > _LONGEST_ERROR:
        line = f"{line[: _LONGEST_ERROR // 2]} … {line[-_LONGEST_ERROR // 2 :]}"
    _write(f"error: {line}\n")


def end_with(problems: Iterable[object], what: str) -> None:
    """Say which files could not be read, and end so; nothing where all were.

    Args:
        what: of the other profiles there is nevertheless: `report`, `answer`.
    """
    code = DONE
    for problem in problems:
        complain(f"{problem} (the {what} is on the other profiles)")
        code = UNUSABLE
    if code:
        raise typer.Exit(code)


def note(text: object) -> None:
    """Something to know beside the answer: one line, wrapped on a terminal; not shown with `--quiet`."""
    if State.quiet:
        return
    line = one_line(text)
    if sys.stderr is not None and sys.stderr.isatty():
        from warplens.report.terminal import wrapped

        line = "\n".join(wrapped(line, shutil.get_terminal_size().columns))
    _write(f"{line}\n")


@contextmanager
def progress(activity: str) -> Iterator[Callable[[str], None]]:
    """Say what is going on if it takes longer than a second; nothing unless standard error is a terminal.

    Args:
        activity: what is going on, e.g. `reading profile.sqlite`.

    Yields:
        A function that changes what is said.
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
        line.over.set()
        thread.join()


class _StatusLine:
    """One line on the terminal that is drawn over itself until the work is over, and then removed."""

    def __init__(self, activity: str) -> None:
        self.activity = activity
        self.over = threading.Event()

    def change(self, activity: str) -> None:
        self.activity = activity

    def show(self) -> None:
        began = time.monotonic()
        width = 0
        wait = _SILENT_S
        while not self.over.wait(wait):
            wait = _REDRAW_S
            text = f"{one_line(self.activity)} … {time.monotonic() - began:.0f} s"
            _write("\r" + text.ljust(width))
            width = len(text)
        if width:
            _write("\r" + " " * width + "\r")


def _write(text: str) -> None:
    # What cannot be said (a closed terminal, a character that its encoding lacks) must not turn into another failure.
    stream = sys.stderr
    if stream is not None:
        encoding = stream.encoding or "utf-8"
        with suppress(OSError):
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()


# --- Every way a run can end: an exit code, and on failure one line on standard error ---------------------------------
#
# | code | meaning |
# |---|---|
# | 0 | done |
# | 1 | a gate failed (for example a comparison above its limit), or what was to be run (a side of a sweep) |
# | 2 | wrong usage, or an input or output file that cannot be used |
# | 70 | a bug in Warplens (`EX_SOFTWARE` of BSD's sysexits.h) |
# | 130 | interrupted (Ctrl-C), as a shell reports it: 128 + SIGINT |
# | 143 | terminated (`kill`, a scheduler's time limit): 128 + SIGTERM |
#
# Whoever reads the output may stop reading (`… | head`): that is no failure, and ends quietly with 0.


DONE: Final = 0
GATE_FAILED: Final = 1
UNUSABLE: Final = 2
DEFECT: Final = 70
INTERRUPTED: Final = 130
TERMINATED: Final = 143

#: More threads than processors of any machine; Polars makes as many as it is told.
_MOST_THREADS: Final = 4096

#: What Typer raises for wrong usage. Its base has a public name in no version of Typer, but this heir has in all.
_WRONG_USAGE: Final[type[Exception]] = typer.BadParameter.__mro__[1]


@contextmanager
def answering() -> Iterator[TextIO]:
    """Standard output, for writing an answer to it; all of it has been written at the end.

    Whoever reads it may stop (`… | head`), or it was closed from the begin. Then the rest of the answer goes nowhere,
    and the run ends as it would have: a gate that fails still fails.
    """
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for as long as the program runs
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()


def guarded(run: Callable[[], Any], *, debug: bool) -> int:
    """Carry a run out; whatever happens becomes an exit code.

    Args:
        run: what to do. A returned number is the exit code.
        debug: print the traceback of a failure before its line.
    """
    start_afresh()
    try:
        check_environment()
        code = run()
        if code == INTERRUPTED:  # new versions of Typer turn Ctrl-C into this
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
    except BaseException as error:  # every failure ends as one line, defects of our own included
        # Libraries in Rust derive their panics from no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if debug:
            traceback.print_exc()
        code, text = _verdict(error)
        complain(text)
        return code


class TerminatedError(BaseException):
    """The process is asked to end (SIGTERM). Like `KeyboardInterrupt` no `Exception`, so that all is put in order."""


def end_in_order() -> None:
    """Let SIGTERM remove temporary files and half-written ones, too, and not only Ctrl-C."""

    def terminate(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows puts things in order
        raise TerminatedError

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)


def check_environment() -> None:
    """Refuses settings of libraries with which they would fail later, in words of their own.

    Raises:
        UsageError: says which variable, and what it may be.
    """
    threads = os.environ.get("POLARS_MAX_THREADS", "1")
    if not (threads.isascii() and threads.isdigit() and 0 < int(threads[:9]) <= _MOST_THREADS):
        raise UsageError(
            f"POLARS_MAX_THREADS is {threads!r}: unset it, or set it to a number from 1 to {_MOST_THREADS}"
        )


#: What the loader of libraries and the starter of threads say where the memory that the process may map is used up.
_NO_MEMORY: Final = ("failed to map segment from shared object", "cannot allocate memory", "can't start new thread")


def _verdict(error: BaseException) -> tuple[int, str]:
    if isinstance(error, _WRONG_USAGE):
        return UNUSABLE, _usage_text(error)
    if isinstance(error, WarplensError):
        return UNUSABLE, str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.path.basename(os.fsdecode(error.filename))}: " if error.filename else ""  # noqa: PTH119
        return UNUSABLE, f"{where}{error.strerror}"
    if isinstance(error, MemoryError) or any(said in str(error) for said in _NO_MEMORY):
        return UNUSABLE, "there is not enough memory for this profile. Use a machine with more"
    what = f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__
    return DEFECT, f"{what}. This is a bug in Warplens: please run again with --debug and report the output"


#: What the library that checks values says before the words that are meant for people.
_LIBRARY_WORDS: Final = re.compile(r"Value error, |Input (?=should be )")


def _usage_text(error: Any) -> str:
    text = _LIBRARY_WORDS.sub("", one_line(error.format_message()))
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    return f"{text if text.endswith(('.', '?')) else text + '.'} See {context.command_path} --help"


def _silence_stdout() -> None:
    """Keep the interpreter from complaining, on its way out, that it cannot flush."""
    # There may be no stream at all, or one without a descriptor, as in tests.
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


#: Below this size of input nothing is gained. Exports hold about 130 bytes a kernel.
_LARGE_BYTES: Final = 32 * 1024**2

# From <malloc.h> of glibc: blocks up to this size come from the heap instead of fresh pages, and the heap is not given
# back while the program runs; all threads share one heap, or each would keep its own.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGEST_REUSED_BLOCK: Final = 1 << 30


def reuse_freed_memory(paths: Iterable[Path]) -> None:
    """Let arrays be made in memory that earlier ones have left, where the input is large and the C library is glibc.

    glibc gives every freed block above 32 MB at the latest back to the system, and the next one of that size costs a
    page fault for each 4 KB again: at a million kernels a quarter of all processor time. A command ends soon after its
    analysis, so that there is nobody to give memory back to. Elsewhere (musl, macOS, Windows) nothing changes.
    """
    if sum(path.stat().st_size for path in paths if path.is_file()) < _LARGE_BYTES:
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
