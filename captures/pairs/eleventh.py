"""The eleventh set: written and recorded with the tenth, split at random, and read once at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import DEVICE, HALF, adamw, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, ELEVENTH, Step, pair


@pair(
    "host-stall", "speech", "sounds go to the GPU, where their spectrograms are made", ELEVENTH,
    library="transformers", accept=("blocking-copy",), steps=(2, 1),
)  # fmt: skip
def spectrograms_on_host(variant: str) -> Step:
    """An AST (6 × 384) learns from 24 sounds of 10 seconds; the loop makes their log-mel spectrograms on the CPU."""
    frames, mels = size(1024, 32), size(128, 16)
    config = transformers.ASTConfig(
        hidden_size=size(384, 32), num_hidden_layers=size(6, 1), num_attention_heads=size(6, 2),
        intermediate_size=size(1536, 64), max_length=frames, num_mel_bins=mels, num_labels=35,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.ASTForAudioClassification(config)).train()
    sounds = [torch.randn(160 * (frames - 1)) for _ in range(size(24, 2))]
    kept = torch.stack(sounds)
    kept = kept.pin_memory() if DEVICE.type == "cuda" else kept
    window, bank = torch.hann_window(400), torch.rand(mels, 201)
    window_there, bank_there = window.to(DEVICE), bank.to(DEVICE)
    labels = tokens(35, len(sounds))

    def spectrogram(sound: Tensor, window: Tensor, bank: Tensor) -> Tensor:
        waves = torch.stft(sound, 400, 160, window=window, return_complex=True)
        return (bank @ waves.abs().square()).clamp(min=1e-10).log10().transpose(-1, -2)

    def loss() -> Tensor:
        if variant == BEFORE:
            batch = torch.stack([spectrogram(sound, window, bank) for sound in sounds]).to(DEVICE)
        else:
            with torch.autocast(DEVICE.type, enabled=False):
                batch = spectrogram(kept.to(DEVICE, non_blocking=True), window_there, bank_there)
        return model(input_values=batch, labels=labels).loss

    return training(loss, adamw(model))


@pair(
    "padded-work", "embedding", "padding=\"longest\" instead of padding=\"max_length\"", ELEVENTH,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def padded_to_the_longest_allowed(variant: str) -> Step:
    """A BERT (8 × 768) classifies 192 texts of 40 to 64 tokens; all are padded to the 512 that the model can take."""
    config = transformers.BertConfig(
        vocab_size=size(30522, 64), hidden_size=size(768, 32), num_hidden_layers=size(8, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), num_labels=5,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForSequenceClassification(config), HALF).eval()
    count, longest, most = size(192, 2), size(64, 8), size(512, 16)
    width = most if variant == BEFORE else longest
    lengths = torch.randint(longest // 2, longest, (count, 1), device=DEVICE)
    lengths[0] = longest
    mask = (torch.arange(width, device=DEVICE) < lengths).long()
    ids = tokens(config.vocab_size, count, width) * mask
    return lambda: model(input_ids=ids, attention_mask=mask).logits


@pair(
    "blocking-copy", "training", "the batch is put together in pinned memory and sent at once", ELEVENTH,
    library="torchvision", accept=("host-stall",), steps=(2, 1),
)  # fmt: skip
def samples_sent_one_by_one(variant: str) -> Step:
    """A ResNet-18 learns from 96 images; the collate function sends each to the GPU and stacks them there."""
    model = on_device(lambda: torchvision.models.resnet18(num_classes=size(200, 4))).train()
    model = model.to(memory_format=torch.channels_last)
    side = size(224, 64)
    samples = [torch.randn(3, side, side) for _ in range(size(96, 2))]
    kept = torch.stack(samples)
    kept = kept.pin_memory() if DEVICE.type == "cuda" else kept
    labels = tokens(4, len(samples))

    def loss() -> Tensor:
        if variant == BEFORE:
            x = torch.stack([sample.to(DEVICE) for sample in samples])
        else:
            x = kept.to(DEVICE, non_blocking=True)
        return functional.cross_entropy(model(x.to(memory_format=torch.channels_last)).float(), labels)

    return training(loss, adamw(model))


def chosen_by_numpy(boxes: np.ndarray, scores: np.ndarray, most: int) -> list[int]:
    """The boxes that no better one overlaps by half, as they are often found: box by box."""
    left, top, right, bottom = boxes.T
    areas = (right - left) * (bottom - top)
    order, kept = scores.argsort()[::-1], []
    while len(order) and len(kept) < most:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        wide = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        high = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        shared = np.clip(wide, 0, None) * np.clip(high, 0, None)
        order = rest[shared / (areas[best] + areas[rest] - shared) < 0.5]
    return kept


@pair(
    "host-stall", "detection", "torchvision.ops.batched_nms on the GPU instead of NumPy", ELEVENTH,
    library="timm", accept=("blocking-copy",), inference=True, steps=(2, 1),
)  # fmt: skip
def boxes_chosen_by_numpy(variant: str) -> Step:
    """A one-stage detector (CSPDarkNet-53) finds objects in 8 images of 640 × 640; NumPy drops boxes that overlap."""
    side, count, kinds = size(640, 64), size(8, 2), size(80, 3)
    body = on_device(lambda: timm.create_model("cspdarknet53", features_only=True, out_indices=(3, 4, 5)), HALF).eval()
    body = body.to(memory_format=torch.channels_last)
    widths = body.feature_info.channels()
    heads = on_device(lambda: nn.ModuleList(nn.Conv2d(width, 4 + kinds, 1) for width in widths), HALF).eval()
    x = images(count, side, HALF).to(memory_format=torch.channels_last)
    most = size(1000, 8)
    spots = [(side // stride, stride) for stride in (8, 16, 32)]
    lines = [(torch.arange(cells, device=DEVICE) * stride).float() for cells, stride in spots]
    cells = torch.cat([torch.cartesian_prod(line, line) for line in lines])
    strides = torch.cat([torch.full((cells * cells, 1), float(stride), device=DEVICE) for cells, stride in spots])

    def step() -> list[object]:
        maps = [head(found).flatten(2).transpose(1, 2) for head, found in zip(heads, body(x), strict=True)]
        raw = torch.cat(maps, 1).float()
        scores, _ = raw[..., 4:].sigmoid().max(-1)
        corner, extent = cells + raw[..., :2].sigmoid() * strides, raw[..., 2:4].exp() * strides * 2
        boxes = torch.cat([corner, corner + extent], -1)
        if variant == BEFORE:
            found = []
            for box, score in zip(boxes.cpu().numpy(), scores.cpu().numpy(), strict=True):
                best = np.argsort(-score)[:most]
                found.append(chosen_by_numpy(box[best], score[best], 300))
            return found
        score, place = scores.topk(most, 1)
        box = boxes.gather(1, place[..., None].expand(-1, -1, 4)).flatten(0, 1)
        image = torch.arange(count, device=DEVICE).repeat_interleave(most)
        return [torchvision.ops.batched_nms(box, score.flatten(), image, 0.5).cpu()]

    return step


@pair(
    "recomputation", "multi-task", "one backward pass of the sum of all losses", ELEVENTH,
    library="timm", accept=("unused-gradients",), steps=(1, 1),
)  # fmt: skip
def losses_differentiated_one_by_one(variant: str) -> Step:
    """A ResNet-50 learns segments, depths and edges of 32 images; backward(retain_graph=True) for each loss."""
    model = on_device(lambda: timm.create_model("resnet50", num_classes=0, global_pool="")).train()
    heads = on_device(lambda: nn.ModuleList(nn.Conv2d(model.num_features, kinds, 1) for kinds in (21, 1, 1))).train()
    model, heads = (part.to(memory_format=torch.channels_last) for part in (model, heads))
    x = images(size(32, 2), size(256, 64)).to(memory_format=torch.channels_last)
    small = x.shape[-1] // 32
    labels, depths = tokens(21, len(x), small, small), torch.rand(len(x), 1, small, small, device=DEVICE)
    optimizer = adamw(nn.ModuleList([model, heads]))

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            seen = model(x)
            segments, depth, edges = (head(seen).float() for head in heads)
        losses = [
            functional.cross_entropy(segments, labels),
            functional.l1_loss(depth, depths),
            functional.binary_cross_entropy_with_logits(edges, (depths > 0.5).float()),
        ]
        if variant == BEFORE:
            for loss in losses:
                loss.backward(retain_graph=True)
        else:
            sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Routed(nn.Module):
    """Experts with a capacity; tokens are sent by products with one-hot masks, or by their places."""

    def __init__(self, width: int, experts: int, capacity: int, *, hot: bool) -> None:
        super().__init__()
        self.experts, self.capacity, self.hot = experts, capacity, hot
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * (4 * width) ** -0.5)

    def apart(self, sent: Tensor) -> Tensor:
        """What each expert makes of its tokens [experts, capacity, width]."""
        return torch.bmm(functional.gelu(torch.bmm(sent, self.up)), self.down)

    def forward(self, x: Tensor) -> Tensor:
        """What is added to all tokens [tokens, width]."""
        y = self.norm(x)
        gate, chosen = self.router(y).float().softmax(-1).max(-1)
        mask = functional.one_hot(chosen, self.experts)
        place = (mask.cumsum(0) * mask).sum(-1) - 1
        if self.hot:
            fits = functional.one_hot(place.clamp(max=self.capacity), self.capacity + 1)[:, : self.capacity]
            dispatch = (mask[:, :, None] * fits[:, None, :]).to(y.dtype)
            combine = dispatch * gate[:, None, None].to(y.dtype)
            made = self.apart(torch.einsum("tw,tec->ecw", y, dispatch))
            return x + torch.einsum("ecw,tec->tw", made, combine)
        slot = torch.where(place < self.capacity, chosen * self.capacity + place, self.experts * self.capacity)
        room = y.new_zeros(self.experts * self.capacity + 1, y.shape[-1])
        room[slot] = y
        made = self.apart(room[:-1].view(self.experts, self.capacity, -1)).flatten(0, 1)
        return x + functional.pad(made, (0, 0, 0, 1))[slot] * gate[:, None].to(y.dtype)


@pair(
    "unfused-chain", "mixture-of-experts", "tokens are sent by their places (index), not by one-hot masks", ELEVENTH,
    accept=("memory-bandwidth", "scattered-access"), inference=True, steps=(2, 1),
)  # fmt: skip
def experts_by_one_hot(variant: str) -> Step:
    """Four switch layers of 32 experts (768) read 8,192 tokens; masks of tokens × experts × places send them."""
    width, experts, count = size(768, 32), size(32, 4), size(8192, 32)
    capacity = count // experts * 5 // 4
    hot = variant == BEFORE
    layers = size(4, 1)
    model = on_device(
        lambda: nn.Sequential(*(Routed(width, experts, capacity, hot=hot) for _ in range(layers))), HALF
    ).eval()
    x = torch.randn(count, width, device=DEVICE, dtype=HALF)
    return lambda: model(x)


class Linears(nn.Module):
    """DLinear (arXiv:2205.13504) with a layer for each series: trend and rest, each by a product of its own."""

    def __init__(self, series: int, seen: int, ahead: int, *, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        if joined:
            self.weights = nn.Parameter(torch.randn(2, series, seen, ahead) / seen)
        else:
            self.rests = nn.ModuleList(nn.Linear(seen, ahead, bias=False) for _ in range(series))
            self.trends = nn.ModuleList(nn.Linear(seen, ahead, bias=False) for _ in range(series))

    def forward(self, x: Tensor) -> Tensor:
        """The next values [rows, series, ahead]."""
        trend = functional.avg_pool1d(x, 25, 1, 12, count_include_pad=False)
        rest = x - trend
        if self.joined:
            return torch.einsum("bcs,csa->bca", rest, self.weights[0]) + torch.einsum(
                "bcs,csa->bca", trend, self.weights[1]
            )
        result = torch.zeros(*x.shape[:2], self.rests[0].out_features, device=x.device, dtype=x.dtype)
        for index, (of_rest, of_trend) in enumerate(zip(self.rests, self.trends, strict=True)):
            result[:, index] = of_rest(rest[:, index]) + of_trend(trend[:, index])
        return result


@pair(
    "launch-overhead", "time series", "one product for all series instead of a layer each", ELEVENTH,
    accept=("small-kernels", "per-expert-loop"), steps=(2, 1),
)  # fmt: skip
def series_one_by_one(variant: str) -> Step:
    """DLinear forecasts 96 values of 48 series from 336, for 128 rows; each series has layers of its own, in a loop."""
    series, seen, ahead = size(48, 3), size(336, 32), size(96, 8)
    model = on_device(lambda: Linears(series, seen, ahead, joined=variant == AFTER)).train()
    x = torch.randn(size(128, 4), series, seen, device=DEVICE)
    future = torch.randn(len(x), series, ahead, device=DEVICE)
    return training(lambda: functional.mse_loss(model(x), future), adamw(model), mixed=False)


class Scanned(nn.Module):
    """A state-space layer (Mamba-2, arXiv:2405.21060) as a recurrence over time, or as one masked product."""

    def __init__(self, width: int, heads: int, states: int, *, loops: bool) -> None:
        super().__init__()
        self.heads, self.states, self.loops = heads, states, loops
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(2 * width, width)
        self.joined = nn.Linear(width, 4 * width + 2 * states + heads)
        self.rate = nn.Parameter(torch.zeros(heads))

    def forward(self, x: Tensor) -> Tensor:
        """What is added to all positions [texts, positions, width]."""
        width = x.shape[-1]
        gate, value, write, read, moved = self.joined(self.norm(x)).split(
            (2 * width, 2 * width, self.states, self.states, self.heads), -1
        )
        value = value.unflatten(-1, (self.heads, -1))
        lasts = functional.softplus(moved.float())
        decay = -lasts * self.rate.float().exp()
        value = value * lasts[..., None].to(value.dtype)
        if self.loops:
            state = value.new_zeros(len(x), self.heads, value.shape[-1], self.states)
            seen = []
            for time in range(x.shape[1]):
                added = value[:, time, :, :, None] * write[:, time, None, None, :]
                state = state * decay[:, time, :, None, None].exp().to(value.dtype) + added
                seen.append((state * read[:, time, None, None, :]).sum(-1))
            y = torch.stack(seen, 1)
        else:
            total = decay.cumsum(1).transpose(1, 2)
            apart = total[:, :, :, None] - total[:, :, None, :]
            weights = apart.tril().exp().tril() * (read @ write.transpose(1, 2))[:, None]
            y = (weights.to(value.dtype) @ value.transpose(1, 2)).transpose(1, 2)
        return x + self.out(y.flatten(2) * functional.silu(gate))


@pair(
    "launch-overhead", "state space", "the masked product of the paper instead of a loop over time", ELEVENTH,
    accept=("small-kernels",), inference=True, steps=(1, 1),
)  # fmt: skip
def states_step_by_step(variant: str) -> Step:
    """Three Mamba-2 layers (768, 24 heads, 64 states) read 8 texts of 160 tokens; their states go token by token."""
    width, heads, states = size(768, 32), size(24, 2), size(64, 4)
    loops, layers = variant == BEFORE, size(3, 1)
    model = on_device(
        lambda: nn.Sequential(*(Scanned(width, heads, states, loops=loops) for _ in range(layers))), HALF
    ).eval()
    x = torch.randn(size(8, 2), size(160, 6), width, device=DEVICE, dtype=HALF)
    return lambda: model(x)


class Translator(nn.Module):
    """Encoder and decoder of torch's own layers, and the scores of all words."""

    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        how: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.both = nn.Transformer(width, heads, layers, layers, 4 * width, **how)
        self.scores = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The scores of each next word [texts, positions, words]."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.scores(self.both(self.table(source), self.table(target), tgt_mask=mask, tgt_is_causal=True))


@pair(
    "unfused-chain", "translation", "one cross_entropy over all words instead of a sum over positions", ELEVENTH,
    accept=("memory-bandwidth", "launch-overhead", "scattered-access"), steps=(2, 1),
)  # fmt: skip
def loss_word_by_word(variant: str) -> Step:
    """A translator (2 + 2 × 512, 32,000 words) learns from 96 sentences of 64 words; a loop adds up position losses."""
    words, length = size(32_000, 64), size(64, 4)
    model = on_device(lambda: Translator(words, size(512, 32), size(2, 1), size(8, 2))).train()
    source, target = tokens(words, size(96, 2), length), tokens(words, size(96, 2), length + 1)

    def loss() -> Tensor:
        scores = model(source, target[:, :-1])
        if variant == AFTER:
            return functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten()) * length
        total = torch.zeros((), device=DEVICE)
        for place in range(length):
            total = total + functional.cross_entropy(scores[:, place], target[:, place + 1])
        return total

    return training(loss, adamw(model))
