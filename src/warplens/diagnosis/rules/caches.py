"""Caches, histories and results that are copied whole: to append to them, to move their rows, or before each use."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, Finding, Remedy, Variant
from warplens.diagnosis.rule import Limit, remembered
from warplens.diagnosis.structure import StructureRule, gathered_operands, time_of
from warplens.profile.schema import Bools, Float64s

#: For caches that grow by concatenation.
_FIXED: Final = (
    Remedy(
        "Write into a cache of fixed size",
        "cache[:, :, position] = key  # with a mask by length\n"
        "# transformers: model.generate(ids, cache_implementation='static'), or your own loop with\n"
        "# past_key_values=StaticCache(config, max_cache_len=n) (before 4.56: batch size, device and format as well)",
        "one token is written per step, which can also be replayed from a CUDA graph",
    ),
    Remedy(
        "Use a paged cache",
        "# vllm, or flash_attn_with_kvcache with a block table",
        "the same, without reserving memory for the longest sequence",
    ),
)

#: For caches whose rows are reordered.
_IN_PLACE: Final = Remedy(
    "Move indices, not the cache",
    "# a paged cache whose block table is reordered (vllm), or rows that are gathered once at the end\n"
    "# sampling or greedy search instead of beams if quality allows: num_beams=1",
)

#: For loops that append their results.
_COLLECTED: Final = Remedy(
    "Collect results, and concatenate once",
    "parts.append(y)  # in the loop\nresult = torch.cat(parts)  # after it\n"
    "# or, for a known length: result = torch.empty(n, ...); result[i] = y",
    "each result is copied once",
)

#: For caches of fixed size that compiled code copies.
_WRITTEN: Final = Remedy(
    "Keep keys and values in tensors of their own, and write them in place",
    "self.keys[:, :, place] = k  # or index_copy_; two buffers, because a compiler copies a buffer of which it\n"
    "self.values[:, :, place] = v  # writes one half and reads the other: not kept[0] = k; kept[1] = v\n"
    "# check with warplens kernels: the generated kernels with copy in their names are gone",
    f"{GAIN}: one token is written",
)

#: For heads that share keys and values.
_SHARED: Final = Remedy(
    "Let attention read the heads that are shared",
    "scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)  # k and v not repeated\n"
    "# with a mask, many versions have it in cuDNN's kernels only (Hopper and later); elsewhere, it makes the copies\n"
    "# one query, k of shape (B, H, S, D), one mask for all heads: heads of a group as rows, which all kernels take\n"
    "y = scaled_dot_product_attention(q.reshape(B, H, -1, D), k, v, attn_mask=mask).reshape(q.shape)\n"
    "# transformers repeats them if there is a mask, as with a static cache (5.24: where it is compiled):\n"
    '# AttentionInterface.register("shared", function); AttentionMaskInterface.register("shared", sdpa_mask), else\n'
    '# there is no mask (transformers.masking_utils.sdpa_mask); model.set_attn_implementation("shared")',
    f"{GAIN}: nothing is copied, and attention reads each head's keys and values once",
)

#: For rows that are written into a copy.
_UNDERSCORE: Final = Remedy(
    "Write in place",
    "keys.index_copy_(2, position, new)  # with the underscore; or keys[:, :, position] = new\n"
    "# index_copy, index_put, scatter, select_scatter and slice_scatter copy the whole tensor first\n"
    "# in training, only where autograd does not need the old values",
    f"{GAIN}: only the new rows are written",
)

#: For histories of fixed length.
_RING: Final = Remedy(
    "Write into a ring",
    "history[:, turn % length] = frame  # instead of torch.cat([history[:, 1:], frame], dim=1) or torch.roll\n"
    "# readers put the frames in order: history[:, order], or weights rolled by the turn\n"
    "# or a buffer twice as long, written in place, of which each turn reads a slice",
    f"{GAIN}: one frame is written instead of the whole history",
)


@dataclass(frozen=True)
class _Habit(Variant):
    """A way of programming that copies all of a tensor."""

    remedies: tuple[Remedy, ...] = _FIXED
    by_compiler: bool = False  #: whether compiled code makes the copies, which are counted as such


_APPENDED_HEADLINE: Final = (
    "Limited by appending to a tensor: {share} of the time goes into copying what was there before"
)

_BY_CONCATENATION: Final = _Habit("A cache is extended by concatenation, which copies all of it in every step")
_BY_REORDERING: Final = _Habit(
    "A cache is reordered by copying all of it for each token, as beam search does",
    refutation="Decode with num_beams=1, or without reordering the cache, where only the time counts: if a token "
    "takes as long, the copies were not the limit.",
    remedies=(_IN_PLACE, *_FIXED),
)
_BY_APPENDING: Final = _Habit(
    "Results are appended by concatenation, which copies all earlier ones each time",
    _APPENDED_HEADLINE,
    "Leave the concatenation out, and only keep the parts in a list: if a step takes as long, the copies were not "
    "the limit.",
    (_COLLECTED,),
)
_BY_ROLLING: Final = _Habit(
    "A history of fixed length is joined anew in each turn, which copies all of it",
    _APPENDED_HEADLINE,
    "Leave the concatenation out, so that the history stays as it is: if a turn takes as long, the copies were not "
    "the limit.",
    (_RING,),
)
_BY_WRITING: Final = _Habit(
    "All of a tensor is copied for each few rows that are written into it",
    "Limited by writing to copies: {share} of the time goes into copying a whole tensor for a few new rows",
    "Leave the writes out, so that the tensor stays as it is: if a step takes as long, the copies were not the limit.",
    (_UNDERSCORE,),
)
_BY_SHIFTING: Final = _Habit(
    "A buffer is shifted by torch.roll, which copies all of it to make room for new rows",
    "Limited by torch.roll: {share} of the time goes into copying a whole buffer",
    "Leave torch.roll out, so that the buffer stays as it is: if a step takes as long, the copies were not the limit.",
    (_RING,),
)
_BY_COMPILER: Final = _Habit(
    "Compiled code copies a whole cache of keys and values before each attention",
    "Limited by a cache that compiled code copies: {share} of the time goes into that",
    "Run a few tokens without torch.compile, and look at the copies before attention (warplens kernels): if a copy of "
    "the whole cache is still there, the program makes it, not the compiler.",
    (_WRITTEN,),
    by_compiler=True,
)
_FOR_HEADS: Final = _Habit(
    "Keys and values are copied for each head that shares them, before each attention",
    "Limited by copies of keys and values for the heads that share them: reading them where they are could save "
    "{share} of the time",
    "Pass keys and values to attention without repeating them (enable_gqa=True): if a step takes as long, the copies "
    "were not the limit.",
    (_SHARED,),
    by_compiler=True,
)


class _Copies(NamedTuple):
    """Copies of a whole tensor."""

    joined: Bools  #: concatenations, and the other copies of the habit
    gathers: Bools  #: gathers that reorder a cache
    habit: _Habit  #: that of `joined`


def _new_share(shapes: str) -> float | None:
    """Share of the numbers of a concatenation outside its largest part; None if unknown."""
    lists = [part for part in json.loads(shapes) if isinstance(part, list)]
    parts: list[int] = [math.prod(part) for part in (lists[0] if lists else ()) if isinstance(part, list)]
    numbers = sum(parts)
    return 1 - max(parts) / numbers if len(parts) > 1 and numbers else None


class GrowingCache(StructureRule):
    """Copies of a whole cache: growing concatenations, reordered caches, rolled histories."""

    id = "growing-cache"
    question = "Is a whole cache copied in order to append to it?"
    limiter = "a growing cache that is copied in every step"
    cause = (
        "concatenated key/value caches, caches that are reordered, results that are appended by concatenation, "
        "histories of fixed length that are joined anew or rolled, tensors that are copied to write a few rows, keys "
        "and values that compiled code copies"
    )
    raised_when = (
        "in inference, concatenations grow from step to step; or concatenations or gathers of rows occur with each "
        "attention of a decoder and take far longer than the work on one token; or at least sixteen concatenations of "
        "a step get longer in turn, or each includes what was appended before; or at least eight of one size take 15 % "
        "of the busy time; or compiled code makes copies for each attention of a decoder, which take longer than "
        "attention; or at least eight copies of a step each precede a write of a tenth of their time, and take 15 %; "
        "or, also in training, torch.roll takes 15 %; and it costs 2 %"
    )
    claimed = "these copies, and of attention on heads that are copied what it need not read"
    headline = "Limited by a growing cache: {share} of the time goes into copying all of it"
    title = _BY_CONCATENATION.title
    evidence: ClassVar = {
        "concatenations_per_step": "copies of a whole tensor in order to append to it, or to move its rows",
        "copies_per_step": "copies of keys and values by compiled code",
        "growth_per_step": "how much longer they take from one step to the next, as a share of their time",
    }
    refutation = (
        "Write into a buffer of fixed size (in decoding: StaticCache): if a step takes as long, the copies were not "
        "the limit."
    )
    least_per_step = Limit(4, "A network with a few layers concatenates the keys and values of each.")
    longer = Limit(
        10,
        "A cache of a thousand tokens is a thousand times as large as the addition of one token, whose passes are "
        "short.",
    )
    saved_share = Limit(
        0.92,
        "One token, a thousandth of all, is written; but attention reads a cache of fixed size in its full length, or "
        "through a view. Programs timed with and without the copies saved between 0.87 of them and all of them.",
    )
    least_copied = Limit(0.4, "Of the attentions: those on an encoder's states, half of all, may read them in place.")
    shared_heads_share = Limit(
        0.72,
        "Models that share keys between heads do so between four or more. Attention in two programs took 28 % of the "
        "time once it read them where they are.",
    )
    least_growth = Limit(0.0005, "Above noise: a cache of 2,000 tokens grows by this much per step.")

    least_grown = Limit(4, "Sizes of copies, each larger than the last by what was copied beside that one.")

    least_appended = Limit(8, "Fewer concatenations of a step may get longer by chance.")
    rank_correlation = Limit(0.9, "Between the durations of the copies and their order; near 1 if all is copied.")
    few_appended = Limit(16, "Branches of a network may join in ever larger maps; a history grows equally each time.")
    few_correlation = Limit(0.99, "As `rank_correlation`, of the durations themselves, if there are few copies.")

    least_turns = Limit(8, "Turns of a step that make the same concatenation: a network has few of one size.")
    least_rolled_share = Limit(
        0.15,
        "Of the busy time: networks that join branches spend less in joining one size, and networks with shifted "
        "windows spend 0.05 in torch.roll.",
    )
    most_new_share = Limit(0.25, "All but the largest part, of the joined tensor: two equal halves are no history.")

    def share(self, facts: Facts) -> Float64s:
        """Share saved of concatenations and gathers that copy a whole cache, and of attention on copied heads."""
        joined, gathers, habit = self._copies(facts)
        copies = joined | gathers
        if habit.by_compiler:
            share: Float64s = copies.astype(np.float64)
            if habit is _FOR_HEADS:
                share[self._compiled(facts)[1]] = self.shared_heads_share
            return share
        return np.where(copies, float(self.saved_share), 0.0) if copies.any() else facts.no_share

    @remembered
    def _copies(self, facts: Facts) -> _Copies:
        """Copies of whole tensors that append to them, move their rows, or precede their use."""
        program = facts.program
        nothing = np.zeros(facts.work.height, dtype=np.bool_)
        shifts = program.marked("rolling")
        if time_of(program, shifts) >= self.least_rolled_share * facts.busy_ns:
            return _Copies(shifts, nothing, _BY_SHIFTING)
        # Training keeps no cache: its concatenations are those of rotary embeddings and the like.
        if facts.trains:
            return _Copies(nothing, nothing, _BY_CONCATENATION)
        gathers = self._with_each_attention(facts, self._gathers(facts))
        appending = _BY_CONCATENATION if self._attention(facts).any() else _BY_APPENDING
        grown = self._grown(facts)
        if grown.sum() >= self.least_per_step * facts.steps:
            return _Copies(grown, gathers, appending)
        joined = self._of_cache(facts)
        if joined.any():
            return _Copies(joined, gathers, _BY_CONCATENATION)
        written = self._written(facts)
        if written.any():
            return _Copies(written, gathers, _BY_WRITING)
        appended = self._appended(facts)
        if appended.any():
            return _Copies(appended, gathers, appending)
        compiled, _ = self._compiled(facts)
        if compiled.any():
            expanding_ns = time_of(program, compiled & program.marked("expanding"))
            is_shared = 2 * expanding_ns >= time_of(program, compiled)
            return _Copies(compiled, nothing, _FOR_HEADS if is_shared else _BY_COMPILER)
        return _Copies(self._rolled(facts), gathers, _BY_ROLLING)

    def _of_cache(self, facts: Facts) -> Bools:
        """Concatenations with each attention of a decoder; all of them if they grow from step to step."""
        joins = facts.program.marked("concatenation")
        pairs = self._with_each_attention(facts, joins)
        if pairs.any():
            return pairs
        many = joins.sum() >= self.least_per_step * facts.steps
        growth = self._growth(facts, joins) if many and self._attention(facts).any() else None
        return joins if growth is not None and growth >= self.least_growth else np.zeros_like(joins)

    def _attention(self, facts: Facts) -> Bools:
        """Kernels of attention, except backward ones."""
        return np.asarray(facts.program.labelled("attention") & ~facts.program.marked("backward"), dtype=np.bool_)

    def _gathers(self, facts: Facts) -> Bools:
        """Gathers, except those whose result a product reads at once: they copy operands, not a cache."""
        gathers = facts.program.labelled("gather-scatter") & ~facts.program.marked("adding-rows")
        gathers[gathered_operands(facts)[0]] = False
        return np.asarray(gathers, dtype=np.bool_)

    def _with_each_attention(self, facts: Facts, which: Bools) -> Bools:
        """Those of these that take far longer than the work on one token, if each attention has a pair of them."""
        program = facts.program
        attention = self._attention(facts)
        others = program.passes & ~program.marked("concatenation")
        if not attention.any() or not others.any() or which.sum() < self.least_per_step * facts.steps:
            return np.zeros_like(which)
        long = which & (program.own_ns >= self.longer * float(np.median(program.own_ns[others])))
        return long if long.sum() >= 1.5 * attention.sum() else np.zeros_like(which)

    @remembered
    def _compiled(self, facts: Facts) -> tuple[Bools, Bools]:
        """Copies by kernels of a compiler of all that an attention reads, and these attentions.

        They lie between an attention and the one before it, are far longer than the other passes there, which work on
        one token, and together at least as long as the attention. Copies of activations are not.
        """
        program = facts.program
        attention = self._attention(facts)
        passes = program.passes
        copies = passes & program.marked("copying")
        nothing = np.zeros_like(copies)
        if not copies.any() or not attention.any():
            return nothing, nothing
        order = program.order
        own = program.in_order(program.own_ns)
        ends = np.flatnonzero(attention[order])
        stretch = np.searchsorted(ends, np.arange(len(order)))  # the next attention
        others = (passes & ~copies)[order]
        count, spent = (np.bincount(stretch[others], of, len(ends) + 1) for of in (None, own[others]))
        usual = spent.sum() / count.sum() if count.sum() else np.inf
        of_token = np.where(count > 0, spent / np.maximum(count, 1), usual)
        long = copies[order] & (own >= self.longer * of_token[stretch])
        copied = np.bincount(stretch[long], own[long], len(ends) + 1)[:-1] >= own[ends]
        if copied.sum() < max(self.least_per_step * facts.steps, self.least_copied * len(ends)):
            return nothing, nothing
        made = nothing.copy()
        made[order[long & np.append(copied, False)[stretch]]] = True
        read = nothing.copy()
        read[order[ends[copied]]] = True
        return made, read

    @remembered
    def _appended(self, facts: Facts) -> Bools:
        """Concatenations of each step that get longer from the first to the last."""
        program = facts.program
        joins = program.marked("concatenation")
        appended = np.zeros(facts.work.height, dtype=np.bool_)
        for rows in program.by_step() if joins.any() else ():
            of_step = rows[joins[rows]]
            if len(of_step) < self.least_appended:
                continue
            time = program.own_ns[of_step]
            quarter = len(of_step) // 4
            if np.median(time[-quarter:]) < 2 * np.median(time[:quarter]):
                continue
            few = len(of_step) < self.few_appended
            grown = time if few else np.argsort(np.argsort(time, kind="stable"))
            correlation = float(np.corrcoef(np.arange(len(of_step)), grown)[0, 1])
            appended[of_step] = correlation >= (self.few_correlation if few else self.rank_correlation)
        return appended

    def _written(self, facts: Facts) -> Bools:
        """Copies of a whole tensor, each right before a few rows of the copy are written, as by `index_copy`."""
        program = facts.program
        order = program.order
        copies = program.in_order(program.having("label", "device-to-device") | program.labelled("copy-cast"))
        own = program.in_order(program.own_ns)
        written = np.zeros(facts.work.height, dtype=np.bool_)
        writes = np.flatnonzero(program.in_order(program.marked("adding-rows")) & ~program.breaks)
        writes = writes[writes > 0]
        whole = writes[copies[writes - 1] & (own[writes - 1] >= self.longer * own[writes])] - 1
        written[order[whole]] = True
        enough = time_of(program, written) >= self.least_rolled_share * facts.busy_ns
        return written if enough and len(whole) >= self.least_turns * facts.steps else np.zeros_like(written)

    @remembered
    def _grown(self, facts: Facts) -> Bools:
        """Copies of a whole tensor right before a small copy by the same kernel, which the next copy includes.

        PyTorch concatenates tensors of five and more dimensions in this way, slice by slice.
        """
        program = facts.program
        grown = np.zeros(facts.work.height, dtype=np.bool_)
        copies = program.labelled("copy-cast")
        if not copies.any():
            return grown
        all_names = program.names()
        for rows in program.by_step():
            kernels = rows[program.is_kernel[rows]]
            names = all_names[kernels]
            sizes = np.nan_to_num(program.blocks(kernels))
            old, new = sizes[:-1], sizes[1:]
            is_pair = copies[kernels[:-1]] & (names[:-1] == names[1:]) & (new > 0) & (new <= self.most_new_share * old)
            places = np.flatnonzero(is_pair)
            # Pairs of one kernel with equal new parts lie together, in the order of the program.
            places = places[np.lexsort((places, new[places], names[places]))]
            differs = (np.diff(names[places]) != 0) | (np.diff(new[places]) != 0)
            for of_one in np.split(places, np.flatnonzero(differs) + 1):
                growth = np.diff(old[of_one])
                growth = growth[growth != 0]
                # Sizes are rounded up to whole blocks.
                if len(growth) + 1 >= self.least_grown and (np.abs(growth - new[of_one[0]]) <= 1).all():
                    grown[kernels[of_one]] = True
        return grown

    @remembered
    def _rolled(self, facts: Facts) -> Bools:
        """Concatenations of one size that turns of a step repeat: a history of fixed length.

        With recorded shapes, one part has to be far larger than the others.
        """
        program = facts.program
        rolled = np.zeros(facts.work.height, dtype=np.bool_)
        rows = np.flatnonzero(program.marked("concatenation"))
        keys = program.launched_as(rows)
        shapes = program.shapes()
        for key in np.unique(keys):
            equal = rows[keys == key]
            enough = time_of(program, equal) >= self.least_rolled_share * facts.busy_ns
            if not enough or len(equal) < self.least_turns * facts.steps:
                continue
            new_shares = [_new_share(text) for text in shapes.gather(equal).drop_nulls().unique().to_list()]
            rolled[equal] = all(share is None or share <= self.most_new_share for share in new_shares)
        return rolled

    def _removable_ns(self, facts: Facts, copies: Bools) -> int:
        """The copies, all pauses (a fixed size can be replayed from a graph), and half of the other passes."""
        other_passes = facts.program.passes & ~copies
        return time_of(facts.program, copies) + facts.own_idle_ns + time_of(facts.program, other_passes) // 2

    def _growth(self, facts: Facts, copies: Bools) -> float | None:
        """Growth of their time from step to step, as a share of it; None if there are too few or they do not grow."""
        if facts.steps < 3 or copies.sum() < self.least_per_step * facts.steps:
            return None
        program = facts.program
        steps = np.unique(program.step[copies])
        rows = np.flatnonzero(copies)
        grid = np.nan_to_num(program.blocks(rows))
        own = program.own_ns[rows]
        step_of = program.step[rows]
        sums = np.array([own[step_of == step].sum() for step in steps], dtype=np.float64)
        blocks = np.array([grid[step_of == step].sum() for step in steps])
        if len(steps) < 3 or not sums.mean():
            return None
        slope = np.polyfit(np.arange(len(steps)), sums, 1)[0] / sums.mean()
        rising = np.all(np.diff(blocks) >= 0) and blocks[-1] > blocks[0]
        return float(slope) if rising or slope > 3 * np.std(np.diff(sums)) / sums.mean() else None

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding on the habit whose copies take most of the claimed time."""
        claimed = claims.of_work(self.id).to_numpy() > 0
        copies = self._copies(facts)
        gathered_ns, joined_ns = (time_of(facts.program, claimed & which) for which in (copies.gathers, copies.joined))
        habit = _BY_REORDERING if gathered_ns > joined_ns else copies.habit
        if habit.by_compiler:
            evidence: dict[str, int | float | None] = {
                "copies_per_step": int((claimed & copies.joined).sum()) / facts.steps
            }
        else:
            evidence = {
                "concatenations_per_step": int(claimed.sum()) / facts.steps,
                "growth_per_step": self._growth(facts, claimed),
            }
        return self.seen(
            facts,
            claims,
            variant=habit,
            confidence="medium" if self._is_inferred(facts, copies.habit) else "high",
            evidence=evidence,
            bound_ns=self._removable_ns(facts, claimed),
            remedies=habit.remedies,
        )

    def _is_inferred(self, facts: Facts, habit: _Habit) -> bool:
        """Whether only the time of the copies, not their shapes, tells that they are those of this habit."""
        return habit is _BY_WRITING or (habit is _BY_ROLLING and facts.program.shapes().is_null().all())
