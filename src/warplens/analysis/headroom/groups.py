"""Groups of equal work with their levels: by shapes, by counters, by names, or by another trace.

Kernels of the same name, grid and block had equal work, in one profile and across two, whichever tool wrote the names.
Tools spell names differently (`(int)128`, `128`; `T1`, the type itself), so that the sets of words in function and
template arguments are compared. Traffic and tensor operations measured by hardware counters replace models.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final

import polars as pl

from warplens.analysis.frames import by_occurrence, numbered, ratio
from warplens.analysis.headroom.levels import LOSSES, References, loss_column, with_chains
from warplens.analysis.headroom.names import PROPERTIES, by_names
from warplens.analysis.headroom.work import SOURCE, Pieces, by_shapes, pieces_of
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.roofs import Roofs, roofs_of
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.profile import Device
from warplens.profile.columns import column, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column, name_categories, names_as_texts
from warplens.profile.spelling import split_name

#: Identity of kernels with the same work, across profiles.
KERNEL: Final = ("words", "blocks", "threads")

_WORD: Final = re.compile(r"[A-Za-z_]\w*|\d+")
#: Words that only some tools write: casts of literals, dependent types, namespaces, words of the demangler.
_DROPPED: Final = re.compile(
    r"^(int|unsigned|long|bool|char|short|ul|u|l|lambda|instance|const|void|anonymous|namespace|unnamed|operator|at|native|T\d+)$"
)
_LITERALS: Final = {"true": "1", "false": "0"}


@lru_cache(maxsize=65_536)
def words_of(full_name: str) -> str:
    """The sorted distinct words of a kernel's function and template arguments, equal across tools.

    >>> words_of("void f<(int)4, float>(T1 *)") == words_of("void f<4, float>(float*)")
    True
    """
    parts = split_name(full_name)
    words = {_LITERALS.get(word, word) for word in _WORD.findall(f"{parts.function} {parts.template}")}
    return " ".join(sorted(word for word in words if not _DROPPED.match(word)))


def kernels_counted(counters: KernelCounters) -> pl.DataFrame:
    """One row per kernel, grid and block (`KERNEL`): means of `counted_bytes` of device memory and `counted_flops`.

    Tensor operations are null where their metrics were not collected; traffic includes unnecessary transfers.
    """
    from warplens.analysis.counters.roofline import roofline
    from warplens.analysis.counters.speedoflight import measured, speed_of_light

    launches = counters.launches
    seconds = speed_of_light(counters).select("launch", pl.col("duration_ns") / 1e9)
    traffic = measured(counters, "dram__bytes.sum.per_second")
    blocks, threads = (
        pl.col(f"{size}_x").cast(pl.Int64) * pl.col(f"{size}_y") * pl.col(f"{size}_z") for size in ("grid", "block")
    )
    words = [words_of(str(name)) for name in launches["full_name"]]
    frame = launches.select(
        "launch", pl.Series("words", words, dtype=pl.String), blocks.alias("blocks"), threads.alias("threads"),
        traffic.alias("bytes_per_s"),
    ).join(seconds, on="launch", how="left")  # fmt: skip
    tensor = roofline(counters).filter((pl.col("precision") == "tensor") & (pl.col("level") == "dram"))
    frame = frame.join(tensor.select("launch", "flops_per_s"), on="launch", how="left")
    return frame.group_by(KERNEL).agg(
        (pl.col("bytes_per_s") * pl.col("duration_ns")).mean().round().cast(pl.Int64).alias("counted_bytes"),
        (pl.col("flops_per_s") * pl.col("duration_ns")).mean().round().cast(pl.Int64).alias("counted_flops"),
    )


def with_counters(kinds: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """The kinds with counters' measurements in place of models, except where an operator launched several kernels."""
    joined = kinds.join(counted, on=KERNEL, how="left", maintain_order="left", nulls_equal=True)
    alone = (pl.col("known") != "shapes") | pl.col("alone")
    is_product = pl.col("category").is_in(PRODUCTS)
    replaced = pl.col("counted_bytes").is_not_null() & alone
    return joined.with_columns(
        # Traffic may include repeated transfers: shapes give the minimum.
        pl.when(replaced).then(pl.min_horizontal("bytes", "counted_bytes")).otherwise("bytes").alias("bytes"),
        pl.when(replaced & is_product).then(pl.coalesce("flops", "counted_flops")).otherwise("flops").alias("flops"),
        pl.when(replaced).then(pl.lit("counters")).otherwise("known").alias("known"),
    ).drop("counted_bytes", "counted_flops")


