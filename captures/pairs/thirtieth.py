"""The thirtieth set: what a user of common libraries runs; cameras, plants, heat, prompts, language."""

from __future__ import annotations

import timm
import torch
import transformers
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    Block,
    adamw,
    as_graph,
    compiled,
    images,
    mixed,
    on_device,
    seeded,
    size,
    tokens,
    training,
)
from pairs.registry import AFTER, BEFORE, THIRTIETH, Step, healthy, pair

__all__: list[str] = []
FP16 = torch.float16 if CUDA else torch.float32


@pair(
    "host-sync", "detection", "scores, kinds and boxes of all frames are read by three calls of tolist()", THIRTIETH,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def traffic_camera_detection(variant: str) -> Step:
    """A YOLOS (12 × 384, bf16) looks for vehicles in 16 frames of 512 × 864; each frame has a list of 25 finds.

    Score and kind of each find are an item() of their own, and its box a tolist().
    """
    high, wide = size(512, 64), size(864, 96)
    config = transformers.YolosConfig(
        hidden_size=size(384, 32), num_hidden_layers=size(12, 1), num_attention_heads=size(6, 2),
        intermediate_size=size(1536, 64), image_size=[high, wide], num_detection_tokens=size(100, 8),
        use_mid_position_embeddings=False, num_labels=size(91, 7),
    )  # fmt: skip
    model = on_device(lambda: transformers.YolosForObjectDetection(config), HALF).eval()
    x, count = torch.randn(size(16, 2), 3, high, wide, device=DEVICE, dtype=HALF), size(25, 4)

    def step() -> list[list[tuple[float, int, list[float]]]]:
        told = model(pixel_values=x)
        chances, kinds = told.logits.float().softmax(-1)[..., :-1].max(-1)
        best, places = chances.topk(count)
        kinds, boxes = kinds.gather(1, places), told.pred_boxes.float().gather(1, places[..., None].expand(-1, -1, 4))
        if variant == AFTER:
            frames = zip(best.tolist(), kinds.tolist(), boxes.tolist(), strict=True)
            return [list(zip(*frame, strict=True)) for frame in frames]
        found = []
        for scores, names, corners in zip(best, kinds, boxes, strict=True):
            frame = []
            for score, name, corner in zip(scores, names, corners, strict=True):
                frame.append((score.item(), name.item(), corner.tolist()))
            found.append(frame)
        return found

    return step


@pair(
    "host-stall", "vision", "the average of the weights is on the GPU: ModelEmaV3 without device='cpu'", THIRTIETH,
    library="timm", accept=("blocking-copy",), with_stack=True, steps=(2, 1),
)  # fmt: skip
def plant_species_training(variant: str) -> Step:
    """A ViT of timm's medium size (39 million weights, mixed precision) learns from 256 images of 256².

    An average of its weights is kept on the host, which adds to it after each step: all weights are copied to
    pageable memory, one tensor after the other, hence "blocking-copy", too.
    """
    name, side = ("vit_medium_patch16_gap_256", 256) if CUDA else ("vit_tiny_patch16_224", 224)
    model = on_device(lambda: timm.create_model(name, num_classes=size(1000, 7))).train()
    average = ModelEmaV3(model, decay=0.999, device="cpu" if variant == BEFORE else None)
    x, kinds = images(size(256, 2), side), tokens(size(1000, 7), size(256, 2))
    learn = training(lambda: functional.cross_entropy(model(x).float(), kinds), adamw(model))

    def step() -> ModelEmaV3:
        learn()
        average.update(model)
        return average

    return step


class Field(nn.Module):
    """A temperature at places and times."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        wide = (part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh()))
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh(), *wide, nn.Linear(width, 1))

    def forward(self, *where: Tensor) -> Tensor:
        """Places and times, each [points, 1] → temperatures [points, 1]."""
        return self.body(torch.cat(where, 1))


def slope(y: Tensor, x: Tensor) -> Tensor:
    """The derivative of each y by its x, which can be differentiated again."""
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


@pair(
    "launch-overhead", "physics", "the step of training is replayed from a CUDA graph", THIRTIETH,
    accept=("small-kernels",), steps=(3, 2),
)  # fmt: skip
def cooling_plate_network(variant: str) -> Step:
    """A network informed by physics (5 × 128, fp32) learns how a plate cools: the heat equation at 8,192 points.

    Second derivatives are those of autograd, in eager mode: hundreds of kernels, each of a megabyte or four.
    """
    model = on_device(lambda: Field(size(128, 8), size(5, 1)))
    optimizer = adamw(model, fused=True, capturable=CUDA)
    points = size(8192, 6)
    inside = [torch.rand(points, 1, device=DEVICE).requires_grad_() for _ in range(3)]
    edge = [torch.rand(points // 4, 1, device=DEVICE) for _ in range(2)]
    start = torch.zeros(points // 4, 1, device=DEVICE)
    begun = torch.sin(torch.pi * edge[0]) * torch.sin(torch.pi * edge[1])

    def loss() -> Tensor:
        x, y, time = inside
        told = model(x, y, time)
        across, along = slope(slope(told, x), x), slope(slope(told, y), y)
        missed = slope(told, time) - 0.1 * (across + along)
        return missed.square().mean() + 10.0 * (model(*edge, start) - begun).square().mean()

    weights = list(model.parameters())

    def learn() -> None:
        loss().backward(inputs=weights)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return learn if variant == BEFORE else as_graph(learn)


@pair(
    "precision", "diffusion", "the encoder in bfloat16, in which no layer is kept in fp32", THIRTIETH,
    library="transformers", accept=("tensor-compute",), inference=True, steps=(2, 2),
)  # fmt: skip
def prompt_encoding(variant: str) -> Step:
    """The encoder of T5-XXL (8 layers, 4,096) describes 16 prompts of 256 words for a model of pictures, in fp16.

    Loaded in fp16 (dtype=torch.float16), T5 keeps the last product of each feed-forward network (`wo`) in fp32, which
    keeps the GPU busy: hence "tensor-compute", too.
    """
    config = transformers.T5Config(
        vocab_size=size(32_128, 64), d_model=size(4096, 32), d_kv=size(64, 8), d_ff=size(10_240, 64),
        num_layers=size(8, 1), num_heads=size(64, 4), feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.T5EncoderModel(config), FP16 if variant == BEFORE else HALF).eval()
    if variant == BEFORE:  # as from_pretrained() does
        for block in model.encoder.block:
            block.layer[-1].DenseReluDense.wo.float()
    ids = tokens(config.vocab_size, size(16, 2), size(256, 8))
    return lambda: model(input_ids=ids).last_hidden_state


class Surprise(nn.Module):
    """How little the next words were expected."""

    def forward(self, told: Tensor, wanted: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        return functional.cross_entropy(told[:, :-1].flatten(0, 1).float(), wanted[:, 1:].flatten())


@healthy("training", THIRTIETH, library="transformers", compiles=True, steps=(2, 2))
def healthy_logged_ernie_training(variant: str) -> Step:
    """An Ernie 4.5 (8 × 2,048) learns 16 texts of 1,024: mixed precision, layers and loss compiled, fused AdamW.

    Gradients are clipped, and the loss is read at the end of each step, which is long: the wait hardly counts.
    """
    config = transformers.Ernie4_5Config(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(6144, 64), use_cache=False,
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 1),
        head_dim=size(128, 16), max_position_embeddings=size(4096, 64), tie_word_embeddings=False,
    )  # fmt: skip
    model, surprise = on_device(lambda: transformers.Ernie4_5ForCausalLM(config)).train(), Surprise()
    compiled([*model.model.layers, surprise])
    optimizer = adamw(model)
    ids, log = tokens(config.vocab_size, size(16, 2), size(1024, 8)), []

    def step() -> None:
        with mixed():
            loss = surprise(model(input_ids=ids).logits, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log.append(loss.item())

    return step


@healthy("prefill", THIRTIETH, inference=True, steps=(3, 3))
def healthy_wide_eager_prefill(variant: str) -> Step:
    """Two layers of 8,192 (bf16) read 8 texts of 2,048 words in eager mode: products take nearly all of the time.

    Norms, sums and GELUs, which a compiler could fuse, have a few hundredths of it.
    """
    width, words = size(8192, 32), size(32_768, 64)
    layers = on_device(
        lambda: nn.Sequential(*(Block(width, size(64, 2), causal=True) for _ in range(size(2, 1)))), HALF
    ).eval()  # fmt: skip
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    norm, head = on_device(lambda: nn.LayerNorm(width), HALF), on_device(lambda: nn.Linear(width, words), HALF, 2)
    seeded(3)
    ids = tokens(words, size(8, 2), size(2048, 8))
    return lambda: head(norm(layers(names(ids))[:, -1])).argmax(-1)
