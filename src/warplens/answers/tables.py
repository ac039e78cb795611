"""Questions that are answered by tables: time budget, headroom, kernels, operators, ranges, counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warplens.analysis.counters.coverage import counter_notes
from warplens.analysis.headroom import headrooms
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.answers.inputs import Counters, Profile, Selection, chosen, counters_of, timeline_of
from warplens.answers.results import BudgetAnswer, HeadroomAnswer, TableAnswer
from warplens.errors import MissingDataError, UsageError
from warplens.profile.counters import KernelCounters
from warplens.report.counters.numbers import COUNTER_KEYS, summarised
from warplens.report.headroom import device_data, facts, groups_table, headroom_rows, parts_table
from warplens.report.jsonout import window_data
from warplens.report.questions import Question, QuestionResult, gpu, time
from warplens.report.questions import operators as operator_questions


def budget(profile: Profile, *, window: str = "steady", range_name: str | None = None) -> BudgetAnswer:
    """Where the time went, in parts that add up to it exactly. Arguments as for `diagnose`."""
    selection = chosen(profile, "budget", window, range_name)
    budgets = tuple(time_budgets(selection.timeline, selection.window))
    return BudgetAnswer(**_table(time.budget, selection), budgets=budgets)


def kernels(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """GPU kernels: launches, duration, share of the kernel time. `by` as in `warplens kernels --by`."""
    return _table_answer(gpu.kernels, profile, window, range_name, by)


def operators(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """PyTorch operators and modules: host time, GPU time, backward pass. `by` as in `warplens operators --by`."""
    return _table_answer(operator_questions.operators, profile, window, range_name, by)


def ranges(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """Annotated ranges: GPU time of the work launched inside. `by` as in `warplens ranges --by`."""
    return _table_answer(gpu.ranges, profile, window, range_name, by)


def counters(report: Counters, *, by: str = "group", metrics: Sequence[str] = ()) -> TableAnswer:
    """What limits each kernel, and why: from Nsight Compute counters.

    Args:
        report: a `.ncu-rep` file, its CSV, `demo:NAME`, or `KernelCounters`.
        by: grouping, as in `warplens counters --by`.
        metrics: further metrics to show.

    Raises:
        TypeError: it is neither a path nor counters.
        UnreadableInputError: it cannot be read.
    """
    _check_grouping("counters", by, COUNTER_KEYS)
    kernel_counters = counters_of(report, "counters")
    rows, shown = summarised(kernel_counters, by, list(metrics))
    return TableAnswer(
        command="counters",
        source=(kernel_counters.capture.source,),
        frame=rows,
        facts=(),
        notes=tuple(counter_notes(kernel_counters)),
        tables=(shown,),
        data=lambda: {"by": by, "rows": rows},
    )


def _table_answer(question: Question, profile: Profile, window: str, range_name: str | None, by: str) -> TableAnswer:
    selection = chosen(profile, question.ask.__name__, window, range_name)
    return TableAnswer(**_table(question, selection, by))


def _table(question: Question, selection: Selection, by: str = "") -> dict[str, Any]:
    """The fields of a `TableAnswer` to a question."""
    name = question.ask.__name__
    arguments: dict[str, Any] = dict.fromkeys(question.flags, False)
    if question.by:
        arguments["by"] = by or question.default
        _check_grouping(name, arguments["by"], question.by, several=question.several)
    result: QuestionResult = question.ask(selection.timeline, selection.window, **arguments)
    return {
        "command": name,
        "source": selection.source,
        "frame": result.rows,
        "facts": tuple(result.facts),
        "notes": selection.notes,
        "tables": result.tables,
        "data": lambda: {"window": window_data(selection.window), **result.data, "rows": result.rows},
    }


def _check_grouping(function: str, by: str, words: Sequence[str], *, several: bool = False) -> None:
    for word in by.split(",") if several else [by]:
        if word not in words:
            raise UsageError(f"warplens.{function}(by={by!r}): {word!r} is not one of {', '.join(words)}")


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
        data=lambda: {
            "window": window_data(selection.window),
            "devices": list(map(device_data, devices)),
            "rows": rows,
        },
        devices=tuple(devices),
    )
