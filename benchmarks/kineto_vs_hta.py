"""Warplens against Holistic Trace Analysis, as whole processes on the same generated PyTorch trace in the same run.

Both answer the same questions: GPU time by kernel, how much of the time the GPU computed, communicated, copied or was
idle, and why it was idle. Beside them stand reading alone (`warplens.read`), the whole report, and a floor: unpacking
the file and marking every quote in it, below which no reader that looks at each byte once can fall.

HTA is run with the Python that the environment variable WARPLENS_HTA names, from an environment that has it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from benchmarks.measure import Measurement, ProcessFailedError, machine, measure, warm
from benchmarks.report_vs_nsys import warplens_command

__all__ = ["Comparison", "compare", "main"]

RESULTS = Path(__file__).with_name("results")

#: What the project promises: how many times faster than the peer, and what part of its memory at most.
LEAST_RATIO = 12.0
MOST_MEMORY_SHARE = 1 / 3
_PROMISED_FROM = 1_000_000

_STANDARD = (1_000_000, 5_000_000)
_QUICK = 20_000
_PACKAGES = ("warplens", "polars", "numpy")

_OURS = """
import sys
from pathlib import Path
from warplens.cli.edge import reuse_freed_memory
reuse_freed_memory([Path(sys.argv[1])])
import warplens
from warplens.analysis.kernels import kernel_statistics
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
timeline = Timeline(warplens.read(sys.argv[1]))
window = timeline.window("all")
assert kernel_statistics(timeline, window, "name").height
assert kernel_statistics(timeline, window, "category").height
assert time_budgets(timeline, window)
sys.stdout.flush()
import os
os._exit(0)
"""
_READING = "import sys, os, warplens; warplens.read(sys.argv[1]); os._exit(0)"
_PEER = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
assert len(kernels)
assert len(analysis.get_temporal_breakdown(visualize=False))
assert len(analysis.get_idle_time_breakdown(visualize=False)[0])
"""
_FLOOR = """
import sys, zlib
import numpy as np
unpack = zlib.decompressobj(wbits=31).decompress if sys.argv[1].endswith(".gz") else bytes
with open(sys.argv[1], "rb") as file:
    while block := file.read(2**22 if unpack is bytes else 2**15):
        np.flatnonzero(np.frombuffer(unpack(block), np.uint8) == ord('"'))
"""


