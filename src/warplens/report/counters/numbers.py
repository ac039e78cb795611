"""Runs every analysis of one counter report once, and words its results: bounds, reasons, faults, remedies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.analysis.categories import classify
from warplens.analysis.counters.annotations import ANNOTATIONS, annotated
from warplens.analysis.counters.bounds import kernel_faults
from warplens.analysis.counters.comparison import Comparison, compare_counters
from warplens.analysis.counters.coverage import Coverage, counter_notes, counters_coverage
from warplens.analysis.counters.groups import SUMMARY, SUMMARY_KEYS, counters_summary, group_launches
from warplens.analysis.counters.memoryaccess import STALL_REASONS, memory_access, warp_stalls
from warplens.analysis.counters.nextrun import NextRun, next_run, next_sections
from warplens.analysis.counters.occupancy import launch_configurations
from warplens.analysis.counters.roofline import Roofline, roofline_points
from warplens.analysis.counters.speedoflight import instruction_use, throughput_breakdown
from warplens.analysis.headroom.names import MARKS
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile import Capture, Note, NoteLevel
from warplens.profile.columns import column
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column, Kind
from warplens.report import text as fmt
from warplens.report.document import Table, pick, with_texts
from warplens.report.verdict import checklist_frame


@dataclass(frozen=True, eq=False)
class Joined:
    """One counter report, joined with a window of a trace."""

    source: str  #: file name of the report
    trace: str  #: file name of the trace
    window: Window
    coverage: Coverage  #: share of the window that the profiled launches represent
    next_run: NextRun
    reasons: pl.DataFrame  #: `name`, `full_name`, `grid`, `block`, `verdict`, `reason` of each group of launches

    @property
    def matches(self) -> bool:
        """Whether any kernel of the window was profiled, with the same grid and block or others."""
        return bool((self.coverage.groups["matched"] != "none").any())


@dataclass(frozen=True, eq=False)
class CounterNumbers:
    """The results of all analyses of a report; frames have one row per group of launches unless stated otherwise.

    In all of them but `roofline`, `launch` is the first launch of the group.
    """

    counters: KernelCounters
    notes: tuple[Note, ...]  #: limits and meaning of the numbers
    summary: pl.DataFrame  #: `SUMMARY` with the texts of `with_words` and `share` of the profiled time, longest first
    configurations: pl.DataFrame  #: `CONFIGURATIONS`: registers and shared memory of the groups
    breakdown: pl.DataFrame  #: `BREAKDOWN`
    faults: pl.DataFrame  #: `FAULTS`
    stalls: pl.DataFrame  #: `STALLS`
    memory: pl.DataFrame  #: `MEMORY_ACCESS`
    instructions: pl.DataFrame  #: `INSTRUCTIONS`
    roofline: Roofline
    checklist: pl.DataFrame  #: the optimisation checklist, from counters alone
    next_run: NextRun  #: what to collect next, from the report alone
    joined: tuple[Joined, ...] = ()  #: the report joined with each given trace

    @property
    def capture(self) -> Capture:
        """Source and recorder of the report."""
        return self.counters.capture

    @property
    def measured(self) -> str:
        """The number of profiled launches and kernels: `30 launches of 5 kernels`."""
        launches, kinds = self.counters.launches.height, self.counters.launches["kind"].cast(pl.String)
        if (kinds == "kernel").all():
            return f"{fmt.plural(launches, 'launch', 'launches')} of {fmt.plural(self.summary.height, 'kernel')}"
        return f"{fmt.count(launches)} result{'' if launches == 1 else 's'} of kernels, ranges or graphs"

    @property
    def warnings(self) -> tuple[Note, ...]:
        """Notes that limit the numbers."""
        return tuple(note for note in self.notes if note.level is not NoteLevel.INFO)

    @property
    def semantics(self) -> tuple[Note, ...]:
        """Notes on the meaning of the numbers, without "coverage-unknown" if a joined trace gives the coverage."""
        coverage_known = any(joined.matches for joined in self.joined)
        return tuple(
            note
            for note in self.notes
            if note.level is NoteLevel.INFO and not (coverage_known and note.code == "coverage-unknown")
        )


def examine_counters(counters: KernelCounters, joined: Sequence[Joined] = ()) -> CounterNumbers:
    """Run every analysis of a report."""
    grouped = group_launches(counters)
    first = grouped.groups.select(launch="group", first="first_launch")

    def by_first(frame: pl.DataFrame) -> pl.DataFrame:
        """The rows with `launch`, a group number, replaced by the first launch of the group."""
        with_first = frame.join(first, on="launch", how="left", maintain_order="left")
        return with_first.with_columns(launch="first").drop("first")

    summary = with_words(counters_summary(counters))
    total = pl.col("total_ns").sum()
    return CounterNumbers(
        counters=counters,
        notes=counter_notes(counters),
        summary=summary.with_columns(share=pl.when(total > 0).then(pl.col("total_ns") / total)),
        configurations=by_first(launch_configurations(grouped.counters)),
        breakdown=by_first(throughput_breakdown(grouped.counters)),
        faults=by_first(kernel_faults(grouped.counters)),
        stalls=by_first(warp_stalls(grouped.counters)),
        memory=by_first(memory_access(grouped.counters)),
        instructions=by_first(instruction_use(grouped.counters)),
        roofline=roofline_points(counters),
        checklist=checklist_frame(counters=counters),
        next_run=next_sections(counters),
        joined=tuple(joined),
    )


def join_counters(
    counters: KernelCounters, timeline: Timeline, window: Window, ncu_version: str | None = None
) -> Joined:
    """A report joined with a window of a trace, which must have been read with launch configurations."""
    coverage = counters_coverage(counters, timeline, window)
    return Joined(
        source=counters.capture.source,
        trace=timeline.trace.capture.source,
        window=window,
        coverage=coverage,
        next_run=next_run(counters, coverage, timeline, window, ncu_version),
        reasons=with_words(counters_summary(counters)).select(
            "name", "full_name", "grid", "block", "verdict", "reason"
        ),
    )


def compared_with_first(reports: Sequence[CounterNumbers]) -> tuple[Comparison, ...]:
    """The comparison of each further report with the first."""
    return tuple(compare_counters(reports[0].counters, other.counters) for other in reports[1:])


def with_names(numbers: CounterNumbers, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of an analysis with names, grid, block and time of their kernel, the most expensive kernel first.

    Rows of the same `launch` keep their order.
    """
    kernels = numbers.summary.select("launch", "name", "full_name", "grid", "block", "total_ns").with_row_index("rank")
    return frame.join(kernels, on="launch", how="inner").sort("rank", maintain_order=True)


