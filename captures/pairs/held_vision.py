"""Vision and diffusion of the half that was held out."""

from __future__ import annotations

import timm
import torch
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pairs.diffusion import Transformer
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, HELD_OUT, THIRD, Step, healthy, pair

LAST = torch.channels_last


@pair(
    "misaligned-shape", "vision", "a width of 1,056 (12 heads of 88) instead of 1,020 (12 heads of 85)", HELD_OUT,
    library="timm", inference=True, compiles=True, also_after=True,
)  # fmt: skip
def vit_odd_heads(variant: str) -> Step:
    """A ViT of 12 × 1,020 on 128 images, blocks compiled: widths and heads that are no multiples of eight."""
    heads, head = size(12, 2), 85 if variant == BEFORE else 88
    model = on_device(
        lambda: VisionTransformer(
            img_size=size(224, 64), embed_dim=heads * head, depth=size(12, 2), num_heads=heads, num_classes=0
        ),
        HALF,
    ).eval()
    compiled(model.blocks)
    batch = images(size(128, 2), size(224, 64), HALF)
    return lambda: model(batch)


@pair("memory-format", "vision", "model and images to channels_last", HELD_OUT, library="timm", steps=(4, 2))
def efficientnet_training_nchw(variant: str) -> Step:
    """EfficientNet-B2, 96 images in mixed precision: depthwise convolutions in the format that images come in."""
    classes = size(100, 16)
    name = "efficientnet_b2" if CUDA else "efficientnet_lite0"
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).train()
    batch, labels = images(size(96, 2), size(256, 64)), tokens(classes, size(96, 2))
    if variant == AFTER:
        model, batch = model.to(memory_format=LAST), batch.to(memory_format=LAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    return training(lambda: functional.cross_entropy(model(batch), labels), optimizer)


@pair(
    "unfused-attention", "vision", "fused_attn=True in each block", HELD_OUT,
    library="timm", inference=True, compiles=True, profiler_steps=True,
)  # fmt: skip
def vit_large_images_unfused(variant: str) -> Step:
    """ViT-B/16 on 32 images of 512 × 512 (1,025 positions), timm's fused attention switched off."""
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, img_size=size(512, 64), num_classes=0), HALF).eval()
    for block in model.blocks:
        block.attn.fused_attn = variant == AFTER
    batch = images(size(32, 2), size(512, 64), HALF)
    return lambda: model(batch)


@pair(
    "launch-overhead", "vision", "replayed from a CUDA graph", HELD_OUT,
    library="torchvision", inference=True, ranges=False,
)  # fmt: skip
def mobilenet_four_images(variant: str) -> Step:
    """MobileNetV3 on four images at a time, kernel by kernel, channels_last."""
    model = on_device(lambda: torchvision.models.mobilenet_v3_large(num_classes=size(1000, 16)), HALF).eval()
    model = model.to(memory_format=LAST)
    batch = images(4, 224, HALF).to(memory_format=LAST)
    return as_graph(lambda: model(batch)) if variant == AFTER else lambda: model(batch)


