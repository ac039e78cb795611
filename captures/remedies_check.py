"""Checks and times the remedies for token reduction on a GPU: fused kernels, CUDA graphs, torch.compile, later blocks.

Needs python3 with torch and triton, and nothing else of Warplens' dependencies.

    python3 captures/remedies_check.py OUT                   about three minutes on an H200
    python3 captures/remedies_check.py OUT --seconds 120     start no group of steps after this time
    python3 captures/remedies_check.py OUT --quick           on a CPU, in Triton's interpreter, at toy sizes

1. `gate.json`: the fused kernels against the eager sequence, over formats, shapes and ties; worker processes, which
   also compile what the later stages run (Triton and Inductor keep it on disk).
2. `reductions.json`: the reduction alone: launches, time call by call and in a CUDA graph, tiles of the fused kernel.
3. `remedies.json`: steps of the vision transformer, variants in turns: a measurements file.
4. `kernels.json`: names of the kernels of one reduction, from a profiler, which comes last for it slows down launches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
if "--quick" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
# Workers and this process must compile with the same settings, or find nothing of each other's in the caches.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

from warplens.workloads.cells import cell_grid, environment, run_cells_in_turns
from warplens.workloads.launching import launches_of
from warplens.workloads.registry import OFF, Plan, Setting, document, write_measurements
from warplens.workloads.settings import TokenReductionCell
from warplens.workloads.token_reduction.choosing import Attended, EViT, TokenState, TopK, tokens_kept
from warplens.workloads.token_reduction.fused import FusedEViT, FusedTopK, Tiles, select_tokens, tiles_for

QUICK = "--quick" in sys.argv
DEVICE = "cpu" if QUICK else "cuda"
WIDTH, HEADS = (24, 4) if QUICK else (768, 12)
KEEPS = (0.1, 0.5) if QUICK else (0.1, 0.25, 0.5, 0.7)

# ── 1. the gate ───────────────────────────────────────────────────────────────────────────────────────────────────────

#: (batch, patches): what the study's images begin with, what its later blocks have, and sizes that no tile divides.
GATE_SHAPES = [(2, 1), (1, 30)] if QUICK else [(3, 1), (5, 20), (16, 196), (1, 197), (8, 784), (3, 1000), (4, 1024)]
#: Spread of the logits: trained models' attention is peaked; that of random weights is nearly uniform, and in fp16 has
#: hundreds of equal scores; the last has nothing else.
SPREADS = {"peaked": 2.0, "nearly uniform": 0.02, "uniform": 0.0}
FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def attention_and_tokens(batch: int, patches: int, dtype: torch.dtype, spread: float, queries: int = 2) -> tuple:
    """Random attention weights with this number of queries, and random tokens."""
    generator = torch.Generator(DEVICE).manual_seed(batch * 10_000 + patches)
    shape = (batch, HEADS, queries, 1 + patches)
    logits = spread * torch.randn(shape, device=DEVICE, generator=generator)
    x = torch.randn((batch, 1 + patches, WIDTH), device=DEVICE, generator=generator)
    return logits.softmax(-1).to(dtype), x.to(dtype)


def rows_at(x: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
    """Patch tokens by number."""
    return x[:, 1:].gather(1, patches.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def gate_one(batch: int, patches: int, keep: float, name: str, spread: str, fuse: bool) -> dict[str, Any]:
    """One comparison: equal tokens by image, equal rows, and the error of the fused token."""
    weights, x = attention_and_tokens(batch, patches, FORMATS[name], SPREADS[spread])
    kept = tokens_kept(patches, keep)
    found, listing = select_tokens(weights, x, kept, fuse=fuse, listing=True)
    score = weights[:, :, 0, 1:].mean(dim=1)
    order = score.sort(dim=1, descending=True, stable=True)
    first, chosen = order.indices[:, :kept], listing[:, :kept]
    by_topk = score.topk(kept, dim=1, sorted=True).indices
    # Of different scores there is one order; of equal ones at the top or at the border, topk takes any.
    ahead = order.values[:, : kept + 1].double()
    untied = (ahead[:, 1:] != ahead[:, :-1]).all(dim=1)
    same_as_topk = (chosen == by_topk).all(dim=1)
    row = {
        "images": batch,
        "tokens_equal": int((chosen == first).all(dim=1).sum()),
        "untied": int(untied.sum()),
        "equal_to_topk": int(same_as_topk.sum()),
        "equal_to_topk_where_untied": int((same_as_topk & untied).sum()),
        "scores_equal_to_topk": int((score.gather(1, chosen) == score.gather(1, by_topk)).all(dim=1).sum()),
        "listing_padded": bool((listing[:, kept:] == -1).all()),
        "rows_equal": torch.equal(found[:, : 1 + kept], torch.cat((x[:, :1], rows_at(x, chosen)), dim=1)),
    }
    if fuse:
        rest = order.indices[:, kept:]
        exact = (rows_at(x, rest).double() * score.gather(1, rest).double().unsqueeze(-1)).sum(dim=1)
        eager = (rows_at(x, rest) * score.gather(1, rest).unsqueeze(-1)).sum(dim=1)
        size = exact.norm().clamp(min=1e-30)
        row["fused_error"] = float((found[:, -1].double() - exact).norm() / size)
        row["eager_error"] = float((eager.double() - exact).norm() / size)
    accurate = not fuse or row["fused_error"] <= 1.1 * row["eager_error"] + 1e-6
    if DEVICE == "cpu" and name == "bfloat16":
        accurate = True  # the interpreter truncates where a GPU rounds
    right = row["tokens_equal"] == batch and row["equal_to_topk_where_untied"] == row["untied"]
    row["status"] = "ok" if right and row["rows_equal"] and row["listing_padded"] and accurate else "incorrect"
    return row


def gate_jobs() -> list[dict[str, Any]]:
    """Every comparison."""
    names = [name for name in FORMATS if DEVICE != "cpu" or name != "bfloat16"]
    jobs = product(names, GATE_SHAPES, (False, True), SPREADS, KEEPS if QUICK else (0.1, 0.25, 0.5, 0.7, 1.0))
    return [
        {"batch": shape[0], "patches": shape[1], "keep": keep, "name": name, "spread": spread, "fuse": fuse}
        for name, shape, fuse, spread, keep in jobs
    ]


def warm_jobs() -> list[Any]:
    """Compiles in advance for later stages: tiles of the kernel, and cells through torch.compile."""
    tiles = [("tiles", shape, tile) for shape in SCAN_SHAPES for tile in SCAN_TILES]
    timed = [("timed", shape, fuse) for shape in REDUCTION_SHAPES for fuse in (False, True)]
    return [("cell", cell) for group in groups() for cell in group if cell.execution == "compile"] + tiles + timed


def worker(index: int, count: int, out: Path) -> None:
    """One worker's share, the longest compilations first."""
    from warplens.workloads.vision import prepare

    cells = [job for job in warm_jobs() if job[0] == "cell"]
    others = [job for job in warm_jobs() if job[0] != "cell"]
    # Kernels differ by format, fusion and power of two of the patches, not by spread and share: one worker, one kernel.
    kernels = sorted({(job["name"], job["patches"], job["fuse"]) for job in gate_jobs()}, key=str)
    rows = []
    for number, kernel in enumerate(kernels):
        if number % count != index:
            continue
        for job in gate_jobs():
            if (job["name"], job["patches"], job["fuse"]) == kernel:
                try:
                    rows.append({**job, **gate_one(**job)})
                except Exception:
                    rows.append({**job, "status": "failed", "reason": traceback.format_exc(limit=-3)[-900:]})
        (out / f"gate_{index}.json").write_text(json.dumps(rows))
    for job in others[index::count]:
        weights, x = attention_and_tokens(*job[1], torch.float16, 0.02, queries=1 + job[1][1])
        if job[0] == "tiles":
            select_tokens(weights, x, 1, tiles=job[2])
        else:
            for listing in (False, True):
                select_tokens(weights, x, 1, fuse=job[2], listing=listing)
    for _, cell in cells[index::count]:
        prepare(cell, Setting(DEVICE, OFF)).step()
        torch.cuda.synchronize()


