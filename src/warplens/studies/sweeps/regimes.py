"""The regime of each cell of a sweep: bound by host launches, by the GPU's arithmetic, or by its memory.

A profile decides where there is one. Without a profile, measurements separate host from GPU in three ways, in this
order: (1) the same cell replayed as a CUDA graph needs no host between its kernels, so a much shorter replay is GPU
time and the rest host time; (2) wall time that stays flat while the work doubles is not spent on the work; (3) wall
time that grows with the work is. Arithmetic and memory can only be separated if the FLOP rate comes near the roof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.measurements import device_name
from warplens.profile.peaks import peaks_of
from warplens.profile.schema import Column
from warplens.profile.trace import Device
from warplens.studies.sweeps.sweep import Cell, Point, Sweep, framed

Regime: TypeAlias = Literal["launch-bound", "gpu-bound", "memory-bound", "compute-bound", "unknown"]
Evidence: TypeAlias = Literal["measured", "modelled"]

#: Regime → its meaning. `gpu-bound`: by arithmetic or by memory, which measurements alone cannot separate.
REGIMES: Final[Mapping[str, str]] = {
    "launch-bound": "the GPU waits for the host to launch",
    "gpu-bound": "the GPU's own time; a profile would tell whether it goes to arithmetic, memory or small kernels",
    "memory-bound": "kernels move data",
    "compute-bound": "kernels compute",
    "unknown": "nothing measured tells",
}

#: CUDA graph replay time / eager time up to which a cell is launch-bound, …
_HOST_SHARE: Final = 0.8
#: … and from which it is GPU-bound.
_GPU_SHARE: Final = 0.9

#: Least growth factor of the work for a comparison of two cells to be informative.
_MORE_WORK: Final = 1.5
#: Growth of log time / growth of log work: the time is flat up to the first value …
_FLAT: Final = 0.15
#: … and follows the work from the second on.
_FOLLOWS: Final = 0.75

#: From this share of the roof on, only arithmetic explains the time.
_NEAR_ROOF: Final = 0.6

#: Time between CUDA events / wall time up to which the host works before or after the GPU does.
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
    """The regime of one side at one point."""

    settings: Mapping[str, Any]
    side: str
    regime: Regime  #: one of `REGIMES`
    #: `measured`: from a profile, or from times alone; `modelled`: from times and modelled work; None if unknown
    evidence: Evidence | None
    because: str  #: one sentence for people


def cell_key(settings: Mapping[str, Any], side: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Lookup key of a cell, independent of the order of its settings."""
    return side, tuple(sorted((name, str(value)) for name, value in settings.items()))


def regimes(sweep: Sweep, profiled: Mapping[Any, tuple[Regime, str]] | None = None) -> tuple[CellRegime, ...]:
    """The regime of each measured cell, in the order of the points, baseline before variant.

    `profiled` has, by `cell_key`, the regime determined from a profile of the cell and one sentence of justification.
    """
    cell_regimes = []
    lines: dict[tuple[str, tuple[Any, ...]], list[Point]] = {}
    for point in sweep.points:
        for axis in point.settings:
            lines.setdefault((axis, _others(point, axis)), []).append(point)
    for point in sweep.points:
        for side, cell in point.sides:
            if cell is None or cell.time_ns is None:
                continue
            classified: tuple[Regime, Evidence | None, str]
            if (by_profile := (profiled or {}).get(cell_key(point.settings, side))) is not None:
                classified = (by_profile[0], "measured", by_profile[1])
            else:
                timed = _TimedCell(sweep, lines, point, side, cell, cell.time_ns)
                classified = next(timed.conclusions(), ("unknown", None, timed.why_unknown()))
            cell_regimes.append(CellRegime(point.settings, side, *classified))
    return tuple(cell_regimes)


def regime_frame(cell_regimes: tuple[CellRegime, ...], axes: tuple[str, ...]) -> pl.DataFrame:
    """The axes, then the columns of `CELL_REGIMES`: one row per cell."""
    return framed([{**item.settings, **vars(item)} for item in cell_regimes], axes, CELL_REGIMES)


_Conclusion: TypeAlias = tuple[Regime, Evidence, str]


