"""Rule for passes over memory that fusion removes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

import numpy as np

from warplens.analysis.frames import sums_between
from warplens.analysis.kernel_names import PASSES
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.contractions import ONE_PRODUCT, TERMS, contracted
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, Finding, Remedy, Variant
from warplens.diagnosis.norm_folding import folded
from warplens.diagnosis.rule import Limit, bringing, gain_of, remembered
from warplens.diagnosis.rules.caches import GrowingCache
from warplens.diagnosis.structure import StructureRule, time_of
from warplens.diagnosis.unprofiled import Gain
from warplens.diagnosis.written_out import FORMS, written_out
from warplens.profile.schema import Bools, Float64s, Int64s


@dataclass(frozen=True)
class Cause:
    """What takes most of the time of a finding: its variant, and how it is mended."""

    variant: Variant
    remedies: tuple[Remedy, ...] = ()  #: of this cause alone; the first one has the gain of the finding
    gain: Gain | None = None  #: replayed gain of its first remedy; None for the gain of the claim
    informs: bool = False  #: whether it only informs
    warning: float | None = None  #: least gain of a warning, if larger than usual
    by_fusing: bool = False  #: whether its first remedy is a compiler that fuses chains


@dataclass(frozen=True, eq=False)
class _ClaimedPasses:
    """Passes that a finding claims, by what they are for."""

    claimed: Bools  #: all of them
    casts: Bools  #: casts of operands, claimed or not
    made: Bools  #: casts and copies of operands, claimed or not
    chains: list[Int64s]  #: rows of each chain that is long enough to be fused
    are_operands: bool  #: whether most of the claimed time makes operands
    are_casts: bool  #: whether, in addition, at least half of it casts them

    @property
    def members(self) -> Bools:
        """The claimed passes, and all of each chain that they are a part of."""
        members = self.claimed.copy()
        if self.chains:
            members[np.concatenate(self.chains)] = True
        return members

    @property
    def keeping_layout(self) -> tuple[Remedy, ...]:
        """The remedy of copies that neither make operands nor lie in chains; none if others do."""
        return () if self.chains or self.made.any() else (_KEEP_LAYOUT,)


class _NarrowFirst(NamedTuple):
    """Gains of a program that gains more from weights in 16 bits than from fusing its chains."""

    gain: Gain  #: of weights in 16 bits
    fused: Gain  #: of a compiler


class UnfusedChain(StructureRule):
    """Chains of passes over memory between the products of a network, which one fused pass could replace."""

    id = "unfused-chain"
    takes_all = False  # a chain may hold the passes of another cause, such as attention's
    question = "Do norms, activations, casts and losses make a separate pass over memory for each operation?"
    limiter = "chains of passes over memory that could be one"
    cause = "norms, rotary embeddings, activations, losses and casts in separate passes"
    raised_when = (
        "chains of passes over memory, or copies that only move values, lie between matrix products; or inference "
        "casts or copies operands anew before each product; or each layer makes its attention mask anew; or broadcast "
        "tensors are multiplied, or subtracted and squared, into far more numbers, which are summed up; or batch norms "
        "of inference, which convolutions could include, take a tenth of the time; and it costs 2 %. A warning from "
        "1.10×; for a loss, from 1.25×; informational if chains take as much in healthy programs"
    )
    claimed = (
        "each chain of kernels that move data, less the time of one fused pass; a smaller part in training; all "
        "of the casts and copies that make operands of products, and nearly all of the passes over terms of a product"
    )
    casts: ClassVar = Variant(
        "Weights are cast to 16 bits before each product, every time",
        "Limited by casts of weights: keeping them in 16 bits could save {share} of the time",
        "Run once with weights in 16 bits (model.to(torch.bfloat16), without autocast): if it is not faster, casts of "
        "weights are not its limit.",
    )
    loss: ClassVar = Variant(
        "The loss makes a separate pass over all scores for each operation",
        "Limited by the loss: its scores go through memory several times, and a fused loss could save {share} of the "
        "time",
    )
    copies: ClassVar = Variant(
        "Copies to other layouts or formats lie between the matrix products",
        "Limited by copies to other layouts or formats between products: avoiding them could save {share} of the time",
    )
    operands: ClassVar = Variant(
        "Operands of products are made anew each time, which takes longer than the products",
        "Limited by copies of operands: making them once, or not at all, could save {share} of the time",
    )
    headline = "Limited by chains of passes over memory: fusing each into one pass could save {share} of the time"
    masks: ClassVar = Variant(
        "Each layer makes its attention mask or bias anew, in passes over all queries and keys",
        "Limited by attention masks that each layer makes anew: making them once could save {share} of the time",
    )
    folded: ClassVar = Variant(
        "Batch norms of inference make passes of their own after the convolutions",
        "Limited by passes between convolutions: folding norms into them and fusing the rest could save {share} of "
        "the time",
    )
    evidence: ClassVar = {
        "chains_per_step": "unbroken sequences of at least four passes",
        "passes_per_chain_factor": "passes in each, on average",
        "casts_share": "copies and casts between formats, of their time",
    }
    refutation = "Compile one block (torch.compile(block)): if it is not faster, memory passes are not its limit."
    thresholds = ("bandwidth_kernel_ns", "unsure_warning_ceiling")
    least_products_share = Limit(
        0.05,
        "Only chains between matrix products count; a program without products is one that moves data "
        "(memory-bandwidth).",
    )
    least_passes = Limit(
        4, "Activation, residual and norm between two matrix products are three passes in any network."
    )
    least_share = Limit(
        0.3,
        "Healthy inference spends up to an eighth of its time in such chains, except for one program in a graph.",
    )
    informs_share = Limit(
        0.5, "Chains that take half of the time that a warning needs are told, because a compiler would save them."
    )
    least_compiled_passes = Limit(
        3,
        "A compiler fuses activation, residual and norm into one pass; in a compiled program, three were left out.",
    )
    least_compiled_share = Limit(
        0.15,
        "Of partly compiled programs without a fault, nine of ten spend under 0.03 of their time in chains of three, "
        "none more than 0.07.",
    )
    least_generated = Limit(4, "Passes of a compiler per step; fewer may belong to a single operator.")
    least_training_share = Limit(
        0.45,
        "Eager training under autocast spends up to 0.44 in them. The limit also holds if most products have 32 bits: "
        "in 16 bits the chains take half of the time, and the format comes first.",
    )
    least_moves_share = Limit(0.45, "Copies that make operands contiguous take up to two fifths beside short products.")
    longest_saved_share = Limit(
        0.4, "The remaining pass reads and writes 16 bits instead of 32, or becomes the epilogue of a matrix product."
    )
    saved_share = Limit(
        0.75,
        "Share of a chain's time beyond its longest pass that is saved: fused kernels still read the inputs, "
        "write the results of each product, and write what the backward pass needs.",
    )
    least_casts_share = Limit(
        0.1, "Casts of inputs take a few percent of the time; casts of weights before each product take more."
    )
    least_loss_share = Limit(
        0.15, "Losses over vocabularies of 50,000 words take up to a tenth of training steps with little to fix."
    )
    least_folded_share = Limit(0.1, "Norms that take less gain less than a warning needs when they are folded.")
    of_a_loss_share = Limit(
        0.1, "A cast of the scores takes a third of their log-softmax's time; work on labels, a thousandth."
    )
    picked_of_a_loss = Limit(1, "Labels pick a few of the scores; a longer gather picks rows of something else.")
    cast_operands = Limit(3, "A product has two operands and a bias.")
    least_masks = Limit(4, "Masks of a step; a network has at least as many layers of one kind.")
    each_attention = Limit(0.9, "Counts of positions per attention; a sampler counts once per pass.")
    repeated_heads_share = Limit(
        0.75, "Models that share keys between heads do so between four or more: attention reads a quarter of the bytes."
    )
    least_told_casts_share = Limit(0.01, "Fewer casts, of the chains' time, are not worth a remedy.")
    inference_saved_share = Limit(
        0.9, "`saved_share` without a backward pass: nothing in the middle of a chain has to be written."
    )

    def share(self, facts: Facts) -> Float64s:
        """Share of each pass that fusing chains, keeping operands, one mask and a fused loss would save."""
        program = facts.program
        masks = self._masks(facts)
        share = np.maximum(np.maximum(self._casts(facts), self._copies(facts)), self._losses(facts))
        share = np.maximum(share, np.maximum(self._terms(facts), self._folded(facts)))
        share = np.where(masks > 0, masks, share)
        operands = share > 0
        if not self._has_products(facts):
            return share
        least = 1 if operands.any() or self._compiled_in_parts(facts) else self.informs_share
        if self._share_of_limit(facts) < least:
            return share
        passes = self._passes(facts)
        begins, ends = program.edges(passes)
        own = program.in_order(program.own_ns)
        free = passes & ~operands
        share[free] = np.maximum(share[free], self.saved_share if facts.trains else self.inference_saved_share)
        # The longest pass of each chain, the first of equals.
        inside = np.flatnonzero(program.in_order(passes))
        chain = np.repeat(np.arange(len(begins)), ends - begins)
        order = np.lexsort((-own[inside], chain))
        firsts = np.r_[True, chain[1:] != chain[:-1]]
        longest = program.order[inside[order[firsts]]]
        longest = longest[~operands[longest]]
        share[longest] = self.longest_saved_share
        return share

    @remembered
    def _share_of_limit(self, facts: Facts) -> float:
        """Time in chains over the least time for a warning, at most 1; 1 as well for many that only move values."""
        program = facts.program
        begins, ends = program.edges(self._passes(facts))
        if not len(begins):
            return 0.0
        spent = sums_between(program.in_order(program.own_ns), begins, ends)
        products = program.products
        wide = products & facts.program.having("precision", *_WIDE)
        mostly_wide = 2 * time_of(program, wide) > time_of(program, products)
        in_parts = self._compiled_in_parts(facts) and not mostly_wide
        enough = self.least_compiled_share if in_parts else self.least_share
        enough = self.least_training_share if facts.trains or mostly_wide else enough
        # Copies that only move values count in chains of any length. Casts of weights, which change each step, do not.
        moves = program.having("label", "copy-cast", "device-to-device") & ~program.marked("narrowing")
        moving = sums_between(program.in_order(moves), begins, ends) == ends - begins
        if spent[moving].sum() >= self.least_moves_share * facts.busy_ns:
            return 1.0
        return min(float(spent[ends - begins >= self._least_passes(facts)].sum()) / (enough * facts.busy_ns), 1.0)

    def _compiled_in_parts(self, facts: Facts) -> bool:
        """Whether a compiler made some of the passes of a program that does not train."""
        generated = facts.program.marked("generated") & facts.program.passes
        return not facts.trains and bool(generated.sum() >= self.least_generated * facts.steps)

    def _least_passes(self, facts: Facts) -> int:
        """Least passes of a chain that should be fused."""
        return int(self.least_compiled_passes if self._compiled_in_parts(facts) else self.least_passes)

    @remembered
    def _casts(self, facts: Facts) -> Bools:
        """Casts to 16 bits right before products in inference, which autocast repeats every time.

        Strided casts are none of weights, which keep their layout.
        """
        program = facts.program
        casts = np.zeros(facts.work.height, dtype=np.bool_)
        narrowing = program.marked("narrowing") & ~program.marked("strided")
        for run, _ in self._before_products(facts, narrowing, over_memsets=True):
            casts[run] = True
        return casts if self._take_enough(facts, casts) else np.zeros_like(casts)

    @remembered
    def _copies(self, facts: Facts) -> Float64s:
        """Share saved of copies right before products, and passes over them, if one takes longer than the product.

        A product reads the result of the copy and more. It can only be shorter if the copy reads or writes another
        size, such as weights in eight bits, or keys that many heads share; copies of activations are shorter than the
        product. Attention reads keys and values, so that copies of both count together; on copies it reads them again
        for each head that shares them.
        """
        program = facts.program
        share = np.zeros(facts.work.height)
        own = program.own_ns
        copies = program.labelled("copy-cast") & ~self._casts(facts)
        attention = program.labelled("attention")
        least = facts.thresholds.bandwidth_kernel_ns
        long = own >= least
        long_copies = copies & long
        which = self._passes(facts) if long_copies.any() else long_copies
        for run, product in self._before_products(facts, which, int(least)):
            firsts = np.flatnonzero(long_copies[run])
            making = run[firsts[0] :] if len(firsts) else run[:0]
            making = making[long[making]]
            longest = own[making].sum() if attention[product] else own[making].max(initial=0)
            if longest > own[product]:
                share[making] = 1.0
                if attention[product] and copies[making].all():
                    share[product] = self.repeated_heads_share
        return share if self._take_enough(facts, share > 0) else facts.no_share

    @remembered
    def _losses(self, facts: Facts) -> Float64s:
        """Share saved of passes over the scores of a loss, next to a log-softmax.

        A fused loss reads the scores once and writes their gradient once, in 16 bits. Passes that take a small part of
        the log-softmax's time go over fewer numbers, and longer gathers over other numbers; neither is claimed.
        """
        program = facts.program
        own = program.own_ns
        share = np.zeros(facts.work.height)
        losses = program.marked("log-softmax")
        long = own >= facts.thresholds.bandwidth_kernel_ns
        picks = program.labelled("gather-scatter")
        if not (losses & long).any():
            return share
        wide = program.having("precision", "fp32")
        beside = program.labelled(*PASSES, "gather-scatter") | facts.program.having("label", "memset")
        for run in program.runs(beside, (losses & long, 1)):
            longest = int(own[run[losses[run]]].max())
            others = picks[run] & (own[run] > self.picked_of_a_loss * longest)
            over_scores = run[(own[run] >= self.of_a_loss_share * longest) & ~others]
            kept = losses[over_scores]
            if kept.all():
                continue  # a log-softmax alone is a fused loss, or nearly one
            of_kept = np.where(wide[over_scores], float(self.longest_saved_share), 0.0)
            share[over_scores] = np.where(kept, of_kept, 1.0)
        enough = time_of(program, share > 0) >= self.least_loss_share * facts.busy_ns
        return share if enough else facts.no_share

    @remembered
    def _masks(self, facts: Facts) -> Float64s:
        """Share saved of passes that make an attention mask or bias from positions, for each attention of a step.

        They follow the kernel that counts positions and take longer than any other pass, because they go over all pairs
        of queries and keys, which are more than the numbers of an activation.
        """
        program = facts.program
        passes = self._passes(facts)
        counting = program.marked("counting")
        attention = program.labelled("attention") & ~program.marked("backward")
        share = np.zeros(facts.work.height)
        least = max(self.least_masks * facts.steps, self.each_attention * attention.sum())
        if not attention.any() or counting.sum() < least:
            return share
        making = [run[np.argmax(counting[run]) :] for run in program.runs(passes, (counting, 1))]
        if len(making) < least:
            return share
        after_counting = np.concatenate(making)
        elsewhere = passes.copy()
        elsewhere[after_counting] = False
        longest = program.own_ns[elsewhere].max(initial=0)
        share[after_counting[program.own_ns[after_counting] > longest]] = 1 - facts.steps / len(making)
        return share if self._take_enough(facts, share > 0) else facts.no_share

    def _has_products(self, facts: Facts) -> bool:
        """Whether enough of the time goes into products."""
        program = facts.program
        return time_of(program, program.products) >= self.least_products_share * facts.wall_ns

    def _terms(self, facts: Facts) -> Float64s:
        """Share saved of passes over the terms of a product, in a program with other products."""
        return contracted(facts) if self._has_products(facts) else np.zeros(facts.work.height)

    @remembered
    def _folded(self, facts: Facts) -> Float64s:
        """Share saved of norms, and of branches, that could be part of convolutions, if they take enough time.

        Chains that take more than in healthy programs are told as such.
        """
        share = folded(facts)
        saved_ns = facts.program.own_ns @ share
        enough = saved_ns >= self.least_folded_share * facts.busy_ns and self._share_of_limit(facts) < 1
        return share if enough else facts.no_share

    def _before_products(
        self, facts: Facts, which: Bools, least_ns: int = 0, *, over_memsets: bool = False
    ) -> Iterator[tuple[Int64s, int]]:
        """The last few of these pieces before each product, with the product; none if the program trains.

        Pieces shorter than `least_ns` do not count: kernels that make a small mask lie between a product and its
        operands.
        """
        program = facts.program
        if facts.trains:
            return
        for run, product in program.runs_before(which, program.products, over_memsets=over_memsets):
            yield run[program.own_ns[run] >= least_ns][-int(self.cast_operands) :], product

    def _take_enough(self, facts: Facts, which: Bools) -> bool:
        """Whether these pieces take enough time to be a habit."""
        spent = time_of(facts.program, which)
        return spent > 0 and spent >= self.least_casts_share * facts.busy_ns

    @remembered
    def _passes(self, facts: Facts) -> Bools:
        """Passes over memory that a chain may consist of: not the optimizer's, a compiler's or those of a cache."""
        program = facts.program
        # A copy inside the GPU's memory is a pass as well, whether a kernel or the driver makes it.
        passes = program.passes | program.having("label", "device-to-device")
        passes = passes & ~program.marked("generated") & ~program.marked("layout-conversion")
        passes = passes & ~facts.program.having("phase", "optimizer")
        return np.asarray(passes & (GrowingCache().share(facts) == 0), dtype=np.bool_)

    def _without(self, facts: Facts, claims: Claims) -> Gain | None:
        """Gain of fusing; if the host is ahead of the GPU, launches go as well, or they would become the limit.

        A compiler adds guards and other host code between launches, so the expected gain is the geometric mean of those
        with and without the launches.
        """
        launched = super()._without(facts, claims)
        if launched is None or facts.unprofiled_host_ns >= facts.busy_ns:
            return launched
        share = claims.pieces(self.id).share_of(facts.program.own_ns)
        unlaunched = facts.replayed(time=share, calls=share) or launched
        low, high = min(launched.low, unlaunched.low), max(launched.high, unlaunched.high)
        return replace(launched, expected=math.sqrt(launched.expected * unlaunched.expected), low=low, high=high)

    def _gain_of_kept_operands(self, facts: Facts, made: Bools) -> Gain | None:
        """Gain of keeping operands: without the passes that make them, and with less for attention to read."""
        time = np.where(self._casts(facts), self.share(facts), self._copies(facts))
        return facts.replayed(time=time, calls=made.astype(np.float64))

    def _gain_of_folding(self, facts: Facts) -> Gain:
        """Gain of norms that are part of convolutions: neither they nor merged branches are launched."""
        share = self._folded(facts)
        gain = gain_of(facts, int(facts.program.own_ns @ share), on_gpu=True)
        return facts.replayed(time=share, calls=share) or Gain.exactly(gain)

    def _gain_of_fused_loss(self, facts: Facts, claims: Claims, of_loss: Bools) -> Gain | None:
        """Gain of one pass for the loss; passes that go away completely are not launched either.

        A loss that is summed up part by part keeps one log-softmax, forward and backward.
        """
        program = facts.program
        share = claims.pieces(self.id).share_of(program.own_ns)
        calls = np.where(of_loss & (share >= self.unlaunched_share), 1.0, 0.0)
        parts = np.flatnonzero(of_loss & program.marked("log-softmax"))
        _, which, counts = np.unique(program.launched_as(parts), return_inverse=True, return_counts=True)
        turns = counts[which] / facts.steps
        calls[parts] = np.maximum(calls[parts], 1 - 1 / np.maximum(turns, 1.0))
        return facts.replayed(time=share, calls=calls, elsewhere=bool((turns > 1).any()))

    def _of_operands(self, facts: Facts, *, casts_first: bool, best: bool) -> Iterator[Remedy]:
        """Remedies for operands that are made anew; if `best`, the first one has the gain of the finding."""
        kinds: list[tuple[Remedy, Callable[[Facts], Gain | None]]] = []
        if self._copies(facts).any():
            kinds.append((_AS_THEY_ARE, self._gain_without_copies))
        if self._casts(facts).any():
            kinds.insert(0 if casts_first else len(kinds), (_NARROW_WEIGHTS, self._gain_of_narrow_weights))
        for place, (remedy, gain_of_remedy) in enumerate(kinds):
            yield remedy if best and place == 0 else bringing(remedy, gain_of_remedy(facts), self.model)

    def _gain_without_copies(self, facts: Facts) -> Gain | None:
        """Gain of products that read their operands without a copy."""
        copied = self._copies(facts)
        return facts.replayed(time=copied, calls=(copied == 1).astype(np.float64))

    @remembered
    def _gain_of_narrow_weights(self, facts: Facts) -> Gain | None:
        """Gain of keeping weights in 16 bits: nothing is cast without autocast, and passes go over 16 bits as well."""
        program = facts.program
        casts = self._casts(facts) | program.marked("narrowing")
        wide = program.passes & program.having("precision", *_WIDE)
        return facts.replayed(time=np.where(casts, 1.0, np.where(wide, 0.5, 0.0)), calls=casts.astype(np.float64))

    def _gain_of_compiler(self, facts: Facts, claims: Claims, made: Bools) -> Gain | None:
        """Gain of fusing each chain into one pass, with the casts of weights that products of libraries still need.

        A compiler may or may not fuse the copies that make operands into the kernels that read them, so the expected
        gain is the geometric mean of both.
        """
        share = np.where(made, 0.0, claims.pieces(self.id).whole() / np.maximum(facts.program.own_ns, 1))
        copies = made & ~self._casts(facts)
        unfused, fused = facts.replayed(time=share), facts.replayed(time=np.where(copies, 1.0, share))
        if unfused is None or fused is None:
            return None
        return Gain(math.sqrt(unfused.expected * fused.expected), unfused.low, fused.high)

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with title, gain and first remedies of its main cause."""
        passes = self._claimed_passes(facts, claims)
        narrow = self._narrow_before_fused(facts, claims, passes)
        cause = self._main_cause(facts, claims, passes, narrow)
        members = passes.members
        casts_share = _casts_share(facts, members)
        return self.seen(
            facts,
            claims,
            variant=cause.variant,
            confidence="medium",
            evidence={
                "chains_per_step": len(passes.chains) / facts.steps,
                "passes_per_chain_factor": int(members.sum()) / len(passes.chains) if passes.chains else None,
                "casts_share": casts_share,
            },
            bound_ns=self._removable_ns(facts),
            informs=cause.informs,
            warning=cause.warning,
            replayed=cause.gain,
            remedies=(
                *cause.remedies,
                *self._of_operands(
                    facts,
                    casts_first=passes.are_casts or narrow is not None,
                    best=passes.are_operands or narrow is not None,
                ),
                self._fusing(facts, claims, passes, cause, narrow),
                _with_fused_operators(facts, members),
                _IN_16_BITS if casts_share >= self.least_told_casts_share else None,
            ),
        )

    def _claimed_passes(self, facts: Facts, claims: Claims) -> _ClaimedPasses:
        """The passes that the finding claims, by what they are for."""
        program = facts.program
        claimed = claims.of_work(self.id).to_numpy() > 0
        casts = self._casts(facts)
        made = casts | (self._copies(facts) == 1)
        least = self._least_passes(facts)
        chains = [chain for chain in program.runs(self._passes(facts), (claimed & ~made, 1)) if len(chain) >= least]
        are_operands = _are_most(facts, claimed, made)
        casts_ns = time_of(program, claimed & casts)
        are_casts = are_operands and casts_ns >= time_of(program, claimed & ~casts)
        return _ClaimedPasses(claimed, casts, made, chains, are_operands, are_casts)

    def _main_cause(self, facts: Facts, claims: Claims, passes: _ClaimedPasses, narrow: _NarrowFirst | None) -> Cause:
        """What takes more than half of the claimed time; norms that could be folded, or chains, if nothing does."""
        return (
            self._masks_as_cause(facts, passes)
            or self._terms_as_cause(facts, passes)
            or self._operands_as_cause(facts, passes)
            or self._loss_as_cause(facts, claims, passes)
            or self._norms_as_cause(facts)
            or self._chains_as_cause(facts, passes, narrow)
        )

    def _masks_as_cause(self, facts: Facts, passes: _ClaimedPasses) -> Cause | None:
        """Masks that each layer makes anew."""
        masks = self._masks(facts)
        if not _are_most(facts, passes.claimed, masks > 0):
            return None
        remedies = (_ONE_MASK, *passes.keeping_layout)
        return Cause(self.masks, remedies, gain=facts.replayed(time=masks, calls=masks))

    def _terms_as_cause(self, facts: Facts, passes: _ClaimedPasses) -> Cause | None:
        """Terms of a product that go through memory."""
        terms = self._terms(facts)
        if not _are_most(facts, passes.claimed, terms > 0):
            return None
        return Cause(TERMS, (ONE_PRODUCT,), gain=facts.replayed(time=terms))

    def _operands_as_cause(self, facts: Facts, passes: _ClaimedPasses) -> Cause | None:
        """Casts and copies of operands, whose remedies are those of `_of_operands`."""
        if not passes.are_operands:
            return None
        variant = self.casts if passes.are_casts else self.operands
        return Cause(variant, gain=self._gain_of_kept_operands(facts, passes.made))

    def _loss_as_cause(self, facts: Facts, claims: Claims, passes: _ClaimedPasses) -> Cause | None:
        """A loss of several passes. Small models over large vocabularies have such losses without a real fault."""
        of_loss = self._losses(facts) > 0
        if not _are_most(facts, passes.claimed, of_loss):
            return None
        gain = self._gain_of_fused_loss(facts, claims, of_loss)
        return Cause(self.loss, _FUSED_LOSS, gain=gain, warning=facts.thresholds.unsure_warning_ceiling)

    def _norms_as_cause(self, facts: Facts) -> Cause | None:
        """Norms that convolutions could include, however much they take of the claimed time."""
        if not self._folded(facts).any():
            return None
        return Cause(self.folded, (_FOLDED,), gain=self._gain_of_folding(facts))

    def _chains_as_cause(self, facts: Facts, passes: _ClaimedPasses, narrow: _NarrowFirst | None) -> Cause:
        """Chains of passes, or copies between products if there are no chains."""
        gain = narrow.gain if narrow is not None else None
        if not passes.chains:
            return Cause(self.copies, passes.keeping_layout, gain=gain)
        kinds = _kinds(facts, passes.members)
        usual = self._chains_are_usual(facts, passes)
        variant = Variant(f"{kinds} make a separate pass over memory for each operation{_AS_USUAL if usual else ''}")
        return Cause(variant, gain=gain, informs=usual, by_fusing=narrow is None)

    def _chains_are_usual(self, facts: Facts, passes: _ClaimedPasses) -> bool:
        """Whether chains take no more than in healthy programs, and no other cause is there."""
        found = (self._losses(facts), self._masks(facts), self._terms(facts))
        others = passes.made.any() or any((share > 0).any() for share in found)
        return self._share_of_limit(facts) < 1 and not others

    def _narrow_before_fused(self, facts: Facts, claims: Claims, passes: _ClaimedPasses) -> _NarrowFirst | None:
        """Gains of weights in 16 bits and of fusing, if the first is larger although casts are not the cause."""
        causes = (self._losses(facts) > 0, self._terms(facts) > 0)
        if not passes.casts.any() or passes.are_operands:
            return None
        if any(_are_most(facts, passes.claimed, cause) for cause in causes):
            return None
        narrow = self._gain_of_narrow_weights(facts)
        fused = self._gain_of_compiler(facts, claims, passes.made)
        if narrow is None or fused is None or narrow.expected <= fused.expected:
            return None
        return _NarrowFirst(narrow, fused)

    def _removable_ns(self, facts: Facts) -> int:
        """Time that remedies could remove: passes, branches that are merged into others, and reading of copies."""
        program = facts.program
        passes = program.passes | program.having("label", "device-to-device")
        merged_ns = int(program.own_ns @ np.where(passes, 0.0, self._folded(facts)))
        if self._copies(facts).any():
            # A product that reads the operand directly, without a copy, may read far fewer bytes.
            return int(0.95 * time_of(program, passes | program.products)) + merged_ns
        # Passes that repeat the same computation can be made once: then none of them is left, nor the start latency
        # before them.
        starting = program.of_gaps(passes) * facts.causes["start-latency"].whole()
        return time_of(program, passes) + int(starting.sum()) + merged_ns

    def _fusing(
        self,
        facts: Facts,
        claims: Claims,
        passes: _ClaimedPasses,
        cause: Cause,
        narrow: _NarrowFirst | None,
    ) -> Remedy | None:
        """The remedy of a compiler, with the gain of the finding if it mends the main cause, else with its own.

        None if a compiler gains nothing.
        """
        program = facts.program
        remedy = _COMPILE_WHOLE if self._compiled_in_parts(facts) else _COMPILED
        convolutions_ns = time_of(program, program.labelled("convolution"))
        if 2 * convolutions_ns > time_of(program, program.products):
            remedy = replace(_COMPILED, how=_COMPILED_CONVOLUTIONS)
        if cause.by_fusing:
            return remedy
        gain = narrow.fused if narrow is not None else self._gain_of_compiler(facts, claims, passes.made)
        return None if gain is not None and gain.expected <= 1 else bringing(remedy, gain, self.model)


