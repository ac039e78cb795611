"""Levels of a group of equal work: as measured, at its practical roof, without avoidable work, in native precision.

Every level is at most the one before it. The difference between two levels is a part of the headroom; the last level is
the machine's minimum for the mathematics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import by_occurrence, numbered
from warplens.analysis.headroom.shapes import first_shape, misaligned, sizes_of
from warplens.analysis.headroom.work import Pieces
from warplens.analysis.kernel_names import PASSES, PRODUCTS
from warplens.analysis.roofs import FIXED_SIZES, MOST_OF_PEAK, Roofs, Task
from warplens.profile.schema import Float64s

#: Losses of a group in the order of their removal, with descriptions.
LOSSES: Final = {
    "roof": "above its practical roof",
    "recomputation": "forward work that the backward pass recomputes",
    "unfused-attention": "attention scores written to memory",
    "explicit-mask": "attention that reads a mask or bias from memory",
    "conversion": "copies between layouts and formats, concatenations",
    "fusion": "memory traffic between passes that one kernel could do",
    "small-work": "excess over the same work in larger kernels",
    "precision": "cost of a format other than the tensor cores' own",
}


def loss_column(loss: str) -> str:
    """The column of a loss."""
    return f"{loss.replace('-', '_')}_loss_ns"


#: Work that keeps its format: an optimizer's state, indices, and unrecognised kernels.
_KEPT_WIDE: Final = ("optimizer", "gather-scatter", "sort-topk", "other", "triton", "recurrence", "communication")
#: Formats that a network can do without → how many times the bytes of 16 bits they have.
_WIDE: Final = {"fp32": 2, "tf32": 2, "fp64": 4}

#: A group above its roof by more than this gets a reason.
WORTH_A_REASON: Final = 0.85
#: Kernels that help, or stand beside the longest one of a call, are the reason if they take more than this share of the
#: excess.
_MOST: Final = 0.5
#: Kernels shorter than this are mostly ramp: filling and draining the GPU takes about as long.
_SHORT_NS: Final = 5_000
#: Scores of attention have at least this size on both sides; smaller squares are something else.
_LEAST_SCORES: Final = 64
#: The profile's own best rate applies to work of at least half and at most twice the size.
_SIZE_TOLERANCE: Final = 2.0
#: Rates above this share of the data sheet's peak are rejected: the model overestimates the work.
_MAX_PEAK_SHARE: Final = 0.97
_NO_RATES: Final[tuple[Float64s, Float64s]] = (np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Levels:
    """Nanoseconds of a group on each level: `remaining[0]` as measured, then after each of `LOSSES`."""

    remaining: tuple[int, ...]  #: never rising
    #: at the data sheet's peaks, and at most as measured; None where the work is not known
    theoretical_ns: float | None
    lacks: str | None  #: reason for being above its roof, in words; None where it is near it or the reason is unknown
    modelled: bool  #: whether a roof was found


def with_chains(pieces: Pieces) -> Pieces:
    """Add `spared` to the pieces: whether fusing a chain of passes would avoid this piece's traffic.

    Neighbours on a stream that pass over as many elements, in one phase, could be one kernel, which moves at least as
    much as the largest of them; the traffic of the others is spared. Generated kernels count as fused already. Pieces
    are in the order of their streams.
    """
    rows, kinds, kind = pieces
    # Tested once per distinct text.
    generated = [text for text in kinds["kernel"].drop_nulls().unique() if text.startswith("triton_")]
    fusible = (
        pl.col("category").is_in(PASSES)
        & (pl.col("phase") != "optimizer")
        & (pl.col("elements") > 0)
        & ~pl.col("kernel").is_in(generated)
    ).fill_null(value=False)
    kinds = kinds.with_columns(fusible.alias("fusible"))
    if not rows.height or not kinds["fusible"].any():
        return pieces._replace(rows=rows.with_columns(pl.lit(value=False).alias("spared")))
    # All kernels of an operator are one pass, described by the first of them.
    pass_of, operator = np.arange(rows.height), kinds["op"].to_numpy()[kind]
    if (operator >= 0).any():
        pass_of = np.where(operator >= 0, operator, -1 - pass_of)
        _, pass_of = numbered(rows.select("stream", pl.Series("unit", pass_of)), ("stream", "unit"))
    first, _ = by_occurrence(pass_of, int(pass_of.max()) + 1)
    stream, kind = rows["stream"].gather(first), kind[first]
    _, likeness = numbered(kinds, ("phase", "elements", "recomputed"))
    is_fusible, likeness = kinds["fusible"].to_numpy()[kind], likeness[kind]
    begins_chain = np.ones(len(kind), dtype=np.bool_)
    begins_chain[1:] = ~(is_fusible[1:] & is_fusible[:-1] & (likeness[1:] == likeness[:-1]))
    begins_chain |= stream.ne_missing(stream.shift(1)).to_numpy()
    # Spares all of a chain but the first piece with the largest traffic.
    moved, chain = kinds["bytes"].fill_null(0).to_numpy()[kind], np.cumsum(begins_chain) - 1
    chain_max = np.maximum.reduceat(moved, np.flatnonzero(begins_chain))
    largest = np.flatnonzero(moved == chain_max[chain])
    spared = np.ones(len(chain), dtype=np.bool_)
    spared[largest[np.diff(chain[largest], prepend=-1) > 0]] = False
    return pieces._replace(rows=rows.with_columns(pl.Series("spared", spared[pass_of])))


def score_sizes(groups: pl.DataFrame) -> frozenset[tuple[int, int, int]]:
    """Attention scores in memory: (elements, queries, keys) of softmaxes over the result of a product."""
    softmaxes = groups.filter(pl.col("category") == "softmax")["shapes"].drop_nulls().unique().to_list()
    of_softmaxes = set()
    for shapes in softmaxes:
        shape = first_shape(shapes)
        if len(shape) >= 3 and min(shape[-2:]) >= _LEAST_SCORES:
            of_softmaxes.add((int(np.prod(shape)), shape[-2], shape[-1]))
    products = groups.filter(pl.col("category") == "gemm").select("name", "shapes", "types").drop_nulls().unique()
    of_products = set()
    for name, shapes, types in products.iter_rows():
        sizes = sizes_of("gemm", name, shapes, types)
        if sizes and sizes["b"] > 1:
            of_products.add((int(sizes["b"] * sizes["m"] * sizes["n"]), int(sizes["m"]), int(sizes["n"])))
    return frozenset(of_softmaxes & of_products)


#: Operators that gather elements by index, and those that scatter them.
_GATHERING: Final = ("aten::gather", "aten::index_select", "aten::embedding")
_SCATTERING: Final = ("aten::scatter_add_", "aten::index_add_", "aten::scatter_reduce_")


def messages(groups: pl.DataFrame) -> frozenset[tuple[str, int]]:
    """(phase, elements) of messages gathered and scattered in one pass: a sparse product would avoid their traffic."""
    sizes = groups.filter(pl.col("elements") > 0).select("phase", "elements", "name")
    gathered, scattered = (
        set(sizes.filter(pl.col("name").is_in(names)).select("phase", "elements").iter_rows())
        for names in (_GATHERING, _SCATTERING)
    )
    return frozenset(gathered & scattered)


#: Operators that fill and accumulate the gradient of a whole tensor for each slice of it, and the number per step from
#: which this counts.
_FILLING, _ADDING = ("aten::fill_", "aten::zero_"), ("aten::add_", "aten::add")
_MANY_SLICES: Final = 8


def needs_doubles(groups: pl.DataFrame) -> bool:
    """Whether float64 is taken for needed, as by solvers: no optimizer, and no softmax or norm in float64."""
    doubles = pl.col("category").is_in(["normalization", "softmax"]) & (pl.col("dtype") == "fp64")
    of_network = doubles | (pl.col("category") == "optimizer") | (pl.col("phase") == "optimizer")
    return not groups.select(of_network.any()).item()


def sliced(groups: pl.DataFrame, steps: float) -> frozenset[int]:
    """Elements of tensors whose gradients the backward pass fills and accumulates many times a step, once per slice.

    Indexing one tensor (stacked weights of experts) gives each slice a gradient as large as the whole.
    """
    repeated = (
        groups.filter((pl.col("phase") == "backward") & (pl.col("elements") > 0))
        .group_by("elements")
        .agg(
            pl.col("calls").filter(pl.col("name").is_in(names)).sum().alias(operation)
            for operation, names in (("filled", _FILLING), ("added", _ADDING))
        )
        .filter(pl.min_horizontal("filled", "added") >= _MANY_SLICES * max(1, steps))
    )
    return frozenset(repeated["elements"].to_list())


class References:
    """References for groups: the roofs of the GPU, and the best rates in this profile.

    Args:
        roofs: those of the GPU; None where it is unknown.
        groups: rows of `work` grouped, with `owned_ns`, `inside_ns` and `calls`.
        multiprocessors: of the GPU; None where the profile does not state it.
        steps: in the window.
    """

    def __init__(self, roofs: Roofs | None, groups: pl.DataFrame, multiprocessors: int | None, steps: float) -> None:
        self.roofs, self.multiprocessors, self.steps = roofs, multiprocessors, steps
        self.scores, self.messages, self.slices = score_sizes(groups), messages(groups), sliced(groups, steps)
        self.wide = _WIDE.keys() - ({"fp64"} if needs_doubles(groups) else set())
        self._rates: dict[tuple[str, ...], tuple[Float64s, Float64s]] = {}
        if roofs is not None:
            self._rates = self._plausible_rates(roofs, groups)

    @staticmethod
    def _plausible_rates(roofs: Roofs, groups: pl.DataFrame) -> dict[tuple[str, ...], tuple[Float64s, Float64s]]:
        """By kind of work: ascending amounts, and their rates per second, where no peak contradicts them."""
        rates_by_key: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        for row in groups.iter_rows(named=True):
            task, calls, measured = task_of(row), row["calls"], row["inside_ns"]
            if task is None or not calls or not measured or row["known"] not in ("shapes", "counters"):
                continue
            for side, amount, key in _sides(task):
                rate = amount * calls / measured * 1e9
                peak = roofs.peaks.bytes_per_s if side == "bytes" else roofs.peak_of(task)
                if peak is not None and rate <= _MAX_PEAK_SHARE * peak:
                    rates_by_key.setdefault((side, *key), []).append((amount, rate))
        columns = {key: np.array(sorted(rates)).T for key, rates in rates_by_key.items()}
        return {key: (amounts, rates) for key, (amounts, rates) in columns.items()}

    def roof_ns(self, task: Task) -> float | None:
        """The practical roof: the table's, or the rate of similar work in this profile, whichever is faster."""
        if self.roofs is None:
            return None
        table = self.roofs.time_ns(task)
        if table is None:
            return None
        own_ns = next((self._own_ns(amount, (side, *key)) for side, amount, key in _sides(task)), None)
        if own_ns is None:
            return table
        # Similar work has as many operations, but may move less.
        return min(table, max(own_ns, self.roofs.theoretical_ns(task) or 0.0))

    def _own_ns(self, amount: float, key: tuple[str, ...]) -> float | None:
        """Time at the best rate of similar work of about this size."""
        amounts, rates = self._rates.get(key, _NO_RATES)
        first, last = np.searchsorted(
            amounts, (amount / _SIZE_TOLERANCE * (1 - 1e-9), amount * _SIZE_TOLERANCE * (1 + 1e-9))
        )
        return amount / float(rates[first:last].max()) * 1e9 if last > first else None

    def levels(self, row: Mapping[str, Any]) -> Levels:
        """The levels of one group (a row of the frame)."""
        measured, calls = int(row["owned_ns"]), float(row["calls"])
        task = task_of(row)
        if task is not None and self._is_contradicted(task, row["inside_ns"] / max(calls, 1e-9)):
            task = None
        roof = self.roof_ns(task) if task is not None else None
        remaining = [float(measured)]

        def lower(to: float) -> None:
            remaining.append(max(0.0, min(remaining[-1], to)))

        lower(self._at_roof(row, roof))
        lower(0.0 if row["recomputed"] else remaining[-1])
        lower(self._without_scores(row, task, calls, remaining[-1]))
        lower(self._without_mask(task, calls, remaining[-1]))
        lower(0.0 if row["category"] == "copy-cast" and row["phase"] != "optimizer" else remaining[-1])
        traffic_share = self._kept(row, calls)
        lower(remaining[-1] * traffic_share)
        large = self.roofs.large_ns(task) if task is not None and self.roofs is not None else None
        lower(remaining[-1] if large is None else large * calls * traffic_share)
        lower(self._narrowed(row, self._fused(row, task) or task, calls * traffic_share, remaining[-1]))
        theory = self.roofs.theoretical_ns(task) if task is not None and self.roofs is not None else None
        modelled = roof is not None or remaining[1] < measured
        lacks = None
        if remaining[1] < WORTH_A_REASON * measured:
            lacks = self._why(row, task, measured - remaining[1])
        # Where the measurement is faster, the data came from a cache, or the work is less than the shapes imply.
        peak_ns = None if theory is None else min(theory * calls, float(measured))
        return Levels(tuple(round(level) for level in remaining), peak_ns, lacks, modelled)

    def _is_contradicted(self, task: Task, measured_ns: float) -> bool:
        """Whether a product took less time than its FLOPs need at the data sheet's peak: its work is then not known."""
        peak = None if self.roofs is None else self.roofs.peak_of(task)
        # Convolutions may need fewer operations (Winograd), and data come from caches.
        return bool(peak and task.family == "gemm" and (task.flops or 0) > MOST_OF_PEAK * peak * measured_ns / 1e9)

    def _kept(self, row: Mapping[str, Any], calls: float) -> float:
        """Share of a group's traffic that remains where neighbours are fused."""
        kept_share = 1 - row["spared_calls"] / calls if calls else 1.0
        if (row["phase"], row["elements"]) in self.messages:
            kept_share *= 0.5 if row["name"] in _GATHERING else 0.0 if row["name"] in _SCATTERING else 1.0
        if row["phase"] == "backward" and row["elements"] in self.slices and row["name"] in (*_FILLING, *_ADDING):
            kept_share = min(kept_share, max(1, self.steps) / max(calls, 1.0))
        return kept_share

    def _at_roof(self, row: Mapping[str, Any], roof: float | None) -> float:
        measured = float(row["owned_ns"])
        if roof is not None:
            return roof * float(row["calls"])
        if row["misaligned"] and self.roofs is not None and row["category"] == "gemm":
            return measured * (self.roofs.unaligned_share(row["dtype"], legacy=row["legacy"]) or 1.0)
        return measured

    def _without_scores(self, row: Mapping[str, Any], task: Task | None, calls: float, current_ns: float) -> float:
        """Fused attention writes no scores: passes over them vanish, products with them only move the rest."""
        if not self.scores:
            return current_ns
        if row["category"] in PASSES and any(row["elements"] == elements for elements, _, _ in self.scores):
            return 0.0
        fused = self._fused(row, task)
        large = None if fused is None or self.roofs is None else self.roofs.large_ns(fused)
        return current_ns if large is None else min(current_ns, large * calls)

    def _fused(self, row: Mapping[str, Any], task: Task | None) -> Task | None:
        """A product with scores as its part of fused attention; None for any other work."""
        if row["category"] != "gemm" or task is None or task.bytes is None or not task.sizes:
            return None
        b, m, n, k = (int(task.sizes[name]) for name in "bmnk")
        item = 2 if task.dtype in ("bf16", "fp16") else 4
        for elements, queries, keys in self.scores:
            produces = b * m * n == elements and {m, n} == {queries, keys}
            consumes = {(b * m * k, m, k), (b * k * n, k, n)} & {(elements, queries, keys), (elements, keys, queries)}
            if produces or consumes:
                # Whether it is causal, and so leaves half of it out, is not known: the fastest attention is its limit.
                return Task(
                    "attention", task.flops, max(0.0, task.bytes - elements * item), task.dtype, task.tensor_cores,
                    row["phase"] == "backward", sizes={"s": keys},
                )  # fmt: skip
        return None

    def _without_mask(self, task: Task | None, calls: float, current_ns: float) -> float:
        """Without a mask in memory; a square one may be causal, which leaves out half of the pairs."""
        if task is None or self.roofs is None or not task.flops or not task.sizes.get("mask"):
            return current_ns
        square = task.sizes["q"] == task.sizes["s"]
        unmasked = replace(
            task, flops=task.flops / 2 if square else task.flops, bytes=None,
            sizes={**task.sizes, "mask": 0, "causal": square},
        )  # fmt: skip
        time = self.roofs.time_ns(unmasked)
        return current_ns if time is None else time * calls

    def _narrowed(self, row: Mapping[str, Any], task: Task | None, calls: float, current_ns: float) -> float:
        """In the native 16-bit format: fewer bytes, products on tensor cores. Complex numbers have none."""
        roofs = self.roofs
        kept = row["complex"] or row["dtype"] not in self.wide or row["category"] in _KEPT_WIDE
        if roofs is None or roofs.narrow is None or kept:
            return current_ns
        if task is None:
            # The product's size is unknown, but at most what the vector units can do in that time.
            wide = roofs.peaks.of(row["dtype"], tensor_cores=row["tensor_cores"])
            narrow = roofs.large_ns(Task(row["category"], 1e15, None, roofs.narrow, True))
            if row["category"] in PRODUCTS and wide and narrow is not None:
                return min(current_ns, current_ns * wide * narrow / 1e24)
            return current_ns
        narrow_task = Task(
            task.family, task.flops, None if task.bytes is None else task.bytes / _WIDE[row["dtype"]], roofs.narrow,
            True, task.backward, task.operation, task.sizes,
        )  # fmt: skip
        large = roofs.large_ns(narrow_task)
        return current_ns if large is None else large * calls

    def _why(self, row: Mapping[str, Any], task: Task | None, excess: float) -> str:
        """The reason for this time above the roof, as far as shapes, names and launch configurations show it."""
        sizes, backward = {} if task is None else dict(task.sizes), row["phase"] == "backward"
        if size := misaligned(row["category"], row["dtype"], sizes, backward=backward, named=row["misaligned"]):
            return f"misaligned: {size}"
        if row["misaligned"]:
            return "misaligned: a kernel for operands not aligned to 16 bytes"
        if task is not None and task.sizes.get("mask"):
            return "an explicit mask, which the fastest kernels do not support"
        if row["nchw"] and row["category"] in ("convolution", "normalization", "reduction"):
            return "memory format: a kernel for channels-first data (NCHW)"
        if (helping := row["helping_ns"]) > _MOST * excess:
            return f"helper kernels (sums, conversions) take {100 * helping / row['owned_ns']:.0f} % of it"
        if row["median_ns"] < _SHORT_NS:
            return "short kernels: filling and draining the GPU takes as long as the work"
        blocks = row["blocks"]
        if blocks is not None and self.multiprocessors and blocks < self.multiprocessors:
            return f"small grid: {blocks:,} blocks for {self.multiprocessors} multiprocessors"
        if row["kernel"] == "elementwise_kernel":
            return "strided access: a kernel for non-contiguous tensors or mixed types"
        if row["beside_ns"] > _MOST * excess:
            return f"{row['kernels'] / max(calls_of(row), 1.0):.0f} kernels instead of one pass"
        if row["category"] == "gather-scatter":
            return "scattered access"
        return "unknown from the trace: collect counters"


