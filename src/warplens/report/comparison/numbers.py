"""Two sides of traces: all numbers of their comparison, computed once, and its kernels by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from warplens.analysis.counters.comparison import Comparison as CountersComparison
from warplens.analysis.quality import SAME_KERNELS_SHARE
from warplens.compare.decisions import Comparison, Regression, compare, regression
from warplens.compare.difference import SAME_MARGIN, Explanation, StepDifference, explanation, step_difference
from warplens.compare.host import SideLaunches
from warplens.compare.many import many_differences
from warplens.compare.notes import aborted_notes
from warplens.compare.shift import ORDER_FROM, Samples
from warplens.compare.side import Side, gpu_work_samples, step_samples
from warplens.compare.work import KERNEL_CHANGES, KernelChanges, kernel_changes
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.schema import Float64s
from warplens.profile.trace import worst_first
from warplens.report import text as fmt
from warplens.report.comparison.words import (
    forbids_gate,
    gate_sentence,
    hides_kernels,
    hides_on_one_side,
    needed_text,
    step_answer,
)
from warplens.report.counters.beside import comparison_data
from warplens.report.jsonout import named, window_data

#: Notes on a comparison, and the note on a single file that says the same under another code.
_SAME_MATTER: Final = {"hidden-graphs": "graph-level-tracing", "aborted-steps": "aborted-step"}


@dataclass(frozen=True, eq=False)
class TraceFiles:
    """One side of a comparison. Each file is a block of samples, since only files are independent of each other."""

    name: str  #: display name
    files: tuple[Side, ...]  #: each file with its window, without copies; at least one
    notes: tuple[tuple[Note, ...], ...]  #: quality notes of each file
    copies: tuple[str, ...] = ()  #: sources of files with the same step times as one of `files`
    #: whether the files are in the order of their recording, and if so, whether in turns with the other side's
    order: Literal["unknown", "known", "turns"] = "unknown"
    #: whether the time between steps counts, of which both sides decide together; None if each file decides for itself
    with_gaps: bool | None = None

    @classmethod
    def of(cls, name: str, files: Sequence[Side], notes: Sequence[tuple[Note, ...]]) -> TraceFiles:
        """A side of these files without copies: a copy is not a repeat, and would overstate the certainty."""
        kept: list[Side] = []
        kept_notes: list[tuple[Note, ...]] = []
        seen: set[bytes] = set()
        copies = []
        for side, side_notes in zip(files, notes, strict=True):
            times = b"".join(block.tobytes() for block in step_samples(side).blocks)
            if times in seen:
                copies.append(side.timeline.trace.capture.source)
            else:
                seen.add(times)
                kept.append(side)
                kept_notes.append(side_notes)
        return cls(name, tuple(kept), tuple(kept_notes), tuple(copies))

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the files."""
        return tuple(side.timeline.trace.capture.source for side in self.files)

    def samples(self) -> Samples:
        """Step times, one block per file."""
        steps = (step_samples(file, with_gaps=self.with_gaps) for file in self.files)
        return self._samples([block for samples in steps for block in samples.blocks])

    def gpu_work_samples(self) -> Samples | None:
        """GPU computing time of each step, one block per file; None if a file has a step without any."""
        blocks: list[Float64s] = []
        for file in self.files:
            samples = gpu_work_samples(file, with_gaps=self.with_gaps)
            if samples is None:
                return None
            blocks += samples.blocks
        return self._samples(blocks)

    def _samples(self, blocks: Sequence[Float64s]) -> Samples:
        """One block per file. Fewer than five turns have too few degrees of freedom to be compared turn by turn."""
        paired = self.order == "turns" and len(blocks) >= ORDER_FROM
        return Samples(tuple(blocks), paired=paired, ordered=self.order == "known")

    @cached_property
    def typical(self) -> Side:
        """The file whose median step time is nearest to that of the side; tables show this file."""
        samples = self.samples()
        distances = [abs(float(np.median(block)) - samples.median_ns) for block in samples.blocks]
        return self.files[distances.index(min(distances))]


