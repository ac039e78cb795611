"""`warplens PATH…`: the answer in a few lines for any kind of files, and a report."""

from __future__ import annotations

import re
import webbrowser
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warplens.answers import diagnose_selection
from warplens.answers.inputs import selected
from warplens.cli.answer import checked_folder, checked_target, head, print_brief, print_lines, recorded_by
from warplens.cli.commands.report import DEFAULT_FOLDER, shipped_profiles, write_reports
from warplens.cli.options import Format, FormatOption, RangeOption, StepTimeOption, WindowOption, argument, option
from warplens.cli.process import State, end_with, note, progress
from warplens.cli.reading import GridRequest, Profiles, Reading, examined, limited_to_full_reports, read_all, run_in
from warplens.errors import UsageError
from warplens.readers import discover_both, holds_measurements
from warplens.readers.shipped import PREFIX, shipped
from warplens.report import text as fmt
from warplens.report.brief import Line, brief, brief_table, cautions, lines_of
from warplens.report.write import form_named
from warplens.writing import made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.answers.results import ComparisonAnswer, DiagnosisAnswer
    from warplens.diagnosis import Diagnosis
    from warplens.diagnosis.across import RunDiagnosis

#: Sides of a comparison.
_SIDES: Final = 2


def answer(
    paths: Annotated[
        list[Path],
        argument("PATH…", "One or more profiles, or folders of profiles; demo:NAME for one that comes with Warplens."),
    ],
    output: Annotated[
        Path | None,
        option("DIR|FILE", f"Folder for the report, or its page; ./{DEFAULT_FOLDER} by default.", "--output", "-o"),
    ] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    step_time: StepTimeOption = None,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = "table",
) -> None:
    """The answer in a few lines; `warplens PATH…` does the same.

    One profile: what limits it, how much there is to gain, what to do, how sure that is, and what to run next. Two:
    their comparison. Ranks of one run: what they cost each other. Profiles named after models and context lengths: the
    grid. Nsight Compute reports are answered by themselves, and joined with the profiles given with them. Formats other
    than table print the JSON, CSV or Markdown of diagnose, compare or counters, and write no report.
    """
    if [str(path) for path in paths] == [PREFIX]:
        print_lines(_shipped_lines())
        return
    if len(paths) == 1 and holds_measurements(paths[0]):
        raise UsageError(
            f"{paths[0].name} holds measurements, not a profile. Ask: warplens sweep report {typed(paths[0])}, or "
            f"warplens compare {typed(paths[0])} OTHER"
        )
    if form != "table":
        if output is not None or opened:
            raise UsageError(
                f"--format {form} writes no report: leave out --output and --open, or ask: warplens report"
            )
        _for_programs(paths, step_time, window, range_name, form)
        return
    folder = _report_folder(output, paths)
    reading = read_all(paths, window, range_name, step_time=step_time)
    profiles = reading.profiles
    run = run_in(reading) if range_name is None else None
    written: list[Path] = []
    diagnosed: list[DiagnosisAnswer] = []
    if len(profiles.timelines) == 1:
        diagnosed = [_print_profile(reading, step_time, _repeated(window, range_name, State.gpu))]
    elif run is not None:
        _print_run(run, paths, window)
    elif (
        len(profiles.timelines) == _SIDES
        and reading.cells is None
        and not are_ranks(profiles.timelines)
        and (compared := _compare(profiles, paths, window, range_name))
    ):
        if folder is not None:
            page = folder / "compare.html" if form_named(folder) is None else folder
            with made(page.parent):
                written = [compared.save(page)]
    elif profiles.timelines:
        diagnosed = _diagnosed(profiles.timelines, reading.window)
        print_brief(brief_table([(answer.sources[0], answer.diagnosis) for answer in diagnosed]))
    _print_counters(reading, paths)
    if folder is not None:
        written += _reports(reading, folder, [answer.diagnosis for answer in diagnosed], run, written)
        print_brief([Line("report", "", "plain", tuple(map(str, written)))])
        if opened and not webbrowser.open(written[0].absolute().as_uri()):
            note("no browser could be opened")
    end_with(reading.unreadable, "answer")


def typed(path: Path) -> str:
    """A path as typed in a shell: `demo:NAME` for a shipped profile, else quoted if necessary."""
    name = next((name for name, file in shipped().items() if file == path), None)
    return f"{PREFIX}{name}" if name is not None else fmt.shell_word(path)


def _repeated(window: str, range_name: str | None = None, gpu: str | None = None) -> str:
    """The options of this call that change the answer, for the commands to run next; empty without any."""
    given = {"--gpu": gpu, "--window": window if window != "steady" else None, "--range": range_name}
    return "".join(f" {name} {fmt.shell_word(value)}" for name, value in given.items() if value is not None)


