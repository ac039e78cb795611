"""Many profiles of one distributed run: each file read and summarised on its own, in bounded memory.

The questions themselves are answered by `warplens.analysis.ranks` and `warplens.diagnosis`; here is what carries them
to many files: worker processes on this machine (`local`), or an existing Dask cluster (`cluster`). Both run the same
function on each file (`files`), so that the results are the same. May import: `warplens.readers`, `warplens.diagnosis`
and what they know.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from warplens.errors import UsageError, WarplensError
from warplens.profile import Note, NoteLevel, Trace
from warplens.readers import read

#: Files that are named where they are not the ranks of one run.
_NAMED: Final = 3


class NotOneRunError(UsageError):
    """Several profiles that nothing tells to be the ranks of one run."""

    def __init__(self, sources: Sequence[str]) -> None:
        super().__init__(
            f"{len(sources)} profiles ({', '.join(sources[:_NAMED])}{', …' if len(sources) > _NAMED else ''}) that "
            "are not the ranks of one run: ranks communicate, and record their rank or have it in their name "
            "(…rank0…, …rank1…). Name one profile, compare two with `warplens compare A B`, or use `warplens "
            "report` for all"
        )


@dataclass(frozen=True, eq=False)
class RanksRun:
    """What came of many files."""

    result: RanksResult  #: everything across ranks
    sources: tuple[str, ...]  #: the files that were used, in the order given
    problems: tuple[str, ...]  #: why others were not, one line each


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
        files = summarize_on_cluster(paths, window, scheduler, progress)
    else:
        files = summarize_locally(paths, window, workers, progress)
    files = _once(files)
    sources, problems = _used(files)
    progress("putting the ranks together")
    summaries = [(summary, number) for number, file in enumerate(files) for summary in file.ranks]
    result = across_ranks([summary for summary, _ in summaries], [number for _, number in summaries])
    return RanksRun(_with_note(result, files), sources, problems)


def _used(files: Sequence[FileSummary]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that could be used, and why others could not; an error where none could."""
    problems = tuple(file.problem for file in files if file.problem is not None)
    if len(problems) == len(files):
        others = f" ({len(problems)} files in all)" if len(problems) > 1 else ""
        raise UsageError(f"no profile could be used{others}: {problems[0]}")
    return tuple(file.source for file in files if file.problem is None and not file.again), problems


@dataclass(frozen=True, eq=False)
class DiagnosedRank:
    """One rank that was looked at by itself, with what is compared with others."""

    summary: RankSummary
    facts: RankFacts
    diagnosis: Diagnosis


@dataclass(frozen=True, eq=False)
class DiagnosedRun:
    """What came of diagnosing many files."""

    diagnosis: RunDiagnosis  #: of the run and of each rank
    sources: tuple[str, ...]  #: the files that were used, in the order given
    problems: tuple[str, ...]  #: why others were not, one line each


