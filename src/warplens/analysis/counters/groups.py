"""Groups: launches of the same kernel with the same grid and block, combined."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
import polars.selectors as cs

from warplens.analysis.counters.bounds import BOUNDS, kernel_bounds, kernel_facts
from warplens.analysis.counters.occupancy import LAUNCH_OCCUPANCY
from warplens.analysis.counters.speedoflight import SPEED_OF_LIGHT, durations
from warplens.analysis.frames import once
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column, Int64s
from warplens.profile.spelling import spelled_for_all_pages
from warplens.profile.trace import LAUNCH_SIZE

#: Keys that the launches of a group share. A kernel's instances differ in their full names.
GROUP_KEYS: Final = ("kind", "full_name", "device", *LAUNCH_SIZE)

#: Metrics of the launch or the device, which are not measurements to take a median of.
_FIXED: Final = r"^(launch__|device__attribute_)"

#: The NVTX ranges in which a result was taken, as one text; null where there were none.
_OPEN_RANGES: Final = pl.when(pl.col("nvtx").list.len() > 0).then(pl.col("nvtx").list.join("/"))

GROUPS: Final = table(
    "groups",
    "launches of one kernel with one grid and block, in the order of their first launches",
    column("group", dtype=pl.Int64, help="position, from 0: the `launch` of `Groups.counters`", kind="count"),
    Column("first_launch", pl.Int64, "row of its first launch"),
    "launches",
    optional(total_ns=("summed duration of those launches", "Time")),
)


@dataclass(frozen=True)
class Groups:
    """Groups of launches."""

    groups: pl.DataFrame  #: `GROUPS`
    #: one row per group, with the median of every metric over its launches, so that every analysis of launches also
    #: works on groups
    counters: KernelCounters
    of_launch: pl.Series


@once
def group_launches(counters: KernelCounters, keys: Sequence[str] = GROUP_KEYS) -> Groups:
    """Combines launches of the same kernel, grid and block.

    Results of ranges and graphs profiled as one are combined only where the same NVTX ranges were open: their names do
    not identify them, so that others stay single.

    Args:
        keys: columns of `launches` that the launches of a group share.

    Returns:
        The groups; metrics are medians over the launches that have them, launch parameters, texts and results of rules
        the first's.
    """
    is_combined = pl.col("kind").cast(pl.String) != "kernel"
    identity = pl.when(is_combined).then(pl.coalesce(_OPEN_RANGES, pl.col("launch").cast(pl.String)))
    launches = counters.launches.with_columns(identity.alias("\0alone"))
    keys = [*keys, "\0alone"]
    by_key = (
        launches.group_by(keys, maintain_order=True).agg(first_launch=pl.col("launch").first()).with_row_index("group")
    )
    of_launch = launches.join(
        by_key.drop("first_launch"), on=list(keys), how="left", nulls_equal=True, maintain_order="left"
    )
    group = of_launch["group"].cast(pl.Int64)
    metrics = pl.DataFrame([*counters.metrics.get_columns(), group.alias("\0group")])  # of which there may be none
    numbers = cs.numeric() - cs.matches(_FIXED) - cs.by_name("\0group")
    # The tool writes NaN for a launch that failed.
    medians = metrics.group_by("\0group", maintain_order=True).agg(
        numbers.cast(pl.Float64).fill_nan(None).median(), (~numbers - cs.by_name("\0group")).drop_nulls().first()
    )
    totals = pl.DataFrame([group, durations(counters).alias("ns")]).group_by("group", maintain_order=True)
    summed = totals.agg(
        launches=pl.len().cast(pl.Int64), total_ns=pl.when(pl.col("ns").count() > 0).then(pl.col("ns").sum())
    )
    groups = summed.with_columns(first_launch=by_key["first_launch"])
    representatives = counters.launches[by_key["first_launch"].to_list()].with_columns(groups["group"].alias("launch"))
    median_metrics = medians.select(counters.metrics.columns) if counters.metrics.width else counters.metrics
    return Groups(
        GROUPS.checked(groups),
        replace(
            counters, launches=representatives, metrics=median_metrics, rules=_of_first(counters, groups), instances={}
        ),
        group.alias("group"),
    )


def _of_first(counters: KernelCounters, groups: pl.DataFrame) -> pl.DataFrame:
    """The results of the rules on the first launch of each group, with its number as `launch`."""
    first = groups.select("group", launch="first_launch")
    rules = counters.rules.join(first, on="launch", how="inner", maintain_order="left")
    return rules.with_columns(launch="group").drop("group")


def titled(launches: pl.DataFrame) -> pl.DataFrame:
    """`name` and `full_name` of each launch as texts; ranges and graphs by their NVTX ranges, or by their number."""
    is_kernel = pl.col("kind").cast(pl.String) == "kernel"
    identifier = pl.coalesce(_OPEN_RANGES, pl.concat_str(pl.lit("#"), pl.col("launch")))
    title = pl.concat_str(pl.col("kind").cast(pl.String), pl.lit(" "), identifier)
    return launches.select(
        pl.when(is_kernel).then(pl.col(name).cast(pl.String)).otherwise(title).alias(name)
        for name in ("name", "full_name")
    )


#: Possible rows of the summary.
SUMMARY_KEYS: Final = ("group", "launch")

SUMMARY: Final = table(
    "counters",
    "a group of launches of one kernel with one grid and block, with medians over them; or one launch",
    column("launch", help="row of `launches`; the first of the group's"),
    column("launches", help="of the group"),
    column("kind", help="`kernel`; or `range`, `graph`, `cmdlist`: several kernels profiled as one"),
    column(
        "name",
        help="short name of the kernel; which range or graph it is",
        title="Kernel",
        kind="kernel",
        full="full_name",
    ),
    "full_name",
    column("device", nullable=True, title="Device"),
    Column("grid", pl.String, "blocks of the grid, as x,y,z", nullable=True),
    Column("block", pl.String, "threads of a block, as x,y,z", nullable=True),
    optional(total_ns=("summed duration of the launches", "Time")),
    SPEED_OF_LIGHT.columns[1:],
    LAUNCH_OCCUPANCY.columns[1:],
    Column("top_stall", pl.String, "longest wait of the warps", nullable=True),
    optional(top_stall_share="of the cycles between two instructions"),
    (column for column in BOUNDS.columns[1:] if column.name != "inconsistent"),
)


def counters_summary(counters: KernelCounters, by: str = "group", metrics: Sequence[str] = ()) -> pl.DataFrame:
    """The verdict on each kernel, with its numbers.

    Args:
        by: one of `SUMMARY_KEYS`.
        metrics: further metrics to add as columns of their own names, in base units.

    Returns:
        `SUMMARY`, followed by the metrics. Groups are sorted by total time, launches as in the file.

    Raises:
        UsageError: rows cannot be that, or the report has no such metric.
    """
    if by not in SUMMARY_KEYS:
        raise UsageError(f"a row cannot be a {by!r}; choose one of {', '.join(SUMMARY_KEYS)}")
    for name in metrics:
        if name not in counters.metrics.columns:
            near = ", ".join(difflib.get_close_matches(name, counters.metrics.columns, n=3))
            hint = f"; near it are {near}" if near else ""
            raise UsageError(f"{counters.capture.source}: metric {name!r} was not collected{hint}")
    groups = group_launches(counters, ("launch",) if by == "launch" else GROUP_KEYS)
    medians = groups.counters
    frame = described(groups).with_columns(
        medians.launches["kind"].cast(pl.String), *(medians.values(name).alias(name) for name in metrics)
    )
    fact_columns = [column.name for column in (*SPEED_OF_LIGHT.columns, *LAUNCH_OCCUPANCY.columns[1:])]
    facts = kernel_facts(medians).select(*fact_columns, "top_stall", "top_stall_share")
    for part in (facts, kernel_bounds(medians).drop("inconsistent")):
        frame = frame.join(part, on="launch", how="left", maintain_order="left")
    frame = frame.with_columns(launch="first_launch")
    if by == "group":
        frame = frame.sort("total_ns", "launch", descending=[True, False], nulls_last=True)
    return pl.concat([SUMMARY.checked(frame), frame.select(metrics)], how="horizontal")


def described(groups: Groups) -> pl.DataFrame:
    """Identity of each group: `launch` (the group), `first_launch`, `launches`, `total_ns`, names, device and sizes."""
    launches = groups.counters.launches
    return groups.groups.select("first_launch", "launches", "total_ns", launch="group").with_columns(
        *titled(launches.with_columns(launch=groups.groups["first_launch"])),
        launches["device"],
        *launches.select(SIZES),
    )


_NAMES: Final = ("name", "full_name")

#: Grid and block as texts.
SIZES: Final = tuple(
    pl.concat_str([pl.col(f"{what}_{axis}") for axis in "xyz"], separator=",").alias(what) for what in ("grid", "block")
)

#: Identity of a launch: `kernel` is the function with its template arguments, spelled the same for all tools.
KEY: Final = ("kernel", "grid", "block")


def with_keys(left: pl.DataFrame, right: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both frames with `kernel`, `grid` and `block`, and `code`: one number per distinct combination of the three.

    Kernels match by function and template arguments; where one of the two holds short names only, by those.

    Args:
        left, right: launches, with `name`, `full_name`, and the sizes of grid and block.
    """
    frames = [frame.with_columns(pl.col(_NAMES).cast(pl.String)) for frame in (left, right)]
    short_names = pl.concat(frame.filter(pl.col("name") == pl.col("full_name"))["name"] for frame in frames).unique()
    keyed = [
        frame.with_columns(
            *SIZES,
            kernel=pl.when(pl.col("name").is_in(short_names.to_list()))
            .then("name")
            .otherwise(_spelled(frame["full_name"])),
        )
        for frame in frames
    ]
    codes = pl.concat(frame.select(KEY) for frame in keyed).unique(maintain_order=True)
    codes = codes.with_row_index("code").cast({"code": pl.Int64})
    first, second = (frame.join(codes, on=KEY, how="left", nulls_equal=True, maintain_order="left") for frame in keyed)
    return first, second


