"""What hardware counters measured of kernels: their traffic and tensor operations, in the place of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.headroom.equal import KERNEL, words_of

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters


def kernels_counted(counters: KernelCounters) -> pl.DataFrame:
    """One row a kernel, grid and block (`equal.KERNEL`): means of `counted_bytes` of device memory and `counted_flops`.

    Tensor operations are null where their metrics were not collected; traffic is what moved, be it needed or not.
    """
    from warplens.analysis.counters.roofline import roofline
    from warplens.analysis.counters.speedoflight import measured, speed_of_light

    launches = counters.launches
    seconds = speed_of_light(counters).select("launch", pl.col("duration_ns") / 1e9)
    traffic = measured(counters, "dram__bytes.sum.per_second")
    blocks, threads = (
        pl.col(f"{what}_x").cast(pl.Int64) * pl.col(f"{what}_y") * pl.col(f"{what}_z") for what in ("grid", "block")
    )
    words = [words_of(str(name)) for name in launches["full_name"]]
    frame = launches.select(
        "launch", pl.Series("words", words, dtype=pl.String), blocks.alias("blocks"), threads.alias("threads"),
        traffic.alias("bytes_per_s"),
    ).join(seconds, on="launch", how="left")  # fmt: skip
    tensor = roofline(counters).filter((pl.col("precision") == "tensor") & (pl.col("level") == "dram"))
    frame = frame.join(tensor.select("launch", "flops_per_s"), on="launch", how="left")
    return frame.group_by(KERNEL).agg(
        (pl.col("bytes_per_s") * pl.col("duration_ns")).mean().round().cast(pl.Int64).alias("counted_bytes"),
        (pl.col("flops_per_s") * pl.col("duration_ns")).mean().round().cast(pl.Int64).alias("counted_flops"),
    )


def with_counters(pieces: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """The pieces whose kernel was counted with what was measured; of several kernels of one operator none is it."""
    joined = pieces.join(counted, on=KERNEL, how="left", maintain_order="left", nulls_equal=True)
    alone = (pl.col("known") != "shapes") | (pl.col("whole_ns") == pl.col("duration_ns"))
    is_product = pl.col("category").is_in(["gemm", "attention", "convolution"])
    replaced = pl.col("counted_bytes").is_not_null() & alone
    return joined.with_columns(
        # What moved twice need not: the shapes know the least.
        pl.when(replaced).then(pl.min_horizontal("bytes", "counted_bytes")).otherwise("bytes").alias("bytes"),
        pl.when(replaced & is_product).then(pl.coalesce("flops", "counted_flops")).otherwise("flops").alias("flops"),
        pl.when(replaced).then(pl.lit("counters")).otherwise("known").alias("known"),
    ).drop("counted_bytes", "counted_flops")
