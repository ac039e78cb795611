"""Each hypothesis is confirmed where its cause was planted, and refuted where it was not."""

from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest

from tests.analysis.random_traces import GEMM, US
from tests.compare.difference.programs import Launch, program, side
from warplens.analysis.timeline import Timeline
from warplens.compare.difference import step_difference
from warplens.compare.side import Side
from warplens.readers import read, read_counters
from warplens.studies.reports.evidence import CLAIMS, hypotheses

CAPTURES = Path(str(files("warplens") / "data" / "captures"))
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"


def _judged(before, after):
    return {item.id: item for item in hypotheses(step_difference(before, after))}


def _capture(name):
    timeline = Timeline(read(CAPTURES / f"{name}.sqlite.xz"))
    return Side(name, timeline, timeline.window())


def _standings(before, after):
    return {key: item.standing for key, item in _judged(before, after).items() if not key.endswith("c")}


def test_all_four_are_judged_and_named():
    judged = _judged(side(program([Launch()] * 4)), side(program([Launch()] * 4)))
    assert list(judged) == list(CLAIMS) == ["H1", "H2", "H2c", "H3", "H4", "H4c"]
    assert {judged[name].standing for name in ("H2c", "H4c")} == {"not judged"}, "there are no counters"
    assert judged["H2"].claim == CLAIMS["H2"]


def test_launches_added_to_a_host_that_lags_behind_confirm_the_first():
    # 10 launches of 10 µs on the host and 2 on the GPU; the variant spares the GPU half of that and launches 5 more.
    before = side(program([Launch(gpu=2 * US)] * 10))
    after = side(program([Launch(gpu=1 * US)] * 10 + [Launch("topk", gpu=1 * US)] * 5))
    first = _judged(before, after)["H1"]
    assert first.standing == "confirmed"
    assert first.evidence["launches_added_per_step"] == 5
    assert first.evidence["added_launches_ns_per_step"] == pytest.approx(50 * US)
    assert first.evidence["added_launch_ns"] == pytest.approx(10 * US)


def test_the_same_launches_added_to_a_busy_gpu_refute_it():
    before = side(program([Launch(gpu=100 * US, host=10 * US)] * 10))
    after = side(program([Launch(gpu=100 * US, host=10 * US)] * 10 + [Launch("topk", gpu=100 * US)] * 5))
    assert _standings(before, after)["H1"] == "refuted"


def test_added_operations_that_cost_what_they_save_confirm_h3():
    before = side(program([Launch(gpu=100 * US)] * 10))
    after = side(program([Launch(gpu=90 * US)] * 10 + [Launch("topk", gpu=80 * US)]))
    third = _judged(before, after)["H3"]
    assert (third.standing, third.share) == ("confirmed", pytest.approx(0.8))


def test_added_operations_that_cost_little_refute_h3():
    before = side(program([Launch(gpu=100 * US)] * 10))
    after = side(program([Launch(gpu=40 * US)] * 10 + [Launch("topk", gpu=10 * US)]))
    third = _judged(before, after)["H3"]
    assert (third.standing, third.share) == ("refuted", pytest.approx(10 / 600))


def test_gathers_that_cost_what_products_save_confirm_h4():
    before = side(program([Launch(GEMM, gpu=100 * US)] * 10))
    after = side(program([Launch(GEMM, gpu=50 * US)] * 10 + [Launch(GATHER, gpu=400 * US)]))
    fourth = _judged(before, after)["H4"]
    assert (fourth.standing, fourth.share) == ("confirmed", pytest.approx(0.8))


@pytest.mark.parametrize(
    ("blocks", "share", "standing"), [(33, 0.75, "confirmed"), (99, 0.25, "partly"), (264, 0.0, "refuted")]
)
def test_the_grids_decide_the_second(blocks, share, standing):
    trace = program([Launch(grid=(blocks, 1, 1))] * 4)
    gpu = replace(trace.capture.devices[0], sm_count=132)
    known = replace(trace, capture=replace(trace.capture, devices=(gpu,)))
    judged = _judged(side(known), side(known))["H2"]
    assert (judged.share, judged.standing) == (pytest.approx(share), standing)


def test_without_the_number_of_multiprocessors_h2_is_unavailable():
    trace = program([Launch()] * 4)
    assert _judged(side(trace), side(trace))["H2"].standing == "unavailable"


def test_the_founding_puzzle():
    """One image: the launches are the cause, and the GPU has too little to do; the gathers are not."""
    judged = _standings(_capture("deit224_bs1_baseline"), _capture("deit224_bs1_topk0.1"))
    assert judged == {"H1": "confirmed", "H2": "confirmed", "H3": "partly", "H4": "refuted"}