def _are_most(facts: Facts, claimed: Bools, which: Bools) -> bool:
    """Whether these pieces take more than half of the claimed time."""
    return time_of(facts.program, claimed & which) > time_of(facts.program, claimed) / 2


def _casts_share(facts: Facts, members: Bools) -> float:
    """Share of copies and casts, of the time of these pieces."""
    program = facts.program
    return time_of(program, members & program.labelled("copy-cast")) / max(time_of(program, members), 1)


_WIDE: Final = ("fp32", "tf32", "fp64")

#: Why such chains are no warning.
_AS_USUAL: Final = ", as in most programs that are not compiled"

_COMPILED: Final = Remedy(
    "Compile the blocks",
    "for block in model.layers: block.compile()\n# or model = torch.compile(model)",
    f"{GAIN}: one pass per chain",
    id="compiled-blocks",
    compiles=True,
)

#: The same for networks of convolutions, whose blocks have no common name.
_COMPILED_CONVOLUTIONS: Final = "model = torch.compile(model)  # after model.to(memory_format=torch.channels_last)"

#: For partly compiled programs.
_COMPILE_WHOLE: Final = Remedy(
    "Compile whole blocks, not parts of them",
    "for block in model.layers: block.compile()  # instead of only its norms or activations\n"
    "TORCH_LOGS=graph_breaks python infer.py  # names what is left out: read-backs, operators without a decomposition",
    f"{GAIN}: one pass per chain",
)

