"""The answer in five lines: the limiter (and where), the possible gain, what to do, how sure that is, and what next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import polars as pl

from warplens.diagnosis.across import makes
from warplens.diagnosis.findings import LIMITED_BY, MANY, Diagnosis
from warplens.diagnosis.headline import is_of_profiler
from warplens.diagnosis.rule import REPLAYED, STEPS_ONLY
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.results import PaddedWork
from warplens.diagnosis.rules.whole import BelowRoof, GraphOpaque, headroom_words, is_known
from warplens.diagnosis.thresholds import DEFAULTS
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import Answer, Strip, Table
from warplens.report.verdict import (
    beside_gain,
    covered,
    factor,
    gain_words,
    is_named,
    place_words,
    told_bound,
    verdict_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.diagnosis import Finding
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.diagnosis.findings import Headline
    from warplens.diagnosis.whatif import WhatIf

#: Severity of a line, from which outputs choose a colour.
Tone: TypeAlias = Literal["critical", "warning", "good", "plain", "quiet"]

#: Two remedies together are told if they bring this many times what the better one brings.
_MORE_TOGETHER: Final = 1.25

#: Least share of the cause's time at a place that the answer names.
_LEAST_SHARE_OF_PLACE: Final = 0.2

#: Cautions printed in full; further ones are only counted.
_CAUTIONS: Final = 2

_INCOMPLETE: Final = "incomplete-profile"

_UNKNOWN: Final = "no cause was found, and how near the kernels are to their roofs is unknown"

_SEVERITY_TONES: Final[dict[str, Tone]] = {"critical": "critical", "warning": "warning", "info": "good"}


@dataclass(frozen=True)
class Line:
    """One line of the answer."""

    #: `limited by` (`verdict` if there is no limiter), `where`, `gain`, `do`, `also`, `sure`, `caution` or `next`
    label: str
    text: str
    tone: Tone = "plain"
    code: tuple[str, ...] = ()  #: lines to copy, such as the code of a remedy


def brief(diagnosis: Diagnosis | RunDiagnosis, *, commands: Sequence[str] = (), path: str = "PATH") -> tuple[Line, ...]:
    """A diagnosis in five lines, a line for each caution, and the commands to run next.

    `path` is what the user types for the profile, in the commands of remedies.
    """
    return tuple(_lines(diagnosis, commands, path))


def _lines(diagnosis: Diagnosis | RunDiagnosis, commands: Sequence[str], path: str) -> Iterator[Line]:
    """The answer in brief: what limits, where, the gain, what to do, how sure, and what comes next."""
    verdict = diagnosis.findings[0]
    tone: Tone = "warning" if verdict.id == _INCOMPLETE else _SEVERITY_TONES[verdict.severity]
    names_limit = not rule(verdict.id).describes
    label = "limited by" if names_limit else "verdict"
    yield Line(label, f"{_limiter(diagnosis)} [{verdict_words(verdict)}]", tone)
    main = (place for place in verdict.places if place.share >= _LEAST_SHARE_OF_PLACE and is_named(place))
    if places := "; ".join(f"{fmt.share(place.share)} of it {place_words(place)}" for place in main):
        yield Line("where", fmt.sentence(places))
    yield Line("gain", _gain(diagnosis, verdict), tone)
    to_mend = _to_mend(diagnosis)
    if to_mend.remedies:
        yield _first_remedy("do", to_mend, path)
    else:
        yield Line("do", "Nothing: this profile shows no change worth its effort.", "good")
    if to_mend is not verdict:
        yield _first_remedy("also", verdict, path)
    if isinstance(diagnosis, Diagnosis):
        if text := _together(diagnosis, verdict):
            yield Line("also", text)
    elif more := [found for found in diagnosis.findings[1:] if found.gain and found.gain >= DEFAULTS.raise_ceiling]:
        # Causes between the ranks and causes inside the ranks both matter, so all of them are listed.
        also = (
            f"{fmt.capitalised(rule(finding.id).limiter)}: about {factor(finding.gain)}"
            + (", launches of the small collectives included" if makes(verdict, finding) else "")
            for finding in more
        )
        yield Line("also", " · ".join(also))
    yield Line("sure", f"{fmt.capitalised(verdict.confidence)} confidence; {_rests_on(diagnosis)}.")
    yield from cautions(note for note in diagnosis.notes if note.text != verdict.title)
    if commands:
        yield Line("next", "", "quiet", code=tuple(commands))


def _first_remedy(label: str, finding: Finding, path: str) -> Line:
    """The first remedy of a finding, its effect and its code, with what the user types for the profile."""
    remedy = finding.remedies[0]
    texts = filter(None, (remedy.action, _brings(finding)))
    return Line(label, " ".join(map(fmt.sentence, texts)), code=tuple(_of_path(path, ways(remedy.how))))


def _to_mend(diagnosis: Diagnosis | RunDiagnosis) -> Finding:
    """The finding whose remedy comes first: the verdict, or what was found beside kernels of unknown roofs.

    To find out how near these are comes after a cause that is worth a change.
    """
    verdict, best = diagnosis.findings[0], _best_other(diagnosis)
    if verdict.id != BelowRoof.id or is_known(verdict) or best is None or best.confidence == "low":
        return verdict
    return best if (best.expected or 0.0) >= DEFAULTS.warning_ceiling else verdict


def _best_other(diagnosis: Diagnosis | RunDiagnosis) -> Finding | None:
    """The finding with the largest gain beside the verdict; None without one."""
    with_gain = (finding for finding in diagnosis.findings[1:] if gain_words(finding))
    return max(with_gain, key=lambda finding: finding.gain or 0.0, default=None)


def _together(diagnosis: Diagnosis, verdict: Finding) -> str:
    """What the first remedy and others bring together; empty if it is not clearly more than the best of them alone."""
    changes = diagnosis.what_if.changes if diagnosis.what_if is not None else ()
    pairs = [change for change in changes if change.is_pair and verdict.id in change.findings]
    best = max(pairs, key=lambda change: change.expected, default=None)
    if best is None:
        return ""
    (other,) = (diagnosis.finding(id_) for id_ in best.findings if id_ != verdict.id)
    if other is None:
        return ""
    text = ""
    best_known = max(verdict.expected or 1.0, other.expected or 1.0)
    if best.expected >= _MORE_TOGETHER * best_known:
        remedy = next((remedy for remedy in other.remedies if remedy.gain is not None), other.remedies[0])
        text = f"{remedy.action} [{other.id}]: together {_spread(best)}"
        best_known = best.expected
    every = next((change for change in changes if len(change.findings) > 2), None)
    if every is not None and every.expected >= _MORE_TOGETHER * best_known:
        others = ", ".join(id_ for id_ in every.findings if id_ != verdict.id)
        text += f"{'; ' if text else ''}with the remedies of {others}: {_spread(every)}"
    return fmt.sentence(text) if text else ""


def _spread(change: WhatIf) -> str:
    low, high = map(factor, change.expected_interval)
    return f"{_roughly(change.expected)} ({low} to {high})" if change.expected < MANY else _roughly(change.expected)


def _roughly(gain: float) -> str:
    """An expected gain in a sentence: `about 1.23×`, or `more than 100×`."""
    return f"about {factor(gain)}" if gain < MANY else f"more than {MANY:.0f}×"


def _of_path(path: str, code: Iterable[str]) -> Iterator[str]:
    """These lines of code with the profile's path in the commands of Warplens."""
    for line in code:
        yield line.replace(" PATH", f" {path}") if line.startswith("warplens ") else line


