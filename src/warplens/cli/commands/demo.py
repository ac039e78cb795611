"""`warplens demo`: what Warplens does, on the profiles that come with it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import warplens
from warplens.analysis.grid.gridcells import plain_name
from warplens.cli.edge import answering
from warplens.cli.findings import TITLE, shipped_evidence
from warplens.cli.messages import one_line, progress
from warplens.cli.options import words_option
from warplens.cli.reporting import (
    DEFAULT_FOLDER,
    GridRequest,
    Profiles,
    checked_folder,
    find_cells,
    read_profiles,
    write_grid,
    write_overview,
)
from warplens.errors import UsageError
from warplens.readers.timings import read_timings
from warplens.report.findings import findings_document
from warplens.report.write import REPORT_FORMATS, write_document

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["demo"]

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
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to; made if need be.")
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
    folder = checked_folder(output)
    # The answers that are printed are those of the report's JSON, which is therefore always written.
    wanted = [form for form in REPORT_FORMATS if form == "json" or form in formats.split(",")]
    entries = _shipped_profiles()
    shipped = read_profiles([_CAPTURES / entry["file"] for entry in entries])
    in_grid = {entry["file"] for entry in entries if "model" in entry}
    shown = _selected(shipped, {entry["file"] for entry in entries} - in_grid | set(_ALSO_IN_REPORT))
    models = _selected(shipped, in_grid)
    grid = GridRequest({}, read_timings(_CAPTURES / _TIMINGS), _BATCH)

    written = write_overview(shown, lambda timeline: timeline.window(), folder, wanted)
    if (cells := find_cells(models.paths, grid)) is not None:
        written += write_grid(models, cells, grid, folder, wanted)
    with progress("telling the findings"):
        findings = findings_document(shipped_evidence(), TITLE)
        written += write_document(findings, folder, wanted, name="findings_report")
    with answering() as stdout:
        stdout.write("".join(f"{line}\n" for line in _summary(entries, folder / "report.json", findings.lead, written)))


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
