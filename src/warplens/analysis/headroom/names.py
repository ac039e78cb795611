"""What names and launch configurations tell of a kernel's work where nothing else does.

Elementwise kernels of PyTorch take a known number of elements a thread, kernels on lists of tensors a chunk a block,
softmax in registers a row a block. Row-wise kernels of unknown width pass over what the kernel before them wrote.

Products and attention are not told. Tile × grid gives M·N of kernels that launch a block a tile, but nothing gives K,
and since Hopper their kernels are persistent: as many blocks as multiprocessors, whatever the size. Concatenations and
random numbers launch a fixed grid, too, and generated kernels do not say how many tensors they touch.

Against the shapes of the same launches (28 programs recorded with both, `data/pairs`): elementwise kernels sum to
0.96–1.00 of what the shapes say, softmax to 1.00, norms to 0.92 or more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import by_occurrence, numbered
from warplens.analysis.headroom.work import SOURCE, Pieces
from warplens.analysis.roofs import roofs_of
from warplens.analysis.timeline import Timeline
from warplens.profile.schema import Int64s, name_categories

#: What a kernel's full name marks it as. A new library's name for the same thing goes into its line here.
MARKS: Final = {
    # Operands that are not aligned to 16 bytes: sizes that are no multiple of eight 16-bit numbers.
    "misaligned": r"(?i)_align[124](?:[^0-9]|$)|notaligned|(?:^|[^2]|[^3]2|[^f]32)_unaligned",
    # Tensor-core instructions of an older generation, which libraries fall back to.
    "legacy": r"cutlass_7\d_|s1688|s884",
    "channels-first": r"(?i)conv_depthwise2d|(?:^|[^o]|[^t]o)nchw(?:$|[^ta]|t[^o]|a[^d])|bn_[fb]w_tr_1c11|bn_bw_1c11"
    r"|batch_norm_(?:collect_statistics|transform_input|backward(?:_reduce|_elemt)?)_kernel",
}

_VECTORIZED: Final = r"vectorized_elementwise_kernel<(?:\(int\))?(\d+)"
_UNROLLED: Final = r"unrolled_elementwise_kernel<"
_PLAIN: Final = r"(?:[: ]|index_)elementwise_kernel<(?:\(int\))?\d+, (?:\(int\))?(\d+)"
#: Kernels that move items without a look at them name their size only.
_OPAQUE: Final = r"OpaqueType<(?:\(int\))?(\d+)"
#: Picking rows: a block a row, or a part of one, in vectors of so many bytes a thread.
_ROWS: Final = r"vectorized_gather_kernel<(?:\(int\))?(\d+)"
_OPERANDS: Final = r"(?:std::array|at::detail::Array)<char ?\*, (?:\(\w+(?: \w+)?\)|\(int\))?(\d+)"
#: A cast between formats of 4 and 2 bytes with a kernel of its own; with a general one, which loads another format
#: than it computes in: one operand is narrower.
_CAST: Final = r"(?:bfloat16|float16)(?:tofloat32)?_copy_kernel_cuda"
_LOADS_CAST: Final = r"LoadWithCast<"

_CHUNK: Final = 65_536  # elements of a block of PyTorch's multi_tensor_apply
#: Lists that a functor reads; it writes one. Of optimizers that are one kernel: all accesses.
_LISTS: Final = r"Functor<[^<>]*?, (?:\(int\))?\d+, (?:\(int\))?(\d+), (?:\(int\))?-?\d+>"
_OPTIMIZERS: Final = (
    (r"FusedAdam\w*<[^<>]*?, (?:\(int\))?4\b", 7),
    (r"FusedAdam\w*<[^<>]*?, (?:\(int\))?5\b", 9),
    (r"FusedSgd\w*<[^<>]*?, (?:\(int\))?2\b", 3),
    (r"FusedSgd\w*<[^<>]*?, (?:\(int\))?3\b", 5),
)

#: Softmax with a row in the registers of a block: so many elements a thread, at most.
_IN_REGISTERS: Final = r"cunn_SoftMaxForwardReg<.*, (?:\(int\))?(\d+)>"
#: Softmax with rows in the registers of a warp: the width's power of two.
_OF_WARPS: Final = r"softmax_warp_(?:forward|backward)<[^<>]*?, (?:\(int\))?(\d+), "

#: Kernels that take a row a block or a warp: softmax and norms, whose rows are no narrower than this.
_ROW_WISE: Final = ("softmax", "normalization")
_LEAST_WIDTH: Final = 32
#: What a kernel seems to move faster than memory by this factor, caches do not explain: then its name says too much.
_MOST_RATE: Final = 2.0


def _number(text: pl.Expr, pattern: str) -> pl.Expr:
    return text.str.extract(pattern).cast(pl.Int64)


def by_names(timeline: Timeline, pieces: Pieces) -> Pieces:
    """The pieces whose work is still unknown, with what their names and grids imply of it.

    Adds `misaligned`, `legacy` and `nchw`, what a name says of the kernel. A kind of kernel that works on what the one
    before it wrote becomes several, as does one of which some launches were too short for what is implied.
    """
    kinds = pieces.kinds
    if kinds["blocks"].null_count() == kinds.height:  # without grids nothing is implied but what the name says
        at, told = kinds["code"], _told(timeline)
        named = kinds.with_columns(told[name].gather(at) for name in ("misaligned", "legacy", "nchw"))
        return pieces._replace(kinds=named)
    columns = (*kinds.columns, "misaligned", "legacy", "nchw")
    kinds = kinds.join(_told(timeline), on="code", how="left", maintain_order="left")
    size, a_block = pl.coalesce("opaque", "item").cast(pl.Int64), pl.col("blocks") * pl.col("threads")
    moved = pl.when("cast").then(6).otherwise(size * pl.col("operands") - 2 * (pl.col("loads_cast") & (size == 4)))
    own = a_block * pl.col("each")
    kinds = kinds.with_columns(
        own.alias("own"),
        pl.coalesce(
            own * moved,
            2 * a_block * pl.col("vector"),  # read and written
            pl.col("blocks") * _CHUNK * size * pl.col("accesses"),
        ).alias("moved_by_name"),
        (a_block * pl.col("a_thread")).alias("in_registers"),
        # Forward they read and write a tensor, backward they read two and write one.
        (pl.when("backward").then(3).otherwise(2) * size).alias("an_element"),
        pl.coalesce(own, "elements").alias("elements"),
    )
    pieces = _by_the_one_before(pieces._replace(kinds=kinds))
    rows = _elements_of_rows()
    kinds = pieces.kinds.with_columns(
        pl.coalesce("own", rows).alias("implied_elements"),
        pl.coalesce("moved_by_name", rows * pl.col("an_element")).alias("implied"),
    )
    unknown = (pl.col("known") == "none") & (pl.col("category") != "communication")
    pieces = _by_belief(timeline, pieces._replace(kinds=kinds), unknown)
    known = pieces.kinds
    implied = known.select(pl.when("believed").then(name).alias(name) for name in ("implied", "implied_elements"))
    # Launches of one kernel with one grid had equal work: where the ones that are told agree, the others are told.
    _, equal = numbered(known, ("code", "blocks", "threads"))
    alike = implied.group_by(pl.Series("number", equal), maintain_order=False).agg(
        (pl.col("implied").min() == pl.col("implied").max()).alias("agree"), pl.all().max()
    ).sort("number")[equal]  # fmt: skip
    implied = implied.select(
        pl.when(alike["agree"]).then(alike[name]).otherwise(name).alias(name) for name in implied.columns
    )
    known = known.with_columns(implied.get_columns())
    found = unknown & pl.col("implied").is_not_null()
    known = known.with_columns(
        pl.when(found).then("implied").otherwise("bytes").alias("bytes"),
        pl.when(found).then(pl.coalesce("implied_elements", "elements")).otherwise("elements").alias("elements"),
        pl.when(found).then(0).otherwise("flops").alias("flops"),
        pl.when(found).then(pl.lit("names", dtype=SOURCE)).otherwise("known").alias("known"),
    )
    return pieces._replace(kinds=known.select(columns))


def _told(timeline: Timeline) -> pl.DataFrame:
    """What each full name of a kernel tells, by its code."""
    names = name_categories(timeline.trace.kernels["full_name"])
    # Since PyTorch 2.7 a thread takes eight elements, before that four; only the newer one has vectors of eight.
    vector = 8 if bool(names.str.contains(r"vectorized_elementwise_kernel<(?:\(int\))?(8|16)").any()) else 4
    text = pl.col("text")
    each = (
        pl.when(text.str.contains(_UNROLLED)).then(4)
        .when(text.str.contains(_VECTORIZED)).then(vector)
        .otherwise(_number(text, _PLAIN))
    )  # fmt: skip
    accesses = pl.when(text.str.contains("LpNorm|ZeroFunctor")).then(1).otherwise(_number(text, _LISTS) + 1)
    for pattern, count in _OPTIMIZERS:
        accesses = pl.when(text.str.contains(pattern)).then(count).otherwise(accesses)
    return pl.DataFrame({"text": names}).with_row_index("code").select(
        pl.col("code").cast(pl.UInt32), each.alias("each"),
        # The two-operand form is the least that a plain kernel has, whose name does not tell.
        pl.coalesce(_number(text, _OPERANDS), pl.lit(2)).alias("operands"),
        text.str.contains(_CAST).alias("cast"), text.str.contains(_LOADS_CAST).alias("loads_cast"),
        pl.when(text.str.contains("multi_tensor_apply_kernel")).then(accesses).alias("accesses"),
        _number(text, _OPAQUE).alias("opaque"), _number(text, _ROWS).alias("vector"),
        _number(text, _IN_REGISTERS).alias("a_thread"), _number(text, _OF_WARPS).alias("power"),
        text.str.contains(MARKS["misaligned"]).alias("misaligned"),
        text.str.contains(MARKS["legacy"]).alias("legacy"),
        text.str.contains(MARKS["channels-first"]).alias("nchw"),
    )  # fmt: skip


def _by_the_one_before(pieces: Pieces) -> Pieces:
    """The pieces, row-wise kernels by what the kernel before on the stream passed over as well (`before`, elements).

    The kernel before wrote what this one reads.
    """
    rows, kinds, kind = pieces
    row_wise = kinds["category"].is_in(_ROW_WISE).fill_null(value=False).to_numpy()
    at = np.flatnonzero(row_wise[kind])
    at = at[at > 0]
    at = at[(rows["stream"].gather(at).eq_missing(rows["stream"].gather(at - 1))).to_numpy()]
    heads, place = numbered(pl.DataFrame({"kind": kind[at], "before": kind[at - 1]}), ("kind", "before"))
    nothing = pl.lit(None, dtype=kinds.schema["elements"]).alias("before")
    following = kinds[heads["kind"]].with_columns(kinds["elements"].gather(heads["before"]).alias("before"))
    return _split(pieces._replace(kinds=kinds.with_columns(nothing)), at, following, place)


def _split(pieces: Pieces, at: Int64s, kinds: pl.DataFrame, place: Int64s) -> Pieces:
    """The pieces, some of them (`at`) of other kinds from now on; kinds that no piece is of any more are left out."""
    number = pieces.kind.copy()
    number[at] = pieces.kinds.height + place
    first, renamed = by_occurrence(number, pieces.kinds.height + kinds.height)
    return Pieces(pieces.rows, pl.concat([pieces.kinds, kinds])[number[first]], renamed)


def _elements_of_rows() -> pl.Expr:
    """Elements of what a row-wise kernel passes over; null where neither its name nor the kernel before tells.

    The kernel before wrote what this one reads, if that is whole rows: as wide as the name allows, or with an element
    for each thread at least.
    """
    threads, blocks, power = pl.col("threads"), pl.col("blocks"), pl.col("power")
    before = pl.col("before")
    width = 2**power
    in_block = threads // pl.min_horizontal(width, pl.lit(32)) * pl.when(power <= 7).then(2).otherwise(1)
    wide = before / pl.when(power.is_not_null()).then(blocks * in_block).otherwise("blocks")
    fits = (
        pl.when(power.is_not_null())
        .then((wide <= width) & (wide > width / 2))
        .otherwise((before % blocks == 0) & (wide >= _LEAST_WIDTH) & (wide >= threads))
    )
    followed = fits & pl.col("an_element").is_not_null()
    return pl.coalesce("in_registers", pl.when(followed).then(before))


def _by_belief(timeline: Timeline, pieces: Pieces, unknown: pl.Expr) -> Pieces:
    """The pieces, by whether their launch can have moved what is `implied` in its time, caches included (`believed`).

    Without a known GPU there is no limit, and what more than a name tells is not doubted.
    """
    rates = [roofs.peaks.bytes_per_s for device in timeline.trace.capture.devices if (roofs := roofs_of(device))]
    most = max((rate for rate in rates if rate), default=float("inf"))
    told = (unknown & pl.col("implied").is_not_null()).fill_null(value=False)
    kinds = pieces.kinds.with_columns(told.alias("believed"))
    # Short kernels work in the caches.
    large = (pl.col("implied") > float(_IN_CACHE)).fill_null(value=False)
    doubtful = kinds.select(pl.col("believed") & pl.col("bytes").is_null() & large).to_series().to_numpy()
    at = np.flatnonzero(doubtful[pieces.kind])
    implied = kinds["implied"].fill_null(0).to_numpy()[pieces.kind[at]]
    at = at[implied > pieces.rows["duration_ns"].to_numpy()[at] * (most * _MOST_RATE / 1e9)]
    heads, place = numbered(pl.DataFrame({"kind": pieces.kind[at]}), ("kind",))
    disbelieved = kinds[heads["kind"]].with_columns(pl.lit(value=False).alias("believed"))
    return _split(pieces._replace(kinds=kinds), at, disbelieved, place)


#: Fits into the second-level cache of today's GPUs.
_IN_CACHE: Final = 64 * 2**20
