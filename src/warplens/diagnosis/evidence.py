"""What the launching threads of a window did: how often and how long they waited for the GPU, and how they launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import api_kinds, blocks_host
from warplens.analysis.categories import categories_of
from warplens.analysis.frames import numbered, once
from warplens.analysis.hostpace import STALL_MAX_NS
from warplens.analysis.intervals import Intervals, Owned, clip, complement, measure_before, subtract, total, union
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.launches import LaunchSummary, launch_summary, launching_threads
from warplens.analysis.steps import LOADS_CODE
from warplens.patterns import lazy_pattern
from warplens.profile.columns import optional, table
from warplens.profile.schema import Int64s, rows_named

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis.facts import Facts
    from warplens.profile.counters import KernelCounters


# ---------------------------------------------------------------------------------------------------------------------
# What the launching threads of a window did: how often and how long they waited for the GPU, and how they launched.


#: A launching call takes 2–10 µs. One that takes longer than this waits for room in the queue of launches, which holds
#: about a thousand: the host is ahead of the GPU, and not at work.
_QUEUE_FULL_NS: Final = 100_000


@dataclass(frozen=True, eq=False)
class HostLoad:
    """The host's side of a window. Only threads that launch GPU work count."""

    launches: LaunchSummary  #: how the kernels were launched
    waits: int  #: calls that held a thread until the GPU was done: synchronizations and synchronous copies
    waited_ns: int  #: time of the window in which a thread was inside of a call that waits, and a GPU worked
    #: per process, when that was so, in the whole profile. A call that waits for a GPU without work does something
    #: else, such as loading code.
    waiting: dict[int, Intervals]
    #: time inside the window's calls that wait for the GPU by their name, or read a few bytes back, and in which no GPU
    #: worked: what goes away with the calls, beside the waiting
    blocked_ns: int
    readbacks: int  #: copies of a few bytes to the host
    readback_calls: Intervals  #: when the calls that issued those held their threads
    allocations: int  #: calls that obtain or release memory; `allocation_ns` their time
    allocation_ns: int


def host_load(timeline: Timeline, window: Window, readback_bytes: int) -> HostLoad:
    """What the launching threads did.

    Args:
        window: the part of it that counts; a call belongs to it by its begin.
        readback_bytes: up to this size, a copy to the host is a read-back.
    """
    work = timeline.work_in(window)
    threads = launching_threads(timeline, window)
    calls = timeline.api_calls_in(window).select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    kind = api_kinds(calls["name"])
    allocating = calls.filter(kind == "allocation").join(threads, on=["process", "thread"], how="semi")
    waits = calls.filter(pl.Series(rows_named(calls["name"], blocks_host))).join(
        threads, on=["process", "thread"], how="semi"
    )
    copies = timeline.copies_in(window)
    small = copies.filter((pl.col("direction") == "device-to-host") & (pl.col("bytes") <= readback_bytes))
    reading = calls.filter(kind == "copy").join(small, on=["process", "correlation"], how="semi")
    waiting = _waiting(timeline, threads, work["device"].unique().sort().to_list())
    clipped = [clip(intervals, window.start_ns, window.end_ns) for intervals in waiting.values()]
    return HostLoad(
        launches=launch_summary(timeline, window),
        waits=waits.height,
        waited_ns=max((total(intervals) for intervals in clipped), default=0),
        waiting=waiting,
        blocked_ns=_blocked_ns(pl.concat([waits, reading]), waiting),
        readbacks=small.height,
        readback_calls=union(Intervals.of(reading)),
        allocations=allocating.height,
        allocation_ns=int((allocating["end_ns"] - allocating["start_ns"]).sum()),
    )


def _blocked_ns(calls: pl.DataFrame, waiting: dict[int, Intervals]) -> int:
    """Time in these calls that is not waiting for a busy GPU."""
    blocked = 0
    for process, intervals in waiting.items():
        inside = union(Intervals.of(calls.filter(pl.col("process") == process)))
        blocked += total(inside) - total(_both(inside, intervals))
    return blocked