def gate(options: argparse.Namespace, out: Path, deadline: float) -> None:
    """Runs the workers and prints failures."""
    began = time.monotonic()
    if QUICK:
        worker(0, 1, out)
    else:
        command = [sys.executable, __file__, str(out), "--worker"]
        settings = os.environ | {"OMP_NUM_THREADS": "1"}  # one core each
        crew = []
        for index in range(options.workers):
            log = (out / f"worker_{index}.log").open("w")
            words = [*command, str(index), str(options.workers)]
            crew.append(subprocess.Popen(words, stdout=log, stderr=log, env=settings))
        for index, one in enumerate(crew):
            try:
                one.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.kill()
                print(f"worker {index} was stopped: the time is over", flush=True)
            if one.returncode:
                text = (out / f"worker_{index}.log").read_text()[-600:]
                print(f"worker {index} ended with {one.returncode}: {text}", flush=True)
    rows = []
    for path in sorted(out.glob("gate_*.json")):
        rows += json.loads(path.read_text())
        path.unlink()
    (out / "gate.json").write_text(json.dumps({"environment": environment(DEVICE), "checks": rows}, indent=1))
    statuses = [row["status"] for row in rows]
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    images = {what: sum(row.get(what, 0) for row in rows) for what in ("images", "tokens_equal", "untied")}
    images["equal_to_topk"] = sum(row.get("equal_to_topk", 0) for row in rows)
    print(
        f"gate: {time.monotonic() - began:.0f} s, {len(rows)} of {len(gate_jobs())} checks {counts} {images}",
        flush=True,
    )
    errors = [(row["fused_error"], row["eager_error"], row["name"]) for row in rows if "fused_error" in row]
    for name in FORMATS:
        of = [(fused, eager) for fused, eager, which in errors if which == name]
        if of:
            print(
                f"  {name}: fused token, largest error {max(f for f, _ in of):.1e}, eager {max(e for _, e in of):.1e}"
            )
    for row in [row for row in rows if row["status"] != "ok"][:12]:
        print("  " + json.dumps(row)[:700], flush=True)


