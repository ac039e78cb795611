"""The latency of an idle GPU is taken from the profile: that of ROCm is many times that of CUDA."""

from __future__ import annotations

import pytest

from tests.analysis.builders import kernel, launch, trace
from warplens.analysis.hostpace import host_pace
from warplens.analysis.launches import launch_summary
from warplens.analysis.startlatency import start_latency_ns
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline

#: An AMD Instinct MI300X starts kernels this long after their launching call returned (23.6–25.1 µs in a real trace).
LATENCY = 24_000
PERIOD, CALL = 200_000, 5_000
SPAN = f"0:{12 * PERIOD}"


def slow_to_start(pairs: int, *, held_ns: int = 0) -> Timeline:
    """Pairs of kernels of 50 µs: the first is launched onto an idle GPU, the second waits in the queue behind it.

    The first one of the last pair is held back for longer.
    """
    kernels, calls = [], []
    for pair in range(pairs):
        at, number = PERIOD * pair, 2 * pair + 1
        start = at + CALL + LATENCY + (held_ns if pair == pairs - 1 else 0)
        calls += [launch(at, at + CALL, number), launch(at + CALL, at + 2 * CALL, number + 1)]
        kernels += [
            kernel(start, start + 50_000, correlation=number),
            kernel(start + 50_000, start + 100_000, correlation=number + 1),
        ]
    return Timeline(trace(kernels=kernels, api=calls))


@pytest.mark.parametrize(("pairs", "expected"), [(12, 1.25 * LATENCY), (5, 0)])
def test_the_latency_is_that_of_most_starts_on_an_idle_gpu(pairs, expected):
    assert start_latency_ns(slow_to_start(pairs)) == expected


def test_launches_onto_an_idle_gpu_count_whatever_its_latency():
    timeline = slow_to_start(12)
    window = timeline.window(SPAN)
    assert launch_summary(timeline, window).prompt_share == 0.5
    pace = host_pace(timeline, window)
    assert pace is not None
    assert pace.behind_share == pace.all_behind_share == 0.5


def test_only_what_waits_longer_than_the_usual_latency_was_held_back():
    held_ns = 60_000
    timeline = slow_to_start(12, held_ns=held_ns)
    (budget,) = time_budgets(timeline, timeline.window(SPAN))
    assert budget.gaps.totals["submission"] == LATENCY + held_ns
    assert budget.gaps.totals["start-latency"] == 11 * LATENCY
