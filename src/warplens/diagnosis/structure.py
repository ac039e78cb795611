"""What is common to rules that go by the structure of a program: the sequence of kernels, not single ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import tensors_of
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.repetition import is_structured, longest_repetition
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, kernel_names, range_names
from warplens.diagnosis.findings import ISSUING, PASSES, Confidence, Finding, Remedy
from warplens.diagnosis.pace import Gain
from warplens.diagnosis.program import Program
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Rule
from warplens.profile.schema import Bools, Float64s, Int64s

#: What all of these rules give as evidence.
AFFECTED: Final = {
    "affected_ns": "time of the affected kernels",
    "affected_share": "of the window",
    "saved_ns": "part of that time that is expected to go away",
}


class StructureRule(Rule):
    """A pattern of kernels that costs a part of their time."""

    precedence = "structure"

    def __init_subclass__(cls) -> None:
        """Of what all of them show a rule declares nothing."""
        cls.evidence = {**AFFECTED, **cls.evidence, **GPU_BUSY_SHARE}

    def share(self, facts: Facts) -> Float64s:
        """Of each piece of work, the share that is expected to go away."""
        raise NotImplementedError

    def claim(self, facts: Facts) -> Float64s | None:
        """The same, or nothing where the pattern is too rare to be one."""
        share = self.share(facts)
        return share if share.any() else None

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        return self.shown(facts, claims) if claims.busy_ns(self.id) else None

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        raise NotImplementedError

    def seen(
        self,
        facts: Facts,
        claims: Claims,
        *,
        confidence: Confidence,
        remedies: tuple[Remedy, ...],
        evidence: dict[str, int | float | None],
        title: str = "",
        bound_ns: int | None = None,
        informs: bool = False,
        warning: float | None = None,
        whole_share: float | None = None,
        replayed: Gain | None = None,
    ) -> Finding | None:
        """The finding with what all of these have in common. `whole_share`: of all of the window, what is shared."""
        claimed = claims.total_ns(self.id)
        if not claimed:
            return None
        mine = claims.pieces(self.id)
        affected = int(facts.program.own_ns[mine.at][mine.ns > 0].sum())
        return self.raised(
            facts,
            claimed if whole_share is None else int(whole_share * facts.wall_ns),
            title=title,
            confidence=confidence if facts.window.steps else "low",
            evidence={
                "affected_ns": affected,
                "affected_share": affected / facts.wall_ns,
                "saved_ns": claimed,
                **evidence,
                "gpu_busy_share": facts.busy_share,
            },
            where=facts.program.places(mine)
            or range_names(facts, facts.work["range"], mine)
            or kernel_names(facts, mine),
            remedies=remedies,
            on_gpu=not claims.idle_ns(self.id) and whole_share is None,
            issuing_ns=claims.issuing_ns.get(self.id, 0)
            if whole_share is None
            else int(whole_share * facts.idle(*ISSUING)),
            bound_ns=bound_ns,
            informs=informs,
            warning=warning,
            replayed=replayed,
            busy_ns=claims.busy_ns(self.id),
            claims=claims if whole_share is None else None,
        )


#: Passes of a step that each get an input of their own; fewer are an encoder and a decoder, or parts of one input.
_LEAST_PASSES: Final = 4
#: Kernels of such a pass, at least; and the share of passes that launch as many as the median one.
_LEAST_KERNELS: Final = 8
_ALIKE_SHARE: Final = 0.8
#: Steps of more kernels are not searched for passes; passes make up this much of what a step launches until the last.
_MOST_KERNELS: Final = 200_000
_MOST_OF_IT: Final = 0.8
#: Starting an empty kernel and waiting for its last block takes this long on the GPU, however little it does.
EMPTY_KERNEL_NS: Final = 1_500
#: A product fills its pipeline, and adds up and writes what it has, one after the other: products of a few rows take
#: 2.6 to 5 µs, whatever their sizes.
EMPTY_PRODUCT_NS: Final = 3_000
#: Images have a batch, channels and two sides, and so many numbers at least.
_SIDES_OF_IMAGES: Final = 4
_LEAST_NUMBERS: Final = 65_536
#: Copies this near to one another bring one input; a read-back this near to the end of a pass makes the next one's.
_ONE_INPUT: Final = 4
#: Chooses all pieces of work.
EVERY: Final = slice(None)
_AT_END_SHARE: Final = 0.1


def started_share(facts: Facts, rows: Int64s | slice = EVERY) -> Float64s:
    """Of each piece of work, the share of its time that is that of an empty kernel: one for many saves it."""
    starts, ends = (facts.work[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
    lasting = np.maximum(ends - starts, 1)
    empty = np.where(facts.program.labelled(*PRODUCTS)[rows], EMPTY_PRODUCT_NS, EMPTY_KERNEL_NS)
    return np.asarray(np.minimum(empty / lasting, 1.0), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Passes:
    """Equal passes of a step that could be one over a batch."""

    count: int  #: how many a step has; 1 where it has none
    work: Bools  #: which pieces of work belong to them

    def saved_share(self, facts: Facts, filled: Float64s, rows: Int64s | slice = EVERY) -> Float64s:
        """Of each piece of work, the share of its time that goes away where the passes are one.

        A kernel takes the time of an empty one, and as long again as its work keeps the GPU busy, or as it would take
        at its roof; for a batch, the first comes once, the second for each pass. No kernel takes less than one of them.

        Args:
            facts: the window.
            filled: of each piece, the share of the GPU that it keeps busy; nan where that is not known.
            rows: which pieces are asked for.
        """
        fixed = started_share(facts, rows)
        left = fixed / self.count + (1 - fixed) * np.clip(np.nan_to_num(filled[rows], nan=1.0), 0.0, 1.0)
        at_roof = facts.at_roof.select("roof_ns", "owned_ns")[rows]
        roof = (at_roof["roof_ns"] / at_roof["owned_ns"]).fill_null(float("nan")).to_numpy()
        linked = facts.program.having("label", "host-to-device", "device-to-host")[rows]
        saved = np.clip(1 - np.fmin(left, roof), 0.0, self.freed)
        return np.where(self.work[rows] & ~linked, saved, 0.0)

    @property
    def freed(self) -> float:
        """The share of launches that go away."""
        return 1 - 1 / self.count

    def calls(self, facts: Facts) -> Float64s:
        """Of each piece, the share of the host's time for issuing it that goes away. Graphs are issued whole."""
        if self.work.all():
            return np.full(len(self.work), self.freed)
        begins = facts.work["launch_start_ns"].fill_null(0).to_numpy()
        return np.where(self.work | np.isin(begins, begins[self.work & (begins > 0)]), self.freed, 0.0)

    def removed_ns(self, facts: Facts, saved: Float64s) -> int:
        """Time of the GPU that goes away with these shares of its work: that work, and its own pauses before it."""
        before = facts.program.of_gaps(self.work) > 0
        return int(facts.program.own_ns @ saved + self.freed * facts.causes["start-latency"].where(before).total)


