"""Small Kineto traces of several ranks, written by hand."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

from tests.readers.kineto_traces import event

STEPS = 6
SLOW_RANK = 1
#: How much longer the slow rank computes in every step, and so how long each other rank waits for it.
WAIT_US = 300
_ZERO_US = 1_700_000_000_000_000
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"


def write_ranks(folder: Path, ranks: int = 3, name: str = "rank{}.json.gz") -> list[Path]:
    """One file a rank: a GEMM, then an all-reduce of 4 MB that ends on all ranks at once, in each of `STEPS` steps."""
    written = []
    for rank in range(ranks):
        path = folder / name.format(rank)
        text = json.dumps(_trace(rank, ranks)).encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        written.append(path)
    return written


def _trace(rank: int, ranks: int) -> dict[str, Any]:
    compute = 500 + (WAIT_US if rank == SLOW_RANK else 0)
    host = partial(event, process=100 + rank, thread=100 + rank)
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        begin = _ZERO_US + step * 2_000
        events.append(host("user_annotation", f"ProfilerStep#{step}", begin, 1_900))
        for number, (name, start, length, args) in enumerate(
            (
                ("gemm", begin + 20, compute, {}),
                (_ALL_REDUCE, begin + 20 + compute, 880 - compute, _described(ranks, step)),
            )
        ):
            correlation = 10 * step + number + 1
            tie = {"correlation": correlation, "External id": correlation}
            place = {"device": 0, "context": 1, "stream": 7 + number, "grid": [8, 1, 1], "block": [128, 1, 1], **tie}
            events += [
                host("cuda_runtime", "cudaLaunchKernel", begin + 2 + 4 * number, 3, **tie),
                event("kernel", name, start, length, process=0, thread=7 + number, **place, **args),
            ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "deviceProperties": [{"id": 0, "name": "Test GPU", "totalGlobalMem": 80_000_000_000, "numSms": 132}],
        "traceEvents": events,
    }


def _described(ranks: int, step: int) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": 1_000_000,
        "Out msg nelems": 1_000_000,
        "Group size": ranks,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
        "Seq": step + 1,
    }
