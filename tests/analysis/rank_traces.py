"""Hand-made traces of several ranks, for tests whose right answer is counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tests.analysis.builders import kernel, trace
from warplens.analysis.ranks.across import RanksResult, across_ranks
from warplens.analysis.ranks.summary import RankSummary, summarize
from warplens.profile import Trace
from warplens.profile.trace import TABLES

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

Collective = dict[str, Any]


def collective(
    start: int,
    end: int,
    name: str = ALL_REDUCE,
    *,
    described: str | None = None,
    group: str | None = None,
    ranks: str | None = None,
    size: int | None = None,
    sequence: int | None = None,
    in_elements: int | None = None,
    out_elements: int | None = None,
    dtype: str | None = None,
    stream: int = 20,
) -> Collective:
    """A communication kernel, and what the framework says of it (`described`; nothing unless given)."""
    return {
        "kernel": kernel(start, end, name, stream=stream),
        "described": described
        and {
            "name": described,
            "group": group,
            "group_ranks": ranks,
            "group_size": size,
            "in_elements": in_elements,
            "out_elements": out_elements,
            "dtype": dtype,
            "sequence": sequence,
        },
    }


def rank_trace(
    computes: Sequence[tuple[int, int]],
    collectives: Sequence[Collective] = (),
    *,
    source: str = "rank0.json",
    rank: int | None = None,
    world_size: int | None = None,
    epoch_ns: int | None = None,
) -> Trace:
    """The trace of one rank: GEMMs on stream 7, communication on stream 20."""
    rows = [kernel(start, end, "gemm") for start, end in computes] + [item["kernel"] for item in collectives]
    order = sorted(range(len(rows)), key=lambda place: rows[place]["start_ns"])
    made = trace(kernels=[rows[place] for place in order])
    told = [
        {"kernel": order.index(len(computes) + place), **item["described"]}
        for place, item in enumerate(collectives)
        if item["described"]
    ]
    columns = []
    for column in TABLES["collectives"].columns:
        values = [row[column.name] for row in told]
        texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
        columns.append(
            pl.Series(column.name, values, dtype=pl.Enum(texts) if column.dtype is pl.Enum else column.dtype)
        )
    capture = replace(made.capture, source=source, rank=rank, world_size=world_size, epoch_ns=epoch_ns)
    return replace(made, capture=capture, collectives=pl.DataFrame(columns))


def together(traces: Sequence[Trace], window: str = "all") -> RanksResult:
    """All ranks of these traces, each a file of its own."""
    summaries: list[RankSummary] = []
    files = []
    for number, item in enumerate(traces):
        for summary in summarize(item, window):
            summaries.append(summary)
            files.append(number)
    return across_ranks(summaries, files)
