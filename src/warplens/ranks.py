"""Many profiles of one distributed run: each file is read and summarised separately, in bounded memory.

The analysis is in `warplens.analysis.ranks` and `warplens.diagnosis`. This module runs it on many files, in worker
processes on this machine or on an existing Dask cluster. Both run the same function per file, so that the results are
the same.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from warplens.analysis.ranks.across import RanksResult, across_ranks, rank_in_name
from warplens.analysis.ranks.measures import communication_rows
from warplens.analysis.ranks.summary import RankSummary, rank_windows, summarize, summary_of
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.diagnosis import Diagnosis
from warplens.diagnosis.across import RunDiagnosis, diagnose_run
from warplens.diagnosis.facts import gather
from warplens.diagnosis.run import RankFacts, rank_facts, run_of_ranks
from warplens.diagnosis.verdict import diagnose
from warplens.errors import UsageError, WarplensError, shown_name
from warplens.profile import Note, NoteLevel, Trace
from warplens.readers import read

#: Files named in the message of `NotOneRunError`.
_NAMED: Final = 3


class NotOneRunError(UsageError):
    """Several profiles are not recognisable as the ranks of one run."""

    def __init__(self, sources: Sequence[str], silent: Sequence[str] = ()) -> None:
        """The profiles, and those of them that hold no communication, if others do."""
        without = f". No communication is recorded in {', '.join(silent[:_NAMED])}" if silent else ""
        super().__init__(
            f"{len(sources)} profiles ({', '.join(sources[:_NAMED])}{', …' if len(sources) > _NAMED else ''}) that "
            "are not the ranks of one run: ranks communicate, and record their rank or have it in their name "
            "(…rank0…, …rank1…). Name one profile, compare two with `warplens compare A B`, or use `warplens "
            f"report` for all{without}"
        )


@dataclass(frozen=True, eq=False)
class RanksRun:
    """The analysis of many files across ranks."""

    result: RanksResult
    sources: tuple[str, ...]  #: the files that were used, in the order given
    problems: tuple[str, ...]  #: errors of the others, one line each


def analyse_ranks(
    paths: Sequence[Path],
    window: str = "steady",
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> RanksRun:
    """Summarise each profile and analyse all ranks together.

    Args:
        paths: the profiles of one run; files, not folders.
        window: as for `Timeline.window`; a span is in each file's own clock.
        workers: processes on this machine; None for one per core.
        scheduler: address of an existing Dask cluster to use instead.
        progress: receives the number of finished profiles as a text.

    Raises:
        UsageError: no profile could be used, a rank occurs twice, or the cluster cannot be reached.
    """
    if scheduler is not None:
        files = summarize_on_cluster(paths, window, scheduler, progress)
    else:
        files = summarize_locally(paths, window, workers, progress)
    files = _without_merged(files)
    sources, problems = _used(files)
    progress("putting the ranks together")
    summaries = [(summary, number) for number, file in enumerate(files) for summary in file.ranks]
    result = across_ranks([summary for summary, _ in summaries], [number for _, number in summaries])
    return RanksRun(_with_note(result, files), sources, problems)


def _used(files: Sequence[FileSummary]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the files that were used, and the errors of the others.

    Raises:
        UsageError: no file could be used.
    """
    problems = tuple(file.problem for file in files if file.problem is not None)
    if len(problems) == len(files):
        others = f" ({len(problems)} files in all)" if len(problems) > 1 else ""
        raise UsageError(f"no profile could be used{others}: {problems[0]}")
    return tuple(file.source for file in files if file.problem is None and not file.again), problems


@dataclass(frozen=True, eq=False)
class DiagnosedRank:
    """Diagnosis of one rank, with the data for comparing ranks."""

    summary: RankSummary
    facts: RankFacts
    diagnosis: Diagnosis


@dataclass(frozen=True, eq=False)
class DiagnosedRun:
    """The diagnosis of many files as the ranks of one run."""

    diagnosis: RunDiagnosis  #: of the run and of each rank
    sources: tuple[str, ...]  #: the files that were used, in the order given
    problems: tuple[str, ...]  #: errors of the others, one line each


