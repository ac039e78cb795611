"""Files over worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Final

from warplens.ranks.files import FileSummary, summarize_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["default_workers", "summarize_locally"]

#: More workers than this rarely help: the disk and the memory are shared.
_MOST_WORKERS: Final = 16

#: Files that one worker process reads before a fresh one takes its place. An allocator keeps what it was given; a new
#: process is how memory stays that of the largest file and not of all.
_FILES_PER_WORKER: Final = 16


def default_workers() -> int:
    """As many as this process may use cores, within reason."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST_WORKERS))


def summarize_locally(
    paths: Sequence[Path], window: str, workers: int | None, progress: Callable[[str], None]
) -> list[FileSummary]:
    """Summarise each file, several at once; in the order given.

    Args:
        paths: the profiles.
        window: as `Timeline.window` takes it.
        workers: processes; None for one a core.
        progress: is told how many are done.
    """
    count = min(workers or default_workers(), len(paths))
    if count <= 1:
        return [_told(summarize_file(str(path), window), number, paths, progress) for number, path in enumerate(paths)]
    found: list[FileSummary | None] = [None] * len(paths)
    batch = count * _FILES_PER_WORKER
    done = 0
    for first in range(0, len(paths), batch):
        for place, summary in _in_pool(paths, range(first, min(first + batch, len(paths))), window, count):
            found[place] = summary
            done += 1
            progress(f"summarised {done} of {len(paths)} profiles")
    return [summary for summary in found if summary is not None]


def _told(summary: FileSummary, number: int, paths: Sequence[Path], progress: Callable[[str], None]) -> FileSummary:
    progress(f"summarised {number + 1} of {len(paths)} profiles")
    return summary


def _in_pool(paths: Sequence[Path], places: range, window: str, workers: int) -> Iterator[tuple[int, FileSummary]]:
    # Fresh interpreters: a fork would copy the threads of Polars in whatever state they are.
    context = multiprocessing.get_context("spawn")
    threads = os.environ.get("POLARS_MAX_THREADS")
    os.environ["POLARS_MAX_THREADS"] = threads or "1"  # inherited by the workers, each of which has a core
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            waiting: dict[Future[FileSummary], int] = {
                pool.submit(summarize_file, str(paths[place]), window): place for place in places
            }
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    place = waiting.pop(future)
                    yield place, _result(future, paths[place])
    finally:
        if threads is None:
            os.environ.pop("POLARS_MAX_THREADS", None)


def _result(future: Future[FileSummary], path: Path) -> FileSummary:
    try:
        return future.result()
    except BrokenProcessPool:
        # The system ends processes that ask for more memory than there is; the pool is then lost with them.
        return FileSummary(
            path.name,
            problem=f"{path.name}: a worker process was ended from outside, most likely for lack of memory. "
            "Use fewer --workers",
        )
