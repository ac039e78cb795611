"""The sixteenth set: common habits and reported ones; written with the seventeenth, split at random."""

from __future__ import annotations

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import next_tokens, share_heads
from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, SIXTEENTH, Step, healthy, pair


@pair(
    "misaligned-shape", "prefill", "layers of 5,464 instead of int(8 · 2,048 / 3) = 5,461", SIXTEENTH,
    library="transformers", inference=True, steps=(3, 3),
)  # fmt: skip
def gates_of_5461(variant: str) -> Step:
    """A Llama of 8 × 2,048 reads 8 texts of 1,024 tokens in bf16; its MLPs are 8/3 as wide as it, rounded down."""
    width = size(2048, 32)
    wide = int(8 * width / 3)
    if variant == AFTER:
        wide += -wide % 8
    config = transformers.LlamaConfig(
        vocab_size=size(16_384, 64), hidden_size=width, intermediate_size=wide,
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    return lambda: model(input_ids=ids, logits_to_keep=1)


@pair(
    "recomputation", "retrieval", "the corpus is normalised once, and util.dot_score compares", SIXTEENTH,
    library="sentence-transformers", accept=("memory-bandwidth", "unfused-chain"), inference=True, steps=(6, 3),
)  # fmt: skip
def corpus_normalised_for_each_query(variant: str) -> Step:
    """Eight questions are looked up among 600,000 passages of 384 numbers (fp32) by util.cos_sim, one after another."""
    from sentence_transformers import util

    passages = torch.randn(size(600_000, 50), size(384, 8), device=DEVICE)
    questions = torch.randn(8, passages.shape[1], device=DEVICE)
    if variant == AFTER:
        passages, questions = util.normalize_embeddings(passages), util.normalize_embeddings(questions)
    score = util.cos_sim if variant == BEFORE else util.dot_score
    return lambda: [score(question, passages).topk(10).indices for question in questions]


@pair(
    "memory-bandwidth", "speech", "lstm.flatten_parameters() after the weights were assigned", SIXTEENTH,
    accept=("unfused-chain", "small-kernels", "launch-overhead", "weight-bound", "recomputation"),
    inference=True, steps=(6, 3),
)  # fmt: skip
def recurrent_weights_in_pieces(variant: str) -> Step:
    """LSTMs of 2 × 3,072 (bf16) hear 16 frames of 32 streams, one by one; weights were loaded with assign=True."""
    width = size(3072, 16)
    lstm = on_device(lambda: nn.LSTM(width, width, 2, batch_first=True), HALF).eval()
    weights = {name: value.clone() for name, value in lstm.state_dict().items()}
    lstm.load_state_dict(weights, assign=True)
    for weight in lstm.parameters():
        weight.requires_grad_(False)
    if variant == AFTER:
        lstm.flatten_parameters()
    frames = torch.randn(16, size(32, 2), 1, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        state = None
        for frame in frames:
            x, state = lstm(frame, state)
        return x

    return step


@pair(
    "precision", "kernels", 'tl.dot(…, input_precision="tf32") instead of "ieee"', SIXTEENTH,
    library="triton", accept=("tensor-compute",), inference=True, steps=(3, 3),
)  # fmt: skip
def triton_products_in_ieee(variant: str) -> Step:
    """Four layers of 2,048 on 8,192 rows in fp32: product, bias and GELU in one kernel of Triton, without TF32."""
    width, rows = size(2048, 16), size(8192, 4)
    weights = [torch.randn(width, width, device=DEVICE) / width**0.5 for _ in range(4)]
    bias = torch.randn(width, device=DEVICE)
    x = torch.randn(rows, width, device=DEVICE)
    if not CUDA:
        return lambda: [functional.gelu(x @ weight + bias) for weight in weights]
    from pairs.products import product_gelu

    def step() -> Tensor:
        y = x
        for weight in weights:
            y = product_gelu(y, weight, bias, "ieee" if variant == BEFORE else "tf32")
        return y

    return step


@pair(
    "allocator-churn", "training", "the caching allocator left on", SIXTEENTH,
    library="timm", accept=("host-stall", "launch-overhead", "host-sync"), steps=(3, 3),
)  # fmt: skip
def allocator_without_cache(variant: str) -> Step:
    """A CaiT learns from 32 images in bf16 with the caching allocator turned off, as it is for hunting leaks."""
    name = "cait_xxs24_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=100)).train()
    x, labels = images(size(32, 1), 224), tokens(100, size(32, 1))
    learn = training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))

    def step() -> None:
        if CUDA:
            torch.cuda.caching_allocator_enable(variant == AFTER)
        learn()
        if CUDA:
            torch.cuda.caching_allocator_enable(True)

    return step


@pair(
    "growing-cache", "decoding", "attention reads the heads that are shared, which were repeated", SIXTEENTH,
    library="transformers", compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def qwen_heads_repeated(variant: str) -> Step:
    """A Qwen3 (8 × 4,096, bf16) adds three tokens to 128 texts of 512: layers compiled, static cache, a CUDA graph."""
    config = transformers.Qwen3Config(
        vocab_size=size(32_768, 64), hidden_size=size(4096, 32), intermediate_size=size(12_288, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
        head_dim=size(128, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).eval()
    if variant == AFTER:
        share_heads(model)
    compiled(model.model.layers)
    batch, prompt = size(128, 2), size(504, 8)
    return next_tokens(model, batch, prompt, 3)


@healthy("retrieval", SIXTEENTH, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_reranker(variant: str) -> Step:
    """A BERT-L ranks 384 passages of 128 words for a question: bf16, layers compiled."""
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(1024, 32), intermediate_size=size(4096, 64),
        num_hidden_layers=size(24, 1), num_attention_heads=size(16, 2), num_labels=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForSequenceClassification(config), HALF).eval()
    compiled(model.bert.encoder.layer)
    ids = tokens(config.vocab_size, size(384, 2), size(128, 8))
    return lambda: model(input_ids=ids).logits[:, 0].topk(2).indices