def ways(how: str) -> tuple[str, ...]:
    """The lines of a remedy's code."""
    return tuple(how.split("\n"))


def limit_sentence(diagnosis: Diagnosis | RunDiagnosis) -> str:
    """The limiter of the program as a sentence: the headline without gains, and what it says of other ranks."""
    return fmt.sentence(str(_limit(diagnosis)))


def _limit(diagnosis: Diagnosis | RunDiagnosis) -> Headline:
    """The headline without gains; for one profile, `_together` tells what remedies bring together."""
    limit = diagnosis.headline_parts.without_gain()
    return replace(limit, together="") if isinstance(diagnosis, Diagnosis) else limit


def _limiter(diagnosis: Diagnosis | RunDiagnosis) -> str:
    """The limiter with the affected ranks behind it, if the headline names one; else all of `limit_sentence`."""
    limit = _limit(diagnosis)
    if limit.opening != LIMITED_BY:
        return limit_sentence(diagnosis)
    named = str(replace(limit, opening="", ranks="", others=())).removesuffix(".")
    ranks = f" (on {limit.ranks.lower()})" if limit.ranks else ""
    return " ".join((f"{fmt.capitalised(named)}{ranks}.", *limit.others))


def _gain(diagnosis: Diagnosis | RunDiagnosis, verdict: Finding) -> str:
    """The gain of the verdict's first remedy as a sentence: expected value, interval and bound."""
    if rule(verdict.id).describes or verdict.gain is None:
        word, reason = _without_gain(diagnosis, verdict)
        return fmt.sentence(f"{word} {reason}" if word == "Nothing" else f"{word}: {reason}")
    if verdict.expected is None:
        return fmt.sentence(_range(diagnosis, verdict))
    gained = f"{_roughly(verdict.expected)} {verdict.gained.removesuffix(' without it')}"
    return fmt.sentence(f"{gained}: {_range(diagnosis, verdict)}")


