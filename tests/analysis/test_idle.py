"""Idle causes around waits of the host and CUDA graphs, one gap each, counted by hand.

The host's pace: simulated programs whose every microsecond is known, and shipped captures whose layers are.
"""

from __future__ import annotations

import lzma
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import shipped
from tests.analysis.builders import AUTOGRAD_THREAD, call, copy, kernel, launch, overhead, sync, trace
from tests.analysis.simulator import LAUNCH_NS, run
from warplens.analysis.hostpace import THREAD_PARTS, HostPace, host_pace
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.profile import Trace
from warplens.readers import read
from warplens.report.verdict import pace_lines

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


def wait(start: int, end: int, function: str = "cudaStreamSynchronize") -> Row:
    """A call that holds the host up, in µs."""
    return call(start * US, end * US, function, 7)


def asks(times: int) -> list[Row]:
    """Questions for an event every 5 µs, each 1 µs long, from 60 µs on."""
    return [call((60 + 5 * i) * US, (61 + 5 * i) * US, "cudaEventQuery", 10 + i) for i in range(times)]


def issue(start: int, end: int) -> Row:
    return launch(start * US, end * US, 2)


def graph_issue(start: int, end: int) -> Row:
    return call(start * US, end * US, "cudaGraphLaunch", 2)


def fetched(size: int, destination: str | None) -> dict[str, list[Row]]:
    row = copy(100 * US, 102 * US, "device-to-host", size, correlation=7, source="device", destination=destination)
    return {"copies": [row]}


def sent(source: str, size: int, start: int) -> dict[str, list[Row]]:
    return {"copies": [copy(start * US, (start + 1) * US, size=size, correlation=7, source=source)]}


MIB = 1 << 20
LATE = issue(120, 124)
NUMBER = {"synchronization": 8, "refill": 16}
#: What the calls of the host make of the GPU's idle time between two kernels: when the first ended and the second
#: began, the calls, further tables, and the causes. All in µs.
CAUSES = {
    "the host issues late, and the device starts after it":
        ((10, 60), [issue(50, 56)], {}, {"launch": 46, "start-latency": 4}),
    "after a wait for a busy GPU all the time until the next work is refill":
        ((100, 126), [wait(0, 108), LATE], {}, {"synchronization": 8, "refill": 18}),
    # The host entered the wait 3 µs before the GPU ran dry, so that is all that it could have been earlier.
    "a program that is late anyhow pays no more refill than it waited":
        ((100, 126), [wait(97, 102, "cudaDeviceSynchronize"), LATE], {},
         {"synchronization": 2, "refill": 3, "launch": 19, "start-latency": 2}),
    "a wait for a GPU that was already idle drains nothing":
        ((100, 126), [wait(104, 106, "cudaDeviceSynchronize"), LATE], {},
         {"synchronization": 2, "launch": 22, "start-latency": 2}),
    "what else the host does after the wait keeps its own name":
        ((100, 146), [wait(0, 108), call(110 * US, 130 * US, "cudaMalloc", 8), issue(140, 144)], {},
         {"synchronization": 8, "allocation": 20, "refill": 18}),
    "an allocation before the launch":
        ((10, 60), [wait(12, 40, "cudaMalloc"), issue(50, 60)], {}, {"allocation": 28, "launch": 22}),
    "a synchronous copy call blocks":
        ((10, 60), [wait(12, 40, "cudaMemcpy"), issue(50, 60)], {}, {"blocking-copy": 28, "launch": 22}),
    # The copy itself runs before the window; what counts is that its call holds the host.
    "an asynchronous copy from pageable memory blocks too":
        ((10, 60), [wait(12, 40, "cudaMemcpyAsync"), issue(50, 60)], sent("pageable", MIB, -9),
         {"blocking-copy": 28, "launch": 22}),
    "an asynchronous copy from pinned memory does not":
        ((10, 60), [wait(12, 40, "cudaMemcpyAsync"), issue(50, 60)], sent("pinned", MIB, -9), {"launch": 50}),
    "fetching one number into pageable memory is a synchronisation":
        ((100, 126), [wait(0, 110, "cudaMemcpyAsync"), LATE], fetched(4, "pageable"), NUMBER),
    "fetching one number with a blocking call is a synchronisation":
        ((100, 126), [wait(0, 110, "cudaMemcpy"), LATE], fetched(4, "pageable"), NUMBER),
    "so is fetching it into pinned memory":
        ((100, 126), [wait(0, 110, "cudaMemcpy"), LATE], fetched(4, "pinned"), NUMBER),
    "so is fetching it with HIP":
        ((100, 126), [wait(0, 110, "hipMemcpyWithStream"), LATE], fetched(4, None), NUMBER),
    "fetching much is a blocking copy":
        ((100, 126), [wait(0, 110, "cudaMemcpy"), LATE], fetched(MIB, "pageable"),
         {"blocking-copy": 8, "launch": 14, "start-latency": 2}),
    "sending a few bytes is part of issuing":
        ((100, 126), [wait(104, 110, "cudaMemcpyAsync"), LATE], sent("pageable", 8, 112),
         {"launch": 21, "start-latency": 4}),
    "asking for an event again and again is waiting":
        ((100, 126), [*asks(10), LATE], {}, {"synchronization": 6, "refill": 20}),
    "asking a few times is what allocators do":
        ((70, 126), [*asks(3), LATE], {}, {"launch": 54, "start-latency": 2}),
    "issuing a graph is a cause of its own":
        ((100, 144), [graph_issue(110, 140)], {}, {"graph-launch": 40, "start-latency": 4}),
    "a graph after a wait pays refill until its launching call":
        ((100, 144), [wait(0, 104, "cudaDeviceSynchronize"), graph_issue(110, 140)], {},
         {"synchronization": 4, "refill": 10, "graph-launch": 30}),
    "a long absence from CUDA is the host doing something else":
        ((10, 5010), [issue(5000, 5006)], {}, {"host": 4990, "launch": 6, "start-latency": 4}),
    "the profiler holds the thread up":
        ((10, 60), [issue(50, 60)], {"profiler_overhead": [overhead(20 * US, 45 * US)]},
         {"profiler": 25, "launch": 25}),
    "queued work that does not start was kept from the GPU":
        ((10, 60), [issue(1, 2)], {}, {"submission": 50}),
}  # fmt: skip


