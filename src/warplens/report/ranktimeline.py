"""The timeline of a run whose ranks are files of their own: the GPU tracks of all of them, on one clock.

Each file's tracks are made as for its own timeline (`timeline_view`, without its host threads) and moved to the clock
that the collectives gave (`RanksResult.alignment`): every mark by the shift that holds at its begin, so that a drift is
followed. Links and worst waits count from the first event of the run on that clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.report import text as fmt
from warplens.report.document import Block, Paragraph, Section, View, ViewRow, quiet
from warplens.report.ranks import clock_sentence
from warplens.report.run import RUN
from warplens.report.timeline import MOST_MARKS, coarser_levels, timeline_view
from warplens.report.tracks import Details, Marks, Thinned, TimelineView, Track
from warplens.report.tracks import packed as packed_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.profile.schema import Int64s
    from warplens.report.overview.numbers import Numbers

#: Waits that the table below the timeline leads to.
_WORST: Final = 8

#: Ranks whose tracks are shown; more would be longer than any screen.
_DRAWN: Final = 16


@dataclass(frozen=True, eq=False)
class _Shift:
    """From a file's clock to the common one, known at some times and in between on straight lines."""

    at: Int64s
    added: Int64s

    def __call__(self, times: Int64s) -> Int64s:
        if not len(self.at):
            return times
        added: Int64s = np.rint(np.interp(times - self.at[0], self.at - self.at[0], self.added)).astype(np.int64)
        return times + added

    def one(self, time: int) -> int:
        return int(self(np.array([time], dtype=np.int64))[0])


def run_timeline(found: RunDiagnosis, profiles: Sequence[Numbers]) -> Section | None:
    """The room with the common timeline; None where the ranks are of one file, which has its own.

    Args:
        profiles: its files, in the order in which they were diagnosed.
    """
    if len({file for file, _ in found.origin.values()}) < 2:
        return None
    inside = Section(f"{RUN}timeline", "All ranks on one clock", tuple(_blocks(found, profiles)))
    return Section(f"{RUN}timeline-room", "Timeline", (), (inside,))


def _blocks(found: RunDiagnosis, profiles: Sequence[Numbers]) -> Iterator[Block]:
    result = found.run.result
    view = run_view(found, profiles)
    yield Paragraph(
        "What every GPU of the run did, and when. A rank that waits for another spins inside its communication "
        "kernel, so a long kernel next to a short one is a wait; idle time is coloured by its cause."
    )
    yield View(
        id=f"{RUN}timeline-view",
        kind="timeline",
        caption=f"Timeline of {fmt.plural(len({track.group for track in view.tracks}), 'GPU')} on the common clock",
        alt=_in_words(view),
        data=packed_view(view),
        heading=("Collective", "From", "First to last", "Waited", "Last rank"),
        rows=tuple(_worst_waits(result, view)),
    )
    left_out = len(found.ranks) - _DRAWN
    more = f" Of {len(found.ranks)} ranks {_DRAWN} are drawn." if left_out > 0 else ""
    yield quiet(
        f"Clocks: {clock_sentence(result)}.{more} Host threads are in the timeline of each rank. Times count from the "
        "first event of all."
    )


def run_view(found: RunDiagnosis, profiles: Sequence[Numbers]) -> TimelineView:
    """The GPU tracks of all files on the common clock, as one view."""
    shown = dict(sorted(found.origin.items())[:_DRAWN])
    files = list(dict.fromkeys(file for file, _ in shown.values()))
    shifts = _shifts(found)
    views = [
        timeline_view(
            profiles[file].timeline,
            profiles[file].window,
            budgets=profiles[file].budgets,
            most_marks=MOST_MARKS // len(files),
            hosts=False,
        )
        for file in files
    ]
    groups = [_groups(found, file) for file in files]
    return _merged(views, [shifts[file] for file in files], groups)


def _groups(found: RunDiagnosis, file: int) -> dict[int | None, str]:
    """The rank that each GPU of a file is; under None the only one."""
    ranks = {rank: found.run.summary(rank) for rank, (number, _) in found.origin.items() if number == file}
    if len(ranks) == 1:
        return {None: f"rank {next(iter(ranks))}"}
    return {summary.device: f"rank {rank}" for rank, summary in sorted(ranks.items(), reverse=True)}


def _shifts(found: RunDiagnosis) -> dict[int, _Shift]:
    """By file, what its clock is shifted by: at the begin of each of its collectives."""
    result = found.run.result
    shifts: dict[int, _Shift] = {}
    first = 0
    for rank, summary in zip(result.ranks, result.summaries, strict=True):
        own = summary.collectives["start_ns"].to_numpy()
        common = result.alignment.start[first : first + len(own)]
        first += len(own)
        at, place = np.unique(own, return_index=True)
        if rank in found.origin:
            shifts.setdefault(found.origin[rank][0], _Shift(at, (common - own)[place]))
    return shifts


