"""What limits each kernel, from the hardware counters of an Nsight Compute report."""

from pathlib import Path

import warplens
from warplens.analysis.counters.bounds import kernel_bounds

COUNTERS = Path(warplens.__file__).parent / "data" / "counters"

report = warplens.read_counters(COUNTERS / "planted_h200.ncu-rep.xz")
print(kernel_bounds(report).group_by("bound").len().sort("len", descending=True))
