"""Language, sequences and graphs of the fourth set: written without a look at the rules of the diagnosis."""

from __future__ import annotations

import os

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import rewind, static_cache
from pairs.language import llama
from pairs.parts import DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FOURTH, Step, healthy, pair


class Recurrent(nn.Module):
    """An LSTM and a classifier of its last state; its cell is called step by step, or the whole sequence at once."""

    def __init__(self, width: int, *, at_once: bool) -> None:
        super().__init__()
        self.at_once, self.width = at_once, width
        self.cell: nn.Module = nn.LSTM(width, width, batch_first=True) if at_once else nn.LSTMCell(width, width)
        self.out = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, time, width]."""
        if self.at_once:
            states, _ = self.cell(x)
            return self.out(states[:, -1])
        state = (x.new_zeros(x.shape[0], self.width), x.new_zeros(x.shape[0], self.width))
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return self.out(state[0])


@pair(
    "launch-overhead", "time series", "nn.LSTM on the sequence instead of nn.LSTMCell in a loop", FOURTH,
    accept=("small-kernels",), steps=(3, 2),
)  # fmt: skip
def lstm_cell_by_loop(variant: str) -> Step:
    """An LSTM of 512 learns from 64 sequences of 96 readings; Python calls its cell for each reading."""
    width, length, batch = size(512, 16), size(96, 5), size(64, 2)
    model = on_device(lambda: Recurrent(width, at_once=variant == AFTER), HALF).train()
    x, labels = torch.randn(batch, length, width, device=DEVICE, dtype=HALF), tokens(16, batch)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model), mixed=False)


@pair(
    "recomputation", "decoding", "generate(use_cache=True), as it is by default", FOURTH,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def t5_generate_without_cache(variant: str) -> Step:
    """A T5 of 6 × 1,024 generates 12 tokens for 96 texts encoded before; each token runs the decoder on all so far."""
    batch, length, new = size(96, 2), size(1024, 8), size(12, 3)
    config = transformers.T5Config(
        vocab_size=size(32128, 128), d_model=size(1024, 32), d_kv=size(64, 16), d_ff=size(2816, 48),
        num_heads=size(16, 2), num_layers=size(6, 2), feed_forward_proj="gated-gelu", decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.T5ForConditionalGeneration(config), HALF).eval()
    encoded = transformers.modeling_outputs.BaseModelOutput(
        last_hidden_state=torch.randn(batch, length, config.d_model, device=DEVICE, dtype=HALF)
    )
    mask = torch.ones(batch, length, device=DEVICE, dtype=torch.long)
    how = {"do_sample": False, "num_beams": 1, "min_new_tokens": new, "max_new_tokens": new}
    return lambda: model.generate(encoder_outputs=encoded, attention_mask=mask, use_cache=variant == AFTER, **how)


@pair(
    "recomputation", "fine-tuning", "without gradient_checkpointing_enable()", FOURTH,
    library="peft, transformers", compiles=True, steps=(3, 2),
)  # fmt: skip
def lora_checkpointed(variant: str) -> Step:
    """LoRA of rank 16 on a Llama of 6 × 2,048 in bf16, 8 × 1,024 tokens, layers compiled; checkpointed by habit."""
    import peft

    config = llama(6, 2048, vocabulary=8192, use_cache=False)

    def build() -> nn.Module:
        base = transformers.LlamaForCausalLM(config)
        return peft.get_peft_model(
            base, peft.LoraConfig(r=size(16, 4), target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        )

    model = on_device(build, HALF).train()
    model.enable_input_require_grads()
    if variant == BEFORE:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    compiled(model.base_model.model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 16))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    return training(lambda: model(input_ids=ids, labels=ids).loss, optimizer, mixed=False)


class NextItem(nn.Module):
    """A sequential recommender: what a user takes next, by self-attention over what was taken."""

    def __init__(self, items: int, width: int, layers: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, taken: Tensor) -> Tensor:
        """Scores of all items after each place; taken [users, length]."""
        x = self.items(taken) + self.places.weight[: taken.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(taken.shape[1], device=taken.device, dtype=x.dtype)
        return self.encoder(x, mask=mask, is_causal=True) @ self.items.weight.T


@pair(
    "launch-overhead", "recommendation", "256 users at once instead of 8 × 32 with accumulated gradients", FOURTH,
    accept=("small-kernels", "host-stall"), steps=(3, 2),
)  # fmt: skip
def accumulation_in_small_batches(variant: str) -> Step:
    """A sequential recommender (3 × 128, 4,000 items) adds up gradients of eight batches of 32 users, memory free."""
    items, width, users, length = size(4000, 40), size(128, 16), size(256, 16), size(48, 6)
    model = on_device(lambda: NextItem(items, width, size(3, 1))).train()
    optimizer = adamw(model)
    taken, following = tokens(items, users, length), tokens(items, users, length)
    parts = 8 if variant == BEFORE else 1

    def step() -> None:
        for some, then in zip(taken.chunk(parts), following.chunk(parts), strict=True):
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
                scores = model(some)
                loss = functional.cross_entropy(scores.flatten(0, 1), then.flatten()) / parts
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "unfused-attention", "training", "attn_implementation='sdpa' instead of 'eager'", FOURTH,
    library="transformers", steps=(3, 2), profiler_steps=True,
)  # fmt: skip
def bart_eager_attention(variant: str) -> Step:
    """A BART of 4 + 4 layers of 768 learns 12 summaries of 128 tokens of texts of 2,048; scores go through memory."""
    config = transformers.BartConfig(
        vocab_size=size(16384, 128), d_model=size(768, 32), encoder_layers=size(4, 1), decoder_layers=size(4, 1),
        encoder_attention_heads=size(12, 2), decoder_attention_heads=size(12, 2), encoder_ffn_dim=size(3072, 48),
        decoder_ffn_dim=size(3072, 48), max_position_embeddings=2048, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = "eager" if variant == BEFORE else "sdpa"
    model = on_device(lambda: transformers.BartForConditionalGeneration(config)).train()
    ids, labels = (
        tokens(config.vocab_size, size(12, 2), size(2048, 16)),
        tokens(config.vocab_size, size(12, 2), size(128, 6)),
    )
    return training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model))


class Layer(nn.Module):
    """A decoder layer with grouped queries whose cache the caller keeps."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.head, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cache: list[Tensor], room: list[Tensor] | None, place: int) -> Tensor:
        """X [batch, 1, width]; cache: keys and values [batch, groups, length, head] so far; room: where more fits."""
        batch = x.shape[0]
        y = self.norm1(x)
        q = self.q(y).view(batch, 1, self.heads, self.head).transpose(1, 2)
        new = self.kv(y).view(batch, 1, 2, self.groups, self.head).permute(2, 0, 3, 1, 4).unbind()
        for index in range(2):
            if room is None:
                cache[index] = torch.cat([cache[index], new[index]], dim=2)
            else:
                room[index][:, :, place : place + 1] = new[index]
                cache[index] = room[index][:, :, : place + 1]
        y = functional.scaled_dot_product_attention(q, *cache, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, 1, -1))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


