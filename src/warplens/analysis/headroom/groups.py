"""Equal work in one row, with the levels that it goes down: by shapes, by counters, by names, or by another trace.

Kernels of the same name, grid and block had equal work, in one profile and in two, whichever tool wrote their names.
Tools spell names differently (`(int)128`, `128`; `T1`, the type itself), so that the sets of words in function and
template arguments are compared. What hardware counters measured of kernels, traffic and tensor operations, takes the
place of models.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final

import polars as pl

from warplens.analysis.frames import by_occurrence, numbered
from warplens.analysis.headroom.levels import LOSSES, Grounds, loss_column, with_chains
from warplens.analysis.headroom.names import by_names
from warplens.analysis.headroom.work import SOURCE, Pieces, by_shapes, pieces_of
from warplens.analysis.roofs import Roofs, roofs_of
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.profile import Device
from warplens.profile.columns import column, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column, name_categories
from warplens.profile.spelling import split_name

#: Kernels of the same work, in one profile as in another.
KERNEL: Final = ("words", "blocks", "threads")

_WORD: Final = re.compile(r"[A-Za-z_]\w*|\d+")
#: What one tool writes and another does not: casts of literals, dependent types, namespaces, words of the demangler.
_DROPPED: Final = re.compile(
    r"^(int|unsigned|long|bool|char|short|ul|u|l|lambda|instance|const|void|anonymous|namespace|unnamed|operator|at|native|T\d+)$"
)
_LITERALS: Final = {"true": "1", "false": "0"}


@lru_cache(maxsize=65_536)
def words_of(full_name: str) -> str:
    """The words of a kernel's function and template arguments, as a set that tools agree on.

    >>> words_of("void f<(int)4, float>(T1 *)") == words_of("void f<4, float>(float*)")
    True
    """
    parts = split_name(full_name)
    words = {_LITERALS.get(word, word) for word in _WORD.findall(f"{parts.function} {parts.template}")}
    return " ".join(sorted(word for word in words if not _DROPPED.match(word)))


def kernels_counted(counters: KernelCounters) -> pl.DataFrame:
    """One row a kernel, grid and block (`equal.KERNEL`): means of `counted_bytes` of device memory and `counted_flops`.

    Tensor operations are null where their metrics were not collected; traffic is what moved, be it needed or not.
    """
    from warplens.analysis.counters.roofline import roofline
    from warplens.analysis.counters.speedoflight import measured, speed_of_light

    launches = counters.launches
    seconds = speed_of_light(counters).select("launch", pl.col("duration_ns") / 1e9)
    traffic = measured(counters, "dram__bytes.sum.per_second")
    blocks, threads = (
        pl.col(f"{what}_x").cast(pl.Int64) * pl.col(f"{what}_y") * pl.col(f"{what}_z") for what in ("grid", "block")
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
    """The kernels that were counted with what was measured; of several kernels of one operator none is it."""
    joined = kinds.join(counted, on=KERNEL, how="left", maintain_order="left", nulls_equal=True)
    alone = (pl.col("known") != "shapes") | pl.col("alone")
    is_product = pl.col("category").is_in(["gemm", "attention", "convolution"])
    replaced = pl.col("counted_bytes").is_not_null() & alone
    return joined.with_columns(
        # What moved twice need not: the shapes know the least.
        pl.when(replaced).then(pl.min_horizontal("bytes", "counted_bytes")).otherwise("bytes").alias("bytes"),
        pl.when(replaced & is_product).then(pl.coalesce("flops", "counted_flops")).otherwise("flops").alias("flops"),
        pl.when(replaced).then(pl.lit("counters")).otherwise("known").alias("known"),
    ).drop("counted_bytes", "counted_flops")


#: What makes work equal.
_EQUAL: Final = (
    "name", "category", "shapes", "types", "dtype", "tensor_cores", "flops", "flops_full", "bytes", "phase",
    "recomputed", "known", "misaligned", "legacy", "nchw", "apart",
)  # fmt: skip

#: One row a piece of work of one GPU that owns time, in the order of `Timeline.work`.
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
_OF_WORK: Final = replace(PIECES, columns=(Column("work", pl.Int64, "row of `Timeline.work`"), *PIECES.columns))

#: What is left of a group after each loss, the measured time first.
_LEFT: Final = tuple(f"left_{place}" for place in range(len(LOSSES) + 1))


def groups_of(
    timeline: Timeline,
    pieces: Pieces,
    roofs: Roofs | None,
    device: Device | None,
    *,
    steps: int = 0,
    told: pl.DataFrame | None = None,
    counters: KernelCounters | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The groups of these pieces with all columns of `budget.GROUPS`, and `flops_again`, those run a second time.

    Beside them the pieces themselves (`PIECES` with `work`), each with its part of what its group takes at its roofs.

    Args:
        timeline: the profile.
        pieces: what `work.pieces_of` found, without what links bound.
        roofs: of the GPU; None where nothing is known of it.
        device: the GPU.
        steps: in the window.
        told: what kernels of the same program had to do (`kernels_of_program`); None for nothing.
        counters: of the same program; None for none.
    """
    pieces = _described(timeline, pieces, counters, in_words=told is not None)
    if told is None:
        members, groups = _grouped(pieces, roofs, device, steps)
        return _finished(groups), _shared_out(members, groups)
    joined = pieces.kinds.join(told, on=KERNEL, how="left", maintain_order="left", nulls_equal=True)
    is_told = joined.select(
        pl.col("per_left_0").is_not_null() & ~pl.col("known").is_in(["counters", "shapes"])
    ).to_series()
    members, own = _grouped(pieces.only(~is_told), roofs, device, steps)
    launches, others = _told(pieces._replace(kinds=joined).only(is_told).wide())
    found = pl.concat([_shared_out(members, own), _OF_WORK.conform(launches)])
    return _finished(pl.concat([own, others], how="diagonal_relaxed")), found


