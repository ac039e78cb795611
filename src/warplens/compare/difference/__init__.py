"""Why one profile's step takes longer than another's: the wall difference split into parts that add up to it.

`sides` (what is compared, per step), `wall` (the exact split), `kernels` (removed, added and changed; with `slots`,
`matching`, `alignment` and `spelling`), `places` and `ranges` (GPU work by annotated range and phase), `transfers`
(copies, fills and communication), `issuing` and `launching` (launches, what each costs the host, what limits a side),
`work` (FLOPs), `notes` (what makes the two hard to compare), `explanation` (the cause, in numbers), and `difference`,
which asks all of them. A new way to look at the difference gets a module of its own and a field in `StepDifference`.

May import `warplens.analysis`, `warplens.profile`, `warplens.errors` and `warplens.compare.samples`. Which changes are
more than chance is asked by the reports, of `warplens.compare.statistics`. Wording and formatting belong to them, too.
"""

from __future__ import annotations

from warplens.compare.difference.difference import StepDifference, step_difference
from warplens.compare.difference.explanation import CAUSES, Contribution, Explanation, explanation
from warplens.compare.difference.kernels import KERNEL_CHANGE_SCHEMA, MATCHES, KernelChanges, kernel_changes
from warplens.compare.difference.launching import BOUNDS, LaunchChange, SideLaunches, launch_change
from warplens.compare.difference.notes import comparability_notes
from warplens.compare.difference.ranges import (
    PHASE_CHANGE_SCHEMA,
    RANGE_CHANGE_SCHEMA,
    phase_changes,
    range_changes,
)
from warplens.compare.difference.sides import Side, step_samples
from warplens.compare.difference.transfers import TRANSFER_CHANGE_SCHEMA, transfer_changes
from warplens.compare.difference.wall import PartChange, WallSplit, wall_split
from warplens.compare.difference.work import WorkChange, work_change

__all__ = [
    "BOUNDS",
    "CAUSES",
    "KERNEL_CHANGE_SCHEMA",
    "MATCHES",
    "PHASE_CHANGE_SCHEMA",
    "RANGE_CHANGE_SCHEMA",
    "TRANSFER_CHANGE_SCHEMA",
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
