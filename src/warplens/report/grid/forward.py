"""Question (a): how long a forward pass takes, per cell and layer, and what the program's own clock says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.grid.answers import Grid, host_bound
from warplens.report import format as fmt
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn
from warplens.report.grid.tables import forward_matrix, forward_times
from warplens.report.grid.wording import CELL_COLUMNS, between, cell_title, majority, unanswered

if TYPE_CHECKING:
    from warplens.report.document import Block

__all__ = ["answer_a", "forward_section"]

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
    return sentences + _python_sentences(times)


def _python_sentences(times: pl.DataFrame) -> list[str]:
    compared = times.filter(pl.col("ratio").is_not_null())
    if not compared.height:
        return [
            "No times of the program's own clock were given, so that the profiles stand alone (--timings FILE.csv)."
        ]
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
        f"{between(close['busy_share'], 'share')}." if close.height else
        f"In these profiles the GPU works for {waiting} of the pass.",
    ]  # fmt: skip


def forward_section(grid: Grid) -> Section:
    """(a) Forward time, per cell and layer, and against the program's own clock."""
    times = forward_times(grid)
    if not times.height:
        return Section("a", "(a) How long does a forward pass take?", (unanswered("a"),))
    blocks: list[Block] = [Paragraph(" ".join(answer_a(grid))), _time_figure(grid), _time_matrix(grid)]
    blocks += [
        Table("forward-times", "Forward time of every profile: medians (measured)", _TIME_COLUMNS, times, None),
        Paragraph(
            "The time is that of a clock around the pass, as nearly as the profile tells: the host range where the "
            "host waits inside it for the GPU; else from the range's begin on the host to the end of its last GPU "
            "work; else, without such a range or with the GPU still at earlier work, from the first begin to the last "
            "end on the GPU. GPU time sums the durations of all work launched inside the pass.",
            quiet=True,
        ),
    ]
    if times["python_ns"].null_count() < times.height:
        compared = times.filter(pl.col("python_ns").is_not_null())
        blocks.append(
            Table("python-times", "Against the program's own clock (both measured)", _PYTHON_COLUMNS, compared, None)
        )
    return Section("a", "(a) How long does a forward pass take?", tuple(blocks))


_TIME_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("passes", "Passes", "count", "Forward passes measured, warm-up left out."),
    TableColumn("time_ns", "Time", "duration_ns", "Measured: time of a pass, the median."),
    TableColumn("time_min_ns", "Least", "duration_ns", "Measured: the fastest pass."),
    TableColumn("time_max_ns", "Greatest", "duration_ns", "Measured: the slowest pass."),
    TableColumn("time_is", "Time is", "text", "What the time was taken from."),
    TableColumn("host_ns", "Host range", "duration_ns", "Measured: duration of the forward range on the host."),
    TableColumn("synchronised", "Waits inside", "text", "Whether the host waits for the GPU inside the range."),
    TableColumn("span_ns", "GPU span", "duration_ns", "Measured: from first begin to last end of its GPU work."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Measured: summed durations of its GPU work."),
    TableColumn("busy_share", "GPU busy", "share", "Measured: share of the time in which the GPU works."),
    TableColumn("layers", "Layers", "count", "Attention layers: counted in the ranges, or from the table of models."),
    TableColumn("per_layer_ns", "Per layer", "duration_ns", "Measured time over the layers; all else counts in."),
)  # fmt: skip
_PYTHON_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("time_ns", "Profile", "duration_ns", "Measured: time of a pass in the profile, the median."),
    TableColumn("time_min_ns", "Least", "duration_ns", "Measured: the fastest pass of the profile."),
    TableColumn("time_max_ns", "Greatest", "duration_ns", "Measured: the slowest pass of the profile."),
    TableColumn("passes", "Passes", "count", "Passes of the profile."),
    TableColumn("python_ns", "Own clock", "duration_ns", "Measured by the program: the median, or mean."),
    TableColumn("python_min_ns", "Own least", "duration_ns", "Measured by the program: the fastest pass."),
    TableColumn("python_max_ns", "Own greatest", "duration_ns", "Measured by the program: the slowest pass."),
    TableColumn("python_deviation_ns", "Own deviation", "duration_ns", "Measured by the program: standard deviation."),
    TableColumn("python_count", "Own passes", "count", "Passes that the program measured."),
    TableColumn("ratio", "Profile / own", "number", "Measured: the profile's time over the program's own."),
    TableColumn("busy_share", "GPU busy", "share", "Measured: share of the profiled pass in which the GPU works."),
)  # fmt: skip


def _time_matrix(grid: Grid) -> Table:
    columns = [TableColumn("model", "Model", "text", "Size of the model.")]
    columns += [
        TableColumn(f"ctx{context}", f"Context {context}", "duration_ns", "Measured: median time of a forward pass.")
        for context in grid.contexts
    ]
    caption = "Time of a forward pass, model × context (measured; of passes alone where they were recorded)"
    return Table("forward-matrix", caption, tuple(columns), forward_matrix(grid), None)


def _time_figure(grid: Grid) -> Figure:
    from warplens.report.charts import ranked_chart  # noqa: PLC0415  Altair is slow to import

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
