"""`Timeline`: a `Trace` plus the joins that several analyses share, each computed once, when first needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import largest, numbered, once, select_rows
from warplens.analysis.intervals import Intervals, union
from warplens.analysis.steps import StepSearch, find_steps
from warplens.analysis.trees import NO_RANGE, RangeForest, is_operator, range_forest
from warplens.analysis.window import (
    Step,
    Window,
    edges_of,
    generic_name,
    parse_span,
    plain_range_name,
    span_text,
    unnumbered_name,
)
from warplens.errors import UsageError
from warplens.profile import Trace
from warplens.profile.schema import Bools, Int64s, name_categories
from warplens.profile.trace import BLOCK_THREADS, GRID_BLOCKS, WORK_KINDS

if TYPE_CHECKING:
    from warplens.analysis.operators.places import AutogradLinks, OperatorTree, Places, PythonFrames


_LAUNCH_COLUMNS = ("launch_start_ns", "launch_end_ns", "thread", "range", "inferred")

#: A direct look-up table from correlation id to API call is used while it is at most this many times as long as the
#: calls.
_LOOKUP_SPARSITY = 16

#: Ranges that an error about an unknown one names.
_NAMED_RANGES: Final = 3

#: Columns that identify a kind of launch.
_LAUNCH: Final = ("name", "full_name", "blocks", "threads")


class LaunchKinds(NamedTuple):
    """Distinct kernel launches by name and size: millions of kernels are of a few hundred kinds."""

    #: one row per kind, in order of first occurrence: `name` and `full_name`, dictionary-encoded as in `Trace.kernels`,
    #: `blocks` of the grid and `threads` of a block, null where they were not recorded
    table: pl.DataFrame
    of_kernel: npt.NDArray[np.int32]  #: for each row of `Trace.kernels` its row in `table`


@dataclass(frozen=True)
class HostShare:
    """Host time for issuing work without the profiler, as a share of the time with it."""

    usual: float
    limits: tuple[float, float] | None = None  #: least and largest value; None for those of other programs around it
    pauses: float = 1.0  #: the same for the host's long pauses
    step_ns: int | None = None  #: the measured step that it explains; None if it is that of other programs
    shows: bool = True  #: whether a faster host would make that step shorter


class Timeline:
    """The recorded events with host and device joined.

    >>> timeline = Timeline(warplens.read("profile.sqlite"))       # doctest: +SKIP
    >>> timeline.kernels_in(timeline.window("steady"))             # doctest: +SKIP
    """

    def __init__(self, trace: Trace) -> None:
        if not isinstance(trace, Trace):
            raise TypeError(f"Timeline takes a Trace (warplens.read gives one), not {type(trace).__name__}")
        self.trace = trace
        self.host_share = HostShare(trace.capture.recorder.unprofiled_share)
        self.cache: dict[tuple[object, ...], Any] = {}  # results of functions decorated with `once`
        self._inside_name: dict[str, Bools] = {}

    def __repr__(self) -> str:
        return f"<Timeline of {self.trace!r}>"

    def with_host_share(self, share: HostShare) -> Timeline:
        """The same events and joins, with another host time for issuing work without the profiler."""
        changed = object.__new__(type(self))
        joins = {
            name: join
            for name, join in vars(self).items()
            if isinstance(getattr(type(self), name, None), cached_property)
        }
        vars(changed).update(joins | self.__getstate__() | {"host_share": share})
        return changed

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy in another process: joins and results are computed again there."""
        return {"trace": self.trace, "host_share": self.host_share, "cache": {}, "_inside_name": {}}

    @cached_property
    def work(self) -> pl.DataFrame:
        """All GPU work, one row per kernel, copy, memset and whole-graph launch, in order of its begin.

        Columns: `kind`, `row` (in the table of that kind), `start_ns`, `end_ns`, `device`, `stream`, `process`; of the
        launching API call `api_row`, `launch_start_ns`, `launch_end_ns`, `thread`; and `range` (row of the innermost
        range it is attributed to) with `inferred` (by the waiting-thread rule). Null where there is no such call or
        range.
        """
        tables: list[pl.DataFrame] = [getattr(self.trace, table) for table in WORK_KINDS.values()]
        counts = [table.height for table in tables]
        starts = pl.concat([table["start_ns"] for table in tables])
        # The tables are nearly sorted runs, on which a stable sort takes one pass.
        order = np.argsort(starts.to_numpy(), kind="stable")

        def in_order(name: str, order: Int64s = order) -> pl.Series:
            return pl.concat([table[name] for table in tables]).gather(order)

        kinds = np.repeat(np.arange(len(tables), dtype=np.uint8), counts)
        rows = np.concatenate([np.arange(count) for count in counts])
        work = pl.DataFrame(
            [
                pl.Series("kind", list(WORK_KINDS), dtype=pl.Enum(list(WORK_KINDS))).gather(kinds[order]),
                pl.Series("row", rows[order]),
                *(in_order(name) for name in ("start_ns", "end_ns", "device", "stream", "process")),
            ]
        )
        calls = self.trace.api_calls
        api_row = self._api_rows(work["process"].to_numpy(), in_order("correlation"))
        has_call = api_row >= 0
        api_row_or_null = _nullable(api_row, "api_row")
        work = work.with_columns(
            api_row_or_null,
            calls["start_ns"].gather(api_row_or_null).alias("launch_start_ns"),
            calls["end_ns"].gather(api_row_or_null).alias("launch_end_ns"),
            calls["thread"].gather(api_row_or_null).alias("thread"),
        )
        range_rows = np.full(work.height, NO_RANGE, dtype=np.int64)
        inferred = np.zeros(work.height, dtype=np.bool_)
        if self.trace.ranges.height:
            rows = np.flatnonzero(has_call)
            range_rows[rows], inferred[rows] = self.forest.attribute(
                work["process"].to_numpy()[rows].astype(np.int64),
                calls["thread"].to_numpy()[api_row[rows]].astype(np.int64),
                calls["start_ns"].to_numpy()[api_row[rows]],
            )
        return work.with_columns(_nullable(range_rows, "range"), pl.Series("inferred", inferred))

    def correlations(self, work: pl.DataFrame) -> pl.Series:
        """The correlation id of each of these rows of `work`; null where it was not recorded."""
        placed = work.select("kind", "row").with_row_index("place")
        parts = [
            of_kind.select("place", getattr(self.trace, table)["correlation"].gather(of_kind["row"]))
            for kind, table in WORK_KINDS.items()
            for of_kind in [placed.filter(pl.col("kind") == kind)]
        ]
        return pl.concat(parts).sort("place")["correlation"]

    @cached_property
    def launch_kinds(self) -> LaunchKinds:
        """The kinds of launches, by name, grid size and block size."""
        kernels = self.trace.kernels
        sizes = [
            size if kernels[axis].null_count() < kernels.height else pl.lit(None, dtype=pl.Int64).alias(name)
            for axis, name, size in (("grid_x", "blocks", GRID_BLOCKS), ("block_x", "threads", BLOCK_THREADS))
        ]
        table, kind = numbered(kernels.select("name", "full_name", *sizes), _LAUNCH)
        return LaunchKinds(table, kind.astype(np.int32))

    @cached_property
    def forest(self) -> RangeForest:
        """The annotated ranges with their enclosing ranges, across threads."""
        return range_forest(self.trace.ranges)

    @cached_property
    def has_operators(self) -> bool:
        """Whether the profile holds operators of a framework."""
        return bool(is_operator(self.trace.ranges).any())

    @cached_property
    def operators(self) -> OperatorTree:
        """The framework's operators, nested."""
        from warplens.analysis.operators.places import operator_tree

        return operator_tree(self.trace, self.forest)

    @cached_property
    def autograd(self) -> AutogradLinks:
        """The forward operator of each backward operator."""
        from warplens.analysis.operators.places import autograd_links

        return autograd_links(self.trace, self.operators)

    @cached_property
    def python(self) -> PythonFrames:
        """The calls of Python functions and modules, nested."""
        from warplens.analysis.operators.places import python_frames

        return python_frames(self.trace.python_functions)

    @cached_property
    def places(self) -> Places:
        """Operator, module and Python function that each row of `work` comes from."""
        from warplens.analysis.operators.places import places

        return places(self.trace, self.work, self.operators, self.autograd, self.python)

    @cached_property
    def steps(self) -> StepSearch:
        """The steps of the workload, and which of them are steady."""
        return find_steps(self.trace, self.work, self.forest)

    def window(self, spec: str = "steady", range_name: str | None = None) -> Window:
        """The part of the profile to analyse.

        Args:
            spec: `steady` (the repeating steps without warm-up; without steps, from the first to the last GPU work),
                `all` (everything recorded), or `START:END` in the profile's clock (`1.5s:2s`), of which the part that
                was recorded counts.
            range_name: count only work launched inside ranges of this name.

        Raises:
            UsageError: the spec cannot be read, or no range has that name.
        """
        if spec == "all":
            window = Window(*self._recorded_span(), kind="all", how="everything that was recorded")
        elif spec == "steady":
            window = self._steady_window()
        else:
            asked = parse_span(spec)
            recorded = first, last = self._recorded_span()
            start, end = (edge if edge is not None else known for edge, known in zip(asked, recorded, strict=True))
            how = "as asked for" + (", as far as it was recorded" if start < first or last < end else "")
            if first < last:  # else a single instant was recorded
                start, end = max(start, first), min(end, last)
            if end <= start or end < first or start > last:
                raise UsageError(f"window {spec!r} lies outside the recorded time, which is {span_text(first, last)}")
            window = Window(start, end, "explicit", how)
            inside = (
                step for step in self.steps.steps if window.start_ns <= step.start_ns < step.end_ns <= window.end_ns
            )
            window = _with_steps(window, tuple(inside), self.steps.steps)
        if range_name is not None:
            self.range_rows(range_name)
            window = replace(window, range_name=range_name)
        return window

    def range_rows(self, name: str) -> Int64s:
        """The rows of all ranges with this name; without any, of those that tables list under it.

        Raises:
            UsageError: there is none; the message names the closest ones.
        """
        names = self.trace.ranges["name"]
        categories = name_categories(names).to_list()
        for as_listed in (str, plain_range_name, unnumbered_name, generic_name):
            has_name = np.array([as_listed(category) == name for category in categories], dtype=np.bool_)
            if has_name.any() and len(rows := np.flatnonzero(has_name[names.to_physical().to_numpy()])):
                return rows
        if not categories:
            raise UsageError(f"there is no range {name!r}: the profile holds no annotated ranges")
        from difflib import get_close_matches

        ranges = self.trace.ranges
        listed = sorted(set(map(plain_range_name, categories)))
        if close := get_close_matches(name, listed, n=_NAMED_RANGES):
            raise UsageError(f"there is no range {name!r}; ranges with similar names: {', '.join(map(repr, close))}")
        annotated = ranges.filter(~is_operator(ranges))["name"].unique().cast(pl.String)
        listed = sorted(set(map(plain_range_name, annotated))) or listed
        more = ", …" if len(listed) > _NAMED_RANGES else ""
        shown = ", ".join(map(repr, listed[:_NAMED_RANGES]))
        raise UsageError(f"there is no range {name!r}; the profile has {shown}{more}")

    def in_range(self, name: str) -> Bools:
        """For each row of `work`, whether it was launched inside a range of this name, at any depth."""
        inside: Bools = self.lies_in(name)[self.work["range"].fill_null(NO_RANGE).to_numpy()]
        return inside

    def lies_in(self, name: str) -> Bools:
        """For each range, whether it or an enclosing range has this name; the last entry stands for "no range"."""
        if name not in self._inside_name:
            label = np.zeros(self.trace.ranges.height, dtype=np.int64)
            label[self.range_rows(name)] = 1
            self._inside_name[name] = np.r_[self.forest.outermost_match(label) > 0, False]
        return self._inside_name[name]

    def work_in(self, window: Window) -> pl.DataFrame:
        """The rows of `work` that begin inside the window (all of them for kind `all`) and inside its range, if any."""
        if window.kind == "all" and window.range_name is None:
            return self.work
        return self.work[self.work_rows_in(window)]

    def work_rows_in(self, window: Window) -> slice | Int64s:
        """The positions in `work` of the rows of `work_in`, to index arrays alongside it."""
        start, end = 0, self.work.height
        if window.kind != "all":
            starts = self.work["start_ns"].to_numpy()
            start, end = (int(np.searchsorted(starts, edge)) for edge in (window.start_ns, window.end_ns))
        if window.range_name is None:
            return slice(start, end)
        return start + np.flatnonzero(self.in_range(window.range_name)[start:end])

    def devices_in(self, window: Window) -> list[int]:
        """The devices on which work of the window's range, or any work, ran at any time in it, in order."""
        devices = self.work["device"]
        if window.kind != "all" or window.range_name is not None:
            # Work that began before the window may run on in it.
            runs = np.ones(self.work.height, dtype=np.bool_)
            if window.kind != "all":
                starts, ends = (self.work[edge].to_numpy() for edge in ("start_ns", "end_ns"))
                runs = (starts < window.end_ns) & (np.maximum(ends, starts + 1) > window.start_ns)
            if window.range_name is not None:
                runs &= self.in_range(window.range_name)
            devices = devices.filter(pl.Series(runs))
        return devices.unique().sort().to_list()

    @once
    def work_on(self, device: int) -> pl.DataFrame:
        """The rows of `work` on one device, with the columns that interval arithmetic needs."""
        work = self.work.select("kind", "row", "start_ns", "end_ns", "device", "stream", "api_row")
        return work if work["device"].n_unique() == 1 else work.filter(pl.col("device") == device)

    def rows_on(self, device: int, which: Bools | None = None) -> Int64s:
        """The positions in `work` of the rows of `work_on(device)`, or of those that the mask `which` selects."""
        if self.work_on(device).height == self.work.height:
            return np.arange(self.work.height) if which is None else np.flatnonzero(which)
        rows = np.flatnonzero((self.work["device"] == device).to_numpy())
        return rows if which is None else rows[which]

    @once
    def busy(self, device: int) -> Intervals:
        """Disjoint intervals in which the device was busy, over the whole profile."""
        work = self.work_on(device)
        return union(Intervals(work["start_ns"].to_numpy(), work["end_ns"].to_numpy()))

    def kernels_in(self, window: Window, *, launches: bool = True) -> pl.DataFrame:
        """The kernels of the window: all columns of the table, and with `launches` the launch columns of `work`."""
        starts = self.trace.kernels["start_ns"]
        if not launches and window.range_name is None and starts.is_sorted():
            start, end = starts.search_sorted(pl.Series([window.start_ns, window.end_ns]))
            return self.trace.kernels if window.kind == "all" else self.trace.kernels.slice(start, end - start)
        return self._table_in(window, "kernel")

    def copies_in(self, window: Window) -> pl.DataFrame:
        """The copies of the window: all columns of the table, and the launch columns of `work`."""
        return self._table_in(window, "copy")

    def memsets_in(self, window: Window) -> pl.DataFrame:
        """The memsets of the window: all columns of the table, and the launch columns of `work`."""
        return self._table_in(window, "memset")

    def graphs_in(self, window: Window) -> pl.DataFrame:
        """The whole-graph launches of the window: all columns of the table, and the launch columns of `work`."""
        return self._table_in(window, "graph")

    def api_calls_in(self, window: Window) -> pl.DataFrame:
        """The API calls that begin in the window; with a range, those made on a thread inside such a range."""
        return self._host_rows_in(window, self.trace.api_calls)

    def synchronizations_in(self, window: Window) -> pl.DataFrame:
        """The synchronizations that begin in the window; with a range, those whose API call was made inside it."""
        waits = self.trace.synchronizations
        if window.kind != "all":
            waits = waits.filter(_begins_in(window))
        if window.range_name is None or not waits.height:
            return waits
        api_row = self._api_rows(waits["process"].to_numpy(), waits["correlation"])
        threads = np.r_[self.trace.api_calls["thread"].to_numpy(), np.int32(-1)]
        return self._inside_range(window.range_name, waits, pl.Series(threads[api_row]))

    def lie_in_range(self, window: Window, calls: pl.DataFrame) -> Bools:
        """Whether each of these intervals of host threads begins inside the window's range; all True where it has none.

        Args:
            window: the window, whose times do not count here.
            calls: `Trace.ranges`, or another table with begins, processes and threads.
        """
        if window.range_name is None:
            return np.ones(calls.height, dtype=np.bool_)
        if calls is self.trace.ranges:
            return self.lies_in(window.range_name)[:-1]
        return self._in_range_mask(window.range_name, calls, calls["thread"])

    def _table_in(self, window: Window, kind: str) -> pl.DataFrame:
        work = self.work.select("kind", "row", *_LAUNCH_COLUMNS)[self.work_rows_in(window)]
        of_kind = work.filter(pl.col("kind") == kind)
        table: pl.DataFrame = getattr(self.trace, WORK_KINDS[kind])
        rows = of_kind["row"]
        # The tables are nearly always in order of time, so that a window is a slice of them: no row is copied.
        consecutive = rows.len() > 0 and bool((rows.diff().drop_nulls() == 1).all())
        table_rows = table.slice(rows[0], rows.len()) if consecutive else table[rows]
        return table_rows.with_columns(of_kind.select(_LAUNCH_COLUMNS).get_columns())

    def _host_rows_in(self, window: Window, calls: pl.DataFrame) -> pl.DataFrame:
        if window.kind != "all":
            calls = select_rows(calls, (calls["start_ns"] >= window.start_ns) & (calls["start_ns"] < window.end_ns))
        if window.range_name is None or not calls.height:
            return calls
        return self._inside_range(window.range_name, calls, calls["thread"])

    def _inside_range(self, name: str, calls: pl.DataFrame, thread: pl.Series) -> pl.DataFrame:
        return calls.filter(pl.Series(self._in_range_mask(name, calls, thread)))

    def _in_range_mask(self, name: str, calls: pl.DataFrame, thread: pl.Series) -> Bools:
        range_rows, _ = self.forest.attribute(
            calls["process"].to_numpy().astype(np.int64),
            thread.to_numpy().astype(np.int64),
            calls["start_ns"].to_numpy(),
        )
        inside: Bools = self.lies_in(name)[range_rows]
        return inside

    def _steady_window(self) -> Window:
        search = self.steps
        if search.steady:
            return Window(search.steady[0].start_ns, search.steady[-1].end_ns, "steady", search.how, search.steady)
        if not self.work.height:
            return Window(*self._recorded_span(), kind="all", how="the whole recording, which holds no GPU work")
        start, end = int(self.work["start_ns"][0]), largest(self.work["end_ns"])
        return Window(start, end, "device", search.how)

    def _recorded_span(self) -> tuple[int, int]:
        start, end = self.trace.capture.window_ns
        if self.work.height:
            start = min(start, int(self.work["start_ns"][0])) if end > start else int(self.work["start_ns"][0])
            end = max(end, largest(self.work["end_ns"]))
        return start, end

    def _api_rows(self, process: npt.NDArray[np.int32], correlation: pl.Series) -> Int64s:
        """The row of the API call with the same process and correlation id, the outermost of several; −1 for none."""
        ids_wanted = correlation.fill_null(-1).to_numpy()
        rows = np.full(len(ids_wanted), -1, dtype=np.int64)
        for pid, (ids, api_rows) in self._calls_by_process.items():
            of_process = np.flatnonzero((process == pid) & (ids_wanted >= 0))
            rows[of_process] = _look_up(ids, api_rows, ids_wanted[of_process])
        return rows

    @cached_property
    def _calls_by_process(self) -> dict[int, tuple[Int64s, Int64s | None]]:
        """Ascending correlation ids of each process, and the row of the first call with each id.

        None instead of rows means that each id's position is its row, as in most profiles of one process.
        """
        calls = self.trace.api_calls
        process = calls["process"].to_numpy()
        correlation = calls["correlation"].to_numpy()
        starts = calls["start_ns"].to_numpy()
        result: dict[int, tuple[Int64s, Int64s | None]] = {}
        pids = calls["process"].unique().sort().to_list()
        if len(pids) == 1 and _strictly_ascending(correlation):
            return {int(pids[0]): (correlation, None)}
        for pid in pids:
            rows = np.flatnonzero(process == pid)
            ids = correlation[rows]
            if not _strictly_ascending(ids):
                order = np.lexsort((starts[rows], ids))
                ids, rows = ids[order], rows[order]
                first = np.r_[True, ids[1:] != ids[:-1]]
                ids, rows = ids[first], rows[first]
            result[int(pid)] = (ids, rows)
        return result


