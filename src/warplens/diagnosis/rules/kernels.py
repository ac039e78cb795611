"""What the GPU is busy with: traffic, products, formats, small grids, the optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import number
from warplens.analysis.kernel_names import PRODUCTS
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.evidence import is_unfused, optimizer_work
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import PASSES, Confidence, Finding, Remedy, about, ceiling, percent, times
from warplens.diagnosis.pace import Gain
from warplens.diagnosis.rule import (
    GAIN,
    GPU_BUSY_SHARE,
    IDLE_NS,
    LAUNCHES_PER_STEP,
    Limit,
    Rule,
    ahead_without,
    remembered,
)
from warplens.diagnosis.structure import passes_of_step
from warplens.patterns import lazy_pattern
from warplens.profile import Device
from warplens.profile.peaks import peaks_of
from warplens.profile.schema import Bools, Float64s

#: Of those, such as must have seen all numbers of a row before they can go on: a fused pass ends there.
_ENDS_PASS: Final = ("reduction", "normalization", "softmax")

#: Formats of operands that have narrower ones on tensor cores beside them.
_WIDE: Final = ("fp32",)

#: A product in fp32 that vector units carry out, as its name says.
OFF_TENSOR_CORES: Final = (
    pl.col("label").is_in(PRODUCTS)
    & pl.col("precision").is_in(_WIDE)
    & (~pl.col("tensor_cores") | (pl.col("label") == "attention"))
    & ~pl.col("vector_product")
).fill_null(value=False)

#: What a program in fp32 can change to; each keeps its range of numbers or has scaling to make up for it.
_NARROWER: Final = ("tf32", "bf16", "fp16")

#: Every GPU with tensor cores has at least twice the rate on them.
_LEAST_FACTOR: Final = 2.0


def moves_data(facts: Facts) -> pl.Series:
    """Which pieces of work are limited by memory traffic: measured, or inferred from category, length and grid."""
    limits = facts.thresholds
    long = (pl.col("end_ns") - pl.col("start_ns")) >= limits.bandwidth_kernel_ns
    wide = pl.col("fill_share").fill_null(1.0) >= 1.0
    inferred = pl.col("label").is_in(PASSES) & long & wide
    measured = (pl.col("bound") == "memory") & (pl.col("bound_unit") == "dram")
    known = pl.col("bound").is_not_null()
    return facts.work.select(pl.when(known).then(measured).otherwise(inferred).fill_null(value=False)).to_series()


def _fusible(facts: Facts) -> Float64s:
    """1 for every kernel of a chain but the longest: a single fused pass would still take about as long as that one.

    A chain is an unbroken sequence of kernels of one stream and step that move data. A reduction ends it, for what
    follows needs all of its result.
    """
    work = facts.work
    saved = np.zeros(work.height)
    moving = moves_data(facts).to_numpy()
    if not moving.any():
        return saved
    steps = np.array([step.start_ns for step in facts.window.steps], dtype=np.int64)
    starts = work["start_ns"].to_numpy()
    lane = work["device"].to_numpy().astype(np.int64) << 32 | work["stream"].to_numpy()
    order = (
        np.lexsort((starts, lane))
        if work["stream"].n_unique() > 1 or work["device"].n_unique() > 1
        else np.arange(len(starts))
    )
    step = np.searchsorted(steps, starts, side="right")[order]
    lane, chained = lane[order], moving[order]
    closes = work["label"].is_in(_ENDS_PASS).to_numpy()[order]
    breaks = (lane[1:] != lane[:-1]) | (step[1:] != step[:-1]) | (chained[1:] != chained[:-1]) | closes[:-1]
    firsts = np.r_[0, np.flatnonzero(breaks) + 1]
    length = (work["end_ns"].to_numpy() - starts)[order]
    longest = np.maximum.reduceat(length, firsts)
    run = np.zeros(len(order), dtype=np.int64)
    run[firsts[1:]] = 1
    run = np.cumsum(run)
    is_longest = length == longest[run]
    # Of several that are equally long, the first stays.
    places = np.flatnonzero(is_longest)
    is_longest[places[1:][run[places[1:]] == run[places[:-1]]]] = False
    saved[order] = chained & ~is_longest
    return saved


class MemoryBandwidth(Rule):
    """Kernels at the memory's roof (measured), or of kinds that hardly compute (inferred), on a busy GPU.

    What can be saved is what a chain of them costs beyond one pass. Where they do not dominate, that only informs.
    """

    id = "memory-bandwidth"
    question = "Does the GPU spend its time moving data rather than computing?"
    limiter = "kernels that move data rather than compute"
    cause = "memory traffic of kernels"
    raised_when = "it costs 2 %. Informational unless such kernels take two thirds of the time"
    claimed = (
        "all but the longest kernel of every unbroken chain of kernels that move data: what one fused pass could save"
    )
    headline = "Limited by memory traffic: fusing chains of kernels into single passes could save {share} of the time"
    evidence: ClassVar = {
        "memory_kernels_ns": "kernels that move data",
        "memory_kernels_share": "of the window",
        "fusible_ns": "what fusing chains of them could save",
        **GPU_BUSY_SHARE,
        "measured_of_kernel_time_share": "of the kernel time, with counters",
        "memory_roof_median_share": "how close those kernels are to the memory roof",
    }
    refutation = (
        "Collect counters for the largest of them (ncu --set roofline -k NAME, then warplens diagnose --counters): "
        "if they are far below the memory roof, they wait for something else."
    )
    thresholds = ("bandwidth_share", "bandwidth_kernel_ns", "counters_share")
    least_products_share = Limit(0.05, "A program without matrix products is one that moves data.")

    def claim(self, facts: Facts) -> Float64s | None:
        """Of chains of kernels that move data, all but the longest; between products that is `unfused-chain`'s."""
        products = facts.own_ns(pl.col("label").is_in(PRODUCTS))
        inferred = products < self.least_products_share * facts.wall_ns
        measured = facts.work["bound"].is_not_null().to_numpy()
        return np.where(measured | inferred, _fusible(facts), 0.0) if inferred or measured.any() else None

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        moving = moves_data(facts)
        time = int(facts.work["own_ns"].filter(moving).sum())
        share = time / facts.wall_ns
        measured_ns = facts.own_ns(pl.col("bound").is_not_null())
        kernels_ns = facts.own_ns(pl.col("kind") == "kernel")
        measured = measured_ns >= facts.thresholds.counters_share * max(kernels_ns, 1)
        dominates = share >= facts.thresholds.bandwidth_share
        confidence: Confidence = "high" if measured else "medium" if dominates else "low"
        shares = facts.work["bound_share"].filter(moving).drop_nulls()
        return self.raised(
            facts,
            claims.busy_ns(self.id),
            title="The GPU is busy with kernels that move data through memory rather than compute"
            + ("" if measured else " (inferred from their kind)"),
            confidence=confidence,
            evidence={
                "memory_kernels_ns": time,
                "memory_kernels_share": share,
                "fusible_ns": claims.busy_ns(self.id),
                "gpu_busy_share": facts.busy_share,
                "measured_of_kernel_time_share": measured_ns / kernels_ns if kernels_ns and measured_ns else None,
                "memory_roof_median_share": number(shares.median()),
            },
            where=kernel_names(facts, facts.work["own_ns"] * moving),
            remedies=(
                Remedy(
                    "Fuse chains of elementwise work",
                    "model = torch.compile(model)\n"
                    "# or fused operators: F.scaled_dot_product_attention, F.rms_norm, F.layer_norm,\n"
                    "# F.gelu(x, approximate='tanh'), F.cross_entropy",
                    f"{GAIN}: one pass over the data instead of several",
                ),
                Remedy(
                    "Move fewer bytes",
                    "with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(x)\n"
                    "# in-place operations; no .contiguous() or .float() that nothing needs",
                    "half of these kernels' time with 16-bit instead of 32-bit numbers",
                ),
            ),
            on_gpu=True,
            informs=not dominates,
            # Where steps may be parts of one, chains go on behind their ends.
            bound_known=not facts.window.steps or facts.timeline.steps.is_sure,
            # What one fused pass still moves may be half as wide.
            bound_ns=claims.busy_ns(self.id) + (time - min(claims.busy_ns(self.id), time)) // 2,
        )


