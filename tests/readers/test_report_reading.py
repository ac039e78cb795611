"""Reports of Nsight Systems read without any software of NVIDIA: hand-made ones, whole and damaged."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers import nsys_reports as made
from tests.readers.nsys_reports import (
    block,
    bytes_field,
    call,
    event,
    framed,
    kernel,
    message,
    packed,
    small_report,
    varint,
)
from warplens.errors import UnreadableInputError
from warplens.profile import Trace
from warplens.readers.nsys.report import read_nsys_report
from warplens.readers.nsys.report_container import NotUnderstoodError
from warplens.readers.nsys.report_wire import Bytes, DamagedError, runs, tag, walk
from warplens.readers.opening import Input, ReadOptions
from warplens.wire import BYTES, Message

#: What reading one may take beside its own size: blocks unpacked ahead, arrays of a batch.
_BYTES = 200 * 2**20


def _read(tmp_path: Path, content: bytes) -> Trace:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(content)
    return read_nsys_report(Input(path, path), ReadOptions())


def test_launches_kernels_copies_and_ranges_come_out_as_they_went_in(tmp_path):
    trace = _read(tmp_path, small_report())
    assert trace.kernels["start_ns"].to_list() == [1_030 + 100 * n for n in range(10)]
    assert trace.kernels.select("device", "stream", "process", "block_x", "static_shared_bytes").row(0) == (
        0, 7, 1018, 128, 1_024,
    )  # fmt: skip
    assert trace.kernels["full_name"].unique().to_list() == ["gemm<float>(int)"]
    assert trace.kernels["name"].unique().to_list() == ["gemm"]
    assert trace.api_calls["name"].unique().to_list() == ["cudaLaunchKernel"]
    assert trace.api_calls["return_value"].to_list() == [0] * 10 + [-1]
    assert trace.copies.select("bytes", "direction", "source_memory", "destination_memory").rows() == [
        (4_096, "host-to-device", "pageable", "device")
    ]
    ranges = trace.ranges.select("name", "start_ns", "end_ns", "domain", "depth").rows()
    assert ranges == [("step", 900, 2_200, 0, 0), ("open", 950, 2_200, 0, 1), ("registered", 1_000, 1_500, 1, 2)]
    assert trace.capture.window_ns == (900, 2_200)
    assert [device.name for device in trace.capture.devices] == ["NVIDIA H200"]
    assert (trace.capture.format, trace.capture.tool_version) == ("nsys-rep", "2025.3.1.0")


def test_columns_of_the_launch_configuration_can_be_left_out(tmp_path):
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(small_report())
    trace = read_nsys_report(Input(path, path), ReadOptions(launch_configuration=False))
    assert trace.kernels["grid_x"].null_count() == trace.kernels.height == 10
    assert trace.kernels["name"].unique().to_list() == ["gemm"]


def test_event_types_that_are_not_known_are_counted_and_named(tmp_path):
    events = [kernel(10, 20, 1), event(152, 120, {1: 5}), event(152, 120, {1: 6}), event(999, 121, {1: 5})]
    trace = _read(tmp_path, small_report(blocks=[block(events)], events=4))
    (note,) = [note for note in trace.capture.notes if note.code == "unread-events"]
    assert note.text == "3 events are of kinds that this reader does not know: CudaApi, type 999."


@pytest.mark.parametrize(
    ("version", "noted"),
    [(b"2026.2.1.210-26", False), (b"2027.1.1.5-27", True), (b"?", False), (b"2026." + b"1" * 9_000, True)],
)
def test_a_report_of_a_newer_nsys_is_noted(tmp_path, version, noted):
    trace = _read(tmp_path, small_report(origin=message({6: version})))
    assert ("untested-report" in {note.code for note in trace.capture.notes}) is noted


def test_events_stored_otherwise_than_known_are_counted(tmp_path):
    events = [
        kernel(10, 20, 1),
        message({1: 79, 107: 5}),
        event(80, 107, {1: 5, 2: 6, 109: b""}),
        call(1, 2, 3, 4, kind=26),
    ]
    trace = _read(tmp_path, small_report(blocks=[block(events)], events=4))
    (note,) = [note for note in trace.capture.notes if note.code == "unread-events"]
    assert note.text.endswith("does not know: TraceFunctions, CudaDeviceKernel, CudaDeviceMemory.")


def test_names_beyond_the_strings_are_shown_by_number(tmp_path):
    trace = _read(tmp_path, small_report(strings=[b"x"] * 3))
    assert "unnamed-events" in {note.code for note in trace.capture.notes}
    assert trace.api_calls["name"].unique().to_list() == ["unnamed (4)"]


def test_types_that_no_table_is_made_of_are_passed_over(tmp_path):
    events = [kernel(10, 20, 1), event(27, 113, {1: 5, 6: b"python"}), event(41, 106, {1: 5})]
    trace = _read(tmp_path, small_report(blocks=[block(events)], events=3))
    assert "unread-events" not in {note.code for note in trace.capture.notes}


def test_marks_alone_show_that_ranges_were_recorded(tmp_path):
    events = [kernel(10, 20, 1), event(34, 102, {1: 34, 2: 15, 7: b"a mark", 9: made.THREAD})]
    trace = _read(tmp_path, small_report(blocks=[block(events)], events=2))
    assert trace.ranges.height == 0
    assert {"kernels", "ranges"} == trace.capture.recorded


def test_samples_of_gpu_metrics_behind_the_events_are_passed_over(tmp_path):
    launched = [call(1_000, 1_010, 1, 4), kernel(1_030, 1_090, 1)]
    samples = b"".join(bytes_field(2, message({1: 5, 2: n, 3: bytes([n % 256] * 40)})) for n in range(300))
    mixed = packed(framed(b"".join(bytes_field(1, one) for one in launched) + samples))
    alone, cut = packed(framed(samples)), packed(framed(samples[:-1]))
    strings = made.STRINGS
    trace = _read(tmp_path, made.report([mixed, alone, block(launched)], 4, strings))
    assert trace.kernels["start_ns"].to_list() == [1_030, 1_030]
    assert trace.api_calls.height == 2
    with pytest.raises(UnreadableInputError, match="damaged"):
        _read(tmp_path, made.report([mixed, cut], 2, strings))


def test_a_report_without_events_says_so(tmp_path):
    trace = _read(tmp_path, small_report(blocks=[], events=0))
    assert [note.code for note in trace.capture.notes] == ["no-cuda-data"]
    assert trace.capture.window_ns == (0, 4_000)


def test_environment_and_command_line_never_leave_the_report(tmp_path):
    secret = b"SECRET_OF_THE_USER"
    content = small_report(
        target=message({1: {2: {1: [{1: 610, 2: secret}, {1: 619, 2: secret}]}}, 2: secret, 17: 1, 18: 2}),
        options=message({9: secret, 26: {10: secret, 11: [secret], 12: secret, 21: 1, 30: {1: secret}}}),
        origin=message({5: secret, 6: b"2025.3.1.0", 23: secret, 25: secret}),
        strings=(*made.STRINGS, secret),
        blocks=[block([*made.small_events(), event(49, 110, {2: 1, 3: 3, 4: secret, 5: made.PROCESS})])],
        events=len(made.small_events()) + 1,
    )
    trace = _read(tmp_path, content)
    shown = str(trace.capture) + "".join(str(getattr(trace, name).to_dicts()) for name in ("kernels", "api_calls"))
    assert secret.decode() not in shown


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (small_report()[:-1], "the report is cut off"),
        (small_report()[:300], "the report is cut off"),
        (made.report([], 0)[:44], "the report is cut off"),
        (small_report(events=24), "it says to hold 24 events, but holds another number"),
        (small_report(events=26), "it says to hold 26 events, but holds another number"),
        (small_report(blocks=[packed(framed(b"\x0a\x05\x08\x01"))]), "found a list that does not begin with a message"),
        (small_report(blocks=[packed(b"\x05\x0a\x02\x08\x01")]), "the length of a block's message"),
        (small_report(blocks=[varint(3) + varint(50) + b"abc"]), "a block cannot be decompressed"),
        (small_report(blocks=[varint(10**6) + varint(50) + b"abc"]), "a block is longer than what is left of it"),
        (small_report(blocks=[varint(5) + varint(2**62) + b"\0" * 5]), "a block claims to hold 4,611,686,018,427"),
        (small_report(blocks=[varint(5) + b"\xff" * 12]), "found a number that does not end"),
        (small_report(blocks=[block([event(79, 107, {1: 5, 2: 6, 101: b"\x0b"})])], events=1), "the unknown kind 3"),
        (small_report(blocks=[block([event(48, 108, {1: 5, 2: 6, 6: 0, 13: 7})])], events=1), "lacks values"),
        (small_report(tail=b"\x0a\x50"), "found a field that reaches beyond its message"),
    ],
)
def test_a_damaged_report_is_refused_in_one_line(tmp_path, content, found):
    with pytest.raises(UnreadableInputError) as caught:
        _read(tmp_path, content)
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (small_report(compression=b"zstd"), "compressed in an unknown way"),
        (small_report().replace(b"QDTEXT00", b"QDTEXT01"), "stored in an unknown way"),
        (small_report().replace(b"Raw Sampling Data", b"Raw Sampling Date"), "no section Raw Sampling Data"),
    ],
)
def test_a_report_of_another_kind_is_told_from_a_damaged_one(tmp_path, content, found):
    with pytest.raises(NotUnderstoodError, match=found):
        _read(tmp_path, content)


def test_blocks_that_unpack_to_far_more_than_a_report_holds_are_refused(tmp_path):
    bomb = packed(framed(made.bytes_field(1, message({1: 27, 113: bytes(2**25)}))))
    assert len(bomb) < 2**18
    content = small_report(blocks=[bomb] * 40, events=40)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableInputError, match="a block claims to hold"):
            _read(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 2 * _BYTES
    finally:
        tracemalloc.stop()


def test_deep_nesting_costs_nothing(tmp_path):
    deep = b""
    for _ in range(5_000):
        deep = made.bytes_field(101, deep)
    content = small_report(blocks=[block([kernel(10, 20, 1), event(27, 113, {1: 1, 7: deep})])], events=2)
    assert _read(tmp_path, content).kernels.height == 1


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
def test_every_field_of_every_message_is_found(contents):
    ordered = [dict(sorted(content.items())) for content in contents]
    wanted = [{n: v for n, v in content.items() if n not in (5, 200)} for content in ordered]
    assert _walked([message(content) for content in ordered]) == wanted


def test_of_a_repeated_field_the_last_value_counts():
    assert _walked([message({1: [4, 5], 2: 1}), message({1: 6})]) == [{1: 5, 2: 1}, {1: 6}]


def test_numbers_written_longer_than_needed_mean_the_same():
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
def test_what_is_no_message_is_refused(content):
    with pytest.raises(DamagedError):
        _walked([content])
    with pytest.raises(DamagedError):
        _walked([message({1: 1, 300: 2}), content])


def test_a_message_of_endless_fields_is_refused():
    with pytest.raises(DamagedError, match="far too many"):
        _walked([message({2: list(range(2_000))})])


_EVENTS = st.builds(
    lambda kind, rest: message({1: kind}) + rest,
    st.integers(0, 300),
    st.one_of(st.binary(max_size=12), st.lists(st.sampled_from([b"\x0a", b"\x08", b"\x02", b"\x03"])).map(b"".join)),
)


@given(st.lists(_EVENTS, max_size=40), st.binary(max_size=3))
def test_a_list_is_cut_where_its_lengths_say(events, before):
    content = b"".join(bytes_field(1, one) for one in events)
    source = Bytes(before + content + b"\x0a\x02\x08\x01")
    starts, ends = runs(source, len(before), len(before) + len(content), tag(1))
    assert [source.data[a:b] for a, b in zip(starts, ends, strict=True)] == events


@given(st.lists(_EVENTS, min_size=1, max_size=8), st.data())
def test_a_list_whose_lengths_lead_elsewhere_is_refused(events, data):
    content = bytearray(b"".join(bytes_field(1, one) for one in events))
    cut = data.draw(st.integers(1, len(content) - 1))
    whole = np.cumsum([len(bytes_field(1, one)) for one in events])
    if cut in whole:
        return
    with pytest.raises(DamagedError):
        runs(Bytes(content), 0, cut, tag(1))


def test_fields_one_by_one_agree_with_the_bulk():
    content = message({1: -5, 7: b"text", 300: 2**40})
    one = Message(content, 0, len(content))
    assert (one.integer(1), one.text(7), one.integer(300)) == (2**64 - 5, "text", 2**40)
