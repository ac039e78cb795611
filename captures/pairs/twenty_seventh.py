"""The twenty-seventh set: the most ordinary habits; language, records, proteins, series, speech."""

from __future__ import annotations

import math

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, mixed, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_SEVENTH, Step, healthy, pair

__all__: list[str] = []


class OneHead(nn.Module):
    """A head of its own, as it is drawn on the blackboard."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, narrow, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width] → [rows, places, narrow]."""
        q, k, v = (part(x)[:, None] for part in (self.query, self.key, self.value))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


class ListOfHeads(nn.Module):
    """Heads in a list, one asked after the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(OneHead(width, width // heads) for _ in range(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        return self.out(torch.cat([head(x) for head in self.heads], -1))


class AllHeads(nn.Module):
    """All heads in one product and one attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class Lesson(nn.Module):
    """A block of a language model: attention and a network, each after a norm."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.norms = attention, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Letters(nn.Module):
    """A language model of letters."""

    def __init__(self, letters: int, width: int, heads: int, layers: int, room: int, *, listed: bool) -> None:
        super().__init__()
        make = ListOfHeads if listed else AllHeads
        self.names, self.places = nn.Embedding(letters, width), nn.Embedding(room, width)
        self.blocks = nn.Sequential(*(Lesson(width, make(width, heads)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [rows, places] → scores [rows, places, letters]."""
        x = self.names(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


@pair(
    "launch-overhead", "training", "all heads of a layer in one product and one attention", TWENTY_SEVENTH,
    accept=("small-kernels",), steps=(2, 1),
)  # fmt: skip
def heads_kept_in_a_list(variant: str) -> Step:
    """A language model of letters (8 × 512, 8 heads) learns 48 texts of 256; each head is a module in a list.

    The products of a head are short; that many kernels are small says the same.
    """
    letters, room = size(96, 16), size(256, 8)
    listed = variant == BEFORE
    model = on_device(lambda: Letters(letters, size(512, 32), size(8, 2), size(8, 1), room, listed=listed)).train()
    ids = tokens(letters, size(48, 2), room + 1)
    return training(
        lambda: functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten()), adamw(model)
    )


class Visits(nn.Module):
    """A layer over the events of a life; what fills the row up is not seen."""

    def __init__(self, width: int, heads: int, drop: float, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.fused = heads, drop, fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attended(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        """Heads [rows, heads, places, narrow], real places [rows, 1, 1, places]."""
        drop = self.drop if self.training else 0.0
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=real, dropout_p=drop)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        chances = functional.softmax(scores.masked_fill(~real, -1e4), dim=-1)
        return torch.matmul(functional.dropout(chances, drop), v)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Events [rows, places, width]."""
        y = self.norms[0](x)
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(self.attended(q, k, v, real).transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "unfused-attention", "health records", "functional.scaled_dot_product_attention, with the mask", TWENTY_SEVENTH,
    accept=("memory-bandwidth",), steps=(2, 2),
)  # fmt: skip
def visits_attend_in_five_lines(variant: str) -> Step:
    """A transformer (6 × 768) learns from 24 lives of up to 1,024 events; attention is written out in five lines.

    Four of them pass over all scores in memory; hence "memory-bandwidth", too. That each step reads its loss is seen
    easily, and costs little.
    """
    width, rows, room, kinds = size(768, 32), size(24, 2), size(1024, 8), size(16_384, 32)
    fused, heads, deep = variant == AFTER, size(12, 2), size(6, 1)
    layers = on_device(lambda: nn.ModuleList(Visits(width, heads, 0.1, fused=fused) for _ in range(deep))).train()
    names = on_device(lambda: nn.Embedding(kinds, width), seed=1)
    ages, head = on_device(lambda: nn.Linear(1, width), seed=2), on_device(lambda: nn.Linear(width, 12), seed=3)
    model = nn.ModuleList([layers, names, ages, head])
    optimizer = adamw(model)
    ids, old = tokens(kinds, rows, room), torch.rand(rows, room, 1, device=DEVICE).cumsum(1) / room
    lengths = torch.linspace(room // 2, room, rows, device=DEVICE).long()
    real = (torch.arange(room, device=DEVICE) < lengths[:, None])[:, None, None]
    later = (torch.rand(rows, 12, device=DEVICE) > 0.9).float()

    def step() -> float:
        with mixed():
            x = names(ids) + ages(old)
            for layer in layers:
                x = layer(x, real)
            loss = functional.binary_cross_entropy_with_logits(head(x[:, 0]).float(), later)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


class NormByFormula(nn.LayerNorm):
    """LayerNorm, line by line."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., width]."""
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(spread + self.eps)) + self.bias


