"""The report of the token-reduction study: every share kept against the baseline, best modes, and the main sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from warplens.compare import SIDES
from warplens.compare.decisions import compare
from warplens.errors import MissingDataError, UsageError
from warplens.profile.columns import column, table
from warplens.profile.measurements import Measurements
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Paragraph, Section, Table, quiet
from warplens.studies.reports.evidence import study_sides
from warplens.studies.reports.growth import MOST_LINES, growth, growth_section, measured_times, told_apart
from warplens.studies.sweeps.numbers import speedup_of
from warplens.studies.sweeps.reading import sweep_of, wall_samples
from warplens.studies.sweeps.sweep import Cell
from warplens.studies.sweeps.words import columns_of

#: Settings that define a point of the grid, …
_POINT: Final = ("model", "input_size", "batch", "precision")
#: … and those that define a variant. All others are modes in which a variant can be run; users deploy the best one.
_VARIANT: Final = ("method", "keep", "locations", "schedule")

_SPEEDUP: Final = (
    column("speedup", title="Speed-up"),
    column("low", help="lower end of its 95 % interval"),
    column("high", help="upper end of its 95 % interval"),
    column("verdict", help="same: within 2 %"),
)

BEST_MODES: Final = table(
    "study: best modes",
    "A point, and a share of the tokens kept: the fastest way to run the baseline against the fastest of the variant."
    " `warplens study token-reduction`; the axes stand before these columns.",
    "method",
    column("keep", help="share of the tokens that each location keeps"),
    Column("baseline_mode", pl.String, "how the baseline is run", title="Baseline as"),
    column("baseline_ns").but(dtype=pl.Float64, help="median wall time of a step of the baseline"),
    Column("variant_mode", pl.String, "how the variant is run", title="Variant as"),
    column("variant_ns").but(dtype=pl.Float64, help="median wall time of a step of the variant"),
    _SPEEDUP,
)


def token_sections(measurements: Measurements) -> tuple[str, tuple[Section, ...]]:
    """The answer in one or two sentences, and the sections of the report."""
    pairs, best, axes = speedups(measurements), best_modes(measurements), _axes(measurements)
    sections, sentences = [], []
    if pairs.height:
        words = (
            "FLOPs saved is what the speed-up would be if time went with them. Both sides write attention out. Each "
            "interval is of 95 % by itself; those of the sweep below are of 95 % together."
        )
        ratio_help = "FLOPs of the baseline over those of the variant"
        saved = Column("flops_ratio", pl.Float64, ratio_help, title="FLOPs saved")
        modes = _varied_modes(measurements, pairs)
        columns = _columns(pairs, [*axes, *modes], "keep baseline_ns variant_ns", saved)
        table = Table("speedups", "Variant against the baseline of the same execution", columns, pairs, limit=None)
        blocks: tuple[Block, ...] = (*_curves(pairs, axes, modes), table, quiet(words))
        sections.append(Section("paradox", "Every keep against the baseline", blocks))
        least = pairs.filter(pl.col("keep") == pairs.get_column("keep").min())
        keep = fmt.number(least.get_column("keep")[0])
        sentences.append(f"With keep {keep}, the variant is {_verdicts(least)}, run the way of the baseline.")
    if best.height:
        words = (
            "The fastest way to run each, whatever the other needs. The fastest of several is chosen by the same "
            "repetitions that are shown, which favours both sides alike."
        )
        columns = _columns(best, axes, "keep baseline_mode baseline_ns variant_mode variant_ns")
        table = Table("best-of-each", "Fastest baseline against fastest variant", columns, best, limit=None)
        sections.append(Section("best-modes", "Each in its best mode", (table, quiet(words))))
        least = best.filter(pl.col("keep") == best.get_column("keep").min())
        sentences.append(f"Each in its best mode, it is {_verdicts(least)}.")
    if (growth_part := token_growth(measurements)) is not None and pairs.height:
        sections.append(growth_part)
    return " ".join(sentences), (*sections, *_swept(measurements))


def _columns(rows: pl.DataFrame, axes: list[str], *parts: str | Column) -> tuple[Column, ...]:
    """The axes, the method if there are several, the named columns, and the speed-up."""
    method = ("method",) if rows.get_column("method").n_unique() > 1 else ()
    return columns_of(BEST_MODES, rows, axes, *method, *parts, *_SPEEDUP)


def token_tables(measurements: Measurements) -> dict[str, pl.DataFrame]:
    """The tables of the report, with exact values."""
    return {
        "speedups": speedups(measurements),
        "best_modes": best_modes(measurements),
        "growth": growth(measured_times(measurements.cells), *_axes_and_keys(measurements)),
    }


def token_growth(measurements: Measurements) -> Section | None:
    """The section on the growth of time with batch and input size, for the two sides of the study's report."""
    try:
        sides = study_sides(measurements)
    except MissingDataError:  # it holds no variant
        return None
    of_sides = [pl.all_horizontal(pl.col(name) == value for name, value in side.items()) for side in sides]
    cells = measured_times(measurements.cells).filter(pl.any_horizontal(of_sides))
    return growth_section(cells, *_axes_and_keys(measurements))


