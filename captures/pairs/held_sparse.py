"""Graphs, recommendation and small pieces of work, of the third set."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, THIRD, Step, healthy, pair


class Interactions(nn.Module):
    """Messages of both ends of each edge, added up at its target."""

    def __init__(self, width: int, *, by_index: bool) -> None:
        super().__init__()
        self.by_index = by_index
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(width, width)

    def picked(self, x: Tensor, index: Tensor) -> Tensor:
        """The rows of x at these places."""
        return x[index] if self.by_index else x.index_select(0, index)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """X [nodes, width], source and target [edges]."""
        ends = torch.cat([self.picked(x, source), self.picked(x, target)], -1)
        sent = functional.relu(self.message(ends))
        return x + self.update(torch.zeros_like(x).index_add(0, target, sent.to(x.dtype)))


@pair(
    "scattered-access", "graph", "x.index_select(0, index) instead of x[index], whose gradient sorts", THIRD,
    with_stack=True, also_after=True,
)  # fmt: skip
def interactions_by_index(variant: str) -> Step:
    """Two rounds of messages over 60,000 nodes and 1,000,000 edges; rows are picked with x[index] in training."""
    nodes, edges, width = size(60_000, 50), size(1_000_000, 200), size(64, 8)
    layers = on_device(
        lambda: nn.ModuleList([Interactions(width, by_index=variant == BEFORE) for _ in range(2)])
    ).train()
    source, target = torch.randint(0, nodes, (2, edges), device=DEVICE).unbind()
    state, labels = torch.randn(nodes, width, device=DEVICE, requires_grad=True), tokens(width, nodes)

    def loss() -> Tensor:
        x = state
        for layer in layers:
            x = layer(x, source, target)
        return functional.cross_entropy(x.float(), labels)

    return training(loss, adamw(layers))


@pair(
    "scattered-access", "recommendation", "nn.EmbeddingBag(sparse=True): gradients of the used rows", THIRD,
    accept=("memory-bandwidth",), profiler_steps=True,
)  # fmt: skip
def recommender_dense_gradients(variant: str) -> Step:
    """Four tables of 4,000,000 × 64; each step of 4,096 users writes, and subtracts, gradients of whole tables."""
    items, width, batch = size(4_000_000, 100), size(64, 8), size(4096, 4)
    tables = on_device(
        lambda: nn.ModuleList([nn.EmbeddingBag(items, width, mode="sum", sparse=variant == AFTER) for _ in range(4)])
    ).train()
    mlp = on_device(lambda: nn.Sequential(nn.Linear(4 * width, 512), nn.ReLU(), nn.Linear(512, 2))).train()
    optimizer = torch.optim.SGD([*tables.parameters(), *mlp.parameters()], lr=0.01)
    used, labels = [tokens(items, batch, 10) for _ in range(4)], tokens(2, batch)

    def loss() -> Tensor:
        found = [table(rows) for table, rows in zip(tables, used, strict=True)]
        return functional.cross_entropy(mlp(torch.cat(found, -1)), labels)

    return training(loss, optimizer, mixed=False)


@pair("precision", "recommendation", "torch.set_float32_matmul_precision('high')", THIRD, also_after=True)
def cross_network_fp32(variant: str) -> Step:
    """A deep and cross network (4 × 2,048, MLP 4 × 4,096) on 16,384 users in fp32, TF32 off as it is by default."""
    items, width, batch = size(100_000, 100), size(2048, 32), size(16384, 4)
    wide = size(4096, 32)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.EmbeddingBag(items, width, mode="sum")
            self.cross = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
            layers: list[nn.Module] = [nn.Linear(width, wide), nn.ReLU()]
            for _ in range(3):
                layers += [nn.Linear(wide, wide), nn.ReLU()]
            self.mlp = nn.Sequential(*layers, nn.Linear(wide, 8))

        def forward(self, seen: Tensor) -> Tensor:
            first = x = self.items(seen)
            for layer in self.cross:
                x = first * layer(x) + x
            return self.mlp(x)

    model = on_device(Model).train()
    seen, labels = tokens(items, batch, 20), tokens(8, batch)
    train = training(lambda: functional.cross_entropy(model(seen), labels), adamw(model), mixed=False)

    def step() -> None:
        torch.set_float32_matmul_precision("highest" if variant == BEFORE else "high")
        train()

    return step


class Heads(nn.Module):
    """Attention whose heads are visited one by one, or all at once."""

    def __init__(self, width: int, heads: int, *, together: bool) -> None:
        super().__init__()
        self.heads, self.together = heads, together
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, sequence, width]."""
        batch, length, width = x.shape
        q, k, v = self.into(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.together:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            each = range(self.heads)
            y = torch.cat(
                [functional.scaled_dot_product_attention(*(t[:, h : h + 1] for t in (q, k, v))) for h in each], 1
            )
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


@pair(
    "small-kernels", "prefill", "all heads in one call instead of a loop over heads", THIRD,
    accept=("launch-overhead",), inference=True,
)  # fmt: skip
def heads_one_by_one(variant: str) -> Step:
    """Eight layers of attention of 2,048 tokens in 32 heads, head by head, replayed from a CUDA graph."""
    width, heads = size(2048, 64), size(32, 4)
    model = on_device(
        lambda: nn.Sequential(*[Heads(width, heads, together=variant == AFTER) for _ in range(size(8, 2))]), HALF
    ).eval()
    x = torch.randn(1, size(2048, 16), width, device=DEVICE, dtype=HALF)
    return as_graph(lambda: model(x))


@pair(
    "launch-overhead", "prefill", "encode(batch_size=256) instead of 8", THIRD,
    accept=("small-kernels", "host-stall", "host-sync"), library="sentence-transformers", inference=True,
    also_after=True, steps=(2, 1),
)  # fmt: skip
def sentences_in_small_batches(variant: str) -> Step:
    """Sentence Transformers (BERT, 6 × 384) encodes 256 sentences, eight at a time: many launches for little work."""
    import transformers
    from sentence_transformers import SentenceTransformer, models
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(200))])}
    tokenizer = Tokenizer(WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=size(384, 64), num_hidden_layers=size(6, 2), num_attention_heads=size(12, 2),
        intermediate_size=size(1536, 96),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
        )
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
        fast.save_pretrained(folder)
        words_of = models.Transformer(str(Path(folder)), max_seq_length=64)
        pooling = models.Pooling(config.hidden_size)
        model = SentenceTransformer(modules=[words_of, pooling], device=str(DEVICE)).to(HALF)
    texts = [" ".join(str((index * 7 + word) % 200) for word in range(40)) for index in range(size(256, 4))]
    batch = size(8, 2) if variant == BEFORE else size(256, 4)
    return lambda: model.encode(texts, batch_size=batch, show_progress_bar=False, convert_to_tensor=True)


@healthy("recommendation", THIRD, compiles=True, inference=True)
def healthy_ranking(variant: str) -> Step:
    """A ranking MLP of 6 × 8,192 on 8,192 candidates in bf16, compiled, replayed from a CUDA graph."""
    wide = size(8192, 32)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(wide, wide), nn.ReLU()]
    model = on_device(lambda: nn.Sequential(*layers), HALF).eval()
    compiled([model])
    x = torch.randn(size(8192, 4), wide, device=DEVICE, dtype=HALF)
    return as_graph(lambda: model(x)) if CUDA else lambda: model(x)
