"""`warplens ranks`: many profiles of one distributed run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warplens.cli.answer import most_rows
from warplens.cli.edge import UNUSABLE, answering
from warplens.cli.messages import complain, note, one_line, progress
from warplens.cli.options import Format, FormatOption, LimitOption, WindowOption
from warplens.cli.reporting import checked_folder
from warplens.profile import Note, NoteLevel
from warplens.ranks import analyse_ranks
from warplens.readers import discover
from warplens.report.ranks.tables import (
    clock_table,
    collective_table,
    part_table,
    rank_rows,
    rank_table,
    wait_table,
)
from warplens.report.ranks.words import answer, facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.ranks import RanksRun
    from warplens.report.document import Table

__all__ = ["ranks"]


def ranks(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…", show_default=False, help="Profiles of one run, and folders that are searched for them."
        ),
    ],
    window: WindowOption = "steady",
    form: FormatOption = Format.TABLE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            show_default=False,
            help="Write ranks.html, ranks.md and ranks.json to this folder instead of printing.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, show_default=False, help="Processes that read profiles; one a core at most."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help="Read the profiles on an existing Dask cluster (tcp://host:8786) instead.",
        ),
    ] = None,
    limit: LimitOption = None,
) -> None:
    """Ranks of a distributed run: overlap, collectives, stragglers, waits.

    Each profile is reduced to a small summary in a process of its own; a file with several processes or GPUs holds
    several ranks. The rank is what the file records, else its name (rank3, _r3), else its place in the order given.
    """
    folder = checked_folder(output) if output else None
    found = discover(paths)
    with progress(f"reading {len(found)} profiles") as tell:
        run = analyse_ranks(found, window, workers=workers, scheduler=scheduler, progress=tell)
        notes = _notes(run)
        if folder is not None:
            tell("writing")
            written = _write(run, notes, folder)
    if folder is not None:
        with answering() as stdout:
            stdout.write("".join(f"{one_line(path)}\n" for path in written))
    else:
        _print(run, notes, form, limit)
    for problem in run.problems:
        complain(f"{problem} (the answer is on the other profiles)")
    if run.problems:
        raise typer.Exit(UNUSABLE)


def _notes(run: RanksRun) -> tuple[Note, ...]:
    """What limits the answers: across ranks first, then of the profiles, each kind of note once with its ranks."""
    ranks_of: dict[tuple[str, str], list[int]] = {}
    first: dict[tuple[str, str], Note] = {}
    for rank, summary in zip(run.result.ranks, run.result.summaries, strict=True):
        for item in summary.notes:
            if item.level is not NoteLevel.INFO:
                key = (item.code, item.text)
                ranks_of.setdefault(key, []).append(rank)
                first.setdefault(key, item)
    count = len(run.result.ranks)
    own = (
        item
        if count == 1 or len(ranks_of[key]) == count
        else replace(item, text=f"{_named(ranks_of[key])}: {item.text}")
        for key, item in first.items()
    )
    return (*run.result.notes, *own)


def _named(found: Sequence[int]) -> str:
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return f"Rank{'s' if len(found) > 1 else ''} {', '.join(map(str, found[:4]))}{more}"


def _write(run: RanksRun, notes: Sequence[Note], folder: Path) -> list[Path]:
    from warplens.report.ranks.data import ranks_json  # noqa: PLC0415  charts and pages are not small
    from warplens.report.ranks.document import ranks_document  # noqa: PLC0415
    from warplens.report.write import write_document  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    written = write_document(ranks_document(run.result, notes), folder, ("html", "md"), "ranks")
    path = folder / "ranks.json"
    path.write_bytes(ranks_json(run.result, run.sources, [*notes, *run.problems]))
    return [*written, path]


def _print(run: RanksRun, notes: Sequence[Note], form: Format, limit: int | None) -> None:
    most = most_rows(form, limit)
    if form is Format.JSON:
        from warplens.report.ranks.data import ranks_json  # noqa: PLC0415  the other formats do without

        text = ranks_json(run.result, run.sources, [*notes, *run.problems])
        with answering() as stdout:
            stdout.flush()
            stdout.buffer.write(text + b"\n")
        return
    if form is Format.CSV:
        _tell(notes)
        rows = rank_rows(run.result)
        with answering() as stdout:
            stdout.write((rows if most is None else rows.head(most)).write_csv())
        return
    from warplens.report.markdown import escaped  # noqa: PLC0415  Rich and Markdown are for people alone
    from warplens.report.terminal import print_table  # noqa: PLC0415

    lines = [*facts(run.result), answer(run.result)]
    with answering() as stdout:
        if form is Format.MD:
            told = [*lines, *(f"> {line}" for line in _lines(notes))]
            stdout.write(
                "\n\n".join(escaped(line) if not line.startswith("> ") else f"> {escaped(line[2:])}" for line in told)
            )
            stdout.write("\n\n")
        else:
            stdout.write("".join(f"{one_line(line)}\n" for line in lines))
            stdout.flush()
            _tell(notes)
        for table in _tables(run.result):
            stdout.write(f"**{escaped(table.caption)}**\n\n" if form is Format.MD else "\n")
            print_table(replace(table, limit=most), "md" if form is Format.MD else "table", stdout)
            stdout.write("\n" if form is Format.MD else "")


def _tables(result: RanksResult) -> list[Table]:
    tables = [rank_table(result), part_table(result)]
    if result.groups.height:
        tables.append(collective_table(result))
    if len(result.ranks) > 1:
        tables[1:1] = [wait_table(result)] if result.groups.height else []
        tables.append(clock_table(result))
    return tables


def _lines(notes: Sequence[Note]) -> list[str]:
    return [
        f"{'missing' if item.level is NoteLevel.BLOCKING else 'caution'}: {item.text}"
        + (f" ({item.remedy})" if item.remedy else "")
        for item in notes
        if item.level is not NoteLevel.INFO
    ]


def _tell(notes: Sequence[Note]) -> None:
    for line in _lines(notes):
        note(line)
