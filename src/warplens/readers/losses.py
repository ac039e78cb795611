"""Lost GPU work: launches without any, events left out, and how much that limits the results."""

from __future__ import annotations

from typing import Final

import polars as pl

from warplens.profile import Note, NoteLevel
from warplens.profile.schema import name_categories
from warplens.readers.limits import IMPOSSIBLE_TIMES
from warplens.writing import plural

#: Above this share of launches without any work, times and idle shares are wrong by as much.
LOST_SHARE_BLOCKING: Final = 0.05

#: A smaller share changes no ranking: launches at the edges of a recording, whose work was outside it.
LOST_SHARE_WARNING: Final = 0.01


def lost_level(share: float) -> NoteLevel:
    """Level of the note for this share of launches without work."""
    if share >= LOST_SHARE_BLOCKING:
        return NoteLevel.BLOCKING
    return NoteLevel.WARNING if share >= LOST_SHARE_WARNING else NoteLevel.INFO


def invalid_times(left_out: int, work_left_out: int, work: int, recapture: str) -> Note:
    """The note on events that were left out because of their times; GPU work among them is lost work.

    Args:
        left_out: number of events left out.
        work_left_out: number of those that are GPU work.
        work: number of pieces of GPU work that were kept.
        recapture: the command that records again.
    """
    text = f"{plural(left_out, 'event was', 'events were')} left out: {IMPOSSIBLE_TIMES}."
    level = NoteLevel.WARNING
    if work_left_out and lost_level(work_left_out / (work_left_out + work)) is NoteLevel.BLOCKING:
        level = NoteLevel.BLOCKING
        text += f" With them, {work_left_out:,} of {work_left_out + work:,} pieces of GPU work are missing."
    return Note("invalid-times", level, text, f"If many are missing, record again: {recapture}")


def called_like(calls: pl.DataFrame, pattern: str) -> pl.Series:
    """Mask of the calls whose name matches the pattern; each distinct name is tested once."""
    matching = name_categories(calls["name"]).str.contains(pattern).arg_true()
    return calls["name"].to_physical().is_in(matching.implode())


def still_queued(unmatched: pl.DataFrame, launches: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    """Mask of the launches without work that would begin after the recording if they queued as long as others.

    Args:
        unmatched: column `start_ns`, the launches without work.
        launches: columns `correlation` and `start_ns`, all of their process.
        work: the same of its GPU work.
    """
    pairs = launches.join(work, on="correlation", suffix="_work")
    waits = pairs["start_ns_work"].to_numpy() - pairs["start_ns"].to_numpy()
    # The recording lasted at least until the last launch, and until the last piece of work began.
    ended = max(int(table["start_ns"].to_numpy().max(initial=0)) for table in (launches, work))
    return unmatched["start_ns"] + int(waits.max(initial=-1)) >= ended
