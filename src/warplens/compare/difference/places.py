"""Where in the program GPU work was launched: the names of the annotated ranges around it, below the step's own.

The two sides' ranges are matched by these names. What stands outside of a step (an epoch, a profiler's numbered step)
and the step's own range tell nothing about a place in the program, and are left out; so are a framework's operators,
which only one of the two tools may have recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.attribution import NO_RANGE, is_operator
from warplens.analysis.forest import nearest
from warplens.analysis.namepaths import name_paths
from warplens.analysis.phasenames import generic_name, is_step_name
from warplens.analysis.ranges import plain_range_name
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["SEPARATOR", "Path", "RangePaths", "range_paths"]

Int64s = npt.NDArray[np.int64]
Path: TypeAlias = tuple[str, ...]

#: Stands between the names of a path as text.
SEPARATOR: Final = " / "


@dataclass(frozen=True, eq=False)
class RangePaths:
    """The places of one profile.

    Attributes:
        paths: the distinct paths; the first is the empty one, of work outside of all ranges but the step's.
        number: for each row of `Trace.ranges` the position of its path; the last entry answers for "no range".
    """

    paths: tuple[Path, ...]
    number: Int64s

    @property
    def merged(self) -> tuple[Path, ...]:
        """For each path the one with its numbers replaced by `N`, so that the layers of a model are one place."""
        return tuple(tuple(generic_name(name) for name in path) for path in self.paths)

    def of_work(self, work: pl.DataFrame) -> Int64s:
        """The position of the path of each row of GPU work."""
        numbers: Int64s = self.number[work["range"].fill_null(NO_RANGE).to_numpy()]
        return numbers


def range_paths(timeline: Timeline) -> RangePaths:
    """The paths of all ranges of a profile."""
    ranges = timeline.trace.ranges
    if not ranges.height:
        return RangePaths(((),), np.zeros(1, dtype=np.int64))
    step_name = timeline.steps.name
    texts = [_text(name, step_name) for name in name_categories(ranges["name"])]
    distinct = list(dict.fromkeys(texts))
    position = {text: number for number, text in enumerate(distinct)}
    code = np.array([position[text] for text in texts], dtype=np.int64)[ranges["name"].to_physical().to_numpy()]
    annotated = ~is_operator(ranges)
    parent = nearest(timeline.forest.parent, annotated, timeline.forest.parent)
    found = name_paths(code, np.flatnonzero(annotated), parent[annotated])
    # A path stands behind the one above it.
    full: list[Path] = []
    for above, name in zip(found.parent.tolist(), found.code.tolist(), strict=True):
        full.append((*(full[above] if above != NO_RANGE else ()), distinct[name]))
    paths: dict[Path, int] = {(): 0}
    numbers = np.array([paths.setdefault(_below_step(path, step_name), len(paths)) for path in full], dtype=np.int64)
    number = np.zeros(ranges.height + 1, dtype=np.int64)
    number[np.flatnonzero(annotated)] = numbers[found.path]
    held = nearest(timeline.forest.parent, annotated, np.arange(ranges.height))
    number[:-1] = number[held]  # an operator's work belongs to the annotation around it
    return RangePaths(tuple(paths), number)


def _text(name: str, step_name: str | None) -> str:
    return step_name if step_name is not None and generic_name(name) == step_name else plain_range_name(name)


def _below_step(path: Path, step_name: str | None) -> Path:
    of_step = [name == step_name or is_step_name(generic_name(name)) for name in path]
    return path[len(path) - of_step[::-1].index(True) :] if any(of_step) else path
