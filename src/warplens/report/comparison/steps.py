"""Tables, key figures and bars of the comparison of two sides of traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import polars as pl

from warplens.compare.difference import PARTS, StepDifference, WallSplit
from warplens.compare.places import PHASE_CHANGES, RANGE_CHANGES
from warplens.compare.work import KERNEL_CHANGES, TRANSFER_CHANGES
from warplens.profile.columns import KERNEL_NAME, column
from warplens.profile.schema import Column, Kind
from warplens.report import text as fmt
from warplens.report.comparison.numbers import KERNEL_GROUPS, StepNumbers
from warplens.report.comparison.words import (
    BOUND_TITLES,
    LAUNCHING,
    VERDICT_TITLES,
    forbids_verdict,
    hides_kernels,
    interval_text,
    signed_share,
)
from warplens.report.document import KeyFigure, Segment, Strip, Table, pick, with_texts
from warplens.report.text import Scalar, part_title, phase_title
from warplens.report.theme import part_fill

_COLUMNS: Final = (
    Column("figure"),
    Column("baseline"),
    Column("variant"),
    column("change", help="of the baseline; percentage points of shares"),
)

_STATISTICS: Final = (
    column("side", help=""),
    Column("files", pl.Int64, "independent of each other"),
    column("steps"),
    column("median_ns", help="of the files' medians"),
    Column("least_ns", pl.Float64, "the shortest step"),
    Column("greatest_ns", pl.Float64, "the longest step"),
)


def step_tiles(numbers: StepNumbers) -> tuple[KeyFigure, ...]:
    """The key figures of a comparison."""
    comparison, why, difference = numbers.comparison, numbers.why, numbers.difference
    per = difference.per
    title = (
        fmt.capitalised(VERDICT_TITLES[comparison.verdict]) if forbids_verdict(numbers) is None else "Not comparable"
    )
    idle = float(difference.wall.variant.idle_ns - difference.wall.baseline.idle_ns)
    sign = "+" if why.calls_change > 0 else ""
    change = f"{signed_share(comparison.ratio.estimate - 1)} ({interval_text(comparison.ratio)})"
    change_ns, launches = float(difference.wall.change_ns), f"{sign}{fmt.count(round(why.calls_change, 1))}"
    tiles = [
        KeyFigure("Verdict", title, "text", change),
        KeyFigure(f"Change per {per}", change_ns, "change_ns", "Variant minus baseline, of means."),
        KeyFigure("GPU work", _change_of(why.gpu_change_share), "text", "Change of the GPU's computing time."),
        KeyFigure("GPU idle", idle, "change_ns", f"Change of the GPU's idle time per {per}."),
        KeyFigure("Launches", launches, "text", f"Change of launches per {per}."),
        KeyFigure("Cost of a launch", why.host_ns_per_launch, "duration_ns", "Host time, on the slower side."),
    ]
    if why.flops_ratio is not None:
        tiles.append(KeyFigure("FLOPs", _change_of(why.flops_ratio - 1), "text", "Change of operations."))
    return tuple(tiles)


def _change_of(share: float | None) -> str:
    return fmt.MISSING if share is None else signed_share(share)


def side_table(numbers: StepNumbers) -> Table:
    """Both sides side by side."""
    wall, launches = numbers.difference.wall, numbers.difference.launches
    kernels, work = numbers.difference.kernels, numbers.difference.work
    comparison, per = numbers.comparison, numbers.difference.per
    before, after, counts = wall.baseline, wall.variant, kernels.launches_per_step
    rows = [
        _row(f"{fmt.capitalised(per)} time, median", comparison.baseline_ns, comparison.variant_ns, "duration_ns"),
        _row(f"{fmt.capitalised(per)} time, mean", float(before.wall_ns), float(after.wall_ns), "duration_ns"),
        _row("GPU busy", launches.baseline.busy_share, launches.variant.busy_share, "share"),
        _row(f"GPU idle per {per}", float(before.idle_ns), float(after.idle_ns), "duration_ns"),
        _row(f"Kernel time per {per}", *kernels.ns_per_step, "duration_ns"),
        _row(f"Kernels per {per}", round(counts[0], 1), round(counts[1], 1), "count"),
        _row(f"FLOPs per {per}", work.baseline_flops, work.variant_flops, "flop_count"),
    ]
    return Table("sides", "Both sides", _COLUMNS, _frame(row for row in rows if row["baseline"] != fmt.MISSING), None)


def launch_table(numbers: StepNumbers) -> Table:
    """Launches of both sides, and their cost on the host."""
    before, after = numbers.difference.launches.baseline, numbers.difference.launches.variant
    rows = [
        _row("Launching calls", round(before.calls, 1), round(after.calls, 1), "count"),
        _row("Graph launches", round(before.graph_launches, 1), round(after.graph_launches, 1), "count"),
        _row("Kernels inside graphs", round(before.graph_kernels, 1), round(after.graph_kernels, 1), "count"),
        _row("Host time per launch", before.host_ns_per_launch, after.host_ns_per_launch, "duration_ns"),
        _row(fmt.capitalised(LAUNCHING), before.issue_share, after.issue_share, "share"),
        _row("Waiting for the host otherwise", before.host_share, after.host_share, "share"),
        _row("Nothing was queued", before.queue_empty_share, after.queue_empty_share, "share"),
        _row("Launched onto an idle GPU", before.behind_share, after.behind_share, "share"),
        _row("Limited by", BOUND_TITLES[before.bound], BOUND_TITLES[after.bound], "text"),
    ]
    caption = f"Launches, per {numbers.difference.per}"
    return Table("launches", caption, _COLUMNS, _frame(row for row in rows if not _empty(row)), None)


def statistics_table(numbers: StepNumbers) -> Table:
    """The samples behind the verdict."""
    rows = [
        {
            "side": side.name,
            "files": len(side.files),
            "steps": samples.count,
            "median_ns": samples.median_ns,
            "least_ns": float(samples.values.min()),
            "greatest_ns": float(samples.values.max()),
        }
        for side, samples in zip((numbers.baseline, numbers.variant), numbers.samples, strict=True)
    ]
    noise = numbers.comparison.noise.share
    caption = "Step times" + (f"; halves of one side differ by up to {fmt.share(noise)}" if noise is not None else "")
    return Table("samples", caption, _STATISTICS, pl.DataFrame(rows), None)


def _row(figure: str, baseline: Scalar, variant: Scalar, kind: Kind) -> dict[str, str]:
    return {
        "figure": figure,
        "baseline": fmt.value(baseline, kind),
        "variant": fmt.value(variant, kind),
        "change": _change(baseline, variant, kind),
    }


def _change(baseline: Scalar, variant: Scalar, kind: Kind) -> str:
    if not isinstance(baseline, int | float) or not isinstance(variant, int | float):
        return "" if kind == "text" else fmt.MISSING
    if kind == "share":
        points = 100 * (variant - baseline)
        return f"{'+' if points > 0.05 else '−' if points < -0.05 else ''}{abs(points):.1f} pp"
    if baseline == variant:
        return "none"
    return signed_share(variant / baseline - 1) if baseline else fmt.MISSING


def _empty(row: dict[str, str]) -> bool:
    """Whether the figure is zero or unknown on both sides."""
    return {row["baseline"], row["variant"]} <= {"0", fmt.MISSING}


def _frame(rows: Iterator[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={column.name: pl.String for column in _COLUMNS})


#: Parts that change by less than this share of the sum of all changes are merged in the waterfall.
_DRAWN_SHARE: Final = 0.01

#: Parts below this share of the longer side, on both sides, are merged into one segment of a bar.
_DRAWN_SEGMENT: Final = 0.03

#: If the absolute changes of the parts sum to more than this many times the change of the wall time, they nearly
#: cancel, and shares of the change (hundreds of percent) are left out.
_OPPOSING: Final = 5.0
#: Unless they sum to less than this share of the baseline's wall time, as noise does.
_OPPOSING_SHARE: Final = 0.02

#: Display names of groups that differ from the key.
_GROUPS: Final = {
    "compute": "GPU work",
    "graph": "CUDA graphs",
    "copy": "copies",
}

_PART_COLUMNS: Final = pick(PARTS, column("title"), "baseline_ns variant_ns change_ns share")
_PER_STEP: Final = "baseline_ns_per_step variant_ns_per_step change_ns_per_step"
_LAUNCHES: Final = "baseline_launches_per_step variant_launches_per_step"
_KERNEL_COLUMNS: Final = pick(
    KERNEL_GROUPS,
    KERNEL_NAME,
    "change",
    _LAUNCHES,
    _PER_STEP,
    Column("sure", help="whether the difference is more than chance among so many kernels", title="Decided"),
    column(
        "before",
        dtype=pl.String,
        help="the kernel that stood there before, where it was another",
        title="In place of",
        kind="kernel",
    ),
)
_PLACE_COLUMNS: Final = pick(
    KERNEL_CHANGES,
    KERNEL_NAME,
    "change",
    Column("place", title="Range", kind="name"),
    "matched_by",
    _LAUNCHES,
    _PER_STEP,
)
_RANGE_COLUMNS: Final = pick(
    RANGE_CHANGES,
    column("title", title="Range", kind="name"),
    "baseline_kernels_per_step variant_kernels_per_step",
    _PER_STEP,
    "own_change_ns_per_step",
)
_TRANSFER_COLUMNS: Final = pick(
    TRANSFER_CHANGES,
    column("title", title="What"),
    "baseline_count_per_step variant_count_per_step baseline_bytes_per_step variant_bytes_per_step",
    "baseline_ns_per_step variant_ns_per_step exposed_change_ns_per_step",
)
_PHASE_COLUMNS: Final = pick(PHASE_CHANGES, column("title", title="Phase"), _PER_STEP)


def part_name(group: str, part: str) -> str:
    """The display name of a part of the wall time: `GPU work: matrix products (GEMM)`."""
    kind, title = _GROUPS.get(group, group), part_title(group, part)
    return title if title == kind else f"{kind}: {title}"


def _over_gpus(how: str, difference: StepDifference) -> str:
    """How the numbers of several GPUs are one, for a caption; empty for a single GPU."""
    least, most = difference.gpus
    return "" if most == 1 else f" ({how} of {most if least == most else f'{least} and {most}'} GPUs)"


def part_table(difference: StepDifference, most: int | None = None) -> Table:
    """Every part of the wall time on both sides; the last row is their sum, the wall time of a step or the window.

    Of the parts, the `most` with the largest changes have a row of their own, and the others share one; None for all.
    """
    wall, per = difference.wall, difference.per
    rows = wall.frame().with_columns(pl.col("group").cast(pl.String))
    rows = with_texts(rows, title=lambda row: part_name(row["group"], row["part"]))
    if most is not None:
        rows = _most_changed(rows, most)
    total = pl.DataFrame(
        {
            "title": [per],
            "baseline_ns": [float(wall.baseline.wall_ns)],
            "variant_ns": [float(wall.variant.wall_ns)],
            "change_ns": [float(wall.change_ns)],
            "share": [1.0 if wall.change_ns else None],
        },
        schema_overrides={"share": pl.Float64},
    )
    caption = f"The wall time of a {per}, part by part{_over_gpus('mean', difference)}"
    columns = _PART_COLUMNS
    changes_ns = sum(abs(part.change_ns) for part in wall.parts)
    if changes_ns > _OPPOSING * abs(wall.change_ns):
        columns = _PART_COLUMNS[:-1]
        if changes_ns >= _OPPOSING_SHARE * wall.baseline.wall_ns:
            caption += ": opposing changes that nearly cancel"
    return Table("parts", caption, columns, pl.concat([rows, total], how="diagonal"), None)


def _most_changed(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """The rows with the largest changes, in their order, and the sum of the others."""
    if rows.height <= most + 1:
        return rows
    rank = pl.col("change_ns").abs().rank("ordinal", descending=True)
    named = rows.filter(rank <= most)
    rest = rows.filter(rank > most).select(
        pl.format("{} parts that change less", pl.len()).first().alias("title"),
        pl.col("baseline_ns", "variant_ns", "change_ns").sum(),
        pl.when(pl.col("share").count() > 0).then(pl.col("share").sum()).first(),
    )
    return pl.concat([named, rest], how="diagonal")


def side_strip(wall: WallSplit, side: Literal["baseline", "variant"], per: str) -> Strip:
    """One side's wall time as a bar. Both sides have the same scale and order, and merge the same small parts."""
    longest_ns = float(max(wall.baseline.wall_ns, wall.variant.wall_ns)) or 1.0
    wall_ns = float((wall.baseline if side == "baseline" else wall.variant).wall_ns) or 1.0
    title = f"The {side}'s {'mean step' if per == 'step' else per}: {fmt.duration(wall_ns)}"
    return Strip(side, 0, title, tuple(_side_segments(wall, side, wall_ns, longest_ns)), wall_ns / longest_ns)