@pair(
    "growing-cache", "decoding", "keys and values are written into memory reserved beforehand, not torch.cat", FOURTH,
    inference=True, steps=(3, 2),
)  # fmt: skip
def own_cache_by_cat(variant: str) -> Step:
    """A decoder of 6 × 2,048 with 8 key heads, by hand: 4 tokens of 48 sequences after 3,000, torch.cat each."""
    width, heads, groups = size(2048, 32), size(16, 4), size(8, 2)
    batch, prompt, vocabulary = size(48, 2), size(3000, 6), size(32000, 64)
    layers = on_device(lambda: nn.ModuleList([Layer(width, heads, groups) for _ in range(size(6, 2))]), HALF).eval()
    embed = on_device(lambda: nn.Embedding(vocabulary, width), HALF)
    rooms = [
        [torch.randn(batch, groups, prompt + 8, width // heads, device=DEVICE, dtype=HALF) for _ in range(2)]
        for _ in layers
    ]
    prompts = [[room[:, :, :prompt].clone() for room in pair_] for pair_ in rooms]
    first = tokens(vocabulary, batch, 1)

    def step() -> Tensor:
        caches = [list(known) for known in prompts]
        ids = first
        for more in range(4):
            x = embed(ids)
            for layer, cache, room in zip(layers, caches, rooms, strict=True):
                x = layer(x, cache, room if variant == AFTER else None, prompt + more)
            ids = (x @ embed.weight.T).argmax(-1)
        return ids

    return step


@pair(
    "scattered-access", "graph", "without torch.use_deterministic_algorithms(True)", FOURTH,
    library="torch_geometric", steps=(3, 2),
)  # fmt: skip
def sage_deterministic(variant: str) -> Step:
    """GraphSAGE (2 × 64) on 40,000 nodes and 400,000 edges; deterministic algorithms, left on, sort to add up."""
    from torch_geometric.nn import SAGEConv

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS refuses to be deterministic
    nodes, edges, width = size(40_000, 20), size(400_000, 60), size(64, 8)
    layers = on_device(lambda: nn.ModuleList([SAGEConv(width, width) for _ in range(2)])).train()
    x, edge = torch.randn(nodes, width, device=DEVICE), tokens(nodes, 2, edges)
    labels = tokens(width, nodes)

    def loss() -> Tensor:
        y = x
        for layer in layers:
            y = functional.relu(layer(y, edge))
        return functional.cross_entropy(y, labels)

    train = training(loss, adamw(layers), mixed=False)

    def step() -> None:
        torch.use_deterministic_algorithms(variant == BEFORE, warn_only=True)
        train()
        torch.use_deterministic_algorithms(False)

    return step


class Served(nn.Module):
    """A product whose rows each have an adapter of their own."""

    def __init__(self, width: int, adapters: int, rank: int, *, by_loop: bool) -> None:
        super().__init__()
        self.base, self.by_loop = nn.Linear(width, width), by_loop
        self.down = nn.Parameter(torch.randn(adapters, width, rank) * 0.02)
        self.up = nn.Parameter(torch.randn(adapters, rank, width) * 0.02)

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        """X [requests, tokens, width], which [requests]."""
        y = self.base(x)
        if not self.by_loop:
            return functional.gelu(y + torch.bmm(torch.bmm(x, self.down[which]), self.up[which]))
        for adapter in range(self.down.shape[0]):
            rows = which == adapter
            y[rows] += x[rows] @ self.down[adapter] @ self.up[adapter]
        return functional.gelu(y)


@pair(
    "per-expert-loop", "serving", "torch.bmm with each request's adapter instead of a loop over adapters", FOURTH,
    inference=True, steps=(3, 2), with_stack=True,
)  # fmt: skip
def adapters_by_loop(variant: str) -> Step:
    """Six layers of 2,048 serve 64 requests of 64 tokens with 16 adapters of rank 16, adapter by adapter."""
    width, adapters, requests = size(2048, 32), size(16, 3), size(64, 6)
    model = on_device(
        lambda: nn.ModuleList(
            [Served(width, adapters, size(16, 4), by_loop=variant == BEFORE) for _ in range(size(6, 2))]
        ),
        HALF,
    ).eval()
    x = torch.randn(requests, size(64, 4), width, device=DEVICE, dtype=HALF)
    which = tokens(adapters, requests)

    def step() -> Tensor:
        y = x
        for layer in model:
            y = layer(y, which)
        return y

    return step


@healthy("time series", FOURTH, steps=(3, 1))
def healthy_lstm_training(variant: str) -> Step:
    """An LSTM of cuDNN, of 2 × 2,048 learns from 512 sequences of 64 readings in bf16."""
    width, length, batch = size(2048, 16), size(64, 5), size(512, 2)
    model = on_device(lambda: nn.LSTM(width, width, 2, batch_first=True), HALF).train()
    x = torch.randn(batch, length, width, device=DEVICE, dtype=HALF)
    return training(lambda: model(x)[0].float().square().mean(), adamw(model), mixed=False)


@healthy("decoding", FOURTH, library="transformers", inference=True)
def healthy_decode_many(variant: str) -> Step:
    """A Llama of 6 × 4,096 decodes one token of 256 sequences after 128 tokens, replayed from a CUDA graph."""
    batch, prompt = size(256, 2), size(128, 8)
    config = llama(6, 4096, heads=32, vocabulary=8192)
    heads = config.num_attention_heads
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    cache = static_cache(config, batch, prompt + 8, heads, config.hidden_size // heads)
    rewind(cache, prompt)
    ids = tokens(config.vocab_size, batch, 1)
    replay = as_graph(lambda: model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1))

    def step() -> None:
        rewind(cache, prompt)
        replay()

    return step


#: Not in the public part of every version.
grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm


class Experts(nn.Module):
    """Two of many experts for each token, by grouped products over the sorted tokens."""

    def __init__(self, width: int, feed: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, feed) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, feed, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """X [tokens, width]."""
        weight, chosen = self.router(x).softmax(-1).topk(2)
        order = chosen.flatten().argsort()
        count = functional.one_hot(chosen.flatten(), self.router.out_features).sum(0)
        ends = count.cumsum(0).to(torch.int32)
        rows = x[order // 2]
        y = grouped(functional.gelu(grouped(rows, self.up, offs=ends)), self.down, offs=ends)
        y = y * weight.flatten()[order, None]
        return x + torch.zeros_like(x).index_add_(0, order // 2, y)


@healthy("mixture of experts", FOURTH, inference=True)
def healthy_grouped_experts(variant: str) -> Step:
    """Three layers of 8 experts (2,048 × 8,192), two for each of 16,384 tokens, by grouped products in bf16."""
    layers = on_device(
        lambda: nn.Sequential(*[Experts(size(2048, 32), size(8192, 64), size(8, 3)) for _ in range(3)]), HALF
    ).eval()
    x = torch.randn(size(16384, 12), size(2048, 32), device=DEVICE, dtype=HALF)
    return lambda: layers(x)
