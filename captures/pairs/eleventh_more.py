"""The eleventh set: written and recorded with the tenth, split at random, and read once at the end."""

from __future__ import annotations

import itertools

import numpy as np
import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import next_tokens
from pairs.parts import DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, ELEVENTH, Step, healthy, pair


@pair(
    "growing-cache", "reinforcement learning", "a ring of frames written in place, not torch.cat", ELEVENTH,
    accept=("memory-bandwidth", "unfused-chain"), inference=True, steps=(2, 1),
)  # fmt: skip
def history_joined_each_turn(variant: str) -> Step:
    """A walker's policy moves 65,536 robots for 12 turns; the last 64 frames of 64 numbers are joined in each turn."""
    robots, frames, width = size(65_536, 4), size(64, 4), 64
    short = on_device(lambda: nn.Sequential(nn.Linear(width, 16), nn.ELU()), HALF).eval()
    policy = on_device(lambda: nn.Sequential(
        nn.Linear(width + 16, 256), nn.ELU(), nn.Linear(256, 128), nn.ELU(), nn.Linear(128, width)
    ), HALF).eval()  # fmt: skip
    begin = torch.randn(frames, robots, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        past, seen = begin, begin[-1]
        for turn in range(size(12, 2)):
            context = short(past).mean(0)
            seen = policy(torch.cat([seen, context], -1))
            if variant == BEFORE:
                past = torch.cat([past[1:], seen[None]])
            else:
                past[turn % frames] = seen
        return seen

    return step


class Decoder(nn.Module):
    """The decoder of a latent autoencoder as Stable Diffusion has it, without attention."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(4, widths[0], 3, padding=1)]
        for before, after in itertools.pairwise((widths[0], *widths)):
            parts += [Residual(before, after), Residual(after, after), nn.Upsample(scale_factor=2, mode="nearest")]
            parts.append(nn.Conv2d(after, after, 3, padding=1))
        self.parts = nn.Sequential(*parts[:-2])
        self.last = nn.Sequential(nn.GroupNorm(32, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """Images [images, 3, height, width]."""
        return self.last(self.parts(x))


class Residual(nn.Module):
    """Norm, SiLU, convolution, twice."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.both = nn.Sequential(
            nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(32, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1),
        )  # fmt: skip
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the input's short way."""
        return self.short(x) + self.both(x)


@pair(
    "precision", "diffusion", "the decoder stays in bfloat16 instead of being cast to fp32", ELEVENTH,
    accept=("memory-format",), inference=True, steps=(2, 1),
)  # fmt: skip
def images_decoded_in_fp32(variant: str) -> Step:
    """A latent decoder (512 to 128 channels) makes 8 images of 512 × 512; the pipeline casts it to fp32 first."""
    kind = torch.float32 if variant == BEFORE else HALF
    model = on_device(lambda: Decoder(tuple(size(width, 32) for width in (512, 512, 256, 128))), kind).eval()
    x = torch.randn(size(8, 1), 4, size(64, 8), size(64, 8), device=DEVICE, dtype=kind)
    return lambda: model(x)


@pair(
    "precision", "embedding", "the model in bfloat16 (dtype=…), not in fp32, the default of its weights", ELEVENTH,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def proteins_in_fp32(variant: str) -> Step:
    """An ESM-2 (6 × 1,280) embeds 16 proteins of 512 residues in fp32, as it is loaded."""
    config = transformers.EsmConfig(
        vocab_size=33, hidden_size=size(1280, 32), num_hidden_layers=size(6, 1), num_attention_heads=size(20, 2),
        intermediate_size=size(5120, 64), position_embedding_type="rotary", max_position_embeddings=1026,
        pad_token_id=1, mask_token_id=32, token_dropout=False, emb_layer_norm_before=False,
    )  # fmt: skip
    model = on_device(
        lambda: transformers.EsmModel(config, add_pooling_layer=False), torch.float32 if variant == BEFORE else HALF
    ).eval()
    ids = tokens(20, size(16, 1), size(512, 8)) + 4
    return lambda: model(input_ids=ids).last_hidden_state.mean(1)


@pair(
    "misaligned-shape", "biology", "33,544 columns, seven of them empty, instead of 33,537", ELEVENTH, steps=(2, 1),
)  # fmt: skip
def genes_as_counted(variant: str) -> Step:
    """An autoencoder of single cells (33,537 genes, 1,024, 64) learns from 2,048 cells in mixed precision."""
    genes = size(33_537, 65)
    genes += 0 if variant == BEFORE else -genes % 8
    wide = size(1024, 32)

    def build() -> nn.Module:
        encoder = (nn.Linear(genes, wide), nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 64))
        return nn.Sequential(*encoder, nn.Linear(64, wide), nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, genes))

    model = on_device(build).train()
    cells = torch.randint(0, 5, (size(2048, 4), genes), device=DEVICE).float().log1p()
    return training(lambda: functional.mse_loss(model(cells).float(), cells), adamw(model))


