"""`warplens report` and `demo`: reports on profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import warplens
from warplens.analysis.timeline import Timeline
from warplens.cli.answer import checked_folder, checked_target, print_brief, print_json, print_lines
from warplens.cli.options import RangeOption, StepTimeOption, WindowOption, argument, option, words_option
from warplens.cli.process import answering, end_with, note, progress
from warplens.cli.reading import (
    Cells,
    GridRequest,
    Profiles,
    Reading,
    examined,
    find_cells,
    limited_to_full_reports,
    read_all,
    read_profiles,
    run_in,
)
from warplens.errors import UsageError
from warplens.readers import read, read_counters
from warplens.report.write import REPORT_FORMATS, ReportFormat, form_named, write_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.diagnosis.across import RunDiagnosis
    from warplens.report.overview.numbers import Numbers
    from warplens.studies.reports.evidence import Evidence

#: Default folder of reports.
DEFAULT_FOLDER: Final = Path("warplens-report")

#: Default formats of `report`.
_FORMS: Final = "html,json"


def report(
    paths: Annotated[
        list[Path], argument("PATH", "Profiles, reports of hardware counters, and folders that are searched for them.")
    ],
    output: Annotated[
        Path | None,
        option(
            "DIR|FILE",
            f"Folder to write to; ./{DEFAULT_FOLDER} by default. FILE.html, FILE.md or FILE.json is one document. "
            "Without it, --format json prints to stdout.",
            "--output",
            "-o",
        ),
    ] = None,
    formats: Annotated[
        str,
        words_option("--format", "-f", words=REPORT_FORMATS, meaning="What to write, joined by commas.", several=True),
    ] = _FORMS,
    step_time: StepTimeOption = None,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    cells: Annotated[
        list[str] | None,
        option(
            "NAME=MODEL,CONTEXT[,MODE]",
            "Grid cell of a profile, where its name does not show it. May be repeated.",
            "--cell",
        ),
    ] = None,
    timings: Annotated[
        Path | None, option("FILE", "Times that the programs measured themselves, CSV or JSON, for the grid.")
    ] = None,
    batch: Annotated[
        int | None, option("N", "Sequences per batch, for the grid; needed for FLOP rates.", min=1)
    ] = None,
) -> None:
    """Report on your profiles: where the GPU time went, and why.

    Profiles whose names tell a model and a context length (small_ctx512.sqlite) form a grid; from two cells on, a
    second document answers questions about models and contexts. Nsight Compute reports get a document of their own, and
    their counters also appear in the report of the profile. For the ranks of one run, the report begins with what they
    cost each other.
    """
    from warplens.readers.timings import read_timings
    from warplens.studies.grid.cells import parse_cell

    forms = _forms(output, formats)
    grid = GridRequest(dict(map(parse_cell, cells or ())), read_timings(timings) if timings else None, batch)
    to_stdout = output is None and forms == ["json"] and not grid.is_explicit
    folder = DEFAULT_FOLDER if to_stdout else checked_target(output or DEFAULT_FOLDER, paths)
    reading = read_all(paths, window, range_name, grid, step_time)
    run = run_in(reading) if range_name is None else None
    reading, run = limited_to_full_reports(reading, run)
    if to_stdout:
        print_json(_json(reading, run))
    else:
        numbers = examined(reading)
        if numbers:
            _print_answers(numbers, run)
        print_lines(write_reports(reading, numbers, run, grid, folder, forms))
    end_with(reading.unreadable, "report")


def write_reports(
    reading: Reading,
    numbers: Sequence[Numbers],
    run: RunDiagnosis | None,
    grid: GridRequest,
    folder: Path,
    formats: Sequence[ReportFormat],
) -> list[Path]:
    """Write the report on the profiles, and unless the target is a file for it, those on their grid and on counters."""
    written = _write_overview(numbers, folder, formats, run) if numbers else []
    if (reading.cells is not None or reading.counters) and numbers and form_named(folder) is not None:
        note(f"{folder.name} is the report on the profiles; name a folder for those on their grid and on counters")
        return written
    if reading.cells is not None:
        written += _write_grid(reading.profiles, reading.cells, grid, folder, formats, numbers)
    if reading.counters:
        from warplens.report.counters.document import write_counters

        reports = reading.counter_numbers
        with progress("drawing the counters"):
            written += write_counters(reports, folder, formats)
    return written


def _forms(output: Path | None, formats: str) -> list[ReportFormat]:
    """The formats to write: those of `--format`, or for a single file that of its suffix."""
    requested = cast("list[ReportFormat]", formats.split(","))
    form = form_named(output) if output is not None else None
    if output is None or form is None:
        return requested
    if formats != _FORMS and requested != [form]:
        raise UsageError(
            f"{output.name} is to hold {form}, but --format says {formats}: leave --format out, or name a folder"
        )
    return [form]


def _print_answers(profiles: Sequence[Numbers], run: RunDiagnosis | None) -> None:
    """Print the answer in five lines for one profile or a run, or one row per profile for several."""
    from warplens.report.brief import brief, brief_table

    diagnoses = [(numbers.capture.source, numbers.diagnosis) for numbers in profiles if numbers.diagnosis is not None]
    if run is not None:
        from warplens.report.run import by_itself_table  # charts cost half a second to import

        print_brief(brief(run), by_itself_table(run))
    else:
        print_brief(brief(diagnoses[0][1]) if len(diagnoses) == 1 else brief_table(diagnoses))
    print_lines([""])


def _json(reading: Reading, run: RunDiagnosis | None) -> bytes:
    """The JSON of the report on the profiles, with counters joined; without profiles, that on the counters."""
    if not reading.profiles.timelines:
        from warplens.report.counters.document import counters_json

        return counters_json(reading.counter_numbers)
    from warplens.report.write import report_json

    return report_json(examined(reading), run)


def _write_overview(
    numbers: Sequence[Numbers], folder: Path, formats: Sequence[ReportFormat], run: RunDiagnosis | None = None
) -> list[Path]:
    """Write the report on the profiles, and on their run if they are the ranks of one."""
    from warplens.report.write import write_examined

    with progress("drawing"):
        return write_examined(numbers, folder, formats, run)


def _write_grid(
    profiles: Profiles,
    cells: Cells,
    request: GridRequest,
    folder: Path,
    formats: Sequence[ReportFormat],
    numbers: Sequence[Numbers] = (),
) -> list[Path]:
    """Write the document on a grid of models × contexts; `numbers` are the analyses of profiles that are available."""
    from warplens.report.jsonout import envelope
    from warplens.studies.grid.answers import GridCell
    from warplens.studies.grid.document import grid_data, grid_document
    from warplens.studies.grid.grid import answer_grid

    with progress("answering the questions of the grid") as tell:
        grid = answer_grid(
            (
                GridCell(cell.model, cell.context, cell.mode, path.name, timeline, cell.batch)
                for path, timeline in zip(profiles.paths, profiles.timelines, strict=True)
                if (cell := cells.named.get(str(path))) is not None
            ),
            timings=request.timings,
            batch=request.batch,
            unplaced=cells.unplaced,
        )
        tell("drawing the grid")
        warnings = [f"{cell.source}: {reason}" for cell in grid.cells for reason in (*cell.invalid, *cell.notes)]

        def data() -> bytes:
            return envelope("grid", [cell.source for cell in grid.cells], grid_data(grid), warnings)

        diagnoses = {profile.capture.source: profile.diagnosis for profile in numbers if profile.diagnosis is not None}
        return write_document(grid_document(grid, diagnoses), folder, formats, "grid", data)


_DATA: Final = Path(warplens.__file__).parent / "data"
_CAPTURES: Final = _DATA / "captures"

#: Language models in the report: a training step, and one that ran out of memory. The grid has all of them.
_ALSO_IN_REPORT: Final = ("lm_small_ctx256_train.sqlite.xz", "lm_large_ctx1024_train.sqlite.xz")

#: Host times of the programs of the grid, measured without a profiler.
_TIMINGS: Final = "lm_timings.csv"

#: Sequences in a batch, in all captures of language models.
_BATCH: Final = 4


def demo(
    output: Annotated[
        Path, option("DIR", "Folder to write to; created if needed.", "--output", "-o", show_default=True)
    ] = DEFAULT_FOLDER,
    formats: Annotated[
        str,
        words_option(
            "--format", "-f", words=REPORT_FORMATS, meaning="What to write beside json, joined by commas.", several=True
        ),
    ] = "html,json",
) -> None:
    """Report on the profiles that come with Warplens; no GPU needed.

    They were recorded on an H200: vision transformers with and without token reduction, with and without CUDA graphs,
    and a grid of language models over sizes and context lengths.
    """
    from warplens.readers.timings import read_timings
    from warplens.studies.reports.findings import findings_document

    folder = checked_folder(output)
    # JSON is always written, since the summary announces files for programs.
    forms = [form for form in REPORT_FORMATS if form == "json" or form in formats.split(",")]
    entries = shipped_profiles()
    shipped = read_profiles([_CAPTURES / entry["file"] for entry in entries])
    in_grid = {entry["file"] for entry in entries if "model" in entry}
    in_report = _selected(shipped, {entry["file"] for entry in entries} - in_grid | set(_ALSO_IN_REPORT))
    models = _selected(shipped, in_grid)
    grid = GridRequest({}, read_timings(_CAPTURES / _TIMINGS), _BATCH)

    numbers = examined(Reading(in_report, Timeline.window, (), (), (), None, ()))
    written = _write_overview(numbers, folder, forms)
    if (cells := find_cells(models.paths, grid)) is not None:
        written += _write_grid(models, cells, grid, folder, forms, numbers)
    with progress("telling the findings"):
        findings = findings_document(shipped_evidence(), TITLE)
        written += write_document(findings, folder, forms, name="findings_report")
    _print_summary(entries, numbers)
    print_lines([TITLE, findings.lead, "", "Written, to be opened in a browser or read by programs:"])
    print_lines(written)


def shipped_profiles() -> list[dict[str, Any]]:
    """The index of the shipped profiles."""
    try:
        index = json.loads((_CAPTURES / "INDEX.json").read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError("this installation of Warplens came without its profiles. Install it from a release") from None
    profiles: list[dict[str, Any]] = index["profiles"]
    return profiles


def _selected(profiles: Profiles, names: set[str]) -> Profiles:
    pairs = zip(profiles.paths, profiles.timelines, strict=True)
    paths, timelines = zip(*((path, timeline) for path, timeline in pairs if path.name in names), strict=True)
    return Profiles(paths, timelines)


def _print_summary(entries: list[dict[str, Any]], numbers: Sequence[Numbers]) -> None:
    """Print limiter, gain and remedy of each profile."""
    from warplens.report.brief import brief
    from warplens.studies.grid.cells import plain_name

    workloads = {entry["file"]: entry["workload"] for entry in entries}
    for profile in numbers:
        if profile.diagnosis is not None:
            name = profile.capture.source
            with answering() as stdout:
                stdout.write(f"{workloads[name]} ({plain_name(name)})\n")
            lines = (line for line in brief(profile.diagnosis) if line.label in _OF_DEMO)
            print_brief([replace(line, code=()) for line in lines])
            print_lines([""])


#: Labels of the lines of an answer that the demo prints.
_OF_DEMO: Final = ("limited by", "verdict", "where", "gain", "do")

TITLE: Final = "Token reduction: what was found"

#: Input size and batch of the profiles that come with Warplens, and their sides.
_POINTS: Final = ((224, 1), (448, 8))
_SIDES: Final = (("baseline", {"method": "none"}), ("topk0.1", {"method": "topk", "keep": 0.1}))


def shipped_evidence(counters: Path | None = None) -> Evidence:
    """The evidence of the shipped measurements, profiles and policy.

    `counters` is a folder with reports of Nsight Compute on the same programs, which only the repository has.
    """
    from warplens.readers.measurements import read_measurements
    from warplens.studies.policies.files import read_policy
    from warplens.studies.reports.evidence import study_evidence

    cells = [
        ({"input_size": size, "batch": batch, **side}, f"deit{size}_bs{batch}_{name}")
        for size, batch in _POINTS
        for name, side in _SIDES
    ]
    profiles = [(settings, read(_CAPTURES / f"{name}.sqlite.xz")) for settings, name in cells]
    counted = []
    if counters is not None:  # hypotheses are about the variant, the second side
        variants = cells[1 :: len(_SIDES)]
        counted = [(settings, read_counters(counters / f"{name}.ncu-rep.xz")) for settings, name in variants]
    measured, remedies, grid = (
        read_measurements(_DATA / "measurements" / f"token_reduction{part}.json.xz")
        for part in ("", "_remedies", "_study")
    )
    policy = read_policy(_DATA / "policies" / "token_reduction.json")
    return study_evidence(measured, profiles, counters=counted, remedies=remedies, grid=grid, policy=policy)
