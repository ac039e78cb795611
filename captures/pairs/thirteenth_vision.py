"""The thirteenth set: images."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from pairs.inputs import Loaded
from pairs.parts import CUDA, DEVICE, HALF, adamw, images, on_device, size, tokens, training
from pairs.registry import AFTER, THIRTEENTH, Step, pair


class Opened(Dataset[tuple[Tensor, int]]):
    """Photographs as files hold them, opened, made smaller and normalised by PIL and NumPy."""

    def __init__(self, side: int, classes: int) -> None:
        self.side, self.classes = side, classes
        random = np.random.default_rng(0)
        self.files = []
        for _ in range(8):
            small = Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8))
            file = io.BytesIO()
            small.resize((320, 240), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        photo = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        photo = photo.resize((self.side, self.side), Image.Resampling.BICUBIC)
        values = (np.asarray(photo, dtype=np.float32) / 255.0 - 0.45) / 0.22
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))), index % self.classes


@pair(
    "host-stall", "vision", "DataLoader(num_workers=8, pin_memory=True) opens the photographs", THIRTEENTH,
    library="timm", accept=("blocking-copy",), steps=(3, 3),
)  # fmt: skip
def photos_opened_in_the_loop(variant: str) -> Step:
    """A PVTv2-B3 learns from 32 photographs; the loop opens them with PIL, and NumPy normalises them, one by one."""
    classes, batch, side = size(100, 4), size(32, 2), 224
    model = on_device(lambda: timm.create_model("pvt_v2_b3" if CUDA else "pvt_v2_b0", num_classes=classes)).train()
    photos, optimizer = Opened(side, classes), adamw(model)

    def learn(x: Tensor, labels: Tensor) -> None:
        training(lambda: functional.cross_entropy(model(x).float(), labels), optimizer)()

    if variant == AFTER:
        how: dict[str, Any] = {"pin_memory": CUDA, "persistent_workers": True, "prefetch_factor": 4}
        return Loaded(DataLoader(photos, batch, num_workers=size(8, 1), **how), learn)
    place = 0

    def step() -> None:
        nonlocal place
        rows = [photos[place + index] for index in range(batch)]
        place += batch
        learn(torch.stack([x for x, _ in rows]).to(DEVICE), torch.tensor([label for _, label in rows]).to(DEVICE))

    return step


class Local(nn.Module):
    """Three convolutions for a patch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (3, width // 2, width, width)
        self.parts = nn.Sequential(*(
            part for a, b in itertools.pairwise(sizes)
            for part in (nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        ))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Features of the patches [patches, width, side, side]."""
        return self.parts(x)


@pair(
    "launch-overhead", "medicine", "all patches in one batch", THIRTEENTH,
    library="timm", accept=("small-kernels",), steps=(3, 3),
)  # fmt: skip
def patches_in_turn(variant: str) -> Step:
    """A scan's segmenter learns from 8 images of 256 × 256: a ResNet-50 of all, and a loop over 16 patches of each."""
    width, cut, side = size(64, 8), 4, size(256, 64)
    whole = on_device(lambda: timm.create_model("resnet50", features_only=True, out_indices=(1,))).train()
    local = on_device(lambda: Local(width)).train()
    out = on_device(lambda: nn.Conv2d(width + 256, 5, 1), seed=1).train()
    x, labels = images(size(8, 1), side), tokens(5, size(8, 1), side, side)
    part = side // cut

    def patches() -> Tensor:
        if variant == AFTER:
            cuts = x.unflatten(3, (cut, part)).unflatten(2, (cut, part)).permute(2, 4, 0, 1, 3, 5)
            found = local(cuts.reshape(-1, 3, part, part)).unflatten(0, (cut, cut, len(x)))
            return found.permute(2, 3, 0, 4, 1, 5).reshape(len(x), width, side, side)
        rows = []
        for row in range(cut):
            line = [local(x[:, :, row * part : (row + 1) * part, i * part : (i + 1) * part]) for i in range(cut)]
            rows.append(torch.cat(line, 3))
        return torch.cat(rows, 2)

    def loss() -> Tensor:
        coarse = functional.interpolate(whole(x)[0], size=(side, side), mode="bilinear")
        return functional.cross_entropy(out(torch.cat([patches(), coarse], 1)).float(), labels)

    return training(loss, adamw(nn.ModuleList([whole, local, out])))


class Detector(nn.Module):
    """DETR's transformer (arXiv:2005.12872) over features that are there, and what each layer's queries find."""

    def __init__(self, width: int, heads: int, layers: int, queries: int, classes: int) -> None:
        super().__init__()
        how: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
        feed = 8 * width
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, feed, **how) for _ in range(layers))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(width, heads, feed, **how) for _ in range(layers))
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.kinds, self.boxes = nn.Linear(width, classes + 1), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [layers, images, queries, classes + 1] and boxes [layers, images, queries, 4]."""
        for layer in self.encoder:
            x = layer(x)
        found, all_found = self.queries.expand(len(x), -1, -1), []
        for layer in self.decoder:
            found = layer(found, x)
            all_found.append(found)
        stacked = torch.stack(all_found)
        return self.kinds(stacked).float(), self.boxes(stacked).float().sigmoid()


@pair(
    "host-sync", "detection", "costs of all images and layers in one copy", THIRTEENTH,
    accept=("host-stall", "launch-overhead", "blocking-copy"), steps=(3, 3),
)  # fmt: skip
def matched_image_by_image(variant: str) -> Step:
    """DETR's transformer (6 + 6 × 256) learns from 16 images; costs of matching go to the CPU image by image."""
    from scipy.optimize import linear_sum_assignment

    batch, classes, objects, layers = size(16, 2), 91, 12, size(6, 2)
    model = on_device(lambda: Detector(size(256, 16), size(8, 2), layers, size(100, 16), classes)).train()
    features = torch.randn(batch, size(625, 9), size(256, 16), device=DEVICE)
    kinds, boxes = tokens(classes, batch, objects), torch.rand(batch, objects, 4, device=DEVICE)

    def places(scores: Tensor, found: Tensor) -> Tensor:
        if variant == AFTER:
            chances = scores.softmax(-1).gather(-1, kinds[None, :, None].expand(*scores.shape[:3], -1))
            costs = (5 * torch.cdist(found, boxes.expand(len(found), -1, -1, -1), p=1) - chances).cpu().numpy()
            chosen = [[linear_sum_assignment(cost)[0] for cost in layer] for layer in costs]
        else:
            chosen = []
            for layer_scores, layer_found in zip(scores, found, strict=True):
                rows = []
                for score, box, kind, wanted in zip(layer_scores, layer_found, kinds, boxes, strict=True):
                    cost = 5 * torch.cdist(box, wanted, p=1) - score.softmax(-1)[:, kind]
                    rows.append(linear_sum_assignment(cost.cpu().numpy())[0])
                chosen.append(rows)
        return torch.from_numpy(np.array(chosen)).to(DEVICE)

    def loss() -> Tensor:
        scores, found = model(features)
        with torch.no_grad():
            place = places(scores, found)
        near = found.gather(2, place[..., None].expand(-1, -1, -1, 4))
        wanted = torch.full(scores.shape[:3], classes, device=DEVICE)
        wanted.scatter_(2, place, kinds.expand(len(scores), -1, -1))
        return functional.cross_entropy(scores.flatten(0, 2), wanted.flatten()) + functional.l1_loss(
            near, boxes.expand_as(near)
        )

    return training(loss, adamw(model))


