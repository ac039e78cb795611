"""Softmax against the two matrix products inside self-attention: measured GPU time, modelled FLOPs, and both ratios.

The parts are told apart by annotated ranges around them, words separated by blanks or by underscores:
`computing attention scores` (q·kᵀ, scaling, mask), `computing softmax`, `final matmul` (weights·v). A part's time is
the GPU time of the work launched inside its range; the products are the matrix-product kernels in the first and last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.grid.lm_flops import ModelSize, attention_matmul_flops, flop_ratio, softmax_flops
from warplens.analysis.grid.passes import MATMUL, PhasedWork, Spread
from warplens.analysis.timeline import Timeline
from warplens.profile.schema import name_categories

__all__ = ["ATTENTION_PARTS", "ATTENTION_SCHEMA", "AttentionTime", "attention_time", "missing_attention_ranges"]

#: Part → what its range is called, and the name to give to one that is missing.
ATTENTION_PARTS: Final[dict[str, tuple[re.Pattern[str], str]]] = {
    "scores": (re.compile(r"^(?:comput(?:e|ing) )?(?:attention )?scores$"), "computing_attention_scores"),
    "softmax": (re.compile(r"^(?:comput(?:e|ing) )?(?:attention )?softmax$"), "computing_softmax"),
    "values": (re.compile(r"^(?:comput(?:e|ing) )?final matmul$"), "final_matmul"),
}

#: One row a forward pass: `layers` (softmax ranges in it), and summed over its layers the GPU time of each part, of the
#: matrix-product kernels in it, and the kernels of the softmax.
ATTENTION_SCHEMA = pl.Schema(
    {
        "pass": pl.Int64(),
        "layers": pl.Int64(),
        "scores_ns": pl.Int64(),
        "scores_matmul_ns": pl.Int64(),
        "softmax_ns": pl.Int64(),
        "softmax_kernels": pl.Int64(),
        "values_ns": pl.Int64(),
        "values_matmul_ns": pl.Int64(),
    }
)

#: Reads and writes of one score by a softmax in five kernels: maximum 1, subtraction 2, exponential 2, sum 1, division
#: 2; by a softmax in one kernel: 2. For other kernel counts the traffic is not known.
_SOFTMAX_ACCESSES: Final = {5: 8, 1: 2}

_HALF_PRECISION = re.compile(r"half|bfloat16|__nv_bfloat16", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class AttentionTime:
    """Time inside self-attention of one profile's forward passes, per layer.

    Attributes:
        passes: `ATTENTION_SCHEMA`.
        layers: attention layers in one pass; None where passes differ.
        single_precision: the softmax kernels' names speak of fp32 and of no shorter type; None where they say nothing.
    """

    passes: pl.DataFrame
    layers: int | None
    single_precision: bool | None

    def per_layer(self, column: str) -> Spread | None:
        """GPU time per layer of one of the `…_ns` columns: the spread over passes."""
        return Spread.of(self.passes[column] / self.passes["layers"])

    @property
    def products(self) -> Spread | None:
        """GPU time per layer of the two matrix products' kernels; None where no kernel is known to be one."""
        products = self.passes["scores_matmul_ns"] + self.passes["values_matmul_ns"]
        return Spread.of(products / self.passes["layers"]) if self._products_known else None

    @property
    def runtime_ratio(self) -> Spread | None:
        """GPU time of the softmax over that of the two products' kernels; the spread over passes."""
        products = self.passes["scores_matmul_ns"] + self.passes["values_matmul_ns"]
        return Spread.of(self.passes["softmax_ns"] / products) if self._products_known else None

    @property
    def range_ratio(self) -> Spread | None:
        """The same with everything in the products' ranges: scaling and mask count as part of the scores."""
        return Spread.of(self.passes["softmax_ns"] / (self.passes["scores_ns"] + self.passes["values_ns"]))

    @property
    def softmax_kernels(self) -> int | None:
        """Kernels of one softmax; None where layers differ."""
        each = (self.passes["softmax_kernels"] / self.passes["layers"]).unique().to_list()
        return int(each[0]) if len(each) == 1 and float(each[0]).is_integer() else None

    @property
    def _products_known(self) -> bool:
        return bool((self.passes["scores_matmul_ns"] > 0).all() and (self.passes["values_matmul_ns"] > 0).all())

    def times_slower_per_flop(self, size: ModelSize) -> float | None:
        """How much longer one FLOP of the softmax takes than one of the products: runtime ratio × FLOP ratio."""
        ratio = self.runtime_ratio
        return ratio.median * flop_ratio(size.d_head) if ratio else None

    def product_flops_per_s(self, part: str, size: ModelSize, batch: int, context: int) -> float | None:
        """Modelled FLOPs of one product (`scores` or `values`) over the measured time of its kernels."""
        spent = self.per_layer(f"{part}_matmul_ns")
        flops = attention_matmul_flops(batch, size.heads, context, size.d_head)
        return flops / (spent.median * 1e-9) if spent and spent.median else None

    def softmax_flops_per_s(self, size: ModelSize, batch: int, context: int) -> float | None:
        """Modelled FLOPs of the softmax over its measured time."""
        spent = self.per_layer("softmax_ns")
        return softmax_flops(batch, size.heads, context) / (spent.median * 1e-9) if spent and spent.median else None

    def softmax_bytes_per_s(self, size: ModelSize, batch: int, context: int) -> float | None:
        """Modelled memory traffic of the softmax, caches not counted, over its measured time.

        None where the kernels are not those of a known form, or not known to be fp32.
        """
        spent, accesses = self.per_layer("softmax_ns"), _SOFTMAX_ACCESSES.get(self.softmax_kernels or 0)
        if not spent or not spent.median or accesses is None or not self.single_precision:
            return None
        return accesses * 4 * batch * size.heads * context**2 / (spent.median * 1e-9)


