"""`warplens report` against `nsys stats`, as whole processes on the same generated capture in the same run.

The peer answers three of the questions that our report answers: statistics of kernels, of kernels by range, and of
ranges projected to the GPU, one report after the other, as its users ask for them. Beside the two stand the load alone
(`warplens.read`) and a floor: SQLite walking over the kernel table once and returning nothing, below which no reader
that goes through SQLite can fall.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.comparison import Comparison, taker, warplens_command
from benchmarks.measure import Measurement, measure, warm

__all__ = ["compare"]

#: The peer's reports to produce, in this order.
PEER_REPORTS = ("cuda_gpu_kern_sum", "nvtx_kern_sum", "nvtx_gpu_proj_sum")

#: What the project promises: how many times faster than the peer, and how much memory at how many kernels.
LEAST_RATIO = 15.0
_PROMISED_FROM = 1_000_000
MOST_MEMORY_MB = {1_000_000: 1_000.0, 10_000_000: 6_000.0}

_OURS = "`warplens report --format json`"

_SCAN = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro&immutable=1", uri=True)
query = "SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE sharedMemoryLimitConfig < 0"  # the last column
assert connection.execute(query).fetchall() == []
"""
_LOAD = "import sys, warplens; warplens.read(sys.argv[1])"


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
        capture, by_stage = Path(room) / "capture.sqlite", Path(room) / "stages.json"
        take = taker(f"{kernels:,} kernels", runs, patience_s)
        generator = [sys.executable, "-m", "benchmarks.generate_nsys", str(capture), "--one-thread"]
        measure([*generator, "--kernels", str(kernels)])
        warm(capture)
        command = (warplens_command(), "report", str(capture), "--format", "json", "-o", str(Path(room) / "report"))
        report = take("our report", *command)
        load = take("reading alone", sys.executable, "-c", _LOAD, str(capture))
        floor = take("the floor", sys.executable, "-c", _SCAN, str(capture))
        take("its stages", sys.executable, "-m", "benchmarks.stages", str(capture), str(by_stage), runs=1)
        stages: dict[str, float] = json.loads(by_stage.read_text())
        nsys = _nsys() if with_peer else None
        stats = (nsys or "", "stats", "--quiet", "--format", "csv", "--output", "-", "--report")
        peer = {name: take(f"nsys, {name}", *stats, name, str(capture), runs=1) for name in PEER_REPORTS if nsys}
        file_mb = capture.stat().st_size / 1e6
    together = Measurement.together(peer.values()) if peer else None
    rows = {f"`nsys stats -r {name}`": measured for name, measured in peer.items()}
    rows |= {"`nsys stats`, the three together": together} if together else {}
    rows |= {
        _OURS: report,
        "of which reading (`warplens.read`, as a process of its own)": load,
        "floor: SQLite scans the kernel table, nothing returned": floor,
    }
    missed = []
    if together and kernels >= _PROMISED_FROM and (times := together.median_s / report.median_s) < LEAST_RATIO:
        missed.append(f"{kernels:,} kernels: {times:.1f} times faster than nsys, promised {LEAST_RATIO:.0f}")
    if report.peak_mb > (limit := MOST_MEMORY_MB.get(kernels, report.peak_mb)):
        missed.append(f"{kernels:,} kernels: {report.peak_mb:,.0f} MB, promised less than {limit:,.0f}")
    total = sum(stages.values())
    parts = ", ".join(f"{stage} {seconds:.2f} s ({seconds / total:.0%})" for stage, seconds in stages.items())
    return Comparison(
        name=f"report_vs_nsys_{kernels}",
        title=f"**{kernels:,} kernels** ({file_mb:,.0f} MB SQLite), each launched inside four levels of ranges",
        rows=rows,
        ours=_OURS,
        peer=together,
        bound=f"What bounds it, by stage: {parts}.",
        missed=missed,
        peer_version={"nsys": _nsys_version(nsys)} if nsys else {},
        facts={"kernels": kernels, "file_mb": file_mb, "stages": stages},
    )


def _nsys() -> str | None:
    nsys = os.environ.get("WARPLENS_NSYS") or shutil.which("nsys")
    if nsys is None:
        print("nsys is neither in WARPLENS_NSYS nor on the PATH: the peer is left out", file=sys.stderr)
    return nsys


def _nsys_version(nsys: str) -> str:
    printed = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True).stdout
    return printed.rpartition("version ")[2].partition("-")[0].strip()
