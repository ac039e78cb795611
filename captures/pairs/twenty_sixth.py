"""The twenty-sixth set: ordinary habits once more; language models, decoding, sound, series."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    DEVICE,
    HALF,
    adamw,
    as_graph,
    compiled,
    keep_apart,
    mixed,
    on_device,
    size,
    tokens,
    training,
    write_kept,
)
from pairs.registry import AFTER, BEFORE, TWENTY_SIXTH, Step, healthy, pair

__all__: list[str] = []


@pair(
    "unused-results", "fine-tuning", "logits_to_keep: words are told where the answer stands", TWENTY_SIXTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def words_told_for_the_prompt_too(variant: str) -> Step:
    """A Qwen2 (12 × 1,024, 151,936 words) learns 12 answers of 64 tokens to prompts of 960, whose labels are -100.

    That each step reads its loss is seen easily, and costs little.
    """
    config = transformers.Qwen2Config(
        vocab_size=size(151_936, 64), hidden_size=size(1024, 32), intermediate_size=size(4096, 64), use_cache=False,
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 1),
        tie_word_embeddings=True,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config)).train()
    optimizer, prompt, answer = adamw(model), size(960, 6), size(64, 2)
    ids = tokens(config.vocab_size, size(12, 2), prompt + answer)
    labels = ids.clone()
    labels[:, :prompt] = -100

    def loss() -> Tensor:
        if variant == BEFORE:
            return model(input_ids=ids, labels=labels).loss
        told = model(input_ids=ids, logits_to_keep=answer + 1).logits[:, :-1]
        return functional.cross_entropy(told.flatten(0, 1).float(), labels[:, prompt:].flatten())

    def step() -> float:
        with mixed():
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return step


@pair(
    "padded-work", "fine-tuning", "summaries are padded to the longest of their batch, 96", TWENTY_SIXTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def summaries_padded_to_512(variant: str) -> Step:
    """A BART (6 + 6 × 768) learns 32 summaries of articles of 512; the collator pads both to 512, summaries have 96."""
    config = transformers.BartConfig(
        vocab_size=size(50_264, 64), d_model=size(768, 32), encoder_layers=size(6, 1), decoder_layers=size(6, 1),
        encoder_attention_heads=size(12, 2), decoder_attention_heads=size(12, 2), dropout=0.0, use_cache=False,
        encoder_ffn_dim=size(3072, 64), decoder_ffn_dim=size(3072, 64), max_position_embeddings=size(1024, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.BartForConditionalGeneration(config)).train()
    rows, room, longest = size(32, 2), size(512, 16), size(96, 6)
    ids = tokens(config.vocab_size - 4, rows, room) + 4
    labels = tokens(config.vocab_size - 4, rows, room) + 4
    lengths = torch.linspace(longest // 2, longest, rows, device=DEVICE).round()
    labels[torch.arange(room, device=DEVICE) >= lengths[:, None]] = -100
    if variant == AFTER:
        labels = labels[:, :longest].contiguous()
    return training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model))


@pair(
    "unfused-optimizer", "training", "AdamW(fused=True)", TWENTY_SIXTH, library="transformers", steps=(3, 2),
)  # fmt: skip
def adamw_as_it_comes(variant: str) -> Step:
    """A Mistral (4 × 4,096, 0.9 billion weights) learns 4 texts of 384; AdamW, two groups, has its default loop.

    That each step reads the norm of the gradients is seen easily, and costs little.
    """
    config = transformers.MistralConfig(
        vocab_size=size(16_384, 64), hidden_size=size(4096, 32), intermediate_size=size(11_008, 64), use_cache=False,
        num_hidden_layers=size(4, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 1),
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config)).train()
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True if variant == AFTER else None)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 100))
    ids = tokens(config.vocab_size, size(4, 2), size(384, 8))

    def step() -> float:
        with mixed():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        large = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        optimizer.zero_grad(set_to_none=True)
        return large.item()

    return step


class Turn(nn.Module):
    """A layer of a decoder with room for keys and values; the last place is written, all are read."""

    def __init__(self, width: int, heads: int, rows: int, room: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.register_buffer("kept", torch.randn(2, 1, heads, room, width // heads).repeat(1, rows, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The next token [rows, 1, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        write_kept(self.kept, -1, k[:, :, 0], v[:, :, 0])
        seen = functional.scaled_dot_product_attention(q, self.kept[0], self.kept[1])
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@pair(
    "host-sync", "decoding", "the ids of all texts are read at once, by tolist()", TWENTY_SIXTH,
    inference=True, with_stack=True, steps=(3, 2),
)  # fmt: skip
def end_sought_text_by_text(variant: str) -> Step:
    """Layers (8 × 2,048, bf16, a CUDA graph) tell 4 tokens of 128 texts; a criterion asks each text's last id."""
    width, heads, rows, room, words = size(2048, 32), size(16, 2), size(128, 3), size(512, 8), size(32_768, 64)
    layers = on_device(lambda: nn.Sequential(*(Turn(width, heads, rows, room) for _ in range(size(8, 1)))), HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    begin, end = tokens(words, rows, 1), 2
    ids = begin.clone()

    def told() -> None:
        ids.copy_((layers(names(ids)) @ names.weight.T).argmax(-1))

    token = as_graph(told)

    def stopped(done: list[bool]) -> list[bool]:
        if variant == BEFORE:
            return [was or ids[row, 0].item() == end for row, was in enumerate(done)]
        return [was or word == end for was, word in zip(done, ids[:, 0].tolist(), strict=True)]

    def step() -> tuple[list[bool], Tensor]:
        ids.copy_(begin)
        done = [False] * rows
        for _ in range(4):
            token()
            done = stopped(done)
            if all(done):
                break
        return done, ids.clone()

    return step


@pair(
    "weight-bound", "decoding", "the six answers are a batch", TWENTY_SIXTH,
    accept=("small-kernels",), inference=True, steps=(3, 2),
)  # fmt: skip
def answers_drawn_in_turn(variant: str) -> Step:
    """Layers (6 × 4,096, bf16, a CUDA graph) draw six answers of 8 tokens to one prompt, one answer after the other.

    Each product has one row, and reads all weights; that its grid is small says the same.
    """
    width, heads, room, words = size(4096, 32), size(32, 2), size(512, 8), size(32_768, 64)
    answers, length = 6, size(8, 3)
    rows = 1 if variant == BEFORE else answers
    layers = on_device(lambda: nn.Sequential(*(Turn(width, heads, rows, room) for _ in range(size(6, 1)))), HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    luck = -torch.log(-torch.log(torch.rand(length, answers, 1, words, device=DEVICE).clamp(1e-6, 1 - 1e-6)))
    drawn, ids = torch.zeros(rows, 1, words, device=DEVICE), torch.zeros(rows, 1, device=DEVICE, dtype=torch.long)

    def told() -> None:
        ids.copy_(((layers(names(ids)) @ names.weight.T).float() / 0.8 + drawn).argmax(-1))

    token = as_graph(told)

    def step() -> Tensor:
        made = []
        for first in range(0, answers, rows):
            ids.fill_(1)
            for place in range(length):
                drawn.copy_(luck[place, first : first + rows])
                token()
                made.append(ids.clone())
        return torch.stack(made).unflatten(0, (-1, length)).transpose(1, 2).flatten(0, 1)[..., 0]

    return step


class Remembering(nn.Module):
    """A layer that sees what was before: joined anew with each token, or written into room that is there."""

    def __init__(self, width: int, heads: int, rows: int, begun: int, room: int) -> None:
        super().__init__()
        self.heads, self.begun = heads, begun
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("kept", torch.randn(2, rows, heads, begun, width // heads))
        self.slots = room > begun
        if self.slots:
            self.kept = functional.pad(self.kept, (0, 0, 0, room - begun))
        self.past, self.place = self.kept, begun

    def again(self) -> None:
        """Forgets what came after the beginning."""
        self.past, self.place = self.kept, self.begun

    def forward(self, x: Tensor) -> Tensor:
        """The next token [rows, 1, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.place += 1
        if self.slots:
            self.kept[:, :, :, self.place - 1] = torch.stack([k, v])[:, :, :, 0]
            self.past = self.kept[:, :, :, : self.place]
        else:
            self.past = torch.cat([self.past, torch.stack([k, v])], 3)
        seen = functional.scaled_dot_product_attention(q, self.past[0], self.past[1])
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


@pair(
    "growing-cache", "decoding", "keys and values are written into room made beforehand", TWENTY_SIXTH,
    inference=True, steps=(2, 2),
)  # fmt: skip
def melodies_joined_with_their_past(variant: str) -> Step:
    """A model of music (12 × 1,024, bf16, four code books) goes on with 64 melodies of 1,500 frames, for 6 frames.

    Each layer joins its keys and values with the new ones by torch.cat.
    """
    width, heads, rows, begun = size(1024, 32), size(16, 2), size(64, 2), size(1500, 8)
    books, codes, frames = 4, size(2048, 16), size(6, 3)
    room = begun + (frames if variant == AFTER else 0)

    def make() -> nn.Module:
        return nn.Sequential(*(Remembering(width, heads, rows, begun, room) for _ in range(size(12, 1))))

    layers = on_device(make, HALF).eval()
    names = on_device(lambda: nn.Embedding(books * codes, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, books * codes, bias=False), HALF, 2)
    starts, begin = torch.arange(books, device=DEVICE) * codes, tokens(codes, rows, books)
    for layer in layers:
        layer.again()

    def step() -> Tensor:
        ids, made = begin, []
        for layer in layers:
            layer.again()
        for _ in range(frames):
            x = names(ids + starts).sum(1, keepdim=True)
            ids = head(layers(x))[:, 0].unflatten(-1, (books, codes)).argmax(-1)
            made.append(ids)
        return torch.stack(made, 1)

    return step


class Low(nn.Module):
    """A linear layer as a product of two narrow ones."""

    def __init__(self, narrow: int, wide: int, rank: int, filled: int) -> None:
        super().__init__()
        down, up = torch.randn(rank, narrow) / narrow**0.5, torch.randn(wide, rank) / rank**0.5
        self.down = nn.Parameter(functional.pad(down, (0, 0, 0, filled - rank)))
        self.up = nn.Parameter(functional.pad(up, (0, filled - rank)))
        self.bias = nn.Parameter(torch.zeros(wide))

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., narrow] → [..., wide]."""
        return functional.linear(functional.linear(x, self.down), self.up, self.bias)


class Squeezed(nn.Module):
    """A layer of an encoder of which all products were made narrow."""

    def __init__(self, width: int, heads: int, rank: int, filled: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = Low(width, 3 * width, rank, filled), Low(width, width, rank, filled)
        self.wide, self.narrow = Low(width, 4 * width, rank, filled), Low(4 * width, width, rank, filled)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


@pair(
    "misaligned-shape", "embeddings", "ranks are rounded up to 416, with zeros", TWENTY_SIXTH,
    inference=True, steps=(3, 2),
)  # fmt: skip
def ranks_by_their_share(variant: str) -> Step:
    """An encoder (12 × 1,024, bf16) reads 48 texts of 512; its weights were cut to rank 413, by their share."""
    width, heads, rank = size(1024, 32), size(16, 2), size(413, 5)
    filled = rank if variant == BEFORE else size(416, 8)
    layers = on_device(
        lambda: nn.Sequential(*(Squeezed(width, heads, rank, filled) for _ in range(size(12, 2)))), HALF
    ).eval()
    names = on_device(lambda: nn.Embedding(size(32_768, 64), width), HALF, 1)
    ids = tokens(names.num_embeddings, size(48, 2), size(512, 8))
    return lambda: functional.normalize(layers(names(ids)).mean(1).float(), dim=-1)


class Dilated(nn.Module):
    """A convolution far along time, between two over channels."""

    def __init__(self, width: int, wide: int, apart: int) -> None:
        super().__init__()
        self.chain = nn.Sequential(
            nn.Conv1d(width, wide, 1), nn.PReLU(), nn.GroupNorm(1, wide),
            nn.Conv1d(wide, wide, 3, padding=apart, dilation=apart, groups=wide), nn.PReLU(), nn.GroupNorm(1, wide),
            nn.Conv1d(wide, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Frames [rows, width, frames]."""
        return x + self.chain(x)


class Separator(nn.Module):
    """Two voices out of one sound: masks over learnt filters."""

    def __init__(self, filters: int, width: int, layers: int) -> None:
        super().__init__()
        self.read, self.tell = nn.Conv1d(1, filters, 16, 8, 4), nn.ConvTranspose1d(filters, 1, 16, 8, 4)
        self.narrow, self.masks = nn.Conv1d(filters, width, 1), nn.Conv1d(width, 2 * filters, 1)
        self.body = nn.Sequential(*(Dilated(width, 2 * width, 2 ** (index % 8)) for index in range(layers)))

    def forward(self, sound: Tensor) -> Tensor:
        """Sounds [rows, samples] → voices [rows, 2, samples]."""
        x = functional.relu(self.read(sound[:, None]))
        masks = self.masks(self.body(self.narrow(x))).sigmoid().unflatten(1, (2, -1))
        return self.tell((masks * x[:, None]).flatten(0, 1))[:, 0].unflatten(0, (-1, 2))


@pair(
    "small-kernels", "speech", "all pieces are one batch", TWENTY_SIXTH,
    accept=("launch-overhead",), inference=True, steps=(2, 1),
)  # fmt: skip
def voices_parted_piece_by_piece(variant: str) -> Step:
    """A Conv-TasNet (16 layers, bf16) parts two voices of half a minute: 24 pieces, one after the other, add up.

    The network of a piece is replayed from a CUDA graph; that its many kernels are short says the same.
    """
    pieces, long = size(24, 3), size(24_000, 64)
    apart = long * 3 // 4
    model = on_device(lambda: Separator(size(512, 16), size(256, 8), size(16, 2)), HALF).eval()
    sound = torch.randn(apart * (pieces - 1) + long, device=DEVICE, dtype=HALF)
    fade = torch.hann_window(long + 2, periodic=False, device=DEVICE)[1:-1].to(HALF)
    given = torch.zeros(1 if variant == BEFORE else pieces, long, device=DEVICE, dtype=HALF)
    part = as_graph(lambda: model(given))

    def step() -> Tensor:
        voices, weight = torch.zeros(2, len(sound), device=DEVICE), torch.zeros(len(sound), device=DEVICE)
        cut = sound.unfold(0, long, apart)
        if variant == AFTER:
            given.copy_(cut)
            parted = part()
        for index in range(pieces):
            if variant == BEFORE:
                given.copy_(cut[index : index + 1])
                own = part()[0]
            else:
                own = parted[index]
            place = slice(index * apart, index * apart + long)
            voices[:, place] += own * fade
            weight[place] += fade
        return voices / weight

    return step


class Seller(nn.Module):
    """Two recurrent cells, and what may be sold next: its mean and its spread."""

    def __init__(self, known: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.GRUCell(known + 1, width), nn.GRUCell(width, width)
        self.mean, self.spread = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, sold: Tensor, known: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Any, ...]]:
        """What was sold [rows, 1], what is known of the day [rows, known]."""
        first = self.first(torch.cat([sold, known], 1), states[0])
        second = self.second(first, states[1])
        spread = functional.softplus(self.spread(second)) + 1e-3
        return self.mean(second) + spread * torch.randn_like(spread), (first, second)


@pair(
    "launch-overhead", "time series", "the paths of all days are replayed from a CUDA graph", TWENTY_SIXTH,
    accept=("small-kernels",), inference=True, steps=(2, 1),
)  # fmt: skip
def sales_drawn_day_by_day(variant: str) -> Step:
    """A DeepAR (two cells of 512, bf16) draws 20 paths of 56 days for 32 articles, in eager mode; quantiles follow.

    Each of the kernels is small: the host cannot keep up with them.
    """
    articles, paths, days, known, width = size(32, 2), size(20, 3), size(56, 4), size(15, 3), size(512, 8)
    model = on_device(lambda: Seller(known, width), HALF).eval()
    rows = articles * paths
    calendar = torch.randn(days, articles, known, device=DEVICE, dtype=HALF).repeat_interleave(paths, 1)
    begin = tuple(torch.randn(rows, width, device=DEVICE, dtype=HALF) for _ in range(2))
    last = torch.randn(rows, 1, device=DEVICE, dtype=HALF)

    def drawn() -> Tensor:
        sold, states, made = last, begin, []
        for day in calendar:
            sold, states = model(sold, day, states)
            made.append(sold)
        return torch.cat(made, 1).unflatten(0, (articles, paths))

    draw = as_graph(drawn) if variant == AFTER else drawn
    shares = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)
    return lambda: draw().float().quantile(shares, 1).cpu()


class Loss(nn.Module):
    """How surprising the next words are."""

    def forward(self, told: Tensor, wanted: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        return functional.cross_entropy(told[:, :-1].flatten(0, 1).float(), wanted[:, 1:].flatten())


@healthy("training", TWENTY_SIXTH, library="transformers", compiles=True, steps=(2, 2))
def healthy_starcoder_training(variant: str) -> Step:
    """A StarCoder2 (6 × 2,048) learns 16 texts of 1,024: mixed precision, layers and loss compiled, fused AdamW."""
    config = transformers.Starcoder2Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64), use_cache=False,
        num_hidden_layers=size(6, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2),
        residual_dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model, surprise = on_device(lambda: transformers.Starcoder2ForCausalLM(config)).train(), Loss()
    compiled([*model.model.layers, surprise])
    ids = tokens(config.vocab_size, size(16, 2), size(1024, 8))
    return training(lambda: surprise(model(input_ids=ids).logits, ids), adamw(model))


@pair(
    "growing-cache", "decoding", "keys and values have a tensor each, which compiled code writes in place",
    TWENTY_SIXTH, compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def static_cache_copied(variant: str) -> Step:
    """Layers (8 × 4,096, bf16, compiled) tell the next token of 384 texts of 96; one CUDA graph, a static cache."""
    width, heads, rows, room, words = size(4096, 32), size(32, 2), size(384, 2), size(96, 8), size(32_768, 64)
    layers = on_device(lambda: nn.Sequential(*(Turn(width, heads, rows, room) for _ in range(size(8, 1)))), HALF).eval()
    if variant == AFTER:
        keep_apart(layers)
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    ids = tokens(words, rows, 1)
    return as_graph(lambda: (layers(names(ids)) @ names.weight.T).argmax(-1))
