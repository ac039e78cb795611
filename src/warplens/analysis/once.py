"""Answers that several analyses of one report build on are computed once for a timeline and a window."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["once"]

Answer = TypeVar("Answer")


def once(question: Callable[[Timeline, Window], Answer]) -> Callable[[Timeline, Window], Answer]:
    """Makes a question of a timeline and a window remember its answers, with the timeline, as long as that lives.

    Two threads that ask at the same time may both compute the answer, which does no harm. Answers are not to be
    changed by those who asked.
    """

    @wraps(question)
    def remembered(timeline: Timeline, window: Window) -> Answer:
        key = (question, window)
        if key not in timeline.answers:
            timeline.answers[key] = question(timeline, window)
        answer: Answer = timeline.answers[key]
        return answer

    return remembered
