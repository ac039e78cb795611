"""Comparison of two profiles, or of the durations of two sides.

Statistics: `shift` (durations in blocks, their centre, the ratio of two sides and its error), `decisions` (faster,
slower, the same or undecided, and the number of blocks needed to decide), `many` (which of many kernels differ). The
methods and their error rates are described in docs/explanation/comparison-statistics.md.

Causes of a difference in step time: `difference` (the exact split of the wall time, and its cause), `work` (kernels,
transfers and FLOPs), `matching` (of kernel launches), `places` (GPU work by annotated range and phase), `host` (the
launches of the sides, and their bounds), `side` (the sides, and the durations of their steps), `notes` (on
comparability). A further view of the difference is a field of `StepDifference`.

Grids of measurements are in `warplens.studies.sweeps`. Files are read before.
Significance of single changes, wording and formatting are up to the reports.
"""

from typing import Final

#: The sides of a comparison; here, since machines that only measure have no Polars.
SIDES: Final = ("baseline", "variant")
