"""More of the twenty-eighth set: traffic, plants, poses, atoms, patents, weather, photographs, assays, films, words."""

from __future__ import annotations

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    Block,
    adamw,
    as_graph,
    compiled,
    images,
    mixed,
    on_device,
    size,
    tokens,
    training,
)
from pairs.registry import AFTER, BEFORE, TWENTY_EIGHTH, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


class FullAttention(nn.Module):
    """Attention as libraries of time series have it, or fused."""

    def __init__(self, width: int, heads: int, drop: float, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.fused = heads, drop, fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Series [rows, series, width]."""
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        if self.fused:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            seen = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.drop if self.training else 0.0)
            return self.out(seen.transpose(1, 2).flatten(2))
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        chances = torch.softmax(q.shape[-1] ** -0.5 * scores, dim=-1)
        chances = functional.dropout(chances, self.drop, self.training)
        return self.out(torch.einsum("bhls,bshd->blhd", chances, v).contiguous().flatten(2))


class Inverted(nn.Module):
    """iTransformer (Y. Liu et al., 2023): each series is a token."""

    def __init__(self, seen: int, ahead: int, width: int, heads: int, layers: int, *, fused: bool) -> None:
        super().__init__()
        self.names, self.told = nn.Linear(seen, width), nn.Linear(width, ahead)
        self.attentions = nn.ModuleList(FullAttention(width, heads, 0.1, fused=fused) for _ in range(layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, x: Tensor) -> Tensor:
        """Series [rows, series, times] → [rows, series, times ahead]."""
        mean, spread = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        y = self.names((x - mean) / spread)
        for index, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            y = self.norms[2 * index](y + attention(y))
            y = self.norms[2 * index + 1](y + feed(y))
        return self.told(y) * spread + mean


@pair(
    "unfused-attention", "time series", "scaled_dot_product_attention instead of einsum and softmax", TWENTY_EIGHTH,
    accept=("memory-bandwidth",), steps=(3, 2),
)  # fmt: skip
def traffic_forecasting(variant: str) -> Step:
    """An iTransformer (4 × 512, 8 heads) learns the traffic at 832 sensors from 32 windows of 96 hours.

    Its attention passes several times over all scores in memory; hence "memory-bandwidth", too.
    """
    seen, ahead = size(96, 8), size(96, 4)
    fused, width, heads, layers = variant == AFTER, size(512, 16), size(8, 2), size(4, 1)
    model = on_device(lambda: Inverted(seen, ahead, width, heads, layers, fused=fused)).train()
    x = torch.randn(size(32, 2), size(832, 8), seen, device=DEVICE)
    later = torch.randn(*x.shape[:2], ahead, device=DEVICE)
    return training(lambda: functional.mse_loss(model(x).float(), later), adamw(model))


class Biased(nn.Module):
    """A layer over patches, whose attention has a bias for each offset (BEiT, Swin)."""

    def __init__(self, width: int, heads: int, side: int, *, selected: bool) -> None:
        super().__init__()
        self.heads, self.side, self.selected = heads, side, selected
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.table = nn.Parameter(0.02 * torch.randn((2 * side - 1) ** 2, heads))
        places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        offsets = places[:, :, None] - places[:, None, :] + side - 1
        self.register_buffer("index", (offsets[0] * (2 * side - 1) + offsets[1]).flatten())

    def bias(self) -> Tensor:
        """What is added to scores [1, heads, patches, patches]."""
        told = self.table.index_select(0, self.index) if self.selected else self.table[self.index]
        return told.view(self.side**2, self.side**2, self.heads).permute(2, 0, 1).contiguous()[None]

    def forward(self, x: Tensor) -> Tensor:
        """Patches [rows, patches, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias().to(q.dtype))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "scattered-access", "vision", "biases are looked up by index_select, whose gradient does not sort", TWENTY_EIGHTH,
    steps=(2, 2),
)  # fmt: skip
def plant_identification(variant: str) -> Step:
    """A ViT (8 × 768) with relative positions, as in BEiT, learns plants from 24 photographs of 384²."""
    width, side, kinds = size(768, 32), size(24, 4), size(1000, 8)
    selected, heads, layers = variant == AFTER, size(12, 2), size(8, 1)
    names = on_device(lambda: nn.Conv2d(3, width, 16, 16))
    blocks = on_device(
        lambda: nn.Sequential(*(Biased(width, heads, side, selected=selected) for _ in range(layers))), seed=1
    )
    head = on_device(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds)), seed=2)
    x, labels = images(size(24, 2), 16 * side), tokens(kinds, size(24, 2))
    return training(
        lambda: functional.cross_entropy(head(blocks(names(x).flatten(2).mT).mean(1)), labels),
        adamw(nn.ModuleList([names, blocks, head])),
    )


