"""Vision, point clouds, diffusion and detection of the fifth set: written without a look at the rules."""

from __future__ import annotations

import itertools
import time

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from pairs.diffusion import Transformer
from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FIFTH, Step, healthy, pair

LAST = torch.channels_last


@pair(
    "host-stall", "diffusion", "noise and times are drawn on the GPU (device=…), not on the CPU", FIFTH,
    library="timm", accept=("blocking-copy",), compiles=True, steps=(3, 2),
)  # fmt: skip
def noise_from_the_host(variant: str) -> Step:
    """A DiT of 6 × 512 learns to denoise 128 latents of 64 × 64; the noise is drawn by the CPU and copied."""
    side, batch = size(64, 8), size(128, 2)
    model = on_device(lambda: Transformer(side, size(6, 1), size(512, 32), size(8, 2))).train()
    compiled(model.blocks)
    latents = images(batch, side, channels=4)
    where = DEVICE if variant == AFTER else torch.device("cpu")
    optimizer = adamw(model)

    def step() -> None:
        noise = torch.randn(latents.shape, device=where).to(DEVICE)
        moment = torch.rand(batch, device=where).to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            share = moment[:, None, None, None]
            found = model((1 - share) * latents + share * noise, 1000 * moment)
            wanted = functional.pixel_unshuffle(noise - latents, 2).flatten(2).mT
            loss = functional.mse_loss(found.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Codes(nn.Module):
    """The quantiser of a VQ-VAE: each latent is replaced by the nearest of the codes."""

    def __init__(self, count: int, width: int, *, by_product: bool) -> None:
        super().__init__()
        self.codes, self.by_product = nn.Parameter(torch.randn(count, width)), by_product

    def forward(self, latents: Tensor) -> Tensor:
        """Latents [batch, width, side, side]."""
        rows = latents.permute(0, 2, 3, 1).reshape(-1, latents.shape[1])
        with torch.no_grad():
            if self.by_product:
                chosen = torch.cdist(rows, self.codes).argmin(1)
            else:
                chosen = (rows[:, None] - self.codes[None]).pow(2).sum(-1).argmin(1)
        found = self.codes[chosen].view_as(latents.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return latents + (found - latents).detach()


class Autoencoder(nn.Module):
    """A small VQ-VAE."""

    def __init__(self, width: int, count: int, *, by_product: bool) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(width, 64, 4, 2, 1),
        )  # fmt: skip
        self.codes = Codes(count, 64, by_product=by_product)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(64, width, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 3, side, side], and the like back."""
        return self.up(self.codes(self.down(x).float()))


@pair(
    "unfused-chain", "autoencoder", "torch.cdist instead of differences of all with all", FIFTH,
    accept=("unfused-attention",), steps=(3, 2),
)  # fmt: skip
def nearest_code_by_differences(variant: str) -> Step:
    """A VQ-VAE (128 channels) learns 16 images of 256 × 256; latents less codes are 16,384 × 1,024 × 64 numbers."""
    model = on_device(lambda: Autoencoder(size(128, 8), size(1024, 8), by_product=variant == AFTER)).train()
    pictures = images(size(16, 1), size(256, 16))
    return training(lambda: functional.mse_loss(model(pictures).float(), pictures), adamw(model))


class Edges(nn.Module):
    """An edge convolution of DGCNN (arXiv:1801.07829): the k nearest points, and the largest of what they give."""

    def __init__(self, into: int, out: int, *, sorts: bool) -> None:
        super().__init__()
        self.product, self.sorts = nn.Linear(2 * into, out), sorts

    def forward(self, x: Tensor) -> Tensor:
        """X [clouds, points, into]."""
        count = min(20, x.shape[1])
        far = torch.cdist(x.float(), x.float())
        near = far.argsort(-1)[..., :count] if self.sorts else far.topk(count, largest=False).indices
        clouds = torch.arange(x.shape[0], device=x.device)[:, None, None]
        beside = x[clouds, near]
        here = x[:, :, None].expand_as(beside)
        return functional.leaky_relu(self.product(torch.cat([here, beside - here], -1)), 0.2).amax(2)


@pair(
    "scattered-access", "point clouds", "topk(20) instead of argsort(…)[:20]", FIFTH, inference=True, steps=(3, 2),
)  # fmt: skip
def argsort_for_neighbours(variant: str) -> Step:
    """DGCNN's four layers on 32 clouds of 2,048 points; all distances are sorted to take the twenty shortest."""
    widths = [3, size(64, 8), size(64, 8), size(128, 8), size(256, 8)]
    model = on_device(
        lambda: nn.Sequential(*[Edges(a, b, sorts=variant == BEFORE) for a, b in itertools.pairwise(widths)])
    ).eval()
    points = torch.randn(size(32, 2), size(2048, 24), 3, device=DEVICE)
    return lambda: model(points).amax(1)


@pair(
    "unfused-chain", "vision", "torch.fx.experimental.optimization.fuse: batch norms go into convolutions", FIFTH,
    library="torchvision", inference=True, steps=(3, 2),
)  # fmt: skip
def batch_norms_not_folded(variant: str) -> Step:
    """A ResNet-101 classifies 128 images in bf16 and channels_last; each convolution is followed by its batch norm."""
    model = on_device(lambda: torchvision.models.resnet101(num_classes=size(1000, 8)), HALF).eval()
    if variant == AFTER:
        from torch.fx.experimental.optimization import fuse

        model = fuse(model)
    model = model.to(memory_format=LAST)
    pictures = images(size(128, 1), size(224, 64), HALF).to(memory_format=LAST)
    return lambda: model(pictures)


@pair(
    "host-sync", "vision", "without torch.cuda.synchronize() around each block", FIFTH,
    library="timm", inference=True, steps=(3, 2), with_stack=True,
)  # fmt: skip
def blocks_are_timed(variant: str) -> Step:
    """ViT-S/16 classifies 32 images; hooks that were left in measure each block, and wait for the GPU to do so."""
    name = "vit_small_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=size(1000, 8)), HALF).eval()
    pictures = images(size(32, 1), 224, HALF)
    began: list[float] = []
    took: list[float] = []

    def now() -> float:
        if CUDA:
            torch.cuda.synchronize()
        return time.perf_counter()

    if variant == BEFORE:
        for block in model.blocks:
            block.register_forward_pre_hook(lambda *_: began.append(now()))
            block.register_forward_hook(lambda *_: took.append(now() - began.pop()))
    return lambda: model(pictures)


@pair(
    "host-sync", "detection", "torchvision.ops.batched_nms instead of nms for each class", FIFTH,
    library="torchvision", accept=("launch-overhead", "small-kernels", "host-stall"), inference=True, steps=(2, 1),
)  # fmt: skip
def boxes_class_by_class(variant: str) -> Step:
    """A RetinaNet-like head over a ResNet-50 finds objects of 40 classes in 4 images; doubles go class by class."""
    classes, count = size(40, 2), size(1000, 20)
    body = on_device(lambda: torchvision.models.resnet50(num_classes=8), HALF).eval().to(memory_format=LAST)
    pictures = images(size(4, 1), size(512, 64), HALF).to(memory_format=LAST)
    torch.manual_seed(0)
    corners = torch.rand(pictures.shape[0], count, 2, device=DEVICE) * 400
    boxes = torch.cat([corners, corners + 20 + 80 * torch.rand_like(corners)], -1)
    scores, labels = torch.rand(boxes.shape[:2], device=DEVICE), tokens(classes, *boxes.shape[:2])

    def step() -> list[Tensor]:
        body(pictures)
        kept = []
        for some, score, label in zip(boxes, scores, labels, strict=True):
            if variant == AFTER:
                kept.append(torchvision.ops.batched_nms(some, score, label, 0.5))
                continue
            for number in range(classes):
                of_class = torch.where(label == number)[0]
                kept.append(of_class[torchvision.ops.nms(some[of_class], score[of_class], 0.5)])
        return kept

    return step


@healthy("vision", FIFTH, library="torchvision", compiles=True, inference=True, steps=(3, 2))
def healthy_resnet_blocks(variant: str) -> Step:
    """A ResNet-152 classifies 256 images in bf16 and channels_last, its blocks compiled."""
    model = on_device(lambda: torchvision.models.resnet152(num_classes=size(1000, 8)), HALF).eval()
    model = model.to(memory_format=LAST)
    compiled(block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage)
    pictures = images(size(256, 1), size(224, 64), HALF).to(memory_format=LAST)
    return lambda: model(pictures)
