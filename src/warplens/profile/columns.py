"""Columns that several results share, each declared once, and the construction of a result's table from them.

The table of a result is declared beside the function that returns it. It lists shared columns by name, in order, and
declares its own; a keyword gives a shared column its meaning in this table:

    KERNELS = table(
        "kernels",
        "One kernel, by its short or full name. `warplens kernels`.",
        "name full_name category library calls",
        SPREAD,
        "share",
        Column("heat", pl.Float64, "in kelvin"),
        share="share of the summed kernel time of the window",
    )

`KERNELS.conform(frame)` gives a frame these columns and types, `KERNELS.schema` is its Polars schema. Headings, help
and formats come with the columns, so that a page only selects what it shows:

    KERNELS.only("name calls total_ns share").columns
    KERNELS.only("name", KERNELS.column("total_ns").but(title="GPU time"), "share").columns

`docs/generate_columns.py` writes the column reference from every `Table` that a module declares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import polars as pl

from warplens.errors import SchemaError
from warplens.profile.schema import Column, Kind, Table

#: Groups of parts of a time budget, in the order of presentation.
PART_GROUPS: Final = ("compute", "graph", "communication", "copy", "idle")

COLUMNS: Final = {
    column.name: column
    for column in (
        # The subject of a row.
        Column("name", pl.String, "short name", kind="name"),
        Column(
            "full_name",
            pl.String,
            "demangled name with template parameters and arguments",
            title="Kernel",
            kind="kernel",
        ),
        Column("category", pl.String, "kernel category (see [categories](categories.md))"),
        Column("library", pl.String, "where the kernel comes from; null where the name does not show it"),
        Column("precision", pl.String, "format of the operands; null where the name does not reveal it"),
        Column(
            "tensor_cores",
            pl.Boolean,
            "whether tensor cores do the arithmetic; null where the name does not reveal it",
        ),
        Column("phase", pl.String, "`forward`, `backward`, `optimizer`, or `none` for work outside of these"),
        Column(
            "group",
            pl.Enum(PART_GROUPS),
            "`compute`, `graph`, `communication`, `copy` or `idle`",
        ),
        Column("part", pl.String, "kernel category, direction of a copy, or idle cause"),
        Column("memory", pl.String, "pageable, pinned, device, managed, …"),
        Column(
            "family",
            pl.String,
            "kind of work: `gemm`, `convolution`, `attention`, `normalization`, `softmax`, `elementwise`,"
            " `reduction`, `gather-scatter`, `sort-topk`, `copy`, `optimizer`",
        ),
        Column("input_shapes", pl.String, "shapes of its inputs, as recorded", kind="name"),
        Column("input_types", pl.String, "types of its inputs, as recorded", kind="name"),
        Column("source", pl.String, "the profile's file", title="File", kind="name"),
        Column("model", pl.String, "model of the cell"),
        Column("context", pl.Int64, "context length of the cell, in tokens", kind="count"),
        Column(
            "mode",
            pl.String,
            "what one step of the profile does: `forward`, `forward+backward`, `train`, `unknown`",
            title="Profile of",
        ),
        Column("side", pl.String, "`baseline` or `variant`"),
        Column("verdict", pl.String, "`faster`, `slower`, `same` or `undecided`"),
        Column("reason", pl.String, "why", title="Why"),
        Column("bound", pl.String, "`memory`, `compute`, `latency`, `small` or `unknown`"),
        Column("cell", pl.Int64, "row in the cells", kind="text"),
        Column("change", pl.String, "`kept`, `changed` (range, grid, block or kernel), `added`, `removed`"),
        Column("confidence", pl.String, "`high`, `medium` or `low`", title="Sure"),
        Column("evidence", pl.String),
        Column("expected", pl.String),
        Column("fault", pl.String, "which one"),
        Column("format", pl.String, "tensor: data type of the factors, of most of the operations"),
        Column(
            "forward",
            pl.String,
            "forward operator whose gradient that operator computes; null outside of the backward pass and where"
            " it is not known",
            title="Gradient of",
            kind="name",
        ),
        Column("gain", pl.String, "expected speed-up without a profiler, by the first remedy", kind="number"),
        Column("gpu", pl.String, "name of the GPU; null where the file does not say", title="GPU"),
        Column("how", pl.String, "`measured`, or `modelled`: work over practical roofs"),
        Column("kernel", pl.String, "its kernel with the most GPU time", kind="kernel"),
        Column("kind", pl.String, "event, stream-wait-event, stream, context"),
        Column("known", pl.String, "how its work is known"),
        Column("launch", pl.Int64, "row of `launches`"),
        Column("level", pl.String, "`dram`, `l2` or `l1`"),
        Column("line", pl.String, "`file(line): function`, the line where it begins; null without stacks", kind="name"),
        Column("meaning", pl.String),
        Column("metric", pl.String, "as Nsight Compute names it", kind="name"),
        Column(
            "operator",
            pl.String,
            "operator that allocated the memory, not counting operators that only allocate; the annotation where "
            "there was no operator; null without either",
        ),
        Column("owner", pl.String, "module, annotation or operator that most of it comes from", kind="name"),
        Column(
            "range",
            pl.String,
            "innermost annotated range around the call, without step and call numbers",
            kind="name",
        ),
        Column("remedy", pl.String, "what shortens it", title="Do"),
        Column("roof", pl.String, "the nearest of its roofs: `compute`, `dram`, `l2` or `l1`"),
        Column(
            "severity",
            pl.String,
            "by the gain: critical from 1.5×, warning from 1.1×; info for costs that every step has or that may "
            "be hidden without the profiler",
        ),
        Column("sparse", pl.Boolean, "tensor: sparse products (zeros skipped); null where not distinguished"),
        Column("title", pl.String, title="Part"),
        Column(
            "uncounted_tensor", pl.Boolean, "tensor cores were active, too, but their operations were not collected"
        ),
        Column("unit", pl.String, "memory: which level; compute: which pipe"),
        Column("what", pl.String, title="Operation"),
        Column("source_memory", pl.String, "kind of memory that is read", title="From"),
        Column("destination_memory", pl.String, "kind of memory that is written", title="To"),
        Column("dtype", pl.String, "format of the operands; null where it is not known", title="Format"),
        Column("graph", pl.Int64, "CUDA graph", kind="text"),
        Column("limiter", pl.String, "what limits resident blocks; null where nothing does"),
        Column("path", pl.String, "names from the step down, joined by ` / `"),
        Column("stall", pl.String, "longest warp stall, where it is long", title="Top stall"),
        Column("answer", pl.String, "whether the variant is faster"),
        Column("pays", pl.Enum(["above", "below"]), "where the variant pays"),
        Column("axis", pl.String, "axis along which it was compared with the others", title="Along"),
        Column("best", pl.String, "fastest side", title="Fastest"),
        Column("chosen", pl.String, "the side that the policy chose"),
        Column(
            "decided",
            pl.Boolean,
            "whether the difference is certain: only one side launches it in every step, or it is faster or slower",
        ),
        Column("extrapolated", pl.Boolean, "outside the measured range"),
        Column("interval", pl.String, "simultaneous over all rows"),
        Column(
            "label",
            pl.String,
            "kernel category; `memory copies`, `memory fills` or `hidden inside CUDA graphs` for other work",
        ),
        Column("method", pl.String, "how tokens are reduced"),
        Column("of", pl.String, "`wall`, `gpu`, `warmup` (wall time of a step that does not count), or a phase"),
        Column("point", pl.String, "the point", title="At"),
        Column("regime", pl.String, "baseline → variant", title="Bound by"),
        Column("remark", pl.String, "why there is no interval; null if there is one"),
        Column("size", pl.String),
        Column("status", pl.String, "see the column `status` of measured cells", title="Outcome"),
        # Where and when.
        Column("device", pl.Int32, "CUDA ordinal of the GPU", title="GPU"),
        Column("process", pl.Int32, "process id"),
        Column("thread", pl.Int32, "thread id"),
        Column("stream", pl.Int32, "CUDA stream id"),
        Column("rank", pl.Int64, "rank"),
        Column("step", pl.Int64, "number of the step, counted from 1 over all steps found, excluded ones included"),
        Column("id", pl.Int64, "number of the row"),
        Column("parent", pl.Int64, "`id` of the enclosing row; null for an outermost one"),
        Column("depth", pl.Int64, "0 for an outermost row, 1 for one directly inside, …"),
        Column("in_window", pl.Boolean, "whether it lies in the analysed window"),
        Column("start_ns", pl.Int64, "begin"),
        Column("end_ns", pl.Int64, "end; never before the start"),
        Column("time_ns", pl.Int64, "when"),
        # How many.
        Column("calls", pl.Int64, "how many"),
        Column("operators", pl.Int64, "how many", title="Calls"),
        Column("launches", pl.Int64, "how many"),
        Column("kernels", pl.Int64, "number of kernels"),
        Column("copies", pl.Int64, "number of memory copies"),
        Column("memsets", pl.Int64, "number of memory fills", title="Fills"),
        Column("ops", pl.Int64, "pieces of GPU work: kernels, copies, memsets and whole graph launches"),
        Column("steps", pl.Int64, "number of steps"),
        Column("allocations", pl.Int64, "how many"),
        Column("before", pl.Float64, "median over the launches", title="before"),
        Column("collective", pl.Int64, "its number", title="Number"),
        Column("collectives", pl.Int64, "its communication kernels in the window", title="From"),
        Column("index", pl.Int64, "its number, from 0"),
        Column("launches_profiled", pl.Int64, "of the report that agree as far as `matched` says", title="profiled"),
        Column("matched", pl.Int64, "launches whose API call was recorded; API times and whole times cover these"),
        Column("pair", pl.Int64, "position, from 0"),
        Column("places", pl.Int64, "rows of the table by place"),
        Column("ranks", pl.Int64, "ranks that have such collectives"),
        Column("releases", pl.Int64, "how many"),
        Column("row", pl.Int64, "of that table"),
        Column("samples", pl.Int64, "repetitions", title="n"),
        Column("correlation", pl.Int64, "joins the call to the work that it launched, within the process"),
        Column("group_ranks", pl.String, "global ranks of the group, JSON", title="Its ranks", kind="name"),
        Column("group_size", pl.Int32, "ranks of the group", title="Ranks"),
        Column("instructions", pl.Float64, "executed, a warp's counted once"),
        Column("intensity", pl.Float64, "FLOPs per byte"),
        Column("points", pl.Int64, "groups that did this arithmetic, or moved bytes through this level"),
        Column("registers_per_thread", pl.Int64, "as the compiler reports them", title="Registers"),
        Column("ridge", pl.Float64, "intensity at which the two roofs meet"),
        Column("sequence", pl.Int64, "its number"),
        Column("ratio", pl.Float64, "variant / baseline; null where the baseline has none of it"),
        Column("batch", pl.Int64, "batch size"),
        Column("calls_max", pl.Int64, "most calls in one repetition"),
        Column("calls_min", pl.Int64, "fewest calls in one repetition"),
        Column("fitted_error", pl.Float64, "of it: predicted / measured − 1"),
        Column("held_out_error", pl.Float64, "of it"),
        Column("items", pl.Int64, "how many of them: the batch", kind="number"),
        Column("keep", pl.Float64, "share of tokens kept at each location; null where nothing is dropped"),
        Column("layers", pl.Int64, "ranges of the softmax in it"),
        Column("needed_blocks", pl.Int64, "rounds of each side that would decide it; null where it is decided"),
        Column("p_value", pl.Float64, "of this column alone; null without repetitions"),
        Column("pass", pl.Int64, "number of the pass"),
        Column("speedup", pl.Float64, "baseline time over variant time; above 1, the variant is faster", title="Gain"),
        Column("value", pl.Float64, "as fitted"),
        # How long.
        Column("wall_ns", pl.Int64, "wall time of the step", title="Wall time"),
        Column("host_ns", pl.Int64, "duration on the host"),
        Column("gpu_ns", pl.Int64, "summed duration of the GPU work", title="GPU time"),
        Column(
            "busy_ns",
            pl.Int64,
            "time with at least one piece of that work running; overlaps counted once",
            title="GPU busy",
        ),
        Column("busy_share", pl.Float64, "`busy_ns` over `wall_ns`", title="GPU busy"),
        Column("idle_ns", pl.Int64, "nothing runs"),
        Column("idle_share", pl.Float64, "its share of the wall time", title="Idle share"),
        Column(
            "span_ns",
            pl.Int64,
            "from the first start to the last end of the work on the GPU, idle time included",
            title="GPU span",
        ),
        Column("inferred_ns", pl.Int64, "part of `gpu_ns` attributed by the waiting-thread rule"),
        Column("matmul_ns", pl.Int64, "part of `gpu_ns` in kernels of category `gemm`", title="In GEMM"),
        Column("forward_ns", pl.Int64, "GPU time of the forward pass"),
        Column("backward_ns", pl.Int64, "GPU time of the backward pass"),
        Column("optimizer_ns", pl.Int64, "GPU time of the optimizer"),
        Column("none_ns", pl.Int64, "GPU time outside of the three", title="Outside of them"),
        Column("share", pl.Float64, "share of the summed time of all rows"),
        Column("communication_ns", pl.Int64, "summed durations of its communication kernels in the window"),
        Column("copy_ns", pl.Int64, "copies and fills not overlapped with other work", title="Copies"),
        Column("delay_ns", pl.Int64, "from the second-to-last arrival to the last", title="Held up for"),
        Column("exposed_ns", pl.Int64, "the part not overlapped with compute", title="Exposed comm."),
        Column("exposed_wait_ns", pl.Int64, "the part of it with no compute on the rank", title="Waited, exposed"),
        Column("gpu_exclusive_ns", pl.Int64, "the same without inner ranges", title="Own"),
        Column("high_ns", pl.Int64, "upper end of it"),
        Column("kernel_ns", pl.Int64, "part of `gpu_ns` in kernels", title="Kernel time"),
        Column("low_ns", pl.Int64, "lower end of its confidence interval"),
        Column("measured_ns", pl.Int64, "time attributed to it, each instant counted once"),
        Column("median_ns", pl.Float64, "kernel duration, waiting included"),
        Column(
            "overlapped_ns",
            pl.Int64,
            "communication while compute (or a graph traced as a whole) runs",
            title="Hidden comm.",
        ),
        Column("roof_ns", pl.Int64, "at the practical roof of such work", title="At roof"),
        Column("step_ns", pl.Int64, "per step; the parts of a GPU sum to the measured step exactly", title="Per step"),
        Column(
            "theoretical_ns",
            pl.Int64,
            "at the data sheet's peaks, never more than measured; null where the work is not known",
            title="Data sheet",
        ),
        Column("total_ns", pl.Int64, "summed duration in the window", title="Time"),
        Column("transfer_ns", pl.Int64, "the rest of its duration"),
        Column("wait_ns", pl.Int64, "until all had started", title="Waited"),
        Column("duration_ns", pl.Int64, "its duration"),
        Column(
            "latency_ns",
            pl.Float64,
            "median wall time of a step, launch and wait included; with sides in turns, the median of the rounds' "
            "medians; null where calls were issued back to back",
        ),
        Column("predicted_ns", pl.Int64, "modelled, not measured"),
        # How much.
        Column("bytes", pl.Int64, "bytes"),
        Column("delta_bytes", pl.Int64, "bytes allocated (positive) or freed (negative)", title="Change"),
        Column("flops", pl.Int64, "modelled FLOPs; masked-out work is not counted", title="FLOPs"),
        Column("flops_full", pl.Int64, "modelled FLOPs, masked-out work included"),
        Column("flops_per_s", pl.Float64, "`flops` over `gpu_ns`", title="Rate"),
        Column("allocated_bytes", pl.Int64, "in use after it, of that process and device", title="Churn"),
        Column("bytes_per_s", pl.Float64, "measured"),
        Column("peak_bytes", pl.Int64, "peak in use"),
        Column(
            "peak_bytes_per_s",
            pl.Float64,
            "of the GPU memory's bandwidth; null where that is not known or the data crossed the link to the host",
        ),
        Column("peak_flops_per_s", pl.Float64, "the flat roof at the measured clock"),
        Column(
            "reserved_bytes", pl.Int64, "held by the allocator after it; null where it was not recorded", title="Held"
        ),
        Column("roof_share", pl.Float64, "share of the roof that was reached", title="Reached"),
        Column("compute_share", pl.Float64, "its share of the wall time"),
        Column("gain_share", pl.Float64, "most that it can cost", title="Costs at most"),
        Column("roof_flops_per_s", pl.Float64, "the roof at this intensity", title="allows"),
        Column("matmul_share", pl.Float64, "GEMM kernels' share of the phase's kernel time", title="Matrix products"),
        # Of two sides.
        Column("baseline_ns", pl.Int64, "GPU time in all steps, of the baseline", title="Baseline"),
        Column("variant_ns", pl.Int64, "GPU time in all steps, of the variant", title="Variant"),
        Column("baseline_ns_per_step", pl.Float64, "GPU time of a step, of the baseline", title="Time before"),
        Column("variant_ns_per_step", pl.Float64, "GPU time of a step, of the variant", title="after"),
        Column("change_ns_per_step", pl.Float64, "variant − baseline", title="Change"),
        Column(
            "adjusted_p",
            pl.Float64,
            "p-value, adjusted for the number of kernels (Benjamini-Hochberg); null without repetitions",
        ),
        Column("low", pl.Float64, "lower end of its interval; intervals are simultaneous", title="from"),
        Column("high", pl.Float64, "upper end of it", title="to"),
    )
}


def column(name: str, **here: Any) -> Column:
    """The shared column of this name, with changes for this table: `column("share", help="of the peak rate")`.

    Raises:
        SchemaError: there is none.
    """
    try:
        return COLUMNS[name].but(**here) if here else COLUMNS[name]
    except KeyError:
        raise SchemaError(f"no column {name} is shared; declare it with its table") from None


#: The short name of a kernel; people see a display name made from the full name.
KERNEL_NAME: Final = column("name").but(
    title="Kernel", kind="kernel", full="full_name", help="short name of the kernel"
)


def table(name: str, row: str, /, *parts: str | Column | Iterable[Column], keys: str = "", **helps: str) -> Table:
    """The table of a result.

    Args:
        name: name of the table in messages and in the reference.
        row: the meaning of a row, and the command or function that returns it, in whole sentences.
        parts: in order: names of shared columns separated by spaces, own columns, or several of these.
        keys: names of columns that rows can be grouped by, separated by spaces.
        helps: meanings of shared columns in this table, by name.

    Raises:
        SchemaError: a column is not declared, occurs twice, or has a meaning without being part of the table.
    """
    columns: list[Column] = []
    for part in parts:
        if isinstance(part, str):
            columns += [column(shared) for shared in part.split()]
        else:
            columns += [part] if isinstance(part, Column) else part
    names = [item.name for item in columns]
    if wrong := {item for item in names if names.count(item) > 1} | (helps.keys() - set(names)):
        raise SchemaError(f"table {name}: {', '.join(sorted(wrong))} twice, or explained but not a column")
    with_meanings = tuple(item.but(help=helps[item.name]) if item.name in helps else item for item in columns)
    return Table(name, row, with_meanings, tuple(keys.split()))


def optional(dtype: type[pl.DataType] = pl.Float64, /, **described: str | tuple[str, str]) -> tuple[Column, ...]:
    """Quantities that are null where they were not collected: the meaning of each, or meaning and heading.

    A shared name stands for the shared column, with this type and meaning.
    """
    columns = []
    for name, described_as in described.items():
        meaning, title = (described_as, "") if isinstance(described_as, str) else described_as
        changes: dict[str, Any] = {"dtype": dtype, "help": meaning, "nullable": True}
        changes |= {"title": title} if title else {}
        columns.append(column(name, **changes) if name in COLUMNS else Column(name, **changes))
    return tuple(columns)


def both_sides(
    name: str, dtype: pl.DataType | type[pl.DataType], meaning: str, title: str = "", kind: Kind | None = None
) -> tuple[Column, Column]:
    """A quantity of the baseline and of the variant; the headings are "`title` before" and "after"."""
    described: dict[str, Any] = {"kind": kind} if kind else {}
    return (
        Column(f"baseline_{name}", dtype, f"{meaning}, of the baseline", title=f"{title} before".lstrip(), **described),
        Column(f"variant_{name}", dtype, f"{meaning}, of the variant", title="after", **described),
    )


def spread_columns(prefix: str = "", unit: str = "ns", of: str = "durations") -> tuple[Column, ...]:
    """The columns of `analysis.frames.spread`: total, mean, median, extremes and standard deviation of a quantity.

    Args:
        prefix: of the columns' names, such as `queue_`.
        unit: suffix of the names.
        of: the quantity, in the plural.
    """
    described = (
        ("total", pl.Int64, f"sum of {of}", "Time" if unit == "ns" else "Bytes"),
        ("mean", pl.Float64, f"mean of {of}", "Mean"),
        (
            "median",
            pl.Float64,
            f"median of {of}",
            "Median",
        ),
        ("min", pl.Int64, f"minimum of {of}", "Min"),
        ("max", pl.Int64, f"maximum of {of}", "Max"),
        ("stdev", pl.Float64, f"sample standard deviation of {of} (n − 1); 0 for a single value", "Std dev"),
    )
    return tuple(
        Column(f"{prefix}{statistic}_{unit}", dtype, meaning, title=title)
        for statistic, dtype, meaning, title in described
    )


#: Spread of durations in nanoseconds.
SPREAD: Final = spread_columns()
