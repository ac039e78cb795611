"""The files of one run, whoever reads them, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.analysis.ranks.across import RanksResult, across_ranks
from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["RanksRun", "analyse_ranks"]


@dataclass(frozen=True, eq=False)
class RanksRun:
    """What came of many files.

    Attributes:
        result: everything across ranks.
        sources: the files that were used, in the order given.
        problems: why others were not, one line each.
    """

    result: RanksResult
    sources: tuple[str, ...]
    problems: tuple[str, ...]


def analyse_ranks(
    paths: Sequence[Path],
    window: str = "steady",
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> RanksRun:
    """Summarise each profile and put the ranks together.

    Args:
        paths: the profiles of one run; files, not folders.
        window: as `Timeline.window` takes it; a span is in each file's own clock.
        workers: processes on this machine; None for one a core.
        scheduler: address of an existing Dask cluster to use instead.
        progress: is told how many profiles are done.

    Raises:
        UsageError: no profile could be used, a rank occurs twice, or the cluster cannot be reached.
    """
    if scheduler is not None:
        from warplens.ranks.cluster import summarize_on_cluster  # noqa: PLC0415  optional, and slow to import

        files = summarize_on_cluster(paths, window, scheduler, progress)
    else:
        from warplens.ranks.local import summarize_locally  # noqa: PLC0415

        files = summarize_locally(paths, window, workers, progress)
    problems = tuple(file.problem for file in files if file.problem is not None)
    if len(problems) == len(files):
        others = f" ({len(problems)} files in all)" if len(problems) > 1 else ""
        raise UsageError(f"no profile could be used{others}: {problems[0]}")
    progress("putting the ranks together")
    summaries = [(summary, number) for number, file in enumerate(files) for summary in file.ranks]
    result = across_ranks([summary for summary, _ in summaries], [number for _, number in summaries])
    return RanksRun(result, tuple(file.source for file in files if file.problem is None), problems)