def diagnose_ranks(
    paths: Sequence[Path],
    window: str = "steady",
    *,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    gpu: str | None = None,
) -> DiagnosedRun:
    """Diagnose each profile, and their run. Arguments as for `analyse_ranks`, and `gpu` as for `readers.read`.

    Raises:
        NotOneRunError: the profiles are not recognisable as the ranks of one run.
        UsageError: no profile could be used.
    """
    names = [path.name for path in paths]
    if not _may_be_a_rank(paths[0]):
        raise NotOneRunError(names)  # before many others are read
    files = _without_merged(summarize_locally(paths, window, workers, progress, partial(diagnose_file, gpu=gpu)))
    sources, problems = _used(files)
    progress("putting the ranks together")
    diagnosis = run_diagnosis([file.diagnosed for file in files])
    if diagnosis is None:
        silent = [
            file.source
            for file in files
            if file.diagnosed and not any(rank.summary.collectives.height for rank in file.diagnosed)
        ]
        raise NotOneRunError(names, silent if len(silent) < len(names) else ())
    run = replace(diagnosis.run, result=_with_note(diagnosis.run.result, files))
    return DiagnosedRun(replace(diagnosis, run=run), sources, problems)


def _may_be_a_rank(path: Path) -> bool:
    if rank_in_name(path.name) is not None:
        return True
    try:
        trace = read(path, launch_configuration=False)
    except WarplensError:
        return True
    return trace.capture.rank is not None or len(communication_rows(Timeline(trace))) > 0


def diagnosed(timeline: Timeline, window: str | Window = "steady") -> tuple[DiagnosedRank, ...]:
    """The diagnosis of each rank of one profile."""
    return tuple(
        DiagnosedRank(
            summary_of(rank),
            rank_facts(gather(rank.timeline, rank.window)),
            diagnose(rank.timeline, rank.window),
        )
        for rank in rank_windows(timeline, window)
    )


def one_run(timelines: Sequence[Timeline], window: Callable[[Timeline], Window]) -> RunDiagnosis | None:
    """The diagnosis of the run of these profiles; None if they are not the ranks of one.

    Args:
        timelines: the profiles.
        window: finds the part of each to analyse.
    """
    if not all(len(communication_rows(timeline)) for timeline in timelines):
        return None
    try:
        return run_diagnosis([diagnosed(timeline, window(timeline)) for timeline in timelines])
    except UsageError:  # for example, repeats of one rank
        return None


def run_diagnosis(files: Sequence[Sequence[DiagnosedRank]]) -> RunDiagnosis | None:
    """The diagnosis of the run of several files; None if they are not recognisable as one run.

    They are one run if every rank communicates, and either every rank is known from its file or file name, or most
    collectives ran at the same times on several ranks.

    Raises:
        UsageError: their ranks contradict each other.
    """
    origin = {
        id(rank.summary): (file, part) for file, ranks in enumerate(files) for part, rank in enumerate(ranks)
    }  # of each summary its file and its index within it
    all_ranks = [rank for ranks in files for rank in ranks]
    if not all(rank.summary.collectives.height for rank in all_ranks):
        return None
    summaries = [rank.summary for rank in all_ranks]
    files_of_ranks = [file for file, ranks in enumerate(files) for _ in ranks]
    run = run_of_ranks(summaries, lambda index: all_ranks[index].facts, files_of_ranks)
    ranks_known = "order" not in run.result.placing.how
    if not ranks_known and 2 * int(run.result.matching["matched"].sum()) < int(run.result.matching["kernels"].sum()):
        return None
    diagnosis_of = {id(rank.summary): rank.diagnosis for rank in all_ranks}
    placed = list(zip(run.result.ranks, run.result.summaries, strict=True))
    diagnoses = {rank: diagnosis_of[id(summary)] for rank, summary in placed}
    origins = {rank: origin[id(summary)] for rank, summary in placed}
    return replace(diagnose_run(run, diagnoses), origin=origins)


@dataclass(frozen=True, eq=False)
class FileSummary:
    """The ranks of one file, or its error."""

    source: str  #: file name without folders
    ranks: tuple[RankSummary, ...] = ()  #: one summary per rank
    problem: str | None = None  #: why the file could not be used, one line; None if it could
    diagnosed: tuple[DiagnosedRank, ...] = ()  #: the ranks with diagnoses, if requested
    merged: bool = False  #: whether traces of several ranks were merged into the file
    again: bool = False  #: whether it is a merged file that was left out, since other files have the ranks singly


