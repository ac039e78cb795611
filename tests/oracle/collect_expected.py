"""Stores what NVIDIA's `nsys stats` says about every capture.

    WARPLENS_NSYS=/path/to/nsys python -m tests.oracle.collect_expected [NAME…]

from the repository's root. Only derived statistics are stored: numbers with the names of kernels, API functions and
ranges. Nothing of the capture's environment, host, user or paths.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .captures import captures, has_device_data
from .nsys_stats import EXPECTED, collect, find_nsys, store


def main(wanted: list[str]) -> int:
    """Collects the answers for the captures named, or for all of them; returns the exit code."""
    nsys = find_nsys()
    if nsys is None:
        sys.stderr.write("nsys is neither in WARPLENS_NSYS nor on the PATH\n")
        return 2
    EXPECTED.mkdir(exist_ok=True)
    for capture in captures():
        if wanted and capture.stem not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            database = capture.unpacked_into(Path(folder))
            if not has_device_data(database):
                sys.stdout.write(f"{capture.stem}: no CUDA data, nothing to compare\n")
                continue
            answers = collect(nsys, database)
        path = store(answers, capture.stem)
        rows = sum(reported.count for reported in answers.reports.values())
        size = path.stat().st_size
        sys.stdout.write(f"{capture.stem}: {len(answers.reports)} reports, {rows} rows, {size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
