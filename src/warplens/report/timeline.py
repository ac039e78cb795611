"""The timeline of a profile: activity of every GPU stream and host thread over time, and the causes of idle time.

`timeline_view` turns a profile into tracks of marks in precomputed levels of detail, so that a browser draws only as
much as its screen can show. On the finest level every event is a mark. If there are too many events, short ones
outside of the step shown first and of the worst moments are merged into blocks. A block holds the number and the total
duration of its events; sums over a track are the same on every level, and equal those of the tables to the nanosecond.
`warplens.report.timelines` embeds the view in a report.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.api import api_kind
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import numbered, sum_by
from warplens.analysis.intervals import Intervals
from warplens.analysis.timebudget import IDLE_CAUSES, TimeBudget, time_budgets
from warplens.analysis.window import plain_range_name
from warplens.profile.nesting import disjoint_lanes, nested_lanes
from warplens.profile.schema import Bools, Int64s, name_categories
from warplens.report import text as fmt
from warplens.report.theme import call_fill, category_fill, part_fill
from warplens.report.tracks import Details, Marks, Thinned, TimelineView, Track

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Step, Window
    from warplens.diagnosis import Diagnosis


#: Marks of the finest level, all tracks together. A mark takes about 6 bytes of the page, so this many take 2.5 MB.
#: Several profiles on one page share half of it; their tables take the other half.
MOST_MARKS: Final = 400_000

#: Each level merges marks shorter than this many times the width of the level before.
_COARSER: Final = 4

#: The width of the first merged level; shorter than any kernel, so that it never replaces the exact one.
_FINEST_NS: Final = 1_000

#: Doublings of `_FINEST_NS`: more than any int64 number of nanoseconds needs.
_DOUBLINGS: Final = 65

#: A level with fewer marks than this is drawn as it is, whatever the width of the screen.
_COARSE_ENOUGH: Final = 3_000

#: Host threads that get tracks; the least active others are left out, and the page says so.
_MOST_THREADS: Final = 12

#: With more distinct names than this, PyTorch's numbered ranges are shown without their numbers.
_MOST_NAMES: Final = 20_000

#: Full names are cut to this many characters.
_LONGEST_NAME: Final = 600

#: Nested rows that a track shows until it is unfolded; 1 for threads beyond the `_BUSIEST_THREADS`.
_PEEK: Final = {"ranges": 5, "calls": 1, "python": 1, "os": 1, "profiler": 1}
_BUSIEST_THREADS: Final = 2

#: Muted fills of ranges and operators; several, so that neighbours of different names rarely share one.
_RANGE_FILLS: Final = ("reduction", "gather-scatter", "softmax", "sort-topk", "graph", "random")

_LABELS: Final = {
    "ranges": "ranges",
    "python": "Python",
    "calls": "CUDA calls",
    "os": "system calls",
    "profiler": "profiler",
}


@dataclass(frozen=True, eq=False)
class _Layer:
    """Events of one kind. Arrays have one entry an event; `name` counts from 0 within `names`."""

    kind: str
    owners: pl.DataFrame  # distinct pairs of device and stream, or process and thread: `first`, `second`
    owner: Int64s  # row in `owners`
    start_ns: Int64s
    end_ns: Int64s
    name: Int64s
    names: list[tuple[str, str, str | None]]
    nests: bool = True
    idle: Sequence[tuple[Int64s, Int64s]] = ()  # by cause: indices of events, and nanoseconds


@dataclass(frozen=True, eq=False)
class _Events:
    """The events of a layer, sorted by row and time. Events of one row do not overlap."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s
    name: Int64s
    order: Int64s | slice  # their indices in the layer

    @cached_property
    def rows(self) -> list[tuple[int, int]]:
        """For each row with events, the index of its first event and one past its last."""
        bounds = np.flatnonzero(self.row[1:] != self.row[:-1]) + 1
        edges = [0, *bounds.tolist(), len(self.row)]
        return list(pairwise(edges)) if len(self.row) else []

    def touching(self, start_ns: int, end_ns: int) -> Iterator[slice]:
        """The events of each row that overlap a time span, as slices."""
        for first, end in self.rows:
            low = first + int(np.searchsorted(self.end_ns[first:end], start_ns))
            yield slice(low, max(low, first + int(np.searchsorted(self.start_ns[first:end], end_ns))))

    def marks(self, width_ns: int, kept: Bools | None = None) -> Marks:
        """One mark per event, or with a width, blocks of events that are shorter and not kept; without idle parts."""
        count = np.broadcast_to(np.int64(1), len(self.row))  # a view that takes no memory
        duration, no_parts = self.end_ns - self.start_ns, np.zeros((len(IDLE_CAUSES), 0), dtype=np.int64)
        exact = Marks(0, self.row, self.start_ns, self.end_ns, self.name, duration, count, duration, no_parts)
        return exact.merged(width_ns, kept) if width_ns else exact

    def blocks_by_width(self, kept: Bools) -> Int64s:
        """For each doubling of the width, the number of neighbouring pairs that are first merged at it."""
        mergeable = ~kept[1:] & ~kept[:-1] & (self.row[1:] == self.row[:-1])
        duration = self.end_ns - self.start_ns
        needed = np.maximum(duration[1:], duration[:-1])
        needed //= _FINEST_NS
        cell = self.start_ns // _FINEST_NS
        needed |= cell[1:] ^ cell[:-1]  # highest bit: of the longer duration, or of the difference between the cells
        return np.bincount(np.frexp(needed[mergeable].astype(np.float64))[1], minlength=_DOUBLINGS)


