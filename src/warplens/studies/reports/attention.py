"""The attention study: the rate of every kernel over length, and own flash attention against the best backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Figure, Paragraph, Section, Table
from warplens.studies.reports.growth import growth, growth_section, measured_times

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements
    from warplens.report.document import Block


#: Kernels of this package in the order in which theory says that they get faster; all others are PyTorch's.
_OWN: Final = ("naive", "tiled", "flash")
_BACKEND: Final = "sdpa-"

#: From this length on a flash kernel has enough blocks to be judged by.
_LONG: Final = 2048

_PROBLEM: Final = ("mode", "dtype", "head_dim", "causal", "heads")
_KERNELS: Final = (*_PROBLEM, "kernel")


def attention_sections(measurements: Measurements) -> tuple[str, tuple[Section, ...]]:
    """The answer in one or two sentences, and a section for each kind of problem."""
    rates = _rates(measurements)
    against = flash_against_best(rates)
    sections = [_problem_section(rates, against, problem) for problem in _problems(rates)]
    words = (
        "TFLOP/s by the convention 4·B·H·S²·D, half of that with a causal mask, 2.5 times that for the gradients; a "
        "kernel that failed its check against float64 is not timed."
    )
    how = Section("reading", "How to read this", (Paragraph(words, quiet=True),))
    grown = growth_section(_lengths(measurements), ["seq_len"], _KERNELS, _tokens_sentence(rates))
    return " ".join(_answers(rates, against)), (*sections, *filter(None, [grown]), how)


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
    """A row for each kernel and problem."""
    return measurements.cells.select(
        "kernel", "seq_len", *_PROBLEM, "batch", pl.col("status").cast(pl.String), "reason", "flops_per_s",
        time_ns=pl.coalesce("gpu_ns", "latency_ns"), peak_allocated_bytes="peak_allocated_bytes",
    )  # fmt: skip


def _problems(rates: pl.DataFrame) -> list[dict[str, Any]]:
    return rates.select(_PROBLEM).unique(maintain_order=True).to_dicts()


def flash_against_best(rates: pl.DataFrame) -> pl.DataFrame:
    """Own flash attention as a share of the fastest of PyTorch's kernels, where both were measured."""
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


def _of(frame: pl.DataFrame, problem: dict[str, Any]) -> pl.DataFrame:
    return frame.filter(pl.all_horizontal(pl.col(name) == value for name, value in problem.items()))


def _problem_section(rates: pl.DataFrame, against: pl.DataFrame, problem: dict[str, Any]) -> Section:
    rows, name = _of(rates, problem), _named(problem)
    id_ = "-".join(str(problem[key]).lower() for key in _PROBLEM)
    kernels = rows.get_column("kernel").unique(maintain_order=True).to_list()
    matrix = rows.pivot("kernel", index=["seq_len", "batch"], values="flops_per_s", aggregate_function="first")
    share = _of(against, problem).select("seq_len", "best", "of_best_share")
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
        blocks.insert(0, _figure(drawn, id_, name))
    return Section(f"problem-{id_}", name[0].upper() + name[1:], tuple(blocks))


def _figure(rows: pl.DataFrame, id_: str, name: str) -> Figure:
    from warplens.report.charts.overtime import curve_chart

    points = rows.select(series="kernel", x="seq_len", y="flops_per_s").sort("x", maintain_order=True)
    return Figure(
        f"curves-{id_}",
        f"Rate over sequence length: {name}.",
        curve_chart(points, x_title="sequence length", y_title="rate", kind="flops"),
        f"Lines with the rate of {rows.get_column('kernel').n_unique()} kernels over sequence length.",
    )


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
    """Whether naive, tiled and flash get faster in that order."""
    wrong, held = [], 0
    for problem in measured.select("seq_len", *_PROBLEM).unique(maintain_order=True).to_dicts():
        by_kernel = dict(_of(measured, problem).select("kernel", "flops_per_s").rows())
        found = [by_kernel[kernel] for kernel in _OWN if by_kernel.get(kernel)]
        if len(found) < len(_OWN):
            continue
        if found == sorted(found):
            held += 1
        else:
            wrong.append(f"{problem['seq_len']:,} tokens ({_named(problem)})")
    if not held and not wrong:
        return ""
    if wrong:
        return f"The order naive, tiled, flash is broken at {'; '.join(wrong)}."
    return f"Naive, tiled and flash get faster in that order at all {fmt.plural(held, 'problem')} of that length."
