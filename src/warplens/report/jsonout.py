"""JSON output: one object per command, exact numbers, fast enough for every row of a large profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import orjson
import polars as pl

from warplens._version import __version__
from warplens.analysis.window import Window
from warplens.profile import Note


def envelope(command: str, source: Any, data: Any, warnings: Sequence[Note | str] = ()) -> bytes:
    """The object that every command prints with `--format json`, as UTF-8.

    Args:
        command: names the schema: `warplens.<command>/1`.
        source: file names without folders.
        data: the answer. Frames become lists of rows, dataclasses objects, enums their values, NaN and infinity null.
        warnings: limits of the numbers, as texts or notes.
    """
    return dumps(
        {
            "schema": f"warplens.{command}/1",
            "version": __version__,
            "source": source,
            "data": data,
            "warnings": list(warnings),
        }
    )


def dumps(value: Any) -> bytes:
    """Any value of the library as JSON; frames, dataclasses and enums are converted as described at `envelope`."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
    return orjson.dumps(value, default=_plain, option=options)


def named(item: object, names: str) -> dict[str, Any]:
    """Attributes of a result by name; `names` are separated by spaces."""
    return {name: getattr(item, name) for name in names.split()}


def window_data(window: Window) -> dict[str, Any]:
    """The analysed window, as in `data` of every command."""
    return {
        **named(window, "start_ns end_ns duration_ns kind how"),
        "steps": list(window.steps),
        "range": window.range_name,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, pl.DataFrame):
        # Polars writes the rows without making Python objects; the text is inserted as it is.
        return orjson.Fragment(value.write_json())
    if is_dataclass(value) and not isinstance(value, type):
        # Not `asdict`, which would deep-copy the frames inside.
        return {item.name: getattr(value, item.name) for item in fields(value)}
    for kind, plain in _PLAIN_FORMS:
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


#: Types without a JSON form, and their replacement. Paths lose their folders, which contain user names.
_PLAIN_FORMS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (pl.Series, pl.Series.to_list),
    (Enum, lambda item: item.value),
    (frozenset, sorted),
    (set, sorted),
    (PurePath, lambda item: item.name),
    (np.generic, lambda item: item.item()),
)
