"""Coverage: share of a program's GPU time that the profiled launches represent, and the largest possible gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.counters.bounds import BOUNDS, kernel_bounds
from warplens.analysis.counters.groups import KEY, SIZES, SUMMARY, group_launches, sample_of, with_keys
from warplens.analysis.counters.occupancy import launch_occupancy
from warplens.analysis.counters.speedoflight import measured, speed_of_light
from warplens.analysis.frames import duration_ns
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import KERNEL_NAME, column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column
from warplens.profile.trace import LAUNCH_SIZE

#: How a group of the trace was matched in the report, the best first: the same kernel with the same grid and block; the
#: same kernel in another size; another kernel of the same short name (an instance of the same template); not at all.
MATCHES: Final = ("exact", "kernel", "name", "none")

_NAMES: Final = ("name", "full_name")
_LAUNCHED_AS: Final = (*_NAMES, *LAUNCH_SIZE)

_WHICH: Final = (KERNEL_NAME, *SUMMARY.only("full_name grid block").columns)

COVERAGE: Final = table(
    "coverage",
    "launches of one kernel with one grid and block in the window of the trace; the most expensive first",
    _WHICH,
    column("launches", help="in the window"),
    "launches_profiled total_ns",
    column("share", help="of the summed duration of all kernels in the window"),
    column(
        "matched",
        dtype=pl.String,
        help="how it was found in the report: `exact`, `kernel` (another size), `name` (another kernel) or `none`",
        kind="text",
    ),
)

UNMATCHED: Final = table(
    "unmatched",
    "profiled launches of one kernel with one grid and block that the window of the trace lacks",
    _WHICH,
    column("launches_profiled", help="in the report"),
    Column("launches_elsewhere", pl.Int64, "in the trace, outside the window", title="Launches outside the window"),
)

RANKING: Final = table(
    "ranking",
    "one group of the trace that was profiled; the one with the most to gain first",
    COVERAGE.columns[:-1],
    optional(
        throughput_share=("of the roof: the higher of compute and memory", "of roof"),
        gain_share=("of the window's kernel time, if it ran at its roof (Amdahl's law)", "Gain"),
    ),
    BOUNDS.only("bound unit fault stall").columns,
)


@dataclass(frozen=True, eq=False)
class Coverage:
    """A report joined with the window of a trace."""

    groups: pl.DataFrame  #: `COVERAGE`
    ranking: pl.DataFrame  #: `RANKING`
    unmatched: pl.DataFrame  #: `UNMATCHED`
    total_ns: int  #: summed duration of the window's kernels
    #: exact_share, kernel_share, name_share, missing_share: shares of it by match in the report (`MATCHES`); they add
    #: up to 1. None without kernels.
    exact_share: float | None
    kernel_share: float | None
    name_share: float | None
    missing_share: float | None
    launches_profiled: int  #: kernel launches in the report
    launches_matched: int  #: those that occur in the window with the same grid and block
    sample: str  #: `warm-up` (the profiled launches all come before the window), `steady`, `mixed` or `unknown`
    sample_how: str  #: the reason, one sentence for people


def counters_coverage(counters: KernelCounters, timeline: Timeline, window: Window) -> Coverage:
    """How much of a window the profiled launches represent, and which kernel has the most to gain.

    Kernels match by function and template arguments; where one of the files holds short names only, by those.
    `gain_share` follows from Amdahl's law: a kernel with share s of the time that reaches the part t of its roof would
    save s · (1 − t) of the whole at its roof. Ranges and graphs profiled as one are left out.

    Args:
        timeline: a trace of the same program, with the launch configuration of its kernels.
    """
    grouped = group_launches(counters, ("kind", *_LAUNCHED_AS))
    profiled = grouped.counters.launches.with_columns(grouped.groups["launches"], shape="launch")
    profiled = profiled.filter(pl.col("kind") == "kernel")
    launches, shapes = recorded_launches(timeline, window)
    sums = launches.group_by("shape").agg(
        inside=pl.col("inside").sum().cast(pl.Int64),
        outside=(~pl.col("inside")).sum().cast(pl.Int64),
        total_ns=pl.col("duration_ns").filter("inside").sum(),
    )
    recorded = shapes.join(sums, on="shape", maintain_order="left")
    profiled, recorded = with_keys(profiled, recorded)

    of_report = _by_key(profiled, "launches", shape=pl.col("shape").first())
    of_trace = _by_key(recorded, "inside", "outside", "total_ns")
    groups = _matched(of_trace.filter(pl.col("inside") > 0), of_report)
    total_ns = int(groups["total_ns"].sum())
    unmatched = of_report.join(groups, on=KEY, how="anti").join(of_trace.select(*KEY, "outside"), on=KEY, how="left")
    unmatched = unmatched.with_columns(pl.col("outside").fill_null(0)).sort("shape")
    namesakes = recorded.filter(pl.col("name").is_in(profiled["name"].unique().to_list()))["shape"]
    sample, sampling = sample_of(
        _codes(profiled, grouped.of_launch),
        _codes(recorded, launches["shape"]),
        launches["shape"].is_in(namesakes.to_list()),
        launches["start_ns"] < window.start_ns,
        window,
    )
    by_match = {match: int(groups.filter(pl.col("matched") == match)["total_ns"].sum()) for match in MATCHES}
    shares = {match: matched_ns / total_ns if total_ns else None for match, matched_ns in by_match.items()}
    return Coverage(
        groups=COVERAGE.checked(groups.rename({"inside": "launches"})),
        ranking=_ranking(groups, grouped.counters),
        unmatched=UNMATCHED.checked(
            unmatched.rename({"launches": "launches_profiled", "outside": "launches_elsewhere"})
        ),
        total_ns=total_ns,
        exact_share=shares["exact"],
        kernel_share=shares["kernel"],
        name_share=shares["name"],
        missing_share=shares["none"],
        launches_profiled=int(profiled["launches"].sum()),
        launches_matched=int(of_report.join(groups, on=KEY, how="semi")["launches"].sum()),
        sample=sample,
        sample_how=sampling,
    )


def recorded_launches(timeline: Timeline, window: Window) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All kernels of a trace in launch order, and their shapes.

    Returns:
        The launches, with `shape`, `start_ns`, `duration_ns`, `range`, `inferred`, and `inside`: whether it belongs to
        the window; and for each `shape` names, grid and block, as numbers and as texts.
    """
    inside = np.zeros(timeline.work.height, dtype=np.bool_)
    inside[timeline.work_rows_in(window)] = True
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "launch_start_ns", "range", "inferred")
    work = work.with_columns(inside=pl.Series(inside)).filter(pl.col("kind") == "kernel")
    # Streams may run work in another order than the program launched it.
    work = work.sort(pl.coalesce("launch_start_ns", "start_ns"), "start_ns", maintain_order=True)
    kernels = timeline.trace.kernels.select(_LAUNCHED_AS)
    shapes = kernels.unique(maintain_order=True).with_row_index("shape").with_columns(pl.col("shape").cast(pl.Int64))
    shape = kernels.join(shapes, on=_LAUNCHED_AS, how="left", nulls_equal=True, maintain_order="left")["shape"]
    launches = work.select("start_ns", "range", "inferred", "inside", duration_ns=duration_ns()).with_columns(
        shape.gather(work["row"])
    )
    return launches, shapes.with_columns(pl.col(_NAMES).cast(pl.String), *SIZES)


