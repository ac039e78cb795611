"""Runs the code that remedies print, on a GPU, and checks what they claim of it: equal results, launches, waits, kernels.

Needs python3 with torch; uses transformers, timm, scipy, torchvision and torchao where they are installed.

    python3 captures/snippets_check.py                     under 150 s on an H200
    python3 captures/snippets_check.py --cpu               what works without a GPU, in this process
    python3 captures/snippets_check.py --group attention   one group, in this process
    python3 captures/snippets_check.py --only grouped_mm   checks with this in their names, in this process

Prints `ok NAME detail`, `FAIL NAME error` or `skip NAME reason` for each check, and writes the lines to
`$OUT/snippets.txt`. Groups run in processes of their own, side by side, so that one that breaks its CUDA context does
not break others; the group that takes times runs alone, behind them.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

CPU = "--cpu" in sys.argv
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # as printed, for CUDA graphs of DistributedDataParallel
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

DEVICE = "cpu" if CPU else "cuda"
WAVES = (
    (
        "graphs",
        "captures",
        "copies",
        "attention",
        "products",
        "updates",
        "compiled",
        "optimizers",
        "optimizers-2",
        "transformers",
        "ranks",
    ),
    ("times",),
)
#: A capture that fails can leave its process unusable: each of these checks has one of its own.
FORKED = ("captures",)
DEADLINES_S = (112, 145)


class Check(NamedTuple):
    """One check: `run` returns what to print, and raises if the claim does not hold."""

    group: str
    name: str
    run: Any
    cpu: bool


class Skipped(Exception):
    """What the check needs is not there."""


CHECKS: list[Check] = []


def check(group: str, name: str, *, cpu: bool = False) -> Any:
    """Registers a check; `cpu` if it can run without a GPU."""

    def register(run: Any) -> Any:
        CHECKS.append(Check(group, name, run, cpu))
        return run

    return register


# ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def expect(holds: Any, message: str) -> None:
    """Fails unless it holds."""
    if not holds:
        raise AssertionError(message)


def off_by(found: Any, wanted: Any) -> float:
    """Largest difference of two tensors, or lists of them, by the largest number of the second."""
    if isinstance(found, torch.Tensor):
        found, wanted = [found], [wanted]
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        expect(a.shape == b.shape, f"shape {tuple(a.shape)} instead of {tuple(b.shape)}")
        expect(torch.isfinite(a).all().item() or not torch.isfinite(b).all().item(), "not finite")
        a, b = a.detach().double().cpu(), b.detach().double().cpu()
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item())
    return worst


def same(found: Any, wanted: Any, within: float = 1e-4) -> str:
    """Fails unless both are equal within this share of the largest number; else says how far apart they are."""
    off = off_by(found, wanted)
    expect(off <= within, f"off by {off:.2g} of the largest number, more than {within:g}")
    return f"off by {off:.1g}"


def sync() -> None:
    """Waits for the GPU."""
    if not CPU:
        torch.cuda.synchronize()


class Seen(NamedTuple):
    """What a call ran: names of kernels and of copies in order, CUDA calls by name, and the time in kernels."""

    kernels: list[str]
    copies: list[str]
    calls: Counter[str]
    kernel_ns: dict[str, float]

    def named(self, pattern: str) -> list[str]:
        """Kernels whose names match."""
        return [name for name in self.kernels if re.search(pattern, name, re.IGNORECASE)]

    def short(self, length: int = 60) -> str:
        """The kernels that took longest, shortened."""
        names = sorted(self.kernel_ns, key=self.kernel_ns.get, reverse=True)[:3]  # type: ignore[arg-type]
        return " | ".join(re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", name)[:length] for name in names)


def seen(call: Any, warm: int = 2) -> Seen:
    """Profiles one call of this function after some to warm up."""
    for _ in range(warm):
        call()
    sync()
    with torch.profiler.profile() as prof:
        call()
        sync()
    with tempfile.TemporaryDirectory() as folder:
        prof.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(errors="replace"))["traceEvents"]
    events = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: float(e["ts"]))
    of = {
        kind: [e for e in events if e.get("cat") == kind]
        for kind in ("kernel", "gpu_memcpy", "cuda_runtime", "cuda_driver")
    }
    spent: dict[str, float] = {}
    for e in of["kernel"]:
        spent[e["name"]] = spent.get(e["name"], 0.0) + e["dur"] * 1000
    calls = Counter(e["name"] for e in of["cuda_runtime"] + of["cuda_driver"])
    return Seen([e["name"] for e in of["kernel"]], [e["name"] for e in of["gpu_memcpy"]], calls, spent)


def behind_busy_gpu(call: Any, sleep_ms: float = 60) -> float:
    """Milliseconds that the host spends in this call behind long work on the GPU; fails if it waited for that work."""
    call()
    sync()
    torch.cuda._sleep(int(sleep_ms * 1.9e6))
    began = time.perf_counter()
    kept = call()
    took = (time.perf_counter() - began) * 1000
    sync()
    total = (time.perf_counter() - began) * 1000
    del kept
    expect(took < total / 2, f"the host waited: {took:.1f} of {total:.1f} ms")
    return took


def waits(call: Any) -> bool:
    """Whether PyTorch sees this call wait for the GPU."""
    sync()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def no_wait(call: Any) -> str:
    """Fails if this call waits for the GPU."""
    call()
    expect(not waits(call), "waits for the GPU")
    return f"no wait, {behind_busy_gpu(call):.1f} ms on the host"


def ms(call: Any, rounds: int = 7, inner: int = 5) -> float:
    """Median time of a call, in milliseconds, from the wall clock around several calls."""
    for _ in range(3):
        call()
    took = []
    for _ in range(rounds):
        sync()
        began = time.perf_counter()
        for _ in range(inner):
            call()
        sync()
        took.append((time.perf_counter() - began) * 1000 / inner)
    return sorted(took)[len(took) // 2]


def faster(plain: Any, remedied: Any, least: float = 1.05, **options: int) -> str:
    """Fails unless the second is faster by this factor; else says by how much."""
    before, after = ms(plain, **options), ms(remedied, **options)
    text = f"{before:.3f} -> {after:.3f} ms, {before / after:.2f}x"
    expect(before >= least * after, f"not faster: {text}")
    return text


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, grad: bool = False) -> torch.Tensor:
    """Normal numbers, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_(grad)


def net(width: int = 64, depth: int = 2, seed: int = 0) -> nn.Sequential:
    """A small network."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 8)).to(DEVICE)


def loss_of(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss of all networks here."""
    return F.mse_loss(scores, target)


