"""The document on two sides of traces: the verdict, then the parts of the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from warplens.analysis.counters.comparison import Comparison
from warplens.profile import NoteLevel
from warplens.report import text as fmt
from warplens.report.charts.bars import waterfall_chart
from warplens.report.comparison.numbers import StepNumbers
from warplens.report.comparison.steps import (
    kernel_table,
    launch_table,
    part_table,
    phase_table,
    place_table,
    range_table,
    side_strip,
    side_table,
    statistics_table,
    step_tiles,
    transfer_table,
    waterfall_rows,
)
from warplens.report.comparison.words import (
    forbids_verdict,
    gate_sentence,
    hides_kernels,
    interval_text,
    kind_of_means,
    launch_sentences,
    needed_sentence,
    signed_share,
    step_answer,
    work_sentence,
)
from warplens.report.counters.beside import SIDE_BY_SIDE, comparison_lines
from warplens.report.document import (
    Answer,
    Block,
    Document,
    Figure,
    KeyFigures,
    Paragraph,
    SectionOf,
    limits,
    quiet,
    sections,
)
from warplens.report.flame import difference_blocks


def step_document(numbers: StepNumbers) -> Document:
    """The document on two sides of traces."""
    return Document(
        title=f"Comparison: {numbers.variant.name} against {numbers.baseline.name}",
        lead=" ".join(step_answer(numbers)),
        sections=(
            *sections(_SECTIONS, numbers),
            *(sections([SIDE_BY_SIDE], [numbers.counters], "counters-") if numbers.counters is not None else ()),
        ),
        meta=tuple(_meta(numbers)),
        answer=_answer(numbers),
    )


_SEVERITIES: Final = {"slower": "critical", "undecided": "warning", "same": "info", "faster": "info"}


def _answer(numbers: StepNumbers) -> Answer:
    """The first screen: the verdict, its certainty, the cause, and both sides as bars on one scale."""
    comparison, wall, per = numbers.comparison, numbers.difference.wall, numbers.difference.per
    verdict, *why = step_answer(numbers)
    verdict, separator, cause = verdict.partition(", because ")
    reasons = [*([cause] if separator else why), *([work] if (work := work_sentence(numbers)) else [])]
    comparable = forbids_verdict(numbers) is None
    limiting = tuple(note for note in numbers.notes if note.level is not NoteLevel.INFO)
    return Answer(
        id="answer",
        verdict=f"{verdict}." if separator else verdict,
        severity=_SEVERITIES[comparison.verdict] if comparable else "warning",
        gain=signed_share(comparison.ratio.estimate - 1) if comparable else "",
        gain_range=fmt.sentence(interval_text(comparison.ratio).replace(" %:", " % interval:", 1)),
        do=fmt.sentence(reasons[0]) if reasons else "",
        brings=" ".join(map(fmt.sentence, reasons[1:])),
        sure=needed_sentence(numbers) or fmt.sentence(comparison.how) if comparable else "",
        notes=limiting,
        strips=(side_strip(wall, "baseline", per), side_strip(wall, "variant", per)),
        others=(("parts-section", "part by part", ""), ("kernels-section", "kernel by kernel", "")),
        headings=(f"Change of the {per} time", "Why"),
        also="The difference",
    )


def _meta(numbers: StepNumbers) -> Iterator[tuple[str, str]]:
    for label, side in (("Baseline", numbers.baseline), ("Variant", numbers.variant)):
        typical = side.typical
        capture = typical.timeline.trace.capture
        files = f"{len(side.files)} files" if len(side.files) > 1 else ""
        window = f"window: {fmt.duration(typical.window.duration_ns)}, {typical.window.how}"
        facts = (side.name, files, fmt.recorded_with(capture), fmt.gpu_names(capture), window)
        yield label, " · ".join(part for part in facts if part)
    if (gate := gate_sentence(numbers)) is not None:
        yield "Gate", gate


def _key_figures(numbers: StepNumbers) -> Iterator[Block]:
    yield KeyFigures(step_tiles(numbers))
    yield side_table(numbers)


def _parts(numbers: StepNumbers) -> Iterator[Block]:
    wall, per = numbers.difference.wall, numbers.difference.per
    rows = waterfall_rows(wall)
    changes = "; ".join(f"{row['name']} {fmt.duration(row['delta'])}" for row in rows.iter_rows(named=True))
    before, after = float(wall.baseline.wall_ns), float(wall.variant.wall_ns)
    yield Figure(
        "waterfall",
        f"From the baseline's {per} to the variant's",
        waterfall_chart((f"baseline {per}", before), rows, (f"variant {per}", after)),
        f"A waterfall from {fmt.duration(before)} to {fmt.duration(after)}: {changes}.",
    )
    yield part_table(numbers.difference)
    yield quiet(
        f"At every instant a GPU does exactly one thing, so the parts add up: they sum to the change of "
        f"{fmt.duration(float(wall.change_ns))} and leave {fmt.duration(float(wall.residual_ns))}. These are means "
        f"over the {per}s of the two files; the verdict is from {kind_of_means(numbers)} means, which differ a little."
    )


def _ranges(numbers: StepNumbers) -> Iterator[Block]:
    difference = numbers.difference
    if difference.phases.height:
        yield phase_table(difference.phases)
    if difference.ranges.height <= 1:
        yield quiet("Neither side has annotated ranges, so kernels have no place in the program.")
        return
    merged = difference.merged_ranges.height < difference.ranges.height
    yield range_table(difference.merged_ranges if merged else difference.ranges)
    if merged:
        yield quiet("Ranges whose names differ only in numbers share a row; the JSON lists each.")


def _kernels(numbers: StepNumbers) -> Iterator[Block]:
    """The section on kernels: how many were kept, changed, added and removed, and which differ with certainty."""
    kernels = numbers.difference.kernels
    before, after = kernels.launches_per_step
    counts = ", ".join(
        f"{fmt.count(round(kernels.count(change), 1))} {change}" for change in ("kept", "changed", "added", "removed")
    )
    yield Paragraph(
        f"{fmt.plural(round(before, 1), 'kernel')} per {numbers.difference.per} before, "
        f"{fmt.count(round(after, 1))} after: {counts}."
    )
    yield kernel_table(numbers)
    repeats = "files" if min(len(numbers.baseline.files), len(numbers.variant.files)) > 1 else "steps"
    hint = " Steps of one file are not independent runs; record several files for more certainty."
    one_sided = "what only one side launches differs with certainty"
    if hides_kernels(numbers.difference):
        one_sided = "kernels that only one side shows are undecided: they may be inside the other side's CUDA graphs"
    elif forbids_verdict(numbers) is not None:
        one_sided = "kernels that only one side shows are undecided: the sides cannot be compared"
    yield quiet(
        f"A difference is certain if it is more than chance over {repeats}, the number of kernels taken into account "
        f"(Benjamini and Hochberg, {fmt.share(numbers.comparison.ratio.level)}); {one_sided}."
        f"{'' if repeats == 'files' else hint}"
    )
    yield place_table(numbers.difference)


def _flame(numbers: StepNumbers) -> Iterator[Block]:
    sides = (side.typical for side in (numbers.baseline, numbers.variant))
    yield from difference_blocks(*((file.timeline, file.window) for file in sides))


def _transfers(numbers: StepNumbers) -> Iterator[Block]:
    if numbers.difference.transfers.height:
        yield transfer_table(numbers.difference.transfers)


def _launches(numbers: StepNumbers) -> Iterator[Block]:
    paragraphs = [Paragraph(sentence) for sentence in launch_sentences(numbers)]
    yield from paragraphs[:2]
    yield launch_table(numbers)
    yield from paragraphs[2:]


def _work(numbers: StepNumbers) -> Iterator[Block]:
    yield Paragraph(
        work_sentence(numbers)
        or "FLOPs of the two sides are not known: these profiles hold no shapes of operators. Record with "
        "torch.profiler (record_shapes=True), or give them with --flops."
    )


def _statistics(numbers: StepNumbers) -> Iterator[Block]:
    comparison = numbers.comparison
    yield statistics_table(numbers)
    yield Paragraph(fmt.capitalised(comparison.how).rstrip(".") + ".")
    if needed_repeats := needed_sentence(numbers):
        yield Paragraph(needed_repeats)


#: The sections in reading order.
_SECTIONS: Final[tuple[SectionOf[Any], ...]] = (
    SectionOf("key-figures", "Key figures", _key_figures),
    SectionOf("parts-section", "Where the difference comes from", _parts),
    SectionOf("ranges-section", "GPU work by range", _ranges),
    SectionOf("flame", "GPU time by part of the program", _flame),
    SectionOf("kernels-section", "Kernels", _kernels),
    SectionOf("transfers-section", "Copies and communication", _transfers),
    SectionOf("launches-section", "Launches and what they cost the host", _launches),
    SectionOf("work-section", "Work against time", _work),
    SectionOf("statistics-section", "How certain it is", _statistics),
    SectionOf("quality", "Limits of these numbers", limits, lambda numbers: numbers.notes),
)


def counter_document(comparison: Comparison) -> Document:
    """The document on two reports of Nsight Compute."""
    return Document(
        title=f"Comparison: {comparison.after} against {comparison.before}",
        lead=". ".join(comparison_lines(comparison)) + ".",
        sections=sections([SIDE_BY_SIDE], [comparison]),
        meta=(("Baseline", comparison.before), ("Variant", comparison.after)),
    )
