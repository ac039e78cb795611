"""Places in the program (operator and source line) of the host's CUDA calls: waits, copies, allocations, launches.

A profile holds source lines where Python stacks were recorded (`with_stack=True` of PyTorch's profiler). Of a call's
stack, the innermost line that is neither Python's own library nor PyTorch is taken: the line that the program's author
can change. Without stacks, the operator and the annotated range of the call itself are named.
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
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, look_up, nearest
from warplens.analysis.window import Window, unnumbered_names
from warplens.patterns import lazy_pattern
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, name_categories, once_per_dictionary

#: Kinds of calls (`warplens.analysis.api.ApiKind`) worth locating in the program.
CALL_KINDS: Final = ("sync", "copy", "allocation", "memset", "launch", "graph-launch")

CODE: Final = table(
    "code",
    "A kind of CUDA call at one place of the program. `warplens code`.",
    Column("call", pl.String, "what the call does: `sync`, `copy`, `allocation`, `memset`, `launch`, `graph-launch`"),
    column("operator", help="innermost operator around the call; null where there is none", kind="name"),
    "range line calls",
    column("host_ns", help="time of the host inside these calls", title="Host time"),
    column("share", help="share of the host time in all listed calls of that kind", title="Of its kind"),
)

#: `file.py(88): function`, as PyTorch's profiler writes a Python call.
_SOURCE_LINE = lazy_pattern(r"^(?P<file>[^<(][^(]*)\(\d+\): ")
#: The number that distinguishes instances of a module class.
_INSTANCE = lazy_pattern(r"_\d+$")
#: Framework packages, whose lines are not the program's own.
_FOUNDATIONS: Final = frozenset({"torch", "numpy", "triton", "nvtx", "torchgen", "functorch"})


def code_places(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Places in the program of the CUDA calls of `Timeline.api_calls_in`, those with the most host time first.

    Returns:
        The columns of `CODE`. `share` is that of the host time in calls of the same kind.
    """
    calls = timeline.api_calls_in(window).select("start_ns", "end_ns", "process", "thread", "name")
    calls = calls.with_columns(api_kinds(calls["name"]).alias("call")).drop("name")
    calls = calls.filter(pl.col("call").is_in(CALL_KINDS))
    keys = ["call", "operator", "range", "line"]
    places, place_of_call = places_of_calls(timeline, calls)
    groups, group = numbered(calls.select("call", place=pl.Series(place_of_call)), ("call", "place"))
    host_ns = sum_by(group, (calls["end_ns"] - calls["start_ns"]).to_numpy(), groups.height)
    counts = np.bincount(group, minlength=groups.height)
    rows = (
        places[groups["place"]]
        .with_columns(groups["call"], pl.Series("calls", counts, dtype=pl.Int64), pl.Series("host_ns", host_ns))
        .group_by(keys)
        .agg(pl.col("calls", "host_ns").sum())
        .cast(dict.fromkeys(keys, pl.String))
    )
    share = ratio(pl.col("host_ns"), pl.col("host_ns").sum().over("call")).alias("share")
    return CODE.conform(rows.with_columns(share).sort("host_ns", *keys, descending=[True, *(False for _ in keys)]))


#: Columns that name a place in a program; see `places_of_calls`.
PLACE: Final = ("operator", "range", "module", "line")


def places_of_calls(timeline: Timeline, calls: pl.DataFrame) -> tuple[pl.DataFrame, Int64s]:
    """Places in the program of calls on host threads: the distinct places (`PLACE`), and each call's row among them.

    Places are far fewer than calls; two may have the same names. `operator` is the innermost operator around the call,
    `range` the innermost annotated range, `module` the two innermost modules (`BertOutput.LayerNorm`), `line` the line
    of the program. Null where not known.

    Args:
        calls: rows with `process`, `thread` and `start_ns`, such as those of the table `api_calls`.
    """
    position = tuple(calls[name].to_numpy().astype(np.int64) for name in ("process", "thread", "start_ns"))
    # A thread without ranges or stacks of its own, such as autograd's, works for the thread that waits for it.
    innermost = timeline.forest.attribute(*position)[0]
    if not timeline.trace.python_functions.height:
        return _distinct_places(timeline, innermost, NO_RANGE, NO_RANGE)
    return _distinct_places(timeline, innermost, timeline.python.running(*position), timeline.python.waiting(*position))


def places_of_work(timeline: Timeline, rows: Int64s) -> tuple[pl.DataFrame, Int64s]:
    """Places in the program of GPU work: its launch, or for the backward pass the call of its forward operator.

    Args:
        rows: rows of `Timeline.work`.
    """
    work_places = timeline.places
    if not timeline.trace.python_functions.height:
        return _distinct_places(timeline, work_places.range[rows], NO_RANGE, NO_RANGE)
    return _distinct_places(timeline, work_places.range[rows], work_places.module[rows], work_places.function[rows])


