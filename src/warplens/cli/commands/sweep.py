"""`warplens sweep`: measure a baseline and a variant over a grid, and report on the measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from warplens.cli.answer import Answer, Part, checked_file, checked_target, give, note_lines, print_lines
from warplens.cli.options import FormatOption, argument, flag, given_share, option, share_option
from warplens.cli.process import GATE_FAILED, complain, note, progress
from warplens.errors import MissingDataError, UnreadableInputError, UsageError
from warplens.profile import Note, NoteLevel
from warplens.profile.measurements import device_name
from warplens.readers.published import read_sweep
from warplens.report import text as fmt
from warplens.studies.runner.commandsweep import DEFAULT_REPEATS, TIME_UNITS, CommandSweep
from warplens.studies.runner.engine import FAILURES, Run, RunOptions, measure, preview
from warplens.studies.runner.studies import INDEX
from warplens.studies.runner.workloadsweep import (
    DEFAULT_ROUNDS,
    PER_TURN,
    PROCESSES,
    WARMUP_STEPS,
    WorkloadSweep,
    one_process,
)
from warplens.studies.sweeps.reading import same, side_of, sweep_of
from warplens.studies.sweeps.regimes import Regime, cell_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warplens.analysis.window import Window
    from warplens.report.document import Document
    from warplens.studies.sweeps.numbers import SweepNumbers
    from warplens.studies.sweeps.sweep import Sweep


#: Matches the file names of counter reports, to distinguish them from traces of the same cells.
COUNTERS: Final = re.compile(r"\.(?:ncu-rep|csv)(?:\.(?:gz|xz|zst))?$")

#: Suffixes of profiles, which are not part of a setting.
_SUFFIXES: Final = re.compile(r"(?:\.(?:sqlite|nsys-rep|ncu-rep|csv|json|gz|xz|zst))+$")

#: A profiler makes steps longer, up to about twice as long; by this factor they are those of another program.
_ALIKE: Final = 4.0

#: Rows of the table of points in a terminal; the report and other formats have all.
_ROWS: Final = 60


def _profiled(sweep: Sweep, folder: Path, tell: Any) -> tuple[dict[Any, tuple[Regime, str]], list[Note]]:
    """The regime of each cell that has a profile, and notes on profiles without a cell or that cannot be read."""
    from warplens.analysis.timeline import Timeline
    from warplens.diagnosis.verdict import diagnose
    from warplens.readers import read
    from warplens.studies.sweeps.numbers import regime_of

    regimes: dict[Any, tuple[Regime, str]] = {}
    notes = []
    for path, settings in listed_profiles(folder):
        if COUNTERS.search(path.name):
            continue  # the regime needs a timeline
        cells = list(_cells_of(sweep, settings))
        if len(cells) != 1:
            reason = "no cell has its settings" if not cells else f"its settings are those of {len(cells)} cells"
            notes.append(Note("profile-unplaced", NoteLevel.WARNING, f"{path.name} was left out: {reason}."))
            continue
        tell(f"reading {path.name}")
        try:
            timeline = Timeline(read(path))
            device, own = device_name(sweep.environment), next(iter(timeline.trace.capture.devices), None)
            if device and own is not None and own.name and own.name != device:
                text = f"{path.name} was left out: it is of {own.name}, and the times are of {device}."
                notes.append(Note("profile-of-other-gpu", NoteLevel.WARNING, text))
                continue
            window = timeline.window()
            regimes[cells[0]] = regime_of(diagnose(timeline, window), path.name)
            notes += _other_length(sweep, cells[0], window, path.name)
        except (UnreadableInputError, MissingDataError) as error:
            notes.append(Note("profile-unreadable", NoteLevel.WARNING, str(error)))
    return regimes, notes


def _other_length(sweep: Sweep, key: Any, window: Window, name: str) -> Iterator[Note]:
    """A note on a profile whose steps are far from as long as the cell that it stands for."""
    times = {
        cell_key(point.settings, side): cell.time_ns
        for point in sweep.points
        for side, cell in point.sides
        if cell is not None
    }
    cell_ns = times[key]
    if not cell_ns or not window.steps:
        return
    step_ns = median(step.duration_ns for step in window.steps)
    if not 1 / _ALIKE <= step_ns / cell_ns <= _ALIKE:
        text = f"A step of {name} takes {fmt.duration(step_ns)}, and the cell {fmt.duration(cell_ns)}"
        yield Note("profile-of-other-length", NoteLevel.WARNING, f"{text}: it may be of another program.")


def listed_profiles(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Profiles of a folder with their settings, from its index or from their names."""
    if not folder.is_dir():
        raise UnreadableInputError(folder, "it is not a folder", "Give the folder with profiles of the cells")
    index = folder / INDEX
    if index.is_file():
        try:
            listed = orjson.loads(index.read_bytes())
            pairs = {str(name): {key: str(item) for key, item in cell.items()} for name, cell in listed.items()}
        except (orjson.JSONDecodeError, AttributeError):
            raise UnreadableInputError(
                index, "it is not an object of file names and settings", "See sweep.md"
            ) from None
    else:
        names = [file.name for file in sorted(folder.iterdir()) if file.name.find("=") > 0]
        pairs = {name: side_of(_SUFFIXES.sub("", name)) for name in names}
    if not pairs:
        raise UnreadableInputError(
            folder, "no file in it is named after a cell", f"Name them method=topk,batch=1.nsys-rep, or add {INDEX}"
        )
    for name, settings in pairs.items():
        yield folder / Path(name).name, settings


