"""Rules for slow products: unfused attention, sizes and memory formats without fast kernels, few rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import tensors_of
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import ISSUING, PASSES, Finding, Remedy
from warplens.diagnosis.rule import GAIN, Limit, gain_of, remembered
from warplens.diagnosis.rules.kernels import BATCHES, filled_share
from warplens.diagnosis.rules.precision import has_tensor_cores, off_tensor_cores, tensor_core_factor
from warplens.diagnosis.structure import (
    Passes,
    StructureRule,
    time_beside,
    time_of,
    turns_of_step,
)
from warplens.profile.schema import Bools, Float64s, Int64s

#: 16-bit formats, which tensor cores read in groups of eight numbers.
_NARROW: Final = ("bf16", "fp16")


class UnfusedAttention(StructureRule):
    """Attention that writes its scores to memory: a product, passes including a softmax, and another product."""

    id = "unfused-attention"
    model = "products"
    question = "Are the scores of attention written to memory?"
    limiter = "attention that writes its scores to memory"
    cause = "unfused attention: its scores (queries × keys) go through memory between two products"
    raised_when = (
        "a softmax lies between two matrix products with only passes over memory around it, or fused attention gets "
        "one mask of queries × keys for all sequences and heads; and it costs 2 %"
    )
    claimed = (
        "these passes, and the part of the two products that fused attention saves; for fused attention with such a "
        "mask, the masked half of the scores and the cost of slower kernels"
    )
    headline = "Limited by attention that writes its scores to memory: fused attention could save {share} of the time"
    masked_headline: ClassVar = (
        "Limited by attention with an explicit mask: skipping the masked scores could save {share} of the time"
    )
    title = "Attention is not fused: its scores go through memory several times"
    fallback_title: ClassVar = (
        "scaled_dot_product_attention falls back to its written-out form: scores go through memory"
    )
    masked_title: ClassVar = "Fused attention gets an explicit mask: masked scores are computed, in slower kernels"
    headlines: ClassVar = {masked_title: masked_headline}
    evidence: ClassVar = {
        "attentions_per_step": "softmaxes between two products, forward and backward",
        "passes_per_attention_factor": "passes over the scores per attention",
        "masked_per_step": "kernels of fused attention with one mask of all scores",
    }
    refutation = (
        "Time one layer with torch.nn.functional.scaled_dot_product_attention in place of the two products and the "
        "softmax: if it is not faster, the sequences are too short for the scores to matter."
    )
    least_share = Limit(
        0.02, "Below this share, the softmax is a router's, a classifier's or that of a short sequence."
    )
    farthest = Limit(
        16, "Scale, mask, bias, casts and dropout make at most this many passes on either side of a softmax."
    )
    product_saved_share = Limit(
        0.75,
        "Fused attention keeps the scores on chip and skips hidden ones; copies of queries, keys and values go as "
        "well. In six of eight programs timed both ways, less than a quarter of the products' time was left.",
    )
    misaligned_saved_share = Limit(
        0.9, "Sequence lengths that are not a multiple of 8 slow the products down; fused attention takes any length."
    )
    pass_to_softmax_share = Limit(0.03, "A pass over the scores takes at least this share of their softmax's time.")
    masked_saved_share = Limit(
        0.6,
        "If later tokens are hidden, half of the scores need not be computed, and kernels without a mask get nearer "
        "to their roof: 314 TFLOP/s with a mask and 480 with is_causal were measured on an H200.",
    )
    least_mask = Limit(512, "A mask of fewer tokens costs little, and may be anything.")
    hidden_share = Limit(0.5, "A triangle hides the scores of later tokens, which are half of all.")
    narrowed_share = Limit(
        0.6,
        "Fused kernels take 16 bits. Products gain more of the ratio of the peaks than in `precision`: no weight is "
        "cast, and hidden scores are not computed.",
    )

    def share(self, facts: Facts) -> Float64s:
        """All of the passes, a part of the products, and the cost of a mask for fused attention."""
        passes, products, count = self._unfused(facts)
        share = np.zeros(facts.work.height)
        if count and time_of(facts.program, passes) >= self.least_share * facts.wall_ns:
            share[passes] = 1.0
            share[products] = self.product_saved_share
            share[products & facts.program.marked("misaligned")] = self.misaligned_saved_share
            if self._falls_back(facts):
                factor = min((tensor_core_factor(device) for device in facts.devices), default=1.0)
                wide = products & off_tensor_cores(facts)
                causal, copies = self._made_by_fallback(facts, products)
                hidden = self.hidden_share if causal else 0.0
                share[wide] = np.maximum(share[wide], 1 - (1 - hidden) / max(self.narrowed_share * factor, 1.0))
                share[copies] = 1.0
        attention, masks = self._masked(facts)
        share[attention], share[masks] = self.masked_saved_share, 1.0
        return share

    def _made_by_fallback(self, facts: Facts, products: Bools) -> tuple[bool, Bools]:
        """Whether the unfused form makes a triangular mask, and which copies it makes of its operands.

        Fused kernels need neither: a flag replaces the triangle, and they take operands with any strides, and keys that
        heads share.
        """
        program, order = facts.program, facts.program.order
        between = program.labelled("copy-cast", "elementwise") & ~program.marked("concatenation")
        copying, triangles = program.labelled("copy-cast") & ~program.marked("narrowing"), program.marked("triangle")
        begins, ends = program.edges(between)
        after = np.minimum(ends, len(order) - 1)
        before_product = (ends < len(order)) & products[order[after]] & ~program.breaks[after]
        copies, causal = np.zeros(facts.work.height, dtype=np.bool_), False
        for begin, end in zip(begins[before_product].tolist(), ends[before_product].tolist(), strict=True):
            run = order[begin:end]
            copies[run[copying[run]]] = True
            causal = causal or bool(triangles[run].any())
        return causal, copies

    @remembered
    def _falls_back(self, facts: Facts) -> bool:
        """Whether PyTorch's own function writes the scores, because none of its fused kernels takes the inputs.

        The name of the operator shows it; without operators, a test for rows that are masked completely, which only
        that function makes.
        """
        if (facts.timeline.trace.ranges["name"] == "aten::_scaled_dot_product_attention_math").any():
            return True
        passes, _, _ = self._unfused(facts)
        return bool((passes & facts.program.marked("unseen-rows")).any())

    @remembered
    def _masked(self, facts: Facts) -> tuple[Bools, Bools]:
        """Fused attention with one mask for all sequences and heads, and the passes that convert this mask to numbers.

        Such a mask hides later or far tokens: a mask of one sequence would differ between sequences, and a mask of one
        head is a bias. Recorded shapes show it, else the size of the pass over booleans right before the kernel.
        """
        nothing = np.zeros(facts.work.height, dtype=np.bool_)
        found = attention_masks(facts)
        if found is None:
            return nothing, nothing
        least = int(self.least_mask)
        if found.shapes is None:
            sides = np.sqrt(found.numbers)
            is_masked = found.making & (sides >= least) & (sides == np.round(sides))  # a square is one mask
        else:
            texts = found.shapes.drop_nulls().unique().to_list()
            with_mask = [text for text in texts if _mask_of_all(text) >= least]
            is_masked = found.shapes.is_in(with_mask).fill_null(value=False).to_numpy()
        if is_masked.sum() < len(found.attended) / 2 or not is_masked.any():
            return nothing, nothing
        masks = nothing.copy()
        masks[found.before[is_masked & found.making]] = True
        return facts.program.labelled("attention"), masks

    @remembered
    def _unfused(self, facts: Facts) -> tuple[Bools, Bools, int]:
        """Passes over scores, products that write or read scores, and the number of softmaxes between products."""
        program = facts.program
        order, count = program.order, len(program.order)
        passes, products = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        is_softmax = program.labelled("softmax") & ~program.marked("log-softmax")
        softmax = np.flatnonzero(program.in_order(is_softmax))
        if not len(softmax):
            return passes, products, 0
        is_pass = np.append(program.in_order(program.labelled(*PASSES) | ~program.is_kernel), False)
        is_product = program.in_order(program.labelled("gemm"))
        breaks = program.breaks
        stops = np.ones(count + 1, dtype=np.bool_)  # whether a place cannot be reached from the one before it
        stops[1:-1] = breaks[1:]
        # How far an unbroken row of passes reaches from each softmax to the left and to the right.
        left, right = softmax.copy(), softmax.copy()
        for _ in range(int(self.farthest)):
            left -= ~stops[left] & is_pass[left - 1]
            right += ~stops[right + 1] & is_pass[right + 1]
        reached = ~stops[left] & ~stops[right + 1]
        softmax, left, right = softmax[reached], left[reached], right[reached]
        between = is_product[left - 1] & is_product[right + 1]
        softmax, left, right = softmax[between], left[between], right[between]
        lengths = right - left + 1
        inside = np.repeat(left - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(lengths.sum())
        softmax_ns = np.repeat(program.own_ns[order[softmax]], lengths)
        over_scores = program.own_ns[order[inside]] >= self.pass_to_softmax_share * softmax_ns
        second = right[right + 2 < count] + 2
        second = second[is_product[second] & ~breaks[second]]
        passes[order[inside[over_scores]]] = True
        products[order[np.concatenate((left - 1, right + 1, second))]] = True
        return passes, products, len(softmax)

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        passes, products, count = self._unfused(facts)
        attention, masks = self._masked(facts)
        if attention.any() and not count:
            return self.seen(
                facts,
                claims,
                title=self.masked_title,
                confidence="medium",
                evidence={"masked_per_step": int(attention.sum()) / facts.steps},
                # A mask that keeps sequences of one row apart may leave a few of a hundred scores.
                bound_ns=time_of(facts.program, attention) + time_of(facts.program, masks),
                remedies=_UNMASKED,
            )
        falls_back = self._falls_back(facts)
        return self.seen(
            facts,
            claims,
            title=self.fallback_title if falls_back else "",
            confidence="high",
            evidence={
                "attentions_per_step": count / facts.steps,
                "passes_per_attention_factor": int(passes.sum()) / max(count, 1),
            },
            # Fused attention takes some time as well, which cannot be computed from these products.
            bound_ns=int(1.04 * time_of(facts.program, passes | products))
            + int(0.9 * time_beside(facts.program, products, reach=24)[~passes].sum()),
            remedies=_ACCEPTED if falls_back else _FUSED,
        )


@dataclass(frozen=True, eq=False)
class AttentionMasks:
    """Kernels of fused attention, the kernel right before each, and their inputs. Rows are those of `Facts.work`."""

    attended: Int64s  #: rows of the attention kernels
    before: Int64s  #: row of the kernel before each
    making: Bools  #: whether that kernel converts a boolean mask to numbers
    numbers: Float64s  #: how many numbers it makes, at four per thread
    shapes: pl.Series | None  #: input shapes of each attention, as JSON; None if not recorded


@once
def attention_masks(facts: Facts) -> AttentionMasks | None:
    """The kernels of fused attention with their possible masks; None without such kernels."""
    program, order = facts.program, facts.program.order
    places = np.flatnonzero(program.in_order(program.labelled("attention")))
    if not len(places):
        return None
    places = places[(places > 1) & ~program.breaks[places]]
    # A short fill may lie right before the kernel.
    before = order[np.where(program.is_kernel[order[places - 1]], places - 1, places - 2)]
    making = program.marked("choosing")[before] & program.labelled(*PASSES)[before]
    attended, shapes = order[places], None
    if facts.timeline.has_operators:
        all_shapes = program.shapes()
        shapes = None if all_shapes.null_count() == all_shapes.len() else all_shapes.gather(attended)
    return AttentionMasks(attended, before, making, np.nan_to_num(program.threads(before)) * 4, shapes)


#: For attention that is written out by hand.
_FUSED: Final = (
    Remedy(
        "Use fused attention",
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
        "# with a causal mask: is_causal=True\n"
        "# transformers: attn_implementation='sdpa' or 'flash_attention_2'\n"
        "# timm: fused_attn is on by default",
        "the passes over the scores go away, forward and backward, with the memory that they take",
    ),
    Remedy(
        "Use a mask that the fused kernels support",
        "# is_causal=True instead of a dense mask; flex_attention for other biases\n"
        "# torch.nn.attention.sdpa_kernel warns why a kernel cannot be used",
        "the same",
    ),
)

#: For calls of the fused function whose inputs no fused kernel takes.
_ACCEPTED: Final = (
    Remedy(
        "Give scaled_dot_product_attention what its fused kernels take",
        "q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))  # one 16-bit format: norms of queries and keys\n"
        "# and rotary embeddings in fp32 return fp32; head size a multiple of 8; a mask without a gradient\n"
        "with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION): y = model(x)  # warns what it cannot take",
        "the passes over the scores go away; products in fp32 reach tensor cores",
    ),
    _FUSED[1],
)

#: For fused attention with an explicit mask.
_UNMASKED: Final = (
    Remedy(
        "Say what is hidden instead of passing a mask",
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # attn_mask=None\n"
        "# transformers: no attention_mask where no text is padded",
        "hidden scores are not computed, and the fastest kernels can be used",
    ),
    Remedy(
        "Describe another pattern as blocks",
        "mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 1024), None, None, S, S)\n"
        "y = torch.compile(flex_attention)(q, k, v, block_mask=mask)  # torch.nn.attention.flex_attention\n"
        "# several texts in one row: flash_attn_varlen_func",
        "hidden blocks are skipped",
    ),
)


def _mask_of_all(shapes: str) -> int:
    """Side, in tokens, of a square mask that all sequences and heads share, among an attention's inputs; 0 for none.

    Backward operators and some kernels record the mask in expanded form, which is not recognised.
    """
    tensors = [shape for shape in tensors_of(shapes) if len(shape) >= 2]
    return max((shape[-1] for shape in tensors if shape[-1] == shape[-2] and math.prod(shape[:-2]) == 1), default=0)


#: For batched products of single vectors.
_WHOLE_TENSORS: Final = (
    Remedy(
        "Multiply and sum whole tensors",
        "scores = (a * b).sum(-1)  # instead of torch.einsum('bnd,bnd->bn', a, b), or bmm with one row per product\n"
        "outer = a[..., :, None] * b[..., None, :]  # instead of bmm with an inner dimension of 1",
        f"{GAIN}: one pass over the operands",
    ),
    Remedy(
        "Give each product more rows",
        "scores = a @ items.T  # if products share an operand: one product for all, without expand()",
        "tensor cores are used, and the shared operand is read once",
    ),
)

#: For lengths that cuFFT transforms by Bluestein's algorithm.
_SMOOTH_LENGTHS: Final = (
    Remedy(
        "Transform a length with small prime factors",
        "n = scipy.fft.next_fast_len(length, real=True)  # or the next power of two; not just 2 * length - 1\n"
        "y = torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(filter, n), n)[..., :length]",
        f"{GAIN}: one transform instead of two of more than twice the length",
    ),
)

#: Products of fewer pairs of vectors are short, whatever their kernel.
_LEAST_VECTORS: Final = 1024


def _pairs_of_vectors(shapes: str) -> bool:
    """Whether a batched product multiplies many pairs of vectors, as inner or outer products."""
    tensors = [shape for shape in tensors_of(shapes) if len(shape) == 3]
    if len(tensors) < 2:
        return False
    (batch, rows, inner), (*_, columns) = tensors[-2:]  # an addend comes before the two factors
    return batch >= _LEAST_VECTORS and (inner == 1 or rows == columns == 1)


class MisalignedShape(StructureRule):
    """Products whose sizes rule out the fast kernels: operands not aligned to 16 bytes, batches of single vectors."""

    id = "misaligned-shape"
    model = "layout"
    question = "Do sizes keep matrix products off the fast kernels?"
    limiter = "matrix products whose sizes rule out the fast kernels"
    cause = "matrix products or attention whose sizes rule out the fast kernels"
    raised_when = (
        "16-bit products run in kernels for operands that are not aligned to 16 bytes, or batched products have a "
        "single vector on each side, or Fourier transforms have a length with a large prime factor; and it costs 2 %"
    )
    claimed = (
        "the time that well-shaped products with as many FLOPs would save; passes that pad operands for attention; "
        "all but one pass over the operands of products of vectors; four fifths of such transforms"
    )
    headline = "Limited by sizes that the tensor cores cannot use: padding could save {share} of the time"
    transforms_title: ClassVar = (
        "Fourier transforms have a length with a large prime factor, which needs Bluestein's slow algorithm"
    )
    vectors_title: ClassVar = "Batched matrix products have one vector on each side, for which no fast kernel exists"
    headlines: ClassVar = {
        vectors_title: "Limited by matrix products of single vectors: multiplying and summing whole tensors could save "
        "{share} of the time",
        transforms_title: "Limited by Fourier transforms of lengths with a large prime factor: padding them could save "
        "{share} of the time",
    }
    evidence: ClassVar = {
        "misaligned_per_step": "such products, or kernels of such transforms",
        "size_count": "the size that is not a multiple of 8; only where shapes are recorded",
        "padded_size_count": "the next multiple of 64",
        "flops_of_peak_share": "rate of these products, of the data sheet's peak; only where shapes are recorded",
    }
    refutation = (
        "Pad that size to the next multiple of 64 in a test of the product alone (of vectors: multiply and sum): if it "
        "is not faster, the size is not the cause."
    )
    transform_saved_share = Limit(
        0.8,
        "Bluestein's algorithm makes two transforms of at least twice the length, and multiplies by chirps before, "
        "between and after them: five times the passes of one (L. Bluestein, IEEE Trans. Audio 18, 1970).",
    )
    saved_share = Limit(
        0.8,
        "Kernels for operands aligned to 2 bytes reach a fifth of the rate of aligned ones on Hopper, a third on "
        "Ampere.",
    )

    def share(self, facts: Facts) -> Float64s:
        """Time beyond that of a well-shaped product of as many operations."""
        misaligned, vectors = self._misaligned(facts), self._of_vectors(facts)
        transforms = np.where(facts.program.marked("bluestein"), float(self.transform_saved_share), 0.0)
        if not misaligned.any() and not vectors.any():
            return transforms
        roof = facts.at_roof.select((pl.col("roof_ns") / pl.col("owned_ns")).fill_null(1.0)).to_series().to_numpy()
        # Without a known roof, vectors are taken to be at it, and the usual share of misaligned products is saved.
        saved = np.where(roof < 1.0, 1.0 - roof, self.saved_share)
        shaped = np.where(vectors, np.maximum(1.0 - roof, 0.0), np.where(misaligned, saved, 0.0))
        return np.maximum(shaped + self._pads(facts, misaligned), transforms)

    @remembered
    def _of_vectors(self, facts: Facts) -> Bools:
        """Batched products of single vectors; none if shapes are not recorded."""
        of_vectors, rows = np.zeros(facts.work.height, dtype=np.bool_), np.flatnonzero(facts.program.labelled("gemm"))
        if len(rows) and facts.timeline.has_operators:
            shapes = facts.program.shapes().gather(rows)
            texts = [text for text in shapes.drop_nulls().unique().to_list() if _pairs_of_vectors(text)]
            of_vectors[rows[shapes.is_in(texts).fill_null(value=False).to_numpy()]] = True
        return of_vectors

    def _pads(self, facts: Facts, misaligned: Bools) -> Float64s:
        """1 for passes that pad operands right before attention, which well-shaped operands do not need."""
        program = facts.program
        share = np.zeros(facts.work.height)
        attention = program.labelled("attention")
        if not misaligned.any() or not attention.any():
            return share
        order = program.order
        before_attention = np.zeros(len(order), dtype=np.bool_)
        for run in program.runs(program.marked("padding")):
            after = np.flatnonzero(order == run[-1])[0] + 1
            before_attention[run] = after < len(order) and attention[order[after]]
        share[before_attention & ~misaligned] = 1.0
        return share

    def _misaligned(self, facts: Facts) -> Bools:
        misaligned = facts.program.labelled("gemm", "attention") & facts.program.marked("misaligned")
        if not misaligned.any():
            return misaligned
        return np.asarray(misaligned & facts.program.having("precision", *_NARROW), dtype=np.bool_)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.of_work(self.id).to_numpy() > 0
        misaligned, vectors = claimed & self._misaligned(facts), claimed & self._of_vectors(facts)
        transforms = claimed & facts.program.marked("bluestein")
        for which, others, title, remedies in (
            (transforms, misaligned | vectors, self.transforms_title, _SMOOTH_LENGTHS),
            (vectors, misaligned, self.vectors_title, _WHOLE_TENSORS),
        ):
            if time_of(facts.program, which) > time_of(facts.program, others):
                return self.seen(
                    facts,
                    claims,
                    title=title,
                    confidence="high",
                    evidence={"misaligned_per_step": int(which.sum()) / facts.steps},
                    # Passes next to them go over the same numbers; the time of one fused pass is unknown.
                    bound_ns=time_of(facts.program, which) + int(time_beside(facts.program, which).sum()),
                    remedies=remedies,
                )
        if not misaligned.any():
            return None
        size, of_size = self._size(facts, misaligned)
        at_peak = facts.at_roof["theoretical_ns"].filter(pl.Series(misaligned))
        misaligned_ns = time_of(facts.program, misaligned)
        known = at_peak.is_not_null().all()
        padded = -(-size // 64) * 64 if size else None
        reason = f": {size:,} is not a multiple of 8" if size else ""
        # Passes next to such a product have rows of the same odd length, and get faster when padded.
        beside = int(time_beside(facts.program, misaligned).sum()) + time_of(
            facts.program, facts.program.marked("padding") & facts.program.marked("generated")
        )
        helped = None if of_size[misaligned].all() else np.where(of_size, self.share(facts), 0.0)
        return self.seen(
            facts,
            claims,
            title=f"Matrix products have sizes that the tensor cores cannot use{reason}",
            confidence="high",
            evidence={
                "misaligned_per_step": int(misaligned.sum()) / facts.steps,
                "size_count": size,
                "padded_size_count": padded,
                "flops_of_peak_share": float(at_peak.sum()) / misaligned_ns if known else None,
            },
            bound_ns=int(misaligned_ns - at_peak.sum()) + beside // 2,
            # Padding one size helps only the products that have it.
            replayed=None if helped is None else facts.replayed(time=helped),
            remedies=(
                Remedy(
                    f"Pad that size to {padded:,}" if padded else "Pad the odd size to a multiple of 64",
                    "nn.Linear(width, 64 * math.ceil(classes / 64))  # extra columns masked\n"
                    "# transformers: model.resize_token_embeddings(pad_to_multiple_of=64)",
                    "these products run at the rate of well-shaped ones",
                ),
                Remedy(
                    "Let the compiler pad",
                    "torch._inductor.config.shape_padding = True  # the default in recent versions\n"
                    "# and torch.compile",
                    "the same, minus one copy where operands are padded in every step",
                ),
            ),
        )

    def _size(self, facts: Facts, misaligned: Bools) -> tuple[int | None, Bools]:
        """The recorded size, no multiple of 8, of most of these products' time; and the products that have it."""
        shapes, own = facts.program.shapes(), facts.program.own_ns
        spent: dict[int, int] = {}
        with_size: dict[int, Bools] = {}
        for text in shapes.filter(pl.Series(misaligned)).drop_nulls().unique().sort():
            rows = misaligned & (shapes == text).fill_null(value=False).to_numpy()
            for size in {size for shape in tensors_of(text) for size in shape if size > 8 and size % 8}:
                spent[size] = spent.get(size, 0) + int(own[rows].sum())
                with_size[size] = with_size[size] | rows if size in with_size else rows
        most = max(spent, key=lambda size: (spent[size], size), default=None)
        return most, misaligned if most is None else with_size[most]


