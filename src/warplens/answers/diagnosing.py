"""The diagnosis of a profile, and the ranks of a distributed run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from warplens.analysis.hostpace import HostPace, host_pace
from warplens.analysis.prediction import CHANGES, predictions
from warplens.analysis.ranks.across import RanksResult, across_ranks
from warplens.analysis.ranks.summary import summarize
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.window import Window
from warplens.answers.inputs import (
    Counters,
    Profile,
    Selection,
    are_paths,
    chosen,
    counters_of,
    one_of,
    paths_of,
    timelines_of,
)
from warplens.answers.results import DiagnosisAnswer, RanksAnswer, RunAnswer
from warplens.diagnosis import Diagnosis, verdict
from warplens.diagnosis.across import RunDiagnosis
from warplens.diagnosis.unprofiled import with_step_time
from warplens.errors import UsageError
from warplens.profile.counters import KernelCounters
from warplens.ranks import NotOneRunError, analyse_ranks, diagnose_ranks, one_run
from warplens.report.jsonout import window_data
from warplens.report.ranks import (
    answer,
    facts,
    limiting_notes,
    rank_rows,
    ranks_data,
    terminal_tables,
    wait_table,
)
from warplens.report.run import by_itself_table, run_data, run_frame
from warplens.report.verdict import (
    coverage_lines,
    diagnosis_data,
    diagnosis_tables,
    findings_frame,
    lacks_records,
    pace_lines,
)


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
    if (single := one_of(profile, "diagnose")) is None:
        if any(given is not None for given in (range_name, counters, step_time_ns)):
            raise UsageError(
                "warplens.diagnose(): range_name, counters and step_time_ns are about one profile: name it"
            )
        return diagnose_run(profile, window)
    report = None if counters is None else counters_of(counters, "diagnose")
    selection = chosen(single, "diagnose", window, range_name)
    if step_time_ns is not None:
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
    timeline, window = selection.timeline, selection.window
    budgets = time_budgets(timeline, window)
    pace = host_pace(timeline, window)  # before the diagnosis, which drops the cached calls that it uses
    together = tuple(dict.fromkeys(together))
    findings = () if CHANGES.keys() >= set(together) else together
    diagnosis = verdict.diagnose(timeline, window, counters, notes=selection.notes, budgets=budgets, together=findings)
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
        data=partial(_diagnosis_data, window, diagnosis, pace),
        diagnosis=diagnosis,
        timeline=timeline,
        window=window,
    )


def _diagnosis_data(window: Window, diagnosis: Diagnosis, pace: HostPace | None) -> dict[str, Any]:
    return {"window": window_data(window), **diagnosis_data(diagnosis), "pace": pace}


def diagnose_run(profiles: Profile | Sequence[Profile], window: str) -> RunAnswer:
    """`diagnose` for several profiles, which must be the ranks of one run."""
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
    result = diagnosis.run.result
    return RunAnswer(
        command="diagnose",
        source=sources,
        frame=run_frame(diagnosis),
        facts=(*facts(result), answer(result)),
        notes=diagnosis.notes,
        tables=(by_itself_table(diagnosis), wait_table(result)),
        data=partial(run_data, diagnosis),
        diagnosis=diagnosis,
        problems=problems,
    )


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
    if are_paths(profiles):
        run = analyse_ranks(paths_of(profiles), window, workers=workers)
        return ranks_answer(run.result, run.sources, run.problems, partial(diagnose_run, profiles, window))
    timelines = timelines_of(profiles, "ranks")
    traces = [timeline.trace for timeline in timelines]
    summaries = [(summary, file) for file, trace in enumerate(traces) for summary in summarize(trace, window)]
    result = across_ranks([summary for summary, _ in summaries], [file for _, file in summaries])
    return ranks_answer(
        result, tuple(trace.capture.source for trace in traces), diagnose=partial(diagnose_run, timelines, window)
    )


def ranks_answer(
    result: RanksResult,
    sources: tuple[str, ...],
    problems: tuple[str, ...] = (),
    diagnose: Callable[[], RunAnswer] | None = None,
) -> RanksAnswer:
    """The answer on the ranks of a run, with the names of the files that were used, and the errors of the others.

    `diagnose` is called when the findings of the run are requested.
    """
    return RanksAnswer(
        command="ranks",
        source=sources,
        frame=rank_rows(result),
        facts=(*facts(result), answer(result)),
        notes=limiting_notes(result),
        tables=tuple(terminal_tables(result)),
        data=partial(ranks_data, result),
        result=result,
        problems=problems,
        _diagnose=diagnose,
    )
