"""The next run: the `ncu` command that closes the most valuable gap of a report with the fewest passes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.counters.coverage import Coverage, recorded_launches
from warplens.analysis.counters.groups import counters_summary
from warplens.analysis.counters.speedoflight import measured
from warplens.analysis.frames import number
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile.counters import KernelCounters

Version = tuple[int, ...]

#: Options used in commands, with the version from which each has this meaning, and the source for that. All of them are
#: in the manual and `--help` of 2024.1.1. `-k regex:` replaced an older option in 2021.1.0, which still took a bare
#: `-k` for it ("Release Notes", 2021.1 and 2021.1.1).
OPTIONS: Final[dict[str, tuple[Version, str]]] = {
    "--profile-from-start": ((2019, 1), "Nsight Compute CLI 2024.1, Table 3"),
    "--clock-control": ((2019, 1), "Release Notes, 2019.1"),
    "--nvtx": ((2019, 1), "Release Notes, 2019.1"),
    "--nvtx-include": ((2019, 1), "Release Notes, 2019.1"),
    "--section": ((2019, 1), "Nsight Compute CLI 2024.1, Table 3"),
    "--launch-skip": ((2019, 1), "Nsight Compute CLI 2024.1, Table 4"),
    "--launch-count": ((2019, 1), "Nsight Compute CLI 2024.1, Table 4"),
    "--export": ((2019, 1), "Nsight Compute CLI 2024.1, Table 7"),
    "--cache-control": ((2019, 5), "Release Notes, 2019.5"),
    "--replay-mode": ((2020, 2), "Release Notes, 2020.2"),
    "-k": ((2021, 1, 1), "Release Notes, 2021.1.1"),
}

_OLDEST: Final = max(version for version, _ in OPTIONS.values())

#: Used where neither the user nor the report gives a version: the one whose help was read.
_DEFAULT_VERSION: Final = "2024.1.1"

#: Passes per section, where the report does not state it: an A10G took 9 for three sections, an H200 19 for six.
_PASSES_PER_SECTION: Final = 3.0

_PROGRAM: Final = ("python", "your_program.py")


@dataclass(frozen=True)
class NextRun:
    """The next collection."""

    command: str | None  #: for a shell; None where nothing missing is worth a run
    reason: str  #: the reason, one sentence
    ncu_version: str  #: version of Nsight Compute that it is valid for, like all later ones up to at least 2024.1
    kernels: tuple[str, ...] = ()  #: short names of the kernels to profile
    launches: int | None = None  #: number of launches to profile
    #: share of the window's kernel time without counters, or that unexplained kernels could gain
    gap_share: float | None = None
    covered_share: float | None = None  #: part of the gap that it closes, as a share of the window's kernel time
    passes: int | None = None  #: modelled number of passes
    passes_how: str | None = None  #: the model, one sentence


@dataclass(frozen=True)
class Choice:
    """A selection of launches to profile: options, number of launches, and the part of the gap they close."""

    names: tuple[str, ...]
    filters: tuple[str, ...]
    launches: int
    worth: float


def no_run(counters: KernelCounters, version: str | None, reason: str) -> NextRun:
    """An empty result with its reason, for the version that the user or the report names.

    Raises:
        UsageError: the version cannot be read.
    """
    return NextRun(None, reason, _valid_version(version or counters.capture.tool_version or _DEFAULT_VERSION)[0])


def _run(counters: KernelCounters, gap: _Gap, choice: Choice, version: str | None) -> NextRun:
    """The command that profiles the chosen launches with the sections of the gap, with the report's settings."""
    valid_for, remark = _valid_version(version or counters.capture.tool_version or _DEFAULT_VERSION)
    session = counters.session
    arguments = [
        *("-k", f"regex:^({'|'.join(re.escape(name) for name in choice.names)})$"),
        *choice.filters,
        *("--launch-count", str(choice.launches)),
        *(part for section in gap.sections for part in ("--section", section)),
        *("--replay-mode", "kernel"),
        *("--clock-control", session.clock_control or "base"),
        *("--cache-control", session.cache_control or "all"),
        *("--export", "next_run"),
    ]
    passes_per_launch, estimate_source = _passes_per_launch(counters, len(gap.sections))
    return NextRun(
        command=shlex.join(("ncu", *arguments, *_PROGRAM)),
        reason=(_NEW_KERNELS if gap.is_new else _NEW_SECTIONS) + remark,
        ncu_version=valid_for,
        kernels=choice.names,
        launches=choice.launches,
        gap_share=gap.share,
        covered_share=choice.worth,
        passes=passes_per_launch * choice.launches,
        passes_how=estimate_source,
    )


