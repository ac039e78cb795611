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

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.headroom.work import joined as told_of
from warplens.analysis.roofs import roofs_of
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

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


def by_names(timeline: Timeline, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces whose work is still unknown, with what their names and grids imply of it.

    Adds `misaligned`, `legacy` and `nchw`, what a name says of the kernel.
    """
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
    told = pl.DataFrame({"text": names}).with_row_index("code").select(
        pl.col("code").cast(pl.Int64), each.alias("each"),
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
    joined = told_of(pieces, told, "code")
    size = pl.coalesce("opaque", "item")
    moved = pl.when("cast").then(6).otherwise(size * pl.col("operands") - 2 * (pl.col("loads_cast") & (size == 4)))
    own = pl.col("blocks") * pl.col("threads") * pl.col("each")
    joined = joined.with_columns(pl.coalesce(own, "elements").alias("elements"))
    rows = _elements_of_rows(size)
    joined = joined.with_columns(
        pl.coalesce(own, rows).alias("implied_elements"),
        pl.coalesce(
            own * moved,
            # Read and written.
            2 * pl.col("blocks") * pl.col("threads") * pl.col("vector"),
            pl.col("blocks") * _CHUNK * size * pl.col("accesses"),
            # Forward they read and write a tensor, backward they read two and write one.
            pl.when("backward").then(3).otherwise(2) * rows * size,
        ).alias("implied"),
    )
    unknown = (pl.col("known") == "none") & (pl.col("category") != "communication")
    believed = pl.when(unknown & (pl.col("implied") <= _most_bytes(timeline)))
    joined = joined.with_columns(
        believed.then("implied").alias("implied"), believed.then("implied_elements").alias("implied_elements")
    )
    # Launches of one kernel with one grid had equal work: where the ones that are told agree, the others are told.
    alike = ("code", "blocks", "threads")
    agree = pl.col("implied").min().over(alike) == pl.col("implied").max().over(alike)
    joined = joined.with_columns(
        pl.when(agree).then(pl.col(name).max().over(alike)).otherwise(name).alias(name)
        for name in ("implied_elements", "implied")
    )
    found = unknown & pl.col("implied").is_not_null()
    return joined.with_columns(
        pl.when(found).then("implied").otherwise("bytes").alias("bytes"),
        pl.when(found).then(pl.coalesce("implied_elements", "elements")).otherwise("elements").alias("elements"),
        pl.when(found).then(0).otherwise("flops").alias("flops"),
        pl.when(found).then(pl.lit("names")).otherwise("known").alias("known"),
    )


def _elements_of_rows(size: pl.Expr) -> pl.Expr:
    """Elements of what a row-wise kernel passes over; null where neither its name nor the kernel before tells.

    The kernel before wrote what this one reads, if that is whole rows: as wide as the name allows, or with an element
    for each thread at least.
    """
    threads = pl.col("threads")
    before = pl.when(pl.col("stream").eq_missing(pl.col("stream").shift(1))).then(pl.col("elements").shift(1))
    width = 2 ** pl.col("power")
    in_block = threads // pl.min_horizontal(width, pl.lit(32)) * pl.when(pl.col("power") <= 7).then(2).otherwise(1)
    rows = pl.when(pl.col("power").is_not_null()).then(pl.col("blocks") * in_block).otherwise("blocks")
    wide = before / rows
    fits = (
        pl.when(pl.col("power").is_not_null())
        .then((wide <= width) & (wide > width / 2))
        .otherwise((before % pl.col("blocks") == 0) & (wide >= _LEAST_WIDTH) & (wide >= threads))
    )
    followed = pl.col("category").is_in(_ROW_WISE) & fits & size.is_not_null()
    in_registers = pl.col("blocks") * threads * pl.col("a_thread")
    return pl.coalesce(in_registers, pl.when(followed).then(before))


def _most_bytes(timeline: Timeline) -> pl.Expr:
    """What a kernel can have moved in its time, caches included; without a known GPU there is no limit."""
    rates = [roofs.peaks.bytes_per_s for device in timeline.trace.capture.devices if (roofs := roofs_of(device))]
    most = max((rate for rate in rates if rate), default=float("inf"))
    return (
        pl.when(pl.col("bytes").is_null())
        .then(
            # Short kernels work in the caches.
            pl.max_horizontal(pl.col("duration_ns") * (most * _MOST_RATE / 1e9), pl.lit(float(_IN_CACHE)))
        )
        .otherwise(float("inf"))
    )


#: Fits into the second-level cache of today's GPUs.
_IN_CACHE: Final = 64 * 2**20