def _by_key(frame: pl.DataFrame, *sums: str, **more: pl.Expr) -> pl.DataFrame:
    """One row per kernel, grid and block."""
    return frame.group_by(KEY, maintain_order=True).agg(pl.col(_NAMES).first(), pl.col(sums).sum(), **more)


def _matched(trace: pl.DataFrame, profiled: pl.DataFrame) -> pl.DataFrame:
    """The groups of the window, with their match in the report and their launches there."""
    groups = trace.join(profiled.select(*KEY, "shape", exact="launches"), on=KEY, how="left", maintain_order="left")
    for key in ("kernel", "name"):
        counted = profiled.group_by(key).agg(pl.col("launches").sum().alias(f"by_{key}"))
        groups = groups.join(counted, on=key, how="left", maintain_order="left")
    counts = {"exact": "exact", "kernel": "by_kernel", "name": "by_name"}
    return groups.with_columns(
        matched=pl.coalesce(
            *(pl.when(pl.col(count).is_not_null()).then(pl.lit(match)) for match, count in counts.items()),
            pl.lit("none"),
        ),
        launches_profiled=pl.coalesce(*counts.values(), pl.lit(0)),
        share=pl.col("total_ns") / pl.col("total_ns").sum(),
    ).sort("total_ns", "name", "grid", "block", descending=[True, False, False, False])


def _ranking(groups: pl.DataFrame, counters: KernelCounters) -> pl.DataFrame:
    throughput = speed_of_light(counters).select(
        shape="launch", throughput_share=pl.max_horizontal("compute_share", "memory_share")
    )
    bounds = kernel_bounds(counters).select("bound", "unit", "fault", "stall", shape="launch")
    ranked = groups.filter(pl.col("matched") == "exact").join(throughput, on="shape").join(bounds, on="shape")
    # Counters of short kernels can come out a little above the peak.
    distance = (1 - pl.col("throughput_share")).clip(0, 1)
    ranked = ranked.rename({"inside": "launches"}).with_columns(gain_share=distance * pl.col("share"))
    return RANKING.checked(
        ranked.sort("gain_share", "total_ns", "name", "grid", descending=[True, True, False, False], nulls_last=True)
    )


def _codes(shapes: pl.DataFrame, of_launch: pl.Series) -> pl.Series:
    """The code of each launch, from its shape; null for launches that are not kernels."""
    return of_launch.replace_strict(shapes["shape"], shapes["code"], default=None, return_dtype=pl.Int64)


#: Shares that differ by less than this count as equal.
_TOLERANCE_SHARE: Final = 0.005


def counter_notes(counters: KernelCounters) -> tuple[Note, ...]:
    """Notes on a report: those of its reader, then those on its contents and on the settings of its collection."""
    return (*counters.capture.notes, *_content_notes(counters), *_collection_notes(counters))


