"""The thirty-eighth set, second part: models that are served, with the lines that are written around them."""

from __future__ import annotations

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from pairs.parts import DEVICE, HALF, Block, as_graph, compiled, images, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_EIGHTH, Step, healthy, pair

__all__: list[str] = []


@pair(
    "unused-results", "reranking", "logits_to_keep=1: the head scores the last place, which alone is read",
    THIRTY_EIGHTH, library="transformers", accept=("memory-bandwidth", "precision"), inference=True, compiles=True,
    steps=(4, 2),
)  # fmt: skip
def statute_paragraph_ranker(variant: str) -> Step:
    """A Qwen3 of 28 × 1,024 in bf16, layers compiled, judges 32 pairs of question and paragraph, 512 tokens each.

    The relevance is the chance of "yes" against "no" as the next token. As the model's card has it, the script takes
    all that the model returns, makes it float, takes the logarithm of the softmax, and then reads two numbers of the
    last place. The head (1,024 × 151,936) has scored 16,384 places instead of 32 by then, and what it wrote, 5 GB in
    bf16, is written twice more in fp32: hence the others, too.
    """
    rows, long = size(32, 2), size(512, 16)
    config = transformers.Qwen3Config(
        vocab_size=size(151_936, 96), hidden_size=size(1024, 32), intermediate_size=size(3072, 64),
        head_dim=size(128, 8), num_hidden_layers=size(28, 2), num_attention_heads=size(16, 4),
        num_key_value_heads=size(8, 2), use_cache=False, max_position_embeddings=size(4096, 64),
        tie_word_embeddings=True,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    seeded(1)
    asked = tokens(config.vocab_size, rows, long)
    no, yes = size(2152, 3), size(9693, 5)
    kept = 1 if variant == AFTER else 0

    def step() -> Tensor:
        scores = model(input_ids=asked, use_cache=False, logits_to_keep=kept).logits.float().log_softmax(-1)
        judged = torch.stack((scores[:, -1, no], scores[:, -1, yes]), -1)
        return judged.softmax(-1)[:, 1]

    return step


class Watching(Block):
    """A layer of a language model which may tell, besides, how much the last place looks at the others."""

    def forward(self, x: Tensor, later: Tensor | None, *, asked: bool) -> tuple[Tensor, Tensor | None]:
        """Places [rows, places, width], what hides later ones → the same, how much each is looked at [rows, places]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scale, looked = q.shape[-1] ** -0.5, None
        if later is not None:
            weights = torch.matmul(q, k.transpose(2, 3)) * scale + later
            weights = weights.softmax(-1, dtype=torch.float32)
            looked = weights[:, :, -1].mean(1)
            seen = torch.matmul(weights.to(v.dtype), v)
        else:
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            if asked:
                last = torch.matmul(q[:, :, -1:], k.transpose(2, 3)) * scale
                looked = last.softmax(-1, dtype=torch.float32).mean(1)[:, 0]
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x)), looked


@pair(
    "unfused-attention", "VLM", "SDPA in all layers; the one row of weights that is asked for is computed beside it",
    THIRTY_EIGHTH, library="timm", accept=("memory-bandwidth", "unfused-chain"), inference=True, steps=(3, 2),
)  # fmt: skip
def museum_label_answers(variant: str) -> Step:
    """Prefill of a VLM: 32 tiles through a ViT-L/14, 8 prompts of 2,304 image and 256 text places, 16 × 2,048, bf16.

    As FastV has it, half of the image's places leave behind the second layer: those at which the last word looks
    least. The fused kernel returns no weights, so somebody asked for the "eager" attention, and asked the whole model
    for it: sixteen layers write, shift and read weights of 2,560² or 1,408² for each head, of which one row of one
    layer is read.
    """
    rows, tiles, text = size(8, 2), size(4, 2), size(256, 6)
    width, heads, depth, kinds = size(2048, 32), size(16, 2), size(16, 3), size(32_000, 64)
    eye = on_device(
        lambda: timm.create_model(
            "vit_large_patch14_clip_336" if size(1, 0) else "vit_tiny_patch16_224", num_classes=0,
            img_size=size(336, 32),
        ), HALF,
    ).eval()  # fmt: skip
    spots = size(576, 4)
    bridge = on_device(lambda: nn.Linear(eye.embed_dim, width), HALF)
    words = on_device(lambda: nn.Embedding(kinds, width), HALF)
    layers = on_device(lambda: nn.ModuleList(Watching(width, heads) for _ in range(depth)), HALF).eval()
    norm = on_device(lambda: nn.LayerNorm(width), HALF)
    places = on_device(lambda: nn.Embedding(tiles * spots + text, width), HALF)
    seeded(1)
    shown = images(rows * tiles, size(336, 32), HALF)
    asked = tokens(kinds, rows, text)

    def hidden(long: int) -> Tensor | None:
        if variant == AFTER:
            return None
        return torch.full((long, long), -torch.inf, device=DEVICE, dtype=HALF).triu(1)

    def step() -> Tensor:
        seen = bridge(eye.forward_features(shown)[:, -spots:]).reshape(rows, tiles * spots, width)
        x = torch.cat((seen, words(asked)), 1) + places.weight
        later = hidden(x.shape[1])
        for place, layer in enumerate(layers):
            x, looked = layer(x, later, asked=place == 1)
            if place == 1:
                best = looked[:, : tiles * spots].topk(tiles * spots // 2).indices.sort().values
                kept = x.gather(1, best[..., None].expand(-1, -1, width))
                x = torch.cat((kept, x[:, tiles * spots :]), 1)
                later = hidden(x.shape[1])
        return functional.linear(norm(x[:, -1]), words.weight)

    return step


@pair(
    "recomputation", "speech synthesis", "the norm of the weights is folded into them, once, before anybody is served",
    THIRTY_EIGHTH, library="transformers", accept=("launch-overhead", "unfused-chain"), inference=True, steps=(2, 1),
)  # fmt: skip
def bedtime_story_voice(variant: str) -> Step:
    """A HiFi-GAN (512 channels, ×256, bf16) turns what is read aloud into sound, 8 pieces of 40 frames in turn.

    It was trained with weight norm, and the checkpoint has both parts of each weight. The server loads it and never
    calls remove_weight_norm(): each of its 78 convolutions builds its weight from direction and length again for each
    piece, through a hook written in Python. The pieces are short, so the host is what takes long: hence
    "launch-overhead", too.
    """
    config = transformers.SpeechT5HifiGanConfig(
        model_in_dim=80, sampling_rate=22_050, upsample_initial_channel=size(512, 32), upsample_rates=[8, 8, 2, 2],
        upsample_kernel_sizes=[16, 16, 4, 4], normalize_before=True,
    )  # fmt: skip
    frames, pieces = size(40, 6), size(8, 2)
    model = on_device(lambda: transformers.SpeechT5HifiGan(config)).eval()
    for part in list(model.modules()):
        if isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
            nn.utils.parametrizations.weight_norm(part)
    model = model.to(HALF).requires_grad_(False)
    if variant == AFTER:
        for part in list(model.modules()):
            if parametrize.is_parametrized(part, "weight"):
                parametrize.remove_parametrizations(part, "weight")
    seeded(1)
    heard = torch.randn(1, pieces * frames, 80, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        return torch.cat([model(piece) for piece in heard.split(frames, 1)], -1)

    return step


class Gated(nn.Module):
    """What follows the attention in a layer: a gate, and two products."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, width]."""
        gate, value = self.up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * value)


