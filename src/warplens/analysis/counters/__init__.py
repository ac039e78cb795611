"""What the hardware counters of a kernel say: how near it is to a roof, which one, and what holds it back.

Lives here: one module a question (`speedoflight`, `roofline` with `tensorwork` and `rooflinepoints`, `occupancy`,
`stalls`, `memoryaccess`, `instructions`), `faults` (what is wrong with a kernel, worst first), `bounds` (the verdict on
each kernel), and `groups` (launches of the same kernel with the same grid and block as one). `coverage` joins a report
with a trace of the same program (`launchorder` tells which of its launches were profiled), `comparison` two reports
(`comparisonnotes` says what keeps them from comparing), both by `kernelkeys`, and `nextrun` says what to collect next
(`ncucommand` writes the command). `metrics` knows what a quantity is called in which version of Nsight Compute,
`occupancy_limits` what fits on a multiprocessor.

Every function is pure: `KernelCounters` in, a frame out, its `Table` declared beside it; a row's `launch` is the row of
`KernelCounters.launches`. Shares are 0–1. Counters speak of the inside of one kernel: nothing here says anything about
the time between kernels.

May import: `warplens.profile`, `warplens.errors`, `analysis.kernel_names`, and `analysis.timeline` for traces. A new
question becomes a module with one function of `KernelCounters`; a new fault a line in `faults`.
"""

from warplens.analysis.counters.bounds import BOUNDS, FAULTS, kernel_bounds, kernel_faults
from warplens.analysis.counters.comparison import COMPARED, METRIC_CHANGES, UNPAIRED, Comparison, compare_counters
from warplens.analysis.counters.coverage import COVERAGE, RANKING, UNMATCHED, Coverage, counter_notes, counters_coverage
from warplens.analysis.counters.groups import GROUPS, SUMMARY, SUMMARY_KEYS, Groups, counters_summary, group_launches
from warplens.analysis.counters.memoryaccess import MEMORY_ACCESS, STALLS, memory_access, top_stalls, warp_stalls
from warplens.analysis.counters.nextrun import NextRun, next_run, next_sections
from warplens.analysis.counters.occupancy import LAUNCH_OCCUPANCY, OCCUPANCY, launch_occupancy, theoretical_occupancy
from warplens.analysis.counters.roofline import ROOFLINE, roofline
from warplens.analysis.counters.rooflinepoints import POINTS, ROOFS, Roofline, roofline_points
from warplens.analysis.counters.speedoflight import (
    BREAKDOWN,
    INSTRUCTION_MIX,
    INSTRUCTIONS,
    SPEED_OF_LIGHT,
    instruction_mix,
    instruction_use,
    speed_of_light,
    throughput_breakdown,
)

__all__ = [
    "BOUNDS",
    "BREAKDOWN",
    "COMPARED",
    "COVERAGE",
    "FAULTS",
    "GROUPS",
    "INSTRUCTIONS",
    "INSTRUCTION_MIX",
    "LAUNCH_OCCUPANCY",
    "MEMORY_ACCESS",
    "METRIC_CHANGES",
    "OCCUPANCY",
    "POINTS",
    "RANKING",
    "ROOFLINE",
    "ROOFS",
    "SPEED_OF_LIGHT",
    "STALLS",
    "SUMMARY",
    "SUMMARY_KEYS",
    "UNMATCHED",
    "UNPAIRED",
    "Comparison",
    "Coverage",
    "Groups",
    "NextRun",
    "Roofline",
    "compare_counters",
    "counter_notes",
    "counters_coverage",
    "counters_summary",
    "group_launches",
    "instruction_mix",
    "instruction_use",
    "kernel_bounds",
    "kernel_faults",
    "launch_occupancy",
    "memory_access",
    "next_run",
    "next_sections",
    "roofline",
    "roofline_points",
    "speed_of_light",
    "theoretical_occupancy",
    "throughput_breakdown",
    "top_stalls",
    "warp_stalls",
]
