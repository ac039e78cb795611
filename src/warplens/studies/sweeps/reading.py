"""Construction of a sweep from measurements: its two sides, its axes, and the points of the grid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from warplens.compare import SIDES
from warplens.compare.shift import Samples
from warplens.errors import UsageError
from warplens.profile.measurements import Measurements
from warplens.profile.schema import Float64s
from warplens.studies.sweeps.sweep import Cell, Point, Sweep

Settings: TypeAlias = Mapping[str, Any]

#: Values that mark the baseline where the user names no sides.
_BASELINE_WORDS: Final = ("baseline", "reference")
#: The only setting for which `none` marks the baseline as well: a language model's `optimizer` is `none` in inference.
_METHOD: Final = "method"

#: Choices listed in an error; more would bury the sentence before them.
_LISTED: Final = 8

#: Commas between settings, as opposed to those inside a value (`locations=3,6,9,keep=0.1`).
_BETWEEN_SETTINGS: Final = re.compile(r",(?=\s*[\w.-]+\s*=)")


def side_of(text: str) -> dict[str, str]:
    """Parses settings such as `method=topk,keep=0.1`.

    Raises:
        UsageError: the text is not of that form, or names a setting twice.
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
    """Formats settings; the inverse of `side_of`."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def typed_settings(measurements: Measurements, settings: Settings | None, side: str) -> dict[str, Any] | None:
    """Settings with their values converted to the types of the columns; None for None.

    Raises:
        UsageError: there is no such setting, no cell has the value, or `settings` is empty.
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
            choices = ", ".join(str(item) for item in column.head(_LISTED).to_list())
            raise UsageError(f"{measurements.source}: no cell has {name}={value} for the {side}; there are {choices}")
        typed[name] = matching[0]
    return typed


def same(value: Any, wanted: Any) -> bool:
    """Whether a cell's value equals the wanted one, which may be given as text."""
    if isinstance(wanted, list | tuple):
        wanted = ",".join(str(item) for item in wanted)
    if value is None or wanted is None or not isinstance(wanted, str):
        return bool(value == wanted)
    if isinstance(value, bool):
        return wanted.lower() in (("true", "yes") if value else ("false", "no"))
    if isinstance(value, int | float):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    return bool(value in (wanted, wanted.replace("+", ",")))


def deduced_baseline(measurements: Measurements, after: Settings | None) -> dict[str, Any]:
    """The setting with a value called baseline or reference, or `method=none`.

    Where the user named settings of the variant (`after`), the baseline differs in one of these.

    Raises:
        UsageError: there is no such setting, or there are several; the choices are listed.
    """
    varying = {
        name: values
        for name in measurements.settings
        if len(values := values_of(measurements.cells, name, range(measurements.cells.height))) > 1
    }
    candidates = {}
    for name, values in varying.items():
        if after is None or name in after:
            words = (*_BASELINE_WORDS, "none") if name == _METHOD else _BASELINE_WORDS
            marked = [value for value in values if value in words]
            if len(marked) == 1 and (after is None or after[name] != marked[0]):
                candidates[name] = marked[0]
    if len(candidates) == 1:
        return candidates
    differ = [
        f"{name} ({', '.join(map(str, values[:_LISTED]))}{', …' if len(values) > _LISTED else ''})"
        for name, values in varying.items()
    ]
    texts = (item for item in varying.items() if not measurements.cells.schema[item[0]].is_numeric())
    name, values = next(texts, (_METHOD, ["none", "topk"]))
    raise UsageError(
        f"{measurements.source}: which cells are the baseline, and which the variant? Settings that differ: "
        f"{'; '.join(differ) or 'none'}. Say, for instance, baseline {name}={values[0]} and variant {name}={values[1]}"
    )


def deduced_variant(measurements: Measurements, before: Settings) -> dict[str, Any]:
    """The settings that all cells other than the baseline share.

    Raises:
        UsageError: there are several kinds of other cells, or none; the choices are listed.
    """
    cells = measurements.cells
    baseline_rows = _matching(cells, before)
    other_rows = sorted(set(range(cells.height)) - set(baseline_rows))
    one_variant = all(len(values_of(cells, name, other_rows)) == 1 for name in before)
    # A setting that only the other cells vary (keep) makes several variants.
    varied_by_others = []
    for name in measurements.settings:
        own, others = values_of(cells, name, baseline_rows), values_of(cells, name, other_rows)
        if len(own) == 1 and len(others) > 1 and not set(own) & set(others):
            varied_by_others.append(name)
    if other_rows and one_variant and not varied_by_others:
        return {name: values_of(cells, name, other_rows)[0] for name in before}
    other_cells = cells[other_rows] if other_rows else cells.clear()
    kinds = other_cells.select(*dict.fromkeys([*before, *varied_by_others])).unique(maintain_order=True)
    choices = [written(row) for row in kinds.iter_rows(named=True)]
    more = f" and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
    listed = "; ".join(choices[:_LISTED]) or "none, for all cells are the baseline"
    raise UsageError(
        f"{measurements.source}: which cells are the variant of {written(before)}? There are: {listed}{more}"
    )


