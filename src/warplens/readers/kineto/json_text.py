"""JSON as profilers really write it, one value at a time: exact but slow, for values that the columns cannot hold.

PyTorch has written traces with NaN and Infinity, with backslashes of Windows paths that escape nothing, and with a
comma after the last element. This module accepts all of these.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Any
from zlib import crc32

import orjson

from warplens.readers.limits import NESTED_LEVELS

#: A string, or a stray comma.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_OR_STRAY_COMMA = re.compile(_STRING.pattern + r"|,(?=\s*[\]}])", re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})|\\\\', re.DOTALL)
_CONSTANT = re.compile(_STRING.pattern + r"|-?\b(?:nan|inf|infinity)\b", re.DOTALL | re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d{1,40}")
_LAST_DIGITS = re.compile(r"(\d{1,18})\D*$")
_LABELLED = re.compile(r"(\[[^\]]+\]) *(\d{1,9})")

_LOW_64_BITS = 2**64 - 1
_HIGHEST = 2**63 - 1


def _exact(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:  # the exponent has more than eighteen digits
        return Decimal("NaN")


EXACT = json.JSONDecoder(parse_float=_exact, strict=False)

#: Whole numbers with more digits may not fit 64 bits.
_SAFE_DIGITS = 18


def _as_written(digits: str) -> int | orjson.Fragment:
    return int(digits) if len(digits) <= _SAFE_DIGITS else orjson.Fragment(digits)


#: For copies: numbers keep their digits; a time of 19 digits does not fit a double.
AS_WRITTEN = json.JSONDecoder(
    parse_float=orjson.Fragment, parse_int=_as_written, parse_constant=orjson.Fragment, strict=False
)


def lenient(text: str, decoder: json.JSONDecoder = EXACT) -> Any:
    """The value of a JSON text; numbers with a fraction are `Decimal`, as written."""
    try:
        try:
            return decoder.decode(text)
        except ValueError:
            repaired = _STRING_OR_STRAY_COMMA.sub(lambda match: "" if match[0] == "," else match[0], text)
            repaired = _STRING.sub(lambda match: _escaped(match[0]), repaired)
            repaired = _CONSTANT.sub(lambda match: match[0] if match[0][0] == '"' else "null", repaired)
            return decoder.decode(repaired)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _escaped(literal: str) -> str:
    r"""A string's literal in which backslashes that escape nothing stand for themselves: `C:\Users` → `C:\\Users`."""
    return _BAD_ESCAPE.sub(lambda found: "\\\\", literal)


def string(inside: bytes) -> str:
    """The text of a JSON string, from the bytes between its quotes; invalid UTF-8 becomes �."""
    text = inside.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        decoded = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        decoded = str(json.loads(_escaped(f'"{text}"'), strict=False))
    return decoded.encode("utf-8", "replace").decode("utf-8")  # an unpaired surrogate is not valid text


def canonical(text: str) -> str | None:
    """A JSON value as one line with Kineto's own spacing; invalid JSON unchanged; None for null."""
    try:
        value = lenient(text)
    except ValueError:
        return None if text.count("[") + text.count("{") > NESTED_LEVELS else text
    return text_of(value)


def text_of(value: Any) -> str | None:
    """A JSON value as text: a string itself, anything else as one line with Kineto's own spacing.

    None for null, and for values that no profiler writes: objects, and lists that are nested too deeply.
    """
    if value is None or not _is_plain(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # an unpaired surrogate is not valid text
    return json.dumps(value, default=float, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def _is_plain(value: Any, refused: tuple[type, ...] = (dict,), levels: int = NESTED_LEVELS) -> bool:
    """Whether a JSON value contains nothing of the refused types, and nests lists no deeper than this."""
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(inner, refused, levels - 1) for inner in value)
    return not isinstance(value, refused)


def is_shallow(value: Any, levels: int = NESTED_LEVELS) -> bool:
    """Whether lists and objects are nested no deeper than this."""
    if not isinstance(value, (list, dict)):
        return True
    return levels > 0 and all(
        is_shallow(inner, levels - 1) for inner in (value.values() if isinstance(value, dict) else value)
    )


def inputs_of(text: str | None) -> str | None:
    """The inputs of an operator as JSON text; None where the text is not a list or has gaps."""
    try:
        value = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return None
    return text if isinstance(value, list) and _is_plain(value, refused=(dict, NoneType)) else None


def whole(value: Any) -> int | None:
    """A whole number as signed 64-bit integer; unsigned 64-bit ids wrap around. None for anything else."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value.strip()) else None
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    if isinstance(value, Decimal) and (not value.is_finite() or value.adjusted() > 40):
        return None
    low = int(value) & _LOW_64_BITS
    return low - 2**64 if low > _HIGHEST else low


def nanoseconds(value: Any) -> int | None:
    """A time in microseconds, exactly as nanoseconds; None for other values, or if it does not fit 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    number = Decimal(value)
    if not number.is_finite() or number.adjusted() > 20:
        return None
    ns = int((number * 1000).to_integral_value())
    return ns if -_HIGHEST <= ns <= _HIGHEST else None


def number_in(value: Any) -> int | None:
    """The id of a process or thread; for a text (`stream 7`, `python: 123`) the number at its end."""
    if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
        digits = _LAST_DIGITS.search(value)
        return int(digits[1]) if digits else None
    return whole(value)


def process_in(value: Any) -> int | None:
    """The id of a process; a label of its rank (`[TP01] 4711`) is put into the high bits.

    Programs that merge the traces of ranks write such labels. Equal numbers of processes and GPUs stay distinct.
    """
    labelled = _LABELLED.fullmatch(value) if isinstance(value, str) else None
    return number_in(value) if labelled is None else (1 + crc32(labelled[1].encode()) // 2) << 32 | int(labelled[2])
