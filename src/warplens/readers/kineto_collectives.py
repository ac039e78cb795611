"""Collective communication, as NCCL's kernels and the operator `record_param_comms` describe it."""

from __future__ import annotations

import polars as pl

from warplens.profile.schema import name_categories
from warplens.readers.kineto_rows import encoded, int32

__all__ = ["collectives_of"]

_TEXTS = ("collective", "group", "group_ranks", "dtype")
_NUMBERS = ("group_size", "in_elements", "out_elements", "collective_sequence")

#: NCCL, and RCCL, whose kernels bear the same prefix.
_COMMUNICATION = "(?i)nccl|rccl"


def collectives_of(kernels: pl.DataFrame, operators: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The table of collectives: one row a kernel that is described, and one a described collective without kernel.

    Since PyTorch 2.3 the kernels describe themselves. Before, and still beside them, the operator that launched them
    does: the one whose external id they bear, else the one that their launch lies in. An operator that describes a
    kernel which describes itself gives no second row.

    Args:
        kernels: the table, with the arguments of the events.
        operators, calls: as recorded.
    """
    rows = kernels.select("correlation", "external_id", "process", *_TEXTS, *_NUMBERS, kernel=_row_number())
    described = rows.filter(pl.col("collective").is_not_null())
    tellers = operators.select(
        "start_ns", "end_ns", "thread", "external_id", *_TEXTS, *_NUMBERS, operator=_row_number()
    )
    tellers = tellers.filter(pl.col("collective").is_not_null())
    if tellers.height:
        is_communication = name_categories(kernels["full_name"]).str.contains(_COMMUNICATION)
        silent = rows.filter(
            pl.col("collective").is_null(), is_communication.gather(kernels["full_name"].to_physical())
        )
        launched = _launching(pl.concat([described, silent]), tellers, calls)
        told = launched.join(silent.select("kernel"), on="kernel", how="semi")
        elsewhere = launched.join(described.select("kernel"), on="kernel", how="semi")
        tellers = tellers.join(elsewhere, on="operator", how="anti", maintain_order="left")
        tellers = tellers.join(told, on="operator", how="left", maintain_order="left")
        described = pl.concat([_plain(described), _plain(tellers)])
    else:
        described = _plain(described)
    return described.select(
        "kernel",
        encoded(described["collective"]).alias("name"),
        encoded(described["group"]),
        encoded(described["group_ranks"]),
        pl.col("group_size").pipe(int32),
        "in_elements",
        "out_elements",
        encoded(described["dtype"]),
        sequence="collective_sequence",
    )


def _row_number() -> pl.Expr:
    return pl.int_range(pl.len(), dtype=pl.Int64)


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select("kernel", pl.col(_TEXTS).cast(pl.String), *_NUMBERS)


def _launching(kernels: pl.DataFrame, tellers: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """`kernel` and `operator`: which of the operators launched each kernel, where that can be told."""
    ids = tellers.select("external_id", "operator").drop_nulls().unique("external_id", keep="first")
    by_id = kernels.join(ids, on="external_id").select("kernel", "operator")
    rest = kernels.join(by_id, on="kernel", how="anti").select("kernel", "correlation")
    launches = calls.select("correlation", "thread", at="start_ns").drop_nulls().unique("correlation", keep="first")
    rest = rest.join(launches, on="correlation").sort("at")
    begun = tellers.select("thread", "operator", "end_ns", at="start_ns").drop_nulls().sort("at")
    by_time = rest.join_asof(begun, on="at", by="thread", check_sortedness=False).filter(
        pl.col("at") <= pl.col("end_ns")
    )
    return pl.concat([by_id, by_time.select("kernel", "operator")])