def _idle_layer(budgets: Sequence[TimeBudget]) -> _Layer:
    """The idle gaps of each GPU, each named after its main cause."""
    counts = [len(budget.gaps.gaps.starts) for budget in budgets]
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    main, longest = np.zeros(sum(counts), dtype=np.int64), np.zeros(sum(counts), dtype=np.int64)
    parts = []
    for number, cause in enumerate(IDLE_CAUSES):
        of_cause = [(first, budget.gaps.parts[cause]) for first, budget in zip(firsts, budgets, strict=True)]
        of_cause = [(first, part) for first, part in of_cause if part]
        empty = np.zeros(0, dtype=np.int64)
        at = np.concatenate([empty, *(np.arange(part.count)[part.at] + first for first, part in of_cause)])
        ns = np.concatenate([empty, *(part.ns for _, part in of_cause)])
        more = ns > longest[at]
        main[at[more]] = number
        longest[at[more]] = ns[more]
        parts.append((at, ns))
    gaps = [budget.gaps.gaps for budget in budgets] or [Intervals.none()]
    devices = pl.Series("first", [budget.device for budget in budgets], dtype=pl.Int64)
    return _Layer(
        "idle",
        pl.DataFrame([devices, pl.Series("second", [-1] * len(devices), dtype=pl.Int64)]),
        np.repeat(np.arange(len(counts)), counts),
        np.concatenate([gap.starts for gap in gaps]),
        np.concatenate([gap.ends for gap in gaps]),
        main,
        [(f"idle: {fmt.cause_title(cause)}", part_fill("idle", cause), None) for cause in IDLE_CAUSES],
        nests=False,
        idle=parts,
    )


class WorkName(NamedTuple):
    """The label of a piece of GPU work, its colour token, its full name if longer than the label, and its kind."""

    label: str
    fill: str
    full: str | None
    kind: str


def named_work(timeline: Timeline, work: pl.DataFrame, longest: int) -> tuple[Int64s, list[WorkName]]:
    """For each of these rows of `Timeline.work` an index into the list of names, and that list.

    Full names are cut to the `longest` number of characters.
    """
    trace = timeline.trace
    full_names, directions = trace.kernels["full_name"], trace.copies["direction"]
    texts = name_categories(full_names)
    names = []
    for text, kind in zip(texts, categories_of(pl.Series(texts, dtype=full_names.dtype)).cast(pl.String), strict=True):
        label, full = fmt.shorten_kernel(text), fmt.printable(text)[:longest]
        distinct_full = full if full != label else None
        names.append(WorkName(label, category_fill(kind), distinct_full, fmt.category_title(kind)))
    name_of_row, row = np.zeros(work.height, dtype=np.int64), work["row"].to_numpy()
    for kind_of_work, column in (("kernel", full_names), ("copy", directions), ("memset", None), ("graph", None)):
        of_kind = np.flatnonzero((work["kind"] == kind_of_work).to_numpy())
        name_of_row[of_kind] = 0 if kind_of_work == "kernel" else len(names)
        if column is not None:
            name_of_row[of_kind] += column.to_physical().to_numpy()[row[of_kind]]
        if kind_of_work == "copy":
            copied = (f"copy {text}" for text in name_categories(directions))
            names += [WorkName(label, "transfer", None, "copies and fills") for label in copied]
        elif kind_of_work == "memset":
            names.append(WorkName("memory fill", "transfer", None, "copies and fills"))
        elif kind_of_work == "graph":
            names.append(WorkName("CUDA graph", "graph", None, "CUDA graphs, inside hidden"))
    return name_of_row, names


