"""Measures the cells of a grid, and says what they were measured with.

A cell that runs out of memory is recorded as that, and the others follow. Of the machine: GPU, driver, versions, host;
no name of host or user, path or serial number. Free of PyTorch until a cell is run or `environment` asks it.
"""

from __future__ import annotations

import gc
import itertools
import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from warplens._version import __version__
from warplens.errors import UsageError
from warplens.workloads.registry import (
    OFF,
    Plan,
    Program,
    Ranges,
    Setting,
    Workload,
    imported,
    torch_or_advice,
    workload,
)
from warplens.workloads.samples import Summary, drift, summary_of_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from warplens.workloads.measurement import Measured


Made = TypeVar("Made")

#: Outliers are worth a word if they are more than this share of the repetitions …
_MANY_OUTLIERS: Final = 0.05
#: … or so slow that the mean lies this much above the median: a rate over the whole run is then lower than stated.
_SLOW_MEAN: Final = 0.05


def cell_grid(cell: type, axes: Mapping[str, Sequence[Any]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Every combination of settings, the last axis changing fastest.

    Args:
        cell: the workload's settings.
        axes: values of some of its fields; the others keep their defaults.

    Returns:
        The cells, and for combinations that exclude one another a finished record that says why.

    Raises:
        UsageError: every combination is impossible; the reason is that of the first.
    """
    cells: list[Any] = []
    impossible: list[dict[str, Any]] = []
    for values in itertools.product(*axes.values()):
        made, trouble = cell_or_reason(cell, dict(zip(axes, values, strict=True)))
        if made is None:
            impossible.append(trouble)
        elif made not in cells:
            cells.append(made)
    if not cells:
        raise UsageError(impossible[0]["reason"] if impossible else "the grid is empty")
    return cells, impossible


def cell_or_reason(cell: type, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The cell of these settings; or None, and for settings that exclude one another the record that says why."""
    try:
        return cell(**settings), {}
    except UsageError as error:
        plain = {item.name: settings.get(item.name, item.default) for item in fields(cell)}
        return None, {"cell": plain, "status": "unsupported", "reason": str(error)}


def default_device() -> str:
    """`cuda` if PyTorch sees a GPU, else `cpu`.

    Raises:
        UsageError: there is no PyTorch.
    """
    return "cuda" if torch_or_advice().cuda.is_available() else "cpu"


def run_cells(
    name: str,
    cells: Iterable[Any],
    *,
    plan: Plan | None = None,
    device: str | None = None,
    ranges: Ranges = OFF,
) -> Iterator[dict[str, Any]]:
    """Measure cells, one at a time.

    Args:
        device: where to run, as PyTorch names it; by default the GPU if there is one.

    Yields:
        For each cell what the measurements file holds of it (docs/reference/measurements.md), as soon as it is known.

    Raises:
        UsageError: there is no such workload, no PyTorch or no such device.
    """
    kind, plan, device = workload(name), plan or Plan(), device or default_device()
    _check_device(device)
    for cell in cells:
        yield {"cell": asdict(cell), **_run_cell(kind, cell, plan, Setting(device, ranges))}


def run_cells_in_turns(
    name: str,
    cells: Sequence[Any],
    *,
    rounds: int,
    per_round: int,
    plan: Plan | None = None,
    device: str | None = None,
    ranges: Ranges = OFF,
) -> list[dict[str, Any]]:
    """Measure cells in turns, which takes memory for all of them at once; see `warplens.workloads.measurement`.

    Args:
        name: of the workload; one that measures itself cannot take turns.
        per_round: repetitions in a turn.
        plan: its warm-up and confidence hold.
        device: where to run, as PyTorch names it; by default the GPU if there is one.

    Returns:
        For each cell, in their order, what the measurements file holds of it. A cell that cannot be made ready is left
        out of the turns.

    Raises:
        UsageError: there is no such workload, no PyTorch or no such device.
    """
    kind, plan, device = workload(name), plan or Plan(), device or default_device()
    _check_device(device)
    prepare = imported(kind.prepare)
    if prepare is None:
        raise UsageError(f"the workload {name!r} measures itself, and cannot take turns")
    from warplens.workloads.measurement import Turn, measure_in_turns

    setting = Setting(device, ranges)
    programs: dict[int, Program] = {}
    records: list[dict[str, Any]] = [{"cell": asdict(cell)} for cell in cells]
    for position, cell in enumerate(cells):
        made, trouble = attempted(
            lambda cell=cell: _started(prepare(cell, setting), device),  # type: ignore[misc]
            alone=False,
        )
        if made is None:
            records[position] |= trouble
        else:
            programs[position] = made
    taken = measure_in_turns(
        [Turn(program.step, program.marks) for program in programs.values()],
        device=device, rounds=rounds, per_round=per_round, warmup_steps=plan.warmup_steps, ranges=ranges,
    )  # fmt: skip
    for (position, program), measured in zip(programs.items(), taken, strict=True):
        records[position] |= {"status": "measured", **figures(program, measured, plan)}
    programs.clear()
    _clean_up(torch_or_advice())
    return records


def _started(program: Program, device: str) -> Program:
    """The program after its first step, so that one that cannot run shows it now and not among the others."""
    from warplens.workloads.measurement import synchronize

    program.step()
    synchronize(device)
    return program


def _check_device(device: str) -> None:
    torch = torch_or_advice()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"PyTorch cannot use the device {device!r}: {str(error).splitlines()[0]}") from error


def _run_cell(kind: Workload, cell: Any, plan: Plan, setting: Setting) -> dict[str, Any]:
    done, trouble = attempted(lambda: _measured(kind, cell, plan, setting))
    _clean_up(torch_or_advice())
    return trouble if done is None else done


def attempted(attempt: Callable[[], Made], *, alone: bool = True) -> tuple[Made | None, dict[str, Any]]:
    """What came of an attempt; or None, and how a cell that fails so is recorded.

    Args:
        alone: whether no other program is alive. To reset the compiler gives cuBLAS's workspaces back, which captured
            CUDA graphs still write to: with other programs alive it must not be done.
    """
    torch = torch_or_advice()
    try:
        return attempt(), {}
    except torch.OutOfMemoryError as error:
        status, reason = "out-of-memory", _first_line(error)
    except UsageError as error:
        status, reason = "unsupported", str(error)
    except RuntimeError as error:
        # CPU allocators, libraries and captures say it their own way.
        lacking = "out of memory" in str(error).lower() or "can't allocate memory" in str(error)
        status, reason = "out-of-memory" if lacking else "failed", _first_line(error)
    # What the exception's frames held is free only now that they are gone.
    _clean_up(torch, compiler=alone)
    return None, {"status": status, "reason": reason}


def _measured(kind: Workload, cell: Any, plan: Plan, setting: Setting) -> dict[str, Any]:
    from warplens.workloads.measurement import measure

    if (run := imported(kind.run)) is not None:
        record: dict[str, Any] = run(cell, plan, setting)
        return record
    prepare = imported(kind.prepare)
    if prepare is None:
        raise UsageError(f"the workload {kind.name!r} says neither how to prepare a cell nor how to run one")
    program: Program = prepare(cell, setting)
    taken = measure(program.step, device=setting.device, plan=plan, marks=program.marks, ranges=setting.ranges)
    return {"status": "measured", **figures(program, taken, plan)}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _clean_up(torch: Any, *, compiler: bool = True) -> None:
    if compiler and "torch._dynamo" in sys.modules:  # something was compiled; asking costs seconds of imports otherwise
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def figures(program: Program, taken: Measured, plan: Plan) -> dict[str, Any]:
    """What a measurement says, as the measurements file holds it: distributions, rates, work, memory, doubts."""
    latency = _spread(taken, taken.wall_ns, plan)
    per_second = program.items * 1e9 / latency.median
    sustained = program.items * len(taken.wall_ns) * 1e9 / sum(taken.wall_ns)
    drifted = drift(taken.wall_ns)
    return {
        "launch": program.launch,
        "unit": program.unit,
        "items": program.items,
        "latency_ns": asdict(latency),
        "rounds": taken.rounds,
        "gpu_ns": asdict(_spread(taken, taken.gpu_ns, plan)) if taken.gpu_ns else None,
        "phases_ns": {phase: asdict(_spread(taken, times, plan)) for phase, times in taken.phases_ns.items()},
        "throughput_per_s": per_second,
        "sustained_per_s": sustained,
        "work": asdict(program.work) if program.work else None,
        "peak_allocated_bytes": taken.peak_allocated_bytes,
        "peak_reserved_bytes": taken.peak_reserved_bytes,
        "stopped": taken.stopped,
        "drift": asdict(drifted) if drifted is not None else None,
        "clocks": _clocks_of(taken),
        "doubts": _doubts(taken, plan),
        "details": dict(program.details),
        "samples": {
            "warmup_ns": list(taken.warmup_ns),
            "wall_ns": list(taken.wall_ns),
            "gpu_ns": list(taken.gpu_ns),
            "phases_ns": {phase: list(times) for phase, times in taken.phases_ns.items()},
        },
    }


def _spread(taken: Measured, times_ns: Sequence[int], plan: Plan) -> Summary:
    return summary_of_rounds(times_ns, taken.rounds, plan.confidence)


def _clocks_of(taken: Measured) -> dict[str, Any] | None:
    log = taken.clocks
    if log is None:
        return None
    return {
        "sm_mhz": {"minimum": min(log.sm_mhz), "maximum": max(log.sm_mhz), "readings": len(log.sm_mhz)},
        "memory_mhz": {"minimum": min(log.memory_mhz), "maximum": max(log.memory_mhz)} if log.memory_mhz else None,
        "highest_sm_mhz": log.highest_sm_mhz,
        "held_down": list(log.held_down),
    }


def _doubts(taken: Measured, plan: Plan) -> list[str]:
    """Why the figures might not mean what they seem to; nothing is left out of them for it."""
    latency = _spread(taken, taken.wall_ns, plan)
    doubts = []
    if latency.outliers > _MANY_OUTLIERS * latency.samples:
        doubts.append(f"{latency.outliers} of {latency.samples} repetitions are outliers")
    if latency.mean > (1 + _SLOW_MEAN) * latency.median:
        above = 100 * (latency.mean / latency.median - 1)
        doubts.append(f"the mean is {above:.0f} % above the median: some steps stalled")
    found = drift(taken.wall_ns)
    if found is not None and found.matters and taken.rounds == 1:  # rounds bring drifts into the interval
        doubts.append(f"times drift by {100 * found.share:+.1f} % from the first third of the repetitions to the last")
    if taken.clocks is not None and taken.clocks.held_down:
        doubts.append(f"the driver held clocks down: {', '.join(taken.clocks.held_down)}")
    half = latency.half_width_share
    if half is None:
        doubts.append("there are too few repetitions for an interval")
    elif half > plan.precision > 0:
        doubts.append(f"the median is known to ±{100 * half:.1f} % only, not to ±{100 * plan.precision:.1f} %")
    return doubts


_PACKAGES: Final = ("torch", "triton", "numpy")


def environment(device: str) -> dict[str, Any]:
    """Facts about the machine that explain a time, as they stand in the measurements file.

    Args:
        device: where the measurements were made, as PyTorch names it.

    Returns:
        `device` (name, and of a GPU: compute capability, SMs, memory, L2, highest clocks, power limit), `driver`,
        `cuda` (of the PyTorch build), `cudnn`, `versions` of packages, `python`, `system`, `cpu_count` and `cpu`.
        What cannot be found out is absent.
    """
    import torch

    from warplens.workloads.measurement import is_cuda, open_nvml

    facts: dict[str, Any] = {
        "device": _gpu(device) if is_cuda(device) else {"name": "CPU"},
        "versions": {"warplens": __version__, **_versions()},
        **host_facts(),
    }
    if is_cuda(device):
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
        if (nvml := open_nvml()) is not None:
            with suppress(Exception):
                text = nvml.nvmlSystemGetDriverVersion()
                facts["driver"] = text.decode() if isinstance(text, bytes) else str(text)
    else:
        facts["threads"] = torch.get_num_threads()
    return {name: fact for name, fact in facts.items() if fact is not None}


def _versions() -> dict[str, str]:
    import torch

    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    # The build that runs, should it not be the one that is installed.
    found["torch"] = str(torch.__version__)
    return found


def _gpu(device: str) -> dict[str, Any]:
    import torch

    from warplens.workloads.measurement import open_nvml

    properties = torch.cuda.get_device_properties(device)
    facts: dict[str, Any] = {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
    }
    if (nvml := open_nvml()) is not None:
        with suppress(Exception):  # each figure may be closed to us
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
            facts["highest_sm_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            facts["highest_memory_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
            facts["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
            facts["mig"] = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return {name: fact for name, fact in facts.items() if fact is not None}


def host_facts() -> dict[str, Any]:
    """`python`, `system`, `cpu_count` and `cpu`, as they stand in the measurements file."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": cpu_model(),
    }


def cpu_model() -> str | None:
    """The processor's name; None where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def plain_environment() -> dict[str, Any]:
    """The `environment` of a measurements file for programs that are not ours: the first GPU, if any, and the host."""
    facts = {"device": {"name": "CPU"}, "versions": {"warplens": __version__}, **host_facts()}
    name, driver = _first_gpu()
    if name:
        facts |= {"device": {"name": name}, "driver": driver}
    return {key: fact for key, fact in facts.items() if fact is not None}


def _first_gpu() -> tuple[str | None, str | None]:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603
        name, comma, driver = (answer.splitlines() or [""])[0].partition(",")
        if comma:
            return name.strip(), driver.strip()
    return None, None
