"""Small synthetic PyTorch traces: operators with sequence numbers, and Python calls, from short literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.analysis.builders import MAIN_THREAD, Row, nvtx, trace
from warplens.analysis.timeline import Timeline

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
    recorded = [(row, item) for row, item in enumerate(ranges) if item["kind"] == "cpu-op"]
    return Timeline(
        trace(
            kernels,
            api,
            ranges,
            operators=[{"range": row, **item} for row, item in recorded],
            autograd_links=[{"forward": one, "backward": other} for one, other in links],
            python_functions=python,
            file_format="kineto-json",
            **others,
        )
    )
