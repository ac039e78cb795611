"""Kernels removed, added and changed between two sides: every launch of a side's steps is in exactly one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.frames import duration_ns, sum_by
from warplens.analysis.work.catalogue import operator_work
from warplens.compare import SIDES
from warplens.compare.matching import MATCHES, Likeness, Matching, Slots, likeness, match_slots, slots_of
from warplens.compare.places import SEPARATOR
from warplens.compare.side import Side
from warplens.profile.columns import both_sides, column, table
from warplens.profile.schema import Column, Float64s, Int64s
from warplens.profile.trace import LAUNCH_SIZE

if TYPE_CHECKING:
    from warplens.compare.difference import SideWall, WallSplit


_KINDS: Final = ("kept", "changed", "added", "removed")

KERNEL_CHANGES: Final = table(
    "comparison: kernels by place",
    "One kernel at one place of the program. `warplens compare`; `data.kernel_places.rows`.",
    column("change", dtype=pl.Enum(_KINDS), help="`kept`, `changed`, `added` or `removed`", title="What"),
    Column(
        "matched_by",
        pl.Enum(MATCHES),
        "what the two sides' launches have in common; null for what only one side launches",
    ),
    "name category",
    both_sides("full_name", pl.String, "demangled name; null if this side does not launch it"),
    both_sides("range", pl.String, "path of ranges below the step"),
    both_sides("grid", pl.String, "grid; null where the launches have several"),
    both_sides("block", pl.String, "block; null where the launches have several"),
    both_sides("launches", pl.Int64, "launches in all steps"),
    "baseline_ns variant_ns",
    both_sides("launches_per_step", pl.Float64, "launches of a step", title="Launches", kind="count"),
    Column("launches_change_per_step", pl.Float64, "variant − baseline"),
    "baseline_ns_per_step variant_ns_per_step change_ns_per_step",
    both_sides(
        "host_ns_per_step", pl.Float64, "what launching costs the host in a step; null where no calls were recorded"
    ),
)

#: Stages that match the same kernel with the same launch size.
_SAME_KERNEL: Final = ("name, range, shape", "name, shape")


@dataclass(frozen=True, eq=False)
class SideKernels:
    """The kernels of a side's steps."""

    row: Int64s  #: row of each kernel in `KernelChanges.table`
    step: Int64s
    time_ns: Int64s  #: duration
    steps: int  #: number of steps

    def matrix(self, rows: int) -> Float64s:
        """The time of each row of the table in each step, shape (steps, rows)."""
        sums: Float64s = np.bincount(
            self.step * rows + self.row, weights=self.time_ns.astype(np.float64), minlength=self.steps * rows
        ).astype(np.float64)
        return sums.reshape(self.steps, rows)


@dataclass(frozen=True, eq=False)
class KernelChanges:
    """The kernels of both sides, matched."""

    table: pl.DataFrame  #: `KERNEL_CHANGES`
    likeness: Likeness
    baseline: SideKernels
    variant: SideKernels

    @property
    def ns_per_step(self) -> tuple[float, float]:
        """Total duration of the kernels per step on each side."""
        before, after = (int(side.time_ns.sum()) / side.steps for side in (self.baseline, self.variant))
        return before, after

    @property
    def launches_per_step(self) -> tuple[float, float]:
        """Kernels per step on each side."""
        return len(self.baseline.row) / self.baseline.steps, len(self.variant.row) / self.variant.steps

    @property
    def matched_share(self) -> float | None:
        """Share of both sides' kernel time that has a counterpart on the other side; None without kernels."""
        total, matched = (
            sum(int(rows[f"{side}_ns"].sum()) for side in SIDES)
            for rows in (self.table, self.table.filter(pl.col("matched_by").is_not_null()))
        )
        return matched / total if total else None

    def count(self, change: str) -> float:
        """Launches per step that are `kept`, `changed`, `added` or `removed`.

        For matched launches, the larger of both sides counts, since a launch may be missing in some steps.
        """
        chosen = self.table.filter(pl.col("change") == change)
        return float(chosen.select(pl.max_horizontal("^.*_launches_per_step$")).to_series().sum())

    def samples(self) -> tuple[Float64s, Float64s]:
        """The time of each row of the table in each step, shape (steps, rows), of the baseline and of the variant."""
        return self.baseline.matrix(self.table.height), self.variant.matrix(self.table.height)


def kernel_changes(baseline: Side, variant: Side) -> KernelChanges:
    """Match the kernels of a step of both sides by name, range, grid, block and order."""
    # Names of different recorders are spelled differently.
    respelled = baseline.timeline.trace.capture.recorder != variant.timeline.trace.capture.recorder
    slots = slots_of(baseline, respelled=respelled), slots_of(variant, respelled=respelled)
    matched = _matched(match_slots(*slots), slots)
    table = _grouped(_summed(matched, slots), slots[0].steps, slots[1].steps)
    rows = table.select("row", "members").explode("members").sort("members")["row"].to_numpy().astype(np.int64)
    of_slot = rows[matched["member"].to_numpy()]
    split = len(slots[0].kind)
    return KernelChanges(
        KERNEL_CHANGES.conform(table),
        likeness(*slots),
        *(
            SideKernels(row[side.slot], side.step, side.time_ns, side.steps)
            for side, row in zip(slots, (of_slot[:split], of_slot[split:]), strict=True)
        ),
    )


