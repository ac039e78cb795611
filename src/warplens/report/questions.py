"""What can be asked of one profile with one table as the answer: registered here once, a command each.

A question is a function of timeline, window and grouping that returns `Found`. `warplens.cli` makes a command with the
options and formats of all others out of it. To add one, write it here and name it in `warplens.cli.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import polars as pl

from warplens.analysis.allocator import (
    ALIVE,
    ALLOCATIONS,
    ALLOCATIONS_BY_STEP,
    alive_at_peak,
    allocator_steps,
    allocator_timeline,
    allocator_use,
)
from warplens.analysis.api import API_CALLS, api_statistics
from warplens.analysis.code import CODE, code_places
from warplens.analysis.copies import COPIES, copy_statistics, memory_timeline, memory_use
from warplens.analysis.kernels import GROUPINGS, KERNELS, category_coverage, kernel_statistics
from warplens.analysis.launches import LAUNCHES, launch_statistics, launch_summary
from warplens.analysis.operators import GROUPINGS as OPERATOR_GROUPINGS
from warplens.analysis.operators import OPERATORS, framework_overhead, operator_coverage, operators_by
from warplens.analysis.phases import PHASE_TIMES, PHASES_BY_STEP, STEPS, phase_statistics, phase_steps, step_statistics
from warplens.analysis.ranges import RANGES, range_coverage, range_statistics
from warplens.analysis.timebudget import BUDGET, IDLE_CAUSES, time_budgets
from warplens.analysis.work import GROUPINGS as WORK_GROUPINGS
from warplens.analysis.work import UNMODELLED, WORK, operator_work, work_statistics
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Table, pick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.allocator import AllocatorUse
    from warplens.analysis.copies import CopyGrouping
    from warplens.analysis.launches import LaunchSummary
    from warplens.analysis.operators import FrameworkOverhead, OperatorCoverage
    from warplens.analysis.timebudget import TimeBudget
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.analysis.work import ModelledWork


@dataclass(frozen=True)
class Found:
    """The answer to a question.

    Attributes:
        rows: every number, exact; `data.rows` of the JSON, and the CSV.
        tables: the same for people, one or several.
        facts: sentences that belong above the table, coverage among them.
        data: what else the JSON holds beside `window` and `rows`.
        largest_by: of a tree, the column by which rows are chosen where not all are shown, and what rows are called:
            no row has more of it than its parent, which stands before it.
    """

    rows: pl.DataFrame
    tables: tuple[Table, ...]
    facts: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    largest_by: tuple[str, str] | None = None


Ask: TypeAlias = Callable[..., Found]


@dataclass(frozen=True)
class Question:
    """A question with its answers' shape.

    Attributes:
        ask: `(timeline, window, by)`, without `by` where there are no groupings; its docstring is the command's help.
        by: what may make a row, the first of them unless `default` says otherwise.
        default: the grouping that nobody asked for.
        several: whether groupings may be joined by commas.
        whole: whether all rows are shown unless fewer are asked for.
        flags: further options without a value: parameter and help.
    """

    ask: Ask
    by: tuple[str, ...] = ()
    default: str = ""
    several: bool = False
    whole: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)


#: Every question by the name of its command.
QUESTIONS: Final[dict[str, Question]] = {}


def _question(*by: str, default: str | None = None, **more: Any) -> Callable[[Ask], Ask]:
    def registered(ask: Ask) -> Ask:
        first = default or (by[0] if by else "")
        QUESTIONS[ask.__name__] = Question(ask, by, first, **more)
        return ask

    return registered


# --- Time ------------------------------------------------------------------------------------------------------------

_PART: Final = Column("title", title="Part")
_MEANING: Final = Column("meaning")
_BUDGET: Final = pick(BUDGET, "group", _PART, "time_ns share", _MEANING)


@_question(whole=True)
def budget(timeline: Timeline, window: Window) -> Found:
    """Where the time went, in parts that add up to it exactly.

    At every instant the device does one thing: it computes, runs a CUDA graph, communicates, copies, or is idle for one
    cause. With --range, the time is the summed spans of that range on the GPU.
    """
    budgets = time_budgets(timeline, window)
    rows = pl.concat([
        pl.DataFrame(schema={"device": pl.Int32(), **BUDGET.schema}),
        *(found.parts.select(pl.lit(found.device, dtype=pl.Int32).alias("device"), pl.all()) for found in budgets),
    ])  # fmt: skip
    tables = tuple(map(_budget_table, budgets))
    if not tables:
        none = rows.with_columns(pl.lit("").alias("title"), pl.lit("").alias("meaning"))
        tables = (Table("budget", "Time budget", _BUDGET, none, empty="No GPU did any work in the window."),)
    return Found(rows, tables, tuple(map(_budget_fact, budgets)), {"devices": [budget_data(one) for one in budgets]})


def budget_data(found: TimeBudget) -> dict[str, Any]:
    """The totals of a budget for programs."""
    return {
        "device": found.device,
        "duration_ns": found.duration_ns,
        "busy_ns": found.busy_ns,
        "idle_ns": found.idle_ns,
        "hidden_ns": found.group_ns("graph"),
        "attributed_share": found.attributed_share,
    }


def titled_parts(found: TimeBudget) -> pl.DataFrame:
    """The parts of a budget with `title` and `meaning`, what people call them and what they say."""
    parts = found.parts.with_columns(pl.col("group").cast(pl.String))
    keys = parts.select("group", "part").rows()
    return parts.with_columns(
        pl.Series("title", [fmt.part_title(*key) for key in keys], dtype=pl.String),
        pl.Series("meaning", [IDLE_CAUSES.get(part, "") if group == "idle" else "" for group, part in keys], pl.String),
    )


def _budget_table(found: TimeBudget) -> Table:
    parts = titled_parts(found)
    total = parts.select(
        pl.lit("sum").alias("group"), pl.lit("").alias("part"), pl.col("time_ns", "share").sum(),
        pl.lit("").alias("title"), pl.lit("").alias("meaning"),
    )  # fmt: skip
    caption = f"GPU {found.device}: {fmt.duration(found.duration_ns)}"
    return Table(f"budget-{found.device}", caption, _BUDGET, pl.concat([parts, total]))


def _budget_fact(found: TimeBudget) -> str:
    fact = f"GPU {found.device}: busy {fmt.duration(found.busy_ns)} of {fmt.duration(found.duration_ns)}"
    if hidden := found.group_ns("graph"):
        fact += f", {fmt.duration(hidden)} of it hidden inside CUDA graphs"
    if found.attributed_share is not None:
        fact += f", the cause is known for {fmt.share(found.attributed_share)} of the idle time"
    return fact


_STEPS: Final = pick(STEPS, "step wall_ns busy_ns busy_share idle_ns kernels gap_ns", busy_share="Share")


@_question()
def steps(timeline: Timeline, window: Window) -> Found:
    """Repetitions of the workload: wall, busy and idle time of each.

    Where several GPUs worked, busy and idle are those of the busiest one.
    """
    rows = step_statistics(timeline, window)
    columns = (*_STEPS, STEPS.column("graph_launches")) if rows["graph_launches"].sum() else _STEPS
    return Found(rows, (Table("steps", "Steps", columns, rows, empty="No steps were found in the window."),))


_PHASES: Final = pick(PHASE_TIMES, Column("title", title="Phase"), "gpu_ns share inferred_ns busy_ns matmul_ns kernels")
_PHASES_OF_STEPS: Final = pick(PHASES_BY_STEP, "step wall_ns forward_ns backward_ns optimizer_ns none_ns")


@_question("phase", "step")
def phases(timeline: Timeline, window: Window, by: str) -> Found:
    """GPU time of forward, backward and optimizer.

    Work belongs to the outermost range around its launch that is named after a phase.
    """
    caption = "GPU time by phase"
    if by == "step":
        rows = phase_steps(timeline, window)
        shown = Table("phases", caption, _PHASES_OF_STEPS, rows, empty="No steps were found in the window.")
    else:
        rows = phase_statistics(timeline, window)
        titled = rows.with_columns(pl.Series("title", map(fmt.phase_title, rows["phase"]), dtype=pl.String))
        shown = Table("phases", caption, _PHASES, titled, empty="No GPU work in the window.")
    return Found(rows, (shown,))


# --- Work of the GPU -------------------------------------------------------------------------------------------------

_KERNEL_LABELS: Final = {
    "full_name": pick(KERNELS, "full_name category"),
    "name": pick(KERNELS, column("name").but(title="Kernel"), "category"),
    "tensor_cores": pick(KERNELS, "tensor_cores"),
}
_DURATIONS: Final = "calls total_ns share median_ns max_ns"


@_question(*GROUPINGS, default="full_name")
def kernels(timeline: Timeline, window: Window, by: str) -> Found:
    """GPU kernels: how often, how long, share of the GPU time.

    A kernel belongs to the window in which it begins. Its share is of the summed time of all kernels there. By name,
    all instances of a template are one row; by full_name, each is its own.
    """
    rows = kernel_statistics(timeline, window, by)
    known = category_coverage(timeline, window)
    facts = []
    if known.category_share is not None and known.precision_share is not None:
        facts.append(
            f"coverage: names tell the category of {fmt.share(known.category_share)} of "
            f"{fmt.duration(known.total_ns)} kernel time, and the precision of {fmt.share(known.precision_share)}"
        )
    labels = _KERNEL_LABELS.get(by, (Column(by),))
    columns = (*labels, *pick(KERNELS, _DURATIONS))
    shown = Table("kernels", "GPU kernels", columns, rows, empty="No kernels in the window.")
    shares = {"total_ns": known.total_ns, "category_share": known.category_share}
    data = {"coverage": {**shares, "precision_share": known.precision_share}}
    return Found(rows, (shown,), tuple(facts), data)


_RANGES: Final = pick(
    RANGES, "name instances gpu_ns share gpu_exclusive_ns inferred_ns span_ns host_ns", name="Range", span_ns="Span"
)


@_question(
    "tree", "name", "full_name", flags={"operators": "List the framework's operators, too, which PyTorch traces hold."}
)
def ranges(timeline: Timeline, window: Window, by: str, *, operators: bool) -> Found:
    """Annotated ranges (NVTX, record_function): GPU time of the work launched inside.

    Own time leaves out that of ranges inside it. Inferred is work that another thread launched (autograd's backward
    thread) while the range was held open. The span is from the first begin to the last end of the work.
    """
    rows = range_statistics(timeline, window, by, operators=operators)
    known = range_coverage(timeline, window, operators=operators)
    facts = []
    if known.attributed_share is not None and known.inferred_share is not None:
        facts.append(
            f"coverage: {fmt.share(known.attributed_share)} of {fmt.duration(known.total_ns)} GPU time "
            f"belongs to ranges, {fmt.share(known.inferred_share)} by inference"
        )
    empty = "No annotated ranges in the window."
    if timeline.has_operators and not operators:
        empty += " `warplens operators` shows the operators that were recorded."
    depth = "depth" if by == "tree" else None
    shown = Table("ranges", "GPU time of annotated ranges", _RANGES, rows, depth=depth, empty=empty)
    coverage = {
        "total_ns": known.total_ns,
        "same_thread_ns": known.same_thread_ns,
        "inferred_ns": known.inferred_ns,
        "unattributed_ns": known.unattributed_ns,
        "attributed_share": known.attributed_share,
    }
    return Found(rows, (shown,), tuple(facts), {"coverage": coverage}, ("gpu_ns", "ranges") if depth else None)


_COPIES: Final = pick(
    COPIES,
    "kind direction source_memory destination_memory calls total_ns share total_bytes bandwidth_bytes_per_s",
    calls="Count",
    total_bytes="Size",
)


@_question("memory", "direction")
def copies(timeline: Timeline, window: Window, by: str) -> Found:
    """Memory copies and fills: time, size and bandwidth.

    Bandwidth is bytes over the time in which at least one of the row's operations ran.
    """
    rows = copy_statistics(timeline, window, cast("CopyGrouping", by))
    columns = tuple(column for column in _COPIES if by != "direction" or not column.name.endswith("_memory"))
    shown = Table("copies", "Memory copies and fills", columns, rows, empty="No copies or fills in the window.")
    return Found(rows, (shown,))


# --- The host --------------------------------------------------------------------------------------------------------


@_question(*API_CALLS.keys, default="name,kind", several=True)
def api(timeline: Timeline, window: Window, by: str) -> Found:
    """CUDA API calls on the host: how often, how long.

    Times are the host's; a call belongs to the window in which it begins.
    """
    keys = by.split(",")
    rows = api_statistics(timeline, window, keys)
    columns = pick(API_CALLS, *keys, _DURATIONS, name="Call")
    return Found(rows, (Table("api", "CUDA API calls", columns, rows, empty="No API calls in the window."),))


_LAUNCHES: Final = {
    "api_median_ns": "Call",
    "queue_median_ns": "Queued",
    "kernel_median_ns": "Running",
    "kernel_total_ns": "GPU time",
}


@_question(*LAUNCHES.keys, default="full_name,api", several=True)
def launches(timeline: Timeline, window: Window, by: str) -> Found:
    """Kernel launches: time in the call, queued, and on the GPU.

    Queued is the time from the end of the launching call to the begin of the kernel; a kernel that begins before its
    call returns has none.
    """
    keys = by.split(",")
    rows = launch_statistics(timeline, window, keys)
    summary = launch_summary(timeline, window)
    caption = "Kernel launches: median time in the call, queued and running; summed GPU time"
    labels = (LAUNCHES.column(key).but(full=None) for key in keys)
    columns = pick(LAUNCHES, *labels, "launches", *_LAUNCHES, **_LAUNCHES)
    shown = Table("launches", caption, columns, rows, empty="No kernel launches in the window.")
    return Found(rows, (shown,), tuple(_launch_facts(summary)), {"summary": summary})


def _launch_facts(summary: LaunchSummary) -> Iterator[str]:
    if summary.coverage_share is not None:
        yield (
            f"coverage: the launching call is known for {fmt.share(summary.coverage_share)} "
            f"of {fmt.count(summary.launches)} kernel launches"
        )
    if summary.per_step is not None:
        least, most = fmt.count(summary.per_step.min), fmt.count(summary.per_step.max)
        yield f"launches per step: {least if summary.per_step.is_constant else f'{least} to {most}'}"
    if summary.interval_median_ns is not None:
        yield f"one launch every {fmt.duration(summary.interval_median_ns)} (median) on the thread that launches most"
    if summary.graph_launches:
        yield (
            f"CUDA graphs: {fmt.count(summary.graph_launches)} launches "
            f"({fmt.count(summary.graph_kernels)} kernels replayed and recorded)"
        )


# --- Operators of a framework ----------------------------------------------------------------------------------------

_GPU: Final = "calls total_ns share gpu_ns backward_ns host_ns"
_GPU_TITLES: Final = {"total_ns": "GPU in all", "gpu_ns": "Launched"}
_OPERATORS: Final = {
    "name": pick(OPERATORS, "name", _GPU, "api_ns host_self_ns", name="Operator", **_GPU_TITLES),
    "shapes": pick(OPERATORS, "name input_shapes", _GPU, name="Operator", **_GPU_TITLES),
    "tree": pick(OPERATORS, "name", _GPU, "api_ns host_self_ns", name="Operator", **_GPU_TITLES),
    "module": pick(OPERATORS, "name level", _GPU, name="Module", **_GPU_TITLES),
    "python": pick(
        OPERATORS, "name calls gpu_self_ns backward_self_ns total_ns share host_ns", name="Function", **_GPU_TITLES
    ),
}


@_question(*OPERATOR_GROUPINGS, default="name")
def operators(timeline: Timeline, window: Window, by: str) -> Found:
    """PyTorch operators and modules: host time, GPU time, backward pass.

    Launched is the GPU time of what was launched inside, Backward that of the backward operators which compute its
    gradient; in all, each piece of work counts once. Framework is host time in neither CUDA calls nor operators inside.
    """
    rows = operators_by(timeline, window, by)
    known = operator_coverage(timeline, window)
    overhead = framework_overhead(timeline, window)
    absent = what_to_record(timeline, by)
    caption = {"module": "GPU time of modules", "python": "GPU time of Python functions"}.get(by, "Operators")
    depth = "depth" if by in ("tree", "module") else None
    empty = absent or "No operators in the window."
    shown = Table("operators", caption, _OPERATORS[by], rows, depth=depth, empty=empty)
    facts = tuple(_operator_facts(known, overhead, places=by == "module"))
    if facts and absent is not None:
        facts += (absent,)
    shares = {"operator_share": known.operator_share, "linked_share": known.linked_share}
    split = None if overhead is None else {**asdict(overhead), "framework_ns": overhead.framework_ns}
    data = {"coverage": {**asdict(known), **shares}, "overhead": split}
    return Found(rows, (shown,), facts, data, ("total_ns", "rows") if depth else None)


def _operator_facts(known: OperatorCoverage, overhead: FrameworkOverhead | None, *, places: bool) -> Iterator[str]:
    if overhead is not None:
        for sentence in coverage_sentences(known, places=places):
            yield f"coverage: {sentence}"
        yield f"host: {overhead_sentence(overhead)}"


_WORK_LABELS: Final = {
    "name": pick(WORK, "name family", name="Operator"),
    "shapes": pick(WORK, "name input_shapes", name="Operator", input_shapes="Inputs"),
}
_WORK: Final = pick(
    WORK,
    "operators gpu_ns share flops bytes flops_per_s bytes_per_s intensity side roof_share",
    flops_per_s="FLOP/s",
)
_UNMODELLED: Final = pick(
    UNMODELLED, "name reason operators gpu_ns share", name="Operator", reason="Why it has no model"
)
_NO_MODEL: Final = (
    "No operator of the window has a model. Operators and their shapes are recorded by "
    "torch.profiler.profile(record_shapes=True)."
)


@_question(*WORK_GROUPINGS, default="name")
def flops(timeline: Timeline, window: Window, by: str) -> Found:
    """FLOPs and bytes that operators need, against their time.

    Work is modelled from the recorded shapes (a multiply-add is two FLOPs, every tensor moves once), time is measured.
    What a causal mask leaves out is not counted; flops_full has it. The side is that of the roofline's ridge.
    """
    modelled = operator_work(timeline, window)
    rows = work_statistics(modelled, by)
    labels = _WORK_LABELS.get(by, (Column(by),))
    tables = (
        Table("flops", "Operators: modelled work, measured time", (*labels, *_WORK), rows, empty=_NO_MODEL),
        Table("unmodelled", "GPU time without a model", _UNMODELLED, modelled.unmodelled, empty="None."),
    )
    coverage = {
        "total_ns": modelled.total_ns,
        "modelled_ns": modelled.modelled_ns,
        "modelled_share": modelled.coverage_share,
    }
    data = {
        "coverage": coverage,
        "flops": modelled.flops,
        "matmul_flops": modelled.matmul_flops,
        "peak_sources": list(modelled.peak_sources),
        "unmodelled": {"rows": modelled.unmodelled},
    }
    return Found(rows, tables, tuple(_work_facts(modelled, window)), data)


def _work_facts(modelled: ModelledWork, window: Window) -> Iterator[str]:
    if modelled.coverage_share is None:
        return
    yield (
        f"coverage: {fmt.share(modelled.coverage_share)} of {fmt.duration(modelled.total_ns)} GPU time has an operator "
        "whose work is modelled"
    )
    if modelled.modelled_ns:
        count = len(window.steps)
        each = f", {fmt.flop_count(modelled.flops / count)} in each of {count} steps" if count else ""
        yield (
            f"modelled work, measured time: {fmt.flop_count(modelled.flops)}{each}; "
            f"{fmt.flop_rate(modelled.flops * 1e9 / modelled.modelled_ns)} over the GPU time of these operators, "
            f"{fmt.flop_rate(modelled.flops * 1e9 / window.duration_ns)} over the window"
        )
    for source in modelled.peak_sources:
        yield f"roofs: {source}; dense matrices, boost clock"


# --- What is said about operators, and what a profile would have to hold for more ------------------------------------

_NO_OPERATORS: Final = (
    "No operators were recorded. The PyTorch profiler records them: "
    "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True), "
    "then export_chrome_trace('trace.json.gz')"
)
_NO_MODULES: Final = (
    "Modules were not recorded (torch.profiler.profile(with_stack=True, with_modules=True) does): "
    "rows are annotations, then outermost operators"
)
_NO_PYTHON: Final = "Python functions were not recorded: torch.profiler.profile(with_stack=True) does"
_NO_SHAPES: Final = "Input shapes were not recorded: torch.profiler.profile(record_shapes=True) does"

#: Levels of `OperatorCoverage` as people call them.
_LEVELS: Final = {
    "module": "modules",
    "annotation": "annotations",
    "operator": "outermost operators",
    "none": "no known place",
}


def coverage_sentences(coverage: OperatorCoverage, *, places: bool = False) -> Iterator[str]:
    """How much of the GPU time operators, forward operators and (with `places`) modules are known for."""
    if coverage.operator_share is None:
        return
    yield (
        f"{fmt.share(coverage.operator_share)} of {fmt.duration(coverage.total_ns)} GPU time "
        "was launched inside operators"
    )
    if coverage.linked_share is not None:
        text = (
            f"{fmt.share(coverage.linked_share)} of {fmt.duration(coverage.backward_ns)} backward GPU time is linked "
            "to its forward operator"
        )
        if coverage.accumulation_ns:
            text += (
                f"; {fmt.duration(coverage.accumulation_ns)} more adds gradients up or was launched by hooks on that, "
                "which has no forward operator"
            )
        yield text
    if places:
        parts = [
            f"{fmt.share(spent / coverage.total_ns)} {_LEVELS[level]}"
            for level, spent in coverage.level_ns.items()
            if spent
        ]
        yield f"GPU time by what names its place: {', '.join(parts)}"


def overhead_sentence(overhead: FrameworkOverhead) -> str:
    """How the host's time in operators splits, beside what the GPU did meanwhile."""
    threads = "one thread" if overhead.threads == 1 else f"{overhead.threads} threads"
    return (
        f"operators took {fmt.duration(overhead.host_ns)} of {threads}, {fmt.duration(overhead.api_ns)} in CUDA API "
        f"calls and {fmt.duration(overhead.framework_ns)} in the framework; "
        f"the GPU was busy for {fmt.duration(overhead.busy_ns)} of {fmt.duration(overhead.window_ns)}"
    )


