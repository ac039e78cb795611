"""Steps that do more than the others by design, such as every fourth one that also updates the weights.

With gradient accumulation most steps run a forward and a backward pass, and every n-th also an optimizer. Such steps
are no interruption, and n of them are what the program repeats: its cycle. A step is longer by design if

* work of an optimizer begins in it, and in most of the others none does; or
* it launches far more than most others and stands in a regular pattern: three times, or twice if what it launches in
  addition holds no products, as a forward pass (an evaluation) would; or
* it launches its kernels one by one, as the prefill of a server, and all others replay CUDA graphs traced as a whole,
  whose kernels are not counted.

What runs inside ranges named after an evaluation is none of a cycle.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.repetition import ALIKE_TOLERANCE, MIN_REPEATS
from warplens.analysis.sequence import StepCandidates
from warplens.analysis.trees import NO_RANGE, RangeForest
from warplens.analysis.window import PHASES, phase_numbers
from warplens.patterns import lazy_pattern
from warplens.profile import Trace
from warplens.profile.schema import Bools, Float64s, Int64s, name_labels, rows_named

#: A step does far more than others from this share of their launches on; less is logging, or steps of different
#: lengths.
FAR_MORE = 0.5

#: A step updates the weights if it holds this share of the usual launches of an optimizer; fewer are those of a
#: neighbour that ran late.
_MOST_OF_UPDATE = 0.5

_EVALUATION: Final = lazy_pattern(r"(?<![a-z])(eval|valid|test)", re.IGNORECASE)
_CLEARS: Final = lazy_pattern(r"zero[_ ]?grad", re.IGNORECASE)


class LongSteps(NamedTuple):
    """The steps that do more than the others by design."""

    steps: Bools  #: mask of the steps; none where all do the same
    updates: bool  #: whether they are those that update the weights
    period: int  #: steps from one of them to the next; 1 where that is not known, or none is longer

    @classmethod
    def none(cls, count: int) -> LongSteps:
        """No step of this many is longer by design."""
        return cls(np.zeros(count, dtype=np.bool_), False, 1)

    def usual(self, values: Int64s, among: Bools) -> Float64s:
        """For each step the median of these values over the steps of its kind, if possible over those in `among`."""
        result = np.zeros(len(values))
        for kind in (False, True):
            of_kind = self.steps == kind
            if of_kind.any():
                chosen = of_kind & among
                result[of_kind] = np.median(values[chosen if chosen.any() else of_kind])
        return result

    def whole_cycles(self, first: int, stop: int) -> tuple[int, int]:
        """The whole cycles among the steps `[first, stop)`, as many as there are; all of the steps if there are none.

        A cycle ends with its longer step where this leaves as many of them.
        """
        places = first + np.flatnonzero(self.steps[first:stop])
        if self.period == 1 or not len(places):
            return first, stop
        if (np.diff(places) != self.period).any():
            # Cycles of different lengths: from behind one longer step to another.
            return int(places[0]) + 1, int(places[-1]) + 1
        length = (stop - first) // self.period * self.period
        if not length:
            return first, stop
        begins = np.arange(first, stop - length + 1)
        ending = begins[self.steps[begins + length - 1]]
        begin = int(ending[-1] if len(ending) else begins[-1])
        return begin, begin + length


def longer_by_design(trace: Trace, work: pl.DataFrame, forest: RangeForest, candidates: StepCandidates) -> LongSteps:
    """The steps that do more than the others by design. `work` and `forest` are those of the `Timeline`."""
    counts = candidates.counts
    if len(counts) < 2 or not counts.any():
        return LongSteps.none(len(counts))
    step = _step_of(work, candidates)
    updates = _per_step(step, _optimizes(trace, work, forest), len(counts))
    if updates.any():
        updating = updates >= _MOST_OF_UPDATE * np.median(updates[updates > 0])
        period = _usual_distance(updating)
        # An optimizer that most steps run is a part of each; the others failed, or evaluate. Of two steps, or behind
        # a first one that ran it, those without it may have failed as well.
        if period > 1 and not updating.all():
            return LongSteps(updating, True, period)
        if not period and len(updating) >= MIN_REPEATS and not updating[0]:
            return LongSteps(updating, True, 1)
    oversized = counts > (1 + FAR_MORE) * np.quantile(counts, 0.25, method="lower")
    if not oversized.any():
        return LongSteps.none(len(counts))
    evaluates = _per_step(step, _within(trace, work, forest, _EVALUATION), len(counts))
    if (evaluates[oversized] > FAR_MORE * np.median(counts)).any():
        return LongSteps.none(len(counts))
    products = _per_step(step, _is_product(trace, work), len(counts))
    alike = products[oversized].max() <= (1 + ALIKE_TOLERANCE) * products[~oversized].max(initial=0)
    least = 2 if alike else MIN_REPEATS
    # The first step may be longer because it warms up.
    for skipped in (0, 1) if oversized[0] else (0,):
        longer = oversized & (np.arange(len(counts)) >= skipped)
        if (period := _regular_distance(longer, least)) > 1:
            return LongSteps(longer, False, period)
    graphs = _per_step(step, (work["kind"] == "graph").to_numpy(), len(counts))
    if ((graphs == 0) == oversized).all():
        return LongSteps(oversized, False, 1)
    return LongSteps.none(len(counts))


def _usual_distance(mask: Bools) -> int:
    """The usual number of steps from one of these to the next; 0 for a single one."""
    distances = np.diff(np.flatnonzero(mask))
    return int(np.median(distances)) if len(distances) else 0


def _regular_distance(mask: Bools, least: int) -> int:
    """The number of steps from each of these to the next, if it is the same for all of at least `least`; else 1."""
    places = np.flatnonzero(mask)
    if len(places) < least:
        return 1
    distances = np.unique(np.diff(places))
    if len(distances) != 1 or len(mask) - 1 - places[-1] >= distances[0]:
        return 1
    return int(distances[0])


def _step_of(work: pl.DataFrame, candidates: StepCandidates) -> Int64s:
    """The step in which each piece of work begins; −1 for none."""
    begins = work["start_ns"].to_numpy()
    step = np.searchsorted(candidates.starts, begins, side="right") - 1
    return np.where((step >= 0) & (begins < candidates.ends[np.maximum(step, 0)]), step, -1)


def _per_step(step: Int64s, mask: Bools, steps: int) -> Int64s:
    """The number of these pieces of work in each step."""
    return np.bincount(step[mask & (step >= 0)], minlength=steps)


def _optimizes(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> Bools:
    """Mask of the work of an optimizer, by the name of a range around it or of its kernel."""
    ranges = trace.ranges["name"]
    optimizer = phase_numbers(ranges) == PHASES.index("optimizer") + 1
    names = (optimizer & ~rows_named(ranges, _CLEARS)).astype(np.int64)
    return _in_labelled(work, forest, names) | _of_category(trace, work, "optimizer")


def _is_product(trace: Trace, work: pl.DataFrame) -> Bools:
    return _of_category(trace, work, *PRODUCTS)


def _within(trace: Trace, work: pl.DataFrame, forest: RangeForest, pattern: re.Pattern[str]) -> Bools:
    """Mask of the work inside ranges whose name matches."""
    names = name_labels(trace.ranges["name"], lambda name: pattern.search(name) is not None)
    return _in_labelled(work, forest, names)


def _in_labelled(work: pl.DataFrame, forest: RangeForest, labels: Int64s) -> Bools:
    """Mask of the work inside ranges with a label other than 0."""
    inside: Bools = np.r_[forest.outermost_match(labels) > 0, False][work["range"].fill_null(NO_RANGE).to_numpy()]
    return inside


def _of_category(trace: Trace, work: pl.DataFrame, *categories: str) -> Bools:
    """Mask of the kernels of these categories."""
    is_kernel = (work["kind"] == "kernel").to_numpy()
    mask = np.zeros(work.height, dtype=np.bool_)
    if trace.kernels.height:
        of_category = categories_of(trace.kernels["full_name"]).is_in(list(categories)).to_numpy()
        mask[is_kernel] = of_category[work["row"].to_numpy()[is_kernel]]
    return mask