def _matched(matching: Matching, slots: tuple[Slots, Slots]) -> pl.DataFrame:
    """One row per slot, those of the baseline first: its stage (−1: not matched), and its kind on each side.

    `member` is the index of the distinct combination of these three.
    """
    pairs, frames = (matching.baseline, matching.variant), []
    for own, other in ((0, 1), (1, 0)):
        stage, partner = np.full((2, len(slots[own].kind)), -1)
        stage[pairs[own]], partner[pairs[own]] = matching.stage, slots[other].kind[pairs[other]]
        kinds = {SIDES[own]: slots[own].kind, SIDES[other]: partner}
        frames.append(pl.DataFrame({"matched_by": stage, **{name: kinds[name] for name in SIDES}}))
    rows = pl.concat(frames)
    return rows.with_columns(member=pl.struct("matched_by", *SIDES).rank("dense").cast(pl.Int64) - 1)


def _summed(matched: pl.DataFrame, slots: tuple[Slots, Slots]) -> pl.DataFrame:
    """One row per combination of `_matched`: its kernel on each side, and the sums of its slots."""
    combinations = matched.unique("member").sort("member").with_columns(pl.col("matched_by", *SIDES).replace(-1, None))
    split, count = len(slots[0].kind), combinations.height
    members = matched["member"].to_numpy()
    for side, member_of_slot, name in zip(slots, (members[:split], members[split:]), SIDES, strict=True):
        places = pl.Series([SEPARATOR.join(path) for path in side.places.merged], dtype=pl.String)
        kinds = side.kinds.select(
            "full_name",
            "name",
            "category",
            range=places.gather(side.kinds["path"]),
            grid=pl.concat_str(LAUNCH_SIZE[:3], separator="×"),
            block=pl.concat_str(LAUNCH_SIZE[3:], separator="×"),
        )
        sums = {
            "launches": sum_by(member_of_slot, side.launches, count),
            "ns": sum_by(member_of_slot, side.total_ns, count),
            "host_ns": sum_by(member_of_slot, side.host_ns, count) if side.knows_host else [None] * count,
        }
        combinations = combinations.with_columns(
            *(kinds[column].gather(combinations[name]).alias(f"{name}_{column}") for column in kinds.columns),
            *(pl.Series(f"{name}_{column}", values, dtype=pl.Int64) for column, values in sums.items()),
        )
    return combinations


def _grouped(combinations: pl.DataFrame, before: int, after: int) -> pl.DataFrame:
    """The combinations summed by stage, names and ranges, with their `row` number and the list of their `members`."""
    keys = ["matched_by", "baseline_full_name", "variant_full_name", "baseline_range", "variant_range"]
    unique_sizes = [
        pl.when(pl.col(column).n_unique() == 1).then(pl.col(column).first()).alias(column)
        for side in SIDES
        for column in (f"{side}_grid", f"{side}_block")
    ]
    host = [f"{side}_host_ns" for side in SIDES]
    grouped = combinations.group_by(keys, maintain_order=True).agg(
        pl.coalesce("variant_name", "baseline_name").first().alias("name"),
        pl.coalesce("variant_category", "baseline_category").first().alias("category"),
        *unique_sizes,
        *(pl.col(f"{side}_{column}").sum() for side in SIDES for column in ("launches", "ns")),
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
        for side, steps in zip(SIDES, (before, after), strict=True)
        for column in ("launches", "ns", "host_ns")
    ]

    def difference(column: str) -> pl.Expr:
        # One division of exact integers, so that the difference of equal sides is exactly 0.
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


#: Least share of the GPU time with modelled work for a meaningful ratio of the two sides.
_COVERED_SHARE: Final = 0.5


@dataclass(frozen=True)
class WorkChange:
    """The work of a step on both sides; None if unknown."""

    #: baseline_flops, variant_flops: floating-point operations per step (a multiply-add counts as two)
    baseline_flops: float | None
    variant_flops: float | None
    source: Literal["given", "modelled"] | None  #: given by the caller, or modelled from shapes of operators
    #: baseline_coverage_share, variant_coverage_share: share of the GPU time whose operators have a model
    baseline_coverage_share: float | None = None
    variant_coverage_share: float | None = None

    @property
    def flops_ratio(self) -> float | None:
        """Variant over baseline."""
        if self.baseline_flops is None or self.variant_flops is None or not self.baseline_flops:
            return None
        return self.variant_flops / self.baseline_flops


def work_change(baseline: Side, variant: Side, flops: tuple[float, float] | None = None) -> WorkChange:
    """The floating-point operations of a step on both sides: `flops` if known from elsewhere, else modelled ones."""
    if flops is not None:
        return WorkChange(flops[0], flops[1], "given")
    before, after = _modelled(baseline), _modelled(variant)
    if before is None or after is None:
        return WorkChange(None, None, None)
    return WorkChange(before[0], after[0], "modelled", before[1], after[1])


