"""`warplens.capture` and `warplens.step`: users' own programs say which part of them is worth recording."""

from __future__ import annotations

import os
import sys
from contextlib import ContextDecorator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["COLLECTING", "RANGE", "capture", "step"]

#: Set by `warplens collect` for the program that it runs: which tool is recording it.
COLLECTING: Final = "WARPLENS_COLLECT"

#: NVTX range round what is captured: `--capture nvtx:warplens_capture` records it, too.
RANGE: Final = "warplens_capture"

#: See `torch_run`, which registers the profiler that it started.
_ACTIVE_PROFILER: Final = "_warplens_active_profiler"


class capture(ContextDecorator):  # noqa: N801  used like a function
    """Record what is inside: a context manager and a decorator.

    By itself it records with torch.profiler and writes a trace that `warplens report` reads; on a GPU, all work is
    finished before and after. In a program that was started by `warplens collect nsys` or `ncu` it starts and stops
    that tool instead (cudaProfilerStart, cudaProfilerStop) and writes nothing; under `warplens collect torch` it is a
    range.

    >>> with warplens.capture("trace.json") as recording:       # doctest: +SKIP
    ...     for batch in batches:
    ...         train(batch)
    ...         recording.step()

    Args:
        path: the trace to write, `.json` or `.json.gz`; one that is there is replaced.
        wait: steps before the profiler is switched on. With `active`, the program has to call `step()` after each step.
        warmup: steps whose record is thrown away.
        active: steps to record; None for everything inside.
        shapes: record the shapes of operators' inputs.
        memory: record allocations.
        stacks: record Python's frames; slow.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wait: int = 0,
        warmup: int = 0,
        active: int | None = None,
        shapes: bool = True,
        memory: bool = False,
        stacks: bool = False,
    ) -> None:
        self.path = Path(path)
        if not self.path.name.endswith((".json", ".json.gz")):
            raise UsageError(f"{self.path.name}: a trace's name ends in .json or .json.gz")
        if active is None and (wait or warmup):
            raise UsageError("capture: wait and warmup need active, the number of steps to record")
        if active is not None and (active < 1 or wait < 0 or warmup < 0):
            raise UsageError("capture: active must be at least 1, wait and warmup at least 0")
        self._steps = (wait, warmup, active)
        self._options = {"record_shapes": shapes, "profile_memory": memory, "with_stack": stacks}
        self._profiler: Any = None
        self._range: Any = None
        self._tool: str | None = None
        self._written = False

    def _recreate_cm(self) -> capture:
        """A recording of its own for every call of a decorated function."""
        fresh = object.__new__(capture)
        fresh.__dict__.update(self.__dict__)
        return fresh

    def __enter__(self) -> capture:
        """Start to record."""
        torch = _torch()
        self._tool, self._written = os.environ.get(COLLECTING), False
        _finish(torch)
        if self._tool is None:
            wait, warmup, active = self._steps
            schedule = None
            if active is not None:
                schedule = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1)
            self._profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=self._write, **self._options)
            self._profiler.start()
        elif self._tool == "torch":
            self._range = torch.profiler.record_function(RANGE)
            self._range.__enter__()
        elif torch.cuda.is_available():
            torch.cuda.profiler.start()
            torch.cuda.nvtx.range_push(RANGE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and write the trace."""
        torch = _torch()
        if error is None:  # after a failure the GPU may be beyond waiting for
            _finish(torch)
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
            if not self._written and error is None:
                raise UsageError(f"{self.path.name}: nothing was recorded: step() was called too seldom")
        elif self._range is not None:
            self._range.__exit__(kind, error, trace)
            self._range = None
        elif torch.cuda.is_available():
            torch.cuda.nvtx.range_pop()
            torch.cuda.profiler.stop()

    def step(self) -> None:
        """A step ends here."""
        if self._profiler is None:
            step()
        elif self._steps[2] is not None:
            self._profiler.step()

    def _write(self, profiler: Any) -> None:
        if not self._written:
            profiler.export_chrome_trace(str(self.path))
            self._written = True


def step() -> None:
    """A step of the program ends here: tells a `warplens collect torch` that records steps; else it does nothing."""
    if (active := sys.modules.get(_ACTIVE_PROFILER)) is not None:
        active.step()


def _torch() -> Any:
    try:
        return import_module("torch")  # `import warplens` has to stay light
    except ImportError:
        raise UsageError("capture records with torch.profiler, and PyTorch is not installed in this Python") from None


def _finish(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
