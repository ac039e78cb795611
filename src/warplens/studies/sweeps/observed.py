"""What is known of the cells of a sweep: their times, and the sizes that a model of them can be made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from warplens.errors import MissingDataError, UsageError
from warplens.studies.policies.choosing import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.profile.schema import Float64s
    from warplens.studies.sweeps.sweep import Cell, Point, Sweep


#: From what the GPU time is modelled: token counts of each block, arithmetic, or only the number of items.
Work: TypeAlias = Literal["tokens", "flops", "items"]

#: Tokens that the linear layers of a transformer block see: projections (4·N·d²) those that enter, the MLP (8·N'·d²)
#: those that leave. Other widths of the MLP change the shares a little.
_ENTERING_SHARE: Final = 1 / 3


@dataclass(frozen=True)
class Known:
    """Which facts all measured cells of a sweep have.

    Attributes:
        work: the best description of the GPU's work that all of them have.
        items: whether the number of items is known.
        launches: whether the number of launches is known.
        missing: names of facts that would make a better model.
    """

    work: Work
    items: bool
    launches: bool
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Size:
    """How large one item is, as each kind of work counts it.

    Attributes:
        tokens: [entering, asking, leaving] of each block; None where unknown.
        flops: arithmetic of an item; None where unknown.
        launches: that a step issues; None where unknown.
    """

    tokens: tuple[tuple[float, float, float], ...] | None
    flops: float | None
    launches: float | None

    @property
    def first(self) -> float | None:
        """Tokens that enter the first block."""
        return self.tokens[0][0] if self.tokens else None

    def amount(self, work: Work) -> float:
        """The number that stands for the size on an axis: tokens at entry, FLOPs, or 1."""
        found = {"tokens": self.first, "flops": self.flops, "items": 1.0}[work]
        if found is None:
            raise UsageError(f"the cell has no {work}, which this model needs")
        return float(found)


@dataclass(frozen=True, eq=False)
class Observed:
    """One side of one point, ready to be fitted.

    Attributes:
        settings: of the point.
        side: 0 for the baseline, 1 for the variant.
        group: values of the axes that are no numbers (execution, …): the host differs between them, the work does not.
        items: that a step processes.
        size: of one item.
        pair: number of the point.
    """

    settings: Mapping[str, Any]
    side: int
    group: tuple[Any, ...]
    items: float
    size: Size
    pair: int


def known_fields(points: Sequence[Point]) -> Known:
    """What the measured cells of points have in common.

    Raises:
        MissingDataError: they have neither tokens, FLOPs nor items.
    """
    cells = [cell for point in points for cell in measured_sides(point)]
    items = all(cell.items for cell in cells)
    tokens = items and all(_tokens(cell) for cell in cells)
    flops = all(cell.flops for cell in cells)
    launches = all(cell.launches for cell in cells)
    if not cells or not (tokens or flops or items):
        raise MissingDataError("a break-even model needs token counts, FLOPs or the number of items of each cell")
    work: Work = "tokens" if tokens else "flops" if flops else "items"
    missing = [
        name
        for name, there in (("tokens", tokens), ("flops", flops), ("items", items), ("launches", launches))
        if not there
    ]
    return Known(work, items, launches, tuple(missing))


def measured_sides(point: Point) -> tuple[Cell, ...]:
    """Baseline and variant if both have a time, else nothing."""
    cells = tuple(cell for _, cell in point.sides if cell is not None and cell.time_ns)
    return cells if len(cells) == 2 else ()


def groups_of(sweep: Sweep) -> tuple[str, ...]:
    """Axes that are no numbers."""
    return tuple(name for name in sweep.axes if not all(is_number(point.settings[name]) for point in sweep.points))


def observed(points: Sequence[Point], groups: Sequence[str]) -> list[Observed]:
    """Both sides of each point, baseline first."""
    found = []
    for number, point in enumerate(points):
        for side, cell in enumerate(measured_sides(point)):
            group = tuple(point.settings[name] for name in groups)
            found.append(Observed(point.settings, side, group, float(cell.items or 1), size_of(cell), number))
    return found


def size_of(cell: Cell) -> Size:
    """The size of one item of a cell."""
    tokens = _tokens(cell)
    flops = cell.flops / (cell.items or 1) if cell.flops else None
    return Size(tokens, flops, float(cell.launches) if cell.launches else None)


def _tokens(cell: Cell) -> tuple[tuple[float, float, float], ...] | None:
    blocks = cell.details.get("tokens")
    if not isinstance(blocks, list | tuple) or not blocks:
        return None
    if not all(isinstance(block, list | tuple) and len(block) == 3 and all(map(is_number, block)) for block in blocks):
        return None
    return tuple((float(block[0]), float(block[1]), float(block[2])) for block in blocks)


def block_table(size: Size) -> Float64s:
    """One row a block: tokens in linear layers, products of tokens in attention, whether it reduces."""
    entering, asking, leaving = np.array(size.tokens).T
    linear = _ENTERING_SHARE * entering + (1 - _ENTERING_SHARE) * leaving
    return np.stack([linear, entering * asking, (leaving < entering).astype(float)], axis=1)
