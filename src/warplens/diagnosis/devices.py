"""For how long a GPU is idle because another GPU of its process is at work.

A host that drives several GPUs is as fast as the busiest of them, whatever else changes. With `T` the window, `M` the
busy time of the busiest GPU of a process, and `U` the time in which any of its GPUs works:

* a GPU with less work waits for the busiest one for the difference of their busy times. This much of its idle time
  while the busiest GPU works is due to uneven work. `T − M` of its idle time is left, as on the busiest GPU;
* GPUs that take turns wait for each other for `U` less their own busy time. Nothing but other work at the same time
  shortens `U`; the step takes `T − (U − M)` if they all worked at the same time;
* GPUs with replicas of a model, which threads of one process launch, wait while any of them works or is prepared, as
  far as a process for each GPU would not (`warplens.diagnosis.replicas`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import Spent
from warplens.analysis.intervals import Intervals, clip, measure_before, total, union
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.diagnosis.findings import ISSUING
from warplens.diagnosis.replicas import Replicas, replicas_of
from warplens.profile.schema import Int64s

#: Findings on this idle time, which is also a cause in `Facts.causes`, by the same names.
UNEVEN: Final = "uneven-gpus"
IN_TURN: Final = "gpus-in-turn"
REPLICATED: Final = "data-parallel-threads"

#: GPUs take turns if some of them work for this share of the window while the busiest one is idle. Equal work that the
#: host issues to one GPU after the other is apart by the time of issuing it.
_LEAST_TURNS: Final = 0.05
#: While others work, each spends this share of its idle time with queued work, or with a host that waits for another
#: GPU. A host that only issues work too slowly makes GPUs take turns as well, and is another cause.
_WAITING_SHARE: Final = 0.5
#: One thread launches at least this share of the work of each of them: a backward pass has a thread for each GPU, but
#: GPUs that have nothing but threads of their own are independent.
_LEAST_SHARED: Final = 0.2


@dataclass(frozen=True, eq=False)
class Sharing:
    """The GPUs of one process."""

    devices: tuple[int, ...]  #: CUDA ordinals, the busiest first
    busy_ns: tuple[int, ...]  #: busy time of each in the window
    any_busy_ns: int  #: time in which at least one works
    waits: Spent  #: time of each pause of the window in which a GPU waits for another one of the process
    cause: str  #: the finding on these waits
    replicas: Replicas | None = None  #: of a model that is copied onto them in each step

    @property
    def evened_ns(self) -> float:
        """Mean of their busy times: that of the busiest, with the same work dealt out evenly."""
        return sum(self.busy_ns) / len(self.busy_ns)

    @property
    def together_ns(self) -> int:
        """By how much the window is shorter if they all work at the same time."""
        return self.any_busy_ns - self.busy_ns[0]


def sharings(
    timeline: Timeline, window: Window, work: pl.DataFrame, gaps: pl.DataFrame, causes: Mapping[str, Spent]
) -> Iterator[Sharing]:
    """How each process that drives several GPUs, which no other process uses, shares its work among them.

    Args:
        work, gaps, causes: as in `Facts`.
    """
    pairs = work.select("process", "device").unique()
    alone = pairs.filter((~pl.col("device").is_duplicated()).all().over("process"))
    for group in alone.partition_by("process"):
        if group.height > 1:
            devices = group["device"].sort().to_list()
            replicas = replicas_of(timeline, window, devices, work, gaps, causes)
            yield _sharing(timeline, window, devices, gaps, causes, replicas)


def _sharing(
    timeline: Timeline,
    window: Window,
    devices: Sequence[int],
    gaps: pl.DataFrame,
    causes: Mapping[str, Spent],
    replicas: Replicas | None,
) -> Sharing:
    """How the GPUs of one process share its time: how long each works, and waits for another one."""
    busy = {device: clip(timeline.busy(device), window.start_ns, window.end_ns) for device in devices}
    times = {device: total(busy[device]) for device in devices}
    order = sorted(devices, key=lambda device: -times[device])
    some = union(*busy.values())
    starts, ends = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()

    def during(work: Intervals) -> Int64s:
        return measure_before(work, ends) - measure_before(work, starts)

    elsewhere, beside = during(some), during(busy[order[0]])
    waiting = np.minimum(causes["dependency"].whole(), elsewhere)
    of_device = {device: np.flatnonzero((gaps["device"] == device).to_numpy()) for device in devices}
    in_turn = (
        total(some) - times[order[0]] >= _LEAST_TURNS * window.duration_ns
        and all(waiting[rows].sum() >= _WAITING_SHARE * elsewhere[rows].sum() for rows in of_device.values())
        and _share_a_thread(timeline, window, devices)
    )
    waits = np.zeros(gaps.height, dtype=np.int64)
    if replicas is not None:
        replicated = during(union(some, replicas.busy))
        issuing = reduce(Spent.plus, (causes[cause] for cause in ISSUING)).whole()
        lasting = np.minimum(replicated, ends - starts - issuing)
    for device, rows in of_device.items():
        if replicas is not None:
            # The host issues work in the pauses that are left with a process for each GPU.
            left = max(replicas.apart_ns(1.0) - replicas.other_ns - times[device], 0.0)
            short = replicated[rows] - lasting[rows]
            waits[rows] = _less(short, left) + _less(lasting[rows], left - short.sum())
            continue
        less = times[order[0]] - times[device]
        part = less / max(int(beside[rows].sum()), 1)
        waits[rows] = elsewhere[rows] if in_turn else (beside[rows] * part).astype(np.int64)
    cause = REPLICATED if replicas is not None else IN_TURN if in_turn else UNEVEN
    busy_ns = tuple(times[device] for device in order)
    return Sharing(tuple(order), busy_ns, total(some), Spent.of(waits), cause, replicas)


def _less(spent: Int64s, left_ns: float) -> Int64s:
    """These times without so much of their sum, each less by the same share."""
    share = min(max(left_ns / max(int(spent.sum()), 1), 0.0), 1.0)
    return np.asarray(spent * (1 - share), dtype=np.int64)


def _share_a_thread(timeline: Timeline, window: Window, devices: Sequence[int]) -> bool:
    """Whether one thread launches work of all these GPUs; True if threads are not known."""
    inside = pl.col("start_ns").is_between(window.start_ns, window.end_ns) & pl.col("device").is_in(list(devices))
    launched = timeline.work.lazy().filter(inside).group_by("device", "thread").len().collect()
    if launched["thread"].null_count():
        return True
    share = launched.with_columns(share=pl.col("len") / pl.col("len").sum().over("device"))
    of_thread = share.filter(pl.col("share") >= _LEAST_SHARED).group_by("thread").len()
    return bool((of_thread["len"] == len(devices)).any())


def split_causes(causes: Mapping[str, Spent], lengths: Int64s, found: Sequence[Sharing]) -> dict[str, Spent]:
    """The causes of each pause, with the time of `Sharing.waits` as causes of their own.

    It is taken from waits for other work, and beyond those from all other causes alike. Time that replicas cost is
    taken from all causes but the host's launches, and beyond those from these: launches are what is left of it.
    """
    apart = dict(causes)
    for id_ in (UNEVEN, IN_TURN, REPLICATED):
        waits = [sharing.waits for sharing in found if sharing.cause == id_]
        if not waits:
            continue
        first: Collection[str] = causes.keys() - {*ISSUING} if id_ == REPLICATED else ("dependency",)
        waited, before = reduce(Spent.plus, waits).whole(), reduce(Spent.plus, (causes[name] for name in first)).whole()
        of_first = np.minimum(waited, before)
        share, rest = of_first / np.maximum(before, 1), (waited - of_first) / np.maximum(lengths - before, 1)
        moved = {cause: spent.times(share if cause in first else rest) for cause, spent in causes.items() if spent}
        apart |= {cause: apart[cause].plus(spent, -1) for cause, spent in moved.items()}
        apart[id_] = reduce(Spent.plus, moved.values(), Spent.none(len(lengths)))
    return apart
