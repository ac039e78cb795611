"""The answer in five lines: what limits the program, what there is to gain, what to do, how sure that is, what next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import polars as pl

from warplens.diagnosis.findings import MANY, Diagnosis
from warplens.diagnosis.rule import REPLAYED, STEPS_ONLY
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.whole import BelowRoof, GraphOpaque, is_known
from warplens.diagnosis.thresholds import DEFAULTS
from warplens.diagnosis.verdict import gain_text
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import Answer, Strip, Table
from warplens.report.verdict import beside_gain, coverage_lines, factor, gain_words, verdict_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.diagnosis import Finding
    from warplens.diagnosis.across import RunDiagnosis

#: How bad or good what a line says is; outputs choose a colour by it.
Tone: TypeAlias = Literal["critical", "warning", "good", "plain", "quiet"]

#: Cautions that are told in full; of more it is said how many there are.
_CAUTIONS: Final = 2

_INCOMPLETE: Final = "incomplete-profile"

_UNKNOWN: Final = "no cause was found, and how near the kernels are to their roofs is unknown"

_SEVERITY_TONES: Final[dict[str, Tone]] = {"critical": "critical", "warning": "warning", "info": "good"}


@dataclass(frozen=True)
class Line:
    """One line of the answer."""

    #: what it tells: `limited by` (`verdict` where nothing limits), `gain`, `do`, `also`, `sure`, `caution`, `next`
    label: str
    text: str
    tone: Tone = "plain"  #: how bad or good that is
    code: tuple[str, ...] = ()  #: lines to copy, such as the code of a remedy


def brief(found: Diagnosis | RunDiagnosis, *, commands: Sequence[str] = ()) -> tuple[Line, ...]:
    """What a diagnosis says, in five lines; cautions that limit it are lines of their own.

    Args:
        found: the diagnosis, of a profile or of the ranks of a run.
        commands: what to type next.
    """
    return tuple(_lines(found, commands))


#: A headline that names the limit, behind the ranks that have it.
_LIMIT: Final = re.compile(r"(?:(?P<ranks>On [^:]+): l|L)imited by (?P<limit>.*)\.")


def _lines(found: Diagnosis | RunDiagnosis, commands: Sequence[str]) -> Iterator[Line]:
    verdict = found.findings[0]
    tone: Tone = "warning" if verdict.id == _INCOMPLETE else _SEVERITY_TONES[verdict.severity]
    names_limit = not rule(verdict.id).describes
    limit = limit_sentence(found)
    if names_limit and (named := _LIMIT.fullmatch(limit)):
        ranks = f" ({named['ranks'].lower()})" if named["ranks"] else ""
        limit = f"{fmt.capitalised(named['limit'])}{ranks}."
    yield Line("limited by" if names_limit else "verdict", f"{limit} [{verdict_words(verdict)}]", tone)
    yield Line("gain", _gain(found, verdict), tone)
    if verdict.remedies:
        first = verdict.remedies[0]
        told = filter(None, (first.action, _brings(verdict)))
        yield Line("do", " ".join(map(fmt.sentence, told)), code=ways(first.how))
    else:
        yield Line("do", "Nothing: this profile shows no change worth its effort.", "good")
    if not isinstance(found, Diagnosis) and (more := [each for each in found.findings[1:] if each.gain]):
        # A run has causes between its ranks and in all of them: neither hides the other.
        yield Line(
            "also", " · ".join(f"{fmt.capitalised(rule(each.id).limiter)}: about {factor(each.gain)}" for each in more)
        )
    yield Line("sure", f"{fmt.capitalised(verdict.confidence)} confidence; {_rests_on(found)}.")
    yield from cautions(note for note in found.notes if note.text != verdict.title)
    if commands:
        yield Line("next", "", "quiet", code=tuple(commands))


def ways(how: str) -> tuple[str, ...]:
    """A remedy's code, line by line; what is not code is a comment."""
    return tuple(how.split("\n"))


def limit_sentence(found: Diagnosis | RunDiagnosis) -> str:
    """What limits the program, as the headline says it, without the gain at its end."""
    first = found.findings[0]
    return fmt.sentence(found.headline.removesuffix(f"; {gain_text(first)} {first.gained}."))


def _gain(found: Diagnosis | RunDiagnosis, verdict: Finding) -> str:
    """What the verdict's best remedy brings: expected, in which range, and at most."""
    if rule(verdict.id).describes or verdict.gain is None:
        word, why = _without_gain(found, verdict)
        return fmt.sentence(f"{word} {why}" if word == "Nothing" else f"{word}: {why}")
    if verdict.expected is None:
        return fmt.sentence(_range(found, verdict))
    return f"About {factor(verdict.expected)} {verdict.gained.removesuffix(' without it')}: {_range(found, verdict)}."


