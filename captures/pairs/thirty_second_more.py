"""More of the thirty-second set: mixed images, quantiles, levels, rewards, clipping, automata, and healthy programs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import timm
import torch
import transformers
from timm.data.mixup import Mixup, mixup_target
from timm.utils.agc import adaptive_clip_grad
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    Block,
    adamw,
    as_graph,
    compiled,
    images,
    mixed,
    on_device,
    seeded,
    size,
    tokens,
    training,
)
from pairs.registry import AFTER, BEFORE, THIRTY_SECOND, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


@pair(
    "small-kernels", "vision", "all images are mixed at once, by a tensor of shares", THIRTY_SECOND,
    library="timm", accept=("launch-overhead",), steps=(2, 1),
)  # fmt: skip
def bird_photo_training(variant: str) -> Step:
    """A DeiT-Ti of timm (mixed precision) learns from 256 images of 224², mixed by Mixup with mode="elem".

    Each image has a share of its own, so timm mixes them in a loop, four small kernels and three views for each image.
    The GPU waits for their launches: hence "launch-overhead", too.
    """
    rows, side, kinds = size(256, 4), size(224, 32), size(200, 7)

    def make() -> nn.Module:
        return timm.create_model("deit_tiny_patch16_224", img_size=side, num_classes=kinds, depth=size(12, 1))

    model = on_device(make).train()
    optimizer = adamw(model)
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=0.0, mode="elem", label_smoothing=0.1, num_classes=kinds)
    photos = torch.randint(0, 256, (rows, 3, side, side), device=DEVICE, dtype=torch.uint8)
    labels = tokens(kinds, rows)

    def together(x: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.from_numpy(np.random.beta(0.8, 0.8, rows).astype(np.float32))
        share = (share.pin_memory() if CUDA else share).to(DEVICE, non_blocking=True)
        x = torch.lerp(x.flip(0), x, share[:, None, None, None])
        return x, mixup_target(labels, kinds, share[:, None], 0.1)

    def step() -> None:
        x = photos.float().sub_(127.5).div_(58.4)
        x, wanted = mix(x, labels) if variant == BEFORE else together(x)
        with mixed():
            scores = model(x)
        loss = functional.cross_entropy(scores.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Gated(nn.Module):
    """A gated residual network, as in temporal fusion transformers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        return self.norm(x + functional.glu(self.second(functional.elu(self.first(x)))))


class Fusion(nn.Module):
    """A temporal fusion transformer, without its choice of variables."""

    def __init__(self, seen: int, width: int, heads: int, ahead: int, quantiles: int) -> None:
        super().__init__()
        self.ahead = ahead
        self.enter, self.recurrent = nn.Linear(seen, width), nn.LSTM(width, width, batch_first=True)
        self.gates = nn.ModuleList(Gated(width) for _ in range(3))
        self.layer, self.leave = Block(width, heads, causal=True), nn.Linear(width, quantiles)

    def forward(self, x: Tensor) -> Tensor:
        """What is known [rows, hours, seen] → quantiles of the last hours [rows, ahead, quantiles]."""
        x = self.gates[0](self.enter(x))
        x = self.gates[1](x + self.recurrent(x)[0])
        return self.leave(self.gates[2](self.layer(x)[:, -self.ahead :]))


@pair(
    "small-kernels", "forecasting", "all quantiles are told apart by one expression", THIRTY_SECOND,
    accept=("launch-overhead", "unfused-chain"), steps=(2, 1),
)  # fmt: skip
def emergency_room_forecasting(variant: str) -> Step:
    """A temporal fusion transformer (256, mixed precision) learns 19 quantiles of the last 24 of 96 hours, 256 wards.

    The pinball loss is a loop over the quantiles, as in much code that is passed around: for each of them some five
    kernels there and a dozen back. Launches, and a loss in passes: hence the other findings.
    """
    rows, room, ahead, seen = size(256, 2), size(96, 8), size(24, 3), size(24, 3)
    shares = [round(0.05 * index, 2) for index in range(1, 20)]
    model = on_device(lambda: Fusion(seen, size(256, 16), size(4, 2), ahead, len(shares))).train()
    x, wanted = torch.randn(rows, room, seen, device=DEVICE), torch.randn(rows, ahead, device=DEVICE)
    levels = torch.tensor(shares, device=DEVICE)

    def loss() -> Tensor:
        told = model(x).float()
        if variant == AFTER:
            error = wanted[..., None] - told
            return torch.maximum((levels - 1) * error, levels * error).sum(-1).mean()
        losses = []
        for index, share in enumerate(shares):
            error = wanted - told[..., index]
            losses.append(torch.max((share - 1) * error, share * error).unsqueeze(-1))
        return torch.cat(losses, -1).sum(-1).mean()

    return training(loss, adamw(model))


