"""The fifteenth set: images, sounds, proteins and a robot."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from pairs.fourteenth import Block
from pairs.fourteenth_more import actor_critic
from pairs.inputs import Loaded
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FIFTEENTH, Step, healthy, pair


@pair(
    "precision", "contrastive", "the product of all with all stays in autocast (bf16)", FIFTEENTH,
    accept=("memory-bandwidth",), steps=(3, 3),
)  # fmt: skip
def contrastive_scores_in_fp32(variant: str) -> Step:
    """Two heads (1,024 → 768) learn from features of 12,288 pairs; scores of all with all leave autocast for fp32."""
    width, out, batch = size(1024, 16), size(768, 8), size(12_288, 6)
    heads = on_device(lambda: nn.ModuleList(
        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, out)) for _ in range(2)
    )).train()  # fmt: skip
    pictures, texts = (torch.randn(batch, width, device=DEVICE) for _ in range(2))
    target = torch.arange(batch, device=DEVICE)

    def loss() -> Tensor:
        seen, read = (functional.normalize(head(x), dim=-1) for head, x in zip(heads, (pictures, texts), strict=True))
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA and variant == AFTER):
            scores = (seen.float() @ read.float().t()).float() * 20
        return functional.cross_entropy(scores, target) + functional.cross_entropy(scores.t(), target)

    return training(loss, adamw(heads))


class Triangle(nn.Module):
    """Attention along the rows of a matrix of pairs, with a bias from the pairs (arXiv: AlphaFold's supplement)."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.bias = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, heads, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs [rows, columns, width] → the same shape."""
        x = self.norm(pairs)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.joined(x).chunk(3, -1))
        bias = self.bias(x).permute(2, 0, 1).contiguous()[None]
        if self.fused:
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(q), -1, -1, -1))
        else:
            scores = torch.einsum("rhid,rhjd->rhij", q * q.shape[-1] ** -0.5, k) + bias
            seen = torch.einsum("rhij,rhjd->rhid", scores.softmax(-1), v)
        pairs = pairs + self.out(seen.transpose(1, 2).flatten(2) * self.gate(x).sigmoid())
        return pairs + self.feed(self.after(pairs))


@pair(
    "unfused-attention", "proteins", "scaled_dot_product_attention with the bias as attn_mask", FIFTEENTH,
    inference=True, steps=(3, 3),
)  # fmt: skip
def pair_bias_attention_written_out(variant: str) -> Step:
    """Eight layers of triangular attention (128, four heads) see the pairs of 320 residues in bf16, with einsum."""
    width, residues = size(128, 8), size(320, 8)
    layers = on_device(lambda: nn.Sequential(*(
        Triangle(width, size(4, 2), fused=variant == AFTER) for _ in range(size(8, 1))
    )), HALF).eval()  # fmt: skip
    x = torch.randn(residues, residues, width, device=DEVICE, dtype=HALF)
    return lambda: layers(x)


class Dense(nn.Module):
    """A residual dense block of ESRGAN (arXiv:1809.00219): each convolution sees all before it."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Conv2d(width + index * growth, growth if index < 4 else width, 3, padding=1) for index in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images [images, width, side, side] → the same shape."""
        found = [x]
        for index, part in enumerate(self.parts):
            y = part(torch.cat(found, 1))
            found.append(functional.leaky_relu(y, 0.2) if index < 4 else y)
        return x + 0.2 * found[-1]


@pair(
    "memory-format", "super-resolution", "model and images in torch.channels_last", FIFTEENTH,
    inference=True, steps=(3, 3),
)  # fmt: skip
def upscaler_as_images_come(variant: str) -> Step:
    """ESRGAN (24 dense blocks of 64 channels) makes 4 images of 192 × 192 larger in bf16, channels first."""
    width = size(64, 8)
    body = [nn.Conv2d(3, width, 3, padding=1), *(Dense(width, size(32, 4)) for _ in range(size(24, 1)))]
    wider = [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.LeakyReLU(0.2)]
    last = [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)]
    model = on_device(lambda: nn.Sequential(*body, *wider, *last), HALF).eval()
    x = images(size(4, 1), size(192, 16), HALF)
    if variant == AFTER:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return lambda: model(x)


@pair(
    "launch-overhead", "self-supervision", "crops of one size go through the network together", FIFTEENTH,
    library="timm", accept=("small-kernels",), steps=(3, 3),
)  # fmt: skip
def crops_in_turn(variant: str) -> Step:
    """DINO: a ViT-S/16 sees two crops of 224 and eight of 96 of 8 images, its teacher the first two, in turn."""
    name = "vit_small_patch16_224" if CUDA else "vit_tiny_patch16_224"
    student, teacher = (
        on_device(lambda: timm.create_model(name, num_classes=size(4096, 16), dynamic_img_size=True)).train()
        for _ in range(2)
    )
    batch = size(8, 1)
    large = [images(batch, 224) for _ in range(2)]
    small = [images(batch, 96) for _ in range(size(8, 2))]

    def seen(model: nn.Module, crops: list[Tensor]) -> Tensor:
        if variant == BEFORE:
            return torch.stack([model(crop) for crop in crops]).float()
        return model(torch.cat(crops)).unflatten(0, (len(crops), -1)).float()

    def loss() -> Tensor:
        with torch.no_grad():
            wanted = (seen(teacher, large) / 0.04).softmax(-1)
        found = torch.cat([seen(student, large), seen(student, small)])
        scores = (found / 0.1).log_softmax(-1)
        return -torch.einsum("abc,dbc->", wanted, scores) / (len(wanted) * len(scores) * batch)

    return training(loss, adamw(student))


