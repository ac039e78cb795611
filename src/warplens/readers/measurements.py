"""Measurements files: JSON, `warplens.measurements/1`, written by `warplens bench` (docs/reference/measurements.md).

Read without PyTorch. A file with contradictory figures is refused: throughput × latency must be the batch, FLOPs twice
the multiply-accumulates, and an interval must enclose its median.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from warplens.errors import UnreadableInputError, shown_name
from warplens.profile.measurements import CELL_PHASES, CELLS, PLAN, SAMPLES, STATUSES, Measurements
from warplens.readers.limits import document_bytes
from warplens.readers.opening import Input, Reader, ReadOptions, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warplens.readers.scrubbing import Removed
    from warplens.secrets import Cleaner


MEASUREMENTS_SCHEMA_NAME: Final = "warplens.measurements/1"

_ADVICE: Final = "Give a file that `warplens bench … --output FILE` wrote"
_WRONG: Final = "Do not trust it; measure again"

#: Tolerance for figures rounded in JSON.
_TOLERANCE: Final = 1e-6


#: Bytes searched for the schema, which `warplens bench` writes first.
_HEAD_BYTES: Final = 4096


class MeasurementsFile(Reader[Measurements]):
    """Files of `warplens bench` and `warplens sweep run`."""

    def sniff(self, head: bytes) -> bool:
        return b'"warplens.measurements/' in head[:_HEAD_BYTES]

    def read(self, file: Input, options: ReadOptions) -> Measurements:
        return measurements_of(_document(file.path, file.known_as), file.known_as)

    def scrub(self, file: Input, copy: Path) -> Removed:
        return _copy(file, copy)


def read_measurements(path: Path | str) -> Measurements:
    """The measurements in a file, which may be compressed (.gz, .xz, .zst).

    Raises:
        UnreadableInputError: the file is missing or damaged, is not a measurements file of a known version, or its
            figures contradict one another.
    """
    source = Path(path)
    with plain(source) as content:
        return measurements_of(_document(content, source), source)


def _document(path: Path, known_as: Path) -> Any:
    return json_of(document_bytes(path, known_as), known_as, _ADVICE)


def json_of(text: bytes | str, known_as: Path, advice: str) -> Any:
    """The value of a JSON text.

    Raises:
        UnreadableInputError: it is none, with this advice.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnreadableInputError(known_as, f"it is not valid JSON ({error})", advice) from None


def measurements_of(document: Any, source: Path | str) -> Measurements:
    """The measurements in a parsed document."""
    path = Path(source)
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != MEASUREMENTS_SCHEMA_NAME:
        found = f"its schema is {schema!r}" if schema else "it does not say that it holds measurements"
        raise UnreadableInputError(path, f"{found}, and {MEASUREMENTS_SCHEMA_NAME} is read here", _ADVICE)
    try:
        records = document["measurements"]
        for name, kind in (("environment", dict), ("plan", dict), ("sweep", dict), ("workload", str)):
            if document.get(name) is not None and not isinstance(document[name], kind):
                raise _WrongTypeError(f"{name!r}")
        plan = document.get("plan") or {}
        if wrong := next((name for name in PLAN if not isinstance(plan.get(name, 0), int | float)), None):
            raise _WrongTypeError(f"'plan': {wrong!r}")
        if not all(isinstance(document["environment"].get(name) or {}, dict) for name in ("device", "versions")):
            raise _WrongTypeError("'environment'")
        for number, record in enumerate(records, start=1):
            _check(path, number, record)
        return _measurements(path, document, records)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        found = str(error) if isinstance(error, KeyError | _WrongTypeError) else "a value is of another type"
        raise UnreadableInputError(path, f"it lacks what its schema declares ({found})", _ADVICE) from error


def _measurements(path: Path, document: Mapping[str, Any], records: list[dict[str, Any]]) -> Measurements:
    """The document as `Measurements`; `records` are its measurements."""
    settings = list(dict.fromkeys(name for record in records for name in record["cell"]))
    setting_columns = pl.DataFrame(
        {name: _setting(name, [_as_scalar(record["cell"].get(name)) for record in records]) for name in settings}
    )
    figures = pl.DataFrame([_row(record) for record in records], schema=CELLS.schema, orient="row")
    return Measurements(
        source=shown_name(path.name),
        workload=document["workload"],
        version=document["version"],
        command=command if _OWN_COMMAND.fullmatch(command := str(document.get("command"))) else None,
        environment=document["environment"],
        plan=document["plan"],
        settings=tuple(settings),
        cells=pl.concat((setting_columns, figures), how="horizontal"),
        details=tuple(record.get("details") or {} for record in records),
        phases=pl.DataFrame(_phase_rows(records), schema=CELL_PHASES.schema, orient="row"),
        samples=_samples(records),
        sweep=document.get("sweep"),
    )


