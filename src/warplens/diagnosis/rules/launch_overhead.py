"""`launch-overhead`: the GPU waits for work that the host is still issuing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.spread import number
from warplens.diagnosis.facts import range_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most, modelled, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Confidence, Finding

__all__ = ["launch_overhead"]

_ID = "launch-overhead"

#: Where CUDA graphs are what the GPU waits for.
_FROM_GRAPHS: Final = (
    Remedy(
        "Launch the next graph before this one is done",
        "do not wait for the GPU between replays: g.replay() returns at once; read results back one replay later",
        "the pauses between replays go away",
    ),
    Remedy(
        "Put more into one graph",
        "capture several steps, or the whole step where parts are launched one by one",
        "fewer launches for the same work",
    ),
)


def launch_overhead(facts: Facts, claims: Claims) -> Finding | None:
    """Idle time in which the host was between or inside launching calls, less what waits and the optimizer claim."""
    claimed = claims.idle_ns(_ID)
    launches = facts.host.launches
    whole = facts.phase is None
    # Where it is the host's pace, most kernels find the GPU waiting for them.
    prompt = launches.prompt_share if whole else None
    sure = facts.sure and (prompt is None or prompt >= 0.5)
    confidence: Confidence = "high" if sure else "medium"
    is_kernel = pl.col("kind") == "kernel"
    durations = facts.work.select((pl.col("end_ns") - pl.col("start_ns")).filter(is_kernel)).to_series()
    return raised(
        facts,
        _ID,
        claimed,
        title="The GPU waits because the host cannot issue work as fast as the GPU finishes it",
        confidence=confidence if len(facts.window.steps) else "low",
        evidence={
            "idle_ns": claimed,
            "idle_share": claimed / facts.wall_ns if facts.wall_ns else None,
            "gpu_busy_share": facts.busy_share,
            "launches_per_step": durations.len() / facts.steps,
            "launch_interval_median_ns": launches.interval_median_ns if whole else None,
            "launch_call_median_ns": launches.api_median_ns if whole else None,
            "kernel_median_ns": number(durations.median()),
            "kernels_shorter_than_interval_share": launches.shorter_than_interval_share if whole else None,
            "launched_onto_idle_gpu_share": prompt,
            "host_needed_ns_per_step": facts.host_needed_ns / facts.steps,
        },
        where=range_names(facts, facts.gaps["range"], claims.of_gaps(_ID)),
        issuing_ns=claims.issuing_ns[_ID],
        # Without the profiler, the host may be ahead of the GPU.
        warning=facts.thresholds.unsure_warning_ceiling
        if facts.unprofiled_share * facts.host_needed_ns < facts.busy_ns
        else None,
        remedies=_FROM_GRAPHS
        if facts.idle("graph-launch") > facts.idle("launch")
        else (
            Remedy(
                "Replay the step from a CUDA graph",
                "model = torch.compile(model, mode='reduce-overhead'); or by hand: g = torch.cuda.CUDAGraph(); "
                "with torch.cuda.graph(g): y = model(static_x); then static_x.copy_(x); g.replay()",
                modelled(facts, "cuda-graph", claimed),
            ),
            Remedy(
                "Launch fewer kernels",
                "model = torch.compile(model) fuses elementwise work; torch.nn.functional.scaled_dot_product_attention "
                "replaces written-out attention; torch.optim.AdamW(…, fused=True) the optimizer's kernels",
                f"{at_most(facts, claimed)}; in proportion to the launches that go away",
            ),
            Remedy(
                "Give each launch more work",
                "raise the batch size (DataLoader(…, batch_size=…)) until kernels run longer than the launch interval",
                "the same step time for more samples, until the GPU is busy",
            ),
        ),
        refute="Double the batch: if the step takes about twice as long, the GPU and not the host's pace was the "
        "limit. "
        "Time the step without a profiler (torch.cuda.Event): tracing itself makes each launch slower.",
    )
