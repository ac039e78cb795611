"""Rule for products of few rows, which take as long as reading their weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.headroom.shapes import tensors_of
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, USUAL, Finding, Remedy, Variant
from warplens.diagnosis.fitting import is_served
from warplens.diagnosis.rule import Limit, gain_of, remembered
from warplens.diagnosis.rules.caches import GrowingCache
from warplens.diagnosis.rules.kernels import BATCHES, filled_share
from warplens.diagnosis.structure import Passes, StructureRule, time_of, turns_of_step
from warplens.profile.schema import Bools, Float64s, texts_where

_QUANTIZED: Final = Remedy(
    "Quantize the weights",
    "# weights in 8 or 4 bits: torchao.quantization.quantize_, bitsandbytes, AWQ; compare the accuracy of the model",
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
    slow: ClassVar = Variant(
        "Products have so few rows that more would hardly take longer",
        "Limited by products of few rows: a larger batch would save {share} of the time per unit of work",
    )
    evidence: ClassVar = {
        "affected_ns": "GPU time of these products and of all other work that a batch shares or fills",
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
        saved = self._shared(facts, count) @ facts.program.own_ns + (1 - 1 / count) * facts.own_idle_ns
        return float(saved) / facts.wall_ns

    def _gain(self, facts: Facts, count: int) -> float:
        """Gain per unit of work with a batch of `count`, at most `count`."""
        share = self._whole_share(facts, count)
        issuing = int(share * facts.issuing_ns)
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
        narrow = self._by_name(facts, products & shapes.is_null().to_numpy())
        narrow[products] |= texts_where(shapes.filter(pl.Series(products)), lambda text: 0 < _rows(text) <= self.rows)
        return narrow

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        claimed = claims.of_work(self.id).to_numpy() > 0
        count = self._batch(facts)
        weights = self._weights(facts)
        reads = weights.get("at_peak_share", 1.0) >= self.least_peak_share
        generates = _generates(facts)
        found = self.seen(
            facts,
            claims,
            variant=USUAL if reads else self.slow,
            confidence="high" if not facts.program.shapes().is_null().all() else "medium",
            evidence={"rows_count": self._most_rows(facts, claimed & self._narrow(facts)), **weights},
            whole_share=self._whole_share(facts, count),
            bound_ns=facts.wall_ns - facts.wall_ns // 128,
            remedies=(
                Remedy(
                    "Process more sequences at a time",
                    "# continuous batching (vllm, text-generation-inference), or generate() on a batch"
                    if generates
                    else "# one pass over all requests that have come in: a queue that waits a few milliseconds",
                    f"{GAIN} for each with {count} at a time; throughput grows with the number of sequences until "
                    "products compute as long as they read",
                    gain_by_batch={size: self._gain(facts, size) for size in sorted({*BATCHES, count})},
                ),
                _QUANTIZED if reads else None,
                Remedy(
                    "Use speculative decoding",
                    "model.generate(ids, assistant_model=draft)  # a small draft model proposes tokens\n"
                    "# transformers does so for one sequence at a time only; vllm: --speculative-config",
                    "two to three tokens per pass over the weights",
                )
                if generates
                else None,
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
        return max((_rows(text) for text in texts), default=0) or None


def _generates(facts: Facts) -> bool:
    """Whether tokens are generated: an engine for language models, a choice among scores, or a cache that grows."""
    chooses = facts.program.marked("searching") | facts.program.labelled("random", "sort-topk")
    return is_served(facts) or bool(chooses.any() or GrowingCache().share(facts).any())


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
