"""`diagnose_run`: the diagnosis of a run of several ranks, each of which was diagnosed by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from warplens.diagnosis.findings import SEVERITIES, Diagnosis, Finding
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.communication import ExposedCommunication, UnbucketedCommunication
from warplens.diagnosis.rules.launches import LaunchOverhead
from warplens.diagnosis.rules.ranks import PipelineBubble, Straggler
from warplens.diagnosis.rules.whole import IncompleteProfile
from warplens.diagnosis.run import Run
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.verdict import gain_text
from warplens.profile import Note

#: The rules on costs between ranks.
_RULES: Final = (Straggler(), UnbucketedCommunication(), PipelineBubble())


@dataclass(frozen=True, eq=False)
class RunDiagnosis:
    """The limits of a run, and what to do about them."""

    verdict: str  #: id of the main limiter; the first finding has it
    headline: str  #: one or two sentences for people
    headline_share: float | None  #: the share of a rank's window in the headline; None if it has none
    unprofiled_share: float | None  #: the same share of the time without the profiler; None without `headline_share`
    #: the verdict; then costs between ranks and causes that all ranks share, the worst first
    findings: tuple[Finding, ...]
    ranks: dict[int, Diagnosis]  #: the diagnosis of each rank by itself
    run: Run  #: the ranks side by side
    #: rank → number of its file, and its position among the ranks of that file
    origin: dict[int, tuple[int, int]] = field(default_factory=dict)

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
    that they explain: waiting for each other, launches of small collectives.
    """
    between = [found for rule in _RULES if (found := rule.across(run, thresholds)) is not None]
    between.sort(key=_order)
    # Each rank shows waiting for other ranks as exposed communication.
    reported = {found.id for found in between} | ({ExposedCommunication.id} if between else set())
    alike = _alike(ranks, reported)
    usual, count = Counter(diagnosis.verdict for diagnosis in ranks.values()).most_common(1)[0]
    if count < len(ranks) and alike:
        own, of, example = alike[0], "every rank", None
    else:
        example = min(
            (diagnosis for diagnosis in ranks.values() if diagnosis.verdict == usual),
            key=lambda diagnosis: weight(diagnosis.findings[0]),
        )
        own, of = example.findings[0], "every rank" if count == len(ranks) else f"{count} of {len(ranks)} ranks"
    if between and (
        not _costs(own) or own.id in reported or _makes(between[0], own) or _order(between[0]) < _order(own)
    ):
        first, *rest = between
        headline, example = f"{first.title}; {gain_text(first)} {first.gained}.", None
    else:
        first, rest = own, between
        text = f"{own.title}; {gain_text(own)} {own.gained}." if example is None else example.headline
        headline = f"On {of}: {text[:1].lower()}{text[1:]}"
    return RunDiagnosis(
        verdict=first.id,
        headline=headline,
        headline_share=None if example is None else example.headline_share,
        unprofiled_share=None if example is None else example.unprofiled_share,
        findings=(first, *sorted([*rest, *(found for found in alike if found.id != first.id)], key=_order)),
        ranks=dict(ranks),
        run=run,
    )


def _makes(between: Finding, own: Finding) -> bool:
    """Whether a cost between ranks explains the limit of each rank.

    Each small collective, and work between two of them, is a launch of the host. A rank that is late because its host
    launches slowly has the same limit as the others, and does not explain theirs.
    """
    return between.id == UnbucketedCommunication.id and own.id == LaunchOverhead.id


def _order(finding: Finding) -> tuple[int, float, str]:
    return SEVERITIES.index(finding.severity), -weight(finding), finding.id


def _costs(finding: Finding) -> bool:
    return finding.gain is not None and finding.id != IncompleteProfile.id and not rule(finding.id).describes


def _alike(ranks: Mapping[int, Diagnosis], reported: set[str]) -> list[Finding]:
    """The causes that all ranks share and that are not reported yet, each with the least gain of any rank."""
    by_rank = [{found.id: found for found in diagnosis.findings if _costs(found)} for diagnosis in ranks.values()]
    shared = set.intersection(*map(set, by_rank)) - reported
    return sorted((min((found[id_] for found in by_rank), key=weight) for id_ in shared), key=_order)
