"""Idle causes around waits of the host and CUDA graphs, one gap each, counted by hand.

The host's pace: simulated programs whose every microsecond is known, and shipped captures whose layers are.
"""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import shipped
from tests.analysis.builders import AUTOGRAD_THREAD, call, copy, kernel, launch, sync, trace
from tests.analysis.simulator import LAUNCH_NS, run
from warplens.analysis.hostpace import THREAD_PARTS, HostPace, host_pace
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.profile import Trace
from warplens.readers import read

US = 1_000
Row = dict[str, Any]


def idle(kernels: list[Row], api: list[Row], spec: str | None = None, **tables: Any) -> dict[str, int]:
    """The idle time of one device by cause, from time 0 to the end of its last work."""
    end = max(row["end_ns"] for row in kernels)
    timeline = Timeline(trace(kernels, api, **tables))
    (budget,) = time_budgets(timeline, timeline.window(spec or f"0:{end}"))
    return {cause: spent for cause, spent in budget.gaps.totals.items() if spent}


def two_kernels(first_until: int, second_from: int) -> list[Row]:
    return [kernel(0, first_until, correlation=1), kernel(second_from, second_from + 10 * US, correlation=2)]


def test_after_a_wait_for_a_busy_gpu_all_the_time_until_the_next_work_is_refill() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        launch(120 * US, 124 * US, 2),
    ]
    assert idle(two_kernels(100 * US, 126 * US), api) == {"synchronization": 8 * US, "refill": 18 * US}


def test_a_program_that_is_late_anyhow_pays_no_more_refill_than_it_waited() -> None:
    # The host entered the wait 3 µs before the GPU ran dry, so that is all that it could have been earlier.
    api = [
        launch(-9 * US, -5 * US, 1),
        call(97 * US, 102 * US, "cudaDeviceSynchronize", 7),
        launch(120 * US, 124 * US, 2),
    ]
    found = idle(two_kernels(100 * US, 126 * US), api)
    assert found == {"synchronization": 2 * US, "refill": 3 * US, "launch": 19 * US, "start-latency": 2 * US}


def test_a_wait_for_a_gpu_that_was_already_idle_drains_nothing() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(104 * US, 106 * US, "cudaDeviceSynchronize", 7),
        launch(120 * US, 124 * US, 2),
    ]
    found = idle(two_kernels(100 * US, 126 * US), api)
    assert found == {"synchronization": 2 * US, "launch": 22 * US, "start-latency": 2 * US}


def test_what_else_the_host_does_after_the_wait_keeps_its_own_name() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        call(110 * US, 130 * US, "cudaMalloc", 8),
        launch(140 * US, 144 * US, 2),
    ]
    found = idle(two_kernels(100 * US, 146 * US), api)
    assert found == {"synchronization": 8 * US, "allocation": 20 * US, "refill": 18 * US}


def test_only_the_gap_in_which_the_wait_returned_is_refilled() -> None:
    kernels = [*two_kernels(100 * US, 126 * US), kernel(160 * US, 170 * US, correlation=3)]
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        launch(120 * US, 124 * US, 2),
        launch(154 * US, 158 * US, 3),
    ]
    found = idle(kernels, api)
    assert found["refill"] == 18 * US
    assert found["launch"] == 22 * US  # from the end of the second kernel, at 136 µs, to 158 µs


def test_the_wait_of_another_thread_drains_as_well() -> None:
    api = [
        launch(-19 * US, -15 * US, 9),
        launch(-9 * US, -5 * US, 1, thread=AUTOGRAD_THREAD),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        launch(120 * US, 124 * US, 2, thread=AUTOGRAD_THREAD),
    ]
    kernels = [kernel(-14 * US, -13 * US, correlation=9), *two_kernels(100 * US, 126 * US)]
    assert idle(kernels, api) == {"synchronization": 8 * US, "refill": 18 * US}


def test_a_window_that_begins_after_the_wait_returned_still_sees_the_refill() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        launch(120 * US, 124 * US, 2),
    ]
    found = idle(two_kernels(100 * US, 126 * US), api, spec=f"{110 * US}:{136 * US}")
    assert found == {"refill": 16 * US}


def test_nothing_refills_after_the_last_work() -> None:
    api = [launch(-9 * US, -5 * US, 1), call(0, 108 * US, "cudaStreamSynchronize", 7)]
    found = idle([kernel(0, 100 * US, correlation=1)], api, spec=f"0:{150 * US}", ranges=[])
    assert "refill" not in found
    assert found["synchronization"] == 8 * US


@pytest.mark.parametrize(
    ("function", "destination"),
    [
        ("cudaMemcpyAsync", "pageable"),
        ("cudaMemcpy", "pageable"),
        ("cudaMemcpy", "pinned"),
        ("hipMemcpyWithStream", None),
    ],
)
def test_fetching_one_number_is_a_synchronisation(function: str, destination: str | None) -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 110 * US, function, 7),
        launch(120 * US, 124 * US, 2),
    ]
    fetched = copy(100 * US, 102 * US, "device-to-host", 4, correlation=7, source="device", destination=destination)
    found = idle(two_kernels(100 * US, 126 * US), api, copies=[fetched])
    assert found == {"synchronization": 8 * US, "refill": 16 * US}


