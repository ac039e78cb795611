"""`warplens`, and `python -m warplens`: Ctrl-C ends it in one line from its first moment on, imports included."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn


def _leave(*_: object) -> NoReturn:
    """Ends the process at once: while modules are loaded there is nothing to put in order."""
    with suppress(OSError):
        os.write(2, b"error: interrupted\n")
    os._exit(130)


def main() -> NoReturn:
    """Carries out what the command line says, and ends the process."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as a shell does for what it starts with &
    if not ignored:
        signal.signal(signal.SIGINT, _leave)
    from warplens.cli.main import script

    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        script()
    except KeyboardInterrupt:  # before the first command, or after the last
        _leave()


if __name__ == "__main__":
    main()
