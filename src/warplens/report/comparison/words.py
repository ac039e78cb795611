"""The sentences of a comparison: the verdict with its interval, the gate, and the cause of the difference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from warplens.compare.decisions import regression
from warplens.compare.difference import SAME_MARGIN, Contribution, Explanation, StepDifference
from warplens.compare.shift import TRIMMED_FROM
from warplens.profile import Note, NoteLevel
from warplens.report import text as fmt
from warplens.report.text import category_title, cause_title

if TYPE_CHECKING:
    from warplens.compare.decisions import Comparison, Interval, Regression, Verdict
    from warplens.report.comparison.numbers import StepNumbers


#: Display names of the verdicts of `warplens.compare.decisions`.
VERDICT_TITLES: Final[dict[Verdict, str]] = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same",
    "undecided": "undecided",
}


#: Changes from this ratio on are written without decimals: `+18,477 %`.
_ROUND_CHANGE: Final = 10.0

#: Above this ratio of times, a speed-up is written as a percentage, not as a factor of 1.0x.
_NEARLY_AS_LONG: Final = 0.95

#: From this ratio on, a factor is written instead of a percentage: "3.1 times as long" rather than "210 % slower".
MANY_TIMES: Final = 2.0


def signed_share(change: float) -> str:
    """A change as a share with its sign: `+17.1 %`, `−54.0 %`."""
    if _ROUND_CHANGE <= change < math.inf:
        return f"+{fmt.count(round(100 * change))} %"
    text = fmt.share(change)
    return f"+{text}" if change > 0 and text != fmt.share(0.0) else text


def change_text(ratio: float) -> str:
    """A ratio of times in words: `17.1 % slower`, `54.0 % less time`, `3.10 times as long`."""
    if ratio >= MANY_TIMES:
        return f"{fmt.number(ratio)} times as long"
    if ratio >= 1:
        return f"{fmt.share(ratio - 1)} slower"
    return f"{fmt.share(1 - ratio)} less time"


def confidence_text(level: float) -> str:
    """The confidence of intervals of a level, in per cent: `95`, `99.75`; never rounded to 100."""
    return f"{100 * (1 - level):.6g}"


def interval_text(interval: Interval, *, times: bool = False) -> str:
    """The interval of a ratio of times as a change: `95 %: +15.0 % to +19.2 %`; a phrase if there is none.

    With `times`, as factors: `95 %: 2.68 to 14.5 times`.
    """
    confidence = confidence_text(interval.level)
    if not (math.isfinite(interval.high) and math.isfinite(interval.low)):
        return "no interval: a side has a single duration"
    if times:
        return f"{confidence} %: {fmt.number(interval.low)} to {fmt.number(interval.high)} times"
    return f"{confidence} %: {signed_share(interval.low - 1)} to {signed_share(interval.high - 1)}"


def verdict_text(comparison: Comparison, variant: str) -> str:
    """The verdict on a variant of this name as a clause: direction, amount and interval."""
    ratio, interval = comparison.ratio.estimate, interval_text(comparison.ratio)
    name = fmt.printable(variant)
    if comparison.verdict == "slower":
        if ratio >= MANY_TIMES:
            return f"{name} takes {change_text(ratio)} ({interval_text(comparison.ratio, times=True)})"
        return f"{name} is {change_text(ratio)} ({interval})"
    if comparison.verdict == "faster":
        if ratio > _NEARLY_AS_LONG:
            return f"{name} takes {change_text(ratio)} ({interval})"
        return f"{name} is {fmt.number(1 / ratio)} times as fast: {change_text(ratio)} ({interval})"
    measured = f"{signed_share(ratio - 1)} ({interval})"
    if comparison.verdict == "same":
        return f"{name} takes the same time within {fmt.share(comparison.margin)}: {measured}"
    return f"Whether {name} is faster or slower is undecided: {measured}{_noise_text(comparison)}"


def _noise_text(comparison: Comparison) -> str:
    """Why a difference is undecided whose interval excludes 1; empty for any other."""
    if not comparison.within_noise:
        return ""
    return f", but halves of one side differ by up to {fmt.share(comparison.noise.share or 0.0)}"


def needed_text(comparison: Comparison, what: str = "it") -> str | None:
    """The number of repeats that would decide an undecided comparison, as a sentence; None for a decided one."""
    return _repeats_text(comparison, comparison.needed_blocks, what) if comparison.verdict == "undecided" else None


def needed_sentence(numbers: StepNumbers) -> str | None:
    """The same of the step time; None as well if the sides cannot be compared."""
    if forbids_verdict(numbers) is not None:
        return None
    return needed_text(numbers.comparison, "it" if gpu_work_sentence(numbers) is None else "the step time")


def is_decided(gpu_work: Comparison | None) -> bool:
    """Whether it is certain how the GPU's work changed.

    Times that do not vary at all, as of a coarse clock, do not show how certain their difference is.
    """
    if gpu_work is None or gpu_work.verdict == "undecided":
        return False
    return gpu_work.shift is not None and gpu_work.shift.error > 0


def gpu_work_sentence(numbers: StepNumbers) -> str | None:
    """What is certain about the GPU's work, if nothing is about the step time; None if that is decided, or neither is.

    The GPU's computing time varies little, also where pauses of the host make that of a step vary.
    """
    work = numbers.gpu_work
    if work is None or not is_decided(work) or numbers.comparison.verdict != "undecided":
        return None
    how = {"same": f"the same within {fmt.share(work.margin)}", "faster": "less", "slower": "more"}[work.verdict]
    # The amount follows with the cause: there it is of means, and may differ from this trimmed one in its last digit.
    return f"The GPU's work per {numbers.difference.per} is certainly {how} ({interval_text(work.ratio)})."


def _repeats_text(comparison: Comparison, needed: int | None, what: str = "it") -> str:
    if not math.isfinite(comparison.ratio.high):
        alone = comparison.shift.single_side if comparison.shift is not None else None
        of = "each side" if alone is None else f"the {alone}"
        return f"The variation of the times is unknown: record several steps, or better several runs, of {of}."
    if needed is None:
        if comparison.shift is not None and comparison.shift.drift:
            return f"No number of repeats would decide {what} while the times drift: take the sides in turns."
        return f"No feasible number of repeats would decide {what}: the sides are too close for their noise."
    repeats = "runs (one file each, one folder per side)" if comparison.unit == "blocks" else "steps"
    return f"About {fmt.count(needed)} {repeats} of each side would decide {what}."


def gate_line(gate: Regression, comparison: Comparison, gpu_work: Comparison | None = None) -> str:
    """The result of the gate with its interval; if it is open, and the GPU's work is decided, what the gate goes by."""
    limit = fmt.share(gate.fail_on)
    interval = interval_text(comparison.ratio)
    if gate.found:
        return f"gate failed: slower by more than {limit} ({interval})"
    if gate.excluded:
        return f"gate passed: not slower by more than {limit} ({interval})"
    if gate.means is not None:
        return (
            f"gate undecided{NOT_A_FAILURE}: the typical time is not slower by more than {limit} ({interval}), but "
            f"the mean changes by {signed_share(gate.means - 1)}: a few steps take far longer"
        )
    needed = _repeats_text(comparison, gate.needed_blocks, "the gate")
    text = f"gate undecided{NOT_A_FAILURE}: it may or may not be slower by more than {limit} ({interval})"
    noise = _noise_text(comparison) if comparison.ratio.low > 1 + gate.fail_on else ""
    basis = " The gate goes by the step time alone, not by the GPU's work." if is_decided(gpu_work) else ""
    return f"{text}{noise}. {needed}{basis}"


