"""Common parts of rules that look at the structure of a program, which is its sequence of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from warplens.analysis.frames import all_equal, numbered, once
from warplens.analysis.headroom.shapes import tensors_of
from warplens.analysis.repetition import is_structured, longest_repetition
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, kernel_names, range_names
from warplens.diagnosis.findings import USUAL, Confidence, Finding, Remedy, Variant
from warplens.diagnosis.program import Program
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Rule
from warplens.diagnosis.unprofiled import Gain
from warplens.profile.schema import Bools, Float64s, Int64s, texts_where

#: Evidence of all these rules.
AFFECTED: Final = {
    "affected_ns": "time of the affected kernels",
    "affected_share": "of the window",
    "saved_ns": "recorded time that is expected to go away, with pauses and what the profiler added to them",
}


class StructureRule(Rule):
    """A pattern of kernels that costs a part of their time."""

    precedence = "structure"

    def __init_subclass__(cls) -> None:
        """Adds the common evidence to that which the rule declares."""
        cls.evidence = {**AFFECTED, **cls.evidence, **GPU_BUSY_SHARE}

    def share(self, facts: Facts) -> Float64s:
        """Share of the time of each piece of work that is expected to go away."""
        raise NotImplementedError

    def claim(self, facts: Facts) -> Float64s | None:
        """`share`; None if it is 0 everywhere."""
        share = self.share(facts)
        return share if share.any() else None

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        return self._shown(facts, claims) if claims.busy_ns(self.id) else None

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        raise NotImplementedError

    def seen(
        self,
        facts: Facts,
        claims: Claims,
        *,
        confidence: Confidence,
        remedies: tuple[Remedy | None, ...],
        evidence: Mapping[str, int | float | None],
        variant: Variant = USUAL,
        bound_ns: int | None = None,
        informs: bool = False,
        warning: float | None = None,
        whole_share: float | None = None,
        replayed: Gain | None = None,
    ) -> Finding | None:
        """The finding with the common evidence and places; other arguments as in `Rule.raised`.

        Args:
            whole_share: share of the whole window that the remedy saves, if not only the claimed time is affected.
        """
        claimed = claims.total_ns(self.id)
        if not claimed:
            return None
        pieces = claims.pieces(self.id)
        affected = int(facts.program.own_ns[pieces.at][pieces.ns > 0].sum())
        return self.raised(
            facts,
            claimed if whole_share is None else int(whole_share * facts.wall_ns),
            variant=variant,
            confidence=confidence if facts.window.steps else "low",
            evidence={
                "affected_ns": affected,
                "affected_share": affected / facts.wall_ns,
                "saved_ns": claimed,
                **evidence,
            },
            where=facts.program.places(pieces)
            or range_names(facts, facts.work["range"], pieces)
            or kernel_names(facts, pieces),
            remedies=remedies,
            on_gpu=not claims.idle_ns(self.id) and whole_share is None,
            issuing_ns=claims.issuing_ns.get(self.id, 0)
            if whole_share is None
            else int(whole_share * facts.issuing_ns),
            bound_ns=bound_ns,
            informs=informs,
            warning=warning,
            replayed=replayed,
            busy_ns=claims.busy_ns(self.id),
            claims=claims if whole_share is None else None,
        )


#: Least passes of a step with inputs of their own: fewer are an encoder and a decoder, or parts of one input.
_LEAST_PASSES: Final = 4
#: Least kernels of such a pass.
_LEAST_KERNELS: Final = 8
#: Least share of passes that launch as many kernels as the median pass.
_ALIKE_SHARE: Final = 0.8
#: Steps of more kernels are not searched for repetition.
MOST_KERNELS: Final = 200_000
#: Least share of the launches of a step, up to the end of the last pass, that belong to the passes.
_PASSES_SHARE: Final = 0.8
#: Duration of an empty kernel: starting it and waiting for its last block.
EMPTY_KERNEL_NS: Final = 1_500
#: Shortest duration of a product, which fills its pipeline, sums up and writes one after the other: products of a few
#: rows take 2.6 to 5 µs, whatever their sizes.
EMPTY_PRODUCT_NS: Final = 3_000
#: Dimensions of images: batch, channels and two sides.
_IMAGE_DIMENSIONS: Final = 4
#: Least numbers of a batch of images.
_LEAST_NUMBERS: Final = 65_536
#: Copies at most this many launches apart bring one input.
_ONE_INPUT: Final = 4
#: A read-back in this last share of a pass may make the input of the next pass.
_AT_END_SHARE: Final = 0.1
#: Selects all pieces of work.
EVERY: Final = slice(None)


def started_share(facts: Facts, rows: Int64s | slice = EVERY) -> Float64s:
    """Share of the duration of each piece of work that an empty kernel would take; merged kernels pay it once."""
    starts, ends = (facts.work[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
    duration = np.maximum(ends - starts, 1)
    empty = np.where(facts.program.products[rows], EMPTY_PRODUCT_NS, EMPTY_KERNEL_NS)
    return np.asarray(np.minimum(empty / duration, 1.0), dtype=np.float64)


@once
def gathered_operands(facts: Facts) -> tuple[Int64s, Int64s]:
    """Rows of gathers right before a matrix product, which reads the result, and the row of the product after each."""
    program, order = facts.program, facts.program.order
    gathers = program.in_order(program.labelled("gather-scatter") & ~program.marked("adding-rows"))
    # Several kernels may gather one operand; a product may clear its workspace first.
    others = np.flatnonzero(~gathers & program.in_order(program.is_kernel))
    places = np.flatnonzero(gathers)
    after = np.searchsorted(others, places)
    places, after = places[after < len(others)], others[after[after < len(others)]]
    read = program.in_order(program.labelled("gemm"))[after] & ~program.breaks[after]
    return order[places[read]], order[after[read]]


@once
def single_queries(facts: Facts) -> Bools:
    """Fused attention of one query per sequence over several keys, by recorded shapes, as in decoding."""
    found = np.zeros(facts.work.height, dtype=np.bool_)
    rows = np.flatnonzero(facts.program.labelled("attention"))
    if not len(rows) or not facts.timeline.has_operators:
        return found
    found[rows] = texts_where(facts.program.shapes().gather(rows), keys_of_one_query)
    return found


def keys_of_one_query(shapes: str | None) -> int:
    """Keys of an attention with one query per sequence, by the shapes of its inputs; 0 for others."""
    query, key = (*(shape for shape in tensors_of(shapes) if len(shape) == 4), (), ())[:2]
    # Heads are before or behind the places.
    return max((keys for queries, keys in zip(query[1:3], key[1:3], strict=False) if queries == 1 < keys), default=0)


@dataclass(frozen=True, eq=False)
class Passes:
    """Equal passes of a step that could be one pass over a batch."""

    count: int  #: passes per step; 1 for none
    work: Bools  #: which pieces of work belong to them
    is_apart: bool = True  #: whether inputs or gradients show that none needs another one's result

    def saved_share(self, facts: Facts, filled: Float64s, rows: Int64s | slice = EVERY) -> Float64s:
        """Share of the time of each piece of work that goes away if the passes become one.

        A kernel takes the time of an empty kernel, plus the time for which its work fills the GPU (or its time at the
        roof). A batch pays the first part once and the second part for each pass. No kernel gets shorter than the
        kernel of one pass.

        Args:
            filled: share of the GPU that each piece keeps busy; nan if unknown.
            rows: rows of `Facts.work` to answer for.
        """
        fixed = started_share(facts, rows)
        left = fixed / self.count + (1 - fixed) * np.clip(np.nan_to_num(filled[rows], nan=1.0), 0.0, 1.0)
        at_roof = facts.at_roof.select("roof_ns", "owned_ns")[rows]
        roof = (at_roof["roof_ns"] / at_roof["owned_ns"]).fill_null(float("nan")).to_numpy()
        over_link = facts.program.having("label", "host-to-device", "device-to-host")[rows]
        saved = np.clip(1 - np.fmin(left, roof), 0.0, self.freed)
        return np.where(self.work[rows] & ~over_link, saved, 0.0)

    @property
    def freed(self) -> float:
        """Share of the launches that go away."""
        return 1 - 1 / self.count

    def calls(self, facts: Facts) -> Float64s:
        """Share of the host's time for issuing each piece that goes away. Work of one graph launch goes together."""
        if self.work.all():
            return np.full(len(self.work), self.freed)
        begins = facts.work["launch_start_ns"].fill_null(0).to_numpy()
        return np.where(self.work | np.isin(begins, begins[self.work & (begins > 0)]), self.freed, 0.0)

    def removed_ns(self, facts: Facts, saved: Float64s) -> int:
        """GPU time that goes away with these shares of its work, start latency before that work included."""
        before = facts.program.of_gaps(self.work) > 0
        return int(facts.program.own_ns @ saved + self.freed * facts.causes["start-latency"].where(before).total)