#: Kinds of work that are products of matrices, as people call them.
_PRODUCTS: Final = dict(zip(PRODUCTS, ("matrix products", "attention", "convolutions"), strict=True))
#: A smaller share of products is not worth a word.
_WORTH_SAYING: Final = 0.01


def busy_with(facts: Facts, beside: str = "") -> str:
    """How much of the time the GPU is busy, and with what, where products have most of it: a clause behind `is`.

    Args:
        facts: the window.
        beside: what to say of the share.
    """
    busy = f"busy for {percent(facts.busy_share)} of the time{beside}"
    spent = {title: facts.own_ns(pl.col("label") == label) for label, title in _PRODUCTS.items()}
    products = sum(spent.values())
    if products < facts.thresholds.dominant_share * facts.wall_ns:
        return busy
    *others, last = [title for title, own in spent.items() if own > _WORTH_SAYING * products]
    named = f"{', '.join(others)} and {last}" if others else last
    return f"{busy}, {percent(products / facts.busy_ns)} of it with {named}"


class TensorCompute(Rule):
    """Products on tensor cores that take most of a busy GPU's time. It informs: such a program does what it is for."""

    id = "tensor-compute"
    question = "Does the GPU spend its time on matrix products?"
    limiter = "matrix products"
    cause = "matrix products"
    raised_when = "they take half of the time of a GPU that is busy for 90 %. Informational"
    claimed = "nothing: this is the work that the program exists for"
    evidence: ClassVar = {
        "products_ns": "matrix products",
        "products_share": "of the window",
        "on_tensor_cores_share": "of the products whose name tells, where that is most of them",
        **GPU_BUSY_SHARE,
        "at_tensor_roof_share": "of the counted products' time, at 60 % or more of the tensor pipe's peak",
    }
    refutation = (
        "Compare the rate of the products with the GPU's peak (2·M·N·K over their time; ncu --section "
        "ComputeWorkloadAnalysis): if it is far below, their shapes or operands are the limit."
    )
    thresholds = ("busy_share", "dominant_share", "roof_share")
    describes = True

    def told(self, facts: Facts, finding: Finding) -> str:
        """Such a program does what it is for."""
        return f"Nothing to fix: the GPU is {busy_with(facts)}, near the peak of its tensor cores."

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        limits = facts.thresholds
        is_product = pl.col("label").is_in(PRODUCTS) & pl.col("tensor_cores").fill_null(value=True)
        time = facts.own_ns(is_product)
        if facts.busy_share < limits.busy_share or time < limits.dominant_share * facts.wall_ns:
            return None
        known = facts.own_ns(pl.col("label").is_in(PRODUCTS) & pl.col("tensor_cores").is_not_null())
        on_cores = facts.own_ns(is_product & pl.col("tensor_cores"))
        pipe = (
            (pl.col("bound") == "compute")
            & (pl.col("bound_unit") == "tensor")
            & (pl.col("bound_share") >= limits.roof_share)
        )
        counted = facts.own_ns(is_product & pl.col("bound").is_not_null())
        at_roof = facts.own_ns(is_product & pipe) if counted else 0
        mine = facts.work.select(is_product.fill_null(value=False)).to_series()
        saved = sum(claims.busy_ns(other) for other in ("small-kernels", "occupancy", "bank-conflicts"))
        near = counted and at_roof > limits.dominant_share * counted
        return self.described(
            title="Matrix products take most of the time of a busy GPU"
            + (", near the peak of its tensor cores" if near else ""),
            confidence="high" if near else "medium",
            gain=ceiling(facts.wall_ns, min(saved, time)),
            evidence={
                "products_ns": time,
                "products_share": time / facts.wall_ns,
                "on_tensor_cores_share": on_cores / known if 2 * known > time else None,
                "gpu_busy_share": facts.busy_share,
                "at_tensor_roof_share": at_roof / counted if counted else None,
            },
            where=kernel_names(facts, facts.work["own_ns"] * mine),
            remedies=(
                Remedy(
                    "Do fewer FLOPs, or use a narrower format",
                    "with transformer_engine.pytorch.fp8_autocast(): y = model(x)\n"
                    "# or torchao.float8, 2:4 sparsity, a smaller model, fewer tokens",
                    "in proportion to the FLOPs, or to the formats' peak rates",
                )
                if _could_be_narrower(facts)
                else Remedy(
                    "Do fewer FLOPs",
                    "# 2:4 sparsity, a smaller model, fewer tokens",
                    "in proportion to the FLOPs",
                ),
                Remedy(
                    "Choose shapes that fill whole tiles",
                    "# dimensions in multiples of 64 (128 from compute capability 9.0 on), the vocabulary too",
                    "up to one partial wave of blocks per product",
                ),
            ),
        )


