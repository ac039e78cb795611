"""`diagnose`: the rules applied to a window, their findings ranked, and the one that limits it named first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.phasenames import PHASES
from warplens.analysis.prediction import predictions
from warplens.analysis.quality import quality_notes
from warplens.diagnosis.claims import divide
from warplens.diagnosis.counted import counted
from warplens.diagnosis.facts import Facts, gather
from warplens.diagnosis.findings import DESCRIPTIVE, SEVERITIES, Coverage, Diagnosis, PhaseVerdict
from warplens.diagnosis.raising import weight
from warplens.diagnosis.rules import RULES
from warplens.diagnosis.rules.incomplete_profile import incomplete_profile, unexplained
from warplens.diagnosis.rules.saturated import saturated
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.words import headline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.timebudget import TimeBudget
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.findings import Finding
    from warplens.profile import Note
    from warplens.profile.counters import KernelCounters

__all__ = ["diagnose"]


def diagnose(
    timeline: Timeline,
    window: Window,
    counters: KernelCounters | None = None,
    *,
    thresholds: Thresholds = DEFAULTS,
    notes: Sequence[Note] | None = None,
    budgets: Sequence[TimeBudget] | None = None,
) -> Diagnosis:
    """What limits the window, what else costs time in it, and what to do about it.

    Args:
        timeline: the profile. Without the launch configuration of its kernels, small grids cannot be seen.
        window: the part of it that is judged.
        counters: a report of Nsight Compute on the same program, for what happens inside kernels.
        thresholds: the limits of the rules.
        notes, budgets: the quality notes and time budgets of the window, where they are known already.
    """
    notes = quality_notes(timeline, window) if notes is None else tuple(notes)
    modelled = predictions(timeline, window) if timeline.trace.has_device_work else ()
    report = counted(counters) if counters is not None else None
    facts = gather(timeline, window, report, modelled, thresholds, budgets)
    claims = divide(facts)
    incomplete = incomplete_profile(facts, notes)
    decides = incomplete is not None and incomplete.decides
    if incomplete is not None and decides:
        # What such a profile shows is not what the program does: other findings would be artefacts.
        verdict, raised = incomplete.finding, []
    else:
        raised = _findings(facts, claims)
        verdict = _verdict(facts, claims, raised)
        rest = incomplete.finding if incomplete is not None else unexplained(facts, claims)
        worth = incomplete is not None or (rest.gain_ceiling or 0.0) >= thresholds.warning_ceiling
        if worth and verdict.id != rest.id:
            raised.append(rest)
    ranked = (verdict, *_ranked(finding for finding in raised if finding.id != verdict.id))
    return Diagnosis(
        verdict=verdict.id,
        headline=headline(facts, verdict, claims),
        findings=ranked,
        per_phase=() if decides else tuple(_phases(facts)),
        predictions=tuple(modelled),
        coverage=_coverage(facts, claims, ranked, report.source if report is not None else None),
        notes=tuple(notes),
    )


def _findings(facts: Facts, claims: Claims) -> list[Finding]:
    found = [finding for rule in RULES if (finding := rule(facts, claims)) is not None]
    if all(finding.severity == "info" for finding in found) and all(finding.id != "saturated" for finding in found):
        busy = saturated(facts, claims, quiet=True)
        return found if busy is None else [*found, busy]
    return found


def _verdict(facts: Facts, claims: Claims, found: Sequence[Finding]) -> Finding:
    """The costliest cause that is worth a change; where there is none, what the GPU does."""
    rest = unexplained(facts, claims)
    unknown = rest.gain_ceiling or 0.0
    lost = [finding for finding in found if finding.severity != "info"]
    costliest = max(lost, key=weight, default=None)
    limits = facts.thresholds
    named = weight(costliest) if costliest is not None else None
    # A cause that is worth a change comes first, unless far more time has none that could be named.
    if unknown >= limits.warning_ceiling and _lost_share(unknown) > limits.unexplained_factor * _lost_share(named):
        return rest
    if costliest is not None:
        return costliest
    by_id = {finding.id: finding for finding in found}
    hidden = facts.own_ns(pl.col("kind") == "graph")
    if "graph-opaque" in by_id and hidden > facts.thresholds.dominant_share * facts.wall_ns:
        return by_id["graph-opaque"]
    if "saturated" in by_id:
        roof = by_id.get("tensor-compute")
        return roof if roof is not None and roof.confidence == "high" else by_id["saturated"]
    causes = [finding for finding in found if finding.id not in DESCRIPTIVE and finding.confidence != "low"]
    return max([*causes, rest], key=weight)


def _lost_share(gain: float | None) -> float:
    """The share of the wall time that a ceiling stands for."""
    return 1 - 1 / gain if gain else 0.0


def _ranked(found: Iterator[Finding]) -> list[Finding]:
    """The worst first; findings that describe after those that cost."""
    return sorted(
        found,
        key=lambda finding: (
            SEVERITIES.index(finding.severity),
            finding.id in DESCRIPTIVE,
            -weight(finding),
            finding.id,
        ),
    )


def _phases(facts: Facts) -> Iterator[PhaseVerdict]:
    for phase in PHASES:
        part = facts.of_phase(phase)
        if not part.wall_ns:
            continue
        claims = divide(part)
        verdict = _verdict(part, claims, _findings(part, claims))
        share = part.wall_ns / facts.wall_ns
        yield PhaseVerdict(phase, verdict.id, verdict.gain_ceiling, part.wall_ns, part.busy_ns, share)


def _coverage(facts: Facts, claims: Claims, found: Sequence[Finding], source: str | None) -> Coverage:
    kernels = facts.own_ns(pl.col("kind") == "kernel")
    counted_ns = facts.own_ns(pl.col("bound").is_not_null())
    return Coverage(
        wall_ns=facts.wall_ns,
        busy_ns=facts.busy_ns,
        idle_ns=facts.idle_ns,
        steps=len(facts.window.steps),
        idle_attributed_share=facts.attributed_share,
        claimed_ns=sum(claims.total_ns(finding.id) for finding in found),
        counters_share=counted_ns / kernels if counted_ns and kernels else None,
        unavailable=tuple(_unavailable(facts, bool(counted_ns), source)),
    )


def _unavailable(facts: Facts, has_counters: bool, source: str | None) -> Iterator[str]:
    """What could not be asked, and what would answer it. `source` is the report of counters that was given."""
    if not facts.wall_ns:
        return
    trace = facts.timeline.trace
    fills = facts.work["fill_share"].filter(facts.work["kind"] == "kernel")
    if not has_counters and source is not None:
        yield (
            f"what happens inside kernels: {source} holds none of the window's kernels with the same grid and block; "
            "warplens counters with --trace says which to collect"
        )
    elif not has_counters:
        yield (
            "what happens inside kernels (occupancy, coalescing, bank conflicts, divergence, measured bandwidth): "
            "give a report of Nsight Compute with --counters"
        )
    if fills.len() and fills.null_count() == fills.len():
        unread = "grids are not recorded, or were not read of a large file (warplens diagnose reads them)"
        known = trace.kernels["grid_x"].is_not_null().any()
        why = "the profile does not record the number of multiprocessors" if known else unread
        yield f"whether grids fill the GPU (small-kernels): {why}"
    if not trace.api_calls.height:
        yield "why the GPU was idle: no CUDA API calls were recorded (nsys profile --trace=cuda)"
    if not facts.work["phase"].is_in(list(PHASES)).any():
        yield "forward, backward and optimizer apart: no range is named after them"
    if not facts.window.steps:
        yield "numbers per step: the window has no repeating steps"
