"""Small synthetic PyTorch traces: operators with sequence numbers, and Python calls, from short literals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tests.analysis.builders import MAIN_THREAD, Row, nvtx, trace
from warplens.analysis.timeline import Timeline
from warplens.profile import TABLES
from warplens.profile.nesting import nest
from warplens.profile.schema import NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

ENGINE = "autograd::engine::evaluate_function: "


def operator(
    start: int,
    end: int,
    name: str,
    *,
    sequence: int | None = None,
    forward_thread: int | None = None,
    shapes: str | None = None,
    thread: int = MAIN_THREAD,
) -> Row:
    """One operator; a backward one names autograd's number of the thread that ran its forward operator."""
    return {
        **nvtx(start, end, name, thread=thread, kind="cpu-op"),
        "sequence": sequence,
        "forward_thread": forward_thread,
        "input_shapes": shapes,
    }


def annotation(start: int, end: int, name: str, *, thread: int = MAIN_THREAD) -> Row:
    """One annotation of the user (`record_function`)."""
    return nvtx(start, end, name, thread=thread, kind="user-annotation")


def python_call(start: int, end: int, name: str, *, thread: int = MAIN_THREAD) -> Row:
    """One call of a Python function or module."""
    return {"start_ns": start, "end_ns": end, "process": 1, "thread": thread, "name": name}


def program(
    kernels: Sequence[Row],
    api: Sequence[Row],
    ranges: Sequence[Row],
    *,
    python: Sequence[Row] = (),
    links: Sequence[tuple[int, int]] = (),
    **others: Any,
) -> Timeline:
    """A trace of these rows as the PyTorch profiler would have recorded them.

    Args:
        ranges: operators and annotations, in any order.
        python: Python calls.
        links: autograd's recorded arrows, as positions of the forward and the backward operator in `ranges`.
        others: further tables, as `tests.analysis.builders.trace` takes them.
    """
    bare = trace(kernels, api, ranges, file_format="kineto-json", **others)
    recorded = [(row, item) for row, item in enumerate(ranges) if item["kind"] == "cpu-op"]
    tables = {
        "operators": _table("operators", [{"range": row, **item} for row, item in recorded]),
        "autograd_links": _table("autograd_links", [{"forward": one, "backward": other} for one, other in links]),
        "python_functions": _table("python_functions", _nested(python)),
    }
    return Timeline(replace(bare, **tables))


def _table(name: str, rows: Sequence[Row]) -> pl.DataFrame:
    columns = []
    for column in TABLES[name].columns:
        values = [row.get(column.name) for row in rows]
        dtype = _names(values) if column.dtype is NAME else column.dtype
        columns.append(pl.Series(column.name, values, dtype=dtype))
    return pl.DataFrame(columns)


def _names(values: Sequence[str | None]) -> pl.Enum:
    return pl.Enum(list(dict.fromkeys(value for value in values if value is not None)))


def _nested(calls: Sequence[Row]) -> list[Row]:
    if not calls:
        return []
    nesting = nest(*(np.array([call[key] for call in calls]) for key in ("start_ns", "end_ns", "thread")))
    return [
        {**call, "depth": int(depth), "parent": None if parent < 0 else int(parent)}
        for call, depth, parent in zip(calls, nesting.depth, nesting.parent, strict=True)
    ]
