"""The thirty-sixth set: what a review of code finds in recipes, model cards and notebooks of today."""

from __future__ import annotations

import timm
import torch
import torchvision
import transformers
from accelerate import Accelerator
from sentence_transformers import util
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    TINY,
    Block,
    adamw,
    compiled,
    images,
    mixed,
    on_device,
    seeded,
    size,
    tokens,
)
from pairs.registry import AFTER, BEFORE, THIRTY_SIXTH, Step, healthy, pair

__all__: list[str] = []


@pair(
    "precision", "image-text", "with accelerator.autocast(): around the two towers", THIRTY_SIXTH,
    library="accelerate, transformers", steps=(3, 2),
)  # fmt: skip
def shop_caption_alignment(variant: str) -> Step:
    """A SigLIP (two towers of 12 × 768, fused AdamW) learns from 128 pictures of goods and captions of 64 tokens.

    Accelerator(mixed_precision="bf16") wraps the model's forward in autocast, and nothing else. The script has a loss
    of its own and calls the two towers: they never pass through that forward, so that all is in fp32, or TF32, which
    is allowed.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState

    torch.set_float32_matmul_precision("high")
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    rows, side, long, words = size(128, 2), size(224, 32), size(64, 8), size(32_000, 64)
    tower = {
        "hidden_size": size(768, 32), "intermediate_size": size(3072, 64),
        "num_hidden_layers": size(12, 1), "num_attention_heads": size(12, 2),
    }  # fmt: skip
    config = transformers.SiglipConfig(
        text_config={**tower, "vocab_size": words, "max_position_embeddings": long, "projection_size": size(768, 32)},
        vision_config={**tower, "image_size": side, "patch_size": 16},
    )
    accelerator = Accelerator(mixed_precision="no" if TINY else "bf16", cpu=DEVICE.type == "cpu")
    model = on_device(lambda: transformers.SiglipModel(config)).train()
    model, optimizer = accelerator.prepare(model, adamw(model))
    bare = accelerator.unwrap_model(model)
    seeded(1)
    seen, told = images(rows, side), tokens(words, rows, long)
    signs = 2.0 * torch.eye(rows, device=DEVICE) - 1.0

    def embedded() -> tuple[Tensor, Tensor]:
        return bare.vision_model(pixel_values=seen).pooler_output, bare.text_model(input_ids=told).pooler_output

    def step() -> Tensor:
        if variant == AFTER:
            with accelerator.autocast():
                pictures, captions = embedded()
        else:
            pictures, captions = embedded()
        pictures, captions = (functional.normalize(one.float(), dim=-1) for one in (pictures, captions))
        scores = captions @ pictures.T * bare.logit_scale.exp() + bare.logit_bias
        loss = -functional.logsigmoid(signs * scores).sum(-1).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "host-stall", "feature extraction", "processor(images, device='cuda'): pictures are made ready by the GPU",
    THIRTY_SIXTH, library="transformers", accept=("blocking-copy",), inference=True, with_stack=True, steps=(3, 2),
)  # fmt: skip
def newspaper_scan_features(variant: str) -> Step:
    """A DINOv2 with registers (24 × 1,024, bf16) tells features of 96 pictures, cut out of scans of 640 × 480.

    As on the model's card, the image processor is given the pictures, and what it returns is sent to the GPU. It
    resizes and normalises them on the host, between two batches; what is sent then has four bytes for each value, and
    lies in pageable memory: hence "blocking-copy", too.
    """
    rows, side, wide = size(96, 2), size(224, 28), size(640, 48)
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=size(1024, 32), num_hidden_layers=size(24, 1), num_attention_heads=size(16, 2), mlp_ratio=4,
        image_size=side, patch_size=14, num_register_tokens=4,
    )  # fmt: skip
    model = on_device(lambda: transformers.Dinov2WithRegistersModel(config), HALF).eval()
    processor = transformers.ViTImageProcessor(
        size={"height": side, "width": side}, resample=2, image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )  # fmt: skip
    seeded(1)
    rough = torch.randint(0, 256, (rows, 3, wide // 8 * 3 // 4, wide // 8), dtype=torch.uint8).float()
    decoded = functional.interpolate(rough, scale_factor=8, mode="bilinear").round().to(torch.uint8)
    scans = list(decoded.pin_memory() if CUDA else decoded)
    where = {"device": DEVICE} if variant == AFTER else {}

    def step() -> Tensor:
        ready = processor(scans, return_tensors="pt", **where)["pixel_values"].to(DEVICE, HALF)
        return model(pixel_values=ready).pooler_output

    return step


@pair(
    "unused-results", "pretraining", "sparse_prediction=True: words are told for the masked places", THIRTY_SIXTH,
    library="transformers", accept=("memory-bandwidth", "unfused-chain"), compiles=True, steps=(3, 2),
)  # fmt: skip
def patient_leaflet_pretraining(variant: str) -> Step:
    """A ModernBERT (22 × 768, mixed precision, layers compiled, fused AdamW) learns 48 leaflets of 512 tokens.

    Of their tokens 15 % are masked. The head tells 50,368 words for all places, and the loss forgets those that were
    not masked. The scores, their copy in fp32, its softmax and their gradients are 2 to 5 GB each: hence
    "memory-bandwidth" and "unfused-chain", too.
    """
    rows, long = size(48, 2), size(512, 24)
    config = transformers.ModernBertConfig(
        vocab_size=size(50_368, 64), hidden_size=size(768, 32), intermediate_size=size(1152, 48),
        num_hidden_layers=size(22, 2), num_attention_heads=size(12, 2), max_position_embeddings=size(1024, 32),
        sparse_prediction=variant == AFTER, reference_compile=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = on_device(lambda: transformers.ModernBertForMaskedLM(config)).train()
    compiled(model.model.layers)
    optimizer = adamw(model)
    seeded(1)
    text = 4 + tokens(config.vocab_size - 4, rows, long)
    hidden = torch.rand(rows, long, device=DEVICE) < 0.15
    given, wanted = text.masked_fill(hidden, 3), text.masked_fill(~hidden, -100)
    seen = torch.ones_like(given)

    def step() -> Tensor:
        with mixed():
            loss = model(input_ids=given, attention_mask=seen, labels=wanted).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "host-stall", "retrieval", "semantic_search with its own corpus_chunk_size, 500,000, instead of 10,000",
    THIRTY_SIXTH, library="sentence-transformers, transformers", inference=True, with_stack=True,
    accept=("host-sync", "launch-overhead", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def legal_aid_search(variant: str) -> Step:
    """A CamemBERT (12 × 768, bf16) embeds 256 questions of 64 tokens; the ten nearest of 600,000 answers are sought.

    util.semantic_search was told to take 10,000 answers at a time, when memory was short. For each of 180 pieces it
    waits for the best scores and pushes them into a heap for each question, in Python: hence "host-sync", too. What
    it launches for a piece takes less time than that: hence the others.
    """
    rows, long, many, told = size(256, 3), size(64, 8), size(600_000, 400), size(768, 32)
    config = transformers.CamembertConfig(
        vocab_size=size(32_005, 64), hidden_size=told, num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=size(514, 16),
        type_vocab_size=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.CamembertModel(config, add_pooling_layer=False), HALF).eval()
    seeded(1)
    ids = 3 + tokens(config.vocab_size - 3, rows, long)
    corpus = functional.normalize(torch.randn(many, told, device=DEVICE, dtype=HALF), dim=-1)
    pieces = {"corpus_chunk_size": size(10_000, 50)} if variant == BEFORE else {}

    def step() -> list[list[dict[str, float]]]:
        asked = functional.normalize(model(input_ids=ids).last_hidden_state.mean(1), dim=-1)
        return util.semantic_search(asked, corpus, top_k=10, score_function=util.dot_score, **pieces)

    return step


@pair(
    "padded-work", "fine-tuning", "pad_to_multiple_of=8 instead of 512", THIRTY_SIXTH,
    library="transformers", steps=(3, 2),
)  # fmt: skip
def tender_entity_tagging(variant: str) -> Step:
    """A RoBERTa with norms first (12 × 768, mixed precision, fused AdamW) learns to tag 64 passages of tenders.

    Passages were cut to 240 to 270 tokens. The collator pads them to the longest of the batch, and that to a multiple
    of 512, since the recipe was written for TPUs: nearly half of all tokens are padding.
    """
    rows, least, most, kinds = size(64, 3), size(240, 10), size(270, 14), size(17, 4)
    multiple = size(512, 32) if variant == BEFORE else 8
    config = transformers.RobertaPreLayerNormConfig(
        vocab_size=size(50_272, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=size(514, 40),
        num_labels=kinds, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=1,
    )  # fmt: skip
    model = on_device(lambda: transformers.RobertaPreLayerNormForTokenClassification(config)).train()
    optimizer = adamw(model)
    seeded(1)
    lengths = torch.randint(least, most + 1, (rows,)).tolist()
    passages = [torch.randint(3, config.vocab_size, (long,)) for long in lengths]
    tags = [torch.randint(0, kinds, (long,)) for long in lengths]

    def padded(parts: list[Tensor], value: int) -> Tensor:
        batch = pad_sequence(parts, batch_first=True, padding_value=value)
        batch = functional.pad(batch, (0, -batch.shape[1] % multiple), value=value)
        return (batch.pin_memory() if CUDA else batch).to(DEVICE, non_blocking=True)

    def step() -> Tensor:
        ids, wanted = padded(passages, 1), padded(tags, -100)
        with mixed():
            loss = model(input_ids=ids, attention_mask=(ids != 1).long(), labels=wanted).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "recomputation", "video", "accuracy from the scores that the loss was made of, not from a second forward pass",
    THIRTY_SIXTH, library="transformers", accept=("unused-results",), steps=(3, 2),
)  # fmt: skip
def gymnastics_clip_training(variant: str) -> Step:
    """A ViViT (12 × 768, mixed precision, fused AdamW) learns 60 exercises from 6 clips of 32 frames.

    As in many notebooks, a function compute_loss runs the model and returns the loss, and another one, accuracy, runs
    it once more, without gradients, with the same clips and weights. It wants nothing but the scores that the first
    run had and threw away: hence "unused-results", too.
    """
    rows, side, frames, kinds = size(6, 2), size(224, 32), size(32, 4), size(60, 5)
    config = transformers.VivitConfig(
        image_size=side, num_frames=frames, tubelet_size=[2, 16, 16], hidden_size=size(768, 32),
        num_hidden_layers=size(12, 1), num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
        hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=kinds,
    )  # fmt: skip
    model = on_device(lambda: transformers.VivitForVideoClassification(config)).train()
    optimizer = adamw(model)
    seeded(1)
    clips = torch.randn(rows, frames, 3, side, side, device=DEVICE)
    named = tokens(kinds, rows)
    right = torch.zeros((), device=DEVICE, dtype=torch.long)

    def compute_loss() -> tuple[Tensor, Tensor]:
        with mixed():
            scores = model(pixel_values=clips).logits
        return functional.cross_entropy(scores.float(), named), scores.detach()

    @torch.no_grad()
    def accuracy(scores: Tensor) -> Tensor:
        if variant == BEFORE:
            with mixed():
                scores = model(pixel_values=clips).logits
        return (scores.argmax(-1) == named).sum()

    def step() -> tuple[Tensor, Tensor]:
        loss, scores = compute_loss()
        right.add_(accuracy(scores))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), right

    return step


def contrast_as_published(scores: Tensor) -> Tensor:
    """The loss of SimCLR from all similarities [2 · rows, 2 · rows], as a well-known repository writes it."""
    many = len(scores)
    numbers = torch.arange(many // 2, device=DEVICE).repeat(2)
    same = numbers[:, None] == numbers
    own = torch.eye(many, dtype=torch.bool, device=DEVICE)
    same, scores = same[~own].view(many, -1), scores[~own].view(many, -1)
    positives, negatives = scores[same].view(many, -1), scores[~same].view(many, -1)
    scores = torch.cat((positives, negatives), 1).float() / 0.1
    return functional.cross_entropy(scores, torch.zeros(many, dtype=torch.long, device=DEVICE))


def contrast_in_place(scores: Tensor) -> Tensor:
    """The same loss: a view's own column is closed, and its partner's is the right one."""
    many = len(scores)
    own = torch.eye(many, dtype=torch.bool, device=DEVICE)
    partner = torch.arange(many, device=DEVICE).roll(many // 2)
    return functional.cross_entropy(scores.float().masked_fill(own, float("-inf")) / 0.1, partner)


@pair(
    "scattered-access", "self-supervised", "masked_fill of the diagonal; places of partners as labels, not masks",
    THIRTY_SIXTH, library="torchvision", accept=("host-sync", "memory-bandwidth", "unfused-chain"), steps=(2, 1),
)  # fmt: skip
def pollen_grain_contrast(variant: str) -> Step:
    """A ResNet-18 for small pictures (mixed precision, channels_last, fused AdamW) learns from 2,560 grains, twice.

    The loss takes similarities out of a square of 5,120 by masks of booleans: without the diagonal, then the partners,
    then all others. Each mask becomes a list of 26 million places, and the backward pass sorts each list to add
    gradients up, though no place occurs twice. The host waits for the length of each list: hence "host-sync", too.
    """
    rows, side, told = size(2560, 6), size(32, 8), size(128, 16)
    model = on_device(lambda: torchvision.models.resnet18(num_classes=told)).train()
    model.conv1 = on_device(lambda: nn.Conv2d(3, 64, 3, padding=1, bias=False), seed=1)
    model.maxpool = nn.Identity()
    model.to(memory_format=torch.channels_last)
    optimizer = adamw(model)
    contrast = contrast_in_place if variant == AFTER else contrast_as_published
    seeded(2)
    grains = images(rows, side)
    views = torch.cat((grains, grains.flip(3) + 0.1 * torch.randn_like(grains)))
    views = views.contiguous(memory_format=torch.channels_last)

    def step() -> Tensor:
        with mixed():
            x = functional.normalize(model(views), dim=1)
            loss = contrast(x @ x.T)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "launch-overhead", "medical images", "the eight views of all slides go through the network in one batch",
    THIRTY_SIXTH, library="timm", accept=("small-kernels",), inference=True, steps=(3, 2),
)  # fmt: skip
def mole_photograph_grading(variant: str) -> Step:
    """A DeiT III (24 × 1,024, bf16) grades 4 photographs of moles, turned and mirrored eight ways.

    Views are told one after the other, and chances are averaged. Kernels for four photographs are done before the
    host has launched the next ones.
    """
    rows, kinds = size(4, 2), size(9, 4)
    side = size(224, 32)
    small = {"img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 2} if TINY else {}
    model = on_device(lambda: timm.create_model("deit3_large_patch16_224", num_classes=kinds, **small), HALF).eval()
    seeded(1)
    photographs = images(rows, side, HALF)

    def step() -> Tensor:
        turned = [torch.rot90(photographs, turns, (2, 3)) for turns in range(4)]
        views = turned + [view.flip(3) for view in turned]
        if variant == AFTER:
            scores = model(torch.cat(views)).float()
            return scores.softmax(-1).unflatten(0, (len(views), -1)).mean(0)
        return torch.stack([model(view).float().softmax(-1) for view in views]).mean(0)

    return step


class Judge(nn.Module):
    """Whether an answer is safe: a Gemma 3 and a head on its last token."""

    def __init__(self, config: transformers.Gemma3TextConfig, kinds: int) -> None:
        super().__init__()
        self.body, self.head = transformers.Gemma3TextModel(config), nn.Linear(config.hidden_size, kinds)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [rows, places] → scores [rows, kinds]."""
        return self.head(self.body(input_ids=ids).last_hidden_state[:, -1])