# ── 2. the reduction alone ────────────────────────────────────────────────────────────────────────────────────────────

REDUCTION_SHAPES = [(1, 20)] if QUICK else [(b, p) for p in (20, 196, 784) for b in (1, 2, 4, 8, 16)]
CALLS, ROUNDS, REPLAYS = (2, 2, 1) if QUICK else (20, 7, 3)
SCAN_SHAPES = [(1, 20)] if QUICK else [(1, 196), (1, 784), (16, 196), (16, 784)]
SCAN_TILES = [Tiles(16, 4)] if QUICK else [Tiles(t, w) for t in (8, 16, 32) for w in (2, 4, 8) if t <= 8 * w]


def variants(keep: float) -> dict[str, Any]:
    """The implementations to compare: as published, without the list for visualisation, and fused."""
    return {
        "topk": TopK(keep), "topk, no listing": TopK(keep, visualisation=False),
        "topk-fused": FusedTopK(keep), "topk-fused, no listing": FusedTopK(keep, visualisation=False),
        "evit": EViT(keep), "evit, no listing": EViT(keep, visualisation=False),
        "evit-fused": FusedEViT(keep), "evit-fused, no listing": FusedEViT(keep, visualisation=False),
    }  # fmt: skip


def synchronize() -> None:
    """Waits for the GPU, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def wall_us(call: Any) -> float:
    """Microseconds per call with calls issued back to back: the larger of host and GPU time."""
    synchronize()
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    synchronize()
    return (time.perf_counter_ns() - began) / CALLS / 1e3


def captured(call: Any) -> Any:
    """A CUDA graph of many calls, one after another."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    graph.replay()
    return graph


def gpu_us(graph: Any) -> float:
    """Microseconds per call in a graph of many calls: the GPU's time without the host."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / CALLS / REPLAYS


def interleaved(calls: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Times of calls in turns: medians of rounds, and the rounds."""
    for call in calls.values():
        for _ in range(2 if QUICK else 5):
            call()
    graphs = {name: captured(call) for name, call in calls.items()} if DEVICE == "cuda" else {}
    walls: dict[str, list[float]] = {name: [] for name in calls}
    gpus: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            walls[name].append(wall_us(call))
        for name, graph in graphs.items():
            gpus[name].append(gpu_us(graph))
    rows: dict[str, dict[str, Any]] = {}
    for name in calls:
        rows[name] = {"wall_us": median(walls[name]), "wall_rounds_us": [round(t, 3) for t in walls[name]]}
        if name in gpus:
            rows[name] |= {"gpu_us": median(gpus[name]), "gpu_rounds_us": [round(t, 3) for t in gpus[name]]}
    return rows