def _look_up(ids: Int64s, rows: Int64s | None, ids_wanted: Int64s) -> Int64s:
    """`rows[i]`, or `i` without rows, where `ids[i]` equals the wanted id, else −1; `ids` ascend strictly."""
    rows = np.arange(len(ids)) if rows is None else rows
    if not len(ids) or not len(ids_wanted):
        return np.full(len(ids_wanted), -1, dtype=np.int64)
    low, high = int(ids[0]), int(ids[-1])
    if high - low < _LOOKUP_SPARSITY * len(ids):
        table = np.full(high - low + 2, -1, dtype=np.int64)
        table[ids - low] = rows
        in_table = (ids_wanted >= low) & (ids_wanted <= high)
        return table[np.where(in_table, ids_wanted - low, high - low + 1)]
    position = np.minimum(np.searchsorted(ids, ids_wanted), len(ids) - 1)
    return np.where(ids[position] == ids_wanted, rows[position], -1)


def _strictly_ascending(values: Int64s) -> bool:
    return bool(np.all(values[1:] > values[:-1]))


def _with_steps(window: Window, inside: tuple[Step, ...], steps: tuple[Step, ...]) -> Window:
    """The window with its whole steps, and with the parts of those that it cuts; `how` says so if there are any."""
    _, starts, ends = edges_of(steps)
    shares = np.minimum(ends, window.end_ns) - np.maximum(starts, window.start_ns)
    cut = (shares > 0) & (shares < ends - starts)
    parts = float(round((shares[cut] / (ends - starts)[cut]).sum(), 4))
    how = window.how
    if parts:
        whole = {0: "none of them", 1: "one of them"}.get(len(inside), f"{len(inside)} of them")
        held = round(len(inside) + parts, 2)
        how += f"; it holds {f'{held:g} of a step' if held <= 1 else f'{held:g} steps'}, {whole} whole"
    return replace(window, steps=inside, cut_steps=parts, how=how)


def _begins_in(window: Window) -> pl.Expr:
    if window.kind == "all":
        return pl.lit(True)
    return pl.col("start_ns").is_between(window.start_ns, window.end_ns, closed="left")


def _nullable(values: Int64s, name: str) -> pl.Series:
    series = pl.Series(name, values)
    if not len(values) or values.min() >= 0:
        return series
    return pl.select(pl.when(series >= 0).then(series).alias(name)).to_series()
