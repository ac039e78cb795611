"""Comparison of two reports: matching kernels, changes of their counters, and obstacles to a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import polars.selectors as cs

from warplens.analysis.counters.groups import KEY, SUMMARY, counters_summary, group_launches, with_keys
from warplens.analysis.counters.speedoflight import measured, speed_of_light
from warplens.analysis.frames import number
from warplens.errors import UsageError
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column

#: A smaller relative difference of clocks changes times less than runs differ anyway.
_SAME_CLOCK: Final = 0.02

_SETTINGS: Final = {
    "clock_control": (
        "--clock-control",
        "times and rates were taken at other clocks: compare cycles, or percentages of the peak",
    ),
    "cache_control": (
        "--cache-control",
        "one begins with empty caches and the other does not: hit rates, traffic and times do not compare",
    ),
    "replay_mode": ("--replay-mode", "what is in memory and caches when a pass begins differs"),
}


def comparison_notes(before: KernelCounters, after: KernelCounters) -> tuple[Note, ...]:
    """Reasons why the numbers of two reports cannot be compared, or only in part."""
    return tuple(_notes(before, after))


def _notes(before: KernelCounters, after: KernelCounters) -> Iterator[Note]:
    """What makes two reports less comparable: other GPUs, settings, tool versions, clocks or sections."""
    names = [sorted({device.name for device in report.capture.devices}) for report in (before, after)]
    if all(names) and names[0] != names[1]:
        yield Note(
            "other-device",
            NoteLevel.WARNING,
            f"The reports are of different GPUs ({', '.join(names[0])}; {', '.join(names[1])}): percentages are of "
            "different peaks.",
        )
    for name, (option, consequence) in _SETTINGS.items():
        setting_before, setting_after = getattr(before.session, name), getattr(after.session, name)
        if setting_before is not None and setting_after is not None and setting_before != setting_after:
            yield Note(
                f"other-{name.replace('_', '-')}",
                NoteLevel.WARNING,
                f"{option} was {setting_before} before and {setting_after} after: {consequence}.",
                f"Record both with {option} {setting_before}",
            )
        elif (setting_before is None) != (setting_after is None):
            stating, silent = (before, after) if setting_before is not None else (after, before)
            yield Note(
                f"unknown-{name.replace('_', '-')}",
                NoteLevel.INFO,
                f"{option} was {setting_before or setting_after} in {stating.capture.source}; "
                f"{silent.capture.source} does not say.",
            )
    versions = before.capture.tool_version, after.capture.tool_version
    if None not in versions and versions[0] != versions[1]:
        yield Note(
            "other-tool-version",
            NoteLevel.INFO,
            f"Nsight Compute {versions[0]} and {versions[1]} recorded them: a metric of the same name may be counted "
            "in another way.",
        )
    clock, clock_after = (number(speed_of_light(report)["sm_hz"].median()) for report in (before, after))
    if clock and clock_after and abs(clock_after / clock - 1) > _SAME_CLOCK:
        yield Note(
            "clocks-differ",
            NoteLevel.WARNING,
            f"The multiprocessors ran at {clock / 1e9:.2f} GHz before and {clock_after / 1e9:.2f} GHz after (medians): "
            "ratios of cycles tell what ratios of times cannot.",
        )
    first, second = (set(report.session.sections) for report in (before, after))
    if first and second and first != second:
        exclusive = {"the first": sorted(first - second), "the second": sorted(second - first)}
        parts = "; ".join(f"only {side} has {', '.join(missing)}" for side, missing in exclusive.items() if missing)
        yield Note(
            "other-sections",
            NoteLevel.INFO,
            f"Different sections were collected ({parts}): what one lacks has no change.",
        )


#: Shares of `SUMMARY` whose difference is given in percentage points.
_SHARES: Final = ("compute_share", "memory_share", "dram_share", "theoretical_share", "achieved_share")

#: Columns given for both sides.
_SIDES: Final = (
    *("launch", "launches", "name", "full_name", "grid", "block", "total_ns", "duration_ns"),
    *(*_SHARES, "bound", "unit", "healthy", "fault", "top_stall", "limiter"),
)


def _side(side: str) -> list[Column]:
    return [_on(SUMMARY.column(name), side) for name in _SIDES]


def _on(column: Column, side: str) -> Column:
    """A column of one side; a kernel's name stands for both."""
    if column.kind == "kernel":
        return column.but(name=f"{column.name}_{side}", full=column.full and f"{column.full}_{side}")
    return column.but(name=f"{column.name}_{side}", title=f"{column.title} before" if side == "before" else "after")


