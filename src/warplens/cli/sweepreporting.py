"""What `warplens sweep report` does: read a sweep, answer its questions, print or write them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import Format
from warplens.cli.reporting import checked_folder
from warplens.compare.surface import cell_key, same, side_of, sweep_of
from warplens.errors import MissingDataError, UnreadableInputError, UsageError
from warplens.profile import Note, NoteLevel
from warplens.readers.sweeps import read_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warplens.compare.surface import Regime
    from warplens.compare.sweep import Sweep
    from warplens.report.document import Table
    from warplens.report.sweep import SweepNumbers

__all__ = ["listed_profiles", "report_sweep"]

#: Which profile in a folder is of which cell: file name → settings. Without it, names of files say so.
_INDEX: Final = "profiles.json"

#: Suffixes of profiles, which are no part of a setting.
_SUFFIXES: Final = re.compile(r"(?:\.(?:sqlite|nsys-rep|json|gz|xz|zst))+$")

#: Rows of the points' table in a terminal; the report and other formats hold all.
_ROWS: Final = 60


def report_sweep(
    path: Path,
    baseline: str | None,
    variant: str | None,
    output: Path | None,
    form: Format,
    level: float = 0.95,
    margin: float = 0.02,
    profiles: Path | None = None,
) -> None:
    """Print what a sweep says, or write it to a folder.

    Args:
        path: measurements, or a published table.
        baseline, variant: settings of the sides (`method=topk,keep=0.1`); None: those that the file names, or that
            are unambiguous.
        output: folder for `sweep.html`, `sweep.md` and `sweep.json`; None to print.
        form: how to print.
        level: confidence of the intervals, all together; above 0.5 and below 1.
        margin: differences of this share and less do not matter.
        profiles: folder with profiles of cells, named after their settings
            (`method=topk,input_size=224,batch=1.nsys-rep`) or listed in its `profiles.json`.

    Raises:
        UsageError: a side cannot be told, or an option is out of range.
        UnreadableInputError: the file, or the folder of profiles, cannot be read.
    """
    if not 0.5 < level < 1 or not 0 <= margin < 1:
        raise UsageError("the confidence lies between 0.5 and 1, and the margin between 0 and 1")
    folder = checked_folder(output) if output is not None else None
    with progress(f"reading {path.name}") as tell:
        measurements = read_sweep(path)
        sides = [side_of(text) if text is not None else None for text in (baseline, variant)]
        sweep = sweep_of(measurements, sides[0], sides[1])
        profiled, notes = _profiled(sweep, profiles, tell) if profiles is not None else ({}, [])
        tell("comparing")
        from warplens.report.sweep import examine_sweep  # noqa: PLC0415  options are checked before

        numbers = examine_sweep(sweep, level=round(1 - level, 9), margin=margin, profiled=profiled)
    numbers = replace(numbers, notes=(*numbers.notes, *notes))
    if folder is None:
        _show(numbers, form)
        return
    with progress("drawing"):
        written = _write(numbers, folder)
    with answering() as stdout:
        stdout.write("".join(f"{one_line(file)}\n" for file in written))


# --- profiles ---------------------------------------------------------------------------------------------------------


def _profiled(sweep: Sweep, folder: Path, tell: Any) -> tuple[dict[Any, tuple[Regime, str]], list[Note]]:
    """The regime of each cell that has a profile, and notes on profiles that are of no cell or cannot be read."""
    from warplens.analysis.timeline import Timeline  # noqa: PLC0415  most sweeps come without profiles
    from warplens.diagnosis.verdict import diagnose  # noqa: PLC0415
    from warplens.readers import read  # noqa: PLC0415
    from warplens.report.sweep.profiles import regime_of  # noqa: PLC0415

    found: dict[Any, tuple[Regime, str]] = {}
    notes = []
    for path, settings in listed_profiles(folder):
        cells = list(_cells_of(sweep, settings))
        if len(cells) != 1:
            why = "no cell has its settings" if not cells else f"its settings are those of {len(cells)} cells"
            notes.append(Note("profile-unplaced", NoteLevel.WARNING, f"{path.name} was left out: {why}."))
            continue
        tell(f"reading {path.name}")
        try:
            timeline = Timeline(read(path))
            found[cells[0]] = regime_of(diagnose(timeline, timeline.window()), path.name)
        except (UnreadableInputError, MissingDataError) as error:
            notes.append(Note("profile-unreadable", NoteLevel.WARNING, str(error)))
    return found, notes


def listed_profiles(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Profiles with the settings that the index, or their names, give them."""
    if not folder.is_dir():
        raise UnreadableInputError(folder, "it is no folder", "Give the folder with profiles of the cells")
    index = folder / _INDEX
    if index.is_file():
        try:
            listed = orjson.loads(index.read_bytes())
            pairs = {str(name): {key: str(item) for key, item in cell.items()} for name, cell in listed.items()}
        except (orjson.JSONDecodeError, AttributeError):
            raise UnreadableInputError(index, "it is no object of file names and settings", "See sweep.md") from None
    else:
        names = [file.name for file in sorted(folder.iterdir()) if "=" in file.name]
        pairs = {name: side_of(_SUFFIXES.sub("", name)) for name in names}
    if not pairs:
        raise UnreadableInputError(
            folder, "no file in it is named after a cell", f"Name them method=topk,batch=1.nsys-rep, or add {_INDEX}"
        )
    for name, settings in pairs.items():
        yield folder / Path(name).name, settings


