"""The timelines of a report: of one profile, and of a run whose ranks are in separate files.

The timeline of a run has the GPU tracks of all files on one clock. The tracks of each file are those of its own
timeline (`timeline_view` without host threads), moved to the common clock that the collectives define
(`RanksResult.alignment`). Each mark is moved by the shift at its begin, so that clock drift is corrected. Links and the
worst waits count from the first event of the run on that clock.
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


#: Rows of the table of worst waits below the timeline of a run.
_WORST: Final = 8

#: Ranks whose tracks are shown; more would be longer than a screen.
_DRAWN: Final = 16

#: Keyboard controls of a timeline, for its alternative text.
_KEYS: Final = (
    "W and S or the arrow keys up and down zoom, A and D or left and right pan, a comma and a full stop go from mark "
    "to mark, a slash searches."
)


def timeline_data(timeline: Timeline, window: Window, moments: Iterable[Moment]) -> dict[str, Any]:
    """The `timeline` of a report's JSON: the origin of its clock, and the worst moments of the findings.

    `from_ns` of a moment counts from `origin_ns`, as its link does; `claimed_ns` is the part of its `duration_ns` that
    its finding claims.
    """
    origin = origin_ns(timeline, window)
    rows = [
        {**vars(moment), "from_ns": moment.start_ns - origin, "duration_ns": moment.end_ns - moment.start_ns}
        for moment in moments
    ]
    return {"origin_ns": origin, "moments": {"rows": rows}}


def timeline_blocks(numbers: Numbers) -> Iterator[Block]:
    """The timeline of a profile, with the worst moments in a table."""
    most = MOST_MARKS // 2 // numbers.beside if numbers.beside > 1 else MOST_MARKS
    view = timeline_view(numbers.timeline, numbers.window, numbers.diagnosis, numbers.budgets, most)
    if not len(view.levels[0].row):
        yield quiet("The profile holds no events with a duration.")
        return
    step, opened = view.opens_step, "the analysed window, "
    if step is not None:
        opened = f"step {step.index}, the {'only one' if len(view.window.steps) == 1 else 'one of median length'} ("
    length = f"{fmt.duration((step or view.window).duration_ns)}{')' if step is not None else ''}"
    marked = " The worst moments of each finding are marked; follow a link to jump there." if view.moments else ""
    yield Paragraph(f"It opens on {opened}{length}.{marked}")
    on_gpus = [track for track in view.tracks if track.kind in ("idle", "stream")]
    counts = (
        fmt.plural(len({track.owner[0] for track in on_gpus}), "GPU"),
        fmt.plural(sum(track.kind == "stream" for track in on_gpus), "stream"),
        fmt.plural(len({track.owner for track in view.tracks if track not in on_gpus}), "host thread"),
    )
    caption = "Timeline: every GPU stream and host thread; idle time by its cause"
    heading = ("Finding", "What", "GPU", "From", "Length", "Cost") if view.moments else ()
    rows = (_moment_row(view, moment) for moment in view.moments)
    yield _drawn(view, "", caption, ", ".join(counts), "moments", heading, rows)
    yield quiet(_thinned_text(view.thinned, view))


def _drawn(
    view: TimelineView, at: str, caption: str, what: str, worst: str, heading: tuple[str, ...], rows: Iterable[ViewRow]
) -> View:
    """The timeline of `what` (`at` prefixes its id), with a table of the worst moments or waits."""
    length = fmt.duration(view.end_ns - view.origin_ns)
    alt = f"Timeline of {what} over {length}. {_KEYS} The worst {worst} are in the table below."
    return View(f"{at}timeline-view", "timeline", caption, alt, packed(view), heading, tuple(rows))


def with_moments(numbers: Numbers, blocks: Iterable[Block | Section]) -> Iterator[Block | Section]:
    """The blocks, with links to the worst moments added to sections of findings (`finding-ID`), after the claim."""
    moments = numbers.diagnosis.moments if numbers.diagnosis is not None else ()
    origin = origin_ns(numbers.timeline, numbers.window) if moments else 0
    jumps: dict[str, list[tuple[str, str]]] = {}
    for moment in moments:
        start, end = moment.start_ns - origin, moment.end_ns - origin
        words = f"{fmt.duration(end - start)} at {fmt.duration(start)}"
        jumps.setdefault(f"finding-{moment.finding}", []).append((f"{start}-{end}", words))
    for block in blocks:
        if isinstance(block, Section) and block.id in jumps:
            links = Jumps("timeline", "In the timeline, the worst:", tuple(jumps[block.id]))
            yield replace(block, blocks=(*block.blocks[:1], links, *block.blocks[1:]))
        else:
            yield block


def _moment_row(view: TimelineView, moment: Moment) -> ViewRow:
    times = (moment.start_ns - view.origin_ns, moment.end_ns - moment.start_ns, moment.claimed_ns)
    cells = (moment.finding, _moment_words(moment), str(moment.device), *map(fmt.duration, times))
    return ViewRow(view.link(moment.start_ns, moment.end_ns), cells)


def _moment_words(moment: Moment) -> str:
    """What a moment consists of: a pause by its cause, work by its name, several by their numbers and the costliest."""
    if moment.what == "pause":
        return f"pause: {fmt.cause_title(moment.name)}"
    if moment.what == "work":
        return fmt.shorten_kernel(moment.name)
    counts = ((moment.pauses, "pause", "pauses"), (moment.pieces - moment.pauses, "piece of work", "pieces of work"))
    pieces = " and ".join(fmt.plural(number, *words) for number, *words in counts if number)
    title = fmt.cause_title(moment.name)  # that of a kernel is its name
    return f"{pieces}, the costliest: {fmt.shorten_kernel(title) if title == moment.name else title}"


def _thinned_text(thinned: Thinned, view: TimelineView) -> str:
    threads_text = f" {fmt.plural(thinned.threads, 'thread')} with fewer events left out." if thinned.threads else ""
    origin_text = f" Times count from the first event of the profile, {fmt.count(view.origin_ns)} ns on its own clock."
    if not thinned.in_blocks:
        return f"All {fmt.count(thinned.events)} events are drawn, zoomed in one by one.{threads_text}{origin_text}"
    return (
        f"Of {fmt.count(thinned.events)} events {fmt.count(thinned.events - thinned.in_blocks)} are drawn one by one: "
        f"those of the step it opens on and of the worst moments, and those that last {fmt.duration(thinned.width_ns)} "
        f"or longer or stand alone. The other {fmt.count(thinned.in_blocks)} stand in {fmt.count(thinned.blocks)} "
        "blocks, each with its number of events and their summed time, coloured like its longest."
        f"{threads_text}{origin_text}"
    )


def run_timeline(run: RunDiagnosis, profiles: Sequence[Numbers]) -> Section | None:
    """The section with the common timeline; None if all ranks are in one file, which has a timeline of its own.

    The profiles are the files of the run, in the order in which they were diagnosed.
    """
    if len({file for file, _ in run.origin.values()}) < 2:
        return None
    section = Section(f"{RUN}timeline", "All ranks on one clock", tuple(_run_blocks(run, profiles)))
    return Section(f"{RUN}timeline-room", "Timeline", (), (section,))


def _run_blocks(run: RunDiagnosis, profiles: Sequence[Numbers]) -> Iterator[Block]:
    result = run.run.result
    view = run_view(run, profiles)
    yield Paragraph(
        "What every GPU of the run did, and when. A rank that waits for another spins inside its communication "
        "kernel, so a long kernel next to a short one is a wait; idle time is coloured by its cause."
    )
    streams = fmt.plural(sum(track.kind == "stream" for track in view.tracks), "stream")
    caption = f"Timeline of {fmt.plural(len({track.group for track in view.tracks}), 'GPU')} on the common clock"
    heading = ("Collective", "From", "First to last", "Waited", "Last rank")
    yield _drawn(view, RUN, caption, f"{streams} on the common clock", "waits", heading, _worst_waits(result, view))
    left_out = len(run.ranks) - _DRAWN
    more = f" Of {len(run.ranks)} ranks {_DRAWN} are drawn." if left_out > 0 else ""
    yield quiet(
        f"Clocks: {clock_sentence(result)}.{more} Host threads are in the timeline of each rank. Times count from the "
        "first event of all."
    )


def _worst_waits(result: RanksResult, view: TimelineView) -> Iterator[ViewRow]:
    """The collectives with the most waiting, each linked to its span from first arrival to end of the transfer."""
    worst = result.waits.collectives.sort(["wait_ns", "collective"], descending=[True, False]).head(_WORST)
    for row in worst.iter_rows(named=True):
        start, arrival = row["start_ns"], row["arrival_ns"]
        if start >= view.origin_ns:
            times = map(fmt.duration, (start - view.origin_ns, arrival, row["wait_ns"]))
            cells = (f"{row['kind']} {row['collective']}", *times, str(row["last_rank"]))
            yield ViewRow(view.link(start, start + arrival + row["transfer_ns"]), cells)


@dataclass(frozen=True, eq=False)
class _Shift:
    """Converts a file's clock to the common one: known at some times, linearly interpolated in between."""

    at: Int64s  # times in the file's clock, ascending
    added_ns: Int64s  # difference of the clocks at each of them

    def __call__(self, times: Int64s) -> Int64s:
        if not len(self.at):
            return times
        added_ns: Int64s = np.rint(np.interp(times - self.at[0], self.at - self.at[0], self.added_ns)).astype(np.int64)
        return times + added_ns

    def one(self, time: int) -> int:
        return int(self(np.array([time], dtype=np.int64))[0])