def what_to_record(timeline: Timeline, by: str) -> str | None:
    """What to record for a grouping of operators that the profile cannot answer; None where it can."""
    if not timeline.has_operators:
        return _NO_OPERATORS
    if by == "module" and not timeline.python.is_module.any():
        return _NO_MODULES
    if by == "python" and not timeline.trace.python_functions.height:
        return _NO_PYTHON
    if by == "shapes" and timeline.trace.operators["input_shapes"].null_count() == timeline.trace.operators.height:
        return _NO_SHAPES
    return None


# --- Memory ----------------------------------------------------------------------------------------------------------

#: What nobody knows of memory is null: what the allocator of a framework holds, in profiles of Nsight Systems.
MEMORY_USE: Final = table(
    "memory",
    "One process, device and kind of memory. `warplens memory`.",
    "memory process device",
    Column("begin_bytes", pl.Int64, "in use at the window's begin"),
    Column("end_bytes", pl.Int64, "in use at its end"),
    Column("peak_bytes", pl.Int64, "the most that was in use at once in the window"),
    Column("peak_ns", pl.Int64, "when that was first reached", title="At"),
    Column("reserved_bytes", pl.Int64, "what the allocator had from CUDA at the peak", title="Held"),
    Column("idle_bytes", pl.Int64, "held at the peak, but not in use: cached or fragmented", title="Unused"),
    Column("allocations", pl.Int64, "how many"),
    Column("releases", pl.Int64, "how many"),
    Column("allocated_bytes", pl.Int64, "sum of all allocations in the window", title="Churn"),
    Column("unseen_bytes", pl.Int64, "part of the peak that stood there before the recording", title="From before"),
    Column("mismatches", pl.Int64, "events that state another total than the sum of the events before them"),
)