class Causal(nn.Module):
    """A decoder block whose attention is told by a mask what it may see."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_feed = nn.RMSNorm(width), nn.RMSNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """What is added to all positions [rows, positions, width]."""
        q, k, v = self.joined(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_feed(x))


@pair(
    "host-stall", "training", "the mask is made on the GPU from the documents' numbers", ELEVENTH,
    accept=("blocking-copy",), steps=(2, 1),
)  # fmt: skip
def masks_made_by_numpy(variant: str) -> Step:
    """Six blocks of 768 learn from 8 rows of 1,536 packed tokens; NumPy makes the mask of documents in each step."""
    rows, length, width, words = size(8, 2), size(1536, 16), size(768, 32), size(32_000, 64)
    blocks = on_device(lambda: nn.ModuleList(Causal(width, size(12, 2)) for _ in range(size(6, 1)))).train()
    table = on_device(lambda: nn.Embedding(words, width)).train()
    ids = tokens(words, rows, length)
    random = np.random.default_rng(0)
    ends = [sorted(random.choice(np.arange(1, length), 5, replace=False).tolist()) for _ in range(rows)]
    number = torch.zeros(rows, length, dtype=torch.long, device=DEVICE)
    for row, places in enumerate(ends):
        for place in places:
            number[row, place:] += 1
    ordered = torch.arange(length, device=DEVICE)

    def mask() -> Tensor:
        if variant == AFTER:
            return (number[:, None, :, None] == number[:, None, None, :]) & (ordered[:, None] >= ordered)
        seen = np.zeros((rows, 1, length, length), dtype=bool)
        for row, places in enumerate(ends):
            for begin, end in itertools.pairwise([0, *places, length]):
                seen[row, 0, begin:end, begin:end] = np.tril(np.ones((end - begin, end - begin), dtype=bool))
        return torch.from_numpy(seen).to(DEVICE)

    def loss() -> Tensor:
        x, seen = table(ids), mask()
        for block in blocks:
            x = block(x, seen)
        scores = functional.linear(x[:, :-1], table.weight).flatten(0, 1)
        return functional.cross_entropy(scores, ids[:, 1:].flatten())

    return training(loss, adamw(nn.ModuleList([blocks, table])))


@healthy("training", ELEVENTH, library="transformers", compiles=True, steps=(2, 1))
def healthy_qwen_training(variant: str) -> Step:
    """A Qwen3 (6 × 2,048) learns from 8 × 1,024 tokens: bf16, layers compiled, fused AdamW."""
    config = transformers.Qwen3Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(6144, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 2),
        head_dim=size(128, 16), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model), mixed=False)


@healthy("segmentation", ELEVENTH, library="timm", compiles=True, steps=(2, 1))
def healthy_segmentation_training(variant: str) -> Step:
    """A ResNet-50 with a head of two convolutions segments 48 images of 384 × 384: channels_last, compiled, bf16."""
    body = on_device(lambda: timm.create_model("resnet50", num_classes=0, global_pool="")).train()
    head = on_device(lambda: nn.Sequential(
        nn.Conv2d(2048, 512, 3, padding=1, bias=False), nn.BatchNorm2d(512), nn.ReLU(), nn.Conv2d(512, 24, 1)
    )).train()  # fmt: skip
    model = nn.Sequential(body, head).to(memory_format=torch.channels_last)
    compiled([model])
    x = images(size(48, 2), size(384, 64)).to(memory_format=torch.channels_last)
    labels = tokens(24, len(x), x.shape[-1] // 32, x.shape[-1] // 32)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))


@healthy("decoding", ELEVENTH, library="transformers", inference=True, steps=(2, 1))
def healthy_graphed_decoding(variant: str) -> Step:
    """A Mistral (6 × 4,096) decodes two tokens of 192 sequences after 256 tokens, replayed from a CUDA graph."""
    config = transformers.MistralConfig(
        vocab_size=size(32_000, 64), hidden_size=size(4096, 32), intermediate_size=size(14_336, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
        head_dim=size(128, 16), sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config), HALF).eval()
    batch, prompt = size(192, 2), size(256, 8)
    return next_tokens(model, batch, prompt, 2)
