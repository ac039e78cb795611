"""More of the thirtieth set: small numbers, voices, streets, scans, Go, skin."""

from __future__ import annotations

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, Block, adamw, compiled, images, mixed, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, THIRTIETH, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


def to_eight_bits(x: Tensor, scale: Tensor) -> Tensor:
    """Numbers as eight bits would hold them; their gradient is that of the numbers themselves."""
    held = (x / scale).round().clamp(-128, 127) * scale
    return x + (held - x).detach()


class EightBits(nn.Linear):
    """A product that learns to have weights and inputs of eight bits."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., narrow] → [..., wide]."""
        scale = self.weight.detach().abs().amax(1, keepdim=True) / 127
        return functional.linear(to_eight_bits(x, self.scale), to_eight_bits(self.weight, scale), self.bias)

    def watch(self) -> None:
        """Makes room for the scale of inputs, which is known from before."""
        self.register_buffer("scale", torch.tensor(0.04, device=self.weight.device))


@pair(
    "unfused-chain", "fine-tuning", "blocks compiled: what rounds to eight bits is part of the passes beside it",
    THIRTIETH, library="timm", accept=("memory-bandwidth",), compiles=True, steps=(2, 2),
)  # fmt: skip
def edge_device_finetuning(variant: str) -> Step:
    """A ViT-B/16 (mixed precision) is tuned for eight bits with 96 images: inputs and weights are rounded as it learns.

    To round an input takes six passes over it, and a weight nine; hence "memory-bandwidth", too.
    """
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=size(200, 7))).train()
    for module in model.blocks.modules():
        if type(module) is nn.Linear:
            module.__class__ = EightBits
            module.watch()
    if variant == AFTER:
        compiled(model.blocks)
    x, kinds = images(size(96, 2), 224), tokens(size(200, 7), size(96, 2))
    return training(lambda: functional.cross_entropy(model(x).float(), kinds), adamw(model))


class Voice(nn.Module):
    """Makes a sound of a spectrum: HiFi-GAN's generator (J. Kong et al., 2020), a small one."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.begin = nn.Conv1d(bands, width, 7, padding=3)
        self.raised, self.bodies = nn.ModuleList(), nn.ModuleList()
        for times in (8, 8, 4):
            self.raised.append(nn.ConvTranspose1d(width, width // 2, 2 * times, times, times // 2))
            width //= 2
            self.bodies.append(
                nn.ModuleList(nn.Conv1d(width, width, 5, padding=2 * reach, dilation=reach) for reach in (1, 3))
            )
        self.end = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        """Spectra [rows, bands, frames] → sounds [rows, 1, 256 · frames]."""
        x = self.begin(x)
        for raised, body in zip(self.raised, self.bodies, strict=True):
            x = raised(functional.leaky_relu(x, 0.1))
            for part in body:
                x = x + part(functional.leaky_relu(x, 0.1))
        return self.end(functional.leaky_relu(x, 0.1)).float().tanh()


class Period(nn.Module):
    """Tells real sounds from made ones by every few of their values."""

    def __init__(self, every: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.every = every
        self.parts = nn.ModuleList(
            nn.Conv2d(a, b, (5, 1), (1 if b == a else 3, 1), (2, 0))
            for a, b in zip((1, *widths), (*widths, widths[-1]), strict=True)
        )
        self.told = nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Sounds [rows, 1, values] → maps, of which the last are scores."""
        x = functional.pad(x, (0, -x.shape[-1] % self.every), "reflect").unflatten(-1, (-1, self.every))
        maps = []
        for part in self.parts:
            x = functional.leaky_relu(part(x), 0.1)
            maps.append(x)
        return [*maps, self.told(x)]


