"""Rows picked and rows added to: recommendation, graphs, mixtures of experts."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_torch_csr_tensor

from pairs.parts import DEVICE, HALF, adamw, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, Step, healthy, pair


class Tower(nn.Module):
    """The mean of a history's embeddings, then an MLP."""

    def __init__(self, items: int, width: int, *, bag: bool) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(items, width, mode="mean") if bag else nn.Embedding(items, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, history: Tensor) -> Tensor:
        """History [batch, length] → [batch, width]."""
        found = self.items(history)
        return self.mlp(found if found.ndim == 2 else found.mean(1))


@pair(
    "scattered-access", "recommendation", "nn.EmbeddingBag(mode='mean') instead of nn.Embedding and mean", ranges=False
)
def two_towers_embedding_mean(variant: str) -> Step:
    """Two towers over histories of 200 items of 16,384 users; each item's row is copied out, then averaged."""
    items, width, batch = size(200_000, 100), size(128, 8), size(16384, 4)
    users, shops = (on_device(lambda: Tower(items, width, bag=variant == AFTER)).train() for _ in range(2))
    seen, shown = tokens(items, batch, size(200, 5)), tokens(items, batch, size(50, 5))
    target = torch.arange(batch, device=DEVICE)

    def loss() -> Tensor:
        return functional.cross_entropy(users(seen) @ shops(shown).t(), target)

    return training(loss, adamw(nn.ModuleList([users, shops])))


@pair(
    "scattered-access", "graph", "a sparse adjacency matrix (CSR) instead of edge_index",
    library="torch_geometric", also_after=True,
)  # fmt: skip
def gcn_gather_scatter(variant: str) -> Step:
    """Three graph convolutions over 100,000 nodes and 3,000,000 edges: a row is copied for each edge, then added."""
    nodes, edges, width = size(100_000, 50), size(3_000_000, 200), size(128, 8)
    torch.manual_seed(0)
    links = torch.randint(0, nodes, (2, edges), device=DEVICE)
    layers = on_device(lambda: nn.ModuleList([GCNConv(width, width, normalize=False) for _ in range(3)])).train()
    state, labels = torch.randn(nodes, width, device=DEVICE), tokens(width, nodes)
    graph = links if variant == BEFORE else to_torch_csr_tensor(links.flip(0), size=(nodes, nodes))

    def loss() -> Tensor:
        x = state
        for layer in layers:
            x = layer(x, graph).relu() / 30
        return functional.cross_entropy(x, labels)

    return training(loss, adamw(layers), mixed=False)


@pair(
    "per-expert-loop", "mixture-of-experts", "experts_implementation='grouped_mm' instead of 'eager'",
    library="transformers", also_after=True, with_stack=True, steps=(3, 2),
)  # fmt: skip
def qwen_expert_loop(variant: str) -> Step:
    """Training of a Qwen3-MoE of 4 × 1,024 with 64 experts, 8 of them a token, visited in a Python loop."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=size(8192, 128), hidden_size=size(1024, 64), intermediate_size=size(2048, 96),
        num_hidden_layers=size(4, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2),
        head_dim=size(64, 32), num_experts=size(64, 4), num_experts_per_tok=size(8, 2),
        moe_intermediate_size=size(512, 32), use_cache=False,
    )  # fmt: skip
    config._experts_implementation = "eager" if variant == BEFORE else "grouped_mm"
    model = on_device(lambda: transformers.Qwen3MoeForCausalLM(config), HALF).train()
    ids = tokens(config.vocab_size, size(4, 2), size(1024, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model), mixed=False)


@healthy("recommendation", compiles=True)
def healthy_recommender(variant: str) -> Step:
    """A recommender whose MLP of 8 × 4,096 takes nearly all of the time; embedding bags, compiled, mixed precision."""
    items, width, batch = size(100_000, 100), size(256, 8), size(16384, 4)
    wide = size(4096, 32)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.EmbeddingBag(items, width, mode="sum")
            layers: list[nn.Module] = [nn.Linear(width, wide), nn.ReLU()]
            for _ in range(6):
                layers += [nn.Linear(wide, wide), nn.ReLU()]
            self.mlp = nn.Sequential(*layers, nn.Linear(wide, 8))

        def forward(self, seen: Tensor) -> Tensor:
            return self.mlp(self.items(seen))

    model = on_device(Model).train()
    compiled([model.mlp])
    seen, labels = tokens(items, batch, 20), tokens(8, batch)
    return training(lambda: functional.cross_entropy(model(seen), labels), adamw(model))
