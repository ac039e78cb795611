"""Settings as people type them: a text becomes a value of the type that the setting has."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["defaults_of", "setting_value"]


def setting_value(what: str, text: str, default: Any) -> Any:
    """A text as the type that the setting's default has.

    Args:
        what: what to call the setting in an error.
        text: as typed; several numbers in one setting are joined by +.
        default: of the setting; one without a default is a text.

    Raises:
        UsageError: the text is nothing of that type.
    """
    try:
        if isinstance(default, bool):
            return {"yes": True, "no": False}[text]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
        if isinstance(default, tuple):
            # The locations' default is of whole numbers, that of a schedule is empty: shares.
            kind = int if default else float
            return tuple(kind(part) for part in text.split("+"))
    except (KeyError, ValueError):
        wanted = "yes or no" if isinstance(default, bool) else "a number"
        wanted = "numbers joined by +" if isinstance(default, tuple) else wanted
        raise UsageError(f"{what} takes {wanted}, not {text!r}") from None
    return text


def defaults_of(cell: type) -> Mapping[str, Any]:
    """The settings of a workload with their defaults; a text for one that has none."""
    return {item.name: "" if item.default is MISSING else item.default for item in fields(cell)}
