"""From where on an axis the variant pays: crossings of a measured line, with intervals.

Lives here: `answers` (the result), `finding` (lines of a sweep, signs, brackets), `envelope` (what a curve of times may
do between two measured points). Knows `samples`, `sweep` and `resampling` of `compare`, nothing else of it.
"""

from warplens.compare.crossover.answers import (
    CROSSING_SCHEMA,
    LINE_SCHEMA,
    Answer,
    AxisCrossover,
    Crossing,
    crossing_frame,
)
from warplens.compare.crossover.finding import crossovers

__all__ = ["CROSSING_SCHEMA", "LINE_SCHEMA", "Answer", "AxisCrossover", "Crossing", "crossing_frame", "crossovers"]
