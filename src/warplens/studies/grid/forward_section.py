"""Questions (a) and (e) of a grid: the time of a forward pass, and softmax against matrix products in attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from warplens.profile.columns import table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Table, quiet
from warplens.studies.grid.answers import CellAnswers
from warplens.studies.grid.gputime import attention_row
from warplens.studies.grid.grid import (
    CELL,
    MODELLED_RATE,
    Grid,
    Question,
    Value,
    between,
    cell_rows,
    cell_table,
    cell_title,
    majority,
)
from warplens.studies.grid.passes import median

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

#: Two clocks agree if they differ by no more than this: runs of one program differ by as much from day to day.
_AGREES = 0.05

#: If layers of different widths take the same time within this factor, arithmetic does not set the pace: from one width
#: of the table to the next, a layer's matrix products grow by 1.5 to 2.6 times.
_SAME_TIME_PER_LAYER: Final = 1.15
#: A GPU that works for less than this share of a pass waits for the host in the rest of it.
_MOSTLY_BUSY: Final = 0.8

#: Fill of each model in charts, smallest model first.
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
        f"At context {bound['context']} ({bound['mode']}) a layer takes {fmt.duration(bound['least_ns'])} to "
        f"{fmt.duration(bound['greatest_ns'])} in each of {', '.join(bound['models'])}, and their GPUs work for at "
        f"most {fmt.share(bound['busy_share'])} of the pass: the host's launches set the pace, not the width of the "
        "model."
        for bound in host_bound(times).to_dicts()
    ]
    unseen = times.filter(pl.col("gpu_ns").is_null()).height
    if unseen:
        sentences.append(
            f"{fmt.plural(unseen, 'profile')} recorded no GPU work: the time there is that of the range on the host, "
            "which is the pass's own only where the host waits inside."
        )
    return sentences + _python_sentences(grid, times)


def host_bound(times: pl.DataFrame) -> pl.DataFrame:
    """The contexts and modes in which the layers of several models take the same time while the GPU waits."""
    waiting = times.filter((pl.col("busy_share") < _MOSTLY_BUSY) & pl.col("per_layer_ns").is_not_null())
    bounds = waiting.group_by("context", "mode").agg(
        models=pl.col("model"),
        least_ns=pl.col("per_layer_ns").min(),
        greatest_ns=pl.col("per_layer_ns").max(),
        busy_share=pl.col("busy_share").max(),
    )
    same_time = pl.col("greatest_ns") <= _SAME_TIME_PER_LAYER * pl.col("least_ns")
    return bounds.filter(same_time & (pl.col("models").list.len() >= 2)).sort("context", "mode")


def _python_sentences(grid: Grid, times: pl.DataFrame) -> list[str]:
    """How the profiled passes compare with the times of the program's own clock."""
    compared = times.filter(pl.col("ratio").is_not_null())
    ambiguous = [
        f"The program's own times of {fmt.shorten(', '.join(dict.fromkeys(grid.ambiguous)), 120)} were not used: there "
        "are several batches, and --batch N says which one the profile has."
    ] * bool(grid.ambiguous)
    if not compared.height and ambiguous:
        return ambiguous
    if not compared.height and grid.timed:
        unused_text = f" It holds {fmt.shorten(', '.join(grid.unused), 120)}." if grid.unused else ""
        return [f"The file with the program's own times was not used: it has none of a forward pass here.{unused_text}"]
    if not compared.height:
        return ["No times of the program's own clock were given, so that the profiles stand alone (--timings FILE)."]
    agreeing = compared.filter((pl.col("ratio") - 1).abs() <= _AGREES)
    sentence = (
        f"The profiled pass takes {between(compared['ratio'], 'number')} times as long as by the program's own clock; "
        f"within {_AGREES * 100:.0f} % in {majority(agreeing.height, compared.height, 'profile')}."
    )
    differing = compared.filter((pl.col("ratio") - 1).abs() > _AGREES)
    if not differing.height:
        return [sentence, *ambiguous]
    busy_text = between(differing["busy_share"], "share")
    return [
        sentence,
        f"Where they differ more, the GPU works for {busy_text} of the profiled pass; where they agree, for "
        f"{between(agreeing['busy_share'], 'share')}."
        if agreeing.height
        else f"In these profiles the GPU works for {busy_text} of the pass.",
        *ambiguous,
    ]