_UNITS: Final = {
    "dram": "device memory",
    "l2": "L2 cache",
    "l1": "L1 cache and shared memory",
    "issue": "issue slots",
    "lsu": "load/store pipe",
    "constant-cache": "constant cache",
    "internal": "an internal unit",
    "fma-heavy": "FMA pipe (heavy half)",
    "fma": "FMA pipe",
    "alu": "ALU pipe",
    "fp64": "FP64 pipe",
    "tensor": "tensor pipe",
    "xu": "special-function pipe",
}

#: A side of which no part was collected.
_UNNAMED: Final = {"memory": "memory (DRAM or a cache: which of them was not collected)"}

_LIMITERS: Final = {
    "warps": "block size",
    "blocks": "blocks per SM",
    "registers": "registers",
    "shared-memory": "shared memory",
    "barriers": "barriers",
}

#: Display names of the levels of memory.
LEVELS: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}


def roof_title(roof: Mapping[str, Any]) -> str:
    """The display name of an arithmetic roof: `FP32`, `tensor cores, BF16`."""
    if roof["precision"] != "tensor":
        return str(roof["precision"]).upper()
    title = f"tensor cores, {roof['format'].upper().replace('_', '/')}" if roof["format"] else "tensor cores"
    return f"{title}, sparse" if roof["sparse"] else title


#: Columns of the texts of `with_words`.
BOUND: Final = column("verdict").but(help="what limits it; healthy is at its roof without waste", title="Bound")
LIMITED_BY: Final = Column("limited_by", help="what keeps further blocks out", title="limited by")

#: Columns of the table of kernels, the most important on the left: a narrow terminal drops those on the right.
_COLUMNS: Final = pick(
    SUMMARY,
    "name grid total_ns",
    BOUND,
    "launches duration_ns compute_share memory_share theoretical_share achieved_share",
    LIMITED_BY,
    "top_stall",
    column("reason"),
    duration_ns="Median",
)


def shown_columns(columns: Sequence[Column], summary: pl.DataFrame) -> tuple[Column, ...]:
    """The columns, with `grid` only if it distinguishes kernels of the same name."""
    several = summary["full_name"].is_duplicated().any() and summary["grid"].n_unique() > 1
    return tuple(column for column in columns if several or column.name != "grid")