@dataclass(frozen=True, eq=False)
class StepNumbers:
    """All results of comparing two sides of traces."""

    baseline: TraceFiles
    variant: TraceFiles
    samples: tuple[Samples, Samples]  #: step times of both sides
    difference: StepDifference  #: between the typical files of the sides
    why: Explanation
    comparison: Comparison  #: verdict and interval, from all files
    #: the same of the time in which the GPU computed in each step, with a margin of 2 % or more; None for a range, if a
    #: step computes nothing, and if CUDA graphs hide kernels of one side alone
    gpu_work: Comparison | None
    regression: Regression | None  #: result of the gate, valid only without a `gate_refusal`; None without a gate
    kernels: pl.DataFrame  #: `KERNEL_GROUPS`
    counters: CountersComparison | None  #: hardware counters of both sides, if given
    notes: tuple[Note, ...]  #: limits of the comparison, the most severe first

    @property
    def gate_refusal(self) -> Note | None:
        """The note that forbids a gate on these sides, whatever `regression` says; None if a gate may judge."""
        return forbids_gate(self)


def compare_steps(
    baseline: TraceFiles,
    variant: TraceFiles,
    *,
    margin: float,
    level: float,
    fail_on: float | None = None,
    flops: tuple[float, float] | None = None,
    counters: CountersComparison | None = None,
) -> StepNumbers:
    """Compare two sides of traces.

    Args:
        baseline, variant: the sides.
        margin: differences of at most this share count as none.
        level: 0.05 for 95 % confidence.
        fail_on: the gate's limit, a share; None without a gate.
        flops: floating-point operations per step of each side, if known from elsewhere.
        counters: comparison of hardware counters of both sides.
    """
    with_gaps = any(file.has_gaps for side in (baseline, variant) for file in side.files)
    baseline, variant = replace(baseline, with_gaps=with_gaps), replace(variant, with_gaps=with_gaps)
    samples = baseline.samples(), variant.samples()
    comparison = compare(*samples, margin=margin, level=level)
    difference = step_difference(baseline.typical, variant.typical, flops=flops)
    notes = _notes(baseline, variant, difference, comparison)
    blocked = any(note.level is NoteLevel.BLOCKING for note in notes)
    return StepNumbers(
        baseline=baseline,
        variant=variant,
        samples=samples,
        difference=difference,
        why=explanation(difference),
        comparison=comparison,
        gpu_work=None if hides_on_one_side(difference) else _gpu_work(baseline, variant, margin, level),
        regression=regression(comparison, fail_on) if fail_on is not None else None,
        kernels=kernel_groups(
            difference.kernels,
            _other_runs(baseline, variant),
            hidden=hides_kernels(difference) or blocked,
            margin=margin,
            level=level,
        ),
        counters=counters,
        notes=notes,
    )


def _gpu_work(baseline: TraceFiles, variant: TraceFiles, margin: float, level: float) -> Comparison | None:
    """The comparison of the GPU's computing times.

    Within a run they vary by a few thousandths, between runs by more (clocks): a smaller margin than that of the
    explanation would call equal programs different.
    """
    margin = max(margin, SAME_MARGIN)
    before, after = baseline.gpu_work_samples(), variant.gpu_work_samples()
    return None if before is None or after is None else compare(before, after, margin=margin, level=level)


def _other_runs(baseline: TraceFiles, variant: TraceFiles) -> tuple[tuple[Side, Side], ...]:
    """Pairs of the files that are not typical, each in at most one pair; () if a side has a single file."""
    before, after = ([file for file in side.files if file is not side.typical] for side in (baseline, variant))
    return tuple(zip(before, after, strict=False))