def _without_merged(files: Sequence[FileSummary]) -> list[FileSummary]:
    """The files, with merged ones marked as left out if other files have the ranks singly."""
    has_single = any(file.problem is None and not file.merged for file in files)
    return [FileSummary(file.source, again=True) if has_single and file.merged else file for file in files]


def _with_note(result: RanksResult, files: Sequence[FileSummary]) -> RanksResult:
    """The result, with a note on merged files that were left out."""
    left_out = [file.source for file in files if file.again]
    if not left_out:
        return result
    text = f"Traces of several ranks were merged into {', '.join(left_out)}: left out, for the others hold them."
    return replace(result, notes=(*result.notes, Note("merged-traces", NoteLevel.INFO, text)))


def _is_merged(trace: Trace) -> bool:
    return any(note.code == "merged-traces" for note in trace.capture.notes)


def summarize_file(path: str, window: str = "steady") -> FileSummary:
    """Read one profile and summarise its ranks. Errors are returned as `problem`, so that others are not stopped."""

    def reduced(source: str) -> FileSummary:
        trace = read(path, launch_configuration=False)
        return FileSummary(source, summarize(trace, window), merged=_is_merged(trace))

    return _unless_bad(path, reduced)


def diagnose_file(path: str, window: str = "steady", gpu: str | None = None) -> FileSummary:
    """Read one profile and diagnose each of its ranks. Errors are returned as `problem`."""

    def reduced(source: str) -> FileSummary:
        trace = read(path, gpu=gpu)
        return FileSummary(source, diagnosed=diagnosed(Timeline(trace), window), merged=_is_merged(trace))

    return _unless_bad(path, reduced)


def _unless_bad(path: str, reduced: Callable[[str], FileSummary]) -> FileSummary:
    source = shown_name(Path(path).name)
    try:
        return reduced(source)
    except WarplensError as error:
        text = str(error)
        return FileSummary(source, problem=text if source in text else f"{source}: {text}")
    except MemoryError:
        return FileSummary(source, problem=f"{source}: there is not enough memory for it. Use fewer --workers")
    except OSError as error:
        return FileSummary(source, problem=f"{source}: {error.strerror or type(error).__name__}")
    except Exception as error:  # a bug that one file triggers must not stop the analysis of the others
        description = f"{type(error).__name__}: {error}"
        return FileSummary(source, problem=f"{source}: {description}. This is a bug in Warplens: please report it")


#: Seconds to wait for the scheduler to answer.
_CONNECT_S: Final = 15

#: Seconds between two checks for finished files, and, without any, for workers.
_LOOK_S, _ASK_S = 0.1, 5.0

#: Seconds without any worker after which to give up; adaptive clusters start workers sooner.
_ALONE_S: Final = 300.0


def summarize_on_cluster(
    paths: Sequence[Path], window: str, scheduler: str, progress: Callable[[str], None]
) -> list[FileSummary]:
    """Summarise each file on the workers of a Dask cluster; results are in the order of the files.

    The workers read the files, which must have the same paths there, and need Warplens.

    Raises:
        UsageError: Dask is not installed, or the cluster does not answer, is lost, or has no workers.
    """
    try:
        dask: Any = import_module("distributed")  # an optional dependency
    except ImportError:
        raise UsageError(
            "--scheduler needs Dask: pip install 'warplens[cluster]'; without it the profiles are read by --workers of "
            "this machine"
        ) from None
    with _without_logs("distributed", "tornado", "asyncio"):
        try:
            client = dask.Client(scheduler, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {scheduler} ({type(error).__name__}). Check the address"
            ) from None
        try:
            with client:
                # Not pure, so that Dask does not reuse results: the file may have changed.
                futures = [client.submit(summarize_file, str(path.absolute()), window, pure=False) for path in paths]
                _await_all(client, dask.as_completed(futures, loop=client.loop, raise_errors=False), paths, progress)
                return [_result(future, path) for future, path in zip(futures, paths, strict=True)]
        except (dask.CancelledError, OSError) as error:
            raise UsageError(
                f"the Dask scheduler at {scheduler} was lost ({type(error).__name__}). Start it again, or leave out "
                "--scheduler to read the profiles on this machine"
            ) from None


