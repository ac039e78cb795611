"""Language models of transformers: training and prefill."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional

from pairs.parts import HALF, adamw, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, Step, healthy, pair


def llama(layers: int, width: int, vocabulary: int = 32000, **more: Any) -> transformers.LlamaConfig:
    """A Llama of heads of 64, without grouped queries unless asked for."""
    width = size(width, 64)
    heads = more.pop("heads", width // 64) if size(1, 0) else 2
    return transformers.LlamaConfig(
        vocab_size=size(vocabulary, 128),
        hidden_size=width,
        intermediate_size=more.pop("feed", None) or size((width * 8 // 3 + 255) // 256 * 256, 96),
        num_hidden_layers=size(layers, 2),
        num_attention_heads=heads,
        num_key_value_heads=more.pop("groups", heads) if size(1, 0) else heads,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        pad_token_id=None,
        **more,
    )


@pair(
    "misaligned-shape", "training", "vocab_size=50304 instead of 50257",
    library="transformers", also_after=True, compiles=True,
)  # fmt: skip
def gpt2_odd_vocabulary(variant: str) -> Step:
    """GPT-2 (8 × 768), blocks compiled, 8 × 1,024 tokens, its own vocabulary of 50,257: products with an odd width."""
    vocabulary = size(50257, 129) if variant == BEFORE else size(50304, 136)
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_layer=size(8, 2), n_embd=size(768, 64), n_head=size(12, 2), resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.GPT2LMHeadModel(config)).train()
    compiled(model.transformer.h)
    ids = tokens(size(50257, 129), size(8, 2), size(1024, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@pair(
    "unfused-attention", "prefill", "attn_implementation='sdpa' instead of 'eager'",
    library="transformers", inference=True, with_stack=True,
)  # fmt: skip
def llama_prefill_eager_attention(variant: str) -> Step:
    """Prefill of 4 prompts of 4,096 tokens by a Llama of 8 × 2,048, scores written to memory."""
    config = llama(8, 2048, use_cache=False)
    config._attn_implementation = "eager" if variant == BEFORE else "sdpa"
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(4, 2), size(4096, 32))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


@pair(
    "unfused-chain", "training", "each decoder layer through torch.compile",
    library="transformers", compiles=True, also_after=True, profiler_steps=True,
)  # fmt: skip
def llama_training_eager(variant: str) -> Step:
    """Training of a Llama of 8 × 1,024 on 16 × 1,024 tokens: norms in fp32, rotary embeddings, SwiGLU in passes."""
    config = llama(8, 1024, vocabulary=8192, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    if variant == AFTER:
        compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(16, 2), size(1024, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@pair(
    "unfused-chain", "training", "functional.cross_entropy(label_smoothing=0.1) instead of log-probabilities by hand",
    library="transformers", with_stack=True,
)  # fmt: skip
def gpt2_loss_by_hand(variant: str) -> Step:
    """GPT-2 of 4 layers on 8 × 1,024 tokens; the smoothed loss is written out over fp32 logits of 50,304."""
    vocabulary, width = size(50304, 136), size(768, 64)
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_layer=size(4, 2), n_embd=width, n_head=size(12, 2), resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.GPT2LMHeadModel(config)).train()
    ids, labels = (tokens(vocabulary, size(8, 2), size(1024, 16)) for _ in range(2))

    def by_hand(logits: Tensor) -> Tensor:
        logits = logits.float()
        shifted = logits - logits.max(-1, keepdim=True).values
        log_probabilities = shifted - shifted.exp().sum(-1, keepdim=True).log()
        nll = -log_probabilities.gather(-1, labels[..., None]).squeeze(-1)
        return (0.9 * nll - 0.1 * log_probabilities.mean(-1)).mean()

    def by_torch(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits.view(-1, vocabulary), labels.view(-1), label_smoothing=0.1)

    loss = by_hand if variant == BEFORE else by_torch
    return training(lambda: loss(model(input_ids=ids).logits), adamw(model))


@pair(
    "recomputation", "training", "without gradient_checkpointing_enable()",
    library="transformers", also_after=True, compiles=True,
)  # fmt: skip
def bert_checkpointing(variant: str) -> Step:
    """BERT (12 × 1,024), layers compiled, 32 × 512 tokens, checkpointed on a GPU whose memory is mostly free."""
    config = transformers.BertConfig(
        vocab_size=size(30528, 128), hidden_size=size(1024, 64), num_hidden_layers=size(12, 2),
        num_attention_heads=size(16, 2), intermediate_size=size(4096, 96), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForMaskedLM(config)).train()
    if variant == BEFORE:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    compiled(model.bert.encoder.layer)
    ids = tokens(config.vocab_size, size(32, 2), size(512, 16))
    labels = torch.where(torch.rand(ids.shape, device=ids.device) < 0.15, ids, -100)
    return training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model))


@pair(
    "allocator-churn", "training", "without torch.cuda.empty_cache() after each step",
    library="transformers", with_stack=True,
)  # fmt: skip
def bert_empty_cache(variant: str) -> Step:
    """BERT-base classifying 32 × 256 tokens; the allocator's cache is given back after each step."""
    config = transformers.BertConfig(
        vocab_size=size(30528, 128), hidden_size=size(768, 64), num_hidden_layers=size(12, 2),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 96), num_labels=2,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForSequenceClassification(config)).train()
    ids, labels = tokens(config.vocab_size, size(32, 2), size(256, 16)), tokens(2, size(32, 2))
    train = training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model))

    def step() -> None:
        train()
        if variant == BEFORE:
            torch.cuda.empty_cache()

    return step


@pair(
    "precision", "training", "Fabric(precision='bf16-mixed') instead of '32-true'",
    library="lightning, transformers", profiler_steps=True,
)  # fmt: skip
def fabric_bert_fp32(variant: str) -> Step:
    """BERT-base classifying 64 × 256 tokens under Lightning Fabric in fp32; TF32 is off, as it is by default."""
    config = transformers.BertConfig(
        vocab_size=size(30528, 128), hidden_size=size(768, 64), num_hidden_layers=size(12, 2),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 96), num_labels=2,
    )  # fmt: skip
    precision = "32-true" if variant == BEFORE else "bf16-mixed"
    fabric = Fabric(accelerator="cuda" if size(1, 0) else "cpu", devices=1, precision=precision)
    model = on_device(lambda: transformers.BertForSequenceClassification(config)).train()
    model, optimizer = fabric.setup(model, adamw(model))
    ids, labels = tokens(config.vocab_size, size(64, 2), size(256, 16)), tokens(2, size(64, 2))

    def step() -> None:
        fabric.backward(model(input_ids=ids, labels=labels).loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


@healthy("training", library="transformers", compiles=True)
def healthy_llama_training(variant: str) -> Step:
    """Training of a Llama of 8 × 2,048 on 16 × 1,024 tokens: layers compiled, mixed precision, fused AdamW."""
    config = llama(8, 2048, vocabulary=8192, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(16, 2), size(1024, 16))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@healthy("prefill", library="transformers", compiles=True, inference=True, profiler_steps=True)
def healthy_bert_encoding(variant: str) -> Step:
    """BERT-large encoding 256 × 128 tokens in bf16, layers compiled."""
    config = transformers.BertConfig(
        vocab_size=size(30528, 128), hidden_size=size(1024, 64), num_hidden_layers=size(12, 2),
        num_attention_heads=size(16, 2), intermediate_size=size(4096, 96),
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False), HALF).eval()
    compiled(model.encoder.layer)
    ids = tokens(config.vocab_size, size(256, 2), size(128, 16))
    return lambda: model(input_ids=ids).last_hidden_state