def _without_gain(found: Diagnosis | RunDiagnosis, verdict: Finding) -> tuple[str, str]:
    """Of a verdict that no remedy goes with: how much there is to gain, in a word, and why."""
    if verdict.id == _INCOMPLETE:
        return "Unknown", "this profile cannot show it"
    with_gain = (each for each in found.findings[1:] if gain_words(each))
    rest = max(with_gain, key=lambda each: each.gain or 0.0, default=None)
    most = "no cause was found" if rest is None else f"of what was found, most from {_with_gain(rest)}"
    if verdict.id == GraphOpaque.id:
        return "Not known", f"what the graphs run was not recorded{'' if rest is None else f'; {most}'}"
    if verdict.id == BelowRoof.id and 0 < (left := 1 - verdict.evidence.get("to_roof_share", 1)) < 1:
        return f"Up to {factor(1 / left)}", f"if its kernels reached their practical roofs (modelled); {most}"
    if not is_known(verdict):
        # What busy kernels could gain is not known: the causes that were found are a part of it.
        return "Not known", _UNKNOWN if rest is None else most
    if rest is None:
        return "Nothing", "that this profile shows"
    word = "Little" if (rest.gain or 0.0) < DEFAULTS.warning_ceiling else "Some"
    return word, f"most of it from {_with_gain(rest)}"


def _with_gain(finding: Finding) -> str:
    """Its name, for a limiter may be a clause (`the host waits …`), which "from" does not go with."""
    return f"{finding.id} ({rule(finding.id).limiter}): {gain_words(finding)}"


def _rests_on(found: Diagnosis | RunDiagnosis) -> str:
    """How much stands behind it: of a profile the first line of its coverage, of a run its ranks and their clocks."""
    if not isinstance(found, Diagnosis):
        return f"based on {_ranks_behind(found.run.result)}"
    line = next(iter(coverage_lines(found)), "")
    label, _, rest = line.partition(": ")
    return f"based on {rest}" if label == "based on" else "the window is empty"


def _ranks_behind(result: RanksResult) -> str:
    size, apart = result.placing.world_size, result.alignment.residual_median_ns
    kernels, matched = int(result.matching["kernels"].sum()), int(result.matching["matched"].sum())
    ranks = fmt.plural(len(result.ranks), "rank") + (f" of {fmt.count(size)}" if size is not None else "")
    found = f"{ranks}; {fmt.share(matched / kernels if kernels else 0.0)} of their collectives matched across ranks"
    return found if apart is None else f"{found}; clocks agree to {fmt.duration(apart)} (median)"


def _limiting(notes: Iterable[Note]) -> list[Note]:
    """The notes that limit the answer, the gravest first."""
    graver = (note for note in notes if note.level is not NoteLevel.INFO)
    return sorted(graver, key=lambda note: note.level is NoteLevel.WARNING)


def cautions(notes: Iterable[Note]) -> Iterator[Line]:
    """The notes that limit the answer, the gravest first."""
    limiting = _limiting(notes)
    for note in limiting[:_CAUTIONS]:
        remedy = f" {fmt.sentence(note.remedy)}" if note.remedy else ""
        yield Line("caution", f"{fmt.sentence(note.text)}{remedy}", "warning")
    if (more := len(limiting) - _CAUTIONS) > 0:
        yield Line("caution", f"{fmt.plural(more, 'more caution')} in the report.", "warning")


# --- The same words on the first screen of a page --------------------------------------------------------------------


def answer_block(found: Diagnosis | RunDiagnosis, strips: tuple[Strip, ...], at: str = "") -> Answer:
    """What limits the program, how much there is to gain, what to do, and how that could be wrong.

    Args:
        strips: where the time goes; left out where the profile cannot answer.
        at: stands before every id.
    """
    verdict, rest = found.findings[0], found.findings[1:]
    remedy = verdict.remedies[0] if verdict.remedies else None
    costing = [each for each in rest if each.id != _INCOMPLETE and not rule(each.id).describes and each.gain]
    known = not rule(verdict.id).describes and verdict.gain is not None
    limiting = _limiting(note for note in found.notes if note.text != verdict.title)
    gain, unit, reach = factor(verdict.gain), f" {verdict.gained.removesuffix(' without it')}", _range(found, verdict)
    if not known:
        gain, reach = _without_gain(found, verdict)
        unit = ""
    tells = verdict.id != _INCOMPLETE
    return Answer(
        id=f"{at}answer",
        verdict=limit_sentence(found),
        severity=verdict.severity,
        gain=gain,
        unit=unit,
        gain_range=reach,
        do=remedy.action if remedy else "",
        code="\n".join(ways(remedy.how)) if remedy else "",
        brings=f"Expected: {brings}" if tells and (brings := _brings(verdict)) else "",
        sure=f"{fmt.capitalised(verdict.confidence)} confidence; {_rests_on(found)}." if tells else "",
        refute=verdict.refute if tells else "",
        notes=tuple(limiting),
        strips=strips if tells else (),
        others=(
            *((f"{at}finding-{each.id}", rule(each.id).limiter, factor(each.gain)) for each in costing),
            *(((f"{at}what-if", "What would they gain together?", ""),) if _pairs(found) else ()),
        ),
    )


