"""`warplens scrub`: a copy of a profile that can be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warplens.cli.edge import answering
from warplens.cli.messages import one_line, progress
from warplens.report import format as fmt
from warplens.scrub import scrub as scrubbed_copy

__all__ = ["scrub"]


def scrub(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            show_default=False,
            help="A capture of Nsight Systems, a trace of the PyTorch profiler, a report of Nsight Compute or its CSV "
            "export, or a CSV file of timings, also compressed; it is not changed.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            show_default=False,
            help="The copy to write; a file that does not exist yet. Compressed if its name ends with .gz, .xz or "
            ".zst.",
        ),
    ],
) -> None:
    """Copy a profile without what tells of people and machines.

    Left out are the environment, hosts, users, command lines, paths, the program's output and other processes. Every
    analysis of the copy gives the same numbers: both files are read and compared before the copy gets its name.
    """
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
