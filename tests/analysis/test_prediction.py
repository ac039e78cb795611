"""Predictions against the program that was really changed: simulated to the nanosecond, and captured on an H200."""

from __future__ import annotations

import csv
import lzma
from dataclasses import replace
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import shipped as stored
from tests.analysis.builders import call, kernel, launch, trace
from tests.analysis.simulator import run
from warplens.analysis.prediction import Prediction, predictions
from warplens.analysis.recorder import GRAPH_GAP_NS
from warplens.analysis.replay import GRAPH_LAUNCH_NS
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError
from warplens.profile import Trace
from warplens.readers import read

US = 1_000
MS = 1_000_000
STEPS = 6

Operation = tuple[Any, ...]


def predicted(profile: Trace) -> dict[str, Prediction]:
    timeline = Timeline(profile)
    return {prediction.change: prediction for prediction in predictions(timeline, timeline.window())}


def step_ns(operations: list[Operation]) -> float:
    """What a step of this program takes."""
    timeline = Timeline(run(operations, STEPS))
    window = timeline.window()
    return window.duration_ns / len(window.steps)


LAYER: list[Operation] = [("launch", 40 * US), ("pause", 9 * US), ("launch", 30 * US), ("pause", 11 * US)]
END: list[Operation] = [("synchronize",)]


def test_without_the_waits_between_layers_the_host_runs_ahead():
    wait: list[Operation] = [("synchronize", "cudaStreamSynchronize")]
    found = predicted(run([*(LAYER + wait) * 8, *END], STEPS))["no-synchronization"]
    # A call that finds nothing to wait for still costs the host 2 µs.
    assert found.predicted_ns == pytest.approx(step_ns([*[*LAYER, ("pause", 2 * US)] * 8, *END]), rel=0.001)
    assert found.speedup > 1.12


def test_removing_waits_from_a_program_that_is_late_anyhow_gains_little():
    slow: list[Operation] = [("launch", 3 * US), ("pause", 30 * US)]
    wait: list[Operation] = [("synchronize", "cudaStreamSynchronize")]
    found = predicted(run([*(slow * 4 + wait) * 4, *END], STEPS)).get("no-synchronization")
    assert found is None or found.speedup < 1.05


def test_the_wait_for_the_device_at_the_end_of_a_step_stays():
    assert "no-synchronization" not in predicted(run([*LAYER * 8, *END], STEPS))


def test_a_value_read_at_the_end_of_each_step_can_be_read_later():
    read_back: list[Operation] = [("synchronize", "cudaStreamSynchronize")]
    found = predicted(run([*LAYER * 8, *read_back], STEPS))["no-synchronization"]
    busy = 8 * (40 + 30) * US
    assert busy < found.predicted_ns < busy * 1.05


def test_cached_memory_neither_costs_nor_waits():
    churn: list[Operation] = [("allocate", 60 * US), *LAYER, ("allocate", 80 * US, "cudaFree")]
    found = predicted(run([*churn * 6, *END], STEPS))["cached-allocation"]
    assert found.predicted_ns == pytest.approx(step_ns([*LAYER * 6, *END]), rel=0.001)


def _fork(waits: bool) -> Trace:
    """Steps of 10 ms of memory, and 1 ms of work before 1 ms on one stream beside 2 ms on another; the two meet."""
    kernels, api, at = [], [], 0
    for step in range(STEPS):
        number = 4 * step + 1
        # The memory is obtained after the second stream was made to wait.
        issued = [at, *(at + (10_020 + 10 * place) * US for place in range(3))]
        begins = [issued[0] + 6 * US, issued[1] + 6 * US, issued[2] + 6 * US, issued[2] + 2_010 * US]
        lasts = [1_000 * US, 1_000 * US, 2_000 * US, 300 * US]
        for place, (begin, last, stream) in enumerate(zip(begins, lasts, (7, 7, 8, 7), strict=True)):
            api.append(launch(issued[place], issued[place] + 4 * US, number + place))
            kernels.append(kernel(begin, begin + last, stream=stream, correlation=number + place))
        api.append(call(at + 10 * US, at + 10_010 * US, "cudaMalloc"))
        if waits:
            api += [call(time, time + US, "cudaStreamWaitEvent") for time in (at + 6 * US, issued[2] + 6 * US)]
        at = begins[3] + lasts[3] + 5 * US
        api.append(call(issued[3] + 6 * US, at, "cudaDeviceSynchronize"))
    return trace(kernels, api)