def _valid_version(stated: str) -> tuple[str, str]:
    """The version that the command is for, and a remark if the stated one is too old for it."""
    numbers = re.match(r"\s*(\d{4})\.(\d+)(?:\.(\d+))?", stated)
    if numbers is None:
        raise UsageError(f"{stated!r} is not a version of Nsight Compute; one is written like {_DEFAULT_VERSION}")
    version = tuple(int(number or 0) for number in numbers.groups())
    if version >= _OLDEST:
        return ".".join(map(str, version)), ""
    oldest = ".".join(map(str, _OLDEST))
    return oldest, f"; ncu {stated} is too old for it, use {oldest} or later"


def _passes_per_launch(counters: KernelCounters, sections: int) -> tuple[int, str]:
    """Passes per launch with this many sections, and the basis of the estimate."""
    passes, collected = measured(counters, "profiler__replayer_passes").max(), len(counters.session.sections)
    if isinstance(passes, float) and collected:
        estimated = max(1, round(sections * passes / collected))
        basis = (
            f"modelled: {estimated} a launch for {sections} sections, as this report took {passes:.0f} for {collected}"
        )
        return estimated, basis
    estimated = max(1, round(sections * _PASSES_PER_SECTION))
    return estimated, f"modelled: {estimated} a launch, {_PASSES_PER_SECTION:.0f} for each of {sections} sections"


#: Sections that give the bound of a kernel, and its longest stall.
_BOUND_SECTIONS: Final = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")

#: Sections that explain a kernel of this bound.
_CAUSE_SECTIONS: Final = {
    "unknown": _BOUND_SECTIONS,
    "latency": ("WarpStateStats", "SchedulerStats"),
    "memory": ("MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables"),
    "compute": ("ComputeWorkloadAnalysis", "InstructionStats"),
}

#: Every section that a command here can ask for (`ncu --list-sections`, 2024.1.1).
SECTIONS: Final = tuple(dict.fromkeys(section for sections in _CAUSE_SECTIONS.values() for section in sections))

#: A gap of less than a twentieth of the kernel time is not worth another run.
_LEAST_GAP: Final = 0.05

#: A run may stop once half of the gap is closed: the next table then says whether the rest is worth more passes.
_ENOUGH_OF_GAP: Final = 0.5

#: A launch takes some ten passes, each with memory saved and restored: more launches than this take minutes.
_MOST_LAUNCHES: Final = 50

#: A command with more names than this is not readable.
_MOST_NAMES: Final = 8

#: `$` and backslashes cannot be written in a filter for ranges in the same way for all shells (CLI, "NVTX Filtering").
_UNWRITABLE: Final = frozenset("$\\")
_QUANTIFIERS = re.compile(r"([@,\[\]/*+])")

_NEW_KERNELS: Final = (
    "kernels of the window have no counters of their own grid and block; these sections tell what bounds them"
)
_NEW_SECTIONS: Final = "what holds profiled kernels back is not known without these sections"


@dataclass(frozen=True)
class _Gap:
    """Missing sections for some groups of the trace."""

    groups: pl.DataFrame
    sections: tuple[str, ...]
    share: float
    is_new: bool


