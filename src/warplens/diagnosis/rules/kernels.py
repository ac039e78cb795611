"""Rules for a busy GPU: memory traffic, matrix products, small grids."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.categories import class_table
from warplens.analysis.frames import duration_ns, number, once
from warplens.analysis.headroom.shapes import tensors_of
from warplens.analysis.kernel_names import PASSES, PRODUCTS
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.contractions import ONE_PRODUCT, TERMS, contracted
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant, ceiling, percent, times
from warplens.diagnosis.rule import GPU_BUSY_SHARE, OTHER_BATCHES, Limit, Rule, bringing, first_of, gain_of, remembered
from warplens.diagnosis.structure import Passes, passes_of_step, recurring_share, time_beside, time_of
from warplens.diagnosis.unprofiled import Gain, Less
from warplens.diagnosis.upsampling import CHANNELS_FIRST, ENLARGED, enlarged
from warplens.patterns import lazy_pattern
from warplens.profile.schema import Bools, Float64s, Int64s, texts_where

#: Passes that need all numbers of a row before their result is known: a fused pass ends there.
_ENDS_PASS: Final = ("reduction", "normalization", "softmax")


def moves_data(facts: Facts) -> pl.Series:
    """Which pieces of work are limited by memory traffic: measured, or inferred from category, duration and grid."""
    limits = facts.thresholds
    long = duration_ns() >= limits.bandwidth_kernel_ns
    wide = pl.col("fill_share").fill_null(1.0) >= 1.0
    inferred = pl.col("label").is_in(PASSES) & long & wide
    measured = (pl.col("bound") == "memory") & (pl.col("bound_unit") == "dram")
    known = pl.col("bound").is_not_null()
    return facts.work.select(pl.when(known).then(measured).otherwise(inferred).fill_null(value=False)).to_series()


def _fusible(facts: Facts) -> Float64s:
    """1 for every kernel of a chain but the longest, as one fused pass would take about as long as the longest.

    A chain is an unbroken sequence of kernels of one stream and step that move data. A reduction ends it, because later
    kernels need its whole result. So does a repeated kernel of no known library: hand-written kernels are already fused
    as far as possible, and are called again for other data.
    """
    program = facts.program
    saved = np.zeros(facts.work.height)
    chained = program.in_order(moves_data(facts).to_numpy())
    if not chained.any():
        return saved
    closes = program.in_order(program.labelled(*_ENDS_PASS))
    by_hand = program.in_order(_by_hand(facts))
    names = program.in_order(program.name_codes)
    length = program.in_order(facts.lengths)
    breaks = program.breaks.copy()
    breaks[1:] |= (chained[1:] != chained[:-1]) | closes[:-1] | (by_hand[1:] & (names[1:] == names[:-1]))
    firsts = np.flatnonzero(breaks)
    run = np.repeat(np.arange(len(firsts)), np.diff(np.r_[firsts, len(length)]))
    longest = np.flatnonzero(length == np.maximum.reduceat(length, firsts)[run])
    # Of several that are equally long, the first stays.
    longest = longest[np.r_[True, run[longest[1:]] != run[longest[:-1]]]]
    saved[program.order] = chained
    saved[program.order[longest]] = 0.0
    return saved


def _by_hand(facts: Facts) -> Bools:
    """Which kernels belong to no known library and were not measured."""
    program = facts.program
    names = facts.timeline.trace.kernels["full_name"]
    if not names.len():
        return np.zeros(facts.work.height, dtype=np.bool_)
    unknown = class_table(names)["library"].is_null().to_numpy()
    inferred = facts.work["bound"].is_null().to_numpy()
    return np.asarray(program.is_kernel & unknown[program.name_codes] & inferred, dtype=np.bool_)


class MemoryBandwidth(Rule):
    """Kernels at the memory roof (measured), or of kinds that hardly compute (inferred), on a busy GPU.

    The claim is the cost of each chain beyond one pass. The finding only informs unless such kernels dominate.
    """

    id = "memory-bandwidth"
    question = "Does the GPU spend its time moving data rather than computing?"
    limiter = "kernels that move data rather than compute"
    cause = "memory traffic of kernels"
    raised_when = (
        "it costs 2 %. Informational unless such kernels take two thirds of the time, or maps are enlarged before a "
        "convolution of 1 × 1 that at least halves their channels (by recorded shapes)"
    )
    claimed = (
        "all but the longest kernel of every unbroken chain of kernels that move data: what one fused pass could save; "
        "nearly all of passes that make the terms of a product of matrices and sum them up; of work on enlarged maps, "
        "the share of channels and places that the convolution first does without"
    )
    headline = "Limited by memory traffic: fusing chains of kernels into single passes could save {share} of the time"
    measured: ClassVar = Variant(
        "The GPU is busy with kernels that move data through memory rather than compute",
        refutation="Fuse one chain of them into a single pass (torch.compile, or a kernel of your own): if it does "
        "not get faster, its kernels read different data.",
    )
    inferred: ClassVar = Variant(f"{measured.title} (inferred from their kind)")
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
    least_reductions_share = Limit(0.01, "From here on, passes may end in sums that need not be written.")

    def claim(self, facts: Facts) -> Float64s | None:
        """All but the longest kernel of each chain that moves data; `unfused-chain` claims those between products."""
        products = facts.own_ns_having("label", *PRODUCTS)
        inferred = products < self.least_products_share * facts.wall_ns
        measured = facts.work["bound"].is_not_null().to_numpy()
        maps = enlarged(facts)
        if not inferred and not measured.any():
            return maps if maps.any() else None
        saved = _fusible(facts)
        terms = contracted(facts)
        saved = np.where((terms > 0) & inferred, terms, saved)
        return np.asarray(np.maximum(np.where(measured | inferred, saved, 0.0), maps), dtype=np.float64)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        moving = moves_data(facts)
        moving_ns = int(facts.work["own_ns"].filter(moving).sum())
        claimed_ns, claimed = claims.busy_ns(self.id), claims.of_work(self.id).to_numpy()
        terms_ns = int(claimed @ (contracted(facts) > 0))
        is_terms = 2 * terms_ns > claimed_ns
        maps_ns = int(claimed @ (enlarged(facts) > 0))
        evidence = self._evidence(facts, moving, moving_ns, claimed_ns)
        where = kernel_names(facts, facts.work["own_ns"] * moving)
        if 2 * maps_ns > claimed_ns and not is_terms:
            return self._of_maps(facts, maps_ns, evidence, where)
        is_measured = evidence["measured_of_kernel_time_share"] is not None and (
            evidence["measured_of_kernel_time_share"] >= facts.thresholds.counters_share
        )
        dominates = moving_ns / facts.wall_ns >= facts.thresholds.bandwidth_share
        return self.raised(
            facts,
            terms_ns if is_terms else claimed_ns,
            variant=first_of((is_terms, TERMS), (is_measured, self.measured), default=self.inferred),
            confidence="high" if is_measured else "medium" if dominates else "low",
            evidence=evidence,
            where=where,
            remedies=(*self._fusing(facts, is_terms=is_terms), _FEWER_BYTES),
            on_gpu=True,
            informs=not dominates,
            bound_known=self._ends_are_known(facts),
            bound_ns=self._removable_ns(facts, moving_ns, claimed_ns),
        )

    def _evidence(
        self, facts: Facts, moving: pl.Series, moving_ns: int, claimed_ns: int
    ) -> dict[str, int | float | None]:
        """The numbers of the finding."""
        measured_ns = facts.own_ns(pl.col("bound").is_not_null())
        kernels_ns = facts.own_ns_having("kind", "kernel")
        return {
            "memory_kernels_ns": moving_ns,
            "memory_kernels_share": moving_ns / facts.wall_ns,
            "fusible_ns": claimed_ns,
            "measured_of_kernel_time_share": measured_ns / kernels_ns if kernels_ns and measured_ns else None,
            "memory_roof_median_share": number(facts.work["bound_share"].filter(moving).drop_nulls().median()),
        }

    def _of_maps(
        self, facts: Facts, maps_ns: int, evidence: dict[str, int | float | None], where: tuple[str, ...]
    ) -> Finding | None:
        """The finding for maps that are enlarged before their channels become few."""
        maps = enlarged(facts) > 0
        return self.raised(
            facts,
            maps_ns,
            variant=ENLARGED,
            confidence="medium",
            evidence=evidence,
            where=where,
            remedies=(CHANNELS_FIRST,),
            on_gpu=True,
            # The remedy also changes the casts and passes on these maps that other causes claim.
            replayed=facts.replayed(time=enlarged(facts)),
            busy_ns=int(facts.program.own_ns @ enlarged(facts)),
            bound_known=self._ends_are_known(facts),
            bound_ns=time_of(facts.program, maps) + int(time_beside(facts.program, maps).sum()),
        )

    @staticmethod
    def _ends_are_known(facts: Facts) -> bool:
        """Whether steps are sure: if they may be parts of a step, chains may continue beyond their ends."""
        return not facts.window.steps or facts.timeline.steps.is_sure

    def _fusing(self, facts: Facts, *, is_terms: bool) -> tuple[Remedy, ...]:
        """The remedies that fuse passes; with terms of a product as the cause, the product comes first."""
        fusing = _FUSED_OPERATORS if _is_network(facts) else _FUSED_STEP
        if not is_terms:
            return (fusing,)
        gain = gain_of(facts, int(facts.program.own_ns @ _fusible(facts)), on_gpu=True)
        return ONE_PRODUCT, bringing(fusing, Gain.exactly(gain), self.model)

    def _removable_ns(self, facts: Facts, moving_ns: int, claimed_ns: int) -> int:
        """Time that remedies could remove, of kernels that move data for `moving_ns`.

        The remaining pass may move half as many bytes, and one that sums pairwise terms hardly any: neither the terms
        nor their broadcast operands need to be in memory.
        """
        if facts.own_ns_having("label", "reduction") >= self.least_reductions_share * facts.wall_ns:
            return moving_ns
        saved_ns = min(claimed_ns, moving_ns)
        return saved_ns + (moving_ns - saved_ns) // 2


#: For chains of passes in networks.
_FUSED_OPERATORS: Final = Remedy(
    "Fuse chains of elementwise work",
    "model = torch.compile(model)\n"
    "# or fused operators: F.scaled_dot_product_attention, F.rms_norm, F.layer_norm,\n"
    "# F.gelu(x, approximate='tanh'), F.cross_entropy",
    f"{GAIN}: one pass over the data instead of several",
    id="fused-passes",
    compiles=True,
)

#: For those in other programs.
_FUSED_STEP: Final = replace(_FUSED_OPERATORS, how="step = torch.compile(step)  # the function that launches them")

_FEWER_BYTES: Final = Remedy(
    "Move fewer bytes",
    # Autocast narrows products only; what lies between them follows their format.
    "x = x.bfloat16()  # the tensors that these kernels pass over, where accuracy allows\n"
    "# in-place operations; no .contiguous() or .float() that nothing needs",
    "half of these kernels' time with 16-bit instead of 32-bit numbers",
    id="fewer-bytes",
)


def _is_network(facts: Facts) -> bool:
    """Whether the program has products, norms or softmax, as networks do, and so has uses for fused operators."""
    program = facts.program
    return bool((program.products | program.labelled("normalization", "softmax")).any())


#: Names of products in texts.
_PRODUCTS: Final = dict(zip(PRODUCTS, ("matrix products", "attention", "convolutions"), strict=True))
#: Names of other kernels in texts, if one kind takes most of the time.
_OTHERS: Final = {
    "softmax": "softmax",
    "normalization": "norms",
    "elementwise": "elementwise kernels",
    "reduction": "reductions",
    "gather-scatter": "gathers and scatters",
    "sort-topk": "sorts",
    "copy-cast": "copies and casts",
    "recurrence": "recurrent cells",
    "optimizer": "the optimizer",
    "communication": "communication",
    "random": "random numbers",
}
#: A kind of product with a smaller share of the products' time is not named.
_LEAST_NAMED_SHARE: Final = 0.01


def busy_with(facts: Facts, beside: str = "") -> str:
    """Text to follow "the GPU is": its busy share and, if one kind of work takes most of the time, that kind."""
    busy = f"busy for {percent(facts.busy_share)} of the time{beside}"
    spent = {title: facts.own_ns_having("label", label) for label, title in _PRODUCTS.items()}
    products = sum(spent.values())
    dominant = facts.thresholds.dominant_share * facts.wall_ns
    if products < dominant:
        others = {title: facts.own_ns_having("label", label) for label, title in _OTHERS.items()}
        most = max(others, key=lambda title: others[title])
        return f"{busy}, {percent(others[most] / facts.busy_ns)} of it with {most}" if others[most] > dominant else busy
    *firsts, last = [title for title, own in spent.items() if own > _LEAST_NAMED_SHARE * products]
    kinds = f"{', '.join(firsts)} and {last}" if firsts else last
    return f"{busy}, {percent(products / facts.busy_ns)} of it with {kinds}"


class TensorCompute(Rule):
    """Products on tensor cores that take most of a busy GPU's time. It only informs: this is useful work."""

    id = "tensor-compute"
    question = "Does the GPU spend its time on matrix products?"
    limiter = "matrix products"
    cause = "matrix products"
    raised_when = "they take half of the time of a GPU that is busy for 90 % of it. Informational"
    claimed = "nothing: this is the work that the program exists for"
    title: ClassVar = "Matrix products take most of the time of a busy GPU"
    evidence: ClassVar = {
        "products_ns": "matrix products, convolutions and attention; without attention of which `unfused-attention` "
        "is the finding",
        "products_share": "of the window",
        "attention_ns": "of the products, attention, which a narrower format of the layers does not change",
        "of_peak_share": "rate of these products over the peak of their format and of the memory; only where the sizes "
        "of most of them are known",
        "on_tensor_cores_share": "of the products whose name shows it, if those are most of them",
        **GPU_BUSY_SHARE,
        "at_tensor_roof_share": "of the counted products' time, at 60 % or more of the tensor pipe's peak",
    }
    refutation = (
        "Compare the rate of the products with the GPU's peak (2·M·N·K over their time; ncu --section "
        "ComputeWorkloadAnalysis): if it is far below, their shapes or operands are the limit."
    )
    known: ClassVar = Variant(
        refutation="Time the largest product alone, with twice as many rows: if it takes less than twice as long, "
        "its shape is the limit, not the rate of the tensor cores."
    )
    thresholds = ("busy_share", "dominant_share", "roof_share")
    describes = True
    aligned_share = Limit(
        0.95, "Of the products' time: the rest is that of small heads, which no padding makes faster."
    )

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict: nothing to fix."""
        return f"Nothing to fix: the GPU is {busy_with(facts)}, near the peak of its tensor cores."

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        limits = facts.thresholds
        kinds = [
            kind for kind in PRODUCTS if kind != "attention" or not self._has_finding(facts, claims, _ATTENTION, kind)
        ]
        of_kinds = pl.col("label").is_in(kinds)
        is_product = of_kinds & pl.col("tensor_cores").fill_null(value=True)
        on_cores_or_unknown_ns = facts.own_ns(is_product)
        few_rows = self._has_finding(facts, claims, "weight-bound", "gemm")  # fewer FLOPs do not make these faster
        is_most = on_cores_or_unknown_ns >= limits.dominant_share * facts.wall_ns
        if few_rows or facts.busy_share < limits.busy_share or not is_most:
            return None
        products_ns = facts.own_ns(of_kinds)
        known_ns = facts.own_ns(of_kinds & pl.col("tensor_cores").is_not_null())
        on_cores_ns = facts.own_ns(is_product & pl.col("tensor_cores"))
        at_roof_share = self._at_roof_share(facts, is_product)
        products = facts.work.select(is_product.fill_null(value=False)).to_series()
        of_peak = _of_peak(facts, products)
        near = at_roof_share is not None and at_roof_share > limits.dominant_share
        return self.described(
            facts,
            title=self.title + (", near the peak of its tensor cores" if near else ""),
            variant=USUAL if of_peak is None else self.known,
            confidence="high" if near else "medium",
            # Fewer operations or a narrower format have no known bound.
            evidence={
                "products_ns": products_ns,
                "products_share": products_ns / facts.wall_ns,
                "attention_ns": facts.own_ns_having("label", "attention") if "attention" in kinds else None,
                "of_peak_share": of_peak,
                "on_tensor_cores_share": on_cores_ns / known_ns if 2 * known_ns > products_ns else None,
                "at_tensor_roof_share": at_roof_share,
            },
            where=kernel_names(facts, facts.work["own_ns"] * products),
            remedies=(
                _fewer_flops(facts),
                None if _aligned_ns(facts) >= self.aligned_share * on_cores_or_unknown_ns else _whole_tiles(facts),
            ),
        )

    @staticmethod
    def _at_roof_share(facts: Facts, is_product: pl.Expr) -> float | None:
        """Share of the counted products' time that is near the tensor pipe's peak; None without counters."""
        counted_ns = facts.own_ns(is_product & pl.col("bound").is_not_null())
        if not counted_ns:
            return None
        of_tensor_pipe = (pl.col("bound") == "compute") & (pl.col("bound_unit") == "tensor")
        at_roof = of_tensor_pipe & (pl.col("bound_share") >= facts.thresholds.roof_share)
        return facts.own_ns(is_product & at_roof) / counted_ns

    @staticmethod
    def _has_finding(facts: Facts, claims: Claims, cause: str, kind: str) -> bool:
        """Whether most of the time of these products is claimed by this cause."""
        products = facts.program.labelled(kind)
        if cause not in claims.causes or not products.any():
            return False
        claimed = products & (claims.of_work(cause).to_numpy() > 0)
        return 2 * time_of(facts.program, claimed) > time_of(facts.program, products)


#: Id of the rule whose finding attention may be.
_ATTENTION: Final = "unfused-attention"

#: Dimensions of products that fill whole tiles on each GPU are multiples of this.
_WHOLE_TILE: Final = 128


def _of_peak(facts: Facts, products: pl.Series) -> float | None:
    """Rate of these products over the peaks of their format and of the memory; None if few of their sizes are known."""
    pieces = facts.at_roof.filter(products).select("owned_ns", "theoretical_ns")
    known = pieces.drop_nulls()
    spent = int(known["owned_ns"].sum())
    if not spent or 2 * spent <= int(pieces["owned_ns"].sum()):
        return None
    return min(float(known["theoretical_ns"].sum()) / spent, 1.0)


def _aligned_ns(facts: Facts) -> int:
    """Time of the matrix products whose recorded dimensions all fill whole tiles."""
    program = facts.program
    rows = np.flatnonzero(program.labelled("gemm"))
    return int(program.own_ns[rows[texts_where(program.shapes().gather(rows), _fills_tiles)]].sum())


def _fills_tiles(shapes: str) -> bool:
    """Whether both dimensions of each matrix among the inputs of a product are whole tiles."""
    sides = [side for shape in tensors_of(shapes) if len(shape) > 1 for side in shape[-2:]]
    return bool(sides) and all(side % _WHOLE_TILE == 0 for side in sides)


def _fewer_flops(facts: Facts) -> Remedy:
    """The remedy for products near their peak: less to compute, or a narrower format if there is one."""
    if not _could_be_narrower(facts):
        return Remedy(
            "Do fewer FLOPs",
            "# 2:4 sparsity, a smaller model, fewer tokens",
            "in proportion to the FLOPs",
            id="fewer-flops",
        )
    return Remedy(
        "Do fewer FLOPs, or use a narrower format",
        _narrower_products(facts) + "\n# 2:4 sparsity, a smaller model, fewer tokens",
        "in proportion to the FLOPs, or to the formats' peak rates",
        id="narrower-products",
    )


def _whole_tiles(facts: Facts) -> Remedy:
    """The remedy for products whose shapes fill no whole tiles."""
    code = (
        "# dimensions in multiples of 256, the vocabulary too\n"
        "PYTORCH_TUNABLEOP_ENABLED=1 python train.py  # times the kernels of hipBLASLt for each shape"
    )
    if facts.of_nvidia:
        code = "# dimensions in multiples of 64 (128 from compute capability 9.0 on), the vocabulary too"
    return Remedy("Choose shapes that fill whole tiles", code, "up to one partial wave of blocks per product")


def _narrower_products(facts: Facts) -> str:
    """Code for products in a narrower format: of the framework's layers, or of other kernels."""
    program = facts.program
    if 2 * time_of(program, program.products & _by_hand(facts)) > time_of(program, program.products):
        return "# in kernels of Triton or your own: operands in 16 or 8 bits; tl.dot(a, b, input_precision='tf32')"
    code = "torchao.quantization.quantize_(model, Float8DynamicActivationFloat8WeightConfig())  # its nn.Linear"
    if facts.trains:
        code = "torchao.float8.convert_to_float8_training(model)  # its nn.Linear layers, before torch.compile"
    return (
        f"{code}\n# compare results and losses: 8 bits round more\n"
        "# or te.Linear layers under te.autocast(enabled=True) (transformer_engine.pytorch; older: te.fp8_autocast)"
    )


