from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from tests import shipped
from tests.analysis.builders import copy, kernel, launch, nvtx, trace
from tests.export.reading import play
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError
from warplens.export.perfetto import write_perfetto
from warplens.export.tables import trace_tables, write_tables
from warplens.profile.trace import TABLES
from warplens.readers import read
from warplens.wire import fixed64s, messages, padded_varints
from warplens.wire import wire_varint as varint

CAPTURES = shipped.files("captures", "*.sqlite*")


def _written(made: object, folder: Path) -> Path:
    target = folder / "out.perfetto-trace"
    write_perfetto(Timeline(made), target)
    return target


def test_a_kernel_keeps_its_times_name_and_launch_configuration(tmp_path):
    made = trace(kernels=[kernel(100, 250, "gemm", grid=(4, 2, 1), correlation=9)], api=[launch(10, 20, correlation=9)])
    (drawn,) = [item for item in play(_written(made, tmp_path)).slices if item.track.startswith("GPU")]
    assert (drawn.name, drawn.start_ns, drawn.end_ns) == ("gemm", 100, 250)
    assert {"grid_x": 4, "grid_y": 2, "block_x": 128, "registers_per_thread": 32}.items() <= dict(
        drawn.arguments
    ).items()


def test_an_arrow_leads_from_the_call_to_its_kernel(tmp_path):
    made = trace(
        kernels=[kernel(100, 250, "a", correlation=1), kernel(250, 300, "b", correlation=2)],
        api=[launch(10, 20, correlation=1), launch(30, 40, correlation=2)],
    )
    slices = play(_written(made, tmp_path)).slices
    starts = {flow: item.start_ns for item in slices for flow in item.flows}
    ends = {flow: item.name for item in slices for flow in item.ends_flows}
    assert {ends[flow]: begin for flow, begin in starts.items()} == {"a": 10, "b": 30}


def test_kernels_that_overlap_on_a_stream_stand_on_lanes_of_it(tmp_path):
    made = trace(kernels=[kernel(0, 100, "a"), kernel(90, 120, "b"), kernel(110, 130, "c"), kernel(120, 140, "d")])
    tracks = {item.name: item.track.split("/")[-1] for item in play(_written(made, tmp_path)).slices}
    assert tracks == {"a": "stream 7", "b": "stream 7 (2)", "c": "stream 7", "d": "stream 7 (2)"}


def test_ranges_that_cross_stand_on_lanes_and_nested_ones_do_not(tmp_path):
    made = trace(ranges=[nvtx(0, 100, "outer"), nvtx(10, 50, "inner"), nvtx(40, 120, "crossing")])
    tracks = {item.name: item.track.split("/")[-1] for item in play(_written(made, tmp_path)).slices}
    assert tracks == {"outer": "ranges", "inner": "ranges", "crossing": "ranges (2)"}


def test_slices_that_touch_and_slices_of_no_length_keep_their_order(tmp_path):
    ranges = [nvtx(0, 50, "first"), nvtx(50, 50, "instant"), nvtx(50, 90, "second"), nvtx(50, 60, "inside")]
    drawn = {item.name: (item.start_ns, item.end_ns) for item in play(_written(trace(ranges=ranges), tmp_path)).slices}
    assert drawn == {"first": (0, 50), "instant": (50, 50), "second": (50, 90), "inside": (50, 60)}


def test_times_before_the_profiles_zero_are_moved_together(tmp_path):
    made = trace(kernels=[kernel(-30, -10, "early"), kernel(5, 9, "late")])
    drawn = {item.name: (item.start_ns, item.end_ns) for item in play(_written(made, tmp_path)).slices}
    assert drawn == {"early": (0, 20), "late": (35, 39)}


def test_a_profile_without_anything_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing to draw"):
        _written(trace(kernels=[]), tmp_path)


_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=25)


@given(ranges=_SPANS, kernels=_SPANS)
def test_every_slice_comes_back_however_they_lie(tmp_path_factory, ranges, kernels):
    made = trace(
        kernels=[kernel(start, start + length, f"k{length}", stream=stream) for start, length, stream in kernels],
        ranges=[nvtx(start, start + length, f"r{length}", thread=thread) for start, length, thread in ranges],
    )
    drawn = play(_written(made, tmp_path_factory.mktemp("perfetto"))).slices
    expected = Counter((f"k{length}", start, start + length) for start, length, _ in kernels)
    expected += Counter((f"r{length}", start, start + length) for start, length, _ in ranges)
    assert Counter((item.name, item.start_ns, item.end_ns) for item in drawn) == expected


@pytest.mark.parametrize("path", CAPTURES[:4], ids=lambda path: path.name)
def test_every_event_of_a_real_capture_comes_back(path, tmp_path):
    made = read(path)
    drawn = play(_written(made, tmp_path)).slices
    on_device = sum(
        (_spans(frame) for frame in (made.kernels, made.copies, made.memsets, made.graph_launches)), Counter()
    )
    assert Counter((item.start_ns, item.end_ns) for item in drawn if item.track.startswith("GPU")) == on_device
    for frame, label in ((made.ranges, "ranges"), (made.api_calls, "CUDA API"), (made.os_calls, "operating system")):
        mine = [item for item in drawn if item.track.split("/")[-1].split(" (")[0] == label]
        assert Counter((item.start_ns, item.end_ns) for item in mine) == _spans(frame)
    assert Counter(item.name for item in drawn if item.track.endswith("CUDA API")) == Counter(
        made.api_calls["name"].cast(pl.String).to_list()
    )


def _spans(frame: pl.DataFrame) -> Counter[tuple[int, int]]:
    return Counter(frame.select("start_ns", "end_ns").rows())


