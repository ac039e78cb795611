"""At which operator each piece of GPU work is counted, so that no work is counted twice.

Operators nest: `aten::linear` calls `aten::addmm`, which launches the kernels. Each piece of GPU work goes to the
innermost operator around its launch whose work can be modelled; where two operators found so enclose one another, the
outer one stands for both. So products are counted where they are launched, and an operator without a formula is
counted through the one that called it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.work.amounts import FAMILIES, Work
from warplens.analysis.work.catalogue import work_of

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["Counting", "count_work"]

Int64s = npt.NDArray[np.int64]

_INPUTS = ("name", "input_shapes", "input_types", "input_strides", "concrete_inputs")

#: One row an operator that launched GPU work, itself or through others. Either a family or a reason is null.
_MODEL_SCHEMA = pl.Schema(
    {
        "range": pl.Int64(),
        "family": pl.Enum(FAMILIES),
        "flops": pl.Int64(),
        "flops_full": pl.Int64(),
        "known_bytes": pl.Int64(),
        "untyped": pl.Int64(),
        "reason": pl.String(),
    }
)


@dataclass(frozen=True, eq=False)
class Counting:
    """Where GPU work is counted.

    Attributes:
        launcher: for each row of `Timeline.work` the innermost operator around its launch, a row of `Trace.ranges`;
            `NO_RANGE` for none.
        counted_at: the operator that its work is counted at; `NO_RANGE` where none has a model.
        models: `_MODEL_SCHEMA`.
    """

    launcher: Int64s
    counted_at: Int64s
    models: pl.DataFrame


def count_work(timeline: Timeline) -> Counting:
    """Models every operator that launched GPU work, and decides at which of them each piece is counted."""
    tree, count = timeline.operators, timeline.trace.ranges.height
    work = timeline.work
    launched = work["range"].fill_null(NO_RANGE).to_numpy()
    launcher = tree.of(np.where(work["inferred"].to_numpy(), NO_RANGE, launched))
    pieces = np.bincount(launcher[launcher != NO_RANGE], minlength=count)
    models = _models(timeline, np.flatnonzero(tree.forest.inclusive(pieces) > 0))
    modelled = np.zeros(count, dtype=np.int64)
    rows = models.filter(pl.col("family").is_not_null())["range"].to_numpy()
    modelled[rows] = rows + 1
    innermost = np.r_[tree.forest.innermost_match(modelled), 0][launcher] - 1
    chosen = np.zeros(count, dtype=np.int64)
    used = innermost[innermost != NO_RANGE]
    chosen[used] = used + 1
    counted_at = np.r_[tree.forest.outermost_match(chosen), 0][innermost] - 1
    return Counting(launcher, counted_at, models)


def _models(timeline: Timeline, rows: Int64s) -> pl.DataFrame:
    """The models of these operators (rows of `Trace.ranges`); each distinct combination of inputs is looked at once."""
    names = timeline.trace.ranges["name"].gather(rows)
    wanted = pl.DataFrame({"range": rows, "name": names}, schema_overrides={"range": pl.Int64})
    recorded = timeline.trace.operators.select("range", *_INPUTS[1:])
    combinations = (
        wanted.join(recorded, on="range", how="left", maintain_order="left")
        .group_by(_INPUTS, maintain_order=True)
        .agg(pl.col("range"))
    )
    found = [work_of(*inputs) for inputs in combinations.select(pl.col(_INPUTS).cast(pl.String)).iter_rows()]
    works = [item if isinstance(item, Work) else None for item in found]
    return (
        combinations.select(
            "range",
            pl.Series("family", [work and work.family for work in works], dtype=pl.Enum(FAMILIES)),
            pl.Series("flops", [work and work.flops for work in works], dtype=pl.Int64),
            pl.Series("flops_full", [work and _full(work) for work in works], dtype=pl.Int64),
            pl.Series("known_bytes", [work and work.bytes for work in works], dtype=pl.Int64),
            pl.Series("untyped", [work and work.untyped for work in works], dtype=pl.Int64),
            pl.Series("reason", [item if isinstance(item, str) else None for item in found], dtype=pl.String),
        )
        .explode("range")
        .sort("range")
        .select(_MODEL_SCHEMA.names())
        .cast(_MODEL_SCHEMA)
    )


def _full(work: Work) -> int:
    return work.flops if work.flops_full is None else work.flops_full
