"""`diagnose_run`: what limits a run of several ranks, each of which was diagnosed by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from warplens.diagnosis.findings import SEVERITIES
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules.ranks import PipelineBubble, Straggler, UnbucketedCommunication
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.verdict import gain_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.diagnosis.findings import Diagnosis, Finding
    from warplens.diagnosis.run import Run
    from warplens.profile import Note

#: The rules that ask what ranks cost each other.
_RULES: Final = (Straggler(), UnbucketedCommunication(), PipelineBubble())


@dataclass(frozen=True, eq=False)
class RunDiagnosis:
    """What limits a run, and what to do about it.

    Attributes:
        verdict: id of the main limiter; the first finding has it.
        headline: one or two sentences for people.
        headline_share: the share of a rank's window that it gives; null where it gives none.
        findings: what ranks cost each other, the worst first; led by the verdict of most ranks where that costs more.
        ranks: the diagnosis of each rank by itself.
        run: the ranks side by side.
        origin: for each rank whose file is told by itself the number of that, and its place among the ranks of it.
    """

    verdict: str
    headline: str
    headline_share: float | None
    findings: tuple[Finding, ...]
    ranks: dict[int, Diagnosis]
    run: Run
    origin: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What limits the answers across ranks."""
        return self.run.result.notes

    def finding(self, id_: str) -> Finding | None:
        """The finding with this id, if it was raised."""
        return next((found for found in self.findings if found.id == id_), None)


def diagnose_run(run: Run, ranks: Mapping[int, Diagnosis], thresholds: Thresholds = DEFAULTS) -> RunDiagnosis:
    """What limits the run: what its ranks cost each other, else what limits most of them.

    Args:
        run: the ranks side by side.
        ranks: the diagnosis of each rank by itself.
        thresholds: the limits of the rules.
    """
    between = [found for rule in _RULES if (found := rule.across(run, thresholds)) is not None]
    between.sort(key=lambda found: (SEVERITIES.index(found.severity), -weight(found), found.id))
    told = Counter(diagnosis.verdict for diagnosis in ranks.values())
    usual, count = told.most_common(1)[0]
    own = max(
        (diagnosis.findings[0] for diagnosis in ranks.values() if diagnosis.verdict == usual),
        key=weight,
    )
    leads = bool(between) and (between[0].severity != "info" or own.severity == "info")
    sentences = [f"{found.title}; {gain_text(found)} as fast without it." for found in between[:1]]
    share = None
    if not leads:
        of = "every rank" if count == len(ranks) else f"{count} of {len(ranks)} ranks"
        example = next(diagnosis for diagnosis in ranks.values() if diagnosis.findings[0] is own)
        share = example.headline_share
        sentences.append(f"On {of}: {example.headline[:1].lower()}{example.headline[1:]}")
    return RunDiagnosis(
        verdict=between[0].id if leads else usual,
        headline=" ".join(sentences),
        headline_share=share,
        findings=tuple(between) if leads else (own, *(found for found in between if found.id != usual)),
        ranks=dict(ranks),
        run=run,
    )
