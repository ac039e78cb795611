"""CUDA API calls on the host: counts, durations, threads, and the calls that block the host until the GPU is done."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
import polars as pl

from warplens.analysis.frames import duration_ns, ratio, spread, spread_of_counts
from warplens.patterns import lazy_pattern
from warplens.profile.columns import SPREAD, column, table
from warplens.profile.schema import Column, Int64s, Table, name_categories, rows_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

# --- Classes of CUDA and HIP functions, by name ---
#
# The families follow NVIDIA's and AMD's naming rules rather than a list of functions, so that a spelling of a later
# toolkit (`cudaLaunchKernelExC`, `cudaMemcpyBatchAsync`, …) falls into its family without a change here. Sources: the
# module pages of the CUDA Runtime API, CUDA Driver API and HIP Runtime API references.

ApiKind = Literal["launch", "graph-launch", "copy", "memset", "sync", "allocation", "event", "query", "module", "other"]

#: Return value of a call that ran out of memory: `cudaErrorMemoryAllocation`, `CUDA_ERROR_OUT_OF_MEMORY`.
OUT_OF_MEMORY: Final = 2

#: Whether a copy is from or to pageable memory, which the driver stages; false where that was not recorded.
IS_PAGEABLE: Final = ((pl.col("source_memory") == "pageable") | (pl.col("destination_memory") == "pageable")).fill_null(
    value=False
)

#: The dtype of a column of kinds.
API_KIND: Final = pl.Enum(list(get_args(ApiKind)))

_PREFIX = lazy_pattern(r"(?:cuda|cu|hip)(?=[A-Z])")

# `_v3020` (ABI version), `_v2` (driver version), `_ptsz`, `_ptds`, `_spt` (per-thread default stream).
_SUFFIX = lazy_pattern(r"(?:_v\d+|_ptsz|_ptds|_spt)+$")

#: Kinds by the function's name after `cuda`, `cu` or `hip`; the first pattern that matches its beginning decides.
_PATTERNS: Final[tuple[tuple[str, ApiKind], ...]] = (
    (r"GraphLaunch", "graph-launch"),
    # A host function runs on the CPU; everything else called "launch" starts a kernel.
    (r"LaunchHostFunc", "other"),
    (r"(Ext|Hcc)?(Module)?Launch", "launch"),
    (r"(Device|Thread|Ctx|Stream|Event)Synchronize", "sync"),
    (r"(Event|Stream)Query|EventElapsedTime|Stream(Get|IsCapturing)", "query"),
    (r"Event|Stream(Wait|Write|BatchMemOp)", "event"),
    (r"Memcpy|Mem(Discard(And|Batch))?\w*Prefetch", "copy"),
    (r"Memset", "memset"),
    (r"Mem(GetInfo|GetAddressRange|PtrGetInfo|Range|\w*(Granularity|Properties|Attribute))", "query"),
    (r"(Mem)?HostGet", "query"),
    # Device memory, pinned host memory, arrays, pools, virtual memory. Advice on managed memory allocates nothing.
    (r"(Ext)?(Malloc|Free)|Host(Alloc|Malloc|Free|Register|Unregister)", "allocation"),
    (r"Mem(Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|Address|Pool|Import|Export|Retain)", "allocation"),
    (r"(Mipmapped)?Array(3D)?(Create|Destroy)|Ipc(Open|Close)MemHandle|Multicast", "allocation"),
    (r"ModuleGetLoadingMode", "query"),
    (r"Module|Library|Link", "module"),
    (r"(Device|DevicePrimaryCtx|Func|Ctx|Kernel|Array|Graph\w*|Driver|Runtime|Pointer)(Get|Can|Is|Compute)", "query"),
    (r"Get|Peek|Occupancy|ChooseDevice|DeviceTotalMem", "query"),
)
_COMPILED: Final = tuple((lazy_pattern(pattern), kind) for pattern, kind in _PATTERNS)


def bare_name(name: str) -> str:
    """The name without version and per-thread-stream suffixes: `cudaFree_ptsz_v7000` → `cudaFree`."""
    return _SUFFIX.sub("", name)


@lru_cache(maxsize=4096)
def api_kind(name: str) -> ApiKind:
    """The kind of an API function, from its name.

    `launch` starts a kernel, `graph-launch` a CUDA graph, `copy` and `memset` move or fill memory, `sync` makes the
    host wait for the GPU, `allocation` obtains, pins, maps or releases memory, `event` records or awaits on the device
    without blocking the host, `query` only asks, `module` loads or looks up code. Everything else, including functions
    of neither CUDA nor HIP, is `other`.
    """
    prefix = _PREFIX.match(name)
    if prefix is None:
        return "other"
    verb = bare_name(name)[prefix.end() :]
    return next((kind for pattern, kind in _COMPILED if pattern.match(verb)), "other")


def api_kinds(names: pl.Series) -> pl.Series:
    """The kind of each name of a dictionary-encoded column, looked up once per distinct name.

    Args:
        names: `Trace.api_calls["name"]` or any part of it (dtype `Enum`).

    Returns:
        A series of dtype `API_KIND`, called `kind`, of the same length; null where the name is null.
    """
    kinds = pl.Series([api_kind(name) for name in name_categories(names)], dtype=API_KIND)
    return kinds.gather(names.to_physical()).alias("kind")


def launches_graph(name: str) -> bool:
    """Whether the function launches a CUDA graph."""
    return api_kind(name) == "graph-launch"


@lru_cache(maxsize=4096)
def blocks_host(name: str) -> bool:
    """Whether the function by its name blocks the host until the GPU is done: a wait, or a copy without `Async`.

    Asynchronous copies of pageable memory block the host as well, which the name does not show; `blocking_calls` finds
    them by the memory they moved. A synchronous copy from device to device may return early. (CUDA Runtime API, "API
    synchronization behavior".)
    """
    kind = api_kind(name)
    return kind == "sync" or (kind == "copy" and "Async" not in name and "Prefetch" not in name)


def waiting_calls(calls: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Those of these calls that block the host until the GPU is done, by name or as copies to pageable memory.

    If another wait of the thread follows such a copy at once, both are one wait: PyTorch waits after each of them.

    Args:
        calls: by process, thread and start.
        copies: `Trace.copies`.
    """
    key = ["process", "correlation"]
    to_pageable = copies.filter(pl.col("destination_memory") == "pageable").select(key)
    waits = rows_named(calls["name"], blocks_host)
    copying = calls.select(key).with_row_index().filter(api_kinds(calls["name"]) == "copy")
    staged = copying.join(to_pageable, on=key, how="semi")["index"].to_numpy().astype(np.int64)
    after = next_of_thread(calls, staged)
    waits[staged[(after < 0) | ~waits[after]]] = True
    return calls.filter(pl.Series(waits))


def next_of_thread(calls: pl.DataFrame, rows: Int64s, offset: Literal[-1, 1] = 1) -> Int64s:
    """The row of the call of the same thread right after (before, with offset −1) each of these; −1 for none.

    Args:
        calls: by process, thread and start.
    """
    beside = np.clip(rows + offset, 0, max(calls.height - 1, 0))
    threads = calls.select("process", "thread")
    is_same = (threads[rows] == threads[beside]).select(pl.all_horizontal(pl.all())).to_series().to_numpy()
    return np.where(is_same & (beside != rows), beside, -1)


@lru_cache(maxsize=4096)
def polls_device(name: str) -> bool:
    """Whether the function queries completion without waiting; a run of such calls is a busy wait."""
    prefix = _PREFIX.match(name)
    return prefix is not None and bare_name(name)[prefix.end() :] in ("EventQuery", "StreamQuery")


API_CALLS: Final = table(
    "API calls",
    "One group of CUDA API calls. `warplens api`; the columns of `--by` stand first. Times are the host's.",
    "name",
    column(
        "kind",
        dtype=API_KIND,
        help="what the function does: `launch`, `graph-launch`, `copy`, `memset`, `sync`, `allocation`, `event`,"
        " `query`, `module`, `other`",
    ),
    "process thread calls",
    SPREAD,
    "share",
    name="function, without the version suffix that tools append",
    share="share of the summed time of all API calls in the window, not of its length",
    keys="name kind process thread",
)

WAITS: Final = table(
    "waits",
    "One group of waits that the profiler recorded. `warplens.analysis.api.synchronization_statistics`.",
    "kind device process thread",
    Column("waits", pl.Int64, "how many"),
    SPREAD,
    "share",
    thread="thread of the API call; null where it was not recorded",
    share="share of the summed time of all waits",
    keys="kind device process thread",
)

_REASON: Final = pl.Enum(["synchronization", "synchronous-copy", "pageable-copy"])

BLOCKING_CALLS: Final = table(
    "blocking calls",
    "One function on one thread that held the host until the GPU was done. `warplens.analysis.api.blocking_calls`.",
    column("reason").but(
        dtype=_REASON,
        help="`synchronization`, `synchronous-copy`, or `pageable-copy` (an asynchronous copy of pageable memory)",
    ),
    "name process thread calls",
    SPREAD,
    name="function",
)


def api_statistics(timeline: Timeline, window: Window, by: Sequence[str] = ("name", "kind")) -> pl.DataFrame:
    """Number and durations of the calls of each CUDA API function, largest total time first.

    With functions as rows, the numbers are those of `nsys stats -r cuda_api_sum`. That report keeps version suffixes
    that are not four digits long (`cudaGraphLaunch_v10000`), and shows a function that the file knows under two names
    in two rows of the same label.

    Args:
        window: the part of it that counts; a call belongs to it by its begin.
        by: any of `API_CALLS.keys`.

    Returns:
        `API_CALLS.by(*by)`.

    Raises:
        UsageError: `by` is empty or names something else.
    """
    return _grouped(timeline.api_calls_in(window), by, [pl.len().alias("calls"), *spread(duration_ns())])


def api_statistics_of_counts(counts: pl.DataFrame, by: Sequence[str] = ("name", "kind")) -> pl.DataFrame:
    """`api_statistics` from distinct calls with counts: columns `name`, those of `by`, `duration_ns` and `calls`.

    The standard deviation agrees up to rounding, everything else exactly.
    """
    return _grouped(counts.sort("duration_ns"), by, spread_of_counts())


def _grouped(calls: pl.DataFrame, by: Sequence[str], statistics: list[pl.Expr]) -> pl.DataFrame:
    result_table = API_CALLS.by(*by)
    if "kind" in by:
        calls = calls.with_columns(api_kinds(calls["name"]))
    return _longest_first(result_table, calls.group_by(by).agg(*statistics), by)


def synchronization_statistics(timeline: Timeline, window: Window, by: Sequence[str] = ("kind",)) -> pl.DataFrame:
    """Number and durations of the waits of the host for the GPU, or of a stream for an event, largest total time first.

    The waits are those that the profiler recorded as such (`Trace.synchronizations`). A profile without that table
    gives no rows; `blocking_calls` still finds waits by the names of the API functions.

    Args:
        window: the part of it that counts; a wait belongs to it by its begin.
        by: any of `WAITS.keys`; the thread is that of the API call, null where it was not recorded.

    Returns:
        `WAITS.by(*by)`.

    Raises:
        UsageError: `by` is empty or names something else.
    """
    result_table = WAITS.by(*by)
    waits = timeline.synchronizations_in(window)
    if "thread" in by:
        first_calls = (
            timeline.trace.api_calls.select("process", "correlation", "thread", "start_ns")
            .join(waits, on=["process", "correlation"], how="semi")
            .sort("start_ns")
            .unique(["process", "correlation"], keep="first")
            .drop("start_ns")
        )
        waits = waits.join(first_calls, on=["process", "correlation"], how="left")
    return _longest_first(result_table, waits.group_by(by).agg(pl.len().alias("waits"), *spread(duration_ns())), by)


def blocking_calls(timeline: Timeline, window: Window) -> pl.DataFrame:
    """API calls that blocked the host until the GPU was done, by reason, function and thread, largest total time first.

    Three kinds do so: synchronizations; copies without `Async` in their name; and asynchronous copies of pageable
    memory, which the driver has to stage (CUDA Runtime API, "API synchronization behavior").

    Returns:
        `BLOCKING_CALLS`; each call counts in one row only.
    """
    calls = timeline.api_calls_in(window)
    blocking = pl.Series("blocks", rows_named(calls["name"], blocks_host))
    calls = calls.with_columns(api_kinds(calls["name"]), blocking)
    from_pageable = timeline.trace.copies.filter(IS_PAGEABLE).select("process", "correlation")
    cause = pl.when(pl.col("kind") == "sync").then(pl.lit("synchronization")).otherwise(pl.lit("synchronous-copy"))
    staged = calls.filter((pl.col("kind") == "copy") & ~pl.col("blocks"))
    staged = staged.join(from_pageable, on=["process", "correlation"], how="semi")
    reasons = (
        calls.filter("blocks").with_columns(reason=cause.cast(_REASON)),
        staged.with_columns(reason=pl.lit("pageable-copy", dtype=_REASON)),
    )
    keys = ["reason", "name", "process", "thread"]
    statistics = pl.concat(reasons).group_by(keys).agg(pl.len().alias("calls"), *spread(duration_ns()))
    return _longest_first(BLOCKING_CALLS, statistics, keys)


def _longest_first(result_table: Table, statistics: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    share = ratio(pl.col("total_ns"), pl.col("total_ns").sum())
    rows = result_table.conform(statistics.with_columns(share=share))
    return rows.sort(["total_ns", *by], descending=[True, *(False for _ in by)])
