"""Thirteen more programs of two ranks, each before and after a change: timed without a profiler, and recorded.

    python captures/two_ranks_third.py time PROGRAM OUT        # both variants in turn; then torch.profiler of `before`
    nsys profile … python captures/two_ranks_third.py nsys PROGRAM OUT    # a few steps of `before`
    python captures/two_ranks_third.py list                    # the programs: habit, what else is right, the change

The runner is that of `two_ranks.py`; `MODULE=two_ranks_third.py two_ranks.sh OUT` runs all of them. They were written
without sight of the rules or their thresholds, and before anything was run on GPUs: the gains in the docstrings
are reckoned for two H200 with NVLink (about 300 GB/s of an all-reduce, 500 TFLOP/s in bfloat16). Six of the ten
habits are of communication or balance, four are ones of a single GPU inside of a parallel program. Three programs are
healthy; their variant `after` leaves out communication that they do well to have, and a ratio near 1 shows that.
`RANKS_DEVICE=cpu` tries them, tiny, with gloo.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from two_ranks_more import Block, Case, adamw, autocast, command_line, decoder, in_parallel, size, tokens

import two_ranks
from two_ranks import CUDA, DEVICE, Step

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast can put GPUs that others share out of service

HEALTHY = ("tensor-compute", "saturated", "below-roof")

CASES = {
    "pretraining_of_wide_decoder": Case(
        "exposed-communication", (), "DDP reduces during the backward pass, instead of one flat all-reduce behind it"
    ),
    "deep_vit_with_sharded_adamw": Case(
        "unbucketed-communication",
        ("exposed-communication", "launch-overhead"),
        "parameters_as_bucket_view=True: the optimizer broadcasts a bucket per rank, not each parameter",
    ),
    "document_embeddings_split_by_heads": Case(
        "exposed-communication", ("precision",), "partial sums are all-reduced in bfloat16, not cast to float32 for it"
    ),
    "large_vocabulary_in_two_stages": Case(
        "straggler", ("pipeline-bubble",), "the cut is behind 7 layers of 10: the head weighs as much as 5 layers"
    ),
    "passage_retrieval": Case(
        "host-stall",
        ("blocking-copy", "host-sync", "exposed-communication"),
        "passages of the other rank come by all_gather_into_tensor, not pickled by all_gather_object",
    ),
    "reports_and_notes": Case("straggler", (), "each rank gets a long document and notes, not rank 0 the long ones"),
    "tissue_classifier": Case(
        "unused-gradients", ("unused-results",), "requires_grad_(False) on the encoder, whose gradients nobody uses"
    ),
    "photo_classifier": Case(
        "host-stall",
        ("blocking-copy",),
        "bytes are copied from pinned memory, and the GPU crops and normalizes, not the main thread for each image",
    ),
    "mixture_of_experts": Case(
        "per-expert-loop",
        ("host-sync", "launch-overhead", "small-kernels", "scattered-access"),
        "one batched product over all local experts, padded to the fullest",
    ),
    "instruction_tuning_sharded": Case(
        "precision", (), "the head computes in bfloat16, too, and gives float32 to the loss"
    ),
    "code_completion_training": Case("", HEALTHY, "no communication: no_sync() for all micro-batches"),
    "long_context_sharded": Case("", HEALTHY, "less communication: parameters stay gathered for the backward pass"),
    "guided_denoising": Case("", HEALTHY, "no communication: each rank is left with its own noise"),
}


def pretraining_of_wide_decoder(variant: str) -> Step:
    """Training of a decoder of 0.5 B on few tokens, whose gradients are averaged by hand.

    The loop flattens all gradients, all-reduces 2 GB, and copies them back: 7 ms on the wire, behind the backward
    pass instead of within it, and 3 ms for the copies, of about 28 ms. Expected: 1.3×.
    """
    length, vocabulary = size(512, 16), size(32_000, 64)
    model = decoder(8, 2048, vocabulary, length)
    parallel = in_parallel(model, gradient_as_bucket_view=True) if variant == "after" else model
    optimizer = adamw(model)
    parameters = list(model.parameters())
    ids = tokens(vocabulary, size(4, 2), length)

    def average() -> None:
        gradients = [parameter.grad for parameter in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(parts, gradients, strict=True)])

    def step() -> None:
        with autocast():
            loss = parallel(ids)
        loss.backward()
        if variant == "before":
            average()
        optimizer.step()
        optimizer.zero_grad()

    return step


def deep_vit_with_sharded_adamw(variant: str) -> Step:
    """Training of a deep, narrow ViT with layer scale; ZeroRedundancyOptimizer as it comes.

    Each of 340 parameters is broadcast alone after the step: 15 to 25 µs for each, where the 170 MB would take under
    1 ms. Many small collectives are also many launches, and nothing runs beside them: `launch-overhead` and
    `exposed-communication` are right. Expected: 1.2×.
    """
    import timm
    from torch.distributed.optim import ZeroRedundancyOptimizer

    side = size(224, 32)
    depth, width, heads = (24, 384, 6) if CUDA else (2, 48, 2)
    model = timm.models.VisionTransformer(
        img_size=side, embed_dim=width, depth=depth, num_heads=heads, init_values=1e-5, num_classes=1000
    ).to(DEVICE)
    parallel = in_parallel(model)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=variant == "after",
        lr=1e-5,
        fused=CUDA,
    )
    images = torch.randn(size(64, 2), 3, side, side, device=DEVICE)
    labels = tokens(1000, len(images))

    def step() -> None:
        with autocast():
            loss = functional.cross_entropy(parallel(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class SplitBlock(nn.Module):
    """This rank's half of the heads and of the feed-forward width of a transformer block with gated units."""

    def __init__(self, width: int, heads: int, inner: int, wide_sums: bool) -> None:
        super().__init__()
        self.heads, self.wide_sums = heads // 2, wide_sums
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width // 2, bias=False)
        self.out = nn.Linear(width // 2, width, bias=False)
        self.gate_up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner // 2, width, bias=False)

    def summed(self, partial: Tensor) -> Tensor:
        """The sum of both ranks' partial results."""
        total = partial.float() if self.wide_sums else partial
        dist.all_reduce(total)
        return total.to(partial.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward layers; one all-reduce behind each."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.summed(self.out(y.transpose(1, 2).reshape(batch, length, -1)))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.summed(self.down(functional.silu(gate) * up))


def document_embeddings_split_by_heads(variant: str) -> Step:
    """Embeds 8 documents of 2,048 tokens by 16 layers of 2,048, each layer split over both ranks.

    The partial sums of each row-parallel layer go to float32 before the all-reduce and back behind it, "for accuracy":
    twice the bytes on the wire, where nothing else can run, and two casts: 0.6 ms of 2.9 ms a layer. The cause is the
    time of exposed all-reduces; that their type is wider than need be is `precision`. Expected: 1.25×.
    """
    width, heads, inner, count = (2048, 16, 5632, 16) if CUDA else (32, 4, 64, 2)
    vocabulary = size(32_000, 64)
    embedding = nn.Embedding(vocabulary, width)
    blocks = [SplitBlock(width, heads, inner, variant == "before") for _ in range(count)]
    model = nn.Sequential(embedding, *blocks, nn.RMSNorm(width)).to(DEVICE, torch.bfloat16).eval()
    ids = tokens(vocabulary, size(8, 2), size(2048, 16))
    found: list[Tensor] = []

    @torch.inference_mode()
    def step() -> None:
        found[:] = [functional.normalize(model(ids).mean(1), dim=-1)]

    return step


class Head(nn.Module):
    """The last norm and the vocabulary's projection; called with states and tokens, it gives the loss."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """Mean cross-entropy of the next token."""
        logits = self.project(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def large_vocabulary_in_two_stages(variant: str) -> Step:
    """Training of 10 layers of 2,048 with 128,256 tokens of vocabulary as a pipeline of eight micro-batches.

    The cut halves the layers, but the head and its loss cost as much as five more layers: rank 0 waits for rank 1 in
    each micro-batch. A profile shows it as waiting in a pipeline, so `pipeline-bubble` is right too, though more
    micro-batches would not help. Expected: 1.2×.
    """
    width, vocabulary, count = (2048, 128_256, 10) if CUDA else (32, 64, 4)
    length, parts = size(1024, 16), 8
    cut = count // 2 if variant == "before" else size(7, 3)
    shape = (1, length, width)
    made: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
    batches = [tokens(vocabulary, 1, length) for _ in range(parts)]
    starts = dist.get_rank() == 0
    stage = nn.Sequential(*(Block(width, max(2, width // 128)) for _ in range(cut if starts else count - cut)))
    end = nn.Embedding(vocabulary, width) if starts else Head(width, vocabulary)
    both = nn.ModuleList([stage, end]).to(**made)
    optimizer = adamw(both)

    def first() -> None:
        sent = []
        for ids in batches:
            y = stage(end(ids))
            dist.send(y.detach(), 1)
            sent.append(y)
        for y in sent:
            gradient = torch.empty(shape, **made)
            dist.recv(gradient, 1)
            y.backward(gradient)

    def last() -> None:
        done: list[tuple[Tensor, Tensor]] = []
        for ids in batches:
            x = torch.empty(shape, **made)
            dist.recv(x, 0)
            x.requires_grad_()
            done.append((x, end(stage(x), ids) / parts))
        for x, loss in done:
            loss.backward()
            assert x.grad is not None
            dist.send(x.grad, 0)

    def step() -> None:
        first() if starts else last()
        optimizer.step()
        optimizer.zero_grad()

    return step


class TokenVectors(nn.Module):
    """BERT with a projection: unit vectors of each token, for queries and passages."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(**({} if CUDA else small))
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.project = nn.Linear(config.hidden_size, 128, bias=False)
        self.vocabulary = config.vocab_size

    def forward(self, *sets: Tensor) -> list[Tensor]:
        """The vectors of each set of token sequences."""
        states = (self.encoder(input_ids=ids).last_hidden_state for ids in sets)
        return [functional.normalize(self.project(state).float(), dim=-1) for state in states]


def passage_retrieval(variant: str) -> Step:
    """Training of late interaction: queries against the passages of both ranks.

    The passages' vectors (12 MB a rank) go to the other rank as a Python object: to the host, pickled, to the GPU,
    gathered, to the host, unpickled, to the GPU. The GPU waits 20 to 40 ms for the host. Its profile also shows
    copies of pageable memory and waiting for them (`blocking-copy`, `host-sync`), and what stops the step is
    a collective (`exposed-communication`). Expected: 1.5×.
    """
    model = TokenVectors().to(DEVICE)
    parallel = in_parallel(model)
    optimizer = adamw(model)
    rank, rows = dist.get_rank(), size(128, 3)
    queries = tokens(model.vocabulary, rows, size(32, 4))
    passages = tokens(model.vocabulary, rows, size(180, 8))
    labels = torch.arange(rows, device=DEVICE) + rows * rank

    def from_all(own: Tensor) -> list[Tensor]:
        if variant == "before":
            objects: list[Any] = [None, None]
            dist.all_gather_object(objects, own.cpu())
            return [vectors.to(DEVICE) for vectors in objects]
        gathered = own.new_empty(2 * rows, *own.shape[1:])
        dist.all_gather_into_tensor(gathered, own)
        return list(gathered.chunk(2))

    def step() -> None:
        with autocast():
            asked, own = parallel(queries, passages)
            known = from_all(own.detach())
            known[rank] = own  # the gradient goes through this rank's passages
            similar = torch.einsum("qmd,pnd->qpmn", asked, torch.cat(known))
            scores = similar.amax(-1).float().sum(-1)
        functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def reports_and_notes(variant: str) -> Step:
    """Training on sequences packed to 12,288 tokens: two reports, and twice twelve notes of 1,024.

    Each rank gets the same number of tokens, but attention costs a report 12 times what it costs the notes, and rank 0
    gets both reports. Rank 1 waits for it in the all-reduces. Nothing else is right: communication that nobody waits
    for would be hidden. Expected: 1.3×.
    """
    length, vocabulary = size(12_288, 24), size(8192, 64)
    model = decoder(8, 1024, vocabulary, length)
    parallel = in_parallel(model)
    optimizer = adamw(model)
    report, notes = tokens(vocabulary, 1, length), tokens(vocabulary, 12, length // 12)
    uneven = [report, report] if dist.get_rank() == 0 else [notes, notes]
    parts = uneven if variant == "before" else [report, notes]

    def step() -> None:
        for number, ids in enumerate(parts):
            with parallel.no_sync() if number == 0 else contextlib.nullcontext():
                with autocast():
                    loss = parallel(ids) / len(parts)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class WithHead(nn.Module):
    """An image encoder with a head of two layers."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        """The classes' scores."""
        return self.head(self.encoder(images))


def tissue_classifier(variant: str) -> Step:
    """Training of a head on a pretrained ViT-B, under DDP.

    The optimizer has the head's parameters only, but the encoder's still require gradients: the whole backward pass
    and an all-reduce of 340 MB for nothing. That the results are unused is the same in other words
    (`unused-results`); the all-reduce is no cause, since it hides behind the useless pass. Expected: 2.5×.
    """
    import timm

    tiny = {} if CUDA else {"img_size": 32, "depth": 2, "embed_dim": 48}
    encoder = timm.create_model("vit_base_patch16_224", num_classes=0, **tiny)
    if variant == "after":
        encoder.requires_grad_(False)
    model = WithHead(encoder, encoder.num_features, 9).to(DEVICE)
    parallel = in_parallel(model)
    optimizer = adamw(model.head)
    images = torch.randn(size(128, 2), 3, size(224, 32), size(224, 32), device=DEVICE)
    labels = tokens(9, len(images))

    def step() -> None:
        with autocast():
            loss = functional.cross_entropy(parallel(images), labels)
        loss.backward()
        optimizer.step()
        model.zero_grad()

    return step


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset[tuple[Tensor, int]]):
    """Decoded photos in memory, each cropped, flipped and normalized when asked for."""

    def __init__(self, photos: Tensor, labels: Tensor, corners: Tensor, side: int) -> None:
        self.photos, self.labels, self.corners, self.side = photos, labels, corners, side
        self.mean, self.deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = self.corners[index].tolist()
        image = self.photos[index, top : top + self.side, left : left + self.side].permute(2, 0, 1)
        image = image.to(torch.float32) / 255
        if index % 2:
            image = image.flip(-1)
        return (image - self.mean) / self.deviation, int(self.labels[index])


def photo_classifier(variant: str) -> Step:
    """Training of ResNet-50 under DDP, from photos in memory.

    A DataLoader without workers crops, flips and normalizes image by image in the main thread, then copies 77 MB of
    pageable memory (`blocking-copy` is right too): 60 to 90 ms of host work for 40 ms on the GPU. Both ranks do so,
    and none is late. Expected: 1.6×.
    """
    import timm

    rows, kept, side, large = (128, 512, 224, 256) if CUDA else (2, 4, 32, 40)
    model = timm.create_model("resnet50" if CUDA else "resnet10t", num_classes=1000)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    parallel = in_parallel(model)
    optimizer = adamw(model)
    photos = torch.randint(256, (kept, large, large, 3), dtype=torch.uint8)
    labels = torch.randint(1000, (kept,))
    corners = torch.randint(large - side, (kept, 2))
    mean, deviation = (torch.tensor(values, device=DEVICE) for values in (MEAN, DEVIATION))

    def on_host() -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(Photos(photos, labels, corners, side), batch_size=rows, num_workers=0)
        while True:
            for images, classes in loader:
                yield images.to(DEVICE, memory_format=torch.channels_last), classes.to(DEVICE)

    def on_gpu() -> Iterator[tuple[Tensor, Tensor]]:
        held = [t.pin_memory() if CUDA else t for t in (photos, labels, corners)]
        along = torch.arange(side, device=DEVICE)
        flipped = (torch.arange(rows, device=DEVICE) % 2 == 1)[:, None]
        for begin in itertools.cycle(range(0, kept, rows)):
            batch, classes, corner = (t[begin : begin + rows].to(DEVICE, non_blocking=True) for t in held)
            across = torch.where(flipped, side - 1 - along, along)
            high, wide = corner[:, :1] + along, corner[:, 1:] + across
            cropped = batch[torch.arange(rows, device=DEVICE)[:, None, None], high[:, :, None], wide[:, None, :]]
            yield ((cropped / 255 - mean) / deviation).permute(0, 3, 1, 2), classes

    batches = on_host() if variant == "before" else on_gpu()

    def step() -> None:
        images, classes = next(batches)
        with autocast():
            loss = functional.cross_entropy(parallel(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Exchange(torch.autograd.Function):
    """Rows to the ranks that need them; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
        """The rows from all ranks."""
        ctx.sent, ctx.got = sent, got
        out = rows.new_empty(sum(got), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), got, sent)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradients from all ranks."""
        out = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), ctx.sent, ctx.got)
        return out, None, None


class Experts(nn.Module):
    """This rank's half of the experts, with a router of two experts for each token."""

    def __init__(self, width: int, inner: int, count: int, one_by_one: bool) -> None:
        super().__init__()
        self.count, self.one_by_one = count, one_by_one
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count // 2, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(count // 2, inner, width) / inner**0.5)

    def loop(self, rows: Tensor, owner: Tensor) -> Tensor:
        """Each expert picks its rows, and adds its results."""
        out = torch.zeros_like(rows)
        for number, (up, down) in enumerate(zip(self.up.unbind(), self.down.unbind(), strict=True)):
            where = (owner == number).nonzero().squeeze(1)
            out.index_add_(0, where, functional.gelu(rows.index_select(0, where) @ up) @ down)
        return out

    def batched(self, rows: Tensor, owner: Tensor, held: list[int]) -> Tensor:
        """All experts at once, padded to the fullest."""
        most = max(held)
        starts = torch.tensor([0, *itertools.accumulate(held)][:-1])
        starts = (starts.pin_memory() if CUDA else starts).to(DEVICE, non_blocking=True)
        order = owner.argsort()
        sorted_owner = owner[order]
        place = torch.arange(len(rows), device=DEVICE) - starts[sorted_owner]
        slot = torch.empty_like(order).scatter_(0, order, sorted_owner * most + place)
        padded = rows.new_zeros(len(held) * most, rows.shape[1]).index_copy(0, slot, rows)
        y = functional.gelu(padded.view(len(held), most, -1) @ self.up) @ self.down
        return y.flatten(0, 1).index_select(0, slot)

    def forward(self, x: Tensor) -> Tensor:
        """Sends each token to its experts on both ranks, and sums what comes back."""
        flat, half = x.flatten(0, 1), self.count // 2
        weight, chosen = self.router(flat).softmax(-1).topk(2)
        chosen = chosen.flatten()
        order = chosen.argsort()
        counts = torch.zeros(self.count, dtype=torch.long, device=DEVICE).index_add_(0, chosen, torch.ones_like(chosen))
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        mine, theirs = torch.stack([counts, others]).tolist()
        sent, got = ([sum(numbers[:half]), sum(numbers[half:])] for numbers in (mine, theirs))
        rows = Exchange.apply(flat.index_select(0, order // 2), sent, got)
        owner = torch.arange(half, device=DEVICE).repeat(2).repeat_interleave(others, output_size=sum(got))
        held = [a + b for a, b in zip(theirs[:half], theirs[half:], strict=True)]
        y = self.loop(rows, owner) if self.one_by_one else self.batched(rows, owner, held)
        back = Exchange.apply(y, got, sent) * weight.flatten().index_select(0, order)[:, None]
        return torch.zeros_like(flat).index_add(0, order // 2, back).view_as(x)


class ExpertLayers(nn.Module):
    """A language model of attention and experts; called with tokens, it gives the loss."""

    def __init__(self, layers: int, width: int, inner: int, experts: int, vocabulary: int, one_by_one: bool) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.experts = nn.ModuleList(Experts(width, inner, experts, one_by_one) for _ in range(layers))
        self.head = Head(width, vocabulary)
        self.heads = max(2, width // 64)

    def forward(self, ids: Tensor) -> Tensor:
        """Mean cross-entropy of the next token."""
        x = self.token(ids)
        norms = iter(self.norms)
        for qkv, out, experts in zip(self.qkv, self.out, self.experts, strict=True):
            q, k, v = qkv(next(norms)(x)).view(*ids.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(y.transpose(1, 2).flatten(2))
            x = x + experts(next(norms)(x))
        return self.head(x, ids)


def mixture_of_experts(variant: str) -> Step:
    """Training of 8 layers with 32 experts, half of them on each rank, the rest under DDP.

    Each of 16 local experts finds its rows with nonzero(), which waits for the GPU (`host-sync`), gathers 500 of them
    and multiplies: 3,000 launches of small kernels a step (`launch-overhead`, `small-kernels`), rows picked and added
    by index (`scattered-access`). The exchange between the ranks is the same in both variants. Expected: 2×.
    """
    layers, width, inner, experts, vocabulary = (8, 1024, 2048, 32, 16_384) if CUDA else (2, 32, 64, 4, 64)
    model = ExpertLayers(layers, width, inner, experts, vocabulary, variant == "before").to(DEVICE, torch.bfloat16)
    local = [name for name, _ in model.named_parameters() if name.endswith((".up", ".down"))]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, local)
    parallel = in_parallel(model)
    optimizer = adamw(model)
    ids = tokens(vocabulary, size(4, 2), size(1024, 16))

    def step() -> None:
        parallel(ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def instruction_tuning_sharded(variant: str) -> Step:
    """Training of 12 blocks of 1,024 with 32,000 tokens of vocabulary under FSDP2, in bfloat16.

    The policy of the head says float32, so that its three matrix products run without tensor cores: 30 ms of about
    55 ms. The loss only needs logits in float32. Expected: 2×.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    length, vocabulary = size(1024, 16), size(32_000, 64)
    model = decoder(12, 1024, vocabulary, length)
    mesh = init_device_mesh(DEVICE.type, (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    head = torch.float32 if variant == "before" else torch.bfloat16
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(
        model.head,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(param_dtype=head, reduce_dtype=torch.float32, output_dtype=torch.float32),
    )
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = adamw(model)
    ids = tokens(vocabulary, size(8, 2), length)

    def step() -> None:
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def code_completion_training(variant: str) -> Step:
    """Training of a decoder of 0.4 B on two micro-batches of 8,192 tokens: DDP with no_sync, and clipped gradients.

    Gradients of 1.7 GB are all-reduced each step, in 20 and more buckets, all but the last within the backward pass.
    The norm of the gradients stays on the GPU.
    """
    length, vocabulary = size(1024, 16), size(32_000, 64)
    model = decoder(6, 2048, vocabulary, length)
    parallel = in_parallel(model, gradient_as_bucket_view=True)
    optimizer = adamw(model)
    parts = [tokens(vocabulary, size(8, 2), length) for _ in range(2)]

    def step() -> None:
        for number, ids in enumerate(parts):
            alone = variant == "after" or number < len(parts) - 1
            with parallel.no_sync() if alone else contextlib.nullcontext():
                with autocast():
                    loss = parallel(ids) / len(parts)
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=CUDA)
        optimizer.step()
        optimizer.zero_grad()

    return step


def long_context_sharded(variant: str) -> Step:
    """Training of 8 blocks of 2,048 on 8,192 tokens a rank under FSDP2, which gathers the next block ahead of time.

    Two gathers and a reduce-scatter for each block, all beside the work on another block.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    length, vocabulary = size(4096, 16), size(16_384, 64)
    model = decoder(8, 2048, vocabulary, length)
    options: dict[str, Any] = {
        "mesh": init_device_mesh(DEVICE.type, (2,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=variant == "before", **options)
    fully_shard(model, **options)
    for block, following in itertools.pairwise(model.blocks):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    optimizer = adamw(model)
    ids = tokens(vocabulary, 2, length)

    def step() -> None:
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Denoiser(nn.Module):
    """A transformer on patches of latents, with the time and the condition as tokens in front."""

    def __init__(self, layers: int, width: int, heads: int, channels: int) -> None:
        from timm.models.vision_transformer import Block as Layer

        super().__init__()
        self.enter, self.leave = nn.Linear(channels, width), nn.Linear(width, channels)
        self.time = nn.Linear(1, width)
        self.blocks = nn.Sequential(*(Layer(width, heads, qkv_bias=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, latents: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """The noise in the latents."""
        front = torch.stack([self.time(time).expand_as(condition), condition], dim=1)
        x = self.blocks(torch.cat([front, self.enter(latents)], dim=1))
        return self.leave(self.norm(x[:, front.shape[1] :]))


def guided_denoising(variant: str) -> Step:
    """Four steps of denoising 8 images with guidance; rank 0 has the condition, rank 1 has none.

    Both ranks need both noises for the next step: 0.5 MB is gathered each 15 ms, which cannot be hidden, but is cheap.
    """
    layers, width, heads, patches = (24, 1024, 16, 1022) if CUDA else (2, 32, 2, 6)
    channels = 16
    model = Denoiser(layers, width, heads, channels).to(DEVICE, torch.bfloat16).eval()
    made: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
    rows, rank = size(8, 2), dist.get_rank()
    start = torch.randn(rows, patches, channels, **made)
    condition = torch.randn(rows, width, **made) * (1 - rank)
    times = torch.linspace(1, 0.25, 4, **made).view(4, 1, 1)
    images: list[Tensor] = []

    @torch.inference_mode()
    def step() -> None:
        latents = start
        for time in times:
            noise = model(latents, time[0], condition)
            if variant == "before":
                both = noise.new_empty(2 * rows, *noise.shape[1:])
                dist.all_gather_into_tensor(both, noise)
                conditioned, free = both.chunk(2)
            else:
                conditioned = free = noise
            latents = latents - 0.25 * torch.lerp(free, conditioned, 4.0)
        images[:] = [latents]

    return step


PROGRAMS = {
    made.__name__: made
    for made in (
        pretraining_of_wide_decoder, deep_vit_with_sharded_adamw, document_embeddings_split_by_heads,
        large_vocabulary_in_two_stages, passage_retrieval, reports_and_notes, tissue_classifier, photo_classifier,
        mixture_of_experts, instruction_tuning_sharded, code_completion_training, long_context_sharded,
        guided_denoising,
    )
}  # fmt: skip
two_ranks.PROGRAMS.update(PROGRAMS)  # in each rank too: a spawned process imports the main module

if __name__ == "__main__":
    command_line(CASES)
