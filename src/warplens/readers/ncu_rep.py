"""Nsight Compute reports (.ncu-rep) of 2021 to 2026 as `KernelCounters`, read without any of NVIDIA's software.

`ncu_container` walks over the blocks, `ncu_rep_wire` finds the fields of a message, `ncu_messages` and
`ncu_rep_session` say what they mean, `ncu_rep_metrics` and `ncu_rep_values` make columns of the metrics,
`ncu_rep_units` tells their units; this module puts them together.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from warplens.profile import Capture, Device
from warplens.profile.counters import LAUNCHES, RULES, KernelCounters
from warplens.profile.schema import encode_names
from warplens.readers.ncu_container import VERSION, Block, Container, Result, mapped
from warplens.readers.ncu_messages import METRICS, Launch, Rule, launch_of, rules_of
from warplens.readers.ncu_rep_metrics import MetricColumns
from warplens.readers.ncu_rep_notes import Findings, notes_of, unreadable_from_the_start
from warplens.readers.ncu_rep_session import DEVICE_ATTRIBUTES, SessionFacts, device_of
from warplens.readers.ncu_rep_units import unit_of
from warplens.readers.ncu_rep_wire import Data, Message, WireError

__all__ = ["read_ncu_rep"]

#: The metrics that say on which GPU a launch ran; a report has the one or the other.
_DEVICE_IDS = ("launch__device_id", "device__attribute_device_index")

_SESSION_DETAILS, _STRINGS, _PROCESS = 3, 4, 6
_MAX_INT32 = 2**31 - 1


def read_ncu_rep(
    path: Path, known_as: Path, metrics: Collection[str] | None = None, instances: Collection[str] = ()
) -> KernelCounters:
    """The counters in a report, as far as it is intact.

    Args:
        path: the report on disk.
        known_as: the file that the user named; `path` may be unpacked from it.
        metrics: names of the metrics to read; None means all. Others are passed over without being decoded.
        instances: names of the metrics whose instances (per instruction, per block size, over time, …) are read too.

    Raises:
        UnreadableInputError: the file is no report, one of another container version, or damaged from the start.
    """
    with mapped(path, known_as) as data:
        return _Reading(data, known_as, metrics, instances).counters()


class _Reading:
    """What has been read of one report so far."""

    def __init__(self, data: Data, known_as: Path, metrics: Collection[str] | None, instances: Collection[str]) -> None:
        self._data = data
        self._known_as = known_as
        self._asked = metrics
        needed = None if metrics is None else {*metrics, *_DEVICE_IDS, *DEVICE_ATTRIBUTES}
        self._container = Container(data, known_as)
        self._columns = MetricColumns(data, needed, instances)
        self._session = SessionFacts()
        self._launches: list[Launch] = []
        self._kinds: list[str] = []
        self._processes: list[int | None] = []
        self._rules: list[tuple[int, Rule]] = []
        self._blocks = self._unknown_bytes = 0

    def _walk(self) -> None:
        """Reads block after block, up to the end of the file or to the first thing in it that cannot be read.

        Raises:
            UnreadableInputError: that stands before anything that can be used.
        """
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
            self._blocks += 1
            self._unknown_bytes += block.unknown_bytes
        if self._container.stopped_at is not None and not (self._blocks or self._launches):
            raise unreadable_from_the_start(self._known_as, self._container.reason)

    def _take_header(self, block: Block) -> int | None:
        """Takes in what stands in the header of a block; gives the process that its results belong to."""
        if strings := block.header.message(_STRINGS):
            self._columns.add_names(strings.texts(1))
        if details := block.header.message(_SESSION_DETAILS):
            self._session.add(details)
        process = block.header.message(_PROCESS)
        number = process.integer(1) if process else self._session.process
        return number if number is not None and number <= _MAX_INT32 else None

    def _take(self, result: Result, process: int | None) -> None:
        message = Message(self._data, result.start, result.end, gather=METRICS[result.kind])
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
        """The whole report, as far as it is intact, in the domain's own tables."""
        self._walk()
        metrics = self._columns.frame(len(self._launches), self._known_as)
        instances = self._columns.instances()
        ordinals = _ordinals(metrics, len(self._launches))
        devices = self._devices(metrics, ordinals)
        if self._asked is not None:
            metrics = metrics.select([name for name in metrics.columns if name in set(self._asked)])
        clocks = [launch.clocks for launch in self._launches if launch.clocks is not None]
        sections = dict.fromkeys(section for launch in self._launches for section in launch.sections if section)
        findings = Findings(
            launches=len(self._launches),
            stopped_at=self._container.stopped_at,
            reason=self._container.reason,
            unknown_bytes=self._unknown_bytes,
            unreadable_metrics=self._columns.unreadable,
            unsupported=sum(launch.unsupported for launch in self._launches),
            unlocked=sum(asked and not done for asked, done in clocks),
        )
        capture = Capture(
            source=self._known_as.name,
            format="ncu-rep",
            tool="Nsight Compute",
            tool_version=self._session.tool_version,
            schema_version=str(VERSION),
            devices=devices,
            recorded=frozenset({"launches", "metrics", *(["rules"] if self._rules else [])}),
            notes=notes_of(findings),
        )
        return KernelCounters(
            capture=capture,
            session=self._session.session(tuple(sections), any(asked for asked, _ in clocks) if clocks else None),
            launches=self._launch_table(ordinals),
            metrics=metrics,
            units={name: unit for name in metrics.columns if (unit := unit_of(name)) is not None},
            rules=self._rule_table(),
            instances=instances,
        )

    def _devices(self, metrics: pl.DataFrame, ordinals: pl.Series) -> tuple[Device, ...]:
        """The GPUs that the launches ran on, by the session's details or, where these were cut off, by a launch."""
        details = self._session.attributes
        rows = {ordinal: row for row, ordinal in enumerate(ordinals.to_list()) if ordinal is not None}
        if not rows:  # no launch, or none that says on which GPU it ran
            return tuple(device_of(ordinal, found) for ordinal, found in sorted(details.items()))
        known = metrics.select([name for name in metrics.columns if name in DEVICE_ATTRIBUTES])
        return tuple(
            device_of(ordinal, details.get(ordinal) or {column.name: column[row] for column in known})
            for ordinal, row in sorted(rows.items())
        )

    def _launch_table(self, ordinals: pl.Series) -> pl.DataFrame:
        launches = self._launches
        names = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        columns: dict[str, Any] = {
            "launch": range(len(launches)),
            "kind": self._kinds,
            "device": ordinals,
            "context": [launch.context for launch in launches],
            "stream": [launch.stream for launch in launches],
            "process": self._processes,
            **{name: [launch.sizes[at] for launch in launches] for at, name in enumerate(names)},
            "nvtx": [launch.nvtx for launch in launches],
        }
        types = {column.name: column.dtype for column in LAUNCHES.columns}
        series = [pl.Series(name, values, dtype=types[name]) for name, values in columns.items()]
        series.append(_encoded("name", [launch.name for launch in launches]))
        series.append(_encoded("full_name", [launch.full_name for launch in launches]))
        return LAUNCHES.checked(pl.DataFrame(series))

    def _rule_table(self) -> pl.DataFrame:
        rows = [(launch, *rule) for launch, rule in self._rules]
        return pl.DataFrame(rows, {column.name: column.dtype for column in RULES.columns}, orient="row")


def _ordinals(metrics: pl.DataFrame, launches: int) -> pl.Series:
    """The CUDA ordinal of the GPU of each launch, where its metrics say it."""
    for name in _DEVICE_IDS:
        if name in metrics.columns and metrics[name].dtype.is_numeric():
            return metrics[name].cast(pl.Int32, strict=False).alias("device")
    return pl.Series("device", [None] * launches, dtype=pl.Int32)


def _encoded(name: str, texts: list[str]) -> pl.Series:
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    return encode_names(pl.Series([codes[text] for text in texts], dtype=pl.UInt32), codes).alias(name)
