"""Which operator, and which line of the program, the host's CUDA calls come from: waits, copies, allocations, launches.

A profile holds source lines where Python stacks were recorded (`with_stack=True` of PyTorch's profiler). Of the calls
that stand one inside the other, the innermost counts that is neither Python's own library nor PyTorch: the line that
its author can change. Without stacks, the operator and the annotated range of the call itself are named.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.frames import numbered, ratio, sum_by
from warplens.analysis.operators.places import module_name
from warplens.analysis.ranges import unnumbered_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, look_up, nearest
from warplens.analysis.window import Window
from warplens.patterns import lazy_pattern
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, name_categories

#: Kinds of calls (`warplens.analysis.api.ApiKind`) that somebody may want to find in the program.
CALL_KINDS: Final = ("sync", "copy", "allocation", "memset", "launch", "graph-launch")

CODE: Final = table(
    "code",
    "A kind of CUDA call at one place of the program. `warplens code`.",
    Column("call", pl.String, "what the call does: `sync`, `copy`, `allocation`, `memset`, `launch`, `graph-launch`"),
    column("operator", help="innermost operator around the call; null where there is none", kind="name"),
    "range line calls",
    column("host_ns", help="time of the host inside these calls", title="Host time"),
    "share",
    share="share of the host time in all listed calls of that kind",
)

#: `file.py(88): function`, as PyTorch's profiler writes a Python call.
_SOURCE_LINE = lazy_pattern(r"^(?P<file>[^<(][^(]*)\(\d+\): ")
#: The number that tells instances of a class of modules apart.
_INSTANCE = lazy_pattern(r"_\d+$")
#: Packages that a program stands on, not the program.
_FOUNDATIONS: Final = frozenset({"torch", "numpy", "triton", "nvtx", "torchgen", "functorch"})


def code_places(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Where in the program the host's CUDA calls of the window come from, by kind and then by host time.

    Returns:
        The columns of `CODE`. `share` is that of the host time in calls of the same kind.
    """
    calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "name")
    calls = calls.with_columns(api_kinds(calls["name"]).alias("call")).drop("name")
    inside = pl.col("start_ns").is_between(window.start_ns, window.end_ns, closed="left")
    calls = calls.filter(inside & pl.col("call").is_in(CALL_KINDS))
    keys = ["call", "operator", "range", "line"]
    named, which = places_of_calls(timeline, calls)
    kinds, number = numbered(calls.select("call", place=pl.Series(which)), ("call", "place"))
    spent = sum_by(number, (calls["end_ns"] - calls["start_ns"]).to_numpy(), kinds.height)
    counts = np.bincount(number, minlength=kinds.height)
    rows = (
        named[kinds["place"]]
        .with_columns(kinds["call"], pl.Series("calls", counts, dtype=pl.Int64), pl.Series("host_ns", spent))
        .group_by(keys)
        .agg(pl.col("calls", "host_ns").sum())
        .cast(dict.fromkeys(keys, pl.String))
    )
    share = ratio(pl.col("host_ns"), pl.col("host_ns").sum().over("call")).alias("share")
    order = pl.col("call").replace_strict({kind: place for place, kind in enumerate(CALL_KINDS)}, return_dtype=pl.Int64)
    return CODE.conform(
        rows.with_columns(share).sort(order, "host_ns", *keys[1:], descending=[False, True, False, False, False])
    )


#: What names a place in a program, from the inside out; see `Places`.
PLACE: Final = ("operator", "range", "module", "line")


def places_of_calls(timeline: Timeline, calls: pl.DataFrame) -> tuple[pl.DataFrame, Int64s]:
    """Where in the program calls of host threads stand: places, the columns `PLACE`, and which of them each call has.

    Places are far fewer than calls; two may bear the same names. `operator` is the innermost operator around the call,
    `range` the innermost annotated range, `module` the two innermost modules (`BertOutput.LayerNorm`), `line` the line
    of the program. Null where not known.

    Args:
        calls: rows with `process`, `thread` and `start_ns`, such as those of the table `api_calls`.
    """
    at = tuple(calls[name].to_numpy().astype(np.int64) for name in ("process", "thread", "start_ns"))
    # A thread without ranges or stacks of its own, such as autograd's, works for the one that waits for it.
    held = timeline.forest.attribute(*at)[0]
    if not timeline.trace.python_functions.height:
        nothing = np.full(len(held), NO_RANGE)
        return _named(timeline, held, nothing, nothing)
    return _named(timeline, held, timeline.python.running(*at), timeline.python.waiting(*at))


