"""What a CUDA or HIP function does to the host and the GPU, told by its name.

The families follow NVIDIA's and AMD's naming rules rather than a list of functions, so that a spelling of a later
toolkit (`cudaLaunchKernelExC`, `cudaMemcpyBatchAsync`, …) falls into its family without a change here.
Sources: the module pages of the CUDA Runtime API, CUDA Driver API and HIP Runtime API references.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, get_args

import polars as pl

from warplens.profile.schema import name_categories

__all__ = ["API_KIND", "OUT_OF_MEMORY", "ApiKind", "api_kind", "api_kinds", "bare_name", "blocks_host", "polls_device"]

ApiKind = Literal["launch", "graph-launch", "copy", "memset", "sync", "allocation", "event", "query", "module", "other"]

#: What a call returns where memory ran out: `cudaErrorMemoryAllocation`, `CUDA_ERROR_OUT_OF_MEMORY`.
OUT_OF_MEMORY: Final = 2

#: The dtype of a column of kinds.
API_KIND: Final = pl.Enum(list(get_args(ApiKind)))

_PREFIX = re.compile(r"(?:cuda|cu|hip)(?=[A-Z])")

# `_v3020` (ABI version), `_v2` (driver version), `_ptsz`, `_ptds`, `_spt` (per-thread default stream).
_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds|_spt)+$")

#: The kind of a function by its name after `cuda`, `cu` or `hip`; the first pattern that matches its begin decides.
_PATTERNS: Final[tuple[tuple[str, ApiKind], ...]] = (
    (r"GraphLaunch", "graph-launch"),
    # A host function runs on the CPU; everything else that is called "launch" starts a kernel.
    (r"LaunchHostFunc", "other"),
    (r"(Ext|Hcc)?(Module)?Launch", "launch"),
    (r"(Device|Thread|Ctx|Stream|Event)Synchronize", "sync"),
    (r"(Event|Stream)Query|EventElapsedTime|Stream(Get|IsCapturing)", "query"),
    (r"Event|Stream(Wait|Write|BatchMemOp)", "event"),
    (r"Memcpy|Mem(Discard(And|Batch))?\w*Prefetch", "copy"),
    (r"Memset", "memset"),
    (r"Mem(GetInfo|GetAddressRange|PtrGetInfo|Range|\w*(Granularity|Properties|Attribute))", "query"),
    (r"(Mem)?HostGet", "query"),
    # Device memory, pinned host memory, arrays, pools, virtual memory; advice on managed memory obtains nothing.
    (r"(Ext)?(Malloc|Free)|Host(Alloc|Malloc|Free|Register|Unregister)", "allocation"),
    (r"Mem(Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|Address|Pool|Import|Export|Retain)", "allocation"),
    (r"(Mipmapped)?Array(3D)?(Create|Destroy)|Ipc(Open|Close)MemHandle|Multicast", "allocation"),
    (r"ModuleGetLoadingMode", "query"),
    (r"Module|Library|Link", "module"),
    (r"(Device|DevicePrimaryCtx|Func|Ctx|Kernel|Array|Graph\w*|Driver|Runtime|Pointer)(Get|Can|Is|Compute)", "query"),
    (r"Get|Peek|Occupancy|ChooseDevice|DeviceTotalMem", "query"),
)
_COMPILED: Final = tuple((re.compile(pattern), kind) for pattern, kind in _PATTERNS)


def bare_name(name: str) -> str:
    """The name without version and per-thread-stream suffixes: `cudaFree_ptsz_v7000` → `cudaFree`."""
    return _SUFFIX.sub("", name)


@lru_cache(maxsize=4096)
def api_kind(name: str) -> ApiKind:
    """What the function with this name does.

    `launch` starts a kernel, `graph-launch` a CUDA graph, `copy` and `memset` move or fill memory, `sync` makes the
    host wait for the GPU, `allocation` obtains, pins, maps or releases memory, `event` records or awaits on the device
    without holding the host, `query` only asks, `module` loads or looks up code; the rest is `other`, as is every
    function that is neither CUDA's nor HIP's.
    """
    prefix = _PREFIX.match(name)
    if prefix is None:
        return "other"
    verb = bare_name(name)[prefix.end() :]
    return next((kind for pattern, kind in _COMPILED if pattern.match(verb)), "other")


def api_kinds(names: pl.Series) -> pl.Series:
    """The kind of each name of a dictionary-encoded column, looked up once per distinct name.

    Args:
        names: `Trace.api_calls["name"]` or any part of it (dtype `Enum`).

    Returns:
        A series of dtype `API_KIND`, called `kind`, of the same length; null where the name is null.
    """
    kinds = pl.Series([api_kind(name) for name in name_categories(names)], dtype=API_KIND)
    return kinds.gather(names.to_physical()).alias("kind")


@lru_cache(maxsize=4096)
def blocks_host(name: str) -> bool:
    """Whether the function by itself holds the host until the GPU is done: waits, and copies that do not say `Async`.

    Asynchronous copies of pageable memory hold the host as well, which the name does not tell; `warplens.analysis.api`
    joins them with the memory that they moved. A synchronous copy from device to device may return early.
    (CUDA Runtime API, "API synchronization behavior".)
    """
    kind = api_kind(name)
    return kind == "sync" or (kind == "copy" and "Async" not in name and "Prefetch" not in name)


@lru_cache(maxsize=4096)
def polls_device(name: str) -> bool:
    """Whether the function asks if work is done without waiting for it: one that is called again and again waits."""
    prefix = _PREFIX.match(name)
    return prefix is not None and bare_name(name)[prefix.end() :] in ("EventQuery", "StreamQuery")
