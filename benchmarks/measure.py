"""Wall time and peak memory of whole processes, and whether the machine was otherwise idle while they ran.

Nothing but the standard library is imported here, and callers keep it that way: a child's peak memory as Linux reports
it includes that of the process that started it, at the moment of the start.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Measurement", "ProcessFailedError", "machine", "measure", "warm"]

#: A run is disturbed where other processes kept this much of one core busy: enough to move a time by some percent.
DISTURBED_CORES = 0.1
_SLACK_S = 0.03  # the machine's busy time is counted in ticks of 10 ms, on each core
_LOOK_S = 1.0  # how long the machine must be idle before a patient run begins


class ProcessFailedError(RuntimeError):
    """A measured process did not exit with 0, so its time is meaningless."""


@dataclass(frozen=True)
class Measurement:
    """Times and memory of several runs of one command.

    Attributes:
        seconds: wall time of each run, from start to exit.
        cpu_s: processor time of the whole tree in each run, on all cores.
        peak_mb: the largest resident size (MB) that any one process of the tree had in any run.
        other_cores: how many cores other processes kept busy meanwhile, in the run where they were most.
    """

    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    peak_mb: float
    other_cores: float

    @property
    def median_s(self) -> float:
        """Seconds of the median run."""
        return statistics.median(self.seconds)

    @property
    def median_cpu_s(self) -> float:
        """Processor seconds of the median run."""
        return statistics.median(self.cpu_s)

    @property
    def is_disturbed(self) -> bool:
        """Whether other work on the machine may have affected the times."""
        return self.other_cores > DISTURBED_CORES

    @staticmethod
    def together(parts: Iterable[Measurement]) -> Measurement:
        """Several commands in sequence: the sum of the medians, and the largest peak."""
        parts = list(parts)
        return Measurement(
            (sum(part.median_s for part in parts),),
            (sum(part.median_cpu_s for part in parts),),
            max(part.peak_mb for part in parts),
            max(part.other_cores for part in parts),
        )


def measure(command: Sequence[str], *, runs: int = 1, patience_s: float = 0) -> Measurement:
    """Runs a command `runs` times, one after the other; its output is thrown away.

    Args:
        command: what to run.
        runs: how often.
        patience_s: as long as this in all, wait for an idle machine before each run, and repeat disturbed runs.

    Raises:
        ProcessFailedError: a run exits with anything but 0. The message has the end of what it wrote to stderr.
    """
    deadline = time.monotonic() + patience_s
    taken: list[Measurement] = []
    while len(taken) < runs:
        while time.monotonic() < deadline and _busy_cores_for(_LOOK_S) > DISTURBED_CORES:
            pass
        run = _run(command)
        if run.is_disturbed and time.monotonic() < deadline:
            continue
        taken.append(run)
    return Measurement(
        tuple(run.median_s for run in taken),
        tuple(run.median_cpu_s for run in taken),
        max(run.peak_mb for run in taken),
        max(run.other_cores for run in taken),
    )


def _run(command: Sequence[str]) -> Measurement:
    environment = _compiled()
    with tempfile.TemporaryFile() as complaints:
        busy, begin = _busy_s(), time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds, busy = time.perf_counter() - begin, _busy_s() - busy
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            complaints.seek(0)
            ending = complaints.read().decode("utf-8", "replace").strip()[-500:]
            raise ProcessFailedError(f"{Path(command[0]).name} exited with {process.returncode}: {ending}")
    cpu_s = usage.ru_utime + usage.ru_stime
    peak_mb = usage.ru_maxrss * 1_024 / 1e6  # Linux counts in KiB
    return Measurement((seconds,), (cpu_s,), peak_mb, max(0.0, busy - cpu_s - _SLACK_S) / seconds)


@cache
def _compiled() -> dict[str, str]:
    """This process's environment, with our modules compiled as in an installed package.

    A checkout in an environment that forbids `.pyc` files compiles 200 modules in every process, which takes 0.25 s.
    """
    folder = Path(tempfile.gettempdir()) / "warplens-bench-bytecode"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", str(Path(__file__).parents[1] / "src")], env=environment, check=False
    )
    return environment


def warm(path: Path) -> None:
    """Reads a file once, so that no run pays for the disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def machine() -> str:
    """The processor, in words, and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0))
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {cores} cores"


def _busy_cores_for(seconds: float) -> float:
    busy = _busy_s()
    time.sleep(seconds)
    return (_busy_s() - busy) / seconds


def _busy_s() -> float:
    """Processor seconds used by this machine since its start, on all cores; 0 where not known."""
    for line in _lines("/proc/stat"):
        name, *ticks = line.split()
        if name == "cpu":
            user, nice, system, _idle, _waiting, *others = map(int, ticks)
            interrupts = sum(others[:2])  # what follows is time of guests, counted already
            return (user + nice + system + interrupts) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
