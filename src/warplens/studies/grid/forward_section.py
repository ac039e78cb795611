"""Question (a) of a grid: how long a forward pass takes, by the profile and by the program's own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.profile.columns import table
from warplens.report import text as fmt
from warplens.report.document import Figure, Paragraph, Section, Table
from warplens.studies.grid.grid import Grid, host_bound
from warplens.studies.grid.tables import (
    CELL,
    Value,
    between,
    cell_rows,
    cell_table,
    cell_title,
    majority,
    median,
    unanswered,
)

if TYPE_CHECKING:
    from warplens.report.document import Block


FORWARD_TIMES: Final = table(
    "grid: (a) forward times",
    "One profile. Times are medians over passes. `grid.json`.",
    CELL,
    (
        Value.text("source", "the profile's file", "source"),
        Value.count("passes", "forward passes measured, warm-up left out", "forward.time.count"),
        Value.number("time_ns", "measured: time of a pass, the median", "forward.time.median"),
        Value.number("time_min_ns", "measured: the fastest pass", "forward.time.minimum", title="Min"),
        Value.number("time_max_ns", "measured: the slowest pass", "forward.time.maximum", title="Greatest"),
        Value.text("time_is", "what the time was taken from", "forward.time_is"),
        Value.number("host_ns", "measured: duration of the forward range on the host", "forward.host.median",
                     title="Host range"),
        Value("synchronised", pl.Boolean, "whether the host waits for the GPU inside the range",
               title="Waits inside", of="forward.synchronised"),
        Value.number("span_ns", "measured: from first start to last end of its GPU work", "forward.span.median",
                     title="GPU span"),
        Value.number("gpu_ns", "measured: summed durations of its GPU work", "forward.gpu.median", title="GPU time"),
        Value.number("busy_ns", "time in which at least one piece of that work ran", "forward.busy.median"),
        Value.number("busy_share", "measured: share of the time in which the GPU works", "forward.busy_share",
                     title="GPU busy"),
        Value.count("layers", "attention layers: counted in the ranges, or from the table of models", "forward.layers",
                    modelled="counted in the profile, or modelled where `layers_counted` is false"),
        Value("layers_counted", pl.Boolean, "whether the layers were counted in the profile",
               of="forward.layers_counted"),
        Value.number("per_layer_ns", "measured time over the layers; all else counts in", "forward.per_layer.median"),
        Value.number("python_ns", "measured by the program: the median, or mean", "python.forward.centre_ns",
                     title="Own clock"),
        Value.text("python_statistic", "`median` or `mean`: what `python_ns` is", "python.forward.statistic"),
        Value.number("python_min_ns", "measured by the program: the fastest pass", "python.forward.minimum_ns",
                     title="Own least"),
        Value.number("python_max_ns", "measured by the program: the slowest pass", "python.forward.maximum_ns",
                     title="Own greatest"),
        Value.number("python_deviation_ns", "measured by the program: standard deviation",
                     "python.forward.deviation_ns",
                     title="Own deviation"),
        Value.count("python_count", "passes that the program measured", "python.forward.count", title="Own passes"),
        Value.number("ratio", "measured: the profile's time over the program's own", title="Profile / own"),
    ),
)  # fmt: skip


#: Two clocks that differ by no more than this agree: runs of one program differ by as much from day to day.
_AGREES = 0.05

#: Fills of models in charts, smallest first.
_MODEL_FILLS = ("elementwise", "gemm", "softmax", "attention", "communication", "optimizer")


def answer_a(grid: Grid) -> list[str]:
    """The answers to (a), sentence by sentence."""
    times = forward_times(grid)
    if not times.height:
        return []
    ordered = times.sort("time_ns")
    first, last = ordered.row(0, named=True), ordered.row(-1, named=True)
    sentences = []
    if times.height == 1:
        sentences.append(f"A forward pass of {cell_title(first)} takes {fmt.duration(first['time_ns'])}.")
    else:
        sentences.append(
            f"A forward pass takes from {fmt.duration(first['time_ns'])} ({cell_title(first)}) to "
            f"{fmt.duration(last['time_ns'])} ({cell_title(last)})."
        )
    sentences += [
        f"At context {bound.context} ({bound.mode}) a layer takes {fmt.duration(bound.least_ns)} to "
        f"{fmt.duration(bound.greatest_ns)} in each of {', '.join(bound.models)}, and their GPUs work for at most "
        f"{fmt.share(bound.busy_share)} of the pass: the host's launches set the pace, not the width of the model."
        for bound in host_bound(grid)
    ]
    unseen = times.filter(pl.col("gpu_ns").is_null()).height
    if unseen:
        sentences.append(
            f"{fmt.plural(unseen, 'profile')} recorded no GPU work: the time there is that of the range on the host, "
            "which is the pass's own only where the host waits inside."
        )
    return sentences + _python_sentences(grid, times)


def _python_sentences(grid: Grid, times: pl.DataFrame) -> list[str]:
    compared = times.filter(pl.col("ratio").is_not_null())
    if not compared.height and grid.timed:
        held = f" It holds {fmt.shorten(', '.join(grid.unused), 120)}." if grid.unused else ""
        return [f"The file with the program's own times was not used: it has none of a forward pass here.{held}"]
    if not compared.height:
        return ["No times of the program's own clock were given, so that the profiles stand alone (--timings FILE)."]
    close = compared.filter((pl.col("ratio") - 1).abs() <= _AGREES)
    sentence = (
        f"The profiled pass takes {between(compared['ratio'], 'number')} times as long as by the program's own clock; "
        f"within {_AGREES * 100:.0f} % in {majority(close.height, compared.height, 'profile')}."
    )
    far = compared.filter((pl.col("ratio") - 1).abs() > _AGREES)
    if not far.height:
        return [sentence]
    waiting = between(far["busy_share"], "share")
    return [
        sentence,
        f"Where they differ more, the GPU works for {waiting} of the profiled pass; where they agree, for "
        f"{between(close['busy_share'], 'share')}."
        if close.height
        else f"In these profiles the GPU works for {waiting} of the pass.",
    ]


def forward_section(grid: Grid) -> Section:
    """(a) Forward time, per cell and layer, and against the program's own clock."""
    title, times = "(a) How long does a forward pass take?", forward_times(grid)
    if not times.height:
        return unanswered("a", title)
    blocks: list[Block] = [Paragraph(" ".join(answer_a(grid))), _time_figure(grid), time_matrix(grid)]
    blocks += [
        cell_table(
            "forward-times", "Forward time of every profile: medians (measured)", times, FORWARD_TIMES, _FORWARD
        ),
        Paragraph(
            "The time is that of a clock around the pass, as nearly as the profile tells: the host range where the "
            "host waits inside it for the GPU; else from the range's start on the host to the end of its last GPU "
            "work; else, without such a range or with the GPU still at earlier work, from the first start to the "
            "last end on the GPU. GPU time sums the durations of all work launched inside the pass.",
            quiet=True,
        ),
    ]
    if times["python_ns"].null_count() < times.height:
        compared = times.filter(pl.col("python_ns").is_not_null())
        blocks.append(
            cell_table(
                "python-times",
                "Against the program's own clock (both measured)",
                compared,
                FORWARD_TIMES,
                *_AGAINST_PYTHON,
            )
        )
    return Section("a", title, tuple(blocks))


