"""What the GPU's clocks did during a measurement, and whether the driver held them down; where NVML can be asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["ClockLog", "Clocks", "open_nvml"]

#: Reasons for which a driver lowers clocks though there is work, by their bit in NVML's clocks-event reasons.
_HELD_DOWN: Final = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}


def open_nvml() -> Any:
    """The NVML module, initialised; None where there is none or it does not answer."""
    try:
        import pynvml  # noqa: PLC0415  an optional package
    except ImportError:
        return None
    with suppress(Exception):  # pynvml raises its own errors where a driver or a permission is missing
        pynvml.nvmlInit()
        return pynvml
    return None


@dataclass(frozen=True)
class ClockLog:
    """Clock readings between repetitions.

    Attributes:
        sm_mhz: SM clock at each reading.
        memory_mhz: memory clock at each reading.
        highest_sm_mhz: the most that the driver would set.
        held_down: why the driver lowered clocks, at any reading.
    """

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    highest_sm_mhz: int | None = None
    held_down: tuple[str, ...] = ()


@dataclass
class Clocks:
    """Reads clocks when told to, and says nothing where they cannot be read.

    Attributes:
        device: as PyTorch names it.
    """

    device: str
    _nvml: Any = None
    _handle: Any = None
    _sm: list[int] = field(default_factory=list)
    _memory: list[int] = field(default_factory=list)
    _reasons: int = 0

    def __post_init__(self) -> None:
        import torch  # noqa: PLC0415

        if torch.device(self.device).type != "cuda" or (nvml := open_nvml()) is None:
            return
        # By UUID: NVML counts all GPUs of the machine, PyTorch those that CUDA_VISIBLE_DEVICES leaves.
        with suppress(Exception):
            uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
            self._handle, self._nvml = nvml.nvmlDeviceGetHandleByUUID(uuid), nvml

    def read(self) -> None:
        """Note the clocks of this moment."""
        if self._nvml is None:
            return
        nvml, handle = self._nvml, self._handle
        with suppress(Exception):
            self._sm.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            self._memory.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
            self._reasons |= nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def log(self) -> ClockLog | None:
        """Everything that was read; None if nothing could be."""
        if not self._sm:
            return None
        highest = None
        with suppress(Exception):
            highest = int(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        return ClockLog(
            sm_mhz=tuple(self._sm),
            memory_mhz=tuple(self._memory),
            highest_sm_mhz=highest,
            held_down=tuple(reason for bit, reason in _HELD_DOWN.items() if self._reasons & bit),
        )
