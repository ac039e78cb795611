"""A copy of a measurements file that can be shared: figures, settings, and the machine without its owner."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import orjson

from warplens.errors import UnreadableInputError
from warplens.readers.measurements import measurements_of, read_measurements
from warplens.scrub.outcome import Removed, ScrubError, left
from warplens.scrub.texts import Cleaner
from warplens.scrub_secrets import ADDRESSES, FORBIDDEN, Secrets

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_measurements", "copy_measurements"]

#: Members that come along; docs/reference/measurements.md has them all.
_HEAD: Final = ("schema", "version", "workload", "command", "environment", "plan", "sweep", "measurements")
_ENVIRONMENT: Final = (
    "device", "driver", "cuda", "cudnn", "versions", "python", "system", "cpu", "cpu_count", "threads",
)  # fmt: skip
_RECORD: Final = (
    "cell", "status", "reason", "launch", "unit", "items", "latency_ns", "gpu_ns", "phases_ns", "rounds",
    "throughput_per_s", "sustained_per_s", "work", "peak_allocated_bytes", "peak_reserved_bytes", "stopped", "drift",
    "clocks", "doubts", "details", "samples",
)  # fmt: skip

#: Our own commands are made of such words alone. Any other may hold whatever its user typed.
_OWN_COMMAND: Final = re.compile(r"(?:warplens|python3 captures/\w+\.py)(?: [\w.,+=:-]+)*")


def copy_measurements(source: Path, known_as: Path, partial: Path) -> Removed:
    """Fills the empty file `partial` with what the analyses read of a measurements file.

    Raises:
        UnreadableInputError: the file holds no measurements of a version known here.
        ScrubError: something identifying was left.
    """
    try:
        document = orjson.loads(source.read_bytes())
    except orjson.JSONDecodeError as error:
        raise UnreadableInputError(known_as, f"it is no JSON ({error})", "Measure again") from None
    measurements_of(document, known_as)  # refuses what is damaged
    removed: Counter[str] = Counter()
    kept = _chosen(document, _HEAD, removed)
    kept["environment"] = _chosen(document["environment"], _ENVIRONMENT, removed)
    kept["measurements"] = [_chosen(record, _RECORD, removed) for record in document["measurements"]]
    if kept.get("command") and not _OWN_COMMAND.fullmatch(kept["command"]):
        kept["command"] = None
        removed["command"] += 1
    secrets = Secrets()
    for text in _texts(kept):
        secrets.add_home_owners(text.encode())
    cleaner = Cleaner(secrets)
    content = orjson.dumps(_cleaned(kept, cleaner))
    if FORBIDDEN.search(content) or ADDRESSES.search(content) or (secrets.pattern and secrets.pattern.search(content)):
        raise left(known_as, "a path, a name or an address")
    partial.write_bytes(content)
    return Removed(dict(removed), {}, cleaner.rewritten(), len(secrets.all), ("members", "others"))


def check_measurements(source: Path, copy: Path) -> int:
    """That both files give the same figures and samples; the number of tables compared.

    Raises:
        ScrubError: they do not.
    """
    before, after = read_measurements(source), read_measurements(copy)
    figures = [name for name, type_ in before.cells.schema.items() if type_.is_numeric()]
    tables = (
        (before.cells.select(figures), after.cells.select(figures)),
        (before.phases, after.phases),
        (before.samples, after.samples),
    )
    if any(not one.equals(other) for one, other in tables):
        raise ScrubError(
            f"{source.name}: the copy does not hold the same figures and was discarded. Please report this"
        )
    return len(tables)


def _chosen(members: dict[str, Any], known: tuple[str, ...], removed: Counter[str]) -> dict[str, Any]:
    removed["member"] += len(members.keys() - set(known))
    return {name: members[name] for name in known if name in members}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return []


def _cleaned(value: Any, cleaner: Cleaner) -> Any:
    if isinstance(value, str):
        return cleaner.written("text", value.encode()).decode()
    if isinstance(value, dict):
        return {_cleaned(name, cleaner): _cleaned(part, cleaner) for name, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, cleaner) for part in value]
    return value
