from __future__ import annotations

import polars as pl
import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, MAIN_THREAD, call, copy, launch, sync, trace
from warplens.analysis.api import (
    api_kind,
    api_kinds,
    api_statistics,
    bare_name,
    blocking_calls,
    blocks_host,
    polls_device,
    synchronization_statistics,
    waiting_calls,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window

ALL = Window(0, 1_000, "all", "everything")

CALLS = Timeline(
    trace(
        api=[
            launch(0, 10, 1),
            launch(20, 40, 2, thread=AUTOGRAD_THREAD),
            call(50, 120, "cudaStreamSynchronize", 3),
        ]
    )
)


def test_functions_are_ranked_by_their_time():
    statistics = api_statistics(CALLS, ALL)

    assert statistics.select("name", "kind", "calls", "total_ns").rows() == [
        ("cudaStreamSynchronize", "sync", 1, 70),
        ("cudaLaunchKernel", "launch", 2, 30),
    ]
    assert statistics["share"].to_list() == pytest.approx([0.7, 0.3])


def test_a_single_call_has_a_deviation_of_zero_as_nsys_prints_it():
    statistics = api_statistics(CALLS, ALL)

    assert statistics["stdev_ns"].to_list() == [0.0, pytest.approx(50**0.5)]
    assert statistics["median_ns"].to_list() == [70.0, 15.0]


def test_calls_can_be_grouped_by_kind_and_by_thread():
    assert api_statistics(CALLS, ALL, by=("kind",)).select("kind", "calls").rows() == [("sync", 1), ("launch", 2)]
    assert api_statistics(CALLS, ALL, by=("process", "thread")).select("thread", "total_ns").rows() == [
        (MAIN_THREAD, 80),
        (AUTOGRAD_THREAD, 20),
    ]


def test_waits_are_counted_by_kind():
    timeline = Timeline(
        trace(synchronizations=[sync(0, 10, "stream"), sync(20, 50, "stream"), sync(60, 100, "context", stream=None)])
    )

    rows = synchronization_statistics(timeline, ALL).select("kind", "waits", "total_ns", "max_ns", "share").rows()

    assert rows == [("context", 1, 40, 40, 0.5), ("stream", 2, 40, 30, 0.5)]


def test_a_wait_belongs_to_the_thread_of_its_call():
    timeline = Timeline(
        trace(
            api=[
                call(0, 12, "cudaStreamSynchronize", 1),
                call(1, 11, "cudaStreamSynchronize", 1),  # the same wait, recorded by the driver as well
                call(19, 41, "cudaStreamSynchronize", 2, thread=AUTOGRAD_THREAD),
            ],
            synchronizations=[sync(0, 10, correlation=1), sync(20, 40, correlation=2), sync(50, 51, correlation=None)],
        )
    )

    rows = synchronization_statistics(timeline, ALL, by=("kind", "thread")).select("thread", "waits", "total_ns").rows()

    assert rows == [(AUTOGRAD_THREAD, 1, 20), (MAIN_THREAD, 1, 10), (None, 1, 1)]


def test_waits_synchronous_copies_and_copies_of_pageable_memory_hold_the_host():
    timeline = Timeline(
        trace(
            api=[
                call(0, 40, "cudaDeviceSynchronize", 1),
                call(50, 80, "cudaMemcpy", 2),
                call(90, 110, "cudaMemcpyAsync", 3),
                call(120, 125, "cudaMemcpyAsync", 4),
                launch(130, 135, 5),
            ],
            copies=[
                copy(55, 75, correlation=2, source="pageable"),
                copy(95, 105, correlation=3, source="pageable"),
                copy(130, 140, correlation=4, source="pinned"),
            ],
        )
    )

    rows = blocking_calls(timeline, ALL).select("reason", "name", "calls", "total_ns").rows()

    assert rows == [
        ("synchronization", "cudaDeviceSynchronize", 1, 40),
        ("synchronous-copy", "cudaMemcpy", 1, 30),
        ("pageable-copy", "cudaMemcpyAsync", 1, 20),
    ]


def test_a_copy_to_pageable_memory_is_a_wait_and_one_with_the_wait_behind_it():
    calls = [
        call(0, 20, "cudaMemcpyAsync", 1),
        launch(30, 35, 2),
        call(40, 60, "cudaMemcpyAsync", 3),
        call(61, 70, "cudaStreamSynchronize", 4),
        call(80, 90, "cudaMemcpyAsync", 5),
        call(90, 99, "cudaMemcpyAsync", 6),
    ]
    copies = [
        copy(10, 15, "device-to-host", correlation=1, destination="pageable"),
        copy(50, 55, "device-to-host", correlation=3, destination="pageable"),
        copy(85, 88, "device-to-host", correlation=5, destination="pinned"),
        copy(91, 95, correlation=6, source="pageable"),
    ]
    recorded = trace(api=calls, copies=copies)

    waits = waiting_calls(recorded.api_calls, recorded.copies)

    assert waits["correlation"].to_list() == [1, 4]


def test_a_copy_of_another_process_with_the_same_correlation_id_does_not_count():
    timeline = Timeline(
        trace(
            api=[call(0, 20, "cudaMemcpyAsync", 1, process=1), call(0, 30, "cudaMemcpyAsync", 1, process=2)],
            copies=[
                copy(5, 15, correlation=1, process=2, source="pageable"),
                copy(5, 15, correlation=1, source="pinned"),
            ],
        )
    )

    assert blocking_calls(timeline, ALL).select("process", "total_ns").rows() == [(2, 30)]


FAMILIES = {
    "launch": (
        "cudaLaunchKernel cudaLaunchKernel_v7000 cudaLaunchKernel_ptsz_v7000 cudaLaunchKernelExC cuLaunchKernel "
        "cuLaunchKernelEx cudaLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice cuLaunchGridAsync "
        "hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel hipHccModuleLaunchKernel"
    ),
    "graph-launch": "cudaGraphLaunch cudaGraphLaunch_v10000 cuGraphLaunch hipGraphLaunch",
    "copy": (
        "cudaMemcpy cudaMemcpyAsync_v3020 cudaMemcpy2DAsync cudaMemcpyPeerAsync cudaMemcpyToSymbol cuMemcpyHtoD_v2 "
        "cuMemcpyDtoHAsync_v2 cudaMemcpyBatchAsync cudaMemPrefetchAsync cuMemPrefetchAsync_v2 hipMemcpyWithStream"
    ),
    "memset": "cudaMemset cudaMemsetAsync_v3020 cuMemsetD32Async cuMemsetD2D8_v2 hipMemsetAsync",
    "sync": (
        "cudaDeviceSynchronize cudaStreamSynchronize_v3020 cudaEventSynchronize cudaThreadSynchronize "
        "cuCtxSynchronize cuStreamSynchronize cuEventSynchronize hipDeviceSynchronize hipStreamSynchronize"
    ),
    "allocation": (
        "cudaMalloc cudaMallocAsync cudaMallocManaged cudaMallocPitch cudaFree_v3020 cudaFreeAsync cudaFreeHost "
        "cudaHostAlloc cudaHostRegister cudaHostUnregister cuMemAlloc_v2 cuMemFree_v2 cuMemAllocAsync cuMemCreate "
        "cuMemMap cuMemUnmap cuMemAddressReserve cuMemHostAlloc cuMemPoolCreate cudaMemPoolTrimTo cuArrayCreate_v2 "
        "hipMalloc hipFree hipHostMalloc hipHostFree hipExtMallocWithFlags"
    ),
    "event": "cudaEventRecord cudaEventRecordWithFlags cudaEventCreate cudaStreamWaitEvent cuStreamWaitValue32",
    "query": (
        "cudaEventQuery cudaStreamQuery cudaEventElapsedTime cudaGetDevice cudaGetLastError cudaPeekAtLastError "
        "cudaMemGetInfo cuMemGetAllocationGranularity cudaStreamIsCapturing_v10000 cudaStreamGetCaptureInfo_v2_v11030 "
        "cuGetProcAddress_v2 cuKernelGetName cudaOccupancyMaxActiveClusters cuModuleGetLoadingMode cuDeviceTotalMem_v2 "
        "cudaHostGetDevicePointer cudaPointerGetAttributes cudaDeviceGetAttribute"
    ),
    "module": "cuModuleLoadData cuLibraryLoadData cuLibraryGetKernel cuLinkAddData cuModuleUnload hipModuleLoadData",
    "other": (
        "cudaLaunchHostFunc cuLaunchHostFunc cudaGraphAddMemcpyNode cudaGraphInstantiate cudaMemAdvise cuInit "
        "cudaSetDevice cudaStreamCreate cuProfilerStart customLaunchKernel current"
    ),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FAMILIES.items() for name in names.split()])
