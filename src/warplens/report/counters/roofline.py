"""The roofline of a report: its chart, the table beside it, and the sentence that says where the roofs come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.report import format as fmt
from warplens.report.document import Document, Figure, Paragraph, Section, Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.analysis.counters.rooflinepoints import Roofline
    from warplens.profile import Capture
    from warplens.report.document import Block

__all__ = [
    "numbered_points",
    "roof_lines",
    "roofline_document",
    "roofline_figure",
    "roofline_section",
    "roofline_table",
    "why_no_chart",
]

_LEVELS: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}

_COLUMNS: Final = (
    TableColumn("number", "#", "count", "The number that the chart calls it by."),
    TableColumn("name", "Kernel", "kernel", full="full_name"),
    TableColumn("total_ns", "Time", "duration_ns", "Summed duration of the launches."),
    TableColumn("arithmetic", "Arithmetic", "text", "The kind that came nearest to its own peak."),
    TableColumn("flops_per_s", "Achieved", "flops", "Operations of that arithmetic, counted."),
    *(
        TableColumn(f"{level}_intensity", f"FLOP/B {title}", "number", f"Operations for each byte through {title}.")
        for level, title in _LEVELS.items()
    ),
    TableColumn("roof_title", "Nearest roof", "text", "The roof of which the largest share was reached."),
    TableColumn("roof_flops_per_s", "allows", "flops", "That roof at this intensity: the most that could be achieved."),
    TableColumn("roof_share", "Reached", "share", "Of that roof."),
    TableColumn("distance_share", "Distance", "share", "Of that roof: what is missing to it."),
    TableColumn("bound_title", "Bound", "text"),
)

#: Kernels that the chart draws at most.
_DRAWN: Final = 200

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


def numbered_points(found: Roofline) -> pl.DataFrame:
    """The points with `number` (1 for the most expensive), and texts for people: arithmetic, nearest roof, bound."""
    rows = found.points.to_dicts()
    return found.points.with_row_index("number", offset=1).with_columns(
        pl.col("number").cast(pl.Int64),
        pl.Series("arithmetic", [_arithmetic(row) for row in rows], dtype=pl.String),
        pl.Series("roof_title", [_nearest(row) for row in rows], dtype=pl.String),
        pl.Series("bound_title", [_bound(row) for row in rows], dtype=pl.String),
    )


def roof_lines(found: Roofline) -> list[str]:
    """A line for each source of roofs: what it is, and how high they are."""
    by_source: dict[str, list[str]] = {}
    for row in found.roofs.iter_rows(named=True):
        by_source.setdefault(row["source"], []).append(f"{_roof_name(row)} {_height(row)}")
    return [f"roofs, {source}: {'; '.join(roofs)}" for source, roofs in by_source.items()]


def roofline_table(points: pl.DataFrame, at: str = "", limit: int | None = 15) -> Table:
    """The points (of `numbered_points`) for people."""
    return Table(
        f"{at}roofline-table", "Kernels under their roofs", _COLUMNS, points, limit, empty="No kernel was profiled."
    )


def why_no_chart(found: Roofline) -> str | None:
    """Why there is nothing to draw, and what to collect; None if there is a chart."""
    if not found.placed.is_empty():
        return None
    sections = (
        "--section SpeedOfLight_HierarchicalSingleRooflineChart --section SpeedOfLight_HierarchicalTensorRooflineChart"
    )
    if found.points["precision"].is_null().all() and found.roofs.is_empty():
        return f"The report has no counters for a roofline. Collect them: {sections}"
    return f"No kernel did arithmetic that was counted, so that none has a place in a chart. To count all: {sections}"


def roofline_figure(found: Roofline, points: pl.DataFrame, at: str = "") -> Figure | None:
    """The chart; None where no kernel has a place in it."""
    placed = points.filter(pl.col("launch").is_in(found.placed["launch"].to_list()))
    if placed.is_empty() or not (found.roofs["roof"] == "compute").any():
        return None
    from warplens.report.charts import roofline_chart  # noqa: PLC0415  tables do without Altair

    named = ", ".join(
        f"{row['number']} {fmt.shorten_kernel(row['full_name'])} at {fmt.share(row['roof_share'])} of its "
        f"{row['roof_title']} roof"
        for row in placed.head(3).iter_rows(named=True)
    )
    return Figure(
        f"{at}roofline",
        "Roofline: achieved FLOP/s against FLOPs per byte",
        roofline_chart(placed, found.roofs),
        f"Hierarchical roofline of {placed.height} kernels; the most expensive: {named}",
    )


def roofline_section(found: Roofline, at: str = "") -> Section:
    """Chart, table, roofs."""
    points = numbered_points(found)
    figure = roofline_figure(found, points, at)
    blocks: list[Block] = []
    if figure is not None:
        blocks += [figure, Paragraph(_EXPLAINED, quiet=True)]
    elif reason := why_no_chart(found):
        blocks.append(Paragraph(reason))
    left_out = points.height - found.placed.height
    if figure is not None and found.placed.height > _DRAWN:
        blocks.append(Paragraph(f"The {_DRAWN} most expensive kernels are drawn; the table has all."))
    if figure is not None and left_out:
        blocks.append(
            Paragraph(
                f"{fmt.count(left_out)} of {fmt.count(points.height)} kernels did no arithmetic that was counted, such "
                "as copies: they have no intensity, and stand in the table alone."
            )
        )
    if not found.roofs.is_empty():
        blocks.append(roofline_table(points, at))
        blocks += [Paragraph(f"{line[:1].upper()}{line[1:]}.", quiet=True) for line in roof_lines(found)]
        blocks.append(Paragraph(_L1_NOTE, quiet=True))
    return Section(f"{at}roofline-section", "Roofline", tuple(blocks))


def roofline_document(reports: Sequence[tuple[Capture, Roofline]]) -> Document:
    """A document of rooflines alone, one section a report."""
    sections = []
    for position, (capture, found) in enumerate(reports, start=1):
        section = roofline_section(found, f"p{position}-" if len(reports) > 1 else "")
        title = fmt.printable(capture.source) if len(reports) > 1 else section.title
        sections.append(Section(section.id, title, section.blocks))
    first = reports[0][0]
    devices = dict.fromkeys(device.name for capture, _ in reports for device in capture.devices)
    return Document(
        title=fmt.printable(first.source) if len(reports) == 1 else f"{len(reports)} rooflines",
        lead=_lead(reports),
        sections=tuple(sections),
        meta=(
            *((("GPU", ", ".join(devices)),) if devices else ()),
            ("Recorded with", f"{first.tool} {first.tool_version or ''}".strip()),
        ),
    )


def _lead(reports: Sequence[tuple[Capture, Roofline]]) -> str:
    points = pl.concat([found.points for _, found in reports])
    reached = points.drop_nulls("roof_share")
    if reached.is_empty():
        return "No kernel has counters for a roofline."
    far = reached.filter(pl.col("roof_share") < _NEAR)
    near = reached.height - far.height
    return (
        f"{fmt.count(near)} of {fmt.count(reached.height)} kernels reach {fmt.share(_NEAR)} of their nearest roof or "
        f"more. What others miss is in the column “Distance”."
    )


#: From here on a kernel is at its roof: the same four fifths from which on `kernel_bounds` calls a unit full.
_NEAR: Final = 0.8


def _arithmetic(row: Mapping[str, Any]) -> str | None:
    if row["precision"] is None:
        return "uncounted tensor" if row["uncounted_tensor"] else None
    if row["precision"] != "tensor":
        return str(row["precision"]).upper()
    parts = ["tensor", (row["format"] or "").upper().replace("_", "/"), "sparse" if row["sparse"] else ""]
    return " ".join(part for part in parts if part)


def _nearest(row: Mapping[str, Any]) -> str | None:
    return {"compute": "arithmetic", **_LEVELS}.get(row["roof"])


def _bound(row: Mapping[str, Any]) -> str:
    if row["bound"] == "small":
        return "too small to say"
    unit = _LEVELS.get(row["unit"], row["unit"])
    return f"{row['bound']} ({unit})" if row["bound"] in ("memory", "compute") and unit else str(row["bound"])


def _roof_name(row: Mapping[str, Any]) -> str:
    if row["roof"] != "compute":
        return _LEVELS[row["roof"]]
    if row["precision"] != "tensor":
        return str(row["precision"]).upper()
    named = f"tensor cores, {row['format'].upper().replace('_', '/')}" if row["format"] else "tensor cores"
    return f"{named}, sparse" if row["sparse"] else named


def _height(row: Mapping[str, Any]) -> str:
    write = fmt.flop_rate if row["roof"] == "compute" else fmt.bandwidth
    most, least = write(row["peak"]), write(row["least_peak"])
    return most if most == least else f"{least} to {most} (by the clocks of the launches)"
