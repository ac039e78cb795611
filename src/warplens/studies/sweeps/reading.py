"""Measurements as a sweep: two sides, axes, and the points of the grid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from warplens.compare.shift import Samples
from warplens.errors import UsageError
from warplens.profile.measurements import Measurements
from warplens.profile.schema import Float64s
from warplens.studies.sweeps.sweep import Cell, Point, Sweep

Settings: TypeAlias = Mapping[str, Any]

#: A value so named is the side that others are held against: the only one that can be told without being asked.
_BASELINE_WORDS: Final = ("baseline", "reference")
#: The setting of which `none` says so, too. Of others it does not: a language model's `optimizer` is none in inference.
_METHOD: Final = "method"

#: Choices listed in an error; more would bury the sentence before them.
_LISTED: Final = 8

#: Commas between settings, not those inside a value (`locations=3,6,9,keep=0.1`).
_BETWEEN_SETTINGS: Final = re.compile(r",(?=\s*[\w.-]+\s*=)")


def side_of(text: str) -> dict[str, str]:
    """The settings in a text such as `method=topk,keep=0.1`.

    Raises:
        UsageError: it is not of that form, or names a setting twice.
    """
    settings: dict[str, str] = {}
    for part in _BETWEEN_SETTINGS.split(text):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name or name in settings:
            wrong = f"names {name!r} twice" if name in settings else "has no '=' between a setting and its value"
            raise UsageError(f"{text!r} {wrong}; a side is written as method=topk,keep=0.1")
        settings[name] = value.strip()
    return settings


def written(settings: Settings) -> str:
    """Settings as `side_of` reads them."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def typed_settings(measurements: Measurements, settings: Settings | None, side: str) -> dict[str, Any] | None:
    """Settings with values of their columns' types; None if no settings were named.

    Raises:
        UsageError: there is no such setting, no cell has the value, or no setting is named.
    """
    if settings is None:
        return None
    if not settings:
        raise UsageError(f"the {side} needs at least one setting, such as method=topk")
    typed = {}
    for name, value in settings.items():
        if name not in measurements.settings:
            known = ", ".join(measurements.settings)
            raise UsageError(f"{measurements.source}: there is no setting {name!r}; the cells have {known}")
        column = measurements.cells.get_column(name).unique(maintain_order=True)
        matching = [item for item in column.to_list() if same(item, value)]
        if not matching:
            found = ", ".join(str(item) for item in column.head(_LISTED).to_list())
            raise UsageError(f"{measurements.source}: no cell has {name}={value} for the {side}; there are {found}")
        typed[name] = matching[0]
    return typed


def same(found: Any, asked: Any) -> bool:
    """Whether a cell's value is the one asked for, which may be written as a text."""
    if isinstance(asked, list | tuple):
        asked = ",".join(str(item) for item in asked)
    if found is None or asked is None or not isinstance(asked, str):
        return bool(found == asked)
    if isinstance(found, bool):
        return asked.lower() in (("true", "yes") if found else ("false", "no"))
    if isinstance(found, int | float):
        try:
            return float(asked) == found
        except ValueError:
            return False
    return bool(found in (asked, asked.replace("+", ",")))


def deduced_baseline(measurements: Measurements, after: Settings | None) -> dict[str, Any]:
    """The one setting that calls a value baseline or reference, or `method=none`.

    Raises:
        UsageError: there is no such setting, or there are several; the choices are listed.
    """
    values = {
        name: found
        for name in measurements.settings
        if len(found := values_of(measurements.cells, name, range(measurements.cells.height))) > 1
    }
    candidates = {}
    for name, found in values.items():
        if after is None or name in after:
            words = (*_BASELINE_WORDS, "none") if name == _METHOD else _BASELINE_WORDS
            named = [item for item in found if item in words]
            if len(named) == 1 and (after is None or after[name] != named[0]):
                candidates[name] = named[0]
    if len(candidates) == 1:
        return candidates
    differ = [
        f"{name} ({', '.join(map(str, found[:_LISTED]))}{', …' if len(found) > _LISTED else ''})"
        for name, found in values.items()
    ]
    texts = (item for item in values.items() if not measurements.cells.schema[item[0]].is_numeric())
    name, found = next(texts, (_METHOD, ["none", "topk"]))
    raise UsageError(
        f"{measurements.source}: which cells are the baseline, and which the variant? Settings that differ: "
        f"{'; '.join(differ) or 'none'}. Say, for instance, baseline {name}={found[0]} and variant {name}={found[1]}"
    )


