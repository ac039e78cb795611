"""Gradients that no optimizer takes: backward work for weights that stay as they are."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.headroom.shapes import first_shape
from warplens.analysis.kernel_names import PRODUCTS
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import Finding, Remedy
from warplens.diagnosis.program import Program
from warplens.diagnosis.rule import Limit, ahead_without, remembered
from warplens.diagnosis.rules.repetition import PerExpertLoop
from warplens.diagnosis.rules.rows import OF_A_BLOCK
from warplens.diagnosis.structure import (
    StructureRule,
    backward_work,
    longest,
    passes_over_one_graph,
    time_of,
)
from warplens.profile.schema import Float64s, Int64s

#: How PyTorch names autograd's node that hands a gradient to its parameter, and the passes of its optimizers.
_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"
_OPTIMIZES: Final = "Optimizer.step#"
#: Of an optimizer's time that of kernels on lists of tensors, where their blocks tell how many it goes over: what it
#: does in other kernels may be for other gradients.
_LISTS_SHARE: Final = 0.9


@dataclass(frozen=True, eq=False)
class Unused:
    """Gradients that are handed to parameters which the following passes of optimizers do not take."""

    share: Float64s  #: of each piece of work, the share of its time that makes them
    gradients: int  #: how many there are, summed over the backward passes of the window
    numbers_share: float | None  #: of all numbers of gradients, theirs; None where sizes are not recorded


@dataclass(frozen=True, eq=False)
class _Pass:
    """One backward pass: begin and end of each accumulation, its gradient's size, and the share of it that is unused.

    `thread` is autograd's; `until` is when the host goes on with something else, `begin` when it was last seen at it.
    """

    thread: int
    begin: int
    until: int
    starts: Int64s
    ends: Int64s
    numbers: Int64s
    unused: Float64s


class UnusedGradients(StructureRule):
    """Backward passes through weights that no optimizer changes, such as those of a frozen backbone."""

    id = "unused-gradients"
    model = "products"
    question = "Does the backward pass work out gradients that no optimizer takes?"
    limiter = "gradients that no optimizer takes"
    cause = "gradients of weights that no optimizer changes: a frozen part that is run with gradients, a missing detach"
    raised_when = (
        "in a trace with shapes, a tenth of the gradients or more, and of their numbers, is handed to parameters that "
        "the following passes of the optimizers do not take; without shapes, each backward pass adds its gradients to "
        "those of the last step, down to the biases, or those of a part of the network; and it costs 2 %"
    )
    claimed = (
        "backward work behind the last gradient that is taken; before it, half of the products of the others; where "
        "sizes do not tell which are taken, the pass in proportion to the numbers; the pauses while the host issues it"
    )
    headline = "Limited by gradients that nothing uses: {share} of the time goes into gradients that no optimizer takes"
    title = "The backward pass works out gradients that no optimizer takes"
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
    least_products = Limit(4, "A backward pass of fewer products is that of a head or a loss.")
    weights_share = Limit(0.25, "Weights for each small gradient: a norm has two of these, a product's bias one.")
    most_added_share = Limit(
        1.25, "Each gradient is added once: parts that a loop uses many times add theirs as often."
    )
    added_share = Limit(
        0.6,
        "Of small gradients and the passes that make them: one of each for a bias, two for the three passes of a norm. "
        "Where every part is used twice, half are added.",
    )
    least_added = Limit(4, "Of weights, and of biases or norms: one of either may be a part that is used twice.")
    product_share = Limit(
        0.5, "Of two products of a layer's backward pass one makes the gradient of its weight, one that of its input."
    )

    def needless(self, finding: Finding) -> bool:
        """That is what it is about."""
        return True

    def share(self, facts: Facts) -> Float64s:
        """The work that makes them."""
        found = self._unused(facts)
        return np.zeros(facts.work.height) if found is None else found.share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The pauses before that work, and of all others as much as a host without it would be ahead by."""
        share = self.share(facts)
        if not share.any():
            return None
        return np.maximum(facts.program.of_gaps(share), ahead_without(facts, share >= 1), dtype=np.float64)

    @remembered
    def _unused(self, facts: Facts) -> Unused | None:
        if facts.program.labelled("communication").any():
            return None  # another rank's optimizer may take what this one's does not
        passes = _passes(facts)
        if not passes:
            return self._never_cleared(facts) or self._part_never_cleared(facts)
        numbers = sum(int(each.numbers.sum()) for each in passes)
        unused = sum(float(each.numbers @ each.unused) for each in passes)
        gradients = sum(float(each.unused.sum()) for each in passes)
        many = sum(len(each.unused) for each in passes)
        # A single large one may be that of an input, which checkpoints ask for.
        if not numbers or unused < self.least_share * numbers or gradients < self.least_share * many:
            return None
        launched = facts.work["launch_start_ns"].fill_null(-1).to_numpy()
        product = facts.program.labelled(*PRODUCTS)
        share = np.zeros(len(launched))
        for each in passes:
            inside = (facts.program.thread == each.thread) & (launched >= each.begin) & (launched < each.until)
            unsure = (each.unused > 0) & (each.unused < 1)
            if float(each.numbers[unsure] @ each.unused[unsure]) > float(each.numbers @ each.unused) / 2:
                # Two parts have parameters of the same sizes: their work is as their weights.
                share[inside] = float(each.numbers @ each.unused) / max(int(each.numbers.sum()), 1)
                continue
            taken = np.flatnonzero(each.unused < 1)
            last = int(each.ends[taken[-1]]) if len(taken) else each.begin
            for place in np.flatnonzero(each.unused[: taken[-1]] == 1) if len(taken) else ():
                begin = each.ends[place - 1] if place else each.begin
                between = inside & product & (launched >= begin) & (launched < each.starts[place])
                share[between] = self.product_share
            share[inside & (launched >= last)] = 1.0
        return Unused(share, round(gradients), unused / numbers) if share.any() else None

    def _never_cleared(self, facts: Facts) -> Unused | None:
        """Gradients that are added to those of the last step, where no sizes of parameters are recorded.

        An optimizer clears what it takes, and autograd hands a cleared gradient over as it is. Only what nobody clears
        is added to what is there, in each backward pass: also the small gradients of biases and norms, which nothing
        else in a network is as small as. Micro-batches begin with cleared ones, and parts that are used twice add half.
        A network that is run many times in a step adds nearly all of them, but then those of its first and its last
        layer as often as others: a network that is run once adds some gradient of a size that no other has.
        """
        program, backward = facts.program, backward_work(facts)
        adds, small = program.marked("adding") & backward, program.labelled("reduction", "normalization") & backward
        share, added, seen = np.zeros(facts.work.height), 0, 0
        if not adds.any() or not program.labelled("optimizer").any() or passes_over_one_graph(facts)[0].any():
            return None
        if PerExpertLoop().share(facts).any():
            return None  # what a loop does to parts of stacked weights is added up for all of them
        threads = np.zeros(len(adds))
        threads[adds] = program.threads(np.flatnonzero(adds))
        tiny = adds & (threads <= self.small_threads)
        cleared = (program.marked("filling") | program.marked("clearing")) & ~backward
        for rows in program.by_step():
            held = rows[backward[rows] | program.labelled(*PRODUCTS)[rows]]
            edges = np.flatnonzero(np.diff(backward[held].astype(np.int8), prepend=0, append=0))
            parts = [held[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
            parts = [part for part in parts if program.labelled(*PRODUCTS)[part].sum() >= self.least_products]
            if not parts or cleared[rows].sum() > tiny[rows].sum() / 2:
                return None
            for part in parts:
                at = np.flatnonzero(tiny[part])
                made = int(small[part].sum())
                if not max(self.least_small, self.added_share * made) <= len(at) <= self.most_added_share * made:
                    return None
                large = int((adds[part] & ~tiny[part]).sum())
                if large < self.weights_share * len(at) or len(np.unique(threads[part[at]])) < 2:
                    return None  # sums of activations are of one size
                if np.unique(threads[part[adds[part]]], return_counts=True)[1].min() > 1:
                    return None  # each is added several times: the part is run several times
                share[part[at[0] :]] = 1.0
                added, seen = added + int(adds[part].sum()), seen + len(at)
        return Unused(share, added, None) if seen else None

    def _part_never_cleared(self, facts: Facts) -> Unused | None:
        """The same of a part of a network under autocast, such as what a perceptual loss looks through.

        Autocast narrows each weight once, so its gradient is widened once, and handed over. Where all of a part are
        added to what is there, as wide as weights that were narrowed are, nobody clears them. What has not been cleared
        when the first backward pass of a step begins was cleared by no optimizer, unless by filling it with zeros. Of
        weights that are narrowed each time that they are used, the first gradient is not added; where the loss has a
        term of the weights, as wide gradients of that are computed in the same pass.
        """
        program, backward = facts.program, backward_work(facts)
        products, casts = program.labelled(*PRODUCTS), program.labelled("copy-cast")
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
            held = rows[backward[rows] | products[rows]]
            edges = np.flatnonzero(np.diff(backward[held].astype(np.int8), prepend=0, append=0))
            parts = [held[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
            narrowed = np.unique(program.blocks(rows[(program.marked("narrowing") & ~backward)[rows]]))
            for part in (each for each in parts if products[each].sum() >= self.least_products):
                at = np.flatnonzero(adds[part] & np.r_[False, casts[part][:-1]])
                at = at[np.isin(program.blocks(part[at]), narrowed)]
                tiny = program.threads(part[at]) <= self.small_threads
                if min(tiny.sum(), (~tiny).sum()) < self.least_added or cleared[rows].any():
                    break  # the first pass begins with cleared gradients
                if longest(filled[rows]) > len(at) / 2:
                    break  # one after the other
                sizes, times = np.unique(program.launched_as(part[at - 1][~tiny]), return_counts=True)
                widened = program.launched_as(part[casts[part]])
                if 2 * sum(times < (widened[:, None] == sizes).sum(axis=0)) > len(sizes):
                    break  # others are as large, and not added
                wide = np.unique(program.blocks(part[at][~tiny]))
                if 2 * np.isin(wide, program.blocks(part[computed[part]])).sum() > len(wide):
                    break  # a second term of the loss, such as a penalty of the weights, has gradients as well
                self._take(program, part, at, share)
                added += len(at)
        return Unused(share, added, None) if added else None

    def _take(self, program: Program, part: Int64s, at: Int64s, share: Float64s) -> None:
        """Writes what of a backward pass nobody needs who adds no gradients at these places of it."""
        products, casts = program.labelled(*PRODUCTS), program.labelled("copy-cast")
        making = program.marked("weight-gradient") | program.labelled("reduction")
        before = np.flatnonzero(products[part][: at[0]])
        begin = int(before[-2:][0]) if len(before) else 0
        names = np.isin(program.name_codes[part], np.unique(program.name_codes[part[at - 1]]))
        if not (names & casts[part])[at[-1] + 1 :].any():
            share[part[begin:]] = 1.0  # nothing behind it is handed to anybody else
            return
        mine, ahead = part[begin : at[-1] + 1], part[:begin]
        named = making[mine] & products[mine]
        share[mine[products[mine]]] = 0.0 if named.any() else self.product_share
        share[mine[making[mine]]] = 1.0
        # Where it is run on several inputs, the sum of all is handed over behind the last of them.
        codes = program.launched_as(mine[making[mine]])
        share[ahead[making[ahead] & np.isin(program.launched_as(ahead), codes)]] = 1.0
        share[part[np.r_[at, at - 1]]] = 1.0

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        found = self._unused(facts)
        if found is None:
            return None
        return self.seen(
            facts,
            claims,
            confidence="medium",
            evidence={
                "unused_gradients_per_step": found.gradients / facts.steps,
                "unused_numbers_share": found.numbers_share,
            },
            bound_ns=time_of(facts.program, found.share > 0) + facts.idle_ns,
            remedies=(
                Remedy(
                    "Run what is not trained without gradients",
                    "with torch.no_grad(): features = backbone(x)  # a frozen backbone, a teacher, a reference model\n"
                    "critic(fake.detach())  # where the part before it is not trained by this loss\n"
                    "backbone.requires_grad_(False)  # where gradients have to pass through it",
                    "its backward pass goes away, and the memory that its activations take",
                ),
                Remedy(
                    "Or train it",
                    "# if these weights were meant to be trained, the optimizer lacks them:\n"
                    "taken = {id(p) for group in optimizer.param_groups for p in group['params']}\n"
                    "[name for name, p in model.named_parameters() if p.grad is not None and id(p) not in taken]",
                    "the same time, and weights that change",
                ),
            ),
        )


def _passes(facts: Facts) -> list[_Pass]:
    """The backward passes of the window that passes of optimizers follow; none where shapes were not recorded."""
    trace, window = facts.timeline.trace, facts.window
    if not trace.operators.height or trace.operators["input_shapes"].null_count() == trace.operators.height:
        return []
    inside = (pl.col("start_ns") >= window.start_ns) & (pl.col("start_ns") < window.end_ns)
    ranges = trace.ranges.with_row_index("row").filter(inside).with_columns(pl.col("name").cast(pl.String))
    optimizing = ranges.filter(pl.col("name").str.starts_with(_OPTIMIZES)).sort("start_ns")
    if optimizing.is_empty():
        return []
    shapes = trace.operators.select(
        pl.col("range").cast(pl.UInt32).alias("row"), pl.col("input_shapes").cast(pl.String).alias("shapes")
    )
    operators = ranges.join(shapes, on="row").sort("start_ns")
    handed = operators.filter(pl.col("name") == _ACCUMULATES)
    thread = optimizing["thread"][0]
    handed = handed.filter(pl.col("thread") != thread)
    if handed.is_empty():
        return []
    main = operators.filter((pl.col("thread") == thread) & pl.col("name").str.starts_with("aten::"))
    elsewhere = np.sort(np.r_[main["start_ns"].to_numpy(), optimizing["start_ns"].to_numpy()])
    starts, ends, threads = (handed[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    # While a backward pass runs, the thread that asked for it does nothing.
    place = np.searchsorted(elsewhere, starts)
    edges = np.r_[0, np.flatnonzero(np.diff(place)) + 1, len(starts)]
    sizes = [first_shape(text) for text in handed["shapes"].to_list()]
    begun = optimizing["start_ns"].to_numpy()
    edges_of = list(optimizing.select("start_ns", "end_ns").iter_rows())
    taken_by = [_taken(main, begin, end) for begin, end in edges_of]
    blocks_by = [_blocks_taken(facts, begin, end) for begin, end in edges_of]
    found = []
    for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        group = _following(begun, int(starts[first]), starts[edges[:-1]])
        taken = sum((taken_by[index] for index in group), Counter[tuple[int, ...]]())
        mine = sizes[first:stop]
        counts = Counter(mine)
        numbers = np.array([math.prod(shape) for shape in mine], dtype=np.int64)
        blocks = sum(blocks_by[index] for index in group)
        if any(shape in taken for shape in counts):
            unused = np.array([max(1 - taken[shape] / counts[shape], 0.0) for shape in mine])
        elif blocks:
            # The sizes of lists were not recorded; a block goes over so many numbers of one tensor.
            unused = np.full(len(mine), max(1 - blocks / float((-(-numbers // OF_A_BLOCK)).sum()), 0.0))
        else:
            continue  # an optimizer of flat copies, or none that was recorded
        before, after = place[first] - 1, place[first]
        found.append(
            _Pass(
                int(threads[first]),
                int(elsewhere[before]) if before >= 0 else window.start_ns,
                int(elsewhere[after]) if after < len(elsewhere) else window.end_ns,
                starts[first:stop],
                ends[first:stop],
                numbers,
                unused,
            )
        )
    return found


def _following(begun: Int64s, start: int, passes: Int64s) -> Sequence[int]:
    """The passes of optimizers that come after a backward pass and before the next one that begins behind them."""
    first = int(np.searchsorted(begun, start))
    if first >= len(begun):
        return ()
    later = passes[passes > begun[first]]
    stop = int(np.searchsorted(begun, later[0])) if len(later) else len(begun)
    return range(first, stop)


def _taken(operators: pl.DataFrame, begin: int, end: int) -> Counter[tuple[int, ...]]:
    """The sizes of the tensors that one pass of an optimizer goes over: of each, as often as its commonest operator."""
    found: dict[str, Counter[tuple[int, ...]]] = {}
    mine = operators.filter(pl.col("start_ns").is_between(begin, end, closed="left"))
    for name, text, count in mine.group_by("name", "shapes").len().drop_nulls().iter_rows():
        first = json.loads(text)[:1]
        if not first or not isinstance(first[0], list):
            continue
        tensors = first[0] if any(isinstance(part, list) for part in first[0]) else [first[0]]
        for shape in tensors:
            found.setdefault(name, Counter())[tuple(shape)] += count
    taken: Counter[tuple[int, ...]] = Counter()
    for counts in found.values():
        taken |= counts
    return taken


def _blocks_taken(facts: Facts, begin: int, end: int) -> float:
    """Blocks of the tensors that a pass of an optimizer goes over in kernels on lists; 0 where others do its work.

    A fused optimizer goes over each tensor once, others do in each of their operations.
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