OWNER: Final = Column(
    "owner", help="operator that was open when the memory was allocated", title="Alive at the peak", kind="name"
)
_MEMORY: Final = {
    "memory": pick(
        MEMORY_USE,
        "memory process device peak_bytes peak_ns reserved_bytes idle_bytes begin_bytes end_bytes allocations"
        " allocated_bytes unseen_bytes",
    ),
    "operator": pick(ALIVE, OWNER, "forward phase process device blocks bytes share", share="Of the peak"),
    "step": pick(
        ALLOCATIONS_BY_STEP,
        "step process device peak_bytes allocations releases allocated_bytes released_bytes",
        allocated_bytes="Allocated",
    ),
    "event": pick(
        ALLOCATIONS, "time_ns process device delta_bytes allocated_bytes reserved_bytes", allocated_bytes="In use"
    ),
}
_MEMORY_CAPTIONS: Final = {
    "memory": "Memory in use",
    "operator": "Whose memory was in use at the peak",
    "step": "Allocations of each step",
    "event": "Allocations and releases",
}
_NO_ALLOCATIONS: Final = (
    "this profile holds no allocations. Record them with torch.profiler.profile(profile_memory=True), or with "
    "nsys profile --cuda-memory-usage=true"
)


@_question(*_MEMORY)
def memory(timeline: Timeline, window: Window, by: str) -> Found:
    """Memory over time, its peak, and what was alive then.

    Held is what the allocator had from CUDA at the peak, unused the part of it that was cached or fragmented. Churn
    sums all allocations. From before is what was allocated before the recording began. Operators, steps and what is
    held are known to PyTorch's profiler only; Nsight Systems records cudaMalloc and the like.
    """
    found = {by: _memory_rows(timeline, window, by)}
    recorded = {"allocations", "memory"} & timeline.trace.capture.recorded
    data: dict[str, Any] = {"recorded": sorted(recorded)}
    if by == "memory" and (alive := alive_at_peak(timeline, window)) is not None:
        found["operator"] = with_owners(alive)
        data["alive_at_peak"] = {"rows": found["operator"]}
    tables = tuple(
        Table(
            "memory" if key == by else f"memory-{key}",
            _MEMORY_CAPTIONS[key],
            _MEMORY[key],
            rows,
            empty="Nothing recorded.",
        )
        for key, rows in found.items()
    )
    facts = tuple(_memory_facts(allocator_use(timeline, window) or ())) if recorded else (_NO_ALLOCATIONS,)
    return Found(found[by], tables, facts, data)