def are_ranks(timelines: Sequence[Timeline]) -> bool:
    """Whether the profiles may be ranks of one run: each has a rank, recorded or in its name, and all are distinct."""
    from warplens.analysis.ranks.across import rank_in_name

    captures = [timeline.trace.capture for timeline in timelines]
    numbers = [capture.rank if capture.rank is not None else rank_in_name(capture.source) for capture in captures]
    return len(numbers) > 1 and None not in numbers and len(set(numbers)) == len(numbers)


def _report_folder(output: Path | None, paths: Sequence[Path]) -> Path | None:
    """The folder or file of the report; None if none was named and the default folder is not writable."""
    if output is not None:
        return checked_target(output, paths)
    try:
        return checked_folder(DEFAULT_FOLDER)
    except UsageError as error:
        note(f"no report is written: {error}")
        return None


def _print_profile(reading: Reading, step_time: str | None, repeated: str) -> DiagnosisAnswer:
    """Print the answer on one profile with its counters, and what to ask next, with the `repeated` options."""
    (timeline,), (path,) = reading.profiles.timelines, reading.profiles.paths
    selection = selected(timeline, reading.window(timeline))
    with progress("diagnosing"):
        answer = diagnose_selection(selection, reading.counted)
    profile, coverage = typed(path), answer.diagnosis.coverage
    diagnose = f"warplens diagnose {profile}{repeated}"
    if step_time is not None:
        diagnose += f" --step-time {fmt.shell_word(step_time)}"
    if reading.counted is not None and reading.joined[0][0].matches:
        diagnose += f" --counters {typed(reading.counter_paths[0])}"
    commands = {diagnose: "every finding, with its evidence and what would refute it"}
    if answer.findings[0].remedies and answer.verdict != "incomplete-profile":
        commands[f"warplens compare {profile} AFTER{repeated}"] = "after the change: did it work, and is that certain?"
    is_busy, counters = coverage.busy_ns > coverage.idle_ns, timeline.trace.capture.recorder.counters
    if not reading.counters and is_busy and counters == "ncu" and answer.verdict != "blocking-copy":
        commands[f"warplens collect ncu --trace {profile} -- COMMAND"] = "what happens inside the kernels that matter"
    print_lines([" · ".join(head(selection))])
    print_brief(brief(answer.diagnosis, commands=_explained(commands), path=f"{profile}{repeated}"))
    return answer


def _explained(commands: Mapping[str, str]) -> tuple[str, ...]:
    """Commands to copy, each with its purpose as a comment."""
    width = max(map(len, commands))
    return tuple(f"{command:<{width}}  # {purpose}" for command, purpose in commands.items())


#: Matches the name of a file that is the baseline.
_BASELINE: Final = re.compile(r"before|baseline|reference|old", re.IGNORECASE)


def _sides(profiles: Profiles, paths: Sequence[Path]) -> Profiles:
    """Two profiles as baseline and variant: in the order given, or of a folder, the one named as a baseline first."""
    first, second = (bool(_BASELINE.search(path.name)) for path in profiles.paths)
    if len(paths) >= _SIDES or first or not second:
        return profiles
    return replace(profiles, timelines=profiles.timelines[::-1], paths=profiles.paths[::-1])


def _compare(profiles: Profiles, paths: Sequence[Path], window: str, range_name: str | None) -> ComparisonAnswer | None:
    """Compare two profiles, and print the verdict with its cause and certainty.

    None, and nothing is printed, if they are from one folder and apparently of different programs.
    """
    from warplens.answers import compare
    from warplens.report.comparison.words import needed_text, step_answer, work_sentence

    profiles, from_folder = _sides(profiles, paths), len(paths) < _SIDES
    with progress("comparing"):
        comparison = compare(*profiles.timelines, window=window, range_name=range_name)
    if from_folder and any(note.code in ("few-matches", "different-programs") for note in comparison.notes):
        return None
    numbers = comparison.numbers
    verdict, *reasons = step_answer(numbers)
    lines = [Line("baseline", comparison.sources[0]), Line("variant", comparison.sources[1])]
    tone = {"faster": "good", "slower": "critical"}.get(comparison.verdict, "warning")
    lines.append(Line("verdict", verdict, tone))  # type: ignore[arg-type]
    lines += [Line("detail", sentence) for sentence in (*reasons, work_sentence(numbers)) if sentence]
    if (needed_repeats := needed_text(numbers.comparison)) is not None:
        lines.append(Line("sure", needed_repeats))
    lines += cautions(comparison.notes)
    typed_paths, repeated = list(map(typed, profiles.paths)), _repeated(window, range_name, State.gpu)
    asked = f"warplens compare {' '.join(typed_paths)}{repeated}"
    commands = {asked: "the difference, part by part and kernel by kernel"}
    if from_folder:
        explanation = "Two profiles of a folder that are not the ranks of one run: baseline and variant by their names."
        lines.append(Line("taken as", explanation))
        commands[f"warplens compare {' '.join(reversed(typed_paths))}{repeated}"] = "the other way round"
    print_brief([*lines, Line("next", "", "quiet", _explained(commands))])
    return comparison


