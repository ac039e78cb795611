"""The language-model grid: step times by size and context, training against forward, and who decides the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Paragraph, Section, Table
from warplens.studies.grid.models import model_rank, model_size
from warplens.studies.reports.growth import growth, growth_section, measured_times

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements
    from warplens.report.document import Block


#: Time a layer of different sizes counts as the same up to this share …
_SAME_LAYER_TIME: Final = 0.2
#: … which says something only if the larger layer has at least so many times the FLOPs of the smaller.
_MUCH_MORE_WORK: Final = 1.5

_MODES: Final = {"forward": "Forward pass", "forward-backward": "Forward and backward pass", "train": "Training step"}

#: Settings that make a grid of their own, beside mode.
_APART: Final = ("precision", "execution", "optimizer", "batch")
_STEPS: Final = ("mode", "size", *_APART)


def lm_sections(measurements: Measurements) -> tuple[str, tuple[Section, ...]]:
    """The answer in one or two sentences, and the sections."""
    steps = _steps(measurements)
    sections = [_matrix_section(steps, mode) for mode in _MODES if mode in steps.get_column("mode").to_list()]
    ratios, layers = training_ratios(steps), layer_times(steps)
    sentences = _host_sentences(layers)
    if ratios.height:
        table = Table(
            "training-ratio", "Training step over forward pass",
            (*_cell_columns(steps), column("forward_ns", dtype=pl.Float64, help=''),
             Column("train_ns", pl.Float64, title="Training step"),
             column("ratio", help="3 would be the ratio of FLOPs, without the optimizer")),
            ratios, limit=None,
        )  # fmt: skip
        sections.append(Section("training", "Training against forward", (table,)))
    if layers.height:
        table = Table(
            "layer-times", "Time a layer, forward",
            (*_cell_columns(steps), column("layers", help=''),
             Column("layer_ns", pl.Float64, title="Time a layer"),
             Column("layer_flops", pl.Float64, title="Work a layer"),
             column("flops_per_s").but(help="")),
            layers, limit=None,
        )  # fmt: skip
        words = "Where the host issues launches more slowly than the GPU works, a layer takes as long at every width."
        blocks: tuple[Block, ...] = (table, *(Paragraph(text) for text in sentences), Paragraph(words, quiet=True))
        sections.append(Section("layers", "Who decides the pace", blocks))
    grown = growth_section(measured_times(measurements.cells), ["context"], _STEPS)
    return " ".join([_answer(steps), *sentences[:1]]).strip(), (*sections, *filter(None, [grown]))


def lm_tables(measurements: Measurements) -> dict[str, pl.DataFrame]:
    """The tables of the report, with exact values."""
    steps = _steps(measurements)
    return {
        "steps": steps,
        "training_ratios": training_ratios(steps),
        "layer_times": layer_times(steps),
        "growth": growth(measured_times(measurements.cells), ["context"], _STEPS),
    }


def _steps(measurements: Measurements) -> pl.DataFrame:
    """A row for each cell, the sizes in rising order."""
    rows = measurements.cells.with_columns(
        pl.col("status").cast(pl.String),
        rank=pl.col("size").map_elements(lambda name: model_rank(name)[1], return_dtype=pl.Int64),
        layers=pl.Series([_layers(row, detail) for row, detail in _with_details(measurements)], dtype=pl.Int64),
    )
    keep = [name for name in _APART if rows.get_column(name).n_unique() > 1 and name != "optimizer"]
    names = ("size", "context", "mode", *keep, "status", "latency_ns", "latency_low_ns", "latency_high_ns", "flops")
    return rows.sort("rank", "context", maintain_order=True).select(
        *names, "flops_per_s", "peak_allocated_bytes", "layers"
    )


def _with_details(measurements: Measurements) -> list[tuple[dict[str, Any], Any]]:
    return list(zip(measurements.cells.iter_rows(named=True), measurements.details, strict=True))


def _layers(row: dict[str, Any], details: Any) -> int | None:
    found = details.get("layers")
    size = model_size(row["size"].removesuffix("-2026"))
    return found if found is not None else size.layers if size else None


def _apart(steps: pl.DataFrame) -> list[str]:
    return [name for name in _APART if name in steps.columns]


def _cell_columns(steps: pl.DataFrame) -> tuple[Column, ...]:
    return (column("size"), column("context").but(help=""), *map(Column, _apart(steps)))


def _matrix_section(steps: pl.DataFrame, mode: str) -> Section:
    """Sizes down, contexts across; what was not measured stays empty."""
    rows = steps.filter(pl.col("mode") == mode)
    contexts = sorted(set(rows.get_column("context").to_list()))
    index = ["size", *_apart(steps)]
    blocks = []
    for key, title in (
        ("latency_ns", "median wall time of a step"),
        ("flops_per_s", "modelled FLOPs over measured time"),
        ("peak_allocated_bytes", "peak memory of tensors"),
    ):
        if rows.get_column(key).null_count() == rows.height:
            continue
        matrix = rows.pivot("context", index=index, values=key, aggregate_function="first", maintain_order=True)
        figure = Column(key, pl.Float64)
        columns = (*map(Column, index), *(figure.but(name=str(c), title=f"{c:,}") for c in contexts))
        caption = f"{_MODES[mode]}: {title}, by context"
        blocks.append(Table(f"{mode}-{key.replace('_', '-')}", caption, columns, matrix, limit=None))
    return Section(mode, _MODES[mode], tuple(blocks))


def training_ratios(steps: pl.DataFrame) -> pl.DataFrame:
    """Cells of which both a forward pass and a training step were measured, and the ratio of their times."""
    keys = ["size", "context", *_apart(steps)]
    measured = steps.filter(pl.col("status") == "measured")
    sides = [
        measured.filter(pl.col("mode") == mode).select(*keys, pl.col("latency_ns").alias(f"{mode}_ns"))
        for mode in ("forward", "train")
    ]
    joined = sides[0].join(sides[1], on=keys, how="inner", maintain_order="left")
    return joined.with_columns(ratio=pl.col("train_ns") / pl.col("forward_ns"))


def layer_times(steps: pl.DataFrame) -> pl.DataFrame:
    """Time and work of a layer in the forward passes that were measured."""
    rows = steps.filter(
        (pl.col("status") == "measured") & (pl.col("mode") == "forward") & pl.col("layers").is_not_null()
    )
    return rows.select(
        "size", "context", *_apart(steps), "layers",
        layer_ns=pl.col("latency_ns") / pl.col("layers"),
        layer_flops=pl.col("flops") / pl.col("layers"),
        flops_per_s="flops_per_s",
    )  # fmt: skip


def _host_sentences(layers: pl.DataFrame) -> list[str]:
    """For each context at which a layer takes as long in several sizes: the host decides there."""
    sentences = []
    for key, group in layers.group_by("context", *_apart(layers), maintain_order=True):
        rows = group.to_dicts()
        alike = [rows[0]]
        for row in rows[1:]:
            if abs(row["layer_ns"] / rows[0]["layer_ns"] - 1) > _SAME_LAYER_TIME:
                break
            alike.append(row)
        more = alike[-1]["layer_flops"] / alike[0]["layer_flops"]
        if len(alike) > 1 and more >= _MUCH_MORE_WORK:
            times = [row["layer_ns"] for row in alike]
            sentences.append(
                f"At context {key[0]:,}, a layer takes {fmt.duration(min(times))} to {fmt.duration(max(times))} from "
                f"{alike[0]['size']} to {alike[-1]['size']}, though its work grows {more:.1f}-fold: the host decides "
                "the pace there, not the GPU."
            )
    return sentences


def _answer(steps: pl.DataFrame) -> str:
    measured = steps.filter(pl.col("status") == "measured")
    lost = steps.filter(pl.col("status") == "out-of-memory").height
    text = f"{fmt.count(measured.height)} of {fmt.plural(steps.height, 'cell')} were measured"
    text += f", {fmt.count(lost)} ran out of memory" if lost else ""
    rates = measured.drop_nulls("flops_per_s").sort("flops_per_s")
    if rates.height:
        best = rates.row(-1, named=True)
        text += (
            f"; the highest rate is {fmt.flop_rate(best['flops_per_s'])}, of {best['size']} at context "
            f"{best['context']:,} ({_MODES[best['mode']].lower()})"
        )
    return f"{text}."