def diagnose_ranks(
    paths: Sequence[Path],
    window: str = "steady",
    *,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DiagnosedRun:
    """Diagnose each profile, and the run that they are of. Arguments as of `analyse_ranks`.

    Raises:
        NotOneRunError: nothing tells that they are the ranks of one run.
        UsageError: no profile could be used.
    """
    apart = NotOneRunError([path.name for path in paths])
    if not _may_be_a_rank(paths[0]):
        raise apart  # before many others are read
    files = _once(summarize_locally(paths, window, workers, progress, diagnose_file))
    sources, problems = _used(files)
    progress("putting the ranks together")
    found = run_diagnosis([file.diagnosed for file in files])
    if found is None:
        raise apart
    run = replace(found.run, result=_with_note(found.run.result, files))
    return DiagnosedRun(replace(found, run=run), sources, problems)


def _may_be_a_rank(path: Path) -> bool:
    if rank_in_name(path.name) is not None:
        return True
    try:
        trace = read(path, launch_configuration=False)
    except WarplensError:
        return True
    return trace.capture.rank is not None or len(communication_rows(Timeline(trace))) > 0


def diagnosed(timeline: Timeline, window: str | Window = "steady") -> tuple[DiagnosedRank, ...]:
    """The ranks of one profile, each looked at by itself."""
    found = []
    for rank in rank_windows(timeline, window):
        facts = rank_facts(gather(rank.timeline, rank.window))
        found.append(DiagnosedRank(summary_of(rank), facts, diagnose(rank.timeline, rank.window)))
    return tuple(found)


def one_run(timelines: Sequence[Timeline], window: Callable[[Timeline], Window]) -> RunDiagnosis | None:
    """The diagnosis of the run that these profiles are of; None where they are not the ranks of one.

    Args:
        timelines: the profiles.
        window: the part of each that is analysed.
    """
    if not all(len(communication_rows(timeline)) for timeline in timelines):
        return None
    try:
        return run_diagnosis([diagnosed(timeline, window(timeline)) for timeline in timelines])
    except UsageError:  # repeats of one rank, for example
        return None


def run_diagnosis(files: Sequence[Sequence[DiagnosedRank]]) -> RunDiagnosis | None:
    """The diagnosis of the run that several files are of; None where nothing tells that they are of one.

    They are if every rank communicates, and each file records its rank, or its name tells it; or if their collectives
    ran at the same times.

    Raises:
        UsageError: their ranks contradict each other.
    """
    every = [(one, number) for number, ranks in enumerate(files) for one in ranks]
    origin = {id(one.summary): (number, place) for number, ranks in enumerate(files) for place, one in enumerate(ranks)}
    if not all(one.summary.collectives.height for one, _ in every):
        return None
    summaries, files_of = [one.summary for one, _ in every], [file for _, file in every]
    run = run_of_ranks(summaries, lambda place: every[place][0].facts, files_of)
    told = "order" not in run.result.placing.how
    if not told and 2 * int(run.result.matching["matched"].sum()) < int(run.result.matching["kernels"].sum()):
        return None
    by_summary = {id(one.summary): one.diagnosis for one, _ in every}
    ranks = {
        rank: by_summary[id(summary)] for rank, summary in zip(run.result.ranks, run.result.summaries, strict=True)
    }
    places = {rank: origin[id(each)] for rank, each in zip(run.result.ranks, run.result.summaries, strict=True)}
    return replace(diagnose_run(run, ranks), origin=places)


@dataclass(frozen=True, eq=False)
class FileSummary:
    """What became of a file."""

    source: str  #: its name, without folders
    ranks: tuple[RankSummary, ...] = ()  #: one summary a rank; () where the file could not be used
    problem: str | None = None  #: why not, one line; None where it could
    diagnosed: tuple[DiagnosedRank, ...] = ()  #: its ranks with a diagnosis each, where one was asked for
    merged: bool = False  #: whether traces of several ranks were merged into it
    again: bool = False  #: it is such a file, and left out because others hold the ranks by themselves


def _once(files: Sequence[FileSummary]) -> list[FileSummary]:
    """The files, of which those with merged traces tell nothing where others hold the ranks by themselves."""
    alone = any(file.problem is None and not file.merged for file in files)
    return [FileSummary(file.source, again=True) if alone and file.merged else file for file in files]


def _with_note(result: RanksResult, files: Sequence[FileSummary]) -> RanksResult:
    """The result, with a note on files that were left out because others hold what was merged into them."""
    again = [file.source for file in files if file.again]
    if not again:
        return result
    text = f"Traces of several ranks were merged into {', '.join(again)}: left out, for the others hold them."
    return replace(result, notes=(*result.notes, Note("merged-traces", NoteLevel.INFO, text)))


def _is_merged(trace: Trace) -> bool:
    return any(note.code == "merged-traces" for note in trace.capture.notes)


def summarize_file(path: str, window: str = "steady") -> FileSummary:
    """Read one profile and reduce it to its ranks. Never raises for a bad file: one must not stop the others."""

    def reduced(source: str) -> FileSummary:
        trace = read(path, launch_configuration=False)
        return FileSummary(source, summarize(trace, window), merged=_is_merged(trace))

    return _unless_bad(path, reduced)


def diagnose_file(path: str, window: str = "steady") -> FileSummary:
    """Read one profile and diagnose each of its ranks. Never raises for a bad file."""

    def reduced(source: str) -> FileSummary:
        trace = read(path)
        return FileSummary(source, diagnosed=diagnosed(Timeline(trace), window), merged=_is_merged(trace))

    return _unless_bad(path, reduced)


def _unless_bad(path: str, reduced: Callable[[str], FileSummary]) -> FileSummary:
    source = Path(path).name
    try:
        return reduced(source)
    except WarplensError as error:
        text = str(error)
        return FileSummary(source, problem=text if source in text else f"{source}: {text}")
    except MemoryError:
        return FileSummary(source, problem=f"{source}: there is not enough memory for it. Use fewer --workers")
    except OSError as error:
        return FileSummary(source, problem=f"{source}: {error.strerror or type(error).__name__}")
    except Exception as error:  # a defect of ours in one file must not cost the answer on a hundred others
        what = f"{type(error).__name__}: {error}"
        return FileSummary(source, problem=f"{source}: {what}. This is a bug in Warplens: please report it")


#: Seconds to wait for the scheduler to answer.
_CONNECT_S: Final = 15

#: Seconds between two looks at what is finished, and, where nothing is, at who works.
_LOOK_S, _ASK_S = 0.1, 5.0

#: Seconds without any worker after which nobody is waited for: clusters that grow by need have theirs sooner.
_ALONE_S: Final = 300.0


def summarize_on_cluster(
    paths: Sequence[Path], window: str, scheduler: str, progress: Callable[[str], None]
) -> list[FileSummary]:
    """Summarise each file on the workers of a Dask cluster; in the order given.

    The workers open the files themselves, so that these must lie where every worker finds them under the same path, and
    the workers must have Warplens installed.
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
                # Not pure: the same path may hold another file the next time.
                futures = [client.submit(summarize_file, str(path.absolute()), window, pure=False) for path in paths]
                _await_all(client, dask.as_completed(futures, loop=client.loop, raise_errors=False), paths, progress)
                return [_result(future, path) for future, path in zip(futures, paths, strict=True)]
        except (dask.CancelledError, OSError) as error:
            raise UsageError(
                f"the Dask scheduler at {scheduler} was lost ({type(error).__name__}). Start it again, or leave out "
                "--scheduler to read the profiles on this machine"
            ) from None


def _await_all(client: Any, completed: Any, paths: Sequence[Path], progress: Callable[[str], None]) -> None:
    """Waits until all is done, or no worker has been there for long.

    Raises:
        UsageError: nobody works, so that it would never be done.
    """
    done, asked = 0, time.monotonic()
    seen = asked
    while done < len(paths):
        if batch := completed.next_batch(block=False):
            done += len(batch)
            asked = seen = time.monotonic()
            progress(f"summarised {done} of {len(paths)} profiles")
            continue
        time.sleep(_LOOK_S)
        if time.monotonic() - asked > _ASK_S:
            asked = time.monotonic()
            if client.nthreads():
                seen = asked
            elif asked - seen > _ALONE_S:
                raise UsageError(
                    f"the Dask cluster has had no worker for {_ALONE_S:.0f} s; {done} of {len(paths)} profiles were "
                    "summarised. Start workers, or leave out --scheduler"
                )


@contextmanager
def _without_logs(*names: str) -> Iterator[None]:
    """Keeps a library from writing its own tracebacks beside the one line that says what they mean."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.partition(".")[0] in names]
    quiet = [logger for logger in loggers if not logger.disabled]
    for logger in quiet:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in quiet:
            logger.disabled = False


def _result(future: Any, path: Path) -> FileSummary:
    failure = future.exception()
    if failure is None:
        summary: FileSummary = future.result()
        return summary
    return FileSummary(
        path.name, problem=f"{path.name}: the cluster could not summarise it ({type(failure).__name__}: {failure})"
    )


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
    paths: Sequence[Path],
    window: str,
    workers: int | None,
    progress: Callable[[str], None],
    ask: Callable[[str, str], FileSummary] = summarize_file,
) -> list[FileSummary]:
    """Summarise each file, or `ask` it something else, several at once; in the order given."""
    count = min(workers or default_workers(), len(paths))
    if count <= 1:
        return [_told(ask(str(path), window), number, paths, progress) for number, path in enumerate(paths)]
    found: list[FileSummary | None] = [None] * len(paths)
    batch = count * _FILES_PER_WORKER
    done = 0
    for first in range(0, len(paths), batch):
        for place, summary in _in_pool(paths, range(first, min(first + batch, len(paths))), window, count, ask):
            found[place] = summary
            done += 1
            progress(f"summarised {done} of {len(paths)} profiles")
    return [summary for summary in found if summary is not None]


