"""What a comparison says in words: the verdict with its interval, how many repeats would decide, the gate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from warplens.report import text as fmt

if TYPE_CHECKING:
    from warplens.compare.statistics import Comparison, Interval, Regression, Verdict


#: Verdicts of `warplens.compare.statistics`, as a table says them.
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
        interval: the ratio with its interval.
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
        found: the comparison.
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
