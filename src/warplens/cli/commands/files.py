"""`warplens export`, `scrub` and `cache`: files for other programs and people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from warplens.analysis.timeline import Timeline
from warplens.answers.inputs import only_profile
from warplens.cli.answer import checked_file, checked_folder, print_lines
from warplens.cli.options import argument, flag, option, words_option
from warplens.cli.process import GATE_FAILED, answering, one_line, progress
from warplens.errors import UsageError
from warplens.readers import holds_counters, read, read_counters
from warplens.readers.shipped import stem
from warplens.report import text as fmt
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
    profile = only_profile(path)
    name = stem(profile.name) or "profile"
    if to == "perfetto":
        target = checked_file(output or Path(name + _SUFFIX), (profile,))
        line = _to_perfetto(profile, target)
        written: Iterable[Path] = [target]
    else:
        folder = checked_folder(output or Path(f"{name}-{to}"))
        written, line = _to_tables(profile, folder, to)
    print_lines([*written, line])


def _to_perfetto(profile: Path, target: Path) -> str:
    from warplens.export.perfetto import write_perfetto

    if holds_counters(profile):
        raise UsageError(
            f"{profile.name}: counters of single kernels have no timeline. Export them with --to parquet or --to csv"
        )
    checked_folder(target.absolute().parent)
    with progress(f"reading {profile.name}") as tell:
        timeline = Timeline(read(profile, progress=tell))
        tell("writing")
        result = write_perfetto(timeline, target)
    return (
        f"{fmt.count(result.slices)} slices on {fmt.count(result.tracks)} tracks, {fmt.count(result.flows)} arrows "
        f"from launch to work, {fmt.data_size(result.bytes)}. Open it at ui.perfetto.dev (files stay in your browser)"
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
        result = scrubbed_copy(source, target)
    whole_noun, parts_noun = result.words
    left_out, entries, texts = sum(result.tables.values()), sum(result.rows.values()), sum(result.texts.values())
    left = "none is left"
    if result.left:
        left = f"{fmt.plural(result.left, 'is', 'are')} left in names that people gave, perhaps as words: check these"
    with answering() as stdout:
        stdout.write(
            f"{one_line(target)}: {fmt.data_size(target.stat().st_size)}, a copy of {one_line(result.source)}; "
            f"texts rewritten: {fmt.count(texts)}; "
            f"left out: {fmt.count(left_out)} ({whole_noun}), {fmt.count(entries)} ({parts_noun})\n"
            f"Names and values of the original that the copy was searched for: {fmt.count(result.searched)}; "
            f"{left}\n"
            f"Both were read and give the same {fmt.count(result.compared)} tables, rewritten texts apart\n"
        )


def _check(source: Path) -> None:
    """Print the kinds and counts of what a copy would leave out, but not the words themselves."""
    with progress(f"looking through {source.name}"):
        findings = checked_copy(source)
    if findings.is_clean:
        print_lines([f"{source.name}: scrub would leave out nothing"])
        return
    whole_noun, parts_noun = findings.words
    counts = {
        f"not known to be needed ({whole_noun})": sum(findings.tables.values()),
        f"not known to be needed ({parts_noun})": sum(findings.rows.values()),
        **{f"texts with: {kind}": count for kind, count in findings.kinds.items()},
        "names and values that identify, or stand in the environment or command line": findings.searched,
    }
    lines = [f"{label}: {fmt.count(count)}" for label, count in counts.items() if count]
    print_lines([f"{source.name}: others would see", *lines])
    raise typer.Exit(GATE_FAILED)


def cache(
    action: Annotated[Literal["show", "clear"], argument("show|clear", "Show the cache, or clear it.")] = "show",
) -> None:
    """Show or clear the cache of converted Nsight Systems reports.

    The converted files hold no environment, hosts, users or command lines. The least recently used are removed when
    there are more than 4 GB of them (WARPLENS_MAX_CACHE_BYTES).
    """
    from warplens.readers.nsys.conversion import cache_folder, cached, clear_cache

    conversions = cached()
    size = sum(path.stat().st_size for path in conversions if path.is_file())
    folder = cache_folder()
    if action == "clear":
        clear_cache()
    in_folder = f" in {folder}" if folder is not None else ""
    done = "removed" if action == "clear" else "kept"
    print_lines([f"{fmt.plural(len(conversions), 'conversion')}, {fmt.data_size(size)}, {done}{in_folder}"])