def _could_be_narrower(facts: Facts) -> bool:
    """Whether the GPU multiplies 8-bit floats, and most of the products' time is not in 8 bits or fewer already."""
    if not any("fp8" in peaks.flops_per_s for peaks in map(peaks_of, facts.devices) if peaks is not None):
        return False
    program = facts.program
    spent = program.own_ns * program.labelled(*PRODUCTS)
    return bool(2 * spent[program.marked("quantized")].sum() < spent.sum())


def tensor_core_factor(device: Device | None, wide: str = "fp32") -> float:
    """How much faster a product can get in narrower formats on this GPU's tensor cores, at most: by its peaks.

    Args:
        device: the GPU.
        wide: what it is in: `fp32` beside the tensor cores, or `fp64-tensor`, which is that of the vector units where
            there are no such tensor cores.
    """
    peaks = peaks_of(device)
    rates = peaks.flops_per_s if peaks is not None else {}
    vector = rates.get(wide) or rates.get("fp64" if wide == "fp64-tensor" else wide)
    if peaks is None or not vector:
        return _LEAST_FACTOR
    narrower = [peaks.flops_per_s[name] for name in _NARROWER if name in peaks.flops_per_s]
    return max([rate / vector for rate in narrower], default=_LEAST_FACTOR)


_NO_DOUBLES: Final = Remedy(
    "Compute in float32 or less",
    "model.float(); x = torch.from_numpy(array).float()  # NumPy's floats are float64\n"
    "torch.set_float32_matmul_precision('high')",
    "half of the traffic, and products on tensor cores in TF32",
)

_TF32: Final = Remedy(
    "Allow TF32",
    "torch.set_float32_matmul_precision('high')\ntorch.backends.cudnn.allow_tf32 = True  # convolutions",
    "products at half the rate of bfloat16; inputs are rounded to 10 mantissa bits; memory traffic stays",
)

#: What to compute in: TF32 and bfloat16 came with compute capability 8.0, fp16 on tensor cores with 7.0.
_NARROWER_REMEDIES: Final = {
    "newer": (
        Remedy(
            "Compute in bfloat16",
            "with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(x)\n"
            "# inference: model.to(torch.bfloat16)\n"
            "# Lightning: Trainer(precision='bf16-mixed')",
            "products on tensor cores, and half the memory traffic between them",
        ),
        _TF32,
    ),
    "older": (
        Remedy(
            "Compute in fp16",
            "with torch.autocast('cuda', dtype=torch.float16): loss = model(x)\n"
            "# in training with torch.amp.GradScaler",
            "products on tensor cores, and half the memory traffic between them",
        ),
    ),
}


def off_tensor_cores(facts: Facts) -> Bools:
    """Products in fp32 on vector units that tensor cores could do; no depthwise convolutions, which have no product.

    Those of a network in float64 as well.
    """
    if not has_tensor_cores(facts):
        return np.zeros(facts.work.height, dtype=np.bool_)
    off: Bools = facts.work.select(OFF_TENSOR_CORES).to_series().to_numpy()
    return (off | _doubles(facts)) & ~facts.program.marked("depthwise")