def _cells_of(sweep: Sweep, settings: Mapping[str, str]) -> Iterator[Any]:
    """Keys of the cells that have all of these settings."""
    for point in sweep.points:
        for side, side_settings in (("baseline", sweep.baseline), ("variant", sweep.variant)):
            cell_settings = {**sweep.shared, **side_settings, **point.settings}
            if getattr(point, side) is not None and all(
                name in cell_settings and same(cell_settings[name], text) for name, text in settings.items()
            ):
                yield cell_key(point.settings, side)


def _answer(numbers: SweepNumbers) -> Answer:
    """The answer of a sweep: crossovers, break-even points, anomalies, and the table of points."""
    from warplens.studies.sweeps.document import anomaly_table, breakeven_lines, lost_table, point_table, sweep_data
    from warplens.studies.sweeps.numbers import point_frame
    from warplens.studies.sweeps.words import answer, crossing_text, facts

    tests, anomalies = numbers.anomalies.tests.height, numbers.anomalies.found.height
    lines = [f"crossover: {crossing_text(line)}" for lines in numbers.crossovers.values() for line in lines]
    lines += [
        f"crossover: none along {axis.replace('_', ' ')}: {reason}" for axis, reason in numbers.no_crossovers.items()
    ]
    lines += [f"break-even: {line}" for line in breakeven_lines(numbers)]
    lines.append(
        f"anomalies: {anomalies} among {tests} cells tested" if tests else "anomalies: no cell could be tested"
    )
    tables = [replace(point_table(numbers), limit=_ROWS)]
    tables += [anomaly_table(numbers)] if anomalies else []
    tables += [lost_table(numbers)] if numbers.lost.height else []
    part = Part(
        head=list(facts(numbers)),
        verdict=[answer(numbers)],
        lines=lines,
        notes=note_lines(numbers.notes, all_of_them=True),
        tables=tables,
    )
    return Answer(
        "sweep", numbers.sweep.source, [part], point_frame(numbers), lambda: sweep_data(numbers), numbers.notes
    )


def sweep() -> None:
    """Measure a baseline and a variant over a grid, or report on such a sweep."""


def sweep_report(
    file: Annotated[Path, argument("FILE", "Measurements, or a published table (CSV).")],
    baseline: Annotated[
        str | None, option("NAME=VALUE,…", "Settings of the baseline, where the file has none.")
    ] = None,
    variant: Annotated[str | None, option("NAME=VALUE,…", "Settings of the variant, where the file has none.")] = None,
    level: Annotated[str, share_option("Confidence of the intervals, together.")] = "95%",
    margin: Annotated[str, share_option("Differences that do not matter.")] = "2%",
    profiles: Annotated[Path | None, option("DIR", "Profiles of cells, which show what limits each of them.")] = None,
    output: Annotated[
        Path | None, option("DIR", "Folder to write; without it, the answer is printed.", "--output", "-o")
    ] = None,
    form: FormatOption = "table",
) -> None:
    """Report on a sweep: speed-ups, what limits each cell, crossovers, break-even, anomalies."""
    level_share, margin_share = given_share(level), given_share(margin)
    if level_share <= 0.5:
        raise UsageError("the confidence lies between 50% and 100%, and the margin between 0% and 100%")
    folder = checked_target(output, (file,), form) if output is not None else None
    with progress(f"reading {file.name}") as tell:
        measurements = read_sweep(file)
        sweep = sweep_of(measurements, *(None if text is None else side_of(text) for text in (baseline, variant)))
        profiled, notes = _profiled(sweep, profiles, tell) if profiles is not None else ({}, [])
        tell("comparing")
        from warplens.studies.sweeps.numbers import examine_sweep

        numbers = examine_sweep(sweep, level=round(1 - level_share, 9), margin=margin_share, profiled=profiled)
    numbers = replace(numbers, notes=(*numbers.notes, *notes))

    def document() -> Document:
        from warplens.studies.sweeps.document import sweep_document

        return sweep_document(numbers)

    give(_answer(numbers), form, folder, document)


