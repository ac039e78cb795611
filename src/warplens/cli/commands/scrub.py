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
            metavar="IN", show_default=False, help="The SQLite export of a capture, also compressed; it is not changed."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", show_default=False, help="The copy to write; a file that does not exist yet."),
    ],
) -> None:
    """Copy a profile without what tells of people and machines.

    Left out are the environment, hosts, users, command lines, paths, the program's output and other processes. Every
    analysis of the copy gives the same numbers.
    """
    with progress(f"scrubbing {source.name}"):
        done = scrubbed_copy(source, target)
    tables, rows, texts = len(done.tables), sum(done.rows.values()), sum(done.texts.values())
    with answering() as stdout:
        stdout.write(
            f"{one_line(target)}: {fmt.data_size(done.target_bytes)}, a copy of {one_line(done.source)} without "
            f"{fmt.count(tables)} tables and {fmt.count(rows)} rows of others; {fmt.count(texts)} texts are rewritten\n"
            f"The copy was searched for {fmt.count(done.searched)} names and values of the original; none is left\n"
        )
