"""`diagnose`: the rules applied to a window, their findings ranked, and the one that limits it named first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
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
from warplens.diagnosis.findings import (
    CONFIDENCES,
    LIMITED_BY,
    MANY,
    SEVERITIES,
    Coverage,
    Diagnosis,
    Finding,
    Headline,
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
from warplens.diagnosis.rules.stalls import HostStall
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
from warplens.diagnosis.whatif import WhatIfs, what_ifs
from warplens.profile import Note
from warplens.profile.counters import KernelCounters

_INCOMPLETE: Final = IncompleteProfile()
_SATURATED: Final = Saturated()
_BELOW_ROOF: Final = BelowRoof()


# --- The headline ----------------------------------------------------------------------------------------------------


def headline(
    facts: Facts,
    first: TopPriority,
    claims: Claims,
    others: Sequence[Finding] = (),
    what_if: WhatIfs | None = None,
) -> Headline:
    """The limit of the window and its gain.

    Further parts say why it precedes a larger gain, what several small gains bring together, and what interrupts the
    steady steps, and is left out.
    """
    steps = facts.timeline.steps
    left_out = (steps.interruptions, *steps.pauses) if facts.window.kind == "steady" else ()
    verdict = first.finding
    together = _small_gains_together(verdict, what_if, facts.thresholds)
    limit = _limit(facts, verdict, claims, not together and _is_little(verdict, facts.thresholds))
    return replace(
        limit,
        reasons=(*limit.reasons, *filter(None, [_precedes(first, others)])),
        together=together,
        left_out=tuple(part.told for part in left_out if part is not None),
    )


def _small_gains_together(verdict: Finding, what_if: WhatIfs | None, limits: Thresholds) -> str:
    """What remedies bring together, if that is much and the first one alone gains little.

    Causes may hide each other: a host that is as slow as the GPU's work gains nothing by less of either.
    """
    if verdict.expected is None or verdict.expected >= limits.warning_ceiling or what_if is None:
        return ""
    groups = (change for change in what_if.changes if len(change.findings) > 1 and verdict.id in change.findings)
    best = max(groups, key=lambda change: change.expected, default=None)
    if best is None or best.expected < limits.unsure_warning_ceiling:
        return ""
    singles = (change for change in what_if.changes if len(change.findings) == 1)
    alone = math.prod(change.expected for change in singles if change.findings[0] in best.findings)
    hidden = "The causes hide each other: without" if best.expected > _EXCEEDS_SHARE * alone else "Without"
    *others, last = (id_ for id_ in best.findings if id_ != verdict.id)
    named = f"{', '.join(others)} and {last}" if others else last
    return f"{hidden} {named} as well, it is {about(best.expected)} as fast."


def _is_little(verdict: Finding, limits: Thresholds) -> bool:
    """Whether the first remedy gains little, and surely not much."""
    _, most = verdict.expected_interval or (1.0, weight(verdict))
    return verdict.severity == "info" and weight(verdict) < limits.warning_ceiling and most < limits.critical_ceiling


class _Precedence(Enum):
    """Why a finding is to mend before one with a larger gain."""

    NEEDLESS = "work that is not needed need not get faster"
    MORE_WORK = "that gain needs more work per step"
    WAITS = "a host that waits cannot get ahead of the GPU, and no CUDA graph captures a wait"
    MAKES_LAUNCHES = "a step without it launches less, and a CUDA graph can then capture it"
    LATE_HOST = "it makes the host late in a way that faster launches do not mend"
    SAME_WORK = "its remedies are for most of the same work"


@dataclass(frozen=True)
class TopPriority:
    """The finding to mend first, and why it precedes those with a larger gain, if there are any."""

    finding: Finding
    precedence: _Precedence = _Precedence.SAME_WORK

    def before(self, larger: Finding) -> _Precedence:
        """Why it precedes this one. Only needless work does so for a stronger reason than other work per step."""
        needs_more_work = larger.is_throughput and not self.finding.is_throughput
        if needs_more_work and self.precedence is not _Precedence.NEEDLESS:
            return _Precedence.MORE_WORK
        return self.precedence


def _precedes(first: TopPriority, others: Sequence[Finding]) -> str:
    """Why the verdict comes before a finding with a clearly larger gain; empty without one."""
    verdict = first.finding
    costly = (finding for finding in others if finding.severity != "info" and not _describes(finding))
    larger = max(costly, key=weight, default=None)
    if larger is None or _describes(verdict) or weight(verdict) - 1 >= _AS_MUCH * (weight(larger) - 1):
        return ""
    return f"It comes before {larger.id} ({gain_text(larger)}): {first.before(larger).value}."


#: Behind a gain of more work at a time that is no warning.
_MAY_BE_WELL: Final = "If there is no more work at a time, the program may be as good as it gets."


def _limit(facts: Facts, verdict: Finding, claims: Claims, is_little: bool) -> Headline:
    """The limit of the window and the gain; it says first if that gain is little."""
    gain = f"{gain_text(verdict)} {verdict.gained}"
    template, share = rule(verdict.id).headline_of(verdict), headline_share(facts, verdict, claims)
    if share is not None:
        text = template.format(share=percent(share))
        behind = verdict.evidence.get("launches_behind_ns", 0) / facts.wall_ns
        if behind > share:  # the share that the profile shows would not explain the gain
            text += f", and by a model another {percent(behind)} in launches that it delays"
        if (saving := _difference(facts, verdict, claims, share, behind if behind > share else 0.0)) is not None:
            text += f"; {saving.clause}"
        if is_little:
            return Headline(f"Little to gain; {text[:1].lower()}{text[1:]}", gain=gain)
        reasons = (_MAY_BE_WELL,) if verdict.is_throughput and verdict.severity == "info" else ()
        limit = text.removeprefix(LIMITED_BY)
        return Headline(limit, opening="" if limit == text else LIMITED_BY, gain=gain, reasons=reasons)
    if facts.wall_ns and (text := rule(verdict.id).told(facts, verdict)):
        return Headline(text)
    if verdict.expected is not None:
        return Headline(verdict.title, gain=gain)
    if not facts.wall_ns:
        # A name such as CUDA keeps its capitals.
        first = verdict.title[:1].lower() if verdict.title[1:2].islower() else verdict.title[:1]
        return Headline(f"The profile cannot answer: {first}{verdict.title[1:]}")
    stop = "" if verdict.title.endswith(".") else "."
    return Headline(f"This profile cannot say what limits the program. {verdict.title}{stop}")


def headline_share(facts: Facts, verdict: Finding, claims: Claims) -> float | None:
    """Share of the window that the profile shows with the verdict's cause; None if the headline has no share."""
    return claims.seen_ns(verdict.id) / facts.wall_ns if rule(verdict.id).headline_of(verdict) else None


