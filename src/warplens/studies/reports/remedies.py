"""Attempted remedies: every measured way to run baseline and variant, and predictions against measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from warplens.compare.decisions import compare
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Paragraph, Section, Table, quiet
from warplens.studies.reports.evidence import Evidence, measured
from warplens.studies.reports.token_reduction import BEST_MODES, best_modes, timed_cells
from warplens.studies.sweeps.reading import wall_samples
from warplens.studies.sweeps.words import columns_of, verdict_counts

#: Fastest ways to run a point that its table shows.
_MOST: Final = 4

#: Settings that define a point; all others are ways to run it.
_POINT: Final = ("input_size", "batch")

REMEDIES: Final = table(
    "findings: remedies",
    "A measured way to run a point. The findings of a token-reduction study.",
    Column("input_size", pl.Int64, "side of the image, in pixels", title="Input", kind="number"),
    column("batch", help="images in a step", kind="number"),
    "method",
    Column("execution", pl.String, "how a step reaches the GPU"),
    Column("attention", pl.String, "how attention is computed"),
    Column("locations", pl.String, "blocks that reduce", title="Blocks"),
    "keep",
    column(
        "launches",
        dtype=pl.Float64,
        kind="count",
        help="GPU work that the host issues in a step; a CUDA graph counts as one",
    ),
    column("latency_ns", help="median wall time, without a profiler", title="Step"),
    Column("published_factor", pl.Float64, "time of the published form over this one's", title="× published"),
    Column("baseline_factor", pl.Float64, "time of the fastest baseline over this one's", title="× best baseline"),
    column("verdict", help="verdict against the fastest baseline; same: within 2 %", title="Against it"),
)

PREDICTED: Final = table(
    "findings: predictions",
    "A change that the profile of a point predicted, and that was measured. The findings of a token-reduction study.",
    "point",
    column("side", title="Of"),
    column("change", help="what was changed"),
    Column("before_ns", pl.Float64, "measured, without a profiler"),
    column("predicted_ns", dtype=pl.Float64, help="modelled from the profile before the change"),
    column("measured_ns", dtype=pl.Float64, help="after the change, without a profiler"),
    Column("error", pl.Float64, "predicted / measured − 1", title="Prediction off by", kind="share"),
)


def remedy_rows(evidence: Evidence) -> pl.DataFrame:
    """`REMEDIES`: every measured way to run each point, the fastest first; the cells of a point were measured in turns.

    `published_factor` is the time of the published form, eager, / this time; `baseline_factor` the time of the fastest
    baseline / this time; `verdict` compares with that baseline. Keep is null where nothing is dropped.
    """
    measurements, variant = evidence.remedies, {**evidence.variant, "execution": "eager"}
    cells = timed_cells(measurements)
    rows = []
    for _, group in cells.group_by(_POINT, maintain_order=True):
        by_time = list(group.sort("latency_ns").iter_rows(named=True))
        candidates = [row for row in by_time if row["visualisation"] and variant.items() <= row.items()]
        published = min(candidates, key=lambda row: row["cell"], default=None)  # the first in the file
        baseline = next((row for row in by_time if row["method"] == "none"), None)
        before = wall_samples(measurements, baseline["cell"]) if baseline else None
        for row in by_time:
            after = wall_samples(measurements, row["cell"]) if row is not baseline else None
            without_list = "topk" in row["method"] and not row["visualisation"]
            rows.append(
                {
                    **{name: row[name] for name in (*_POINT, "execution", "attention", "locations", "latency_ns")},
                    "method": f"{row['method']}, no list" if without_list else row["method"],
                    "keep": row["keep"] if row["method"] != "none" else None,
                    "launches": measurements.details[row["cell"]].get("launches"),
                    "published_factor": published["latency_ns"] / row["latency_ns"] if published else None,
                    "baseline_factor": baseline["latency_ns"] / row["latency_ns"] if baseline else None,
                    "verdict": compare(before, after).verdict if before is not None and after is not None else None,
                }
            )
    return pl.DataFrame(rows, schema=REMEDIES.schema, orient="row")


def remedies_section(evidence: Evidence, rows: pl.DataFrame) -> Section:
    """The section on the fastest ways to run each point (`remedy_rows`), and the best of them in words."""
    # The fastest ways at each point, its published form, and its fastest baseline.
    place = pl.int_range(pl.len()).over(_POINT)
    baseline = (pl.col("method") == "none") & (pl.col("baseline_factor") == 1)
    shown = rows.filter((place < _MOST) | (pl.col("published_factor") == 1) | baseline)
    caption = f"At each point the {_MOST} fastest ways, the published form and the fastest baseline"
    columns = REMEDIES.only(
        "input_size batch method keep locations execution attention launches latency_ns",
        "published_factor baseline_factor verdict",
    ).columns
    caution = (
        f"{_other_run(evidence, rows)}Launches are those of one step, counted before the measurement. The fastest of "
        "several is chosen by the same repetitions that are shown, which favours both sides alike."
    )
    words = (Paragraph(text) for text in best_words(rows))
    table = Table("remedies-table", caption, columns, shown, limit=None)
    return Section("remedies", "Remedies tried", (*words, table, quiet(caution)))


def _other_run(evidence: Evidence, rows: pl.DataFrame) -> str:
    """A caution if the remedies were measured in another run than the grid, with the published form's time in both."""
    if evidence.remedies is evidence.measurements:
        return ""
    settings = {**evidence.variant, "execution": "eager"}
    for row in rows.filter(pl.col("published_factor") == 1).iter_rows(named=True):
        there = measured(evidence.measurements, {**settings, **{name: row[name] for name in _POINT}}, "latency_ns")
        if there is not None:
            return (
                f"They were measured in another run than the grid above: at input size {row['input_size']}, batch "
                f"{row['batch']} the published form took {fmt.duration(row['latency_ns'])} here and "
                f"{fmt.duration(there)} there. Compare times within a table, not between them. "
            )
    return ""


