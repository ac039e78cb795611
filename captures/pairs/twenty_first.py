"""The twenty-first set: common habits and reported ones; written with the twentieth, split at random."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import vgg

from pairs.language import llama
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_FIRST, Step, healthy, pair


@healthy("training", TWENTY_FIRST, library="transformers", compiles=True, profiler_steps=True, steps=(3, 3))
def healthy_bert_pretraining(variant: str) -> Step:
    """A BERT-L (24 × 1,024) learns masked words of 64 texts of 512 tokens: mixed precision, compiled."""
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(1024, 32), num_hidden_layers=size(24, 1),
        num_attention_heads=size(16, 2), intermediate_size=size(4096, 64), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False)).train()
    head = on_device(lambda: nn.Linear(config.hidden_size, config.vocab_size), seed=1)
    compiled(model.encoder.layer)
    both = nn.ModuleList([model, head])
    texts, length, masked = size(64, 2), size(512, 16), size(77, 3)
    ids, words = tokens(config.vocab_size, texts, length), tokens(config.vocab_size, texts, masked)
    places = torch.rand(texts, length, device=DEVICE).argsort(-1)[:, :masked, None].expand(-1, -1, config.hidden_size)

    def loss() -> Tensor:
        x = model(input_ids=ids).last_hidden_state.gather(1, places)
        return functional.cross_entropy(head(x).flatten(0, 1), words.flatten())

    return training(loss, adamw(both))


@pair(
    "host-stall", "training", "words are drawn and masked on the GPU, by torch.rand and masks", TWENTY_FIRST,
    library="transformers", with_stack=True, steps=(3, 3),
)  # fmt: skip
def whole_words_masked_in_python(variant: str) -> Step:
    """A BERT (4 × 512) learns from 96 texts of 128 tokens, whole words of which the collator masks, token by token."""
    texts, length, mask_id = size(96, 2), size(128, 8), 3
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(512, 32), num_hidden_layers=size(4, 1),
        num_attention_heads=size(8, 2), intermediate_size=size(2048, 64), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForMaskedLM(config)).train()
    optimizer = adamw(model)
    ids = tokens(config.vocab_size - 4, texts, length) + 4
    words = torch.rand(texts, length, device=DEVICE).gt(0.3).cumsum(-1)
    id_lists, word_lists = ids.tolist(), words.tolist()
    chance = random.Random(0)

    def masked(row: list[int], row_words: list[int]) -> tuple[list[int], list[int]]:
        groups: dict[int, list[int]] = {}
        for place, word in enumerate(row_words):
            groups.setdefault(word, []).append(place)
        order = list(groups)
        chance.shuffle(order)
        inputs, labels, left = list(row), [-100] * len(row), round(0.15 * len(row))
        for word in order:
            if left < len(groups[word]):
                continue
            for place in groups[word]:
                left -= 1
                labels[place] = row[place]
                kind = chance.random()
                if kind < 0.8:
                    inputs[place] = mask_id
                elif kind < 0.9:
                    inputs[place] = chance.randrange(4, config.vocab_size)
        return inputs, labels

    def in_python() -> tuple[Tensor, Tensor]:
        rows = [masked(row, row_words) for row, row_words in zip(id_lists, word_lists, strict=True)]
        inputs, labels = (torch.tensor(part) for part in zip(*rows, strict=True))
        return inputs.to(DEVICE), labels.to(DEVICE)

    def on_gpu() -> tuple[Tensor, Tensor]:
        drawn = torch.rand(texts, length + 1, device=DEVICE).gather(1, words) < 0.15
        kind = torch.rand(texts, length, device=DEVICE)
        inputs = torch.where(drawn & (kind < 0.8), mask_id, ids)
        inputs = torch.where(drawn & (kind >= 0.9), torch.randint_like(ids, 4, config.vocab_size), inputs)
        return inputs, torch.where(drawn, ids, -100)

    def step() -> None:
        inputs, labels = in_python() if variant == BEFORE else on_gpu()
        training(lambda: model(input_ids=inputs, labels=labels).loss, optimizer)()

    return step


@pair(
    "blocking-copy", "evaluation", "preprocess_logits_for_metrics: likeliest words are copied", TWENTY_FIRST,
    library="transformers", accept=("host-sync", "host-stall"), inference=True, steps=(4, 4),
)  # fmt: skip
def logits_gathered_for_metrics(variant: str) -> Step:
    """A Mistral (12 × 2,048, bf16) is evaluated on 4 texts of 256 tokens; all 32,000 scores a place go to the host."""
    config = transformers.MistralConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(7168, 64),
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 1), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(4, 2), size(256, 8))

    def step() -> tuple[float, Tensor]:
        told = model(input_ids=ids, labels=ids)
        if variant == BEFORE:
            return told.loss.item(), told.logits.cpu()
        return told.loss.item(), told.logits.argmax(-1).cpu()

    return step


@pair(
    "precision", "embedding", "the model and its images in bfloat16, which is not the default", TWENTY_FIRST,
    library="timm", accept=("tensor-compute",), inference=True, steps=(3, 3),
)  # fmt: skip
def swin_features_in_fp32(variant: str) -> Step:
    """A Swin-B describes 64 images for a search by likeness, in fp32 as timm makes it; nothing asks for TF32."""
    name = "swin_base_patch4_window7_224" if CUDA else "swin_tiny_patch4_window7_224"
    dtype = torch.float32 if variant == BEFORE else HALF
    model = on_device(lambda: timm.create_model(name, num_classes=0), dtype).eval()
    x = images(size(64, 1), 224, dtype)
    return lambda: functional.normalize(model(x).float(), dim=-1)


@pair(
    "memory-format", "vision", "model and images in torch.channels_last", TWENTY_FIRST,
    library="torchvision", accept=("memory-bandwidth",), inference=True, ranges=False, steps=(3, 3),
)  # fmt: skip
def vgg_features_as_images_come(variant: str) -> Step:
    """VGG-19's convolutions and batch norms look at 128 images of 224 × 224 in bf16, in the format images come in."""
    plan = vgg.cfgs["E"] if not TINY else [8, "M", 16, "M"]
    model = on_device(lambda: vgg.make_layers(plan, batch_norm=True), HALF).eval()
    x = images(size(128, 2), size(224, 32), HALF)
    if variant == AFTER:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    return lambda: model(x).mean((2, 3))


