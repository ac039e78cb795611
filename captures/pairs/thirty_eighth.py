"""The thirty-eighth set: training scripts, with mistakes as reviews of code find them."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import torch
import transformers
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    TINY,
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
)
from pairs.registry import AFTER, BEFORE, THIRTY_EIGHTH, Step, healthy, pair

__all__: list[str] = []


@pair(
    "blocking-copy", "vision", "ModelEmaV3(model, decay) without device=\"cpu\": the average stays beside the model",
    THIRTY_EIGHTH, library="timm", accept=("host-stall", "host-sync"), compiles=True, with_stack=True, steps=(3, 2),
)  # fmt: skip
def orchid_species_averages(variant: str) -> Step:
    """A ViT-S/16 (blocks compiled, mixed precision, fused AdamW) learns species from 384 images.

    A moving average of the weights is kept, as timm's script does with --model-ema-force-cpu, which somebody once
    needed on a small GPU. After each step all 22 million weights go to pageable memory of the host, tensor by tensor,
    and its processor adds them up, while the GPU waits. On the GPU the average is one kernel of 0.1 ms.
    """
    rows, side, kinds = size(384, 4), size(224, 32), size(1000, 10)
    model = on_device(
        lambda: VisionTransformer(
            img_size=side, patch_size=size(16, 8), embed_dim=size(384, 32), depth=size(12, 2), num_heads=size(6, 2),
            num_classes=kinds,
        )
    ).train()  # fmt: skip
    average = ModelEmaV3(model, decay=0.9998, device=torch.device("cpu") if variant == BEFORE else None)
    compiled(model.blocks)
    optimizer = adamw(model)
    seeded(1)
    shown, labels = images(rows, side), tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            loss = functional.cross_entropy(model(shown), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(model)
        return loss.detach()

    return step


class FrameBlock(nn.Module):
    """A ConvNeXt block over frames: each channel by itself, then all channels of a frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near, self.norm = nn.Conv1d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Frames [rows, width, places]."""
        return x + self.feed(self.norm(self.near(x).transpose(1, 2))).transpose(1, 2)


class Voice(nn.Module):
    """Spectra [rows, bands, frames] → samples [rows, 1, frames · hop]."""

    def __init__(self, bands: int, width: int, depth: int, hop: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 7, padding=3)
        self.layers = nn.Sequential(*(FrameBlock(width) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, hop)

    def forward(self, x: Tensor) -> Tensor:
        """Each frame tells its samples."""
        x = self.layers(self.first(x)).transpose(1, 2)
        return self.out(self.norm(x)).flatten(1)[:, None].tanh()


class Judge(nn.Module):
    """Judges samples that are folded by a period, as HiFi-GAN does."""

    def __init__(self, period: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.period = period
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, (5, 1), (3 if after != before else 1, 1), padding=(2, 0))
            for before, after in zip((1, *widths), widths, strict=False)
        )
        self.out = nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Samples [rows, 1, places] → the maps of all layers, the last of which is the judgement."""
        short = -x.shape[-1] % self.period
        if short:
            x = functional.pad(x, (0, short), "reflect")
        x = x.unflatten(-1, (-1, self.period))
        maps = []
        for layer in self.layers:
            x = functional.leaky_relu(layer(x), 0.1)
            maps.append(x)
        return [*maps, self.out(x)]


