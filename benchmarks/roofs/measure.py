"""Measures the practical roofs of this machine's GPU, and writes them as `data/roofs` has them.

    python -m benchmarks.roofs.measure OUT.json [--kinds gemm attention …] [--device cpu --tiny]

What takes how long on the GPU is what a profiler says of each kernel: each operation runs some ten times inside
`torch.profiler` (whose CUPTI also serves Nsight Systems), its kernels are told by the launches between two marks, and
their durations are added up. Gaps between kernels do not count. Copies between host and GPU, and what launches cost,
are measured without a profiler. On an H200 all of it takes three minutes; with
`--into` the kinds that are asked for replace those in the file.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import datetime
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.roofs.cases import DATA_SHEET, Case, Sizes, cases, sets_of
from benchmarks.roofs.host import copies, launches

METHOD = """durations of the kernels of each operation, added up, as CUPTI records them (torch.profiler), clocks left
free, random operands, several sets of operands in turn so that the second-level cache holds no more than it would in a
program; median over the runs, low and high without the slowest and the fastest tenth. Rates count what the mathematics
needs: of memory-bound work each input read and each output written once. kind transfer and launch: without a profiler,
by the host's clock or CUDA events (kernel_duration: CUPTI)""".replace("\n", " ")
#: Runs of each operation: at least, at most, and at least so many seconds of them.
LEAST, MOST, ENOUGH_S = 7, 25, 0.012
#: Operations recorded by one profiler.
AT_ONCE = 24
MARK = "roof:"


def main() -> None:
    """Measures everything that is asked for, and writes what there is, also when something fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", nargs="+", help="only these kinds of kernels")
    parser.add_argument("--into", action="store_true", help="replace these kinds in the file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--budget-s", type=float, default=150, help="seconds after which nothing new is begun")
    options = parser.parse_args()
    begin = time.monotonic()
    sizes = Sizes(options.device, tiny=options.tiny)
    torch.manual_seed(0)
    chosen = [case for case in cases(sizes) if options.kinds is None or case.kind in options.kinds]
    entries: list[dict[str, Any]] = []
    failures: list[str] = []
    # What launches cost comes first: CUPTI, once it has recorded something, makes them dearer.
    for kind, part in (("launch", launches), ("transfer", copies)):
        if options.kinds is None or kind in options.kinds:
            try:
                entries += part(options.device, tiny=options.tiny)
            except Exception as error:  # the rest is worth having
                failures.append(f"{part.__name__}: {error}".splitlines()[0])
            print(f"[{time.monotonic() - begin:6.1f} s] {part.__name__}", file=sys.stderr, flush=True)
    if options.device == "cuda":
        _heat()
    for start in range(0, len(chosen), AT_ONCE):
        if time.monotonic() - begin > options.budget_s:
            failures.append(f"out of time: {len(chosen) - start} operations")
            break
        group = chosen[start : start + AT_ONCE]
        entries += measured(group, options.device, failures)
        print(f"[{time.monotonic() - begin:6.1f} s] {start + len(group)} of {len(chosen)}", file=sys.stderr, flush=True)
    if options.into:
        stored = json.loads(options.out.read_bytes())
        named = {item["kind"] for item in entries}
        entries = [item for item in stored["entries"] if item["kind"] not in named] + entries
        failures += [text for text in stored["failures"] if text.split()[0] not in named]
    write(options.out, entries, failures, options.device)


def measured(group: list[Case], device: str, failures: list[str]) -> list[dict[str, Any]]:
    """The entries of some cases, recorded by one profiler."""
    if device != "cuda":
        return [entry(case, _clocked(case), []) for case in group]
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], acc_events=True
    )
    runs: dict[int, int] = {}
    with profiler:
        for index, case in enumerate(group):
            try:
                runs[index] = _recorded(case, index)
            except Exception as error:  # an operation that this version of PyTorch refuses
                failures.append(f"{case.kind} {case.op} {case.dtype} {case.sizes}: {error}".splitlines()[0][:200])
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            gc.collect()
            torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        found = kernels_of(json.loads(path.read_bytes())["traceEvents"])
    entries = []
    for index, count in runs.items():
        kernels = found.get(index, [])
        each, rest = divmod(len(kernels), count)
        if not each or rest:
            failures.append(f"{group[index]}: {len(kernels)} kernels in {count} runs"[:200])
            continue
        seconds = [sum(d for _, d in kernels[i : i + each]) for i in range(0, len(kernels), each)]
        names = list(dict.fromkeys(name for name, _ in kernels[:each]))
        entries.append(entry(group[index], seconds, names))
    return entries


def _recorded(case: Case, index: int) -> int:
    """Runs a case between two marks; how often."""
    if case.dtype == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    operands = [case.make() for _ in range(sets_of(case.held))]
    for run in operands:
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for i in range(3):
        operands[i % len(operands)]()
    torch.cuda.synchronize()
    once = (time.perf_counter() - begin) / 3
    count = max(LEAST, min(MOST, round(ENOUGH_S / max(once, 1e-6))))
    with torch.profiler.record_function(f"{MARK}{index}"):
        for i in range(count):
            operands[i % len(operands)]()
        torch.cuda.synchronize()
    return count


def kernels_of(events: list[dict[str, Any]]) -> dict[int, list[tuple[str, float]]]:
    """Names and seconds of the kernels, copies and fills that were launched between the marks, in order, by mark."""
    marks = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]), int(e["name"].removeprefix(MARK)))
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith(MARK)
    )
    begins = [begin for begin, _, _ in marks]
    launched: dict[int, int] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            at = bisect.bisect_right(begins, float(event["ts"])) - 1
            if at >= 0 and float(event["ts"]) <= marks[at][1]:
                launched[event["args"]["correlation"]] = marks[at][2]
    found: dict[int, list[tuple[float, str, float]]] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            mark = launched.get(event["args"]["correlation"])
            if mark is not None:
                found.setdefault(mark, []).append((float(event["ts"]), event["name"], float(event["dur"]) / 1e6))
    return {mark: [(name, seconds) for _, name, seconds in sorted(kernels)] for mark, kernels in found.items()}


def _clocked(case: Case) -> list[float]:
    """Seconds by the host's clock, for trying the script without a GPU."""
    run = case.make()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        with contextlib.suppress(NotImplementedError, RuntimeError):
            run()
        times.append(time.perf_counter() - begin)
    return times


