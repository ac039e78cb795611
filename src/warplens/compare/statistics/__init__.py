"""Whether two sides differ, by how much, and what it takes to know.

Lives here: `verdict` (`compare`: faster, slower, same or undecided), `interval` (the ratio and its confidence
interval), `noise` (how much a side differs from itself), `power` (how many blocks a decision needs), `multiple` (many
kernels at once), `regression` (what stops a build). Under them: `shift` (the difference of logarithms and its error),
`location` (trimmed means), `serial` (dependence and drift), `student` (Student's t). The methods, and how often they
err, are in docs/explanation/comparison-statistics.md. A new test of significance goes beside `multiple`; a new way to
estimate a ratio beside `shift`.

May import: `warplens.compare.samples` and `warplens.errors`; NumPy, and Polars for tables.
"""

from warplens.compare.statistics.interval import Interval, ratio_interval
from warplens.compare.statistics.multiple import DIFFERENCE_SCHEMA, adjusted, many_differences
from warplens.compare.statistics.noise import NoiseFloor, noise_floor
from warplens.compare.statistics.regression import Regression, regression
from warplens.compare.statistics.verdict import Comparison, Verdict, compare

__all__ = [
    "DIFFERENCE_SCHEMA",
    "Comparison",
    "Interval",
    "NoiseFloor",
    "Regression",
    "Verdict",
    "adjusted",
    "compare",
    "many_differences",
    "noise_floor",
    "ratio_interval",
    "regression",
]