def _could_be_narrower(facts: Facts) -> bool:
    """Whether the GPU multiplies 8-bit floats, and most of the products' time is not yet in 8 bits or fewer."""
    if not any("fp8" in peaks.flops_per_s for peaks in facts.peaks):
        return False
    program = facts.program
    spent = program.own_ns * program.products
    return bool(2 * spent[program.marked("quantized")].sum() < spent.sum())


#: Threads that a multiprocessor holds at a time, since compute capability 7.0 (8.6 and 8.9 hold 1536).
_THREADS: Final = 2048
#: Most numbers that a thread of a pass handles.
OF_A_THREAD: Final = 16
#: Numbers of the result that a multiprocessor has to compute at a time for full tensor core throughput.
_TILE: Final = 64 * 128
_TILES: Final = lazy_pattern(r"(?:tilesize|_)(\d+)x(\d+)(?:x\d+)?_")


def filled_share(facts: Facts) -> Float64s:
    """Share of the GPU that each kernel can keep busy, by its blocks; nan if unknown.

    A short kernel of many small blocks ends before it reaches full throughput. For short passes the share is therefore
    at most that of the threads that the GPU holds, and for short products it is reduced by the size of their tiles.
    """
    program = facts.program
    filled = facts.work["fill_share"].fill_null(float("nan")).to_numpy().copy()
    counts = [device.sm_count for device in facts.devices if device.sm_count]
    duration = facts.lengths
    short = duration < facts.thresholds.bandwidth_kernel_ns
    grids = facts.timeline.trace.kernels["grid_x"]
    if not counts or not short.any() or grids.null_count() == grids.len():
        return filled
    passes = np.flatnonzero(program.passes & short)
    filled[passes] = np.fmin(filled[passes], program.threads(passes) / (min(counts) * _THREADS))
    products = np.flatnonzero(program.labelled("gemm") & short)
    products = products[program.blocks(products) <= min(counts)]
    filled[products] *= np.minimum(np.nan_to_num(tiles(facts, products), nan=_TILE) / _TILE, 1.0)
    return filled


