"""Dictionary-encoded text out of a byte buffer, without a Python object for each occurrence.

Every occurrence is reduced to a 64-bit hash with array operations, and the hash is looked up in a table. Only a text
that the table does not know is decoded, once. Two different texts of a column would be taken for one if their hashes
agreed; among a million different texts that has a chance of about one in 37 million.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt

from warplens.readers.kineto_numbers import Int64s, Words

__all__ = ["Dictionary", "hashes"]

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_ALL = np.uint64(2**64 - 1)

#: Places of the table for each text: of so many, a text shares its place with another one in 1 of 32 cases.
_ROOM = 32
_SMALLEST_TABLE_BITS = 10
_LARGEST_TABLE_BITS = 20

#: One factor for each word of a text, so that words in another order give another hash; longer texts repeat them.
_FACTORS = np.random.default_rng(0x77617270).integers(2**62, 2**64 - 1, 4_096, dtype=np.uint64) | np.uint64(1)


def hashes(words: Words, places: Int64s, lengths: Int64s) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of the bytes at each place.

    Args:
        words: the eight bytes from each place of the buffer on.
        places: shape (n,), where the texts begin.
        lengths: shape (n,), how many bytes each of them has, at least 0.
    """
    counts = np.maximum((lengths + 7) >> 3, 1)  # an empty text has one word, of which nothing is left
    ends = np.cumsum(counts)
    firsts, lasts = ends - counts, ends - 1
    number = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(firsts, counts)
    read = words[np.repeat(places, counts) + (number << 3)]
    spare = ((counts << 6) - (lengths << 3)).astype(np.uint64)  # bits of the last word beyond the text
    read[lasts] &= np.where(spare < 64, _ALL >> spare, np.uint64(0))
    read *= _FIRST
    read ^= read >> _SHIFT
    read *= _FACTORS.take(number, mode="wrap")
    read ^= read >> _SHIFT
    read *= _SECOND
    mixed: npt.NDArray[np.uint64] = np.add.reduceat(read, firsts) if len(firsts) else read
    mixed += (lengths + 1).astype(np.uint64) * _FIRST  # zero stands for an empty place of the table
    mixed ^= mixed >> _SHIFT
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFT
    return mixed


class Dictionary:
    """The different texts of one column, numbered in the order in which they were met; safe for several threads.

    Attributes:
        texts: text by number; None where what stands there is no text (`null`).
    """

    def __init__(self) -> None:
        self.texts: list[str | None] = []
        self._lock = Lock()
        self._known: dict[int, int] = {}
        self._table = self._empty(_SMALLEST_TABLE_BITS)

    def codes(self, found: npt.NDArray[np.uint64], decode: Callable[[int], str | None]) -> npt.NDArray[np.int32]:
        """The number of each text.

        Args:
            found: hashes of the texts.
            decode: gives the text of a row of `found`; asked only for texts that are not known yet.
        """
        keys, values, shift = self._table
        slots = found >> shift
        codes = values.take(slots)
        rows = np.flatnonzero(keys.take(slots) != found)
        if len(rows):
            codes[rows] = self._others(found.take(rows), rows, decode)
        return codes

    def _others(
        self, found: npt.NDArray[np.uint64], rows: Int64s, decode: Callable[[int], str | None]
    ) -> npt.NDArray[np.int32]:
        """Numbers of texts that are new, or that lost their place in the table to another one."""
        different, first, inverse = np.unique(found, return_index=True, return_inverse=True)
        numbers = np.empty(len(different), np.int32)
        with self._lock:
            count = len(self.texts)
            order = np.argsort(first)  # the order of their first occurrence, as one thread would meet them
            for place in order.tolist():
                key = int(different[place])
                number = self._known.get(key)
                if number is None:
                    number = self._known[key] = len(self.texts)
                    self.texts.append(decode(int(rows[first[place]])))
                numbers[place] = number
            if len(self.texts) > count:
                self._fill()
        return numbers[inverse.reshape(-1)]

    @staticmethod
    def _empty(bits: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32], np.uint64]:
        return np.zeros(2**bits, np.uint64), np.zeros(2**bits, np.int32), np.uint64(64 - bits)

    def _fill(self) -> None:
        """A table that has room for all, made anew and put in place at once: readers do not take the lock."""
        bits = min(max(_SMALLEST_TABLE_BITS, (_ROOM * len(self._known)).bit_length()), _LARGEST_TABLE_BITS)
        keys, values, shift = self._empty(bits)
        known = np.fromiter(self._known.keys(), np.uint64, len(self._known))
        slots = known >> shift
        keys[slots] = known
        values[slots] = np.fromiter(self._known.values(), np.int32, len(known))
        self._table = keys, values, shift

    def add(self, text: str | None) -> int:
        """The number of a text that was read elsewhere; texts that are equal may have several numbers."""
        with self._lock:
            self.texts.append(text)
            return len(self.texts) - 1
