"""Kernels removed, added and changed between two sides: every launch of a side's steps is in exactly one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.compare.difference.matching import MATCHES, Matching, match_slots
from warplens.compare.difference.places import SEPARATOR
from warplens.compare.difference.slots import SHAPE, Slots, distinct, slots_of, sum_by

if TYPE_CHECKING:
    from warplens.compare.difference.sides import Side

__all__ = ["KERNEL_CHANGE_SCHEMA", "MATCHES", "KernelChanges", "kernel_changes"]

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_SIDES: Final = ("baseline", "variant")
_KINDS: Final = ("kept", "changed", "added", "removed")

#: One row a kernel at a place of the program, the largest change of time first.
#:
#: `change`: `kept` (the same kernel, grid and block on both sides; its time and its range may differ), `changed`
#: (matched by less), `added` (only the variant launches it), `removed` (only the baseline does). `matched_by` is one of
#: `MATCHES`. Names, ranges (paths of names below the step, their numbers replaced by `N`) and shapes are null on a side
#: without the launch; a shape is also null where the row's launches have several. `_launches` and `_ns` are exact sums
#: over all steps of a side. `_host_ns_per_step` is what launching them cost the host; null where no calls were
#: recorded.
KERNEL_CHANGE_SCHEMA: Final = pl.Schema(
    {
        "change": pl.Enum(_KINDS),
        "matched_by": pl.Enum(MATCHES),
        "name": pl.String(),
        "category": pl.String(),
        **{f"{side}_full_name": pl.String() for side in _SIDES},
        **{f"{side}_range": pl.String() for side in _SIDES},
        **{f"{side}_grid": pl.String() for side in _SIDES},
        **{f"{side}_block": pl.String() for side in _SIDES},
        **{f"{side}_launches": pl.Int64() for side in _SIDES},
        **{f"{side}_ns": pl.Int64() for side in _SIDES},
        **{f"{side}_launches_per_step": pl.Float64() for side in _SIDES},
        "launches_change_per_step": pl.Float64(),
        **{f"{side}_ns_per_step": pl.Float64() for side in _SIDES},
        "change_ns_per_step": pl.Float64(),
        **{f"{side}_host_ns_per_step": pl.Float64() for side in _SIDES},
    }
)

#: Stages whose matches are the same kernel with the same work.
_SAME_KERNEL: Final = ("name, range, shape", "name, shape")


@dataclass(frozen=True, eq=False)
class KernelChanges:
    """The kernels of both sides, matched.

    Attributes:
        table: `KERNEL_CHANGE_SCHEMA`.
        baseline_steps, variant_steps: over how many steps the sums of each side go.
        baseline_ns, variant_ns: summed duration of each side's kernels over all steps; the sums of the table.
        baseline_launches, variant_launches: their number; the sums of the table.
    """

    table: pl.DataFrame
    baseline_steps: int
    variant_steps: int
    baseline_ns: int
    variant_ns: int
    baseline_launches: int
    variant_launches: int
    _baseline: _Rows
    _variant: _Rows

    @property
    def ns_per_step(self) -> tuple[float, float]:
        """Summed duration of the kernels of a step on each side."""
        return self.baseline_ns / self.baseline_steps, self.variant_ns / self.variant_steps

    @property
    def launches_per_step(self) -> tuple[float, float]:
        """Kernels of a step on each side."""
        return self.baseline_launches / self.baseline_steps, self.variant_launches / self.variant_steps

    @property
    def launches_change_per_step(self) -> float:
        """Kernels that the variant's step has more."""
        return _per_step_change(self.baseline_launches, self.variant_launches, self.baseline_steps, self.variant_steps)

    @property
    def gpu_change_share(self) -> float | None:
        """Change of the kernels' time per step over that of the baseline; None where the baseline has none."""
        before, after = self.ns_per_step
        return after / before - 1 if before else None

    @property
    def matched_share(self) -> float | None:
        """Share of both sides' kernel time that has a counterpart on the other side; None without kernels."""
        total = self.baseline_ns + self.variant_ns
        matched = self.table.filter(pl.col("matched_by").is_not_null())
        return sum(int(matched[f"{side}_ns"].sum()) for side in _SIDES) / total if total else None

    def count(self, change: str) -> float:
        """Launches per step that are `kept`, `changed`, `added` or `removed`.

        Of matched ones, those of the side with more (a launch may be missing from some steps).
        """
        chosen = self.table.filter(pl.col("change") == change)
        return float(chosen.select(pl.max_horizontal("^.*_launches_per_step$")).to_series().sum())

    def samples(self) -> tuple[Float64s, Float64s]:
        """The time of each row of the table in each step: shape (steps, rows) of the baseline and of the variant."""
        return self._baseline.matrix(self.table.height), self._variant.matrix(self.table.height)