@once
def passes_of_step(facts: Facts) -> Passes:
    """The equal passes that a step runs over different inputs; none unless steps are sure, as a pass may be a step.

    The profile must show that no pass needs the result of another one: the host sends their inputs one by one, their
    results are concatenated after the last one, or their gradients are summed for one optimizer pass. Loops over tokens
    or over the time steps of a sampler, and layers, look the same otherwise. Concatenated results are the weakest sign:
    those of a rollout or of generated tokens are joined as well.
    """
    none = Passes(1, np.zeros(facts.work.height, dtype=np.bool_))
    if not (facts.window.steps and facts.timeline.steps.is_sure and facts.phase is None):
        return none
    sent = _sent_passes(facts)
    if sent > 1:
        return Passes(sent, np.ones(facts.work.height, dtype=np.bool_))
    return _summed_passes(facts) or _joined_passes(facts) or _image_passes(facts) or none


def _summed_passes(facts: Facts) -> Passes | None:
    """The micro-batches of a step: forward and backward passes whose gradients are summed for one optimizer pass."""
    program, products = facts.program, facts.program.products
    inside, counts, adds = np.zeros(facts.work.height, dtype=np.bool_), [], program.marked("adding")
    for step in in_launch_order(facts):
        begins, ends = micro_batches(facts, step)
        if not len(begins) or not program.optimizing[step[ends[-1] :]].any():
            return None
        # Networks of equal sizes launch equal kernels, too, but no gradient is added to one that is there.
        added = np.array([adds[step[begin:end]].sum() for begin, end in zip(begins, ends, strict=True)])
        if added[1:].min() - added[0] < _LEAST_ADDED * (ends[0] - begins[0]):
            return None
        # Without a forward pass of its own, a backward pass goes over the graph of the one before.
        forward = np.array([products[step[a:b]].sum() for a, b in zip(np.r_[0, ends[:-1]], begins, strict=True)])
        if forward.min() < _ALIKE * forward.max() or forward.min() < _LEAST_KERNELS:
            return None
        inside[step[: ends[-1]]] = True
        counts.append(len(begins))
    return Passes(int(np.median(counts)), inside) if counts else None