#: Display names of the bounds of a side (`warplens.compare.host.BOUNDS`).
BOUND_TITLES: Final = {
    "gpu": "its GPU",
    "host-issue": "the host's launch rate",
    "host": "host work other than launching",
    "waiting": "waits for other work, or unknown reasons",
    "none": "nothing: it has no GPU work",
}

#: The sum of the idle causes of launching (`warplens.compare.host.ISSUE_CAUSES`), which the parts list one by one.
LAUNCHING: Final = "launching (waiting, start latency)"

#: Contributions as the subject of a clause.
_SUBJECTS: Final = {
    "host-issue-bound": LAUNCHING,
    "launching": LAUNCHING,
    "gpu-work": "GPU work",
    "communication": "exposed communication",
    "copies": "exposed copies",
}

#: Differences in launches per step below this are rounding of means.
_A_LAUNCH: Final = 0.5

#: Changes below this share of the main change are not mentioned.
_SMALLEST_MENTIONED: Final = 0.1

#: GPU work that changes by a smaller share counts as unchanged.
_UNCHANGED: Final = 0.005

#: Below this number of kernels at a time, none overlap.
_AT_A_TIME: Final = 1.02

#: FLOPs that differ by a smaller share count as the same: with one decimal the percentage would be 0.0 %.
_SAME_FLOPS: Final = 0.0005

