"""The twenty-third set: ordinary habits in other guises; language, tables, graphs, decoding, replay."""

from __future__ import annotations

import random

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import next_tokens, share_heads
from pairs.language import llama
from pairs.parts import DEVICE, HALF, TINY, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_THIRD, Step, healthy, pair

__all__ = ["Block"]


class Block(nn.Module):
    """Attention and a network, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Positions [rows, positions, width], and what is added to the scores of all with all."""
        parts = self.joined(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@pair(
    "launch-overhead", "decoding", "each token of the draft replayed from a CUDA graph", TWENTY_THIRD,
    library="transformers", accept=("small-kernels", "weight-bound"), inference=True, steps=(3, 2),
)  # fmt: skip
def draft_proposed_in_eager(variant: str) -> Step:
    """A small Cohere (8 × 768, bf16, a static cache) drafts five tokens of 4 texts for a larger one, in eager."""
    config = transformers.CohereConfig(
        vocab_size=size(32_768, 64), hidden_size=size(768, 32), intermediate_size=size(2048, 64), eos_token_id=1,
        num_hidden_layers=size(8, 1), num_attention_heads=size(12, 2), num_key_value_heads=size(4, 2), bos_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
    model = on_device(lambda: transformers.CohereForCausalLM(config), HALF).eval()
    return next_tokens(model, size(4, 2), size(248, 8), 5, graphed=variant == AFTER)


@pair(
    "host-sync", "evaluation", "the ranks of all facts are counted at once, and read by one tolist()", TWENTY_THIRD,
    library="transformers", accept=("launch-overhead", "host-stall"), inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def ranks_read_fact_by_fact(variant: str) -> Step:
    """SimKGC: a BERT (6 × 768, bf16) reads 512 facts of 48 tokens; each one's rank among 16,384 things is .item()."""
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(768, 32), num_hidden_layers=size(6, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False), HALF).eval()
    facts = size(512, 4)
    ids = tokens(config.vocab_size, facts, size(48, 8))
    things = torch.randn(size(16_384, 32), config.hidden_size, device=DEVICE, dtype=HALF)
    right = tokens(len(things), facts)
    places = right.tolist()

    def step() -> float:
        scores = model(input_ids=ids).last_hidden_state[:, 0] @ things.T
        if variant == BEFORE:
            ranks = [(row > row[place]).sum().item() + 1 for row, place in zip(scores, places, strict=True)]
        else:
            ranks = ((scores > scores.gather(1, right[:, None])).sum(1) + 1).tolist()
        return sum(1 / rank for rank in ranks) / facts

    return step


@pair(
    "unfused-chain", "distillation", "the loss through torch.compile", TWENTY_THIRD,
    library="transformers", accept=("memory-bandwidth",), compiles=True, steps=(3, 3),
)  # fmt: skip
def distilled_by_formula(variant: str) -> Step:
    """A Llama (4 × 1,024, layers compiled) learns from 16 texts of 512 tokens what a teacher said of 32,768 words."""
    config = llama(4, 1024, vocabulary=32_768, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(16, 2), size(512, 8))
    told = torch.randn(*ids.shape, config.vocab_size, device=DEVICE, dtype=HALF)

    def apart(scores: Tensor, wanted: Tensor) -> Tensor:
        q, p = (scores.float() / 2).softmax(-1), (wanted.float() / 2).softmax(-1)
        return 4 * (p * ((p + 1e-9).log() - (q + 1e-9).log())).sum(-1).mean()

    loss = apart if variant == BEFORE or TINY else torch.compile(apart, dynamic=False)
    return training(lambda: loss(model(input_ids=ids).logits, told), adamw(model))


@pair(
    "unfused-chain", "training", "each layer through torch.compile", TWENTY_THIRD,
    library="transformers", accept=("memory-bandwidth",), compiles=True, profiler_steps=True, steps=(2, 2),
)  # fmt: skip
def glm_trained_in_eager(variant: str) -> Step:
    """A GLM-4 (6 × 2,048, four norms a layer) learns from 8 texts of 1,024 tokens in mixed precision, in eager."""
    config = transformers.Glm4Config(
        vocab_size=size(16_384, 64), hidden_size=size(2048, 32), intermediate_size=size(6144, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2),
        head_dim=size(128, 16), use_cache=False, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.Glm4ForCausalLM(config)).train()
    if variant == AFTER:
        compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


class Tree:
    """Sums of priorities, in a heap of Python's floats."""

    def __init__(self, count: int) -> None:
        self.count, self.sums = count, [0.0] * count + [1.0] * count
        for node in range(count - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def drawn(self, chance: random.Random) -> int:
        """One place, likelier the higher its priority is."""
        node, left = 1, chance.random() * self.sums[1]
        while node < self.count:
            node *= 2
            if left > self.sums[node]:
                left -= self.sums[node]
                node += 1
        return node - self.count

    def put(self, place: int, priority: float) -> None:
        """Another priority."""
        node = place + self.count
        change = priority - self.sums[node]
        while node:
            self.sums[node] += change
            node //= 2


@pair(
    "host-stall", "reinforcement learning", "priorities stay on the GPU, and torch.multinomial draws", TWENTY_THIRD,
    accept=("host-sync", "blocking-copy"), with_stack=True, steps=(3, 2),
)  # fmt: skip
def priorities_in_a_tree_of_floats(variant: str) -> Step:
    """A Q network (4 × 2,048) learns from 1,024 of 262,144 transitions; a tree of sums in Python draws them."""
    kept, batch, width, actions = size(1 << 18, 64), size(1024, 4), size(2048, 16), 16
    states = torch.randn(kept, size(256, 8), device=DEVICE, dtype=HALF)
    done, gains = tokens(actions, kept), torch.randn(kept, device=DEVICE)

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(states.shape[1], width), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, actions))

    model, target = on_device(build).train(), on_device(build, HALF).eval()
    optimizer = adamw(model)
    tree, chance = Tree(kept), random.Random(0)
    priorities = torch.ones(kept, device=DEVICE)

    def step() -> None:
        if variant == BEFORE:
            drawn = [tree.drawn(chance) for _ in range(batch)]
            places = torch.tensor(drawn).to(DEVICE)
        else:
            places = torch.multinomial(priorities, batch, replacement=True)
        now, later = states[places], states[(places + 1) % kept]
        with torch.no_grad():
            hoped = gains[places] + 0.99 * target(later).amax(-1).float()
        errors = torch.empty(0)

        def loss() -> Tensor:
            nonlocal errors
            errors = hoped - model(now).gather(1, done[places, None])[:, 0].float()
            return errors.square().mean()

        training(loss, optimizer)()
        new = errors.detach().abs() + 0.01
        if variant == BEFORE:
            for place, priority in zip(drawn, new.tolist(), strict=True):
                tree.put(place, priority)
        else:
            priorities[places] = new

    return step


@pair(
    "blocking-copy", "classification", "the vectors of words are on the GPU, where they are looked up", TWENTY_THIRD,
    accept=("host-stall",), steps=(3, 3),
)  # fmt: skip
def word_vectors_kept_on_host(variant: str) -> Step:
    """Two blocks (512) learn to classify 256 texts of 128 words, whose 256 numbers each are looked up on the host."""
    words, known, width = size(400_000, 64), size(256, 8), size(512, 16)
    vectors = torch.randn(words, known)
    texts = [torch.randint(words, (size(256, 2), size(128, 8))) for _ in range(4)]
    labels = tokens(size(20, 4), len(texts[0]))
    if variant == AFTER:
        vectors = vectors.to(DEVICE)
    model = on_device(lambda: nn.Sequential(
        nn.Linear(known, width), *(Block(width, size(8, 2)) for _ in range(2)), nn.Linear(width, size(20, 4))
    )).train()  # fmt: skip
    optimizer = adamw(model)
    place = 0

    def step() -> None:
        nonlocal place
        place += 1
        ids = texts[place % len(texts)]
        x = functional.embedding(ids.to(vectors.device), vectors).to(DEVICE)
        training(lambda: functional.cross_entropy(model(x).mean(1), labels), optimizer)()

    return step


@pair(
    "misaligned-shape", "classification", "100,008 products, five of them not sold, instead of 100,003", TWENTY_THIRD,
    accept=("tensor-compute",), steps=(3, 3),
)  # fmt: skip
def one_of_100003_products(variant: str) -> Step:
    """A network (3 × 1,024) learns which of 100,003 products 4,096 customers buy next, in mixed precision."""
    width, customers = size(1024, 16), size(4096, 4)
    sold = size(100_003, 67)
    products = sold if variant == BEFORE else size(100_008, 72)
    model = on_device(lambda: nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, products)
    )).train()  # fmt: skip
    x, bought = torch.randn(customers, width, device=DEVICE), tokens(sold, customers)
    return training(lambda: functional.cross_entropy(model(x), bought), adamw(model))


