"""`KernelCounters`: hardware counters of each profiled kernel launch, from any export.

Conventions:

* one row of `launches` per profiled result, in the order of the file; `metrics` has the same rows and one column per
  metric, named as Nsight Compute names it and in its base unit (`ns`, `byte`, `byte/second`, `hz`, `inst`, `%` as
  0–100), never in a scaled one (`us`, `Kbyte`, `Ghz`), whichever export the file came from;
* a metric that was not collected for a launch is null, never zero;
* counters describe the inside of one kernel, never the time between kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from warplens.errors import MissingDataError, SchemaError
from warplens.profile.columns import column, optional, table
from warplens.profile.schema import NAME, Column
from warplens.profile.trace import SIZE_COLUMNS, Capture

LAUNCHES = table(
    "launches",
    "one profiled kernel launch (or range, or graph)",
    column("launch", help="position in the file, from 0"),
    column("kind", dtype=pl.Enum(["kernel", "range", "graph", "cmdlist"]), help="what was profiled as one result"),
    column("name", dtype=NAME, help="short name of the kernel", kind="text"),
    column("full_name", dtype=NAME, title="Full name", kind="text"),
    optional(pl.Int32, device="CUDA ordinal of the GPU"),
    optional(pl.Int64, context="CUDA context", stream="CUDA stream"),
    optional(pl.Int32, process="process id"),
    SIZE_COLUMNS,
    Column("nvtx", pl.List(pl.String), "open NVTX ranges, outermost first", nullable=True),
)

RULES = table(
    "rules",
    "one result of one of Nsight Compute's own rules",
    "launch",
    Column("rule", pl.String, "identifier of the rule"),
    column("name", help="what the rule is called", title="Rule", kind="text"),
    optional(pl.String, section="section that the rule belongs to"),
    column("kind", help="ok, optimization, warning, error, none"),
    Column("message", pl.String, "its text"),
    optional(pl.String, speedup_kind=("local or global", "of")),
    optional(speedup_percent="its estimate; local ones do not add up"),
)


@dataclass(frozen=True)
class Session:
    """Settings of the collection; None where the file does not state them."""

    sections: tuple[str, ...] = ()
    clock_control: str | None = None
    cache_control: str | None = None
    replay_mode: str | None = None


@dataclass(frozen=True, eq=False)
class KernelCounters:
    """One Nsight Compute report.

    Attributes:
        capture: source, tool, devices, notes.
        session: settings of the collection.
        launches: `LAUNCHES`.
        metrics: one column per metric, rows as in `launches`; `Float64`, `UInt64` or `String`.
        units: base unit of each metric, where known (`byte`, `ns`, `cycle`, `%`, `inst`, …).
        rules: `RULES`.
        instances: for each requested metric with instances, one row per instance: `launch`, `index`, `value`, and where
            the file identifies the instances, `key` (an address, an opcode, a name).
        cache: results of analyses that are kept as long as the report is.
    """

    capture: Capture
    session: Session = field(default_factory=Session)
    launches: pl.DataFrame = field(default_factory=LAUNCHES.empty)
    metrics: pl.DataFrame = field(default_factory=pl.DataFrame)
    units: Mapping[str, str] = field(default_factory=dict)
    rules: pl.DataFrame = field(default_factory=RULES.empty)
    instances: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "launches", LAUNCHES.checked(self.launches))
        object.__setattr__(self, "rules", RULES.checked(self.rules))
        if self.metrics.width and self.metrics.height != self.launches.height:
            raise SchemaError(f"{self.metrics.height} rows of metrics for {self.launches.height} launches")

    def values(self, metric: str) -> pl.Series:
        """A metric of every launch, in its base unit; null for launches without it."""
        found = self.metrics.get_column(metric, default=None)
        return pl.Series(metric, [None] * self.launches.height, dtype=pl.Float64) if found is None else found

    def require(self, *metrics: str) -> None:
        """Raise an error if one of these metrics was not collected for any launch.

        Raises:
            MissingDataError: the message names the missing metrics.
        """
        absent = [metric for metric in metrics if self.values(metric).null_count() == self.launches.height]
        if absent:
            raise MissingDataError(f"{self.capture.source}: not collected: {', '.join(absent)}")