class GeluByFormula(nn.Module):
    """GELU, as the paper approximates it."""

    def forward(self, x: Tensor) -> Tensor:
        """Any numbers."""
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class Residues(nn.Module):
    """A layer of a model of proteins, or of prefixes, which has a mask."""

    def __init__(self, width: int, heads: int, *, written: bool) -> None:
        super().__init__()
        self.heads = heads
        make = NormByFormula if written else nn.LayerNorm
        self.norms = nn.ModuleList(make(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bend = GeluByFormula() if written else nn.GELU("tanh")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(self.bend(self.wide(self.norms[1](x))))


@pair(
    "unfused-chain", "proteins", "nn.LayerNorm and nn.GELU('tanh') instead of their formulas", TWENTY_SEVENTH,
    accept=("memory-bandwidth",), steps=(2, 2),
)  # fmt: skip
def protein_layers_by_formula(variant: str) -> Step:
    """A model of proteins (10 × 1,024) learns from 32 chains of 512 residues; LayerNorm and GELU are formulas.

    Each of their lines is a pass over memory, in fp32; hence "memory-bandwidth", too.
    """
    width, heads, deep, kinds, written = size(1024, 32), size(16, 2), size(10, 1), 32, variant == BEFORE
    layers = on_device(lambda: nn.Sequential(*(Residues(width, heads, written=written) for _ in range(deep)))).train()
    names = on_device(lambda: nn.Embedding(kinds, width), seed=1)
    head = on_device(lambda: nn.Linear(width, kinds), seed=2)
    ids, wanted = (tokens(kinds, size(32, 2), size(512, 8)) for _ in range(2))
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids))).flatten(0, 1).float(), wanted.flatten()),
        adamw(nn.ModuleList([layers, names, head])),
    )


