"""Vision: timm and torchvision."""

from __future__ import annotations

import timm
import torch
import torchvision
from torch import Tensor
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, Step, healthy, pair

LAST = torch.channels_last


@pair("memory-format", "vision", "model and images to channels_last", library="torchvision", also_after=True)
def resnet_training_nchw(variant: str) -> Step:
    """ResNet-101, 128 images in mixed precision, in the memory format that images come in."""
    classes = size(1000, 16)
    model = on_device(lambda: torchvision.models.resnet101(num_classes=classes)).train()
    batch, labels = images(size(128, 2), size(224, 64)), tokens(classes, size(128, 2))
    if variant == AFTER:
        model, batch = model.to(memory_format=LAST), batch.to(memory_format=LAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    return training(lambda: functional.cross_entropy(model(batch), labels), optimizer)


@pair("launch-overhead", "vision", "replayed from a CUDA graph", library="timm", inference=True, profiler_steps=True)
def vit_tiny_single_image(variant: str) -> Step:
    """ViT-Ti/16 classifies one image at a time, kernel by kernel."""
    model = on_device(lambda: timm.create_model("vit_tiny_patch16_224", num_classes=size(1000, 16)), HALF).eval()
    image = images(1, 224, HALF)
    return as_graph(lambda: model(image)) if variant == AFTER else lambda: model(image)


@pair(
    "unfused-optimizer", "training", "AdamW(fused=True) instead of AdamW(foreach=False)",
    library="timm", also_after=True, with_stack=True, steps=(4, 2),
)  # fmt: skip
def convnext_loop_optimizer(variant: str) -> Step:
    """ConvNeXt-T, 32 images, in mixed precision; AdamW visits 178 tensors one by one."""
    classes = size(1000, 16)
    name = "convnext_tiny" if CUDA else "convnext_atto"
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).train().to(memory_format=LAST)
    batch, labels = images(size(32, 2), size(224, 64)).to(memory_format=LAST), tokens(classes, size(32, 2))
    optimizer = adamw(model, foreach=False) if variant == BEFORE else adamw(model)
    return training(lambda: functional.cross_entropy(model(batch), labels), optimizer)


@pair(
    "host-sync", "vision", "norms stay on the GPU and are read together at the end",
    library="torchvision", inference=True, with_stack=True,
)  # fmt: skip
def swin_activation_monitor(variant: str) -> Step:
    """Swin-T on 64 images; a hook on each of its layers reads the norm of one activation back at once."""
    model = on_device(lambda: torchvision.models.swin_t(num_classes=size(1000, 16)), HALF).eval()
    batch = images(size(64, 1), 224, HALF)
    norms: list[Tensor | float] = []

    def watch(module: torch.nn.Module, inputs: object, output: Tensor) -> None:
        norm = output[0].norm()
        norms.append(norm.item() if variant == BEFORE else norm)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm):
            module.register_forward_hook(watch)

    def step() -> list[float]:
        norms.clear()
        model(batch)
        return list(norms) if variant == BEFORE else torch.stack(norms).tolist()

    return step


@pair(
    "blocking-copy", "vision", "images in pinned memory, copied with non_blocking=True",
    library="timm", inference=True, also_after=True,
)  # fmt: skip
def vit_pageable_images(variant: str) -> Step:
    """ViT-S/16 on 256 images a step, which come from ordinary (pageable) host memory."""
    model = on_device(lambda: timm.create_model("vit_small_patch16_224", num_classes=size(1000, 16)), HALF).eval()
    batches = [torch.randn(size(256, 2), 3, 224, 224) for _ in range(3)]
    if variant == AFTER and CUDA:
        batches = [batch.pin_memory() for batch in batches]
    turn = iter(range(1 << 60))

    def step() -> Tensor:
        batch = batches[next(turn) % 3].to(DEVICE, non_blocking=variant == AFTER)
        return model(batch.to(HALF))

    return step


@pair(
    "small-kernels", "vision", "one batch of sixteen images instead of sixteen batches of one",
    accept=("launch-overhead",), library="timm", inference=True,
)  # fmt: skip
def vit_images_one_by_one(variant: str) -> Step:
    """ViT-S/16 on sixteen images, replayed from a CUDA graph: each image alone, by kernels that cannot fill the GPU."""
    model = on_device(lambda: timm.create_model("vit_small_patch16_224", num_classes=size(1000, 16)), HALF).eval()
    batch = images(size(16, 2), 224, HALF)
    if variant == AFTER:
        return as_graph(lambda: model(batch))
    return as_graph(lambda: torch.cat([model(image[None]) for image in batch]))


@healthy("training", library="timm", compiles=True)
def healthy_resnet_training(variant: str) -> Step:
    """ResNet-50, 256 images, channels_last, mixed precision, compiled."""
    classes = size(1000, 16)
    model = on_device(lambda: timm.create_model("resnet50", num_classes=classes)).train().to(memory_format=LAST)
    compiled([model])
    batch, labels = images(size(256, 2), size(224, 64)).to(memory_format=LAST), tokens(classes, size(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    return training(lambda: functional.cross_entropy(model(batch), labels), optimizer)


@healthy("vision", library="timm", compiles=True, inference=True)
def healthy_vit_inference(variant: str) -> Step:
    """ViT-L/16 on 128 images in bf16, blocks compiled."""
    name = "vit_large_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=size(1000, 16)), HALF).eval()
    compiled(model.blocks)
    batch = images(size(128, 1), 224, HALF)
    return lambda: model(batch)


@healthy("vision", library="timm", compiles=True, inference=True)
def healthy_vit_graph(variant: str) -> Step:
    """ViT-B/16 on 64 images in bf16, compiled and replayed from a CUDA graph."""
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=size(1000, 16)), HALF).eval()
    compiled(model.blocks)
    batch = images(size(64, 1), 224, HALF)
    return as_graph(lambda: model(batch))
