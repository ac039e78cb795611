"""What the NVIDIA driver tells about the GPUs of a machine: `nvidia-smi`'s tables, read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warplens.collect.system import System

__all__ = ["Driver", "Gpu", "ask_driver"]

_MIB: Final = 1 << 20

_FIELDS: Final = ("name", "driver_version", "compute_cap", "memory.total", "memory.used", "mig.mode.current")

#: On WSL2 it is not on the search path of every shell.
_PLACES: Final = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: of the model.
        compute_capability: such as 9.0; None where the driver does not tell.
        memory_bytes: in all.
        used_bytes: by all programs.
        mig: whether it is divided into instances.
    """

    name: str
    compute_capability: str | None
    memory_bytes: int | None
    used_bytes: int | None
    mig: bool


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs.

    Attributes:
        version: of the driver.
        gpus: in the order of the PCI bus.
        processes: that compute on a GPU now; None where it does not tell.
        problem: what nvidia-smi complained about; then there are no GPUs.
    """

    version: str | None
    gpus: tuple[Gpu, ...]
    processes: int | None
    problem: str | None = None


def ask_driver(system: System) -> Driver | None:
    """The driver and its GPUs; None where there is no nvidia-smi."""
    for program in _PLACES:
        answer = system.run([program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
        if answer is None:
            continue
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.text.splitlines()]
        rows = [row for row in rows if len(row) == len(_FIELDS)]
        if answer.code != 0 or not rows:
            said = answer.text.strip().splitlines()
            return Driver(None, (), None, said[0] if said else "nvidia-smi gave no answer")
        apps = system.run([program, "--query-compute-apps=used_memory", "--format=csv,noheader,nounits"])
        processes = len(apps.text.split("\n")) - 1 if apps and apps.code == 0 else None
        return Driver(rows[0][1], tuple(_gpu(row) for row in rows), processes)
    return None


def _gpu(row: list[str]) -> Gpu:
    name, _, capability, total, used, mig = row
    return Gpu(
        name=name,
        compute_capability=capability if capability[:1].isdigit() else None,
        memory_bytes=int(total) * _MIB if total.isdigit() else None,
        used_bytes=int(used) * _MIB if used.isdigit() else None,
        mig=mig == "Enabled",
    )