#: A cause with at least this share of the change counts as all of it.
_NEARLY_ALL: Final = 0.95

#: A larger decrease of GPU work would be rounded to 100 %.
_ALL_BUT_GONE: Final = 0.9995

#: Range of the share of a change that counts as "most": above it, opposing parts make the part exceed the change.
_MOST: Final = (0.5, 1.05)

#: The net launches of kernels on one side only and the change in launching calls count as equal up to this share.
_ALIKE: Final = 0.1


def step_answer(numbers: StepNumbers) -> list[str]:
    """The verdict with its interval and cause, or why there is no verdict.

    The verdict and its cause; between them what explains it first (another GPU), or is decided alone (the GPU's work);
    then why the tables, which are of means, show another change.
    """
    cause = cause_sentence(numbers.difference, numbers.why)
    gpus = _other_gpu(numbers)
    blocking = forbids_verdict(numbers)
    if blocking is not None:
        refused = f"No verdict: the sides cannot be compared: {blocking.text.rstrip('.')}."
        if blocking.code == "steps-on-one-side":
            return [refused]  # a window and a step are not comparable at all
        ratio = signed_share(numbers.comparison.ratio.estimate - 1)
        return [refused, *gpus, f"In what was recorded, the time changes by {ratio}: {cause}."]
    name = numbers.difference.variant.window.range_name
    subject = "the variant" if name is None else f"range {fmt.printable(name)} of the variant"
    verdict = fmt.capitalised(verdict_text(numbers.comparison, subject))
    # The typical files, which the cause is from, may differ in the other direction than all files together.
    means = _means_sentence(numbers)
    agree = numbers.comparison.verdict in ("faster", "slower") and numbers.why.direction == numbers.comparison.verdict
    if agree and not gpus:
        # The sentence of a paradox begins with the GPU work, which is not the cause.
        return [f"{verdict}; {cause}." if _leads_with_work(numbers.why) else f"{verdict}, because {cause}.", *means]
    work = gpu_work_sentence(numbers)
    return [f"{verdict}.", *gpus, *([work] if work else []), f"In what was recorded, {cause}.", *means]


def _other_gpu(numbers: StepNumbers) -> list[str]:
    """The GPUs of the sides as the first explanation, if they differ."""
    if not any(note.code == "different-gpu" for note in numbers.notes):
        return []
    before, after = (fmt.gpu_names(side.typical.timeline.trace.capture) for side in (numbers.baseline, numbers.variant))
    return [f"The first explanation is the GPU: the variant ran on {after}, the baseline on {before}."]


#: Ratios of the typical steps and of all steps that differ by less are not explained.
_RECONCILED: Final = 0.01


def _means_sentence(numbers: StepNumbers) -> list[str]:
    """Why the change in the tables is not that of the verdict, if the two visibly differ."""
    ratio, of_tables, per = numbers.comparison.ratio.estimate, numbers.why.ratio, numbers.difference.per
    if not of_tables or abs(math.log(of_tables / ratio)) < _RECONCILED:
        return []
    if max(len(numbers.baseline.files), len(numbers.variant.files)) > 1:
        basis = f"of all files; the tables are of one file a side, whose mean {per} changes"
    else:
        tables = f"the tables are of all {per}s, whose plain mean changes"
        cycle = numbers.comparison.cycle
        units = f"typical {per}s" if cycle == 1 else f"whole cycles of {cycle} {per}s"
        basis = f"of {kind_of_means(numbers)} means, of {units}; {tables}"
    return [f"The {signed_share(ratio - 1)} is {basis} by {signed_share(of_tables - 1)}."]


def kind_of_means(numbers: StepNumbers) -> str:
    """The means that the verdict is from: `trimmed` or `geometric`."""
    units = min(samples.count for samples in numbers.samples) // numbers.comparison.cycle
    return "trimmed" if units >= TRIMMED_FROM else "geometric"


def forbids_verdict(numbers: StepNumbers) -> Note | None:
    """The note that the sides cannot be compared; None if they can."""
    return next((note for note in numbers.notes if note.level is NoteLevel.BLOCKING), None)