def with_owners(alive: pl.DataFrame) -> pl.DataFrame:
    """What was alive at the peak, with `owner`: the operator that allocated it, or what is known instead."""
    outside = pl.col("operator").fill_null("outside of every operator")
    return alive.with_columns(
        pl.when("from_before").then(pl.lit("allocated before the recording")).otherwise(outside).alias("owner")
    )


def _memory_rows(timeline: Timeline, window: Window, by: str) -> pl.DataFrame:
    if by == "operator":
        alive = alive_at_peak(timeline, window)
        return with_owners(ALIVE.empty() if alive is None else alive)
    if by == "step":
        found = allocator_steps(timeline, window)
        return ALLOCATIONS_BY_STEP.empty() if found is None else found
    if by == "event":  # from whichever of the two tables the source has
        events = allocator_timeline(timeline, window)
        if events is None and (raw := memory_timeline(timeline, window)) is not None:
            events = raw.with_columns(pl.lit(None, dtype=pl.Int64).alias("reserved_bytes"))
        return ALLOCATIONS.empty() if events is None else events.select(ALLOCATIONS.names)
    uses = [
        {"memory": "PyTorch's allocator", "idle_bytes": use.idle_bytes, **_known(use)}
        for use in allocator_use(timeline, window) or ()
    ]
    uses += [_known(use) for use in memory_use(timeline, window) or ()]
    return pl.DataFrame(uses, schema=MEMORY_USE.schema)


def _known(use: object) -> dict[str, Any]:
    return {key: value for key, value in vars(use).items() if key in MEMORY_USE.names}


def _memory_facts(uses: tuple[AllocatorUse, ...]) -> Iterator[str]:
    for use in uses:
        if use.device is None or use.known_share is None:
            continue
        peak = fmt.data_size(use.peak_bytes)
        yield (
            f"coverage: {fmt.share(use.known_share)} of the {peak} at the peak of GPU {use.device} was allocated in "
            "the recording; the rest stood there before"
        )
        if use.mismatches:
            yield (
                f"{fmt.count(use.mismatches)} events of GPU {use.device} state another total than their sum: events "
                "are missing in this profile"
            )


@_question()
def code(timeline: Timeline, window: Window) -> Found:
    """Where in the program waits, copies, allocations and launches come from.

    The line is that of the innermost function outside of PyTorch and Python's library, known where stacks were recorded
    (with_stack=True). Operator and range are those around the call itself.
    """
    rows = code_places(timeline, window)
    caption = "CUDA calls by place in the program"
    return Found(rows, (Table("code", caption, CODE.columns, rows, empty="No CUDA calls."),))
