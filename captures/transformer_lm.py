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
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from common import CUDA, DEVICE, annotate, append_rows, now, parameter_count, recorded, synchronize
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

VOCABULARY = 10_000
BATCH = 4
ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-5
TIMING_COLUMNS = ("model", "context", "mode", "step", "forward_s", "backward_s", "optimizer_s", "step_s")


@dataclass(frozen=True)
class Size:
    """Widths of one model size."""

    d_model: int
    d_ff: int
    layers: int
    heads: int


SIZES = {
    "tiny": Size(32, 64, 2, 2),  # not of the assignment: for trying the program without a GPU
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(1600, 6400, 48, 25),
    "2.7B": Size(2560, 10240, 32, 32),
}


class Linear(nn.Module):
    """y = x Wᵀ with W [out, in] drawn from a normal distribution of variance 2 / (in + out), cut at 3σ. No bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=DEVICE))
        sigma = math.sqrt(2 / (inputs + outputs))
        nn.init.trunc_normal_(self.weight, std=sigma, a=-3 * sigma, b=3 * sigma)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., in] → [..., out]."""
        return x @ self.weight.T


class Embedding(nn.Module):
    """Rows of a table [vocabulary, d_model] drawn from a normal distribution of variance 1, cut at 3σ."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, device=DEVICE))
        nn.init.trunc_normal_(self.weight, std=1.0, a=-3.0, b=3.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, context] → [batch, context, d_model]."""
        return self.weight[tokens]


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · g, computed in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=DEVICE))

    def forward(self, x: Tensor) -> Tensor:
        """X [..., width] → the same shape and type."""
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
        return (x * self.weight).to(dtype)


class RotaryEmbedding(nn.Module):
    """Turns the pairs (x₂ᵢ, x₂ᵢ₊₁) of each head by position · θ^(−2i/d); concatenates the two halves of the result."""

    table: Tensor  # [2 (cosine, sine), context, d_head / 2]

    def __init__(self, context: int, d_head: int) -> None:
        super().__init__()
        frequency = ROPE_THETA ** (-torch.arange(0, d_head, 2, device=DEVICE) / d_head)
        angle = torch.outer(torch.arange(context, device=DEVICE), frequency)
        self.register_buffer("table", torch.stack((angle.cos(), angle.sin())), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """X [batch, heads, context, d_head] → the same shape; positions [context]."""
        cosine, sine = self.table[:, positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.cat((cosine * even - sine * odd, sine * even + cosine * odd), dim=-1)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, shifted by its maximum."""
    exponential = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return exponential / exponential.sum(dim=-1, keepdim=True)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(qkᵀ / √d_head, where the mask is true) · v for q, k, v [batch, heads, context, d_head]."""
    with annotate("scaled_dot_product_attention"):
        with annotate("computing_attention_scores"):
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            scores = torch.where(mask, scores, float("-inf"))
        with annotate("computing_softmax"):
            weights = softmax(scores)
        with annotate("final_matmul"):
            return weights @ v


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary position embedding."""

    def __init__(self, d_model: int, heads: int, rope: RotaryEmbedding) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.output = (Linear(d_model, d_model) for _ in range(4))
        self.rope = rope

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, context, d_model] → the same shape."""
        batch, context, d_model = x.shape
        q, k, v = (
            project(x).view(batch, context, self.heads, -1).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        positions = torch.arange(context, device=x.device)
        q, k = self.rope(q, positions), self.rope(k, positions)
        causal = positions[:, None] >= positions[None, :]
        heads = scaled_dot_product_attention(q, k, v, causal)
        return self.output(heads.transpose(1, 2).reshape(batch, context, d_model))


class SwiGLU(nn.Module):
    """W₂(silu(W₁x) ⊙ W₃x), silu(x) = x · sigmoid(x)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(d_model, d_ff), Linear(d_ff, d_model), Linear(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., d_model] → the same shape."""
        gate = self.w1(x)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward network, each behind a norm and added to the residual stream."""

    def __init__(self, size: Size, rope: RotaryEmbedding) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size.d_model), RMSNorm(size.d_model)
        self.attention = Attention(size.d_model, size.heads, rope)
        self.feed_forward = SwiGLU(size.d_model, size.d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, context, d_model] → the same shape."""
        with annotate("self_attention"):
            x = x + self.attention(self.norm1(x))
        with annotate("feed_forward"):
            return x + self.feed_forward(self.norm2(x))


class TransformerLM(nn.Module):
    """Tokens [batch, context] → logits [batch, context, vocabulary]."""

    def __init__(self, size: Size, context: int) -> None:
        super().__init__()
        rope = RotaryEmbedding(context, size.d_model // size.heads)
        self.embedding = Embedding(VOCABULARY, size.d_model)
        self.blocks = nn.ModuleList(Block(size, rope) for _ in range(size.layers))
        self.norm = RMSNorm(size.d_model)
        self.head = Linear(size.d_model, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, context] → logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        with annotate("lm_head"):
            return self.head(self.norm(x))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of −log softmax(logits) at the targets."""
    logits = logits - logits.max(dim=-1, keepdim=True).values
    log_probability = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    return -log_probability.gather(-1, targets[..., None]).mean()


class AdamW(torch.optim.Optimizer):
    """AdamW as the assignment defines it, one tensor after another, nothing fused.

    Decay first, then the two moments, then the update. As in the reference, the default of the look-up
    `state.get("m", zeros)` is evaluated in every step: two fills of a tensor that are thrown away. Tensors without a
    gradient are skipped.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-3, weight_decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient: 16 launches a tensor."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, state = p.grad, self.state[p]
                t = state.get("t", 0) + 1
                p.sub_(lr * group["weight_decay"] * p)
                m = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
                v = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g**2
                scaled_lr = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                p.sub_(scaled_lr * m / (v.sqrt() + group["eps"]))
                state["t"], state["m"], state["v"] = t, m, v


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
        self.model = TransformerLM(SIZES[size], context)
        self.tokens = torch.randint(VOCABULARY, (BATCH, context + 1), device=DEVICE)
        self.optimizer = AdamW(self.model.parameters()) if mode == "train" else None
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

    def _train(self, optimizer: AdamW, timing: StepTiming) -> None:
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
