"""Simulated sweeps whose crossing is known, with the noise of real machines.

A true curve of step times for each side, and rounds in which both are timed: rounds that are slow as a whole, skewed
durations, single steps that stall, a clock that drifts through the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from warplens.compare.shift import Samples
from warplens.studies.sweeps.sweep import Cell, Point, Sweep

Curve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Noise:
    """What disturbs the times; shares of the time.

    Attributes:
        rounds: blocks.
        repetitions: durations of a side in a block.
        round_share: standard deviation of what a round does to both sides.
        side_share: of what it does to one side alone.
        skew_share: mean of the exponential that is added to each duration.
        stall_rate, stall_share: how often a duration stalls, and by how much.
        drift_share: growth of all times from the first round to the last.
        paired: whether the sides take turns.
    """

    rounds: int = 20
    repetitions: int = 4
    round_share: float = 0.03
    side_share: float = 0.015
    skew_share: float = 0.02
    stall_rate: float = 0.03
    stall_share: float = 0.8
    drift_share: float = 0.03
    paired: bool = True


@dataclass(frozen=True)
class Truth:
    """Two curves and the places where the faster side changes."""

    baseline: Curve
    variant: Curve
    kind: str
    crossings: tuple[float, ...] = ()
    sides: Mapping[str, Any] = field(default_factory=dict)


def hard(host: float, work: float, floor: float = 0.0, power: float = 1.0) -> Curve:
    """The slower of host and GPU, with a kink where they change places."""
    return lambda x: np.maximum(host, floor + work * x**power)


def soft(host: float, work: float, floor: float = 0.0, sharpness: float = 4.0) -> Curve:
    """Host and GPU that overlap imperfectly."""
    return lambda x: (host**sharpness + (floor + work * x) ** sharpness) ** (1 / sharpness)


def stairs(host: float, work: float, width: float, height: float) -> Curve:
    """Work that comes in waves: the time of a step of the stairs is flat, the next one higher."""

    def times(x: np.ndarray) -> np.ndarray:
        smooth = np.maximum(host, work * x)
        return smooth * (1 + height * (np.ceil(x / width) * width / x - 1).clip(0, 1))

    return times


def crossings_of(baseline: Curve, variant: Curve, low: float, high: float) -> tuple[float, ...]:
    """Where two curves meet, on a grid of 20,000 places."""
    x = np.geomspace(low, high, 20_000)
    ratio = np.log(variant(x) / baseline(x))
    at = np.flatnonzero(np.signbit(ratio[:-1]) != np.signbit(ratio[1:]))
    return tuple(float(x[i]) for i in at)


def random_truth(kind: str, generator: np.random.Generator, grid: Sequence[float]) -> Truth:
    """Curves as a variant with less work and more launches has them, crossing once well inside the grid."""
    low, high = min(grid), max(grid)
    while True:
        host, work = 1.0, 10 ** generator.uniform(-1.6, -0.3)
        extra, less = generator.uniform(1.05, 1.4), generator.uniform(0.25, 0.7)
        if kind == "hard":
            sides = hard(host, work), hard(host * extra, work * less)
        elif kind == "soft":
            sharpness = generator.uniform(2, 8)
            sides = soft(host, work, sharpness=sharpness), soft(host * extra, work * less, sharpness=sharpness)
        elif kind == "floor":
            floor = generator.uniform(0.2, 0.8)
            sides = hard(0.0, work, floor), hard(0.0, work * less, floor * extra)
        elif kind == "quadratic":
            sides = hard(host, work**2, power=2), hard(host * extra, work**2 * less, power=2)
        elif kind == "stairs":
            width, height = generator.uniform(1, 5), generator.uniform(0.1, 0.5)
            sides = stairs(host, work, width, height), stairs(host * extra, work * less, width, height)
        else:
            raise ValueError(kind)
        found = crossings_of(*sides, low, high)
        if len(found) == 1 and low * 1.1 < found[0] < high / 1.1:
            return Truth(*sides, kind, found)


def timed(seconds: np.ndarray, noise: Noise, generator: np.random.Generator, shared: np.ndarray) -> list[Samples]:
    """Durations of one side at each point; `shared` is what each round did to everything."""
    size = (seconds.size, noise.rounds, noise.repetitions)
    side = generator.normal(0, noise.side_share, size[:2])[..., None]
    skew = generator.exponential(noise.skew_share, size)
    stalls = (generator.random(size) < noise.stall_rate) * generator.exponential(noise.stall_share, size)
    times = seconds[:, None, None] * 1e6 * np.exp(shared[None, :, None] + side) * (1 + skew + stalls)
    return [Samples(tuple(blocks), noise.paired) for blocks in times]


def simulated(
    truth: Truth, grid: Sequence[float], noise: Noise, generator: np.random.Generator, axis: str = "batch"
) -> Sweep:
    """A sweep over one axis whose times follow the truth."""
    x = np.array(grid, dtype=float)

    def shared() -> np.ndarray:
        drift = np.linspace(0, noise.drift_share, noise.rounds)
        return drift + generator.normal(0, noise.round_share, noise.rounds)

    first = shared()
    second = first if noise.paired else shared()
    before = timed(truth.baseline(x), noise, generator, first)
    after = timed(truth.variant(x), noise, generator, second)
    points = tuple(
        Point({axis: value}, cell(one, items=int(value)), cell(other, items=int(value)))
        for value, one, other in zip(grid, before, after, strict=True)
    )
    return Sweep("simulated", "simulated", (axis,), {"side": "a"}, {"side": "b"}, {}, points, {}, noise.paired)


def cell(samples: Samples, **facts: Any) -> Cell:
    return Cell("measured", wall=samples, time_ns=samples.median_ns, **facts)


@dataclass(frozen=True)
class Machine:
    """A GPU and its host, as the break-even model describes them; times in nanoseconds.

    Attributes:
        floor: of a block of the transformer, however little work it has.
        reduction: floor of a block's reduction of its tokens.
        token: linear work.
        product: attention.
        hosts: the baseline's and the variant's, eager.
        misfit: standard deviation of what the terms do not describe; the same in every round.
    """

    floor: float = 60e3
    reduction: float = 40e3
    token: float = 48.0
    product: float = 0.08
    hosts: tuple[float, float] = (3.4e6, 4.1e6)
    misfit: float = 0.0

    def step(self, blocks: Sequence[Sequence[int]], batch: float, side: int, eager: bool) -> float:
        """Time of a step, with a hard maximum of host and GPU."""
        linear = sum(block[0] / 3 + block[2] * 2 / 3 for block in blocks)
        products = sum(block[0] * block[1] for block in blocks)
        reductions = sum(block[2] < block[0] for block in blocks)
        gpu = len(blocks) * self.floor + reductions * self.reduction
        gpu += batch * (self.token * linear + self.product * products)
        return max(self.hosts[side], gpu) if eager else gpu


def blocks_of(tokens: int, keep: float, at: Sequence[int] = (3, 6, 9)) -> list[list[int]]:
    """Tokens of each block of a vision transformer of depth 12: entering, asking, leaving; one is the class token."""
    found = []
    for number in range(12):
        after = 1 + int(np.ceil(keep * (tokens - 1))) if number in at else tokens
        found.append([tokens, tokens, after])
        tokens = after
    return found


def transformer_sweep(
    machine: Machine,
    noise: Noise,
    generator: np.random.Generator,
    sizes: Sequence[int] = (224, 448),
    batches: Sequence[int] = (1, 2, 4, 8, 16),
    executions: Sequence[str] = ("eager", "graph"),
) -> Sweep:
    """Token reduction on a grid of input sizes (patches of 16 pixels), batches and executions."""
    shared = np.linspace(0, noise.drift_share, noise.rounds) + generator.normal(0, noise.round_share, noise.rounds)
    points = []
    for size, batch, execution in product(sizes, batches, executions):
        cells = []
        for side, keep in enumerate((1.0, 0.1)):
            blocks = blocks_of((size // 16) ** 2 + 1, keep)
            seconds = machine.step(blocks, batch, side, execution == "eager") / 1e6
            seconds *= np.exp(generator.normal(0, machine.misfit))
            samples = timed(np.array([seconds]), noise, generator, shared)[0]
            cells.append(cell(samples, items=batch, details={"tokens": blocks}))
        points.append(Point({"input_size": size, "batch": batch, "execution": execution}, cells[0], cells[1]))
    axes = ("input_size", "batch", "execution")
    return Sweep("simulated", "simulated", axes, {"keep": 1.0}, {"keep": 0.1}, {}, tuple(points), {}, noise.paired)
