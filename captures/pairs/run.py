"""Runs one program in a process of its own: timed without a profiler and recorded by torch.profiler, or under nsys.

    python -m pairs.run list
    python -m pairs.run try  NAME --records FILE [--lock FILE]
    python -m pairs.run time NAME --records FILE [--lock FILE] --out FOLDER
    python -m pairs.run nsys NAME --records FILE [--lock FILE] --variant before
    python -m pairs.run time NAME --records FILE --variants before a+b         # times only; of a program with fixes

NAME is `module.program`. A finished run adds one line of JSON to the records, a failed one a line with its `error`. Who
holds the lock has the GPU; libraries are loaded before, and traces written afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pairs.parts import CUDA, TINY
from pairs.registry import PROGRAMS, Program, Step

#: Families of programs, a module each; what is held out stands in modules of its own.
MODULES = sorted(
    {path.stem for path in Path(__file__).parent.glob("[a-z]*.py")} - {"drive", "pack", "parts", "registry", "run"}
)
#: Rounds of before and after, at least; nanoseconds of a block of steps; seconds for all of them.
ROUNDS, LEAST_ROUNDS, BLOCK_NS, PATIENCE_NS = 12, 10, 100_000_000, 7_000_000_000
WARMUP = 4
clock = time.perf_counter_ns


def synchronize() -> None:
    """Waits for the GPU."""
    if CUDA:
        torch.cuda.synchronize()


@contextlib.contextmanager
def held(path: Path | None) -> Iterator[None]:
    """The lock, while the block runs."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: workers of a DataLoader that were forked meanwhile have the file open, too.
            fcntl.flock(file, fcntl.LOCK_UN)


def heat() -> None:
    """Keeps the GPU busy for a fifth of a second, so that it leaves its idle clock."""
    if not CUDA or TINY:
        return
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end = clock() + 200_000_000
    while clock() < end:
        x @ x
        synchronize()


def block(step: Step, steps: int) -> float:
    """Milliseconds a step of some steps, from an idle GPU to an idle GPU, after one that does not count."""
    step()
    synchronize()
    begin = clock()
    for _ in range(steps):
        step()
    synchronize()
    return (clock() - begin) / steps / 1e6


class Peak:
    """Peak memory of one of several programs in the process: what the others hold does not count."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.peaks: dict[str, int] = {}

    @staticmethod
    def allocated() -> int:
        """Bytes in use."""
        return torch.cuda.memory_allocated() if CUDA else 0

    @contextlib.contextmanager
    def of(self, variant: str) -> Iterator[None]:
        """Counts what the block leaves in use, and the most that it uses, to the variant."""
        others = sum(value for name, value in self.held.items() if name != variant)
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        yield
        self.held[variant] = self.allocated() - others
        most = torch.cuda.max_memory_allocated() - others if CUDA else 0
        self.peaks[variant] = max(most, self.peaks.get(variant, 0))


def built(program: Program, variants: tuple[str, ...], peak: Peak) -> dict[str, Step]:
    """The steps of the variants; models are made here."""
    steps = {}
    for variant in variants:
        with peak.of(variant):
            torch.manual_seed(0)
            steps[variant] = program.build(variant)
    synchronize()
    return steps


def warm(steps: dict[str, Step], peak: Peak) -> dict[str, int]:
    """Runs each some times; nanoseconds of a step at the end."""
    took = {}
    for variant, step in steps.items():
        with peak.of(variant):
            for _ in range(WARMUP - 2 if TINY else WARMUP):
                step()
            synchronize()
            begin = clock()
            step()
            step()
            synchronize()
            took[variant] = (clock() - begin) // 2
    gc.collect()
    return took


def timed(program: Program, steps: dict[str, Step], peak: Peak) -> dict[str, Any]:
    """Before and after in turn, round by round."""
    took = warm(steps, peak)
    counts = {variant: max(1, min(30, round(BLOCK_NS / ns))) for variant, ns in took.items()}
    a_round = sum((counts[variant] + 1) * ns for variant, ns in took.items())
    rounds = 2 if TINY else max(LEAST_ROUNDS, min(ROUNDS, PATIENCE_NS // a_round))
    heat()
    samples: dict[str, list[float]] = {variant: [] for variant in steps}
    for index in range(rounds):
        for variant in list(steps)[:: 1 if index % 2 == 0 else -1]:
            samples[variant].append(round(block(steps[variant], counts[variant]), 4))
    result: dict[str, Any] = {"rounds": rounds, "steps_a_block": counts, "samples_ms": samples}
    result["median_ms"] = {variant: statistics.median(values) for variant, values in samples.items()}
    result["peak_memory_bytes"] = peak.peaks
    return result


def traced(program: Program, step: Step, path: Path, lock: Path | None) -> dict[str, Any]:
    """Records the variant `before` by torch.profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if CUDA:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities):  # the first profile of a process is slow to start
            torch.ones(1, device="cuda").add_(1)
            synchronize()
    count = program.steps[1]
    options: dict[str, Any] = {"activities": activities, "record_shapes": True, "with_stack": program.with_stack}
    is_numbered = program.ranges and program.profiler_steps
    if is_numbered:
        options["schedule"] = torch.profiler.schedule(wait=0, warmup=1, active=count)
        options["on_trace_ready"] = lambda profiler: profiler.export_chrome_trace(str(path))
    with held(lock):
        step()
        synchronize()
        profiler = torch.profiler.profile(**options)
        profiler.start()
        if is_numbered:
            step()
            synchronize()
            profiler.step()
        begin, took = clock(), 0
        for index in range(count):
            named = program.ranges and not program.profiler_steps
            with torch.profiler.record_function("step") if named else contextlib.nullcontext():
                step()
            if index == count - 1:
                synchronize()
                took = clock() - begin
            if is_numbered:
                profiler.step()
        profiler.stop()
    if not is_numbered:
        profiler.export_chrome_trace(str(path))
    return {"torch_steps": count, "torch_ms": took / count / 1e6}