def _side_segments(wall: WallSplit, side: str, wall_ns: float, longest_ns: float) -> Iterator[Segment]:
    parts = sorted(wall.parts, key=lambda part: (part.group == "idle", -(part.baseline_ns + part.variant_ns)))
    small_ns = 0.0
    for part in parts:
        time_ns = float(part.baseline_ns if side == "baseline" else part.variant_ns)
        if max(part.baseline_ns, part.variant_ns) < _DRAWN_SEGMENT * longest_ns:
            small_ns += time_ns
        elif time_ns:
            yield Segment(
                part_title(part.group, part.part), time_ns, time_ns / wall_ns, part_fill(part.group, part.part)
            )
    if small_ns:
        yield Segment("smaller parts", small_ns, small_ns / wall_ns, "other")


def waterfall_rows(wall: WallSplit) -> pl.DataFrame:
    """The parts for `waterfall_chart` (`name`, `delta`, `detail`), with small ones merged into the last row.

    They sum to the change of the wall time, up to floating-point rounding.
    """
    rows = wall.frame()
    threshold = _DRAWN_SHARE * float(rows["change_ns"].abs().sum())
    drawn: list[tuple[str, float, str]] = []
    small: list[tuple[str, float, str]] = []
    for row in rows.iter_rows(named=True):
        name = part_name(str(row["group"]), row["part"])
        detail = f"{fmt.duration(row['baseline_ns'])} → {fmt.duration(row['variant_ns'])}"
        (drawn if abs(row["change_ns"]) > threshold else small).append((name, row["change_ns"], detail))
    # Savings first, then costs.
    drawn.sort(key=lambda item: item[1])
    if rest := sum(change for _, change, _ in small):
        drawn.append(
            (f"{len(small)} smaller changes" if len(small) > 1 else small[0][0], rest, "too small to draw apart")
        )
    return pl.DataFrame(drawn, schema={"name": pl.String, "delta": pl.Float64, "detail": pl.String}, orient="row")


