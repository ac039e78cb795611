"""The timeline in a report: its section, the worst moments of findings, and its data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warplens.report import text as fmt
from warplens.report.document import Block, Jumps, Paragraph, Section, View, ViewRow, quiet
from warplens.report.timeline import MOST_MARKS, origin_ns, timeline_view
from warplens.report.tracks import Thinned, TimelineView, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis.moments import Moment
    from warplens.report.overview.numbers import Numbers


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
    yield Paragraph(_opening(view))
    yield View(
        id="timeline-view",
        kind="timeline",
        caption="Timeline: every GPU stream and host thread; idle time by its cause",
        alt=_in_words(view),
        data=packed(view),
        heading=("Finding", "GPU", "From", "Length", "Of it claimed", "What") if view.moments else (),
        rows=tuple(_moment_row(view, moment) for moment in view.moments),
    )
    yield quiet(_thinned_text(view.thinned, view))


def with_moments(numbers: Numbers, blocks: Iterable[Block | Section]) -> Iterator[Block | Section]:
    """The sections of findings (`finding-ID`), each with links to its worst moments after its claim."""
    moments = numbers.diagnosis.moments if numbers.diagnosis is not None else ()
    origin = origin_ns(numbers.timeline, numbers.window) if moments else 0
    for block in blocks:
        if not isinstance(block, Section):
            yield block
            continue
        mine = tuple(
            (f"{moment.start_ns - origin}-{moment.end_ns - origin}", _moment_words(moment, origin))
            for moment in moments
            if block.id == f"finding-{moment.finding}"
        )
        jumps = (Jumps("timeline", "In the timeline, the worst:", mine),) if mine else ()
        yield replace(block, blocks=(*block.blocks[:1], *jumps, *block.blocks[1:]))


def _moment_words(moment: Moment, origin: int) -> str:
    length = fmt.duration(moment.end_ns - moment.start_ns)
    return f"{length} at {fmt.duration(moment.start_ns - origin)}"


def _opening(view: TimelineView) -> str:
    marked = " The worst moments of each finding are marked; follow a link to jump there." if view.moments else ""
    if view.opens_step is None:
        return f"It opens on the analysed window, {fmt.duration(view.window.duration_ns)}.{marked}"
    step = view.opens_step
    length = fmt.duration(step.duration_ns)
    if len(view.window.steps) == 1:
        return f"It opens on step {step.index}, the only one ({length}).{marked}"
    return f"It opens on step {step.index}, the one of median length ({length}).{marked}"


def _moment_row(view: TimelineView, moment: Moment) -> ViewRow:
    if moment.what == "pause":
        what = f"pause: {fmt.cause_title(moment.name)}"
    elif moment.what == "work":
        what = fmt.shorten_kernel(moment.name)
    else:
        what = f"stretch with {fmt.plural(moment.pieces, 'piece')} of it"
    return ViewRow(
        view.link(moment.start_ns, moment.end_ns),
        (
            moment.finding,
            str(moment.device),
            fmt.duration(moment.start_ns - view.origin_ns),
            fmt.duration(moment.end_ns - moment.start_ns),
            fmt.duration(moment.claimed_ns),
            what,
        ),
    )


def _in_words(view: TimelineView) -> str:
    kinds = [track.kind for track in view.tracks]
    threads = len({track.owner for track in view.tracks if track.kind not in ("idle", "stream")})
    said = [
        fmt.plural(len({track.owner[0] for track in view.tracks if track.kind in ("idle", "stream")}), "GPU"),
        fmt.plural(kinds.count("stream"), "stream"),
        fmt.plural(threads, "host thread"),
    ]
    length = fmt.duration(view.end_ns - view.origin_ns)
    return (
        f"Timeline of {', '.join(said)} over {length}. W and S or the arrow keys up and down zoom, A and D or left and "
        "right pan, a comma and a full stop go from mark to mark, a slash searches. The worst moments are in the table "
        "below."
    )


def _thinned_text(thinned: Thinned, view: TimelineView) -> str:
    threads = f" {fmt.plural(thinned.threads, 'thread')} with fewer events left out." if thinned.threads else ""
    zero = f" Times count from the first event of the profile, {view.origin_ns} ns on its own clock."
    if not thinned.in_blocks:
        return f"All {fmt.count(thinned.events)} events are drawn, zoomed in one by one.{threads}{zero}"
    return (
        f"Of {fmt.count(thinned.events)} events {fmt.count(thinned.events - thinned.in_blocks)} are drawn one by one: "
        f"those of the step it opens on and of the worst moments, and those that last {fmt.duration(thinned.width_ns)} "
        f"or longer or stand alone. The other {fmt.count(thinned.in_blocks)} stand in {fmt.count(thinned.blocks)} "
        f"blocks, each with its number of events and their summed time, coloured like its longest.{threads}{zero}"
    )
