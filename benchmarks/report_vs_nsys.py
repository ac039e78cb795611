"""`warplens report` against `nsys stats`, as whole processes on the same generated capture in the same run.

The peer answers three of the questions that our report answers: statistics of kernels, of kernels by range, and of
ranges projected to the GPU, one report after the other, as its users ask for them. Beside the two stand the load alone
(`warplens.read`) and a floor: SQLite walking over the kernel table once and returning nothing, below which no reader
that goes through SQLite can fall.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from benchmarks.measure import Measurement, machine, measure, warm

__all__ = ["Comparison", "compare", "warplens_command"]

RESULTS = Path(__file__).with_name("results")

#: The peer's reports that are asked for, in this order.
PEER_REPORTS = ("cuda_gpu_kern_sum", "nvtx_kern_sum", "nvtx_gpu_proj_sum")

#: What the project promises: how many times faster than the peer, and how much memory at how many kernels.
LEAST_RATIO = 15.0
MOST_MEMORY_MB = {1_000_000: 1_000.0, 10_000_000: 6_000.0}

_PACKAGES = ("warplens", "polars", "numpy", "adbc-driver-sqlite")

_SCAN = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro&immutable=1", uri=True)
query = "SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE sharedMemoryLimitConfig < 0"  # the last column
assert connection.execute(query).fetchall() == []
"""
_LOAD = "import sys, warplens; warplens.read(sys.argv[1])"


