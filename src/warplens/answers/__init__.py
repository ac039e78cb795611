"""What Python asks of Warplens: a function a question; a profile goes in, a typed answer comes out.

A profile is a path, a folder, `demo:NAME`, a `Trace`, a `Timeline`, or a `torch.profiler.profile` after its `with`
block. An answer (`results`) is immutable, has `.frame`, `.to_dict()`, `.save()`, and shows itself in a notebook.
Anything that is no profile is refused at the call (`given`).

Lives here: what both the command line and Python ask with. May import: `warplens.report`, `warplens.ranks` and what
they know. Everything is imported by the question that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError

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
    """The trace in a profile: a file (also compressed), a folder that holds one, `demo:NAME`, or a live profiler.

    Args:
        profile: where it is; a `Trace` is given back as it is.
        progress: is told in a few words, now and then, what is being done.
        launch_configuration: whether to read grids, blocks, registers and shared memory of kernels. Without them the
            columns are null, and a large file is read a third faster.
        gpu: the name of the GPU that it was recorded on (`H100 PCIe`, `MI300X`), for a profile that does not say; its
            data sheet then gives the roofs. All functions here take the trace that comes back.

    Raises:
        TypeError: it is nothing that holds a profile.
        UnreadableInputError: the file is missing, damaged, or not a profile that this version can read.
        UsageError: a folder holds several, or no data sheet of that GPU is known.
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
) -> DiagnosisAnswer | RunAnswer:
    """What limits the program, what to do about it, how much that brings, and what would refute it.

    Args:
        profile: what to judge; several profiles, or a folder with them, must be the ranks of one run.
        window: `steady` (its steps without warm-up), `all`, or a span such as `1.5s:2s`.
        range_name: only what was launched inside ranges of this name.
        counters: a report of Nsight Compute on the same program, for what happens inside kernels.

    Raises:
        TypeError: it is nothing that holds a profile.
        UsageError: the window lies outside of it, there is no such range, or several profiles are not of one run.
        UnreadableInputError: a file cannot be read.
    """
    from warplens.answers.inputs import counters_of, one_of

    if (one := one_of(profile, "diagnose")) is None:
        if range_name is not None or counters is not None:
            raise UsageError("warplens.diagnose(): range_name and counters are about one profile: name it")
        return _diagnose_run(profile, window)
    profile = one
    report = None if counters is None else counters_of(counters, "diagnose")
    return diagnose_selection(_selected(profile, "diagnose", window, range_name), report)