def _modelled(side: Side) -> tuple[float, float] | None:
    if not side.timeline.trace.operators.height or side.window.range_name is not None:
        return None
    work = operator_work(side.timeline, side.window)
    share = work.coverage_share
    if not work.flops or share is None or share < _COVERED_SHARE:
        return None
    return work.flops / side.repeats, share


_COMMUNICATION: Final = "communication"

TRANSFER_CHANGES: Final = table(
    "comparison: copies and communication",
    "One kind of copy, fills, or communication. `warplens compare`; `data.transfers.rows`.",
    column("group").but(dtype=pl.String, help="`copy` or `communication`"),
    "part",
    both_sides("count_per_step", pl.Float64, "how many in a step", title="Count", kind="count"),
    both_sides(
        "bytes_per_step", pl.Float64, "bytes in a step; null for communication, whose kernels do not tell", title="Size"
    ),
    "baseline_ns_per_step variant_ns_per_step",
    both_sides("exposed_ns_per_step", pl.Float64, "wall time of a step in which nothing hid it"),
    "change_ns_per_step",
    Column(
        "exposed_change_ns_per_step",
        pl.Float64,
        "variant − baseline, of the time that nothing hid",
        title="Exposed change",
    ),
    part="direction of the copy, `memset`, or `communication`",
    baseline_ns_per_step="summed time on the GPU in a step, of the baseline",
    variant_ns_per_step="summed time on the GPU in a step, of the variant",
    change_ns_per_step="variant − baseline, of the summed time",
)


def transfer_changes(baseline: Side, variant: Side, wall: WallSplit) -> pl.DataFrame:
    """Copies, fills and communication per step (`TRANSFER_CHANGES`), the largest change of exposed time first."""
    tables = [
        _transfers(side, of_side).rename(
            {column: f"{name}_{column}" for column in ("count_per_step", "bytes_per_step", "ns_per_step", "exposed")}
        )
        for side, of_side, name in zip((baseline, variant), (wall.baseline, wall.variant), SIDES, strict=True)
    ]
    both = tables[0].join(tables[1], on=["group", "part"], how="full", coalesce=True)
    # Values missing on a side are 0; only the bytes of communication are unknown.
    both = both.with_columns(
        pl.col("^.*_(count_per_step|ns_per_step|exposed)$").fill_null(0.0),
        pl.when(pl.col("group") == "copy").then(pl.col("^.*_bytes_per_step$").fill_null(0.0)),
    ).rename({f"{side}_exposed": f"{side}_exposed_ns_per_step" for side in SIDES})
    both = both.with_columns(
        (pl.col("variant_ns_per_step") - pl.col("baseline_ns_per_step")).alias("change_ns_per_step"),
        (pl.col("variant_exposed_ns_per_step") - pl.col("baseline_exposed_ns_per_step")).alias(
            "exposed_change_ns_per_step"
        ),
    )
    order = [pl.col("exposed_change_ns_per_step").abs(), pl.col("change_ns_per_step").abs(), pl.col("part")]
    return TRANSFER_CHANGES.conform(both).sort(order, descending=[True, True, False])


def _transfers(side: Side, wall: SideWall) -> pl.DataFrame:
    """Copies, fills and communication of one side per step, by group and part, with their exposed time."""
    trace = side.timeline.trace
    work = side.work.select("kind", "row", duration_ns().alias("ns"))
    of_kind = {kind: work.filter(pl.col("kind") == kind) for kind in ("copy", "memset", "kernel")}
    copies = of_kind["copy"].with_columns(
        group=pl.lit("copy"),
        part=trace.copies["direction"].cast(pl.String).gather(of_kind["copy"]["row"]),
        bytes=trace.copies["bytes"].gather(of_kind["copy"]["row"]),
    )
    memsets = of_kind["memset"].with_columns(
        group=pl.lit("copy"), part=pl.lit("memset"), bytes=trace.memsets["bytes"].gather(of_kind["memset"]["row"])
    )
    category = categories_of(trace.kernels["full_name"]).gather(of_kind["kernel"]["row"])
    named = pl.lit(_COMMUNICATION)
    communication = of_kind["kernel"].filter(category == _COMMUNICATION)
    communication = communication.with_columns(group=named, part=named, bytes=pl.lit(None, dtype=pl.Int64))
    groups = pl.concat([copies, memsets, communication]).group_by("group", "part")
    transfers = groups.agg(
        count_per_step=pl.len() / side.repeats,
        bytes_per_step=pl.col("bytes").sum() / side.repeats,
        ns_per_step=pl.col("ns").sum() / side.repeats,
    )
    exposed = [(*key, float(time)) for key, time in wall.parts.items() if key[0] in ("copy", _COMMUNICATION)]
    schema = {"group": pl.String, "part": pl.String, "exposed": pl.Float64}
    exposed_times = pl.DataFrame(exposed, schema=schema, orient="row")
    return transfers.join(exposed_times, on=["group", "part"], how="full", coalesce=True)
