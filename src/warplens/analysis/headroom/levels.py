"""The levels that a group of equal work goes down: as measured, at its practical roof, without what is avoidable.

Every level is at most the one before it. What lies between two levels is a part of the headroom; the last level is
what this machine needs for the mathematics.
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
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.roofs import Roofs, Task
from warplens.profile.schema import Float64s

#: What keeps a group above its limit, in the order in which it is taken away, and what each is.
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
    """The column that holds a loss."""
    return f"{loss.replace('-', '_')}_loss_ns"


#: Categories whose kernels only pass over memory, so that neighbours can be made one.
PASSES: Final = ("elementwise", "normalization", "softmax", "copy-cast", "reduction", "random")

#: Work that stays as wide as it is: an optimizer's state, indices, and what no rule knows.
_KEPT_WIDE: Final = ("optimizer", "gather-scatter", "sort-topk", "other", "triton", "recurrence", "communication")
_WIDE: Final = ("fp32", "tf32")

#: A group further than this above its roof lacks something that is worth a name.
WORTH_A_REASON: Final = 0.85
#: Kernels shorter than this are mostly ramp: filling and draining the GPU takes about as long.
_SHORT_NS: Final = 5_000
#: Scores of attention are at least this long on both sides; smaller squares are other things.
_LEAST_SCORES: Final = 64
#: The own profile's best rate counts for work of at least half and at most twice the size.
_LIKE: Final = 2.0
#: No rate above this share of the data sheet's is believed: then the model counts too much.
_BELIEVED: Final = 0.97
_NO_RATES: Final[tuple[Float64s, Float64s]] = (np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Levels:
    """Nanoseconds of a group on each level: `remaining[0]` as measured, then after each of `LOSSES`."""

    remaining: tuple[int, ...]  #: never rising
    #: at the data sheet's peaks, and at most as measured; None where the work is not known
    theoretical_ns: float | None
    lacks: str | None  #: why it is above its roof, in words; None where it is near it or nothing tells
    modelled: bool  #: whether a roof was found


def with_chains(pieces: Pieces) -> Pieces:
    """Adds `spared` to the pieces: whether a fused chain of passes would not move what this piece moves.

    Neighbours on a stream that pass over as many elements, in one phase, could be one kernel, which moves at least as
    much as the largest of them; the others' traffic is spared. Generated kernels are taken as fused already. Pieces
    are in the order of their streams.
    """
    rows, kinds, kind = pieces
    # Looked up among the few texts that there are.
    generated = [text for text in kinds["kernel"].drop_nulls().unique() if text.startswith("triton_")]
    can = (
        pl.col("category").is_in(PASSES)
        & (pl.col("phase") != "optimizer")
        & (pl.col("elements") > 0)
        & ~pl.col("kernel").is_in(generated)
    ).fill_null(value=False)
    kinds = kinds.with_columns(can.alias("can"))
    if not rows.height or not kinds["can"].any():
        return pieces._replace(rows=rows.with_columns(pl.lit(value=False).alias("spared")))
    # What an operator launched is one pass, which its first kernel describes.
    unit, operator = np.arange(rows.height), kinds["op"].to_numpy()[kind]
    if (operator >= 0).any():
        unit = np.where(operator >= 0, operator, -1 - unit)
        _, unit = numbered(rows.select("stream", pl.Series("unit", unit)), ("stream", "unit"))
    first, _ = by_occurrence(unit, int(unit.max()) + 1)
    stream, kind = rows["stream"].gather(first), kind[first]
    _, alike = numbered(kinds, ("phase", "elements", "recomputed"))
    passing, alike = kinds["can"].to_numpy()[kind], alike[kind]
    begins = np.ones(len(kind), dtype=np.bool_)
    begins[1:] = ~(passing[1:] & passing[:-1] & (alike[1:] == alike[:-1]))
    begins |= stream.ne_missing(stream.shift(1)).to_numpy()
    # All of a chain but the one that moves most, the first of equals.
    moved, chain = kinds["bytes"].fill_null(0).to_numpy()[kind], np.cumsum(begins) - 1
    most = np.maximum.reduceat(moved, np.flatnonzero(begins))
    at = np.flatnonzero(moved == most[chain])
    spared = np.ones(len(chain), dtype=np.bool_)
    spared[at[np.diff(chain[at], prepend=-1) > 0]] = False
    return pieces._replace(rows=rows.with_columns(pl.Series("spared", spared[unit])))


def score_sizes(groups: pl.DataFrame) -> frozenset[tuple[int, int, int]]:
    """The scores of attention written out: (elements, queries, keys) of softmaxes that a product has as its result."""
    softmaxes = groups.filter(pl.col("category") == "softmax")["shapes"].drop_nulls().unique().to_list()
    wanted = set()
    for shapes in softmaxes:
        shape = first_shape(shapes)
        if len(shape) >= 3 and min(shape[-2:]) >= _LEAST_SCORES:
            wanted.add((int(np.prod(shape)), shape[-2], shape[-1]))
    products = groups.filter(pl.col("category") == "gemm").select("name", "shapes", "types").drop_nulls().unique()
    made = set()
    for name, shapes, types in products.iter_rows():
        sizes = sizes_of("gemm", name, shapes, types)
        if sizes and sizes["b"] > 1:
            made.add((int(sizes["b"] * sizes["m"] * sizes["n"]), int(sizes["m"]), int(sizes["n"])))
    return frozenset(wanted & made)


#: Operators that pick elements by index, and that put them back.
_PICKING: Final = ("aten::gather", "aten::index_select", "aten::embedding")
_PUTTING: Final = ("aten::scatter_add_", "aten::index_add_", "aten::scatter_reduce_")


def messages(groups: pl.DataFrame) -> frozenset[tuple[str, int]]:
    """(phase, elements) of what is picked and put back in one pass: a sparse product would keep it out of memory."""
    sizes = groups.filter(pl.col("elements") > 0).select("phase", "elements", "name")
    picked, put = (
        set(sizes.filter(pl.col("name").is_in(names)).select("phase", "elements").iter_rows())
        for names in (_PICKING, _PUTTING)
    )
    return frozenset(picked & put)


#: Operators that fill and add up the gradient of a whole tensor for each slice of it, and how often makes it a habit.
_FILLING, _ADDING = ("aten::fill_", "aten::zero_"), ("aten::add_", "aten::add")
_MANY_SLICES: Final = 8


def sliced(groups: pl.DataFrame, steps: int) -> frozenset[int]:
    """Elements of tensors that the backward pass fills with zeros and adds up many times a step, once for each slice.

    Indexing one tensor (stacked weights of experts) gives each slice a gradient as large as the whole.
    """
    often = (
        groups.filter((pl.col("phase") == "backward") & (pl.col("elements") > 0))
        .group_by("elements")
        .agg(
            pl.col("calls").filter(pl.col("name").is_in(names)).sum().alias(what)
            for what, names in (("filled", _FILLING), ("added", _ADDING))
        )
        .filter(pl.min_horizontal("filled", "added") >= _MANY_SLICES * max(1, steps))
    )
    return frozenset(often["elements"].to_list())


class Grounds:
    """What groups are held against: the roofs of the GPU, and the best rates that this very profile shows.

    Args:
        roofs: those of the GPU; None where nothing is known of it.
        groups: rows of `work` grouped, with `owned_ns` and `calls`.
        multiprocessors: of the GPU; None where the profile does not say.
        steps: in the window.
    """

    def __init__(self, roofs: Roofs | None, groups: pl.DataFrame, multiprocessors: int | None, steps: int) -> None:
        self.roofs, self.multiprocessors, self.steps = roofs, multiprocessors, steps
        self.scores, self.messages, self.slices = score_sizes(groups), messages(groups), sliced(groups, steps)
        self._rates: dict[tuple[str, ...], tuple[Float64s, Float64s]] = {}
        if roofs is not None:
            self._rates = self._believed(roofs, groups)

    @staticmethod
    def _believed(roofs: Roofs, groups: pl.DataFrame) -> dict[tuple[str, ...], tuple[Float64s, Float64s]]:
        """By kind of work: amounts in order, and the rate (a second) of each that no peak contradicts."""
        found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        for row in groups.iter_rows(named=True):
            task, calls, measured = task_of(row), row["calls"], row["owned_ns"]
            if task is None or not calls or not measured or row["known"] not in ("shapes", "counters"):
                continue
            for side, amount, key in _sides(task):
                peaks, rate = roofs.peaks, amount * calls / measured * 1e9
                most = peaks.bytes_per_s if side == "bytes" else peaks.of(task.dtype, tensor_cores=task.tensor_cores)
                if most is not None and rate <= _BELIEVED * most:
                    found.setdefault((side, *key), []).append((amount, rate))
        columns = {key: np.array(sorted(rates)).T for key, rates in found.items()}
        return {key: (amounts, rates) for key, (amounts, rates) in columns.items()}

    def roof_ns(self, task: Task) -> float | None:
        """Its practical roof: the table's, or what like work reaches in this profile, whichever is faster."""
        if self.roofs is None:
            return None
        table = self.roofs.time_ns(task)
        if table is None:
            return None
        own = next((self._own_ns(amount, (side, *key)) for side, amount, key in _sides(task)), None)
        if own is None:
            return table
        # Like work has as many operations, but may move less.
        return min(table, max(own, self.roofs.theoretical_ns(task) or 0.0))

    def _own_ns(self, amount: float, key: tuple[str, ...]) -> float | None:
        """Its time at the best rate of like work of about its size."""
        amounts, rates = self._rates.get(key, _NO_RATES)
        first, last = np.searchsorted(amounts, (amount / _LIKE * (1 - 1e-9), amount * _LIKE * (1 + 1e-9)))
        return amount / float(rates[first:last].max()) * 1e9 if last > first else None

    def levels(self, row: Mapping[str, Any]) -> Levels:
        """The levels of one group (a row of the frame)."""
        measured, calls = int(row["owned_ns"]), float(row["calls"])
        task = task_of(row)
        roof = self.roof_ns(task) if task is not None else None
        remaining = [float(measured)]

        def lower(to: float) -> None:
            remaining.append(max(0.0, min(remaining[-1], to)))

        lower(self._at_roof(row, roof))
        lower(0.0 if row["recomputed"] else remaining[-1])
        lower(self._without_scores(row, task, calls, remaining[-1]))
        lower(self._without_mask(task, calls, remaining[-1]))
        lower(0.0 if row["category"] == "copy-cast" and row["phase"] != "optimizer" else remaining[-1])
        kept = self._kept(row, calls)
        lower(remaining[-1] * kept)
        large = self.roofs.large_ns(task) if task is not None and self.roofs is not None else None
        lower(remaining[-1] if large is None else large * calls * kept)
        lower(self._narrowed(row, self._fused(row, task) or task, calls * kept, remaining[-1]))
        theory = self.roofs.theoretical_ns(task) if task is not None and self.roofs is not None else None
        known = roof is not None or remaining[1] < measured
        lacks = None
        if remaining[1] < WORTH_A_REASON * measured:
            lacks = self._why(row, task)
        # What was measured to be faster had its data in a cache, or did less than its shapes say.
        best = None if theory is None else min(theory * calls, float(measured))
        return Levels(tuple(round(level) for level in remaining), best, lacks, known)

    def _kept(self, row: Mapping[str, Any], calls: float) -> float:
        """Share of a group's traffic that is left where neighbours are fused."""
        kept = 1 - row["spared_calls"] / calls if calls else 1.0
        if (row["phase"], row["elements"]) in self.messages:
            kept *= 0.5 if row["name"] in _PICKING else 0.0 if row["name"] in _PUTTING else 1.0
        if row["phase"] == "backward" and row["elements"] in self.slices and row["name"] in (*_FILLING, *_ADDING):
            kept = min(kept, max(1, self.steps) / max(calls, 1.0))
        return kept

    def _at_roof(self, row: Mapping[str, Any], roof: float | None) -> float:
        measured = float(row["owned_ns"])
        if roof is not None:
            return roof * float(row["calls"])
        if row["misaligned"] and self.roofs is not None and row["category"] == "gemm":
            return measured * (self.roofs.unaligned_share(row["dtype"], legacy=row["legacy"]) or 1.0)
        return measured

    def _without_scores(self, row: Mapping[str, Any], task: Task | None, calls: float, now: float) -> float:
        """Fused attention writes no scores: passes over them vanish, products with them read and write the rest."""
        if not self.scores:
            return now
        if row["category"] in PASSES and any(row["elements"] == elements for elements, _, _ in self.scores):
            return 0.0
        fused = self._fused(row, task)
        large = None if fused is None or self.roofs is None else self.roofs.large_ns(fused)
        return now if large is None else min(now, large * calls)

    def _fused(self, row: Mapping[str, Any], task: Task | None) -> Task | None:
        """A product with scores as the part of fused attention that it would be; None for any other work."""
        if row["category"] != "gemm" or task is None or task.bytes is None or not task.sizes:
            return None
        b, m, n, k = (int(task.sizes[name]) for name in "bmnk")
        item = 2 if task.dtype in ("bf16", "fp16") else 4
        for elements, queries, keys in self.scores:
            made = b * m * n == elements and {m, n} == {queries, keys}
            taken = {(b * m * k, m, k), (b * k * n, k, n)} & {(elements, queries, keys), (elements, keys, queries)}
            if made or taken:
                return Task(
                    "attention", task.flops, max(0.0, task.bytes - elements * item), task.dtype, task.tensor_cores,
                    row["phase"] == "backward", sizes={"s": keys, "d": min(m, n, k)},
                )  # fmt: skip
        return None

    def _without_mask(self, task: Task | None, calls: float, now: float) -> float:
        """Without a mask in memory; one as long as it is wide may be causal, which leaves half of the pairs out."""
        if task is None or self.roofs is None or not task.flops or not task.sizes.get("mask"):
            return now
        square = task.sizes["q"] == task.sizes["s"]
        bare = replace(
            task, flops=task.flops / 2 if square else task.flops, bytes=None,
            sizes={**task.sizes, "mask": 0, "causal": square},
        )  # fmt: skip
        time = self.roofs.time_ns(bare)
        return now if time is None else time * calls

    def _narrowed(self, row: Mapping[str, Any], task: Task | None, calls: float, now: float) -> float:
        """In the format that the GPU's tensor cores are made for: half of the bytes, products on tensor cores."""
        roofs = self.roofs
        if roofs is None or roofs.narrow is None or row["dtype"] not in _WIDE or row["category"] in _KEPT_WIDE:
            return now
        if task is None:
            # Whatever the product was, it was not more than the vector units can do in that time.
            wide = roofs.peaks.of(row["dtype"], tensor_cores=row["tensor_cores"])
            narrow = roofs.large_ns(Task(row["category"], 1e15, None, roofs.narrow, True))
            if row["category"] in PRODUCTS and wide and narrow is not None:
                return min(now, now * wide * narrow / 1e24)
            return now
        narrow_task = Task(
            task.family, task.flops, None if task.bytes is None else task.bytes / 2, roofs.narrow, True,
            task.backward, task.operation, task.sizes,
        )  # fmt: skip
        large = roofs.large_ns(narrow_task)
        return now if large is None else large * calls

    def _why(self, row: Mapping[str, Any], task: Task | None) -> str:
        """What a group lacks, as far as shapes, names and launch configurations tell."""
        if task is not None and (found := misaligned(row["category"], row["dtype"], dict(task.sizes))):
            return f"misaligned: {found}"
        if row["misaligned"]:
            return "misaligned: a kernel for operands not aligned to 16 bytes"
        if task is not None and task.sizes.get("mask"):
            return "an explicit mask, which the fastest kernels do not support"
        if row["nchw"] and row["category"] in ("convolution", "normalization", "reduction"):
            return "memory format: a kernel for channels-first data (NCHW)"
        if row["median_ns"] < _SHORT_NS:
            return "short kernels: filling and draining the GPU takes as long as the work"
        blocks = row["blocks"]
        if blocks is not None and self.multiprocessors and blocks < self.multiprocessors:
            return f"small grid: {blocks:,} blocks for {self.multiprocessors} multiprocessors"
        if row["kernel"] == "elementwise_kernel":
            return "strided access: a kernel for non-contiguous tensors or mixed types"
        if row["kernels"] > 1.5 * max(calls_of(row), 1.0):
            return f"{row['kernels'] / max(calls_of(row), 1.0):.0f} kernels instead of one pass"
        if row["category"] == "gather-scatter":
            return "scattered access"
        return "unknown from the trace: collect counters"


