"""Our reader of Nsight Compute reports against NVIDIA's `ncu-report`, on the same generated report in the same run.

`python -m benchmarks.ncu_rep [--report SMALL] [--peer-python PROGRAM] [--check]`. The peer loads the report and asks
each launch for the value of each of its metrics; ours reads all of them into columns, with rules, ranges and session.
Beside the two stand a read of two metrics, and a floor: the walk over the lengths of all messages, below which no
reader written in Python can fall. Each is a process of its own; imports are not in its time, but in its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from benchmarks.measure import Measurement, ProcessFailedError, machine, measure, warm

__all__ = ["Comparison", "compare", "main"]

RESULTS = Path(__file__).with_name("results")

#: What is repeated: a report of 30 launches on an H200, beside the checkout of those who have it.
SMALL = Path(
    os.environ.get("WARPLENS_NCU_REPORT")
    or Path(__file__).resolve().parents[2] / "shared" / "data" / "ncu" / "h200_deit448_bs8.ncu-rep"
)

LAUNCHES = 200
MEGABYTES = 74

#: What the project promises: times faster than the peer, and the share of its memory.
LEAST_RATIO = 5.0
MOST_MEMORY_SHARE = 0.5

TWO = ("gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed")

_PACKAGES = ("warplens", "polars", "numpy")

_TIMED = """
import sys, time
{imports}
begin = time.perf_counter()
{work}
with open(sys.argv[2], "a") as file:
    print(time.perf_counter() - begin, file=file)