#: Words for kernels of one side, where the other side's CUDA graphs may hide them.
_SHOWN_BY_ONE: Final = {"added": "variant alone", "removed": "baseline alone"}


def kernel_table(numbers: StepNumbers, limit: int | None = 15, *, narrow: bool = False) -> Table:
    """Kernels removed, added and changed, by name (`KERNEL_GROUPS`), the largest change first.

    With `narrow`, for a terminal, without the column of replaced kernels.
    """
    kernels = numbers.kernels
    if hides_kernels(numbers.difference):
        kernels = kernels.with_columns(pl.col("change").replace(_SHOWN_BY_ONE))
    both = kernels.select("baseline_full_name", "variant_full_name").iter_rows()
    # Kernels that differ only in template arguments have the same short name, which is not repeated.
    renamed = pl.Series([_short_names_differ(*names) for names in both], dtype=pl.Boolean)
    unknown = (pl.col("adjusted_p").is_null()) & ~pl.col("decided")
    rows = kernels.with_columns(
        pl.coalesce("variant_full_name", "baseline_full_name").alias("full_name"),
        pl.when(renamed).then("baseline_full_name").alias("before"),
        pl.when("decided").then(pl.lit("yes")).when(unknown).then(pl.lit("not repeated"))
        .when(pl.col("verdict") == "same").then(pl.lit("the same")).otherwise(pl.lit("no")).alias("sure"),
    )  # fmt: skip
    caption = f"Kernels, the largest change first{_over_gpus('sum', numbers.difference)}"
    columns = tuple(
        column for column in _KERNEL_COLUMNS if column.name != "before" or (rows["before"].count() and not narrow)
    )
    return Table("kernels", caption, columns, rows, limit, empty="Neither side has kernels.")


