"""The fourteenth set: common habits and reported ones; written with the fifteenth, split at random, read first."""

from __future__ import annotations

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FOURTEENTH, Step, healthy, pair


class Block(nn.Module):
    """Attention in both directions or one, and two layers for each position; norms first."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Positions [rows, positions, width] → the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.joined(self.before(x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


@pair(
    "host-sync", "vision", "one norm of all gradients is looked at, once a step", FOURTEENTH,
    library="timm", accept=("launch-overhead", "host-stall"), steps=(3, 3),
)  # fmt: skip
def gradients_checked_one_by_one(variant: str) -> Step:
    """A DaViT-T learns from 64 images in bf16; before each step, Python asks of each gradient whether it is finite."""
    model = on_device(lambda: timm.create_model("davit_tiny", num_classes=100)).train()
    x, labels, optimizer = images(size(64, 1), 224), tokens(100, size(64, 1)), adamw(model)

    def is_finite() -> bool:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if variant == AFTER:
            return bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = functional.cross_entropy(model(x).float(), labels)
        loss.backward()
        if is_finite():
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair(
    "precision", "fine-tuning", "get_peft_model(autocast_adapter_dtype=False): adapters in bf16", FOURTEENTH,
    library="peft, transformers", accept=("unfused-chain",), steps=(3, 3),
)  # fmt: skip
def adapters_kept_in_fp32(variant: str) -> Step:
    """A Qwen2 (8 × 2,048) in bf16 is tuned on 4 texts of 1,024 tokens; PEFT makes LoRA of all layers in fp32."""
    import peft

    config = transformers.Qwen2Config(
        vocab_size=size(16_384, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).train()
    how = peft.LoraConfig(r=size(32, 2), lora_alpha=32, lora_dropout=0.0, target_modules="all-linear")
    model = peft.get_peft_model(model, how, autocast_adapter_dtype=variant == BEFORE)
    model.to(DEVICE)
    ids = tokens(config.vocab_size, size(4, 1), size(1024, 8))
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=True)
    return training(lambda: model(input_ids=ids, labels=ids).loss, optimizer, mixed=False)


@pair(
    "unfused-optimizer", "vision", "one clip_grad_norm_ over all parameters", FOURTEENTH,
    library="timm", accept=("launch-overhead", "small-kernels"), steps=(3, 3),
)  # fmt: skip
def clipped_parameter_by_parameter(variant: str) -> Step:
    """An XCiT-S (12 × 384) learns from 48 images in bf16; a loop clips the gradient of each parameter by itself."""
    model = on_device(lambda: timm.create_model("xcit_small_12_p16_224", num_classes=100)).train()
    x, labels, optimizer = images(size(48, 1), 224), tokens(100, size(48, 1)), adamw(model)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = functional.cross_entropy(model(x).float(), labels)
        loss.backward()
        if variant == AFTER:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            for parameter in model.parameters():
                nn.utils.clip_grad_norm_(parameter, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair(
    "launch-overhead", "retrieval", "encoder and search replayed from a CUDA graph", FOURTEENTH,
    library="transformers", accept=("small-kernels",), inference=True, steps=(6, 3),
)  # fmt: skip
def queries_encoded_kernel_by_kernel(variant: str) -> Step:
    """MiniLM (6 × 384, bf16) encodes a question of 24 words and looks it up among 50,000 passages, kernel by kernel."""
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(384, 32), intermediate_size=size(1536, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(12, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False), HALF).eval()
    passages = torch.randn(size(50_000, 50), config.hidden_size, device=DEVICE, dtype=HALF)
    ids = tokens(config.vocab_size, 1, size(24, 8))

    def found() -> Tensor:
        query = functional.normalize(model(input_ids=ids).last_hidden_state.mean(1), dim=-1)
        return (query @ passages.t()).topk(10).indices

    return found if variant == BEFORE else as_graph(found)


@pair(
    "unused-results", "training", "the masked words alone go through the head", FOURTEENTH,
    library="transformers", accept=("padded-work", "unfused-chain", "memory-bandwidth"), steps=(3, 3),
)  # fmt: skip
def every_word_is_scored(variant: str) -> Step:
    """An XLM-R (6 × 768, 250,112 words) learns from 16 texts of 256 tokens; the head scores all, the loss counts 38."""
    config = transformers.XLMRobertaConfig(
        vocab_size=size(250_112, 64), hidden_size=size(768, 32), intermediate_size=size(3072, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(12, 2), max_position_embeddings=514,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.XLMRobertaForMaskedLM(config)).train()
    batch, length, masked = size(16, 2), size(256, 16), size(38, 2)
    ids = tokens(config.vocab_size - 4, batch, length) + 4
    places = torch.rand(batch, length, device=DEVICE).argsort(-1)[:, :masked]
    wanted = ids.gather(1, places)
    labels = torch.full_like(ids, -100).scatter_(1, places, wanted)

    def loss() -> Tensor:
        if variant == BEFORE:
            return model(input_ids=ids, labels=labels).loss
        hidden = model.roberta(input_ids=ids).last_hidden_state
        rows = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        return functional.cross_entropy(model.lm_head(rows).flatten(0, 1).float(), wanted.flatten())

    return training(loss, adamw(model))


class Experts(nn.Module):
    """Experts that all see all rows: a module each, or their weights in one tensor."""

    def __init__(self, count: int, width: int, wide: int, out: int, *, stacked: bool) -> None:
        super().__init__()
        self.stacked = stacked
        if stacked:
            self.first = nn.Parameter(torch.randn(count, width, wide) / width**0.5)
            self.second = nn.Parameter(torch.randn(count, wide, out) / wide**0.5)
        else:
            self.each = nn.ModuleList(
                nn.Sequential(nn.Linear(width, wide, bias=False), nn.ReLU(), nn.Linear(wide, out, bias=False))
                for _ in range(count)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Rows [batch, width] → [experts, batch, out]."""
        if self.stacked:
            return torch.bmm(torch.bmm(x.expand(len(self.first), -1, -1), self.first).relu(), self.second)
        return torch.stack([expert(x) for expert in self.each])


