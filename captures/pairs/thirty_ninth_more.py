"""The thirty-ninth set, scripts about language, search, shops, tables, graphs, series, preferences and proteins."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    Block,
    adamw,
    as_graph,
    compiled,
    mixed,
    on_device,
    seeded,
    size,
    tokens,
)
from pairs.registry import AFTER, BEFORE, THIRTY_NINTH, Step, healthy, pair

__all__: list[str] = []


@pair(
    "unused-results", "retrieval", "model(input_ids=ids, logits_to_keep=1): scores of the last place only",
    THIRTY_NINTH, library="transformers", inference=True, compiles=True, steps=(4, 2),
)  # fmt: skip
def helpdesk_answer_judge(variant: str) -> Step:
    """A Gemma 3 of 270 million weights (bf16, layers compiled) judges 64 pairs of question and answer, 448 tokens each.

    How well an answer fits is the score of "yes" against that of "no" after the last token. The script is the one that
    is published with such rerankers: `model(**inputs).logits[:, -1]`. So the head computes 262,144 scores for each of
    the 28,672 places and writes 15 GB, of which 64 rows are read: more arithmetic than in all layers together.
    """
    rows, long = size(64, 2), size(448, 12)
    config = transformers.Gemma3TextConfig(
        vocab_size=size(262_144, 100), hidden_size=size(640, 32), intermediate_size=size(2048, 64),
        num_hidden_layers=size(18, 2), num_attention_heads=size(4, 2), num_key_value_heads=1,
        head_dim=size(256, 16), query_pre_attn_scalar=size(256, 16), sliding_window=512,
        max_position_embeddings=2048, attn_implementation="sdpa",
    )  # fmt: skip
    model = on_device(lambda: transformers.Gemma3ForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    seeded(1)
    ids = tokens(config.vocab_size, rows, long)
    yes, no = size(10_784, 7), size(1294, 3)
    kept = {} if variant == BEFORE else {"logits_to_keep": 1}

    def step() -> Tensor:
        scores = model(input_ids=ids, use_cache=False, **kept).logits[:, -1]
        return torch.stack((scores[:, no], scores[:, yes]), 1).float().log_softmax(1)[:, 1].exp()

    return step


class Recalling(nn.Module):
    """A layer of a causal transformer that adds a place to what it keeps."""

    def __init__(self, width: int, heads: int, rows: int, places: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        shape = (2, rows, heads, places, width // heads)
        self.register_buffer("kept", torch.randn(shape, dtype=HALF), persistent=False)

    def forward(self, x: Tensor, place: int) -> Tensor:
        """One place [rows, 1, width], which sees all places before it."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.kept[0, :, :, place : place + 1] = k
        self.kept[1, :, :, place : place + 1] = v
        keys, values = self.kept[:, :, :, : place + 1]
        seen = functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class Forecaster(nn.Module):
    """A decoder of patches: the values of the last patch → the next patch."""

    def __init__(self, patch: int, width: int, heads: int, depth: int, rows: int, places: int) -> None:
        super().__init__()
        self.first = nn.Linear(patch, width)
        self.layers = nn.ModuleList(Recalling(width, heads, rows, places) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, patch)

    def forward(self, patch: Tensor, place: int) -> Tensor:
        """Values [rows, 1, patch] → the values that follow them."""
        x = self.first(patch)
        for layer in self.layers:
            x = layer(x, place)
        return self.out(self.norm(x))


@pair(
    "recomputation", "decoding", "model.to(torch.bfloat16) when it is loaded, instead of autocast over float32 weights",
    THIRTY_NINTH, inference=True, accept=("unfused-chain", "precision"), steps=(3, 2),
)  # fmt: skip
def substation_load_forecast(variant: str) -> Step:
    """A decoder of 1.2 billion weights forecasts the load of 8 substations, six patches of 32 hours, in a CUDA graph.

    The checkpoint was trained in mixed precision, so its weights are float32, and inference has kept the training
    script's `torch.autocast`. With eight rows a patch is bound by reading weights; autocast reads all of them as
    float32, writes them as bf16 and reads these again, each time: 10 GB instead of 2.4 GB.
    """
    rows, patch, width, heads = size(8, 2), size(32, 4), size(2048, 32), size(16, 2)
    depth, known, told = size(24, 2), size(500, 5), size(6, 2)
    model = on_device(lambda: Forecaster(patch, width, heads, depth, rows, known + told)).eval()
    for layer in model.layers:
        layer.kept = layer.kept.to(HALF)
    if variant == AFTER:
        model = model.to(HALF)
    seeded(1)
    last = torch.randn(rows, 1, patch, device=DEVICE)

    def step() -> Tensor:
        values, series = last, []
        for index in range(told):
            with mixed():
                values = model(values, known + index)
            series.append(values.float())
        return torch.cat(series, 1)

    return as_graph(step)


