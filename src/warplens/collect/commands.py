"""Commands of Nsight Systems and of PyTorch's profiler, and what may be asked of the tools by name.

By name: presets of counters, kinds of kernels, more to trace. The presets follow the five configurations that guides
to Nsight Compute run one after the other: throughput, memory, occupancy, instructions, cache. Each takes `SpeedOfLight`
and `LaunchStats` besides, without which nothing can be said of what bounds a kernel. Commands of Nsight Compute stand
in `compute`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warplens.collect.machine import System, Tool
from warplens.errors import UsageError

_ALWAYS: Final = ("SpeedOfLight", "LaunchStats")

_GLOBAL: Final = ("mem_global_op_ld", "mem_global_op_st")


@dataclass(frozen=True)
class Preset:
    """One configuration of counters."""

    what: str
    sections: tuple[str, ...]
    passes: int  #: of a launch, as an H200 took them (Nsight Compute 2025.3); accesses by instruction take many
    metrics: tuple[str, ...] = ()  #: beside those of the sections
    cache_control: str = "all"  #: `all` empties caches before each pass; `none` leaves them as the program has them


#: Metrics and sections are those of Nsight Compute 2024.1 on GH100; a test asks ncu for each of them.
PRESETS: Final = {
    "throughput": Preset(
        "rates against their peaks, and the place under the roofs",
        (*_ALWAYS, "SpeedOfLight_RooflineChart", "ComputeWorkloadAnalysis"),
        13,
    ),
    "memory": Preset(
        "traffic through the memories, and how well accesses coalesce",
        (*_ALWAYS, "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables"),
        35,
        tuple(
            name
            for way in _GLOBAL
            for name in (
                f"l1tex__t_requests_pipe_lsu_{way}.sum",
                f"l1tex__t_sectors_pipe_lsu_{way}.sum",
                f"l1tex__average_t_sectors_per_request_pipe_lsu_{way}.ratio",
                f"smsp__sass_average_data_bytes_per_sector_{way}.ratio",
            )
        ),
    ),
    "occupancy": Preset(
        "warps that are there, what limits them, and what they wait for",
        (*_ALWAYS, "Occupancy", "SchedulerStats", "WarpStateStats"),
        17,
    ),
    "instructions": Preset(
        "what is executed, by how many threads of a warp",
        (*_ALWAYS, "ComputeWorkloadAnalysis", "InstructionStats", "WarpStateStats"),
        20,
        ("smsp__thread_inst_executed_per_inst_executed.ratio", "sm__inst_executed.sum"),
    ),
    # Caches as the program has them: emptied ones would be what is measured, and not the program.
    "cache": Preset(
        "hits in L1 and L2 with the caches as the program leaves them",
        (*_ALWAYS, "MemoryWorkloadAnalysis"),
        11,
        (
            *("l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct", "dram__bytes_read.sum"),
            *("dram__bytes_write.sum", "dram__bytes.sum.per_second"),
        ),
        cache_control="none",
    ),
}

#: Sections of ncu's sets, which tell about how many passes they take.
SETS: Final = {"basic": 4, "detailed": 9, "full": 15, "roofline": 7, "nvlink": 3, "pmsampling": 2}

#: Kinds of kernels, as expressions over the names that ncu calls `function`: those of cuBLAS, CUTLASS, cuDNN, PyTorch,
#: and of the sorts, gathers and sums that a reduction of tokens adds.
TARGETS: Final = {
    "gemm": "gemm|gemv|xmma|nvjet|wmma|splitK",
    "attention": "softmax|[Ss]oftMax|flash|fmha|[Aa]ttention",
    "token-reduction": "TopK|topk|[Ss]ort|[Gg]ather|[Ss]catter|[Ii]ndex|CatArray|reduce_kernel",
    "convolution": "conv|fprop|winograd|nchwToNhwc|nhwcToNchw|im2col",
    "normalisation": "layer_norm|LayerNorm|rms_norm|RMSNorm|batch_norm|bn_fw",
}


def kernel_pattern(targets: Sequence[str], patterns: Sequence[str]) -> str | None:
    """One expression for kinds of kernels and expressions of the user's; None where there are none.

    Raises:
        UsageError: a kind that nobody knows, or an expression that is none.
    """
    if unknown := [name for name in targets if name not in TARGETS]:
        raise UsageError(f"--target takes {', '.join(TARGETS)}, not {unknown[0]!r}")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--kernel takes a regular expression; in {pattern!r}: {error}") from None
        if not pattern:
            raise UsageError("--kernel takes a regular expression, such as 'gemm|softmax'")
    return "|".join([*(TARGETS[name] for name in targets), *patterns]) or None


@dataclass(frozen=True)
class Addition:
    """Something more for nsys to record."""

    what: str
    since: tuple[int, ...]  #: the version from which its option means this
    trace: str | None = None  #: a word for `--trace`
    options: tuple[str, ...] = ()  #: further words


#: All are in `nsys profile --help` of 2023.4. That release and 2023.1 brought the two of Python ("Release Notes").
ADDITIONS: Final = {
    "osrt": Addition("calls of the operating system's runtime library", (2022, 1), "osrt"),
    "cudnn": Addition("calls of cuDNN", (2022, 1), "cudnn"),
    "cublas": Addition("calls of cuBLAS", (2022, 1), "cublas"),
    "cpu": Addition(
        "samples of the CPU, and when threads run",
        (2022, 1),
        None,
        ("--sample=process-tree", "--cpuctxsw=process-tree"),
    ),
    "python": Addition("samples of Python's call stacks", (2023, 1), None, ("--python-sampling=true",)),
    "python-cuda": Addition(
        "Python's call stack at CUDA calls", (2023, 4), None, ("--python-backtrace=cuda", "--cudabacktrace=all")
    ),
    "gpu-metrics": Addition("the GPU's units, sampled", (2022, 1), None, ("--gpu-metrics-device=all",)),
}

#: From 2024.4 the option has another name.
_GPU_METRICS_RENAMED: Final = (2024, 4)

#: Call stacks at CUDA calls are taken by the sampler of the CPU.
_NEEDS_SAMPLES: Final = frozenset({"python-cuda"})


def added_words(tool: Tool, names: Sequence[str]) -> tuple[str, list[str]]:
    """What further recordings add to the command: the end of the value of `--trace`, and options.

    Args:
        tool: the installed Nsight Systems.
        names: of `ADDITIONS`.

    Raises:
        UsageError: a name that nobody knows, or this version has no such option.
    """
    if unknown := [name for name in names if name not in ADDITIONS]:
        raise UsageError(f"--also takes {', '.join(ADDITIONS)}, not {unknown[0]!r}")
    for name in names:
        if tool.version < ADDITIONS[name].since:
            since = ".".join(map(str, ADDITIONS[name].since))
            raise UsageError(f"{tool.title} cannot record {name}; install {since} or later")
    trace = "".join(f",{ADDITIONS[name].trace}" for name in names if ADDITIONS[name].trace)
    options = [option for name in names for option in ADDITIONS[name].options]
    if not any(option.startswith("--sample=") for option in options):
        sampled = "process-tree" if _NEEDS_SAMPLES & set(names) else "none"
        options = [f"--sample={sampled}", "--cpuctxsw=none", *options]
    if tool.version >= _GPU_METRICS_RENAMED:
        options = [option.replace("--gpu-metrics-device=", "--gpu-metrics-devices=") for option in options]
    return trace, options


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
    also: tuple[str, ...] = ()  #: what to record besides, names of `ADDITIONS`


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


#: Runs by itself in the program's own interpreter, which need not have Warplens.
_WRAPPER: Final = Path(__file__).with_name("torch_run.py")

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")

#: Options of the interpreter that take the next word as their value.
_WITH_VALUE: Final = frozenset({"-W", "-X"})


_VERSION_PROGRAM: Final = "from importlib.metadata import version; print('torch=' + version('torch'))"


@dataclass(frozen=True)
class Schedule:
    """Which steps are recorded, where the program says `warplens.step()` at the end of each."""

    wait: int = 2  #: steps before the profiler is switched on
    warmup: int = 1  #: steps with the profiler on whose record is thrown away
    active: int = 3  #: steps that are recorded


def wrapped_command(
    program: Sequence[str],
    trace: str,
    schedule: Schedule | None = None,
    *,
    shapes: bool = True,
    memory: bool = False,
    stacks: bool = False,
    modules: bool = False,
) -> list[str]:
    """The words of the command that runs a Python program under torch.profiler and writes a trace.

    Args:
        program: `python [OPTION …] SCRIPT …` or `python [OPTION …] -m MODULE …`.
        trace: the file to write.
        schedule: the steps to record; None for the whole program.
        shapes: whether to record the shapes of operators' inputs.
        memory: whether to record allocations.
        stacks: whether to record Python's frames.
        modules: whether to record the modules of scripted models that operators belong to.

    Raises:
        UsageError: it is no Python program.
    """
    if not program or not _PYTHON.fullmatch(Path(program[0]).name):
        raise UsageError("collect torch runs Python programs: collect torch -- python SCRIPT, or python -m MODULE")
    at = _end_of_options(program)
    if at >= len(program) or program[at] in ("-c", "-"):
        raise UsageError("collect torch needs a script or -m MODULE to run, not code on the command line")
    options = ["--trace", trace]
    if schedule is not None:
        options += ["--schedule", f"{schedule.wait},{schedule.warmup},{schedule.active}"]
    wanted = {"--shapes": shapes, "--memory": memory, "--stacks": stacks, "--modules": modules}
    options += [name for name, is_wanted in wanted.items() if is_wanted]
    return [*program[:at], str(_WRAPPER), *options, "--", *program[at:]]


def torch_version(system: System, program: Sequence[str]) -> str:
    """The version of PyTorch that the program's interpreter has, without importing it.

    Raises:
        UsageError: it has none, or is no interpreter.
    """
    answer = system.run([*program[: _end_of_options(program)], "-c", _VERSION_PROGRAM])
    found = re.search(r"^torch=(\S+)", answer.text, re.MULTILINE) if answer else None
    if found is None:
        raise UsageError(f"{Path(program[0]).name} has no PyTorch: install torch there, or name another Python")
    return found[1]


def _end_of_options(program: Sequence[str]) -> int:
    """Where the interpreter's own options end and what it is to run begins."""
    at = 1
    while at < len(program) and program[at].startswith("-") and program[at] not in ("-m", "-c", "-"):
        at += 2 if program[at] in _WITH_VALUE else 1
    return at