def best_words(rows: pl.DataFrame) -> Iterator[str]:
    """A sentence per point, the smallest first: the fastest ways to run the variant and the baseline."""
    for (side, batch), group in rows.group_by(_POINT, maintain_order=True):
        variants, baselines = group.filter(pl.col("method") != "none"), group.filter(pl.col("method") == "none")
        published = variants.filter(pl.col("published_factor") == 1)
        # Another share kept is another model: only variants with the share of the published form are comparable.
        if published.height:
            variants = variants.filter(pl.col("keep") == published["keep"][0])
        if not (variants.height and baselines.height):
            continue
        best, base = variants.row(0, named=True), baselines.row(0, named=True)
        ways = ["{method}, {execution}, {attention} attention".format(**row) for row in (best, base)]
        text = (
            f"Input {side}, batch {batch}: the fastest variant ({ways[0]}) takes "
            f"{fmt.duration(best['latency_ns'])}, the fastest baseline ({ways[1]}) takes "
            f"{fmt.duration(base['latency_ns'])}: {fmt.number(best['baseline_factor'])}× as fast ({best['verdict']})"
        )
        if best["published_factor"]:
            text += f", and {fmt.number(best['published_factor'])}× as fast as its published form"
        yield f"{text}."


def best_ways(evidence: Evidence) -> pl.DataFrame:
    """The fastest way to run the variant against the fastest way to run the baseline, at each point.

    The columns of `best_modes`, one row per point. The variant keeps the share of its published form.
    """
    rows = best_modes(evidence.grid)
    kept = evidence.variant.get("keep")
    rows = rows if kept is None else rows.filter(pl.col("keep") == kept)
    points = [name for name in _POINT if name in rows.columns]
    return rows.sort("speedup", descending=True).unique(points, keep="first").sort(points)


def best_ways_words(rows: pl.DataFrame) -> str:
    """A sentence with the verdicts and extreme speedups of the rows of `best_ways`, at least one."""
    ranked = rows.sort("speedup")
    spans = []
    for row in (ranked.row(0, named=True), ranked.row(-1, named=True)):
        where = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in _POINT if name in row)
        spans.append(f"{fmt.number(row['speedup'])}× ({where})")
    return (
        f"Each in the fastest way to run it, the variant is {verdict_counts(rows['verdict'].to_list())} of "
        f"{fmt.plural(rows.height, 'point')}: from {spans[0]} to {spans[1]} as fast."
    )


def best_ways_section(rows: pl.DataFrame) -> Section:
    """The section with the sentence and the table of `best_ways`."""
    shown = "baseline_mode baseline_ns method variant_mode variant_ns speedup low high verdict"
    titles = {"method": "Variant", "variant_mode": "As", "variant_ns": "Time"}
    columns = columns_of(BEST_MODES, rows, _POINT, shown, **titles)
    table = Table("best-ways", "The fastest way to run each side", columns, rows, limit=None)
    caution = quiet("The fastest of several is chosen by the repetitions that are shown.")
    return Section("best", "Each in its best way", (Paragraph(best_ways_words(rows)), table, caution))


def predicted_times(evidence: Evidence) -> pl.DataFrame:
    """`PREDICTED`: step times with one CUDA graph per step, predicted from profiles and measured."""
    rows = []
    for pair in evidence.pairs:
        sides = (("baseline", evidence.baseline), ("variant", evidence.variant))
        for (side, settings), side_predictions in zip(sides, pair.predictions, strict=True):
            before, after = (
                measured(evidence.measurements, {**pair.settings, **settings, "execution": execution}, "latency_ns")
                for execution in ("eager", "graph")
            )
            rows += [
                {
                    "point": pair.title, "side": side, "change": "one CUDA graph per step", "before_ns": before,
                    "predicted_ns": float(item.predicted_ns), "measured_ns": after,
                    "error": item.predicted_ns / after - 1,
                }
                for item in side_predictions
                if item.change == "cuda-graph" and before is not None and after is not None
            ]  # fmt: skip
    return pl.DataFrame(rows, schema=PREDICTED.schema, orient="row")


def predicted_section(rows: pl.DataFrame) -> Section:
    """The section with the table of `predicted_times`."""
    table = Table("predicted", "Predicted from the profile, then measured", PREDICTED.columns, rows, limit=None)
    return Section("predictions", "What diagnosis had predicted", (table,))
