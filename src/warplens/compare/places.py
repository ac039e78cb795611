"""GPU work by place in the program: the path of annotated ranges around its launch, below the range of the step.

The ranges of two sides are matched by these paths. Ranges around a step (an epoch, a profiler's numbered step) and the
step's own range do not identify a place in the program, and are left out, as are operators of a framework, which only
one of the two tools may have recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.frames import sum_by
from warplens.analysis.phases import phase_of_work
from warplens.analysis.quality import HIDDEN_SHARE, SAME_KERNELS_SHARE, STEPS_FOR_SPREAD, aborted_steps
from warplens.analysis.streams import graph_summary
from warplens.analysis.trees import NO_RANGE, is_operator, name_paths, nearest
from warplens.analysis.window import NO_PHASE, PHASES, generic_name, is_step_name, plain_range_name
from warplens.compare import SIDES
from warplens.compare.host import range_times
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import both_sides, table
from warplens.profile.schema import Column, Int64s, name_categories
from warplens.profile.trace import worst_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.compare.difference import WallSplit
    from warplens.compare.host import Side
    from warplens.compare.work import KernelChanges


Path: TypeAlias = tuple[str, ...]

#: Separates the names of a path as text.
SEPARATOR: Final = " / "


@dataclass(frozen=True, eq=False)
class RangePaths:
    """The paths of ranges of one profile."""

    paths: tuple[Path, ...]  #: the distinct paths; the first is empty, for work outside all ranges but the step's
    number: Int64s  #: for each row of `Trace.ranges` the index of its path; the last entry is for "no range"

    @property
    def merged(self) -> tuple[Path, ...]:
        """The paths with numbers replaced by `N`, so that the layers of a model are one place."""
        return tuple(tuple(generic_name(name) for name in path) for path in self.paths)

    def of_work(self, work: pl.DataFrame) -> Int64s:
        """The index of the path of each row of GPU work."""
        numbers: Int64s = self.number[work["range"].fill_null(NO_RANGE).to_numpy()]
        return numbers


def range_paths(timeline: Timeline) -> RangePaths:
    """The paths of all ranges of a profile."""
    ranges = timeline.trace.ranges
    if not ranges.height:
        return RangePaths(((),), np.zeros(1, dtype=np.int64))
    step_name = timeline.steps.name
    texts = [_text(name, step_name) for name in name_categories(ranges["name"])]
    distinct = list(dict.fromkeys(texts))
    position = {text: number for number, text in enumerate(distinct)}
    code = np.array([position[text] for text in texts], dtype=np.int64)[ranges["name"].to_physical().to_numpy()]
    annotated = ~is_operator(ranges)
    parent = nearest(timeline.forest.parent, annotated, timeline.forest.parent)
    tree = name_paths(code, np.flatnonzero(annotated), parent[annotated])
    full: list[Path] = []  # parents precede their children
    for above, name in zip(tree.parent.tolist(), tree.code.tolist(), strict=True):
        full.append((*(full[above] if above != NO_RANGE else ()), distinct[name]))
    paths: dict[Path, int] = {(): 0}
    numbers = np.array([paths.setdefault(_below_step(path, step_name), len(paths)) for path in full], dtype=np.int64)
    number = np.zeros(ranges.height + 1, dtype=np.int64)
    number[np.flatnonzero(annotated)] = numbers[tree.path]
    annotation = nearest(timeline.forest.parent, annotated, np.arange(ranges.height))
    number[:-1] = number[annotation]  # work of an operator belongs to the annotation around it
    return RangePaths(tuple(paths), number)


def _text(name: str, step_name: str | None) -> str:
    return step_name if step_name is not None and generic_name(name) == step_name else plain_range_name(name)


def _below_step(path: Path, step_name: str | None) -> Path:
    of_step = [name == step_name or is_step_name(generic_name(name)) for name in path]
    return path[len(path) - of_step[::-1].index(True) :] if any(of_step) else path


#: Summed durations of the GPU work of all steps (`_ns`, exact) and per step. `own` excludes inner ranges; own times sum
#: to the GPU time of the side. A range that a side lacks has 0.
RANGE_CHANGES: Final = table(
    "comparison: ranges",
    "One path of ranges below the step; the first row is the step. `warplens compare`; `data.ranges.rows`.",
    "path name depth",
    Column("in", pl.String, "which sides have work there: `both`, `baseline`, `variant`"),
    "baseline_ns variant_ns",
    both_sides("own_ns", pl.Int64, "GPU time in all steps, without ranges inside"),
    both_sides("kernels", pl.Int64, "kernels in all steps"),
    "baseline_ns_per_step variant_ns_per_step change_ns_per_step",
    Column("own_change_ns_per_step", pl.Float64, "the same without ranges inside", title="of it, own"),
    both_sides("kernels_per_step", pl.Float64, "kernels of a step", title="Kernels", kind="count"),
    name="the last of them",
    depth="how many",
    baseline_ns="GPU time in all steps, with ranges inside, of the baseline",
    variant_ns="GPU time in all steps, with ranges inside, of the variant",
    baseline_ns_per_step="GPU time of a step, with ranges inside, of the baseline",
    variant_ns_per_step="GPU time of a step, with ranges inside, of the variant",
)

PHASE_CHANGES: Final = table(
    "comparison: phases",
    "One phase of a training step. `warplens compare`; `data.phases.rows`.",
    "phase baseline_ns variant_ns baseline_ns_per_step variant_ns_per_step change_ns_per_step",
)


def range_changes(baseline: Side, variant: Side, *, merged: bool = False) -> pl.DataFrame:
    """GPU time and kernels of each annotated range on both sides (`RANGE_CHANGES`), matched by path of names.

    With `merged`, names that differ only in numbers are one (`block_3` and `block_4` are `block_N`).
    """
    own_times = [_own(side, merged) for side in (baseline, variant)]
    paths = dict.fromkeys(prefix for by_path in own_times for path in by_path for prefix in _prefixes(path))
    total: dict[Path, list[int]] = {path: [0, 0, 0, 0] for path in paths}
    for side, by_path in enumerate(own_times):
        for path, (time_ns, kernels) in by_path.items():
            for prefix in _prefixes(path):
                total[prefix][side] += time_ns
                total[prefix][side + 2] += kernels
    repeats = (baseline.repeats, variant.repeats)
    rows = []
    for path in _tree_order(total, repeats):
        total_ns, launched = total[path][:2], total[path][2:]
        own_ns = [by_path.get(path, (0, 0))[0] for by_path in own_times]
        present = [bool(total_ns[side] or launched[side]) for side in (0, 1)]
        rows.append(
            {
                "path": SEPARATOR.join(path),
                "name": path[-1] if path else "",
                "depth": len(path),
                "in": "both" if all(present) else "variant" if present[1] else "baseline",
                **_by_side("ns", total_ns),
                **_by_side("own_ns", own_ns),
                **_by_side("kernels", launched),
                **_by_side("ns_per_step", [total_ns[side] / repeats[side] for side in (0, 1)]),
                "change_ns_per_step": _change(total_ns, repeats),
                "own_change_ns_per_step": _change(own_ns, repeats),
                **_by_side("kernels_per_step", [launched[side] / repeats[side] for side in (0, 1)]),
            }
        )
    return pl.DataFrame(rows, schema=RANGE_CHANGES.schema)


def phase_changes(baseline: Side, variant: Side) -> pl.DataFrame:
    """GPU time of forward, backward and optimizer on both sides (`PHASE_CHANGES`).

    Empty if neither side has work in a phase.
    """
    times = [_by_phase(side) for side in (baseline, variant)]
    repeats = (baseline.repeats, variant.repeats)
    if not any(by_phase[phase] for by_phase in times for phase in PHASES):
        return PHASE_CHANGES.empty()
    rows = []
    for phase in (*PHASES, NO_PHASE):
        time_ns = [by_phase[phase] for by_phase in times]
        if any(time_ns):
            per_step = [time_ns[side] / repeats[side] for side in (0, 1)]
            rows.append(
                {
                    "phase": phase,
                    **_by_side("ns", time_ns),
                    **_by_side("ns_per_step", per_step),
                    "change_ns_per_step": _change(time_ns, repeats),
                }
            )
    return PHASE_CHANGES.conform(pl.DataFrame(rows))


def _own(side: Side, merged: bool) -> dict[Path, tuple[int, int]]:
    """Summed duration and number of kernels of the work directly in each path."""
    places = range_paths(side.timeline)
    number = places.of_work(side.work)
    times = sum_by(number, (side.work["end_ns"] - side.work["start_ns"]).to_numpy(), len(places.paths))
    kernels = np.bincount(number[(side.work["kind"] == "kernel").to_numpy()], minlength=len(places.paths))
    items = np.bincount(number, minlength=len(places.paths))
    by_path: dict[Path, tuple[int, int]] = {(): (0, 0)}
    for row, path in enumerate(places.merged if merged else places.paths):
        if items[row]:
            time_ns, count = by_path.get(path, (0, 0))
            by_path[path] = (time_ns + int(times[row]), count + int(kernels[row]))
    return by_path


def _by_phase(side: Side) -> dict[str, int]:
    phases = phase_of_work(side.timeline)[side.work_rows]
    names = name_categories(phases).to_list()
    durations = (side.work["end_ns"] - side.work["start_ns"]).to_numpy()
    sums = sum_by(phases.to_physical().to_numpy().astype(np.int64), durations, len(names))
    return {name: int(time_ns) for name, time_ns in zip(names, sums, strict=True)}


def _prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(len(path) + 1)]


def _tree_order(total: dict[Path, list[int]], repeats: tuple[int, int]) -> list[Path]:
    """Parents before their children, siblings with the largest change first."""

    def rank(path: Path) -> tuple[tuple[float, str], ...]:
        return tuple((-abs(_change(total[prefix][:2], repeats)), prefix[-1]) for prefix in _prefixes(path)[1:])

    return sorted(total, key=rank)


def _by_side(column: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{side}_{column}": value for side, value in zip(SIDES, values, strict=True)}


def _change(totals: list[int], repeats: tuple[int, int]) -> float:
    # One division of exact integers, so that the difference of equal sides is exactly 0.
    return (totals[1] * repeats[0] - totals[0] * repeats[1]) / (repeats[0] * repeats[1])


#: Work between steps below this share of the GPU time is not reported.
_BETWEEN_SHARE: Final = 0.01

#: If less than this share of the kernel time is matched by name, the sides run different programs.
_MATCHED_SHARE: Final = 0.5

#: Steps of other names, or guessed on both sides, that differ by this factor are different parts of a program.
_OTHER_PARTS: Final = 1.8


def comparability_notes(baseline: Side, variant: Side, wall: WallSplit, kernels: KernelChanges) -> tuple[Note, ...]:
    """Notes on the comparability of two sides, the most severe first."""
    notes = (
        *_without_work(baseline, variant),
        *aborted_notes(baseline, variant),
        *_environment(baseline, variant),
        *_same_recording(baseline, variant),
        *_repetitions(baseline, variant),
        *_hidden(baseline, variant),
        *_alike(baseline, variant, kernels),
        *_profiled(baseline, variant),
        *_devices(baseline, variant),
        *_between(baseline, variant, wall),
    )
    return worst_first(notes)


def _without_work(*sides: Side) -> Iterator[Note]:
    for side in sides:
        if not side.work.height:
            text = f"{side.name} has no GPU work in its window: nothing of the other side has a counterpart"
            yield Note("no-gpu-work", NoteLevel.BLOCKING, text, "Record with CUDA tracing, or choose another window")


def aborted_notes(*sides: Side) -> Iterator[Note]:
    """Notes on sides with steps that did not finish."""
    for side in sides:
        aborted = aborted_steps(side.timeline, side.window)
        if aborted:
            reason = aborted[0].reasons[0]
            text = (
                f"{side.name}: {len(aborted)} of {side.repeats} steps did not finish ({reason}); a step that stops "
                "early looks fast"
            )
            yield Note("aborted-steps", NoteLevel.BLOCKING, text, "Compare windows whose steps finished")


def _environment(baseline: Side, variant: Side) -> Iterator[Note]:
    """Notes on GPUs, profilers and recorded tables that are not the same on both sides."""
    before, after = baseline.timeline.trace.capture, variant.timeline.trace.capture
    names = [sorted({device.name for device in capture.devices}) for capture in (before, after)]
    if names[0] and names[1] and names[0] != names[1]:
        text = f"The GPUs differ: {', '.join(names[0])} and {', '.join(names[1])}"
        yield Note("different-gpu", NoteLevel.WARNING, text, "Record both sides on the same GPU")
    elif bool(names[0]) != bool(names[1]):
        known, unknown = (baseline, variant) if names[0] else (variant, baseline)
        text = f"{known.name} ran on {', '.join(names[0] or names[1])}; {unknown.name} does not name its GPU"
        yield Note("unknown-gpu", NoteLevel.WARNING, text)
    if before.tool != after.tool:
        text = (
            f"The profilers differ ({before.tool} and {after.tool}): each adds a different time to a launch, so the "
            "times of the host and idle times do not compare"
        )
        yield Note("different-tool", NoteLevel.WARNING, text, "Record both sides with the same tool and options")
    elif before.tool_version != after.tool_version:
        text = (
            f"{before.tool} has version {before.tool_version or 'unknown'} on one side and "
            f"{after.tool_version or 'unknown'} on the other"
        )
        yield Note("different-tool-version", NoteLevel.INFO, text)
    missing = sorted({"api_calls", "ranges"} & (before.recorded ^ after.recorded))
    if missing:
        text = f"Only one side recorded {', '.join(missing)}: what follows from it is known for that side only"
        yield Note("different-tables", NoteLevel.WARNING, text, "Record both sides with the same options")


def _same_recording(baseline: Side, variant: Side) -> Iterator[Note]:
    # Two runs never agree in the begin and end of all work to the nanosecond.
    times = [side.work.select("start_ns", "end_ns") for side in (baseline, variant)]
    if times[0].height and times[0].equals(times[1]):
        text = "Both sides are one recording: it is compared with itself"
        yield Note("same-recording", NoteLevel.WARNING, text, "Give another run as the variant, or another window")


def _repetitions(baseline: Side, variant: Side) -> Iterator[Note]:
    """Notes on steps: none, guessed ones, too few, or not the same ones on both sides."""
    without = [side.name for side in (baseline, variant) if not side.has_steps]
    if len(without) == 2:
        text = (
            "Neither window is divided into steps: numbers are per window, which compare only if both sides did the "
            "same number of repetitions"
        )
        yield Note("no-steps", NoteLevel.WARNING, text, "Annotate steps, or choose windows of the same work")
    elif without:
        text = f"{without[0]} is not divided into steps: its whole window stands against one step of the other side"
        remedy = "Annotate steps on both sides, or choose a window that holds one step (--window)"
        yield Note("steps-on-one-side", NoteLevel.BLOCKING, text, remedy)
    else:
        guessed = [side.name for side in (baseline, variant) if side.timeline.steps.source == "sequence"]
        if guessed:
            text = (
                f"The steps of {' and '.join(guessed)} are the shortest sequence of kernels that repeats, which may "
                "be a part of a step, or several; the other side's may be another part"
            )
            yield Note("guessed-steps", NoteLevel.WARNING, text, "Annotate steps on both sides")
        yield from _other_parts(baseline, variant, guessed)
        if baseline.repeats != variant.repeats:
            text = f"{baseline.repeats} and {variant.repeats} steps: numbers are means per step"
            yield Note("different-steps", NoteLevel.INFO, text)
        few = [f"{side.name} {side.repeats}" for side in (baseline, variant) if side.repeats < STEPS_FOR_SPREAD]
        if few:
            text = f"Too few steps to know their spread ({', '.join(few)})"
            yield Note("few-steps", NoteLevel.WARNING, text, f"Record {STEPS_FOR_SPREAD} steps or more, after warm-up")
    if baseline.window.range_name != variant.window.range_name:
        text = (
            f"One side counts {baseline.window.range_name or 'all work'}, the other "
            f"{variant.window.range_name or 'all work'}"
        )
        yield Note("different-ranges", NoteLevel.WARNING, text)
    elif (name := baseline.window.range_name) is not None and not without:
        yield from _in_some_steps(baseline, variant, name)


def _other_parts(baseline: Side, variant: Side, guessed: Sequence[str]) -> Iterator[Note]:
    """A note on steps that are different parts of a program: guessed, or named otherwise, and with other work.

    Args:
        guessed: names of the sides whose steps are not annotated.
    """
    names = [side.timeline.steps.name for side in (baseline, variant)]
    pieces = [side.work.height / side.repeats for side in (baseline, variant)]
    if not all(pieces):
        return
    factor = max(pieces) / min(pieces)
    if len(guessed) == 1 and factor > 1 + SAME_KERNELS_SHARE:
        why = f"the steps of {guessed[0]} are guessed"
    elif len(guessed) == 2 and factor >= _OTHER_PARTS:
        why = "the steps of both are guessed"
    elif not guessed and names[0] != names[1] and factor >= _OTHER_PARTS:
        why = f"the one is called {names[0]}, the other {names[1]}"
    else:
        return
    text = (
        f"A step of {baseline.name} is {pieces[0]:.4g} pieces of work, one of {variant.name} {pieces[1]:.4g}, and "
        f"{why}: they may be different parts of the program"
    )
    yield Note("other-steps", NoteLevel.WARNING, text, "Annotate the same steps, by the same name, on both sides")


def _in_some_steps(baseline: Side, variant: Side, name: str) -> Iterator[Note]:
    """A note on a range that is in another share of the steps of each side.

    Windows of steps that have it at times begin and end anywhere in its period: one step more or less is no difference.
    """
    counts = [int((range_times(side, name) > 0).sum()) for side in (baseline, variant)]
    repeats = [side.repeats for side in (baseline, variant)]
    apart = abs(counts[0] * repeats[1] - counts[1] * repeats[0])  # the difference of the shares, times both repeats
    in_all = [count == steps for count, steps in zip(counts, repeats, strict=True)]
    if apart > (0 if any(in_all) else max(repeats)):
        text = (
            f"The range is in {counts[0]} of {baseline.repeats} steps of {baseline.name}, and in {counts[1]} of "
            f"{variant.repeats} of {variant.name}: times are those of a step with it, not of how often it runs"
        )
        yield Note("range-in-some-steps", NoteLevel.WARNING, text, "Compare whole steps, without --range")


def _hidden(*sides: Side) -> Iterator[Note]:
    for side in sides:
        graphs = graph_summary(side.timeline, side.window)
        if graphs.whole_launches and (graphs.hidden_share or 0.0) > HIDDEN_SHARE:
            text = (
                f"{side.name}: {100 * (graphs.hidden_share or 0.0):.0f} % of the GPU's busy time is inside CUDA "
                "graphs that were traced as a whole: their kernels are missing from it, not removed"
            )
            yield Note("hidden-graphs", NoteLevel.WARNING, text, "Record with --cuda-graph-trace=node")


def _alike(baseline: Side, variant: Side, kernels: KernelChanges) -> Iterator[Note]:
    """A note on sides that may run different programs."""
    matched, likeness = kernels.matched_share, kernels.likeness
    if matched is None or any((side.work["kind"] == "graph").any() for side in (baseline, variant)):
        return
    same = f"only {100 * likeness.launches_share:.0f} % of the launches have the same kernel and size on both sides"
    if likeness.is_different:
        products = " and ".join(f"{number:.4g}" for number in likeness.products)
        text = f"The two run different programs: {same}, few in the same order, and a step has {products} products"
        remedy = "Compare recordings of one program, before and after a change"
        yield Note("different-programs", NoteLevel.WARNING, text, remedy)
    elif matched < _MATCHED_SHARE:
        text = (
            f"Only {100 * matched:.0f} % of the kernels' time has a counterpart on the other side: the two run "
            "different programs, or other libraries"
        )
        yield Note("few-matches", NoteLevel.WARNING, text)
    elif likeness.is_doubtful:
        text = f"The two may run different programs: {same}"
        yield Note("few-matches", NoteLevel.WARNING, text)


def _profiled(*sides: Side) -> Iterator[Note]:
    tools = dict.fromkeys(side.timeline.trace.capture.tool for side in sides if side.timeline.trace.api_calls.height)
    if tools:
        text = (
            f"Times are those under the profiler ({', '.join(tools)}), which adds to every launch: a step that waits "
            "for launches is slower here than without it, and its GPU idle for longer"
        )
        yield Note("profiled-times", NoteLevel.INFO, text, "Time both sides without a profiler: warplens bench")


def _devices(baseline: Side, variant: Side) -> Iterator[Note]:
    counts = [side.work["device"].n_unique() for side in (baseline, variant)]
    if max(counts) > 1:
        text = (
            f"The number of devices that work ran on is {counts[0]} and {counts[1]}: parts of the wall time are "
            "means over the devices, kernels and ranges sums"
        )
        yield Note("several-devices", NoteLevel.INFO if counts[0] == counts[1] else NoteLevel.WARNING, text)


def _between(baseline: Side, variant: Side, wall: WallSplit) -> Iterator[Note]:
    for side, of_side in ((baseline, wall.baseline), (variant, wall.variant)):
        if side.has_gaps:
            share = float(of_side.between_ns / of_side.wall_ns)
            text = (
                f"{side.name}: {100 * share:.1f} % of the wall time lies between the end of a step and the next "
                "one's begin, and counts"
            )
            yield Note("time-between-steps", NoteLevel.INFO, text)
        work = side.timeline.work_in(side.window)
        total = int((work["end_ns"] - work["start_ns"]).sum())
        outside = total - int((side.work["end_ns"] - side.work["start_ns"]).sum())
        if outside > _BETWEEN_SHARE * max(total, 1):
            text = (
                f"{side.name}: {100 * outside / total:.1f} % of the GPU work's time begins outside of the steps, and "
                "is in no table of kernels and ranges"
            )
            yield Note("work-between-steps", NoteLevel.INFO, text)