def _without_gain(diagnosis: Diagnosis | RunDiagnosis, verdict: Finding) -> tuple[str, str]:
    """For a verdict without a gain of its own: how much there is to gain, in one or two words, and the reason."""
    if verdict.id == _INCOMPLETE:
        return "Unknown", "this profile cannot show it"
    best_other = _best_other(diagnosis)
    from_others = (
        "no cause was found" if best_other is None else f"of what was found, most from {_with_gain(best_other)}"
    )
    if verdict.id == GraphOpaque.id:
        return "Not known", f"what the graphs run was not recorded{'' if best_other is None else f'; {from_others}'}"
    if verdict.id == BelowRoof.id and 0 < (at_roofs := 1 - verdict.evidence.get("to_roof_share", 1)) < 1:
        return f"Up to {factor(1 / at_roofs)}", f"{headroom_words(verdict)} (modelled); {from_others}"
    if verdict.id == PaddedWork.id:
        return "Not known", f"how much of the work is padding is not recorded; {from_others}"
    if not is_known(verdict):
        # The possible gain of busy kernels is not known; the causes found are only part of it.
        return "Not known", _UNKNOWN if best_other is None else from_others
    if best_other is None:
        return "Nothing", "that this profile shows"
    word = "Little" if (best_other.gain or 0.0) < DEFAULTS.warning_ceiling else "Some"
    return word, f"most of it from {_with_gain(best_other)}"


def _with_gain(finding: Finding) -> str:
    """A finding for use after "from": by its id, since a limiter may be a clause (`the host waits …`)."""
    return f"{finding.id} ({rule(finding.id).limiter}): {gain_words(finding)}"


def _rests_on(diagnosis: Diagnosis | RunDiagnosis) -> str:
    """What a diagnosis is based on: coverage for a profile, ranks, matched collectives and clocks for a run."""
    if not isinstance(diagnosis, Diagnosis):
        return f"based on {_ranks_behind(diagnosis.run.result)}"
    text = covered(diagnosis)
    return f"based on {text}" if text else "the window is empty"


def _ranks_behind(result: RanksResult) -> str:
    world_size, residual_ns = result.placing.world_size, result.alignment.residual_median_ns
    kernels, matched = int(result.matching["kernels"].sum()), int(result.matching["matched"].sum())
    ranks = fmt.plural(len(result.ranks), "rank") + (f" of {fmt.count(world_size)}" if world_size is not None else "")
    text = f"{ranks}; {fmt.share(matched / kernels if kernels else 0.0)} of their collectives matched across ranks"
    if residual_ns is None:
        aligned = int(result.alignment.ranks["collectives"].sum()) > 0
        return f"{text}; whether their clocks agree cannot be checked" if aligned else text
    return f"{text}; clocks agree to {fmt.duration(residual_ns)} (median)"


def _limiting(notes: Iterable[Note]) -> list[Note]:
    """The notes that limit the answer, blocking ones first."""
    limiting = (note for note in notes if note.level is not NoteLevel.INFO)
    return sorted(limiting, key=lambda note: note.level is NoteLevel.WARNING)


def cautions(notes: Iterable[Note]) -> Iterator[Line]:
    """A line for each note that limits the answer, blocking ones first; after `_CAUTIONS` notes only their number."""
    limiting = _limiting(notes)
    for note in limiting[:_CAUTIONS]:
        remedy = f" {fmt.sentence(note.remedy)}" if note.remedy else ""
        yield Line("caution", f"{fmt.sentence(note.text)}{remedy}", "warning")
    if (more := len(limiting) - _CAUTIONS) > 0:
        yield Line("caution", f"{fmt.plural(more, 'more caution')} in the report.", "warning")


def answer_block(diagnosis: Diagnosis | RunDiagnosis, strips: tuple[Strip, ...], at: str = "") -> Answer:
    """The first screen of a report on a diagnosis; `at` prefixes every id.

    The strips (the time by parts) are left out if the profile is incomplete.
    """
    verdict, others = diagnosis.findings[0], diagnosis.findings[1:]
    to_mend = _to_mend(diagnosis)
    remedy = to_mend.remedies[0] if to_mend.remedies else None
    others_with_gain = [
        finding for finding in others if finding.id != _INCOMPLETE and not rule(finding.id).describes and finding.gain
    ]
    limiting = _limiting(note for note in diagnosis.notes if note.text != verdict.title)
    if rule(verdict.id).describes or verdict.gain is None:
        gain, gain_range = _without_gain(diagnosis, verdict)
        unit = ""
    else:
        gain, gain_range = factor(verdict.gain), _range(diagnosis, verdict)
        unit = f" {verdict.gained.removesuffix(' without it')}"
    is_complete = verdict.id != _INCOMPLETE
    return Answer(
        id=f"{at}answer",
        verdict=limit_sentence(diagnosis),
        severity=verdict.severity,
        gain=gain,
        unit=unit,
        gain_range=gain_range,
        do=remedy.action if remedy else "",
        code="\n".join(ways(remedy.how)) if remedy else "",
        brings=f"Expected: {brings}" if is_complete and (brings := _brings(to_mend)) else "",
        sure=f"{fmt.capitalised(verdict.confidence)} confidence; {_rests_on(diagnosis)}." if is_complete else "",
        refute=verdict.refute if is_complete else "",
        notes=tuple(limiting),
        strips=strips if is_complete else (),
        together=_together(diagnosis, verdict) if is_complete and isinstance(diagnosis, Diagnosis) else "",
        others=(
            *(
                (f"{at}finding-{finding.id}", rule(finding.id).limiter, factor(finding.gain))
                for finding in others_with_gain
            ),
            *(((f"{at}what-if", "What would they gain together?", ""),) if _has_combined_changes(diagnosis) else ()),
        ),
    )


