"""The Python interface: one function per question, which takes a profile and returns a typed answer.

A profile is a path, a folder, `demo:NAME`, a `Trace`, a `Timeline`, or a `torch.profiler.profile` after its `with`
block; anything else raises at the call (`inputs`). An answer (`results`) is immutable, has `.frame`, `.to_dict()` and
`.save()`, and displays itself in a notebook.

The command line uses the same functions. May import: `warplens.report`, `warplens.ranks` and what they may import.
Each function imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.analysis.timeline import Timeline
    from warplens.answers.inputs import Counters, Profile, Selection
    from warplens.answers.results import (
        BudgetAnswer,
        ComparisonAnswer,
        DiagnosisAnswer,
        HeadroomAnswer,
        RanksAnswer,
        ReportAnswer,
        RunAnswer,
        TableAnswer,
    )
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.profile import Trace
    from warplens.profile.counters import KernelCounters
    from warplens.report.comparison.numbers import StepNumbers, TraceFiles
    from warplens.report.questions import Found, Question


def read(
    profile: Profile,
    *,
    progress: Callable[[str], None] | None = None,
    launch_configuration: bool = True,
    gpu: str | None = None,
) -> Trace:
    """Read a profile: a file (also compressed), a folder with one, `demo:NAME`, or a live profiler.

    Args:
        profile: the profile; a `Trace` is returned unchanged.
        progress: receives the current activity in a few words.
        launch_configuration: whether to read grids, blocks, registers and shared memory of kernels. Without them the
            columns are null, and a large file is read a third faster.
        gpu: name of the GPU that it was recorded on (`H100 PCIe`, `MI300X`), for a profile that does not contain it.
            Its data sheet gives the roofs. All functions here accept the returned trace.

    Raises:
        TypeError: it is not a profile.
        UnreadableInputError: the file is missing, damaged, or not readable by this version.
        UsageError: a folder has several profiles, or the data sheet of the GPU is not known.
    """
    from warplens.answers.inputs import is_path, only_profile, timeline_of
    from warplens.profile.peaks import with_gpu
    from warplens.readers import read as read_file

    if is_path(profile):
        path = only_profile(profile)
        return read_file(path, progress=progress, launch_configuration=launch_configuration, gpu=gpu)
    trace = timeline_of(profile, "read").trace
    return trace if gpu is None else with_gpu(trace, gpu)


def diagnose(
    profile: Profile | Sequence[Profile],
    *,
    window: str = "steady",
    range_name: str | None = None,
    counters: Counters | None = None,
    step_time_ns: float | None = None,
) -> DiagnosisAnswer | RunAnswer:
    """What limits the program, what to do about it, the expected gain, and what would refute it.

    Args:
        profile: a profile; or several, or a folder of them, which must be the ranks of one run.
        window: `steady` (its steps without warm-up), `all`, or a span such as `1.5s:2s`.
        range_name: only work launched inside ranges of this name.
        counters: a report of Nsight Compute on the same program, for findings inside kernels.
        step_time_ns: measured time of a step without a profiler. It tells how much the profiler slowed down the host,
            which is otherwise assumed.

    Raises:
        TypeError: it is not a profile.
        UsageError: the window lies outside of the profile, there is no such range, several profiles are not of one
            run, or a step of the window cannot take that time.
        UnreadableInputError: a file cannot be read.
    """
    from warplens.answers.inputs import counters_of, one_of

    if (single := one_of(profile, "diagnose")) is None:
        if any(given is not None for given in (range_name, counters, step_time_ns)):
            raise UsageError(
                "warplens.diagnose(): range_name, counters and step_time_ns are about one profile: name it"
            )
        return _diagnose_run(profile, window)
    report = None if counters is None else counters_of(counters, "diagnose")
    selection = _selected(single, "diagnose", window, range_name)
    if step_time_ns is not None:
        from dataclasses import replace

        from warplens.diagnosis.pace import with_step_time

        if not 0 < step_time_ns < float("inf"):
            raise UsageError(f"warplens.diagnose(): step_time_ns is a time in nanoseconds, not {step_time_ns}")
        timed = with_step_time(selection.timeline, selection.window, round(step_time_ns))
        selection = replace(selection, timeline=timed)
    return diagnose_selection(selection, report)


def diagnose_selection(
    selection: Selection, counters: KernelCounters | None = None, together: Sequence[str] = ()
) -> DiagnosisAnswer:
    """`diagnose` for a selected window.

    `together` are changes, or findings, whose effects are predicted together. Changes alone are predicted as recorded,
    with the profiler's overhead; findings are predicted without a profiler, and changes beside them are their remedies.
    """
    from dataclasses import replace

    from warplens.analysis.hostpace import host_pace
    from warplens.analysis.prediction import CHANGES, predictions
    from warplens.analysis.timebudget import time_budgets
    from warplens.answers.results import DiagnosisAnswer
    from warplens.diagnosis import diagnose as diagnose_window
    from warplens.report.jsonout import window_data
    from warplens.report.verdict import (
        coverage_lines,
        diagnosis_data,
        diagnosis_tables,
        findings_frame,
        lacks_records,
        pace_lines,
    )

    timeline, window = selection.timeline, selection.window
    budgets = time_budgets(timeline, window)
    pace = host_pace(timeline, window)  # before the diagnosis, which drops the cached calls that it uses
    together = tuple(dict.fromkeys(together))
    findings = () if CHANGES.keys() >= set(together) else together
    diagnosis = diagnose_window(timeline, window, counters, notes=selection.notes, budgets=budgets, together=findings)
    if together and not findings:
        modelled = predictions(timeline, window, together=list(together))
        combined = tuple(prediction for prediction in modelled if prediction.change == ",".join(together))
        diagnosis = replace(diagnosis, predictions=tuple(dict.fromkeys([*combined, *diagnosis.predictions])))
    busy_share = diagnosis.coverage.busy_ns / max(diagnosis.coverage.wall_ns, 1)
    return DiagnosisAnswer(
        command="diagnose",
        source=selection.source,
        frame=findings_frame(diagnosis).drop("gain", "at_most"),
        facts=(
            *(() if lacks_records(diagnosis) else pace_lines(pace, steps=bool(window.steps), busy_share=busy_share)),
            *coverage_lines(diagnosis),
        ),
        notes=diagnosis.notes,
        tables=diagnosis_tables(diagnosis)[1:],
        data=lambda: {"window": window_data(window), **diagnosis_data(diagnosis), "pace": pace},
        diagnosis=diagnosis,
        timeline=timeline,
        window=window,
    )


def _diagnose_run(profiles: Profile | Sequence[Profile], window: str) -> RunAnswer:
    from warplens.answers.inputs import are_paths, paths_of, timelines_of
    from warplens.ranks import NotOneRunError, diagnose_ranks, one_run

    if are_paths(profiles):
        run = diagnose_ranks(paths_of(profiles), window, workers=1)
        return run_answer(run.diagnosis, run.sources, run.problems)
    timelines = timelines_of(profiles, "diagnose")
    sources = tuple(timeline.trace.capture.source for timeline in timelines)
    diagnosis = one_run(timelines, lambda timeline: timeline.window(window))
    if diagnosis is None:
        raise NotOneRunError(sources)
    return run_answer(diagnosis, sources)


def run_answer(diagnosis: RunDiagnosis, sources: tuple[str, ...], problems: tuple[str, ...] = ()) -> RunAnswer:
    """The answer on the ranks of a run, with the names of the files that were used, and the errors of the others."""
    from warplens.answers.results import RunAnswer
    from warplens.report.ranks import answer, facts, wait_table
    from warplens.report.run import by_itself_table, run_data, run_frame

    result = diagnosis.run.result
    return RunAnswer(
        command="diagnose",
        source=sources,
        frame=run_frame(diagnosis),
        facts=(*facts(result), answer(result)),
        notes=diagnosis.notes,
        tables=(by_itself_table(diagnosis), wait_table(result)),
        data=lambda: run_data(diagnosis),
        diagnosis=diagnosis,
        problems=problems,
    )


def report(
    profiles: Profile | Sequence[Profile], *, window: str = "steady", range_name: str | None = None
) -> ReportAnswer:
    """Everything about one or several profiles; `save("report.html")` writes the report.

    Args:
        profiles: the profiles; a folder means all profiles in it. The ranks of one run are also diagnosed together.
        window, range_name: as for `diagnose`, for each profile.

    Raises:
        TypeError: an argument is not a profile.
        UsageError: a window lies outside of its profile, or there is no such range.
        UnreadableInputError: a file cannot be read.
    """
    from functools import cache

    import polars as pl

    from warplens.answers.inputs import selected, timelines_of
    from warplens.answers.results import ReportAnswer
    from warplens.ranks import one_run
    from warplens.report.overview.numbers import examine
    from warplens.report.write import report_data

    selections = [selected(timeline, window, range_name) for timeline in timelines_of(profiles, "report")]
    diagnosed = tuple(map(diagnose_selection, selections))
    run = None
    if len(selections) > 1 and range_name is None:
        run = one_run([selection.timeline for selection in selections], lambda timeline: timeline.window(window))
    sources = tuple(selection.source for selection in selections)

    @cache
    def examined() -> list[Any]:
        return [examine(answer.timeline, answer.window, diagnosis=answer.diagnosis) for answer in diagnosed]

    def document() -> Any:
        from warplens.report.overview.document import report_document  # charts take half a second to import

        return report_document(examined(), run)

    rows = [
        {
            "source": answer.sources[0],
            "verdict": answer.verdict,
            "severity": answer.findings[0].severity,
            "expected": answer.findings[0].expected,
            "bound": answer.findings[0].bound,
            "wall_ns": answer.window.duration_ns,
            "steps": len(answer.window.steps),
        }
        for answer in diagnosed
    ]
    schema = {"source": pl.String, "verdict": pl.String, "severity": pl.String, "expected": pl.Float64}
    schema |= {"bound": pl.Float64, "wall_ns": pl.Int64, "steps": pl.Int64}
    return ReportAnswer(
        command="report",
        source=sources,
        frame=pl.DataFrame(rows, schema=schema),
        facts=(*(() if run is None else (run.headline,)), *(answer.headline for answer in diagnosed)),
        notes=tuple(note for selection in selections for note in selection.notes),
        tables=(),
        data=lambda: report_data(examined(), run),
        profiles=diagnosed,
        run=None if run is None else run_answer(run, sources),
        _report=document,
    )


def compare(
    baseline: Profile | Sequence[Profile],
    variant: Profile | Sequence[Profile],
    *,
    window: str = "steady",
    range_name: str | None = None,
    margin: float = 0.02,
    level: float = 0.05,
    fail_on: float | None = None,
) -> ComparisonAnswer:
    """Why a variant is slower or faster than its baseline, and how certain that is.

    Args:
        baseline, variant: a profile each; a folder or a sequence means repeats. Only repeats are independent samples.
        window, range_name: as for `diagnose`, for each profile.
        margin: differences of at most this share count as none.
        level: probability that an interval misses the true value: 0.05 for 95 % confidence.
        fail_on: largest acceptable slow-down, a share; the result is in `.numbers.regression`.

    Raises:
        TypeError: an argument is not a profile.
        UsageError: a window lies outside of its profile, or there is no such range.
        MissingDataError: a side takes no time.
        UnreadableInputError: a file cannot be read.
    """
    from warplens.answers.inputs import both_sides, timelines_of, trace_side
    from warplens.report.comparison.numbers import compare_steps

    before, after = (timelines_of(side, "compare") for side in (baseline, variant))
    sides = both_sides(
        trace_side(_side_name(before, "baseline"), before, window, range_name),
        trace_side(_side_name(after, "variant"), after, window, range_name),
    )
    return comparison_answer(compare_steps(*sides, margin=margin, level=level, fail_on=fail_on), sides)


def comparison_answer(numbers: StepNumbers, sides: tuple[TraceFiles, TraceFiles]) -> ComparisonAnswer:
    """The answer on two compared sides."""
    from warplens.answers.results import ComparisonAnswer
    from warplens.report.comparison.numbers import step_data, step_head
    from warplens.report.comparison.steps import kernel_table, part_table
    from warplens.report.comparison.words import step_answer

    return ComparisonAnswer(
        command="compare",
        source=(*sides[0].sources, *sides[1].sources),
        frame=numbers.difference.wall.frame(),
        facts=(*step_head(numbers), " ".join(step_answer(numbers))),
        notes=numbers.notes,
        tables=(
            part_table(numbers.difference, most=8),
            kernel_table(numbers, limit=0, narrow=True),
        ),
        data=lambda: step_data(numbers),
        numbers=numbers,
    )


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
    from warplens.answers.inputs import counters_of, timeline_of

    return headroom_selection(
        _selected(profile, "headroom", window, range_name),
        None if program is None else timeline_of(program, "headroom"),
        None if counters is None else counters_of(counters, "headroom"),
    )


def headroom_selection(
    selection: Selection, program: Timeline | None = None, counters: KernelCounters | None = None
) -> HeadroomAnswer:
    """`headroom` for a selected window, with a trace and a counter report that give the work of its kernels."""
    from warplens.analysis.headroom import headrooms
    from warplens.answers.results import HeadroomAnswer
    from warplens.report.headroom import device_data, facts, groups_table, headroom_rows, parts_table
    from warplens.report.jsonout import window_data

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


def budget(profile: Profile, *, window: str = "steady", range_name: str | None = None) -> BudgetAnswer:
    """Where the time went, in parts that add up to it exactly. Arguments as for `diagnose`."""
    from warplens.analysis.timebudget import time_budgets
    from warplens.answers.results import BudgetAnswer
    from warplens.report.questions.time import budget as question

    selection = _selected(profile, "budget", window, range_name)
    budgets = tuple(time_budgets(selection.timeline, selection.window))
    return BudgetAnswer(**_table(question, selection), budgets=budgets)


def kernels(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """GPU kernels: launches, duration, share of the kernel time. `by` as in `warplens kernels --by`."""
    from warplens.report.questions.gpu import kernels as question

    return _table_answer(question, profile, window, range_name, by)


def operators(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """PyTorch operators and modules: host time, GPU time, backward pass. `by` as in `warplens operators --by`."""
    from warplens.report.questions.operators import operators as question

    return _table_answer(question, profile, window, range_name, by)


def ranges(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """Annotated ranges: GPU time of the work launched inside. `by` as in `warplens ranges --by`."""
    from warplens.report.questions.gpu import ranges as question

    return _table_answer(question, profile, window, range_name, by)


def ranks(profiles: Profile | Sequence[Profile], *, window: str = "steady", workers: int = 1) -> RanksAnswer:
    """The ranks of one distributed run: overlap, collectives, stragglers, waits; `.findings` is its diagnosis.

    Args:
        profiles: those of one run; a folder means all in it, and a file with several GPUs has several ranks.
        window: as for `diagnose`.
        workers: processes that read files. Above one, a script needs `if __name__ == "__main__":`.

    Raises:
        TypeError: an argument is not a profile.
        UsageError: the profiles are not of one run, or none of them can be used.
        UnreadableInputError: there is no such file.
    """
    from warplens.analysis.ranks.across import across_ranks
    from warplens.analysis.ranks.summary import summarize
    from warplens.answers.inputs import are_paths, paths_of, timelines_of
    from warplens.ranks import analyse_ranks

    def diagnosed() -> RunAnswer:
        return _diagnose_run(profiles, window)

    if are_paths(profiles):
        run = analyse_ranks(paths_of(profiles), window, workers=workers)
        return ranks_answer(run.result, run.sources, run.problems, diagnosed)
    traces = [timeline.trace for timeline in timelines_of(profiles, "ranks")]
    summaries = [(summary, file) for file, trace in enumerate(traces) for summary in summarize(trace, window)]
    result = across_ranks([summary for summary, _ in summaries], [file for _, file in summaries])
    return ranks_answer(result, tuple(trace.capture.source for trace in traces), diagnose=diagnosed)


def ranks_answer(
    result: RanksResult,
    sources: tuple[str, ...],
    problems: tuple[str, ...] = (),
    diagnose: Callable[[], RunAnswer] | None = None,
) -> RanksAnswer:
    """The answer on the ranks of a run, with the names of the files that were used, and the errors of the others.

    `diagnose` is called when the findings of the run are requested.
    """
    from warplens.answers.results import RanksAnswer
    from warplens.report.ranks import answer, facts, limiting_notes, rank_rows, ranks_data, terminal_tables

    return RanksAnswer(
        command="ranks",
        source=sources,
        frame=rank_rows(result),
        facts=(*facts(result), answer(result)),
        notes=limiting_notes(result),
        tables=tuple(terminal_tables(result)),
        data=lambda: ranks_data(result),
        result=result,
        problems=problems,
        _diagnose=diagnose,
    )


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
    from warplens.analysis.counters.coverage import counter_notes
    from warplens.answers.inputs import counters_of
    from warplens.answers.results import TableAnswer
    from warplens.report.counters.numbers import COUNTER_KEYS, summarised

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


def _selected(profile: Profile, function: str, window: str, range_name: str | None) -> Selection:
    from warplens.answers.inputs import selected, timeline_of

    return selected(timeline_of(profile, function), window, range_name)


def _table_answer(question: Question, profile: Profile, window: str, range_name: str | None, by: str) -> TableAnswer:
    from warplens.answers.results import TableAnswer

    selection = _selected(profile, question.ask.__name__, window, range_name)
    return TableAnswer(**_table(question, selection, by))


def _table(question: Question, selection: Selection, by: str = "") -> dict[str, Any]:
    """The fields of a `TableAnswer` to a question."""
    from warplens.report.jsonout import window_data

    name = question.ask.__name__
    arguments: dict[str, Any] = dict.fromkeys(question.flags, False)
    if question.by:
        arguments["by"] = by or question.default
        _check_grouping(name, arguments["by"], question.by, several=question.several)
    result: Found = question.ask(selection.timeline, selection.window, **arguments)
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


def _side_name(timelines: Sequence[Any], role: str) -> str:
    sources = [timeline.trace.capture.source for timeline in timelines]
    return sources[0] if len(sources) == 1 else role
