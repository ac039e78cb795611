"""Single questions as whole processes: start-up on a small file, tables of a large one against `nsys stats`, slices.

`python -m benchmarks.commands [--kernels N] [--runs N] [--small FILE]` prints a table and stores it in `results/`.
Processor time is that of all cores together, which other work on the machine moves less than wall time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.comparison import RESULTS, disturbed, footer
from benchmarks.measure import Measurement, measure, warm

#: Each question with the peer's report of the same numbers.
TABLES = {"kernels": "cuda_gpu_kern_sum", "api": "cuda_api_sum", "copies": "cuda_gpu_mem_time_sum"}

_SMALL = 10_000


def rows(kernels: int, runs: int, small: Path | None) -> list[tuple[str, Measurement]]:
    """Each command with its measurement."""
    with tempfile.TemporaryDirectory(prefix="warplens-bench-") as room:
        few, many = Path(room) / "few.sqlite", Path(room) / "many.sqlite"
        for path, size in ((few, _SMALL), (many, kernels)):
            measure(
                [sys.executable, "-m", "benchmarks.generate_nsys", str(path), "--one-thread", "--kernels", str(size)]
            )
            warm(path)
        few = small or few

        def ours(*arguments: str) -> Measurement:
            print(f"measuring warplens {arguments[0]} …", file=sys.stderr)
            return measure([sys.executable, "-m", "warplens", *arguments], runs=runs)

        size = f"{few.stat().st_size / 1e6:.1f} MB"
        measured = [(f"`warplens {name}`, {size}", ours(name, str(few))) for name in ("kernels", "diagnose")]
        nsys = os.environ.get("WARPLENS_NSYS") or shutil.which("nsys")
        for name, report in TABLES.items():
            if nsys:
                stats = [nsys, "stats", "--quiet", "--format", "csv", "--output", "-", "--report", report, str(many)]
                measured.append((f"`nsys stats -r {report}`", measure(stats)))
            measured.append((f"`warplens {name}`", ours(name, str(many), "--format", "json")))
            command = (name, str(many), "--window", "all", "--format", "json", "--memory", f"{kernels // 10_000}MB")
            measured.append((f"`warplens {name} --window all`, in slices", ours(*command)))
        measured.append(("`warplens report --format json`", ours("report", str(many), "--format", "json")))
        return measured


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands", description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=1_000_000, help="size of the large capture")
    parser.add_argument("--runs", type=int, default=3, help="runs of everything that is ours; the median counts")
    parser.add_argument("--small", type=Path, help="a small profile for start-up, in place of a generated one")
    options = parser.parse_args()
    measured = rows(options.kernels, options.runs, options.small)
    lines = [
        f"**{options.kernels:,} kernels**, as whole processes; medians of {options.runs}",
        "",
        "| what | processor time | wall time | peak memory |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {m.median_cpu_s:.2f} s | {m.median_s:.2f} s | {m.peak_mb:,.0f} MB |" for name, m in measured),
        *disturbed([one for _, one in measured]),
        "",
        footer(),
    ]
    (RESULTS / f"commands_{options.kernels}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