def _others(point: Point, axis: str) -> tuple[Any, ...]:
    return tuple(value for name, value in point.settings.items() if name != axis)


@dataclass(frozen=True, eq=False)
class _TimedCell:
    """A timed cell, and the grid around it."""

    sweep: Sweep
    #: points of the sweep by all their settings but one; a linear search for each cell takes minutes with thousands of
    #: points
    lines: Mapping[tuple[str, tuple[Any, ...]], Sequence[Point]]
    point: Point
    side: str
    cell: Cell
    time_ns: float

    def along(self, axis: str) -> Iterator[tuple[Point, Cell]]:
        """Timed cells of the same side at points that differ only on one axis."""
        for other in self.lines.get((axis, _others(self.point, axis)), ()):
            cell: Cell | None = getattr(other, self.side)
            if other.settings[axis] != self.point.settings[axis] and cell is not None and cell.is_timed:
                yield other, cell

    def conclusions(self) -> Iterator[_Conclusion]:
        """Regimes that measurements imply, the most reliable first."""
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
            # Where calls were issued back to back, the event times are the wall times and say nothing about the host.
            has_wall_times = self.cell.wall is None or self.cell.wall is not self.cell.gpu
            if gpu_share is not None and has_wall_times and gpu_share <= _EVENT_SHARE:
                text = f"from its first to its last GPU event, a step takes {gpu_share:.0%} of its wall time"
                yield "launch-bound", "measured", text
        yield from self.by_growth(replayed)
        # A CUDA graph with flat times that takes most of the wall time consists of kernels too small to fill the GPU.
        if replayed and gpu_share is not None and gpu_share >= _GPU_SHARE:
            text = "a replayed CUDA graph needs no host between its kernels"
            yield "gpu-bound", "measured", f"{text}, and takes {gpu_share:.0%} of the wall time"

    def launch(self, point: Point, cell: Cell) -> str | None:
        """Launch mode of a cell."""
        stated = point.settings.get("execution", self.sweep.shared.get("execution"))
        return cell.launch if cell.launch is not None else str(stated) if stated is not None else None

    def replay_share(self) -> float | None:
        """Time of the same cell as a CUDA graph / time of this cell; None if there is no such cell."""
        if self.launch(self.point, self.cell) == "graph":
            return None
        twins = self.along("execution") if "execution" in self.point.settings else ()
        graph_ns = next((cell.time_ns for point, cell in twins if self.launch(point, cell) == "graph"), None)
        return graph_ns / self.time_ns if graph_ns else None

    def by_rate(self) -> Iterator[_Conclusion]:
        """Conclusion from the FLOP rate relative to the GPU's roof for the number format."""
        name = device_name(self.sweep.environment)
        precision = {**self.sweep.shared, **getattr(self.sweep, self.side), **self.point.settings}.get("precision")
        if not name or not self.cell.flops or precision is None:
            return
        peaks = peaks_of(Device(ordinal=0, name=name))
        # `bf16-weights` multiplies in bf16.
        roof = peaks.of(str(precision).partition("-")[0], tensor_cores=None) if peaks is not None else None
        share = self.cell.flops * 1e9 / self.time_ns / roof if roof else 0.0
        if share >= _NEAR_ROOF:
            yield "compute-bound", "modelled", f"its FLOPs (modelled) run at {share:.0%} of the roof of {precision}"

    def by_growth(self, replayed: bool) -> Iterator[_Conclusion]:
        """Conclusion from the growth of time with work towards the next larger or from the next smaller cell."""
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
            (work / own if larger else own / work, cell)
            for axis in self.point.settings
            for _, cell in self.along(axis)
            if (work := _work(cell))
        )
        candidates = ((ratio, cell) for ratio, cell in ratios if ratio >= _MORE_WORK)
        return min(candidates, key=lambda item: item[0], default=(0.0, None))[1]

    def why_unknown(self) -> str:
        """Why the measurements imply no regime, in a sentence."""
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
    """Growth of log time / growth of log work, and the growth of log work."""
    work = math.log((_work(larger) or 1) / (_work(smaller) or 1))
    return math.log((larger.time_ns or 1.0) / (smaller.time_ns or 1.0)) / work, work
