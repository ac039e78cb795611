"""Language models of the half that was held out: written, and recorded, apart from the rules of the diagnosis."""

from __future__ import annotations

import math

import torch
import transformers
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import Reserved, next_tokens, rewind, static_cache
from pairs.parts import DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, HELD_OUT, Step, healthy, pair


def neox(layers: int, width: int, heads: int, vocabulary: int = 50432) -> transformers.GPTNeoXConfig:
    """A Pythia: attention and MLP beside each other, rotary embeddings on a quarter of each head."""
    return transformers.GPTNeoXConfig(
        vocab_size=size(vocabulary, 128), hidden_size=size(width, 64), num_hidden_layers=size(layers, 2),
        num_attention_heads=size(heads, 2), intermediate_size=size(4 * width, 96), max_position_embeddings=4096,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def qwen(kind: type, layers: int, width: int, heads: int, groups: int, feed: int, **more: object) -> object:
    """A Qwen with grouped queries and heads of 128."""
    return kind(
        vocab_size=size(16384, 128), hidden_size=size(width, 64), num_hidden_layers=size(layers, 2),
        num_attention_heads=size(heads, 2), num_key_value_heads=size(groups, 2), intermediate_size=size(feed, 96),
        head_dim=size(128, 32), max_position_embeddings=8192, tie_word_embeddings=False, **more,
    )  # fmt: skip


class WrittenOut(nn.Module):
    """Causal attention as a textbook has it, or by one function."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, sequence, width]."""
        batch, length, width = x.shape
        q, k, v = self.into(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            y = functional.softmax(scores.masked_fill(later, float("-inf")), -1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Minimal(nn.Module):
    """A small GPT written by hand."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int, *, fused: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * depth + 1)])
        self.attention = nn.ModuleList([WrittenOut(width, heads, fused=fused) for _ in range(depth)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)]
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [batch, sequence] → logits."""
        x = self.embedding(ids)
        for index, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * index](x))
            x = x + mlp(self.norms[2 * index + 1](x))
        return self.head(self.norms[-1](x))


@pair("unfused-attention", "training", "scaled_dot_product_attention(is_causal=True)", HELD_OUT, with_stack=True)
def minimal_gpt_written_out(variant: str) -> Step:
    """A GPT of 8 × 1,024 written by hand, trained on 8 × 2,048 tokens: scores, mask and softmax in passes."""
    vocabulary = size(8192, 128)
    model = on_device(
        lambda: Minimal(size(8, 2), size(1024, 64), size(16, 2), vocabulary, fused=variant == AFTER)
    ).train()
    ids = tokens(vocabulary, size(8, 2), size(2048, 16))
    return training(
        lambda: functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()), adamw(model)
    )


@pair(
    "unfused-chain", "training", "activation_function='gelu_pytorch_tanh' instead of 'gelu_new'", HELD_OUT,
    library="transformers", also_after=True,
)  # fmt: skip
def gpt2_gelu_by_hand(variant: str) -> Step:
    """GPT-2 (8 × 1,024) on 16 × 1,024 tokens; its GELU is a formula of eight passes over the widest tensor."""
    config = transformers.GPT2Config(
        vocab_size=size(8192, 128), n_layer=size(8, 2), n_embd=size(1024, 64), n_head=size(16, 2), resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
        activation_function="gelu_new" if variant == BEFORE else "gelu_pytorch_tanh",
    )  # fmt: skip
    model = on_device(lambda: transformers.GPT2LMHeadModel(config)).train()
    ids = tokens(config.vocab_size, size(16, 2), size(1024, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@pair(
    "unfused-chain", "prefill", "each decoder layer through torch.compile", HELD_OUT,
    library="transformers", compiles=True, inference=True, ranges=False,
)  # fmt: skip
def qwen3_prefill_eager(variant: str) -> Step:
    """Prefill of 8 × 2,048 tokens by a Qwen3 of 10 × 1,024: norms in fp32, also of queries and keys, rotary, SwiGLU."""
    config = qwen(transformers.Qwen3Config, 10, 1024, 16, 8, 3072, use_cache=False)
    model = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).eval()
    if variant == AFTER:
        compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(2048, 16))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


@pair(
    "weight-bound", "decoding", "32 sequences at a time instead of two (work: tokens a step)", HELD_OUT,
    library="transformers", inference=True, work={BEFORE: 4, AFTER: 64}, profiler_steps=True,
)  # fmt: skip
def qwen2_decode_two(variant: str) -> Step:
    """A Qwen2 of 20 × 3,584 (bf16) decodes two tokens of two sequences from a CUDA graph."""
    batch, prompt = (2 if variant == BEFORE else 32), size(128, 8)
    config = qwen(transformers.Qwen2Config, 20, 3584, 28, 28, 18944)
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).eval()
    return next_tokens(model, batch, prompt, 2)