def test_copies_say_their_direction_and_bytes(tmp_path):
    (drawn,) = play(_written(trace(copies=[copy(5, 9, "device-to-host", 4096)]), tmp_path)).slices
    assert drawn.name == "copy device-to-host"
    assert dict(drawn.arguments)["bytes"] == 4096


def test_work_in_a_gpus_queues_is_a_counter(tmp_path):
    """Two launched before the first starts; the third starts while its call still runs, and never waits."""
    made = trace(
        kernels=[kernel(30, 50, "a", correlation=1), kernel(50, 60, "b", correlation=2),
                 kernel(95, 99, "c", correlation=3), kernel(50, 60, "of no call", device=1)],
        api=[launch(0, 10, correlation=1), launch(12, 20, correlation=2), launch(90, 97, correlation=3)],
    )  # fmt: skip
    counters = play(_written(made, tmp_path)).counters
    assert counters == {"GPU 0 work in its queues": [(10, 1), (20, 2), (30, 1), (50, 0), (95, 0)]}


def test_copies_under_way_add_up_to_a_rate_of_their_direction(tmp_path):
    to_host = [copy(0, 100, "device-to-host", 1000), copy(50, 150, "device-to-host", 2000, stream=8)]
    made = trace(copies=[*to_host, copy(20, 20, "host-to-device", 64), copy(10, 20, "host-to-device", 640)])
    counters = play(_written(made, tmp_path)).counters
    assert counters == {
        "GPU 0 copies device-to-host": [(0, 10**10), (50, 3 * 10**10), (100, 2 * 10**10), (150, 0)],
        "GPU 0 copies host-to-device": [(10, 64 * 10**9), (20, 0)],
    }


@pytest.mark.parametrize("path", CAPTURES[:2], ids=lambda path: path.name)
def test_work_in_queues_is_what_was_launched_and_had_not_started(path, tmp_path):
    made = read(path)
    work = Timeline(made).work.drop_nulls("launch_end_ns")
    levels = play(_written(made, tmp_path)).counters["GPU 0 work in its queues"]
    for time, level in levels[:: len(levels) // 50]:
        launched = pl.min_horizontal("launch_end_ns", "start_ns") <= time
        assert level == work.filter(launched & (pl.col("start_ns") > time)).height


def test_the_memory_of_a_gpu_is_a_counter(tmp_path):
    made = trace(kernels=[kernel(0, 10)])
    levels = pl.DataFrame(
        {
            "time_ns": [1, 4, 9],
            "process": 1,
            "thread": 1,
            "device": 0,
            "address": [100, 200, 100],
            "delta_bytes": [512, 512, -512],
            "allocated_bytes": [512, 1024, 512],
            "reserved_bytes": [2048, 2048, 2048],
        },
        schema={column.name: column.dtype for column in TABLES["allocations"].columns},
    )
    counters = play(_written(replace(made, allocations=levels), tmp_path)).counters
    assert counters["GPU 0 memory allocated"] == [(1, 512), (4, 1024), (9, 512)]
    assert counters["GPU 0 memory reserved"] == [(1, 2048), (4, 2048), (9, 2048)]


@given(st.integers(0, 2**63 - 1))
def test_a_varint_is_what_protobuf_writes(value):
    packet = schema.TracePacket()
    packet.timestamp = value
    assert b"\x40" + varint(value) == packet.SerializeToString()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_padded_numbers_are_read_as_the_same_numbers(values):
    rows = messages(4, len(values), [padded_varints(4, np.array(values), 10)])
    for row, value in zip(rows, values, strict=True):
        event = schema.TrackEvent()
        event.ParseFromString(row.tobytes())
        assert [note.int_value for note in event.debug_annotations] == [value]


def test_fixed_numbers_are_read_as_the_same_numbers():
    values = np.array([0, 1, 2**62], dtype=np.int64)
    found = []
    for row in fixed64s(47, values):
        event = schema.TrackEvent()
        event.ParseFromString(row.tobytes())
        found.extend(event.flow_ids)
    assert found == values.tolist()


@pytest.mark.parametrize("value", [-1, 1 << 35])
def test_a_number_that_does_not_fit_is_refused(value):
    with pytest.raises(ValueError, match="do not fit"):
        padded_varints(1, np.array([value]), 5)


CAPTURE = next((Path(__file__).parents[2] / "src/warplens/data/captures").glob("lm_small_ctx256*.sqlite*"))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_every_number_comes_back(form, tmp_path):
    timeline = Timeline(read(CAPTURE))
    tables = trace_tables(timeline)
    write_tables(tables, timeline.trace.capture, tmp_path, form)
    for name, frame in tables.items():
        again = pl.read_parquet(tmp_path / f"{name}.parquet") if form == "parquet" else _csv(tmp_path / f"{name}.csv")
        for column in frame.columns:
            wanted = frame[column].cast(pl.String).to_list()
            assert again[column].cast(pl.String).to_list() == wanted, f"{name}.{column}"


def _csv(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def test_work_names_the_range_that_issued_it(tmp_path):
    work = trace_tables(Timeline(read(CAPTURE)))["work"]
    assert work.filter(pl.col("range").is_not_null() != pl.col("range_name").is_not_null()).height == 0
    assert work["range_name"].drop_nulls().len() > 0


def test_the_capture_says_where_the_tables_come_from(tmp_path):
    timeline = Timeline(read(CAPTURE))
    write_tables({}, timeline.trace.capture, tmp_path, "csv")
    facts = orjson.loads((tmp_path / "capture.json").read_bytes())
    assert facts["source"] == CAPTURE.name
    assert facts["devices"][0]["name"] == "NVIDIA H200"
