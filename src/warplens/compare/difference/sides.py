"""One side of a comparison: a profile, the part of it that counts, and how its work divides into steps.

Everything is told per step, so that profiles with different numbers of steps can be held against each other. A window
without steps counts as one repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from warplens.analysis.intervals import Intervals, clip, complement, measure_before, total, union
from warplens.analysis.ranges import projected_spans
from warplens.compare.difference.issuing import issue_times
from warplens.compare.samples import Samples

if TYPE_CHECKING:
    import polars as pl

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["Side", "step_samples"]

Int64s = npt.NDArray[np.int64]

#: Where steps leave more of the window's time than this between them, a step lasts until the next one begins: what the
#: program does in between (loading data, logging) is part of every repetition.
_GAP_SHARE: Final = 0.01


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two profiles that are compared.

    Attributes:
        name: what people call it (`baseline`, a file's name).
        timeline: the profile.
        window: the part of it that counts, from `timeline.window(...)`.
    """

    name: str
    timeline: Timeline
    window: Window

    @property
    def has_steps(self) -> bool:
        """Whether numbers are per step; else they are per window."""
        return bool(self.window.steps)

    @property
    def repeats(self) -> int:
        """How many repetitions the window holds: its steps, or itself."""
        return max(len(self.window.steps), 1)

    @cached_property
    def step_times(self) -> Intervals:
        """Begin and end of each repetition, in order."""
        if not self.window.steps:
            return Intervals(np.array([self.window.start_ns]), np.array([self.window.end_ns]))
        edges = np.array([(step.start_ns, step.end_ns) for step in self.window.steps], dtype=np.int64)
        return Intervals(edges[:, 0], edges[:, 1])

    @cached_property
    def gaps(self) -> Intervals:
        """The time from each step's end to the next step's begin, where there is any."""
        steps = union(self.step_times)
        if not len(steps.starts):
            return Intervals.none()
        return complement(steps, int(steps.starts[0]), int(steps.ends[-1]))

    @property
    def has_gaps(self) -> bool:
        """Whether the time between steps is worth counting."""
        return total(self.gaps) > _GAP_SHARE * max(self.window.duration_ns, 1)

    @cached_property
    def work_rows(self) -> Int64s:
        """The rows of `Timeline.work` that begin in the window's steps; all of the window's without steps."""
        return self._rows_and_steps[0]

    @cached_property
    def step_of_work(self) -> Int64s:
        """For each of `work_rows` the position of its step among the window's steps; 0 without steps."""
        return self._rows_and_steps[1]

    @cached_property
    def work(self) -> pl.DataFrame:
        """Those rows."""
        return self.timeline.work[self.work_rows]

    @cached_property
    def issue_ns(self) -> Int64s | None:
        """For each row of `work` what launching it cost the host; None where no launching call was recorded."""
        return issue_times(self.timeline, self.work)

    @cached_property
    def _rows_and_steps(self) -> tuple[Int64s, Int64s]:
        rows = np.arange(self.timeline.work.height)[self.timeline.work_rows_in(self.window)]
        if not self.window.steps:
            return rows, np.zeros(len(rows), dtype=np.int64)
        begun = self.timeline.work["start_ns"].to_numpy()[rows]
        starts, ends = self.step_times
        place = np.searchsorted(starts, begun, side="right") - 1
        inside = (place >= 0) & (begun < ends[np.maximum(place, 0)])
        return rows[inside], place[inside]


def step_samples(side: Side) -> Samples:
    """How long each step of the window took, as one block.

    A step lasts from its begin to its end. Where the program does much between steps, it lasts until the next one
    begins, and the last one, of which nobody knows what followed, is left out if others remain. A window without steps
    gives one duration, its length. Of a range, a step's time is that of the range's spans on the GPU that begin with
    the step, as its parts are; steps in which it takes none are left out.

    Raises:
        UsageError: the window has no length, or its range takes no time.
    """
    if side.window.range_name is not None:
        spent = _range_times(side, side.window.range_name)
        return Samples.of([spent[spent > 0]])
    starts, ends = side.step_times
    if side.has_gaps and len(starts) > 1:
        return Samples.of([np.diff(starts)])
    return Samples.of([ends - starts])


def _range_times(side: Side, name: str) -> npt.NDArray[np.float64]:
    """For each step the summed spans of a range until the next one begins; their mean over the devices."""
    timeline, window = side.timeline, side.window
    edges = np.r_[window.start_ns, side.step_times.starts[1:], window.end_ns]
    rows = timeline.range_rows(name)
    spent = []
    for device in timeline.work_in(window)["device"].unique().sort():
        spans = union(clip(projected_spans(timeline, rows, device), window.start_ns, window.end_ns))
        spent.append(np.diff(measure_before(spans, edges)))
    if not spent:
        return np.zeros(side.repeats)
    times: npt.NDArray[np.float64] = np.mean(spent, axis=0)
    return times
