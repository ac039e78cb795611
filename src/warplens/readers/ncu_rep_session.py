"""What an Nsight Compute report says of its session: version of the tool, settings that give numbers meaning, GPUs.

Session details also hold the program's environment, command lines, hosts and addresses. Only versions, settings and GPU
attributes leave this module: a command line is searched for known options with known values, never quoted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warplens.profile import Device
from warplens.profile.counters import Session
from warplens.readers.ncu_messages import value_of
from warplens.readers.ncu_rep_wire import Message

__all__ = ["DEVICE_ATTRIBUTES", "SessionFacts", "device_of"]

_VERSION = re.compile(r"\d+(\.\d+)+")

#: No machine has more.
_MOST_GPUS = 1024

_Option = tuple[str, int, tuple[str, ...], str]

#: Options of ncu that change what the numbers mean: where the profiler's settings keep them, their values, and the one
#: that holds where the command line names none.
_CLOCK_CONTROL = ("clock-control", 8, ("base", "boost", "none", "reset"), "base")
_CACHE_CONTROL = ("cache-control", 0, ("all", "none"), "all")
_REPLAY_MODE = ("replay-mode", 11, ("kernel", "application", "range", "app-range"), "kernel")


@dataclass
class SessionFacts:
    """What is known of the session, gathered from the blocks as they come."""

    process: int | None = None
    tool_version: str | None = None
    attributes: dict[int, dict[str, int | float | str | None]] = field(default_factory=dict)
    clock_control: str | None = None
    cache_control: str | None = None
    replay_mode: str | None = None

    def add(self, details: Message) -> None:
        """Takes in the session details of one block."""
        if self.process is None:
            self.process = details.integer(1)
        for version in details.messages(8):
            if version.text(1) == "Nsight Compute Target":
                found = _VERSION.match(version.text(2) or "")
                self.tool_version = found.group() if found else self.tool_version
        for device in details.messages(6):
            ordinal = device.integer(1) or 0
            if ordinal < _MOST_GPUS:
                attributes = self.attributes.setdefault(ordinal, {})
                attributes.setdefault("device__attribute_display_name", device.text(2))
                for attribute in device.messages(3):
                    if (name := attribute.text(1)) in DEVICE_ATTRIBUTES:
                        attributes[name] = value_of(attribute.message(2))
        settings = details.message(10)
        command = details.text(11)
        self.clock_control = self.clock_control or _setting(_CLOCK_CONTROL, settings, command)
        self.cache_control = self.cache_control or _setting(_CACHE_CONTROL, settings, command)
        self.replay_mode = self.replay_mode or _setting(_REPLAY_MODE, settings, command)

    def session(self, sections: tuple[str, ...], clocks_locked: bool | None) -> Session:
        """How the counters were collected; each launch tells whether its clocks were to be locked."""
        from_launches = {True: "base", False: "none", None: None}[clocks_locked]
        return Session(sections, self.clock_control or from_launches, self.cache_control, self.replay_mode)


def _setting(option: _Option, settings: Message | None, command: str | None) -> str | None:
    """The value of one option: from the settings of a session in the GUI, else from the command line of ncu."""
    name, number, values, default = option
    chosen = settings.text(number) if settings and number else None
    if chosen is not None and chosen.strip().lower() in values:
        return chosen.strip().lower()
    if command is None:
        return None
    found = re.search(rf"(?:^|\s)--{name}[=\s]\s*[\"']?({'|'.join(values)})\b(?!-)", command)
    return found[1] if found else default


#: Attributes of CUDA for the fields of a `Device`, and what takes them to its unit.
_DEVICE_FIELDS: Mapping[str, tuple[str, int]] = {
    "sm_count": ("multiprocessor_count", 1),
    "clock_hz": ("clock_rate", 1000),
    "memory_bytes": ("total_memory", 1),
    "l2_bytes": ("l2_cache_size", 1),
    "max_warps_per_sm": ("max_warps_per_multiprocessor", 1),
    "max_blocks_per_sm": ("limits_max_cta_per_sm", 1),
    "max_threads_per_block": ("max_threads_per_block", 1),
    "registers_per_sm": ("max_registers_per_multiprocessor", 1),
    "shared_bytes_per_sm": ("max_shared_memory_per_multiprocessor", 1),
}

#: The metrics from which a `Device` can be told.
DEVICE_ATTRIBUTES = frozenset(
    f"device__attribute_{name}"
    for name in (
        "display_name",
        "compute_capability_major",
        "compute_capability_minor",
        "memory_clock_rate",
        "global_memory_bus_width",
        *(attribute for attribute, _ in _DEVICE_FIELDS.values()),
    )
)


def device_of(ordinal: int, attributes: Mapping[str, Any]) -> Device:
    """A GPU by its `device__attribute_…` values.

    The bandwidth is what CUDA's own samples make of the attributes: the width of the memory bus, twice per clock of the
    memory.
    """

    def number(name: str) -> int | None:
        value = attributes.get(f"device__attribute_{name}")
        return int(value) if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0 else None

    name = attributes.get("device__attribute_display_name")
    fields: dict[str, Any] = {
        own: found * factor
        for own, (attribute, factor) in _DEVICE_FIELDS.items()
        if (found := number(attribute)) is not None
    }
    major, minor = number("compute_capability_major"), number("compute_capability_minor")
    memory_khz, bus_bits = number("memory_clock_rate"), number("global_memory_bus_width")
    return Device(
        ordinal=ordinal,
        name=name if isinstance(name, str) else f"GPU {ordinal}",
        compute_capability=(major, minor) if major is not None and minor is not None else None,
        memory_bandwidth_bytes_per_s=2 * memory_khz * 1000 * (bus_bits // 8) if memory_khz and bus_bits else None,
        **fields,
    )
