"""Shared columns and sentences of the study pages: axes, counts of verdicts, names of the sides, a sweep's answer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from warplens.profile.schema import Column, Table
from warplens.report import text as fmt
from warplens.report.comparison.words import confidence_text
from warplens.report.document import pick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import polars as pl

    from warplens.studies.sweeps.numbers import SweepNumbers
    from warplens.studies.sweeps.payoff import PaysOff
    from warplens.studies.sweeps.sweep import ComparedPoint


def axis_columns(rows: pl.DataFrame, axes: Iterable[str]) -> tuple[Column, ...]:
    """A column, numeric or text, for each axis that the rows have."""
    return tuple(
        Column(
            axis,
            rows.schema[axis],
            title=axis.replace("_", " ").capitalize(),
            kind="number" if rows.schema[axis].is_numeric() else "text",
        )
        for axis in axes
        if axis in rows.columns
    )


def columns_of(
    table: Table, rows: pl.DataFrame, axes: Iterable[str], *parts: str | Column, **titles: str
) -> tuple[Column, ...]:
    """The axes that the rows have, then columns of a table (`warplens.report.document.pick`)."""
    return (*axis_columns(rows, axes), *pick(table, *parts, **titles))


def verdict_counts(verdicts: Iterable[str | None], same: str = "same") -> str:
    """The count of each verdict: `faster at 3, slower at 12`; empty without verdicts."""
    counts = Counter(verdicts)
    words = {"faster": "faster", "slower": "slower", "same": same, "undecided": "undecided"}
    return ", ".join(f"{word} at {fmt.count(counts[verdict])}" for verdict, word in words.items() if counts[verdict])


#: An interval with a larger ratio of its ends comes from rounds so correlated that they are worth two or three
#: independent ones, where Student's t reaches hundreds of standard errors. It would be mistaken for information.
_WIDEST: Final = 10.0

#: Key of the environment → its label.
_MACHINE: Final = (("driver", "driver"), ("cuda", "CUDA"))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in one line: `input size 224, batch 1`."""
    return fmt.printable(", ".join(f"{_plain(name)} {_value(value)}" for name, value in settings.items())) or "all"


def _plain(name: str) -> str:
    return fmt.printable(name.replace("_", " "))


def _value(value: Any) -> str:
    if value is None or value == "":
        return fmt.MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def side_text(numbers: SweepNumbers, side: str) -> str:
    """The first two settings that distinguish a side; further ones usually follow from these."""
    settings: Mapping[str, Any] = getattr(numbers.sweep, side)
    return settings_text(dict(list(settings.items())[:2]))


def speedup_text(speedup: float) -> str:
    """A speedup with as many digits as papers print: `0.830×`, `2.956×`, `15.8×`."""
    return f"{speedup:.3f}×" if 0.1 <= speedup < 10 else f"{fmt.number(speedup)}×"


def interval_text(low: float | None, high: float | None) -> str:
    """`0.82 to 0.85`; a dash without an interval, and words where it is too wide to be informative."""
    if low is None or high is None or not 0 < low <= high < float("inf"):
        return fmt.MISSING
    if high / low > _WIDEST:
        return "too few independent turns"
    return f"{fmt.number(low)} to {fmt.number(high)}"


def answer(numbers: SweepNumbers) -> str:
    """The answer in two or three sentences: where the variant is faster, by how much, which axes are confounded."""
    timed = [item for item in numbers.points if item.point.speedup is not None]
    if not timed:
        return "At no point of the grid were both sides measured."
    name = fmt.capitalised(side_text(numbers, "variant"))
    ranked = sorted(timed, key=_speedup)
    worst, best = ranked[0], ranked[-1]
    count = fmt.plural(len(timed), "point")
    verdicts = (item.comparison.verdict for item in timed if item.comparison is not None)
    if verdicts_text := verdict_counts(verdicts, same="as fast"):
        first = f"{name}, against {side_text(numbers, 'baseline')}: {verdicts_text} of {count}."
    else:
        faster = f"the higher rate at {fmt.count(sum(_speedup(item) > 1 for item in timed))} of {count}"
        first = f"{name}, against {side_text(numbers, 'baseline')}: {faster}, of which none was repeated."
    if worst is best:
        second = f"{speedup_text(_speedup(best))} as fast."
    else:
        second = (
            f"From {speedup_text(_speedup(worst))} ({settings_text(worst.point.settings)}) to "
            f"{speedup_text(_speedup(best))} as fast ({settings_text(best.point.settings)})."
        )
    if axes := [_plain(axis) for axis in numbers.confounding.confounded_axes]:
        second += f" {fmt.capitalised(fmt.listed(axes))} changed together, so their effects cannot be separated."
    return f"{first} {second}"


def _speedup(item: ComparedPoint) -> float:
    if item.comparison is not None:
        return 1 / item.comparison.ratio.estimate
    return item.point.speedup or 0.0


def facts(numbers: SweepNumbers) -> Iterator[str]:
    """The lines above the tables: source, sides, shared settings, machine, intervals."""
    sweep = numbers.sweep
    yield f"{sweep.source} · {sweep.workload}"
    if sweep.read_as:
        yield fmt.printable(f"titles of the table: {'; '.join(sweep.read_as)}")
    yield f"baseline: {settings_text(sweep.baseline)} · variant: {settings_text(sweep.variant)}"
    shared = {name: value for name, value in sweep.shared.items() if value not in ("", None)}
    if shared:
        yield f"everywhere: {settings_text(shared)}"
    yield f"machine: {machine_line(sweep.environment)}"
    if any(item.comparison for item in numbers.points):
        how = "measured in turns" if sweep.paired else "not measured in turns"
        yield (
            f"sides {how}; intervals of {confidence_text(numbers.level)} % for all points together; differences within "
            f"{fmt.share(numbers.margin)} count as none"
        )


def machine_line(environment: Mapping[str, Any]) -> str:
    """GPU, versions and driver, as far as the file states them."""
    device, versions = environment.get("device") or {}, environment.get("versions") or {}
    parts = [str(device["name"])] if device.get("name") else []
    parts += [f"{name} {versions[name]}" for name in ("torch", "triton") if versions.get(name)]
    parts += [f"{words} {environment[key]}" for key, words in _MACHINE if environment.get(key)]
    parts += [str(environment["cpu"])] if environment.get("cpu") else []
    return fmt.printable(" · ".join(parts)) or "not stated"


def crossing_text(line: PaysOff) -> str:
    """The crossover answer along one line of the grid, in a sentence."""
    axis = _plain(line.axis)
    where = f"{settings_text(line.others)}: " if line.others else ""
    low, high = (fmt.number(value) for value in line.span)
    if line.answer == "always":
        return f"{where}the variant is faster at all measured values ({axis} {low} to {high})"
    if line.answer == "none-in-range":
        return f"{where}no crossover in range: not faster at any measured value ({axis} {low} to {high})"
    if line.answer == "undecided":
        return f"{where}undecided" + (f": {line.reason}" if line.reason else "")
    parts = []
    for crossing in line.crossings:
        ends = [fmt.number(end) if end is not None else "outside" for end in (crossing.low, crossing.high)]
        way = "from" if crossing.pays == "above" else "up to"
        beyond = ", extrapolated" if crossing.extrapolated else "" if crossing.decided else ", a candidate"
        parts.append(f"pays {way} {axis} {fmt.number(crossing.at)} ({ends[0]} to {ends[1]}{beyond})")
    return f"{where}{'; '.join(parts)}"