def batches(count: int, width: int = 64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of this many steps."""
    return [(normal(32, width, seed=i), normal(32, 8, seed=100 + i)) for i in range(count)]


def good_length(least: int) -> int:
    """The length that the text names; without SciPy, the power of two."""
    try:
        return needed("scipy.fft").next_fast_len(least, real=True)
    except Skipped:
        return 2 ** math.ceil(math.log2(least))


def compile_(what: Any, **options: Any) -> Any:
    """torch.compile; without a GPU, without code generation."""
    return torch.compile(what, backend="aot_eager") if CPU else torch.compile(what, **options)


def needed(module: str) -> Any:
    """The module, or `Skipped`."""
    try:
        return __import__(module, fromlist=["x"])
    except ImportError as error:
        raise Skipped(f"{module}: {error}") from None


# ── CUDA graphs by hand ───────────────────────────────────────────────────────────────────────────────────────────────


@check("graphs", "graph-inference")
def _() -> str:
    model, static_x, x = net(), normal(32, 64), normal(32, 64, seed=5)
    side = torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static_x)
        torch.cuda.current_stream().wait_stream(side)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g): y = model(static_x)  # fmt: skip  # noqa: E701
        static_x.copy_(x); g.replay()  # fmt: skip  # noqa: E702
        text, kept = same(y, model(x)), y.clone()
        static_x.copy_(normal(32, 64, seed=6)); g.replay()  # fmt: skip  # noqa: E702
        expect(off_by(kept, model(x)) < 1e-4 and off_by(y, kept) > 0.01, "the next replay does not overwrite y")
        one = seen(g.replay)
    expect(one.calls["cudaGraphLaunch"] == 1 and len(one.kernels) >= 5, f"{one.calls}")
    return f"{text}; {len(one.kernels)} kernels from one cudaGraphLaunch; y overwritten, y.clone() kept"


@check("graphs", "graph-inference-warm-up-on-side-stream-only")
def _() -> str:
    model, static_x, x = net(), normal(32, 64), normal(32, 64, seed=5)
    side = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(side):  # literally as printed, without a word on wait_stream
            for _ in range(3):
                model(static_x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = model(static_x)
        static_x.copy_(x)
        g.replay()
        return same(y, model(x))


@check("graphs", "graph-inference-with-gradients-on")
def _() -> str:
    model, static_x, x = net(), normal(32, 64), normal(32, 64, seed=5)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(static_x)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = model(static_x)
    static_x.copy_(x)
    g.replay()
    return f"the text asks for no gradients; with them: {same(y, model(x))}"


def trained_by_graph(make: Any, make_plain: Any, *, changing: bool) -> str:
    """The step of a network and optimizer as a CUDA graph, as printed, against plain steps."""
    model, plain = net(), net()
    optimizer, other = make(model), make_plain(plain)
    steps = batches(7)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for x, y in steps[:3]:
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    static_x, static_y = (t.clone() for t in steps[0])
    optimizer.zero_grad(set_to_none=True); g = torch.cuda.CUDAGraph()  # fmt: skip  # noqa: E702
    with torch.cuda.graph(g): loss = loss_of(model(static_x), static_y); loss.backward(); optimizer.step()  # fmt: skip  # noqa: E501, E701, E702
    schedules, losses, wanted = [], [], []
    if changing:
        schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))]
    for x, y in steps[3:]:
        static_x.copy_(x); static_y.copy_(y); g.replay()  # fmt: skip  # noqa: E702
        losses.append(loss.detach().clone())
        for schedule in schedules:
            schedule.step()
    for i, (x, y) in enumerate(steps):
        if i == 3 and changing:
            schedules = [torch.optim.lr_scheduler.LambdaLR(other, lambda i: 1 / (1 + i))]
        other.zero_grad(set_to_none=True)
        plain_loss = loss_of(plain(x), y)
        plain_loss.backward()
        other.step()
        if i >= 3:
            wanted.append(plain_loss.detach())
            for schedule in schedules if changing else []:
                schedule.step()
    one = seen(g.replay)
    expect(one.calls["cudaGraphLaunch"] == 1 and not one.calls["cudaLaunchKernel"], f"{one.calls}")
    text = same(losses, wanted, 1e-3)
    same(list(model.parameters()), list(plain.parameters()), 2e-2)
    return f"losses {text}; {len(one.kernels)} kernels in one launch"


WITH_CAPTURABLE = ("Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
for kind in WITH_CAPTURABLE:
    of_kind = getattr(torch.optim, kind)

    @check("graphs", f"graph-step-{kind}-capturable")
    def _(of_kind: Any = of_kind) -> str:
        return trained_by_graph(
            lambda m: of_kind(m.parameters(), lr=1e-2, capturable=True),
            lambda m: of_kind(m.parameters(), lr=1e-2),
            changing=False,
        )

    @check("captures", f"graph-step-{kind}-capturable-lr-tensor")
    def _(of_kind: Any = of_kind) -> str:
        return trained_by_graph(
            lambda m: of_kind(m.parameters(), lr=torch.tensor(1e-2, device="cuda"), capturable=True),
            lambda m: of_kind(m.parameters(), lr=1e-2),
            changing=True,
        )


for text, options in {"": {}, "-momentum": {"momentum": 0.9}, "-fused": {"fused": True}}.items():

    @check("graphs", f"graph-step-SGD{text}")
    def _(options: Any = options) -> str:
        make = lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, **options)  # noqa: E731
        return trained_by_graph(make, make, changing=False)

    @check("captures", f"graph-step-SGD{text}-lr-tensor")
    def _(options: Any = options) -> str:
        return trained_by_graph(
            lambda m: torch.optim.SGD(m.parameters(), lr=torch.tensor(1e-2, device="cuda"), **options),
            lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, **options),
            changing=True,
        )


@check("captures", "graph-step-AdamW-capturable-fused-lr-tensor")
def _() -> str:
    return trained_by_graph(
        lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2, device="cuda"), capturable=True, fused=True),
        lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
        changing=True,
    )


@check("captures", "graph-step-without-capturable-fails")
def _() -> str:
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2)  # noqa: E731
    try:
        text = trained_by_graph(make, make, changing=False)
    except (RuntimeError, AssertionError) as error:
        return f"as expected: {str(error)[:100]}"
    return f"works without capturable=True, too: {text}"


@check("graphs", "graph-several-steps-and-replays-return-at-once")
def _() -> str:
    model, static_x = net(), normal(32, 64)
    with torch.no_grad():
        model(static_x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = model(static_x)
            z = model(static_x + 1)
        g.replay()
        same(z, model(static_x + 1)), same(y, model(static_x))
    return f"g.replay() took {behind_busy_gpu(g.replay):.2f} ms behind a busy GPU"


@check("graphs", "graph-with-parallel-branches")
def _() -> str:
    first, branch, x = net(), net(seed=1), normal(32, 64)
    side = torch.cuda.Stream()
    with torch.no_grad():
        wanted = first(x) + branch(x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = branch(x)
            z = first(x)
            torch.cuda.current_stream().wait_stream(side)
            result = z + y
        g.replay()
    return same(result, wanted)


@check("graphs", "graph-of-an-LSTMCell-loop")
def _() -> str:
    cell, other = nn.LSTMCell(64, 64).cuda(), nn.Linear(64, 64).cuda()
    x = normal(12, 8, 64)

    def loop() -> torch.Tensor:
        state, out = (torch.zeros(8, 64, device="cuda"),) * 2, []
        for t in range(12):
            state = cell(x[t], state)
            out.append(other(state[0]))
        return torch.stack(out)

    with torch.no_grad():
        wanted = loop()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = loop()
        g.replay()
        return f"{same(y, wanted)}; {len(seen(g.replay).kernels)} kernels in one launch"


@check("graphs", "LSTM-in-one-call")
def _() -> str:
    width, layers = 64, 2
    lstm = nn.LSTM(width, width, layers, batch_first=True).to(DEVICE)
    x, cells = normal(8, 12, width), [nn.LSTMCell(width, width).to(DEVICE) for _ in range(layers)]
    for i, cell in enumerate(cells):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, name).data.copy_(getattr(lstm, f"{name}_l{i}"))

    def loop() -> torch.Tensor:
        rows = list(x.unbind(1))
        for cell in cells:
            state = (torch.zeros(8, width, device=DEVICE),) * 2
            for t, row in enumerate(rows):
                state = cell(row, state)
                rows[t] = state[0]
        return torch.stack(rows, 1)

    text = same(lstm(x)[0], loop(), 2e-3)
    one, many = seen(lambda: lstm(x)), seen(loop)
    expect(len(one.kernels) < len(many.kernels), "no fewer kernels")
    calls = sum(n for name, n in one.calls.items() if "Launch" in name)
    return f"{text}; {len(many.kernels)} -> {len(one.kernels)} kernels ({calls} launches)"


# ── copies and waits ──────────────────────────────────────────────────────────────────────────────────────────────────


@check("copies", "loss-read-one-step-later")
def _() -> str:
    model, read, wanted = net(), [], []
    loss = loss_of(model(normal(32, 64)), normal(32, 8))
    out, event = torch.empty(loss.shape, pin_memory=True), torch.cuda.Event()  # once, before the loop
    for i, (x, y) in enumerate(batches(6)):
        loss = loss_of(model(x), y)
        if i:
            event.synchronize()
            read.append(out.item())
        out.copy_(loss.detach(), non_blocking=True); event.record()  # fmt: skip  # noqa: E702
        wanted.append(loss.detach())
    expect(not out.requires_grad, "`out` has a gradient")
    text = same(torch.tensor(read), torch.stack(wanted[:-1]).cpu(), 1e-6)
    loss = wanted[0]
    return f"{text}; {no_wait(lambda: (out.copy_(loss.detach(), non_blocking=True), event.record()))}"


@check("copies", "results-kept-in-pinned-memory")
def _() -> str:
    x = normal(1024, 1024)
    kept = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)  # once, before the loop
    event = torch.cuda.Event()
    for i in range(3):
        x = normal(1024, 1024, seed=i)
        kept.copy_(x, non_blocking=True); event.record()  # fmt: skip  # noqa: E702
        event.synchronize()
        same(kept, x, 0)
    return no_wait(lambda: kept.copy_(x, non_blocking=True))


@check("copies", "results-on-a-side-stream")
def _() -> str:
    side, buffers, dones = torch.cuda.Stream(), [torch.empty(1024, 1024, pin_memory=True) for _ in "ab"], [None, None]
    sums, wanted = [], []
    for i in range(8):
        x = torch.full((1024, 1024), float(i), device="cuda") + 1  # memory that the allocator uses again
        kept = buffers[i % 2]
        if dones[i % 2] is not None:
            dones[i % 2].synchronize()
            sums.append((kept.min().item(), kept.max().item()))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side): kept.copy_(x, non_blocking=True)  # fmt: skip  # noqa: E701
        x.record_stream(side); done = side.record_event()  # fmt: skip  # noqa: E702
        dones[i % 2] = done
        wanted.append((i + 1.0, i + 1.0))
        del x
    expect(sums == wanted[:6], f"{sums}")
    return f"8 steps in two buffers; {waits(lambda: kept.copy_(torch.ones_like(kept, device='cuda'), True))=}"


@check("copies", "input-on-a-side-stream")
def _() -> str:
    dataset = [torch.full((512, 512), float(i)) for i in range(8)]
    loader = torch.utils.data.DataLoader(dataset, batch_size=1, pin_memory=True)
    side = torch.cuda.Stream()  # once
    found, coming = [], None
    for x in [*loader, None]:
        if coming is not None:
            torch.cuda.current_stream().wait_stream(side)  # before use
            next_x = coming
            next_x.record_stream(torch.cuda.current_stream())
            found.append((next_x * 2).mean())
        if x is not None:
            expect(x.is_pinned(), "the loader's batches are not pinned")
            with torch.cuda.stream(side): next_x = x.to('cuda', non_blocking=True)  # fmt: skip  # noqa: E701, Q000
            coming = next_x
    expect(torch.stack(found).tolist() == [2.0 * i for i in range(8)], f"{found}")
    data = torch.ones(512, 512)
    data = data.pin_memory()  # once, before the loop

    def ahead() -> torch.Tensor:
        with torch.cuda.stream(side):
            next_data = data.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        next_data.record_stream(torch.cuda.current_stream())
        return next_data

    return no_wait(ahead)


@check("copies", "pinned-and-non_blocking")
def _() -> str:
    x = torch.randn(2048, 2048)
    pageable = waits(lambda: x.to("cuda"))
    x = x.pin_memory()
    text = no_wait(lambda: x.to("cuda", non_blocking=True))
    one = seen(lambda: x.to("cuda", non_blocking=True))
    return f"{text}; {one.copies[0]}; a pageable, blocking copy waits: {pageable}"


@check("copies", "to-cpu-non_blocking-event-queue")
def _() -> str:
    y = normal(1024, 1024)
    host = y.to("cpu", non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    same(host, y, 0)
    return f"{no_wait(lambda: y.to('cpu', non_blocking=True))}; result pinned: {host.is_pinned()}"


@check("copies", "columns-in-one-copy")
def _() -> str:
    columns = [torch.randn(1000) for _ in range(16)]
    batch = torch.stack(columns).to(DEVICE)
    same(list(batch.unbind(0)), columns, 0)
    if CPU:
        return "equal"
    one = seen(lambda: torch.stack(columns).to("cuda"))
    many = seen(lambda: [c.to("cuda") for c in columns])
    expect(len(one.copies) == 1 and len(many.copies) == 16, f"{len(many.copies)} -> {len(one.copies)}")
    return f"{len(many.copies)} -> {len(one.copies)} copies"


@check("copies", "batches-picked-on-the-gpu")
def _() -> str:
    x = torch.randn(4096, 64).to("cuda")
    n = len(x)

    def pick() -> torch.Tensor:
        index = torch.randperm(n, device="cuda")[:128]
        return x[index]

    return no_wait(pick)


@check("copies", "sums-of-losses-stay")
def _() -> str:
    loss, loss_sum = normal(1, grad=True).sum(), torch.zeros((), device="cuda")

    def add() -> None:
        nonlocal loss_sum
        loss_sum += loss.detach()

    return no_wait(add)


@check("copies", "set_sync_debug_mode-and-what-waits")
def _() -> str:
    x, mask = normal(64), normal(64) > 0
    if_tensor = lambda: 1 if x.sum() > 0 else 0  # noqa: E731
    waiting = {
        "if tensor": if_tensor,
        "item": lambda: x[0].item(),
        "cpu": lambda: x.cpu(),
        "tolist": lambda: x.tolist(),
        "nonzero": lambda: x.nonzero(),
        "mask": lambda: x[mask],
        "unique": lambda: mask.long().unique(return_inverse=True),
        "labels != -100": lambda: x[mask.long() != -100],
    }
    found = {name: waits(call) for name, call in waiting.items()}
    expect(all(found.values()), f"do not raise with 'error': {[n for n, f in found.items() if not f]}")
    free = {
        "where": lambda: torch.where(mask, x, 0.0),
        "index_select": lambda: x.index_select(0, mask.long()),
        "foreach_norm": lambda: torch._foreach_norm([x, x]),
        "get_total_norm": lambda: torch.nn.utils.get_total_norm([x, x]),
        "topk": lambda: x.topk(20),
        "argmax": lambda: x.argmax(),
    }
    found = {name: waits(call) for name, call in free.items()}
    expect(not any(found.values()), f"wait: {[n for n, f in found.items() if f]}")
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x[0].item()
    torch.cuda.set_sync_debug_mode("default")
    lines = [w for w in caught if "synchroniz" in str(w.message)]
    expect(lines and Path(lines[0].filename).name == Path(__file__).name, f"names no line of this file: {caught}")
    return f"{len(waiting)} wait, {len(free)} do not; warns at line {lines[0].lineno}"


@check("copies", "sync-debug-mode-unseen-waits")
def _() -> str:
    pinned, x = torch.empty(64, pin_memory=True), normal(64)
    calls = {
        "bincount": lambda: torch.bincount(x.abs().long(), minlength=8),
        "repeat_interleave": lambda: x.repeat_interleave(x.abs().long()),
        "repeat_interleave(output_size)": lambda: x.repeat_interleave(torch.ones_like(x).long(), output_size=64),
        "synchronize": torch.cuda.synchronize,
        "copy_ to pinned, blocking": lambda: pinned.copy_(x),
        "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(x_grad(), 1.0, foreach=True),
        "torch.tensor(list)": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    }

    def x_grad() -> list[torch.Tensor]:
        p = nn.Parameter(x.clone())
        p.grad = x
        return [p]

    really = {}
    for name, call in calls.items():
        try:
            behind_busy_gpu(call)
            really[name] = False
        except AssertionError:
            really[name] = True
    return "; ".join(f"{n}: waits {really[n]}, seen {waits(c)}" for n, c in calls.items())


@check("copies", "stack-tolist-once")
def _() -> str:
    values = list(normal(20).unbind(0))
    losses = torch.stack(values).tolist()  # once, after the loop
    expect(losses == [v.item() for v in values], "other values")
    many, one = seen(lambda: [v.item() for v in values]), seen(lambda: torch.stack(values).tolist())
    expect(len(one.copies) < len(many.copies) or CPU, "no fewer copies")
    return f"{len(many.copies)} -> {len(one.copies)} copies"


@check("copies", "results-collected", cpu=True)
def _() -> str:
    results, parts = [], []
    for i in range(4):
        y = normal(8, 3, seed=i, grad=True)
        results.append(y.detach())
        parts.append(y)
    result = torch.empty(4, 8, 3, device=DEVICE)
    for i in range(4):
        result[i] = parts[i].detach()
    return same(torch.cat(results).cpu(), result.flatten(0, 1).cpu(), 0)


@check("copies", "metrics-on-the-gpu", cpu=True)
def _() -> str:
    scores, labels = normal(256, 10), torch.arange(256, device=DEVICE) % 10
    guess = scores.argmax(-1)
    confusion = torch.bincount(labels * 10 + guess, minlength=100).view(10, 10)
    expect(confusion.sum().item() == 256, "wrong sum")
    values, index = scores.topk(5)
    right = (index == labels[:, None]).any(-1).float().mean()
    wanted = (scores.argsort(descending=True)[..., :5] == labels[:, None]).any(-1).float().mean()
    return same(right, wanted, 1e-6)


@check("copies", "events-for-times")
def _() -> str:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = normal(2048, 2048)
    begin.record()
    for _ in range(5):
        x @ x
    end.record()
    torch.cuda.synchronize()
    return f"{begin.elapsed_time(end):.2f} ms"


@check("copies", "branch-on-a-side-stream")
def _() -> str:
    branch, main, x = net(256), net(256, seed=1), normal(512, 256)
    side = torch.cuda.Stream()
    with torch.no_grad():
        wanted = branch(x) + main(x)
        for _ in range(20):
            z = x * 1
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side): y = branch(z)  # fmt: skip  # noqa: E701
            w = main(z)
            torch.cuda.current_stream().wait_stream(side)  # before y is used
            text = same(y + w, wanted)
            del y, z
    return text


@check("copies", "channels_last-non_blocking")
def _() -> str:
    device, x = "cuda", torch.randn(8, 8, 32, 32).pin_memory()
    y = x.to(device, memory_format=torch.channels_last, non_blocking=True)
    expect(y.is_contiguous(memory_format=torch.channels_last), "not in channels_last")
    torch.cuda.synchronize()
    same(y, x, 0)
    volume = torch.randn(2, 8, 8, 8, 8).pin_memory()
    v = volume.to(device, memory_format=torch.channels_last_3d, non_blocking=True)
    expect(v.is_contiguous(memory_format=torch.channels_last_3d), "not in channels_last_3d")
    torch.cuda.synchronize()
    same(v, volume, 0)
    waiting = waits(lambda: x.to(device, memory_format=torch.channels_last, non_blocking=True))
    try:
        return f"equal; {waiting=}; {behind_busy_gpu(lambda: x.to(device, memory_format=torch.channels_last, non_blocking=True)):.2f} ms"
    except AssertionError as error:
        return f"equal; {waiting=}; {error}"


ALLOCATED = """
import torch
x = [torch.empty(3 << 20, device='cuda') for _ in range(8)]
s = torch.cuda.memory_snapshot()
print(any(g.get('is_expandable') for g in s), len(s), torch.cuda.memory_stats()['num_alloc_retries'])
with torch.profiler.profile() as prof:
    for _ in range(5): y = torch.empty(5 << 20, device='cuda'); del y
print(sum(e.name in ('cudaMalloc', 'cudaFree') for e in prof.events()))
"""


@check("copies", "allocator-settings")
def _() -> str:
    found = {}
    for name, value in (
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ("NOTHING", "1"),
    ):
        env = {**os.environ, name: value}
        done = subprocess.run([sys.executable, "-c", ALLOCATED], env=env, capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0, f"{name}: {done.stderr[-200:]}")
        lines = done.stdout.split("\n")
        found[name] = (lines[0].split()[0], int(lines[1]), "deprecat" in done.stderr)
    expect(found["PYTORCH_CUDA_ALLOC_CONF"][0] == "True", f"the old name has no effect: {found}")
    expect(found["PYTORCH_ALLOC_CONF"][0] == "True", f"the new name has no effect: {found}")
    expect(found["NOTHING"][0] == "False" and found["PYTORCH_NO_CUDA_MEMORY_CACHING"][1] > found["NOTHING"][1], found)
    return f"expandable, calls of cudaMalloc and cudaFree, warns: {found}"


@check("copies", "memory-history")
def _() -> str:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    torch.empty(1 << 20, device="cuda")
    events = len(torch.cuda.memory._snapshot()["device_traces"][0])
    torch.cuda.memory._record_memory_history(enabled=None)
    expect(events, "no events")
    return f"{events} events (named by the list of checks, not by a remedy)"


@check("copies", "nvtx-range-and-profiler")
def _() -> str:
    model, x = net(), normal(32, 64)
    with torch.cuda.nvtx.range("data"):
        model(x)
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)
    with tempfile.TemporaryDirectory() as folder:
        traces: list[str] = []

        def ready(prof: Any) -> None:
            traces.append(f"{folder}/{len(traces)}.json")
            prof.export_chrome_trace(traces[-1])

        with torch.profiler.profile(schedule=schedule, on_trace_ready=ready) as profiler:
            for _ in range(10):
                model(x)
                profiler.step()
        events = json.loads(Path(traces[0]).read_text())["traceEvents"]
        steps = {e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep")}
        expect(len(traces) == 1 and len(steps) == 3, f"{len(traces)} traces with {steps}")
        with torch.profiler.profile(record_shapes=True) as prof: model(x)  # fmt: skip  # noqa: E701
        prof.export_chrome_trace(f"{folder}/TRACE")
        events = json.loads(Path(folder, "TRACE").read_text())["traceEvents"]
        expect(any("Input Dims" in e.get("args", {}) for e in events), "no shapes")
        expect(any(e.get("cat") == "kernel" for e in events), "no kernels")
        with torch.profiler.profile(with_stack=False, record_shapes=False, profile_memory=False) as prof:
            model(x)
    return f"one trace with {sorted(steps)}; shapes are recorded"


@check("copies", "timm-ModelEmaV3", cpu=True)
def _() -> str:
    utils = needed("timm.utils")
    model = net()
    ema = utils.ModelEmaV3(model)
    ema.update(model)
    expect(next(ema.module.parameters()).device.type == DEVICE, "elsewhere")
    return "averages are on the model's device"


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def heads(batch: int, count: int, tokens: int, size: int = 64, seed: int = 0, dtype: Any = None) -> torch.Tensor:
    """Queries, keys or values."""
    return normal(batch, count, tokens, size, seed=seed, dtype=dtype or torch.bfloat16)


def written_out(q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
    """Attention in float32, without a fused kernel; keys and values are repeated."""
    q, k, v = (t.float() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()
    return scores.softmax(-1) @ v


FUSED = r"flash|fmha|cudnn|sdpa|mha"


def kernel_of(one: Seen) -> str:
    """Which kind of kernel computed attention, by the kernels' names."""
    names = " ".join(one.kernels).lower()
    kinds = {"cudnn": "cudnn|sm90_xmma_fmha|sdpa_sm", "flash": r"flash_fwd|pytorch_flash|flash::", "efficient": "fmha_"}
    found = [kind for kind, pattern in kinds.items() if re.search(pattern, names)]
    return found[0] if found else f"none fused ({len(one.kernels)} kernels)"


@check("attention", "sdpa-is-fused")
def _() -> str:
    q, k, v = (heads(2, 8, 512, seed=i) for i in range(3))
    causal = torch.ones(512, 512, dtype=torch.bool, device=DEVICE).tril()
    text = same(scaled_dot_product_attention(q, k, v).float(), written_out(q, k, v), 0.02)
    same(scaled_dot_product_attention(q, k, v, is_causal=True).float(), written_out(q, k, v, causal), 0.02)
    one = seen(lambda: scaled_dot_product_attention(q, k, v))
    two = seen(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    expect(one.named(FUSED) and two.named(FUSED), f"not fused: {one.kernels} {two.kernels}")
    q.requires_grad_()
    back = seen(lambda: scaled_dot_product_attention(q, k, v).sum().backward())
    scores = written_out(q, k, v)
    del scores
    return (
        f"{text}; {kernel_of(one)}, causal {kernel_of(two)}, {len(back.kernels)} kernels with backward: {back.short()}"
    )


@check("attention", "sdpa-with-masks-of-each-format")
def _() -> str:
    q, k, v = (heads(2, 8, 512, seed=i) for i in range(3))
    keep = (torch.rand(2, 1, 1, 512, generator=torch.Generator().manual_seed(0)) > 0.3).to(DEVICE)
    bias = torch.where(keep, 0.0, -math.inf)
    found = {}
    for name, mask in {"bool": keep, "bfloat16": bias.bfloat16(), "float32": bias, "float16": bias.half()}.items():
        try:
            y = scaled_dot_product_attention(q, k, v, attn_mask=mask)
            same(y.float(), written_out(q, k, v, keep), 0.02)
            one = seen(lambda mask=mask: scaled_dot_product_attention(q, k, v, attn_mask=mask))
            found[name] = f"{kernel_of(one)} of {len(one.kernels)}"
        except (RuntimeError, AssertionError) as error:
            found[name] = str(error)[:60]
    expect(all("none" not in found[n] for n in ("bool", "bfloat16")), f"{found}")
    return f"{found}"


@check("attention", "sdpa_kernel-EFFICIENT-with-mask")
def _() -> str:
    q, k, v = (heads(2, 8, 512, seed=i, dtype=torch.float32) for i in range(3))
    keep = torch.ones(512, 512, dtype=torch.bool, device=DEVICE).tril()
    model = lambda x: scaled_dot_product_attention(x, k, v, attn_mask=keep)  # noqa: E731
    q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))  # one 16-bit format
    x = q
    backend = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION  # FLASH_ATTENTION never takes an attn_mask
    with torch.nn.attention.sdpa_kernel(backend): y = model(x)  # fmt: skip  # noqa: E701
    text = same(y.float(), written_out(q, k, v, keep), 0.02)
    with torch.nn.attention.sdpa_kernel(backend):
        one = seen(lambda: model(x))
    expect(kernel_of(one) == "efficient", f"{one.kernels}")
    return f"{text}; {one.short()}"


