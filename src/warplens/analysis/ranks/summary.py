"""The summary of one rank's profile for the comparison of ranks: sums, steps and collectives, no events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals
from warplens.analysis.quality import quality_notes
from warplens.analysis.ranks.collectives import COLLECTIVES, rank_collectives
from warplens.analysis.ranks.measures import (
    STEP_TIMES,
    TIME_COLUMNS,
    busy_time,
    split_ranks,
    step_times,
    times_between,
)
from warplens.analysis.timebudget import BUDGET, TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile import Note, Trace


@dataclass(frozen=True, eq=False)
class RankSummary:
    """The summary of one rank. Times are in nanoseconds of its file's own clock."""

    source: str  #: the file's name, without folders
    #: part, parts: index of this rank in its file, from 0, and number of ranks in it
    part: int
    parts: int
    #: process, device: where its kernels ran; None where there were none
    process: int | None
    device: int | None
    gpu: str | None  #: name of the GPU; None where the file does not say
    tool: str  #: the profiler and its version, for people
    #: rank, world_size: as the file records them; None where it does not
    rank: int | None
    world_size: int | None
    epoch_ns: int | None  #: Unix time of the clock's zero; None where the file does not say
    window: Window
    times: dict[str, int]  #: `TIME_COLUMNS` of the window
    budget: pl.DataFrame  #: the time budget of the window (`timebudget.BUDGET`)
    steps: pl.DataFrame  #: `measures.STEP_TIMES`, all steps of the file
    collectives: pl.DataFrame  #: `collectives.COLLECTIVES`, all of the file
    exposed: Intervals  #: intervals of exposed communication, disjoint; to split waits into exposed and hidden
    undescribed: int  #: collectives described by the framework that ran no kernel of their own
    kernels: int
    notes: tuple[Note, ...] = field(default=())  #: limits of the results, from the reader and the analyses

    @property
    def label(self) -> str:
        """The file, and the process and GPU where the file holds several ranks."""
        return self.source if self.parts == 1 else f"{self.source} (process {self.process}, GPU {self.device})"


@dataclass(frozen=True, eq=False)
class RankWindow:
    """One rank of a trace with its window, before it is summarized."""

    #: process, device: where its kernels ran; None where the file holds one rank, or no kernel at all
    process: int | None
    device: int | None
    #: part, parts: index of this rank in the file, from 0, and number of ranks in it
    part: int
    parts: int
    #: timeline, window: the rank's own profile, and the part of it that is analysed
    timeline: Timeline
    window: Window


def rank_windows(timeline: Timeline, window: str | Window = "steady") -> tuple[RankWindow, ...]:
    """The ranks of a profile, of one or of several processes or GPUs, each with its window.

    Args:
        window: as `Timeline.window` takes it, and each rank finds its own steady steps; or one window for all ranks,
            of which each has its own steps.

    Raises:
        UsageError: the window lies outside the profile.
    """
    ranks = split_ranks(timeline.trace)
    windows = []
    for part, (process, device, trace) in enumerate(ranks):
        rank_timeline = timeline if len(ranks) == 1 else Timeline(trace)
        rank_window = (
            rank_timeline.window(window) if isinstance(window, str) else _with_own_steps(rank_timeline, window)
        )
        windows.append(RankWindow(process, device, part, len(ranks), rank_timeline, rank_window))
    return tuple(windows)


def _with_own_steps(timeline: Timeline, window: Window) -> Window:
    """The window with the steps of this rank that are mostly inside: it begins with a step of one of the ranks."""
    if timeline.window().steps == window.steps:
        return window
    steps = (
        step for step in timeline.steps.steps if window.start_ns <= (step.start_ns + step.end_ns) // 2 < window.end_ns
    )
    return replace(window, steps=tuple(steps))


def summarize(trace: Trace, window: str = "steady") -> tuple[RankSummary, ...]:
    """One summary for each rank of a trace.

    Args:
        trace: a profile of one rank, or of several processes or GPUs.
        window: as `Timeline.window` takes it; each rank finds its own steady steps.

    Raises:
        UsageError: the window lies outside the profile.
    """
    return tuple(map(summary_of, rank_windows(Timeline(trace), window)))


def summary_of(
    rank: RankWindow, budgets: Sequence[TimeBudget] | None = None, notes: Sequence[Note] | None = None
) -> RankSummary:
    """The summary of one rank; time budgets and notes of its window are computed unless given."""
    timeline, window, capture = rank.timeline, rank.window, rank.timeline.trace.capture
    gpu = capture.device(rank.device) if rank.device is not None else None
    # A rank without any GPU work is idle throughout.
    idle = {"idle_ns": window.duration_ns, "duration_ns": window.duration_ns}
    summary = RankSummary(
        source=capture.source,
        part=rank.part,
        parts=rank.parts,
        process=rank.process,
        device=rank.device,
        gpu=gpu.name if gpu else None,
        tool=f"{capture.tool} {capture.tool_version or ''}".strip(),
        rank=capture.rank,
        world_size=capture.world_size,
        epoch_ns=capture.epoch_ns,
        window=window,
        times={**dict.fromkeys(TIME_COLUMNS, 0), **idle},
        budget=BUDGET.empty(),
        steps=STEP_TIMES.empty(),
        collectives=COLLECTIVES.empty(),
        exposed=Intervals.none(),
        undescribed=int(timeline.trace.collectives["kernel"].null_count()),
        kernels=timeline.trace.kernels.height,
        notes=tuple(quality_notes(timeline, window) if notes is None else notes),
    )
    if rank.device is None:
        return summary
    busy = busy_time(timeline, rank.device)
    edges = np.array([window.start_ns]), np.array([window.end_ns])
    budgets = time_budgets(timeline, window) if budgets is None else budgets
    own_budget = [budget.parts for budget in budgets if budget.device == rank.device]
    return replace(
        summary,
        times=times_between(busy, *edges).row(0, named=True),
        budget=own_budget[0] if own_budget else summary.budget,
        steps=step_times(timeline, busy, frozenset(step.index for step in window.steps)),
        collectives=rank_collectives(timeline, rank.device, busy, window),
        exposed=busy.exposed,
    )