#: For layers that each make the same mask or bias.
_ONE_MASK: Final = Remedy(
    "Make the mask once for all layers",
    "bias = alibi(length)  # before the loop over the layers, in the format of the queries\n"
    "for layer in layers: x = layer(x, bias)\n"
    "# or none at all: is_causal=True, or flex_attention with score_mod for a bias of positions",
    f"{GAIN}: only the first layer makes passes over all pairs of queries and keys",
)

#: For batch norms of inference.
_FOLDED: Final = Remedy(
    "Fold norms into the convolutions before them",
    "from timm.utils.model import reparameterize_model\n"
    "model = reparameterize_model(model.eval())  # branches of RepVGG, MobileOne, FastViT\n"
    "conv = torch.nn.utils.fusion.fuse_conv_bn_eval(conv, norm)  # norm → nn.Identity()\n"
    "from torch.fx.experimental.optimization import fuse\n"
    "model = fuse(model.eval())  # all of them; once, before the first input",
    f"{GAIN}: no pass for a norm, and one convolution for parallel ones",
)

#: For passes over the scores of a vocabulary.
_FUSED_LOSS: Final = (
    Remedy(
        "Compute the loss in one pass",
        "loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten())  # in 16 bits: no .float(), it sums in fp32\n"
        "# outside of torch.autocast, which makes the scores fp32 again; loss and gradients are rounded to 16 bits\n"
        "# no log_softmax and gather, no one_hot, no .contiguous() of shifted scores: shift the labels\n"
        "# liger-kernel: LigerFusedLinearCrossEntropyLoss never writes the scores; torch.compile of head and loss",
        f"{GAIN}: one pass over the scores forward, one backward, in 16 bits; scores in 32 bits are not kept in memory",
    ),
    Remedy(
        "Score what has a label",
        "scores = head(hidden[labels != -100])  # prompts and padding have no labels; counting them is a wait\n"
        "# or by parts: torch.utils.checkpoint over slices of the positions",
        "in proportion to the positions left out",
    ),
)