@pair(
    "unused-gradients", "speech", "judges.requires_grad_(False) while the voice learns, True again afterwards",
    THIRTY_EIGHTH, accept=("recomputation",), steps=(3, 2),
)  # fmt: skip
def harbour_radio_vocoder(variant: str) -> Step:
    """A vocoder (ConvNeXt over frames) learns from 32 cuts of 16,384 samples against HiFi-GAN's five judges of periods.

    When the voice learns, the judges' weights still ask for gradients, which the judges' optimizer clears before its
    next step. That is what HiFi-GAN's own script does: the backward pass computes gradients of all judges' weights,
    and goes back through their maps of the true samples, too, where the voice has no part. A quarter of the work.
    """
    rows, long, hop, bands = size(32, 2), size(16_384, 512), size(256, 64), size(80, 8)
    widths = (size(32, 4), size(128, 8), size(512, 12), size(1024, 16), size(1024, 16))
    voice = on_device(lambda: Voice(bands, size(512, 16), size(8, 1), hop)).train()
    judges = on_device(lambda: nn.ModuleList(Judge(period, widths) for period in (2, 3, 5, 7, 11)), seed=1).train()
    judges = judges.to(memory_format=torch.channels_last)
    learns, judging = (adamw(part, betas=(0.8, 0.99), fused=True) for part in (voice, judges))
    seeded(2)
    true = 0.3 * torch.randn(rows, 1, long, device=DEVICE)
    window, filters = torch.hann_window(4 * hop, device=DEVICE), torch.rand(bands, 2 * hop + 1, device=DEVICE) / hop

    def spectrum(samples: Tensor) -> Tensor:
        waves = torch.stft(samples[:, 0].float(), 4 * hop, hop, window=window, return_complex=True)
        return (filters @ waves.abs())[..., :-1].clamp(min=1e-5).log()

    given = spectrum(true)

    def step() -> Tensor:
        with mixed():
            told = voice(given)
            doubt = torch.zeros((), device=DEVICE)
            for judge in judges:
                real, fake = judge(true)[-1], judge(told.detach())[-1]
                doubt = doubt + (1 - real).square().mean() + fake.square().mean()
        judging.zero_grad(set_to_none=True)
        doubt.backward()
        judging.step()

        if variant == AFTER:
            judges.requires_grad_(False)
        with mixed():
            loss = 45 * functional.l1_loss(spectrum(told), given)
            for judge in judges:
                real_maps, maps = judge(true), judge(told)
                alike = sum((real - fake).abs().mean() for real, fake in zip(real_maps[:-1], maps[:-1], strict=True))
                loss = loss + 2 * alike + (1 - maps[-1]).square().mean()
        learns.zero_grad(set_to_none=True)
        loss.backward()
        learns.step()
        if variant == AFTER:
            judges.requires_grad_(True)
        return loss.detach()

    return step


class Solver(nn.Module):
    """Two layers that think about a maze again and again."""

    def __init__(self, signs: int, width: int, heads: int, places: int, loops: int, *, inside: bool) -> None:
        super().__init__()
        self.loops, self.inside = loops, inside
        self.signs, self.places = nn.Embedding(signs, width), nn.Parameter(0.02 * torch.randn(places, width))
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, signs)

    def precision(self) -> contextlib.AbstractContextManager[object]:
        """Mixed precision of one part of the forward pass."""
        return mixed() if self.inside else contextlib.nullcontext()

    def forward(self, maze: Tensor) -> Tensor:
        """Signs [rows, places] → scores of what stands there in the solution."""
        given = self.signs(maze) + self.places
        state = torch.zeros_like(given)
        for _ in range(self.loops):
            with self.precision():
                state = state + given
                for layer in self.layers:
                    state = layer(state)
        with self.precision():
            return self.out(self.norm(state))