def rows_of(measurements: Measurements, settings: Settings, side: str) -> list[int]:
    """Rows of the cells that have a side's settings.

    Raises:
        UsageError: there are none.
    """
    rows = _matching(measurements.cells, settings)
    if not rows:
        raise UsageError(f"{measurements.source}: no cell has all of {written(settings)} for the {side}")
    return rows


def _matching(cells: pl.DataFrame, settings: Settings) -> list[int]:
    wanted = [pl.col(name).eq_missing(pl.lit(value, cells.schema[name])) for name, value in settings.items()]
    return cells.select(pl.arg_where(pl.all_horizontal(wanted))).to_series().to_list()


def values_of(cells: pl.DataFrame, name: str, rows: Sequence[int]) -> list[Any]:
    """The distinct values of a setting in these rows, in order of appearance."""
    return cells.get_column(name)[list(rows)].unique(maintain_order=True).to_list()


def sweep_of(measurements: Measurements, baseline: Settings | None = None, variant: Settings | None = None) -> Sweep:
    """The sweep in a measurements file.

    Each side consists of the cells that have the settings named for it. Of the other settings, those with the same
    value in all cells of both sides are shared; those with one value on each side belong to the sides; the rest are
    axes. A setting that only one side varies, without a value in common with the other side (a share of tokens kept,
    where the baseline keeps all), is an axis along which the other side's cells repeat.

    Args:
        measurements: of one file. Cells with equal settings are merged, each contributing blocks of durations.
        baseline: settings of the baseline; values may be texts, as `side_of` gives them. None: those that the file
            names as its baseline, else the setting with a value called baseline or reference, or `method=none`.
        variant: settings of the variant. None: those that the file names, else those of the only other cells.

    Raises:
        UsageError: a side is not given and more than one is possible (the choices are listed); no cell has its
            settings; the sides overlap; no point has both; or rows of one cell state different single figures.
    """
    cells = measurements.cells
    stated_sides = measurements.sweep or {}
    baseline = stated_sides.get("baseline") if baseline is None else baseline
    variant = stated_sides.get("variant") if variant is None else variant
    before, after = typed_settings(measurements, baseline, "baseline"), typed_settings(measurements, variant, "variant")
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
    repeating_side = {name: _repeats(*values[name]) for name in axes}
    sides = _sides_by_point(measurements, axes, repeating_side, values, (first, second))
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
    distinguishing = [name for name in measurements.settings if name in fixed and values[name][0] != values[name][1]]
    distinguishing += [name for name, side in repeating_side.items() if side is not None]
    return Sweep(
        source=measurements.source,
        workload=measurements.workload,
        axes=axes,
        baseline=_identity(before, distinguishing, {name: pair[0] for name, pair in values.items()}),
        variant=_identity(after, distinguishing, {name: pair[1] for name, pair in values.items()}),
        shared={name: values[name][0][0] for name in fixed if name not in distinguishing},
        points=points,
        environment=measurements.environment,
        paired=any(_is_paired(point) for point in points),
        read_as=tuple(measurements.plan.get("read_as") or ()),
    )


def matched(sweep: Sweep) -> Sweep:
    """The sweep without the points that only one side has; an axis left with one value becomes shared."""
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
    """The side (0 or 1) whose cells repeat along an axis since it has none of the other's values; None for neither."""
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
    """The cells of each side, by their values on the axes."""
    times = _times(measurements.samples)
    sides: list[dict[tuple[Any, ...], Cell]] = []
    for side in (0, 1):
        cells: dict[tuple[Any, ...], Cell] = {}
        for row in rows[side]:
            record = measurements.cells.row(row, named=True)
            cell = _cell(record, measurements.details[row], times.get(row, {}))
            keys: list[tuple[Any, ...]] = [()]
            for name in axes:
                along = values[name][1 - side] if repeated[name] == side else [record[name]]
                keys = [(*key, value) for key in keys for value in along]
            for key in keys:
                if key in cells and _contradict(cells[key], cell):
                    where = written(dict(zip(axes, key, strict=True))) or SIDES[side]
                    raise UsageError(
                        f"{measurements.source}: several rows without repetitions are the same cell ({where}) with "
                        "other times; keep one, or add a column for the setting that tells them apart"
                    )
                cells[key] = _joined(cells[key], cell) if key in cells else cell
        sides.append(cells)
    return sides[0], sides[1]


