"""Rule for passes over memory that fusion removes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import sums_between
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.contractions import ONE_PRODUCT, TERMS_HEADLINE, TERMS_TITLE, contracted
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, PASSES, Finding, Remedy
from warplens.diagnosis.folds import folded
from warplens.diagnosis.pace import Gain
from warplens.diagnosis.rule import Limit, bringing, first_of, gain_of, remembered
from warplens.diagnosis.rules.caches import GrowingCache
from warplens.diagnosis.structure import StructureRule, time_of
from warplens.profile.schema import Bools, Float64s, Int64s


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
    casts_title: ClassVar = "Weights are cast to 16 bits before each product, every time"
    loss_title: ClassVar = "The loss makes a separate pass over all scores for each operation"
    copies_title: ClassVar = "Copies to other layouts or formats lie between the matrix products"
    operands_title: ClassVar = "Operands of products are made anew each time, which takes longer than the products"
    headline = "Limited by chains of passes over memory: fusing each into one pass could save {share} of the time"
    masks_title: ClassVar = "Each layer makes its attention mask or bias anew, in passes over all queries and keys"
    folded_title: ClassVar = "Batch norms of inference make passes of their own after the convolutions"
    headlines: ClassVar = {
        folded_title: "Limited by passes between convolutions: folding norms into them and fusing the rest could save "
        "{share} of the time",
        TERMS_TITLE: TERMS_HEADLINE,
        masks_title: "Limited by attention masks that each layer makes anew: making them once could save {share} of "
        "the time",
        casts_title: "Limited by casts of weights: keeping them in 16 bits could save {share} of the time",
        copies_title: "Limited by copies to other layouts or formats between products: avoiding them could save "
        "{share} of the time",
        operands_title: "Limited by copies of operands: making them once, or not at all, could save {share} of the "
        "time",
        loss_title: "Limited by the loss: its scores go through memory several times, and a fused loss could save "
        "{share} of the time",
    }
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
        if self._of_limit(facts) < (1 if operands.any() or self._compiled_in_parts(facts) else self.informs_share):
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
    def _of_limit(self, facts: Facts) -> float:
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
        """Casts to 16 bits right before products in inference, which autocast repeats every time."""
        casts = np.zeros(facts.work.height, dtype=np.bool_)
        for run, _ in self._before_products(facts, facts.program.marked("narrowing")):
            casts[run] = True
        return casts if self._are_many(facts, casts) else np.zeros_like(casts)

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
        own, copies = program.own_ns, program.labelled("copy-cast") & ~self._casts(facts)
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
        return share if self._are_many(facts, share > 0) else np.broadcast_to(0.0, len(share))  # takes no memory

    @remembered
    def _losses(self, facts: Facts) -> Float64s:
        """Share saved of passes over the scores of a loss, next to a log-softmax.

        A fused loss reads the scores once and writes their gradient once, in 16 bits. Passes that take a small part of
        the log-softmax's time go over fewer numbers, and longer gathers over other numbers; neither is claimed.
        """
        program, own = facts.program, facts.program.own_ns
        share = np.zeros(facts.work.height)
        losses, long = program.marked("log-softmax"), own >= facts.thresholds.bandwidth_kernel_ns
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
        return share if enough else np.broadcast_to(0.0, len(share))  # takes no memory

    @remembered
    def _masks(self, facts: Facts) -> Float64s:
        """Share saved of passes that make an attention mask or bias from positions, for each attention of a step.

        They follow the kernel that counts positions and take longer than any other pass, because they go over all pairs
        of queries and keys, which are more than the numbers of an activation.
        """
        program = facts.program
        passes, counting = self._passes(facts), program.marked("counting")
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
        return share if self._are_many(facts, share > 0) else np.broadcast_to(0.0, len(share))  # takes no memory

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
        enough = saved_ns >= self.least_folded_share * facts.busy_ns and self._of_limit(facts) < 1
        return share if enough else np.broadcast_to(0.0, len(share))  # takes no memory

    def _before_products(self, facts: Facts, which: Bools, least_ns: int = 0) -> Iterator[tuple[Int64s, int]]:
        """The last few of these pieces before each product, with the product; none if the program trains.

        Pieces shorter than `least_ns` do not count: kernels that make a small mask lie between a product and its
        operands.
        """
        program = facts.program
        for run, product in () if facts.trains else program.runs_before(which, program.products):
            yield run[program.own_ns[run] >= least_ns][-int(self.cast_operands) :], product

    def _are_many(self, facts: Facts, which: Bools) -> bool:
        """Whether these pieces take enough time to be a habit."""
        spent = time_of(facts.program, which)
        return spent > 0 and spent >= self.least_casts_share * facts.busy_ns

    @remembered
    def _passes(self, facts: Facts) -> Bools:
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
        return facts.replayed(time=share, calls=share) or Gain(gain, gain, gain)

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

    def _of_operands(
        self, facts: Facts, cast: Bools, copied: Float64s, *, casts_first: bool, best: bool
    ) -> Iterator[Remedy]:
        """Remedies for operands that are made anew; if `best`, the first one has the gain of the finding."""
        kinds = ((_NARROW_WEIGHTS, cast), (_AS_THEY_ARE, copied > 0))
        for remedy, made in kinds if casts_first else kinds[::-1]:
            if made.any():
                if best:
                    yield remedy
                    best = False
                    continue
                kept = facts.replayed(time=copied, calls=(copied == 1).astype(np.float64))
                yield bringing(remedy, self._gain_of_narrow_weights(facts) if made is cast else kept, self.model)

    @remembered
    def _gain_of_narrow_weights(self, facts: Facts) -> Gain | None:
        """Gain of keeping weights in 16 bits: nothing is cast without autocast, and passes go over 16 bits as well."""
        program = facts.program
        casts = self._casts(facts) | program.marked("narrowing")
        wide = program.passes & program.having("precision", *_WIDE)
        return facts.replayed(time=np.where(casts, 1.0, np.where(wide, 0.5, 0.0)), calls=casts.astype(np.float64))

    def _compiled(self, facts: Facts, claims: Claims, made: Bools) -> Gain | None:
        """Gain of fusing each chain into one pass.

        A compiler may or may not fuse the passes that make operands into the kernels that read them, so the expected
        gain is the geometric mean of both.
        """
        share = np.where(made, 0.0, claims.pieces(self.id).whole() / np.maximum(facts.program.own_ns, 1))
        unfused, fused = facts.replayed(time=share), facts.replayed(time=np.where(made, 1.0, share))
        if unfused is None or fused is None:
            return None
        return Gain(math.sqrt(unfused.expected * fused.expected), unfused.low, fused.high)

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        program = facts.program
        claimed = claims.of_work(self.id).to_numpy() > 0
        half = time_of(program, claimed) / 2
        least = self._least_passes(facts)
        cast, copied, masks = self._casts(facts), self._copies(facts), self._masks(facts)
        of_loss, made = self._losses(facts) > 0, cast | (copied == 1)
        # The main cause, which the title names.
        is_masks = time_of(program, claimed & (masks > 0)) > half
        is_operands = time_of(program, claimed & made) > half
        is_casts = is_operands and time_of(program, claimed & cast) >= time_of(program, claimed & ~cast)
        is_loss = time_of(program, claimed & of_loss) > half
        terms = self._terms(facts)
        is_terms = time_of(program, claimed & (terms > 0)) > half
        norms = self._folded(facts)
        chains = [chain for chain in program.runs(self._passes(facts), (claimed & ~made, 1)) if len(chain) >= least]
        members = claimed.copy()
        if chains:
            members[np.concatenate(chains)] = True
        casts = time_of(program, members & program.labelled("copy-cast")) / max(time_of(program, members), 1)
        kinds, fused_operator = _kinds(facts, members), _fused_operator(facts, members)
        # Even if chains are the cause, keeping weights in 16 bits may bring more than a compiler.
        narrow = fused = None
        if cast.any() and not is_operands and not is_loss:
            narrow, fused = self._gain_of_narrow_weights(facts), self._without(facts, claims)
        is_narrow_best = not is_terms and narrow is not None and fused is not None and narrow.expected > fused.expected
        removable = program.passes | program.having("label", "device-to-device")
        if copied.any():
            # A product that reads the operand directly, without a copy, may read far fewer bytes.
            most_ns = int(0.95 * time_of(program, removable | program.products))
        else:
            # Passes that repeat the same computation can be made once: then none of them is left, nor the start latency
            # before them.
            starting = program.of_gaps(removable) * facts.causes["start-latency"].whole()
            most_ns = time_of(program, removable) + int(starting.sum())
        most_ns += int(program.own_ns @ np.where(removable, 0.0, norms))  # branches that are merged into others
        is_folded = norms.any() and not (is_masks or is_terms or is_operands or is_loss)
        faults = made.any() or of_loss.any() or masks.any() or terms.any()
        usual = bool(chains) and self._of_limit(facts) < 1 and not faults
        compiling = _COMPILE_WHOLE if self._compiled_in_parts(facts) else _COMPILED
        convolutions = time_of(program, program.labelled("convolution"))
        if 2 * convolutions > time_of(program, program.products):
            compiling = replace(_COMPILED, how=_COMPILED_CONVOLUTIONS)
        return self.seen(
            facts,
            claims,
            title=first_of(
                (is_masks, self.masks_title),
                (is_terms, TERMS_TITLE),
                (is_folded, self.folded_title),
                (is_casts, self.casts_title),
                (is_operands, self.operands_title),
                (is_loss, self.loss_title),
                (chains, f"{kinds} make a separate pass over memory for each operation{_AS_USUAL if usual else ''}"),
                default=self.copies_title,
            ),
            confidence="medium",
            evidence={
                "chains_per_step": len(chains) / facts.steps,
                "passes_per_chain_factor": int(members.sum()) / len(chains) if chains else None,
                "casts_share": casts,
            },
            bound_ns=most_ns,
            informs=usual and not is_folded,
            # Small models over large vocabularies have such losses without a real fault.
            warning=facts.thresholds.unsure_warning_ceiling if is_loss else None,
            # Only the remedy of the main cause counts; chains beside it need another one.
            replayed=facts.replayed(time=masks, calls=masks)
            if is_masks
            else facts.replayed(time=terms)
            if is_terms
            else self._gain_of_folding(facts)
            if is_folded
            else self._gain_of_kept_operands(facts, made)
            if is_operands
            else self._gain_of_fused_loss(facts, claims, of_loss)
            if is_loss
            else narrow
            if is_narrow_best
            else None,
            remedies=(
                _ONE_MASK if is_masks else None,
                ONE_PRODUCT if is_terms else None,
                _FOLDED if is_folded else None,
                *(_FUSED_LOSS if is_loss and not is_operands else ()),
                *self._of_operands(
                    facts, cast, copied, casts_first=is_casts or is_narrow_best, best=is_operands or is_narrow_best
                ),
                None if chains or made.any() or is_loss or is_terms or is_folded else _KEEP_LAYOUT,
                bringing(compiling, fused if is_narrow_best else self._compiled(facts, claims, made), self.model)
                if is_masks or is_terms or is_folded or is_loss or is_operands or is_narrow_best or not chains
                else compiling,
                Remedy("Use the fused operator where there is one", fused_operator, "one pass for each")
                if fused_operator
                else None,
                Remedy(
                    "Keep tensors in 16 bits",
                    "# no .float() before norms and losses: layer_norm and cross_entropy accumulate in fp32 anyway",
                    "half the memory traffic of passes that are in 32 bits now",
                )
                if casts >= self.least_told_casts_share
                else None,
            ),
        )


_WIDE: Final = ("fp32", "tf32", "fp64")

#: Why such chains are no warning.
_AS_USUAL: Final = ", as in most programs that are not compiled"

_COMPILED: Final = Remedy(
    "Compile the blocks",
    "for block in model.layers: block.compile()\n# or model = torch.compile(model)",
    f"{GAIN}: one pass per chain",
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

#: Fused operators in PyTorch and other libraries, by a pattern of the kernels that they replace.
_FUSED_OPERATORS: Final = (
    (
        r"(?i)batch_?norm|\bbn_|welford",
        "# batch norms: channels last for cuDNN's fused ones; inference: torch.nn.utils.fuse_conv_bn_eval(conv, norm)",
    ),
    (r"(?i)rsqrt|layer_?norm|rms_?norm|pow_tensor_scalar", "# F.rms_norm, F.layer_norm"),
    (r"(?i)gelu|tanh_kernel|(?<![a-z])erf(?![a-z])", "# F.gelu(x, approximate='tanh') for a written-out GELU"),
    (r"(?i)nll|cross_entropy|logsumexp|log_?softmax", "# F.cross_entropy, also with label_smoothing=, liger-kernel"),
    (r"(?i)cos_|sin_|neg_|CatArray", "# liger-kernel or flash-attn for rotary embeddings"),
)

#: Share of the chains' time from which on a fused operator is worth a line.
_LEAST_TOLD_SHARE: Final = 0.05

#: Text for kernels by a pattern of their names; the first match counts.
_KINDS: Final = (
    ("Norms", r"(?i)rsqrt|norm|mean|var_|welford|pow_tensor_scalar"),
    ("Losses", r"(?i)softmax|nll|cross_entropy|logsumexp"),
    ("Rotary embeddings", r"(?i)cos_|sin_|neg_|CatArray"),
    ("Activations", r"(?i)gelu|silu|sigmoid|tanh|relu|erf|GeluCUDA|exp_kernel"),
    ("Masks", r"(?i)dropout|where|masked|bernoulli|compare"),
    ("Casts", r"(?i)copy_kernel|direct_copy|to_copy"),
)


def _fused_operator(facts: Facts, members: Bools) -> str:
    """Code with the fused operators for what these kernels compute; empty if there are none."""
    program, kernels = facts.program, np.flatnonzero(members & facts.program.is_kernel)
    spent = np.bincount(program.name_codes[kernels], program.own_ns[kernels], len(program.full_names()))
    least = _LEAST_TOLD_SHARE * spent.sum()
    held = [(name, time) for name, time in zip(program.full_names(), spent, strict=True) if time]
    of_each = ((code, sum(time for name, time in held if re.search(kind, name))) for kind, code in _FUSED_OPERATORS)
    return "\n".join(code for code, time in of_each if time > least)


def _kinds(facts: Facts, members: Bools, most: int = 2) -> str:
    """Text naming the kinds of kernels, and of copies on the GPU, with most of the time of these pieces."""
    program = facts.program
    kernels, copies = members & program.is_kernel, members & ~program.is_kernel
    names = facts.timeline.trace.kernels["full_name"].gather(facts.work["row"].filter(pl.Series(kernels)))
    frame = pl.DataFrame({"name": names.cast(pl.String), "time": program.own_ns[kernels]})
    kind = pl.lit("Elementwise operations")
    for word, pattern in reversed(_KINDS):
        kind = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(word)).otherwise(kind)
    sums = frame.group_by(kind.alias("kind")).agg(pl.col("time").sum())
    if copies.any():
        copied = pl.DataFrame({"kind": ["Copies on the GPU"], "time": [time_of(program, copies)]}, schema=sums.schema)
        sums = sums.extend(copied)
    sums = sums.sort("time", "kind", descending=[True, False])
    first, *rest = sums["kind"].head(most).to_list()
    return " and ".join([first, *(word[0].lower() + word[1:] for word in rest)])
