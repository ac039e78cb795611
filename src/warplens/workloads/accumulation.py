"""Batch accumulation: single requests are collected, and one step serves them all. Free of PyTorch.

The remedy that needs no other kernel: a launch-bound step of eight images takes as long as one of a single image. What
it costs is the wait for the others, which the first request pays in full; so both are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from warplens.errors import UsageError

__all__ = ["Accumulated", "BatchAccumulator", "Served", "accumulated"]

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Served(Generic[Answer]):
    """An answer and what it took.

    Attributes:
        answer: of the request.
        batch: requests that were served by the same step.
        waited_ns: from the request's arrival to the start of the step.
        latency_ns: from its arrival to the end of the step.
    """

    answer: Answer
    batch: int
    waited_ns: int
    latency_ns: int


@dataclass
class BatchAccumulator(Generic[Request, Answer]):
    """Collects requests until there are enough for a batch, or the first one has waited long enough.

    It has no thread of its own: `submit` and `flush_if_due` are called by the loop that receives requests.

        accumulator = BatchAccumulator(lambda images: model(torch.stack(images)).tolist(), 8, most_wait_ns=2_000_000)
        for image in requests:
            for served in accumulator.submit(image):
                ...

    Attributes:
        run: serves a batch, and waits until the answers are there: requests → answers, in their order.
        size: requests that make a batch.
        most_wait_ns: a batch is started when its first request has waited so long, whatever its size; None for never.
        clock: host time in nanoseconds.

    Raises:
        UsageError: a size below one.
    """

    run: Callable[[Sequence[Request]], Sequence[Answer]]
    size: int
    most_wait_ns: int | None = None
    clock: Callable[[], int] = time.perf_counter_ns
    _waiting: list[tuple[Request, int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"a batch of {self.size} requests cannot be collected")

    def submit(self, request: Request) -> list[Served[Answer]]:
        """Take a request in; if that completes a batch, or one is due, its answers in the order of arrival."""
        self._waiting.append((request, self.clock()))
        return self.flush() if len(self._waiting) >= self.size else self.flush_if_due()

    def flush_if_due(self) -> list[Served[Answer]]:
        """Serve what waits if the first request has waited long enough."""
        if not self._waiting or self.most_wait_ns is None:
            return []
        return self.flush() if self.clock() - self._waiting[0][1] >= self.most_wait_ns else []

    def flush(self) -> list[Served[Answer]]:
        """Serve what waits now, as one batch.

        Raises:
            ValueError: `run` gave another number of answers than there were requests.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return []
        began = self.clock()
        answers = self.run([request for request, _ in waiting])
        ended = self.clock()
        return [
            Served(answer, len(waiting), began - arrived, ended - arrived)
            for answer, (_, arrived) in zip(answers, waiting, strict=True)
        ]


@dataclass(frozen=True)
class Accumulated:
    """What accumulation would do to requests that arrive evenly: modelled from measured steps.

    Attributes:
        batch: requests collected.
        step_ns: measured time of a step of that batch.
        most_per_s: highest rate that the steps keep up with; above it, requests queue without end.
        mean_latency_ns: mean over the batch, wait included; None if the rate is higher than `most_per_s`.
        first_latency_ns: that of the first request, which waits for all others.
    """

    batch: int
    step_ns: float
    most_per_s: float
    mean_latency_ns: float | None
    first_latency_ns: float | None


def accumulated(step_ns: Mapping[int, float], rate_per_s: float) -> tuple[Accumulated, ...]:
    """Latency against throughput for every batch that was measured.

    Requests arrive every 1/rate. The first of k waits for k − 1 others, the last for none: (k − 1)/rate, and half of
    that in the mean; then comes the step. The model has no queue: arrivals in bursts wait longer.

    Args:
        step_ns: batch → time of a step in nanoseconds.
        rate_per_s: requests a second.

    Raises:
        UsageError: a rate or a time that is not positive.
    """
    if rate_per_s <= 0 or any(batch < 1 or time_ns <= 0 for batch, time_ns in step_ns.items()):
        raise UsageError("requests must arrive at a positive rate, and steps take a positive time")
    between_ns = 1e9 / rate_per_s
    found = []
    for batch, time_ns in sorted(step_ns.items()):
        most = batch * 1e9 / time_ns
        longest = (batch - 1) * between_ns
        served = rate_per_s <= most
        found.append(
            Accumulated(
                batch, time_ns, most, longest / 2 + time_ns if served else None, longest + time_ns if served else None
            )
        )
    return tuple(found)