def _forward_blocks(grid: Grid) -> Iterator[Block]:
    times = forward_times(grid)
    yield _time_figure(grid)
    yield time_matrix(grid)
    yield cell_table(
        "forward-times", "Forward time of every profile: medians (measured)", times, FORWARD_TIMES, _FORWARD
    )
    yield quiet(
        "The time is that of a clock around the pass, as nearly as the profile tells: the host range where the "
        "host waits inside it for the GPU; else from the range's start on the host to the end of its last GPU "
        "work; else, without such a range or with the GPU still at earlier work, from the first start to the "
        "last end on the GPU. GPU time sums the durations of all work launched inside the pass."
    )
    compared = times.filter(pl.col("python_ns").is_not_null())
    if compared.height:
        caption = "Against the program's own clock (both measured)"
        yield cell_table("python-times", caption, compared, FORWARD_TIMES, *_AGAINST_PYTHON)


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
    """Bars with the time of a forward pass of each cell."""
    from warplens.report.charts.bars import ranked_chart

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
    """(a) One row per profile: the times of a forward pass and, where given, the program's own."""
    times = cell_rows(grid.answering("a"), FORWARD_TIMES)
    return times.with_columns(ratio=pl.col("time_ns") / pl.col("python_ns"))


def forward_matrix(grid: Grid) -> pl.DataFrame:
    """(a) Models × contexts: the median time of a forward pass, preferably of inference profiles; null if not known."""
    times = {(cell.model, cell.context): median(cell.forward.time) for cell in grid.preferred("a") if cell.forward}
    columns = {f"ctx{c}": [times.get((model, c)) for model in grid.models] for c in grid.contexts}
    schema = {"model": pl.String, **dict.fromkeys(columns, pl.Float64)}
    return pl.DataFrame({"model": grid.models, **columns}, schema=schema)


ATTENTION: Final = table(
    "grid: (e) attention",
    "One cell. FLOPs and bytes are modelled from shapes, times measured. `grid.json`.",
    CELL,
    (
        Value.count("batch", "sequences in a batch, as given", "batch"),
        Value.count("layers", "measured: attention layers of one pass"),
        Value.count("passes", "forward passes measured"),
        Value.number("scores_ns", "measured: all work in that range, with scaling and mask", title="Scores, all"),
        Value.number("scores_matmul_ns", "measured: matrix-product kernels of the scores", title="q·kᵀ"),
        Value.number("softmax_ns", "measured: all work in the range of the softmax"),
        Value.number("softmax_min_ns", "measured: in the fastest pass", title="Softmax, least"),
        Value.number("softmax_max_ns", "measured: in the slowest pass", title="Softmax, greatest"),
        Value.count("softmax_kernels", "measured: kernels of one softmax", title="Its kernels"),
        Value.number("values_ns", "all work in the range of the final product"),
        Value.number("values_matmul_ns", "measured: matrix-product kernels in the last range", title="weights·v"),
        Value.number("products_ns", "measured: GPU time per layer of their kernels", title="Both products"),
        Value.number("runtime_ratio", "measured: ratio of the two times", title="Softmax / products"),
        Value.number("runtime_ratio_min", "measured: in the pass with the smallest ratio", title="Min"),
        Value.number("runtime_ratio_max", "measured: in the pass with the greatest ratio", title="Greatest"),
        Value.number("range_ratio", "measured: softmax over everything in the two other ranges", title="By ranges"),
        Value.number("flop_ratio", "modelled: 4·d / 5", title="FLOPs, products / softmax", modelled="modelled"),
        Value.number("times_slower_per_flop", "measured × modelled: softmax over products", title="Time per FLOP",
                     modelled="measured runtime ratio times modelled FLOP ratio"),
        Value.count("scores_flops", "modelled: 2·B·H·S²·d", title="FLOP, one product", kind="count",
                    modelled="modelled"),
        Value.count("softmax_flops", "modelled: 5·B·H·S²", title="FLOP, softmax", kind="count", modelled="modelled"),
        Value.number("scores_flops_per_s", "modelled work over measured time", title="q·kᵀ", modelled=MODELLED_RATE),
        Value.number("values_flops_per_s", "modelled work over measured time", title="weights·v",
                     modelled=MODELLED_RATE),
        Value.number("softmax_flops_per_s", "modelled work over measured time", modelled=MODELLED_RATE),
        Value.number("softmax_bytes_per_s",
                     "modelled traffic of five kernels or one in fp32, caches not counted, over measured time",
                     title="Softmax memory", modelled="modelled bytes over measured time"),
        Value.number("softmax_bandwidth_share", "the same over the memory's bandwidth", title="of the device's",
                     modelled="modelled bytes over measured time and the device's bandwidth"),
    ),
)  # fmt: skip