COMPARED: Final = table(
    "compared",
    "one group of launches that both reports have; the one with the most time before first",
    "pair",
    column(
        "matched",
        dtype=pl.String,
        help="how it was found, the surest first: `stated` by the user, `exact` (the same kernel, grid and block),"
        " `kernel` (in another size), `name` (another instance of the template)",
        kind="text",
    ),
    optional(
        time_ratio=("median time after / before: below 1 is faster", "Ratio"),
        cycles_ratio=("the same in cycles, which clocks do not change", "in cycles"),
    ),
    (
        Column(name.replace("_share", "_points"), pl.Float64, "percentage points, after − before", nullable=True)
        for name in _SHARES
    ),
    Column("bound_changed", pl.Boolean, "bound or unit are others"),
    _side("before"),
    _side("after"),
)

METRIC_CHANGES: Final = table(
    "metric_changes",
    "one metric of one pair of groups; of each pair in the order of the metrics' names",
    column("pair", help="row of `COMPARED`"),
    "metric",
    column("unit", help="its base unit", nullable=True),
    "before",
    Column("after", pl.Float64, "median over the launches", title="after"),
    optional(
        points="after − before in percentage points; null for what is not a percentage",
        ratio="after / before; null for percentages, and where it was 0 before",
    ),
)

UNPAIRED: Final = table(
    "unpaired",
    "one group of launches that only one of the reports has",
    column("side", help="`before` or `after`"),
    SUMMARY.only("launch launches name full_name grid block total_ns bound").columns,
)

#: Facts of the device, and tables over block sizes and the like, whose single number is meaningless.
_NOT_COMPARED: Final = re.compile(r"device__attribute_|derived__pct_occupancy_|launch__occupancy_per_")

