"""Runs commands and recognises their failures; keeps a manifest; `capture` records inside a user's own program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from warplens._version import __version__
from warplens.errors import UsageError
from warplens.secrets import ADDRESSES
from warplens.writing import write_whole

MANIFEST: Final = "manifest.json"
SCHEMA: Final = "warplens.collection/1"

#: Matches the folders of anything that looks like a path, anywhere in a word.
_FOLDERS = re.compile(
    r"(?:~|\.{0,2}|(?<![A-Za-z])[A-Za-z]:)?[/\\](?:[^\s/\\=,:;'\"]+[/\\])*|(?:[^\s/\\=,:;'\"]+[/\\])+"
)
_ROOTED = re.compile(r"(?:~|\.{1,2})?[/\\]|[A-Za-z]:[/\\]")
_SEPARATORS: Final = "/\\"
_SEPARATOR: Final = r"[/\\]"
_SECRET = re.compile(r"token|secret|passw|api[-_]?key|credential|auth", re.IGNORECASE)
_REMOVED: Final = "[removed]"


def without_paths(command: Sequence[str]) -> list[str]:
    """The words of a command, with paths reduced to their last name and values of possibly secret options removed."""
    words: list[str] = []
    hide_next = False
    for word in command:
        option, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            words.append(_REMOVED)
            hide_next = False
            continue
        is_secret = bool(_SECRET.search(option)) and (option.startswith("-") or bool(equals))
        hide_next = is_secret and not equals
        words.append(f"{option}={_REMOVED}" if is_secret and equals else _bare(word))
    return words


def _bare(word: str) -> str:
    # A slash in a filter of kernel names or in a range name does not separate folders.
    if word.startswith(("regex:", "--nvtx-capture=")) or (word.endswith("/") and "/" not in word[:-1]):
        return word
    option, equals, value = word.rpartition("=")
    if _ROOTED.match(value):  # the whole value is one path, which may contain spaces
        return f"{option}{equals}{re.split(_SEPARATOR, value.rstrip(_SEPARATORS))[-1]}"
    return ADDRESSES.sub(_REMOVED.encode(), _FOLDERS.sub("", word).encode()).decode()


def add_run(
    folder: Path, *, tool: str, version: str, commands: Sequence[Sequence[str]], files: Sequence[Path], exit_code: int
) -> Path:
    """Add a run, and the files that it wrote to a folder, to the folder's manifest, replacing runs with the same files.

    Folders are removed from the commands.
    """
    path = folder / MANIFEST
    runs = _runs(path)
    names = [file.name for file in files]
    run: dict[str, Any] = {
        "tool": tool,
        "version": version,
        "commands": [without_paths(command) for command in commands],
        "exit_code": exit_code,
        "files": [{"name": file.name, "bytes": file.stat().st_size} for file in files],
    }
    runs = [old for old in runs if not {file.get("name") for file in old.get("files", ())} & set(names)]
    content = {"schema": SCHEMA, "version": __version__, "runs": [*runs, run]}
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _runs(path: Path) -> list[dict[str, Any]]:
    """The runs of an existing manifest; empty if there is none of this schema."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return []
    return [run for run in content.get("runs", ()) if isinstance(run, dict)]


#: Last lines of a program's output that are kept, for error messages.
_TAIL: Final = 12

COUNTERS_FIX: Final = (
    "the driver keeps GPU counters to administrators: run as root (in a container: start it with --cap-add=SYS_ADMIN),"
    " or let everybody use them: put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into a file of"
    " /etc/modprobe.d and reboot (on WSL2: NVIDIA Control Panel of Windows, Developer, Manage GPU Performance Counters)"
)

IMPORTER_FIX: Final = (
    "install all of Nsight Systems with the libraries that it needs (its target package alone records, but makes no"
    " report), or take the .qdstrm file to a machine that has them: nsys import, or QdstrmImporter"
)

