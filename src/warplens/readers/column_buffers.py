"""Columns of a large table, each value written once, into its final place, by whichever thread read it.

Joining parts with `polars.concat` instead costs a second copy of everything: at 10 M kernels a quarter of the whole
loading time, most of it spent on fresh pages of memory, and 1 GB at the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

__all__ = ["ColumnBuffers"]


class ColumnBuffers:
    """Room for the columns of one table, filled part by part.

    Args:
        schema: the columns: `Int64` and `Int32` in buffers, `Binary` kept as it comes.
        capacities: for each part the most rows that it can have.
    """

    def __init__(self, schema: pl.Schema, capacities: Sequence[int]) -> None:
        self._schema = schema
        self._offsets = np.concatenate([[0], np.cumsum(capacities, dtype=np.int64)]).tolist()
        self._counts = [0] * len(capacities)
        # Pages of memory that no part writes to are never touched, so that too much room costs nothing.
        self._values = {
            name: np.empty(self._offsets[-1], np.int64 if dtype == pl.Int64 else np.int32)
            for name, dtype in schema.items()
            if dtype != pl.Binary
        }
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
        self._binaries: dict[str, list[pl.Series]] = {
            name: [pl.Series(dtype=pl.Binary)] * len(capacities) for name, dtype in schema.items() if dtype == pl.Binary
        }
        self._lock = Lock()

    def put(self, part: int, frame: pl.DataFrame) -> None:
        """Store the rows of a part; safe to call from several threads, once for each part."""
        self._counts[part] = frame.height
        for name, column in zip(frame.columns, frame.get_columns(), strict=True):
            if name in self._binaries:
                self._binaries[name][part] = column
                continue
            place = self._offsets[part]
            for chunk in column.get_chunks():
                rows = slice(place, place + chunk.len())
                if chunk.null_count():
                    self._null_flags(name)[rows] = chunk.is_null().to_numpy()
                    chunk = chunk.fill_null(0)  # noqa: PLW2901
                self._values[name][rows] = chunk.to_numpy()
                place += chunk.len()

    def frame(self) -> pl.DataFrame:
        """All rows, in the order of the parts. The buffers belong to the frame from then on."""
        starts = [0, *np.cumsum(self._counts).tolist()]
        columns = []
        for name, dtype in self._schema.items():
            if name in self._binaries:
                columns.append(pl.concat([pl.Series(dtype=pl.Binary), *self._binaries[name]]).alias(name))
                continue
            values = self._closed_up(self._values.pop(name), starts)
            nulls = self._closed_up(self._nulls.pop(name), starts) if name in self._nulls else None
            columns.append(_series(name, dtype, values, nulls))
        return pl.DataFrame(columns)

    def _null_flags(self, name: str) -> npt.NDArray[np.bool_]:
        with self._lock:
            return self._nulls.setdefault(name, np.zeros(self._offsets[-1], np.bool_))

    def _closed_up(self, buffer: npt.NDArray[Any], starts: list[int]) -> npt.NDArray[Any]:
        """The buffer's rows without the room that parts left over."""
        for part, count in enumerate(self._counts):
            if starts[part] != self._offsets[part]:
                buffer[starts[part] : starts[part + 1]] = buffer[self._offsets[part] : self._offsets[part] + count]
        return buffer[: starts[-1]]


def _series(name: str, dtype: pl.DataType, values: npt.NDArray[Any], nulls: npt.NDArray[np.bool_] | None) -> pl.Series:
    series = pl.Series(name, values, dtype=dtype)
    if nulls is None:
        return series
    if nulls.all():
        return pl.repeat(None, len(values), dtype=dtype, eager=True).alias(name)
    return series.zip_with(pl.Series(~nulls), pl.Series([None], dtype=dtype))
