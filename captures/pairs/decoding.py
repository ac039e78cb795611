"""Decoding: one token after the other."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import sdpa_mask

from pairs.language import llama
from pairs.parts import DEVICE, HALF, as_graph, on_device, size, tokens
from pairs.registry import AFTER, BEFORE, Step, pair


def static_cache(config: transformers.PreTrainedConfig, batch: int, length: int, heads: int, head: int) -> object:
    """A cache that holds its longest sequence from the beginning."""
    cache = transformers.StaticCache(config=config, max_cache_len=length)
    cache.early_initialization(batch, heads, head, HALF, DEVICE)
    return cache


def rewind(cache: object, length: int) -> None:
    """Forgets what was written after a prompt of that length."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(length)


def share_heads(model: torch.nn.Module) -> None:
    """Lets attention read keys and values that heads share, which transformers repeats if there is a mask."""

    def attention(
        module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: object
    ) -> tuple[Tensor, None]:
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)
        return seen.transpose(1, 2), None

    transformers.AttentionInterface.register("shared", attention)
    transformers.AttentionMaskInterface.register("shared", sdpa_mask)
    model.set_attn_implementation("shared")
    torch._dynamo.reset()  # else both variants count towards the most recompilations, and some layers stay eager


def next_tokens(model: torch.nn.Module, batch: int, prompt: int, times: int, graphed: bool = True) -> Step:
    """Adds so many tokens to sequences with a prompt of that length, in a static cache; each from a CUDA graph."""
    config = model.config
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = static_cache(config, batch, prompt + 8, getattr(config, "num_key_value_heads", heads), head)
    rewind(cache, prompt)
    ids = tokens(config.vocab_size, batch, 1)

    def token() -> Tensor:
        ids.copy_(model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1))
        return ids

    run = as_graph(token) if graphed else token

    def step() -> None:
        rewind(cache, prompt)
        for _ in range(times):
            run()

    return step


@pair(
    "weight-bound", "decoding", "16 sequences at a time instead of one (work: tokens a step)",
    library="transformers", inference=True, work={BEFORE: 4, AFTER: 64}, also_after=True,
)  # fmt: skip
def llama_decode_single(variant: str) -> Step:
    """A Llama of 16 × 4,096 (3.5 billion weights, bf16) decodes four tokens from a CUDA graph, one sequence alone."""
    batch, prompt = (1 if variant == BEFORE else 16), size(256, 8)
    config = llama(16, 4096, heads=32)
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    return next_tokens(model, batch, prompt, 4)


class Reserved(DynamicLayer):
    """A layer's cache in memory that was reserved beforehand: a token is written where it belongs."""

    def reserve(self, keys: Tensor, values: Tensor, more: int) -> None:
        """Room for the prompt's keys and values, and for more tokens."""
        self.lazy_initialization(keys, values)
        self.room = [functional.pad(old, (0, 0, 0, more)) for old in (keys, values)]
        self.length = keys.shape[-2]
        self.keys, self.values = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Writes the new tokens, and gives a view of all."""
        end = self.length + key_states.shape[-2]
        for room, new in zip(self.room, (key_states, value_states), strict=True):
            room[:, :, self.length : end] = new
        self.length = end
        self.keys, self.values = (room[:, :, :end] for room in self.room)
        return self.keys, self.values


@pair(
    "growing-cache", "decoding", "a cache in memory reserved beforehand instead of DynamicCache, which concatenates",
    library="transformers", inference=True, also_after=True, with_stack=True,
)  # fmt: skip
def llama_growing_cache(variant: str) -> Step:
    """A Llama of 6 × 2,048 decodes 4 tokens of 64 sequences after 2,048 tokens; each token copies the cache."""
    batch, prompt = size(64, 2), size(2048, 8)
    config = llama(6, 2048)
    heads, head = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    first = tokens(config.vocab_size, batch, 1)
    shape = (2, batch, heads, prompt, head)
    prompts = [torch.randn(*shape, device=DEVICE, dtype=HALF).unbind() for _ in model.model.layers]
    cache = transformers.DynamicCache(prompts, config=config)
    if variant == AFTER:
        cache.layers = [Reserved() for _ in prompts]
        for layer, (keys, values) in zip(cache.layers, prompts, strict=True):
            layer.reserve(keys, values, 8)

    def step() -> Tensor:
        for layer, (keys, values) in zip(cache.layers, prompts, strict=True):
            layer.keys, layer.values, layer.length = keys, values, prompt
        ids = first
        for _ in range(4):
            ids = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)
        return ids

    return step


@pair(
    "launch-overhead", "decoding", "each token replayed from a CUDA graph",
    library="transformers", inference=True, ranges=False,
)  # fmt: skip
def gpt2_decode_eager(variant: str) -> Step:
    """GPT-2 decodes four tokens of eight sequences from a static cache, kernel by kernel."""
    batch, prompt = size(8, 2), size(128, 8)
    config = transformers.GPT2Config(
        vocab_size=size(50304, 136), n_layer=size(12, 2), n_embd=size(768, 64), n_head=size(12, 2)
    )
    model = on_device(lambda: transformers.GPT2LMHeadModel(config), HALF).eval()
    return next_tokens(model, batch, prompt, 4, graphed=variant == AFTER)