def diagnose_selection(
    selection: Selection, counters: KernelCounters | None = None, together: Sequence[str] = ()
) -> DiagnosisAnswer:
    """The same of a window that is at hand.

    Args:
        selection: profile and window.
        counters: a report of hardware counters on the same program.
        together: changes to predict made at once, besides the single ones.
    """
    from dataclasses import replace

    from warplens.analysis.hostpace import host_pace
    from warplens.analysis.prediction import predictions
    from warplens.analysis.timebudget import time_budgets
    from warplens.answers.results import DiagnosisAnswer
    from warplens.diagnosis import diagnose as diagnose_window
    from warplens.report.jsonout import window_data
    from warplens.report.verdict import coverage_lines, diagnosis_data, diagnosis_tables, findings_frame, pace_lines

    timeline, window = selection.timeline, selection.window
    budgets = time_budgets(timeline, window)
    pace = host_pace(timeline, window)  # of the calls that causes of pauses were found with, which a diagnosis forgets
    found = diagnose_window(timeline, window, counters, notes=selection.notes, budgets=budgets)
    if together:
        modelled = predictions(timeline, window, together=list(together))
        asked = tuple(item for item in modelled if item.change == ",".join(together))
        found = replace(found, predictions=tuple(dict.fromkeys([*asked, *found.predictions])))
    return DiagnosisAnswer(
        command="diagnose",
        source=selection.source,
        frame=findings_frame(found).drop("gain", "at_most"),
        facts=(*pace_lines(pace, steps=bool(window.steps)), *coverage_lines(found)),
        notes=found.notes,
        tables=diagnosis_tables(found)[1:],
        data=lambda: {"window": window_data(window), **diagnosis_data(found), "pace": pace},
        diagnosis=found,
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
    found = one_run(timelines, lambda timeline: timeline.window(window))
    if found is None:
        raise NotOneRunError(sources)
    return run_answer(found, sources)


def run_answer(found: RunDiagnosis, sources: tuple[str, ...], problems: tuple[str, ...] = ()) -> RunAnswer:
    """The answer on the ranks of a run.

    Args:
        found: its diagnosis.
        sources: the names of the files that were used.
        problems: why others were not, one line each.
    """
    from warplens.answers.results import RunAnswer
    from warplens.report.ranks import answer, facts, wait_table
    from warplens.report.run import by_itself_table, run_data, run_frame

    result = found.run.result
    return RunAnswer(
        command="diagnose",
        source=sources,
        frame=run_frame(found),
        facts=(*facts(result), answer(result)),
        notes=found.notes,
        tables=(by_itself_table(found), wait_table(result)),
        data=lambda: run_data(found),
        diagnosis=found,
        problems=problems,
    )


def report(
    profiles: Profile | Sequence[Profile], *, window: str = "steady", range_name: str | None = None
) -> ReportAnswer:
    """Everything about one or several profiles; `save("report.html")` writes the report.

    Args:
        profiles: what to report on; a folder stands for all profiles in it. The ranks of one run are judged together.
        window, range_name: as of `diagnose`, of each profile.

    Raises:
        TypeError: something given holds no profile.
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
    found = tuple(map(diagnose_selection, selections))
    several = len(selections) > 1 and range_name is None
    run = one_run([each.timeline for each in selections], lambda each: each.window(window)) if several else None
    sources = tuple(selection.source for selection in selections)

    @cache
    def examined() -> list[Any]:
        return [
            examine(each.timeline, each.window, diagnosis=own.diagnosis)
            for each, own in zip(selections, found, strict=True)
        ]

    def document() -> Any:
        from warplens.report.overview.document import report_document  # charts cost half a second to import

        return report_document(examined(), run)

    rows = [
        {
            "source": each.sources[0],
            "verdict": each.verdict,
            "severity": each.findings[0].severity,
            "expected": each.findings[0].expected,
            "bound": each.findings[0].bound,
            "wall_ns": each.window.duration_ns,
            "steps": len(each.window.steps),
        }
        for each in found
    ]
    schema = {"source": pl.String, "verdict": pl.String, "severity": pl.String, "expected": pl.Float64}
    schema |= {"bound": pl.Float64, "wall_ns": pl.Int64, "steps": pl.Int64}
    return ReportAnswer(
        command="report",
        source=sources,
        frame=pl.DataFrame(rows, schema=schema),
        facts=(*(() if run is None else (run.headline,)), *(each.headline for each in found)),
        notes=tuple(note for selection in selections for note in selection.notes),
        tables=(),
        data=lambda: report_data(examined(), run),
        profiles=found,
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
        baseline, variant: a profile each; a folder or a sequence stands for repeats, which alone are independent.
        window, range_name: as of `diagnose`, of each profile.
        margin: differences of this share and less do not matter.
        level: how often an interval misses the truth: 0.05 for 95 % confidence.
        fail_on: a share by which the variant may be slower; `.numbers.regression` says whether it is, decided.

    Raises:
        TypeError: something given holds no profile.
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
    """The answer on two sides that have been compared."""
    from warplens.answers.results import ComparisonAnswer
    from warplens.report.comparison.numbers import step_data, step_head
    from warplens.report.comparison.steps import kernel_table, part_table
    from warplens.report.comparison.words import step_answer

    wall = numbers.difference.wall
    return ComparisonAnswer(
        command="compare",
        source=(*sides[0].sources, *sides[1].sources),
        frame=wall.frame(),
        facts=(*step_head(numbers), " ".join(step_answer(numbers))),
        notes=numbers.notes,
        tables=(
            part_table(wall, most=8, per=numbers.difference.per),
            kernel_table(numbers.kernels, limit=0, narrow=True),
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
        profile, window, range_name: as of `diagnose`.
        program: a PyTorch trace of the same program with shapes; equal kernels tell the work of this profile's.
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
    """The same of a window that is at hand; a trace and a report that tell the work of its kernels."""
    from warplens.analysis.headroom import headrooms
    from warplens.answers.results import HeadroomAnswer
    from warplens.report.headroom import device_data, facts, groups_table, headroom_rows, parts_table
    from warplens.report.jsonout import window_data

    found = headrooms(selection.timeline, selection.window, program=program, counters=counters)
    rows = headroom_rows(found)
    return HeadroomAnswer(
        command="headroom",
        source=selection.source,
        frame=rows,
        facts=tuple(sentence for one in found for sentence in facts(one)),
        notes=selection.notes,
        tables=tuple(table for one in found for table in (parts_table(one), groups_table(one))),
        data=lambda: {"window": window_data(selection.window), "devices": list(map(device_data, found)), "rows": rows},
        devices=tuple(found),
    )


def budget(profile: Profile, *, window: str = "steady", range_name: str | None = None) -> BudgetAnswer:
    """Where the time went, in parts that add up to it exactly. Arguments as of `diagnose`."""
    from warplens.analysis.timebudget import time_budgets
    from warplens.answers.results import BudgetAnswer
    from warplens.report.questions.time import budget as question

    selection = _selected(profile, "budget", window, range_name)
    budgets = tuple(time_budgets(selection.timeline, selection.window))
    return BudgetAnswer(**_table(question, selection), budgets=budgets)


def kernels(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """GPU kernels: launches, duration, share of the kernel time. `by` as of `warplens kernels --by`."""
    from warplens.report.questions.gpu import kernels as question

    return _table_answer(question, profile, window, range_name, by)


def operators(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """PyTorch operators and modules: host time, GPU time, backward pass. `by` as of `warplens operators --by`."""
    from warplens.report.questions.operators import operators as question

    return _table_answer(question, profile, window, range_name, by)


def ranges(profile: Profile, *, by: str = "", window: str = "steady", range_name: str | None = None) -> TableAnswer:
    """Annotated ranges: GPU time of the work launched inside. `by` as of `warplens ranges --by`."""
    from warplens.report.questions.gpu import ranges as question

    return _table_answer(question, profile, window, range_name, by)


def ranks(profiles: Profile | Sequence[Profile], *, window: str = "steady", workers: int = 1) -> RanksAnswer:
    """The ranks of one distributed run: overlap, collectives, stragglers, waits; `.findings` say what limits the run.

    Args:
        profiles: those of one run; a folder stands for all in it, and a file with several GPUs holds several ranks.
        window: as of `diagnose`.
        workers: processes that read files. Above one, a script must guard its start (`if __name__ == "__main__":`).

    Raises:
        TypeError: something given holds no profile.
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
    summaries = [(summary, place) for place, trace in enumerate(traces) for summary in summarize(trace, window)]
    result = across_ranks([summary for summary, _ in summaries], [place for _, place in summaries])
    return ranks_answer(result, tuple(trace.capture.source for trace in traces), diagnose=diagnosed)


def ranks_answer(
    result: RanksResult,
    sources: tuple[str, ...],
    problems: tuple[str, ...] = (),
    diagnose: Callable[[], RunAnswer] | None = None,
) -> RanksAnswer:
    """The answer on ranks that were held against each other.

    Args:
        result: everything across them.
        sources: the names of the files that were used.
        problems: why others were not, one line each.
        diagnose: says what limits the run.
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
        by: what makes a row, as of `warplens counters --by`.
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
    counted = counters_of(report, "counters")
    rows, shown = summarised(counted, by, list(metrics))
    return TableAnswer(
        command="counters",
        source=(counted.capture.source,),
        frame=rows,
        facts=(),
        notes=tuple(counter_notes(counted)),
        tables=(shown,),
        data=lambda: {"by": by, "rows": rows},
    )


def _selected(profile: Profile, asked: str, window: str, range_name: str | None) -> Selection:
    from warplens.answers.inputs import selected, timeline_of

    return selected(timeline_of(profile, asked), window, range_name)


def _table_answer(question: Question, profile: Profile, window: str, range_name: str | None, by: str) -> TableAnswer:
    from warplens.answers.results import TableAnswer

    selection = _selected(profile, question.ask.__name__, window, range_name)
    return TableAnswer(**_table(question, selection, by))


def _table(question: Question, selection: Selection, by: str = "") -> dict[str, Any]:
    """What an answer holds that a question gives."""
    from warplens.report.jsonout import window_data

    name = question.ask.__name__
    asked: dict[str, Any] = dict.fromkeys(question.flags, False)
    if question.by:
        asked["by"] = by or question.default
        _check_grouping(name, asked["by"], question.by, several=question.several)
    found: Found = question.ask(selection.timeline, selection.window, **asked)
    return {
        "command": name,
        "source": selection.source,
        "frame": found.rows,
        "facts": tuple(found.facts),
        "notes": selection.notes,
        "tables": found.tables,
        "data": lambda: {"window": window_data(selection.window), **found.data, "rows": found.rows},
    }


def _check_grouping(asked: str, by: str, words: Sequence[str], *, several: bool = False) -> None:
    for word in by.split(",") if several else [by]:
        if word not in words:
            raise UsageError(f"warplens.{asked}(by={by!r}): {word!r} is not one of {', '.join(words)}")


def _side_name(timelines: Sequence[Any], role: str) -> str:
    sources = [timeline.trace.capture.source for timeline in timelines]
    return sources[0] if len(sources) == 1 else role