def attention_times(grid: Grid) -> pl.DataFrame:
    """(e) One row per cell: time per layer inside attention, and the ratios of times and FLOPs."""
    return cell_rows(grid.preferred("e"), ATTENTION, _attention)


def _attention(cell: CellAnswers) -> dict[str, Any]:
    attention = cell.attention
    return attention_row(attention, cell.size, cell.batch, cell.context, cell.bandwidth) if attention else {}


def answer_e(grid: Grid) -> list[str]:
    """The answers to (e), sentence by sentence."""
    times = attention_times(grid)
    known = times.filter(pl.col("runtime_ratio").is_not_null())
    if not known.height:
        if not times.height:
            return []
        return ["No kernel inside the attention ranges is known to be a matrix product, so that only ranges compare."]
    ratio = between(known["runtime_ratio"], "number")
    sentences = [f"The softmax takes {ratio} times as long as the two matrix products together."]
    modelled = known.filter(pl.col("flop_ratio").is_not_null())
    if modelled.height:
        sentences.append(
            f"The products have {between(modelled['flop_ratio'], 'number')} times its FLOPs (modelled), so that one "
            f"FLOP of the softmax takes {between(modelled['times_slower_per_flop'], 'number')} times as long."
        )
    rates = known.filter(pl.col("softmax_bytes_per_s").is_not_null())
    if rates.height:
        shares = rates["softmax_bandwidth_share"].drop_nulls()
        of_memory = f", {between(shares, 'share')} of what the memory can" if shares.len() else ""
        tera = [*(rates["scores_flops_per_s"] / 1e12), *(rates["values_flops_per_s"] / 1e12)]
        sentences.append(
            f"The products reach {between(tera, 'number')} TFLOP/s; the softmax "
            f"{between(rates['softmax_flops_per_s'] / 1e12, 'number')} TFLOP/s, while its kernels move "
            f"{between(rates['softmax_bytes_per_s'], 'bandwidth')}{of_memory}, with "
            f"{between(rates['softmax_flops_per_s'] / rates['softmax_bytes_per_s'], 'number')} FLOP for each byte "
            "(modelled work over measured time)."
        )
    return sentences


def _attention_blocks(grid: Grid) -> Iterator[Block]:
    times = attention_times(grid)
    yield cell_table("attention-times", "GPU time per layer of a pass: medians (measured)", times, ATTENTION, _TIMES)
    caption = "Runtime ratio (measured) and FLOP ratio (modelled)"
    yield cell_table("attention-ratios", caption, times, ATTENTION, *_RATIOS)
    yield quiet(
        "FLOPs of one layer by formula, a multiplication and an addition counting one each: 2·B·H·S²·d for either "
        "product, 5·B·H·S² for the softmax (B sequences, H heads, S tokens, d width of a head). Their ratio, "
        "4·d / 5 for both products, needs neither batch nor context. Products are the matrix-product kernels "
        "inside the ranges of scores and final product; with scaling and mask the scores take “Scores, all”."
    )
    if times["scores_flops_per_s"].drop_nulls().len():
        rates = times.with_columns((pl.col(column) / 1e12).alias(f"{column}_tera") for column in _PER_SECOND)
        yield cell_table("attention-rates", "Modelled work over measured time, per layer", rates, ATTENTION, *_RATES)
    else:
        yield quiet("FLOPs per second need the batch size: give it with --batch N.")


_PER_SECOND: Final = ("scores_flops_per_s", "values_flops_per_s", "softmax_flops_per_s")
_TIMES: Final = (
    "layers passes scores_matmul_ns scores_ns softmax_ns softmax_min_ns softmax_max_ns softmax_kernels values_matmul_ns"
)
_RATIOS: Final = (
    ATTENTION.column("softmax_ns").but(help="measured: GPU time per layer"),
    "products_ns runtime_ratio runtime_ratio_min runtime_ratio_max range_ratio flop_ratio times_slower_per_flop",
)
_RATES: Final[tuple[str | Column, ...]] = (
    "batch scores_flops softmax_flops",
    *(
        each.but(name=f"{each.name}_tera", title=f"{each.title} TFLOP/s", kind="number")
        for each in map(ATTENTION.column, _PER_SECOND)
    ),
    "softmax_bytes_per_s softmax_bandwidth_share",
)

FORWARD_TIME: Final = Question(
    "a",
    "How long does a forward pass take?",
    answer_a,
    _forward_blocks,
    {"forward_times": forward_times, "forward_matrix": forward_matrix},
)
SOFTMAX: Final = Question(
    "e",
    "How does the softmax compare with the matrix products of attention?",
    answer_e,
    _attention_blocks,
    {"attention": attention_times},
)
