"""Evidence for several rules: the load of launching threads, the work of optimizers, and verdicts of counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import IS_PAGEABLE, api_kinds, blocks_host, next_of_thread, waiting_calls
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import numbered, once
from warplens.analysis.hostpace import QUEUE_FULL_NS, STALL_MAX_NS
from warplens.analysis.intervals import Intervals, clip, intersection, measure_before, total, union
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.launches import LaunchSummary, calls_of_launching_threads, launch_summary, launching_threads
from warplens.analysis.steps import LOADS_CODE
from warplens.patterns import lazy_pattern
from warplens.profile.columns import optional, table
from warplens.profile.schema import Int64s, rows_named

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis.facts import Facts
    from warplens.profile.counters import KernelCounters


# --- Host load: waits and launches of the launching threads ----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HostLoad:
    """The host's side of a window. Only threads that launch GPU work count."""

    launches: LaunchSummary  #: how the kernels were launched
    waits: int  #: calls that blocked a thread until the GPU was done (`warplens.analysis.api.waiting_calls`)
    #: of these waits, those that do not follow a copy of their thread: nothing is read or sent, the program just waits
    #: (`torch.cuda.synchronize()`)
    bare_waits: int
    sending_waits: int  #: of these waits, those right behind a copy to the GPU: the host waits until a value is sent
    waited_ns: int  #: time of the window in which a thread was inside a waiting call and a GPU worked
    #: the same intervals over the whole profile, by process. A waiting call during which no GPU works does something
    #: else, such as loading code.
    waiting: dict[int, Intervals]
    #: time of the window inside waiting calls and read-backs in which no GPU worked; it goes away with these calls
    blocked_ns: int
    readbacks: int  #: copies of a few bytes to the host
    readback_calls: Intervals  #: intervals of the calls that issued the read-backs
    allocations: int  #: calls that allocate or free memory
    allocation_ns: int  #: time of these calls


def host_load(timeline: Timeline, window: Window, readback_bytes: int) -> HostLoad:
    """The load of the launching threads.

    Args:
        window: its analysed part; calls belong to it by their start.
        readback_bytes: up to this size, a copy to the host is a read-back.
    """
    work = timeline.work_in(window)
    threads = launching_threads(timeline, window)
    calls = timeline.api_calls_in(window).select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    kind = api_kinds(calls["name"])
    allocating = calls.filter(kind == "allocation").join(threads, on=["process", "thread"], how="semi")
    copies = timeline.copies_in(window)
    waits = waits_of_host(timeline, window)
    small = copies.filter((pl.col("direction") == "device-to-host") & (pl.col("bytes") <= readback_bytes))
    reading = calls.filter(kind == "copy").join(small, on=["process", "correlation"], how="semi")
    waiting = _waiting(timeline, threads, work["device"].unique().sort().to_list())
    clipped = [clip(intervals, window.start_ns, window.end_ns) for intervals in waiting.values()]
    return HostLoad(
        launches=launch_summary(timeline, window),
        waits=waits.calls.height,
        bare_waits=waits.bare,
        sending_waits=waits.sending,
        waited_ns=max((total(intervals) for intervals in clipped), default=0),
        waiting=waiting,
        blocked_ns=_blocked_ns(pl.concat([waits.calls, reading]), waiting),
        readbacks=small.height,
        readback_calls=union(Intervals.of(reading)),
        allocations=allocating.height,
        allocation_ns=int((allocating["end_ns"] - allocating["start_ns"]).sum()),
    )


class HostWaits(NamedTuple):
    """The `waiting_calls` of the launching threads, and what stands before the synchronizations among them."""

    calls: pl.DataFrame
    bare: int  #: synchronizations that follow no copy of their thread
    sending: int  #: those that follow a copy to the GPU


@once
def waits_of_host(timeline: Timeline, window: Window) -> HostWaits:
    """The waits of the launching threads in a window."""
    calls = calls_of_launching_threads(timeline, window)
    kind = api_kinds(calls["name"])
    before = next_of_thread(calls, np.flatnonzero((kind == "sync").to_numpy()), -1)
    after_copy = (before >= 0) & (kind == "copy").to_numpy()[before]
    to_gpu = timeline.trace.copies.filter(pl.col("direction") == "host-to-device")
    sending = calls[before[after_copy]].join(to_gpu, on=["process", "correlation"], how="semi").height
    return HostWaits(waiting_calls(calls, timeline.trace.copies), int((~after_copy).sum()), sending)