@dataclass(frozen=True, eq=False)
class _Rows:
    """For each kernel of a side the row of the table, its step and its duration."""

    row: Int64s
    step: Int64s
    time_ns: Int64s
    steps: int

    def matrix(self, rows: int) -> Float64s:
        sums: Float64s = np.bincount(
            self.step * rows + self.row, weights=self.time_ns.astype(np.float64), minlength=self.steps * rows
        ).astype(np.float64)
        return sums.reshape(self.steps, rows)


def kernel_changes(baseline: Side, variant: Side) -> KernelChanges:
    """Matches the kernels of a step of both sides by name, range, grid, block and order."""
    respelled = baseline.timeline.trace.capture.format != variant.timeline.trace.capture.format
    slots = slots_of(baseline, respelled=respelled), slots_of(variant, respelled=respelled)
    matching = match_slots(*slots)
    combination = _combinations(matching, slots)
    table = _grouped(_summed(combination, slots), slots[0].steps, slots[1].steps)
    rows = table.select("row", "members").explode("members").sort("members")["row"].to_numpy().astype(np.int64)
    of_sides = [
        _Rows(rows[number[side.slot]], side.step, side.time_ns, side.steps)
        for side, number in zip(slots, combination.of_slot, strict=True)
    ]
    return KernelChanges(
        table.select([pl.col(name).cast(dtype) for name, dtype in KERNEL_CHANGE_SCHEMA.items()]),
        slots[0].steps,
        slots[1].steps,
        int(slots[0].time_ns.sum()),
        int(slots[1].time_ns.sum()),
        len(slots[0].slot),
        len(slots[1].slot),
        *of_sides,
    )


@dataclass(frozen=True, eq=False)
class _Combinations:
    """The distinct combinations of stage, kind of the baseline and kind of the variant.

    Attributes:
        stage, kinds: shape (c,) each; −1 where nothing matched, and on the side that has none.
        of_slot: for each slot of the baseline and of the variant its combination.
    """

    stage: Int64s
    kinds: tuple[Int64s, Int64s]
    of_slot: tuple[Int64s, Int64s]