#: Dimensions that convolutions slide over → remedy. PyTorch has such formats for images (4-D) and volumes (5-D) only.
_CHANNELS_LAST: Final[dict[int | None, Remedy]] = {
    1: Remedy(
        "Keep sequences as (batch, length, channels)",
        "nn.Linear(c, d)(x)  # instead of nn.Conv1d(c, d, 1): the same product, without transposes before and after\n"
        "# longer kernels: nn.Conv2d(c, d, (1, k)) on x.unsqueeze(2), both in memory_format=torch.channels_last",
        "no conversions; channels_last does not exist for tensors of three dimensions",
    ),
    2: Remedy(
        "Use channels last for model and images",
        "model = model.to(memory_format=torch.channels_last)\n"
        "x = x.to(device, memory_format=torch.channels_last, non_blocking=True)",
        "no conversions, and higher bandwidth in norms and activations",
    ),
    3: Remedy(
        "Use channels last for model and volumes",
        "model = model.to(memory_format=torch.channels_last_3d)  # convert weights of other convolutions separately\n"
        "x = x.to(device, memory_format=torch.channels_last_3d, non_blocking=True)",
        "no conversions, and higher bandwidth in norms and activations",
    ),
}
_CHANNELS_LAST[None] = replace(
    _CHANNELS_LAST[2],
    how=f"{_CHANNELS_LAST[2].how}\n"
    "# volumes: torch.channels_last_3d; sequences: nn.Linear instead of nn.Conv1d(c, d, 1)",
)