class Remembering(nn.Module):
    """A layer that decodes one token of each row, and keeps keys and values in a buffer of a fixed length."""

    def __init__(self, width: int, heads: int, rows: int, longest: int, feed: nn.Module) -> None:
        super().__init__()
        self.heads, self.feed = heads, feed
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(rows, heads, longest, width // heads))

    def forward(self, x: Tensor, place: int, seen: int, mask: Tensor | None) -> Tensor:
        """Tokens [rows, width] at a place; attends to the first places that are given, or to those of the mask."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        self.keys[:, :, place], self.values[:, :, place] = k, v
        keys, values = self.keys[:, :, :seen], self.values[:, :, :seen]
        told = functional.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=mask)
        x = x + self.out(told.flatten(1))
        return x + self.feed(self.norms[1](x))


class Decoder(nn.Module):
    """A language model that decodes greedily."""

    def __init__(self, kinds: int, width: int, layers: list[nn.Module], longest: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(kinds, width), nn.Embedding(longest, width)
        self.layers, self.norm = nn.ModuleList(layers), nn.RMSNorm(width)

    def forward(self, token: Tensor, place: int, seen: int, mask: Tensor | None = None) -> Tensor:
        """A token of each row → the next."""
        x = self.words(token) + self.places.weight[place]
        for layer in self.layers:
            x = layer(x, place, seen, mask)
        return functional.linear(self.norm(x), self.words.weight).argmax(-1)


@pair(
    "padded-work", "decoding", "attends to the places that are filled, up to 128 more, not to the whole buffer",
    THIRTY_EIGHTH, accept=("memory-bandwidth", "unused-results"), inference=True, steps=(3, 2),
)  # fmt: skip
def lecture_question_replies(variant: str) -> Step:
    """A language model (16 × 2,048, bf16) answers 32 students at once, 6 tokens a step, behind prompts of 1,400.

    The cache has room for 4,096 places, so that it need not grow, and a mask says which of them are filled (the
    prompts are padded on the left). The mask hides the empty places, yet the kernel reads all of them: of 17 GB of
    keys and values for each token two thirds are nothing. A slice of the buffer and of the mask does the same.
    """
    rows, longest, begun, count = size(32, 2), size(4096, 64), size(1400, 20), size(6, 2)
    width, heads, kinds = size(2048, 32), size(16, 2), size(32_000, 64)

    def build() -> nn.Module:
        layers = [
            Remembering(width, heads, rows, longest, Gated(width, size(5632, 48))) for _ in range(size(16, 2))
        ]  # fmt: skip
        return Decoder(kinds, width, layers, longest)

    model = on_device(build, HALF).eval()
    seeded(1)
    first = tokens(kinds, rows)
    starts = torch.randint(0, begun // 2, (rows, 1, 1, 1), device=DEVICE)
    spots, piece = torch.arange(longest, device=DEVICE), size(128, 8)

    def step() -> Tensor:
        token, said = first, []
        for place in range(begun, begun + count):
            seen = -(-(place + 1) // piece) * piece if variant == AFTER else longest
            mask = (spots >= starts) & (spots <= place)
            token = model(token, place, seen, mask[..., :seen])
            said.append(token)
        return torch.stack(said, 1)

    return step


class Experts(nn.Module):
    """Each token goes to two of several experts, whose weights are kept in three tensors."""

    def __init__(self, width: int, inner: int, count: int, *, gathered: bool) -> None:
        super().__init__()
        self.gathered = gathered
        self.router = nn.Linear(width, count, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(count, inner, width) / width**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(count, width, inner) / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [rows, width]."""
        shares, chosen = self.router(x).softmax(-1, dtype=torch.float32).topk(2)
        shares = (shares / shares.sum(-1, keepdim=True)).to(x.dtype)
        if self.gathered:
            gate, up, down = self.gate[chosen], self.up[chosen], self.down[chosen]
            inner = functional.silu(torch.einsum("td,taid->tai", x, gate)) * torch.einsum("td,taid->tai", x, up)
            return torch.einsum("tai,tadi,ta->td", inner, down, shares)
        weight = x.new_zeros(x.shape[0], self.gate.shape[0]).scatter(1, chosen, shares)
        inner = functional.silu(x @ self.gate.transpose(1, 2)) * (x @ self.up.transpose(1, 2))
        return (inner @ self.down.transpose(1, 2) * weight.T[..., None]).sum(0)


@pair(
    "scattered-access", "mixture of experts", "all experts see the 8 tokens, and what was not chosen weighs nothing",
    THIRTY_EIGHTH, accept=("memory-bandwidth", "recomputation"), inference=True, steps=(4, 2),
)  # fmt: skip
def holiday_booking_chat(variant: str) -> Step:
    """A language model of 12 × 2,048 with 16 experts of 2,048 in each layer (2 for each token, bf16) answers 8 guests.

    Four tokens a step, in a CUDA graph. The layer is the one that is known from gpt-fast, weights[chosen], written for
    a single guest: it copies the weights of the experts of each token. For eight guests these are sixteen copies of 25
    MB in each layer, some of them of the same expert, which are written and read again. All sixteen experts read where
    they lie are a third of that.
    """
    rows, longest, begun, count = size(8, 2), size(1024, 32), size(500, 12), size(4, 2)
    width, heads, kinds = size(2048, 32), size(16, 2), size(32_000, 64)

    def build() -> nn.Module:
        layers = [
            Remembering(
                width, heads, rows, longest,
                Experts(width, size(2048, 24), size(16, 4), gathered=variant == BEFORE),
            ) for _ in range(size(12, 2))
        ]  # fmt: skip
        return Decoder(kinds, width, layers, longest)

    model = on_device(build, HALF).eval().requires_grad_(False)
    seeded(1)
    first = tokens(kinds, rows)

    def step() -> Tensor:
        token, said = first, []
        for place in range(begun, begun + count):
            token = model(token, place, place + 1)
            said.append(token)
        return torch.stack(said, 1)

    return as_graph(step)


class Turning(Block):
    """A layer in which queries and keys are turned by their hour."""

    def __init__(self, width: int, heads: int, *, back: bool) -> None:
        super().__init__(width, heads)
        self.back = back

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Places [rows, places, width], angles [places, half a head]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if self.back:
            q, k = q.to(v.dtype), k.to(v.dtype)
        seen = functional.scaled_dot_product_attention(q, k, v.to(q.dtype))
        x = x + self.out(seen.transpose(1, 2).flatten(2).to(x.dtype))
        return x + self.feed(self.norms[1](x))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of a head's halves."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@pair(
    "precision", "forecasting", "q and k return to bf16 when they are turned, instead of v becoming fp32 with them",
    THIRTY_EIGHTH, inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def substation_load_outlook(variant: str) -> Step:
    """A transformer of 12 × 768 in bf16, layers compiled, forecasts 96 districts: 8 series, 64 pieces of 16 hours each.

    All 512 pieces of a district see each other, and their hour turns queries and keys. Cosines and sines are fp32, as
    they are made in the forward pass, so what they are multiplied with becomes fp32. The attention complained that
    values are bf16, and somebody cast them to the type of the queries: the whole attention runs in fp32.
    """
    rows, series, pieces, piece = size(96, 2), size(8, 2), size(64, 4), size(16, 4)
    width, heads, ahead = size(768, 32), size(12, 2), size(96, 4)
    back = variant == AFTER
    layers = on_device(
        lambda: nn.ModuleList(Turning(width, heads, back=back) for _ in range(size(12, 2))), HALF
    ).eval()  # fmt: skip
    compiled(layers)
    enter, norm = on_device(lambda: nn.Linear(piece, width), HALF), on_device(lambda: nn.LayerNorm(width), HALF)
    whose = on_device(lambda: nn.Embedding(series, width), HALF)
    leave = on_device(lambda: nn.Linear(width, 3 * ahead), HALF)
    seeded(1)
    loads = torch.randn(rows, series, pieces * piece, device=DEVICE).cumsum(-1)
    half = width // heads // 2

    def step() -> Tensor:
        spread, mean = torch.std_mean(loads, -1, keepdim=True)
        given = ((loads - mean) / spread).to(HALF).unflatten(-1, (pieces, piece))
        x = (enter(given) + whose.weight[:, None]).flatten(1, 2)
        speeds = 10_000.0 ** (-torch.arange(half, device=DEVICE) / half)
        angles = torch.outer(torch.arange(pieces, device=DEVICE).repeat(series).float(), speeds)
        cos, sin = angles.cos(), angles.sin()
        for layer in layers:
            x = layer(x, cos, sin)
        told = leave(norm(x.unflatten(1, (series, pieces))[:, :, -1])).float().unflatten(-1, (3, ahead))
        return told * spread[..., None] + mean[..., None]

    return step


class Pyramid(nn.Module):
    """A ViT whose one map becomes three, and a head that tells a box and scores for each place of them."""

    def __init__(self, side: int, kinds: int, width: int) -> None:
        super().__init__()
        self.eye = timm.create_model(
            "vit_base_patch16_224" if size(1, 0) else "vit_tiny_patch16_224", num_classes=0, img_size=side
        )
        deep = self.eye.embed_dim
        self.fine, self.same = nn.ConvTranspose2d(deep, width, 2, 2), nn.Conv2d(deep, width, 1)
        self.coarse = nn.Conv2d(deep, width, 2, 2)
        self.head = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, 4 + kinds, 1))

    def forward(self, shown: Tensor) -> Tensor:
        """Images → [images, places, 4 + kinds]."""
        places = self.eye.forward_features(shown)[:, self.eye.num_prefix_tokens :]
        side = int(places.shape[1] ** 0.5)
        seen = places.transpose(1, 2).unflatten(2, (side, side))
        return torch.cat([self.head(part(seen)).flatten(2).mT for part in (self.fine, self.same, self.coarse)], 1)


