"""The sixth set, a small one: written without a look at the rules, read when they had been mended with the fifth."""

from __future__ import annotations

import copy
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from pairs.language import llama
from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, SIXTH, Step, healthy, pair


@pair(
    "blocking-copy", "prefill", "all layers stay on the GPU, where they fit", SIXTH,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def layers_fetched_one_by_one(variant: str) -> Step:
    """A Llama of 8 × 2,048 reads 4 × 512 tokens; each layer is sent to the GPU before its turn and dropped after it."""
    config = llama(size(8, 2), size(2048, 64), vocabulary=size(8192, 64), heads=size(16, 2), groups=size(4, 2))
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(4, 2), size(512, 8))
    if variant == AFTER:
        return lambda: model(input_ids=ids, use_cache=False).logits

    held = [{name: value.cpu() for name, value in layer.state_dict().items()} for layer in model.model.layers]

    def fetch(index: int) -> Any:
        def hook(layer: nn.Module, *_: Any) -> None:
            for name, value in layer.named_parameters():
                value.data = held[index][name].to(DEVICE)

        return hook

    def drop(layer: nn.Module, *_: Any) -> None:
        for value in layer.parameters():
            value.data = torch.empty(0, device=DEVICE, dtype=HALF)

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(fetch(index))
        layer.register_forward_hook(drop)
    return lambda: model(input_ids=ids, use_cache=False).logits


@pair(
    "unfused-optimizer", "training", "torch._foreach_lerp_ over all parameters", SIXTH,
    library="timm", accept=("launch-overhead", "small-kernels"), steps=(3, 2),
)  # fmt: skip
def average_of_weights_by_loop(variant: str) -> Step:
    """A ViT-S learns from 32 images in bf16; a moving average of its weights is kept, parameter by parameter."""
    model = on_device(lambda: timm.create_model("vit_small_patch16_224", depth=size(12, 1), num_classes=10)).train()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    x, labels = images(size(32, 1), 224), tokens(10, size(32, 1))
    learn = training(lambda: functional.cross_entropy(model(x), labels), adamw(model))
    kept, fresh = list(average.parameters()), list(model.parameters())

    def step() -> None:
        learn()
        with torch.no_grad():
            if variant == AFTER:
                torch._foreach_lerp_(kept, fresh, 0.001)
            else:
                for old, new in zip(kept, fresh, strict=True):
                    old.mul_(0.999).add_(new.detach(), alpha=0.001)

    return step