def _short_names_differ(before: str | None, after: str | None) -> bool:
    return before is not None and after is not None and fmt.shorten_kernel(before) != fmt.shorten_kernel(after)


def place_table(difference: StepDifference) -> Table:
    """The kernels by place in the program (`KERNEL_CHANGES`)."""
    rows = difference.kernels.table.with_columns(
        pl.col("change", "matched_by").cast(pl.String),
        pl.coalesce("variant_full_name", "baseline_full_name").alias("full_name"),
        pl.coalesce("variant_range", "baseline_range").alias("place"),
    )
    caption = f"The same by place in the program{_over_gpus('sum', difference)}"
    return Table("kernel-places", caption, _PLACE_COLUMNS, rows, 15)


def range_table(ranges: pl.DataFrame) -> Table:
    """GPU work by range (`RANGE_CHANGES`), as a tree."""
    rows = ranges.with_columns(pl.when(pl.col("depth") == 0).then(pl.lit("step")).otherwise("name").alias("title"))
    return Table("ranges", "GPU work by range", _RANGE_COLUMNS, rows, 15, depth="depth")


def transfer_table(transfers: pl.DataFrame) -> Table:
    """Copies, fills and communication (`TRANSFER_CHANGES`)."""
    rows = fmt.with_part_titles(transfers)
    return Table("transfers", "Copies, fills and communication of a step", _TRANSFER_COLUMNS, rows, None)


def phase_table(phases: pl.DataFrame) -> Table:
    """GPU work by phase (`PHASE_CHANGES`)."""
    rows = with_texts(phases, title=lambda row: phase_title(row["phase"]))
    return Table("phases", "GPU work by phase", _PHASE_COLUMNS, rows, None)
