"""The transformer language model of the CS336 assignments as a workload, and the assignment's unfused AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from warplens.workloads.launching import as_graph, compiled, precision
from warplens.workloads.measurement import Marks
from warplens.workloads.registry import OFF, Program, Ranges, Setting
from warplens.workloads.settings import LM_SIZES, LMCell, LMSize
from warplens.workloads.vision import lm_work


class ReferenceAdamW(torch.optim.Optimizer):
    """AdamW as the assignment defines it, tensor by tensor: decay, then the two moments, then the update.

    As in the reference, the default of the look-up `state.get("m", zeros)` is evaluated in every step: two unused
    fills. Tensors without a gradient are skipped. 16 launches per tensor on a GPU. `eps` is added to the root of the
    second moment; a weight loses the share `lr` · `weight_decay` in a step.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override, unused-ignore]
        """Updates every parameter that has a gradient."""
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


# --- The model, written from the definition in Stanford's CS336 assignments ------------------------------------------
# RMSNorm, rotary position embedding, SwiGLU, separate projections, attention written out over the full score matrix, an
# untied head, no biases, no dropout. Attention is not fused on purpose: the three parts of it are what the assignment
# asks about, and each has a range of its own.

ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-5


class Linear(nn.Module):
    """y = x Wᵀ with W [out, in] drawn from a normal distribution of variance 2 / (in + out), cut at 3σ. No bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        sigma = math.sqrt(2 / (inputs + outputs))
        nn.init.trunc_normal_(self.weight, std=sigma, a=-3 * sigma, b=3 * sigma)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., in] → [..., out]."""
        return x @ self.weight.T


class Embedding(nn.Module):
    """Rows of a table [vocabulary, d_model] drawn from a normal distribution of variance 1, cut at 3σ."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        nn.init.trunc_normal_(self.weight, std=1.0, a=-3.0, b=3.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, context] → [batch, context, d_model]."""
        return self.weight[tokens]


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · g, computed in fp32 or better."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """X [..., width] → the same shape and type."""
        dtype = x.dtype
        x = x.to(torch.promote_types(dtype, torch.float32))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
        return (x * self.weight).to(dtype)


class RotaryEmbedding(nn.Module):
    """Turns the pairs (x₂ᵢ, x₂ᵢ₊₁) of each head by position · θ^(−2i/d); concatenates the two halves of the result."""

    table: Tensor  # [2 (cosine, sine), context, d_head / 2]

    def __init__(self, context: int, d_head: int) -> None:
        super().__init__()
        frequency = ROPE_THETA ** (-torch.arange(0, d_head, 2) / d_head)
        angle = torch.outer(torch.arange(context), frequency)
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


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, ranges: Ranges = OFF) -> Tensor:
    """softmax(qkᵀ / √d_head, where the mask is true) · v for q, k, v [batch, heads, context, d_head]."""
    with ranges("attention"):
        with ranges("scores"):
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            scores = torch.where(mask, scores, float("-inf"))
        with ranges("softmax"):
            weights = softmax(scores)
        with ranges("values"):
            return weights @ v


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary position embedding."""

    def __init__(self, size: LMSize, rope: RotaryEmbedding, ranges: Ranges) -> None:
        super().__init__()
        self.heads = size.heads
        self.q, self.k, self.v, self.output = (Linear(size.d_model, size.d_model) for _ in range(4))
        self.rope = rope
        self.ranges = ranges

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, context, d_model] → the same shape."""
        batch, context, d_model = x.shape
        q, k, v = (
            project(x).view(batch, context, self.heads, -1).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        positions = torch.arange(context, device=x.device)
        q, k = self.rope(q, positions), self.rope(k, positions)
        causal = positions[:, None] >= positions[None, :]
        heads = scaled_dot_product_attention(q, k, v, causal, self.ranges)
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

    def __init__(self, size: LMSize, rope: RotaryEmbedding, ranges: Ranges) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size.d_model), RMSNorm(size.d_model)
        self.attention = Attention(size, rope, ranges)
        self.feed_forward = SwiGLU(size.d_model, size.d_ff)
        self.ranges = ranges

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, context, d_model] → the same shape."""
        with self.ranges("self_attention"):
            x = x + self.attention(self.norm1(x))
        with self.ranges("feed_forward"):
            return x + self.feed_forward(self.norm2(x))


