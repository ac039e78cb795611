"""Ends a process with all that it has started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

__all__ = ["kill_group", "terminate_group"]


def terminate_group(process: subprocess.Popen[Any]) -> None:
    """Ask a process that leads a group, and the group, to end."""
    _signal(process, signal.SIGTERM)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a group, and the group, without asking."""
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:  # without process groups, what the process has started is out of reach
            process.send_signal(number)