def _doubles(facts: Facts) -> Bools:
    """Products in float64 of a network, which hardly ever needs it: of what has an optimizer, or softmax or norms.

    Solvers and simulations multiply matrices in float64 because they have to: theirs are left alone.
    """
    work = (facts.whole or facts).work
    doubles = facts.program.having("precision", "fp64")
    if not doubles.any():
        return doubles
    products = facts.program.labelled(*PRODUCTS) & doubles
    of_network = pl.col("label").is_in(["normalization", "softmax"]) & (pl.col("precision") == "fp64")
    of_network = of_network | (pl.col("label") == "optimizer") | (pl.col("phase") == "optimizer")
    is_network = work.select(of_network.any()).item()
    found: Bools = products & bool(is_network)
    return found


def _capability(facts: Facts) -> tuple[int, int]:
    """The least compute capability of the GPUs; that of today's where it is not known."""
    known = [device.compute_capability for device in facts.devices if device.compute_capability is not None]
    return min(known, default=(9, 0))


class Precision(Rule):
    """Products whose names say fp32 and vector units, on a GPU that has tensor cores."""

    id = "precision"
    model = "products"
    question = "Do matrix products use a format that the tensor cores do not support?"
    limiter = "matrix products in a format that bypasses the tensor cores"
    cause = "matrix products off the tensor cores"
    raised_when = "it costs 2 %, and the GPU has tensor cores"
    claimed = (
        "the time that fp32 products on vector units, and float64 products of a program with norms, softmax or an "
        "optimizer, would save at 0.55 of the ratio of the peaks; half of the passes over 32-bit numbers between them "
        "where most products are such, a quarter in training"
    )
    headline = "Limited by matrix products off the tensor cores: TF32 or bfloat16 could save {share} of the time"
    older_headline = "Limited by matrix products off the tensor cores: fp16 could save {share} of the time"
    title = "Matrix products run in fp32, off the tensor cores"
    doubles_title: ClassVar = "A network computes in float64"
    default_title: ClassVar = "Convolutions run in TF32, which is the default, and everything between them in fp32"
    default_headline: ClassVar = (
        "Limited by 32-bit numbers: bfloat16 could save {share} of the time, in convolutions and in what lies between"
    )
    headlines: ClassVar = {default_title: default_headline}
    evidence: ClassVar = {
        "claimed_share": "everything that it claims, of the window",
        "off_tensor_cores_ns": "products off the tensor cores",
        "off_tensor_cores_share": "of the window",
        "of_products_share": "of all products",
        "products_share": "of the window",
        "peak_ratio_factor": "peak of the fastest narrower format over that of fp32, or of float64",
        "tf32_gain_factor": "modelled gain of TF32 alone, where that is a remedy",
        **GPU_BUSY_SHARE,
    }
    refutation = (
        "Run a few steps in the narrower format: if the products do not get faster, memory or their size is the "
        "limit. If the results are no longer accurate enough, the wider format was needed."
    )
    thresholds = ("dominant_share",)
    reached_share = Limit(
        0.55,
        "TF32 has half of the peak of 16 bits; of the latter, tensor cores reach 60 to 70 %, where vector units reach "
        "85 % of theirs, and autocast spends the rest on casts of weights, inputs and gradients.",
    )

    passes_share = Limit(0.5, "Of passes over 32-bit numbers between such products: 16 bits are half of the bytes.")
    trained_passes_share = Limit(
        0.25, "Autocast keeps norms, softmax and losses in 32 bits, and casts: half of that is saved."
    )
    default_share = Limit(
        0.25, "Of the busy time, that of convolutions in TF32: below it, what narrower ones save is lost in casts."
    )
    default_saved_share = Limit(
        0.4, "Convolutions and passes over memory take half of the time in 16 bits; autocast spends a fifth of it."
    )

    def headline_of(self, finding: Finding) -> str:
        """Before compute capability 8.0, tensor cores take fp16 alone."""
        older = finding.remedies[-1:] == _NARROWER_REMEDIES["older"]
        return self.older_headline if older else super().headline_of(finding)

    def claim(self, facts: Facts) -> Float64s | None:
        """Of products on vector units, what the fastest narrower format could save."""
        off, default = off_tensor_cores(facts), self._by_default(facts)
        if not off.any() and not default.any():
            return None
        doubles = _doubles(facts)
        share = np.zeros(len(off))
        for which, wide in ((off & ~doubles, "fp32"), (off & doubles, "fp64-tensor")):
            factor = min((tensor_core_factor(device, wide) for device in facts.devices), default=_LEAST_FACTOR)
            share[which] = 1 - 1 / max(self.reached_share * factor, 1.0)
        share[default] = np.maximum(share[default], self.default_saved_share)
        products = facts.program.labelled(*PRODUCTS)
        if 2 * int(facts.program.own_ns[off].sum()) > int(facts.program.own_ns[products].sum()):
            long = facts.program.having("precision", "fp32", "fp64")
            saved = self.trained_passes_share if facts.trains else self.passes_share
            share[long & facts.program.labelled(*PASSES)] = saved
        return share

    def _without(self, facts: Facts, claims: Claims) -> Gain | None:
        """By 16 bits; at least by TF32, which has half of their rate and leaves the passes as they are."""
        found, tf32 = super()._without(facts, claims), self._by_tf32(facts)
        return found if found is None or tf32 is None else replace(found, low=min(found.low, tf32.low))

    @remembered
    def _by_tf32(self, facts: Facts) -> Gain | None:
        """What TF32 brings, the second remedy; None where the GPU has none, or no product would take it."""
        off = off_tensor_cores(facts)
        if _capability(facts) < (8, 0) or not off.any():
            return None
        factor = min((tensor_core_factor(device) for device in facts.devices), default=_LEAST_FACTOR)
        return facts.replayed(time=np.where(off, 1 - 1 / max(self.reached_share * factor / 2, 1.0), 0.0))

    @remembered
    def _by_default(self, facts: Facts) -> Bools:
        """Convolutions in TF32 of a program without products in 16 bits, and the passes over fp32 between them.

        PyTorch's convolutions use TF32 unless told not to, its products only if told to: where these do, somebody has
        chosen the format.
        """
        program = facts.program
        products = program.labelled(*PRODUCTS)
        tf32 = products & program.having("precision", "tf32")
        narrow = products & program.having("precision", "bf16", "fp16", "fp8")
        plain = tf32 & program.labelled("convolution")
        taken = int(program.own_ns[plain].sum())
        chosen = narrow.any() or 2 * taken < int(program.own_ns[tf32].sum())
        if chosen or taken < self.default_share * facts.busy_ns:
            return np.zeros(facts.work.height, dtype=np.bool_)
        return np.asarray(plain | (program.labelled(*PASSES) & program.having("precision", "fp32")), dtype=np.bool_)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.busy_ns(self.id)
        if not claimed or not has_tensor_cores(facts):
            return None
        products = facts.own_ns(pl.col("label").is_in(PRODUCTS))
        default = self._by_default(facts)
        off = off_tensor_cores(facts)
        by_default = int(facts.program.own_ns[default].sum()) > int(facts.program.own_ns[off].sum())
        wide = int(facts.program.own_ns[off].sum())
        passes = facts.own_ns(pl.col("label").is_in(PASSES))
        newer = _capability(facts) >= (8, 0)
        doubles = _doubles(facts) & off
        mostly = int(facts.program.own_ns[doubles].sum()) > wide / 2
        peak = "fp64-tensor" if mostly else "fp32"
        factor = min((tensor_core_factor(device, peak) for device in facts.devices), default=None)
        tf32 = None if mostly or by_default else self._by_tf32(facts)
        return self.raised(
            facts,
            claimed,
            title=self.doubles_title if mostly else self.default_title if by_default else "",
            confidence="medium"
            if by_default
            else "high"
            if factor is not None and wide > facts.thresholds.dominant_share * products
            else "medium",
            evidence={
                "claimed_share": claimed / facts.wall_ns,
                "off_tensor_cores_ns": wide,
                "off_tensor_cores_share": wide / facts.wall_ns,
                "of_products_share": wide / products if products else None,
                "products_share": products / facts.wall_ns,
                "peak_ratio_factor": factor,
                "tf32_gain_factor": tf32.expected if tf32 is not None else None,
                "gpu_busy_share": facts.busy_share,
            },
            where=kernel_names(facts, claims.of_work(self.id)),
            remedies=(
                *((_NO_DOUBLES,) if mostly else ()),
                *(
                    replace(remedy, expected=f"modelled: {about(tf32.expected)}; {remedy.expected}")
                    if remedy is _TF32 and tf32 is not None
                    else remedy
                    for remedy in _NARROWER_REMEDIES["newer" if newer else "older"][: 1 if by_default else None]
                ),
            ),
            # Passes move two bytes a number where they moved four, or eight.
            bound_ns=int(wide * (1 - 0.75 / (factor or _LEAST_FACTOR)))
            + int((0.8 if mostly else 0.6) * passes)
            + int(0.6 * facts.program.own_ns[default & facts.program.labelled(*PRODUCTS)].sum()),
            on_gpu=True,
            claims=claims,
        )