def bottled(wide: int, out: int) -> nn.Sequential:
    """Two convolutions, activations first."""
    return nn.Sequential(
        nn.SiLU(), nn.Conv2d(wide, wide // 2, 1), nn.SiLU(), nn.Conv2d(wide // 2, out, 3, padding=1)
    )  # fmt: skip


class Level(nn.Module):
    """A level of a VAE: what is expected, what is seen, and what is drawn."""

    def __init__(self, width: int, drawn: int, check: bool | None) -> None:
        super().__init__()
        self.check = check
        self.expected, self.seen = bottled(width, 2 * drawn), bottled(2 * width, 2 * drawn)
        self.enter, self.feed = nn.Conv2d(drawn, width, 1), bottled(width, width)

    def told(self, x: Tensor) -> Normal:
        """Means and logarithms of spreads → a distribution."""
        mean, spread = x.float().chunk(2, 1)
        return Normal(mean, (0.5 * spread.clamp(-8, 8)).exp(), validate_args=self.check)

    def forward(self, x: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The state and what the encoder saw, both [rows, width, side, side] → the next state, the divergence."""
        expected, seen = self.told(self.expected(x)), self.told(self.seen(torch.cat((x, features), 1)))
        x = x + self.enter(seen.rsample())
        return x + self.feed(x), kl_divergence(seen, expected).sum((1, 2, 3)).mean()


class Ladder(nn.Module):
    """A VAE of many levels, as VDVAE."""

    def __init__(self, width: int, drawn: int, scales: int, levels: int, check: bool | None) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.up = nn.ModuleList(nn.Sequential(bottled(width, width), bottled(width, width)) for _ in range(scales))
        self.down = nn.ModuleList(
            nn.ModuleList(Level(width, drawn, check) for _ in range(levels)) for _ in range(scales)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, 3, side, side] → the loss."""
        y, seen = self.enter(x), []
        for part in self.up:
            y = y + part(y)
            seen.append(y)
            y = functional.avg_pool2d(y, 2)
        state, apart = torch.zeros_like(seen[-1]), []
        for levels, features in zip(self.down, reversed(seen), strict=True):
            if state.shape != features.shape:
                state = functional.interpolate(state, scale_factor=2.0)
            for level in levels:
                state, far = level(state, features)
                apart.append(far)
        return functional.mse_loss(self.leave(state).float(), x) + torch.stack(apart).sum() / x[0].numel()


@pair(
    "host-sync", "generation", "validate_args=False for the distributions of the model", THIRTY_SECOND,
    with_stack=True, steps=(2, 1),
)  # fmt: skip
def butterfly_wing_generation(variant: str) -> Step:
    """A VAE of 24 levels at 4 scales (192, channels_last, mixed precision) learns from 64 images of 32².

    Each level has two distributions of torch.distributions, which check means and spreads as they are made: four waits
    for each level.
    """
    check = None if variant == BEFORE else False
    rows, side = size(64, 2), size(32, 16)
    model = on_device(lambda: Ladder(size(192, 16), 16, size(4, 2), size(6, 2), check)).train().to(memory_format=LAST)
    x = images(rows, side).contiguous(memory_format=LAST)
    return training(lambda: model(x), adamw(model))


def shared_by_loop(answer: list[int], reference: list[int]) -> float:
    """ROUGE-L of an answer: the longest sequence it shares with a reference, as an F-score."""
    last = [0] * (len(reference) + 1)
    for word in answer:
        corner = left = 0
        for index, other in enumerate(reference, 1):
            above = last[index]
            if word == other:
                left = corner + 1
            elif above > left:
                left = above
            last[index], corner = left, above
    return 2 * last[-1] / (len(answer) + len(reference))


def shared_at_once(answers: np.ndarray, references: np.ndarray) -> np.ndarray:
    """ROUGE-L of all answers [answers, words]."""
    last = np.zeros((len(answers), references.shape[1] + 1), dtype=np.int32)
    for place in range(answers.shape[1]):
        same = answers[:, place, None] == references
        now = np.maximum(last[:, 1:], last[:, :-1] + same)
        last[:, 1:] = np.maximum.accumulate(now, axis=1)
    return 2 * last[:, -1] / (answers.shape[1] + references.shape[1])


@pair(
    "host-stall", "reinforcement learning", "ROUGE-L of all answers at once, by numpy", THIRTY_SECOND,
    library="transformers", with_stack=True, steps=(2, 1),
)  # fmt: skip
def meeting_notes_rewarding(variant: str) -> Step:
    """A Qwen3 (12 × 768, mixed precision) learns by GRPO to sum up meetings: 64 answers of 96 tokens, prompts of 160.

    The reward is ROUGE-L against notes that people wrote, told by two nested loops of Python for each answer, while
    the GPU waits.
    """
    config = transformers.Qwen3Config(
        vocab_size=size(32_768, 64), hidden_size=size(768, 32), intermediate_size=size(2304, 64), use_cache=False,
        num_hidden_layers=size(12, 1), num_attention_heads=size(12, 2), num_key_value_heads=size(4, 2),
        head_dim=size(64, 16), max_position_embeddings=size(2048, 64),
    )  # fmt: skip
    policy = on_device(lambda: transformers.Qwen3ForCausalLM(config)).train()
    reference = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).eval().requires_grad_(False)
    optimizer = adamw(policy)
    group, length = size(8, 2), size(96, 6)
    seeded(1)
    ids = tokens(config.vocab_size, size(64, 4), size(160, 4) + length)
    notes = np.random.default_rng(0).integers(0, config.vocab_size, (len(ids), size(96, 5)))
    if CUDA:
        notes[:, ::3] = ids[:, -length:].cpu().numpy()[:, ::3]

    def rewards() -> Tensor:
        answers = ids[:, -length:].cpu()
        if variant == BEFORE:
            pairs = zip(answers.tolist(), notes.tolist(), strict=True)
            return torch.tensor([shared_by_loop(answer, note) for answer, note in pairs])
        return torch.from_numpy(shared_at_once(answers.numpy(), notes)).float()

    def chances(model: nn.Module) -> Tensor:
        told = model(input_ids=ids, logits_to_keep=length + 1).logits[:, :-1]
        lost = functional.cross_entropy(told.flatten(0, 1).float(), ids[:, -length:].flatten(), reduction="none")
        return -lost.unflatten(0, (-1, length))

    def step() -> None:
        gained = rewards().to(DEVICE).unflatten(0, (-1, group))
        better = ((gained - gained.mean(1, keepdim=True)) / (gained.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        with torch.no_grad():
            known = chances(reference)
        with mixed():
            own = chances(policy)
        apart = (known - own).exp() - (known - own) - 1
        loss = (0.04 * apart - (own - own.detach()).exp() * better).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@torch.no_grad()
def clipped_together(weights: Iterable[nn.Parameter], factor: float = 0.01, least: float = 1e-3) -> None:
    """Adaptive clipping of gradients, by lists of tensors."""
    own = [weight for weight in weights if weight.grad is not None]
    slopes = [weight.grad for weight in own]

    def lengths(parts: Iterable[Tensor | None]) -> list[Tensor]:
        return [
            x.norm(2.0) if x.ndim <= 1 else x.norm(2.0, dim=tuple(range(1, x.ndim)), keepdim=True)
            for x in parts
            if x is not None
        ]

    most, had = lengths(own), lengths(slopes)
    torch._foreach_clamp_min_(most, least)
    torch._foreach_mul_(most, factor)
    torch._foreach_clamp_min_(had, 1e-6)
    shares = torch._foreach_div(most, had)
    torch._foreach_clamp_max_(shares, 1.0)
    torch._foreach_mul_(slopes, shares)


@pair(
    "unfused-optimizer", "vision", "gradients are clipped by torch._foreach functions", THIRTY_SECOND,
    library="timm", accept=("small-kernels", "launch-overhead"), steps=(2, 1),
)  # fmt: skip
def ceramic_defect_training(variant: str) -> Step:
    """An NF-ResNet-50 of timm (channels_last, mixed precision) learns from 48 images of 192², gradients clipped as AGC.

    timm's adaptive_clip_grad takes weight after weight: ten small kernels for each of 200. Small launches, and many:
    hence the other findings.
    """
    rows, side, kinds = size(48, 2), size(192, 64), size(12, 3)
    name = "nf_resnet50" if CUDA else "nf_resnet26"
    model = on_device(lambda: timm.create_model(name, num_classes=kinds)).train().to(memory_format=LAST)
    x, labels = images(rows, side).contiguous(memory_format=LAST), tokens(kinds, rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, foreach=True)
    clip = adaptive_clip_grad if variant == BEFORE else clipped_together

    def step() -> None:
        with mixed():
            scores = model(x)
        loss = functional.cross_entropy(scores.float(), labels)
        loss.backward()
        clip(model.parameters())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Cells(nn.Module):
    """A neural cellular automaton."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.channels = channels
        slope = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        same = torch.zeros(3, 3)
        same[1, 1] = 1.0
        self.register_buffer("filters", torch.stack((same, slope, slope.T))[:, None].repeat(channels, 1, 1, 1))
        self.first, self.second = nn.Conv2d(3 * channels, width, 1), nn.Conv2d(width, channels, 1, bias=False)

    @staticmethod
    def alive(x: Tensor) -> Tensor:
        """Where a cell or one next to it is alive."""
        return functional.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1

    def forward(self, x: Tensor) -> Tensor:
        """Cells [rows, channels, side, side] → cells a moment later."""
        before = self.alive(x)
        seen = functional.conv2d(x, self.filters, padding=1, groups=self.channels)
        change = self.second(functional.relu(self.first(seen)))
        x = x + change * (torch.rand_like(x[:, :1]) < 0.5)
        return x * (before & self.alive(x))


@pair(
    "launch-overhead", "generation", "a step of training is replayed from a CUDA graph", THIRTY_SECOND,
    accept=("small-kernels",), steps=(2, 1),
)  # fmt: skip
def growing_salamander_training(variant: str) -> Step:
    """A neural cellular automaton (16 channels, 128 inside) learns to grow a picture: 8 grids of 72², 48 moments.

    The rule is a dozen small kernels, applied 48 times and differentiated, from Python: hence "small-kernels", too.
    """
    channels, side, rows, moments = 16, size(72, 12), size(8, 2), size(48, 3)
    model = on_device(lambda: Cells(channels, size(128, 16))).train()
    seed = torch.zeros(rows, channels, side, side, device=DEVICE)
    seed[:, 3:, side // 2, side // 2] = 1.0
    wanted = torch.rand(1, 4, side, side, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=CUDA)

    def step() -> None:
        x = seed
        for _ in range(moments):
            x = model(x)
        loss = functional.mse_loss(x[:, :4], wanted.expand(rows, -1, -1, -1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return as_graph(step) if variant == AFTER else step


@healthy("vision", THIRTY_SECOND, library="timm", compiles=True, steps=(2, 1))
def healthy_satellite_scene_training(variant: str) -> Step:
    """A ViT-L/16 of timm (layers compiled, mixed precision) learns from 64 images of 224²; its loss is logged.

    Gradients are clipped by one call. The loss is copied to pinned memory, and read one step later, when it has long
    been there: the GPU does not wait for it.
    """
    side, kinds, rows = size(224, 32), size(45, 5), size(64, 2)

    def make() -> nn.Module:
        own = {} if CUDA else {"embed_dim": 32, "depth": 1, "num_heads": 2}
        return timm.create_model("vit_large_patch16_224", img_size=side, num_classes=kinds, **own)

    model = on_device(make).train()
    compiled(model.blocks)
    optimizer = adamw(model)
    x, labels = images(rows, side), tokens(kinds, rows)
    slots = [torch.zeros((), pin_memory=CUDA) for _ in range(2)]
    ready = [torch.cuda.Event() for _ in slots] if CUDA else []
    count, logged = 0, 0.0

    def step() -> float:
        nonlocal count, logged
        with mixed():
            loss = functional.cross_entropy(model(x).float(), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        slots[count % 2].copy_(loss.detach(), non_blocking=True)
        if CUDA:
            ready[count % 2].record()
            ready[(count + 1) % 2].synchronize()
        logged = 0.9 * logged + 0.1 * float(slots[(count + 1) % 2])
        count += 1
        return logged

    return step


@healthy("forecasting", THIRTY_SECOND, steps=(2, 1))
def healthy_turbine_gru_training(variant: str) -> Step:
    """A GRU of cuDNN (2 × 2,048, mixed precision, fused AdamW) learns from 768 windows of 96 moments of 512 sensors.

    Its many products, one for each moment, are what a recurrent network is.
    """
    width = size(2048, 16)
    seen, ahead = size(512, 8), size(64, 4)
    body = on_device(lambda: nn.GRU(seen, width, 2)).train()
    head = on_device(lambda: nn.Linear(width, ahead), seed=1)
    x = torch.randn(size(96, 5), size(768, 2), seen, device=DEVICE)
    wanted = torch.randn(size(768, 2), ahead, device=DEVICE)
    return training(
        lambda: functional.mse_loss(head(body(x)[0][-1]).float(), wanted), adamw(nn.ModuleList([body, head]))
    )


class NextWord(nn.Module):
    """The loss of a language model."""

    def forward(self, told: Tensor, ids: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        return functional.cross_entropy(told[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@healthy("training", THIRTY_SECOND, library="transformers", compiles=True, steps=(2, 1))
def healthy_medical_dialogue_tuning(variant: str) -> Step:
    """A Llama (12 × 2,048) is tuned on 2 dialogues of 1,536 tokens: mixed, layers and loss compiled, fused AdamW.

    A small batch for so many weights: much of the time is AdamW's, which goes over memory as fast as it can.
    """
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64), use_cache=False,
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 4), num_key_value_heads=size(8, 2),
        max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model, loss = on_device(lambda: transformers.LlamaForCausalLM(config)).train(), NextWord()
    compiled([*model.model.layers, loss])
    ids = tokens(config.vocab_size, 2, size(1536, 8))
    return training(lambda: loss(model(input_ids=ids).logits, ids), adamw(model))


def times(weight: Tensor, x: Tensor) -> Tensor:
    """A weight [out, width] times places [rows, width, places]; they stay as they lie."""
    return torch.bmm(weight.expand(len(x), -1, -1), x)


class Asked(nn.Module):
    """What goes before the long convolution of Hyena; channels come first, so that times lie side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width, 1))
        self.weight = nn.Parameter(torch.randn(3 * width, width) / width**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Places [rows, width, places] → what is convolved, in fp32, and a gate."""
        y = x * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6).to(x.dtype) * self.scale
        gate, k, v = times(self.weight, y).chunk(3, 1)
        return (k * v).float(), gate


class Told(nn.Module):
    """What comes after the long convolution of Hyena, and two products more."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.skip = nn.Parameter(torch.ones(width, 1)), nn.Parameter(torch.ones(width, 1))
        self.out = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.wide = nn.Parameter(torch.randn(4 * width, width) / width**0.5)
        self.narrow = nn.Parameter(torch.randn(width, 4 * width) / (4 * width) ** 0.5)

    def forward(self, x: Tensor, far: Tensor, near: Tensor, gate: Tensor) -> Tensor:
        """Places [rows, width, places], what the convolution told, what was convolved, and the gate."""
        x = x + times(self.out, (far + near * self.skip).to(x.dtype) * gate)
        y = x * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6).to(x.dtype) * self.scale
        return x + times(self.narrow, functional.gelu(times(self.wide, y)))


@healthy("genomics", THIRTY_SECOND, inference=True, compiles=True, steps=(2, 1))
def healthy_chromosome_reading(variant: str) -> Step:
    """A Hyena (6 × 2,048, bf16, compiled) reads 2 stretches of 8,192 bases, with filters as long as they.

    Convolutions go by FFT in fp32, twice as long as the stretch, as causality asks; spectra of the filters are kept.
    """
    width, room, deep = size(2048, 16), size(8192, 16), size(6, 1)
    asked = on_device(lambda: nn.ModuleList(Asked(width) for _ in range(deep)), HALF).eval()
    told = on_device(lambda: nn.ModuleList(Told(width) for _ in range(deep)), HALF, 1).eval()
    compiled([*asked, *told])
    names = on_device(lambda: nn.Embedding(8, width), HALF, 2)
    fading = torch.exp(-torch.arange(room, device=DEVICE) / size(512, 4))
    filters = [torch.randn(width, room, device=DEVICE) * fading / 32 for _ in range(deep)]
    spectra = [torch.fft.rfft(one, n=2 * room) for one in filters]
    ids = tokens(8, 2, room)

    def step() -> Tensor:
        x = names(ids).transpose(1, 2).contiguous()
        for before, after, spectrum in zip(asked, told, spectra, strict=True):
            near, gate = before(x)
            far = torch.fft.irfft(torch.fft.rfft(near, n=2 * room).mul_(spectrum), n=2 * room)[..., :room]
            x = after(x, far, near, gate)
        return x[..., -1].float()

    return step


class Depth(nn.Module):
    """Depths from the tokens of a ViT."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.leave = nn.Linear(width, 16 * 16)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [rows, patches, width] → depths [rows, side, side]."""
        y = functional.softplus(self.leave(x).float()).transpose(1, 2).unflatten(-1, (self.side, self.side))
        return functional.pixel_shuffle(y, 16)[:, 0]


class Errors(nn.Module):
    """Sums of what depths are judged by."""

    def forward(self, told: Tensor, true: Tensor) -> Tensor:
        """Depths [rows, side, side], both → relative error, squared error, how many are near, how many there are."""
        known, apart = true > 0, (told - true).abs()
        safe = true.clamp(min=1e-3)
        near = torch.maximum(told / safe, safe / told.clamp(min=1e-3)) < 1.25
        parts = apart / safe, apart.square(), near.float(), torch.ones_like(apart)
        return torch.stack([(part * known).sum() for part in parts])


@healthy("evaluation", THIRTY_SECOND, library="timm", inference=True, compiles=True, steps=(2, 1))
def healthy_depth_map_scoring(variant: str) -> Step:
    """A ViT-L/16 of timm (bf16, compiled) tells the depths of 4 batches of 32 images of 384², judged on the GPU.

    Sums of errors stay there, and are read once, when all batches are done.
    """
    side, rows, batches = size(384, 32), size(32, 2), size(4, 2)

    def make() -> nn.Module:
        own = {} if CUDA else {"embed_dim": 32, "depth": 1, "num_heads": 2}
        return timm.create_model("vit_large_patch16_384", img_size=side, num_classes=0, **own)

    model = on_device(make, HALF).eval()
    head = on_device(lambda: Depth(model.embed_dim, side // 16), HALF, 1).eval()
    errors = Errors()
    compiled([*model.blocks, head, errors])
    given = [(images(rows, side, HALF), 10 * torch.rand(rows, side, side, device=DEVICE) - 1) for _ in range(batches)]

    def step() -> list[float]:
        sums = torch.zeros(4, device=DEVICE)
        for x, true in given:
            sums += errors(head(model.forward_features(x)[:, model.num_prefix_tokens :]), true)
        return (sums[:3] / sums[3]).tolist()

    return step
