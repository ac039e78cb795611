"""Where the time of the steady steps went: parts that add up to it exactly, idle time by its cause."""

from pathlib import Path

import warplens
from warplens.analysis.timebudget import time_budgets

CAPTURES = Path(warplens.__file__).parent / "data" / "captures"

timeline = warplens.Timeline(warplens.read(CAPTURES / "deit224_bs1_baseline.sqlite.xz"))
for budget in time_budgets(timeline, timeline.window("steady")):
    for part in budget.parts.iter_rows(named=True):
        print(f"{part['group']:<8} {part['part']:<16} {part['time_ns'] / 1e6:8.3f} ms  {part['share']:6.1%}")
    assert budget.parts["time_ns"].sum() == budget.duration_ns
