"""The eighth set: images and volumes, each with a habit that a review of an ordinary script finds."""

from __future__ import annotations

import timm
import torch
import torchvision
import transformers
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, EIGHTH, Step, healthy, pair

LAST = torch.channels_last


@pair(
    "launch-overhead", "segmentation", "all tiles in one batch instead of one by one", EIGHTH,
    library="transformers", accept=("small-kernels", "per-expert-loop"), inference=True, steps=(1, 1),
)  # fmt: skip
def tiles_one_by_one(variant: str) -> Step:
    """A SegFormer-B1 segments a photograph of 1,280 × 1,280 by 16 tiles of 512, which overlap; a window slides."""
    side, stride = size(512, 64), size(256, 32)
    config = transformers.SegformerConfig(
        depths=(2, 2, size(2, 1), size(2, 1)), hidden_sizes=(64, 128, size(320, 160), size(512, 256)), num_labels=19,
    )  # fmt: skip
    model = on_device(lambda: transformers.SegformerForSemanticSegmentation(config), HALF).eval()
    photo = images(1, side + 3 * stride if side == 512 else side + stride, HALF)
    length = photo.shape[-1]
    corners = [(y, x) for y in range(0, length - side + 1, stride) for x in range(0, length - side + 1, stride)]

    def step() -> Tensor:
        tiles = [photo[..., y : y + side, x : x + side] for y, x in corners]
        if variant == AFTER:
            scores = list(model(pixel_values=torch.cat(tiles)).logits.split(1))
        else:
            scores = [model(pixel_values=tile).logits for tile in tiles]
        total = torch.zeros(1, 19, length // 4, length // 4, device=DEVICE, dtype=HALF)
        for (y, x), score in zip(corners, scores, strict=True):
            total[..., y // 4 : (y + side) // 4, x // 4 : (x + side) // 4] += score
        return total.argmax(1)

    return step


def up(into: int, out: int) -> nn.Module:
    """Twice the side."""
    return nn.Sequential(
        nn.Upsample(scale_factor=2), nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


def down(into: int, out: int) -> nn.Module:
    """Half the side."""
    return nn.Sequential(nn.Conv2d(into, out, 4, 2, 1), nn.LeakyReLU(0.2))


@pair(
    "unused-gradients", "generation", "the critic learns from fake.detach()", EIGHTH,
    accept=("recomputation",), compiles=True, steps=(2, 1),
)  # fmt: skip
def generator_not_detached(variant: str) -> Step:
    """A GAN on 64 images of 128 × 128; the critic's loss is differentiated through the generator, which stays."""
    width, count, side = size(128, 8), size(64, 2), 128
    generator = on_device(
        lambda: nn.Sequential(
            nn.Unflatten(1, (size(512, 8), 4, 4)),
            up(size(512, 8), 8 * width),
            up(8 * width, 4 * width),
            up(4 * width, 4 * width),
            up(4 * width, 2 * width),
            up(2 * width, width),
            nn.Conv2d(width, 3, 3, padding=1),
            nn.Tanh(),
        )
    ).to(memory_format=LAST)
    critic = on_device(
        lambda: nn.Sequential(
            down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Conv2d(512, 1, 8), nn.Flatten()
        )
    ).to(memory_format=LAST)
    compiled([generator, critic])
    first, second = adamw(critic), adamw(generator)
    real = images(count, side).to(memory_format=LAST)

    def judged() -> Tensor:
        fake = generator(torch.randn(count, 16 * size(512, 8), device=DEVICE))
        if variant == AFTER:
            fake = fake.detach()
        return functional.relu(1 - critic(real)).mean() + functional.relu(1 + critic(fake)).mean()

    def fooled() -> Tensor:
        return -critic(generator(torch.randn(count, 16 * size(512, 8), device=DEVICE))).mean()

    def step() -> None:
        for _ in range(2):
            training(judged, first)()
        generator.zero_grad()
        training(fooled, second)()
        critic.zero_grad()

    return step


class Detector(nn.Module):
    """Queries look at the features of a ResNet, as in DETR."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        net = torchvision.models.resnet50()
        self.net = nn.Sequential(*list(net.children())[:-2])
        self.into = nn.Conv2d(2048, width, 1)
        self.queries = nn.Parameter(torch.randn(100, width))
        self.reader = nn.Transformer(width, 8, size(4, 1), size(4, 1), 8 * width, 0.0, batch_first=True)
        self.named, self.placed = nn.Linear(width, classes + 1), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """X [batch, 3, side, side]."""
        seen = self.into(self.net(x)).flatten(2).transpose(1, 2)
        found = self.reader(seen, self.queries.expand(len(x), -1, -1))
        return self.named(found), self.placed(found).sigmoid()


def both(one: Tensor, other: Tensor) -> Tensor:
    """1 - generalised overlap of boxes [..., n, 4] and [..., m, 4], given by centre and size."""
    corners = [
        torch.cat([box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2], -1) for box in (one, other)
    ]
    a, b = corners[0][..., :, None, :], corners[1][..., None, :, :]
    inner = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    outer = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inner
    return 1 - inner / union + (outer - union) / outer


@pair(
    "host-sync", "detection", "costs of all images at once, copied once", EIGHTH,
    library="torchvision, scipy", accept=("blocking-copy", "host-stall", "launch-overhead"), steps=(2, 1),
)  # fmt: skip
def boxes_matched_by_image(variant: str) -> Step:
    """A DETR (ResNet-50, 4 + 4 × 256) learns from 32 images of 256 × 256; SciPy matches boxes, image by image."""
    classes, count, wanted = 80, size(32, 2), 20
    model = on_device(lambda: Detector(classes, size(256, 32))).train().to(memory_format=LAST)
    x = images(count, size(256, 64)).to(memory_format=LAST)
    labels = tokens(classes, count, wanted)
    boxes = torch.rand(count, wanted, 4, device=DEVICE) * 0.5 + 0.25

    def costs(named: Tensor, placed: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        chances = named.softmax(-1)
        given = chances.gather(-1, labels[..., None, :].expand(*chances.shape[:-1], -1))
        return 5 * torch.cdist(placed, boxes, p=1) - given + 2 * both(placed, boxes)

    def loss() -> Tensor:
        named, placed = (t.float() for t in model(x))
        with torch.no_grad():
            if variant == AFTER:
                table = costs(named, placed, labels, boxes).cpu()
                pairs = torch.stack([torch.as_tensor(linear_sum_assignment(t)[0]) for t in table]).to(DEVICE)
                order = torch.stack([torch.as_tensor(linear_sum_assignment(t)[1]) for t in table]).to(DEVICE)
            else:
                both_ways = [
                    [torch.as_tensor(index, device=DEVICE) for index in linear_sum_assignment(costs(*part).cpu())]
                    for part in zip(named, placed, labels, boxes, strict=True)
                ]
                pairs, order = (torch.stack(list(side)) for side in zip(*both_ways, strict=True))
        aim = torch.full(named.shape[:2], classes, device=DEVICE)
        aim.scatter_(1, pairs, labels.gather(1, order))
        chosen = placed.gather(1, pairs[..., None].expand(-1, -1, 4))
        right = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        return functional.cross_entropy(named.flatten(0, 1), aim.flatten()) + functional.l1_loss(chosen, right)

    return training(loss, adamw(model))


def thick(into: int, out: int, stride: int = 1) -> nn.Module:
    """Two convolutions of a volume, as in nnU-Net."""
    parts: list[nn.Module] = []
    for a, b, s in ((into, out, stride), (out, out, 1)):
        parts += [nn.Conv3d(a, b, 3, s, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(inplace=True)]
    return nn.Sequential(*parts)


class Volumes(nn.Module):
    """A U-Net of three resolutions for volumes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([thick(1, width), thick(width, 2 * width, 2), thick(2 * width, 4 * width, 2)])
        self.grow = nn.ModuleList(
            [nn.ConvTranspose3d(4 * width, 2 * width, 2, 2), nn.ConvTranspose3d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([thick(4 * width, 2 * width), thick(2 * width, width)])
        self.out = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 1, side, side, side]."""
        kept = []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        kept.pop()
        for grow, stage in zip(self.grow, self.up, strict=True):
            x = stage(torch.cat([grow(x), kept.pop()], 1))
        return self.out(x)


@pair("precision", "segmentation", "mixed precision, which is not the default", EIGHTH, steps=(2, 1))
def volumes_in_fp32(variant: str) -> Step:
    """A 3D U-Net (64 to 256 channels) learns from two volumes of 96 × 96 × 96 with 14 organs, in fp32."""
    side = size(96, 8)
    model = on_device(lambda: Volumes(size(64, 4), 14)).train()
    x = torch.randn(2, 1, side, side, side, device=DEVICE)
    labels = tokens(14, 2, side, side, side)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model), mixed=variant == AFTER)


class Denoised(nn.Module):
    """Norm, SiLU, convolution; twice, with the time between them, as in Stable Diffusion's U-Net."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(size(32, 2), width) for _ in range(2)])
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(2)])
        self.time = nn.Linear(size(1280, 16), width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """X [batch, width, side, side]."""
        y = self.convs[0](functional.silu(self.norms[0](x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return x + self.convs[1](functional.silu(self.norms[1](y)))


@pair(
    "unfused-chain", "diffusion", "blocks compiled: norm and SiLU in one pass", EIGHTH, compiles=True,
    accept=("memory-format",), steps=(3, 2),
)  # fmt: skip
def norms_and_silu_apart(variant: str) -> Step:
    """Eight blocks of a latent diffusion U-Net (320 channels) learn from 32 latents of 64 × 64, channels_last."""
    width, count, side = size(320, 8), size(32, 2), size(64, 8)
    blocks = on_device(lambda: nn.ModuleList([Denoised(width) for _ in range(size(8, 1))])).to(memory_format=LAST)
    if variant == AFTER:
        compiled(blocks)
    x = images(count, side, channels=width).to(memory_format=LAST)
    time, noise = torch.randn(count, size(1280, 16), device=DEVICE), torch.randn_like(x)

    def loss() -> Tensor:
        y = x
        for block in blocks:
            y = block(y, time)
        return functional.mse_loss(y.float(), noise)

    return training(loss, adamw(blocks))


@pair(
    "unfused-optimizer", "fine-tuning", "parameters of equal settings in one group, as timm makes them", EIGHTH,
    library="timm", accept=("launch-overhead",), steps=(2, 1),
)  # fmt: skip
def group_for_each_weight(variant: str) -> Step:
    """A BEiT-B is fine-tuned on 32 images with a learning rate for each layer; every tensor has a group of its own."""
    model = on_device(
        lambda: timm.create_model("beitv2_base_patch16_224", depth=size(12, 1), num_classes=100, img_size=size(224, 32))
    ).train()
    groups: dict[object, dict[str, object]] = {}
    for name, weight in model.named_parameters():
        layer = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else 0 if "embed" in name else 13
        setting = {"lr": 1e-3 * 0.75 ** (13 - layer), "weight_decay": 0.05 if weight.ndim > 1 else 0.0}
        key = tuple(setting.values()) if variant == AFTER else name
        groups.setdefault(key, {"params": [], **setting})["params"].append(weight)
    optimizer = torch.optim.AdamW(list(groups.values()))
    x, labels = images(size(32, 2), size(224, 32)), tokens(100, size(32, 2))
    return training(lambda: functional.cross_entropy(model(x), labels), optimizer)


@healthy("distillation", EIGHTH, library="timm", compiles=True, steps=(3, 2))
def healthy_distillation(variant: str) -> Step:
    """A ViT-B of 8 blocks learns from a ViT-L of 8, which has no gradients, with 128 images; blocks compiled."""

    def vit(name: str) -> nn.Module:
        model = on_device(
            lambda: timm.create_model(name, depth=size(8, 1), num_classes=1000, dynamic_img_size=size(1, 0) == 0)
        )
        compiled(model.blocks)
        return model

    student, teacher = vit("vit_base_patch16_224").train(), vit("vit_large_patch16_224").to(HALF).eval()
    x = images(size(128, 1), size(224, 32))

    def loss() -> Tensor:
        with torch.no_grad():
            wanted = teacher(x.to(HALF)).float().softmax(-1)
        return functional.cross_entropy(student(x), wanted)

    return training(loss, adamw(student))


@healthy("vision", EIGHTH, library="timm", compiles=True, inference=True, steps=(3, 2))
def healthy_convnext(variant: str) -> Step:
    """A ConvNeXt-B with 1 × 1 convolutions classifies 128 images: bf16, channels_last, compiled, in a CUDA graph."""
    model = on_device(
        lambda: timm.create_model(
            "convnext_base", depths=(3, 3, size(12, 1), size(3, 1)), num_classes=1000, conv_mlp=False
        ),
        HALF,
    ).eval()
    model = model.to(memory_format=LAST)
    compiled(model.stages)
    x = images(size(128, 1), size(224, 32), HALF).to(memory_format=LAST)
    return as_graph(lambda: model(x))
