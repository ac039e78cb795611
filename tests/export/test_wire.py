from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from warplens.wire import fixed64s, messages, padded_varints
from warplens.wire import wire_varint as varint


@given(st.integers(0, 2**63 - 1))
def test_a_varint_is_what_protobuf_writes(value: int) -> None:
    packet = schema.TracePacket()
    packet.timestamp = value
    assert b"\x40" + varint(value) == packet.SerializeToString()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_padded_numbers_are_read_as_the_same_numbers(values: list[int]) -> None:
    rows = messages(4, len(values), [padded_varints(4, np.array(values), 10)])
    for row, value in zip(rows, values, strict=True):
        event = schema.TrackEvent()
        event.ParseFromString(row.tobytes())
        assert [note.int_value for note in event.debug_annotations] == [value]


def test_fixed_numbers_are_read_as_the_same_numbers() -> None:
    values = np.array([0, 1, 2**62], dtype=np.int64)
    found = []
    for row in fixed64s(47, values):
        event = schema.TrackEvent()
        event.ParseFromString(row.tobytes())
        found.extend(event.flow_ids)
    assert found == values.tolist()


@pytest.mark.parametrize("value", [-1, 1 << 35])
def test_a_number_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        padded_varints(1, np.array([value]), 5)