def counters_table(summary: pl.DataFrame, metrics: Sequence[str] = (), limit: int | None = None) -> Table:
    """The table of the summary (of `with_words`), with the given metrics before the reasons."""
    metric_columns = (Column(name, pl.Float64, title=name, kind="number") for name in metrics)
    columns = (*shown_columns(_COLUMNS[:-1], summary), *metric_columns, _COLUMNS[-1])
    return Table("counters", "Kernels", columns, summary, limit, empty="No kernel was profiled.")


#: Groupings of `warplens counters --by`.
COUNTER_KEYS: Final = (*SUMMARY_KEYS, "range")


def summarised(
    counters: KernelCounters, by: str, metrics: Sequence[str] = (), limit: int | None = None
) -> tuple[pl.DataFrame, Table]:
    """The rows of `warplens counters --by` for a grouping of `COUNTER_KEYS`, and the table that displays them.

    Raises:
        UsageError: the report has no such metric, or metrics are requested for ranges.
        MissingDataError: ranges are requested, and the report has none.
    """
    if by != "range":
        rows = with_words(counters_summary(counters, by, metrics))
        return rows, counters_table(rows, metrics, limit)
    if metrics:
        raise UsageError("--metric shows metrics of kernels, and --by range adds kernels up: ask for one at a time")
    rows = annotated(counters)
    shown = with_texts(rows, verdict=lambda row: bound_title({**row, "unit": None}))
    columns = pick(
        ANNOTATIONS, "name total_ns share", BOUND, "bound_time_share launches kernels compute_share memory_share"
    )
    return rows, Table("annotations", "NVTX ranges", columns, shown, limit, empty="No kernel was profiled.")


def with_words(summary: pl.DataFrame) -> pl.DataFrame:
    """The summary with three texts: `verdict` (the bound), `reason` and `limited_by` (the limiter of occupancy)."""
    return with_texts(summary, verdict=bound_title, reason=reason, limited_by=limiter_title)


def bound_title(row: Mapping[str, Any]) -> str:
    """The bound of a row, with its memory level or pipe: `memory (DRAM), healthy`."""
    bound, unit = row["bound"], row["unit"]
    if bound == "small":
        return "too small for the GPU"
    if bound not in ("memory", "compute"):
        return str(bound)
    title = f"{bound} ({LEVELS.get(unit, unit)})" if unit else str(bound)
    return f"{title}, healthy" if row.get("healthy") else title


def limiter_title(row: Mapping[str, Any]) -> str | None:
    """The limiter of the occupancy of a row; None if there is none."""
    return _LIMITERS.get(row["limiter"]) if row["limiter"] else None


def next_step_text(row: Mapping[str, Any]) -> str | None:
    """The change that lets one more block fit, and the resulting occupancy; None if there is none."""
    if row["next_share"] is None:
        return None
    return f"{_next_step(row)}: {fmt.share(row['next_share'])}"


def reason(row: Mapping[str, Any]) -> str:
    """The reason for the bound of a row, and its main fault or wait."""
    because = _why(row)
    if (fault := _fault(row)) is not None:
        return f"{because}; {fault}"
    if row["bound"] == "latency":
        return f"{because}; {_waits(row)}"
    if row["healthy"]:
        return f"{because}, and no waste was found"
    return because


def _why(row: Mapping[str, Any]) -> str:
    """The numbers that a kernel has its bound by, in words."""
    bound = row["bound"]
    low = f"compute {shown_share(row['compute_share'])}, memory {shown_share(row['memory_share'])} of peak"
    if bound == "unknown":
        if row["unit_share"] is None:
            return "no throughput metrics were collected"
        if row["compute_share"] is None or row["memory_share"] is None:
            return f"{low}: a bound takes both, and one was not collected"
        if row["kind"] != "kernel":
            return f"{low}, with the time between the kernels of the {row['kind']}"
        return f"{low}; whether it waits or its grid is too small, launch statistics would tell"
    if bound == "small":
        if row["waves"] is None:
            waves = next((item["value"] for item in row["evidence"] or () if item["name"] == "rule_waves"), None)
            filled = "" if waves is None else f", {fmt.number(waves)} waves"
            return f"Nsight Compute's own rule says that its grid is too small to fill the GPU{filled}"
        blocks = row["grid_blocks"]
        # Some reports round the number of waves to two decimals.
        part = f"{fmt.share(row['waves'])} of a wave" if row["waves"] else "less than 1 % of a wave"
        if blocks is None:
            return f"its grid is {part}"
        fills = f"{fmt.count(blocks)} block{'s fill' if blocks != 1 else ' fills'} {part}"
        return fills if row["sm_count"] is None else f"{fills} on {fmt.count(row['sm_count'])} SMs"
    if bound == "latency":
        return f"{low}: it waits"
    unit = row["unit"]
    text = f"{_UNITS.get(unit, unit or _UNNAMED.get(bound, bound))} at {fmt.share(row['unit_share'])} of peak"
    if bound == "compute" and unit == "issue" and row["pipe_unit"]:
        pipe = row["pipe_unit"]
        return f"{text}, {_UNITS.get(pipe, pipe)} at {fmt.share(row['pipe_share'])}"
    return text


