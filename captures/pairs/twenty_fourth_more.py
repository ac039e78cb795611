"""More of the twenty-fourth set: pictures made, judged and searched, maps, captions, latents."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_FOURTH, Step, healthy, pair
from pairs.twenty_fourth import Reader

LAST = torch.channels_last


class Styled(nn.Module):
    """A convolution whose weights a style changes, for each image by itself, as in StyleGAN2."""

    def __init__(self, width: int, *, together: bool) -> None:
        super().__init__()
        self.together = together
        self.style = nn.Linear(width, width)
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, styles: Tensor) -> Tensor:
        """Maps [images, width, side, side], styles [images, width]."""
        styles = 1 + self.style(styles)
        weight, bias = self.convolution.weight, self.convolution.bias
        if self.together:
            large = (styles.square() @ weight.square().sum((2, 3)).T + 1e-4).rsqrt()
            x = functional.conv2d(x * styles[:, :, None, None], weight, padding=1)
            x = torch.addcmul(bias[:, None, None], x, large[:, :, None, None])
        else:
            made = []
            for image, style in zip(x, styles, strict=True):
                own = weight * style[:, None, None]
                own = own * (own.square().sum((1, 2, 3), keepdim=True) + 1e-4).rsqrt()
                made.append(functional.conv2d(image[None], own, bias, padding=1))
            x = torch.cat(made)
        return functional.leaky_relu(x, 0.2)


@pair(
    "launch-overhead", "faces", "the style scales the maps, before and after one convolution of all", TWENTY_FOURTH,
    accept=("small-kernels", "per-expert-loop"), inference=True, steps=(3, 2),
)  # fmt: skip
def faces_styled_one_by_one(variant: str) -> Step:
    """Eight styled convolutions of a StyleGAN2 (512 channels, 32 × 32, bf16) make 32 faces; a loop styles each."""
    width, batch = size(512, 16), size(32, 3)
    together = variant == AFTER
    layers = on_device(lambda: nn.ModuleList(Styled(width, together=together) for _ in range(size(8, 2))), HALF).eval()
    layers.to(memory_format=LAST)
    x = images(batch, size(32, 8), HALF, width).contiguous(memory_format=LAST)
    styles = torch.randn(batch, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        y = x
        for layer in layers:
            y = layer(y, styles)
        return y

    return step


@pair(
    "blocking-copy", "evaluation", "pictures are rounded where they are made, on the GPU", TWENTY_FOURTH,
    library="timm", accept=("host-stall", "host-sync"), inference=True, with_stack=True, steps=(3, 2),
)  # fmt: skip
def pictures_rounded_on_the_host(variant: str) -> Step:
    """FID of 64 new pictures of 256²: saved as bytes by way of the CPU, seen by Inception, products summed in fp64."""
    name, batch = "inception_v3" if CUDA else "resnet10t", size(64, 2)
    judge = on_device(lambda: timm.create_model(name, num_classes=0), HALF).eval().to(memory_format=LAST)
    parts: list[nn.Module] = []
    for wide, narrow in ((512, 256), (256, 128), (128, 64)):
        parts += [
            nn.Upsample(scale_factor=2),
            nn.Conv2d(size(wide, wide // 32), size(narrow, narrow // 32), 3, padding=1),
            nn.SiLU(),
        ]
    maker = nn.Sequential(*parts, nn.Conv2d(size(64, 2), 3, 3, padding=1))
    maker = maker.to(DEVICE, HALF).eval().to(memory_format=LAST)
    latents = images(batch, size(32, 8), HALF, size(512, 16)).contiguous(memory_format=LAST)
    wide = judge.num_features
    sums = torch.zeros(wide, device=DEVICE, dtype=torch.float64)
    products = torch.zeros(wide, wide, device=DEVICE, dtype=torch.float64)

    def step() -> Tensor:
        pictures = (maker(latents).float() * 127.5 + 128).clamp(0, 255)
        pictures = pictures.cpu().to(torch.uint8).to(DEVICE) if variant == BEFORE else pictures.to(torch.uint8)
        x = functional.interpolate(pictures.to(HALF) / 127.5 - 1, size=size(299, 64), mode="bilinear")
        seen = judge(x.contiguous(memory_format=LAST)).double()
        sums.add_(seen.sum(0))
        products.addmm_(seen.T, seen)
        return sums

    return step


class Asking(nn.Module):
    """Latents that look at all of the input, by scores written out or not."""

    def __init__(self, width: int, told: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads, self.written = heads, written
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(told)])
        self.asks, self.told, self.out = nn.Linear(width, width), nn.Linear(told, 2 * width), nn.Linear(width, width)

    def forward(self, latents: Tensor, x: Tensor) -> Tensor:
        """Latents [rows, latents, width], the input [rows, places, told]."""
        parts = (self.asks(self.norms[0](latents)), *self.told(self.norms[1](x)).chunk(2, -1))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.written:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
            seen = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)
        else:
            seen = functional.scaled_dot_product_attention(q, k, v)
        return latents + self.out(seen.transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """Latents look at the pixels, and at each other several times; twice."""

    def __init__(self, width: int, told: int, heads: int, blocks: int, *, written: bool) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(size(512, 8), width) * 0.02)
        self.asking = nn.ModuleList(Asking(width, told, heads, written=written) for _ in range(2))
        self.blocks = nn.ModuleList(Reader(width, heads, ahead=True) for _ in range(2 * blocks))
        self.out = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """The input [rows, places, told]."""
        latents = self.latents.expand(len(x), -1, -1)
        half = len(self.blocks) // 2
        for index, asking in enumerate(self.asking):
            latents = asking(latents, x)
            for block in self.blocks[index * half : (index + 1) * half]:
                latents = block(latents)
        return self.out(latents.mean(1))


def with_waves(pixels: Tensor, bands: int) -> Tensor:
    """Pixels [rows, places, colours], and the sines and cosines of where they are."""
    side = round(pixels.shape[1] ** 0.5)
    line = torch.linspace(-1, 1, side, device=pixels.device)
    sites = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
    turns = (sites[..., None] * torch.linspace(1, side / 2, bands, device=pixels.device) * torch.pi).flatten(1)
    waves = torch.cat([turns.sin(), turns.cos()], -1)
    return torch.cat([pixels, waves.expand(len(pixels), -1, -1).to(pixels.dtype)], -1)


@pair(
    "unfused-attention", "vision", "functional.scaled_dot_product_attention", TWENTY_FOURTH,
    accept=("unfused-chain", "memory-bandwidth"), with_stack=True, steps=(2, 2),
)  # fmt: skip
def perceiver_scores_in_memory(variant: str) -> Step:
    """A Perceiver (512 latents of 1,024, 2 × 3 blocks) learns from 6 images of 128² pixels; einsum makes the scores."""
    width, bands, batch, side = size(1024, 32), size(63, 3), size(6, 2), size(128, 8)
    written = variant == BEFORE
    model = on_device(lambda: Perceiver(width, 4 + 4 * bands, size(8, 2), size(3, 1), written=written)).train()
    pixels, labels = torch.randn(batch, side * side, 4, device=DEVICE, dtype=HALF), tokens(1000, batch)
    return training(lambda: functional.cross_entropy(model(with_waves(pixels, bands)), labels), adamw(model))


@healthy("vision", TWENTY_FOURTH, compiles=True, steps=(2, 2))
def healthy_perceiver_training(variant: str) -> Step:
    """A Perceiver (512 latents of 2,048, 2 × 4 blocks) learns from 16 images of 64² places: compiled, fused AdamW."""
    width, told, batch = size(2048, 32), size(512, 16), size(16, 2)
    model = on_device(lambda: Perceiver(width, told, size(16, 2), size(4, 1), written=False)).train()
    compiled([*model.asking, *model.blocks])
    x, labels = torch.randn(batch, size(4096, 16), told, device=DEVICE, dtype=HALF), tokens(1000, batch)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


def mixed_logistics(told: Tensor, pixels: Tensor) -> Tensor:
    """How unlikely pixels [images, 3, high, wide] are by ten logistics of each colour, as in PixelCNN++."""
    shares, rest = told[:, :10], told[:, 10:].unflatten(1, (3, 3, 10))
    x = pixels[:, :, None]
    means, widths, mixed = rest[:, 0], rest[:, 1].clamp_min(-7), rest[:, 2].tanh()
    red, green, blue = means.unbind(1)
    green = green + mixed[:, 0] * x[:, 0]
    blue = blue + mixed[:, 1] * x[:, 0] + mixed[:, 2] * x[:, 1]
    away = x - torch.stack([red, green, blue], 1)
    sharp = torch.exp(-widths)
    upper, lower, middle = sharp * (away + 1 / 255), sharp * (away - 1 / 255), sharp * away
    inside = torch.sigmoid(upper) - torch.sigmoid(lower)
    narrow = middle - widths - 2 * functional.softplus(middle) - 4.85
    known = torch.where(inside > 1e-5, inside.clamp_min(1e-12).log(), narrow)
    known = torch.where(x > 0.999, -functional.softplus(lower), known)
    known = torch.where(x < -0.999, upper - functional.softplus(upper), known)
    return -torch.logsumexp(known.sum(1) + shares.log_softmax(1), 1).mean()


@pair(
    "unfused-chain", "pictures", "the loss through torch.compile", TWENTY_FOURTH,
    accept=("memory-bandwidth",), compiles=True, steps=(3, 3),
)  # fmt: skip
def logistics_mixed_by_formula(variant: str) -> Step:
    """A PixelCNN++ (8 convolutions of 128, channels_last) learns from 128 pictures of 64²; its loss is a formula."""
    width, batch, side = size(128, 8), size(128, 2), size(64, 8)
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(size(7, 1)):
        parts += [nn.ELU(), nn.Conv2d(width, width, 3, padding=1)]
    model = nn.Sequential(*parts, nn.ELU(), nn.Conv2d(width, 104, 1)).to(DEVICE).train().to(memory_format=LAST)
    pixels = (torch.rand(batch, 3, side, side, device=DEVICE) * 2 - 1).contiguous(memory_format=LAST)
    loss = mixed_logistics if variant == BEFORE or TINY else torch.compile(mixed_logistics, dynamic=False)
    return training(lambda: loss(model(pixels)[:, :100].float(), pixels), adamw(model))


class Prompted(nn.Module):
    """A vision transformer that reads some learned places, too."""

    def __init__(self, name: str, prompts: int) -> None:
        super().__init__()
        self.body = timm.create_model(name, num_classes=0)
        self.prompts = nn.Parameter(torch.randn(prompts, self.body.num_features) * 0.02)
        self.head = nn.Linear(self.body.num_features, size(200, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Images → scores of the classes."""
        x = self.body.norm_pre(self.body._pos_embed(self.body.patch_embed(x)))
        x = torch.cat([x, self.prompts.expand(len(x), -1, -1).to(x.dtype)], 1)
        return self.head(self.body.norm(self.body.blocks(x))[:, 0])

    def learned(self) -> nn.ParameterList:
        """What the optimizer gets."""
        return nn.ParameterList([self.prompts, *self.head.parameters()])


