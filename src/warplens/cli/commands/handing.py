"""`warplens export`, `scrub` and `ranks`: profiles as files for other programs and people, and many as one run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from warplens.analysis.timeline import Timeline
from warplens.answers import ranks_answer
from warplens.cli.answer import Part, answered, checked_folder, checked_target, give, most_rows, print_lines
from warplens.cli.edge import GATE_FAILED, answering, end_with, one_line, progress
from warplens.cli.options import (
    Format,
    FormatOption,
    LimitOption,
    WindowOption,
    argument,
    documents_option,
    flag,
    option,
    words_option,
)
from warplens.errors import UsageError
from warplens.ranks import analyse_ranks
from warplens.readers import discover, holds_counters, read, read_counters
from warplens.readers.shipped import stem
from warplens.report import text as fmt
from warplens.report.ranks import ranks_document
from warplens.scrub import check as checked_copy
from warplens.scrub import scrub as scrubbed_copy

_TARGETS: Final = ("perfetto", "parquet", "csv")
_SUFFIX: Final = ".perfetto-trace"


def export(
    path: Annotated[Path, argument("PATH", "A profile of any format that Warplens reads; it is not changed.")],
    to: Annotated[str, words_option("--to", words=_TARGETS, meaning="What to write.")],
    output: Annotated[
        Path | None,
        option(
            "OUT",
            "File (perfetto) or folder (parquet, csv) to write. By default named after the profile, here.",
            "--output",
            "-o",
        ),
    ] = None,
) -> None:
    """Export a profile to other programs: Perfetto, Parquet, CSV.

    The whole profile is written, warm-up included, with exact numbers. Nothing that identifies the machine is exported:
    no environment, hosts, users, paths or command lines. Existing output is replaced.
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
    print_lines([*written, line])


def _stem(profile: Path) -> str:
    return stem(profile.name) or "profile"


def _to_perfetto(profile: Path, target: Path) -> str:
    from warplens.export.perfetto import write_perfetto

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
    from warplens.export.tables import counter_tables, trace_tables, write_tables

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


def scrub(
    source: Annotated[
        Path,
        argument(
            "IN",
            "A capture of Nsight Systems, a trace of the PyTorch profiler, a report of Nsight Compute or its CSV "
            "export, or a CSV file of timings, also compressed; it is not changed.",
        ),
    ],
    target: Annotated[
        Path | None,
        argument(
            "OUT",
            "The copy to write; a file that does not exist yet. Compressed if its name ends with .gz, .xz or .zst.",
        ),
    ] = None,
    check: Annotated[
        bool, flag("--check", "Write nothing; list what a copy would leave out. Exits with 1 if there is anything.")
    ] = False,
) -> None:
    """Copy a profile without anything that identifies people or machines.

    Left out are the environment, hosts, users, command lines, paths, the program's output and other processes. Every
    analysis of the copy gives the same numbers: both files are read and compared before the copy gets its name.
    """
    if check is (target is not None):
        raise UsageError("name the copy to write, or ask with --check what it would lack; one of the two")
    if target is None:
        _check(source)
        return
    with progress(f"scrubbing {source.name}"):
        done = scrubbed_copy(source, target)
    whole, parts = done.words
    left, entries, texts = sum(done.tables.values()), sum(done.rows.values()), sum(done.texts.values())
    with answering() as stdout:
        stdout.write(
            f"{one_line(target)}: {fmt.data_size(done.target_bytes)}, a copy of {one_line(done.source)}; "
            f"texts rewritten: {fmt.count(texts)}; "
            f"left out: {fmt.count(left)} ({whole}), {fmt.count(entries)} ({parts})\n"
            f"Names and values of the original that the copy was searched for: {fmt.count(done.searched)}; "
            "none is left\n"
            f"Both were read and give the same {fmt.count(done.compared)} tables, rewritten texts apart\n"
        )


def _check(source: Path) -> None:
    """Says what others would see, in kinds and counts; the words themselves are said nowhere."""
    with progress(f"looking through {source.name}"):
        found = checked_copy(source)
    if found.is_clean:
        print_lines([f"{source.name}: scrub would leave out nothing"])
        return
    whole, parts = found.words
    counts = {
        f"not known to be needed ({whole})": sum(found.tables.values()),
        f"not known to be needed ({parts})": sum(found.rows.values()),
        **{f"texts with: {kind}": count for kind, count in found.kinds.items()},
        "names and values that identify, or stand in the environment or command line": found.searched,
    }
    shown = [f"{what}: {fmt.count(count)}" for what, count in counts.items() if count]
    print_lines([f"{source.name}: others would see", *shown])
    raise typer.Exit(GATE_FAILED)


class CacheAction(str, Enum):
    """What to do with the conversions that are kept."""

    SHOW = "show"
    CLEAR = "clear"


def cache(
    action: Annotated[CacheAction, argument("show|clear", "Show the cache, or clear it.")] = CacheAction.SHOW,
) -> None:
    """Show or clear the cache of converted Nsight Systems reports.

    The converted files hold no environment, hosts, users or command lines. The least recently used are removed when
    there are more than 4 GB of them (WARPLENS_MAX_CACHE_BYTES).
    """
    from warplens.readers.nsys.conversion import cache_folder, cached, clear_cache

    kept = cached()
    size = sum(path.stat().st_size for path in kept if path.is_file())
    folder = cache_folder()
    if action is CacheAction.CLEAR:
        clear_cache()
    kept_in = f" in {folder}" if folder is not None else ""
    done = "removed" if action is CacheAction.CLEAR else "kept"
    print_lines([f"{fmt.plural(len(kept), 'conversion')}, {fmt.data_size(size)}, {done}{kept_in}"])


def ranks(
    paths: Annotated[list[Path], argument("PATH…", "Profiles of one run, and folders that are searched for them.")],
    window: WindowOption = "steady",
    form: FormatOption = Format.TABLE,
    output: Annotated[Path | None, documents_option("ranks")] = None,
    workers: Annotated[int | None, option("N", "Processes that read profiles; at most one per core.", min=1)] = None,
    scheduler: Annotated[
        str | None,
        option("ADDRESS", "Read the profiles on an existing Dask cluster (tcp://host:8786) instead."),
    ] = None,
    limit: LimitOption = None,
) -> None:
    """Ranks of a distributed run: overlap, collectives, stragglers, waits.

    Each profile is reduced to a small summary in a process of its own; a file with several processes or GPUs holds
    several ranks. The rank is taken from the file, else from its name (rank3, _r3), else from the order given.
    """
    folder = checked_target(output, paths) if output else None
    found = discover(paths)
    with progress(f"reading {fmt.plural(len(found), 'profile')}") as tell:
        run = analyse_ranks(found, window, workers=workers, scheduler=scheduler, progress=tell)
    asked = ranks_answer(run.result, run.sources, run.problems)
    shown = answered(asked, Part(head=asked.facts), most_rows(form, limit))
    give(shown, form, folder, lambda: ranks_document(run.result, asked.notes))
    end_with(run.problems, "answer")
