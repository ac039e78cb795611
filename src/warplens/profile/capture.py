"""`Capture`: where a profile came from and what it cannot tell.

Nothing in here identifies a person or a machine: no environment, host, user, command line or path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from warplens.profile.device import Device

__all__ = ["Capture", "Note", "NoteLevel"]


class NoteLevel(str, Enum):
    """How much a note limits the answers."""

    INFO = "info"
    WARNING = "warning"
    BLOCKING = "blocking"


@dataclass(frozen=True)
class Note:
    """One thing that the reader or an analysis wants the user to know before the numbers.

    Attributes:
        code: stable identifier, for machines (`no-kernel-table`, `dropped-events`, …).
        level: `blocking` means that the profile cannot answer the main questions.
        text: what was found, one sentence.
        remedy: what to do about it, often the exact command; None where there is nothing to do.
    """

    code: str
    level: NoteLevel
    text: str
    remedy: str | None = None


@dataclass(frozen=True)
class Capture:
    """Facts about one profile file.

    Attributes:
        source: the file's own name, without folders.
        format: `nsys-sqlite`, …
        tool: the profiler, for people (`Nsight Systems`).
        tool_version: version that wrote the file; None where it does not say.
        schema_version: version of the file's schema; None where it does not say.
        devices: the GPUs that the program used, in CUDA order.
        window_ns: begin and end of the recorded time, in the profile's clock.
        epoch_ns: Unix time of the clock's zero, to place several files on one clock; None where the file does not say.
        rank: the process's number in a distributed run; None where the file does not say.
        world_size: number of processes of the distributed run; None where the file does not say.
        recorded: which of the schema's tables the file held, empty or not.
        notes: what the reader noticed.
    """

    source: str
    format: str
    tool: str
    tool_version: str | None = None
    schema_version: str | None = None
    devices: tuple[Device, ...] = ()
    window_ns: tuple[int, int] = (0, 0)
    epoch_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    recorded: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = field(default=())

    def device(self, ordinal: int) -> Device | None:
        """The GPU with this CUDA ordinal, where the profile describes it."""
        return next((device for device in self.devices if device.ordinal == ordinal), None)