def tiles(facts: Facts, rows: Int64s) -> Float64s:
    """Numbers of the result that a block of these products computes at a time, by kernel names; nan if unknown."""
    areas: Float64s = tile_sides(facts, rows).prod(axis=1)
    return areas


def tile_sides(facts: Facts, rows: Int64s) -> Float64s:
    """Rows and columns that a block of these products computes at a time, shape (n, 2); nan if unknown."""
    return _tile_sides(facts)[facts.program.name_codes[rows]]


@once
def _tile_sides(facts: Facts) -> Float64s:
    """The same for each of `Program.full_names`."""
    matches = [_TILES.search(text) for text in facts.program.full_names()]
    sides = [(float(match[1]), float(match[2])) if match else (math.nan, math.nan) for match in matches]
    return np.array(sides or [(math.nan, math.nan)])


#: Causes of programs that decode a text, whose equal passes each make the token of the next one.
_DECODES: Final = ("growing-cache", "weight-bound")


def passes_apart(facts: Facts, claims: Claims) -> Passes:
    """The equal passes of a step, unless they may be tokens: joined results beside the causes of decoding."""
    passes = passes_of_step(facts)
    decodes = any(cause in claims.causes and claims.busy_ns(cause) for cause in _DECODES)
    return passes if passes.is_apart or not decodes else replace(passes, count=1)


