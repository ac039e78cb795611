"""Notes: what the numbers of a report mean, and what they do not, given how they were collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.metrics import measured
from warplens.analysis.counters.occupancy import launch_occupancy
from warplens.analysis.counters.speedoflight import speed_of_light
from warplens.profile import Note, NoteLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.profile.counters import KernelCounters

__all__ = ["counter_notes"]

#: Shares nearer to each other than this are the same.
_TOLERANCE_SHARE: Final = 0.005


def counter_notes(counters: KernelCounters) -> tuple[Note, ...]:
    """What to know before the numbers of a report: the reader's notes, then what its collection means for them."""
    return (*counters.capture.notes, *_of_contents(counters), *_of_collection(counters))


def _of_contents(counters: KernelCounters) -> Iterator[Note]:
    launches = counters.launches
    if launches.is_empty():
        if not any(item.level is NoteLevel.BLOCKING for item in counters.capture.notes):
            yield Note("no-launches", NoteLevel.BLOCKING, "The report holds no profiled kernel.", "Profile again")
        return
    missing = speed_of_light(counters).select(
        failed=pl.col("duration_ns").is_null(),
        untold=pl.col("compute_share").is_null() & pl.col("memory_share").is_null(),
    )
    if (failed := missing["failed"].sum()) and counters.metrics.width:
        yield Note(
            "launches-without-time",
            NoteLevel.WARNING,
            f"{failed} of {launches.height} launches have no duration: they failed, or it was not collected.",
        )
    if (untold := (missing["untold"] & ~missing["failed"]).sum()) > 0:
        yield Note(
            "no-throughputs",
            NoteLevel.WARNING,
            f"{untold} of {launches.height} launches have no throughput metrics, so that their bound is unknown.",
            "Collect them with --section SpeedOfLight, or --set basic",
        )
    together = launches.filter(pl.col("kind").cast(pl.String) != "kernel")
    if together.height:
        yield Note(
            "several-kernels-as-one",
            NoteLevel.WARNING,
            f"{together.height} of {launches.height} results are of ranges or graphs that were profiled as one: "
            "counters are sums over all kernels in them, times and shares include the time between those kernels, and "
            "there is no launch configuration.",
            "Profile the kernels one by one: --replay-mode kernel, or --graph-profiling node",
        )
    occupancy = launch_occupancy(counters)
    yield from _of_clusters(occupancy)
    wrong = occupancy.drop_nulls("inconsistent")
    if wrong.height:
        yield Note(
            "inconsistent-occupancy",
            NoteLevel.WARNING,
            f"The occupancy of {wrong.height} of {launches.height} launches contradicts itself "
            f"({wrong['inconsistent'][0]}), and is not used.",
        )


def _of_clusters(occupancy: pl.DataFrame) -> Iterator[Note]:
    """Launches in clusters: a cluster needs room for all of its blocks at a time, in one group of multiprocessors."""
    clustered = occupancy.drop_nulls("cluster_blocks")
    if clustered.is_empty():
        return
    told = clustered.drop_nulls("cluster_max_active")
    text = (
        f"{clustered.height} of {occupancy.height} launches run in clusters of blocks. Theoretical occupancy and its "
        "limiter are those of single blocks, as Nsight Compute states them"
    )
    remedy = None
    if told.height < clustered.height:
        text += f"; for {clustered.height - told.height} of them it is not known how many clusters fit at a time"
        remedy = "Collect launch__cluster_max_active with --section Occupancy, or --section LaunchStats"
    lower = told.filter(pl.col("cluster_share") < pl.col("theoretical_share") - _TOLERANCE_SHARE)
    if lower.height:
        least = lower.select(pl.col("cluster_share").min()).item()
        text += (
            f"; for {lower.height} of them fewer blocks fit, because only whole clusters can be placed (down to "
            f"{100 * least:.0f} % occupancy)"
        )
    yield Note("clusters", NoteLevel.WARNING if lower.height or remedy else NoteLevel.INFO, f"{text}.", remedy)


def _of_collection(counters: KernelCounters) -> Iterator[Note]:
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