@pair(
    "padded-work", "tagging", "padding='longest': texts have at most 104 tokens", TWENTY_SEVENTH,
    library="transformers", inference=True, steps=(3, 2),
)  # fmt: skip
def tickets_padded_to_the_limit(variant: str) -> Step:
    """A BERT (12 × 768, bf16) finds names in 128 tickets of 24 to 104 tokens, which padding='max_length' makes 512.

    That the tags are read as lists is seen easily, and costs little.
    """
    room, longest = size(512, 24), size(104, 6)
    config = transformers.BertConfig(
        vocab_size=size(28_996, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_labels=9,
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=room,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForTokenClassification(config), HALF).eval()
    lengths = [int(length) for length in torch.linspace(longest // 4, longest, size(128, 3))]
    texts = [torch.randint(1, config.vocab_size, (length,)) for length in lengths]
    wide = room if variant == BEFORE else longest

    def step() -> list[list[int]]:
        filled = torch.zeros(len(texts), wide, dtype=torch.long, pin_memory=CUDA)
        for row, text in zip(filled, texts, strict=True):
            row[: len(text)] = text
        ids = filled.to(DEVICE, non_blocking=True)
        tags = model(input_ids=ids, attention_mask=(ids > 0).long()).logits.argmax(-1).tolist()
        return [row[:length] for row, length in zip(tags, lengths, strict=True)]

    return step


Past = tuple[Tensor, Tensor]


class Completing(nn.Module):
    """A layer of a decoder that is given what was before, and gives it back with what is new."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.wide = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.narrow = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, past: Past, place: int | None) -> tuple[Tensor, Past]:
        """The next token [rows, 1, width], the past [rows, places, heads, narrow], where to write, if anywhere."""
        y = self.norms[0](x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        if place is None:
            past = torch.cat((past[0], k), dim=1), torch.cat((past[1], v), dim=1)
            keys, values = past
        else:
            past[0][:, place], past[1][:, place] = k[:, 0], v[:, 0]
            keys, values = past[0][:, : place + 1], past[1][:, : place + 1]
        seen = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, keys, values)))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.wide(y)), past


@pair(
    "growing-cache", "decoding", "keys and values are written into tensors made beforehand", TWENTY_SEVENTH,
    inference=True, steps=(2, 2),
)  # fmt: skip
def completions_return_their_past(variant: str) -> Step:
    """A model of programs (8 × 2,048, bf16) adds 4 tokens to 32 files of 4,000; each layer returns past and new by cat.

    That each token is read, to look for the end, is seen easily, and costs little.
    """
    width, heads, rows, begun, count = size(2048, 32), size(16, 2), size(32, 2), size(4000, 8), size(4, 3)
    words = size(32_768, 64)
    layers = on_device(lambda: nn.ModuleList(Completing(width, heads) for _ in range(size(8, 1))), HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2)
    more = count if variant == AFTER else 0
    first = tokens(words, rows, 1)
    kept: list[Past] = []
    for _ in layers:
        k, v = (torch.randn(rows, begun, heads, width // heads, device=DEVICE, dtype=HALF) for _ in range(2))
        kept.append((functional.pad(k, (0, 0, 0, 0, 0, more)), functional.pad(v, (0, 0, 0, 0, 0, more))))

    def step() -> list[list[int]]:
        ids, past, made = first, list(kept), []
        for index in range(count):
            x = names(ids)
            for number, layer in enumerate(layers):
                x, past[number] = layer(x, past[number], begun + index if variant == AFTER else None)
            ids = head(x).argmax(-1)
            made.append(ids[:, 0].tolist())
        return made

    return step


class Ahead(nn.Module):
    """A layer over patches of a series, which sees what was before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, kept: Tensor | None, start: int) -> Tensor:
        """Patches [rows, patches, width], from a start on; room for keys and values [2, rows, heads, room, narrow]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if kept is not None:
            end = start + x.shape[1]
            kept[0, :, :, start:end] = k
            kept[1, :, :, start:end] = v
            k, v = kept[0, :, :, :end], kept[1, :, :, :end]
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=start == 0)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "recomputation", "time series", "keys and values of patches that were seen are kept", TWENTY_SEVENTH,
    inference=True, steps=(1, 1),
)  # fmt: skip
def load_forecast_from_the_start(variant: str) -> Step:
    """A forecaster of patches (8 × 768, bf16) tells 8 patches after 768 of 64 series; each takes the series anew."""
    width, heads, patch = size(768, 32), size(12, 2), 32
    rows, seen, ahead = size(64, 2), size(768, 6), size(8, 3)
    layers = on_device(lambda: nn.ModuleList(Ahead(width, heads) for _ in range(size(8, 1))), HALF).eval()
    names, head = (
        on_device(lambda: nn.Linear(patch, width), HALF, 1),
        on_device(lambda: nn.Linear(width, patch), HALF, 2),
    )
    places = torch.randn(seen + ahead, width, device=DEVICE, dtype=HALF) / 8
    series = torch.randn(rows, seen, patch, device=DEVICE, dtype=HALF)
    room = torch.zeros(len(layers), 2, rows, heads, seen + ahead, width // heads, device=DEVICE, dtype=HALF)

    def told(patches: Tensor, start: int, kept: Tensor | None) -> Tensor:
        x = names(patches) + places[start : start + patches.shape[1]]
        for index, layer in enumerate(layers):
            x = layer(x, None if kept is None else kept[index], start)
        return head(x[:, -1:])

    def again() -> Tensor:
        known = series
        for _ in range(ahead):
            known = torch.cat([known, told(known, 0, None)], 1)
        return known[:, seen:]

    def onward() -> Tensor:
        made = [told(series, 0, room)]
        for index in range(ahead - 1):
            made.append(told(made[-1], seen + index, room))
        return torch.cat(made, 1)

    return again if variant == BEFORE else onward


@pair(
    "unused-gradients", "speech", "torch.no_grad() around the encoder, which does not learn", TWENTY_SEVENTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def moods_over_an_encoder_that_stays(variant: str) -> Step:
    """A small head learns moods of 32 recordings of five seconds from a data2vec encoder (12 × 768).

    The optimizer has the weights of the head alone; the encoder is in eval(), but gets gradients. That loss and hits
    are read in each step is seen easily, and costs little.
    """
    config = transformers.Data2VecAudioConfig(
        hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), conv_dim=(size(512, 16),) * 7, num_conv_pos_embeddings=size(5, 2),
        num_conv_pos_embedding_groups=size(16, 2), vocab_size=32,
    )  # fmt: skip
    encoder = on_device(lambda: transformers.Data2VecAudioModel(config)).eval()
    moods = 7
    head = on_device(
        lambda: nn.Sequential(nn.Linear(config.hidden_size, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, moods)),
        seed=1,
    ).train()
    optimizer = adamw(head)
    sounds = torch.randn(size(32, 2), size(80_000, 1600), device=DEVICE)
    labels = tokens(moods, len(sounds))

    def step() -> tuple[float, float]:
        with mixed():
            with torch.set_grad_enabled(variant == BEFORE):
                features = encoder(sounds).last_hidden_state.mean(1)
            scores = head(features)
            loss = functional.cross_entropy(scores.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), (scores.argmax(-1) == labels).float().mean().item()

    return step


@pair(
    "host-stall", "scoring", "the mask is made on the GPU, from the lengths", TWENTY_SEVENTH,
    accept=("blocking-copy",), inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def prefix_masks_from_the_host(variant: str) -> Step:
    """A prefix language model (10 × 1,024, bf16) scores 12 answers; each step makes the mask (12 × 1,024²) on the CPU.

    It is then copied as well; hence "blocking-copy", too.
    """
    width, rows, room, words, answer = size(1024, 32), size(12, 2), size(1024, 12), size(16_384, 64), size(64, 4)
    layers = on_device(
        lambda: nn.ModuleList(Residues(width, size(16, 2), written=False) for _ in range(size(10, 1))), HALF
    ).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    ids = tokens(words, rows, room)
    prefixes = [room // 4 + (37 * row) % (room // 2) for row in range(rows)]
    lengths = [room - (11 * row) % (room // 8) for row in range(rows)]

    def mask_on(device: torch.device) -> Tensor:
        prefix, length = (torch.tensor(values)[:, None, None].to(device) for values in (prefixes, lengths))
        places = torch.arange(room, device=device)
        seen = (places[None, :] <= places[:, None]) | (places < prefix)
        bias = torch.zeros(rows, room, room, device=device)
        return bias.masked_fill(~(seen & (places < length)), float("-inf"))

    def step() -> Tensor:
        mask = mask_on(torch.device("cpu") if variant == BEFORE else DEVICE).to(DEVICE)[:, None].to(HALF)
        x = names(ids)
        for layer in layers:
            x = layer(x, mask)
        scores = x[:, -answer - 1 : -1] @ names.weight.T
        return -functional.cross_entropy(scores.flatten(0, 1).float(), ids[:, -answer:].flatten(), reduction="none")

    return step


@healthy("training", TWENTY_SEVENTH, library="transformers", compiles=True, steps=(2, 2))
def healthy_helium_training(variant: str) -> Step:
    """A Helium (6 × 2,560) learns 12 texts of 1,024: mixed precision, layers compiled, fused AdamW, loss compiled."""
    config = transformers.HeliumConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2560, 32), intermediate_size=size(7040, 64), use_cache=False,
        num_hidden_layers=size(6, 1), num_attention_heads=size(20, 2), num_key_value_heads=size(20, 2),
        head_dim=size(128, 16), pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, surprise = on_device(lambda: transformers.HeliumForCausalLM(config)).train(), Surprise()
    compiled([*model.model.layers, surprise])
    ids = tokens(config.vocab_size, size(12, 2), size(1024, 8))
    return training(lambda: surprise(model(input_ids=ids).logits, ids), adamw(model))


class Surprise(nn.Module):
    """How little the next words were expected."""

    def forward(self, told: Tensor, wanted: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        return functional.cross_entropy(told[:, :-1].flatten(0, 1).float(), wanted[:, 1:].flatten())


@healthy("prefill", TWENTY_SEVENTH, library="transformers", compiles=True, inference=True, steps=(2, 2))
def healthy_long_arcee_prefill(variant: str) -> Step:
    """An Arcee (4 × 6,144, bf16, layers compiled) reads one prompt of 8,192 tokens, and tells the next one alone."""
    config = transformers.ArceeConfig(
        vocab_size=size(65_536, 64), hidden_size=size(6144, 32), intermediate_size=size(24_576, 64), use_cache=False,
        num_hidden_layers=size(4, 1), num_attention_heads=size(48, 2), num_key_value_heads=size(8, 1),
        max_position_embeddings=size(16_384, 64), bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = on_device(lambda: transformers.ArceeForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, 1, size(8192, 12))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits.argmax(-1)
