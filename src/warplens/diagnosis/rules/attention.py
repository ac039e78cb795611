"""Rule for attention that writes its scores to memory, or reads a mask of queries × keys."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import tensors_of
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.program import Program
from warplens.diagnosis.rule import Limit, first_of, remembered
from warplens.diagnosis.rules.precision import Precision, off_tensor_cores, tensor_core_factor
from warplens.diagnosis.structure import StructureRule, time_beside, time_of
from warplens.profile.schema import Bools, Float64s, Int64s, name_categories, texts_where, texts_with


class UnfusedAttention(StructureRule):
    """Attention that writes its scores to memory: a product, passes including a softmax, and another product."""

    id = "unfused-attention"
    model = "products"
    question = "Are the scores of attention written to memory?"
    limiter = "attention that writes its scores to memory"
    cause = "unfused attention: its scores (queries × keys) go through memory between two products"
    raised_when = (
        "a softmax lies between two matrix products of its own with only passes over memory around it, none of them a "
        "normalization, and neither shapes nor kernels show linear layers, or numbers that are joined or chosen after "
        "the softmax; or fused attention gets one mask of queries × keys for all sequences and heads; and it costs 2 %"
    )
    claimed = (
        "these passes, the mean of the weights over heads, and the part of the products (two forward, four backward) "
        "that fused attention saves; of a copy of a transposed gradient, what it takes longer than the product; for "
        "fused attention with such a mask, the masked half of the scores and the cost of slower kernels"
    )
    headline = "Limited by attention that writes its scores to memory: fused attention could save {share} of the time"
    title = "Attention is not fused: its scores go through memory several times"
    fallback: ClassVar = Variant(
        "scaled_dot_product_attention falls back to its written-out form: scores go through memory",
        refutation="Time one layer with inputs that a fused kernel takes (16 bits, no mask; the result is wrong, but "
        "only the time counts): if it is not faster, the sequences are too short for the scores to matter.",
    )
    returned: ClassVar = Variant(
        "nn.MultiheadAttention returns its weights, so that attention is not fused: scores go through memory",
        refutation="Time one layer with need_weights=False: if it is not faster, the sequences are too short for the "
        "scores to matter.",
    )
    masked: ClassVar = Variant(
        "Fused attention gets an explicit mask: masked scores are computed, in slower kernels",
        "Limited by attention with an explicit mask: skipping the masked scores could save {share} of the time",
        "Time one layer with is_causal=True in place of the mask (the result may be wrong, but only the time counts): "
        "if it is not faster, the mask is not the limit.",
    )
    evidence: ClassVar = {
        "attentions_per_step": "softmaxes between two products, forward and backward",
        "passes_per_attention_factor": "passes over the scores per attention",
        "misaligned_per_step": "products for operands not aligned to 16 bytes: a length is no multiple of 8",
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
    mean_to_softmax_share = Limit(
        0.25, "A mean over heads reads what a softmax reads and writes, and so takes about half of its time."
    )
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
        written = self._unfused(facts)
        passes, products = written.passes, written.products
        share = np.zeros(facts.work.height)
        if written.count and time_of(facts.program, passes) >= self.least_share * facts.wall_ns:
            share = written.transposed.copy()
            share[passes] = 1.0
            share[products] = self.product_saved_share
            share[products & facts.program.marked("misaligned")] = self.misaligned_saved_share
            if self._falls_back(facts):
                factor = tensor_core_factor(facts) or 1.0
                wide = products & off_tensor_cores(facts)
                causal, copies = self._made_by_fallback(facts, products)
                hidden = self.hidden_share if causal else 0.0
                share[wide] = np.maximum(share[wide], 1 - (1 - hidden) / max(self.narrowed_share * factor, 1.0))
                # Fused kernels save at least what narrower products alone would, which are a part of this finding.
                narrowed = Precision().claim(facts) if wide.any() else None
                if narrowed is not None:
                    share[wide] = np.maximum(share[wide], np.nextafter(narrowed[wide], 1.0))
                share[copies] = 1.0
        attention, masks = self._masked(facts)
        share[attention] = self.masked_saved_share
        share[masks] = 1.0
        return share

    def _made_by_fallback(self, facts: Facts, products: Bools) -> tuple[bool, Bools]:
        """Whether the unfused form makes a triangular mask, and which copies it makes of its operands.

        Fused kernels need neither: a flag replaces the triangle, and they take operands with any strides, and keys that
        heads share.
        """
        program = facts.program
        between = program.labelled("copy-cast", "elementwise") & ~program.marked("concatenation")
        copying = program.labelled("copy-cast") & ~program.marked("narrowing")
        triangles = program.marked("triangle")
        copies = np.zeros(facts.work.height, dtype=np.bool_)
        causal = False
        for run, _ in program.runs_before(between, products):
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
        return bool((self._unfused(facts).passes & facts.program.marked("unseen-rows")).any())

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
            is_masked = texts_where(found.shapes, lambda text: _mask_of_all(text) >= least)
        if is_masked.sum() < len(found.attended) / 2 or not is_masked.any():
            return nothing, nothing
        masks = nothing.copy()
        masks[found.before[is_masked & found.making]] = True
        return facts.program.labelled("attention"), masks

    @remembered
    def _unfused(self, facts: Facts) -> _Written:
        """What attention that writes its scores to memory consists of."""
        program = facts.program
        order = program.order
        count = len(order)
        passes = np.zeros(count, dtype=np.bool_)
        products = np.zeros(count, dtype=np.bool_)
        softmax, left, right = self._between_products(facts)
        if not len(softmax):
            return _Written(passes, products, np.zeros(count), np.zeros(count, dtype=np.bool_), 0)
        lengths = right - left + 1
        inside = np.repeat(left - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(lengths.sum())
        softmax_ns = np.repeat(program.own_ns[order[softmax]], lengths)
        is_large = program.own_ns[order[inside]] >= self.pass_to_softmax_share * softmax_ns
        passes[order[inside[is_large]]] = True
        is_backward = program.in_order(program.marked("backward"))[softmax]
        # In the backward pass, two products make gradients of weights and values, and two those of queries and keys.
        before = _next_kernel(program, left[is_backward] - 1, -1)
        last = _next_kernel(program, right[is_backward] + 1, 1)
        is_product = program.in_order(program.labelled("gemm"))
        before, is_second = before[is_product[before]], is_product[last]
        products[order[np.concatenate((left - 1, right + 1, before, last[is_second]))]] = True
        last[~is_second] = right[is_backward][~is_second] + 1
        means = self._means(facts, softmax[~is_backward], right[~is_backward])
        passes |= means
        return _Written(passes, products, self._transposed(facts, last), means, len(softmax))

    def _means(self, facts: Facts, softmax: Int64s, right: Int64s) -> Bools:
        """Means of the weights over heads, which `nn.MultiheadAttention` takes after the projection of its result.

        Nothing else takes a mean right after a product; a mean over other numbers than the weights is shorter.

        Args:
            softmax: places of the softmaxes of a forward pass in `Program.order`.
            right: places of the last passes before the products with values.
        """
        program, order = facts.program, facts.program.order
        means = np.zeros(facts.work.height, dtype=np.bool_)
        products = np.flatnonzero(program.in_order(program.labelled("gemm")))
        projection = np.searchsorted(products, right + 1) + 1
        known = projection < len(products)
        rows = order[_next_kernel(program, products[projection[known]], 1)]
        softmax_ns = program.own_ns[order[softmax[known]]]
        is_mean = program.marked("averaging")[rows] & (program.own_ns[rows] >= self.mean_to_softmax_share * softmax_ns)
        means[rows[is_mean]] = True
        return means

    def _transposed(self, facts: Facts, last: Int64s) -> Float64s:
        """Share saved of copies of transposed gradients, which follow the last products of the backward pass.

        The gradient of keys comes out of its product transposed. A copy of it moves less than the product, which reads
        scores as well; if it takes longer, it reads or writes memory in small pieces.
        """
        program, order = facts.program, facts.program.order
        share = np.zeros(facts.work.height)
        is_pass = np.append(program.in_order(program.passes | ~program.is_kernel) & ~program.breaks, False)
        copies = program.marked("strided") & program.labelled("copy-cast") & ~program.marked("narrowing")
        product_ns, place = program.own_ns[order[last]], last + 1
        for _ in range(int(self.farthest)):
            product_ns, place = product_ns[is_pass[place]], place[is_pass[place]]
            rows = order[place]
            share[rows] = np.where(copies[rows], 1 - product_ns / np.maximum(program.own_ns[rows], product_ns), 0.0)
            place = place + 1
        return share

    def _between_products(self, facts: Facts) -> tuple[Int64s, Int64s, Int64s]:
        """Places of the softmaxes that lie between two products with only passes around, and of the outermost passes.

        Places are those in `Program.order`.
        """
        program = facts.program
        is_softmax = program.labelled("softmax") & ~program.marked("log-softmax")
        softmax = np.flatnonzero(program.in_order(is_softmax))
        if not len(softmax):
            return softmax, softmax, softmax
        # Scores are not normalized in any other way.
        over_scores = program.passes & ~program.labelled("normalization")
        is_pass = np.append(program.in_order(over_scores | ~program.is_kernel), False)
        is_product = program.in_order(program.labelled("gemm"))
        stops = np.ones(len(is_pass), dtype=np.bool_)  # whether a place cannot be reached from the one before it
        stops[1:-1] = program.breaks[1:]
        # How far an unbroken row of passes reaches from each softmax to the left and to the right.
        left = softmax.copy()
        right = softmax.copy()
        for _ in range(int(self.farthest)):
            left -= ~stops[left] & is_pass[left - 1]
            right += ~stops[right + 1] & is_pass[right + 1]
        places = np.stack((softmax, left, right))
        places = places[:, ~stops[left] & ~stops[right + 1]]
        _, left, right = places
        places = places[:, is_product[left - 1] & is_product[right + 1]]
        _, left, right = places
        # Each attention has two products of its own: one between two softmaxes makes a layer of each, not attention.
        places = places[:, ~np.isin(left - 1, right + 1) & ~np.isin(right + 1, left - 1)]
        softmax, left, right = places[:, self._of_attention(facts, *places)]
        return softmax, left, right

    def _of_attention(self, facts: Facts, softmax: Int64s, left: Int64s, right: Int64s) -> Bools:
        """Which of these softmaxes are those of an attention.

        Scores and weights are operands of products over a batch of heads, not of linear layers; and the next product
        reads the weights as they are, not joined to other numbers, and not what was drawn with them.
        """
        program = facts.program
        other = program.in_order(program.marked("joined-or-chosen"))
        before = np.r_[0, np.cumsum(other)]
        found: Bools = before[right + 1] == before[softmax]
        # A library splits a product of few rows; a batch fills the GPU without that, or its sum has several layers.
        summing = program.in_order(program.marked("summing-parts") & ~program.stacked)
        layers = program.in_order(program.marked("adding-bias")) | summing
        found &= ~layers[left - 1] & ~layers[right + 1] & ~summing[_next_kernel(program, right + 1, 1)]
        if not facts.timeline.has_operators or not len(softmax):
            return found
        # What was recorded around a compiler's kernels are inputs of a whole region.
        texts = program.shapes().zip_with(pl.Series(~program.marked("generated")), pl.Series([None], dtype=pl.String))
        columns = (texts.gather(program.order[at]).to_list() for at in (left - 1, softmax, right + 1))
        of_heads = [_is_of_heads(*shapes) for shapes in zip(*columns, strict=True)]
        return np.asarray(found & np.array(of_heads, dtype=np.bool_), dtype=np.bool_)

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding: on scores in memory, or on an explicit mask where all attention is fused."""
        attention, _ = self._masked(facts)
        is_masked = attention.any() and not self._unfused(facts).count
        return self._explicit_mask(facts, claims) if is_masked else self._scores(facts, claims)

    def _explicit_mask(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding on fused attention with a mask."""
        attention, masks = self._masked(facts)
        return self.seen(
            facts,
            claims,
            variant=self.masked,
            confidence="medium",
            evidence={"masked_per_step": int(attention.sum()) / facts.steps},
            # A mask that keeps sequences of one row apart may leave a few of a hundred scores.
            bound_ns=time_of(facts.program, attention) + time_of(facts.program, masks),
            remedies=_UNMASKED,
        )

    def _scores(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding on attention that writes its scores to memory."""
        written = self._unfused(facts)
        passes, products = written.passes, written.products
        falls_back = self._falls_back(facts)
        returned = not falls_back and self._returns_weights(facts)
        # Fused attention takes some time as well, which cannot be computed from these products.
        attention_ns = int(1.04 * time_of(facts.program, passes | products))
        beside = time_beside(facts.program, products, reach=24, over_others=True)
        beside_ns = int(0.9 * beside[~passes].sum())
        misaligned = int((products & facts.program.marked("misaligned")).sum())
        remedies = first_of((falls_back, _ACCEPTED), (returned, (_NO_WEIGHTS, *_FUSED)), default=_FUSED)
        return self.seen(
            facts,
            claims,
            variant=first_of((falls_back, self.fallback), (returned, self.returned), default=USUAL),
            confidence="high",
            evidence={
                "attentions_per_step": written.count / facts.steps,
                "passes_per_attention_factor": int(passes.sum()) / max(written.count, 1),
                "misaligned_per_step": misaligned / facts.steps if misaligned else None,
            },
            bound_ns=attention_ns + beside_ns,
            remedies=(*remedies, _EVEN_LENGTH) if misaligned else remedies,
        )

    def _returns_weights(self, facts: Facts) -> bool:
        """Whether `nn.MultiheadAttention` writes the scores, because it returns their average over heads."""
        trace = facts.timeline.trace
        named = (trace.ranges["name"] == "aten::_native_multi_head_attention").any()
        modules = texts_with(name_categories(trace.python_functions["name"]), _MULTIHEAD).any()
        return bool(named or modules or self._unfused(facts).means.any())


@dataclass(frozen=True, eq=False)
class _Written:
    """What attention that writes its scores to memory consists of. Arrays have one value per row of `Facts.work`."""

    passes: Bools  #: passes over scores and weights
    products: Bools  #: products that write or read scores, weights or their gradients
    transposed: Float64s  #: share saved of copies of transposed gradients
    means: Bools  #: those of the passes that average weights over heads
    count: int  #: softmaxes between products


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
    program = facts.program
    order = program.order
    places = np.flatnonzero(program.in_order(program.labelled("attention")))
    if not len(places):
        return None
    places = places[(places > 1) & ~program.breaks[places]]
    # A short fill may lie right before the kernel.
    before = order[np.where(program.is_kernel[order[places - 1]], places - 1, places - 2)]
    making = program.marked("choosing")[before] & program.passes[before]
    attended = order[places]
    shapes = None
    if facts.timeline.has_operators:
        all_shapes = program.shapes()
        shapes = None if all_shapes.null_count() == all_shapes.len() else all_shapes.gather(attended)
    return AttentionMasks(attended, before, making, np.nan_to_num(program.threads(before)) * 4, shapes)


#: The module of `nn.MultiheadAttention` in a profile with Python's functions.
_MULTIHEAD: Final = re.compile(r"\bMultiheadAttention")

#: For `nn.MultiheadAttention`, which calls the fused function only if nobody asks for weights.
_NO_WEIGHTS: Final = Remedy(
    "Ask nn.MultiheadAttention for no weights",
    "y, _ = attention(x, x, x, need_weights=False)  # the default returns weights, averaged over heads",
    f"{GAIN}: the module then calls fused attention; weights are neither written nor averaged",
)

#: For attention that is written out by hand.
_FUSED: Final = (
    Remedy(
        "Use fused attention",
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
        "# with a causal mask: is_causal=True\n"
        "# transformers: attn_implementation='sdpa' or 'flash_attention_2'\n"
        "# timm: fused_attn is on by default",
        "the passes over the scores go away, with the memory that they take",
    ),
    Remedy(
        "Use a mask that the fused kernels support",
        "# is_causal=True instead of a dense mask that is causal; flex_attention for other masks and biases\n"
        "# torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) fails where it cannot be used, and warns why",
        "the same",
    ),
)

#: For scores written by kernels for operands that are not aligned.
_EVEN_LENGTH: Final = Remedy(
    "Or make lengths multiples of 8, if attention has to stay written out",
    "# pad sequences to a multiple of 8, and hide the added keys with the mask\n"
    "# tokens[:, :-1] of 2,048 tokens has a length of 2,047: read 2,049",
    "products on the fast kernels; the passes over the scores stay",
)

#: For calls of the fused function whose inputs no fused kernel takes.
_ACCEPTED: Final = (
    Remedy(
        "Give scaled_dot_product_attention what its fused kernels take",
        "q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))  # one 16-bit format: norms of queries and keys\n"
        "# and rotary embeddings in fp32 return fp32; head size a multiple of 8; attn_mask boolean or of that format\n"
        "backend = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION  # FLASH_ATTENTION never takes an attn_mask\n"
        "with torch.nn.attention.sdpa_kernel(backend): y = model(x)  # if it fails: warns what it cannot take\n"
        "# and no sdpa_kernel of SDPBackend.MATH around it",
        "the passes over the scores go away; products in fp32 reach tensor cores",
    ),
    _FUSED[1],
)

#: For fused attention with an explicit mask. Which of them applies depends on what the mask hides, which no profile
#: shows, so that none has a larger gain than the others.
_UNMASKED: Final = (
    Remedy(
        "Say what is hidden instead of passing a mask, if it is causal",
        "# only if the mask is causal, and queries are as many as keys: otherwise, this changes the model\n"
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # attn_mask=None",
        f"{GAIN}: hidden scores are not computed, and the fastest kernels can be used",
    ),
    Remedy(
        "If it keeps parts of a row apart, or hides far tokens, describe it as blocks",
        "mask = create_block_mask(lambda b, h, q, k: part[q] == part[k], None, None, S, S)  # once per batch\n"
        "# causal: & (q >= k); a window into the past: (q >= k) & (q - k < 1024)\n"
        "flex = torch.compile(flex_attention)  # once; both are in torch.nn.attention.flex_attention\n"
        "y = flex(q, k, v, block_mask=mask)\n"
        "# or give the lengths: flash_attn_varlen_func, torch.nn.attention.varlen, nested tensors",
        f"{GAIN}: hidden blocks are skipped",
        compiles=True,
    ),
    Remedy(
        "If it hides nothing, or if parts of a row can be rows of a batch, pass none",
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # each image or text a row of its own\n"
        "# transformers: no attention_mask where no text is padded",
        f"{GAIN}: the fastest kernels can be used",
    ),
)


def _next_kernel(program: Program, places: Int64s, direction: int) -> Int64s:
    """Places in `Program.order` of the kernels next to these, over memsets and copies; the same place for none."""
    kernels = np.flatnonzero(program.in_order(program.is_kernel))
    number = np.clip(np.searchsorted(kernels, places) + direction, 0, len(kernels) - 1)
    block = np.cumsum(program.breaks)
    found = kernels[number]
    return np.where(block[found] == block[places], found, places)


@lru_cache(maxsize=4_096)
def _is_of_heads(scores: str | None, softmax: str | None, values: str | None) -> bool:
    """Whether these input shapes can be those of the product for scores, the softmax, and the product with values.

    Operands of both products have a batch, and the second one reads the weights; a part of the keys may be cut off
    before that, such as an attention sink. Shapes that are not recorded, or not those of products, tell nothing.
    """
    products = [tensors_of(text) for text in (scores, values)]
    if any(_is_of_matrices(tensors) for tensors in products):
        return False
    weights = tensors_of(softmax)
    if not weights or not all(len(shape) > 2 for tensors in (*products, weights[:1]) for shape in tensors):
        return True
    numbers = math.prod(weights[0])
    return not products[1] or any(numbers / 2 <= math.prod(shape) <= numbers for shape in products[1])


def _is_of_matrices(tensors: Sequence[tuple[int, ...]]) -> bool:
    """Whether a product multiplies two matrices, after a bias to add; neither has a batch."""
    if not 2 <= len(tensors) <= 3 or any(len(shape) > 2 for shape in tensors):
        return False
    return tensors[-2][-1:] == tensors[-1][:1]


def _mask_of_all(shapes: str) -> int:
    """Side, in tokens, of a square mask that all sequences and heads share, among an attention's inputs; 0 for none.

    Backward operators and some kernels record the mask in expanded form, which is not recognised.
    """
    tensors = [shape for shape in tensors_of(shapes) if len(shape) >= 2]
    return max((shape[-1] for shape in tensors if shape[-1] == shape[-2] and math.prod(shape[:-2]) == 1), default=0)