@pair(
    "growing-cache", "decoding", "a cache in memory reserved beforehand instead of DynamicCache, which concatenates",
    HELD_OUT, library="transformers", inference=True, ranges=False,
)  # fmt: skip
def neox_growing_cache(variant: str) -> Step:
    """A Pythia of 5 × 2,560 decodes 3 tokens of 96 sequences after 1,536 tokens; each token copies the cache."""
    batch, prompt = size(96, 2), size(1536, 8)
    config = neox(5, 2560, 32)
    heads, head = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    model = on_device(lambda: transformers.GPTNeoXForCausalLM(config), HALF).eval()
    first = tokens(config.vocab_size, batch, 1)
    shape = (2, batch, heads, prompt, head)
    prompts = [torch.randn(*shape, device=DEVICE, dtype=HALF).unbind() for _ in model.gpt_neox.layers]
    cache = transformers.DynamicCache(prompts, config=config)
    if variant == AFTER:
        cache.layers = [Reserved() for _ in prompts]
        for layer, (keys, values) in zip(cache.layers, prompts, strict=True):
            layer.reserve(keys, values, 8)

    def step() -> Tensor:
        for layer, (keys, values) in zip(cache.layers, prompts, strict=True):
            layer.keys, layer.values, layer.length = keys, values, prompt
        ids = first
        for _ in range(3):
            ids = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)
        return ids

    return step