def unprofiled_share(facts: Facts, verdict: Finding, claims: Claims) -> float | None:
    """The share of the headline, of a window without the time that the profiler added."""
    if headline_share(facts, verdict, claims) is None:
        return None
    issuing = max(claims.issuing_ns.get(verdict.id, 0) - claims.moved_ns.get(verdict.id, 0), 0)
    added = (1 - facts.unprofiled_share) * min(issuing, claims.seen_idle_ns(verdict.id))
    if verdict.id == HostStall.id:
        added += _added_to_stalls(facts, claims.seen_idle_ns(verdict.id))
    return (claims.seen_ns(verdict.id) - added) / _unprofiled_wall_ns(facts)


def _added_to_stalls(facts: Facts, stalled_ns: int) -> float:
    """Time that the profiler added to so much time of the host's long pauses, by recording operators in them."""
    return (1 - facts.pace.stalls_left) * stalled_ns if facts.pace is not None else 0.0


def _unprofiled_wall_ns(facts: Facts) -> float:
    """The window without the time that the profiler added; at least 1."""
    return max(facts.wall_ns - facts.added_ns - _added_to_stalls(facts, facts.idle("host")), 1.0)


#: A gain this many times that of its share, or this part of it, contradicts the share, unless the headline says why.
_EXCEEDS_SHARE: Final = 1.05
_BELOW_SHARE: Final = 1.1

