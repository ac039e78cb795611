"""Programs with `nn.DataParallel` on two GPUs, timed beside one GPU alone and beside DistributedDataParallel.

`MODULE=data_parallel.py captures/two_ranks.sh OUT` runs all of them. By hand: `python captures/data_parallel.py time
PROGRAM OUT` times DistributedDataParallel in processes of its own, then the other ways in turn, and records `before`
with torch.profiler; `nsys profile … python captures/data_parallel.py nsys PROGRAM OUT` runs a few steps of `before`;
`list` names the programs. Without GPUs, they are tried, tiny, on the CPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
import transformers
from torch import Tensor, nn
from two_gpus import CUDA, ROUNDS, WARMUP, Step, a_round, measured, run_under_nsys, size, synchronize, timed

#: DataParallel on two GPUs; the whole batch on one; half of the batch in each of two processes.
BEFORE, ONE, DDP = "before", "one", "ddp"


def device() -> torch.device:
    """The first GPU of the process."""
    return torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")


def parallel(model: nn.Module, way: str) -> nn.Module:
    """The model as this way runs it."""
    if way == DDP:
        return nn.parallel.DistributedDataParallel(model)
    return nn.DataParallel(model) if way == BEFORE and CUDA else model


def share(batch: int, way: str) -> int:
    """How much of the batch a process gets."""
    return batch // 2 if way == DDP else batch


def training(model: nn.Module, way: str, loss_of: Callable[[nn.Module], Tensor]) -> Step:
    """Steps of AdamW in mixed precision."""
    shared = parallel(model.train(), way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

    def step() -> None:
        with torch.autocast(device().type, torch.bfloat16):
            loss = loss_of(shared)
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def images_trained(way: str) -> Step:
    """A ResNet-50 (channels_last) learns from 512 images of 224²."""
    model = torchvision.models.resnet50(num_classes=1000).to(device(), memory_format=torch.channels_last)
    batch, side = share(size(512, 4), way), size(224, 64)
    x = torch.randn(batch, 3, side, side, device=device()).contiguous(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device=device())
    return training(model, way, lambda shared: nn.functional.cross_entropy(shared(x), y))


def texts_trained(way: str) -> Step:
    """A GPT-2 (small) learns from 32 texts of 1,024 tokens; the loss is worked out on each GPU."""
    config = transformers.GPT2Config(n_layer=size(12, 2), n_embd=size(768, 64), n_head=size(12, 2), use_cache=False)
    model = transformers.GPT2LMHeadModel(config).to(device())
    ids = torch.randint(50_000, (share(size(32, 4), way), size(1024, 16)), device=device())
    return training(model, way, lambda shared: shared(input_ids=ids, labels=ids, return_dict=False)[0])


def classifier_tuned(way: str) -> Step:
    """A BERT (base) is fine-tuned on 64 short texts of 128 tokens: launches set the pace on one GPU, too."""
    config = transformers.BertConfig(num_hidden_layers=size(12, 2), num_labels=4)
    model = transformers.BertForSequenceClassification(config).to(device())
    batch, length = share(size(64, 4), way), size(128, 16)
    ids = torch.randint(30_000, (batch, length), device=device())
    y = torch.randint(4, (batch,), device=device())
    return training(
        model, way, lambda shared: nn.functional.cross_entropy(shared(input_ids=ids, return_dict=False)[0], y)
    )


def images_embedded(way: str) -> Step:
    """A ViT-L/16 (bf16) embeds 512 images of 224² without gradients."""
    make = torchvision.models.vit_l_16 if CUDA else torchvision.models.vit_b_16
    model = make(weights=None).to(device(), torch.bfloat16 if CUDA else torch.float32).eval()
    shared = model if way == DDP else parallel(model, way)
    x = torch.randn(share(size(512, 2), way), 3, 224, 224, device=device(), dtype=next(model.parameters()).dtype)

    @torch.inference_mode()
    def step() -> Tensor:
        return shared(x).argmax(1)

    return step


PROGRAMS = {each.__name__: each for each in (images_trained, texts_trained, classifier_tuned, images_embedded)}


def prepared(name: str, way: str) -> Step:
    """The program's step, after some steps that do not count."""
    torch.manual_seed(0)
    step = PROGRAMS[name](way)
    for _ in range(WARMUP):
        step()
    synchronize()
    return step


def rank(number: int, name: str, results: Any) -> None:
    """Times DistributedDataParallel on one of two ranks."""
    if CUDA:
        torch.cuda.set_device(number)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl" if CUDA else "gloo", rank=number, world_size=2)
    step = prepared(name, DDP)
    samples = []
    for _ in range(ROUNDS):
        dist.barrier()
        samples.append(a_round(step))
    if number == 0:
        results.put(samples)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Times a program and records it with torch.profiler, or runs the steps that nsys records."""
    if sys.argv[1] == "list":
        print(json.dumps(list(PROGRAMS)))
        return
    how, name, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if how == "nsys":
        run_under_nsys(prepared(name, BEFORE))
        return
    context = mp.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=rank, args=(number, name, results)) for number in range(2)]
    for process in ranks:
        process.start()
    samples = {DDP: results.get(timeout=60)}
    for process in ranks:
        process.join()
    steps = {way: prepared(name, way) for way in (BEFORE, ONE)}
    measured(name, samples | timed(steps), steps[BEFORE], out)


if __name__ == "__main__":
    main()