def _work_layer(timeline: Timeline) -> _Layer:
    work = timeline.work
    code, names = named_work(timeline, work, _LONGEST_NAME)
    return _Layer(
        "stream",
        *_owners(work, "device", "stream"),
        work["start_ns"].to_numpy(),
        work["end_ns"].to_numpy(),
        code,
        [name[:3] for name in names],
        nests=False,
    )


def _owners(table: pl.DataFrame, first: str, second: str) -> tuple[pl.DataFrame, Int64s]:
    """The distinct pairs of these columns, as `first` and `second`, and for each row the index of its pair."""
    owners, owner = numbered(table, [first, second])
    return owners.select(
        pl.col(first).cast(pl.Int64).alias("first"), pl.col(second).cast(pl.Int64).alias("second")
    ), owner


def _host_layers(timeline: Timeline) -> Iterator[_Layer]:
    """Events of the host by kind: ranges, Python functions, calls, and costs of the profiler."""
    trace = timeline.trace
    for kind, table in (
        ("ranges", trace.ranges),
        ("python", trace.python_functions),
        ("calls", trace.api_calls),
        ("os", trace.os_calls),
        ("profiler", trace.profiler_overhead),
    ):
        if not table.height:
            continue
        distinct, number = _plain_names(table["name"])
        yield _Layer(
            kind,
            *_owners(table, "process", "thread"),
            table["start_ns"].to_numpy(),
            table["end_ns"].to_numpy(),
            number[table["name"].to_physical().to_numpy()],
            [(fmt.printable(text)[:_LONGEST_NAME], _host_fill(kind, text), None) for text in distinct],
        )


def _plain_names(names: pl.Series) -> tuple[list[str], Int64s]:
    """The distinct names of a categorical column, and for each of its codes the index among these."""
    texts = name_categories(names).to_list()
    if len(texts) > _MOST_NAMES:
        texts = [plain_range_name(text) for text in texts]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(numbers), np.array([numbers[text] for text in texts], dtype=np.int64)


def _host_fill(kind: str, name: str) -> str:
    if kind == "calls":
        return call_fill(api_kind(name))
    if kind == "profiler":
        return part_fill("idle", "profiler")
    if kind == "os":
        return "other"
    # A checksum, since Python's own hash differs from run to run: a name has the same colour in every report.
    return _RANGE_FILLS[zlib.crc32(name.encode()) % len(_RANGE_FILLS)]


