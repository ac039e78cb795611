"""The table that every question about operators is answered with."""

from __future__ import annotations

from typing import Final

import polars as pl

__all__ = ["LEVELS", "OPERATOR_SCHEMA", "finished"]

#: What names a place in the program, the finest first.
LEVELS: Final = ("module", "annotation", "operator", "none")

#: One row an operator name, a path of names, a module or a Python function. `id`, `parent` and `depth` make a tree of
#: the rows where there is one. `host_ns`, `gpu_ns` and `backward_ns` include what lies inside, the `_self_ns` do not;
#: `api_ns` is the part of `host_ns` in CUDA API calls, `host_self_ns` the part in neither operators inside nor CUDA
#: calls (the framework's own). `gpu_ns` is the GPU work launched inside, `backward_ns` that of the backward operators
#: which belong to it, `total_ns` both with each piece of work counted once; `share` is `total_ns` of all GPU time.
OPERATOR_SCHEMA: Final = pl.Schema(
    {
        "id": pl.Int64(),
        "parent": pl.Int64(),
        "depth": pl.Int64(),
        "level": pl.String(),
        "name": pl.String(),
        "input_shapes": pl.String(),
        "input_types": pl.String(),
        "calls": pl.Int64(),
        "host_ns": pl.Int64(),
        "api_ns": pl.Int64(),
        "host_self_ns": pl.Int64(),
        "gpu_ns": pl.Int64(),
        "gpu_self_ns": pl.Int64(),
        "backward_ns": pl.Int64(),
        "backward_self_ns": pl.Int64(),
        "total_ns": pl.Int64(),
        "kernels": pl.Int64(),
        "share": pl.Float64(),
    }
)


def finished(rows: pl.DataFrame, total_ns: int) -> pl.DataFrame:
    """The rows with all columns of the schema; those that do not apply are null.

    Args:
        rows: rows with some of the columns.
        total_ns: all GPU time of the window.
    """
    absent = [
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in OPERATOR_SCHEMA.items() if name not in rows.columns
    ]
    share = pl.col("total_ns") / total_ns if total_ns else pl.lit(0.0)
    return (
        rows.with_columns(absent)
        .with_columns(share.alias("share"))
        .select(OPERATOR_SCHEMA.names())
        .cast(OPERATOR_SCHEMA)
    )
