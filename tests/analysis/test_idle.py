"""Idle causes around waits of the host and CUDA graphs, one gap each, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, call, copy, kernel, launch, sync, trace
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline

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


# ── refilling a drained pipeline ─────────────────────────────────────────────────────────────────────────────────────


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


# ── reading back a few bytes ─────────────────────────────────────────────────────────────────────────────────────────


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


# ── asking again and again ───────────────────────────────────────────────────────────────────────────────────────────


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


# ── CUDA graphs ──────────────────────────────────────────────────────────────────────────────────────────────────────


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
