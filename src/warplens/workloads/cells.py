"""Measurement of the cells of a grid, and description of the machine.

A cell that runs out of memory is recorded as such, and the others follow. The description holds GPU, driver, versions
and CPU, but no host or user name, path or serial number. PyTorch is not imported before a cell is run or `environment`
is called.
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
from warplens.workloads.samples import Drift, Summary, drift, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from warplens.workloads.measurement import Measured


Made = TypeVar("Made")

#: Outliers are reported if they are more than this share of the repetitions, …
_MANY_OUTLIERS: Final = 0.05
#: … or if the mean exceeds the median by more than this share: the rate over the whole run is then lower than stated.
_SLOW_MEAN: Final = 0.05


def combinations_of(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values of some settings, the last axis changing fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def cells_at(
    cell: type, points: Iterable[Mapping[str, Any]], sides: Sequence[Mapping[str, Any]] = ({},)
) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """The distinct cells at each point, and for each invalid combination of settings a finished record with the reason.

    Points and sides are values of some settings, the others keep their defaults; a point has a cell for each side.

    Raises:
        UsageError: every combination is invalid; the reason is that of the first.
    """
    cells: list[list[Any]] = []
    seen: list[Any] = []
    impossible: list[dict[str, Any]] = []
    for point in points:
        cells.append([])
        for side in sides:
            settings = {**point, **side}
            try:
                made = cell(**settings)
            except UsageError as error:
                plain = {item.name: settings.get(item.name, item.default) for item in fields(cell)}
                impossible.append({"cell": plain, "status": "unsupported", "reason": str(error)})
                continue
            if made not in seen:
                seen.append(made)
                cells[-1].append(made)
    if not seen:
        raise UsageError(impossible[0]["reason"] if impossible else "the grid is empty")
    return cells, impossible


def cell_grid(cell: type, axes: Mapping[str, Sequence[Any]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The cells of every combination of settings, and the records of invalid ones (see `cells_at`)."""
    by_point, impossible = cells_at(cell, combinations_of(axes))
    return [one for cells in by_point for one in cells], impossible


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
    """Measure cells of the workload of that name, one at a time, by default on the GPU if there is one.

    Yields:
        The record of each cell for the measurements file (docs/reference/measurements.md), once it is measured.

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
    plan: Plan,
    device: str | None = None,
    ranges: Ranges = OFF,
) -> list[dict[str, Any]]:
    """Measure cells in turns (see `warplens.workloads.measurement`), with all of them in memory at once.

    Of the plan, the warm-up and the confidence hold, and the most repetitions are those of each cell in a round.

    Returns:
        The record of each cell for the measurements file, in order. A cell that cannot be prepared does not take part
        in the rounds.

    Raises:
        UsageError: there is no such workload, no PyTorch or no such device.
    """
    kind, device = workload(name), device or default_device()
    _check_device(device)
    prepare = imported(kind.prepare)
    if prepare is None:
        raise UsageError(f"the workload {name!r} measures itself, and cannot take turns")
    from warplens.workloads.measurement import measure_in_turns

    setting = Setting(device, ranges)
    programs: dict[int, Program] = {}
    records: list[dict[str, Any]] = [{"cell": asdict(cell)} for cell in cells]
    for position, cell in enumerate(cells):
        started, failure = attempted(
            lambda cell=cell: _started(prepare(cell, setting), device),  # type: ignore[misc]
            alone=False,
        )
        if started is None:
            records[position] |= failure
        else:
            programs[position] = started
    measurements = measure_in_turns(
        list(programs.values()), device=device, rounds=rounds, per_round=plan.most, warmup_steps=plan.warmup_steps,
        ranges=ranges,
    )  # fmt: skip
    for (position, program), measured in zip(programs.items(), measurements, strict=True):
        records[position] |= {"status": "measured", **figures(program, measured, plan)}
    programs.clear()
    _clean_up(torch_or_advice())
    return records


def _started(program: Program, device: str) -> Program:
    """The program after its first step, so that one that cannot run fails here and not during the rounds."""
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
    record, failure = attempted(lambda: _measured(kind, cell, plan, setting))
    _clean_up(torch_or_advice())
    return failure if record is None else record


def attempted(attempt: Callable[[], Made], *, alone: bool = True) -> tuple[Made | None, dict[str, Any]]:
    """The result of an attempt and an empty record; or None, and the status and reason of its failure.

    If no other program is alive (`alone`), the compiler is reset after a failure. That frees cuBLAS's workspaces, to
    which captured CUDA graphs of other programs would still write.
    """
    torch = torch_or_advice()
    try:
        return attempt(), {}
    except torch.OutOfMemoryError as error:
        status, reason = "out-of-memory", _first_line(error)
    except UsageError as error:
        status, reason = "unsupported", str(error)
    except RuntimeError as error:
        # CPU allocators, libraries and captures raise other errors when memory runs out.
        lacking = "out of memory" in str(error).lower() or "can't allocate memory" in str(error)
        status, reason = "out-of-memory" if lacking else "failed", _first_line(error)
    # Outside of the `except` clauses, since the exception's frames keep their tensors alive.
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
    measured = measure(program.step, device=setting.device, plan=plan, marks=program.marks, ranges=setting.ranges)
    return {"status": "measured", **figures(program, measured, plan)}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _clean_up(torch: Any, *, compiler: bool = True) -> None:
    if compiler and "torch._dynamo" in sys.modules:  # unless something was compiled, this would import it for seconds
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def figures(program: Program, measured: Measured, plan: Plan) -> dict[str, Any]:
    """A measurement as in the measurements file: distributions, rates, work, memory, doubts."""
    latency = _spread(measured, measured.wall_ns, plan)
    per_second = program.items * 1e9 / latency.median
    sustained = program.items * len(measured.wall_ns) * 1e9 / sum(measured.wall_ns)
    drifted = drift(measured.wall_ns)
    return {
        "launch": program.launch,
        "unit": program.unit,
        "items": program.items,
        "latency_ns": asdict(latency),
        "rounds": measured.rounds,
        "gpu_ns": asdict(_spread(measured, measured.gpu_ns, plan)) if measured.gpu_ns else None,
        "phases_ns": {phase: asdict(_spread(measured, times, plan)) for phase, times in measured.phases_ns.items()},
        "throughput_per_s": per_second,
        "sustained_per_s": sustained,
        "work": asdict(program.work) if program.work else None,
        "peak_allocated_bytes": measured.peak_allocated_bytes,
        "peak_reserved_bytes": measured.peak_reserved_bytes,
        "stopped": measured.stopped,
        "drift": asdict(drifted) if drifted is not None else None,
        "clocks": _clocks_of(measured),
        "doubts": list(_doubts(measured, plan, latency, drifted)),
        "details": dict(program.details),
        "samples": {
            "warmup_ns": list(measured.warmup_ns),
            "wall_ns": list(measured.wall_ns),
            "gpu_ns": list(measured.gpu_ns),
            "phases_ns": {phase: list(times) for phase, times in measured.phases_ns.items()},
        },
    }


def _spread(measured: Measured, times_ns: Sequence[int], plan: Plan) -> Summary:
    return summary(times_ns, plan.confidence, measured.rounds)


def _clocks_of(measured: Measured) -> dict[str, Any] | None:
    log = measured.clocks
    if log is None:
        return None
    return {
        "sm_mhz": {"minimum": min(log.sm_mhz), "maximum": max(log.sm_mhz), "readings": len(log.sm_mhz)},
        "memory_mhz": {"minimum": min(log.memory_mhz), "maximum": max(log.memory_mhz)} if log.memory_mhz else None,
        "highest_sm_mhz": log.highest_sm_mhz,
        "held_down": list(log.held_down),
    }


def _doubts(measured: Measured, plan: Plan, latency: Summary, trend: Drift | None) -> Iterator[str]:
    """Sentences on problems of the measurement; no samples are excluded for them."""
    if latency.outliers > _MANY_OUTLIERS * latency.samples:
        yield f"{latency.outliers} of {latency.samples} repetitions are outliers"
    if latency.mean > (1 + _SLOW_MEAN) * latency.median:
        above = 100 * (latency.mean / latency.median - 1)
        yield f"the mean is {above:.0f} % above the median: some steps stalled"
    if trend is not None and trend.matters and measured.rounds == 1:  # with rounds, the interval includes drift
        yield f"times drift by {100 * trend.share:+.1f} % from the first third of the repetitions to the last"
    if measured.clocks is not None and measured.clocks.held_down:
        yield f"the driver held clocks down: {', '.join(measured.clocks.held_down)}"
    half = latency.half_width_share
    if half is None:
        yield "there are too few repetitions for an interval"
    elif half > plan.precision > 0:
        yield f"the median is known to ±{100 * half:.1f} % only, not to ±{100 * plan.precision:.1f} %"


_PACKAGES: Final = ("torch", "triton", "numpy")


def environment(device: str) -> dict[str, Any]:
    """The description of the machine in the measurements file.

    `device` (name; for a GPU also compute capability, SMs, memory, L2, highest clocks, power limit), `driver`, `cuda`
    (of the PyTorch build), `cudnn`, `versions` of packages, `python`, `system`, `cpu_count` and `cpu`. Unknown values
    are absent.
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

    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    # The imported build, which may differ from the installed package.
    versions["torch"] = str(torch.__version__)
    return versions


def _gpu(device: str) -> dict[str, Any]:
    """What is known of the GPU: its name, size, highest clocks and power limit."""
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
        with suppress(Exception):  # each query may be forbidden
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
            facts["highest_sm_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            facts["highest_memory_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
            facts["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
            facts["mig"] = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return {name: fact for name, fact in facts.items() if fact is not None}


def host_facts() -> dict[str, Any]:
    """`python`, `system`, `cpu_count` and `cpu` of the description of the machine."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": cpu_model(),
    }


def cpu_model() -> str | None:
    """The processor's name; None where not known."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def plain_environment() -> dict[str, Any]:
    """The description of the machine without PyTorch, for measurements of commands: the first GPU, if any, and host."""
    facts = {"device": {"name": "CPU"}, "versions": {"warplens": __version__}, **host_facts()}
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603
        name, comma, driver = (output.splitlines() or [""])[0].partition(",")
        if comma and name.strip():
            facts |= {"device": {"name": name.strip()}, "driver": driver.strip()}
    return {key: fact for key, fact in facts.items() if fact is not None}
