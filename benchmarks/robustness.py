"""Which first causes depend on what should not matter: names, what was recorded beside kernels, the GPU's speed.

    python -m benchmarks.robustness                       # all recordings of data/pairs, all changes
    python -m benchmarks.robustness --half tenth --change older_names no_shapes

Each recording is changed in a way that leaves its cause as it is, and diagnosed again. A first cause that is another
one then is a flip: the rules had gone by a name, or stood at a cliff. Causes that inform count as one ("nothing"), and
so do two names that are right for the same program.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import polars as pl

from benchmarks.pairs import HALVES, SOURCES, Pair, pairs
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import diagnose
from warplens.diagnosis.rules import rule
from warplens.profile import Device, Trace
from warplens.profile.schema import name_categories
from warplens.profile.spelling import split_name
from warplens.profile.trace import TABLES
from warplens.readers import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warplens.analysis.window import Window

_FLASH: Final = "pytorch_flash::flash"
_TRAITS: Final = "Flash_{0}_kernel_traits<64, 128, 64, 4>>(pytorch_flash::Flash_{0}_params)"
_GEMM: Final = r"_s16816gemm_{0}_\1x\2_ldg8_stages_64x3_\3\4"
_LAYOUT: Final = r"(\d+)x(\d+)_.*_([NT])([NT])[NT]$"
#: What other versions of the libraries call the same kernels: cuBLAS before `nvjet`, flash attention in place of
#: cuDNN's, cuDNN 8, PyTorch 2.2 (whose casts and look-ups of rows are general kernels), CUB before CUDA 12.8.
OLDER_NAMES: Final = (
    (rf"^nvjet_(?:sm\d+_)?hsh_{_LAYOUT}", f"ampere_fp16{_GEMM.format('fp16')}"),
    (rf"^nvjet_(?:sm\d+_)?\w+?_{_LAYOUT}", f"ampere_bf16{_GEMM.format('bf16')}"),
    (r"^cudnn_generated_\w*_flash_fprop_\w*$", f"void {_FLASH}_fwd_kernel<{_TRAITS.format('fwd')}"),
    (
        r"^cudnn_generated_\w*_flash_bprop_\w*$",
        f"void {_FLASH}_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{_TRAITS.format('bwd')}",
    ),
    (r"^void cudnn::fusion::convert_dq_to_16bits<.*", f"void {_FLASH}_bwd_convert_dq_kernel<{_TRAITS.format('bwd')}"),
    (r"^void cudnn::fusion::compute_dot_do_o.*", f"void {_FLASH}_bwd_dot_do_o_kernel<true, {_TRAITS.format('bwd')}"),
    (
        r"^sm90_xmma_(\w+?)_warpgroupsize\w*$",
        r"sm80_xmma_\1_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn",
    ),
    (r"^void cutlass::Kernel2<cutlass_80_simt_sgemm_(\d+x\d+)_\w+?_([nt]{2})_align\d>.*", r"ampere_sgemm_\1_\2"),
    (r"^sm80_xmma_gemm_f32f32_f32f32_f32_([nt]{2})_n_tilesize(\d+x\d+)x8_\w*$", r"ampere_sgemm_\2_\1"),
    (r"^void cutlass::Kernel2<(\w+)>\(.*", r"void cutlass::Kernel<\1>(\1::Params)"),
    (r"cudnn::engines_precompiled::", "cudnn::ops::"),
    (
        r"vectorized_elementwise_kernel<(?:\(int\))?8, at::native::b?float16_copy_kernel_cuda.*",
        "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::"
        "operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}, "
        "at::detail::Array<char*, 2>, TrivialOffsetCalculator<1>, TrivialOffsetCalculator<1>, "
        "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>>(int)",
    ),
    (
        r"vectorized_gather_kernel<.*",
        "indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>"
        "(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
    ),
    (r"at_cuda_detail::cub::detail::\w+::(Device\w+)", r"at_cuda_detail::cub::\1"),
    (r"radix::policy_hub<", "DeviceRadixSortPolicy<"),
    (r"std::array<char ?\*, (?:\(unsigned long\))?(\d+)(?:ul)?>", r"at::detail::Array<char*, \1>"),
    (r"\((?:int|bool|unsigned int|unsigned long)\)(-?\d+)", r"\1"),
)

#: GPUs whose data sheets are known: multiprocessors and compute capability.
GPUS: Final = {
    "A100": Device(0, "NVIDIA A100-SXM4-80GB", compute_capability=(8, 0), sm_count=108),
    "L4": Device(0, "NVIDIA L4", compute_capability=(8, 9), sm_count=58),
    "RTX4090": Device(0, "NVIDIA GeForce RTX 4090", compute_capability=(8, 9), sm_count=128),
    "H100": Device(0, "NVIDIA H100 80GB HBM3", compute_capability=(9, 0), sm_count=132),
    "B200": Device(0, "NVIDIA B200", compute_capability=(10, 0), sm_count=148),
}


def renamed(trace: Trace) -> Trace:
    """Renames kernels to the names of older library versions."""
    known = name_categories(trace.kernels["full_name"]).to_list()
    texts = [reduce(lambda text, names: re.sub(*names, text), OLDER_NAMES, name) for name in known]
    short = [split_name(text).function.rpartition("::")[2] or text for text in texts]
    full = trace.kernels["full_name"].cast(pl.String)
    columns = [
        full.replace_strict(known, names, return_dtype=pl.String).cast(pl.Enum(sorted(set(names)))).alias(column)
        for column, names in (("full_name", texts), ("name", short))
    ]
    return replace(trace, kernels=trace.kernels.with_columns(columns))


def without_ranges(trace: Trace) -> Trace:
    """Removes annotations of steps and phases; recorded operators stay."""
    ranges = trace.ranges.with_row_index("row").filter(pl.col("kind").cast(pl.String) == "cpu-op")
    place = pl.DataFrame({"old": ranges["row"].cast(pl.Int64), "new": pl.Series(range(ranges.height), dtype=pl.Int64)})

    def moved(rows: pl.Series) -> pl.Series:
        return rows.to_frame("old").join(place, on="old", how="left", maintain_order="left")["new"].alias(rows.name)

    return replace(
        trace,
        ranges=ranges.with_columns(moved(ranges["parent"])).drop("row"),
        operators=trace.operators.with_columns(moved(trace.operators["range"])),
        autograd_links=TABLES["autograd_links"].empty(),
    )


def without_shapes(trace: Trace) -> Trace:
    """Removes shapes, types and values of the operators' inputs."""
    input_columns = [name for name in trace.operators.columns if name.startswith(("input_", "concrete_"))]
    empty = [pl.lit(None, trace.operators.schema[name]).alias(name) for name in input_columns]
    return replace(trace, operators=trace.operators.with_columns(empty))