"""
_OURS = _TIMED.format(
    imports="from pathlib import Path\nfrom warplens.readers.ncu.report import read_ncu_rep\npath = Path(sys.argv[1])",
    work="counters = read_ncu_rep(path, path, sys.argv[3:] or None)",
)
_WALK = _TIMED.format(
    imports=(
        "from pathlib import Path\nfrom warplens.readers.ncu.container import Container, mapped\n"
        "from warplens.readers.ncu.container import METRICS\nfrom warplens.wire import Message\n"
        "path = Path(sys.argv[1])"
    ),
    work=(
        "with mapped(path, path) as data:\n"
        "    for block in Container(data, path).blocks():\n"
        "        for result in block.results:\n"
        "            Message(data, result.start, result.end, gather=METRICS[result.kind])"
    ),
)
_PEER = _TIMED.format(
    imports="import ncu_report",
    work=(
        "for group in ncu_report.load_report(sys.argv[1]):\n"
        "    for action in group:\n"
        "        for name in action.metric_names():\n"
        "            action[name].value()"
    ),
)
_PEER_VERSION = "from importlib import metadata; print(metadata.version('ncu-report'))"


@dataclass(frozen=True)
class Timed:
    """One side: seconds of the work alone, and its processes as a whole."""

    work_s: float
    process: Measurement


@dataclass(frozen=True)
class Comparison:
    """All sides on one report.

    Attributes:
        launches: of the report; file_mb: its size.
        whole, two, walk: our whole read, our read of two metrics, and the walk that neither can do without.
        peer: NVIDIA's library; None where it is absent.
    """

    launches: int
    file_mb: float
    whole: Timed
    two: Timed
    walk: Timed
    peer: Timed | None
    versions: dict[str, str]
    machine: str
    day: str

    @property
    def ratio(self) -> float | None:
        """How many times faster our whole read is than the peer's; None without a peer."""
        return self.peer.work_s / self.whole.work_s if self.peer else None

    def missed(self) -> list[str]:
        """The promises that were not kept, as sentences."""
        if self.peer is None or self.ratio is None:
            return []
        sentences = []
        if self.ratio < LEAST_RATIO:
            sentences.append(f"{self.ratio:.1f} times faster than ncu-report, promised {LEAST_RATIO:.0f}")
        limit = MOST_MEMORY_SHARE * self.peer.process.peak_mb
        if self.whole.process.peak_mb > limit:
            sentences.append(f"{self.whole.process.peak_mb:,.0f} MB, promised less than {limit:,.0f}")
        if self.two.work_s >= self.whole.work_s:
            sentences.append("reading two metrics is no faster than reading all")
        return sentences

    def table(self) -> str:
        """The measurements as a Markdown table, with a sentence on what bounds ours."""
        lines = [
            f"**{self.launches:,} launches** ({self.file_mb:,.0f} MB .ncu-rep)",
            "",
            "| what | time | against our whole read | whole process | peak memory |",
            "|---|---:|---:|---:|---:|",
        ]
        if self.peer:
            lines.append(self._line("`ncu-report`: load, ask for every metric", self.peer))
        lines += [
            self._line("Warplens: everything into columns", self.whole),
            self._line("Warplens: two metrics of each launch", self.two),
            self._line("floor: the walk over the messages' lengths alone", self.walk),
            "",
            self.bound(),
            "",
            f"{self.machine}; {', '.join(f'{name} {version}' for name, version in self.versions.items())}; {self.day}.",
        ]
        return "\n".join(lines)

    def bound(self) -> str:
        """What the time of our whole read is made of."""
        walk, two = (timed.work_s / self.whole.work_s for timed in (self.walk, self.two))
        return (
            f"The walk is {walk:.0%} of our time; with what is read of every launch whatever is asked for (names, "
            f"sizes, ranges, rules) it is {two:.0%}; the rest is numpy decoding values and polars making columns."
        )

    def _line(self, name: str, timed: Timed) -> str:
        times = timed.work_s / self.whole.work_s
        process = timed.process
        return (
            f"| {name} | {timed.work_s:.3f} s | {times:.2f} × | {process.median_s:.2f} s | {process.peak_mb:,.0f} MB |"
        )

    def store(self) -> Path:
        """Writes the measurements as JSON and the table as Markdown into `results/`; returns the former."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"ncu_rep_{self.launches}.json"
        path.write_text(json.dumps(asdict(self) | {"ratio": self.ratio}, indent=2) + "\n")
        path.with_suffix(".md").write_text(self.table() + "\n")
        return path


def compare(small: Path = SMALL, *, peer_python: str = sys.executable, runs: int = 5) -> Comparison:
    """Generates the report and measures all sides on it.

    Args:
        small: the report whose blocks are repeated.
        peer_python: the interpreter that has `ncu-report`; where it has not, the peer is left out.
        runs: of each side; the median counts.

    Raises:
        ProcessFailedError: one of the measured processes fails.
    """
    with tempfile.TemporaryDirectory(prefix="warplens-bench-") as room:
        large = Path(room, "large.ncu-rep")
        sizes = ["--launches", str(LAUNCHES), "--megabytes", str(MEGABYTES)]
        _say(f"generating {LAUNCHES} launches, {MEGABYTES} MB")
        measure([sys.executable, "-m", "benchmarks.generate_ncu", str(small), str(large), *sizes])
        warm(large)
        _say("our reads, and the floor")
        whole = _timed(sys.executable, _OURS, large, runs)
        two = _timed(sys.executable, _OURS, large, runs, *TWO)
        walk = _timed(sys.executable, _WALK, large, runs)
        version = _peer_version(peer_python)
        peer = None
        if version is None:
            _say("ncu-report is not installed: the peer is left out")
        else:
            _say("ncu-report")
            peer = _timed(peer_python, _PEER, large, runs)
        file_mb = large.stat().st_size / 1e6
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}
    if version is not None:
        versions["ncu-report"] = version
    day = datetime.now(timezone.utc).date().isoformat()
    return Comparison(LAUNCHES, file_mb, whole, two, walk, peer, versions, machine(), day)


def _timed(python: str, program: str, report: Path, runs: int, *metrics: str) -> Timed:
    with tempfile.TemporaryDirectory(prefix="warplens-bench-") as room:
        seconds = Path(room, "seconds")
        process = measure([python, "-c", program, str(report), str(seconds), *metrics], runs=runs)
        return Timed(statistics.median(map(float, seconds.read_text().split())), process)


def _peer_version(python: str) -> str | None:
    asked = subprocess.run([python, "-c", _PEER_VERSION], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else None


def _say(doing: str) -> None:
    print(f"… {doing}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a measurement fails, or with `--check` where a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ncu_rep", description=__doc__.partition("\n")[0])
    parser.add_argument("--report", type=Path, default=SMALL, help="the report whose blocks are repeated")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="the interpreter that has ncu-report (default: this one)"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each side; the median counts (default: 5)")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promise is not kept")
    given = parser.parse_args(arguments)
    if not given.report.is_file():
        print(f"no report to repeat: {given.report.name} is not there; name one with --report", file=sys.stderr)
        return 1
    try:
        result = compare(given.report, peer_python=given.peer_python, runs=given.runs)
    except ProcessFailedError as failure:
        print(f"benchmark failed: {failure}", file=sys.stderr)
        return 1
    print(result.table())
    print(f"stored in benchmarks/results/{result.store().name}", file=sys.stderr)
    for sentence in result.missed():
        print(f"Promise not kept: {sentence}.", file=sys.stderr)
    return 1 if result.missed() and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