def test_the_same_variant_where_it_pays():
    """Eight large images: twice as fast, and none of the explanations of a slowdown holds."""
    judged = _standings(_capture("deit448_bs8_baseline"), _capture("deit448_bs8_topk0.1"))
    assert set(judged.values()) == {"refuted"}


COUNTERS = Path(__file__).resolve().parents[2] / "data" / "counters"

#: What the reduction adds to the model, of the kernels that move memory: read off the profiler's list of launches.
ADDED = {
    "224_bs1": {"gatherTopK", "bitonicSortKVInPlace", "CatArrayBatchedCopy_vectorized", "vectorized_gather_kernel"},
    "448_bs8": {
        *("gatherTopK", "radixSortKVInPlace", "CatArrayBatchedCopy_alignedK_contig"),
        "_scatter_gather_elementwise_kernel",
    },
}


@pytest.mark.parametrize(("point", "waits", "scattered"), [("224_bs1", "confirmed", 0.02), ("448_bs8", "partly", 0.2)])
def test_counters_judge_what_happens_inside_kernels(point, waits, scattered):
    """By hand from the counters themselves: peaks of Speed of Light, and bytes used of each sector."""
    counters = read_counters(COUNTERS / f"deit{point}_topk0.1.ncu-rep.xz")
    sides = [_capture(f"deit{point}_{name}") for name in ("baseline", "topk0.1")]
    judged = {item.id: item for item in hypotheses(step_difference(*sides), counters)}
    assert judged["H2c"].standing == waits
    assert judged["H4c"].share == pytest.approx(scattered, abs=0.05)

    # Each profiled launch stands for those of the window that are alike.
    sizes = [pl.col(f"{what}_{axis}") for what in ("grid", "block") for axis in "xyz"]
    work = sides[1].work.filter(pl.col("kind") == "kernel")
    window = Counter(sides[1].timeline.trace.kernels[work["row"]].select(pl.col("name").cast(str), *sizes).rows())
    profiled = counters.launches.select(pl.col("name").cast(str), *sizes).rows()
    times = pl.Series([window[row] / profiled.count(row) if row in window else 1.0 for row in profiled])
    metrics = counters.metrics
    time, occupancy = metrics["gpu__time_duration.sum"], metrics["sm__warps_active.avg.pct_of_peak_sustained_active"]
    weighted = (time * times * occupancy).sum() / (time * times).sum() / 100
    assert judged["H2c"].evidence["occupancy_share"] == pytest.approx(weighted)

    touched = used = 0.0
    for way in ("ld", "st"):
        sectors = metrics[f"l1tex__t_sectors_pipe_lsu_mem_global_op_{way}.sum"].fill_null(0) * times
        each = metrics[f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{way}.ratio"].fill_null(0)
        for (name, *_), count, share in zip(profiled, sectors, each, strict=True):
            if name in ADDED[point]:
                touched, used = touched + count, used + count * min(share, 32) / 32
    assert judged["H4c"].share == pytest.approx(1 - used / touched, abs=0.01)


def test_h1_explains_times_without_a_profiler_where_they_are_known():
    """A recording that slows the baseline more shows a step that falls, where the program's rises."""
    slowed = side(program([Launch(gpu=2 * US, host=20 * US)] * 10))
    after = side(program([Launch(gpu=1 * US)] * 10 + [Launch("topk", gpu=1 * US)] * 5))
    difference = step_difference(slowed, after)
    assert {item.id: item for item in hypotheses(difference)}["H1"].standing == "refuted"

    # Half as slow without a profiler: five launches of 5 µs, of the 25 µs by which its step is longer.
    step = float(difference.wall.variant.wall_ns) / 2
    first = {item.id: item for item in hypotheses(difference, step_ns=(step - 25 * US, step))}["H1"]
    assert (first.standing, first.share) == ("confirmed", pytest.approx(1.0))
    assert first.evidence["added_launch_ns"] == pytest.approx(5 * US)


@pytest.mark.slow
def test_a_report_of_another_program_judges_no_scatter():
    counters = read_counters(Path(str(files("warplens") / "data" / "counters" / "planted_h200.ncu-rep.xz")))
    sides = [_capture(f"deit224_bs1_{name}") for name in ("baseline", "topk0.1")]
    judged = {item.id: item for item in hypotheses(step_difference(*sides), counters)}
    assert judged["H4c"].standing == "not judged"
    assert judged["H2c"].standing == "not judged"
    assert judged["H2c"].evidence["counters_coverage_share"] == 0.0