def entry(case: Case, seconds: list[float], names: list[str]) -> dict[str, Any]:
    """What the file says of a case: its rate, and which share of the data sheet's that is."""
    rates = sorted(case.work / s for s in seconds)
    scale, unit = (1e12, "TFLOP/s") if case.unit == "FLOP" else (1e9, "GB/s")
    peak = DATA_SHEET[case.dtype if case.unit == "FLOP" else "memory"]
    rate = statistics.median(rates)
    tenth = len(rates) // 10
    return {
        "kind": case.kind,
        "op": case.op,
        "dtype": case.dtype,
        **case.sizes,
        "rate": _short(rate / scale),
        "low": _short(rates[tenth] / scale),
        "high": _short(rates[-1 - tenth] / scale),
        "unit": unit,
        "peak_share": round(rate / peak, 4),
        "us": _short(statistics.median(seconds) * 1e6),
        "kernels": [name[:60] for name in names][:3],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _heat() -> None:
    """Half a second of products, so that the GPU leaves its idle clock."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        x @ x
        torch.cuda.synchronize()


def write(out: Path, entries: list[dict[str, Any]], failures: list[str], device: str) -> None:
    """One entry a line."""
    driver = ""
    with contextlib.suppress(OSError):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    head: dict[str, Any] = {
        "schema": "warplens.roofs/1",
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "none",
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 0,
        "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": driver,
        "method": METHOD,
        "data_sheet": DATA_SHEET,
        "failures": failures,
    }
    lines = ",\n".join(json.dumps(item) for item in entries)
    text = json.dumps(head, indent=1)[:-2] + ',\n "entries": [\n' + lines + "\n ]\n}\n"
    json.loads(text)
    out.write_text(text, encoding="utf-8")
    print(f"{len(entries)} entries, {len(failures)} failures, {len(text):,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