def _axes_and_keys(measurements: Measurements) -> tuple[list[str], list[str]]:
    """The axes and keys for `growth`."""
    cells = measurements.cells
    axes = [name for name in _axes(measurements) if cells.schema[name].is_numeric()]
    keys = [name for name in measurements.settings if name not in axes and not cells.schema[name].is_nested()]
    return axes, told_apart(cells, keys)


def _axes(measurements: Measurements) -> list[str]:
    """The settings of a point that vary."""
    cells = measurements.cells
    return [name for name in _POINT if name in cells.columns and cells.get_column(name).n_unique() > 1]


def _modes(measurements: Measurements) -> list[str]:
    """The settings other than point and variant that vary among the baselines or among the variants."""
    cells = measurements.cells
    sides = cells.filter(pl.col("method") == "none"), cells.filter(pl.col("method") != "none")
    others = [name for name in measurements.settings if name not in (*_POINT, *_VARIANT)]
    return [name for name in others if any(side.get_column(name).n_unique() > 1 for side in sides)]


def _variants(measurements: Measurements) -> list[tuple[str, float]]:
    """(method, share kept) of all variants, the largest share first."""
    rows = measurements.cells.filter(pl.col("method") != "none").select("method", "keep").unique()
    return sorted(rows.rows(), key=lambda row: (row[0], -row[1]))


