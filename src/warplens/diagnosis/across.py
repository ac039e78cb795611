"""`diagnose_run`: the diagnosis of a run of several ranks, each of which was diagnosed by itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, NamedTuple

from warplens.diagnosis.findings import CONFIDENCES, SEVERITIES, Diagnosis, Finding, Headline, Severity, about
from warplens.diagnosis.headline import gain_text
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.communication import ExposedCommunication, UnbucketedCommunication
from warplens.diagnosis.rules.launches import LaunchOverhead
from warplens.diagnosis.rules.ranks import PipelineBubble, Straggler
from warplens.diagnosis.rules.stalls import HostStall
from warplens.diagnosis.rules.whole import NOT_THE_HOST, IncompleteProfile
from warplens.diagnosis.run import Run, listed
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.profile import Note

#: The rules on costs between ranks.
_RULES: Final = (Straggler(), UnbucketedCommunication(), PipelineBubble())


@dataclass(frozen=True, eq=False)
class RunDiagnosis:
    """The limits of a run, and what to do about them."""

    verdict: str  #: id of the main limiter; the first finding has it
    headline_parts: Headline  #: for people: the main limiter, ranks with another verdict, and ranks without a profile
    headline_share: float | None  #: the share of a rank's window in the headline; None if it has none
    unprofiled_share: float | None  #: the same share of the time without the profiler; None without `headline_share`
    #: the verdict; then costs between ranks and causes that all ranks share, the worst first
    findings: tuple[Finding, ...]
    ranks: dict[int, Diagnosis]  #: the diagnosis of each rank by itself
    run: Run  #: the ranks side by side
    #: rank → number of its file, and its position among the ranks of that file
    origin: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """A few sentences for people."""
        return str(self.headline_parts)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Gaps in the data across ranks."""
        return self.run.result.notes

    def finding(self, id_: str) -> Finding | None:
        """The finding with this id, if it was raised."""
        return next((found for found in self.findings if found.id == id_), None)


def diagnose_run(run: Run, ranks: Mapping[int, Diagnosis], thresholds: Thresholds = DEFAULTS) -> RunDiagnosis:
    """The main limit of a run: a cost between ranks, or a cause that all ranks share.

    A run is as fast as its slowest rank: the gain of a cause that all ranks share is the least gain of any rank, and a
    cause of some ranks is reported for those. The verdict has the largest gain. Costs between ranks come before a cause
    that they explain: waiting for each other, launches of small collectives. Findings are less certain if most ranks
    have no profile.
    """
    between = [found for rule in _RULES if (found := rule.across(run, thresholds)) is not None]
    between.sort(key=_order)
    # Small collectives and stages that wait show as exposed communication on each rank; a late rank only on others.
    reported = {found.id for found in between}
    if reported - {Straggler.id}:
        reported.add(ExposedCommunication.id)
    late = Straggler().set_apart(run, thresholds)
    in_transfer = {
        rank: [_in_transfer(found, run, rank, thresholds, late=late) for found in diagnosis.findings]
        for rank, diagnosis in ranks.items()
    }
    alike = _alike(run, in_transfer, reported, thresholds)
    own, of, example = _own_limit(ranks, in_transfer, alike, thresholds)
    if (between and weight(between[0]) >= thresholds.raise_ceiling) and (
        not _costs(own) or own.id in reported or makes(between[0], own) or _order(between[0]) < _order(own)
    ):
        first, *rest = between
        headline, example = _titled(first), None
    else:
        first, rest = own, between
        limit = _titled(own) if example is None else example.headline_parts
        headline = replace(limit, ranks=of, others=tuple(_other_verdicts(ranks, first.id)))
    findings = (first, *sorted([*rest, *(found for found in alike if found.id != first.id)], key=_order))
    return RunDiagnosis(
        verdict=first.id,
        headline_parts=replace(headline, others=(*headline.others, *_unseen(run))),
        headline_share=None if example is None else example.headline_share,
        unprofiled_share=None if example is None else example.unprofiled_share,
        findings=tuple(_as_certain(found, run) for found in findings),
        ranks=dict(ranks),
        run=run,
    )