#: Follows "gate undecided", unless that counts as a failure as well.
NOT_A_FAILURE: Final = " (not a failure)"

#: Notes that the times of the sides do not tell whether one program got slower.
NO_GATE: Final = (
    *("different-programs", "different-gpu", "same-file", "same-recording", "other-steps", "range-in-some-steps"),
    "unlike-repeats",
)

#: Notes that the sides may differ in more than a change of one program.
_DOUBTS: Final = ("few-matches", "guessed-steps", "hidden-graphs", "unknown-gpu", "different-tool")


def forbids_gate(numbers: StepNumbers) -> Note | None:
    """The note that a gate has nothing to go by; None if it has.

    Of another profiler it has nothing to go by either, for the step time contains what the profiler adds, unless the
    GPU's work, to which profilers add nothing, is certainly slower by more than the limit as well.
    """
    codes = NO_GATE if _gpu_work_fails(numbers) else (*NO_GATE, "different-tool")
    return forbids_verdict(numbers) or next((note for note in numbers.notes if note.code in codes), None)


def _gpu_work_fails(numbers: StepNumbers) -> bool:
    gate, work = numbers.regression, numbers.gpu_work
    return gate is not None and gate.found and work is not None and regression(work, gate.fail_on).found


def refusal_line(refused: Note) -> str:
    """Why there is no result of a gate."""
    return f"the gate has nothing to go by: {refused.text}"


def gate_sentence(numbers: StepNumbers) -> str | None:
    """The result of the gate, or why it has none; None without a gate."""
    if numbers.regression is None:
        return None
    if (refused := numbers.gate_refusal) is not None:
        return refusal_line(refused)
    return gate_line(numbers.regression, numbers.comparison, numbers.gpu_work)


def gate_doubts(numbers: StepNumbers) -> list[str]:
    """Cautions to read beside the result of a gate: it is not certain that the sides are one program on one GPU."""
    return [f"caution: {note.text}" for note in numbers.notes if note.code in _DOUBTS]


def _leads_with_work(explanation: Explanation) -> bool:
    return explanation.cause == "host-issue-bound" and explanation.is_paradox


def cause_sentence(difference: StepDifference, explanation: Explanation) -> str:
    """The cause with its evidence, to follow "because", except for a paradox, which begins with the GPU work."""
    work = _gpu_work(difference, explanation)
    if explanation.cause == "no-difference":
        before, after = (
            fmt.duration(float(side.wall_ns)) for side in (difference.wall.baseline, difference.wall.variant)
        )
        return f"a {difference.per} takes about as long ({before} and {after}): {work}{_cancelled(explanation)}"
    if explanation.cause == "host-issue-bound":
        both = {explanation.baseline_bound, explanation.variant_bound} == {"host-issue"}
        side = "step" if both else "baseline" if explanation.baseline_bound == "host-issue" else "variant"
        bounded = f"the {side} is limited by the host's launch rate: {_launches(difference)}"
        return f"{work}, but {bounded}" if _leads_with_work(explanation) else f"{bounded}; {work}"
    if explanation.cause == "gpu-work":
        is_of_kernels = not hides_kernels(difference) and _overlaps(difference) is None
        more = f", {_largest_work(difference, explanation)}" if is_of_kernels else ""
        return f"{work}{_share_of_change(explanation)}{more}{_given_back(explanation)}"
    change = fmt.duration(abs(_main_change(explanation)))
    grew = f"{'more' if explanation.change_ns > 0 else 'less'} per {difference.per}"
    if explanation.cause == "communication":
        main = f"exposed communication takes {change} {grew}"
    elif explanation.cause == "copies":
        main = f"exposed copies take {change} {grew}"
    elif explanation.cause == "launching":
        main = f"{LAUNCHING} takes {change} {grew}"
    else:
        main = f"the GPU is idle for {change} {grew} ({cause_title(explanation.cause.removeprefix('idle: '))})"
    return f"{main}{_share_of_change(explanation)}, and {work}{_given_back(explanation)}"


def _cancelled(explanation: Explanation) -> str:
    """The change that cancels a change of GPU work, if the step time is the same; empty if there is none."""
    if explanation.gpu_change_share is None or abs(explanation.gpu_change_share) <= SAME_MARGIN:
        return ""
    work_ns = next((part.change_ns for part in explanation.contributions if part.cause == "gpu-work"), None)
    opposing = (part for part in explanation.contributions if work_ns is not None and part.change_ns * work_ns < 0)
    largest = next(opposing, None)
    return "" if largest is None else f", against {fmt.duration(abs(largest.change_ns))} {_of_cause(largest)}"


