"""What a measurement was made on, found out without PyTorch. No host, user, path or serial number."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from warplens._version import __version__

__all__ = ["cpu_model", "host_facts", "plain_environment"]


def host_facts() -> dict[str, Any]:
    """`python`, `system`, `cpu_count` and `cpu`, as they stand in the measurements file."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": cpu_model(),
    }


def cpu_model() -> str | None:
    """The processor's name; None where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def plain_environment() -> dict[str, Any]:
    """The `environment` of a measurements file for programs that are not ours: the first GPU, if any, and the host."""
    facts = {"device": {"name": "CPU"}, "versions": {"warplens": __version__}, **host_facts()}
    name, driver = _gpu()
    if name:
        facts |= {"device": {"name": name}, "driver": driver}
    return {key: fact for key, fact in facts.items() if fact is not None}


def _gpu() -> tuple[str | None, str | None]:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603
        name, comma, driver = (answer.splitlines() or [""])[0].partition(",")
        if comma:
            return name.strip(), driver.strip()
    return None, None
