"""What is read of a Kineto trace: categories of events, and arguments of each kind, in all spellings; and decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from warplens.profile.schema import Bools, Int64s
from warplens.profile.trace import WORK_KINDS

#: Kinds of events that ran on a GPU, and their tables.
GPU_KINDS = ("kernel", "copy", "memset")
GPU_TABLES = tuple(WORK_KINDS[kind] for kind in GPU_KINDS)

#: The kinds of events that are read.
KINDS = (*GPU_KINDS, "call", "operator", "annotation", "python", "wait", "overhead", "allocation", "flow")

#: Categories in lower case: those of 2021 (`Kernel`, `Operator`, `Runtime`, …) and those that replaced them in 2022.
#: Left out on purpose: `gpu_user_annotation`, which the profiler derives from annotations and kernels; `ac2g` and
#: `async…` arrows, which repeat the correlation ids; `cuda_profiler_range`, whose times are not those of kernels.
_CATEGORIES: Mapping[str, str] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "hip_runtime": "call",
    "hip_driver": "call",
    "runtime": "call",
    "driver": "call",
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "annotation",
    "python_function": "python",
    "cuda_sync": "wait",
    "overhead": "overhead",
    "cpu_instant_event": "allocation",
    "fwdbwd": "flow",
    "fwd_bwd": "flow",
    "forward_backward": "flow",
}


def kind_of_category(category: str) -> str | None:
    """The kind of the events of a category, one of `KINDS`; None for categories that are not read."""
    return _CATEGORIES.get(category.lower())


@dataclass(frozen=True)
class Argument:
    """One argument of events (or a member of the event itself) that is read."""

    column: str
    keys: tuple[str, ...]
    kinds: tuple[str, ...]
    is_text: bool = False  #: kept as dictionary-encoded JSON text; otherwise a whole number
    is_member: bool = False  #: in the event itself, not in its `args`
    launch_configuration: bool = False  #: part of a kernel's launch configuration, which few questions need


_COLLECTIVE = ("kernel", "operator")

ARGUMENTS: tuple[Argument, ...] = (
    Argument("device", ("device",), (*GPU_KINDS, "wait")),
    Argument("stream", ("stream",), (*GPU_KINDS, "wait")),
    Argument("correlation", ("correlation",), (*GPU_KINDS, "call", "wait")),
    Argument("external_id", ("External id", "external id"), ("kernel", "operator", "annotation")),
    Argument("bytes", ("bytes", "size"), ("copy", "memset")),
    Argument("graph_node", ("graph node id",), GPU_KINDS),
    Argument("grid", ("grid",), ("kernel", "call"), is_text=True, launch_configuration=True),
    Argument("block", ("block",), ("kernel", "call"), is_text=True, launch_configuration=True),
    Argument("registers", ("registers per thread",), ("kernel",), launch_configuration=True),
    Argument("sequence", ("Sequence number",), ("operator",)),
    Argument("forward_thread", ("Fwd thread id",), ("operator",)),
    Argument("input_shapes", ("Input Dims", "Input dims"), ("operator",), is_text=True),
    Argument("input_types", ("Input type",), ("operator",), is_text=True),
    Argument("input_strides", ("Input Strides",), ("operator",), is_text=True),
    Argument("concrete_inputs", ("Concrete Inputs",), ("operator",), is_text=True),
    Argument("collective", ("Collective name",), _COLLECTIVE, is_text=True),
    Argument("group", ("Process Group Name", "Process Group ID"), _COLLECTIVE, is_text=True),
    Argument("group_ranks", ("Process Group Ranks",), _COLLECTIVE, is_text=True),
    Argument("group_size", ("Group size",), _COLLECTIVE),
    Argument("in_elements", ("In msg nelems",), _COLLECTIVE),
    Argument("out_elements", ("Out msg nelems",), _COLLECTIVE),
    Argument("dtype", ("dtype",), _COLLECTIVE, is_text=True),
    Argument("collective_sequence", ("Seq",), _COLLECTIVE),
    Argument("sync_kind", ("cuda_sync_kind",), ("wait",), is_text=True),
    Argument("delta_bytes", ("Bytes",), ("allocation",)),
    Argument("address", ("Addr",), ("allocation",)),
    Argument("device_type", ("Device Type",), ("allocation",)),
    Argument("device_number", ("Device Id",), ("allocation",)),
    Argument("allocated_bytes", ("Total Allocated",), ("allocation",)),
    Argument("reserved_bytes", ("Total Reserved",), ("allocation",)),
    Argument("flow", ("id",), ("flow",), is_member=True),
)


#: Arguments with a JSON list of one item per input of an operator.
LISTED = frozenset({"input_shapes", "input_types", "input_strides", "concrete_inputs"})


def arguments_of(kind: str) -> tuple[Argument, ...]:
    """The arguments read for events of this kind."""
    return tuple(argument for argument in ARGUMENTS if kind in argument.kinds)


# --- Numbers out of JSON text, many at once and exactly ---------------------------------------------------------------
# Eight characters are loaded as one 64-bit word, and arithmetic on such words counts and weighs all eight digits
# together (the technique is known as "SIMD within a register": D. Lemire, "Quickly parsing eight digits", 2022). So a
# column of numbers costs a few array operations, and a time of 16 digits before and 3 after the point keeps all of
# them, where a 64-bit float would lose the last two.

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Words: TypeAlias = "npt.NDArray[np.uint64]"

#: Padding bytes before and after the text, for words that are loaded beyond its ends.
PADDING = 64

_ZEROS = np.uint64(0x3030303030303030)
_NOT_HIGH = np.uint64(0x7F7F7F7F7F7F7F7F)
_TO_HIGH = np.uint64(0x7676767676767676)  # moves any of 10 … 127 into the byte's high bit
_HIGH = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_BITS_OF_ALL = np.uint64(64)
_POWERS = np.array([10**power for power in range(20)], dtype=np.uint64)
_MINUS, _POINT = 0x2D, 0x2E
_MOST_MICROSECONDS = np.uint64((2**63 - 1) // 1_000 - 1)
_DECIMALS = 3  # of a microsecond that are nanoseconds


class Numbers(NamedTuple):
    """`values[i]`, and whether it could be read; if not, its text has to be read individually."""

    values: Int64s
    read: Bools


def words_of(text: Bytes) -> Words:
    """The eight bytes from each position on, as little-endian words; a view without a copy."""
    return np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))


#: Up to this many blanks in a row are skipped one by one; longer runs are skipped at once.
_USUAL_BLANKS = 16


def skip_space(text: Bytes, places: Int64s, step: int = 1) -> Int64s:
    """The first position from each one on without white space; with a step of −1, the last one up to it."""
    for _ in range(_USUAL_BLANKS):
        blank = text.take(places) <= 0x20
        if not blank.any():
            return places
        if not blank.all():
            break
        places = places + step  # one space everywhere, the usual case
    rows = np.flatnonzero(text.take(places) <= 0x20)
    places = places.copy()
    for _ in range(_USUAL_BLANKS):
        places[rows] += step
        rows = rows[text.take(places.take(rows)) <= 0x20]
        if not len(rows):
            return places
    places[rows] = next_of(np.flatnonzero(text > 0x20), places.take(rows), step)
    return places


def next_of(marks: Int64s, places: Int64s, step: int) -> Int64s:
    """The nearest mark at or after each position, or with a step of −1 at or before it; marks are ascending."""
    mark_index = np.searchsorted(marks, places) if step > 0 else np.searchsorted(marks, places, "right") - 1
    return marks.take(mark_index.clip(0, len(marks) - 1))


def _digits(words: Words) -> tuple[Words, Int64s]:
    """For each word the number of its leading digits, and their count."""
    values = words ^ _ZEROS
    not_digit = ((values & _NOT_HIGH) + _TO_HIGH | values) & _HIGH
    # The lowest set high bit belongs to the first character that is not a digit. The mask rounds down to whole bytes;
    # 64 means that all eight are digits.
    before = np.bitwise_count((not_digit & (~not_digit + _ONE)) - _ONE) & 0x78
    bits = before.astype(np.uint64)
    values <<= _BITS_OF_ALL - bits  # zeros in front of the digits; a shift by 64 leaves nothing
    values = (values * np.uint64(10) + (values >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    values = (values * np.uint64(100) + (values >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    values = (values * np.uint64(10_000) + (values >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return values, (before >> 3).astype(np.int64)


class _Digits(NamedTuple):
    """The digits at many positions: value modulo 2^64, count, and the character after them."""

    values: Words
    counts: Int64s
    after: Bytes


def _unsigned(text: Bytes, words: Words, places: Int64s, loaded: Words) -> _Digits:
    """The digits from each position on, up to 24; `loaded` holds the first eight characters."""
    values, counts = _digits(loaded)
    after = (loaded >> (counts << 3).astype(np.uint64)).astype(np.uint8)
    rows = np.flatnonzero(counts == 8)
    if not len(rows):
        return _Digits(values, counts, after)
    for done in (8, 16):
        all_rows = len(rows) == len(places)  # the usual case for times, without indexing by row numbers
        more, count = _digits(words[(places if all_rows else places.take(rows)) + done])
        if all_rows:
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


def _signed(text: Bytes, words: Words, places: Int64s) -> tuple[_Digits, Int64s, Bools | None]:
    """The digits of numbers with optional sign, the begins of the digits, and a mask of negative numbers, if any."""
    loaded = words[places]
    negative = loaded.astype(np.uint8) == _MINUS
    if not negative.any():
        return _unsigned(text, words, places, loaded), places, None
    places = places + negative
    return _unsigned(text, words, places, words[places]), places, negative


def _ends_number(characters: Bytes) -> Bools:
    """Whether a number is complete before these characters: white space, comma, bracket."""
    ends: Bools = (characters <= 0x20) | (characters == 0x2C) | ((characters | 0x20) == 0x7D)
    return ends


def whole_at(text: Bytes, words: Words, places: Int64s) -> Numbers:
    """The whole numbers that begin at these positions, as signed 64-bit integers (modulo 2^64)."""
    (values, counts, after), _, negative = _signed(text, words, places)
    read = (counts > 0) & (counts < 24) & _ends_number(after)
    if negative is not None:
        values[negative] = ~values[negative] + _ONE
    return Numbers(values.view(np.int64), read)


def nanoseconds_at(text: Bytes, words: Words, places: Int64s) -> Numbers:
    """Parse times in microseconds to nanoseconds; further decimals are rounded half to even."""
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


def _thousandths(text: Bytes, words: Words, places: Int64s) -> tuple[Words, Bools, Bytes]:
    """Decimals as thousandths: their value, whether it is exact, and the character after them."""
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


# --- Dictionary-encoded text out of a byte buffer, without a Python object for each occurrence ------------------------
#
# Every occurrence is reduced to a 64-bit hash with array operations, and the hash is looked up in a table. Only a text
# that is not in the table is decoded, once. Two different texts of a column with equal hashes would be confused; among
# a million different texts the probability is about one in 37 million.

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_ALL = np.uint64(2**64 - 1)

#: Table entries per text: with this many, a text shares its entry with another one in 1 of 32 cases.
_ROOM = 32
_SMALLEST_TABLE_BITS = 10
_LARGEST_TABLE_BITS = 20

#: One factor for each word of a text, so that words in another order give another hash; longer texts reuse them.
_FACTORS = np.random.default_rng(0x77617270).integers(2**62, 2**64 - 1, 4_096, dtype=np.uint64) | np.uint64(1)


def hashes(words: Words, places: Int64s, lengths: Int64s) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of the bytes at each place."""
    counts = np.maximum((lengths + 7) >> 3, 1)  # an empty text has one word, which is masked out entirely
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
    mixed += (lengths + 1).astype(np.uint64) * _FIRST  # zero stands for an empty entry of the table
    mixed ^= mixed >> _SHIFT
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFT
    return mixed


