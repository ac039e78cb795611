"""Coverage of a trace by a report: counted by hand, and on our own captures by a join written out in plain Python."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

import warplens
from tests.analysis import builders as traces
from tests.analysis.counters.builders import COMPUTE, SHARED, counters, launch, needs_reports
from warplens.analysis.counters.coverage import Coverage, counter_notes, counters_coverage
from warplens.analysis.counters.groups import counters_summary, group_launches
from warplens.analysis.counters.speedoflight import speed_of_light
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError
from warplens.profile.counters import KernelCounters, Session
from warplens.readers import read_counters

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPTURES = Path(warplens.__file__).parent / "data" / "captures"

GEMM = {"grid": (8, 4, 1), "block": (256, 1, 1)}
COPY = {"grid": (100, 1, 1), "block": (128, 1, 1)}
NORM = {"grid": (50, 1, 1), "block": (32, 4, 1)}


def steps(count: int = 3, warmup: int = 0) -> Timeline:
    """Steps of a gemm (600 ns), a copy (300 ns) and a norm (100 ns); slow ones with a kernel `tune` first."""
    kernels, api, ranges = [], [], []
    for step in range(warmup + count):
        begin = 10_000 * step
        work = [("gemm", 600, GEMM), ("copy", 300, COPY), ("norm", 100, NORM)]
        if step < warmup:
            work = [("tune", 5_000, GEMM), *work]
        at = begin + 100
        for number, (name, ns, size) in enumerate(work):
            correlation = 10 * step + number + 1
            kernels.append(traces.kernel(at, at + ns, name, correlation=correlation, **size))
            api.append(traces.launch(begin + 10 + number, begin + 11 + number, correlation))
            at += ns
        ranges.append(traces.nvtx(begin, at + 10, "step"))
    return Timeline(traces.trace(kernels, api, ranges))


def cover(report: KernelCounters, timeline: Timeline, window: str = "steady") -> Coverage:
    return counters_coverage(report, timeline, timeline.window(window))


def with_full_names(report: KernelCounters, names: Sequence[str]) -> KernelCounters:
    full = pl.Series("full_name", names, dtype=pl.Enum(list(dict.fromkeys(names))))
    return replace(report, launches=report.launches.with_columns(full))


def test_a_group_is_covered_by_launches_of_its_kernel_grid_and_block():
    report = counters(launch("gemm", **GEMM), launch("gemm", **GEMM), launch("copy", grid=7), launch("other"))

    covered = cover(report, steps())

    assert covered.groups.select("name", "launches", "launches_profiled", "total_ns", "matched").rows() == [
        ("gemm", 3, 2, 1800, "exact"),
        ("copy", 3, 1, 900, "kernel"),
        ("norm", 3, 0, 300, "none"),
    ]
    assert covered.total_ns == 3000
    assert (covered.exact_share, covered.kernel_share, covered.name_share, covered.missing_share) == (0.6, 0.3, 0, 0.1)
    assert (covered.launches_matched, covered.launches_profiled) == (2, 4)
    assert covered.unmatched.select("name", "grid", "launches_profiled", "launches_elsewhere").rows() == [
        ("copy", "7,1,1", 1, 0),
        ("other", "10000,1,1", 1, 0),
    ]


def test_another_instance_of_a_template_is_another_kernel():
    report = with_full_names(counters(launch("fill", **COPY)), ["void fill<float, 4>(float *)"])
    kernels = [
        traces.kernel(at, at + 10, "fill", full_name=f"void fill<{kind}, 4>({kind} *)", **COPY)
        for at, kind in ((0, "float"), (20, "double"))
    ]

    covered = cover(report, Timeline(traces.trace(kernels)))

    assert dict(covered.groups.select("full_name", "matched").rows()) == {
        "void fill<float, 4>(float *)": "exact",
        "void fill<double, 4>(double *)": "name",
    }


@pytest.mark.parametrize(
    ("in_report", "in_trace"),
    [
        ("void sort<16, 1, c10::Half>(T1 *)", "void at::native::sort<(int)16, (bool)1, c10::Half>(T1 *)"),
        (
            "void sort<unnamed>::Of<2>, long>(T1)",
            "void (anonymous namespace)::sort<(anonymous namespace)::Of<2>,long>(T1)",
        ),
        ("void sort<4ul>(float*)", "void sort<(unsigned long)4>(float *)"),
        ("sort", "void at::sort<(int)4>(float *)"),
    ],
)
def test_the_same_kernel_is_found_however_tools_spell_it(in_report, in_trace):
    report = with_full_names(counters(launch("sort", **COPY)), [in_report])
    timeline = Timeline(traces.trace([traces.kernel(0, 10, "sort", full_name=in_trace, **COPY)]))

    assert cover(report, timeline).groups["matched"].to_list() == ["exact"]


def test_the_most_to_gain_is_the_distance_to_the_roof_times_the_share_of_the_time():
    report = counters(
        launch("gemm", sm=90.0, memory=20.0, **GEMM),
        launch("copy", sm=5.0, memory=40.0, **COPY),
        launch("norm", sm=None, **NORM),
    )

    ranking = cover(report, steps()).ranking

    assert ranking["name"].to_list() == ["copy", "gemm", "norm"]
    assert ranking["throughput_share"].to_list() == [0.4, 0.9, None]
    assert ranking["gain_share"].to_list() == [pytest.approx(0.6 * 0.3), pytest.approx(0.1 * 0.6), None]
    assert ranking["bound"][1] == "compute"


def test_launches_that_ran_before_the_steady_steps_only_are_warm_up():
    covered = cover(counters(launch("tune", **GEMM)), steps(warmup=2))

    assert covered.sample == "warm-up"
    assert covered.unmatched["launches_elsewhere"].to_list() == [2]
    assert covered.exact_share == 0


def test_the_order_of_launches_tells_warm_up_where_kernels_alone_do_not():
    tuned = [launch("tune", **GEMM), launch("gemm", **GEMM)]
    whole = [launch("gemm", **GEMM), launch("copy", **COPY)]

    assert cover(counters(*tuned), steps(warmup=2)).sample == "warm-up"
    assert cover(counters(*whole), steps(warmup=2)).sample == "unknown"
    assert cover(counters(*whole), steps()).sample == "steady"


def test_a_sample_across_the_begin_of_the_window_is_mixed():
    across = [launch(name, **size) for name, size in (("tune", GEMM), ("gemm", GEMM), ("copy", COPY), ("norm", NORM))]
    report = counters(*across, launch("gemm", **GEMM), launch("copy", **COPY))

    assert cover(report, steps(warmup=1)).sample == "mixed"


def test_where_the_trace_lacks_the_kernels_or_the_steps_the_sample_is_unknown():
    assert cover(counters(launch("other")), steps()).sample == "unknown"
    assert cover(counters(launch("gemm", **GEMM)), steps(), "all").sample == "unknown"


def test_an_empty_report_covers_nothing_and_an_empty_trace_has_no_shares():
    nothing = cover(counters(), steps())
    assert (nothing.exact_share, nothing.missing_share, nothing.launches_profiled) == (0, 1, 0)
    assert nothing.ranking.is_empty()

    without = cover(counters(launch("gemm", **GEMM)), Timeline(traces.trace([])))
    assert without.exact_share is None
    assert without.unmatched["name"].to_list() == ["gemm"]


def plain_join(report: str, capture: str) -> tuple[Counter[str], int, int]:
    """Time by how it is covered, all time, and the matched launches, with dictionaries and one rule for names."""

    def spelled(name: str) -> str:
        name = re.sub(r"\((int|bool|unsigned int|unsigned long)\)(?=[-\d])|<?unnamed>::", "", name)
        for namespace in ("at::native::", "at::", "sbtopk::", "void "):
            name = name.replace(namespace, "")
        name = name.replace("_vectorizedOpaque", "_vectorized<Opaque").replace(" ", "")
        brackets = 0
        for position, mark in enumerate(name):
            brackets += (mark == "<") - (mark == ">")
            if mark == "(" and not brackets:
                return name[:position]
        return name

    def key(row: dict[str, object]) -> tuple[object, ...]:
        return (
            spelled(str(row["full_name"])),
            *(row[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"),
        )

    trace = warplens.read(CAPTURES / capture)
    window = Timeline(trace).window("steady")
    profiled = Counter(map(key, read_counters(SHARED / report).launches.to_dicts()))
    kernels = {spelled_as for spelled_as, *_ in profiled}
    names = set(read_counters(SHARED / report).launches["name"].cast(pl.String))
    times: Counter[str] = Counter()
    seen = set()
    for row in trace.kernels.to_dicts():
        if not window.start_ns <= row["start_ns"] < window.end_ns:
            continue
        it = key(row)
        found = (
            "exact" if it in profiled else "kernel" if it[0] in kernels else "name" if row["name"] in names else "none"
        )
        times[found] += row["end_ns"] - row["start_ns"]
        seen.add(it)
    return times, sum(times.values()), sum(count for it, count in profiled.items() if it in seen)


@needs_reports
@pytest.mark.parametrize(
    ("report", "capture", "matched"),
    [
        ("h200_topk_reduction.raw.csv", "deit224_bs1_topk0.1.sqlite.xz", 7),
        ("h200_topk_reduction.raw.csv", "deit448_bs8_topk0.1.sqlite.xz", 0),
        # All its launches convert weights before the first step; the trace begins after that.
        ("h200_deit448_bs8.ncu-rep", "deit448_bs8_baseline.sqlite.xz", 0),
    ],
)
def test_our_own_reports_cover_our_own_traces_as_a_plain_join_counts(report, capture, matched):
    covered = cover(read_counters(SHARED / report), Timeline(warplens.read(CAPTURES / capture)))
    times, total, launches = plain_join(report, capture)

    assert covered.launches_matched == launches == matched
    assert covered.total_ns == total
    assert {what: covered.groups.filter(pl.col("matched") == what)["total_ns"].sum() for what in times} == dict(times)
    assert (covered.exact_share, covered.missing_share) == (times["exact"] / total, times["none"] / total)
    assert covered.ranking["share"].sum() == pytest.approx(times["exact"] / total)
    assert covered.sample == "unknown"


def test_without_a_metric_of_time_cycles_and_their_rate_tell_it():
    cycles = {"sm__cycles_elapsed.avg": 14_100.0, "sm__cycles_elapsed.avg.per_second": 1.41e9}
    report = counters(launch(ns=None, **cycles), launch(ns=7_000.0, **cycles), launch(ns=None))
    assert speed_of_light(report)["duration_ns"].to_list() == [pytest.approx(10_000.0), 7_000.0, None]
    assert group_launches(report).groups["total_ns"].to_list() == [pytest.approx(17_000.0)]


def test_launches_of_the_same_kernel_grid_and_block_are_one_group():
    report = counters(
        launch("a", grid=10),
        launch("b", grid=10),
        launch("a", grid=20),
        launch("a", grid=10),
        launch("a", grid=10, block=64),
    )

    groups = group_launches(report)

    assert groups.of_launch.to_list() == [0, 1, 2, 0, 3]
    assert groups.groups.select("first_launch", "launches").rows() == [(0, 2), (1, 1), (2, 1), (4, 1)]


def test_a_group_has_the_medians_of_its_launches_and_their_total_time():
    groups = group_launches(counters(*(launch(ns=ns, sm=sm) for ns, sm in ((100, 10.0), (300, 50.0), (120, 20.0)))))

    assert groups.groups["total_ns"].to_list() == [520.0]
    assert groups.counters.values("gpu__time_duration.sum").to_list() == [120.0]
    assert groups.counters.values(COMPUTE).to_list() == [20.0]


def test_a_launch_that_failed_does_not_spoil_its_group():
    groups = group_launches(counters(launch(ns=float("nan")), launch(ns=200.0), launch(ns=None)))

    assert groups.counters.values("gpu__time_duration.sum").to_list() == [200.0]
    assert groups.groups["total_ns"].to_list() == [200.0]


def test_groups_stand_in_the_order_of_their_time_and_launches_in_that_of_the_file():
    report = counters(launch("short", ns=10.0), launch("long", ns=1000.0), launch("failed", ns=None))

    assert counters_summary(report)["name"].to_list() == ["long", "short", "failed"]
    assert counters_summary(report, "launch")["name"].to_list() == ["short", "long", "failed"]


def test_a_metric_asked_for_is_a_column_of_its_own():
    report = counters(launch(**{"lts__t_sectors.sum": 5.0}), launch(**{"lts__t_sectors.sum": 7.0}))

    assert counters_summary(report, "launch", ["lts__t_sectors.sum"])["lts__t_sectors.sum"].to_list() == [5.0, 7.0]
    assert counters_summary(report, "group", ["lts__t_sectors.sum"])["lts__t_sectors.sum"].to_list() == [6.0]


def test_a_metric_that_was_not_collected_is_refused_with_those_near_it():
    with pytest.raises(UsageError, match=r"'lts__t_sector.sum' was not collected; near it are lts__t_sectors.sum"):
        counters_summary(counters(launch(**{"lts__t_sectors.sum": 5.0})), "group", ["lts__t_sector.sum"])


def test_an_empty_report_has_no_rows_and_says_so():
    report = counters()

    assert counters_summary(report).is_empty()
    assert [item.code for item in counter_notes(report)][:1] == ["no-launches"]


def test_notes_say_how_the_numbers_were_got():
    session = Session(cache_control="all", clock_control="base")

    codes = {
        item.code for item in counter_notes(counters(launch(profiler__replayer_passes=19.0, sm=1.0), session=session))
    }

    assert codes == {"caches-flushed", "clocks-locked", "replayed", "coverage-unknown"}


@pytest.mark.parametrize("no_duration", [None, float("nan"), float("inf"), -5.0])
def test_notes_say_what_is_missing(no_duration):
    report = counters(launch(ns=no_duration), launch(sm=1.0), launch())
    notes = {item.code: item.text for item in counter_notes(report)}

    assert counters_summary(report, "launch")["total_ns"].null_count() == 1
    assert notes["launches-without-time"].startswith("1 of 3 launches")
    assert notes["no-throughputs"].startswith("1 of 3 launches")
