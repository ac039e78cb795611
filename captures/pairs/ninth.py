"""The ninth, small set: habits of ordinary scripts, recorded before the rules were mended with the eighth in view."""

from __future__ import annotations

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, NINTH, Step, healthy, pair


@pair(
    "recomputation", "decoding", "past keys and values are kept instead of computing the whole text for each token",
    NINTH, library="transformers", accept=("growing-cache",), inference=True, steps=(2, 1),
)  # fmt: skip
def sampling_without_cache(variant: str) -> Step:
    """A Phi (12 × 1,024) continues 16 prompts of 512 tokens by 16; the sampling loop gives it the whole text again."""
    config = transformers.PhiConfig(
        vocab_size=size(50304, 64), hidden_size=size(1024, 32), intermediate_size=size(4096, 64),
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 2), max_position_embeddings=1024,
    )  # fmt: skip
    model = on_device(lambda: transformers.PhiForCausalLM(config), HALF).eval()
    prompt = tokens(config.vocab_size, size(16, 2), size(512, 8))

    def step() -> Tensor:
        text, past, given = prompt, None, prompt
        for _ in range(size(16, 3)):
            result = model(input_ids=given, past_key_values=past, use_cache=variant == AFTER, logits_to_keep=1)
            chosen = result.logits[:, -1].argmax(-1, keepdim=True)
            text = torch.cat([text, chosen], 1)
            past, given = (result.past_key_values, chosen) if variant == AFTER else (None, text)
        return text

    return step


