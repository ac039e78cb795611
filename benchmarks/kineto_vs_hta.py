"""Warplens against Holistic Trace Analysis, as whole processes on the same generated PyTorch trace in the same run.

Both answer the same questions: GPU time by kernel, how much of the time the GPU computed, communicated, copied or was
idle, and why it was idle. Beside them stand reading alone (`warplens.read`), the whole report, and a floor: unpacking
the file and marking every quote in it, below which no reader that looks at each byte once can fall.

HTA is run with the Python that the environment variable WARPLENS_HTA names, from an environment that has it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.comparison import Comparison, taker, warplens_command
from benchmarks.measure import measure, warm

__all__ = ["compare"]

#: What the project promises: how many times faster than the peer, and what part of its memory at most.
LEAST_RATIO = 12.0
MOST_MEMORY_SHARE = 1 / 3
_PROMISED_FROM = 1_000_000

_OURS = "Warplens: the same (kernels, categories, time budget with idle causes)"

_SAME = """
import sys
from pathlib import Path
from warplens.cli.process import reuse_freed_memory
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


def compare(events: int, form: str, *, runs: int = 3, patience_s: float = 0, with_peer: bool = True) -> Comparison:
    """Generates a trace and measures both sides on it.

    Args:
        events: size of the trace.
        form: `json` or `json.gz`.
        runs: of everything that is ours; the median counts. The peer runs once.
        patience_s: how long each measurement may wait for a machine without other work.
        with_peer: whether the peer is measured where it is installed.

    Raises:
        ProcessFailedError: one of the measured processes fails.
    """
    with tempfile.TemporaryDirectory(prefix="warplens-bench-") as room:
        trace, plain = Path(room) / f"trace.{form}", Path(room) / "trace.json"
        take = taker(f"{events:,} events, .{form}", runs, patience_s)

        def script(text: str) -> tuple[str, ...]:
            return sys.executable, "-c", text, str(trace)

        measure([sys.executable, "-m", "benchmarks.generate_kineto", str(events), str(plain)])
        if form == "json.gz":
            with plain.open("rb") as source, gzip.open(trace, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 2**22)
            plain.unlink()
        warm(trace)
        ours = take("our breakdowns", *script(_SAME))
        reading = take("reading alone", *script(_READING))
        command = (warplens_command(), "report", str(trace), "--format", "json", "-o", str(Path(room) / "report"))
        report = take("our report", *command)
        floor = take("the floor", *script(_FLOOR))
        hta = _hta() if with_peer else None
        peer = take("HTA", hta, "-c", _PEER, str(trace), runs=1) if hta else None
        file_mb = trace.stat().st_size / 1e6
    unpacking = "unpacking, and " if form == "json.gz" else ""
    bound = (
        f"Reading takes {reading.median_s / ours.median_s:.0%} of our time, and "
        f"{reading.median_s / floor.median_s:.1f} times as long as the floor."
    )
    missed = []
    if peer:
        share, times = ours.peak_mb / peer.peak_mb, peer.median_s / ours.median_s
        bound += f" Our peak memory is {share:.0%} of HTA's."
        if events >= _PROMISED_FROM and times < LEAST_RATIO:
            missed.append(f"{events:,} events ({form}): {times:.1f} times faster than HTA, promised {LEAST_RATIO:.0f}")
        if events >= _PROMISED_FROM and share > MOST_MEMORY_SHARE:
            missed.append(f"{events:,} events ({form}): {share:.0%} of HTA's memory, promised {MOST_MEMORY_SHARE:.0%}")
    return Comparison(
        name=f"kineto_vs_hta_{events}_{form.replace('.', '_')}",
        title=f"**{events:,} events**, `.{form}` of {file_mb:,.0f} MB",
        rows=({"HTA: kernel, temporal and idle-time breakdown": peer} if peer else {})
        | {
            _OURS: ours,
            "of which reading (`warplens.read`, as a process of its own)": reading,
            "`warplens report --format json`": report,
            f"floor: {unpacking}marking every quote": floor,
        },
        ours=_OURS,
        peer=peer,
        bound=bound,
        missed=missed,
        peer_version={"HolisticTraceAnalysis": _hta_version(hta)} if hta else {},
        facts={"events": events, "form": form, "file_mb": file_mb},
    )


def _hta() -> str | None:
    python = os.environ.get("WARPLENS_HTA")
    if python is None:
        print("WARPLENS_HTA does not name a Python that has HTA: the peer is left out", file=sys.stderr)
    return python


def _hta_version(python: str) -> str:
    ask = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