def timeline_view(
    timeline: Timeline,
    window: Window,
    diagnosis: Diagnosis | None = None,
    budgets: Sequence[TimeBudget] | None = None,
    most_marks: int = MOST_MARKS,
    *,
    hosts: bool = True,
) -> TimelineView:
    """The whole profile as tracks of marks in levels of detail.

    Args:
        diagnosis: the diagnosis of the window, whose worst moments are marked.
        budgets: the time budgets of the window, if they are computed already.
        most_marks: marks of the finest level; if there are more events, short ones become blocks.
        hosts: whether host threads get tracks besides the GPUs.
    """
    budgets = time_budgets(timeline, window) if budgets is None else budgets
    host_layers = list(_host_layers(timeline)) if hosts else []
    threads = _busiest_threads(timeline, host_layers)
    threads_left_out = threads.all - len(threads.listed)
    host_layers = [_of_threads(layer, threads.listed) for layer in host_layers] if threads_left_out else host_layers
    layers = [_idle_layer(budgets), _work_layer(timeline), *host_layers]

    names: list[tuple[str, str, str | None]] = []
    first_name: dict[str, int] = {}  # of each kind of layer
    tracks: list[Track] = []
    events: list[_Events] = []
    for layer in layers:
        row, layer_tracks = _rows(timeline, layer, sum(track.rows for track in tracks), threads)
        tracks += layer_tracks
        order = _by_row_and_time(row, layer.start_ns)
        first_name[layer.kind] = len(names)
        name = layer.name[order] + len(names)
        names += layer.names
        events.append(_Events(row[order], layer.start_ns[order], layer.end_ns[order], name, order))

    opens_step = _representative(window)
    opens = (opens_step.start_ns, opens_step.end_ns) if opens_step else (window.start_ns, window.end_ns)
    moments = diagnosis.moments if diagnosis is not None else ()
    spans = [opens, *((moment.start_ns, moment.end_ns) for moment in moments)]
    finest = _finest(events, layers[0].idle, spans, most_marks)
    is_single = finest.count == 1
    levels = (finest, *coarser_levels(finest))
    details = _details(timeline, tracks, first_name.get("ranges"), finest, events)
    used = np.unique(np.r_[np.concatenate([level.name for level in levels]), details.where[details.where > 0] - 1])
    renumbered = np.zeros(len(names), dtype=np.int64)
    renumbered[used] = np.arange(len(used))
    levels = tuple(replace(level, name=renumbered[level.name]) for level in levels)
    details.where[:] = np.where(details.where > 0, renumbered[np.maximum(details.where - 1, 0)] + 1, 0)
    in_blocks = int(finest.count[~is_single].sum())
    return TimelineView(
        origin_ns(timeline, window),
        max(int(finest.end_ns.max(initial=window.end_ns)), window.end_ns),
        window,
        opens,
        opens_step,
        tuple(names[number] for number in used.tolist()),
        tuple(sorted(tracks, key=lambda track: _order(track, threads))),
        levels,
        details,
        moments,
        Thinned(finest.width_ns, int(finest.count.sum()), in_blocks, int((~is_single).sum()), threads_left_out),
        timeline.steps.steps,
    )


def origin_ns(timeline: Timeline, window: Window) -> int:
    """The time from which links count: the start of the first event of all tracks, in the profile's clock (ns)."""
    trace = timeline.trace
    tables = (timeline.work, trace.ranges, trace.python_functions, trace.api_calls, trace.os_calls)
    begins = [int(table["start_ns"].to_numpy().min()) for table in (*tables, trace.profiler_overhead) if table.height]
    return min(window.start_ns, *begins) if begins else window.start_ns


class _Threads(NamedTuple):
    """The threads that get tracks, sorted by their number of launches, then of events, largest first."""

    listed: list[tuple[int, int]]  # process and thread
    launching: int  # how many of the listed threads launch GPU work; they come first
    all: int  # number of threads, including those without tracks

    def place(self, owner: tuple[int, int]) -> int:
        return self.listed.index(owner)


def _busiest_threads(timeline: Timeline, hosts: Sequence[_Layer]) -> _Threads:
    if not hosts:
        return _Threads([], 0, 0)
    counted = (layer.owners.with_columns(events=np.bincount(layer.owner)) for layer in hosts)
    events = pl.concat(counted).group_by("first", "second").agg(pl.col("events").sum())
    launches = (
        timeline.work.select(pl.col("process").cast(pl.Int64).alias("first"), pl.col("thread").alias("second"))
        .drop_nulls()
        .with_columns(pl.col("second").cast(pl.Int64))
        .group_by("first", "second")
        .len("launches")
    )
    ranked = events.join(launches, on=["first", "second"], how="left").sort(
        pl.col("launches").fill_null(0), "events", "first", "second", descending=[True, True, False, False]
    )
    listed = ranked.head(_MOST_THREADS)
    # In a profile without GPU work, no thread is minor.
    launching = listed.height - listed["launches"].null_count() or listed.height
    return _Threads([(int(first), int(second)) for first, second, *_ in listed.rows()], launching, ranked.height)


