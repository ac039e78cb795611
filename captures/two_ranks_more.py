"""Eight more programs of two ranks, each before and after a change: timed without a profiler, and recorded.

    python captures/two_ranks_more.py time PROGRAM OUT         # both variants in turn; then torch.profiler of `before`
    nsys profile … python captures/two_ranks_more.py nsys PROGRAM OUT     # a few steps of `before`
    python captures/two_ranks_more.py list                     # the programs: habit, what else is right, the change

The runner is that of `two_ranks.py`; `two_ranks.sh` runs all of them. They were written without the code of the rules,
but with some of their thresholds in view, and before anything was run on GPUs. The variant `after` of the healthy ones
leaves the communication out, which no remedy can better: a ratio near 1 shows that they are healthy.
`RANKS_DEVICE=cpu` tries them, tiny, with gloo.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import two_ranks
from two_ranks import CUDA, DEVICE, Step


class Case(NamedTuple):
    """What a program does wrong, in finding ids: the habit ('' if healthy), what else is right, and the change."""

    habit: str
    accepted: tuple[str, ...]
    change: str


CASES = {
    "buckets_by_rank": Case(
        "straggler", ("padded-work",), "neighbouring lengths go to the two ranks, not the short ones to rank 0"
    ),
    "accumulation_without_no_sync": Case(
        "exposed-communication", ("unbucketed-communication",), "no_sync() for the first three micro-batches of four"
    ),
    "metrics_one_by_one": Case(
        "host-sync",
        ("unbucketed-communication", "exposed-communication", "launch-overhead"),
        "the norms are stacked, reduced at once, and read every 20 steps",
    ),
    "statistics_on_rank_0": Case(
        "straggler",
        ("host-stall", "blocking-copy", "host-sync"),
        "rank 0 takes the statistics of its weights every 500 steps, not in each",
    ),
    "sharded_by_linear": Case(
        "unbucketed-communication",
        ("launch-overhead", "exposed-communication"),
        "fully_shard wraps the blocks, not each linear layer",
    ),
    "tiny_buckets": Case(
        "unbucketed-communication",
        ("launch-overhead", "exposed-communication"),
        "DDP's default buckets (25 MB) for bucket_cap_mb=0.1",
    ),
    "healthy_training": Case("", ("tensor-compute", "saturated", "below-roof"), "no communication: no_sync()"),
    "healthy_inference": Case("", ("tensor-compute", "saturated", "below-roof"), "no communication: no all_gather"),
}


def command_line(cases: Mapping[str, Case]) -> None:
    """Lists these programs, or runs the one that is named in a process for each rank."""
    if sys.argv[1] == "list":
        print(json.dumps({name: case._asdict() for name, case in cases.items()}, indent=1))
    else:
        mp.start_processes(two_ranks.rank_of_two, sys.argv[1:4], nprocs=2, start_method="spawn")


def size(real: int, tiny: int) -> int:
    """The number on GPUs; the other one on CPUs."""
    return real if CUDA else tiny


def autocast() -> torch.autocast:
    """Mixed precision in bfloat16."""
    return torch.autocast(DEVICE.type, torch.bfloat16)


def tokens(vocabulary: int, *shape: int) -> Tensor:
    """Random tokens."""
    return torch.randint(vocabulary, shape, device=DEVICE)


def in_parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """The model under DDP."""
    return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()] if CUDA else None, **options)


class Block(nn.Module):
    """A causal transformer block with the norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward layers."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A language model; called with tokens, it gives the loss."""

    def __init__(self, layers: int, width: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Mean cross-entropy of the next token."""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def decoder(layers: int, width: int, vocabulary: int, length: int) -> Decoder:
    """The language model on this rank's device."""
    if not CUDA:
        layers, width, vocabulary = 2, 32, 64
    return Decoder(layers, width, vocabulary, length).to(DEVICE)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer of all programs."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=CUDA)


def buckets_by_rank(variant: str) -> Step:
    """Fine-tuning of BERT; batches of similar length, of which rank 1 draws the longer ones."""
    from transformers import BertConfig, BertForSequenceClassification

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(num_labels=2, **({} if CUDA else small))
    model = in_parallel(BertForSequenceClassification(config).to(DEVICE))
    optimizer = adamw(model)
    lengths = [96, 128, 160, 192, 320, 384, 448, 512] if CUDA else [4, 5, 6, 7, 8, 9, 10, 12]
    rank = dist.get_rank()
    mine = lengths[4 * rank : 4 * rank + 4] if variant == "before" else lengths[rank::2]
    rows = size(96, 2)
    batches = [(tokens(config.vocab_size, rows, length), tokens(2, rows)) for length in mine]
    number = 0

    def step() -> None:
        nonlocal number
        ids, labels = batches[number % len(batches)]
        number += 1
        with autocast():
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def accumulation_without_no_sync(variant: str) -> Step:
    """Training of a wide language model (0.7 B) with four micro-batches of one sequence."""
    model = decoder(12, 2048, 32_000, size(512, 16))
    parallel = in_parallel(model)
    optimizer = adamw(model)
    parts = [tokens(size(32_000, 64), 1, size(512, 16)) for _ in range(4)]

    def step() -> None:
        for number, ids in enumerate(parts):
            waits = variant == "after" and number < len(parts) - 1
            with parallel.no_sync() if waits else contextlib.nullcontext():
                with autocast():
                    loss = parallel(ids) / len(parts)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def metrics_one_by_one(variant: str) -> Step:
    """Training of a small ViT that logs the norm of each gradient, averaged over the ranks."""
    import timm

    tiny = {} if CUDA else {"img_size": 32, "depth": 2}
    model = timm.create_model("vit_small_patch16_224", num_classes=1000, **tiny).to(DEVICE)
    parallel = in_parallel(model)
    optimizer = adamw(model)
    images = torch.randn(size(128, 2), 3, size(224, 32), size(224, 32), device=DEVICE)
    labels = tokens(1000, len(images))
    log: dict[str, float] = {}
    pending: list[Tensor] = []

    def one_by_one() -> None:
        for name, parameter in model.named_parameters():
            norm = parameter.grad.norm()
            dist.all_reduce(norm)
            log[name] = norm.item() / 2

    def together() -> None:
        norms = torch.stack(torch._foreach_norm([parameter.grad for parameter in model.parameters()]))
        dist.all_reduce(norms)
        pending.append(norms)
        if len(pending) == 20:
            names = [name for name, _ in model.named_parameters()]
            log.update(zip(names, (torch.stack(pending).mean(0) / 2).tolist(), strict=True))
            pending.clear()

    def step() -> None:
        with autocast():
            loss = functional.cross_entropy(parallel(images), labels)
        loss.backward()
        one_by_one() if variant == "before" else together()
        optimizer.step()
        optimizer.zero_grad()

    return step


def statistics_on_rank_0(variant: str) -> Step:
    """Training of GPT-2; rank 0 writes statistics of the last two blocks' weights into its log."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(use_cache=False, **({} if CUDA else small))
    model = GPT2LMHeadModel(config).to(DEVICE)
    parallel = in_parallel(model)
    optimizer = adamw(model)
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 16))
    every = 1 if variant == "before" else 500
    log: list[str] = []
    number = 0

    def write_statistics() -> None:
        for name, parameter in model.transformer.h[-2:].named_parameters():
            weights = parameter.detach().cpu()
            log.append(f"{number} {name} {weights.mean():.6f} {weights.std():.6f} {weights.abs().max():.6f}")

    def step() -> None:
        nonlocal number
        number += 1
        with autocast():
            loss = parallel(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % every == 0:
            write_statistics()

    return step


def sharded_by_linear(variant: str) -> Step:
    """Fully sharded training of 24 blocks of 1,024."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = decoder(24, 1024, 16_384, size(512, 16))
    options: dict[str, Any] = {"mesh": init_device_mesh(DEVICE.type, (2,))}
    if CUDA:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        parts = [m for m in block.modules() if isinstance(m, nn.Linear)] if variant == "before" else [block]
        for part in parts:
            fully_shard(part, reshard_after_forward=True, **options)
    fully_shard(model, **options)
    optimizer = adamw(model)
    ids = tokens(size(16_384, 64), size(8, 2), size(512, 16))

    def step() -> None:
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tiny_buckets(variant: str) -> Step:
    """Training of a deep, narrow GPT-2 with buckets that hold one weight each."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=size(24, 2), n_embd=size(512, 32), n_head=size(8, 2), vocab_size=size(16_384, 64),
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(DEVICE)
    parallel = in_parallel(model, bucket_cap_mb=0.1) if variant == "before" else in_parallel(model)
    optimizer = adamw(model)
    ids = tokens(config.vocab_size, size(8, 2), size(256, 16))

    def step() -> None:
        with autocast():
            loss = parallel(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def healthy_training(variant: str) -> Step:
    """Training of 12 blocks of 1,024 on 16,384 tokens a rank, under DDP as it comes."""
    model = decoder(12, 1024, 8192, size(512, 16))
    parallel = in_parallel(model)
    optimizer = adamw(model)
    ids = tokens(size(8192, 64), size(32, 2), size(512, 16))

    def step() -> None:
        with parallel.no_sync() if variant == "after" else contextlib.nullcontext():
            with autocast():
                loss = parallel(ids)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def healthy_inference(variant: str) -> Step:
    """Two replicas of ViT-B, four batches of 256 each; the predictions are gathered at the end of the step."""
    import timm

    tiny = {} if CUDA else {"img_size": 32, "depth": 2, "embed_dim": 48}
    model = timm.create_model("vit_base_patch16_224", num_classes=1000, **tiny).to(DEVICE).eval()
    if CUDA:
        model = model.bfloat16()
    shape = (size(256, 2), 3, size(224, 32), size(224, 32))
    batches = [torch.randn(shape, device=DEVICE, dtype=next(model.parameters()).dtype) for _ in range(4)]

    @torch.inference_mode()
    def step() -> None:
        predictions = torch.cat([model(images).argmax(1) for images in batches])
        if variant == "before":
            gathered = [torch.empty_like(predictions) for _ in range(2)]
            dist.all_gather(gathered, predictions)

    return step


PROGRAMS = {
    made.__name__: made
    for made in (
        buckets_by_rank, accumulation_without_no_sync, metrics_one_by_one, statistics_on_rank_0,
        sharded_by_linear, tiny_buckets, healthy_training, healthy_inference,
    )
}  # fmt: skip
two_ranks.PROGRAMS.update(PROGRAMS)  # in each rank too: a spawned process imports the main module

if __name__ == "__main__":
    command_line(CASES)