@pair(
    "per-expert-loop", "recommendation", "torch.bmm over the weights of all experts", FOURTEENTH,
    accept=("launch-overhead", "small-kernels"), steps=(3, 3),
)  # fmt: skip
def domain_experts_in_turn(variant: str) -> Step:
    """A ranker of three tasks (MMoE) learns from 4,096 rows in bf16; a loop visits its 48 small experts, one by one."""
    count, width, out, batch = size(48, 3), size(512, 16), size(128, 8), size(4096, 4)
    experts = on_device(lambda: Experts(count, width, size(256, 16), out, stacked=variant == AFTER)).train()
    gates = on_device(lambda: nn.Linear(width, 3 * count)).train()
    heads = on_device(lambda: nn.ModuleList(nn.Linear(out, 1) for _ in range(3))).train()
    x, clicks = torch.randn(batch, width, device=DEVICE), tokens(2, 3, batch).float()

    def loss() -> Tensor:
        shares = gates(x).unflatten(-1, (3, count)).softmax(-1).to(HALF)
        mixed = torch.einsum("ebo,bte->tbo", experts(x).to(HALF), shares)
        scores = torch.stack([head(part)[:, 0] for head, part in zip(heads, mixed, strict=True)])
        return functional.binary_cross_entropy_with_logits(scores.float(), clicks)

    return training(loss, adamw(nn.ModuleList([experts, gates, heads])))


