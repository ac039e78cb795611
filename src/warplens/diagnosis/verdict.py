"""`diagnose`: the rules applied to a window, their findings ranked, and the one that limits it named first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Final

import polars as pl

from warplens.analysis.frames import forget
from warplens.analysis.headroom import Headroom
from warplens.analysis.headroom import headrooms as headrooms_of
from warplens.analysis.hostpace import HostCalls
from warplens.analysis.prediction import predictions
from warplens.analysis.quality import quality_notes
from warplens.analysis.timebudget import TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import PHASES, Window
from warplens.diagnosis.claims import Claims, divide
from warplens.diagnosis.evidence import counted
from warplens.diagnosis.facts import Facts, gather
from warplens.diagnosis.findings import (
    MANY,
    SEVERITIES,
    Coverage,
    Diagnosis,
    Finding,
    PhaseVerdict,
    about,
    percent,
    times,
)
from warplens.diagnosis.fitting import fitting, framework_doubt
from warplens.diagnosis.moments import worst_moments
from warplens.diagnosis.places import located
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules import RULES, rule
from warplens.diagnosis.rules.whole import BelowRoof, IncompleteProfile, Saturated, is_known
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.whatif import what_ifs
from warplens.profile import Note
from warplens.profile.counters import KernelCounters

# --- The verdict as one sentence for people --------------------------------------------------------------------------


_INCOMPLETE: Final = IncompleteProfile()
_SATURATED: Final = Saturated()
_BELOW_ROOF: Final = BelowRoof()


def headline(facts: Facts, verdict: Finding, claims: Claims) -> str:
    """What limits the window and how much there is to gain, in one sentence."""
    lost, share = rule(verdict.id).headline_of(verdict), headline_share(facts, verdict, claims)
    if share is not None:
        said = lost.format(share=percent(share))
        behind = verdict.evidence.get("launches_behind_ns", 0) / facts.wall_ns
        if behind > share:  # what is seen would not explain the gain
            said += f", and by a model another {percent(behind)} in launches that it delays"
        if verdict.severity == "info" and weight(verdict) < facts.thresholds.warning_ceiling:
            said = f"Little to gain; {said[:1].lower()}{said[1:]}"
        return f"{said}; {gain_text(verdict)} {verdict.gained}."
    if facts.wall_ns and (told := rule(verdict.id).told(facts, verdict)):
        return told
    if not facts.wall_ns:
        # A name such as CUDA keeps its capitals.
        first = verdict.title[:1].lower() if verdict.title[1:2].islower() else verdict.title[:1]
        return f"The profile cannot answer: {first}{verdict.title[1:]}"
    return (
        f"This profile cannot say what limits the program. {verdict.title}{'' if verdict.title.endswith('.') else '.'}"
    )


def headline_share(facts: Facts, verdict: Finding, claims: Claims) -> float | None:
    """The share of the window that the verdict's cause is seen to take, where the headline gives one."""
    return claims.seen_ns(verdict.id) / facts.wall_ns if rule(verdict.id).headline_of(verdict) else None


def gain_text(finding: Finding) -> str:
    """What a remedy brings: the expected factor, or the bound where that is all that is known."""
    if finding.gain is None or finding.expected is not None or finding.gain >= MANY:
        return about(finding.gain or MANY)
    return f"at most {times(finding.gain)}"


# --- `diagnose`: the rules applied to a window, their findings ranked, and the one that limits it named first --------