def _joined_passes(facts: Facts) -> Passes | None:
    """Passes that launch the same kernels and whose results are concatenated."""
    program = facts.program
    joining = program.marked("concatenation")
    inside, counts = np.zeros(facts.work.height, dtype=np.bool_), []
    # A pass that draws from a distribution chooses the input of the next one, as a rollout or a sampled text does. So
    # does one that attends, writes rows into its cache and chooses the likeliest token, or attends with one query. One
    # that attends and multiplies a few rows with each matrix makes tokens or patches of a series, one after the other.
    draws, chooses, narrow = program.labelled("random"), program.marked("searching"), program.marked("vector-product")
    attends, writes, decodes = program.labelled("attention"), program.marked("adding-rows"), single_queries(facts)
    for step in program.by_step():
        places = np.flatnonzero(program.is_kernel[step])
        rows = step[places]
        if not _LEAST_PASSES * _LEAST_KERNELS <= len(rows) <= MOST_KERNELS:
            return None
        codes = program.launched_as(rows)
        period, begin, stop = longest_repetition(codes)
        repeats = (stop - begin) // period if period else 0
        if repeats < _LEAST_PASSES or not is_structured(codes[begin:stop], period):
            return None
        one_pass, end = rows[begin : begin + period], rows[stop - _ONE_INPUT // 2 : stop + _ONE_INPUT]
        joined = joining[end] & ~np.isin(program.launched_as(end), codes[begin : begin + period])
        from_cache = attends[one_pass].any() and writes[one_pass].any()
        is_chosen = chooses[one_pass].any() and (draws[one_pass].any() or from_cache or decodes[one_pass].any())
        multiplying = one_pass[program.products[one_pass] & ~attends[one_pass]]
        few_rows = 2 * time_of(program, multiplying[narrow[multiplying]]) > time_of(program, multiplying)
        continues = is_chosen or (few_rows and attends[one_pass].any())
        if stop - begin < _PASSES_SHARE * stop or not joined.any() or continues:
            return None
        inside[step[places[begin] : places[stop - 1] + 1]] = True  # with fills and copies between the kernels
        counts.append(repeats)
    return Passes(int(np.median(counts)), inside, is_apart=False) if counts else None


def _image_passes(facts: Facts) -> Passes | None:
    """Passes that begin with a convolution over images that no pass makes, so that all images existed before.

    Needs recorded shapes. A sampler, in contrast, makes its next image by work on tensors with the same sides.
    """
    program = facts.program
    if facts.trains or not facts.timeline.has_operators:
        return None
    shapes = program.shapes()
    if shapes.null_count() == shapes.len():
        return None
    counts, convolutions = [], program.labelled("convolution")
    for step in program.by_step():
        rows = step[program.is_kernel[step]]
        first = np.flatnonzero(convolutions[rows])[:1]
        text = shapes[int(rows[first[0]])] if len(first) else None
        images = next(iter(tensors_of(text)), ())
        if len(images) != _IMAGE_DIMENSIONS or math.prod(images) < _LEAST_NUMBERS:
            return None
        texts = shapes.gather(rows)
        begins = np.flatnonzero((texts == text).fill_null(value=False).to_numpy())
        begins = begins[np.r_[True, np.diff(begins) > _ONE_INPUT]]
        lengths = np.diff(np.r_[begins, len(rows) + begins[0]])
        others = [shape for other in texts.drop_nulls().unique() if other != text for shape in tensors_of(other)]
        if len(begins) < _LEAST_PASSES or not _are_equal_passes(lengths):
            return None
        if begins[0] > (1 - _ALIKE_SHARE) * lengths[0] or any(shape[1:] == images[1:] for shape in others):
            return None
        counts.append(len(begins))
    return Passes(int(np.median(counts)), program.step > 0) if counts else None


def _are_equal_passes(lengths: Int64s) -> bool:
    """Whether most passes launch about as many kernels as the median pass, and that is enough."""
    median = float(np.median(lengths))
    alike = np.abs(lengths - median) <= max(2.0, 0.02 * median)
    return bool(median >= _LEAST_KERNELS and alike.mean() >= _ALIKE_SHARE)


def _sent_passes(facts: Facts) -> int:
    """How many equal passes a step runs over inputs that the host sends one by one; 1 for none.

    Passes whose last result the host reads back are not counted, because it may make the input of the next pass. Nor
    are layers to which tables of sizes are sent, as for gradients of sharded layers: the forward pass is before them.
    """
    label, counts, products = facts.work["label"], [], facts.program.products
    to_device, to_host = ((label == direction).to_numpy() for direction in ("host-to-device", "device-to-host"))
    to_device = to_device & (facts.work["bytes"] > _A_NUMBER).fill_null(value=False).to_numpy()
    for rows in facts.program.by_step():
        sent = np.flatnonzero(to_device[rows])
        begins = sent[np.r_[True, np.diff(sent) > _ONE_INPUT]] if len(sent) else sent
        if len(begins) < _LEAST_PASSES:
            return 1
        lengths = np.diff(np.r_[begins, len(rows)])
        before = products[rows[: begins[0]]].sum()
        if not _are_equal_passes(lengths) or before > (1 - _ALIKE_SHARE) * products[rows].sum():
            return 1
        reads = np.flatnonzero(to_host[rows])
        reads = reads[reads >= begins[0]]
        passes = np.searchsorted(begins, reads, side="right") - 1
        late = reads - begins[passes] >= (1 - _AT_END_SHARE) * lengths[passes]
        if late.sum() > len(begins) / 2:
            return 1
        counts.append(len(begins))
    return int(np.median(counts))


#: Bytes that the host sends of a single number, such as a limit or a scale: no input of a pass.
_A_NUMBER: Final = 16

#: Least turns of a loop in a step.
_LEAST_TURNS: Final = 16
#: Most launches of a turn.
_LONGEST_TURN: Final = 64
#: Least share of the launches of a step that belong to such loops.
_LOOPED_SHARE: Final = 0.25
#: Longer kernels keep a GPU busy while the next one is launched.
_SMALL_NS: Final = 10_000
#: Most loops that a step is searched for: those of a forward and a backward pass, in two parts of the step.
_MOST_LOOPS: Final = 4


@dataclass(frozen=True, eq=False)
class LoopIterations:
    """Loops of a step that launch the same few small kernels in each turn."""

    count: float  #: turns of the longest loop of a step
    #: kernels, copies: of one of its turns; copies with fills of memory
    kernels: float
    copies: float
    share: Float64s  #: share of each piece of work that goes away if all turns become one
    #: whether a turn searches for the largest or smallest value, as greedy and dynamic programs do: the next turn
    #: probably needs its place
    searches: bool


@once
def turns_of_step(facts: Facts) -> LoopIterations | None:
    """Loops that launch at least a quarter of a step's work and whose turns could become one.

    A turn must not be a layer or an update of one parameter. Layers have products with norms or activations; parameters
    have different sizes, or their kernels belong to an optimizer. A turn with products but without norms and
    activations is a part of a grouped product if its result is copied into place or searched; a loop of as many turns
    in the same step is its backward pass. A turn without products is no layer. Turns that only send data and wait
    launch no kernel and belong to `blocking-copy`.
    """
    program = facts.program
    if facts.phase is not None or not facts.window.steps:
        return None
    others = program.labelled("attention", "communication", "convolution") | program.optimizing
    others = others | program.having("label", "device-to-host")
    of_layers, fills = program.labelled("normalization", "softmax"), program.marked("filling")
    products, ending = program.products, program.labelled("copy-cast", "sort-topk")
    sent = program.having("label", "host-to-device") & facts.work["pageable"].fill_null(value=False).to_numpy()
    nonlinear = program.marked("nonlinear") | program.marked("choosing")
    searching = program.marked("searching")
    share = np.zeros(facts.work.height)
    counts, kernels, copies = [], [], []
    searches = False
    for rows in program.by_step():
        if not _LEAST_TURNS <= len(rows) <= MOST_KERNELS:
            return None
        candidates, counts_of_parts = [], set()
        # Places that are filled one after the other may have any size.
        for begin, stop, period in loops_of(np.where(fills[rows], -2, program.launched_as(rows))):
            turn, loop = rows[begin : begin + period], rows[begin:stop]
            if others[loop].any() or np.median(program.own_ns[loop]) > _SMALL_NS or sent[turn].all():
                continue
            multiplies, count = bool(products[turn].any()), (stop - begin) // period
            if not (multiplies and (nonlinear | of_layers)[turn].any()):
                candidates.append((count * period, begin, period, multiplies))
            if ending[turn].any() and not nonlinear[turn].any():
                counts_of_parts.add(count)
        loops = [
            (length, begin, period)
            for length, begin, period, multiplies in candidates
            if not multiplies or length // period in counts_of_parts
        ]
        if sum(length for length, *_ in loops) < _LOOPED_SHARE * len(rows):
            return None
        for length, begin, period in loops:
            share[rows[begin : begin + length]] = 1 - period / length
        length, begin, period = max(loops)
        turn = rows[begin : begin + period]
        counts.append(length // period)
        kernels.append(int(program.is_kernel[turn].sum()))
        copies.append(period - kernels[-1])
        searches = searches or bool(searching[turn].any())
    if not counts:
        return None
    return LoopIterations(float(np.mean(counts)), float(np.mean(kernels)), float(np.mean(copies)), share, searches)


def recurring_share(facts: Facts) -> float:
    """Share of a step's launches in turns that need the turn before: turns with products and nonlinear functions.

    The least of all steps; 0 if the window has none. Each turn waits for the last one, so only a larger batch gives its
    kernels more to do.
    """
    program, shares = facts.program, [1.0 if facts.window.steps else 0.0]
    products = program.products
    nonlinear = program.marked("nonlinear") | program.labelled("normalization", "softmax")
    for rows in program.by_step():
        if not _LEAST_TURNS <= len(rows) <= MOST_KERNELS:
            return 0.0
        loops = loops_of(program.launched_as(rows))
        turns = ((rows[begin : begin + period], stop - begin) for begin, stop, period in loops)
        shares.append(
            sum(length for turn, length in turns if products[turn].any() and nonlinear[turn].any()) / len(rows)
        )
    return min(shares)


def loops_of(codes: Int64s) -> list[tuple[int, int, int]]:
    """Begin, stop and period of the loops of many short turns in a sequence, including those inside longer turns."""
    loops, parts = [], [(0, len(codes))]
    for _ in range(_MOST_LOOPS):
        if not parts:
            break
        first, last = parts.pop(0)
        period, begin, stop = longest_repetition(codes[first:last])
        begin, stop = first + begin, first + stop
        if period > _LONGEST_TURN:
            inner = loops_of(codes[begin : begin + period])
            for turn in range(begin, stop - period + 1, period):
                loops += [(turn + start, turn + end, length) for start, end, length in inner]
        elif period and stop - begin >= _LEAST_TURNS * period:
            loops.append((begin, stop - (stop - begin) % period, period))
        else:
            continue
        parts += [part for part in ((first, begin), (stop, last)) if part[1] - part[0] >= _LEAST_TURNS]
        parts.sort(key=lambda part: part[0] - part[1])
    return loops


@once
def backward_work(facts: Facts) -> Bools:
    """Which work autograd's thread launched, or lies in a range named after the backward pass."""
    by_range = facts.program.having("phase", "backward")
    program = facts.program
    threads = program.thread
    gradient = program.is_kernel & program.marked("backward")
    if not (threads >= 0).any() or not gradient.any():
        return by_range
    # In each process, the thread that launches most of a GPU's kernels named after gradients is autograd's, which has
    # one for each GPU, unless it launches everything.
    starts, by_thread = facts.work["start_ns"].to_numpy(), np.zeros(len(threads), dtype=np.bool_)
    gpus, gpu = numbered(facts.work, ["process", "device"])
    for each in range(gpus.height):
        own = np.flatnonzero(gpu == each)
        if not gradient[own].any():
            continue
        values, counts = np.unique(threads[own[gradient[own]]], return_counts=True)
        engine, main = values[counts.argmax()], threads[own[np.argmin(starts[own])]]
        if engine != main:
            by_thread[own] = threads[own] == engine
    return np.asarray(by_range | by_thread, dtype=np.bool_)


#: Least products of several backward passes for each product of the forward pass. One pass launches two to three (up to
#: 3.1 in the programs of `data/pairs`, without recomputation by checkpoints).
_LEAST_OF_FORWARD: Final = 3.5
#: Least products of each of several passes for each product of the forward pass: at least as many as its part of the
#: forward pass, and more for the heads of all losses but one.
_LEAST_OF_PASS: Final = 1.25
#: Most products of each of several passes for each product of the forward pass.
_MOST_OF_PASS: Final = 4
#: A sequence repeats if this share of codes equals the code one sequence before; ends of networks differ.
_MOST_REPEATED: Final = 0.9
#: Backward passes over one graph repeat layers at least this many times as often as its forward pass does.
_LEAST_OF_TURNS: Final = 1.5
#: Backward passes of more products in a step are not searched.
_MOST_PRODUCTS: Final = 20_000


def longest(values: Bools) -> int:
    """The length of the longest run of true values."""
    return int(np.diff(np.flatnonzero(np.r_[True, ~values, True])).max()) - 1


def in_launch_order(facts: Facts) -> Iterator[Int64s]:
    """The rows of `Facts.work` of each step and GPU, in the order of their launches."""
    launched = facts.work["launch_start_ns"].fill_null(-1).to_numpy()
    gpus = facts.work["device"].to_numpy()
    is_one_gpu = all_equal(facts.work["device"])
    for rows in facts.program.by_step():
        in_order = rows[np.argsort(launched[rows], kind="stable")]
        if is_one_gpu:
            yield in_order
        else:
            yield from (in_order[gpus[in_order] == gpu] for gpu in np.unique(gpus[rows]))


#: Micro-batches launch equal kernels, but for this share. Passes over other networks launch other kernels.
_ALIKE: Final = 0.9
#: Least gradients that a later micro-batch adds, for each kernel of a backward pass.
_LEAST_ADDED: Final = 0.04


def micro_batches(facts: Facts, work: Int64s) -> tuple[Int64s, Int64s]:
    """Where the backward passes of the micro-batches of a step begin and end; none if there are not at least two.

    A micro-batch is a backward pass that other work separates from the next one, without an optimizer in between, and
    that launches the same kernels.

    Args:
        work: rows of `Facts.work` of the step, in the order of their launches.
    """
    program, backward = facts.program, backward_work(facts)
    is_backward = np.zeros(len(work) + 2, dtype=np.bool_)
    is_backward[1:-1] = backward[work]
    edges = np.flatnonzero(is_backward[1:] != is_backward[:-1])
    begins, ends = edges[::2], edges[1::2]
    long = ends - begins >= (ends - begins).max(initial=0) / 2  # shorter ones are parts of a pass
    begins, ends = begins[long], ends[long]
    none = begins[:0], ends[:0]
    if len(begins) < 2 or program.optimizing[work[begins[0] : begins[-1]]].any():
        return none
    # The first micro-batch hands its gradients over, the others add theirs.
    adds, codes = program.marked("adding"), program.name_codes
    parts = [work[begin:end] for begin, end in zip(begins, ends, strict=True)]
    kernels = np.stack([np.bincount(codes[part[~adds[part]]], minlength=codes.max() + 1) for part in parts])
    common, all_of = (choose(kernels, kernels[-1]).sum(axis=1) for choose in (np.minimum, np.maximum))
    return (begins, ends) if (common >= _ALIKE * all_of).all() else none


def backward_parts(program: Program, rows: Int64s, backward: Bools, least_products: int = 1) -> list[Int64s]:
    """The backward work of a step, split where forward products lie between; parts with fewer products left out."""
    products = program.products
    rows = rows[backward[rows] | products[rows]]
    edges = np.flatnonzero(np.diff(backward[rows].astype(np.int8), prepend=0, append=0))
    parts = (rows[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
    return [part for part in parts if products[part].sum() >= least_products]


@once
def passes_over_one_graph(facts: Facts) -> tuple[Bools, float]:
    """Work of the second and later backward passes of each step over one forward pass, and backward passes per step.

    Each loss that is differentiated separately goes through the common part of the graph again; so does each row of a
    Jacobian.
    """
    program, backward = facts.program, backward_work(facts)
    again, counts = np.zeros(facts.work.height, dtype=np.bool_), []
    periods: dict[tuple[bytes, bytes], int] = {}
    product = program.products
    if not backward.any() or backward.all():
        return again, 1.0
    for rows in program.by_step():
        of_step, is_backward = rows[product[rows]], backward[rows[product[rows]]]
        forwards, backwards = of_step[~is_backward], of_step[is_backward]
        forward = len(forwards)
        if not forward or len(backwards) < _LEAST_OF_FORWARD * forward:
            continue
        backwards = _without_runs(program, rows[backward[rows]], product)
        # Products that the forward pass launches as well may be a checkpoint's.
        backwards = backwards[~np.isin(program.launched_as(backwards), program.launched_as(forwards))]
        if not _LEAST_OF_FORWARD * forward <= len(backwards) <= _MOST_PRODUCTS:
            continue
        # Only products are compared: later passes also add to the gradients of the first one, which launches no sums.
        codes = program.launched_as(backwards)
        forward_codes = program.launched_as(forwards)
        key = codes.tobytes(), forward_codes.tobytes()  # mostly the same in all steps
        if key not in periods:
            period = _period_of_passes(codes, forward)
            # Several forward passes have as many backward passes, each over its own graph.
            is_own = bool(period) and _turns(codes) < _LEAST_OF_TURNS * _turns(forward_codes)
            periods[key] = 0 if is_own else period
        if not (period := periods[key]):
            continue
        backward_rows = rows[backward[rows]]
        again[backward_rows[int(np.flatnonzero(backward_rows == backwards[period])[0]) :]] = True
        counts.append(len(backwards) / period)
    return again, float(np.mean(counts)) if counts else 1.0


def _without_runs(program: Program, rows: Int64s, product: Bools) -> Int64s:
    """The products of these rows, of equal ones in a row the first: a library launches one kernel for each group."""
    kernels = rows[program.is_kernel[rows]]
    kernels = kernels[np.diff(program.launched_as(kernels), prepend=-1) != 0]
    products: Int64s = kernels[product[kernels]]
    return products


def _period_of_passes(codes: Int64s, forward: int) -> int:
    """The lag with the longest run of equal codes, of at least `forward`, in a row of backward passes; 0 for none."""
    most, period = forward - 1, 0
    for lag in range(math.ceil(_LEAST_OF_PASS * forward), min(len(codes) - forward, _MOST_OF_PASS * forward) + 1):
        equal = codes[lag:] == codes[:-lag]
        # Counting first is quicker: at most lags few codes are equal.
        if np.count_nonzero(equal) > most and (run := longest(equal)) > most:
            most, period = run, lag
    return period


def _turns(codes: Int64s) -> float:
    """How many times the shortest sequence occurs that most of these codes repeat; 1 if there is none."""
    for lag in range(1, len(codes) // 2 + 1):
        if np.count_nonzero(codes[lag:] == codes[:-lag]) >= _MOST_REPEATED * (len(codes) - lag):
            return len(codes) / lag
    return 1.0


def time_of(program: Program, which: Bools | Int64s) -> int:
    """Wall time that these pieces own."""
    return int(program.own_ns[np.flatnonzero(which) if which.dtype == np.bool_ else which].sum())


def time_beside(program: Program, which: Bools, reach: int = 8, *, over_others: bool = False) -> Int64s:
    """Time of the passes over memory next to these pieces, at most `reach` on either side; 0 for other work.

    Args:
        over_others: whether memsets and copies, which are no kernels, do not end a row of passes.
    """
    order = program.order
    found = np.zeros(len(order), dtype=np.bool_)
    places = np.flatnonzero(program.in_order(which))
    is_pass = program.in_order(program.passes)
    goes_on = is_pass | ~program.in_order(program.is_kernel) if over_others else is_pass
    for direction in (-1, 1):
        reached = places
        for _ in range(reach):
            reached = reached + direction
            reached = reached[(reached >= 0) & (reached < len(order))]
            reached = reached[goes_on[reached]]
            found[reached] = True
    found &= is_pass
    beside = np.zeros(len(order), dtype=np.int64)
    beside[order[found]] = program.own_ns[order[found]]
    return beside