def as_one_batch(passes: Passes) -> Remedy:
    """For a step of equal passes over different inputs."""
    condition = "" if passes.is_apart else ", if none needs the result of the one before"
    exception = (
        "" if passes.is_apart else "# not for a rollout, a recurrence or the tokens of one text: a CUDA graph there\n"
    )
    return Remedy(
        "Run the passes of a step as one batch",
        f"# a step runs {passes.count} equal passes{condition}: torch.stack or torch.cat before one call,\n"
        f"{exception}"
        "# encode(inputs, batch_size=n), generate() on padded prompts, a larger micro-batch instead of accumulation\n"
        "# if all passes share an input (one picture, many questions): encode it once and keep the result",
    )


#: Multiples of the work of a step for which gains are given.
BATCHES: Final = (2, 4, 16)
#: The multiple whose gain is that of the remedy.
_USUAL_BATCH: Final = 4


def at_a_time(facts: Facts, count: int, filled: Float64s, stalls: float = 0.5) -> Gain | None:
    """Gain, for the same work, of doing `count` times the work of a step at once; None if it cannot be replayed.

    All items share each launch, each kernel takes as long as they fill the GPU, and the optimizer runs once per batch.

    Args:
        stalls: share of the host's time beside launching that is spent per batch, not per item.
    """
    if facts.pace is None:
        return None
    batch = Passes(count, np.ones(facts.work.height, dtype=np.bool_))
    # Only a part of the window is replayed.
    known = facts.replayed_rows >= 0
    rows = facts.replayed_rows[known]
    share = np.zeros(len(known))
    share[known] = np.where(facts.program.optimizing[rows], batch.freed, batch.saved_share(facts, filled, rows))
    calls = np.where(known, batch.freed, 0.0)
    return facts.pace.gain(less=Less(share, calls, stalls))


