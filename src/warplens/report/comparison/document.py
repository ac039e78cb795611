"""The document on two sides of traces: the verdict, then what the difference is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report import format as fmt
from warplens.report.charts import waterfall_chart
from warplens.report.comparison.causes import (
    forbids_verdict,
    hides_kernels,
    launch_sentences,
    step_answer,
    work_sentence,
)
from warplens.report.comparison.stepfigures import launch_table, side_table, statistics_table, step_tiles
from warplens.report.comparison.steptables import (
    kernel_table,
    part_table,
    phase_table,
    place_table,
    range_table,
    transfer_table,
    waterfall_rows,
)
from warplens.report.comparison.words import capitalised, needed_text
from warplens.report.counters.comparison import comparison_section
from warplens.report.document import Document, Figure, KeyFigures, Notes, Paragraph, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.compare.difference import Side
    from warplens.report.comparison.numbers import StepNumbers
    from warplens.report.document import Block

__all__ = ["step_document"]


def step_document(numbers: StepNumbers) -> Document:
    """The document on two sides of traces."""
    sections = [
        _quality(numbers),
        Section("key-figures", "Key figures", (KeyFigures(step_tiles(numbers)), side_table(numbers))),
        _parts(numbers),
        _ranges(numbers),
        _kernels(numbers),
        *_transfers(numbers),
        _launches(numbers),
        _work(numbers),
        _statistics(numbers),
    ]
    if numbers.counters is not None:
        sections.append(comparison_section([numbers.counters], at="counters-"))
    return Document(
        title=f"Comparison: {numbers.variant.name} against {numbers.baseline.name}",
        lead=" ".join(step_answer(numbers)),
        sections=tuple(sections),
        meta=tuple(_meta(numbers)),
    )


def _meta(numbers: StepNumbers) -> Iterator[tuple[str, str]]:
    for label, side in (("Baseline", numbers.baseline), ("Variant", numbers.variant)):
        typical = side.files[side.typical()]
        capture = typical.timeline.trace.capture
        gpus = ", ".join(dict.fromkeys(device.name for device in capture.devices))
        tool = " ".join(part for part in (capture.tool, capture.tool_version) if part)
        files = f"{len(side.files)} files" if len(side.files) > 1 else ""
        facts = (side.name, files, tool, gpus, f"window: {_window(typical)}")
        yield label, " · ".join(part for part in facts if part)


def _window(side: Side) -> str:
    window = side.window
    return f"{fmt.duration(window.duration_ns)}, {window.how}"


def _quality(numbers: StepNumbers) -> Section:
    clean = Paragraph("Nothing was found that limits these numbers.", quiet=True)
    return Section("quality", "Before you read the numbers", (Notes(numbers.notes) if numbers.notes else clean,))


def _parts(numbers: StepNumbers) -> Section:
    wall, per = numbers.difference.wall, numbers.difference.per
    rows = waterfall_rows(wall)
    told = "; ".join(f"{row['name']} {fmt.duration(row['delta'])}" for row in rows.iter_rows(named=True))
    before, after = float(wall.baseline.wall_ns), float(wall.variant.wall_ns)
    figure = Figure(
        "waterfall",
        f"From the baseline's {per} to the variant's",
        waterfall_chart((f"baseline {per}", before), rows, (f"variant {per}", after)),
        f"A waterfall from {fmt.duration(before)} to {fmt.duration(after)}: {told}.",
    )
    sums = Paragraph(
        f"At every instant a GPU does exactly one thing, so that the parts add up: they sum to the change of "
        f"{fmt.duration(float(wall.change_ns))} and leave {fmt.duration(float(wall.residual_ns))}. These are means "
        f"over the {per}s of the two files, and may differ a little from the medians that the verdict is from.",
        quiet=True,
    )
    return Section("parts-section", "What the difference is made of", (figure, part_table(wall, per=per), sums))


def _ranges(numbers: StepNumbers) -> Section:
    difference = numbers.difference
    blocks: list[Block] = []
    if difference.phases.height:
        blocks.append(phase_table(difference.phases))
    if difference.ranges.height > 1:
        merged = difference.merged_ranges.height < difference.ranges.height
        blocks.append(range_table(difference.merged_ranges if merged else difference.ranges))
        if merged:
            words = "Ranges whose names differ in their numbers only stand in one row; the JSON has each by itself."
            blocks.append(Paragraph(words, quiet=True))
    else:
        blocks.append(Paragraph("No range is annotated on either side, so that the work has no places.", quiet=True))
    return Section("ranges-section", "GPU work by range", tuple(blocks))


def _kernels(numbers: StepNumbers) -> Section:
    kernels = numbers.difference.kernels
    before, after = kernels.launches_per_step
    counts = ", ".join(
        f"{fmt.count(round(kernels.count(change), 1))} {change}" for change in ("kept", "changed", "added", "removed")
    )
    what = Paragraph(
        f"{fmt.plural(round(before, 1), 'kernel')} a {numbers.difference.per} before, "
        f"{fmt.count(round(after, 1))} after: {counts}."
    )
    over = "files" if numbers.repeated and min(len(numbers.baseline.files), len(numbers.variant.files)) > 1 else "steps"
    alone = "what only one side launches differs for certain"
    if hides_kernels(numbers.difference):
        alone = "of what only one side shows nothing is decided, for it may be inside the other's CUDA graphs"
    how = Paragraph(
        f"A difference is decided if it is more than chance over {over}, the number of kernels taken into account "
        f"(Benjamini and Hochberg, {fmt.share(numbers.comparison.ratio.level)}); {alone}."
        + ("" if over == "files" else " Steps of one file share what happened to that run; record several for more."),
        quiet=True,
    )
    return Section("kernels-section", "Kernels", (what, kernel_table(numbers.kernels), how, place_table(kernels.table)))


def _transfers(numbers: StepNumbers) -> Iterator[Section]:
    """Copies and communication, where there are any."""
    transfers = numbers.difference.transfers
    if transfers.height:
        yield Section("transfers-section", "Copies and communication", (transfer_table(transfers),))


def _launches(numbers: StepNumbers) -> Section:
    told = tuple(Paragraph(sentence) for sentence in launch_sentences(numbers))
    return Section(
        "launches-section", "Launches and what they cost the host", (*told[:2], launch_table(numbers), *told[2:])
    )


def _work(numbers: StepNumbers) -> Section:
    text = work_sentence(numbers) or (
        "FLOPs of the two sides are not known: these profiles hold no shapes of operators. Record with torch.profiler "
        "(record_shapes=True), or give them with --flops."
    )
    return Section("work-section", "Work against time", (Paragraph(text),))


def _statistics(numbers: StepNumbers) -> Section:
    found = numbers.comparison
    blocks: list[Block] = [statistics_table(numbers), Paragraph(capitalised(found.how).rstrip(".") + ".")]
    if (needed := needed_text(found)) and forbids_verdict(numbers) is None:
        blocks.append(Paragraph(needed))
    return Section("statistics-section", "How sure it is", tuple(blocks))
