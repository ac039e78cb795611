"""The twelfth set: images and sounds."""

from __future__ import annotations

import copy

import timm
import torch
import transformers
from torch import Tensor
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWELFTH, Step, healthy, pair


def dice(scores: Tensor, labels: Tensor) -> Tensor:
    """One less the mean Dice coefficient of all classes, by their indicators."""
    chances = scores.float().softmax(1)
    right = functional.one_hot(labels, scores.shape[1]).permute(0, 3, 1, 2).float()
    both = (chances * right).sum((0, 2, 3))
    return 1 - ((2 * both + 1) / (chances.sum((0, 2, 3)) + right.sum((0, 2, 3)) + 1)).mean()


@pair(
    "unfused-chain", "segmentation", "torch.compile(dice): indicators of classes are never written", TWELFTH,
    library="timm", accept=("memory-bandwidth",), compiles=True, steps=(3, 3),
)  # fmt: skip
def dice_of_one_hot(variant: str) -> Step:
    """A ResNet-18 segments 16 images of 512 × 512 into 150 classes; the Dice loss is written with one_hot of labels."""
    classes, side, finer = size(150, 5), size(512, 64), size(16, 4)
    body = on_device(lambda: timm.create_model("resnet18", num_classes=0, global_pool="")).train()
    head = on_device(lambda: torch.nn.Conv2d(512, classes * finer**2, 1)).train()
    model = torch.nn.Sequential(body, head, torch.nn.PixelShuffle(finer)).to(memory_format=torch.channels_last)
    x = images(size(16, 2), side).to(memory_format=torch.channels_last)
    labels = tokens(classes, len(x), side * finer // 32, side * finer // 32)
    cost = torch.compile(dice, dynamic=False) if variant == AFTER and not TINY else dice
    return training(lambda: cost(model(x), labels), adamw(model))


@pair(
    "blocking-copy", "sounds", "pinned memory and non_blocking=True", TWELFTH,
    library="timm", accept=("host-stall",), steps=(3, 3),
)  # fmt: skip
def sounds_from_pageable_memory(variant: str) -> Step:
    """A ResNet-18 learns from spectra of 64 sounds of ten seconds, whose samples come from ordinary host memory."""
    model = on_device(lambda: timm.create_model("resnet18", num_classes=50, in_chans=1)).train()
    model = model.to(memory_format=torch.channels_last)
    sounds = torch.randn(size(64, 2), size(160_000, 8000), pin_memory=CUDA and variant == AFTER)
    labels, window = tokens(50, len(sounds)), torch.hann_window(1024, device=DEVICE)
    bands = torch.rand(513, 128, device=DEVICE)

    def loss() -> Tensor:
        x = sounds.to(DEVICE, non_blocking=variant == AFTER)
        with torch.autocast(DEVICE.type, enabled=False):
            spectra = torch.stft(x, 1024, 160, window=window, return_complex=True).abs().square()
        mel = (spectra.transpose(1, 2) @ bands).float().clamp(min=1e-6).log()
        return functional.cross_entropy(model(mel[:, None]).float(), labels)

    return training(loss, adamw(model))


@pair(
    "launch-overhead", "segmentation", "each frame replayed from a CUDA graph", TWELFTH,
    library="transformers", accept=("small-kernels",), inference=True, steps=(3, 3),
)  # fmt: skip
def segmenter_frame_by_frame(variant: str) -> Step:
    """A SegFormer-B1 segments the frames of one camera (640 × 640) in bf16 as they come, kernel by kernel."""
    config = transformers.SegformerConfig(
        hidden_sizes=[64, 128, 320, 512] if CUDA else [8, 16, 16, 16], depths=[2, 2, 2, 2] if CUDA else [1, 1, 1, 1],
        decoder_hidden_size=size(256, 16), num_labels=19,
    )  # fmt: skip
    model = on_device(lambda: transformers.SegformerForSemanticSegmentation(config), HALF).eval()
    frame = images(1, size(640, 64), HALF)

    def step() -> Tensor:
        return model(pixel_values=frame).logits.argmax(1)

    return step if variant == BEFORE else as_graph(step)


@pair(
    "unfused-optimizer", "training", "torch._foreach_lerp_ over tensors listed once", TWELFTH,
    library="timm", accept=("launch-overhead",), steps=(3, 3),
)  # fmt: skip
def average_over_state_dict(variant: str) -> Step:
    """An EfficientViT-B1 learns from 96 images in bf16; a moving average goes through state_dict() tensor by tensor."""
    model = on_device(lambda: timm.create_model("efficientvit_b1", num_classes=100)).train()
    model = model.to(memory_format=torch.channels_last)
    mean, decay = copy.deepcopy(model).eval().requires_grad_(False), 0.9999
    x, labels = images(size(96, 2), size(224, 64)).to(memory_format=torch.channels_last), tokens(100, size(96, 2))
    learn = training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))
    kept, live = ([v.detach() for v in each.state_dict().values() if v.is_floating_point()] for each in (mean, model))

    @torch.no_grad()
    def step() -> None:
        with torch.enable_grad():
            learn()
        if variant == AFTER:
            torch._foreach_lerp_(kept, live, 1 - decay)
            return
        values = model.state_dict()
        for key, value in mean.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(decay)
                value.add_((1 - decay) * values[key].detach())

    return step


@pair(
    "unfused-chain", "vision", "blocks compiled", TWELFTH,
    library="timm", accept=("launch-overhead",), compiles=True, steps=(3, 3),
)  # fmt: skip
def eva_blocks_eager(variant: str) -> Step:
    """An EVA-02-S (12 × 384) learns from 96 images in bf16: rotary embeddings, SwiGLU and norms in eager mode."""
    model = on_device(lambda: timm.create_model("eva02_small_patch14_224", num_classes=100)).train()
    if variant == AFTER:
        compiled(model.blocks)
    x, labels = images(size(96, 1), 224), tokens(100, size(96, 1))
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@healthy("vision", TWELFTH, library="timm", compiles=True, inference=True, steps=(3, 3))
def healthy_vit_channels_last(variant: str) -> Step:
    """A ViT with registers (20 × 512) classifies 256 images of 256 × 256: bf16, channels_last, compiled."""
    model = on_device(lambda: timm.create_model("vit_mediumd_patch16_reg4_gap_256"), HALF).eval()
    model = model.to(memory_format=torch.channels_last)
    compiled(model.blocks)
    x = images(size(256, 1), 256, HALF).to(memory_format=torch.channels_last)
    return lambda: model(x)
