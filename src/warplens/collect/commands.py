"""Commands of Nsight Systems and PyTorch's profiler; named presets of counters, kinds of kernels, further recordings.

The presets are the five configurations that guides to Nsight Compute run one after the other: throughput, memory,
occupancy, instructions, cache. Each includes `SpeedOfLight` and `LaunchStats`, which are needed for the bound of a
kernel. Commands of Nsight Compute are in `compute`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warplens.collect.machine import System, Tool, dotted
from warplens.errors import UsageError

_ALWAYS: Final = ("SpeedOfLight", "LaunchStats")

_GLOBAL: Final = ("mem_global_op_ld", "mem_global_op_st")


@dataclass(frozen=True)
class Preset:
    """One configuration of counters."""

    what: str
    sections: tuple[str, ...]
    passes: int  #: per launch, measured on an H200 (Nsight Compute 2025.3); memory tables by instruction need many
    metrics: tuple[str, ...] = ()  #: in addition to those of the sections
    cache_control: str = "all"  #: `all` flushes caches before each pass; `none` leaves them as in the program


#: Metrics and sections of Nsight Compute 2024.1 on GH100; a test queries ncu for each of them.
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
            for operation in _GLOBAL
            for name in (
                f"l1tex__t_requests_pipe_lsu_{operation}.sum",
                f"l1tex__t_sectors_pipe_lsu_{operation}.sum",
                f"l1tex__average_t_sectors_per_request_pipe_lsu_{operation}.ratio",
                f"smsp__sass_average_data_bytes_per_sector_{operation}.ratio",
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
    # Caches are not flushed, since hit rates are to be those of the program.
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

#: Number of sections in ncu's sets, to estimate passes.
SETS: Final = {"basic": 4, "detailed": 9, "full": 15, "roofline": 7, "nvlink": 3, "pmsampling": 2}

#: Kinds of kernels, as regular expressions for ncu's `function` names: of cuBLAS, CUTLASS, cuDNN and PyTorch, and of
#: the sorts, gathers and sums of token reduction.
TARGETS: Final = {
    "gemm": "gemm|gemv|xmma|nvjet|wmma|splitK",
    "attention": "softmax|[Ss]oftMax|flash|fmha|[Aa]ttention",
    "token-reduction": "TopK|topk|[Ss]ort|[Gg]ather|[Ss]catter|[Ii]ndex|CatArray|reduce_kernel",
    "convolution": "conv|fprop|winograd|nchwToNhwc|nhwcToNchw|im2col",
    "normalisation": "layer_norm|LayerNorm|rms_norm|RMSNorm|batch_norm|bn_fw",
}


def kernel_pattern(targets: Sequence[str], patterns: Sequence[str]) -> str | None:
    """One regular expression for kinds of kernels and the user's expressions; None if there are none.

    Raises:
        UsageError: an unknown kind, or an invalid expression.
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
    """An additional recording of nsys."""

    what: str
    since: tuple[int, ...]  #: the version since which its option has this meaning
    trace: str | None = None  #: word to add to `--trace`
    options: tuple[str, ...] = ()  #: further words


#: All are in `nsys profile --help` of 2023.4. The two for Python were added in 2023.1 and 2023.4 ("Release Notes").
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

#: Since this version, `--gpu-metrics-device` is called `--gpu-metrics-devices`.
_GPU_METRICS_RENAMED: Final = (2024, 4)

#: Additions that need CPU sampling: call stacks at CUDA calls are recorded by the CPU sampler.
_NEEDS_SAMPLES: Final = frozenset({"python-cuda"})


def added_words(tool: Tool, names: Sequence[str]) -> tuple[str, list[str]]:
    """The words that recordings of `ADDITIONS` need: the end of the value of `--trace`, and options.

    Raises:
        UsageError: a name is unknown, or this version has no such option.
    """
    if unknown := [name for name in names if name not in ADDITIONS]:
        raise UsageError(f"--also takes {', '.join(ADDITIONS)}, not {unknown[0]!r}")
    for name in names:
        if tool.version < ADDITIONS[name].since:
            raise UsageError(f"{tool.title} cannot record {name}; install {dotted(ADDITIONS[name].since)} or later")
    trace = "".join(f",{ADDITIONS[name].trace}" for name in names if ADDITIONS[name].trace)
    options = [option for name in names for option in ADDITIONS[name].options]
    if not any(option.startswith("--sample=") for option in options):
        sampling = "process-tree" if _NEEDS_SAMPLES & set(names) else "none"
        options = [f"--sample={sampling}", "--cpuctxsw=none", *options]
    if tool.version >= _GPU_METRICS_RENAMED:
        options = [option.replace("--gpu-metrics-device=", "--gpu-metrics-devices=") for option in options]
    return trace, options


