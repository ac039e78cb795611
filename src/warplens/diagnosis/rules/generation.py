"""Token-by-token generation: passes over all tokens so far, and over an input, that are made again for each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import tensors_with_lists
from warplens.analysis.repetition import longest_repetition
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.program import Program
from warplens.diagnosis.rules.kernels import OF_A_THREAD, tile_sides, tiles
from warplens.diagnosis.structure import MOST_KERNELS
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
#: Most tokens that a text grows by from one change of the grids to the next: blocks of several rows grow at each few
#: tokens only. Sweeps of lengths take larger steps.
_MOST_TOKENS: Final = 4
#: Most texts of a batch. Where more rows are added to each pass, it has more inputs or longer ones instead.
_MOST_TEXTS: Final = 64
#: A token is sent to the GPU as a number of this size.
_TOKEN_BYTES: Final = 8
#: Least turns with an encoder pass before each token: fewer grids may grow evenly by chance.
_LEAST_TURNS: Final = 4
#: Least kernels of a recurring stretch in the same order on the same grids, more than a layer's norms and products.
_STRETCH: Final = 24
#: Most stretches that are examined.
_TRIES: Final = 16
#: Copies to the GPU from this size on may be the input of an encoder; a token, a mask or a position is smaller.
_INPUT_BYTES: Final = 65_536
#: Least part of the time that products over an input take, for them to be worth a search.
_LEAST_SHARE: Final = 0.1
#: Least side of their tiles: products for the tokens of a few texts have a side of fewer rows.
_LEAST_SIDE: Final = 128
#: Least of them in a turn: the product that scores the words of a turn is one.
_LEAST_IN_A_TURN: Final = 2
#: Least part of the peak rate that such a product reaches, and the most columns of its result: they bound its input.
_REACHED_SHARE: Final = 0.3
_MOST_COLUMNS: Final = 16_384
#: Most numbers that a thread of a norm writes, which goes over a row with few threads; of other passes `OF_A_THREAD`.
_OF_A_NORMS_THREAD: Final = 64
#: Approximate duration of a kernel for one token: it starts and reads its weights.
_OF_A_TOKEN_NS: Final = 5_000


@dataclass(frozen=True, eq=False)
class Growing:
    """Passes of a step over all tokens so far."""

    share: Float64s  #: share of each piece of work that a cache of keys and values saves
    passes: float  #: passes per step
    growth: float  #: tokens of the last pass over those of the first


class _Passes(NamedTuple):
    """Passes on evenly growing grids, one after the other."""

    begins: list[int]
    token_shares: list[float]  #: of the work of each, the amount that the next one has more
    by_token: bool  #: each has one more token of the same texts, and no input of its own


def growing_passes(facts: Facts) -> Growing | None:
    """Passes that launch the same kernels on grids that grow by a token each; None without such passes.

    With a cache, a pass works on one token. Without a cache it works on all tokens, and each grid grows by the work of
    one token from pass to pass.
    """
    return _growth(facts)[1]


def work_grows(facts: Facts) -> bool:
    """Whether passes launch the same kernels on evenly growing grids, over a longer text or over larger batches."""
    return _growth(facts)[0]


@once
def _growth(facts: Facts) -> tuple[bool, Growing | None]:
    """Whether the grids of passes grow evenly, and the passes that grow by a token."""
    if facts.trains:
        return False, None
    program, names = facts.program, facts.program.names()
    share = np.zeros(facts.work.height)
    counts: list[float] = []
    growths: list[float] = []
    launched: tuple[bytes, ...] = ()
    passes, grows = None, False
    for rows, steps in _spans(program, counts, _LEAST_PASSES):
        before = launched
        launched = tuple(found.tobytes() for found in (names[rows], program.passes[rows], program.blocks(rows)))
        if launched != before:  # most steps are like the one before
            passes = _growing_passes_in(program, names, rows)
        grows |= passes is not None
        if passes is not None and passes.by_token:
            begins, token_shares, _ = passes
            counts.append(len(begins) / steps)
            growths.append(token_shares[0] / token_shares[-1])
            # The first pass reads the prompt, which a cache needs as well.
            for begin, end, token_share in list(zip(begins, [*begins[1:], len(rows)], token_shares, strict=True))[1:]:
                of_pass = rows[begin:end]
                least = np.minimum(_OF_A_TOKEN_NS / np.maximum(program.own_ns[of_pass], 1), 1.0)
                share[of_pass] = np.where(program.is_kernel[of_pass], 1 - np.maximum(token_share, least), 0.0)
    return grows, Growing(share, float(np.mean(counts)), float(np.median(growths))) if counts else None


def _spans(program: Program, counts: Sequence[float], least: int = 2) -> Iterator[tuple[Int64s, int]]:
    """The rows of each step, and then, as a step may be one token, of the whole program; with their number of steps.

    Args:
        counts: what was found so far. If steps have some, the whole program does not follow.
        least: least steps for the whole program to follow.
    """
    steps = list(program.by_step())
    yield from ((rows, 1) for rows in steps)
    if not counts and len(steps) >= least:
        yield program.order, len(steps)


def _growing_passes_in(program: Program, names: Int64s, rows: Int64s) -> _Passes | None:
    """The passes among these pieces whose grids grow evenly, with the places of their begins; None without any.

    Args:
        names: `Program.names`.
    """
    places = np.flatnonzero(program.passes[rows])
    if not _LEAST_PASSES * _LEAST_KERNELS <= len(places) <= MOST_KERNELS:
        return None
    period, begin, stop = longest_repetition(names[rows[places]])
    repeats = (stop - begin) // period if period else 0
    if period < _LEAST_KERNELS or repeats < _LEAST_PASSES:
        return None
    turns = places[begin : begin + repeats * period].reshape(repeats, period)
    grids = np.nan_to_num(program.blocks(rows[turns.ravel()])).reshape(repeats, period)
    # The repetition may be a layer; all layers of a pass have equal grids.
    firsts = np.flatnonzero(np.r_[True, (grids[1:] != grids[:-1]).any(axis=1)])
    token_shares = _token_shares(grids[firsts]) if len(firsts) >= _LEAST_PASSES else None
    if token_shares is None:
        return None
    of_passes = rows[turns[firsts]]
    by_token = not _has_new_inputs(program, of_passes) and _adds_tokens(program, of_passes)
    return _Passes(turns[firsts][:, 0].tolist(), token_shares.tolist(), by_token)


def _has_new_inputs(program: Program, passes: Int64s) -> bool:
    """Whether the host sends each of these passes, shape (passes, kernels), an input that grows by too much for tokens.

    A loop may send all its tokens again.
    """
    copies = program.facts.copies.filter(pl.col("label") == "host-to-device")
    begins = program.facts.work["start_ns"].to_numpy()[passes[:, 0]]
    largest = np.zeros(len(begins) + 1, dtype=np.int64)
    sent_bytes = copies["bytes"].fill_null(0).to_numpy()
    np.maximum.at(largest, np.searchsorted(begins, copies["start_ns"].to_numpy()), sent_bytes)
    return bool(np.median(np.diff(largest[1:-1])) > _MOST_TEXTS * _TOKEN_BYTES)


def _adds_tokens(program: Program, passes: Int64s) -> bool:
    """Whether these passes, shape (passes, kernels), may have few more tokens each, rather than other inputs.

    By recorded shapes, the length of a text grows, which is not the first dimension: that is of a batch. Without
    shapes, a normalization has a block for each token of each text.
    """
    growths = len(passes) - 1
    ends = (program.shapes().gather(passes[place]).to_list() for place in (0, -1))
    shapes = [
        (tensors_with_lists(first), tensors_with_lists(last))
        for first, last in zip(*ends, strict=True)
        if first and last
    ]
    if shapes:
        return any(
            1 <= (longer - shorter) / growths <= _MOST_TOKENS
            for tensors in shapes
            for first, last in zip(*tensors, strict=False)
            for shorter, longer in list(zip(first, last, strict=False))[1:]
        )
    norms = passes[:, program.labelled("normalization")[passes[0]]]
    rows = (program.blocks(norms[-1]) - program.blocks(norms[0])) / growths
    return not (rows > 0).any() or bool(rows[rows > 0].min() <= _MOST_TEXTS)


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
    counts: list[float] = []
    if facts.trains:
        return again, 1.0
    sent = facts.copies.filter((pl.col("label") == "host-to-device") & (pl.col("bytes") >= _INPUT_BYTES))
    sent_ns, launched_ns = sent["start_ns"].to_numpy(), facts.work["start_ns"].to_numpy()
    for rows, steps in _spans(program, counts):
        kernels = np.flatnonzero(program.is_kernel[rows])
        if not _LEAST_TURNS * 2 * _STRETCH <= len(kernels) <= MOST_KERNELS:
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
        counts.append(len(begins) / steps)
    return again, float(np.mean(counts)) if counts else 1.0


@once
def projected_for_each_token(facts: Facts) -> tuple[Bools, float]:
    """Products over an unchanged input in the turns after the first, and turns per step; none if the program trains.

    Each turn looks up the token that the turn before chose, and nothing is sent to the GPU. Equal products take much of
    the time, as often in each turn. No other kernel before them writes as many numbers as they read: so their input
    exists before the turns, as that of keys and values for attention to a picture, a recording or a text does.
    """
    program = facts.program
    again = np.zeros(facts.work.height, dtype=np.bool_)
    counts: list[float] = []
    if facts.trains:
        return again, 1.0
    is_sent = program.having("label", "host-to-device")
    for rows, steps in _spans(program, counts):
        places = np.flatnonzero(program.is_kernel[rows])
        kernels = rows[places]
        turns = _wide_products(facts, kernels) if len(kernels) <= MOST_KERNELS else None
        if turns is None or is_sent[rows[places[turns[0, 0]] : places[turns[-1, -1]]]].any():
            continue
        if not _input_stays(facts, kernels, turns):
            continue
        copies = program.labelled("copy-cast")[kernels]
        for place in turns[1:].ravel().tolist():
            stop = place + 1
            while stop < len(kernels) and copies[stop]:  # keys and values, in another layout
                stop += 1
            again[kernels[place:stop]] = True
        counts.append(len(turns) / steps)
    return again, float(np.mean(counts)) if counts else 1.0


def _wide_products(facts: Facts, kernels: Int64s) -> Int64s | None:
    """Places among these kernels of the equal products with the most time, shape (turns, products of a turn).

    None if they take little time, or if there are not as many of them in each turn, between one chosen token and the
    next. Each turn looks its token up before them.
    """
    program, own_ns = facts.program, facts.program.own_ns[kernels]
    places = np.flatnonzero(program.labelled("gemm")[kernels])
    if not len(places):
        return None
    codes = program.launched_as(kernels[places])
    kinds, numbers = np.unique(codes, return_inverse=True)
    spent = np.bincount(numbers, weights=own_ns[places], minlength=len(kinds))
    wide = places[numbers == spent.argmax()]
    is_wide = (tile_sides(facts, kernels[wide[:1]]) >= _LEAST_SIDE).all()  # not if unknown
    if spent.max() < _LEAST_SHARE * own_ns.sum() or not is_wide:
        return None
    chosen = _choices(program, kernels)
    turn = np.searchsorted(chosen, wide)
    begins = np.flatnonzero(np.r_[True, turn[1:] != turn[:-1]])
    counts = np.diff(np.r_[begins, len(wide)])
    if len(begins) < _LEAST_TURNS or counts[0] < _LEAST_IN_A_TURN or (counts != counts[0]).any():
        return None
    looked_up = np.flatnonzero(program.labelled("gather-scatter")[kernels])
    before = np.r_[-1, chosen][np.searchsorted(chosen, wide[begins])]  # the last choice before each turn
    is_looked_up = np.searchsorted(looked_up, wide[begins]) > np.searchsorted(looked_up, before)
    return wide.reshape(len(begins), -1) if is_looked_up[1:].all() else None


def _choices(program: Program, kernels: Int64s) -> Int64s:
    """Places among these kernels of those that choose a token: the likeliest one, or by chance."""
    return np.flatnonzero((program.marked("searching") | program.labelled("random"))[kernels])


def _input_stays(facts: Facts, kernels: Int64s, turns: Int64s) -> bool:
    """Whether no other kernel of a turn, up to its last wide product, writes as many numbers as such a product reads.

    Attention to what they make does not count, nor do passes right after them. By the least numbers that a product of
    their duration reads, and the most that the grids of other kernels write.
    """
    program, wide = facts.program, turns.ravel()
    precision = facts.work["precision"][int(kernels[wide[0]])] or "bf16"
    rates = [peaks.flops_per_s.get(precision, 0.0) for peaks in facts.peaks]
    time_s = float(np.median(program.own_ns[kernels[wide]])) / 1e9
    read = time_s * _REACHED_SHARE * min(rates, default=0.0) / (2 * _MOST_COLUMNS)
    norms = program.labelled("normalization")[kernels]
    written = program.threads(kernels) * np.where(norms, _OF_A_NORMS_THREAD, OF_A_THREAD)
    products = program.products[kernels] & ~program.marked("vector-product")[kernels]
    written[products] = (program.blocks(kernels) * tiles(facts, kernels))[products]
    counts = ~program.labelled("attention")[kernels]
    counts[wide] = False
    passes = program.passes[kernels]
    for place in wide.tolist():
        stop = place + 1
        while stop < len(kernels) and passes[stop] and not norms[stop]:
            stop += 1
        counts[place:stop] = False
    inside = np.zeros(len(kernels), dtype=np.bool_)
    chosen = np.r_[-1, _choices(program, kernels)]
    for first, last in turns[1:, [0, -1]].tolist():
        inside[chosen[np.searchsorted(chosen, first) - 1] + 1 : last] = True
    return bool(read) and bool((written[inside & counts] <= read / 2).all())  # nan, which is unknown, is not


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
    passes, names, ends = program.passes, program.names(), np.r_[begins[1:], len(rows)]
    turns = [rows[begin + length : end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    turns = [turn[passes[turn]] for turn in turns]
    usual = names[turns[len(turns) // 2]]
    # The first and the last turn may have other work as well.
    alike = [turn[: len(usual)] for turn in turns if np.array_equal(names[turn[: len(usual)]], usual)]
    if len(alike) < _LEAST_TURNS or len(usual) < _LEAST_KERNELS:
        return False
    grids = np.nan_to_num(program.blocks(np.concatenate(alike))).reshape(len(alike), len(usual))
    return _token_shares(grids) is not None