def _titled(finding: Finding) -> Headline:
    return Headline(finding.title, gain=f"{gain_text(finding)} {finding.gained}")


class _OwnLimit(NamedTuple):
    """What limits the ranks, apart from costs between them."""

    finding: Finding
    ranks: str  #: those that it limits, for people
    example: Diagnosis | None  #: of a rank whose verdict is this very finding; None if there is none


def _own_limit(
    ranks: Mapping[int, Diagnosis],
    findings: Mapping[int, Sequence[Finding]],
    alike: Sequence[Finding],
    limits: Thresholds,
) -> _OwnLimit:
    """The verdict of all ranks; if verdicts differ, the worst cause that all share, or else the most frequent verdict.

    Args:
        findings: rank → its findings, as `_in_transfer` leaves them.
        alike: the causes that all ranks share, the worst first.
    """
    usual, count = Counter(diagnosis.verdict for diagnosis in ranks.values()).most_common(1)[0]
    if count < len(ranks) and alike:
        named = [rank for rank, diagnosis in ranks.items() if diagnosis.verdict == alike[0].id]
        return _OwnLimit(alike[0], f"every rank (the verdict on {_on(named)})" if named else "every rank", None)
    main = [rank for rank, diagnosis in ranks.items() if diagnosis.verdict == usual]
    rank = min(main, key=lambda rank: weight(ranks[rank].findings[0]))
    example = ranks[rank]
    own = next((found for found in alike if found.id == usual), findings[rank][0])
    if own.id == ExposedCommunication.id and weight(own) < limits.raise_ceiling:
        own = next(iter((*alike, *example.findings[1:])), own)  # what is left of it costs nothing
    of = "every rank" if count == len(ranks) else f"{count} of {len(ranks)} ranks ({listed(main)})"
    return _OwnLimit(own, of, example if own == example.findings[0] else None)


def _on(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks)}"


def _other_verdicts(ranks: Mapping[int, Diagnosis], id_: str) -> list[str]:
    """A sentence for each verdict of ranks that is not the run's, and what most of an unexplained one is."""
    others: dict[str, list[int]] = {}
    for rank, diagnosis in ranks.items():
        if diagnosis.verdict != id_:
            others.setdefault(diagnosis.verdict, []).append(rank)
    sentences = []
    for verdict, of_ranks in others.items():
        share, reason = max((_unexplained(ranks[rank].findings[0]) for rank in of_ranks), key=itemgetter(0))
        most = "up to " if len(of_ranks) > 1 else ""
        why = f", mostly {reason} ({most}{100 * share:.1f} % of the time)" if share else ""
        sentences.append(f"On {_on(of_ranks)} the verdict is {verdict}{why}.")
    return sentences


def _unexplained(finding: Finding) -> tuple[float, str]:
    """The largest share of unexplained idle time by cause, and this cause in words; 0 for other findings."""
    shares = ((float(finding.evidence.get(f"{cause}_share", 0.0)), words) for cause, words in NOT_THE_HOST.items())
    return max(shares, key=itemgetter(0))


def _unseen(run: Run) -> Iterator[str]:
    """A sentence with the number of ranks of the run that have no profile; none if all have one."""
    placing = run.result.placing
    if placing.missing and placing.world_size is not None:
        of = f"{len(placing.missing)} of {placing.world_size} ranks"
        yield f"{of} have no profile here: whether the same limits them is not known."


#: Below this share of communication kernels that were found on other ranks, waits between ranks are less certain.
_MATCHED_SHARE: Final = 2 / 3


def _as_certain(finding: Finding, run: Run) -> Finding:
    """The finding, one level less certain if most ranks have no profile, and if most waits are not known."""
    less = int(len(run.result.placing.missing) > len(run.ranks))
    if finding.id in {between.id for between in _RULES}:
        kernels, matched = (int(run.result.matching[name].sum()) for name in ("kernels", "matched"))
        less += int(matched < _MATCHED_SHARE * kernels)
    level = min(CONFIDENCES.index(finding.confidence) + less, len(CONFIDENCES) - 1)
    return replace(finding, confidence=CONFIDENCES[level])


