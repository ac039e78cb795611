"""`diagnose`: the rules applied to a window, their findings ranked, and the one that limits it named first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import forget
from warplens.analysis.headroom import Headroom
from warplens.analysis.headroom import headrooms as headrooms_of
from warplens.analysis.hostpace import HostCalls
from warplens.analysis.prediction import Prediction, predictions
from warplens.analysis.quality import quality_notes
from warplens.analysis.timebudget import TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import PHASES, Window
from warplens.diagnosis.claims import Claims, divide
from warplens.diagnosis.evidence import CounterVerdicts, counted
from warplens.diagnosis.facts import Facts, gather
from warplens.diagnosis.findings import Coverage, Diagnosis, Finding, PhaseVerdict
from warplens.diagnosis.fitting import fitting, framework_doubt
from warplens.diagnosis.headline import headline, headline_share, unprofiled_share, with_reason
from warplens.diagnosis.moments import worst_moments
from warplens.diagnosis.places import located
from warplens.diagnosis.priority import TopPriority, ranked, top_priority
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules import RULES, rule
from warplens.diagnosis.rules.whole import (
    BelowRoof,
    IncompleteProfile,
    Missing,
    Saturated,
    is_known,
    unexplained_idle_ns,
)
from warplens.diagnosis.structure import StructureRule
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.whatif import what_ifs
from warplens.profile import Note
from warplens.profile.counters import KernelCounters

_INCOMPLETE: Final = IncompleteProfile()
_SATURATED: Final = Saturated()
_BELOW_ROOF: Final = BelowRoof()


def diagnose(
    timeline: Timeline,
    window: Window,
    counters: KernelCounters | None = None,
    *,
    thresholds: Thresholds = DEFAULTS,
    notes: Sequence[Note] | None = None,
    budgets: Sequence[TimeBudget] | None = None,
    headrooms: Callable[[], Sequence[Headroom]] | None = None,
    together: Sequence[str] = (),
) -> Diagnosis:
    """The limit of the window, other causes of lost time, and remedies.

    Args:
        timeline: the profile. Small grids need the launch configuration of its kernels.
        window: the analysed part.
        counters: a report of Nsight Compute on the same program, for faults inside kernels.
        thresholds: the limits of the rules.
        notes, budgets: the quality notes and time budgets of the window, if already computed.
        headrooms: returns the headroom of each GPU over the window, if already computed.
        together: ids of findings whose remedies are predicted together, in addition to those predicted anyway.

    Raises:
        UsageError: one of `together` is not found, or cannot be predicted.
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
    # Intermediate data of the pauses' causes, tens of megabytes at a million kernels, are no longer needed.
    forget(timeline, HostCalls.of, Timeline.busy)
    evaluation = _evaluate(facts, modelled, report, together)
    # Phases come last, when data of the whole window, tens of megabytes at a million kernels, have been freed.
    facts.forget()
    phases = [] if evaluation.is_unanswerable else _phases(facts, evaluation.shares_by_phase)
    vars(facts).pop("program", None)  # facts and program hold each other
    return replace(evaluation.diagnosis, per_phase=tuple(phases))


@dataclass(frozen=True)
class _Evaluation:
    """The diagnosis of a window, without its phases."""

    diagnosis: Diagnosis
    shares_by_phase: Mapping[str, float]  #: phase → its share in the time of the verdict
    is_unanswerable: bool  #: whether too much is missing in the profile for any other verdict


