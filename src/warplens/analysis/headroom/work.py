"""Work of each piece of a device's busy time: floating-point operations and bytes, with their source.

Four sources, the most reliable first: hardware counters of the same kernels, recorded shapes of operators, a trace of
the same program, and names with launch configurations. Without any of them the work is unknown.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import CLASSES, categories_of, class_table
from warplens.analysis.frames import duration_ns, numbered
from warplens.analysis.headroom.shapes import bytes_of_generated, largest_tensor
from warplens.analysis.intervals import measure_before
from warplens.analysis.operators.places import module_name
from warplens.analysis.operators.statistics import LEVELS, levels_of_work
from warplens.analysis.phases import phase_of_work
from warplens.analysis.roofs import ITEM, roofs_of
from warplens.analysis.timebudget import TimeBudget, segments_of
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import plain_range_name
from warplens.analysis.work.amounts import MATMUL_FAMILIES
from warplens.analysis.work.catalogue import count_work, operator_work
from warplens.profile.schema import Bools, Int64s, name_categories

#: Sources of a piece's work.
KNOWN: Final = ("counters", "shapes", "trace", "names", "none")
SOURCE: Final = pl.Enum(KNOWN)

#: Families of `warplens.analysis.work` → categories of kernels.
_CATEGORY_OF: Final = {"copy": "copy-cast"}

#: Copies between host and device, and between GPUs, are bound by links: they can be hidden, not sped up.
ON_DEVICE: Final = ("device-to-device",)

#: Names of work other than kernels.
_FILL, _HIDDEN = "memset", "inside CUDA graphs"
_CATEGORY: Final = CLASSES.schema["category"]

_DTYPES: Final = {
    "c10::Half": "fp16", "c10::BFloat16": "bf16", "float": "fp32", "double": "fp64", "c10::Float8_e4m3fn": "fp8",
}  # fmt: skip


class Pieces(NamedTuple):
    """Pieces of work and their kinds: millions of pieces are of a few hundred kinds, which are described once."""

    #: one row per piece, by stream and begin: `work` (row of `Timeline.work`), `stream`, `budget_ns` (what the time
    #: budget attributes to it), `owned_ns` (where streams compute at once, its part of their time), `inside_ns` (its
    #: time in the window), `duration_ns`, `owner`, `line`, and after `by_shapes` `calls` (its part of one call of its
    #: operator)
    rows: pl.DataFrame
    #: one row per kind: `kind`, `category`, `precision`, `item` (bytes of an element of that precision),
    #: `tensor_cores`, `name`, `backward` (by that name), `code` (of the full name), `blocks`, `threads`, `link` (bound
    #: by a link, or exposed communication), `moved`, `phase`, `recomputed`, and columns added later. Where operators
    #: recorded shapes, each piece is a kind of its own.
    kinds: pl.DataFrame
    kind: Int64s  #: row in `kinds` of each piece

    def wide(self) -> pl.DataFrame:
        """All columns of each piece in one frame."""
        return self.rows.with_columns(self.kinds[self.kind].get_columns())

    def only(self, selected: pl.Series) -> Pieces:
        """The pieces whose kinds the mask selects."""
        if selected.all():
            return self
        is_selected = selected.to_numpy()[self.kind]
        return Pieces(self.rows.filter(pl.Series(is_selected)), self.kinds, self.kind[is_selected])


def pieces_of(timeline: Timeline, budget: TimeBudget) -> Pieces:
    """The work of one device that owns time of a budget, with the facts from its launch and its name."""
    inside_ns, owned_ns = _divided(timeline, budget)
    owning = np.flatnonzero((owned_ns > 0) | (budget.owned_ns > 0))
    # Neighbours on a stream are neighbours in the frame; work is in order of time.
    stream = timeline.work_on(budget.device)["stream"].to_numpy()[owning]
    if (stream[1:] < stream[:-1]).any():
        owning = owning[np.argsort(stream, kind="stable")]
    work_rows = timeline.rows_on(budget.device)[owning]
    work = timeline.work.select("kind", "row", "stream", "start_ns", "end_ns")[work_rows]
    levels = levels_of_work(timeline, timeline.places)
    rows = work.select(
        pl.Series("work", work_rows), "stream", pl.Series("budget_ns", budget.owned_ns[owning]),
        pl.Series("owned_ns", owned_ns[owning]), pl.Series("inside_ns", inside_ns[owning]),
        duration_ns().alias("duration_ns"),
        _owners(timeline, levels.level[work_rows], levels.row[work_rows]).alias("owner"),
        _lines(timeline, work_rows),
    )  # fmt: skip
    kinds_by_table, table_kind = _table_kinds(timeline, work["kind"], work["row"])
    del work, levels
    is_recomputed = pl.Series("recomputed", recomputed(timeline)[work_rows])
    keys = pl.DataFrame([pl.Series("table_kind", table_kind), phase_of_work(timeline).gather(work_rows), is_recomputed])
    distinct, kind = (keys, np.arange(keys.height)) if timeline.has_operators else numbered(keys, keys.columns)
    kinds = distinct.drop("table_kind").with_columns(kinds_by_table[distinct["table_kind"]].get_columns())
    return Pieces(rows, kinds, kind)


def _divided(timeline: Timeline, budget: TimeBudget) -> tuple[Int64s, Int64s]:
    """For each row of `Timeline.work_on(device)` its time in the window, and the part of that which it owns.

    A budget gives each instant to the kernel that began first. Kernels of several streams that compute at once share
    the GPU, so that none of them needs less than its work: here, each stream owns an equal part of the instant.
    """
    work, segments = timeline.work_on(budget.device), segments_of(timeline, budget.window, budget.device)
    starts, ends = (measure_before(segments, work[name].to_numpy()) for name in ("start_ns", "end_ns"))
    inside_ns = ends - starts
    in_window = np.flatnonzero(((work["kind"] == "kernel").to_numpy()) & (inside_ns > 0))
    kernels = work["row"].to_numpy()[in_window]
    categories = categories_of(timeline.trace.kernels["full_name"])
    rows = in_window[(categories != "communication").to_numpy()[kernels]]
    if (inside_ns[rows] == budget.owned_ns[rows]).all():
        return inside_ns, budget.owned_ns
    # Of a stream, the first owns: the next kernel may begin early to wait for it.
    _, stream = numbered(work.select("stream")[rows], ("stream",))
    rows = rows[np.lexsort((starts[rows], stream))]
    offset = np.sort(stream) * (int(ends.max()) + 1)
    reach = np.maximum.accumulate(ends[rows] + offset) - offset
    begins = np.maximum(starts[rows], np.r_[0, np.where(offset[1:] == offset[:-1], reach[:-1], 0)])
    edges = np.r_[begins, np.maximum(begins, ends[rows])]
    order = np.argsort(edges, kind="stable")
    running = np.cumsum(np.where(order < len(rows), 1, -1))[:-1]
    passed = np.empty(len(edges))
    passed[order] = np.r_[0, np.cumsum(np.where(running > 0, np.diff(edges[order]) / np.maximum(running, 1), 0.0))]
    # Rounded cumulatively, so that the parts sum to the budget's time.
    parts = np.diff(np.rint(np.r_[0, np.cumsum(passed[len(rows) :] - passed[: len(rows)])])).astype(np.int64)
    parts[parts.argmax()] += budget.owned_ns[rows].sum() - parts.sum()
    owned_ns = budget.owned_ns.copy()
    owned_ns[rows] = parts
    return inside_ns, owned_ns


def _table_kinds(timeline: Timeline, kind: pl.Series, row: pl.Series) -> tuple[pl.DataFrame, Int64s]:
    """The distinct kinds of kernels, copies, fills and graphs by their tables, and the kind of each piece.

    A kind has names, the size of a kernel's launch (`blocks`, `threads`), and the bytes `moved` by other work. Texts
    stay dictionary-encoded, and facts from a name are computed once per name, since millions of pieces have a few
    hundred of them.
    """
    trace = timeline.trace
    kernels, copies, fills = trace.kernels, trace.copies, trace.memsets
    launches, launch = timeline.launch_kinds
    copied, copy = numbered(copies.select("direction", moved=pl.col("bytes") * 2), ("direction", "moved"))
    filled, fill = numbered(fills.select(moved="bytes"), ("moved",))
    short, by_short, full = name_categories(kernels["name"]), launches["name"].to_physical(), launches["full_name"]
    directions, full = name_categories(copies["direction"]), full.to_physical()
    copy_names = [f"copy {text}" for text in directions]
    names = pl.Enum(list(dict.fromkeys([*short, *copy_names, _FILL, _HIDDEN])))
    classes = class_table(kernels["full_name"])
    items = [ITEM.get(text) for text in classes["precision"].cast(pl.String)]
    of_kernels = launches.select(
        pl.lit("kernel", dtype=kind.dtype).alias("kind"), "blocks", "threads",
        pl.Series("name", short, dtype=names).gather(by_short), full.cast(pl.UInt32).alias("code"),
        short.str.contains("(?i)backward|grad").gather(by_short).alias("backward"),
        pl.Series("item", items, dtype=pl.Int8).gather(full),
        *(classes[name].gather(full) for name in ("category", "precision", "tensor_cores")),
        (classes["category"] == "communication").gather(full).alias("link"),
    )  # fmt: skip
    of_copies = copied.select(
        "moved",
        pl.Series("name", copy_names, dtype=names).gather(copied["direction"].to_physical()),
        link=~pl.col("direction").is_in(ON_DEVICE).fill_null(value=False),
    )
    other_kinds = [
        rows.with_columns(
            pl.lit(kind_name, dtype=kind.dtype).alias("kind"),
            pl.lit(category, dtype=_CATEGORY).alias("category"),
            *(() if name is None else (pl.lit(name, dtype=names).alias("name"), pl.lit(value=False).alias("link"))),
        )
        for kind_name, category, name, rows in (
            ("copy", "copy-cast", None, of_copies),
            ("memset", "elementwise", _FILL, filled),
            ("graph", "other", _HIDDEN, pl.DataFrame({"moved": [None]}, schema={"moved": pl.Int64})),
        )
    ]
    all_kinds = pl.concat([of_kernels, *other_kinds], how="diagonal").with_columns(
        pl.col("link").fill_null(value=False)
    )
    hidden = np.broadcast_to(np.int64(0), trace.graph_launches.height)
    kind_of_piece, rows, offset = np.empty(kind.len(), dtype=np.int64), row.to_numpy(), 0
    tables = (("kernel", launch, launches), ("copy", copy, copied), ("memset", fill, filled), ("graph", hidden, None))
    for work_kind, numbers, table in tables:
        of_kind = np.flatnonzero((kind == work_kind).to_numpy())
        kind_of_piece[of_kind] = numbers[rows[of_kind]] + offset
        offset += 0 if table is None else table.height
    return all_kinds, kind_of_piece


def joined(pieces: pl.DataFrame, table: pl.DataFrame, on: str) -> pl.DataFrame:
    """A left join that keeps the order of the pieces; columns of nulls where the table is empty."""
    if table.is_empty():
        schema = table.drop(on).schema.items()
        return pieces.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in schema)
    return pieces.join(table, on=on, how="left", maintain_order="left")


#: If more of the backward pass than this runs with gradients enabled, it computes gradients of gradients.
_MAX_RECOMPUTED_SHARE: Final = 0.6


def recomputed(timeline: Timeline) -> Bools:
    """Mask of the rows of `Timeline.work` that recompute forward work in the backward pass (activation checkpointing).

    The backward pass computes without gradients; an operator in it that has a number of the autograd graph without
    being a node of it recomputes a piece of the forward pass.
    """
    none = np.zeros(timeline.work.height, dtype=np.bool_)
    if not timeline.has_operators:
        return none
    links, tree = timeline.autograd, timeline.operators
    numbered = timeline.trace.operators.filter((pl.col("sequence") >= 0) & (pl.col("forward_thread").fill_null(0) == 0))
    roots = np.zeros(len(links.in_backward), dtype=np.int64)
    roots[numbered["range"].to_numpy()] = 1
    recomputes = tree.forest.outermost_match(roots * links.in_backward) > 0
    operator, time_ns = timeline.places.operator, timeline.places.duration_ns
    is_recomputed: Bools = np.r_[recomputes, False][operator]
    backward = int(time_ns[np.r_[links.in_backward, False][operator]].sum())
    return is_recomputed if int(time_ns[is_recomputed].sum()) <= _MAX_RECOMPUTED_SHARE * backward else none


def _owners(timeline: Timeline, level: npt.NDArray[np.int8], row: Int64s) -> pl.Series:
    """The finest known part of the program of each piece: module, annotation or operator."""
    in_module = level == LEVELS.index("module")
    texts: list[str] = []
    position = np.full(len(row), NO_RANGE, dtype=np.int64)
    for names, selected in (
        (timeline.trace.python_functions["name"], in_module & (row != NO_RANGE)),
        (timeline.trace.ranges["name"], ~in_module & (row != NO_RANGE)),
    ):
        # Only names that occur: a trace may have a separate name for each call of an operator.
        distinct, place = np.unique(names.to_physical().to_numpy()[row[selected]], return_inverse=True)
        position[selected] = len(texts) + place
        texts += [module_name(text) or plain_range_name(text) for text in name_categories(names).gather(distinct)]
    return pl.Series(texts, dtype=pl.Enum(sorted(set(texts)))).gather(_or_null(position))


def _lines(timeline: Timeline, rows: Int64s) -> pl.Series:
    """The Python function and line of each of these rows of `Timeline.work`; categories in the order of their texts."""
    names = timeline.trace.python_functions["name"]
    if not names.len():
        return pl.Series("line", [None], dtype=pl.Enum([])).new_from_index(0, len(rows))
    texts = name_categories(names)
    lines = pl.Series("line", texts, dtype=pl.Enum(texts.sort()))
    return lines.gather(names.to_physical().gather(_or_null(timeline.places.function[rows])))


def _or_null(rows: Int64s) -> pl.Series:
    """Row numbers with null for `NO_RANGE`."""
    return pl.Series(rows).replace(NO_RANGE, None)


# --- Shapes ----------------------------------------------------------------------------------------------------------


def by_shapes(timeline: Timeline, by_kind: Pieces) -> Pieces:
    """The pieces with the work of the operator that launched them, where its shapes give it.

    Adds `calls` to the pieces, and to the kinds `op` (the operator that the work is counted at, or -1), `alone`
    (whether the piece is all that this operator launched), `helps` (whether it multiplies nothing in an operator that
    does), `kernel` (the former `name`; `name` becomes the operator's), and `shapes`, `types`, `flops`, `bytes`,
    `elements`, `dtype`, `known`; null where not known.
    """
    if not timeline.has_operators:
        return _without_shapes(by_kind)
    pieces = by_kind.wide().with_columns(
        pl.col("name", "category", "precision", "phase", "owner", "line").cast(pl.String)
    )
    counting = count_work(timeline)
    all_rows = timeline.work.select(pl.Series("op", counting.counted_at), duration_ns().alias("whole_ns"))
    whole_times = all_rows.filter(pl.col("op") != NO_RANGE).group_by("op").agg(pl.col("whole_ns").sum())
    modelled = operator_work(timeline, timeline.window("all")).operators
    ranges = timeline.trace.ranges
    operators = (
        modelled.select(
            pl.col("range").alias("op"), pl.col("name").alias("op_name"), pl.col("family").cast(pl.String),
            pl.col("input_shapes").alias("shapes"), pl.col("input_types").alias("types"), "flops", "flops_full",
            "bytes", pl.col("precision").alias("op_precision"), pl.col("tensor_cores").alias("op_tensor_cores"),
        ).join(whole_times, on="op")
    )  # fmt: skip
    pieces = pieces.with_columns(
        pl.Series("op", counting.counted_at[pieces["work"].to_numpy()]),
        pl.Series("launcher", counting.launcher[pieces["work"].to_numpy()]),
    )
    pieces = joined(pieces, operators, "op")
    launcher = pl.Series(pieces["launcher"].to_numpy()).replace(NO_RANGE, None)
    recorded = timeline.trace.operators.select(
        pl.col("range").alias("launcher"), pl.col("input_shapes").cast(pl.String).alias("own_shapes"),
        pl.col("input_types").cast(pl.String).alias("own_types"),
    )  # fmt: skip
    pieces = joined(pieces, recorded, "launcher").with_columns(
        ranges["name"].gather(launcher).cast(pl.String).alias("launched_by")
    )
    multiplies = pl.col("family").is_in(MATMUL_FAMILIES).fill_null(value=False)
    with_work = _generated(timeline, pieces).with_columns(
        (pl.col("inside_ns") / pl.coalesce("whole_ns", "duration_ns")).alias("calls"),
        (pl.col("whole_ns") == pl.col("duration_ns")).alias("alone"),
        (multiplies & ~pl.col("tensor_cores") & ~pl.col("category").is_in(MATMUL_FAMILIES))
        .fill_null(value=False)
        .alias("helps"),
        pl.when(pl.col("family").is_not_null() & pl.col("bytes").is_not_null())
        .then(pl.lit("shapes", dtype=SOURCE))
        .otherwise(_MOVED)
        .alias("known"),
        pl.coalesce("bytes", "moved").alias("bytes"),
        pl.coalesce(pl.col("family").replace(_CATEGORY_OF), "category").alias("category"),
        pl.coalesce("op_precision", "precision", _first_type()).alias("dtype"),
        pl.when(multiplies)
        .then("op_tensor_cores")
        .otherwise(pl.coalesce("op_tensor_cores", "tensor_cores"))
        .alias("tensor_cores"),
        pl.coalesce("op_name", "launched_by", "name").alias("name"),
        pl.col("name").alias("kernel"),
        pl.col("shapes").map_elements(largest_tensor, return_dtype=pl.Int64).alias("elements"),
    )
    piece_columns = [*by_kind.rows.columns, "calls"]
    return Pieces(with_work.select(piece_columns), with_work.drop(piece_columns), np.arange(with_work.height))


#: The work of a copy or fill is in its own record.
_MOVED: Final = (
    pl.when(pl.col("moved").is_not_null())
    .then(pl.lit("names", dtype=SOURCE))
    .otherwise(pl.lit("none", dtype=SOURCE))
)  # fmt: skip


def _without_shapes(pieces: Pieces) -> Pieces:
    """The same columns for a profile without operators."""
    null_text, null_int = pl.lit(None, dtype=pl.Enum([])), pl.lit(None, dtype=pl.Int64)
    kinds = pieces.kinds.with_columns(
        pl.lit(NO_RANGE, dtype=pl.Int64).alias("op"),
        pl.col("name").alias("kernel"),
        pl.col("moved").alias("bytes"),
        pl.col("precision").alias("dtype"),
        _MOVED.alias("known"),
        null_text.alias("shapes"),
        null_text.alias("types"),
        pl.lit(value=True).alias("alone"),
        pl.lit(value=False).alias("helps"),
        *(null_int.alias(name) for name in ("flops", "flops_full", "elements")),
    )
    return Pieces(
        pieces.rows.with_columns((pl.col("inside_ns") / pl.col("duration_ns")).alias("calls")), kinds, pieces.kind
    )


def _first_type() -> pl.Expr:
    return (
        pl.coalesce("types", "own_types").str.extract(r'^\["([^"]*)"')
        .replace_strict(_DTYPES, default=None, return_dtype=pl.String)
    )  # fmt: skip


#: Bytes that fit into the L2 cache of current GPUs: short kernels work in the caches.
IN_CACHE: Final = 64 * 2**20
#: A rate above memory bandwidth by more than this factor cannot come from caches: then too much work is implied.
MAX_RATE_FACTOR: Final = 2.0


def memory_rate(timeline: Timeline) -> float:
    """Bytes a second of the fastest memory of the GPUs; infinite where none is known."""
    rates = [roofs.peaks.bytes_per_s for device in timeline.trace.capture.devices if (roofs := roofs_of(device))]
    return max((rate for rate in rates if rate), default=float("inf"))


def _generated(timeline: Timeline, pieces: pl.DataFrame) -> pl.DataFrame:
    """Work of generated kernels: their arguments are inputs and outputs, each moved once.

    A kernel that is faster than the memory has read its large arguments in part. Where even that takes twice the
    bandwidth, its work is not known.
    """
    is_generated = pl.col("family").is_null() & pl.col("launched_by").str.contains(r"^triton_(poi|red|per)_")
    keys = ["launched_by", "own_shapes", "own_types", "own_numbers"]
    recorded = timeline.trace.operators.select(
        pl.col("range").alias("launcher"), pl.col("concrete_inputs").cast(pl.String).alias("own_numbers")
    )
    pieces = joined(pieces, recorded, "launcher")
    generated = pieces.filter(is_generated).group_by(keys).agg(pl.col("duration_ns").median())
    if generated.is_empty():
        return pieces.drop("own_numbers")
    moved = [bytes_of_generated(*row) for row in generated.select(keys).iter_rows()]
    could_move = pl.col("duration_ns") * (memory_rate(timeline) / 1e9)
    table = generated.hstack(pl.DataFrame(moved, {"whole": pl.Int64, "part": pl.Int64}, orient="row")).select(
        *keys,
        pl.when(pl.col("whole") <= pl.max_horizontal(could_move, IN_CACHE)).then("whole")
        .when(pl.col("part") <= pl.max_horizontal(could_move * MAX_RATE_FACTOR, IN_CACHE)).then("part")
        .alias("generated_bytes"),
    )  # fmt: skip
    with_bytes = pieces.join(table, on=keys, how="left", maintain_order="left", nulls_equal=True)
    has_bytes = is_generated & pl.col("generated_bytes").is_not_null()
    return with_bytes.with_columns(
        pl.when(has_bytes).then("category").otherwise("family").alias("family"),
        pl.when(has_bytes).then("own_shapes").otherwise("shapes").alias("shapes"),
        pl.when(has_bytes).then("own_types").otherwise("types").alias("types"),
        pl.when(has_bytes).then(0).otherwise("flops").alias("flops"),
        pl.when(has_bytes).then("generated_bytes").otherwise("bytes").alias("bytes"),
    ).drop("generated_bytes", "own_numbers")  # fmt: skip
