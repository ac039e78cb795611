"""Question (e) of a grid: how the softmax compares with the matrix products of attention, in time and in FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.profile.columns import table
from warplens.profile.schema import Column
from warplens.report.document import Paragraph, Section
from warplens.studies.grid.answers import CellAnswers
from warplens.studies.grid.grid import Grid
from warplens.studies.grid.models import attention_matmul_flops, flop_ratio, softmax_flops
from warplens.studies.grid.tables import CELL, MODELLED_RATE, Value, between, cell_rows, cell_table, median, unanswered
from warplens.studies.grid.training import AttentionTime

if TYPE_CHECKING:
    from warplens.report.document import Block


ATTENTION: Final = table(
    "grid: (e) attention",
    "One cell. FLOPs and bytes are modelled from shapes, times measured. `grid.json`.",
    CELL,
    (
        Value.count("batch", "sequences in a batch, as given", "batch"),
        Value.count("layers", "measured: attention layers of one pass", "attention.layers"),
        Value.count("passes", "forward passes measured", "attention.passes.height"),
        Value.number("scores_ns", "measured: all work in that range, with scaling and mask", title="Scores, all"),
        Value.number("scores_matmul_ns", "measured: matrix-product kernels of the scores", title="q·kᵀ"),
        Value.number("softmax_ns", "measured: all work in the range of the softmax"),
        Value.number("softmax_min_ns", "measured: in the fastest pass", title="Softmax, least"),
        Value.number("softmax_max_ns", "measured: in the slowest pass", title="Softmax, greatest"),
        Value.count("softmax_kernels", "measured: kernels of one softmax", "attention.softmax_kernels",
                    title="Its kernels"),
        Value.number("values_ns", "all work in the range of the final product"),
        Value.number("values_matmul_ns", "measured: matrix-product kernels in the last range", title="weights·v"),
        Value.number("products_ns", "measured: GPU time per layer of their kernels", "attention.products.median",
                     title="Both products"),
        Value.number("runtime_ratio", "measured: ratio of the two times", "attention.runtime_ratio.median",
                     title="Softmax / products"),
        Value.number("runtime_ratio_min", "measured: in the pass with the smallest ratio",
                     "attention.runtime_ratio.minimum", title="Min"),
        Value.number("runtime_ratio_max", "measured: in the pass with the greatest ratio",
                     "attention.runtime_ratio.maximum", title="Greatest"),
        Value.number("range_ratio", "measured: softmax over everything in the two other ranges",
                     "attention.range_ratio.median", title="By ranges"),
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
    """(e) One row a cell: time per layer inside attention, and the ratios of times and FLOPs."""
    return cell_rows(grid.preferred("e"), ATTENTION, _attention)


def _attention(cell: CellAnswers) -> dict[str, Any]:
    attention = cell.attention
    if attention is None:
        return {}
    softmax = attention.per_layer("softmax_ns")
    row: dict[str, Any] = {
        column: median(attention.per_layer(column))
        for column in ("scores_ns", "scores_matmul_ns", "softmax_ns", "values_ns", "values_matmul_ns")
    }
    row |= {"softmax_min_ns": softmax.minimum if softmax else None}
    row |= {"softmax_max_ns": softmax.maximum if softmax else None}
    return row | _attention_work(cell, attention)


def _attention_work(cell: CellAnswers, attention: AttentionTime) -> dict[str, Any]:
    size, batch = cell.size, cell.batch
    if size is None:
        return {}
    row: dict[str, Any] = {
        "flop_ratio": flop_ratio(size.d_head),
        "times_slower_per_flop": attention.times_slower_per_flop(size),
    }
    if batch is not None:
        moved = attention.softmax_bytes_per_s(size, batch, cell.context)
        row |= {
            "scores_flops": attention_matmul_flops(batch, size.heads, cell.context, size.d_head),
            "softmax_flops": softmax_flops(batch, size.heads, cell.context),
            "scores_flops_per_s": attention.product_flops_per_s("scores", size, batch, cell.context),
            "values_flops_per_s": attention.product_flops_per_s("values", size, batch, cell.context),
            "softmax_flops_per_s": attention.softmax_flops_per_s(size, batch, cell.context),
            "softmax_bytes_per_s": moved,
            "softmax_bandwidth_share": moved / cell.bandwidth if moved and cell.bandwidth else None,
        }
    return row


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
        sentences.append(
            f"The products reach {between(_products_tera(rates), 'number')} TFLOP/s; the softmax "
            f"{between(rates['softmax_flops_per_s'] / 1e12, 'number')} TFLOP/s, while its kernels move "
            f"{between(rates['softmax_bytes_per_s'], 'bandwidth')}{_of_memory(rates)}, with "
            f"{between(rates['softmax_flops_per_s'] / rates['softmax_bytes_per_s'], 'number')} FLOP for each byte "
            "(modelled work over measured time)."
        )
    return sentences


def _of_memory(rates: pl.DataFrame) -> str:
    shares = rates["softmax_bandwidth_share"].drop_nulls()
    return f", {between(shares, 'share')} of what the memory can" if shares.len() else ""


def _products_tera(rates: pl.DataFrame) -> list[float]:
    return [*(rates["scores_flops_per_s"] / 1e12), *(rates["values_flops_per_s"] / 1e12)]


def attention_section(grid: Grid) -> Section:
    """(e) The softmax against the matrix products inside attention, in time and in FLOPs."""
    title = "(e) How does the softmax compare with the matrix products of attention?"
    times = attention_times(grid)
    if not times.height:
        return unanswered("e", title)
    rates = times.with_columns((pl.col(column) / 1e12).alias(f"{column}_tera") for column in _PER_SECOND)
    blocks: list[Block] = [
        Paragraph(" ".join(answer_e(grid))),
        cell_table("attention-times", "GPU time per layer of a pass: medians (measured)", times, ATTENTION, _TIMES),
        cell_table(
            "attention-ratios", "Runtime ratio (measured) and FLOP ratio (modelled)", times, ATTENTION, *_RATIOS
        ),
        Paragraph(
            "FLOPs of one layer by formula, a multiplication and an addition counting one each: 2·B·H·S²·d for either "
            "product, 5·B·H·S² for the softmax (B sequences, H heads, S tokens, d width of a head). Their ratio, "
            "4·d / 5 for both products, needs neither batch nor context. Products are the matrix-product kernels "
            "inside the ranges of scores and final product; with scaling and mask the scores take “Scores, all”.",
            quiet=True,
        ),
    ]
    if times["scores_flops_per_s"].drop_nulls().len():
        blocks.append(
            cell_table("attention-rates", "Modelled work over measured time, per layer", rates, ATTENTION, *_RATES)
        )
    else:
        blocks.append(Paragraph("FLOPs per second need the batch size: give it with --batch N.", quiet=True))
    return Section("e", title, tuple(blocks))


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