@pair(
    "host-sync", "training", "one loss with ignore_index over all texts", SIXTH,
    library="transformers", accept=("launch-overhead",), steps=(3, 2),
)  # fmt: skip
def masked_tokens_text_by_text(variant: str) -> Step:
    """BERT (4 × 512) learns 64 texts of 128 tokens; the loss picks each text's masked tokens by a boolean index."""
    config = transformers.BertConfig(
        vocab_size=size(8192, 64), hidden_size=size(512, 32), intermediate_size=size(2048, 48),
        num_hidden_layers=size(4, 1), num_attention_heads=size(8, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForMaskedLM(config)).train()
    ids = tokens(config.vocab_size, size(64, 2), size(128, 16))
    masked = torch.rand(ids.shape, device=DEVICE) < 0.2
    masked[:, 0] = True
    labels = ids.where(masked, -100)

    def loss() -> Tensor:
        scores = model(input_ids=ids).logits
        if variant == AFTER:
            return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        each = [functional.cross_entropy(s[m], i[m]) for s, m, i in zip(scores, masked, ids, strict=True)]
        return torch.stack(each).mean()

    return training(loss, adamw(model))


class Grouped(nn.Module):
    """Causal attention with fewer keys and values than queries."""

    def __init__(self, width: int, heads: int, groups: int, *, repeats: bool, normed: bool, casts: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.repeats, self.normed, self.casts = heads, groups, repeats, normed, casts
        self.each = width // heads
        self.norm = nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.keys = nn.Linear(width, 2 * groups * self.each)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, sequence, width]."""
        y = self.norm(x)
        q = self.query(y).unflatten(-1, (self.heads, self.each)).transpose(1, 2)
        k, v = self.keys(y).unflatten(-1, (2, self.groups, self.each)).permute(2, 0, 3, 1, 4)
        if self.normed:  # a norm of queries and keys, in fp32 as it is often written
            q = functional.rms_norm(q.float(), (self.each,))
            k = functional.rms_norm(k.float(), (self.each,))
            v = v.to(q.dtype)
            if self.casts:
                q, k, v = q.to(x.dtype), k.to(x.dtype), v.to(x.dtype)
        if self.repeats:
            k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not self.repeats)
        return x + self.out(y.transpose(1, 2).flatten(2).to(x.dtype))


def _grouped(variant: str, length: int, *, normed: bool) -> tuple[Any, Tensor]:
    width = size(4096, 32)
    model = on_device(
        lambda: nn.Sequential(
            *[
                Grouped(width, size(32, 4), size(8, 4), repeats=False, normed=normed, casts=variant == AFTER)
                for _ in range(size(4, 1))
            ]
        ),
        HALF,
    ).eval()
    return model, torch.randn(size(4, 1), size(length, 8), width, device=DEVICE, dtype=HALF)


@pair(
    "precision", "prefill", "queries and keys are cast back to bf16 after their norm", SIXTH,
    accept=("unfused-attention", "misaligned-shape"), inference=True, steps=(2, 1),
)  # fmt: skip
def queries_left_in_fp32(variant: str) -> Step:
    """Four layers of grouped attention read 4 × 4,096 tokens; the norm of queries and keys leaves them in fp32."""
    model, x = _grouped(variant, 4096, normed=True)
    return lambda: model(x)


class Vocoder(nn.Module):
    """Residual blocks of one-dimensional convolutions whose weights are direction times length."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                parametrizations.weight_norm(nn.Conv1d(width, width, 3, padding=d, dilation=d))
                for _ in range(blocks)
                for d in (1, 3, 5)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, width, samples]."""
        for layer in self.layers:
            x = x + layer(functional.leaky_relu(x, 0.1))
        return x


@pair(
    "launch-overhead", "speech", "remove_parametrizations before inference", SIXTH,
    accept=("small-kernels", "unfused-chain", "recomputation"), inference=True, steps=(4, 2),
)  # fmt: skip
def weight_norm_in_inference(variant: str) -> Step:
    """A vocoder of 48 convolutions of 512 turns 1 × 2,048 frames to sound; its weights are put together each time."""
    model = on_device(lambda: Vocoder(size(512, 8), size(16, 1)), HALF).eval()
    if variant == AFTER:
        for layer in model.layers:
            parametrize.remove_parametrizations(layer, "weight")
    x = torch.randn(1, size(512, 8), size(2048, 16), device=DEVICE, dtype=HALF)
    return lambda: model(x)


@pair(
    "launch-overhead", "training", "one binary_cross_entropy_with_logits over all classes", SIXTH,
    accept=("small-kernels", "per-expert-loop", "unfused-chain"), library="timm", steps=(3, 2),
)  # fmt: skip
def loss_class_by_class(variant: str) -> Step:
    """A ResNet-26 learns 80 attributes of 64 images in bf16; the loss is a sum of one weighted term each."""
    classes = size(80, 4)
    model = on_device(lambda: timm.create_model("resnet26", num_classes=classes)).train()
    model = model.to(memory_format=torch.channels_last)
    x = images(size(64, 1), size(224, 64)).contiguous(memory_format=torch.channels_last)
    wanted = (torch.rand(size(64, 1), classes, device=DEVICE) < 0.1).float()
    weights = torch.rand(classes, device=DEVICE) + 0.5

    def loss() -> Tensor:
        scores = model(x).float()
        if variant == AFTER:
            return functional.binary_cross_entropy_with_logits(scores, wanted, pos_weight=weights) * classes
        total = torch.zeros((), device=DEVICE)
        for index in range(classes):
            chance = torch.sigmoid(scores[:, index]).clamp(1e-6, 1 - 1e-6)
            hit = wanted[:, index]
            total = total - (weights[index] * hit * chance.log() + (1 - hit) * (1 - chance).log()).mean()
        return total

    return training(loss, adamw(model))


@healthy("prefill", SIXTH, inference=True, steps=(2, 1))
def healthy_grouped_queries(variant: str) -> Step:
    """Four layers of grouped attention in bf16 read 4 × 8,192 tokens; keys are shared by the kernel, not repeated."""
    model, x = _grouped(variant, 8192, normed=False)
    return lambda: model(x)


@healthy("training", SIXTH, steps=(3, 2), compiles=True, library="timm")
def healthy_compiled_vit(variant: str) -> Step:
    """A compiled ViT-L of 8 blocks learns from 128 images in bf16 with the fused AdamW."""
    model = on_device(
        lambda: timm.create_model(
            "vit_large_patch16_224", depth=size(8, 1), num_classes=1000, dynamic_img_size=not CUDA
        )
    ).train()
    compiled(model.blocks)
    x, labels = images(size(128, 1), size(224, 32)), tokens(1000, size(128, 1))
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))