class Dictionary:
    """The distinct texts of one column, numbered in order of first occurrence; thread-safe.

    Attributes:
        texts: text by number; None for values that are not text (`null`).
    """

    def __init__(self) -> None:
        self.texts: list[str | None] = []
        self._lock = Lock()
        self._known: dict[int, int] = {}
        self._table = self._empty(_SMALLEST_TABLE_BITS)

    def codes(self, text_hashes: npt.NDArray[np.uint64], decode: Callable[[int], str | None]) -> npt.NDArray[np.int32]:
        """The number of each text."""
        keys, values, shift = self._table
        slots = (text_hashes >> shift).view(np.int64)  # NumPy 2.0 takes no unsigned places
        codes = values.take(slots)
        rows = np.flatnonzero(keys.take(slots) != text_hashes)
        if len(rows):
            codes[rows] = self._others(text_hashes.take(rows), rows, decode)
        return codes

    def _others(
        self, text_hashes: npt.NDArray[np.uint64], rows: Int64s, decode: Callable[[int], str | None]
    ) -> npt.NDArray[np.int32]:
        """Numbers of texts that are new, or whose table entry was taken by another text."""
        distinct_hashes, first, inverse = np.unique(text_hashes, return_index=True, return_inverse=True)
        numbers = np.empty(len(distinct_hashes), np.int32)
        with self._lock:
            count = len(self.texts)
            order = np.argsort(first)  # in order of first occurrence, as a single thread would see them
            for place in order.tolist():
                key = int(distinct_hashes[place])
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
        """Build a table for all texts and replace the old one at once: readers do not take the lock."""
        bits = min(max(_SMALLEST_TABLE_BITS, (_ROOM * len(self._known)).bit_length()), _LARGEST_TABLE_BITS)
        keys, values, shift = self._empty(bits)
        known = np.fromiter(self._known.keys(), np.uint64, len(self._known))
        slots = known >> shift
        keys[slots] = known
        values[slots] = np.fromiter(self._known.values(), np.int32, len(known))
        self._table = keys, values, shift

    def add(self, text: str | None) -> int:
        """The number of a text read elsewhere; equal texts may have several numbers."""
        with self._lock:
            self.texts.append(text)
            return len(self.texts) - 1