@pair(
    "unused-gradients", "fine-tuning", "the body's weights are frozen: requires_grad_(False)", TWENTY_FOURTH,
    library="timm", accept=("recomputation", "unused-results"), compiles=True, steps=(2, 2),
)  # fmt: skip
def prompts_beside_unfrozen_weights(variant: str) -> Step:
    """Visual prompts (11 places) of a ViT-B/16 (blocks compiled) learn from 96 images; the body gets gradients, too."""
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: Prompted(name, 11)).train()
    if variant == AFTER:
        model.body.requires_grad_(False)
    compiled(model.body.blocks)
    x, labels = images(size(96, 1), 224), tokens(size(200, 8), size(96, 1))
    train = training(lambda: functional.cross_entropy(model(x), labels), adamw(model.learned()))

    def step() -> None:
        train()
        model.zero_grad(set_to_none=True)

    return step


@healthy("fine-tuning", TWENTY_FOURTH, library="timm", compiles=True, steps=(2, 2))
def healthy_visual_prompts(variant: str) -> Step:
    """Visual prompts (11 places) of a frozen ViT-L/16 in bf16 learn from 96 images; blocks compiled, fused AdamW."""
    name = "vit_large_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: Prompted(name, 11)).train()
    model.body.requires_grad_(False).to(HALF)
    compiled(model.body.blocks)
    x, labels = images(size(96, 1), 224, HALF), tokens(size(200, 8), size(96, 1))
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model.learned()))


