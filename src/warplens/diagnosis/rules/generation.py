"""Token-by-token generation: repeated passes over all tokens and inputs, and copies of whole caches."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.repetition import longest_repetition
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import PASSES, Finding, Remedy
from warplens.diagnosis.program import Program
from warplens.diagnosis.rule import GAIN, Limit, remembered
from warplens.diagnosis.structure import StructureRule, gathered_operands, time_of
from warplens.profile.schema import Bools, Float64s, Int64s

#: Least passes over a growing text: fewer grids may grow evenly by chance.
_LEAST_PASSES: Final = 6
#: Least kernels of a pass that move data.
_LEAST_KERNELS: Final = 4
#: Least blocks of a grid for its growth to show.
_LEAST_BLOCKS: Final = 4
#: Least share of those kernels whose grids grow. With a cache, only attention's work on scores and on the appended
#: cache grows, a quarter of a layer; without a cache, everything does.
_GROWING_SHARE: Final = 0.6
#: Largest deviation from the mean growth, as a share of it; at least one block, for rounding up. Image decoders double
#: their sides instead.
_UNEVEN_SHARE: Final = 0.2
#: Longer sequences of a step are not searched.
_MOST_KERNELS: Final = 200_000
#: Least turns with an encoder pass before each token: fewer grids may grow evenly by chance.
_LEAST_TURNS: Final = 4
#: Least kernels of a recurring stretch in the same order on the same grids, more than a layer's norms and products.
_STRETCH: Final = 24
#: Most stretches that are examined.
_TRIES: Final = 16
#: Copies to the GPU from this size on may be the input of an encoder; a token, a mask or a position is smaller.
_INPUT_BYTES: Final = 65_536
#: Approximate duration of a kernel for one token: it starts and reads its weights.
_OF_A_TOKEN_NS: Final = 5_000


@dataclass(frozen=True, eq=False)
class Growing:
    """Passes of a step over all tokens so far."""

    share: Float64s  #: share of each piece of work that a cache of keys and values saves
    passes: float  #: passes per step
    growth: float  #: tokens of the last pass over those of the first


@once
def growing_passes(facts: Facts) -> Growing | None:
    """Passes that launch the same kernels on evenly growing grids; None without such passes.

    With a cache, a pass works on one token. Without a cache it works on all tokens, and each grid grows by the work of
    one token from pass to pass.
    """
    if facts.trains:
        return None
    program = facts.program
    steps = list(program.by_step())
    share = np.zeros(facts.work.height)
    counts: list[float] = []
    growths: list[float] = []
    # A step may be one token: then the passes are steps, and the whole program is searched.
    for rows in steps if len(steps) < _LEAST_PASSES else [*steps, program.order]:
        if rows is program.order and counts:
            break
        passes = _growing_passes_in(program, rows)
        if passes is not None:
            begins, token_shares = passes
            counts.append(len(begins) if rows is not program.order else len(begins) / len(steps))
            growths.append(token_shares[0] / token_shares[-1])
            # The first pass reads the prompt, which a cache needs as well.
            for begin, end, token_share in list(zip(begins, [*begins[1:], len(rows)], token_shares, strict=True))[1:]:
                of_pass = rows[begin:end]
                least = np.minimum(_OF_A_TOKEN_NS / np.maximum(program.own_ns[of_pass], 1), 1.0)
                share[of_pass] = np.where(program.is_kernel[of_pass], 1 - np.maximum(token_share, least), 0.0)
    return Growing(share, float(np.mean(counts)), float(np.median(growths))) if counts else None


def _growing_passes_in(program: Program, rows: Int64s) -> tuple[list[int], list[float]] | None:
    """Begin of each such pass among these pieces, and the share of its work for one token; None without passes."""
    places = np.flatnonzero(program.labelled(*PASSES)[rows])
    if not _LEAST_PASSES * _LEAST_KERNELS <= len(places) <= _MOST_KERNELS:
        return None
    period, begin, stop = longest_repetition(program.names()[rows[places]])
    repeats = (stop - begin) // period if period else 0
    if period < _LEAST_KERNELS or repeats < _LEAST_PASSES:
        return None
    turns = places[begin : begin + repeats * period].reshape(repeats, period)
    grids = np.nan_to_num(program.blocks(rows[turns.ravel()])).reshape(repeats, period)
    # The repetition may be a layer; all layers of a pass have equal grids.
    firsts = np.flatnonzero(np.r_[True, (grids[1:] != grids[:-1]).any(axis=1)])
    token_shares = _token_shares(grids[firsts]) if len(firsts) >= _LEAST_PASSES else None
    return None if token_shares is None else (turns[firsts][:, 0].tolist(), token_shares.tolist())


def _token_shares(grids: Float64s) -> Float64s | None:
    """Share of the work of each turn for one token, by the blocks of its grids, shape (turns, kernels).

    None unless most grids grow by the same amount each time.
    """
    grids = grids[:, grids[-1] >= _LEAST_BLOCKS]
    growth = np.diff(grids, axis=0)
    mean = growth.mean(axis=0) if grids.shape[1] else np.zeros(0)
    even = (np.abs(growth - mean) <= np.maximum(1.0, _UNEVEN_SHARE * mean)).all(axis=0)
    growing = even & (growth >= 0).all(axis=0) & (grids[-1] >= grids[0] + len(grids) / 2)
    if growing.sum() < _LEAST_KERNELS or growing.mean() < _GROWING_SHARE:
        return None
    return np.asarray(np.median(mean[growing] / grids[:, growing], axis=1).clip(0.0, 1.0), dtype=np.float64)


@once
def encoded_again(facts: Facts) -> tuple[Bools, float]:
    """Work of the second and later passes of an encoder, and its passes per step; none if the program trains.

    A long stretch recurs with the same kernels on the same grids, turn after turn, and the work after it goes over a
    text that grows by a token each time. The stretch does not grow with the text, so it reads the same input as the
    first one, unless the host sends new input before it.
    """
    program = facts.program
    again = np.zeros(facts.work.height, dtype=np.bool_)
    counts: list[int] = []
    if facts.trains:
        return again, 1.0
    sent = facts.copies.filter((pl.col("label") == "host-to-device") & (pl.col("bytes") >= _INPUT_BYTES))
    sent_ns, launched_ns = sent["start_ns"].to_numpy(), facts.work["start_ns"].to_numpy()
    for rows in (*program.by_step(), program.order):
        if rows is program.order and counts:
            break  # a step may be one token: then the turns are steps
        kernels = np.flatnonzero(program.is_kernel[rows])
        if not _LEAST_TURNS * 2 * _STRETCH <= len(kernels) <= _MOST_KERNELS:
            continue
        begins, length = _stretches(program.launched_as(rows[kernels]), program.own_ns[rows[kernels]])
        if not length or not _follows_growing(program, rows[kernels], begins, length):
            continue
        firsts, lasts = kernels[begins], kernels[begins + length - 1]
        first_ns, last_ns = launched_ns[rows[[firsts[0], lasts[-1]]]]
        if ((sent_ns > first_ns) & (sent_ns < last_ns)).any():
            continue
        for first, last in zip(firsts[1:].tolist(), lasts[1:].tolist(), strict=True):
            again[rows[first : last + 1]] = True
        counts.append(len(begins))
    return again, float(np.mean(counts)) if counts else 1.0


def _stretches(codes: Int64s, own_ns: Int64s) -> tuple[Int64s, int]:
    """Begins and length of the recurring stretch with the most time and other work in between; length 0 for none.

    Layers recur as well, but without other work in between.
    """
    best, best_length = np.zeros(0, dtype=np.int64), 0
    hashes = np.zeros(len(codes) - _STRETCH + 1, dtype=np.int64)
    for offset in range(_STRETCH):  # a polynomial hash of each window of the sequence, modulo 2⁶⁴
        hashes = hashes * 1_000_003 + codes[offset : offset + len(hashes)]
    _, windows, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    before, most = np.r_[0, np.cumsum(own_ns)], 0
    covered = np.zeros(len(codes), dtype=np.bool_)
    recurs = counts[windows] >= _LEAST_TURNS
    for _ in range(_TRIES):
        # The rarest recurring window occurs once per turn.
        left = np.flatnonzero(recurs & ~covered[: len(windows)])
        if not len(left):
            break
        places = np.flatnonzero(windows == windows[left[np.argmin(counts[windows[left]])]])
        distance = int(np.diff(places).min())
        after = _equal_columns(codes[places[:, None] + np.arange(min(distance, len(codes) - int(places[-1])))])
        ahead = _equal_columns(codes[places[:, None] - 1 - np.arange(min(distance - after, int(places[0])))])
        begins, length = places - ahead, after + ahead
        covered[(begins[:, None] + np.arange(length)).ravel()] = True
        covered[places] = True
        spent = int((before[begins + length] - before[begins]).sum())
        if distance - length >= _LEAST_KERNELS and spent > most:
            best, best_length, most = begins, length, spent
    return best, best_length


def _equal_columns(turns: Int64s) -> int:
    """How many of the first columns are equal in all rows."""
    differs = (turns != turns[0]).any(axis=0)
    return int(np.argmax(differs)) if differs.any() else turns.shape[1]


def _follows_growing(program: Program, rows: Int64s, begins: Int64s, length: int) -> bool:
    """Whether the work after each of these stretches goes over a text that is a token longer each time."""
    passes, names, ends = program.labelled(*PASSES), program.names(), np.r_[begins[1:], len(rows)]
    turns = [rows[begin + length : end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    turns = [turn[passes[turn]] for turn in turns]
    usual = names[turns[len(turns) // 2]]
    # The first and the last turn may have other work as well.
    alike = [turn[: len(usual)] for turn in turns if np.array_equal(names[turn[: len(usual)]], usual)]
    if len(alike) < _LEAST_TURNS or len(usual) < _LEAST_KERNELS:
        return False
    grids = np.nan_to_num(program.blocks(np.concatenate(alike))).reshape(len(alike), len(usual))
    return _token_shares(grids) is not None


#: For caches whose rows are reordered.
_IN_PLACE: Final = (
    Remedy(
        "Move indices, not the cache",
        "# a paged cache whose block table is reordered (vllm), or rows that are gathered once at the end\n"
        "# sampling or greedy search instead of beams if quality allows: num_beams=1",
        GAIN,
    ),
)

#: For loops that append their results.
_COLLECTED: Final = (
    Remedy(
        "Collect results, and concatenate once",
        "parts.append(y)  # in the loop\nresult = torch.cat(parts)  # after it\n"
        "# or, for a known length: result = torch.empty(n, ...); result[i] = y",
        "each result is copied once",
    ),
)


#: For histories of fixed length.
_RING: Final = (
    Remedy(
        "Write into a ring",
        "history[:, turn % length] = frame  # instead of torch.cat([history[:, 1:], frame], dim=1) or torch.roll\n"
        "# readers put the frames in order: history[:, order], or weights rolled by the turn\n"
        "# or a buffer twice as long, written in place, of which each turn reads a slice",
        f"{GAIN}: one frame is written instead of the whole history",
    ),
)


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
        "histories of fixed length that are joined anew or rolled"
    )
    raised_when = (
        "in inference, concatenations grow from step to step; or concatenations or gathers of rows occur with each "
        "attention of a decoder and take far longer than the work on one token; or at least sixteen concatenations of "
        "a step get longer in turn, or each includes what was appended before; or at least eight of one size take 15 % "
        "of the busy time; or, also in training, torch.roll takes that much; and it costs 2 %"
    )
    claimed = "these copies"
    headline = "Limited by a growing cache: {share} of the time goes into copying all of it"
    title = "A cache is extended by concatenation, which copies all of it in every step"
    reordered_title: ClassVar = "A cache is reordered by copying all of it for each token, as beam search does"
    appended_title: ClassVar = "Results are appended by concatenation, which copies all earlier ones each time"
    rolled_title: ClassVar = "A history of fixed length is joined anew in each turn, which copies all of it"
    shifted_title: ClassVar = "A buffer is shifted by torch.roll, which copies all of it to make room for new rows"
    shifted_headline: ClassVar = "Limited by torch.roll: {share} of the time goes into copying a whole buffer"
    appended_headline: ClassVar = (
        "Limited by appending to a tensor: {share} of the time goes into copying what was there before"
    )
    headlines: ClassVar = {
        appended_title: appended_headline,
        rolled_title: appended_headline,
        shifted_title: shifted_headline,
    }
    evidence: ClassVar = {
        "concatenations_per_step": "copies of a whole tensor in order to append to it, or to move its rows",
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
        """Share saved of concatenations and gathers that copy a whole cache."""
        joined, gathers, _ = self._copies(facts)
        copies = joined | gathers
        # Most programs have none, and broadcasting takes no memory.
        return np.where(copies, float(self.saved_share), 0.0) if copies.any() else np.broadcast_to(0.0, len(copies))

    @remembered
    def _copies(self, facts: Facts) -> tuple[Bools, Bools, str]:
        """Concatenations and gathers that copy a whole cache, and the title for the concatenations."""
        program = facts.program
        joins, nothing = program.marked("concatenation"), np.zeros(facts.work.height, dtype=np.bool_)
        shifts = program.marked("rolling")
        if time_of(program, shifts) >= self.least_rolled_share * facts.busy_ns:
            return shifts, nothing, self.shifted_title
        # Training keeps no cache: its concatenations are those of rotary embeddings and the like.
        if facts.trains:
            return nothing, nothing, ""
        grown = self._grown(facts)
        many = joins.sum() >= self.least_per_step * facts.steps
        pairs, gathers = (self._with_each_attention(facts, which) for which in (joins, self._gathers(facts)))
        attention = self._attention(facts).any()
        if grown.sum() >= self.least_per_step * facts.steps:
            return grown, gathers, "" if attention else self.appended_title
        growth = self._growth(facts, joins) if many and attention else None
        if pairs.any() or (growth is not None and growth >= self.least_growth):
            return (pairs if pairs.any() else joins), gathers, ""
        appended = self._appended(facts)
        if appended.any():
            return appended, gathers, "" if attention else self.appended_title
        return self._rolled(facts), gathers, self.rolled_title

    def _attention(self, facts: Facts) -> Bools:
        return np.asarray(facts.program.labelled("attention") & ~facts.program.marked("backward"), dtype=np.bool_)

    def _gathers(self, facts: Facts) -> Bools:
        """Gathers, except those whose result a product reads at once: they copy operands, not a cache."""
        gathers = facts.program.labelled("gather-scatter") & ~facts.program.marked("adding-rows")
        gathers[gathered_operands(facts)[0]] = False
        return np.asarray(gathers, dtype=np.bool_)

    def _with_each_attention(self, facts: Facts, which: Bools) -> Bools:
        """Those of these that take far longer than the work on one token, if each attention has a pair of them."""
        program, attention = facts.program, self._attention(facts)
        others = program.labelled(*PASSES) & ~program.marked("concatenation")
        if not attention.any() or not others.any() or which.sum() < self.least_per_step * facts.steps:
            return np.zeros_like(which)
        long = which & (program.own_ns >= self.longer * float(np.median(program.own_ns[others])))
        return long if long.sum() >= 1.5 * attention.sum() else np.zeros_like(which)

    @remembered
    def _appended(self, facts: Facts) -> Bools:
        """Concatenations of each step that get longer from the first to the last."""
        program = facts.program
        joins, appended = program.marked("concatenation"), np.zeros(facts.work.height, dtype=np.bool_)
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

    @remembered
    def _grown(self, facts: Facts) -> Bools:
        """Copies of a whole tensor right before a small copy by the same kernel, which the next copy includes.

        PyTorch concatenates tensors of five and more dimensions in this way, slice by slice.
        """
        program, grown = facts.program, np.zeros(facts.work.height, dtype=np.bool_)
        copies = program.labelled("copy-cast")
        if not copies.any():
            return grown
        all_names = program.names()
        for rows in program.by_step():
            kernels = rows[program.is_kernel[rows]]
            names, sizes = all_names[kernels], np.nan_to_num(program.blocks(kernels))
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
        program, rolled = facts.program, np.zeros(facts.work.height, dtype=np.bool_)
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
        other_passes = facts.program.labelled(*PASSES) & ~copies
        return time_of(facts.program, copies) + facts.idle_ns + time_of(facts.program, other_passes) // 2

    def _growth(self, facts: Facts, copies: Bools) -> float | None:
        """Growth of their time from step to step, as a share of it; None if there are too few or they do not grow."""
        if facts.steps < 3 or copies.sum() < self.least_per_step * facts.steps:
            return None
        program = facts.program
        steps = np.unique(program.step[copies])
        rows = np.flatnonzero(copies)
        grid, own, step_of = np.nan_to_num(program.blocks(rows)), program.own_ns[rows], program.step[rows]
        sums = np.array([own[step_of == step].sum() for step in steps], dtype=np.float64)
        blocks = np.array([grid[step_of == step].sum() for step in steps])
        if len(steps) < 3 or not sums.mean():
            return None
        slope = np.polyfit(np.arange(len(steps)), sums, 1)[0] / sums.mean()
        rising = np.all(np.diff(blocks) >= 0) and blocks[-1] > blocks[0]
        return float(slope) if rising or slope > 3 * np.std(np.diff(sums)) / sums.mean() else None

    def shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, with its numbers and remedies."""
        claimed = claims.of_work(self.id).to_numpy() > 0
        joined, gathers, title = self._copies(facts)
        gathered = time_of(facts.program, claimed & gathers) > time_of(facts.program, claimed & joined)
        appended = not gathered and title == self.appended_title
        rolled = not gathered and title in (self.rolled_title, self.shifted_title)
        return self.seen(
            facts,
            claims,
            title=self.reordered_title if gathered else title,
            confidence="medium" if title == self.rolled_title and facts.program.shapes().is_null().all() else "high",
            evidence={
                "concatenations_per_step": int(claimed.sum()) / facts.steps,
                "growth_per_step": self._growth(facts, claimed),
            },
            bound_ns=self._removable_ns(facts, claimed),
            remedies=_COLLECTED
            if appended
            else _RING
            if rolled
            else (
                *(_IN_PLACE if gathered else ()),
                Remedy(
                    "Write into a cache of fixed size",
                    "cache[:, :, position] = key  # with a mask by length\n"
                    "# transformers: cache_implementation='static',\n"
                    "# or past_key_values=StaticCache(config, max_cache_len=n)",
                    "one token is written per step, which can also be replayed from a CUDA graph",
                ),
                Remedy(
                    "Use a paged cache",
                    "# vllm, or flash_attn_with_kvcache with a block table",
                    "the same, without reserving memory for the longest sequence",
                ),
            ),
        )