def _cells_of(sweep: Sweep, settings: Mapping[str, str]) -> Iterator[Any]:
    """Keys of the cells that have all of these settings."""
    for point in sweep.points:
        for side, own in (("baseline", sweep.baseline), ("variant", sweep.variant)):
            known = {**sweep.shared, **own, **point.settings}
            if getattr(point, side) is not None and all(
                name in known and same(known[name], text) for name, text in settings.items()
            ):
                yield cell_key(point.settings, side)  # type: ignore[arg-type]


# --- output -----------------------------------------------------------------------------------------------------------


def _write(numbers: SweepNumbers, folder: Path) -> list[Path]:
    """Write `sweep.html`, `sweep.md` with its charts and `sweep.json`; the files to open."""
    from warplens.report.sweep.document import sweep_document  # noqa: PLC0415  charts and pages are not small
    from warplens.report.write import write_document  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    written = write_document(sweep_document(numbers), folder, ("html", "md"), "sweep")
    path = folder / "sweep.json"
    path.write_bytes(_json(numbers))
    return [*written, path]


def _json(numbers: SweepNumbers) -> bytes:
    from warplens.report.jsonout import envelope  # noqa: PLC0415
    from warplens.report.sweep.data import sweep_data  # noqa: PLC0415

    return envelope("sweep", numbers.sweep.source, sweep_data(numbers), numbers.notes)


def _show(numbers: SweepNumbers, form: Format) -> None:
    if form is Format.JSON:
        text = _json(numbers)
        with answering() as stdout:
            stdout.flush()
            stdout.buffer.write(text + b"\n")
        return
    from warplens.report.sweep.numbers import point_frame  # noqa: PLC0415
    from warplens.report.sweep.words import answer, facts  # noqa: PLC0415

    head, lines = [*facts(numbers)], [_line(item) for item in numbers.notes]
    if form is Format.CSV:
        for line in (*head, answer(numbers), *lines):
            note(line)
        with answering() as stdout:
            stdout.write(point_frame(numbers).write_csv())
        return
    if form is Format.MD:
        _show_markdown(numbers, head, answer(numbers), lines)
        return
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    with answering() as stdout:
        stdout.write("".join(f"{one_line(line)}\n" for line in head))
        stdout.flush()
        for line in lines:
            note(line)
        stdout.write(f"\n{one_line(answer(numbers))}\n")
        stdout.write("".join(f"{one_line(line)}\n" for line in _told(numbers)))
        for table in _tables(numbers):
            stdout.write("\n")
            print_table(table, "table", stdout)


def _show_markdown(numbers: SweepNumbers, head: list[str], answer: str, lines: list[str]) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415
    from warplens.report.terminal import print_table  # noqa: PLC0415

    title, *rest = head
    blocks = [f"## {escaped(title)}", *map(escaped, rest), f"**{escaped(answer)}**"]
    blocks += [*map(escaped, _told(numbers)), *(f"> {escaped(line)}" for line in lines)]
    with answering() as stdout:
        stdout.write("\n\n".join(blocks) + "\n\n")
        for table in _tables(numbers):
            stdout.write(f"**{escaped(table.caption)}**\n\n")
            print_table(table, "md", stdout)
            stdout.write("\n")


def _told(numbers: SweepNumbers) -> Iterator[str]:
    """What tables do not say as shortly: crossovers, the model, and how many cells break their trend."""
    from warplens.report.sweep.breakeven import breakeven_lines  # noqa: PLC0415
    from warplens.report.sweep.words import crossing_text  # noqa: PLC0415

    for lines in numbers.crossovers.values():
        yield from (f"crossover: {crossing_text(line)}" for line in lines)
    for axis, why in numbers.no_crossovers.items():
        yield f"crossover: none along {axis.replace('_', ' ')}: {why}"
    yield from (f"break-even: {line}" for line in breakeven_lines(numbers))
    tests, found = numbers.anomalies.tests.height, numbers.anomalies.found.height
    yield f"anomalies: {found} among {tests} cells tested" if tests else "anomalies: no cell could be tested"


def _tables(numbers: SweepNumbers) -> list[Table]:
    from warplens.report.sweep.tables import anomaly_table, lost_table, point_table  # noqa: PLC0415

    tables = [replace(point_table(numbers), limit=_ROWS)]
    tables += [anomaly_table(numbers)] if numbers.anomalies.found.height else []
    tables += [lost_table(numbers)] if numbers.lost.height else []
    return tables


def _line(item: Note) -> str:
    tag = {NoteLevel.INFO: "note", NoteLevel.WARNING: "caution", NoteLevel.BLOCKING: "missing"}[item.level]
    return f"{tag}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")
