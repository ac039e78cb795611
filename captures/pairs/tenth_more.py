"""The tenth set: what reviews of real scripts find; split at random from the eleventh, and read first."""

from __future__ import annotations

import itertools
import math

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TENTH, Step, healthy, pair


@pair(
    "host-stall", "training", "AdamW on the GPU, where weights and moments fit", TENTH,
    library="transformers", accept=("blocking-copy",), steps=(2, 1),
)  # fmt: skip
def optimizer_kept_on_host(variant: str) -> Step:
    """A GPT-2 (6 × 768) learns from 16 × 512 tokens; gradients go to the CPU, whose AdamW has the weights."""
    config = transformers.GPT2Config(
        vocab_size=size(16384, 64), n_embd=size(768, 32), n_layer=size(6, 1), n_head=size(12, 2), use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.GPT2LMHeadModel(config)).train()
    ids = tokens(config.vocab_size, size(16, 2), size(512, 8))

    def loss() -> Tensor:
        return model(input_ids=ids, labels=ids).loss

    if variant == AFTER:
        return training(loss, adamw(model))
    weights = list(model.parameters())
    masters = [weight.detach().cpu().clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            value = loss()
        value.backward()
        for weight, master in zip(weights, masters, strict=True):
            master.grad = weight.grad.cpu()
            weight.grad = None
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(weights, masters, strict=True):
                weight.copy_(master)

    return step


@pair(
    "unfused-chain", "face recognition", "the margin is worked out for the right classes alone, by gather", TENTH,
    library="timm", accept=("memory-bandwidth",), steps=(2, 1),
)  # fmt: skip
def margin_for_all_classes(variant: str) -> Step:
    """A ResNet-18 learns 200,000 faces from 512 images by ArcFace; its margin is written out over all classes."""
    classes, width, scale, margin = size(200_000, 64), size(512, 32), 64.0, 0.5
    body = on_device(lambda: timm.create_model("resnet18", num_classes=width)).train()
    body = body.to(memory_format=torch.channels_last)
    head = on_device(lambda: nn.Linear(width, classes, bias=False)).train()
    x = images(size(512, 2), size(112, 32)).to(memory_format=torch.channels_last)
    labels = tokens(classes, len(x))
    cos, sin = math.cos(margin), math.sin(margin)

    def loss() -> Tensor:
        cosine = functional.linear(functional.normalize(body(x)), functional.normalize(head.weight)).float()
        if variant == BEFORE:
            sine = (1.0 - cosine.square()).clamp(0, 1).sqrt()
            moved = cosine * cos - sine * sin
            moved = torch.where(cosine > 0, moved, cosine)
            hot = torch.zeros_like(cosine).scatter_(1, labels[:, None], 1.0)
            scores = (hot * moved + (1.0 - hot) * cosine) * scale
        else:
            right = cosine.gather(1, labels[:, None])
            moved = right * cos - (1.0 - right.square()).clamp(0, 1).sqrt() * sin
            scores = cosine.scatter(1, labels[:, None], torch.where(right > 0, moved, right)) * scale
        return functional.cross_entropy(scores, labels)

    return training(loss, adamw(nn.ModuleList([body, head])))


@pair(
    "unfused-chain", "diffusion", "weights are loaded in bfloat16 instead of fp32 under autocast", TENTH,
    accept=("precision", "memory-bandwidth", "weight-bound"), inference=True, steps=(2, 1),
)  # fmt: skip
def denoised_under_autocast(variant: str) -> Step:
    """Four blocks of 6,144 denoise one image of 512 positions in two steps, under autocast with fp32 weights."""
    width = size(6144, 32)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            width, size(48, 2), 4 * width, 0.0, nn.GELU("tanh"), batch_first=True, norm_first=True
        )
        return nn.TransformerEncoder(layer, size(4, 1), enable_nested_tensor=False)

    # In training mode (there is no dropout): its modules are called one by one, as those of a denoiser are.
    before = variant == BEFORE
    model = on_device(build, torch.float32 if before else HALF).train()
    noise = torch.randn(1, size(512, 8), width, device=DEVICE, dtype=torch.float32 if before else HALF)

    def step() -> Tensor:
        x = noise
        for _ in range(2):
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=before):
                x = x - 0.1 * model(x)
        return x

    return step


