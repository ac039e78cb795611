"""Which operator, and which line of the program, the host's CUDA calls come from: waits, copies, allocations, launches.

A profile holds source lines where Python stacks were recorded (`with_stack=True` of PyTorch's profiler). Of the calls
that stand one inside the other, the innermost counts that is neither Python's own library nor PyTorch: the line that
its author can change. Without stacks, the operator and the annotated range of the call itself are named.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.attribution import is_operator
from warplens.analysis.frames import ratio
from warplens.analysis.operators.places import python_frames
from warplens.analysis.trees import NO_RANGE, nearest
from warplens.analysis.window import generic_name
from warplens.profile.columns import table
from warplens.profile.schema import Column, name_categories

if TYPE_CHECKING:
    import numpy.typing as npt

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

    Int64s = npt.NDArray[np.int64]

#: Kinds of calls (`warplens.analysis.api.ApiKind`) that somebody may want to find in the program.
CALL_KINDS: Final = ("sync", "copy", "allocation", "memset", "launch", "graph-launch")

CODE: Final = table(
    "code",
    "A kind of CUDA call at one place of the program. `warplens code`.",
    Column("call", pl.String, "what the call does: `sync`, `copy`, `allocation`, `memset`, `launch`, `graph-launch`"),
    Column("operator", pl.String, "innermost operator around the call; null where there is none", kind="name"),
    Column("range", pl.String, "innermost annotated range around the call, numbers as `N`", kind="name"),
    Column("line", pl.String, "`file(line): function`, the line where it begins; null without stacks", kind="name"),
    "calls",
    Column("host_ns", pl.Int64, "time of the host inside these calls", title="Host time"),
    "share",
    share="share of the host time in all listed calls of that kind",
)

#: `file.py(88): function`, as PyTorch's profiler writes a Python call.
_SOURCE_LINE = re.compile(r"^(?P<file>[^<(][^(]*)\(\d+\): ")
#: Packages that a program stands on, not the program.
_FOUNDATIONS: Final = frozenset({"torch", "numpy", "triton", "nvtx", "torchgen", "functorch"})


def code_places(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Where in the program the host's CUDA calls of the window come from, by kind and then by host time.

    Returns:
        The columns of `CODE`. `share` is that of the host time in calls of the same kind.
    """
    calls = timeline.trace.api_calls
    calls = calls.filter(pl.col("start_ns").is_between(window.start_ns, window.end_ns, closed="left"))
    calls = calls.with_columns(api_kinds(calls["name"]).cast(pl.String).alias("call"))
    calls = calls.filter(pl.col("call").is_in(CALL_KINDS))
    named = calls.select("call", host_ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(
        places_of_calls(timeline, calls).get_columns()
    )
    keys = ["call", "operator", "range", "line"]
    rows = named.group_by(keys).agg(pl.len().alias("calls"), pl.col("host_ns").sum())
    share = ratio(pl.col("host_ns"), pl.col("host_ns").sum().over("call")).alias("share")
    order = pl.col("call").replace_strict({kind: place for place, kind in enumerate(CALL_KINDS)}, return_dtype=pl.Int64)
    return CODE.conform(
        rows.with_columns(share).sort(order, "host_ns", *keys[1:], descending=[False, True, False, False, False])
    )


def places_of_calls(timeline: Timeline, calls: pl.DataFrame) -> pl.DataFrame:
    """`operator`, `range` and `line` of each call, as `CODE` means them; null where not known.

    Args:
        timeline: the profile.
        calls: rows with `process`, `thread` and `start_ns`, such as those of the table `api_calls`.
    """
    at = tuple(calls[name].to_numpy().astype(np.int64) for name in ("process", "thread", "start_ns"))
    ranges = timeline.trace.ranges
    operator = is_operator(ranges)
    held = timeline.forest.open_on(*at)
    parent, own = timeline.forest.parent, np.arange(ranges.height)
    names = ranges["name"].cast(pl.String)
    return pl.DataFrame({
        "operator": _texts(names, np.r_[nearest(parent, operator, own), NO_RANGE][held]),
        "range": _texts(_generic(ranges["name"]), np.r_[nearest(parent, ~operator, own), NO_RANGE][held]),
        "line": _lines(timeline.trace.python_functions, at),
    })  # fmt: skip


def is_own_line(name: str) -> bool:
    """Whether a recorded Python call is of the program: a source line outside of Python's library and PyTorch.

    >>> is_own_line("train.py(88): step"), is_own_line("torch/optim/adam.py(953): <genexpr>")
    (True, False)
    """
    line = _SOURCE_LINE.match(name)
    if line is None:
        return False
    parts = re.split(r"[/\\]", line["file"])
    if "site-packages" in parts or "dist-packages" in parts:
        parts = parts[max(parts.index(one) for one in ("site-packages", "dist-packages") if one in parts) + 1 :]
    elif any(re.fullmatch(r"python3?(\.\d+)?", part) for part in parts[:-1]):
        return False  # …/lib/python3.12/threading.py
    top = parts[0].removesuffix(".py") if parts else ""
    return top not in _FOUNDATIONS and not (top in sys.stdlib_module_names and len(parts[0]) > 0)


def _lines(functions: pl.DataFrame, at: tuple[Int64s, ...]) -> pl.Series:
    if not functions.height:
        return pl.Series([None] * len(at[0]), dtype=pl.String)
    frames = python_frames(functions)
    own = np.array([is_own_line(name) for name in name_categories(functions["name"])], dtype=np.bool_)
    is_own = own[functions["name"].to_physical().to_numpy()]
    # Backward work is launched by a thread without stacks: the call that waits for it is the program's.
    running = frames.waiting(*at)
    found = np.r_[nearest(frames.parent, is_own, np.arange(functions.height)), NO_RANGE][running]
    return _texts(functions["name"].cast(pl.String), found)


def _generic(names: pl.Series) -> pl.Series:
    """Names with their numbers replaced, so that `ProfilerStep#4` and `ProfilerStep#5` are one place."""
    texts = pl.Series([generic_name(text) for text in name_categories(names)], dtype=pl.String)
    return texts.gather(names.to_physical())


def _texts(texts: pl.Series, rows: Int64s) -> pl.Series:
    """`texts[rows]`, null for `NO_RANGE`."""
    return texts.gather(pl.Series(rows).set(pl.Series(rows == NO_RANGE), None))
