"""The nineteenth set: common habits and reported ones; written with the eighteenth, split at random."""

from __future__ import annotations

import itertools

import torch
import transformers
from torch import Tensor, distributions, nn
from torch.nn import functional

from pairs.decoding import rewind, static_cache
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, NINETEENTH, Step, healthy, pair


class Masked(nn.Module):
    """A block of a small GPT: what a position must not see is minus infinity in a mask, or said by is_causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Positions [texts, positions, width]."""
        parts = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.joined(self.norms[0](x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "unfused-attention", "training", "is_causal=True instead of a mask with minus infinity", NINETEENTH,
    steps=(3, 3),
)  # fmt: skip
def mask_of_minus_infinity(variant: str) -> Step:
    """A GPT (8 × 1,024) learns from 2 texts of 4,096 tokens; nn.Transformer's square mask goes into fused attention."""
    width, words, texts, length = size(1024, 32), size(16_384, 64), size(2, 1), size(4096, 8)
    blocks = on_device(lambda: nn.ModuleList(Masked(width, size(16, 2)) for _ in range(size(8, 1))))
    table = on_device(lambda: nn.Embedding(words, width), seed=1)
    model = nn.ModuleList([blocks, table])
    ids = tokens(words, texts, length)
    mask = None
    if variant == BEFORE:
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=DEVICE, dtype=HALF)

    def loss() -> Tensor:
        x = table(ids)
        for block in blocks:
            x = block(x, mask)
        return functional.cross_entropy(functional.linear(x, table.weight)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return training(loss, adamw(model))


@pair(
    "misaligned-shape", "speech", "51,872 words, seven of them unused, instead of 51,865", NINETEENTH,
    library="transformers", steps=(3, 3),
)  # fmt: skip
def whisper_words_of_51865(variant: str) -> Step:
    """Whisper's decoder (2 × 768, as distilled) learns 64 texts of 256 words from what its encoder said beforehand."""
    words = size(51_865, 61)
    words += 0 if variant == BEFORE else -words % 8
    config = transformers.WhisperConfig(
        vocab_size=words, d_model=size(768, 32), encoder_layers=1, decoder_layers=size(2, 1),
        encoder_attention_heads=size(12, 2), decoder_attention_heads=size(12, 2), encoder_ffn_dim=size(3072, 64),
        decoder_ffn_dim=size(3072, 64), use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3, dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.WhisperForConditionalGeneration(config)).train()
    model.model.encoder.requires_grad_(False)
    texts = size(64, 2)
    said = torch.randn(texts, size(1500, 8), config.d_model, device=DEVICE, dtype=HALF)
    ids = tokens(size(51_865, 61), texts, size(256, 8))

    def loss() -> Tensor:
        return model(encoder_outputs=(said,), decoder_input_ids=ids, labels=ids).loss

    return training(loss, adamw(model))


@pair(
    "recomputation", "summaries", "without gradient_checkpointing_enable(), for which there is memory", NINETEENTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def summaries_checkpointed(variant: str) -> Step:
    """A T5 (6 + 6 × 1,024) learns 24 summaries of 128 words from texts of 512, in mixed precision, checkpointed."""
    config = transformers.T5Config(
        vocab_size=size(32_128, 64), d_model=size(1024, 32), d_kv=size(64, 16), d_ff=size(2816, 64),
        num_layers=size(6, 1), num_decoder_layers=size(6, 1), num_heads=size(16, 2), dropout_rate=0.0,
        feed_forward_proj="gated-gelu", use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.T5ForConditionalGeneration(config)).train()
    if variant == BEFORE:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = tokens(config.vocab_size - 4, size(24, 1), size(512, 8)) + 4
    labels = tokens(config.vocab_size - 4, size(24, 1), size(128, 8)) + 4
    how = {"input_ids": ids, "labels": labels, "decoder_input_ids": labels.roll(1, 1)}
    return training(lambda: model(**how).loss, adamw(model))


@pair(
    "launch-overhead", "fine-tuning", "per_device_train_batch_size=8 instead of 1 with 8 accumulated steps", NINETEENTH,
    library="transformers", accept=("small-kernels", "weight-bound"), steps=(2, 2),
)  # fmt: skip
def dialogues_one_by_one(variant: str) -> Step:
    """A Qwen2 (6 × 1,536) is fine-tuned on 8 dialogues of 256 tokens a step in mixed precision, one after the other."""
    config = transformers.Qwen2Config(
        vocab_size=size(32_768, 64), hidden_size=size(1536, 32), intermediate_size=size(8960, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(12, 2), num_key_value_heads=size(2, 1), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config)).train()
    optimizer = adamw(model)
    dialogues = tokens(config.vocab_size, size(8, 2), size(256, 8))
    parts = dialogues.split(1 if variant == BEFORE else len(dialogues))

    def step() -> None:
        for ids in parts:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
                loss = model(input_ids=ids, labels=ids).loss / len(parts)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Basis(nn.Module):
    """A block of N-BEATS: what it explains of the past, and what it expects."""

    def __init__(self, past: int, future: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into in (past, width, width, width):
            layers += [nn.Linear(into, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.back, self.ahead = nn.Linear(width, past), nn.Linear(width, future)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the past [series, past]."""
        x = self.layers(x)
        return self.back(x), self.ahead(x)


@pair(
    "launch-overhead", "time series", "the step is replayed from a CUDA graph", NINETEENTH,
    accept=("small-kernels",), steps=(3, 3),
)  # fmt: skip
def forecasts_kernel_by_kernel(variant: str) -> Step:
    """N-BEATS (20 blocks of 4 × 512) learns from 1,024 series of 120 values, mixed precision, kernel by kernel."""
    past, future, width = size(120, 8), size(24, 4), size(512, 8)
    blocks = on_device(lambda: nn.ModuleList(Basis(past, future, width) for _ in range(size(20, 2))))
    optimizer = torch.optim.Adam(blocks.parameters(), lr=1e-3, fused=True, capturable=CUDA)
    series = torch.randn(size(1024, 4), past + future, device=DEVICE)

    def loss() -> Tensor:
        rest, told = series[:, :past], torch.zeros((), device=DEVICE)
        for block in blocks:
            back, ahead = block(rest)
            rest, told = rest - back, told + ahead
        return (told - series[:, past:]).abs().mean()

    learn = training(loss, optimizer)
    return learn if variant == BEFORE else as_graph(learn)


def forbidden(ids: Tensor) -> list[list[int]]:
    """Words that would make a triple that each text has had, found in Python."""
    found = []
    for text in ids:
        words = text.tolist()
        after: dict[tuple[int, int], list[int]] = {}
        for one, two, three in zip(words, words[1:], words[2:], strict=False):
            after.setdefault((one, two), []).append(three)
        found.append(after.get((words[-2], words[-1]), []))
    return found


@pair(
    "host-stall", "decoding", "repeated triples are found on the GPU by unfold and a comparison", NINETEENTH,
    library="transformers", accept=("host-sync", "launch-overhead", "blocking-copy"), inference=True, steps=(3, 3),
)  # fmt: skip
def triples_forbidden_in_python(variant: str) -> Step:
    """A Qwen2 (8 × 2,048, a CUDA graph) adds two tokens to 24 texts of 768; no triple of words may occur twice."""
    config = transformers.Qwen2Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).eval()
    texts, prompt = size(24, 2), size(768, 8)
    cache = static_cache(config, texts, prompt + 8, config.num_key_value_heads, config.hidden_size // size(16, 2))
    rewind(cache, prompt)
    last, start = tokens(config.vocab_size, texts, 1), tokens(config.vocab_size, texts, prompt)

    def score() -> Tensor:
        return model(input_ids=last, past_key_values=cache).logits[:, -1].float()

    scored = as_graph(score)

    def allowed(ids: Tensor, scores: Tensor) -> Tensor:
        if variant == BEFORE:
            for text, words in enumerate(forbidden(ids)):
                if words:
                    scores[text, words] = -torch.inf
            return scores
        triples = ids.unfold(1, 3, 1)
        had = (triples[..., :2] == ids[:, None, -2:]).all(-1)
        return scores.masked_fill(
            torch.zeros_like(scores).scatter_add_(1, triples[..., 2], had.float()) > 0, -torch.inf
        )

    def step() -> Tensor:
        rewind(cache, prompt)
        ids = start
        for _ in range(2):
            last.copy_(ids[:, -1:])
            ids = torch.cat([ids, allowed(ids, scored()).argmax(-1, keepdim=True)], 1)
        return ids

    return step


class Dreamer(nn.Module):
    """A world model that is asked what would come next, and a policy that acts in it."""

    def __init__(self, width: int, classes: int, actions: int) -> None:
        super().__init__()
        self.classes, self.actions = classes, actions
        self.cell = nn.GRUCell(classes * classes + actions, width)
        self.prior = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, classes * classes))
        self.policy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * actions))

    def forward(self, state: Tensor, checked: bool) -> tuple[Tensor, Tensor]:
        """The next state and how likely the action was."""
        mean, spread = self.policy(state).float().chunk(2, -1)
        choice = distributions.Normal(mean, functional.softplus(spread) + 0.1, validate_args=checked)
        action = choice.sample()
        scores = self.prior(state).float().unflatten(-1, (self.classes, self.classes))
        symbols = distributions.OneHotCategorical(logits=scores, validate_args=checked).sample().flatten(1)
        inputs = torch.cat([symbols, action], -1).to(state.dtype)
        return self.cell(inputs, state), choice.log_prob(action).sum(-1)


@pair(
    "host-sync", "reinforcement", "validate_args=False: distributions do not check what they are given", NINETEENTH,
    accept=("launch-overhead", "small-kernels"), inference=True, steps=(2, 2),
)  # fmt: skip
def dreams_with_checks(variant: str) -> Step:
    """Dreamer imagines 24 turns of 2,048 states (a GRU of 1,024, bf16), drawing from torch.distributions in each."""
    width = size(1024, 16)
    dreamer = on_device(lambda: Dreamer(width, size(32, 4), size(16, 2)), HALF).eval()
    start = torch.randn(size(2048, 4), width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        state, chances = start, []
        for _ in range(size(24, 2)):
            state, chance = dreamer(state, variant == BEFORE)
            chances.append(chance)
        return torch.stack(chances)

    return step


@pair(
    "host-sync", "sound codec", "dead codes are replaced by torch.where, whether or not there are any", NINETEENTH,
    accept=("launch-overhead", "small-kernels"), inference=True, steps=(3, 3),
)  # fmt: skip
def codes_asked_whether_dead(variant: str) -> Step:
    """The codec's 32 codebooks of 1,024 × 128 quantise 4,800 frames in turn (TF32) and follow running averages."""
    count, width, frames = size(1024, 8), size(128, 8), size(4800, 16)
    books = torch.randn(size(32, 3), count, width, device=DEVICE)
    usage = torch.full((len(books), count), 1e6, device=DEVICE)
    sounds = torch.randn(frames, width, device=DEVICE)
    ones = torch.ones(frames, device=DEVICE)

    def revived(book: Tensor, dead: Tensor, rest: Tensor) -> None:
        drawn = rest[torch.randint(frames, (count,), device=DEVICE)]
        book.copy_(torch.where(dead[:, None], drawn, book))

    def step() -> Tensor:
        rest, codes = sounds, []
        torch.set_float32_matmul_precision("high")
        for book, used in zip(books, usage, strict=True):
            near = torch.addmm(book.square().sum(-1), rest, book.T, alpha=-2).argmin(-1)
            used.lerp_(torch.zeros_like(used).index_add_(0, near, ones), 0.01)
            dead = used < 2
            if variant == AFTER or bool(dead.any()):
                revived(book, dead, rest)
            rest = rest - book[near]
            codes.append(near)
        torch.set_float32_matmul_precision("highest")
        return torch.stack(codes)

    return step


class Sage(nn.Module):
    """GraphSAGE over so many neighbours of each node, two steps away."""

    def __init__(self, into: int, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * into, width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor, near: int, far: int) -> Tensor:
        """Features [roots · (1 + near · (1 + far)), into]: roots, their neighbours, and theirs."""
        roots = x.shape[0] // (1 + near * (1 + far))
        own, next_to, beyond = x.split([roots, roots * near, roots * near * far])
        inner = torch.cat([own, next_to])
        means = torch.cat([next_to.view(roots, near, -1).mean(1), beyond.view(roots * near, far, -1).mean(1)])
        inner = self.first(torch.cat([inner, means], -1)).relu()
        own, next_to = inner.split([roots, roots * near])
        return self.second(torch.cat([own, next_to.view(roots, near, -1).mean(1)], -1))


@pair(
    "host-stall", "graph", "the table of features is kept on the GPU, where it fits", NINETEENTH,
    accept=("blocking-copy", "host-sync"), steps=(3, 3),
)  # fmt: skip
def neighbours_looked_up_on_host(variant: str) -> Step:
    """GraphSAGE (256, mixed precision) learns from 1,024 of a million papers and neighbours: x[ids].to(device)."""
    into, near, far, papers = size(128, 4), size(15, 2), size(10, 2), size(1_000_000, 50)
    table = torch.randn(papers // 50, into).repeat(50, 1)
    if variant == AFTER:
        table = table.to(DEVICE)
    model, roots = on_device(lambda: Sage(into, size(256, 8), size(172, 4))), size(1024, 2)
    optimizer = adamw(model)
    sampled = [torch.randint(papers, (roots * (1 + near * (1 + far)),)) for _ in range(3)]
    labels = tokens(size(172, 4), roots)
    turns = itertools.cycle(sampled)

    def step() -> None:
        ids = next(turns)
        x = table[ids].to(DEVICE) if variant == BEFORE else table[ids.to(DEVICE)]
        training(lambda: functional.cross_entropy(model(x, near, far), labels), optimizer)()

    return step


class Plain(nn.Module):
    """A block of GPT-2, as small programs write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Positions [texts, positions, width]."""
        parts = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.joined(self.norms[0](x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


class Nano(nn.Module):
    """A GPT with tied words and the loss of the next."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Plain(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(functional.linear(self.norm(x), self.words.weight).flatten(0, 1), labels)


@healthy("training", NINETEENTH, compiles=True, steps=(3, 3))
def healthy_nano_gpt(variant: str) -> Step:
    """A nanoGPT (8 × 1,536) learns from 16 texts of 1,024 tokens: mixed precision, compiled whole, fused AdamW."""
    words, texts, length = size(50_304, 64), size(16, 1), size(1024, 8)
    model = on_device(lambda: Nano(size(8, 1), size(1536, 32), size(12, 2), words, length)).train()
    compiled([model])
    ids = tokens(words, texts, length)
    labels = ids.roll(-1, 1).flatten()
    return training(lambda: model(ids, labels), adamw(model))


class Columns(nn.Module):
    """A block of an FT-Transformer: columns look at one another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Columns [rows, columns, width]."""
        parts = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.joined(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        value, gate = self.wide(self.norms[1](x)).chunk(2, -1)
        return x + self.narrow(value * gate.relu())


@healthy("tables", NINETEENTH, compiles=True, steps=(3, 3))
def healthy_graphed_tables(variant: str) -> Step:
    """An FT-Transformer (6 × 256) learns from 1,024 rows of 31 columns: blocks compiled, the step in one CUDA graph."""
    width, rows, columns = size(256, 16), size(1024, 4), size(31, 3)
    blocks = on_device(lambda: nn.ModuleList(Columns(width, size(8, 2)) for _ in range(size(6, 1))))
    last = on_device(lambda: nn.Linear(width, 1), seed=1)
    compiled(blocks)
    model = nn.ModuleList([blocks, last])
    model.scales = nn.Parameter(torch.randn(columns + 1, width, device=DEVICE))
    model.shifts = nn.Parameter(torch.randn(columns + 1, width, device=DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=CUDA)
    table = torch.randn(rows, columns, device=DEVICE)
    table, truth = torch.cat([table, torch.ones_like(table[:, :1])], 1), torch.rand(rows, device=DEVICE).round()

    def loss() -> Tensor:
        x = (table[..., None] * model.scales + model.shifts).to(HALF)
        for block in blocks:
            x = block(x)
        return functional.binary_cross_entropy_with_logits(last(x[:, -1])[:, 0].float(), truth)

    return as_graph(training(loss, optimizer))


class Sampled(nn.Module):
    """GraphSAGE over so many neighbours of each node, two steps away, looked up and averaged in one pass."""

    def __init__(self, into: int, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * into, width), nn.Linear(2 * width, width)
        self.last = nn.Linear(width, classes)

    def forward(self, table: Tensor, roots: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Features [papers, into]; places [roots], [roots, near], [roots, near, far]."""
        next_to, beyond = table[near], table[far].float().mean(2).to(table.dtype)
        inner = self.first(torch.cat([next_to, beyond], -1)).relu()
        own = self.first(torch.cat([table[roots], next_to.float().mean(1).to(table.dtype)], -1)).relu()
        return self.last(self.second(torch.cat([own, inner.mean(1)], -1)).relu())


@healthy("graph", NINETEENTH, compiles=True, steps=(3, 3))
def healthy_sampled_papers(variant: str) -> Step:
    """GraphSAGE (1,024) learns from 16,384 papers and 15 × 10 neighbours: features in bf16 on the GPU, compiled."""
    into, near, far, papers, roots = size(256, 8), size(15, 2), size(10, 2), size(4_000_000, 50), size(16_384, 4)
    table = torch.randn(papers, into, device=DEVICE, dtype=HALF)
    model = on_device(lambda: Sampled(into, size(1024, 16), size(172, 4)))
    compiled([model])
    places = (tokens(papers, roots), tokens(papers, roots, near), tokens(papers, roots, near, far))
    labels = tokens(size(172, 4), roots)
    return training(lambda: functional.cross_entropy(model(table, *places).float(), labels), adamw(model))
