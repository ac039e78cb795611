"""What one thread for each GPU costs a process that copies its model onto all of them in each step.

So does PyTorch's `nn.DataParallel`: one thread broadcasts the parameters with NCCL, and another thread for each GPU
launches its part of the batch. All of them need the interpreter's lock. With a process for each GPU, a step takes the
longer of

* the busiest GPU's own work, without copies of the model and of activations between GPUs, but with a sum of gradients.
  That moves twice the bytes of the sum on one GPU, and half of it is taken to run beside the backward pass;
* the host's time to issue one GPU's work: between its launches, without long pauses, in which a thread does not get the
  lock,

and pauses in which no replica is at work, such as for input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import Spent, largest
from warplens.analysis.hostpace import STALL_MAX_NS
from warplens.analysis.intervals import Intervals, measure_before, union
from warplens.analysis.ranks.collectives import kind_of_kernel
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.diagnosis.findings import ISSUING
from warplens.profile.schema import rows_named

#: Work that only replicas in one process need.
BETWEEN: Final = ("communication", "peer-to-peer")
#: The thread that broadcasts launches less than this share of a GPU's work: threads of the replicas launch the rest.
_MOST_BY_ONE: Final = 0.5


@dataclass(frozen=True, eq=False)
class Replicas:
    """The replicas of a model on the GPUs of one process, and the busiest of these GPUs without their copies."""

    device: int  #: CUDA ordinal of that GPU
    busy: Intervals  #: when replicas are copied, or at work
    replications: int  #: how often the model is copied onto the GPUs
    duration_ns: int  #: of the window
    own_ns: int  #: that GPU's own work
    together_ns: int  #: own work of all GPUs
    sums_ns: int  #: sums of gradients on that GPU
    host_ns: int  #: recorded host time to issue the work of one GPU
    #: its pauses in which the host issues work, those of the profiler, and others in which no replica is at work
    issuing_ns: int
    profiler_ns: int
    other_ns: int

    def now_ns(self, pace: float) -> float:
        """Duration of the window with this share of the host's recorded time for issuing work."""
        return self.duration_ns - (1 - pace) * self.issuing_ns - self.profiler_ns

    def apart_ns(self, pace: float) -> float:
        """The same with a process for each GPU."""
        return max(self.own_ns + self.sums_ns, pace * self.host_ns) + self.other_ns

    def alone_ns(self, pace: float) -> float:
        """The same with the whole batch on one GPU."""
        return max(self.together_ns, pace * self.host_ns) + self.other_ns


def replicas_of(
    timeline: Timeline,
    window: Window,
    devices: Sequence[int],
    work: pl.DataFrame,
    gaps: pl.DataFrame,
    causes: Mapping[str, Spent],
) -> Replicas | None:
    """The replicas on these GPUs of one process; None if no model is copied onto them in each step.

    Args:
        work, gaps, causes: as in `Facts`.
    """
    launched = _launched(timeline, window, devices)
    copying = launched.filter("copies_model")
    if copying["thread"].n_unique() != 1 or copying["device"].n_unique() < len(devices):
        return None
    by_one = pl.col("thread") == copying["thread"][0]
    if (launched.group_by("device").agg(by_one.mean().alias("share"))["share"] >= _MOST_BY_ONE).any():
        return None
    busy, replications = _busy(copying, launched.filter(~by_one))
    if replications < max(len(window.steps), 1):
        return None
    of_gpus = work.filter(pl.col("device").is_in(list(devices)))
    own = of_gpus.filter(~pl.col("label").is_in(BETWEEN)).group_by("device").agg(pl.col("own_ns").sum())
    own = own.sort("own_ns", "device", descending=[True, False])
    device = int(own["device"][0])
    rows = (gaps["device"] == device).to_numpy()
    idle = {cause: spent.where(rows) for cause, spent in causes.items()}
    starts, ends = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    outside = 1 - (measure_before(busy, ends) - measure_before(busy, starts)) / np.maximum(ends - starts, 1)
    others = (spent for cause, spent in idle.items() if cause not in (*ISSUING, "submission", "profiler"))
    sums = launched.filter(pl.col("sums") & (pl.col("device") == device))
    return Replicas(
        device,
        busy,
        replications,
        window.duration_ns,
        own_ns=int(own["own_ns"][0]),
        together_ns=int(own["own_ns"].sum()),
        sums_ns=int((sums["end_ns"] - sums["start_ns"]).sum()),
        host_ns=_host_ns(launched),
        issuing_ns=sum(idle[cause].total for cause in ISSUING),
        profiler_ns=idle["profiler"].total,
        other_ns=sum(spent.times(outside).total for spent in others),
    )


def _launched(timeline: Timeline, window: Window, devices: Sequence[int]) -> pl.DataFrame:
    """The work of these GPUs in the window with a known launch, in its order.

    `copies_model` and `sums` tell broadcasts and sums by NCCL.
    """
    columns = ("start_ns", "end_ns", "device", "thread", "launch_start_ns", "launch_end_ns")
    inside = pl.col("start_ns").is_between(window.start_ns, window.end_ns) & pl.col("device").is_in(list(devices))
    work = timeline.work.lazy().filter(inside).select("kind", "row", *columns).drop_nulls().collect()
    names = timeline.trace.kernels["name"]

    def is_sent(kind: str) -> pl.Series:
        of_kernel = rows_named(names, lambda name: "nccl" in name and kind_of_kernel(name) == kind)
        kernel = (work["kind"] == "kernel").to_numpy()
        sent = np.zeros(work.height, dtype=np.bool_)
        sent[kernel] = of_kernel[work["row"].to_numpy()[kernel]]
        return pl.Series(sent)

    return work.with_columns(copies_model=is_sent("broadcast"), sums=is_sent("reduce")).sort("launch_start_ns")


def _busy(copying: pl.DataFrame, of_replicas: pl.DataFrame) -> tuple[Intervals, int]:
    """From the launch of the first copy of the model to the end of the replicas' work, and how many of these there are.

    Both in the order of launches.
    """
    copies = copying["launch_start_ns"].to_numpy()
    last = np.searchsorted(copies, of_replicas["launch_start_ns"].to_numpy()) - 1
    known = last >= 0
    ends = np.full(len(copies), -1, dtype=np.int64)
    np.maximum.at(ends, last[known], of_replicas["end_ns"].to_numpy()[known])
    followed = np.flatnonzero(ends >= 0)
    begins = np.r_[0, followed[:-1] + 1][: len(followed)]
    return union(Intervals(copies[begins], np.maximum(ends[followed], copies[begins]))), len(followed)


def _host_ns(launched: pl.DataFrame) -> int:
    """Host time to issue one GPU's own work, the most of them: between launches of its threads, without long pauses."""
    spent = (pl.col("launch_end_ns") - pl.col("launch_end_ns").shift(1).over("thread")).fill_null(0)
    own = launched.with_columns(spent=spent).filter(~pl.col("copies_model") & ~pl.col("sums"))
    short = own.filter(pl.col("spent").is_between(0, STALL_MAX_NS))
    return largest(short.group_by("device").agg(pl.col("spent").sum())["spent"])
