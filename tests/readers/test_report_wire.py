"""Protocol-buffer messages, decoded many at a time, against a decoder that goes byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers.nsys_reports import bytes_field, message, varint
from warplens.readers.nsys import report_wire as wire
from warplens.readers.nsys.report_wire import BYTES, Bytes, DamagedError, runs, tag, walk

_NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 127, 128, 2**14, 2**21, 2**28, 2**56 - 1, 2**56, 2**62, 2**63 - 1, -(2**63)]),
    st.integers(0, 300),
)
#: Fields with numbers at 1, 2, 15, 16 and 300, texts at 7 and 120; 5 and 200 are none of those that are asked for.
_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        1: _NUMBERS,
        2: _NUMBERS,
        5: _NUMBERS,
        7: st.binary(max_size=20),
        15: _NUMBERS,
        16: _NUMBERS,
        120: st.binary(max_size=200),
        200: st.binary(max_size=3),
        300: _NUMBERS,
    },
)
_WANTED = {tag(n): str(n) for n in (1, 2, 15, 16, 300)} | {tag(n, BYTES): str(n) for n in (7, 120)}


def _placed(messages: list[bytes]) -> tuple[Bytes, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(one) for one in messages], dtype=np.int64)
    return Bytes(b"".join(messages)), ends - [len(one) for one in messages], ends


def _walked(messages: list[bytes]) -> list[dict[int, object]]:
    """What `walk` finds, as one dictionary a message."""
    source, begin, end = _placed(messages)
    found: list[dict[int, object]] = [{} for _ in messages]
    for name, column in walk(source, begin, end, _WANTED).items():
        for row, values in enumerate(found):
            if column.present is None or column.present[row]:
                value = int(column.values[row])
                values[int(name)] = value if column.ends is None else source.data[value : column.ends[row]]
    return found


@given(st.lists(_MESSAGES, min_size=1, max_size=30))
def test_every_field_of_every_message_is_found(contents: list[dict[int, object]]) -> None:
    ordered = [dict(sorted(content.items())) for content in contents]
    wanted = [{n: v for n, v in content.items() if n not in (5, 200)} for content in ordered]
    assert _walked([message(content) for content in ordered]) == wanted


def test_of_a_repeated_field_the_last_value_counts() -> None:
    assert _walked([message({1: [4, 5], 2: 1}), message({1: 6})]) == [{1: 5, 2: 1}, {1: 6}]


def test_numbers_written_longer_than_needed_mean_the_same() -> None:
    assert _walked([b"\x08\x85\x80\x80\x80\x80\x80\x80\x80\x80\x00", b"\x08\x85\x80\x00"]) == [{1: 5}, {1: 5}]


@pytest.mark.parametrize(
    "content",
    [
        b"\x08",  # a tag without a value
        b"\x08\x80",  # a number that does not end
        b"\x08" + b"\xff" * 10 + b"\x01",  # longer than 64 bits
        b"\x3a\x05ab",  # bytes beyond the message
        b"\x3a" + varint(2**63) + b"ab",
        b"\x3a" + b"\xff" * 9 + b"\x01",
        b"\x0b\x01",  # a group: a kind that proto3 no longer has
        b"\x09\x01",  # eight bytes, of which one is there
        b"\x00\x01",  # field number 0
        b"\x05\x01\x01\x01\x01",
    ],
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(DamagedError):
        _walked([content])
    with pytest.raises(DamagedError):
        _walked([message({1: 1, 300: 2}), content])


def test_a_message_of_endless_fields_is_refused() -> None:
    with pytest.raises(DamagedError, match="far too many"):
        _walked([message({2: list(range(2_000))})])


_EVENTS = st.builds(
    lambda kind, rest: message({1: kind}) + rest,
    st.integers(0, 300),
    st.one_of(st.binary(max_size=12), st.lists(st.sampled_from([b"\x0a", b"\x08", b"\x02", b"\x03"])).map(b"".join)),
)


@given(st.lists(_EVENTS, max_size=40), st.binary(max_size=3))
def test_a_list_is_cut_where_its_lengths_say(events: list[bytes], before: bytes) -> None:
    content = b"".join(bytes_field(1, one) for one in events)
    source = Bytes(before + content + b"\x0a\x02\x08\x01")
    starts, ends = runs(source, len(before), len(before) + len(content), tag(1))
    assert [source.data[a:b] for a, b in zip(starts, ends, strict=True)] == events


@given(st.lists(_EVENTS, min_size=1, max_size=8), st.data())
def test_a_list_whose_lengths_lead_elsewhere_is_refused(events: list[bytes], data: st.DataObject) -> None:
    content = bytearray(b"".join(bytes_field(1, one) for one in events))
    cut = data.draw(st.integers(1, len(content) - 1))
    whole = np.cumsum([len(bytes_field(1, one)) for one in events])
    if cut in whole:
        return
    with pytest.raises(DamagedError):
        runs(Bytes(content), 0, cut, tag(1))


def test_fields_one_by_one_agree_with_the_bulk() -> None:
    content = message({1: -5, 7: b"text", 300: 2**40})
    assert list(wire.fields(content, 0, len(content))) == [
        (tag(1), 2**64 - 5, 0),
        (tag(7, BYTES), 13, 17),
        (tag(300), 2**40, 0),
    ]