@check("attention", "sdpa_kernel-FLASH-fails-with-a-mask-and-warns")
def _() -> str:
    q, k, v = (heads(2, 8, 128, seed=i) for i in range(3))
    keep = torch.ones(128, 128, dtype=torch.bool, device=DEVICE).tril()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                scaled_dot_product_attention(q, k, v, attn_mask=keep)
            raised = None
        except RuntimeError as error:
            raised = error
    expect(raised is not None, "does not fail")
    told = [str(w.message)[:80] for w in caught if "mask" in str(w.message)]
    expect(told, f"warns nothing of a mask: {[str(w.message)[:60] for w in caught]}")
    return f"{str(raised)[:50]}; {told[0]}"


@check("attention", "sdpa-head-sizes-and-mixed-formats")
def _() -> str:
    found = {}
    for size in (60, 64):
        q, k, v = (heads(2, 8, 256, size, seed=i) for i in range(3))
        keep = torch.ones(256, 256, dtype=torch.bool, device=DEVICE).tril()
        for name, options in {"": {}, " mask": {"attn_mask": keep}}.items():
            one = seen(lambda q=q, k=k, v=v, o=options: scaled_dot_product_attention(q, k, v, **o))
            found[f"{size}{name}"] = f"{kernel_of(one)} of {len(one.kernels)}"
    try:
        scaled_dot_product_attention(q.float(), k.float(), v)
        found["mixed"] = "taken"
    except RuntimeError as error:
        found["mixed"] = f"raises {str(error)[:50]}"
    one = seen(lambda: scaled_dot_product_attention(q.float(), k.float(), v.float()))
    found["fp32"] = kernel_of(one)
    return f"{found}"


@check("attention", "enable_gqa-without-mask-copies-nothing")
def _() -> str:
    q, k, v = heads(2, 16, 512), heads(2, 4, 512, seed=1), heads(2, 4, 512, seed=2)
    text = same(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).float(), written_out(q, k, v), 0.02)
    one = seen(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    expect(one.named(FUSED) and len(one.kernels) <= 2, f"{one.kernels}")
    return f"{text}; {kernel_of(one)}: {one.short()}"


def gqa_with_mask(queries: int, tokens: int) -> str:
    """Which kernels run heads that share keys and values with a mask, and whether keys and values are repeated."""
    q, k, v = heads(2, 16, queries, 128), heads(2, 4, tokens, 128, seed=1), heads(2, 4, tokens, 128, seed=2)
    mask = torch.arange(tokens, device=DEVICE)[None, None, None] < torch.tensor(
        [[[[tokens - 7]]], [[[tokens // 2]]]]
    ).to(DEVICE)
    wanted = written_out(q, k, v, mask)
    call = lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)  # noqa: E731
    text = same(call().float(), wanted, 0.02)
    one, found = seen(call), {}
    for backend in ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "FLASH_ATTENTION"):
        try:
            with (
                warnings.catch_warnings(),
                torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)),
            ):
                warnings.simplefilter("ignore")
                same(call().float(), wanted, 0.02)
                found[backend[:5]] = "takes it"
        except RuntimeError:
            found[backend[:5]] = "refuses"
    return f"{text}; runs {kernel_of(one)} in {len(one.kernels)} kernels ({one.short(40)}); {found}"


@check("attention", "enable_gqa-with-mask-prefill")
def _() -> str:
    return gqa_with_mask(256, 256)


@check("attention", "enable_gqa-with-mask-one-query")
def _() -> str:
    return gqa_with_mask(1, 1024)


for tokens in (1024, 1001):

    @check("attention", f"shared-heads-as-rows-{tokens}", cpu=True)
    def _(S: int = tokens) -> str:
        B, H, D = 2, 4, 128
        q, k, v = heads(B, 16, 1, D), heads(B, H, S, D, seed=1), heads(B, H, S, D, seed=2)
        mask = torch.rand(B, 1, 1, S, generator=torch.Generator().manual_seed(0)).to(DEVICE) > 0.3
        wanted = written_out(q, k, v, mask)
        call = lambda: scaled_dot_product_attention(q.view(B, H, -1, D), k, v, attn_mask=mask).view_as(q)  # noqa: E731
        text = same(call().float(), wanted, 0.02)
        if CPU:
            return text
        one, found = seen(call), {}
        expect("none" not in kernel_of(one), f"not fused: {one.kernels}")
        for backend in ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
            try:
                with (
                    warnings.catch_warnings(),
                    torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)),
                ):
                    warnings.simplefilter("ignore")
                    same(call().float(), wanted, 0.02)
                    found[backend[:5]] = f"takes it, {len(seen(call).kernels)} kernels"
            except RuntimeError:
                found[backend[:5]] = "refuses"
        expect("takes" in found["EFFIC"], f"{found}")
        return f"{text}; {kernel_of(one)} of {len(one.kernels)}; {found}"


@check("attention", "is_causal-with-unequal-lengths", cpu=True)
def _() -> str:
    q, k, v = heads(1, 2, 4), heads(1, 2, 9, seed=1), heads(1, 2, 9, seed=2)
    upper = torch.ones(4, 9, dtype=torch.bool, device=DEVICE).tril()
    lower = torch.ones(4, 9, dtype=torch.bool, device=DEVICE).tril(5)
    y = scaled_dot_product_attention(q, k, v, is_causal=True).float()
    off = off_by(y, written_out(q, k, v, lower))
    expect(off > 0.05, "equals the mask of the last queries: the warning in the text is not needed")
    return f"aligned at the first key: {same(y, written_out(q, k, v, upper), 0.03)}; off by {off:.2f} from the other"


@check("attention", "padding-on-the-right-needs-no-mask", cpu=True)
def _() -> str:
    q, k, v = (heads(1, 2, 64, seed=i) for i in range(3))
    keep = torch.ones(64, 64, dtype=torch.bool, device=DEVICE).tril() & (torch.arange(64, device=DEVICE) < 50)
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    return same(y[:, :, :50].float(), written_out(q, k, v, keep)[:, :, :50], 0.03)


