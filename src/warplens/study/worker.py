"""Child processes that measure cells: started fresh, watched, and replaced when one of them dies."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.study.processes import kill_group, terminate_group
from warplens.study.tasks import FAILURES, failures
from warplens.study.wording import failure_status, how_it_ended, without_folders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.study.tasks import Measuring, Result, Task

__all__ = ["CellRunner", "WorkerDiedError"]

#: Lines of a child's standard error that are kept, to be shown where it fails.
_TAIL: Final = 12

#: Time for a child that was asked to end, in seconds, before it is killed.
_GRACE_S: Final = 10

_ALONE: Final = "measured alone, not in turns with the other cells of its point, for together they failed"


class WorkerDiedError(Exception):
    """The child ended, or was ended, before it answered.

    Attributes:
        status: `out-of-memory` or `failed`.
    """

    def __init__(self, status: str, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class CellRunner:
    """Measures tasks in child processes.

    A child that ran out of memory, failed or died is not used again: what it left behind (a poisoned CUDA context,
    fragmented memory) would count against the next cells. Of a task with several cells, those that failed together get
    a process each, so that one that does not fit leaves the others measured.
    """

    def __init__(self, measuring: Measuring, *, keep: bool = False, timeout_s: float | None = None) -> None:
        """Start nothing yet.

        Args:
            measuring: what and how.
            keep: one child for all tasks rather than one for each: saves starting, as long as nothing fails.
            timeout_s: kill a child that has not answered after this time.
        """
        self.measuring, self.keep, self.timeout_s = measuring, keep, timeout_s
        self._worker: _Worker | None = None

    def run(self, task: Task) -> Result:
        """What became of each cell of the task.

        Raises:
            UsageError: nothing can be measured here at all.
        """
        answer, died = self._ask(task.cells)
        records = list(answer["records"])
        if len(records) > 1 and (died or self.measuring.rounds is not None):
            for position, record in enumerate(records):
                if record["status"] in FAILURES:
                    alone, _ = self._ask([task.cells[position]], alone=True)
                    answer = {**alone, **answer}
                    records[position] = self._marked(alone["records"][0])
        return {**answer, "records": records}

    def _ask(self, cells: Sequence[Mapping[str, Any]], *, alone: bool = False) -> tuple[dict[str, Any], bool]:
        """The answer on some cells, and whether the child died over them."""
        died, measuring = False, self.measuring.alone() if alone else self.measuring
        if self._worker is None:
            self._worker = _Worker()
        try:
            answer = self._worker.ask({**measuring.description(), "cells": cells}, self.timeout_s)
        except WorkerDiedError as error:
            died, trouble = True, {"status": error.status, "reason": str(error)}
            answer = {"records": [{"cell": dict(cell), **trouble} for cell in cells]}
        except BaseException:
            self.close()
            raise
        if "usage" in answer:
            self.close()
            raise UsageError(answer["usage"])
        for record in answer["records"]:
            if "reason" in record:
                record["reason"] = without_folders(record["reason"])
        if not self.keep or failures(answer):
            self.close()
        return answer, died

    def _marked(self, record: dict[str, Any]) -> dict[str, Any]:
        if record["status"] == "measured" and self.measuring.rounds is not None:
            record["doubts"] = [*record.get("doubts", ()), _ALONE]
        return record

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class _Worker:
    """One child process, in a group of its own, so that what it started ends with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "warplens.study.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._readers = [
            threading.Thread(target=self._read_answers, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_tail, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_answers(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put(None)

    def _read_tail(self, stream: IO[str]) -> None:
        self._tail.extend(line.strip() for line in stream if line.strip())

    def ask(self, asked: Mapping[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """The child's answer.

        Raises:
            WorkerDiedError: it ended without one, or took too long.
        """
        assert self._process.stdin is not None
        line: str | None = None
        with suppress(BrokenPipeError):  # it has died: that shows below
            self._process.stdin.write(json.dumps(asked, default=list) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.end()
            raise WorkerDiedError("failed", f"it took longer than {timeout_s:g} s, and was ended") from None
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        for reader in self._readers:
            reader.join(_GRACE_S)
        raise WorkerDiedError(failure_status(self._tail), how_it_ended(self._process.returncode, self._tail))

    def end(self) -> None:
        """End the child and whatever it started."""
        process = self._process
        if process.poll() is None:
            terminate_group(process)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                kill_group(process)
                process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                assert stream is not None
                if stream is process.stdin:
                    stream.close()
        for reader in self._readers:
            reader.join(_GRACE_S)
        for stream in (process.stdout, process.stderr):
            with suppress(OSError):
                assert stream is not None
                stream.close()
