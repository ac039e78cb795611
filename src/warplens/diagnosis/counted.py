"""What hardware counters say of the kernels of a trace: their costliest fault, and what they are limited by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.bounds import kernel_bounds
from warplens.analysis.counters.groups import group_launches
from warplens.analysis.counters.kernelkeys import SIZES

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["COUNTED_SCHEMA", "Counted", "counted"]

#: What counters add to a kernel of the trace; null for kernels that were not profiled.
COUNTED_SCHEMA: Final = pl.Schema(
    {
        "bound": pl.String(),  # memory, compute, latency, small, unknown
        "bound_unit": pl.String(),  # which memory level or pipe
        "bound_share": pl.Float64(),  # of that unit's peak rate
        "fault": pl.String(),  # the costliest one of `analysis.counters.FAULTS`
        "fault_share": pl.Float64(),  # of the kernel's time that it costs at most
        "limiter": pl.String(),  # what keeps further blocks off a multiprocessor, where occupancy is at fault
        "stall": pl.String(),  # the longest wait of the warps
    }
)

_KEY: Final = ("name", "grid", "block")
_LAUNCHED_AS: Final = ("name", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"))


@dataclass(frozen=True, eq=False)
class Counted:
    """The verdicts of a counter report on kernels, to be looked up by name, grid and block.

    Attributes:
        source: the report's file name.
        kernels: one row a name, grid and block: these as texts, and `COUNTED_SCHEMA`.
    """

    source: str
    kernels: pl.DataFrame

    def of(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """What the report says of each of these rows of `Trace.kernels` (`COUNTED_SCHEMA`)."""
        named = kernels.select(pl.col("name").cast(pl.String), *SIZES)
        return named.join(self.kernels, on=_KEY, how="left", maintain_order="left").select(COUNTED_SCHEMA.names())


def counted(report: KernelCounters) -> Counted:
    """The verdicts of one report. Of several instances of one template with the same grid, the first stands for all."""
    groups = group_launches(report, _LAUNCHED_AS).counters
    bounds = kernel_bounds(groups).select(
        "launch",
        "bound",
        "fault",
        "stall",
        bound_unit="unit",
        bound_share="unit_share",
        fault_share="fault_gain_share",
        limiter="occupancy_limiter",
    )
    launches = groups.launches.filter(pl.col("kind") == "kernel")
    named = launches.select("launch", pl.col("name").cast(pl.String), *SIZES)
    kernels = named.join(bounds, on="launch", how="left", maintain_order="left").unique(_KEY, keep="first")
    return Counted(report.capture.source, kernels.select(*_KEY, *COUNTED_SCHEMA.names()).cast(COUNTED_SCHEMA))
