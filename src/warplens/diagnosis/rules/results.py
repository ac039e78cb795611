"""Rules for unread results: a product for all positions of which a slice is used, and rows that are padding."""

from __future__ import annotations

import math
from typing import ClassVar, Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import Spent, largest
from warplens.analysis.headroom.shapes import tensors_of
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import GAIN, Finding, Remedy, Variant, ceiling, percent
from warplens.diagnosis.gathers import ANY_TIME, SLICES, first_shapes, numbers_in, unpicked_passes
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Limit, Rule, remembered
from warplens.diagnosis.rules.attention import AttentionMasks, attention_masks
from warplens.diagnosis.rules.kernels import OF_A_THREAD, busy_with, tiles
from warplens.diagnosis.structure import StructureRule, keys_of_one_query, time_beside, time_of
from warplens.profile.schema import Bools, Float64s, Int64s

#: Labels of passes that may handle each row of scores by itself, such as casts, a softmax and the largest of each.
_BY_ROWS: Final = ("elementwise", "copy-cast", "softmax", "reduction", "gather-scatter", "sort-topk", "memset")
#: Of `SLICES`, those that take one part along a dimension: others hand over all parts, or take from two dimensions.
_SLICES: Final = ("aten::slice", "aten::select", "aten::narrow")


class _Unread(NamedTuple):
    """Work whose results are not read, or of which only a slice is."""

    products: Bools
    passes: Bools  #: passes that handle the rows of such a product before a slice is taken
    read: float  #: the largest share that is read of one


class _Sliced(NamedTuple):
    """Equal products of a step of whose results a slice is read after passes over their rows."""

    products: Int64s  #: rows of `Facts.work`
    passes: Int64s  #: rows of the passes
    read: float  #: the share that is read of one result


