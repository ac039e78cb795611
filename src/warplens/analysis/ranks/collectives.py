"""Collectives: their kind, read from names; their size in bytes; and their bandwidth formulas.

Sizes and factors are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md, and `…GetBw` of each test): the algorithm
bandwidth is `S / t`, and the bus bandwidth multiplies it with a factor that makes it comparable with the hardware's
peak whatever the number of ranks.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.frames import duration_ns
from warplens.analysis.intervals import measure_before
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.ranks.measures import BusyTime, communication_rows
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import Window
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, name_categories

#: The kind of a collective that no name reveals.
UNKNOWN_KIND: Final = "unknown"

#: Every kind, in the order of presentation.
KINDS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    UNKNOWN_KIND,
)

#: Kinds that no rank can leave before every rank has arrived and contributed: they end on all ranks at nearly the same
#: time. The root of a broadcast, in contrast, is done as soon as its data is out.
ENDS_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

# Spellings: `allreduce`, `all_reduce`, `AllReduce`, `_allgather_base`, `reduce_scatter_tensor_coalesced`, `alltoallv`.
# The order matters: "reduce" is part of three others, "gather" and "scatter" of one each.
_SPELLINGS: Final = (
    ("all_reduce", re.compile(r"all_?reduce|cross_?device_?reduce|one_?shot_?reduce")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_gather", re.compile(r"all_?gather")),
    ("all_to_all", re.compile(r"all_?to_?all|all2all|\ba2a")),
    ("broadcast", re.compile(r"broadcast|bcast")),
    ("barrier", re.compile(r"barrier")),
    ("send_recv", re.compile(r"send|recv|batch_?isend|p2p")),
    ("reduce", re.compile(r"reduce(?!r)")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
)

#: Ranges of a collective: PyTorch's (`nccl:all_reduce`, with or without the suffixes that `emit_nvtx` appends) and
#: NCCL's own NVTX (`ncclAllReduce`). `ncclGroupEnd` and the like match and give no kind.
_COLLECTIVE_RANGE: Final = re.compile(r"^(?:[nr]ccl:|[nr]ccl(?=[A-Z])|c10d::)(?P<what>[^,\[(]*)")

#: Bytes of an element by PyTorch's names of types, as `record_param_comms` gives them.
_ELEMENT_BYTES: Final = {
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "half": 2, "bfloat16": 2, "short": 2, "float16": 2, "int16": 2,
    "uint16": 2, "float": 4, "int": 4, "float32": 4, "int32": 4, "uint32": 4, "double": 8, "long": 8, "float64": 8,
    "int64": 8, "uint64": 8, "complexfloat": 8, "complexhalf": 4, "complexdouble": 16,
}  # fmt: skip


@lru_cache(maxsize=4096)
def kind_of_description(name: str) -> str:
    """The kind of a collective from a framework's name (`allreduce`, `_reduce_scatter_base`)."""
    lowered = name.lower()
    return next((kind for kind, spelling in _SPELLINGS if spelling.search(lowered)), UNKNOWN_KIND)


@lru_cache(maxsize=4096)
def kind_of_kernel(name: str) -> str:
    """The kind of a communication kernel, read from its name (`ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`).

    A kernel that serves every kind (`ncclDevKernel_Generic`, RCCL) is of unknown kind.
    """
    # Only the function's own name counts: arguments and template parameters contain element types and operations.
    return kind_of_description(re.split(r"[(<]", name, maxsplit=1)[0])


@lru_cache(maxsize=65_536)
def kind_of_range(name: str) -> str:
    """The kind of the collective that an annotated range names; unknown for other ranges."""
    range_match = _COLLECTIVE_RANGE.match(name)
    return kind_of_description(range_match["what"]) if range_match else UNKNOWN_KIND


