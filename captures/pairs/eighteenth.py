"""The eighteenth set: common habits and reported ones; written with the nineteenth, split at random."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import next_tokens, share_heads
from pairs.parts import DEVICE, HALF, adamw, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, EIGHTEENTH, Step, healthy, pair


@pair(
    "precision", "training", "torch.autocast('cuda', torch.bfloat16)", EIGHTEENTH,
    library="transformers", accept=("tensor-compute",), steps=(3, 3),
)  # fmt: skip
def gpt2_in_fp32(variant: str) -> Step:
    """GPT-2 (12 × 768) learns from 4 texts of 1,024 tokens in fp32, neither TF32 nor autocast being asked for."""
    config = transformers.GPT2Config(
        vocab_size=size(50_304, 64), n_layer=size(12, 1), n_embd=size(768, 32), n_head=size(12, 2), resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_pytorch_tanh", use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.GPT2LMHeadModel(config)).train()
    ids = tokens(config.vocab_size, size(4, 1), size(1024, 8))
    return training(lambda: model(input_ids=ids, labels=ids).loss, adamw(model), mixed=variant == AFTER)


class ByHand(nn.Module):
    """The norm of Llama, in the lines that everyone copies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Divides x by its root mean square."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Sandwich(nn.Module):
    """A block with norms before and after attention and MLP, and of queries and keys."""

    def __init__(self, width: int, heads: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(norm(width) for _ in range(4))
        self.for_queries, self.for_keys = norm(width // heads), norm(width // heads)
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Positions [texts, positions, width]."""
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in self.joined(self.norms[0](x)).chunk(3, -1))
        parts = (part.transpose(1, 2) for part in (self.for_queries(q), self.for_keys(k), v))
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.norms[1](self.out(seen))
        return x + self.norms[3](self.narrow(functional.gelu(self.wide(self.norms[2](x)), approximate="tanh")))


@pair(
    "unfused-chain", "prefill", "nn.RMSNorm instead of float, square, mean, rsqrt and products", EIGHTEENTH,
    accept=("memory-bandwidth",), inference=True, steps=(3, 3),
)  # fmt: skip
def norms_written_out(variant: str) -> Step:
    """A language model like Gemma (12 × 1,024, six norms a layer) reads 16 texts of 1,024 tokens in bf16."""
    width, heads = size(1024, 32), size(16, 2)
    norm = ByHand if variant == BEFORE else functools.partial(nn.RMSNorm, eps=1e-6)
    blocks = on_device(lambda: nn.Sequential(*(Sandwich(width, heads, norm) for _ in range(size(12, 1)))), HALF).eval()
    x = torch.randn(size(16, 1), size(1024, 8), width, device=DEVICE, dtype=HALF)
    return lambda: blocks(x)[:, -1]


@pair(
    "padded-work", "fine-tuning", "padding=\"longest\" instead of padding=\"max_length\"", EIGHTEENTH,
    library="transformers", accept=("unused-results",), steps=(3, 3),
)  # fmt: skip
def dialogues_padded_to_2048(variant: str) -> Step:
    """A small Llama (12 × 960) is fine-tuned on 8 dialogues of up to 640 tokens in mixed precision, padded to 2,048."""
    config = transformers.LlamaConfig(
        vocab_size=size(49_152, 64), hidden_size=size(960, 32), intermediate_size=size(2560, 64),
        num_hidden_layers=size(12, 1), num_attention_heads=size(15, 2), num_key_value_heads=size(5, 1), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    dialogues, longest = size(8, 2), size(640, 8)
    lengths = torch.linspace(longest // 3, longest, dialogues, device=DEVICE).long()
    ids = tokens(config.vocab_size, dialogues, size(2048, 24) if variant == BEFORE else longest)
    mask = torch.arange(ids.shape[1], device=DEVICE) < lengths[:, None]
    labels = ids.masked_fill(~mask, -100)
    how = {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}
    return training(lambda: model(**how).loss, adamw(model))


@pair(
    "host-sync", "summaries", "dtype=torch.bfloat16, whose infinities nobody looks for, not float16", EIGHTEENTH,
    library="transformers", accept=("launch-overhead", "small-kernels"), inference=True, steps=(3, 3),
)  # fmt: skip
def halves_checked_for_infinity(variant: str) -> Step:
    """The encoder of BART-L (12 × 1,024) reads 4 texts of 512 tokens in fp16; each layer asks whether all is finite."""
    config = transformers.BartConfig(
        vocab_size=size(50_272, 64), d_model=size(1024, 32), encoder_layers=size(12, 2), decoder_layers=1,
        encoder_attention_heads=size(16, 2), encoder_ffn_dim=size(4096, 64), decoder_ffn_dim=64,
        decoder_attention_heads=size(16, 2),
    )  # fmt: skip
    dtype = torch.float16 if variant == BEFORE else torch.bfloat16
    encoder = on_device(lambda: transformers.BartModel(config), dtype).eval().get_encoder()
    ids = tokens(config.vocab_size - 4, size(4, 1), size(512, 8)) + 4
    return lambda: encoder(input_ids=ids).last_hidden_state


@pair(
    "misaligned-shape", "long sequences", "transforms of 10,240 points instead of 2 · 5,003", EIGHTEENTH,
    accept=("memory-bandwidth",), inference=True, steps=(3, 3),
)  # fmt: skip
def filters_of_a_prime_length(variant: str) -> Step:
    """Hyena's long convolutions by FFT: 4 layers, 512 channels, 8 recordings of 5,003 values each, as they were cut."""
    length, channels = size(5003, 13), size(512, 2)
    points = 2 * length if variant == BEFORE else size(10_240, 32)
    x = torch.randn(size(8, 1), channels, length, device=DEVICE)
    filters = [torch.randn(channels, length, device=DEVICE) / length for _ in range(size(4, 1))]

    def step() -> Tensor:
        y = x
        for taps in filters:
            product = torch.fft.rfft(y, points) * torch.fft.rfft(taps, points)
            y = y + torch.fft.irfft(product, points)[..., :length]
        return y

    return step


class Tagger(nn.Module):
    """Words, an LSTM in both directions, tags."""

    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width // 2, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores [texts, words, tags]."""
        return self.tags(self.lstm(self.table(ids))[0])


@pair(
    "launch-overhead", "tagging", "without torch.backends.cudnn.enabled = False", EIGHTEENTH,
    accept=("small-kernels", "unfused-chain"), steps=(2, 2),
)  # fmt: skip
def memory_without_cudnn(variant: str) -> Step:
    """LSTMs of 2 × 1,024 in both directions learn tags of 256 texts of 48 words (mixed precision), cuDNN turned off."""
    words, texts, length = size(20_000, 50), size(256, 2), size(48, 4)
    model = on_device(lambda: Tagger(words, size(2048, 16), 17)).train()
    ids, labels = tokens(words, texts, length), tokens(17, texts, length)
    learn = training(lambda: functional.cross_entropy(model(ids).flatten(0, 1).float(), labels.flatten()), adamw(model))

    def step() -> None:
        with torch.backends.cudnn.flags(enabled=variant == AFTER):
            learn()

    return step


class Sloped(nn.Module):
    """A block that sees less of what is farther away."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def bias(self, length: int) -> Tensor:
        """What is taken from scores [heads, positions, positions]."""
        slopes = torch.pow(2.0, -torch.arange(1, self.heads + 1, device=DEVICE) * 8 / self.heads)
        places = torch.arange(length, device=DEVICE)
        distance = places[:, None] - places
        bias = -slopes[:, None, None] * distance.abs().float()
        return bias.masked_fill(distance < 0, -torch.inf).to(HALF)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Positions [texts, positions, width]."""
        bias = self.bias(x.shape[1]) if bias is None else bias
        parts = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.joined(self.norms[0](x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(*parts, attn_mask=bias)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "recomputation", "prefill", "the bias of ALiBi is made once for all layers", EIGHTEENTH,
    accept=("unfused-chain", "memory-bandwidth"), inference=True, steps=(3, 3),
)  # fmt: skip
def slopes_worked_out_in_each_layer(variant: str) -> Step:
    """A model with ALiBi (16 × 1,024, bf16) reads one text of 4,096 tokens; each layer works out the bias anew."""
    width, length = size(1024, 32), size(4096, 8)
    blocks = on_device(lambda: nn.ModuleList(Sloped(width, size(16, 2)) for _ in range(size(16, 2))), HALF).eval()
    text = torch.randn(1, length, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x, bias = text, None if variant == BEFORE else blocks[0].bias(length)
        for block in blocks:
            x = block(x, bias)
        return x[:, -1]

    return step


@healthy("prefill", EIGHTEENTH, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_qwen_prefill(variant: str) -> Step:
    """A Qwen2 (8 × 3,584, bf16) reads 4 texts of 2,048 tokens: layers compiled, scores of the last position alone."""
    config = transformers.Qwen2Config(
        vocab_size=size(65_536, 64), hidden_size=size(3584, 32), intermediate_size=size(18_944, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(28, 2), num_key_value_heads=size(4, 2), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(4, 1), size(2048, 8))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits.argmax(-1)


@pair(
    "growing-cache", "decoding", "attention reads the heads that are shared, which were repeated", EIGHTEENTH,
    library="transformers", compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def mistral_heads_repeated(variant: str) -> Step:
    """A Mistral (8 × 4,096) adds three tokens to 192 texts of 384: bf16, compiled layers, static cache, CUDA graph."""
    config = transformers.MistralConfig(
        vocab_size=size(32_768, 64), hidden_size=size(4096, 32), intermediate_size=size(14_336, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
        head_dim=size(128, 16), sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config), HALF).eval()
    if variant == AFTER:
        share_heads(model)
    compiled(model.model.layers)
    batch, prompt = size(192, 2), size(376, 8)
    return next_tokens(model, batch, prompt, 3)


class NextItem(nn.Module):
    """SASRec: a small causal transformer over what a user has seen, and the loss of what comes next."""

    def __init__(self, items: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
        layer = functools.partial(nn.Linear, width)
        self.heads = heads
        self.joined = nn.ModuleList(layer(3 * width) for _ in range(layers))
        self.out = nn.ModuleList(layer(width) for _ in range(layers))
        self.wide = nn.ModuleList(layer(4 * width) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, seen: Tensor, labels: Tensor) -> Tensor:
        """The loss of items [users, items]."""
        x = self.items(seen) + self.places.weight
        for index, (joined, out, wide, narrow) in enumerate(
            zip(self.joined, self.out, self.wide, self.narrow, strict=True)
        ):
            parts = joined(self.norms[2 * index](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(attended.transpose(1, 2).flatten(2))
            x = x + narrow(functional.gelu(wide(self.norms[2 * index + 1](x))))
        return functional.cross_entropy(functional.linear(x, self.items.weight).flatten(0, 1), labels)


@healthy("recommendation", EIGHTEENTH, compiles=True, steps=(3, 3))
def healthy_next_items(variant: str) -> Step:
    """SASRec (4 × 512) learns the next of 16,384 items from 256 users' last 128: mixed precision, compiled whole."""
    items, users, length = size(16_384, 64), size(256, 2), size(128, 8)
    model = on_device(lambda: NextItem(items, size(512, 16), size(8, 2), size(4, 1), length)).train()
    compiled([model])
    seen = tokens(items, users, length)
    labels = seen.roll(-1, 1).flatten()
    return training(lambda: model(seen, labels), adamw(model))