def _of_threads(layer: _Layer, threads: Sequence[tuple[int, int]]) -> _Layer:
    listed = np.array([owner in threads for owner in layer.owners.rows()], dtype=np.bool_)
    at = np.flatnonzero(listed[layer.owner])
    owner = (np.cumsum(listed) - 1)[layer.owner[at]]
    return replace(
        layer,
        owners=layer.owners.filter(pl.Series(listed)),
        owner=owner,
        start_ns=layer.start_ns[at],
        end_ns=layer.end_ns[at],
        name=layer.name[at],
    )


def _by_row_and_time(row: Int64s, start_ns: Int64s) -> Int64s | slice:
    """The order of events by row, then by start. Nearly all tables are sorted by time and have few rows."""
    if row.max(initial=0) < 2**16 and bool((start_ns[1:] >= start_ns[:-1]).all()):
        if bool((row[1:] >= row[:-1]).all()):
            return slice(None)
        return np.argsort(row.astype(np.uint16), kind="stable")  # 16-bit keys are radix-sorted
    return np.lexsort((start_ns, row))


def _rows(timeline: Timeline, layer: _Layer, used: int, threads: _Threads) -> tuple[Int64s, list[Track]]:
    """The row of each event, and the layer's tracks; `used` is the number of rows of the layers before."""
    owners = layer.owners.with_row_index("given").sort("first", "second").with_row_index("owner")
    owner = layer.owner
    if owners.height > 1:
        place = np.zeros(owners.height, dtype=np.int64)
        place[owners["given"].to_numpy()] = np.arange(owners.height)
        owner = place[owner]
    if layer.nests:
        lane, depth = nested_lanes(layer.start_ns, layer.end_ns, owner)
        deepest = int(depth.max(initial=0)) + 1
        inside = lane * deepest + depth
    else:
        inside = disjoint_lanes(layer.start_ns, layer.end_ns, owner)
    # Empty rows of an owner are left out.
    most = int(inside.max(initial=0)) + 1
    place = owner * most + inside if owners.height > 1 else inside
    filled = np.bincount(place, minlength=owners.height * most) > 0
    row = (np.cumsum(filled) - 1 + used)[place]
    counts = filled.reshape(owners.height, most).sum(axis=1)
    tracks = []
    for (_, first, second), rows in zip(owners.select("owner", "first", "second").rows(), counts.tolist(), strict=True):
        tracks.append(_track(timeline, layer.kind, (int(first), int(second)), used, rows, threads))
        used += rows
    return row, tracks


def _track(
    timeline: Timeline,
    kind: str,
    owner: tuple[int, int],
    first: int,
    rows: int,
    threads: _Threads,
) -> Track:
    if kind in ("idle", "stream"):
        device = timeline.trace.capture.device(owner[0])
        group = f"GPU {owner[0]}" + (f" · {device.name}" if device else "")
        label = "idle, by cause" if kind == "idle" else f"stream {owner[1]}"
        return Track(group, label, kind, owner, first, rows, rows)
    place = threads.place(owner)
    group, label = f"process {owner[0]}", f"thread {owner[1]} · {_LABELS[kind]}"
    peek = min(rows, _PEEK[kind] if place < _BUSIEST_THREADS else 1)
    minor = place >= threads.launching or kind in ("os", "profiler")
    return Track(group, label, kind, owner, first, rows, peek, minor)


def _order(track: Track, threads: _Threads) -> tuple[int, ...]:
    if track.kind in ("idle", "stream"):
        return 0, *track.owner
    # Threads of a process stand together; processes are sorted by the first of their listed threads.
    process = next(place for place, owner in enumerate(threads.listed) if owner[0] == track.owner[0])
    return 1, process, threads.place(track.owner), list(_LABELS).index(track.kind)