def _print_run(run: RunDiagnosis, paths: Sequence[Path], window: str) -> None:
    """Print the answer on the ranks of one run, the verdict on each rank, and what to ask of the same window."""
    from warplens.report.ranks import facts
    from warplens.report.run import by_itself_table

    typed_paths = " ".join(map(typed, paths))
    diagnose = f"warplens diagnose {typed_paths}{_repeated(window, gpu=State.gpu)}"
    commands = {
        diagnose: "every finding, with its evidence and what would refute it",
        f"warplens ranks {typed_paths}{_repeated(window)}": "every rank, wait and collective",
    }
    print_lines([" · ".join(islice(facts(run.run.result), 2))])
    print_brief(brief(run, commands=_explained(commands)), by_itself_table(run))


def _print_counters(reading: Reading, paths: Sequence[Path]) -> None:
    """Print the answer on each report of hardware counters; nothing if there is none."""
    if not reading.counters:
        return
    from warplens.report.counters.document import counters_answer, counters_lead

    typed_paths = " ".join(map(typed, reading.counter_paths if reading.profiles.timelines else paths))
    commands = {
        f"warplens counters {typed_paths}": "every kernel: what bounds it, and why",
        f"warplens roofline {typed_paths}": "how far each kernel is from the peaks of its GPU",
    }
    for numbers in reading.counter_numbers:
        print_lines([recorded_by(numbers.capture, devices=True)])
        last = numbers is reading.counter_numbers[-1]
        answer = counters_answer(numbers)
        lead = (Line("verdict", counters_lead(numbers)), *cautions(numbers.warnings))
        lines = lead if answer is None else lines_of(answer)
        print_brief([*lines, *([Line("next", "", "quiet", _explained(commands))] if last else [])])


def _diagnosed(timelines: Sequence[Timeline], window: Callable[[Timeline], Window]) -> list[DiagnosisAnswer]:
    with progress("diagnosing") as tell:
        answers = []
        for timeline in timelines:
            tell(f"diagnosing {timeline.trace.capture.source}")
            answers.append(diagnose_selection(selected(timeline, window(timeline))))
        return answers


def _reports(
    reading: Reading, folder: Path, diagnoses: Sequence[Diagnosis], run: RunDiagnosis | None, before: Sequence[Path]
) -> list[Path]:
    """Write the reports on the profiles, their grid and counters; nothing if the one requested file is written already.

    `before` are the files that were written already.
    """
    if before and form_named(folder) is not None:
        return []
    reading, run = limited_to_full_reports(reading, run)
    numbers = examined(reading, diagnoses)
    return write_reports(reading, numbers, run, GridRequest({}), folder, [form_named(folder) or "html"])


def _for_programs(
    paths: Sequence[Path], step_time: str | None, window: str, range_name: str | None, form: Format
) -> None:
    """Run the command with machine-readable output for these files: `diagnose`, `compare` or `counters`."""
    from warplens.cli.commands.diagnose import diagnose

    traces, reports = discover_both(paths)
    if step_time is not None and len(traces) != 1:
        raise UsageError("--step-time is about one profile: name it")
    if not traces:
        from warplens.cli.commands.counters import counters

        counters(reports, form=form)
    elif len(traces) == 1:
        diagnose([traces[0]], reports[0] if reports else None, None, step_time, window, range_name, form)
    else:
        from warplens.cli.commands.compare import compare
        from warplens.ranks import NotOneRunError

        try:
            diagnose(traces, None, None, None, window, range_name, form)
        except NotOneRunError as error:
            if len(traces) != _SIDES or len(paths) != _SIDES:
                raise UsageError(
                    f"{len(traces)} profiles have no answer in this form: ask warplens report --format json, or name "
                    "one"
                ) from error
            compare(paths[0], paths[1], window=window, range_name=range_name, form=form)


def _shipped_lines() -> Iterator[str]:
    """The names of shipped files, with a description."""
    workloads = {entry["file"]: entry["workload"] for entry in shipped_profiles()}
    width = max(map(len, shipped()), default=0)
    for name, path in shipped().items():
        yield f"{PREFIX}{name:<{width}}  {workloads.get(path.name) or _OTHERS[path.parent.name]}"


#: Descriptions of shipped files that are not profiles, by folder.
_OTHERS: Final = {
    "captures": "times that the programs of the profiles measured themselves",
    "counters": "Nsight Compute on kernels with known faults: warplens counters, roofline",
    "measurements": "measurements: warplens sweep report, policy fit, bench show",
    "policies": "which side to run for which shape: warplens policy check",
}
