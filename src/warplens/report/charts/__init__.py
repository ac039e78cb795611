"""All charts. One definition is interactive in HTML and becomes SVG or PNG elsewhere.

A chart function takes a small frame of final numbers and returns a `Chart`, which is drawn when a renderer needs it.
The data are aggregated beforehand by the functions beside it: no chart has more than about two thousand marks. Labels
are placed at their marks rather than in legends; values have display units.

Importing Altair takes a good part of a second, so documents import this package only to draw. A new chart is a function
in the module of its kind (`bars`, `overtime`, `plane`).
"""

from warplens.report.charts.bars import (
    budget_chart,
    ranked_chart,
    regime_chart,
    speedup_chart,
    stacked_chart,
    waterfall_chart,
)
from warplens.report.charts.base import Chart, vega_lite_version
from warplens.report.charts.overtime import (
    busy_bins,
    memory_chart,
    merged_steps,
    steps_chart,
    thinned_levels,
    timeline_bins,
    timeline_chart,
)
from warplens.report.charts.plane import (
    bandwidth_cells,
    bandwidth_chart,
    curve_chart,
    histogram_chart,
    log_bins,
    roofline_chart,
)

__all__ = [
    "Chart",
    "bandwidth_cells",
    "bandwidth_chart",
    "budget_chart",
    "busy_bins",
    "curve_chart",
    "histogram_chart",
    "log_bins",
    "memory_chart",
    "merged_steps",
    "ranked_chart",
    "regime_chart",
    "roofline_chart",
    "speedup_chart",
    "stacked_chart",
    "steps_chart",
    "thinned_levels",
    "timeline_bins",
    "timeline_chart",
    "vega_lite_version",
    "waterfall_chart",
]
