"""Commands of Nsight Compute in two phases: a light pass over everything, then the kernels that matter in depth.

ncu runs a kernel once for each pass, with its memory saved and restored between them, so a run may take a hundred times
as long as the program does. What is asked for has to be little, and its price known before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from warplens.collect.commands import SETS, Capture
from warplens.collect.machine import Tool
from warplens.errors import UsageError

if TYPE_CHECKING:  # a machine that records need not have what reads a profile
    import polars as pl

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

#: From which version of Nsight Compute all options mean what is meant here: that of `-k regex:` (`nextrun.OPTIONS`).
OLDEST: Final = (2021, 1, 1)

#: From which version launches can be counted for each launch configuration apart ("Release Notes", 2022.4).
PER_CONFIGURATION: Final = (2022, 4)

#: Enough to say of every kernel what bounds it.
LIGHT: Final = ("SpeedOfLight", "LaunchStats", "Occupancy")

#: Why it is bound there: traffic through the caches, what warps wait for, what is executed.
TARGETED: Final = (
    *LIGHT,
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "SchedulerStats",
    "WarpStateStats",
    "InstructionStats",
)

#: An A10G took 9 passes for three sections, an H200 19 for six.
_PASSES_PER_SECTION: Final = 3

#: Metrics named beside sections that share a pass: counters of one unit are few. Rough, as is the above.
_METRICS_PER_PASS: Final = 4

#: What a pass costs beside the kernel, in seconds: from little memory to save and restore, to gigabytes of it. Rough.
_PASS_S: Final = (0.005, 0.05)

#: Kernels that together take this much of the time are worth a closer look; the rest could gain less than it costs.
_MATTERING_SHARE: Final = 0.8
_MOST_KERNELS: Final = 8

#: Launches of each kernel in depth: the first and another, which shows whether they are alike.
_EACH: Final = 2


@dataclass(frozen=True)
class Selection:
    """Which launches to profile."""

    names: tuple[str, ...] = ()  #: of kernels, as ncu's `function` base has them; () for all
    skip: int = 0  #: launches of these names before the first
    launches: int | None = None  #: how many; None without a limit
    busy_ns: int | None = None  #: time of these launches without a profiler, where a trace tells
    share: float | None = None  #: of the kernel time, what these names take
    pattern: str | None = None  #: of these names, found anywhere in them; with it, `names` are only told to people
    each: bool = False


@dataclass(frozen=True)
class Profiling:
    """How to profile."""

    sections: tuple[str, ...] = LIGHT
    #: `kernel`, or `application` where memory saved and restored between passes would not fit
    replay_mode: str = "kernel"
    #: `none` leaves the clocks as they are in real runs; `base` locks them: alike, but slower
    clock_control: str = "none"
    cache_control: str = "all"  #: `all` empties caches before each pass; `none` leaves them as the program has them
    force: bool = False  #: replace a report of the same name
    metrics: tuple[str, ...] = ()
    set_name: str | None = None  #: a set of sections that ncu knows by a name
    #: of a launch, where they were measured; else they are estimated by the sections and metrics
    passes: int | None = None


@dataclass(frozen=True)
class Cost:
    """What a phase will take, by a model."""

    launches: int | None  #: that are profiled; None where nobody knows
    passes_each: int  #: of a launch
    passes: int | None  #: of all
    least_s: float | None  #: seconds that they add, if a pass is cheap
    most_s: float | None  #: the same, if it saves and restores much memory


def profile_command(
    tool: Tool, profiling: Profiling, selection: Selection, capture: Capture, report: str, program: Sequence[str]
) -> list[str]:
    """The words of the command that profiles a program.

    Args:
        tool: the installed Nsight Compute.
        capture: inside which part of the run.
        report: the file to write, without its suffix.

    Raises:
        UsageError: this version is too old, or the range's name cannot be written as a filter.
    """
    if tool.version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(f"{tool.title} is too old for these commands; install {oldest} or later")
    words = [tool.path, "--target-processes", "all"]
    if selection.pattern:
        words += ["-k", f"regex:{selection.pattern}"]
    elif selection.names:
        words += ["-k", f"regex:^({'|'.join(re.escape(name) for name in selection.names)})$"]
    words += _scope(capture)
    if selection.skip and capture.kind == "all":  # inside a capture, counting begins with it
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


#: Signs that a filter of ncu reads as its own; there is no way to write them that all versions share.
_UNWRITABLE = frozenset("@,[]/*?+\\")


def _scope(capture: Capture) -> list[str]:
    if capture.kind == "all":
        return []
    if capture.kind == "cuda-profiler":
        return ["--profile-from-start", "off"]
    name = str(capture.range_name)
    if _UNWRITABLE & set(name):
        raise UsageError(f"ncu cannot filter by a range called {name!r}: give it a name of letters, digits and _")
    # The slash is for ranges that are pushed and popped, as those of PyTorch are.
    return ["--nvtx", "--nvtx-include", f"{name}/"]


def cost(profiling: Profiling, selection: Selection) -> Cost:
    """Passes and time that a phase will take, by the number of sections; without that of the program itself."""
    sections = len(profiling.sections)
    if profiling.set_name:
        sections += SETS.get(profiling.set_name, max(SETS.values()))
    estimated = _PASSES_PER_SECTION * sections + -(-len(profiling.metrics) // _METRICS_PER_PASS)
    each = profiling.passes or estimated
    if selection.launches is None:
        return Cost(None, each, None, None, None)
    passes = each * selection.launches
    busy_s = (selection.busy_ns or 0) * each / 1e9
    return Cost(selection.launches, each, passes, *(busy_s + passes * pass_s for pass_s in _PASS_S))


def select_from_trace(timeline: Timeline, window: Window, pattern: str | None = None) -> tuple[Selection, Selection]:
    """What to profile, by a trace of the same program: every launch of one steady step; and the kernels that matter.

    Args:
        pattern: the kernels that are meant; without it, those that take most of the time.

    Returns:
        For the light phase and for the targeted one.

    Raises:
        UsageError: the window holds no kernels, or none that are meant.
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
        matter = _that_matter(step)
    else:
        found, longest = re.compile(pattern), _by_time(step)["name"]
        matter = tuple(name for name in longest if found.search(name))
        if not matter:
            listed = ", ".join(longest.head(3))
            raise UsageError(f"{source}: no kernel of a step is called like {pattern!r}; its longest are {listed}")
    skip = before.filter(pl.col("name").is_in(matter)).height
    return everything, replace(_enough_of(step, matter), skip=skip, pattern=pattern)