def has_tensor_cores(facts: Facts) -> bool:
    """Whether no GPU is known to lack them: they came with compute capability 7.0."""
    known = [device.compute_capability for device in facts.devices if device.compute_capability is not None]
    return all(capability >= (7, 0) for capability in known)


#: Threads that a multiprocessor holds at a time, since compute capability 7.0 (8.6 and 8.9 hold three quarters of it).
_THREADS: Final = 2048
#: Numbers of a product that a multiprocessor needs in hand for its tensor cores to work at their rate: 64 × 128.
_TILE: Final = 64 * 128
_TILES: Final = lazy_pattern(r"(?:tilesize|_)(\d+)x(\d+)(?:x\d+)?_")


def filled_share(facts: Facts) -> Float64s:
    """The share of the GPU that each kernel can keep busy, by its blocks; nan where that is not known.

    A short kernel of many small blocks is over before it has moved or multiplied anything to speak of: there it is the
    share of the threads that the GPU holds, and of a product the share of the numbers that its tiles hold.
    """
    program = facts.program
    filled = facts.work["fill_share"].fill_null(float("nan")).to_numpy().copy()
    counts = [device.sm_count for device in facts.devices if device.sm_count]
    lasting = (facts.work["end_ns"] - facts.work["start_ns"]).to_numpy()
    short = lasting < facts.thresholds.bandwidth_kernel_ns
    grids = facts.timeline.trace.kernels["grid_x"]
    if not counts or not short.any() or grids.null_count() == grids.len():
        return filled
    passing = np.flatnonzero(program.labelled(*PASSES) & short)
    filled[passing] = np.fmin(filled[passing], program.threads(passing) / (min(counts) * _THREADS))
    products = np.flatnonzero(program.labelled("gemm") & short)
    products = products[program.blocks(products) <= min(counts)]
    filled[products] *= np.minimum(np.nan_to_num(tiles(facts)[products], nan=_TILE) / _TILE, 1.0)
    return filled


