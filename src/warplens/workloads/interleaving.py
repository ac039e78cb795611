"""Measures several steps in turns, so that what changes on the machine meanwhile changes all of them alike.

Measured one after another, a host that slows down for some seconds makes the step that runs then look slow, however
often it is repeated: its repetitions agree with each other, and are wrong together. In turns, each round gives every
step a few repetitions, in random order. A step's median is then known as well as the medians of its rounds agree, and
two steps are compared round by round.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.workloads.clocks import Clocks
from warplens.workloads.marks import Marks
from warplens.workloads.measurement import Measured, Samples, synchronize, time_once, undisturbed
from warplens.workloads.ranges import OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warplens.workloads.ranges import Ranges

__all__ = ["Turn", "measure_in_turns"]

#: Steps before a turn counts: the last step was another one, and its code and data are in the caches.
_STEPS_BEFORE_A_TURN: Final = 2


@dataclass(frozen=True)
class Turn:
    """A step that takes turns, and what it tells its phases to."""

    step: Callable[[], object]
    marks: Marks | None = None


def measure_in_turns(
    turns: Sequence[Turn],
    *,
    device: str,
    rounds: int,
    per_round: int,
    warmup_steps: int = 5,
    ranges: Ranges = OFF,
    seed: int = 0,
) -> list[Measured]:
    """Time steps in turns.

    Args:
        turns: the steps, all ready to run.
        device: where they run, as PyTorch names it.
        rounds: how often each has its turn.
        per_round: repetitions in a turn.
        warmup_steps: of each step before the first round.
        ranges: annotates warm-up and repetitions for a profiler.
        seed: of the order in which steps have their turns.

    Returns:
        For each step its repetitions, round by round. Peaks of memory are None: all steps hold theirs at once.
    """
    order, draw = list(range(len(turns))), random.Random(seed)  # noqa: S311  no secret
    marks = [turn.marks or Marks(device) for turn in turns]
    samples, clocks = [Samples() for _ in turns], [Clocks(device) for _ in turns]
    warmups: list[list[int]] = [[] for _ in turns]
    for position, turn in enumerate(turns):
        for _ in range(warmup_steps):
            warmups[position].append(_warm_up_once(turn, marks[position], device, ranges))
    with undisturbed(), ranges.recorded():
        for _ in range(rounds):
            draw.shuffle(order)
            for position in order:
                turn = turns[position]
                clocks[position].read()
                for _ in range(_STEPS_BEFORE_A_TURN):
                    warmups[position].append(_warm_up_once(turn, marks[position], device, ranges))
                for _ in range(per_round):
                    with ranges("step"):
                        time_once(turn.step, device, marks[position], samples[position])
    return [
        Measured(
            wall_ns=tuple(taken.wall),
            gpu_ns=tuple(taken.gpu),
            phases_ns={phase: tuple(times) for phase, times in taken.phases.items()},
            warmup_ns=tuple(warmups[position]),
            stopped="most repetitions",
            peak_allocated_bytes=None,
            peak_reserved_bytes=None,
            clocks=clocks[position].log(),
            rounds=rounds,
        )
        for position, taken in enumerate(samples)
    ]


def _warm_up_once(turn: Turn, marks: Marks, device: str, ranges: Ranges) -> int:
    with ranges("warmup"):
        start = time.perf_counter_ns()
        marks.begin()
        turn.step()
        synchronize(device)
        return time.perf_counter_ns() - start
