"""The main report: the list of sections for one profile, and the comparison of several."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.frames import number
from warplens.diagnosis.findings import SEVERITIES
from warplens.diagnosis.rules import rule
from warplens.profile import NoteLevel
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.brief import answer_block, limit_sentence
from warplens.report.counters.beside import joined_blocks
from warplens.report.document import (
    Block,
    Document,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Section,
    SectionOf,
    Table,
    limits,
    sections,
)
from warplens.report.flame import flame_blocks
from warplens.report.headroom import headroom_blocks, strips
from warplens.report.overview import host, time
from warplens.report.overview.numbers import Numbers, answer, largest_part
from warplens.report.questions.time import left_out_facts, rhythm_tables
from warplens.report.ranks import answer as ranks_answer
from warplens.report.run import run_answer, run_rooms
from warplens.report.text import category_title
from warplens.report.timelines import run_timeline, timeline_blocks, with_moments
from warplens.report.verdict import checklist_blocks, factor, finding_blocks
from warplens.report.whatif import what_if_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from warplens.diagnosis.across import RunDiagnosis


_COLUMNS: Final = (
    column("source", help="", title="Profile"),
    column("verdict", help="the first finding; open the profile for the others", title="What limits it"),
    column("gain", help="how many times as fast without it is expected to be"),
    column("remedy", help="its first remedy"),
    column("step_ns", dtype=pl.Float64, help="median wall time of the steps in the window", title="Step time"),
    column("busy_share", help="of the window, over all GPUs that did any work"),
    Column("caution", help="why its figures are not those of the others"),
)

_FIGURES: Final = (
    column("steps", dtype=pl.Float64, help="steps in the window", kind="count"),
    Column("largest", title="Mostly in", help="kind of work that most of the busy time went to"),
    Column("largest_share", pl.Float64, "of the busy time", title="Its share"),
    column("kernel_ns", dtype=pl.Float64, help="summed duration of all kernels in the window"),
    column("kernels", dtype=pl.Float64, help="", kind="count"),
    Column("kernels_per_step", pl.Float64, "kernels divided by steps", title="Per step", kind="count"),
    Column("launches_per_s", pl.Float64, "kernels launched one by one"),
    column("gpu", help=""),
    Column("window_ns", pl.Float64),
)

#: Profiles with a part of their own in a page. A part takes about 0.2 MB besides its timeline, and all timelines share
#: a fixed number of marks. A page with this many parts is 8 MB; more than 10 MB opens slowly on a phone.
MOST_PARTS: Final = 24

#: Codes of notes, of any level, that say that times of a profile are not those of whole steps.
_NOT_COMPARABLE = ("aborted-step",)


def busy_share(numbers: Numbers) -> float | None:
    """The share of the window in which GPUs were busy, over all GPUs that did any work; None if none did."""
    duration = sum(budget.duration_ns for budget in numbers.budgets)
    return sum(budget.busy_ns for budget in numbers.budgets) / duration if duration else None


def caution(numbers: Numbers) -> str | None:
    """Why a profile is not comparable with others, in a few words: blocking notes, aborted steps; None if it is."""
    notes = (note for note in numbers.notes if note.level is NoteLevel.BLOCKING or note.code in _NOT_COMPARABLE)
    return ", ".join(dict.fromkeys(note.code.replace("-", " ") for note in notes)) or None


def distinct_sources(profiles: Sequence[Numbers]) -> list[str]:
    """The file names, numbered if equal (profiles of the same name from different folders)."""
    sources = [numbers.capture.source for numbers in profiles]
    return [
        source if sources.count(source) == 1 else f"{source} ({sources[: index + 1].count(source)})"
        for index, source in enumerate(sources)
    ]


def profiles_with_part(profiles: Sequence[Numbers]) -> frozenset[int]:
    """The indices of the profiles that get a part of their own: at most `MOST_PARTS`, by severity and gain."""
    if len(profiles) <= MOST_PARTS:
        return frozenset(range(len(profiles)))

    def order(index: int) -> tuple[int, float, int]:
        diagnosis = profiles[index].diagnosis
        if diagnosis is None:
            return len(SEVERITIES), 0.0, index
        verdict = diagnosis.findings[0]
        return SEVERITIES.index(verdict.severity), -(verdict.gain or 0.0), index

    return frozenset(sorted(range(len(profiles)), key=order)[:MOST_PARTS])


def comparison_tables(profiles: Sequence[Numbers], with_part: Collection[int]) -> tuple[Table, Table]:
    """Verdicts and key figures of several profiles, one row each, linked to the parts of those in `with_part`."""
    schema = {column.name: column.dtype for column in (*_COLUMNS, *_FIGURES)}
    headlines = [
        {**_headline(numbers), "source": title, "part": f"p{index + 1}-answer" if index in with_part else ""}
        for index, (title, numbers) in enumerate(zip(distinct_sources(profiles), profiles, strict=True))
    ]
    rows = pl.DataFrame(headlines, schema={**schema, "part": pl.String}, strict=False)
    verdict_columns = tuple(column for column in _COLUMNS if column.name != "caution" or rows["caution"].count())
    figures = (_COLUMNS[0], *_FIGURES)
    return (
        Table("comparison-table", "What limits each profile", verdict_columns, rows, limit=None, leads="part"),
        Table("figures-table", "Key figures of each profile", figures, rows, limit=None, leads="part"),
    )


def _key_figures(numbers: Numbers) -> Iterator[Block]:
    # Without GPU work there is nothing to summarise.
    if numbers.budgets:
        yield KeyFigures.of(*_tiles(_headline(numbers), numbers))


def _rhythms(numbers: Numbers) -> Iterator[Block]:
    search = numbers.timeline.steps
    yield from (Paragraph(fmt.sentence(line)) for line in left_out_facts(search))
    yield from rhythm_tables(search)


def _headline(numbers: Numbers) -> dict[str, Any]:
    """The row of a profile in the tables of several; unknown values are null."""
    steps = numbers.window_steps
    largest = largest_part(numbers.budgets)
    first = numbers.diagnosis.findings[0] if numbers.diagnosis is not None else None
    gain = factor(first.gain) if first is not None and not rule(first.id).describes else None
    remedy = first.remedies[0].action if first is not None and first.remedies else None
    # Without a kernel table, the number of kernels is unknown, not zero.
    has_kernels = numbers.recorded("kernels")
    kernels = int(numbers.kernels["calls"].sum()) if has_kernels else None
    return {
        "source": numbers.capture.source,
        "verdict": limit_sentence(numbers.diagnosis) if numbers.diagnosis is not None else None,
        "gain": gain,
        "remedy": remedy,
        "caution": caution(numbers),
        "gpu": fmt.gpu_names(numbers.capture) or None,
        "window_ns": numbers.window.duration_ns,
        "steps": steps.height,
        "step_ns": number(steps["wall_ns"].median()),
        "busy_share": busy_share(numbers),
        "largest": category_title(largest[0]) if largest else None,
        "largest_share": largest[1] if largest else None,
        "kernel_ns": int(numbers.kernels["total_ns"].sum()) if has_kernels else None,
        "kernels": kernels,
        "kernels_per_step": kernels / steps.height if kernels is not None and steps.height else None,
        "launches_per_s": numbers.launch_summary.per_second if has_kernels else None,
    }


def _tiles(headline: dict[str, Any], numbers: Numbers) -> Iterator[KeyFigure]:
    """The key figures: step time, busy share, largest part, kernels, launches, peak memory."""
    if headline["steps"] > 1:
        wall = numbers.window_steps["wall_ns"].to_list()
        spread = f"median of {headline['steps']} steps, {fmt.duration(min(wall))} to {fmt.duration(max(wall))}"
        yield KeyFigure("Step time", headline["step_ns"], "duration_ns", spread)
    elif headline["steps"] == 1:
        yield KeyFigure("Step time", headline["step_ns"], "duration_ns", "the only step")
    else:
        yield KeyFigure("Window", headline["window_ns"], "duration_ns", numbers.window.how)
    gpus = len(numbers.budgets)
    yield KeyFigure("GPU busy", headline["busy_share"], "share", f"of the window{f', {gpus} GPUs' if gpus > 1 else ''}")
    if headline["largest"] is not None:
        yield KeyFigure("Largest part", headline["largest_share"], "share", f"of the busy time: {headline['largest']}")
    per_step = "" if headline["kernels_per_step"] is None else f", {fmt.count(headline['kernels_per_step'])} per step"
    yield KeyFigure("Kernels", headline["kernels"], "count", f"in the window{per_step}")
    yield KeyFigure("Launches", headline["launches_per_s"], "rate", "kernels launched one by one")
    if numbers.memory:
        peak = numbers.memory[0]
        yield KeyFigure(
            "Peak memory", peak.peak_bytes, "bytes", f"{peak.memory or 'allocated'}, process {peak.process}"
        )


def _room(name: str, title: str, *kinds: SectionOf[Numbers]) -> SectionOf[Numbers]:
    """A top-level section (a room) with its subsections, without the empty ones."""
    return SectionOf(f"{name}-room", title, lambda numbers: sections(kinds, numbers))


def _findings(numbers: Numbers) -> Iterator[Block | Section]:
    if numbers.diagnosis is not None:
        yield from with_moments(numbers, finding_blocks(numbers.diagnosis))


#: The rooms of the report in reading order. To add a section, add a line here and a function that yields its blocks.
_ROOMS: Final[tuple[SectionOf[Numbers], ...]] = (
    _room(
        "timeline",
        "Timeline",
        SectionOf("timeline", "Timeline", timeline_blocks),
        SectionOf("steps", "Steps over time", time.steps),
    ),
    _room(
        "budget",
        "Budget",
        SectionOf("budget", "Time budget", time.budget),
        SectionOf("headroom", "Headroom", headroom_blocks, lambda numbers: numbers.headroom or None),
        SectionOf("phases", "Phases", time.phases),
    ),
    _room("what-if", "What if", SectionOf("what-if", "What if", what_if_blocks)),
    SectionOf("findings-room", "Findings", _findings, lambda numbers: numbers if numbers.diagnosis else None),
    _room(
        "kernels",
        "Kernels & operators",
        SectionOf("kernels", "Kernels", time.kernels),
        SectionOf("categories", "Categories", time.categories),
        SectionOf("operators", "Operators", host.operators),
        SectionOf("work", "Modelled work, measured time", host.work),
    ),
    _room(
        "program",
        "Program",
        SectionOf("flame", "GPU time by part of the program", flame_blocks),
        SectionOf("ranges", "Ranges", time.ranges),
        SectionOf("modules", "Modules", host.modules),
        SectionOf("code", "Code", host.code),
    ),
    _room(
        "host",
        "Host",
        SectionOf("launches", "Launches", host.launches),
        SectionOf("api", "CUDA API", host.api),
        SectionOf("streams", "Streams", host.streams),
        SectionOf("graphs", "CUDA graphs", host.graphs),
    ),
    _room(
        "memory",
        "Memory",
        SectionOf("copies", "Copies", host.copies),
        SectionOf("memory", "Memory", host.memory),
        SectionOf("allocator", "Allocated memory", host.allocator),
    ),
    SectionOf("ranks-room", "Ranks", time.devices),
    SectionOf("counters-room", "Counters", joined_blocks, lambda numbers: numbers.joined or None),
    _room(
        "method",
        "Data & method",
        SectionOf("quality", "Limits of these numbers", limits, lambda numbers: numbers.notes),
        SectionOf("checklist", "Checklist", checklist_blocks, lambda numbers: numbers.checklist),
        SectionOf("rhythms", "What repeats", _rhythms),
        SectionOf("key-figures", "Key figures", _key_figures),
    ),
)


def report_document(profiles: Sequence[Numbers], run: RunDiagnosis | None = None) -> Document:
    """One document on all profiles: `overview_document` for one; for several, a comparison and a part per profile.

    `run` is the diagnosis of their run, if they are the ranks of one.
    """
    if len(profiles) == 1:
        return overview_document(profiles[0])
    titles = distinct_sources(profiles)
    with_part = profiles_with_part(profiles)
    headlines, figures = comparison_tables(profiles, with_part)
    return Document(
        title=f"{len(profiles)} profiles" if run is None else f"{len(run.ranks)} ranks of one run",
        lead=_most_to_gain(profiles) or _comparison_lead(profiles) if run is None else ranks_answer(run.run.result),
        sections=(
            *(() if run is None else _run_rooms(run, profiles)),
            Section(
                "comparison",
                "All profiles",
                (*_left_out(profiles, with_part, run), headlines),
                (Section("figures", "Key figures of each", (figures,), folded=True),),
            ),
        ),
        answer=None if run is None else run_answer(run),
        parts=tuple(
            replace(overview_document(replace(numbers, beside=len(with_part)), f"p{position}"), title=title)
            for position, (title, numbers) in enumerate(zip(titles, profiles, strict=True), start=1)
            if position - 1 in with_part
        ),
    )


def overview_document(numbers: Numbers, part: str = "") -> Document:
    """The report on one profile: the answer, then rooms for every analysis; `part` is its id among several."""
    at = f"{part}-" if part else ""
    first_screen = None
    if numbers.diagnosis is not None:
        time_strips = tuple(strips(numbers.budgets, numbers.headroom, numbers.window))
        first_screen = answer_block(numbers.diagnosis, time_strips, at)
        if first_screen.strips and len(numbers.budgets) == 1 and caution(numbers) is None:
            first_screen = replace(first_screen, again=True)
    return Document(
        numbers.capture.source, answer(numbers), sections(_ROOMS, numbers, at), _meta(numbers), first_screen, id=part
    )


def _left_out(profiles: Sequence[Numbers], with_part: Collection[int], run: RunDiagnosis | None) -> Iterator[Block]:
    if len(with_part) < len(profiles):
        yield Paragraph(
            f"The {len(with_part)} of {len(profiles):,} profiles with the most to gain are told in full; the others "
            "have their rows here, and all of their numbers in the JSON. A report on fewer files tells others in full."
        )
    if run is None:
        return
    if without_part := len(run.ranks) - len(run.origin):
        yield Paragraph(
            f"Of {len(run.ranks):,} ranks {len(run.origin)} stand here, the late one and those of the lowest numbers; "
            f"{without_part:,} have their rows above only. A report on fewer files tells others in full."
        )


def _run_rooms(run: RunDiagnosis, profiles: Sequence[Numbers]) -> Iterator[Section]:
    first, *rest = run_rooms(run)
    timeline = run_timeline(run, profiles)
    yield from (first, *(() if timeline is None else (timeline,)), *rest)


def _meta(numbers: Numbers) -> tuple[tuple[str, str], ...]:
    capture = numbers.capture
    names = Counter(device.name for device in capture.devices)
    gpus = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())
    window = f"{fmt.duration(numbers.window.duration_ns)}, {numbers.window.how}"
    return (*((("GPU", gpus),) if gpus else ()), ("Recorded with", fmt.recorded_with(capture)), ("Window", window))


def _most_to_gain(profiles: Sequence[Numbers]) -> str:
    """The profile with the largest gain, and its remedy, as a sentence; empty if no gain is known."""
    rows = [
        (first.gain, title, first.remedies[0].action)
        for title, numbers in zip(distinct_sources(profiles), profiles, strict=True)
        if numbers.diagnosis is not None
        and (first := numbers.diagnosis.findings[0]).gain
        and first.remedies
        and not rule(first.id).describes
    ]
    if not rows:
        return ""
    gain, title, action = max(rows)
    return f"Largest gain: {fmt.printable(title)}, about {factor(gain)} as fast: {action[:1].lower()}{action[1:]}."


def _comparison_lead(profiles: Sequence[Numbers]) -> str:
    titles = distinct_sources(profiles)
    comparable = [(numbers, title) for numbers, title in zip(profiles, titles, strict=True) if caution(numbers) is None]
    left_out = len(profiles) - len(comparable)
    shares = [(busy_share(numbers), fmt.printable(title)) for numbers, title in comparable]
    known = sorted((share, source) for share, source in shares if share is not None)
    if not known:
        qualifier = " that stands for the program" if left_out else ""
        return f"None of these profiles holds GPU work{qualifier}."
    (lowest, first), (highest, last) = known[0], known[-1]
    text = (
        f"The GPU was busy for {fmt.share(lowest)} ({first}) to {fmt.share(highest)} ({last}) of the analysed windows."
    )
    if len(known) == 1:
        text = f"Only {first} holds GPU work: its GPU was busy for {fmt.share(lowest)} of the window."
    return text + (f" Profiles with a caution are left out: {fmt.count(left_out)}." if left_out else "")
