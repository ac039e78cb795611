"""What limits each cell of a sweep: the host that launches, the GPU's arithmetic, or its memory.

A profile decides where there is one. Without, measurements can tell host from GPU in three ways, in this order: the
same cell replayed as a CUDA graph needs no host between its kernels, so that a much shorter replay is the GPU's own
time and the rest the host's; wall time that stands still while the work doubles is not the work's; and wall time that
grows like the work is. Arithmetic and memory they cannot tell apart, unless the rate of FLOPs comes near the roof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.peaks import peaks_of
from warplens.profile.schema import Column
from warplens.profile.trace import Device
from warplens.studies.sweeps.sweep import Cell, Point, Sweep, framed

Regime: TypeAlias = Literal["launch-bound", "gpu-bound", "memory-bound", "compute-bound", "unknown"]
Evidence: TypeAlias = Literal["measured", "modelled"]

#: Regime → what it means. `gpu-bound`: by arithmetic or by memory, which measurements alone cannot tell.
REGIMES: Final[Mapping[str, str]] = {
    "launch-bound": "the GPU waits for the host to launch",
    "gpu-bound": "the GPU's own time; a profile would tell whether it goes to arithmetic, memory or small kernels",
    "memory-bound": "kernels move data",
    "compute-bound": "kernels compute",
    "unknown": "nothing measured tells",
}

#: A replay that takes this share of the eager time or less leaves the rest to the host …
_HOST_SHARE: Final = 0.8
#: … and one that takes this share or more shows that the host is not in the way.
_GPU_SHARE: Final = 0.9

#: Work that grows by this factor, at least, tells something about time …
_MORE_WORK: Final = 1.5
#: … which stands still if it grows by less than this share of the work's growth (of logarithms), …
_FLAT: Final = 0.15
#: … and follows the work if it grows by more.
_FOLLOWS: Final = 0.75

#: A rate above this share of the roof leaves nothing but arithmetic to explain the time.
_NEAR_ROOF: Final = 0.6

#: Time between events below this share of the wall time: the host works before or after what the GPU does.
_EVENT_SHARE: Final = 0.7

CELL_REGIMES: Final = table(
    "sweep: what limits each cell",
    "A measured cell of a sweep. `warplens sweep report`; the axes stand before these columns.",
    "side",
    column("regime", help="`launch-bound`, `gpu-bound`, `memory-bound`, `compute-bound` or `unknown`"),
    column(
        "evidence",
        help="`measured` (a profile, or times alone) or `modelled` (FLOPs are part of the argument); null if unknown",
    ),
    Column("because", pl.String, "why, in a sentence"),
)


@dataclass(frozen=True, eq=False)
class CellRegime:
    """What bounds one side at one point."""

    settings: Mapping[str, Any]
    side: str
    regime: Regime  #: one of `REGIMES`
    #: `measured`: from a profile, or from times alone; `modelled`: from times and modelled work. None where nothing
    #: tells.
    evidence: Evidence | None
    because: str  #: one sentence for people


def cell_key(settings: Mapping[str, Any], side: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What a cell is looked up by, whatever the order of its settings."""
    return side, tuple(sorted((name, str(value)) for name, value in settings.items()))


def regimes(sweep: Sweep, profiled: Mapping[Any, tuple[Regime, str]] | None = None) -> tuple[CellRegime, ...]:
    """What bounds each measured cell.

    Args:
        profiled: by `cell_key`, the regime that a profile of the cell shows, and one sentence why.

    Returns:
        One for each measured cell, in the order of the points, baseline before variant.
    """
    found = []
    lines: dict[tuple[str, tuple[Any, ...]], list[Point]] = {}
    for point in sweep.points:
        for axis in point.settings:
            lines.setdefault((axis, _others(point, axis)), []).append(point)
    for point in sweep.points:
        for side, cell in point.sides:
            if cell is None or cell.time_ns is None:
                continue
            told: tuple[Regime, Evidence | None, str]
            if (seen := (profiled or {}).get(cell_key(point.settings, side))) is not None:
                told = (seen[0], "measured", seen[1])
            else:
                asked = _Asked(sweep, lines, point, side, cell, cell.time_ns)
                told = next(asked.told(), ("unknown", None, asked.why_unknown()))
            found.append(CellRegime(point.settings, side, *told))
    return tuple(found)


def regime_frame(found: tuple[CellRegime, ...], axes: tuple[str, ...]) -> pl.DataFrame:
    """The axes, then `CELL_REGIMES`: one row a cell."""
    return framed([{**item.settings, **vars(item)} for item in found], axes, CELL_REGIMES)


Told: TypeAlias = tuple[Regime, Evidence, str]


