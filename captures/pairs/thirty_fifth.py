"""The thirty-fifth set: programs of training, each of another family, most of whose mistakes hide in a detail."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pairs.parts import CUDA, DEVICE, TINY, Block, adamw, compiled, images, mixed, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_FIFTH, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


@pair(
    "unused-results", "retrieval", "model.roberta(…).last_hidden_state instead of hidden_states[-1] of the masked-word "
    "model", THIRTY_FIFTH, library="transformers", steps=(3, 2),
)  # fmt: skip
def parallel_sentence_training(variant: str) -> Step:
    """An XLM-R (12 × 768, mixed precision, fused AdamW) learns to find the translation of 192 sentences of 32 words.

    It was loaded as a model of masked words, since the weights were stored as one, and asked for its hidden states.
    Its head scores 250,112 words for each place on the way; nobody reads these scores, and no gradient comes back.
    """
    rows, long = size(192, 4), size(32, 8)
    config = transformers.XLMRobertaConfig(
        vocab_size=size(250_112, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 2),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=size(514, 16),
        type_vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.XLMRobertaForMaskedLM(config)).train()
    optimizer = adamw(model)
    seeded(1)
    ids = 3 + tokens(config.vocab_size - 3, 2 * rows, long)
    right = torch.arange(rows, device=DEVICE)

    def embedded() -> Tensor:
        if variant == AFTER:
            return model.roberta(input_ids=ids).last_hidden_state
        return model(input_ids=ids, output_hidden_states=True).hidden_states[-1]

    def step() -> Tensor:
        with mixed():
            source, target = functional.normalize(embedded().mean(1), dim=-1).chunk(2)
            scores = 20.0 * source @ target.T
        loss = 0.5 * (
            functional.cross_entropy(scores.float(), right) + functional.cross_entropy(scores.T.float(), right)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "unused-gradients", "fine-tuning", "without enable_input_require_grads(): nothing below the last two layers learns",
    THIRTY_FIFTH, library="transformers", steps=(2, 1),
)  # fmt: skip
def tax_question_tuning(variant: str) -> Step:
    """Of a Llama (20 × 2,048, bf16) the last two layers and the head learn from 6 answers of 1,024 tokens about taxes.

    A line was left from a recipe for adapters with checkpoints: model.enable_input_require_grads(). It makes the
    embedded words require gradients, so that the backward pass goes on through eighteen frozen layers to the words.
    """
    rows, long = size(6, 2), size(1024, 8)
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), num_hidden_layers=size(20, 3),
        num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2), intermediate_size=size(5504, 64),
        max_position_embeddings=size(2048, 16), use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config), torch.bfloat16 if CUDA else torch.float32).train()
    model.requires_grad_(False)
    learning = nn.ModuleList([*model.model.layers[-2:], model.model.norm, model.lm_head]).requires_grad_(True)
    if variant == BEFORE:
        model.enable_input_require_grads()
    optimizer = adamw(learning)
    seeded(1)
    ids = tokens(config.vocab_size, rows, long + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step() -> Tensor:
        loss = functional.cross_entropy(model(input_ids=given).logits.flatten(0, 1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(learning.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Residual(nn.Module):
    """A block of convolutions without norms, whose branch is scaled down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, channels, height, width]."""
        return torch.add(x, self.branch(x), alpha=0.2)


@pair("recomputation", "GAN", "the picture that the critic judged is used for the generator's own loss", THIRTY_FIFTH,
      steps=(2, 1))  # fmt: skip
def old_film_restoration(variant: str) -> Step:
    """A generator (16 blocks × 192 channels at 96²) learns to enlarge 16 frames of old films to 384², beside a critic.

    Both are channels_last, in mixed precision, each with a fused Adam. The critic's step makes pictures without a
    gradient, and the generator's step makes the same ones once more, from the same frames and with the same weights.
    """
    rows, side, width, deep, narrow = size(16, 2), size(96, 16), size(192, 8), size(16, 2), size(64, 8)
    maker = on_device(
        lambda: nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), *(Residual(width) for _ in range(deep)),
            nn.Conv2d(width, 48, 3, padding=1), nn.PixelShuffle(4),
        )
    ).train().to(memory_format=LAST)  # fmt: skip
    widths = [3, narrow, 2 * narrow, 4 * narrow, 8 * narrow]
    critic = on_device(
        lambda: nn.Sequential(
            *(
                part
                for enter, leave in pairwise(widths)
                for part in (nn.Conv2d(enter, leave, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True))
            ),
            nn.Conv2d(widths[-1], 8, 1),
        ),
        seed=1,
    ).train().to(memory_format=LAST)  # fmt: skip
    of_maker, of_critic = adamw(maker), adamw(critic)
    seeded(2)
    small = images(rows, side).contiguous(memory_format=LAST)
    large = images(rows, 4 * side).contiguous(memory_format=LAST)

    def critic_learns(made: Tensor) -> Tensor:
        with mixed():
            true, false = critic(large), critic(made)
        loss = functional.relu(1.0 - true.float()).mean() + functional.relu(1.0 + false.float()).mean()
        loss.backward()
        of_critic.step()
        of_critic.zero_grad(set_to_none=True)
        return loss.detach()

    def maker_learns(made: Tensor) -> Tensor:
        critic.requires_grad_(False)
        with mixed():
            judged = critic(made)
        loss = functional.l1_loss(made.float(), large) - 0.01 * judged.float().mean()
        loss.backward()
        critic.requires_grad_(True)
        of_maker.step()
        of_maker.zero_grad(set_to_none=True)
        return loss.detach()

    def step() -> tuple[Tensor, Tensor]:
        if variant == AFTER:
            with mixed():
                made = maker(small)
            return critic_learns(made.detach()), maker_learns(made)
        with torch.no_grad(), mixed():
            made = maker(small)
        of_one = critic_learns(made)
        with mixed():
            made = maker(small)
        return of_one, maker_learns(made)

    return step


class Ternary(torch.autograd.Function):
    """A product with weights rounded to -1, 0 and 1; gradients go past the rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Places [rows, places, width], weights [width out, width]."""
        scale = weight.abs().mean()
        rounded = (weight / scale).round().clamp(-1, 1) * scale
        ctx.save_for_backward(x, rounded)
        return functional.linear(x, rounded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the product → those of places and weights."""
        x, rounded = ctx.saved_tensors
        grad = grads[0].to(rounded.dtype)
        return grad @ rounded, grad.flatten(0, 1).T @ x.flatten(0, 1).to(rounded.dtype)


