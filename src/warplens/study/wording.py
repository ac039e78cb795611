"""Words for what happens in a run: how a process ended, how long things take."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["failure_status", "how_it_ended", "span", "without_folders"]

#: What programs say when memory is at its end: PyTorch, the CUDA runtime, C++, the system.
_LACK_OF_MEMORY: Final = re.compile(r"out of memory|OutOfMemory|bad_alloc|annot allocate memory|MemoryError", re.I)

# The folders of an absolute path; they carry user names.
_FOLDERS: Final = re.compile(r"(?<![\w.:/])/(?:[^\s/'\",;]+/)+(?=[^\s/])")


def failure_status(lines: Iterable[str]) -> str:
    """The status of a cell whose process ended badly, by its last lines: `out-of-memory` or `failed`."""
    return "out-of-memory" if any(_LACK_OF_MEMORY.search(line) for line in lines) else "failed"


def how_it_ended(code: int, lines: Iterable[str]) -> str:
    """One line on a process that ended badly."""
    said = list(lines)
    last = f": {without_folders(said[-1])}" if said else ""
    if code >= 0:
        return f"the process ended with code {code}{last}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return f"the process was killed (SIGKILL), as the system does when its memory runs out{last}"
    return f"the process was killed ({name}){last}"


def without_folders(text: str) -> str:
    """The text as one line, with the bare names of files: folders carry the names of people."""
    return _FOLDERS.sub("", " ".join(text.split()))


def span(seconds: float) -> str:
    """A time for people: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
