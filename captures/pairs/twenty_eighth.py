"""The twenty-eighth set: loops of official examples; dialogues, translations, texts, cells, tables, control."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from pairs.parts import CUDA, DEVICE, HALF, Block, adamw, compiled, mixed, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_EIGHTH, Step, healthy, pair

__all__: list[str] = []


class Chatbot(nn.Module):
    """The networks of PyTorch's chatbot tutorial: two GRUs, and Luong's attention between them."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.names = nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, 2, bidirectional=True)
        self.decoder = nn.GRU(width, width, 2)
        self.concat, self.out = nn.Linear(2 * width, width), nn.Linear(width, words)

    def encode(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Questions [places, rows] → states [places, rows, width], the last ones [2, rows, width]."""
        states, last = self.encoder(self.names(ids))
        return states[..., : self.width] + states[..., self.width :], last[:2].contiguous()

    def decode(self, ids: Tensor, hidden: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Words [places, rows], of one place or of more → scores [places, rows, words], states [2, rows, width]."""
        told, hidden = self.decoder(self.names(ids), hidden)
        weights = torch.einsum("trh,srh->rts", told, states).softmax(-1)
        context = torch.einsum("rts,srh->trh", weights, states)
        return self.out(torch.tanh(self.concat(torch.cat([told, context], -1)))), hidden


@pair(
    "launch-overhead", "dialogue", "all words of the answers go through decoder and loss in one call", TWENTY_EIGHTH,
    accept=("small-kernels",), steps=(2, 1),
)  # fmt: skip
def chatbot_tutorial(variant: str) -> Step:
    """The loop of PyTorch's chatbot tutorial (GRUs of 512): 64 answers of 24 words, teacher forcing, a call a word."""
    words, width, rows, room = size(7824, 32), size(512, 16), size(64, 2), size(24, 4)
    model = on_device(lambda: Chatbot(words, width)).train()
    optimizer = adamw(model)
    questions, answers = tokens(words, room, rows), tokens(words, room + 1, rows)

    def word_by_word(states: Tensor, hidden: Tensor) -> Tensor:
        loss = torch.zeros((), device=DEVICE)
        for place in range(room):
            told, hidden = model.decode(answers[place : place + 1], hidden, states)
            loss = loss + functional.cross_entropy(told[0].float(), answers[place + 1])
        return loss / room

    def at_once(states: Tensor, hidden: Tensor) -> Tensor:
        told, _ = model.decode(answers[:-1], hidden, states)
        return functional.cross_entropy(told.flatten(0, 1).float(), answers[1:].flatten())

    def step() -> None:
        with mixed():
            states, hidden = model.encode(questions)
            loss = word_by_word(states, hidden) if variant == BEFORE else at_once(states, hidden)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Critic(nn.Module):
    """A network that tells what an action is worth."""

    def __init__(self, narrow: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(narrow, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """States and actions [rows, narrow] → [rows]."""
        return self.layers(x)[:, 0]


class ListedCritics(nn.Module):
    """Critics in a list."""

    def __init__(self, count: int, narrow: int, width: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(Critic(narrow, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """States and actions [rows, narrow] → [critics, rows]."""
        return torch.stack([critic(x) for critic in self.critics])


class StackedCritics(nn.Module):
    """Critics whose weights are stacked."""

    def __init__(self, count: int, narrow: int, width: int) -> None:
        super().__init__()
        sizes = [(narrow, width), (width, width), (width, 1)]
        self.weights = nn.ParameterList(torch.randn(count, a, b) / a**0.5 for a, b in sizes)
        self.biases = nn.ParameterList(torch.zeros(count, 1, b) for _, b in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """States and actions [rows, narrow] → [critics, rows]."""
        y = x.expand(self.weights[0].shape[0], *x.shape)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = torch.baddbmm(bias, functional.relu(y) if index else y, weight)
        return y[..., 0]


@pair(
    "launch-overhead", "reinforcement", "the weights of the ten critics are stacked: torch.baddbmm", TWENTY_EIGHTH,
    accept=("small-kernels", "per-expert-loop"), steps=(2, 1),
)  # fmt: skip
def continuous_control_update(variant: str) -> Step:
    """REDQ's update: ten critics (256 wide) learn from four batches of 256 transitions, as nn.ModuleList.

    The lists of weights are passed to fused AdamW and torch._foreach_lerp_.
    """
    states, actions, rows, count = size(376, 8), size(16, 2), size(256, 4), size(10, 3)
    make = ListedCritics if variant == BEFORE else StackedCritics
    critics, targets = (on_device(lambda: make(count, states + actions, size(256, 16))) for _ in range(2))
    actor = on_device(lambda: nn.Sequential(nn.Linear(states, 256), nn.ReLU(), nn.Linear(256, actions), nn.Tanh()))
    optimizer = adamw(critics)
    online, slow = list(critics.parameters()), list(targets.parameters())
    before, after = (torch.randn(4, rows, states, device=DEVICE) for _ in range(2))
    acted, rewards = torch.rand(4, rows, actions, device=DEVICE), torch.randn(4, rows, device=DEVICE)

    def step() -> None:
        for index in range(4):
            with torch.no_grad():
                promised = targets(torch.cat([after[index], actor(after[index])], -1))
                wanted = rewards[index] + 0.99 * promised[:2].amin(0)
            told = critics(torch.cat([before[index], acted[index]], -1))
            functional.mse_loss(told, wanted.expand_as(told)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_lerp_(slow, online, 0.005)

    return step


@pair(
    "host-sync", "retrieval", "the candidates' tokens are gathered at once, behind a mask", TWENTY_EIGHTH,
    library="transformers", accept=("launch-overhead", "small-kernels"), inference=True, steps=(2, 1),
)  # fmt: skip
def late_interaction_reranking(variant: str) -> Step:
    """A ColBERT (BERT of 12 × 768, bf16) asks 8 queries, and scores 48 documents for each by their best tokens.

    Where a document begins and ends is known to the GPU, and cuts its tokens out of the index. What a document takes is
    little, so that its kernels are small, and many: hence the other two findings, too.
    """
    narrow, queries, chosen, documents = size(128, 8), size(8, 2), size(48, 3), size(20_000, 16)
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False), HALF).eval()
    project = on_device(lambda: nn.Linear(config.hidden_size, narrow, bias=False), HALF, 1)
    lengths = torch.randint(size(40, 2), size(180, 6), (documents,), device=DEVICE)
    ends = lengths.cumsum(0)
    starts = ends - lengths
    index = functional.normalize(torch.randn(int(lengths.sum()), narrow, device=DEVICE, dtype=HALF), dim=-1)
    longest = int(lengths.max())
    ids = tokens(config.vocab_size, queries, size(32, 4))
    candidates = [torch.randperm(documents, device=DEVICE)[:chosen] for _ in range(queries)]
    offsets = torch.arange(longest, device=DEVICE)

    def one_by_one(asked: Tensor) -> Tensor:
        scores = []
        for query, found in zip(asked, candidates, strict=True):
            for start, end in zip(starts[found], ends[found], strict=True):
                scores.append((query @ index[start:end].T).amax(-1).sum())
        return torch.stack(scores).view(queries, chosen)

    def at_once(asked: Tensor) -> Tensor:
        found = torch.stack(candidates)
        places = (starts[found][..., None] + offsets).clamp(max=len(index) - 1)
        told = torch.einsum("qwn,qctn->qcwt", asked, index[places])
        told = told.masked_fill(offsets >= lengths[found][:, :, None, None], -1.0)
        return told.amax(-1).sum(-1)

    def step() -> Tensor:
        asked = functional.normalize(project(model(input_ids=ids).last_hidden_state), dim=-1)
        scores = one_by_one(asked) if variant == BEFORE else at_once(asked)
        return scores.topk(3).indices

    return step


class Infilled(Dataset[tuple[Tensor, Tensor]]):
    """Texts in which spans of words are replaced by one mask (M. Lewis et al., 2019)."""

    def __init__(self, words: int, room: int) -> None:
        self.words, self.room = words, room
        self.texts = np.random.default_rng(0).integers(5, words, (4096, room))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        drawn, text = np.random.default_rng(index), self.texts[index % len(self.texts)]
        kept, place = np.ones(self.room, dtype=np.int64), 0
        length = 0
        while place < self.room:
            if drawn.random() < 0.12:
                kept[length] = 4
                place += max(int(drawn.poisson(3.0)), 1)
            else:
                kept[length] = text[place] if drawn.random() > 0.02 else drawn.integers(5, self.words)
                place += 1
            length += 1
        return torch.from_numpy(kept), torch.from_numpy(text)


class Pretraining:
    """A step on what a loader gives, and the end of its workers."""

    def __init__(self, model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
        self.model, self.optimizer = model, adamw(model)
        self.batches: Iterator[list[Tensor]] = iter(loader)

    def __call__(self) -> None:
        """One step."""
        ids, labels = (part.to(DEVICE, non_blocking=True) for part in next(self.batches))
        with mixed():
            loss = self.model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Ends the workers."""
        del self.batches


@pair(
    "host-stall", "training", "DataLoader(num_workers=10) draws the spans, not the loop itself", TWENTY_EIGHTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def denoising_pretraining(variant: str) -> Step:
    """A small BART (3 + 3 × 512) learns to fill in spans of 128 texts of 256 words; its dataset draws them in NumPy."""
    words, room = size(16_384, 64), size(256, 12)
    config = transformers.BartConfig(
        vocab_size=words, d_model=size(512, 32), encoder_layers=size(3, 1), decoder_layers=size(3, 1),
        encoder_attention_heads=size(8, 2), decoder_attention_heads=size(8, 2), encoder_ffn_dim=size(2048, 64),
        decoder_ffn_dim=size(2048, 64), max_position_embeddings=room, dropout=0.1,
    )  # fmt: skip
    model = on_device(lambda: transformers.BartForConditionalGeneration(config)).train()
    workers = 0 if variant == BEFORE else size(10, 1)
    loader = DataLoader(Infilled(words, room), size(128, 2), num_workers=workers, pin_memory=CUDA, drop_last=True)
    return Pretraining(model, loader)


class Columns(nn.Module):
    """FT-Transformer (Y. Gorishniy et al., 2021): each column of a table is a token."""

    def __init__(self, columns: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.weights, self.biases = (nn.Parameter(torch.randn(columns, width) / width**0.5) for _ in range(2))
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, columns] → [rows]."""
        named = torch.addcmul(self.biases, x[..., None], self.weights)
        x = self.blocks(torch.cat([self.first.expand(len(x), -1, -1), named], 1))
        return self.head(self.norm(x[:, 0]))[:, 0]


@pair("precision", "tables", "torch.autocast('cuda', torch.bfloat16) around the model", TWENTY_EIGHTH, steps=(3, 2))
def house_prices(variant: str) -> Step:
    """An FT-Transformer (4 × 256) learns prices from 1,024 houses of 95 columns, as its authors' notebook does."""
    columns, rows = size(95, 7), size(1024, 4)
    model = on_device(lambda: Columns(columns, size(256, 16), size(8, 2), size(4, 1))).train()
    x, prices = torch.randn(rows, columns, device=DEVICE), torch.randn(rows, device=DEVICE)
    return training(
        lambda: functional.mse_loss(model(x).float(), prices), adamw(model), mixed=variant == AFTER
    )  # fmt: skip


@pair(
    "misaligned-shape", "translation", "resize_token_embeddings(pad_to_multiple_of=8): 256,208 words", TWENTY_EIGHTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def translation_finetuning(variant: str) -> Step:
    """An NLLB (3 + 3 × 1,024) of 256,206 words is tuned with 48 pairs of sentences of 128 words: mixed precision."""
    words = size(256_206, 102) if variant == BEFORE else size(256_208, 104)
    config = transformers.M2M100Config(
        vocab_size=words, d_model=size(1024, 32), encoder_layers=size(3, 1), decoder_layers=size(3, 1),
        encoder_attention_heads=size(16, 2), decoder_attention_heads=size(16, 2), encoder_ffn_dim=size(4096, 64),
        decoder_ffn_dim=size(4096, 64), encoder_layerdrop=0.0, decoder_layerdrop=0.0, max_position_embeddings=256,
    )  # fmt: skip
    model = on_device(lambda: transformers.M2M100ForConditionalGeneration(config)).train()
    ids, labels = (tokens(size(256_000, 90), size(48, 2), size(128, 8)) + 4 for _ in range(2))
    return training(lambda: model(input_ids=ids, labels=labels, use_cache=False).loss, adamw(model))


@pair(
    "padded-work", "cells", "cells are padded to the longest of their batch, 704 genes", TWENTY_EIGHTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def cell_typing(variant: str) -> Step:
    """A Geneformer (BERT of 8 × 512) is tuned to tell the types of 24 cells, whose 180 to 704 genes are made 2,048."""
    room, longest = size(2048, 24), size(704, 8)
    config = transformers.BertConfig(
        vocab_size=size(25_432, 64), hidden_size=size(512, 32), num_hidden_layers=size(8, 1), num_labels=16,
        num_attention_heads=size(8, 2), intermediate_size=size(2048, 64), max_position_embeddings=room,
        hidden_dropout_prob=0.02, attention_probs_dropout_prob=0.02,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForSequenceClassification(config)).train()
    lengths = torch.linspace(longest // 4, longest, size(24, 3), device=DEVICE).long()
    wide = room if variant == BEFORE else longest
    real = (torch.arange(wide, device=DEVICE) < lengths[:, None]).long()
    ids = (tokens(config.vocab_size - 1, len(lengths), wide) + 1) * real
    labels = tokens(16, len(lengths))
    return training(lambda: model(input_ids=ids, attention_mask=real, labels=labels).loss, adamw(model))


class Speedrun(nn.Module):
    """A language model whose matrices are square, or four squares."""

    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.names, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Sprint(width, heads) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [rows, places] → scores [rows, places, words]."""
        x = self.names(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(functional.rms_norm(x, x.shape[-1:]))


class Sprint(nn.Module):
    """A layer: attention and a network with squared ReLU, norms without weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        y = functional.rms_norm(x, x.shape[-1:])
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.relu(self.wide(functional.rms_norm(x, x.shape[-1:]))).square())


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [matrices, high, wide] made nearly orthogonal, in five steps of Newton and Schulz."""
    is_high = x.shape[1] > x.shape[2]
    x = (x.mT if is_high else x).to(HALF)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.mT if is_high else x


class Muon:
    """Muon (K. Jordan et al., 2024), over matrices of a shape at once, or one after the other."""

    def __init__(self, matrices: list[nn.Parameter], *, stacked: bool) -> None:
        self.groups: list[list[nn.Parameter]] = [[matrix] for matrix in matrices]
        if stacked:
            ordered = sorted(matrices, key=lambda matrix: tuple(matrix.shape))
            self.groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda m: tuple(m.shape))]
        self.kept = [[torch.zeros_like(matrix) for matrix in group] for group in self.groups]

    @torch.no_grad()
    def step(self) -> None:
        """One step; gradients are forgotten."""
        for group, kept in zip(self.groups, self.kept, strict=True):
            torch._foreach_lerp_(kept, [matrix.grad for matrix in group], 0.05)
            told = orthogonal(torch.stack(kept)).float().unbind()
            torch._foreach_add_(group, told, alpha=-0.02 * max(1.0, group[0].shape[0] / group[0].shape[1]) ** 0.5)
            for matrix in group:
                matrix.grad = None


@pair(
    "unfused-optimizer", "training", "Muon takes matrices of one shape together, as a stack", TWENTY_EIGHTH,
    accept=("small-kernels", "launch-overhead"), steps=(2, 1),
)  # fmt: skip
def gpt_speedrun(variant: str) -> Step:
    """A GPT (12 × 768) learns 4 texts of 1,024 as in the speedruns: Muon for the matrices, fused AdamW for words.

    That its products are small and many says the same; hence the other two findings, too.
    """
    words = size(50_304, 64)
    model = on_device(lambda: Speedrun(words, size(768, 32), size(12, 2), size(12, 2))).train()
    muon = Muon(list(model.layers.parameters()), stacked=variant == AFTER)
    rest = torch.optim.AdamW([model.names.weight, model.head.weight], lr=1e-4, fused=True)
    ids = tokens(words, size(4, 2), size(1024, 8) + 1)

    def step() -> None:
        with mixed():
            told = model(ids[:, :-1])
            loss = functional.cross_entropy(told.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        muon.step()
        rest.step()
        rest.zero_grad(set_to_none=True)

    return step


@healthy("training", TWENTY_EIGHTH, compiles=True, steps=(2, 2))
def healthy_wide_gpt_training(variant: str) -> Step:
    """A GPT (6 × 2,560, 20 heads) learns 8 texts of 1,024: mixed precision, layers compiled, fused AdamW."""
    width, words = size(2560, 32), size(32_768, 64)
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(20, 2), causal=True) for _ in range(size(6, 1)))))
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), seed=1)
    head = on_device(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False)), seed=2)
    ids = tokens(words, size(8, 2), size(1024, 8) + 1)
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids[:, :-1]))).flatten(0, 1), ids[:, 1:].flatten()),
        adamw(nn.ModuleList([layers, names, head])),
    )


@healthy("tables", TWENTY_EIGHTH, steps=(2, 2))
def healthy_wide_autoencoder(variant: str) -> Step:
    """An autoencoder (8,192 → 12,288 → 2,048 and back) learns from 16,384 rows: mixed precision, fused AdamW."""
    wide, hidden, narrow = size(8192, 32), size(12_288, 48), size(2048, 16)
    model = on_device(
        lambda: nn.Sequential(
            nn.Linear(wide, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, narrow), nn.ReLU(inplace=True),
            nn.Linear(narrow, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, wide),
        )
    ).train()  # fmt: skip
    x = torch.randn(size(16_384, 4), wide, device=DEVICE, dtype=HALF)
    return training(lambda: functional.mse_loss(model(x), x), adamw(model))


class Streamed:
    """Scores of batches in pinned memory: the next one is copied while the last one is scored."""

    def __init__(self, model: nn.Module, batches: list[Tensor], kinds: int) -> None:
        self.model, self.batches, self.count = model, batches, 0
        self.places = [batch.to(DEVICE) for batch in batches]
        self.told = torch.empty(len(batches[0]), kinds, dtype=HALF, pin_memory=CUDA)
        if CUDA:
            self.stream = torch.cuda.Stream()
            self.arrived, self.used = ([torch.cuda.Event() for _ in batches] for _ in range(2))

    def __call__(self) -> Tensor:
        """One batch, and the copy of the one after the next."""
        at = self.count % len(self.batches)
        self.count += 1
        if CUDA:
            torch.cuda.current_stream().wait_event(self.arrived[at])
        self.told.copy_(self.model(self.places[at].to(HALF)), non_blocking=True)
        if CUDA:
            self.used[at].record()
            self.stream.wait_event(self.used[at])
            with torch.cuda.stream(self.stream):
                self.places[at].copy_(self.batches[at], non_blocking=True)
                self.arrived[at].record()
        else:
            self.places[at].copy_(self.batches[at])
        return self.told


@healthy("scoring", TWENTY_EIGHTH, inference=True, steps=(3, 3))
def healthy_streamed_features(variant: str) -> Step:
    """A network (3 × 8,192, bf16) scores 16,384 rows of bytes, while the next ones come from pinned memory."""
    width, rows, kinds = size(8192, 32), size(16_384, 4), 64
    model = on_device(
        lambda: nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True),
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, kinds),
        ),
        HALF,
    ).eval()  # fmt: skip
    batches = [torch.randint(0, 255, (rows, width), dtype=torch.uint8) for _ in range(2)]
    return Streamed(model, [batch.pin_memory() if CUDA else batch for batch in batches], kinds)