def _content_notes(counters: KernelCounters) -> Iterator[Note]:
    """What the launches of the report lack: times, throughputs, kernels profiled one by one, consistent occupancy."""
    launches = counters.launches
    if launches.is_empty():
        if not any(item.level is NoteLevel.BLOCKING for item in counters.capture.notes):
            yield Note("no-launches", NoteLevel.BLOCKING, "The report holds no profiled kernel.", "Profile again")
        return
    missing = speed_of_light(counters).select(
        failed=pl.col("duration_ns").is_null(),
        unrated=pl.col("compute_share").is_null() & pl.col("memory_share").is_null(),
    )
    if (failed := missing["failed"].sum()) and counters.metrics.width:
        yield Note(
            "launches-without-time",
            NoteLevel.WARNING,
            f"{failed} of {launches.height} launches have no duration: they failed, or it was not collected.",
        )
    if (unrated := (missing["unrated"] & ~missing["failed"]).sum()) > 0:
        yield Note(
            "no-throughputs",
            NoteLevel.WARNING,
            f"{unrated} of {launches.height} launches have no throughput metrics, so that their bound is unknown.",
            "Collect them with --section SpeedOfLight, or --set basic",
        )
    combined = launches.filter(pl.col("kind").cast(pl.String) != "kernel")
    if combined.height:
        yield Note(
            "several-kernels-as-one",
            NoteLevel.WARNING,
            f"{combined.height} of {launches.height} results are of ranges or graphs that were profiled as one: "
            "counters are sums over all kernels in them, times and shares include the time between those kernels, and "
            "there is no launch configuration.",
            "Profile the kernels one by one: --replay-mode kernel, or --graph-profiling node",
        )
    occupancy = launch_occupancy(counters)
    clustered = occupancy.drop_nulls("cluster_blocks")
    if clustered.height:
        yield _cluster_note(clustered, launches.height)
    contradictory = occupancy.drop_nulls("inconsistent")
    if contradictory.height:
        yield Note(
            "inconsistent-occupancy",
            NoteLevel.WARNING,
            f"The occupancy of {contradictory.height} of {launches.height} launches contradicts itself "
            f"({contradictory['inconsistent'][0]}), and is not used.",
        )


def _cluster_note(clustered: pl.DataFrame, launches: int) -> Note:
    """Note on clusters: a cluster needs room for all of its blocks at once, in one group of multiprocessors."""
    known = clustered.drop_nulls("cluster_max_active")
    text = (
        f"{clustered.height} of {launches} launches run in clusters of blocks. Theoretical occupancy and its "
        "limiter are those of single blocks, as Nsight Compute states them"
    )
    remedy = None
    if known.height < clustered.height:
        text += f"; for {clustered.height - known.height} of them it is not known how many clusters fit at a time"
        remedy = "Collect launch__cluster_max_active with --section Occupancy, or --section LaunchStats"
    limited = known.filter(pl.col("cluster_share") < pl.col("theoretical_share") - _TOLERANCE_SHARE)
    if limited.height:
        least = limited.select(pl.col("cluster_share").min()).item()
        text += (
            f"; for {limited.height} of them fewer blocks fit, because only whole clusters can be placed (down to "
            f"{100 * least:.0f} % occupancy)"
        )
    return Note("clusters", NoteLevel.WARNING if limited.height or remedy else NoteLevel.INFO, f"{text}.", remedy)


def _collection_notes(counters: KernelCounters) -> Iterator[Note]:
    """How the counters were collected, where that changes their meaning, and what they cannot tell."""
    session = counters.session
    if session.cache_control == "all":
        yield Note(
            "caches-flushed",
            NoteLevel.INFO,
            "All caches were emptied before every pass (--cache-control all): hit rates and durations are those of a "
            "cold start.",
        )
    if session.clock_control == "base":
        yield Note(
            "clocks-locked",
            NoteLevel.INFO,
            "Clocks were locked to base (--clock-control base): durations are longer than in a free run; shares of the "
            "peak are not affected.",
        )
    elif session.clock_control == "none":
        yield Note(
            "clocks-free",
            NoteLevel.INFO,
            "Clocks were not locked (--clock-control none): durations are those of a free run, but passes differ.",
        )
    passes = measured(counters, "profiler__replayer_passes").max()
    if isinstance(passes, float) and passes > 1:
        yield Note(
            "replayed",
            NoteLevel.INFO,
            f"Each launch was run up to {passes:.0f} times, and different metrics come from different runs.",
        )
    if counters.rules["speedup_percent"].is_not_null().any():
        yield Note(
            "speedups-do-not-add",
            NoteLevel.INFO,
            "Speedups that Nsight Compute's rules estimate are local (of a section) or global (of the kernel), and "
            "they do not add up.",
        )
    if counters.launches.is_empty():
        return
    yield Note(
        "coverage-unknown",
        NoteLevel.INFO,
        "Counters speak of the inside of the profiled launches. How much of the program's GPU time those are, and what "
        "the GPU did between them, is not in this file.",
        "Record a trace of the same program with nsys",
    )
