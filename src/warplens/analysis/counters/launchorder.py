"""Launch order: where in a trace the launches of a report were, as far as their order tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

if TYPE_CHECKING:
    from warplens.analysis.window import Window

__all__ = ["SAMPLES", "sample_of"]

Int64s = npt.NDArray[np.int64]

#: When the profiled launches ran.
SAMPLES: Final = ("warm-up", "steady", "mixed", "unknown")

#: Windows that say what is warm-up; others begin with the first work or hold everything.
_WITHOUT_WARMUP: Final = ("steady", "explicit")


def sample_of(
    profiled: pl.Series, recorded: pl.Series, namesakes: pl.Series, early: pl.Series, window: Window
) -> tuple[str, str]:
    """Whether the launches of a report are from before the window.

    The sequence of profiled launches is looked for in the sequence of the trace's launches of the same names (a filter
    by name is how launches are selected). Where it is not found, for each kernel the places alone decide.

    Args:
        profiled: what each launch of the report is, as a number; null for what is no kernel.
        recorded: the same for each launch of the trace, in the order of launches.
        namesakes: which of those have the name of a profiled kernel.
        early: which of those began before the window.
        window: that of the trace.

    Returns:
        One of `SAMPLES`, and one sentence on why.
    """
    if window.kind not in _WITHOUT_WARMUP:
        return "unknown", "the window does not separate warm-up from steady steps"
    sequence = profiled.drop_nulls().to_numpy()
    known = recorded.is_in(profiled.drop_nulls().unique().to_list())
    if not known.any():
        return "unknown", "no profiled kernel occurs in the trace with its grid and block"
    codes = recorded.filter(namesakes).to_numpy()
    places = _places(sequence, codes)
    if len(places):
        before = np.r_[0, np.cumsum(early.filter(namesakes).to_numpy())]
        counted = before[places + len(sequence)] - before[places]
        what = "the sequence of profiled launches occurs"
    else:
        counted = early.filter(known).to_numpy() * len(sequence)
        what = "launches like the profiled ones occur"
    if (counted == len(sequence)).all():
        return "warm-up", f"{what} in the trace only before the window"
    if (counted == 0).all():
        return "steady", f"{what} in the trace only from the begin of the window on"
    if len(places) == 1:
        return "mixed", f"{what} once in the trace, across the begin of the window"
    return "unknown", f"{what} in the trace both before the window and in it"


def _places(sequence: Int64s, codes: Int64s) -> Int64s:
    """Where in `codes` the whole sequence begins."""
    length = len(sequence)
    if not length or length > len(codes):
        return np.empty(0, dtype=np.int64)
    # Only places where the rarest of its launches fits are compared in full.
    values, counts = np.unique(codes, return_counts=True)
    found = np.minimum(np.searchsorted(values, sequence), len(values) - 1)
    frequency = np.where(values[found] == sequence, counts[found], 0)
    anchor = int(np.argmin(frequency))
    begins = np.flatnonzero(codes == sequence[anchor]) - anchor
    begins = begins[(begins >= 0) & (begins <= len(codes) - length)]
    for offset in range(length):
        if not len(begins):
            break
        begins = begins[codes[begins + offset] == sequence[offset]]
    return begins