def test_fetching_much_is_a_blocking_copy() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 110 * US, "cudaMemcpy", 7),
        launch(120 * US, 124 * US, 2),
    ]
    size = 1 << 20
    fetched = copy(100 * US, 102 * US, "device-to-host", size, correlation=7, source="device", destination="pageable")
    found = idle(two_kernels(100 * US, 126 * US), api, copies=[fetched])
    assert found == {"blocking-copy": 8 * US, "launch": 14 * US, "start-latency": 2 * US}


def test_sending_a_few_bytes_is_part_of_issuing() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(104 * US, 110 * US, "cudaMemcpyAsync", 7),
        launch(120 * US, 124 * US, 2),
    ]
    sent = copy(112 * US, 113 * US, "host-to-device", 8, correlation=7, source="pageable")
    found = idle(two_kernels(100 * US, 126 * US), api, copies=[sent])
    assert set(found) == {"launch", "start-latency"}


def _asking(times: int) -> list[Row]:
    """Questions for an event every 5 µs, each 1 µs long, from 60 µs on."""
    return [call((60 + 5 * i) * US, (61 + 5 * i) * US, "cudaEventQuery", 10 + i) for i in range(times)]


def test_asking_for_an_event_again_and_again_is_waiting() -> None:
    api = [launch(-9 * US, -5 * US, 1), *_asking(10), launch(120 * US, 124 * US, 2)]
    found = idle(two_kernels(100 * US, 126 * US), api)
    assert found == {"synchronization": 6 * US, "refill": 20 * US}


def test_asking_a_few_times_is_what_allocators_do() -> None:
    api = [launch(-9 * US, -5 * US, 1), *_asking(3), launch(120 * US, 124 * US, 2)]
    assert "synchronization" not in idle(two_kernels(70 * US, 126 * US), api)


def test_issuing_a_graph_is_a_cause_of_its_own() -> None:
    api = [launch(-9 * US, -5 * US, 1), call(110 * US, 140 * US, "cudaGraphLaunch", 2)]
    found = idle(two_kernels(100 * US, 144 * US), api)
    assert found == {"graph-launch": 40 * US, "start-latency": 4 * US}


def test_a_graph_after_a_wait_pays_refill_until_its_launching_call() -> None:
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 104 * US, "cudaDeviceSynchronize", 7),
        call(110 * US, 140 * US, "cudaGraphLaunch", 2),
    ]
    found = idle(two_kernels(100 * US, 144 * US), api)
    assert found == {"synchronization": 4 * US, "refill": 10 * US, "graph-launch": 30 * US}


def test_the_gaps_between_the_nodes_of_a_graph_are_the_gpus_own() -> None:
    kernels = [kernel(at * US, (at + 9) * US, correlation=1, graph_node=at) for at in (0, 10, 20)]
    assert idle(kernels, [call(-30 * US, -5 * US, "cudaGraphLaunch", 1)]) == {"start-latency": 2 * US}


def test_waiting_for_an_event_of_another_stream_is_a_dependency() -> None:
    kernels = [kernel(0, 50 * US, correlation=1), kernel(70 * US, 80 * US, correlation=2, stream=8)]
    api = [
        launch(-9 * US, -5 * US, 1),
        call(-4 * US, -3 * US, "cudaStreamWaitEvent", 5),
        launch(-2 * US, 0, 2),
    ]
    waits = [sync(-4 * US, -3 * US, "stream-wait-event", correlation=5, stream=8)]
    assert idle(kernels, api, synchronizations=waits) == {"dependency": 20 * US}


MS = 1_000_000
END = [("synchronize",)]


def pace(profile: Trace, spec: str = "steady") -> HostPace:
    timeline = Timeline(profile)
    found = host_pace(timeline, timeline.window(spec))
    assert found is not None
    return found


def test_a_launch_costs_its_call_and_the_pause_before_the_next() -> None:
    found = pace(run([*[("launch", 2 * US), ("pause", 11 * US)] * 10, *END]))
    assert found.host_ns_per_launch is not None
    assert found.host_ns_per_launch[1] == LAUNCH_NS + 11 * US
    assert found.launches == 4 * 10


def test_what_holds_the_host_up_is_no_cost_of_launching() -> None:
    waits = [("launch", 90 * US), ("synchronize",), ("allocate", 50 * US), ("pause", 11 * US)]
    found = pace(run(waits * 10))
    assert found.host_ns_per_launch is not None
    assert found.host_ns_per_launch[1] == LAUNCH_NS + 11 * US


