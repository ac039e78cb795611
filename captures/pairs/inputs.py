"""Where the data come from: input pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import timm
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from pairs.parts import CUDA, DEVICE, adamw, compiled, on_device, size, training
from pairs.registry import BEFORE, Step, healthy, pair


class Photos(Dataset[tuple[Tensor, int]]):
    """Random photographs, cropped, flipped and normalised as for ImageNet."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        self.count, self.classes = count, classes
        self.photo = torch.randint(0, 256, (3, 400, 500), dtype=torch.uint8)
        self.change = v2.Compose(
            [
                v2.RandomResizedCrop(side, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.change(self.photo), index % self.classes


class Loaded:
    """A training step on what a loader gives, and the end of its workers."""

    def __init__(self, loader: DataLoader[tuple[Tensor, int]], train: object) -> None:
        self.loader, self.train = loader, train
        self.batches: Iterator[object] = iter(loader)

    def __call__(self) -> None:
        """One step."""
        batch, labels = next(self.batches)
        self.train(batch.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True))

    def close(self) -> None:
        """Ends the workers."""
        del self.batches


def classifier(name: str, classes: int, *, compile_blocks: bool = False) -> object:
    """A training step of a classifier, as a function of images and labels."""
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).train()
    if compile_blocks:
        compiled(model.blocks)
    optimizer = adamw(model)

    def train(batch: Tensor, labels: Tensor) -> None:
        training(lambda: functional.cross_entropy(model(batch), labels), optimizer)()

    return train


@pair(
    "host-stall", "vision", "DataLoader(num_workers=10, pin_memory=True) instead of num_workers=0",
    library="timm, torchvision", profiler_steps=True, also_after=True, with_stack=True, steps=(5, 3),
)  # fmt: skip
def vit_loader_without_workers(variant: str) -> Step:
    """ViT-S/16 on 32 photographs a step, cropped and flipped by the process that launches the kernels."""
    classes, batch = size(1000, 16), size(32, 2)
    photos = Photos(1 << 20, 224, classes)
    how = {"num_workers": 0}
    if variant != BEFORE:
        how = {"num_workers": size(10, 1), "pin_memory": CUDA, "persistent_workers": True, "prefetch_factor": 4}
    name = "vit_small_patch16_224" if CUDA else "vit_tiny_patch16_224"
    return Loaded(DataLoader(photos, batch, **how), classifier(name, classes))


@healthy("training", library="timm, torchvision", compiles=True)
def healthy_loader(variant: str) -> Step:
    """ViT-L/16 on 64 images a step, which eight workers cut out of photographs and pin in time; blocks compiled."""
    classes, batch = size(1000, 16), size(64, 2)
    name = "vit_large_patch16_224" if CUDA else "vit_tiny_patch16_224"
    photos = Photos(1 << 20, 224, classes)
    loader = DataLoader(photos, batch, num_workers=size(8, 1), pin_memory=CUDA, prefetch_factor=4)
    return Loaded(loader, classifier(name, classes, compile_blocks=True))