def _merged(
    views: Sequence[TimelineView], shifts: Sequence[_Shift], groups: Sequence[dict[int | None, str]]
) -> TimelineView:
    """Several views as one: the idle rows of all stand first, then the streams; names are numbered anew."""
    idle_rows = [sum(track.rows for track in view.tracks if track.kind == "idle") for view in views]
    other_rows = [sum(track.rows for track in view.tracks if track.kind != "idle") for view in views]
    names: dict[tuple[str, str, str | None], int] = {}
    tracks, columns, details, idle_parts = [], [], [], []
    for number, (view, shift) in enumerate(zip(views, shifts, strict=True)):
        finest, known = view.levels[0], view.details
        first_idle = sum(idle_rows[:number])
        first_other = sum(idle_rows) + sum(other_rows[:number]) - idle_rows[number]
        renamed = np.array([names.setdefault(name, len(names)) for name in view.names] or [0], dtype=np.int64)
        start = shift(finest.start_ns)
        columns.append(
            (
                np.where(finest.row < idle_rows[number], finest.row + first_idle, finest.row + first_other),
                start,
                start + (finest.end_ns - finest.start_ns),
                renamed[finest.name],
                finest.longest_ns,
                finest.count,
                finest.busy_ns,
            )
        )
        launched = np.where(known.launch_ns >= 0, shift(known.launch_ns), -1)
        where = np.where(known.where > 0, renamed[np.maximum(known.where - 1, 0)] + 1, 0)
        details.append((launched, np.zeros_like(known.calls_row), where, known.bytes))
        idle_parts.append(finest.parts)
        for track in view.tracks:
            offset = first_idle if track.kind == "idle" else first_other
            rank = groups[number].get(None) or groups[number].get(track.owner[0], "rank not known")
            tracks.append(replace(track, first=track.first + offset, group=f"{rank} · {track.group}"))
    row, start, end, name, longest, count, busy = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(row, kind="stable")  # within a row the marks are in order already
    finest = Marks(
        max(view.levels[0].width_ns for view in views),
        row[order],
        start[order],
        end[order],
        name[order],
        longest[order],
        count[order],
        busy[order],
        np.concatenate(idle_parts, axis=1),
    )
    found = Details(*(np.concatenate(parts)[order] for parts in zip(*details, strict=True)))
    return _framed(views, shifts, tuple(tracks), finest, found, tuple(names))


def _framed(
    views: Sequence[TimelineView],
    shifts: Sequence[_Shift],
    tracks: tuple[Track, ...],
    finest: Marks,
    details: Details,
    names: tuple[tuple[str, str, str | None], ...],
) -> TimelineView:
    """The view with its span: from the first start to the last end of all, opened on a step of the first file."""
    first, shift = views[0], shifts[0]
    steps = tuple(
        replace(step, start_ns=shift.one(step.start_ns), end_ns=shift.one(step.end_ns)) for step in first.steps
    )
    spans = [
        (move.one(view.window.start_ns), move.one(view.window.end_ns), move.one(view.origin_ns), move.one(view.end_ns))
        for view, move in zip(views, shifts, strict=True)
    ]
    counted = {step.index for step in first.window.steps}
    window = replace(
        first.window,
        start_ns=min(begin for begin, *_ in spans),
        end_ns=max(end for _, end, *_ in spans),
        steps=tuple(step for step in steps if step.index in counted),
    )
    thinned = [view.thinned for view in views]
    return TimelineView(
        min(origin for *_, origin, _ in spans),
        max(end for *_, end in spans),
        window,
        (shift.one(first.opens[0]), shift.one(first.opens[1])),
        first.opens_step,
        names,
        tracks,
        (finest, *coarser_levels(finest)),
        details,
        (),
        Thinned(
            finest.width_ns,
            sum(each.events for each in thinned),
            sum(each.in_blocks for each in thinned),
            sum(each.blocks for each in thinned),
            0,
        ),
        steps,
    )


def _worst_waits(result: RanksResult, view: TimelineView) -> Iterator[ViewRow]:
    """The collectives with most waiting, each with the span from the first arrival to the end of the transfer."""
    worst = result.waits.collectives.sort(["wait_ns", "collective"], descending=[True, False]).head(_WORST)
    for row in worst.iter_rows(named=True):
        end = row["start_ns"] + row["arrival_ns"] + row["transfer_ns"]
        if row["start_ns"] < view.origin_ns:
            continue
        yield ViewRow(
            view.link(row["start_ns"], end),
            (
                f"{row['kind']} {row['collective']}",
                fmt.duration(row["start_ns"] - view.origin_ns),
                fmt.duration(row["arrival_ns"]),
                fmt.duration(row["wait_ns"]),
                str(row["last_rank"]),
            ),
        )


def _in_words(view: TimelineView) -> str:
    streams = sum(track.kind == "stream" for track in view.tracks)
    length = fmt.duration(view.end_ns - view.origin_ns)
    return (
        f"Timeline of {fmt.plural(streams, 'stream')} on the common clock over {length}. W and S or the arrow keys up "
        "and down zoom, A and D or left and right pan, a comma and a full stop go from mark to mark, a slash searches. "
        "The worst waits are in the table below."
    )
