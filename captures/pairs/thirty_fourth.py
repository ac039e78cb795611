"""The thirty-fourth set: subtitles, reviews, rooms, claims, patents, textbooks, forums, recipes, podcasts."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, Block, adamw, as_graph, compiled, mixed, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_FOURTH, Step, healthy, pair

__all__: list[str] = []


class Smoothed(nn.Module):
    """Label smoothing, as the Annotated Transformer writes it: a distribution of its own for each word."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, scores: Tensor, wanted: Tensor) -> Tensor:
        """Scores [places, words], ids [places]."""
        told = scores.float().log_softmax(-1)
        true = torch.full_like(told, self.smoothing / (scores.shape[-1] - 1))
        true = true.scatter(1, wanted[:, None], 1.0 - self.smoothing)
        return -(true * told).sum(-1).mean()


@pair(
    "unfused-chain", "translation", "torch.compile on the loss", THIRTY_FOURTH,
    library="transformers", accept=("memory-bandwidth",), compiles=True, steps=(3, 2),
)  # fmt: skip
def subtitle_translation_training(variant: str) -> Step:
    """A BART (6 + 6 layers × 512, mixed precision, fused AdamW) learns to translate 128 lines of subtitles, 128 tokens.

    The loss makes a tensor of the wanted distribution, as large as the scores of 32,000 words, and multiplies and adds
    up. Each of its operations, forward and backward, passes over 2 GB in memory: hence "memory-bandwidth", too.
    """
    rows, long, width, layers, heads = size(128, 2), size(128, 8), size(512, 32), size(6, 1), size(8, 2)
    config = transformers.BartConfig(
        vocab_size=size(32_000, 64), d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, max_position_embeddings=size(512, 16), dropout=0.0, use_cache=False,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    model, lost = on_device(lambda: transformers.BartForConditionalGeneration(config)).train(), Smoothed(0.1)
    if variant == AFTER:
        compiled([lost])
    optimizer = adamw(model)
    seeded(1)
    source, target = (3 + tokens(config.vocab_size - 3, rows, long + more) for more in (0, 1))
    given, wanted = target[:, :-1].contiguous(), target[:, 1:].flatten()
    mean = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with mixed():
            scores = model(input_ids=source, decoder_input_ids=given).logits
        loss = lost(scores.flatten(0, 1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return mean.lerp_(loss.detach(), 0.1)

    return step


@pair(
    "host-sync", "fine-tuning", "index_add_ over languages on the GPU; the log is read once in a while", THIRTY_FOURTH,
    library="transformers", accept=("launch-overhead", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def review_language_tuning(variant: str) -> Step:
    """An XLM-R (12 × 768, mixed precision, fused AdamW) learns the stars of 192 reviews of 64 tokens in 40 languages.

    For the log, loss and accuracy are told for each language: is there one, those behind its mask, their mean by
    .item(). That makes 200 waits before the backward pass. Between them are a few small kernels each: hence
    "launch-overhead" and "small-kernels", too.
    """
    rows, long, kinds, languages = size(192, 6), size(64, 8), 5, size(40, 3)
    config = transformers.XLMRobertaConfig(
        vocab_size=size(250_002, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=size(514, 16),
        type_vocab_size=1, num_labels=kinds, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.XLMRobertaForSequenceClassification(config)).train()
    optimizer = adamw(model)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 500))
    seeded(1)
    ids, stars = 3 + tokens(config.vocab_size - 3, rows, long), tokens(kinds, rows)
    spoken = tokens(languages, rows)
    ones = torch.ones(rows, device=DEVICE)

    def told(losses: Tensor, right: Tensor) -> object:
        if variant == AFTER:
            sums = losses.new_zeros(3, languages).index_add_(1, spoken, torch.stack((losses, right, ones)))
            return sums[:2] / sums[2].clamp(min=1)
        log = [[0.0] * languages, [0.0] * languages]
        for language in range(languages):
            those = spoken == language
            if those.any():
                log[0][language] = losses[those].mean().item()
                log[1][language] = right[those].mean().item()
        return log

    def step() -> object:
        with mixed():
            scores = model(input_ids=ids).logits
        losses = functional.cross_entropy(scores.float(), stars, reduction="none")
        log = told(losses.detach(), (scores.detach().argmax(-1) == stars).float())
        losses.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        pace.step()
        optimizer.zero_grad(set_to_none=True)
        return log

    return step


class Speakers(nn.Module):
    """Who speaks: spectra of a sound, layers of a transformer, a mean."""

    def __init__(self, width: int, heads: int, deep: int, window: int, kinds: int) -> None:
        super().__init__()
        self.hop = window // 2
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self.enter, self.head = nn.Linear(window // 2, width), nn.Linear(width, kinds)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(deep)), nn.LayerNorm(width))

    def forward(self, sounds: Tensor) -> Tensor:
        """Sounds [rows, samples] → scores of speakers."""
        spectra = torch.stft(sounds, len(self.window), self.hop, window=self.window, return_complex=True)
        x = spectra[:, 1:].abs().square().add(1e-6).log().transpose(1, 2)
        return self.head(self.layers(self.enter(x)).mean(1))


@pair(
    "host-stall", "speech", "sounds go to the GPU, where torch.fft puts them into rooms", THIRTY_FOURTH,
    accept=("blocking-copy",), with_stack=True, steps=(3, 2),
)  # fmt: skip
def room_echo_speaker_training(variant: str) -> Step:
    """A transformer (12 × 768, mixed precision, fused AdamW) learns 5,000 speakers from 32 sounds of 3 s.

    Each sound is put into another room, by a convolution with the echo of that room. NumPy does it in the loop: three
    Fourier transforms of 54,000 samples a sound, by the process that launches the kernels. They are then copied from
    pageable memory, so that the host waits for the last step before it begins the next: hence "blocking-copy", too.
    """
    rows, long, echo, rooms = size(32, 3), size(48_000, 512), size(6000, 64), size(512, 5)
    kinds, reach = size(5000, 7), long + echo
    width, heads, deep, window = size(768, 32), size(12, 2), size(12, 1), size(320, 32)
    model = on_device(lambda: Speakers(width, heads, deep, window, kinds)).train()
    optimizer = adamw(model)
    drawn = np.random.default_rng(0)
    dry = 0.1 * drawn.standard_normal((rows, long), dtype=np.float32)
    fade = np.exp(-6.9 * np.arange(echo, dtype=np.float32) / echo)
    echoes = drawn.standard_normal((rooms, echo), dtype=np.float32) * fade
    echoes /= np.linalg.norm(echoes, axis=1, keepdims=True)
    sent = torch.from_numpy(dry).pin_memory() if CUDA else torch.from_numpy(dry)
    kept = torch.from_numpy(echoes).to(DEVICE)
    seeded(1)
    names = tokens(kinds, rows)

    def in_rooms(where: np.ndarray) -> Tensor:
        if variant == AFTER:
            sounds = torch.fft.rfft(sent.to(DEVICE, non_blocking=True), reach)
            places = torch.from_numpy(where).to(DEVICE, non_blocking=True)
            return torch.fft.irfft(sounds * torch.fft.rfft(kept[places], reach), reach)[:, :long]
        wet = np.fft.irfft(np.fft.rfft(dry, reach) * np.fft.rfft(echoes[where], reach), reach)[:, :long]
        return torch.from_numpy(wet.astype(np.float32)).to(DEVICE)

    def step() -> Tensor:
        sounds = in_rooms(drawn.integers(0, rooms, rows))
        with mixed():
            scores = model(sounds)
        loss = functional.cross_entropy(scores.float(), names)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class OwnAdamW(torch.optim.Optimizer):
    """AdamW as it was in transformers until version 5, copied into the project."""

    def __init__(self, weights: object, lr: float = 2e-5, eps: float = 1e-6, weight_decay: float = 0.01) -> None:
        super().__init__(weights, {"lr": lr, "betas": (0.9, 0.999), "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Weight by weight."""
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
                state["step"] += 1
                mean, square = state["mean"], state["square"]
                mean.mul_(first).add_(weight.grad, alpha=1.0 - first)
                square.mul_(second).addcmul_(weight.grad, weight.grad, value=1.0 - second)
                bias = (1.0 - second ** state["step"]) ** 0.5 / (1.0 - first ** state["step"])
                weight.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-group["lr"] * bias)
                if group["weight_decay"] > 0.0:
                    weight.add_(weight, alpha=-group["lr"] * group["weight_decay"])


@pair(
    "unfused-optimizer", "fine-tuning", "torch.optim.AdamW(fused=True) instead of a copy of transformers' own",
    THIRTY_FOURTH, library="transformers", accept=("launch-overhead", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def insurance_claim_tuning(variant: str) -> Step:
    """A BERT-large (24 × 1,024, mixed precision) learns to sort 24 claims of 192 tokens into 30 kinds.

    The optimizer is the AdamW that transformers had: a loop over 390 weights, with eight kernels each. Most of these
    3,000 launches take the host longer than the GPU: hence "launch-overhead" and "small-kernels", too.
    """
    rows, long, kinds = size(24, 3), size(192, 12), size(30, 4)
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(1024, 32), num_hidden_layers=size(24, 1),
        num_attention_heads=size(16, 2), intermediate_size=size(4096, 64), max_position_embeddings=size(512, 16),
        num_labels=kinds, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertForSequenceClassification(config)).train()
    how = {"lr": 2e-5, "eps": 1e-6, "weight_decay": 0.01}
    if variant == BEFORE:
        optimizer: torch.optim.Optimizer = OwnAdamW(model.parameters(), **how)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **how)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 500))
    seeded(1)
    ids, wanted = 3 + tokens(config.vocab_size - 3, rows, long), tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            loss = model(input_ids=ids, labels=wanted).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        pace.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Reader(nn.Module):
    """A layer of an encoder, norms first, with attention by torch.bmm, or fused."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Places [rows, places, width], which are seen [rows, places]."""
        rows, places, width = x.shape
        asked = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = functional.scaled_dot_product_attention(*asked, attn_mask=seen[:, None, None])
        else:
            q, k, v = asked.flatten(1, 2)
            scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).view(rows, self.heads, places, places)
            scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
            chances = functional.softmax(scores, dim=-1, dtype=torch.float32).type_as(x)
            y = torch.bmm(chances.flatten(0, 1), v).view(rows, self.heads, places, -1)
        x = x + self.out(y.transpose(1, 2).reshape(rows, places, width))
        return x + self.feed(self.norms[1](x))


@pair(
    "unfused-attention", "embeddings", "scaled_dot_product_attention instead of bmm, masked_fill, softmax and bmm",
    THIRTY_FOURTH, accept=("memory-bandwidth",), inference=True, steps=(3, 2),
)  # fmt: skip
def patent_document_embedding(variant: str) -> Step:
    """An encoder (12 × 768, bf16) embeds 24 patents of 1,900 to 2,048 tokens, with attention as fairseq has it.

    Scores of all tokens with all are written by torch.bmm, masked, made chances in fp32, rounded, and read by another
    product. Each passes over 2 to 5 GB: hence "memory-bandwidth", too.
    """
    rows, long, width = size(24, 2), size(2048, 16), size(768, 32)
    layers = on_device(
        lambda: nn.ModuleList(Reader(width, size(12, 2), fused=variant == AFTER) for _ in range(size(12, 2))), HALF
    ).eval()  # fmt: skip
    words, places = (on_device(lambda many=many: nn.Embedding(many, width), HALF) for many in (size(32_000, 64), long))
    norm = on_device(lambda: nn.LayerNorm(width), HALF)
    seeded(1)
    ids, where = tokens(words.num_embeddings, rows, long), torch.arange(long, device=DEVICE)
    lengths = torch.randint(size(1900, 12), long + 1, (rows, 1), device=DEVICE)
    seen = where < lengths

    def step() -> Tensor:
        x = words(ids) + places(where)
        for layer in layers:
            x = layer(x, seen)
        summed = (norm(x) * seen[..., None]).sum(1, dtype=torch.float32)
        return functional.normalize(summed / lengths, dim=-1)

    return step


class Cast(nn.Linear):
    """A product in the type of what comes in, as in modded-nanogpt: weights are kept in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Anything [..., width]."""
        return functional.linear(x, self.weight.to(x.dtype))


class Modded(nn.Module):
    """A layer of a GPT whose norms have no weights."""

    def __init__(self, width: int, heads: int, *, wide: bool) -> None:
        super().__init__()
        self.heads, self.wide = heads, wide
        self.asked, self.out = Cast(width, 3 * width, bias=False), Cast(width, width, bias=False)
        self.up, self.down = Cast(width, 4 * width, bias=False), Cast(4 * width, width, bias=False)

    def norm(self, x: Tensor) -> Tensor:
        """By the root of the mean square."""
        return functional.rms_norm(x.float() if self.wide else x, (x.shape[-1],), eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm(x))))


@pair(
    "precision", "pretraining", "norms take and give bf16 (they add up in fp32 anyway), without .float()",
    THIRTY_FOURTH, steps=(3, 2),
)  # fmt: skip
def school_textbook_pretraining(variant: str) -> Step:
    """A GPT (12 × 1,024, activations in bf16, weights in fp32, fused AdamW) learns from 16 × 1,024 tokens.

    Products take the type of their input. Norms ask for fp32, and nobody casts back: from the first one on, all
    products, attention and sums are in fp32, or TF32, which is allowed.
    """
    torch.set_float32_matmul_precision("high")
    rows, room, words, width = size(16, 2), size(1024, 16), size(50_304, 64), size(1024, 32)
    layers = on_device(
        lambda: nn.Sequential(*(Modded(width, size(16, 2), wide=variant == BEFORE) for _ in range(size(12, 2))))
    ).train()  # fmt: skip
    names, places = (on_device(lambda many=many: nn.Embedding(many, width), seed=1) for many in (words, room))
    head = on_device(lambda: Cast(width, words, bias=False), seed=2)
    model = nn.ModuleList([layers, names, places, head])
    optimizer = adamw(model)
    seeded(3)
    ids = tokens(words, rows, room + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
    where = torch.arange(room, device=DEVICE)

    def step() -> Tensor:
        x = layers((names(given) + places(where)).to(HALF))
        scores = head(layers[0].norm(x))
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "unused-results", "prefill", "logits_to_keep=1: words are scored for the last token alone", THIRTY_FOURTH,
    library="transformers", inference=True, steps=(3, 2),
)  # fmt: skip
def forum_answer_reranking(variant: str) -> Step:
    """A StableLM (6 × 2,048, bf16) is asked whether each of 32 answers of 512 tokens helps: yes or no.

    As on the cards of such rerankers, the scores of the last token are taken from model(...).logits. Those of all the
    others, for 100,352 words, are worked out and written, too: 3 GB that nobody reads.
    """
    config = transformers.StableLmConfig(
        vocab_size=size(100_352, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64), use_cache=False,
        num_hidden_layers=size(6, 1), num_attention_heads=size(32, 4), num_key_value_heads=size(32, 4),
        max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.StableLmForCausalLM(config), HALF).eval()
    seeded(1)
    ids = tokens(config.vocab_size, size(32, 2), size(512, 12))
    asked = torch.tensor([size(9642, 5), size(2201, 9)], device=DEVICE)
    kept = {"logits_to_keep": 1} if variant == AFTER else {}

    def step() -> Tensor:
        scores = model(input_ids=ids, **kept).logits[:, -1]
        return scores[:, asked].float().softmax(-1)[:, 0]

    return step


class Teller(nn.Module):
    """A layer that tells a token and keeps keys and values, with shared heads."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.sizes = width, width // heads * shared, width // heads * shared
        self.each = width // heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, sum(self.sizes)), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def apart(self, x: Tensor) -> list[Tensor]:
        """A token's query, key and value, each [rows, heads, 1, width]."""
        parts = self.asked(self.norms[0](x)).split(self.sizes, -1)
        return [part.unflatten(-1, (-1, self.each)).transpose(1, 2) for part in parts]

    def after(self, x: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The token, having seen what is kept."""
        seen = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "growing-cache", "decoding", "index_copy_ writes a token into the cache, where index_copy copies all of it",
    THIRTY_FOURTH, accept=("memory-bandwidth",), inference=True, steps=(3, 2),
)  # fmt: skip
def recipe_step_decoding(variant: str) -> Step:
    """Layers (8 × 2,048, 16 heads, 8 of them for keys and values, bf16) tell 8 tokens of 64 recipes of 1,960 tokens.

    Memory for 2,048 tokens was reserved, and yet each layer copies its keys and values for each token: an underscore
    is missing. These copies read and write more than attention reads: hence "memory-bandwidth", too.
    """
    rows, room, told, width = size(64, 2), size(2048, 24), size(8, 2), size(2048, 32)
    heads, shared, deep, words = size(16, 4), size(8, 2), size(8, 2), size(32_000, 64)
    layers = on_device(lambda: nn.ModuleList(Teller(width, heads, shared) for _ in range(deep)), HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, seed=1)
    norm, head = on_device(lambda: nn.LayerNorm(width), HALF), on_device(lambda: nn.Linear(width, words), HALF, seed=2)
    seeded(3)
    kept = [
        [torch.randn(rows, shared, room, width // heads, device=DEVICE, dtype=HALF) for _ in range(2)]
        for _ in range(deep)
    ]  # fmt: skip
    begin = room - 10 * told
    places = torch.arange(room, device=DEVICE)
    first = tokens(words, rows, 1)

    def step() -> Tensor:
        ids, answers = first, []
        for place in range(begin, begin + told):
            x, where = names(ids), places[place : place + 1]
            for index, layer in enumerate(layers):
                q, *new = layer.apart(x)
                for which in range(2):
                    if variant == AFTER:
                        kept[index][which].index_copy_(2, where, new[which])
                    else:
                        kept[index][which] = kept[index][which].index_copy(2, where, new[which])
                keys, values = (one[:, :, : place + 1] for one in kept[index])
                x = layer.after(x, q, keys, values)
            ids = head(norm(x)).argmax(-1)
            answers.append(ids)
        return torch.cat(answers, 1)

    return step


@pair(
    "unused-gradients", "recommendation", "nn.Embedding.from_pretrained(…, freeze=True), as it is by default",
    THIRTY_FOURTH, accept=("scattered-access", "memory-bandwidth"), steps=(4, 2),
)  # fmt: skip
def podcast_offer_training(variant: str) -> Step:
    """A transformer (2 × 256, mixed precision, fused AdamW) learns what 4,096 people hear next, from 50 podcasts each.

    Podcasts are told by vectors of their texts: a table of 2,000,000 × 768 that is in no optimizer, but was loaded with
    freeze=False. Each step makes a gradient of 6 GB for it, all zeros but for some rows that are scattered into it, and
    adds it to the last one's, which nobody zeroes or reads: hence "scattered-access" and "memory-bandwidth", too.
    """
    rows, room, items, told, width = size(4096, 4), size(50, 6), size(2_000_000, 64), size(768, 24), size(256, 16)
    seeded()
    vectors = torch.randn(items, told, device=DEVICE)
    table = nn.Embedding.from_pretrained(vectors, freeze=variant == AFTER)
    enter = on_device(lambda: nn.Linear(told, width), seed=1)
    layers = on_device(lambda: nn.Sequential(*(Block(width, 2, causal=True) for _ in range(2))), seed=2).train()
    towers = nn.ModuleList([enter, layers])
    optimizer = adamw(towers)
    seeded(3)
    heard = tokens(items, rows, room + 1)
    right = torch.arange(rows, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            x = enter(table(heard))
            likely = functional.normalize(layers(x[:, :-1])[:, -1].float(), dim=-1)
            offers = functional.normalize(x[:, -1].float(), dim=-1)
            scores = 20.0 * likely @ offers.T
        loss = functional.cross_entropy(scores.float(), right)
        loss.backward()
        nn.utils.clip_grad_norm_(towers.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Next(nn.Module):
    """The loss of a language model, with the square of the logarithm of its sum."""

    def forward(self, told: Tensor, wanted: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        told = told.flatten(0, 1).float()
        return functional.cross_entropy(told, wanted.flatten()) + 1e-4 * told.logsumexp(-1).square().mean()


@healthy("pretraining", THIRTY_FOURTH, library="transformers", compiles=True, steps=(2, 1))
def healthy_repair_manual_pretraining(variant: str) -> Step:
    """A Qwen3 (10 × 2,048) learns from 8 × 2,048 tokens: mixed precision, layers and loss compiled, fused AdamW.

    Texts are packed. Loss and norm of the gradients stay on the GPU, for the log.
    """
    config = transformers.Qwen3Config(
        vocab_size=size(65_536, 64), hidden_size=size(2048, 32), intermediate_size=size(6144, 64), use_cache=False,
        num_hidden_layers=size(10, 1), num_attention_heads=size(16, 4), num_key_value_heads=size(8, 2),
        head_dim=size(128, 8), max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model, lost = on_device(lambda: transformers.Qwen3ForCausalLM(config)).train(), Next()
    compiled([*model.model.layers, lost])
    optimizer = adamw(model)
    seeded(1)
    ids = tokens(config.vocab_size, size(8, 2), size(2048, 12) + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    log = torch.zeros(2, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            loss = lost(model(input_ids=given).logits, wanted)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return log.lerp_(torch.stack((loss.detach(), norm)), 0.1)

    return step


@healthy("decoding", THIRTY_FOURTH, inference=True, steps=(3, 2))
def healthy_letter_reply_decoding(variant: str) -> Step:
    """Layers (8 × 2,048, shared heads, bf16) tell 8 tokens of 128 letters of 2,040: in place, from one CUDA graph.

    Attention reads only the places that were written, and answers stay on the GPU until they are read together.
    """
    rows, room, told, width = size(128, 2), size(2048, 24), size(8, 2), size(2048, 32)
    heads, shared, deep, words = size(16, 4), size(8, 2), size(8, 2), size(32_000, 64)
    layers = on_device(lambda: nn.ModuleList(Teller(width, heads, shared) for _ in range(deep)), HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, seed=1)
    norm, head = on_device(lambda: nn.LayerNorm(width), HALF), on_device(lambda: nn.Linear(width, words), HALF, seed=2)
    seeded(3)
    kept = torch.randn(deep, 2, rows, shared, room, width // heads, device=DEVICE, dtype=HALF)
    first = tokens(words, rows, 1)

    def several() -> Tensor:
        ids, answers = first, []
        for place in range(room - told, room):
            x = names(ids)
            for layer, (keys, values) in zip(layers, kept, strict=True):
                q, key, value = layer.apart(x)
                keys[:, :, place : place + 1] = key
                values[:, :, place : place + 1] = value
                x = layer.after(x, q, keys[:, :, : place + 1], values[:, :, : place + 1])
            ids = head(norm(x)).argmax(-1)
            answers.append(ids)
        return torch.cat(answers, 1)

    graphed = as_graph(several)

    def step() -> list[list[int]]:
        return graphed().tolist()

    return step


@healthy("recommendation", THIRTY_FOURTH, inference=True, steps=(4, 2))
def healthy_news_feed_ranking(variant: str) -> Step:
    """A network (5 × 4,096, bf16) ranks 512 articles for each of 96 readers, from 24 features in one table.

    Offsets were added to the features beforehand, so that there is one lookup. The best 20 are read once.
    """
    readers, articles, features, told, width = size(96, 2), size(512, 6), size(24, 3), size(64, 8), size(4096, 32)
    wide = features * told
    widths = [wide, *[width] * 5]
    model = on_device(
        lambda: nn.Sequential(
            *(
                part
                for out, many in zip(widths[1:], widths, strict=False)
                for part in (nn.Linear(many, out), nn.ReLU(inplace=True))
            ),
            nn.Linear(width, 8),
        ),
        HALF,
    ).eval()
    many = size(100_000, 20)
    table = on_device(lambda: nn.Embedding(many * features, told), HALF, seed=1)
    seeded(2)
    ids = tokens(many, readers * articles, features) + many * torch.arange(features, device=DEVICE)
    worth = torch.rand(8, device=DEVICE).to(HALF)

    def step() -> list[list[int]]:
        chances = model(table(ids).flatten(1)).sigmoid()
        return (chances @ worth).view(readers, articles).float().topk(min(20, articles)).indices.tolist()

    return step