@pair(
    "weight-bound", "prefill", "the prompt in one piece instead of chunks of 64 tokens", TWENTY_FIRST,
    library="transformers", accept=("launch-overhead", "small-kernels"), inference=True, steps=(2, 2),
)  # fmt: skip
def prompt_in_small_chunks(variant: str) -> Step:
    """Four layers of Llama-70B (8,192 wide, bf16) read one prompt of 1,024 tokens in sixteen chunks."""
    config = llama(4, 8192, heads=64, groups=8, feed=size(28_672, 96))
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    prompt = tokens(config.vocab_size, 1, size(1024, 16))
    chunks = prompt.split(size(64, 4) if variant == BEFORE else prompt.shape[1], 1)

    def step() -> Tensor:
        cache = transformers.DynamicCache(config=config)
        for chunk in chunks:
            scores = model(input_ids=chunk, past_key_values=cache, logits_to_keep=1).logits
        return scores

    return step


@pair(
    "host-sync", "training", "loss and hits are added up on the GPU, and read once an epoch", TWENTY_FIRST,
    library="timm", accept=("host-stall",), compiles=True, profiler_steps=True, steps=(4, 4),
)  # fmt: skip
def losses_read_before_the_next_crops(variant: str) -> Step:
    """A DeiT-III-B (blocks compiled) learns from 96 images; loss and hits are read, then NumPy cuts the next crops."""
    batch, large, side, classes = size(96, 2), size(256, 40), size(224, 32), size(1000, 8)
    name = "deit3_base_patch16_224" if CUDA else "deit3_small_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=classes, img_size=side)).train()
    compiled(model.blocks)
    optimizer = adamw(model)
    photos = np.random.default_rng(0).integers(0, 256, (batch, large, large, 3), dtype=np.uint8)
    labels = tokens(classes, batch)
    drawn = np.random.default_rng(1)
    told = torch.zeros(2, device=DEVICE)
    log: list[tuple[float, int]] = []

    def crops() -> Tensor:
        bytes_ = torch.empty(batch, side, side, 3, dtype=torch.uint8, pin_memory=CUDA)
        for crop, photo, (top, left) in zip(
            bytes_.numpy(), photos, drawn.integers(0, large - side, (batch, 2)), strict=True
        ):
            crop[:] = photo[top : top + side, left : left + side][:, :: 1 if top % 2 else -1]
        return bytes_

    def step() -> None:
        x = (crops().to(DEVICE, non_blocking=True).permute(0, 3, 1, 2).float() - 120.0) / 60.0
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            scores = model(x)
            loss = functional.cross_entropy(scores.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        hits = (scores.argmax(-1) == labels).sum()
        if variant == BEFORE:
            log.append((loss.item(), int(hits.item())))
        else:
            told.add_(torch.stack([loss.detach(), hits]))

    return step


@pair(
    "unused-gradients", "vision-language", "torch.no_grad() around the tower, which does not learn", TWENTY_FIRST,
    library="transformers", accept=("unused-results",), steps=(2, 2),
)  # fmt: skip
def frozen_tower_differentiated(variant: str) -> Step:
    """A Llama (4 × 2,048) learns to talk of 24 images; CLIP's ViT-L (16 layers) stays, but gets its gradients."""
    seen = transformers.CLIPVisionConfig(
        hidden_size=size(1024, 32), intermediate_size=size(4096, 64), num_hidden_layers=size(16, 1),
        num_attention_heads=size(16, 2), image_size=size(224, 28), patch_size=14,
    )  # fmt: skip
    tower = on_device(lambda: transformers.CLIPVisionModel(seen)).eval()
    config = llama(4, 2048, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config), seed=1).train()
    model.projector = on_device(lambda: nn.Linear(seen.hidden_size, config.hidden_size), seed=2)
    batch = size(24, 1)
    x, ids = images(batch, seen.image_size), tokens(config.vocab_size, batch, size(128, 8))
    frozen = torch.no_grad if variant == AFTER else contextlib.nullcontext

    def loss() -> Tensor:
        with frozen():
            patches = tower(pixel_values=x).last_hidden_state[:, 1:]
        words = model.get_input_embeddings()(ids)
        told = torch.cat([model.projector(patches), words.to(patches.dtype)], 1)
        scores = model(inputs_embeds=told, logits_to_keep=ids.shape[1] + 1).logits[:, :-1]
        return functional.cross_entropy(scores.flatten(0, 1).float(), ids.flatten())

    train = training(loss, adamw(model))

    def step() -> None:
        train()
        tower.zero_grad(set_to_none=True)

    return step