def _waits(row: Mapping[str, Any]) -> str:
    if not row["stall"]:
        return "no single wait stands out"
    stall_reason = STALL_REASONS.get(row["stall"])
    waits_for = f"for {stall_reason.waits_for} " if stall_reason else ""
    return f"warps wait {fmt.share(row['stall_share'])} of the time {waits_for}({row['stall']})"


def shown_share(part: float | None) -> str:
    """A share, or the sign for one that is not known."""
    return fmt.value(part, "share")


def _fault(row: Mapping[str, Any]) -> str | None:
    """The fault of a row with its evidence; None if it has none, or the bound states it already."""
    evidence: dict[str, float] = {item["name"]: item["value"] for item in row["fault_evidence"] or ()}
    match row["fault"]:
        case "uncoalesced":
            return f"uncoalesced: {fmt.share(evidence['global_wasted_share'])} of the sectors that it moves are unused"
        case "bank-conflicts":
            ways = f"{fmt.number(evidence['shared_conflict_ways'])}-way " if "shared_conflict_ways" in evidence else ""
            return f"{ways}bank conflicts: {fmt.share(evidence['shared_conflict_share'])} of shared-memory passes"
        case "divergence":
            return f"divergent: {fmt.number(evidence['threads_per_instruction'])} of 32 threads active per instruction"
        case "partial-warps":
            return f"blocks leave warps partly empty: {fmt.number(evidence['full_warp_threads'])} of 32 threads"
        case "occupancy":
            limiter, reached = limiter_title(row) or "the configuration", fmt.share(evidence["theoretical_share"])
            text = f"{limiter} limit{'s' if limiter in _SINGULAR else ''} occupancy to {reached}"
            allowed = row["next_share"]
            return text if allowed is None else f"{text}; {_next_step(row)} would allow {fmt.share(allowed)}"
        case "tail":
            return f"{fmt.number(evidence['waves'])} waves: the last is mostly empty but takes as long as a full one"
        case "spills":
            return f"registers spill: {fmt.count(evidence['spill_requests'])} requests to local memory"
    return None


_SINGULAR: Final = ("block size", "shared memory", "the configuration")


def _next_step(row: Mapping[str, Any]) -> str:
    return " with ".join(words.format(fmt.count(row[name])) for name, words in _STEPS.items() if row[name] is not None)


_STEPS: Final = {
    "next_registers_per_thread": "{} registers per thread",
    "next_shared_bytes_per_block": "{} B of shared memory per block",
    "next_barriers": "{} barriers per block",
    "next_threads_per_block": "blocks of {} threads",
}


FAULT_TITLES: Final = {
    "small-grid": "grid too small",
    "uncoalesced": "uncoalesced access",
    "bank-conflicts": "bank conflicts",
    "divergence": "divergence",
    "partial-warps": "partly empty warps",
    "occupancy": "low occupancy",
    "tail": "partial last wave",
    "spills": "register spills",
}

_REMEDIES: Final = {
    "small-grid": "Give it more blocks: split the work into smaller parts, batch more of it, or run it "
    "concurrently with other kernels.",
    "uncoalesced": "Let neighbouring threads access neighbouring addresses: structure of arrays, or a tile in "
    "shared memory.",
    "bank-conflicts": "Pad or swizzle the tile in shared memory, so that the threads of a warp access different banks.",
    "divergence": "Sort or group the work, so that the threads of a warp take the same branches and loop equally "
    "often.",
    "partial-warps": "Use blocks of a multiple of 32 threads.",
    "occupancy": "Relax the limiter as far as the next step says, or give each thread more independent work.",
    "tail": "Fit the grid to whole waves, use smaller blocks, or use a persistent kernel.",
    "spills": "Use fewer live values per thread, less unrolling, or a looser register limit (launch bounds).",
}