@pair(
    "unused-results", "matching", "stop_early=True: the blocks after the features are left out", TWENTY_FOURTH,
    library="timm", accept=("tensor-compute", "recomputation"), inference=True, steps=(2, 2),
)  # fmt: skip
def features_from_the_middle(variant: str) -> Step:
    """Patches of 64 pairs of images are matched by what the 12th of 24 blocks of a ViT-L/16 (bf16) says of them."""
    name, block = ("vit_large_patch16_224", 11) if CUDA else ("vit_tiny_patch16_224", 2)
    model = on_device(lambda: timm.create_model(name, num_classes=0), HALF).eval()
    x = images(2 * size(64, 1), 224, HALF)

    def step() -> Tensor:
        (seen,) = model.forward_intermediates(
            x, indices=[block], output_fmt="NLC", intermediates_only=True, stop_early=variant == AFTER
        )
        left, right = functional.normalize(seen, dim=-1).chunk(2)
        return (left @ right.transpose(1, 2)).argmax(-1)

    return step


class Centers(nn.Module):
    """CenterNet: maps of four sizes are added up, and three heads tell centers, sizes and shifts."""

    def __init__(self, name: str, width: int, kinds: int) -> None:
        super().__init__()
        self.body = timm.create_model(name, features_only=True, out_indices=(-4, -3, -2, -1))
        self.beside = nn.ModuleList(nn.Conv2d(wide, width, 1) for wide in self.body.feature_info.channels())
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, count, 1))
            for count in (kinds, 2, 2)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Images → centers, sizes and shifts."""
        maps = [beside(some) for beside, some in zip(self.beside, self.body(x), strict=True)]
        y = maps[-1]
        for some in maps[-2::-1]:
            y = functional.interpolate(y, scale_factor=2) + some
        return [head(y) for head in self.heads]


@pair(
    "memory-format", "detection", "model and images in torch.channels_last", TWENTY_FOURTH,
    library="timm", accept=("memory-bandwidth",), steps=(2, 2),
)  # fmt: skip
def centers_found_as_images_come(variant: str) -> Step:
    """A CenterNet (DLA-60, mixed precision, NCHW) learns 20 kinds of things on 24 images of 512², by a formula."""
    name, batch, side, kinds = "dla60" if CUDA else "resnet10t", size(24, 2), size(512, 64), size(20, 4)
    model = on_device(lambda: Centers(name, size(256, 16), kinds)).train()
    x = images(batch, side)
    wanted = torch.rand(batch, kinds, side // 4, side // 4, device=DEVICE) ** 8
    wanted[:, :, ::16, ::16] = 1
    sizes = torch.rand(batch, 4, side // 4, side // 4, device=DEVICE)
    if variant == AFTER:
        model, x = model.to(memory_format=LAST), x.contiguous(memory_format=LAST)

    def loss() -> Tensor:
        scores, *rest = model(x)
        found = scores.float().sigmoid().clamp(1e-4, 1 - 1e-4)
        here = (wanted == 1).float()
        hit = found.log() * (1 - found).square() * here
        missed = (1 - found).log() * found.square() * (1 - wanted) ** 4 * (1 - here)
        return -(hit + missed).sum() / here.sum() + functional.l1_loss(torch.cat(rest, 1).float(), sizes)

    return training(loss, adamw(model))


class Placed(nn.Module):
    """A convolution that is told where it is: CoordConv."""

    def __init__(self, width: int, empty: int) -> None:
        super().__init__()
        self.empty = empty
        self.convolution = nn.Conv2d(width + 2 + empty, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [images, width, high, wide]."""
        batch, _, high, wide = x.shape
        down = torch.linspace(-1, 1, high, device=x.device, dtype=x.dtype)[:, None].expand(batch, 1, high, wide)
        across = torch.linspace(-1, 1, wide, device=x.device, dtype=x.dtype).expand(batch, 1, high, wide)
        places = torch.cat([down, across, x.new_zeros(batch, self.empty, high, wide)], 1)
        x = torch.cat([x, places.contiguous(memory_format=LAST)], 1)
        return functional.relu(self.norm(self.convolution(x)), inplace=True)


