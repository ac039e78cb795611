"""Columns that are filled part by part equal the parts put one after the other."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from warplens.readers.sqlite_rows import ColumnBuffers

SCHEMA = pl.Schema({"wide": pl.Int64, "narrow": pl.Int32, "raw": pl.Binary})

_rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        st.binary(max_size=3),
    ),
    max_size=6,
)


def _frame(rows: list[tuple[int | None, int | None, bytes]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(parts=st.lists(st.tuples(_rows, _rows, st.integers(0, 4)), max_size=5), order=st.randoms())
def test_parts_of_any_size_in_any_order_of_arrival(parts, order):
    frames = [pl.concat([_frame(first), _frame(second)], rechunk=False) for first, second, _ in parts]
    buffers = ColumnBuffers(SCHEMA, [frame.height + spare for frame, (*_, spare) in zip(frames, parts, strict=True)])
    arrival = list(range(len(parts)))
    order.shuffle(arrival)
    for part in arrival:
        buffers.put(part, frames[part])
    assert_frame_equal(buffers.frame(), pl.concat([_frame([]), *frames]))
