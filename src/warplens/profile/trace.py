"""`Trace`: what happened when, on the host and on the GPUs, whichever tool recorded it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import polars as pl

from warplens.profile.capture import Capture
from warplens.profile.schema import table

__all__ = ["Trace"]


def _frame(name: str) -> pl.DataFrame:
    # The default of a table that a file lacks: no rows, whole schema.
    return field(default_factory=table(name).empty)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Trace:
    """One profile as tables. Each is checked against `warplens.profile.schema.TABLES` on entry.

    A table that the source lacks is an empty frame of the right schema, and `capture.recorded` does not name it:
    "no copies happened" and "copies were not recorded" stay distinguishable.

    Raises:
        SchemaError: a frame does not fit its table.
    """

    capture: Capture
    kernels: pl.DataFrame = _frame("kernels")
    copies: pl.DataFrame = _frame("copies")
    memsets: pl.DataFrame = _frame("memsets")
    graph_launches: pl.DataFrame = _frame("graph_launches")
    api_calls: pl.DataFrame = _frame("api_calls")
    synchronizations: pl.DataFrame = _frame("synchronizations")
    ranges: pl.DataFrame = _frame("ranges")
    memory: pl.DataFrame = _frame("memory")
    os_calls: pl.DataFrame = _frame("os_calls")
    profiler_overhead: pl.DataFrame = _frame("profiler_overhead")

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name != "capture":
                object.__setattr__(self, item.name, table(item.name).checked(getattr(self, item.name)))

    @property
    def has_device_work(self) -> bool:
        """Whether anything at all ran on a GPU in this profile."""
        return any(frame.height for frame in (self.kernels, self.copies, self.memsets, self.graph_launches))