def needed_ns(host: HostLoad, work: pl.DataFrame, parts: npt.NDArray[np.int32]) -> int:
    """Host time that it took to issue this work: from the first launch to the last of each part, less the waits.

    However fast the GPU gets, the work cannot be done sooner. Where several GPUs worked, each counts for itself, as in
    the wall time that this is compared with.

    Args:
        host: when threads waited for the GPU.
        work: columns `device`, `process`, `launch_start_ns`, `launch_end_ns`; nulls where the launch is not known.
        parts: shape (rows,), what is counted from a first to a last launch of its own: a step of a phase, or 0 for all.
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
        mine = spans.filter(pl.col("process") == process)
        begins, ends = mine["begin"].to_numpy(), mine["end"].to_numpy()
        waiting = host.waiting.get(process, Intervals.none())
        needed += int((ends - begins - measure_before(waiting, ends) + measure_before(waiting, begins)).sum())
    return needed


def _waiting(timeline: Timeline, threads: pl.DataFrame, devices: list[int]) -> dict[int, Intervals]:
    """Per process, when one of these threads was inside of a call that waits while one of these devices worked."""
    calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    kind = api_kinds(calls["name"])
    long = (calls["end_ns"] - calls["start_ns"]) > _QUEUE_FULL_NS
    queue_full = kind.is_in(["launch", "graph-launch", "copy", "memset"]) & long
    pageable = (pl.col("source_memory") == "pageable") | (pl.col("destination_memory") == "pageable")
    staged = timeline.trace.copies.filter(pageable.fill_null(value=False)).select("process", "correlation")
    found = pl.concat(
        [
            calls.filter(pl.Series(rows_named(calls["name"], blocks_host)) | queue_full),
            calls.filter(kind == "copy").join(staged, on=["process", "correlation"], how="semi"),
        ]
    ).join(threads, on=["process", "thread"], how="semi")
    busy = [timeline.busy(device) for device in devices]
    working = (
        union(Intervals(*(np.concatenate(edges) for edges in zip(*busy, strict=True)))) if busy else Intervals.none()
    )
    return {
        process: _both(union(Intervals.of(found.filter(pl.col("process") == process))), working)
        for process in threads["process"].unique().sort()
    }


def _both(first: Intervals, second: Intervals) -> Intervals:
    """The time that two disjoint sets have in common."""
    if not len(first.starts):
        return first
    pieces = Owned(*first, np.zeros(len(first.starts), dtype=np.int64))
    common = subtract(pieces, complement(second, int(first.starts[0]), int(first.ends.max())))
    return Intervals(common.starts, common.ends)


#: Only the update of a parameter by a quotient (Adam and its kin) runs PyTorch's `addcdiv` on a single tensor: once for
#: each parameter.
_UPDATE: Final = "addcdiv"

#: Fewer in a step may be anything.
_LEAST_UPDATES: Final = 16

#: Adam written out launches 8 to 16 kernels a parameter. Where updates are rarer than that among the launches between
#: the first and the last, something else lies between them.
_LEAST_DENSITY: Final = 1 / 24


def updates(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """For each kernel whether it updates one parameter tensor."""
    names = timeline.trace.kernels["full_name"]
    return rows_named(names, lambda name: _UPDATE in name and "multi_tensor" not in name)


def mark_optimizers(timeline: Timeline, window: Window) -> npt.NDArray[np.bool_]:
    """For each row of `Timeline.work` whether it lies between the first and the last update of a step of the window."""
    work = timeline.work
    marked = np.zeros(work.height, dtype=np.bool_)
    is_update = np.zeros(work.height, dtype=np.bool_)
    kernel = (work["kind"] == "kernel").to_numpy()
    if not kernel.any():
        return marked
    is_update[kernel] = updates(timeline)[work["row"].to_numpy()[kernel]]
    places = np.flatnonzero(is_update)
    begun = work["start_ns"].to_numpy()
    for step in window.steps:
        inside = places[(begun[places] >= step.start_ns) & (begun[places] < step.end_ns)]
        if len(inside) >= _LEAST_UPDATES and len(inside) >= _LEAST_DENSITY * (inside[-1] - inside[0]):
            marked[inside[0] : inside[-1] + 1] = True
    return marked


#: Kernels that an optimizer written with tensor operations launches.
_SINGLE_TENSOR: Final = ("elementwise", "copy-cast", "reduction")

#: In a row, and without a product between them, so many kernels on one tensor each are a loop over the parameters: what
#: lies between two layers is a tenth of that.
_LEAST_LOOP: Final = 100

#: Kernels of `torch._foreach_*`; an optimizer that is written with them has this many operations.
_ON_LISTS: Final = lazy_pattern(r"multi_tensor_apply_kernel(?!.*Fused)|lpnorm_cleanup")
_LEAST_OPERATIONS: Final = 5

#: Parameters come in several sizes. Of a network with batch norms two in three are vectors, of one with narrow
#: convolutions three in four launches have the commonest size; a loop over classes or samples has hardly another.
_MOST_ALIKE: Final = 0.85

#: A loop over words, samples or turns runs the same few kernels each time.
_LONGEST_TURN: Final = 8
_OF_ONE_SIZE: Final = 0.25


def mark_loops(timeline: Timeline, window: Window) -> npt.NDArray[np.bool_]:
    """For each row of `Timeline.work` whether it is of a loop over parameters, such as a moving average of weights.

    Programs without products have no parameters to speak of. Loops over classes or samples, in a loss for example, work
    on tensors of one size, or turn by turn on the same few.
    """
    work = timeline.work
    marked = np.zeros(work.height, dtype=np.bool_)
    begun = work["start_ns"].to_numpy()
    rows = np.flatnonzero((begun >= window.start_ns) & (begun < window.end_ns))
    kernel = (work["kind"] == "kernel").to_numpy()[rows]
    if kernel.sum() < _LEAST_LOOP:
        return marked
    labels = categories_of(timeline.trace.kernels["full_name"])
    place = np.where(kernel, work["row"].to_numpy()[rows], 0)
    is_product, of_one = (kernel & labels.is_in(names).to_numpy()[place] for names in (PRODUCTS, _SINGLE_TENSOR))
    if not is_product.any():
        return marked
    lists = kernel & _of_a_list_each(timeline, place, _LEAST_LOOP * max(len(window.steps), 1))
    if lists.any():
        # Norms of a list are put together by a kernel, and copied to where they are kept.
        of_one |= lists | ~kernel
    steps = np.array([step.start_ns for step in window.steps], dtype=np.int64)
    step = np.searchsorted(steps, begun[rows], side="right")
    edges = np.flatnonzero(np.r_[True, (of_one[1:] != of_one[:-1]) | (step[1:] != step[:-1])])
    lengths = np.diff(np.r_[edges, len(rows)])
    long = of_one[edges] & (lengths >= _LEAST_LOOP)
    kinds, kind = timeline.launch_kinds
    # In elementwise work they follow the size of the tensor. 0 where the grid is unknown.
    threads = kinds.select((pl.col("blocks") * pl.col("threads")).fill_null(0)).to_series().to_numpy()
    names = timeline.trace.kernels["full_name"].to_physical().to_numpy()
    for run in np.flatnonzero(long):
        of_run = place[edges[run] : edges[run] + lengths[run]]
        listed = lists[edges[run] : edges[run] + lengths[run]]
        sizes = threads[kind[of_run]]
        if listed.any():
            # A block of a list goes over 65,536 numbers: most parameters have one.
            long[run] = len(np.unique(sizes[listed])) > 1
        elif sizes.any():
            alike = np.unique(sizes, return_counts=True)[1].max() > _MOST_ALIKE * len(sizes)
            long[run] = not (alike or _takes_turns(names[of_run], sizes))
    marked[rows] = np.repeat(long, lengths)
    return marked


def _of_a_list_each(timeline: Timeline, rows: Int64s, least: int) -> npt.NDArray[np.bool_]:
    """Which of these kernels go over lists of tensors, and are so many that each list holds one.

    Clipping by norm has two such operations. An optimizer has more, and a finding of its own.
    """
    names = timeline.trace.kernels["full_name"]
    lists = rows_named(names, lambda name: _ON_LISTS.search(name) is not None)[rows]
    few = len(np.unique(names.to_physical().to_numpy()[rows[lists]])) < _LEAST_OPERATIONS
    return lists & bool(few and lists.sum() >= least)


def _takes_turns(names: npt.NDArray[np.uint32], sizes: Int64s) -> bool:
    """Whether a row of kernels repeats after a few of them, and some of these run on one size alone.

    It is not over parameters then: what is done to one is done to all, whatever their sizes.
    """
    turns = any(
        np.mean((names[turn:] == names[:-turn]) & (sizes[turn:] == sizes[:-turn])) >= _MOST_ALIKE
        for turn in range(1, _LONGEST_TURN + 1)
    )
    if not turns:
        return False
    kernels = pl.DataFrame({"name": names, "size": sizes}).group_by("name").agg(pl.len(), pl.col("size").n_unique())
    return int(kernels.filter(pl.col("size") == 1)["len"].sum()) >= _OF_ONE_SIZE * len(names)


def code_loading(facts: Facts, *, slow_launches: bool = False) -> Intervals:
    """When calls of the window load code.

    Args:
        slow_launches: also launching calls of a millisecond and more. The first launch of a kernel loads it (CUDA
            Programming Guide, "Lazy Loading"); no other launch onto an idle GPU lasts that long.
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

    launches: int  #: all of them
    single_tensor: int  #: … of which each works on one tensor
    updates: int  #: parameter tensors, counted by the kernel that each of them needs once; 0 where no kernel tells


