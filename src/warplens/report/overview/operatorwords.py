"""What is said about operators in sentences: coverage, overhead, and what a profile would have to hold for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.operators import FrameworkOverhead, OperatorCoverage
    from warplens.analysis.timeline import Timeline

__all__ = ["coverage_sentences", "overhead_sentence", "what_to_record"]

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
