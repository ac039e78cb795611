"""Commands of Nsight Systems: record a program, and export what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warplens.collect.choices import added_words
from warplens.collect.machine import Tool
from warplens.errors import UsageError

#: Every option that a command here can hold, with the subcommand that it belongs to. All are in `nsys profile --help`
#: and `nsys export --help` of 2023.4; the shipped profiles were recorded with most of them by 2025.3.
NSYS_OPTIONS: Final = {
    "profile": (
        "--trace",
        "--sample",
        "--cpuctxsw",
        "--cuda-graph-trace",
        "--cuda-memory-usage",
        "--python-sampling",
        "--python-backtrace",
        "--cudabacktrace",
        "--gpu-metrics-device",
        "--capture-range",
        "--capture-range-end",
        "--nvtx-capture",
        "--env-var",
        "--force-overwrite",
        "--output",
    ),
    "export": ("--type", "--force-overwrite", "--output"),
}

#: Older ones write other files (.qdrep), and --capture-range-end and --cuda-graph-trace came one by one.
NSYS_OLDEST: Final = (2022, 1)


@dataclass(frozen=True)
class Capture:
    """Which part of the run is recorded.

    Attributes:
        kind: `all`; `cuda-profiler`: from cudaProfilerStart to cudaProfilerStop; `nvtx`: the first range of a name.
        range_name: of that range.
    """

    kind: str = "all"
    range_name: str | None = None


def parse_capture(text: str) -> Capture:
    """`all`, `cuda-profiler` or `nvtx:NAME` as a capture.

    Raises:
        UsageError: another text.
    """
    kind, colon, name = text.partition(":")
    if kind in ("all", "cuda-profiler") and not colon:
        return Capture(kind)
    if kind == "nvtx" and name:
        return Capture(kind, name)
    raise UsageError(f"--capture takes all, cuda-profiler or nvtx:NAME, not {text!r}")


@dataclass(frozen=True)
class Recording:
    """What to record."""

    capture: Capture = Capture()  #: which part of the run
    #: `node`: each kernel of a CUDA graph; `graph`: each graph as one interval, which disturbs it less
    graphs: str = "node"
    memory: bool = False  #: whether to record allocations, which costs time
    force: bool = False  #: replace a report of the same name
    also: tuple[str, ...] = ()  #: what to record besides, names of `choices.ADDITIONS`


def record_command(tool: Tool, recording: Recording, report: str, program: Sequence[str]) -> list[str]:
    """The words of the command that records a program.

    CPU samples and context switches are left out unless asked for: no analysis here needs them, and they slow the host.

    Args:
        tool: the installed Nsight Systems.
        report: the file to write, without its suffix.

    Raises:
        UsageError: this version is too old, or cannot record what is asked for besides.
    """
    if tool.version < NSYS_OLDEST:
        oldest = ".".join(map(str, NSYS_OLDEST))
        raise UsageError(f"{tool.title} is too old to record what is needed; install {oldest} or later")
    traced, added = added_words(tool, recording.also)
    words = [tool.path, "profile", f"--trace=cuda,nvtx{traced}", *added]
    words.append(f"--cuda-graph-trace={recording.graphs}")
    if recording.memory:
        words.append("--cuda-memory-usage=true")
    words += _nsys_scope(recording.capture)
    words += [f"--force-overwrite={'true' if recording.force else 'false'}", f"--output={report}"]
    return [*words, *program]


def _nsys_scope(capture: Capture) -> list[str]:
    if capture.kind == "all":
        return []
    if capture.kind == "cuda-profiler":
        return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    name = str(capture.range_name).replace("\\", "\\\\").replace("@", "\\@")
    return [
        "--capture-range=nvtx",
        "--capture-range-end=stop",
        f"--nvtx-capture={name}",
        # By itself nsys compares registered strings only; PyTorch's ranges have none.
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
    ]


def export_command(tool: Tool, report: str, *, force: bool = False) -> list[str]:
    """The words of the command that turns a report into SQLite.

    Args:
        tool: the installed Nsight Systems.
        report: the same as for `record_command`.
        force: replace a file of the same name.
    """
    overwrite = f"--force-overwrite={'true' if force else 'false'}"
    return [tool.path, "export", "--type=sqlite", overwrite, f"--output={report}.sqlite", f"{report}.nsys-rep"]