@pair(
    "recomputation", "training", "one autocast around the forward pass, not one in each turn of its loop",
    THIRTY_EIGHTH, accept=("memory-bandwidth", "unfused-chain", "precision"), with_stack=True, steps=(2, 1),
)  # fmt: skip
def maze_route_reasoner(variant: str) -> Step:
    """A recursive transformer (two layers of 2,048, 16 turns, fused AdamW) solves four mazes of 256 places.

    As in RAFT's well-known code, autocast is entered in each turn of the loop, around the layers that need it. When it
    is left, the weights in 16 bits are forgotten: 100 million weights are cast 16 times, and the gradients of each
    cast are cast back and added up in 32 bits. Entered once for the forward pass it keeps them.
    """
    rows, places, signs, width = size(4, 2), size(256, 16), 8, size(2048, 32)
    inside = variant == BEFORE
    model = on_device(lambda: Solver(signs, width, size(16, 2), places, size(16, 3), inside=inside)).train()
    optimizer = adamw(model)
    seeded(1)
    maze, wanted = tokens(signs, rows, places), tokens(signs, rows, places)

    def step() -> Tensor:
        with contextlib.nullcontext() if inside else mixed():
            scores = model(maze)
        loss = functional.cross_entropy(scores.float().flatten(0, 1), wanted.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class ChannelNorm(nn.Module):
    """A norm over channels, as U-Nets of diffusion write it."""

    def __init__(self, width: int, *, by_hand: bool) -> None:
        super().__init__()
        self.by_hand, self.gain = by_hand, nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, width, side, side]."""
        if self.by_hand:
            spread = torch.var(x, dim=1, unbiased=False, keepdim=True)
            mean = torch.mean(x, dim=1, keepdim=True)
            return (x - mean) * (spread + 1e-5).rsqrt() * self.gain
        normed = functional.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), self.gain.flatten(), eps=1e-5)
        return normed.permute(0, 3, 1, 2)


class Residual(nn.Module):
    """Two convolutions, each with a norm, and the way around them."""

    def __init__(self, given: int, width: int, *, by_hand: bool) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(given, width, 3, padding=1), ChannelNorm(width, by_hand=by_hand), nn.SiLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1), ChannelNorm(width, by_hand=by_hand), nn.SiLU(inplace=True),
        )  # fmt: skip
        self.around = nn.Conv2d(given, width, 1) if given != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, given, side, side] → [rows, width, side, side]."""
        return self.path(x) + self.around(x)