def _evaluate(
    facts: Facts, modelled: tuple[Prediction, ...], report: CounterVerdicts | None, together: Sequence[str]
) -> _Evaluation:
    """Applies the rules to the window, and ranks, words and combines their findings."""
    missing = _INCOMPLETE.missing(facts)
    is_unanswerable = missing is not None and missing.decides
    first, others, claims = _judged(facts, divide(facts, RULES), missing)
    verdict = first.finding
    of_verdict = claims.of(verdict.id)
    findings = _worded(facts, claims, (verdict, *others))
    with ThreadPoolExecutor(max_workers=1) as aside:
        # Replays of an excerpt run in parallel with look-ups in the whole window, which take as long.
        with_cost = [finding for finding in findings if not is_unanswerable and not rule(finding.id).describes]
        combined = aside.submit(what_ifs, facts, claims, with_cost, together)
        findings = tuple(located(facts, claims.of(finding.id), finding) for finding in findings)
        moments = () if is_unanswerable else worst_moments(facts, claims, findings)
    what_if = combined.result()
    diagnosis = Diagnosis(
        verdict=verdict.id,
        headline_parts=headline(facts, first, of_verdict, findings[1:], what_if),
        findings=findings,
        per_phase=(),
        predictions=() if is_unanswerable else modelled,
        coverage=_coverage(facts, claims, findings, report.source if report is not None else None),
        notes=tuple(facts.notes),
        moments=moments,
        what_if=what_if,
        headline_share=headline_share(facts, verdict, of_verdict),
        unprofiled_share=unprofiled_share(facts, verdict, of_verdict),
        without_profiler=facts.unprofiled_step if facts.window.steps and not is_unanswerable else None,
        verdict_known=is_known(verdict),
    )
    return _Evaluation(diagnosis, _shares_by_phase(facts, of_verdict, verdict.id), is_unanswerable)


def _judged(facts: Facts, claims: Claims, missing: Missing | None) -> tuple[TopPriority, list[Finding], Claims]:
    """The finding to mend first, the others from the worst on, and the claims with work that several of them share."""
    if missing is not None and missing.decides:
        # Such a profile does not show the program: other findings would be artefacts.
        return TopPriority(missing.finding), [], claims
    raised = _findings(facts, claims)
    first = top_priority(facts, claims, raised)
    raised, claims = _with_shared_work(facts, claims, raised)
    verdict = next(finding for finding in (*raised, first.finding) if finding.id == first.finding.id)
    rest = missing.finding if missing is not None else _INCOMPLETE.unexplained(facts, claims)
    if missing is not None or (rest.bound or 0.0) >= facts.thresholds.warning_ceiling:
        raised.append(rest)
    return replace(first, finding=verdict), ranked(each for each in raised if each.id != verdict.id), claims


