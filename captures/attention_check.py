"""Checks and times the attention kernels on a GPU, within a time budget; writes a table and JSON.

    python captures/attention_check.py --out FOLDER [--budget 150] [--workers 14] [--no-scan]

1. Many worker processes compile the kernels (Triton keeps them on disk) and run the correctness gate over a grid of
   formats, head dimensions, lengths and masks, at sizes that no tile divides.
2. `--scan`: tile sizes of the flash forward kernel, timed at one length.
3. The table: every kernel and torch backend, bf16, forward, over sequence lengths at a constant number of tokens; then
   backward for some of them.

A kernel that fails is a row that says so. What the budget does not reach is listed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from warplens.workloads.attention import KERNELS, AttentionKernel, AttentionShape, TimingPlan, check, measure
from warplens.workloads.attention.kernels import BackwardTiles, ForwardTiles

TOKENS, HEADS = 16_384, 16
SCAN_LENGTH = 4096
OWN = [name for name, kernel in KERNELS.items() if kernel.origin == "own"]
SDPA = [name for name, kernel in KERNELS.items() if kernel.origin == "torch"]

GATE = {"bfloat16": (128, 64, 32, 16), "float16": (64,), "float32": (32,)}

#: block_m, block_n, warps, stages, tma.
FORWARD_SCAN = {
    64: [(64, 128, 4, 3, True), (64, 128, 4, 2, True), (64, 64, 4, 3, True), (128, 64, 8, 3, False),
         (128, 64, 8, 3, True), (128, 64, 4, 3, True), (128, 128, 8, 2, True)],
    128: [(64, 64, 4, 3, True), (64, 64, 4, 2, True), (64, 32, 4, 3, True), (64, 128, 4, 2, True),
          (128, 64, 8, 3, False), (128, 64, 8, 3, True), (128, 128, 8, 2, True)],
}  # fmt: skip
#: Each kernel's own sizes (block_m, block_n, warps, stages), varied with the other's at its first.
KEY_SCAN = {
    64: [(64, 128, 8, 3), (64, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 4, 2), (64, 128, 4, 2),
         (128, 128, 8, 2)],
    128: [(64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 8, 2), (64, 64, 8, 2), (32, 64, 4, 2), (64, 128, 8, 3)],
}  # fmt: skip
QUERY_SCAN = {
    64: [(128, 64, 8, 3), (64, 64, 4, 3), (128, 64, 4, 3), (64, 128, 4, 2), (128, 128, 8, 2)],
    128: [(128, 64, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3), (128, 32, 4, 2), (128, 64, 8, 3)],
}


def forward_candidates(head_dim: int) -> list[ForwardTiles]:
    """Tiles worth timing."""
    return [ForwardTiles(*size) for size in FORWARD_SCAN[head_dim]]


def backward_candidates(head_dim: int) -> list[BackwardTiles]:
    """Tiles worth timing."""
    keys, queries = KEY_SCAN[head_dim], QUERY_SCAN[head_dim]
    pairs = [(key, queries[0]) for key in keys] + [(keys[0], query) for query in queries[1:]]
    return [BackwardTiles(k[0], k[1], q[0], q[1], k[2], q[2], k[3], q[3]) for k, q in pairs]


def own_flash(tiles: ForwardTiles | None, gradient_tiles: BackwardTiles | None = None) -> AttentionKernel:
    """The flash kernel with given tiles, as an entry like those of the registry."""

    def run(q, k, v, causal):  # type: ignore[no-untyped-def]
        from warplens.workloads.attention.functions import flash_attention

        return flash_attention(q, k, v, causal, tiles=tiles, gradient_tiles=gradient_tiles)

    return AttentionKernel(f"flash {gradient_tiles or tiles}", "own", "", run)


def scan_kernels(mode: str, head_dim: int) -> list[AttentionKernel]:
    """Flash kernels of all candidate tiles."""
    if mode == "forward":
        return [own_flash(tiles) for tiles in forward_candidates(head_dim)]
    return [own_flash(None, tiles) for tiles in backward_candidates(head_dim)]


def jobs(scan: bool) -> list[tuple]:
    """What the workers do: (label, kernel, shapes, dtype, causal, mode)."""
    found = []
    if scan:
        for mode in ("forward", "backward"):
            for head_dim in (64, 128):
                for causal in (False, True):
                    shapes = [AttentionShape(1, 2, 512, head_dim)]
                    for kernel in scan_kernels(mode, head_dim):
                        checked = "forward" if mode == "forward" else "both"
                        found.append((kernel.name, kernel, shapes, "bfloat16", causal, checked))
    for dtype, head_dims in GATE.items():
        for head_dim in head_dims:
            for causal in (False, True):
                for name in OWN + SDPA:
                    shapes = [AttentionShape(1, 3, 65, head_dim), AttentionShape(2, 2, 395, head_dim)]
                    if dtype == "bfloat16":
                        shapes.append(AttentionShape(1, 2, 512, head_dim))
                    found.append((name, KERNELS[name], shapes, dtype, causal, "both"))
    return found


def work(index: int, count: int, scan: bool, out: Path) -> None:
    """One worker's share of the jobs."""
    rows = []
    for name, kernel, shapes, dtype, causal, mode in jobs(scan)[index::count]:
        for shape in shapes:
            row = {"kernel": name, "shape": asdict(shape), "dtype": dtype, "causal": causal, "mode": mode}
            try:
                refusal = kernel.refusal(shape, dtype, "cuda")
                if refusal:
                    row |= {"status": "unsupported", "reason": refusal}
                else:
                    found = check(kernel, shape, dtype, causal=causal, mode=mode, reference_device="cpu")
                    row |= {"status": "ok" if found.passed else "incorrect", "reason": found.summary}
                    row["errors"] = [asdict(error) for error in found.errors]
            except Exception as error:
                refused = type(error).__name__ == "BackendRefusedError"
                text = str(error) if refused else traceback.format_exc(limit=-3)
                row |= {"status": "unsupported" if refused else "failed", "reason": text[-700:]}
            rows.append(row)
        (out / f"gate_{index}.json").write_text(json.dumps(rows))