def kernels_of_program(timeline: Timeline) -> pl.DataFrame:
    """What each kernel of a trace with shapes had to do: means over its launches in the steady steps.

    One row a kernel, grid and block, over all GPUs.
    """
    window, found = timeline.window(), []
    for budget in time_budgets(timeline, window):
        device = timeline.trace.capture.device(budget.device)
        pieces = pieces_of(timeline, budget)
        pieces = _described(timeline, pieces.only(~pieces.kinds["link"]), in_words=True)
        members, groups = _grouped(pieces, roofs_of(device), device, len(window.steps))
        launched = pieces._replace(rows=members).only(pieces.kinds["kind"] == "kernel").wide()
        found.append(launched.join(groups.filter("modelled"), on="group", suffix="_of_group"))
    held = pl.concat(found)
    part, longest = pl.col("owned_ns") / pl.col("owned_ns_of_group"), pl.col("owned_ns").arg_max()
    return held.group_by(KERNEL).agg(
        *((pl.col(name) * part).sum().truediv(pl.len()).alias(f"per_{name}") for name in (*_LEFT, "theoretical_ns")),
        *((pl.col(name) * pl.col("calls")).sum().truediv(pl.len()).alias(f"per_{name}") for name in ("flops", "bytes")),
        (pl.col("flops") * pl.col("calls")).filter("recomputed").sum().truediv(pl.len()).alias("per_flops_again"),
        pl.col("calls").sum().truediv(pl.len()).alias("per_calls"),
        *(pl.col(name).get(longest).alias(f"told_{name}") for name in ("name", "category", "shapes", "dtype", "lacks")),
    )  # fmt: skip


# --- Pieces ----------------------------------------------------------------------------------------------------------


def _described(
    timeline: Timeline, pieces: Pieces, counters: KernelCounters | None = None, *, in_words: bool = False
) -> Pieces:
    """The pieces with their work, as far as this profile and its counters tell it; `in_words` with their `words`."""
    pieces = by_names(timeline, by_shapes(timeline, pieces))
    kinds = pieces.kinds
    if in_words or counters is not None:
        texts = name_categories(timeline.trace.kernels["full_name"])
        words = pl.Series("words", [words_of(text) for text in texts], dtype=pl.String)
        kinds = kinds.with_columns(words.gather(kinds["code"]))
    if counters is not None:
        kinds = with_counters(kinds, kernels_counted(counters))
    # Kernels of one operator differ in their names, and with them in what their names tell.
    modelled = pl.col("known") == "shapes"
    told = [pl.when(modelled).then(pl.col(name).any().over("op")).otherwise(name).alias(name)
            for name in ("misaligned", "legacy", "nchw") if timeline.has_operators]  # fmt: skip
    kinds = kinds.with_columns(*told, pl.when(~modelled).then("blocks").alias("apart"))
    return with_chains(pieces._replace(kinds=kinds))


# --- Groups ----------------------------------------------------------------------------------------------------------


