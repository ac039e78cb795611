"""Work of kernels implied by names and launch configurations, where nothing else gives it.

Elementwise kernels of PyTorch process a known number of elements per thread, kernels on lists of tensors a chunk per
block, softmax in registers a row per block. Row-wise kernels of unknown width pass over the output of the kernel before
them.

Products and attention are not covered. Tile × grid gives M·N of kernels that launch a block per tile, but nothing gives
K, and since Hopper their kernels are persistent: as many blocks as multiprocessors, whatever the size. Concatenations
and random numbers launch a fixed grid, too, and the names of generated kernels do not give their number of tensors.

Compared with the shapes of the same launches (28 programs recorded with both, `data/pairs`): elementwise kernels sum to
0.96–1.00 of the shapes' work, softmax to 1.00, norms to 0.92 or more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import by_occurrence, numbered
from warplens.analysis.headroom.work import IN_CACHE, MAX_RATE_FACTOR, SOURCE, Pieces, memory_rate
from warplens.analysis.kernel_names import HALF_SUMS
from warplens.analysis.timeline import Timeline
from warplens.profile.schema import Int64s, name_categories

#: Properties marked by a kernel's full name. Another library's spelling goes into the line of its property.
MARKS: Final = {
    # Operands not aligned to 16 bytes: sizes that are not a multiple of eight 16-bit numbers.
    "misaligned": r"(?i)_align[124](?:[^0-9]|$)|notaligned|(?:^|[^2]|[^3]2|[^f]32)_unaligned",
    # Tensor-core instructions of an older generation, which libraries fall back to.
    "legacy": r"cutlass_7\d_|s1688|s884",
    # Complex numbers, of which no product is in 16 bits: `cgemm`, `z884gemm`, `cf32` of cuBLAS and CUTLASS, types, and
    # cuBLAS's pairs in products with vectors.
    "complex": r"(?:^|_)[cz](?:\d{3,5})?gemm|(?:^|_)cf(?:32|64)|[cC]omplex<|(?:gemv|dot)\w*<.*\b(?:float2|double2)\b",
    "half-sums": HALF_SUMS,
    "channels-first": r"(?i)conv_depthwise2d|(?:^|[^o]|[^t]o)nchw(?:$|[^ta]|t[^o]|a[^d])|bn_[fb]w_tr_1c11|bn_bw_1c11"
    r"|batch_norm_(?:collect_statistics|transform_input|backward(?:_reduce|_elemt)?)_kernel",
}

#: The columns of these properties.
PROPERTIES: Final = ("misaligned", "legacy", "complex", "half_sums", "nchw")

#: Kernels whose operands need no 16 bytes, of those marked as misaligned. CUTLASS counts numbers: four of TF32 are 16
#: bytes, and products off the tensor cores or in float64 read numbers one by one.
_READS_LESS: Final = r"(?i)simt_|_[dz]884|_d16816|(?:tf32|tensorop_s1688gemm_\d)\w*_align4(?:[^0-9]|$)"

_VECTORIZED: Final = r"vectorized_elementwise_kernel<(?:\(int\))?(\d+)"
_UNROLLED: Final = r"unrolled_elementwise_kernel<"
_PLAIN: Final = r"(?:[: ]|index_)elementwise_kernel<(?:\(int\))?\d+, (?:\(int\))?(\d+)"
#: Kernels that only move items name their size alone.
_OPAQUE: Final = r"OpaqueType<(?:\(int\))?(\d+)"
#: Row gathers: a block per row, or per part of one, in vectors of this many bytes per thread.
_ROWS: Final = r"vectorized_gather_kernel<(?:\(int\))?(\d+)"
_OPERANDS: Final = r"(?:std::array|at::detail::Array)<char ?\*, (?:\(\w+(?: \w+)?\)|\(int\))?(\d+)"
#: A cast between formats of 4 and 2 bytes with its own kernel; or with a general one, which loads another format than
#: it computes in: one operand is narrower.
_CAST: Final = r"(?:bfloat16|float16)(?:tofloat32)?_copy_kernel_cuda"
_LOADS_CAST: Final = r"LoadWithCast<"

_CHUNK: Final = 65_536  # elements per block of PyTorch's multi_tensor_apply
#: Number of lists that a functor reads; it writes one. For optimizers in one kernel: all accesses.
_LISTS: Final = r"Functor<[^<>]*?, (?:\(int\))?\d+, (?:\(int\))?(\d+), (?:\(int\))?-?\d+>"
_OPTIMIZERS: Final = (
    (r"FusedAdam\w*<[^<>]*?, (?:\(int\))?4\b", 7),
    (r"FusedAdam\w*<[^<>]*?, (?:\(int\))?5\b", 9),
    (r"FusedSgd\w*<[^<>]*?, (?:\(int\))?2\b", 3),
    (r"FusedSgd\w*<[^<>]*?, (?:\(int\))?3\b", 5),
)

#: Softmax with a row in the registers of a block: this many elements per thread at most.
_IN_REGISTERS: Final = r"cunn_SoftMaxForwardReg<.*, (?:\(int\))?(\d+)>"
#: Softmax with rows in the registers of a warp: the base-2 logarithm of the width.
_OF_WARPS: Final = r"softmax_warp_(?:forward|backward)<[^<>]*?, (?:\(int\))?(\d+), "

#: Kernels with a row per block or warp: softmax and norms, whose rows are at least this wide.
_ROW_WISE: Final = ("softmax", "normalization")
_LEAST_WIDTH: Final = 32


def _number(text: pl.Expr, pattern: str) -> pl.Expr:
    return text.str.extract(pattern).cast(pl.Int64)


def by_names(timeline: Timeline, pieces: Pieces) -> Pieces:
    """The pieces with unknown work, with the work implied by their names and grids.

    Adds `PROPERTIES`, which are in the name. A kind of row-wise kernel is divided by the kernels
    before it, and any kind is divided if some of its launches were too short for the implied work.
    """
    kinds = pieces.kinds
    if kinds["blocks"].null_count() == kinds.height:  # without grids only the properties in the name are known
        name_code, facts = kinds["code"], _name_facts(timeline)
        named = kinds.with_columns(facts[name].gather(name_code) for name in PROPERTIES)
        return pieces._replace(kinds=named)
    columns = (*kinds.columns, *PROPERTIES)
    kinds = kinds.join(_name_facts(timeline), on="code", how="left", maintain_order="left")
    size, all_threads = pl.coalesce("opaque", "item").cast(pl.Int64), pl.col("blocks") * pl.col("threads")
    moved = pl.when("cast").then(6).otherwise(size * pl.col("operands") - 2 * (pl.col("loads_cast") & (size == 4)))
    named_elements = all_threads * pl.col("each")
    kinds = kinds.with_columns(
        named_elements.alias("own"),
        pl.coalesce(
            named_elements * moved,
            2 * all_threads * pl.col("vector"),  # read and written
            pl.col("blocks") * _CHUNK * size * pl.col("accesses"),
        ).alias("moved_by_name"),
        (all_threads * pl.col("a_thread")).alias("in_registers"),
        # Forward kernels read and write a tensor, backward ones read two and write one.
        (pl.when("backward").then(3).otherwise(2) * size).alias("an_element"),
        pl.coalesce(named_elements, "elements").alias("elements"),
    )
    pieces = _by_predecessor(pieces._replace(kinds=kinds))
    row_elements = _elements_of_rows()
    kinds = pieces.kinds.with_columns(
        pl.coalesce("own", row_elements).alias("implied_elements"),
        pl.coalesce("moved_by_name", row_elements * pl.col("an_element")).alias("implied"),
    )
    unknown = (pl.col("known") == "none") & (pl.col("category") != "communication")
    pieces = _by_plausibility(timeline, pieces._replace(kinds=kinds), unknown)
    known = pieces.kinds
    implied = known.select(pl.when("believed").then(name).alias(name) for name in ("implied", "implied_elements"))
    # Launches of one kernel with one grid had equal work: where those with a result agree, it holds for the others.
    _, equal_launch = numbered(known, ("code", "blocks", "threads"))
    agreement = implied.group_by(pl.Series("number", equal_launch), maintain_order=False).agg(
        (pl.col("implied").min() == pl.col("implied").max()).alias("agree"), pl.all().max()
    ).sort("number")[equal_launch]  # fmt: skip
    implied = implied.select(
        pl.when(agreement["agree"]).then(agreement[name]).otherwise(name).alias(name) for name in implied.columns
    )
    known = known.with_columns(implied.get_columns())
    is_implied = unknown & pl.col("implied").is_not_null()
    known = known.with_columns(
        pl.when(is_implied).then("implied").otherwise("bytes").alias("bytes"),
        pl.when(is_implied).then(pl.coalesce("implied_elements", "elements")).otherwise("elements").alias("elements"),
        pl.when(is_implied).then(0).otherwise("flops").alias("flops"),
        pl.when(is_implied).then(pl.lit("names", dtype=SOURCE)).otherwise("known").alias("known"),
    )
    return pieces._replace(kinds=known.select(columns))


def _name_facts(timeline: Timeline) -> pl.DataFrame:
    """The facts in each full name of a kernel, by its code."""
    names = name_categories(timeline.trace.kernels["full_name"])
    # Since PyTorch 2.7 a thread processes eight elements, before that four; only the newer version has vectors of
    # eight.
    vector = 8 if bool(names.str.contains(r"vectorized_elementwise_kernel<(?:\(int\))?(8|16)").any()) else 4
    text = pl.col("text")
    per_thread = (
        pl.when(text.str.contains(_UNROLLED)).then(4)
        .when(text.str.contains(_VECTORIZED)).then(vector)
        .otherwise(_number(text, _PLAIN))
    )  # fmt: skip
    accesses = pl.when(text.str.contains("LpNorm|ZeroFunctor")).then(1).otherwise(_number(text, _LISTS) + 1)
    for pattern, count in _OPTIMIZERS:
        accesses = pl.when(text.str.contains(pattern)).then(count).otherwise(accesses)
    return pl.DataFrame({"text": names}).with_row_index("code").select(
        pl.col("code").cast(pl.UInt32), per_thread.alias("each"),
        # The name of a plain kernel does not give its operands; it has at least two.
        pl.coalesce(_number(text, _OPERANDS), pl.lit(2)).alias("operands"),
        text.str.contains(_CAST).alias("cast"), text.str.contains(_LOADS_CAST).alias("loads_cast"),
        pl.when(text.str.contains("multi_tensor_apply_kernel")).then(accesses).alias("accesses"),
        _number(text, _OPAQUE).alias("opaque"), _number(text, _ROWS).alias("vector"),
        _number(text, _IN_REGISTERS).alias("a_thread"), _number(text, _OF_WARPS).alias("power"),
        (text.str.contains(MARKS["misaligned"]) & ~text.str.contains(_READS_LESS)).alias("misaligned"),
        text.str.contains(MARKS["legacy"]).alias("legacy"), text.str.contains(MARKS["complex"]).alias("complex"),
        text.str.contains(MARKS["half-sums"]).alias("half_sums"),
        text.str.contains(MARKS["channels-first"]).alias("nchw"),
    )  # fmt: skip


def _by_predecessor(pieces: Pieces) -> Pieces:
    """Divides row-wise kinds by the number of elements of the kernel before on the stream (column `before`).

    That kernel wrote this one's input.
    """
    rows, kinds, kind = pieces
    row_wise = kinds["category"].is_in(_ROW_WISE).fill_null(value=False).to_numpy()
    places = np.flatnonzero(row_wise[kind])
    places = places[places > 0]
    places = places[(rows["stream"].gather(places).eq_missing(rows["stream"].gather(places - 1))).to_numpy()]
    kind_pairs, pair = numbered(pl.DataFrame({"kind": kind[places], "before": kind[places - 1]}), ("kind", "before"))
    no_predecessor = pl.lit(None, dtype=kinds.schema["elements"]).alias("before")
    following = kinds[kind_pairs["kind"]].with_columns(kinds["elements"].gather(kind_pairs["before"]).alias("before"))
    return _split(pieces._replace(kinds=kinds.with_columns(no_predecessor)), places, following, pair)


def _split(pieces: Pieces, moved_pieces: Int64s, kinds: pl.DataFrame, new_kind: Int64s) -> Pieces:
    """Assign some of the pieces (`moved_pieces`) to other kinds; kinds without pieces are dropped."""
    kind_of_piece = pieces.kind.copy()
    kind_of_piece[moved_pieces] = pieces.kinds.height + new_kind
    first, renamed = by_occurrence(kind_of_piece, pieces.kinds.height + kinds.height)
    return Pieces(pieces.rows, pl.concat([pieces.kinds, kinds])[kind_of_piece[first]], renamed)


def _elements_of_rows() -> pl.Expr:
    """Elements of a row-wise kernel; null where neither its name nor the kernel before gives them.

    The kernel before wrote the input, if its elements form whole rows: as wide as the name allows, or with at least an
    element per thread.
    """
    threads, blocks, power = pl.col("threads"), pl.col("blocks"), pl.col("power")
    before = pl.col("before")
    width = 2**power
    in_block = threads // pl.min_horizontal(width, pl.lit(32)) * pl.when(power <= 7).then(2).otherwise(1)
    row_width = before / pl.when(power.is_not_null()).then(blocks * in_block).otherwise("blocks")
    fits = (
        pl.when(power.is_not_null())
        .then((row_width <= width) & (row_width > width / 2))
        .otherwise((before % blocks == 0) & (row_width >= _LEAST_WIDTH) & (row_width >= threads))
    )
    followed = fits & pl.col("an_element").is_not_null()
    return pl.coalesce("in_registers", pl.when(followed).then(before))


def _by_plausibility(timeline: Timeline, pieces: Pieces, unknown: pl.Expr) -> Pieces:
    """Divides kinds by whether the launch could move the `implied` bytes in its time, caches included (`believed`).

    Without a known GPU there is no limit. Work known from better sources than names is not doubted.
    """
    has_implied = (unknown & pl.col("implied").is_not_null()).fill_null(value=False)
    kinds = pieces.kinds.with_columns(has_implied.alias("believed"))
    large = (pl.col("implied") > float(IN_CACHE)).fill_null(value=False)
    doubtful = kinds.select(pl.col("believed") & pl.col("bytes").is_null() & large).to_series().to_numpy()
    suspects = np.flatnonzero(doubtful[pieces.kind])
    implied = kinds["implied"].fill_null(0).to_numpy()[pieces.kind[suspects]]
    could_move = pieces.rows["duration_ns"].to_numpy()[suspects] * (memory_rate(timeline) * MAX_RATE_FACTOR / 1e9)
    suspects = suspects[implied > could_move]
    suspect_kinds, kind_index = numbered(pl.DataFrame({"kind": pieces.kind[suspects]}), ("kind",))
    implausible = kinds[suspect_kinds["kind"]].with_columns(pl.lit(value=False).alias("believed"))
    return _split(pieces._replace(kinds=kinds), suspects, implausible, kind_index)
