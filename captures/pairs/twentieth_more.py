"""More of the twentieth set."""

from __future__ import annotations

import contextlib

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTIETH, Step, healthy, pair


class Shifted(nn.Module):
    """A block of a diffusion transformer: the time scales, shifts and gates."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.says = nn.Linear(width, 6 * width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Positions [images, positions, width], times [1, width]."""
        shift, scale, gate, shift2, scale2, gate2 = self.says(functional.silu(time)).chunk(6, -1)
        seen = self.joined(functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift).chunk(3, -1)
        parts = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in seen)
        x = x + gate * self.out(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        wide = self.wide(functional.layer_norm(x, x.shape[-1:]) * (1 + scale2) + shift2)
        return x + gate2 * self.narrow(functional.gelu(wide, approximate="tanh"))


@healthy("diffusion", TWENTIETH, compiles=True, inference=True, steps=(2, 2))
def healthy_graphed_sampling(variant: str) -> Step:
    """A DiT-XL (14 × 1,152) denoises 16 images of 1,024 places, with and without a text, in 4 graphed steps."""
    width, batch, count = size(1152, 32), size(32, 2), size(1024, 16)
    blocks = on_device(lambda: nn.ModuleList(Shifted(width, size(16, 2)) for _ in range(size(14, 1))), HALF).eval()
    compiled(blocks)
    noise = torch.randn(batch // 2, count, width, device=DEVICE, dtype=HALF)
    times = torch.randn(4, 1, width, device=DEVICE, dtype=HALF)

    def sample() -> Tensor:
        x = noise
        for time in times.unbind():
            y = torch.cat([x, x])
            for block in blocks:
                y = block(y, time)
            guided, free = y.chunk(2)
            x = x - 0.1 * torch.lerp(free, guided, 4.0)
        return x

    return as_graph(sample)


class Sharpness:
    """Adaptive sharpness-aware minimisation: gradients are taken where the loss is highest near the weights."""

    def __init__(self, weights: list[nn.Parameter], radius: float = 0.5, *, together: bool = False) -> None:
        self.weights, self.radius, self.together = weights, radius, together
        self.moves: list[Tensor] = []

    @torch.no_grad()
    def climb(self) -> None:
        """Moves the weights uphill."""
        grads = [weight.grad for weight in self.weights]
        if self.together:
            sizes = torch._foreach_abs(self.weights)
            scaled = torch._foreach_mul(sizes, grads)
            norm = torch.stack(torch._foreach_norm(scaled)).norm()
            self.moves = torch._foreach_mul(torch._foreach_mul(sizes, scaled), self.radius / (norm + 1e-12))
            torch._foreach_add_(self.weights, self.moves)
            return
        norm = torch.stack([(w.abs() * g).norm() for w, g in zip(self.weights, grads, strict=True)]).norm()
        scale = self.radius / (norm + 1e-12)
        self.moves = []
        for weight, grad in zip(self.weights, grads, strict=True):
            move = weight.pow(2) * grad * scale
            weight.add_(move)
            self.moves.append(move)

    @torch.no_grad()
    def back(self) -> None:
        """Moves the weights back."""
        if self.together:
            torch._foreach_sub_(self.weights, self.moves)
            return
        for weight, move in zip(self.weights, self.moves, strict=True):
            weight.sub_(move)


@pair(
    "unfused-optimizer", "training", "torch._foreach_… over all weights instead of a loop", TWENTIETH,
    library="timm", accept=("launch-overhead", "small-kernels"), compiles=True, steps=(3, 3),
)  # fmt: skip
def sharpness_weight_by_weight(variant: str) -> Step:
    """An MLP-Mixer-S/16 (blocks compiled) learns from 64 images by SAM, which visits its weights one by one."""
    side, classes, batch = size(224, 32), size(100, 4), size(64, 2)
    model = on_device(lambda: timm.create_model("mixer_s16_224", num_classes=classes, img_size=side)).train()
    compiled(model.blocks)
    x, labels = images(batch, side), tokens(classes, batch)
    sharpness = Sharpness(list(model.parameters()), together=variant == AFTER)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def differentiate() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = functional.cross_entropy(model(x).float(), labels)
        loss.backward()

    def step() -> None:
        differentiate()
        sharpness.climb()
        optimizer.zero_grad(set_to_none=True)
        differentiate()
        sharpness.back()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair(
    "recomputation", "speech", "gradient_checkpointing=False: there is memory", TWENTIETH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def whisper_tuned_with_checkpoints(variant: str) -> Step:
    """A Whisper (8 + 8 × 768) is fine-tuned on 16 recordings of 30 s and 128 words; all layers are checkpointed."""
    config = transformers.WhisperConfig(
        vocab_size=size(51_872, 64), d_model=size(768, 32), encoder_layers=size(8, 1), decoder_layers=size(8, 1),
        encoder_attention_heads=size(12, 2), decoder_attention_heads=size(12, 2), encoder_ffn_dim=size(3072, 64),
        decoder_ffn_dim=size(3072, 64), max_source_positions=size(1500, 16), use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    model = on_device(lambda: transformers.WhisperForConditionalGeneration(config)).train()
    if variant == BEFORE:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = size(16, 1)
    heard = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, device=DEVICE)
    labels = tokens(config.vocab_size, batch, size(128, 8))
    return training(lambda: model(input_features=heard, labels=labels).loss, adamw(model))


@pair(
    "unfused-attention", "training", "without sdpa_kernel(SDPBackend.MATH), a line left from debugging", TWENTIETH,
    library="transformers", accept=("unfused-chain", "memory-bandwidth"), steps=(3, 3),
)  # fmt: skip
def attention_by_the_math_backend(variant: str) -> Step:
    """A Pythia (10 × 1,024) learns from 8 texts of 1,024 tokens in mixed precision; fused attention is switched off."""
    config = transformers.GPTNeoXConfig(
        vocab_size=size(32_768, 64), hidden_size=size(1024, 32), num_hidden_layers=size(10, 1),
        num_attention_heads=size(16, 2), intermediate_size=size(4096, 64), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.GPTNeoXForCausalLM(config)).train()
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))

    def loss() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH) if variant == BEFORE else contextlib.nullcontext():
            return model(input_ids=ids, labels=ids).loss

    return training(loss, adamw(model))