@pair(
    "misaligned-shape", "segmentation", "264 channels, six of them empty, instead of 258", TWENTY_FOURTH,
    accept=("tensor-compute", "memory-format"), steps=(3, 3),
)  # fmt: skip
def coordinates_make_258_channels(variant: str) -> Step:
    """The mask head of a SOLO (seven CoordConvs of 256, bf16, channels_last) learns from 8 maps of 128 × 128."""
    width, batch, side, masks = size(256, 16), size(8, 2), size(128, 8), size(64, 4)
    empty = 6 if variant == AFTER else 0
    model = on_device(lambda: nn.Sequential(
        *(Placed(width, empty) for _ in range(size(7, 2))), nn.Conv2d(width, masks, 1)
    )).train().to(memory_format=LAST)  # fmt: skip
    x = images(batch, side, HALF, width).contiguous(memory_format=LAST)
    wanted = torch.rand(batch, masks, side, side, device=DEVICE).round().to(HALF).contiguous(memory_format=LAST)
    return training(lambda: functional.mse_loss(model(x).sigmoid(), wanted), adamw(model))


@pair(
    "growing-cache", "evaluation", "maps are kept in a list, and joined once", TWENTY_FOURTH,
    library="timm", accept=("memory-bandwidth",), inference=True, steps=(2, 2),
)  # fmt: skip
def maps_joined_after_each_batch(variant: str) -> Step:
    """A ResNet-34 (bf16, channels_last) tells 19 kinds of places in 16 × 8 streets of 512 × 1,024; torch.cat each."""
    name, kinds, high, wide, batch = "resnet34" if CUDA else "resnet10t", 19, size(512, 64), size(1024, 64), size(8, 1)
    body = on_device(lambda: timm.create_model(name, features_only=True, out_indices=(3,)), HALF).eval()
    head = on_device(lambda: nn.Conv2d(body.feature_info.channels()[-1], kinds, 1), HALF, 1)
    body, head = body.to(memory_format=LAST), head.to(memory_format=LAST)
    x = torch.randn(batch, 3, high, wide, device=DEVICE, dtype=HALF).contiguous(memory_format=LAST)

    def step() -> Tensor:
        kept: list[Tensor] = []
        for _ in range(size(16, 2)):
            maps = functional.interpolate(head(body(x)[0]), size=(high, wide), mode="bilinear")
            if variant == BEFORE and kept:
                kept = [torch.cat([kept[0], maps])]
            else:
                kept.append(maps)
        return torch.bincount(torch.cat(kept).argmax(1).flatten(), minlength=kinds)

    return step