def test_without_allocations_a_fork_still_waits_for_what_came_before_it():
    found = predicted(_fork(waits=True))["cached-allocation"]
    assert found.predicted_ns == pytest.approx(3_300 * US, rel=0.02)
    assert not any("side by side" in text for text in found.assumptions)


def test_streams_that_overlap_more_than_they_did_are_told():
    found = predicted(_fork(waits=False))["cached-allocation"]
    assert found.predicted_ns < 3_000 * US
    assert any("streams run side by side" in text for text in found.assumptions)


def test_without_the_stall_only_the_rest_of_the_step_is_left():
    found = predicted(run([("pause", 5 * MS), *LAYER * 8, *END], STEPS))["no-host-stall"]
    assert found.predicted_ns == pytest.approx(step_ns([*LAYER * 8, *END]), rel=0.03)


def test_work_that_the_driver_holds_back_is_held_back_without_the_stall():
    api = [launch(0, 5 * US, 1), launch(3000 * US, 3005 * US, 2)]
    kernels = [kernel(7 * US, 10 * US, correlation=1), kernel(4005 * US, 4010 * US, correlation=2)]
    found = predicted(trace(kernels, api))["no-host-stall"]
    assert 1000 * US < found.predicted_ns < 1030 * US


def test_a_stall_that_the_gpu_works_through_costs_nothing():
    found = predicted(run([("launch", 9 * MS), ("pause", 3 * MS), ("launch", 50 * US), *END], STEPS))
    assert "no-host-stall" not in found


def test_pinned_copies_take_the_rate_of_the_link_and_free_the_host():
    size = 24_000_000  # 1 ms at the 24 GB/s that are taken for a GPU of unknown generation
    before: list[Operation] = [("blocking_copy", size, 6 * MS), *LAYER * 4]
    after: list[Operation] = [("async_copy", 1 * MS, 0), *LAYER * 4]
    found = predicted(run([*before, *END], STEPS))["async-copies"]
    assert found.predicted_ns == pytest.approx(step_ns([*after, *END]), rel=0.01)
    assert any("24 GB/s" in text for text in found.assumptions)


def test_a_graph_is_one_launch_and_no_python():
    eager: list[Operation] = [("pause", 40 * US), *[("launch", 3 * US), ("pause", 12 * US)] * 60, *END]
    graph: list[Operation] = [("pause", 12 * US), ("launch_graph", [3 * US] * 60, GRAPH_LAUNCH_NS, GRAPH_GAP_NS)]
    found = predicted(run(eager, STEPS))["cuda-graph"]
    assert found.predicted_ns == pytest.approx(step_ns([*graph, ("pause", 12 * US), *END]), rel=0.001)
    assert "60 launches per step become 1 graph" in found.assumptions


def test_waits_inside_a_step_part_the_graph():
    wait: list[Operation] = [("synchronize", "cudaStreamSynchronize")]
    eager = [*([("launch", 3 * US), ("pause", 12 * US)] * 20 + wait) * 3, *END]
    found = predicted(run(eager, STEPS))["cuda-graph"]
    assert "60 launches per step become 3 graphs" in found.assumptions


def test_a_program_that_launches_graphs_already_has_nothing_to_capture():
    operations: list[Operation] = [("launch_graph", [5 * US] * 20, 300 * US, 100), *END]
    assert "cuda-graph" not in predicted(run(operations, STEPS))


def test_a_saturated_gpu_gains_nothing():
    assert predicted(run([*[("launch", 900 * US)] * 20, *END], STEPS)) == {}


