"""A diagnosis as JSON data, sentences, tables and report sections, with the optimisation checklist.

The text of a finding comes from its rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.timeline import Timeline
from warplens.analysis.window import NO_PHASE, Window, generic_name, is_step_name
from warplens.diagnosis import Diagnosis
from warplens.diagnosis.findings import MANY, Place, UnprofiledStep, about, times
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.ranks import RanksRule
from warplens.diagnosis.rules.whole import IncompleteProfile, is_known
from warplens.diagnosis.thresholds import DEFAULTS
from warplens.diagnosis.unprofiled import NOISE
from warplens.profile.columns import column
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Block, Paragraph, Section, Table, frame_of, pick, quiet
from warplens.report.jsonout import named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.analysis.hostpace import HostPace
    from warplens.diagnosis import Coverage, Finding, Remedy
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.diagnosis.findings import PhaseVerdict


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Verdict, findings, phases, predictions and coverage, with exact numbers."""
    return {
        **named(diagnosis, "verdict verdict_known headline headline_share"),
        "findings": [finding_data(finding) for finding in diagnosis.findings],
        **named(diagnosis, "per_phase predictions coverage"),
        "without_profiler": diagnosis.without_profiler,
        "what_if": _what_if_data(diagnosis),
    }


def _what_if_data(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """The numbers of the what-if panel, without the pictures of a step, which only the HTML page needs."""
    if diagnosis.what_if is None:
        return None
    return {name: value for name, value in vars(diagnosis.what_if).items() if name != "pictures"}


def verdict_words(finding: Finding) -> str:
    """The id of a verdict; a limiter that the profile cannot confirm is marked as not known."""
    return _words(finding.id, known=is_known(finding))


def _words(verdict: str, *, known: bool) -> str:
    return verdict if known or verdict == IncompleteProfile.id else f"not known; {verdict} is not ruled out"


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding and its remedies without internal fields; `bound` is repeated as `gain_ceiling`, its older name."""
    remedies = [_without(remedy, "basis", "id", "compiles", "captures") for remedy in finding.remedies]
    data = _without(finding, "basis", "variant") | {"remedies": remedies}
    names = list(data)
    after = names.index("bound") + 1
    return {name: data[name] for name in names[:after]} | {"gain_ceiling": finding.bound} | data


def _without(item: Finding | Remedy, *internal: str) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item) if field.name not in internal}


#: Names of the parts of the launching thread's time.
_THREAD_PARTS: Final = {
    "launching": "in launching calls",
    "queue-full": "in launches that wait for a place in the full queue",
    "synchronization": "waiting for the GPU",
    "blocking-copy": "in copies that block",
    "allocation": "in allocator calls",
    "other-cuda": "in other CUDA calls",
    "profiler": "blocked by the profiler",
    "outside": "between calls (framework, program)",
    "stalled": "in long pauses without a call",
    "finished": "after the last call, as all work was issued",
}

#: Parts of the launching threads' time below this share are not listed.
_SMALLEST_LISTED_SHARE: Final = 0.01

#: On a GPU that is busy for less of the time, work that starts late waited for something else than other work.
_BUSY_SHARE: Final = 0.5
#: Of fewer launches, no share is told.
_FEWEST_LAUNCHES: Final = 20


def pace_lines(pace: HostPace | None, *, steps: bool = True, busy_share: float = 1.0) -> Iterator[str]:
    """Two or three sentences about the launching threads; none if no launching call was recorded.

    Where several threads launch, launches, the share of late work and the parts of the time are those of all; the time
    per launch is that of the one that launches the most. `steps` says whether the window consists of steps.
    """
    if pace is None:
        return
    several = pace.threads > 1
    whose = "its" if several else "the host's"
    cost, position = "", ""
    if pace.host_ns_per_launch is not None:
        cost = f", each taking {fmt.duration(pace.host_ns_per_launch[1])} of {whose} time"
    if pace.all_launches >= _FEWEST_LAUNCHES and not pace.is_ahead:
        started = fmt.share(pace.all_behind_share)
        position = f"; the host is behind the GPU: {started} of the work started as soon as it was launched"
    elif pace.all_launches >= _FEWEST_LAUNCHES and busy_share >= _BUSY_SHARE:
        queued = fmt.share(1 - pace.all_behind_share)
        position = f"; the host is ahead of the GPU: {queued} of the work was queued while the GPU was busy"
    if pace.launches:
        launches = fmt.plural(pace.all_launches, "launch", "launches")
        rate = fmt.rate(pace.all_per_second)
        counted = f"{launches} by {fmt.count(pace.threads)} threads, {rate}; the one that launches most makes "
        counted = f"{counted}{fmt.count(pace.launches)} of them" if several else f"{launches}, {rate}"
        yield f"host: {counted}{cost}{position}"
    else:
        yield "host: what ran in this window was launched before it"
    if pace.layer is not None:
        layer = pace.layer
        host = f"{fmt.duration(layer.host_ns)} on the host and " if layer.host_ns > 0 else ""
        yield (
            f"{'a step' if steps else 'the window'} repeats a sequence of {fmt.count(layer.launches)} kernels "
            f"{fmt.count(layer.layers)} times; each repetition takes {host}{fmt.duration(layer.gpu_ns)} on the GPU"
        )
    total = sum(pace.thread_ns.values())
    parts = sorted(
        ((spent, name) for name, spent in pace.thread_ns.items() if spent >= _SMALLEST_LISTED_SHARE * total),
        reverse=True,
    )
    shares = (f"{fmt.share(spent / total)} {_THREAD_PARTS.get(name, name.replace('-', ' '))}" for spent, name in parts)
    yield f"the time of the launching {'threads, together' if several else 'thread'}: {', '.join(shares)}"


#: In the name of a factor: a count of one thing per other thing, which is shown without `×`.
_COUNT_PER: Final = "_per_"

#: Suffixes of evidence names and how their values are formatted, longest suffix first.
_SUFFIX_FORMATS: Final = (
    ("_bytes_per_s", fmt.bandwidth),
    ("_bytes_per_step", lambda value: f"{fmt.data_size(value)} per step"),
    ("_ns_per_step", lambda value: f"{fmt.duration(value)} per step"),
    ("_ns_per_wait", lambda value: f"{fmt.duration(value)} per wait"),
    ("_per_step", lambda value: f"{fmt.number(value)} per step"),
    ("_share", fmt.share),
    ("_bytes", fmt.data_size),
    ("_count", fmt.number),
    ("_factor", lambda value: f"{fmt.number(value)}×"),
    ("_ns", fmt.duration),
)

_PER_STEP: Final = " per step"

_CHANGES: Final = {
    "free-launches": "launches cost nothing",
    "cuda-graph": "one CUDA graph per step",
    "no-synchronization": "no waits inside the step",
    "async-copies": "pinned, asynchronous copies",
    "cached-allocation": "no allocations inside the step",
    "no-host-stall": "no long host pauses",
}


def factor(gain: float | None) -> str:
    """A speed-up as text: `1.23×`; `–` if it is not known."""
    return fmt.MISSING if gain is None else times(gain)


#: A bound that saves this many times what the upper end of the interval saves is not told: it is that of all idle time,
#: most of which this change leaves.
_FAR_BOUND: Final = 1.5


def told_bound(finding: Finding) -> float | None:
    """The bound; None if it is unknown, or far beyond what the remedies may bring."""
    if finding.bound is None or finding.bound >= MANY:
        return None
    if finding.expected_interval is None:
        return finding.bound
    saved, most = (1 - 1 / max(gain, 1.0) for gain in (finding.bound, finding.expected_interval[1]))
    return finding.bound if saved <= _FAR_BOUND * most else None


def gain_words(finding: Finding) -> str:
    """Gain of the first remedy: `about 2.75× (2.34× to 3.20×), at most 3.41×`; empty if it is not known."""
    if rule(finding.id).describes:
        return ""
    parts = []
    if finding.expected is not None and finding.expected_interval is not None:
        low, high = finding.expected_interval
        interval = f" ({factor(low)} to {factor(high)})" if finding.expected < MANY else ""
        parts.append(f"{about(finding.expected)}{interval}")
    if (bound := told_bound(finding)) is not None:
        parts.append(f"at most {factor(bound)}")
    return ", ".join(parts)


def own_gain(remedy: Remedy) -> str:
    """Gain of a remedy by itself, without a profiler: `2.21× (1.80× to 2.70×)`; empty if it is not known."""
    if remedy.gain is None or remedy.gain_interval is None:
        return ""
    low, high = remedy.gain_interval
    return f"{factor(remedy.gain)} ({factor(low)} to {factor(high)})" if remedy.gain < MANY else factor(remedy.gain)


def beside_gain(remedy: Remedy) -> str:
    """The expected effect of a remedy without the gain at its begin, for places that show the gain separately."""
    return remedy.expected.removeprefix(about(remedy.gain) if remedy.gain is not None else "").lstrip(":; ")


def brings(remedy: Remedy) -> str:
    """The gain of a remedy and its expected effect in words."""
    return "; ".join(filter(None, (own_gain(remedy), beside_gain(remedy))))


def standing(finding: Finding) -> str:
    """Severity, confidence and gain in a few words."""
    gain = gain_words(finding)
    gain_part = f", {gain} {finding.gained}" if gain else ""
    return f"{finding.severity}, confidence {finding.confidence}{gain_part}"


#: Labels of evidence whose machine-readable name says too little to people.
_EVIDENCE_WORDS: Final = {
    "above_roof": "kernels above their roof",
    "affected": "affected kernels",
    "active_threads_of_32": "active threads (of 32)",
    "at_peak": "at data-sheet peak",
    "attentions": "attention passes, forward and backward:",
    "between": "between collectives",
    "caused": "delay caused by it alone",
    "channels_first": "channels-first work",
    "chains": "fusible chains",
    "claimed": "total cost",
    "copies_per_turn": "copies and fills per turn",
    "counters_of_kernel_time": "kernel time with counters",
    "dependency": "idle, waiting for other GPU work",
    "empty": "lost to the empty part of the GPU",
    "explained": "waiting that costs time, explained by its excess",
    "exposed": "exposed communication",
    "exposed_of_their_time": "exposed part of communication",
    "floor": "shortest collectives",
    "hidden": "hidden inside CUDA graphs",
    "host_held_idle": "idle during blocking copies",
    "host_needed_of_window": "host busy issuing work",
    "last": "arrived last",
    "last_to_first": "last steps over first steps",
    "launches": "launched kernels",
    "launches_behind": "launch pauses (modelled)",
    "launches_per_turn": "kernels per turn",
    "looped_copies": "looped copies and fills",
    "lost": "cost",
    "lost_of_their_time": "cost in affected kernels",
    "misaligned": "misaligned products",
    "of_forward": "part of forward pass repeated",
    "of_products": "of all products",
    "passes": "equal passes",
    "profiler": "idle, held up by profiler",
    "readback": "exposed read-backs",
    "readbacks": "read-backs",
    "repeated": "recomputed kernels",
    "rows": "rows per product",
    "saved": "expected saving",
    "scattered": "gathers and scatters",
    "single_tensor_launches": "launches for a single tensor",
    "size": "misaligned size",
    "padded_size": "padded to",
    "stalled_steps": "steps with half of that time",
    "stalls_apart": "of these, in pauses as long as 100 launches",
    "starting": "starting queued kernels",
    "submission": "idle, work held back by driver",
    "to_roof": "headroom to roof",
    "unknown": "idle, cause unknown",
    "unprofiled_busy": "GPU busy without profiler (estimate)",
    "unprofiled_host": "host busy issuing work without profiler (estimate)",
    "unused_numbers": "of the gradients' numbers unused",
    "used_rows": "table rows used",
    "known_work": "work known for",
    "gpus": "GPUs of the process",
    "gpus_at_once": "GPUs at work at once",
    "most_to_others": "work of the busiest over that of the others",
    "busiest_busy": "busiest GPU busy",
    "waited": "exposed waiting of other ranks",
}


#: A cause that claims a smaller part of the GPU's idle time leaves some to others.
_ALL_IDLE: Final = 0.99


def evidence_text(evidence: Mapping[str, float], *, steps: float = 1) -> str:
    """Evidence in one line: the label and value of each quantity; a share follows its time in parentheses.

    A quantity whose time is zero is left out, unless there is no other. Without steps in the window, the numbers "per
    step" are those of the window.
    """
    texts_by_name: dict[str, list[str]] = {}
    for name, value in evidence.items():
        suffix, write = next(((end, write) for end, write in _SUFFIX_FORMATS if name.endswith(end)), ("", fmt.number))
        if suffix == "_factor" and _COUNT_PER in name:
            write = fmt.count
        text = write(value) if steps else write(value).removesuffix(_PER_STEP)
        texts_by_name.setdefault(name.removesuffix(suffix), []).append(text)
    zero = {name.removesuffix("_ns") for name, value in evidence.items() if name.endswith("_ns") and value == 0}
    texts_by_name = {name: texts for name, texts in texts_by_name.items() if name not in zero} or texts_by_name
    words, whole_idle = {**_EVIDENCE_WORDS}, 1 - evidence.get("gpu_busy_share", 1.0)
    if "idle_ns" in evidence and evidence.get("idle_share", whole_idle) < _ALL_IDLE * whole_idle:
        words["idle"] = "idle from this cause"
    if evidence.get("saved_ns", 0) > evidence.get("affected_ns", math.inf):
        words["saved"] = "expected saving with pauses, as recorded"
    return ", ".join(
        f"{words.get(name, _acronyms(name.replace('_', ' ')))} {first}" + (f" ({', '.join(rest)})" if rest else "")
        for name, (first, *rest) in texts_by_name.items()
    )


def _acronyms(words: str) -> str:
    """The words with their acronyms in capitals."""
    return re.sub(r"\b(gpu|os|api|flops|tf32)\b", lambda match: match[0].upper().replace("FLOPS", "FLOPs"), words)


def places(finding: Finding) -> str:
    """The ranges or kernels of a finding in one line; empty if `place_lines` names one of them already.

    Kernels whose names differ only behind the part that is shown are one name.
    """
    placed = {name for place in finding.places for name in (place.operator, place.range)}
    if placed & set(finding.where):
        return ""
    return ", ".join(dict.fromkeys(fmt.shorten(fmt.printable(name)) for name in finding.where))


def is_named(place: Place) -> bool:
    """Whether a place says more than the range of a step."""
    return bool(place.operator or place.module or place.file or _range_of(place))


def _range_of(place: Place) -> str | None:
    """The range of a place if it is not that of a step, in which everything is."""
    return place.range if place.range is not None and not is_step_name(generic_name(place.range)) else None


def place_words(place: Place) -> str:
    """The names of a place in the program: `in aten::item, train.py:88 (step)`."""
    source = place.file and f"{place.file}:{place.line} ({place.function})"
    names = [name for name in (place.operator, place.module, _range_of(place), source) if name]
    if names:
        return f"in {', '.join(names)}"
    return f"outside all operators and ranges{' inside the step' if place.range else ''}"


def place_lines(finding: Finding) -> Iterator[str]:
    """Places in the program that cause most of a finding: `808 of 809 waits in aten::item, train.py:88 (step)`.

    All of it in the range of a step is no place.
    """
    if len(finding.places) == 1 and not is_named(finding.places[0]):
        return
    for place in finding.places:
        # Work that was waited for: other launches of the finding's kernels were in time.
        kind = "late launches" if place.kind == "launches" else place.kind
        counted = f"{fmt.count(place.count)} of {fmt.count(place.of_count)} {kind}"
        yield f"{counted} ({fmt.share(place.share)} of the time) {place_words(place)}"


def lacks_records(diagnosis: Diagnosis) -> bool:
    """Whether records are missing although causes seem to be known: what the host did may be what was lost."""
    explained = diagnosis.coverage.idle_explained_share
    return diagnosis.verdict == IncompleteProfile.id and explained is not None and explained > 0.5


def covered(diagnosis: Diagnosis) -> str:
    """What the diagnosis is based on; empty for an empty window."""
    coverage: Coverage = diagnosis.coverage
    if not coverage.wall_ns:
        return ""
    steps = "one step" if coverage.steps == 1 else f"{fmt.number(coverage.steps)} steps"
    gpus = f", the times of {fmt.count(coverage.gpus)} GPUs added up" if coverage.gpus > 1 else ""
    text = f"{steps if coverage.steps else 'a window without steps'}{gpus}"
    if coverage.claimed_ns:
        text += f"; findings explain {fmt.share(coverage.claimed_ns / coverage.wall_ns)} of the time"
    if coverage.idle_explained_share is not None and not lacks_records(diagnosis):
        text += f"; {fmt.share(coverage.idle_explained_share)} of the idle time is explained"
    if coverage.counters_share:
        text += f"; counters cover {fmt.share(coverage.counters_share)} of the kernel time"
    return text


def coverage_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """What the diagnosis is based on, and what could not be checked."""
    if text := covered(diagnosis):
        yield f"based on: {text}"
    if (step := diagnosis.without_profiler) is not None:
        yield f"a step without the profiler: {_unprofiled_words(step)}"
    if any(told_bound(each) and each.basis and each.basis.model == "host" for each in diagnosis.findings):
        yield (
            f"at most: without all of the cause, if its pauses are up to {NOISE:g} times as long as recorded, as the "
            "host's time differs between runs; GPU work is as long as recorded"
        )
    for reason in diagnosis.coverage.unavailable:
        yield f"not checked: {reason}"


#: Times that differ by less than this are one time, not a range.
_SAME_TIME: Final = 1.02


def _unprofiled_words(step: UnprofiledStep) -> str:
    """The time of a step without the profiler: measured, or modelled with its range."""
    if step.measured:
        measured = f"{fmt.duration(step.step_ns)}, as measured"
        if step.host_share is None:
            return f"{measured}; a faster host would hardly make it shorter, so that the pace of the host does not show"
        share = fmt.share(step.host_share)
        return f"{measured}; the host issues the work in {share} of the time that it takes with the profiler"
    within = f", {fmt.duration(step.low_ns)} to {fmt.duration(step.high_ns)}"
    within = "" if step.high_ns <= _SAME_TIME * step.low_ns else within
    return f"about {fmt.duration(step.step_ns)} (modelled{within}); --step-time takes a measured one"


_GAIN: Final = column("gain")
_FINDINGS: Final = {
    column.name: column
    for column in (
        column("rank", help=""),
        column("id", dtype=pl.String, help="", title="Finding"),
        column("severity"),
        column("confidence", help="how sure the cause is, given what the profile records", title="Confidence"),
        column("expected", dtype=pl.Float64, kind="number"),
        Column("expected_low", pl.Float64),
        Column("expected_high", pl.Float64),
        column("bound", dtype=pl.Float64, help="", kind="number"),
        Column("gain_ceiling", pl.Float64),
        column("title", title="What"),
        Column("where"),
        column("places", dtype=pl.String, help="where in the program most of it comes from", kind="text"),
        column("evidence"),
        column("remedy", help="", title="First remedy"),
        Column("refute"),
        _GAIN,
        Column(
            "at_most",
            help="speed-up without all of the cause, its pauses longer than recorded, if it is near the gain",
            kind="number",
        ),
    )
}
_REMEDIES: Final = (
    Column("action", title="Do"),
    column("how", help="", kind="code"),
    _GAIN.but(kind="text", help="by this remedy alone, without a profiler, and its interval"),
    column("expected"),
)
_PHASES: Final = (
    column("phase", help=""),
    column("verdict", help="", title="Limited by"),
    _GAIN.but(
        help="speed-up of the phase by the first remedy, by its own times alone; in the program, a host that runs "
        "ahead in one phase may hide the pauses of another"
    ),
    column("wall_ns", help="GPU work of the phase and the pauses before that work", title="Time"),
    column("busy_share", help="of that time"),
    column("share", help="of the window"),
    Column("of_verdict_share", pl.Float64, "part of the time of the program's verdict", kind="share"),
)
_TOGETHER: Final = (
    Column("findings", help="whose first remedies are made", title="Remedies against"),
    _GAIN.but(help="speed-up of the program without a profiler"),
    column("interval", help="its 90 % interval", kind="number"),
    column("step_ns", help="step time, or of the window where it has no steps", title="Step after"),
)
_PREDICTIONS: Final = (
    column("change", help=""),
    column("what", title="If"),
    column("measured_ns", help="wall time per step, or of the window where it has no steps"),
    column("predicted_ns"),
    column("speedup", dtype=pl.String, help="", kind="number"),
    Column("model_error", pl.Float64, "how far the model is off for the unchanged program", kind="share"),
)


def steps_judged(diagnosis: Diagnosis | RunDiagnosis) -> float:
    """Steps of the window; 1 for a run of several ranks, which has no coverage of its own."""
    coverage = getattr(diagnosis, "coverage", None)
    return 1 if coverage is None else coverage.steps


def evidence_label(finding: Finding, diagnosis: Diagnosis | RunDiagnosis) -> str:
    """The word before evidence, with the number of GPUs if their times and counts were added up."""
    coverage = getattr(diagnosis, "coverage", None)
    gpus = 1 if coverage is None or isinstance(rule(finding.id), RanksRule) else coverage.gpus
    return "evidence" if gpus == 1 else f"evidence (sums and shares over {fmt.count(gpus)} GPUs)"


def findings_frame(diagnosis: Diagnosis | RunDiagnosis) -> pl.DataFrame:
    """One row per finding, in their order; evidence as text, and the first remedy of each."""
    rows = []
    for rank, finding in enumerate(diagnosis.findings, start=1):
        low, high = finding.expected_interval or (None, None)
        derived = {
            "rank": rank,
            "expected_low": low,
            "expected_high": high,
            "where": ", ".join(finding.where),
            "places": "; ".join(place_lines(finding)),
            "evidence": evidence_text(finding.evidence, steps=steps_judged(diagnosis)),
            "remedy": finding.remedies[0].action if finding.remedies else None,
            "gain": factor(finding.expected),
            "at_most": factor(told_bound(finding)),
        }
        rows.append({name: derived[name] if name in derived else getattr(finding, name) for name in _FINDINGS})
    return frame_of(_FINDINGS.values(), rows)


def diagnosis_tables(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """The findings, the verdict of each phase, and the predicted effect of changes."""
    shown = tuple(_FINDINGS[name] for name in ("id", "severity", "gain", "at_most", "confidence", "title", "remedy"))
    tables = [
        Table(
            "findings",
            "Findings, the one to mend first, then worst first",
            shown,
            findings_frame(diagnosis),
            limit=None,
            cards=True,
        )
    ]
    # A phase that is the whole window repeats its verdict.
    if any(phase.share < _WHOLE for phase in diagnosis.per_phase):
        phases = (*map(_phase_row, diagnosis.per_phase), *_outside(diagnosis))
        titled = (*_PHASES[:-1], _PHASES[-1].but(title=f"Of {diagnosis.verdict}"))
        rows = frame_of(_PHASES, phases)
        shown = titled if rows["of_verdict_share"].count() else titled[:-1]
        caption = "Each phase by itself: gains are those of its own time, not of the program"
        tables.append(Table("phase-verdicts", caption, shown, rows, limit=None))
    if groups := tuple(_groups(diagnosis)):
        caption = "Remedies together, without a profiler (modelled): replayed without all of these causes"
        tables.append(Table("together", caption, _TOGETHER, frame_of(_TOGETHER, groups), limit=None))
    if diagnosis.predictions:
        changes = (
            {
                **vars(prediction),
                "what": ", ".join(_CHANGES.get(name, name.replace("-", " ")) for name in prediction.change.split(",")),
                "speedup": times(prediction.speedup),
            }
            for prediction in diagnosis.predictions
        )
        caption = "Predictions (modelled): make one change, record again, and compare"
        tables.append(Table("predictions", caption, _PREDICTIONS, frame_of(_PREDICTIONS, changes), limit=None))
    return tuple(tables)


def _groups(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """The group of remedies that was asked for; or else the best pair with the first finding, and all of them."""
    what_if = diagnosis.what_if
    if what_if is None:
        return
    groups = [change for change in what_if.changes if len(change.findings) > 1]
    pairs = [change for change in groups if change.is_pair and diagnosis.verdict in change.findings]
    largest = max(groups, key=lambda change: len(change.findings), default=None)
    best = max(pairs, key=lambda change: change.expected, default=None)
    told = (what_if.asked,) if what_if.asked is not None else (best, largest if largest is not best else None)
    for change in filter(None, told):
        low, high = change.expected_interval
        yield {
            "findings": " + ".join(change.findings),
            "gain": factor(change.expected),
            "interval": f"{factor(low)} to {factor(high)}",
            "step_ns": change.step_ns,
        }


#: Share of the window from which on a phase is all of it.
_WHOLE: Final = 0.999

#: Work outside of all phases is listed from this share of the window on.
_SMALLEST_OUTSIDE_SHARE: Final = 0.001


def _phase_row(phase: PhaseVerdict) -> dict[str, Any]:
    return {
        **vars(phase),
        "verdict": _words(phase.verdict, known=phase.verdict_known),
        "gain": factor(phase.expected),
        "busy_share": phase.busy_ns / phase.wall_ns if phase.wall_ns else None,
        "share": phase.share,
    }


def _outside(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """The row of the time outside of all phases, with which the shares add up to the window and to the verdict.

    It names the verdict where that takes most of this time.
    """
    coverage = diagnosis.coverage
    wall, busy = (
        getattr(coverage, name) - sum(getattr(phase, name) for phase in diagnosis.per_phase)
        for name in ("wall_ns", "busy_ns")
    )
    if wall <= _SMALLEST_OUTSIDE_SHARE * coverage.wall_ns:
        return
    shares = [phase.of_verdict_share for phase in diagnosis.per_phase if phase.of_verdict_share is not None]
    of_verdict = max(1 - sum(shares), 0.0) if shares else None
    claimed_ns = (of_verdict or 0.0) * (diagnosis.headline_share or 0.0) * coverage.wall_ns
    is_of_verdict = claimed_ns > DEFAULTS.dominant_share * wall
    yield {
        "phase": fmt.phase_title(NO_PHASE),
        "verdict": diagnosis.verdict if is_of_verdict else None,
        "gain": None,
        "wall_ns": wall,
        "busy_share": busy / wall,
        "share": wall / coverage.wall_ns,
        "of_verdict_share": of_verdict,
    }


def finding_blocks(diagnosis: Diagnosis) -> Iterator[Block | Section]:
    """Every finding with evidence and remedies, and what the diagnosis is based on."""
    yield from diagnosis_tables(diagnosis)
    for line in coverage_lines(diagnosis):
        yield quiet(fmt.sentence(line))
    yield from finding_sections(diagnosis)


def finding_sections(diagnosis: Diagnosis | RunDiagnosis, at: str = "") -> Iterator[Section]:
    """A section for each finding, the first one unfolded; `at` prefixes their ids."""
    for rank, finding in enumerate(diagnosis.findings):
        title = f"{finding.id}: {rule(finding.id).limiter}"
        blocks = tuple(_one_finding(finding, diagnosis))
        yield Section(f"{at}finding-{finding.id}", title, blocks, folded=rank > 0)


def _one_finding(finding: Finding, diagnosis: Diagnosis | RunDiagnosis) -> Iterator[Block]:
    """A finding with its evidence, remedies and what would refute it."""
    yield Paragraph(f"{finding.title} ({standing(finding)}).")
    evidence = evidence_text(finding.evidence, steps=steps_judged(diagnosis))
    yield Paragraph(f"{fmt.capitalised(evidence_label(finding, diagnosis))}: {evidence}.")
    for label, text in finding_facts(finding):
        if text:
            yield Paragraph(f"{fmt.capitalised(label)}: {text}.")
    remedies = (
        {**vars(remedy), "gain": own_gain(remedy) or None, "expected": beside_gain(remedy)}
        for remedy in finding.remedies
    )
    rows = frame_of(_REMEDIES, remedies)
    yield Table(f"remedies-{finding.id}", f"Remedies for {finding.id}", _REMEDIES, rows, limit=None, cards=True)
    yield quiet(f"What would refute it: {finding.refute}")


def finding_facts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text, which may be empty, of what is known of a finding beside its evidence."""
    shared = (
        f"this work also counts for {finding.shares_with}, where its time is told; the gain is of this remedy alone"
    )
    yield "shared", shared if finding.shares_with else ""
    yield "mostly in", places(finding)
    yield "in the program", "; ".join(place_lines(finding))


def checklist_frame(
    timeline: Timeline | None = None,
    window: Window | None = None,
    diagnosis: Diagnosis | None = None,
    counters: KernelCounters | None = None,
) -> pl.DataFrame:
    """`CHECKLIST` of a trace, of a counter report, or of both; arguments as for `diagnosis.checklist.checklist`."""
    # Imported here: a diagnosis without a report needs neither the checklist nor its analysis of counters.
    from warplens.diagnosis.checklist import CHECKLIST, checklist

    rows = [
        {
            "item": name,
            "group": group,
            "asked": asked,
            "found": found.state,
            "rests_on": found.rests_on,
            "seen_share": found.seen_share,
            "numbers": evidence_text(found.evidence) or None,
            "evidence": [
                {"name": name, "value": float(value)}
                for name, value in found.evidence.items()
                if isinstance(value, (int, float))
            ],
            "then": found.then,
        }
        for name, (group, asked, found) in checklist(timeline, window, diagnosis, counters).items()
    ]
    return CHECKLIST.checked(pl.DataFrame(rows, schema=CHECKLIST.schema))


def checklist_blocks(rows: pl.DataFrame) -> Iterator[Block]:
    """The checklist, items to mend first, and how many of its items were checked."""
    from warplens.diagnosis.checklist import CHECKLIST, STATES

    counts = {state: int((rows["found"] == state).sum()) for state in STATES}
    checked = counts["in order"] + counts["to mend"]
    yield quiet(
        f"{checked} of {rows.height} items were checked: {counts['in order']} in order, {counts['to mend']} to mend; "
        f"{counts['not applicable']} not applicable; {counts['cannot tell']} cannot be told from these files. What "
        "an item costs is an upper bound, of the kernels that were looked at (Seen); costs do not add up."
    )
    shown = pick(CHECKLIST, "asked", "found", "numbers", "rests_on", "seen_share", "then")
    state_order = pl.Enum(("to mend", "in order", "cannot tell", "not applicable"))
    ranked = rows.sort(pl.col("found").cast(state_order), maintain_order=True)
    yield Table("checklist-table", "Optimisation checklist", shown, ranked, limit=None)
