"""`blocking-copy`: copies between host and GPU during which nothing computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.intervals import Intervals, total, union
from warplens.diagnosis.claims import HOST_COPIES
from warplens.diagnosis.facts import range_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most, modelled, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["blocking_copy"]

_ID = "blocking-copy"
_NS_PER_S = 1e9


def blocking_copy(facts: Facts, claims: Claims) -> Finding | None:
    """Copies over the link that no kernel hides, and pauses in which the host was held by one."""
    claimed = claims.total_ns(_ID)
    exposed = claims.of_work(_ID)
    if not claimed:
        return None
    copies = facts.work.select("kind", "label", "start_ns", "end_ns", "bytes", "pageable").filter(
        (pl.col("kind") == "copy") & pl.col("label").is_in(HOST_COPIES)
    )
    busy = total(union(Intervals(copies["start_ns"].to_numpy(), copies["end_ns"].to_numpy())))
    moved = int(copies["bytes"].sum())
    pageable = copies.filter("pageable")
    from_pageable = int(pageable["bytes"].sum()) / moved if moved else None
    unpinned = bool(from_pageable)
    # Pageable memory says itself what is wrong; a pinned copy that nothing hides may be the program's first need.
    return raised(
        facts,
        _ID,
        claimed,
        title="Copies from pageable memory hold the work up"
        if unpinned
        else "Copies between host and GPU run while nothing computes",
        confidence="high" if unpinned and facts.sure else "medium",
        evidence={
            "exposed_copy_ns": claims.busy_ns(_ID),
            "host_held_idle_ns": claims.idle_ns(_ID),
            "claimed_share": claimed / facts.wall_ns if facts.wall_ns else None,
            "copied_bytes_per_step": moved / facts.steps,
            "copies_per_step": copies.height / facts.steps,
            "bandwidth_bytes_per_s": moved / busy * _NS_PER_S if busy else None,
            "pageable_share": from_pageable,
        },
        where=range_names(facts, facts.work["range"], exposed)
        or range_names(facts, facts.gaps["range"], claims.of_gaps(_ID)),
        remedies=(
            Remedy(
                "Copy from pinned memory, without blocking",
                "DataLoader(…, pin_memory=True) or x = x.pin_memory(); then x = x.to('cuda', non_blocking=True)",
                modelled(facts, "async-copies", claimed),
            ),
            Remedy(
                "Copy the next batch while this one computes",
                "side = torch.cuda.Stream(); with torch.cuda.stream(side): next_x = x.to('cuda', non_blocking=True); "
                "before "
                "use: torch.cuda.current_stream().wait_stream(side)",
                modelled(facts, "async-copies", claimed),
            ),
            Remedy(
                "Copy less",
                "send uint8 images or token ids and convert on the GPU; keep results there",
                f"{at_most(facts, claimed, on_gpu=True)}; in proportion to the bytes",
            ),
        ),
        refute="Keep one batch on the GPU and use it in every step: if the step takes as long as before, the copies "
        "were not "
        "what it waited for.",
        on_gpu=True,
    )
