"""Passes over memory that fusion removes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import sums_between
from warplens.analysis.kernel_names import PRODUCTS
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import PASSES, Finding, Remedy
from warplens.diagnosis.pace import Gain
from warplens.diagnosis.rule import GAIN, Limit, bringing, remembered
from warplens.diagnosis.rules.generation import GrowingCache
from warplens.diagnosis.structure import StructureRule, time_of
from warplens.profile.schema import Bools, Float64s, Int64s


class UnfusedChain(StructureRule):
    """Chains of passes over memory between the products of a network, of which one fused pass would do."""

    id = "unfused-chain"
    takes_all = False  # a chain may hold the passes of another cause, such as attention's
    question = "Do norms, activations, casts and losses make a separate pass over memory for each operation?"
    limiter = "chains of passes over memory that could be one"
    cause = "norms, rotary embeddings, activations, losses and casts in separate passes"
    raised_when = (
        "chains of passes over memory, or copies that only move values, lie between matrix products, or operands are "
        "cast to 16 bits or copied anew before products without training, or each layer makes the mask of its "
        "attention anew; and it costs 2 %. A warning from 1.10×; where it is a loss, a warning from 1.25×"
    )
    claimed = (
        "each chain of kernels that move data, less the time of one fused pass; a smaller part in training; all "
        "of the casts and copies that make operands of products"
    )
    casts_title: ClassVar = "Weights are cast to 16 bits before each product, every time"
    casts_headline: ClassVar = "Limited by casts of weights: keeping them in 16 bits could save {share} of the time"
    loss_title: ClassVar = "The loss makes a separate pass over all of its scores for each operation"
    loss_headline: ClassVar = (
        "Limited by the loss: its scores go through memory several times, and a fused loss could save {share} of the "
        "time"
    )
    copies_title: ClassVar = "Copies to other layouts or formats stand between the matrix products"
    copies_headline: ClassVar = (
        "Limited by copies to other layouts or formats between products: doing without could save {share} of the time"
    )
    operands_title: ClassVar = "Operands of products are made anew each time, which takes longer than the products"
    operands_headline: ClassVar = (
        "Limited by copies of what products read: making them once, or not at all, could save {share} of the time"
    )
    headline = "Limited by chains of passes over memory: fusing each into one pass could save {share} of the time"
    masks_title: ClassVar = "The mask or bias of attention is made anew for each layer, in passes over all pairs"
    masks_headline: ClassVar = (
        "Limited by masks of attention that each layer makes anew: making them once could save {share} of the time"
    )
    headlines: ClassVar = {
        masks_title: masks_headline,
        casts_title: casts_headline,
        copies_title: copies_headline,
        operands_title: operands_headline,
        loss_title: loss_headline,
    }
    evidence: ClassVar = {
        "chains_per_step": "unbroken sequences of at least four passes",
        "passes_per_chain_factor": "passes in each, on average",
        "casts_share": "of their time, in copies and casts between formats",
    }
    refutation = "Compile one block (torch.compile(block)): if it is not faster, memory passes are not its limit."
    thresholds = ("bandwidth_kernel_ns", "unsure_warning_ceiling")
    least_products_share = Limit(
        0.05,
        "Chains are looked for between matrix products; a program without products is one that moves data "
        "(memory-bandwidth).",
    )
    least_passes = Limit(
        4, "Activation, residual and norm between two matrix products are three passes in any network."
    )
    least_share = Limit(
        0.3,
        "Healthy programs that do not train spend up to an eighth of their time in such chains, but one in a graph.",
    )
    least_compiled_passes = Limit(
        3,
        "A compiler fuses activation, residual and norm into one pass: where it is used, three were left out.",
    )
    least_compiled_share = Limit(
        0.15,
        "Of programs of which a compiler has made a part: nine of ten without a fault spend under 0.03 of their time "
        "in chains of three, none more than 0.07.",
    )
    least_generated = Limit(4, "Passes that a compiler has made, a step: of fewer, one operator may be made of them.")
    least_training_share = Limit(
        0.45,
        "Eager training under autocast spends up to 0.44 in them. The same holds where most products have 32 bits: in "
        "16 the chains take half of the time, and that is mended first.",
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
        0.1, "Inputs are cast in a few percent of the time; weights that are cast each time are read and written anew."
    )
    least_loss_share = Limit(
        0.15, "Losses over vocabularies of 50,000 words take up to a tenth of training steps in which little is wrong."
    )
    of_a_loss_share = Limit(0.1, "A cast of the scores takes a third of their log-softmax; labels, a thousandth.")
    picked_of_a_loss = Limit(1, "Labels pick a few of the scores; what picks for longer picks rows of something else.")
    cast_operands = Limit(3, "A product has two operands and a bias.")
    least_masks = Limit(4, "Attentions of a step before which a mask is made: layers of one kind are not fewer.")
    each_attention = Limit(0.9, "Positions that are counted once for each of them; a sampler counts once a pass.")
    repeated_heads_share = Limit(
        0.75, "Models that share keys between heads do so between four or more: attention reads a quarter of the bytes."
    )
    inference_saved_share = Limit(
        0.9, "The same without a backward pass: nothing in the middle of a chain has to be written."
    )

    def share(self, facts: Facts) -> Float64s:
        """Of each chain, all but its longest pass, to the part that is expected."""
        program = facts.program
        masks = self._masks(facts)
        share = np.maximum(np.maximum(self._casts(facts), self._copies(facts)), self._losses(facts))
        share = np.where(masks > 0, masks, share)
        operands = share > 0
        if time_of(program, program.labelled(*PRODUCTS)) < self.least_products_share * facts.wall_ns:
            return share
        passes = self._passes(facts)
        begins, ends = program.edges(passes)
        if not len(begins):
            return share
        own = program.in_order(program.own_ns)
        spent = sums_between(own, begins, ends)
        products = program.labelled(*PRODUCTS)
        wide = products & facts.program.having("precision", *_WIDE)
        mostly_wide = 2 * time_of(program, wide) > time_of(program, products)
        in_parts = self._compiled_in_parts(facts) and not mostly_wide
        enough = self.least_compiled_share if in_parts else self.least_share
        enough = self.least_training_share if facts.trains or mostly_wide else enough
        # However short: what only moves values computes nothing. Weights that change are narrowed in each step.
        moves = program.having("label", "copy-cast", "device-to-device") & ~program.marked("narrowing")
        moving = sums_between(program.in_order(moves), begins, ends) == ends - begins
        chained, moved = spent[ends - begins >= self._least_passes(facts)].sum(), spent[moving].sum()
        if chained < enough * facts.busy_ns and moved < self.least_moves_share * facts.busy_ns:
            return share
        free = passes & ~operands
        share[free] = np.maximum(share[free], self.saved_share if facts.trains else self.inference_saved_share)
        # Of each chain the longest pass, the first of equals.
        inside = np.flatnonzero(program.in_order(passes))
        chain = np.repeat(np.arange(len(begins)), ends - begins)
        order = np.lexsort((-own[inside], chain))
        firsts = np.r_[True, chain[1:] != chain[:-1]]
        longest = program.order[inside[order[firsts]]]
        longest = longest[~operands[longest]]
        share[longest] = self.longest_saved_share
        return share

    def _compiled_in_parts(self, facts: Facts) -> bool:
        """Whether a compiler has made some of the passes of a program that does not train."""
        made = facts.program.marked("generated") & facts.program.labelled(*PASSES)
        return not facts.trains and bool(made.sum() >= self.least_generated * facts.steps)

    def _least_passes(self, facts: Facts) -> int:
        """From how many passes on a chain is one that should be fused."""
        return int(self.least_compiled_passes if self._compiled_in_parts(facts) else self.least_passes)

    @remembered
    def _casts(self, facts: Facts) -> Bools:
        """Casts to 16 bits right before products, in a program that does not train: autocast makes them every time."""
        program = facts.program
        found = np.zeros(facts.work.height, dtype=np.bool_)
        for run, _ in self._before_products(facts, program.marked("narrowing")):
            found[run] = True
        return self._many(facts, found)

    @remembered
    def _copies(self, facts: Facts) -> Float64s:
        """Right before products what one copy, or a pass over what was copied, takes longer for than the product.

        A product reads what the copy wrote, and more: it is shorter where the copy reads or writes another size, such
        as weights in eight bits, or keys that many heads share. Copies of activations are shorter than the product
        whose operand they are. Attention whose keys and values are copied reads those of other heads once more.
        """
        program = facts.program
        found = np.zeros(facts.work.height)
        own, copies = program.own_ns, program.labelled("copy-cast") & ~self._casts(facts)
        long = own >= facts.thresholds.bandwidth_kernel_ns
        attention = program.labelled("attention")
        least = facts.thresholds.bandwidth_kernel_ns
        for run, product in self._before_products(facts, self._passes(facts), int(least)):
            firsts = np.flatnonzero((copies & long)[run])
            mine = run[firsts[0] :] if len(firsts) else run[:0]
            mine = mine[long[mine]]
            if (own[mine] > own[product]).any():
                found[mine] = 1.0
                if attention[product] and copies[mine].all():
                    found[product] = self.repeated_heads_share
        return found if self._many(facts, found > 0).any() else np.broadcast_to(0.0, len(found))  # takes no room

    @remembered
    def _losses(self, facts: Facts) -> Float64s:
        """Passes beside a log-softmax, over as many numbers: all go away but one over 16 bits, forward and backward.

        A fused loss reads the scores once and writes their gradient once, as they are. What takes a small part of the
        log-softmax's time goes over fewer numbers; what picks rows for longer, over others.
        """
        program, own = facts.program, facts.program.own_ns
        found = np.zeros(facts.work.height)
        losses, long = program.marked("log-softmax"), own >= facts.thresholds.bandwidth_kernel_ns
        picks = program.labelled("gather-scatter")
        if not (losses & long).any():
            return found
        wide = program.having("precision", "fp32")
        beside = program.labelled(*PASSES, "gather-scatter") | facts.program.having("label", "memset")
        for run in program.runs(beside, (losses & long, 1)):
            longest = int(own[run[losses[run]]].max())
            others = picks[run] & (own[run] > self.picked_of_a_loss * longest)
            mine = run[(own[run] >= self.of_a_loss_share * longest) & ~others]
            kept = losses[mine]
            if kept.all():
                continue  # a log-softmax alone is a fused loss, or the next best
            found[mine] = np.where(kept, np.where(wide[mine], float(self.longest_saved_share), 0.0), 1.0)
        enough = time_of(program, found > 0) >= self.least_loss_share * facts.busy_ns
        return found if enough else np.broadcast_to(0.0, len(found))  # takes no room

    @remembered
    def _masks(self, facts: Facts) -> Float64s:
        """Passes that make the mask or bias of attention of positions alone, again for each attention of a step.

        They are those behind the positions that take longer than any pass elsewhere: they go over all pairs of queries
        and keys, of which there are more than numbers in a text.
        """
        program = facts.program
        passes, counting = self._passes(facts), program.marked("counting")
        attention = program.labelled("attention") & ~program.marked("backward")
        found = np.zeros(facts.work.height)
        least = max(self.least_masks * facts.steps, self.each_attention * attention.sum())
        if not attention.any() or counting.sum() < least:
            return found
        making = [run[np.argmax(counting[run]) :] for run in program.runs(passes, (counting, 1))]
        if len(making) < least:
            return found
        behind = np.concatenate(making)
        elsewhere = passes.copy()
        elsewhere[behind] = False
        mine = behind[program.own_ns[behind] > program.own_ns[elsewhere].max(initial=0)]
        found[mine] = 1 - facts.steps / len(making)
        return found if self._many(facts, found > 0).any() else np.broadcast_to(0.0, len(found))  # takes no room

    def _before_products(self, facts: Facts, which: Bools, least_ns: int = 0) -> Iterator[tuple[Int64s, int]]:
        """Of these pieces the last few before each product, with the product; none where the program trains.

        Those that take less than `least_ns` do not count: what makes a small mask stands between a product and its
        operands.
        """
        if facts.trains:
            return
        program = facts.program
        order, products = program.order, program.labelled(*PRODUCTS)
        begins, ends = program.edges(which)
        inside = np.minimum(ends, len(order) - 1)
        before = (ends < len(order)) & products[order[inside]] & ~program.breaks[inside]
        for begin, end in zip(begins[before].tolist(), ends[before].tolist(), strict=True):
            run = order[begin:end]
            yield run[program.own_ns[run] >= least_ns][-int(self.cast_operands) :], order[end]

    def _many(self, facts: Facts, found: Bools) -> Bools:
        """These, if they take enough time; else none."""
        enough = time_of(facts.program, found) >= self.least_casts_share * facts.busy_ns
        return found if enough else np.zeros_like(found)

    def _passes(self, facts: Facts) -> Bools:
        program = facts.program
        # A copy inside of the GPU's memory is a pass over it as well, whoever makes it.
        passes = program.labelled(*PASSES) | program.having("label", "device-to-device")
        passes = passes & ~program.marked("generated") & ~program.marked("layout-conversion")
        passes = passes & ~facts.program.having("phase", "optimizer")
        return np.asarray(passes & (GrowingCache().share(facts) == 0), dtype=np.bool_)

    def _without(self, facts: Facts, claims: Claims) -> Gain | None:
        """Of a host that is ahead of the GPU, some launches go as well, or it would hold back what is left.

        A compiler leaves the host its guards, and other code between the launches: half of the way, in the logarithm.
        """
        found = super()._without(facts, claims)
        if found is None or facts.unprofiled_host_ns >= facts.busy_ns:
            return found
        share = claims.pieces(self.id).share_of(facts.program.own_ns)
        unlaunched = facts.replayed(time=share, calls=share) or found
        low, high = min(found.low, unlaunched.low), max(found.high, unlaunched.high)
        return Gain(math.sqrt(found.expected * unlaunched.expected), low, high)

    def _unmade(self, facts: Facts, made: Bools) -> Gain | None:
        """What it brings to make no operands: neither these passes, nor what attention reads more of for them."""
        time = np.where(self._casts(facts), self.share(facts), self._copies(facts))
        return facts.replayed(time=time, calls=made.astype(np.float64))

    def _at_once(self, facts: Facts, claims: Claims, losing: Bools) -> Gain | None:
        """What one pass for the loss brings: passes of it that go away whole are not launched either.

        Of a loss that is summed up part by part, one log-softmax is left, forward and backward.
        """
        program = facts.program
        share = claims.pieces(self.id).share_of(program.own_ns)
        calls = np.where(losing & (share >= self.unlaunched_share), 1.0, 0.0)
        parts = np.flatnonzero(losing & program.marked("log-softmax"))
        _, which, counts = np.unique(program.launched_as(parts), return_inverse=True, return_counts=True)
        turns = counts[which] / facts.steps
        calls[parts] = np.maximum(calls[parts], 1 - 1 / np.maximum(turns, 1.0))
        return facts.replayed(time=share, calls=calls, elsewhere=bool((turns > 1).any()))

    def _of_operands(
        self, facts: Facts, cast: Bools, copied: Float64s, *, casts_first: bool, best: bool
    ) -> Iterator[Remedy]:
        """Remedies of operands that are made anew: if they are the best, the first brings what the finding expects."""
        kinds = ((_NARROW_WEIGHTS, cast), (_AS_THEY_ARE, copied > 0))
        for remedy, made in kinds if casts_first else kinds[::-1]:
            if made.any():
                if best:
                    yield remedy
                    best = False
                    continue
                kept = facts.replayed(time=copied, calls=(copied == 1).astype(np.float64))
                yield bringing(remedy, self._narrow(facts) if made is cast else kept, self.model)

    @remembered
    def _narrow(self, facts: Facts) -> Gain | None:
        """What it brings to keep weights in 16 bits: nothing is cast without autocast, and passes have 16 bits, too."""
        program = facts.program
        casts = self._casts(facts) | program.marked("narrowing")
        wide = program.labelled(*PASSES) & program.having("precision", *_WIDE)
        return facts.replayed(time=np.where(casts, 1.0, np.where(wide, 0.5, 0.0)), calls=casts.astype(np.float64))

    def _compiled(self, facts: Facts, claims: Claims, made: Bools) -> Gain | None:
        """What it brings to make one pass of each chain.

        Whether a compiler makes operands anew where they are read, or in a pass of their own as before, does not show:
        half of the way, in the logarithm.
        """
        share = np.where(made, 0.0, claims.pieces(self.id).whole() / np.maximum(facts.program.own_ns, 1))
        apart, inside = facts.replayed(time=share), facts.replayed(time=np.where(made, 1.0, share))
        if apart is None or inside is None:
            return None
        return Gain(math.sqrt(apart.expected * inside.expected), apart.low, inside.high)

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        mine = claims.of_work(self.id).to_numpy() > 0
        program = facts.program
        least = self._least_passes(facts)
        cast, copied = self._casts(facts), self._copies(facts)
        losing = self._losses(facts) > 0
        loss = time_of(program, mine & losing) > time_of(program, mine) / 2
        made = cast | (copied == 1)
        making = time_of(program, mine & made) > time_of(program, mine) / 2
        casting = making and time_of(program, mine & cast) >= time_of(program, mine & ~cast)
        chains = [chain for chain in program.runs(self._passes(facts), (mine & ~made, 1)) if len(chain) >= least]
        members = mine.copy()
        if chains:
            members[np.concatenate(chains)] = True
        casts = time_of(program, members & program.labelled("copy-cast")) / max(time_of(program, members), 1)
        kinds = _kinds(facts, members)
        # Where chains are the cause, weights kept in 16 bits may still bring more than a compiler.
        beside = cast.any() and not making and not loss
        narrow, chained = (self._narrow(facts), self._without(facts, claims)) if beside else (None, None)
        narrower = narrow is not None and chained is not None and narrow.expected > chained.expected
        removable = program.labelled(*PASSES) | program.having("label", "device-to-device")
        if copied.any():
            # A product that reads an operand as it was before the copy may read far less.
            most_ns = int(0.95 * time_of(program, removable | program.labelled(*PRODUCTS)))
        else:
            # What passes make of the same numbers again and again can be made once: then none of them is left, nor the
            # GPU's pauses before them.
            starting = program.of_gaps(removable) * facts.causes["start-latency"].whole()
            most_ns = time_of(program, removable) + int(starting.sum())
        masks = self._masks(facts)
        masking = time_of(program, mine & (masks > 0)) > time_of(program, mine) / 2
        title = self.copies_title if not chains else f"{kinds} make a separate pass over memory for each operation"
        compiling = _COMPILE_WHOLE if self._compiled_in_parts(facts) else _COMPILED
        return self.seen(
            facts,
            claims,
            title=self.masks_title
            if masking
            else self.casts_title
            if casting
            else self.operands_title
            if making
            else self.loss_title
            if loss
            else title,
            confidence="medium",
            evidence={
                "chains_per_step": len(chains) / facts.steps,
                "passes_per_chain_factor": int(members.sum()) / len(chains) if chains else None,
                "casts_share": casts,
            },
            bound_ns=most_ns,
            # Small models over large vocabularies have such losses, and little that one would call wrong.
            warning=facts.thresholds.unsure_warning_ceiling if loss else None,
            # Operands that are not made are not launched either; chains beside them take another remedy.
            replayed=facts.replayed(time=masks, calls=masks)
            if masking
            else self._unmade(facts, made)
            if making
            else self._at_once(facts, claims, losing)
            if loss and not casting
            else narrow
            if narrower
            else None,
            remedies=(
                *(_ONE_MASK if masking else ()),
                *(_FUSED_LOSS if loss and not making else ()),
                *self._of_operands(facts, cast, copied, casts_first=casting or narrower, best=making or narrower),
                *(() if chains or made.any() or loss else _KEEP_LAYOUT),
                bringing(compiling, chained if narrower else self._compiled(facts, claims, made), self.model)
                if masking or loss or making or narrower or not chains
                else compiling,
                Remedy(
                    "Use the fused operator where there is one",
                    "# torch.nn.functional.rms_norm, layer_norm, gelu(approximate='tanh'),\n"
                    "# cross_entropy(label_smoothing=0.1) in place of what is written out\n"
                    "# liger-kernel or flash-attn for rotary embeddings and losses",
                    "one pass for each",
                ),
                Remedy(
                    "Keep tensors in 16 bits",
                    "# no .float() before norms and losses: layer_norm and cross_entropy accumulate in fp32 anyway",
                    "half the memory traffic of the passes that are widened now",
                ),
            ),
        )


_WIDE: Final = ("fp32", "tf32", "fp64")

_COMPILED: Final = Remedy(
    "Compile the blocks",
    "for block in model.layers: block.compile()\n# or model = torch.compile(model)",
    f"{GAIN}: one pass per chain",
)

#: Where some of the passes are a compiler's already.
_COMPILE_WHOLE: Final = Remedy(
    "Compile whole blocks, not parts of them",
    "for block in model.layers: block.compile()  # in place of its norms or activations alone\n"
    "TORCH_LOGS=graph_breaks python infer.py  # names what is left out: read-backs, operators without a decomposition",
    f"{GAIN}: one pass per chain",
)

#: Where each layer makes a mask or bias that is the same for all.
_ONE_MASK: Final = (
    Remedy(
        "Make the mask once for all layers",
        "bias = alibi(length)  # before the loop over the layers, in the format of the queries\n"
        "for layer in layers: x = layer(x, bias)\n"
        "# or none at all: is_causal=True, or flex_attention with score_mod for a bias of positions",
        f"{GAIN}: no pass over all pairs of queries and keys but those of the first layer",
    ),
)

#: Where scores over a vocabulary are what passes go over.
_FUSED_LOSS: Final = (
    Remedy(
        "Compute the loss in one pass",
        "loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten())  # in 16 bits: no .float(), it sums in fp32\n"
        "# no log_softmax and gather, no one_hot, no .contiguous() of shifted scores: shift the labels\n"
        "# liger-kernel: LigerFusedLinearCrossEntropyLoss never writes the scores; torch.compile of head and loss",
        f"{GAIN}: one pass over the scores forward, one backward, in 16 bits; scores in 32 bits are not kept in memory",
    ),
    Remedy(
        "Score what has a label",
        "scores = head(hidden[labels != -100])  # prompts and padding have none\n"
        "# or by parts: torch.utils.checkpoint over slices of the positions",
        "in proportion to the positions left out",
    ),
)

#: Where weights are kept in 32 bits and used in 16.
_NARROW_WEIGHTS: Final = Remedy(
    "Keep the weights as they are used",
    "model = model.to(torch.bfloat16)  # inference needs no autocast then\n"
    "# transformers: from_pretrained(…, dtype=torch.bfloat16)",
    f"{GAIN}: no weight is read in 32 bits, written in 16 and read again for each product",
)

#: Where tensors are moved between the products, and little else is done to them there.
_KEEP_LAYOUT: Final = (
    Remedy(
        "Keep one layout and one format",
        "# no .contiguous() behind transpose, permute or a slice: products, reductions and norms take strides\n"
        "# no .to(dtype) back and forth: one format from the input of the block to its output",
        f"{GAIN}: no pass that computes nothing",
    ),
)

#: Where operands of products are copied, cast or computed before each.
_AS_THEY_ARE: Final = Remedy(
    "Give products their operands as they are kept",
    "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # no repeat_interleave of keys and values\n"
    "# weights that are made of others (from 8 bits, from a norm, merged): once, before the loop, where there is\n"
    "# memory, or by a product that reads them as they are (torchao, bitsandbytes)",
    f"{GAIN}: no operand is written and read again for each product",
)

#: What kernels of these names are parts of, in words; the first that holds.
_KINDS: Final = (
    ("Norms", r"(?i)rsqrt|norm|mean|var_|welford|pow_tensor_scalar"),
    ("Losses", r"(?i)softmax|nll|cross_entropy|logsumexp"),
    ("Rotary embeddings", r"(?i)cos_|sin_|neg_|CatArray"),
    ("Activations", r"(?i)gelu|silu|sigmoid|tanh|relu|erf|GeluCUDA|exp_kernel"),
    ("Masks", r"(?i)dropout|where|masked|bernoulli|compare"),
    ("Casts", r"(?i)copy_kernel|direct_copy|to_copy"),
    ("Elementwise arithmetic", r"(?i)add|mul|div|sub"),
)


def _kinds(facts: Facts, members: Bools, most: int = 2) -> str:
    """What most of the time of those that are kernels goes to, in words."""
    kernels = facts.timeline.trace.kernels["full_name"]
    members = members & facts.program.is_kernel
    rows = facts.work["row"].filter(pl.Series(members))
    frame = pl.DataFrame({"name": kernels.gather(rows).cast(pl.String), "time": facts.program.own_ns[members]})
    kind = pl.lit("Elementwise operations")
    for word, pattern in reversed(_KINDS):
        kind = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(word)).otherwise(kind)
    sums = frame.group_by(kind.alias("kind")).agg(pl.col("time").sum()).sort("time", "kind", descending=[True, False])
    first, *rest = sums["kind"].head(most).to_list()
    return " and ".join([first, *(word[0].lower() + word[1:] for word in rest)])
