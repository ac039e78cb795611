"""What changed between schema versions, and values that break naive readers; on exports in miniature."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tests.readers.exports import (
    CALLS,
    COPIES,
    KERNELS,
    NONE,
    PROCESS,
    SECRET,
    THREAD,
    WAITS,
    Export,
    global_pid,
    global_tid,
)
from warplens.errors import UnreadableInputError
from warplens.profile import Trace
from warplens.readers import read
from warplens.readers.nsys.texts import Strings


def _texts(series: pl.Series) -> list[str | None]:
    return series.cast(pl.String).to_list()


def _trace_of(export: Export, path: Path) -> Trace:
    return read(export.write(path))


def test_process_and_thread_are_cut_out_of_the_global_ids(export, path):
    export.call(0, 5)
    export.kernel(10, 20)
    trace = _trace_of(export, path)
    assert trace.api_calls.select("process", "thread").row(0) == (PROCESS, THREAD)
    assert trace.kernels["process"].to_list() == [PROCESS]


def test_work_without_a_process_belongs_to_the_only_process_that_made_calls(export, path):
    export.call(0, 5)
    export.kernel(10, 20)
    del export.tables[KERNELS][0]["globalPid"]
    assert _trace_of(export, path).kernels["process"].to_list() == [PROCESS]


def test_with_calls_of_two_processes_it_belongs_to_none_of_them(export, path):
    export.call(0, 5)
    export.call(0, 5, globalTid=global_tid(process=99))
    export.kernel(10, 20, globalPid=None)
    assert _trace_of(export, path).kernels["process"].to_list() == [0]


def test_the_smallest_schema_is_enough(export, path):
    name = export.string("gemm")
    export.row(KERNELS, start=1, end=2, shortName=name)
    kernels = _trace_of(export, path).kernels
    assert kernels.select("start_ns", "end_ns", "device", "stream", "process").row(0) == (1, 2, 0, 0, 0)
    assert _texts(kernels["full_name"]) == ["gemm"]
    assert kernels["correlation"].to_list() == kernels["grid_x"].to_list() == kernels["graph_node"].to_list() == [None]


def test_a_table_without_what_every_version_writes_is_refused_by_name(export, path):
    export.row(KERNELS, start=1, end=2)
    with pytest.raises(
        UnreadableInputError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column shortName or demangledName"
    ):
        _trace_of(export, path)


def test_api_names_may_stand_in_the_table_itself(export, path):
    export.row(CALLS, start=0, end=5, globalTid=global_tid(), correlationId=1, name="cudaMalloc")
    assert _texts(_trace_of(export, path).api_calls["name"]) == ["cudaMalloc"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cudaGetDeviceProperties_v2_v12000", "cudaGetDeviceProperties_v2"),
        ("cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2"),
        ("cuLaunchKernel", "cuLaunchKernel"),
    ],
)
def test_the_version_that_nsys_appends_is_not_part_of_a_functions_name(export, path, written, shown):
    export.call(0, 5, written)
    assert _texts(_trace_of(export, path).api_calls["name"]) == [shown]


def test_strings_end_at_a_nul_and_bad_bytes_are_replaced(export, path):
    for number, name in enumerate(("gemm\x00garbage", b"kernel_\xc4\xd6", "fine")):
        export.call(number, number, name, correlation=number)
    trace = _trace_of(export, path)
    assert _texts(trace.api_calls["name"]) == ["gemm", "kernel_��", "fine"]
    assert [note.code for note in trace.capture.notes if note.level == "info"] == ["undecodable-names"]


def test_a_name_that_the_export_does_not_hold_is_shown_by_its_number(export, path):
    export.call(0, 5, nameId=4711)
    trace = _trace_of(export, path)
    assert _texts(trace.api_calls["name"]) == ["unnamed (4711)"]
    assert "unnamed-events" in [note.code for note in trace.capture.notes]


def test_a_name_whose_id_has_two_texts_is_not_known():
    rows = [(1, b"gemm"), (2, b"relu"), (2, b"other"), (3, b"copy"), (3, b"copy")]
    strings = Strings(SimpleNamespace(tables={"StringIds": ("id", "value")}, rows=lambda _: rows), np.arange(1, 4))
    assert [strings[number] for number in (1, 2, 3)] == ["gemm", "unnamed (2)", "copy"]


def test_ids_of_strings_may_be_large_and_far_apart(export, path):
    for number, name in ((3, "near"), (2**40, "far")):
        export.row("StringIds", id=1000 + number, value=name)
        export.call(0, 5, nameId=1000 + number)
    assert _texts(_trace_of(export, path).api_calls["name"]) == ["near", "far"]


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA"])
def test_versions_are_found_under_both_names_of_the_table(export, path, table):
    export.row(table, name="EXPORT_PRODUCT_VERSION", value="2022.1.1.61")
    export.row(table, name="EXPORT_SCHEMA_VERSION", value="2.9.1")
    capture = _trace_of(export, path).capture
    assert (capture.tool, capture.tool_version, capture.schema_version) == ("Nsight Systems", "2022.1.1.61", "2.9.1")


def test_an_export_without_that_table_has_no_version(path):
    capture = _trace_of(Export(), path).capture
    assert (capture.tool_version, capture.schema_version) == (None, None)


def test_an_empty_table_is_recorded_and_an_absent_one_is_not(export, path):
    export.empty(KERNELS, "start", "end", "shortName")
    trace = _trace_of(export, path)
    assert trace.capture.recorded == {"kernels"}
    assert trace.kernels.height == trace.copies.height == 0


@pytest.mark.parametrize(
    ("kind", "direction"),
    [(1, "host-to-device"), (2, "device-to-host"), (8, "device-to-device"), (10, "peer-to-peer"), (99, "unknown")],
)
def test_directions_are_known_without_the_exports_own_table(export, path, kind, direction):
    export.copy(0, 5, kind)
    assert _texts(_trace_of(export, path).copies["direction"]) == [direction]


def test_the_exports_own_table_of_kinds_goes_first(export, path):
    export.copy(0, 5, 20, srcKind=4, dstKind=5)
    export.row("ENUM_CUDA_MEMCPY_OPER", id=20, name="CUDA_MEMCPY_KIND_NEW", label="Somewhere to Somewhere")
    copies = _trace_of(export, path).copies
    assert _texts(copies["direction"]) == ["somewhere-to-somewhere"]
    assert _texts(copies["source_memory"]) == ["managed"]
    assert _texts(copies["destination_memory"]) == ["device-static"]


def test_what_the_file_does_not_say_about_memory_is_null(export, path):
    export.copy(0, 5)
    for column in ("srcKind", "dstKind"):
        del export.tables[COPIES][0][column]
    copies = _trace_of(export, path).copies
    assert _texts(copies["source_memory"]) == _texts(copies["destination_memory"]) == [None]


@pytest.mark.parametrize(
    ("stream", "event", "kind"),
    [(NONE, NONE, "context"), (7, NONE, "stream"), (NONE, 3, "event"), (7, 3, "stream-wait-event")],
)
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_the_kind_of_a_wait_is_what_it_names_whatever_its_number(export, path, stream, event, kind, number):
    row = {"deviceId": 0, "globalPid": global_pid(), "correlationId": 1}
    export.row(WAITS, start=0, end=5, streamId=stream, eventId=event, syncType=number, **row)
    waits = _trace_of(export, path).synchronizations
    assert _texts(waits["kind"]) == [kind]
    assert waits["stream"].to_list() == [None if stream == NONE else stream]


def test_memory_grows_by_allocations_and_shrinks_by_releases(export, path):
    table = "CUDA_GPU_MEMORY_USAGE_EVENTS"
    for operation in (0, 1):
        row = {"globalPid": global_pid(), "deviceId": 0, "address": 4096, "bytes": 100, "memKind": 2}
        export.row(table, start=operation, memoryOperationType=operation, **row)
    assert _trace_of(export, path).memory["delta_bytes"].to_list() == [100, -100]


def test_overhead_is_the_profilers_own_and_shows_no_path(export, path):
    for name in ("Buffer flush", "dlopen(libcuda.so.1)", "dlopen(/home/someone/secret.so)"):
        export.row("PROFILER_OVERHEAD", start=0, end=5, globalTid=global_tid(), nameId=export.string(name))
    for kind, name in ((3, "CUPTI Buffer flush"), (7, "Lazy Function Loading")):
        row = {"globalTid": global_tid(), "nameId": export.string(name), "overheadType": kind}
        export.row("CUPTI_ACTIVITY_KIND_OVERHEAD", start=0, end=5, **row)
    names = _texts(_trace_of(export, path).profiler_overhead["name"])
    assert names == ["Buffer flush", "dlopen(libcuda.so.1)", "dlopen", "CUPTI Buffer flush"]


def test_graph_executions_are_launches_of_graphs(export, path):
    row = {"deviceId": 0, "streamId": 7, "globalPid": global_pid(), "correlationId": 1, "graphId": 5, "graphExecId": 6}
    export.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=0, end=5, **row)
    assert _trace_of(export, path).graph_launches.select("graph", "graph_exec").row(0) == (5, 6)


def test_no_stream_is_minus_one_and_not_four_billion(export, path):
    export.kernel(10, 20, streamId=NONE)
    assert _trace_of(export, path).kernels["stream"].to_list() == [-1]


def test_foreign_adapters_are_no_devices(export, path):
    export.gpu(0, "NVIDIA H200")
    export.gpu(1, "Intel(R) Iris(R) Xe Graphics", cuDevice=0, smCount=0, computeMajor=0)
    export.gpu(2, "Microsoft Basic Render Driver", cuDevice=0, smCount=0, computeMajor=0)
    export.kernel(10, 20)
    devices = _trace_of(export, path).capture.devices
    assert [(device.ordinal, device.name) for device in devices] == [(0, "NVIDIA H200")]


def test_an_ordinal_is_translated_as_its_process_sees_it(export, path):
    export.gpu(0, "NVIDIA T4")
    export.gpu(1, "NVIDIA H200")
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=PROCESS)  # CUDA_VISIBLE_DEVICES=1
    export.kernel(10, 20)
    assert [device.name for device in _trace_of(export, path).capture.devices] == ["NVIDIA H200"]


def test_two_models_under_one_ordinal_are_said(export, path):
    export.gpu(0, "NVIDIA T4")
    export.gpu(1, "NVIDIA H200")
    for process in (PROCESS, 99):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=int(process == 99), cudaId=0, pid=process)
        export.kernel(10, 20, globalPid=global_pid(process))
    capture = _trace_of(export, path).capture
    assert [device.name for device in capture.devices] == ["NVIDIA T4"]
    assert "ambiguous-devices" in [note.code for note in capture.notes]


def test_a_limit_of_zero_is_unknown(export, path):
    export.gpu(0, "NVIDIA H200", maxBlocksPerSm=0, maxWarpsPerSm=64)
    (device,) = _trace_of(export, path).capture.devices
    assert (device.max_blocks_per_sm, device.max_warps_per_sm) == (None, 64)


def test_the_window_spans_all_events_and_not_the_session(export, path):
    export.row("ANALYSIS_DETAILS", globalVid=1, duration=10**12, startTime=5, stopTime=10**12 + 5)
    export.call(100, 105)
    export.kernel(110, 220)
    export.range(90, 200)
    assert _trace_of(export, path).capture.window_ns == (90, 220)


def test_without_events_the_session_is_the_window(export, path):
    export.row("ANALYSIS_DETAILS", globalVid=1, duration=10**9, startTime=5, stopTime=10**9 + 5)
    assert _trace_of(export, path).capture.window_ns == (0, 10**9)


@pytest.mark.parametrize(("start", "end"), [(30, 25), (30, 2**63 - 1), (2**62, 2**62 + 5), (-(2**63), 5)])
def test_events_of_impossible_times_are_left_out_and_counted(export, path, start, end):
    export.gpu(0, "NVIDIA H200")
    export.call(0, 5)
    export.kernel(10, 20)
    export.kernel(start, end, correlation=2)
    export.range(0, 30)
    trace = _trace_of(export, path)
    assert trace.kernels["start_ns"].to_list() == [10]
    (note,) = trace.capture.notes
    assert (note.code, note.level) == ("invalid-times", "blocking")  # it is half of the GPU work
    assert note.text.startswith("1 event was left out")


@pytest.mark.parametrize("value", ["text", 1.5, b"\xff"])
@pytest.mark.parametrize("rows_before", [0, 70_000])
def test_other_values_than_whole_numbers_are_refused_wherever_they_stand(export, path, value, rows_before):
    name = export.string("gemm")
    export.tables[KERNELS] = [{"start": 0, "end": 1, "shortName": name, "gridX": None}] * rows_before
    export.row(KERNELS, start=0, end=1, shortName=name, gridX=value)
    with pytest.raises(
        UnreadableInputError, match=r"column .*of its table \w*KERNEL holds other values than the whole numbers"
    ):
        _trace_of(export, path)


def test_a_column_of_nulls_may_still_hold_numbers_further_down(export, path):
    name = export.string("gemm")
    export.tables[KERNELS] = [{"start": 0, "end": 1, "shortName": name, "graphNodeId": None}] * 70_000
    export.row(KERNELS, start=0, end=1, shortName=name, graphNodeId=9)
    nodes = _trace_of(export, path).kernels["graph_node"]
    assert nodes.null_count() == 70_000
    assert nodes[-1] == 9


def test_numbers_beyond_what_they_count_are_refused(export, path):
    export.kernel(10, 20, gridX=2**40)
    with pytest.raises(UnreadableInputError, match="CUPTI_ACTIVITY_KIND_KERNEL holds numbers too large"):
        _trace_of(export, path)


def test_the_environment_in_the_strings_is_never_read(export, path):
    export.call(0, 5)
    export.kernel(10, 20)
    export.range(0, 30, None, textId=export.string("step"))
    trace = _trace_of(export, path)
    names = [text for frame in (trace.kernels, trace.api_calls, trace.ranges) for text in _texts(frame["name"])]
    assert names == ["gemm", "cudaLaunchKernel", "step"]
    assert SECRET not in repr(trace.capture)
    assert not any(SECRET in text for frame in (trace.kernels, trace.ranges) for text in frame["name"].dtype.categories)