def _of_cause(contribution: Contribution) -> str:
    """The words after the amount of a contribution: `less of exposed copies`."""
    direction = "more" if contribution.change_ns > 0 else "less"
    if contribution.cause.startswith("idle: "):
        return f"{direction} idle time ({cause_title(contribution.cause.removeprefix('idle: '))})"
    return f"{direction} of {_SUBJECTS[contribution.cause]}"


def _share_of_change(explanation: Explanation) -> str:
    """The share of the change that the cause makes up, if it is not all of it."""
    if explanation.share is None or explanation.share >= _NEARLY_ALL:
        return ""
    return f", which makes up {fmt.share(explanation.share)} of the change"


def _main_change(explanation: Explanation) -> float:
    return next(
        (part.change_ns for part in explanation.contributions if part.cause == explanation.cause), explanation.change_ns
    )


def _gpu_work(difference: StepDifference, explanation: Explanation) -> str:
    """The change of the time in which the GPU computes, and where it is not that of kernels: how that is."""
    if hides_on_one_side(difference):
        return f"{_change_of_work(explanation)}, counting CUDA graphs with hidden kernels as a whole"
    if at_a_time := _overlaps(difference):
        before, after = at_a_time
        run = "kernel runs" if fmt.number(after) == "1" else "kernels run"
        return f"{_change_of_work(explanation)}, as {fmt.number(after)} {run} at a time instead of {fmt.number(before)}"
    return _change_of_work(explanation)


def _overlaps(difference: StepDifference) -> tuple[float, float] | None:
    """How many kernels run at a time on each side, if that changes the GPU work by more than their own times do."""
    at_a_time, change = difference.kernels_at_a_time, difference.wall.gpu_change_share
    if at_a_time is None or change is None or abs(change) < _UNCHANGED:
        return None
    before, after = at_a_time
    if max(at_a_time) < _AT_A_TIME:
        return None
    by_overlap = -math.log(after / before)
    return at_a_time if by_overlap / math.log1p(change) > _MOST[0] else None


def _change_of_work(explanation: Explanation) -> str:
    change = explanation.gpu_change_share
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
    """The change of the number of launches, and their cost."""
    launches = difference.launches
    before, after = launches.baseline.host_ns_per_launch, launches.variant.host_ns_per_launch
    change, added, pace = launches.calls_change, launches.added_cost_ns, launches.pace_cost_ns
    cost_each = (
        "" if before is None or after is None else f" at {fmt.duration(after)} each instead of {fmt.duration(before)}"
    )
    if abs(change) < _A_LAUNCH:
        return f"as many launches{',' if cost_each else ''}{cost_each}"
    text = f"{_counted(abs(change), 'more' if change > 0 else 'fewer')} per {difference.per}"
    if change * difference.wall.change_ns < 0:
        # The number of launches changed in the other direction than the time: their cost is the cause.
        return f"{text}, but{cost_each}" if cost_each else text
    if added is None or added * change <= 0 or abs(launches.added - launches.removed - change) > _ALIKE * abs(change):
        # The calls are gone, not the kernels: they were moved into graphs, whose launch takes longer than one of them.
        issue, issue_before = launches.variant.issue_ns, launches.baseline.issue_ns
        walls = difference.wall.baseline.wall_ns, difference.wall.variant.wall_ns
        # Calls before the window, which launched its first work, may have taken longer than a step.
        if issue is None or issue_before is None or issue_before > walls[0] or issue > walls[1]:
            return text
        return f"{text}, so that launching takes the host {fmt.duration(issue)} instead of {fmt.duration(issue_before)}"
    text += f" × {fmt.duration(added / change)}"
    if pace is not None and abs(pace) >= _SMALLEST_MENTIONED * abs(added):
        text += f", while the other launches take {fmt.duration(abs(pace))} {'more' if pace > 0 else 'less'}"
    return text


def _counted(number: float, comparative: str) -> str:
    rounded = round(number, 1)
    return f"{fmt.count(rounded)} {comparative} {'launch' if rounded == 1 else 'launches'}"