@pair(
    "unfused-attention", "fine-tuning", "attn_implementation='sdpa' instead of 'eager'", THIRTY_SIXTH,
    library="transformers", accept=("memory-bandwidth",), compiles=True, steps=(2, 1),
)  # fmt: skip
def answer_safety_tuning(variant: str) -> Step:
    """A Gemma 3 (12 × 1,024, mixed precision, layers compiled, fused AdamW) learns dangers of 8 dialogues of 2,048.

    transformers advised to train Gemma with eager attention, whose scores Gemma 2 bounds; Gemma 3 does not, and the
    line stayed. Scores of 16 heads, and chances, are written and read: 1 GB each, forward and backward, hence
    "memory-bandwidth", too.
    """
    rows, long, kinds = size(8, 2), size(2048, 16), size(6, 3)
    config = transformers.Gemma3TextConfig(
        vocab_size=size(65_536, 64), hidden_size=size(1024, 32), intermediate_size=size(4096, 64),
        num_hidden_layers=size(12, 2), num_attention_heads=size(16, 4), num_key_value_heads=size(8, 2),
        head_dim=size(64, 8), query_pre_attn_scalar=size(64, 8), sliding_window=size(4096, 64),
        max_position_embeddings=size(8192, 64), use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa" if variant == AFTER else "eager"
    model = on_device(lambda: Judge(config, kinds)).train()
    compiled(model.body.layers)
    optimizer = adamw(model)
    seeded(1)
    ids, dangers = 3 + tokens(config.vocab_size - 3, rows, long), tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            scores = model(ids)
        loss = functional.cross_entropy(scores.float(), dangers)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@healthy("training", THIRTY_SIXTH, library="timm", compiles=True, steps=(2, 1))
def healthy_mushroom_photo_training(variant: str) -> Step:
    """A ViT with a register (12 × 512, blocks compiled, mixed precision, fused AdamW) learns from 384 photographs.

    Photographs lie on the GPU as bytes, and are normalised and mixed there, in one go. The loss stays there, too.
    """
    rows, side, kinds = size(384, 4), size(256, 32), size(1000, 6)
    small = {"img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 2} if TINY else {}
    model = on_device(lambda: timm.create_model("vit_medium_patch16_reg1_gap_256", num_classes=kinds, **small)).train()
    compiled(model.blocks)
    optimizer = adamw(model)
    seeded(1)
    stored = torch.randint(0, 256, (rows, 3, side, side), device=DEVICE, dtype=torch.uint8)
    named = functional.one_hot(tokens(kinds, rows), kinds).float()
    mean = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        share = torch.rand(rows, 1, 1, 1, device=DEVICE).to(HALF)
        photographs = stored.to(HALF).div_(127.5).sub_(1.0)
        photographs = torch.lerp(photographs, photographs.flip(0), share)
        wanted = torch.lerp(named, named.flip(0), share.float().flatten(1))
        with mixed():
            scores = model(photographs)
        loss = functional.cross_entropy(scores.float(), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return mean.lerp_(loss.detach(), 0.1)

    return step


class Surprise(nn.Module):
    """How badly a language model tells each text, in nats a token."""

    def forward(self, scores: Tensor, wanted: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places] → [rows]."""
        told = functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        return told.view_as(wanted).mean(1)


@healthy("filtering", THIRTY_SIXTH, library="transformers", inference=True, compiles=True, steps=(3, 2))
def healthy_web_text_filtering(variant: str) -> Step:
    """An OLMo (16 × 2,048, bf16, layers and loss compiled) says of 8 texts of 2,048 tokens which are worth keeping.

    Texts are packed, so that nothing is padding; their losses are read once, together.
    """
    config = transformers.OlmoConfig(
        vocab_size=size(50_304, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64), use_cache=False,
        num_hidden_layers=size(16, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2),
        max_position_embeddings=size(4096, 64), pad_token_id=1, eos_token_id=0,
    )  # fmt: skip
    model, surprise = on_device(lambda: transformers.OlmoForCausalLM(config), HALF).eval(), Surprise()
    compiled([*model.model.layers, surprise])
    seeded(1)
    ids = tokens(config.vocab_size, size(8, 2), size(2048, 12) + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> list[float]:
        return surprise(model(input_ids=given).logits, wanted).tolist()

    return step


@healthy("recommendation", THIRTY_SIXTH, compiles=True, steps=(3, 2))
def healthy_playlist_training(variant: str) -> Step:
    """A causal transformer (8 × 768, layers compiled, mixed precision, fused AdamW) learns 256 playlists of 200 songs.

    The loss contrasts each next song with 8,192 that were drawn on the GPU, and not with all 100,000.
    """
    rows, long, width, songs, drawn = size(256, 3), size(200, 8), size(768, 32), size(100_000, 64), size(8192, 10)
    table = on_device(lambda: nn.Embedding(songs, width))
    places = on_device(lambda: nn.Embedding(long, width), seed=1)
    layers = on_device(
        lambda: nn.Sequential(*(Block(width, size(12, 2), causal=True) for _ in range(size(8, 1)))), seed=2
    ).train()  # fmt: skip
    norm = on_device(lambda: nn.LayerNorm(width))
    compiled(layers)
    model = nn.ModuleList([table, places, layers, norm])
    optimizer = adamw(model)
    seeded(3)
    heard = tokens(songs, rows, long + 1)
    given, wanted = heard[:, :-1].contiguous(), heard[:, 1:].flatten()
    where, first = torch.arange(long, device=DEVICE), torch.zeros(rows * long, dtype=torch.long, device=DEVICE)

    def step() -> Tensor:
        others = tokens(songs, drawn)
        with mixed():
            x = norm(layers(table(given) + places(where))).flatten(0, 1)
            right = (x * table(wanted)).sum(-1, keepdim=True)
            scores = torch.cat((right, x @ table(others).T), 1)
        loss = functional.cross_entropy(scores.float(), first)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
