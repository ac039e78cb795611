"""A transformer language model to profile: forward passes, or whole training steps, of one or more model sizes.

The model is the one of Stanford's CS336 assignments: RMSNorm, rotary position embedding, SwiGLU, attention written out,
an AdamW written out tensor by tensor. Weights and tokens are random, fp32, batch 4.

NVTX ranges: `warmup` (one a warm-up step) and `step` at the top, inside them `forward_pass`, `backward_pass` and
`optimizer_step`, inside a forward pass `self_attention` and `feed_forward` a layer, and inside the former
`scaled_dot_product_attention` > `computing_attention_scores`, `computing_softmax`, `final_matmul`; then `lm_head`, and
`loss` in training.

    python transformer_lm.py --size small --context 512 --mode train --warmup 2 --steps 3
    python transformer_lm.py --size small medium --context 128 256 512 1024 --mode forward train --timings timings.csv
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass
from pathlib import Path

import torch
from common import CUDA, DEVICE, PARTS, annotate, append_rows, now, parameter_count, recorded, synchronize

from warplens.workloads.settings import LM_BATCH, LM_SIZES
from warplens.workloads.transformer_lm import ReferenceAdamW, TransformerLM, cross_entropy

TIMING_COLUMNS = ("model", "context", "mode", "step", "forward_s", "backward_s", "optimizer_s", "step_s")
SIZES = {name: LM_SIZES[name] for name in ("tiny", "small", "medium", "large", "xl", "2.7B")}


@dataclass
class StepTiming:
    """Host seconds of one step; None for a phase that was not run or did not end."""

    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    step_s: float | None = None


class Workload:
    """One cell of the grid: a model, its tokens and, in training, its optimizer."""

    def __init__(self, size: str, context: int, mode: str, sync: str) -> None:
        torch.manual_seed(0)
        self.mode, self.sync = mode, sync
        with DEVICE:
            self.model = TransformerLM(SIZES[size], context, PARTS)
            self.tokens = torch.randint(SIZES[size].vocabulary, (LM_BATCH, context + 1))
        self.optimizer = ReferenceAdamW(self.model.parameters()) if mode == "train" else None
        self.phase = "forward_pass"

    def step(self) -> StepTiming:
        """Runs one step and times it.

        A phase is timed only where the GPU is waited for at its end, since anything else would time the enqueueing.
        With `sync="step"` the one wait is at the end of the step.

        Raises:
            torch.OutOfMemoryError: with the timing of what did end in its attribute `timing`.
        """
        timing = StepTiming()
        try:
            start = now()
            if self.optimizer is None:
                with torch.no_grad(), annotate("forward_pass"):
                    self.model(self.tokens[:, :-1])
                synchronize()
                timing.forward_s = timing.step_s = now() - start
            else:
                self._train(self.optimizer, timing)
                synchronize()
                timing.step_s = now() - start
        except torch.OutOfMemoryError as error:
            error.timing = timing  # type: ignore[attr-defined]
            raise
        return timing

    def _train(self, optimizer: ReferenceAdamW, timing: StepTiming) -> None:
        start = now()
        self.phase = "forward_pass"
        with annotate(self.phase):
            logits = self.model(self.tokens[:, :-1])
            with annotate("loss"):
                loss = cross_entropy(logits, self.tokens[:, 1:])
        timing.forward_s, start = self._phase_end(start)
        self.phase = "backward_pass"
        with annotate(self.phase):
            loss.backward()
        timing.backward_s, start = self._phase_end(start)
        self.phase = "optimizer_step"
        with annotate(self.phase):
            optimizer.step()
            optimizer.zero_grad()
        timing.optimizer_s, _ = self._phase_end(start)

    def _phase_end(self, start: float) -> tuple[float | None, float]:
        if self.sync == "step":
            return None, start
        synchronize()
        return now() - start, now()


def run(size: str, context: int, mode: str, options: argparse.Namespace) -> list[StepTiming]:
    """Runs one cell. A step that runs out of memory is the last one, reported without the phases that did not end."""
    workload = Workload(size, context, mode, options.sync)
    settled = options.warmup - options.recorded_warmup
    timings: list[StepTiming] = []
    aborted = ""
    try:
        for _ in range(settled):
            workload.step()
        with recorded():
            for _ in range(options.recorded_warmup):
                with annotate("warmup"):
                    workload.step()
            for _ in range(options.steps):
                with annotate("step"):
                    timings.append(workload.step())
    except torch.OutOfMemoryError as error:
        timings.append(error.timing)  # type: ignore[attr-defined]
        aborted = f", the last one aborted: out of memory in {workload.phase}"
    times = sorted(timing.step_s for timing in timings if timing.step_s is not None)
    median = f"{times[len(times) // 2] * 1e3:.3f} ms" if times else "none complete"
    memory = ""
    if CUDA:
        peak = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        memory = f", peak {peak[0] / 1e9:.2f} GB allocated, {peak[1] / 1e9:.2f} GB reserved"
    print(
        f"{size} ctx{context} {mode}: {parameter_count(workload.model):,} parameters, {len(timings)} steps{aborted}, "
        f"median step {median}{memory}",
        flush=True,
    )
    return timings


def main() -> None:
    """Runs every cell of the sizes, contexts and modes asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--context", nargs="+", type=int, default=[512])
    parser.add_argument("--mode", nargs="+", choices=["forward", "train"], default=["forward"])
    parser.add_argument("--warmup", type=int, default=2, help="warm-up steps in all")
    parser.add_argument("--recorded-warmup", type=int, help="how many of them are in the recorded region (all)")
    parser.add_argument("--steps", type=int, default=3, help="measured steps")
    parser.add_argument("--sync", choices=["phase", "step"], default="phase", help="where the host waits for the GPU")
    parser.add_argument("--memory-limit-gb", type=float, help="as if the GPU had no more than this (1 GB = 10⁹ bytes)")
    parser.add_argument("--timings", type=Path, help="CSV file to add the measured steps to")
    options = parser.parse_args()
    if options.recorded_warmup is None:
        options.recorded_warmup = options.warmup
    if options.memory_limit_gb and CUDA:
        total = torch.cuda.get_device_properties(DEVICE).total_memory
        torch.cuda.set_per_process_memory_fraction(options.memory_limit_gb * 1e9 / total)
    for size in options.size:
        for context in options.context:
            for mode in options.mode:
                timings = run(size, context, mode, options)
                rows = [
                    (size, context, mode, index, t.forward_s, t.backward_s, t.optimizer_s, t.step_s)
                    for index, t in enumerate(timings)
                ]
                if options.timings:
                    append_rows(options.timings, TIMING_COLUMNS, rows)
                gc.collect()
                if CUDA:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
