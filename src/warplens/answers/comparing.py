"""The comparison of two profiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from warplens.analysis.timeline import Timeline
from warplens.answers.inputs import Profile, both_sides, timelines_of, trace_side
from warplens.answers.results import ComparisonAnswer
from warplens.report.comparison.numbers import StepNumbers, TraceFiles, compare_steps, step_data, step_head
from warplens.report.comparison.steps import kernel_table, part_table
from warplens.report.comparison.words import step_answer


def compare(
    baseline: Profile | Sequence[Profile],
    variant: Profile | Sequence[Profile],
    *,
    window: str = "steady",
    range_name: str | None = None,
    margin: float = 0.02,
    level: float = 0.05,
    fail_on: float | None = None,
) -> ComparisonAnswer:
    """Why a variant is slower or faster than its baseline, and how certain that is.

    Args:
        baseline, variant: a profile each; a folder or a sequence means repeats. Only repeats are independent samples.
        window, range_name: as for `diagnose`, for each profile.
        margin: differences of at most this share count as none.
        level: probability that an interval misses the true value: 0.05 for 95 % confidence.
        fail_on: largest acceptable slow-down, a share. The result is in `.numbers.regression`, unless
            `.numbers.gate_refusal` is a note that the sides do not compare, for which the command exits with 2.

    Raises:
        TypeError: an argument is not a profile.
        UsageError: a window lies outside of its profile, or there is no such range.
        MissingDataError: a side takes no time.
        UnreadableInputError: a file cannot be read.
    """
    before, after = (timelines_of(side, "compare") for side in (baseline, variant))
    sides = both_sides(
        trace_side(_side_name(before, "baseline"), before, window, range_name),
        trace_side(_side_name(after, "variant"), after, window, range_name),
    )
    return comparison_answer(compare_steps(*sides, margin=margin, level=level, fail_on=fail_on), sides)


def comparison_answer(numbers: StepNumbers, sides: tuple[TraceFiles, TraceFiles]) -> ComparisonAnswer:
    """The answer on two compared sides."""
    return ComparisonAnswer(
        command="compare",
        source=(*sides[0].sources, *sides[1].sources),
        frame=numbers.difference.wall.frame(),
        facts=(*step_head(numbers), " ".join(step_answer(numbers))),
        notes=numbers.notes,
        tables=(
            part_table(numbers.difference, most=8),
            kernel_table(numbers, limit=0, narrow=True),
        ),
        data=partial(step_data, numbers),
        numbers=numbers,
    )


def _side_name(timelines: Sequence[Timeline], role: str) -> str:
    sources = [timeline.trace.capture.source for timeline in timelines]
    return sources[0] if len(sources) == 1 else role
