"""Commands of Nsight Compute in two phases: a light pass over all kernels, then a detailed one over the important ones.

ncu runs a kernel once per pass, and saves and restores its memory in between, so a run may take a hundred times as long
as the program. Collections are therefore small, and their cost is estimated beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from warplens.collect.commands import SETS, Capture
from warplens.collect.machine import Tool, dotted
from warplens.errors import UsageError

if TYPE_CHECKING:  # a recording machine may lack the libraries that read profiles
    import polars as pl

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

#: Oldest version of Nsight Compute with all options used here, the newest being `-k regex:` (`nextrun.OPTIONS`).
OLDEST: Final = (2021, 1, 1)

#: Since this version, launches can be counted per launch configuration ("Release Notes", 2022.4).
PER_CONFIGURATION: Final = (2022, 4)

#: Sections of the light pass, which give the bound of a kernel.
LIGHT: Final = ("SpeedOfLight", "LaunchStats", "Occupancy")

#: Sections of the targeted pass, which explain the bound: memory traffic, warp stalls, instructions.
TARGETED: Final = (
    *LIGHT,
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "SchedulerStats",
    "WarpStateStats",
    "InstructionStats",
)

#: Rough estimate: an A10G took 9 passes for three sections, an H200 19 for six.
_PASSES_PER_SECTION: Final = 3

#: Rough estimate of the single metrics that share a pass: a unit has few counters.
_METRICS_PER_PASS: Final = 4

#: Rough estimate of the overhead of a pass in seconds: with little memory to save and restore, and with gigabytes.
_PASS_S: Final = (0.005, 0.05)

#: The targeted pass covers the kernels that together take this share of the time, and at most this many; the others
#: could gain less than profiling them costs.
_IMPORTANT_SHARE: Final = 0.8
_MOST_KERNELS: Final = 8

#: Launches of each kernel in the targeted pass: the first, and another to check that they are alike.
_LAUNCHES_PER_KERNEL: Final = 2


@dataclass(frozen=True)
class Selection:
    """The launches to profile."""

    names: tuple[str, ...] = ()  #: of kernels, as ncu's `function` base has them; () for all
    skip: int = 0  #: launches of these kernels to skip
    launches: int | None = None  #: number of launches; None without a limit
    busy_ns: int | None = None  #: time of these launches without a profiler, if known from a trace
    share: float | None = None  #: share of the kernel time of these kernels
    pattern: str | None = None  #: regular expression for the kernels; if set, `names` are only displayed
    each: bool = False  #: whether to count launches per launch configuration


@dataclass(frozen=True)
class Profiling:
    """How to profile."""

    sections: tuple[str, ...] = LIGHT
    replay_mode: str = "kernel"  #: `kernel`, or `application` if memory saved between passes would not fit
    clock_control: str = "none"  #: `none`: clocks as in real runs; `base`: locked, which is reproducible, but slower
    cache_control: str = "all"  #: `all` flushes caches before each pass; `none` leaves them as in the program
    force: bool = False  #: whether to replace a report of the same name
    metrics: tuple[str, ...] = ()
    set_name: str | None = None  #: a set of sections by ncu's name
    passes: int | None = None  #: measured passes per launch; None to estimate them from sections and metrics


@dataclass(frozen=True)
class Cost:
    """Estimated cost of a phase."""

    launches: int | None  #: launches to profile; None if unknown
    passes_each: int  #: per launch
    passes: int | None  #: of all launches
    least_s: float | None  #: added seconds if a pass is cheap
    most_s: float | None  #: added seconds if a pass saves and restores much memory


def profile_command(
    tool: Tool, profiling: Profiling, selection: Selection, capture: Capture, report: str, program: Sequence[str]
) -> list[str]:
    """The words of the command that profiles a program; `report` is the file to write, without its suffix.

    Raises:
        UsageError: this version is too old, or the range's name cannot be written as a filter.
    """
    if tool.version < OLDEST:
        raise UsageError(f"{tool.title} is too old for these commands; install {dotted(OLDEST)} or later")
    words = [tool.path, "--target-processes", "all"]
    if selection.pattern:
        words += ["-k", f"regex:{selection.pattern}"]
    elif selection.names:
        words += ["-k", f"regex:^({'|'.join(re.escape(name) for name in selection.names)})$"]
    words += _scope(capture)
    if selection.skip and capture.kind == "all":  # in a capture, ncu counts launches from its begin
        words += ["--launch-skip", str(selection.skip)]
    if selection.launches is not None:
        words += ["--launch-count", str(selection.launches)]
    if selection.each:
        words += ["--filter-mode", "per-launch-config"]
    words += ["--set", profiling.set_name] if profiling.set_name else []
    words += [part for section in profiling.sections for part in ("--section", section)]
    words += ["--metrics", ",".join(profiling.metrics)] if profiling.metrics else []
    words += ["--replay-mode", profiling.replay_mode, "--clock-control", profiling.clock_control]
    words += ["--cache-control", profiling.cache_control]
    words += ["--force-overwrite"] if profiling.force else []
    return [*words, "--export", report, *program]


#: Characters with a meaning in ncu's filters; no way to escape them works in all versions.
_UNWRITABLE = frozenset("@,[]/*?+\\")


def _scope(capture: Capture) -> list[str]:
    if capture.kind == "all":
        return []
    if capture.kind == "cuda-profiler":
        return ["--profile-from-start", "off"]
    name = str(capture.range_name)
    if _UNWRITABLE & set(name):
        raise UsageError(f"ncu cannot filter by a range called {name!r}: give it a name of letters, digits and _")
    # The slash selects push/pop ranges, such as those of PyTorch.
    return ["--nvtx", "--nvtx-include", f"{name}/"]


def cost(profiling: Profiling, selection: Selection) -> Cost:
    """The estimated passes of a phase and the time that they add to the program's own."""
    sections = len(profiling.sections)
    if profiling.set_name:
        sections += SETS.get(profiling.set_name, max(SETS.values()))
    estimated = _PASSES_PER_SECTION * sections + -(-len(profiling.metrics) // _METRICS_PER_PASS)
    passes_each = profiling.passes or estimated
    if selection.launches is None:
        return Cost(None, passes_each, None, None, None)
    passes = passes_each * selection.launches
    busy_s = (selection.busy_ns or 0) * passes_each / 1e9
    return Cost(selection.launches, passes_each, passes, *(busy_s + passes * pass_s for pass_s in _PASS_S))


def select_from_trace(timeline: Timeline, window: Window, pattern: str | None = None) -> tuple[Selection, Selection]:
    """The launches to profile, from a trace of the same program and the window of its steady steps.

    For the light phase all launches of one step; for the targeted phase the important kernels: those of a pattern (a
    regular expression), or those that take most of the time.

    Raises:
        UsageError: the window has no kernels, or none that match the pattern.
    """
    import polars as pl

    source = timeline.trace.capture.source
    kernels = timeline.work.filter(pl.col("kind") == "kernel")
    names = timeline.trace.kernels["name"].cast(pl.String).gather(kernels["row"])
    kernels = kernels.select(
        name=names, at=pl.coalesce("launch_start_ns", "start_ns"), duration_ns=pl.col("end_ns") - pl.col("start_ns")
    ).sort("at", maintain_order=True)
    part = window.steps[0] if window.steps else window
    step = kernels.filter((pl.col("at") >= part.start_ns) & (pl.col("at") < part.end_ns))
    if step.is_empty():
        raise UsageError(f"{source}: no kernel was launched in the steady steps")
    before = kernels.filter(pl.col("at") < part.start_ns)
    everything = Selection((), before.height, step.height, int(step["duration_ns"].sum()))
    if pattern is None:
        important = _important(step)
    else:
        compiled, by_time = re.compile(pattern), _by_time(step)["name"]
        important = tuple(name for name in by_time if compiled.search(name))
        if not important:
            listed = ", ".join(by_time.head(3))
            raise UsageError(f"{source}: no kernel of a step is called like {pattern!r}; its longest are {listed}")
    skip = before.filter(pl.col("name").is_in(important)).height
    return everything, replace(_enough_of(step, important), skip=skip, pattern=pattern)


def select_kernels(names: Sequence[str], durations_ns: Sequence[int]) -> Selection:
    """The important kernels among the launches of a light report, of which it takes name and duration in order."""
    import polars as pl

    schema = {"name": pl.String, "duration_ns": pl.Int64}
    launches = pl.DataFrame({"name": names, "duration_ns": durations_ns}, schema=schema)
    return _enough_of(launches, _important(launches))


def _by_time(launches: pl.DataFrame) -> pl.DataFrame:
    """Kernels with their time, longest first."""
    import polars as pl

    sums = launches.group_by("name").agg(pl.col("duration_ns").sum())
    return sums.sort("duration_ns", "name", descending=[True, False])


def _important(launches: pl.DataFrame) -> tuple[str, ...]:
    """The kernels that together take `_IMPORTANT_SHARE` of the time, at most `_MOST_KERNELS`."""
    sums = _by_time(launches)
    before = sums["duration_ns"].cum_sum() - sums["duration_ns"]
    return tuple(sums.filter(before < _IMPORTANT_SHARE * int(sums["duration_ns"].sum())).head(_MOST_KERNELS)["name"])


def _enough_of(launches: pl.DataFrame, names: tuple[str, ...]) -> Selection:
    """The first launches of these kernels, up to the one at which each has `_LAUNCHES_PER_KERNEL` launches, or all."""
    import polars as pl

    chosen = launches.filter(pl.col("name").is_in(names)).with_row_index("index")
    wanted = chosen.filter(pl.int_range(pl.len()).over("name") < _LAUNCHES_PER_KERNEL)["index"]
    count = int(wanted[-1]) + 1 if wanted.len() else 0
    time, total = int(chosen["duration_ns"].sum()), int(launches["duration_ns"].sum())
    busy_ns = int(chosen["duration_ns"].head(count).sum())
    return Selection(names, 0, count, busy_ns, time / total if total else None)
