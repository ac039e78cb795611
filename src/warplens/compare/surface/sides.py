"""The two sides of a sweep: settings as people write them, and the cells that have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.profile.measurements import Measurements

__all__ = [
    "Settings",
    "asked",
    "deduced_baseline",
    "deduced_variant",
    "rows_of",
    "same",
    "side_of",
    "values_of",
    "written",
]

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


def asked(measurements: Measurements, settings: Settings | None, side: str) -> dict[str, Any] | None:
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
    cells = measurements.cells
    candidates = {}
    for name in measurements.settings:
        column = cells.get_column(name)
        if column.dtype == pl.String and column.n_unique() > 1 and (after is None or name in after):
            words = (*_BASELINE_WORDS, "none") if name == _METHOD else _BASELINE_WORDS
            named = [item for item in column.unique().to_list() if item in words]
            if len(named) == 1 and (after is None or after[name] != named[0]):
                candidates[name] = named[0]
    if len(candidates) != 1:
        raise UsageError(
            f"{measurements.source}: which cells are the baseline, and which the variant? "
            f"Settings that differ: {_choices(measurements)}. Say, for instance, baseline {_example(measurements)}"
        )
    return candidates


def deduced_variant(measurements: Measurements, before: Settings) -> dict[str, Any]:
    """What all cells that are not the baseline have in common.

    Raises:
        UsageError: they are of several kinds, or there are none; the choices are listed.
    """
    cells = measurements.cells
    matching = set(_matching(cells, before))
    rest = [row for row in range(cells.height) if row not in matching]
    deciding = [name for name in before if len(values_of(cells, name, rest)) == 1]
    # A setting that the baseline cells do not vary, but the others do (keep), makes more than one variant.
    alone = [
        name
        for name in measurements.settings
        if len(values_of(cells, name, sorted(matching))) == 1
        and len(values_of(cells, name, rest)) > 1
        and not set(values_of(cells, name, rest)) & set(values_of(cells, name, sorted(matching)))
    ]
    if not rest or len(deciding) != len(before) or alone:
        varying = [*before, *(name for name in alone if name not in before)]
        found = cells[rest].select(varying).unique(maintain_order=True).iter_rows(named=True) if rest else ()
        choices = [written(row) for row in found]
        more = f" and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
        listed = "; ".join(choices[:_LISTED]) or "none, for all cells are the baseline"
        raise UsageError(
            f"{measurements.source}: which cells are the variant of {written(before)}? There are: {listed}{more}"
        )
    return {name: values_of(cells, name, rest)[0] for name in before}


def _choices(measurements: Measurements) -> str:
    parts = []
    for name in measurements.settings:
        values = measurements.cells.get_column(name).unique(maintain_order=True).to_list()
        if len(values) > 1:
            shown = ", ".join(str(value) for value in values[:_LISTED]) + (", …" if len(values) > _LISTED else "")
            parts.append(f"{name} ({shown})")
    return "; ".join(parts) or "none"


def _example(measurements: Measurements) -> str:
    for name in measurements.settings:
        column = measurements.cells.get_column(name)
        values = column.unique(maintain_order=True).to_list()
        if len(values) > 1 and not column.dtype.is_numeric():
            return f"{name}={values[0]} and variant {name}={values[1]}"
    return "method=none and variant method=topk"


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
