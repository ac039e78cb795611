"""The thirteenth set: written and recorded with the twelfth, split at random, and read once at the end."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import next_tokens
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, THIRTEENTH, Step, healthy, pair


@pair(
    "unfused-optimizer", "fine-tuning", "two groups, with weight decay and without, and fused=True", THIRTEENTH,
    library="transformers", accept=("launch-overhead",), compiles=True, steps=(3, 3),
)  # fmt: skip
def a_group_for_each_parameter(variant: str) -> Step:
    """An MPNet (12 × 768, compiled) is fine-tuned on 32 texts of 128 tokens; its AdamW gets a group for each tensor."""
    config = transformers.MPNetConfig(
        vocab_size=size(30_528, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_labels=6,
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.MPNetForSequenceClassification(config)).train()
    compiled(model.mpnet.encoder.layer)
    ids, labels = tokens(config.vocab_size - 4, size(32, 2), size(128, 8)) + 4, tokens(6, size(32, 2))
    bare = [p for p in model.parameters() if p.ndim < 2]
    wide = [p for p in model.parameters() if p.ndim >= 2]
    if variant == BEFORE:
        groups = [{"params": [p], "weight_decay": 0.01 if p.ndim > 1 else 0.0} for p in model.parameters()]
        optimizer = torch.optim.AdamW(groups, lr=2e-5)
    else:
        groups = [{"params": wide, "weight_decay": 0.01}, {"params": bare, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=2e-5, fused=True)
    return training(lambda: model(input_ids=ids, labels=labels).loss, optimizer)


@pair(
    "allocator-churn", "training", "without torch.cuda.empty_cache() after each batch", THIRTEENTH,
    library="transformers", accept=("host-stall",), steps=(3, 3),
)  # fmt: skip
def cache_emptied_after_each_batch(variant: str) -> Step:
    """An OLMo-2 (8 × 1,024) learns from 8 texts of 512 tokens in bf16; the cache is emptied after each batch."""
    config = transformers.Olmo2Config(
        vocab_size=size(16_384, 64), hidden_size=size(1024, 32), intermediate_size=size(4096, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2), use_cache=False,
        pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = on_device(lambda: transformers.Olmo2ForCausalLM(config), HALF).train()
    ids = tokens(config.vocab_size, size(8, 1), size(512, 8))
    learn = training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model), mixed=False)

    def step() -> None:
        learn()
        if variant == BEFORE and CUDA:
            torch.cuda.empty_cache()

    return step


class Guided(nn.Module):
    """A block that looks at its positions, then at a text."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.asks, self.told, self.heard = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def seen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention over [rows, positions, width]."""
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Positions [rows, positions, width], text [rows, words, width]."""
        x = x + self.out(self.seen(*self.joined(self.norms[0](x)).chunk(3, -1)))
        x = x + self.heard(self.seen(self.asks(self.norms[1](x)), *self.told(text).chunk(2, -1)))
        return x + self.feed(self.norms[2](x))


@pair(
    "launch-overhead", "diffusion", "one pass over both, as a batch of two, instead of two passes", THIRTEENTH,
    accept=("small-kernels", "weight-bound"), inference=True, steps=(3, 3),
)  # fmt: skip
def noise_told_with_and_without_text(variant: str) -> Step:
    """A denoiser (16 × 1,024) takes four steps for one image of 1,024 positions, with the text and without, in turn."""
    width, positions = size(1024, 32), size(1024, 16)
    blocks = on_device(lambda: nn.ModuleList(Guided(width, size(16, 2)) for _ in range(size(16, 2))), HALF).eval()
    noise = torch.randn(1, positions, width, device=DEVICE, dtype=HALF)
    texts = torch.randn(2, 77, width, device=DEVICE, dtype=HALF)

    def noises(x: Tensor, text: Tensor) -> Tensor:
        for block in blocks:
            x = block(x, text)
        return x

    def step() -> Tensor:
        x = noise
        for _ in range(4):
            if variant == BEFORE:
                told, free = noises(x, texts[:1]), noises(x, texts[1:])
            else:
                told, free = noises(x.expand(2, -1, -1), texts).chunk(2)
            x = x - 0.1 * (free + 5.0 * (told - free))
        return x

    return step


@pair(
    "recomputation", "decoding", "generate(use_cache=True), as it is by default", THIRTEENTH,
    library="transformers", inference=True, steps=(3, 3),
)  # fmt: skip
def generated_without_cache(variant: str) -> Step:
    """A StableLM (8 × 2,048) adds six tokens to 12 prompts of 512; its config came with use_cache=False."""
    config = transformers.StableLmConfig(
        vocab_size=size(16_384, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(32, 2),
        bos_token_id=0, eos_token_id=0, pad_token_id=0, use_cache=variant == AFTER,
    )  # fmt: skip
    model = on_device(lambda: transformers.StableLmForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size - 2, size(12, 2), size(512, 8)) + 2
    mask, new = torch.ones_like(ids), size(6, 2)
    how = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "use_cache": variant == AFTER}
    return lambda: model.generate(ids, attention_mask=mask, **how)


@pair(
    "misaligned-shape", "training", "30,528 words, six of them unused, instead of 30,522", THIRTEENTH,
    library="transformers", steps=(3, 3),
)  # fmt: skip
def masked_words_of_30522(variant: str) -> Step:
    """A DistilBERT (4 × 1,024, 30,522 words) learns masked words of 32 texts of 256 tokens in mixed precision."""
    words = size(30_522, 62)
    words += 0 if variant == BEFORE else -words % 16
    config = transformers.DistilBertConfig(
        vocab_size=words, dim=size(1024, 32), n_layers=size(4, 1), n_heads=size(16, 2), hidden_dim=size(4096, 64),
        dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.DistilBertForMaskedLM(config)).train()
    ids = tokens(size(30_522, 62), size(32, 2), size(256, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@pair(
    "per-expert-loop", "mixture-of-experts", "experts_implementation='grouped_mm' instead of 'eager'", THIRTEENTH,
    library="transformers", steps=(3, 3),
)  # fmt: skip
def eight_experts_in_turn(variant: str) -> Step:
    """A Mixtral (4 × 1,024) of 8 experts learns from 8 texts of 512 tokens in bf16; a loop visits its experts."""
    config = transformers.MixtralConfig(
        vocab_size=size(16_384, 64), hidden_size=size(1024, 32), intermediate_size=size(3584, 64),
        num_hidden_layers=size(4, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2),
        num_local_experts=8, num_experts_per_tok=2, use_cache=False,
    )  # fmt: skip
    config._experts_implementation = "eager" if variant == BEFORE else "grouped_mm"
    model = on_device(lambda: transformers.MixtralForCausalLM(config), HALF).train()
    ids = tokens(config.vocab_size, size(8, 2), size(512, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model), mixed=False)


@healthy("reinforcement", THIRTEENTH, compiles=True, inference=True, steps=(3, 3))
def healthy_small_policy(variant: str) -> Step:
    """A policy with memory (a GRU of 512) moves 64 robots for 300 turns in bf16: turns compiled, in one graph."""
    width, robots = size(512, 16), size(64, 2)
    cell = on_device(lambda: nn.GRUCell(width, width), HALF).eval()
    act = on_device(lambda: nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)), HALF, 1).eval()
    start, seen = (torch.randn(robots, width, device=DEVICE, dtype=HALF) for _ in range(2))
    compiled([cell, act])

    def turns() -> Tensor:
        state, x = start, seen
        for _ in range(size(300, 3)):
            state = cell(x, state)
            x = act(state)
        return x

    return as_graph(turns)


@healthy("decoding", THIRTEENTH, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_gemma_decoding(variant: str) -> Step:
    """A Gemma (8 × 3,072) adds three tokens to 128 texts of 512: static cache, compiled layers, a CUDA graph."""
    config = transformers.GemmaConfig(
        vocab_size=size(65_536, 64), hidden_size=size(3072, 32), intermediate_size=size(24_576, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2),
        head_dim=size(256, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.GemmaForCausalLM(config), HALF).eval()
    compiled([layer.mlp for layer in model.model.layers])
    for layer in model.model.layers:
        compiled([layer.input_layernorm, layer.post_attention_layernorm])
    batch, prompt = size(128, 2), size(512, 8)
    return next_tokens(model, batch, prompt, 3)


@healthy("training", THIRTEENTH, library="transformers", compiles=True, steps=(3, 3))
def healthy_opt_training(variant: str) -> Step:
    """An OPT (6 × 2,560) learns from 8 texts of 1,024 tokens: mixed precision, layers compiled, fused AdamW."""
    config = transformers.OPTConfig(
        vocab_size=size(16_384, 64), hidden_size=size(2560, 32), ffn_dim=size(10_240, 64), dropout=0.0,
        num_hidden_layers=size(6, 1), num_attention_heads=size(20, 2), max_position_embeddings=size(1024, 16),
        word_embed_proj_dim=size(2560, 32), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.OPTForCausalLM(config)).train()
    compiled(model.model.decoder.layers)
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))