def _representative(window: Window) -> Step | None:
    """The step of median duration; of an even number of steps the shorter of the middle two."""
    by_length = sorted(window.steps, key=lambda step: (step.duration_ns, step.index))
    return by_length[(len(by_length) - 1) // 2] if by_length else None


def _finest(
    events: Sequence[_Events],
    idle: Sequence[tuple[Int64s, Int64s]],
    spans: Sequence[tuple[int, int]],
    most: int,
) -> Marks:
    """All events as marks; if they are more than `most`, short ones outside of the spans are merged."""
    number = sum(len(layer.row) for layer in events)
    if number <= most:
        return _together([layer.marks(0) for layer in events], events[0], idle)
    kept = [np.zeros(len(layer.row), dtype=np.bool_) for layer in events]
    total_kept = 0
    for span in spans:
        touching = [(mask, part) for mask, layer in zip(kept, events, strict=True) for part in layer.touching(*span)]
        more = sum(part.stop - part.start - int(np.count_nonzero(mask[part])) for mask, part in touching)
        if total_kept + more > most // 2:
            break  # leave half of the marks to the rest of the profile
        total_kept += more
        for mask, part in touching:
            mask[part] = True
    widths = [layer.blocks_by_width(mask) for layer, mask in zip(events, kept, strict=True)]
    width = _FINEST_NS << int(np.argmax(np.cumsum(np.sum(widths, axis=0)) >= number - most))
    return _together([layer.marks(width, mask) for layer, mask in zip(events, kept, strict=True)], events[0], idle)


def _together(marks: Sequence[Marks], gaps: _Events, idle: Sequence[tuple[Int64s, Int64s]]) -> Marks:
    """The marks of all layers as one level; those of idle gaps come first, with their parts by cause."""
    begins = np.cumsum(marks[0].count) - marks[0].count  # the first gap of each mark
    parts = np.zeros((len(IDLE_CAUSES), len(begins)), dtype=np.int64)
    for by_mark, (at, ns) in zip(parts, idle, strict=True):
        if len(at):
            place = at if isinstance(gaps.order, slice) else np.argsort(gaps.order)[at]
            by_mark[:] = sum_by(np.searchsorted(begins, place, side="right") - 1, ns, len(begins))
    return Marks.joined(marks, parts)


def coarser_levels(finest: Marks) -> Iterator[Marks]:
    """Coarser levels of detail, each with at most 70 % of the marks of the level before."""
    level, width = finest, max(finest.width_ns * _COARSER, _FINEST_NS)
    while len(level.row) > _COARSE_ENOUGH and width < 2**60:
        coarser = level.merged(width)
        # A level that saves little is not worth its space in the file.
        if len(coarser.row) < 0.7 * len(level.row):
            yield coarser
            level = coarser
        width *= _COARSER


def _details(
    timeline: Timeline,
    tracks: Sequence[Track],
    first_range: int | None,
    finest: Marks,
    events: Sequence[_Events],
) -> Details:
    """Launch, range and bytes of every GPU work item that is a mark of its own.

    `first_range` is the index of the first name of a range among all names; None if there are no ranges.
    """
    begins = np.cumsum(finest.count) - finest.count  # each mark's first event
    gaps, work = events[:2]
    place = begins - len(gaps.row)
    single = np.flatnonzero((finest.count == 1) & (place >= 0) & (place < len(work.row)))
    rows = np.arange(len(work.row))[work.order][place[single]]
    details = Details(
        np.full(len(begins), -1, dtype=np.int64), *(np.zeros(len(begins), dtype=np.int64) for _ in range(3))
    )
    table = timeline.work.select("launch_start_ns", "process", "thread", "range", "kind", "row")[rows]
    details.launch_ns[single] = table["launch_start_ns"].fill_null(-1).to_numpy()
    for track in tracks:
        if track.kind == "calls":
            process, thread = track.owner
            launched = (table["process"] == process) & (table["thread"] == thread)
            details.calls_row[single[launched.fill_null(value=False).to_numpy()]] = track.first + 1
    if first_range is not None:
        texts = timeline.trace.ranges["name"]
        _, number = _plain_names(texts)
        range_rows = table["range"].fill_null(-1).to_numpy()
        name_index = number[texts.to_physical().to_numpy()[range_rows]]
        details.where[single] = np.where(range_rows >= 0, name_index + first_range + 1, 0)
    for kind, moved in (("copy", timeline.trace.copies), ("memset", timeline.trace.memsets)):
        of_kind = (table["kind"] == kind).to_numpy()
        details.bytes[single[of_kind]] = moved["bytes"].to_numpy()[table["row"].to_numpy()[of_kind]]
    return details
