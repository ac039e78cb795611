"""The reports of studies (token reduction, language model, attention): answer, tables, then every cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from warplens.errors import MissingDataError
from warplens.profile.columns import column
from warplens.profile.measurements import Measurements
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Block, Document, Figure, Paragraph, Section, Table, quiet
from warplens.report.measured import doubts_of, measured_document, measured_facts
from warplens.studies.grid.cells import model_rank, model_size
from warplens.studies.reports.growth import growth, growth_section, measured_times
from warplens.studies.reports.token_reduction import token_sections, token_tables
from warplens.studies.sweeps.words import axis_columns

#: Times per layer of different sizes count as equal up to this share, …
_SAME_LAYER_TIME: Final = 0.2
#: … which is informative only if the larger layer has at least this multiple of the smaller one's FLOPs.
_MUCH_MORE_WORK: Final = 1.5

_MODES: Final = {"forward": "Forward pass", "forward-backward": "Forward and backward pass", "train": "Training step"}

#: Settings other than the mode that separate grids.
_APART: Final = ("precision", "execution", "optimizer", "batch")
_STEPS: Final = ("mode", "size", *_APART)


def lm_sections(measurements: Measurements) -> tuple[str, tuple[Section, ...]]:
    """The answer in one or two sentences, and the sections of the report."""
    steps = _steps(measurements)
    sections = [_matrix_section(steps, mode) for mode in _MODES if mode in steps.get_column("mode").to_list()]
    ratios, layers = training_ratios(steps), layer_times(steps)
    sentences = list(_host_sentences(layers))
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
        blocks: tuple[Block, ...] = (table, *(Paragraph(text) for text in sentences), quiet(words))
        sections.append(Section("layers", "Who decides the pace", blocks))
    growth_part = growth_section(measured_times(measurements.cells), ["context"], _STEPS)
    return " ".join([_answer(steps), *sentences[:1]]).strip(), (*sections, *filter(None, [growth_part]))


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
    """One row per cell, in rising order of sizes."""
    rows = measurements.cells.with_columns(
        pl.col("status").cast(pl.String),
        rank=pl.col("size").map_elements(lambda name: model_rank(name)[1], return_dtype=pl.Int64),
        layers=pl.Series(
            list(map(_layers, measurements.cells.iter_rows(named=True), measurements.details)), dtype=pl.Int64
        ),
    )
    keep = [name for name in _APART if rows.get_column(name).n_unique() > 1 and name != "optimizer"]
    names = ("size", "context", "mode", *keep, "status", "latency_ns", "latency_low_ns", "latency_high_ns", "flops")
    return rows.sort("rank", "context", maintain_order=True).select(
        *names, "flops_per_s", "peak_allocated_bytes", "layers"
    )


def _layers(row: dict[str, Any], details: Any) -> int | None:
    if (layers := details.get("layers")) is not None:
        return int(layers)
    size = model_size(row["size"].removesuffix("-2026"))
    return size.layers if size else None


def _apart(steps: pl.DataFrame) -> list[str]:
    return [name for name in _APART if name in steps.columns]


def _cell_columns(steps: pl.DataFrame) -> tuple[Column, ...]:
    return (column("size"), column("context").but(help=""), *map(Column, _apart(steps)))


def _matrix_section(steps: pl.DataFrame, mode: str) -> Section:
    """Tables of sizes × contexts for one mode; cells without a measurement are empty."""
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
    """The ratio training step / forward pass of cells with both measured."""
    keys = ["size", "context", *_apart(steps)]
    measured = steps.filter(pl.col("status") == "measured")
    sides = [
        measured.filter(mode=mode).select(*keys, pl.col("latency_ns").alias(f"{mode}_ns"))
        for mode in ("forward", "train")
    ]
    joined = sides[0].join(sides[1], on=keys, how="inner", maintain_order="left")
    return joined.with_columns(ratio=pl.col("train_ns") / pl.col("forward_ns"))


def layer_times(steps: pl.DataFrame) -> pl.DataFrame:
    """Time and FLOPs per layer of measured forward passes."""
    rows = steps.filter(pl.col("layers").is_not_null(), status="measured", mode="forward")
    return rows.select(
        "size", "context", *_apart(steps), "layers",
        layer_ns=pl.col("latency_ns") / pl.col("layers"),
        layer_flops=pl.col("flops") / pl.col("layers"),
        flops_per_s="flops_per_s",
    )  # fmt: skip


def _host_sentences(layers: pl.DataFrame) -> Iterator[str]:
    """A sentence for each context at which a layer takes the same time in several sizes: the host is limiting."""
    for key, group in layers.group_by("context", *_apart(layers), maintain_order=True):
        rows = group.to_dicts()
        same_time = [rows[0]]
        for row in rows[1:]:
            if abs(row["layer_ns"] / rows[0]["layer_ns"] - 1) > _SAME_LAYER_TIME:
                break
            same_time.append(row)
        more = same_time[-1]["layer_flops"] / same_time[0]["layer_flops"]
        if len(same_time) > 1 and more >= _MUCH_MORE_WORK:
            times = [row["layer_ns"] for row in same_time]
            yield (
                f"At context {key[0]:,}, a layer takes {fmt.duration(min(times))} to {fmt.duration(max(times))} from "
                f"{same_time[0]['size']} to {same_time[-1]['size']}, though its work grows {more:.1f}-fold: the host "
                "decides the pace there, not the GPU."
            )


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


#: Kernels of this package, from slow to fast in theory; all others are PyTorch's.
_OWN: Final = ("naive", "tiled", "flash")
_BACKEND: Final = "sdpa-"

#: From this length on, a flash kernel has enough blocks to fill the GPU.
_LONG: Final = 2048

_PROBLEM: Final = ("mode", "dtype", "head_dim", "causal", "heads")
_KERNELS: Final = (*_PROBLEM, "kernel")


def attention_sections(measurements: Measurements) -> tuple[str, tuple[Section, ...]]:
    """The answer in one or two sentences, and the sections of the report."""
    rates = _rates(measurements)
    against = flash_against_best(rates)
    problems = rates.select(_PROBLEM).unique(maintain_order=True).to_dicts()
    sections = [_problem_section(rates, against, problem) for problem in problems]
    words = (
        "TFLOP/s by the convention 4·B·H·S²·D, half of that with a causal mask, 2.5 times that for the gradients; a "
        "kernel that failed its check against float64 is not timed."
    )
    conventions = Section("reading", "How to read this", (quiet(words),))
    growth_part = growth_section(_lengths(measurements), ["seq_len"], _KERNELS, _tokens_sentence(rates))
    return " ".join(_answers(rates, against)), (*sections, *filter(None, [growth_part]), conventions)


def _lengths(measurements: Measurements) -> pl.DataFrame:
    return measured_times(measurements.cells.with_columns(throughput_per_s=None))


def _tokens_sentence(rates: pl.DataFrame) -> str:
    tokens = rates.select(pl.col("batch") * pl.col("seq_len")).to_series()
    if tokens.n_unique() > 1:
        return "FLOPs grow with the square of the length."
    return f"All problems are of {tokens[0]:,} tokens, so that FLOPs grow in proportion to the length."


def attention_tables(measurements: Measurements) -> dict[str, pl.DataFrame]:
    """The tables of the report, with exact values."""
    rates = _rates(measurements)
    return {
        "rates": rates,
        "flash_against_best": flash_against_best(rates),
        "growth": growth(_lengths(measurements), ["seq_len"], _KERNELS),
    }


def _rates(measurements: Measurements) -> pl.DataFrame:
    """One row per kernel and problem."""
    return measurements.cells.select(
        "kernel", "seq_len", *_PROBLEM, "batch", pl.col("status").cast(pl.String), "reason", "flops_per_s",
        time_ns=pl.coalesce("gpu_ns", "latency_ns"), peak_allocated_bytes="peak_allocated_bytes",
    )  # fmt: skip


def flash_against_best(rates: pl.DataFrame) -> pl.DataFrame:
    """Rate of the package's flash attention / rate of PyTorch's fastest kernel, where both were measured."""
    keys = ["seq_len", *_PROBLEM]
    measured = rates.filter(pl.col("status") == "measured")
    best = (
        measured.filter(pl.col("kernel").str.starts_with(_BACKEND))
        .sort("flops_per_s", descending=True)
        .group_by(keys, maintain_order=True)
        .agg(best=pl.col("kernel").first(), best_flops_per_s=pl.col("flops_per_s").first())
    )
    own = measured.filter(pl.col("kernel") == "flash").select(*keys, flash_flops_per_s="flops_per_s")
    joined = own.join(best, on=keys, how="inner", maintain_order="left")
    return joined.with_columns(of_best_share=pl.col("flash_flops_per_s") / pl.col("best_flops_per_s"))


def _named(problem: dict[str, Any]) -> str:
    mask = "causal" if problem["causal"] else "no mask"
    return f"{problem['mode']}, head dimension {problem['head_dim']}, {mask}, {problem['dtype']}"


def _problem_section(rates: pl.DataFrame, against: pl.DataFrame, problem: dict[str, Any]) -> Section:
    """The section on one problem: rates of the kernels over sequence length."""
    from warplens.report.charts.plane import curve_chart

    rows, name = rates.filter(**problem), _named(problem)
    id_ = "-".join(str(problem[key]).lower() for key in _PROBLEM)
    kernels = rows.get_column("kernel").unique(maintain_order=True).to_list()
    matrix = rows.pivot("kernel", index=["seq_len", "batch"], values="flops_per_s", aggregate_function="first")
    share = against.filter(**problem).select("seq_len", "best", "of_best_share")
    matrix = matrix.join(share, on="seq_len", how="left", maintain_order="left").sort("seq_len")
    columns = [Column("seq_len", pl.Int64, title="Length"), column("batch", help="")]
    columns += [Column(kernel, pl.Float64, title=kernel, kind="flops") for kernel in kernels]
    if share.height:
        columns += [
            column("best", help="", title="Best of PyTorch"),
            Column("of_best_share", pl.Float64, "rate of flash over that of the best backend", title="flash / best"),
        ]
    blocks: list[Block] = [Table(f"rates-{id_}", f"Rate: {name}", tuple(columns), matrix, limit=None)]
    drawn = rows.filter(pl.col("flops_per_s").is_not_null())
    if drawn.get_column("seq_len").n_unique() > 1:
        points = drawn.select(series="kernel", x="seq_len", y="flops_per_s").sort("x", maintain_order=True)
        chart = curve_chart(points, x_title="sequence length", y_title="rate", kind="flops")
        alt = f"Lines with the rate of {drawn.get_column('kernel').n_unique()} kernels over sequence length."
        blocks.insert(0, Figure(f"curves-{id_}", f"Rate over sequence length: {name}.", chart, alt))
    return Section(f"problem-{id_}", name[0].upper() + name[1:], tuple(blocks))


def _answers(rates: pl.DataFrame, against: pl.DataFrame) -> list[str]:
    measured = rates.filter(pl.col("status") == "measured")
    sentences = [f"{fmt.count(measured.height)} of {fmt.plural(rates.height, 'cell')} were measured."]
    longer = against.filter(pl.col("seq_len") >= _LONG)
    shown, where = (longer, f"From {_LONG:,} tokens on") if longer.height else (against, "At the lengths measured")
    reached = []
    for (mode,), rows in shown.group_by("mode", maintain_order=True):
        shares = rows.get_column("of_best_share").to_list()
        of = f" ({mode})" if shown.get_column("mode").n_unique() > 1 else ""
        reached.append(f"{fmt.share(min(shares))} to {fmt.share(max(shares))}{of}")
    if reached:
        sentences.append(
            f"{where}, own flash attention reaches {' and '.join(reached)} of the best of PyTorch's backends."
        )
    sentences.append(_order_sentence(measured.filter(pl.col("seq_len") >= _LONG)))
    return [sentence for sentence in sentences if sentence]


def _order_sentence(measured: pl.DataFrame) -> str:
    """A sentence on whether naive, tiled and flash are faster in that order."""
    wrong, ordered = [], 0
    for problem in measured.select("seq_len", *_PROBLEM).unique(maintain_order=True).to_dicts():
        by_kernel = dict(measured.filter(**problem).select("kernel", "flops_per_s").rows())
        rates = [by_kernel[kernel] for kernel in _OWN if by_kernel.get(kernel)]
        if len(rates) < len(_OWN):
            continue
        if rates == sorted(rates):
            ordered += 1
        else:
            wrong.append(f"{problem['seq_len']:,} tokens ({_named(problem)})")
    if not ordered and not wrong:
        return ""
    if wrong:
        return f"The order naive, tiled, flash is broken at {'; '.join(wrong)}."
    return f"Naive, tiled and flash get faster in that order at all {fmt.plural(ordered, 'problem')} of that length."


class _Study(NamedTuple):
    """The report on a workload."""

    title: str
    sections: Callable[[Measurements], tuple[str, tuple[Section, ...]]]  #: the answer, and the sections
    tables: Callable[[Measurements], dict[str, pl.DataFrame]]  #: by name, with exact values


_STUDIES: Final = {
    "token-reduction": _Study("Token reduction: fewer FLOPs, and when that is less time", token_sections, token_tables),
    "lm": _Study("The language model over sizes and contexts", lm_sections, lm_tables),
    "attention": _Study("Attention kernels over sequence length", attention_sections, attention_tables),
}


def _study_of(measurements: Measurements) -> _Study:
    if measurements.workload not in _STUDIES:
        raise MissingDataError(
            f"{measurements.source}: it measures {measurements.workload!r}, and studies are of "
            f"{', '.join(_STUDIES)}. Use warplens bench show"
        )
    return _STUDIES[measurements.workload]


def study_document(measurements: Measurements) -> Document:
    """The report of a study.

    Raises:
        MissingDataError: no study measures this workload.
    """
    study = _study_of(measurements)
    answer, sections = study.sections(measurements)
    cells, doubts = measured_document(measurements), doubts_of(measurements)
    last: list[Section] = []
    if doubts:
        texts = ("No repetition was left out for these.", *doubts)
        last.append(Section("doubts", "Doubts", tuple(quiet(text) for text in texts)))
    return Document(
        title=study.title,
        lead=answer or "Nothing was measured.",
        sections=(*sections, *_missing(measurements), *cells.sections, *last),
        meta=cells.meta,
    )


def _missing(measurements: Measurements) -> Iterator[Section]:
    """The section on cells that were not measured, identified by the settings that vary."""
    cells = measurements.cells
    names = [name for name in measurements.settings if cells.get_column(name).n_unique() > 1]
    names = names or list(measurements.settings[:1])
    rows = cells.filter(pl.col("status") != "measured").select(*names, "status", "reason")
    if rows.height:
        axes = (each.but(kind="count" if each.dtype.is_integer() else "text") for each in axis_columns(rows, names))
        columns = (*axes, column("status", help=""), column("reason", help="", title="Reason"))
        text = f"{fmt.plural(rows.height, 'cell')} could not be measured; the others are not affected."
        table = Table("missing-cells", "Cells without figures", columns, rows)
        yield Section("missing", "What could not be measured", (Paragraph(text), table))


def study_data(measurements: Measurements) -> dict[str, Any]:
    """The report of a study as plain data: the answer, the tables, every cell."""
    study = _study_of(measurements)
    answer, _ = study.sections(measurements)
    return {
        "workload": measurements.workload,
        "command": measurements.command,
        "environment": measurements.environment,
        "plan": measurements.plan,
        "answer": answer,
        "facts": measured_facts(measurements),
        "tables": study.tables(measurements),
        "settings": measurements.settings,
        "rows": measurements.cells,
    }