def size_bytes(kind: str, in_elements: int | None, out_elements: int | None, dtype: str | None) -> int | None:
    """The size `S` of a collective as nccl-tests counts it; None where the trace does not record it.

    All-gather and gather count the gathered whole, reduce-scatter, scatter and all-to-all the whole input, the others
    the buffer of a rank.

    Args:
        kind: one of `KINDS`.
        in_elements: input elements per rank.
        out_elements: output elements per rank.
        dtype: type of an element as PyTorch calls it.
    """
    element_bytes = _ELEMENT_BYTES.get((dtype or "").lower().removeprefix("c10::").removeprefix("torch."))
    if kind in ("all_gather", "gather", "send_recv"):
        known = [count for count in (in_elements, out_elements) if count is not None]
        elements = max(known) if known else None
    else:
        elements = in_elements if in_elements is not None else out_elements
        if kind == "broadcast" and not elements:
            elements = out_elements
    return None if element_bytes is None or elements is None else elements * element_bytes


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """Factor from the algorithm bandwidth of a collective among `ranks` ranks to its bus bandwidth.

    None for kinds without a formula, and for an unknown number of ranks. Source: nccl-tests, see the module.
    """
    if kind in ("broadcast", "reduce", "send_recv"):
        return 1.0
    if ranks is None or ranks < 1:
        return None
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return None


_KIND = pl.Enum(KINDS)

#: Columns that identify groups of collectives.
GROUP: Final = column("group", dtype=pl.String, help="process group; null where it is not recorded", kind="name")
GROUP_RANKS: Final = column("group_ranks")
GROUP_SIZE: Final = column("group_size")
SIZE: Final = Column("size_bytes", pl.Int64, "size as nccl-tests counts it; null where it is not recorded")

COLLECTIVES: Final = table(
    "collectives of one rank",
    "One communication kernel of one rank, in the file's own clock.",
    column(
        "kind",
        dtype=_KIND,
        help="what the framework, the range around its launch or its name says, in this order",
    ),
    Column("kernel_kind", _KIND, "what its name alone says"),
    GROUP,
    GROUP_RANKS,
    GROUP_SIZE,
    column("sequence", help="its number in the group"),
    SIZE,
    "start_ns end_ns stream exposed_ns",
    Column(
        "joinable",
        pl.Boolean,
        "whether it could have been one with the one of its kind and group before it: no product waited for that",
    ),
    "in_window",
    end_ns="end",
    in_window="whether it begins in the analysed window",
)


def rank_collectives(timeline: Timeline, device: int, busy: BusyTime, window: Window) -> pl.DataFrame:
    """All communication kernels of the device, over the whole profile.

    A kernel that carries several described operations (a coalesced call) is one row with their summed size.

    Returns:
        `COLLECTIVES`.
    """
    kernels = timeline.trace.kernels
    rows = communication_rows(timeline)
    rows = rows[(kernels["device"] == device).to_numpy()[rows]]
    rows = rows[np.argsort(kernels["start_ns"].to_numpy()[rows], kind="stable")]
    communication = kernels.select("start_ns", "end_ns", "stream", "full_name")[rows]
    kernel_kinds = [kind_of_kernel(text) for text in name_categories(kernels["full_name"])]
    by_name = pl.Series("kernel_kind", kernel_kinds, dtype=_KIND).gather(communication["full_name"].to_physical())
    described = _described(timeline.trace.collectives)
    frame = communication.drop("full_name").with_columns(pl.Series("kernel", rows), by_name)
    frame = frame.join(described, on="kernel", how="left", maintain_order="left")
    kinds = frame["kind"]
    unclear = kinds.is_null() & frame["kernel_kind"].is_in([UNKNOWN_KIND, "send_recv"])
    if unclear.any():
        kinds = kinds.scatter(unclear.arg_true(), _kinds_of_ranges(timeline, rows[unclear.to_numpy()]))
    starts, ends = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    exposed = measure_before(busy.exposed, ends) - measure_before(busy.exposed, starts)
    inside = np.full(len(rows), True)
    if window.kind != "all":
        inside = (starts >= window.start_ns) & (starts < window.end_ns)
    frame = frame.with_columns(
        pl.Series("kind", kinds).fill_null(frame["kernel_kind"]),
        pl.Series("exposed_ns", exposed),
        pl.Series("in_window", inside),
    )
    return COLLECTIVES.conform(frame.with_columns(_joinable(timeline, device, frame)))