#: Texts in the output of tools, and the meaning of each.
KNOWN_FAILURES: Final = {
    "ERR_NVGPUCTRPERM": COUNTERS_FIX,
    "failed to connect to the CUDA driver": "there is no working NVIDIA driver here: see warplens doctor",
    "importer binary and its dependencies were not found": f"this nsys lacks its importer: {IMPORTER_FIX}",
    "error while loading shared libraries": "a shared library that nsys needs is not there (the line names it): "
    f"{IMPORTER_FIX}",
    "No kernels were profiled": "no kernel passed the filters: the program launched none inside the captured part, or "
    "has no such range",
    "Another profiler is already": "another profiler holds the GPU (often dcgm): stop it, or pause it with 'dcgmi "
    "profiling --pause'",
    "CUDA out of memory": "the program ran out of GPU memory: use a smaller batch; with ncu, --replay-mode application "
    "needs less",
    "No reports were generated": "nothing was captured: the program never called cudaProfilerStart, or never opened "
    "that range",
}


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    code: int  #: its exit code
    tail: tuple[str, ...]  #: its last lines
    failure: str | None = None  #: the cause of a failure, if recognised


def known_failure(line: str) -> str | None:
    """The meaning of a line of a tool's output, if it is one of `KNOWN_FAILURES`."""
    return next((meaning for text, meaning in KNOWN_FAILURES.items() if text in line), None)


def run_command(command: Sequence[str], variables: Mapping[str, str], tell: Callable[[str], None]) -> CommandResult:
    """Run a command, without a shell; `tell` receives each line of output immediately.

    The `variables` are added to those of this process.

    Raises:
        UsageError: there is no such program.
    """
    tail: deque[str] = deque(maxlen=_TAIL)
    failure = None
    try:
        process = subprocess.Popen(  # noqa: S603  a list of words, no shell
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise UsageError(f"{os.path.basename(command[0])}: {error.strerror}") from error  # noqa: PTH119
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip()
            tell(text)
            if text:
                tail.append(text)
            failure = failure or known_failure(text)
    return CommandResult(process.returncode, tuple(tail), failure)


#: Environment variable that `warplens collect` sets for the program, with the name of the recording tool.
COLLECTING: Final = "WARPLENS_COLLECT"

#: NVTX range around the captured part, which `--capture nvtx:warplens_capture` records, too.
RANGE: Final = "warplens_capture"

#: See `torch_run`, which registers the profiler that it started.
_ACTIVE_PROFILER: Final = "_warplens_active_profiler"


class capture(ContextDecorator):  # noqa: N801  used like a function
    """Record the enclosed code: a context manager and a decorator.

    By default it records with torch.profiler and writes a trace for `warplens report`; the GPU is synchronized before
    and after. In a program started by `warplens collect nsys` or `ncu` it starts and stops that tool instead
    (cudaProfilerStart, cudaProfilerStop) and writes nothing; under `warplens collect torch` it is a range.

    >>> with warplens.capture("trace.json") as recording:       # doctest: +SKIP
    ...     for batch in batches:
    ...         train(batch)
    ...         recording.step()

    Args:
        path: the trace to write, `.json` or `.json.gz`; an existing one is replaced.
        wait: steps before the profiler is started. With `active`, the program must call `step()` after each step.
        warmup: steps whose record is discarded.
        active: steps to record; None for everything.
        shapes: record the shapes of operators' inputs.
        memory: record allocations.
        stacks: record Python stacks; slow.
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
        """Checks the file's name and the numbers of steps; nothing is recorded yet."""
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
        """A separate recording for every call of a decorated function."""
        fresh = object.__new__(capture)
        fresh.__dict__.update(self.__dict__)
        return fresh

    def __enter__(self) -> capture:
        """Start recording."""
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
        """Stop recording, and write the trace."""
        torch = _torch()
        if error is None:  # after a failure, synchronization may fail or hang
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
        """Mark the end of a step."""
        if self._profiler is None:
            step()
        elif self._steps[2] is not None:
            self._profiler.step()

    def _write(self, profiler: Any) -> None:
        if not self._written:
            profiler.export_chrome_trace(str(self.path))
            self._written = True


def step() -> None:
    """Mark the end of a step for `warplens collect torch --steps`; otherwise it does nothing."""
    if (active := sys.modules.get(_ACTIVE_PROFILER)) is not None:
        active.step()


def _torch() -> Any:
    try:
        return import_module("torch")  # imported here, since `import warplens` must be fast
    except ImportError:
        raise UsageError("capture records with torch.profiler, and PyTorch is not installed in this Python") from None


def _finish(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