class Written(nn.Module):
    """A small encoder whose words are given as a product with their one-hot vectors, or looked up."""

    def __init__(self, words: int, width: int, layers: int, heads: int, hot: bool) -> None:
        super().__init__()
        self.words, self.hot = words, hot
        self.table = nn.Parameter(torch.randn(words, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 16)

    def forward(self, ids: Tensor) -> Tensor:
        """The class of each text [texts, classes]."""
        if self.hot:
            x = functional.one_hot(ids, self.words).to(self.table.dtype) @ self.table
        else:
            x = functional.embedding(ids, self.table)
        return self.head(self.layers(x).mean(1))


@pair(
    "unfused-chain", "training", "the embedding is looked up, not multiplied with one-hot vectors", NINTH,
    accept=("scattered-access", "precision", "memory-bandwidth"), steps=(2, 1),
)  # fmt: skip
def words_as_one_hot(variant: str) -> Step:
    """An encoder (4 × 512) classifies 64 texts of 128 of 30,000 words; each word is a vector of 30,000 numbers."""
    words = size(30_000, 64)
    model = on_device(lambda: Written(words, size(512, 32), size(4, 1), size(8, 2), variant == BEFORE)).train()
    ids, labels = tokens(words, size(64, 2), size(128, 8)), tokens(16, size(64, 2))
    return training(lambda: functional.cross_entropy(model(ids).float(), labels), adamw(model))


@pair(
    "host-stall", "vision", "the positions are made once and kept on the GPU", NINTH,
    library="timm", accept=("blocking-copy",), inference=True,
)  # fmt: skip
def positions_made_by_numpy(variant: str) -> Step:
    """A ViT-S/16 takes 32 images of 384 pixels; NumPy makes sines of all positions whenever it is called."""
    model = on_device(
        lambda: timm.create_model("vit_small_patch16_224", img_size=size(384, 32), pos_embed="none"), HALF
    ).eval()
    side, width = size(384, 32) // 16, model.embed_dim
    x = images(size(32, 2), size(384, 32), HALF)

    def positions() -> Tensor:
        rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
        rates = 1.0 / 10_000 ** (np.arange(width // 4) / (width / 4))
        parts = [wave(place.reshape(-1, 1) * rates) for place in (rows, columns) for wave in (np.sin, np.cos)]
        return torch.from_numpy(np.concatenate(parts, 1)).to(DEVICE, HALF)

    kept = positions()

    def step() -> Tensor:
        patches = model.patch_embed(x) + (positions() if variant == BEFORE else kept)
        return model.head(model.norm(model.blocks(patches)).mean(1))

    return step


@pair(
    "host-stall", "training", "batches are stored as arrays, not as lists of Python numbers", NINTH,
    library="transformers", accept=("blocking-copy",), steps=(2, 1),
)  # fmt: skip
def batches_from_lists(variant: str) -> Step:
    """An ELECTRA (6 × 256) learns from 64 texts of 512 tokens; each batch is a list of lists."""
    config = transformers.ElectraConfig(
        vocab_size=size(30522, 64), embedding_size=size(256, 32), hidden_size=size(256, 32),
        num_hidden_layers=size(6, 1), num_attention_heads=size(4, 2), intermediate_size=size(1024, 64),
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=4,
    )  # fmt: skip
    model = on_device(lambda: transformers.ElectraForSequenceClassification(config)).train()
    texts = tokens(config.vocab_size, size(64, 2), size(512, 8)).cpu()
    lists, arrays = texts.tolist(), texts.pin_memory() if DEVICE.type == "cuda" else texts
    labels = tokens(4, len(texts))

    def loss() -> Tensor:
        batch = torch.tensor(lists) if variant == BEFORE else arrays
        return model(input_ids=batch.to(DEVICE, non_blocking=True), labels=labels).loss

    return training(loss, adamw(model))


@pair(
    "blocking-copy", "training", "the weights are saved every thousand steps, not after each", NINTH,
    library="torchvision", accept=("host-stall",), steps=(2, 1),
)  # fmt: skip
def weights_kept_after_each_step(variant: str) -> Step:
    """A Wide ResNet-50 learns from 64 images in bfloat16, channels last; after each step its weights go to the host."""
    model = on_device(lambda: torchvision.models.wide_resnet50_2(num_classes=size(1000, 10))).train()
    model = model.to(memory_format=torch.channels_last)
    x = images(size(64, 2), size(224, 64)).to(memory_format=torch.channels_last)
    labels = tokens(10, len(x))
    learn = training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))
    best: dict[str, Tensor] = {}

    def step() -> None:
        learn()
        if variant == BEFORE:
            best.update({name: value.cpu() for name, value in model.state_dict().items()})

    return step


@pair(
    "host-sync", "reinforcement", "the environments are stepped on the GPU, as tensors", NINTH,
    accept=("launch-overhead", "host-stall", "blocking-copy"), inference=True, steps=(1, 1),
)  # fmt: skip
def environments_on_the_host(variant: str) -> Step:
    """A policy of three layers moves 512 carts for 64 turns; NumPy steps them, so that states and moves are copied."""
    count, turns = size(512, 4), size(64, 4)
    policy = on_device(lambda: nn.Sequential(
        nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2)
    )).eval()  # fmt: skip
    push = torch.tensor([-1.0, 1.0], device=DEVICE)
    pushes = np.array([-1.0, 1.0], dtype=np.float32)

    def moved(state, force, sin, cos, stack):  # type: ignore[no-untyped-def]
        place, speed, angle, turn = state[:, 0], state[:, 1], state[:, 2], state[:, 3]
        force = (10 * force + 0.05 * turn * turn * sin(angle)) / 1.1
        faster = (9.8 * sin(angle) - cos(angle) * force) / (0.5 * (4 / 3 - 0.1 * cos(angle) * cos(angle) / 1.1))
        pushed = force - 0.05 * faster * cos(angle) / 1.1
        return stack([place + 0.02 * speed, speed + 0.02 * pushed, angle + 0.02 * turn, turn + 0.02 * faster], 1)

    begin = torch.zeros(count, 4, device=DEVICE)

    def on_gpu() -> Tensor:
        state = begin
        for _ in range(turns):
            state = moved(state, push[policy(state).argmax(-1)], torch.sin, torch.cos, torch.stack)
        return state

    def on_host() -> np.ndarray:
        state = np.zeros((count, 4), dtype=np.float32)
        for _ in range(turns):
            moves = policy(torch.from_numpy(state).to(DEVICE)).argmax(-1).cpu().numpy()
            state = moved(state, pushes[moves], np.sin, np.cos, np.stack).astype(np.float32)
        return state

    return on_host if variant == BEFORE else on_gpu