@once
def optimizer_work(facts: Facts) -> OptimizerWork:
    """The kernels that were launched by the optimizer, or that its kernels enclose."""
    mine = facts.work.select("phase", "kind", "label", "row").filter(
        (pl.col("phase") == "optimizer") & (pl.col("kind") == "kernel")
    )
    of_one = mine["label"].is_in(_SINGLE_TENSOR)
    is_update = pl.Series(updates(facts.timeline))
    return OptimizerWork(mine.height, int(of_one.sum()), int(is_update.gather(mine["row"]).sum()))


def is_unfused(facts: Facts) -> bool:
    """Whether it launches many kernels a step, and most of them on one tensor each."""
    found, limits = optimizer_work(facts), facts.thresholds
    many = found.launches >= limits.optimizer_launches_per_step * facts.steps
    return many and found.single_tensor > limits.optimizer_single_tensor_share * found.launches


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
class Counted:
    """The verdicts of a counter report on kernels, to be looked up by name, grid and block."""

    source: str  #: the report's file name
    kernels: pl.DataFrame  #: one row a name, grid and block: these as texts, and `COUNTED`

    def of(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """What the report says of each of these rows of `Trace.kernels` (`COUNTED`)."""
        from warplens.analysis.counters.groups import SIZES

        named = kernels.select(pl.col("name").cast(pl.String), *SIZES)
        return named.join(self.kernels, on=_KEY, how="left", maintain_order="left").select(COUNTED.names)


def counted(report: KernelCounters) -> Counted:
    """The verdicts of one report. Of several instances of one template with the same grid, the first stands for all."""
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
    return Counted(report.capture.source, kernels.select(*_KEY, *COUNTED.names).cast(COUNTED.schema))
