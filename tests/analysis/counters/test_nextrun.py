"""The next command: what it selects, that `ncu` knows every word; and what every mode of recording lets one say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from tests.analysis import builders as traces
from tests.analysis.counters.builders import counters, launch
from tests.analysis.counters.test_coverage import COPY, GEMM, NORM, steps
from warplens.analysis.counters.bounds import kernel_bounds
from warplens.analysis.counters.coverage import counter_notes, counters_coverage
from warplens.analysis.counters.groups import counters_summary, group_launches
from warplens.analysis.counters.nextrun import OPTIONS, SECTIONS, NextRun, next_run, next_sections
from warplens.analysis.counters.occupancy import launch_occupancy
from warplens.analysis.counters.roofline import roofline
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError
from warplens.profile.counters import KernelCounters, Session
from warplens.readers import read_counters

#: The sections that `ncu --list-sections` of 2024.1.1 shows, as far as they matter here. Its options are held against
#: its help in `tests/collect/test_commands.py`.
NCU_2024_SECTIONS = {
    "ComputeWorkloadAnalysis",
    "InstructionStats",
    "LaunchStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Chart",
    "MemoryWorkloadAnalysis_Tables",
    "Occupancy",
    "SchedulerStats",
    "SourceCounters",
    "SpeedOfLight",
    "SpeedOfLight_RooflineChart",
    "WarpStateStats",
    "WorkloadDistribution",
    "PmSampling",
}
NCU = os.environ.get("WARPLENS_NCU")


def ask(report: KernelCounters, timeline: Timeline, version: str | None = None, window: str = "steady") -> NextRun:
    selected = timeline.window(window)
    return next_run(report, counters_coverage(report, timeline, selected), timeline, selected, version)


def words(run: NextRun) -> list[str]:
    assert run.command is not None
    return shlex.split(run.command)


def value(run: NextRun, option: str) -> str | None:
    given = words(run)
    return given[given.index(option) + 1] if option in given else None


def test_the_kernel_with_most_of_the_time_is_asked_for_inside_the_steps():
    run = ask(counters(launch("other")), steps())

    assert value(run, "-k") == "regex:^(gemm)$"
    assert value(run, "--nvtx-include") == "step/"
    assert "--launch-skip" not in words(run)
    assert (run.launches, run.covered_share) == (1, 0.6)
    assert words(run)[-2:] == ["python", "your_program.py"]


def test_a_kernel_of_autograds_thread_is_not_looked_for_inside_ranges_of_another():
    """ncu knows the ranges of the launching thread alone; that the work belongs to the step is inferred."""
    trace = steps().trace
    thread = pl.when(pl.col("correlation") % 10 == 1).then(traces.AUTOGRAD_THREAD).otherwise("thread").cast(pl.Int32)
    moved = replace(trace, api_calls=trace.api_calls.with_columns(thread=thread))
    run = ask(counters(launch("other")), Timeline(moved))

    assert value(run, "-k") == "regex:^(gemm)$"
    assert value(run, "--nvtx-include") is None


def test_a_kernel_that_was_profiled_is_not_asked_for_again():
    assert value(ask(counters(launch("gemm", sm=97.0, memory=20.0, **GEMM)), steps()), "-k") == "regex:^(copy)$"


def test_a_kernel_profiled_without_throughputs_is_asked_for_again():
    run = ask(counters(launch("gemm", **GEMM)), steps())

    assert value(run, "-k") == "regex:^(gemm)$"
    assert "SpeedOfLight" in words(run)


def test_without_ranges_launches_before_the_window_are_skipped():
    kernels = [
        traces.kernel(at + shift, at + shift + ns, name, **size)
        for at in range(0, 8000, 1000)
        for shift, ns, name, size in ((0, 300, "copy", COPY), (300, 100, "norm", NORM), (400, 500, "copy", GEMM))
    ]
    run = ask(counters(launch("norm", **NORM)), Timeline(traces.trace(kernels)), window="4000ns:8000ns")

    # Eight copies in two sizes came before the window; the larger size is more than half of the gap, and comes second.
    assert value(run, "-k") == "regex:^(copy)$"
    assert value(run, "--launch-skip") == "8"
    assert (value(run, "--launch-count"), run.launches) == ("2", 2)
    assert run.covered_share == pytest.approx(8 / 9)
    assert "--nvtx" not in words(run)


def test_steps_of_warm_up_with_the_same_name_are_not_let_through():
    run = ask(counters(launch("tune", **GEMM)), steps(warmup=2))

    assert "--nvtx-include" not in words(run)
    assert value(run, "--launch-skip") == "2"


def test_a_numbered_step_is_named_and_its_quantifiers_are_escaped():
    kernels = [traces.kernel(at + 10, at + 500, "gemm", correlation=at + 1, **GEMM) for at in range(0, 4000, 1000)]
    api = [traces.launch(at + 1, at + 2, at + 1) for at in range(0, 4000, 1000)]
    ranges = [traces.nvtx(at, at + 600, f"train step [{at // 1000}]") for at in range(0, 4000, 1000)]

    run = ask(counters(), Timeline(traces.trace(kernels, api, ranges)))

    assert value(run, "--nvtx-include") == r"train step \[0\]/"


def test_a_program_that_starts_the_profiler_is_waited_for():
    kernels = [traces.kernel(at, at + 50, "gemm", correlation=at, **GEMM) for at in (100, 200, 300)]
    api = [traces.call(1, 2, "cudaProfilerStart"), *(traces.launch(at - 5, at - 4, at) for at in (100, 200, 300))]

    assert value(ask(counters(), Timeline(traces.trace(kernels, api))), "--profile-from-start") == "off"


def test_where_all_was_profiled_the_sections_that_explain_the_greatest_loss_are_asked_for():
    session = Session(("SpeedOfLight", "LaunchStats", "Occupancy"), "none", "none", "kernel")
    run = ask(
        counters(
            launch("gemm", sm=10.0, memory=20.0, **(GEMM | {"grid": (8, 4, 1)}), sms=1),
            launch("copy", sm=10.0, memory=90.0, **COPY),
            launch("norm", sm=10.0, memory=70.0, **NORM),
            session=session,
        ),
        steps(),
    )

    given = words(run)
    assert value(run, "-k") == "regex:^(gemm)$"  # latency: it could lose 0.8 of 60 %
    assert [given[at + 1] for at, word in enumerate(given) if word == "--section"] == [
        "WarpStateStats",
        "SchedulerStats",
    ]
    assert (run.gap_share, run.covered_share) == (pytest.approx(0.48), pytest.approx(0.48))
    assert (value(run, "--clock-control"), value(run, "--cache-control")) == ("none", "none")


def test_where_nothing_is_missing_there_is_no_command():
    covered = counters(
        *(launch(name, sm=97.0, memory=20.0, **size) for name, size in (("gemm", GEMM), ("copy", COPY), ("norm", NORM)))
    )

    assert ask(covered, steps()).command is None


def test_passes_follow_from_what_the_report_took():
    session = Session(("SpeedOfLight", "Occupancy"))
    known = ask(counters(launch("other", profiler__replayer_passes=10.0), session=session), steps())

    assert (known.passes, ask(counters(), steps()).passes) == (20, 12)
    assert "modelled" in str(known.passes_how)


def test_the_command_is_for_the_version_stated_or_that_of_the_report():
    assert ask(counters(), steps()).ncu_version == "2025.3.1"
    assert ask(counters(), steps(), "2022.4.0.15").ncu_version == "2022.4.0"
    old = ask(counters(), steps(), "2020.3.1")
    assert old.ncu_version == "2021.1.1"
    assert "2020.3.1 is too old" in old.reason
    with pytest.raises(UsageError, match="'latest' is not a version"):
        ask(counters(), steps(), "latest")


def test_every_section_is_one_that_ncu_has_and_every_option_one_that_is_held_against_its_help():
    assert set(SECTIONS) <= NCU_2024_SECTIONS
    for timeline in (steps(), steps(warmup=2)):
        given = words(ask(counters(), timeline))
        options = [word for word in given if word.startswith("-")]
        assert set(options) <= set(OPTIONS)
        assert {given[at + 1] for at, word in enumerate(given) if word == "--section"} <= set(SECTIONS)


@pytest.mark.skipif(NCU is None, reason="WARPLENS_NCU names no ncu")
def test_ncu_understands_the_whole_command(tmp_path):
    given = words(ask(counters(launch("tune", **GEMM)), steps()))

    # Without a GPU it goes no further than to say so, and with one `true` launches nothing.
    ran = subprocess.run([str(NCU), *given[1:-2], "true"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert not re.search("option|argument|expression", ran.stdout + ran.stderr)


DATA = Path(__file__).resolve().parents[2] / "readers" / "data" / "counter_modes"

TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


@cache
def report(mode: str) -> KernelCounters:
    return read_counters(DATA / f"{mode}.ncu-rep.xz")


@pytest.mark.parametrize("mode", ["ranges", "graph", "nvtx_ranges", "app_ranges"])
def test_several_kernels_as_one_have_no_launch_configuration(mode):
    counters = report(mode)
    assert "launch__block_size" in counters.metrics.columns, "ncu states that of one of the kernels"

    occupancy = launch_occupancy(counters)

    stated = ("theoretical_share", "limiter", "waves", "tail_share", "cluster_blocks", "inconsistent")
    assert occupancy.select(stated).null_count().row(0) == (counters.launches.height,) * len(stated)


@pytest.mark.parametrize("mode", ["ranges", "app_ranges"])
def test_a_range_below_the_roofs_is_not_said_to_wait(mode):
    """The time between its kernels is in its shares; only a trace could tell the two apart."""
    bounds = kernel_bounds(report(mode))

    assert bounds["bound"].to_list() == ["unknown", "unknown"]
    assert "several-kernels-as-one" in [note.code for note in counter_notes(report(mode))]


def test_a_graph_that_fills_the_tensor_pipe_is_bound_by_it():
    assert kernel_bounds(report("graph")).select("bound", "unit").unique().rows() == [("compute", "tensor")]


def test_ranges_without_names_are_told_apart():
    summary = counters_summary(report("ranges"))

    assert summary["name"].to_list() == ["range #1", "range #0"], "the second holds twice as many kernels"
    assert summary["launches"].to_list() == [1, 1]
    assert counters_summary(report("nvtx_ranges"))["name"].to_list() == ["range step"]


def test_nodes_of_a_graph_that_was_launched_twice_are_three_groups_of_two():
    groups = group_launches(report("graph_nodes")).groups

    assert groups["launches"].to_list() == [2, 2, 2]


def test_ranges_are_not_asked_for_by_name_in_the_next_run():
    assert next_sections(report("ranges")).command is None


def test_clusters_fit_less_often_than_their_blocks():
    """45 clusters of 8 blocks fit on 132 multiprocessors that hold 3 of these blocks each: 360 of 396."""
    row = launch_occupancy(report("clusters")).row(0, named=True)

    assert (row["cluster_blocks"], row["cluster_max_active"], row["blocks_per_sm"]) == (8, 45, 3)
    assert row["theoretical_share"] == row["reported_share"] == 0.375
    assert row["cluster_share"] == pytest.approx(0.375 * 360 / 396)
    assert row["waves"] == pytest.approx(1056 / 360)
    assert row["achieved_share"] == pytest.approx(row["cluster_share"], abs=0.01)
    (note,) = (note for note in counter_notes(report("clusters")) if note.code == "clusters")
    assert "34 % occupancy" in note.text


def test_dense_and_sparse_products_have_roofs_of_their_own():
    found = roofline(report("products")).filter((pl.col("precision") == "tensor") & (pl.col("level") == "dram"))

    assert found.select("format", "sparse").rows() == [("bf16", False), ("bf16", True)]
    pipe = report("products").values(TENSOR_PIPE).to_list()
    assert [100 * share for share in found["roof_share"]] == pytest.approx(pipe, rel=1e-9)
    assert min(pipe) > 98.0


def test_without_counts_of_instructions_a_total_is_measured_against_dense_products_where_it_can_be():
    counters = report("products")
    totals = [name for name in counters.metrics.columns if not name.startswith("sm__ops_path_tensor_op_")]
    metrics = counters.metrics.select(totals)
    found = roofline(KernelCounters(counters.capture, counters.session, counters.launches, metrics))

    tensor = found.filter((pl.col("precision") == "tensor") & (pl.col("level") == "dram"))
    dense, sparse = tensor.to_dicts()
    # A total's peak is that of wgmma with sparsity, twice that without; these kernels used mma, which reaches less.
    assert (dense["sparse"], dense["roof_share"]) == (None, pytest.approx(0.6602, abs=1e-4))
    assert (sparse["sparse"], sparse["roof_share"]) == (None, pytest.approx(0.989, abs=1e-3))