def _told(summary: FileSummary, number: int, paths: Sequence[Path], progress: Callable[[str], None]) -> FileSummary:
    progress(f"summarised {number + 1} of {len(paths)} profiles")
    return summary


def _in_pool(
    paths: Sequence[Path], places: range, window: str, workers: int, ask: Callable[[str, str], FileSummary]
) -> Iterator[tuple[int, FileSummary]]:
    # Fresh interpreters: a fork would copy the threads of Polars in whatever state they are.
    context = multiprocessing.get_context("spawn")
    threads = os.environ.get("POLARS_MAX_THREADS")
    os.environ["POLARS_MAX_THREADS"] = threads or "1"  # inherited by the workers, each of which has a core
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            waiting: dict[Future[FileSummary], int] = {
                pool.submit(ask, str(paths[place]), window): place for place in places
            }
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    place = waiting.pop(future)
                    yield place, _local_result(future, paths[place])
    finally:
        if threads is None:
            os.environ.pop("POLARS_MAX_THREADS", None)


def _local_result(future: Future[FileSummary], path: Path) -> FileSummary:
    try:
        return future.result()
    except BrokenProcessPool:
        # The system ends processes that ask for more memory than there is; the pool is then lost with them.
        return FileSummary(
            path.name,
            problem=f"{path.name}: a worker process was ended from outside, most likely for lack of memory. "
            "Use fewer --workers",
        )
