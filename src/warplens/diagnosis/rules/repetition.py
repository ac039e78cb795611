"""Rules for repeated work: recomputation, and loops over parts of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, USUAL, Confidence, Finding, Remedy, Variant
from warplens.diagnosis.gathers import projected_again
from warplens.diagnosis.rule import Limit, ahead_without, bringing, remembered
from warplens.diagnosis.rules.generation import encoded_again, growing_passes, projected_for_each_token
from warplens.diagnosis.structure import (
    StructureRule,
    backward_work,
    passes_of_step,
    passes_over_one_graph,
    started_share,
    time_beside,
    time_of,
)
from warplens.diagnosis.weight_preparation import cast_again, normed_again
from warplens.profile.schema import Bools, Float64s, Int64s


def _close(found: Bools, rows: Int64s, may: Bools, most: int) -> None:
    """Marks up to `most` rows between two marked ones of a sequence, if all of them `may` be marked."""
    places = np.flatnonzero(found[rows])
    left, right = places[:-1], places[1:]
    excluded = np.r_[0, np.cumsum(~may)]
    filled = (right - left > 1) & (right - left <= most + 1) & (excluded[right] == excluded[left + 1])
    for begin, end in zip((left[filled] + 1).tolist(), right[filled].tolist(), strict=True):
        found[rows[begin:end]] = True


def _numbered(windows: Int64s) -> Int64s:
    """A number for each row, equal for equal rows."""
    number = np.unique(windows[:, 0], return_inverse=True)[1]
    for column in range(1, windows.shape[1]):
        values, codes = np.unique(windows[:, column], return_inverse=True)
        number = np.unique(number * len(values) + codes, return_inverse=True)[1]
    return np.asarray(number, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Kind:
    """A way in which work is repeated."""

    variant: Variant
    share: Float64s  #: share of each piece of work that goes away
    again: Bools  #: work whose pauses go away as well
    evidence: Mapping[str, int | float | None]
    remedies: tuple[Remedy, ...]
    confidence: Confidence = "high"
    bound_ns: int | None = None  #: None for the claimed work and all of the host's pauses


class Recomputation(StructureRule):
    """Work that is done again: the forward pass in the backward pass, or all tokens for each new one."""

    id = "recomputation"
    model = "products"
    question = "Is work done again whose results could have been kept?"
    limiter = "work that is run again, in the backward pass or for each token"
    cause = (
        "recomputed forward work in the backward pass (activation checkpointing); several backward passes over one "
        "graph; generation that runs all tokens, or the encoder, again for each new one; products of rows that were "
        "picked before, each row many times; weights that are prepared again for each use"
    )
    raised_when = (
        "sequences of the forward pass's kernels recur in the backward pass, or the backward pass repeats with far "
        "more products than the forward pass; or in inference at least six passes launch the same kernels on evenly "
        "growing grids, or at least four passes of an encoder launch the same kernels on the same grids before work on "
        "a growing text, with nothing sent to the GPU in between; or at least four turns, each with the token that the "
        "last one chose, run the same products on the same grids, and nothing before them writes as much as they read; "
        "or a product of at least twice as many rows as a "
        "table has reads rows that were picked from it right before (by recorded shapes); or at least three gradients "
        "of a weight in a backward pass are cast to 32 bits each, and all but the first are added; or weight norm runs "
        "in inference; and it costs 2 %"
    )
    claimed = (
        "these kernels, and the pauses while the host issues them; of passes over a growing text, all but the work of "
        "one token in each; of those of an encoder, and of products over the same input, all but the first; of "
        "products of picked rows, and passes beside them, what repeats for a row of the table; of casts of weights and "
        "of their gradients, all but the first, and half of the sums of these gradients; all of weight norm"
    )
    headline = "Limited by recomputation: {share} of the time goes into running the forward pass again"
    title = "The backward pass runs the forward pass again"
    passes: ClassVar = Variant(
        "The backward pass runs several times over one forward pass",
        "Limited by repeated backward passes: {share} of the time goes into passes over one graph after the first",
        "Call backward() once, on the sum of the losses: if a step takes as long, no pass was repeated.",
    )
    growing: ClassVar = Variant(
        "Each token runs the model on all tokens before it again: keys and values are not kept",
        "Limited by generation without a cache: {share} of the time goes into running all tokens again for each new "
        "one",
        "Generate with use_cache=True: if the time per token still grows with the text, something else runs on all "
        "tokens.",
    )
    encoded: ClassVar = Variant(
        "The encoder runs again for each token, on an input of the same size as before",
        "Limited by an encoder that is run for each token: {share} of the time goes into its passes after the first",
        "Give the encoder's result to all passes after the first (encoder_outputs=…): if a token takes as long, the "
        "encoder did not run again.",
    )
    keys: ClassVar = Variant(
        "Products over an input that stays the same are computed again for each token",
        "Limited by products that are computed again for each token: {share} of the time goes into those after the "
        "first, over an input that stays the same",
        "Make keys and values of the input once, before the loop over tokens: if tokens differ, the input does not "
        "stay the same; if a token takes as long, these products were not the limit.",
    )
    projected: ClassVar = Variant(
        "Rows are picked before a product, which multiplies each row of the table many times",
        "Limited by products of picked rows: {share} of the time goes into multiplying the same rows again",
        "Pick rows after the product: if the results differ, the rows were not those of one table; if the time stays "
        "the same, their product was not the limit.",
    )
    cast: ClassVar = Variant(
        "The same weights are cast to 16 bits again in each turn, and their gradients are cast back and added",
        "Limited by casts of the same weights: {share} of the time goes into those after the first, and into their "
        "gradients",
        "Enter autocast once around the loop: if the step launches as many casts, no turn repeats those of another "
        "one; if it takes as long, they are not the limit.",
    )
    normed: ClassVar = Variant(
        "Weights are computed from direction and length again in each pass (weight norm)",
        "Limited by weights that are computed again: {share} of the time goes into weight norm in inference",
        "Fold weight norm into the weights once, after loading: if a pass takes as long, it was not the limit.",
    )
    evidence: ClassVar = {
        "passes_per_step": "passes over a growing text, of the encoder, or for each token",
        "growth_factor": "tokens of the last of them over those of the first",
        "repeated_per_step": "kernels that run a second time",
        "of_forward_share": "of the kernels of the forward pass",
        "backward_passes_per_step": "backward passes over the common part of the graph",
        "weight_uses_per_step": "casts of a weight that is cast again, on average",
        "picked_products_per_step": "products of rows that were picked from a table right before",
        "picked_rows_factor": "rows picked, at least, over rows of the table",
    }
    refutation = (
        "Run without checkpointing (with a smaller batch if memory requires it): if the time per sample stays the "
        "same, nothing ran twice."
    )
    sequence = Limit(6, "This many kernels in the same order, a product or a norm among them, are not a coincidence.")
    distinct = Limit(3, "A sequence that only repeats one kernel occurs anywhere.")
    most_share = Limit(
        0.6, "A backward pass takes about twice as long as its forward pass: a larger part of it is not recomputation."
    )
    fused_share = Limit(
        0.9,
        "Of picks and passes beside products of picked rows: in one kernel, they still read each row that is picked.",
    )
    wide_sums_share = Limit(0.5, "Of gradients in 32 bits that are added: with one cast, they are added in 16 bits.")
    between = Limit(12, "Casts of weights and copies between two such sequences belong to them.")
    least_share = Limit(0.1, "A smaller part of the forward pass is a shared operator, not a checkpoint.")

    def needless(self, finding: Finding) -> bool:
        """True for repeated tokens, encoder passes and products of rows, whose results exist already."""
        return finding.variant in (self.growing, self.encoded, self.keys, self.projected)

    def makes_launches(self, finding: Finding) -> bool:
        """True: the host issues repeated work again. Products of picked rows are launched as often without.

        Where preparing weights makes a small part of the launches, the others come first.
        """
        return finding.variant not in (self.projected, self.cast, self.normed)

    def share(self, facts: Facts) -> Float64s:
        """Share of the repeated work."""
        kind = self._kind(facts)
        return facts.no_share if kind is None else kind.share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The pauses before that work, and the share of all others that go away as the host gets ahead."""
        kind = self._kind(facts)
        if kind is None or not kind.again.any():
            return None
        return np.maximum(facts.program.of_gaps(kind.again), ahead_without(facts, kind.again), dtype=np.float64)

    @remembered
    def _kind(self, facts: Facts) -> _Kind | None:
        """How work is repeated; None if none is."""
        backward = backward_work(facts)
        trains = backward.any() and not backward.all()
        kind = self._of_training(facts, backward) if trains else self._of_inference(facts)
        if (growing := growing_passes(facts)) is not None:
            again = np.zeros_like(backward) if kind is None else kind.again
            evidence = {"passes_per_step": growing.passes, "growth_factor": growing.growth}
            bound_ns = time_of(facts.program, growing.share > 0) + facts.own_idle_ns
            return _Kind(self.growing, growing.share, again, evidence, _CACHED, bound_ns=bound_ns)
        return self._of_picked_rows(facts) if kind is None else kind

    def _of_inference(self, facts: Facts) -> _Kind | None:
        """Work of inference whose results exist already."""
        encoded, encoders = encoded_again(facts)
        if encoded.any():
            # The input has the same size; that it is the same is inferred.
            kind = self._repeats(facts, self.encoded, encoded, _ENCODED_ONCE, passes_per_step=encoders)
            return replace(kind, confidence="medium")
        products, turns = projected_for_each_token(facts)
        if products.any():
            # Nothing writes another input; that the products read the old one is inferred.
            kind = self._repeats(facts, self.keys, products, _PROJECTED_ONCE, passes_per_step=turns)
            bound_ns = time_of(facts.program, products) + facts.own_idle_ns
            return replace(kind, confidence="medium", bound_ns=bound_ns)
        norms = normed_again(facts)
        return self._repeats(facts, self.normed, norms, _FOLDED) if norms.any() else None

    def _of_training(self, facts: Facts, backward: Bools) -> _Kind | None:
        """Backward passes, forward work of the backward pass, or casts of weights."""
        passes, count = passes_over_one_graph(facts)
        if passes.any():
            return self._repeats(facts, self.passes, passes, _ONE_PASS, backward_passes_per_step=count)
        program = facts.program
        forward, again = program.is_kernel & ~backward, self._forward_again(facts, backward)
        too_few = again.sum() < self.least_share * forward.sum()
        most_ns = self.most_share * time_of(program, program.is_kernel & backward)
        if not too_few and time_of(program, again) <= most_ns:
            return self._checkpoints(facts, again, forward) if again.any() else None
        casts, sums, uses = cast_again(facts)
        if not casts.any():
            return None
        kind = self._repeats(facts, self.cast, casts, _CAST_ONCE, weight_uses_per_step=uses)
        bound_ns = time_of(program, casts | sums) + facts.own_idle_ns
        return replace(kind, share=np.where(sums, self.wide_sums_share, kind.share), bound_ns=bound_ns)

    def _of_picked_rows(self, facts: Facts) -> _Kind | None:
        """Products of rows that were picked before."""
        projected = projected_again(facts)
        if projected is None:
            return None
        beside = time_beside(facts.program, projected.work, reach=2)
        # Passes over the products can be made before rows are picked, or together with the pick.
        freed = np.where(projected.multiplied, facts.program.own_ns, self.fused_share * beside)
        return _Kind(
            self.projected,
            projected.share,
            np.zeros_like(projected.work),
            {"picked_products_per_step": projected.products / facts.steps, "picked_rows_factor": projected.times},
            _PICKED_LATER,
            "medium",  # shapes tell the size of what a product reads, not which tensor it is
            int(freed.sum()),
        )

    def _checkpoints(self, facts: Facts, again: Bools, forward: Bools) -> _Kind:
        """A forward pass that runs again in the backward pass."""
        less = bringing(_FEWER_CHECKPOINTS, facts.replayed(time=again / 2, calls=again / 2))
        of_forward = min(int(again.sum()) / max(int(forward.sum()), 1), 1.0)
        return self._repeats(facts, USUAL, again, (_NO_CHECKPOINTS, less), of_forward_share=of_forward)

    def _repeats(
        self, facts: Facts, variant: Variant, again: Bools, remedies: tuple[Remedy, ...], **evidence: float
    ) -> _Kind:
        """Work all of which goes away, with its pauses."""
        evidence["repeated_per_step"] = int(again.sum()) / facts.steps
        return _Kind(variant, again.astype(np.float64), again, evidence, remedies)

    def _forward_again(self, facts: Facts, backward: Bools) -> Bools:
        """Kernels of the backward pass in sequences that the forward pass of the same step launches as well."""
        program = facts.program
        again = np.zeros(facts.work.height, dtype=np.bool_)
        # A checkpoint stops recomputing at the last tensor that is needed, so that a layer's product may be left out.
        # The forward kernels of norms have no place in a backward pass either.
        product = program.products | (program.labelled("normalization") & ~program.marked("backward"))
        keys = program.launched_as(np.arange(len(again)))
        kernels = program.kernels_in_order()
        kernels = kernels[np.argsort(program.step[kernels], kind="stable")]  # step by step, each in order
        edges = np.flatnonzero(np.diff(program.step[kernels])) + 1
        # Most steps launch the same kernels, so that one answer holds for all of them.
        answers: dict[bytes, Bools] = {}
        for rows in np.split(kernels, edges):
            key = b"".join(which[rows].tobytes() for which in (keys, backward, product))
            if key not in answers:
                answers[key] = self._sequences_again(keys[rows], backward[rows], product[rows])
            again[rows] = answers[key]
        return again

    def _sequences_again(self, keys: Int64s, backward: Bools, product: Bools) -> Bools:
        """Which kernels of the backward pass of a step belong to a sequence that its forward pass launches as well.

        Args:
            keys: a number for each kernel of the step, equal for equal launches.
            backward: which of them belong to the backward pass.
            product: which of them show a forward pass.
        """
        again = np.zeros(len(keys), dtype=np.bool_)
        length = int(self.sequence)
        forward = np.flatnonzero(~backward)
        later = np.flatnonzero(backward)
        if len(forward) < length or len(later) < length:
            return again
        seen = sliding_window_view(keys[later], length)
        numbers = _numbered(np.concatenate((sliding_window_view(keys[forward], length), seen)))
        first = len(forward) - length + 1
        found = np.isin(numbers[first:], numbers[:first])
        found &= (np.diff(np.sort(seen, axis=1), axis=1) != 0).sum(axis=1) + 1 >= self.distinct
        found &= sliding_window_view(product[later], length).any(axis=1)
        for place in range(length):
            again[later[place : place + len(found)][found]] = True
        _close(again, later, np.isin(keys[later], keys[forward]), int(self.between))
        return again

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, for the kind of repeated work."""
        kind = self._kind(facts)
        assert kind is not None
        # The bookkeeping of checkpoints goes as well, which saves and restores random states.
        claimed_and_idle_ns = claims.busy_ns(self.id) + facts.own_idle_ns
        return self.seen(
            facts,
            claims,
            variant=kind.variant,
            confidence=kind.confidence,
            evidence=kind.evidence,
            bound_ns=claimed_and_idle_ns if kind.bound_ns is None else kind.bound_ns,
            remedies=kind.remedies,
        )


#: For a forward pass that runs again in the backward pass.
_NO_CHECKPOINTS: Final = Remedy(
    "Turn checkpointing off while memory is free",
    "model.gradient_checkpointing_disable()  # transformers 5.24: activation_checkpointing_disable()\n"
    "# timm: model.set_grad_checkpointing(False)\n"
    "# or no torch.utils.checkpoint around the blocks",
    "the second forward pass goes away; its activations stay in memory",
)
_FEWER_CHECKPOINTS: Final = Remedy(
    "Checkpoint less",
    "# every second block, or selectively, keeping products and attention:\n"
    "aten = torch.ops.aten\n"
    "ways = ('flash', 'efficient', 'cudnn')\n"
    "kept = [getattr(aten, f'_scaled_dot_product_{way}_attention').default for way in ways]\n"
    "kept += [aten.mm.default, aten.bmm.default]\n"
    "context_fn = functools.partial(create_selective_checkpoint_contexts, kept)\n"
    "y = checkpoint(block, x, use_reentrant=False, context_fn=context_fn)",
    "every second block; in proportion to the recomputation saved",
)

#: For several losses over one graph.
_ONE_PASS: Final = (
    Remedy(
        "Differentiate the sum",
        "(loss_a + loss_b + loss_c).backward()  # instead of a backward(retain_graph=True) for each\n"
        "# first, each gradient by the last shared layer: torch.autograd.grad(loss_a, w, retain_graph=True)",
        f"{GAIN}: one pass over the part of the graph that the losses share",
    ),
    Remedy(
        "Take rows of a Jacobian together",
        "torch.autograd.grad(y, x, directions, is_grads_batched=True)  # or torch.func.jacrev, vmap(vjp)",
        "one pass with larger products instead of one per row",
    ),
)

#: For generation without a cache.
_CACHED: Final = (
    Remedy(
        "Keep keys and values",
        "model.generate(ids, use_cache=True)  # transformers: not config.use_cache = False\n"
        "out = model(last_token, past_key_values=cache, use_cache=True)  # your own loop: one token per pass\n"
        "# transformers 5.24 warns of past_key_values in all calls: cache=cache",
    ),
    Remedy(
        "Where attention is not causal, generate several tokens a pass",
        "# an encoder over all tokens has no keys to keep: decode in blocks, or train a causal model",
        "in proportion to the passes",
    ),
)

#: For an encoder that runs for each token.
_ENCODED_ONCE: Final = (
    Remedy(
        "Run the encoder once",
        "encoded = model.get_encoder()(input_ids, attention_mask=mask)  # before the loop\n"
        "model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=tokens)  # transformers\n"
        "# model.generate does this, and keeps keys and values; the same holds for image encoders",
    ),
    Remedy(
        "Keep keys and values, of the encoder's result as well",
        "model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=last, past_key_values=cache, "
        "use_cache=True)",
        "one token per pass, and no products over the encoder's result after the first",
    ),
)

#: For keys and values that are made for each token.
_PROJECTED_ONCE: Final = (
    Remedy(
        "Make keys and values of the input once",
        "kept = [(layer.key(states), layer.value(states)) for layer in layers]  # before the loop over tokens\n"
        "# each layer then attends to what is kept: scaled_dot_product_attention(q, *kept[number])\n"
        "# transformers keeps them in past_key_values (EncoderDecoderCache): give it to each call",
        f"{GAIN}: the products of the first token stay; memory for keys and values of each layer",
    ),
)

#: For weights that each turn of a loop casts.
_CAST_ONCE: Final = (
    Remedy(
        "Enter autocast once, around the loop",
        "with torch.autocast('cuda', dtype=torch.bfloat16):  # it keeps its casts of weights until it is left\n"
        "    for turn in range(turns): state = layers(state)  # no autocast in here, and no cache_enabled=False\n"
        "# what needs 32 bits in a turn: torch.autocast('cuda', enabled=False) around that alone\n"
        "# parts of weights (w.t(), w[i]) and weights of nn.LSTM are cast at each use: cast them before the loop, or\n"
        "# give an nn.LSTM all turns in one call",
        f"{GAIN}: each weight is cast once, and its gradient is cast back once",
    ),
    Remedy(
        "Keep weights in 16 bits",
        "model.to(torch.bfloat16)  # with an optimizer that keeps copies in 32 bits; compare the accuracy",
        "no casts of weights at all",
    ),
)

#: For weight norm in inference.
_FOLDED: Final = (
    Remedy(
        "Fold weight norm into the weights, once after loading",
        "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')  # for each layer that has it\n"
        "# torch.nn.utils.weight_norm, the older one: torch.nn.utils.remove_weight_norm(layer)\n"
        "# models of speech mostly have model.remove_weight_norm()",
        f"{GAIN}: the same weights",
    ),
)

#: For products of rows that were picked before.
_PICKED_LATER: Final = (
    Remedy(
        "Multiply rows before they are picked",
        "linear(x)[near]  # instead of linear(x[near]): each of the n rows once, then m ≥ n picks\n"
        "# several tables: split the weights, a(x)[src] + b(x)[dst] instead of linear(cat([x[src], x[dst]], -1))",
        f"{GAIN}: the same numbers; activations can move before the pick, too",
    ),
    Remedy(
        "Pick and reduce in one kernel",
        "# torch_geometric: SAGEConv(project=True, aggr='max') with an EdgeIndex; torch.sparse.mm for sums",
        "no copy of the picked rows is written",
    ),
)


class _PartLoops(NamedTuple):
    """Loops over parts of the data."""

    work: Bools  #: which pieces of work belong to one
    saved_calls: Float64s  #: share of the host's time to issue each piece of work that grouped products save
    repetitions: int  #: of all loops


class PerExpertLoop(StructureRule):
    """The same short chain of picking rows, products and adding rows, many times in a row."""

    id = "per-expert-loop"
    model = "host"
    question = "Is the same short chain of kernels repeated for parts of the data?"
    limiter = "a loop over parts of the data, each with small products of its own"
    cause = "the same short chain of kernels repeated for parts of the data, such as experts"
    raised_when = (
        "small matrix products between a gather and a scatter of rows repeat twenty times per step, and it costs 2 %"
    )
    claimed = (
        "the pauses before these kernels, except those of the host of more than 4 ms, and the duration of an empty "
        "kernel in each; nearly all of the time of passes over the whole tensor"
    )
    headline = "Limited by a loop over parts of the data: grouped products could save {share} of the time"
    title = "The same short chain of kernels is launched for each part of the data, one after the other"
    evidence: ClassVar = {
        "repetitions_per_step": "repetitions of the chain",
        "kernels_per_repetition_factor": "kernels per repetition",
        "waits_per_step": "calls that block the host until the GPU is done, for the row counts of the parts",
    }
    refutation = (
        "Sort the rows by part and run one batched product over equal bins: if it is not faster, the parts were "
        "large enough."
    )
    in_a_row = Limit(6, "Mixture-of-experts layers have eight experts or more, of which a few may get no rows.")
    repetitions = Limit(20, "Fewer repetitions per step may be the layers of a network that gathers rows in each.")
    small_ns = Limit(40_000, "Matrix products that take longer fill the GPU by themselves; grouping them gains little.")
    longest = Limit(80, "The chain of one expert, forward or backward, is shorter than this.")
    longer = Limit(
        3,
        "A pass that takes this many times as long as the products of a part covers the whole tensor: a gradient "
        "of stacked weights, which each part fills with zeros and adds to the sum.",
    )
    whole_saved_share = Limit(0.95, "Grouped products write that gradient once instead of for each of twenty parts.")
    remaining = Limit(
        80,
        "Launches that remain for each loop: rows are sorted by part, counted, multiplied in groups, weighted "
        "and added back, beside the rest of the layer. A decoder with grouped products launched 88 for each loop.",
    )

    def makes_launches(self, finding: Finding) -> bool:
        """True: each part has its own launches."""
        return True

    def share(self, facts: Facts) -> Float64s:
        """Share of the loop's kernels that grouped products save."""
        in_loop = self._loop(facts).work
        program = facts.program
        # Grouped products still do the work of all parts, but start and end only once.
        share = np.zeros(len(in_loop))
        rows = np.flatnonzero(in_loop)
        if len(rows):
            share[rows] = np.minimum(started_share(facts, rows), self.whole_saved_share)
            product_ns = float(np.median(program.own_ns[in_loop & program.labelled("gemm")]))
            over_all = in_loop & program.labelled("elementwise") & (program.own_ns >= self.longer * product_ns)
            share[over_all] = self.whole_saved_share
        return share

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """The pauses before its kernels."""
        in_loop = self._loop(facts).work
        return facts.program.of_gaps(in_loop) if in_loop.any() else None

    @remembered
    def _loop(self, facts: Facts) -> _PartLoops:
        """The loops of this kind."""
        program = facts.program
        in_loop = np.zeros(facts.work.height, dtype=np.bool_)
        saved_calls = np.zeros(facts.work.height)
        product = program.labelled("gemm")
        writes = program.marked("adding-rows")
        if not product.any() or not writes.any():
            return _PartLoops(in_loop, saved_calls, 0)
        scattered = program.labelled("gather-scatter", "sort-topk")
        other = program.labelled("attention", "normalization", "convolution", "communication", "optimizer")
        count = 0
        # Only sequences that write rows and have a product for each repetition can be such loops.
        for run in program.runs(~other, (writes, 1), (product, int(self.in_a_row))):
            # A repetition begins with a group of gathers; its products follow.
            picks = scattered[run]
            starts = np.flatnonzero(picks & np.r_[True, ~picks[:-1]])
            parts = np.split(np.arange(len(run)), starts[starts > 0])
            repetitions = [part for part in parts if product[run[part]].any() and len(part) <= self.longest]
            if len(repetitions) < self.in_a_row:
                continue
            inside = run[np.arange(repetitions[0][0], repetitions[-1][-1] + 1)]
            if len(inside) > self.longest * len(repetitions):
                continue  # such as layers that gather rotations of positions
            if np.median(program.own_ns[inside[product[inside]]]) < self.small_ns:
                count += len(repetitions)
                in_loop[inside] = True
                saved_calls[inside] = max(0.0, 1 - self.remaining / len(inside))
        # Layers gather rows as well, and equal passes over different inputs multiply the layers.
        passes = passes_of_step(facts).count
        layers = passes if count >= 2 * passes * facts.steps else 1
        if count < self.repetitions * facts.steps * layers:
            return _PartLoops(np.zeros_like(in_loop), np.zeros_like(saved_calls), 0)
        return _PartLoops(in_loop, saved_calls, count)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        if not claims.total_ns(self.id):
            return None
        loops = self._loop(facts)
        return self.seen(
            facts,
            claims,
            confidence="high" if facts.sure else "medium",
            evidence={
                "repetitions_per_step": loops.repetitions / facts.steps,
                "kernels_per_repetition_factor": int(loops.work.sum()) / max(loops.repetitions, 1),
                "waits_per_step": facts.host.waits / facts.process_steps,
            },
            bound_ns=claims.idle_ns(self.id) + int(0.95 * time_of(facts.program, loops.work)),
            replayed=facts.replayed(time=self.share(facts), calls=loops.saved_calls, waits=True),
            remedies=(
                Remedy(
                    "Group the products",
                    "order = torch.argsort(expert)  # rows sorted by expert, then torch.nn.functional.grouped_mm\n"
                    "# (before PyTorch 2.10: torch._grouped_mm), or padded to equal bins and torch.bmm\n"
                    "# transformers: experts_implementation='grouped_mm'; megablocks; vllm's fused_moe",
                    "a few kernels instead of the loop, and no wait for the row counts",
                ),
                bringing(
                    Remedy(
                        "Replay the loop from a CUDA graph",
                        "# fixed capacities for each part, then\n"
                        "model = torch.compile(model, mode='reduce-overhead')  # or torch.cuda.graph",
                        "the launches go away, the small products stay",
                        captures=True,
                    ),
                    facts.replayed("no-synchronization", "cuda-graph"),
                ),
            ),
        )