@torch.inference_mode()
def reductions(out: Path, deadline: float) -> None:
    """Times the reduction alone at every shape, and tiles of the fused kernel at some."""
    content: dict[str, Any] = {"environment": environment(DEVICE), "launches": {}, "reductions": [], "tiles": []}

    def keep_it() -> None:
        (out / "reductions.json").write_text(json.dumps(content, indent=1))

    weights, x = attention_and_tokens(2, 20 if QUICK else 196, torch.float16, 0.02)
    for name, method in variants(0.1).items():
        counted = launches_of(lambda method=method: method.between(x, Attended(weights, x, x), TokenState(1)), DEVICE)
        content["launches"][name] = counted._asdict() if counted else None
    print("launches of a reduction:", content["launches"], flush=True)
    for batch, patches in REDUCTION_SHAPES:
        weights, x = attention_and_tokens(batch, patches, torch.float16, 0.02, queries=1 + patches)
        for keep in KEEPS:
            if time.monotonic() > deadline:
                print("reductions: the time is over", flush=True)
                keep_it()
                return
            attended, state = Attended(weights, x, x), TokenState(patches)

            def call(method: Any) -> Any:
                state.kept.clear()  # noqa: B023  called at once
                return method.between(x, attended, state)  # noqa: B023

            calls = {name: lambda method=method: call(method) for name, method in variants(keep).items()}
            times = interleaved(calls)
            content["reductions"] += [
                {"batch": batch, "patches": patches, "keep": keep, "variant": name, **row}
                for name, row in times.items()
            ]
            words = (f"{name} {row['wall_us']:.1f}/{row.get('gpu_us', 0):.2f}" for name, row in times.items())
            print(f"  b{batch} {patches} keep {keep}, wall/gpu µs: {'; '.join(words)}", flush=True)
        keep_it()
    for batch, patches in SCAN_SHAPES:
        weights, x = attention_and_tokens(batch, patches, torch.float16, 0.02, queries=1 + patches)
        kept = tokens_kept(patches, 0.1)
        times = interleaved(
            {str(tile): lambda tile=tile: select_tokens(weights, x, kept, tiles=tile) for tile in SCAN_TILES}  # noqa: B023
        )
        content["tiles"] += [{"batch": batch, "patches": patches, "tiles": name, **row} for name, row in times.items()]
        words = (f"{name} {row.get('gpu_us', 0):.2f}" for name, row in times.items())
        print(f"  tiles b{batch} {patches}, now {tiles_for(batch, patches, False, 2)}: {'; '.join(words)}", flush=True)
    keep_it()
    faster = slower = 0
    for row in content["reductions"]:
        if "-fused" in row["variant"]:
            plain = row["variant"].replace("-fused", "")
            (other,) = (
                one for one in content["reductions"]
                if one["variant"] == plain and all(one[key] == row[key] for key in ("batch", "patches", "keep"))
            )  # fmt: skip
            for what in ("wall_us", "gpu_us"):
                if what in row:
                    faster, slower = faster + (row[what] < other[what]), slower + (row[what] >= other[what])
    print(f"fused against eager: faster in {faster} comparisons, not in {slower}", flush=True)


# ── 3. steps of the vision transformer ────────────────────────────────────────────────────────────────────────────────

PLAN = Plan.exactly(2 if QUICK else 4, warmup_steps=2 if QUICK else 6)
STEP_ROUNDS = 2 if QUICK else 12
LATER = (2, 3) if QUICK else (6, 8, 10)


