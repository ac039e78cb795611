"""A model of step times with physical terms, and the size from which the variant pays.

Lives here: `features` (what is known of a cell), `model` (its terms), `fitting` (robust least squares),
`crossvalidation` and `errors`, `parameters`, `sizes` and `threshold` (points that were not measured), `answers` (the
result), `fit` (all of it). Knows `samples`, `sweep` and `resampling` of `compare`, nothing else of it.
"""

from warplens.compare.breakeven.answers import (
    ERROR_SCHEMA,
    FORM_SCHEMA,
    PARAMETER_SCHEMA,
    THRESHOLD_SCHEMA,
    BreakEven,
    Prediction,
)
from warplens.compare.breakeven.errors import RATIO_ERROR_LIMIT, WORST_ERROR_LIMIT
from warplens.compare.breakeven.fit import fit_breakeven
from warplens.compare.breakeven.threshold import group_columns

__all__ = [
    "ERROR_SCHEMA",
    "FORM_SCHEMA",
    "PARAMETER_SCHEMA",
    "RATIO_ERROR_LIMIT",
    "THRESHOLD_SCHEMA",
    "WORST_ERROR_LIMIT",
    "BreakEven",
    "Prediction",
    "fit_breakeven",
    "group_columns",
]