#: For weights that are kept in 32 bits and used in 16.
_NARROW_WEIGHTS: Final = Remedy(
    "Keep the weights as they are used",
    "model = model.to(torch.bfloat16)  # inference needs no autocast then\n"
    "# transformers: from_pretrained(…, dtype=torch.bfloat16)  # before 4.56: torch_dtype",
    f"{GAIN}: no weight is read in 32 bits, written in 16 and read again for each product",
)

#: For copies between the products, with little other work.
_KEEP_LAYOUT: Final = Remedy(
    "Keep one layout and one format",
    "# no .contiguous() after transpose, permute or a slice: products, reductions and norms take strides\n"
    "# no .to(dtype) back and forth: one format from the input of the block to its output",
    f"{GAIN}: no pass that computes nothing",
)

#: For operands that are copied, cast or computed before each product.
_AS_THEY_ARE: Final = Remedy(
    "Give products their operands as they are kept",
    "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # no mask, no repeat_interleave of keys and values\n"
    "# weights derived from others (from 8 bits, from a norm, merged): make them once, before the loop, if memory\n"
    "# allows, or use a product that reads them as they are (torchao, bitsandbytes)",
    f"{GAIN}: no operand is written and read again for each product",
)

#: For batch norms that are a pass of their own, or several.
_BATCH_NORMS: Final = (
    "# batch norms: channels last for cuDNN's fused ones; inference: torch.nn.utils.fuse_conv_bn_eval(conv, norm)"
)

