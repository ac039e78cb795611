"""The seventh set: images, frames and tables, as scripts that work and were never looked at for speed."""

from __future__ import annotations

from typing import Any

import timm
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms import v2

from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, SEVENTH, Step, healthy, pair

LAST = torch.channels_last


@pair(
    "launch-overhead", "training", "the transform is given the batch instead of each image", SEVENTH,
    library="timm, torchvision", accept=("small-kernels", "host-stall", "per-expert-loop"), steps=(2, 1),
)  # fmt: skip
def augmented_image_by_image(variant: str) -> Step:
    """A DeiT-III-S learns from 64 images; torchvision crops, flips and recolours them on the GPU, one by one."""
    count, side = size(64, 2), size(224, 32)
    model = on_device(
        lambda: timm.create_model("deit3_small_patch16_224", depth=size(12, 1), num_classes=100, img_size=side)
    ).train()
    change = v2.Compose(
        [
            v2.RandomResizedCrop(side, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    photos = torch.rand(count, 3, size(256, 40), size(256, 40), device=DEVICE)
    labels = tokens(100, count)

    def loss() -> Tensor:
        x = change(photos) if variant == AFTER else torch.stack([change(photo) for photo in photos])
        return functional.cross_entropy(model(x), labels)

    return training(loss, adamw(model))


@pair(
    "unused-gradients", "fine-tuning", "torch.no_grad() around the backbone, whose weights the optimizer does not have",
    SEVENTH, library="timm", accept=("recomputation",), steps=(3, 2),
)  # fmt: skip
def probe_without_no_grad(variant: str) -> Step:
    """A linear classifier learns on a DINOv2 ViT-B with 64 images; gradients of the backbone are worked out, too."""
    side = size(224, 28)
    model = on_device(
        lambda: timm.create_model("vit_base_patch14_reg4_dinov2", depth=size(12, 1), img_size=side, num_classes=0)
    )
    head = on_device(lambda: nn.Linear(model.num_features, 1000))
    x, labels = images(size(64, 2), side), tokens(1000, size(64, 2))

    def loss() -> Tensor:
        with torch.set_grad_enabled(variant == BEFORE):
            features = model(x)
        return functional.cross_entropy(head(features), labels)

    return training(loss, adamw(head))


class ChannelNorm(nn.Module):
    """A layer norm over channels, as it is often written for images."""

    def __init__(self, channels: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels)), eps

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, channels, height, width]."""
        mean = x.mean(1, keepdim=True)
        spread = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(spread + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@pair(
    "unfused-chain", "training", "timm's LayerNorm2d instead of the norm written out", SEVENTH, library="timm",
    steps=(3, 2),
)  # fmt: skip
def channel_norm_written_out(variant: str) -> Step:
    """A ConvNeXt-T of 1 × 1 convolutions learns from 96 images in channels_last; its norms are formulas of passes."""
    norm = timm.layers.LayerNorm2d if variant == AFTER else ChannelNorm
    model = on_device(
        lambda: timm.create_model(
            "convnext_tiny", depths=(3, 3, size(9, 1), size(3, 1)), num_classes=100, conv_mlp=True, norm_layer=norm
        )
    ).train()
    model = model.to(memory_format=LAST)
    x = images(size(96, 1), size(224, 32)).to(memory_format=LAST)
    labels = tokens(100, size(96, 1))
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


@pair(
    "host-sync", "training", "metrics with validate_args=False, and update() instead of a call", SEVENTH,
    library="timm, torchmetrics", accept=("launch-overhead", "host-stall"), steps=(2, 1),
)  # fmt: skip
def metrics_that_validate(variant: str) -> Step:
    """A MobileNetV4-S learns from 128 images; torchmetrics counts accuracies, F1 and confusions after each step."""
    classes, count = size(100, 10), size(128, 2)
    model = on_device(lambda: timm.create_model("mobilenetv4_conv_small", num_classes=classes)).train()
    model = model.to(memory_format=LAST)
    x = images(count, size(224, 64)).to(memory_format=LAST)
    labels = tokens(classes, count)
    how = {"num_classes": classes, "validate_args": variant == BEFORE}
    kinds = torchmetrics.classification
    metrics = [
        kinds.MulticlassAccuracy(**how), kinds.MulticlassAccuracy(top_k=5, **how), kinds.MulticlassF1Score(**how),
        kinds.MulticlassConfusionMatrix(**how),
    ]  # fmt: skip
    metrics = [metric.to(DEVICE) for metric in metrics]
    seen: list[Tensor] = []

    def loss() -> Tensor:
        scores = model(x)
        seen[:] = [scores.detach().float()]
        return functional.cross_entropy(scores, labels)

    train = training(loss, adamw(model))

    def step() -> None:
        train()
        for metric in metrics:
            if variant == AFTER:
                metric.update(seen[0], labels)
            else:
                metric(seen[0], labels)

    return step


@pair(
    "launch-overhead", "video", "all frames in one batch instead of a loop over frames", SEVENTH,
    library="timm", accept=("small-kernels",), inference=True, steps=(3, 2),
)  # fmt: skip
def frames_one_by_one(variant: str) -> Step:
    """An EfficientViT-B1 looks at 16 frames of 4 videos, frame by frame; a GRU reads its features."""
    count, frames, side = size(4, 1), size(16, 2), size(224, 64)
    model = on_device(lambda: timm.create_model("efficientvit_b1", num_classes=0), HALF).eval()
    reader = on_device(lambda: nn.GRU(model.head_hidden_size, 256, batch_first=True), HALF).eval()
    videos = torch.randn(count, frames, 3, side, side, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        if variant == AFTER:
            features = model(videos.flatten(0, 1)).unflatten(0, (count, frames))
        else:
            features = torch.stack([model(videos[:, index]) for index in range(frames)], 1)
        return reader(features)[0]

    return step


@pair(
    "launch-overhead", "reinforcement learning", "one product with a triangle of discounts", SEVENTH,
    accept=("small-kernels", "per-expert-loop"), steps=(2, 1),
)  # fmt: skip
def advantages_by_loop(variant: str) -> Step:
    """PPO on 256 steps of 1,024 environments; advantages are summed up from the last step to the first, on the GPU."""
    length, count, width = size(256, 8), size(1024, 4), size(512, 16)
    decay = 0.99 * 0.95

    def network(out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))

    policy, critic = on_device(lambda: network(8)), on_device(lambda: network(1))
    optimizer = adamw(nn.ModuleList([policy, critic]))
    states, rewards = torch.randn(length + 1, count, 64, device=DEVICE), torch.randn(length, count, device=DEVICE)
    actions, old = tokens(8, length, count), torch.full((length, count), -2.0, device=DEVICE)

    def advantages(values: Tensor) -> Tensor:
        errors = rewards + 0.99 * values[1:] - values[:-1]
        if variant == AFTER:
            away = torch.arange(length, device=DEVICE)
            away = away - away[:, None]
            return torch.where(away >= 0, decay ** away.clamp(min=0).float(), 0.0) @ errors
        result = torch.zeros_like(errors)
        last = torch.zeros(count, device=DEVICE)
        for index in reversed(range(length)):
            last = errors[index] + decay * last
            result[index] = last
        return result

    def step() -> None:
        with torch.no_grad():
            values = critic(states).squeeze(-1)
            gains = advantages(values)
            wanted = gains + values[:-1]
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        for part in range(2):
            chosen = slice(part * count // 2, (part + 1) * count // 2)

            def loss(chosen: slice = chosen) -> Tensor:
                chances = policy(states[:-1, chosen]).float().log_softmax(-1)
                ratio = (chances.gather(-1, actions[:, chosen, None]).squeeze(-1) - old[:, chosen]).exp()
                won = torch.minimum(ratio * gains[:, chosen], ratio.clamp(0.8, 1.2) * gains[:, chosen])
                error = critic(states[:-1, chosen]).squeeze(-1).float() - wanted[:, chosen]
                return error.square().mean() - won.mean()

            training(loss, optimizer)()

    return step


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, width, height, width of the image]."""
        return x + 0.1 * self.second(functional.relu(self.first(x)))


@healthy("super-resolution", SEVENTH, compiles=True, inference=True, steps=(2, 1))
def healthy_super_resolution(variant: str) -> Step:
    """EDSR's 16 residual blocks of 256 channels on 16 images of 192 × 192: bf16, channels_last, blocks compiled."""
    width = size(256, 8)
    blocks = [Residual(width) for _ in range(size(16, 1))]
    model = on_device(lambda: nn.Sequential(*blocks), HALF).eval().to(memory_format=LAST)
    compiled(blocks)
    x = images(size(16, 1), size(192, 16), HALF, width).to(memory_format=LAST)
    return lambda: model(x)


@healthy("vision", SEVENTH, compiles=True, inference=True, library="timm", steps=(3, 2))
def healthy_prefetched_bytes(variant: str) -> Step:
    """A SigLIP ViT-L embeds 96 images a step; the next bytes come meanwhile, pinned, in a stream of their own."""
    count, side = size(96, 1), size(256, 32)
    model = on_device(
        lambda: timm.create_model("vit_large_patch16_siglip_256", depth=size(16, 1), num_classes=0, img_size=side),
        HALF,
    ).eval()
    compiled(model.blocks)
    batches = [torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8) for _ in range(2)]
    if not CUDA:
        return lambda: model(batches[0].to(HALF).div_(127.5).sub_(1))
    batches = [batch.pin_memory() for batch in batches]
    stream = torch.cuda.Stream()
    turn = [0, batches[0].to(DEVICE)]

    def step() -> Tensor:
        now = turn[1]
        torch.cuda.current_stream().wait_stream(stream)
        now.record_stream(torch.cuda.current_stream())
        turn[0] += 1
        with torch.cuda.stream(stream):
            turn[1] = batches[turn[0] % 2].to(DEVICE, non_blocking=True)
        return model(now.to(HALF).div_(127.5).sub_(1))

    return step