class Cleaner(nn.Module):
    """A U-Net that tells what is noise in an image."""

    def __init__(self, widths: tuple[int, ...], *, by_hand: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Conv2d(3, widths[0], 3, padding=1), nn.Conv2d(widths[0], 3, 1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(Residual(width, width, by_hand=by_hand), Residual(width, width, by_hand=by_hand))
            for width in widths
        )
        self.shrink = nn.ModuleList(nn.Conv2d(width, wide, 2, stride=2) for width, wide in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wide, width, 2, stride=2) for width, wide in pairs)
        self.up = nn.ModuleList(
            nn.Sequential(Residual(2 * width, width, by_hand=by_hand), Residual(width, width, by_hand=by_hand))
            for width in widths[:-1]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, 3, side, side]."""
        x, kept = self.first(x), []
        for layer, shrink in zip(self.down, self.shrink, strict=False):
            x = layer(x)
            kept.append(x)
            x = shrink(x)
        x = self.down[-1](x)
        for grow, layer, beside in reversed(list(zip(self.grow, self.up, kept, strict=True))):
            x = layer(torch.cat((grow(x), beside), 1))
        return self.out(x)


@pair(
    "unfused-chain", "vision", "functional.layer_norm over the last dimension of the map as channels_last has it",
    THIRTY_EIGHTH, accept=("memory-bandwidth", "memory-format"), steps=(3, 2),
)  # fmt: skip
def grainy_film_denoiser(variant: str) -> Step:
    """A U-Net (64, 128, 256 channels, mixed precision, channels_last, fused AdamW) learns from 48 cuts of 128².

    Its norms are the ChanLayerNorm that was copied from a well-known repository of diffusion: variance, mean,
    difference, root and two products, each a pass over the map, and more of them on the way back. In channels_last
    the channels of a place lie side by side, so layer_norm of a permuted view is one kernel each way.
    """
    rows, side = size(48, 2), size(128, 16)
    by_hand = variant == BEFORE
    model = on_device(lambda: Cleaner((size(64, 4), size(128, 8), size(256, 8)), by_hand=by_hand)).train()
    model = model.to(memory_format=torch.channels_last)
    optimizer = adamw(model)
    seeded(1)
    clean = images(rows, side).contiguous(memory_format=torch.channels_last)

    def step() -> Tensor:
        grain = 0.2 * torch.randn_like(clean)
        with mixed():
            told = model(clean + grain)
        loss = functional.mse_loss(told.float(), grain)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class SumTree:
    """Priorities of transitions, and sums of them, as a binary tree on the host."""

    def __init__(self, priorities: np.ndarray) -> None:
        levels = [priorities]
        while len(levels[-1]) > 1:
            levels.append(levels[-1].reshape(-1, 2).sum(1))
        self.tree, self.first = np.concatenate(levels[::-1]), len(priorities) - 1

    def update(self, place: int, priority: float) -> None:
        """Sets one priority and all sums above it."""
        index = place + self.first
        change = priority - self.tree[index]
        self.tree[index] = priority
        while index:
            index = (index - 1) // 2
            self.tree[index] += change

    def get(self, drawn: float) -> tuple[int, float]:
        """The transition at this place of the sum, and its priority."""
        index = 0
        while index < self.first:
            left = 2 * index + 1
            if drawn <= self.tree[left]:
                index = left
            else:
                drawn -= self.tree[left]
                index = left + 1
        return index - self.first, self.tree[index]


class HostReplay:
    """Draws by priority from a tree on the host."""

    def __init__(self, priorities: Tensor) -> None:
        self.tree, self.draws = SumTree(priorities.double().cpu().numpy()), np.random.default_rng(1)

    def sample(self, rows: int) -> tuple[Tensor, Tensor]:
        """Places of transitions, and their part of all priorities."""
        total = self.tree.tree[0]
        drawn = [self.tree.get(self.draws.uniform(row, row + 1) * total / rows) for row in range(rows)]
        places, priorities = zip(*drawn, strict=True)
        self.places = places
        part = np.asarray(priorities, dtype=np.float32) / np.float32(total)
        return torch.tensor(places).to(DEVICE), torch.from_numpy(part).to(DEVICE)

    def update(self, priorities: Tensor) -> None:
        """New priorities of what was drawn."""
        for place, priority in zip(self.places, priorities.cpu().numpy(), strict=True):
            self.tree.update(place, priority)


class DeviceReplay:
    """Draws by priority from running sums on the device."""

    def __init__(self, priorities: Tensor) -> None:
        self.priorities = priorities.clone()

    def sample(self, rows: int) -> tuple[Tensor, Tensor]:
        """Places of transitions, and their part of all priorities."""
        sums = self.priorities.cumsum(0)
        drawn = (torch.arange(rows, device=DEVICE) + torch.rand(rows, device=DEVICE)) * (sums[-1] / rows)
        self.places = torch.searchsorted(sums, drawn).clamp_(max=len(sums) - 1)
        return self.places, self.priorities[self.places] / sums[-1]

    def update(self, priorities: Tensor) -> None:
        """New priorities of what was drawn."""
        self.priorities[self.places] = priorities


class Pilot(nn.Module):
    """IMPALA's residual network, with two heads (dueling)."""

    def __init__(self, widths: tuple[int, ...], side: int, hidden: int, actions: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(
            nn.Conv2d(given, width, 3, padding=1) for given, width in zip((4, *widths), widths, strict=False)
        )
        self.more = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4)) for width in widths
        )
        for _ in widths:
            side = (side + 1) // 2
        self.hidden = nn.Linear(widths[-1] * side * side, hidden)
        self.worth, self.gain = nn.Linear(hidden, 1), nn.Linear(hidden, actions)

    def forward(self, x: Tensor) -> Tensor:
        """Frames [rows, 4, side, side] → what each action is worth."""
        for first, more in zip(self.first, self.more, strict=True):
            x = functional.max_pool2d(first(x), 3, 2, 1)
            for one, two in zip(more[::2], more[1::2], strict=True):
                x = x + two(functional.relu(one(functional.relu(x))))
        x = functional.relu(self.hidden(functional.relu(x).flatten(1)))
        gain = self.gain(x)
        return (self.worth(x) + gain - gain.mean(1, keepdim=True)).float()