def deduced_variant(measurements: Measurements, before: Settings) -> dict[str, Any]:
    """What all cells that are not the baseline have in common.

    Raises:
        UsageError: they are of several kinds, or there are none; the choices are listed.
    """
    cells = measurements.cells
    matching = _matching(cells, before)
    rest = sorted(set(range(cells.height)) - set(matching))
    deciding = all(len(values_of(cells, name, rest)) == 1 for name in before)
    # A setting that the baseline cells do not vary, but the others do (keep), makes more than one variant.
    alone = []
    for name in measurements.settings:
        own, others = values_of(cells, name, matching), values_of(cells, name, rest)
        if len(own) == 1 and len(others) > 1 and not set(own) & set(others):
            alone.append(name)
    if rest and deciding and not alone:
        return {name: values_of(cells, name, rest)[0] for name in before}
    kinds = (
        (cells[rest] if rest else cells.clear()).select(*dict.fromkeys([*before, *alone])).unique(maintain_order=True)
    )
    choices = [written(row) for row in kinds.iter_rows(named=True)]
    more = f" and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
    listed = "; ".join(choices[:_LISTED]) or "none, for all cells are the baseline"
    raise UsageError(
        f"{measurements.source}: which cells are the variant of {written(before)}? There are: {listed}{more}"
    )


def rows_of(measurements: Measurements, settings: Settings, side: str) -> list[int]:
    """Rows of the cells of a side.

    Raises:
        UsageError: there are none.
    """
    rows = _matching(measurements.cells, settings)
    if not rows:
        raise UsageError(f"{measurements.source}: no cell has all of {written(settings)} for the {side}")
    return rows


def _matching(cells: pl.DataFrame, settings: Settings) -> list[int]:
    """Rows of the cells that have all of these settings."""
    wanted = pl.all_horizontal(
        *(pl.col(name).eq_missing(pl.lit(value, cells.schema[name])) for name, value in settings.items())
    )
    return cells.select(pl.arg_where(wanted)).to_series().to_list()


def values_of(cells: pl.DataFrame, name: str, rows: Sequence[int]) -> list[Any]:
    """The values that a setting has in these rows, in their order."""
    return cells.get_column(name)[list(rows)].unique(maintain_order=True).to_list()