def _brings(finding: Finding) -> str:
    """The expected effect of the first remedy, without its gain.

    The gain is that of the program without a profiler. A prediction for the program as recorded is another number, and
    shown only with the finding.
    """
    effect = beside_gain(finding.remedies[0]) if finding.remedies else ""
    return "" if effect.startswith(REPLAYED) else effect


def _has_combined_changes(diagnosis: Diagnosis | RunDiagnosis) -> bool:
    what_if = diagnosis.what_if if isinstance(diagnosis, Diagnosis) else None
    return what_if is not None and any(len(change.findings) > 1 for change in what_if.changes)


def _range(diagnosis: Diagnosis | RunDiagnosis, finding: Finding) -> str:
    """Interval and bound of a gain: `1.22× to 1.87× (90 % interval), without a profiler; at most 2.36×`."""
    bound = f"at most {factor(most)}" if (most := told_bound(finding)) is not None else ""
    if finding.expected is None or finding.expected_interval is None:
        return bound
    low, high = map(factor, finding.expected_interval)
    interval = f"{low} to {high} (90 % interval), without a profiler{_part_of_share(diagnosis, finding)}"
    first = finding.remedies[0] if finding.remedies else None
    bringing = next((remedy for remedy in finding.remedies if remedy.gain is not None), None)
    if first is not None and first.gain is None and bringing is not None:
        interval += f", by a later remedy (“{bringing.action}”)"
    if first is not None and first.id == STEPS_ONLY.id:  # its code is fitted to the program
        interval += ", where steady steps have this cause, too"
    return f"{interval}; {bound}" if bound else interval


def _part_of_share(diagnosis: Diagnosis | RunDiagnosis, finding: Finding) -> str:
    """A clause for a gain below what the recorded share suggests: the profiler slows the host, so idle time grows."""
    share = diagnosis.headline_share
    if share is None or not is_of_profiler(share, diagnosis.unprofiled_share, finding.expected):
        return ""
    return f", whose cost is part of the {fmt.share(share)}"


def lines_of(answer: Answer) -> Iterator[Line]:
    """The first screen of a document as lines."""
    yield Line("verdict", answer.verdict)
    if answer.gain:
        yield Line("gain", " ".join(map(fmt.sentence, (f"{answer.gain}{answer.unit}", answer.gain_range))))
    if answer.do:
        text = " ".join(fmt.sentence(part) for part in (answer.do, answer.brings) if part)
        yield Line("do", text, code=ways(answer.code) if answer.code else ())
    yield from cautions(answer.notes)


_COLUMNS: Final = (
    column("source", help="", title="Profile", kind="text"),
    column("verdict", help="", title="Limited by"),
    column("severity", help=""),
    column("gain"),
    column("range", help="90 % interval of the gain", kind="text"),
    column("bound", help="", title="At most", kind="number"),
    column("remedy", help=""),
)


def brief_table(diagnoses: Sequence[tuple[str, Diagnosis]]) -> Table:
    """The verdicts of several profiles, given as name and diagnosis, one row each."""
    rows = []
    for source, diagnosis in diagnoses:
        verdict, remedies = diagnosis.findings[0], _to_mend(diagnosis).remedies
        has_gain = not rule(verdict.id).describes
        low, high = verdict.expected_interval or (None, None)
        rows.append(
            {
                "source": source,
                "verdict": verdict_words(verdict),
                "severity": verdict.severity,
                "gain": factor(verdict.expected if has_gain else None),
                "range": f"{factor(low)} to {factor(high)}" if has_gain and low is not None else fmt.MISSING,
                "bound": factor(told_bound(verdict) if has_gain else None),
                "remedy": remedies[0].action if remedies else fmt.MISSING,
            }
        )
    schema = dict.fromkeys((column.name for column in _COLUMNS), pl.String)
    return Table("answers", "What limits each profile", _COLUMNS, pl.DataFrame(rows, schema=schema), limit=None)
