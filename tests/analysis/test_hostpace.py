"""The host's pace: simulated programs whose every microsecond is known, and shipped captures whose layers are."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import shipped
from tests.analysis.builders import kernel, launch, trace
from tests.analysis.simulator import LAUNCH_NS, run
from warplens.analysis.hostpace import THREAD_PARTS, HostPace, host_pace
from warplens.analysis.timeline import Timeline
from warplens.profile import Trace
from warplens.readers import read

US = 1_000
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


@settings(max_examples=80, deadline=None)
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
