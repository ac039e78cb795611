"""The thirty-third set: street scenes, dictation, birds, questions, tunes, shops, cells, leaves, a library."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, Block, adamw, compiled, images, mixed, on_device, seeded, size, tokens
from pairs.registry import AFTER, THIRTY_THIRD, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


@pair(
    "host-sync", "segmentation", "torch.bincount of pairs of labels on the GPU, read once", THIRTY_THIRD,
    library="torchvision", accept=("launch-overhead", "small-kernels"), inference=True, steps=(4, 2),
)  # fmt: skip
def street_scene_validation(variant: str) -> Step:
    """A DeepLabV3 (ResNet-50, bf16, channels_last) is validated on 8 scenes of 512² with 150 classes, as ADE20K.

    The IoU is worked out class by class: two masks, their intersection and union, each read by .item(). That makes 300
    waits a step. Between them are short chains of small kernels: hence "launch-overhead" and "small-kernels", too.
    """
    rows, side, kinds = size(8, 2), size(512, 64), size(150, 5)
    make = torchvision.models.segmentation.deeplabv3_resnet50
    model = on_device(lambda: make(weights=None, weights_backbone=None, num_classes=kinds), HALF).eval()
    model = model.to(memory_format=LAST)
    seeded(1)
    x = images(rows, side, HALF).contiguous(memory_format=LAST)
    labels = tokens(kinds, rows, side, side)

    def step() -> list[float]:
        said = model(x)["out"].argmax(1)
        if variant == AFTER:
            table = torch.bincount((labels * kinds + said).flatten(), minlength=kinds * kinds).view(kinds, kinds)
            both = table.diagonal()
            either = table.sum(0) + table.sum(1) - both
            return (both / either.clamp(min=1)).tolist()
        shares = []
        for kind in range(kinds):
            here, there = said == kind, labels == kind
            both, either = (here & there).sum().item(), (here | there).sum().item()
            shares.append(both / max(either, 1))
        return shares

    return step


@pair(
    "launch-overhead", "speech", "one batch of 32, which fits, instead of four of 8, accumulated", THIRTY_THIRD,
    library="transformers", accept=("small-kernels",), steps=(2, 1),
)  # fmt: skip
def dictation_fine_tuning(variant: str) -> Step:
    """A Whisper (base, mixed precision, fused AdamW) learns from 32 recordings of 30 s with 64 tokens each.

    The batch size and the accumulation are those of a tutorial for a small GPU: per_device_train_batch_size=8,
    gradient_accumulation_steps=4. Memory is nearly empty, and kernels are too short for the host: hence
    "small-kernels", too.
    """
    rows, pieces, width = size(32, 4), 1 if variant == AFTER else 4, size(512, 32)
    layers, heads = size(6, 1), size(8, 2)
    config = transformers.WhisperConfig(
        vocab_size=size(51_865, 64), d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, max_source_positions=size(1500, 16), max_target_positions=size(448, 16),
        use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.WhisperForConditionalGeneration(config)).train()
    optimizer = adamw(model)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 500))
    seeded(1)
    sounds = torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions, device=DEVICE)
    wanted = 3 + tokens(config.vocab_size - 3, rows, size(64, 8))

    def step() -> Tensor:
        total = torch.zeros((), device=DEVICE)
        for sound, words in zip(sounds.chunk(pieces), wanted.chunk(pieces), strict=True):
            with mixed():
                loss = model(input_features=sound, labels=words).loss / pieces
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


@pair(
    "unfused-optimizer", "vision", "torch._foreach_lerp_ over tensors listed once", THIRTY_THIRD,
    library="timm", accept=("launch-overhead", "small-kernels"), steps=(3, 2),
)  # fmt: skip
def nesting_bird_training(variant: str) -> Step:
    """An EfficientNet-B2 of timm (channels_last, mixed precision) learns from 32 birds of 256² and keeps an average.

    The average is updated as in many detectors: a loop over state_dict(), three kernels for each weight and buffer.
    These 1,300 launches take the host longer than the GPU: hence "launch-overhead" and "small-kernels", too.
    """
    rows, side, kinds, decay = size(32, 2), size(256, 64), size(200, 7), 0.9998
    name = "efficientnet_b2" if CUDA else "efficientnet_lite0"
    model = on_device(lambda: timm.create_model(name, num_classes=kinds)).train().to(memory_format=LAST)
    average = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = adamw(model)
    x = images(rows, side).contiguous(memory_format=LAST)
    labels = tokens(kinds, rows)
    held, own = (
        [value for value in one.state_dict().values() if value.dtype.is_floating_point] for one in (average, model)
    )

    @torch.no_grad()
    def follow() -> None:
        if variant == AFTER:
            torch._foreach_lerp_(held, own, 1 - decay)
            return
        state = model.state_dict()
        for key, value in average.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(decay).add_((1 - decay) * state[key].detach())

    def step() -> Tensor:
        with mixed():
            loss = functional.cross_entropy(model(x), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        follow()
        return loss.detach()

    return step


@pair(
    "precision", "retrieval", "torch.autocast('cuda', torch.bfloat16): bf16=True of the trainer", THIRTY_THIRD,
    library="transformers", steps=(3, 2),
)  # fmt: skip
def question_passage_training(variant: str) -> Step:
    """A MiniLM (6 × 384) learns from 128 questions of 32 tokens and their passages of 192; the rest are negatives.

    The weights are fp32, and nobody asked for less: neither for mixed precision nor for TF32, which is off by default.
    """
    width, rows, scale = size(384, 32), size(128, 3), 20.0
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=size(6, 1),
        num_attention_heads=size(12, 2), max_position_embeddings=size(512, 16), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False)).train()
    optimizer = adamw(model)
    seeded(1)
    questions, passages = tokens(config.vocab_size, rows, size(32, 8)), tokens(config.vocab_size, rows, size(192, 16))
    right = torch.arange(rows, device=DEVICE)

    def embedded(ids: Tensor) -> Tensor:
        return functional.normalize(model(input_ids=ids).last_hidden_state.float().mean(1), dim=-1)

    def step() -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=variant == AFTER):
            scores = scale * embedded(questions) @ embedded(passages).T
        loss = functional.cross_entropy(scores.float(), right)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Causal(nn.Module):
    """A layer of a small GPT, with attention as it is taught, or fused."""

    def __init__(self, width: int, heads: int, room: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.ones(room, room, dtype=torch.bool).tril()[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * k.shape[-1] ** -0.5
            scores = scores.masked_fill(~self.mask[:, :, : x.shape[1], : x.shape[1]], float("-inf"))
            seen = scores.softmax(-1) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "unfused-attention", "music", "scaled_dot_product_attention(is_causal=True) instead of scores, mask and softmax",
    THIRTY_THIRD, accept=("memory-bandwidth",), steps=(3, 2),
)  # fmt: skip
def piano_tune_training(variant: str) -> Step:
    """A GPT (8 × 768, mixed precision, fused AdamW) learns from 16 tunes of 1,024 events, as minGPT.

    Attention is written out: scores, a scale, masked_fill, softmax, a product. Each passes over all scores in memory:
    hence "memory-bandwidth", too.
    """
    width, events, room = size(768, 32), size(512, 16), size(1024, 16)
    body = on_device(
        lambda: nn.Sequential(
            *(Causal(width, size(12, 2), room, fused=variant == AFTER) for _ in range(size(8, 2))), nn.LayerNorm(width)
        )
    ).train()  # fmt: skip
    names, places = (on_device(lambda many=many: nn.Embedding(many, width), seed=1) for many in (events, room))
    head = on_device(lambda: nn.Linear(width, events, bias=False), seed=2)
    model = nn.ModuleList([body, names, places, head])
    optimizer = adamw(model)
    pace = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    seeded(3)
    ids = tokens(events, size(16, 2), room + 1)
    where = torch.arange(room, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            scores = head(body(names(ids[:, :-1]) + places(where)))
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        pace.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "host-stall", "recommendation", "histories are padded once, in a tensor on the GPU", THIRTY_THIRD,
    steps=(4, 3), with_stack=True,
)  # fmt: skip
def next_purchase_training(variant: str) -> Step:
    """A SASRec (2 × 256, mixed precision, fused AdamW) learns from histories of 2,048 customers, 200 purchases each.

    Histories are lists of Python. They are padded and made a tensor in each step, by the process that launches the
    kernels: torch.tensor looks at 400,000 numbers, one after the other.
    """
    width, room, people, items = size(256, 16), size(200, 8), size(20_480, 8), size(50_000, 64)
    rows = size(2048, 4)
    drawn = np.random.default_rng(0)
    histories = [drawn.integers(1, items, int(many)).tolist() for many in drawn.integers(room // 4, room + 2, people)]
    names = on_device(lambda: nn.Embedding(items, width, padding_idx=0))
    places = on_device(lambda: nn.Embedding(room, width), seed=1)
    layers = on_device(lambda: nn.Sequential(*(Block(width, 2, causal=True) for _ in range(2))), seed=2).train()
    optimizer = adamw(nn.ModuleList([names, places, layers]))
    where = torch.arange(room, device=DEVICE)
    order = torch.from_numpy(drawn.permutation(people)).split(rows)

    def padded(those: list[list[int]]) -> Tensor:
        return torch.tensor([[0] * (room + 1 - len(one)) + one for one in those])

    table = padded(histories).to(DEVICE) if variant == AFTER else None
    batches = itertools.cycle([who.tolist() if table is None else who.to(DEVICE) for who in order])

    def step() -> Tensor:
        who = next(batches)
        both = padded([histories[one] for one in who]).to(DEVICE) if table is None else table[who]
        seen, wanted = both[:, :-1], both[:, 1:]
        others = torch.randint(1, items, wanted.shape, device=DEVICE)
        with mixed():
            told = layers(names(seen) + places(where))
        right, wrong = ((told * names(one)).sum(-1).float() for one in (wanted, others))
        counted = (wanted > 0).float()
        loss = ((functional.softplus(-right) + functional.softplus(wrong)) * counted).sum() / counted.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def twice(wide: int, out: int) -> nn.Sequential:
    """Two convolutions, each with a batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(wide, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """The U-Net of most repositories."""

    def __init__(self, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.enter, self.head = twice(3, width), nn.Conv2d(width, kinds, 1)
        self.down = nn.ModuleList(twice(wide, 2 * wide) for wide in widths[:-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, wide // 2, 2, stride=2) for wide in widths[:0:-1])
        self.join = nn.ModuleList(twice(wide, wide // 2) for wide in widths[:0:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Images → scores of kinds, as large."""
        x = self.enter(x)
        passed = []
        for layer in self.down:
            passed.append(x)
            x = layer(functional.max_pool2d(x, 2))
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((passed.pop(), up(x)), 1))
        return self.head(x)


@pair(
    "memory-format", "medicine", "model and images in torch.channels_last", THIRTY_THIRD,
    accept=("memory-bandwidth",), steps=(3, 2),
)  # fmt: skip
def stained_cell_training(variant: str) -> Step:
    """A U-Net (64 to 1,024 channels, mixed precision) learns from 12 stained slides of 512² with 4 kinds of cells.

    Model and images are in the default format. Convolutions convert to the other one and back, and batch norms are
    slow in it. These passes over memory take the time: hence "memory-bandwidth", too.
    """
    rows, side, kinds = size(12, 2), size(512, 32), 4
    format_ = LAST if variant == AFTER else torch.contiguous_format
    model = on_device(lambda: UNet(size(64, 4), size(4, 2), kinds)).train().to(memory_format=format_)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9, weight_decay=1e-8, foreach=True)
    seeded(1)
    x = images(rows, side).contiguous(memory_format=format_)
    labels = tokens(kinds, rows, side, side)
    exact = functional.one_hot(labels, kinds).permute(0, 3, 1, 2).float().contiguous(memory_format=format_)

    def step() -> Tensor:
        with mixed():
            scores = model(x)
        scores = scores.float()
        chances = scores.softmax(1)
        dice = 2 * (chances * exact).sum((0, 2, 3)) / (chances.sum((0, 2, 3)) + exact.sum((0, 2, 3)) + 1e-6)
        loss = functional.cross_entropy(scores, labels) + 1 - dice.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@healthy("vision", THIRTY_THIRD, library="timm", compiles=True, steps=(2, 1))
def healthy_leaf_disease_training(variant: str) -> Step:
    """A ViT-L/16 of timm learns from 96 leaves of 256²: mixed precision, blocks compiled, fused AdamW, 256 tokens.

    The mean of the losses stays on the GPU.
    """
    rows, side, kinds = size(96, 2), size(256, 64), size(64, 8)
    name = "vit_large_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(
        lambda: timm.create_model(name, num_classes=kinds, img_size=side, class_token=False, global_pool="avg")
    ).train()  # fmt: skip
    compiled(model.blocks)
    optimizer = adamw(model)
    x, labels = images(rows, side), tokens(kinds, rows)
    mean = torch.zeros((), device=DEVICE)

    def step() -> None:
        with mixed():
            loss = functional.cross_entropy(model(x).float(), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean.lerp_(loss.detach(), 0.01)

    return step


@healthy("retrieval", THIRTY_THIRD, library="transformers", inference=True, compiles=True, steps=(2, 1))
def healthy_library_search(variant: str) -> Step:
    """A Qwen3 (8 × 2,560, bf16, layers compiled) embeds 16 texts of 1,024 tokens, and 20 of 100,000 books are found."""
    width = size(2560, 32)
    config = transformers.Qwen3Config(
        vocab_size=size(151_680, 64), hidden_size=width, intermediate_size=size(9728, 64), use_cache=False,
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 4), num_key_value_heads=size(8, 2),
        head_dim=size(128, 8), max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3Model(config), HALF).eval()
    compiled(model.layers)
    seeded(1)
    books = functional.normalize(torch.randn(size(100_000, 40), width, device=DEVICE), dim=-1).to(HALF)
    ids = tokens(config.vocab_size, size(16, 2), size(1024, 8))

    def step() -> Tensor:
        told = functional.normalize(model(input_ids=ids).last_hidden_state[:, -1], dim=-1)
        return (told @ books.T).topk(20).indices

    return step