@healthy("training", TWENTIETH, library="timm", compiles=True, steps=(3, 3))
def healthy_so400m_training(variant: str) -> Step:
    """Twelve blocks of SigLIP's 1,152 wide ViT learn from 96 images: mixed precision, blocks compiled, fused AdamW."""
    batch, side, classes = size(96, 2), size(224, 28), size(1000, 8)
    model = on_device(
        lambda: timm.models.VisionTransformer(
            img_size=side, patch_size=14, embed_dim=size(1152, 32), depth=size(12, 1), num_heads=size(16, 2),
            mlp_ratio=4, class_token=False, global_pool="avg", num_classes=classes,
        )
    ).train()  # fmt: skip
    compiled(model.blocks)
    x, labels = images(batch, side), tokens(classes, batch)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@pair(
    "scattered-access", "point clouds", "clouds of equal size: view(…).mean(1), not index_add_", TWENTIETH,
    accept=("memory-bandwidth",), inference=True, ranges=False, steps=(3, 3),
)  # fmt: skip
def clouds_pooled_by_atomics(variant: str) -> Step:
    """Five layers (64, bf16) see 16 clouds of 65,536 points; each adds up a cloud's rows by index_add_."""
    width, clouds, count = size(64, 4), size(16, 2), size(65_536, 8)
    layers = on_device(lambda: nn.ModuleList(nn.Linear(2 * width, width) for _ in range(size(5, 2))), HALF).eval()
    points = torch.randn(clouds * count, width, device=DEVICE, dtype=HALF)
    cloud = torch.arange(clouds, device=DEVICE).repeat_interleave(count)

    def means(x: Tensor) -> Tensor:
        if variant == AFTER:
            return x.view(clouds, count, width).mean(1, dtype=torch.float32)
        return torch.zeros(clouds, width, device=DEVICE).index_add_(0, cloud, x.float()) / count

    def step() -> Tensor:
        x = points
        for layer in layers:
            own, shared = layer.weight.chunk(2, -1)
            told = functional.linear(means(x).to(HALF), shared, layer.bias)
            x = (functional.linear(x, own).view(clouds, count, width) + told[:, None]).relu_().view(-1, width)
        return means(x)

    return step


def warped(x: Tensor, places: Tensor) -> Tensor:
    """Features [images, channels, height, width] at places [images, height, width, 2], by four gathers."""
    height, width = x.shape[-2:]
    across, down = places[..., 0].clamp(0, width - 1), places[..., 1].clamp(0, height - 1)
    left, top = across.floor(), down.floor()
    right, bottom = (left + 1).clamp(max=width - 1), (top + 1).clamp(max=height - 1)
    a, b = (across - left)[:, None], (down - top)[:, None]

    def at(row: Tensor, column: Tensor) -> Tensor:
        index = (row * width + column).long().flatten(1)[:, None].expand(-1, x.shape[1], -1)
        return x.flatten(2).gather(2, index).view_as(x)

    upper = at(top, left) * (1 - a) + at(top, right) * a
    lower = at(bottom, left) * (1 - a) + at(bottom, right) * a
    return upper * (1 - b) + lower * b


@pair(
    "unfused-chain", "video", "functional.grid_sample instead of four gathers and their weights", TWENTIETH,
    accept=("scattered-access", "memory-bandwidth"), inference=True, profiler_steps=True, steps=(3, 3),
)  # fmt: skip
def features_warped_by_hand(variant: str) -> Step:
    """The flow of 8 pairs of frames is refined six times: 64 channels of 192 × 320 are warped, then convolved."""
    channels, height, width = size(64, 4), size(192, 8), size(320, 12)
    one, two = (torch.randn(size(8, 1), channels, height, width, device=DEVICE) for _ in range(2))
    refine = on_device(
        lambda: nn.Sequential(
            nn.Conv2d(2 * channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 2, 3, padding=1)
        ),
        HALF,
    ).eval()
    refine = refine.to(memory_format=torch.channels_last)
    rows, columns = (torch.arange(n, device=DEVICE, dtype=torch.float32) for n in (height, width))
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
    last = torch.tensor([width - 1, height - 1], device=DEVICE)

    def step() -> Tensor:
        flow = torch.zeros(len(one), height, width, 2, device=DEVICE)
        for _ in range(6):
            if variant == BEFORE:
                moved = warped(two, grid + flow)
            else:
                places = (grid + flow) / last * 2 - 1
                moved = functional.grid_sample(two, places, padding_mode="border", align_corners=True)
            both = torch.cat([one, moved], 1).to(HALF, memory_format=torch.channels_last)
            flow = flow + refine(both).permute(0, 2, 3, 1).float()
        return flow

    return step
