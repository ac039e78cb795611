"""The machine as the doctor and the finder of tools see it: files, programs and their output, and nothing else.

Everything goes through `System`, so that recorded machines can stand in for this one.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Output", "System", "ThisMachine"]

#: A query of a tool that takes longer is stuck: a GPU that fell off the bus keeps nvidia-smi waiting for ever.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Output:
    """What a program answered.

    Attributes:
        code: its exit code; None where it had to be stopped.
        text: standard output, then standard error.
    """

    code: int | None
    text: str


class System(Protocol):
    """What can be asked of a machine."""

    def read(self, path: str) -> str | None:
        """A text file; None where there is none that may be read."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""

    def run(self, command: Sequence[str], patience_s: float = _PATIENCE_S) -> Output | None:
        """What a program prints; None where there is no such program."""

    def which(self, program: str) -> str | None:
        """Where a program of the search path lies."""

    def matching(self, pattern: str) -> list[str]:
        """Executable files that match a shell pattern."""

    def variable(self, name: str) -> str | None:
        """An environment variable. Its value is for looking things up, never for showing."""

    def free_bytes(self, folder: str) -> int | None:
        """Free space for files in a folder."""

    def python(self) -> str:
        """The interpreter that runs this."""


class ThisMachine:
    """The machine that this runs on."""

    def read(self, path: str) -> str | None:
        """See `System`."""
        try:
            return Path(path).read_text("utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """See `System`."""
        return Path(path).exists()

    def run(self, command: Sequence[str], patience_s: float = _PATIENCE_S) -> Output | None:
        """See `System`."""
        try:
            done = subprocess.run(  # noqa: S603  a list of words, no shell
                list(command), capture_output=True, stdin=subprocess.DEVNULL, timeout=patience_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Output(None, "")
        except OSError:
            return None
        return Output(done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace"))

    def which(self, program: str) -> str | None:
        """See `System`."""
        return shutil.which(program)

    def matching(self, pattern: str) -> list[str]:
        """See `System`."""
        return sorted(path for path in glob.glob(pattern) if os.access(path, os.X_OK) and not Path(path).is_dir())  # noqa: PTH207

    def variable(self, name: str) -> str | None:
        """See `System`."""
        return os.environ.get(name)

    def free_bytes(self, folder: str) -> int | None:
        """See `System`."""
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None

    def python(self) -> str:
        """See `System`."""
        return sys.executable