@pair(
    "padded-work", "image and text", "captions are cut to the longest of the batch (24 words)", TWENTY_FOURTH,
    accept=("tensor-compute",), compiles=True, steps=(2, 2),
)  # fmt: skip
def captions_padded_to_77(variant: str) -> Step:
    """LiT: a text tower (12 × 512, compiled) learns captions of 512 images of 10 to 24 words, all padded to 77."""
    width, texts, words, longest = size(512, 16), size(512, 4), size(49_408, 64), size(24, 5)
    room = size(77, 9) if variant == BEFORE else longest
    blocks = on_device(lambda: nn.Sequential(*(Reader(width, size(8, 2)) for _ in range(size(12, 1))))).train()
    names = on_device(lambda: nn.Embedding(words, width), seed=1)
    compiled(blocks)
    ends = torch.randint(size(10, 2), longest, (texts,), device=DEVICE)
    ids = tokens(words - 1, texts, longest) + 1
    ids = functional.pad(ids * (torch.arange(longest, device=DEVICE) <= ends[:, None]), (0, room - longest))
    seen = functional.normalize(torch.randn(texts, width, device=DEVICE), dim=-1)
    rows = torch.arange(texts, device=DEVICE)

    def loss() -> Tensor:
        read = functional.normalize(blocks(names(ids).to(HALF))[rows, ends].float(), dim=-1)
        scores = 100 * seen @ read.T
        return (functional.cross_entropy(scores, rows) + functional.cross_entropy(scores.T, rows)) / 2

    return training(loss, adamw(nn.ModuleList([blocks, names])))