def hides_kernels(difference: StepDifference) -> bool:
    """Whether kernels of a side are inside CUDA graphs that were traced as a whole."""
    return difference.launches.baseline.hides_kernels or difference.launches.variant.hides_kernels


def hides_on_one_side(difference: StepDifference) -> bool:
    """Whether that is so of one side alone: its graphs count with their pauses, the other side's kernels without."""
    return difference.launches.baseline.hides_kernels != difference.launches.variant.hides_kernels


def _largest_work(difference: StepDifference, explanation: Explanation) -> str:
    """The kind of work with the largest change in the direction of the step's change."""
    growing, net = explanation.change_ns > 0, _main_change(explanation)
    parts = [part for part in difference.wall.parts if part.group in ("compute", "graph")]
    largest = max(parts, key=lambda part: part.change_ns if growing else -part.change_ns)
    title = category_title(largest.part) if largest.group == "compute" else "CUDA graphs"
    change = float(largest.change_ns)
    least, most = _MOST
    phrase = "most of it in" if net and least <= change / net <= most else "above all in"
    text = f"{phrase} {title} ({_signed(change)} per {difference.per})"
    opposing = min(parts, key=lambda part: part.change_ns if growing else -part.change_ns)
    if net and change / net > most and opposing.group == "compute":
        text += f", against {_signed(float(opposing.change_ns))} in {category_title(opposing.part)}"
    return text


def _given_back(explanation: Explanation) -> str:
    """The largest contribution against the main cause; empty if it is too small to mention."""
    main = _main_change(explanation)
    # GPU work is mentioned already.
    opposing = (part for part in explanation.contributions if part.change_ns * main < 0 and part.cause != "gpu-work")
    largest = next(opposing, None)
    if largest is None or abs(largest.change_ns) < _SMALLEST_MENTIONED * abs(main):
        return ""
    change = largest.change_ns
    subject = _of_cause(largest) if largest.cause.startswith("idle: ") else _SUBJECTS[largest.cause]
    if largest.cause == "host-issue-bound" and all(part.cause != "gpu-work" for part in explanation.contributions):
        subject = f"the sum of GPU work and {LAUNCHING}"
    smaller = abs(change) <= abs(main)
    if change > 0:
        return f"; {subject} takes {fmt.duration(abs(change))}{' of it back' if smaller else ' more'}"
    return f"; {subject} saves {fmt.duration(abs(change))}{' of it' if smaller else ''}"


def work_sentence(numbers: StepNumbers) -> str | None:
    """The change of FLOPs against that of the time; None if FLOPs are unknown.

    If the verdict on the time is open, its interval may still tell whether a FLOP takes longer.
    """
    work, ratio = numbers.difference.work, numbers.why.flops_ratio
    if ratio is None or not ratio:
        return None
    source = "as given" if work.source == "given" else "modelled from the operators' shapes"
    same = abs(ratio - 1) < _SAME_FLOPS
    text = f"FLOPs are the same ({source})" if same else f"FLOPs change by {_change(ratio)} ({source})"
    time, is_open = numbers.comparison.ratio, numbers.comparison.verdict == "undecided"
    ends = (time.low, time.high) if is_open else (time.estimate,)
    tells = not is_open or (math.isfinite(time.high) and not time.low <= ratio <= time.high)
    if forbids_verdict(numbers) is not None or not tells:
        return f"{text}."
    if same and not is_open and abs(time.estimate - 1) < _SAME_FLOPS:
        return f"{text}, and so is the time."
    changes = " to ".join(map(_change, ends))
    times = " to ".join(fmt.number(end / ratio) for end in ends)
    return f"{text}, the time {'changes ' if same else ''}by {changes}: each FLOP takes {times} times as long."


def _change(ratio: float) -> str:
    return f"a factor of {fmt.number(ratio)}" if ratio >= MANY_TIMES else signed_share(ratio - 1)


def launch_sentences(numbers: StepNumbers) -> list[str]:
    """The bound of each side, and the cost of launches on the host."""
    launches = numbers.difference.launches
    sides = ((numbers.baseline.name, launches.baseline), (numbers.variant.name, launches.variant))
    lines = [
        f"{fmt.printable(name)} is limited by {BOUND_TITLES[side.bound]}: its GPU is busy for "
        f"{fmt.share(side.busy_share)} of the time and idle in {LAUNCHING} for {fmt.share(side.issue_share)}."
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