_FORWARD: Final = (
    "passes time_ns time_min_ns time_max_ns time_is host_ns synchronised span_ns gpu_ns busy_share layers per_layer_ns"
)
_AGAINST_PYTHON: Final = (
    FORWARD_TIMES.column("time_ns").but(title="Profile", help="measured: time of a pass in the profile, the median"),
    FORWARD_TIMES.column("time_min_ns").but(help="measured: the fastest pass of the profile"),
    FORWARD_TIMES.column("time_max_ns").but(help="measured: the slowest pass of the profile"),
    FORWARD_TIMES.column("passes").but(help="passes of the profile"),
    "python_ns python_min_ns python_max_ns python_deviation_ns python_count ratio",
    FORWARD_TIMES.column("busy_share").but(help="measured: share of the profiled pass in which the GPU works"),
)


def time_matrix(grid: Grid) -> Table:
    """The median time of a forward pass, model × context."""
    time = FORWARD_TIMES.column("time_ns").but(help="measured: median time of a forward pass")
    times = (time.but(name=f"ctx{context}", title=f"Context {context}") for context in grid.contexts)
    caption = "Time of a forward pass, model × context (measured; of passes alone where they were recorded)"
    return Table("forward-matrix", caption, (CELL[0], *times), forward_matrix(grid), None)


def _time_figure(grid: Grid) -> Figure:
    from warplens.report.charts import ranked_chart

    fills = dict(zip(grid.models, _MODEL_FILLS * len(grid.models), strict=False))
    times = [(cell, cell.forward) for cell in grid.preferred("a") if cell.forward]
    rows = [
        {
            "name": f"{cell.model}, context {cell.context}",
            "value": forward.time.median,
            "share": None,
            "fill": fills[cell.model],
            "detail": f"{forward.time_is}, n = {forward.time.count}",
        }
        for cell, forward in times
    ]
    frame = pl.DataFrame(rows, schema_overrides={"value": pl.Float64, "share": pl.Float64})
    cell, slowest = max(times, key=lambda item: item[1].time.median)
    alt = (
        f"Bars: time of a forward pass by cell; the longest is {cell.model} at context {cell.context}, "
        f"{fmt.duration(slowest.time.median)}."
    )
    return Figure("forward-time", "Time of a forward pass (measured)", ranked_chart(frame), alt)


def forward_times(grid: Grid) -> pl.DataFrame:
    """(a) One row a profile: the times of a forward pass and, where given, the program's own."""
    found = cell_rows(grid.answering("a"), FORWARD_TIMES)
    return found.with_columns(ratio=pl.col("time_ns") / pl.col("python_ns"))


def forward_matrix(grid: Grid) -> pl.DataFrame:
    """(a) Models × contexts: the median time of a forward pass, of passes alone where they were recorded; else null."""
    times = {(cell.model, cell.context): median(cell.forward.time) for cell in grid.preferred("a") if cell.forward}
    return pl.DataFrame(
        {
            "model": grid.models,
            **{f"ctx{c}": [times.get((model, c)) for model in grid.models] for c in grid.contexts},
        },
        schema={"model": pl.String, **{f"ctx{c}": pl.Float64 for c in grid.contexts}},
    )