def speedups(measurements: Measurements) -> pl.DataFrame:
    """One row per point, execution and share kept: the variant against the baseline of the same execution."""
    rows: list[dict[str, Any]] = []
    common = {"attention": "explicit"}
    for method, keep in _variants(measurements):
        try:
            sweep = sweep_of(measurements, {"method": "none", **common}, {"method": method, "keep": keep, **common})
        except UsageError:  # this variant has no point in common with the baseline
            continue
        rows += [
            {"method": method, "keep": keep, **point.settings, **_compared(point.baseline, point.variant)}
            for point in sweep.points
            if point.baseline is not None and point.variant is not None
        ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _compared(before: Cell, after: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {
        "baseline_ns": before.time_ns, "variant_ns": after.time_ns,
        "flops_ratio": before.flops / after.flops if before.flops and after.flops else None,
        "speedup": None, "low": None, "high": None, "verdict": None,
    }  # fmt: skip
    if not before.status == after.status == "measured":
        sides = zip(SIDES, (before, after), strict=True)
        lost = ", ".join(f"{side} {cell.status}" for side, cell in sides if cell.wall is None)
        row["verdict"] = lost.replace("-", " ")
    if before.wall is not None and after.wall is not None:
        row |= speedup_of(compare(before.wall, after.wall))
    return row


def timed_cells(measurements: Measurements) -> pl.DataFrame:
    """The measured cells with a latency, and in `cell` the row of each in the file."""
    timed = (pl.col("status") == "measured") & pl.col("latency_ns").is_not_null()
    return measurements.cells.with_row_index("cell").filter(timed)


def best_modes(measurements: Measurements) -> pl.DataFrame:
    """`BEST_MODES`: one row per point and share kept, the fastest baseline against the fastest variant."""
    axes, modes, cells = _axes(measurements), _modes(measurements), timed_cells(measurements)

    def mode(row: Mapping[str, Any]) -> str:
        texts = (
            (name.replace("_", " ") if row[name] else "") if isinstance(row[name], bool) else str(row[name])
            for name in modes
        )
        return ", ".join(filter(None, texts)) or "the only one"

    rows = []
    for key, group in cells.group_by(axes, maintain_order=True) if axes else [((), cells)]:
        ordered = group.sort("latency_ns")
        before = next(ordered.filter(pl.col("method") == "none").iter_rows(named=True), None)
        for method, keep in _variants(measurements) if before is not None else ():
            variants = ordered.filter((pl.col("method") == method) & (pl.col("keep") == keep))
            if before is None or variants.is_empty():
                continue
            after = variants.row(0, named=True)
            sides = [wall_samples(measurements, row["cell"]) for row in (before, after)]
            assert sides[0] is not None  # both cells were measured
            assert sides[1] is not None
            rows.append({
                **dict(zip(axes, key, strict=True)), "method": method, "keep": keep,
                "baseline_mode": mode(before), "baseline_ns": before["latency_ns"],
                "variant_mode": mode(after), "variant_ns": after["latency_ns"],
                **speedup_of(compare(sides[0], sides[1])),
            })  # fmt: skip
    schema = {**{axis: cells.schema[axis] for axis in axes}, **BEST_MODES.schema}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _varied_modes(measurements: Measurements, pairs: pl.DataFrame) -> list[str]:
    return [name for name in _modes(measurements) if name in pairs.columns and pairs.get_column(name).n_unique() > 1]


def speedup_figures(measurements: Measurements) -> tuple[Figure, ...]:
    """A chart of the speed-up over batch for each method and share kept."""
    pairs = speedups(measurements)
    return _curves(pairs, _axes(measurements), _varied_modes(measurements, pairs)) if pairs.height else ()


def _curves(pairs: pl.DataFrame, axes: list[str], modes: list[str]) -> tuple[Figure, ...]:
    """A chart of the speed-up over batch for each variant, with a line for each input size and execution."""
    lines = [name for name in (*axes, *modes) if name != "batch"]
    known = pairs.filter(pl.col("speedup").is_not_null())
    if "batch" not in axes or known.get_column("batch").n_unique() < 2:
        return ()
    from warplens.report.charts.plane import curve_chart

    figures = []
    for (method, keep), group in known.group_by("method", "keep", maintain_order=True):
        texts = [pl.col(name).cast(pl.String) for name in lines]
        series = pl.concat_str(texts, separator=", ") if lines else pl.lit("")
        points = group.select(series=series, x="batch", y="speedup").sort("x", maintain_order=True)
        if points.get_column("series").n_unique() > MOST_LINES:
            continue
        caption = f"Speed-up of {method}, keep {fmt.number(keep)}, over batch; above 1, it is faster."
        chart = curve_chart(points, x_title="batch", y_title="speed-up", kind="number")
        figures.append(Figure(f"speedup-{method}-{keep}".replace(".", "-"), caption, chart, caption))
    return tuple(figures)


def _swept(measurements: Measurements) -> list[Section]:
    """The complete report on the sweep that the file names, as a section."""
    from warplens.studies.sweeps.document import sweep_document
    from warplens.studies.sweeps.numbers import examine_sweep

    if not measurements.sweep:
        return []
    try:
        document = sweep_document(examine_sweep(sweep_of(measurements)))
    except UsageError as error:  # too little was measured
        return [Section("sweep", "The sweep", (Paragraph(f"There is no sweep to read: {error}."),))]
    blocks = (Paragraph(document.lead),)
    return [Section("sweep", "The sweep", blocks, document.sections)]


_VERDICTS: Final = {"slower": "slower", "faster": "faster", "same": "as fast (within 2 %)", "undecided": "undecided"}


def _verdicts(rows: pl.DataFrame) -> str:
    """The count of each verdict: `slower at 7 and faster at 13 of 20 points`."""
    counts = {words: rows.filter(pl.col("verdict") == verdict).height for verdict, words in _VERDICTS.items()}
    parts = [f"{words} at {fmt.count(count)}" for words, count in counts.items() if count] or ["measured at none"]
    return f"{fmt.listed(parts)} of {fmt.plural(rows.height, 'point')}"
