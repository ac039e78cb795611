"""Records what `torch.utils.flop_counter` counts, beside what the profiler records of the same operators.

    python tests/analysis/work/record_flop_counter.py > tests/analysis/work/data/flop_counter.json

Needs PyTorch; no GPU: the programs run on the CPU, the attention backends of GPUs on the device `meta`. Every entry is
one operator: its name and inputs as `torch.profiler` records them, and the FLOPs that the counter adds when it runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

ATEN = torch.ops.aten


def recorded(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """The operators of a program as a Chrome trace holds them, in order of their begin."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted((event for event in events if event.get("cat") == "cpu_op"), key=lambda event: event["ts"])


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """FLOPs by operator, in all."""
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}


def programs() -> Iterator[tuple[str, Callable[[], Any], str]]:
    """Title, program, and the operator of it whose entries are kept."""
    random = torch.randn
    yield "mm", lambda: random(5, 7) @ random(7, 11), "aten::mm"
    yield "addmm", lambda: torch.addmm(random(11), random(5, 7), random(7, 11)), "aten::addmm"
    yield "bmm", lambda: torch.bmm(random(3, 5, 7), random(3, 7, 11)), "aten::bmm"
    yield "baddbmm", lambda: torch.baddbmm(random(3, 5, 11), random(3, 5, 7), random(3, 7, 11)), "aten::baddbmm"
    yield "linear of rank 3", lambda: functional.linear(random(2, 3, 7), random(11, 7), random(11)), "aten::linear"
    yield "matmul with a broadcast batch", lambda: random(2, 1, 5, 7) @ random(4, 7, 11), "aten::matmul"
    yield "matmul of four dimensions", lambda: random(2, 4, 5, 7) @ random(2, 4, 7, 11), "aten::matmul"
    yield "matmul with one matrix", lambda: random(2, 4, 5, 7) @ random(7, 11), "aten::matmul"
    yield "scaled fp8 product", scaled_product, "aten::_scaled_mm"
    for title, convolve in convolutions():
        yield title, convolve, "aten::convolution"
        yield f"{title}, backward", gradient_of(convolve), "aten::convolution_backward"
    yield from attention()


def scaled_product() -> Any:
    left = torch.empty(32, 64, dtype=torch.float8_e4m3fn, device="meta")
    right = torch.empty(48, 64, dtype=torch.float8_e4m3fn, device="meta").t()
    scale = torch.empty((), device="meta")
    return ATEN._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)


def convolutions() -> Iterator[tuple[str, Callable[..., Any]]]:
    def inputs(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, requires_grad=True)

    yield "conv1d", lambda: functional.conv1d(inputs(2, 3, 20), inputs(8, 3, 5), stride=2, padding=1)
    yield "conv2d of patches", lambda: functional.conv2d(inputs(2, 3, 32, 32), inputs(24, 3, 8, 8), stride=8)
    yield (
        "conv2d, dilated",
        lambda: functional.conv2d(
            inputs(2, 4, 19, 23), inputs(6, 4, 3, 5), inputs(6), stride=(1, 2), padding=(2, 1), dilation=(2, 1)
        ),
    )
    yield "conv3d", lambda: functional.conv3d(inputs(1, 2, 6, 7, 8), inputs(4, 2, 3, 3, 3), padding=1)
    yield (
        "conv2d, transposed",
        lambda: functional.conv_transpose2d(
            inputs(2, 6, 5, 7), inputs(6, 4, 3, 3), stride=2, padding=1, output_padding=1
        ),
    )
    yield "conv2d of groups", lambda: functional.conv2d(inputs(2, 8, 12, 12), inputs(16, 2, 3, 3), groups=4)


def gradient_of(convolve: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: convolve().sum().backward()


def attention() -> Iterator[tuple[str, Callable[[], Any], str]]:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta")

    query, key, value = tensor(2, 8, 33, 64), tensor(2, 8, 65, 64), tensor(2, 8, 65, 64)
    few = tensor(2, 2, 33, 64)
    whole = tensor(2, 8, 33, 64)
    flash, efficient, cudnn = (
        ATEN._scaled_dot_product_flash_attention,
        ATEN._scaled_dot_product_efficient_attention,
        ATEN._scaled_dot_product_cudnn_attention,
    )
    name = "aten::_scaled_dot_product_"
    yield "flash", lambda: flash(query, key, value), f"{name}flash_attention"
    yield "flash, grouped queries", lambda: flash(whole, few, few), f"{name}flash_attention"
    yield "flash, causal", lambda: flash(whole, whole, whole, 0.0, True), f"{name}flash_attention"
    yield "efficient", lambda: efficient(query, key, value, None, True), f"{name}efficient_attention"
    yield "cuDNN", lambda: cudnn(query, key, value, None, True), f"{name}cudnn_attention"
    for causal in (False, True):
        yield (
            f"flash, backward, causal {causal}",
            lambda causal=causal: backward_of_flash(tensor, causal=causal),
            f"{name}flash_attention_backward",
        )
    yield "efficient, backward", lambda: backward_of_efficient(tensor), f"{name}efficient_attention_backward"


def backward_of_flash(tensor: Callable[..., torch.Tensor], *, causal: bool) -> Any:
    whole = tensor(2, 8, 33, 64)
    lse = torch.empty(2, 8, 33, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta")
    return ATEN._scaled_dot_product_flash_attention_backward(
        whole, whole, whole, whole, whole, lse, None, None, 33, 33, 0.0, causal, seed, seed
    )


def backward_of_efficient(tensor: Callable[..., torch.Tensor]) -> Any:
    query, key = tensor(2, 8, 33, 64), tensor(2, 8, 65, 64)
    lse = torch.empty(2, 8, 33, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta")
    return ATEN._scaled_dot_product_efficient_attention_backward(
        query, query, key, key, None, query, lse, seed, seed, 0.0, [True, True, True, False]
    )


def entries() -> list[dict[str, Any]]:
    """One entry a program: the operator's name, its recorded inputs and its FLOPs."""
    torch.manual_seed(0)
    found = []
    for title, run, operator in programs():
        event = next(event for event in recorded(run) if event["name"] == operator)
        flops = counted(run)
        inputs = event["args"]
        found.append(
            {
                "title": title,
                "name": operator,
                "shapes": inputs["Input Dims"],
                "types": inputs["Input type"],
                "strides": inputs.get("Input Strides"),
                "values": inputs.get("Concrete Inputs"),
                # matmul and linear are made of other operators, whose FLOPs together are theirs.
                "flops": flops.get(operator.replace("aten::", "aten."), sum(flops.values())),
            }
        )
    return found


def main() -> None:
    lines = ",\n".join(f" {json.dumps(entry)}" for entry in entries())
    sys.stdout.write(f'{{"torch": {json.dumps(torch.__version__)}, "operators": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