@pair(
    "blocking-copy", "detection", "the best 300 of each image are chosen on the GPU, and they alone are copied",
    THIRTY_EIGHTH, library="timm", accept=("host-stall", "host-sync"), inference=True, compiles=True, steps=(4, 2),
)  # fmt: skip
def orchard_fruit_finder(variant: str) -> Step:
    """A detector without NMS (ViT-B/16 at 512 × 512, blocks compiled, three maps, bf16) looks at 32 images.

    Its 5,376 places tell a box and scores of 36 kinds each. The code that chooses the best 300 came from a notebook,
    where the outputs had been brought to the host: 28 MB for each batch, into memory that is not pinned, and then the
    processor does what the GPU would do in some tenths of a millisecond, while the GPU waits: hence "host-stall", too.
    """
    rows, side, kinds, best = size(32, 2), size(512, 64), size(36, 5), size(300, 6)
    model = on_device(lambda: Pyramid(side, kinds, size(256, 16)), HALF).eval().to(memory_format=torch.channels_last)
    compiled(model.eye.blocks)
    seeded(1)
    shown = torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8, device=DEVICE)

    def chosen(raw: Tensor) -> Tensor:
        boxes, scores = raw[..., :4], raw[..., 4:].sigmoid()
        score, kind = scores.max(-1)
        score, place = score.topk(best)
        boxes = boxes.gather(1, place[..., None].expand(-1, -1, 4))
        return torch.cat((boxes, score[..., None], kind.gather(1, place)[..., None].to(boxes.dtype)), -1)

    def step() -> Tensor:
        raw = model(shown.to(HALF).div_(127.5).sub_(1.0)).float()
        return chosen(raw).cpu() if variant == AFTER else chosen(raw.cpu())

    return step