def test_a_prefetched_copy_on_a_stream_of_its_own_hides_behind_kernels():
    size = 24_000_000
    before: list[Operation] = [("blocking_copy", size, 6 * MS), ("launch", 4 * MS), *END]
    found = predicted(run(before, STEPS))
    # In order 1 ms of copying and 4 ms of kernel; side by side the kernel alone.
    assert found["async-copies"].predicted_ns == pytest.approx(5 * MS, rel=0.02)
    assert found["overlapped-copies"].predicted_ns == pytest.approx(4 * MS, rel=0.02)


def test_no_copy_that_runs_ahead_makes_the_link_faster():
    # As an image filter does: 4 ms of copying a step at the rate of pinned memory, and 1 ms of kernels; no wait but
    # for the copies, so that the step ends where the next one's first kernel begins.
    before: list[Operation] = [("launch", 1 * MS), ("blocking_copy", 96_000_000, 24 * MS)]
    profile = run(before, 10)
    found = predicted(replace(profile, ranges=profile.ranges.clear()))
    assert found["async-copies"].predicted_ns == pytest.approx(5 * MS, rel=0.02)
    assert found["overlapped-copies"].predicted_ns == pytest.approx(4 * MS, rel=0.1)


def _program(factor: float, wait: list[Operation]) -> list[Operation]:
    """A program whose host takes `factor` times as long as without a profiler."""
    layer = [("launch", 40 * US, 7, "kernel", round(4 * US * factor)), ("pause", round(10 * US * factor))]
    return [*([*layer, *layer, *wait] * 10), *END]


def test_with_the_time_of_a_step_the_prediction_is_that_of_the_program_without_a_profiler():
    wait: list[Operation] = [("synchronize", "cudaStreamSynchronize")]
    profile = run(_program(2.5, wait), STEPS)
    timeline = Timeline(profile)
    found = {
        prediction.change: prediction
        for prediction in predictions(timeline, timeline.window(), step_ns(_program(1.0, wait)))
    }["no-synchronization"]
    assert found.measured_ns == step_ns(_program(1.0, wait))
    assert found.predicted_ns == pytest.approx(step_ns(_program(1.0, [("pause", 2 * US)])), rel=0.01)


def test_a_step_that_was_slower_without_the_profiler_is_taken_as_it_is():
    profile = run([("pause", 5 * MS), *LAYER * 8, *END], STEPS)
    timeline = Timeline(profile)
    plain = predictions(timeline, timeline.window())
    timed = predictions(timeline, timeline.window(), 7 * MS)
    assert {p.change: p.predicted_ns for p in plain}.items() <= {p.change: p.predicted_ns for p in timed}.items()
    assert all(prediction.measured_ns == 7 * MS for prediction in timed)


_TIMES = st.integers(1, 200).map(lambda time: time * US)
_OPERATION = st.one_of(
    st.tuples(st.just("pause"), st.integers(1, 3000).map(lambda time: time * US)),
    st.tuples(st.just("launch"), _TIMES),
    st.just(("synchronize", "cudaStreamSynchronize")),
    st.tuples(st.just("allocate"), _TIMES, st.sampled_from(["cudaMalloc", "cudaFree"])),
    st.tuples(st.just("blocking_copy"), st.integers(1 << 20, 1 << 24), _TIMES),
)


@given(st.lists(_OPERATION, min_size=2, max_size=14))
def test_no_prediction_beats_the_work_of_the_gpu(operations):
    timeline = Timeline(run([("launch", 20 * US), *operations, ("launch", 20 * US), *END], STEPS))
    window = timeline.window()
    found = {prediction.change: prediction for prediction in predictions(timeline, window)}
    (budget,) = time_budgets(timeline, window)
    for change, prediction in found.items():
        assert prediction.predicted_ns <= prediction.measured_ns
        assert prediction.model_error < 0.01
        if "copies" not in change:  # pinned copies are faster, and copies may hide behind kernels
            assert prediction.predicted_ns >= budget.busy_ns // len(window.steps)
    allocates = any(operation[0] == "allocate" for operation in operations)  # a graph brings its memory with it
    if {"free-launches", "cuda-graph"} <= found.keys() and not allocates:
        assert found["free-launches"].predicted_ns <= found["cuda-graph"].predicted_ns