def diagnose(
    timeline: Timeline,
    window: Window,
    counters: KernelCounters | None = None,
    *,
    thresholds: Thresholds = DEFAULTS,
    notes: Sequence[Note] | None = None,
    budgets: Sequence[TimeBudget] | None = None,
    headrooms: Callable[[], Sequence[Headroom]] | None = None,
) -> Diagnosis:
    """What limits the window, what else costs time in it, and what to do about it.

    Args:
        timeline: the profile. Without the launch configuration of its kernels, small grids cannot be seen.
        window: the part of it that is judged.
        counters: a report of Nsight Compute on the same program, for what happens inside kernels.
        thresholds: the limits of the rules.
        notes, budgets: the quality notes and time budgets of the window, where they are known already.
        headrooms: gives the headroom of each GPU over the window, likewise.
    """
    budgets = time_budgets(timeline, window) if budgets is None else budgets
    headrooms = headrooms or cache(lambda: headrooms_of(timeline, window, budgets=budgets, counters=counters))
    notes = quality_notes(timeline, window) if notes is None else tuple(notes)
    report = counted(counters) if counters is not None else None
    with ThreadPoolExecutor(max_workers=1) as aside:
        replays = aside.submit(predictions, timeline, window) if timeline.trace.has_device_work else None
        facts = gather(timeline, window, report, thresholds, budgets, notes, headrooms)
    modelled = () if replays is None else tuple(replays.result())
    facts.predictions = {prediction.change: prediction for prediction in modelled}
    # What the causes of pauses were found with, tens of megabytes at a million kernels, has no further reader here.
    forget(timeline, HostCalls.of, Timeline.busy)
    claims = divide(facts, RULES)
    incomplete = _INCOMPLETE.missing(facts)
    decides = incomplete is not None and incomplete.decides
    if incomplete is not None and decides:
        # What such a profile shows is not what the program does: other findings would be artefacts.
        verdict, raised = incomplete.finding, []
    else:
        raised = _findings(facts, claims)
        verdict = _verdict(facts, claims, raised)
        rest = incomplete.finding if incomplete is not None else _INCOMPLETE.unexplained(facts, claims)
        worth = incomplete is not None or (rest.bound or 0.0) >= thresholds.warning_ceiling
        if worth and verdict.id != rest.id:
            raised.append(rest)
    ranked = (verdict, *_ranked(finding for finding in raised if finding.id != verdict.id))
    ranked = tuple(fitting(facts, finding) for finding in ranked)
    with ThreadPoolExecutor(max_workers=1) as aside:
        # Replays of an excerpt stand beside look-ups in all of the window, which take as long.
        mended = [found for found in ranked if not decides and not _describes(found)]
        combined = aside.submit(what_ifs, facts, claims, mended)
        ranked = tuple(located(facts, claims, finding) for finding in ranked)
        moments = () if decides else worst_moments(facts, claims, ranked)
    diagnosis = Diagnosis(
        verdict=verdict.id,
        headline=headline(facts, verdict, claims),
        findings=ranked,
        per_phase=(),
        predictions=() if decides else modelled,
        coverage=_coverage(facts, claims, ranked, report.source if report is not None else None),
        notes=tuple(notes),
        moments=moments,
        what_if=combined.result(),
        headline_share=headline_share(facts, verdict, claims),
        verdict_known=is_known(verdict),
    )
    # Phases come last: what was found of the whole window, tens of megabytes at a million kernels, is gone by then.
    del claims
    facts.forget()
    parts, phases = [] if decides else facts.hand_over_to_phases(), []
    while parts:
        phases.append(_of_phase(parts.pop(0)))
    vars(facts).pop("program", None)  # facts and program hold each other
    del facts
    return replace(diagnosis, per_phase=tuple(phases))


def _describes(finding: Finding) -> bool:
    return finding.id == _INCOMPLETE.id or rule(finding.id).describes


def _findings(facts: Facts, claims: Claims) -> list[Finding]:
    asked = (each for each in RULES if each.id not in (_INCOMPLETE.id, _SATURATED.id, _BELOW_ROOF.id))
    found = [finding for each in asked if (finding := each.find(facts, claims)) is not None]
    worth = any(
        (finding.gain or 0.0) >= facts.thresholds.warning_ceiling and finding.severity != "info" for finding in found
    )
    busy = None if worth else _SATURATED.find(facts, claims) or _BELOW_ROOF.find(facts, claims)
    return found if busy is None else [*found, busy]