class MemoryFormat(StructureRule):
    """Convolutions between layout conversions, and norms in the format that is slow for convolutions."""

    id = "memory-format"
    model = "layout"
    question = "Does the memory format of images make convolutions slow?"
    limiter = "conversions of memory format around convolutions"
    cause = "memory format: convolutions and norms in the slow format (NCHW), conversions between formats"
    raised_when = (
        "there are convolutions on a GPU with tensor cores, conversions between formats or channels-first "
        "depthwise convolutions take 2 % of the time, and it costs 2 %"
    )
    claimed = "all of the conversions, and two thirds of channels-first norms and depthwise convolutions"
    headline = (
        "Limited by the memory format: {share} of the time goes into converting it and into kernels for the slow one"
    )
    title = "Images are in channels-first format (NCHW), which convolutions on tensor cores do not support"
    sequences_title: ClassVar = (
        "Sequences are in channels-first format (batch, channels, length), which convolutions convert there and back"
    )
    volumes_title: ClassVar = (
        "Volumes are in channels-first format (NCDHW), which convolutions on tensor cores do not support"
    )
    evidence: ClassVar = {
        "conversions_per_step": "kernels that change the layout",
        "conversions_share": "of the window",
        "channels_first_share": "of the window, norms and depthwise convolutions on channels-first data",
    }
    refutation = (
        "Run with model.to(memory_format=torch.channels_last) and convert the inputs, too: if it is not faster, "
        "the format is not the limit."
    )
    least_conversions_share = Limit(0.02, "Below this share, they belong to the first layer or to an output.")
    norm_saved_share = Limit(
        0.65,
        "Channels-first batch norms run one block per channel; channels-last ones reach three times the bandwidth.",
    )

    def share(self, facts: Facts) -> Float64s:
        """All of the conversions, and a part of the slow kernels."""
        program = facts.program
        conversions = program.marked("layout-conversion")
        slow = self._slow(facts)
        share = np.zeros(facts.work.height)
        wrong = conversions | (slow & program.labelled("convolution"))
        if (
            not has_tensor_cores(facts)
            or not program.labelled("convolution").any()
            or time_of(program, wrong) < self.least_conversions_share * facts.wall_ns
        ):
            return share
        share[slow] = self.norm_saved_share
        share[conversions] = 1.0
        return share

    def _slow(self, facts: Facts) -> Bools:
        """Channels-first norms and depthwise convolutions; fast depthwise kernels need channels last."""
        program = facts.program
        first = program.marked("channels-first") & program.labelled("normalization", "reduction", "convolution")
        not_slow = program.labelled("convolution")
        if self._dimensions(facts) != 1:  # for sequences, there are no depthwise kernels with channels last
            not_slow = not_slow & ~program.marked("depthwise")
        return np.asarray(first & ~not_slow, dtype=np.bool_)

    @remembered
    def _dimensions(self, facts: Facts) -> int | None:
        """Dimensions of most convolutions: 1 (sequences), 2 (images) or 3 (volumes); None without shapes.

        PyTorch runs convolutions of sequences as those of images of height 1.
        """
        program = facts.program
        if not facts.timeline.has_operators:
            return None
        convolutions = np.flatnonzero(program.labelled("convolution"))
        shapes = program.shapes().gather(convolutions)
        frame = pl.DataFrame({"shapes": shapes, "time": program.own_ns[convolutions]})
        times = dict.fromkeys((1, 2, 3), 0)
        for text, spent in frame.drop_nulls().group_by("shapes").agg(pl.col("time").sum()).iter_rows():
            sides = [shape[2:] for shape in tensors_of(text) if len(shape) in (3, 4, 5)]
            if len(sides) > 1:
                flat = all(len(side) == 1 or (len(side) == 2 and side[0] == 1) for side in sides)
                times[1 if flat else max(map(len, sides))] += spent
        return max(times, key=lambda each: times[each]) if any(times.values()) else None

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        program = facts.program
        conversions = program.marked("layout-conversion")
        slow = self._slow(facts)
        others = program.labelled(*PASSES, "convolution") & ~conversions & ~slow
        dimensions = self._dimensions(facts)
        return self.seen(
            facts,
            claims,
            title={1: self.sequences_title, 3: self.volumes_title}.get(dimensions or 2, ""),
            confidence="high",
            evidence={
                "conversions_per_step": int(conversions.sum()) / facts.steps,
                "conversions_share": time_of(program, conversions) / facts.wall_ns,
                "channels_first_share": time_of(program, slow) / facts.wall_ns,
            },
            # Kernels on the slow format may get as fast as their roof, which follows from the shapes.
            bound_ns=time_of(program, conversions)
            + int(0.85 * time_of(program, others))
            + int(time_of(program, slow) - facts.at_roof["theoretical_ns"].filter(pl.Series(slow)).sum()),
            remedies=(
                _CHANNELS_LAST[dimensions],
                Remedy(
                    "Compile the model",
                    "model = torch.compile(model)  # chooses layouts for the whole graph, fuses norms and activations",
                    "the same, and fewer passes",
                ),
            ),
        )


