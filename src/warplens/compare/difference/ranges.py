"""GPU work by annotated range and by phase on both sides, per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.phases import NO_PHASE, PHASES, phase_of_work
from warplens.analysis.spread import conform
from warplens.compare.difference.places import SEPARATOR, Path, range_paths
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.difference.sides import Side

__all__ = ["PHASE_CHANGE_SCHEMA", "RANGE_CHANGE_SCHEMA", "phase_changes", "range_changes"]

Int64s = npt.NDArray[np.int64]

_SIDES: Final = ("baseline", "variant")

#: Summed durations of the GPU work of all steps (`_ns`, exact) and per step. `own` is without what lies in ranges
#: inside; own times sum to the side's GPU time. A range that a side does not have has no work there.
_AMOUNTS: Final = {
    **{f"{side}_ns": pl.Int64() for side in _SIDES},
    **{f"{side}_own_ns": pl.Int64() for side in _SIDES},
    **{f"{side}_kernels": pl.Int64() for side in _SIDES},
    **{f"{side}_ns_per_step": pl.Float64() for side in _SIDES},
    "change_ns_per_step": pl.Float64(),
    "own_change_ns_per_step": pl.Float64(),
    **{f"{side}_kernels_per_step": pl.Float64() for side in _SIDES},
}

#: One row a path of range names below the step, parents before children, the largest change first. The first row, with
#: the empty path, is all GPU work; its own time is what lies in no range but the step's.
RANGE_CHANGE_SCHEMA: Final = pl.Schema(
    {"path": pl.String(), "name": pl.String(), "depth": pl.Int64(), "in": pl.String(), **_AMOUNTS}
)

#: One row a phase of a training step that either side has, `none` for the rest.
PHASE_CHANGE_SCHEMA: Final = pl.Schema(
    {
        "phase": pl.String(),
        **{f"{side}_ns": pl.Int64() for side in _SIDES},
        **{f"{side}_ns_per_step": pl.Float64() for side in _SIDES},
        "change_ns_per_step": pl.Float64(),
    }
)


def range_changes(baseline: Side, variant: Side, *, merged: bool = False) -> pl.DataFrame:
    """GPU time and kernels of each annotated range on both sides (`RANGE_CHANGE_SCHEMA`), matched by path of names.

    `in` is `both`, `baseline` or `variant`: which sides have work there.

    Args:
        baseline, variant: the two sides.
        merged: whether names that differ in their numbers only are one (`block_3` and `block_4` are `block_N`).
    """
    own = [_own(side, merged) for side in (baseline, variant)]
    paths = dict.fromkeys(prefix for found in own for path in found for prefix in _prefixes(path))
    total: dict[Path, list[int]] = {path: [0, 0, 0, 0] for path in paths}
    for number, found in enumerate(own):
        for path, (spent, kernels) in found.items():
            for prefix in _prefixes(path):
                total[prefix][number] += spent
                total[prefix][number + 2] += kernels
    repeats = (baseline.repeats, variant.repeats)
    rows = []
    for path in _tree_order(total, repeats):
        both, launched = total[path][:2], total[path][2:]
        alone = [found.get(path, (0, 0))[0] for found in own]
        present = [bool(both[number] or launched[number]) for number in (0, 1)]
        rows.append(
            {
                "path": SEPARATOR.join(path),
                "name": path[-1] if path else "",
                "depth": len(path),
                "in": "both" if all(present) else "variant" if present[1] else "baseline",
                **_by_side("ns", both),
                **_by_side("own_ns", alone),
                **_by_side("kernels", launched),
                **_by_side("ns_per_step", [both[number] / repeats[number] for number in (0, 1)]),
                "change_ns_per_step": _change(both, repeats),
                "own_change_ns_per_step": _change(alone, repeats),
                **_by_side("kernels_per_step", [launched[number] / repeats[number] for number in (0, 1)]),
            }
        )
    return pl.DataFrame(rows, schema=RANGE_CHANGE_SCHEMA)


def phase_changes(baseline: Side, variant: Side) -> pl.DataFrame:
    """GPU time of forward, backward and optimizer on both sides (`PHASE_CHANGE_SCHEMA`).

    Empty where the names of neither side tell phases.
    """
    spent = [_by_phase(side) for side in (baseline, variant)]
    repeats = (baseline.repeats, variant.repeats)
    if not any(found[phase] for found in spent for phase in PHASES):
        return pl.DataFrame(schema=PHASE_CHANGE_SCHEMA)
    rows = []
    for phase in (*PHASES, NO_PHASE):
        both = [found[phase] for found in spent]
        if any(both):
            per_step = [both[number] / repeats[number] for number in (0, 1)]
            rows.append(
                {
                    "phase": phase,
                    **_by_side("ns", both),
                    **_by_side("ns_per_step", per_step),
                    "change_ns_per_step": _change(both, repeats),
                }
            )
    return conform(pl.DataFrame(rows), PHASE_CHANGE_SCHEMA)


def _own(side: Side, merged: bool) -> dict[Path, tuple[int, int]]:
    """For each path the summed duration and the kernels of the work directly in it."""
    places = range_paths(side.timeline)
    number = places.of_work(side.work)
    spent = _sum_by(number, (side.work["end_ns"] - side.work["start_ns"]).to_numpy(), len(places.paths))
    kernels = np.bincount(number[(side.work["kind"] == "kernel").to_numpy()], minlength=len(places.paths))
    pieces = np.bincount(number, minlength=len(places.paths))
    found: dict[Path, tuple[int, int]] = {(): (0, 0)}
    for row, path in enumerate(places.merged if merged else places.paths):
        if pieces[row]:
            time_ns, count = found.get(path, (0, 0))
            found[path] = (time_ns + int(spent[row]), count + int(kernels[row]))
    return found


def _by_phase(side: Side) -> dict[str, int]:
    phases = phase_of_work(side.timeline)[side.work_rows]
    names = name_categories(phases).to_list()
    spent = (side.work["end_ns"] - side.work["start_ns"]).to_numpy()
    sums = _sum_by(phases.to_physical().to_numpy().astype(np.int64), spent, len(names))
    return {name: int(amount) for name, amount in zip(names, sums, strict=True)}


def _prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(len(path) + 1)]


def _tree_order(total: dict[Path, list[int]], repeats: tuple[int, int]) -> list[Path]:
    """Parents before their children, siblings with the largest change first."""

    def rank(path: Path) -> tuple[tuple[float, str], ...]:
        return tuple((-abs(_change(total[prefix][:2], repeats)), prefix[-1]) for prefix in _prefixes(path)[1:])

    return sorted(total, key=rank)


def _by_side(column: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{side}_{column}": value for side, value in zip(_SIDES, values, strict=True)}


def _change(totals: list[int], repeats: tuple[int, int]) -> float:
    # One division of exact integers, so that equal sides differ by exactly nothing.
    return (totals[1] * repeats[0] - totals[0] * repeats[1]) / (repeats[0] * repeats[1])


def _sum_by(groups: Int64s, amounts: Int64s, count: int) -> Int64s:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, groups, amounts)
    return sums
