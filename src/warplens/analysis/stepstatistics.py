"""What happened in each step: wall time, busy time, work; and the spread over the steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.intervals import measure_before
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window

__all__ = ["STEP_SCHEMA", "step_statistics"]

Int64s = npt.NDArray[np.int64]

#: One row a step of the window. `busy_ns` is the union over the device's work (the busiest device's, where several
#: worked), `gpu_ns` the summed duration of all work that began in the step; `gap_ns` is the time from the step's end to
#: the next step's begin (null for the last).
STEP_SCHEMA = pl.Schema(
    {
        "step": pl.Int64(),
        "start_ns": pl.Int64(),
        "wall_ns": pl.Int64(),
        "busy_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
        "busy_share": pl.Float64(),
        "gpu_ns": pl.Int64(),
        "kernels": pl.Int64(),
        "copies": pl.Int64(),
        "graph_launches": pl.Int64(),
        "gap_ns": pl.Int64(),
    }
)


def step_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """One row for each step of the window (`STEP_SCHEMA`); empty where no steps were found."""
    if not window.steps:
        return pl.DataFrame(schema=STEP_SCHEMA)
    starts = np.array([step.start_ns for step in window.steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in window.steps], dtype=np.int64)
    work = timeline.work_in(window)
    busy = np.zeros(len(starts), dtype=np.int64)
    for device in work["device"].unique().sort():
        running = timeline.busy(device)
        busy = np.maximum(busy, measure_before(running, ends) - measure_before(running, starts))
    begun = work["start_ns"].to_numpy()
    place = np.searchsorted(starts, begun, side="right") - 1
    inside = (place >= 0) & (begun < ends[np.maximum(place, 0)])
    kind = work["kind"].cast(pl.String)

    def count(name: str) -> Int64s:
        return np.bincount(place[inside & (kind == name).to_numpy()], minlength=len(starts))

    gpu = np.zeros(len(starts), dtype=np.int64)
    np.add.at(gpu, place[inside], (work["end_ns"] - work["start_ns"]).to_numpy()[inside])
    return pl.DataFrame(
        {
            "step": [step.index for step in window.steps],
            "start_ns": starts,
            "wall_ns": ends - starts,
            "busy_ns": busy,
            "idle_ns": ends - starts - busy,
            "busy_share": busy / np.maximum(ends - starts, 1),
            "gpu_ns": gpu,
            "kernels": count("kernel"),
            "copies": count("copy"),
            "graph_launches": count("graph"),
            "gap_ns": [*(starts[1:] - ends[:-1]).tolist(), None],
        },
        schema=STEP_SCHEMA,
    )