def tiles(facts: Facts) -> Float64s:
    """Numbers of the result that a block of each product makes at a time, by its name; nan where that does not tell."""
    texts = [_TILES.search(text) for text in facts.program.full_names()]
    areas = np.array([float(found[1]) * float(found[2]) if found else np.nan for found in texts] or [np.nan])
    return np.asarray(areas[facts.program.name_codes], dtype=np.float64)


def as_one_batch(passes: int) -> Remedy:
    """For a step of equal passes, each over an input of its own."""
    return Remedy(
        "Run the passes of a step as one batch",
        f"# a step runs {passes} equal passes over different inputs: torch.stack or torch.cat before one call,\n"
        "# encode(inputs, batch_size=n), generate() on padded prompts, a larger micro-batch in place of accumulation",
        GAIN,
    )


#: Where starting the kernels takes longer than running them.
_STARTED_SOONER: Final = Remedy(
    "Make the pauses between the kernels shorter or fewer",
    "with torch.cuda.graph(g): y = model(static_x)  # nodes of a graph start sooner after one another\n"
    "# one kernel instead of several in a row; one stream instead of events between streams\n"
    "# own kernels: programmatic dependent launch (cudaLaunchAttributeProgrammaticStreamSerialization)",
    "a part of these pauses",
)


class SmallKernels(Rule):
    """Time of kernels with fewer blocks than the GPU has multiprocessors, while the GPU is busy."""

    id = "small-kernels"
    question = "Does the GPU spend its time on grids that leave most of it empty?"
    limiter = "grids that cannot fill the GPU"
    cause = (
        "grids that cannot fill the GPU, where the GPU is busy, or starts queued work, for at least 70 % of the time"
    )
    raised_when = "it costs 2 %; a warning from 1.25×"
    claimed = (
        "the share of the GPU that is left empty by kernels with fewer blocks than multiprocessors, and by short "
        "kernels with few threads or small tiles; the same share of the GPU's own pauses before them"
    )
    headline = "Limited by small grids: the multiprocessors that they leave empty cost {share} of the time"
    title = "The GPU is busy with grids that leave most of its multiprocessors empty"
    evidence: ClassVar = {
        "empty_ns": "time lost to multiprocessors that small grids leave empty",
        "starting_ns": "pauses of the GPU before such kernels, although they were queued",
        "small_kernels_share": "time of such kernels, of the window",
        "multiprocessors_reached_share": "blocks over multiprocessors, at most 1, weighted by time",
        "small_kernel_median_ns": "length of such kernels",
        "small_kernels_per_step": "how many there are",
        "passes_per_step": "equal passes over different inputs, which could be one batch",
        **GPU_BUSY_SHARE,
    }
    refutation = "Double the batch: if the step takes twice as long, the grids were large enough."
    thresholds = ("small_kernels_busy_share", "unsure_warning_ceiling")

    def headline_of(self, finding: Finding) -> str:
        """Where starting the kernels takes the most, this and not what they leave empty."""
        if finding.evidence["starting_ns"] > finding.evidence["empty_ns"]:
            return "Limited by short kernels: the GPU takes longer to start them than to run them"
        return self.headline

    def claim(self, facts: Facts) -> Float64s | None:
        """Of small grids, the share of the GPU that they leave empty, or what counters measured of it."""
        empty = self._empty(facts)
        if facts.work["bound"].null_count() == facts.work.height:
            return empty
        measured = pl.when(pl.col("fault") == "small-grid").then(pl.col("fault_share")).fill_null(0.0)
        known = facts.work.select(pl.when(pl.col("bound").is_not_null()).then(measured)).to_series()
        return known.fill_null(pl.Series(empty)).to_numpy()

    @remembered
    def _empty(self, facts: Facts) -> Float64s:
        """The share of the GPU that each kernel leaves empty, less what other kernels fill at the same time."""
        # Between queued kernels the GPU waits for itself: that the kernels are short is what makes it wait.
        if facts.busy_ns + facts.idle("start-latency") < facts.thresholds.small_kernels_busy_share * facts.wall_ns:
            return np.broadcast_to(0.0, facts.work.height)  # takes no room
        program, order = facts.program, facts.program.order
        counted = program.is_kernel & ~program.labelled("communication")
        owned = int(program.own_ns[counted].sum())
        lasting = int((facts.work["end_ns"] - facts.work["start_ns"]).to_numpy()[counted].sum())
        at_once = max(lasting / owned, 1.0) if owned else 1.0
        empty = filled_share(facts)
        np.nan_to_num(empty, copy=False, nan=1.0)
        empty *= at_once
        np.subtract(1, np.clip(empty, 0.0, 1.0, out=empty), out=empty)
        empty[~counted] = 0.0
        # A short fill belongs to the kernel behind it.
        brief = np.flatnonzero(program.in_order(facts.program.having("kind", "memset"))[:-1])
        brief = brief[program.own_ns[order[brief]] < facts.thresholds.bandwidth_kernel_ns]
        empty[order[brief]] = empty[order[brief + 1]]
        return empty

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.busy_ns(self.id)
        if not claimed:
            return None
        mine = np.where(claims.of_work(self.id).to_numpy() > 0, self._empty(facts), 0.0)
        pauses = facts.program.of_gaps(mine) * facts.causes["start-latency"].whole()
        kernels = facts.work.select("own_ns", "fill_share", length=pl.col("end_ns") - pl.col("start_ns")).drop_nulls()
        time = int(kernels["own_ns"].sum())
        small = kernels.filter(pl.col("fill_share") < 1)
        lengths, of_small = small["length"], int(small["own_ns"].sum())
        filled = float((kernels["own_ns"] * kernels["fill_share"]).sum()) / time if time else None
        measured = bool(facts.work["bound"].is_not_null().any())
        starting = int(pauses.sum())
        passes = passes_of_step(facts)
        merged = passes.saved_share(facts, filled_share(facts)) if passes.count > 1 else None
        slow_start = starting > claimed and merged is None
        return self.raised(
            facts,
            claimed + starting,
            confidence="high" if measured else "medium",
            evidence={
                "empty_ns": claimed,
                "starting_ns": starting,
                "small_kernels_share": of_small / facts.wall_ns,
                "multiprocessors_reached_share": filled,
                "small_kernel_median_ns": number(lengths.median()),
                "small_kernels_per_step": lengths.len() / facts.steps,
                "passes_per_step": passes.count if merged is not None else None,
                "gpu_busy_share": facts.busy_share,
            },
            where=kernel_names(facts, claims.pieces(self.id)),
            title="The GPU takes longer to start short kernels than to run them" if slow_start else "",
            remedies=(
                *((_STARTED_SOONER,) if slow_start else ()),
                *((as_one_batch(passes.count),) if merged is not None else ()),
                Remedy(
                    "Put more work into each launch",
                    "# a larger batch, or independent problems stacked: torch.bmm, torch.vmap, torch._foreach_*",
                    f"{GAIN} in throughput: the step hardly gets longer",
                ),
                Remedy(
                    "Split the work into more blocks",
                    "# kernels that reduce long rows: several blocks per row (split-K products, flash-decoding,\n"
                    "# a reduction in two stages)",
                    f"at most {times(ceiling(facts.wall_ns, claimed))}: the pauses stay" if slow_start else GAIN,
                ),
                Remedy(
                    "Run independent kernels concurrently",
                    "with torch.cuda.stream(torch.cuda.Stream()): y = branch(x)  # a branch that others do not need\n"
                    "# or one CUDA graph with parallel branches",
                    "in proportion to how many can run at a time" if slow_start else GAIN,
                ),
            ),
            # More work a launch costs the host no more, either.
            bound_known=False,
            warning=facts.thresholds.unsure_warning_ceiling,
            replayed=None if merged is None else facts.replayed(time=merged, calls=passes.calls(facts)),
            busy_ns=0 if merged is None else passes.removed_ns(facts, merged),
        )


