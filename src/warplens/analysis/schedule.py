"""A recorded schedule: what the host and one GPU did in a window, ready to be replayed, and what it was for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from warplens.analysis.apikinds import API_KIND
from warplens.analysis.hostcalls import HOLDING_CAUSES, STALL_MAX_NS

if TYPE_CHECKING:
    import polars as pl

    from warplens.analysis.replay import Replayed, Schedule
    from warplens.analysis.window import Window

__all__ = ["ALLOCATION", "BLOCKING_COPY", "SYNCHRONIZATION", "RecordedSchedule"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: What a call holds the host up with, as `RecordedSchedule.cause` says it.
SYNCHRONIZATION: Final = HOLDING_CAUSES.index("synchronization") + 1
ALLOCATION: Final = HOLDING_CAUSES.index("allocation") + 1
BLOCKING_COPY: Final = HOLDING_CAUSES.index("blocking-copy") + 1


@dataclass(frozen=True, eq=False)
class RecordedSchedule:
    """One process's work on one device in a window, as it was recorded.

    Attributes:
        schedule: what can be replayed.
        window: the window.
        process, device: whose work it is.
        kind: shape (calls,), the position in `API_KIND` of what each call is.
        cause: what each call holds the host up with, a position from 1 in `HOLDING_CAUSES`; 0 for issuing work.
        whole_device: whether the call waits for all of the device's work by its name.
        stall_ns: the part of the pause before each call in which the host did something else for long.
        marked: whether the program's own ranges say what a step is.
        step: shape (calls,), the step that the work issued last belongs to, from 0; all 0 without steps.
        bytes: shape (work,), what a copy moves; 0 for other work.
        direction: of each copy, as in the `copies` table; null for other work.
        pinned: whether it is a copy between the device and host memory that is not pageable.
        first_work: the piece of work whose begin is the window's; −1 where the window begins otherwise.
        last_work: the piece of work whose begin is the window's end; −1 where the window ends otherwise.
        tail_ns: from the return of the last call to the window's end; None where the window ends with its work.
        overrun_ns: by how much its work outlasts the window.
    """

    schedule: Schedule
    window: Window
    process: int
    device: int
    kind: npt.NDArray[np.int8]
    cause: npt.NDArray[np.int8]
    whole_device: Bools
    stall_ns: Int64s
    marked: bool
    step: Int64s
    bytes: Int64s
    direction: pl.Series
    pinned: Bools
    first_work: int
    last_work: int
    tail_ns: int | None
    overrun_ns: int

    def duration_ns(self, replayed: Replayed) -> int:
        """How long the window takes when its schedule is replayed so."""
        if self.last_work >= 0:
            end = int(replayed.starts[self.last_work])
        else:
            end = int(replayed.ends.max()) - self.overrun_ns
            if self.tail_ns is not None:
                end = max(end, int(replayed.call_ends[-1]) + self.tail_ns)
        begin = self.window.start_ns if self.first_work < 0 else int(replayed.starts[self.first_work])
        return end - begin

    def is_kind(self, *kinds: str) -> Bools:
        """Which calls are of one of these kinds."""
        found: Bools = np.isin(self.kind, [API_KIND.categories.to_list().index(kind) for kind in kinds])
        return found

    @property
    def issues(self) -> Bools:
        """Which calls issue work of the window."""
        issues = np.zeros(len(self.kind), dtype=np.bool_)
        issues[self.schedule.call] = True
        return issues

    @property
    def uncaptured(self) -> Bools:
        """Which calls no CUDA graph can contain: waits, copies that hold the host, and launches of graphs."""
        found: Bools = np.isin(self.cause, (SYNCHRONIZATION, BLOCKING_COPY)) | self.is_kind("graph-launch")
        return found

    @property
    def step_ahead(self) -> Int64s:
        """For each call the step of the next work that is issued; what precedes its first launch is a step's own."""
        issuing = np.flatnonzero(self.issues)
        following = np.searchsorted(issuing, np.arange(len(self.step)), side="left")
        return self.step[issuing[np.minimum(following, len(issuing) - 1)]]

    @property
    def lasting_stall_ns(self) -> Int64s:
        """The stalls that have nothing to do with issuing work.

        Those are the ones before the first launch of a step or after a wait (its input), and elsewhere the ones of a
        millisecond or more. A shorter pause between two launches is Python that issues work, slowly.
        """
        uncaptured, calls = self.uncaptured, np.arange(len(self.cause))
        begins = uncaptured | np.r_[False, uncaptured[:-1]] | (np.diff(self.step_ahead, prepend=0) > 0)
        since = np.maximum.accumulate(np.where(begins, calls, 0))
        issuing = np.flatnonzero(self.issues & ~uncaptured)
        latest = np.r_[-1, issuing][np.searchsorted(issuing, calls, side="left")]
        return np.where((latest >= since) & (self.stall_ns < STALL_MAX_NS), 0, self.stall_ns)