@check("attention", "flex_attention-blocks")
def _() -> str:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    S = 1024
    q, k, v = (heads(2, 4, S, seed=i) for i in range(3))
    part = torch.arange(S, device="cuda") // 200
    mask = create_block_mask(lambda b, h, q, k: part[q] == part[k], None, None, S, S)  # once per batch
    flex = torch.compile(flex_attention)  # once
    y = flex(q, k, v, block_mask=mask)
    text = same(y.float(), written_out(q, k, v, part[:, None] == part), 0.02)
    one = seen(lambda: flex(q, k, v, block_mask=mask))
    expect(len(one.kernels) == 1, f"{one.kernels}")
    at = torch.arange(S, device="cuda")
    same_part, past = part[:, None] == part, at[:, None] >= at
    mask = create_block_mask(lambda b, h, q, k: (part[q] == part[k]) & (q >= k), None, None, S, S)
    causal = same(flex(q, k, v, block_mask=mask).float(), written_out(q, k, v, same_part & past), 0.02)
    mask = create_block_mask(lambda b, h, q, k: (part[q] == part[k]) & (q >= k) & (q - k < 100), None, None, S, S)
    window = same_part & past & (at[:, None] - at < 100)
    windowed = same(flex(q, k, v, block_mask=mask).float(), written_out(q, k, v, window), 0.02)
    q.requires_grad_()
    flex(q, k, v, block_mask=mask).sum().backward()
    found, q.grad = q.grad, None
    written_out(q, k, v, window).sum().backward()
    return f"{text}, causal {causal}, window {windowed}, gradient {same(found.float(), q.grad.float(), 0.05)}; {one.short()}"


@check("attention", "flex_attention-score_mod")
def _() -> str:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (heads(2, 4, 512, seed=i) for i in range(3))
    slope = torch.tensor([0.5, 0.25, 0.125, 0.06], device="cuda")
    flex = torch.compile(flex_attention)
    y = flex(q, k, v, score_mod=lambda score, b, h, i, j: score - slope[h] * (i - j).abs())
    at = torch.arange(512, device="cuda")
    bias = (-slope[:, None, None] * (at[:, None] - at).abs()).to(q.dtype)  # in the format of the queries
    text = same(y.float(), written_out(q, k, v, bias), 0.03)
    one = seen(lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias))
    same(scaled_dot_product_attention(q, k, v, attn_mask=bias).float(), written_out(q, k, v, bias), 0.03)
    return f"{text}; a bias as attn_mask runs {kernel_of(one)} of {len(one.kernels)}"


@check("attention", "varlen_attn")
def _() -> str:
    from torch.nn.attention.varlen import varlen_attn

    lengths = [100, 37, 64]
    ends = torch.tensor([0, 100, 137, 201], dtype=torch.int32, device="cuda")
    q, k, v = (normal(201, 4, 64, seed=i, dtype=torch.bfloat16) for i in range(3))
    y = varlen_attn(q, k, v, ends, ends, 100, 100)
    wanted = [
        written_out(*(t.transpose(0, 1)[None] for t in rows))[0].transpose(0, 1)
        for rows in zip(*(t.split(lengths) for t in (q, k, v)), strict=True)
    ]
    one = seen(lambda: varlen_attn(q, k, v, ends, ends, 100, 100))
    return f"{same(y.float(), torch.cat(wanted), 0.02)}; {one.short()}"


@check("attention", "nested-tensors")
def _() -> str:
    rows = [normal(n, 4, 64, seed=n, dtype=torch.bfloat16) for n in (100, 37, 64)]
    q = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    y = scaled_dot_product_attention(q, q, q)
    wanted = [written_out(*(r.transpose(0, 1)[None],) * 3)[0].transpose(0, 1) for r in rows]
    one = seen(lambda: scaled_dot_product_attention(q, q, q))
    return (
        f"{same([t.float() for t in y.transpose(1, 2).unbind()], wanted, 0.02)}; {kernel_of(one)} of {len(one.kernels)}"
    )


