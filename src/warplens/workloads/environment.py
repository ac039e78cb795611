"""What a measurement was made with: GPU, driver, versions, host. No name of host or user, path or serial number.

Free of PyTorch until `environment` asks it.
"""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from warplens._version import __version__

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
