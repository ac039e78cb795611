"""Which kernels take another time for certain, and not by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.compare.difference.kernels import KERNEL_CHANGE_SCHEMA
from warplens.compare.statistics import DIFFERENCE_SCHEMA, many_differences

if TYPE_CHECKING:
    from warplens.compare.difference.kernels import KernelChanges

__all__ = ["KERNEL_VERDICT_SCHEMA", "kernel_verdicts"]

_FOUND: Final = ("low_ns", "high_ns", "adjusted_p", "verdict")

#: The rows of `KERNEL_CHANGE_SCHEMA` with the interval of the change per step and the verdict on it
#: (`statistics.DIFFERENCE_SCHEMA`).
KERNEL_VERDICT_SCHEMA: Final = pl.Schema({**KERNEL_CHANGE_SCHEMA, **{name: DIFFERENCE_SCHEMA[name] for name in _FOUND}})


def kernel_verdicts(changes: KernelChanges, *, margin: float = 0.02, level: float = 0.05) -> pl.DataFrame:
    """The matched kernels with a verdict on each change of time, corrected for their number (`KERNEL_VERDICT_SCHEMA`).

    The steps of the two windows are the samples. Where there are several files of a side, files should be
    (`statistics.many_differences` with blocks).

    Args:
        changes: the kernels of both sides, matched.
        margin: a change up to this share of a kernel's time is `same`.
        level: of the kernels called faster or slower, at most this share is so by chance.
    """
    found = many_differences(*changes.samples(), margin=margin, level=level)
    return pl.concat([changes.table, found.select(_FOUND)], how="horizontal")