_QUANTIZED: Final = Remedy(
    "Quantize the weights",
    "# weights in 8 or 4 bits: torchao.quantization.quantize_, bitsandbytes, AWQ",
    "half or a quarter of these products' time",
)


class WeightBound(StructureRule):
    """Products of few rows, which take as long as reading their weights."""

    id = "weight-bound"
    model = "products"
    question = "Do products have so few rows that they are bound by reading their weights?"
    limiter = "products of few rows, dominated by reading their weights"
    cause = "small-batch products that are bound by reading their weights"
    raised_when = "products of at most 16 rows take 40 % of the time, and the GPU is busy for at least 70 % of it"
    claimed = (
        "the part of all kernels' time per unit of work that a batch of 16 would save, or of as many as a step does "
        "one by one: for products all but one reading of the weights, for others the part of the GPU left empty"
    )
    headline = "Limited by reading the weights: a larger batch would save {share} of the time per unit of work"
    title = "Products have so few rows that they are bound by reading their weights"
    slow_title: ClassVar = "Products have so few rows that more would hardly take longer"
    headlines: ClassVar = {
        slow_title: "Limited by products of few rows: a larger batch would save {share} of the time per unit of work"
    }
    evidence: ClassVar = {
        "rows_count": "rows of such a product; only where shapes are recorded",
        "weights_bytes_per_step": "bytes of weights that they read; only where shapes are recorded",
        "at_peak_share": "time at the data sheet's peaks, of their time; only where shapes are recorded",
    }
    refutation = "Double the batch: if the step takes about twice as long, the products did more than read weights."
    fewest_share = Limit(0.4, "Products that take less of the time are not the limit.")
    least_busy_share = Limit(0.7, "While a GPU waits for its host, it reads no weights.")
    least_reading_ns = Limit(
        5_000,
        "Libraries use narrow tiles for small products of many rows as well; these last about 3 µs, in which hardly "
        "any weights are read. Products of single sequences last 9 µs and more.",
    )
    least_peak_share = Limit(
        0.2, "Below a fifth of the memory's rate, reading is not the limit, but starting and summing up the product."
    )
    rows = Limit(
        16, "Up to 16 rows, a quarter of a tile of the tensor cores, the time of a product hardly depends on them."
    )

    def share(self, facts: Facts) -> Float64s:
        """Time per unit of work that a larger batch would save."""
        enough = time_of(facts.program, self._narrow(facts)) >= self.fewest_share * facts.wall_ns
        if enough and facts.busy_share >= self.least_busy_share:
            return self._shared(facts, self._batch(facts))
        return np.zeros(facts.work.height)

    def _shared(self, facts: Facts, count: int) -> Float64s:
        """Share of each piece's time per unit of work that a batch of `count` saves."""
        batch = Passes(count, np.ones(facts.work.height, dtype=np.bool_))
        saved = batch.saved_share(facts, filled_share(facts))
        return np.where(facts.program.labelled("gemm"), batch.freed, saved)

    def _whole_share(self, facts: Facts, count: int) -> float:
        """Share of the window that a batch of `count` saves, time of other claims and pauses included."""
        saved = self._shared(facts, count) @ facts.program.own_ns + (1 - 1 / count) * facts.idle_ns
        return float(saved) / facts.wall_ns

    def _gain(self, facts: Facts, count: int) -> float:
        """Gain per unit of work with a batch of `count`, at most `count`."""
        share = self._whole_share(facts, count)
        issuing = int(share * facts.idle(*ISSUING))
        return min(gain_of(facts, int(share * facts.wall_ns), on_gpu=False, issuing_ns=issuing), float(count))

    def _batch(self, facts: Facts) -> int:
        """How many items could share the weights: the turns of a loop of the step, or `rows` if that is more."""
        turns = turns_of_step(facts)
        return int(max(self.rows, turns.count if turns is not None else 0))

    def _by_name(self, facts: Facts, products: Bools) -> Bools:
        """Products with a narrow name, if most of their time is in kernels long enough to read weights.

        Batched products are left out: they have one matrix per vector, so more rows would not share weights.
        """
        named = products & facts.program.marked("vector-product") & ~facts.program.stacked
        reading = named & (facts.program.own_ns >= self.least_reading_ns)
        enough = 2 * time_of(facts.program, reading) >= time_of(facts.program, named)
        return named if enough else np.zeros_like(named)

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """Pauses, which a larger batch shares as well."""
        return np.full(facts.gaps.height, 1 - 1 / self._batch(facts)) if self.share(facts).any() else None

    @remembered
    def _narrow(self, facts: Facts) -> Bools:
        """Products of few rows, by their shapes, else by their names."""
        program = facts.program
        products = program.labelled("gemm")
        shapes = program.shapes() if facts.timeline.has_operators else None
        if shapes is None or shapes.null_count() == shapes.len():
            return self._by_name(facts, products)
        texts = shapes.filter(pl.Series(products)).drop_nulls().unique().to_list()
        few = [text for text in texts if 0 < _rows(text) <= self.rows]
        by_shape = shapes.is_in(few).fill_null(value=False).to_numpy()
        by_name = self._by_name(facts, products & shapes.is_null().to_numpy())
        return np.asarray(products & (by_shape | by_name), dtype=np.bool_)

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        claimed = claims.of_work(self.id).to_numpy() > 0
        count = self._batch(facts)
        weights = self._weights(facts)
        reads = weights.get("at_peak_share", 1.0) >= self.least_peak_share
        found = self.seen(
            facts,
            claims,
            title="" if reads else self.slow_title,
            confidence="high" if not facts.program.shapes().is_null().all() else "medium",
            evidence={"rows_count": self._most_rows(facts, claimed), **weights},
            whole_share=self._whole_share(facts, count),
            bound_ns=facts.wall_ns - facts.wall_ns // 128,
            remedies=(
                Remedy(
                    "Process more sequences at a time",
                    "# continuous batching (vllm, text-generation-inference), or generate() on a batch",
                    f"{GAIN} for each with {count} at a time; throughput grows with the number of sequences until "
                    "products compute as long as they read",
                    gain_by_batch={size: self._gain(facts, size) for size in sorted({*BATCHES, count})},
                ),
                *((_QUANTIZED,) if reads else ()),
                Remedy(
                    "Use speculative decoding",
                    "model.generate(assistant_model=draft)  # a small draft model proposes tokens",
                    "two to three tokens per pass over the weights",
                ),
            ),
        )
        if found is None or found.expected_interval is None:
            return found
        # A batch of `count` cannot gain more than `count` times.
        low, high = found.expected_interval
        interval = low, min(high, max(float(count), found.expected or 0.0))
        first, *rest = found.remedies
        return replace(found, expected_interval=interval, remedies=(replace(first, gain_interval=interval), *rest))

    def _weights(self, facts: Facts) -> dict[str, float]:
        products = facts.at_roof.filter(pl.Series(self._narrow(facts)))
        if products.is_empty() or products["theoretical_ns"].null_count():
            return {}
        at_peak = float(products["theoretical_ns"].sum()) / int(products["owned_ns"].sum())
        return {"weights_bytes_per_step": float(products["bytes"].sum()) / facts.steps, "at_peak_share": at_peak}

    def _most_rows(self, facts: Facts, products: Bools) -> int | None:
        texts = facts.program.shapes().filter(pl.Series(products)).drop_nulls().unique().to_list()
        return max((_rows(text) for text in texts), default=None)


def _rows(shapes: str) -> int:
    """Rows of a product's left operand, by the shapes of its inputs; 0 if unknown."""
    tensors = tensors_of(shapes)
    matrices = [shape for shape in tensors if len(shape) >= 2]
    if len(matrices) < 2:
        vectors = [shape for shape in tensors if len(shape) == 1]
        # The vector must be as long as the rows of the matrix.
        return int(len(matrices) == 1 and any(vector[0] == matrices[0][-1] for vector in vectors))
    left, right = matrices[-2:]
    return min(math.prod(left[:-1]), math.prod(right[:-1]), right[-1]) if len(left) == len(right) == 2 else 0