_ON_LISTS: Final = Remedy(
    "Update all tensors at once",
    "torch.optim.AdamW(model.parameters(), foreach=True)\n"
    "# own optimizers: torch._foreach_* functions, or torch.compile(optimizer.step)",
    "a few launches in all instead of several per tensor; memory traffic stays",
)


_FUSED_STEP: Final = Remedy(
    "Use the fused optimizer",
    "torch.optim.AdamW(model.parameters(), fused=True)",
    f"{GAIN}: one pass over the parameters in a few launches",
)

#: Where the optimizer is fused already, and something else goes from tensor to tensor.
_OVER_PARAMETERS: Final = Remedy(
    "Go over all parameters at once",
    "torch._foreach_lerp_(averages, parameters, 1 - decay)  # a moving average of the weights\n"
    "# torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))\n"
    "# torch._foreach_* for norms, clipping, penalties and copies; state_dict() once, not in every step",
    f"{GAIN}: a few launches in all instead of some for each tensor",
)

#: Where parameters are in groups of one or two.
_FEW_GROUPS: Final = Remedy(
    "Put the parameters into few groups",
    "decayed = [p for p in model.parameters() if p.ndim > 1]\n"
    "plain = [p for p in model.parameters() if p.ndim <= 1]\n"
    "torch.optim.AdamW([{'params': decayed}, {'params': plain, 'weight_decay': 0}], fused=True)",
    f"{GAIN}: the launches of two groups in place of one for each tensor",
)


