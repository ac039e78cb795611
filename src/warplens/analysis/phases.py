"""Phases of a training step (forward, backward, optimizer) of GPU work, from the names of its ranges.

Work belongs to the phase of its *outermost* range that is named after one: a forward pass recomputed inside the
backward pass (activation checkpointing) is backward work. Backward kernels are launched by another thread than the one
that holds `backward` open; the waiting-thread rule attributes them to it, and they count as inferred.

Profiles with a framework's operators name the backward pass in any case (autograd's engine). Where the forward pass was
not annotated, the operators that lead to a backward pass make it up, and their work counts as inferred, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.frames import duration_ns, numbered, once, running_sum, sum_by
from warplens.analysis.intervals import intersection, measure_before, union
from warplens.analysis.ranges import projected_spans
from warplens.analysis.streams import busy_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, look_up
from warplens.analysis.window import NO_PHASE, PHASES, Window, phase_numbers, phase_of_name
from warplens.profile.columns import table
from warplens.profile.schema import Bools, Column, Int64s, name_labels

PHASE: Final = pl.Enum([NO_PHASE, *PHASES])

PHASE_TIMES: Final = table(
    "phases",
    "One phase of the window. `warplens phases`. Phases without work are left out.",
    "phase gpu_ns inferred_ns busy_ns kernel_ns matmul_ns kernels ops share",
    busy_ns="interval union of the work inside the window, summed over GPUs",
    share="share of the window's summed GPU time",
)

PHASES_BY_STEP: Final = table(
    "phases of each step",
    "One step of the window. `warplens phases --by step`.",
    "step wall_ns forward_ns backward_ns optimizer_ns none_ns",
)


def phase_of_work(timeline: Timeline) -> pl.Series:
    """The phase of each row of `Timeline.work` (dtype `PHASE`)."""
    return _phases(timeline)[0]


@once
def _phases(timeline: Timeline) -> tuple[pl.Series, Bools]:
    """The phase of each row of `Timeline.work`, and whether it was inferred; computed once.

    It was inferred where another thread than the launching one holds the range named after the phase, even if the
    launching thread has ranges of its own, and where no range is named after it.
    """
    ranges, work = timeline.trace.ranges, timeline.work
    phases = pl.Series("phase", [NO_PHASE, *PHASES], dtype=PHASE)
    if not ranges.height:
        return phases.gather(np.zeros(work.height, np.int64)), np.zeros(work.height, dtype=np.bool_)
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    phase_number = phase_numbers(ranges["name"])
    # The outermost range that is named after a phase, and from it the phase.
    outermost = timeline.forest.outermost_match(np.where(phase_number > 0, np.arange(1, len(phase_number) + 1), 0)) - 1
    labels = np.where(outermost >= 0, phase_number[outermost], numbers[NO_PHASE])
    inferred_forward = np.zeros(len(labels), dtype=np.bool_)
    if not (labels == numbers["forward"]).any():
        inferred_forward = (labels == numbers[NO_PHASE]) & forward_pass(timeline)
        labels = np.where(inferred_forward, numbers["forward"], labels)
    innermost = work["range"].fill_null(NO_RANGE).to_numpy()
    phase_range = look_up(outermost, innermost)
    other_thread = ranges["thread"].to_numpy()[phase_range] != work["thread"].fill_null(NO_RANGE).to_numpy()
    inferred = (
        np.where(phase_range >= 0, other_thread, work["inferred"].to_numpy())
        | np.r_[inferred_forward, False][innermost]
    )
    return phases.gather(np.r_[labels, 0][innermost]), inferred


def phase_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """The GPU work of each phase in the window (`PHASE_TIMES`), in order, `none` last.

    Phases without work are left out.
    """
    is_gemm = (categories_of(timeline.trace.kernels["full_name"]) == "gemm").to_numpy()
    rows = timeline.work_rows_in(window)
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "device")[rows]
    if not work.height:
        return PHASE_TIMES.empty()
    kernel = (work["kind"] == "kernel").to_numpy()
    matmul = np.zeros(work.height, dtype=np.bool_)
    matmul[kernel] = is_gemm[work["row"].to_numpy()[kernel]]
    phase, inferred = _phases(timeline)
    work = work.with_columns(phase[rows], pl.Series("inferred", inferred[rows]), pl.Series("matmul", matmul))
    duration = duration_ns()
    is_kernel = pl.col("kind") == "kernel"
    sums = work.group_by("phase").agg(
        duration.sum().alias("gpu_ns"),
        duration.filter("inferred").sum().alias("inferred_ns"),
        duration.filter(is_kernel).sum().alias("kernel_ns"),
        duration.filter(pl.col("matmul")).sum().alias("matmul_ns"),
        is_kernel.sum().cast(pl.Int64).alias("kernels"),
        pl.len().cast(pl.Int64).alias("ops"),
    )
    order = {phase: position for position, phase in enumerate((*PHASES, NO_PHASE))}
    inside = work.with_columns(pl.col("start_ns", "end_ns").clip(window.start_ns, window.end_ns))
    busy = busy_by(inside, ["phase", "device"]).group_by("phase").agg(pl.col("busy_ns").sum())
    share = pl.col("gpu_ns") / max(1, int(sums["gpu_ns"].sum()))
    with_share = sums.join(busy, on="phase").with_columns(pl.col("phase").cast(pl.String), share=share)
    return PHASE_TIMES.conform(with_share.sort(pl.col("phase").replace_strict(order)))


def phase_steps(timeline: Timeline, window: Window) -> pl.DataFrame:
    """GPU time of each phase in each step of the window (`PHASES_BY_STEP`); empty where there are no steps."""
    if not window.steps:
        return PHASES_BY_STEP.empty()
    rows = timeline.work_rows_in(window)
    work = timeline.work.select("start_ns", "end_ns")[rows]
    numbers, starts, ends = window.step_edges
    first, stop = _step_slices(work["start_ns"].to_numpy(), starts, ends)
    count = stop - first
    place = np.repeat(np.arange(len(starts)), count)
    inside = np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(place))
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()[inside]
    # Phase and step as one number, so that one pass sums all of them.
    code = phase_of_work(timeline)[rows].to_physical().to_numpy()[inside].astype(np.int64)
    phases = len(PHASE.categories)
    sums = sum_by(code * len(starts) + place, duration, phases * len(starts)).reshape(phases, len(starts))
    columns = {f"{name}_ns": sums[number] for number, name in enumerate(PHASE.categories)}
    return pl.DataFrame({"step": numbers, "wall_ns": ends - starts, **columns}, schema=PHASES_BY_STEP.schema)


def _step_slices(work_starts: Int64s, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """First row and stop row of the work that begins in each step; work is in time order."""
    first = np.searchsorted(work_starts, starts)
    stop = np.minimum(np.searchsorted(work_starts, ends), np.r_[first[1:], len(work_starts)])
    return first, np.maximum(stop, first)


STEPS: Final = table(
    "steps",
    "One step of the window. `warplens steps`. Where several GPUs worked, busy and idle time are those of the"
    " busiest one. With `--range`, wall, busy and idle time are of the range's spans on that GPU in the step.",
    "step start_ns wall_ns busy_ns idle_ns busy_share gpu_ns kernels copies",
    Column("graph_launches", pl.Int64, "CUDA graph launches traced as a whole", title="Graphs"),
    Column(
        "gap_ns", pl.Int64, "from the step's end to the next step's start; null for the last step", title="Gap after"
    ),
    idle_ns="`wall_ns` less `busy_ns`",
    gpu_ns="summed duration of all work that began in the step, of all GPUs",
)


def step_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """One row for each step of the window (`STEPS`); empty where no steps were found."""
    if not window.steps:
        return STEPS.empty()
    numbers, starts, ends = window.step_edges
    work = timeline.work_in(window)
    wall = ends - starts if window.range_name is None else np.zeros(len(starts), dtype=np.int64)
    busy = np.zeros(len(starts), dtype=np.int64)
    for device in timeline.devices_in(window):
        running, lasting = timeline.busy(device), ends - starts
        if window.range_name is not None:
            spans = union(projected_spans(timeline, timeline.range_rows(window.range_name), device))
            lasting = measure_before(spans, ends) - measure_before(spans, starts)
            running = intersection(spans, running)
        worked = measure_before(running, ends) - measure_before(running, starts)
        wall = np.where(worked > busy, lasting, wall)
        busy = np.maximum(busy, worked)
    first, stop = _step_slices(work["start_ns"].to_numpy(), starts, ends)

    def count(name: str) -> Int64s:
        before = running_sum((work["kind"] == name).to_numpy())
        return before[stop] - before[first]

    before = running_sum((work["end_ns"] - work["start_ns"]).to_numpy())
    rows = pl.DataFrame(
        {
            "step": numbers,
            "start_ns": starts,
            "wall_ns": wall,
            "busy_ns": busy,
            "idle_ns": wall - busy,
            "busy_share": busy / np.maximum(wall, 1),
            "gpu_ns": before[stop] - before[first],
            "kernels": count("kernel"),
            "copies": count("copy"),
            "graph_launches": count("graph"),
            "gap_ns": [*(starts[1:] - ends[:-1]).tolist(), None],
        },
        schema=STEPS.schema,
    )
    if timeline.trace.has_device_work:
        return rows
    # GPU figures are unknown: the steps are ranges on the host.
    return rows.with_columns(pl.lit(None, STEPS.schema[name]).alias(name) for name in _GPU_COLUMNS)


_GPU_COLUMNS: Final = ("busy_ns", "idle_ns", "busy_share", "gpu_ns", "kernels", "copies", "graph_launches")


# --- The forward pass of a training step without annotation, inferred from its backward pass ---
#
# Between one backward pass and the next, the operators whose gradients the latter computes mark the forward pass: it
# lasts from the first of them to the last on their thread. An operator with a sequence number that is not backward work
# ran with gradients enabled, and counts as well between the first of them and the backward pass. Before the first of
# them it may be a part of the forward pass that is not trained, or what follows the backward pass of the step before,
# such as logging. Therefore it counts only if no optimizer runs, no number is read back and no batch is asked for
# between it and the forward pass.

#: Operators that read a number back.
_READS_BACK: Final = ("aten::item", "aten::_local_scalar_dense")
_NEXT_BATCH: Final = "enumerate(DataLoader)#"


def forward_pass(timeline: Timeline) -> Bools:
    """For each row of `Trace.ranges`, whether it lies in an inferred forward pass.

    Nothing is inferred where no backward operator is linked to a forward one: then the profile holds no training.
    """
    ranges = timeline.trace.ranges
    in_forward = np.zeros(ranges.height, dtype=np.bool_)
    if not timeline.has_operators:
        return in_forward
    links, tree = timeline.autograd, timeline.operators
    backward = np.flatnonzero(links.forward_of != NO_RANGE)
    forward = links.forward_of[backward]
    backward, forward = backward[~links.in_backward[forward]], forward[~links.in_backward[forward]]
    if not len(forward):
        return in_forward
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    process, thread = (ranges[column].to_numpy().astype(np.int64) for column in ("process", "thread"))
    outermost = tree.forest.outermost_match(np.where(tree.is_operator, np.arange(1, len(start) + 1), 0)) - 1
    with_gradients = (pl.col("sequence") >= 0) & ~(pl.col("forward_thread").fill_null(0) > 0)
    in_forward[timeline.trace.operators.filter(with_gradients)["range"].to_numpy()] = True
    ends_step = name_labels(ranges["name"], lambda name: int(_ends_step(name))) > 0
    places, place = numbered(ranges.select("process", "thread")[forward], ("process", "thread"))
    for number, (pid, tid) in enumerate(places.iter_rows()):
        on_thread = place == number
        is_root = np.zeros(len(start), dtype=np.bool_)
        is_root[outermost[forward[on_thread]]] = True
        roots = np.flatnonzero(is_root)
        order = np.argsort(start[backward[on_thread]], kind="stable")
        backward_starts = start[backward[on_thread]][order]
        backward_ends = np.maximum.accumulate(end[backward[on_thread]][order])
        roots = roots[np.argsort(start[roots], kind="stable")]
        # Forward operators preceded by the same number of backward operators belong to one pass.
        cuts = np.flatnonzero(np.diff(np.searchsorted(backward_starts, start[roots]))) + 1
        firsts, lasts = np.r_[0, cuts], np.r_[cuts, len(roots)] - 1
        rows_on_thread = np.flatnonzero((process == pid) & (thread == tid))
        begins, ends = start[roots[firsts]], end[roots[lasts]]
        since = start[rows_on_thread]
        span = np.searchsorted(begins, since, side="right") - 1
        inside = (span >= 0) & (end[rows_on_thread] <= ends[np.maximum(span, 0)])
        # Work that begins after the backward pass of its span belongs to the next step, or to none.
        next_backward = np.r_[backward_starts, _FAR][np.searchsorted(backward_starts, start[roots[lasts]])]
        earliest = _begins_of_steps(
            begins,
            next_backward,
            backward_starts,
            backward_ends,
            *_sorted_events(start, end, rows_on_thread[ends_step[rows_on_thread]]),
        )
        before_backward = (span >= 0) & (since < next_backward[np.maximum(span, 0)])
        in_forward[rows_on_thread] &= before_backward | (since >= earliest[span + 1])
        in_forward[rows_on_thread[inside]] = True
    return in_forward & ~links.in_backward


_FAR: Final = np.iinfo(np.int64).max


def _ends_step(name: str) -> bool:
    """Whether a range of this name lies between the backward pass of a step and the forward pass of the next."""
    return name in _READS_BACK or name.startswith(_NEXT_BATCH) or phase_of_name(name) == "optimizer"


def _sorted_events(start: Int64s, end: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Begins of these ranges in order, and their ends."""
    rows = rows[np.argsort(start[rows], kind="stable")]
    return start[rows], end[rows]


def _begins_of_steps(
    begins: Int64s,
    next_backward: Int64s,
    backward_starts: Int64s,
    backward_ends: Int64s,
    event_starts: Int64s,
    event_ends: Int64s,
) -> Int64s:
    """The time from which on work before a forward pass may belong to it; one more than there are passes.

    It is the end of the last event behind the backward pass before, or the end of that backward pass without any.

    Args:
        begins: of the forward passes, ascending.
        next_backward: begin of the backward pass of each.
        backward_starts, backward_ends: of backward operators, in order; the ends are those of all until then.
        event_starts, event_ends: of what ends a step, in order.
    """
    after, until = np.r_[-_FAR, next_backward], np.r_[begins, _FAR]
    last_backward = np.searchsorted(backward_starts, until) - 1
    earliest = np.where(last_backward >= 0, np.r_[backward_ends, 0][last_backward], -_FAR)
    last_event = np.searchsorted(event_starts, until) - 1
    follows = (last_event >= 0) & (np.r_[event_starts, 0][last_event] >= after)
    return np.where(follows, np.r_[event_ends, 0][last_event], earliest)