def gate(args: argparse.Namespace, out: Path, deadline: float) -> list[dict]:
    """Runs the workers and tells what failed."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--out", str(out)] + ([] if args.scan else ["--no-scan"])
    workers = [
        subprocess.Popen(
            [*command, "--worker", str(i), str(args.workers)],
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # one core each: they all compute float64 references
        )
        for i in range(args.workers)
    ]
    for worker in workers:
        try:
            worker.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # noqa: PERF203
            worker.kill()
    rows = [row for path in sorted(out.glob("gate_*.json")) for row in json.loads(path.read_text())]
    for path in out.glob("gate_*.json"):
        path.unlink()
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        name = row["kernel"] if row["kernel"] in KERNELS else "candidates"
        of = counts.setdefault(name, {})
        of[row["status"]] = of.get(row["status"], 0) + 1
    print(f"gate: {time.monotonic() - began:.0f} s, {len(rows)} checks")
    for name, of in sorted(counts.items()):
        print(f"  {name:16}{of}")
    told = 0
    for row in rows:
        if row["status"] in ("incorrect", "failed") and told < 25:
            told += 1
            shape = "x".join(str(n) for n in row["shape"].values())
            line = " | ".join(row["reason"].splitlines())[-260:]
            print(f"  {row['status']}: {row['kernel']} {shape} {row['dtype']} causal={row['causal']}: {line}")
    return rows


def shape_of(seq_len: int, head_dim: int) -> AttentionShape:
    """A problem of `TOKENS` tokens."""
    return AttentionShape(max(1, TOKENS // seq_len), HEADS, seq_len, head_dim)


def record(rows: list, measurement, what: str) -> None:  # type: ignore[no-untyped-def]
    """Keeps a measurement, without its samples."""
    row = asdict(measurement)
    if row["timing"]:
        row["timing"].pop("samples_ns")
    rows.append({"what": what, **row})


def cell(measurement) -> str:  # type: ignore[no-untyped-def]
    """TFLOP/s, or what happened instead."""
    return f"{measurement.tflops:.0f}" if measurement.tflops else measurement.status[:6]


def scan_one(
    rows: list, mode: str, head_dim: int, causal: bool, passed: set, deadline: float
) -> AttentionKernel | None:
    """Times candidates at one length and the best of them at others; the best over all lengths."""
    lengths = (8192, 2048, 512) if mode == "forward" else ()
    kernels = [k for k in scan_kernels(mode, head_dim) if (k.name, head_dim, causal) in passed]
    found: dict[str, list[float]] = {}
    for seq_len in (SCAN_LENGTH, *lengths):
        for kernel in [KERNELS["sdpa-flash"], KERNELS["sdpa-cudnn"], *kernels]:
            if time.monotonic() > deadline:
                print("scan: out of time")
                return None
            plan, shape = TimingPlan(fewest=10, most=20, budget_s=0.05, warmup_s=0.01), shape_of(seq_len, head_dim)
            result = measure(kernel, shape, "bfloat16", causal=causal, mode=mode, plan=plan, gate=False)
            record(rows, result, "scan")
            found.setdefault(kernel.name, []).append(result.tflops or 0.0)
            if result.reason:
                print(f"   {kernel.name}: {result.reason[:150]}")
        kernels = sorted(kernels, key=lambda kernel: -found[kernel.name][-1])[:4]
    print(f"scan {mode} D={head_dim} causal={causal}, S={(SCAN_LENGTH, *lengths)}:")
    for name, speeds in sorted(found.items(), key=lambda one: -one[1][0]):
        print(f"   {name:50}" + "".join(f"{speed:7.0f}" for speed in speeds), flush=True)
    return max(kernels, key=lambda kernel: sum(found[kernel.name][:3]), default=None)


def table(
    rows: list, mode: str, lengths: list[int], names: list[str], best: dict, deadline: float, plan: TimingPlan
) -> None:
    """TFLOP/s of every kernel over the lengths; `scanned`: the best tiles of this run's scan."""
    for head_dim in (128, 64):
        for causal in (False, True):
            chosen = best.get((mode, head_dim, causal))
            kernels = {name: KERNELS[name] for name in names} | ({"scanned": chosen} if chosen else {})
            print(f"{mode} bf16 D={head_dim} causal={causal} ({TOKENS} tokens, {HEADS} heads), TFLOP/s")
            print(f"   scanned: {chosen.name if chosen else None}")
            print("   S      " + "".join(f"{name:>16}" for name in kernels) + "   own/best")
            for seq_len in lengths:
                cells = {}
                for name, kernel in kernels.items():
                    if time.monotonic() > deadline:
                        print(f"{mode}: out of time at D={head_dim} causal={causal} S={seq_len}")
                        return
                    # torch's math attention of long sequences would spend the budget on a number nobody needs.
                    if name == "sdpa-math" and seq_len > 2048:
                        continue
                    gated = kernel.origin == "own"
                    shape = shape_of(seq_len, head_dim)
                    cells[name] = measure(kernel, shape, "bfloat16", causal=causal, mode=mode, plan=plan, gate=gated)
                    record(rows, cells[name], "table")
                fastest = max((m.tflops or 0 for name, m in cells.items() if name in SDPA), default=0)
                shares = [(cells[n].tflops or 0) / fastest for n in ("flash", "scanned") if n in cells and fastest]
                line = "".join(f"{cell(cells[name]) if name in cells else '-':>16}" for name in kernels)
                print(f"   {seq_len:<7}{line}   " + " ".join(f"{share:.0%}" for share in shares), flush=True)
                for name, m in cells.items():
                    if m.status in ("incorrect", "failed"):
                        print(f"      {name}: {m.status}: {m.reason[:200]}")


