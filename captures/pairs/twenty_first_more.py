"""More of the twenty-first set."""

from __future__ import annotations

import timm
import torch
import transformers
from torch import Tensor
from torch.nn import functional

from pairs.decoding import next_tokens
from pairs.language import llama
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_FIRST, Step, healthy, pair


@pair(
    "misaligned-shape", "fine-tuning", "resize_token_embeddings(…, pad_to_multiple_of=64): 32,064 words", TWENTY_FIRST,
    library="transformers", compiles=True, steps=(3, 3),
)  # fmt: skip
def one_word_added(variant: str) -> Step:
    """A Llama (6 × 1,024, layers compiled) learns from 8 texts of 1,024 tokens; [PAD] became its word 32,001."""
    config = llama(6, 1024, vocabulary=32_000, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    words = config.vocab_size
    model.resize_token_embeddings(words + 1, None if variant == BEFORE else 64, mean_resizing=False)
    compiled(model.model.layers)
    ids = tokens(words, size(8, 1), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@pair(
    "unfused-chain", "diffusion", "each block through torch.compile", TWENTY_FIRST,
    library="transformers", accept=("unfused-attention", "memory-bandwidth"), compiles=True, inference=True,
    with_stack=True, steps=(3, 3),
)  # fmt: skip
def prompts_encoded_in_eager(variant: str) -> Step:
    """The encoder of a T5 (8 × 2,048, gated, bf16) reads 64 prompts of 256 tokens for a film generator, in eager."""
    config = transformers.T5Config(
        vocab_size=size(32_128, 64), d_model=size(2048, 32), d_kv=size(64, 16), d_ff=size(5120, 64),
        num_layers=size(8, 1), num_heads=size(32, 2), feed_forward_proj="gated-gelu", dropout_rate=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.T5EncoderModel(config), HALF).eval()
    if variant == AFTER:
        compiled(model.encoder.block)
    ids = tokens(config.vocab_size, size(64, 2), size(256, 8))
    return lambda: model(input_ids=ids).last_hidden_state


@pair(
    "launch-overhead", "decoding", "each token replayed from a CUDA graph", TWENTY_FIRST,
    library="transformers", inference=True, also_after=True, steps=(3, 3),
)  # fmt: skip
def one_billion_kernel_by_kernel(variant: str) -> Step:
    """A Llama of a billion weights (16 × 2,048, bf16) adds four tokens to one text from a static cache, in eager."""
    config = llama(16, 2048, vocabulary=128_256, heads=32, groups=8, feed=size(8192, 96))
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    return next_tokens(model, 1, size(512, 8), 4, graphed=variant == AFTER)


@healthy("serving", TWENTY_FIRST, library="timm", compiles=True, inference=True, ranges=False, steps=(4, 4))
def healthy_photo_service(variant: str) -> Step:
    """A ResNet-101-D (bf16, channels_last, compiled) tells what 256 images show, replayed from a CUDA graph."""
    name = "resnet101d" if CUDA else "resnet18d"
    model = on_device(lambda: timm.create_model(name, num_classes=size(1000, 8)), HALF).eval()
    model = model.to(memory_format=torch.channels_last)
    compiled([model])
    x = images(size(256, 1), size(224, 32), HALF).contiguous(memory_format=torch.channels_last)
    return as_graph(lambda: model(x).argmax(-1))


@healthy("contrastive", TWENTY_FIRST, library="transformers", compiles=True, steps=(3, 3))
def healthy_paragraph_pairs(variant: str) -> Step:
    """A RoBERTa (12 × 768) learns from 384 pairs of texts of 128 tokens: mixed precision, layers compiled."""
    config = transformers.RobertaConfig(
        vocab_size=size(50_304, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=size(514, 32), pad_token_id=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.RobertaModel(config, add_pooling_layer=False)).train()
    compiled(model.encoder.layer)
    pairs = size(384, 2)
    ids = tokens(config.vocab_size - 2, 2 * pairs, size(128, 8)) + 2
    right = torch.arange(pairs, device=DEVICE)

    def loss() -> Tensor:
        told = functional.normalize(model(input_ids=ids).last_hidden_state.float().mean(1), dim=-1)
        return functional.cross_entropy(told[:pairs] @ told[pairs:].T * 20, right)

    return training(loss, adamw(model))


@pair(
    "recomputation", "zero-shot", "features of the class names are kept from the first batch", TWENTY_FIRST,
    library="transformers", inference=True, steps=(3, 3),
)  # fmt: skip
def class_names_encoded_each_batch(variant: str) -> Step:
    """A CLIP (ViT-B/32, bf16) tells which of 400 classes 96 images show; each call gets all the names, too."""
    words, names, batch = size(49_408, 64), size(400, 3), size(96, 2)
    layers, heads = size(12, 1), size(8, 2)
    told = {
        "vocab_size": words, "hidden_size": size(512, 32), "intermediate_size": size(2048, 64), "eos_token_id": 1,
        "num_hidden_layers": layers, "num_attention_heads": heads, "bos_token_id": 0, "pad_token_id": 1,
    }  # fmt: skip
    seen = {
        "hidden_size": size(768, 32), "intermediate_size": size(3072, 64), "num_hidden_layers": layers,
        "num_attention_heads": size(12, 2), "image_size": size(224, 64), "patch_size": 32,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=told, vision_config=seen, projection_dim=size(512, 32))
    model = on_device(lambda: transformers.CLIPModel(config), HALF).eval()
    ids = tokens(words - 2, names, 77) + 2
    ids[:, -1] = 1
    x = images(batch, seen["image_size"], HALF)

    def features() -> Tensor:
        return functional.normalize(model.text_projection(model.text_model(input_ids=ids).pooler_output), dim=-1)

    kept = features() if variant == AFTER else None

    def step() -> Tensor:
        if kept is None:
            return model(input_ids=ids, pixel_values=x).logits_per_image.argmax(-1)
        looked = model.visual_projection(model.vision_model(pixel_values=x).pooler_output)
        return (functional.normalize(looked, dim=-1) @ kept.T * model.logit_scale.exp()).argmax(-1)

    return step


@healthy("summaries", TWENTY_FIRST, library="transformers", compiles=True, steps=(3, 3))
def healthy_summary_training(variant: str) -> Step:
    """A BART (6 + 6 × 1,024) learns 32 summaries of 128 words from texts of 768: mixed precision, layers compiled."""
    config = transformers.BartConfig(
        vocab_size=size(50_304, 64), d_model=size(1024, 32), encoder_layers=size(6, 1), decoder_layers=size(6, 1),
        encoder_attention_heads=size(16, 2), decoder_attention_heads=size(16, 2), encoder_ffn_dim=size(4096, 64),
        decoder_ffn_dim=size(4096, 64), dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.BartForConditionalGeneration(config)).train()
    compiled([*model.model.encoder.layers, *model.model.decoder.layers])
    texts = size(32, 1)
    ids = tokens(config.vocab_size - 4, texts, size(768, 8)) + 4
    labels = tokens(config.vocab_size - 4, texts, size(128, 8)) + 4
    how = {"input_ids": ids, "labels": labels, "decoder_input_ids": labels.roll(1, 1)}
    return training(lambda: model(**how).loss, adamw(model))