def rebuilt(keep: Any, attention: str) -> tuple[str, int, int]:
    """Attention kernels of a block with and without this list of operators that checkpointing keeps."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    weight = normal(256, 768, dtype=torch.bfloat16, grad=True)
    x = normal(2, 256, 256, dtype=torch.bfloat16, grad=True)
    mask = torch.ones(256, 256, dtype=torch.bool, device=DEVICE).tril()

    def block(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ weight).view(2, 256, 3, 4, 64).permute(2, 0, 3, 1, 4)
        if attention == "mask":
            return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2).relu()
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).relu()

    context_fn = functools.partial(create_selective_checkpoint_contexts, keep)

    def run(kind: str) -> torch.Tensor:
        x.grad = weight.grad = None
        if kind == "kept":
            y = checkpoint(block, x, use_reentrant=False, context_fn=context_fn)
        else:
            y = checkpoint(block, x, use_reentrant=False) if kind == "all" else block(x)
        y.sum().backward()
        return x.grad

    text = same(run("kept").float(), run("plain").float(), 0.02)
    if CPU:
        return text, 0, 0
    counts = []
    for kind in ("plain", "all", "kept"):
        one = seen(lambda kind=kind: run(kind))
        counts.append(
            (
                len(one.named(r"fwd|fprop|fmha_cutlassF|forward(?!_)")),
                len(one.named("gemm|nvjet|cutlass_80")),
                len(one.kernels),
            )
        )
    return (
        f"{text}; kernels of attention forward, of products, all: plain, all again, kept {counts}",
        counts[1][0],
        counts[2][0],
    )


@check("attention", "checkpoint-keeps-products-and-attention", cpu=True)
def _() -> str:
    aten = torch.ops.aten
    kept = [aten.mm.default, aten.bmm.default, aten._scaled_dot_product_flash_attention.default]
    text, everything, some = rebuilt(kept, "causal")
    expect(some < everything or CPU, f"attention runs again: {text}")
    return text


@check("attention", "checkpoint-keeps-attention-with-a-mask")
def _() -> str:
    aten = torch.ops.aten
    kept = [aten.mm.default, aten.bmm.default, aten._scaled_dot_product_flash_attention.default]
    text, everything, some = rebuilt(kept, "mask")
    more = [
        *kept,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ]
    longer, _, with_more = rebuilt(more, "mask")
    return (
        f"printed list keeps it: {some < everything} (with the other two operators: {with_more < everything}); {text}"
    )


# ── products, formats, rows ───────────────────────────────────────────────────────────────────────────────────────────


def grouped(function: Any, dtype: torch.dtype, *, turned: bool = False) -> str:
    """The printed product of sorted rows against a product for each expert, with its gradients."""
    experts, x = 4, normal(512, 64, dtype=dtype, grad=True)
    weights = normal(experts, 64, 128, seed=1, dtype=dtype)
    if turned:
        weights = weights.transpose(1, 2).contiguous().transpose(1, 2)
    weights.requires_grad_()
    expert = torch.randint(0, 3, (512,), generator=torch.Generator().manual_seed(0)).to(DEVICE)  # one has no rows
    order = expert.argsort()
    ends = torch.bincount(expert, minlength=experts).cumsum(0, dtype=torch.int32)  # order = expert.argsort()
    y = function(x[order], weights, offs=ends)  # rows sorted by expert
    y.float().square().sum().backward()
    found = x.grad, weights.grad
    x.grad = weights.grad = None
    rows, counts = x[order], torch.bincount(expert, minlength=experts).tolist()
    wanted = torch.cat([part @ weights[e] for e, part in enumerate(rows.split(counts))])
    wanted.float().square().sum().backward()
    grads = same([g.float() for g in found], [x.grad.float(), weights.grad.float()], 0.02)
    text = f"{same(y.float(), wanted.float(), 0.02)}, gradients {grads}"
    if CPU:
        return text
    with torch.no_grad():
        rows = x[order]
        one, many = (
            seen(lambda: function(rows, weights, offs=ends)),
            seen(lambda: [x[expert == e] @ weights[e] for e in range(experts)]),
        )
    return f"{text}; {len(many.kernels)} -> {len(one.kernels)} kernels ({one.short(50)}); waits: {waits(lambda: function(rows, weights, offs=ends))}"


@check("products", "grouped_mm-bfloat16", cpu=True)
def _() -> str:
    return grouped(torch.nn.functional.grouped_mm, torch.bfloat16)


@check("products", "grouped_mm-bfloat16-weights-turned", cpu=True)
def _() -> str:
    return grouped(torch.nn.functional.grouped_mm, torch.bfloat16, turned=True)


@check("products", "grouped_mm-float32", cpu=True)
def _() -> str:
    return grouped(torch.nn.functional.grouped_mm, torch.float32)


@check("products", "grouped_mm-float16", cpu=True)
def _() -> str:
    return grouped(torch.nn.functional.grouped_mm, torch.float16)


@check("products", "_grouped_mm", cpu=True)
def _() -> str:
    return grouped(torch._grouped_mm, torch.bfloat16)


@check("products", "experts-stacked-vmap", cpu=True)
def _() -> str:
    from torch.func import functional_call, stack_module_state

    parts = [net(seed=i) for i in range(4)]
    params, buffers = stack_module_state(parts)
    x = normal(4, 32, 64)
    call = lambda: torch.vmap(lambda p, b, x: functional_call(parts[0], (p, b), (x,)))(params, buffers, x)  # noqa: E731
    loop = lambda: torch.stack([part(row) for part, row in zip(parts, x, strict=True)])  # noqa: E731
    one, many = seen(call), seen(loop)
    expect(len(one.kernels) < len(many.kernels) or CPU, "no fewer kernels")
    return f"{same(call(), loop(), 2e-3)}; {len(many.kernels)} -> {len(one.kernels)} kernels"


@check("products", "TF32-switches")
def _() -> str:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
    a, b = normal(1024, 1024), normal(1024, 1024, seed=1)
    wanted = a.double() @ b.double()
    layer, x = nn.Conv2d(64, 64, 3).cuda(), normal(8, 64, 32, 32)
    wanted_conv = layer.double()(x.double())
    layer.float()
    before, before_conv = off_by(a @ b, wanted), off_by(layer(x), wanted_conv)
    plain = seen(lambda: a @ b)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True  # convolutions
    after, after_conv = off_by(a @ b, wanted), off_by(layer(x), wanted_conv)
    one, other = seen(lambda: a @ b), seen(lambda: layer(x))
    expect(after > 5 * before, f"no TF32: off by {before:.1g} and {after:.1g}: {one.kernels}")
    read = {"allow_tf32": matmul.allow_tf32, "fp32_precision": matmul.fp32_precision, "conv": conv.conv.fp32_precision}
    torch.backends.cudnn.allow_tf32 = False
    off_conv = off_by(layer(x), wanted_conv)
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    return f"products {before:.1g} -> {after:.1g} ({plain.short(30)} -> {one.short(30)}), conv default {before_conv:.1g}, on {after_conv:.1g}, off {off_conv:.1g} ({other.short(40)}); {read}"


TF32_NEW = """
import torch
a = torch.randn(512, 512, device='cuda'); w = a.double() @ a.double()
off = lambda: ((a @ a).double() - w).abs().max().item()
p = off(); torch.backends.fp32_precision = 'tf32'; q = off()
torch.backends.fp32_precision = 'ieee'; torch.backends.cuda.matmul.fp32_precision = 'tf32'; r = off()
try: torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = True; s = 'old names work after it'
except Exception as e: s = f'old names after it: {e}'
print(q > 5 * p, r > 5 * p, f'{p:.1g} {q:.1g} {r:.1g}', s[:90])
"""


@check("products", "TF32-new-names")
def _() -> str:
    done = subprocess.run([sys.executable, "-c", TF32_NEW], capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0, done.stderr[-300:])
    expect(done.stdout.startswith("True True"), done.stdout)
    return done.stdout.strip()


@check("products", "float32-from-NumPy", cpu=True)
def _() -> str:
    numpy = needed("numpy")
    model, array = net().double(), numpy.random.default_rng(0).standard_normal((4, 64))
    model.float(); x = torch.from_numpy(array).float()  # fmt: skip  # noqa: E702
    y = model(x.to(DEVICE))
    expect(y.dtype == torch.float32, "not float32")
    return "float32"


@check("products", "autocast-bfloat16")
def _() -> str:
    net_, x = net(512), normal(512, 512)
    model = lambda x: net_(x).float().square().mean()  # noqa: E731
    plain = model(x)
    with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(x)  # fmt: skip  # noqa: E701, Q000
    loss.backward()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        one = seen(lambda: model(x))
    half = copy.deepcopy(net_).to(torch.bfloat16)
    same(half(x.to(torch.bfloat16)).float(), net_(x), 0.05)
    return f"{same(loss, plain, 0.02)}; {one.short(50)}"


@check("products", "autocast-float16-GradScaler")
def _() -> str:
    net_, losses = net(), []
    optimizer, scaler = torch.optim.AdamW(net_.parameters(), lr=1e-2, fused=True), torch.amp.GradScaler("cuda")
    x, y = batches(1)[0]
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(net_(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    expect(losses[-1] < losses[0], f"{losses}")
    return f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"


@check("products", "patches-as-a-product", cpu=True)
def _() -> str:
    width, x = 96, normal(2, 3, 64, 96)
    conv, linear = nn.Conv2d(3, width, 16, 16).to(DEVICE), nn.Linear(3 * 16 * 16, width).to(DEVICE)
    linear.weight.data, linear.bias.data = conv.weight.data.flatten(1), conv.bias.data
    wanted = conv(x)
    x = x.unflatten(-1, (-1, 16)).unflatten(-3, (-1, 16)).permute(0, 2, 4, 1, 3, 5).flatten(-3)
    return same(linear(x), wanted.permute(0, 2, 3, 1), 2e-3)


def convolved(format_: torch.memory_format, model: nn.Module, x: torch.Tensor) -> str:
    """A model in this format against the plain one, and the kernels that change the order of the channels."""
    device = DEVICE
    changed = copy.deepcopy(model).to(memory_format=format_)
    y = x.to(device, memory_format=format_, non_blocking=True)
    text = same(changed(y).float(), model(x).float(), 0.03)
    if CPU:
        return text
    before, after = seen(lambda: model(x)), seen(lambda: changed(y))
    order = "nchwToNhwc|nhwcToNchw|transpose"
    expect(not after.named(order), f"still changes the order: {after.named(order)}")
    return f"{text}; {len(before.kernels)} kernels ({len(before.named(order))} change the order) -> {len(after.kernels)} (0)"


@check("products", "channels_last", cpu=True)
def _() -> str:
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)).to(DEVICE).bfloat16()
    )
    return convolved(torch.channels_last, model, normal(8, 64, 32, 32, dtype=torch.bfloat16))


@check("products", "channels_last_3d", cpu=True)
def _() -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(32, 32, 3), nn.ReLU(), nn.Conv3d(32, 32, 3)).to(DEVICE).bfloat16()
    return convolved(torch.channels_last_3d, model, normal(2, 32, 8, 16, 16, dtype=torch.bfloat16))


@check("products", "channels_last_3d-of-each-Conv3d", cpu=True)
def _() -> str:
    model = nn.Sequential(nn.Conv3d(8, 8, 3), nn.Conv2d(8, 8, 3)).to(DEVICE)
    try:
        copy.deepcopy(model).to(memory_format=torch.channels_last_3d)
        fails = False
    except RuntimeError:
        fails = True
    expect(fails, "does not fail with nn.Conv2d, as the text says")
    model[0].to(memory_format=torch.channels_last_3d)
    return "fails with nn.Conv2d; each nn.Conv3d can be converted"


@check("products", "Conv1d-as-Linear-and-Conv2d", cpu=True)
def _() -> str:
    c, d, k, x = 64, 32, 5, normal(4, 64, 200)
    one, long = nn.Conv1d(c, d, 1).to(DEVICE), nn.Conv1d(c, d, k).to(DEVICE)
    linear, conv = nn.Linear(c, d).to(DEVICE), nn.Conv2d(c, d, (1, k)).to(DEVICE)
    linear.weight.data, linear.bias.data = one.weight.data[:, :, 0], one.bias.data
    conv.weight.data, conv.bias.data = long.weight.data.unsqueeze(2), long.bias.data
    conv = conv.to(memory_format=torch.channels_last)
    text = same(linear(x.transpose(1, 2)).transpose(1, 2), one(x), 3e-3)
    y = conv(x.unsqueeze(2).to(memory_format=torch.channels_last)).squeeze(2)
    return f"{text}; longer: {same(y, long(x), 3e-3)}"


@check("products", "sums-and-outer-products", cpu=True)
def _() -> str:
    a, b, items = normal(8, 100, 32), normal(8, 100, 32, seed=1), normal(50, 32, seed=2)
    text = same((a * b).sum(-1), torch.einsum("bnd,bnd->bn", a, b))
    same(a[..., :, None] * b[..., None, :], torch.einsum("bnd,bne->bnde", a, b))
    same(a @ items.T, torch.bmm(a, items.T.expand(8, -1, -1)), 1e-3)
    one, many = seen(lambda: (a * b).sum(-1)), seen(lambda: torch.einsum("bnd,bnd->bn", a, b))
    return f"{text}; einsum: {many.short(40)}; instead: {one.short(40)}"


@check("products", "fft-of-a-good-length", cpu=True)
def _() -> str:
    fft = good_length
    length, x = 1009, normal(4, 1009).double()
    filter = normal(1009, seed=1).double()  # noqa: A001
    wanted = F.conv1d(F.pad(x[:, None], (length - 1, 0)), filter.flip(0)[None, None])[:, 0]
    n = fft(2 * length - 1)
    y = torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(filter, n), n)[..., :length]
    return f"n = {n}: {same(y, wanted, 1e-6)}"


@check("products", "index_select-instead-of-sorting", cpu=True)
def _() -> str:
    x, index = normal(1000, 64, grad=True), (torch.arange(5000) * 7 % 1000).to(DEVICE)

    def picked(how: Any) -> torch.Tensor:
        x.grad = None
        how().square().sum().backward()
        return x.grad

    plain, other = lambda: picked(lambda: x[index]), lambda: picked(lambda: x.index_select(0, index))
    text = same(other(), plain())
    before, after = seen(plain), seen(other)
    expect(CPU or (before.named("sort") and not after.named("sort")), f"{before.kernels} -> {after.kernels}")
    torch.use_deterministic_algorithms(False)
    return f"{text}; kernels that sort: {len(before.named('sort'))} -> {len(after.named('sort'))}"


@check("products", "linear-before-picking", cpu=True)
def _() -> str:
    x, near = normal(100, 64), (torch.arange(900) * 7 % 100).to(DEVICE)
    linear, a, b = nn.Linear(64, 32).to(DEVICE), nn.Linear(64, 32).to(DEVICE), nn.Linear(64, 32, bias=False).to(DEVICE)
    both = nn.Linear(128, 32).to(DEVICE)
    both.weight.data, both.bias.data = torch.cat([a.weight, b.weight], 1).data, a.bias.data
    src, dst = near, near.flip(0)
    text = same(linear(x)[near], linear(x[near]), 2e-3)
    return f"{text}; two tables: {same(a(x)[src] + b(x)[dst], both(torch.cat([x[src], x[dst]], -1)), 3e-3)}"


@check("products", "Embedding-sparse", cpu=True)
def _() -> str:
    rows, width = 1000, 16
    found = []
    for kind in ("SGD", "Adagrad", "SparseAdam"):
        for table in (nn.Embedding(rows, width, sparse=True), nn.EmbeddingBag(rows, width, sparse=True)):
            table.to(DEVICE)
            optimizer = getattr(torch.optim, kind)(table.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                table(torch.tensor([[1, 2, 3], [3, 4, 5]], device=DEVICE)).square().sum().backward()
                expect(table.weight.grad.is_sparse, "the gradient is dense")
                before = table.weight.detach().clone()
                optimizer.step()
            changed = (table.weight != before).any(-1).nonzero().flatten().tolist()
            expect(changed == [1, 2, 3, 4, 5], f"{kind} changed {changed}")
        found.append(kind)
    return f"{found}"


@check("products", "segment_reduce-bags-and-CSR", cpu=True)
def _() -> str:
    rows, counts = normal(100, 16), torch.tensor([20, 30, 50], device=DEVICE)
    wanted = torch.stack([part.sum(0) for part in rows.split([20, 30, 50])])
    text = same(torch.segment_reduce(rows, "sum", lengths=counts), wanted)
    bag = nn.EmbeddingBag.from_pretrained(rows, mode="mean")
    same(bag(torch.tensor([[1, 2]], device=DEVICE)), rows[1:3].mean(0, keepdim=True))
    src, dst = (torch.arange(300) * 7 % 100).to(DEVICE), torch.arange(300, device=DEVICE) // 30
    pointers = torch.arange(0, 301, 30, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr = torch.sparse_csr_tensor(pointers, src, torch.ones(300, device=DEVICE), (10, 100))
        found = torch.sparse.mm(csr, rows)
    return f"{text}; CSR {same(found, torch.zeros(10, 16, device=DEVICE).index_add(0, dst, rows[src]), 1e-3)}"


@check("products", "topk", cpu=True)
def _() -> str:
    x = normal(64, 1000)
    values, index = x.topk(20)
    expect(torch.equal(index, x.argsort(descending=True)[..., :20]), "other rows")
    return "equal"


@check("products", "cross_entropy-in-16-bits", cpu=True)
def _() -> str:
    scores = (3 * normal(4, 100, 5000)).bfloat16().requires_grad_()
    labels = (torch.arange(400) * 13 % 5000).view(4, 100).to(DEVICE)
    loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten())
    wanted = F.cross_entropy(scores.float().flatten(0, 1), labels.flatten())
    expect(loss.dtype == torch.bfloat16, "the loss is not rounded to 16 bits")
    text = same(loss.float(), wanted, 0.005)
    one = seen(lambda: F.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward())
    two = seen(lambda: F.cross_entropy(scores.float().flatten(0, 1), labels.flatten()).backward())
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        again = F.cross_entropy(scores.flatten(0, 1), labels.flatten())
    expect(again.dtype == torch.float32, "autocast keeps 16 bits")
    same(F.cross_entropy(scores.flatten(0, 1), labels.flatten(), label_smoothing=0.1).float(), wanted, 0.05)
    return f"{text}; {len(two.kernels)} -> {len(one.kernels)} kernels; float32 under autocast"


@check("products", "fused-norms-and-GELU", cpu=True)
def _() -> str:
    x, w = normal(256, 1024, dtype=torch.bfloat16), normal(1024, seed=1, dtype=torch.bfloat16)
    found = {}
    exact = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()
    text = same(F.rms_norm(x, (1024,), w, 1e-6).float(), exact, 0.01)
    same(F.layer_norm(x, (1024,), w).float(), F.layer_norm(x.float(), (1024,), w.float()), 0.01)
    gelu = 0.5 * x.float() * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x.float() + 0.044715 * x.float() ** 3)))
    same(F.gelu(x, approximate="tanh").float(), gelu, 0.01)
    for name, call in {
        "rms_norm": lambda: F.rms_norm(x, (1024,), w, 1e-6),
        "layer_norm": lambda: F.layer_norm(x, (1024,), w),
        "gelu": lambda: F.gelu(x, approximate="tanh"),
    }.items():
        found[name] = len(seen(call).kernels)
    expect(CPU or set(found.values()) == {1}, f"kernels: {found}")
    return f"{text}; kernels: {found}"


@check("products", "fuse_conv_bn_eval-and-batch-norm-in-channels_last", cpu=True)
def _() -> str:
    conv, norm, x = nn.Conv2d(64, 64, 3).to(DEVICE).eval(), nn.BatchNorm2d(64).to(DEVICE), normal(8, 64, 32, 32)
    norm(conv(x))
    norm.eval()
    fused = torch.nn.utils.fuse_conv_bn_eval(conv, norm)
    text = same(fused(x), norm(conv(x)), 5e-3)
    if CPU:
        return text
    norm.train()
    last = x.half().to(memory_format=torch.channels_last)
    one, two = seen(lambda: norm(x.half())), seen(lambda: norm(last))
    return f"{text}; batch norm: {one.short(50)} -> {two.short(50)}"


@check("products", "padded-vocabulary", cpu=True)
def _() -> str:
    width, classes = 64, 1001
    head, x = nn.Linear(width, 64 * math.ceil(classes / 64)).to(DEVICE).bfloat16(), normal(64, 64, dtype=torch.bfloat16)
    small = nn.Linear(width, classes).to(DEVICE).bfloat16()
    expect(head(x).shape[-1] % 64 == 0, "not a multiple")
    return f"{seen(lambda: small(x)).short(50)} -> {seen(lambda: head(x)).short(50)}"


@check("products", "uint8-rows-and-masks", cpu=True)
def _() -> str:
    x, drawn = (normal(100, 64).abs() * 80).byte(), torch.tensor([3, 5, 9], device=DEVICE)
    same(x[drawn].float() / 255, (x.float() / 255)[drawn], 0)
    ready = x.to(torch.bfloat16) / 255
    head, hidden, labels = nn.Linear(64, 9).to(DEVICE), normal(2, 50, 64), torch.arange(100, device=DEVICE).view(2, 50)
    labels = labels.where(labels % 3 == 0, -100)
    same(head(hidden[labels != -100]), head(hidden)[labels != -100], 2e-3)
    same(head(hidden[:, -1]), head(hidden)[:, -1], 2e-3)
    return f"equal; {ready.dtype}"


@check("products", "jacobian-in-one-call", cpu=True)
def _() -> str:
    model, x = net(), normal(64, grad=True)
    y = model(x)
    directions = torch.eye(8, device=DEVICE)
    found = torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True)[0]
    loop = lambda: torch.stack([torch.autograd.grad(y, x, d, retain_graph=True)[0] for d in directions])  # noqa: E731
    same(torch.func.jacrev(model)(x), loop(), 2e-3)
    _, pull = torch.func.vjp(model, x)
    same(torch.vmap(pull)(directions)[0], loop(), 2e-3)
    one = seen(lambda: torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True))
    many = seen(loop)
    expect(CPU or len(one.kernels) < len(many.kernels), "no fewer kernels")
    return f"{same(found, loop(), 2e-3)}; {len(many.kernels)} -> {len(one.kernels)} kernels"


@check("products", "one-backward-for-all-losses", cpu=True)
def _() -> str:
    shared, a, b, x = net(), nn.Linear(8, 1).to(DEVICE), nn.Linear(8, 1).to(DEVICE), normal(32, 64)

    def losses() -> tuple[torch.Tensor, torch.Tensor]:
        shared.zero_grad(set_to_none=True)
        hidden = shared(x)
        return a(hidden).square().mean(), b(hidden).square().mean()

    def grads() -> list[torch.Tensor]:
        return [p.grad.clone() for p in shared.parameters()]

    loss_a, loss_b = losses()
    w = shared[-1].weight
    torch.autograd.grad(loss_a, w, retain_graph=True)
    (loss_a + loss_b).backward()
    found = grads()
    loss_a, loss_b = losses()
    loss_a.backward(retain_graph=True)
    loss_b.backward()
    return same(found, grads(), 1e-3)


@check("products", "sizes-in-a-cache-written-in-place", cpu=True)
def _() -> str:
    cache, history, keys = torch.zeros(2, 4, 8, 16, device=DEVICE), torch.zeros(2, 5, 3, device=DEVICE), []
    for position in range(8):
        key = normal(2, 4, 16, seed=position)
        cache[:, :, position] = key
        keys.append(key)
    same(cache, torch.stack(keys, 2), 0)
    wanted = history
    for turn in range(7):
        frame = normal(2, 3, seed=turn)
        wanted = torch.cat([wanted[:, 1:], frame[:, None]], dim=1)
        history[:, turn % 5] = frame
    order = (torch.arange(5, device=DEVICE) + 7) % 5
    return same(history[:, order], wanted, 0)


@check("products", "torchvision-nms", cpu=True)
def _() -> str:
    ops = needed("torchvision.ops")
    corner = normal(200, 2).abs()
    boxes = torch.cat([corner, corner + 0.5], -1)
    try:
        kept = ops.nms(boxes, normal(200, seed=1), 0.5)
    except RuntimeError as error:
        if "custom C++ ops" in str(error):
            raise Skipped(str(error)[:60]) from None
        raise
    return f"{len(kept)} boxes kept"


@check("products", "torchao-float8")
def _() -> str:
    ao = needed("torchao.quantization")
    model, x = net(256).bfloat16(), normal(64, 256, dtype=torch.bfloat16)
    model[-1] = nn.Linear(256, 256).cuda().bfloat16()
    wanted = model(x)
    ao.quantize_(model, ao.Float8DynamicActivationFloat8WeightConfig())
    text = same(model(x).float(), wanted.float(), 0.2)
    training = needed("torchao.float8").convert_to_float8_training(net(256)[:4])
    return f"{text}; {type(training[0]).__name__}"


# ── the update ────────────────────────────────────────────────────────────────────────────────────────────────────────

WITH_LISTS = (
    "Adam", "AdamW", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
)  # fmt: skip


def updated(kind: str, steps: int = 3, groups: Any = None, **options: Any) -> tuple[list[torch.Tensor], Seen]:
    """Weights after some steps of this optimizer with some of its options, and what one more step runs."""
    model = net(depth=6)
    optimizer = getattr(torch.optim, kind)(groups(model) if groups else model.parameters(), lr=1e-2, **options)
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
    weights = [p.detach().clone() for p in model.parameters()]
    return weights, seen(optimizer.step, warm=1)


for kind in WITH_LISTS:

    @check("updates", f"foreach-{kind}", cpu=True)
    def _(kind: str = kind) -> str:
        (found, one), (wanted, many) = updated(kind, foreach=True), updated(kind, foreach=False)
        expect(CPU or len(one.kernels) < len(many.kernels), f"{len(many.kernels)} -> {len(one.kernels)} kernels")
        return f"{same(found, wanted, 1e-3)}; {len(many.kernels)} -> {len(one.kernels)} kernels"


for kind in ("Adam", "AdamW", "SGD"):

    @check("updates", f"fused-{kind}", cpu=True)
    def _(kind: str = kind) -> str:
        (found, one), (wanted, many) = updated(kind, fused=True), updated(kind, foreach=True)
        expect(CPU or len(one.kernels) <= len(many.kernels), f"{len(many.kernels)} -> {len(one.kernels)} kernels")
        return f"{same(found, wanted, 1e-3)}; foreach {len(many.kernels)} -> fused {len(one.kernels)} kernels"


@check("updates", "few-groups", cpu=True)
def _() -> str:
    def few(model: nn.Module) -> list[dict[str, Any]]:
        decayed = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        return [{"params": decayed}, {"params": plain, "weight_decay": 0}]

    def many(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [p], "weight_decay": 0.01 if p.ndim > 1 else 0} for p in model.parameters()]

    (found, one), (wanted, plenty) = updated("AdamW", groups=few, fused=True), updated("AdamW", groups=many, fused=True)
    expect(CPU or len(one.kernels) < len(plenty.kernels), "no fewer kernels")
    return f"{same(found, wanted, 1e-3)}; {len(plenty.kernels)} -> {len(one.kernels)} kernels"


@check("updates", "foreach_lerp-averages", cpu=True)
def _() -> str:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model, decay = net(depth=6), 0.9
    averages = [normal(*p.shape, seed=3) for p in model.parameters()]
    wanted = [decay * a + (1 - decay) * p.detach() for a, p in zip(averages, model.parameters(), strict=True)]
    parameters = model.parameters()
    with torch.no_grad(): torch._foreach_lerp_(averages, list(parameters), 1 - decay)  # fmt: skip  # noqa: E701
    text = same(averages, wanted)
    listed = list(model.parameters())

    @torch.no_grad()
    def loop() -> None:
        for a, p in zip(averages, listed, strict=True):
            a.mul_(decay).add_(p, alpha=1 - decay)

    many, one = seen(loop), seen(torch.no_grad()(lambda: torch._foreach_lerp_(averages, listed, 1 - decay)))
    expect(CPU or len(one.kernels) < len(many.kernels), "no fewer kernels")
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    averaged.update_parameters(model)
    also = seen(lambda: averaged.update_parameters(model))
    return f"{text}; {len(many.kernels)} -> {len(one.kernels)} kernels; AveragedModel {len(also.kernels)}"


@check("updates", "norms-and-clipping", cpu=True)
def _() -> str:
    model = net(depth=6)
    loss_of(model(normal(32, 64)), normal(32, 8)).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=True)
    wanted = torch.cat([g.flatten() for g in grads]).norm()
    same(total, wanted), same(torch.nn.utils.get_total_norm(grads), wanted)
    same(torch.stack(torch._foreach_norm(grads)), torch.stack([g.norm() for g in grads]))
    clip = lambda foreach: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)  # noqa: E731
    many, one = seen(lambda: clip(False)), seen(lambda: clip(True))
    text = "" if CPU else no_wait(lambda: clip(True))
    expect(CPU or len(one.kernels) < len(many.kernels), "no fewer kernels")
    return f"{same([p.grad for p in model.parameters()], [g * (1e-3 / wanted) for g in grads], 1e-2)}; {len(many.kernels)} -> {len(one.kernels)} kernels; {text}"


@check("updates", "unused-gradients", cpu=True)
def _() -> str:
    backbone, critic = net(), nn.Linear(8, 1).to(DEVICE)
    model = nn.Sequential(backbone, critic)
    optimizer = torch.optim.SGD(critic.parameters(), lr=1.0)
    model(normal(4, 64)).sum().backward()
    taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in model.named_parameters() if p.grad is not None and id(p) not in taken]
    before = seen(lambda: model(normal(4, 64)).sum().backward())
    backbone.requires_grad_(False)
    after = seen(lambda: model(normal(4, 64)).sum().backward())
    expect(len(missing) == 6 and (CPU or len(after.kernels) < len(before.kernels)), f"{missing}")
    return f"{len(missing)} named; {len(before.kernels)} -> {len(after.kernels)} kernels once frozen"


@check("updates", "deterministic-and-anomaly-off", cpu=True)
def _() -> str:
    torch.autograd.set_detect_anomaly(True)
    model, x = net(), normal(32, 64)
    step = lambda: model(x).sum().backward()  # noqa: E731
    before = seen(step)
    torch.autograd.set_detect_anomaly(False)
    after = seen(step)
    expect(CPU or len(after.copies) < len(before.copies), "no fewer read-backs")
    return f"{len(before.kernels)} kernels, {len(before.copies)} copies -> {len(after.kernels)}, {len(after.copies)}"


# ── torch.compile ─────────────────────────────────────────────────────────────────────────────────────────────────────


@check("compiled", "reduce-overhead-inference", cpu=True)
def _() -> str:
    plain, x = net(), normal(32, 64)
    model = compile_(plain, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            y = model(x)
        text = same(y, plain(x), 2e-3)
        if CPU:
            return text
        kept = y.clone()
        model(normal(32, 64, seed=9))
        try:
            overwritten = "overwritten" if off_by(y, kept) > 0.01 else "not overwritten"
        except RuntimeError as error:
            overwritten = f"reading it raises: {str(error)[:60]}"
        one = seen(lambda: model(x))
    expect(one.calls["cudaGraphLaunch"] == 1, f"no graph: {one.calls}")
    return f"{text}; {len(one.kernels)} kernels in a graph; the old y is {overwritten}"


def compiled_steps(
    make: Any, *, model_too: bool = True, changing: bool = False, mode: str | None = "reduce-overhead"
) -> str:
    """Training with a compiled model and a compiled update, as printed, against plain steps."""
    plain, raw = net(), net()
    optimizer, other = make(raw, True), make(plain, False)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = compile_(raw, mode=mode) if model_too else raw
    update = compile_(optimizer.step, mode=mode)
    schedules = (
        [torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + i)) for o in (optimizer, other)] if changing else []
    )
    losses, wanted = [], []
    compiled_after = 0
    for i, (x, y) in enumerate(batches(8)):
        if i == 4:
            compiled_after = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        losses.append(loss.detach().clone())
        loss.backward()
        update()
        other.zero_grad()
        loss = loss_of(plain(x), y)
        wanted.append(loss.detach())
        loss.backward()
        other.step()
        for schedule in schedules:
            schedule.step()
    text = same(losses, wanted, 1e-2)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    expect(graphs == compiled_after, f"compiles again: {compiled_after} -> {graphs} graphs")
    skips = dict(torch._dynamo.utils.counters["inductor"]).get("cudagraph_skips", 0)
    x, y = batches(1)[0]

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        update()

    if CPU:
        return f"{text}; {graphs} graphs"
    one, alone = seen(step), seen(update)
    own = sum(n for name, n in one.calls.items() if "LaunchKernel" in name)
    return (
        f"losses {text}; {graphs} graphs, {skips} not as CUDA graphs; a step: {one.calls['cudaGraphLaunch']} graph "
        f"launches, {own} others, {len(one.kernels)} kernels; update: {alone.calls['cudaGraphLaunch']} graph launches, "
        f"{len(alone.kernels)} kernels"
    )


def graph_launches(text: str) -> tuple[int, int]:
    """Graph launches of the step and of the update."""
    return tuple(int(n) for n in re.findall(r"(\d+) graph launches", text.replace("graph \n", "graph ")))  # type: ignore[return-value]


for kind, options in {
    "AdamW": {},
    "AdamW-capturable": {"capturable": True},
    "SGD": {},
    "AdamW-fused": {"fused": True},
}.items():

    @check("compiled", f"reduce-overhead-training-{kind}", cpu=True)
    def _(kind: str = kind.split("-")[0], options: Any = options) -> str:
        text = compiled_steps(
            lambda m, ours: getattr(torch.optim, kind)(m.parameters(), lr=1e-2, **(options if ours else {}))
        )
        expect(CPU or graph_launches(text) == (3, 1), f"not three graphs a step: {text}")
        return text


@check("compiled", "reduce-overhead-training-AdamW-lr-tensor-on-gpu")
def _() -> str:
    return compiled_steps(
        lambda m, ours: torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2, device="cuda") if ours else 1e-2),
        changing=True,
    )


@check("compiled", "blocks-compiled", cpu=True)
def _() -> str:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + F.gelu(self.inner(self.norm(x)).float(), approximate="tanh").to(x.dtype) * 0.5

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, x = Model().to(DEVICE), normal(128, 64)
    with torch.no_grad():
        wanted, before = model(x), seen(lambda: model(x))
        if CPU:
            for block in model.layers:
                block.compile(backend="aot_eager")
        else:
            for block in model.layers: block.compile()  # fmt: skip  # noqa: E701
        text, after = same(model(x), wanted, 2e-3), seen(lambda: model(x))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    expect(CPU or len(after.kernels) < len(before.kernels), "no fewer kernels")
    expect(graphs == 1, f"{graphs} graphs instead of one for all blocks")
    return f"{text}; {len(before.kernels)} -> {len(after.kernels)} kernels, {graphs} graph"


class Decoder(nn.Module):
    """Attention of one token over a cache: two buffers, or both halves of one."""

    def __init__(self, two: bool) -> None:
        super().__init__()
        self.two, shape = two, (2, 8, 1024, 64)
        if two:
            self.register_buffer("keys", torch.zeros(shape, dtype=torch.bfloat16))
            self.register_buffer("values", torch.zeros(shape, dtype=torch.bfloat16))
        else:
            self.register_buffer("kept", torch.zeros((2, *shape), dtype=torch.bfloat16))

    def forward(self, q: Any, k: Any, v: Any, place: Any, mask: Any) -> torch.Tensor:
        if self.two:
            self.keys[:, :, place] = k
            self.values[:, :, place] = v
            return scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        self.kept[0, :, :, place] = k
        self.kept[1, :, :, place] = v
        return scaled_dot_product_attention(q, self.kept[0], self.kept[1], attn_mask=mask)


@check("compiled", "cache-in-two-buffers")
def _() -> str:
    found = {}
    q, k, v = heads(2, 8, 1), heads(2, 8, 1, seed=1), heads(2, 8, 1, seed=2)
    place, mask = torch.tensor([5], device="cuda"), torch.arange(1024, device="cuda")[None, None, None] < 6
    for two in (True, False):
        torch._dynamo.reset()
        plain, raw = Decoder(two).cuda(), Decoder(two).cuda()
        model = torch.compile(raw)
        with torch.no_grad():
            text = same(model(q, k, v, place, mask).float(), plain(q, k, v, place, mask).float(), 0.02)
            one = seen(lambda model=model: model(q, k, v, place, mask))
        found[two] = one
    copying = found[True].named("triton.*(copy|clone)")
    expect(not copying, f"two buffers are copied: {copying}")
    return (
        f"{text}; two buffers: {[n[:40] for n in found[True].kernels if 'triton' in n]}, "
        f"{sum(found[True].kernel_ns.values()) / 1000:.0f} us; one: {[n[:40] for n in found[False].kernels if 'triton' in n]}, "
        f"{sum(found[False].kernel_ns.values()) / 1000:.0f} us"
    )


@check("compiled", "mark_dynamic", cpu=True)
def _() -> str:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain = net()
    model = compile_(plain)
    with torch.no_grad():
        for n in (17, 33, 50, 71):
            x = normal(n, 64)
            torch._dynamo.mark_dynamic(x, 0)
            text = same(model(x), plain(x), 2e-3)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    expect(graphs == 1, f"{graphs} graphs")
    return f"{text}; one graph for four sizes"


@check("compiled", "settings-exist", cpu=True)
def _() -> str:
    import torch._inductor.config as inductor

    expect(hasattr(inductor, "_micro_pipeline_tp") and hasattr(inductor, "shape_padding"), "no such settings")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.enabled = True
    return f"shape_padding is {inductor.shape_padding} by default, _micro_pipeline_tp {inductor._micro_pipeline_tp}"


@check("compiled", "compiled-model-in-channels_last", cpu=True)
def _() -> str:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 16, 1)).to(DEVICE).eval()
    x = normal(4, 16, 32, 32)
    with torch.no_grad():
        wanted = model(x)
        model = model.to(memory_format=torch.channels_last)
        model = compile_(model)
        return same(model(x.to(memory_format=torch.channels_last)), wanted, 5e-3)


for place, kind in enumerate(WITH_LISTS):

    @check(("optimizers", "optimizers-2")[place % 2], f"compiled-update-{kind}-lr-tensor", cpu=True)
    def _(kind: str = kind) -> str:
        return compiled_steps(
            lambda m, ours: getattr(torch.optim, kind)(m.parameters(), lr=torch.tensor(1e-2) if ours else 1e-2),
            model_too=False,
            changing=True,
            mode=None,
        )


# ── transformers ──────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def llama(layers: int = 2) -> Any:
    """A small language model."""
    transformers = needed("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=256, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(DEVICE).eval()


def prompt(batch: int = 2) -> dict[str, Any]:
    """A text for generate, and its other arguments."""
    ids = (torch.arange(batch * 8).view(batch, 8) * 37 % 490 + 3).to(DEVICE)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


GREEDY: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


@check("transformers", "StaticCache-own-loop", cpu=True)
def _() -> str:
    model, ids = llama(), prompt()["input_ids"]
    transformers = needed("transformers")
    config, n = model.config, 32
    cache = transformers.StaticCache(config, max_cache_len=n)
    with torch.no_grad():
        out = model(ids, past_key_values=cache, use_cache=True)
        last = out.logits[:, -1:].argmax(-1)
        out = model(last, past_key_values=cache, use_cache=True)
        wanted = model(torch.cat([ids, last], 1)).logits[:, -1]
    return same(out.logits[:, -1], wanted, 2e-3)


@check("transformers", "generate-static-cache", cpu=True)
def _() -> str:
    model, kw = llama(), prompt()
    wanted = model.generate(**kw, **GREEDY)
    found = model.generate(**kw, **GREEDY, cache_implementation="static")
    expect(torch.equal(found, wanted), "other tokens")
    one, many = (
        seen(lambda o=o: model.generate(**kw, **GREEDY, **o), warm=1) for o in ({"cache_implementation": "static"}, {})
    )
    return f"equal tokens; {one.calls['cudaGraphLaunch']} graph launches for 12 tokens, {len(many.kernels)} -> {len(one.kernels)} kernels"


@check("transformers", "generate-assistant_model", cpu=True)
def _() -> str:
    model, draft, kw = llama(), llama(1), prompt(1)
    wanted = model.generate(**kw, **GREEDY)
    found = model.generate(**kw, **GREEDY, assistant_model=draft)
    expect(torch.equal(found, wanted), "other tokens")
    try:
        model.generate(**prompt(2), **GREEDY, assistant_model=draft)
        return "equal tokens; takes two sequences as well, which the text denies"
    except ValueError as error:
        return f"equal tokens; two sequences: {str(error)[:60]}"


@check("transformers", "compiled-forward-with-static-cache", cpu=True)
def _() -> str:
    model, kw = copy.deepcopy(llama()), prompt()
    wanted = model.generate(**kw, **GREEDY)
    model.forward = compile_(model.forward, mode="reduce-overhead")  # with a static cache
    for _ in range(2):
        found = model.generate(**kw, **GREEDY, cache_implementation="static")
    expect(torch.equal(found, wanted), "other tokens")
    one = seen(lambda: model.generate(**kw, **GREEDY, cache_implementation="static"), warm=0)
    return f"equal tokens; {one.calls['cudaGraphLaunch']} graph launches for 12 tokens"


@check("transformers", "own-attention-function-for-shared-heads", cpu=True)
def _() -> str:
    transformers = needed("transformers")
    from transformers.masking_utils import sdpa_mask

    ran = []

    def function(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        B, H, _S, D = key.shape
        if not torch.compiler.is_compiling():
            ran.append((query.shape[2], attention_mask is not None))
        if query.shape[2] == 1 and attention_mask is not None:
            y = scaled_dot_product_attention(
                query.view(B, H, -1, D), key, value, attn_mask=attention_mask, scale=scaling
            ).view_as(query)
        else:
            causal = attention_mask is None and query.shape[2] > 1
            y = scaled_dot_product_attention(
                query, key, value, attn_mask=attention_mask, scale=scaling, is_causal=causal, enable_gqa=True
            )
        return y.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("shared", function)
    transformers.AttentionMaskInterface.register("shared", sdpa_mask)
    model, kw = copy.deepcopy(llama()), prompt()
    kw["attention_mask"][0, :2] = 0
    wanted = model.generate(**kw, **GREEDY)
    model.set_attn_implementation("shared")
    texts = []
    for options in (
        {},
        {"cache_implementation": "static", "disable_compile": True},
        {"cache_implementation": "static"},
    ):
        if CPU and len(texts) == 2:
            continue
        found = model.generate(**kw, **GREEDY, **options)
        texts.append(torch.equal(found, wanted))
    expect(all(texts), f"equal tokens with dynamic, static, compiled static: {texts}")
    return f"equal tokens {texts}; one query with a mask: {(1, True) in ran}"


@check("transformers", "logits_to_keep-and-experts", cpu=True)
def _() -> str:
    transformers = needed("transformers")
    model, ids = llama(), prompt()["input_ids"]
    with torch.no_grad():
        same(model(input_ids=ids, logits_to_keep=1).logits[:, 0], model(ids).logits[:, -1], 2e-3)
        texts = {}
        for dtype in (torch.bfloat16, torch.float32):
            config = transformers.MixtralConfig(
                vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=2, num_local_experts=4,
            )  # fmt: skip
            torch.manual_seed(0)
            mixtral = transformers.MixtralForCausalLM(config).to(DEVICE, dtype).eval()
            tokens = torch.arange(24, device=DEVICE).view(2, 12)
            mixtral.set_experts_implementation("eager")
            wanted = mixtral(tokens).logits.float()
            before = seen(lambda mixtral=mixtral, tokens=tokens: mixtral(tokens))
            mixtral.set_experts_implementation("grouped_mm")
            text = same(mixtral(tokens).logits.float(), wanted, 0.05)
            after = seen(lambda mixtral=mixtral, tokens=tokens: mixtral(tokens))
            texts[str(dtype)[6:]] = f"{text}, {len(before.kernels)} -> {len(after.kernels)} kernels"
    return f"{texts}"


@check("transformers", "encoder-once", cpu=True)
def _() -> str:
    transformers = needed("transformers")
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=100, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).to(DEVICE).eval()
    input_ids, mask = torch.arange(16, device=DEVICE).view(2, 8) + 3, torch.ones(2, 8, dtype=torch.long, device=DEVICE)
    mask[1, 5:] = 0
    tokens = torch.arange(6, device=DEVICE).view(2, 3) + 3
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids, attention_mask=mask)  # before the loop
        found = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=tokens).logits
        return same(found, model(input_ids=input_ids, attention_mask=mask, decoder_input_ids=tokens).logits, 2e-3)


@check("transformers", "flash_attention_2-and-checkpointing", cpu=True)
def _() -> str:
    model = copy.deepcopy(llama())
    model.gradient_checkpointing_enable()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.gradient_checkpointing_disable()
    name = "activation_checkpointing_disable"
    text = f"warns {len(caught)}, has {name}: {hasattr(model, name)}"
    try:
        __import__("flash_attn")
    except ImportError:
        return f"{text}; flash_attn is not installed"
    half = model.bfloat16()
    wanted = half(prompt()["input_ids"]).logits.float()
    half.set_attn_implementation("flash_attention_2")
    return f"{text}; {same(half(prompt()['input_ids']).logits.float(), wanted, 0.05)}"


# ── one rank ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def ranked() -> Any:
    """torch.distributed with one rank."""
    import torch.distributed as dist

    backend = "gloo" if CPU else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
    return dist


@check("ranks", "graph-of-a-DistributedDataParallel-step")
def _() -> str:
    ranked()
    from torch.nn.parallel import DistributedDataParallel

    plain, raw, steps = net(), net(), batches(14)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model = DistributedDataParallel(raw, device_ids=[0])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
        for x, y in steps[:11]:
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    static_x, static_y = (t.clone() for t in steps[0])
    optimizer.zero_grad(set_to_none=True); g = torch.cuda.CUDAGraph()  # fmt: skip  # noqa: E702
    with torch.cuda.graph(g): loss = loss_of(model(static_x), static_y); loss.backward(); optimizer.step()  # fmt: skip  # noqa: E501, E701, E702
    losses, wanted = [], []
    for x, y in steps[11:]:
        static_x.copy_(x); static_y.copy_(y); g.replay()  # fmt: skip  # noqa: E702
        losses.append(loss.detach().clone())
    other = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for x, y in steps:
        other.zero_grad()
        loss = loss_of(plain(x), y)
        wanted.append(loss.detach())
        loss.backward()
        other.step()
    one = seen(g.replay)
    return f"{same(losses, wanted[11:], 1e-3)}; {len(one.kernels)} kernels in {one.calls['cudaGraphLaunch']} launch (one rank)"


@check("ranks", "DistributedDataParallel-options", cpu=True)
def _() -> str:
    dist = ranked()
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    x, plain = normal(32, 64), net()
    plain(x).sum().backward()
    wanted = [p.grad for p in plain.parameters()]
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True, static_graph=True)
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
    text = same([p.grad for p in model.parameters()], wanted, 2e-3)
    model = DistributedDataParallel(net(), bucket_cap_mb=25, gradient_as_bucket_view=True)
    with model.no_sync(): model(x).backward(torch.ones(32, 8, device=DEVICE))  # fmt: skip  # noqa: E701
    model.zero_grad()
    if CPU:
        return text
    model.register_comm_hook(dist.group.WORLD, default_hooks.bf16_compress_hook)
    model(x).sum().backward()
    return f"{text}; bf16 hook {same([p.grad for p in model.parameters()], wanted, 0.02)}"


@check("ranks", "one-sum-of-all-gradients", cpu=True)
def _() -> str:
    dist, model = ranked(), net()
    model(normal(32, 64)).sum().backward()
    parameters, wanted = list(model.parameters()), [p.grad.clone() for p in model.parameters()]
    grads = [p.grad for p in parameters]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat); flat /= dist.get_world_size()  # fmt: skip  # noqa: E702
    parts = flat.split([grad.numel() for grad in grads])
    torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads)])  # noqa: B905
    return same([p.grad for p in parameters], wanted)


@check("ranks", "fully_shard-of-blocks", cpu=True)
def _() -> str:
    ranked()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x).relu()
            return x

    torch.manual_seed(0)
    model = Model().to(DEVICE)
    plain, x = copy.deepcopy(model), normal(32, 64)
    mesh = init_device_mesh(DEVICE, (1,))
    for block in model.blocks: fully_shard(block, mesh=mesh, reshard_after_forward=False)  # fmt: skip  # noqa: E701
    fully_shard(model, mesh=mesh)  # and then the optimizer
    for block, next_block in zip(model.blocks, model.blocks[1:], strict=False):
        block.set_modules_to_forward_prefetch([next_block])
    text = same(model(x), plain(x), 2e-3)
    model.set_requires_gradient_sync(False)
    model(x).sum().backward()
    model.set_requires_gradient_sync(True)
    model(x).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    optimizer.step()
    return text


@check("ranks", "async_save", cpu=True)
def _() -> str:
    ranked()
    import torch.distributed.checkpoint  # noqa: F401

    state, path = {"a": normal(64, 64)}, tempfile.mkdtemp()
    torch.distributed.checkpoint.async_save(state, checkpoint_id=path).result()
    found = {"a": torch.zeros(64, 64, device=DEVICE)}
    torch.distributed.checkpoint.load(found, checkpoint_id=path)
    return same(found["a"], state["a"], 0)


# ── times ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@check("times", "graph-against-eager")
def _() -> str:
    model, x = net(256, 12), normal(32, 256)
    with torch.no_grad():
        model(x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            model(x)
        return faster(lambda: model(x), g.replay)


@check("times", "fused-and-foreach-AdamW")
def _() -> str:
    steps = {}
    for name, options in {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}.items():
        model = net(512, 24)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        model(normal(8, 512)).sum().backward()
        steps[name] = optimizer.step
    return f"foreach {faster(steps['loop'], steps['foreach'])}; fused {faster(steps['foreach'], steps['fused'])}"


@check("times", "input-copied-on-a-side-stream")
def _() -> str:
    x, w, side = torch.randn(64, 1 << 20).pin_memory(), normal(8192, 8192, dtype=torch.bfloat16), torch.cuda.Stream()

    def compute() -> None:
        for _ in range(4):
            w @ w

    def plain() -> None:
        x.to("cuda", non_blocking=True)
        compute()

    def ahead() -> None:
        with torch.cuda.stream(side):
            next_x = x.to("cuda", non_blocking=True)
        compute()
        torch.cuda.current_stream().wait_stream(side)  # before use
        next_x.record_stream(torch.cuda.current_stream())

    return faster(plain, ahead)


@check("times", "flex_attention-against-a-dense-mask")
def _() -> str:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    S = 4096
    q, k, v = (heads(2, 16, S, seed=i) for i in range(3))
    part = torch.arange(S, device="cuda") // 512
    mask = create_block_mask(lambda b, h, q, k: part[q] == part[k], None, None, S, S)
    flex, dense = torch.compile(flex_attention), part[:, None] == part
    return faster(
        lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense), lambda: flex(q, k, v, block_mask=mask)
    )


@check("times", "attention-fused-and-causal")
def _() -> str:
    q, k, v = (heads(2, 16, 4096, seed=i) for i in range(3))
    keep = torch.ones(4096, 4096, dtype=torch.bool, device="cuda").tril()
    hand = lambda: (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v  # noqa: E731
    fused = faster(hand, lambda: scaled_dot_product_attention(q, k, v))
    causal = faster(
        lambda: scaled_dot_product_attention(q, k, v, attn_mask=keep),
        lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    return f"fused {fused}; is_causal for a mask {causal}"


@check("times", "shared-heads-against-repeated")
def _() -> str:
    B, H, D, S = 16, 8, 128, 4096
    q, k, v = heads(B, 32, 1, D), heads(B, H, S, D, seed=1), heads(B, H, S, D, seed=2)
    mask = torch.arange(S, device="cuda")[None, None, None].expand(B, 1, 1, S) < 4000
    plain = lambda: scaled_dot_product_attention(  # noqa: E731
        q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1), attn_mask=mask
    )
    gqa = lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)  # noqa: E731
    rows = lambda: scaled_dot_product_attention(q.view(B, H, -1, D), k, v, attn_mask=mask).view_as(q)  # noqa: E731
    return f"as rows {faster(plain, rows)}; enable_gqa {ms(gqa):.3f} ms"


@check("times", "grouped_mm-against-a-loop")
def _() -> str:
    experts, x = 32, normal(8192, 1024, dtype=torch.bfloat16)
    weights = normal(experts, 1024, 1024, seed=1, dtype=torch.bfloat16)
    expert = torch.randint(0, experts, (8192,), device="cuda")

    def loop() -> None:
        y = torch.empty_like(x)
        for e in range(experts):
            rows = (expert == e).nonzero().flatten()
            y[rows] = x[rows] @ weights[e]

    def once() -> torch.Tensor:
        order = expert.argsort()
        ends = torch.bincount(expert, minlength=experts).cumsum(0, dtype=torch.int32)
        return torch.nn.functional.grouped_mm(x[order], weights, offs=ends)

    return faster(loop, once)


@check("times", "TF32-bfloat16-and-channels_last")
def _() -> str:
    a = normal(4096, 4096)
    plain = ms(lambda: a @ a)
    torch.set_float32_matmul_precision("high")
    tf32 = ms(lambda: a @ a)
    torch.set_float32_matmul_precision("highest")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = ms(lambda: a @ a)
    expect(plain > 1.5 * tf32 > 1.5 * half * 0.9, f"fp32 {plain:.2f}, TF32 {tf32:.2f}, bfloat16 {half:.2f} ms")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(128, 128, 3, padding=1) for _ in range(4))).cuda().bfloat16()
    x = normal(32, 128, 56, 56, dtype=torch.bfloat16)
    last, y = copy.deepcopy(model).to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return f"fp32 {plain:.2f}, TF32 {tf32:.2f}, bfloat16 {half:.2f} ms; channels_last {faster(lambda: model(x), lambda: last(y))}"


@check("times", "channels_last_3d")
def _() -> str:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv3d(64, 64, 3, padding=1) for _ in range(3))).cuda().bfloat16()
    x = normal(4, 64, 16, 56, 56, dtype=torch.bfloat16)
    last, y = copy.deepcopy(model).to(memory_format=torch.channels_last_3d), x.to(memory_format=torch.channels_last_3d)
    return faster(lambda: model(x), lambda: last(y))


@check("times", "Conv1d-in-channels_last")
def _() -> str:
    k1, k5 = nn.Conv1d(256, 256, 1).cuda().bfloat16(), nn.Conv1d(256, 256, 5).cuda().bfloat16()
    x = normal(64, 256, 2000, dtype=torch.bfloat16)
    rows, linear = x.transpose(1, 2).contiguous(), nn.Linear(256, 256).cuda().bfloat16()
    conv = nn.Conv2d(256, 256, (1, 5)).cuda().bfloat16().to(memory_format=torch.channels_last)
    y = x.unsqueeze(2).to(memory_format=torch.channels_last)
    return f"Linear {faster(lambda: k1(x), lambda: linear(rows))}; Conv2d {faster(lambda: k5(x), lambda: conv(y))}"


@check("times", "rows-and-topk")
def _() -> str:
    x, index = normal(100_000, 64, grad=True), torch.randint(0, 100_000, (500_000,), device="cuda")
    picked = lambda how: torch.autograd.grad(how().sum(), x)  # noqa: E731
    rows = faster(lambda: picked(lambda: x[index]), lambda: picked(lambda: x.index_select(0, index)))
    scores = normal(512, 50_000)
    top = faster(lambda: scores.argsort(descending=True)[..., :20], lambda: scores.topk(20))
    return f"index_select {rows}; topk {top}"


@check("times", "LSTM-against-cells")
def _() -> str:
    lstm, cell, x = nn.LSTM(256, 256, batch_first=True).cuda(), nn.LSTMCell(256, 256).cuda(), normal(32, 64, 256)

    def loop() -> None:
        state = (torch.zeros(32, 256, device="cuda"),) * 2
        for t in range(64):
            state = cell(x[:, t], state)

    return faster(loop, lambda: lstm(x))


@check("times", "cross_entropy-in-16-bits")
def _() -> str:
    scores, labels = (
        normal(8192, 32_000, dtype=torch.bfloat16, grad=True),
        torch.randint(0, 32_000, (8192,), device="cuda"),
    )
    loss = lambda s: torch.autograd.grad(F.cross_entropy(s, labels), scores)  # noqa: E731
    return faster(lambda: loss(scores.float()), lambda: loss(scores))


@check("times", "sums-instead-of-einsum")
def _() -> str:
    a, b = normal(256, 1000, 64), normal(256, 1000, 64, seed=1)
    u, v = normal(100_000, 32, 1), normal(100_000, 1, 32, seed=1)
    summed = faster(lambda: torch.einsum("bnd,bnd->bn", a, b), lambda: (a * b).sum(-1))
    return f"sum {summed}; outer {faster(lambda: torch.bmm(u, v), lambda: u * v)}"


@check("times", "fft-of-a-good-length")
def _() -> str:
    fft, length = good_length, 16_375  # 2 * length - 1 is a prime number
    x, filter = normal(256, length), normal(length, seed=1)  # noqa: A001
    n, odd = fft(2 * length - 1), 2 * length - 1
    call = lambda n: torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(filter, n), n)[..., :length]  # noqa: E731
    return f"{odd} -> {n}: {faster(lambda: call(odd), lambda: call(n))}"


@check("times", "compiled-chain-and-branches-on-streams")
def _() -> str:
    x = normal(4096, 4096, dtype=torch.bfloat16)
    chain = lambda x: F.gelu(x * 2 + 1, approximate="tanh").square() * 0.5 + x  # noqa: E731
    step = torch.compile(chain)
    fused = faster(lambda: chain(x), lambda: step(x))
    small, side = [normal(512, 512, seed=i) for i in range(2)], torch.cuda.Stream()

    def alone() -> None:
        for m in small:
            for _ in range(20):
                m = m @ m / 100  # noqa: PLW2901

    def beside() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            m = small[1]
            for _ in range(20):
                m = m @ m / 100
        m = small[0]
        for _ in range(20):
            m = m @ m / 100
        torch.cuda.current_stream().wait_stream(side)

    def captured(call: Any) -> Any:
        side.wait_stream(torch.cuda.current_stream())
        call()
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            call()
        return g.replay

    return f"chain {fused}; parallel branches of a graph {faster(captured(alone), captured(beside))}"


# ── run ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_here(checks: list[Check]) -> list[str]:
    """Runs checks in this process, one after the other; some in a copy of it."""
    lines = []
    for one in checks:
        if one.group in FORKED and not CPU:
            child = os.fork()
            if child == 0:
                run_here([one._replace(group="graphs")])
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                print(f"FAIL {one.group}/{one.name} the process ended", flush=True)
            continue
        name = f"{one.group}/{one.name}"
        print(f"at {name}", flush=True)
        began = time.perf_counter()
        torch.manual_seed(0)
        try:
            if CPU and not one.cpu:
                raise Skipped("needs a GPU")
            line = f"ok {name} {one.run()}"
            sync()
        except Skipped as reason:
            line = f"skip {name} {reason}"
        except Exception as error:  # noqa: BLE001
            frames, trace = [], error.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code.co_filename == __file__:
                    frames.append(str(trace.tb_lineno))
                trace = trace.tb_next
            line = f"FAIL {name} {type(error).__name__}: {str(error)[:500]} (lines {', '.join(frames[1:])})"
        line = f"{' '.join(line.split())} [{time.perf_counter() - began:.1f} s]"
        lines.append(line)
        print(line, flush=True)
    return lines


def follow(group: str, child: subprocess.Popen[str], lines: list[str]) -> None:
    """Prints the results of a group as they come; a failure if it ends too soon."""
    at = group
    for text in child.stdout or ():
        line = text.rstrip("\n")
        if line.startswith("at "):
            at = line[3:]
        elif line.startswith(("ok ", "FAIL ", "skip ")):
            lines.append(line)
            print(line, flush=True)
            at = ""
    if child.wait() != 0:
        lines.append(f"FAIL {at or group} the process ended with {child.returncode}; checks behind it did not run")
        print(lines[-1], flush=True)


def run_apart(began: float) -> list[str]:
    """Runs each group in a process of its own, those of one wave side by side."""
    lines: list[str] = []
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else Path(tempfile.mkdtemp())
    for wave, deadline in zip(WAVES, DEADLINES_S, strict=True):
        with (out / f"snippets_{wave[0]}.log").open("w") as log:
            children = {
                group: subprocess.Popen(
                    [sys.executable, __file__, "--group", group], stdout=subprocess.PIPE, stderr=log, text=True
                )
                for group in wave
            }
            threads = [threading.Thread(target=follow, args=(group, child, lines)) for group, child in children.items()]
            for thread in threads:
                thread.start()
            for thread, child in zip(threads, children.values(), strict=True):
                thread.join(max(began + deadline - time.perf_counter(), 0.1))
                if thread.is_alive():
                    child.kill()
                    thread.join(5)
    return lines


def main() -> None:
    """Runs all checks, or some."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="what works without a GPU")
    parser.add_argument("--group", choices=[group for wave in WAVES for group in wave])
    parser.add_argument("--only", help="checks with this in their names")
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    options = parser.parse_args()
    chosen = [c for c in CHECKS if options.group in (None, c.group) and (options.only or "") in f"{c.group}/{c.name}"]
    if options.list:
        print("\n".join(f"{c.group}/{c.name}" for c in chosen))
        return
    if options.group or options.only or CPU:
        lines = run_here(chosen)
    else:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {len(CHECKS)} checks", flush=True)
        lines = run_apart(began)
    if options.group is None:
        ended = Counter(line.split()[0] for line in lines)
        lines.append(f"{len(CHECKS)} checks, {dict(ended)}, {time.perf_counter() - began:.0f} s")
        print(lines[-1], flush=True)
        if os.environ.get("OUT"):
            Path(os.environ["OUT"], "snippets.txt").write_text("\n".join(lines) + "\n")
    # Process groups and CUDA graphs may wait for each other at the end of the interpreter.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