@pytest.mark.parametrize(("busy", "calls", "tables", "causes"), CAUSES.values(), ids=CAUSES)
def test_the_calls_of_the_host_say_why_the_gpu_had_no_work(busy, calls, tables, causes):
    found = idle(two_kernels(busy[0] * US, busy[1] * US), [launch(-9 * US, -5 * US, 1), *calls], **tables)
    assert found == {cause: spent * US for cause, spent in causes.items()}


def test_only_the_gap_in_which_the_wait_returned_is_refilled():
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


def test_the_wait_of_another_thread_drains_as_well():
    api = [
        launch(-19 * US, -15 * US, 9),
        launch(-9 * US, -5 * US, 1, thread=AUTOGRAD_THREAD),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        launch(120 * US, 124 * US, 2, thread=AUTOGRAD_THREAD),
    ]
    kernels = [kernel(-14 * US, -13 * US, correlation=9), *two_kernels(100 * US, 126 * US)]
    assert idle(kernels, api) == {"synchronization": 8 * US, "refill": 18 * US}


def test_a_window_that_begins_after_the_wait_returned_still_sees_the_refill():
    api = [
        launch(-9 * US, -5 * US, 1),
        call(0, 108 * US, "cudaStreamSynchronize", 7),
        launch(120 * US, 124 * US, 2),
    ]
    found = idle(two_kernels(100 * US, 126 * US), api, spec=f"{110 * US}:{136 * US}")
    assert found == {"refill": 16 * US}


def test_nothing_refills_after_the_last_work():
    api = [launch(-9 * US, -5 * US, 1), call(0, 108 * US, "cudaStreamSynchronize", 7)]
    found = idle([kernel(0, 100 * US, correlation=1)], api, spec=f"0:{150 * US}", ranges=[])
    assert "refill" not in found
    assert found["synchronization"] == 8 * US


def test_the_gaps_between_the_nodes_of_a_graph_are_the_gpus_own():
    kernels = [kernel(at * US, (at + 9) * US, correlation=1, graph_node=at) for at in (0, 10, 20)]
    assert idle(kernels, [call(-30 * US, -5 * US, "cudaGraphLaunch", 1)]) == {"start-latency": 2 * US}


def test_waiting_for_an_event_of_another_stream_is_a_dependency():
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


def test_a_launch_costs_its_call_and_the_pause_before_the_next():
    found = pace(run([*[("launch", 2 * US), ("pause", 11 * US)] * 10, *END]))
    assert found.host_ns_per_launch[1] == LAUNCH_NS + 11 * US
    assert found.launches == 4 * 10


def test_what_holds_the_host_up_is_no_cost_of_launching():
    waits = [("launch", 90 * US), ("synchronize",), ("allocate", 50 * US), ("pause", 11 * US)]
    found = pace(run(waits * 10))
    assert found.host_ns_per_launch[1] == LAUNCH_NS + 11 * US


def test_the_time_of_the_thread_is_split_without_remainder():
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


def test_a_pause_is_long_against_the_pace_of_launches_and_not_of_questions_to_the_driver():
    kernels, calls, now = [], [], 0
    for number in range(100):
        for _ in range(4):
            calls.append(call(now, now + US, "cudaStreamIsCapturing_v10000"))
            now += 5 * US
        calls.append(launch(now, now + 5 * US, number + 1))
        kernels.append(kernel(now + 6 * US, now + 8 * US, "gemm", correlation=number + 1))
        now += 200 * US
    found = pace(trace(kernels, calls), "all").thread_ns
    assert found["finished"] == 3 * US, "from the last call to the end of the window"
    assert found["stalled"] == 0
    assert found["outside"] > 90 * 200 * US


