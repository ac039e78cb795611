"""Why one profile's step takes longer than another's: the wall difference split into parts that add up to it.

`difference` (the exact split of the wall time, and its cause), `work` (kernels, transfers and FLOPs), `matching` (which
launch is which), `places` (GPU work by annotated range and phase, and what makes the two hard to compare), `host` (the
sides, launches, what each costs the host, what limits a side). A new way to look at the difference gets a field in
`StepDifference`.

May import `warplens.analysis`, `warplens.profile`, `warplens.errors` and durations from `warplens.compare.statistics`.
Which changes are more than chance is asked by the reports, to which wording and formatting belong, too.
"""

from warplens.compare.difference.difference import explanation, step_difference
from warplens.compare.difference.host import Side

__all__ = ["Side", "explanation", "step_difference"]