#: Columns that equal work shares.
_EQUAL: Final = (
    "name", "category", "shapes", "types", "dtype", "tensor_cores", "flops", "flops_full", "bytes", "phase",
    "recomputed", "known", *PROPERTIES, "apart",
)  # fmt: skip

#: One row per piece of work of one GPU that owns time, in the order of `Timeline.work`.
PIECES: Final = table(
    "work at its roofs",
    "One piece of work (kernel, copy, fill or graph) that owns time; null for links, which have no roof."
    " `Headroom.pieces`.",
    Column("owned_ns", pl.Int64, "time attributed to it, each instant counted once", nullable=True),
    column(
        "roof_ns", dtype=pl.Float64, help="of that time, what it takes at the practical roof of such work", title="Roof"
    ),
    column(
        "theoretical_ns",
        dtype=pl.Float64,
        help="at the data sheet's peaks; null where its work is not known",
        title="Theoretical",
    ),
    column("bytes", dtype=pl.Float64, help="bytes that it has to move at least; null where not known"),
    column("known", dtype=SOURCE),
)
_PIECES_WITH_ROW: Final = replace(PIECES, columns=(Column("work", pl.Int64, "row of `Timeline.work`"), *PIECES.columns))

#: Remaining time of a group after each loss, the measured time first.
_REMAINING: Final = tuple(f"remaining_{place}" for place in range(len(LOSSES) + 1))


#: Texts that kernels take over from another trace.
_SHARED_TEXTS: Final = ("name", "category", "shapes", "dtype")


