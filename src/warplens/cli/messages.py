"""Standard error: progress, notes and errors. Standard output belongs to the answer alone."""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["be_quiet", "complain", "note", "one_line", "progress", "start_afresh"]

#: Work that takes less than this is over before a person wonders.
_SILENT_S: Final = 1.0

_REDRAW_S: Final = 0.2

# Names in a profile are whatever its program wrote; an escape sequence in one must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class _State:
    quiet = False


def start_afresh() -> None:
    """Forget what the options of a former run in this process asked for."""
    _State.quiet = False


def be_quiet(value: bool = True) -> None:
    """Suppress progress and notes from now on; errors are always shown."""
    if value:
        _State.quiet = True


def one_line(text: object) -> str:
    """The text as one line without control characters."""
    return _CONTROL.sub(" ", str(text)).strip()


def complain(text: object) -> None:
    """Why the run failed: exactly one line, `error: …`."""
    _write(f"error: {one_line(text)}\n")


def note(text: object) -> None:
    """Something to know beside the answer: one line, not shown with `--quiet`."""
    if not _State.quiet:
        _write(f"{one_line(text)}\n")


@contextmanager
def progress(activity: str) -> Iterator[Callable[[str], None]]:
    """Say what is going on if it takes longer than a second; nothing unless standard error is a terminal.

    Args:
        activity: what is going on, e.g. `reading profile.sqlite`.

    Yields:
        A function that changes what is said.
    """
    if _State.quiet or sys.stderr is None or not sys.stderr.isatty():
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