def test_the_time_of_the_thread_is_split_without_remainder() -> None:
    step = [("launch", 30 * US), ("pause", 20 * US), ("allocate", 7 * US), ("pause", 2 * MS), *END]
    timeline = Timeline(run(step))
    window = timeline.window()
    found = pace(run(step)).thread_ns
    assert list(found) == list(THREAD_PARTS)
    assert sum(found.values()) == window.duration_ns
    per_step = {name: time / len(window.steps) for name, time in found.items()}
    assert per_step["launching"] == LAUNCH_NS
    assert per_step["allocation"] == 7 * US
    assert per_step["outside"] == 20 * US
    assert per_step["stalled"] == 2 * MS


def test_a_pause_is_long_against_the_pace_of_launches_and_not_of_questions_to_the_driver() -> None:
    kernels, calls, now = [], [], 0
    for number in range(100):
        for _ in range(4):
            calls.append(call(now, now + US, "cudaStreamIsCapturing_v10000"))
            now += 5 * US
        calls.append(launch(now, now + 5 * US, number + 1))
        kernels.append(kernel(now + 6 * US, now + 8 * US, "gemm", correlation=number + 1))
        now += 200 * US
    found = pace(trace(kernels, calls), "all").thread_ns
    assert found["stalled"] == 3 * US, "from the last call to the end of the window"
    assert found["outside"] > 90 * 200 * US


def test_a_host_that_is_behind_finds_the_gpu_waiting() -> None:
    found = pace(run([*[("launch", 2 * US), ("pause", 30 * US)] * 10, *END]))
    assert found.behind_share == 1
    assert not found.is_ahead
    assert found.queue_max == 1


def test_a_host_that_is_ahead_has_work_queued() -> None:
    found = pace(run([*[("launch", 200 * US)] * 10, *END]))
    assert found.is_ahead
    assert found.queue_max == 9
    assert found.lead_median_ns > 500 * US


def test_the_depth_of_the_queue_is_averaged_over_time() -> None:
    kernels = [kernel(10, 60, correlation=1), kernel(60, 100, correlation=2)]
    found = pace(trace(kernels, [launch(0, 4, 1), launch(6, 10, 2)], window_ns=(0, 100)), "all")
    # The first waits from 4 to 10, the second from 10 to 60: one piece of work for 56 of 100 ns.
    assert found.queue_mean == pytest.approx(0.56)
    assert found.queue_max == 1
    assert found.queue_empty_share == pytest.approx(0.44)


def test_a_layer_is_what_repeats_within_a_step() -> None:
    layer: list[tuple[Any, ...]] = [
        ("launch", 5 * US, 7, "gemm"),
        ("launch", 2 * US, 7, "bias"),
        ("launch", 3 * US, 7, "gelu"),
        ("pause", 8 * US),
    ]
    ends = [("launch", 5 * US, 7, "embedding"), *layer * 6, ("launch", 5 * US, 7, "head"), *END]
    found = pace(run(ends)).layer
    assert found is not None
    assert (found.layers, found.launches) == (6, 3)
    assert found.gpu_ns == 10 * US
    assert found.host_ns == 3 * LAUNCH_NS + 8 * US


def test_without_launching_calls_there_is_no_pace() -> None:
    timeline = Timeline(trace([kernel(0, 10)], []))
    assert host_pace(timeline, timeline.window("all")) is None


_OPERATION = st.one_of(
    st.tuples(st.just("pause"), st.integers(0, 3000).map(lambda time: time * US)),
    st.tuples(st.just("launch"), st.integers(1, 99).map(lambda time: time * US), st.sampled_from([7, 8])),
    st.just(("synchronize",)),
    st.tuples(st.just("allocate"), st.integers(1, 99).map(lambda time: time * US)),
    st.tuples(st.just("blocking_copy"), st.integers(1, 1 << 22), st.integers(1, 99).map(lambda time: time * US)),
)


@given(st.lists(_OPERATION, min_size=1, max_size=12), st.integers(0, 500), st.integers(1, 2000))
def test_the_parts_sum_to_any_window(operations: list[tuple[Any, ...]], begin: int, length: int) -> None:
    timeline = Timeline(run([("launch", 10 * US), *operations, *END]))
    windows = [timeline.window("all"), timeline.window()]
    if begin * US < windows[0].end_ns:
        windows.append(timeline.window(f"{begin * US}:{(begin + length) * US}"))
    for window in windows:
        found = host_pace(timeline, window)
        if found is not None:
            assert sum(found.thread_ns.values()) == window.duration_ns
            assert min(found.thread_ns.values()) >= 0
            assert 0 <= found.queue_empty_share <= 1


@pytest.mark.parametrize(
    ("name", "layers"),
    [("deit224_bs1_baseline", 12), ("lm_small_ctx128_forward", 12), ("lm_medium_ctx128_forward", 24)],
)
def test_the_layers_of_real_models_are_found(name: str, layers: int, tmp_path: Path) -> None:
    packed = shipped.capture(name)
    path = tmp_path / "profile.sqlite"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    found = pace(read(path))
    assert found.layer is not None
    assert found.layer.layers == layers
