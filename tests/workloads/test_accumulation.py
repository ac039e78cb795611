"""Batch accumulation: who is served when, and what waiting costs."""

from __future__ import annotations

import pytest

from warplens.errors import UsageError
from warplens.workloads.accumulation import BatchAccumulator, accumulated

MS = 1_000_000


@pytest.fixture
def doubling(clock):
    """Doubles numbers, in a step of 3 ms whatever the batch, as a launch-bound step does."""
    batches = []

    def run(numbers):
        batches.append(list(numbers))
        clock.pass_ms(3)
        return [2 * number for number in numbers]

    run.batches = batches
    return run


def _accumulator(run, clock, size, most_wait_ns=None):
    return BatchAccumulator(run, size, most_wait_ns, clock=lambda: clock.now_ns)


def test_one_step_serves_a_full_batch_and_the_first_request_waits_longest(doubling, clock):
    accumulator = _accumulator(doubling, clock, 3)
    served = []
    for number in range(3):
        served += accumulator.submit(number)
        clock.pass_ms(1)
    assert doubling.batches == [[0, 1, 2]]
    assert [one.answer for one in served] == [0, 2, 4]
    assert [one.waited_ns for one in served] == [2 * MS, 1 * MS, 0]
    assert [one.latency_ns for one in served] == [5 * MS, 4 * MS, 3 * MS]
    assert all(one.batch == 3 for one in served)


def test_a_request_that_has_waited_long_enough_is_not_kept_waiting(doubling, clock):
    accumulator = _accumulator(doubling, clock, 8, most_wait_ns=2 * MS)
    assert accumulator.submit(1) == []
    clock.pass_ms(1.5)
    assert accumulator.submit(2) == []
    assert accumulator.flush_if_due() == []
    clock.pass_ms(0.5)
    assert [(one.answer, one.batch, one.waited_ns) for one in accumulator.flush_if_due()] == [
        (2, 2, 2 * MS), (4, 2, MS // 2),
    ]  # fmt: skip
    assert accumulator.flush_if_due() == []
    assert accumulator.flush() == []


def test_what_is_left_at_the_end_is_served_by_a_smaller_batch(doubling, clock):
    accumulator = _accumulator(doubling, clock, 4)
    served = [one for number in range(6) for one in accumulator.submit(number)] + accumulator.flush()
    assert [one.answer for one in served] == [0, 2, 4, 6, 8, 10]
    assert [len(batch) for batch in doubling.batches] == [4, 2]


def test_an_answer_too_few_is_no_answer_to_the_wrong_request(clock):
    accumulator = _accumulator(lambda numbers: numbers[:-1], clock, 2)
    accumulator.submit(1)
    with pytest.raises(ValueError, match=r"longer|shorter"):
        accumulator.submit(2)


def test_accumulation_buys_throughput_with_the_wait_for_the_others():
    # A launch-bound step: 3 ms for 1 image as for 4; 6 ms for 16.
    one, four, sixteen = accumulated({1: 3 * MS, 4: 3 * MS, 16: 6 * MS}, rate_per_s=1000)
    assert [round(point.most_per_s) for point in (one, four, sixteen)] == [333, 1333, 2667]
    assert one.mean_latency_ns is one.first_latency_ns is None  # 1000 a second is more than it keeps up with
    assert (four.mean_latency_ns, four.first_latency_ns) == (4.5 * MS, 6 * MS)
    assert (sixteen.mean_latency_ns, sixteen.first_latency_ns) == (13.5 * MS, 21 * MS)


def test_the_model_and_the_accumulator_agree_on_even_arrivals(doubling, clock):
    accumulator = _accumulator(doubling, clock, 4)
    served = []
    for arrival_ms in range(4):
        clock.now_ns = arrival_ms * MS
        served += accumulator.submit(arrival_ms)
    (point,) = accumulated({4: 3 * MS}, rate_per_s=1000)
    assert served[0].latency_ns == point.first_latency_ns
    assert sum(one.latency_ns for one in served) / 4 == point.mean_latency_ns


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="batch of 0"):
        BatchAccumulator(lambda requests: requests, 0)
    with pytest.raises(UsageError, match="positive"):
        accumulated({1: 3 * MS}, rate_per_s=0)