def _grouped(
    pieces: Pieces, roofs: Roofs | None, device: Device | None, steps: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pieces with the number of their group (`group`), and the groups with what is left on each level."""
    main = pl.col("owned_ns").arg_max()
    first, kind = by_occurrence(pieces.kind, pieces.kinds.height)
    kinds = pieces.kinds[pieces.kind[first]]
    equal, number = numbered(kinds, _EQUAL)
    members = pieces.rows.with_columns(pl.Series("group", number[kind], dtype=pl.UInt32))
    sums = (
        members.with_columns(pl.Series("kind", kind))
        .group_by("group")
        .agg(
            pl.col("owned_ns", "calls").sum(),
            pl.col("calls").filter("spared").sum().alias("spared_calls"),
            pl.len().alias("kernels"),
            pl.col("duration_ns").median().alias("median_ns"),
            pl.col("kind").get(main),
            pl.col("owner", "line").drop_nulls().mode().sort().first(),
        )
        .sort("group")
    )
    mostly = kinds.select("kernel", "blocks", "elements")[sums["kind"]]
    sums = sums.drop("kind").with_columns(mostly.get_columns())
    groups = _in_texts(pl.concat([equal, sums], how="horizontal"))
    grounds = Grounds(roofs, groups, device.sm_count if device is not None else None, steps)
    levels = [grounds.levels(row) for row in groups.iter_rows(named=True)]
    return members, groups.with_columns(
        *(pl.Series(name, [level.remaining[place] for level in levels], dtype=pl.Int64)
          for place, name in enumerate(_LEFT)),
        pl.Series("theoretical_ns", [level.theoretical_ns for level in levels], dtype=pl.Float64),
        pl.Series("lacks", [level.lacks for level in levels], dtype=pl.String),
        pl.Series("modelled", [level.modelled for level in levels], dtype=pl.Boolean),
        (pl.col("flops", "bytes") * pl.col("calls")).name.suffix("_of_all"),
        (pl.col("flops") * pl.col("calls") * pl.col("recomputed")).alias("flops_again"),
    )  # fmt: skip


def _in_texts(groups: pl.DataFrame) -> pl.DataFrame:
    """Dictionary-encoded columns as plain texts."""
    return groups.with_columns(
        pl.col(name).cast(pl.String) for name, dtype in groups.schema.items() if dtype == pl.Enum
    )


def _shared_out(members: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """`_OF_WORK`: to each piece its part of its group, by time."""
    group = members["group"]
    told = pl.when("modelled").then("known").otherwise(pl.lit("none")).cast(SOURCE).alias("known")
    held = groups.select(pl.col(_LEFT[1]).alias("roof_ns"), "theoretical_ns", "bytes", pl.col("owned_ns"), told)
    part = members["owned_ns"] / held["owned_ns"].gather(group)
    shared = {"roof_ns": part, "theoretical_ns": part, "bytes": members["calls"]}
    return members.select(
        "work",
        "owned_ns",
        *(
            pl.lit(None, dtype=pl.Float64).alias(name)
            if held[name].null_count() == held.height
            else (held[name].gather(group) * of_group).cast(pl.Float64).alias(name)
            for name, of_group in shared.items()
        ),
        held["known"].gather(group),
    )


def _told(pieces: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Pieces whose kernels another trace tells the work of (as `_OF_WORK`), and their groups.

    Launches of one kernel may have differed in their work, which only their sum tells: its levels, at most its time,
    are shared out by time.
    """
    launches = pl.col("owned_ns") / pl.col("duration_ns")
    pieces = pieces.with_columns(
        (pl.col("owned_ns") * (pl.col(f"per_{name}") * launches.sum() / pl.col("owned_ns").sum()).clip(0, 1))
        .over(KERNEL)
        .alias(name)
        for name in _LEFT[1:]
    )
    main = pl.col("owned_ns").arg_max()
    names = {f"told_{name}": name for name in ("name", "category", "shapes", "dtype")}
    launched = pieces.with_columns(
        pl.col(_LEFT[1]).alias("roof_ns"),
        *(pl.col(f"per_{name}").alias(name) for name in ("theoretical_ns", "flops", "bytes")),
        pl.lit("trace").alias("known"),
    )
    return launched, (
        pieces.group_by(*names, "kernel", "phase", maintain_order=True)
        .agg(
            pl.col("owned_ns").sum(),
            pl.col("owned_ns").sum().alias(_LEFT[0]),
            *(pl.col(name).sum().round().cast(pl.Int64) for name in _LEFT[1:]),
            pl.len().alias("kernels"),
            *(pl.col(f"per_{name}").sum().alias(f"{name}_of_all") for name in ("flops", "bytes")),
            *(pl.col(f"per_{name}").sum().alias(name) for name in ("flops_again", "calls", "theoretical_ns")),
            pl.col("told_lacks").get(main).alias("lacks"),
            pl.col("tensor_cores").get(main),
            pl.col("owner", "line").drop_nulls().mode().sort().first(),
        )
        .rename(names)
        .pipe(_in_texts)
        .with_columns(pl.lit("trace").alias("known"), pl.lit(value=True).alias("modelled"))
    )


def _finished(groups: pl.DataFrame) -> pl.DataFrame:
    """The columns of `budget.GROUPS` from those of the analysis."""
    return groups.with_columns(
        pl.col("shapes").alias("input_shapes"),
        pl.col("owned_ns").alias("measured_ns"),
        *(pl.col(f"{name}_of_all").round().cast(pl.Int64).alias(name) for name in ("flops", "bytes")),
        pl.col("calls").round(),
        pl.col("flops_again").fill_null(0).round().cast(pl.Int64),
        pl.col("theoretical_ns").round().cast(pl.Int64),
        pl.col(_LEFT[1]).alias("roof_ns"),
        pl.col(_LEFT[-1]).alias("limit_ns"),
        *((pl.col(before) - pl.col(after)).alias(loss_column(loss))
          for loss, before, after in zip(LOSSES, _LEFT[:-1], _LEFT[1:], strict=True)),
        (pl.col(_LEFT[1]) / pl.col("owned_ns")).alias("roof_share"),
        # A group whose bytes are known, but no roof to hold them against, is taken as it is.
        pl.when("modelled").then("known").otherwise(pl.lit("none")).alias("known"),
    )  # fmt: skip