@pair(
    "unfused-chain", "decoding", "layers compiled whole, not their MLPs and norms alone", FOURTEENTH,
    library="transformers", compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def granite_compiled_in_parts(variant: str) -> Step:
    """A Granite (8 × 4,096) adds three tokens to 64 texts of 384: static cache, MLPs compiled, a CUDA graph."""
    from pairs.decoding import next_tokens

    config = transformers.GraniteConfig(
        vocab_size=size(32_768, 64), hidden_size=size(4096, 32), intermediate_size=size(12_800, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.GraniteForCausalLM(config), HALF).eval()
    for layer in model.model.layers:
        parts = [layer.mlp, layer.input_layernorm, layer.post_attention_layernorm]
        compiled(parts if variant == BEFORE else [layer])
    batch, prompt = size(64, 2), size(384, 8)
    return next_tokens(model, batch, prompt, 3)


@healthy("vision", FOURTEENTH, library="timm", compiles=True, inference=True, steps=(3, 3))
def healthy_patch_features(variant: str) -> Step:
    """DINOv2's ViT-L/14 describes 96 images, which are copied from pinned memory: bf16, blocks compiled."""
    name = "vit_large_patch14_dinov2" if CUDA else "vit_tiny_patch16_224"
    how = {"img_size": 224} if CUDA else {}
    model = on_device(lambda: timm.create_model(name, num_classes=0, **how), HALF).eval()
    compiled(model.blocks)
    photos = torch.randint(0, 256, (size(96, 1), 3, 224, 224), dtype=torch.uint8, pin_memory=CUDA)
    kept = torch.empty(len(photos), model.num_features, dtype=HALF, pin_memory=CUDA)

    def step() -> None:
        x = photos.to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1.0)
        kept.copy_(model(x), non_blocking=True)

    return step


@healthy("time series", FOURTEENTH, compiles=True, steps=(3, 3))
def healthy_forecaster(variant: str) -> Step:
    """A transformer over 64 patches (8 × 768) learns from 384 series: mixed precision, blocks compiled, fused AdamW."""
    width, patches, batch = size(768, 16), size(64, 4), size(384, 2)

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.places = nn.Linear(16, width), nn.Parameter(torch.zeros(patches, width))
            self.blocks = nn.ModuleList(Block(width, size(12, 2)) for _ in range(size(8, 1)))
            self.out = nn.Linear(width, 16)

        def forward(self, x: Tensor) -> Tensor:
            x = self.patch(x) + self.places
            for block in self.blocks:
                x = block(x)
            return self.out(x)

    model = on_device(Forecaster).train()
    compiled(model.blocks)
    x, wanted = (torch.randn(batch, patches, 16, device=DEVICE) for _ in range(2))
    return training(lambda: functional.mse_loss(model(x).float(), wanted), adamw(model))


class Snake(nn.Module):
    """A periodic activation (arXiv:2006.08195) with a frequency for each channel, as BigVGAN writes it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Sounds [batch, channels, samples]."""
        return x + (1.0 / (self.frequency + 1e-9)) * torch.pow(torch.sin(x * self.frequency), 2)


class Vocoder(nn.Module):
    """Sounds from spectrograms: each stage is longer and has fewer channels, with dilated convolutions after snakes."""

    def __init__(self, width: int, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.stages = nn.ModuleList(), nn.ModuleList()
        for index, stride in enumerate(strides):
            part = width >> (index + 1)
            self.ups.append(nn.ConvTranspose1d(2 * part, part, 2 * stride, stride, padding=stride // 2))
            self.stages.append(nn.ModuleList(
                nn.Sequential(Snake(part), nn.Conv1d(part, part, 3, padding=wide, dilation=wide)) for wide in (1, 3, 5)
            ))  # fmt: skip
        self.out = nn.Conv1d(width >> len(strides), 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        """Spectrograms [batch, 80, frames] → sounds [batch, 1, samples]."""
        x = self.first(mel)
        for up, stage in zip(self.ups, self.stages, strict=True):
            x = up(x)
            for part in stage:
                x = x + part(x)
        return self.out(x).tanh()


@pair(
    "unfused-chain", "speech synthesis", "torch.compile on the activation: one pass instead of six", FOURTEENTH,
    accept=("memory-bandwidth",), compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def snake_written_out(variant: str) -> Step:
    """A vocoder (512 channels, four stages) makes 16 sounds of two seconds in bf16; its snakes are six kernels each."""
    model = on_device(lambda: Vocoder(size(512, 32), (8, 8, 2, 2)), HALF).eval()
    if variant == AFTER and not TINY:
        compiled([part for part in model.modules() if isinstance(part, Snake)])
    mel = torch.randn(size(16, 1), 80, size(172, 4), device=DEVICE, dtype=HALF)
    return lambda: model(mel)