#: Part of the GPU work of a cause from which on a remedy is said to remove it.
_NEARLY_ALL: Final = 0.9

#: What programs are called in commands, and what they are called unless they train.
_NOT_TRAINING: Final = ("python train.py", "python program.py")

#: Part of an unexplained saving from which on its source is named.
_MUCH: Final = 0.25


def is_of_profiler(share: float | None, without_profiler: float | None, expected: float | None) -> bool:
    """Whether a gain is below what the share suggests, and the share would be smaller without the profiler.

    Args:
        share: of the recorded time, in the headline.
        without_profiler: the same of the time without the profiler.
    """
    if share is None or without_profiler is None or expected is None:
        return False
    is_below = _BELOW_SHARE * expected * (1 - share) <= 1
    return is_below and 1 - without_profiler > _EXCEEDS_SHARE * (1 - share)


@dataclass(frozen=True)
class _Saving:
    """What a remedy saves, if that is not the time of its cause, and why."""

    remedy: str  #: what the text calls it
    share: float  #: saved share of the time without the profiler
    time: str  #: what it is a share of, in words
    also_removed: str = ""  #: what it removes beside the time of the cause, in words
    left: str = ""  #: why it saves less than the time of the cause
    is_by_profiler: bool = False  #: whether the shares only differ because the profiler added other time

    @property
    def told(self) -> str:
        """What it saves and why, without its name."""
        saved = f"saves {percent(self.share)} of {self.time} without the profiler"
        return f"{saved}, as it also removes {self.also_removed}" if self.also_removed else f"{saved}, and {self.left}"

    @property
    def clause(self) -> str:
        """A part of a sentence with all of it."""
        if self.is_by_profiler:
            return f"without the profiler {self.time} is shorter, and {self.remedy} saves {percent(self.share)} of it"
        return f"{self.remedy} {self.told}"


def _difference(facts: Facts, verdict: Finding, claims: Claims, share: float, modelled: float) -> _Saving | None:
    """What the remedy saves, if that is not the share of the cause.

    A remedy may save more than the time of its cause: other GPU work, or pauses that a host with less to do does not
    make. It may save less: it leaves a part, or the host sets the pace then. Both are without the profiler, whose time
    is part of the recorded shares.

    Args:
        share: of the window, in the headline.
        modelled: another share of the window that the headline names.
    """
    expected, own = verdict.expected, unprofiled_share(facts, verdict, claims)
    if expected is None or own is None or is_of_profiler(share, own, expected):
        return None
    left = 1 / expected
    saving = _Saving(
        remedy="the first remedy" if verdict.remedies and verdict.remedies[0].gain is not None else "the remedy",
        share=1 - left,
        time="the time per unit of work" if verdict.is_throughput else "the time",
    )
    if left > _BELOW_SHARE * (1 - share):
        paced = _paces_after(facts, verdict, claims)
        return replace(saving, left="then the host sets the pace" if paced else "the rest stays")
    if _EXCEEDS_SHARE * left >= 1 - share - modelled:
        return None
    if modelled == 0 and _EXCEEDS_SHARE * left >= 1 - own:
        return replace(saving, is_by_profiler=True)
    return replace(saving, also_removed=_also_removed(facts, verdict, claims, saving.share, own))


def _paces_after(facts: Facts, verdict: Finding, claims: Claims) -> bool:
    """Whether the host sets the pace after the first remedy, which removes nearly all GPU work of the cause."""
    busy = claims.busy_ns(verdict.id)
    removed = (verdict.basis.work_share if verdict.basis is not None else None) or 0.0
    is_gone = busy > 0 and removed * facts.unprofiled_ns() >= _NEARLY_ALL * busy
    return is_gone and facts.unprofiled_host_ns > facts.busy_ns - busy