def groups_of(
    timeline: Timeline,
    pieces: Pieces,
    roofs: Roofs | None,
    device: Device | None,
    *,
    steps: float = 0,
    known_kernels: pl.DataFrame | None = None,
    counters: KernelCounters | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The groups of these pieces with all columns of `budget.GROUPS` and `flops_again` (recomputed operations).

    The second result holds the pieces themselves (`PIECES` with `work`), each with its part of its group's time at the
    roofs.

    Args:
        timeline: the profile.
        pieces: of `work.pieces_of`, without those bound by links.
        roofs: of the GPU; None where it is unknown.
        device: the GPU.
        steps: in the window.
        known_kernels: work of kernels of the same program (`kernels_of_program`), if available.
        counters: of the same program, if available.
    """
    pieces = _with_work(timeline, pieces, counters, in_words=known_kernels is not None)
    full_names = name_categories(timeline.trace.kernels["full_name"])
    if known_kernels is None:
        members, groups = _grouped(pieces, roofs, device, steps)
        return _result_columns(groups, full_names), _distributed(members, groups)
    joined = pieces.kinds.join(known_kernels, on=KERNEL, how="left", maintain_order="left", nulls_equal=True)
    is_known = joined.select(
        pl.col("per_remaining_0").is_not_null() & ~pl.col("known").is_in(["counters", "shapes"])
    ).to_series()
    members, own_groups = _grouped(pieces.only(~is_known), roofs, device, steps)
    known_pieces, known_groups = _from_trace(pieces._replace(kinds=joined).only(is_known).wide())
    all_pieces = pl.concat([_distributed(members, own_groups), _PIECES_WITH_ROW.conform(known_pieces)])
    return _result_columns(pl.concat([own_groups, known_groups], how="diagonal_relaxed"), full_names), all_pieces


def kernels_of_program(timeline: Timeline, like: Device | None) -> pl.DataFrame:
    """The work of each kernel of a trace with shapes: means over its launches in the steady steps.

    One row per kernel, grid and block, over all GPUs. A GPU that the trace does not describe is taken as one like this.
    """
    window, parts = timeline.window(), []
    for budget in time_budgets(timeline, window):
        device = timeline.trace.capture.device(budget.device) or like
        pieces = pieces_of(timeline, budget)
        pieces = _with_work(timeline, pieces.only(~pieces.kinds["link"]), in_words=True)
        members, groups = _grouped(pieces, roofs_of(device), device, len(window.steps))
        launched = pieces._replace(rows=members).only(pieces.kinds["kind"] == "kernel").wide()
        parts.append(launched.join(groups.filter("modelled"), on="group", suffix="_of_group"))
    launches = pl.concat(parts)
    part, longest = pl.col("owned_ns") / pl.col("owned_ns_of_group"), pl.col("owned_ns").arg_max()
    times = (*_REMAINING, "theoretical_ns")
    return launches.group_by(KERNEL).agg(
        *((pl.col(name) * part).sum().truediv(pl.len()).alias(f"per_{name}") for name in times),
        *((pl.col(name) * pl.col("calls")).sum().truediv(pl.len()).alias(f"per_{name}") for name in ("flops", "bytes")),
        (pl.col("flops") * pl.col("calls")).filter("recomputed").sum().truediv(pl.len()).alias("per_flops_again"),
        pl.col("calls").sum().truediv(pl.len()).alias("per_calls"),
        *(pl.col(name).get(longest).alias(f"known_{name}") for name in (*_SHARED_TEXTS, "lacks")),
    )  # fmt: skip


# --- Pieces ----------------------------------------------------------------------------------------------------------


def _with_work(timeline: Timeline, pieces: Pieces, counters: KernelCounters | None = None, *, in_words: bool) -> Pieces:
    """The pieces with their work, as far as this profile and its counters give it; `in_words` adds their `words`."""
    pieces = by_names(timeline, by_shapes(timeline, pieces))
    kinds = pieces.kinds
    if in_words or counters is not None:
        texts = name_categories(timeline.trace.kernels["full_name"])
        words = pl.Series("words", [words_of(text) for text in texts], dtype=pl.String)
        kinds = kinds.with_columns(words.gather(kinds["code"]))
    if counters is not None:
        kinds = with_counters(kinds, kernels_counted(counters))
    # Kernels of one operator have different names, and with them different properties.
    modelled = pl.col("known") == "shapes"
    properties = [pl.when(modelled).then(pl.col(name).any().over("op")).otherwise(name).alias(name)
            for name in PROPERTIES if timeline.has_operators]  # fmt: skip
    kinds = kinds.with_columns(*properties, pl.when(~modelled).then("blocks").alias("apart"))
    return with_chains(pieces._replace(kinds=kinds))


# --- Groups ----------------------------------------------------------------------------------------------------------


def _grouped(
    pieces: Pieces, roofs: Roofs | None, device: Device | None, steps: float
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pieces with the index of their group (`group`), and the groups with the remaining time on each level."""
    longest = pl.col("owned_ns").arg_max()
    one_a_call = pl.col("calls").sum().round().cast(pl.Int64).clip(lower_bound=1)
    first_rows, kind = by_occurrence(pieces.kind, pieces.kinds.height)
    kinds = pieces.kinds[pieces.kind[first_rows]]
    keys, group_of = numbered(kinds, _EQUAL)
    members = pieces.rows.with_columns(pl.Series("group", group_of[kind], dtype=pl.UInt32))
    sums = (
        members.with_columns(pl.Series("kind", kind), kinds["helps"].gather(kind))
        .group_by("group")
        .agg(
            pl.col("owned_ns", "inside_ns", "calls").sum(),
            pl.col("calls").filter("spared").sum().alias("spared_calls"),
            pl.col("owned_ns").filter("helps").sum().alias("helping_ns"),
            pl.len().alias("kernels"),
            # Of each call the longest kernel does the work; the others stand beside it.
            (pl.col("owned_ns").sum() - pl.col("owned_ns").top_k(one_a_call).sum()).alias("beside_ns"),
            pl.col("duration_ns").median().alias("median_ns"),
            pl.col("kind").get(longest),
            pl.col("owner", "line").drop_nulls().mode().sort().first(),
        )
        .sort("group")
    )
    longest_kind = kinds.select("kernel", "code", "blocks", "elements")[sums["kind"]]
    sums = sums.drop("kind").with_columns(longest_kind.get_columns())
    groups = names_as_texts(pl.concat([keys, sums], how="horizontal"))
    references = References(roofs, groups, device.sm_count if device is not None else None, steps)
    levels = [references.levels(row) for row in groups.iter_rows(named=True)]
    return members, groups.with_columns(
        *(pl.Series(name, [level.remaining[place] for level in levels], dtype=pl.Int64)
          for place, name in enumerate(_REMAINING)),
        pl.Series("theoretical_ns", [level.theoretical_ns for level in levels], dtype=pl.Float64),
        pl.Series("lacks", [level.lacks for level in levels], dtype=pl.String),
        pl.Series("modelled", [level.modelled for level in levels], dtype=pl.Boolean),
        (pl.col("flops", "bytes") * pl.col("calls")).name.suffix("_of_all"),
        (pl.col("flops") * pl.col("calls") * pl.col("recomputed")).alias("flops_again"),
    )  # fmt: skip


def _distributed(members: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """`_PIECES_WITH_ROW`: each piece with its part of its group, in proportion to its time."""
    source = pl.when("modelled").then("known").otherwise(pl.lit("none")).cast(SOURCE).alias("known")
    per_group = groups.select(
        pl.col(_REMAINING[1]).alias("roof_ns"), "theoretical_ns", "bytes", pl.col("owned_ns"), source
    )
    members = members.filter(pl.col("budget_ns") > 0)
    group = members["group"]
    part = members["budget_ns"] / per_group["owned_ns"].gather(group).clip(lower_bound=1)
    factors = {"roof_ns": part, "theoretical_ns": part, "bytes": members["calls"]}
    return members.select(
        "work",
        pl.col("budget_ns").alias("owned_ns"),
        *(
            pl.lit(None, dtype=pl.Float64).alias(name)
            if per_group[name].null_count() == per_group.height
            else (per_group[name].gather(group) * factor).cast(pl.Float64).alias(name)
            for name, factor in factors.items()
        ),
        per_group["known"].gather(group),
    )


def _from_trace(pieces: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Pieces with work from another trace (as `_PIECES_WITH_ROW`), and their groups.

    Launches of one kernel may have differed in their work, and only the sum is known: its levels, at most its time, are
    distributed in proportion to time.
    """
    launches = pl.col("inside_ns") / pl.col("duration_ns")
    pieces = pieces.with_columns(
        (pl.col("owned_ns") * (pl.col(f"per_{name}") * launches.sum() / pl.col("owned_ns").sum()).clip(0, 1))
        .over(KERNEL)
        .alias(name)
        for name in _REMAINING[1:]
    )
    longest = pl.col("owned_ns").arg_max()
    names = {f"known_{name}": name for name in _SHARED_TEXTS}
    with_levels = pieces.filter(pl.col("budget_ns") > 0).with_columns(
        pl.col("budget_ns").alias("owned_ns"),
        (pl.col(_REMAINING[1]) / pl.col("owned_ns").clip(lower_bound=1) * pl.col("budget_ns")).alias("roof_ns"),
        *(pl.col(f"per_{name}").alias(name) for name in ("theoretical_ns", "flops", "bytes")),
        pl.lit("trace").alias("known"),
    )
    return with_levels, (
        pieces.group_by(*names, "kernel", "phase", maintain_order=True)
        .agg(
            pl.col("owned_ns").sum(),
            pl.col("owned_ns").sum().alias(_REMAINING[0]),
            *(pl.col(name).sum().round().cast(pl.Int64) for name in _REMAINING[1:]),
            pl.len().alias("kernels"),
            *(pl.col(f"per_{name}").sum().alias(f"{name}_of_all") for name in ("flops", "bytes")),
            *(pl.col(f"per_{name}").sum().alias(name) for name in ("flops_again", "calls", "theoretical_ns")),
            pl.col("known_lacks").get(longest).alias("lacks"),
            pl.col("tensor_cores", "code").get(longest),
            pl.col("owner", "line").drop_nulls().mode().sort().first(),
        )
        .rename(names)
        .pipe(names_as_texts)
        .with_columns(pl.lit("trace").alias("known"), pl.lit(value=True).alias("modelled"))
    )


def _result_columns(groups: pl.DataFrame, full_names: pl.Series) -> pl.DataFrame:
    """The columns of `budget.GROUPS` from those of the analysis, and the texts of their `code`."""
    return groups.with_columns(
        full_names.gather(groups["code"]).cast(pl.String).alias("full_name"),
        pl.col("shapes").alias("input_shapes"),
        pl.col("apart").alias("launch_blocks"),
        pl.col("owned_ns").alias("measured_ns"),
        *(pl.col(f"{name}_of_all").round().cast(pl.Int64).alias(name) for name in ("flops", "bytes")),
        pl.col("calls").round(),
        pl.col("flops_again").fill_null(0).round().cast(pl.Int64),
        pl.col("theoretical_ns").round().cast(pl.Int64),
        pl.col(_REMAINING[1]).alias("roof_ns"),
        pl.col(_REMAINING[-1]).alias("limit_ns"),
        *((pl.col(before) - pl.col(after)).alias(loss_column(loss))
          for loss, before, after in zip(LOSSES, _REMAINING[:-1], _REMAINING[1:], strict=True)),
        ratio(pl.col(_REMAINING[1]), pl.col("owned_ns")).alias("roof_share"),
        # A group with known bytes but without a roof is taken as measured.
        pl.when("modelled").then("known").otherwise(pl.lit("none")).alias("known"),
    )  # fmt: skip