def _spelled(full_names: pl.Series) -> pl.Series:
    """The function with its template arguments, without differences between exports."""
    spelled = {name: spelled_for_all_pages(name) for name in full_names.unique().to_list()}
    return full_names.replace_strict(spelled, return_dtype=pl.String)


#: When the profiled launches ran, relative to the window.
SAMPLE_ORIGINS: Final = ("warm-up", "steady", "mixed", "unknown")

#: Windows that exclude warm-up; others begin with the first work or hold everything.
_WITHOUT_WARMUP: Final = ("steady", "explicit")


def sample_of(
    profiled: pl.Series, recorded: pl.Series, namesakes: pl.Series, early: pl.Series, window: Window
) -> tuple[str, str]:
    """Whether the launches of a report are from before the window.

    The sequence of profiled launches is searched in the sequence of the trace's launches of the same names (a filter by
    name is how launches are selected). Where it is not found, the positions of each kernel alone decide.

    Args:
        profiled: code of each launch of the report; null where it is not a kernel.
        recorded: the same for each launch of the trace, in the order of launches.
        namesakes: which launches of the trace have the name of a profiled kernel.
        early: which launches of the trace began before the window.

    Returns:
        One of `SAMPLE_ORIGINS`, and one sentence on why.
    """
    if window.kind not in _WITHOUT_WARMUP:
        return "unknown", "the window does not separate warm-up from steady steps"
    sequence = profiled.drop_nulls().to_numpy()
    is_profiled = recorded.is_in(profiled.drop_nulls().unique().to_list())
    if not is_profiled.any():
        return "unknown", "no profiled kernel occurs in the trace with its grid and block"
    codes = recorded.filter(namesakes).to_numpy()
    places = _places(sequence, codes)
    if len(places):
        before = np.r_[0, np.cumsum(early.filter(namesakes).to_numpy())]
        early_count = before[places + len(sequence)] - before[places]
        subject = "the sequence of profiled launches occurs"
    else:
        early_count = early.filter(is_profiled).to_numpy() * len(sequence)
        subject = "launches like the profiled ones occur"
    if (early_count == len(sequence)).all():
        return "warm-up", f"{subject} in the trace only before the window"
    if (early_count == 0).all():
        return "steady", f"{subject} in the trace only from the begin of the window on"
    if len(places) == 1:
        return "mixed", f"{subject} once in the trace, across the begin of the window"
    return "unknown", f"{subject} in the trace both before the window and in it"


def _places(sequence: Int64s, codes: Int64s) -> Int64s:
    """Positions in `codes` where the whole sequence begins."""
    length = len(sequence)
    if not length or length > len(codes):
        return np.empty(0, dtype=np.int64)
    # Only positions where the rarest of its launches matches are compared in full.
    values, counts = np.unique(codes, return_counts=True)
    value_index = np.minimum(np.searchsorted(values, sequence), len(values) - 1)
    frequency = np.where(values[value_index] == sequence, counts[value_index], 0)
    anchor = int(np.argmin(frequency))
    begins = np.flatnonzero(codes == sequence[anchor]) - anchor
    begins = begins[(begins >= 0) & (begins <= len(codes) - length)]
    for offset in range(length):
        if not len(begins):
            break
        begins = begins[codes[begins + offset] == sequence[offset]]
    return begins
