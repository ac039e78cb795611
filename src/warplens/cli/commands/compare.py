"""`warplens compare`: why a variant is slower or faster than its baseline, and how certain that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import polars as pl
import typer

from warplens.analysis.counters.comparison import Comparison as CountersComparison
from warplens.analysis.timeline import Timeline
from warplens.answers.inputs import both_sides, trace_side
from warplens.cli.answer import Answer, Part, answered, checked_target, give, limited, most_rows, note_lines
from warplens.cli.commands.counters import load_counters
from warplens.cli.memory import check_together
from warplens.cli.options import (
    FormatOption,
    LimitOption,
    RangeOption,
    WindowOption,
    argument,
    documents_option,
    flag,
    given_share,
    option,
    share_in,
    share_option,
)
from warplens.cli.process import GATE_FAILED, State, complain, note, progress, reuse_freed_memory
from warplens.errors import MissingDataError, UnreadableInputError, UsageError, shown_name
from warplens.profile import Note, NoteLevel
from warplens.profile.measurements import Measurements, device_name
from warplens.readers import (
    discover,
    discover_both,
    files_below,
    holds_counters,
    holds_measurements,
    holds_trace,
    read,
    refusal,
)
from warplens.readers.measurements import read_measurements
from warplens.report.comparison.numbers import TraceFiles
from warplens.report.document import Document
from warplens.studies.sweeps.reading import side_of, sweep_of
from warplens.studies.sweeps.sweep import Cell, Sweep


@dataclass(frozen=True)
class Outcome:
    """A finished comparison of two sides of any kind."""

    answer: Answer
    document: Callable[[], Document]  #: makes the document; only this draws charts
    gate: Sequence[str] = ()  #: lines on the result of the gate; () without a gate
    doubts: Sequence[str] = ()  #: cautions to read beside that result, also with --quiet
    failed: bool = False  #: whether the gate failed
    is_open: bool = False  #: whether the gate neither failed nor passed


#: The kind of files of a side; the value is used in messages.
Content: TypeAlias = Literal["a trace", "measurements", "counters of Nsight Compute"]


@dataclass(frozen=True)
class SideFiles:
    """The files of a side."""

    path: Path
    content: Content
    files: tuple[Path, ...]  #: the files to read; several only for traces, each a repeat
    #: other files in a folder of traces, which are no repeats: empty ones, measurements and counters
    skipped: tuple[Path, ...] = ()


#: The setting that distinguishes the sides after two files were merged; no workload has a setting of this name.
_SIDE: Final = "compared side"


def find_sides(baseline: Path, variant: Path) -> tuple[SideFiles, SideFiles]:
    """The files of the two sides and their kind, determined by content without reading them in full.

    Raises:
        UsageError: the sides are of different kinds, or a folder has several files that are no repeats.
        UnreadableInputError: there is no such file, or nothing in a folder can be compared.
    """
    sides = _side_files(baseline), _side_files(variant)
    if sides[0].content != sides[1].content:
        for side in sides:
            if side.path.is_file() and side.content == "a trace" and not holds_trace(side.path):
                raise refusal(side.path)
        contents = " and ".join(f"{side.path.name} holds {side.content}" for side in sides)
        raise UsageError(
            f"{contents}: give two traces (or folders of repeats), two measurements files, or two reports of counters"
        )
    return sides


def _side_files(path: Path) -> SideFiles:
    """The files of one side, which are all of one kind: traces, reports of counters, or measurements."""
    if not path.is_dir():
        if path.is_file() and holds_counters(path):
            return SideFiles(path, "counters of Nsight Compute", (path,))
        if path.is_file() and holds_measurements(path):
            return SideFiles(path, "measurements", (path,))
        return SideFiles(path, "a trace", tuple(discover([path])))
    try:
        traces, counters = discover_both([path])
    except UnreadableInputError:
        measured = [file for file in sorted(files_below(path)) if holds_measurements(file)]
        if not measured:
            raise
        return SideFiles(path, "measurements", _only(path, measured, "measurements files"))
    traces = [file for file in traces if not file.is_file() or file.stat().st_size] or traces
    if traces:
        others = [file for file in sorted(files_below(path)) if file not in traces and file not in counters]
        skipped = [file for file in others if not file.stat().st_size or holds_measurements(file)]
        return SideFiles(path, "a trace", tuple(traces), (*counters, *skipped))
    return SideFiles(path, "counters of Nsight Compute", _only(path, counters, "reports of counters"))


def _only(folder: Path, files: Sequence[Path], noun: str) -> tuple[Path, ...]:
    if len(files) > 1:
        raise UsageError(f"{folder.name}: the folder holds {len(files)} {noun}; name the one to compare")
    return tuple(files)


def _load_traces(
    sides: tuple[SideFiles, SideFiles], window: str, range_name: str | None
) -> tuple[TraceFiles, TraceFiles]:
    """Both sides, every repeat with its window, with launch configurations, by which kernels are matched."""
    files = list(dict.fromkeys(file for side in sides for file in side.files))
    check_together(files)
    reuse_freed_memory(files)
    names = [shown_name(side.path.resolve().name) for side in sides]
    if names[0] == names[1]:
        names = [f"{name} ({role})" for name, role in zip(names, ("baseline", "variant"), strict=True)]
    baseline, variant = (
        trace_side(name, _timelines(side.files), window, range_name) for name, side in zip(names, sides, strict=True)
    )
    common = {file.resolve() for file in sides[0].files} & {file.resolve() for file in sides[1].files}
    baseline, variant = both_sides(baseline, variant, same_file=bool(common))
    baseline, variant = (
        replace(side, notes=((*side.notes[0], *_skipped_note(files.skipped)), *side.notes[1:]))
        for side, files in zip((baseline, variant), sides, strict=True)
    )
    return baseline, variant


def _timelines(paths: Iterable[Path]) -> Iterator[Timeline]:
    for path in paths:
        with progress(f"reading {path.name}") as tell:
            timeline = Timeline(read(path, progress=tell, gpu=State.gpu))
            tell(f"analysing {path.name}")
            yield timeline


def _skipped_note(skipped: Sequence[Path]) -> Iterator[Note]:
    if skipped:
        first, more = skipped[0].name, len(skipped) - 1
        text = f"the folder holds files that are not traces; they were skipped: {first}"
        text += f" and {more} more" if more else ""
        yield Note("passed-over", NoteLevel.WARNING, text, "If a run failed, record it again")


def _load_measurements(
    sides: tuple[SideFiles, SideFiles], settings: tuple[str | None, str | None]
) -> tuple[Sweep, tuple[Note, ...]]:
    """The cells of two measurements files, matched by equal settings apart from those that distinguish the sides.

    The same file twice compares cells of it. The sweep has no `_SIDE` in the settings of its sides. Rounds of different
    files are not paired, since they were not measured in turns.
    """
    selected = [side_of(text) if text is not None else {} for text in settings]
    first, second = (side.files[0] for side in sides)
    with progress(f"reading {first.name}") as tell:
        baseline = read_measurements(first)
        same_file = first.resolve() == second.resolve()
        if same_file and all(selected):
            return sweep_of(baseline, selected[0], selected[1]), ()
        tell(f"reading {second.name}")
        variant = baseline if same_file else read_measurements(second)
    merged = _merged(baseline, variant)
    try:
        sweep = sweep_of(merged, {_SIDE: "baseline", **selected[0]}, {_SIDE: "variant", **selected[1]})
    except UsageError as error:  # `_SIDE` is not a setting of the user, so the message names the files instead
        text = str(error).replace(f"{_SIDE}=baseline", first.name).replace(f"{_SIDE}=variant", second.name)
        raise UsageError(text) from error
    same_times = same_file or baseline.samples.equals(variant.samples)
    notes = tuple(_of_files(baseline, variant, same_file=same_times and not any(selected)))
    return _without_side(sweep, paired=sweep.paired and same_file), notes


def _of_files(baseline: Measurements, variant: Measurements, *, same_file: bool) -> Iterator[Note]:
    """Notes on two measurements files that are hard to compare."""
    if same_file:
        text = "Both sides hold the same cells: their times are compared with themselves"
        yield Note("same-file", NoteLevel.WARNING, text, "Choose cells: --baseline-where, --variant-where")
    names = [device_name(file.environment) for file in (baseline, variant)]
    if all(names) and names[0] != names[1]:
        text = f"The GPUs differ: {names[0]} and {names[1]}"
        yield Note("different-gpu", NoteLevel.WARNING, text, "Measure both sides on the same GPU")


def _merged(baseline: Measurements, variant: Measurements) -> Measurements:
    """Both files merged, each cell with the setting `_SIDE`."""
    if baseline.workload != variant.workload:
        raise UsageError(
            f"{baseline.source} holds measurements of {baseline.workload}, {variant.source} of {variant.workload}: "
            "there is nothing to compare"
        )
    cells = [
        file.cells.with_columns(pl.lit(name).alias(_SIDE))
        for file, name in ((baseline, "baseline"), (variant, "variant"))
    ]
    merged = {
        name: pl.concat([
            getattr(baseline, name), getattr(variant, name).with_columns(pl.col("cell") + baseline.cells.height)
        ])
        for name in ("samples", "phases")
    }  # fmt: skip
    return replace(
        baseline,
        source=baseline.source if baseline.source == variant.source else f"{baseline.source} and {variant.source}",
        settings=(_SIDE, *dict.fromkeys((*baseline.settings, *variant.settings))),
        cells=pl.concat(cells, how="diagonal_relaxed"),
        details=(*baseline.details, *variant.details),
        samples=merged["samples"],
        phases=merged["phases"],
        sweep=None,
    )


def _without_side(sweep: Sweep, *, paired: bool) -> Sweep:
    points = tuple(
        replace(point, baseline=_unpaired(point.baseline, paired), variant=_unpaired(point.variant, paired))
        for point in sweep.points
    )
    baseline, variant = (
        {name: value for name, value in settings.items() if name != _SIDE}
        for settings in (sweep.baseline, sweep.variant)
    )
    return replace(sweep, baseline=baseline, variant=variant, points=points, paired=paired)


def _unpaired(cell: Cell | None, paired: bool) -> Cell | None:
    if cell is None or paired:
        return cell
    wall, gpu = (samples and replace(samples, paired=False) for samples in (cell.wall, cell.gpu))
    return replace(cell, wall=wall, gpu=gpu)


@dataclass(frozen=True)
class Options:
    """The options of a comparison; pairs are of the baseline and the variant."""

    margin: float  #: differences of at most this share count as none
    level: float  #: 0.05 for 95 % confidence
    fail_on: float | None  #: the gate's limit, a share; None without a gate
    fail_on_undecided: bool  #: whether a gate that neither fails nor passes counts as failed
    #: window, range_name: part of each trace
    window: str
    range_name: str | None
    where: tuple[str | None, str | None]  #: settings of the cells to select
    counters: tuple[Path | None, Path | None]  #: reports of Nsight Compute
    flops: tuple[float, float] | None  #: floating-point operations per step, if given
    most: int | None  #: rows of a table to print; None for all


def _answer(
    sources: Sequence[str],
    part: Part,
    notes: Sequence[Note],
    rows: pl.DataFrame,
    data: Callable[[], Mapping[str, Any]],
    options: Options,
) -> Answer:
    part = replace(part, notes=note_lines(notes), tables=limited(part.tables, options.most))
    return Answer("compare", sources, [part], rows if options.most is None else rows.head(options.most), data, notes)


def _of_measurements(sides: tuple[SideFiles, SideFiles], options: Options) -> Outcome:
    """Compare cells of measurements."""
    from warplens.report.comparison.words import NO_GATE
    from warplens.studies.sweeps import cells

    sweep, notes = _load_measurements(sides, options.where)
    with progress("comparing"):
        numbers = cells.compare_cells(sweep, margin=options.margin, level=options.level, fail_on=options.fail_on)
        numbers = replace(numbers, notes=(*notes, *numbers.notes))
    if options.fail_on is not None and (refused := next((note for note in notes if note.code in NO_GATE), None)):
        raise MissingDataError(f"the gate has nothing to go by: {refused.text}")
    part = Part(
        head=cells.cell_head(sweep), verdict=[cells.cell_answer(numbers)], tables=[cells.cell_table(numbers, 0)]
    )
    sources, rows, limit = [side.files[0].name for side in sides], cells.cell_rows(numbers), options.fail_on
    return Outcome(
        _answer(sources, part, numbers.notes, rows, lambda: cells.cell_data(numbers, limit), options),
        document=lambda: cells.cell_document(numbers, limit),
        gate=[cells.cell_gate_line(numbers, limit)] if limit is not None else (),
        failed=limit is not None and bool(numbers.regressions or numbers.broken),
        is_open=limit is not None and bool(numbers.pending),
    )


def _of_counters(sides: tuple[SideFiles, SideFiles], options: Options) -> Outcome:
    """Compare two reports of hardware counters."""
    from warplens.report.comparison.document import counter_document
    from warplens.report.counters.beside import comparison_data, comparison_lines, comparison_tables

    comparison = _compared(side.files[0] for side in sides)
    head, *verdict = comparison_lines(comparison)
    part = Part(head=[head], verdict=verdict, tables=comparison_tables(comparison, limit=0))

    def data() -> dict[str, Any]:
        return {"kind": "counters", "gate": None, **comparison_data(comparison)}

    sources = [comparison.before, comparison.after]
    answer = _answer(sources, part, comparison.notes, comparison.groups, data, options)
    return Outcome(answer, document=lambda: counter_document(comparison))


def _compared(paths: Iterable[Path]) -> CountersComparison:
    from warplens.analysis.counters.comparison import compare_counters

    before, after = map(load_counters, paths)
    with progress("comparing"):
        return compare_counters(before, after)


def _of_traces(sides: tuple[SideFiles, SideFiles], options: Options) -> Outcome:
    """Compare steps of traces."""
    from warplens.answers import comparison_answer
    from warplens.report.comparison.numbers import compare_steps, step_head
    from warplens.report.comparison.words import (
        gate_doubts,
        gate_sentence,
        needed_sentence,
        refusal_line,
        step_answer,
        work_sentence,
    )

    counters = _compared(filter(None, options.counters)) if all(options.counters) else None
    baseline, variant = _load_traces(sides, options.window, options.range_name)
    with progress("comparing"):
        numbers = compare_steps(
            baseline,
            variant,
            margin=options.margin,
            level=options.level,
            fail_on=options.fail_on,
            flops=options.flops,
            counters=counters,
        )
    gate, refused = numbers.regression, numbers.gate_refusal
    if gate is not None and refused is not None:  # for example a step that ran out of memory, which is fast
        raise MissingDataError(refusal_line(refused))
    sentence = gate_sentence(numbers)
    further = (work_sentence(numbers), needed_sentence(numbers))
    answer = comparison_answer(numbers, (baseline, variant))
    if counters is not None:
        from warplens.report.counters.beside import comparison_tables

        answer = replace(answer, tables=(*answer.tables, *comparison_tables(counters, limit=0)))

    def document() -> Document:
        from warplens.report.comparison.document import step_document

        return step_document(numbers)

    verdict = [*step_answer(numbers), *(line for line in further if line is not None)]
    return Outcome(
        answered(answer, Part(head=step_head(numbers), verdict=verdict), options.most),
        document=document,
        gate=[sentence] if sentence is not None else (),
        doubts=gate_doubts(numbers) if gate is not None else (),
        failed=gate is not None and gate.found,
        is_open=gate is not None and not gate.excluded,
    )


#: Largest limit of a gate, as a share; larger ones are typing errors.
_MOST_LIMIT: Final = 100.0

#: Largest confidence for which intervals of a few steps are finite.
_MOST_CONFIDENCE: Final = 0.999999


def _limit(text: str | None) -> str | None:
    """Check the limit before two large profiles are read."""
    if text is not None and ((share := share_in(text)) is None or share > _MOST_LIMIT):
        raise typer.BadParameter(f"{text!r} is no limit: write a percentage, such as 5%, of at most {_MOST_LIMIT:.0%}")
    return text


def _confidence(text: str) -> str:
    if not 0.5 <= given_share(text) <= _MOST_CONFIDENCE:
        most = f"{100 * _MOST_CONFIDENCE:g}%"
        raise typer.BadParameter(f"{text!r} is not a confidence: write a percentage from 50% to {most}, such as 95%")
    return text


def _flops(text: str | None) -> str | None:
    if text is not None:
        _both_flops(text)
    return text


def _both_flops(text: str) -> tuple[float, float]:
    try:
        before, after = (float(part) for part in text.split(","))
    except ValueError:
        before = after = -1.0
    if not (0 < before < float("inf") and 0 < after < float("inf")):
        raise typer.BadParameter(f"{text!r} is not a pair of numbers above zero: write 35.1e9,11.1e9")
    return before, after


def compare(
    baseline: Annotated[
        Path,
        argument(
            "BASELINE", "The baseline: a trace, a folder of repeats, a measurements file, or an Nsight Compute report."
        ),
    ],
    variant: Annotated[Path, argument("VARIANT", "The variant, of the same kind.")],
    fail_on: Annotated[
        str | None,
        option(
            "PERCENT", "Exit with 1 if the variant is certainly slower by more than this: 5% or 0.05.", callback=_limit
        ),
    ] = None,
    fail_on_undecided: Annotated[
        bool,
        flag("--fail-on-undecided", "With --fail-on: exit with 1 as well while that is open."),
    ] = False,
    margin: Annotated[str, share_option("Differences within this count as the same.")] = "2%",
    level: Annotated[
        str, option("PERCENT", "Confidence of the intervals.", callback=_confidence, show_default=True)
    ] = "95%",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    baseline_where: Annotated[
        str | None, option("SETTING=VALUE,…", "Of measurements, only cells with these settings: method=none.")
    ] = None,
    variant_where: Annotated[str | None, option("SETTING=VALUE,…", "The same of the other side.")] = None,
    counters_baseline: Annotated[
        Path | None, option("FILE", "With traces: an Nsight Compute report on the baseline (.ncu-rep or CSV).")
    ] = None,
    counters_variant: Annotated[Path | None, option("FILE", "The same of the variant.")] = None,
    flops: Annotated[
        str | None,
        option(
            "BASELINE,VARIANT",
            "FLOPs per step of each side, where the traces do not show them: 35.1e9,11.1e9.",
            callback=_flops,
        ),
    ] = None,
    output: Annotated[Path | None, documents_option("compare")] = None,
    form: FormatOption = "table",
    limit: LimitOption = None,
) -> None:
    """Why a variant is slower or faster than its baseline, and how certain that is.

    The difference in wall time per step is split into parts that add up exactly. Steps are samples, files of a folder
    are repeats: only repeats are independent of each other. "Undecided" is an answer and does not fail the gate.
    """
    folder = checked_target(output, (baseline, variant), form) if output else None
    options = Options(
        margin=given_share(margin),
        level=round(1 - given_share(level), 9),
        fail_on=None if fail_on is None else share_in(fail_on),
        fail_on_undecided=fail_on_undecided,
        window=window,
        range_name=range_name,
        where=(baseline_where, variant_where),
        counters=(counters_baseline, counters_variant),
        flops=None if flops is None else _both_flops(flops),
        most=most_rows(form, limit),
    )
    sides = find_sides(baseline, variant)
    _check(sides[0].content, options)
    find = {"a trace": _of_traces, "measurements": _of_measurements, "counters of Nsight Compute": _of_counters}
    outcome = find[sides[0].content](sides, options)
    give(outcome.answer, form, folder, outcome.document)
    for line in outcome.doubts if State.quiet else ():  # otherwise printed with the answer
        note(line, always=True)
    if outcome.failed or (outcome.is_open and options.fail_on_undecided):
        # Printed even with --quiet: it explains a failed run in a log.
        from warplens.report.comparison.words import NOT_A_FAILURE

        complain("; ".join(outcome.gate).replace(NOT_A_FAILURE, ""))
        raise typer.Exit(GATE_FAILED)
    for line in outcome.gate:
        note(line, always=outcome.is_open)


def _check(content: Content, options: Options) -> None:
    """Refuse options that do not apply to sides of this kind."""
    if options.fail_on_undecided and options.fail_on is None:
        raise UsageError("--fail-on-undecided is about the gate of --fail-on: give its limit, such as --fail-on 5%")
    if content != "measurements" and any(options.where):
        raise UsageError(f"--baseline-where and --variant-where choose cells of measurements; each side is {content}")
    if content != "a trace" and (options.window != "steady" or options.range_name is not None):
        raise UsageError(f"--window and --range choose a part of a trace; each side is {content}")
    if content != "a trace" and any(options.counters):
        raise UsageError(f"--counters-baseline and --counters-variant stand beside traces; each side is {content}")
    if content != "a trace" and options.flops is not None:
        raise UsageError(f"--flops tells what traces cannot; each side is {content}")
    if sum(path is not None for path in options.counters) == 1:
        raise UsageError("counters are compared with counters: give both --counters-baseline and --counters-variant")
    if content == "counters of Nsight Compute" and options.fail_on is not None:
        raise UsageError(
            "--fail-on needs repeated step times, which reports of Nsight Compute lack: gate on traces or measurements"
        )
