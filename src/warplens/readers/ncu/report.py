"""Nsight Compute reports (.ncu-rep) of 2021 to 2026 as `KernelCounters`, read without any of NVIDIA's software.

`container` walks over the blocks and decodes the fields of messages, `metrics` builds the columns of metrics and their
units; this module combines them with the facts about the session and the GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Capture, Device, Note, NoteLevel
from warplens.profile.counters import LAUNCHES, RULES, KernelCounters, Session
from warplens.profile.schema import encode_names
from warplens.profile.trace import LAUNCH_SIZE, worst_first
from warplens.readers.ncu import NCU
from warplens.readers.ncu.container import (
    FIELDS,
    VERSION,
    Block,
    Container,
    Launch,
    Result,
    Rule,
    content_of,
    launch_of,
    rules_of,
    value_of,
)
from warplens.readers.ncu.metrics import MetricColumns, unit_of
from warplens.wire import Data, Message, WireError

# --- Facts of an Nsight Compute report's session ----------------------------------------------------------------------
#
# Version of the tool, settings that affect the meaning of numbers, GPUs. Session details also hold the program's
# environment, command lines, hosts and addresses. Only versions, settings and GPU attributes leave this module: a
# command line is searched for known options with known values, never quoted.

_VERSION = re.compile(r"\d+(\.\d+)+")

#: Upper bound of the GPUs of a machine.
_MAX_GPUS = 1024

#: Options of ncu that affect the meaning of numbers: field in the profiler's settings, values, and the default.
_OPTIONS = {
    "clock-control": (8, ("base", "boost", "none", "reset"), "base"),
    "cache-control": (0, ("all", "none"), "all"),
    "replay-mode": (11, ("kernel", "application", "range", "app-range"), "kernel"),
}


@dataclass
class SessionFacts:
    """Facts about the session, gathered from the blocks as they come."""

    process: int | None = None
    tool_version: str | None = None
    attributes: dict[int, dict[str, int | float | str | None]] = field(default_factory=dict)
    chosen: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(_OPTIONS))  #: `_OPTIONS` with values

    def add(self, details: Message) -> None:
        """Add the session details of one block."""
        if self.process is None:
            self.process = details.integer(1)
        for version in details.messages(8):
            if version.text(1) == "Nsight Compute Target":
                version_match = _VERSION.match(version.text(2) or "")
                self.tool_version = version_match.group() if version_match else self.tool_version
        for device in details.messages(6):
            ordinal = device.integer(1) or 0
            if ordinal < _MAX_GPUS:
                attributes = self.attributes.setdefault(ordinal, {})
                attributes.setdefault("device__attribute_display_name", device.text(2))
                for attribute in device.messages(3):
                    if (name := attribute.text(1)) in DEVICE_ATTRIBUTES:
                        attributes[name] = value_of(attribute.message(2))
        for name, value in self.chosen.items():
            self.chosen[name] = value or _setting(name, details.message(10), details.text(11))

    def session(self, sections: tuple[str, ...], clocks_locked: bool | None) -> Session:
        """The settings of the collection; each launch states whether its clocks were to be locked."""
        from_launches = {True: "base", False: "none", None: None}[clocks_locked]
        clocks, caches, replay = self.chosen.values()
        return Session(sections, clocks or from_launches, caches, replay)


def _setting(name: str, settings: Message | None, command: str | None) -> str | None:
    """The value of one option: from the settings of a session in the GUI, else from the command line of ncu."""
    number, values, default = _OPTIONS[name]
    chosen = settings.text(number) if settings and number else None
    if chosen is not None and chosen.strip().lower() in values:
        return chosen.strip().lower()
    if command is None:
        return None
    match = re.search(rf"(?:^|\s)--{name}[=\s]\s*[\"']?({'|'.join(values)})\b(?!-)", command)
    return match[1] if match else default


#: CUDA attributes for the fields of a `Device`, and the factor to its unit.
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

#: The metrics that describe a `Device`.
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
    """A GPU from its `device__attribute_…` values.

    The bandwidth is computed from the attributes as in CUDA's own samples: the width of the memory bus, twice per
    memory clock.
    """

    def number(name: str) -> int | None:
        value = attributes.get(f"device__attribute_{name}")
        return int(value) if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0 else None

    name = attributes.get("device__attribute_display_name")
    fields: dict[str, Any] = {
        field: amount * factor
        for field, (attribute, factor) in _DEVICE_FIELDS.items()
        if (amount := number(attribute)) is not None
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


_AGAIN = "Copy the report again from where it was recorded, or record it again"
RECORD = "ncu --set detailed --output profile python your_program.py"


#: Metrics with the GPU of a launch; a report has one of them.
_DEVICE_IDS = ("launch__device_id", "device__attribute_device_index")

_SESSION_DETAILS, _STRINGS, _PROCESS = 3, 4, 6
_MAX_INT32 = 2**31 - 1


def read_ncu_rep(
    path: Path, known_as: Path, metrics: Collection[str] | None = None, instances: Collection[str] = ()
) -> KernelCounters:
    """The counters in a report, as far as it is intact."""
    with content_of(path, known_as) as data:
        return _Reading(data, known_as, metrics, instances).counters()


class _Reading:
    """The reading of one report."""

    def __init__(self, data: Data, known_as: Path, metrics: Collection[str] | None, instances: Collection[str]) -> None:
        self._data = data
        self._known_as = known_as
        self._asked = None if metrics is None else frozenset(metrics)
        needed = None if metrics is None else {*metrics, *_DEVICE_IDS, *DEVICE_ATTRIBUTES}
        self._container = Container(data, known_as)
        self._columns = MetricColumns(data, needed, instances)
        self._session = SessionFacts()
        self._launches: list[Launch] = []
        self._kinds: list[str] = []
        self._processes: list[int | None] = []
        self._rules: list[tuple[int, Rule]] = []
        self._unknown_bytes = 0

    def _walk(self) -> None:
        """Read block after block, up to the end of the file or to the first unreadable place."""
        for block in self._container.blocks():
            at = block.start
            try:
                process = self._take_header(block)
                for result in block.results:
                    at = result.start
                    self._take(result, process)
            except WireError as error:
                self._container.stop(at, str(error))
                break
            self._unknown_bytes += block.unknown_bytes
        if self._container.stopped_at is not None and not self._launches:
            found = f"a damaged Nsight Compute report without a complete launch: {self._container.reason}"
            raise UnreadableInputError(self._known_as, found, _AGAIN)

    def _take_header(self, block: Block) -> int | None:
        """Read the header of a block; return the process of its results."""
        if strings := block.header.message(_STRINGS):
            self._columns.add_names(strings.texts(1))
        if details := block.header.message(_SESSION_DETAILS):
            self._session.add(details)
        process = block.header.message(_PROCESS)
        number = process.integer(1) if process else self._session.process
        return number if number is not None and number <= _MAX_INT32 else None

    def _take(self, result: Result, process: int | None) -> None:
        message = Message(self._data, result.start, result.end, gather=FIELDS[result.kind].metrics)
        launch = launch_of(result.kind, message)
        if launch is None:
            raise WireError(f"the result at byte {result.start} does not name its kernel")
        rules = list(rules_of(result.kind, message))
        row = len(self._launches)
        self._columns.add(row, message.gathered)
        self._rules += [(row, rule) for rule in rules]
        self._launches.append(launch)
        self._kinds.append(result.kind)
        self._processes.append(process)

    def counters(self) -> KernelCounters:
        """The whole report, as far as it is intact."""
        self._walk()
        metrics = self._columns.frame(len(self._launches), self._known_as)
        instances = self._columns.instances()
        ordinals = _ordinals(metrics, len(self._launches))
        devices = self._devices(metrics, ordinals)
        if self._asked is not None:
            metrics = metrics.select([name for name in metrics.columns if name in self._asked])
        clocks = [launch.clocks for launch in self._launches if launch.clocks is not None]
        sections = dict.fromkeys(section for launch in self._launches for section in launch.sections if section)
        capture = Capture(
            source=self._known_as.name,
            format="ncu-rep",
            recorder=NCU,
            tool_version=self._session.tool_version,
            schema_version=str(VERSION),
            devices=devices,
            recorded=frozenset({"launches", "metrics", *(["rules"] if self._rules else [])}),
            notes=worst_first(self._notes()),
        )
        return KernelCounters(
            capture=capture,
            session=self._session.session(
                tuple(sections), any(is_requested for is_requested, _ in clocks) if clocks else None
            ),
            launches=self._launch_table(ordinals),
            metrics=metrics,
            units={name: unit for name in metrics.columns if (unit := unit_of(name)) is not None},
            rules=pl.DataFrame([(launch, *rule) for launch, rule in self._rules], RULES.schema, orient="row"),
            instances=instances,
        )

    def _notes(self) -> Iterator[Note]:
        """What could not be read of the report, and what makes its values doubtful."""
        count = len(self._launches)
        if not count:
            yield Note("no-launches", NoteLevel.BLOCKING, "The report holds no profiled kernel launch.", RECORD)
        if self._container.stopped_at is not None:
            text = (
                f"The report cannot be read from byte {self._container.stopped_at} on ({self._container.reason}); "
                f"the {count} complete launches before it were read."
            )
            yield Note("incomplete-report", NoteLevel.WARNING, text, _AGAIN)
        if unreadable := self._columns.unreadable:
            text = f"{unreadable} metrics could not be read and are missing; the file is damaged."
            yield Note("unreadable-metrics", NoteLevel.WARNING, text, _AGAIN)
        if unsupported := sum(launch.unsupported for launch in self._launches):
            text = (
                f"The ncu that recorded this did not support the GPU: values of {unsupported} of {count} launches may "
                "be wrong or missing."
            )
            yield Note("unsupported-gpu", NoteLevel.WARNING, text, "Record again with the newest Nsight Compute")
        clocks = [launch.clocks for launch in self._launches if launch.clocks is not None]
        if unlocked := sum(is_requested and not is_done for is_requested, is_done in clocks):
            text = (
                f"ncu could not lock the clocks of {unlocked} of {count} launches, so that times and rates vary with "
                "the clock."
            )
            yield Note("clocks-not-locked", NoteLevel.INFO, text, "Compare cycles rather than times")
        if self._unknown_bytes:
            text = (
                f"{self._unknown_bytes} bytes hold results of a kind that this version does not know; they were passed "
                "over."
            )
            yield Note("unknown-results", NoteLevel.INFO, text)

    def _devices(self, metrics: pl.DataFrame, ordinals: pl.Series) -> tuple[Device, ...]:
        """The GPUs that the launches ran on, from the session's details or, if these were truncated, from a launch."""
        details = self._session.attributes
        rows = {ordinal: row for row, ordinal in enumerate(ordinals.to_list()) if ordinal is not None}
        if not rows:  # no launch, or none that states its GPU
            return tuple(
                device_of(ordinal, device_attributes) for ordinal, device_attributes in sorted(details.items())
            )
        known = metrics.select([name for name in metrics.columns if name in DEVICE_ATTRIBUTES])
        return tuple(
            device_of(ordinal, details.get(ordinal) or {column.name: column[row] for column in known})
            for ordinal, row in sorted(rows.items())
        )

    def _launch_table(self, ordinals: pl.Series) -> pl.DataFrame:
        launches = self._launches
        columns: dict[str, Any] = {
            "launch": range(len(launches)),
            "kind": self._kinds,
            "device": ordinals,
            "process": self._processes,
            **{name: [getattr(launch, name) for launch in launches] for name in ("context", "stream", "nvtx")},
            **{name: [launch.sizes[at] for launch in launches] for at, name in enumerate(LAUNCH_SIZE)},
        }
        series = [pl.Series(name, values, dtype=LAUNCHES.schema[name]) for name, values in columns.items()]
        series += [encoded(name, [getattr(launch, name) for launch in launches]) for name in ("name", "full_name")]
        return LAUNCHES.checked(pl.DataFrame(series))


def _ordinals(metrics: pl.DataFrame, launches: int) -> pl.Series:
    """The CUDA ordinal of each launch's GPU, if its metrics state it."""
    for name in _DEVICE_IDS:
        if name in metrics.columns and metrics[name].dtype.is_numeric():
            return metrics[name].cast(pl.Int32, strict=False).alias("device")
    return pl.Series("device", [None] * launches, dtype=pl.Int32)


def encoded(name: str, texts: Sequence[str]) -> pl.Series:
    """Texts as a dictionary-encoded column, in order of first occurrence."""
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    return encode_names(pl.Series([codes[text] for text in texts], dtype=pl.UInt32), codes).alias(name)