def _notes(
    baseline: TraceFiles, variant: TraceFiles, difference: StepDifference, comparison: Comparison
) -> tuple[Note, ...]:
    """Notes on the comparison, then the notes on each side's files without those that repeat them; by severity."""
    notes = [*difference.notes, *_order_notes(baseline, variant), *_typical_notes(baseline, variant)]
    known = {note.code for note in notes}
    notes += (note for note in _other_files_notes(baseline, variant) if note.code not in known)
    notes += (Note("comparison-doubt", NoteLevel.WARNING, doubt) for doubt in comparison.doubts)
    covered = {note.code for note in difference.notes}
    covered |= {_SAME_MATTER[code] for code in covered & _SAME_MATTER.keys()}
    for side in (baseline, variant):
        notes += (note for note in _of_side(side) if note.code not in covered)
    return worst_first(notes)


def _order_notes(*sides: TraceFiles) -> Iterator[Note]:
    if all(len(side.files) > 1 and side.order == "unknown" for side in sides):
        text = (
            "The files do not tell in which order they were recorded: if the sides were not taken in turns, what "
            "changed on the machine in between looks like a difference"
        )
        yield Note("comparison-doubt", NoteLevel.WARNING, text)


def _typical_notes(*sides: TraceFiles) -> Iterator[Note]:
    """Notes on sides of several files: copies, the typical file, and files that are no repeats of one program."""
    for side in sides:
        if side.copies:
            text = (
                f"{side.name}: {', '.join(side.copies)} {'holds' if len(side.copies) == 1 else 'hold'} the same step "
                "times as another of its files: a copy is no repeat, and was left out"
            )
            yield Note("copied-repeat", NoteLevel.WARNING, text, "Run the program again for each repeat")
        if len(side.files) > 1:
            typical = side.typical.timeline.trace.capture.source
            text = (
                f"{side.name}: of {len(side.files)} files, tables and parts are those of {typical}, whose median step "
                "is nearest to that of all; the verdict is from all"
            )
            yield Note("typical-repeat", NoteLevel.INFO, text)
            counts = [file.work.height / file.repeats for file in side.files]
            if max(counts) - min(counts) > SAME_KERNELS_SHARE * float(np.median(counts)):
                text = (
                    f"{side.name}: a step of its files launches {min(counts):.0f} to {max(counts):.0f} pieces of work: "
                    "they are not repeats of one program, and the verdict mixes them"
                )
                yield Note("unlike-repeats", NoteLevel.WARNING, text, "Put repeats of one program alone in the folder")


def _other_files_notes(*sides: TraceFiles) -> Iterator[Note]:
    """Notes on files that are not typical: on other GPUs or by other profilers, or with steps that did not finish."""
    files = [file for side in sides for file in side.files]
    if len(files) == len(sides):
        return
    captures = [file.timeline.trace.capture for file in files]
    gpus = sorted({device.name for capture in captures for device in capture.devices})
    sets = {frozenset(device.name for device in capture.devices) for capture in captures} - {frozenset()}
    if len(sets) > 1:
        text = f"The files were recorded on different GPUs: {', '.join(gpus)}"
        yield Note("different-gpu", NoteLevel.WARNING, text, "Record all files on the same GPU")
    tools = sorted({capture.tool for capture in captures})
    if len(tools) > 1:
        text = f"The files were recorded with different profilers ({', '.join(tools)}), each of which adds other times"
        yield Note("different-tool", NoteLevel.WARNING, text, "Record all files with the same tool and options")
    sources = (replace(file, name=file.timeline.trace.capture.source) for file in files)
    yield from islice(aborted_notes(*sources), 1)


def _of_side(side: TraceFiles) -> Iterator[Note]:
    seen: dict[tuple[str, str], tuple[Note, list[str]]] = {}
    for source, notes in zip(side.sources, side.notes, strict=True):
        for note in notes:
            seen.setdefault((note.code, note.text), (note, []))[1].append(source)
    for note, sources in seen.values():
        name = side.name if len(sources) == len(side.files) else ", ".join(sources)
        yield Note(note.code, note.level, f"{name}: {note.text}", note.remedy)