def _joinable(timeline: Timeline, device: int, frame: pl.DataFrame) -> pl.Series:
    """Whether each collective could be merged with the one before it: no product ran or waited between them.

    The sums of a tensor-parallel layer are needed by its next product: a product begins between any two of them, and
    none while one is in progress. Gradients are needed by the optimizer alone: their collectives follow each other, or
    the backward pass runs beside them.
    """
    kernels = timeline.trace.kernels
    products = categories_of(kernels["full_name"]).is_in(list(PRODUCTS)) & (kernels["device"] == device)
    begins = np.sort(kernels["start_ns"].to_numpy()[products.to_numpy()])
    starts, ends = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    overlaps_compute = (ends - starts) > frame["exposed_ns"].to_numpy()
    products_before = np.searchsorted(begins, starts, side="right")
    between = products_before[1:] - np.searchsorted(begins, np.minimum(ends[:-1], starts[1:]), side="left")
    is_same = (frame["kind"] == frame["kind"].shift(1)) & frame["group"].eq_missing(frame["group"].shift(1))
    follows = np.r_[False, (between <= 0) | overlaps_compute[:-1]] if frame.height else np.zeros(0, dtype=np.bool_)
    return pl.Series("joinable", follows & is_same.fill_null(value=False).to_numpy())


def _described(collectives: pl.DataFrame) -> pl.DataFrame:
    """The framework's description of each kernel, one row per kernel."""
    with_kernel = collectives.filter(pl.col("kernel").is_not_null()).with_columns(
        pl.col("name", "group", "group_ranks", "dtype").cast(pl.String)
    )
    distinct = with_kernel.select("name", "in_elements", "out_elements", "dtype").unique()
    kinds = [kind_of_description(name) for name in distinct["name"]]
    sizes = [size_bytes(kind, *row) for kind, row in zip(kinds, distinct.drop("name").iter_rows(), strict=True)]
    sizes_by_description = distinct.with_columns(
        pl.Series("kind", kinds, dtype=_KIND), pl.Series("size_bytes", sizes, dtype=pl.Int64)
    )
    return (
        with_kernel.join(
            sizes_by_description, on=["name", "in_elements", "out_elements", "dtype"], how="left", nulls_equal=True
        )
        .group_by("kernel")
        .agg(
            pl.col("kind", "group", "group_ranks", "group_size").first(),
            pl.col("sequence").min(),
            pl.when(pl.col("size_bytes").is_not_null().all()).then(pl.col("size_bytes").sum()).alias("size_bytes"),
        )
    )


def _kinds_of_ranges(timeline: Timeline, kernels: Int64s) -> pl.Series:
    """The kind of the outermost enclosing range that names a collective; null for none.

    An all-to-all runs as a kernel of sends and receives: only the call around it (`nccl:all_to_all`) names it.
    """
    ranges = timeline.trace.ranges
    kinds = pl.Series("kind", [None, *KINDS], dtype=_KIND)
    if not ranges.height:
        return kinds.gather(np.zeros(len(kernels), dtype=np.int64))
    codes = np.array([KINDS.index(kind_of_range(text)) for text in name_categories(ranges["name"])], dtype=np.int64)
    label = codes[ranges["name"].to_physical().to_numpy()]
    label = np.where(label == KINDS.index(UNKNOWN_KIND), 0, label + 1)
    work = timeline.work
    is_kernel = (work["kind"] == "kernel").to_numpy()
    range_of_kernel = np.full(timeline.trace.kernels.height, NO_RANGE, dtype=np.int64)
    range_of_kernel[work["row"].to_numpy()[is_kernel]] = work["range"].fill_null(NO_RANGE).to_numpy()[is_kernel]
    outermost_kind = np.r_[timeline.forest.outermost_match(label), 0][range_of_kernel[kernels]]
    return kinds.gather(outermost_kind)


