"""What a sweep says, as a document: where the variant pays, what bounds each cell, and what the grid cannot tell.

`numbers` computes (from a `warplens.compare.sweep.Sweep`), `tables`, `words` and `document` show, `data` is the JSON.
Charts are `warplens.report.charts.surface`'s. May import all that `warplens.report` may. A further answer about a sweep
becomes a field of `SweepNumbers` and a section of `document`.
"""

from warplens.report.sweep.numbers import SweepNumbers, examine_sweep

__all__ = ["SweepNumbers", "examine_sweep"]