def sweep_of(measurements: Measurements, baseline: Settings | None = None, variant: Settings | None = None) -> Sweep:
    """The sweep that measurements hold.

    Each side is the cells that have the settings named for it. Of the other settings, those that are the same in all
    cells of both sides are shared; those that have one value on each side belong to the sides as well; the rest are
    axes. A setting that only one side varies and that the other does not have in common with it (a share of tokens
    kept, where the baseline keeps all) is an axis, too, along which the other side repeats.

    Args:
        measurements: of one file. Equal cells become one, with the durations of all as further blocks.
        baseline: settings of the baseline; values may be texts, as `side_of` gives them. None: those that the file
            names as its baseline, else those of the one setting with a value called baseline or reference, or those
            of `method=none`.
        variant: settings of the variant. None: those that the file names, else of the only other cells there are.

    Raises:
        UsageError: a side is not given and more than one is possible (the choices are listed); no cell has its
            settings; the sides overlap; or no point has both.
    """
    cells = measurements.cells
    stored = measurements.sweep or {}
    before = typed_settings(measurements, baseline if baseline is not None else stored.get("baseline"), "baseline")
    after = typed_settings(measurements, variant if variant is not None else stored.get("variant"), "variant")
    if before is None:
        before = deduced_baseline(measurements, after)
    if after is None:
        after = deduced_variant(measurements, before)
    first, second = rows_of(measurements, before, "baseline"), rows_of(measurements, after, "variant")
    if both := sorted(set(first) & set(second)):
        raise UsageError(
            f"{measurements.source}: {len(both)} cells are of both sides, {written(before)} and {written(after)}; "
            "name settings that exclude each other"
        )
    values = {name: (values_of(cells, name, first), values_of(cells, name, second)) for name in measurements.settings}
    axes = tuple(name for name in measurements.settings if max(map(len, values[name])) > 1)
    repeated = {name: _repeats(*values[name]) for name in axes}
    sides = _sides_by_point(measurements, axes, repeated, values, (first, second))
    points = tuple(
        _point(dict(zip(axes, key, strict=True)), sides[0].get(key), sides[1].get(key))
        for key in sorted({*sides[0], *sides[1]}, key=_order)
    )
    if not any(point.baseline and point.variant for point in points):
        raise UsageError(
            f"{measurements.source}: no point of the grid has both {written(before)} and {written(after)}; "
            f"they have no combination of {', '.join(axes)} in common"
        )
    fixed = [name for name in measurements.settings if len(values[name][0]) == 1 and len(values[name][1]) == 1]
    told_apart = [name for name in measurements.settings if name in fixed and values[name][0] != values[name][1]]
    told_apart += [name for name, side in repeated.items() if side is not None]
    return Sweep(
        source=measurements.source,
        workload=measurements.workload,
        axes=axes,
        baseline=_identity(before, told_apart, [pair[0] for pair in values.values()], measurements.settings),
        variant=_identity(after, told_apart, [pair[1] for pair in values.values()], measurements.settings),
        shared={name: values[name][0][0] for name in fixed if name not in told_apart},
        points=points,
        environment=measurements.environment,
        paired=any(_is_paired(point) for point in points),
        read_as=tuple(measurements.plan.get("read_as") or ()),
    )


def matched(sweep: Sweep) -> Sweep:
    """The sweep without the points that only one side has; an axis with one value left is shared."""
    points = [point for point in sweep.points if point.baseline is not None and point.variant is not None]
    axes = tuple(axis for axis in sweep.axes if len({point.settings[axis] for point in points}) > 1)
    single = {axis: points[0].settings[axis] for axis in sweep.axes if axis not in axes} if points else {}
    return replace(
        sweep,
        axes=axes,
        shared={**single, **sweep.shared},
        points=tuple(replace(point, settings={axis: point.settings[axis] for axis in axes}) for point in points),
    )


def _repeats(first: Sequence[Any], second: Sequence[Any]) -> int | None:
    """The side (0 or 1) that repeats along an axis because it knows none of the other's values; None for neither."""
    if set(first) & set(second):
        return None
    return 0 if len(first) == 1 else 1 if len(second) == 1 else None


def _sides_by_point(
    measurements: Measurements,
    axes: Sequence[str],
    repeated: Mapping[str, int | None],
    values: Mapping[str, tuple[list[Any], list[Any]]],
    rows: tuple[Sequence[int], Sequence[int]],
) -> tuple[dict[tuple[Any, ...], Cell], dict[tuple[Any, ...], Cell]]:
    """The cells of each side by the values of the axes."""
    times = _times(measurements.samples)
    sides: list[dict[tuple[Any, ...], Cell]] = []
    for side in (0, 1):
        found: dict[tuple[Any, ...], Cell] = {}
        for row in rows[side]:
            record = measurements.cells.row(row, named=True)
            cell = _cell(record, measurements.details[row], times.get(row, {}))
            keys: list[tuple[Any, ...]] = [()]
            for name in axes:
                along = values[name][1 - side] if repeated[name] == side else [record[name]]
                keys = [(*key, value) for key in keys for value in along]
            for key in keys:
                found[key] = _joined(found[key], cell) if key in found else cell
        sides.append(found)
    return sides[0], sides[1]


def wall_samples(measurements: Measurements, cell: int) -> Samples | None:
    """Wall times of one cell in its rounds; None where it has none.

    Args:
        cell: its row in `measurements.cells`.
    """
    wanted = (pl.col("cell") == cell) & (pl.col("of") == "wall")
    times = measurements.samples.filter(wanted).get_column("time_ns").cast(pl.Float64).to_numpy()
    return _blocks(times, measurements.cells.get_column("rounds")[cell] or 1)