def main() -> None:
    """Runs all parts and writes `attention.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=150.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--no-scan", dest="scan", action="store_false")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096, 8192, 16384, 1024, 512, 256, 128])
    parser.add_argument("--worker", type=int, nargs=2)
    args = parser.parse_args()
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.worker:
        work(*args.worker, args.scan, args.out)
        return

    facts = {}
    try:
        from warplens.workloads.environment import environment

        facts = environment("cuda")
    except Exception as error:
        facts = {"error": repr(error)}
    print(json.dumps(facts), flush=True)
    end = began + args.budget
    gates = gate(args, args.out, began + 0.4 * args.budget)
    rows: list = []
    passed = {(row["kernel"], row["shape"]["head_dim"], row["causal"]) for row in gates if row["status"] == "ok"}
    best: dict = {}
    plan = TimingPlan(fewest=30, most=60, budget_s=0.15, warmup_s=0.03)
    names = args.kernels.split(",")
    try:
        if args.scan:
            until = time.monotonic() + 0.6 * (end - time.monotonic())
            for mode in ("forward", "backward"):
                for head_dim in (128, 64):
                    for causal in (False, True):
                        best[mode, head_dim, causal] = scan_one(rows, mode, head_dim, causal, passed, until)
        until = time.monotonic() + 0.8 * (end - time.monotonic())
        table(rows, "forward", args.lengths, names, best, until, plan)
        table(rows, "backward", [4096], names, best, end, plan)
    finally:
        text = json.dumps({"environment": facts, "gate": gates, "measurements": rows}, default=str)
        (args.out / "attention.json").write_text(text)
    print(f"total {time.monotonic() - began:.0f} s of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