class Lars:
    """Rates of each layer by the norms of its weights and gradients; one by one, or in lists."""

    def __init__(self, weights: list[nn.Parameter], *, lists: bool) -> None:
        self.weights, self.lists = weights, lists
        self.rate, self.decay, self.momentum = 0.2, 1e-6, 0.9
        self.kept = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        if self.lists:
            grads = torch._foreach_add([weight.grad for weight in self.weights], self.weights, alpha=self.decay)
            large, steep = torch._foreach_norm(self.weights), torch._foreach_norm(grads)
            torch._foreach_add_(steep, 1e-8)
            trust = torch._foreach_div(large, steep)
            torch._foreach_mul_(trust, 1e-3)
            torch._foreach_mul_(grads, trust)
            torch._foreach_mul_(self.kept, self.momentum)
            torch._foreach_add_(self.kept, grads)
            torch._foreach_add_(self.weights, self.kept, alpha=-self.rate)
            return
        for weight, kept in zip(self.weights, self.kept, strict=True):
            grad = weight.grad + self.decay * weight
            trust = 1e-3 * weight.norm() / (grad.norm() + 1e-8)
            kept.mul_(self.momentum).add_(grad * trust)
            weight.add_(kept, alpha=-self.rate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        for weight in self.weights:
            weight.grad = None


@pair(
    "unfused-optimizer", "contrastive", "LARS in torch._foreach functions, on lists of all weights", TWENTY_FOURTH,
    library="timm", accept=("launch-overhead", "small-kernels"), profiler_steps=True, steps=(2, 2),
)  # fmt: skip
def lars_layer_by_layer(variant: str) -> Step:
    """SimCLR: a ResNet-50 (channels_last) learns from two views of 192 images of 96²; LARS goes layer by layer."""
    name, batch, side = "resnet50" if CUDA else "resnet10t", size(192, 2), size(96, 32)
    model = on_device(lambda: timm.create_model(name, num_classes=size(128, 8))).train().to(memory_format=LAST)
    x = images(2 * batch, side).contiguous(memory_format=LAST)
    others = torch.arange(2 * batch, device=DEVICE).roll(batch)
    itself = torch.eye(2 * batch, device=DEVICE, dtype=torch.bool)

    def loss() -> Tensor:
        z = functional.normalize(model(x).float(), dim=-1)
        return functional.cross_entropy((z @ z.T / 0.1).masked_fill(itself, -1e4), others)

    optimizer = Lars(list(model.parameters()), lists=variant == AFTER)
    return training(loss, optimizer)


@healthy("matching", TWENTY_FOURTH, library="timm", compiles=True, inference=True, steps=(2, 2))
def healthy_middle_features(variant: str) -> Step:
    """The first 12 blocks of a ViT-L/16 describe 256 images in bf16; the rest is pruned, the blocks are compiled."""
    name, block = ("vit_large_patch16_224", 11) if CUDA else ("vit_tiny_patch16_224", 2)
    model = on_device(lambda: timm.create_model(name, num_classes=0), HALF).eval()
    model.prune_intermediate_layers([block], prune_norm=True)
    compiled(model.blocks)
    x = images(size(256, 1), 224, HALF)
    return lambda: model.forward_features(x)


@healthy("detection", TWENTY_FOURTH, library="timm", compiles=True, inference=True, steps=(3, 3))
def healthy_detector_body(variant: str) -> Step:
    """A CSPDarkNet-53 looks at 64 images of 512² in bf16: channels_last, compiled whole, replayed from a CUDA graph."""
    name = "cspdarknet53" if CUDA else "resnet10t"
    model = on_device(lambda: timm.create_model(name, num_classes=0, global_pool=""), HALF).eval()
    model = model.to(memory_format=LAST)
    compiled([model])
    x = images(size(64, 1), size(512, 64), HALF).contiguous(memory_format=LAST)
    return as_graph(lambda: model(x))