def wall_samples(measurements: Measurements, cell: int) -> Samples | None:
    """Wall times of one cell, a row of `measurements.cells`, with a block per round; None where it has none."""
    wanted = (pl.col("cell") == cell) & (pl.col("of") == "wall")
    times = measurements.samples.filter(wanted).get_column("time_ns").cast(pl.Float64).to_numpy()
    return _blocks(times, measurements.cells.get_column("rounds")[cell] or 1)


def _times(samples: pl.DataFrame) -> dict[int, dict[str, Float64s]]:
    """Cell → clock (`wall`, `gpu`) → times in ns, in the order of measurement."""
    times: dict[int, dict[str, Float64s]] = {}
    timed = samples.filter(pl.col("of").is_in(["wall", "gpu"]))
    for (cell, clock), part in timed.partition_by("cell", "of", as_dict=True, maintain_order=True).items():
        times.setdefault(int(cell), {})[str(clock)] = part.get_column("time_ns").cast(pl.Float64).to_numpy()
    return times


def _cell(record: Settings, details: Settings, times: Mapping[str, Any]) -> Cell:
    fields = {name: record[name] for name in ("status", "reason", "items", "unit", "macs", "flops", "launch")}
    cell = Cell(**fields, launches=details.get("launches"), details=details)
    if record["status"] != "measured":
        return cell
    gpu = _blocks(times.get("gpu"), record["rounds"] or 1)
    # Calls issued back to back have no wall time of their own: the time between CUDA events is the step time.
    wall = _blocks(times.get("wall"), record["rounds"] or 1) or gpu
    gpu_ns = gpu.median_ns if gpu is not None else record["gpu_ns"]
    time_ns = record["latency_ns"] if record["latency_ns"] is not None else record["gpu_ns"]
    if time_ns is None and record["throughput_per_s"] and record["items"]:
        time_ns = record["items"] * 1e9 / record["throughput_per_s"]
    if wall is not None:
        time_ns = wall.median_ns
    return replace(cell, wall=wall, gpu=gpu, time_ns=None if time_ns is None else float(time_ns), gpu_ns=gpu_ns)


def _blocks(times: Float64s | None, rounds: int) -> Samples | None:
    """The times cut into rounds of equal length, in order; a single block where the number does not divide."""
    if times is None or not times.size:
        return None
    blocks = rounds if rounds > 1 and times.size % rounds == 0 else 1
    return Samples.of(np.split(times, blocks), paired=blocks > 1)


def _contradict(one: Cell, other: Cell) -> bool:
    """Whether two cells with equal settings state different single figures, of which none can be chosen."""
    return one.is_timed and other.is_timed and not (one.wall or other.wall) and one.time_ns != other.time_ns


def _joined(one: Cell, other: Cell) -> Cell:
    """One cell out of two with equal settings: the measured one, or all durations of both."""
    if other.status != "measured" or one.status != "measured":
        return one if one.status == "measured" else other

    def joined(first: Samples | None, second: Samples | None) -> Samples | None:
        if first is None or second is None:
            return first or second
        return Samples((*first.blocks, *second.blocks), first.paired and second.paired)

    wall, gpu = joined(one.wall, other.wall), joined(one.gpu, other.gpu)
    time_ns = wall.median_ns if wall is not None else one.time_ns
    gpu_ns = gpu.median_ns if gpu is not None else one.gpu_ns
    return replace(one, wall=wall, gpu=gpu, time_ns=time_ns, gpu_ns=gpu_ns)


def _point(settings: Settings, baseline: Cell | None, variant: Cell | None) -> Point:
    """A point whose rounds are marked as paired only if both sides have equally many."""
    point = Point(settings, baseline, variant)
    if _is_paired(point) or baseline is None or variant is None:
        return point

    def unpaired(samples: Samples | None) -> Samples | None:
        return samples and replace(samples, paired=False)

    sides = (replace(cell, wall=unpaired(cell.wall), gpu=unpaired(cell.gpu)) for cell in (baseline, variant))
    return Point(settings, *sides)


def _is_paired(point: Point) -> bool:
    walls = point.durations
    return walls is not None and walls[0].paired and walls[1].paired and len(walls[0].blocks) == len(walls[1].blocks)


def _order(key: Iterable[Any]) -> tuple[tuple[int, float, str], ...]:
    """Sort key: None first, then numbers by size, then texts."""

    def rank(value: Any) -> tuple[int, float, str]:
        if value is None:
            return 0, 0.0, ""
        return (1, float(value), "") if isinstance(value, int | float) else (2, 0.0, str(value))

    return tuple(map(rank, key))


def _identity(named: Settings, distinguishing: Sequence[str], own: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The settings named for a side, then its other settings of one value that differ from the other side's."""
    rest = {name: own[name][0] for name in distinguishing if name not in named and len(own[name]) == 1}
    return {**named, **rest}
