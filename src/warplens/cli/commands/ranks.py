"""`warplens ranks`: overlap, collectives, stragglers and waits of the ranks of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from warplens.answers import ranks_answer
from warplens.cli.answer import Part, answered, checked_target, give, most_rows
from warplens.cli.memory import RANK, workers_that_fit
from warplens.cli.options import FormatOption, LimitOption, WindowOption, argument, documents_option, option
from warplens.cli.process import end_with, progress
from warplens.ranks import analyse_ranks
from warplens.readers import discover
from warplens.report import text as fmt
from warplens.report.ranks import ranks_document


def ranks(
    paths: Annotated[list[Path], argument("PATH…", "Profiles of one run, and folders that are searched for them.")],
    window: WindowOption = "steady",
    form: FormatOption = "table",
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
    folder = checked_target(output, paths, form) if output else None
    files = discover(paths, failed=True)
    with progress(f"reading {fmt.plural(len(files), 'profile')}") as tell:
        if scheduler is None:
            workers = workers_that_fit(files, workers, RANK)
        run = analyse_ranks(files, window, workers=workers, scheduler=scheduler, progress=tell)
    answer = ranks_answer(run.result, run.sources, run.problems)
    printed = answered(answer, Part(head=answer.facts), most_rows(form, limit))
    give(printed, form, folder, lambda: ranks_document(run.result, answer.notes))
    end_with(run.problems, "answer")