def next_run(
    counters: KernelCounters,
    coverage: Coverage,
    timeline: Timeline,
    window: Window,
    version: str | None = None,
) -> NextRun:
    """The command that fills the most valuable gap.

    A gap is either kernels of the window without counters, worth their share of the time, or sections that would
    explain why a profiled kernel is off its roof, worth its possible gain. Clock and cache control are those of the
    report, so that both can be compared.

    Args:
        coverage: of that report and this window.
        version: of the `ncu` to be used, e.g. `2025.3.1`; that of the report unless stated.

    Raises:
        UsageError: the version cannot be read.
    """
    missing = coverage.groups.filter(pl.col("matched") != "exact").with_columns(worth="share")
    unprofiled = _Gap(missing, _BOUND_SECTIONS, float(missing["share"].sum()), is_new=True)
    gap = max((unprofiled, _unexplained(counters, coverage.ranking)), key=lambda candidate: candidate.share)
    if gap.share < _LEAST_GAP:
        return no_run(counters, version, "nothing is missing that is worth a twentieth of the kernel time")
    return _run(counters, gap, _cheapest(gap, timeline, window), version)


def next_sections(counters: KernelCounters) -> NextRun:
    """The command that would explain why the kernels of a report are off their roofs, from the report alone.

    Without a trace other kernels are unknown: the command profiles the same ones again, with the missing sections. The
    shares of the result are of the profiled time.
    """
    summary = counters_summary(counters).filter((pl.col("kind") == "kernel") & (pl.col("total_ns") > 0))
    if summary.is_empty():
        return no_run(counters, None, "no kernel was profiled by itself with success; profile the program first")
    share = pl.col("total_ns") / pl.col("total_ns").sum()
    missing_share = (1 - pl.max_horizontal("compute_share", "memory_share")).clip(0, 1)
    groups = summary.select("launch", "name", "bound", share=share, gain_share=missing_share * share)
    gap = _unexplained(counters, groups)
    if gap.share < _LEAST_GAP:
        reason = "no section is missing that would tell more of a twentieth of the profiled time"
        return no_run(counters, None, reason)
    names = tuple(_names_by_worth(gap))
    # A filter by name also matches launches of other sizes: they count up to the last wanted one.
    passing = counters.launches.filter(pl.col("name").cast(pl.String).is_in(names)).with_row_index("at")
    launches_wanted = passing.select("launch", pl.col("at").cast(pl.Int64)).join(gap.groups, on="launch").sort("at")
    reached = launches_wanted.filter(pl.col("at") < _MOST_LAUNCHES)
    if reached.is_empty():
        return no_run(counters, None, f"the kernels in question come after {_MOST_LAUNCHES} others of their names")
    choice = Choice(names, (), int(reached["at"].tail(1).item()) + 1, float(reached["worth"].sum()))
    return _run(counters, gap, choice, None)


def _unexplained(counters: KernelCounters, ranking: pl.DataFrame) -> _Gap:
    """Profiled kernels of the bound with the largest loss, with its sections that were not collected."""
    gaps = [_Gap(ranking.with_columns(worth="share"), (), 0.0, is_new=False)]
    collected = set(counters.session.sections)
    for bound, sections in _CAUSE_SECTIONS.items():
        missing = tuple(section for section in sections if section not in collected)
        # Without a list of collected sections, only missing throughputs are certain.
        if missing and (collected or bound == "unknown"):
            worth = pl.coalesce("gain_share", "share")
            groups = ranking.filter(pl.col("bound") == bound).with_columns(worth=worth)
            gaps.append(_Gap(groups, missing, float(groups["worth"].sum()), is_new=False))
    return max(gaps, key=lambda gap: gap.share)


#: Identity of a launch of the trace in both frames.
_LAUNCH_KEY: Final = ("full_name", "grid", "block")