@pair(
    "host-sync", "decoding", "tokens are read once, with tolist(), instead of one by one with item()",
    HELD_OUT, library="transformers", inference=True, with_stack=True, also_after=True,
)  # fmt: skip
def neox_item_a_sequence(variant: str) -> Step:
    """A Pythia of 6 × 512 decodes eight tokens of 64 sequences from a CUDA graph; each token is read by itself."""
    batch, prompt = size(64, 2), size(64, 8)
    config = neox(6, 512, 8)
    heads = config.num_attention_heads
    model = on_device(lambda: transformers.GPTNeoXForCausalLM(config), HALF).eval()
    cache = static_cache(config, batch, prompt + 16, heads, config.hidden_size // heads)
    rewind(cache, prompt)
    ids = tokens(config.vocab_size, batch, 1)

    def token() -> Tensor:
        logits = model(input_ids=ids, past_key_values=cache).logits
        ids.copy_(logits[:, -1:].argmax(-1))
        return ids

    replay = as_graph(token)

    def step() -> list[list[int]]:
        rewind(cache, prompt)
        written: list[list[int]] = []
        kept = []
        for _ in range(8):
            replay()
            if variant == BEFORE:
                written.append([ids[index, 0].item() for index in range(batch)])
            else:
                kept.append(ids.clone())
        return written if variant == BEFORE else torch.cat(kept, 1).t().tolist()

    return step


@pair(
    "per-expert-loop", "mixture-of-experts", "experts_implementation='grouped_mm' instead of 'eager'", HELD_OUT,
    library="transformers", inference=True, steps=(5, 2),
)  # fmt: skip
def olmoe_expert_loop(variant: str) -> Step:
    """Prefill of 4,096 tokens by an OLMoE of 5 × 1,536 with 48 experts, 4 of them a token, visited one by one."""
    config = transformers.OlmoeConfig(
        vocab_size=size(8192, 128), hidden_size=size(1536, 64), intermediate_size=size(768, 32),
        num_hidden_layers=size(5, 2), num_attention_heads=size(12, 2), num_key_value_heads=size(12, 2),
        num_experts=size(48, 4), num_experts_per_tok=size(4, 2), use_cache=False,
        bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    config._experts_implementation = "eager" if variant == BEFORE else "grouped_mm"
    model = on_device(lambda: transformers.OlmoeForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(2, 2), size(2048, 16))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


@pair(
    "unfused-optimizer", "training", "AdamW(fused=True) instead of the default, which is foreach", HELD_OUT,
    library="transformers", also_after=True, compiles=True,
)  # fmt: skip
def mistral_foreach_optimizer(variant: str) -> Step:
    """A Mistral of 12 × 2,560 (1.1 billion weights), 1,024 tokens a step, layers compiled, AdamW as it comes."""
    config = transformers.MistralConfig(
        vocab_size=size(8192, 128), hidden_size=size(2560, 64), intermediate_size=size(8192, 96),
        num_hidden_layers=size(12, 2), num_attention_heads=size(20, 2), num_key_value_heads=size(20, 2),
        head_dim=size(128, 32), use_cache=False, sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config)).train()
    compiled(model.model.layers)
    optimizer = adamw(model, foreach=True) if variant == BEFORE else adamw(model)
    ids = tokens(config.vocab_size, 1, size(1024, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, optimizer)


@pair(
    "precision", "speech", "Accelerator(mixed_precision='bf16') instead of 'no'", HELD_OUT,
    library="accelerate, transformers", with_stack=True, steps=(5, 2),
)  # fmt: skip
def accelerate_hubert_fp32(variant: str) -> Step:
    """HuBERT (8 × 768) trained on 16 recordings of ten seconds under Accelerate in fp32; TF32 is off for products."""
    config = transformers.HubertConfig(
        hidden_size=size(768, 64), num_hidden_layers=size(8, 2), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 96), conv_dim=[size(512, 16)] * 7, num_conv_pos_embeddings=size(128, 16),
        num_conv_pos_embedding_groups=size(16, 2), layerdrop=0.0, apply_spec_augment=False, mask_time_prob=0.0,
        use_weighted_layer_sum=False, num_labels=8, classifier_proj_size=size(256, 16),
    )  # fmt: skip
    precision = "no" if variant == BEFORE else "bf16"
    # Accelerate keeps one state for a process; two programs here differ in it.
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    accelerator = Accelerator(mixed_precision=precision, cpu=DEVICE.type == "cpu")
    model = on_device(lambda: transformers.HubertForSequenceClassification(config)).train()
    model, optimizer = accelerator.prepare(model, adamw(model))
    sound = torch.randn(size(16, 2), size(160_000, 4000), device=DEVICE)
    labels = tokens(8, size(16, 2))

    def step() -> None:
        accelerator.backward(model(sound, labels=labels).loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "launch-overhead", "speech", "replayed from a CUDA graph", HELD_OUT,
    library="transformers", inference=True, also_after=True,
)  # fmt: skip
def wav2vec2_streaming_chunk(variant: str) -> Step:
    """Wav2Vec2-base hears one second of one stream at a time, kernel by kernel."""
    config = transformers.Wav2Vec2Config(
        hidden_size=size(768, 64), num_hidden_layers=size(12, 2), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 96), conv_dim=[size(512, 16)] * 7, num_conv_pos_embeddings=size(128, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.Wav2Vec2Model(config), HALF).eval()
    sound = torch.randn(1, size(16_000, 4000), device=DEVICE, dtype=HALF)
    return as_graph(lambda: model(sound).last_hidden_state) if variant == AFTER else lambda: model(sound)


@pair(
    "host-stall", "speech", "feature_extractor(…, device='cuda') instead of on the CPU", HELD_OUT,
    library="transformers", inference=True, profiler_steps=True, also_after=True,
)  # fmt: skip
def whisper_features_on_host(variant: str) -> Step:
    """The encoder of Whisper (6 × 512) on 8 recordings of 30 s, whose spectrograms the host works out in each step."""
    config = transformers.WhisperConfig(
        d_model=size(512, 64), encoder_layers=size(6, 2), encoder_attention_heads=size(8, 2),
        encoder_ffn_dim=size(2048, 96), num_mel_bins=80,
    )  # fmt: skip
    model = on_device(lambda: transformers.models.whisper.modeling_whisper.WhisperEncoder(config), HALF).eval()
    extract = transformers.WhisperFeatureExtractor(feature_size=80)
    sound = [torch.randn(16_000 * 30).numpy() for _ in range(size(8, 1))]
    where = DEVICE.type if variant == AFTER else "cpu"

    def step() -> Tensor:
        found = extract(sound, sampling_rate=16_000, return_tensors="pt", device=where).input_features
        return model(found.to(DEVICE, HALF)).last_hidden_state

    return step


@healthy("training", HELD_OUT, library="transformers", compiles=True, profiler_steps=True)
def healthy_neox_training(variant: str) -> Step:
    """A Pythia of 6 × 2,560 trained on 8 × 2,048 tokens: layers compiled, mixed precision, fused AdamW."""
    config = neox(6, 2560, 20, 8192)
    config.use_cache = False
    model = on_device(lambda: transformers.GPTNeoXForCausalLM(config)).train()
    compiled(model.gpt_neox.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(2048, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@healthy("prefill", HELD_OUT, library="transformers", compiles=True, inference=True)
def healthy_mistral_prefill(variant: str) -> Step:
    """Prefill of 8 × 2,048 tokens by a Mistral of 6 × 4,096 with grouped queries, bf16, layers compiled."""
    config = transformers.MistralConfig(
        vocab_size=size(32000, 128), hidden_size=size(4096, 64), intermediate_size=size(14336, 96),
        num_hidden_layers=size(6, 2), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 1),
        head_dim=size(128, 32), use_cache=False, sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(2048, 16))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


@healthy("speech", HELD_OUT, library="transformers", compiles=True, ranges=False)
def healthy_whisper_training(variant: str) -> Step:
    """The encoder of Whisper (8 × 1,280) trained on 16 recordings of 30 s, layers compiled, SDPA."""
    config = transformers.WhisperConfig(
        d_model=size(1280, 64), encoder_layers=size(8, 2), encoder_attention_heads=size(20, 2),
        encoder_ffn_dim=size(5120, 96), num_mel_bins=80, max_source_positions=size(1500, 50),
    )  # fmt: skip
    model = on_device(lambda: transformers.models.whisper.modeling_whisper.WhisperEncoder(config)).train()
    compiled(model.layers)
    sound = torch.randn(size(16, 2), 80, 2 * config.max_source_positions, device=DEVICE)
    return training(lambda: model(sound).last_hidden_state.float().square().mean(), adamw(model))