def sweep_run(
    workload: Annotated[
        str | None,
        argument(
            "[WORKLOAD]",
            "The workload, such as token-reduction; without one, baseline and variant are commands.",
        ),
    ] = None,
    axis: Annotated[list[str] | None, option("NAME=VALUE,…", "The values of a setting. May be repeated.")] = None,
    baseline: Annotated[str | None, option("NAME=VALUE,…|CMD", "Settings of the baseline; or its command.")] = None,
    variant: Annotated[str | None, option("NAME=VALUE,…|CMD", "Settings of the variant; or its command.")] = None,
    rounds: Annotated[
        int | None, option("N", f"workload: turns of each side; {DEFAULT_ROUNDS} by default.", min=1)
    ] = None,
    repetitions: Annotated[int | None, option("N", f"workload: steps in a turn; {PER_TURN} by default.", min=1)] = None,
    warmup: Annotated[
        int | None, option("N", f"workload: steps before the first turn; {WARMUP_STEPS} by default.", min=0)
    ] = None,
    device: Annotated[str | None, option("NAME", "workload: as PyTorch names it; the GPU if there is one.")] = None,
    module: Annotated[
        list[str] | None,
        option("NAME", "workload: a Python module to import first, which registers it. May be repeated."),
    ] = None,
    processes: Annotated[
        str | None,
        option(
            "|".join(PROCESSES),
            "workload: a process for each point (the default), or one for all, which starts sooner.",
        ),
    ] = None,
    repeats: Annotated[int | None, option("N", f"commands: runs of each; {DEFAULT_REPEATS} by default.", min=1)] = None,
    time_from: Annotated[
        str | None,
        option("REGEX", "commands: finds the time in what they print, 'step_ms=([0-9.]+)'; else wall time is taken."),
    ] = None,
    time_unit: Annotated[
        str | None, option("|".join(TIME_UNITS), "commands: of the time printed; ms by default.")
    ] = None,
    items: Annotated[
        str | None, option("AXIS", "commands: the axis that says how many items a step processes.")
    ] = None,
    timeout: Annotated[float | None, option("S", "Time limit per point, or per command.", min=0)] = None,
    fresh: Annotated[bool, flag("--fresh", "Discard what an interrupted run has done.")] = False,
    retry: Annotated[bool, flag("--retry", "Repeat what failed.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Print what would be measured without measuring.")] = False,
    output: Annotated[Path | None, option("FILE", "The measurements file to write.", "--output", "-o")] = None,
) -> None:
    """Measure a baseline and a variant at every point of a grid, in turns.

    An interrupted run continues when the same command is given again.
    """
    of_workloads = {
        "--rounds": rounds, "--repetitions": repetitions, "--warmup": warmup, "--device": device,
        "--module": module, "--processes": processes,
    }  # fmt: skip
    of_commands = {"--repeats": repeats, "--time-from": time_from, "--time-unit": time_unit, "--items": items}
    if output is None:
        raise UsageError("sweep run needs --output FILE, where it writes the measurements")
    if baseline is None or variant is None:
        raise UsageError("sweep run needs --baseline and --variant")
    checked_file(output)
    run_options = RunOptions(one_process(processes or PROCESSES[0]), timeout, fresh, retry)
    axes = tuple(axis or ())
    if workload is None:
        _refuse(of_workloads, "for a workload, and none is named")
        run: Run = CommandSweep(
            axes, baseline, variant, repeats or DEFAULT_REPEATS, time_from, time_unit or "ms", items
        )
    else:
        _refuse(of_commands, f"for commands, and {workload} is a workload")
        run = WorkloadSweep(
            workload, axes, baseline, variant, rounds or DEFAULT_ROUNDS, repetitions or PER_TURN,
            WARMUP_STEPS if warmup is None else warmup, device, tuple(module or ()),
        ).run()  # fmt: skip
    if dry_run:
        print_lines(preview(run, output, run_options))
        return
    measure(run, output, run_options, note)
    print_lines([str(output)])
    if failed := _failed_sides(output):
        complain(f"no run of the {' and the '.join(failed)} succeeded: {output.name} says why")
        raise typer.Exit(GATE_FAILED)
    note(f"next: warplens sweep report {output.name}")


def _failed_sides(output: Path) -> list[str]:
    """The sides that failed in all of their cells, so that the sweep compares nothing."""
    if not output.is_file():
        return []  # nothing was measurable on this machine, so nothing failed
    content = orjson.loads(output.read_bytes())
    failed = []
    for side in ("baseline", "variant"):
        settings = content["sweep"][side]
        statuses = {
            record["status"]
            for record in content["measurements"]
            if all(same(record["cell"].get(name), str(value)) for name, value in settings.items())
        }
        if statuses and statuses.issubset(FAILURES):
            failed.append(side)
    return failed


def _refuse(options: Mapping[str, object], explanation: str) -> None:
    if used := [name for name, value in options.items() if value not in (None, [], False)]:
        raise UsageError(f"{used[0]} is {explanation}")
