"""More of the twenty-fifth set: pictures taught, found and cut out, actions, offers, graphs."""

from __future__ import annotations

import numpy as np
import timm
import timm.models.vision_transformer
import torch
import torchvision
import transformers
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, mixed, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_FIFTH, Step, healthy, pair

LAST = torch.channels_last


@pair(
    "precision", "distillation", "the teacher is asked within autocast, too", TWENTY_FIFTH,
    library="timm", accept=("tensor-compute",), steps=(2, 2),
)  # fmt: skip
def teacher_outside_autocast(variant: str) -> Step:
    """A ResNet-50 (channels_last) learns from a ViT-B/16 what it says of 96 images; only the student has autocast.

    That each step reads how often both agree is seen easily, and costs little.
    """
    names = ("resnet50", "vit_base_patch16_224") if CUDA else ("resnet10t", "vit_tiny_patch16_224")
    model = on_device(lambda: timm.create_model(names[0])).train().to(memory_format=LAST)
    teacher = on_device(lambda: timm.create_model(names[1]), seed=1).eval().requires_grad_(False)
    optimizer = adamw(model)
    x = images(size(96, 1), 224).contiguous(memory_format=LAST)

    def step() -> float:
        if variant == BEFORE:
            with torch.no_grad():
                wanted = teacher(x)
        with mixed():
            if variant == AFTER:
                with torch.no_grad():
                    wanted = teacher(x)
            told = model(x)
        wanted, told = wanted.float(), told.float()
        loss = functional.kl_div(told.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return (told.argmax(-1) == wanted.argmax(-1)).float().mean().item()

    return step


def suppressed(boxes: Tensor, scores: Tensor, most: int) -> list[int]:
    """The best boxes that do not cover each other, one after the other."""
    order, kept = scores.argsort(descending=True), []
    while len(order) and len(kept) < most:
        kept.append(order[0].item())
        over = torchvision.ops.box_iou(boxes[order[:1]], boxes[order[1:]])[0]
        order = order[1:][over <= 0.5]
    return kept


@pair(
    "host-sync", "detection", "torchvision.ops.nms", TWENTY_FIFTH,
    library="timm", accept=("launch-overhead", "small-kernels", "host-stall"), inference=True, with_stack=True,
    steps=(2, 1),
)  # fmt: skip
def boxes_suppressed_in_a_loop(variant: str) -> Step:
    """A detector (ResNet-50, bf16, channels_last) finds 60 things in each of 4 images of 640²; a loop suppresses."""
    name, side, batch, most = "resnet50" if CUDA else "resnet10t", size(640, 64), size(4, 1), size(60, 3)
    body = on_device(lambda: timm.create_model(name, features_only=True, out_indices=(3,)), HALF).eval()
    head = on_device(lambda: nn.Conv2d(body.feature_info.channels()[-1], 9 * 5, 1), HALF, 1)
    body, head = body.to(memory_format=LAST), head.to(memory_format=LAST)
    x = images(batch, side, HALF).contiguous(memory_format=LAST)

    def step() -> list[list[int]]:
        told = head(body(x)[0]).float().permute(0, 2, 3, 1)
        line = torch.arange(told.shape[1], device=DEVICE, dtype=torch.float32) * 16
        sites = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[:, :, None]
        told = told.unflatten(-1, (9, 5))
        middle, half = sites + 16 * told[..., :2].tanh(), 32 * told[..., 2:4].clamp(-1, 1).exp()
        boxes = torch.cat([middle - half, middle + half], -1).flatten(1, 3)
        scores, chosen = told[..., 4].flatten(1).topk(min(1000, boxes.shape[1]), sorted=False)
        boxes = boxes.gather(1, chosen[..., None].expand(-1, -1, 4))
        if variant == BEFORE:
            return [suppressed(some, values, most) for some, values in zip(boxes, scores, strict=True)]
        return [
            torchvision.ops.nms(some, values, 0.5)[:most].tolist() for some, values in zip(boxes, scores, strict=True)
        ]

    return step


def signed_distances(masks: np.ndarray) -> Tensor:
    """How far each place is from the border of the mask, less than nothing inside: [masks, high, wide]."""
    edt = ndimage.distance_transform_edt
    return torch.from_numpy(np.stack([edt(1 - mask) - edt(mask) for mask in masks]).astype(np.float32))


@pair(
    "host-stall", "segmentation", "distances are worked out once for each mask, with the data", TWENTY_FIFTH,
    library="torchvision", accept=("blocking-copy", "host-sync"), with_stack=True, steps=(2, 2),
)  # fmt: skip
def distances_of_masks_by_scipy(variant: str) -> Step:
    """A DeepLabV3 (ResNet-50, channels_last) learns 8 masks of 192² by a loss of their borders: SciPy finds these."""
    batch, side, radius = size(8, 2), size(192, 64), size(40, 10)
    make = torchvision.models.segmentation.deeplabv3_resnet50 if CUDA else lraspp
    model = on_device(lambda: make(weights=None, weights_backbone=None, num_classes=1)).train().to(memory_format=LAST)
    optimizer = adamw(model)
    x = images(batch, side).contiguous(memory_format=LAST)
    line = torch.arange(side)
    middles = torch.randint(radius, side - radius, (4, batch, 2))
    away = (line[:, None] - middles[..., 0, None, None]) ** 2 + (line - middles[..., 1, None, None]) ** 2
    masks = (away < radius**2).to(torch.uint8)
    known = [signed_distances(some.numpy()) for some in masks]
    place = 0

    def step() -> None:
        nonlocal place
        place = (place + 1) % len(masks)
        wanted = masks[place].to(DEVICE)
        far = signed_distances(wanted.cpu().numpy()) if variant == BEFORE else known[place]
        far = far.to(DEVICE)

        def loss() -> Tensor:
            told = model(x)["out"][:, 0].float()
            border = (told.sigmoid() * far).mean()
            return functional.binary_cross_entropy_with_logits(told, wanted.float()) + 0.01 * border

        training(loss, optimizer)()

    return step


def lraspp(**how: object) -> nn.Module:
    """A smaller model, for trying."""
    return torchvision.models.segmentation.lraspp_mobilenet_v3_large(**how)


class Told(nn.Module):
    """Convolutions along time that are told of a condition, as in a diffusion policy."""

    def __init__(self, narrow: int, wide: int, told: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(narrow, wide, 5, padding=2), nn.Conv1d(wide, wide, 5, padding=2)
        self.norms = nn.ModuleList(nn.GroupNorm(8, wide) for _ in range(2))
        self.told = nn.Sequential(nn.Mish(), nn.Linear(told, 2 * wide))
        self.beside = nn.Conv1d(narrow, wide, 1)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Plans [rows, narrow, times], conditions [rows, told]."""
        scale, shift = self.told(told)[..., None].chunk(2, 1)
        y = functional.mish(self.norms[0](self.first(x))) * (1 + scale) + shift
        return functional.mish(self.norms[1](self.second(y))) + self.beside(x)


class Planner(nn.Module):
    """What noise there is in a plan of actions: a U-Net along time."""

    def __init__(self, acts: int, width: int, seen: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))
        told = width + seen
        self.down = nn.ModuleList([Told(acts, width, told), Told(width, width, told)])
        self.middle = nn.ModuleList([Told(width, 2 * width, told), Told(2 * width, 2 * width, told)])
        self.up = nn.ModuleList([Told(3 * width, width, told), Told(width, width, told)])
        self.fewer, self.more = (
            nn.Conv1d(width, width, 3, 2, 1),
            nn.ConvTranspose1d(2 * width, 2 * width, 4, 2, 1),
        )
        self.out = nn.Conv1d(width, acts, 1)

    def forward(self, x: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        """Plans [rows, acts, times], a time [1], what is seen [rows, seen]."""
        turns = time * torch.exp(torch.arange(self.width // 2, device=x.device) * (-9.2 / (self.width // 2)))
        told = self.time(torch.cat([turns.sin(), turns.cos()])[None].to(x.dtype))
        told = torch.cat([told.expand(len(x), -1), seen], 1)
        for block in self.down:
            x = block(x, told)
        kept, x = x, self.fewer(x)
        for block in self.middle:
            x = block(x, told)
        x = torch.cat([self.more(x), kept], 1)
        for block in self.up:
            x = block(x, told)
        return self.out(x)


@pair(
    "launch-overhead", "diffusion", "camera and all steps replayed from a CUDA graph", TWENTY_FIFTH,
    library="timm", accept=("small-kernels",), inference=True, steps=(2, 1),
)  # fmt: skip
def actions_denoised_kernel_by_kernel(variant: str) -> Step:
    """A diffusion policy (a U-Net along time, width 256, bf16) plans 16 actions by what a ResNet-18 sees: 16 steps."""
    name, width, acts, steps = "resnet18" if CUDA else "resnet10t", size(256, 16), 8, size(16, 2)
    eyes = on_device(lambda: timm.create_model(name, num_classes=64), HALF).eval().to(memory_format=LAST)
    model = on_device(lambda: Planner(acts, width, 128), HALF, 1).eval()
    x = images(2, size(128, 32), HALF).contiguous(memory_format=LAST)
    noise = torch.randn(1, acts, 16, device=DEVICE, dtype=HALF)
    times = torch.linspace(100, 1, steps, device=DEVICE)
    kept = torch.linspace(0.01, 0.999, steps + 1, device=DEVICE, dtype=HALF)

    def planned() -> Tensor:
        seen, plan = eyes(x).flatten()[None], noise
        for index in range(steps):
            wrong = model(plan, times[index : index + 1], seen)
            now, later = kept[index], kept[index + 1]
            clean = ((plan - (1 - now).sqrt() * wrong) / now.sqrt()).clamp(-1, 1)
            plan = later.sqrt() * clean + (1 - later).sqrt() * wrong
        return plan

    plan = as_graph(planned) if variant == AFTER else planned
    return lambda: plan().float().cpu()


class Crossed(nn.Module):
    """DeepFM: what pairs of fields say together, and a network."""

    def __init__(self, fields: int, each: int, width: int, *, loop: bool) -> None:
        super().__init__()
        self.loop = loop
        self.names, self.single = nn.Embedding(fields * each, 16), nn.Embedding(fields * each, 1)
        self.deep = nn.Sequential(
            nn.Linear(fields * 16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Fields [rows, fields] → how likely a click is, [rows]."""
        x = self.names(ids)
        if self.loop:
            pairs, fields = torch.zeros(len(ids), device=x.device), ids.shape[1]
            for i in range(fields):
                for j in range(i + 1, fields):
                    pairs = pairs + (x[:, i] * x[:, j]).sum(-1)
        else:
            pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(-1)
        return self.single(ids).sum((1, 2)) + pairs + self.deep(x.flatten(1))[:, 0]


@pair(
    "launch-overhead", "recommendation", "half of the squared sum, less the sum of squares", TWENTY_FIFTH,
    accept=("small-kernels", "unfused-chain"), steps=(2, 1),
)  # fmt: skip
def pairs_of_fields_in_turn(variant: str) -> Step:
    """A DeepFM (26 fields of 4,000 names) learns from 4,096 clicks; a double loop multiplies each pair of fields.

    That the ids come from pageable memory is seen easily, and costs little.
    """
    fields, each, rows = size(26, 4), size(4000, 8), size(4096, 8)
    model = on_device(lambda: Crossed(fields, each, size(1024, 16), loop=variant == BEFORE)).train()
    optimizer = adamw(model)
    starts = torch.arange(fields, device=DEVICE) * each
    clicks = [torch.randint(0, each, (rows, fields)) for _ in range(4)]
    wanted = torch.rand(rows, device=DEVICE).round()
    place = 0

    def step() -> None:
        nonlocal place
        place = (place + 1) % len(clicks)
        ids = clicks[place].to(DEVICE) + starts
        training(lambda: functional.binary_cross_entropy_with_logits(model(ids).float(), wanted), optimizer)()

    return step


class Pooled(nn.Module):
    """The largest of what neighbours say, and what the node itself says."""

    def __init__(self, width: int, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.told, self.own = nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        """Nodes [nodes, width], their neighbours [nodes, neighbours]."""
        flat = near.flatten()
        told = self.told(x.index_select(0, flat)) if self.again else self.told(x).index_select(0, flat)
        told = told.unflatten(0, near.shape).amax(1)
        return functional.relu(self.own(torch.cat([x, told], 1)))


@pair(
    "recomputation", "graphs", "the layer is applied to nodes, then neighbours are gathered", TWENTY_FIFTH,
    accept=("memory-bandwidth", "tensor-compute"), inference=True, steps=(2, 2),
)  # fmt: skip
def neighbours_projected_edge_by_edge(variant: str) -> Step:
    """A GraphSAGE (3 × 512, max pooling, bf16) reads 65,536 nodes of 32 neighbours; each edge projects its end anew."""
    nodes, count, width = size(65_536, 16), size(32, 4), size(512, 8)
    again = variant == BEFORE
    layers = on_device(lambda: nn.ModuleList(Pooled(width, again=again) for _ in range(size(3, 2))), HALF).eval()
    head = on_device(lambda: nn.Linear(width, 40), HALF, 1)
    x, near = torch.randn(nodes, width, device=DEVICE, dtype=HALF), tokens(nodes, nodes, count)

    def step() -> Tensor:
        y = x
        for layer in layers:
            y = layer(y, near)
        return head(y).argmax(-1)

    return step


@pair(
    "blocking-copy", "contrastive", "the queue is on the GPU", TWENTY_FIFTH,
    library="timm", accept=("host-stall", "host-sync"), with_stack=True, steps=(2, 2),
)  # fmt: skip
def queue_is_no_buffer(variant: str) -> Step:
    """MoCo: a ResNet-18 (channels_last) learns from 256 images of 96²; model.to() left the queue of 65,536 behind."""
    name, batch, side = "resnet18" if CUDA else "resnet10t", size(256, 2), size(96, 32)
    count, width = size(65_536, 8), size(256, 8)
    models = [on_device(lambda: timm.create_model(name, num_classes=width)).to(memory_format=LAST) for _ in range(2)]
    model, slow = models
    slow.requires_grad_(False)
    x, other = (images(batch, side).contiguous(memory_format=LAST) for _ in range(2))
    queue = functional.normalize(torch.randn(count, width), dim=-1)
    if variant == AFTER:
        queue = queue.to(DEVICE)
    weights, kept = list(model.parameters()), list(slow.parameters())
    answers, optimizer = torch.zeros(batch, device=DEVICE, dtype=torch.long), adamw(model)
    place = 0

    def step() -> None:
        nonlocal place
        with torch.no_grad(), mixed():
            torch._foreach_lerp_(kept, weights, 0.001)
            keys = functional.normalize(slow(other).float(), dim=-1)

        def loss() -> Tensor:
            asks = functional.normalize(model(x).float(), dim=-1)
            scores = torch.cat([(asks * keys).sum(-1, keepdim=True), asks @ queue.to(DEVICE).T], 1)
            return functional.cross_entropy(scores.float() / 0.07, answers)

        training(loss, optimizer)()
        queue[place : place + batch] = keys.to(queue.device)
        place = (place + batch) % count

    return step


class Packed(nn.Module):
    """A vision transformer over rows in which several images stand one after the other."""

    def __init__(self, width: int, heads: int, layers: int, patch: int) -> None:
        super().__init__()
        self.names, self.norm = nn.Linear(patch, width), nn.LayerNorm(width)
        make = timm.models.vision_transformer.Block
        self.blocks = nn.ModuleList(make(width, heads, qkv_bias=True) for _ in range(layers))
        self.out = nn.Linear(width, 1000)

    def forward(self, x: Tensor, each: int, mask: Tensor | None) -> Tensor:
        """Rows of patches, how many an image has, and which may look at which."""
        x = self.names(x)
        for block in self.blocks:
            x = block(x, attn_mask=mask)
        return self.out(self.norm(x).unflatten(1, (-1, each)).mean(2).flatten(0, 1))


@pair(
    "unfused-attention", "vision", "images of one size are a batch, and need no mask", TWENTY_FIFTH,
    library="timm", accept=("padded-work", "memory-bandwidth"), steps=(2, 2),
)  # fmt: skip
def images_packed_behind_a_mask(variant: str) -> Step:
    """NaViT: a ViT-B learns from 96 images of 256 patches, packed in 6 rows of 16 behind a mask, though all are equal.

    That each step reads the norm of the gradients is seen easily, and costs little.
    """
    rows, packed, each, patch = size(6, 1), size(16, 2), size(256, 4), size(768, 12)
    model = on_device(lambda: Packed(size(768, 32), size(12, 2), size(12, 1), patch)).train()
    optimizer = adamw(model)
    x, labels = torch.randn(rows, packed * each, patch, device=DEVICE), tokens(1000, rows * packed)
    which, mask = torch.arange(packed, device=DEVICE).repeat_interleave(each), None
    if variant == BEFORE:
        mask = (which[:, None] == which)[None, None]
    else:
        x = x.view(rows * packed, each, patch)

    def step() -> float:
        with mixed():
            loss = functional.cross_entropy(model(x, each, mask), labels)
        loss.backward()
        large = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return large.item()

    return step


@healthy("vision", TWENTY_FIFTH, library="torchvision", compiles=True, steps=(2, 2))
def healthy_wide_resnet_training(variant: str) -> Step:
    """A Wide ResNet-50-2 learns from 128 images: mixed precision, channels_last, compiled whole, fused SGD."""
    make = torchvision.models.wide_resnet50_2 if CUDA else torchvision.models.resnet18
    model = on_device(make).train().to(memory_format=LAST)
    compiled([model])
    x, labels = images(size(128, 2), size(224, 32)).contiguous(memory_format=LAST), tokens(1000, size(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    return training(lambda: functional.cross_entropy(model(x), labels), optimizer)


@healthy("vision", TWENTY_FIFTH, library="transformers", compiles=True, inference=True, steps=(2, 2))
def healthy_photographs_described(variant: str) -> Step:
    """A DINOv2-L describes 32 photographs of 448² (1,025 places each) in bf16: layers compiled, SDPA."""
    config = transformers.Dinov2Config(
        image_size=size(448, 28), patch_size=14, hidden_size=size(1024, 32), num_hidden_layers=size(24, 1),
        num_attention_heads=size(16, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.Dinov2Model(config), HALF).eval()
    compiled(module for module in model.modules() if type(module).__name__ == "Dinov2Layer")
    x = images(size(32, 1), config.image_size, HALF)
    return lambda: model(pixel_values=x).last_hidden_state[:, 0]
