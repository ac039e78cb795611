"""What a comparison says in words: the verdict with its interval, the gate, and the cause of the difference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from warplens.compare.difference import SAME_MARGIN, Contribution, Explanation, StepDifference
from warplens.profile import Note, NoteLevel
from warplens.report import text as fmt
from warplens.report.text import category_title, cause_title

if TYPE_CHECKING:
    from warplens.compare.decisions import Comparison, Interval, Regression, Verdict
    from warplens.report.comparison.numbers import StepNumbers


#: Verdicts of `warplens.compare.decisions`, as a table says them.
VERDICT_TITLES: Final[dict[Verdict, str]] = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same",
    "undecided": "undecided",
}


#: A change of this much and more has no decimals: `+18,477 %`.
_ROUND_CHANGE: Final = 10.0

#: Above this ratio, a factor of 1.0-something says less than the percentage.
_NEARLY_AS_LONG: Final = 0.95

#: From this ratio on, a factor reads better than a percentage: "3.1 times as long" rather than "210 % slower".
MANY_TIMES: Final = 2.0


def signed_share(change: float) -> str:
    """A change as a share with its sign: `+17.1 %`, `−54.0 %`."""
    if _ROUND_CHANGE <= change < math.inf:
        return f"+{fmt.count(round(100 * change))} %"
    text = fmt.share(change)
    return f"+{text}" if change > 0 and text != fmt.share(0.0) else text


def change_text(ratio: float) -> str:
    """A ratio of times as the change that it is: `17.1 % slower`, `54.0 % less time`, `3.10 times as long`."""
    if ratio >= MANY_TIMES:
        return f"{fmt.number(ratio)} times as long"
    if ratio >= 1:
        return f"{fmt.share(ratio - 1)} slower"
    return f"{fmt.share(1 - ratio)} less time"


def interval_text(interval: Interval, *, times: bool = False) -> str:
    """The interval of a ratio as a change: `95 %: +15.0 % to +19.2 %`; a sentence where there is none.

    Args:
        times: write it as factors, to stand beside one: `95 %: 2.68 to 14.5 times`.
    """
    confidence = fmt.number(round(100 * (1 - interval.level), 4))
    if not (math.isfinite(interval.high) and math.isfinite(interval.low)):
        return "no interval: a single duration per side"
    if times:
        return f"{confidence} %: {fmt.number(interval.low)} to {fmt.number(interval.high)} times"
    return f"{confidence} %: {signed_share(interval.low - 1)} to {signed_share(interval.high - 1)}"


def verdict_text(found: Comparison, variant: str) -> str:
    """The verdict in one sentence without its end: which side, by how much, how sure.

    Args:
        variant: what the other side is called (`topk.sqlite`).
    """
    ratio, interval = found.ratio.estimate, interval_text(found.ratio)
    name = fmt.printable(variant)
    if found.verdict == "slower":
        if ratio >= MANY_TIMES:
            return f"{name} takes {change_text(ratio)} ({interval_text(found.ratio, times=True)})"
        return f"{name} is {change_text(ratio)} ({interval})"
    if found.verdict == "faster":
        if ratio > _NEARLY_AS_LONG:
            return f"{name} takes {change_text(ratio)} ({interval})"
        return f"{name} is {fmt.number(1 / ratio)} times as fast: {change_text(ratio)} ({interval})"
    measured = f"{signed_share(ratio - 1)} ({interval})"
    if found.verdict == "same":
        return f"{name} takes the same time within {fmt.share(found.margin)}: {measured}"
    return f"Whether {name} is faster or slower is undecided: {measured}"


def needed_text(found: Comparison) -> str | None:
    """What would decide an undecided comparison; None for a decided one."""
    if found.verdict != "undecided":
        return None
    if not math.isfinite(found.ratio.high):
        return "The variation of the times is unknown: record several steps, or better several runs, of each side."
    if found.needed_blocks is None:
        return "No feasible number of repeats would decide it: the sides are too close for their noise."
    what = "runs (one file each, one folder per side)" if found.unit == "blocks" else "steps"
    return f"About {fmt.count(found.needed_blocks)} {what} of each side would decide it."


def gate_line(found: Regression, comparison: Comparison) -> str:
    """How the gate ended, and why."""
    limit = fmt.share(found.fail_on)
    interval = interval_text(comparison.ratio)
    if found.found:
        return f"gate failed: slower by more than {limit} ({interval})"
    if found.excluded:
        return f"gate passed: not slower by more than {limit} ({interval})"
    needed = needed_text(comparison)
    tail = f". {needed}" if needed else ". More repeats of each side would decide it."
    return f"gate undecided (not a failure): it may or may not be slower by more than {limit} ({interval}){tail}"


#: What limits a side (`warplens.compare.host.BOUNDS`), for people.
BOUND_TITLES: Final = {
    "gpu": "its GPU",
    "host-issue": "the host's launch rate",
    "host": "host work other than launching",
    "waiting": "waits for other work, or unknown reasons",
    "none": "nothing: it has no GPU work",
}

#: Contributions, as the subject of a clause.
_THINGS: Final = {
    "host-issue-bound": "waiting for launches",
    "gpu-work": "GPU work",
    "communication": "exposed communication",
    "copies": "exposed copies",
}

#: Below this many, a difference in launches per step is a rounding of means.
_A_LAUNCH: Final = 0.5

#: What is less than this of the main figure is not worth a clause of the sentence.
_WORTH_SAYING: Final = 0.1

#: GPU work that changes by less is called unchanged.
_UNCHANGED: Final = 0.005

#: FLOPs that differ by less are the same: a percentage with one decimal would read 0.0 %.
_SAME_FLOPS: Final = 0.0005

#: A cause of this much of the change and more is all of it.
_NEARLY_ALL: Final = 0.95

#: GPU work that fell by more would read as if it had fallen by all of it.
_ALL_BUT_GONE: Final = 0.9995

#: A part is "most" of a change from half of it on, and no longer where others against it make it larger than the whole.
_MOST: Final = (0.5, 1.05)

#: Launches that one side alone has, and the difference in launching calls, are about the same thing up to this share.
_ALIKE: Final = 0.1


def step_answer(numbers: StepNumbers) -> list[str]:
    """The verdict with its interval, and why: at most two sentences; what forbids one, where something does."""
    cause = cause_sentence(numbers.difference, numbers.why)
    blocking = forbids_verdict(numbers)
    if blocking is not None:
        refused = f"No verdict: the sides cannot be compared: {blocking.text.rstrip('.')}."
        if blocking.code == "steps-on-one-side":
            return [refused]  # what a window takes more than a step says nothing
        ratio = signed_share(numbers.comparison.ratio.estimate - 1)
        return [refused, f"In what was recorded, the time changes by {ratio}: {cause}."]
    name = numbers.difference.variant.window.range_name
    subject = "the variant" if name is None else f"range {fmt.printable(name)} of the variant"
    verdict = fmt.capitalised(verdict_text(numbers.comparison, subject))
    # The files that are taken apart may differ otherwise than all files together do.
    if numbers.comparison.verdict in ("faster", "slower") and numbers.why.direction == numbers.comparison.verdict:
        # Of a paradox, what the sentence begins with is no reason: it is what makes it one.
        return [f"{verdict}; {cause}." if _leads_with_work(numbers.why) else f"{verdict}, because {cause}."]
    return [f"{verdict}.", f"In what was recorded, {cause}."]


def forbids_verdict(numbers: StepNumbers) -> Note | None:
    """What keeps the two from being compared at all; None where nothing does."""
    return next((note for note in numbers.notes if note.level is NoteLevel.BLOCKING), None)


def _leads_with_work(why: Explanation) -> bool:
    return why.cause == "host-issue-bound" and why.is_paradox


def cause_sentence(difference: StepDifference, why: Explanation) -> str:
    """The cause with the numbers that show it, to stand after "because" (a paradox begins with what it is)."""
    work = _gpu_work(why)
    if why.cause == "no-difference":
        before, after = (
            fmt.duration(float(side.wall_ns)) for side in (difference.wall.baseline, difference.wall.variant)
        )
        return f"a {difference.per} takes about as long ({before} and {after}): {work}{_cancelled(why)}"
    if why.cause == "host-issue-bound":
        both = {why.baseline_bound, why.variant_bound} == {"host-issue"}
        side = "step" if both else "baseline" if why.baseline_bound == "host-issue" else "variant"
        bounded = f"the {side} is limited by the host's launch rate: {_launches(difference)}"
        return f"{work}, but {bounded}" if _leads_with_work(why) else f"{bounded}; {work}"
    if why.cause == "gpu-work":
        more = "" if hides_kernels(difference) else f", {_largest_work(difference, why)}"
        return f"{work}{_rest(why)}{more}{_given_back(why)}"
    change = fmt.duration(abs(_main_change(why)))
    grew = f"{'more' if why.change_ns > 0 else 'less'} per {difference.per}"
    if why.cause == "communication":
        main = f"exposed communication takes {change} {grew}"
    elif why.cause == "copies":
        main = f"exposed copies take {change} {grew}"
    else:
        main = f"the GPU is idle for {change} {grew} ({cause_title(why.cause.removeprefix('idle: '))})"
    return f"{main}{_rest(why)}, and {work}{_given_back(why)}"


def _cancelled(why: Explanation) -> str:
    """What makes up for GPU work that changed, where the step takes as long as before."""
    if why.gpu_change_share is None or abs(why.gpu_change_share) <= SAME_MARGIN:
        return ""
    work = next((found.change_ns for found in why.contributions if found.cause == "gpu-work"), None)
    against = [found for found in why.contributions if work is not None and found.change_ns * work < 0]
    if not against:
        return ""
    return f", against {fmt.duration(abs(against[0].change_ns))} {_of_cause(against[0])}"


def _of_cause(found: Contribution) -> str:
    """A contribution after its amount: `less of waiting for launches`."""
    if found.cause.startswith("idle: "):
        how = "more" if found.change_ns > 0 else "less"
        return f"{how} idle time ({cause_title(found.cause.removeprefix('idle: '))})"
    return f"{'more' if found.change_ns > 0 else 'less'} of {_THINGS[found.cause]}"


def _rest(why: Explanation) -> str:
    """How much of the change the cause makes up, where it is not all of it."""
    if why.share is None or why.share >= _NEARLY_ALL:
        return ""
    return f", which makes up {fmt.share(why.share)} of the change"


def _main_change(why: Explanation) -> float:
    return next((found.change_ns for found in why.contributions if found.cause == why.cause), why.change_ns)


def _gpu_work(why: Explanation) -> str:
    change = why.gpu_change_share
    if change is None:
        return "the baseline has no GPU work"
    if change <= -1:
        return "the variant has no GPU work"
    if change < -_ALL_BUT_GONE:
        return f"GPU work fell by more than {fmt.share(_ALL_BUT_GONE)}"
    if abs(change) < _UNCHANGED:
        return "GPU work is the same"
    if change >= 1:
        return f"GPU work rose to {fmt.number(1 + change)} times as much"
    return f"GPU work {'fell' if change < 0 else 'rose'} {fmt.share(abs(change))}"


def _launches(difference: StepDifference) -> str:
    """What the number of launches and their cost did."""
    launches = difference.launches
    before, after = launches.baseline.host_ns_per_launch, launches.variant.host_ns_per_launch
    change, added, pace = launches.calls_change, launches.added_cost_ns, launches.pace_cost_ns
    each = (
        "" if before is None or after is None else f" at {fmt.duration(after)} each instead of {fmt.duration(before)}"
    )
    if abs(change) < _A_LAUNCH:
        return f"as many launches{',' if each else ''}{each}"
    text = f"{_counted(abs(change), 'more' if change > 0 else 'fewer')} per {difference.per}"
    if change * difference.wall.change_ns < 0:
        # Their number would have changed the time the other way: what they cost is the cause.
        return f"{text}, but{each}" if each else text
    if added is None or added * change <= 0 or abs(launches.added - launches.removed - change) > _ALIKE * abs(change):
        # Kernels went into graphs: not they are gone, but the calls that launched them.
        slower = after if difference.wall.change_ns >= 0 else before
        return f"{text} at {fmt.duration(slower)} each" if slower is not None else text
    text += f" × {fmt.duration(added / change)}"
    if pace is not None and abs(pace) >= _WORTH_SAYING * abs(added):
        text += f", while the other launches take {fmt.duration(abs(pace))} {'more' if pace > 0 else 'less'}"
    return text


def _counted(number: float, how: str) -> str:
    rounded = round(number, 1)
    return f"{fmt.count(rounded)} {how} {'launch' if rounded == 1 else 'launches'}"


def hides_kernels(difference: StepDifference) -> bool:
    """Whether kernels of a side are inside CUDA graphs that were traced as a whole."""
    return difference.launches.baseline.hides_kernels or difference.launches.variant.hides_kernels


def _largest_work(difference: StepDifference, why: Explanation) -> str:
    """The kind of work that changed most, the way that the step did."""
    growing, net = why.change_ns > 0, _main_change(why)
    parts = [part for part in difference.wall.parts if part.group in ("compute", "graph")]
    largest = max(parts, key=lambda part: part.change_ns if growing else -part.change_ns)
    title = category_title(largest.part) if largest.group == "compute" else "CUDA graphs"
    change = float(largest.change_ns)
    least, most = _MOST
    how = "most of it in" if net and least <= change / net <= most else "above all in"
    told = f"{how} {title} ({_signed(change)} per {difference.per})"
    against = min(parts, key=lambda part: part.change_ns if growing else -part.change_ns)
    if net and change / net > most and against.group == "compute":
        told += f", against {_signed(float(against.change_ns))} in {category_title(against.part)}"
    return told


def _given_back(why: Explanation) -> str:
    """What works against the main cause, where it is worth saying."""
    main = _main_change(why)
    # What GPU work did is said already.
    against = [found for found in why.contributions if found.change_ns * main < 0 and found.cause != "gpu-work"]
    if not against or abs(against[0].change_ns) < _WORTH_SAYING * abs(main):
        return ""
    change, cause = against[0].change_ns, against[0].cause
    what = _of_cause(against[0]) if cause.startswith("idle: ") else _THINGS[cause]
    of_it = abs(change) <= abs(main)
    if change > 0:
        return f"; {what} takes {fmt.duration(abs(change))}{' of it back' if of_it else ' more'}"
    return f"; {what} saves {fmt.duration(abs(change))}{' of it' if of_it else ''}"


def work_sentence(numbers: StepNumbers) -> str | None:
    """FLOPs against time; None where FLOPs are unknown."""
    work, ratio = numbers.difference.work, numbers.why.flops_ratio
    if ratio is None or not ratio:
        return None
    source = "as given" if work.source == "given" else "modelled from the operators' shapes"
    spent = numbers.comparison.ratio.estimate
    told = f"FLOPs change by {_change(ratio)} ({source}), the time by"
    if abs(ratio - 1) < _SAME_FLOPS:
        told = f"FLOPs are the same ({source}), the time changes by"
    return f"{told} {_change(spent)}: each FLOP takes {fmt.number(spent / ratio)} times as long."


def _change(ratio: float) -> str:
    return f"a factor of {fmt.number(ratio)}" if ratio >= MANY_TIMES else signed_share(ratio - 1)


def launch_sentences(numbers: StepNumbers) -> list[str]:
    """What launches cost the host on both sides, and what limits each."""
    launches = numbers.difference.launches
    sides = ((numbers.baseline.name, launches.baseline), (numbers.variant.name, launches.variant))
    lines = [
        f"{fmt.printable(name)} is limited by {BOUND_TITLES[side.bound]}: its GPU is busy for "
        f"{fmt.share(side.busy_share)} of the time and waits for launches for {fmt.share(side.issue_share)}."
        for name, side in sides
    ]
    if launches.added_cost_ns is not None and launches.pace_cost_ns is not None:
        lines.append(
            f"On the host, kernels that only one side launches cost {_signed(launches.added_cost_ns)} per step, and "
            f"the other launches take {_signed(launches.pace_cost_ns)}. Where the host's launch rate limits both, "
            "a step changes by the two together; otherwise the queue hides some of it."
        )
    return lines


def _signed(time_ns: float) -> str:
    return f"{'+' if time_ns > 0 else ''}{fmt.duration(time_ns)}"
