"""Whether a copy gives the same: it and the original are read, and their tables compared value by value."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path

import polars as pl

from warplens.profile import Capture, Trace
from warplens.profile.counters import KernelCounters
from warplens.scrub.outcome import ScrubError
from warplens.scrub.texts import MARK

__all__ = ["check_counters", "check_trace", "is_rewriting"]


def check_trace(before: Trace, after: Trace, source: Path) -> int:
    """Compares every table of two traces; gives their number.

    Raises:
        ScrubError: one differs in more than texts that were rewritten.
    """
    names = [item.name for item in dataclasses.fields(Trace) if item.name != "capture"]
    for name in names:
        _check_frame(name, getattr(before, name), getattr(after, name), source)
    _check_captures(before.capture, after.capture, source)
    return len(names)


def check_counters(
    before: KernelCounters, after: KernelCounters, source: Path, passed_over: Collection[str] = ()
) -> int:
    """Compares everything that two reports of counters say; gives the number of tables.

    Args:
        before: what the original says.
        after: what the copy says.
        source: the original, for the error.
        passed_over: codes of notes that need not be the same.

    Raises:
        ScrubError: something differs in more than texts that were rewritten.
    """
    names = ("launches", "metrics", "rules")
    for name in names:
        _check_frame(name, getattr(before, name), getattr(after, name), source)
    _check_captures(_without(before.capture, passed_over), _without(after.capture, passed_over), source)
    if (before.session, dict(before.units)) != (after.session, dict(after.units)):
        raise _differs(source, "the session")
    return len(names)


def is_rewriting(before: str, after: str) -> bool:
    """Whether one text is the other with marks in place of what was removed, or without leading folders."""
    if before == after or (before.endswith(after) and before[-len(after) - 1] in "/\\"):
        return True
    kept = MARK.split(after)
    return len(kept) > 1 and re.fullmatch("(?s:.+?)".join(map(re.escape, kept)), before) is not None


def _without(capture: Capture, codes: Collection[str]) -> Capture:
    """The capture without the notes that have these codes."""
    return dataclasses.replace(capture, notes=tuple(note for note in capture.notes if note.code not in codes))


def _check_frame(name: str, before: pl.DataFrame, after: pl.DataFrame, source: Path) -> None:
    if before.columns != after.columns or before.height != after.height:
        raise _differs(source, name)
    for column in before.columns:
        if not _is_same(before[column], after[column]):
            raise _differs(source, f"{name}.{column}")


def _is_same(before: pl.Series, after: pl.Series) -> bool:
    if isinstance(before.dtype, pl.List):
        lengths = before.list.len().equals(after.list.len(), null_equal=True)
        return lengths and _is_same(before.explode(), after.explode())
    if isinstance(before.dtype, (pl.Enum, pl.Categorical, pl.String)):
        if before.dtype == after.dtype and before.equals(after, null_equal=True):
            return True
        pairs = pl.DataFrame({"before": before.cast(pl.String), "after": after.cast(pl.String)}).unique()
        if (pairs["before"].is_null() != pairs["after"].is_null()).any():
            return False
        return all(is_rewriting(old, new) for old, new in pairs.drop_nulls().iter_rows())
    return before.dtype == after.dtype and before.equals(after, null_equal=True)


def _check_captures(before: Capture, after: Capture, source: Path) -> None:
    for item in dataclasses.fields(Capture):
        if item.name != "source" and getattr(before, item.name) != getattr(after, item.name):
            raise _differs(source, f"capture.{item.name}")


def _differs(source: Path, what: str) -> ScrubError:
    return ScrubError(
        f"{source.name}: the copy does not say the same as the original ({what}) and was discarded. Please report this"
    )
