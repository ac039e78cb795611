"""Rule for gradients that no optimizer takes: backward work for weights that never change."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.headroom.shapes import first_shape, tensors_of
from warplens.analysis.repetition import longest_repetition
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import USUAL, Finding, Remedy, Variant
from warplens.diagnosis.program import Program
from warplens.diagnosis.rule import Limit, ahead_without, first_of, remembered
from warplens.diagnosis.rules.repetition import PerExpertLoop
from warplens.diagnosis.rules.rows import OF_A_BLOCK
from warplens.diagnosis.structure import (
    StructureRule,
    backward_parts,
    backward_work,
    longest,
    passes_over_one_graph,
    time_of,
)
from warplens.profile.schema import Bools, Float64s, Int64s

#: PyTorch's name of autograd's node that hands a gradient to its parameter.
_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"
#: Begin of PyTorch's names of optimizer passes.
_OPTIMIZES: Final = "Optimizer.step#"
#: Least share of an optimizer's time in kernels on lists of tensors for their blocks to show how many numbers it takes:
#: its other kernels may work on other gradients.
_LISTS_SHARE: Final = 0.9


@dataclass(frozen=True, eq=False)
class Unused:
    """Gradients handed to parameters that the following optimizer passes do not take."""

    share: Float64s  #: share of each piece of work that makes them
    gradients: int  #: their count, summed over the backward passes of the window
    numbers_share: float | None  #: their numbers over those of all gradients; None if sizes are not recorded
    inputs: bool = False  #: whether the others are gradients of inputs, which the program reads itself
    beside: Bools | None = None  #: work of the last layer whose gradients are taken: a part of it is for its input
    below: bool = False  #: whether it is a pass through frozen layers to an input, below the last one that learns


@dataclass(frozen=True, eq=False)
class _Pass:
    """One backward pass with its accumulations of gradients. Times in nanoseconds."""

    thread: int  #: autograd's
    begin: int  #: last other activity of the host before it
    until: int  #: first other activity of the host after it
    #: starts, ends: of each accumulation
    starts: Int64s
    ends: Int64s
    numbers: Int64s  #: size of each gradient
    unused: Float64s  #: share of gradients of that size that no optimizer takes
    added: Bools  #: which of them are added to those of the last pass, which nobody cleared
    inputs: bool  #: whether no optimizer runs, and the program reads gradients of its inputs
    read: bool  #: whether the program computes with the last gradient before its next forward pass

    @property
    def unused_numbers(self) -> float:
        """Numbers in gradients that no optimizer takes."""
        return float(self.numbers @ self.unused)

    @property
    def is_unsure(self) -> bool:
        """Whether most of these numbers are in gradients of sizes of which only some are taken."""
        unsure = (self.unused > 0) & (self.unused < 1)
        return float(self.numbers[unsure] @ self.unused[unsure]) > self.unused_numbers / 2


_OF_WEIGHTS: Final = (
    Remedy(
        "Run what is not trained without gradients",
        "backbone.requires_grad_(False)  # what is not trained; gradients still pass through it\n"
        "# only if nothing before it is trained either (prompts, adapters, a generator):\n"
        "with torch.no_grad(): features = backbone(x)  # a frozen backbone, a teacher, a reference model\n"
        "critic(fake.detach())  # only if this loss does not train the part before it",
        "its backward pass goes away, and the memory of its activations",
    ),
    Remedy(
        "Or train it",
        "# if these weights should be trained, the optimizer lacks them:\n"
        "taken = {id(p) for group in optimizer.param_groups for p in group['params']}\n"
        "[name for name, p in model.named_parameters() if p.grad is not None and id(p) not in taken]",
        "the same time, and weights that change",
    ),
)
_OF_FROZEN: Final = (
    Remedy(
        "Let no gradient pass below the lowest layer that learns",
        "# no model.enable_input_require_grads() and no inputs.requires_grad_(): frozen layers need neither\n"
        "# with checkpoints: use_reentrant=False, which needs no such inputs\n"
        "with torch.no_grad(): x = frozen_layers(x)  # or x.detach() before the first layer that learns",
        "the backward pass ends there, and the memory of the activations below goes away",
    ),
)
_OF_INPUTS: Final = (
    Remedy(
        "Ask only for the gradients that are read",
        "(slope,) = torch.autograd.grad(loss, x)  # instead of loss.backward() and x.grad\n"
        "model.requires_grad_(False)  # or once, before the first step",
    ),
)


class UnusedGradients(StructureRule):
    """Backward passes through weights that no optimizer changes, such as those of a frozen backbone."""

    id = "unused-gradients"
    model = "products"
    question = "Does the backward pass compute gradients that no optimizer takes?"
    limiter = "gradients that no optimizer takes"
    cause = "gradients of weights that no optimizer changes: a frozen part that is run with gradients, a missing detach"
    raised_when = (
        "in a trace with shapes, at least a tenth of the gradients, and of their numbers or (behind the last one that "
        "is taken) the time, is handed to parameters that the following optimizer passes do not take (or to an input "
        "with which the program computes nothing), or, without an optimizer, the program goes on with the gradient of "
        "an input alone; without shapes, each backward pass adds all its gradients, or those of a part of the network, "
        "to those of the last step, or it ends with equal layers of as many products as in the forward pass and no "
        "sums for biases or norms, below others with gradients of weights; and it costs 2 %"
    )
    claimed = (
        "backward work after the last gradient that is taken; before it, half of the products of the others; if sizes "
        "do not show which are taken, the pass in proportion to the numbers; the pauses while the host issues it"
    )
    headline = "Limited by gradients that nothing uses: {share} of the time goes into gradients that no optimizer takes"
    title = "The backward pass computes gradients that no optimizer takes"
    inputs: ClassVar = Variant(
        "The backward pass computes gradients of all weights, though only those of inputs are read"
    )
    below: ClassVar = Variant("The backward pass goes on through frozen layers, below the last one that learns")
    evidence: ClassVar = {
        "unused_gradients_per_step": "gradients handed to parameters that no optimizer takes",
        "unused_numbers_share": "their numbers, of those of all gradients",
    }
    refutation = (
        "List the parameters with a gradient (p.grad is not None) that are in no optimizer's param_groups: if there "
        "are none, or their gradients are read by something else (a norm, an update by hand), nothing is unused."
    )
    least_share = Limit(0.1, "A bias or a norm that is left out of the optimizer costs next to nothing.")
    small_threads = Limit(16_384, "Biases and norms have up to some ten thousand numbers; activations, millions.")
    least_small = Limit(16, "A few small sums may be those of a loss.")
    least_layers = Limit(4, "Fewer layers alike at the end of a backward pass may be parts of one.")
    least_products = Limit(4, "A backward pass of fewer products is that of a head or a loss.")
    weights_share = Limit(0.25, "Weights per small gradient: a norm has two small gradients, a product's bias one.")
    most_added_share = Limit(
        1.25, "Each gradient is added once; parts that a loop uses many times add theirs many times."
    )
    added_share = Limit(
        0.6,
        "Small gradients added, over passes that make them: one of one for a bias, two of three for a norm. If every "
        "part is used twice, half are added.",
    )
    one_run_share = Limit(0.2, "Products of one of up to five runs; the limits of added gradients rule out more runs.")
    same_share = Limit(0.9, "Runs of one network launch the same products, except for some of their heads.")
    least_added = Limit(4, "Weights, and biases or norms, that are added: a single one may be a part used twice.")
    product_share = Limit(
        0.5, "A layer's backward pass has two products, one for the gradient of its weight, one for that of its input."
    )

    def needless(self, finding: Finding) -> bool:
        """True: nothing uses the results."""
        return True

    def share(self, facts: Facts) -> Float64s:
        """Share of the work that makes unused gradients."""
        found = self._unused(facts)
        return np.zeros(facts.work.height) if found is None else found.share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The pauses before that work, and the share of all others that go away as the host gets ahead."""
        share = self.share(facts)
        if not share.any():
            return None
        return np.maximum(facts.program.of_gaps(share), ahead_without(facts, share >= 1), dtype=np.float64)

    @remembered
    def _unused(self, facts: Facts) -> Unused | None:
        """The unused gradients by the recorded sizes; if these are not recorded, by the structure of the pass."""
        communication = facts.program.labelled("communication")
        if (communication & ~facts.program.marked("summed-or-exchanged")).any():
            return None  # another rank's optimizer may take these gradients
        passes = _passes(facts)
        if not passes and not communication.any():
            return self._never_cleared(facts) or self._part_never_cleared(facts) or self._below_by_layers(facts)
        numbers = sum(int(each.numbers.sum()) for each in passes)
        unused = sum(each.unused_numbers for each in passes)
        gradients = sum(float(each.unused.sum()) for each in passes)
        count = sum(len(each.unused) for each in passes)
        # A single large gradient may be that of an input, which checkpoints need. A new input has none to add to.
        never_cleared = sum(int(each.numbers[(each.unused >= 1) & each.added].sum()) for each in passes)
        below = gradients < self.least_share * count and never_cleared < self.least_share * numbers
        if not numbers or (below and any(each.read for each in passes)):
            return None
        share, of_input = self._work_of(facts, passes)
        if below or unused < self.least_share * numbers:
            # Few numbers may cost much time: the weights of convolutions over large images. Between gradients that are
            # taken, they may be biases, which are handed over right after the products of their layer.
            share[share < 1] = 0
            if share @ facts.program.own_ns < self.least_share * facts.busy_ns:
                return None
            products = (facts.program.products & (share > 0)).sum()
            if below and products < self.least_products * len(passes):
                return None
        if not share.any():
            return None
        inputs = any(each.inputs for each in passes)
        return Unused(share, round(gradients), unused / numbers, inputs, of_input & (share < 1), below)

    def _work_of(self, facts: Facts, passes: Sequence[_Pass]) -> tuple[Float64s, Bools]:
        """Share of each piece of work that makes unused gradients, and work of the last layer whose are taken."""
        launched = facts.work["launch_start_ns"].fill_null(-1).to_numpy()
        product = facts.program.products
        share = np.zeros(len(launched))
        of_input = np.zeros(len(launched), dtype=np.bool_)
        for each in passes:
            inside = (facts.program.thread == each.thread) & (launched >= each.begin) & (launched < each.until)
            if each.is_unsure:
                # A used and an unused part have parameters of the same sizes: their work is proportional to these.
                share[inside] = each.unused_numbers / max(int(each.numbers.sum()), 1)
                continue
            taken = np.flatnonzero(each.unused < 1)
            if not len(taken):
                share[inside] = 1.0
                continue
            last = int(each.ends[taken[-1]])
            # The last layer with taken gradients need not compute that of its input.
            begin = _begin_of_layer(each, int(taken[-1]), np.sort(launched[inside & product]))
            of_input |= inside & (launched >= begin) & (launched < last)
            for place in np.flatnonzero(each.unused[: taken[-1]]):
                begin = each.ends[place - 1] if place else each.begin
                between = inside & product & (launched >= begin) & (launched < each.starts[place])
                share[between] = self.product_share * each.unused[place]
            share[inside & (launched >= last)] = 1.0
        return share, of_input

    def _never_cleared(self, facts: Facts) -> Unused | None:
        """Gradients that are added to those of the last step; for profiles without recorded sizes of parameters.

        The owner of an optimizer clears the gradients that it takes, and autograd hands over the first gradient after
        clearing without an addition. Only gradients that nobody clears are added in each backward pass, including the
        small ones of biases and norms, the smallest tensors of a network. Micro-batches begin with cleared gradients,
        and parts that are used twice add half of theirs. A network that is run many times in a step adds nearly all,
        but then each equally often: one that is run once adds some gradient of a size that no other has. One with heads
        for only some of its runs has such a gradient, too, but the backward pass of its last run adds none.
        """
        program, backward = facts.program, backward_work(facts)
        adds, small = program.marked("adding") & backward, program.labelled("reduction", "normalization") & backward
        share, added, seen = np.zeros(facts.work.height), 0, 0
        if not adds.any() or not program.labelled("optimizer").any() or passes_over_one_graph(facts)[0].any():
            return None
        if PerExpertLoop().share(facts).any():
            return None  # a loop over parts of stacked weights adds the gradients of all parts
        threads = np.zeros(len(adds))
        threads[adds] = program.threads(np.flatnonzero(adds))
        tiny = adds & (threads <= self.small_threads)
        cleared = (program.marked("filling") | program.marked("clearing")) & ~backward
        for rows in program.by_step():
            parts = backward_parts(program, rows, backward, int(self.least_products))
            if not parts or cleared[rows].sum() > tiny[rows].sum() / 2:
                return None
            for part in parts:
                places = np.flatnonzero(tiny[part])
                made = int(small[part].sum())
                if not max(self.least_small, self.added_share * made) <= len(places) <= self.most_added_share * made:
                    return None
                large = int((adds[part] & ~tiny[part]).sum())
                if large < self.weights_share * len(places) or len(np.unique(threads[part[places]])) < 2:
                    return None  # sums of activations have a single size
                if np.unique(threads[part[adds[part]]], return_counts=True)[1].min() > 1:
                    return None  # each is added several times: the part is run several times
                if self._runs_again(program, part, places):
                    return None
                share[part[places[0] :]] = 1.0
                added, seen = added + int(adds[part].sum()), seen + len(places)
        return Unused(share, added, None) if seen else None

    def _runs_again(self, program: Program, part: Int64s, places: Int64s) -> bool:
        """Whether a long stretch of this backward work adds no small gradient, but launches what the rest does."""
        products = np.flatnonzero(program.products[part])
        edges = np.r_[0, np.searchsorted(products, places), len(products)]
        longest_stretch = int(np.argmax(np.diff(edges)))
        first, stop = edges[longest_stretch], edges[longest_stretch + 1]
        if stop - first < self.one_run_share * len(products):
            return False
        codes = program.launched_as(part[products])
        return bool(np.isin(codes[first:stop], np.r_[codes[:first], codes[stop:]]).mean() > self.same_share)

    def _part_never_cleared(self, facts: Facts) -> Unused | None:
        """Never cleared gradients of a part of a network under autocast, such as the network of a perceptual loss.

        Autocast narrows each weight once per step, so its gradient is widened once and handed over. If all gradients of
        a part are added, with the size of narrowed weights, nobody clears them: gradients that are not cleared before
        the first backward pass of a step are cleared by no optimizer, except by filling them with zeros. If a weight is
        narrowed at each use, its first gradient is not added. If the loss has a term of the weights, gradients of the
        same size are computed in the same pass.
        """
        program, backward = facts.program, backward_work(facts)
        casts = program.labelled("copy-cast")
        adds = program.marked("adding-floats") & backward
        share, added = np.zeros(facts.work.height), 0
        if not adds.any() or not program.labelled("optimizer").any():
            return None
        cleared = program.marked("clearing") & ~backward
        filled = program.having("kind", "memset") | program.marked("filling")
        computed = program.labelled("elementwise") & program.having("precision", "fp32") & ~adds
        for rows in program.by_step():
            if not program.labelled("optimizer")[rows].any():
                return None
            narrowed = np.unique(program.blocks(rows[(program.marked("narrowing") & ~backward)[rows]]))
            for part in backward_parts(program, rows, backward, int(self.least_products)):
                places = np.flatnonzero(adds[part] & np.r_[False, casts[part][:-1]])
                places = places[np.isin(program.blocks(part[places]), narrowed)]
                tiny = program.threads(part[places]) <= self.small_threads
                if min(tiny.sum(), (~tiny).sum()) < self.least_added or cleared[rows].any():
                    break  # the first pass begins with cleared gradients
                if longest(filled[rows]) > len(places) / 2:
                    break  # gradients are filled with zeros one after the other
                sizes, times = np.unique(program.launched_as(part[places - 1][~tiny]), return_counts=True)
                widened = program.launched_as(part[casts[part]])
                if 2 * sum(times < (widened[:, None] == sizes).sum(axis=0)) > len(sizes):
                    break  # other gradients of these sizes are not added
                wide = np.unique(program.blocks(part[places][~tiny]))
                if 2 * np.isin(wide, program.blocks(part[computed[part]])).sum() > len(wide):
                    break  # a second term of the loss, such as a penalty of the weights, has gradients as well
                self._set_share(program, part, places, share)
                added += len(places)
        return Unused(share, added, None) if added else None

    def _below_by_layers(self, facts: Facts) -> Unused | None:
        """A backward pass through frozen layers, below those that learn; for profiles without recorded shapes.

        If the pass ends with frozen layers, and no other work follows in it, it computes the gradient of an input that
        no part made: prompts and embeddings would add up or pick their own. The part above must have gradients of
        weights: an input that is the only thing to learn, as in attacks or inversions, needs the whole pass.
        """
        program, backward = facts.program, backward_work(facts)
        share, passes = np.zeros(facts.work.height), 0
        if facts.phase is not None or not program.labelled("optimizer").any() or not backward.any():
            return None
        for rows in program.by_step():
            kernels = rows[program.is_kernel[rows]]
            layers = self._frozen_layers(program, kernels, np.flatnonzero(backward[kernels]))
            if layers is None:
                return None
            share[layers], passes = 1.0, passes + 1
        if share @ program.own_ns < self.least_share * facts.busy_ns:
            return None
        return Unused(share, passes, None, below=True)

    def _frozen_layers(self, program: Program, kernels: Int64s, places: Int64s) -> Int64s | None:
        """The work of frozen layers with which a step's only backward pass ends, at these places of its kernels.

        A layer's backward pass has a product for the gradient of its input for each product of its forward pass, and
        one more for each weight that learns. A bias that learns has a sum over rows.
        """
        if not len(places) or np.ptp(places) + 1 != len(places):
            return None
        forward, back = kernels[: places[0]], kernels[places]
        products = program.labelled("gemm", "convolution")
        of_weights = products[back].sum() - products[forward].sum()
        if of_weights < self.least_products:
            return None
        period, begin, stop = longest_repetition(program.launched_as(back))
        if not period or stop < len(back) or stop - begin < self.least_layers * period:
            return None
        layers = back[stop - (stop - begin) // period * period :]
        of_forward, begin, _ = longest_repetition(program.launched_as(forward))
        per_layer = products[layers[:period]].sum()
        if per_layer == period:
            return None  # products alone: those of weights and of inputs look alike
        learning = program.marked("weight-gradient") | program.marked("parameter-sum") | program.marked("generated")
        is_frozen = per_layer == products[forward[begin : begin + of_forward]].sum() and not learning[layers].any()
        return layers if is_frozen and 0 < per_layer <= of_weights else None

    def _set_share(self, program: Program, part: Int64s, places: Int64s, share: Float64s) -> None:
        """Sets the share of a backward pass that is unused if the gradients added at these places of it are."""
        products, casts = program.products, program.labelled("copy-cast")
        making = program.marked("weight-gradient") | program.labelled("reduction")
        before = np.flatnonzero(products[part][: places[0]])
        begin = int(before[-2:][0]) if len(before) else 0
        names = np.isin(program.name_codes[part], np.unique(program.name_codes[part[places - 1]]))
        if not (names & casts[part])[places[-1] + 1 :].any():
            share[part[begin:]] = 1.0  # no other gradient is handed over after them
            return
        unused, earlier = part[begin : places[-1] + 1], part[:begin]
        weight_gradients = making[unused] & products[unused]
        share[unused[products[unused]]] = 0.0 if weight_gradients.any() else self.product_share
        share[unused[making[unused]]] = 1.0
        # A part that is run on several inputs hands over the sum of all gradients after the last input.
        codes = program.launched_as(unused[making[unused]])
        share[earlier[making[earlier] & np.isin(program.launched_as(earlier), codes)]] = 1.0
        share[part[np.r_[places, places - 1]]] = 1.0

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        found = self._unused(facts)
        if found is None:
            return None
        removable = found.share > 0 if found.beside is None else (found.share > 0) | found.beside
        return self.seen(
            facts,
            claims,
            confidence="low" if found.inputs or (found.below and found.numbers_share is None) else "medium",
            evidence={
                "unused_gradients_per_step": found.gradients / facts.steps,
                "unused_numbers_share": found.numbers_share,
            },
            bound_ns=time_of(facts.program, removable) + facts.own_idle_ns,
            variant=first_of((found.inputs, self.inputs), (found.below, self.below), default=USUAL),
            remedies=first_of((found.inputs, _OF_INPUTS), (found.below, _OF_FROZEN), default=_OF_WEIGHTS),
        )


def _begin_of_layer(of_pass: _Pass, place: int, launches: Int64s) -> int:
    """When the gradients before this one, of other layers, had all been handed over: a product was launched since."""
    edges = np.searchsorted(launches, np.c_[np.r_[of_pass.begin, of_pass.ends[:-1]], of_pass.starts][: place + 1])
    worked = np.flatnonzero(edges[:, 1] > edges[:, 0])
    return int(of_pass.ends[worked[-1] - 1]) if len(worked) and worked[-1] else of_pass.begin


def _passes(facts: Facts) -> list[_Pass]:
    """The backward passes of the window that are followed by optimizer passes; none if shapes were not recorded."""
    recorded = facts.timeline.trace.operators
    if not recorded.height or recorded["input_shapes"].null_count() == recorded.height:
        return []
    operators, optimizing = _recorded(facts)
    if optimizing.is_empty() and facts.program.optimizing.any():
        return []  # an optimizer that was not recorded
    handed, main = _by_thread(operators, optimizing)
    if handed.is_empty() or main.is_empty():
        return []
    consumers = _GradientConsumers.of(facts, main, optimizing)
    window = facts.window
    elsewhere = np.sort(np.r_[main["start_ns"].to_numpy(), consumers.starts])
    starts, ends, threads = (handed[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    sums = operators.filter(pl.col("name") == "aten::add_")["start_ns"].to_numpy()
    added = np.searchsorted(sums, ends) > np.searchsorted(sums, starts)
    shapes = [first_shape(text) for text in handed["shapes"].to_list()]
    # While a backward pass runs, the thread that called it does nothing else.
    next_elsewhere = np.searchsorted(elsewhere, starts)
    edges = np.r_[0, np.flatnonzero(np.diff(next_elsewhere)) + 1, len(starts)]
    multiplied = main.filter(pl.col("name").str.contains(_MULTIPLIES))["start_ns"].to_numpy()
    reading = main.filter(~pl.col("name").str.contains(_UNREAD.pattern)).select("start_ns", "shapes")
    passes = []
    for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        end = int(ends[stop - 1])
        next_pass = int(starts[stop]) if stop < len(starts) else window.end_ns
        following = _following(consumers.starts, int(starts[first]), starts[edges[:-1]])
        unused = consumers.untaken(shapes[first:stop], following, end, next_pass)
        if unused is None:
            continue
        before, after = next_elsewhere[first] - 1, next_elsewhere[first]
        passes.append(
            _Pass(
                thread=int(threads[first]),
                begin=int(elsewhere[before]) if before >= 0 else window.start_ns,
                until=int(elsewhere[after]) if after < len(elsewhere) else window.end_ns,
                starts=starts[first:stop],
                ends=ends[first:stop],
                numbers=_numbers(shapes[first:stop]),
                unused=unused,
                added=added[first:stop],
                inputs=optimizing.is_empty(),
                read=_is_read(reading, multiplied, end, shapes[stop - 1]),
            )
        )
    return passes


def _recorded(facts: Facts) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Operators of the window with the shapes of their inputs, and its optimizer passes, both by their start."""
    trace, window = facts.timeline.trace, facts.window
    inside = (pl.col("start_ns") >= window.start_ns) & (pl.col("start_ns") < window.end_ns)
    ranges = trace.ranges.with_row_index("row").filter(inside).with_columns(pl.col("name").cast(pl.String))
    optimizing = ranges.filter(pl.col("name").str.starts_with(_OPTIMIZES)).sort("start_ns")
    shapes = trace.operators.select(
        pl.col("range").cast(pl.UInt32).alias("row"), pl.col("input_shapes").cast(pl.String).alias("shapes")
    )
    return ranges.join(shapes, on="row").sort("start_ns"), optimizing


def _numbers(shapes: Sequence[tuple[int, ...]]) -> Int64s:
    return np.array([math.prod(shape) for shape in shapes], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _GradientConsumers:
    """What takes gradients: the optimizer passes of a window, and updates that a program does by hand."""

    main: pl.DataFrame  #: operators of the thread that calls autograd
    starts: Int64s  #: of the optimizer passes
    #: taken, blocks: of each optimizer pass, the shapes of its tensors, and its blocks (`_blocks_taken`)
    taken: Sequence[Counter[tuple[int, ...]]]
    blocks: Sequence[float]
    by_hand: pl.DataFrame  #: operators of updates outside optimizer passes

    @classmethod
    def of(cls, facts: Facts, main: pl.DataFrame, optimizing: pl.DataFrame) -> _GradientConsumers:
        """Those of a window."""
        passes = list(optimizing.select("start_ns", "end_ns").iter_rows())
        updates = main.filter(pl.col("name").is_in(_UPDATES))
        begins, starts = updates["start_ns"].to_numpy(), optimizing["start_ns"].to_numpy()
        last = np.searchsorted(starts, begins, side="right") - 1  # the optimizer pass that began last
        ended = np.r_[optimizing["end_ns"].to_numpy(), 0]  # the last for those before any pass
        return cls(
            main,
            starts,
            taken=[_updated_shapes(main, begin, end) for begin, end in passes],
            blocks=[_blocks_taken(facts, begin, end) for begin, end in passes],
            by_hand=updates.filter(begins > ended[last]),
        )

    def untaken(
        self, shapes: Sequence[tuple[int, ...]], following: Sequence[int], end: int, next_pass: int
    ) -> Float64s | None:
        """Share of each gradient of a backward pass that nothing takes; None if what takes them was not recorded.

        Args:
            shapes: of the gradients, in the order in which they are handed over.
            following: the optimizer passes after it.
            end: of the backward pass.
            next_pass: begin of the next one.
        """
        unused = self._untaken_by_optimizers(shapes, following, end)
        if unused is None:
            return None
        counts, updated = Counter(shapes), _updated_shapes(self.by_hand, end, next_pass)
        return np.maximum(unused - [updated[shape] / counts[shape] for shape in shapes], 0.0)

    def _untaken_by_optimizers(
        self, shapes: Sequence[tuple[int, ...]], following: Sequence[int], end: int
    ) -> Float64s | None:
        """The same without updates by hand; without an optimizer, of gradients beside those that the program reads."""
        taken = sum((self.taken[index] for index in following), Counter[tuple[int, ...]]())
        if any(shape in taken for shape in shapes):
            return _without(shapes, taken)
        if blocks := sum(self.blocks[index] for index in following):
            # The sizes of lists were not recorded; a block goes over `OF_A_BLOCK` numbers of one tensor.
            numbers = _numbers(shapes)
            of_each = -(-numbers // OF_A_BLOCK)
            left = np.cumsum(of_each[::-1])[::-1]
            tail = left == left[0] - blocks  # what ran first, such as a frozen encoder, gets its gradients last
            return np.cumsum(tail, dtype=np.float64) if tail.any() else _untaken(numbers, of_each, round(blocks))
        if not len(self.starts) and (read := _read_after(self.main, end, shapes)):
            return np.array([float(shape not in read) for shape in shapes])
        return None  # an optimizer of flat copies, or one that was not recorded


def _by_thread(operators: pl.DataFrame, optimizing: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Accumulations of gradients by autograd's thread, and operators of the thread that calls it."""
    handed = operators.filter(pl.col("name") == _ACCUMULATES)
    callers = optimizing if optimizing.height else operators.filter(~pl.col("thread").is_in(handed["thread"].implode()))
    is_caller = pl.col("thread").is_in(callers["thread"].mode().sort().head(1).implode())
    return handed.filter(~is_caller), operators.filter(is_caller & pl.col("name").str.starts_with("aten::"))


def _without(shapes: Sequence[tuple[int, ...]], taken: Counter[tuple[int, ...]]) -> Float64s:
    """Share of each gradient that is not taken; shape (gradients,).

    The gradients of a part of a network, such as its head, are handed over one after the other. If a single sequence
    has the sizes that are taken, it is the one; otherwise, the gradients of a size have equal shares.

    Args:
        shapes: of the gradients, in the order in which they are handed over.
        taken: how many of each shape are taken.
    """
    counts = Counter(shapes)
    wanted = +Counter({shape: min(taken[shape], count) for shape, count in counts.items()})
    length, missing, begins = wanted.total(), Counter(wanted), []
    for place, shape in enumerate(shapes):
        missing[shape] -= 1
        if place >= length:
            missing[shapes[place - length]] += 1
        if place >= length - 1 and not any(missing.values()):
            begins.append(place - length + 1)
    if len(begins) == 1 and len(wanted) > 1:
        unused = np.ones(len(shapes))
        unused[begins[0] : begins[0] + length] = 0.0
        return unused
    return np.array([1 - wanted[shape] / counts[shape] for shape in shapes])


#: Operators that read no numbers, and those with which the next forward pass begins.
_UNREAD: Final = re.compile(
    r"aten::(?:(?:detach|view|reshape|t|transpose|permute|as_strided|expand|slice|select|alias|unsqueeze|squeeze|repeat"
    r"|requires_grad|zero|fill|zeros|ones)_?|\w+_like|empty\w*)$"
)
_OF_LAYERS: Final = r"linear|\w*mm|matmul|\w*conv\w*|embedding\w*|scaled_dot_product\w*"
_BEGINS_FORWARD: Final = re.compile(rf"aten::({_OF_LAYERS}|\w*norm)$")
#: The same without norms, which clip gradients as well.
_MULTIPLIES: Final = rf"^aten::(?:{_OF_LAYERS})$"
#: Most operators from a backward pass to the next forward pass: more are those of an update by hand.
_MOST_READING: Final = 64
#: The gradient of an input is among the last that a backward pass hands over.
_LAST: Final = 3


def _read_after(main: pl.DataFrame, end: int, handed: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Shapes of inputs whose gradients the program computes with after a backward pass, before its next forward pass.

    Args:
        main: operators of the thread that calls autograd.
        end: of the backward pass.
        handed: shapes of its gradients, in order. A shape that occurs twice may be that of weights.
    """
    counts = Counter(handed)
    read: set[tuple[int, ...]] = set()
    inputs = {shape for shape in handed[-_LAST:] if counts[shape] == 1}
    following = main.filter(pl.col("start_ns") >= end).sort("start_ns").head(_MOST_READING + 1)
    for name, text in following.select("name", "shapes").iter_rows():
        if _BEGINS_FORWARD.match(name):
            return read
        # A parameter that is added to the input of the next step is broadcast over its batch.
        if not _UNREAD.match(name) and (tensors := tensors_of(text)):
            read |= {max(tensors, key=math.prod)} & inputs
    return read if following.height <= _MOST_READING else set()


def _is_read(reading: pl.DataFrame, multiplied: Int64s, end: int, shape: tuple[int, ...]) -> bool:
    """Whether the program computes with a tensor of this shape after a backward pass, before its next forward pass.

    Args:
        reading: operators of the thread that calls autograd and that read numbers, in order of their starts.
        multiplied: the starts of the products of that thread.
        end: of the backward pass.
        shape: of the tensor.
    """
    starts = reading["start_ns"].to_numpy()
    forward = multiplied[np.searchsorted(multiplied, end) :]
    stop = int(np.searchsorted(starts, forward[0])) if len(forward) else len(starts)
    shapes = reading["shapes"][int(np.searchsorted(starts, end)) : stop]
    return bool(shapes.str.contains(json.dumps(list(shape)), literal=True).any())


#: Operators with which an optimizer that PyTorch does not know (Muon, one written by hand) takes gradients up. Averages
#: of weights use them, too: then the gradients of these weights do not count as unused.
_UPDATES: Final = tuple(
    f"aten::{kind}{name}_" for name in ("lerp", "add", "sub", "addcmul") for kind in ("", "_foreach_")
)


def _following(optimizer_starts: Int64s, start: int, passes: Int64s) -> Sequence[int]:
    """The optimizer passes after a backward pass and before the next backward pass that begins after them."""
    first = int(np.searchsorted(optimizer_starts, start))
    if first >= len(optimizer_starts):
        return ()
    later = passes[passes > optimizer_starts[first]]
    stop = int(np.searchsorted(optimizer_starts, later[0])) if len(later) else len(optimizer_starts)
    return range(first, stop)


def _updated_shapes(operators: pl.DataFrame, begin: int, end: int) -> Counter[tuple[int, ...]]:
    """Shapes of the tensors that one optimizer pass takes, each counted as often as in its commonest operator."""
    by_name: dict[str, Counter[tuple[int, ...]]] = {}
    inside = operators.filter(pl.col("start_ns").is_between(begin, end, closed="left"))
    for name, text, count in inside.group_by("name", "shapes").len().drop_nulls().iter_rows():
        first = json.loads(text)[:1]
        if not first or not isinstance(first[0], list):
            continue
        tensors = first[0] if any(isinstance(part, list) for part in first[0]) else [first[0]]
        for shape in tensors:
            by_name.setdefault(name, Counter())[tuple(shape)] += count
    taken: Counter[tuple[int, ...]] = Counter()
    for counts in by_name.values():
        taken |= counts
    return taken


#: Most sizes of gradients that are combined: the time grows with their square.
_MOST_SIZES: Final = 200


def _untaken(numbers: Int64s, blocks: Int64s, taken: int) -> Float64s:
    """Of each size, the share of gradients that are not taken by an optimizer which takes this many blocks in all.

    Parts such as adapters have sizes of their own. If whole sizes can add up to the blocks, one that is in none of
    these sums is not taken, and one that is in all of them is. For others, and without such a sum, the share is that of
    all blocks.
    """
    _, places = np.unique(numbers, return_inverse=True)
    totals = [int(total) for total in np.bincount(places, weights=blocks)]
    share = max(1 - taken / sum(totals), 0.0)
    if len(totals) > _MOST_SIZES:
        return np.full(len(numbers), share)
    shares = []
    for place, total in enumerate(totals):
        sums = 1  # bit n: whether other sizes can add up to n blocks
        for other in totals[:place] + totals[place + 1 :]:
            sums |= sums << other
        without, within = sums >> taken & 1, total <= taken and sums >> (taken - total) & 1
        shares.append(share if bool(without) == bool(within) else float(without))
    return np.array(shares)[places]


def _blocks_taken(facts: Facts, begin: int, end: int) -> float:
    """Blocks of the tensors that an optimizer pass takes in kernels on lists; 0 if other kernels do its work.

    A fused optimizer goes over each tensor once, others once per operation.
    """
    program = facts.program
    launched = facts.work["launch_start_ns"].fill_null(-1).to_numpy()
    inside = program.is_kernel & (launched >= begin) & (launched < end)
    rows = np.flatnonzero(inside & program.marked("foreach"))
    if not len(rows) or time_of(program, rows) < _LISTS_SHARE * time_of(program, inside):
        return 0.0
    sums = np.bincount(program.name_codes[rows], weights=np.nan_to_num(program.blocks(rows)))
    fused = np.unique(program.name_codes[rows[program.marked("fused-optimizer")[rows]]])
    return float(sums[fused].sum() if len(fused) else sums.max())