def _blocked_ns(calls: pl.DataFrame, waiting: dict[int, Intervals]) -> int:
    """Time in these calls without waiting for a busy GPU."""
    blocked = 0
    for process, intervals in waiting.items():
        inside = union(Intervals.of(calls.filter(pl.col("process") == process)))
        blocked += total(inside) - total(intersection(inside, intervals))
    return blocked


def time_inside(intervals: Intervals, spans: pl.DataFrame) -> Int64s:
    """How much of each of these spans (`start_ns`, `end_ns`) the disjoint intervals cover."""
    begins, ends = (spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    return measure_before(intervals, ends) - measure_before(intervals, begins)


def needed_ns(host: HostLoad, work: pl.DataFrame, parts: npt.NDArray[np.int32]) -> int:
    """Host time to issue this work: from the first to the last launch of each part, less the waits.

    No GPU, however fast, could finish the work sooner. Several GPUs count separately, as they do in the wall time with
    which this is compared.

    Args:
        host: with the intervals in which threads waited for the GPU.
        work: columns `device`, `process`, `launch_start_ns`, `launch_end_ns`; null if the launch is unknown.
        parts: shape (rows,), the part of each piece, such as its step; 0 to count all work from first to last launch.
    """
    keys, times = ["device", "process", "part"], ["launch_start_ns", "launch_end_ns"]
    launched = work.select(*keys[:2], *times).with_columns(part=pl.Series(parts))
    if launched["launch_start_ns"].null_count() or launched["launch_end_ns"].null_count():
        launched = launched.drop_nulls(times)
    spans, number = numbered(launched, keys)
    first, last = np.full(spans.height, np.iinfo(np.int64).max), np.full(spans.height, np.iinfo(np.int64).min)
    np.minimum.at(first, number, launched["launch_start_ns"].to_numpy())
    np.maximum.at(last, number, launched["launch_end_ns"].to_numpy())
    spans = spans.with_columns(begin=pl.Series(first), end=pl.Series(last))
    needed = 0
    for process in spans["process"].unique().sort():
        of_process = spans.filter(pl.col("process") == process)
        begins, ends = of_process["begin"].to_numpy(), of_process["end"].to_numpy()
        waiting = host.waiting.get(process, Intervals.none())
        needed += int((ends - begins - measure_before(waiting, ends) + measure_before(waiting, begins)).sum())
    return needed


def _waiting(timeline: Timeline, threads: pl.DataFrame, devices: list[int]) -> dict[int, Intervals]:
    """By process, the intervals in which one of these threads was in a waiting call and one of these devices worked."""
    calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    kind = api_kinds(calls["name"])
    long = (calls["end_ns"] - calls["start_ns"]) > QUEUE_FULL_NS
    queue_full = kind.is_in(["launch", "graph-launch", "copy", "memset"]) & long
    staged = timeline.trace.copies.filter(IS_PAGEABLE).select("process", "correlation")
    waits = pl.concat(
        [
            calls.filter(pl.Series(rows_named(calls["name"], blocks_host)) | queue_full),
            calls.filter(kind == "copy").join(staged, on=["process", "correlation"], how="semi"),
        ]
    ).join(threads, on=["process", "thread"], how="semi")
    working = union(*map(timeline.busy, devices))
    return {
        process: intersection(union(Intervals.of(waits.filter(pl.col("process") == process))), working)
        for process in threads["process"].unique().sort()
    }


# --- Optimizers: updates and loops over parameters -------------------------------------------------------------------

#: Only updates of a parameter by a quotient (Adam and similar) run PyTorch's `addcdiv` on a single tensor, once per
#: parameter.
_UPDATE: Final = "addcdiv"

#: Fewer updates in a step may be anything.
_LEAST_UPDATES: Final = 16

#: Least share of updates among the launches from the first to the last: Adam without fusion launches 8 to 16 kernels
#: per parameter. Below this, other work lies between the updates.
_LEAST_DENSITY: Final = 1 / 24


def updates(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Whether each kernel updates one parameter tensor."""
    names = timeline.trace.kernels["full_name"]
    return rows_named(names, lambda name: _UPDATE in name and "multi_tensor" not in name)


def mark_optimizers(timeline: Timeline, window: Window) -> npt.NDArray[np.bool_]:
    """Whether each row of `Timeline.work` lies between the first and the last update of a step of the window."""
    work = timeline.work
    marked = np.zeros(work.height, dtype=np.bool_)
    is_update = np.zeros(work.height, dtype=np.bool_)
    kernel = (work["kind"] == "kernel").to_numpy()
    if not kernel.any():
        return marked
    is_update[kernel] = updates(timeline)[work["row"].to_numpy()[kernel]]
    places = np.flatnonzero(is_update)
    starts = work["start_ns"].to_numpy()
    for step in window.steps:
        inside = places[(starts[places] >= step.start_ns) & (starts[places] < step.end_ns)]
        if len(inside) >= _LEAST_UPDATES and len(inside) >= _LEAST_DENSITY * (inside[-1] - inside[0]):
            marked[inside[0] : inside[-1] + 1] = True
    return marked


#: Kernels that an optimizer written with tensor operations launches.
_SINGLE_TENSOR: Final = ("elementwise", "copy-cast", "reduction")

#: Least kernels of a loop over parameters, in a row, on one tensor each and without a product between them: between two
#: layers lies a tenth of that.
_LEAST_LOOP: Final = 100

#: Kernels of `torch._foreach_*`.
_ON_LISTS: Final = lazy_pattern(r"multi_tensor_apply_kernel(?!.*Fused)|lpnorm_cleanup")
#: Least different operations on lists of an optimizer.
_LEAST_OPERATIONS: Final = 5

#: Most launches of one size among those over parameters, which have several sizes. With batch norms, two in three
#: parameters are vectors; with narrow convolutions, three in four launches have the commonest size. Loops over classes
#: or samples have hardly any other size. Also the most fills among them.
_MOST_ALIKE: Final = 0.85

#: Least launches of a size, and least such sizes, of a loop over parameters most of which have one size.
_LEAST_OF_A_SIZE: Final = 6
_LEAST_SIZES: Final = 5

#: Most kernels in a turn of a loop over words, samples or the like.
_LONGEST_TURN: Final = 8
#: Least share of kernels in such a loop whose name runs on a single size.
_ONE_SIZE_SHARE: Final = 0.25


def mark_loops(timeline: Timeline, window: Window) -> npt.NDArray[np.bool_]:
    """Whether each row of `Timeline.work` belongs to a loop over parameters, such as a moving average of weights.

    Programs without products hardly have parameters. Loops over classes or samples, for example in a loss, work on
    tensors of one size, or on the same few sizes in each turn. Loops that only fill places with a number read no
    parameter: they mask parts of the input.
    """
    work = timeline.work
    marked = np.zeros(work.height, dtype=np.bool_)
    starts = work["start_ns"].to_numpy()
    rows = np.flatnonzero((starts >= window.start_ns) & (starts < window.end_ns))
    is_kernel = (work["kind"] == "kernel").to_numpy()[rows]
    if is_kernel.sum() < _LEAST_LOOP:
        return marked
    labels = categories_of(timeline.trace.kernels["full_name"])
    kernels = np.where(is_kernel, work["row"].to_numpy()[rows], 0)
    is_product, in_loop = (
        is_kernel & labels.is_in(categories).to_numpy()[kernels] for categories in (PRODUCTS, _SINGLE_TENSOR)
    )
    if not is_product.any():
        return marked
    steps = np.array([step.start_ns for step in window.steps], dtype=np.int64)
    step = np.searchsorted(steps, starts[rows], side="right")
    in_loop |= _clones(timeline, rows, in_loop, step)
    on_lists = _on_single_lists(timeline, is_kernel, kernels, _LEAST_LOOP * max(len(window.steps), 1))
    if on_lists.any():
        # Norms of a list are combined by another kernel and copied to their place.
        in_loop |= on_lists | ~is_kernel
    edges = np.flatnonzero(np.r_[True, (in_loop[1:] != in_loop[:-1]) | (step[1:] != step[:-1])])
    lengths = np.diff(np.r_[edges, len(rows)])
    fills = is_kernel & rows_named(timeline.trace.kernels["full_name"], lambda name: "FillFunctor" in name)[kernels]
    counted = np.add.reduceat(is_kernel | on_lists.any(), edges, dtype=np.int64)  # copies alone are no loop
    is_loop = in_loop[edges] & (counted >= _LEAST_LOOP) & (np.add.reduceat(fills, edges) < _MOST_ALIKE * lengths)
    kinds, kind = timeline.launch_kinds
    # The threads of elementwise kernels follow the size of the tensor. 0 if the grid is unknown.
    threads = kinds.select((pl.col("blocks") * pl.col("threads")).fill_null(0)).to_series().to_numpy()
    names = timeline.trace.kernels["full_name"].to_physical().to_numpy()
    for run in np.flatnonzero(is_loop):
        of_run = edges[run] + np.flatnonzero(is_kernel[edges[run] : edges[run] + lengths[run]])
        sizes, listed = threads[kind[kernels[of_run]]], on_lists[of_run]
        if listed.any():
            # A block of a list goes over 65,536 numbers, so that most parameters have one block.
            is_loop[run] = len(np.unique(sizes[listed])) > 1
        elif sizes.any():
            counts = np.unique(sizes, return_counts=True)[1]
            # The weights of many experts have one size, but those around them have several.
            alike = counts.max() > _MOST_ALIKE * len(sizes) and (counts >= _LEAST_OF_A_SIZE).sum() < _LEAST_SIZES
            is_loop[run] = not (alike or _takes_turns(names[kernels[of_run]], sizes))
        else:
            is_loop[run] = len(of_run) > 0
    marked[rows] = np.repeat(is_loop, lengths)
    return marked


def _clones(timeline: Timeline, rows: Int64s, in_loop: npt.NDArray[np.bool_], step: Int64s) -> npt.NDArray[np.bool_]:
    """Which of these rows of `Timeline.work` are copies within the GPU, one for each turn of a loop over parameters.

    A contiguous tensor is cloned by such a copy instead of a kernel. A few copies between kernels may be anything.

    Args:
        in_loop: whether each row is a kernel that may belong to a loop.
        step: of each row.
    """
    copies = np.zeros(len(rows), dtype=np.bool_)
    is_copy = (timeline.work["kind"] == "copy").to_numpy()[rows]
    within = (timeline.trace.copies["direction"] == "device-to-device").to_numpy()
    copies[is_copy] = within[timeline.work["row"].to_numpy()[rows[is_copy]]]
    either = in_loop | copies
    edges = np.flatnonzero(np.r_[True, (either[1:] != either[:-1]) | (step[1:] != step[:-1])])
    lengths, count = np.diff(np.r_[edges, len(rows)]), np.add.reduceat(copies, edges, dtype=np.int64)
    many = (count >= _LEAST_UPDATES) & (count >= _LEAST_DENSITY * lengths)
    return np.asarray(copies & np.repeat(many, lengths), dtype=np.bool_)


def _on_single_lists(
    timeline: Timeline, is_kernel: npt.NDArray[np.bool_], kernels: Int64s, least: int
) -> npt.NDArray[np.bool_]:
    """Which of these kernels go over lists of tensors, if they are so many that each list has a single tensor.

    Clipping by norm has two such operations. An optimizer has more, and a finding of its own.
    """
    names = timeline.trace.kernels["full_name"]
    on_lists = is_kernel & rows_named(names, lambda name: _ON_LISTS.search(name) is not None)[kernels]
    few = len(np.unique(names.to_physical().to_numpy()[kernels[on_lists]])) < _LEAST_OPERATIONS
    return on_lists & bool(few and on_lists.sum() >= least)


def _takes_turns(names: npt.NDArray[np.uint32], sizes: Int64s) -> bool:
    """Whether a sequence of kernels repeats after a few of them, and enough of these run on one size only.

    It is then no loop over parameters, which would run the same kernels on all sizes.
    """
    repeats = any(
        np.mean((names[turn:] == names[:-turn]) & (sizes[turn:] == sizes[:-turn])) >= _MOST_ALIKE
        for turn in range(1, _LONGEST_TURN + 1)
    )
    if not repeats:
        return False
    kernels = pl.DataFrame({"name": names, "size": sizes}).group_by("name").agg(pl.len(), pl.col("size").n_unique())
    return int(kernels.filter(pl.col("size") == 1)["len"].sum()) >= _ONE_SIZE_SHARE * len(names)


def code_loading(facts: Facts, *, slow_launches: bool = False) -> Intervals:
    """Intervals in which calls of the window load code.

    Args:
        slow_launches: include launching calls of a millisecond and more. The first launch of a kernel loads it (CUDA
            Programming Guide, "Lazy Loading"); no other launch onto an idle GPU takes that long.
    """
    calls = facts.timeline.api_calls_in(facts.window)
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    loads = rows_named(calls["name"], lambda name: LOADS_CODE.search(name) is not None)
    if slow_launches:
        loads |= (api_kinds(calls["name"]) == "launch").to_numpy() & (ends - starts >= STALL_MAX_NS)
    return union(Intervals(starts[loads], ends[loads]))


@dataclass(frozen=True)
class OptimizerWork:
    """The kernels of the optimizer in a window."""

    launches: int  #: all kernels
    single_tensor: int  #: kernels on one tensor each
    updates: int  #: parameter tensors, counted by a kernel that each of them needs once; 0 if no kernel shows it


@once
def optimizer_work(facts: Facts) -> OptimizerWork:
    """The kernels that were launched by the optimizer, or lie between its kernels."""
    kernels = facts.work.select("phase", "kind", "label", "row").filter(
        (pl.col("phase") == "optimizer") & (pl.col("kind") == "kernel")
    )
    single_tensor = int(kernels["label"].is_in(_SINGLE_TENSOR).sum())
    is_update = pl.Series(updates(facts.timeline))
    return OptimizerWork(kernels.height, single_tensor, int(is_update.gather(kernels["row"]).sum()))


def is_unfused(facts: Facts) -> bool:
    """Whether the optimizer launches many kernels per step, most of them on one tensor each."""
    optimizer, limits = optimizer_work(facts), facts.thresholds
    many = optimizer.launches >= limits.optimizer_launches_per_step * facts.steps
    return many and optimizer.single_tensor > limits.optimizer_single_tensor_share * optimizer.launches


# --- Counters: verdicts of a report on kernels -----------------------------------------------------------------------


COUNTED: Final = table(
    "diagnosis: counters of a kernel",
    "What counters add to a kernel of the trace. `warplens.diagnosis.facts`.",
    optional(
        pl.Categorical,
        bound="`memory`, `compute`, `latency`, `small` or `unknown`; null where the kernel was not profiled",
        bound_unit="which memory level or pipe",
    ),
    optional(bound_share="of that unit's peak rate"),
    optional(pl.Categorical, fault="the costliest fault"),
    optional(fault_share="of the kernel's time that it costs at most"),
    optional(
        pl.Categorical,
        limiter="what keeps further blocks off a multiprocessor, where occupancy is at fault",
        stall="the longest wait of the warps",
    ),
)

_KEY: Final = ("name", "grid", "block")
_LAUNCHED_AS: Final = ("name", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"))


@dataclass(frozen=True, eq=False)
class CounterVerdicts:
    """The verdicts of a counter report on kernels, by name, grid and block."""

    source: str  #: the report's file name
    kernels: pl.DataFrame  #: one row per name, grid and block (as texts), with `COUNTED`

    def of(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """The report's verdict on each of these rows of `Trace.kernels` (`COUNTED`)."""
        from warplens.analysis.counters.groups import SIZES

        named = kernels.select(pl.col("name").cast(pl.String), *SIZES)
        return named.join(self.kernels, on=_KEY, how="left", maintain_order="left").select(COUNTED.names)


def counted(report: KernelCounters) -> CounterVerdicts:
    """The verdicts of one report. Of several instances of one template with the same grid, the first one counts."""
    from warplens.analysis.counters.bounds import kernel_bounds
    from warplens.analysis.counters.groups import SIZES, group_launches

    groups = group_launches(report, _LAUNCHED_AS).counters
    bounds = kernel_bounds(groups).select(
        "launch",
        "bound",
        "fault",
        "stall",
        bound_unit="unit",
        bound_share="unit_share",
        fault_share="fault_gain_share",
        limiter="occupancy_limiter",
    )
    launches = groups.launches.filter(pl.col("kind") == "kernel")
    named = launches.select("launch", pl.col("name").cast(pl.String), *SIZES)
    kernels = named.join(bounds, on="launch", how="left", maintain_order="left").unique(_KEY, keep="first")
    return CounterVerdicts(report.capture.source, kernels.select(*_KEY, *COUNTED.names).cast(COUNTED.schema))
