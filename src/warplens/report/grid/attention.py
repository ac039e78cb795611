"""Question (e): the softmax against the two matrix products inside attention, in time and in FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.grid.answers import CellAnswers, Grid
from warplens.analysis.grid.attention import AttentionTime
from warplens.analysis.grid.lm_flops import attention_matmul_flops, flop_ratio, softmax_flops
from warplens.report.document import Paragraph, Section, Table, TableColumn
from warplens.report.grid.columns import ATTENTION
from warplens.report.grid.tables import cell_rows, median
from warplens.report.grid.wording import CELL_COLUMNS, between, unanswered

if TYPE_CHECKING:
    from warplens.report.document import Block

__all__ = ["answer_e", "attention_section", "attention_times"]


def attention_times(grid: Grid) -> pl.DataFrame:
    """(e) One row a cell: time per layer inside attention, and the ratios of times and FLOPs."""
    return cell_rows(grid.preferred("e"), _attention, ATTENTION)


def _attention(cell: CellAnswers) -> dict[str, Any]:
    attention = cell.attention
    if attention is None:
        return {}
    ratio, softmax = attention.runtime_ratio, attention.per_layer("softmax_ns")
    row: dict[str, Any] = {
        column: median(attention.per_layer(column))
        for column in ("scores_ns", "scores_matmul_ns", "softmax_ns", "values_ns", "values_matmul_ns")
    }
    row |= {
        "batch": cell.batch,
        "layers": attention.layers,
        "passes": attention.passes.height,
        "softmax_min_ns": softmax.minimum if softmax else None,
        "softmax_max_ns": softmax.maximum if softmax else None,
        "softmax_kernels": attention.softmax_kernels,
        "products_ns": median(attention.products),
        "runtime_ratio": median(ratio),
        "runtime_ratio_min": ratio.minimum if ratio else None,
        "runtime_ratio_max": ratio.maximum if ratio else None,
        "range_ratio": median(attention.range_ratio),
    }
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


# ── the section ───────────────────────────────────────────────────────────────────────────────────────────────────────


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
        return Section("e", title, (unanswered("e"),))
    rates = times.with_columns((pl.col(column) / 1e12).alias(f"{column}_tera") for column in _RATES)
    blocks: list[Block] = [
        Paragraph(" ".join(answer_e(grid))),
        Table("attention-times", "GPU time per layer of a pass: medians (measured)", _TIME_COLUMNS, times, None),
        Table("attention-ratios", "Runtime ratio (measured) and FLOP ratio (modelled)", _RATIO_COLUMNS, times, None),
        Paragraph(
            "FLOPs of one layer by formula, a multiplication and an addition counting one each: 2·B·H·S²·d for either "
            "product, 5·B·H·S² for the softmax (B sequences, H heads, S tokens, d width of a head). Their ratio, "
            "4·d / 5 for both products, needs neither batch nor context. Products are the matrix-product kernels "
            "inside the ranges of scores and final product; with scaling and mask the scores take “Scores, all”.",
            quiet=True,
        ),
    ]  # fmt: skip
    if times["scores_flops_per_s"].drop_nulls().len():
        blocks.append(
            Table("attention-rates", "Modelled work over measured time, per layer", _RATE_COLUMNS, rates, None)
        )
    else:
        blocks.append(Paragraph("FLOPs per second need the batch size: give it with --batch N.", quiet=True))
    return Section("e", title, tuple(blocks))


_RATES: Final = ("scores_flops_per_s", "values_flops_per_s", "softmax_flops_per_s")
_TIME_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("layers", "Layers", "count", "Measured: attention layers of one pass."),
    TableColumn("passes", "Passes", "count", "Forward passes measured."),
    TableColumn("scores_matmul_ns", "q·kᵀ", "duration_ns", "Measured: matrix-product kernels of the scores."),
    TableColumn("scores_ns", "Scores, all", "duration_ns", "Measured: all work in that range, with scaling and mask."),
    TableColumn("softmax_ns", "Softmax", "duration_ns", "Measured: all work in the range of the softmax."),
    TableColumn("softmax_min_ns", "Softmax, least", "duration_ns", "Measured: in the fastest pass."),
    TableColumn("softmax_max_ns", "Softmax, greatest", "duration_ns", "Measured: in the slowest pass."),
    TableColumn("softmax_kernels", "Its kernels", "count", "Measured: kernels of one softmax."),
    TableColumn("values_matmul_ns", "weights·v", "duration_ns", "Measured: matrix-product kernels in the last range."),
)  # fmt: skip
_RATIO_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("softmax_ns", "Softmax", "duration_ns", "Measured: GPU time per layer."),
    TableColumn("products_ns", "Both products", "duration_ns", "Measured: GPU time per layer of their kernels."),
    TableColumn("runtime_ratio", "Softmax / products", "number", "Measured: ratio of the two times."),
    TableColumn("runtime_ratio_min", "Least", "number", "Measured: in the pass with the smallest ratio."),
    TableColumn("runtime_ratio_max", "Greatest", "number", "Measured: in the pass with the greatest ratio."),
    TableColumn("range_ratio", "By ranges", "number", "Measured: softmax over everything in the two other ranges."),
    TableColumn("flop_ratio", "FLOPs, products / softmax", "number", "Modelled: 4·d / 5."),
    TableColumn("times_slower_per_flop", "Time per FLOP", "number", "Measured × modelled: softmax over products."),
)  # fmt: skip
_RATE_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("batch", "Batch", "count", "Sequences in a batch, as given."),
    TableColumn("scores_flops", "FLOP, one product", "count", "Modelled: 2·B·H·S²·d."),
    TableColumn("softmax_flops", "FLOP, softmax", "count", "Modelled: 5·B·H·S²."),
    TableColumn("scores_flops_per_s_tera", "q·kᵀ TFLOP/s", "number", "Modelled work over measured time."),
    TableColumn("values_flops_per_s_tera", "weights·v TFLOP/s", "number", "Modelled work over measured time."),
    TableColumn("softmax_flops_per_s_tera", "Softmax TFLOP/s", "number", "Modelled work over measured time."),
    TableColumn("softmax_bytes_per_s", "Softmax memory", "bandwidth",
                "Modelled traffic of five kernels or one in fp32, caches not counted, over measured time."),
    TableColumn("softmax_bandwidth_share", "of the device's", "share", "The same over the memory's bandwidth."),
)  # fmt: skip