@dataclass(frozen=True)
class Comparison:
    """Both sides on one trace.

    Attributes:
        events: events in the trace, of all kinds; file_mb: its size; form: `json` or `json.gz`.
        ours, reading, report, floor: the breakdowns, reading alone, the whole report, and the floor.
        peer: the peer's breakdowns; None where it is absent.
    """

    events: int
    form: str
    file_mb: float
    ours: Measurement
    reading: Measurement
    report: Measurement
    floor: Measurement
    peer: Measurement | None
    versions: dict[str, str]
    machine: str
    day: str

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is than the peer; None without a peer."""
        return self.peer.median_s / self.ours.median_s if self.peer else None

    @property
    def memory_share(self) -> float | None:
        """Our peak memory as a share of the peer's; None without a peer."""
        return self.ours.peak_mb / self.peer.peak_mb if self.peer else None

    def missed(self) -> list[str]:
        """The promises that were not kept, as sentences."""
        if self.events < _PROMISED_FROM or self.ratio is None or self.memory_share is None:
            return []
        name = f"{self.events:,} events ({self.form})"
        sentences = []
        if self.ratio < LEAST_RATIO:
            sentences.append(f"{name}: {self.ratio:.1f} times faster than HTA, promised {LEAST_RATIO:.0f}")
        if self.memory_share > MOST_MEMORY_SHARE:
            sentences.append(f"{name}: {self.memory_share:.0%} of HTA's memory, promised {MOST_MEMORY_SHARE:.0%}")
        return sentences

    def table(self) -> str:
        """The measurements as a Markdown table, with what bounds ours."""
        lines = [
            f"**{self.events:,} events**, `.{self.form}` of {self.file_mb:,.0f} MB",
            "",
            "| what | wall time | against ours | processor time | peak memory |",
            "|---|---:|---:|---:|---:|",
        ]
        if self.peer:
            lines.append(self._line("HTA: kernel, temporal and idle-time breakdown", self.peer))
        lines.append(self._line("Warplens: the same (kernels, categories, time budget with idle causes)", self.ours))
        lines.append(self._line("of which reading (`warplens.read`, as a process of its own)", self.reading))
        lines.append(self._line("`warplens report --format json`", self.report))
        unpacking = "unpacking, and " if self.form == "json.gz" else ""
        lines.append(self._line(f"floor: {unpacking}marking every quote", self.floor))
        everything = [one for one in (self.ours, self.reading, self.report, self.floor, self.peer) if one]
        if any(one.is_disturbed for one in everything):
            others = max(one.other_cores for one in everything)
            lines += ["", f"**Disturbed**: other processes kept up to {others:.1f} cores busy meanwhile."]
        listed = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines += ["", self.bound(), "", f"{self.machine}; {listed}; {self.day}."]
        return "\n".join(lines)

    def bound(self) -> str:
        """Where our time goes, in a sentence."""
        total, reading, floor = (one.median_s for one in (self.ours, self.reading, self.floor))
        sentence = (
            f"Reading takes {reading / total:.0%} of our time, and {reading / floor:.1f} times as long as the floor."
        )
        if self.memory_share:
            sentence += f" Our peak memory is {self.memory_share:.0%} of HTA's."
        return sentence

    def _line(self, name: str, measured: Measurement) -> str:
        wall, cpu = measured.median_s, measured.median_cpu_s
        times = wall / self.ours.median_s
        return f"| {name} | {wall:.2f} s | {times:.2f} × | {cpu:.2f} s | {measured.peak_mb:,.0f} MB |"

    def store(self) -> Path:
        """Writes the measurements as JSON and the table as Markdown into `results/`; returns the former."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"kineto_vs_hta_{self.events}_{self.form.replace('.', '_')}.json"
        measured = asdict(self) | {"ratio": self.ratio, "memory_share": self.memory_share}
        path.write_text(json.dumps(measured, indent=2) + "\n")
        path.with_suffix(".md").write_text(self.table() + "\n")
        return path


def compare(
    events: int, form: str, *, runs: int = 3, patience_s: float = 0, with_peer: bool = True, folder: Path | None = None
) -> Comparison:
    """Generates a trace and measures both sides on it.

    Args:
        events: size of the trace.
        form: `json` or `json.gz`.
        runs: of everything that is ours; the median counts. The peer runs once.
        patience_s: how long each measurement may wait for a machine without other work.
        with_peer: whether the peer is measured where it is installed.
        folder: where the trace is put, if not into the temporary folder.

    Raises:
        ProcessFailedError: one of the measured processes fails.
    """
    with tempfile.TemporaryDirectory(prefix="warplens-bench-", dir=folder) as room:
        trace, out = Path(room) / f"trace.{form}", Path(room) / "report"

        def take(doing: str, *command: str, runs: int = runs) -> Measurement:
            print(f"… {events:,} events, .{form}: {doing}", file=sys.stderr, flush=True)
            return measure(command, runs=runs, patience_s=patience_s)

        def script(text: str) -> tuple[str, ...]:
            return sys.executable, "-c", text, str(trace)

        plain = Path(room) / "trace.json"
        measure([sys.executable, "-m", "benchmarks.generate_kineto", str(events), str(plain)])
        if form == "json.gz":
            with plain.open("rb") as source, gzip.open(trace, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 2**22)
            plain.unlink()
        warm(trace)
        ours = take("our breakdowns", *script(_OURS))
        reading = take("reading alone", *script(_READING))
        command = (warplens_command(), "report", str(trace), "--format", "json", "-o", str(out))
        report = take("our report", *command)
        floor = take("the floor", *script(_FLOOR))
        hta = _hta() if with_peer else None
        peer = take("HTA", hta, "-c", _PEER, str(trace), runs=1) if hta else None
        file_mb = trace.stat().st_size / 1e6
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}
    if hta:
        versions["HolisticTraceAnalysis"] = _hta_version(hta)
    day = datetime.now(timezone.utc).date().isoformat()
    return Comparison(events, form, file_mb, ours, reading, report, floor, peer, versions, machine(), day)


def _hta() -> str | None:
    found = os.environ.get("WARPLENS_HTA")
    if found is None:
        print("WARPLENS_HTA does not name a Python that has HTA: the peer is left out", file=sys.stderr)
    return found


def _hta_version(python: str) -> str:
    ask = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a measurement fails, or with `--check` where a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kineto_vs_hta", description=__doc__.partition(",")[0])
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK:,} events: whether it works; nothing stored")
    parser.add_argument("--events", type=int, nargs="+", default=list(_STANDARD), help="sizes of the trace")
    parser.add_argument("--form", choices=("json", "json.gz"), nargs="+", default=["json", "json.gz"])
    parser.add_argument("--runs", type=int, default=3, help="runs of everything that is ours (default: 3)")
    parser.add_argument("--patience", type=float, default=0, metavar="S", help="wait so long for an idle machine")
    parser.add_argument("--folder", type=Path, help="where the traces are put meanwhile")
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promise is not kept")
    given = parser.parse_args(arguments)
    missed = []
    for events in [_QUICK] if given.quick else sorted(given.events):
        for form in given.form:
            try:
                result = compare(
                    events,
                    form,
                    runs=given.runs,
                    patience_s=given.patience,
                    with_peer=not given.no_peer,
                    folder=given.folder,
                )
            except ProcessFailedError as failure:
                print(f"benchmark failed: {failure}", file=sys.stderr)
                return 1
            print(result.table(), end="\n\n", flush=True)
            if not given.quick:
                print(f"stored in benchmarks/results/{result.store().name}", file=sys.stderr)
            missed += result.missed()
    for sentence in missed:
        print(f"Promise not kept: {sentence}.", file=sys.stderr)
    return 1 if missed and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
