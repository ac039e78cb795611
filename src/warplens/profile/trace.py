"""`Trace`: what happened when, on the host and on the GPUs, whichever tool recorded it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import polars as pl

from warplens.profile.capture import Capture
from warplens.profile.schema import table

__all__ = ["Trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """One profile as tables. Each is checked against `warplens.profile.schema.TABLES` on entry.

    A table that the source lacks is an empty frame of the right schema, and `capture.recorded` does not name it:
    "no copies happened" and "copies were not recorded" stay distinguishable.

    Raises:
        SchemaError: a frame does not fit its table.
    """

    capture: Capture
    kernels: pl.DataFrame = field(default_factory=table("kernels").empty)
    copies: pl.DataFrame = field(default_factory=table("copies").empty)
    memsets: pl.DataFrame = field(default_factory=table("memsets").empty)
    graph_launches: pl.DataFrame = field(default_factory=table("graph_launches").empty)
    api_calls: pl.DataFrame = field(default_factory=table("api_calls").empty)
    synchronizations: pl.DataFrame = field(default_factory=table("synchronizations").empty)
    ranges: pl.DataFrame = field(default_factory=table("ranges").empty)
    memory: pl.DataFrame = field(default_factory=table("memory").empty)
    allocations: pl.DataFrame = field(default_factory=table("allocations").empty)
    operators: pl.DataFrame = field(default_factory=table("operators").empty)
    autograd_links: pl.DataFrame = field(default_factory=table("autograd_links").empty)
    python_functions: pl.DataFrame = field(default_factory=table("python_functions").empty)
    collectives: pl.DataFrame = field(default_factory=table("collectives").empty)
    os_calls: pl.DataFrame = field(default_factory=table("os_calls").empty)
    profiler_overhead: pl.DataFrame = field(default_factory=table("profiler_overhead").empty)

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name != "capture":
                object.__setattr__(self, item.name, table(item.name).checked(getattr(self, item.name)))

    @property
    def has_device_work(self) -> bool:
        """Whether anything at all ran on a GPU in this profile."""
        return any(frame.height for frame in (self.kernels, self.copies, self.memsets, self.graph_launches))