@pair(
    "host-stall", "reinforcement", "running sums and searchsorted on the GPU instead of a tree that Python walks",
    THIRTY_EIGHTH, accept=("host-sync", "blocking-copy"), steps=(4, 2),
)  # fmt: skip
def rooftop_drone_replay(variant: str) -> Step:
    """Double DQN (IMPALA's network, mixed precision, channels_last) learns from 512 of 131,072 transitions on the GPU.

    They are drawn by priority. The SumTree of all tutorials is an array of numpy that Python walks from the root to a
    leaf for each of the 512, and back from each leaf when errors have come from the GPU: 17,000 visits of single
    numbers a step, while the GPU has nothing to do. The frames are on the GPU already, and so may be the priorities.
    """
    rows, held, side, actions = size(512, 8), size(131_072, 64), size(84, 16), 18
    widths = (size(32, 4), size(64, 4), size(64, 4))
    learns, slow = (
        on_device(lambda: Pilot(widths, side, size(512, 8), actions)).to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    slow.requires_grad_(False)
    optimizer = adamw(learns)
    seeded(1)
    frames = torch.randint(0, 256, (held + 4, side, side), device=DEVICE, dtype=torch.uint8)
    did, won = tokens(actions, held), torch.randn(held, device=DEVICE)
    first = torch.rand(held, device=DEVICE) + 0.01
    replay = HostReplay(first) if variant == BEFORE else DeviceReplay(first)
    window = torch.arange(4, device=DEVICE)

    def seen(places: Tensor) -> Tensor:
        shown = frames[places[:, None] + window].contiguous(memory_format=torch.channels_last)
        return shown.float() / 255

    def step() -> Tensor:
        places, part = replay.sample(rows)
        weights = (held * part) ** -0.4
        weights = weights / weights.max()
        now, later = seen(places), seen(places + 1)
        with torch.no_grad(), mixed():
            best = learns(later).argmax(1, keepdim=True)
            goal = won[places] + 0.99 * slow(later).gather(1, best)[:, 0]
        with mixed():
            told = learns(now).gather(1, did[places][:, None])[:, 0]
        wrong = goal - told
        loss = (weights * functional.huber_loss(told, goal, reduction="none")).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(learns.parameters(), 10.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        replay.update((wrong.detach().abs() + 1e-3) ** 0.6)
        return loss.detach()

    return step


class Contacts(nn.Module):
    """For each pair of residues, whether they touch."""

    def __init__(self, width: int, hidden: int, *, pairs: bool) -> None:
        super().__init__()
        self.pairs = pairs
        self.join, self.out = nn.Linear(2 * width, hidden), nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Residues [rows, places, width] → scores [rows, places, places]."""
        places = x.shape[1]
        if self.pairs:
            left = x[:, :, None].expand(-1, -1, places, -1)
            right = x[:, None].expand(-1, places, -1, -1)
            joined = self.join(torch.cat((left, right), -1))
        else:
            one, two = self.join.weight.chunk(2, 1)
            left, right = functional.linear(x, one, self.join.bias), functional.linear(x, two)
            joined = left[:, :, None] + right[:, None]
        return self.out(functional.gelu(joined))[..., 0]


@pair(
    "memory-bandwidth", "fine-tuning", "the layer's two halves over the residues, added for pairs, not over all pairs",
    THIRTY_EIGHTH, library="transformers", accept=("recomputation", "unfused-chain"),
    compiles=True, steps=(3, 2),
)  # fmt: skip
def residue_contact_pairs(variant: str) -> Step:
    """An ESM-2 (6 × 640, layers compiled, mixed precision, fused AdamW) learns contacts of 16 proteins of 256 residues.

    The head puts each two residues beside each other, [16, 256, 256, 1280] in 32 bits, and multiplies that with a
    layer: 5.4 GB which say nothing new, 256 products where one would do, and as much on the way back. A layer over
    two things beside each other is the sum of a layer over each: 4,096 residues go through both halves, and only
    their sums are made for all pairs.
    """
    rows, places, width = size(16, 2), size(256, 12), size(640, 32)
    config = transformers.EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=width, num_hidden_layers=size(6, 2),
        num_attention_heads=size(20, 2), intermediate_size=4 * width, position_embedding_type="rotary",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, emb_layer_norm_before=False, use_cache=False,
    )  # fmt: skip
    body = on_device(lambda: transformers.EsmModel(config, add_pooling_layer=False)).train()
    head = on_device(lambda: Contacts(width, size(256, 16), pairs=variant == BEFORE), seed=1).train()
    compiled(body.encoder.layer)
    both = nn.ModuleList((body, head))
    optimizer = adamw(both)
    seeded(2)
    residues = 4 + tokens(20, rows, places)
    touch = (torch.rand(rows, places, places, device=DEVICE) < 0.03).float()
    at = torch.arange(places, device=DEVICE)
    far = ((at[:, None] - at).abs() >= 6).float()

    def step() -> Tensor:
        with mixed():
            scores = head(body(input_ids=residues).last_hidden_state)
        wrong = functional.binary_cross_entropy_with_logits(scores.float(), touch, reduction="none")
        loss = (wrong * far).sum() / (far.sum() * rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class ColumnLayer(nn.Module):
    """A layer of an FT-Transformer: columns of a row see each other; the feed is a gated one."""

    def __init__(self, width: int, heads: int, *, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.seen = nn.MultiheadAttention(width, heads, batch_first=True)
        self.inner, self.out = nn.Linear(width, 8 * width // 3 // 16 * 16), nn.Linear(4 * width // 3 // 8 * 8, width)

    def forward(self, x: Tensor) -> Tensor:
        """Columns [rows, columns, width]."""
        asked = self.norms[0](x)
        x = x + self.seen(asked, asked, asked, need_weights=self.weights)[0]
        gate, told = self.inner(self.norms[1](x)).chunk(2, -1)
        return x + self.out(functional.relu(gate) * told)


class Columns(nn.Module):
    """An FT-Transformer over columns of numbers."""

    def __init__(self, columns: int, width: int, heads: int, depth: int, kinds: int, *, weights: bool) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(0.1 * torch.randn(columns, width)) for _ in range(2))
        self.summary = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.layers = nn.ModuleList(ColumnLayer(width, heads, weights=weights) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of numbers [rows, columns] → scores."""
        x = torch.cat((self.summary.expand(len(x), -1, -1), x[..., None] * self.scale + self.shift), 1)
        for layer in self.layers:
            x = layer(x)
        return self.out(functional.relu(self.norm(x[:, 0])))


@pair(
    "unfused-attention", "tabular", "need_weights=False: nobody reads the weights that MultiheadAttention returns",
    THIRTY_EIGHTH, accept=("unused-results", "memory-bandwidth", "unfused-chain"), steps=(3, 2),
)  # fmt: skip
def insurance_claim_columns(variant: str) -> Step:
    """An FT-Transformer (4 × 256, mixed precision, fused AdamW) learns from 2,048 claims of 127 columns.

    self.attention(x, x, x)[0] is how layers of one's own are written. nn.MultiheadAttention returns its weights unless
    told otherwise, so it takes the way of bmm, softmax and bmm, whose weights (268 million a layer) are written in 16
    and in 32 bits, and averages them over heads for nobody. Without them it calls the fused kernel.
    """
    rows, columns, kinds = size(2048, 8), size(127, 7), 5
    weights = variant == BEFORE
    model = on_device(lambda: Columns(columns, size(256, 48), size(8, 2), size(4, 2), kinds, weights=weights)).train()
    optimizer = adamw(model)
    seeded(1)
    claims, labels = torch.randn(rows, columns, device=DEVICE), tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            loss = functional.cross_entropy(model(claims), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class WorldCell(nn.Module):
    """One moment of a world model (DreamerV3): memory by a GRU with norms, and a latent of kinds drawn from it."""

    def __init__(self, memory: int, hidden: int, sets: int, acts: int, seen: int) -> None:
        super().__init__()
        self.sets, latent = sets, sets * sets
        self.register_buffer("kinds", torch.arange(sets))
        self.join, self.join_norm = nn.Linear(latent + acts, hidden), nn.LayerNorm(hidden)
        self.gates, self.gates_norm = nn.Linear(hidden + memory, 3 * memory, bias=False), nn.LayerNorm(3 * memory)
        self.post, self.post_norm, self.told = (
            nn.Linear(memory + seen, hidden),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, latent),
        )

    def forward(
        self, memory: Tensor, latent: Tensor, act: Tensor, seen: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Memory and latent of the moment before → memory, latent and its scores."""
        x = functional.silu(self.join_norm(self.join(torch.cat((latent, act), -1))))
        reset, new, update = self.gates_norm(self.gates(torch.cat((x, memory), -1))).chunk(3, -1)
        update = torch.sigmoid(update - 1)
        memory = update * torch.tanh(torch.sigmoid(reset) * new) + (1 - update) * memory
        scores = self.told(functional.silu(self.post_norm(self.post(torch.cat((memory, seen), -1)))))
        scores = scores.unflatten(-1, (self.sets, self.sets))
        chances = scores.softmax(-1)
        drawn = ((scores + noise).argmax(-1, keepdim=True) == self.kinds).float() + chances - chances.detach()
        return memory, drawn.flatten(-2), scores


class Eyes(nn.Module):
    """Images → what is seen of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width, 8 * width)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, 3, 64, 64] → [rows, 8 · width · 16]."""
        for layer in self.layers:
            x = functional.silu(layer(x))
        return x.flatten(1)


class Dreams(nn.Module):
    """What is in memory → images."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.wide = 8 * width
        widths = (8 * width, 4 * width, 2 * width, width, 3)
        self.first = nn.Linear(given, self.wide * 16)
        self.layers = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Features [rows, given] → images [rows, 3, 64, 64]."""
        x = self.first(x).unflatten(1, (self.wide, 4, 4)).contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            x = layer(functional.silu(x))
        return x


@healthy("reinforcement", THIRTY_EIGHTH, compiles=True, steps=(3, 2))
def gripper_world_model(variant: str) -> Step:
    """DreamerV3's world model learns from 16 sequences of 64 moments; the whole step is replayed from a CUDA graph.

    Each moment needs the latent drawn in the one before, so 64 cells follow one another, forward and backward, with
    products of 16 rows that leave most of the GPU idle. That is the algorithm: cells, eyes and dreams are compiled,
    whatever does not depend on the moment before (eyes, prior, dreams, losses) is done for all moments at once, and
    no launch waits for Python. Nothing is to be mended in a few lines.
    """
    torch.set_float32_matmul_precision("high")
    rows, moments, side, acts = size(16, 2), size(64, 3), 64, 8
    memory, sets, width = size(1024, 16), size(32, 4), size(32, 2)
    seen = 8 * width * 16
    cell = on_device(lambda: WorldCell(memory, size(640, 16), sets, acts, seen)).train()
    eyes = on_device(lambda: Eyes(width), seed=1).train().to(memory_format=torch.channels_last)
    dreams = on_device(lambda: Dreams(memory + sets * sets, width), seed=2).train()
    dreams = dreams.to(memory_format=torch.channels_last)
    prior = on_device(
        lambda: nn.Sequential(nn.Linear(memory, size(640, 16)), nn.SiLU(), nn.Linear(size(640, 16), sets * sets)),
        seed=3,
    )
    parts = nn.ModuleList((cell, eyes, dreams, prior))
    optimizer = adamw(parts, fused=True, capturable=CUDA)
    compiled((cell, eyes, dreams))
    seeded(4)
    shown = images(rows * moments, side).contiguous(memory_format=torch.channels_last)
    did = torch.randn(moments, rows, acts, device=DEVICE)

    def divergence(one: Tensor, two: Tensor) -> Tensor:
        one, two = one.log_softmax(-1), two.log_softmax(-1)
        return (one.exp() * (one - two)).sum((-1, -2)).clamp(min=1.0).mean()

    def step() -> Tensor:
        with mixed():
            looks = eyes(shown)
        looks = looks.float().unflatten(0, (moments, rows))
        noise = -torch.empty(moments, rows, sets, sets, device=DEVICE).exponential_().log()
        kept = torch.zeros(rows, memory, device=DEVICE)
        latent = torch.zeros(rows, sets * sets, device=DEVICE)
        memories, latents, scores = [], [], []
        for act, look, chance in zip(did.unbind(), looks.unbind(), noise.unbind(), strict=True):
            kept, latent, score = cell(kept, latent, act, look, chance)
            memories.append(kept)
            latents.append(latent)
            scores.append(score)
        remembered, posterior = torch.stack(memories), torch.stack(scores)
        expected = prior(remembered).unflatten(-1, (sets, sets))
        with mixed():
            told = dreams(torch.cat((remembered, torch.stack(latents)), -1).flatten(0, 1))
        loss = functional.mse_loss(told.float(), shown)
        loss = loss + divergence(posterior.detach(), expected) + 0.1 * divergence(posterior, expected.detach())
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 100.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return as_graph(step)


class Hidden(nn.Module):
    """A masked autoencoder: a quarter of the patches is seen, the others are to be told."""

    def __init__(self, body: VisionTransformer, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.body, given = body, body.embed_dim
        self.patch, self.places = body.patch_embed.patch_size[0], body.patch_embed.num_patches
        self.narrow, self.out = nn.Linear(given, width), nn.Linear(width, 3 * self.patch**2)
        self.mask = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.at = nn.Parameter(0.02 * torch.randn(1, self.places + 1, width))
        self.layers = nn.ModuleList(TimmBlock(width, heads, qkv_bias=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images → what is told of their patches, and which were hidden."""
        body, keep = self.body, self.places // 4
        x = body.patch_embed(x) + body.pos_embed[:, 1:]
        order = torch.rand(len(x), self.places, device=x.device).argsort(1)
        back = order.argsort(1)
        x = x.gather(1, order[:, :keep, None].expand(-1, -1, x.shape[-1]))
        x = torch.cat(((body.cls_token + body.pos_embed[:, :1]).expand(len(x), -1, -1), x), 1)
        for block in body.blocks:
            x = block(x)
        x = self.narrow(body.norm(x))
        unknown = self.mask.to(x.dtype).expand(len(x), self.places - keep, -1)
        rest = torch.cat((x[:, 1:], unknown), 1).gather(1, back[..., None].expand(-1, -1, x.shape[-1]))
        x = torch.cat((x[:, :1], rest), 1) + self.at
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x[:, 1:])), back >= keep


