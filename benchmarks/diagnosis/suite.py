"""The planted-cause suite as shipped: cases, their files, accepted verdicts, and measured times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["FORMATS", "HELD_OUT", "SHIPPED", "Case", "cases"]

SHIPPED = Path(__file__).resolve().parents[2] / "data" / "planted"
#: Programs that were written and recorded after the rules were fixed.
HELD_OUT = Path(__file__).parent / "held_out"
FORMATS = ("nsys", "torch")


@dataclass(frozen=True)
class Case:
    """One program of the suite.

    Attributes:
        entry: of the index.
        folder: with its profiles.
    """

    entry: dict[str, Any]
    folder: Path = SHIPPED

    @property
    def name(self) -> str:
        """Name of the program."""
        return str(self.entry["name"])

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is planted."""
        return bool(self.entry.get("healthy", False))

    def is_control(self, source: str) -> bool:
        """Whether nothing is planted, and this profiler's profile shows a healthy program as well."""
        return self.is_healthy and source in self.entry["measured"]["healthy_in"]

    @property
    def second(self) -> str:
        """The second cause of a mixture."""
        return str(self.entry.get("second", ""))

    @cached_property
    def verdicts(self) -> tuple[str, ...]:
        """The findings that are correct as the first one, the planted one first."""
        return tuple(next((findings for findings in self.entry["verdict"].values() if findings), ()))

    @property
    def is_scored(self) -> bool:
        """Whether a cause is planted that is not negligible by measured times."""
        return self.is_mixed or (bool(self.verdicts) and self.entry["measured"].get("dominates", True) is not False)

    @property
    def is_mixed(self) -> bool:
        """Whether the planted cause is real, but another accepted one costs more."""
        return self.entry["measured"].get("dominates") is False and len(self.verdicts) > 1

    def path(self, source: str, variant: str = "baseline") -> Path | None:
        """The profile of a variant by this profiler; None where there is none."""
        name = self.entry["variants"].get(variant, {}).get("files", {}).get(source)
        return self.folder / name if name else None

    def step_ns(self, variant: str = "baseline") -> float | None:
        """Mean time of a step without a profiler, by the host's clock."""
        return self.entry["variants"].get(variant, {}).get("unprofiled_ns", {}).get("wall_mean_ns")

    def profiled_step_ns(self, source: str, variant: str = "baseline") -> float | None:
        """Mean time of a step under a profiler, by the host's clock."""
        return self.entry["variants"].get(variant, {}).get("profiled_mean_ns", {}).get(source)


def cases(folder: Path = SHIPPED) -> list[Case]:
    """All cases in the index of a folder."""
    index = json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))
    return [Case(entry, folder) for entry in index["cases"]]
