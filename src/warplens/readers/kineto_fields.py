"""What is read of a Kineto trace: the categories of its events, and the arguments of each kind, in all spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARGUMENTS", "KINDS", "Argument", "arguments_of", "kind_of_category"]

#: The kinds of events that are read.
KINDS = (
    "kernel",
    "copy",
    "memset",
    "call",
    "operator",
    "annotation",
    "python",
    "wait",
    "overhead",
    "allocation",
    "flow",
)

#: Categories in lower case: those of 2021 (`Kernel`, `Operator`, `Runtime`, …) and those that replaced them in 2022.
#: Left out on purpose: `gpu_user_annotation`, which the profiler derives from annotations and kernels; `ac2g` and
#: `async…` arrows, which repeat the correlation ids; `cuda_profiler_range`, whose times are not those of kernels.
_CATEGORIES: Mapping[str, str] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "hip_runtime": "call",
    "hip_driver": "call",
    "runtime": "call",
    "driver": "call",
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "annotation",
    "python_function": "python",
    "cuda_sync": "wait",
    "overhead": "overhead",
    "cpu_instant_event": "allocation",
    "fwdbwd": "flow",
    "fwd_bwd": "flow",
    "forward_backward": "flow",
}


def kind_of_category(category: str) -> str | None:
    """The kind of the events of a category, one of `KINDS`; None for one that is not read."""
    return _CATEGORIES.get(category.lower())


@dataclass(frozen=True)
class Argument:
    """One argument of events (or a member of the event itself) that is read.

    Attributes:
        column: what it is called here.
        keys: its spellings.
        kinds: the kinds of events that have it.
        is_text: it is kept as JSON text, dictionary-encoded; otherwise it is a whole number.
        is_member: it stands in the event itself, not in its `args`.
        launch_configuration: it tells how a kernel was launched, which few questions ask.
    """

    column: str
    keys: tuple[str, ...]
    kinds: tuple[str, ...]
    is_text: bool = False
    is_member: bool = False
    launch_configuration: bool = False


_GPU = ("kernel", "copy", "memset")
_COLLECTIVE = ("kernel", "operator")

ARGUMENTS: tuple[Argument, ...] = (
    Argument("device", ("device",), (*_GPU, "wait")),
    Argument("stream", ("stream",), (*_GPU, "wait")),
    Argument("correlation", ("correlation",), (*_GPU, "call", "wait")),
    Argument("external_id", ("External id", "external id"), ("kernel", "operator", "annotation")),
    Argument("bytes", ("bytes", "size"), ("copy", "memset")),
    Argument("graph_node", ("graph node id",), _GPU),
    Argument("graph", ("graph id",), _GPU),
    Argument("grid", ("grid",), ("kernel", "call"), is_text=True, launch_configuration=True),
    Argument("block", ("block",), ("kernel", "call"), is_text=True, launch_configuration=True),
    Argument("registers", ("registers per thread",), ("kernel",), launch_configuration=True),
    Argument("shared_bytes", ("shared memory",), ("kernel", "call"), launch_configuration=True),
    Argument("sequence", ("Sequence number",), ("operator",)),
    Argument("forward_thread", ("Fwd thread id",), ("operator",)),
    Argument("input_shapes", ("Input Dims", "Input dims"), ("operator",), is_text=True),
    Argument("input_types", ("Input type",), ("operator",), is_text=True),
    Argument("input_strides", ("Input Strides",), ("operator",), is_text=True),
    Argument("concrete_inputs", ("Concrete Inputs",), ("operator",), is_text=True),
    Argument("collective", ("Collective name",), _COLLECTIVE, is_text=True),
    Argument("group", ("Process Group Name", "Process Group ID"), _COLLECTIVE, is_text=True),
    Argument("group_ranks", ("Process Group Ranks",), _COLLECTIVE, is_text=True),
    Argument("group_size", ("Group size",), _COLLECTIVE),
    Argument("in_elements", ("In msg nelems",), _COLLECTIVE),
    Argument("out_elements", ("Out msg nelems",), _COLLECTIVE),
    Argument("dtype", ("dtype",), _COLLECTIVE, is_text=True),
    Argument("collective_sequence", ("Seq",), _COLLECTIVE),
    Argument("sync_kind", ("cuda_sync_kind",), ("wait",), is_text=True),
    Argument("delta_bytes", ("Bytes",), ("allocation",)),
    Argument("address", ("Addr",), ("allocation",)),
    Argument("device_type", ("Device Type",), ("allocation",)),
    Argument("device_number", ("Device Id",), ("allocation",)),
    Argument("allocated_bytes", ("Total Allocated",), ("allocation",)),
    Argument("reserved_bytes", ("Total Reserved",), ("allocation",)),
    Argument("flow", ("id",), ("flow",), is_member=True),
)


def arguments_of(kind: str) -> tuple[Argument, ...]:
    """The arguments that are read of events of this kind."""
    return tuple(argument for argument in ARGUMENTS if kind in argument.kinds)
