"""Starts a command, shows what it prints while it runs, and recognises why it failed."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["KNOWN_FAILURES", "Ran", "known_failure", "run_command"]

#: Lines that are kept of a program's output, to be shown where it fails.
_TAIL: Final = 12

COUNTERS_FIX: Final = (
    "the driver keeps GPU counters to administrators: run as root (in a container: start it with --cap-add=SYS_ADMIN),"
    " or let everybody use them: put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into a file of"
    " /etc/modprobe.d and reboot (on WSL2: NVIDIA Control Panel of Windows, Developer, Manage GPU Performance Counters)"
)

#: What a line of a tool's output holds, and what that means.
KNOWN_FAILURES: Final = (
    ("ERR_NVGPUCTRPERM", COUNTERS_FIX),
    (
        "failed to connect to the CUDA driver",
        "there is no working NVIDIA driver here: see warplens doctor",
    ),
    (
        "importer binary and its dependencies were not found",
        "this nsys lacks its importer: install all of Nsight Systems, not its target package alone",
    ),
    (
        "No kernels were profiled",
        "no kernel passed the filters: the program launched none inside the captured part, or has no such range",
    ),
    (
        "Another profiler is already",
        "another profiler holds the GPU (often dcgm): stop it, or pause it with 'dcgmi profiling --pause'",
    ),
    (
        "CUDA out of memory",
        "the program ran out of GPU memory: use a smaller batch; with ncu, --replay-mode application needs less",
    ),
    (
        "No reports were generated",
        "nothing was captured: the program never called cudaProfilerStart, or never opened that range",
    ),
)


@dataclass(frozen=True)
class Ran:
    """How a command ended.

    Attributes:
        code: its exit code.
        tail: its last lines.
        failure: what went wrong, where a line said it.
    """

    code: int
    tail: tuple[str, ...]
    failure: str | None = None


def known_failure(line: str) -> str | None:
    """What a line of a tool's output means, where it tells of a failure that has a fix."""
    return next((meaning for sign, meaning in KNOWN_FAILURES if sign in line), None)


def run_command(command: Sequence[str], variables: Mapping[str, str], tell: Callable[[str], None]) -> Ran:
    """Run a command, without a shell.

    Args:
        command: its words.
        variables: of its environment, beside ours.
        tell: gets each line that it prints, at once.

    Raises:
        UsageError: there is no such program.
    """
    tail: deque[str] = deque(maxlen=_TAIL)
    failure = None
    try:
        process = subprocess.Popen(  # noqa: S603  a list of words, no shell
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise UsageError(f"{os.path.basename(command[0])}: {error.strerror}") from error  # noqa: PTH119
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip()
            tell(text)
            if text:
                tail.append(text)
            failure = failure or known_failure(text)
    return Ran(process.returncode, tuple(tail), failure)