def _await_all(client: Any, completed: Any, paths: Sequence[Path], progress: Callable[[str], None]) -> None:
    """Wait until all files are done.

    Raises:
        UsageError: the cluster has had no worker for `_ALONE_S` seconds.
    """
    done, last_check = 0, time.monotonic()
    last_worker = last_check
    while done < len(paths):
        if batch := completed.next_batch(block=False):
            done += len(batch)
            last_check = last_worker = time.monotonic()
            progress(f"summarised {done} of {len(paths)} profiles")
            continue
        time.sleep(_LOOK_S)
        if time.monotonic() - last_check > _ASK_S:
            last_check = time.monotonic()
            if client.nthreads():
                last_worker = last_check
            elif last_check - last_worker > _ALONE_S:
                raise UsageError(
                    f"the Dask cluster has had no worker for {_ALONE_S:.0f} s; {done} of {len(paths)} profiles were "
                    "summarised. Start workers, or leave out --scheduler"
                )


@contextmanager
def _without_logs(*names: str) -> Iterator[None]:
    """Disable the loggers of libraries, which would print tracebacks besides our own message."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.partition(".")[0] in names]
    enabled = [logger for logger in loggers if not logger.disabled]
    for logger in enabled:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in enabled:
            logger.disabled = False


def _result(future: Any, path: Path) -> FileSummary:
    failure = future.exception()
    if failure is None:
        summary: FileSummary = future.result()
        return summary
    return FileSummary(
        path.name, problem=f"{path.name}: the cluster could not summarise it ({type(failure).__name__}: {failure})"
    )


#: More workers rarely help, since disk and memory are shared.
_MOST_WORKERS: Final = 16

#: Files per worker process. Allocators keep freed memory, so workers are replaced to bound memory by the largest files.
_FILES_PER_WORKER: Final = 16

#: The variable by which Polars is told its number of threads.
_THREADS: Final = "POLARS_MAX_THREADS"


def default_workers() -> int:
    """The number of cores that this process may use, at most `_MOST_WORKERS`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST_WORKERS))


def summarize_locally(
    paths: Sequence[Path],
    window: str,
    workers: int | None,
    progress: Callable[[str], None],
    ask: Callable[[str, str], FileSummary] = summarize_file,
) -> list[FileSummary]:
    """Summarise each file, or apply `ask` to it, in several processes; results are in the order of the files."""
    count = min(workers or default_workers(), len(paths))
    if count <= 1:
        summaries = []
        for path in paths:
            summaries.append(ask(str(path), window))
            progress(f"summarised {len(summaries)} of {len(paths)} profiles")
        return summaries
    by_index: dict[int, FileSummary] = {}
    batch = count * _FILES_PER_WORKER
    for first in range(0, len(paths), batch):
        for index, summary in _in_pool(paths, range(first, min(first + batch, len(paths))), window, count, ask):
            by_index[index] = summary
            progress(f"summarised {len(by_index)} of {len(paths)} profiles")
    return [by_index[index] for index in range(len(paths))]


def _in_pool(
    paths: Sequence[Path], indices: range, window: str, workers: int, ask: Callable[[str, str], FileSummary]
) -> Iterator[tuple[int, FileSummary]]:
    # New interpreters, since a fork would copy the threads of Polars in an undefined state. Each has one core; it sets
    # its own environment before its first task loads Polars, and the caller's stays as it is.
    threads = os.environ.get(_THREADS) or "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=os.putenv, initargs=(_THREADS, threads)) as pool:
        index_of = {pool.submit(ask, str(paths[index]), window): index for index in indices}
        for future in as_completed(index_of):
            index = index_of[future]
            yield index, _local_result(future, paths[index])


def _local_result(future: Future[FileSummary], path: Path) -> FileSummary:
    try:
        return future.result()
    except BrokenProcessPool:
        # The system kills processes that exhaust memory, which breaks the whole pool.
        return FileSummary(
            path.name,
            problem=f"{path.name}: a worker process was ended from outside, most likely for lack of memory. "
            "Use fewer --workers",
        )