#: Libraries of kernels that users can change: none, or a compiler's.
_CHANGEABLE: Final = (None, "triton")

#: Remedies for kernels of libraries: users choose sizes, layouts and operators, not the code.
_LIBRARY_REMEDIES: Final = {
    "misaligned": "Align the operands of this library's kernel to 16 bytes: pad sizes and leading dimensions to a "
    "multiple of 8 (of 16-bit numbers). For attention, use scaled_dot_product_attention instead of separate products.",
    "small-grid": "Give this library's kernel more work: batch more of it into one call, or run it concurrently with "
    "other kernels.",
    "products": "The code is a library's: sizes and leading dimensions of whole 16 bytes, contiguous operands or "
    "another number format make it choose another kernel. For attention, use scaled_dot_product_attention.",
    "others": "The code is a library's: give it contiguous operands with rows of whole 16 bytes, fuse the operation "
    "with its neighbours (torch.compile; for attention, scaled_dot_product_attention), or replace the kernel.",
}


def remedy_for(fault: str, full_name: str) -> str:
    """What to do about a fault of a kernel; for a library's, what its users can."""
    kernel = classify(full_name)
    if kernel.library in _CHANGEABLE:
        return _REMEDIES[fault]
    if fault == "small-grid":
        return _LIBRARY_REMEDIES[fault]
    if kernel.category not in PRODUCTS:
        return _LIBRARY_REMEDIES["others"]
    misaligned = fault == "uncoalesced" and re.search(MARKS["misaligned"], full_name)
    return _LIBRARY_REMEDIES["misaligned" if misaligned else "products"]


def _worded(words: str, kind: Kind, one: str = "") -> Callable[[float], str]:
    """A function that writes a number with these words, or those of `one` if the number is 1."""
    return lambda number: (one if one and number == 1 else words).format(fmt.value(number, kind))


def _waves(number: float) -> str:
    """Waves of a grid; less than one as a share of a wave."""
    return _worded("{} waves", "number", "{} wave")(number) if number >= 1 else f"{fmt.share(number)} of a wave"


#: Functions that write a number of the evidence, by name.
_EVIDENCE: Final[dict[str, Callable[[float], str]]] = {
    "compute_share": _worded("compute {} of peak", "share"),
    "memory_share": _worded("memory {} of peak", "share"),
    "waves": _waves,
    "rule_waves": _worded("{} waves by Nsight Compute's own rule", "number"),
    "theoretical_share": _worded("theoretical occupancy {}", "share"),
    "achieved_share": _worded("achieved occupancy {}", "share"),
    "next_share": _worded("{} after the next step", "share"),
    "grid_blocks": _worded("{} blocks", "count", "{} block"),
    "sm_count": _worded("{} multiprocessors", "count", "{} multiprocessor"),
    "global_wasted_share": _worded("{} of the sectors unused", "share"),
    "global_load_sectors_per_request": _worded("{} sectors per load", "number", "{} sector per load"),
    "global_store_sectors_per_request": _worded("{} sectors per store", "number", "{} sector per store"),
    "global_load_bytes_per_sector": _worded("{} of 32 B used of a loaded sector", "number"),
    "global_store_bytes_per_sector": _worded("{} of 32 B used of a stored sector", "number"),
    "shared_conflict_share": _worded("{} of shared-memory passes are conflicts", "share"),
    "shared_conflict_ways": _worded("{} passes where one would do", "number", "{} pass, which is the least"),
    "conflict_cycles_share": _worded("conflicts keep L1 busy for {} of the time", "share"),
    "threads_per_instruction": _worded("{} of 32 threads active", "number"),
    "full_warp_threads": _worded("{} of 32 threads in a warp", "number"),
    "uniform_branch_share": _worded("{} of branches uniform", "share"),
    "divergent_branches": _worded("{} divergent branches", "count", "{} divergent branch"),
    "tail_share": _worded("the last wave takes {} of the time", "share"),
    "spill_requests": _worded("{} spill requests", "count", "{} spill request"),
    "local_requests": _worded("{} local-memory requests", "count", "{} local-memory request"),
}


def evidence_text(evidence: Sequence[Mapping[str, Any]] | None) -> str:
    """The evidence of a bound or fault, in one line."""
    return ", ".join(
        _EVIDENCE.get(item["name"], _worded(f"{item['name']} {{}}", "number"))(item["value"]) for item in evidence or ()
    )
