"""What bounds each cell, by measurements alone and by profiles."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest

from warplens.compare.statistics import Samples
from warplens.readers.measurements import read_measurements
from warplens.studies.sweeps.reading import matched, sweep_of
from warplens.studies.sweeps.regimes import cell_key, regimes
from warplens.studies.sweeps.sweep import Cell, Point, Sweep

TOKENS = resources.files("warplens").joinpath("data/measurements/token_reduction.json.xz")
H200 = {"device": {"name": "NVIDIA H200"}}


def cell(time_ns: float, flops: int | None = None, gpu_ns: float | None = None, launch: str | None = None) -> Cell:
    gpu = Samples.of([[gpu_ns]]) if gpu_ns else None
    return Cell("measured", Samples.of([[time_ns]]), None, time_ns, gpu, flops=flops, launch=launch)


def line(*cells: Cell, axis: str = "batch", **facts) -> Sweep:
    """Baseline cells along an axis whose values double."""
    points = tuple(Point({axis: 2**place}, item, None) for place, item in enumerate(cells))
    told = {"shared": {}, "environment": {}, **facts}
    return Sweep("line", "line", (axis,), {"side": "a"}, {"side": "b"}, points=points, paired=False, **told)


def found(sweep: Sweep, **options) -> list[tuple[str, str | None]]:
    return [(item.regime, item.evidence) for item in regimes(sweep, **options)]


@pytest.fixture(scope="module")
def h200():
    with resources.as_file(TOKENS) as path:
        return regimes(matched(sweep_of(read_measurements(path))))


def of(cells, **settings):
    return {item.side: (item.regime, item.evidence) for item in cells if item.settings == settings}


def test_a_small_eager_batch_on_the_h200_waits_for_its_host(h200):
    """Its replay as a graph takes a quarter of the time: 0.858 of 3.18 ms, 0.813 of 3.81 ms."""
    told = of(h200, input_size=224, batch=1, execution="eager")
    assert told == {"baseline": ("launch-bound", "measured"), "variant": ("launch-bound", "measured")}


def test_where_reduction_starts_to_pay_its_baseline_is_bound_by_the_gpu_and_itself_by_the_host(h200):
    """The regime changes: 448 pixels, batch 4: 4.63 of 5.02 ms, but 2.23 of 4.20 ms."""
    told = of(h200, input_size=448, batch=4, execution="eager")
    assert told == {"baseline": ("gpu-bound", "measured"), "variant": ("launch-bound", "measured")}


def test_the_largest_batch_is_bound_by_the_gpu_on_both_sides(h200):
    told = of(h200, input_size=448, batch=16, execution="eager")
    assert {regime for regime, _ in told.values()} == {"gpu-bound"}


def test_no_replayed_graph_waits_for_the_host(h200):
    assert {item.regime for item in h200 if item.settings["execution"] == "graph"} == {"gpu-bound"}


def test_time_that_stands_still_while_the_work_doubles_is_the_hosts():
    told = found(line(cell(100, 10), cell(101, 20), cell(102, 40), cell(400, 800)))
    assert told[:2] == [("launch-bound", "modelled")] * 2


def test_time_that_follows_the_work_is_the_gpus():
    assert found(line(cell(100, 10), cell(195, 20), cell(390, 40)))[1:] == [("gpu-bound", "modelled")] * 2


def test_between_the_two_nothing_is_said():
    told = regimes(line(cell(100, 10), cell(150, 20), cell(225, 40)))
    assert {item.regime for item in told} == {"unknown"}
    assert "a profile, would tell" in told[1].because


def test_counted_items_are_no_model():
    sweep = line(*(Cell("measured", time_ns=100.0, items=items) for items in (1, 2)))
    assert found(sweep)[0] == ("launch-bound", "measured")


def test_flat_replays_are_no_host_time():
    """Kernels too small to fill the GPU take as long with twice the work."""
    sweep = line(*(cell(100, flops, 98, "graph") for flops in (10, 20)))
    assert found(sweep) == [("gpu-bound", "measured")] * 2


def test_a_wall_time_far_above_that_of_the_gpu_is_the_hosts():
    assert found(line(cell(100, gpu_ns=50))) == [("launch-bound", "measured")]


def test_a_rate_near_the_roof_is_arithmetic():
    """989 TFLOP/s is the roof of an H200 for fp16: 700 are 71 % of it."""
    fast = Cell("measured", time_ns=1e6, flops=700 * 10**9)
    assert found(line(fast, environment=H200, shared={"precision": "fp16"})) == [("compute-bound", "modelled")]
    slow = Cell("measured", time_ns=1e6, flops=100 * 10**9)
    assert found(line(slow, environment=H200, shared={"precision": "fp16"})) == [("unknown", None)]


def test_a_profile_has_the_last_word():
    sweep = line(cell(100, 10), cell(101, 20))
    profiled = {cell_key({"batch": 1}, "baseline"): ("memory-bound", "cell.sqlite: memory-bandwidth")}
    assert found(sweep, profiled=profiled)[0] == ("memory-bound", "measured")


def test_cells_without_times_have_no_regime():
    sweep = line(Cell("out-of-memory"), cell(100, 10))
    assert [dict(item.settings) for item in regimes(sweep)] == [{"batch": 2}]
    assert np.isfinite(sweep.points[1].baseline.time_ns)
