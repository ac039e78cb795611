"""How often a step is repeated, and when that is enough."""

from __future__ import annotations

from dataclasses import dataclass

from warplens.errors import UsageError

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """When to stop measuring.

    A measurement ends when the confidence interval of the median is narrow enough, when there are `most` repetitions,
    or when the time is up, but not before the `least` number (the `fewest`, if the time is up).

    Attributes:
        warmup_steps: at least so many steps before the first that counts …
        warmup_ns: … and at least so long, for a GPU takes tens of milliseconds to raise its clocks from idle.
        least: repetitions before the interval is looked at.
        most: repetitions at most.
        fewest: repetitions also if the time is up; six is the smallest number with a 95 % interval of the median.
        precision: half the interval's width, as a share of the median, that is narrow enough.
        confidence: of the interval, 0 to 1.
        most_ns: time for the repetitions; the one that runs out of it is finished.
        flush_l2: whether to overwrite the GPU's L2 cache before each repetition, so that no input is in it.

    Raises:
        UsageError: numbers that contradict one another.
    """

    warmup_steps: int = 5
    warmup_ns: int = 100_000_000
    least: int = 30
    most: int = 300
    fewest: int = 6
    precision: float = 0.02
    confidence: float = 0.95
    most_ns: int = 60_000_000_000
    flush_l2: bool = False

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.warmup_ns < 0:
            raise UsageError("the warm-up cannot be negative")
        if not 1 <= self.fewest <= self.least <= self.most:
            raise UsageError(
                f"repetitions must be in the order 1 ≤ fewest ≤ least ≤ most, and are {self.fewest}, {self.least}, "
                f"{self.most}"
            )
        if not 0 < self.confidence < 1 or self.precision < 0:
            raise UsageError("a confidence lies between 0 and 1, and a precision is not negative")

    @classmethod
    def exactly(cls, repetitions: int, warmup_steps: int = 5) -> Plan:
        """A fixed number of repetitions after a fixed warm-up, as a profiler wants it."""
        return cls(
            warmup_steps=warmup_steps, warmup_ns=0, least=repetitions, most=repetitions, fewest=repetitions, precision=0
        )