class _WrongTypeError(TypeError):
    """A value of another type than the schema declares, by its place."""


def _setting(name: str, values: list[Any]) -> pl.Series:
    try:
        return pl.Series(name, values)
    except (TypeError, OverflowError) as error:
        raise _WrongTypeError(f"the setting {name!r} has values of several types") from error


def _as_scalar(setting: Any) -> Any:
    """A list as text (`3,6,9`), since cells differ in length."""
    return ",".join(str(item) for item in setting) if isinstance(setting, list | tuple) else setting


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement as a row of `CELLS`. Its FLOP rate is over the GPU time, or else over the latency."""
    latency, gpu = record.get("latency_ns") or {}, record.get("gpu_ns") or {}
    work = record.get("work") or {}
    time_ns = gpu.get("median") or latency.get("median")
    flops = work.get("flops")
    plain = {
        name: record.get(name)
        for name in (
            "status", "reason", "launch", "unit", "items", "throughput_per_s", "sustained_per_s",
            "peak_allocated_bytes", "peak_reserved_bytes", "stopped", "rounds",
        )
    }  # fmt: skip
    return plain | {
        "samples": (latency or gpu).get("samples"),
        "latency_ns": latency.get("median"),
        **{f"latency_{name}_ns": latency.get(name) for name in ("low", "high", "p5", "p95", "p99")},
        "gpu_ns": gpu.get("median"),
        **{f"gpu_{name}_ns": gpu.get(name) for name in ("low", "high")},
        "macs": work.get("macs"),
        "flops": flops,
        "flops_per_s": flops * 1e9 / time_ns if flops is not None and time_ns else None,
        "outliers": (latency or gpu).get("outliers"),
        "drift_share": (record.get("drift") or {}).get("share"),
        "doubts": record.get("doubts") or [],
    }


def _phase_rows(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (cell, phase, time_ns["median"], time_ns["low"], time_ns["high"])
        for cell, record in enumerate(records)
        for phase, time_ns in (record.get("phases_ns") or {}).items()
    ]


def _samples(records: list[dict[str, Any]]) -> pl.DataFrame:
    parts = [
        pl.DataFrame({"time_ns": pl.Series(times, dtype=pl.Int64)}).select(
            pl.lit(cell, pl.Int64).alias("cell"),
            pl.lit(of).alias("of"),
            pl.int_range(pl.len(), dtype=pl.Int64).alias("index"),
            "time_ns",
        )
        for cell, record in enumerate(records)
        for of, times in _series(record.get("samples") or {})
        if times
    ]
    return pl.concat(parts) if parts else SAMPLES.empty()


def _series(samples: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    for name in ("warmup", "wall", "gpu"):
        yield name, samples.get(f"{name}_ns") or []
    yield from (samples.get("phases_ns") or {}).items()


def _check(path: Path, number: int, record: Mapping[str, Any]) -> None:  # noqa: C901  one refusal after the other
    """Refuses a measurement whose parts are malformed or contradict each other, as throughput and latency may."""

    def refuse(found: str) -> UnreadableInputError:
        return UnreadableInputError(path, f"measurement {number}: {found}", _WRONG)

    if not isinstance(record.get("details") or {}, dict):
        raise refuse("its details are not an object")
    for name, setting in record["cell"].items():
        if not _is_setting(setting):
            raise refuse(f"its setting {name!r} is not a number, word or list of these")
    status = record["status"]
    if status not in STATUSES:
        raise refuse(f"its status is {status!r}, none of {', '.join(STATUSES)}")
    if status != "measured":
        return
    for name in ("latency_ns", "gpu_ns"):
        spread = record.get(name)
        if spread and not _is_ordered(spread, record.get("rounds") or 1):
            raise refuse(f"the figures of {name} are not in ascending order")
    timed = record.get("samples") or {}
    if any(time_ns <= 0 for name in ("wall_ns", "gpu_ns") for time_ns in timed.get(name) or ()):
        raise refuse("a repetition took no time, or less")
    latency = record.get("latency_ns")
    for rate, statistic in (("throughput_per_s", "median"), ("sustained_per_s", "mean")):
        per_second = record.get(rate)
        if not latency or per_second is None:
            continue
        batch = per_second * latency[statistic] / 1e9
        if not math.isclose(batch, record["items"], rel_tol=_TOLERANCE):
            raise refuse(f"throughput × latency is {batch:g}, but a step has {record['items']} items")
    work = record.get("work")
    if work and work.get("macs") is not None and work["flops"] != 2 * work["macs"]:
        raise refuse(f"{work['flops']} FLOPs are not twice the {work['macs']} multiply-accumulates")


def _is_setting(value: Any) -> bool:
    return not any(isinstance(part, dict | list) for part in (value if isinstance(value, list) else [value]))


def _is_ordered(spread: Mapping[str, Any], rounds: int) -> bool:
    # The median of the rounds' medians may lie beyond a quartile of all times, if rounds are short.
    within = ("p25", "median", "p75") if rounds == 1 else ("p25", "p75")
    percentiles = [spread[name] for name in ("minimum", "p5", *within, "p95", "p99", "maximum")]
    ends = ("minimum", "maximum") if spread["low"] is None else ("low", "high")
    return percentiles == sorted(percentiles) and spread[ends[0]] <= spread["median"] <= spread[ends[1]]


#: Members kept in a copy; docs/reference/measurements.md lists all.
_KEPT_HEADER: Final = ("schema", "version", "workload", "command", "environment", "plan", "sweep", "measurements")
_KEPT_ENVIRONMENT: Final = (
    "device", "driver", "cuda", "cudnn", "versions", "python", "system", "cpu", "cpu_count", "threads",
)  # fmt: skip
_KEPT_RECORD: Final = (
    "cell", "status", "reason", "launch", "unit", "items", "latency_ns", "gpu_ns", "phases_ns", "rounds",
    "throughput_per_s", "sustained_per_s", "work", "peak_allocated_bytes", "peak_reserved_bytes", "stopped", "drift",
    "clocks", "doubts", "details", "samples",
)  # fmt: skip

#: Commands of Warplens consist of such words only. Any other may contain user input.
_OWN_COMMAND: Final = re.compile(r"(?:warplens|python3 captures/\w+\.py)(?: [\w.,+=:-]+)*")


def _copy(file: Input, copy: Path) -> Removed:
    """Writes a copy with the known members only, their texts cleaned; returns what was removed."""
    document = _document(file.path, file.known_as)
    measurements_of(document, file.known_as)  # refuses a damaged file
    removed: Counter[str] = Counter()
    header = _kept_members(document, _KEPT_HEADER, removed)
    header["environment"] = _kept_members(document["environment"], _KEPT_ENVIRONMENT, removed)
    header["measurements"] = [_kept_members(record, _KEPT_RECORD, removed) for record in document["measurements"]]
    if header.get("command") and not _OWN_COMMAND.fullmatch(header["command"]):
        header["command"] = None
        removed["command"] += 1
    from warplens.readers.scrubbing import Removed, refuse_remains
    from warplens.secrets import Cleaner, Secrets, texts_in

    secrets = Secrets()
    for text in texts_in(header):
        secrets.add_home_owners(text.encode())
    cleaner = Cleaner(secrets)
    content = orjson.dumps(_cleaned(header, cleaner))
    refuse_remains(content, secrets, file.known_as)
    copy.write_bytes(content)
    return Removed.of(cleaner, ("members", "others"), +removed, {})


def _kept_members(members: dict[str, Any], known: tuple[str, ...], removed: Counter[str]) -> dict[str, Any]:
    removed["member"] += len(members.keys() - set(known))
    return {name: members[name] for name in known if name in members}


def _cleaned(value: Any, cleaner: Cleaner) -> Any:
    if isinstance(value, str):
        return cleaner.text("text", value)
    if isinstance(value, dict):
        return {_cleaned(name, cleaner): _cleaned(part, cleaner) for name, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, cleaner) for part in value]
    return value