class TransformerLM(nn.Module):
    """Tokens [batch, context] → logits [batch, context, vocabulary]; `context` is that of the longest sequence."""

    def __init__(self, size: LMSize, context: int, ranges: Ranges = OFF) -> None:
        super().__init__()
        rope = RotaryEmbedding(context, size.d_head)
        self.embedding = Embedding(size.vocabulary, size.d_model)
        self.blocks = nn.ModuleList(Block(size, rope, ranges) for _ in range(size.layers))
        self.norm = RMSNorm(size.d_model)
        self.head = Linear(size.d_model, size.vocabulary)
        self.ranges = ranges

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, context] → logits."""
        x = self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            with self.ranges("layer", index):
                x = block(x)
        with self.ranges("lm_head"):
            return self.head(self.norm(x))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of −log softmax(logits) at the targets."""
    logits = logits - logits.max(dim=-1, keepdim=True).values
    log_probability = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    return -log_probability.gather(-1, targets[..., None]).mean()


def prepare(cell: LMCell, setting: Setting) -> Program:
    """The program of a cell, with random fp32 weights and random tokens."""
    torch.manual_seed(setting.seed)
    size = LM_SIZES[cell.size]
    # Ranges inside the model would cause graph breaks in a compiled program, and do not show in a replayed CUDA graph.
    inner = setting.ranges if cell.execution == "eager" else OFF
    with torch.device(setting.device):
        model = TransformerLM(size, cell.context, inner)
        tokens = torch.randint(size.vocabulary, (cell.batch, cell.context + 1))
    steps = _Steps(cell, setting, model, tokens)
    return Program(
        step=steps.launched(),
        items=cell.batch,
        unit="sequence",
        work=lm_work(size, cell.batch, cell.context, cell.mode),
        marks=None if cell.execution == "graph" else steps.marks,
        launch=cell.execution,
        details={
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "tokens": cell.batch * cell.context,
            "layers": size.layers,
        },
    )


class _Steps:
    """The steps of all modes over one model."""

    def __init__(self, cell: LMCell, setting: Setting, model: nn.Module, tokens: torch.Tensor) -> None:
        self.cell, self.setting = cell, setting
        self.ranges = setting.ranges if cell.execution != "graph" else OFF
        self.marks = Marks(setting.device)
        self.parameters = list(model.parameters())
        self.model = compiled(model) if cell.execution == "compile" else model
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.optimizer = _optimizer(cell, self.parameters) if cell.mode == "train" else None

    def launched(self) -> Any:
        """The step of the cell's mode and execution."""
        step = self.forward if self.cell.mode == "forward" else self.train
        if self.cell.execution != "graph":
            return step
        # Gradients of earlier steps are outside the graph's memory pool; the captured step must allocate its own.
        return as_graph(step, self.setting.device, before_capture=self._forget_gradients)

    def _arithmetic(self) -> Any:
        return precision(self.cell.precision, self.setting.device, graph=self.cell.execution == "graph")

    def forward(self) -> torch.Tensor:
        """A forward pass without gradients."""
        with torch.no_grad(), self._arithmetic(), self.ranges("forward_pass"):
            logits: torch.Tensor = self.model(self.inputs)
        self._end("forward_pass")
        return logits

    def train(self) -> torch.Tensor:
        """Forward pass with loss, backward pass, and in mode `train` the optimizer."""
        with self._arithmetic(), self.ranges("forward_pass"):
            logits = self.model(self.inputs)
            with self.ranges("loss"):
                loss = cross_entropy(logits, self.targets)
        self._end("forward_pass")
        # Autocast is for the forward pass alone; the TF32 setting must hold in both.
        of_backward = "fp32" if self.cell.precision == "bf16" else self.cell.precision
        with precision(of_backward, self.setting.device), self.ranges("backward_pass"):
            loss.backward()
            if self.optimizer is None:
                self._forget_gradients()
        self._end("backward_pass")
        if self.optimizer is not None:
            with self.ranges("optimizer_step"):
                self.optimizer.step()
                self._forget_gradients()
            self._end("optimizer_step")
        return loss.detach()

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _end(self, phase: str) -> None:
        if self.cell.execution != "graph":
            self.marks.end(phase)


def _optimizer(cell: LMCell, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if cell.optimizer == "reference":
        return ReferenceAdamW(parameters)
    graph = cell.execution == "graph"
    return torch.optim.AdamW(
        parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
        fused=cell.optimizer == "torch-fused", foreach=cell.optimizer == "torch", capturable=graph,
    )  # fmt: skip
