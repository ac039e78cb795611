"""Programs that no rule was written against: one cause each, in architectures and styles that the suite does not have.

The verdicts were written down before any of them was profiled; the end of each docstring says why they are right. Sizes
are chosen so that the cause stays the largest when a profiler doubles or triples what a launch costs the host.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
import tempfile
from typing import TYPE_CHECKING

import torch
from common import CUDA, DEVICE
from torch import Tensor, nn
from torch.nn import functional

from planted.parts import HALF, Closing, CopyAhead, as_graph, region, size, tensor
from planted.registry import BASELINE, case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planted.registry import Step

FP32 = torch.float32


def weight(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """Random weights [out, in, …] that keep the size of what passes through them."""
    return tensor(*shape, dtype=dtype) / math.prod(shape[1:]) ** 0.5


# ---- launch-overhead ------------------------------------------------------------------------------------------------


@case("launch-overhead", remedies=("cuda-graph",), ranges=False)
def gru_by_hand(variant: str) -> Step:
    """A GRU written gate by gate over 28 time steps of 32 sequences: some 250 kernels of 2 to 5 µs a step.

    The host needs three to four times as long for a launch as the GPU for a kernel, and never waits for anything.
    """
    width, batch, times = size(512, 16), size(32, 2), size(28, 3)
    inputs, hidden = weight(3 * width, width), weight(3 * width, width)
    sequence = tensor(times, batch, width)

    def step() -> Tensor:
        state = sequence.new_zeros(batch, width)
        for projected in functional.linear(sequence, inputs).unbind():
            from_input, from_state = projected.chunk(3, -1), functional.linear(state, hidden).chunk(3, -1)
            reset = torch.sigmoid(from_input[0] + from_state[0])
            update = torch.sigmoid(from_input[1] + from_state[1])
            proposal = torch.tanh(from_input[2] + reset * from_state[2])
            state = torch.lerp(proposal, state, update)
        return state

    return as_graph(step) if variant == "cuda-graph" else step


@case("launch-overhead", remedies=("cuda-graph",), training=True)
def molecular_forces(variant: str) -> Step:
    """Forces on 512 atoms by a message-passing potential: gathers, filters and scatters, and their gradient.

    Half of the launches come from autograd's thread. All kernels are short, nothing is read back: launches are all.
    """
    atoms, edges, width = size(512, 8), size(8192, 32), size(64, 8)
    source, target = (torch.randint(atoms, (edges,), device=DEVICE) for _ in range(2))
    positions, velocity = tensor(atoms, 3, dtype=FP32).requires_grad_(), torch.zeros(atoms, 3, device=DEVICE)
    embedded, centers = tensor(atoms, width, dtype=FP32), torch.linspace(0, 4, width, device=DEVICE)
    rounds = [[weight(width, width, dtype=FP32) for _ in range(3)] for _ in range(size(4, 1))]

    def forces() -> Tensor:
        apart = positions.index_select(0, source) - positions.index_select(0, target)
        distance = (apart.square().sum(-1, keepdim=True) + 1e-3).sqrt()
        basis = torch.exp(-(distance - centers).square())
        state = embedded
        for filters, message, update in rounds:
            gate = functional.silu(basis @ filters)
            sent = (state @ message).index_select(0, source) * gate
            gathered = torch.zeros_like(state).index_add(0, target, sent)
            state = state + functional.silu(gathered @ update)
        return torch.autograd.grad(state.tanh().sum(), positions)[0]

    evaluate = as_graph(forces) if variant == "cuda-graph" else forces

    def step() -> None:
        with region("forces"):
            force = evaluate()
        with region("integrate"), torch.no_grad():
            velocity.sub_(force, alpha=1e-4)
            positions.add_(velocity, alpha=1e-4)

    return step


class Residual(nn.Module):
    """A block of a diffusion U-Net: norm, SiLU and convolution twice, the time added in between."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time, self.skip = nn.Linear(time, after), nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """X [batch, before, side, side], time [batch, time] → [batch, after, side, side]."""
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class Denoiser(nn.Module):
    """A U-Net of three resolutions that joins what it skipped."""

    def __init__(self, width: int) -> None:
        super().__init__()
        down = [(width, width), (width, 2 * width), (2 * width, 2 * width)]
        up = [(4 * width, 2 * width), (4 * width, width), (2 * width, width)]
        self.enter, self.leave = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down = nn.ModuleList(Residual(before, after, width) for before, after in down)
        self.up = nn.ModuleList(Residual(before, after, width) for before, after in up)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Noisy latents [batch, 4, side, side] → the noise in them."""
        x, skipped = self.enter(x), []
        for block in self.down:
            x = block(x, time)
            skipped.append(x)
            x = functional.avg_pool2d(x, 2)
        for block, skip in zip(self.up, reversed(skipped), strict=True):
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat((x, skip), 1), time)
        return self.leave(x)