def select_kernels(names: Sequence[str], durations_ns: Sequence[int]) -> Selection:
    """The kernels that matter among the launches of a light report, and how many launches to take for enough of each.

    Args:
        names: of each launch, in the order of the launches.
    """
    import polars as pl

    schema = {"name": pl.String, "duration_ns": pl.Int64}
    launches = pl.DataFrame({"name": names, "duration_ns": durations_ns}, schema=schema)
    return _enough_of(launches, _that_matter(launches))


def _by_time(launches: pl.DataFrame) -> pl.DataFrame:
    """Each kernel with its time, the longest first."""
    import polars as pl

    sums = launches.group_by("name").agg(pl.col("duration_ns").sum())
    return sums.sort("duration_ns", "name", descending=[True, False])


def _that_matter(launches: pl.DataFrame) -> tuple[str, ...]:
    """The kernels that take most of the time."""
    sums = _by_time(launches)
    before = sums["duration_ns"].cum_sum() - sums["duration_ns"]
    return tuple(sums.filter(before < _MATTERING_SHARE * int(sums["duration_ns"].sum())).head(_MOST_KERNELS)["name"])


def _enough_of(launches: pl.DataFrame, names: tuple[str, ...]) -> Selection:
    """Launches until each of these kernels has come twice, or as often as it does."""
    import polars as pl

    chosen = launches.filter(pl.col("name").is_in(names)).with_row_index("place")
    wanted = chosen.filter(pl.int_range(pl.len()).over("name") < _EACH)["place"]
    count = int(wanted[-1]) + 1 if wanted.len() else 0
    time, total = int(chosen["duration_ns"].sum()), int(launches["duration_ns"].sum())
    busy_ns = int(chosen["duration_ns"].head(count).sum())
    return Selection(names, 0, count, busy_ns, time / total if total else None)
