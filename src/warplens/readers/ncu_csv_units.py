"""Units as Nsight Compute prints them, taken back to base units, and numbers as it prints them, taken back to numbers.

A scaled unit is a power of ten of its base unit: in ncu a `Kbyte` is 1000 bytes (32.768 Kbyte is a shared memory of
32768 bytes). Scaling moves the decimal point of the printed text instead of multiplying, so that no digit is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

__all__ = ["DecimalCommaError", "base_unit", "numbers_of"]

_PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_SCALED = re.compile(r"([kKMGTP]?)(byte|hz|inst|cycle|sector|request|warp|thread)s?")

#: Times in front of the stroke are given in ns, behind it by the second. Releases before 2022 spell the units out.
_TIMES = {"ns": 0, "nsecond": 0, "us": 3, "usecond": 3, "ms": 6, "msecond": 6, "s": 9, "second": 9}

_SINGULAR = {"branches": "branch", "blocks": "block", "registers": "register", "clusters": "cluster"}


@lru_cache(maxsize=1024)
def base_unit(printed: str) -> tuple[str | None, int]:
    """The base unit of a printed unit, and the power of ten that takes a printed value to it.

    `us` gives (`ns`, 3), `Tbyte/s` (`byte/second`, 12), `cycle/nsecond` (`hz`, 9). ncu divides the number by 1000 and
    writes the K to the byte on whichever side of the stroke that stands, so that `%/Kbyte` gives (`%/byte`, 3) as well.
    A unit that is not known stays as it is; no unit gives None.
    """
    over, stroke, under = printed.strip().partition("/")
    unit, power = _scaled(over)
    if over in _TIMES:
        unit, power = "ns", _TIMES[over]
    if not stroke:
        return unit or None, power
    if under in _TIMES:
        power += 9 - _TIMES[under]
        return ("hz" if unit == "cycle" else f"{unit}/second"), power
    divisor, divided = _scaled(under)
    return f"{unit}/{divisor}", power + divided


def _scaled(word: str) -> tuple[str, int]:
    found = _SCALED.fullmatch(word)
    return (found[2], _PREFIXES[found[1]]) if found else (_SINGULAR.get(word, word), 0)


class DecimalCommaError(Exception):
    """The numbers are written with a decimal comma: `4,80` or `1.234,56`."""


#: What ncu prints where there is no value, and instances without an aggregate: `(0; 1)`.
_NOTHING = ("", "n/a", "N/A", "no data", "nan", "-nan", "-nan(ind)", "nan(ind)", "(null)", "<null>")

#: An aggregate followed by its instances: `377 (3; 3; 6)`.
_INSTANCES = r"^([-+]?\d[\d.,]*) \(.*\)$"
_ONLY_INSTANCES = r"^\(.*\)$"

#: Thousands separated by commas (groups of two in some countries), or by blanks and apostrophes, which are never a
#: decimal point.
_GROUPED = r"^[-+]?\d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d+)?$"
_GROUPED_OTHERWISE = r"^[-+]?\d{1,3}(?:[ \u00a0\u202f'’]\d{3})+(?:[.,]\d+)?$"
_SEPARATORS = r"[ \u00a0\u202f'’]"

#: With a decimal comma thousands are separated by points. `12,345` alone may be either; it is read as thousands.
_DECIMAL_COMMA = r"^[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+$"
_GROUPED_BY_POINTS = r"^[-+]?\d{1,3}(?:\.\d{3})+(?:,\d+)?$"


def numbers_of(
    texts: Sequence[str], powers: npt.NDArray[np.int8], has_unit: npt.NDArray[np.bool_], decimal_comma: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Printed values as numbers in base units (NaN where there is none), and the positions of those that are texts.

    Args:
        texts: the printed values.
        powers: of each the power of ten that takes it to its base unit.
        has_unit: whether it was printed with a unit, so that it is a number for certain.
        decimal_comma: how numbers are written in this file.

    Raises:
        DecimalCommaError: they are written with a decimal comma, against what was said.
    """
    printed = pl.Series(texts, dtype=pl.String)
    if decimal_comma:
        printed = _with_points(printed)
    numbers = printed.cast(pl.Float64, strict=False)
    open_at = np.flatnonzero((numbers.is_null() & ~printed.is_in(_NOTHING)).to_numpy())
    if open_at.size:
        rest = printed.gather(open_at).str.strip_chars().str.replace(_INSTANCES, "${1}")
        if not decimal_comma:
            commas = rest.str.contains(_DECIMAL_COMMA) & ~rest.str.contains(_GROUPED)
            if (commas & pl.Series(has_unit[open_at])).any():
                raise DecimalCommaError
        rest = _without_groups(rest)
        printed = printed.scatter(open_at, rest)
        numbers = numbers.scatter(open_at, rest.cast(pl.Float64, strict=False))
    texts_left = numbers.is_null() & ~printed.is_in(_NOTHING) & ~printed.str.contains(_ONLY_INSTANCES)
    scaled = np.flatnonzero(powers)
    if scaled.size:
        moved = printed.gather(scaled) + "e" + pl.Series(powers[scaled]).cast(pl.String)
        exact = moved.cast(pl.Float64, strict=False)
        plain = numbers.gather(scaled) * np.power(10.0, powers[scaled].astype(np.float64))
        numbers = numbers.scatter(scaled, exact.fill_null(plain))
    return numbers.fill_null(np.nan).to_numpy().astype(np.float64), np.flatnonzero(texts_left.to_numpy())


def _without_groups(texts: pl.Series) -> pl.Series:
    by_commas = texts.str.contains(_GROUPED)
    otherwise = texts.str.contains(_GROUPED_OTHERWISE)
    texts = texts.str.replace_all(",", "").zip_with(by_commas, texts)
    return texts.str.replace_all(_SEPARATORS, "").zip_with(otherwise, texts)


def _with_points(texts: pl.Series) -> pl.Series:
    """The texts with numbers of a decimal comma rewritten with a decimal point."""
    texts = texts.str.strip_chars().str.replace(_INSTANCES, "${1}")
    blanks = texts.str.contains(_GROUPED_OTHERWISE)
    texts = texts.str.replace_all(_SEPARATORS, "").zip_with(blanks, texts)
    numbers = texts.str.contains(_DECIMAL_COMMA) | texts.str.contains(_GROUPED_BY_POINTS)
    return texts.str.replace_all(r"\.", "").str.replace_all(",", ".").zip_with(numbers, texts)