def _times(samples: pl.DataFrame) -> dict[int, dict[str, Float64s]]:
    """Cell → clock → its times in the order in which they were taken."""
    found: dict[int, dict[str, Float64s]] = {}
    timed = samples.filter(pl.col("of").is_in(["wall", "gpu"]))
    for (cell, of), part in timed.partition_by("cell", "of", as_dict=True, maintain_order=True).items():
        found.setdefault(int(cell), {})[str(of)] = part.get_column("time_ns").cast(pl.Float64).to_numpy()
    return found


def _cell(record: Settings, details: Settings, times: Mapping[str, Any]) -> Cell:
    facts = {name: record[name] for name in ("status", "reason", "items", "unit", "macs", "flops", "launch")}
    cell = Cell(**facts, launches=details.get("launches"), details=details)
    if record["status"] != "measured":
        return cell
    gpu = _blocks(times.get("gpu"), record["rounds"] or 1)
    # Calls that were issued back to back have no wall time each; the time between events is that of a step.
    wall = _blocks(times.get("wall"), record["rounds"] or 1) or gpu
    gpu_ns = gpu.median_ns if gpu is not None else record["gpu_ns"]
    stated = record["latency_ns"] if record["latency_ns"] is not None else record["gpu_ns"]
    if stated is None and record["throughput_per_s"] and record["items"]:
        stated = record["items"] * 1e9 / record["throughput_per_s"]
    spent = wall.median_ns if wall is not None else None if stated is None else float(stated)
    return replace(cell, wall=wall, gpu=gpu, time_ns=spent, gpu_ns=gpu_ns)


def _blocks(times: Float64s | None, rounds: int) -> Samples | None:
    """Rounds are equal parts of the times, in order; times that do not divide are one block."""
    if times is None or not times.size:
        return None
    whole = rounds if rounds > 1 and times.size % rounds == 0 else 1
    return Samples.of(np.split(times, whole), paired=whole > 1)


def _joined(one: Cell, other: Cell) -> Cell:
    """A cell that the file holds twice: what was measured, with all durations."""
    if other.status != "measured" or one.status != "measured":
        return one if one.status == "measured" else other

    def more(first: Samples | None, second: Samples | None) -> Samples | None:
        if first is None or second is None:
            return first or second
        return Samples((*first.blocks, *second.blocks), first.paired and second.paired)

    wall, gpu = more(one.wall, other.wall), more(one.gpu, other.gpu)
    time_ns = wall.median_ns if wall is not None else one.time_ns
    gpu_ns = gpu.median_ns if gpu is not None else one.gpu_ns
    return replace(one, wall=wall, gpu=gpu, time_ns=time_ns, gpu_ns=gpu_ns)


def _point(settings: Settings, baseline: Cell | None, variant: Cell | None) -> Point:
    """A point whose rounds are paired only if both sides have equally many."""
    point = Point(settings, baseline, variant)
    if _is_paired(point) or baseline is None or variant is None:
        return point

    def apart(samples: Samples | None) -> Samples | None:
        return Samples(samples.blocks) if samples is not None else None

    sides = (replace(cell, wall=apart(cell.wall), gpu=apart(cell.gpu)) for cell in (baseline, variant))
    return Point(settings, *sides)


def _is_paired(point: Point) -> bool:
    """Whether rounds of the two sides can be held against each other one by one."""
    walls = point.durations
    return walls is not None and walls[0].paired and walls[1].paired and len(walls[0].blocks) == len(walls[1].blocks)


def _order(key: Iterable[Any]) -> tuple[tuple[int, float, str], ...]:
    """Numbers by size, then texts; None first."""
    return tuple(
        (0, 0.0, "")
        if value is None
        else (1, float(value), "")
        if isinstance(value, int | float)
        else (2, 0.0, str(value))
        for value in key
    )


def _identity(
    asked: Settings, told_apart: Sequence[str], values: Sequence[Sequence[Any]], names: Sequence[str]
) -> dict[str, Any]:
    """What was asked for first, then the other settings that have one value on this side and another on that."""
    own = dict(zip(names, values, strict=True))
    rest = {name: own[name][0] for name in told_apart if name not in asked and len(own[name]) == 1}
    return {**asked, **rest}
