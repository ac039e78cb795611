from __future__ import annotations

import polars as pl
import pytest

from warplens.analysis.api import api_kind, api_kinds, bare_name, blocks_host, polls_device

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
def test_a_function_belongs_to_its_family(kind: str, name: str) -> None:
    assert api_kind(name) == kind


def test_a_function_of_a_later_toolkit_falls_into_its_family() -> None:
    assert api_kind("cudaLaunchKernelFooBar_v99000") == "launch"
    assert api_kind("cuMemcpyEverywhereAsync") == "copy"


def test_kinds_of_a_column_are_those_of_its_names() -> None:
    names = pl.Series(
        ["cudaFree", None, "cudaLaunchKernel", "cudaFree"], dtype=pl.Enum(["cudaLaunchKernel", "cudaFree"])
    )

    assert api_kinds(names).to_list() == ["allocation", None, "launch", "allocation"]
    assert api_kinds(names.clear()).to_list() == []


def test_suffixes_of_versions_and_default_streams_are_not_part_of_the_name() -> None:
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
def test_waits_and_synchronous_copies_hold_the_host(name: str, blocks: bool) -> None:
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
def test_questions_for_an_event_or_a_stream_can_be_a_way_to_wait(name: str, polls: bool) -> None:
    assert polls_device(name) is polls