def step_head(numbers: StepNumbers) -> list[str]:
    """One line per side: name, files, tool and window."""
    lines = []
    for role, side in (("baseline", numbers.baseline), ("variant", numbers.variant)):
        typical = side.typical
        capture = typical.timeline.trace.capture
        files = f" ({len(side.files)} files)" if len(side.files) > 1 else ""
        window = f"window: {fmt.duration(typical.window.duration_ns)}, {typical.window.how}"
        if typical.window.range_name is not None:
            window += f", range {fmt.printable(typical.window.range_name)}"
        lines.append(f"{role}: {fmt.printable(side.name)}{files} · {fmt.recorded_with(capture)} · {window}")
    return lines


def step_data(numbers: StepNumbers) -> dict[str, Any]:
    """All numbers for JSON, exact; tables under `rows`. Changes are variant minus baseline, per step."""
    difference, wall = numbers.difference, numbers.difference.wall
    return {
        "kind": "traces",
        "answer": " ".join(step_answer(numbers)),
        "per": difference.per,
        "baseline": _side(numbers.baseline, numbers.samples[0], difference.launches.baseline),
        "variant": _side(numbers.variant, numbers.samples[1], difference.launches.variant),
        "verdict": verdict_data(numbers.comparison),
        "gpu_work": None if numbers.gpu_work is None else verdict_data(numbers.gpu_work),
        "gate": _gate(numbers),
        "explanation": {**vars(numbers.why), "is_paradox": numbers.why.is_paradox},
        "wall": {
            "baseline_ns": float(wall.baseline.wall_ns),
            "variant_ns": float(wall.variant.wall_ns),
            "change_ns": float(wall.change_ns),
            "residual_ns": float(wall.residual_ns),
        },
        "rows": wall.frame(),
        "kernels": {"rows": numbers.kernels},
        "kernel_places": {"rows": difference.kernels.table},
        "ranges": {"rows": difference.ranges},
        "phases": {"rows": difference.phases},
        "transfers": {"rows": difference.transfers},
        "launch_costs": named(difference.launches, "calls_change added_cost_ns pace_cost_ns"),
        "work": {**vars(difference.work), "flops_ratio": difference.work.flops_ratio},
        "counters": comparison_data(numbers.counters) if numbers.counters is not None else None,
    }


def _side(side: TraceFiles, samples: Samples, launches: SideLaunches) -> dict[str, Any]:
    return {
        "name": side.name,
        "sources": list(side.sources),
        "typical": side.typical.timeline.trace.capture.source,
        "windows": [window_data(file.window) for file in side.files],
        "step_times_ns": [block.tolist() for block in samples.blocks],
        "launches": {
            **{name: item for name, item in vars(launches).items() if name != "pace"},
            **named(launches, "host_ns_per_launch queue_empty_share behind_share"),
        },
    }


def verdict_data(comparison: Comparison) -> dict[str, Any]:
    """The JSON data of a verdict."""
    figures = {name: item for name, item in vars(comparison).items() if name not in ("shift", "means", "cycle")}
    return {**figures, "decided_by": needed_text(comparison)}


def _gate(numbers: StepNumbers) -> dict[str, Any] | None:
    gate = numbers.regression
    if gate is None:
        return None
    refused = numbers.gate_refusal
    judged = refused is None
    return {
        "fail_on": gate.fail_on,
        "found": judged and gate.found,
        "excluded": judged and gate.excluded,
        "needed_blocks": gate.needed_blocks if judged else None,
        "refused": None if refused is None else refused.code,
        "sentence": gate_sentence(numbers),
    }


KERNEL_GROUPS: Final = table(
    "comparison: kernels by name",
    "One kernel, or one that took another's place. `warplens compare`; `data.kernels.rows`.",
    column("change", title="What"),
    "name",
    KERNEL_CHANGES.only("baseline_full_name variant_full_name").columns,
    "category places",
    KERNEL_CHANGES.only("baseline_launches_per_step variant_launches_per_step").columns,
    "baseline_ns_per_step variant_ns_per_step change_ns_per_step",
    column(
        "low_ns",
        dtype=pl.Float64,
        help="lower end of the interval of the change; null where nothing shows how much the times vary",
    ),
    column("high_ns", dtype=pl.Float64),
    "adjusted_p verdict decided",
)


