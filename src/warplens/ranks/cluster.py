"""Files over an existing Dask cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.ranks.files import FileSummary, summarize_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["summarize_on_cluster"]

#: Seconds to wait for the scheduler to answer.
_CONNECT_S: Final = 15


def summarize_on_cluster(
    paths: Sequence[Path], window: str, scheduler: str, progress: Callable[[str], None]
) -> list[FileSummary]:
    """Summarise each file on the workers of a Dask cluster; in the order given.

    The workers open the files themselves, so that these must lie where every worker finds them under the same path, and
    the workers must have Warplens installed.

    Args:
        paths: the profiles.
        window: as `Timeline.window` takes it.
        scheduler: address of the scheduler, e.g. `tcp://10.0.0.1:8786`.
        progress: is told how many are done.

    Raises:
        UsageError: Dask is not installed, or no scheduler answers.
    """
    try:
        dask: Any = import_module("distributed")  # an optional dependency
    except ImportError:
        raise UsageError(
            "--scheduler needs Dask: pip install 'warplens[cluster]'; without it the profiles are read by --workers of "
            "this machine"
        ) from None
    try:
        client = dask.Client(scheduler, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {scheduler} ({type(error).__name__}). Check the address"
        ) from None
    with client:
        # Not pure: the same path may hold another file the next time.
        futures = [client.submit(summarize_file, str(path.absolute()), window, pure=False) for path in paths]
        for done, _ in enumerate(dask.as_completed(futures, loop=client.loop, raise_errors=False), start=1):
            progress(f"summarised {done} of {len(paths)} profiles")
        return [_result(future, path) for future, path in zip(futures, paths, strict=True)]


def _result(future: Any, path: Path) -> FileSummary:
    failure = future.exception()
    if failure is None:
        summary: FileSummary = future.result()
        return summary
    return FileSummary(
        path.name, problem=f"{path.name}: the cluster could not summarise it ({type(failure).__name__}: {failure})"
    )
