"""Measurements and sweeps made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.compare.simulation import Curve, Noise, cell, timed
from warplens.profile.measurements import Measurements
from warplens.readers.measurements import measurements_of
from warplens.studies.sweeps.sweep import Point, Sweep

BATCHES = (1, 2, 4, 8, 16, 32)


def record(settings: Mapping[str, Any], wall_ns: Sequence[int] | None, **facts: Any) -> dict[str, Any]:
    """A cell of a measurements file; without times, one that ran out of memory."""
    if wall_ns is None:
        return {"cell": dict(settings), "status": "out-of-memory", "reason": "80 GiB"}
    times = {"wall_ns": list(wall_ns), "gpu_ns": [], "warmup_ns": [], "phases_ns": {}}
    return {"cell": dict(settings), "status": "measured", "samples": times, **facts}


def measurements(*records: Mapping[str, Any], **head: Any) -> Measurements:
    """A measurements file with these cells."""
    document = {
        "schema": "warplens.measurements/1", "version": "0.1.0", "workload": "simulated", "environment": {}, "plan": {},
        "measurements": list(records), **head,
    }  # fmt: skip
    return measurements_of(document, "simulated.json")


def swept(
    curves: Mapping[int, tuple[Curve, Curve]],
    generator: np.random.Generator,
    *,
    noise: Noise | None = None,
    planted: Mapping[tuple[int, int], float] | None = None,
) -> Sweep:
    """A sweep over input sizes and batches, all cells measured in turns.

    Args:
        curves: input size → times of baseline and variant, in ms, by batch.
        generator: of the noise.
        noise: of the machine.
        planted: (input size, batch) → share by which the baseline is slower there than its curve says.
    """
    noise = noise or Noise(rounds=30)
    x = np.array(BATCHES, dtype=float)
    shared = np.linspace(0, noise.drift_share, noise.rounds) + generator.normal(0, noise.round_share, noise.rounds)
    points: list[Point] = []
    for size, sides in curves.items():
        before, after = (np.asarray(curve(x), dtype=float) for curve in sides)
        before = before * [1 + (planted or {}).get((size, batch), 0.0) for batch in BATCHES]
        both = timed(before, noise, generator, shared), timed(after, noise, generator, shared)
        points += [
            Point({"input_size": size, "batch": batch}, cell(one, items=batch), cell(other, items=batch))
            for batch, one, other in zip(BATCHES, *both, strict=True)
        ]
    axes = ("input_size", "batch")
    return Sweep("simulated", "simulated", axes, {"side": "a"}, {"side": "b"}, {}, tuple(points), {}, noise.paired)