@pair(
    "unused-gradients", "speech", "requires_grad_(False) for the critics while the generator learns", THIRTIETH,
    steps=(2, 1),
)  # fmt: skip
def voice_synthesis_training(variant: str) -> Step:
    """HiFi-GAN: a generator and five critics learn in turn from 64 sounds of 8,192 values, in mixed precision.

    While the generator learns, gradients of the critics' weights are worked out as well, of made and of real sounds;
    zero_grad() drops them.
    """
    bands, frames, rows = size(80, 8), size(32, 4), size(64, 2)
    widths = tuple(size(width, 4 * index + 4) for index, width in enumerate((32, 128, 512, 1024)))
    voice = on_device(lambda: Voice(bands, size(256, 16))).train()
    periods = (2, 3, 5, 7, 11)
    critics = on_device(lambda: nn.ModuleList(Period(every, widths) for every in periods), seed=1)
    critics = critics.to(memory_format=LAST).train()
    ours, theirs = adamw(voice), adamw(critics)
    spectra, real = torch.randn(rows, bands, frames, device=DEVICE), torch.randn(rows, 1, 256 * frames, device=DEVICE)
    window = torch.hann_window(1024, device=DEVICE)

    def loudness(x: Tensor) -> Tensor:
        heard = torch.stft(x[:, 0], 1024, 256, window=window, return_complex=True)
        return torch.log(heard.abs().clamp(min=1e-5))

    def critics_learn(fake: Tensor) -> None:
        theirs.zero_grad(set_to_none=True)
        with mixed():
            lost = [
                (1.0 - critic(real)[-1].float()).square().mean() + critic(fake)[-1].float().square().mean()
                for critic in critics
            ]
        torch.stack(lost).sum().backward()
        theirs.step()

    def step() -> None:
        with mixed():
            fake = voice(spectra)
        critics_learn(fake.detach())
        critics.requires_grad_(variant == BEFORE)
        loss = 45.0 * functional.l1_loss(loudness(fake), loudness(real))
        with mixed():
            for critic in critics:
                *right, _ = critic(real)
                *made, told = critic(fake)
                loss = loss + (1.0 - told.float()).square().mean()
                for mine, theirs_ in zip(made, right, strict=True):
                    loss = loss + 2.0 * (mine - theirs_).abs().mean(dtype=torch.float32)
        loss.backward()
        critics.requires_grad_(requires_grad=True)
        ours.step()
        ours.zero_grad(set_to_none=True)

    return step


@pair(
    "blocking-copy", "segmentation", "labels are sent as numbers of kinds (bytes, pinned), not as masks of floats",
    THIRTIETH, library="torchvision", steps=(2, 2),
)  # fmt: skip
def street_scene_training(variant: str) -> Step:
    """A DeepLabV3 (MobileNetV3-L, channels_last, mixed precision) learns 19 kinds from 8 streets of 512 × 1,024.

    The data set gives a mask of floats for each kind, 319 MB a step, in pageable memory; images are pinned bytes.
    """
    kinds, rows, high, wide = size(19, 5), size(8, 2), size(512, 64), size(1024, 64)
    make = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
    model = on_device(lambda: make(weights=None, weights_backbone=None, num_classes=kinds))
    model = model.to(memory_format=LAST).train()
    drawn = torch.Generator().manual_seed(0)
    streets = torch.randint(0, 256, (rows, 3, high, wide), generator=drawn, dtype=torch.uint8)
    labels = torch.randint(0, kinds, (rows, high, wide), generator=drawn, dtype=torch.uint8)
    if CUDA:
        streets = streets.pin_memory()
    if variant == BEFORE:
        labels = functional.one_hot(labels.long(), kinds).permute(0, 3, 1, 2).float().contiguous()
    elif CUDA:
        labels = labels.pin_memory()
    optimizer = adamw(model)

    def step() -> None:
        x = streets.to(DEVICE, non_blocking=True).float().div_(255.0).to(memory_format=LAST)
        wanted = labels.to(DEVICE, non_blocking=True)
        with mixed():
            told = model(x)["out"]
            loss = functional.cross_entropy(told.float(), wanted if variant == BEFORE else wanted.long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Matched(nn.Module):
    """Where the points of one cloud are in another: Deep Closest Point (Y. Wang, J. Solomon, 2019)."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Linear(3, width // 4), nn.GELU(), nn.Linear(width // 4, width), nn.GELU(), nn.Linear(width, width)
        )
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Clouds [rows, points, 3] → for each point of one, where it is in the other."""
        x = self.layers(self.points(torch.cat([one, other], 1)))
        q, k = x.chunk(2, 1)
        chances = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return chances @ other.to(chances.dtype)


def turns(spread: Tensor) -> Tensor:
    """The rotations [rows, 3, 3] that matrices [rows, 3, 3] ask for, one after the other."""
    found = []
    for one in spread:
        left, _, right = torch.linalg.svd(one)
        turn = right.T @ left.T
        if torch.det(turn) < 0:
            flip = torch.ones(3, device=one.device)
            flip[2] = -1.0
            turn = right.T * flip @ left.T
        found.append(turn)
    return torch.stack(found)


def turns_at_once(spread: Tensor) -> Tensor:
    """The same, of all matrices at once."""
    left, _, right = torch.linalg.svd(spread)
    sign = torch.det(right.mT @ left.mT).detach().sign()
    flip = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], 1)
    return right.mT * flip[:, None] @ left.mT


