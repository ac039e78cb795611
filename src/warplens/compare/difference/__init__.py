"""Why one profile's step takes longer than another's: the wall difference split into parts that add up to it.

`difference` (the exact split of the wall time, and its cause), `work` (kernels, transfers and FLOPs), `matching` (which
launch is which), `places` (GPU work by annotated range and phase, and what makes the two hard to compare), `host` (the
sides, launches, what each costs the host, what limits a side). A new way to look at the difference gets a field in
`StepDifference`.

May import `warplens.analysis`, `warplens.profile`, `warplens.errors` and durations from `warplens.compare.statistics`.
Which changes are more than chance is asked by the reports, to which wording and formatting belong, too.
"""

from __future__ import annotations

from warplens.compare.difference.difference import (
    CAUSES,
    Contribution,
    Explanation,
    PartChange,
    StepDifference,
    WallSplit,
    explanation,
    step_difference,
    wall_split,
)
from warplens.compare.difference.host import BOUNDS, LaunchChange, Side, SideLaunches, launch_change, step_samples
from warplens.compare.difference.matching import MATCHES
from warplens.compare.difference.places import (
    PHASE_CHANGES,
    RANGE_CHANGES,
    comparability_notes,
    phase_changes,
    range_changes,
)
from warplens.compare.difference.work import (
    KERNEL_CHANGES,
    TRANSFER_CHANGES,
    KernelChanges,
    WorkChange,
    kernel_changes,
    transfer_changes,
    work_change,
)

__all__ = [
    "BOUNDS",
    "CAUSES",
    "KERNEL_CHANGES",
    "MATCHES",
    "PHASE_CHANGES",
    "RANGE_CHANGES",
    "TRANSFER_CHANGES",
    "Contribution",
    "Explanation",
    "KernelChanges",
    "LaunchChange",
    "PartChange",
    "Side",
    "SideLaunches",
    "StepDifference",
    "WallSplit",
    "WorkChange",
    "comparability_notes",
    "explanation",
    "kernel_changes",
    "launch_change",
    "phase_changes",
    "range_changes",
    "step_difference",
    "step_samples",
    "transfer_changes",
    "wall_split",
    "work_change",
]