def groups() -> list[list[TokenReductionCell]]:
    """Cells measured in turns: the variants at one input size and batch."""
    made = []
    shapes = [(20, 1)] if QUICK else [(224, 1), (448, 1), (224, 8), (448, 8), (224, 16), (448, 16)]
    for side, batch in shapes:
        base: dict[str, list[Any]] = {"input_size": [side], "batch": [batch], "keep": [0.1]}
        if QUICK:
            base |= {"model": ["tiny"], "precision": ["fp32"], "locations": [(1, 2)]}
        run = ["eager"] if QUICK else ["eager", "graph"]
        methods = ["none", "topk", "topk-fused", "evit", "evit-fused"]
        grids: list[dict[str, list[Any]]] = [
            {**base, "method": methods, "execution": run},
            {**base, "method": ["topk", "topk-fused"], "execution": run, "visualisation": [False]},
            {**base, "method": ["topk", "topk-fused"], "execution": run, "locations": [LATER]},
            {**base, "method": ["none", "topk", "topk-fused"], "execution": run, "attention": ["fused"]},
        ]
        if batch <= 8:
            later = ["topk", "topk-fused", "evit-fused", "dynamicvit"]
            grids.append({**base, "method": later, "execution": run, "keep": [0.5]})
        if not QUICK and batch <= 8:
            compiled = ["none", "topk", "topk-fused"] if batch == 1 else ["none", "topk-fused"]
            grids.append({**base, "method": compiled, "execution": ["compile"]})
        cells: list[TokenReductionCell] = []
        for axes in grids:
            cells += [cell for cell in cell_grid(TokenReductionCell, axes)[0] if cell not in cells]
        made.append(cells)
    return made


def steps(out: Path, began: float, seconds: float) -> None:
    """Measures the groups one after another until the time is up."""
    facts, records = environment(DEVICE), []
    command = "python3 captures/remedies_check.py OUT"
    for cells in groups():
        if time.monotonic() - began > seconds:
            print(f"steps: the time is over, {cells[0].input_size}/{cells[0].batch} and what follows is left out")
            break
        records += run_cells_in_turns("token-reduction", cells, rounds=STEP_ROUNDS, plan=PLAN, device=DEVICE)
        write_measurements(out / "remedies.json", document("token-reduction", PLAN, facts, records, command))
        for record in records[-len(cells) :]:
            print(f"{time.monotonic() - began:6.1f} s {_line(record)}", flush=True)


def _line(record: dict[str, Any]) -> str:
    of = record["cell"]
    name = f"{of['input_size']}/b{of['batch']} {of['method']} keep {of['keep']} {of['execution']}"
    name += f" at {of['locations']} {of['attention']} listing {of['visualisation']}"
    if record["status"] != "measured":
        return f"{name}: {record['status']}, {record['reason'][:200]}"
    latency, gpu = record["latency_ns"], record["gpu_ns"] or {}
    known = {what: record["details"].get(what) for what in ("launches", "kernels")}
    times = f"{latency['median'] / 1e6:.3f} ms, gpu {(gpu.get('median') or 0) / 1e6:.3f} ms"
    return f"{name}: {times}, {known} {'; '.join(record['doubts'])[:80]}"


# ── 4. names ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def kernel_names(out: Path) -> None:
    """Kernels of one reduction, in their order, and their times under the profiler."""
    from torch.profiler import ProfilerActivity, profile

    weights, x = attention_and_tokens(1, 196, torch.float16, 0.02)
    found = {}
    for name, method in variants(0.1).items():
        method.between(x, Attended(weights, x, x), TokenState(196))
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
            method.between(x, Attended(weights, x, x), TokenState(196))
            synchronize()
        events = [event for event in recorded.events() if "CUDA" in str(event.device_type)]
        events.sort(key=lambda event: event.time_range.start)
        found[name] = [{"name": event.name[:160], "us": event.time_range.elapsed_us()} for event in events]
        print(f"  {name}: {len(found[name])} kernels, copies and fills", flush=True)
    (out / "kernels.json").write_text(json.dumps(found, indent=1))


def main() -> None:
    """Runs the stages."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=170, help="start no group of steps after this time")
    parser.add_argument("--stages", nargs="+", default=["gate", "reductions", "steps", "names"])
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="on a CPU, at toy sizes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    if options.worker:
        worker(*options.worker, options.out)
        return
    stages = {
        "gate": lambda: gate(options, options.out, began + 0.45 * options.seconds),
        "reductions": lambda: reductions(options.out, time.monotonic() + 0.25 * options.seconds),
        "steps": lambda: steps(options.out, began, options.seconds),
        "names": lambda: kernel_names(options.out) if DEVICE == "cuda" else None,
    }
    for name in options.stages:
        try:
            stages[name]()
        except Exception:  # what the other stages find is worth keeping
            print(f"{name} failed: {traceback.format_exc(limit=-4)}", flush=True)
        print(f"{time.monotonic() - began:6.1f} s: {name} is done", flush=True)


if __name__ == "__main__":
    main()