@pair(
    "recomputation", "vision", "without set_grad_checkpointing(), for which there is memory", TENTH,
    library="timm", steps=(2, 1),
)  # fmt: skip
def swin_checkpointed(variant: str) -> Step:
    """A Swin-T learns from 96 images in mixed precision; its blocks are checkpointed on a GPU that is mostly free."""
    name = "swin_tiny_patch4_window7_224"
    model = on_device(lambda: timm.create_model(name, num_classes=100, drop_path_rate=0.0)).train()
    if variant == BEFORE:
        model.set_grad_checkpointing(True)
    x, labels = images(size(96, 1), 224), tokens(100, size(96, 1))
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@pair(
    "launch-overhead", "vision", "batches of 128, for which there is memory (work: images a step)", TENTH,
    library="timm", accept=("small-kernels",), work={BEFORE: 8, AFTER: 128}, steps=(2, 1),
)  # fmt: skip
def batches_of_eight(variant: str) -> Step:
    """A ViT-Ti is fine-tuned in mixed precision with 8 images a step, as an example script has it."""
    model = on_device(lambda: timm.create_model("vit_tiny_patch16_224", num_classes=37)).train()
    count = 8 if variant == BEFORE else 128
    x, labels = images(size(count, count // 8), 224), tokens(37, size(count, count // 8))
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@healthy("embedding", TENTH, library="transformers", compiles=True, inference=True, steps=(2, 1))
def healthy_clip_embedding(variant: str) -> Step:
    """The image half of a CLIP (12 × 1,024, patches of 14) embeds 128 images in bf16, its layers compiled."""
    config = transformers.CLIPVisionConfig(
        hidden_size=size(1024, 32), intermediate_size=size(4096, 64), num_hidden_layers=size(12, 1),
        num_attention_heads=size(16, 2), patch_size=14, image_size=size(224, 28), projection_dim=size(768, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.CLIPVisionModelWithProjection(config), HALF).eval()
    compiled(model.vision_model.encoder.layers)
    x = images(size(128, 1), size(224, 28), HALF)
    return lambda: model(pixel_values=x).image_embeds


@healthy("recommendation", TENTH, inference=True, steps=(2, 1))
def healthy_two_towers(variant: str) -> Step:
    """Two towers (bags of 20 of 1,000,000 items, then 4,096 wide layers) score 16,384 pairs in bf16 from a graph."""
    width, wide, count = size(256, 16), size(4096, 32), size(16_384, 8)

    def tower() -> nn.Module:
        sizes = (width, wide, wide, width)
        return nn.Sequential(*(m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())))

    def build() -> nn.Module:
        items = size(1_000_000, 50)
        bags = [nn.EmbeddingBag(items, width, mode="mean") for _ in range(2)]
        return nn.ModuleList([*bags, tower(), tower()])

    parts = on_device(build, HALF).eval()
    users, wanted = (tokens(size(1_000_000, 50), count, 20) for _ in range(2))

    def score() -> Tensor:
        return (parts[2](parts[0](users)) * parts[3](parts[1](wanted))).sum(-1)

    return as_graph(score)


@healthy("speech", TENTH, inference=True, steps=(2, 1))
def healthy_speech_encoder(variant: str) -> Step:
    """Eight layers of torch's own encoder (1,280, its fused path) read 32 recordings of 1,500 frames in bf16."""
    width = size(1280, 32)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, size(20, 2), 4 * width, 0.0, "gelu", batch_first=True)
        return nn.TransformerEncoder(layer, size(8, 1), enable_nested_tensor=False)

    model = on_device(build, HALF).eval()
    x = torch.randn(size(32, 1), size(1500, 8), width, device=DEVICE, dtype=HALF)
    return lambda: model(x)
