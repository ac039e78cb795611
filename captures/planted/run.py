"""Runs cases in one process: timed without a profiler, under torch.profiler, or one under nsys.

    python -m planted.run list
    python -m planted.run time --records FILE --runs CASE@VARIANT …
    python -m planted.run torch --records FILE --out FOLDER --runs CASE@VARIANT …
    python -m planted.run nsys --records FILE --lock FILE --runs CASE@VARIANT

Each finished run adds one line of JSON to the records, a failed one a line with its `error`; the process goes on,
unless CUDA itself is broken.
"""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import gc
import importlib
import itertools
import json
import statistics
import sys
import traceback
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any

import torch
from common import CUDA, DEVICE, recorded, synchronize

from planted.parts import TINY, Annotations, region
from planted.registry import CASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planted.registry import Case, Step

WARMUP = 4
#: Of the timings without a profiler: steps at least, and nanoseconds at least.
STEPS, ENOUGH_NS = 40, 500_000_000
#: Longer than this no run may hold the GPU.
PATIENCE_S = 60

for module in ("host", "memory", "kernels", "mixtures", "healthy", "heldout"):
    importlib.import_module(f"planted.{module}")


@contextmanager
def prepared(case: Case, variant: str) -> Iterator[Step]:
    """The variant's step after its warm-up, the GPU at its clock; cleans up afterwards."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    step: Step | None = None
    with nullcontext() if case.training else torch.inference_mode():
        try:
            step = case.build(variant)
            _heat()
            for _ in range(WARMUP):
                step()
                if case.sync_each_step:
                    synchronize()
            synchronize()
            gc.collect()
            yield step
            synchronize()
        finally:
            if hasattr(step, "close"):
                step.close()
            del step
            gc.collect()
            if CUDA:
                torch.cuda.empty_cache()


def _heat() -> None:
    """Keeps the GPU busy for a tenth of a second, so that it leaves its idle clock."""
    if not CUDA or TINY:
        return
    x = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    end = perf_counter_ns() + 100_000_000
    while perf_counter_ns() < end:
        x @ x
        synchronize()


def timed(case: Case, step: Step) -> dict[str, Any]:
    """Step times without a profiler: from begin to begin on the GPU, and their mean by the host's clock."""
    begin = perf_counter_ns()
    step()
    synchronize()
    steps = 3 if TINY else max(STEPS, min(400, ENOUGH_NS // (perf_counter_ns() - begin + 1)))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)] if CUDA else []
    clock: list[int] = []
    begin = perf_counter_ns()
    for index in range(steps):
        if CUDA:
            events[index].record()
        clock.append(perf_counter_ns())
        step()
        if case.sync_each_step:
            synchronize()
    clock.append(perf_counter_ns())
    if CUDA:
        events[-1].record()
    synchronize()
    end = perf_counter_ns()
    times = [round(a.elapsed_time(b) * 1e6) for a, b in itertools.pairwise(events)]
    times = times or [b - a for a, b in itertools.pairwise(clock)]
    q1, median, q3 = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "steps": steps,
        "median_ns": round(median),
        "q1_ns": round(q1),
        "q3_ns": round(q3),
        "min_ns": min(times),
        "max_ns": max(times),
        "wall_mean_ns": round((end - begin) / steps),
    }


def profiled(case: Case, step: Step, profiler: Any = None) -> dict[str, Any]:
    """Runs what is to be recorded; times by the host's clock, the last wait for the GPU included."""
    for _ in range(case.recorded_warmup):
        with region("warmup"):
            step()
            if case.sync_each_step:
                synchronize()
    synchronize()
    clock = [perf_counter_ns()]
    for index in range(case.steps):
        with region("step") if case.ranges and profiler is None else nullcontext():
            step()
            if case.sync_each_step:
                synchronize()
        if index == case.steps - 1:
            synchronize()
        clock.append(perf_counter_ns())
        if profiler is not None:
            profiler.step()
    return {
        "steps": case.steps,
        "steps_ns": [b - a for a, b in itertools.pairwise(clock)],
        "wall_mean_ns": round((clock[-1] - clock[0]) / case.steps),
    }


def under_torch(case: Case, step: Step, target: Path) -> dict[str, Any]:
    """Records the steps with torch.profiler; with its own step ranges, unless warm-up is recorded or ranges are not."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if CUDA:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    options: dict[str, Any] = {"activities": activities, "record_shapes": True, **case.profiler}
    Annotations.kind = "torch"
    try:
        if not case.ranges or case.recorded_warmup:
            with torch.profiler.profile(**options) as profiler:
                result = profiled(case, step)
            profiler.export_chrome_trace(str(target))
            return result
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=case.steps)

        def ready(finished: Any) -> None:
            finished.export_chrome_trace(str(target))

        with torch.profiler.profile(**options, schedule=schedule, on_trace_ready=ready) as profiler:
            step()
            synchronize()
            profiler.step()
            return profiled(case, step, profiler)
    finally:
        Annotations.kind = ""


def under_nsys(case: Case, step: Step) -> dict[str, Any]:
    """Runs the steps in the region that nsys records."""
    with recorded():
        return profiled(case, step)


def run(how: str, name: str, out: Path | None) -> dict[str, Any]:
    """One variant of one case."""
    case_name, _, variant = name.partition("@")
    case = CASES[case_name]
    record: dict[str, Any] = {"case": case_name, "variant": variant, "how": how}
    begin = perf_counter_ns()
    if how == "nsys":
        Annotations.kind = "nvtx"
    try:
        with prepared(case, variant) as step:
            if how == "unprofiled":
                record |= timed(case, step)
            elif how == "torch":
                assert out is not None
                record |= under_torch(case, step, out / f"{case_name}__{variant}.json")
            else:
                record |= under_nsys(case, step)
    except Exception as error:  # one case must not stop the others
        traceback.print_exc()
        record["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    record["took_s"] = (perf_counter_ns() - begin) / 1e9
    return record


def main() -> None:
    """Runs the cases that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["list", "time", "torch", "nsys"])
    parser.add_argument("--records", type=Path, help="file of JSON lines to add to")
    parser.add_argument("--out", type=Path, help="folder for the traces of torch.profiler")
    parser.add_argument("--lock", type=Path, help="file that the process that uses the GPU holds")
    parser.add_argument("--runs", nargs="*", default=[], metavar="CASE@VARIANT")
    options = parser.parse_args()
    if options.how == "list":
        cases = [case.described() for case in CASES.values()]
        tools = {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
        tools["gpu"] = torch.cuda.get_device_name() if CUDA else "none"
        print(json.dumps({"cases": cases, "tools": tools}))
        return
    how = "unprofiled" if options.how == "time" else options.how
    with options.lock.open("w") if options.lock else nullcontext() as lock:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if how == "torch" and CUDA:  # the first profile of a process is slow to start
            with torch.profiler.profile():
                torch.ones(1, device=DEVICE).add_(1)
                synchronize()
        for name in options.runs:
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            record = run(how, name, options.out)
            with options.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{how} {name}: {_shown(record)} ({record['took_s']:.1f} s)", file=sys.stderr, flush=True)
            if "CUDA error" in record.get("error", ""):
                sys.exit(3)
        faulthandler.cancel_dump_traceback_later()
        if lock is not None:
            sleep(0.05)


def _shown(record: dict[str, Any]) -> str:
    if "error" in record:
        return str(record["error"])
    spread = f", median {record['median_ns'] / 1e6:.3f}" if "median_ns" in record else ""
    return f"{record['wall_mean_ns'] / 1e6:.3f} ms a step{spread}"


if __name__ == "__main__":
    main()
