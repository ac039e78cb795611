"""The same programs timed without a profiler, and recorded with torch.profiler as little and as much as it can.

    python3 captures/profiler_overhead.py OUT

| program | what it does |
|---|---|
| `decoder` | training steps of a small bfloat16 decoder, bound by launches |
| `tokenizer` | a small product behind a tokenizer in pure Python: thousands of calls of functions a step |

Leaves `PROGRAM_plain.json` (no stacks, shapes or memory), `PROGRAM_stacks.json` (all three) and `times.json` in OUT:
nanoseconds of each step by the host's clock, the wait for the GPU included, without a profiler and under both. What the
stacks cost is the difference. Needs python3 with torch; without a GPU it tries itself on the CPU.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import torch
from common import CUDA, DEVICE, synchronize
from planted.parts import HALF, language_training, size, tensor

WARMUP, UNPROFILED, RECORDED = 10, 40, 3
WORDS = 300


def decoder() -> Callable[[], object]:
    """Training of a small decoder: 2 x 128 tokens."""
    return language_training(size(512, 64), size(4, 1), 2, size(128, 8), size(4096, 64))


def _piece(word: str) -> str:
    return word.strip(".,").lower()


def _known(word: str, vocabulary: dict[str, int]) -> int:
    return vocabulary.setdefault(_piece(word), len(vocabulary))


def tokenizer() -> Callable[[], object]:
    """A matrix product of counts by a tokenizer in Python."""
    weight = tensor(512, 512)
    text = " ".join(f"Word{number % 512}," for number in range(WORDS))
    vocabulary: dict[str, int] = {}

    def step() -> object:
        tokens = [_known(word, vocabulary) for word in text.split(" ")]
        counts = torch.bincount(torch.tensor(tokens), minlength=512).to(DEVICE, HALF)
        return counts @ weight

    return step


def timed(step: Callable[[], object], steps: int, profiler: torch.profiler.profile | None = None) -> list[int]:
    """Time of each step in ns, with synchronisation at its end."""
    clock = [perf_counter_ns()]
    for _ in range(steps):
        step()
        synchronize()
        clock.append(perf_counter_ns())
        if profiler is not None:
            profiler.step()
            clock[-1:] = [clock[-1], perf_counter_ns()]
    pairs = itertools.pairwise(clock) if profiler is None else zip(clock[0::2], clock[1::2], strict=False)
    return [end - begin for begin, end in pairs]


def recorded(step: Callable[[], object], target: Path, *, everything: bool) -> list[int]:
    """Records the steps, with all optional data or only operators and kernels."""
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CUDA else [])]
    schedule = torch.profiler.schedule(wait=0, warmup=2, active=RECORDED)
    with torch.profiler.profile(
        activities=activities, schedule=schedule, with_stack=everything, record_shapes=everything,
        profile_memory=everything, on_trace_ready=lambda done: done.export_chrome_trace(str(target)),
    ) as profiler:  # fmt: skip
        return timed(step, 2 + RECORDED, profiler)[2:]


def main() -> None:
    """Time and record both programs."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with torch.profiler.profile():  # the first profile of a process is slow to start
        torch.ones(1, device=DEVICE).add_(1)
        synchronize()
    times: dict[str, dict[str, list[int]]] = {}
    for make in (decoder, tokenizer):
        step, name = make(), make.__name__
        timed(step, WARMUP)
        times[name] = {
            "unprofiled_ns": timed(step, UNPROFILED),
            "plain_ns": recorded(step, out / f"{name}_plain.json", everything=False),
            "stacks_ns": recorded(step, out / f"{name}_stacks.json", everything=True),
        }
        times[name]["unprofiled_after_ns"] = timed(step, UNPROFILED)
    device = torch.cuda.get_device_name() if CUDA else "CPU"
    (out / "times.json").write_text(json.dumps({"torch": torch.__version__, "device": device, "programs": times}))


if __name__ == "__main__":
    main()