class TernaryUnderAutocast(Ternary):
    """The same, whose backward pass is in the context of autocast that its forward pass was in."""

    forward = staticmethod(torch.amp.custom_fwd(Ternary.forward, device_type=DEVICE.type))
    backward = staticmethod(torch.amp.custom_bwd(Ternary.backward, device_type=DEVICE.type))


class TernaryLinear(nn.Linear):
    """A layer of rounded weights."""

    of: type[Ternary] = Ternary

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        y = self.of.apply(x, self.weight)
        return y + self.bias.to(y.dtype)


@pair("precision", "quantisation", "custom_fwd and custom_bwd on the function's two methods", THIRTY_FIFTH,
      steps=(2, 1))  # fmt: skip
def three_valued_story_pretraining(variant: str) -> Step:
    """A GPT (12 × 1,024, fused AdamW) with weights of three values learns from 6 stories of 1,024 tokens.

    It runs in mixed precision, but the products are an autograd function of its own. Its backward pass is outside of
    autocast: two thirds of the arithmetic meet saved fp32 tensors, and are done in fp32, without TF32.
    """
    rows, long, width, words = size(6, 2), size(1024, 8), size(1024, 32), size(32_000, 64)
    deep, heads = size(12, 2), size(16, 2)
    of = TernaryUnderAutocast if variant == AFTER else Ternary

    def build() -> nn.Module:
        layers = [Block(width, heads, causal=True) for _ in range(deep)]
        for layer in layers:
            layer.asked, layer.out = TernaryLinear(width, 3 * width), TernaryLinear(width, width)
            layer.feed = nn.Sequential(TernaryLinear(width, 4 * width), nn.GELU(), TernaryLinear(4 * width, width))
            for part in (layer.asked, layer.out, layer.feed[0], layer.feed[2]):
                part.of = of
        return nn.Sequential(nn.Embedding(words, width), *layers, nn.LayerNorm(width), nn.Linear(width, words))

    model = on_device(build).train()
    optimizer = adamw(model)
    seeded(1)
    ids = tokens(words, rows, long + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step() -> Tensor:
        with mixed():
            loss = functional.cross_entropy(model(given).flatten(0, 1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class AutoCorrelation(nn.Module):
    """Series are shifted by the delays at which they resemble themselves, and added up (arXiv:2106.13008)."""

    def __init__(self, width: int, factor: float, *, at_once: bool) -> None:
        super().__init__()
        self.factor, self.at_once = factor, at_once
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Series [rows, times, width]."""
        q, k, values = self.asked(x).chunk(3, -1)
        spectrum = torch.fft.rfft(q.float(), dim=1) * torch.fft.rfft(k.float(), dim=1).conj()
        likeness = torch.fft.irfft(spectrum, x.shape[1], dim=1).mean(2)
        delays: Any = likeness.mean(0).topk(int(self.factor * math.log(x.shape[1]))).indices
        if self.at_once:
            delays = delays.tolist()
        shares = torch.stack([likeness[:, delay] for delay in delays], -1).softmax(-1).type_as(values)
        made = torch.zeros_like(values)
        for place, delay in enumerate(delays):
            made = made + torch.roll(values, -int(delay), 1) * shares[:, place, None, None]
        return self.out(made)


class Decomposed(nn.Module):
    """A layer of Autoformer: after each part, the trend is taken away."""

    def __init__(self, width: int, factor: float, *, at_once: bool) -> None:
        super().__init__()
        self.delays = AutoCorrelation(width, factor, at_once=at_once)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.trend = nn.AvgPool1d(25, 1, padding=12, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Series [rows, times, width]."""
        for part in (self.delays, self.feed):
            x = x + part(x)
            x = x - self.trend(x.transpose(1, 2)).transpose(1, 2)
        return x


@pair("host-sync", "time series", "the delays of a layer are read once, by tolist(), not one by one", THIRTY_FIFTH,
      accept=("launch-overhead",), steps=(2, 1))  # fmt: skip
def household_load_forecasting(variant: str) -> Step:
    """An Autoformer (10 × 512, mixed precision, fused AdamW) forecasts 64 series of 192 hours of households' load.

    As in the authors' repository, each of the ten delays of a layer is a number on the GPU: likeness[:, delay] waits
    for it, and int(delay) once more, 200 times in a forward pass. What is launched between is a few short passes.
    """
    rows, long, width, series = size(64, 2), size(192, 32), size(512, 16), size(328, 8)
    deep, factor = size(10, 2), 2.0
    model = on_device(
        lambda: nn.Sequential(
            nn.Linear(series, width),
            *(Decomposed(width, factor, at_once=variant == AFTER) for _ in range(deep)),
            nn.LayerNorm(width), nn.Linear(width, series),
        )
    ).train()  # fmt: skip
    optimizer = adamw(model)
    seeded(1)
    past, future = torch.randn(2, rows, long, series, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            made = model(past)
        loss = functional.mse_loss(made.float(), future)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class GlobalNorm(nn.GroupNorm):
    """GroupNorm of one group, whose mean and variance are sums that all of the GPU takes part in."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, channels, times]."""
        x = x.float()
        var, mean = torch.var_mean(x, (1, 2), keepdim=True, correction=0)
        scale = (var + self.eps).rsqrt() * self.weight[:, None]
        return torch.addcmul(self.bias[:, None] - mean * scale, x, scale)


class Separating(nn.Module):
    """A block of Conv-TasNet: what it adds to its input, and what goes to the mask."""

    def __init__(self, width: int, wide: int, apart: int, norm: type[nn.GroupNorm]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, wide, 1), nn.PReLU(), norm(1, wide, eps=1e-8),
            nn.Conv1d(wide, wide, 3, padding=apart, dilation=apart, groups=wide), nn.PReLU(), norm(1, wide, eps=1e-8),
        )  # fmt: skip
        self.both = nn.Conv1d(wide, 2 * width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [rows, channels, times]."""
        more, told = self.both(self.body(x)).chunk(2, 1)
        return x + more, told


class Separator(nn.Module):
    """Conv-TasNet: a mask over learnt spectra for each of two voices (arXiv:1809.07454)."""

    def __init__(self, width: int, wide: int, deep: int, turns: int, norm: type[nn.GroupNorm]) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, wide, 16, 8, bias=False)
        self.narrow = nn.Sequential(norm(1, wide, eps=1e-8), nn.Conv1d(wide, width, 1))
        self.blocks = nn.ModuleList(Separating(width, wide, 2**i, norm) for _ in range(turns) for i in range(deep))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(width, 2 * wide, 1), nn.Sigmoid())
        self.leave = nn.ConvTranspose1d(wide, 1, 16, 8, bias=False)

    def forward(self, sounds: Tensor) -> Tensor:
        """Sounds [rows, samples] → voices [rows, 2, samples]."""
        spectra = self.enter(sounds[:, None])
        x, told = self.narrow(spectra), 0.0
        for block in self.blocks:
            x, more = block(x)
            told = told + more
        masked = self.masks(told).unflatten(1, (2, -1)) * spectra[:, None]
        return self.leave(masked.flatten(0, 1)).unflatten(0, (-1, 2))[:, :, 0]


@pair("small-kernels", "speech", "mean and variance by torch.var_mean, instead of nn.GroupNorm with one group",
      THIRTY_FIFTH, accept=("unfused-chain", "memory-bandwidth", "occupancy"), steps=(2, 1))  # fmt: skip
def courtroom_voice_separation(variant: str) -> Step:
    """A Conv-TasNet (24 blocks × 512 channels, mixed precision, fused AdamW) parts two voices in 8 sounds of 4 s.

    Its global norms are nn.GroupNorm(1, 512), as in torchaudio. PyTorch sums up a group in one block of threads: eight
    blocks, one for each sound, go through two million numbers each, while nearly all of the GPU looks on. These
    kernels are passes over memory, far from its bandwidth: hence the other findings.
    """
    rows, long, width, wide = size(8, 2), size(32_000, 256), size(128, 8), size(512, 16)
    norm = GlobalNorm if variant == AFTER else nn.GroupNorm
    model = on_device(lambda: Separator(width, wide, size(8, 2), size(3, 2), norm)).train()
    optimizer = adamw(model)
    seeded(1)
    voices = torch.randn(rows, 2, long, device=DEVICE)
    sounds = voices.sum(1)

    def ratio(made: Tensor, true: Tensor) -> Tensor:
        scaled = true * ((made * true).sum(-1, keepdim=True) / true.square().sum(-1, keepdim=True))
        return 10.0 * (scaled.square().sum(-1) / (made - scaled).square().sum(-1).add(1e-8)).log10().mean(-1)

    def step() -> Tensor:
        with mixed():
            made = model(sounds)
        made = made.float()
        made = made - made.mean(-1, keepdim=True)
        loss = -torch.maximum(ratio(made, voices), ratio(made, voices.flip(1))).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Pairing(nn.Module):
    """What the sequences of an alignment tell about pairs of places: the mean of products of two projections."""

    def __init__(self, width: int, inner: int, wanted: int, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.norm = whole, nn.LayerNorm(width)
        self.left, self.right, self.out = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, wanted)

    def forward(self, x: Tensor) -> Tensor:
        """Alignments [rows, sequences, places, width] → pairs [rows, places, places, width]."""
        x = self.norm(x)
        left, right = self.left(x), self.right(x)
        if self.whole:
            return self.out((left[:, :, :, None] * right[:, :, None]).mean(1))
        return self.out(torch.einsum("bmid,bmjd->bijd", left, right) / x.shape[1])


class Evoformer(nn.Module):
    """A layer for alignments and pairs."""

    def __init__(self, width: int, heads: int, inner: int, narrow: int, *, whole: bool) -> None:
        super().__init__()
        self.rows, self.pairing = Block(width, heads), Pairing(width, inner, narrow, whole=whole)
        self.pairs = nn.Sequential(
            nn.LayerNorm(narrow), nn.Linear(narrow, 4 * narrow), nn.GELU(), nn.Linear(4 * narrow, narrow)
        )

    def forward(self, x: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Alignments [rows, sequences, places, width], pairs [rows, places, places, width]."""
        x = self.rows(x.flatten(0, 1)).view_as(x)
        pairs = pairs + self.pairing(x)
        return x, pairs + self.pairs(pairs)


@pair("unfused-chain", "proteins", "torch.einsum instead of a broadcast product and its mean", THIRTY_FIFTH,
      accept=("memory-bandwidth",), steps=(3, 2))  # fmt: skip
def residue_contact_training(variant: str) -> Step:
    """Layers (8 × 384, pairs of 128, mixed precision) learn contacts from 128 aligned sequences of 256 residues.

    As in a well-known repository, what is told about a pair of residues is a product that is written for each
    sequence, 1 GB, and then averaged over them; the backward pass goes over as much several times. All of that is
    memory traffic: hence "memory-bandwidth", too.
    """
    rows, many, long, kinds = size(1, 1), size(128, 4), size(256, 8), size(24, 5)
    width, heads, inner, narrow, deep = size(384, 16), size(12, 2), size(64, 4), size(128, 8), size(8, 2)
    layers = on_device(
        lambda: nn.ModuleList(Evoformer(width, heads, inner, narrow, whole=variant == BEFORE) for _ in range(deep))
    ).train()  # fmt: skip
    ends = on_device(lambda: nn.ModuleList([nn.Embedding(kinds, width), nn.Linear(narrow, 8)]), seed=1)
    optimizer = adamw(nn.ModuleList([layers, ends]))
    seeded(2)
    aligned, contacts = tokens(kinds, rows, many, long), tokens(8, rows, long, long)
    apart = torch.randn(rows, long, long, narrow, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            x, pairs = ends[0](aligned), apart
            for layer in layers:
                x, pairs = layer(x, pairs)
            scores = ends[1](pairs)
        loss = functional.cross_entropy(scores.flatten(0, 2).float(), contacts.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(layers.parameters(), 0.1, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair("blocking-copy", "recommendation", "readers and articles are sent apart, and joined on the GPU", THIRTY_FIFTH,
      accept=("host-stall",), steps=(4, 2))  # fmt: skip
def magazine_feed_training(variant: str) -> Step:
    """A network (5 × 4,096, mixed precision, fused AdamW) learns which of 128 articles 160 readers open.

    A reader is 1,024 numbers, an article 64. The loop repeats the reader for each article and joins both, before it
    sends them: 89 MB a step, of which 84 are repetitions. Batches were pinned by their loader, what is joined is not,
    and the host has to write it, too: hence "host-stall".
    """
    readers, articles, wide, narrow = size(160, 3), size(128, 4), size(1024, 16), size(64, 8)
    widths = [wide + narrow, *[size(4096, 32)] * 5]
    model = on_device(
        lambda: nn.Sequential(
            *(
                part
                for enter, leave in pairwise(widths)
                for part in (nn.Linear(enter, leave), nn.ReLU(inplace=True))
            ),
            nn.Linear(widths[-1], 8),
        )
    ).train()  # fmt: skip
    optimizer = adamw(model)
    seeded(1)
    batches = [(torch.randn(readers, wide), torch.randn(readers, articles, narrow)) for _ in range(4)]
    if CUDA:
        batches = [(who.pin_memory(), what.pin_memory()) for who, what in batches]
    opened = torch.rand(readers, articles, 8, device=DEVICE)
    done = 0

    def joined(who: Tensor, what: Tensor) -> Tensor:
        return torch.cat((who[:, None].expand(-1, articles, -1), what), -1)

    def step() -> Tensor:
        nonlocal done
        who, what = batches[done % len(batches)]
        done += 1
        if variant == AFTER:
            x = joined(who.to(DEVICE, non_blocking=True), what.to(DEVICE, non_blocking=True))
        else:
            x = joined(who, what).to(DEVICE, non_blocking=True)
        with mixed():
            scores = model(x)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), opened)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Pyramid(nn.Module):
    """A ResNet, its maps added up from the coarsest to the finest, and kinds for each pixel."""

    def __init__(self, width: int, kinds: int, body: str, *, kinds_first: bool) -> None:
        super().__init__()
        self.kinds_first = kinds_first
        self.body = timm.create_model(body, features_only=True, out_indices=(1, 2, 3, 4))
        self.sides = nn.ModuleList(nn.Conv2d(many, width, 1) for many in self.body.feature_info.channels())
        self.smooth = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.kinds = nn.Conv2d(width, kinds, 1)

    def forward(self, photos: Tensor) -> Tensor:
        """Photographs [rows, 3, height, width] → scores [rows, kinds, height, width]."""
        *finer, x = (side(maps) for side, maps in zip(self.sides, self.body(photos), strict=True))
        for maps in reversed(finer):
            x = maps + functional.interpolate(x, size=maps.shape[-2:], mode="nearest")
        x = self.smooth(x)
        if self.kinds_first:
            x = self.kinds(x)
        x = functional.interpolate(x, size=photos.shape[-2:], mode="bilinear", align_corners=False)
        return x if self.kinds_first else self.kinds(x)


@pair("memory-bandwidth", "segmentation", "the 1 × 1 convolution to 32 kinds before the maps are enlarged, not after",
      THIRTY_FIFTH, accept=("recomputation", "unfused-chain"), library="timm", steps=(2, 1))  # fmt: skip
def vineyard_row_segmentation(variant: str) -> Step:
    """A ResNet-50 with a pyramid (channels_last, mixed precision) learns 32 kinds of pixels of 12 photographs of 512².

    256 channels are enlarged from 128² to 512², and then told apart by a convolution of 1 × 1; both are linear, and
    may change places. As it is, 1.6 GB of maps are written, read, and gone over again by two gradients, and the
    product is done for sixteen times as many pixels: hence "recomputation", too.
    """
    rows, side, width, kinds = size(12, 2), size(512, 64), size(256, 16), size(32, 4)
    body = "resnet18" if TINY else "resnet50"
    model = on_device(lambda: Pyramid(width, kinds, body, kinds_first=variant == AFTER)).train()
    model = model.to(memory_format=LAST)
    optimizer = adamw(model)
    seeded(1)
    photos, wanted = images(rows, side).contiguous(memory_format=LAST), tokens(kinds, rows, side, side)

    def step() -> Tensor:
        with mixed():
            scores = model(photos)
        loss = functional.cross_entropy(scores.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@healthy("preferences", THIRTY_FIFTH, compiles=True, steps=(2, 1))
def healthy_travel_advice_preferring(variant: str) -> Step:
    """A GPT (8 × 2,048, mixed precision, compiled blocks) learns by DPO which of two answers to 8 travellers is better.

    Both answers are in one batch. Chances under the first model were worked out beforehand, and only the half of the
    places that is an answer is scored.
    """
    rows, long, width, words = size(8, 2), size(512, 16), size(2048, 32), size(32_000, 64)
    deep, heads = size(8, 2), size(16, 2)
    enter, body = on_device(lambda: nn.Embedding(words, width)), on_device(
        lambda: nn.Sequential(*(Block(width, heads, causal=True) for _ in range(deep)), nn.LayerNorm(width)), seed=1
    ).train()  # fmt: skip
    head = on_device(lambda: nn.Linear(width, words, bias=False), seed=2)
    compiled(body[:-1])
    weights = nn.ModuleList([enter, body, head])
    optimizer = torch.optim.AdamW(weights.parameters(), lr=1e-6, fused=True)
    seeded(3)
    ids = tokens(words, 2 * rows, long)
    answers = ids[:, long // 2 :].contiguous()
    before = -10.0 * torch.rand(2 * rows, device=DEVICE) - 10.0 * answers.shape[1]

    def step() -> Tensor:
        with mixed():
            scores = head(body(enter(ids))[:, long // 2 - 1 : -1])
            missed = functional.cross_entropy(scores.flatten(0, 1), answers.flatten(), reduction="none")
        better, worse = (-missed.view_as(answers).sum(1) - before).chunk(2)
        loss = -functional.logsigmoid(0.1 * (better - worse)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(weights.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@healthy("self-supervised", THIRTY_FIFTH, compiles=True, steps=(2, 1))
def healthy_seabed_photo_pretraining(variant: str) -> Step:
    """A ViT (12 × 768, mixed precision, compiled blocks) learns what its average tells of hidden parts of 96 images.

    The average sees all 196 patches, without gradients; it follows by one group of kernels for all weights, with
    get_ema_multi_avg_fn. Half of the patches are hidden, and only for these there is a loss.
    """
    rows, patches, values, width = size(96, 2), size(196, 8), size(768, 24), size(768, 32)
    deep, heads = size(12, 2), size(12, 2)
    body = on_device(
        lambda: nn.Sequential(*(Block(width, heads) for _ in range(deep)), nn.LayerNorm(width))
    ).train()  # fmt: skip
    enter = on_device(lambda: nn.Linear(values, width), seed=1)
    guess = on_device(lambda: nn.Linear(width, width), seed=2)
    learning = nn.ModuleList([enter, body])
    average = AveragedModel(learning, multi_avg_fn=get_ema_multi_avg_fn(0.999)).requires_grad_(False)
    compiled(body[:-1])
    compiled(average.module[1][:-1])
    hidden = nn.Parameter(0.02 * torch.randn(width, device=DEVICE))
    weights = [*learning.parameters(), *guess.parameters(), hidden]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    seeded(3)
    x = torch.randn(rows, patches, values, device=DEVICE)
    places = 0.02 * torch.randn(patches, width, device=DEVICE)

    def step() -> Tensor:
        away = torch.rand(rows, patches, device=DEVICE).argsort(1)[:, : patches // 2, None]
        covered = torch.zeros(rows, patches, 1, dtype=torch.bool, device=DEVICE).scatter_(1, away, True)
        away = away.expand(-1, -1, width)
        with mixed():
            with torch.no_grad():
                wanted = average.module[1](average.module[0](x) + places).gather(1, away)
            made = guess(body(torch.where(covered, hidden, enter(x)) + places).gather(1, away))
        loss = functional.smooth_l1_loss(made.float(), wanted.float())
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 3.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(learning)
        return loss.detach()

    return step


class Bonded(nn.Module):
    """A layer over molecules of one size: atoms and what they are bound to, through two products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        """Atoms [molecules, atoms, width], bonds [molecules, atoms, atoms]."""
        seen = self.norm(x)
        return x + self.second(functional.gelu(self.first(seen + torch.bmm(bonds, seen))))


@healthy("graphs", THIRTY_FIFTH, compiles=True, steps=(3, 2))
def healthy_solvent_property_training(variant: str) -> Step:
    """A GIN (12 × 512, mixed precision, compiled layers, fused AdamW) learns 16 properties of 512 rings of 64 atoms.

    Bonds are a small dense matrix for each molecule, so that messages are one batched product; nothing is padded.
    """
    rows, atoms, kinds, told = size(512, 3), size(64, 8), size(96, 5), size(16, 4)
    width, deep = size(512, 16), size(12, 2)
    layers = on_device(lambda: nn.ModuleList(Bonded(width) for _ in range(deep))).train()
    enter = on_device(lambda: nn.Linear(kinds, width), seed=1)
    leave = on_device(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, told)), seed=2)
    compiled(layers)
    optimizer = adamw(nn.ModuleList([layers, enter, leave]))
    seeded(3)
    x, wanted = torch.randn(rows, atoms, kinds, device=DEVICE), torch.randn(rows, told, device=DEVICE)
    chosen = torch.rand(rows, atoms, atoms, device=DEVICE) < 3.0 / atoms
    bonds = (chosen | chosen.transpose(1, 2)).to(torch.bfloat16 if CUDA else torch.float32)

    def step() -> Tensor:
        with mixed():
            made = enter(x)
            for layer in layers:
                made = layer(made, bonds)
            made = leave(made.mean(1))
        loss = functional.mse_loss(made.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
