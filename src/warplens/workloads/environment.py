"""What a measurement was made with: GPU, driver, versions. No host, user, path or serial number."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch

from warplens._version import __version__
from warplens.workloads.clocks import open_nvml
from warplens.workloads.host import host_facts
from warplens.workloads.marks import is_cuda

__all__ = ["environment"]

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
    facts: dict[str, Any] = {
        "device": _gpu(device) if is_cuda(device) else {"name": "CPU"},
        "versions": {"warplens": __version__, **_versions()},
        **host_facts(),
    }
    if is_cuda(device):
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
        facts |= _driver()
    else:
        facts["threads"] = torch.get_num_threads()
    return {name: fact for name, fact in facts.items() if fact is not None}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    # The build that runs, should it not be the one that is installed.
    found["torch"] = str(torch.__version__)
    return found


def _gpu(device: str) -> dict[str, Any]:
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


def _driver() -> dict[str, Any]:
    facts = {}
    if (nvml := open_nvml()) is not None:
        with suppress(Exception):
            text = nvml.nvmlSystemGetDriverVersion()
            facts["driver"] = text.decode() if isinstance(text, bytes) else str(text)
    return facts
