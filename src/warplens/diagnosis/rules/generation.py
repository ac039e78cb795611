"""Generation, token by token: passes over all tokens so far, and copies of all that was kept of them."""

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
from warplens.diagnosis.structure import StructureRule, time_of
from warplens.profile.schema import Bools, Float64s, Int64s

#: Passes over a growing text, at least: fewer grids in a row grow by the same amount by chance.
_LEAST_PASSES: Final = 6
#: Kernels of a pass that move data, at least; grids of fewer blocks do not show what they grow by.
_LEAST_KERNELS: Final = 4
_LEAST_BLOCKS: Final = 4
#: Of those kernels, the share whose grids grow. With a cache it is what attention does to its scores and the appended
#: cache, a quarter of a layer; without one it is everything.
_GROWING_SHARE: Final = 0.6
#: How far a growth may be from the usual one: a block where rounding up makes it, or this share. A decoder of images
#: doubles its sides instead.
_UNEVEN_SHARE: Final = 0.2
#: Longer sequences of a step are not searched.
_MOST_KERNELS: Final = 200_000
#: Turns with a pass of an encoder before each token, at least: of fewer, grids grow evenly by chance.
_LEAST_TURNS: Final = 4
#: So many kernels in the same order on the same grids are more than a layer's norms and products; that many stretches
#: are looked at.
_STRETCH: Final = 24
_TRIES: Final = 16
#: A copy of so many bytes to the GPU may be the input of an encoder; a token, a mask or a position is smaller.
_INPUT_BYTES: Final = 65_536
#: A kernel for one token takes about this long: it starts, and reads its weights.
_OF_A_TOKEN_NS: Final = 5_000


@dataclass(frozen=True, eq=False)
class Growing:
    """Passes of a step over all tokens so far."""

    share: Float64s  #: of each piece of work, the share of its time that a cache of keys and values saves
    passes: float  #: how many there are in a step
    growth: float  #: tokens of the last pass over those of the first


@once
def growing_passes(facts: Facts) -> Growing | None:
    """Passes that launch the same kernels on grids that grow by the same amount each time; None where there are none.

    With a cache, a pass works on the token that the last one chose. Without, it works on all: what is added to each
    grid from one pass to the next is the work of one token.
    """
    if facts.trains:
        return None
    program = facts.program
    steps = list(program.by_step())
    share = np.zeros(facts.work.height)
    counts: list[float] = []
    growths: list[float] = []
    # A step may be one token: then the passes are steps.
    for rows in steps if len(steps) < _LEAST_PASSES else [*steps, program.order]:
        if rows is program.order and counts:
            break
        found = _in(program, rows)
        if found is not None:
            begins, kept = found
            counts.append(len(kept) if rows is not program.order else len(kept) / len(steps))
            growths.append(kept[0] / kept[-1])
            # The first pass reads the prompt.
            for place in range(1, len(kept)):
                end = begins[place + 1] if place + 1 < len(begins) else len(rows)
                mine = rows[begins[place] : end]
                least = np.minimum(_OF_A_TOKEN_NS / np.maximum(program.own_ns[mine], 1), 1.0)
                share[mine] = np.where(program.is_kernel[mine], 1 - np.maximum(kept[place], least), 0.0)
    return Growing(share, float(np.mean(counts)), float(np.median(growths))) if counts else None


def _in(program: Program, rows: Int64s) -> tuple[list[int], list[float]] | None:
    """Where such passes begin among these pieces, and what one token is of each; None where there are none."""
    places = np.flatnonzero(program.labelled(*PASSES)[rows])
    if not _LEAST_PASSES * _LEAST_KERNELS <= len(places) <= _MOST_KERNELS:
        return None
    period, begin, stop = longest_repetition(program.names()[rows[places]])
    repeats = (stop - begin) // period if period else 0
    if period < _LEAST_KERNELS or repeats < _LEAST_PASSES:
        return None
    turns = places[begin : begin + repeats * period].reshape(repeats, period)
    grids = np.nan_to_num(program.blocks(rows[turns.ravel()])).reshape(repeats, period)
    # Where layers are all that repeats, those of a pass have equal grids.
    firsts = np.flatnonzero(np.r_[True, (grids[1:] != grids[:-1]).any(axis=1)])
    kept = _of_a_token(grids[firsts]) if len(firsts) >= _LEAST_PASSES else None
    return None if kept is None else (turns[firsts][:, 0].tolist(), kept.tolist())


