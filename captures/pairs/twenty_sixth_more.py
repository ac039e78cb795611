"""More of the twenty-sixth set: pictures learnt, found and drawn, clips, graphs, experts, offers."""

from __future__ import annotations

import timm
import timm.models.vision_transformer
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, mixed, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_SIXTH, Step, healthy, pair

LAST = torch.channels_last


class Head(nn.Sequential):
    """The projector of Barlow Twins."""

    def __init__(self, narrow: int, width: int) -> None:
        parts: list[nn.Module] = []
        for before in (narrow, width):
            parts += [nn.Linear(before, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
        super().__init__(*parts, nn.Linear(width, width, bias=False), nn.BatchNorm1d(width, affine=False))


@pair(
    "precision", "self-supervised", "the projector and the correlations are within autocast, too", TWENTY_SIXTH,
    library="timm", accept=("tensor-compute",), steps=(2, 2),
)  # fmt: skip
def projector_outside_autocast(variant: str) -> Step:
    """Barlow Twins: a ResNet-18 (channels_last) learns from 2 × 512 images of 96²; only the body has autocast.

    The products of the projector (8,192 wide) are then slow ones; hence "tensor-compute", too. That each step reads
    how far the features spread is seen easily, and costs little.
    """
    name, batch, side = "resnet18" if CUDA else "resnet10t", size(512, 4), size(96, 32)
    body = on_device(lambda: timm.create_model(name, num_classes=0)).train().to(memory_format=LAST)
    head = on_device(lambda: Head(512, size(8192, 16)), seed=1).train()
    model = nn.ModuleList([body, head])
    optimizer = adamw(model)
    x = images(2 * batch, side).contiguous(memory_format=LAST)

    def alike(features: Tensor) -> Tensor:
        left, right = head(features).chunk(2)
        both = left.T @ right / batch
        along = both.diagonal()
        return (along - 1).square().sum() + 0.005 * (both.square().sum() - along.square().sum())

    def step() -> float:
        with mixed():
            features = body(x)
            loss = alike(features) if variant == AFTER else None
        if loss is None:
            loss = alike(features.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return features.detach().float().std(0).mean().item()

    return step


@pair(
    "recomputation", "vision", "memory_efficient=False: there is enough memory", TWENTY_SIXTH,
    library="torchvision", steps=(2, 2),
)  # fmt: skip
def densenet_saves_memory(variant: str) -> Step:
    """A DenseNet-121 (channels_last, mixed precision) learns from 160 images; memory_efficient=True came with the code.

    It keeps no joined features, and makes them anew in the backward pass.
    """
    depths = (6, 12, 24, 16) if CUDA else (2, 2, 2, 2)
    spares = variant == BEFORE
    model = on_device(lambda: torchvision.models.DenseNet(32, depths, 64, memory_efficient=spares)).train()
    model = model.to(memory_format=LAST)
    x = images(size(160, 4), size(224, 64)).contiguous(memory_format=LAST)
    labels = tokens(1000, len(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    return training(lambda: functional.cross_entropy(model(x), labels), optimizer)


class Finder(nn.Module):
    """What stands where: a ResNet, its pyramid, and convolutions that all levels share."""

    def __init__(self, name: str, classes: int) -> None:
        super().__init__()
        self.body = resnet_fpn_backbone(
            backbone_name=name, weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
        )  # fmt: skip
        wide = self.body.out_channels
        self.shared = nn.Sequential(*(
            part for _ in range(2) for part in (nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU())
        ))  # fmt: skip
        self.classes, self.sides = nn.Conv2d(wide, classes, 3, padding=1), nn.Conv2d(wide, 4, 3, padding=1)

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Images → for each level: scores of classes, distances of sides."""
        shared = [self.shared(level) for level in self.body(x).values()]
        return [(self.classes(level), self.sides(level)) for level in shared]


@pair(
    "memory-format", "detection", "model and images are channels_last", TWENTY_SIXTH,
    library="torchvision", steps=(2, 2),
)  # fmt: skip
def pyramid_as_images_come(variant: str) -> Step:
    """A detector (ResNet-50, FPN, mixed precision) learns from 16 images of 512² as they come, channels first.

    That the step reads both its losses is seen easily, and costs little.
    """
    name, classes = "resnet50" if CUDA else "resnet18", size(40, 4)
    model = on_device(lambda: Finder(name, classes)).train()
    x = images(size(16, 2), size(512, 32))
    if variant == AFTER:
        model, x = model.to(memory_format=LAST), x.contiguous(memory_format=LAST)
    optimizer = adamw(model)
    with torch.no_grad():
        shapes = [scores.shape[-2:] for scores, _ in model(x)]
    wanted = [(torch.rand(len(x), classes, *shape, device=DEVICE) > 0.99).float() for shape in shapes]
    sides = [torch.rand(len(x), 4, *shape, device=DEVICE) for shape in shapes]

    def step() -> list[float]:
        with mixed():
            told = model(x)
        named = sum(
            torchvision.ops.sigmoid_focal_loss(level[0].float(), right, reduction="mean")
            for level, right in zip(told, wanted, strict=True)
        )
        placed = sum(
            functional.smooth_l1_loss(level[1].float(), right) for level, right in zip(told, sides, strict=True)
        )
        (named + placed).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return [named.item(), placed.item()]

    return step


class Residual(nn.Module):
    """Two convolutions beside what came in."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, narrow), nn.GroupNorm(8, wide)])
        self.first, self.second = nn.Conv2d(narrow, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.beside = nn.Conv2d(narrow, wide, 1) if narrow != wide else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, narrow, high, wide]."""
        y = self.first(functional.silu(self.norms[0](x)))
        return self.beside(x) + self.second(functional.silu(self.norms[1](y)))


def latent_encoder(width: int) -> nn.Module:
    """Images → latents, eight times smaller."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for narrow, wide in ((width, width), (width, 2 * width), (2 * width, 4 * width)):
        parts += [Residual(narrow, wide), nn.Conv2d(wide, wide, 3, 2, 1)]
    return nn.Sequential(*parts, Residual(4 * width, 4 * width), nn.SiLU(), nn.Conv2d(4 * width, 4, 3, padding=1))


class Denoiser(nn.Module):
    """A transformer over patches of latents that is told the time."""

    def __init__(self, width: int, heads: int, layers: int, side: int) -> None:
        super().__init__()
        self.names, self.time = nn.Conv2d(4, width, 2, 2), nn.Linear(1, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 2) ** 2, width))
        make = timm.models.vision_transformer.Block
        self.blocks = nn.Sequential(*(make(width, heads, qkv_bias=True) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.ConvTranspose2d(width, 4, 2, 2)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Latents [rows, 4, side, side], times [rows, 1]."""
        x = self.names(x)
        side = x.shape[-1]
        x = self.blocks(x.flatten(2).transpose(1, 2) + self.places + self.time(time)[:, None])
        return self.out(self.norm(x).transpose(1, 2).unflatten(2, (side, side)))


@pair(
    "unused-gradients", "diffusion", "images are encoded within no_grad", TWENTY_SIXTH, library="timm", steps=(2, 2),
)  # fmt: skip
def latents_made_with_gradients(variant: str) -> Step:
    """A diffusion transformer (12 × 768) learns from latents of 32 images of 256², which an encoder makes.

    The optimizer has none of its weights, but their gradients are worked out. That the times are drawn on the host is
    seen easily, and costs little.
    """
    batch, side = size(32, 2), size(256, 32)
    encoder = on_device(lambda: latent_encoder(size(64, 8))).eval()
    model = on_device(lambda: Denoiser(size(768, 32), size(12, 2), size(12, 1), side // 8), seed=1).train()
    optimizer = adamw(model)
    x, noise = images(batch, side), torch.randn(batch, 4, side // 8, side // 8, device=DEVICE)

    def loss() -> Tensor:
        time = torch.linspace(0.02, 0.98, batch)[torch.randperm(batch)].to(DEVICE)
        with torch.set_grad_enabled(variant == BEFORE):
            latents = encoder(x)
        share = time[:, None, None, None]
        told = model((1 - share) * latents + share * noise, time[:, None])
        return functional.mse_loss(told.float(), noise)

    return training(loss, optimizer)


class Messages(nn.Module):
    """What each node hears from those that point to it."""

    def __init__(self, width: int, *, indexed: bool) -> None:
        super().__init__()
        self.indexed = indexed
        self.said, self.own, self.far = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, ends: Tensor, edges: Tensor) -> Tensor:
        """Nodes [nodes, width], edges from and to [2, edges], what they are like [edges, width]."""
        said, start = self.said(x), ends[0]
        heard = functional.relu((said[start] if self.indexed else said.index_select(0, start)) + edges)
        total = torch.zeros_like(said).index_add(0, ends[1], heard)
        return functional.relu(self.own(x) + self.far(total / 8)) + x


@pair(
    "scattered-access", "graphs", "said.index_select(0, start)", TWENTY_SIXTH, steps=(2, 2),
)  # fmt: skip
def senders_by_square_brackets(variant: str) -> Step:
    """A graph network (3 × 128) learns from 160,000 nodes and 1.6 million edges, of which well-known nodes have many.

    Messages are said[start]; its backward pass sorts the edges and adds those of a node one after the other.
    """
    nodes, count, width, kinds = size(160_000, 32), size(1_600_000, 128), size(128, 8), 16
    layers = on_device(lambda: nn.ModuleList(Messages(width, indexed=variant == BEFORE) for _ in range(3))).train()
    head = on_device(lambda: nn.Linear(width, kinds), seed=1)
    model = nn.ModuleList([layers, head])
    x, labels = torch.randn(nodes, width, device=DEVICE), tokens(kinds, nodes)
    start = (nodes * torch.rand(count, device=DEVICE) ** 2.5).long().clamp(max=nodes - 1)
    ends, edges = torch.stack([start, tokens(nodes, count)]), torch.randn(count, width, device=DEVICE)

    def loss() -> Tensor:
        y = x
        for layer in layers:
            y = layer(y, ends, edges)
        return functional.cross_entropy(head(y).float(), labels)

    return training(loss, adamw(model), mixed=False)


class Slots(nn.Module):
    """Soft experts: each reads a few mixtures of all places, and all places read what they say."""

    def __init__(self, width: int, wide: int, experts: int, slots: int, *, loop: bool) -> None:
        super().__init__()
        self.loop, self.count, self.slots = loop, experts, slots
        self.norm, self.which = nn.LayerNorm(width), nn.Linear(width, experts * slots, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)) for _ in range(experts)
        )

    def join(self) -> None:
        """Weights of all experts as one."""
        for name, index in (("first", 0), ("second", 2)):
            weights = torch.stack([expert[index].weight.detach().T for expert in self.experts])
            self.register_buffer(name, weights.contiguous())
            self.register_buffer(f"{name}_bias", torch.stack([expert[index].bias.detach() for expert in self.experts]))
        self.experts = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        y = self.norm(x)
        scores = self.which(y)
        sent = (scores.softmax(1).transpose(1, 2) @ y).unflatten(1, (self.count, self.slots))
        if self.loop:
            said = torch.stack([expert(sent[:, index]) for index, expert in enumerate(self.experts)], 1)
        else:
            rows = sent.transpose(0, 1).flatten(1, 2)
            rows = functional.gelu(torch.baddbmm(self.first_bias[:, None], rows, self.first))
            rows = torch.baddbmm(self.second_bias[:, None], rows, self.second)
            said = rows.unflatten(1, (len(x), self.slots)).transpose(0, 1)
        return x + scores.softmax(2) @ said.flatten(1, 2)


class Looking(nn.Module):
    """Attention between all places, after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pair(
    "per-expert-loop", "mixture-of-experts", "one batched product for all experts", TWENTY_SIXTH,
    accept=("launch-overhead", "small-kernels"), inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def soft_experts_in_turn(variant: str) -> Step:
    """A Soft MoE (6 × 768, 64 experts of 3 slots, bf16) reads 16 images of 196 patches; a list asks each expert.

    Its products are short, and the host launches one after the other; hence the other two findings, too.
    """
    width, heads, experts, slots = size(768, 32), size(12, 2), size(64, 4), size(3, 2)
    loop = variant == BEFORE

    def make() -> nn.Module:
        parts: list[nn.Module] = []
        for _ in range(size(6, 1)):
            parts += [Looking(width, heads), Slots(width, 4 * width, experts, slots, loop=loop)]
        return nn.Sequential(*parts)

    layers = on_device(make, HALF).eval()
    if not loop:
        for layer in layers[1::2]:
            layer.join()
    x = torch.randn(size(16, 2), size(196, 6), width, device=DEVICE, dtype=HALF)
    return lambda: layers(x).mean(1)


class Pairs(nn.Module):
    """The loss of SigLIP: whether each picture and each text belong together."""

    def __init__(self) -> None:
        super().__init__()
        self.sharp, self.bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))

    def forward(self, scores: Tensor) -> Tensor:
        """Scores [pictures, texts], of which the diagonal belongs together."""
        scores = scores * self.sharp.exp() + self.bias
        signs = 2 * torch.eye(len(scores), device=scores.device) - 1
        return -functional.logsigmoid(signs * scores.float()).sum(-1).mean()


@pair(
    "unfused-chain", "contrastive", "the loss is compiled", TWENTY_SIXTH,
    accept=("memory-bandwidth",), compiles=True, steps=(3, 2),
)  # fmt: skip
def all_pairs_asked_in_eager(variant: str) -> Step:
    """Two heads learn from kept features of 16,384 pictures and texts by the sigmoid loss, written in eager mode.

    Each of its lines reads and writes a number for each of 268 million pairs; hence "memory-bandwidth", too.
    """
    batch, width = size(16_384, 8), size(1024, 16)

    def head() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    model = on_device(lambda: nn.ModuleList([head(), head(), Pairs()])).train()
    if variant == AFTER:
        compiled([model[2]])
    seen, read = (torch.randn(batch, width, device=DEVICE) for _ in range(2))

    def loss() -> Tensor:
        left, right = functional.normalize(model[0](seen), dim=-1), functional.normalize(model[1](read), dim=-1)
        return model[2](left @ right.T)

    return training(loss, adamw(model))


class Turned(nn.Module):
    """Attention by cosines with a learnt sharpness for each head, and a network."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.sharp = nn.Parameter(torch.full((heads, 1, 1), 2.3))

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        sharp = self.sharp.clamp(max=4.6).exp()
        if self.fused:
            seen = functional.scaled_dot_product_attention(q * sharp, k, v, scale=1.0)
        else:
            seen = (q @ k.transpose(2, 3) * sharp).softmax(-1) @ v
        x = x + self.norms[0](self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.norms[1](self.narrow(functional.gelu(self.wide(x))))


@pair(
    "unfused-attention", "embeddings", "scaled_dot_product_attention of sharpened queries, scale=1", TWENTY_SIXTH,
    inference=True, steps=(2, 2),
)  # fmt: skip
def clips_attend_by_cosines(variant: str) -> Step:
    """An encoder (12 × 1,024, bf16) reads 8 clips of 2,048 tubes; cosine attention writes all scores to memory."""
    width, heads = size(1024, 32), size(16, 2)
    fused = variant == AFTER
    layers = on_device(
        lambda: nn.Sequential(*(Turned(width, heads, fused=fused) for _ in range(size(12, 2)))), HALF
    ).eval()
    names = on_device(lambda: nn.Linear(size(1536, 12), width), HALF, 1)
    tubes = torch.randn(size(8, 2), size(2048, 6), names.in_features, device=DEVICE, dtype=HALF)
    return lambda: layers(names(tubes)).mean(1)


@pair(
    "allocator-churn", "recommendation", "without empty_cache()", TWENTY_SIXTH,
    inference=True, with_stack=True, steps=(2, 2),
)  # fmt: skip
def shelves_freed_one_by_one(variant: str) -> Step:
    """Two towers offer 100 of a million articles to each of 1,024 readers, shelf by shelf; each ends in empty_cache().

    Once this helped against a lack of memory.
    """
    readers, articles, width, best = size(1024, 4), size(1_048_576, 64), size(256, 8), size(100, 3)
    shelf = articles // 16
    tower = on_device(
        lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)), HALF
    ).eval()
    known = torch.randn(readers, width, device=DEVICE, dtype=HALF)
    offered = torch.randn(articles, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        wanted, found, where = tower(known), [], []
        for index, some in enumerate(offered.split(shelf)):
            scores = wanted @ tower(some).T
            values, places = scores.topk(best)
            found.append(values)
            where.append(places + index * shelf)
            del scores
            if variant == BEFORE:
                torch.cuda.empty_cache()
        chosen = torch.cat(found, 1).topk(best).indices
        return torch.cat(where, 1).gather(1, chosen)

    return step


@healthy("training", TWENTY_SIXTH, library="timm", compiles=True, steps=(2, 2))
def healthy_large_batch_vit_training(variant: str) -> Step:
    """A ViT-B/16 learns from 320 images at once: mixed precision, blocks compiled, fused AdamW."""
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, img_size=size(224, 32))).train()
    compiled(model.blocks)
    x, labels = images(size(320, 1), size(224, 32)), tokens(1000, size(320, 1))
    return training(lambda: functional.cross_entropy(model(x), labels, label_smoothing=0.1), adamw(model))


@healthy("vision", TWENTY_SIXTH, library="torchvision", compiles=True, steps=(2, 2))
def healthy_resnet101_channels_last(variant: str) -> Step:
    """A ResNet-101 learns from 160 images: mixed precision, channels_last, compiled whole, fused SGD."""
    make = torchvision.models.resnet101 if CUDA else torchvision.models.resnet18
    model = on_device(make).train().to(memory_format=LAST)
    compiled([model])
    x, labels = images(size(160, 2), size(224, 32)).contiguous(memory_format=LAST), tokens(1000, size(160, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    return training(lambda: functional.cross_entropy(model(x), labels), optimizer)


@healthy("diffusion", TWENTY_SIXTH, library="timm", compiles=True, inference=True, steps=(2, 2))
def healthy_graphed_latent_steps(variant: str) -> Step:
    """A diffusion transformer (12 × 768, bf16, compiled) takes 6 steps with 64 latents of 32², in one CUDA graph."""
    side, batch, count = size(32, 4), size(64, 2), size(6, 2)
    model = on_device(lambda: Denoiser(size(768, 32), size(12, 2), size(12, 1), side), HALF).eval()
    compiled(model.blocks)
    noise = torch.randn(batch, 4, side, side, device=DEVICE, dtype=HALF)
    times = torch.linspace(1, 0, count + 1, device=DEVICE, dtype=HALF)

    def drawn() -> Tensor:
        x = noise
        for index in range(count):
            now = times[index].expand(batch, 1)
            x = x + (times[index + 1] - times[index]) * model(x, now)
        return x

    return as_graph(drawn)


@healthy("recommendation", TWENTY_SIXTH, inference=True, steps=(3, 3))
def healthy_histories_pooled(variant: str) -> Step:
    """131,072 readers are described by the sum of 400 of ten million articles (128 × bf16): an EmbeddingBag."""
    articles, width, readers, long = size(10_000_000, 64), size(128, 8), size(131_072, 4), size(400, 5)
    bag = on_device(lambda: nn.EmbeddingBag(articles, width, mode="sum"), HALF).eval()
    tower = on_device(lambda: nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64)), HALF, 1).eval()
    read = torch.randint(0, articles, (readers, long), device=DEVICE, dtype=torch.int32)
    return lambda: tower(bag(read))