@pair(
    "allocator-churn", "training", "torch.cuda.empty_cache() is no longer called after every step", THIRTY_NINTH,
    library="transformers", accept=("host-stall", "host-sync"), steps=(3, 2),
)  # fmt: skip
def court_ruling_summaries(variant: str) -> Step:
    """A BART-base (mixed precision, fused AdamW) learns to sum up 48 rulings of 512 tokens in 128.

    Somebody once ran out of memory on a smaller GPU, and has called torch.cuda.empty_cache() after each step since.
    All memory goes back to the driver, which waits for the GPU, and every activation of the next step is asked for
    anew by cudaMalloc: some hundreds of calls of a few tenths of a millisecond, in front of which the GPU runs dry.
    """
    rows, long, short = size(48, 2), size(512, 12), size(128, 6)
    config = transformers.BartConfig(
        vocab_size=size(50_265, 100), d_model=size(768, 32), encoder_layers=size(6, 1), decoder_layers=size(6, 1),
        encoder_attention_heads=size(12, 2), decoder_attention_heads=size(12, 2), encoder_ffn_dim=size(3072, 64),
        decoder_ffn_dim=size(3072, 64), attn_implementation="sdpa",
    )  # fmt: skip
    model = on_device(lambda: transformers.BartForConditionalGeneration(config)).train()
    optimizer = adamw(model)
    seeded(1)
    ids, labels = (torch.randint(5, config.vocab_size, (rows, places), device=DEVICE) for places in (long, short))

    def step() -> Tensor:
        with mixed():
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if variant == BEFORE and CUDA:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