def raised(narrow: int, wide: int) -> nn.Sequential:
    """A transposed convolution, which doubles the sides of its maps."""
    return nn.Sequential(
        nn.ConvTranspose2d(narrow, wide, 4, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)
    )


class Poses(nn.Module):
    """Simple baselines for human pose (B. Xiao et al., 2018): a ResNet, three transposed convolutions, heatmaps."""

    def __init__(self, name: str, wide: int) -> None:
        super().__init__()
        self.body = timm.create_model(name, features_only=True, out_indices=(4,))
        narrow = self.body.feature_info.channels()[-1]
        self.raised = nn.Sequential(raised(narrow, wide), raised(wide, wide), raised(wide, wide))
        self.head = nn.Conv2d(wide, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Persons [rows, 3, high, wide] → heatmaps [rows, 16, high / 4, wide / 4]."""
        return self.head(self.raised(self.body(x)[-1]))


@pair("memory-format", "poses", "model and images are channels_last", TWENTY_EIGHTH, library="timm", steps=(2, 2))
def pose_heatmaps(variant: str) -> Step:
    """A ResNet-50 with three transposed convolutions learns heatmaps of joints from 128 persons: mixed precision."""
    model = on_device(lambda: Poses("resnet50" if CUDA else "resnet10t", size(256, 16))).train()
    x = torch.randn(size(128, 2), 3, size(256, 64), size(192, 32), device=DEVICE)
    joints = torch.rand(len(x), 16, x.shape[2] // 4, x.shape[3] // 4, device=DEVICE)
    if variant == AFTER:
        model, x, joints = (part.to(memory_format=LAST) for part in (model, x, joints))
    return training(lambda: functional.mse_loss(model(x).float(), joints), adamw(model))


class Argon(nn.Module):
    """Forces between atoms of argon in a periodic box (J. E. Lennard-Jones)."""

    def forward(self, places: Tensor, box: float) -> Tensor:
        """Places [atoms, 3] → forces [atoms, 3]."""
        apart = places[:, None, :] - places[None, :, :]
        apart = apart - box * torch.round(apart / box)
        squared = (apart * apart).sum(-1)
        inverse = torch.where((squared > 0) & (squared < 9.0), 1.0 / squared.clamp(min=0.5), 0.0)
        sixth = inverse**3
        strength = 24.0 * inverse * (2.0 * sixth * sixth - sixth)
        return (strength[..., None] * apart).sum(1)


@pair(
    "unfused-chain", "simulation", "the forces through torch.compile", TWENTY_EIGHTH,
    accept=("memory-bandwidth",), compiles=True, inference=True, steps=(3, 2),
)  # fmt: skip
def argon_simulation(variant: str) -> Step:
    """8,192 atoms of argon move four times; forces between all of them are worked out line by line.

    Each line is a pass over 67 million pairs in memory; hence "memory-bandwidth", too.
    """
    atoms, box, time = size(8192, 32), 24.0, 1e-4
    forces = Argon()
    if variant == AFTER:
        torch._dynamo.reset()
        compiled([forces])
    side = round(atoms ** (1 / 3) + 0.5)
    grid = torch.cartesian_prod(*(torch.arange(side, device=DEVICE, dtype=torch.float32) for _ in range(3)))
    places = grid[:atoms] * (box / side)
    speeds = 0.1 * torch.randn(atoms, 3, device=DEVICE)

    def step() -> Tensor:
        now, fast = places, speeds
        for _ in range(4):
            fast = fast + time * forces(now, box)
            now = (now + time * fast) % box
        return now

    return step


@pair(
    "recomputation", "training", "without gradient_checkpointing_enable(), for which there is memory", TWENTY_EIGHTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def patent_pretraining(variant: str) -> Step:
    """An OPT (3 × 4,096) learns 8 patents of 1,024 words with gradient checkpointing: mixed precision, fused AdamW."""
    config = transformers.OPTConfig(
        vocab_size=size(50_272, 64), hidden_size=size(4096, 32), ffn_dim=size(16_384, 64), dropout=0.0,
        num_hidden_layers=size(3, 1), num_attention_heads=size(32, 2), word_embed_proj_dim=size(4096, 32),
        max_position_embeddings=size(1024, 16), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.OPTForCausalLM(config)).train()
    if variant == BEFORE:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model))


class Emulator(nn.Module):
    """A transformer over patches of 16² of the atmosphere."""

    def __init__(self, channels: int, width: int, heads: int, layers: int, patches: int) -> None:
        super().__init__()
        self.names = nn.Conv2d(channels, width, 16, 16)
        self.places = nn.Parameter(0.02 * torch.randn(1, patches, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, channels * 256)

    def forward(self, x: Tensor) -> Tensor:
        """States [rows, channels, high, wide] → the next ones."""
        high, wide = x.shape[2] // 16, x.shape[3] // 16
        told = self.head(self.norm(self.blocks(self.names(x).flatten(2).mT + self.places)))
        return functional.pixel_shuffle(told.mT.unflatten(2, (high, wide)), 16)


@pair(
    "blocking-copy", "weather", "states in pinned memory (pin_memory=True), copied with non_blocking=True",
    TWENTY_EIGHTH, steps=(3, 2),
)  # fmt: skip
def weather_emulator(variant: str) -> Step:
    """A ViT (10 × 1,024) learns the next six hours of 69 fields on 720 × 1,440 places; state and next one are sent."""
    channels, high, wide = size(69, 3), size(720, 32), size(1440, 32)
    patches = (high // 16) * (wide // 16)
    model = on_device(lambda: Emulator(channels, size(1024, 32), size(16, 2), size(10, 1), patches)).train()
    optimizer = adamw(model)
    drawn = torch.Generator().manual_seed(0)
    states = [torch.randn(1, channels, high, wide, generator=drawn) for _ in range(2)]
    pinned = variant == AFTER and CUDA
    if pinned:
        states = [state.pin_memory() for state in states]

    def step() -> None:
        now, later = (state.to(DEVICE, non_blocking=pinned) for state in states)
        with mixed():
            loss = functional.l1_loss(model(now), later)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair(
    "unused-results", "retrieval", "the tower of images alone (get_image_features), not the whole model", TWENTY_EIGHTH,
    library="transformers", inference=True, steps=(3, 2),
)  # fmt: skip
def photo_library_index(variant: str) -> Step:
    """A CLIP (ViT-B/32, bf16) describes 1,024 photographs for a search; the text that it wants is "a photo" for each.

    Of what the model gives, image_embeds are kept.
    """
    side, room, batch = size(224, 64), size(77, 8), size(1024, 2)
    text = {"hidden_size": size(512, 32), "intermediate_size": size(2048, 64), "vocab_size": size(49_408, 64)}
    text |= {"num_attention_heads": size(8, 2), "num_hidden_layers": size(12, 1), "max_position_embeddings": room}
    seen = {"hidden_size": size(768, 32), "intermediate_size": size(3072, 64), "image_size": side, "patch_size": 32}
    seen |= {"num_attention_heads": size(12, 2), "num_hidden_layers": size(12, 1)}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "hidden_act": "gelu"}
    config = transformers.CLIPConfig(
        text_config={**text, **ends}, vision_config={**seen, "hidden_act": "gelu"}, projection_dim=size(512, 16)
    )
    model = on_device(lambda: transformers.CLIPModel(config), HALF).eval()
    x = images(batch, side, HALF)
    ids = torch.tensor([0, 5, 7] + [1] * (room - 3), device=DEVICE).expand(batch, -1).contiguous()

    def step() -> Tensor:
        if variant == BEFORE:
            return model(pixel_values=x, input_ids=ids).image_embeds
        features = model.visual_projection(model.vision_model(pixel_values=x).pooler_output)
        return functional.normalize(features, dim=-1)

    return step


class Bonds(nn.Module):
    """A layer of message passing: atoms hear their neighbours, and think about it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.said = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Atoms [atoms, width], bonds from and to."""
        said = self.said(x)
        heard = torch.zeros_like(said).index_add(0, end, said.index_select(0, start))
        return self.norm(x + self.feed(x + heard))


@pair(
    "host-sync", "molecules", "one loss over all assays, those without a result weighed by nought", TWENTY_EIGHTH,
    accept=("launch-overhead", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def molecule_assays(variant: str) -> Step:
    """A network (4 × 256) learns 128 assays of 1,024 molecules, most of them unknown; the loss goes assay by assay.

    Each picks the molecules whose result is known. Its kernels are small, and many: hence the other two findings, too.
    """
    width, molecules, atoms, assays = size(256, 16), size(1024, 6), size(24, 4), size(128, 5)
    layers = on_device(lambda: nn.ModuleList(Bonds(width) for _ in range(size(4, 1)))).train()
    names = on_device(lambda: nn.Embedding(120, width), seed=1)
    head = on_device(lambda: nn.Linear(width, assays), seed=2)
    optimizer = adamw(nn.ModuleList([layers, names, head]))
    kinds = tokens(120, molecules * atoms)
    first = torch.arange(molecules, device=DEVICE).repeat_interleave(2 * atoms) * atoms
    start, end = (first + tokens(atoms, len(first)) for _ in range(2))
    results = (torch.rand(molecules, assays, device=DEVICE) > 0.8).float()
    results[torch.rand(molecules, assays, device=DEVICE) > 0.3] = float("nan")
    results[0] = 1.0

    def assay_by_assay(told: Tensor) -> Tensor:
        loss = torch.zeros((), device=DEVICE)
        for index in range(assays):
            known = ~torch.isnan(results[:, index])
            loss = loss + functional.binary_cross_entropy_with_logits(told[known, index], results[known, index])
        return loss / assays

    def at_once(told: Tensor) -> Tensor:
        known = (~torch.isnan(results)).float()
        losses = functional.binary_cross_entropy_with_logits(told, results.nan_to_num(0.0), reduction="none")
        return ((losses * known).sum(0) / known.sum(0)).mean()

    def step() -> None:
        with mixed():
            x = names(kinds)
            for layer in layers:
                x = layer(x, start, end)
            told = head(x.view(molecules, atoms, -1).mean(1)).float()
        loss = assay_by_assay(told) if variant == BEFORE else at_once(told)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Film(nn.Module):
    """A layer of a transformer that denoises films: shifted and scaled by what the time says."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.changes = nn.Linear(width, 6 * width)
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Places [rows, places, width], time [rows, 1, width]."""
        shift, scale, gate, shift2, scale2, gate2 = self.changes(functional.silu(time)).chunk(6, -1)
        y = self.norm(x) * (1 + scale) + shift
        q, k, v = self.asked(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + gate * self.out(seen.transpose(1, 2).flatten(2))
        y = self.norm(x) * (1 + scale2) + shift2
        return x + gate2 * self.narrow(functional.gelu(self.wide(y), approximate="tanh"))


@healthy("diffusion", TWENTY_EIGHTH, compiles=True, inference=True, steps=(2, 2))
def healthy_film_denoising(variant: str) -> Step:
    """A transformer (8 × 2,048, bf16, layers compiled) denoises a film of 12,288 tokens once."""
    width = size(2048, 32)
    layers = on_device(lambda: nn.ModuleList(Film(width, size(16, 2)) for _ in range(size(8, 1))), HALF).eval()
    compiled(layers)
    x = torch.randn(1, size(12_288, 12), width, device=DEVICE, dtype=HALF)
    time = torch.randn(1, 1, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        y = x
        for layer in layers:
            y = layer(y, time)
        return y

    return step


@healthy("embedding", TWENTY_EIGHTH, compiles=True, inference=True, steps=(2, 2))
def healthy_paragraphs_encoded(variant: str) -> Step:
    """An encoder (24 × 1,024, bf16, layers compiled) makes vectors of 128 paragraphs of 512 words, all of a length."""
    width, words = size(1024, 32), size(32_768, 64)
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(16, 2)) for _ in range(size(24, 1)))), HALF).eval()
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    ids = tokens(words, size(128, 2), size(512, 8))
    return lambda: functional.normalize(layers(names(ids)).mean(1), dim=-1)


@healthy("speech", TWENTY_EIGHTH, inference=True, steps=(6, 3))
def healthy_graphed_keywords(variant: str) -> Step:
    """A network (4 × 2,048, bf16) hears 16 words in 4,096 windows of 40 frames, replayed from a CUDA graph."""
    narrow, width, words = size(1600, 32), size(2048, 32), size(16, 4)
    parts: list[nn.Module] = []
    for index in range(4):
        parts += [nn.Linear(width if index else narrow, width), nn.ReLU(inplace=True)]
    model = on_device(lambda: nn.Sequential(*parts, nn.Linear(width, words)), HALF).eval()
    x = torch.randn(size(4096, 2), narrow, device=DEVICE, dtype=HALF)
    return as_graph(lambda: model(x).argmax(-1))