def _combinations(matching: Matching, slots: tuple[Slots, Slots]) -> _Combinations:
    stages, others = [], []
    for side, own, other, kinds in (
        (slots[0], matching.baseline, matching.variant, slots[1].kind),
        (slots[1], matching.variant, matching.baseline, slots[0].kind),
    ):
        stage, partner = np.full(len(side.kind), -1), np.full(len(side.kind), -1)
        stage[own], partner[own] = matching.stage, kinds[other]
        stages.append(stage)
        others.append(partner)
    first = np.concatenate((slots[0].kind, others[1]))
    second = np.concatenate((others[0], slots[1].kind))
    widths = slots[0].kinds.height + 1, slots[1].kinds.height + 1
    number, found = distinct(((np.concatenate(stages) + 1) * widths[0] + first + 1) * widths[1] + second + 1)
    cut = len(slots[0].kind)
    return _Combinations(
        found // widths[1] // widths[0] - 1,
        (found // widths[1] % widths[0] - 1, found % widths[1] - 1),
        (number[:cut], number[cut:]),
    )


def _summed(combination: _Combinations, slots: tuple[Slots, Slots]) -> pl.DataFrame:
    """One row a combination: what it is on each side, and the sums of its slots."""
    count = len(combination.stage)
    table = pl.DataFrame({"member": np.arange(count), "matched_by": combination.stage}).with_columns(
        pl.col("matched_by").replace(-1, None)
    )
    for side, kinds, number, name in zip(slots, combination.kinds, combination.of_slot, _SIDES, strict=True):
        described = _by_kind(side)
        known = pl.Series(kinds).replace(-1, None)
        sums = {
            "launches": sum_by(number, side.launches, count),
            "ns": sum_by(number, side.total_ns, count),
            "host_ns": sum_by(number, side.host_ns, count) if side.knows_host else [None] * count,
        }
        table = table.with_columns(
            *(described[column].gather(known).alias(f"{name}_{column}") for column in described.columns),
            *(pl.Series(f"{name}_{column}", values, dtype=pl.Int64) for column, values in sums.items()),
        )
    return table


def _by_kind(slots: Slots) -> pl.DataFrame:
    """The kinds of one side with their range and shape as texts."""
    texts = pl.Series("range", [SEPARATOR.join(path) for path in slots.places.merged], dtype=pl.String)

    def shape(what: str) -> pl.Expr:
        parts = [pl.col(column).cast(pl.String) for column in SHAPE if column.startswith(what)]
        return pl.concat_str(parts, separator="×").alias(what)

    return slots.kinds.select(
        "full_name", "name", "category", texts.gather(slots.kinds["path"]), shape("grid"), shape("block")
    )


def _grouped(combinations: pl.DataFrame, before: int, after: int) -> pl.DataFrame:
    """The combinations summed up by what they match; `row` numbers the rows, `members` lists their combinations."""
    keys = [
        "matched_by", "baseline_full_name", "variant_full_name", "baseline_range", "variant_range",
    ]  # fmt: skip
    only = [
        pl.when(pl.col(column).n_unique() == 1).then(pl.col(column).first()).alias(column)
        for side in _SIDES
        for column in (f"{side}_grid", f"{side}_block")
    ]
    host = [f"{side}_host_ns" for side in _SIDES]
    grouped = combinations.group_by(keys, maintain_order=True).agg(
        pl.coalesce("variant_name", "baseline_name").first().alias("name"),
        pl.coalesce("variant_category", "baseline_category").first().alias("category"),
        *only,
        *(pl.col(f"{side}_{column}").sum() for side in _SIDES for column in ("launches", "ns")),
        *(pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column) for column in host),
        pl.col("member").alias("members"),
    )
    change = (
        pl.when(pl.col("baseline_full_name").is_null())
        .then(pl.lit("added"))
        .when(pl.col("variant_full_name").is_null())
        .then(pl.lit("removed"))
        .when(pl.col("matched_by").is_in([MATCHES.index(stage) for stage in _SAME_KERNEL]))
        .then(pl.lit("kept"))
        .otherwise(pl.lit("changed"))
    )
    per_step = [
        (pl.col(f"{side}_{column}") / steps).alias(f"{side}_{column}_per_step")
        for side, steps in zip(_SIDES, (before, after), strict=True)
        for column in ("launches", "ns", "host_ns")
    ]

    def difference(column: str) -> pl.Expr:
        # One division of exact integers, so that equal sides differ by exactly nothing.
        return (pl.col(f"variant_{column}") * before - pl.col(f"baseline_{column}") * after) / (before * after)

    stages = pl.Series(MATCHES, dtype=pl.Enum(MATCHES))
    return (
        grouped.with_columns(
            change.alias("change"),
            *per_step,
            difference("launches").alias("launches_change_per_step"),
            difference("ns").alias("change_ns_per_step"),
        )
        .with_columns(stages.gather(grouped["matched_by"]).alias("matched_by"))
        .sort(pl.col("change_ns_per_step").abs(), descending=True, maintain_order=True)
        .with_row_index("row")
    )


def _per_step_change(before: int, after: int, before_steps: int, after_steps: int) -> float:
    return (after * before_steps - before * after_steps) / (before_steps * after_steps)