# --- Collectives by kind, size and process group ---
#
# There are two times, each with a bandwidth. The *own* duration of a kernel includes waiting for late peers; it is all
# that a profile of one rank shows. The *transfer*, from the last rank's arrival to the last end, is the network's time;
# it needs the collective to be matched on several ranks.

COLLECTIVE_GROUPS: Final = table(
    "collectives by size and group",
    "One kind, process group and size, over the window of every rank. Bandwidths are modelled: recorded size by"
    " measured time.",
    column(
        "kind",
        dtype=_KIND,
        help="`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `reduce`, `gather`,"
        " `scatter`, `barrier`, `send_recv` or `unknown`",
    ),
    GROUP,
    GROUP_SIZE,
    SIZE,
    "kernels",
    column("collectives", help="collectives that were found on several ranks"),
    column("total_ns", help="summed durations of the kernels"),
    column("exposed_ns", help="the part of it not overlapped with compute"),
    "median_ns",
    Column(
        "transfer_median_ns",
        pl.Float64,
        "from the last arrival to the last end; null where none was found on several ranks",
    ),
    column("wait_ns", help="summed over ranks, until all had arrived"),
    Column("algorithm_bytes_per_s", pl.Float64, "size by transfer_median_ns", title="Algorithm bw"),
    Column(
        "bus_bytes_per_s", pl.Float64, "algorithm bandwidth × the factor of nccl-tests for the kind", title="Bus bw"
    ),
    Column("own_algorithm_bytes_per_s", pl.Float64, "size by median_ns"),
    Column("own_bus_bytes_per_s", pl.Float64, "the same × the factor", title="Bus bw, own"),
    kernels="kernels over all ranks",
)

_KEY = ["kind", "group", "group_size", "size_bytes"]


def collective_groups(events: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """The collectives of the window by kind, group and size, largest total time first.

    Args:
        events: of `across.all_events`.
        collectives: `balance.COLLECTIVE_INSTANCES`.

    Returns:
        `COLLECTIVE_GROUPS`.
    """
    duration = duration_ns()
    kernels = (
        events.filter("in_window")
        .group_by(_KEY)
        .agg(
            pl.len().cast(pl.Int64).alias("kernels"),
            duration.sum().alias("total_ns"),
            pl.col("exposed_ns").sum(),
            duration.median().alias("median_ns"),
        )
    )
    transfers = collectives.group_by(_KEY).agg(
        pl.len().cast(pl.Int64).alias("collectives"),
        pl.col("transfer_ns").median().alias("transfer_median_ns"),
        pl.col("wait_ns").sum(),
    )
    table = kernels.join(transfers, on=_KEY, how="left", nulls_equal=True)
    factors = [bus_factor(kind, size) for kind, size in table.select("kind", "group_size").iter_rows()]
    table = table.with_columns(pl.col("collectives", "wait_ns").fill_null(0), pl.Series("factor", factors, pl.Float64))
    table = table.with_columns(
        _speed("transfer_median_ns").alias("algorithm_bytes_per_s"),
        _speed("median_ns").alias("own_algorithm_bytes_per_s"),
    ).with_columns(
        (pl.col("algorithm_bytes_per_s") * pl.col("factor")).alias("bus_bytes_per_s"),
        (pl.col("own_algorithm_bytes_per_s") * pl.col("factor")).alias("own_bus_bytes_per_s"),
    )
    return COLLECTIVE_GROUPS.conform(table).sort(
        ["total_ns", *_KEY], descending=[True, *[False] * len(_KEY)], nulls_last=True
    )


def _speed(time: str) -> pl.Expr:
    return pl.when(pl.col(time) > 0).then(pl.col("size_bytes") / pl.col(time) * 1e9)
