"""Commands that print tables on one profile: those of `warplens.report.questions`, and `headroom`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from warplens.analysis.timeline import Timeline
from warplens.answers.inputs import Selection, only_profile
from warplens.cli.answer import Answer, Part, answered, emit, head, limited, most_rows, note_lines, select
from warplens.cli.memory import TABLE, check_work_alone, needed_beyond_limit
from warplens.cli.options import (
    Format,
    FormatOption,
    LimitOption,
    ProfileArgument,
    RangeOption,
    WindowOption,
    flag,
    group_by,
    option,
    with_parameters,
)
from warplens.cli.process import State, progress
from warplens.profile import Capture, Trace
from warplens.readers import read, read_counters, slices
from warplens.report import text as fmt
from warplens.report.jsonout import window_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.analysis.window import Window
    from warplens.report.questions import Question, QuestionResult


def command_of(question: Question) -> Callable[..., None]:
    """The command of a question: a function whose parameters are its arguments and options."""
    name = question.ask.__name__

    def command(
        path: Path, window: str, range_name: str | None, form: Format, limit: int | None, **own_options: Any
    ) -> None:
        """Asks the question of the profile, in slices if that is too large for memory, and emits the answer."""
        profile = only_profile(path)
        needs_whole = window == "steady" or range_name is not None
        if (question.counted or question.alone) and not needs_whole and needed_beyond_limit(profile, TABLE):
            capture, limits, answer = _in_slices(question, profile, window, **own_options)
            selection = Selection(Timeline(Trace(capture)), limits, capture.notes)
        else:
            selection = select(profile, window, range_name)
            answer = question.ask(selection.timeline, selection.window, **own_options)
        most = most_rows(form, limit)
        if answer.largest_by is not None and most is not None and most < answer.rows.height:
            answer = _largest(answer, most)
        rows = answer.rows if most is None else answer.rows.head(most)
        part = Part(
            head=[*head(selection), *answer.facts],
            notes=note_lines(selection.notes),
            tables=limited(answer.tables, most),
        )
        data = {"window": window_data(selection.window), **answer.data, "rows": rows}
        emit(Answer(name, selection.source, [part], rows, lambda: data, selection.notes), form)

    parameters: dict[str, tuple[Any, Any]] = {"path": (ProfileArgument, inspect.Parameter.empty)}
    if question.by:
        parameters["by"] = (Annotated[str, group_by(*question.by, several=question.several)], question.default)
    parameters |= {"window": (WindowOption, "steady"), "range_name": (RangeOption, None)}
    for word, meaning in question.flags.items():
        parameters[word] = (Annotated[bool, flag(f"--{word}", meaning)], False)
    parameters |= {"form": (FormatOption, "table"), "limit": (LimitOption, 0 if question.whole else None)}
    command.__name__, command.__doc__ = name, question.ask.__doc__
    with_parameters(command, parameters)
    return command


def _in_slices(
    question: Question, profile: Path, window: str, **own_options: Any
) -> tuple[Capture, Window, QuestionResult]:
    """The answer for a profile larger than memory, with its capture and window, which needs neither steps nor ranges.

    The question has `counted` or `alone`.
    """
    with progress(f"reading {profile.name} in slices") as tell, slices(profile, tell) as sliced:
        if sliced is not None and question.counted is not None:
            capture = sliced.capture
            limits = Timeline(Trace(capture)).window(window)
            span = (None, None) if window == "all" else (limits.start_ns, limits.end_ns)
            counts = sliced.counts(question.counted.table, question.counted.columns(own_options["by"]), span)
            return capture, limits, question.counted.answer(counts, own_options["by"])
        if sliced is None:
            check_work_alone(profile)
            trace = read(profile, progress=tell, launch_configuration=False, work_alone=True)
        else:
            trace = sliced.tables(*question.alone)
        timeline = Timeline(trace)
        limits = timeline.window(window)
        return timeline.trace.capture, limits, question.ask(timeline, limits, **own_options)


def _largest(answer: QuestionResult, most: int) -> QuestionResult:
    """The largest rows of a tree by `largest_by`, in their order. Parents are never smaller, so it stays a tree."""
    column, noun = answer.largest_by or ("", "")
    ranked = answer.rows.with_row_index("index").sort(column, descending=True, maintain_order=True)
    rows = ranked.head(most).sort("index").drop("index")
    fact = f"the {most} of {fmt.count(answer.rows.height)} {noun} with the most GPU time; --limit 0 shows all"
    (table,) = answer.tables
    return replace(answer, rows=rows, tables=(replace(table, rows=rows),), facts=(*answer.facts, fact))


def headroom(
    path: ProfileArgument,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    with_trace: Annotated[
        Path | None,
        option(
            "TRACE",
            "A PyTorch trace of the same program with shapes, from which the FLOPs and bytes of equal kernels "
            "are known.",
            "--with",
        ),
    ] = None,
    counters: Annotated[
        Path | None,
        option("REPORT", "An Nsight Compute report on the same program; its measurements replace models."),
    ] = None,
    form: FormatOption = "table",
    limit: LimitOption = None,
) -> None:
    """From the measured step time down to this GPU's limit, in parts that add up exactly.

    The steps down: no idle time, every kernel at its practical roof, no avoidable work, the precision that the hardware
    is built for. Roofs and avoidable work are modelled; idle time is measured.
    """
    from warplens.answers import headroom_selection  # the other tables do not need what it imports

    selection = select(path, window, range_name, launch_configuration=True)
    program = None if with_trace is None else Timeline(read(with_trace, launch_configuration=True, gpu=State.gpu))
    counted = None if counters is None else read_counters(counters)
    answer = headroom_selection(selection, program, counted)
    printed = answered(answer, Part(head=[*head(selection), *answer.facts]), most_rows(form, limit))
    emit(replace(printed, data=lambda: {**answer.data(), "rows": printed.rows}), form)
