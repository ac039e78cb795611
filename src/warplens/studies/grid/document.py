"""The grid document: five questions about models × context lengths, answered by measurements alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.diagnosis.rules import rule
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.brief import ways
from warplens.report.document import Answer, Document, Figure, Paragraph, Section, Table
from warplens.report.verdict import factor
from warplens.studies.grid.answers import (
    CELL_STATES,
    QUESTIONS,
    CellAnswers,
    Grid,
    grid_status,
    host_bound,
    record_command,
)
from warplens.studies.grid.models import attention_matmul_flops, flop_ratio, softmax_flops
from warplens.studies.grid.sections import (
    answer_b,
    answer_c,
    answer_d,
    kernel_section,
    matmul_shares,
    optimizer_costs,
    other_section,
    training_section,
    training_split,
)
from warplens.studies.grid.tables import (
    ATTENTION,
    CELL,
    FORWARD_TIMES,
    INVALID,
    PROFILES,
    PROVENANCE,
    between,
    cell_rows,
    cell_table,
    cell_title,
    forward_matrix,
    forward_times,
    invalid_profiles,
    label_shares,
    majority,
    median,
    model_parts,
    other_kernels,
    profiles,
    status_matrix,
    top_kernels,
    top_kernels_with_backward,
    unanswered,
)
from warplens.studies.grid.training import AttentionTime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.diagnosis import Diagnosis, Finding
    from warplens.report.document import Block


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


# --- Question (a): how long a forward pass takes, per cell and layer, and what the program's own clock says ----------


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
    blocks: list[Block] = [Paragraph(" ".join(answer_a(grid))), _time_figure(grid), _time_matrix(grid)]
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


def _time_matrix(grid: Grid) -> Table:
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


# --- The grid document: five questions about a folder of profiles over models × context lengths, answered by ---------
# measurements. `answer_grid` (`answers`) does the counting; here it becomes a `Document` for people and
# plain data for programs. What no profile answers is shown as missing, with what to run; no number is estimated.


_ANSWERS: Final = {"a": answer_a, "b": answer_b, "c": answer_c, "d": answer_d, "e": answer_e}


def grid_document(grid: Grid, diagnosed: Mapping[str, Diagnosis] | None = None) -> Document:
    """The document about a grid: what limits its cells, the answers (a) to (e), what is missing, how to record it.

    Args:
        grid: the answers.
        diagnosed: what the diagnosis says of a profile, by its file's name; of none, the first screen has times alone.
    """
    status = grid_status(grid)
    return Document(
        title="Forward passes and training steps over models and contexts",
        lead=_lead(grid, status),
        answer=_answer(grid, status, diagnosed or {}),
        sections=(
            forward_section(grid),
            kernel_section(grid),
            other_section(grid),
            training_section(grid),
            attention_section(grid),
            _status_section(grid, status),
            _legend(),
            _how_to_run(grid),
        ),
        meta=_meta(grid),
    )


def grid_data(grid: Grid) -> dict[str, Any]:
    """The same as plain data: for each question its sentences and its rows; exact values, times in nanoseconds.

    `provenance` names the columns that are no plain measurement, and what they are.
    """
    rows: dict[str, dict[str, pl.DataFrame]] = {
        "a": {"forward_times": forward_times(grid), "forward_matrix": forward_matrix(grid)},
        "b": {
            "top_kernels": top_kernels(grid),
            "top_kernels_with_backward": top_kernels_with_backward(grid),
            "model_parts": model_parts(grid),
        },
        "c": {"label_shares": label_shares(grid), "other_kernels": other_kernels(grid)},
        "d": {
            "training_split": training_split(grid),
            "matmul_shares": matmul_shares(grid),
            "optimizer": optimizer_costs(grid),
        },
        "e": {"attention": attention_times(grid)},
    }
    return {
        "questions": {
            letter: {"question": title, "answer": _ANSWERS[letter](grid), **rows[letter]}
            for letter, title in QUESTIONS.items()
        },
        "profiles": profiles(grid),
        "status": grid_status(grid),
        "invalid": invalid_profiles(grid),
        "unplaced": list(grid.unplaced),
        "provenance": {"otherwise": "measured", **PROVENANCE},
    }


def _lead(grid: Grid, status: pl.DataFrame) -> str:
    if not grid.cells:
        return "None of the files is a profile of a cell: “What is answered” lists them with the reasons."
    answered = status.filter(pl.col("state") == "measured").height
    valid = sum(1 for cell in grid.cells if not cell.invalid)
    first = next((sentences[0] for letter in QUESTIONS if (sentences := _ANSWERS[letter](grid))), "")
    total = len(grid.cells)
    profiles = f"{valid} of {fmt.plural(total, 'profile')}" if valid < total else fmt.plural(total, "profile")
    return (
        f"{profiles} over {fmt.plural(len(grid.models), 'model')} and "
        f"{fmt.plural(len(grid.contexts), 'context length')} {'answers' if total == 1 else 'answer'} "
        f"{majority(answered, status.height, 'question')} of the grid, all by measurement. {first}"
    )


def _answer(grid: Grid, status: pl.DataFrame, diagnosed: Mapping[str, Diagnosis]) -> Answer | None:
    """The first screen: what limits most of the cells and what to do, or how long a pass takes; then the questions."""
    cells = [cell for cell in grid.cells if not cell.invalid]
    verdict = next((sentences[0] for letter in QUESTIONS if (sentences := _ANSWERS[letter](grid))), "")
    if not verdict:
        return None
    found = [(cell, diagnosed[cell.source].findings[0]) for cell in cells if cell.source in diagnosed]
    limited = [(cell, first) for cell, first in found if first.gain is not None and not rule(first.id).describes]
    gain = do = code = ""
    if limited:
        ids = [first.id for _, first in limited]
        most = max(dict.fromkeys(ids), key=ids.count)
        mine = [first for _, first in limited if first.id == most]
        verdict = f"The limit of {majority(len(mine), len(found), 'profile')}: {rule(most).limiter}. {verdict}"
        gains = sorted(first.gain or 0.0 for first in mine)
        gain = " to ".join(dict.fromkeys(map(factor, (gains[0], gains[-1]))))
        remedies = [first.remedies[0] for first in mine if first.remedies]
        do, code = (remedies[0].action, "\n".join(ways(remedies[0].how))) if remedies else ("", "")
    measured = status.filter(pl.col("state") == "measured")["question"].to_list()
    asked = status["question"].to_list()
    return Answer(
        id="answer",
        verdict=verdict,
        severity="info",
        gain=gain,
        unit=" as fast" if gain else "",
        gain_range=f"in {fmt.plural(len(mine), 'profile')}, expected without a profiler" if limited else "",
        do=do,
        code=code,
        brings="",
        sure="",
        refute="",
        others=tuple(
            (letter, f"({letter}) {title}", f"{measured.count(letter)} of {asked.count(letter)} cells")
            for letter, title in QUESTIONS.items()
        ),
        also="The questions",
        tables=(_limits_table(found) if found else replace(_time_matrix(grid), id="answer-matrix"),),
    )


_LIMITS: Final = (
    column("cell", dtype=pl.String, help="model, context length, and what a step does"),
    column("verdict", dtype=pl.String, help="the first finding of the profile", title="What limits it"),
    column("gain", help="how many times as fast without it is expected to be"),
    column("remedy", help="its first remedy"),
)


def _limits_table(found: Sequence[tuple[CellAnswers, Finding]]) -> Table:
    """What limits each cell that was diagnosed."""
    rows = [
        {
            "cell": f"{cell.model} at {cell.context}, {cell.mode}",
            "verdict": rule(first.id).limiter,
            "gain": factor(first.gain) if first.gain is not None and not rule(first.id).describes else fmt.MISSING,
            "remedy": first.remedies[0].action if first.remedies else fmt.MISSING,
        }
        for cell, first in found
    ]
    schema = {each.name: pl.String for each in _LIMITS}
    return Table(
        "limits-table", "What limits each cell", _LIMITS, pl.DataFrame(rows, schema=schema), limit=None, cards=True
    )


def _meta(grid: Grid) -> tuple[tuple[str, str], ...]:
    devices = sorted({cell.device for cell in grid.cells if cell.device})
    batches = sorted({cell.batch for cell in grid.cells if cell.batch is not None})
    if not grid.cells:
        return ()
    return (
        ("GPU", ", ".join(devices) or "not stated"),
        ("Models", ", ".join(grid.models)),
        ("Contexts", ", ".join(map(str, grid.contexts))),
        ("Batch", ", ".join(map(str, batches)) or "not stated"),
    )


# ── what is answered ──────────────────────────────────────────────────────────────────────────────────────────────────


_STATUS_COLUMNS: Final = (
    *CELL[:2],
    *(Column(letter, title=f"({letter})", help=f"({letter}): {title}") for letter, title in QUESTIONS.items()),
)
_TODO_COLUMNS: Final = (
    column("cell", dtype=pl.String, help="model and context length"),
    Column("questions", help="what it would answer"),
    CELL_STATES.column("state").but(help="missing or invalid"),
    CELL_STATES.column("detail").but(help="a command, an advice, or why a profile is invalid"),
)
_SHOWN_OF_INVALID: Final = "source reason wall_ns forward_ns forward_kernels backward_kernels optimizer_kernels"
_UNPLACED_COLUMNS: Final = (
    column("source").but(help="the file"),
    column("reason", help="why it is of no cell, and what to do", title="Reason"),
)


def _status_section(grid: Grid, status: pl.DataFrame) -> Section:
    blocks: list[Block] = []
    if status.height:
        blocks.append(
            Table(
                "status-matrix",
                "Which question is answered for which cell",
                _STATUS_COLUMNS,
                status_matrix(status),
                None,
            )
        )
    todo = status.filter(pl.col("state") != "measured").group_by("detail", maintain_order=True).agg(
        pl.format("{} at {}", pl.col("model").first(), pl.col("context").first()).alias("cell"),
        pl.col("question").unique(maintain_order=True).str.join(", ").alias("questions"),
        pl.col("state").cast(pl.String).first(),
    )  # fmt: skip
    if todo.height:
        blocks.append(Table("to-do", "What is missing or invalid, and what to run", _TODO_COLUMNS, todo, None))
    invalid = invalid_profiles(grid)
    if invalid.height:
        caption = "Profiles that cannot stand for their cell; none of their numbers is used"
        blocks.append(cell_table("invalid", caption, invalid, INVALID, _SHOWN_OF_INVALID))
    if grid.unplaced:
        left = pl.DataFrame([(item.source, item.reason) for item in grid.unplaced], ["source", "reason"], orient="row")
        blocks.append(Table("unplaced", "Files that are of no cell", _UNPLACED_COLUMNS, left, None))
    blocks.append(
        cell_table(
            "profiles", "The profiles and how their steps were found", profiles(grid), PROFILES, "source how notes"
        )
    )
    return Section("status", "What is answered", tuple(blocks))


# ── legend and recording ──────────────────────────────────────────────────────────────────────────────────────────────


def _legend() -> Section:
    entries = (
        "Measured: read from the profiles or from the program's own times, by counting and adding. Every number is "
        "measured unless its heading, its explanation or the sentence says modelled. Nothing is estimated.",
        "Modelled: follows from the shapes of the model alone (FLOPs, bytes, layers where no attention range shows "
        "them). A rate is modelled work over measured time.",
        "GPU time: summed durations of kernels, copies and fills. Busy: time in which any of them runs. Span: "
        "from the first start to the last end. GPU work belongs to the range in which it was launched, not to the "
        "time at which it ran.",
        "Categories come from kernel names; gemm are matrix products, the reductions of split-k products included.",
        "Spreads are over forward passes or steps after warm-up: median, least and greatest, and how many.",
        "–: not recorded, or not defined.",
    )
    return Section("legend", "Legend", tuple(Paragraph(entry) for entry in entries))


def _how_to_run(grid: Grid) -> Section:
    model = grid.models[0] if grid.models else "small"
    context = grid.contexts[0] if grid.contexts else 512
    return Section(
        "how-to-run",
        "How to run",
        (
            Paragraph(f"One forward profile a cell: {record_command(model, context, 'forward')}"),
            Paragraph(f"One training profile a cell: {record_command(model, context, 'train')}"),
            Paragraph(
                "The program puts NVTX ranges around each step (step), its phases (forward_pass, backward_pass, "
                "optimizer_step) and the parts of attention (computing_attention_scores, computing_softmax, "
                "final_matmul), and a few warm-up steps before (warmup)."
            ),
            Paragraph(
                "Cells are recognised from file names such as medium_ctx1024_train.sqlite, or stated with "
                "--cell NAME=MODEL,CONTEXT[,MODE]; --timings FILE adds the program's own times, --batch N the "
                "batch size."
            ),
        ),
    )