def more_at_a_time(facts: Facts, remedy: Remedy) -> Remedy:
    """The remedy with its gain for several batches.

    The profile does not show how much of the host's other work is per batch and how much per item: half of it is
    expected to go away, and the interval reaches from none to all of it.
    """
    if facts.pace is None:
        return remedy
    filled = filled_share(facts)
    least, most = (at_a_time(facts, _USUAL_BATCH, filled, stalls) for stalls in (0.0, 1.0))
    if least is None or most is None:
        return remedy
    by_batch = {count: gain.expected for count in BATCHES if (gain := at_a_time(facts, count, filled)) is not None}
    return replace(
        bringing(remedy, Gain(by_batch[_USUAL_BATCH], least.low, most.high)),
        expected=f"with {_USUAL_BATCH} times as much at a time, for the same work{OTHER_BATCHES}; {remedy.expected}",
        gain_by_batch=by_batch,
    )


#: For kernels that take longer to start than to run.
_STARTED_SOONER: Final = Remedy(
    "Make the pauses between the kernels shorter or fewer",
    "with torch.cuda.graph(g): y = model(static_x)  # after warm-up; nodes of a graph start sooner after each other\n"
    "# one kernel instead of several in a row; one stream instead of events between streams\n"
    "# your own kernels: programmatic dependent launch (cudaLaunchAttributeProgrammaticStreamSerialization)",
    "a part of these pauses, as nodes of one graph",
    id="shorter-pauses",
    captures=True,
)