def _distinct_places(
    timeline: Timeline, range_rows: Int64s, module_rows: Int64s | int, function_rows: Int64s | int
) -> tuple[pl.DataFrame, Int64s]:
    """The distinct combinations of these rows as names, and each input row's position among them.

    One row that stands for all takes no memory.
    """
    rows = pl.DataFrame({"held": range_rows, "module": module_rows, "function": function_rows})
    distinct, place = numbered(rows, rows.columns)
    return _place_names(timeline, *(column.to_numpy() for column in distinct)), place


def _place_names(timeline: Timeline, range_rows: Int64s, module_rows: Int64s, function_rows: Int64s) -> pl.DataFrame:
    """Names of the operator, the range, the module and the line of the program at these rows; null for none."""
    ranges, functions = timeline.trace.ranges, timeline.trace.python_functions
    is_op = is_operator(ranges)
    parent, all_ranges = timeline.forest.parent, np.arange(ranges.height)
    columns = {
        "operator": _names_at(ranges["name"], nearest(parent, is_op, all_ranges), range_rows),
        "range": _names_at(ranges["name"], nearest(parent, ~is_op, all_ranges), range_rows, unnumbered_names),
    }
    if not functions.height:
        null_text = pl.Series([None], dtype=pl.Categorical()).new_from_index(0, len(range_rows))
        return pl.DataFrame({**columns, "module": null_text, "line": null_text})
    frames, names = timeline.python, functions["name"]
    is_program = np.array([is_own_line(name) for name in name_categories(names)], dtype=np.bool_)
    program_line = nearest(frames.parent, is_program[names.to_physical().to_numpy()], np.arange(functions.height))
    inner_module = look_up(frames.enclosing_module, module_rows)
    outer_module = look_up(frames.module_parent, inner_module)
    all_functions = np.arange(functions.height)
    pair = pl.DataFrame(
        {
            "outer": _names_at(names, all_functions, outer_module, _class_names),
            "inner": _names_at(names, all_functions, inner_module, _class_names),
        }
    )
    path = pl.concat_str(pl.col("outer", "inner").cast(pl.String), separator=".", ignore_nulls=True)
    module_path = pl.when(pl.col("inner").is_not_null()).then(path).cast(pl.Categorical())
    return pl.DataFrame({
        **columns,
        "module": pair.unique().with_columns(module_path.alias("module")).join(
            pair, on=["outer", "inner"], how="right", nulls_equal=True, maintain_order="right"
        )["module"],
        "line": _names_at(names, program_line, function_rows),
    })  # fmt: skip


def _class_name(name: str) -> str:
    """`Linear` for `nn.Module: Linear_3`, without the number of the instance."""
    return _INSTANCE.sub("", module_name(name) or name)


@once_per_dictionary
def _class_names(texts: pl.Series) -> pl.Series:
    return pl.Series(map(_class_name, texts), dtype=pl.String)


def _names_at(
    names: pl.Series, name_row: Int64s, rows: Int64s, shown: Callable[[pl.Series], pl.Series] = name_categories
) -> pl.Series:
    """`names[name_row[rows]]` as categories, null for `NO_RANGE`; `shown` gives the text for each of the dictionary."""
    texts = shown(names).cast(pl.Categorical())
    if not len(rows) or not (name_row != NO_RANGE).any():
        return pl.Series([None], dtype=pl.Categorical()).new_from_index(0, len(rows))
    named = look_up(name_row, rows)
    codes = np.where(named == NO_RANGE, texts.len(), names.to_physical().to_numpy()[named])
    return pl.concat([texts, pl.Series([None], dtype=pl.Categorical())]).gather(codes)


def is_own_line(name: str) -> bool:
    """Whether a recorded Python call is a line of the program, outside Python's library and PyTorch.

    >>> is_own_line("train.py(88): step"), is_own_line("torch/optim/adam.py(953): <genexpr>")
    (True, False)
    """
    line = _SOURCE_LINE.match(name)
    if line is None:
        return False
    parts = re.split(r"[/\\]", line["file"])
    if "site-packages" in parts or "dist-packages" in parts:
        parts = parts[
            max(parts.index(folder) for folder in ("site-packages", "dist-packages") if folder in parts) + 1 :
        ]
    elif any(re.fullmatch(r"python3?(\.\d+)?", part) for part in parts[:-1]):
        return False  # …/lib/python3.12/threading.py
    top = parts[0].removesuffix(".py") if parts else ""
    return top not in _FOUNDATIONS and not (top in sys.stdlib_module_names and len(parts[0]) > 0)