@pair(
    "unfused-optimizer", "training", "torch._foreach_lerp_ instead of a loop over tensors", HELD_OUT,
    library="torchvision", with_stack=True, steps=(4, 2),
)  # fmt: skip
def regnet_average_by_loop(variant: str) -> Step:
    """RegNetY-1.6GF, 48 images, channels_last; a moving average of all weights is kept tensor by tensor."""
    classes = size(100, 16)
    model = on_device(lambda: torchvision.models.regnet_y_1_6gf(num_classes=classes)).train().to(memory_format=LAST)
    weights = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    averages = [weight.detach().clone() for weight in weights]
    batch, labels = images(size(48, 2), size(224, 64)).to(memory_format=LAST), tokens(classes, size(48, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    train = training(lambda: functional.cross_entropy(model(batch), labels), optimizer)

    def step() -> None:
        train()
        with torch.no_grad():
            if variant == AFTER:
                torch._foreach_lerp_(averages, weights, 0.001)
                return
            for average, weight in zip(averages, weights, strict=True):
                average.mul_(0.999).add_(weight, alpha=0.001)

    return step


@pair(
    "host-sync", "training", "errors are weighed by the masks instead of picked with them", HELD_OUT,
    library="timm", with_stack=True, also_after=True, steps=(4, 2),
)  # fmt: skip
def masks_image_by_image(variant: str) -> Step:
    """A ViT-S/16 learns to fill in patches of 96 images; the loss picks the masked ones image by image."""
    side, count = size(224, 64), size(96, 3)
    name = "vit_small_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, img_size=side, num_classes=0)).train()
    head = on_device(lambda: nn.Linear(model.embed_dim, 768))
    batch = images(count, side)
    patches = (side // 16) ** 2
    target, masks = torch.randn(count, patches, 768, device=DEVICE), torch.rand(count, patches, device=DEVICE) < 0.6

    def loss() -> Tensor:
        error = (head(model.forward_features(batch)[:, 1:]) - target).square()
        if variant == BEFORE:
            return torch.stack([error[index][masks[index]].mean() for index in range(count)]).mean()
        weight = masks / masks.sum(1, keepdim=True)
        return (error.mean(-1) * weight).sum(1).mean()

    return training(loss, adamw(nn.ModuleList([model, head])))


@pair(
    "blocking-copy", "vision", "classes are chosen on the GPU and copied as bytes", HELD_OUT,
    library="torchvision", inference=True,
)  # fmt: skip
def segmentation_maps_to_host(variant: str) -> Step:
    """LR-ASPP on 16 images of 512 × 512; the scores of 21 classes for each pixel go to pageable host memory."""
    model = on_device(
        lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=21), HALF
    ).eval()
    model = model.to(memory_format=LAST)
    batch = images(size(16, 2), size(512, 64), HALF).to(memory_format=LAST)

    def step() -> Tensor:
        scores = model(batch)["out"]
        if variant == BEFORE:
            return scores.float().cpu()
        return scores.argmax(1).to(torch.uint8).cpu()

    return step


class Stage(nn.Module):
    """A residual block of a U-Net, with the time added in between."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time, self.skip = nn.Linear(time, after), nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """X [batch, before, side, side], time [batch, time]."""
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class UNet(nn.Module):
    """A U-Net of three resolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width]
        self.into, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down = nn.ModuleList([Stage(w[0], w[0], 256), Stage(w[0], w[1], 256), Stage(w[1], w[2], 256)])
        self.middle = Stage(w[2], w[2], 256)
        self.up = nn.ModuleList([Stage(2 * w[2], w[1], 256), Stage(2 * w[1], w[0], 256), Stage(2 * w[0], w[0], 256)])

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """X [batch, 4, side, side]."""
        x = self.into(x)
        skips = []
        for stage in self.down:
            x = stage(x, time)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for stage in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = stage(torch.cat([x, skips.pop()], 1), time)
        return self.out(x)


@pair(
    "allocator-churn", "diffusion", "without torch.cuda.empty_cache() after each denoising step", HELD_OUT,
    inference=True, ranges=True, with_stack=True,
)  # fmt: skip
def unet_sampling_empty_cache(variant: str) -> Step:
    """A U-Net denoises 8 latents of 64 × 64 in four steps, and gives the allocator's cache back after each."""
    model = on_device(lambda: UNet(size(128, 8)), HALF).eval()
    noise = torch.randn(size(8, 2), 4, size(64, 16), size(64, 16), device=DEVICE, dtype=HALF)
    times = torch.randn(4, noise.shape[0], 256, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x = noise
        for time in times:
            x = x - 0.1 * model(x, time)
            if variant == BEFORE:
                torch.cuda.empty_cache()
        return x

    return step


class Checkpointed(Transformer):
    """A DiT whose blocks can be run again in the backward pass."""

    again = True

    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        """Latents [batch, 4, side, side], time [batch, 256]."""
        condition = self.time(time)
        x = self.patches(latents) + self.positions
        for block in self.blocks:
            x = checkpoint(block, x, condition, use_reentrant=False) if self.again else block(x, condition)
        return self.out(self.norm(x))


@pair(
    "recomputation", "diffusion", "without checkpoint() around each block", HELD_OUT,
    library="timm", compiles=True, with_stack=False,
)  # fmt: skip
def dit_training_checkpointed(variant: str) -> Step:
    """A DiT of 10 × 1,024 trained on 64 latents of 32 × 32, blocks compiled, checkpointed though memory is free."""
    side, batch = size(32, 8), size(64, 2)
    model = on_device(lambda: Checkpointed(side, size(10, 2), size(1024, 64), size(16, 2))).train()
    model.again = variant == BEFORE
    compiled(model.blocks)
    latents, time = torch.randn(batch, 4, side, side, device=DEVICE), torch.randn(batch, 256, device=DEVICE)
    return training(lambda: model(latents, time).float().square().mean(), adamw(model))


@healthy("vision", HELD_OUT, library="torchvision", compiles=True)
def healthy_vgg_training(variant: str) -> Step:
    """VGG-16 with batch norm, 128 images, channels_last, mixed precision, compiled."""
    classes = size(100, 16)
    name = torchvision.models.vgg16_bn if CUDA else torchvision.models.vgg11_bn
    model = on_device(lambda: name(num_classes=classes)).train().to(memory_format=LAST)
    compiled([model])
    batch, labels = images(size(128, 2), size(224, 64)).to(memory_format=LAST), tokens(classes, size(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    return training(lambda: functional.cross_entropy(model(batch), labels), optimizer)


@healthy("vision", HELD_OUT, library="timm", compiles=True, inference=True, profiler_steps=True)
def healthy_vit_huge(variant: str) -> Step:
    """Eight blocks of ViT-H/14 on 96 images in bf16, blocks compiled."""
    model = on_device(
        lambda: VisionTransformer(
            img_size=size(224, 56), patch_size=14, embed_dim=size(1280, 64), depth=size(8, 2), num_heads=size(16, 2)
        ),
        HALF,
    ).eval()
    compiled(model.blocks)
    batch = images(size(96, 2), size(224, 56), HALF)
    return lambda: model(batch)


@healthy("diffusion", THIRD, library="timm", compiles=True)
def healthy_dit_training(variant: str) -> Step:
    """A DiT of 8 × 1,536 trained on 96 latents of 32 × 32, blocks compiled, fused AdamW."""
    side, batch = size(32, 8), size(96, 2)
    model = on_device(lambda: Checkpointed(side, size(8, 2), size(1536, 64), size(24, 2))).train()
    model.again = False
    compiled(model.blocks)
    latents, time = torch.randn(batch, 4, side, side, device=DEVICE), torch.randn(batch, 256, device=DEVICE)
    return training(lambda: model(latents, time).float().square().mean(), adamw(model))


@healthy("prefill", THIRD, inference=True)
def healthy_graphed_encoder(variant: str) -> Step:
    """Eight layers of torch's own transformer encoder (its fused path), 64 × 256 tokens, replayed from a CUDA graph."""
    layer = nn.TransformerEncoderLayer(size(1024, 64), size(16, 2), size(4096, 96), 0.0, "gelu", batch_first=True)
    model = on_device(lambda: nn.TransformerEncoder(layer, size(8, 2), enable_nested_tensor=False), HALF).eval()
    x = torch.randn(size(64, 2), size(256, 16), size(1024, 64), device=DEVICE, dtype=HALF)
    return as_graph(lambda: model(x))