def patches_missed(told: Tensor, hidden: Tensor, shown: Tensor, patch: int) -> Tensor:
    """Squared errors of the hidden patches, each of which is normalized."""
    goal = functional.pixel_unshuffle(shown, patch).flatten(2).transpose(1, 2)
    goal = (goal - goal.mean(-1, keepdim=True)) * (goal.var(-1, keepdim=True) + 1e-6).rsqrt()
    wrong = (told.float() - goal).square().mean(-1)
    return (wrong * hidden).sum() / hidden.sum()


@healthy("vision", THIRTY_EIGHTH, library="timm", compiles=True, steps=(3, 2))
def satellite_tile_pretraining(variant: str) -> Step:
    """A masked autoencoder (ViT-B/16, 8 × 512 behind it) learns from 512 tiles of 224².

    Layers and loss are compiled, precision is mixed, attention and AdamW are fused, hidden patches never enter the
    large network, and no number goes to the host: the step is products of matrices for the most part.
    """
    rows, side = size(512, 4), size(224, 32)

    def build() -> nn.Module:
        body = VisionTransformer(
            img_size=side, patch_size=size(16, 8), embed_dim=size(768, 32), depth=size(12, 2), num_heads=size(12, 2),
            num_classes=0, global_pool="token",
        )  # fmt: skip
        return Hidden(body, size(512, 16), size(8, 1), size(16, 2))

    model = on_device(build).train()
    compiled(model.body.blocks)
    compiled(model.layers)
    missed = patches_missed if TINY else torch.compile(patches_missed, dynamic=False)
    optimizer = adamw(model, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda index: min(1.0, (index + 1) / 1000))
    seeded(1)
    shown = images(rows, side)

    def step() -> Tensor:
        with mixed():
            told, hidden = model(shown)
        loss = missed(told, hidden, shown, model.patch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        plan.step()
        return loss.detach()

    return step