def under_nsys(program: Program, step: Step) -> dict[str, Any]:
    """Runs what nsys records, between cudaProfilerStart and Stop."""
    count = program.steps[0]
    for _ in range(WARMUP + 2):
        step()
    synchronize()
    if CUDA:
        torch.cuda.profiler.start()
    begin = clock()
    for index in range(count):
        if CUDA and program.ranges:
            torch.cuda.nvtx.range_push("step")
        step()
        if index == count - 1:
            synchronize()
        if CUDA and program.ranges:
            torch.cuda.nvtx.range_pop()
    took = clock() - begin
    if CUDA:
        torch.cuda.profiler.stop()
    return {"nsys_steps": count, "nsys_ms": took / count / 1e6}


def run(how: str, program: Program, options: argparse.Namespace) -> dict[str, Any]:
    """One run, in the lock where it matters."""
    peak = Peak()
    steps: dict[str, Step] = {}
    variants = (options.variant,) if how == "nsys" else tuple(options.variants or program.variants)
    with torch.inference_mode() if program.inference else contextlib.nullcontext():
        try:
            with held(options.lock):
                steps = built(program, variants, peak)
                if how == "nsys":
                    return under_nsys(program, steps[options.variant])
                if how == "try":
                    took = {variant: ns / 1e6 for variant, ns in warm(steps, peak).items()}
                    return {"median_ms": took, "peak_memory_bytes": peak.peaks}
                result = timed(program, steps, peak)
            kind = "together" if options.variants else "unprofiled"
            save(options.records, {"name": program.name, "how": kind, **result})
            if options.variants:
                return {}
            path = options.out / f"{program.name}__before.pt.trace.json"
            return traced(program, steps["before"], path, options.lock)
        finally:
            for step in steps.values():
                if hasattr(step, "close"):
                    step.close()


def save(records: Path, record: dict[str, Any]) -> None:
    """Adds a line to the records."""
    with records.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def found(name: str) -> Program:
    """The program called `module.program`."""
    module, _, short = name.rpartition(".")
    importlib.import_module(f"pairs.{module}")
    return PROGRAMS[short]


def main() -> None:
    """Runs the program that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["list", "try", "time", "nsys"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--records", type=Path, default=Path("/dev/stdout"))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--variant", default="before")
    parser.add_argument("--variants", nargs="+")
    options = parser.parse_args()
    if options.how == "list":
        for module in MODULES:
            importlib.import_module(f"pairs.{module}")
        listed = [{**p.described(), "module": p.build.__module__.removeprefix("pairs.")} for p in PROGRAMS.values()]
        print(json.dumps(listed, indent=1))
        return
    begin = clock()
    record: dict[str, Any] = {"name": options.name.rpartition(".")[2], "how": options.how}
    if options.how == "nsys":
        record["variant"] = options.variant
    try:
        record |= run(options.how, found(options.name), options)
    except Exception as error:  # the driver reads it from the records
        traceback.print_exc()
        record["error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:400]
    record["took_s"] = round((clock() - begin) / 1e9, 2)
    save(options.records, record)
    sys.stdout.flush()
    if "error" in record:
        os._exit(1)


if __name__ == "__main__":
    main()