def makes(between: Finding, own: Finding) -> bool:
    """Whether a cost between ranks explains the limit of each rank.

    Each small collective, and work between two of them, is a launch of the host. A rank that is late because its host
    launches slowly has the same limit as the others, and does not explain theirs.
    """
    return between.id == UnbucketedCommunication.id and own.id == LaunchOverhead.id


def _order(finding: Finding) -> tuple[int, float, str]:
    return SEVERITIES.index(finding.severity), -weight(finding), finding.id


def _costs(finding: Finding) -> bool:
    return finding.gain is not None and finding.id != IncompleteProfile.id and not rule(finding.id).describes


def _alike(
    run: Run, findings: Mapping[int, Sequence[Finding]], reported: set[str], limits: Thresholds
) -> list[Finding]:
    """The causes that all ranks share and that are not reported yet, each as it is on the rank that gains least.

    If a cause goes away on all ranks, so does a rank's waiting for others: a rank that waits gains more than it tells.

    Args:
        findings: rank → its findings, as `_in_transfer` leaves them.
    """
    by_rank = []
    for rank, of_rank in findings.items():
        share = run.waited_ns(rank) / max(run.summary(rank).times["duration_ns"], 1)
        by_rank.append({found.id: (_freed(found, share), found) for found in of_rank if _costs(found)})
    ids = set.intersection(*map(set, by_rank)) - reported
    alike = [min((found[id_] for found in by_rank), key=itemgetter(0))[1] for id_ in ids]
    alike = [found for found in alike if found.id != ExposedCommunication.id or weight(found) >= limits.raise_ceiling]
    stalls = any(HostStall.id in found for found in by_rank)
    return sorted((_with_stalls(found) if stalls else found for found in alike), key=_order)


def _freed(finding: Finding, waited_share: float) -> float:
    """The gain on a rank if its waiting goes away as well; for communication, its own gain."""
    gain = weight(finding)
    left = 1 / max(gain, 1.0) - waited_share
    return gain if finding.id == ExposedCommunication.id else 1 / left if left > 0 else math.inf


def _in_transfer(finding: Finding, run: Run, rank: int, limits: Thresholds, *, late: bool) -> Finding:
    """The finding on exposed communication, with gains without `Run.not_communication_ns`; others as they are.

    Args:
        late: whether a finding tells that a rank is late.
    """
    if finding.id != ExposedCommunication.id or finding.expected is None:
        return finding
    share = 1 - run.not_communication_ns(rank, late=late) / max(run.summary(rank).times["exposed_ns"], 1)
    if share >= 1:
        return finding

    def gain(whole: float) -> float:
        return 1 / (1 - max(share, 0.0) * (1 - 1 / max(whole, 1.0)))

    def interval(whole: tuple[float, float] | None) -> tuple[float, float] | None:
        return whole and (gain(whole[0]), gain(whole[1]))

    remedies = tuple(
        remedy
        if remedy.gain is None
        else replace(
            remedy,
            expected=remedy.expected.replace(about(remedy.gain), about(gain(remedy.gain))),
            gain=gain(remedy.gain),
            gain_interval=interval(remedy.gain_interval),
        )
        for remedy in finding.remedies
    )
    expected = gain(finding.expected)
    graded: Severity = "info" if expected < limits.warning_ceiling else "warning"
    return replace(
        finding,
        severity=finding.severity
        if expected >= limits.critical_ceiling
        else max(graded, finding.severity, key=SEVERITIES.index),
        expected=expected,
        expected_interval=interval(finding.expected_interval),
        remedies=remedies,
    )


def _with_stalls(finding: Finding) -> Finding:
    """The finding on launches, whose graph also removes the pauses of the finding on the host, says so."""
    if finding.id != LaunchOverhead.id:
        return finding
    includes = f"; includes pauses of {HostStall.id}, which a graph removes as well"
    idle = finding.evidence.get("idle_share", 0.0)
    remedies = tuple(
        replace(remedy, expected=f"{remedy.expected}{includes}")
        if remedy.captures and remedy.gain is not None and 1 - 1 / remedy.gain > idle
        else remedy
        for remedy in finding.remedies
    )
    return replace(finding, remedies=remedies)
