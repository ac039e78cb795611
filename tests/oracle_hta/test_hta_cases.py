"""Where HTA 0.5 and Warplens differ: traces small enough to be counted with a pencil, and what each of the two says.

The traces are written by `cases/write_cases.py`, HTA's figures by `generate.py`; ours are computed here, and the right
ones stand in the tests as the numbers that a reader finds when counting.
"""

from __future__ import annotations

import json
from pathlib import Path

from warplens.analysis.launches import launch_statistics
from warplens.analysis.ranks.summary import RankSummary, summarize
from warplens.analysis.timeline import Timeline
from warplens.readers import read

HERE = Path(__file__).parent


def ours(case: str) -> RankSummary:
    timeline = Timeline(read(HERE / "cases" / f"{case}.json"))
    first, last = int(timeline.work["start_ns"].min()), int(timeline.work["end_ns"].max())
    return summarize(timeline.trace, f"{first}:{last}")[0]


def hta(case: str, way: str = "exact") -> dict:
    return json.loads((HERE / "figures" / "cases" / f"{case}.json").read_text("utf-8"))[way]


def test_short_kernels_lose_their_fractions_by_rounding():
    """Four kernels of 1.9 µs, 0.1 µs apart: busy 7.6 of 7.9 µs. Rounded as HTA does by default: 4 of 7."""
    times = ours("short_kernels").times
    assert (times["compute_ns"], times["idle_ns"], times["duration_ns"]) == (7_600, 300, 7_900)
    rounded = hta("short_kernels", "rounded")["temporal"]
    assert (rounded["compute_time(us)"], rounded["idle_time(us)"]) == (4, 3)
    exact = hta("short_kernels")["temporal"]
    assert (round(exact["compute_time(us)"], 6), round(exact["idle_time(us)"], 6)) == (7.6, 0.3)


def test_waiting_for_the_gpu_is_no_work_of_the_gpu():
    """Two kernels of 100 µs with 400 µs between them, in which the host waits: the GPU is idle for 400 µs."""
    times = ours("waiting_is_no_work").times
    assert (times["compute_ns"], times["idle_ns"]) == (200_000, 400_000)
    assert hta("waiting_is_no_work")["temporal"]["idle_time(us)"] == 100


def test_work_that_was_launched_before_the_recording_keeps_the_gpu_busy():
    """Kernels of 400, 100 and 100 µs; HTA drops the first, and the GPU seems to begin 490 µs later."""
    times = ours("launched_before").times
    assert (times["compute_ns"], times["duration_ns"]) == (600_000, 1_590_000)
    told = hta("launched_before")["temporal"]
    assert (told["compute_time(us)"], told["kernel_time(us)"]) == (200, 1_100)


def test_kernels_of_a_graph_are_launched_by_the_graphs_launch():
    """One graph of three kernels, one single kernel: two launching calls. HTA's launch statistics know one of them."""
    assert ours("graph_replay").times["compute_ns"] == 200_000
    assert hta("graph_replay")["temporal"]["compute_time(us)"] == 200
    assert hta("graph_replay")["launches"]["count"] == 1
    timeline = Timeline(read(HERE / "cases" / "graph_replay.json"))
    assert timeline.work["api_row"].n_unique() == 2
    assert launch_statistics(timeline, timeline.window("all")).height


def test_both_count_overlap_alike():
    """Communication 0–100, compute 60–160."""
    times = ours("overlap").times
    assert times["overlapped_ns"] / times["communication_ns"] == 0.4
    assert hta("overlap")["overlap"] == 40.0