def missing_attention_ranges(timeline: Timeline) -> tuple[str, ...]:
    """The names of the ranges that the profile would need and has not, in the order of the computation."""
    texts = {_plain(name) for name in name_categories(timeline.trace.ranges["name"])}
    return tuple(name for pattern, name in ATTENTION_PARTS.values() if not any(pattern.match(text) for text in texts))


def attention_time(timeline: Timeline, phased: PhasedWork) -> AttentionTime | None:
    """Time inside self-attention in the forward passes of a profile.

    None where a range is missing (`missing_attention_ranges`), or no forward pass holds such ranges.
    """
    work = phased.pass_work
    if missing_attention_ranges(timeline) or not work.height:
        return None
    part, instance = _parts(timeline, work)
    mine = work.with_columns(part, instance).filter(pl.col("part").is_not_null())
    duration = pl.col("duration_ns")
    sums = [
        duration.filter(pl.col("part") == name).sum().alias(f"{name}_ns") for name in ATTENTION_PARTS
    ] + [
        duration.filter((pl.col("part") == name) & (pl.col("label") == MATMUL)).sum().alias(f"{name}_matmul_ns")
        for name in ("scores", "values")
    ]  # fmt: skip
    in_softmax = pl.col("part") == "softmax"
    passes = (
        mine.group_by("pass")
        .agg(
            pl.col("instance").filter(in_softmax).n_unique().cast(pl.Int64).alias("layers"),
            (in_softmax & (pl.col("kind") == "kernel")).sum().cast(pl.Int64).alias("softmax_kernels"),
            *sums,
        )
        .filter(pl.min_horizontal("layers", "scores_ns", "softmax_ns", "values_ns") > 0)
        .sort("pass")
        .select(ATTENTION_SCHEMA.names())
    )
    if not passes.height:
        return None
    layers = passes["layers"].unique().to_list()
    softmax = mine.filter(in_softmax & (pl.col("kind") == "kernel"))
    names = timeline.trace.kernels["full_name"].gather(softmax["row"]).cast(pl.String).unique().to_list()
    return AttentionTime(passes, layers[0] if len(layers) == 1 else None, _single_precision(names))


def _parts(timeline: Timeline, work: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The attention part of each row of work, and the row of the range that makes it one; null for neither."""
    names = timeline.trace.ranges["name"]
    keys = list(ATTENTION_PARTS)
    by_name = np.array([_part_number(name) for name in name_categories(names)], dtype=np.int64)
    own = by_name[names.to_physical().to_numpy()]
    row = np.arange(len(own), dtype=np.int64)
    instance = np.r_[timeline.forest.outermost_match(np.where(own > 0, row + 1, 0)) - 1, NO_RANGE]
    held = instance[work["range"].fill_null(NO_RANGE).to_numpy()]
    number = np.where(held != NO_RANGE, own[np.maximum(held, 0)], 0)
    texts = pl.Series([None, *keys], dtype=pl.Enum(keys))
    found = pl.Series("instance", held)
    return texts.gather(number).alias("part"), found.set(found == NO_RANGE, None)


def _part_number(name: str) -> int:
    plain = _plain(name)
    return next((number for number, (pattern, _) in enumerate(ATTENTION_PARTS.values(), 1) if pattern.match(plain)), 0)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().lower()


def _single_precision(kernel_names: list[str]) -> bool | None:
    if any(_HALF_PRECISION.search(name) for name in kernel_names):
        return False
    return True if all("float" in name for name in kernel_names) else None
