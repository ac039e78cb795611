"""The few numbers that stand for a profile: tiles at the top of its report, and a row where profiles are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.spread import number
from warplens.profile import NoteLevel
from warplens.report import format as fmt
from warplens.report.document import KeyFigure, KeyFigures, Table, TableColumn
from warplens.report.overview.answer import largest_part
from warplens.report.overview.words import category_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.report.overview.numbers import Numbers

__all__ = ["busy_share", "caution", "comparison_table", "distinct_sources", "key_figures"]


@dataclass(frozen=True)
class _Headline:
    """A profile in one row; null is what it does not tell."""

    source: str
    verdict: str | None
    caution: str | None
    gpu: str | None
    window_ns: int
    steps: int
    step_ns: float | None
    busy_share: float | None
    largest: str | None
    largest_share: float | None
    kernel_ns: int | None
    kernels: int | None
    kernels_per_step: float | None
    launches_per_s: float | None


_COLUMNS = (
    TableColumn("source", "Profile", "name"),
    TableColumn("verdict", "Limited by", "text", "The first finding; see the profile's own part."),
    TableColumn("caution", "Caution", "text", "Why its figures are not those of the others."),
    TableColumn("step_ns", "Step time", "duration_ns", "Median wall time of the steps in the window."),
    TableColumn("steps", "Steps", "count", "Steps in the window."),
    TableColumn("busy_share", "GPU busy", "share", "Of the window, over all GPUs that did any work."),
    TableColumn("largest", "Mostly in", "text", "Kind of work that most of the busy time went to."),
    TableColumn("largest_share", "Its share", "share", "Of the busy time."),
    TableColumn("kernel_ns", "Kernel time", "duration_ns", "Summed duration of all kernels in the window."),
    TableColumn("kernels", "Kernels", "count"),
    TableColumn("kernels_per_step", "Per step", "count", "Kernels divided by steps."),
    TableColumn("launches_per_s", "Launches", "rate", "Kernels launched one by one."),
    TableColumn("gpu", "GPU", "text"),
    TableColumn("window_ns", "Window", "duration_ns"),
)

#: Notes with which a profile's times are not those of whole steps, whatever their level.
_NOT_COMPARABLE = ("aborted-step",)

_SCHEMA = {
    "duration_ns": pl.Float64,
    "share": pl.Float64,
    "rate": pl.Float64,
    "count": pl.Float64,
    "name": pl.String,
    "text": pl.String,
}


def busy_share(numbers: Numbers) -> float | None:
    """The share of the window in which GPUs were busy, over all GPUs that did any work; None if none did."""
    duration = sum(budget.duration_ns for budget in numbers.budgets)
    return sum(budget.busy_ns for budget in numbers.budgets) / duration if duration else None


def caution(numbers: Numbers) -> str | None:
    """What keeps a profile from standing beside others, in a few words: blocking notes, aborted steps."""
    grave = (note for note in numbers.notes if note.level is NoteLevel.BLOCKING or note.code in _NOT_COMPARABLE)
    return ", ".join(dict.fromkeys(note.code.replace("-", " ") for note in grave)) or None


def distinct_sources(profiles: Sequence[Numbers]) -> list[str]:
    """The files' names, numbered where several are alike (profiles of the same name from different folders)."""
    sources = [numbers.capture.source for numbers in profiles]
    return [
        source if sources.count(source) == 1 else f"{source} ({sources[: place + 1].count(source)})"
        for place, source in enumerate(sources)
    ]


def comparison_table(profiles: Sequence[Numbers]) -> Table:
    """The headlines of several profiles, one row each, in the order given."""
    schema = {column.key: _SCHEMA[column.kind] for column in _COLUMNS}
    headlines = (
        {**asdict(_headline(numbers)), "source": title}
        for title, numbers in zip(distinct_sources(profiles), profiles, strict=True)
    )
    rows = pl.DataFrame(list(headlines), schema=schema, strict=False)
    said = [column for column in _COLUMNS if column.key != "caution" or rows["caution"].null_count() < rows.height]
    return Table("comparison-table", "Key figures of each profile", tuple(said), rows, limit=None)


def key_figures(numbers: Numbers) -> KeyFigures:
    """The headline of one profile as tiles."""
    return KeyFigures(tuple(_tiles(_headline(numbers), numbers)))


def _headline(numbers: Numbers) -> _Headline:
    steps = numbers.window_steps
    largest = largest_part(numbers.budgets)
    # No kernel table is not the same as no kernel.
    known = numbers.recorded("kernels")
    kernels = int(numbers.kernels["calls"].sum()) if known else None
    return _Headline(
        source=numbers.capture.source,
        verdict=numbers.diagnosis.verdict if numbers.diagnosis is not None else None,
        caution=caution(numbers),
        gpu=", ".join(dict.fromkeys(device.name for device in numbers.capture.devices)) or None,
        window_ns=numbers.window.duration_ns,
        steps=steps.height,
        step_ns=number(steps["wall_ns"].median()),
        busy_share=busy_share(numbers),
        largest=category_title(largest[0]) if largest else None,
        largest_share=largest[1] if largest else None,
        kernel_ns=int(numbers.kernels["total_ns"].sum()) if known else None,
        kernels=kernels,
        kernels_per_step=kernels / steps.height if kernels is not None and steps.height else None,
        launches_per_s=numbers.launch_summary.per_second if known else None,
    )


def _tiles(headline: _Headline, numbers: Numbers) -> Iterator[KeyFigure]:
    if headline.steps > 1:
        wall = numbers.window_steps["wall_ns"].to_list()
        spread = f"median of {headline.steps} steps, {fmt.duration(min(wall))} to {fmt.duration(max(wall))}"
        yield KeyFigure("Step time", headline.step_ns, "duration_ns", spread)
    elif headline.steps == 1:
        yield KeyFigure("Step time", headline.step_ns, "duration_ns", "the only step")
    else:
        yield KeyFigure("Window", headline.window_ns, "duration_ns", numbers.window.how)
    gpus = len(numbers.budgets)
    yield KeyFigure("GPU busy", headline.busy_share, "share", f"of the window{f', {gpus} GPUs' if gpus > 1 else ''}")
    if headline.largest is not None:
        yield KeyFigure("Largest part", headline.largest_share, "share", f"of the busy time: {headline.largest}")
    each = "" if headline.kernels_per_step is None else f", {fmt.count(headline.kernels_per_step)} a step"
    yield KeyFigure("Kernels", headline.kernels, "count", f"in the window{each}")
    yield KeyFigure("Launches", headline.launches_per_s, "rate", "kernels launched one by one")
    if numbers.memory:
        peak = numbers.memory[0]
        yield KeyFigure(
            "Peak memory", peak.peak_bytes, "bytes", f"{peak.memory or 'allocated'}, process {peak.process}"
        )
