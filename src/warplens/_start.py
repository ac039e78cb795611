"""Ctrl-C in the first moments of the program, before anything that could put things in order is loaded.

Nothing is imported here that Python has not loaded by itself, so that the time in which only Python could answer is its
own start. Where Warplens is a library of another program, nothing is done.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of, without a millisecond of enumerations
import os
import sys

TYPE_CHECKING = False  # as in `typing`, which is not loaded yet
if TYPE_CHECKING:
    from typing import NoReturn

#: From this size of input on, a quarter of all processor time goes into fresh pages of memory, if freed ones are not
#: reused. Exports hold about 130 bytes a kernel.
LARGE_BYTES = 32 * 1024**2

_NAMES = ("warplens", "warplens.exe", "warplens-script.py")


def leave(*_: object) -> NoReturn:
    """Ends the process at once: while modules are loaded there is nothing to put in order."""
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(130)


def is_the_program() -> bool:
    """Whether this process was started as `warplens`, or as `python -m warplens`, whose module is being looked for."""
    argv, orig = getattr(sys, "argv", [""]), getattr(sys, "orig_argv", [])
    return os.path.basename(argv[0]) in _NAMES or (argv[0] == "-m" and orig[-len(argv) :][:1] == ["warplens"])  # noqa: PTH119


def end_at_once() -> None:
    """From now on Ctrl-C ends the program in one line; one that a shell started with & goes on ignoring it."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, leave)


if is_the_program():
    end_at_once()