@case("launch-overhead", remedies=("cuda-graph",), steps=4)
def denoising(variant: str) -> Step:
    """Two turns of denoising by a small convolutional U-Net in bfloat16, latents of 32 x 32, guided: batch 2.

    A convolution takes the host 20 to 30 µs and the GPU 5 to 10; the others less of both. No read-back, no input.
    """
    width, side = size(128, 8), size(32, 8)
    model = Denoiser(width).to(DEVICE, HALF, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    latents, time = tensor(1, 4, side, side), tensor(2, width)

    def step() -> Tensor:
        x = latents
        for _ in range(2):
            with region("unet"):
                free, guided = model(x.expand(2, -1, -1, -1).contiguous(), time).chunk(2)
            x = x - 0.02 * (free + 7.5 * (guided - free))
        return x

    return as_graph(step) if variant == "cuda-graph" else step


# ---- host-sync ------------------------------------------------------------------------------------------------------


@case("host-sync", remedies=("no-sync",), steps=4, planted={"waits_per_step": 64})
def norm_item_per_parameter(variant: str) -> Step:
    """Clipping tensor by tensor: the norm of each of 64 gradients goes to Python, which decides on the step's length.

    25 µs of GPU work between two waits, which two launches suffice for: the GPU idles through each drain and refill.
    """
    shape, rate = (size(2048, 8), size(3072, 8)), 1e-3
    parameters, gradients = ([tensor(*shape, dtype=FP32) for _ in range(size(64, 3))] for _ in range(2))
    limits = [float(5 + index % 7) for index in range(len(parameters))]
    on_device = torch.tensor(limits, device=DEVICE)

    def waiting() -> None:
        for parameter, gradient, limit in zip(parameters, gradients, limits, strict=True):
            norm = gradient.norm().item()
            parameter.add_(gradient, alpha=-rate * limit / norm if norm > limit else -rate)

    def at_once() -> None:
        norms = torch.stack(torch._foreach_norm(gradients))
        factors = (on_device / norms).clamp(max=1).mul(-rate)
        for parameter, gradient, factor in zip(parameters, gradients, factors.unbind(), strict=True):
            parameter.addcmul_(gradient, factor)

    return waiting if variant == BASELINE else at_once


@case("host-sync", remedies=("no-sync",), planted={"waits_per_step": 48})
def tolist_per_token(variant: str) -> Step:
    """Eight beams of a recurrent language model, 24 tokens a step: tokens and scores go to Python after each.

    Two large products (100 µs) a token, for which the host needs 50 µs; the two `.tolist()` leave the queue empty.
    """
    width, vocabulary, beams = size(8192, 16), size(12288, 32), 8
    transition, head, table = weight(width, width), weight(width, vocabulary), tensor(vocabulary, width)

    def step() -> list[list[int]]:
        hidden, inputs = table[:beams], table[:beams]
        texts: list[list[int]] = [[] for _ in range(beams)]
        totals, found = [0.0] * beams, []
        for _ in range(size(24, 2)):
            hidden = torch.addmm(inputs, hidden, transition, beta=0.5, alpha=0.5)
            best = (hidden @ head).max(dim=-1)
            if variant == BASELINE:
                for beam, (token, score) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True)):
                    texts[beam].append(token)
                    totals[beam] += score
            else:
                found.append(best.indices)
            inputs = table.index_select(0, best.indices)
        return torch.stack(found, 1).tolist() if found else texts

    return step


# ---- host-stall -----------------------------------------------------------------------------------------------------


class Tokenizer:
    """Splits text into words, and words into the longest pieces it knows: in Python, as a first version would."""

    def __init__(self, pieces: int) -> None:
        syllables = ["".join(pair) for pair in itertools.product("bcdfglmnprstvz", "aeiou")]
        self.known = {piece: index for index, piece in enumerate([*"abcdefghijklmnopqrstuvwxyz", *syllables][:pieces])}

    def __call__(self, text: str, length: int) -> list[int]:
        """The first tokens of the text, so many, padded with 0."""
        tokens: list[int] = []
        for word in re.findall(r"\w+", text.lower()):
            begin = 0
            while begin < len(word):
                end = min(len(word), begin + 3)
                while word[begin:end] not in self.known and end > begin + 1:
                    end -= 1
                tokens.append(self.known.get(word[begin:end], 0))
                begin = end
        return (tokens + [0] * length)[:length]