def _brings(finding: Finding) -> str:
    """What the first remedy is told to bring, but for the gain that stands beside it.

    The gain is of the program without a profiler; the prediction of the program as recorded, another number, is the
    finding's to tell.
    """
    told = beside_gain(finding.remedies[0]) if finding.remedies else ""
    return "" if told.startswith(REPLAYED) else told


def _pairs(found: Diagnosis | RunDiagnosis) -> bool:
    what_if = found.what_if if isinstance(found, Diagnosis) else None
    return what_if is not None and any(len(change.findings) > 1 for change in what_if.changes)


def _range(found: Diagnosis | RunDiagnosis, finding: Finding) -> str:
    """How far the gain may be off: `1.22× to 1.87× (90 % interval), without a profiler; at most 2.36×`."""
    bounded = finding.bound is not None and finding.bound < MANY
    most = f"at most {factor(finding.bound)}" if bounded else ""
    if finding.expected is None or finding.expected_interval is None:
        return most
    low, high = map(factor, finding.expected_interval)
    between = f"{low} to {high} (90 % interval), without a profiler{_part_of_share(found, finding)}"
    if STEPS_ONLY in finding.remedies[:1]:  # which brings nothing by itself
        between += ", where steady steps have this cause, too"
    return f"{between}; {most}" if most else between


#: A recorded share promises more than the gain if it would be this much more without the pauses.
_MORE: Final = 1.1


def _part_of_share(found: Diagnosis | RunDiagnosis, finding: Finding) -> str:
    """Why the gain is less than the recorded share promises: the profiler slows the host, and pauses with it."""
    share, expected = found.headline_share, finding.expected
    if share is None or expected is None or rule(finding.id).model != "host" or _MORE * expected * (1 - share) > 1:
        return ""
    return f", whose cost is part of the {fmt.share(share)}"


def lines_of(answer: Answer) -> Iterator[Line]:
    """What the first screen of any document says, line by line."""
    yield Line("verdict", answer.verdict)
    if answer.gain:
        yield Line("gain", " ".join(map(fmt.sentence, (f"{answer.gain}{answer.unit}", answer.gain_range))))
    if answer.do:
        told = " ".join(fmt.sentence(said) for said in (answer.do, answer.brings) if said)
        yield Line("do", told, code=ways(answer.code) if answer.code else ())
    yield from cautions(answer.notes)


# --- Several profiles -------------------------------------------------------------------------------------------------


_COLUMNS: Final = (
    column("source", help="", title="Profile", kind="text"),
    column("verdict", help="", title="Limited by"),
    column("severity", help=""),
    column("gain"),
    column("range", help="90 % interval of the gain", kind="text"),
    column("bound", help="", title="At most", kind="number"),
    column("remedy", help=""),
)


def brief_table(found: Sequence[tuple[str, Diagnosis]]) -> Table:
    """What limits each of several profiles: name and diagnosis, a row each."""
    rows = []
    for source, diagnosis in found:
        verdict = diagnosis.findings[0]
        known = not rule(verdict.id).describes
        low, high = verdict.expected_interval or (None, None)
        rows.append(
            {
                "source": source,
                "verdict": verdict.id,
                "severity": verdict.severity,
                "gain": factor(verdict.expected if known else None),
                "range": f"{factor(low)} to {factor(high)}" if known and low is not None else fmt.MISSING,
                "bound": factor(verdict.bound if known else None),
                "remedy": verdict.remedies[0].action if verdict.remedies else fmt.MISSING,
            }
        )
    schema = dict.fromkeys((column.name for column in _COLUMNS), pl.String)
    return Table("answers", "What limits each profile", _COLUMNS, pl.DataFrame(rows, schema=schema), limit=None)
