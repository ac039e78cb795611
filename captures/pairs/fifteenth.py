"""The fifteenth set: written and recorded with the fourteenth, split at random, and read once at the end."""

from __future__ import annotations

import gc
import random

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import static_cache
from pairs.fourteenth import Block
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FIFTEENTH, Step, healthy, pair


class Streaming(nn.Module):
    """Attention of a stream's new frames over them and the frames kept from before."""

    def __init__(self, width: int, heads: int, streams: int, kept: int, *, in_place: bool) -> None:
        super().__init__()
        self.heads, self.in_place, self.place = heads, in_place, 0
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(streams, heads, kept, width // heads))

    def forward(self, x: Tensor) -> Tensor:
        """New frames [streams, frames, width] → the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.joined(self.before(x)).chunk(3, -1)
        )
        kept = self.keys.shape[2]
        if self.in_place:
            self.keys[:, :, self.place : self.place + x.shape[1]] = k
            self.values[:, :, self.place : self.place + x.shape[1]] = v
            self.place = (self.place + x.shape[1]) % kept
        else:
            self.keys = torch.cat([self.keys, k], 2)[:, :, -kept:]
            self.values = torch.cat([self.values, v], 2)[:, :, -kept:]
        seen = functional.scaled_dot_product_attention(q, self.keys, self.values)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


@pair(
    "growing-cache", "streaming speech", "a ring of frames written in place instead of torch.cat and a cut", FIFTEENTH,
    accept=("memory-bandwidth", "unfused-chain"), inference=True, steps=(3, 3),
)  # fmt: skip
def streams_joined_chunk_by_chunk(variant: str) -> Step:
    """Sixty-four calls are transcribed in bf16: eight layers (512) join 16 new frames to the 1,024 kept, four times."""
    width, heads, streams, frames = size(512, 16), size(8, 2), size(64, 2), size(16, 2)
    how = {"streams": streams, "kept": size(1024, 8), "in_place": variant == AFTER}
    layers = on_device(lambda: nn.ModuleList(Streaming(width, heads, **how) for _ in range(size(8, 2))), HALF).eval()
    chunks = torch.randn(4, streams, frames, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        for chunk in chunks:
            x = chunk
            for layer in layers:
                x = layer(x)
        return x

    return step


@pair(
    "host-stall", "preference tuning", "without gc.collect() and torch.cuda.empty_cache() after a batch", FIFTEENTH,
    library="transformers", accept=("allocator-churn", "host-sync"), steps=(3, 3),
)  # fmt: skip
def collected_after_each_batch(variant: str) -> Step:
    """A Llama (10 × 1,024, bf16) learns from 8 preferences (DPO, 16 texts of 256 tokens) and cleans up after each."""
    config = transformers.LlamaConfig(
        vocab_size=size(16_384, 64), hidden_size=size(1024, 32), intermediate_size=size(2816, 64),
        num_hidden_layers=size(10, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 2), use_cache=False,
    )  # fmt: skip
    policy, reference = (on_device(lambda: transformers.LlamaForCausalLM(config), HALF) for _ in range(2))
    ids = tokens(config.vocab_size, size(16, 2), size(256, 8))

    def chances(model: nn.Module) -> Tensor:
        scores = model(input_ids=ids).logits[:, :-1]
        losses = functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return -losses.view(len(ids), -1).float().sum(1)

    def loss() -> Tensor:
        with torch.no_grad():
            known = chances(reference)
        better, worse = (chances(policy) - known).chunk(2)
        return -functional.logsigmoid(0.1 * (better - worse)).mean()

    learn = training(loss, adamw(policy), mixed=False)

    def step() -> None:
        learn()
        if variant == BEFORE:
            gc.collect()
            if CUDA:
                torch.cuda.empty_cache()

    return step


@pair(
    "weight-bound", "serving", "the four users' tokens in one batch", FIFTEENTH,
    library="transformers", inference=True, steps=(6, 3),
)  # fmt: skip
def users_served_in_turn(variant: str) -> Step:
    """A Phi-3 (16 × 3,072, bf16) adds two tokens for each of four users, whose graphs are replayed in turn."""
    config = transformers.Phi3Config(
        vocab_size=size(32_064, 64), hidden_size=size(3072, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(16, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(32, 2), pad_token_id=0,
        sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.Phi3ForCausalLM(config), HALF).eval()
    users, prompt, head = 4, size(256, 8), config.hidden_size // config.num_attention_heads
    batch = 1 if variant == BEFORE else users
    caches = []

    def user() -> Step:
        cache = static_cache(config, batch, prompt + 8, config.num_key_value_heads, head)
        caches.append(cache)
        ids = tokens(config.vocab_size, batch, 1)

        def token() -> Tensor:
            for layer in cache.layers:
                layer.cumulative_length.fill_(prompt)
            ids.copy_(model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1))
            return ids

        return as_graph(token)

    replays = [user() for _ in range(users // batch)]

    def step() -> None:
        for _ in range(2):
            for replay in replays:
                replay()

    return step


@pair(
    "recomputation", "translation", "the encoder runs once: encoder_outputs go into each call", FIFTEENTH,
    library="transformers", inference=True, steps=(3, 3),
)  # fmt: skip
def encoder_run_for_each_token(variant: str) -> Step:
    """A Pegasus (12 + 2 layers of 1,024, bf16) writes six words on 16 texts of 512; each call gets the texts again."""
    config = transformers.PegasusConfig(
        vocab_size=size(32_768, 64), d_model=size(1024, 32), encoder_layers=size(12, 1), decoder_layers=size(2, 1),
        encoder_attention_heads=size(16, 2), decoder_attention_heads=size(16, 2), encoder_ffn_dim=size(4096, 64),
        decoder_ffn_dim=size(4096, 64), max_position_embeddings=512,
    )  # fmt: skip
    model = on_device(lambda: transformers.PegasusForConditionalGeneration(config), HALF).eval()
    ids = tokens(config.vocab_size - 4, size(16, 2), size(512, 8)) + 4

    def step() -> Tensor:
        words = torch.zeros(len(ids), 1, dtype=torch.long, device=DEVICE)
        told = {"input_ids": ids} if variant == BEFORE else {"encoder_outputs": model.get_encoder()(input_ids=ids)}
        for _ in range(size(6, 2)):
            scores = model(**told, decoder_input_ids=words, use_cache=False).logits[:, -1:]
            words = torch.cat([words, scores.argmax(-1)], 1)
        return words

    return step


@pair(
    "host-stall", "recommendation", "torch.randint on the GPU draws items that were not bought", FIFTEENTH,
    accept=("blocking-copy",), steps=(3, 3),
)  # fmt: skip
def negatives_drawn_in_python(variant: str) -> Step:
    """SASRec (2 × 128) learns from 128 histories of 100 items; Python draws an unseen item for each, one by one."""
    items, width, batch, length = size(50_000, 100), size(128, 8), size(128, 2), size(100, 5)
    table = on_device(lambda: nn.Embedding(items, width)).train()
    blocks = on_device(lambda: nn.ModuleList(Block(width, 2, causal=True) for _ in range(2))).train()
    histories = [[random.randrange(items) for _ in range(length + 1)] for _ in range(batch)]
    bought = torch.tensor(histories, device=DEVICE)
    known = [set(history) for history in histories]

    def unseen(history: set[int]) -> int:
        item = random.randrange(items)
        while item in history:
            item = random.randrange(items)
        return item

    def loss() -> Tensor:
        if variant == BEFORE:
            drawn = [[unseen(history) for _ in range(length)] for history in known]
            others = torch.tensor(drawn).to(DEVICE)
        else:
            others = torch.randint(0, items, (batch, length), device=DEVICE)
        x = table(bought[:, :-1])
        for block in blocks:
            x = block(x)
        right, wrong = ((x * table(each)).sum(-1).float() for each in (bought[:, 1:], others))
        return -(functional.logsigmoid(right) + functional.logsigmoid(-wrong)).mean()

    return training(loss, adamw(nn.ModuleList([table, blocks])))


@pair(
    "host-stall", "time series", "torch.from_numpy(np.stack(windows)) instead of torch.tensor(windows)", FIFTEENTH,
    library="transformers", accept=("blocking-copy",), steps=(3, 3),
)  # fmt: skip
def windows_from_a_list_of_arrays(variant: str) -> Step:
    """A PatchTST (3 × 128) learns from 32 windows of 512 times and 7 series, which come as a list of NumPy arrays."""
    length, series, batch = size(512, 32), 7, size(32, 2)
    config = transformers.PatchTSTConfig(
        num_input_channels=series, context_length=length, prediction_length=size(96, 4), patch_length=16,
        patch_stride=16, d_model=size(128, 16), num_hidden_layers=3, num_attention_heads=size(16, 2),
        ffn_dim=size(256, 16), attention_dropout=0.0, ff_dropout=0.0, head_dropout=0.0, path_dropout=0.0,
        positional_dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.PatchTSTForPrediction(config)).train()
    record = np.random.default_rng(0).standard_normal((20_000, series)).astype(np.float32)
    optimizer = adamw(model)

    def moved(windows: list[np.ndarray]) -> Tensor:
        whole = torch.tensor(windows) if variant == BEFORE else torch.from_numpy(np.stack(windows))
        return whole.to(DEVICE)

    def step() -> None:
        begins = [random.randrange(len(record) - length - config.prediction_length) for _ in range(batch)]
        past = moved([record[begin : begin + length] for begin in begins])
        coming = moved([record[begin + length : begin + length + config.prediction_length] for begin in begins])
        training(lambda: model(past_values=past, future_values=coming).loss, optimizer)()

    return step


@pair(
    "unfused-chain", "prefill", "layers compiled whole, not their norms alone", FIFTEENTH,
    library="transformers", compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def experts_compiled_in_parts(variant: str) -> Step:
    """A GLM-4 of 4 × 4,096 with 16 experts reads 8 texts of 1,024 tokens in bf16: grouped products, norms compiled."""
    config = transformers.Glm4MoeConfig(
        vocab_size=size(16_384, 64), hidden_size=size(4096, 32), intermediate_size=size(10_944, 64),
        num_hidden_layers=size(4, 2), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
        head_dim=size(128, 16), n_routed_experts=size(16, 4), num_experts_per_tok=2,
        moe_intermediate_size=size(4096, 32), n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
        use_cache=False,
    )  # fmt: skip
    config._experts_implementation = "grouped_mm"
    model = on_device(lambda: transformers.Glm4MoeForCausalLM(config), HALF).eval()
    for layer in model.model.layers:
        compiled([layer.input_layernorm, layer.post_attention_layernorm] if variant == BEFORE else [layer])
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    return lambda: model(input_ids=ids, logits_to_keep=1)


@healthy("retrieval", FIFTEENTH, library="transformers", compiles=True, inference=True, steps=(6, 3))
def healthy_query_encoder(variant: str) -> Step:
    """DistilBERT (6 × 768, bf16) encodes a question of 32 words and looks it up among 20,000 passages, in one graph."""
    config = transformers.DistilBertConfig(
        vocab_size=size(30_528, 64), dim=size(768, 32), n_layers=size(6, 1), n_heads=size(12, 2),
        hidden_dim=size(3072, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.DistilBertModel(config), HALF).eval()
    for layer in model.transformer.layer:
        compiled([layer.ffn, layer.sa_layer_norm, layer.output_layer_norm])
    passages = torch.randn(size(20_000, 50), config.dim, device=DEVICE, dtype=HALF)
    ids = tokens(config.vocab_size, 1, size(32, 8))

    def found() -> Tensor:
        query = functional.normalize(model(input_ids=ids).last_hidden_state[:, 0], dim=-1)
        return (query @ passages.t()).argmax(-1)

    return as_graph(found)


@healthy("training", FIFTEENTH, library="transformers", compiles=True, steps=(3, 3))
def healthy_translation_training(variant: str) -> Step:
    """A Marian (6 + 6 × 1,024) learns from 64 pairs of 128 words: mixed precision, layers compiled, fused AdamW."""
    config = transformers.MarianConfig(
        vocab_size=size(32_768, 64), d_model=size(1024, 32), encoder_layers=size(6, 1), decoder_layers=size(6, 1),
        encoder_attention_heads=size(16, 2), decoder_attention_heads=size(16, 2), encoder_ffn_dim=size(4096, 64),
        decoder_ffn_dim=size(4096, 64), max_position_embeddings=256, dropout=0.0, use_cache=False, pad_token_id=0,
        decoder_start_token_id=0, scale_embedding=True,
    )  # fmt: skip
    model = on_device(lambda: transformers.MarianMTModel(config)).train()
    compiled([*model.model.encoder.layers, *model.model.decoder.layers])
    ids, labels = (tokens(config.vocab_size - 2, size(64, 2), size(128, 8)) + 2 for _ in range(2))
    return training(lambda: model(input_ids=ids, labels=labels, use_cache=False).loss, adamw(model))