def _shifts(run: RunDiagnosis) -> dict[int, _Shift]:
    """The clock shift of each file, known at the begin of each of its collectives."""
    result = run.run.result
    shifts: dict[int, _Shift] = {}
    first = 0
    for rank, summary in zip(result.ranks, result.summaries, strict=True):
        own = summary.collectives["start_ns"].to_numpy()
        common = result.alignment.start[first : first + len(own)]
        first += len(own)
        at, index = np.unique(own, return_index=True)
        if rank in run.origin:
            shifts.setdefault(run.origin[rank][0], _Shift(at, (common - own)[index]))
    return shifts


def _groups(run: RunDiagnosis, file: int) -> dict[int | None, str]:
    """The rank of each GPU of a file by device; if the file has only one rank, under the key None."""
    ranks = {rank: run.run.summary(rank) for rank, (number, _) in run.origin.items() if number == file}
    if len(ranks) == 1:
        return {None: f"rank {next(iter(ranks))}"}
    return {summary.device: f"rank {rank}" for rank, summary in sorted(ranks.items(), reverse=True)}


def run_view(run: RunDiagnosis, profiles: Sequence[Numbers]) -> TimelineView:
    """The GPU tracks of all files on the common clock, as one view that opens on a step of the first file."""
    drawn = dict(sorted(run.origin.items())[:_DRAWN])
    files = list(dict.fromkeys(file for file, _ in drawn.values()))
    most, shifts = MOST_MARKS // len(files), _shifts(run)
    views = [
        timeline_view(profile.timeline, profile.window, budgets=profile.budgets, most_marks=most, hosts=False)
        for profile in (profiles[file] for file in files)
    ]
    pairs = [(view, shifts[file]) for view, file in zip(views, files, strict=True)]
    tracks, names, finest, details = _merged(pairs, [_groups(run, file) for file in files])
    first, shift = pairs[0]
    steps = tuple(
        replace(step, start_ns=shift.one(step.start_ns), end_ns=shift.one(step.end_ns)) for step in first.steps
    )
    in_window = {step.index for step in first.window.steps}
    window = replace(
        first.window,
        start_ns=min(to_common.one(view.window.start_ns) for view, to_common in pairs),
        end_ns=max(to_common.one(view.window.end_ns) for view, to_common in pairs),
        steps=tuple(step for step in steps if step.index in in_window),
    )
    events, in_blocks, blocks = (
        sum(getattr(view.thinned, name) for view in views) for name in ("events", "in_blocks", "blocks")
    )
    return TimelineView(
        origin_ns=min(to_common.one(view.origin_ns) for view, to_common in pairs),
        end_ns=max(to_common.one(view.end_ns) for view, to_common in pairs),
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
    """Tracks, names, marks and details of several views, with the idle rows of all views first and new name indices."""
    names: dict[tuple[str, str, str | None], int] = {}
    tracks: list[Track] = []
    marks: list[Marks] = []
    details: list[tuple[Int64s, ...]] = []
    idle_rows = [sum(track.rows for track in view.tracks if track.kind == "idle") for view, _ in pairs]
    first_idle, first_other = 0, sum(idle_rows)
    for (view, shift), idle, group in zip(pairs, idle_rows, groups, strict=True):
        own_marks, own_details = view.levels[0], view.details
        after_idle = first_other - idle  # added to the row of a stream, which counts the view's own idle rows
        renamed = np.array([names.setdefault(name, len(names)) for name in view.names] or [0], dtype=np.int64)
        start = shift(own_marks.start_ns)
        marks.append(
            replace(
                own_marks,
                row=own_marks.row + np.where(own_marks.row < idle, first_idle, after_idle),
                start_ns=start,
                end_ns=start + (own_marks.end_ns - own_marks.start_ns),
                name=renamed[own_marks.name],
            )
        )
        launched = np.where(own_details.launch_ns >= 0, shift(own_details.launch_ns), -1)
        where = np.where(own_details.where > 0, renamed[np.maximum(own_details.where - 1, 0)] + 1, 0)
        details.append((launched, np.zeros_like(own_details.calls_row), where, own_details.bytes))
        for track in view.tracks:
            rank = group.get(None) or group.get(track.owner[0], "rank not known")
            row = track.first + (first_idle if track.kind == "idle" else after_idle)
            tracks.append(replace(track, first=row, group=f"{rank} · {track.group}"))
        first_idle += idle
        first_other += sum(track.rows for track in view.tracks) - idle
    finest = Marks.joined(marks, np.concatenate([level.parts for level in marks], axis=1))
    order = np.argsort(finest.row, kind="stable")  # within a row the marks are in order already
    merged_details = Details(*(np.concatenate(column)[order] for column in zip(*details, strict=True)))
    return tuple(tracks), tuple(names), finest.taken(order), merged_details
