"""The headline of a diagnosis: the limit of the window, its gain, and why the two may not fit each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import LIMITED_BY, MANY, Finding, Headline, about, percent, times
from warplens.diagnosis.priority import AS_MUCH, TopPriority
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.stalls import HostStall
from warplens.diagnosis.thresholds import Thresholds
from warplens.diagnosis.whatif import WhatIfs

#: A gain this many times that of its share, or this part of it, contradicts the share, unless the headline says why.
_EXCEEDS_SHARE: Final = 1.05
_BELOW_SHARE: Final = 1.1

#: Part of the GPU work of a cause from which on a remedy is said to remove it.
_NEARLY_ALL: Final = 0.9

#: Part of an unexplained saving from which on its source is named.
_MUCH: Final = 0.25

#: Behind a gain of more work at a time that is no warning.
_MAY_BE_WELL: Final = "If there is no more work at a time, the program may be as good as it gets."


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


def _precedes(first: TopPriority, others: Sequence[Finding]) -> str:
    """Why the verdict comes before a finding with a clearly larger gain; empty without one."""
    verdict = first.finding
    costly = (finding for finding in others if finding.severity != "info" and not rule(finding.id).describes)
    larger = max(costly, key=weight, default=None)
    if larger is None or rule(verdict.id).describes or weight(verdict) - 1 >= AS_MUCH * (weight(larger) - 1):
        return ""
    return f"It comes before {larger.id} ({gain_text(larger)}): {first.before(larger).value}."


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
    """Why a remedy does not save the time of its cause.

    No share of the time is told: that of the headline is recorded, and the gain is without the profiler.
    """

    clause: str  #: a part of a sentence
    also_removed: str = ""  #: what it removes beside the time of the cause, in words


def _difference(facts: Facts, verdict: Finding, claims: Claims, share: float, modelled: float) -> _Saving | None:
    """Why the remedy saves more or less than the share of the cause; None if it saves as much.

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
    remedy = "the first remedy" if verdict.remedies and verdict.remedies[0].gain is not None else "the remedy"
    if left > _BELOW_SHARE * (1 - share):
        paced = ", as the host then sets the pace" if _paces_after(facts, verdict, claims) else ""
        return _Saving(f"{remedy} saves a part of it{paced}")
    if _EXCEEDS_SHARE * left >= 1 - share - modelled:
        return None
    if modelled == 0 and _EXCEEDS_SHARE * left >= 1 - own:
        return _Saving(f"without the profiler the time is shorter, and {remedy} saves more of it")
    also_removed = _also_removed(facts, verdict, claims, 1 - left, own)
    return _Saving(f"{remedy} saves more, as it also removes {also_removed}", also_removed)


def _paces_after(facts: Facts, verdict: Finding, claims: Claims) -> bool:
    """Whether the host sets the pace after the first remedy, which removes nearly all GPU work of the cause."""
    busy = claims.busy_ns(verdict.id)
    is_gone = busy > 0 and verdict.work_share * facts.unprofiled_ns() >= _NEARLY_ALL * busy
    return is_gone and facts.unprofiled_host_ns > facts.busy_ns - busy


def _also_removed(facts: Facts, verdict: Finding, claims: Claims, saved: float, own: float) -> str:
    """What the first remedy removes beside the time of its cause: other GPU work, other pauses, or both.

    Args:
        saved: share of the time without a profiler that the first remedy saves.
        own: the part of it that the profile shows with the cause.
    """
    wall = _unprofiled_wall_ns(facts)
    other = max(saved - own, 0.0)
    work = min(max(verdict.work_share - claims.busy_ns(verdict.id) / wall, 0.0), other)
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


def with_reason(facts: Facts, finding: Finding, claims: Claims) -> Finding:
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
        replace(remedy, expected=f"{remedy.expected}; it also removes {saving.also_removed}")
        if remedy is best
        else remedy
        for remedy in finding.remedies
    )
    return replace(finding, remedies=tuple(remedies))
