"""Runs tasks to the last one, unattended: writes each result down, says how long the rest will take, survives."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from warplens.study.tasks import failures
from warplens.study.wording import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from warplens.study.ledger import Ledger
    from warplens.study.tasks import Result, Runner, Task

__all__ = ["carry_out", "time_left", "to_do"]

#: The output is brought up to date no more often than this, in seconds: it holds every repetition of every cell.
_UPDATE_S: Final = 5.0


def carry_out(
    tasks: Sequence[Task],
    ledger: Ledger,
    runner: Runner,
    *,
    tell: Callable[[str], None],
    told: Callable[[Result], str],
    update: Callable[[], None],
    retry: bool = False,
) -> None:
    """Do what the ledger does not yet have.

    Args:
        tasks: in the order in which they are done.
        ledger: what is done.
        runner: does one. It is closed at the end.
        tell: gets a line for people after each task.
        told: words for a result.
        update: brings the output up to date with the ledger; also called at the end, and when interrupted.
        retry: do what has failed once more.

    Raises:
        UsageError: nothing can be measured here.
        KeyboardInterrupt: somebody wants it to end (Ctrl-C, SIGTERM). What is done is in the ledger and the output.
    """
    waiting = to_do(tasks, ledger, retry=retry)
    done = len(tasks) - len(waiting)
    if done:
        tell(f"{done} of {len(tasks)} are done already")
    began = updated = time.monotonic()
    given_up: set[str | None] = set()
    try:
        with _ended_like_by_ctrl_c():
            for position, task in enumerate(waiting):
                done += 1
                if task.group in given_up:
                    continue
                start = time.monotonic()
                result = runner.run(task)
                now = time.monotonic()
                ledger.add(task.key, result, now - start)
                if task.group is not None and failures(result):
                    given_up.add(task.group)
                following = sum(other.group not in given_up for other in waiting[position + 1 :])
                left = time_left(list(ledger.seconds.values()), following)
                tell(f"[{done}/{len(tasks)}] {task.key}: {told(result)} · {span(now - start)}{left}")
                if now - updated > _UPDATE_S:
                    update()
                    updated = time.monotonic()
        tell(f"done, in {span(time.monotonic() - began)}" if waiting else "nothing was left to do")
    finally:
        runner.close()
        update()


def to_do(tasks: Sequence[Task], ledger: Ledger, *, retry: bool = False) -> list[Task]:
    """The tasks that are not done, without those of a cell that has failed.

    With `retry`, failures count as not done; then the other tasks of such a cell are to do as well.
    """
    failed = {key for key, result in ledger.results.items() if failures(result)}
    given_up = set() if retry else {task.group for task in tasks if task.group is not None and task.key in failed}
    return [
        task
        for task in tasks
        if task.group not in given_up and (task.key not in ledger.results or (retry and task.key in failed))
    ]


def time_left(seconds: Sequence[float], tasks: int) -> str:
    """An estimate for people from how long tasks took so far; empty if there are none left."""
    if not tasks or not seconds:
        return ""
    return f" · about {span(sum(seconds) / len(seconds) * tasks)} left"


@contextmanager
def _ended_like_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, by which `timeout`, batch systems and containers end programs, raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