#: Older versions write other files (.qdrep), and lack --capture-range-end or --cuda-graph-trace.
NSYS_OLDEST: Final = (2022, 1)


@dataclass(frozen=True)
class Capture:
    """The part of the run to record."""

    kind: str = "all"  #: `all`; `cuda-profiler` (cudaProfilerStart to -Stop); `nvtx` (the first range of a name)
    range_name: str | None = None  #: for `nvtx`


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
    """Options of a recording by Nsight Systems."""

    capture: Capture = Capture()  #: part of the run
    #: `node`: each kernel of a CUDA graph; `graph`: each graph as one interval, with less overhead
    graphs: str = "node"
    memory: bool = False  #: whether to record allocations, which adds overhead
    force: bool = False  #: whether to replace a report of the same name
    also: tuple[str, ...] = ()  #: additional recordings, keys of `ADDITIONS`


def record_command(tool: Tool, recording: Recording, report: str, program: Sequence[str]) -> list[str]:
    """The words of the command that records a program.

    CPU samples and context switches are recorded only on request: no analysis needs them, and they slow the host.
    `report` is the file to write, without its suffix.

    Raises:
        UsageError: this version is too old, or lacks an additional recording.
    """
    if tool.version < NSYS_OLDEST:
        oldest = dotted(NSYS_OLDEST)
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
        # By default nsys compares registered strings only, which PyTorch's ranges do not use.
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
    ]


def export_command(tool: Tool, report: str, *, force: bool = False) -> list[str]:
    """The words of the command that exports a report, named as for `record_command`, to SQLite."""
    overwrite = f"--force-overwrite={'true' if force else 'false'}"
    return [tool.path, "export", "--type=sqlite", overwrite, f"--output={report}.sqlite", f"{report}.nsys-rep"]


#: A stand-alone script for the program's interpreter, which need not have Warplens.
_WRAPPER: Final = Path(__file__).with_name("torch_run.py")

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")

#: Options of the interpreter that take the next word as their value.
_WITH_VALUE: Final = frozenset({"-W", "-X"})

_VERSION_PROGRAM: Final = "from importlib.metadata import version; print('torch=' + version('torch'))"


@dataclass(frozen=True)
class Schedule:
    """The steps to record in a program that calls `warplens.step()` at the end of each."""

    wait: int = 2  #: steps before the profiler is started
    warmup: int = 1  #: steps with the profiler whose record is discarded
    active: int = 3  #: steps to record


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

    The program is `python [OPTION …] SCRIPT …` or `python [OPTION …] -m MODULE …`; without a schedule, all of it is
    recorded: on request with the shapes of operators' inputs, allocations, Python stacks, modules of scripted models.

    Raises:
        UsageError: it is not a Python program with a script or module.
    """
    if not program or not _PYTHON.fullmatch(Path(program[0]).name):
        raise UsageError("collect torch runs Python programs: collect torch -- python SCRIPT, or python -m MODULE")
    end = _end_of_options(program)
    if end >= len(program) or program[end] in ("-c", "-"):
        raise UsageError("collect torch needs a script or -m MODULE to run, not code on the command line")
    options = ["--trace", trace]
    if schedule is not None:
        options += ["--schedule", f"{schedule.wait},{schedule.warmup},{schedule.active}"]
    wanted = {"--shapes": shapes, "--memory": memory, "--stacks": stacks, "--modules": modules}
    options += [name for name, is_wanted in wanted.items() if is_wanted]
    return [*program[:end], str(_WRAPPER), *options, "--", *program[end:]]


def torch_version(system: System, program: Sequence[str]) -> str:
    """The version of PyTorch in the program's interpreter, without importing it.

    Raises:
        UsageError: PyTorch is not installed there, or it is not an interpreter.
    """
    answer = system.run([*program[: _end_of_options(program)], "-c", _VERSION_PROGRAM])
    match = re.search(r"^torch=(\S+)", answer.text, re.MULTILINE) if answer else None
    if match is None:
        raise UsageError(f"{Path(program[0]).name} has no PyTorch: install torch there, or name another Python")
    return match[1]


def _end_of_options(program: Sequence[str]) -> int:
    """The index of the first word after the interpreter's own options."""
    index = 1
    while index < len(program) and program[index].startswith("-") and program[index] not in ("-m", "-c", "-"):
        index += 2 if program[index] in _WITH_VALUE else 1
    return index