def calls_of(row: Mapping[str, Any]) -> float:
    """Calls of a group; pieces cut off at the window's edges count in part."""
    return float(row["calls"])


def _sides(task: Task) -> Iterable[tuple[str, float, tuple[str, ...]]]:
    batched = task.sizes.get("b", 1) > 1 and task.family == "gemm"
    key = (task.family, str(task.dtype), str(task.tensor_cores), str(task.backward), str(batched))
    if task.flops and task.family in PRODUCTS:
        yield "flops", float(task.flops), key
    elif task.bytes:
        yield "bytes", float(task.bytes), (task.family,)


def task_of(row: Mapping[str, Any]) -> Task | None:
    """What one call of a group had to do; None where that is not known."""
    if row["known"] == "none" or (not row["bytes"] and not row["flops"]):
        return None
    category = row["category"]
    causal = bool(row["flops"] and row["flops_full"] and row["flops"] < row["flops_full"])
    sizes = sizes_of(category, row["name"], row["shapes"], row["types"], causal=causal) if row["shapes"] else {}
    backward = "backward" in (row["name"] or "").lower()
    operation = _OPERATIONS.get(row["name"] or "")
    return Task(category, row["flops"], row["bytes"], row["dtype"], row["tensor_cores"], backward, operation, sizes)


#: Operators and kernels whose rates the table of roofs has by operation.
_OPERATIONS: Final = {
    "aten::sort": "sort", "aten::topk": "topk",
    "aten::embedding": "embedding", "aten::embedding_dense_backward": "embedding_backward",
    "aten::_embedding_bag_dense_backward": "embedding_backward", "aten::gather": "gather",
    "aten::index_select": "index_select", "aten::index_add_": "index_add", "aten::scatter_add_": "scatter_add",
    "aten::_index_put_impl_": "index_add", "aten::index": "index_select",
}  # fmt: skip