@pair(
    "launch-overhead", "diffusion", "guided and unguided passes in one batch", NINTH,
    library="timm", accept=("small-kernels",), inference=True, steps=(2, 1),
)  # fmt: skip
def guidance_in_two_passes(variant: str) -> Step:
    """A denoiser of DeiT-S blocks takes 12 steps of one image of 1,024 tokens, with and without the text each."""
    model = on_device(lambda: timm.create_model("deit_small_patch16_224", img_size=size(512, 32)), HALF).eval()
    width, count = model.embed_dim, size(1024, 4)
    text, nothing = (torch.randn(1, 1, width, device=DEVICE, dtype=HALF) for _ in range(2))
    noise = torch.randn(1, count, width, device=DEVICE, dtype=HALF)

    def denoised(x: Tensor, told: Tensor) -> Tensor:
        return model.norm(model.blocks(x + told))

    def step() -> Tensor:
        x = noise
        for _ in range(size(12, 2)):
            if variant == BEFORE:
                guided, free = denoised(x, text), denoised(x, nothing)
            else:
                guided, free = denoised(x.expand(2, -1, -1), torch.cat([text, nothing])).chunk(2)
            x = x - 0.1 * (free + 4 * (guided - free))
        return x

    return step


@pair(
    "launch-overhead", "decoding", "the search through the tags replays a CUDA graph", NINTH,
    library="transformers", accept=("small-kernels", "per-expert-loop"), inference=True, steps=(2, 1),
)  # fmt: skip
def best_tags_by_loop(variant: str) -> Step:
    """A DistilBERT (6 × 768) tags 32 texts of 256 tokens; the most likely row of 24 tags is searched word by word."""
    config = transformers.DistilBertConfig(
        vocab_size=size(30522, 64), dim=size(768, 32), n_layers=size(6, 1), n_heads=size(12, 2),
        hidden_dim=size(3072, 64), num_labels=24,
    )  # fmt: skip
    model = on_device(lambda: transformers.DistilBertForTokenClassification(config), HALF).eval()
    ids = tokens(config.vocab_size, size(32, 2), size(256, 8))
    change = torch.randn(24, 24, device=DEVICE)

    def step() -> Tensor:
        scores = model(input_ids=ids).logits.float()
        best, came = scores[:, 0], []
        for word in range(1, scores.shape[1]):
            best, origin = (best[:, :, None] + change).max(1)
            best = best + scores[:, word]
            came.append(origin)
        tag = best.argmax(1)
        row = [tag]
        for origin in reversed(came):
            tag = origin.gather(1, tag[:, None])[:, 0]
            row.append(tag)
        return torch.stack(row[::-1], 1)

    return as_graph(step) if variant == AFTER else step


@healthy("training", NINTH, library="transformers", steps=(3, 2), compiles=True)
def healthy_phi_training(variant: str) -> Step:
    """A Phi (8 × 2,048) learns from 8 texts of 1,024 tokens in bfloat16, its blocks compiled, fused AdamW."""
    config = transformers.PhiConfig(
        vocab_size=size(51200, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 2), max_position_embeddings=1024,
        resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0, use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.PhiForCausalLM(config)).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


@healthy("vision", NINTH, library="timm", steps=(3, 2), compiles=True, inference=True)
def healthy_beit_inference(variant: str) -> Step:
    """A BEiT-L/16 in bfloat16 takes 128 images, its blocks compiled."""
    name = "beit_large_patch16_224"
    model = on_device(lambda: timm.create_model(name, depth=size(24, 1)), HALF).eval()
    compiled(model.blocks)
    x = images(size(128, 1), 224, HALF)
    return lambda: model(x)
