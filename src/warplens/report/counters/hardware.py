"""Sections of the document on counters: speed of light, roofline, occupancy, launches, stalls and memory access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from warplens.analysis.counters.bounds import LONG_TAIL
from warplens.analysis.counters.groups import SUMMARY
from warplens.analysis.counters.memoryaccess import MEMORY_ACCESS, NO_STALL, STALLS
from warplens.analysis.counters.occupancy import CONFIGURATIONS, WARP_SIZE
from warplens.analysis.counters.roofline import POINTS, Roofline
from warplens.analysis.counters.speedoflight import BREAKDOWN, INSTRUCTIONS
from warplens.profile import Capture
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.counters.numbers import (
    BOUND,
    LEVELS,
    LIMITED_BY,
    CounterNumbers,
    bound_title,
    next_step_text,
    roof_title,
    with_names,
)
from warplens.report.document import Block, Document, Figure, Paragraph, SectionOf, Table, pick, quiet, with_texts


def _all_null(frame: pl.DataFrame, *columns: str) -> bool:
    return all(frame[name].is_null().all() for name in columns)


_SPEED_COLUMNS: Final = pick(
    SUMMARY,
    "name compute_share compute_unit pipe_share pipe_unit memory_share memory_unit dram_share l2_share l1_share",
)

_BREAKDOWN_COLUMNS: Final = pick(BREAKDOWN, SUMMARY.column("name"), "side unit share metric")

#: Units shown per side of a kernel, and kernels in the breakdown.
_PARTS: Final = 4
_BROKEN_DOWN: Final = 6


def speed_of_light(numbers: CounterNumbers) -> Iterator[Block]:
    """Throughput of each kernel as a share of the peaks, and of the units that it consists of."""
    summary = numbers.summary
    if _all_null(summary, "compute_share", "memory_share"):
        yield quiet("No throughput metrics were collected: --section SpeedOfLight, or --set basic.")
        return
    yield Table("speed-table", "Share of the peak rates", _SPEED_COLUMNS, summary)
    first = summary["launch"].head(_BROKEN_DOWN).to_list()
    parts = numbers.breakdown.filter(pl.col("launch").is_in(first) & (pl.col("share") > 0))
    parts = parts.unique(["launch", "side", "unit"], keep="first", maintain_order=True)
    parts = parts.group_by("launch", "side", maintain_order=True).head(_PARTS)
    if parts.height:
        caption = "What the two throughputs consist of, of the most expensive kernels"
        yield Table("breakdown", caption, _BREAKDOWN_COLUMNS, with_names(numbers, parts))


_OCCUPANCY_COLUMNS: Final = pick(
    SUMMARY,
    "name theoretical_share achieved_share",
    LIMITED_BY,
    "registers_blocks shared_memory_blocks warps_blocks barriers_blocks blocks_per_sm",
    Column("next", help="what would let a block more in, and the occupancy then", title="Next step"),
)


def occupancy(numbers: CounterNumbers) -> Iterator[Block]:
    """Theoretical and achieved occupancy of each kernel, and its limiter."""
    summary = numbers.summary
    if _all_null(summary, "theoretical_share", "achieved_share"):
        yield quiet(
            "Neither launch statistics nor occupancy were collected: --section LaunchStats --section Occupancy."
        )
        return
    rows = with_texts(summary, next=next_step_text)
    columns = _OCCUPANCY_COLUMNS
    if rows["cluster_blocks"].is_not_null().any():
        columns = (*columns[:2], *pick(SUMMARY, "cluster_blocks cluster_share"), *columns[2:])
    yield Table("occupancy-table", "Warps on a multiprocessor", columns, rows)
    yield quiet(
        "High occupancy is not a goal in itself: it helps where warps wait and other warps could run meanwhile."
    )


_LAUNCH_COLUMNS: Final = (
    *pick(SUMMARY, "name grid block"),
    *pick(CONFIGURATIONS, "registers_per_thread shared_bytes_per_block"),
    *pick(SUMMARY, "waves tail_share"),
    Column("problem"),
)


def launch(numbers: CounterNumbers) -> Iterator[Block]:
    """Launch configurations of the kernels, and their problems."""
    rows = numbers.summary.join(
        numbers.configurations.select("launch", "registers_per_thread", "shared_bytes_per_block", "threads_per_block"),
        on="launch",
        how="left",
        maintain_order="left",
    )
    rows = with_texts(rows, problem=_problems)
    with_problem = rows["problem"].count()
    summary = f"{fmt.count(with_problem)} of {fmt.count(rows.height)} launch configurations have a problem."
    yield Paragraph(summary if with_problem else "No launch configuration stands out.")
    rows = rows.sort(pl.col("problem").is_null(), maintain_order=True)
    yield Table("launch-table", "Launch configurations", _LAUNCH_COLUMNS, rows)


def _problems(row: Mapping[str, Any]) -> str | None:
    """The problems of a launch configuration; None if there are none."""
    problems = []
    blocks, multiprocessors, threads = row["grid_blocks"], row["sm_count"], row["threads_per_block"]
    if row["waves"] is not None and row["waves"] < 1:
        too_few = multiprocessors and blocks is not None and blocks < multiprocessors
        block_count = (
            f"{fmt.count(blocks)} blocks for {fmt.count(multiprocessors)} multiprocessors" if too_few else None
        )
        problems.append(block_count or "less than one wave: the GPU is never full")
    if row["tail_share"] is not None and row["tail_share"] >= LONG_TAIL:
        problems.append(f"the partial last wave takes {fmt.share(row['tail_share'])} of the time")
    if threads and threads % WARP_SIZE:
        problems.append(f"blocks of {fmt.count(threads)} threads fill no whole number of warps")
    if row["limiter"] in ("warps", "blocks") and row["next_share"] is not None:
        problems.append(f"the block size holds occupancy at {fmt.share(row['theoretical_share'])}")
    if row["cluster_share"] is not None and row["cluster_share"] <= 0.99 * row["theoretical_share"]:
        problems.append(f"clusters of {row['cluster_blocks']} leave multiprocessors partly empty")
    return "; ".join(problems) or None


_STALL_COLUMNS: Final = pick(STALLS, SUMMARY.column("name"), "reason share waits_for remedy")

#: Waits shown per kernel, of at least this share of its cycles.
_WAITS: Final = 3
_LEAST_WAIT: Final = 0.05


def stalls(numbers: CounterNumbers) -> Iterator[Block]:
    """The main stall reasons of each kernel."""
    waits = numbers.stalls.filter(~pl.col("reason").is_in(sorted(NO_STALL)) & (pl.col("share") >= _LEAST_WAIT))
    if numbers.stalls.is_empty():
        yield quiet("No warp states were collected: --section WarpStateStats.")
        return
    shown = with_names(numbers, waits.group_by("launch", maintain_order=True).head(_WAITS))
    yield Table("stalls-table", "Longest waits of each kernel", _STALL_COLUMNS, shown, empty="No wait is long.")
    yield quiet("Waits matter where no unit is near its peak; a kernel at a roof waits for that roof.")


_MEMORY_COLUMNS: Final = pick(
    MEMORY_ACCESS,
    SUMMARY.column("name"),
    "dram_bytes_per_s dram_read_bytes dram_write_bytes l1_hit_share l2_hit_share",
    Column("streams", help=MEMORY_ACCESS.column("streaming").help, title="Streaming"),
    "global_load_sectors_per_request global_store_sectors_per_request global_wasted_share shared_conflict_share",
    "local_requests",
    INSTRUCTIONS.column("threads_per_instruction"),
)


def memory(numbers: CounterNumbers) -> Iterator[Block]:
    """Memory traffic, cache hit rates, coalescing and bank conflicts of each kernel."""
    rows = with_names(numbers, numbers.memory.join(numbers.instructions, on="launch", how="left"))
    metric_columns = [column.name for column in _MEMORY_COLUMNS if column.name not in ("name", "streams")]
    if _all_null(rows, *metric_columns):
        yield quiet("No memory metrics were collected: --section MemoryWorkloadAnalysis.")
        return
    rows = rows.with_columns(
        streams=pl.when("streaming").then(pl.lit("yes")).when(~pl.col("streaming")).then(pl.lit("no"))
    )
    columns = tuple(
        column for column in _MEMORY_COLUMNS if column.name in ("name", "streams") or not _all_null(rows, column.name)
    )
    yield Table("memory-table", "What moved, and why", columns, rows)
    yield quiet("Hit rates are facts, no grades: what reads every byte once finds little in a cache, and is healthy.")


_COLUMNS: Final = pick(
    POINTS,
    Column("number", pl.Int64, "the number that the chart calls it by", title="#"),
    "name total_ns",
    Column("arithmetic", help="the kind that came nearest to its own peak"),
    "flops_per_s",
    *(f"{level}_intensity" for level in LEVELS),
    Column("roof_title", help="the roof of which the largest share was reached", title="Nearest roof"),
    "roof_flops_per_s roof_share distance_share",
    BOUND.but(name="bound_title"),
)


_EXPLAINED: Final = (
    "A kernel stands once for each level of memory that it moved bytes through, on a thin line; the area of a point is "
    "the kernel's time. It cannot be above any of the roofs of its own colour, nor above that of its arithmetic. "
    "Diamonds are ridges, the intensity from which on arithmetic limits more than memory; the numbers are those of "
    "DRAM. A triangle at the edge stands further right than is drawn."
)

_L1_NOTE: Final = (
    "L1 traffic is what passes the load/store unit. Matrix products of compute capability 9.0 and later read shared "
    "memory, filled by bulk copies, without it: their points against L1 say nothing."
)


def numbered_points(analysis: Roofline) -> pl.DataFrame:
    """The points with `number` (1 for the most expensive), and titles of arithmetic, nearest roof and bound."""
    roofs = {"compute": "arithmetic", **LEVELS}
    titled = with_texts(
        analysis.points,
        arithmetic=_arithmetic,
        roof_title=lambda row: roofs.get(row["roof"]),
        bound_title=bound_title,
    )
    return titled.with_row_index("number", offset=1).with_columns(pl.col("number").cast(pl.Int64))


def roof_lines(analysis: Roofline) -> list[str]:
    """A line per source of roofs, with their heights."""
    by_source: dict[str, list[str]] = {}
    for row in analysis.roofs.iter_rows(named=True):
        by_source.setdefault(row["source"], []).append(f"{LEVELS.get(row['roof']) or roof_title(row)} {_height(row)}")
    return [f"roofs, {source}: {'; '.join(roofs)}" for source, roofs in by_source.items()]


def roofline_table(points: pl.DataFrame, limit: int | None = 15) -> Table:
    """The table of the points of `numbered_points`."""
    return Table(
        "roofline-table", "Kernels under their roofs", _COLUMNS, points, limit, empty="No kernel was profiled."
    )


def why_no_chart(analysis: Roofline) -> str | None:
    """Why there is no roofline chart, and what to collect for one; None if there is one."""
    if not analysis.placed.is_empty():
        return None
    if analysis.points.is_empty():
        return "The report holds no profiled kernel."
    sections = (
        "--section SpeedOfLight_HierarchicalSingleRooflineChart --section SpeedOfLight_HierarchicalTensorRooflineChart"
    )
    if not analysis.counted:
        return f"The report has no counters for a roofline. Collect them: {sections}"
    return f"No kernel did arithmetic that was counted, so that none has a place in a chart. To count all: {sections}"


def roofline_figure(analysis: Roofline, points: pl.DataFrame) -> Figure | None:
    """The roofline chart; None if no kernel can be drawn in it."""
    placed = points.filter(pl.col("launch").is_in(analysis.placed["launch"].to_list()))
    if placed.is_empty() or not (analysis.roofs["roof"] == "compute").any():
        return None
    from warplens.report.charts.plane import roofline_chart

    largest = ", ".join(
        f"{row['number']} {fmt.shorten_kernel(row['full_name'])} at {fmt.share(row['roof_share'])} of its "
        f"{row['roof_title']} roof"
        for row in placed.head(3).iter_rows(named=True)
    )
    return Figure(
        "roofline",
        "Roofline: achieved FLOP/s against FLOPs per byte",
        roofline_chart(placed, analysis.roofs),
        f"Hierarchical roofline of {placed.height} kernels; the most expensive: {largest}",
    )


def roofline(analysis: Roofline) -> Iterator[Block]:
    """Chart and table of a roofline, with the sources of its roofs."""
    points = numbered_points(analysis)
    figure = roofline_figure(analysis, points)
    if figure is not None:
        from warplens.report.charts.plane import MOST_POINTS

        yield figure
        yield quiet(_EXPLAINED)
        if analysis.placed.height > MOST_POINTS:
            yield Paragraph(f"The {MOST_POINTS} most expensive kernels are drawn; the table has all.")
        if left_out := points.height - analysis.placed.height:
            yield Paragraph(
                f"{fmt.count(left_out)} of {fmt.count(points.height)} kernels did no arithmetic that was counted, such "
                "as copies: they have no intensity, and stand in the table alone."
            )
    elif reason := why_no_chart(analysis):
        yield Paragraph(reason)
    if not analysis.roofs.is_empty():
        yield roofline_table(points)
        for line in roof_lines(analysis):
            yield quiet(f"{fmt.capitalised(line)}.")
        yield quiet(_L1_NOTE)


def roofline_document(reports: Sequence[tuple[Capture, Roofline]]) -> Document:
    """A document of rooflines only, one section per report."""
    sections = []
    for position, (capture, analysis) in enumerate(reports, start=1):
        title = fmt.printable(capture.source) if len(reports) > 1 else "Roofline"
        kind: SectionOf[Roofline] = SectionOf("roofline-section", title, roofline)
        sections.append(kind.of(analysis, f"p{position}-" if len(reports) > 1 else ""))
    first = reports[0][0]
    gpus = fmt.gpu_names(*(capture for capture, _ in reports))
    return Document(
        title=fmt.printable(first.source) if len(reports) == 1 else f"{len(reports)} rooflines",
        lead=_lead(reports),
        sections=tuple(filter(None, sections)),
        meta=(*((("GPU", gpus),) if gpus else ()), ("Recorded with", fmt.recorded_with(first))),
    )


def _lead(reports: Sequence[tuple[Capture, Roofline]]) -> str:
    points = pl.concat([analysis.points for _, analysis in reports])
    reached = points.drop_nulls("roof_share")
    if reached.is_empty():
        return "No kernel has counters for a roofline."
    below = reached.filter(pl.col("roof_share") < _NEAR)
    at_roof = reached.height - below.height
    return (
        f"{fmt.count(at_roof)} of {fmt.count(reached.height)} kernels reach {fmt.share(_NEAR)} of their nearest roof "
        "or more. What others miss is in the column “Distance”."
    )


#: Share of its roof from which on a kernel counts as at the roof, the same as for a full unit in `kernel_bounds`.
_NEAR: Final = 0.8


def _arithmetic(row: Mapping[str, Any]) -> str | None:
    if row["precision"] is None:
        return "uncounted tensor" if row["uncounted_tensor"] else None
    if row["precision"] != "tensor":
        return str(row["precision"]).upper()
    parts = ["tensor", (row["format"] or "").upper().replace("_", "/"), "sparse" if row["sparse"] else ""]
    return " ".join(part for part in parts if part)


def _height(row: Mapping[str, Any]) -> str:
    write = fmt.flop_rate if row["roof"] == "compute" else fmt.bandwidth
    most, least = write(row["peak"]), write(row["least_peak"])
    return most if most == least else f"{least} to {most} (by the clocks of the launches)"