@pair(
    "precision", "vision", "torch.autocast('cuda', torch.bfloat16)", THIRTEENTH, library="timm", steps=(3, 3),
)  # fmt: skip
def coatnet_in_fp32(variant: str) -> Step:
    """A CoAtNet-0 (convolutions, then attention) learns from 64 images in fp32, channels_last."""
    model = on_device(lambda: timm.create_model("coatnet_0_rw_224", num_classes=100)).train()
    model = model.to(memory_format=torch.channels_last)
    x, labels = images(size(64, 1), 224).to(memory_format=torch.channels_last), tokens(100, size(64, 1))
    return training(
        lambda: functional.cross_entropy(model(x).float(), labels), adamw(model), mixed=variant == AFTER
    )  # fmt: skip


@pair(
    "memory-format", "vision", "model and images in torch.channels_last", THIRTEENTH, library="timm", steps=(3, 3),
)  # fmt: skip
def darknet_as_images_come(variant: str) -> Step:
    """A DarkNet-53 learns from 64 images of 256 × 256 in mixed precision, in the format that images come in."""
    model = on_device(lambda: timm.create_model("darknet53", num_classes=100)).train()
    x, labels = images(size(64, 2), size(256, 64)), tokens(100, size(64, 2))
    if variant == AFTER:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@pair(
    "launch-overhead", "vision", "the four photographs in one batch", THIRTEENTH,
    library="timm", accept=("weight-bound", "small-kernels"), inference=True, steps=(3, 3),
)  # fmt: skip
def photographs_classified_one_by_one(variant: str) -> Step:
    """CLIP's ViT-L/14 tells what four photographs of 336 × 336 show, each by a call of its own, as a pipeline does."""
    name = "vit_large_patch14_clip_336" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=1000), HALF).eval()
    photos = images(4, 336 if CUDA else 224, HALF)

    def step() -> list[int]:
        if variant == AFTER:
            return list(model(photos).argmax(-1).tolist())
        return [int(model(photo[None]).argmax(-1).item()) for photo in photos]

    return step