def test_a_function_belongs_to_its_family(kind, name):
    assert api_kind(name) == kind


def test_a_function_of_a_later_toolkit_falls_into_its_family():
    assert api_kind("cudaLaunchKernelFooBar_v99000") == "launch"
    assert api_kind("cuMemcpyEverywhereAsync") == "copy"


def test_kinds_of_a_column_are_those_of_its_names():
    names = pl.Series(
        ["cudaFree", None, "cudaLaunchKernel", "cudaFree"], dtype=pl.Enum(["cudaLaunchKernel", "cudaFree"])
    )

    assert api_kinds(names).to_list() == ["allocation", None, "launch", "allocation"]
    assert api_kinds(names.clear()).to_list() == []


def test_suffixes_of_versions_and_default_streams_are_not_part_of_the_name():
    assert bare_name("cudaGetDeviceProperties_v2_v12000") == "cudaGetDeviceProperties"
    assert bare_name("cudaMemcpyAsync_ptsz_v7000") == "cudaMemcpyAsync"
    assert bare_name("cudaMemset2D") == "cudaMemset2D"


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("cudaStreamSynchronize_v3020", True),
        ("cudaMemcpy_v3020", True),
        ("cuMemcpyDtoH_v2", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemPrefetchAsync", False),
        ("cudaMemset", False),  # returns before the device is done, unless it fills host memory
        ("cudaLaunchKernel", False),
        ("cudaEventRecord", False),
    ],
)
def test_waits_and_synchronous_copies_hold_the_host(name, blocks):
    assert blocks_host(name) is blocks


@pytest.mark.parametrize(
    ("name", "polls"),
    [
        ("cudaEventQuery_v3020", True),
        ("hipStreamQuery", True),
        ("cuEventQuery", True),
        ("cudaEventElapsedTime", False),
        ("cudaEventSynchronize", False),
        ("EventQuery", False),
    ],
)
def test_questions_for_an_event_or_a_stream_can_be_a_way_to_wait(name, polls):
    assert polls_device(name) is polls