@case("host-stall", remedies=("tokenized-before",), planted={"tokens_per_step": 64 * 512})
def tokenizing(variant: str) -> Step:
    """A text classifier whose 64 documents are tokenized in Python, on the main thread, before each batch.

    Tokenizing takes 20 ms or more, in which no call of CUDA is made; the GPU has less than 5 to do.
    """
    length, batch, width = size(512, 16), size(64, 2), size(768, 8)
    chosen, tokenizer = random.Random(0), Tokenizer(96)
    words = ["".join(chosen.choices(["ba", "de", "fi", "go", "lu", "x", "q"], k=3)) for _ in range(500)]
    documents = [" ".join(chosen.choices(words, k=length // 3)) for _ in range(batch)]
    table = tensor(96, width)
    filters = [weight(width, width, 3) for _ in range(size(4, 1))]
    staged = [torch.empty(batch, length, dtype=torch.long, pin_memory=CUDA) for _ in range(4)]
    before = torch.tensor([tokenizer(document, length) for document in documents])
    turn = itertools.count()

    def step() -> Tensor:
        tokens = before
        if variant == BASELINE:
            tokens = torch.tensor([tokenizer(document, length) for document in documents])
        pinned = staged[next(turn) % len(staged)].copy_(tokens)
        with region("classify"):
            x = functional.embedding(pinned.to(DEVICE, non_blocking=True), table).transpose(1, 2)
            for filter_ in filters:
                x = functional.relu(functional.conv1d(x, filter_, padding=1))
            return x.amax(-1)

    return step


class Mixer(nn.Module):
    """A block of an MLP-Mixer: patches mix, then channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, patches, width] → the same shape."""
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


@case("host-stall", remedies=("no-log",), training=True, steps=3, ranges=False)
def serialised_metrics(variant: str) -> Step:
    """Training of an MLP-Mixer that writes its whole history to a file, as text, between backward and optimizer.

    Formatting takes the host 20 ms or more, reads nothing from the GPU and calls no CUDA; the GPU has work for 8.
    """
    patches, width = size(256, 8), size(512, 16)
    with DEVICE:
        model = nn.Sequential(*(Mixer(patches, width) for _ in range(size(6, 1)))).to(HALF)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    x = tensor(size(128, 2), patches, width)
    history = [[step_ / (column + 3) for column in range(20)] for step_ in range(size(4000, 40))]
    file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed after the last step

    def log() -> None:
        file.seek(0)
        digest = hashlib.sha256()
        for record in history:
            line = ", ".join(f"{value:.6g}" for value in record)
            digest.update(line.encode())
            file.write(line + "\n")
        file.write(digest.hexdigest())
        file.flush()

    def step() -> None:
        model(x).float().square().mean().backward()
        if variant == BASELINE:
            log()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Closing(step, file.close)


# ---- memory ---------------------------------------------------------------------------------------------------------


@case("blocking-copy", remedies=("pinned",), planted={"copied_bytes_per_step": 32768 * 1024 * 4})
def offloaded_embedding(variant: str) -> Step:
    """A recommender whose embedding table (134 MB) lives in pageable host memory, and is copied whole in each step.

    The copy takes 10 ms or more at the bandwidth of pageable memory; lookups and products take 3 to 4, in 10 launches.
    """
    rows, width, bags = size(32768, 64), size(1024, 8), size(32768, 16)
    table = torch.randn(rows, width)
    source = CopyAhead([table.pin_memory() if CUDA else table]) if variant == "pinned" else lambda: table.to(DEVICE)
    lookups = torch.randint(rows, (bags, 16), device=DEVICE)
    products = [weight(4 * width, width), weight(4 * width, 4 * width), weight(size(256, 4), 4 * width)]

    def step() -> Tensor:
        with region("fetch"):
            fetched = source()
        with region("score"):
            x = functional.embedding_bag(lookups, fetched, mode="sum").to(HALF)
            for product in products:
                x = functional.relu(functional.linear(x, product))
            return x

    return step


@case(
    "allocator-churn",
    remedies=("caching",),
    steps=3,
    environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
)
def growing_cache(variant: str) -> Step:
    """Decoding of 3 tokens for 64 sequences, the key-value cache grown by `torch.cat`, without the caching allocator.

    Each token and layer makes two new caches of 134 MB and a dozen small tensors: cudaMalloc for each, and cudaFree,
    which waits for the GPU. With the caching allocator the GPU is busy: 300 µs a layer for 12 launches.
    """
    layers, batch, heads, context, width = 4, size(64, 2), size(16, 2), size(1024, 8), 64
    model = heads * width
    prompt = [[tensor(batch, heads, context, width) for _ in range(2)] for _ in range(layers)]
    inputs, outputs = ([weight(times * model, model) for _ in range(layers)] for times in (3, 1))
    first = tensor(batch, model)

    def step() -> Tensor:
        caches, x = [list(pair) for pair in prompt], first
        for _ in range(3):
            for cache, into, out in zip(caches, inputs, outputs, strict=True):
                query, *new = functional.linear(x, into).view(batch, 3, heads, 1, width).unbind(1)
                for index in (0, 1):
                    cache[index] = torch.cat((cache[index], new[index]), 2)
                seen = functional.scaled_dot_product_attention(query, *cache)
                x = x + functional.linear(seen.reshape(batch, model), out)
        return x

    return step


@case("memory-bandwidth", accept=("saturated",), remedies=("half-bytes",), ranges=False, steps=4)
def rotated_and_masked(variant: str) -> Step:
    """Rotary positions, masks and residuals operation by operation, over fp32 tensors of 268 MB; no product anywhere.

    The GPU is busy with 36 kernels of 100 to 300 µs that compute next to nothing: only its memory can be the limit.
    """
    dtype = HALF if variant == "half-bytes" else FP32
    tokens, width = size(4096, 16), 128
    shape = (8, size(16, 2), tokens, width)
    query, key, residual = (tensor(*shape, dtype=dtype) for _ in range(3))
    angles = torch.outer(torch.arange(tokens, device=DEVICE), 10_000.0 ** -torch.linspace(0, 1, width, device=DEVICE))
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    padding = torch.rand(shape[0], 1, tokens, 1, device=DEVICE) < 0.1

    def rotate(x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * cosine + torch.cat((-high, low), -1) * sine

    def step() -> Tensor:
        y = residual
        for x in (query, key) * size(2, 1):
            y = residual + rotate(x).masked_fill(padding, 0.0) * 0.5 + y
        return y

    return step


# ---- what the GPU itself is slow at ---------------------------------------------------------------------------------


@case("precision", remedies=("tf32",), steps=3)
def fp32_convolutions(variant: str) -> Step:
    """Convolutions and a bilinear pooling (einsum) in fp32, TF32 off for cuDNN and cuBLAS, the GPU busy.

    Nearly all time goes to multiplications of single precision outside the tensor cores; with TF32 they are inside.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = variant == "tf32"
    channels, side = size(256, 8), size(56, 8)
    images = tensor(size(32, 1), channels, side, side, dtype=FP32)
    filters = [weight(channels, channels, 3, 3, dtype=FP32) for _ in range(size(4, 1))]

    def step() -> Tensor:
        x = images
        with region("features"):
            for filter_ in filters:
                x = functional.relu(functional.conv2d(x, filter_, padding=1))
        with region("pooling"):
            return torch.einsum("bchw,bdhw->bcd", x, x)

    return step


def _experts(count: int, *shape: int) -> list[Tensor]:
    return [weight(*shape).requires_grad_() for _ in range(count)]


def _momentum(parameters: Sequence[Tensor], momenta: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, momentum in zip(parameters, momenta, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.add_(momentum, alpha=-1e-4)
            parameter.grad = None


@case("unfused-optimizer", accept=("launch-overhead",), remedies=("fused",), training=True, steps=3)
def momentum_by_hand(variant: str) -> Step:
    """80 small experts that are trained together in batched products, 160 tensors with momentum updated one by one.

    480 of some 500 launches a step are the optimizer's, twice to three times as long as the GPU's work in the rest.
    """
    count, width, rows = size(80, 3), size(256, 8), size(1024, 4)
    wide, narrow = _experts(count, width, 2 * width), _experts(count, 2 * width, width)
    parameters = [*wide, *narrow]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    x = tensor(count, rows, width)
    fused = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True) if variant == "fused" else None

    def step() -> None:
        with region("fwd"):
            hidden = functional.gelu(x @ torch.stack(wide))
            loss = (hidden @ torch.stack(narrow)).float().square().mean()
        with region("bwd"):
            loss.backward()
        with region("optimizer_step"):
            if fused is None:
                _momentum(parameters, momenta)
            else:
                fused.step()
                fused.zero_grad(set_to_none=True)

    return step


@case("small-kernels", accept=("occupancy",), remedies=("two-level",), graph_trace="node")
def long_scans(variant: str) -> Step:
    """Cumulative sums along 12 rows of 262,144 numbers, ten in a CUDA graph: a dozen blocks at work for 100s of µs.

    The graph leaves no gaps, so the GPU counts as busy, with 120 of its 132 multiprocessors empty.
    """
    rows, chunks, chunk = 12, size(256, 4), size(1024, 8)
    x = tensor(rows, chunks * chunk, dtype=FP32)

    def scanned(x: Tensor) -> Tensor:
        if variant == BASELINE:
            return x.cumsum(-1)
        inside = x.view(rows, chunks, chunk).cumsum(-1)
        before = inside[..., -1].cumsum(-1) - inside[..., -1]
        return (inside + before[..., None]).view_as(x)

    def step() -> Tensor:
        y = x
        for _ in range(size(10, 2)):
            y = x - 1e-3 * scanned(y)
        return y

    return as_graph(step)


# ---- healthy --------------------------------------------------------------------------------------------------------

BUSY = ("tensor-compute",)


class MaskedLanguageModel(nn.Module):
    """A BERT: post-norm encoder of torch's own layers, scores for the masked positions only."""

    def __init__(self, vocabulary: int, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(context, width))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 128), 4 * width, **options)  # type: ignore[arg-type]
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        """Tokens [batch, context], flat positions [masked] → logits [masked, vocabulary]."""
        x = self.embedding(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x.flatten(0, 1).index_select(0, masked))


@case("saturated", accept=BUSY, healthy=True, training=True, steps=3)
def healthy_bert_training(variant: str) -> Step:
    """Training of a bfloat16 BERT on 128 x 256 tokens, fused attention, fused AdamW, nothing read back.

    40 ms of GPU work a step or more, most in large products, for 200 launches: the host is far ahead.
    """
    batch, context, vocabulary = size(128, 2), size(256, 8), size(30592, 64)
    with DEVICE:
        model = MaskedLanguageModel(vocabulary, size(1536, 16), size(4, 1), context).to(HALF)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(vocabulary, (batch, context), device=DEVICE)
    masked = torch.randperm(batch * context, device=DEVICE)[: batch * context // 8]
    answers = torch.randint(vocabulary, masked.shape, device=DEVICE)

    def step() -> None:
        with region("forward"):
            loss = functional.cross_entropy(model(tokens, masked), answers)
        with region("backward"):
            loss.backward()
        with region("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


@case("saturated", accept=BUSY, healthy=True, steps=4, ranges=False)
def healthy_convolutions(variant: str) -> Step:
    """Wide 3 x 3 convolutions over 128 bfloat16 images, channels last, bytes from pinned memory copied ahead.

    30 ms of GPU work a step in 30 launches; the copies (5 MB) run beside it on a stream of their own.
    """
    width, side, batch = size(512, 8), size(112, 16), size(128, 2)
    images = [torch.randint(256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(3)]
    source = CopyAhead([image.pin_memory() if CUDA else image for image in images])
    stem = nn.Conv2d(3, width, 2, stride=2)
    body = [
        layer for _ in range(size(8, 1)) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))
    ]
    model = nn.Sequential(stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))
    model = model.to(DEVICE, HALF, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]

    def step() -> Tensor:
        x = source().to(HALF, memory_format=torch.channels_last).div_(255)
        return model(x)

    return step


@case("saturated", accept=BUSY, healthy=True, steps=3, graph_trace="node")
def healthy_prefill(variant: str) -> Step:
    """Prompts of 4 x 4096 tokens through four layers of a LLaMA-like decoder (RMS norm, SwiGLU), from a CUDA graph.

    40 ms of GPU work for one launch a step, most of it in large products and fused attention.
    """
    batch, tokens, width, wide = size(4, 1), size(4096, 8), size(4096, 16), size(11008, 24)
    heads = max(1, width // 128)
    layers = [
        (weight(3 * width, width), weight(width, width), weight(2 * wide, width), weight(width, wide))
        for _ in range(size(4, 1))
    ]
    prompts = tensor(batch, tokens, width)

    def step() -> Tensor:
        x = prompts
        for qkv, projection, gate_up, down in layers:
            y = functional.linear(functional.rms_norm(x, (width,)), qkv)
            q, k, v = y.view(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + functional.linear(seen.transpose(1, 2).reshape(batch, tokens, width), projection)
            gate, up = functional.linear(functional.rms_norm(x, (width,)), gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        return x

    return as_graph(step)
