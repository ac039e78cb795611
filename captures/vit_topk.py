"""DeiT-B/16 inference to profile, with or without top-k token reduction, eager or replayed from a CUDA graph.

Weights and images are random, fp16. Attention is written out in both variants: the reduction needs its weights, and the
comparison should change one thing only.

NVTX ranges: `warmup` (one a warm-up pass) and `step` at the top; inside an eager pass `patch_embedding`, `block_0` …
`block_11`, each with `attention`, `token_reduction` where there is one, and `mlp`; then `classifier`.

    python vit_topk.py --input-size 224 --batch 1
    python vit_topk.py --input-size 224 --batch 1 --keep 0.1
    python vit_topk.py --input-size 224 --batch 1 --cuda-graph
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from common import CUDA, DEVICE, PARTS, annotate, append_rows, now, parameter_count, recorded, synchronize
from torch import Tensor

from warplens.workloads.launching import as_graph
from warplens.workloads.settings import VIT_SIZES
from warplens.workloads.token_reduction.methods import reductions
from warplens.workloads.vision import VisionTransformer

SIZE = VIT_SIZES["deit-b16"]
REDUCING_BLOCKS = (3, 6, 9)
TIMING_COLUMNS = ("input_size", "batch", "keep", "execution", "step", "step_s", "images_per_s")


@torch.inference_mode()
def main() -> None:
    """Runs one variant and prints its median step time and throughput."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--keep", type=float, help="share of the patch tokens to keep at blocks 3, 6, 9 (default: all)")
    parser.add_argument("--cuda-graph", action="store_true", help="replay the pass from a CUDA graph")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--recorded-warmup", type=int, help="how many of them are in the recorded region (all)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--timings", type=Path, help="CSV file to add the measured steps to")
    options = parser.parse_args()

    torch.manual_seed(0)
    shares = (options.keep,) * len(REDUCING_BLOCKS)
    methods = {} if options.keep is None else reductions("topk", SIZE, options.input_size, REDUCING_BLOCKS, shares)
    dtype = torch.float16 if CUDA else torch.float32
    with DEVICE:
        model = VisionTransformer(SIZE, options.input_size, methods, ranges=PARTS).to(dtype).eval()
    images = torch.randn(options.batch, 3, options.input_size, options.input_size, device=DEVICE, dtype=dtype)

    def forward() -> Tensor:
        return model(images)

    step = as_graph(forward, DEVICE.type) if options.cuda_graph else forward
    recorded_warmup = options.warmup if options.recorded_warmup is None else options.recorded_warmup
    times: list[float] = []
    for _ in range(options.warmup - recorded_warmup):
        step()
    with recorded():
        for _ in range(recorded_warmup):
            with annotate("warmup"):
                step()
                synchronize()
        for _ in range(options.steps):
            with annotate("step"):
                start = now()
                step()
                synchronize()
                times.append(now() - start)

    execution = "graph" if options.cuda_graph else "eager"
    keep = "all" if options.keep is None else f"{options.keep:g}"
    if options.timings:
        rows = [
            (options.input_size, options.batch, keep, execution, index, seconds, options.batch / seconds)
            for index, seconds in enumerate(times)
        ]
        append_rows(options.timings, TIMING_COLUMNS, rows)
    median = sorted(times)[len(times) // 2]
    print(
        f"DeiT-B/16 input {options.input_size} batch {options.batch} keep {keep} {execution}: "
        f"{parameter_count(model):,} parameters, median step {median * 1e3:.3f} ms, "
        f"{options.batch / median:.1f} images/s",
        flush=True,
    )


if __name__ == "__main__":
    main()
