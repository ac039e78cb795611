"""Runs every benchmark against a peer: `python -m benchmarks.run [--quick] [--kernels N …] [--events N …] [--check]`.

Captures against `nsys stats`, PyTorch traces against HTA, and, where there is one to repeat, a report of Nsight Compute
against `ncu-report`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence

from benchmarks import kineto_vs_hta, ncu_rep, report_vs_nsys
from benchmarks.comparison import Comparison
from benchmarks.measure import ProcessFailedError

__all__ = ["main"]

_QUICK = 20_000
_STANDARD = 1_000_000

#: Memory and time may grow with the number of kernels, not faster; the rest is measuring noise.
_LINEAR = 1.15


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a measurement fails, or with `--check` where a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"{_QUICK:,} kernels: whether it works, not how fast; nothing stored"
    )
    parser.add_argument("--kernels", type=int, nargs="*", default=[_STANDARD], help=f"sizes (default: {_STANDARD:,})")
    parser.add_argument(
        "--events", type=int, nargs="*", default=[_STANDARD], help=f"sizes of PyTorch traces (default: {_STANDARD:,})"
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of everything that is ours; the median counts (default: 3)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        metavar="S",
        help="let each measurement wait up to this long for an idle machine",
    )
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promise is not kept")
    options = parser.parse_args(arguments)
    measuring = {"runs": options.runs, "patience_s": options.patience, "with_peer": not options.no_peer}
    kernels, events = ([_QUICK] if options.quick else sorted(sizes) for sizes in (options.kernels, options.events))

    missed: list[str] = []

    def done(compare: Callable[..., Comparison], *what: object) -> Comparison:
        result = compare(*what, **measuring)
        print(result.table(), end="\n\n", flush=True)
        if not options.quick:
            print(f"stored in benchmarks/results/{result.store().name}", file=sys.stderr)
        missed.extend(result.missed)
        return result

    try:
        results = [done(report_vs_nsys.compare, size) for size in kernels]
        for size, form in itertools.product(events, ("json", "json.gz")):
            done(kineto_vs_hta.compare, size, form)
        if ncu_rep.SMALL.is_file():
            done(ncu_rep.compare)
    except ProcessFailedError as failure:
        print(f"benchmark failed: {failure}", file=sys.stderr)
        return 1
    for (small, one), (large, other) in itertools.pairwise(zip(kernels, results, strict=True)):
        growth = other.rows[other.ours].median_s / one.rows[one.ours].median_s / (large / small)
        sizes = f"from {small:,} to {large:,} kernels"
        print(f"Our time grew {growth:.2f} times as fast as the capture {sizes}.\n")
        if growth > _LINEAR:
            missed.append(f"{sizes} our time grew {growth:.2f} times as fast as the capture")
    for sentence in missed:
        print(f"Promise not kept: {sentence}.", file=sys.stderr)
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