def test_without_calls_nothing_is_predicted():
    timeline = Timeline(trace([kernel(0, 10), kernel(90, 99)], []))
    assert predictions(timeline, timeline.window()) == ()


def test_confidence_follows_the_error_of_the_unchanged_replay():
    prediction = Prediction("cuda-graph", 200, 100, 2.0, 0.0, "", ())
    levels = [Prediction(**{**vars(prediction), "model_error": error}).confidence for error in (0.01, 0.05, 0.2)]
    assert levels == ["high", "medium", "low"]


def shipped(name: str, folder: Path) -> Timeline:
    packed = stored.capture(name)
    path = folder / f"{name}.sqlite"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return Timeline(read(path))


def deit_step_ns(keep: str, execution: str) -> float:
    """Median step time of DeiT-B 224, batch 1, without a profiler."""
    table = (resources.files("warplens") / "data" / "captures" / "deit_timings.csv").read_text("utf-8")
    cell = {"input_size": "224", "batch": "1", "keep": keep, "execution": execution}
    rows = [row for row in csv.DictReader(table.splitlines()) if cell.items() <= row.items()]
    return median(float(row["step_s"]) for row in rows) * 1e9


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("name", "keep"), [("deit224_bs1_baseline", "all"), ("deit224_bs1_topk0.1", "0.1")])
def test_the_step_in_a_graph_is_foretold_from_the_eager_one(name, keep, timed, tmp_path):
    timeline = shipped(name, tmp_path)
    step_ns = deit_step_ns(keep, "eager") if timed else None
    found = {prediction.change: prediction for prediction in predictions(timeline, timeline.window(), step_ns)}[
        "cuda-graph"
    ]
    assert found.predicted_ns == pytest.approx(deit_step_ns(keep, "graph"), rel=0.15)
    assert found.speedup > 3
    assert found.confidence == "high"


def test_the_step_in_a_graph_is_foretold_as_the_profiler_sees_it(tmp_path):
    eager, graph = shipped("deit224_bs1_baseline", tmp_path), shipped("deit224_bs1_graph_whole", tmp_path)
    found = {prediction.change: prediction for prediction in predictions(eager, eager.window())}["cuda-graph"]
    window = graph.window()
    assert found.predicted_ns == pytest.approx(window.duration_ns / len(window.steps), rel=0.07)


@pytest.mark.parametrize(
    "name", ["deit448_bs8_topk0.1", "copies_and_syncs", "lm_small_ctx128_train", "lm_large_ctx1024_forward"]
)
def test_the_unchanged_replay_of_real_programs_is_within_half_a_percent(name, tmp_path):
    timeline = shipped(name, tmp_path)
    found = predictions(timeline, timeline.window())
    assert found
    assert all(prediction.model_error < 0.005 for prediction in found)


def test_changes_made_together_bring_at_least_what_each_brings_alone_and_no_more_than_is_there(tmp_path):
    timeline = shipped("copies_and_syncs", tmp_path)
    window = timeline.window()
    found = {
        item.change: item for item in predictions(timeline, window, together=("no-synchronization", "async-copies"))
    }
    both = found["no-synchronization,async-copies"]
    assert both.predicted_ns <= min(found["no-synchronization"].predicted_ns, found["async-copies"].predicted_ns)
    assert both.predicted_ns * len(window.steps) >= 0.5 * sum(
        int((work["end_ns"] - work["start_ns"]).sum()) for work in [timeline.kernels_in(window)]
    )
    assert "; " in both.how


def test_an_unknown_change_is_refused_by_name(tmp_path):
    timeline = shipped("copies_and_syncs", tmp_path)
    with pytest.raises(UsageError, match="no change 'magic'"):
        predictions(timeline, timeline.window(), together=("magic",))