_MORE_WORK: Final = Remedy(
    "Put more work into each launch",
    "# a larger batch, or independent problems stacked: torch.bmm, torch.vmap, torch._foreach_*",
    id="larger-launches",
)

_MORE_BLOCKS: Final = Remedy(
    "Split the work into more blocks",
    "# kernels that reduce long rows: several blocks per row (split-K products, flash-decoding,\n"
    "# a reduction in two stages)",
)

_CONCURRENT: Final = Remedy(
    "Run independent kernels concurrently",
    "side.wait_stream(torch.cuda.current_stream())  # side = torch.cuda.Stream(), once\n"
    "with torch.cuda.stream(side): y = branch(x)  # a branch that others do not need at once\n"
    "torch.cuda.current_stream().wait_stream(side)  # before y is used\n"
    "# or one CUDA graph with parallel branches",
    id="concurrent-kernels",
)


@dataclass(frozen=True, eq=False)
class _SmallGrids:
    """Kernels that leave a part of the GPU empty."""

    small: Bools  #: which work they are
    own_ns: int  #: their time
    lost_ns: int  #: the part of it that is claimed
    empty_ns: int  #: all that is claimed, short fills included
    starting_ns: int  #: the GPU's own pauses before such work, although it was queued
    affected_ns: int  #: time of all work that leaves something empty
    short_ns: float  #: what short kernels leave empty
    filled_up_gain: float  #: speed-up if nothing is left empty, and these pauses are gone

    @property
    def filled_share(self) -> float:
        """Share of the GPU that they fill."""
        return 1 - self.lost_ns / self.own_ns if self.own_ns else 1.0

    def evidence(self, facts: Facts) -> dict[str, int | float | None]:
        """Their numbers."""
        known = pl.Series(self.small) & pl.col("fill_share").is_not_null()
        grids = facts.work.select("own_ns", "fill_share").filter(known)
        reached = float((grids["own_ns"] * grids["fill_share"]).sum()) / max(int(grids["own_ns"].sum()), 1)
        return {
            "empty_ns": self.empty_ns,
            "starting_ns": self.starting_ns,
            "small_kernels_share": self.own_ns / facts.wall_ns,
            "multiprocessors_reached_by_small_kernels_share": reached if grids.height else None,
            "gpu_filled_by_small_kernels_share": self.filled_share if self.filled_share < reached - 0.001 else None,
            "small_kernel_median_ns": float(np.median(facts.lengths[self.small])) if self.small.any() else None,
            "small_kernels_per_step": int(self.small.sum()) / facts.steps,
        }