def _of_a_token(grids: Float64s) -> Float64s | None:
    """Of each turn, the share of its work that one token is, by the blocks of its grids, shape (turns, kernels).

    None where most grids do not grow by the same amount each time.
    """
    grids = grids[:, grids[-1] >= _LEAST_BLOCKS]
    more = np.diff(grids, axis=0)
    usual = more.mean(axis=0) if grids.shape[1] else np.zeros(0)
    even = (np.abs(more - usual) <= np.maximum(1.0, _UNEVEN_SHARE * usual)).all(axis=0)
    growing = even & (more >= 0).all(axis=0) & (grids[-1] >= grids[0] + len(grids) / 2)
    if growing.sum() < _LEAST_KERNELS or growing.mean() < _GROWING_SHARE:
        return None
    return np.asarray(np.median(usual[growing] / grids[:, growing], axis=1).clip(0.0, 1.0), dtype=np.float64)


@once
def encoded_again(facts: Facts) -> tuple[Bools, float]:
    """Work of the second and later passes of an encoder, and how many passes a step has; none where it trains.

    A long stretch is launched with the same kernels on the same grids, turn after turn, and what follows it works on a
    text that grows by a token each time. What the stretch reads does not grow with the text, so it is what the first
    pass read, unless the host sends something new before it.
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
    """Begins and length of the stretch with the most time that recurs as it is, with something else between.

    A length of 0 where there is none. Layers recur as well, but next to each other.
    """
    best, length = np.zeros(0, dtype=np.int64), 0
    hashed = np.zeros(len(codes) - _STRETCH + 1, dtype=np.int64)
    for place in range(_STRETCH):  # a number for each window of the sequence, modulo 2⁶⁴
        hashed = hashed * 1_000_003 + codes[place : place + len(hashed)]
    _, windows, counts = np.unique(hashed, return_inverse=True, return_counts=True)
    before, most = np.r_[0, np.cumsum(own_ns)], 0
    covered = np.zeros(len(codes), dtype=np.bool_)
    many = counts[windows] >= _LEAST_TURNS
    for _ in range(_TRIES):
        # The rarest of what recurs is what a turn has once.
        left = np.flatnonzero(many & ~covered[: len(windows)])
        if not len(left):
            break
        at = np.flatnonzero(windows == windows[left[np.argmin(counts[windows[left]])]])
        apart = int(np.diff(at).min())
        ahead = _alike(codes[at[:, None] + np.arange(min(apart, len(codes) - int(at[-1])))])
        behind = _alike(codes[at[:, None] - 1 - np.arange(min(apart - ahead, int(at[0])))])
        begins, mine = at - behind, ahead + behind
        covered[(begins[:, None] + np.arange(mine)).ravel()] = True
        covered[at] = True
        spent = int((before[begins + mine] - before[begins]).sum())
        if apart - mine >= _LEAST_KERNELS and spent > most:
            best, length, most = begins, mine, spent
    return best, length


def _alike(turns: Int64s) -> int:
    """How many of the first columns are the same in all rows."""
    differs = (turns != turns[0]).any(axis=0)
    return int(np.argmax(differs)) if differs.any() else turns.shape[1]


def _follows_growing(program: Program, rows: Int64s, begins: Int64s, length: int) -> bool:
    """Whether what stands behind each of these stretches goes over a text that is a token longer each time."""
    passes, names, ends = program.labelled(*PASSES), program.names(), np.r_[begins[1:], len(rows)]
    turns = [rows[begin + length : end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    turns = [turn[passes[turn]] for turn in turns]
    usual = names[turns[len(turns) // 2]]
    # What the loop does before its first token, or behind its last, is not in all of them.
    alike = [turn[: len(usual)] for turn in turns if np.array_equal(names[turn[: len(usual)]], usual)]
    if len(alike) < _LEAST_TURNS or len(usual) < _LEAST_KERNELS:
        return False
    grids = np.nan_to_num(program.blocks(np.concatenate(alike))).reshape(len(alike), len(usual))
    return _of_a_token(grids) is not None


#: Where rows of a cache change their places.
_IN_PLACE: Final = (
    Remedy(
        "Move indices, not the cache",
        "# a paged cache whose block table is reordered (vllm), or rows that are gathered once at the end\n"
        "# sampling or greedy search in place of beams where quality allows: num_beams=1",
        GAIN,
    ),
)

#: Where a loop appends what it made.
_COLLECTED: Final = (
    Remedy(
        "Collect results, and concatenate once",
        "parts.append(y)  # in the loop\nresult = torch.cat(parts)  # behind it\n"
        "# or result = torch.empty(n, ...); result[i] = y  # of known length",
        "each result is copied once",
    ),
)


#: Where a history loses as much as it gains.
_RING: Final = (
    Remedy(
        "Write into a ring",
        "history[:, turn % length] = frame  # in place of torch.cat([history[:, 1:], frame], dim=1) or torch.roll\n"
        "# what reads it takes the frames in their order: history[:, order], or weights rolled by the turn\n"
        "# or a buffer twice as long, written in place, of which each turn reads a slice",
        f"{GAIN}: one frame is written in place of the whole history",
    ),
)


def _new_share(shapes: str) -> float | None:
    """Of the numbers that a concatenation joins, the share of all parts but the largest; None where not told."""
    lists = [part for part in json.loads(shapes) if isinstance(part, list)]
    parts: list[int] = [math.prod(part) for part in (lists[0] if lists else ()) if isinstance(part, list)]
    whole = sum(parts)
    return 1 - max(parts) / whole if len(parts) > 1 and whole else None


class GrowingCache(StructureRule):
    """Copies of all that was kept before: concatenations that grow, and caches whose rows change their places."""

    id = "growing-cache"
    question = "Is a whole cache copied in order to append to it?"
    limiter = "a growing cache that is copied in every step"
    cause = (
        "concatenated key/value caches, caches that are reordered, results that are appended by concatenation, "
        "histories of fixed length that are joined anew or rolled"
    )
    raised_when = (
        "without training, concatenations grow from step to step, or they, or gathers of rows, occur with each "
        "attention of a decoder and take far longer than what is done with one token; or sixteen concatenations of a "
        "step or more get longer in turn; or eight or more of one size take 15 % of the busy time; or torch.roll takes "
        "that much, in training as well; and it costs 2 %"
    )
    claimed = "these copies"
    headline = "Limited by a growing cache: {share} of the time goes into copying all of it"
    title = "A cache is extended by concatenation, which copies all of it in every step"
    reordered_title: ClassVar = "A cache is reordered by copying all of it for each token, as beam search does"
    appended_title: ClassVar = "Results are appended by concatenation, which copies all that there are each time"
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
        "A cache of a thousand tokens is a thousand times as large as what one token adds; passes over the "
        "addition are short.",
    )
    saved_share = Limit(
        0.92,
        "One token is written instead of copying all of them, a thousandth; but attention reads a cache of fixed "
        "size in its full length, or through a view. Programs timed with and without it saved between 0.87 of the "
        "copies and all of them.",
    )
    least_growth = Limit(0.0005, "Above noise: a cache of 2,000 tokens grows by this much per step.")

    least_appended = Limit(16, "Fewer concatenations of a step may have any lengths, and rise by chance.")
    rank_correlation = Limit(0.9, "Of their lengths with their order: that of copies of all that there are is near 1.")

    least_turns = Limit(8, "Turns of a step that make the same concatenation: a network has few of one size.")
    least_rolled_share = Limit(
        0.15,
        "Of the busy time: networks that join branches spend less in joining one size, and networks with shifted "
        "windows spend 0.05 in torch.roll.",
    )
    most_new_share = Limit(0.25, "Of what is joined, all but the largest part: where two halves meet, neither is kept.")

    def share(self, facts: Facts) -> Float64s:
        """The concatenations, if they grow; gathers of whole caches."""
        joined, gathers, _ = self._copies(facts)
        found = joined | gathers
        # Of most programs none, which takes no room.
        return np.where(found, float(self.saved_share), 0.0) if found.any() else np.broadcast_to(0.0, len(found))

    @remembered
    def _copies(self, facts: Facts) -> tuple[Bools, Bools, str]:
        """Which concatenations copy what was kept, which gathers do, and what the former are about, as a title."""
        program = facts.program
        mine, nothing = program.marked("concatenation"), np.zeros(facts.work.height, dtype=np.bool_)
        shifts = program.marked("rolling")
        if time_of(program, shifts) >= self.least_rolled_share * facts.busy_ns:
            return shifts, nothing, self.shifted_title
        # Who trains keeps no cache: what is concatenated there are halves of a rotary embedding, and the like.
        if facts.trains:
            return nothing, nothing, ""
        many = mine.sum() >= self.least_per_step * facts.steps
        pairs, gathers = (self._with_each_attention(facts, which) for which in (mine, self._gathers(facts)))
        attention = self._attention(facts).any()
        grown = self._growth(facts, mine) if many and attention else None
        if pairs.any() or (grown is not None and grown >= self.least_growth):
            return (pairs if pairs.any() else mine), gathers, ""
        appended = self._appended(facts)
        if appended.any():
            return appended, gathers, "" if attention else self.appended_title
        return self._rolled(facts), gathers, self.rolled_title

    def _attention(self, facts: Facts) -> Bools:
        return np.asarray(facts.program.labelled("attention") & ~facts.program.marked("backward"), dtype=np.bool_)

    def _gathers(self, facts: Facts) -> Bools:
        program = facts.program
        return np.asarray(program.labelled("gather-scatter") & ~program.marked("adding-rows"), dtype=np.bool_)

    def _with_each_attention(self, facts: Facts, mine: Bools) -> Bools:
        """Those of these that take far longer than what is done with one token, if each attention has a pair."""
        program, attention = facts.program, self._attention(facts)
        others = program.labelled(*PASSES) & ~program.marked("concatenation")
        if not attention.any() or not others.any() or mine.sum() < self.least_per_step * facts.steps:
            return np.zeros_like(mine)
        long = mine & (program.own_ns >= self.longer * float(np.median(program.own_ns[others])))
        return long if long.sum() >= 1.5 * attention.sum() else np.zeros_like(mine)

    @remembered
    def _appended(self, facts: Facts) -> Bools:
        """Concatenations of each step that get longer from the first to the last."""
        program = facts.program
        mine, found = program.marked("concatenation"), np.zeros(facts.work.height, dtype=np.bool_)
        for rows in program.by_step() if mine.any() else ():
            row = rows[mine[rows]]
            if len(row) < self.least_appended:
                continue
            lengths = program.own_ns[row]
            quarter = len(row) // 4
            rank = np.argsort(np.argsort(lengths, kind="stable"))
            along = float(np.corrcoef(np.arange(len(row)), rank)[0, 1])
            if along >= self.rank_correlation and np.median(lengths[-quarter:]) >= 2 * np.median(lengths[:quarter]):
                found[row] = True
        return found

    @remembered
    def _rolled(self, facts: Facts) -> Bools:
        """Concatenations of one size that turns of a step repeat: a history that loses as much as it gains.

        Where shapes are recorded, one part has to be far larger than what is joined to it.
        """
        program, found = facts.program, np.zeros(facts.work.height, dtype=np.bool_)
        rows = np.flatnonzero(program.marked("concatenation"))
        keys = program.launched_as(rows)
        shapes = program.shapes()
        for key in np.unique(keys):
            mine = rows[keys == key]
            enough = time_of(program, mine) >= self.least_rolled_share * facts.busy_ns
            if not enough or len(mine) < self.least_turns * facts.steps:
                continue
            told = [_new_share(text) for text in shapes.gather(mine).drop_nulls().unique().to_list()]
            found[mine] = all(share is None or share <= self.most_new_share for share in told)
        return found

    def _removable_ns(self, facts: Facts, mine: Bools) -> int:
        """The copies, all pauses (a fixed size can be replayed from a graph), and half of the other passes."""
        beside = facts.program.labelled(*PASSES) & ~mine
        return time_of(facts.program, mine) + facts.idle_ns + time_of(facts.program, beside) // 2

    def _growth(self, facts: Facts, mine: Bools) -> float | None:
        """Growth of their time in a step, as a share of it; None where there are too few."""
        if facts.steps < 3 or mine.sum() < self.least_per_step * facts.steps:
            return None
        program = facts.program
        steps = np.unique(program.step[mine])
        rows = np.flatnonzero(mine)
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
        mine = claims.of_work(self.id).to_numpy() > 0
        joined, gathers, about = self._copies(facts)
        gathered = time_of(facts.program, mine & gathers) > time_of(facts.program, mine & joined)
        appended = not gathered and about == self.appended_title
        rolled = not gathered and about in (self.rolled_title, self.shifted_title)
        return self.seen(
            facts,
            claims,
            title=self.reordered_title if gathered else about,
            confidence="medium" if about == self.rolled_title and facts.program.shapes().is_null().all() else "high",
            evidence={
                "concatenations_per_step": int(mine.sum()) / facts.steps,
                "growth_per_step": self._growth(facts, mine),
            },
            bound_ns=self._removable_ns(facts, mine),
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
