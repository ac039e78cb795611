"""The answer in two sentences: what share of the time the GPU worked, at what, and what it waited for.

The sentences say what was measured. An idle cause is a description of what the host was doing meanwhile; why it did so
is for a diagnosis, not for this line. A profile that lacks what the sentences rest on gets one that says so instead.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.profile import NoteLevel
from warplens.report import format as fmt
from warplens.report.overview.words import category_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.timebudget import TimeBudget
    from warplens.report.overview.numbers import Numbers

__all__ = ["answer", "largest_part"]

#: All copies and memory fills, as one part.
COPIES: Final = "copies and fills"

#: Idle below this share of the window is not worth a cause in the headline.
_HARDLY_IDLE: Final = 0.02

#: From here on a part is most of the whole.
_MOST: Final = 0.5

#: Parts of the busy time that are not kernel categories, after "most of it (97 %)".
_IN: Final = {
    "hidden inside CUDA graphs": "inside CUDA graphs that were traced as a whole",
    COPIES: "in copies and fills of memory",
    "other": "in kernels whose names do not tell what they do",
}

#: What the GPU's idle time is said to be, after its share.
_WHILE: Final = {
    "launch": "passed while the host was still issuing the next work",
    "graph-launch": "passed while the host was still issuing the next CUDA graph",
    "synchronization": "passed while the host was inside a synchronisation call",
    "refill": "passed while the host issued the first work after a synchronisation",
    "allocation": "passed while the host was allocating or freeing memory",
    "blocking-copy": "passed while the host was held in a blocking copy",
    "host": "passed while the host was busy or asleep outside of CUDA",
    "dependency": "passed while queued work waited for other GPU work",
    "submission": "passed while queued work was held back by the driver or another program",
    "start-latency": "is the latency of starting queued work",
    "profiler": "passed while the profiler held the host up",
    "unknown": "has no recorded cause",
}


def answer(numbers: Numbers) -> str:
    """At most two sentences on where the time of the window went."""
    blocking = [note for note in numbers.notes if note.level is NoteLevel.BLOCKING]
    if not numbers.budgets:
        return _sentence(blocking[0].text) if blocking else "The profile holds no GPU work in this window."
    if blocking:
        return f"{_sentence(blocking[0].text)} The numbers below describe only what was recorded."
    return f"{_busy(numbers)} {_idle(numbers.budgets)}"


def _busy(numbers: Numbers) -> str:
    """The first sentence: how long a step takes, for how much of the time the GPU was busy, and mostly with what."""
    budgets = numbers.budgets
    shares = [budget.busy_ns / budget.duration_ns if budget.duration_ns else 0.0 for budget in budgets]
    least, most = fmt.share(min(shares)), fmt.share(max(shares))
    busy = most if least == most else f"{least} to {most}"
    gpus = "the GPU was" if len(budgets) == 1 else f"the {len(budgets)} GPUs were"
    step = _step(numbers)
    if step is not None:
        return f"{step}, and {gpus} busy for {busy} of the time, {_mostly(budgets)}."
    return f"{gpus[:1].upper()}{gpus[1:]} busy for {busy} of {_span(numbers)}, {_mostly(budgets)}."


def _step(numbers: Numbers) -> str | None:
    """How long a step takes; None where the window does not consist of steps."""
    steps = numbers.window_steps
    wall_ns = steps["wall_ns"].to_list()
    if numbers.window.range_name is not None or 2 * sum(wall_ns) <= numbers.window.duration_ns:
        return None
    if len(wall_ns) == 1:
        return f"The only step takes {fmt.duration(wall_ns[0])}"
    return f"A step takes {fmt.duration(median(wall_ns))} (median of {len(wall_ns)})"


def _span(numbers: Numbers) -> str:
    if numbers.window.range_name is not None:
        return f"the time that work launched inside “{fmt.printable(numbers.window.range_name)}” spans"
    return f"the {fmt.duration(numbers.window.duration_ns)} analysed"


def largest_part(budgets: Sequence[TimeBudget]) -> tuple[str, float] | None:
    """The part that most of the GPUs' busy time went to, and its share of that; None where nothing ran.

    The part is a kernel category, `hidden inside CUDA graphs`, or `copies and fills`, which compete as one.
    """
    if not budgets:
        return None
    parts = pl.concat([budget.parts for budget in budgets]).filter(pl.col("group") != "idle")
    what = pl.when(pl.col("group") == "copy").then(pl.lit(COPIES)).otherwise(pl.col("part"))
    by_part = parts.group_by(what.alias("what")).agg(pl.col("time_ns").sum()).sort("time_ns", "what", descending=True)
    if by_part.is_empty():
        return None
    part, time_ns = by_part.row(0)
    return part, time_ns / int(by_part["time_ns"].sum())


def _mostly(budgets: Sequence[TimeBudget]) -> str:
    largest = largest_part(budgets)
    if largest is None:
        return "with nothing that lies in it"
    part, share = largest
    amount = "most" if share > _MOST else "the largest part"
    return f"{amount} of it ({fmt.share(share)}) {_IN.get(part) or f'in {category_title(part)}'}"


def _idle(budgets: Sequence[TimeBudget]) -> str:
    """The second sentence: for how much of the time it was idle, and what the host was doing for most of that."""
    duration = sum(budget.duration_ns for budget in budgets)
    idle = sum(budget.idle_ns for budget in budgets)
    share = idle / duration if duration else 0.0
    if share < _HARDLY_IDLE:
        how_long = fmt.share(share).replace("<", "less than ")
        return f"{'It was' if len(budgets) == 1 else 'They were'} idle for {how_long}."
    causes: dict[str, int] = {}
    for budget in budgets:
        for cause, time_ns in budget.gaps.totals.items():
            causes[cause] = causes.get(cause, 0) + time_ns
    cause, time_ns = max(causes.items(), key=lambda item: item[1])
    return f"Of the {fmt.share(share)} idle, {fmt.share(time_ns / idle)} {_WHILE[cause]}."


def _sentence(text: str) -> str:
    """A note's text as a sentence of its own."""
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