def places_of_work(timeline: Timeline, rows: Int64s) -> tuple[pl.DataFrame, Int64s]:
    """The same of GPU work: where it was launched, of work of the backward pass where its forward operator ran.

    Args:
        rows: rows of `Timeline.work`.
    """
    found = timeline.places
    return _named(timeline, found.range[rows], found.module[rows], found.function[rows])


def _named(timeline: Timeline, held: Int64s, modules: Int64s, functions: Int64s) -> tuple[pl.DataFrame, Int64s]:
    """The names of the innermost operators, ranges, modules and lines around these rows of their tables, each once."""
    rows = pl.DataFrame({"held": held, "module": modules, "function": functions})
    different, which = numbered(rows, rows.columns)
    return _names(timeline, *(column.to_numpy() for column in different)), which


def _names(timeline: Timeline, held: Int64s, modules: Int64s, functions: Int64s) -> pl.DataFrame:
    ranges, functions_table = timeline.trace.ranges, timeline.trace.python_functions
    operator = is_operator(ranges)
    parent, own = timeline.forest.parent, np.arange(ranges.height)
    columns = {
        "operator": _gathered(ranges["name"], nearest(parent, operator, own), held),
        "range": _gathered(ranges["name"], nearest(parent, ~operator, own), held, unnumbered_name),
    }
    if not functions_table.height:
        nothing = pl.Series([None], dtype=pl.Categorical()).new_from_index(0, len(held))
        return pl.DataFrame({**columns, "module": nothing, "line": nothing})
    frames, names = timeline.python, functions_table["name"]
    is_own = np.array([is_own_line(name) for name in name_categories(names)], dtype=np.bool_)
    own_line = nearest(frames.parent, is_own[names.to_physical().to_numpy()], np.arange(functions_table.height))
    inner = look_up(frames.enclosing_module, modules)
    outer = look_up(frames.module_parent, inner)
    every = np.arange(functions_table.height)
    pair = pl.DataFrame({
        "outer": _gathered(names, every, outer, _class_name), "inner": _gathered(names, every, inner, _class_name)
    })  # fmt: skip
    path = pl.concat_str(pl.col("outer", "inner").cast(pl.String), separator=".", ignore_nulls=True)
    known = pl.when(pl.col("inner").is_not_null()).then(path).cast(pl.Categorical())
    return pl.DataFrame({
        **columns,
        "module": pair.unique().with_columns(known.alias("module")).join(
            pair, on=["outer", "inner"], how="right", nulls_equal=True, maintain_order="right"
        )["module"],
        "line": _gathered(names, own_line, functions),
    })  # fmt: skip


def _class_name(name: str) -> str:
    """`Linear` for `nn.Module: Linear_3`: the number tells instances of a class apart."""
    return _INSTANCE.sub("", module_name(name) or name)


def _gathered(names: pl.Series, named: Int64s, rows: Int64s, shown: Callable[[str], str] = str) -> pl.Series:
    """`names[named[rows]]` as shown, null for `NO_RANGE`; each distinct name, and each row, is looked at once."""
    texts = pl.Series([shown(text) for text in name_categories(names)], dtype=pl.String).cast(pl.Categorical())
    if not len(rows) or not (named != NO_RANGE).any():
        return pl.Series([None], dtype=pl.Categorical()).new_from_index(0, len(rows))
    codes = np.r_[names.to_physical().to_numpy().astype(np.int64)[named], 0]
    codes[:-1][named == NO_RANGE] = texts.len()
    codes[-1] = texts.len()  # for a row that is `NO_RANGE`
    return pl.concat([texts, pl.Series([None], dtype=pl.Categorical())]).gather(codes[rows])


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