class UnfusedOptimizer(Rule):
    """The launch pauses of the optimizer, and what a fused one saves of its kernels' memory traffic."""

    id = "unfused-optimizer"
    question = "Does the optimizer launch several kernels for each parameter tensor?"
    limiter = "an optimizer that launches kernels for each parameter tensor"
    cause = "an optimizer that updates one tensor at a time"
    raised_when = "it launches 100 kernels per step, more than half of them for a single tensor, and costs 2 %"
    claimed = "launch pauses of the optimizer, and 26/33 of its kernels' time"
    headline = "Limited by the optimizer: updating one tensor at a time costs {share} of the time"
    title = "The optimizer updates one tensor at a time, with several kernels for each"
    loop_title: ClassVar = "A loop over the parameters launches kernels for each tensor, beside a fused optimizer"
    headlines: ClassVar = {
        loop_title: "Limited by a loop over the parameters: going from tensor to tensor costs {share} of the time"
    }
    evidence: ClassVar = {
        "claimed_share": "of the window, what updating one tensor at a time costs",
        "optimizer_share": "time of the optimizer: its work, and the pauses before that work",
        "optimizer_ns_per_step": "time of the optimizer: its work, and the pauses before that work",
        **LAUNCHES_PER_STEP,
        "single_tensor_launches_share": "launches that update a single tensor",
        "parameter_tensors_count": "parameter tensors updated per step, where the kernels show it",
        "launches_per_tensor_factor": "launches per tensor",
        "groups_per_step": "groups of parameters, each with launches of its own",
        **IDLE_NS,
        "saved_kernel_ns": "kernel time that a fused optimizer saves",
    }
    refutation = (
        "Skip optimizer.step() in a test run: if the step does not get faster by the optimizer's share, "
        "something else is the limit."
    )
    groups_title: ClassVar = "The optimizer goes from group to group of parameters, with launches for each"
    precedence = "structure"
    thresholds = ("optimizer_launches_per_step", "optimizer_single_tensor_share", "optimizer_saved_share")
    #: One launch updates many tensors: what is left of these passes hardly costs the host anything.
    unlaunched_share = 0.5

    lead_share = Limit(
        0.5,
        "The forward and backward passes keep their own pauses; work queued ahead in the optimizer hides part of them.",
    )
    lists_saved_share = Limit(
        0.6,
        "AdamW with foreach makes about 20 memory accesses per parameter, fused AdamW 7; short lists are not "
        "memory-bound.",
    )
    least_lists = Limit(8, "Gradient clipping and loss scaling take a few foreach operations, AdamW a dozen.")
    least_operations = Limit(5, "A foreach optimizer runs several operations, clipping two or three.")
    least_groups = Limit(
        8, "With and without weight decay, in two formats, make four groups; each rate of learning one more."
    )

    def makes_launches(self, finding: Finding) -> bool:
        """Several for each tensor."""
        return True

    def claim(self, facts: Facts) -> Float64s | None:
        """Of the optimizer's kernels, the accesses that a fused one does not make."""
        in_optimizer = facts.program.having("phase", "optimizer")
        if is_unfused(facts):
            mine = in_optimizer & facts.program.having("label", *PASSES)
            return np.where(mine, facts.thresholds.optimizer_saved_share, 0.0)
        lists = self._lists(facts)
        return np.where(lists, float(self.lists_saved_share), 0.0) if lists.any() else None

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """Of all pauses, as much as a host that did not go from tensor to tensor would be ahead by."""
        if facts.phase is not None or not is_unfused(facts):
            return None
        ahead = ahead_without(facts, facts.program.having("phase", "optimizer"))
        return np.full(facts.gaps.height, self.lead_share * ahead) if ahead else None

    def _lists(self, facts: Facts) -> Bools:
        """Kernels on lists of tensors, each with one operation, if an optimizer is written with many of them."""
        program = facts.program
        mine = program.marked("foreach")
        if not mine.any():
            return mine
        mine = mine & ~program.marked("fused-optimizer")
        many = mine.sum() >= self.least_lists * facts.steps
        names = len(set(program.launched_as(np.flatnonzero(mine)).tolist()))
        return mine if many and names >= self.least_operations else np.zeros_like(mine)

    def _groups(self, facts: Facts, lists: Bools) -> float:
        """How often the optimizer of a step begins each of its operations anew: once for each group of parameters."""
        program = facts.program
        names = program.name_codes[program.order[program.in_order(lists)]]
        return (1 + int((np.diff(names) != 0).sum())) / len(np.unique(names)) / facts.steps if len(names) else 0.0

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        lists = self._lists(facts)
        foreach = not is_unfused(facts)
        looped = not foreach and bool(facts.program.marked("fused-optimizer").any())
        if foreach and not lists.any():
            return None
        groups = self._groups(facts, lists) if foreach else 0.0
        many = groups >= self.least_groups
        gone = np.where(lists, 1 - 1 / max(groups, 1.0), 0.0)
        saved = np.where(lists, float(self.lists_saved_share), 0.0)
        found = optimizer_work(facts)
        claimed = claims.total_ns(self.id)
        mine = facts.work["phase"] == "optimizer"
        # Where there is none, nothing tells which work of a step is the optimizer's.
        wall = facts.wall_of_phase("optimizer") if mine.any() else None
        return self.raised(
            facts,
            claimed,
            title=self.groups_title
            if many
            else "The optimizer runs its operations over all tensors one after the other (foreach)"
            if foreach
            else self.loop_title
            if looped
            else "",
            confidence="high" if facts.sure else "medium",
            evidence={
                "claimed_share": claims.seen_ns(self.id) / facts.wall_ns,
                "optimizer_share": wall / facts.wall_ns if wall is not None else None,
                "optimizer_ns_per_step": wall / facts.steps if wall is not None else None,
                "launches_per_step": (int(lists.sum()) if foreach else found.launches) / facts.steps,
                "single_tensor_launches_share": found.single_tensor / found.launches if found.launches else None,
                "parameter_tensors_count": found.updates / facts.steps if found.updates else None,
                "launches_per_tensor_factor": found.launches / found.updates if found.updates else None,
                "groups_per_step": groups if many else None,
                "idle_ns": claims.idle_ns(self.id),
                "saved_kernel_ns": claims.busy_ns(self.id),
            },
            where=kernel_names(facts, facts.work["own_ns"] * (pl.Series(lists) if foreach else mine)),
            remedies=(_OVER_PARAMETERS,)
            if looped
            else (*((_FEW_GROUPS,) if many else ()), _FUSED_STEP, *(() if foreach else (_ON_LISTS,))),
            issuing_ns=claims.issuing_ns[self.id],
            claims=claims,
            replayed=facts.replayed(time=saved, calls=gone, elsewhere=True) if many else None,
            busy_ns=claims.busy_ns(self.id),
            bound_ns=claimed
            + facts.idle_ns
            - claims.idle_ns(self.id)
            + (0 if not foreach else int(0.35 * facts.program.own_ns[lists].sum())),
        )
