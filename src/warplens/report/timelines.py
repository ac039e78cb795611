"""The timelines of a report: of one profile, and of a run whose ranks are files of their own.

Of a run, the GPU tracks of all files stand on one clock. Each file's tracks are made as for its own timeline
(`timeline_view`, without its host threads) and moved to the clock that the collectives gave (`RanksResult.alignment`):
every mark by the shift that holds at its begin, so that a drift is followed. Links and worst waits count from the first
event of the run on that clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from warplens.report import text as fmt
from warplens.report.document import Block, Jumps, Paragraph, Section, View, ViewRow, quiet
from warplens.report.ranks import clock_sentence
from warplens.report.run import RUN
from warplens.report.timeline import MOST_MARKS, coarser_levels, origin_ns, timeline_view
from warplens.report.tracks import Details, Marks, Thinned, TimelineView, Track, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.diagnosis.moments import Moment
    from warplens.profile.schema import Int64s
    from warplens.report.overview.numbers import Numbers


#: Waits that the table below the timeline of a run leads to.
_WORST: Final = 8

#: Ranks whose tracks are shown; more would be longer than any screen.
_DRAWN: Final = 16

#: How a timeline is used, for those who cannot see it.
_KEYS: Final = (
    "W and S or the arrow keys up and down zoom, A and D or left and right pan, a comma and a full stop go from mark "
    "to mark, a slash searches."
)


def timeline_data(timeline: Timeline, window: Window, moments: Iterable[Moment]) -> dict[str, Any]:
    """The `timeline` of a report's JSON: where its clock begins, and the worst moments of the findings.

    Of each moment `from_ns` counts from `origin_ns`, as its link does, and `claimed_ns` is what its finding claims of
    its `duration_ns`.
    """
    origin = origin_ns(timeline, window)
    rows = [
        {**vars(moment), "from_ns": moment.start_ns - origin, "duration_ns": moment.end_ns - moment.start_ns}
        for moment in moments
    ]
    return {"origin_ns": origin, "moments": {"rows": rows}}


def timeline_blocks(numbers: Numbers) -> Iterator[Block]:
    """What happened when, to zoom into, and the worst moments in words."""
    most = MOST_MARKS // 2 // numbers.beside if numbers.beside > 1 else MOST_MARKS
    view = timeline_view(numbers.timeline, numbers.window, numbers.diagnosis, numbers.budgets, most)
    if not len(view.levels[0].row):
        yield quiet("The profile holds no events with a duration.")
        return
    step, which = view.opens_step, "the analysed window, "
    if step is not None:
        which = f"step {step.index}, the {'only one' if len(view.window.steps) == 1 else 'one of median length'} ("
    length = f"{fmt.duration((step or view.window).duration_ns)}{')' if step is not None else ''}"
    marked = " The worst moments of each finding are marked; follow a link to jump there." if view.moments else ""
    yield Paragraph(f"It opens on {which}{length}.{marked}")
    on_gpus = [track for track in view.tracks if track.kind in ("idle", "stream")]
    counts = (
        fmt.plural(len({track.owner[0] for track in on_gpus}), "GPU"),
        fmt.plural(sum(track.kind == "stream" for track in on_gpus), "stream"),
        fmt.plural(len({track.owner for track in view.tracks if track not in on_gpus}), "host thread"),
    )
    yield View(
        id="timeline-view",
        kind="timeline",
        caption="Timeline: every GPU stream and host thread; idle time by its cause",
        alt=f"Timeline of {', '.join(counts)} over {fmt.duration(view.end_ns - view.origin_ns)}. {_KEYS} The worst "
        "moments are in the table below.",
        data=packed(view),
        heading=("Finding", "GPU", "From", "Length", "Cost", "What") if view.moments else (),
        rows=tuple(_moment_row(view, moment) for moment in view.moments),
    )
    yield quiet(_thinned_text(view.thinned, view))


def with_moments(numbers: Numbers, blocks: Iterable[Block | Section]) -> Iterator[Block | Section]:
    """The sections of findings (`finding-ID`), each with links to its worst moments after its claim."""
    moments = numbers.diagnosis.moments if numbers.diagnosis is not None else ()
    origin = origin_ns(numbers.timeline, numbers.window) if moments else 0
    jumps: dict[str, list[tuple[str, str]]] = {}
    for moment in moments:
        start, end = moment.start_ns - origin, moment.end_ns - origin
        words = f"{fmt.duration(end - start)} at {fmt.duration(start)}"
        jumps.setdefault(f"finding-{moment.finding}", []).append((f"{start}-{end}", words))
    for block in blocks:
        if isinstance(block, Section) and block.id in jumps:
            mine = Jumps("timeline", "In the timeline, the worst:", tuple(jumps[block.id]))
            yield replace(block, blocks=(*block.blocks[:1], mine, *block.blocks[1:]))
        else:
            yield block


def _moment_row(view: TimelineView, moment: Moment) -> ViewRow:
    if moment.what == "pause":
        what = f"pause: {fmt.cause_title(moment.name)}"
    elif moment.what == "work":
        what = fmt.shorten_kernel(moment.name)
    else:
        what = f"{fmt.count(moment.pieces)} short pauses or kernels"
    times = (moment.start_ns - view.origin_ns, moment.end_ns - moment.start_ns, moment.claimed_ns)
    cells = (moment.finding, str(moment.device), *map(fmt.duration, times), what)
    return ViewRow(view.link(moment.start_ns, moment.end_ns), cells)


def _thinned_text(thinned: Thinned, view: TimelineView) -> str:
    threads = f" {fmt.plural(thinned.threads, 'thread')} with fewer events left out." if thinned.threads else ""
    zero = f" Times count from the first event of the profile, {fmt.count(view.origin_ns)} ns on its own clock."
    if not thinned.in_blocks:
        return f"All {fmt.count(thinned.events)} events are drawn, zoomed in one by one.{threads}{zero}"
    return (
        f"Of {fmt.count(thinned.events)} events {fmt.count(thinned.events - thinned.in_blocks)} are drawn one by one: "
        f"those of the step it opens on and of the worst moments, and those that last {fmt.duration(thinned.width_ns)} "
        f"or longer or stand alone. The other {fmt.count(thinned.in_blocks)} stand in {fmt.count(thinned.blocks)} "
        f"blocks, each with its number of events and their summed time, coloured like its longest.{threads}{zero}"
    )


def run_timeline(found: RunDiagnosis, profiles: Sequence[Numbers]) -> Section | None:
    """The room with the common timeline; None where the ranks are of one file, which has its own.

    Args:
        profiles: its files, in the order in which they were diagnosed.
    """
    if len({file for file, _ in found.origin.values()}) < 2:
        return None
    inside = Section(f"{RUN}timeline", "All ranks on one clock", tuple(_run_blocks(found, profiles)))
    return Section(f"{RUN}timeline-room", "Timeline", (), (inside,))


def _run_blocks(found: RunDiagnosis, profiles: Sequence[Numbers]) -> Iterator[Block]:
    result = found.run.result
    view = run_view(found, profiles)
    yield Paragraph(
        "What every GPU of the run did, and when. A rank that waits for another spins inside its communication "
        "kernel, so a long kernel next to a short one is a wait; idle time is coloured by its cause."
    )
    streams = fmt.plural(sum(track.kind == "stream" for track in view.tracks), "stream")
    yield View(
        id=f"{RUN}timeline-view",
        kind="timeline",
        caption=f"Timeline of {fmt.plural(len({track.group for track in view.tracks}), 'GPU')} on the common clock",
        alt=f"Timeline of {streams} on the common clock over {fmt.duration(view.end_ns - view.origin_ns)}. {_KEYS} "
        "The worst waits are in the table below.",
        data=packed(view),
        heading=("Collective", "From", "First to last", "Waited", "Last rank"),
        rows=tuple(_worst_waits(result, view)),
    )
    left_out = len(found.ranks) - _DRAWN
    more = f" Of {len(found.ranks)} ranks {_DRAWN} are drawn." if left_out > 0 else ""
    yield quiet(
        f"Clocks: {clock_sentence(result)}.{more} Host threads are in the timeline of each rank. Times count from the "
        "first event of all."
    )


def _worst_waits(result: RanksResult, view: TimelineView) -> Iterator[ViewRow]:
    """The collectives with most waiting, each with the span from the first arrival to the end of the transfer."""
    worst = result.waits.collectives.sort(["wait_ns", "collective"], descending=[True, False]).head(_WORST)
    for row in worst.iter_rows(named=True):
        start, arrival = row["start_ns"], row["arrival_ns"]
        if start >= view.origin_ns:
            times = map(fmt.duration, (start - view.origin_ns, arrival, row["wait_ns"]))
            cells = (f"{row['kind']} {row['collective']}", *times, str(row["last_rank"]))
            yield ViewRow(view.link(start, start + arrival + row["transfer_ns"]), cells)


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


def _groups(found: RunDiagnosis, file: int) -> dict[int | None, str]:
    """The rank that each GPU of a file is; under None the only one."""
    ranks = {rank: found.run.summary(rank) for rank, (number, _) in found.origin.items() if number == file}
    if len(ranks) == 1:
        return {None: f"rank {next(iter(ranks))}"}
    return {summary.device: f"rank {rank}" for rank, summary in sorted(ranks.items(), reverse=True)}


def run_view(found: RunDiagnosis, profiles: Sequence[Numbers]) -> TimelineView:
    """The GPU tracks of all files on the common clock, as one view; it opens on a step of the first file."""
    shown = dict(sorted(found.origin.items())[:_DRAWN])
    files = list(dict.fromkeys(file for file, _ in shown.values()))
    most, by_file = MOST_MARKS // len(files), _shifts(found)
    views = [
        timeline_view(each.timeline, each.window, budgets=each.budgets, most_marks=most, hosts=False)
        for each in (profiles[file] for file in files)
    ]
    pairs = [(view, by_file[file]) for view, file in zip(views, files, strict=True)]
    tracks, names, finest, details = _merged(pairs, [_groups(found, file) for file in files])
    first, shift = pairs[0]
    steps = tuple(
        replace(step, start_ns=shift.one(step.start_ns), end_ns=shift.one(step.end_ns)) for step in first.steps
    )
    counted = {step.index for step in first.window.steps}
    window = replace(
        first.window,
        start_ns=min(move.one(view.window.start_ns) for view, move in pairs),
        end_ns=max(move.one(view.window.end_ns) for view, move in pairs),
        steps=tuple(step for step in steps if step.index in counted),
    )
    events, in_blocks, blocks = (
        sum(getattr(view.thinned, name) for view in views) for name in ("events", "in_blocks", "blocks")
    )
    return TimelineView(
        origin_ns=min(move.one(view.origin_ns) for view, move in pairs),
        end_ns=max(move.one(view.end_ns) for view, move in pairs),
        window=window,
        opens=(shift.one(first.opens[0]), shift.one(first.opens[1])),
        opens_step=first.opens_step,
        names=names,
        tracks=tracks,
        levels=(finest, *coarser_levels(finest)),
        details=details,
        moments=(),
        thinned=Thinned(finest.width_ns, events, in_blocks, blocks, 0),
        steps=steps,
    )


def _merged(
    pairs: Sequence[tuple[TimelineView, _Shift]], groups: Sequence[dict[int | None, str]]
) -> tuple[tuple[Track, ...], tuple[tuple[str, str, str | None], ...], Marks, Details]:
    """Tracks, names, marks and details of several views: idle rows of all stand first, names are numbered anew."""
    names: dict[tuple[str, str, str | None], int] = {}
    tracks: list[Track] = []
    marks: list[Marks] = []
    details: list[tuple[Int64s, ...]] = []
    idle_rows = [sum(track.rows for track in view.tracks if track.kind == "idle") for view, _ in pairs]
    first_idle, first_other = 0, sum(idle_rows)
    for (view, shift), idle, group in zip(pairs, idle_rows, groups, strict=True):
        own, known = view.levels[0], view.details
        after_idle = first_other - idle  # added to the row of a stream, which counts the view's own idle rows
        renamed = np.array([names.setdefault(name, len(names)) for name in view.names] or [0], dtype=np.int64)
        start = shift(own.start_ns)
        marks.append(
            replace(
                own,
                row=own.row + np.where(own.row < idle, first_idle, after_idle),
                start_ns=start,
                end_ns=start + (own.end_ns - own.start_ns),
                name=renamed[own.name],
            )
        )
        launched = np.where(known.launch_ns >= 0, shift(known.launch_ns), -1)
        where = np.where(known.where > 0, renamed[np.maximum(known.where - 1, 0)] + 1, 0)
        details.append((launched, np.zeros_like(known.calls_row), where, known.bytes))
        for track in view.tracks:
            rank = group.get(None) or group.get(track.owner[0], "rank not known")
            row = track.first + (first_idle if track.kind == "idle" else after_idle)
            tracks.append(replace(track, first=row, group=f"{rank} · {track.group}"))
        first_idle += idle
        first_other += sum(track.rows for track in view.tracks) - idle
    finest = Marks.joined(marks, np.concatenate([each.parts for each in marks], axis=1))
    order = np.argsort(finest.row, kind="stable")  # within a row the marks are in order already
    found = Details(*(np.concatenate(column)[order] for column in zip(*details, strict=True)))
    return tuple(tracks), tuple(names), finest.taken(order), found
