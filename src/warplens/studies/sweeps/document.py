"""The report on a sweep as a document and as data: the answer, tables, figures, and the break-even model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from warplens.compare import SIDES
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import (
    Block,
    Document,
    Figure,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Section,
    Table,
    limits,
    pick,
    quiet,
    with_texts,
    yes_or_no,
)
from warplens.report.jsonout import named
from warplens.studies.sweeps.anomalies import ANOMALIES
from warplens.studies.sweeps.breakeven import PARAMETERS, THRESHOLDS, BreakEven, group_columns
from warplens.studies.sweeps.numbers import AXES, LOST, POINTS, SweepNumbers, point_frame
from warplens.studies.sweeps.payoff import CROSSINGS, crossing_frame
from warplens.studies.sweeps.regimes import CELL_REGIMES, REGIMES, regime_frame
from warplens.studies.sweeps.words import (
    answer,
    axis_columns,
    columns_of,
    crossing_text,
    interval_text,
    machine_line,
    settings_text,
)

#: Measure of size → name of size × items.
_TOTALS: Final = {"tokens": "tokens × batch", "flops": "FLOPs of a step", "items": "items"}

_FORMS: Final = {
    "hard": "time = max(host, GPU)",
    "soft": "time = (hostᵖ + GPUᵖ)^(1/p): host and GPU overlap in part",
}


def breakeven_lines(numbers: SweepNumbers) -> Iterator[str]:
    """The conclusions of the model, a line each; or why there is no model."""
    model = numbers.breakeven
    if model is None:
        yield f"no model: {numbers.no_breakeven}"
        return
    yield (
        f"{_FORMS[model.form.maximum]}; of values that it was not fitted to, it misses the time by "
        f"{fmt.share(model.median_error)} (median) and {fmt.share(model.worst_error)} (worst), the ratio of the sides "
        f"by {fmt.share(model.ratio_error)} (median)"
    )
    if not model.usable:
        yield f"its thresholds are not to be used: {model.reason}"
        return
    yield from _thresholds(model)
    yield from model.doubts


def _thresholds(model: BreakEven) -> Iterator[str]:
    """For each group, the totals (size × items) between which the variant pays, over all measured sizes and batches."""
    total = _TOTALS[model.size_unit]
    thresholds = model.thresholds
    columns = group_columns(model.groups)
    parts = thresholds.partition_by(columns, as_dict=True, maintain_order=True) if columns else {(): thresholds}
    for group, rows in parts.items():
        where = ", ".join(f"{name} {value}" for name, value in zip(model.groups, group, strict=True))
        head = f"{where}: " if where else ""
        crossing = rows.filter((pl.col("answer") == "crosses") & pl.col("total").is_not_null())
        answers = set(rows["answer"].to_list())
        if crossing.height:
            totals = {way: crossing.filter(pl.col("pays") == way)["total"] for way in ("above", "below")}
            ends = [f"{word} {_span(totals[way])}" for way, word in _ENDS.items() if totals[way].len()]
            on = "" if totals["below"].len() else " on"
            beyond = crossing.filter("extrapolated").height
            tail = f"; {beyond} of {crossing.height} extrapolated" if beyond else ""
            pays = f"the variant pays {' and '.join(ends)} {total}{on}"
            yield f"{head}{pays}, by the size or number of items held{tail} (modelled)"
        elif "undecided" in answers:
            yield f"{head}undecided: the interval of where the variant begins to pay is open at both ends (modelled)"
        elif answers == {"always"}:
            yield f"{head}the variant always pays in the range that was measured (modelled)"
        elif answers == {"never"}:
            yield f"{head}the variant pays nowhere in the range that was looked at (modelled)"


#: Side of a threshold on which the variant pays → how the sentence says so.
_ENDS: Final = {"above": "from", "below": "up to"}


def _span(totals: pl.Series) -> str:
    """Least and greatest of the totals; one number if they are the same."""
    low, high = _rounded(totals.min()), _rounded(totals.max())
    return low if low == high else f"{low} to {high}"


def _rounded(value: Any) -> str:
    """A total with three digits, since its interval is wider than that."""
    return fmt.count(float(f"{float(value):.3g}")) if float(value) < 1e6 else fmt.number(float(value))


def breakeven_section(numbers: SweepNumbers) -> Section:
    """The section on the model: its error, its thresholds and its parameters."""
    blocks: list[Block] = [Paragraph(f"{fmt.capitalised(line)}.") for line in breakeven_lines(numbers)]
    model = numbers.breakeven
    if model is not None and model.usable:
        rows = model.thresholds.with_columns(pl.col("along", "answer", "pays").cast(pl.String))
        groups = (
            Column(column, title=name.replace("_", " ").capitalize())
            for column, name in zip(group_columns(model.groups), model.groups, strict=True)
        )
        shown, total = "along size items answer pays total total_low total_high extrapolated", _TOTALS[model.size_unit]
        columns = pick(THRESHOLDS, *groups, shown, size=f"Size in {model.size_unit}", total=total)
        blocks.append(
            Table("thresholds", "Where the variant starts or stops to pay, modelled", columns, rows, limit=30)
        )
    if model is not None:
        rows = model.parameters.with_columns(pl.col("of").cast(pl.String))
        columns = pick(PARAMETERS, "name of value low high unit identified")
        blocks.append(Table("parameters", "The model's parameters", columns, rows, limit=30))
    return Section("breakeven", "Break-even model", tuple(blocks))


def point_table(numbers: SweepNumbers) -> Table:
    """One row per point: times, speedup with interval, verdict, work saved, regimes of both sides."""
    rows = point_frame(numbers)
    bounds = rows.select("low", "high").iter_rows()
    rows = rows.with_columns(
        interval=pl.Series([interval_text(low, high) for low, high in bounds], dtype=pl.String),
        regime=pl.concat_str("baseline_regime", pl.lit(" → "), "variant_regime"),
    )
    work = "MACs" if rows["baseline_macs"].null_count() < rows.height else "FLOPs"
    repeated = any(item.comparison for item in numbers.points)
    interval = column("interval", help="of the speedup; simultaneous over all rows")
    optional = (
        POINTS.column("work_saved_share").but(title=f"{work} saved"),
        column("regime"),
        POINTS.column("remark"),
    )
    shown = (column for column in optional if rows[column.name].null_count() < rows.height)
    verdict = (interval, "verdict") if repeated else ()
    columns = columns_of(POINTS, rows, numbers.sweep.axes, "baseline_ns variant_ns speedup", *verdict, *shown)
    return Table("points", "The two sides at each point", columns, rows, limit=60, empty="No point has both sides.")


def anomaly_table(numbers: SweepNumbers) -> Table:
    """One row per anomaly, the most significant first."""
    rows = numbers.anomalies.found
    shown = "side axis time_ns expected_low_ns expected_high_ns excess_share p_value"
    columns = columns_of(ANOMALIES, rows, numbers.sweep.axes, shown)
    tested = numbers.anomalies.tests.height
    empty = f"None among {tested} cells tested." if tested else "No cell could be tested."
    return Table("anomalies", "Cells that break their trend", columns, rows, empty=empty)


def lost_table(numbers: SweepNumbers) -> Table:
    """One row per cell that was not measured."""
    rows = numbers.lost
    columns = columns_of(LOST, rows, numbers.sweep.axes, *LOST.columns)
    return Table("lost", "Cells not measured", columns, rows, limit=30, empty="All cells were measured.")


#: Crossover answers shown as sentences; further ones are in the table alone.
_MOST_SENTENCES: Final = 12


def sweep_document(numbers: SweepNumbers) -> Document:
    """The report on a sweep."""
    sweep = numbers.sweep
    sections = [
        Section("quality", "Cautions", tuple(limits(numbers.notes))),
        Section("key-figures", "Key figures", (_key_figures(numbers),)),
        _surface(numbers),
    ]
    if numbers.regimes:
        sections.append(_regimes(numbers))
    sections += [_crossovers(numbers), breakeven_section(numbers), _anomalies(numbers), _grid_section(numbers)]
    if numbers.lost.height:
        sections.append(Section("lost", "Cells not measured", (lost_table(numbers),)))
    return Document(
        title=f"Sweep: {sweep.workload}",
        lead=answer(numbers),
        sections=tuple(sections),
        meta=(
            ("Source", sweep.source),
            ("Baseline", settings_text(sweep.baseline)),
            ("Variant", settings_text(sweep.variant)),
            ("Machine", machine_line(sweep.environment)),
        ),
    )


def _key_figures(numbers: SweepNumbers) -> KeyFigures:
    rows = point_frame(numbers).filter(pl.col("speedup").is_not_null())
    figures = [KeyFigure("Points", rows.height, "count", "With both sides measured.")]
    decided = rows["verdict"].is_in(["faster", "slower", "same"]).sum()
    if rows["verdict"].null_count() < rows.height:
        figures.append(KeyFigure("Decided", int(decided), "count", "Faster, slower, or the same within the margin."))
    if rows.height:
        for title, descending in (("Lowest speedup", False), ("Highest speedup", True)):
            row = rows.sort("speedup", descending=descending).row(0, named=True)
            where = settings_text({axis: row[axis] for axis in numbers.sweep.axes})
            bounds = interval_text(row["low"], row["high"])
            tail = f" Interval {bounds}." if bounds != fmt.MISSING else ""
            figures.append(KeyFigure(title, row["speedup"], "number", f"{where}.{tail}"))
        saved = rows["work_saved_share"].drop_nulls()
        if saved.len():
            what = "MACs" if rows["baseline_macs"].null_count() < rows.height else "FLOPs"
            figures.append(KeyFigure(f"{what} saved", saved.max(), "share", "At most; modelled, or as published."))  # type: ignore[arg-type]
    figures.append(KeyFigure("Anomalies", numbers.anomalies.found.height, "count", "Cells that break their trend."))
    return KeyFigures(tuple(figures))


def _laid_out(numbers: SweepNumbers) -> tuple[str, pl.DataFrame]:
    """The name of the axis laid out in columns, and the points with their `row` and `column` labels, sorted.

    The numeric axis with the most values becomes the columns, the others become the rows.
    """
    rows = point_frame(numbers)
    axes = numbers.sweep.axes
    if not axes:
        return "", rows.with_columns(row=pl.lit(""), column=pl.lit("all"))
    numeric = [axis for axis in axes if rows[axis].dtype.is_numeric()] or list(axes)
    axis = max(numeric, key=lambda name: rows[name].n_unique())
    others = [name for name in axes if name != axis]
    # Rows are grouped by non-numeric settings (execution, attention) before those that change the size.
    others.sort(key=lambda name: rows[name].dtype.is_numeric())
    return axis.replace("_", " "), with_texts(
        rows.sort(*others, axis),
        row=lambda row: settings_text({name: row[name] for name in others}) if others else "",
        column=lambda row: f"{row[axis]:g}" if isinstance(row[axis], float) else str(row[axis]),
    )


def _surface(numbers: SweepNumbers) -> Section:
    from warplens.report.charts.bars import MOST_ROWS, speedup_chart

    axis, rows = _laid_out(numbers)
    cells = with_texts(rows, detail=_detail)
    most = cells["row"].n_unique()
    cut = f" The first {MOST_ROWS} of {most} rows." if most > MOST_ROWS else ""
    figure = Figure(
        "speedup",
        f"How many times as fast the variant is: blue where faster, orange where slower, ? where not decided.{cut}",
        speedup_chart(cells, axis),
        f"A grid of {cells.height} cells with the speedup of each. {answer(numbers)}",
    )
    return Section("surface", "Speedup", (figure, point_table(numbers)))


def _detail(row: Mapping[str, Any]) -> str:
    parts = []
    if row["baseline_ns"] is not None and row["variant_ns"] is not None:
        parts.append(f"{fmt.duration(row['baseline_ns'])} → {fmt.duration(row['variant_ns'])}")
    if (bounds := interval_text(row["low"], row["high"])) != fmt.MISSING:
        parts.append(f"interval {bounds}")
    return " · ".join([*parts, *(text for text in (row["verdict"], row["remark"]) if text)])


def _regimes(numbers: SweepNumbers) -> Section:
    """The section on what limits each cell."""
    from warplens.report.charts.bars import regime_chart

    axes = numbers.sweep.axes
    axis, rows = _laid_out(numbers)
    because = {(item.side, *item.settings.values()): f"{item.regime}: {item.because}" for item in numbers.regimes}
    detailed = with_texts(
        rows,
        baseline_detail=lambda row: because.get(("baseline", *(row[name] for name in axes))),
        variant_detail=lambda row: because.get(("variant", *(row[name] for name in axes))),
    )
    cells = detailed.rename({f"{side}_regime": side for side in SIDES}).select(
        "row", "column", *SIDES, "baseline_detail", "variant_detail"
    )
    regimes_present = {item.regime for item in numbers.regimes}
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in REGIMES.items() if name in regimes_present)
    figure = Figure(
        "regimes-chart",
        "What limits each cell: the baseline above, the variant below.",
        regime_chart(cells, axis),
        "A grid of cells, each with what bounds the baseline and what bounds the variant; the table has the same.",
    )
    regime_rows = regime_frame(numbers.regimes, axes)
    columns = columns_of(CELL_REGIMES, regime_rows, axes, *CELL_REGIMES.columns)
    table = Table("regimes", "What limits each cell", columns, regime_rows, empty="No cell was measured.")
    return Section("regimes", "What limits each cell", (Paragraph(f"{legend}."), figure, table))


def _crossovers(numbers: SweepNumbers) -> Section:
    sentences = [crossing_text(line) for lines in numbers.crossovers.values() for line in lines]
    blocks: list[Block] = [Paragraph(f"{fmt.capitalised(text)}.") for text in sentences[:_MOST_SENTENCES]]
    blocks += [
        quiet(f"Along {axis.replace('_', ' ')} there is no answer: {why}.")
        for axis, why in numbers.no_crossovers.items()
    ]
    if sentences:
        frames = [crossing_frame(lines) for lines in numbers.crossovers.values() if lines]
        rows = pl.concat(frames, how="diagonal_relaxed").with_columns(pl.col("answer", "pays").cast(pl.String))
        axes = axis_columns(rows, numbers.sweep.axes)
        columns = pick(CROSSINGS, "axis", *axes, "answer pays at low high range_low range_high reason")
        blocks.append(Table("crossovers", "Where the variant starts to pay", columns, rows, limit=30))
    return Section("crossovers", "Where the variant starts to pay", tuple(blocks or [Paragraph("No axis varies.")]))


def _anomalies(numbers: SweepNumbers) -> Section:
    results = numbers.anomalies
    blocks: list[Block] = [anomaly_table(numbers)]
    if results.tests.height:
        finest, coarsest = results.tests["least_slow_share"].min(), results.tests["least_slow_share"].max()
        method_note = (
            "A cell is predicted from its neighbours along an axis, as a smooth line or one with a kink would pass it; "
            "what lies outside of all such predictions by more than noise and by more than 5 % is an anomaly. Of "
            f"sweeps without any, at most {fmt.share(results.level)} show one. A slow-down would have been found from "
            f"{fmt.value(finest, 'share')} on in the best cell and {fmt.value(coarsest, 'share')} in the worst."  # type: ignore[arg-type]
        )
        blocks.append(quiet(method_note))
    blocks += [quiet(f"{fmt.capitalised(text)}.") for text in results.untested]
    return Section("anomalies", "Anomalies", tuple(blocks))


def _grid_section(numbers: SweepNumbers) -> Section:
    """The section on confounded axes and on settings that were not varied."""
    rows = numbers.confounding.axes.with_columns(yes_or_no("alone"))
    caption = "What a claim about one axis rests on"
    blocks: list[Block] = [Table("axes", caption, AXES.columns, rows, empty="No axis varies.")]
    if names := [name.replace("_", " ") for name in numbers.confounding.unvaried]:
        text = f"Nothing is known about other values of what was not varied: {fmt.printable(', '.join(names))}."
        blocks.append(quiet(text))
    return Section("grid", "What the grid can tell", tuple(blocks))


def sweep_data(numbers: SweepNumbers) -> dict[str, Any]:
    """The content of a sweep's report as plain data."""
    sweep, confounding, model = numbers.sweep, numbers.confounding, numbers.breakeven
    return {
        "answer": answer(numbers),
        **named(sweep, "workload environment axes baseline variant shared paired"),
        **named(numbers, "level margin"),
        "rows": point_frame(numbers),
        "regimes": regime_frame(numbers.regimes, sweep.axes),
        "anomalies": named(numbers.anomalies, "level untested tests"),
        "confounding": {
            "found": [named(item, "settings kind text") for item in confounding.found],
            **named(confounding, "axes unvaried"),
        },
        "crossovers": {axis: crossing_frame(lines) for axis, lines in numbers.crossovers.items() if lines},
        "no_crossovers": dict(numbers.no_crossovers),
        "breakeven": None
        if model is None
        else {
            "maximum": model.form.maximum,
            **named(
                model,
                "size_unit groups median_error worst_error ratio_error usable reason level doubts missing parameters "
                "forms thresholds",
            ),
        },
        **named(numbers, "no_breakeven lost"),
    }
