"""What a collective is: its kind, read from names; the bytes that count as its size; its bandwidth formulas.

Sizes and factors are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md, and `…GetBw` of each test): the algorithm
bandwidth is `S / t`, and the bus bandwidth multiplies it with a factor that makes it comparable with the hardware's
peak whatever the number of ranks.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = [
    "ENDS_TOGETHER",
    "KINDS",
    "UNKNOWN_KIND",
    "bus_factor",
    "bytes_per_element",
    "kind_of_description",
    "kind_of_kernel",
    "kind_of_range",
    "size_bytes",
]

#: The kind of a collective that no name reveals.
UNKNOWN_KIND: Final = "unknown"

#: Every kind, in the order in which people expect to read them.
KINDS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    UNKNOWN_KIND,
)

#: Kinds that no rank can leave before every rank has arrived and contributed: they end on all ranks at nearly the same
#: moment. The root of a broadcast, in contrast, is done as soon as its data is out.
ENDS_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

# Spellings: `allreduce`, `all_reduce`, `AllReduce`, `_allgather_base`, `reduce_scatter_tensor_coalesced`, `alltoallv`.
# The order matters: "reduce" is part of three others, "gather" and "scatter" of one each.
_SPELLINGS: Final = (
    ("all_reduce", re.compile(r"all_?reduce|cross_?device_?reduce|one_?shot_?reduce")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_gather", re.compile(r"all_?gather")),
    ("all_to_all", re.compile(r"all_?to_?all|all2all|\ba2a")),
    ("broadcast", re.compile(r"broadcast|bcast")),
    ("barrier", re.compile(r"barrier")),
    ("send_recv", re.compile(r"send|recv|batch_?isend|p2p")),
    ("reduce", re.compile(r"reduce(?!r)")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
)

#: Ranges that speak of a collective: PyTorch's (`nccl:all_reduce`, with or without the suffixes that `emit_nvtx`
#: appends) and NCCL's own NVTX (`ncclAllReduce`). `ncclGroupEnd` and the like match and name no kind.
_COLLECTIVE_RANGE: Final = re.compile(r"^(?:[nr]ccl:|[nr]ccl(?=[A-Z])|c10d::)(?P<what>[^,\[(]*)")

#: Bytes of an element by PyTorch's names of types, as `record_param_comms` gives them.
_ELEMENT_BYTES: Final = {
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "half": 2, "bfloat16": 2, "short": 2, "float16": 2, "int16": 2,
    "uint16": 2, "float": 4, "int": 4, "float32": 4, "int32": 4, "uint32": 4, "double": 8, "long": 8, "float64": 8,
    "int64": 8, "uint64": 8, "complexfloat": 8, "complexhalf": 4, "complexdouble": 16,
}  # fmt: skip


@lru_cache(maxsize=4096)
def kind_of_description(name: str) -> str:
    """The kind of a collective that a framework calls by this name (`allreduce`, `_reduce_scatter_base`)."""
    lowered = name.lower()
    return next((kind for kind, spelling in _SPELLINGS if spelling.search(lowered)), UNKNOWN_KIND)


@lru_cache(maxsize=4096)
def kind_of_kernel(name: str) -> str:
    """The kind of a communication kernel, read from its name (`ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`).

    A kernel that serves every kind (`ncclDevKernel_Generic`, RCCL) is of unknown kind.
    """
    # Only the function's own name counts: arguments and template parameters speak of element types and operations.
    return kind_of_description(re.split(r"[(<]", name, maxsplit=1)[0])


@lru_cache(maxsize=65_536)
def kind_of_range(name: str) -> str:
    """The kind of the collective that an annotated range speaks of; unknown for a range that speaks of none."""
    found = _COLLECTIVE_RANGE.match(name)
    return kind_of_description(found["what"]) if found else UNKNOWN_KIND


def bytes_per_element(dtype: str | None) -> int | None:
    """The size of an element of this type; None for a type that is not known."""
    return _ELEMENT_BYTES.get((dtype or "").lower().removeprefix("c10::").removeprefix("torch."))


def size_bytes(kind: str, in_elements: int | None, out_elements: int | None, dtype: str | None) -> int | None:
    """The size `S` of a collective as nccl-tests counts it; None where the trace does not record it.

    All-gather and gather count the gathered whole, reduce-scatter, scatter and all-to-all the whole that is given in,
    the others the buffer of a rank.

    Args:
        kind: one of `KINDS`.
        in_elements: elements that each rank puts in.
        out_elements: elements that each rank gets out.
        dtype: type of an element as PyTorch calls it.
    """
    each = bytes_per_element(dtype)
    if kind in ("all_gather", "gather", "send_recv"):
        known = [count for count in (in_elements, out_elements) if count is not None]
        elements = max(known) if known else None
    else:
        elements = in_elements if in_elements is not None else out_elements
        if kind == "broadcast" and not elements:
            elements = out_elements
    return None if each is None or elements is None else elements * each


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """What multiplies the algorithm bandwidth of a collective among `ranks` ranks to give its bus bandwidth.

    None for kinds without a formula, and where the number of ranks is not known. Source: nccl-tests, see the module.
    """
    if kind in ("broadcast", "reduce", "send_recv"):
        return 1.0
    if ranks is None or ranks < 1:
        return None
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return None
