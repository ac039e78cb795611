"""`warplens export`: a profile as files for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warplens.analysis.timeline import Timeline
from warplens.cli.edge import answering
from warplens.cli.messages import one_line, progress
from warplens.cli.options import words_option
from warplens.cli.reporting import checked_folder
from warplens.errors import UsageError
from warplens.readers import discover, read
from warplens.readers.counters import holds_counters, read_counters
from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["export"]

_TARGETS: Final = ("perfetto", "parquet", "csv")
_SUFFIX: Final = ".perfetto-trace"

#: Endings that say how a profile is stored and not what it is of; `run.json.gz` becomes `run`.
_STORED_AS: Final = (".gz", ".xz", ".zst", ".sqlite", ".nsys-rep", ".qdrep", ".json", ".ncu-rep", ".ncu-repz", ".csv")


def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", show_default=False, help="A profile of any format that Warplens reads; it is not changed."
        ),
    ],
    to: Annotated[str, words_option("--to", words=_TARGETS, meaning="What to write.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            show_default=False,
            help="File (perfetto) or folder (parquet, csv) to write. By default named after the profile, here.",
        ),
    ] = None,
) -> None:
    """Hand a profile on to other programs: Perfetto, Parquet, CSV.

    The whole profile is written, warm-up included, with exact numbers. Nothing of the machine goes along: no
    environment, hosts, users, paths or command lines. What is written is replaced if it exists.
    """
    (profile, *others) = discover([path])
    if others:
        raise UsageError(f"{path.name}: the folder holds {1 + len(others)} profiles, and this command takes one")
    if to == "perfetto":
        target = output or Path(_stem(profile) + _SUFFIX)
        line = _to_perfetto(profile, target)
        written: Iterable[Path] = [target]
    else:
        folder = checked_folder(output or Path(f"{_stem(profile)}-{to}"))
        written, line = _to_tables(profile, folder, to)
    with answering() as stdout:
        stdout.writelines(f"{one_line(file)}\n" for file in written)
        stdout.write(line + "\n")


def _stem(profile: Path) -> str:
    name = profile.name
    while (shorter := next((name.removesuffix(end) for end in _STORED_AS if name.endswith(end)), name)) != name:
        name = shorter
    return name or "profile"


def _to_perfetto(profile: Path, target: Path) -> str:
    from warplens.export.perfetto import write_perfetto  # noqa: PLC0415  only where asked for

    if holds_counters(profile):
        raise UsageError(
            f"{profile.name}: counters of single kernels have no timeline. Export them with --to parquet or --to csv"
        )
    if target.is_dir() or (target.exists() and os.path.samefile(target, profile)):  # noqa: PTH121  follows links
        raise UsageError(f"{target.name} is {'a folder' if target.is_dir() else 'the profile itself'}: name another")
    checked_folder(target.absolute().parent)
    if not target.absolute().parent.is_dir():
        raise UsageError(f"{target.absolute().parent.name}: there is no such folder; create it first")
    with progress(f"reading {profile.name}") as tell:
        timeline = Timeline(read(profile, progress=tell))
        tell("writing")
        done = write_perfetto(timeline, target)
    return (
        f"{fmt.count(done.slices)} slices on {fmt.count(done.tracks)} tracks, {fmt.count(done.flows)} arrows from "
        f"launch to work, {fmt.data_size(done.bytes)}. Open it at ui.perfetto.dev (files stay in your browser)"
    )


def _to_tables(profile: Path, folder: Path, form: str) -> tuple[list[Path], str]:
    from warplens.export.tables import counter_tables, trace_tables, write_tables  # noqa: PLC0415

    with progress(f"reading {profile.name}") as tell:
        if holds_counters(profile):
            counters = read_counters(profile)
            tables, capture = counter_tables(counters), counters.capture
        else:
            timeline = Timeline(read(profile, progress=tell))
            tables, capture = trace_tables(timeline), timeline.trace.capture
        tell("writing")
        written = write_tables(tables, capture, folder, form)
    rows = sum(frame.height for frame in tables.values())
    return written, f"{fmt.count(rows)} rows in {fmt.count(len(tables))} tables; the columns are explained in the docs"
