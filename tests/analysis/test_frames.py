"""Results that are kept: each call has its own, and threads that add and forget do not disturb each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl

from warplens.analysis.frames import busiest, forget, once


class Kept:
    """An object that stores results."""

    def __init__(self) -> None:
        self.cache: dict[tuple[object, ...], Any] = {}


@once
def pair(kept: Kept, first: int = 0, *, left: int | None = None, right: int | None = None) -> list[int | None]:
    """A new list on each call that computes it."""
    return [first, left, right]


@once
def square(kept: Kept, number: int) -> int:
    """A result for each number."""
    return number * number


def test_a_result_belongs_to_its_named_arguments() -> None:
    kept = Kept()
    assert pair(kept, left=1) == [0, 1, None]
    assert pair(kept, right=1) == [0, None, 1]
    assert pair(kept, 1, left=None) == [1, None, None]
    assert pair(kept, left=1) is pair(kept, left=1)
    assert pair(kept, left=1, right=2) is pair(kept, right=2, left=1)


def test_results_may_be_added_and_forgotten_at_the_same_time() -> None:
    kept = Kept()

    def ask(part: int) -> list[int]:
        return [square(kept, number) for number in range(part, part + 5_000)]

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, part) for part in (0, 5_000)]
        while not all(each.done() for each in asked):
            forget(kept, square)
    assert asked[0].result() + asked[1].result() == [number * number for number in range(10_000)]


def test_of_equally_busy_processes_and_devices_the_first_is_taken() -> None:
    work = pl.DataFrame(
        {
            "start_ns": [0, 0, 5, 10, 10],
            "end_ns": [10, 4, 11, 20, 19],
            "process": [7, 3, 3, 7, 3],
            "device": [1, 0, 0, 0, 1],
        }
    )
    assert busiest(work, "process", "device") == (3, 0)  # 10 ns, as (7, 0) and (7, 1)
    assert busiest(work, "device") == (0,)  # 20 ns, 19 ns
    assert busiest(work, "process") == (7,)  # 20 ns, 19 ns