def _verdict(facts: Facts, claims: Claims, found: Sequence[Finding]) -> Finding:
    """The costliest cause that is worth a change; where there is none, what the GPU does."""
    rest = _INCOMPLETE.unexplained(facts, claims)
    unknown = rest.bound or 0.0
    lost = [finding for finding in found if finding.severity != "info"]
    costliest = max(lost, key=weight, default=None)
    limits = facts.thresholds
    named = weight(costliest) if costliest is not None else None
    # A cause that is worth a change comes first, unless far more time has none that could be named.
    if unknown >= limits.warning_ceiling and _lost_share(unknown) > limits.unexplained_factor * _lost_share(named):
        return rest
    if costliest is not None:
        return _first_to_mend(facts, claims, costliest, found)
    by_id = {finding.id: finding for finding in found}
    hidden = facts.own_ns_having("kind", "graph")
    if "graph-opaque" in by_id and hidden > facts.thresholds.dominant_share * facts.wall_ns:
        return by_id["graph-opaque"]
    if "padded-work" in by_id:
        return by_id["padded-work"]
    if "saturated" in by_id:
        roof = by_id.get("tensor-compute")
        return roof if roof is not None and roof.confidence == "high" else by_id["saturated"]
    if "below-roof" in by_id:
        return by_id["below-roof"]
    causes = [finding for finding in found if not rule(finding.id).describes and finding.confidence != "low"]
    return max([*causes, rest], key=weight)


def _owner(facts: Facts, claims: Claims, costliest: Finding, lost: Sequence[Finding]) -> Finding:
    """The costliest cause, or that of most of the work that its remedy takes away with it.

    A compiler fuses the passes of written-out attention as well: what they are is said by the cause that claims them.
    """
    general = rule(costliest.id).claim(facts)
    if general is None:
        return costliest
    for other in sorted(lost, key=lambda each: -claims.busy_ns(each.id)):
        mine = claims.pieces(other.id).whole()
        if other.id == costliest.id or 2 * general @ mine < mine.sum():
            continue
        worth = _lost_share(weight(other)) >= facts.thresholds.dominant_share * _lost_share(weight(costliest))
        if worth and claims.busy_ns(other.id) > claims.busy_ns(costliest.id):
            return other
    return costliest


def _first_to_mend(facts: Facts, claims: Claims, costliest: Finding, found: Sequence[Finding]) -> Finding:
    """The cause to mend first, where that is not the costliest.

    Work that is not needed comes before work that is done slowly. Behind a host that is too slow stands what waits,
    allocates or launches for each tensor: it cannot be captured into a graph, and a step without it launches less. A
    host that waits after every few launches cannot get ahead whatever a launch costs; and a pause as long as many
    launches is none of issuing them. What makes the same work faster comes before what has to be given more of it.
    """
    lost, limits = [finding for finding in found if finding.severity != "info"], facts.thresholds
    costliest = _owner(facts, claims, costliest, lost)
    if costliest.is_throughput:
        faster = max((each for each in lost if not each.is_throughput), key=weight, default=None)
        if faster is not None and _lost_share(weight(faster)) >= limits.dominant_share * _lost_share(weight(costliest)):
            costliest = faster

    def worth(finding: Finding) -> float:
        return _lost_share(weight(finding)) / _lost_share(weight(costliest))

    dropped = [each for each in lost if rule(each.id).needless(each)]
    needless = max(dropped, key=weight, default=None)
    if needless is not None and worth(needless) >= limits.dominant_share:
        return needless
    apart = any(each.id == "host-stall" and "stalls_apart_share" in each.evidence for each in lost)
    if costliest.id not in ("launch-overhead", "host-stall") or (costliest.id == "host-stall" and apart):
        return costliest
    waiting = next((each for each in found if each.id == "host-sync"), None)
    # Waits of equal passes go with the passes.
    merging = "passes_per_step" in costliest.evidence
    if waiting is not None and costliest.id == "launch-overhead" and facts.waits_crowded and not merging:
        return waiting
    looped = waiting is not None and "looped_kernels_per_step" in waiting.evidence
    if waiting is not None and looped and worth(waiting) >= limits.specific_share:
        return waiting
    if costliest.id == "host-stall":
        # Pauses not much longer than launches are those of a host that goes from turn to turn.
        turning = next((each for each in lost if "turns_per_step" in each.evidence), None)
        return turning if turning is not None and worth(turning) >= limits.dominant_share else costliest
    causes = [each for each in lost if rule(each.id).makes_launches(each) and not (merging and each is waiting)]
    specific = max(causes, key=weight, default=None)
    if specific is not None and worth(specific) >= limits.specific_share:
        return specific
    stall = next((each for each in lost if each.id == "host-stall" and apart), None)
    return stall if stall is not None and worth(stall) >= limits.dominant_share else costliest


