"""Questions that are answered by tables: time budget, headroom, those of the commands for one table, counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import getdoc
from typing import Any, Protocol, TypeVar

import polars as pl

from warplens.analysis.counters.coverage import counter_notes
from warplens.analysis.counters.roofline import roofline_points
from warplens.analysis.headroom import Headroom, headrooms
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.answers.inputs import Counters, Profile, Selection, chosen, counters_of, timeline_of
from warplens.answers.results import BudgetAnswer, HeadroomAnswer, TableAnswer
from warplens.errors import MissingDataError, UsageError
from warplens.profile.counters import KernelCounters
from warplens.report.counters.hardware import numbered_points, roof_lines, roofline_table, why_no_chart
from warplens.report.counters.numbers import COUNTER_KEYS, summarised
from warplens.report.headroom import device_data, facts, groups_table, headroom_rows, parts_table
from warplens.report.jsonout import window_data
from warplens.report.questions import Question, QuestionResult, gpu, host, time
from warplens.report.questions import memory as memory_questions
from warplens.report.questions import operators as operator_questions

Function = TypeVar("Function", bound=Callable[..., TableAnswer])


def budget(profile: Profile, *, window: str = "steady", range_name: str | None = None) -> BudgetAnswer:
    """Where the time went, in parts that add up to it exactly. Arguments as for `diagnose`."""
    selection = chosen(profile, "budget", window, range_name)
    budgets = tuple(time_budgets(selection.timeline, selection.window))
    return BudgetAnswer(**_table(time.budget, selection), budgets=budgets)


class AskGrouped(Protocol):
    """A function that answers a question about one profile by a table, grouped by these words."""

    def __call__(
        self, profile: Profile, *, by: str | Sequence[str] = "", window: str = "steady", range_name: str | None = None
    ) -> TableAnswer:
        """The answer. Several groupings are a sequence, or joined by commas."""


class Ask(Protocol):
    """A function that answers a question about one profile by a table."""

    def __call__(self, profile: Profile, *, window: str = "steady", range_name: str | None = None) -> TableAnswer:
        """The answer."""


def _asks_grouped(question: Question) -> AskGrouped:
    def ask(
        profile: Profile, *, by: str | Sequence[str] = "", window: str = "steady", range_name: str | None = None
    ) -> TableAnswer:
        selection = chosen(profile, question.ask.__name__, window, range_name)
        return TableAnswer(**_table(question, selection, by))

    words = "some" if question.several else "one"
    return _named(ask, question, f" `by` is {words} of {', '.join(question.by)}.")


def _asks(question: Question) -> Ask:
    def ask(profile: Profile, *, window: str = "steady", range_name: str | None = None) -> TableAnswer:
        return TableAnswer(**_table(question, chosen(profile, question.ask.__name__, window, range_name)))

    return _named(ask, question)


def _named(ask: Function, question: Question, more: str = "") -> Function:
    """The function with the name of its question, by which it can be pickled, and its docstring."""
    ask.__name__ = ask.__qualname__ = question.ask.__name__
    ask.__doc__ = f"{getdoc(question.ask)}\n\nArguments as for `diagnose`.{more}"
    return ask


kernels = _asks_grouped(gpu.kernels)
ranges = _asks_grouped(gpu.ranges)
copies = _asks_grouped(gpu.copies)
operators = _asks_grouped(operator_questions.operators)
flops = _asks_grouped(operator_questions.flops)
phases = _asks_grouped(time.phases)
launches = _asks_grouped(host.launches)
api = _asks_grouped(host.api)
memory = _asks_grouped(memory_questions.memory)
steps = _asks(time.steps)
code = _asks(host.code)


def counters(report: Counters, *, by: str | Sequence[str] = "group", metrics: Sequence[str] = ()) -> TableAnswer:
    """What limits each kernel, and why: from Nsight Compute counters.

    Args:
        report: a `.ncu-rep` file, its CSV, `demo:NAME`, or `KernelCounters`.
        by: grouping, as in `warplens counters --by`.
        metrics: further metrics to show.

    Raises:
        TypeError: it is neither a path nor counters.
        UnreadableInputError: it cannot be read.
    """
    by = _grouping("counters", by, COUNTER_KEYS)
    kernel_counters = counters_of(report, "counters")
    rows, shown = summarised(kernel_counters, by, list(metrics))
    return TableAnswer(
        command="counters",
        source=(kernel_counters.capture.source,),
        frame=rows,
        facts=(),
        notes=tuple(counter_notes(kernel_counters)),
        tables=(shown,),
        data=partial(dict, by=by, rows=rows),
    )


def roofline(report: Counters) -> TableAnswer:
    """Roofline: how far each kernel is from the peaks of its GPU. Arguments as for `counters`."""
    kernel_counters = counters_of(report, "roofline")
    analysis = roofline_points(kernel_counters)
    source = kernel_counters.capture.source
    rows = analysis.points.select(pl.lit(source).alias("source"), pl.all())
    reason = why_no_chart(analysis)
    return TableAnswer(
        command="roofline",
        source=(source,),
        frame=rows,
        facts=tuple(roof_lines(analysis)),
        notes=(),
        tables=(roofline_table(numbered_points(analysis), limit=None),) if analysis.counted else (),
        data=partial(dict, reports=[{"source": source, "roofs": analysis.roofs}], rows=rows),
        problems=() if reason is None else (f"{source}: {reason}",),
    )


def _table(question: Question, selection: Selection, by: str | Sequence[str] = "") -> dict[str, Any]:
    """The fields of a `TableAnswer` to a question."""
    name = question.ask.__name__
    arguments: dict[str, Any] = dict.fromkeys(question.flags, False)
    if question.by:
        arguments["by"] = _grouping(name, by, question.by, several=question.several) or question.default
    result: QuestionResult = question.ask(selection.timeline, selection.window, **arguments)
    return {
        "command": name,
        "source": selection.source,
        "frame": result.rows,
        "facts": tuple(result.facts),
        "notes": selection.notes,
        "tables": result.tables,
        "data": partial(_table_data, selection.window, result),
    }


def _table_data(window: Window, result: QuestionResult) -> dict[str, Any]:
    return {"window": window_data(window), **result.data, "rows": result.rows}


def _grouping(function: str, by: str | Sequence[str], words: Sequence[str], *, several: bool = False) -> str:
    """The grouping as text, its words joined by commas; empty as it is."""
    text = by if isinstance(by, str) else ",".join(by)
    for word in text.split(",") if several else [text]:
        if text and word not in words:
            raise UsageError(f"warplens.{function}(by={by!r}): {word!r} is not one of {', '.join(words)}")
    return text


def headroom(
    profile: Profile,
    *,
    window: str = "steady",
    range_name: str | None = None,
    program: Profile | None = None,
    counters: Counters | None = None,
) -> HeadroomAnswer:
    """From the measured step time down to this GPU's limit, in parts that add up exactly.

    Args:
        profile, window, range_name: as for `diagnose`.
        program: a PyTorch trace of the same program with shapes, from which the work of equal kernels is known.
        counters: a report of Nsight Compute on the same program; its measurements replace models.
    """
    return headroom_selection(
        chosen(profile, "headroom", window, range_name),
        None if program is None else timeline_of(program, "headroom"),
        None if counters is None else counters_of(counters, "headroom"),
    )


def headroom_selection(
    selection: Selection, program: Timeline | None = None, counters: KernelCounters | None = None
) -> HeadroomAnswer:
    """`headroom` for a selected window, with a trace and a counter report that give the work of its kernels."""
    if program is not None and not program.trace.operators["input_shapes"].count():
        raise MissingDataError(
            f"{program.trace.capture.source}: no shapes were recorded, from which the work of kernels would be known: "
            "torch.profiler.profile(record_shapes=True) does"
        )
    told = None if program is None else program.trace.capture.source
    counted = None if counters is None else counters.capture.source
    devices = headrooms(selection.timeline, selection.window, program=program, counters=counters)
    rows = headroom_rows(devices)
    return HeadroomAnswer(
        command="headroom",
        source=selection.source,
        frame=rows,
        facts=tuple(sentence for device in devices for sentence in facts(device, told, counted)),
        notes=selection.notes,
        tables=tuple(table for device in devices for table in (parts_table(device), groups_table(device))),
        data=partial(_headroom_data, selection.window, devices, rows),
        devices=tuple(devices),
    )


def _headroom_data(window: Window, devices: Sequence[Headroom], rows: pl.DataFrame) -> dict[str, Any]:
    return {"window": window_data(window), "devices": list(map(device_data, devices)), "rows": rows}