def without_frames(trace: Trace) -> Trace:
    """Removes Python frames."""
    return replace(trace, python_functions=TABLES["python_functions"].empty())


def scaled(factor: float, trace: Trace) -> Trace:
    """Scales all times of host and GPU by this factor."""
    tables = {
        name: getattr(trace, name).with_columns((pl.col("^.*_ns$") * factor).round().cast(pl.Int64)) for name in TABLES
    }
    begin, end = trace.capture.window_ns
    return replace(
        trace, **tables, capture=replace(trace.capture, window_ns=(round(begin * factor), round(end * factor)))
    )


def on(device: Device, trace: Trace) -> Trace:
    """Replaces the GPU by another model."""
    return replace(trace, capture=replace(trace.capture, devices=(device,)))


#: What each recording is changed by.
CHANGES: Final[dict[str, Callable[[Trace], Trace]]] = {
    "older_names": renamed,
    "no_ranges": without_ranges,
    "no_shapes": without_shapes,
    "no_frames": without_frames,
    "two_steps": lambda trace: trace,
    **{f"times_{factor}": partial(scaled, factor) for factor in (0.5, 2.0, 5.0)},
    **{f"on_{name}": partial(on, device) for name, device in GPUS.items()},
}


def first_steps(window: Window, count: int) -> Window:
    """The window limited to its first steps."""
    steps = window.steps[:count]
    return replace(window, start_ns=steps[0].start_ns, end_ns=steps[-1].end_ns, steps=steps) if steps else window


def first_cause(pair: Pair, trace: Trace, steps: int | None = None) -> str:
    """The first cause, with all accepted causes mapped to the habit, and `nothing` for one that only informs."""
    timeline = Timeline(trace)
    window = timeline.window() if steps is None else first_steps(timeline.window(), steps)
    found = diagnose(timeline, window)
    if found.verdict in pair.accepted:
        return pair.habit
    return "nothing" if found.findings[0].severity == "info" or rule(found.verdict).describes else found.verdict


def flips(pair: Pair, source: str, changes: list[str]) -> Iterator[tuple[str, str, str]]:
    """(change, first cause before, first cause after); changes that do not apply to this recording are left out."""
    path = pair.path(source)
    if path is None:
        return
    trace = read(path)
    before = first_cause(pair, trace)
    for name in changes:
        if name == "no_shapes" and not trace.operators.height:
            continue
        if name == "no_frames" and not trace.python_functions.height:
            continue
        yield name, before, first_cause(pair, CHANGES[name](trace), 2 if name == "two_steps" else None)


def main() -> int:
    """Prints each changed first cause, and the number of them for each change of the recording."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--half", choices=HALVES, nargs="*")
    parser.add_argument("--name", nargs="*")
    parser.add_argument("--change", choices=CHANGES, nargs="*", default=list(CHANGES))
    parser.add_argument("--source", choices=SOURCES, nargs="*", default=list(SOURCES))
    options = parser.parse_args()
    counts = {name: [0, 0] for name in options.change}
    for pair in pairs():
        if (options.half and pair.half not in options.half) or (options.name and pair.name not in options.name):
            continue
        for source in options.source:
            for name, before, after in flips(pair, source, options.change):
                counts[name][0] += before != after
                counts[name][1] += 1
                if before != after:
                    right = {before == pair.habit: "lost", after == pair.habit: "found"}.get(True, "other")
                    sys.stdout.write(f"{name} | {pair.name} | {source} | {pair.habit} | {before} → {after} | {right}\n")
                    sys.stdout.flush()
    sys.stdout.write("| change | flips | of |\n|---|---:|---:|\n")
    for name, (flipped, total) in counts.items():
        sys.stdout.write(f"| {name} | {flipped} | {total} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
