"""Why a step takes another time, in words: the cause of the difference with the numbers that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.report import format as fmt
from warplens.report.comparison.words import MANY_TIMES, capitalised, signed_share, verdict_text
from warplens.report.overview.words import category_title, cause_title

if TYPE_CHECKING:
    from warplens.compare.difference import Explanation, StepDifference
    from warplens.report.comparison.numbers import StepNumbers

__all__ = ["BOUND_TITLES", "cause_sentence", "hides_kernels", "launch_sentences", "step_answer", "work_sentence"]

#: What limits a side (`warplens.compare.difference.BOUNDS`), for people.
BOUND_TITLES: Final = {
    "gpu": "its GPU",
    "host-issue": "the host's issue rate",
    "host": "the host, busy with other things than launching",
    "waiting": "waits for other work, or for reasons unknown",
    "none": "nothing: it has no GPU work",
}

#: Contributions, as the subject of a clause.
_THINGS: Final = {
    "host-issue-bound": "waiting for launches",
    "gpu-work": "GPU work",
    "communication": "communication that nothing hides",
    "copies": "copies that nothing hides",
}

#: Below this many, a difference in launches per step is a rounding of means.
_A_LAUNCH: Final = 0.5

#: What is less than this of the main figure is not worth a clause of the sentence.
_WORTH_SAYING: Final = 0.1

#: GPU work that changes by less is called unchanged.
_UNCHANGED: Final = 0.005


def step_answer(numbers: StepNumbers) -> list[str]:
    """The verdict with its interval, and why: at most two sentences."""
    verdict = capitalised(verdict_text(numbers.comparison, "the variant"))
    cause = cause_sentence(numbers.difference, numbers.why)
    if numbers.comparison.verdict in ("faster", "slower") and _agrees(numbers):
        return [f"{verdict}, because {cause}."]
    return [f"{verdict}.", f"In what was recorded, {cause}."]


def _agrees(numbers: StepNumbers) -> bool:
    """Whether the files that are taken apart differ the way that all files together do."""
    return numbers.why.direction == numbers.comparison.verdict


def cause_sentence(difference: StepDifference, why: Explanation) -> str:
    """The cause with the numbers that show it, to stand after "because"."""
    work = _gpu_work(why)
    if why.cause == "no-difference":
        return f"a step takes {_about_as_long(difference)}: {work}"
    if why.cause == "host-issue-bound":
        both = {why.baseline_bound, why.variant_bound} == {"host-issue"}
        side = "step" if both else "baseline" if why.baseline_bound == "host-issue" else "variant"
        bounded = f"the {side} is bounded by the host's issue rate: {_launches(difference)}"
        return f"{work}, but {bounded}" if why.is_paradox else f"{bounded}; {work}"
    if why.cause == "gpu-work":
        more = "" if hides_kernels(difference) else f", most of it in {_largest_work(difference, why.change_ns > 0)}"
        rest = (
            f", which makes up {fmt.share(why.share)} of the change" if why.share is not None and why.share < 1 else ""
        )
        back = _given_back(why)
        return f"{work}{rest}{more}{back}"
    change = fmt.duration(abs(_main_change(why)))
    grew = "more" if why.change_ns > 0 else "less"
    if why.cause == "communication":
        return f"communication that no compute hides takes {change} {grew} a step, and {work}"
    if why.cause == "copies":
        return f"copies that nothing hides take {change} {grew} a step, and {work}"
    idle = cause_title(why.cause.removeprefix("idle: "))
    return f"the GPU is idle for {change} {grew} a step ({idle}), and {work}"


def _main_change(why: Explanation) -> float:
    return next((found.change_ns for found in why.contributions if found.cause == why.cause), why.change_ns)


def _about_as_long(difference: StepDifference) -> str:
    return f"about as long ({_step_times(difference)})"


def _step_times(difference: StepDifference) -> str:
    wall = difference.wall
    return f"{fmt.duration(float(wall.baseline.wall_ns))} and {fmt.duration(float(wall.variant.wall_ns))}"


def _gpu_work(why: Explanation) -> str:
    change = why.gpu_change_share
    if change is None:
        return "there is no GPU work to compare"
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
    if abs(change) < _A_LAUNCH:
        if before is None or after is None:
            return "as many launches"
        return f"as many launches, at {fmt.duration(after)} each instead of {fmt.duration(before)}"
    text = f"{fmt.count(round(abs(change), 1))} {'more' if change > 0 else 'fewer'} launches a step"
    if added is None or added * change <= 0:
        # Kernels went into graphs: not they are gone, but the calls that launched them.
        slower = after if difference.wall.change_ns >= 0 else before
        return f"{text} at {fmt.duration(slower)} each" if slower is not None else text
    text += f" × {fmt.duration(added / change)}"
    if pace is not None and abs(pace) >= _WORTH_SAYING * abs(added):
        text += f", while the other launches take {fmt.duration(abs(pace))} {'more' if pace > 0 else 'less'}"
    return text


def hides_kernels(difference: StepDifference) -> bool:
    """Whether kernels of a side are inside CUDA graphs that were traced as a whole."""
    return difference.launches.baseline.hides_kernels or difference.launches.variant.hides_kernels


def _largest_work(difference: StepDifference, growing: bool) -> str:
    """The kind of work that changed most, the way that the step did."""
    parts = [part for part in difference.wall.parts if part.group in ("compute", "graph")]
    largest = max(parts, key=lambda part: part.change_ns if growing else -part.change_ns)
    title = category_title(largest.part) if largest.group == "compute" else "CUDA graphs"
    change = float(largest.change_ns)
    return f"{title} ({'+' if change > 0 else ''}{fmt.duration(change)} a step)"


def _given_back(why: Explanation) -> str:
    """What works against the main cause, where it is worth saying."""
    main = _main_change(why)
    against = [found for found in why.contributions if found.change_ns * main < 0]
    if not against or abs(against[0].change_ns) < _WORTH_SAYING * abs(main):
        return ""
    change = against[0].change_ns
    cause = against[0].cause
    idle = "more idle time" if change > 0 else "less idle time"
    what = f"{idle} ({cause_title(cause.removeprefix('idle: '))})" if cause.startswith("idle: ") else _THINGS[cause]
    verb = "takes" if change > 0 else "saves"
    return f"; {what} {verb} {fmt.duration(abs(change))} of it back"


def work_sentence(numbers: StepNumbers) -> str | None:
    """FLOPs against time; None where FLOPs are unknown."""
    work, ratio = numbers.difference.work, numbers.why.flops_ratio
    if ratio is None or not ratio:
        return None
    source = "as given" if work.source == "given" else "modelled from the operators' shapes"
    spent = numbers.comparison.ratio.estimate
    return (
        f"FLOPs change by {_change(ratio)} ({source}), the time by {_change(spent)}: "
        f"each FLOP takes {fmt.number(spent / ratio)} times as long."
    )


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
            f"On the host, kernels that only one side launches cost {_signed(launches.added_cost_ns)} a step, and the "
            f"other launches take {_signed(launches.pace_cost_ns)}. Where the host's issue rate limits both sides, a "
            "step changes by the two together; otherwise the queue hides some of it."
        )
    return lines


def _signed(time_ns: float) -> str:
    return f"{'+' if time_ns > 0 else ''}{fmt.duration(time_ns)}"