class SmallKernels(Rule):
    """Time of kernels with fewer blocks than the GPU has multiprocessors, while the GPU is busy."""

    id = "small-kernels"
    question = "Does the GPU spend its time on grids that leave most of it empty?"
    limiter = "grids that cannot fill the GPU"
    cause = (
        "grids that cannot fill the GPU, where the GPU is busy, or starts queued work, for at least 70 % of the time"
    )
    raised_when = (
        "it costs 2 %; a warning from 1.25×. Informational where a graph replays only turns of short kernels that need "
        "one another"
    )
    claimed = (
        "the share of the GPU that is left empty by kernels with fewer blocks than multiprocessors, and by short "
        "kernels with few threads or small tiles; the same share of the GPU's own pauses before them"
    )
    headline = "Limited by small grids: what they leave empty of the GPU costs {share} of the time"
    title = "The GPU is busy with grids that leave most of it empty"
    partly_empty: ClassVar = Variant("The GPU is busy with grids that leave a part of it empty")
    started: ClassVar = Variant(
        "The GPU takes longer to start short kernels than to run them",
        refutation="Double the batch: if the step takes twice as long, the kernels are not short of work.",
    )
    evidence: ClassVar = {
        "empty_ns": "time lost to the part of the GPU that small grids leave empty",
        "starting_ns": "pauses of the GPU before such kernels, although they were queued",
        "small_kernels_share": "time of such kernels, of the window",
        "multiprocessors_reached_by_small_kernels_share": "multiprocessors that get a block of such kernels, weighted "
        "by time",
        "gpu_filled_by_small_kernels_share": "part of the GPU that such kernels fill, of short ones also by their "
        "threads and tiles, weighted by time; only where it differs",
        "small_kernel_median_ns": "duration of such kernels",
        "small_kernels_per_step": "number of such kernels",
        "passes_per_step": "equal passes, which could be one batch if none needs the result of another",
        **GPU_BUSY_SHARE,
    }
    refutation = "Double the batch: if the step takes twice as long, the grids were large enough."
    thresholds = ("small_kernels_busy_share", "unsure_warning_ceiling")
    half_filled_share = Limit(0.5, "Grids that fill more leave no room for twice the work.")
    long_ns = Limit(50_000, "A kernel of few blocks that takes this long is not short of work, but of blocks.")
    recurring_share = Limit(0.9, "From this share of the launches on, a graph is only turns that need one another.")

    def headline_of(self, finding: Finding) -> str:
        """The headline; another one if starting the kernels costs more than what they leave empty."""
        if finding.evidence["starting_ns"] > finding.evidence["empty_ns"]:
            return "Limited by short kernels: the GPU takes longer to start them than to run them"
        return self.headline

    def claim(self, facts: Facts) -> Float64s | None:
        """Share of the GPU that small grids leave empty, measured by counters or inferred."""
        empty = self._empty(facts)
        if facts.work["bound"].null_count() == facts.work.height:
            return empty
        measured = pl.when(pl.col("fault") == "small-grid").then(pl.col("fault_share")).fill_null(0.0)
        known = facts.work.select(pl.when(pl.col("bound").is_not_null()).then(measured)).to_series()
        return known.fill_null(pl.Series(empty)).to_numpy()

    @remembered
    def _empty(self, facts: Facts) -> Float64s:
        """Share of the GPU that each kernel leaves empty, less the share that concurrent kernels fill on average."""
        # Start latency between queued kernels counts as busy time, because short kernels cause it.
        if facts.busy_ns + facts.idle("start-latency") < facts.thresholds.small_kernels_busy_share * facts.wall_ns:
            return facts.no_share
        program = facts.program
        order = program.order
        counted = program.is_kernel & ~program.labelled("communication")
        owned = int(program.own_ns[counted].sum())
        duration = int(facts.lengths[counted].sum())
        concurrent = max(duration / owned, 1.0) if owned else 1.0
        empty = 1 - np.clip(np.nan_to_num(filled_share(facts), copy=False, nan=1.0) * concurrent, 0.0, 1.0)
        empty[~counted] = 0.0
        # A short fill belongs to the kernel after it.
        fills = np.flatnonzero(program.in_order(program.having("kind", "memset"))[:-1])
        fills = fills[program.own_ns[order[fills]] < facts.thresholds.bandwidth_kernel_ns]
        empty[order[fills]] = empty[order[fills + 1]]
        return empty

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        if not claims.busy_ns(self.id):
            return None
        grids = self._small_grids(facts, claims)
        passes = passes_apart(facts, claims)
        merged = passes.saved_share(facts, filled_share(facts)) if passes.count > 1 else None
        slow_start = grids.starting_ns > grids.empty_ns and merged is None
        remedies = self._remedies(facts, grids, slow_start=slow_start)
        if merged is not None:
            alone = Gain.exactly(grids.filled_up_gain)
            others = (bringing(each, alone, self.model) if GAIN in each.expected else each for each in remedies)
            remedies = (as_one_batch(passes), *others)
        return self.raised(
            facts,
            grids.empty_ns + grids.starting_ns,
            confidence="high" if facts.work["bound"].is_not_null().any() else "medium",
            evidence={
                **grids.evidence(facts),
                "passes_per_step": passes.count if merged is not None else None,
            },
            where=kernel_names(facts, claims.pieces(self.id)),
            variant=first_of(
                (slow_start, self.started),
                (2 * grids.empty_ns < grids.affected_ns, self.partly_empty),
                default=USUAL,
            ),
            remedies=remedies,
            # More work per launch takes no more host time, so the gain is not bounded.
            bound_known=False,
            warning=facts.thresholds.unsure_warning_ceiling,
            informs=merged is None and self._is_recurrence(facts, grids),
            replayed=None if merged is None else facts.replayed(time=merged, calls=passes.calls(facts)),
            busy_ns=0 if merged is None else passes.removed_ns(facts, merged),
        )

    def _small_grids(self, facts: Facts, claims: Claims) -> _SmallGrids:
        """What the kernels that the finding claims leave empty."""
        program = facts.program
        claimed = claims.of_work(self.id).to_numpy() > 0
        small = claimed & program.is_kernel
        empty = np.where(claimed, self._empty(facts), 0.0)
        empty_ns = claims.busy_ns(self.id)
        starting_ns = int((program.of_gaps(empty) * facts.causes["start-latency"].whole()).sum())
        is_short = facts.lengths < self.long_ns
        return _SmallGrids(
            small=small,
            own_ns=int(program.own_ns[small].sum()),
            lost_ns=int(claims.pieces(self.id).whole()[small].sum()),
            empty_ns=empty_ns,
            starting_ns=starting_ns,
            affected_ns=int(program.own_ns[empty > 0].sum()),
            short_ns=float((program.own_ns * empty)[is_short].sum()),
            filled_up_gain=gain_of(facts, empty_ns + starting_ns, on_gpu=False),
        )

    def _is_recurrence(self, facts: Facts, grids: _SmallGrids) -> bool:
        """Whether short kernels that need one another are replayed from a graph, as fast as so few sequences get."""
        short = 2 * grids.short_ns > grids.empty_ns
        return facts.graphed and recurring_share(facts) >= self.recurring_share and short

    def _remedies(self, facts: Facts, grids: _SmallGrids, *, slow_start: bool) -> tuple[Remedy, ...]:
        """The remedies for small grids, whatever the passes of a step.

        Args:
            slow_start: whether starting the kernels costs more than what they leave empty.
        """
        filling = ""
        if grids.filled_share <= self.half_filled_share:
            # Counters may tell that hardly anything is filled.
            as_much = max(1 / max(grids.filled_share, 0.001), grids.filled_up_gain)
            filling = f" (about {as_much:,.{0 if as_much >= 10 else 1}f} times as much)"
        more_work = replace(
            _MORE_WORK, expected=f"{GAIN} in throughput, with as much more at a time as fills the GPU{filling}"
        )
        if not slow_start:
            return more_work, _MORE_BLOCKS, _CONCURRENT
        graph = None if facts.graphed else facts.replayed("cuda-graph")
        without_empty = times(ceiling(facts.wall_ns, grids.empty_ns))
        return (
            more_work,
            bringing(_STARTED_SOONER, graph),
            replace(_MORE_BLOCKS, expected=f"at most {without_empty}: the pauses stay"),
            replace(_CONCURRENT, expected="in proportion to how many can run at a time"),
        )
