"""The vision transformer with token reduction as a workload, and the modelled arithmetic of the reference workloads.

A multiply-accumulate (MAC) is one multiplication and one addition, hence two FLOPs; `torchprofile` and many papers call
MACs FLOPs. Only matrix products and convolutions count, as in PyTorch's `FlopCounterMode`; elementwise work is below a
percent of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from warplens.errors import UsageError
from warplens.workloads.launching import Launches, as_graph, compiled, launches_of, model_dtype, precision
from warplens.workloads.registry import OFF, Program, Ranges, Setting, Work
from warplens.workloads.settings import VIT_SIZES, LMSize, TokenReductionCell, ViTSize
from warplens.workloads.token_reduction.choosing import Attended, BlockTokens, Reduction, TokenState, gathered
from warplens.workloads.token_reduction.methods import masked_softmax, reductions


def work(macs: int) -> Work:
    """MACs as a `Work`."""
    return Work(macs=macs, flops=2 * macs)


def lm_work(size: LMSize, batch: int, context: int, mode: str) -> Work:
    """Work of a step: that of a forward pass, or three times as much with the backward pass.

    The backward pass has two products for each one of the forward pass, one for the gradient of each factor. This holds
    for the first layer as well, since the embedding is a look-up.
    """
    return work(size.forward_macs(batch, context) * (1 if mode == "forward" else 3))


def vit_macs(size: ViTSize, input_size: int, blocks: Sequence[BlockTokens]) -> int:
    """MACs of one image: patch embedding, blocks, classifier, and the reductions themselves.

    For a block with N tokens, Q queries and M tokens in the MLP: 3·N·d² for q, k, v; N²·d for the scores (a method that
    drops queries does so after them) and N·Q·d for the weighted values; Q·d² for the projection; 8·M·d² for the MLP.
    Without query reduction that is 4·N·d² + 2·N²·d + 8·M·d².
    """
    d = size.width
    total = size.patches(input_size) * 3 * size.patch**2 * d + d * size.classes
    for block in blocks:
        total += 3 * block.entering * d * d + block.entering**2 * d
        total += block.asking * block.entering * d + block.asking * d * d
        total += 8 * block.leaving * d * d + block.reduction_macs
    return total


def torchprofile_macs(size: ViTSize, input_size: int, blocks: Sequence[BlockTokens]) -> int:
    """The count of torchprofile, which adds one for each element of a layer norm and of the scaled queries.

    The token-reduction study states these figures (17.57 → 5.55, 78.52 → 24.73 "GFLOPs").
    """
    d = size.width
    elementwise = sum((2 * block.entering + block.leaving) * d for block in blocks) + blocks[-1].leaving * d
    return vit_macs(size, input_size, blocks) + elementwise


# --- DeiT / ViT with patch 16, written out, at any input size, with token reduction where asked for ------------------
# Pre-norm blocks, biases on q, k and v, a class token, learned positions, layer norms with ε = 10⁻⁶, GELU. Attention is
# written out in every variant, since most reductions decide by its weights and a comparison should change one thing
# only. `fused=True` makes what a deployment would really run: one kernel for attention and, in the blocks whose
# reduction decides by the class token's weights, that one row beside it.

NORM_EPSILON = 1e-6


class Attention(nn.Module):
    """Multi-head self-attention, whose queries a reduction may choose."""

    def __init__(self, size: ViTSize, fused: bool, ranges: Ranges) -> None:
        super().__init__()
        self.heads = size.heads
        self.scale = size.d_head**-0.5
        self.fused = fused
        self.ranges = ranges
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.proj = nn.Linear(size.width, size.width)

    def forward(
        self, x: Tensor, state: TokenState, reduction: Reduction | None
    ) -> tuple[Tensor, Tensor | None, Attended]:
        """X [batch, tokens, width] → attention of the chosen rows, their indices (None for all), what it computed."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = _score_bias(state, q.dtype)
        if self.fused:
            if state.policy is not None:
                raise UsageError("DynamicViT's training masks attention weights, which fused attention does not give")
            heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            decides = reduction is not None and reduction.needs_weights
            # The class token's attention alone is all that a choice by its weights needs.
            row = self._weights(q[:, :, :1], k, bias) if decides else None
            return self.proj(heads.transpose(1, 2).reshape(batch, tokens, width)), None, Attended(row, k, v)
        if state.policy is not None:
            weights = masked_softmax((q * self.scale) @ k.transpose(-2, -1), state.policy)
        else:
            weights = self._weights(q, k, bias)
        attended = Attended(weights, k, v)
        rows = None
        if reduction is not None and reduction.place == "queries":
            with self.ranges("token_reduction"):
                rows = reduction.queries(attended, state)
                weights = weights.gather(2, rows[:, None, :, None].expand(-1, self.heads, -1, tokens))
        heads = (weights @ v).transpose(1, 2).reshape(batch, -1, width)
        return self.proj(heads), rows, attended

    def _weights(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        """The attention of some rows, [batch, heads, rows, tokens]."""
        scores = (q * self.scale) @ k.transpose(-2, -1)
        return (scores if bias is None else scores + bias).softmax(dim=-1)


def _score_bias(state: TokenState, dtype: torch.dtype) -> Tensor | None:
    """Bias of the scores of each key, [batch, 1, 1, tokens]: the logarithm of its size; −∞ for padding."""
    bias = None if state.sizes is None else state.sizes.log()
    if state.valid is not None:
        padding = torch.zeros_like(state.valid, dtype=dtype).masked_fill(~state.valid, -torch.inf)
        bias = padding if bias is None else bias + padding
    return None if bias is None else bias[:, None, None, :]


class Block(nn.Module):
    """Pre-norm transformer block with an optional reduction."""

    def __init__(self, size: ViTSize, reduction: Reduction | None, fused: bool, ranges: Ranges) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(size.width, eps=NORM_EPSILON) for _ in range(2))
        self.attention = Attention(size, fused, ranges)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )
        self.reduction = reduction
        self.ranges = ranges

    def forward(self, x: Tensor, state: TokenState, counts: list[BlockTokens] | None = None) -> Tensor:
        """X [batch, tokens, width] → [batch, remaining tokens, width]; appends the token counts to a list, if given."""
        reduction, before = self.reduction, x.shape[1]
        if reduction is not None and reduction.place == "before":
            with self.ranges("token_reduction"):
                x = reduction.before_block(x, state)
        entering = x.shape[1]
        with self.ranges("block_attention"):
            out, rows, attended = self.attention(self.norm1(x), state, reduction)
            x = (x if rows is None else gathered(x, rows)) + out
        asking = x.shape[1]
        if reduction is not None and reduction.place == "between":
            with self.ranges("token_reduction"):
                x = reduction.between(x, attended, state)
        if counts is not None:
            reduction_macs = reduction.macs(before) if reduction is not None else 0
            if reduction is not None and reduction.needs_weights and self.attention.fused:
                reduction_macs += before * x.shape[-1]  # the class token's row, which fused attention does not return
            counts.append(BlockTokens(entering, asking, x.shape[1], reduction_macs))
        with self.ranges("mlp"):
            return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Images [batch, 3, side, side] → class scores [batch, classes].

    The side is a multiple of the patch. `reductions` has the method at each block that has one. With `fused`, PyTorch
    chooses a fused attention; methods may then use the class token's weights only.
    """

    def __init__(
        self,
        size: ViTSize,
        input_size: int,
        reductions: Mapping[int, Reduction] | None = None,
        fused: bool = False,
        ranges: Ranges = OFF,
    ) -> None:
        super().__init__()
        reductions = reductions or {}
        patches = size.patches(input_size)
        self.patch_embedding = nn.Conv2d(3, size.width, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, size.width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, patches + 1, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size, reductions.get(index), fused, ranges) for index in range(size.blocks))
        self.norm = nn.LayerNorm(size.width, eps=NORM_EPSILON)
        self.head = nn.Linear(size.width, size.classes)
        self.ranges = ranges

    def forward(self, images: Tensor, counts: list[BlockTokens] | None = None) -> Tensor:
        """Images → class scores; appends the token counts of each block to a list, if given."""
        with self.ranges("patch_embedding"):
            patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
            x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.position
        state = TokenState(patches.shape[1])
        for index, block in enumerate(self.blocks):
            with self.ranges("block", index):
                x = block(x, state, counts)
        with self.ranges("classifier"):
            return self.head(self.norm(x)[:, 0])


def prepare(cell: TokenReductionCell, setting: Setting) -> Program:
    """The program of a cell: inference on random images with random weights.

    With random weights the class token's attention is meaningless. That changes no shape and no launch of any method
    but ATS, whose token counts depend on the attention.
    """
    torch.manual_seed(setting.seed)
    size, graph = VIT_SIZES[cell.model], cell.execution == "graph"
    inner = setting.ranges if cell.execution == "eager" else OFF
    dtype = model_dtype(cell.precision)
    listing = cell.visualisation and cell.method != "none"
    with torch.device(setting.device):  # a method may have weights of its own
        methods = reductions(cell.method, size, cell.input_size, cell.locations, cell.shares, listing)
        model = VisionTransformer(size, cell.input_size, methods, cell.attention == "fused", inner).to(dtype).eval()
        images = torch.randn(cell.batch, 3, cell.input_size, cell.input_size, dtype=dtype)
    counts: list[BlockTokens] = []
    with torch.inference_mode(), precision(cell.precision, setting.device):
        model(images, counts)
    program = compiled(model) if cell.execution == "compile" else model
    ranges = OFF if graph else setting.ranges

    @torch.inference_mode()
    def step() -> Any:
        with precision(cell.precision, setting.device, graph=graph), ranges("forward_pass"):
            return program(images)

    macs = vit_macs(size, cell.input_size, counts)
    # ATS waits for the GPU, which makes a capture fail.
    issued = launches_of(step, setting.device) if cell.method != "ats" else None
    return Program(
        step=as_graph(step, setting.device) if graph else step,
        items=cell.batch,
        unit="image",
        work=work(macs * cell.batch),
        launch=cell.execution,
        details={
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "patch_tokens": size.patches(cell.input_size),
            "tokens": [[block.entering, block.asking, block.leaving] for block in counts],
            "macs_per_image": macs,
            "flops_per_image": 2 * macs,
            "torchprofile_macs_per_image": torchprofile_macs(size, cell.input_size, counts),
            "reduction_macs_per_image": sum(block.reduction_macs for block in counts),
            **_launches(issued, graph),
        },
    )


def _launches(issued: Launches | None, graph: bool) -> dict[str, int]:
    """The launches of a step for its record; a CUDA graph counts as one launch."""
    if issued is None:
        return {}
    return {
        "launches": 1 if graph else issued.kernels + issued.others,
        "kernels": issued.kernels,
        "copies_and_fills": issued.others,
    }