@dataclass(frozen=True)
class Comparison:
    """Both sides on one capture.

    Attributes:
        kernels: kernels in the capture; file_mb: its size.
        report, load, floor: our report, its reading alone, and the floor below any reading through SQLite.
        stages: seconds of wall time that each stage of our report takes, measured inside one process.
        peer: the peer's reports by name; empty where the tool is absent.
    """

    kernels: int
    file_mb: float
    report: Measurement
    load: Measurement
    floor: Measurement
    stages: dict[str, float]
    peer: dict[str, Measurement]
    versions: dict[str, str]
    machine: str
    day: str

    @property
    def peer_together(self) -> Measurement | None:
        """The peer's reports one after the other; None without a peer."""
        return Measurement.together(self.peer.values()) if self.peer else None

    @property
    def ratio(self) -> float | None:
        """How many times faster our report is than the peer's three; None without a peer."""
        together = self.peer_together
        return together.median_s / self.report.median_s if together else None

    def missed(self) -> list[str]:
        """The promises that were not kept, as sentences."""
        sentences = []
        if self.ratio is not None and self.kernels >= 1_000_000 and self.ratio < LEAST_RATIO:
            sentences.append(
                f"{self.kernels:,} kernels: {self.ratio:.1f} times faster than nsys, promised {LEAST_RATIO:.0f}"
            )
        limit = MOST_MEMORY_MB.get(self.kernels)
        if limit is not None and self.report.peak_mb > limit:
            sentences.append(
                f"{self.kernels:,} kernels: {self.report.peak_mb:,.0f} MB, promised less than {limit:,.0f}"
            )
        return sentences

    def table(self) -> str:
        """The measurements as a Markdown table, with what bounds ours."""
        lines = [
            f"**{self.kernels:,} kernels** ({self.file_mb:,.0f} MB SQLite), each launched inside four levels of ranges",
            "",
            "| what | wall time | against ours | processor time | peak memory |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, measured in self.peer.items():
            lines.append(self._line(f"`nsys stats -r {name}`", measured))
        if self.peer_together:
            lines.append(self._line("`nsys stats`, the three together", self.peer_together))
        lines.append(self._line("`warplens report --format json`", self.report))
        lines.append(self._line("of which reading (`warplens.read`, as a process of its own)", self.load))
        lines.append(self._line("floor: SQLite scans the kernel table, nothing returned", self.floor))
        everything = (self.report, self.load, self.floor, *self.peer.values())
        if any(one.is_disturbed for one in everything):
            others = max(one.other_cores for one in everything)
            lines += ["", f"**Disturbed**: other processes kept up to {others:.1f} cores busy meanwhile."]
        lines += ["", self.bound(), "", f"{self.machine}; {_listed(self.versions)}; {self.day}."]
        return "\n".join(lines)

    def bound(self) -> str:
        """What the time of our report is made of, in a sentence."""
        total = sum(self.stages.values())
        parts = ", ".join(f"{stage} {seconds:.2f} s ({seconds / total:.0%})" for stage, seconds in self.stages.items())
        return f"What bounds it, by stage: {parts}."

    def _line(self, name: str, measured: Measurement) -> str:
        wall, cpu = measured.median_s, measured.median_cpu_s
        times = wall / self.report.median_s
        return f"| {name} | {wall:.2f} s | {times:.2f} × | {cpu:.2f} s | {measured.peak_mb:,.0f} MB |"

    def store(self) -> Path:
        """Writes the measurements as JSON and the table as Markdown into `results/`; returns the former."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"report_vs_nsys_{self.kernels}.json"
        path.write_text(json.dumps(asdict(self) | {"ratio": self.ratio}, indent=2) + "\n")
        path.with_suffix(".md").write_text(self.table() + "\n")
        return path


def compare(kernels: int, *, runs: int = 3, patience_s: float = 0, with_peer: bool = True) -> Comparison:
    """Generates a capture and measures both sides on it.

    Args:
        kernels: size of the capture.
        runs: of everything that is ours; the median counts. The peer runs once.
        patience_s: how long each measurement may wait for a machine without other work.
        with_peer: whether the peer is measured where it is installed.

    Raises:
        ProcessFailedError: one of the measured processes fails.
    """
    with tempfile.TemporaryDirectory(prefix="warplens-bench-") as room:
        capture, out = Path(room) / "capture.sqlite", Path(room) / "report"

        def take(doing: str, *command: str, runs: int = runs) -> Measurement:
            print(f"… {doing}", file=sys.stderr, flush=True)
            return measure(command, runs=runs, patience_s=patience_s)

        generator = [sys.executable, "-m", "benchmarks.generate_nsys", str(capture), "--one-thread"]
        measure([*generator, "--kernels", str(kernels)])
        warm(capture)
        report = take("our report", warplens_command(), "report", str(capture), "--format", "json", "-o", str(out))
        load = take("reading alone", sys.executable, "-c", _LOAD, str(capture))
        floor = take("the floor", sys.executable, "-c", _SCAN, str(capture))
        by_stage = Path(room) / "stages.json"
        take("its stages", sys.executable, "-m", "benchmarks.stages", str(capture), str(by_stage), runs=1)
        stages = json.loads(by_stage.read_text())
        nsys = _nsys() if with_peer else None
        stats = (nsys or "", "stats", "--quiet", "--format", "csv", "--output", "-", "--report")
        peer = {name: take(f"nsys, {name}", *stats, name, str(capture), runs=1) for name in PEER_REPORTS if nsys}
        file_mb = capture.stat().st_size / 1e6
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}
    if nsys:
        versions["nsys"] = _nsys_version(nsys)
    day = datetime.now(timezone.utc).date().isoformat()
    return Comparison(kernels, file_mb, report, load, floor, stages, peer, versions, machine(), day)


def _nsys() -> str | None:
    found = os.environ.get("WARPLENS_NSYS") or shutil.which("nsys")
    if found is None:
        print("nsys is neither in WARPLENS_NSYS nor on the PATH: the peer is left out", file=sys.stderr)
    return found


def _nsys_version(nsys: str) -> str:
    printed = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True).stdout
    return printed.rpartition("version ")[2].partition("-")[0].strip()


def warplens_command() -> str:
    """The program `warplens` of this environment."""
    beside = Path(sysconfig.get_path("scripts")) / "warplens"
    return str(beside) if beside.exists() else shutil.which("warplens") or "warplens"


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