class UnusedResults(StructureRule):
    """A product of whose result nothing or only a small part is read, or passes over rows of which few are picked."""

    id = "unused-results"
    model = "products"
    question = "Is a large product computed, or do passes go over all rows, of which only a small part is read?"
    limiter = "results that nothing reads"
    cause = (
        "a product for all positions, such as scores over a vocabulary, of which only a few are read; passes over all "
        "rows of a tensor of which few are picked right after"
    )
    raised_when = (
        "in inference, a matrix product takes at least a twentieth of the time, and later work of its step reads at "
        "most a sixteenth of its result, at once or, by recorded shapes, after passes over its rows, such as a "
        "softmax; in training, by recorded shapes, nothing in the whole window reads as many numbers as its result "
        "has, not even in parts; or casts and arithmetic pass over all rows of a tensor right "
        "before at most half of them are picked by index, and nothing else reads it (by recorded shapes); and it costs "
        "2 %"
    )
    claimed = (
        "all or nearly all of these products, and of passes over the rows of their results; of other passes, the share "
        "of rows that are not picked"
    )
    headline = "Limited by results that nothing reads: {share} of the time goes into a product of which a slice is used"
    title = "A product is computed for all positions, and only a small slice of its result is read"
    unread: ClassVar = Variant(
        "A large product is computed, and nothing reads its result",
        "Limited by results that nothing reads: {share} of the time goes into a product without a use",
        "Leave out the product (take hidden states of a model without its head): if a result differs, something reads "
        "it.",
    )
    unpicked: ClassVar = Variant(
        "Passes go over all rows of a tensor, of which few are picked right after",
        "Limited by passes over rows that nothing reads: {share} of the time could be saved by picking rows first",
        "Pick rows before the passes: if the results differ, more rows were read.",
    )
    evidence: ClassVar = {
        "unpicked_passes_per_step": "passes over all rows of a tensor of which few are picked",
        "unread_products_per_step": "products of whose result nothing or only a slice is read",
        "read_share": "upper limit of the numbers that are read, of their results",
    }
    refutation = (
        "Take the slice before the product (logits_to_keep=1, hidden[:, -1:] before the head): if the results differ, "
        "more of them was read."
    )
    least_share = Limit(0.05, "Of the busy time: a smaller product is not worth another call.")
    most_read = Limit(1 / 16, "If more of a result is read, it is computed for a purpose.")
    saved_share = Limit(0.95, "The product for the slice stays, and reads all of its weights.")
    deepest = Limit(16_384, "Few matrices of weights have a longer inner dimension: it bounds the size of the result.")
    reached_share = Limit(0.3, "Least share of the peak of its format that a large product reaches.")

    def needless(self, finding: Finding) -> bool:
        """True: nothing uses the results."""
        return True

    def share(self, facts: Facts) -> Float64s:
        """Share saved of these products and passes."""
        saved, unread = 1.0 if facts.trains else float(self.saved_share), self._unread(facts)
        share, unpicked = np.where(unread.products | unread.passes, saved, 0.0), unpicked_passes(facts)
        return share if unpicked is None or share.any() else unpicked.share

    @remembered
    def _unread(self, facts: Facts) -> _Unread:
        """Products of whose result only a slice is read, the passes before that, and the largest share that is read."""
        program = facts.program
        unread, passes = np.zeros((2, facts.work.height), dtype=np.bool_)
        products = program.labelled("gemm") & ~program.marked("vector-product")
        if not products.any() or time_of(program, products) < self.least_share * facts.busy_ns:
            return _Unread(unread, passes, 0.0)
        if facts.trains:
            return _Unread(self._never_read(facts, products), passes, 0.0)
        shapes = program.shapes()
        has_shapes = shapes.null_count() < shapes.len()
        most = 0.0
        for rows in program.by_step():
            places = np.flatnonzero(products[rows])
            if not len(places):
                continue
            if not has_shapes:
                places = places[-1:]  # without shapes, the readers are known only for the last product
            # Each product has to be large; a layer's products together may be, but the next layer reads their results.
            large = places[program.own_ns[rows[places]] >= self.least_share * time_of(program, rows)]
            for place in large.tolist():
                later = rows[place + 1 :]
                read = (
                    self._read_by_shapes(facts, int(rows[place]), later, shapes)
                    if has_shapes
                    else self._read_by_grids(facts, int(rows[place]), later)
                )
                if read is not None and read <= self.most_read:
                    unread[rows[place]], most = True, max(most, read)
            sliced = self._sliced_after_passes(facts, rows, large) if has_shapes and not unread[rows].any() else None
            if sliced is not None:
                unread[sliced.products] = passes[sliced.passes] = True
                most = max(most, sliced.read)
        return _Unread(unread, passes, most)

    def _sliced_after_passes(self, facts: Facts, rows: Int64s, large: Int64s) -> _Sliced | None:
        """The last large product of a step, if a small slice of its result is read after passes over its rows.

        Equal products before it, as those of earlier turns of a loop, have the same readers.
        """
        program, shapes = facts.program, facts.program.shapes()
        last = int(large[-1]) if len(large) else len(rows)
        many, width = _matrix(shapes[int(rows[last])]) if len(large) else (0, 0)
        wide = self._passes_by_rows(facts, rows[last + 1 :], many * width)
        after = rows[last + 1 + wide :]
        starts = facts.work["launch_start_ns"]
        # Slices that passes read are of something else, such as the labels of a loss.
        begin = starts[int(rows[last + wide])] if wide else None
        end = None if begin is None else largest(starts.gather(after).drop_nulls())
        if begin is None or end is None:
            return None
        sliced = {math.prod(shape) for shape in first_shapes(facts, _SLICES, begin, end)}
        size = next((size for size in (many, many * width) if size in sliced), 0)
        texts = shapes.gather(after).unique()
        if not size or texts.null_count():
            return None
        read = max(size for text in texts.to_list() for size in (0, *(_sizes(text) or [])))
        if read > self.most_read * size:
            return None
        keys = program.launched_as(rows)
        same = large[(keys[large] == keys[last]) & (shapes.gather(rows[large]) == shapes[int(rows[last])]).to_numpy()]
        after_each = same[:, None] + 1 + np.arange(wide)
        after_each = after_each[(keys[after_each] == keys[last + 1 : last + 1 + wide]).all(axis=1)]
        return _Sliced(rows[same], rows[after_each.ravel()], read / size)

    def _passes_by_rows(self, facts: Facts, later: Int64s, size: int) -> int:
        """How many pieces right after a product pass over its result of this size, row by row."""
        of_rows, shapes = facts.program.labelled(*_BY_ROWS), facts.program.shapes()
        others = (
            place
            for place, row in enumerate(later.tolist())
            if not of_rows[row] or size not in (_sizes(shapes[row]) or [])
        )
        return next(others, len(later))

    def _never_read(self, facts: Facts, products: Bools) -> Bools:
        """Large products of whose result no work of the window takes as many numbers, and no operator takes a part.

        The loss would read them, and products of the backward pass their gradient. Work without recorded shapes may
        read anything.
        """
        program = facts.program
        unread = np.zeros(facts.work.height, dtype=np.bool_)
        shapes = program.shapes()
        if facts.phase is not None or (shapes.is_null().to_numpy() & ~program.having("kind", "memset")).any():
            return unread
        large = np.flatnonzero(products & (program.own_ns * facts.steps >= self.least_share * facts.busy_ns))
        sizes = {int(row): _result(shapes[int(row)]) for row in large}
        if not any(sizes.values()):
            return unread
        read = {math.prod(shape) for shape in first_shapes(facts, SLICES, *ANY_TIME)}
        read.update(*(numbers_in(text) for text in shapes.unique()))
        unread[[row for row, size in sizes.items() if size and size not in read]] = True
        return unread

    def _read_by_shapes(self, facts: Facts, product: int, later: Int64s, shapes: pl.Series) -> float | None:
        """Share of its result that later work of the step reads; None if no slice is taken or too much is read."""
        size = _result(shapes[product])
        starts = facts.work["launch_start_ns"]
        begin = starts[product]
        if not size or begin is None or not len(later):
            return None
        ends = starts.gather(later).drop_nulls()
        sliced = first_shapes(facts, _SLICES, begin, largest(ends) or begin)
        if size not in map(math.prod, sliced):
            return None
        threads = facts.program.threads(later)
        scattered = facts.program.labelled("gather-scatter")[later]
        most = 0.0
        for text, count, picks in zip(
            shapes.gather(later).to_list(), threads.tolist(), scattered.tolist(), strict=True
        ):
            sizes = _sizes(text)
            # Gathers, and passes without recorded shapes, read at most what their threads handle.
            read = count * OF_A_THREAD if picks or sizes is None else max(sizes, default=0)
            most = max(most, 0.0 if math.isnan(read) and sizes is None else read)
            if most > self.most_read * size:
                return None
        return most / size

    def _read_by_grids(self, facts: Facts, product: int, later: Int64s) -> float | None:
        """Share of its result that later work reads, by grids: passes over few numbers, the first copies a slice."""
        program = facts.program
        kernels = later[program.is_kernel[later]]
        if not len(kernels) or not program.passes[kernels].all():
            return None
        if not program.labelled("elementwise", "copy-cast")[kernels[0]]:
            return None  # a reduction reads more than it writes
        precision = facts.work["precision"][product] or "bf16"
        rates = [peaks.flops_per_s.get(precision, peaks.flops_per_s.get("bf16", 0.0)) for peaks in facts.peaks]
        # Size of the result: by tiles, at least by the FLOPs of its time over those of the longest inner dimension.
        alone = np.array([product])
        by_tiles = float(program.blocks(alone)[0]) * float(tiles(facts, alone)[0])
        rate = self.reached_share * min(rates, default=0.0)
        by_time = float(program.own_ns[product]) / 1e9 * rate / (2 * self.deepest)
        size = max(0.0 if math.isnan(by_tiles) else by_tiles, by_time)
        threads = float(program.threads(kernels).max())
        return (math.inf if math.isnan(threads) else threads * OF_A_THREAD) / size if size else None

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        unread, passes, read = self._unread(facts)
        unpicked = None if unread.any() else unpicked_passes(facts)
        if unpicked is not None:
            return self.seen(
                facts,
                claims,
                variant=self.unpicked,
                confidence="medium",  # shapes tell the size of the tensor that is picked from, not which one it is
                evidence={
                    "unpicked_passes_per_step": int(unpicked.work.sum()) / facts.steps,
                    "read_share": unpicked.read,
                },
                bound_ns=time_of(facts.program, unpicked.work),
                remedies=_PICKED_FIRST,
            )
        if facts.trains:
            return self.seen(
                facts,
                claims,
                variant=self.unread,
                confidence="medium",
                evidence={"unread_products_per_step": int(unread.sum()) / facts.steps, "read_share": 0.0},
                bound_ns=time_of(facts.program, unread)
                + int(time_beside(facts.program, unread).sum())
                + facts.own_idle_ns,
                remedies=_WITHOUT_HEAD,
            )
        return self.seen(
            facts,
            claims,
            confidence="high" if not (facts.program.shapes().is_null().all() or passes.any()) else "medium",
            evidence={"unread_products_per_step": int(unread.sum()) / facts.steps, "read_share": read},
            bound_ns=time_of(facts.program, unread | passes) + facts.own_idle_ns,
            remedies=(
                Remedy(
                    "Compute only what is read",
                    "scores = model(input_ids=ids, logits_to_keep=1).logits  # transformers\n"
                    "# transformers before 4.49: num_logits_to_keep; a name that it does not know may be ignored\n"
                    "scores = head(hidden[:, -1])  # instead of head(hidden)[:, -1]",
                    "no product for all other positions, and no memory for its result",
                ),
            ),
        )


