"""Whether two sides differ, by how much, and what it takes to know.

`estimates`: durations in blocks, the ratio of two sides and its error, the distributions behind it. `decisions`:
faster, slower, the same or undecided, many kernels at once, how many blocks a decision needs. The methods, and how
often they err, are in docs/explanation/comparison-statistics.md.
"""

from warplens.compare.statistics.decisions import (
    DIFFERENCES,
    Comparison,
    Interval,
    NoiseFloor,
    Verdict,
    adjusted,
    compare,
    many_differences,
    noise_floor,
    ratio_interval,
)
from warplens.compare.statistics.estimates import Regression, Samples, regression

__all__ = [
    "DIFFERENCES",
    "Comparison",
    "Interval",
    "NoiseFloor",
    "Regression",
    "Samples",
    "Verdict",
    "adjusted",
    "compare",
    "many_differences",
    "noise_floor",
    "ratio_interval",
    "regression",
]