#: For passes in 32 bits.
_IN_16_BITS: Final = Remedy(
    "Keep tensors in 16 bits",
    "# no .float() before norms and losses: layer_norm and cross_entropy accumulate in fp32 anyway",
    "half the memory traffic of passes that are in 32 bits now",
    id="16-bit-tensors",
)

#: Least share of the chains' time of what is worth a line.
_LEAST_TOLD_SHARE: Final = 0.05

#: Text for kernels by a pattern of their names; the first match counts.
_KINDS: Final = (
    ("Norms", r"(?i)rsqrt|norm|mean|var_|welford|pow_tensor_scalar"),
    ("Losses", r"(?i)softmax|nll|cross_entropy|logsumexp"),
    ("Activations", r"(?i)gelu|silu|sigmoid|tanh|relu|erf|GeluCUDA|exp_kernel"),
    ("Masks", r"(?i)dropout|where|masked|bernoulli|compare"),
    ("Casts", r"(?i)copy_kernel|direct_copy|to_copy"),
)


def _with_fused_operators(facts: Facts, members: Bools) -> Remedy | None:
    """The remedy with the fused operators for what these kernels write out; None if there are none."""
    program = facts.program
    of_each = ((form.operators, rows[members[rows]]) for form, rows in zip(FORMS, written_out(facts), strict=True))
    parts = [(_BATCH_NORMS, np.flatnonzero(_batch_norms(facts) & members)), *of_each]
    least = _LEAST_TOLD_SHARE * time_of(program, members & program.is_kernel)
    operators = "\n".join(code for code, rows in parts if time_of(program, rows) > least)
    return Remedy("Use the fused operator where there is one", operators, "one pass for each") if operators else None


def _batch_norms(facts: Facts) -> Bools:
    """Batch norms in a pass of their own that a convolution could include, or in several because of their format."""
    program = facts.program
    if facts.trains or program.marked("batch-statistics").any():
        return program.labelled("normalization") & program.marked("channels-first")
    return program.marked("inferring-norm")


def _kinds(facts: Facts, members: Bools, most: int = 2) -> str:
    """Text naming the kinds of kernels, and of copies on the GPU, with most of the time of these pieces."""
    program = facts.program
    of_names = np.array([_kind(name) for name in program.full_names()] or [""], dtype=np.object_)
    kinds = np.where(program.is_kernel, of_names[program.name_codes], "Copies on the GPU")
    for form, rows in zip(FORMS, written_out(facts), strict=True):
        kinds[rows] = form.kind
    names, kind = np.unique(kinds[members].astype(np.str_), return_inverse=True)
    spent = np.bincount(kind, program.own_ns[members])
    first, *rest = names[np.lexsort((names, -spent))][:most].tolist()
    return " and ".join([first, *(word[0].lower() + word[1:] for word in rest)])


def _kind(name: str) -> str:
    """Text for kernels of this name."""
    return next((kind for kind, pattern in _KINDS if re.search(pattern, name)), "Elementwise operations")
