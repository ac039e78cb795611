"""Questions about a framework's operators: their time, and their work by shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from warplens.analysis.operators.coverage import (
    FrameworkOverhead,
    OperatorCoverage,
    framework_overhead,
    operator_coverage,
)
from warplens.analysis.operators.statistics import GROUPINGS as OPERATOR_GROUPINGS
from warplens.analysis.operators.statistics import OPERATORS, operators_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.analysis.work.catalogue import GROUPINGS as WORK_GROUPINGS
from warplens.analysis.work.catalogue import UNMODELLED, WORK, ModelledWork, operator_work, work_statistics
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Table, pick
from warplens.report.jsonout import named
from warplens.report.questions import QuestionResult, question

_GPU: Final = "calls total_ns share gpu_ns backward_ns host_ns"
#: Titles of GPU times: of an operator with its backward pass, and of what it launched itself.
OPERATOR_TITLES: Final = {"total_ns": "GPU in all", "gpu_ns": "Launched"}
_OPERATORS: Final = {
    "name": pick(OPERATORS, "name", _GPU, "api_ns host_self_ns", name="Operator", **OPERATOR_TITLES),
    "shapes": pick(OPERATORS, "name input_shapes", _GPU, name="Operator", **OPERATOR_TITLES),
    "module": pick(OPERATORS, "name level", _GPU, name="Module", **OPERATOR_TITLES),
    "python": pick(
        OPERATORS, "name calls gpu_self_ns backward_self_ns total_ns share host_ns", name="Function", **OPERATOR_TITLES
    ),
}


@question(*OPERATOR_GROUPINGS, default="name")
def operators(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """PyTorch operators and modules: host time, GPU time, backward pass.

    Launched is the GPU time of work launched inside, Backward that of the backward operators that compute its gradient;
    in the total, each piece of work counts once. Framework is host time outside CUDA calls and inner operators.
    """
    rows = operators_by(timeline, window, by)
    coverage = operator_coverage(timeline, window)
    overhead = framework_overhead(timeline, window)
    not_recorded = what_to_record(timeline, by)
    caption = {"module": "GPU time of modules", "python": "GPU time of Python functions"}.get(by, "Operators")
    depth = "depth" if by in ("tree", "module") else None
    empty = not_recorded or "No operators in the window."
    shown = Table("operators", caption, _OPERATORS["name" if by == "tree" else by], rows, depth=depth, empty=empty)
    facts = tuple(_operator_facts(coverage, overhead, places=by == "module"))
    if facts and not_recorded is not None:
        facts += (not_recorded,)
    shares = {"operator_share": coverage.operator_share, "linked_share": coverage.linked_share}
    host_times = None if overhead is None else {**asdict(overhead), "framework_ns": overhead.framework_ns}
    data = {"coverage": {**asdict(coverage), **shares}, "overhead": host_times}
    return QuestionResult(rows, (shown,), facts, data, ("total_ns", "rows") if depth else None)


def _operator_facts(coverage: OperatorCoverage, overhead: FrameworkOverhead | None, *, places: bool) -> Iterator[str]:
    if overhead is not None:
        for sentence in coverage_sentences(coverage, places=places):
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


@question(*WORK_GROUPINGS, default="name")
def flops(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """FLOPs and bytes of operators (modelled) against their measured time.

    Work is modelled from the recorded shapes (a multiply-add is two FLOPs, every tensor moves once), time is measured.
    Work that a causal mask leaves out is not counted; flops_full includes it. The side is relative to the ridge of the
    roofline.
    """
    modelled = operator_work(timeline, window)
    rows = work_statistics(modelled, by)
    labels = _WORK_LABELS.get(by, (Column(by),))
    tables = (
        Table("flops", "Operators: modelled work, measured time", (*labels, *_WORK), rows, empty=_NO_MODEL),
        Table("unmodelled", "GPU time without a model", _UNMODELLED, modelled.unmodelled, empty="None."),
    )
    coverage = {"total_ns": modelled.total_ns, "modelled_ns": modelled.modelled_ns}
    data = {"coverage": {**coverage, "modelled_share": modelled.coverage_share}, **work_data(modelled)}
    data["unmodelled"] = {"rows": modelled.unmodelled}
    return QuestionResult(rows, tables, tuple(_work_facts(modelled, window)), data)


def work_data(modelled: ModelledWork) -> dict[str, Any]:
    """The totals of modelled work for JSON."""
    return named(modelled, "flops matmul_flops peak_sources")


def _work_facts(modelled: ModelledWork, window: Window) -> Iterator[str]:
    """How much GPU time has modelled work, how much work that is, and the source of the roofs."""
    if modelled.coverage_share is None:
        return
    yield (
        f"coverage: {fmt.share(modelled.coverage_share)} of {fmt.duration(modelled.total_ns)} GPU time has an operator "
        "whose work is modelled"
    )
    if modelled.bytes_only_ns:
        further = fmt.share(modelled.bytes_only_ns / modelled.total_ns)
        yield f"coverage: of a further {further} bytes are known and FLOPs not (generated kernels)"
    if modelled.modelled_ns:
        steps = window.step_count
        per_step = (
            f", {fmt.flop_count(modelled.flops / steps)} in each of {fmt.number(steps)} steps" if steps > 1 else ""
        )
        yield (
            f"modelled work, measured time: {fmt.flop_count(modelled.flops)}{per_step}; "
            f"{fmt.flop_rate(modelled.flops * 1e9 / modelled.modelled_ns)} over the GPU time of these operators, "
            f"{fmt.flop_rate(modelled.flops * 1e9 / window.duration_ns)} over the window"
        )
    for source in modelled.peak_sources:
        yield f"roofs: {source}; dense matrices, boost clock"


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

#: Display names of the levels of `OperatorCoverage`.
_LEVELS: Final = {
    "module": "modules",
    "annotation": "annotations",
    "operator": "outermost operators",
    "none": "no known place",
}


def coverage_sentences(coverage: OperatorCoverage, *, places: bool = False) -> Iterator[str]:
    """How much of the GPU time has a known operator, forward operator and, with `places`, module."""
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
            f"{fmt.share(time_ns / coverage.total_ns)} {_LEVELS[level]}"
            for level, time_ns in coverage.level_ns.items()
            if time_ns
        ]
        yield f"GPU time by what names its place: {', '.join(parts)}"


def overhead_sentence(overhead: FrameworkOverhead) -> str:
    """How the host's time in operators splits into CUDA calls and framework, and the GPU's busy time."""
    threads = "one thread" if overhead.threads == 1 else f"{overhead.threads} threads"
    return (
        f"operators took {fmt.duration(overhead.host_ns)} of {threads}, {fmt.duration(overhead.api_ns)} in CUDA API "
        f"calls and {fmt.duration(overhead.framework_ns)} in the framework; "
        f"the GPU was busy for {fmt.duration(overhead.busy_ns)} of {fmt.duration(overhead.window_ns)}"
    )


def what_to_record(timeline: Timeline, by: str) -> str | None:
    """What to record for a grouping of operators that the profile does not support; None if it does."""
    if not timeline.has_operators:
        return _NO_OPERATORS
    if by == "module" and not timeline.python.is_module.any():
        return _NO_MODULES
    if by == "python" and not timeline.trace.python_functions.height:
        return _NO_PYTHON
    if by == "shapes" and timeline.trace.operators["input_shapes"].null_count() == timeline.trace.operators.height:
        return _NO_SHAPES
    return None
