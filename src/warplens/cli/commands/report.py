"""`warplens report` and `demo`: what limits programs, as documents."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import warplens
from warplens.analysis.timeline import Timeline
from warplens.cli.answer import checked_folder, checked_target, print_json, print_lines
from warplens.cli.edge import State, answering, end_with, note, one_line, progress, reuse_freed_memory
from warplens.cli.memory import REPORT, share_that_fits
from warplens.cli.options import RangeOption, WindowOption, argument, option, words_option
from warplens.errors import UnreadableInputError, UsageError
from warplens.readers import discover_both, read, read_counters
from warplens.report.write import REPORT_FORMATS, ReportFormat, form_named, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl

    from warplens.analysis.window import Window
    from warplens.diagnosis import Diagnosis
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.profile.counters import KernelCounters
    from warplens.profile.measurements import Measurements
    from warplens.report.counters.numbers import Joined
    from warplens.report.overview.numbers import Numbers
    from warplens.studies.grid.cells import CellName, Unplaced
    from warplens.studies.reports.evidence import Evidence

#: Where reports go unless the user says otherwise.
DEFAULT_FOLDER: Final = Path("warplens-report")

#: What `report` writes unless the user says otherwise.
_FORMS: Final = "html,json"

#: From so many models × contexts on, profiles are a grid without the user saying so.
_CELLS_OF_A_GRID: Final = 2

#: Of larger files (half a million kernels) grids and blocks are not read: they cost a third more time, for the one
#: question whether kernels fill the GPU. The verdict says that it was not asked, and `warplens diagnose` asks it.
_ALL_OF_IT_BYTES: Final = 64 << 20


# --- `warplens report` -----------------------------------------------------------------------------------------------


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

    wanted = _forms(output, formats)
    grid = GridRequest(dict(map(parse_cell, cells or ())), read_timings(timings) if timings else None, batch)
    to_stdout = output is None and wanted == ["json"] and not grid.is_explicit
    folder = DEFAULT_FOLDER if to_stdout else checked_target(output or DEFAULT_FOLDER, paths)
    reading = read_all(paths, window, range_name, grid)
    run = run_in(reading) if range_name is None else None
    reading, run = told_in_full(reading, run)
    if to_stdout:
        print_json(_json(reading, run))
    else:
        written: list[Path] = []
        numbers: list[Numbers] = []
        if reading.profiles.timelines:
            numbers = examined(reading)
            print_answers(numbers, run)
            written += write_overview(numbers, folder, wanted, run)
        written += write_besides(reading, grid, folder, wanted, numbers)
        print_lines(written)
    end_with(reading.unreadable, "report")


def write_besides(
    reading: Reading, grid: GridRequest, folder: Path, formats: Sequence[ReportFormat], numbers: Sequence[Numbers]
) -> list[Path]:
    """The documents on the grid of the profiles and on hardware counters; one file holds the first document alone."""
    if (reading.cells is not None or reading.counters) and numbers and form_named(folder) is not None:
        note(f"{folder.name} is the report on the profiles; name a folder for those on their grid and on counters")
        return []
    written: list[Path] = []
    if reading.cells is not None:
        written += write_grid(reading.profiles, reading.cells, grid, folder, formats, numbers)
    if reading.counters:
        written += write_counter_reports(reading.counters, reading.joined, folder, formats)
    return written


def _forms(output: Path | None, formats: str) -> list[ReportFormat]:
    """What to write: what --format says; in one file what its suffix says, which must not contradict it."""
    wanted = cast("list[ReportFormat]", formats.split(","))
    form = form_named(output) if output is not None else None
    if output is None or form is None:
        return wanted
    if formats != _FORMS and wanted != [form]:
        raise UsageError(
            f"{output.name} is to hold {form}, but --format says {formats}: leave --format out, or name a folder"
        )
    return [form]


def print_answers(profiles: Sequence[Numbers], run: RunDiagnosis | None = None) -> None:
    """What limits each profile: of one, and of the ranks of a run, in five lines; of several a row each."""
    from warplens.report.brief import brief, brief_table
    from warplens.report.terminal import print_brief, print_table

    found = [(each.capture.source, each.diagnosis) for each in profiles if each.diagnosis is not None]
    with answering() as stdout:
        if run is not None:
            from warplens.report.run import by_itself_table  # charts cost half a second to import

            print_brief(brief(run), stdout)
            print_table(by_itself_table(run), "table", stdout)
        elif len(found) == 1:
            print_brief(brief(found[0][1]), stdout)
        else:
            print_table(brief_table(found), "table", stdout)
        stdout.write("\n")


@dataclass(frozen=True, eq=False)
class Profiles:
    """The profiles that could be read, in the order given, and what was wrong with the others."""

    paths: tuple[Path, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    unreadable: tuple[UnreadableInputError, ...] = ()


@dataclass(frozen=True)
class GridRequest:
    """What the user said about a grid of models × contexts: cells of profiles, by name, times, sequences in a batch."""

    cells: Mapping[str, CellName]
    timings: pl.DataFrame | None = None
    batch: int | None = None

    @property
    def is_explicit(self) -> bool:
        """Whether anything was said at all, so that no grid would be a disappointment."""
        return bool(self.cells) or self.timings is not None or self.batch is not None


@dataclass(frozen=True)
class Cells:
    """Which profile is of which cell, by its path, and the profiles that are of none."""

    named: Mapping[str, CellName]
    unplaced: tuple[Unplaced, ...]


@dataclass(frozen=True, eq=False)
class Reading:
    """What the paths of a command hold, read."""

    profiles: Profiles
    window: Callable[[Timeline], Window]  #: the part of each that is asked about
    counters: Sequence[KernelCounters]  #: reports of hardware counters
    #: for each profile the reports of counters beside it; () without such reports
    joined: tuple[tuple[Joined, ...], ...]
    cells: Cells | None  #: the grid that the profiles are of; None where they are of none
    unreadable: tuple[UnreadableInputError, ...]  #: why files could not be read

    @property
    def counted(self) -> KernelCounters | None:
        """The counters that the diagnosis rests on: the only report of them, beside the only profile."""
        return self.counters[0] if len(self.counters) == len(self.profiles.timelines) == 1 else None


def read_all(paths: Sequence[Path], window: str, range_name: str | None, grid: GridRequest | None = None) -> Reading:
    """Read what these files and folders hold.

    Raises:
        UnreadableInputError: nothing could be read.
        UsageError: a window lies outside of a profile, there is no such range, or no grid where one was asked for.
    """
    grid = grid or GridRequest({})
    found, counter_paths = discover_both(paths)
    cells = find_cells(found, grid) if found or grid.is_explicit else None
    counters, no_counters = _read_counter_reports(counter_paths)
    if not found and not counters:
        raise no_counters[0]
    steady = window == "steady" and range_name is None
    profiles = read_profiles(found, launch_configuration=bool(counters), steady=steady) if found else Profiles()
    if not profiles.timelines and not counters:
        raise profiles.unreadable[0]
    part = _window(window, range_name)
    for timeline in profiles.timelines:
        part(timeline)
    joined = _join_all(profiles, counters, part)
    return Reading(profiles, part, counters, joined, cells, (*profiles.unreadable, *no_counters))


def examined(reading: Reading, found: Sequence[Diagnosis] = ()) -> list[Numbers]:
    """Every analysis of every profile, with the counters beside it.

    Args:
        found: the diagnosis of each, where they are known already.
    """
    from warplens.report.overview.numbers import examine

    with progress("analysing") as tell:
        numbers = []
        for timeline, known in zip_longest(reading.profiles.timelines, found):
            tell(f"analysing {timeline.trace.capture.source}")
            numbers.append(examine(timeline, reading.window(timeline), counters=reading.counted, diagnosis=known))
        if reading.joined:
            numbers = [replace(each, joined=tuple(own)) for each, own in zip(numbers, reading.joined, strict=True)]
        return numbers


def read_profiles(paths: Sequence[Path], *, launch_configuration: bool = False, steady: bool = False) -> Profiles:
    """Read them all; one that cannot be read does not stop the others.

    Args:
        steady: whether the one profile is asked about its steady steps, a part of which does where memory is short.
        launch_configuration: whether to read grids and blocks of large files, too, because kernels are found by them
            in reports of counters.
    """
    shares = [share_that_fits(path, REPORT, steady=steady and len(paths) == 1) for path in paths]
    reuse_freed_memory(paths)
    read_paths, timelines, unreadable = [], [], []
    with progress("reading") as tell:
        for number, (path, share) in enumerate(zip(paths, shares, strict=True), start=1):
            tell(f"reading {path.name}" + (f" ({number} of {len(paths)})" if len(paths) > 1 else ""))
            grids = launch_configuration or not path.is_file() or path.stat().st_size <= _ALL_OF_IT_BYTES
            try:
                trace = read(path, progress=tell, launch_configuration=grids, share=share, gpu=State.gpu)
                timelines.append(Timeline(trace))
                read_paths.append(path)
            except UnreadableInputError as error:
                unreadable.append(error)
    return Profiles(tuple(read_paths), tuple(timelines), tuple(unreadable))


def _read_counter_reports(paths: Sequence[Path]) -> tuple[list[KernelCounters], list[UnreadableInputError]]:
    reports: list[KernelCounters] = []
    unreadable: list[UnreadableInputError] = []
    if not paths:
        return reports, unreadable
    from warplens.analysis.counters.speedoflight import OPCODES

    for path in paths:
        with progress(f"reading {path.name}") as tell:
            try:
                reports.append(read_counters(path, instances=(OPCODES,), progress=tell))
            except UnreadableInputError as error:
                unreadable.append(error)
    return reports, unreadable


def _window(spec: str, range_name: str | None) -> Callable[[Timeline], Window]:
    def of(timeline: Timeline) -> Window:
        try:
            return timeline.window(spec, range_name)
        except UsageError as error:
            raise UsageError(f"{timeline.trace.capture.source}: {error}") from error

    return of


def _join_all(
    profiles: Profiles, counters: Sequence[KernelCounters], window: Callable[[Timeline], Window]
) -> tuple[tuple[Joined, ...], ...]:
    """For each profile the reports of counters beside it.

    Of several profiles only those that have a kernel in common with a report: the others are of other programs.
    """
    if not counters:
        return ()
    from warplens.report.counters.numbers import join_counters

    with progress("joining counters and traces"):
        everything = tuple(
            tuple(join_counters(report, timeline, window(timeline)) for report in counters)
            for timeline in profiles.timelines
        )
    if len(everything) == 1:
        return everything
    return tuple(tuple(item for item in beside if item.matches) for beside in everything)


def run_in(reading: Reading) -> RunDiagnosis | None:
    """The diagnosis of the run that these profiles are the ranks of; None where they are not."""
    if len(reading.profiles.timelines) < 2:
        return None
    from warplens.ranks import one_run

    with progress("looking for ranks of one run"):
        return one_run(reading.profiles.timelines, reading.window)


#: Files of a run that are reported on one by one: as many as a page tells (`overview.document.MOST_PARTS`, which is
#: not imported before something is drawn). Analysing and drawing one takes some tenths of a second.
_IN_FULL: Final = 24


def told_in_full(reading: Reading, run: RunDiagnosis | None) -> tuple[Reading, RunDiagnosis | None]:
    """Of a run of very many files those that are told one by one: the late rank, and those of the lowest numbers.

    What the ranks cost each other, and the row of each, rests on all of them; a note says which are left out.
    """
    if run is None or len(reading.profiles.timelines) <= _IN_FULL:
        return reading, run
    from warplens.analysis.ranks.balance import straggler

    late = straggler(run.run.result.waits)
    ranks = sorted(run.origin, key=lambda rank: (rank != late, rank))
    kept = sorted(dict.fromkeys(run.origin[rank][0] for rank in ranks[:_IN_FULL]))
    places = {file: place for place, file in enumerate(kept)}
    profiles = reading.profiles
    note(
        f"{len(kept)} of {len(profiles.timelines)} files are told one by one: the late rank's and those of the lowest "
        "ranks; what is said of the run rests on all. Report on fewer files for others."
    )
    shown = replace(
        profiles,
        paths=tuple(profiles.paths[file] for file in kept),
        timelines=tuple(profiles.timelines[file] for file in kept),
    )
    origin = {rank: (places[file], place) for rank, (file, place) in run.origin.items() if file in places}
    joined = tuple(reading.joined[file] for file in kept) if reading.joined else ()
    return replace(reading, profiles=shown, joined=joined), replace(run, origin=origin)


def _json(reading: Reading, run: RunDiagnosis | None) -> bytes:
    """One object: on the profiles, with what the counters say of them; on the counters where there is no profile."""
    if not reading.profiles.timelines:
        from warplens.report.counters.document import counters_json
        from warplens.report.counters.numbers import examine_counters

        with progress("analysing counters"):
            return counters_json([examine_counters(report) for report in reading.counters])
    from warplens.report.write import report_json

    return report_json(examined(reading), run)


def write_overview(
    numbers: Sequence[Numbers], folder: Path, formats: Sequence[ReportFormat], run: RunDiagnosis | None = None
) -> list[Path]:
    """The report on the profiles, and on the run that they are the ranks of."""
    from warplens.report.write import write_examined

    with progress("drawing"):
        return write_examined(numbers, folder, formats, run)


def write_counter_reports(
    counters: Sequence[KernelCounters],
    joined: Sequence[Sequence[Joined]],
    folder: Path,
    formats: Sequence[ReportFormat],
) -> list[Path]:
    """The report on hardware counters, and on what they say of the profiles beside them."""
    from warplens.report.counters.document import write_counters
    from warplens.report.counters.numbers import examine_counters

    with progress("analysing counters") as tell:
        examined = [
            examine_counters(
                report, [item for beside in joined for item in beside if item.source == report.capture.source]
            )
            for report in counters
        ]
        return write_counters(examined, folder, formats, tell)


def find_cells(paths: Sequence[Path], request: GridRequest) -> Cells | None:
    """The cells that these profiles are of; None where they form no grid and the user did not speak of one.

    Raises:
        UsageError: the user spoke of a grid, but no profile is of a cell; or a named cell is of no profile.
    """
    from warplens.studies.grid.cells import assign_cells

    cells, unplaced = assign_cells(map(str, paths), request.cells)
    if request.is_explicit and not cells:
        raise UsageError(f"no profile is of a cell of a grid. {unplaced[0].source}: {unplaced[0].reason}")
    places = {(cell.model, cell.context) for cell in cells.values()}
    if not request.is_explicit and len(places) < _CELLS_OF_A_GRID:
        return None
    return Cells(cells, unplaced)


def write_grid(
    profiles: Profiles,
    cells: Cells,
    request: GridRequest,
    folder: Path,
    formats: Sequence[ReportFormat],
    numbers: Sequence[Numbers] = (),
) -> list[Path]:
    """The answers about a grid of models × contexts; `numbers` are those of profiles that were diagnosed already."""
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

        diagnosed = {each.capture.source: each.diagnosis for each in numbers if each.diagnosis is not None}
        return write_document(grid_document(grid, diagnosed), folder, formats, "grid", data)


# --- `warplens demo` -------------------------------------------------------------------------------------------------


_CAPTURES: Final = Path(warplens.__file__).parent / "data" / "captures"

#: Of the language models, which the grid shows all, the report shows a training step and one that ran out of memory.
_ALSO_IN_REPORT: Final = ("lm_small_ctx256_train.sqlite.xz", "lm_large_ctx1024_train.sqlite.xz")

#: Host times of the grid's programs, measured without a profiler.
_TIMINGS: Final = "lm_timings.csv"

#: Sequences in a batch, in all captures of language models.
_BATCH: Final = 4

_WIDTH: Final = 100
_INDENT: Final = "  "


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
    # The answers that are printed are those of the report's JSON, which is therefore always written.
    wanted = [form for form in REPORT_FORMATS if form == "json" or form in formats.split(",")]
    entries = _shipped_profiles()
    shipped = read_profiles([_CAPTURES / entry["file"] for entry in entries])
    in_grid = {entry["file"] for entry in entries if "model" in entry}
    shown = _selected(shipped, {entry["file"] for entry in entries} - in_grid | set(_ALSO_IN_REPORT))
    models = _selected(shipped, in_grid)
    grid = GridRequest({}, read_timings(_CAPTURES / _TIMINGS), _BATCH)

    numbers = examined(Reading(shown, _steady, (), (), None, ()))
    written = write_overview(numbers, folder, wanted)
    if (cells := find_cells(models.paths, grid)) is not None:
        written += write_grid(models, cells, grid, folder, wanted, numbers)
    with progress("telling the findings"):
        findings = findings_document(shipped_evidence(), TITLE)
        written += write_document(findings, folder, wanted, name="findings_report")
    with answering() as stdout:
        stdout.write("".join(f"{line}\n" for line in _summary(entries, folder / "report.json", findings.lead, written)))


def _steady(timeline: Timeline) -> Window:
    return timeline.window()


def _shipped_profiles() -> list[dict[str, Any]]:
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


def _summary(entries: list[dict[str, Any]], report: Path, findings: str, written: list[Path]) -> Iterator[str]:
    """What was reported on and found, in two sentences a profile, and where the documents are."""
    from warplens.studies.grid.cells import plain_name

    workloads = {entry["file"]: entry["workload"] for entry in entries}
    for profile in json.loads(report.read_text("utf-8"))["data"]["profiles"]:
        yield f"{workloads[profile['source']]} ({plain_name(profile['source'])})"
        yield from _wrapped(profile["answer"])
        yield ""
    yield TITLE
    yield from _wrapped(findings)
    yield ""
    yield "Written, to be opened in a browser or read by programs:"
    yield from (_INDENT + one_line(path) for path in written)


def _wrapped(text: str) -> Iterator[str]:
    """Indented lines. A number stays with its percent sign: lines are not broken at no-break spaces."""
    lines = textwrap.wrap(text.replace(" %", "\u00a0%"), _WIDTH - len(_INDENT))
    yield from (_INDENT + line.replace("\u00a0", " ") for line in lines)


# --- The findings of a token-reduction study -------------------------------------------------------------------------


TITLE: Final = "Token reduction: what was found"

#: Input size and batch of the profiles that come with Warplens, and their sides.
_POINTS: Final = ((224, 1), (448, 8))
_SIDES: Final = (("baseline", {"method": "none"}), ("topk0.1", {"method": "topk", "keep": 0.1}))


def shipped_evidence(counters: Path | None = None) -> Evidence:
    """What the measurements, profiles and policy that come with Warplens say.

    Args:
        counters: the folder with reports of Nsight Compute on the same programs, which only the repository has.
    """
    from warplens.readers.measurements import read_measurements
    from warplens.studies.policies.files import read_policy
    from warplens.studies.reports.evidence import study_evidence

    data = Path(str(files("warplens") / "data"))
    measured = [
        read_measurements(data / "measurements" / f"token_reduction{part}.json.xz")
        for part in ("", "_remedies", "_study")
    ]
    profiles = [
        (
            {"input_size": size, "batch": batch, **side},
            read(data / "captures" / f"deit{size}_bs{batch}_{name}.sqlite.xz"),
        )
        for size, batch in _POINTS
        for name, side in _SIDES
    ]
    policy = read_policy(data / "policies" / "token_reduction.json")
    name, side = _SIDES[1]  # hypotheses are about the variant
    counted = [
        (
            {"input_size": size, "batch": batch, **side},
            read_counters(counters / f"deit{size}_bs{batch}_{name}.ncu-rep.xz"),
        )
        for size, batch in (_POINTS if counters is not None else ())
        if counters is not None
    ]
    return study_evidence(
        measured[0], profiles, counters=counted, remedies=measured[1], grid=measured[2], policy=policy
    )


def own_evidence(measurements: Measurements, profiles: Path, policy: Path | None) -> Evidence:
    """What a study of the user says, with profiles and reports of counters in a folder, named after their cells."""
    from warplens.cli.commands.sweep import COUNTERS, listed_profiles
    from warplens.studies.policies.files import read_policy
    from warplens.studies.reports.evidence import study_evidence

    traces, counters = [], []
    for path, settings in listed_profiles(profiles):
        if COUNTERS.search(path.name):
            counters.append((settings, read_counters(path)))
        else:
            traces.append((settings, read(path)))
    chosen = read_policy(policy) if policy is not None else None
    return study_evidence(measurements, traces, counters=counters, policy=chosen)