@pair(
    "launch-overhead", "point clouds", "one torch.linalg.svd and one det over all matrices, signs as numbers",
    THIRTIETH, accept=("host-sync", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def scan_registration(variant: str) -> Step:
    """Deep Closest Point (2 × 512, mixed precision) learns how 32 scans of 1,024 points were turned.

    Each scan has a decomposition of 3 × 3 numbers of its own, as its authors have it, and `if det < 0` asks for the
    sign of each: a wait for the GPU, hence "host-sync", too.
    """
    rows, points = size(32, 3), size(1024, 16)
    model = on_device(lambda: Matched(size(512, 16), size(8, 2), size(2, 1))).train()
    optimizer, solve = adamw(model), turns if variant == BEFORE else turns_at_once
    one = torch.randn(rows, points, 3, device=DEVICE)
    one = one - one.mean(1, keepdim=True)
    wanted, _ = torch.linalg.qr(torch.randn(rows, 3, 3, device=DEVICE))
    wanted = wanted * torch.det(wanted)[:, None, None]
    other = one @ wanted.mT

    def step() -> None:
        with mixed():
            seen = model(one, other)
        seen = seen.float() + 0.1 * other
        turn = solve(one.mT @ (seen - seen.mean(1, keepdim=True)))
        functional.mse_loss(turn, wanted).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Stones(nn.Module):
    """Two convolutions over a board, and a way past them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Boards [rows, width, 19, 19]."""
        return functional.relu(x + self.body(x))


class Player(nn.Module):
    """AlphaGo Zero's network (D. Silver et al., 2017)."""

    def __init__(self, width: int, blocks: int, board: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(17, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            *(Stones(width) for _ in range(blocks)),
        )  # fmt: skip
        self.move = nn.Sequential(nn.Conv2d(width, 8, 1), nn.Flatten(), nn.Linear(8 * board**2, board**2 + 1))
        self.worth = nn.Sequential(nn.Conv2d(width, 8, 1), nn.Flatten(), nn.Linear(8 * board**2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Boards [rows, 17, 19, 19] → scores of moves, chances to win."""
        x = self.body(x)
        return self.move(x), self.worth(x)[:, 0]


@pair(
    "memory-format", "games", "model and boards are channels_last", THIRTIETH, steps=(2, 2),
)  # fmt: skip
def go_policy_training(variant: str) -> Step:
    """AlphaGo Zero's network (10 blocks of 256, mixed precision) learns from 768 boards of 19 × 19."""
    board, rows = size(19, 5), size(768, 3)
    model = on_device(lambda: Player(size(256, 8), size(10, 1), board)).train()
    x = images(rows, board, channels=17).gt(1.0).float()
    if variant == AFTER:
        model, x = model.to(memory_format=LAST), x.to(memory_format=LAST)
    moves, won = tokens(board**2 + 1, rows), torch.randn(rows, device=DEVICE).sign()

    def loss() -> Tensor:
        told, worth = model(x)
        return functional.cross_entropy(told.float(), moves) + functional.mse_loss(worth.float(), won)

    return training(loss, adamw(model))


@healthy("vision", THIRTIETH, library="timm", compiles=True, steps=(2, 2))
def healthy_skin_image_training(variant: str) -> Step:
    """A ViT of timm's so150m size (18 × 896) learns from 192 images of 256²: mixed precision, blocks compiled.

    Images are bytes in pinned memory, copied with non_blocking=True: a copy of a millisecond in each step.
    """
    name, side = ("vit_so150m_patch16_reg4_gap_256", 256) if CUDA else ("vit_tiny_patch16_224", 224)
    kinds, rows = size(1000, 7), size(192, 2)
    model = on_device(lambda: timm.create_model(name, num_classes=kinds)).train()
    compiled(model.blocks)
    drawn = torch.Generator().manual_seed(0)
    skins = torch.randint(0, 256, (rows, 3, side, side), generator=drawn, dtype=torch.uint8)
    labels = torch.randint(0, kinds, (rows,), generator=drawn)
    if CUDA:
        skins, labels = skins.pin_memory(), labels.pin_memory()

    def loss() -> Tensor:
        x, wanted = skins.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        return functional.cross_entropy(model(x.float() / 255.0 - 0.5).float(), wanted, label_smoothing=0.1)

    return training(loss, adamw(model))