#: For products whose result nothing reads.
_WITHOUT_HEAD: Final = (
    Remedy(
        "Leave out the part that makes it",
        "hidden = model.base_model(input_ids=ids).last_hidden_state  # not the whole model with its head\n"
        "model = transformers.AutoModel.from_pretrained(name)  # or load it without a head",
        "no product, no casts of its operands, and no memory for its result",
    ),
)

#: For passes over rows of which few are picked.
_PICKED_FIRST: Final = (
    Remedy(
        "Pick rows first",
        "x[drawn].float() / 255  # instead of (x.float() / 255)[drawn]: the passes go over the picked rows only",
        f"{GAIN}: the same numbers, and no converted copy of the whole tensor",
    ),
    Remedy(
        "Where most rows are picked in the end, convert once",
        "ready = x.to(torch.bfloat16) / 255  # before the loop over minibatches, if memory and 8 bits allow",
        "one conversion for all picks",
    ),
)


class PaddedWork(Rule):
    """Attention with a mask for each sequence, of one length in all steps: padding is computed. It only informs.

    In decoding, the sequence is a cache of fixed length.
    """

    id = "padded-work"
    question = "Is part of each sequence hidden by its own mask, as padding is?"
    limiter = "work on sequences of which a mask hides a part"
    cause = "sequences that are padded to one length, and caches of one length; no profile records how much is padding"
    raised_when = (
        "fused attention gets a mask for each sequence, of one size in all steps; or, by recorded shapes, attention of "
        "one query gets a mask over at least 512 keys, as many for each token, and takes a quarter of the busy time. "
        "Informational; it is the verdict if no finding is a warning"
    )
    title = "Attention gets a mask for each sequence, all of one length: if it hides padding, that is computed as well"
    cached: ClassVar = Variant(
        "Each token attends to a cache of one length through a mask: places that it hides are read as well",
        refutation="Print the number of filled places over the length of the cache: at 0.9 and more, hardly any hidden "
        "place is read. Kernels that skip blocks by a list of lengths or blocks do not read them either.",
    )
    evidence: ClassVar = {
        "masked_per_step": "kernels of attention with such a mask",
        "masked_share": "time of these kernels, of the busy time; only where they read a cache",
        "sequences_count": "sequences of one attention; only where shapes are recorded",
        "length_count": "tokens of each, padding included, or places of a cache; only where shapes are recorded",
        **GPU_BUSY_SHARE,
    }
    refutation = (
        "Print attention_mask.float().mean() over some batches: at 0.9 and more, hardly anything is padding. Several "
        "texts packed into one row have such masks, too, and so has a causal mask that is repeated for each sequence."
    )
    describes = True
    least_length = Limit(64, "Sequences of fewer tokens cost little; one token per step is decoding.")
    least_numbers = Limit(512 * 512, "Without shapes: a smaller mask costs little, and may be anything.")
    least_places = Limit(512, "Reading fewer places takes little more time than starting the kernel.")
    least_cached_share = Limit(0.25, "Half of the places are worth a tenth of the time if attention takes this much.")

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict: an unknown part of the work may be padding."""
        length = finding.evidence.get("length_count")
        if finding.variant is self.cached:
            share = percent(float(finding.evidence["masked_share"]))
            return (
                f"Attention takes {share} of the GPU's time, and part of that may be needless: each token attends to "
                f"{length:,} places of a cache through a mask; how many it hides is not recorded."
            )
        sequence = f"each sequence of {length:,} tokens" if length else "each sequence"
        return (
            f"The GPU is {busy_with(facts)}, and part of that may be padding: attention gets a mask for {sequence}; "
            "how much it hides is not recorded, and a causal mask given as a tensor looks the same."
        )

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        found = attention_masks(facts)
        if found is None:
            return None
        if (cached := self._of_cache(facts, found)) is not None:
            return cached
        sequences = length = None
        if found.shapes is None:
            sides = np.sqrt(found.numbers)
            masked = found.making & (found.numbers >= self.least_numbers) & (sides != np.round(sides))
            sizes = set(found.numbers[masked].tolist())
        else:
            by_text = {text: _own_mask(text) for text in found.shapes.drop_nulls().unique().to_list()}
            masks = [by_text.get(text) if text is not None else None for text in found.shapes.to_list()]
            masked = np.array([mask is not None and mask[1] >= self.least_length for mask in masks], dtype=np.bool_)
            sizes = {mask for mask in masks if mask is not None and mask[1] >= self.least_length}
            sequences, length = max(sizes, default=(None, None))
        # If sizes differ, each batch is only padded to its longest sequence.
        if len(sizes) != 1 or 2 * masked.sum() < len(masked):
            return None
        return self.described(
            facts,
            confidence="medium" if found.shapes is not None else "low",
            evidence={
                "masked_per_step": int(masked.sum()) / facts.steps,
                "sequences_count": sequences,
                "length_count": length,
            },
            remedies=(
                Remedy(
                    "Find out how much is padding",
                    "attention_mask.float().mean()  # the share of tokens that are not padding",
                    "the gain is 1 over that share, and more in attention",
                ),
                Remedy(
                    "Pad to the longest of the batch, and batch by length",
                    "# transformers: padding='longest', not 'max_length'; DataCollatorWithPadding(tokenizer)\n"
                    "TrainingArguments(train_sampling_strategy='group_by_length')  # before 5.0: group_by_length=True\n"
                    "# otherwise: batches of sorted lengths, torch.nn.utils.rnn.pad_sequence of each",
                    "in proportion to the padding; attention by its square",
                ),
                Remedy(
                    "Where it only hides later tokens, pass no mask",
                    "scaled_dot_product_attention(q, k, v, is_causal=True)  # only if the mask is causal\n"
                    "# and there are as many queries as keys; padding on the right needs no mask then",
                    "the half that a causal mask hides is not computed, and flash attention can be used",
                ),
                Remedy(
                    "Do without padding",
                    "# several texts in one row: flash_attn_varlen_func with their lengths, nested tensors,\n"
                    "# flex_attention with a mask of documents",
                    "no padding is computed",
                ),
            ),
        )

    def _of_cache(self, facts: Facts, found: AttentionMasks) -> Finding | None:
        """The finding for tokens that attend to a cache of one length with a mask; None for others.

        A cache that grows has another length for each token, so that at least two tokens have to be chosen.
        """
        program = facts.program
        masks = [_cache_mask(text) for text in found.shapes.to_list()] if found.shapes is not None else []
        sizes = {mask for mask in masks if mask is not None and mask[1] >= self.least_places}
        chosen = program.marked("searching") | program.labelled("random")
        if len(sizes) != 1 or chosen.sum() < 2:
            return None
        masked = found.attended[[mask in sizes for mask in masks]]
        masked_ns = time_of(program, masked)
        if masked_ns < self.least_cached_share * facts.busy_ns:
            return None
        (sequences, places), *_ = sizes
        return self.described(
            facts,
            variant=self.cached,
            confidence="medium",
            gain=ceiling(facts.unprofiled_ns(), masked_ns),
            evidence={
                "masked_per_step": len(masked) / facts.steps,
                "masked_share": masked_ns / facts.busy_ns,
                "sequences_count": sequences,
                "length_count": places,
            },
            where=kernel_names(facts, Spent(masked, program.own_ns[masked], facts.work.height)),
            remedies=_READ_FILLED,
        )


#: For a cache of which attention reads places that are not filled.
_READ_FILLED: Final = (
    Remedy(
        "Attend to the places that are filled",
        "seen = -(-(place + 1) // 128) * 128  # a few lengths, so that few graphs or compiled variants are needed\n"
        "y = F.scaled_dot_product_attention(q, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask[..., :seen])\n"
        "# transformers: a max_cache_len of the StaticCache no longer than prompt and answer, or a dynamic cache",
        "attention in proportion to the places that are read; where all are filled, nothing",
    ),
    Remedy(
        "Use a kernel that knows the lengths",
        "# flash_attn_with_kvcache(q, keys, values, cache_seqlens=lengths), a paged cache (vllm), or flex_attention\n"
        "# with a block mask: blocks that hold nothing are not read",
        "the same for each sequence",
    ),
)


def _cache_mask(shapes: str | None) -> tuple[int, int] | None:
    """Sequences and keys of an attention of one query with a mask over its keys; None for others."""
    keys = keys_of_one_query(shapes)
    four = [shape for shape in tensors_of(shapes) if len(shape) == 4]
    masked = any(shape[2:] == (1, keys) for shape in four[3:])
    return (four[0][0], keys) if keys and masked else None


def _own_mask(shapes: str) -> tuple[int, int] | None:
    """Sequences and tokens of an attention with one mask per sequence, shared by all heads; None for others."""
    four = [shape for shape in tensors_of(shapes) if len(shape) == 4]
    if len(four) < 4:
        return None
    (count, _, queries, _), (_, _, keys, _) = four[:2]
    # A mask per head that is the same for all queries was repeated for the heads.
    own = [shape for shape in four[3:] if shape[0] == count and 1 in shape[1:3] and shape[3] == keys]
    return (count, queries) if own and count > 1 and queries == keys else None


def _sizes(shapes: str | None) -> list[int] | None:
    """Numbers of each tensor among the inputs of an operator; None if not recorded."""
    return None if shapes is None else [math.prod(shape) for shape in tensors_of(shapes)]


def _matrix(shapes: str | None) -> tuple[int, int]:
    """Rows and columns of the result of a product of two matrices, by the shapes of its inputs; zeros if unknown."""
    matrices = [shape for shape in tensors_of(shapes) if len(shape) >= 2]
    if len(matrices) < 2 or matrices[-2][-1] != matrices[-1][-2]:
        return 0, 0
    return int(math.prod(matrices[-2][:-1])), int(matrices[-1][-1])


def _result(shapes: str | None) -> int:
    """Numbers of the result of a product of two matrices, by the shapes of its inputs; 0 if unknown."""
    rows, columns = _matrix(shapes)
    return rows * columns