def calls_of(row: Mapping[str, Any]) -> float:
    """Calls of a group; pieces cut off at the window's edges count in part."""
    return float(row["calls"])


def _sides(task: Task) -> Iterable[tuple[str, float, tuple[str, ...]]]:
    batched = task.sizes.get("b", 1) > 1 and task.family == "gemm"
    # Attention is as fast as its head size and its mask allow.
    of_attention = [str(task.sizes.get(name)) for name in FIXED_SIZES if task.family == "attention"]
    arithmetic = (str(task.dtype), str(task.tensor_cores), str(task.half_sums))
    key = (task.family, *arithmetic, str(task.backward), str(batched), *of_attention)
    if task.flops and task.family in PRODUCTS:
        yield "flops", float(task.flops), key
    elif task.bytes:
        yield "bytes", float(task.bytes), (task.family,)


def task_of(row: Mapping[str, Any]) -> Task | None:
    """The work of one call of a group; None where it is unknown, or has no roof."""
    category = row["category"]
    # Each time step of a recurrent network waits for the one before: rates of large products are no roof of its own.
    if row["known"] == "none" or category == "recurrence" or (not row["bytes"] and not row["flops"]):
        return None
    causal = bool(row["flops"] and row["flops_full"] and row["flops"] < row["flops_full"])
    sizes = sizes_of(category, row["name"], row["shapes"], row["types"], causal=causal) if row["shapes"] else {}
    backward = "backward" in (row["name"] or "").lower()
    operation = _OPERATIONS.get(row["name"] or "")
    return Task(
        category, row["flops"], row["bytes"], row["dtype"], row["tensor_cores"], backward, operation, sizes,
        row["half_sums"],
    )  # fmt: skip


#: Operators with separate rates in the table of roofs.
_OPERATIONS: Final = {
    "aten::sort": "sort", "aten::topk": "topk",
    "aten::embedding": "embedding", "aten::embedding_dense_backward": "embedding_backward",
    "aten::_embedding_bag_dense_backward": "embedding_backward", "aten::gather": "gather",
    "aten::index_select": "index_select", **dict.fromkeys(("aten::index_add", "aten::index_add_"), "index_add"),
    **dict.fromkeys(("aten::scatter_add", "aten::scatter_add_"), "scatter_add"),
    "aten::_index_put_impl_": "index_add", "aten::index": "index_select",
}  # fmt: skip
