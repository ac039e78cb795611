"""Token-by-token generation: passes over all tokens so far, and over an input, that are made again for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.repetition import longest_repetition
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.program import Program
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
    program, names = facts.program, facts.program.names()
    steps = list(program.by_step())
    share = np.zeros(facts.work.height)
    counts: list[float] = []
    growths: list[float] = []
    launched: tuple[bytes, ...] = ()
    passes = None
    # A step may be one token: then the passes are steps, and the whole program is searched.
    for rows in steps if len(steps) < _LEAST_PASSES else [*steps, program.order]:
        if rows is program.order and counts:
            break
        before = launched
        launched = tuple(found.tobytes() for found in (names[rows], program.passes[rows], program.blocks(rows)))
        if launched != before:  # most steps are like the one before
            passes = _growing_passes_in(program, names, rows)
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


def _growing_passes_in(program: Program, names: Int64s, rows: Int64s) -> tuple[list[int], list[float]] | None:
    """Begin of each such pass among these pieces, and the share of its work for one token; None without passes.

    Args:
        names: `Program.names`.
    """
    places = np.flatnonzero(program.passes[rows])
    if not _LEAST_PASSES * _LEAST_KERNELS <= len(places) <= _MOST_KERNELS:
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
