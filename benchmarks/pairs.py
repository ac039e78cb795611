"""The suite of pairs as it is stored in `data/pairs`: programs, what each `after` mends, profiles, and measured times.

for pair in pairs("development"):
    pair.name, pair.habit, pair.ratio, pair.path("nsys"), pair.path("torch")
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "HALVES", "SOURCES", "Estimate", "Pair", "pairs"]

FOLDER = Path(__file__).resolve().parents[1] / "data" / "pairs"
#: `third` was recorded after the rules had been mended with `held_out` in view, each later one after its predecessor.
HALVES = (
    "development",
    "held_out",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
    "twenty_first",
)
SOURCES = ("nsys", "torch")


@dataclass(frozen=True)
class Estimate:
    """A median, and the interval that holds it with 95 %."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """One program: with a habit and with the habit mended, or a healthy one.

    Attributes:
        entry: what the index says of it.
        folder: where its profiles lie.
    """

    entry: dict[str, Any]
    folder: Path = FOLDER

    @property
    def name(self) -> str:
        """Meaning called."""
        return str(self.entry["name"])

    @property
    def half(self) -> str:
        """One of `HALVES`."""
        return str(self.entry["half"])

    @property
    def habit(self) -> str:
        """The finding that names the habit; "" for a healthy program."""
        return str(self.entry["habit"])

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is to be mended."""
        return not self.habit

    @property
    def is_scored(self) -> bool:
        """Whether the habit costs enough to be named first."""
        return bool(self.entry.get("scored", False))

    @property
    def accepted(self) -> tuple[str, ...]:
        """The findings that are right to name first, the habit first."""
        return tuple(found for found in (self.habit, *self.entry.get("accept", ())) if found)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Begins of the actions that say what `after` does; none where no remedy says it."""
        return tuple(self.entry.get("remedy", ()))

    @property
    def times(self) -> int | None:
        """How many times as much `after` does at a time, where that is its remedy."""
        return self.entry.get("times")

    @property
    def ratio(self) -> Estimate | None:
        """How many times faster the same work is done with the habit mended; None for a healthy program."""
        return Estimate(*self.entry["ratio"]) if "ratio" in self.entry else None

    def path(self, source: str, variant: str = "before") -> Path | None:
        """The profile that this profiler made of a variant; None where there is none."""
        found = self.entry["files"].get(f"{source}_{variant}")
        return self.folder / found["path"] if found else None


def pairs(half: str | None = None, folder: Path = FOLDER) -> list[Pair]:
    """All programs of a half, or of all; none where the repository was taken without its data."""
    path = folder / "INDEX.json"
    if not path.exists():
        return []
    index = json.loads(path.read_text(encoding="utf-8"))
    return [Pair(entry, folder) for entry in index["pairs"] if half in (None, entry["half"])]
