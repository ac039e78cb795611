"""Rule for number formats: products off the tensor cores, and the savings of narrower formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.kernel_names import PASSES, PRODUCTS
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, kernel_names, range_names
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Limit, Rule, bringing, first_of, remembered
from warplens.diagnosis.structure import started_share, time_of
from warplens.diagnosis.unprofiled import Gain
from warplens.profile.peaks import peaks_of
from warplens.profile.schema import Bools, Float64s

#: A product in fp32, by its name.
_IN_FP32: Final = pl.col("label").is_in(PRODUCTS) & (pl.col("precision") == "fp32") & ~pl.col("vector_product")
#: The same on vector units.
_OFF_TENSOR_CORES: Final = (_IN_FP32 & (~pl.col("tensor_cores") | (pl.col("label") == "attention"))).fill_null(
    value=False
)
#: The same on AMD's matrix units, which multiply narrower formats at several times the rate.
_ON_MATRIX_UNITS: Final = (_IN_FP32 & pl.col("tensor_cores")).fill_null(value=False)

#: Formats that a program in fp32 can change to; each keeps the range of fp32 or makes up for it by scaling.
_NARROWER: Final = ("tf32", "bf16", "fp16")

#: Every GPU with tensor cores has at least twice the rate on them.
_LEAST_FACTOR: Final = 2.0


def tensor_core_factor(facts: Facts, wide: str = "fp32") -> float | None:
    """Largest speed-up of a product in narrower formats on tensor cores, by the peaks of the GPU that gains least.

    None if the profile describes no GPU.

    Args:
        wide: present format: `fp32` on vector units, `tf32`, or `fp32-tensor` or `fp64-tensor`, for which vector units
            count if there are no such tensor cores.
    """

    def factor(rates: Mapping[str, float]) -> float:
        vector = rates.get(wide) or rates.get(wide.removesuffix("-tensor")) or math.inf
        return max((rates[name] / vector for name in _NARROWER if name in rates), default=0.0) or _LEAST_FACTOR

    peaks = (peaks_of(device) for device in facts.devices)
    return min((factor(each.flops_per_s if each is not None else {}) for each in peaks), default=None)


_NO_DOUBLES: Final = Remedy(
    "Compute in float32 or less",
    "model.float(); x = torch.from_numpy(array).float()  # NumPy's floats are float64\n"
    "torch.set_float32_matmul_precision('high')",
    "half of the traffic, and products on tensor cores in TF32",
    id="no-float64",
)

_TF32: Final = Remedy(
    "Allow TF32",
    "torch.set_float32_matmul_precision('high')\ntorch.backends.cudnn.allow_tf32 = True  # convolutions",
    "products at half the rate of bfloat16; inputs are rounded to 10 mantissa bits; memory traffic stays",
    id="tf32",
)

#: For products in 16 bits for which the library has no kernel on tensor cores.
_OTHER_SHAPES: Final = (
    Remedy(
        "Write a convolution over patches as a product",
        "# if the stride is the kernel's size, as in embeddings of patches (a video has a third side):\n"
        "x = x.unflatten(-1, (-1, 16)).unflatten(-3, (-1, 16)).permute(0, 2, 4, 1, 3, 5).flatten(-3)\n"
        "nn.Linear(3 * 16 * 16, width)(x)  # the weights of the convolution, flattened",
        f"{GAIN}: a product on tensor cores",
    ),
    Remedy(
        "Ask for what has such kernels",
        "model.to(memory_format=torch.channels_last)  # torch.channels_last_3d for nn.Conv3d\n"
        "# channels in multiples of 8: pad the three of an image to eight",
        "tensor cores, if the library then takes another kernel",
    ),
)

#: For a part of a program that is in 16 bits otherwise.
_AS_THE_REST: Final = Remedy(
    "Compute in bfloat16 there, as in the rest",
    "with torch.autocast('cuda', dtype=torch.bfloat16): scores = decoder(features)\n"
    "# no enabled=False and no .float() around layers: autocast keeps norms, softmax and losses in fp32 by itself\n"
    "# inference: decoder.to(torch.bfloat16), as the other parts",
    f"{GAIN}: products at twice the rate of TF32, and half the memory traffic between them",
    id="bfloat16",
)

#: Formats by GPU: TF32 and bfloat16 need compute capability 8.0, fp16 on tensor cores 7.0.
_NARROWER_REMEDIES: Final = {
    "newer": (
        Remedy(
            "Compute in bfloat16",
            "with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(x)\n"
            "# inference: model.to(torch.bfloat16), and x, too\n"
            "# Lightning: Trainer(precision='bf16-mixed')",
            "products on tensor cores, and half the memory traffic between them",
            id="bfloat16",
        ),
        _TF32,
    ),
    "older": (
        Remedy(
            "Compute in fp16",
            "with torch.autocast('cuda', dtype=torch.float16): loss = model(x)\n"
            "# in training with torch.amp.GradScaler('cuda')",
            "products on tensor cores, and half the memory traffic between them",
            id="fp16",
        ),
    ),
}


#: Least share of the convolutions' time in kernels named after them. In a ResNet-50 it is half; the others are 1×1.
_LEAST_OWN_KERNELS: Final = 0.25


@once
def off_tensor_cores(facts: Facts) -> Bools:
    """Products in fp32 on vector units, or in float64 of a network, that tensor cores could do.

    Depthwise convolutions are left out, as they have no matrix product. If some convolutions run in TF32, the default,
    TF32 is allowed, and the library has no such kernel for the others, such as grouped convolutions.
    """
    if not has_tensor_cores(facts):
        return np.zeros(facts.work.height, dtype=np.bool_)
    program, off = facts.program, facts.work.select(_OFF_TENSOR_CORES).to_series().to_numpy()
    off = off | _on_matrix_units(facts)
    convolutions = program.labelled("convolution")
    if (convolutions & program.having("precision", "tf32")).any():
        off = off & ~convolutions
    return np.asarray((off | _doubles(facts)) & ~program.marked("depthwise"), dtype=np.bool_)


def _narrow(facts: Facts) -> Bools:
    """Products in 16 bits or fewer."""
    narrow: Bools = facts.program.products & facts.program.having("precision", "bf16", "fp16", "fp8")
    return narrow


def _on_matrix_units(facts: Facts) -> Bools:
    """Products in fp32 on matrix units, which GPUs of AMD have."""
    if facts.of_nvidia:
        return np.zeros(facts.work.height, dtype=np.bool_)
    return facts.work.select(_ON_MATRIX_UNITS).to_series().to_numpy()


def _doubles(facts: Facts) -> Bools:
    """Products in float64 of a network, recognised by an optimizer, softmax or norms, which hardly ever needs float64.

    Solvers and simulations need float64 for their matrix products; theirs are left out.
    """
    work = (facts.whole or facts).work
    doubles = facts.program.having("precision", "fp64")
    if not doubles.any():
        return doubles
    products = facts.program.products & doubles
    of_network = pl.col("label").is_in(["normalization", "softmax"]) & (pl.col("precision") == "fp64")
    of_network = of_network | (pl.col("label") == "optimizer") | (pl.col("phase") == "optimizer")
    is_network = bool(work.select(of_network.any()).item())
    return np.asarray(products & is_network, dtype=np.bool_)


def _capability(facts: Facts) -> tuple[int, int]:
    """The least compute capability of the GPUs; 9.0 if unknown."""
    known = (device.compute_capability for device in facts.devices)
    return min((capability for capability in known if capability is not None), default=(9, 0))


@dataclass(frozen=True)
class _Wide:
    """Which wide formats most of the claimed products of a window have. Times in nanoseconds."""

    off_ns: int  #: products off the tensor cores
    doubles_ns: int  #: those of them in float64
    left_out_ns: int  #: products in TF32 of a part that autocast left out
    left_out: bool  #: whether most of them are of such a part
    doubles: bool  #: whether most are in float64
    by_default: bool  #: whether most are in TF32 by PyTorch's default
    narrow: bool  #: whether most have operands in 16 bits
    on_matrix_units: bool  #: whether most are on AMD's matrix units
    beside_tf32: bool  #: whether others are in TF32

    @property
    def peak(self) -> str:
        """The format whose peak narrower formats are compared with (`tensor_core_factor`)."""
        return first_of(
            (self.left_out, "tf32"),
            (self.doubles, "fp64-tensor"),
            (self.on_matrix_units, "fp32-tensor"),
            default="fp32",
        )

    @property
    def may_take_tf32(self) -> bool:
        """Whether TF32 is narrower than most of them."""
        return not (self.doubles or self.by_default or self.narrow or self.left_out)

    @property
    def off_tensor_cores_ns(self) -> int | None:
        """Products in fp32 off the tensor cores; None if that is not what is told."""
        if self.left_out:
            return None
        return (self.off_ns - self.doubles_ns) or None if self.doubles else self.off_ns


class Precision(Rule):
    """Products whose names say fp32 and vector units, on a GPU that has tensor cores."""

    id = "precision"
    model = "products"
    yields = False
    question = "Do matrix products use a format that the tensor cores do not support?"
    limiter = "matrix products in a format that tensor cores multiply slowly or not at all"
    cause = "matrix products off the tensor cores, in float64, or in TF32 where others have 16 bits"
    raised_when = "it costs 2 %, and the GPU has tensor cores"
    claimed = (
        "the time that fp32 products on vector units or AMD's matrix units, and float64 products of a program with "
        "norms, softmax or an optimizer, would save at 0.55 of the ratio of the peaks (for a ratio below 5: 0.94 of "
        "it, and 3.4 % of the time for casts); beside these, half of what products in TF32 take, "
        "unless others have 16 bits; if both are most products, half of the passes over "
        "32-bit numbers, a quarter in training; if other products have 16 bits, also what products in TF32 would save "
        "once they run, half of the passes around these products, and the casts in between"
    )
    headline = "Limited by matrix products off the tensor cores: TF32 or bfloat16 could save {share} of the time"
    older_headline = "Limited by matrix products off the tensor cores: fp16 could save {share} of the time"
    title = "Matrix products run in fp32, off the tensor cores"
    narrow: ClassVar = Variant(
        "Products of 16-bit numbers run in fp32, off the tensor cores",
        "Limited by products of 16-bit numbers off the tensor cores: kernels on them could save {share} of the time",
    )
    by_default: ClassVar = Variant(
        "Convolutions run in TF32, which is the default, and everything between them in fp32",
        "Limited by 32-bit numbers: bfloat16 could save {share} of the time, in convolutions and the work in between",
    )
    on_matrix_units: ClassVar = Variant(
        "Matrix products run in fp32, which matrix units multiply at a fraction of their rate",
        "Limited by matrix products in fp32: bfloat16 could save {share} of the time",
    )
    beside_tf32: ClassVar = Variant(
        "Matrix products run in TF32 and fp32, and everything between them in fp32",
        "Limited by 32-bit numbers: bfloat16 could save {share} of the time, in products and the work in between",
    )
    doubles: ClassVar = Variant(
        "A network computes in float64",
        "Limited by matrix products in float64: narrower formats could save {share} of the time",
    )
    left_out: ClassVar = Variant(
        "A part of the network is left out of mixed precision: its products run in TF32, at half the rate of 16 bits",
        "Limited by a part of the network outside of mixed precision: bfloat16 there could save {share} of the time",
    )
    bf16_headline = "Limited by matrix products off the tensor cores: bfloat16 could save {share} of the time"
    evidence: ClassVar = {
        "claimed_share": "all claimed time, of the window",
        "off_tensor_cores_ns": "products off the tensor cores",
        "off_tensor_cores_share": "of the window",
        "float64_ns": "products in float64, which tensor cores multiply at a fraction of their rate",
        "float64_share": "of the window",
        "of_products_share": "of all products",
        "products_share": "of the window",
        "peak_ratio_factor": "peak of the fastest narrower format over that of fp32, or of float64",
        "tf32_gain_factor": "modelled gain of TF32 alone, if that is a remedy",
        "left_out_ns": "products in TF32 of a program that has others in 16 bits",
        "left_out_of_products_share": "of all products",
        **GPU_BUSY_SHARE,
    }
    refutation = (
        "Run a few steps in the narrower format: if the products do not get faster, memory or their size is the "
        "limit. If the results are no longer accurate enough, the wider format was needed."
    )
    thresholds = ("dominant_share",)
    reached_share = Limit(
        0.55,
        "TF32 has half of the peak of 16 bits. Tensor cores reach 60 to 70 % of the latter, vector units 85 % of "
        "theirs, and autocast spends the rest on casts of weights, inputs and gradients.",
    )

    mixed_reached_share = Limit(
        0.76,
        "TF32, and programs that are in 16 bits otherwise, have no cost of autocast: 0.65 of one peak over 0.85 of the "
        "other.",
    )
    mixed_share = Limit(0.05, "Products in 16 bits, of the time of all products: above it, 16 bits are no exception.")
    beside_share = Limit(
        0.15,
        "Products off the tensor cores, of the time of all products: with fewer, small ones for which the library has "
        "no other kernel, TF32 is the format that the program chose.",
    )
    close_factor = Limit(
        5.0,
        "Below this ratio of the peaks, operands and power keep up with the tensor cores: both units reach what the "
        "headroom assumes of GPUs without measured roofs. Above it, tensor cores reach less than that.",
    )
    close_reached_share = Limit(0.9375, "0.75 of the peak of tensor cores over 0.8 of that of vector units (`roofs`).")
    casts_share = Limit(
        0.034, "Casts of autocast, of the products' time in fp32: what 0.55 and 0.76 differ by at a ratio of 14.8."
    )
    passes_share = Limit(0.5, "Passes between such products in 16 bits move half of the bytes.")
    trained_passes_share = Limit(
        0.25, "Autocast keeps norms, softmax and losses in 32 bits, and casts: half of `passes_share` is saved."
    )
    weights_share = Limit(0.5, "Weights in 16 bits are half of the bytes; products of few rows take as long as these.")
    reach = Limit(6, "Passes between such a product and the cast after it: a scale, a mask, a sum.")
    default_share = Limit(
        0.25, "Convolutions in TF32, of the busy time: below it, casts cost as much as narrower formats save."
    )
    default_saved_share = Limit(
        0.4, "Convolutions and passes over memory take half of the time in 16 bits; autocast spends a fifth of it."
    )

    def headline_of(self, finding: Finding) -> str:
        """The headline; before compute capability 8.0, tensor cores only take fp16."""
        if finding.remedies[-1].id == _NARROWER_REMEDIES["older"][0].id:
            return self.older_headline
        if finding.variant == USUAL and not any(remedy.id == _TF32.id for remedy in finding.remedies):
            return self.bf16_headline
        return super().headline_of(finding)

    def _left(self, factor: float, *, casts: bool) -> float:
        """Share of a product's time that is left at this ratio of the peaks, with or without autocast's casts."""
        if factor < self.close_factor:
            return min(1 / (self.close_reached_share * factor) + casts * self.casts_share, 1.0)
        return 1 / max((self.reached_share if casts else self.mixed_reached_share) * factor, 1.0)

    @remembered
    def claim(self, facts: Facts) -> Float64s | None:
        """Share of products on vector units, and of passes, that the fastest narrower format could save."""
        off, default, part = off_tensor_cores(facts), self._by_default(facts), self._left_out(facts)
        if not off.any() and not default.any() and not part.any():
            return None
        doubles = _doubles(facts)
        share = np.zeros(len(off))
        units = _on_matrix_units(facts)
        kinds = ((off & ~doubles & ~units, "fp32"), (off & units, "fp32-tensor"), (off & doubles, "fp64-tensor"))
        for which, wide in kinds:
            factor = tensor_core_factor(facts, wide) or _LEAST_FACTOR
            share[which] = 1 - self._left(factor, casts=not self._mixed(facts))
        beside = self._beside(facts)
        narrower = 1 - self._left(tensor_core_factor(facts, "tf32") or _LEAST_FACTOR, casts=facts.trains)
        share[beside] = narrower
        # Starting and ending a product takes as long in any format.
        share[part] = narrower * (1 - started_share(facts, np.flatnonzero(part)))
        share[default] = np.maximum(share[default], self.default_saved_share)
        products = facts.program.products
        if 2 * time_of(facts.program, off | beside) > time_of(facts.program, products):
            long = facts.program.having("precision", "fp32", "fp64")
            saved = self.trained_passes_share if facts.trains else self.passes_share
            share[long & facts.program.passes] = saved
        elif self._mixed(facts):
            share = np.maximum(share, self._around(facts))
        return share

    @remembered
    def _around(self, facts: Facts) -> Float64s:
        """Share saved of casts and passes around such products, in a program that is in 16 bits otherwise.

        In 16 bits, the casts to 32 bits and back go away, and passes move half of the bytes.
        """
        program = facts.program
        share = np.zeros(facts.work.height)
        casts = program.in_order(program.labelled("copy-cast") & ~program.marked("joined-or-chosen"))
        wide = program.in_order(program.passes & program.having("precision", "fp32")) & ~casts
        off = program.in_order(off_tensor_cores(facts) | self._left_out(facts))
        for direction in (1, -1):
            places = np.flatnonzero(off)
            for _ in range(int(self.reach)):
                places = places + direction
                places = places[(places >= 0) & (places < len(off))]
                share[program.order[places[casts[places]]]] = 1.0
                places = places[wide[places]]
                rows = program.order[places]
                share[rows] = np.maximum(share[rows], self.passes_share)
        return share

    @remembered
    def _mixed(self, facts: Facts) -> bool:
        """Whether a part of the program computes in 16 bits already, so that its other formats are deliberate."""
        program = facts.program
        return time_of(program, _narrow(facts)) >= self.mixed_share * time_of(program, program.products)

    def _without(self, facts: Facts, claims: Claims) -> Gain | None:
        """Gain of 16 bits; its lower end is that of TF32, which has half of the rate and does not change passes."""
        gain, tf32 = super()._without(facts, claims), self._by_tf32(facts, claims)
        weights = self._weights(facts, claims)
        if weights.any() and gain is not None:
            # Another cause claims these products, but in 16 bits they read half of the bytes all the same.
            share = np.maximum(claims.pieces(self.id).share_of(facts.program.own_ns), self.weights_share * weights)
            both = facts.replayed(time=share)
            gain = gain if both is None or both.expected < gain.expected else both
        if self._mixed(facts) and gain is not None:
            share = claims.pieces(self.id).share_of(facts.program.own_ns)
            casts = facts.program.labelled("copy-cast") & (share >= self.unlaunched_share)
            gain = facts.replayed(time=share, calls=casts.astype(np.float64)) or gain
        return gain if gain is None or tf32 is None else replace(gain, low=min(gain.low, tf32.low))

    def _weights(self, facts: Facts, claims: Claims) -> Bools:
        """Products off the tensor cores that are bound by reading their weights, as another rule says."""
        return off_tensor_cores(facts) & (claims.of_work("weight-bound").to_numpy() > 0)

    def _by_tf32(self, facts: Facts, claims: Claims) -> Gain | None:
        """Gain of TF32, the second remedy; None if the GPU does not have it or no product would use it."""
        off = off_tensor_cores(facts) & ~self._weights(facts, claims)
        if _capability(facts) < (8, 0) or not off.any() or not _tf32_is_faster(facts):
            return None
        factor = tensor_core_factor(facts) or _LEAST_FACTOR
        # Fused attention of fp32 numbers always uses three TF32 products.
        off = off & ~facts.program.labelled("attention") & ~facts.program.marked("narrow-operands")
        gain = facts.replayed(time=np.where(off, 1 - self._left(factor / 2, casts=False), 0.0))
        return None if gain is None or gain.expected < facts.thresholds.raise_ceiling else gain

    @remembered
    def _by_default(self, facts: Facts) -> Bools:
        """Convolutions in TF32 of a program without products in 16 bits, and the fp32 passes between them.

        TF32 is PyTorch's default for convolutions, but not for matrix products: if these use it, it is deliberate. If a
        matrix product is in fp32, as that of a classifier, TF32 is off for them, and those in TF32 are convolutions
        that the library computes as a matrix product (1×1).
        """
        program = facts.program
        tf32 = program.products & program.having("precision", "tf32")
        convolutions = tf32 & program.labelled("convolution")
        convolutions_ns, tf32_ns = time_of(program, convolutions), time_of(program, tf32)
        if (
            convolutions_ns >= _LEAST_OWN_KERNELS * tf32_ns
            and (off_tensor_cores(facts) & program.labelled("gemm")).any()
        ):
            convolutions, convolutions_ns = tf32, tf32_ns
        deliberate = _narrow(facts).any() or 2 * convolutions_ns < tf32_ns
        if deliberate or convolutions_ns < self.default_share * facts.busy_ns:
            return np.zeros(facts.work.height, dtype=np.bool_)
        return np.asarray(convolutions | (program.passes & program.having("precision", "fp32")), dtype=np.bool_)

    @remembered
    def _beside(self, facts: Facts) -> Bools:
        """Matrix products in TF32 of a program that has none in 16 bits, but many off the tensor cores, as attention.

        16 bits double their rate as well; that of convolutions rises less. If all products are in TF32, or nearly all,
        that is taken for a choice.
        """
        program, off = facts.program, off_tensor_cores(facts) & ~facts.program.marked("narrow-operands")
        many = time_of(program, off) >= self.beside_share * time_of(program, program.products)
        if self._mixed(facts) or not off.any() or not many:
            return np.zeros(facts.work.height, dtype=np.bool_)
        tf32 = program.labelled("gemm") & program.having("precision", "tf32")
        return np.asarray(tf32 & ~program.optimizing, dtype=np.bool_)

    @remembered
    def _left_out(self, facts: Facts) -> Bools:
        """Products in TF32 of a program that has others in 16 bits: a part that autocast left out.

        Tensor cores multiply TF32 at half the rate, and all that lies between such products has 32 bits. Products of an
        optimizer, such as those of preconditioners, are no part of the network.
        """
        program = facts.program
        if not self._mixed(facts):
            return np.zeros(facts.work.height, dtype=np.bool_)
        tf32 = program.products & program.having("precision", "tf32") & ~program.marked("depthwise")
        tf32 = tf32 & ~program.optimizing
        return np.asarray(tf32, dtype=np.bool_)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.busy_ns(self.id)
        if not claimed or not has_tensor_cores(facts):
            return None
        wide, products = self._wide(facts), facts.own_ns_having("label", *PRODUCTS)
        factor = tensor_core_factor(facts, wide.peak)
        is_sure = factor is not None and wide.off_ns > facts.thresholds.dominant_share * products
        tf32 = self._by_tf32(facts, claims) if wide.may_take_tf32 else None
        off_cores = wide.off_tensor_cores_ns
        return self.raised(
            facts,
            claimed,
            variant=self._variant(wide),
            confidence="high" if is_sure and not wide.by_default else "medium",
            evidence={
                "claimed_share": claimed / facts.wall_ns,
                "off_tensor_cores_ns": off_cores,
                "off_tensor_cores_share": off_cores / facts.wall_ns if off_cores is not None else None,
                "float64_ns": wide.doubles_ns if wide.doubles else None,
                "float64_share": wide.doubles_ns / facts.wall_ns if wide.doubles else None,
                "of_products_share": wide.off_ns / products if products and not wide.left_out else None,
                "products_share": products / facts.wall_ns,
                "peak_ratio_factor": factor,
                "tf32_gain_factor": tf32.expected if tf32 is not None else None,
                "left_out_ns": wide.left_out_ns or None,
                "left_out_of_products_share": wide.left_out_ns / products if wide.left_out_ns else None,
            },
            where=self._places(facts, claims) if wide.left_out else kernel_names(facts, claims.of_work(self.id)),
            remedies=self._remedies(facts, wide, tf32),
            bound_ns=self._bound_ns(facts, wide, factor or _LEAST_FACTOR),
            on_gpu=True,
            claims=claims,
        )

    def _wide(self, facts: Facts) -> _Wide:
        """Which wide formats most of the claimed products have."""
        program, off = facts.program, off_tensor_cores(facts)
        off_ns = time_of(program, off)
        doubles_ns = time_of(program, _doubles(facts) & off)
        left_out_ns = time_of(program, self._left_out(facts))
        return _Wide(
            off_ns,
            doubles_ns,
            left_out_ns,
            left_out=left_out_ns > off_ns,
            doubles=doubles_ns > off_ns / 2,
            by_default=time_of(program, self._by_default(facts)) > off_ns,
            narrow=2 * time_of(program, off & program.marked("narrow-operands")) > off_ns,
            on_matrix_units=2 * time_of(program, _on_matrix_units(facts) & off) > off_ns,
            beside_tf32=bool(self._beside(facts).any()),
        )

    def _variant(self, wide: _Wide) -> Variant:
        """The variant; the usual one for fp32 on vector units in all products."""
        return first_of(
            (wide.left_out, self.left_out),
            (wide.doubles, self.doubles),
            (wide.by_default, self.by_default),
            (wide.narrow, self.narrow),
            (wide.on_matrix_units, self.on_matrix_units),
            (wide.beside_tf32, self.beside_tf32),
            default=USUAL,
        )

    def _remedies(self, facts: Facts, wide: _Wide, tf32: Gain | None) -> tuple[Remedy | None, ...]:
        """What to do, the narrowest format first; `tf32`: the gain of TF32."""
        if wide.left_out:
            return (_AS_THE_REST,)
        if wide.narrow and not wide.by_default:
            return _OTHER_SHAPES
        known = _NARROWER_REMEDIES["newer" if _capability(facts) >= (8, 0) else "older"]
        if wide.by_default:
            known = known[:1]
        if not _tf32_is_faster(facts) or wide.beside_tf32:
            known = tuple(remedy for remedy in known if remedy is not _TF32)
        told = (bringing(remedy, tf32, self.model) if remedy is _TF32 else remedy for remedy in known)
        return _NO_DOUBLES if wide.doubles else None, *told

    def _bound_ns(self, facts: Facts, wide: _Wide, factor: float) -> int:
        """Time that narrower formats could save at most: passes move two bytes per number instead of four or eight."""
        program = facts.program
        passes = facts.own_ns_having("label", *PASSES)
        in_tf32 = time_of(program, (self._by_default(facts) | self._beside(facts)) & program.products)
        of_products = int(wide.off_ns * (1 - 0.75 / factor)) + int(0.6 * in_tf32) + int(0.6 * wide.left_out_ns)
        return of_products + int((0.8 if wide.doubles else 0.6) * passes)

    def _places(self, facts: Facts, claims: Claims) -> tuple[str, ...]:
        """Modules, ranges or operators of the claimed products and passes; kernels if a range is all of the step."""
        pieces = claims.pieces(self.id)
        ranges = range_names(facts, facts.work["range"], pieces)
        ranges = ranges if ranges != (facts.timeline.steps.name,) else ()
        return facts.program.places(pieces) or ranges or kernel_names(facts, claims.of_work(self.id))


def _tf32_is_faster(facts: Facts) -> bool:
    """Whether the peaks of all GPUs do not tell that TF32 is no faster than the units that multiply fp32 now.

    On graphics cards, tensor cores multiply TF32 at the rate of the vector units.
    """
    now = "fp32-tensor" if _on_matrix_units(facts).any() else "fp32"
    rates = [peaks.flops_per_s for peaks in facts.peaks if "bf16" in peaks.flops_per_s]
    return all(each.get("tf32", 0.0) > _FASTER * (each.get(now) or each["fp32"]) for each in rates)


#: A smaller ratio of peaks is not worth a change of the format.
_FASTER: Final = 1.1


def has_tensor_cores(facts: Facts) -> bool:
    """Whether no GPU is known to lack tensor cores, which came with compute capability 7.0."""
    return _capability(facts) >= (7, 0)