def merged(x: Tensor, alike: Tensor, sizes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Merges the places that are most alike, as ToMe does: places [rows, places, width], their sizes [rows, places]."""
    alike = functional.normalize(alike, dim=-1)
    scores = alike[:, ::2] @ alike[:, 1::2].mT
    scores[:, 0] = -torch.inf
    nearness, nearest = scores.max(-1)
    order = nearness.argsort(-1, descending=True)
    gone, stays = order[:, :count], order[:, count:].sort(-1).values
    target = nearest.gather(1, gone)
    x = x * sizes[..., None]
    parts = []
    for what in (x, sizes[..., None]):
        even, wide = what[:, ::2], (-1, -1, what.shape[-1])
        kept, leaving = (even.gather(1, some[..., None].expand(wide)) for some in (stays, gone))
        parts.append(torch.cat((kept, what[:, 1::2].scatter_add(1, target[..., None].expand(wide), leaving)), 1))
    return parts[0] / parts[1], parts[1][..., 0]


@healthy("token reduction", THIRTY_EIGHTH, library="timm", inference=True, steps=(3, 2))
def wildlife_camera_sorter(variant: str) -> Step:
    """A ViT-H/14 in bf16 sorts 192 images, and merges the 8 places that are most alike in each of its layers (ToMe).

    It looks like work for its own sake: each layer compares places, sorts them, gathers, adds by index, and the
    attention has a mask (the logarithm of what each place stands for). The comparison is of 129 × 128 places, and what
    is gathered is read a few times, while the products shrink from layer to layer: half of the network is saved.
    """
    rows, side, count = size(192, 2), size(224, 64), size(8, 1)
    model = on_device(
        lambda: timm.create_model(
            "vit_huge_patch14_224" if size(1, 0) else "vit_tiny_patch16_224", num_classes=size(1000, 5), img_size=side,
        ), HALF,
    ).eval()  # fmt: skip
    seeded(1)
    shown = images(rows, side, HALF)

    def step() -> Tensor:
        x = model.norm_pre(model._pos_embed(model.patch_embed(shown)))
        sizes = x.new_ones(x.shape[:2])
        for layer in model.blocks:
            attention = layer.attn
            q, k, v = attention.qkv(layer.norm1(x)).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
            mask = sizes.log()[:, None, None].expand(-1, 1, x.shape[1], -1)
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + attention.proj(seen.transpose(1, 2).flatten(2))
            x, sizes = merged(x, k.mean(1), sizes, min(count, (x.shape[1] - 1) // 2))
            x = x + layer.mlp(layer.norm2(x))
        return model.forward_head(model.norm(x)).softmax(-1)

    return step


class Prompted(nn.Module):
    """A layer of a diffusion transformer: places see each other and a prompt, and the time shifts and scales them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.block = heads, Block(width, heads)
        self.told, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width)
        self.asks, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, time: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Places [rows, places, width], a time [1, width], keys and values of the prompt."""
        shift, scale, gate = self.told(time)[:, None].chunk(3, -1)
        x = x + gate * self.block(x * (1 + scale) + shift)
        asked = self.asks(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return x + self.out(functional.scaled_dot_product_attention(asked, keys, values).transpose(1, 2).flatten(2))


@healthy("diffusion sampling", THIRTY_EIGHTH, inference=True, compiles=True, steps=(2, 1))
def postcard_motif_sampler(variant: str) -> Step:
    """A diffusion transformer (20 × 1,024, bf16, layers compiled) draws 16 motifs of 64 × 64 latents in 4 steps.

    Both halves of the guidance are one batch, keys and values of the prompts are computed once for all steps, and the
    times are prepared. Products of 32,768 places fill the GPU.
    """
    rows, side, channels, long = size(16, 2), size(64, 8), 4, size(128, 8)
    width, heads, depth, count = size(1024, 32), size(16, 2), size(20, 2), size(4, 2)
    layers = on_device(lambda: nn.ModuleList(Prompted(width, heads) for _ in range(depth)), HALF).eval()
    compiled(layers)
    prompt = on_device(lambda: nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth)), HALF)
    enter, leave = (
        on_device(lambda: nn.Linear(4 * channels, width), HALF), on_device(lambda: nn.Linear(width, 4 * channels), HALF)
    )  # fmt: skip
    norm = on_device(lambda: nn.LayerNorm(width), HALF)
    seeded(1)
    given = torch.randn(2 * rows, long, width, device=DEVICE, dtype=HALF)
    spots = 0.02 * torch.randn((side // 2) ** 2, width, device=DEVICE, dtype=HALF)
    times = torch.randn(count, 1, width, device=DEVICE, dtype=HALF)
    noise = images(rows, side, channels=channels)
    levels = [1.0 - place / count for place in range(count + 1)]

    def step() -> Tensor:
        kept = [part(given).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4).unbind() for part in prompt]
        latents = noise
        for place in range(count):
            both = functional.pixel_unshuffle(latents, 2).flatten(2).mT.to(HALF).repeat(2, 1, 1)
            x = enter(both) + spots
            for layer, (keys, values) in zip(layers, kept, strict=True):
                x = layer(x, times[place], keys, values)
            told = leave(norm(x)).float().mT.unflatten(2, (side // 2, side // 2))
            free, guided = functional.pixel_shuffle(told, 2).chunk(2)
            latents = latents + (levels[place + 1] - levels[place]) * torch.lerp(free, guided, 4.0)
        return latents

    return step