@once
def passes_of_step(facts: Facts) -> Passes:
    """The equal passes that a step runs over different inputs. Steps have to be sure: else a pass may be a step itself.

    That passes do not need each other's results has to show: their inputs are sent by the host one by one, their
    results are put together behind the last one, or their gradients are added up for one pass of the optimizer. A loop
    over tokens or over the times of a sampler, and layers, look alike otherwise.
    """
    sure = facts.window.steps and facts.timeline.steps.is_sure and facts.phase is None
    sent = _sent_passes(facts) if sure else 1
    found = Passes(sent, np.ones(facts.work.height, dtype=np.bool_)) if sent > 1 else None
    joined = _joined_passes(facts) or _image_passes(facts) if sure and found is None else None
    return found or joined or Passes(1, np.zeros(facts.work.height, dtype=np.bool_))


def _joined_passes(facts: Facts) -> Passes | None:
    """Passes that launch the same kernels, of which the results or the gradients are put together."""
    program = facts.program
    joining, backward = program.marked("concatenation"), program.marked("backward")
    optimizing = program.labelled("optimizer") | facts.program.having("phase", "optimizer")
    inside, counts = np.zeros(facts.work.height, dtype=np.bool_), []
    for whole in program.by_step():
        places = np.flatnonzero(program.is_kernel[whole])
        rows = whole[places]
        if not _LEAST_PASSES * _LEAST_KERNELS <= len(rows) <= _MOST_KERNELS:
            return None
        codes = program.launched_as(rows)
        period, begin, stop = longest_repetition(codes)
        repeats = (stop - begin) // period if period else 0
        if repeats < _LEAST_PASSES or not is_structured(codes[begin:stop], period):
            return None
        turn, ahead = rows[begin : begin + period], rows[stop - _ONE_INPUT // 2 : stop + _ONE_INPUT]
        joined = joining[ahead] & ~np.isin(program.launched_as(ahead), codes[begin : begin + period])
        added = backward[turn].any() and not optimizing[turn].any() and optimizing[rows[stop:]].any()
        if stop - begin < _MOST_OF_IT * stop or not (joined.any() or added):
            return None
        inside[whole[places[begin] : places[stop - 1] + 1]] = True  # fills and copies between the kernels, too
        counts.append(repeats)
    return Passes(int(np.median(counts)), inside) if counts else None


def _image_passes(facts: Facts) -> Passes | None:
    """Passes that begin with a convolution over images which nothing in them makes, so that all were there before.

    Where shapes are recorded. A sampler's next image is made of the last one, by work on tensors with the same sides.
    """
    program = facts.program
    if facts.trains or not facts.timeline.has_operators:
        return None
    shapes = program.shapes()
    if shapes.null_count() == shapes.len():
        return None
    counts, convolutions = [], program.labelled("convolution")
    for whole in program.by_step():
        rows = whole[program.is_kernel[whole]]
        first = np.flatnonzero(convolutions[rows])[:1]
        text = shapes[int(rows[first[0]])] if len(first) else None
        images = next(iter(tensors_of(text)), ())
        if len(images) != _SIDES_OF_IMAGES or math.prod(images) < _LEAST_NUMBERS:
            return None
        told = shapes.gather(rows)
        begins = np.flatnonzero((told == text).fill_null(value=False).to_numpy())
        begins = begins[np.r_[True, np.diff(begins) > _ONE_INPUT]]
        lengths = np.diff(np.r_[begins, len(rows) + begins[0]])
        alike = np.abs(lengths - np.median(lengths)) <= max(2.0, 0.02 * float(np.median(lengths)))
        others = [shape for each in told.drop_nulls().unique().to_list() if each != text for shape in tensors_of(each)]
        if len(begins) < _LEAST_PASSES or alike.mean() < _ALIKE_SHARE or np.median(lengths) < _LEAST_KERNELS:
            return None
        if begins[0] > (1 - _ALIKE_SHARE) * lengths[0] or any(shape[1:] == images[1:] for shape in others):
            return None
        counts.append(len(begins))
    return Passes(int(np.median(counts)), program.step > 0) if counts else None


def _sent_passes(facts: Facts) -> int:
    """How many equal passes a step runs over inputs that the host sends one by one; 1 where there are no such passes.

    A pass whose last work is read back by the host may make the input of the next one: such are not counted.
    """
    label, counts = facts.work["label"], []
    to_device, to_host = ((label == direction).to_numpy() for direction in ("host-to-device", "device-to-host"))
    for rows in facts.program.by_step():
        sent = np.flatnonzero(to_device[rows])
        begins = sent[np.r_[True, np.diff(sent) > _ONE_INPUT]] if len(sent) else sent
        if len(begins) < _LEAST_PASSES:
            return 1
        lengths = np.diff(np.r_[begins, len(rows)])
        alike = np.abs(lengths - np.median(lengths)) <= max(2.0, 0.02 * float(np.median(lengths)))
        if np.median(lengths) < _LEAST_KERNELS or alike.mean() < _ALIKE_SHARE:
            return 1
        read = np.flatnonzero(to_host[rows])
        read = read[read >= begins[0]]
        place = np.searchsorted(begins, read, side="right") - 1
        late = read - begins[place] >= (1 - _AT_END_SHARE) * lengths[place]
        if late.sum() > len(begins) / 2:
            return 1
        counts.append(len(begins))
    return int(np.median(counts))


#: Turns of a loop in a step, at least; what a turn launches, at most; and of all launches of the step, at least.
_LEAST_TURNS: Final = 16
_LONGEST_TURN: Final = 64
_OF_LAUNCHES: Final = 0.25
#: Kernels that take longer keep a GPU busy while the next one is launched.
_SMALL_NS: Final = 10_000
#: Loops that are looked for in what others leave of a step: a forward and a backward pass, in two parts of it.
_LOOPS: Final = 4


@dataclass(frozen=True, eq=False)
class Turns:
    """Loops of a step that launch the same few small kernels in each turn."""

    count: float  #: how many turns the longest loop of a step has
    launches: float  #: of one of its turns
    share: Float64s  #: of each piece of work, the share that goes away where all turns are one


@once
def turns_of_step(facts: Facts) -> Turns | None:
    """Loops that launch a quarter of a step's work or more, and whose turns could be one.

    Layers of a network have norms or activations, parameters of an optimizer several sizes, or are its own. A turn with
    products and neither, whose result is copied to its place or searched, is one part of a grouped product; a loop of
    as many turns in the same step is its backward pass. Where a turn has no product, it is no layer. A turn that only
    sends something, and waits for it, launches no kernel: `blocking-copy` has it.
    """
    program = facts.program
    if facts.phase is not None or not facts.window.steps:
        return None
    others = program.labelled("attention", "normalization", "softmax", "communication", "optimizer", "convolution")
    others = others | facts.program.having("phase", "optimizer")
    others = others | facts.program.having("label", "device-to-host")
    products, ending = program.labelled(*PRODUCTS), program.labelled("copy-cast", "sort-topk")
    sent = program.having("label", "host-to-device") & facts.work["pageable"].fill_null(value=False).to_numpy()
    bent = program.marked("nonlinear") | program.marked("choosing")
    share, counts, lengths = np.zeros(facts.work.height), [], []
    for rows in program.by_step():
        if not _LEAST_TURNS <= len(rows) <= _MOST_KERNELS:
            return None
        found, parts = [], set()
        for begin, stop, period in _loops_of(program.launched_as(rows)):
            turn, mine = rows[begin : begin + period], rows[begin:stop]
            if others[mine].any() or np.median(program.own_ns[mine]) > _SMALL_NS or sent[turn].all():
                continue
            multiplies, count = bool(products[turn].any()), (stop - begin) // period
            if not (multiplies and bent[turn].any()):
                found.append((count * period, begin, period, multiplies))
            if ending[turn].any() and not bent[turn].any():
                parts.add(count)
        found = [loop for loop in found if not loop[3] or loop[0] // loop[2] in parts]
        if sum(length for length, *_ in found) < _OF_LAUNCHES * len(rows):
            return None
        for length, begin, period, _ in found:
            share[rows[begin : begin + length]] = 1 - period / length
        length, _, period, _ = max(found)
        counts.append(length // period)
        lengths.append(period)
    return Turns(float(np.mean(counts)), float(np.mean(lengths)), share) if counts else None


def recurring_share(facts: Facts) -> float:
    """The share of a step's launches in turns that need the turn before them: with products, and what bends results.

    The least of all steps; 0 where the window has none. Each turn waits for the last, so only a larger batch gives its
    kernels more to do.
    """
    program, shares = facts.program, [1.0 if facts.window.steps else 0.0]
    products = program.labelled(*PRODUCTS)
    bent = program.marked("nonlinear") | program.labelled("normalization", "softmax")
    for rows in program.by_step():
        if not _LEAST_TURNS <= len(rows) <= _MOST_KERNELS:
            return 0.0
        loops = _loops_of(program.launched_as(rows))
        turns = ((rows[begin : begin + period], stop - begin) for begin, stop, period in loops)
        shares.append(sum(length for turn, length in turns if products[turn].any() and bent[turn].any()) / len(rows))
    return min(shares)


def _loops_of(codes: Int64s) -> list[tuple[int, int, int]]:
    """Begin, stop and period of the loops of many short turns in a sequence, those inside of longer turns as well."""
    found, left = [], [(0, len(codes))]
    for _ in range(_LOOPS):
        if not left:
            break
        at, end = left.pop(0)
        period, begin, stop = longest_repetition(codes[at:end])
        if period > _LONGEST_TURN:
            inner = _loops_of(codes[at + begin : at + begin + period])
            for turn in range((stop - begin) // period):
                place = at + begin + turn * period
                found += [(place + first, place + last, length) for first, last, length in inner]
        elif period and stop - begin >= _LEAST_TURNS * period:
            found.append((at + begin, at + stop - (stop - begin) % period, period))
        else:
            continue
        left += [part for part in ((at, at + begin), (at + stop, end)) if part[1] - part[0] >= _LEAST_TURNS]
        left.sort(key=lambda part: part[0] - part[1])
    return found


@once
def backward_work(facts: Facts) -> Bools:
    """Which work autograd's thread launched, or a range named after the backward pass holds."""
    by_range = facts.program.having("phase", "backward")
    program = facts.program
    threads = program.thread
    gradient = program.is_kernel & program.marked("backward")
    if not (threads >= 0).any() or not gradient.any():
        return by_range
    # Autograd's thread launches the kernels that are named after gradients, and those only.
    values, counts = np.unique(threads[gradient], return_counts=True)
    engine = values[counts.argmax()]
    main = threads[np.argmin(facts.work["start_ns"].to_numpy())]
    by_thread = (threads == engine) if engine != main else np.zeros(len(threads), dtype=np.bool_)
    return np.asarray(by_range | by_thread, dtype=np.bool_)


#: One backward pass launches two to three products for each of the forward pass (up to 3.1 in the programs of
#: `data/pairs`, but for what checkpoints run again). Several passes launch more than this many times as many, and each
#: of them as many as its part of the forward pass, at least; all losses but one have heads beside that.
_OF_FORWARD: Final = 3.5
_PASS_OF_FORWARD: Final = 1.25
_MOST_OF_FORWARD: Final = 4
#: Backward passes of more products in a step are not searched.
_MOST_PRODUCTS: Final = 20_000


def longest(alike: Bools) -> int:
    """The length of the longest stretch in which this holds."""
    return int(np.diff(np.flatnonzero(np.r_[True, ~alike, True])).max()) - 1


@once
def passes_over_one_graph(facts: Facts) -> tuple[Bools, float]:
    """Work of the second and later backward passes of each step over one forward pass, and how many there are a step.

    Each loss that is differentiated apart goes through the common part of the graph again; so does each row of a
    Jacobian.
    """
    program, backward = facts.program, backward_work(facts)
    again, counts = np.zeros(facts.work.height, dtype=np.bool_), []
    periods: dict[tuple[bytes, int], int] = {}
    product = program.labelled(*PRODUCTS)
    if not backward.any() or backward.all():
        return again, 1.0
    sides = product & ~backward, product & backward
    for rows in program.by_step():
        ahead, mine = (rows[side[rows]] for side in sides)
        forward = len(ahead)
        if not forward or len(mine) < _OF_FORWARD * forward:
            continue
        # What the forward pass launches as well may be a checkpoint's.
        mine = mine[~np.isin(program.launched_as(mine), program.launched_as(ahead))]
        if not _OF_FORWARD * forward <= len(mine) <= _MOST_PRODUCTS:
            continue
        # Products alone: what a later pass adds to the gradients of the first one is not launched in that.
        codes = program.launched_as(mine)
        lags = range(math.ceil(_PASS_OF_FORWARD * forward), min(len(mine) - forward, _MOST_OF_FORWARD * forward) + 1)
        asked = codes.tobytes(), forward  # mostly one for all steps
        if asked not in periods:
            most, periods[asked] = forward - 1, 0
            for lag in lags:
                alike = codes[lag:] == codes[:-lag]
                # No stretch is longer than all that are alike, of which there are few at most lags.
                if np.count_nonzero(alike) > most and (stretch := longest(alike)) > most:
                    most, periods[asked] = stretch, lag
        if not (period := periods[asked]):
            continue
        whole = rows[backward[rows]]
        again[whole[int(np.flatnonzero(whole == mine[period])[0]) :]] = True
        counts.append(len(mine) / period)
    return again, float(np.mean(counts)) if counts else 1.0


def time_of(program: Program, which: Bools | Int64s) -> int:
    """Wall time that these pieces own."""
    return int(program.own_ns[np.flatnonzero(which) if which.dtype == np.bool_ else which].sum())


def time_beside(program: Program, mine: Bools, reach: int = 8) -> Int64s:
    """Time of the passes over memory that stand next to these pieces, up to the next product."""
    order = program.order
    found = np.zeros(len(order), dtype=np.bool_)
    at = np.flatnonzero(program.in_order(mine))
    is_pass = program.in_order(program.labelled(*PASSES))
    for way in (-1, 1):
        reached = at
        for _ in range(reach):
            reached = reached + way
            reached = reached[(reached >= 0) & (reached < len(order))]
            reached = reached[is_pass[reached]]
            found[reached] = True
    beside = np.zeros(len(order), dtype=np.int64)
    beside[order[found]] = program.own_ns[order[found]]
    return beside