def _others(point: Point, axis: str) -> tuple[Any, ...]:
    return tuple(value for name, value in point.settings.items() if name != axis)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A timed cell, and the grid around it."""

    sweep: Sweep
    #: points of the sweep by all their settings but one: looking through all of them for each cell takes minutes where
    #: there are thousands
    lines: Mapping[tuple[str, tuple[Any, ...]], Sequence[Point]]
    point: Point
    side: str
    cell: Cell
    time_ns: float

    def along(self, axis: str) -> Iterator[tuple[Point, Cell]]:
        """Timed cells of the side, at points that differ from this one in one axis alone."""
        for other in self.lines.get((axis, _others(self.point, axis)), ()):
            found: Cell | None = getattr(other, self.side)
            if other.settings[axis] != self.point.settings[axis] and found is not None and found.is_timed:
                yield other, found

    def told(self) -> Iterator[Told]:
        """What measurements say, the surest first."""
        replayed = self.launch(self.point, self.cell) == "graph"
        yield from self.by_rate()
        gpu_share = self.cell.gpu_ns / self.time_ns if self.cell.gpu_ns is not None else None
        if not replayed:
            share = self.replay_share()
            if share is not None and share <= _HOST_SHARE:
                text = f"replayed as a CUDA graph it takes {share:.0%} of the time: the rest is the host's"
                yield "launch-bound", "measured", text
            elif share is not None and share >= _GPU_SHARE:
                text = f"replayed as a CUDA graph, without the host, it takes {share:.0%} of the time"
                yield "gpu-bound", "measured", text
            # Times between events stand in for the wall time where calls were issued back to back.
            apart = self.cell.wall is None or self.cell.wall is not self.cell.gpu
            if gpu_share is not None and apart and gpu_share <= _EVENT_SHARE:
                text = f"from its first to its last GPU event, a step takes {gpu_share:.0%} of its wall time"
                yield "launch-bound", "measured", text
        yield from self.by_growth(replayed)
        # Flat times of a CUDA graph that takes most of the wall time are those of kernels too small for the GPU.
        if replayed and gpu_share is not None and gpu_share >= _GPU_SHARE:
            text = (
                f"a replayed CUDA graph needs no host between its kernels, and takes {gpu_share:.0%} of the wall time"
            )
            yield "gpu-bound", "measured", text

    def launch(self, point: Point, cell: Cell) -> str | None:
        """How a cell is issued."""
        stated = point.settings.get("execution", self.sweep.shared.get("execution"))
        return cell.launch if cell.launch is not None else str(stated) if stated is not None else None

    def replay_share(self) -> float | None:
        """Time of the same cell as a CUDA graph, by its own; None if there is none."""
        if self.launch(self.point, self.cell) == "graph":
            return None
        twins = self.along("execution") if "execution" in self.point.settings else ()
        times = (found.time_ns for other, found in twins if self.launch(other, found) == "graph")
        twin = next(times, None)
        return twin / self.time_ns if twin else None

    def by_rate(self) -> Iterator[Told]:
        """FLOPs per second against the roof of the GPU for the number format."""
        name = (self.sweep.environment.get("device") or {}).get("name")
        precision = {**self.sweep.shared, **getattr(self.sweep, self.side), **self.point.settings}.get("precision")
        if not name or not self.cell.flops or precision is None:
            return
        peaks = peaks_of(Device(ordinal=0, name=str(name)))
        # Weights or activations in a narrow format are multiplied in it.
        roof = peaks.of(str(precision).partition("-")[0], tensor_cores=None) if peaks is not None else None
        share = self.cell.flops * 1e9 / self.time_ns / roof if roof else 0.0
        if share >= _NEAR_ROOF:
            yield "compute-bound", "modelled", f"its FLOPs (modelled) run at {share:.0%} of the roof of {precision}"

    def by_growth(self, replayed: bool) -> Iterator[Told]:
        """How time follows work from this cell to the next larger one, or from the next smaller one to it."""
        # Items are counted; FLOPs are modelled.
        evidence: Evidence = "modelled" if _work(self.cell) == self.cell.flops else "measured"
        larger, smaller = self.neighbour(larger=True), self.neighbour(larger=False)
        if larger is not None and not replayed:
            growth, work = _growth(self.cell, larger)
            if growth <= _FLAT:
                text = f"{math.exp(work):.3g} times the work takes {math.exp(growth * work):.2f} times as long"
                yield "launch-bound", evidence, f"{text}: it is not the work that takes the time"
        if smaller is not None:
            growth, work = _growth(smaller, self.cell)
            text = f"{math.exp(work):.3g} times the work took {math.exp(growth * work):.2f} times as long"
            if growth >= _FOLLOWS:
                yield "gpu-bound", evidence, f"{text}, coming from less: time follows the work"
            elif growth <= _FLAT and not replayed and larger is None:
                yield "launch-bound", evidence, f"{text}, coming from less: it is not the work that takes the time"

    def neighbour(self, *, larger: bool) -> Cell | None:
        """The cell with the next larger (or smaller) work that differs in one setting."""
        own = _work(self.cell)
        if not own:
            return None
        ratios = (
            (work / own if larger else own / work, found)
            for axis in self.point.settings
            for _, found in self.along(axis)
            if (work := _work(found))
        )
        near = [(ratio, found) for ratio, found in ratios if ratio >= _MORE_WORK]
        return min(near, key=lambda item: item[0])[1] if near else None

    def why_unknown(self) -> str:
        """Why nothing that was measured tells."""
        share = self.replay_share()
        if share is not None:
            return f"replayed as a CUDA graph it takes {share:.0%} of the time: host and GPU take about equally long"
        if not _work(self.cell):
            return "how much work a step does is not known"
        if all(self.neighbour(larger=larger) is None for larger in (True, False)):
            return "no other point differs in the amount of work alone"
        return "time grows, but less than the work; the same cell as a CUDA graph, or a profile, would tell"


def _work(cell: Cell) -> int | None:
    return cell.flops or (2 * cell.macs if cell.macs else None) or cell.items


def _growth(smaller: Cell, larger: Cell) -> tuple[float, float]:
    """Growth of log time by growth of log work, and the latter."""
    work = math.log((_work(larger) or 1) / (_work(smaller) or 1))
    return math.log((larger.time_ns or 1.0) / (smaller.time_ns or 1.0)) / work, work