def kernel_groups(
    changes: KernelChanges, further: Sequence[tuple[Side, Side]], *, hidden: bool, margin: float, level: float
) -> pl.DataFrame:
    """The matched kernels by name (`KERNEL_GROUPS`), with the verdict on their difference in time.

    Args:
        further: further pairs of files of the two sides; with them, samples are files instead of the steps of one pair.
        hidden: whether CUDA graphs hide kernels, or the sides cannot be compared. If so, kernels that only one side
            shows are undecided, since the other side may have them in its graphs, or unrecorded.
    """
    groups = _grouped(changes.table)
    members = groups["rows"].to_list()
    before, after = (_sums(matrix, members) for matrix in changes.samples())
    if further:
        before, after = _over_files(groups, (before, after), further)
    files = np.arange(len(further) + 1) if further else None
    differences = many_differences(
        before, after, baseline_blocks=files, variant_blocks=files, margin=margin, level=level
    ).select("low_ns", "high_ns", "adjusted_p", pl.col("verdict").cast(pl.String))
    one_sided, differs = pl.col("change").is_in(["added", "removed"]), pl.col("verdict").is_in(["faster", "slower"])
    # A kernel that does not occur in every step may be missing on the other side by chance.
    in_each_step = pl.max_horizontal("baseline_launches_per_step", "variant_launches_per_step") >= 1
    decided = differs & ~one_sided if hidden else differs | (one_sided & in_each_step)
    finite = [pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in ("low_ns", "high_ns")]
    rows = pl.concat([groups, differences], how="horizontal").with_columns(*finite, decided.alias("decided"))
    return KERNEL_GROUPS.conform(rows)


def _grouped(table: pl.DataFrame) -> pl.DataFrame:
    """The changes of kernels by pair of names, the largest change of time first."""
    sums = [
        *(f"{side}_{quantity}_per_step" for quantity in ("launches", "ns") for side in ("baseline", "variant")),
        "change_ns_per_step",
    ]
    # Kept and changed launches of one pair of kernels share a row: by name, both sides do the same work.
    both = pl.col("baseline_full_name").is_not_null() & pl.col("variant_full_name").is_not_null()
    changed = (pl.col("change") == "changed").any()
    return (
        table.with_row_index("row")
        .with_columns(both.alias("both"))
        .group_by("both", "baseline_full_name", "variant_full_name", maintain_order=True)
        .agg(
            pl.when(changed)
            .then(pl.lit("changed"))
            .otherwise(pl.col("change").first().cast(pl.String))
            .alias("change"),
            pl.col("name", "category").first(),
            pl.len().cast(pl.Int64).alias("places"),
            pl.col(sums).sum(),
            pl.col("row").alias("rows"),
        )
        .sort(pl.col("change_ns_per_step").abs(), descending=True, maintain_order=True)
    )


def _sums(matrix: Float64s, members: list[list[int]]) -> Float64s:
    """The time of each group in each step: shape (steps, groups)."""
    if not members:
        return np.zeros((matrix.shape[0], 0))
    return np.stack([matrix[:, rows].sum(axis=1) for rows in members], axis=1)


def _over_files(
    groups: pl.DataFrame, times: tuple[Float64s, Float64s], further: Sequence[tuple[Side, Side]]
) -> tuple[Float64s, Float64s]:
    """The mean step times of each file, shape (files, groups); 0 for groups that a file lacks."""
    rows = [[matrix.mean(axis=0) for matrix in times]]
    keys = list(groups.select("baseline_full_name", "variant_full_name").iter_rows())
    for before, after in further:
        other = _grouped(kernel_changes(before, after).table)
        times_by_key = {
            (first, second): mean_ns
            for first, second, *mean_ns in other.select(
                "baseline_full_name", "variant_full_name", "baseline_ns_per_step", "variant_ns_per_step"
            ).iter_rows()
        }
        rows.append([np.array([times_by_key.get(key, (0.0, 0.0))[side] for key in keys]) for side in (0, 1)])
    return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
