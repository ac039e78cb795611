"""GPU work by place in the program: the path of annotated ranges around its launch, below the range of the step.

The ranges of two sides are matched by these paths. Ranges around a step (an epoch, a profiler's numbered step) and the
step's own range do not identify a place in the program, and are left out, as are operators of a framework, which only
one of the two tools may have recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.frames import sum_by
from warplens.analysis.phases import phase_of_work
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE, is_operator, name_paths, nearest
from warplens.analysis.window import NO_PHASE, PHASES, generic_name, is_step_name, plain_range_name
from warplens.compare import SIDES
from warplens.compare.side import Side
from warplens.profile.columns import both_sides, table
from warplens.profile.schema import Column, Int64s, name_categories

Path: TypeAlias = tuple[str, ...]

#: Separates the names of a path as text.
SEPARATOR: Final = " / "


@dataclass(frozen=True, eq=False)
class RangePaths:
    """The paths of ranges of one profile."""

    paths: tuple[Path, ...]  #: the distinct paths; the first is empty, for work outside all ranges but the step's
    number: Int64s  #: for each row of `Trace.ranges` the index of its path; the last entry is for "no range"

    @property
    def merged(self) -> tuple[Path, ...]:
        """The paths with numbers replaced by `N`, so that the layers of a model are one place."""
        return tuple(tuple(generic_name(name) for name in path) for path in self.paths)

    def of_work(self, work: pl.DataFrame) -> Int64s:
        """The index of the path of each row of GPU work."""
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
    tree = name_paths(code, np.flatnonzero(annotated), parent[annotated])
    full: list[Path] = []  # parents precede their children
    for above, name in zip(tree.parent.tolist(), tree.code.tolist(), strict=True):
        full.append((*(full[above] if above != NO_RANGE else ()), distinct[name]))
    paths: dict[Path, int] = {(): 0}
    numbers = np.array([paths.setdefault(_below_step(path, step_name), len(paths)) for path in full], dtype=np.int64)
    number = np.zeros(ranges.height + 1, dtype=np.int64)
    number[np.flatnonzero(annotated)] = numbers[tree.path]
    annotation = nearest(timeline.forest.parent, annotated, np.arange(ranges.height))
    number[:-1] = number[annotation]  # work of an operator belongs to the annotation around it
    return RangePaths(tuple(paths), number)


def _text(name: str, step_name: str | None) -> str:
    return step_name if step_name is not None and generic_name(name) == step_name else plain_range_name(name)


def _below_step(path: Path, step_name: str | None) -> Path:
    of_step = [name == step_name or is_step_name(generic_name(name)) for name in path]
    return path[len(path) - of_step[::-1].index(True) :] if any(of_step) else path


#: Summed durations of the GPU work of all steps (`_ns`, exact) and per step. `own` excludes inner ranges; own times sum
#: to the GPU time of the side. A range that a side lacks has 0.
RANGE_CHANGES: Final = table(
    "comparison: ranges",
    "One path of ranges below the step; the first row is the step. `warplens compare`; `data.ranges.rows`.",
    "path name depth",
    Column("in", pl.String, "which sides have work there: `both`, `baseline`, `variant`"),
    "baseline_ns variant_ns",
    both_sides("own_ns", pl.Int64, "GPU time in all steps, without ranges inside"),
    both_sides("kernels", pl.Int64, "kernels in all steps"),
    "baseline_ns_per_step variant_ns_per_step change_ns_per_step",
    Column("own_change_ns_per_step", pl.Float64, "the same without ranges inside", title="of it, own"),
    both_sides("kernels_per_step", pl.Float64, "kernels of a step", title="Kernels", kind="count"),
    name="the last of them",
    depth="how many",
    baseline_ns="GPU time in all steps, with ranges inside, of the baseline",
    variant_ns="GPU time in all steps, with ranges inside, of the variant",
    baseline_ns_per_step="GPU time of a step, with ranges inside, of the baseline",
    variant_ns_per_step="GPU time of a step, with ranges inside, of the variant",
)

PHASE_CHANGES: Final = table(
    "comparison: phases",
    "One phase of a training step. `warplens compare`; `data.phases.rows`.",
    "phase baseline_ns variant_ns baseline_ns_per_step variant_ns_per_step change_ns_per_step",
)


def range_changes(baseline: Side, variant: Side, *, merged: bool = False) -> pl.DataFrame:
    """GPU time and kernels of each annotated range on both sides (`RANGE_CHANGES`), matched by path of names.

    With `merged`, names that differ only in numbers are one (`block_3` and `block_4` are `block_N`).
    """
    own_times = [_own(side, merged) for side in (baseline, variant)]
    paths = dict.fromkeys(prefix for by_path in own_times for path in by_path for prefix in _prefixes(path))
    total: dict[Path, list[int]] = {path: [0, 0, 0, 0] for path in paths}
    for side, by_path in enumerate(own_times):
        for path, (time_ns, kernels) in by_path.items():
            for prefix in _prefixes(path):
                total[prefix][side] += time_ns
                total[prefix][side + 2] += kernels
    repeats = (baseline.repeats, variant.repeats)
    rows = []
    for path in _tree_order(total, repeats):
        total_ns, launched = total[path][:2], total[path][2:]
        own_ns = [by_path.get(path, (0, 0))[0] for by_path in own_times]
        present = [bool(total_ns[side] or launched[side]) for side in (0, 1)]
        rows.append(
            {
                "path": SEPARATOR.join(path),
                "name": path[-1] if path else "",
                "depth": len(path),
                "in": "both" if all(present) else "variant" if present[1] else "baseline",
                **_by_side("ns", total_ns),
                **_by_side("own_ns", own_ns),
                **_by_side("kernels", launched),
                **_by_side("ns_per_step", [total_ns[side] / repeats[side] for side in (0, 1)]),
                "change_ns_per_step": _change(total_ns, repeats),
                "own_change_ns_per_step": _change(own_ns, repeats),
                **_by_side("kernels_per_step", [launched[side] / repeats[side] for side in (0, 1)]),
            }
        )
    return pl.DataFrame(rows, schema=RANGE_CHANGES.schema)


def phase_changes(baseline: Side, variant: Side) -> pl.DataFrame:
    """GPU time of forward, backward and optimizer on both sides (`PHASE_CHANGES`).

    Empty if neither side has work in a phase.
    """
    times = [_by_phase(side) for side in (baseline, variant)]
    repeats = (baseline.repeats, variant.repeats)
    if not any(by_phase[phase] for by_phase in times for phase in PHASES):
        return PHASE_CHANGES.empty()
    rows = []
    for phase in (*PHASES, NO_PHASE):
        time_ns = [by_phase[phase] for by_phase in times]
        if any(time_ns):
            per_step = [time_ns[side] / repeats[side] for side in (0, 1)]
            rows.append(
                {
                    "phase": phase,
                    **_by_side("ns", time_ns),
                    **_by_side("ns_per_step", per_step),
                    "change_ns_per_step": _change(time_ns, repeats),
                }
            )
    return PHASE_CHANGES.conform(pl.DataFrame(rows))


def _own(side: Side, merged: bool) -> dict[Path, tuple[int, int]]:
    """Summed duration and number of kernels of the work directly in each path."""
    places = range_paths(side.timeline)
    number = places.of_work(side.work)
    times = sum_by(number, (side.work["end_ns"] - side.work["start_ns"]).to_numpy(), len(places.paths))
    kernels = np.bincount(number[(side.work["kind"] == "kernel").to_numpy()], minlength=len(places.paths))
    items = np.bincount(number, minlength=len(places.paths))
    by_path: dict[Path, tuple[int, int]] = {(): (0, 0)}
    for row, path in enumerate(places.merged if merged else places.paths):
        if items[row]:
            time_ns, count = by_path.get(path, (0, 0))
            by_path[path] = (time_ns + int(times[row]), count + int(kernels[row]))
    return by_path


def _by_phase(side: Side) -> dict[str, int]:
    phases = phase_of_work(side.timeline)[side.work_rows]
    names = name_categories(phases).to_list()
    durations = (side.work["end_ns"] - side.work["start_ns"]).to_numpy()
    sums = sum_by(phases.to_physical().to_numpy().astype(np.int64), durations, len(names))
    return {name: int(time_ns) for name, time_ns in zip(names, sums, strict=True)}


def _prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(len(path) + 1)]


def _tree_order(total: dict[Path, list[int]], repeats: tuple[int, int]) -> list[Path]:
    """Parents before their children, siblings with the largest change first."""

    def rank(path: Path) -> tuple[tuple[float, str], ...]:
        return tuple((-abs(_change(total[prefix][:2], repeats)), prefix[-1]) for prefix in _prefixes(path)[1:])

    return sorted(total, key=rank)


def _by_side(column: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{side}_{column}": value for side, value in zip(SIDES, values, strict=True)}


def _change(totals: list[int], repeats: tuple[int, int]) -> float:
    # One division of exact integers, so that the difference of equal sides is exactly 0.
    return (totals[1] * repeats[0] - totals[0] * repeats[1]) / (repeats[0] * repeats[1])