def _lost_share(gain: float | None) -> float:
    """The share of the wall time that a ceiling stands for."""
    return 1 - 1 / gain if gain else 0.0


def _ranked(found: Iterator[Finding]) -> list[Finding]:
    """The worst first; findings that describe after those that cost."""
    return sorted(
        found,
        key=lambda finding: (
            SEVERITIES.index(finding.severity),
            rule(finding.id).describes,
            -weight(finding),
            finding.id,
        ),
    )


def _of_phase(part: Facts) -> PhaseVerdict:
    assert part.phase is not None
    assert part.whole is not None
    claims = divide(part, RULES)
    verdict = _verdict(part, claims, _findings(part, claims))
    # A part and its program hold each other: apart, hundreds of megabytes are free before the next phase.
    vars(part).pop("program", None)
    share = part.wall_ns / part.whole.wall_ns
    return PhaseVerdict(part.phase, verdict.id, verdict.expected, verdict.bound, part.wall_ns, part.busy_ns, share)


def _coverage(facts: Facts, claims: Claims, found: Sequence[Finding], source: str | None) -> Coverage:
    kernels = facts.own_ns_having("kind", "kernel")
    counted_ns = facts.own_ns(pl.col("bound").is_not_null())
    return Coverage(
        wall_ns=facts.wall_ns,
        busy_ns=facts.busy_ns,
        idle_ns=facts.idle_ns,
        steps=len(facts.window.steps),
        idle_attributed_share=facts.attributed_share,
        claimed_ns=sum(claims.total_ns(finding.id) for finding in found),
        counters_share=counted_ns / kernels if counted_ns and kernels else None,
        unavailable=tuple(_unavailable(facts, bool(counted_ns), source, found)),
        gpus=max(1, facts.work["device"].n_unique()),
    )


def _unavailable(facts: Facts, has_counters: bool, source: str | None, found: Sequence[Finding]) -> Iterator[str]:
    """What could not be asked, and what would answer it. `source` is the report of counters that was given."""
    if not facts.wall_ns:
        return
    trace = facts.timeline.trace
    fills = facts.work["fill_share"].filter(facts.work["kind"] == "kernel")
    if not has_counters and source is not None:
        yield (
            f"what happens inside kernels: {source} holds none of the window's kernels with the same grid and "
            "block; warplens counters --trace shows which to collect"
        )
    elif not has_counters:
        answered = (
            "give an Nsight Compute report with --counters"
            if facts.of_nvidia
            else f"{trace.capture.recorder.counters} tells, whose counters are not read"
        )
        yield (
            "what happens inside kernels (occupancy, coalescing, bank conflicts, divergence, measured bandwidth): "
            + answered
        )
    if fills.len() and fills.null_count() == fills.len():
        unread = "grids are not recorded, or were skipped in a large file (warplens diagnose reads them)"
        known = trace.kernels["grid_x"].is_not_null().any()
        why = "the profile does not record the number of multiprocessors" if known else unread
        yield f"whether grids fill the GPU (small-kernels): {why}"
    if not trace.api_calls.height:
        how = trace.capture.recorder.remedies.get("no-api-calls", "nsys profile --trace=cuda")
        yield f"why the GPU was idle: no CUDA API calls were recorded ({how[:1].lower()}{how[1:]})"
    if not facts.work["phase"].is_in(list(PHASES)).any():
        yield "forward, backward and optimizer apart: no range is named after them"
    if (doubt := framework_doubt(facts, found)) is not None:
        yield f"whether the remedies fit: {doubt}"
    if not facts.window.steps:
        yield "numbers per step: the window has no repeating steps"