def test_launching_calls_that_wait_for_the_gpu_are_told_apart():
    """Five short launches, five that wait for a free place in the queue, and one that loads code on an idle GPU."""
    kernels = [kernel(10 * US, 1210 * US, "gemm", correlation=1)]
    calls = [launch(5 * US * number, 5 * US * number + 3 * US, number + 1) for number in range(5)]
    calls += [launch(200 * number * US, (200 * number + 190) * US, number + 5) for number in range(1, 6)]
    calls += [launch(1300 * US, 1500 * US, 11)]
    kernels += [
        kernel((1210 + number) * US, (1211 + number) * US, "add", correlation=number) for number in range(2, 11)
    ]
    kernels += [kernel(1501 * US, 1600 * US, "gemm", correlation=11)]
    found = pace(trace(kernels, calls), "all").thread_ns
    assert found["queue-full"] == 5 * 190 * US
    assert found["launching"] == 5 * 3 * US + 200 * US


def test_a_host_that_is_behind_finds_the_gpu_waiting():
    found = pace(run([*[("launch", 2 * US), ("pause", 30 * US)] * 10, *END]))
    assert found.behind_share == 1
    assert not found.is_ahead
    assert found.queue_max == 1


def test_of_several_launching_threads_all_launches_count_and_the_host_is_as_late_as_all_of_them():
    kernels, calls = [], []
    for number in range(30):
        # Two of three kernels are queued by one thread; the GPU waits for those of the other.
        thread, begin = (2, 10 * MS + number * 10 * US) if number % 3 else (1, number * 100 * US)
        calls.append(launch(begin, begin + 5 * US, number + 1, thread=thread))
        start = begin + 500 * US if thread == 2 else begin + 6 * US
        kernels.append(kernel(start, start + 5 * US, "a", correlation=number + 1, stream=thread))
    profile = trace(kernels, calls)
    found = pace(profile, "all")
    assert (found.threads, found.launches, found.all_launches) == (2, 20, 30)
    assert (found.behind_share, found.all_behind_share) == (0, pytest.approx(1 / 3))
    first, second = pace_lines(found)
    assert first.startswith("host: 30 launches by 2 threads, ")
    assert "the one that launches most makes 20 of them, each taking " in first
    assert first.endswith("66.7 % of the work was queued while the GPU was busy")
    assert second.startswith("the time of the launching threads, together: ")
    assert found.thread_ns["launching"] == 30 * 5 * US, "the calls of both"
    idle = next(pace_lines(found, busy_share=0.3))
    assert first.startswith(f"{idle}; the host is ahead"), "late work of an idle GPU waits for something else"
    few = pace(run([*[("launch", 2 * US)] * 3, *END]))
    assert " GPU" not in next(pace_lines(few)), "a share of three launches says nothing"


def test_a_host_that_is_ahead_has_work_queued():
    found = pace(run([*[("launch", 200 * US)] * 10, *END]))
    assert found.is_ahead
    assert found.queue_max == 9
    assert found.lead_median_ns > 500 * US


def test_the_depth_of_the_queue_is_averaged_over_time():
    kernels = [kernel(10, 60, correlation=1), kernel(60, 100, correlation=2)]
    found = pace(trace(kernels, [launch(0, 4, 1), launch(6, 10, 2)], window_ns=(0, 100)), "all")
    # The first waits from 4 to 10, the second from 10 to 60: one piece of work for 56 of 100 ns.
    assert found.queue_mean == pytest.approx(0.56)
    assert found.queue_max == 1
    assert found.queue_empty_share == pytest.approx(0.44)


def test_a_layer_is_what_repeats_within_a_step():
    layer: list[tuple[Any, ...]] = [
        ("launch", 5 * US, 7, "gemm"),
        ("launch", 2 * US, 7, "bias"),
        ("launch", 3 * US, 7, "gelu"),
        ("pause", 8 * US),
    ]
    ends = [("launch", 5 * US, 7, "embedding"), *layer * 6, ("launch", 5 * US, 7, "head"), *END]
    found = pace(run(ends)).layer
    assert (found.layers, found.launches) == (6, 3)
    assert found.gpu_ns == 10 * US
    assert found.host_ns == 3 * LAUNCH_NS + 8 * US


def test_without_launching_calls_there_is_no_pace():
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
def test_the_parts_sum_to_any_window(operations, begin, length):
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
def test_the_layers_of_real_models_are_found(name, layers, tmp_path):
    packed = shipped.capture(name)
    path = tmp_path / "profile.sqlite"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    found = pace(read(path))
    assert found.layer.layers == layers