def _worded(facts: Facts, claims: Claims, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with remedies that fit the program. Those of all but the first say what else they remove."""
    verdict, *others = (_started_as(facts, fitting(facts, finding)) for finding in findings)
    return verdict, *(with_reason(facts, finding, claims.of(finding.id)) for finding in others)


def _phases(facts: Facts, shares: Mapping[str, float]) -> list[PhaseVerdict]:
    """A verdict for each phase; `facts` loses what only the whole window needs.

    Args:
        shares: phase → its share in the time of the window's verdict.
    """
    parts, phases = facts.hand_over_to_phases(), []
    while parts:
        part = parts.pop(0)
        phases.append(replace(_of_phase(part), of_verdict_share=shares.get(str(part.phase))))
        del part
    return phases


#: What programs are called in commands, and what they are called unless they train.
_NOT_TRAINING: Final = ("python train.py", "python program.py")


def _started_as(facts: Facts, finding: Finding) -> Finding:
    """The finding with commands that start a program of any name, unless the program trains."""
    if facts.trains:
        return finding
    remedies = (replace(remedy, how=remedy.how.replace(*_NOT_TRAINING)) for remedy in finding.remedies)
    return replace(finding, remedies=tuple(remedies))


def _findings(facts: Facts, claims: Claims) -> list[Finding]:
    causes = (cause for cause in RULES if cause.id not in (_INCOMPLETE.id, _SATURATED.id, _BELOW_ROOF.id))
    found = [finding for cause in causes if (finding := cause.find(facts, claims)) is not None]
    least = facts.thresholds.warning_ceiling
    worth = any(weight(finding) >= least and finding.severity != "info" for finding in found)
    busy = None if worth else _SATURATED.find(facts, claims) or _BELOW_ROOF.find(facts, claims)
    return found if busy is None else [*found, busy]


def _with_shared_work(facts: Facts, claims: Claims, found: Sequence[Finding]) -> tuple[list[Finding], Claims]:
    """These findings, and causes most of whose GPU work counts for another one that is worth a change.

    Work may be both needless and slow: gradients that nobody takes, in fp32. Its time counts once, for the cause that
    could remove more of it. The remedy of the other one brings as much alone as if it had been the only cause.

    Returns:
        the findings, and the claims, with those in which each of these causes has its whole share.
    """
    own, alone = facts.program.own_ns, dict(claims.alone)
    by_id = {finding.id: finding for finding in found}
    # With more work in the same time, the work itself is another.
    worth = {finding.id for finding in found if finding.severity != "info" and not finding.is_throughput}
    for position, cause in enumerate(RULES):
        if not cause.takes_all or 2 * claims.busy_ns(cause.id) > claims.wanted_ns.get(cause.id, 0):
            continue
        share = cause.claim(facts)
        if share is None:
            continue
        lost = np.flatnonzero((share > 0) & (claims.work >= 0) & (claims.work != position))
        if not len(lost):
            continue
        by_owner = np.bincount(claims.work[lost], own[lost] * share[lost])
        owner = claims.causes[int(np.argmax(by_owner))]
        if owner not in worth or 2 * by_owner.max() < claims.wanted_ns[cause.id]:
            continue
        given = claims.giving(cause.id, share, own)
        finding = cause.find(facts, given)
        if finding is None or finding.severity == "info":
            continue
        # Causes of which neither is about needless work mostly explain the same time: their remedies do not add up.
        if cause.needless(finding) or rule(owner).needless(by_id[owner]):
            by_id[cause.id] = replace(finding, shares_with=owner)
            alone[cause.id] = given
    return [*by_id.values()], replace(claims, alone=alone)


def _shares_by_phase(facts: Facts, claims: Claims, id_: str) -> dict[str, float]:
    """The share of each phase in the time that a finding claims; nothing if it claims none.

    A host that need not issue the work of a structure is in time for other work as well, which is not where it is.
    """
    spent = [(facts.work, claims.pieces(id_))]
    if not isinstance(rule(id_), StructureRule):
        spent.append((facts.gaps, claims.pauses(id_)))
    total = sum(each.total for _, each in spent)
    times = [table.select("phase", claimed_ns=pl.Series(each.whole())) for table, each in spent]
    return dict(pl.concat(times).group_by("phase").agg(pl.col("claimed_ns").sum() / total).rows()) if total else {}


def _of_phase(part: Facts) -> PhaseVerdict:
    assert part.phase is not None
    assert part.whole is not None
    claims = divide(part, RULES)
    verdict = top_priority(part, claims, _findings(part, claims)).finding
    # A part and its program refer to each other: separating them frees hundreds of megabytes before the next phase.
    vars(part).pop("program", None)
    share = part.wall_ns / part.whole.wall_ns
    gains = verdict.expected, verdict.bound
    return PhaseVerdict(part.phase, verdict.id, is_known(verdict), *gains, part.wall_ns, part.busy_ns, share)


def _coverage(facts: Facts, claims: Claims, found: Sequence[Finding], source: str | None) -> Coverage:
    kernels = facts.own_ns_having("kind", "kernel")
    counted_ns = facts.own_ns(pl.col("bound").is_not_null())
    return Coverage(
        wall_ns=facts.wall_ns,
        busy_ns=facts.busy_ns,
        idle_ns=facts.idle_ns,
        steps=facts.window.step_count,
        idle_attributed_share=facts.attributed_share,
        idle_explained_share=1 - unexplained_idle_ns(facts, claims) / facts.idle_ns if facts.idle_ns else None,
        claimed_ns=sum(_told_ns(claims, finding.id) for finding in found),
        counters_share=counted_ns / kernels if counted_ns and kernels else None,
        unavailable=tuple(_unavailable(facts, bool(counted_ns), source, found)),
        gpus=max(1, facts.work["device"].n_unique()),
    )


def _told_ns(claims: Claims, id_: str) -> int:
    """Time that a finding explains; of work that two of them divide, its own part."""
    return (claims.of(id_) if id_ in claims.parts else claims).total_ns(id_)


def _unavailable(facts: Facts, has_counters: bool, source: str | None, found: Sequence[Finding]) -> Iterator[str]:
    """Questions that the profile cannot answer, and how to answer them. `source`: the given report of counters."""
    if not facts.wall_ns:
        return
    trace = facts.timeline.trace
    fills = facts.work["fill_share"].filter(facts.work["kind"] == "kernel")
    if not has_counters and source is not None:
        yield (
            f"what happens inside kernels: {source} has none of the window's kernels with the same grid and "
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
