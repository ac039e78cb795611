"""The main document, put together: one profile, or several with a comparison on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report import format as fmt
from warplens.report.counters.joined import joined_section
from warplens.report.diagnosis.sections import verdict_section
from warplens.report.document import Document, Notes, Paragraph, Section
from warplens.report.overview.allocator import allocator_sections
from warplens.report.overview.answer import answer
from warplens.report.overview.hostsections import (
    api_section,
    copies_section,
    graphs_section,
    launches_section,
    memory_section,
    streams_section,
)
from warplens.report.overview.keyfigures import busy_share, caution, comparison_table, distinct_sources, key_figures
from warplens.report.overview.operatorsections import operator_sections
from warplens.report.overview.sections import budget_section, steps_section
from warplens.report.overview.worksections import (
    categories_section,
    kernels_section,
    phases_section,
    ranges_section,
)
from warplens.report.overview.worksmodel import work_sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.report.overview.numbers import Numbers

__all__ = ["overview_document", "report_document"]

_NO_WORK = "None of these profiles holds GPU work."

_SECTIONS = (
    budget_section,
    steps_section,
    phases_section,
    kernels_section,
    categories_section,
    ranges_section,
    launches_section,
    copies_section,
    api_section,
    streams_section,
    graphs_section,
    memory_section,
)


def report_document(profiles: Sequence[Numbers]) -> Document:
    """One document on all profiles: `overview_document` for one, a comparison and one part a profile for several."""
    if len(profiles) == 1:
        return overview_document(profiles[0])
    parts = []
    titles = distinct_sources(profiles)
    for position, (title, numbers) in enumerate(zip(titles, profiles, strict=True), start=1):
        at = f"p{position}-"
        lead = Paragraph(answer(numbers))
        facts = Paragraph(" · ".join(f"{label}: {text}" for label, text in _meta(numbers)), quiet=True)
        parts.append(Section(f"p{position}", title, (lead, facts), _sections(numbers, at)))
    return Document(
        title=f"{len(profiles)} profiles",
        lead=_comparison_lead(profiles),
        sections=(Section("comparison", "Side by side", (comparison_table(profiles),)), *parts),
    )


def overview_document(numbers: Numbers) -> Document:
    """The report on one profile: the answer, what the profile cannot tell, then every analysis."""
    return Document(
        title=numbers.capture.source, lead=answer(numbers), sections=_sections(numbers, ""), meta=_meta(numbers)
    )


def _sections(numbers: Numbers, at: str) -> tuple[Section, ...]:
    # Without GPU work there is nothing to summarise; what the host did may still be worth a look.
    summary = (Section(f"{at}key-figures", "Key figures", (key_figures(numbers),)),) if numbers.budgets else ()
    sections = [section(numbers, at) for section in _SECTIONS]
    if numbers.joined:
        sections.insert(_SECTIONS.index(kernels_section) + 1, joined_section(numbers.joined, at))
    verdict = (verdict_section(numbers.diagnosis, at),) if numbers.diagnosis is not None else ()
    framework = (*operator_sections(numbers, at), *work_sections(numbers, at), *allocator_sections(numbers, at))
    return (*verdict, _quality(numbers, at), *summary, *sections, *framework)


def _quality(numbers: Numbers, at: str) -> Section:
    clean = Paragraph("Nothing was found that limits these numbers.", quiet=True)
    notes = Notes(numbers.notes) if numbers.notes else clean
    return Section(f"{at}quality", "Before you read the numbers", (notes,))


def _meta(numbers: Numbers) -> tuple[tuple[str, str], ...]:
    capture = numbers.capture
    names: dict[str, int] = {}
    for device in capture.devices:
        names[device.name] = names.get(device.name, 0) + 1
    gpus = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())
    tool = " ".join(part for part in (capture.tool, capture.tool_version) if part)
    window = f"{fmt.duration(numbers.window.duration_ns)}, {numbers.window.how}"
    return (*((("GPU", gpus),) if gpus else ()), ("Recorded with", tool), ("Window", window))


def _comparison_lead(profiles: Sequence[Numbers]) -> str:
    titles = distinct_sources(profiles)
    sound = [(numbers, title) for numbers, title in zip(profiles, titles, strict=True) if caution(numbers) is None]
    apart = len(profiles) - len(sound)
    shares = [(busy_share(numbers), fmt.printable(title)) for numbers, title in sound]
    known = sorted((share, source) for share, source in shares if share is not None)
    if not known:
        return "None of these profiles holds GPU work that stands for the program." if apart else _NO_WORK
    return _busy_range(known) + (f" {fmt.count(apart)} with a caution left out." if apart else "")


def _busy_range(known: Sequence[tuple[float, str]]) -> str:
    (least, first), (most, last) = known[0], known[-1]
    if len(known) == 1:
        return f"Only {first} holds GPU work: its GPU was busy for {fmt.share(least)} of the window."
    return f"The GPU was busy for {fmt.share(least)} ({first}) to {fmt.share(most)} ({last}) of the analysed windows."
