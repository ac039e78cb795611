"""Every chart, defined once: the same definition is interactive in HTML and becomes SVG or PNG elsewhere.

A chart function takes a small frame of finished numbers and returns a `Chart`, which draws itself when a renderer asks.
What goes into a chart is aggregated beforehand, by the function beside it: no chart holds more than about two thousand
marks. Labels stand at what they name rather than in legends; units are those of people.

This package imports Altair, which takes a good part of a second: documents import it when they come to draw, never to
count. A new chart becomes a function here, in the module of its kind (`bars`, `overtime`, `plane`).
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