class Writer(nn.Module):
    """A layer of a translator, which looks at its last words and at the text that it translates."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.asks, self.source, self.heard = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: Tensor) -> Tensor:
        """Heads apart: [texts, heads, positions, width of a head]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def of_source(self, text: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of the text [texts, positions, width]."""
        return tuple(self.split(part) for part in self.source(text).chunk(2, -1))

    def forward(self, x: Tensor, source: tuple[Tensor, ...], kept: Tensor, place: int) -> Tensor:
        """The next word [texts, 1, width]; keys and values of the text, and of the words before."""
        q, *new = (self.split(part) for part in self.joined(self.norms[0](x)).chunk(3, -1))
        kept[:, :, :, place : place + 1] = torch.stack(new)
        keys, values = kept[:, :, :, : place + 1]
        seen = functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        heard = functional.scaled_dot_product_attention(self.split(self.asks(self.norms[1](x))), *source)
        x = x + self.heard(heard.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.relu(self.wide(self.norms[2](x))))


@pair(
    "recomputation", "decoding", "keys and values of the source are projected once, before the words", TWENTY_THIRD,
    accept=("tensor-compute", "growing-cache"), inference=True, steps=(3, 3),
)  # fmt: skip
def source_projected_for_each_word(variant: str) -> Step:
    """A translator (6 × 1,024, bf16, a CUDA graph) writes 12 words on 32 texts of 512; each projects all of a text."""
    width, heads, texts, words = size(1024, 32), size(16, 2), size(32, 2), 12
    layers = on_device(lambda: nn.ModuleList(Writer(width, heads) for _ in range(size(6, 2))), HALF).eval()
    names = on_device(lambda: nn.Embedding(size(32_768, 64), width), HALF, 1)
    text = torch.randn(texts, size(512, 8), width, device=DEVICE, dtype=HALF)
    kept = [torch.zeros(2, texts, heads, words, width // heads, device=DEVICE, dtype=HALF) for _ in layers]
    first = tokens(names.num_embeddings, texts, 1)

    def step() -> Tensor:
        ids, said = first, []
        sources = [layer.of_source(text) for layer in layers] if variant == AFTER else []
        for place in range(words):
            x = names(ids)
            for index, layer in enumerate(layers):
                source = sources[index] if sources else layer.of_source(text)
                x = layer(x, source, kept[index], place)
            ids = (x @ names.weight.T).argmax(-1)
            said.append(ids)
        return torch.cat(said, 1)

    return as_graph(step)


@pair(
    "padded-work", "molecules", "padded to the largest of the batch (64 atoms), not of all data (256)", TWENTY_THIRD,
    accept=("tensor-compute", "unfused-attention"), steps=(2, 2),
)  # fmt: skip
def molecules_padded_to_the_largest(variant: str) -> Step:
    """Blocks (6 × 512) learn energies of 256 molecules of 20 to 64 atoms, padded to 256; distances bias attention."""
    width, heads, molecules, kinds = size(512, 16), size(8, 2), size(256, 2), 16
    room = size(256, 16) if variant == BEFORE else size(64, 8)
    counts = torch.randint(size(20, 4), size(64, 8) + 1, (molecules,), device=DEVICE)
    real = torch.arange(room, device=DEVICE) < counts[:, None]
    atoms = functional.pad(tokens(kinds, molecules, size(64, 8)), (0, room - size(64, 8)))
    sites = functional.pad(torch.randn(molecules, size(64, 8), 3, device=DEVICE), (0, 0, 0, room - size(64, 8)))
    wanted = torch.randn(molecules, device=DEVICE)
    slopes = 2.0 ** -torch.arange(1, heads + 1, device=DEVICE)
    blocks = on_device(lambda: nn.ModuleList(Block(width, heads) for _ in range(size(6, 1)))).train()
    ends = on_device(lambda: nn.ModuleList([nn.Embedding(kinds, width), nn.Linear(width, 1)]), seed=1)

    def loss() -> Tensor:
        bias = -torch.cdist(sites, sites)[:, None] * slopes[:, None, None]
        bias = bias.masked_fill(~real[:, None, None], -1e4).to(HALF)
        x = ends[0](atoms).to(HALF)
        for block in blocks:
            x = block(x, bias)
        energies = (ends[1](x)[..., 0].float() * real).sum(-1)
        return functional.mse_loss(energies, wanted)

    return training(loss, adamw(nn.ModuleList([blocks, ends])))


@pair(
    "unfused-optimizer", "training", "gradients and weights are copied by torch._foreach_copy_", TWENTY_THIRD,
    accept=("launch-overhead", "small-kernels"), compiles=True, steps=(3, 3),
)  # fmt: skip
def masters_copied_one_by_one(variant: str) -> Step:
    """Blocks (24 × 512, bf16, compiled) learn from 16 rows of 256; fp32 masters of weights are copied one by one."""
    width = size(512, 16)
    blocks = on_device(lambda: nn.Sequential(*(Block(width, size(8, 2)) for _ in range(size(24, 2)))), HALF).train()
    compiled(blocks)
    x = torch.randn(size(16, 2), size(256, 8), width, device=DEVICE, dtype=HALF)
    wanted = torch.randn_like(x)
    weights = list(blocks.parameters())
    masters = [weight.detach().float().requires_grad_() for weight in weights]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)

    def step() -> None:
        functional.mse_loss(blocks(x).float(), wanted.float()).backward()
        with torch.no_grad():
            if variant == BEFORE:
                for weight, master in zip(weights, masters, strict=True):
                    master.grad = weight.grad.float()
            else:
                torch._foreach_copy_([master.grad for master in masters], [weight.grad for weight in weights])
            optimizer.step()
            if variant == BEFORE:
                for weight, master in zip(weights, masters, strict=True):
                    weight.copy_(master)
            else:
                torch._foreach_copy_(weights, masters)
        for weight in weights:
            weight.grad = None

    return step


class Ghost(nn.Module):
    """A linear layer, a batch norm over some rows at a time, and a gate, as in TabNet."""

    def __init__(self, width: int, rows: int, *, together: bool) -> None:
        super().__init__()
        self.rows, self.together = rows, together
        self.linear = nn.Linear(width, 2 * width, bias=False)
        self.weight, self.bias = nn.Parameter(torch.ones(2 * width)), nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, width]."""
        y = self.linear(x)
        if self.together:
            y = y.float().unflatten(0, (-1, self.rows))
            variance, mean = torch.var_mean(y, 1, correction=0, keepdim=True)
            y = torch.addcmul(self.bias, (y - mean) * (variance + 1e-5).rsqrt(), self.weight).flatten(0, 1)
        else:
            parts = y.split(self.rows)
            y = torch.cat([functional.batch_norm(part, None, None, self.weight, self.bias, True) for part in parts])
        return x + functional.glu(y)


@pair(
    "launch-overhead", "tables", "all ghost batches in one normalisation, as a dimension more", TWENTY_THIRD,
    accept=("small-kernels", "host-stall"), steps=(2, 1),
)  # fmt: skip
def ghost_batches_in_turn(variant: str) -> Step:
    """A TabNet (8 gates of 256) learns from 8,192 rows of a table; batch norm goes through 64 chunks of 128 rows."""
    width, rows = size(256, 8), size(8192, 16)
    together = variant == AFTER
    model = on_device(lambda: nn.Sequential(
        *(Ghost(width, size(128, 8), together=together) for _ in range(size(8, 2))), nn.Linear(width, 8)
    )).train()  # fmt: skip
    x, labels = torch.randn(rows, width, device=DEVICE), tokens(8, rows)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


@pair(
    "growing-cache", "decoding", "attention reads the heads that are shared, which were repeated", TWENTY_THIRD,
    library="transformers", compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def glm_heads_repeated(variant: str) -> Step:
    """A GLM (6 × 4,096, bf16) adds three tokens to 160 texts of 376: compiled layers, static cache, a CUDA graph."""
    config = transformers.GlmConfig(
        vocab_size=size(32_768, 64), hidden_size=size(4096, 32), intermediate_size=size(13_696, 64), eos_token_id=1,
        num_hidden_layers=size(6, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2), pad_token_id=0,
        head_dim=size(128, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.GlmForCausalLM(config), HALF).eval()
    if variant == AFTER:
        share_heads(model)
    compiled(model.model.layers)
    return next_tokens(model, size(160, 2), size(376, 8), 3)


@healthy("training", TWENTY_THIRD, library="transformers", compiles=True, steps=(2, 2))
def healthy_cohere_training(variant: str) -> Step:
    """A Cohere (6 × 2,560) learns from 12 texts of 1,024 tokens: mixed precision, layers and loss compiled."""
    config = transformers.CohereConfig(
        vocab_size=size(16_384, 64), hidden_size=size(2560, 32), intermediate_size=size(8192, 64), use_cache=False,
        num_hidden_layers=size(6, 1), num_attention_heads=size(20, 2), num_key_value_heads=size(4, 2), bos_token_id=0,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = on_device(lambda: transformers.CohereForCausalLM(config)).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(12, 1), size(1024, 8))
    labels = ids.roll(-1, 1).flatten()

    def scored(x: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(x.flatten(0, 1), model.lm_head.weight).float(), labels)

    loss = scored if TINY else torch.compile(scored, dynamic=False)
    return training(lambda: loss(model.model(input_ids=ids).last_hidden_state), adamw(model))


@healthy("preferences", TWENTY_THIRD, library="transformers", compiles=True, steps=(2, 2))
def healthy_reward_training(variant: str) -> Step:
    """A Llama (8 × 2,048) learns which of two answers of 512 tokens is better, of 16 pairs: bf16, layers compiled."""
    config = llama(8, 2048, vocabulary=16_384, use_cache=False)
    model = on_device(lambda: transformers.LlamaModel(config)).train()
    head = on_device(lambda: nn.Linear(config.hidden_size, 8), seed=1)
    compiled(model.layers)
    ids = tokens(config.vocab_size, 2 * size(16, 1), size(512, 8))

    def loss() -> Tensor:
        better, worse = head(model(input_ids=ids).last_hidden_state[:, -1]).float().mean(-1).chunk(2)
        return -functional.logsigmoid(better - worse).mean()

    return training(loss, adamw(nn.ModuleList([model, head])))


class Wide(nn.Module):
    """A block of a ResNet for tables."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, width]."""
        return x + self.narrow(functional.relu(self.wide(self.norm(x))))


@healthy("tables", TWENTY_THIRD, compiles=True, steps=(3, 3))
def healthy_table_training(variant: str) -> Step:
    """A ResNet for tables (6 × 2,048) learns from 16,384 rows: mixed precision, compiled whole, fused AdamW."""
    width, rows = size(2048, 16), size(16_384, 8)
    model = on_device(lambda: nn.Sequential(*(Wide(width) for _ in range(size(6, 1))), nn.Linear(width, 8))).train()
    compiled([model])
    x, labels = torch.randn(rows, width, device=DEVICE, dtype=HALF), tokens(8, rows)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))
