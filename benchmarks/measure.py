"""Wall time and peak memory of whole processes.

Nothing but the standard library is imported here, and callers keep it that way: a child's peak memory as Linux reports
it includes that of the process that started it, at the moment of the start.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Measurement", "ProcessFailedError", "machine", "measure", "warm"]


class ProcessFailedError(RuntimeError):
    """A measured process did not exit with 0, so its time means nothing."""


@dataclass(frozen=True)
class Measurement:
    """What several runs of one command took.

    Attributes:
        seconds: wall time of each run, from start to exit.
        cpu_s: processor time of the whole tree in each run, on all cores; it hardly moves when the machine is busy.
        peak_mb: the largest resident size (MB) that any one process of the tree had in any run.
    """

    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    peak_mb: float

    @property
    def median_s(self) -> float:
        """Seconds of the median run."""
        return statistics.median(self.seconds)

    @property
    def median_cpu_s(self) -> float:
        """Processor seconds of the median run."""
        return statistics.median(self.cpu_s)

    @staticmethod
    def together(parts: Iterable[Measurement]) -> Measurement:
        """Several commands one after the other: the sum of the medians, and the largest peak."""
        parts = list(parts)
        return Measurement(
            (sum(part.median_s for part in parts),),
            (sum(part.median_cpu_s for part in parts),),
            max(part.peak_mb for part in parts),
        )


def measure(command: Sequence[str], *, runs: int = 1) -> Measurement:
    """Runs a command `runs` times, one after the other; its output is thrown away.

    Raises:
        ProcessFailedError: a run exits with anything but 0. The message has the end of what it wrote to stderr.
    """
    seconds, cpu, peaks = [], [], []
    for _ in range(runs):
        with tempfile.TemporaryFile() as complaints:
            begin = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints)
            _, status, usage = os.wait4(process.pid, 0)
            seconds.append(time.perf_counter() - begin)
            complaints.seek(0)
            complaint = complaints.read().decode("utf-8", "replace").strip()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            ending = complaint[-500:]
            raise ProcessFailedError(f"{Path(command[0]).name} exited with {process.returncode}: {ending}")
        cpu.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss / 1_000 * 1.024)  # Linux counts in KiB
    return Measurement(tuple(seconds), tuple(cpu), max(peaks))


def warm(path: Path) -> None:
    """Reads a file once, so that no run pays for the disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def machine() -> str:
    """The processor, in words, and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0))
    models = [line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {cores} cores"


def _cpu_info() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
