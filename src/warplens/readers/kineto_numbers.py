"""Numbers out of JSON text, many at once and exactly.

Eight characters are loaded as one 64-bit word, and arithmetic on such words counts and weighs all eight digits together
(the technique is known as "SIMD within a register": D. Lemire, "Quickly parsing eight digits", 2022). So a column of
numbers costs a few array operations, and a time of 16 digits before and 3 after the point keeps all of them, where a
64-bit float would lose the last two.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PADDING", "Bytes", "Int64s", "Numbers", "Words", "nanoseconds_at", "skip_space", "whole_at", "words_of"]

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Int64s: TypeAlias = "npt.NDArray[np.int64]"
Words: TypeAlias = "npt.NDArray[np.uint64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"

#: So many bytes that belong to no value stand before and after the text, for words that are loaded beyond its ends.
PADDING = 64

_ZEROS = np.uint64(0x3030303030303030)
_NOT_HIGH = np.uint64(0x7F7F7F7F7F7F7F7F)
_TO_HIGH = np.uint64(0x7676767676767676)  # carries any of 10 … 127 into the byte's high bit
_HIGH = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_BITS_OF_ALL = np.uint64(64)
_POWERS = np.array([10**power for power in range(20)], dtype=np.uint64)
_MINUS, _POINT = 0x2D, 0x2E
_MOST_MICROSECONDS = np.uint64((2**63 - 1) // 1_000 - 1)
_DECIMALS = 3  # of a microsecond that are nanoseconds


class Numbers(NamedTuple):
    """`values[i]`, and whether it could be read; where not, the text there has to be looked at one by one."""

    values: Int64s
    read: Flags


def words_of(text: Bytes) -> Words:
    """The eight bytes from each place on, as little-endian word; nothing is copied."""
    return np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))


def skip_space(text: Bytes, places: Int64s) -> Int64s:
    """The first place from each on at which no white space stands."""
    blank = text.take(places) <= 0x20
    if not blank.any():
        return places
    if blank.all():  # one space everywhere, the usual case
        return skip_space(text, places + 1)
    places = places + blank
    rows = np.flatnonzero(blank)
    while len(rows):
        rows = rows[text.take(places.take(rows)) <= 0x20]
        places[rows] += 1
    return places


def _digits(words: Words) -> tuple[Words, Int64s]:
    """For each word the number that its leading digits spell, and how many they are."""
    values = words ^ _ZEROS
    other = ((values & _NOT_HIGH) + _TO_HIGH | values) & _HIGH
    # The lowest high bit that is set belongs to the first character that is no digit.
    before = np.bitwise_count((other & (~other + _ONE)) - _ONE) & 0x78  # 64 bits where all eight are digits: 7 bits off
    bits = before.astype(np.uint64)
    values <<= _BITS_OF_ALL - bits  # zeros in front of the digits; a shift by 64 leaves nothing
    values = (values * np.uint64(10) + (values >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    values = (values * np.uint64(100) + (values >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    values = (values * np.uint64(10_000) + (values >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return values, (before >> 3).astype(np.int64)


class _Digits(NamedTuple):
    """The digits at many places: their value modulo 2^64, how many they are, and the character behind them."""

    values: Words
    counts: Int64s
    after: Bytes


def _unsigned(text: Bytes, words: Words, places: Int64s, loaded: Words) -> _Digits:
    """The digits from each place on, up to 24, of which `loaded` holds the first eight characters."""
    values, counts = _digits(loaded)
    after = (loaded >> (counts << 3).astype(np.uint64)).astype(np.uint8)
    rows = np.flatnonzero(counts == 8)
    if not len(rows):
        return _Digits(values, counts, after)
    for done in (8, 16):
        every = len(rows) == len(places)  # the usual case for times, without detours through row numbers
        more, count = _digits(words[(places if every else places.take(rows)) + done])
        if every:
            values *= _POWERS.take(count)
            values += more
            counts += count
            rows = np.flatnonzero(count == 8)
        else:
            values[rows] = values.take(rows) * _POWERS.take(count) + more
            counts[rows] += count
            rows = rows[count == 8]
        if not len(rows):
            break
    return _Digits(values, counts, text.take(places + counts))


def _signed(text: Bytes, words: Words, places: Int64s) -> tuple[_Digits, Int64s, Flags | None]:
    """The digits of numbers that may have a sign, where these digits begin, and which numbers are negative, if any."""
    loaded = words[places]
    negative = loaded.astype(np.uint8) == _MINUS
    if not negative.any():
        return _unsigned(text, words, places, loaded), places, None
    places = places + negative
    return _unsigned(text, words, places, words[places]), places, negative


def _ends_number(characters: Bytes) -> Flags:
    """Whether a number is complete before these characters: white space, comma, bracket."""
    ends: Flags = (characters <= 0x20) | (characters == 0x2C) | ((characters | 0x20) == 0x7D)
    return ends


def whole_at(text: Bytes, words: Words, places: Int64s) -> Numbers:
    """The whole numbers that begin at these places, as signed 64-bit ones (modulo 2^64)."""
    (values, counts, after), _, negative = _signed(text, words, places)
    read = (counts > 0) & (counts < 24) & _ends_number(after)
    if negative is not None:
        values[negative] = ~values[negative] + _ONE
    return Numbers(values.view(np.int64), read)


def nanoseconds_at(text: Bytes, words: Words, places: Int64s) -> Numbers:
    """The times in microseconds that begin at these places, as nanoseconds; more decimals are rounded half to even."""
    (values, counts, after), begins, negative = _signed(text, words, places)
    read = (counts > 0) & (counts < 20) & (values <= _MOST_MICROSECONDS)
    values *= np.uint64(1_000)
    rows = np.flatnonzero(after == _POINT)
    if len(rows) == len(places):  # the usual case
        fractions, sound, after = _thousandths(text, words, begins + counts + 1)
        values += fractions
        read &= sound
    elif len(rows):
        fractions, sound, lasts = _thousandths(text, words, begins.take(rows) + counts.take(rows) + 1)
        values[rows] += fractions
        read[rows] &= sound
        after[rows] = lasts
    read &= _ends_number(after)
    signed = values.view(np.int64)
    if negative is not None:
        signed[negative] = -signed[negative]
    return Numbers(signed, read)


def _thousandths(text: Bytes, words: Words, places: Int64s) -> tuple[Words, Flags, Bytes]:
    """Decimals as thousandths: their value, whether it is exact, and the character behind them."""
    loaded = words[places]
    values, counts = _digits(loaded)
    after = (loaded >> (counts << 3).astype(np.uint64)).astype(np.uint8)
    sound = counts > 0
    if counts.max(initial=0) <= _DECIMALS:
        return values * _POWERS.take(_DECIMALS - counts), sound, after
    short = counts <= _DECIMALS
    scale = _POWERS.take(np.abs(counts - _DECIMALS))
    wholes, rests = np.divmod(values, scale)
    twice = rests * np.uint64(2)
    rounded = wholes + ((twice > scale) | ((twice == scale) & ((wholes & _ONE) == _ONE)))
    rows = np.flatnonzero(counts == 8)
    if len(rows):
        _, more = _digits(words[places.take(rows) + 8])
        # Further digits decide only where the first eight lie exactly on a half.
        sound[rows] = (more < 8) & ((more == 0) | (twice.take(rows) != scale.take(rows)))
        after[rows] = text.take(places.take(rows) + 8 + more)
    return np.where(short, values * scale, rounded), sound, after
