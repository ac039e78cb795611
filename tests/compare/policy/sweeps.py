"""Sweeps whose truth is known: two sides, each bound by its host or by the work, with noise as a machine makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from warplens.compare.shift import Samples
from warplens.studies.policies.choosing import Policy, Side
from warplens.studies.policies.fitting import PointTimes, fit_points
from warplens.studies.sweeps.sweep import Cell, Point, Sweep

SIDES = [Side("method=none", {"method": "none"}), Side("method=topk", {"method": "topk"})]
H200 = {"device": {"name": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}, "driver": "580", "cuda": "13.0"}


@dataclass(frozen=True)
class Machine:
    """Times of a side in nanoseconds: max(host, fixed + work · batch · (size / 224) ^ power)."""

    host: float
    fixed: float
    work: float
    power: float

    def time(self, settings: Mapping[str, Any]) -> float:
        """Of a step; the host's time plays no part in a graph."""
        gpu = self.fixed + self.work * settings["batch"] * (settings["input_size"] / 224) ** self.power
        return gpu if settings.get("execution") == "graph" else max(self.host, gpu)


#: As the token-reduction grid on an H200 has them.
NONE = Machine(3.4e6, 1.0e6, 0.147e6, 2.75)
TOPK = Machine(4.1e6, 1.1e6, 0.055e6, 2.65)

SIZES, BATCHES, EXECUTIONS = (224, 448), (1, 2, 4, 8, 16), ("eager", "graph")


def truth(settings: Mapping[str, Any], machines: Sequence[Machine] = (NONE, TOPK)) -> tuple[float, ...]:
    """Of each side."""
    return tuple(machine.time(settings) for machine in machines)


def grid(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def points(
    settings: Sequence[Mapping[str, Any]],
    machines: Sequence[Machine] = (NONE, TOPK),
    noise: float = 0.0,
    rounds: int = 0,
    seed: int = 0,
) -> list[PointTimes]:
    """What would have been measured there: in `rounds` rounds with samples, or without."""
    rng = np.random.default_rng(seed)
    found = []
    for at in settings:
        true = truth(at, machines)
        if not rounds:
            found.append(PointTimes(at, tuple(time * rng.lognormal(0, noise) for time in true)))
            continue
        moods = rng.lognormal(0, noise, size=rounds)  # what slows a round down does so for both sides
        samples = tuple(
            Samples.of([time * mood * rng.lognormal(0, noise / 2, size=4) for mood in moods], paired=True)
            for time in true
        )
        found.append(PointTimes(at, tuple(one.median_ns for one in samples), samples))
    return found


def fitted(measured: Sequence[PointTimes], axes: Sequence[str], **options: Any) -> Policy:
    """Of points of two sides."""
    options = {"environment": H200, "source": "simulated", "workload": "simulated", "sides": SIDES} | options
    return fit_points(measured, axes=axes, **options)


def sweep(
    settings: Sequence[Mapping[str, Any]],
    times: Callable[[Mapping[str, Any]], tuple[float | None, float | None]] = truth,
    source: str = "simulated",
    baseline: Mapping[str, Any] | None = None,
    variant: Mapping[str, Any] | None = None,
    **shared: Any,
) -> Sweep:
    """The same as a sweep; a time of None is a cell that ran out of memory."""

    def cell(time: float | None) -> Cell:
        return Cell("measured", time_ns=time) if time else Cell("out-of-memory", reason="80 GiB")

    return Sweep(
        source=source,
        workload="simulated",
        axes=tuple(settings[0]),
        baseline=baseline or {"method": "none"},
        variant=variant or {"method": "topk", "keep": 0.1},
        shared=shared,
        points=tuple(Point(at, *(cell(time) for time in times(at))) for at in settings),
        environment=H200,
        paired=True,
    )