class Separator(nn.Module):
    """Masks of four sources for the lower bins of a stereo spectrum, frame by frame, as Open-Unmix crops them."""

    def __init__(self, bins: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(2 * bins, width)
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.sources = nn.ModuleList(nn.Linear(width, 2 * bins) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Spectra [songs, frames, 2 × bins] → masks [4, songs, frames, 2 × bins]."""
        y = self.first(x)
        y = y + self.body(y)
        return torch.stack([source(y).sigmoid() for source in self.sources])


@pair(
    "misaligned-shape", "sounds", "1,488 bins a channel, one of them empty, instead of 1,487", FIFTEENTH, steps=(3, 3),
)  # fmt: skip
def spectra_of_1487_bins(variant: str) -> Step:
    """A separator (2 × 1,487 bins, 1,024 wide, four sources) learns from 32 songs of 256 frames in bf16."""
    bins = size(1487, 15) + (variant == AFTER)
    model = on_device(lambda: Separator(bins, size(1024, 16))).train()
    x = torch.rand(size(32, 2), size(256, 4), 2 * bins, device=DEVICE)
    wanted = torch.rand(4, *x.shape, device=DEVICE, dtype=HALF)
    return training(lambda: functional.l1_loss(model(x), wanted), adamw(model))


@pair(
    "launch-overhead", "reinforcement", "the update is replayed from a CUDA graph", FIFTEENTH,
    accept=("small-kernels",), steps=(6, 3),
)  # fmt: skip
def actor_critic_kernel_by_kernel(variant: str) -> Step:
    """Soft actor-critic (2 × 256, two critics) learns from 256 transitions an update, kernel by kernel."""
    update = actor_critic(size(256, 4), size(256, 8), 2)
    return update if variant == BEFORE else as_graph(update)


@healthy("contrastive", FIFTEENTH, library="timm", compiles=True, steps=(3, 3))
def healthy_image_text_training(variant: str) -> Step:
    """A ViT-B/16 and a text encoder (8 × 512) learn from 192 pairs: bf16, blocks compiled, fused AdamW."""
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    width, batch = size(512, 16), size(192, 2)
    sight = on_device(lambda: timm.create_model(name, num_classes=width)).train()
    words = on_device(lambda: nn.Embedding(size(32_768, 64), width)).train()
    reader = on_device(
        lambda: nn.Sequential(*(Block(width, size(8, 2), causal=True) for _ in range(size(8, 1))))
    ).train()
    compiled([*sight.blocks, *reader])
    x, ids = images(batch, 224), tokens(size(32_768, 64), batch, size(77, 8))
    target = torch.arange(batch, device=DEVICE)

    def loss() -> Tensor:
        seen = functional.normalize(sight(x), dim=-1)
        read = functional.normalize(reader(words(ids))[:, -1], dim=-1)
        scores = (seen @ read.t()).float() * 20
        return functional.cross_entropy(scores, target) + functional.cross_entropy(scores.t(), target)

    return training(loss, adamw(nn.ModuleList([sight, words, reader])))


class Cuts(Dataset[tuple[Tensor, int]]):
    """Cuts of random photographs, as bytes."""

    def __init__(self, side: int, classes: int) -> None:
        self.side, self.classes = side, classes
        self.photos = torch.randint(0, 256, (16, 3, 280, 280), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row, column = int(torch.randint(0, 280 - self.side, ())), int(torch.randint(0, 280 - self.side, ()))
        cut = self.photos[index % 16, :, row : row + self.side, column : column + self.side]
        return (cut.flip(-1) if index % 2 else cut).contiguous(), index % self.classes


@healthy("vision", FIFTEENTH, library="timm", compiles=True, profiler_steps=True, steps=(3, 3))
def healthy_mixer_loader(variant: str) -> Step:
    """An MLP-Mixer-B/16 learns from 192 images, which eight workers cut and pin: mixed precision, blocks compiled."""
    classes = size(1000, 16)
    name = "mixer_b16_224" if CUDA else "mixer_s32_224"
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).train()
    compiled(model.blocks)
    optimizer = adamw(model)

    def learn(cuts: Tensor, labels: Tensor) -> None:
        x = cuts.to(torch.float32).sub_(116).div_(57)
        training(lambda: functional.cross_entropy(model(x), labels), optimizer)()

    loader = DataLoader(Cuts(224, classes), size(192, 2), num_workers=size(8, 1), pin_memory=CUDA, prefetch_factor=4)
    return Loaded(loader, learn)