def _also_removed(facts: Facts, verdict: Finding, claims: Claims, saved: float, own: float) -> str:
    """What the first remedy removes beside the time of its cause: other GPU work, other pauses, or both.

    Args:
        saved: share of the time without a profiler that the first remedy saves.
        own: the part of it that the profile shows with the cause.
    """
    wall = _unprofiled_wall_ns(facts)
    other = max(saved - own, 0.0)
    work_share = verdict.basis.work_share if verdict.basis is not None else None
    work = min(max((work_share or 0.0) - claims.busy_ns(verdict.id) / wall, 0.0), other)
    idle = max(wall - facts.busy_ns - (own * wall - claims.busy_ns(verdict.id)), 0) / wall
    work = max(work, other - idle)  # the remedy cannot save more pauses than there are
    has_own_work = claims.busy_ns(verdict.id) > 0
    parts = {
        rule(verdict.id).beside or ("other GPU work" if has_own_work else "GPU work"): work,
        "other pauses": other - work,
    }
    return " and ".join(name for name, part in parts.items() if part >= _MUCH * other)


def gain_text(finding: Finding) -> str:
    """The expected gain in words, or the bound if only that is known."""
    if finding.gain is None or finding.expected is not None or finding.gain >= MANY:
        return about(finding.gain or MANY)
    return f"at most {times(finding.gain)}"


# --- The diagnosis ---------------------------------------------------------------------------------------------------


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
        with_cost = [finding for finding in findings if not is_unanswerable and not _describes(finding)]
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
    first = _verdict(facts, claims, raised)
    raised, claims = _with_shared_work(facts, claims, raised)
    verdict = next(finding for finding in (*raised, first.finding) if finding.id == first.finding.id)
    rest = missing.finding if missing is not None else _INCOMPLETE.unexplained(facts, claims)
    if missing is not None or (rest.bound or 0.0) >= facts.thresholds.warning_ceiling:
        raised.append(rest)
    return replace(first, finding=verdict), _ranked(each for each in raised if each.id != verdict.id), claims