_CYCLES: Final = (
    "sm__cycles_elapsed.max",
    "gpc__cycles_elapsed.max",
    "sm__cycles_elapsed.avg",
    "smsp__cycles_elapsed.avg",
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two reports side by side."""

    #: before, after: names of the reports' files
    before: str
    after: str
    groups: pl.DataFrame  #: `COMPARED`
    metrics: pl.DataFrame  #: `METRIC_CHANGES`, for every metric that both reports hold for a pair
    unpaired: pl.DataFrame  #: `UNPAIRED`
    #: paired_share_before, paired_share_after: share of each report's profiled time that was matched in the other; None
    #: where no launch has a duration
    paired_share_before: float | None
    paired_share_after: float | None
    notes: tuple[Note, ...]  #: obstacles to the comparison


def compare_counters(
    before: KernelCounters, after: KernelCounters, pairs: Sequence[tuple[str, str]] = ()
) -> Comparison:
    """Changes from one report to the other, for the kernels that both have.

    Groups (launches of the same kernel with the same grid and block) are paired by kernel, grid and block; the rest by
    kernel, and then by short name, in the order of the launches, provided that both reports have as many of them. A
    rewritten kernel has another name: `pairs` names kernels to compare.

    Args:
        before: the report to compare with.
        after: the report in question.
        pairs: names of kernels (short, or in full) that are to be compared, each before and after.

    Raises:
        UsageError: a report has no kernel of such a name.
    """
    sides = _Side.of(before), _Side.of(after)
    paired = _paired(*sides, pairs)
    groups = _compared(*sides, paired)
    unpaired = [
        side.summary.filter(~pl.col("launch").is_in(groups[f"launch_{name}"].to_list())).with_columns(side=pl.lit(name))
        for name, side in zip(("before", "after"), sides, strict=True)
    ]
    return Comparison(
        before=before.capture.source,
        after=after.capture.source,
        groups=groups,
        metrics=_metric_changes(*sides, groups),
        unpaired=UNPAIRED.checked(pl.concat(unpaired)),
        paired_share_before=_share(groups["total_ns_before"], sides[0].summary["total_ns"]),
        paired_share_after=_share(groups["total_ns_after"], sides[1].summary["total_ns"]),
        notes=comparison_notes(before, after),
    )


@dataclass(frozen=True)
class _Side:
    """One report: `SUMMARY` with a row per group, and the medians of every metric in the order of first launches."""

    source: str
    summary: pl.DataFrame
    medians: KernelCounters
    firsts: pl.Series

    @classmethod
    def of(cls, counters: KernelCounters) -> _Side:
        grouped = group_launches(counters)
        firsts = grouped.groups["first_launch"]
        cycles = pl.DataFrame({"launch": firsts, "cycles": measured(grouped.counters, *_CYCLES)})
        summary = counters_summary(counters).join(cycles, on="launch", how="left", maintain_order="left")
        return cls(counters.capture.source, summary, grouped.counters, firsts)

    def named(self, name: str) -> list[int]:
        """The groups of that name, by their first launches.

        Raises:
            UsageError: there is none.
        """
        launches = (
            self.summary.filter((pl.col("name") == name) | (pl.col("full_name") == name))["launch"].sort().to_list()
        )
        if not launches:
            known = ", ".join(self.summary["name"].unique(maintain_order=True).head(_MOST_NAMES).to_list())
            raise UsageError(f"{self.source}: there is no kernel {name!r}; there are {known or 'none'}")
        return launches


_MOST_NAMES: Final = 8


def _paired(before: _Side, after: _Side, stated: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """`before`, `after` (first launches) and `matched` of each pair."""
    schema = {"before": pl.Int64, "after": pl.Int64, "matched": pl.String}
    named_pairs = [
        (launch_before, launch_after, "stated")
        for first, second in stated
        for launch_before, launch_after in zip(before.named(first), after.named(second), strict=False)
    ]
    pairs = pl.DataFrame(named_pairs, schema=schema, orient="row").unique(["before"], keep="first", maintain_order=True)
    pairs = pairs.unique(["after"], keep="first", maintain_order=True)
    left, right = with_keys(*(side.medians.launches.with_columns(launch=side.firsts) for side in (before, after)))
    for matched, keys in (("exact", ["kind", *KEY]), ("kernel", ["kind", "kernel"]), ("name", ["kind", "name"])):
        rank = pl.col("launch").rank("ordinal").over(keys)
        unpaired = [
            side.cast({"kind": pl.String})
            .sort("launch")
            .filter(~pl.col("launch").is_in(pairs[name].to_list()))
            .select(*keys, "launch", rank=rank, count=pl.len().over(keys))
            for side, name in ((left, "before"), (right, "after"))
        ]
        on = [*keys, "rank", "count"]
        joined = unpaired[0].join(unpaired[1], on=on, nulls_equal=True, suffix="_after", maintain_order="left")
        new = joined.select(before="launch", after="launch_after", matched=pl.lit(matched))
        pairs = pl.concat([pairs, new])
    return pairs


def _compared(before: _Side, after: _Side, pairs: pl.DataFrame) -> pl.DataFrame:
    """The pairs with the values of both sides and their changes (`COMPARED`), the longest before first."""
    columns = [*_SIDES, "cycles"]
    frame = pairs
    for name, side in (("before", before), ("after", after)):
        values = side.summary.select(pl.col(columns).name.suffix(f"_{name}")).with_columns(
            pl.col(f"launch_{name}").alias(name)
        )
        frame = frame.join(values, on=name, how="left", maintain_order="left")
    frame = frame.with_columns(
        time_ratio=_ratio("duration_ns"),
        cycles_ratio=_ratio("cycles"),
        bound_changed=pl.any_horizontal(
            pl.col(f"{name}_before").ne_missing(pl.col(f"{name}_after")) for name in ("bound", "unit")
        ),
        **{
            share.replace("_share", "_points"): 100 * (pl.col(f"{share}_after") - pl.col(f"{share}_before"))
            for share in _SHARES
        },
    )
    frame = frame.sort("total_ns_before", "launch_before", descending=[True, False], nulls_last=True)
    return COMPARED.checked(frame.with_row_index("pair").with_columns(pl.col("pair").cast(pl.Int64)))


def _ratio(quantity: str) -> pl.Expr:
    before = pl.col(f"{quantity}_before")
    return pl.when(before > 0).then(pl.col(f"{quantity}_after") / before)


def _metric_changes(before: _Side, after: _Side, groups: pl.DataFrame) -> pl.DataFrame:
    """Numeric metrics of both reports by pair (`METRIC_CHANGES`): differences of percentages, ratios of others."""
    numeric = [set(side.medians.metrics.select(cs.numeric()).columns) for side in (before, after)]
    common = sorted(name for name in numeric[0] & numeric[1] if not _NOT_COMPARED.match(name))
    if not common or groups.is_empty():
        return METRIC_CHANGES.empty()
    sides = []
    for name, side in (("before", before), ("after", after)):
        values = side.medians.metrics.select(pl.col(common).cast(pl.Float64)).with_columns(
            side.firsts.alias(f"launch_{name}")
        )
        side_values = groups.select("pair", f"launch_{name}").join(values, on=f"launch_{name}", maintain_order="left")
        sides.append(
            side_values.drop(f"launch_{name}")
            .unpivot(index="pair", variable_name="metric", value_name=name)
            .drop_nulls()
        )
    units = {**before.medians.units, **after.medians.units}
    frame = sides[0].join(sides[1], on=["pair", "metric"], maintain_order="left")
    frame = frame.with_columns(unit=pl.col("metric").replace_strict(units, default=None, return_dtype=pl.String))
    percent = (pl.col("unit") == "%").fill_null(value=False) | pl.col("metric").str.contains(r"\.pct($|_)|_pct$")
    return METRIC_CHANGES.checked(
        frame.with_columns(
            points=pl.when(percent).then(pl.col("after") - pl.col("before")),
            ratio=pl.when(~percent & (pl.col("before") != 0)).then(pl.col("after") / pl.col("before")),
        ).sort("pair", "metric")
    )


def _share(part_ns: pl.Series, total_ns: pl.Series) -> float | None:
    total = total_ns.sum()
    return float(part_ns.sum()) / float(total) if total else None