def _cheapest(gap: _Gap, timeline: Timeline, window: Window) -> Choice:
    """The selection that closes enough of the gap with the fewest launches, else the one that closes most of it.

    Inside annotated steps no launches need to be skipped. Elsewhere, those before the window are.
    """
    launches, shapes = recorded_launches(timeline, window)
    choices: list[Choice] = []
    if step := _step_filter(timeline, window):
        # ncu only sees ranges of the launching thread; work attributed across threads does not match.
        visible = pl.col("inside") & ~pl.col("inferred") & pl.col("range").is_not_null()
        choices = list(_choices(gap, launches.filter(visible), shapes, ("--nvtx", "--nvtx-include", step), skips=False))
    if not any(choice.worth >= _ENOUGH_OF_GAP * gap.share for choice in choices):
        choices += _choices(gap, launches, shapes, _profiler_start(timeline), skips=True)

    def order(choice: Choice) -> tuple[bool, float, float]:
        is_enough = choice.worth >= _ENOUGH_OF_GAP * gap.share
        return (True, -choice.launches, choice.worth) if is_enough else (False, choice.worth, -choice.launches)

    return max(choices, key=order)


def _names_by_worth(gap: _Gap) -> list[str]:
    worths = gap.groups.group_by("name").agg(pl.col("worth").sum()).sort("worth", "name", descending=[True, False])
    return worths["name"].head(_MOST_NAMES).to_list()


def _choices(
    gap: _Gap, launches: pl.DataFrame, shapes: pl.DataFrame, filters: tuple[str, ...], *, skips: bool
) -> Iterator[Choice]:
    """For each leading number of names, the stretch of their launches that closes enough of the gap."""
    names = _names_by_worth(gap)
    worth_of_shape = shapes.join(gap.groups, on=_LAUNCH_KEY, nulls_equal=True).select("shape", "worth")
    for count in range(1, len(names) + 1):
        selected = names[:count]
        passing = shapes.filter(pl.col("name").is_in(selected))["shape"].to_list()
        passed = launches.select("shape", "inside").filter(pl.col("shape").is_in(passing)).with_row_index("at")
        first = passed.filter("inside").group_by("shape").agg(pl.col("at").min().cast(pl.Int64))
        first = first.join(worth_of_shape, on="shape").sort("at")
        begin = first["at"].head(1).sum() if skips else 0
        first = first.filter(pl.col("at") < begin + _MOST_LAUNCHES)
        if first.is_empty():
            continue
        closed = first["worth"].cum_sum()
        enough = first.filter(closed >= _ENOUGH_OF_GAP * gap.share)
        end = (enough if enough.height else first.tail(1))["at"][0]
        skip = ("--launch-skip", str(begin)) if begin else ()
        worth = float(closed.filter(first["at"] <= end)[-1])
        yield Choice(tuple(selected), (*filters, *skip), end - begin + 1, worth)


def _step_filter(timeline: Timeline, window: Window) -> str | None:
    """The NVTX filter for the first step of the window; None where its range's name is not its own.

    A name shared with steps of warm-up would match those, too.
    """
    search, ranges = timeline.steps, timeline.trace.ranges
    if search.source != "range" or window.kind != "steady" or window.range_name is not None:
        return None
    named = ranges.filter(pl.col("name").cast(pl.String).str.replace_all(r"\d+", "N") == search.name)
    texts = named.sort("start_ns")["name"].cast(pl.String)
    warmup = len(search.steps) - len(search.steady)
    if texts.len() != len(search.steps) or named["kind"].n_unique() != 1 or (named["domain"] != 0).any():
        return None
    name = str(texts[warmup])
    if name in texts[:warmup].to_list() or _UNWRITABLE & set(name):
        return None
    return _QUANTIFIERS.sub(r"\\\1", name) + ("/" if named["kind"][0] == "push-pop" else "")


def _profiler_start(timeline: Timeline) -> tuple[str, ...]:
    """The option for programs that start the profiler themselves before their first launch."""
    calls, work = timeline.trace.api_calls, timeline.work
    starts = calls.filter(pl.col("name").cast(pl.String).str.contains("ProfilerStart", literal=True))["start_ns"]
    start, first_launch = number(starts.min()), number(work["launch_start_ns"].min())
    if start is not None and first_launch is not None and start < first_launch:
        return ("--profile-from-start", "off")
    return ()