@pair(
    "unused-gradients", "reinforcement", "with torch.no_grad() around the reference model", THIRTY_NINTH,
    library="transformers", compiles=True, steps=(2, 1),
)  # fmt: skip
def tutor_reply_preferences(variant: str) -> Step:
    """A language model of 360 million weights learns from 10 pairs of replies, one better, of 512 tokens each (DPO).

    The loss compares how the policy and a frozen reference rate the replies. The reference was put into eval(), which
    changes nothing about gradients, and its parameters are in no optimizer; but nothing tells autograd to leave it
    out, so the loss goes back through it as well, and the gradients of its weights add up for nobody.
    """
    pairs, long, reply = size(10, 1), size(512, 12), size(384, 8)
    config = transformers.LlamaConfig(
        vocab_size=size(49_152, 100), hidden_size=size(960, 32), intermediate_size=size(2560, 64),
        num_hidden_layers=size(32, 2), num_attention_heads=size(15, 2), num_key_value_heads=size(5, 1),
        max_position_embeddings=2048, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    policy = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    reference = on_device(lambda: transformers.LlamaForCausalLM(config), seed=1).eval()
    compiled([*policy.model.layers, *reference.model.layers])
    optimizer = adamw(policy)
    seeded(2)
    better_and_worse = tokens(config.vocab_size, 2 * pairs, long)
    replies = better_and_worse[:, -reply:]

    def rated(model: nn.Module) -> Tensor:
        scores = model(input_ids=better_and_worse, use_cache=False, logits_to_keep=reply + 1).logits[:, :-1]
        unlikely = functional.cross_entropy(scores.flatten(0, 1), replies.flatten(), reduction="none")
        return -unlikely.unflatten(0, replies.shape).sum(1)

    def step() -> Tensor:
        with mixed():
            told = rated(policy)
            with torch.set_grad_enabled(variant == BEFORE):
                usual = rated(reference)
            better, worse = (told - usual).chunk(2)
            loss = -functional.logsigmoid(0.1 * (better - worse)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Columns(nn.Module):
    """An FT-Transformer: each column of a table is a token."""

    def __init__(self, columns: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(0.1 * torch.randn(columns, width)) for _ in range(2))
        self.whole = nn.Parameter(0.1 * torch.randn(1, width))
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Rows [rows, columns], labels [rows] → the loss."""
        x = rows[..., None] * self.scale + self.shift
        x = self.layers(torch.cat((self.whole.expand(len(x), 1, -1), x), 1))
        told = self.out(self.norm(x[:, 0]))[:, 0]
        return functional.binary_cross_entropy_with_logits(told.float(), labels)


@pair(
    "host-stall", "tabular", "DataLoader(data, sampler=BatchSampler(RandomSampler(data), rows, True), "
    "batch_size=None): a batch is one indexing", THIRTY_NINTH, accept=("host-sync",), compiles=True,
)  # fmt: skip
def insurance_claim_tables(variant: str) -> Step:
    """An FT-Transformer (compiled, mixed precision, fused AdamW) learns from batches of 4,096 claims with 39 columns.

    The table is one tensor, in a TensorDataset; its DataLoader takes row after row, 4,096 small tensors twice, and
    stacks them again: tens of milliseconds of the host's processor for what one indexing of the table does. The GPU is
    done long before and waits.
    """
    rows, columns, all_rows = size(4096, 8), size(39, 5), size(300_000, 40)
    model = on_device(lambda: Columns(columns, size(256, 32), size(4, 2), size(3, 1))).train()
    compiled([model])
    optimizer = adamw(model)
    random = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(all_rows, columns, generator=random), torch.randint(0, 2, (all_rows,), generator=random).float()
    )
    order = RandomSampler(data, generator=torch.Generator().manual_seed(2))
    if variant == BEFORE:
        loader = DataLoader(data, rows, sampler=order, drop_last=True, pin_memory=CUDA)
    else:
        loader = DataLoader(data, sampler=BatchSampler(order, rows, True), batch_size=None, pin_memory=CUDA)

    def without_end() -> Iterator[list[Tensor]]:
        while True:
            yield from loader

    batches = without_end()

    def step() -> Tensor:
        shown, labels = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with mixed():
            loss = model(shown, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Paid(nn.Module):
    """A layer of a graph network: what a node's neighbours tell is summed up."""

    def __init__(self, width: int, *, early: bool) -> None:
        super().__init__()
        self.early = early
        self.tell = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.own, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, giver: Tensor, taker: Tensor, share: Tensor) -> Tensor:
        """Nodes [nodes, width], an edge's two ends and its weight [edges, 1]."""
        told = self.tell(x).index_select(0, giver) if self.early else self.tell(x.index_select(0, giver))
        heard = torch.zeros_like(x).index_add_(0, taker, told * share)
        return functional.relu(self.norm(x + self.own(x) + heard))


@pair(
    "recomputation", "graphs", "self.tell(x)[giver] instead of self.tell(x[giver]): once a node, not once an edge",
    THIRTY_NINTH, accept=("recomputation", "expanded-copies"), steps=(4, 2),
)  # fmt: skip
def card_payment_network(variant: str) -> Step:
    """A graph network of three layers (width 256, mixed precision) learns which of 200,000 accounts are fraud.

    The 2.4 million payments each carry a message, which a small MLP makes of the payer's state alone. As in many
    `message(self, x_j)` of PyTorch Geometric, it runs on the gathered rows, so that each account's message is computed
    once for each of its twelve payments, forward and backward, instead of once.
    """
    nodes, edges, width = size(200_000, 30), size(2_400_000, 100), size(256, 16)
    net = on_device(lambda: nn.ModuleList(Paid(width, early=variant == AFTER) for _ in range(3))).train()
    out = on_device(lambda: nn.Linear(width, 2), seed=1)
    optimizer = adamw(nn.ModuleList([net, out]))
    seeded(2)
    state, labels = torch.randn(nodes, width, device=DEVICE), tokens(2, nodes)
    giver, taker = tokens(nodes, edges), tokens(nodes, edges).sort().values
    share = torch.full((edges, 1), nodes / edges, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            x = state
            for layer in net:
                x = layer(x, giver, taker, share)
            loss = functional.cross_entropy(out(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Towers(nn.Module):
    """A tower of a listener and what they heard, and one of an episode."""

    def __init__(self, people: int, episodes: int, width: int, inner: int, *, sparse: bool) -> None:
        super().__init__()
        self.people = nn.Embedding(people, width, sparse=sparse)
        self.heard = nn.EmbeddingBag(episodes, width, mode="mean", sparse=sparse)
        self.episodes = nn.Embedding(episodes, width, sparse=sparse)
        self.listener, self.episode = (
            nn.Sequential(
                nn.Linear(before, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, 128)
            )
            for before in (2 * width, width)
        )

    def tables(self) -> list[nn.Parameter]:
        """Weights that are looked up."""
        return [self.people.weight, self.heard.weight, self.episodes.weight]

    def forward(self, person: Tensor, heard: Tensor, episode: Tensor) -> Tensor:
        """Ids [rows], [rows, places], [rows] → how each listener likes each episode of the batch."""
        listener = self.listener(torch.cat((self.people(person), self.heard(heard)), 1))
        told = self.episode(self.episodes(episode))
        return functional.normalize(listener, dim=1) @ functional.normalize(told, dim=1).T / 0.05


@pair(
    "scattered-access", "recommendation", "nn.Embedding(…, sparse=True), nn.EmbeddingBag(…, sparse=True)", THIRTY_NINTH,
    accept=("unused-gradients", "unfused-optimizer"), steps=(4, 2),
)  # fmt: skip
def podcast_episode_towers(variant: str) -> Step:
    """Two towers learn from 16,384 listeners and what they played next, with tables of 14 million rows of 64 numbers.

    A batch looks up little more than half a million rows. The tables' gradients are dense, nevertheless, as is the
    default of nn.Embedding: 3.6 GB of zeros, into which a few rows are written, and Adagrad reads and writes tables,
    sums and gradients as a whole in half a dozen kernels. With sparse gradients it touches the rows looked up, and as
    a gradient of zero leaves the sum of Adagrad and the weight as they were, it computes just the same.
    """
    rows, places = size(16_384, 6), size(32, 4)
    people, episodes, width = size(10_000_000, 60), size(2_000_000, 40), size(64, 8)
    net = on_device(lambda: Towers(people, episodes, width, size(1024, 16), sparse=variant == AFTER)).train()
    rest = [*net.listener.parameters(), *net.episode.parameters()]
    optimizers = (
        torch.optim.Adagrad(net.tables(), lr=0.01),
        torch.optim.AdamW(rest, lr=1e-4, fused=True),
    )
    seeded(1)
    person, heard, played = tokens(people, rows), tokens(episodes, rows, places), tokens(episodes, rows)
    own = torch.arange(rows, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            loss = functional.cross_entropy(net(person, heard, played), own)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Patches(nn.Module):
    """PatchTST: each channel by itself, its values cut into patches that overlap."""

    def __init__(self, long: int, patch: int, width: int, heads: int, depth: int, ahead: int) -> None:
        super().__init__()
        self.patch, count = patch, 2 * long // patch
        self.first, self.places = nn.Linear(patch, width), nn.Parameter(0.02 * torch.randn(count, width))
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(count * width, ahead)

    def forward(self, series: Tensor, future: Tensor) -> Tensor:
        """Values [rows, channels, places] and those that follow → the loss."""
        mean, spread = series.mean(-1, keepdim=True), series.std(-1, keepdim=True) + 1e-5
        x = functional.pad((series - mean) / spread, (0, self.patch // 2), "replicate").flatten(0, 1)
        x = self.first(x.unfold(-1, self.patch, self.patch // 2)) + self.places
        told = self.out(self.norm(self.layers(x)).flatten(1)).unflatten(0, series.shape[:2])
        return functional.mse_loss(told * spread + mean, future)


@healthy("time-series", THIRTY_NINTH, compiles=True)
def tram_ridership_patches(variant: str) -> Step:
    """A PatchTST/64 learns from 16 cuts of 321 stops' riders: all stops in one batch, compiled as a whole.

    Mixed precision, fused attention, fused AdamW, 330,000 tokens a step, the series on the GPU: it is busy all along.
    """
    rows, stops, long, ahead = size(16, 2), size(321, 3), size(512, 32), size(96, 8)
    model = on_device(
        lambda: Patches(long, size(16, 8), size(256, 32), size(4, 2), size(3, 1), ahead)
    ).train()  # fmt: skip
    compiled([model])
    optimizer = adamw(model)
    seeded(1)
    series = torch.randn(rows, stops, long + ahead, device=DEVICE)
    known, future = (part.contiguous() for part in series.split((long, ahead), -1))

    def step() -> Tensor:
        with mixed():
            loss = model(known, future)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Residues(nn.Module):
    """A layer as ESM C has it: places turn keys and queries, and a gate rules what is fed forward."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Residues [rows, places, width], turned by [places, width of a head]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (part * cos + torch.cat((-part.chunk(2, -1)[1], part.chunk(2, -1)[0]), -1) * sin for part in (q, k))
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, value = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * value)


@healthy("proteins", THIRTY_NINTH, inference=True, compiles=True)
def enzyme_family_embeddings(variant: str) -> Step:
    """An encoder as large as ESM C 600M (bf16, layers compiled) embeds 16 enzymes, each cut to 1,024 residues.

    No padding, fused attention without a mask, the average over residues taken on the GPU: matrix products take most.
    """
    rows, long, width, heads = size(16, 2), size(1024, 12), size(1152, 32), size(18, 2)
    depth, inner, letters = size(36, 2), size(3072, 64), size(64, 20)
    letter = on_device(lambda: nn.Embedding(letters, width), HALF).eval()
    layers = on_device(lambda: nn.ModuleList(Residues(width, heads, inner) for _ in range(depth)), HALF, seed=1).eval()
    norm = on_device(lambda: nn.LayerNorm(width), HALF, seed=2)
    compiled(layers)
    seeded(3)
    ids = tokens(letters, rows, long)
    half = width // heads // 2
    turned = torch.arange(long, device=DEVICE)[:, None] * 10_000.0 ** -(torch.arange(half, device=DEVICE) / half)
    cos, sin = (part.repeat(1, 2).to(HALF) for part in (turned.cos(), turned.sin()))

    def step() -> Tensor:
        x = letter(ids)
        for layer in layers:
            x = layer(x, cos, sin)
        return norm(x).mean(1).float()

    return step
