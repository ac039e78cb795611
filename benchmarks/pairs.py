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
    "twenty_second",
    "twenty_third",
    "twenty_fourth",
    "twenty_fifth",
    "twenty_sixth",
    "twenty_seventh",
    "twenty_eighth",
    "twenty_ninth",
    "thirtieth",
    "thirty_first",
    "thirty_second",
    "thirty_third",
    "thirty_fourth",
    "thirty_fifth",
    "thirty_sixth",
    "thirty_seventh",
    "thirty_eighth",
    "thirty_ninth",
)
SOURCES = ("nsys", "torch")


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """One program: with a habit and with the habit mended, or a healthy one.

    Attributes:
        entry: of the index.
        folder: with its profiles.
    """

    entry: dict[str, Any]
    folder: Path = FOLDER

    @property
    def name(self) -> str:
        """Name of the program."""
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
        """Whether it is a healthy program, without a habit."""
        return not self.habit

    @property
    def is_scored(self) -> bool:
        """Whether the habit costs enough that a diagnosis should name it first."""
        return bool(self.entry.get("scored", False))

    @property
    def accepted(self) -> tuple[str, ...]:
        """The findings that are correct as the first one, the habit first."""
        return tuple(finding for finding in (self.habit, *self.entry.get("accept", ())) if finding)

    @property
    def remedies(self) -> tuple[str, ...]:
        """First words of the remedies' actions that describe the change in `after`; empty where no remedy does."""
        return tuple(self.entry.get("remedy", ()))

    @property
    def times(self) -> int | None:
        """Factor by which `after` enlarges the batch, where that is its remedy."""
        return self.entry.get("times")

    @property
    def ratio(self) -> Estimate | None:
        """Speedup of the same work with the habit mended; None for a healthy program."""
        return Estimate(*self.entry["ratio"]) if "ratio" in self.entry else None

    @property
    def before_ns(self) -> float:
        """Time of a step before the change, without a profiler."""
        return float(self.entry["before_ms"][0]) * 1e6

    @property
    def repeated(self) -> Estimate | None:
        """The same ratio, timed again in another session with nothing else on the machine; None where it was not."""
        return Estimate(*self.entry["again"]["ratio"]) if "again" in self.entry else None

    def path(self, source: str, variant: str = "before") -> Path | None:
        """The profile of a variant by this profiler; None where there is none."""
        file = self.entry["files"].get(f"{source}_{variant}")
        return self.folder / file["path"] if file else None


def pairs(half: str | None = None, folder: Path = FOLDER) -> list[Pair]:
    """The programs of one half or of all; empty in a repository without its data."""
    path = folder / "INDEX.json"
    if not path.exists():
        return []
    index = json.loads(path.read_text(encoding="utf-8"))
    return [Pair(entry, folder) for entry in index["pairs"] if half in (None, entry["half"])]