def _worded(facts: Facts, claims: Claims, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with remedies that fit the program. Those of all but the first say what else they remove."""
    verdict, *others = (_started_as(facts, fitting(facts, finding)) for finding in findings)
    return verdict, *(_with_reason(facts, finding, claims.of(finding.id)) for finding in others)


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


def _started_as(facts: Facts, finding: Finding) -> Finding:
    """The finding with commands that start a program of any name, unless the program trains."""
    if facts.trains:
        return finding
    remedies = (replace(remedy, how=remedy.how.replace(*_NOT_TRAINING)) for remedy in finding.remedies)
    return replace(finding, remedies=tuple(remedies))


def _with_reason(facts: Facts, finding: Finding, claims: Claims) -> Finding:
    """The finding whose remedy with its gain says what it saves beside the time of the cause, if that is much."""
    share = headline_share(facts, finding, claims)
    if share is None or finding.expected is None:
        return finding
    behind = finding.evidence.get("launches_behind_ns", 0) / facts.wall_ns
    saving = _difference(facts, finding, claims, share, behind)
    if saving is None or not saving.also_removed:
        return finding
    best = next((remedy for remedy in finding.remedies if remedy.gain == finding.expected), None)
    remedies = (
        replace(remedy, expected=f"{remedy.expected}; {saving.told}") if remedy is best else remedy
        for remedy in finding.remedies
    )
    return replace(finding, remedies=tuple(remedies))


def _describes(finding: Finding) -> bool:
    return finding.id == _INCOMPLETE.id or rule(finding.id).describes


def _findings(facts: Facts, claims: Claims) -> list[Finding]:
    causes = (cause for cause in RULES if cause.id not in (_INCOMPLETE.id, _SATURATED.id, _BELOW_ROOF.id))
    found = [finding for cause in causes if (finding := cause.find(facts, claims)) is not None]
    worth = any(
        (finding.gain or 0.0) >= facts.thresholds.warning_ceiling and finding.severity != "info" for finding in found
    )
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


def _verdict(facts: Facts, claims: Claims, found: Sequence[Finding]) -> TopPriority:
    """The costliest cause that is worth a change; without one, a finding that describes the window."""
    rest = _INCOMPLETE.unexplained(facts, claims)
    unknown = rest.bound or 0.0
    lost = [finding for finding in found if finding.severity != "info"]
    costliest = max(lost, key=weight, default=None)
    limits = facts.thresholds
    named = weight(costliest) if costliest is not None else None
    # A cause that is worth a change comes first, unless far more time has no known cause.
    if unknown >= limits.warning_ceiling and _lost_share(unknown) > limits.unexplained_factor * _lost_share(named):
        return TopPriority(rest)
    if costliest is not None:
        return _top_priority(facts, claims, costliest, found)
    return TopPriority(_description(facts, claims, found) or max([*_sure_causes(found), rest], key=weight))


def _sure_causes(found: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in found if not rule(finding.id).describes and finding.confidence != "low"]


def _description(facts: Facts, claims: Claims, found: Sequence[Finding]) -> Finding | None:
    """The finding that describes a window in which no cause is worth a change; None if none does."""
    limits = facts.thresholds
    by_id = {finding.id: finding for finding in found}
    if facts.own_ns_having("kind", "graph") <= limits.dominant_share * facts.wall_ns:
        by_id.pop("graph-opaque", None)
    roof = by_id.get("tensor-compute")
    if "saturated" in by_id and roof is not None and roof.confidence == "high":
        by_id["saturated"] = roof
    if "below-roof" in by_id and not is_known(by_id["below-roof"]):
        by_id["below-roof"] = _too_little_work(facts, claims, found) or by_id["below-roof"]
    order = ("graph-opaque", "padded-work", "saturated", "below-roof")
    return next((by_id[id_] for id_ in order if id_ in by_id), None)


def _too_little_work(facts: Facts, claims: Claims, found: Sequence[Finding]) -> Finding | None:
    """The finding that the step has too little work for the GPU, if that explains most of the time; else None."""
    least = facts.thresholds.dominant_share * facts.wall_ns
    small = (each for each in found if each.is_throughput and each.confidence != "low")
    return max((each for each in small if claims.busy_ns(each.id) > least), key=weight, default=None)


def _owner(facts: Facts, claims: Claims, costliest: Finding, lost: Sequence[Finding]) -> Finding:
    """The costliest cause, or another one that claims most of the work that its remedy removes.

    For example, a compiler also fuses the passes of unfused attention, which has a more specific finding.
    """
    general = rule(costliest.id).claim(facts)
    if general is None:
        return costliest
    for other in sorted(lost, key=lambda finding: -claims.busy_ns(finding.id)):
        claimed = claims.pieces(other.id).whole()
        if other.id == costliest.id or 2 * general @ claimed < claimed.sum():
            continue
        worth = _lost_share(weight(other)) >= facts.thresholds.dominant_share * _lost_share(weight(costliest))
        if worth and claims.busy_ns(other.id) > claims.busy_ns(costliest.id):
            return other
    return costliest


#: Gains (less 1) this near to each other cannot be told apart.
_AS_MUCH: Final = 0.9


def _surest(costliest: Finding, lost: Sequence[Finding]) -> Finding:
    """Of the causes whose remedies save as much as the costliest one's, a surer one."""
    as_much = 1 + _AS_MUCH * (weight(costliest) - 1)
    near = (finding for finding in lost if weight(finding) >= as_much)
    return min(
        near,
        key=lambda finding: (CONFIDENCES.index(finding.confidence), finding is not costliest, -weight(finding)),
    )


def _without_more_work(costliest: Finding, lost: Sequence[Finding], limits: Thresholds) -> Finding:
    """The costliest cause, or the costliest whose remedies need no more work per step, if it loses nearly as much."""
    if not costliest.is_throughput:
        return costliest
    faster = max((finding for finding in lost if not finding.is_throughput), key=weight, default=None)
    least = limits.dominant_share * _lost_share(weight(costliest))
    return costliest if faster is None or _lost_share(weight(faster)) < least else faster


@dataclass(frozen=True)
class _Candidates:
    """The findings of a window. Each public method returns one that may precede the leading one, or None."""

    facts: Facts
    found: Sequence[Finding]
    leading: Finding  #: the costliest cause, or one for the same work

    def needless(self) -> Finding | None:
        """The costliest cause whose work is not needed."""
        return self._worth(
            (each for each in self._lost if rule(each.id).needless(each)), self.facts.thresholds.dominant_share
        )

    def leading_itself(self) -> Finding | None:
        """The leading cause, unless it is the host's launches, or its pauses that are not much longer than these."""
        is_launching = self.leading.id == "launch-overhead" or (self.leading.id == "host-stall" and not self._stalls)
        return None if is_launching else self.leading

    def waits(self) -> Finding | None:
        """Waits after every few launches or in a loop, or the costliest of the causes that make launches."""
        waiting = next((finding for finding in self.found if finding.id == "host-sync"), None)
        if waiting is None:
            return None
        crowded = self.leading.id == "launch-overhead" and self.facts.waits_crowded and not self._merges_passes
        looped = [waiting] if "looped_kernels_per_step" in waiting.evidence else []
        is_looped = self._worth(looped, self.facts.thresholds.specific_share) is not None
        return waiting if crowded or is_looped or self.makes_launches() is waiting else None

    def loop(self) -> Finding | None:
        """A loop that launches a few kernels per turn, to which pauses not much longer than launches belong."""
        loops = [each for each in self._lost if "turns_per_step" in each.evidence]
        return self._worth(loops, self.facts.thresholds.dominant_share) if self.leading.id == "host-stall" else None

    def makes_launches(self) -> Finding | None:
        """The costliest of the causes that make launches. Merging equal passes also removes their waits."""
        if self.leading.id != "launch-overhead":
            return None
        causes = (each for each in self._lost if rule(each.id).makes_launches(each))
        apart = (each for each in causes if not (self._merges_passes and each.id == "host-sync"))
        return self._worth(apart, self.facts.thresholds.specific_share)

    def stalls(self) -> Finding | None:
        """Pauses as long as many launches, which have another cause than launching."""
        return self._worth(self._stalls, self.facts.thresholds.dominant_share)

    @property
    def _lost(self) -> list[Finding]:
        return [finding for finding in self.found if finding.severity != "info"]

    @property
    def _stalls(self) -> list[Finding]:
        return [each for each in self._lost if each.id == "host-stall" and "stalls_apart_share" in each.evidence]

    @property
    def _merges_passes(self) -> bool:
        return "passes_per_step" in self.leading.evidence

    def _worth(self, causes: Iterable[Finding], least: float) -> Finding | None:
        """The costliest of these, if it loses at least this part of what the leading one does."""
        best = max(causes, key=weight, default=None)
        is_worth = best is not None and _lost_share(weight(best)) / _lost_share(weight(self.leading)) >= least
        return best if is_worth else None


#: What may precede the leading cause, in this order, and why it comes before a larger gain.
_FIRST: Final = (
    (_Candidates.needless, _Precedence.NEEDLESS),
    (_Candidates.leading_itself, _Precedence.SAME_WORK),
    (_Candidates.waits, _Precedence.WAITS),
    (_Candidates.loop, _Precedence.LATE_HOST),
    (_Candidates.makes_launches, _Precedence.MAKES_LAUNCHES),
    (_Candidates.stalls, _Precedence.LATE_HOST),
)


def _top_priority(facts: Facts, claims: Claims, costliest: Finding, found: Sequence[Finding]) -> TopPriority:
    """The cause to fix first, which may not be the costliest.

    Work that is not needed comes before slow work. Waits, allocations and launches per tensor come before the launch
    rate that they reduce: no graph captures them, and a step without them launches less. A host that waits after every
    few launches cannot get ahead, however fast a launch is. Pauses as long as many launches have another cause than
    launching. Remedies for the same work come before those that need more work per step.
    """
    lost = [finding for finding in found if finding.severity != "info"]
    leading = _surest(_owner(facts, claims, costliest, lost), lost)
    leading = _without_more_work(leading, lost, facts.thresholds)
    candidates = _Candidates(facts, found, leading)
    for choose, precedence in _FIRST:
        if (first := choose(candidates)) is not None:
            return TopPriority(first, _Precedence.NEEDLESS if rule(first.id).needless(first) else precedence)
    return TopPriority(leading)


def _lost_share(gain: float | None) -> float:
    """The share of the wall time that a gain corresponds to."""
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
    verdict = _verdict(part, claims, _findings(part, claims)).finding
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
