"""Key figures of two sides of traces: tiles, and both sides next to each other; launches; statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.report import format as fmt
from warplens.report.comparison.causes import BOUND_TITLES, forbids_verdict
from warplens.report.comparison.words import VERDICT_TITLES, capitalised, interval_text, signed_share
from warplens.report.document import KeyFigure, Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.report.comparison.numbers import StepNumbers
    from warplens.report.format import Kind, Scalar

__all__ = ["launch_table", "side_table", "statistics_table", "step_tiles"]

_COLUMNS: Final = (
    TableColumn("figure", "Figure", "text"),
    TableColumn("baseline", "Baseline", "text"),
    TableColumn("variant", "Variant", "text"),
    TableColumn("change", "Change", "text", "Of the baseline; percentage points of shares."),
)

_STATISTICS: Final = (
    TableColumn("side", "Side", "text"),
    TableColumn("files", "Files", "count", "Independent of each other."),
    TableColumn("steps", "Steps", "count"),
    TableColumn("median_ns", "Median", "duration_ns", "Of the files' medians."),
    TableColumn("least_ns", "Least", "duration_ns"),
    TableColumn("greatest_ns", "Greatest", "duration_ns"),
)


def step_tiles(numbers: StepNumbers) -> tuple[KeyFigure, ...]:
    """The comparison in a few numbers."""
    found, why, difference = numbers.comparison, numbers.why, numbers.difference
    per = difference.per
    title = capitalised(VERDICT_TITLES[found.verdict]) if forbids_verdict(numbers) is None else "Not comparable"
    idle = float(difference.wall.variant.idle_ns - difference.wall.baseline.idle_ns)
    tiles = [
        KeyFigure("Verdict", title, "text", f"{signed_share(found.ratio.estimate - 1)} ({interval_text(found.ratio)})"),
        KeyFigure(f"Change per {per}", float(difference.wall.change_ns), "duration_ns", "Variant minus baseline."),
        KeyFigure("GPU work", _change_of(why.gpu_change_share), "text", "Change of the GPU's computing time."),
        KeyFigure("Idle", idle, "duration_ns", f"Change of the GPU's idle time per {per}."),
        KeyFigure("Launches", round(why.calls_change, 1), "count", f"More calls per {per} that issue GPU work."),
        KeyFigure("Cost of one", why.host_ns_per_launch, "duration_ns", "Host time per launch on the slower side."),
    ]
    if why.flops_ratio is not None:
        tiles.append(KeyFigure("FLOPs", _change_of(why.flops_ratio - 1), "text", "Change of operations."))
    return tuple(tiles)


def _change_of(share: float | None) -> str:
    return fmt.MISSING if share is None else signed_share(share)


def side_table(numbers: StepNumbers) -> Table:
    """Both sides next to each other."""
    wall, launches = numbers.difference.wall, numbers.difference.launches
    kernels, work = numbers.difference.kernels, numbers.difference.work
    found, per = numbers.comparison, numbers.difference.per
    before, after, counts = wall.baseline, wall.variant, kernels.launches_per_step
    rows = [
        _row(f"{capitalised(per)} time, median", found.baseline_ns, found.variant_ns, "duration_ns"),
        _row(f"{capitalised(per)} time, mean", float(before.wall_ns), float(after.wall_ns), "duration_ns"),
        _row("GPU busy", launches.baseline.busy_share, launches.variant.busy_share, "share"),
        _row(f"GPU idle per {per}", float(before.idle_ns), float(after.idle_ns), "duration_ns"),
        _row(f"Kernel time per {per}", *kernels.ns_per_step, "duration_ns"),
        _row(f"Kernels per {per}", round(counts[0], 1), round(counts[1], 1), "count"),
        _row(f"FLOPs per {per}", work.baseline_flops, work.variant_flops, "flop_count"),
    ]
    return Table("sides", "Both sides", _COLUMNS, _frame(row for row in rows if row["baseline"] != fmt.MISSING), None)


def launch_table(numbers: StepNumbers) -> Table:
    """How both sides launch their work, and what it costs the host."""
    before, after = numbers.difference.launches.baseline, numbers.difference.launches.variant
    rows = [
        _row("Launching calls", round(before.calls, 1), round(after.calls, 1), "count"),
        _row("Graph launches", round(before.graph_launches, 1), round(after.graph_launches, 1), "count"),
        _row("Kernels inside graphs", round(before.graph_kernels, 1), round(after.graph_kernels, 1), "count"),
        _row("Host time per launch", before.host_ns_per_launch, after.host_ns_per_launch, "duration_ns"),
        _row("Waiting for launches", before.issue_share, after.issue_share, "share"),
        _row("Waiting for the host otherwise", before.host_share, after.host_share, "share"),
        _row("Nothing was queued", before.queue_empty_share, after.queue_empty_share, "share"),
        _row("Launched onto an idle GPU", before.behind_share, after.behind_share, "share"),
        _row("Limited by", BOUND_TITLES[before.bound], BOUND_TITLES[after.bound], "text"),
    ]
    caption = f"Launches, per {numbers.difference.per}"
    return Table("launches", caption, _COLUMNS, _frame(row for row in rows if not _empty(row)), None)


def statistics_table(numbers: StepNumbers) -> Table:
    """The samples that the verdict is from."""
    rows = []
    for side, samples in zip((numbers.baseline, numbers.variant), numbers.samples, strict=True):
        rows.append(
            {
                "side": side.name,
                "files": len(side.files),
                "steps": samples.count,
                "median_ns": samples.median_ns,
                "least_ns": float(samples.values.min()),
                "greatest_ns": float(samples.values.max()),
            }
        )
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
    """Whether neither side has any of it, or nobody knows."""
    return {row["baseline"], row["variant"]} <= {"0", fmt.MISSING}


def _frame(rows: Iterator[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={column.key: pl.String for column in _COLUMNS})
