"""Our reader of Nsight Compute reports against NVIDIA's `ncu-report`, on the same generated report in the same run.

The peer loads the report and asks each launch for the value of each of its metrics; ours reads all of them into
columns, with rules, ranges and session. Beside the two stand a read of two metrics, and a floor: the walk over the
lengths of all messages, below which no reader written in Python can fall. Each is a process of its own; imports are not
in its wall time, but in its processor time and memory.

The peer is run with the Python that the environment variable WARPLENS_NCU_PYTHON names, of an environment that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.comparison import Comparison, taker
from benchmarks.measure import Measurement, measure, warm

__all__ = ["SMALL", "compare"]

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

_OURS = "Warplens: everything into columns"

TWO = ("gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed")

_TIMED = """
import sys, time
{imports}
begin = time.perf_counter()
{work}
with open(sys.argv[2], "a") as file:
    print(time.perf_counter() - begin, file=file)
"""
_WHOLE = _TIMED.format(
    imports="from pathlib import Path\nfrom warplens.readers.ncu.report import read_ncu_rep\npath = Path(sys.argv[1])",
    work="counters = read_ncu_rep(path, path, sys.argv[3:] or None)",
)
_WALK = _TIMED.format(
    imports=(
        "from pathlib import Path\nfrom warplens.readers.ncu.container import Container, content_of\n"
        "from warplens.readers.ncu.container import FIELDS\nfrom warplens.wire import Message\n"
        "path = Path(sys.argv[1])"
    ),
    work=(
        "with content_of(path, path) as data:\n"
        "    for block in Container(data, path).blocks():\n"
        "        for result in block.results:\n"
        "            Message(data, result.start, result.end, gather=FIELDS[result.kind].metrics)"
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


def compare(small: Path = SMALL, *, runs: int = 5, patience_s: float = 0, with_peer: bool = True) -> Comparison:
    """Generates the report and measures all sides on it.

    Args:
        small: the report whose blocks are repeated.
        runs: of each side; the median counts.
        patience_s: how long each measurement may wait for a machine without other work.
        with_peer: whether the peer is measured where it is installed.

    Raises:
        ProcessFailedError: one of the measured processes fails.
    """
    with tempfile.TemporaryDirectory(prefix="warplens-bench-") as room:
        large, seconds = Path(room, "large.ncu-rep"), Path(room, "seconds")
        take = taker(f"{LAUNCHES} launches", runs, patience_s)
        sizes = ["--launches", str(LAUNCHES), "--megabytes", str(MEGABYTES)]
        measure([sys.executable, "-m", "benchmarks.generate_ncu", str(small), str(large), *sizes])
        warm(large)

        def timed(doing: str, program: str, *metrics: str, python: str = sys.executable) -> Measurement:
            seconds.unlink(missing_ok=True)
            process = take(doing, python, "-c", program, str(large), str(seconds), *metrics)
            # With patience disturbed runs were repeated: the last ones count.
            return replace(process, seconds=tuple(map(float, seconds.read_text().split()))[-runs:])

        full, two = timed("our read", _WHOLE), timed("two metrics", _WHOLE, *TWO)
        walk = timed("the floor", _WALK)
        python = os.environ.get("WARPLENS_NCU_PYTHON", sys.executable)
        version = _peer_version(python) if with_peer else None
        peer = timed("ncu-report", _PEER, python=python) if version else None
        file_mb = large.stat().st_size / 1e6
    walked, asked = (one.median_s / full.median_s for one in (walk, two))
    missed = ["reading two metrics is no faster than reading all"] if asked >= 1 else []
    if peer and (times := peer.median_s / full.median_s) < LEAST_RATIO:
        missed.append(f"{times:.1f} times faster than ncu-report, promised {LEAST_RATIO:.0f}")
    if peer and full.peak_mb > (limit := MOST_MEMORY_SHARE * peer.peak_mb):
        missed.append(f"{full.peak_mb:,.0f} MB, promised less than {limit:,.0f}")
    return Comparison(
        name=f"ncu_rep_{LAUNCHES}",
        title=f"**{LAUNCHES:,} launches** ({file_mb:,.0f} MB .ncu-rep)",
        rows=({"`ncu-report`: load, ask for every metric": peer} if peer else {})
        | {
            _OURS: full,
            "Warplens: two metrics of each launch": two,
            "floor: the walk over the messages' lengths alone": walk,
        },
        ours=_OURS,
        peer=peer,
        bound=(
            f"The walk is {walked:.0%} of our time; with what is read of every launch whatever is asked for (names, "
            f"sizes, ranges, rules) it is {asked:.0%}; the rest is numpy decoding values and polars making columns."
        ),
        missed=missed,
        peer_version={"ncu-report": version} if version else {},
        facts={"launches": LAUNCHES, "file_mb": file_mb},
    )


def _peer_version(python: str) -> str | None:
    asked = subprocess.run([python, "-c", _PEER_VERSION], capture_output=True, text=True, check=False)
    if asked.returncode:
        print("ncu-report is not installed (see WARPLENS_NCU_PYTHON): the peer is left out", file=sys.stderr)
    return asked.stdout.strip() or None
