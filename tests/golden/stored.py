"""Expected output, a compressed file for each group of cases; and what differs from it, in words."""

from __future__ import annotations

import json
import lzma
import math
import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "expected"

#: Sums of floating-point numbers may end differently on another processor or with another library. Whole numbers, all
#: nanoseconds among them, must be the same.
_RELATIVE = 1e-9
#: Fits that go step by step to a minimum, and draws from their residuals, end where rounding lets them: seen were 8e-6.
_RELATIVE_OF_FITS = 1e-4

_NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+")
#: Numbers with fewer digits were rounded for people.
_EXACT_DIGITS = 10


@cache
def expected(group: str) -> dict[str, dict[str, str]]:
    """By case, then by stream or file. Empty if nothing is stored yet."""
    path = _FOLDER / f"{group}.json.xz"
    return json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}


def store(group: str, outputs: Mapping[str, Mapping[str, str]]) -> int:
    """Write what is expected from now on; how many bytes it takes."""
    text = json.dumps(outputs, ensure_ascii=False, indent=0).encode()
    packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / f"{group}.json.xz").write_bytes(packed)
    return len(packed)


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """What changed: for JSON the paths of values, for other texts the lines. Nothing if all is the same."""
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            yield f"{name}: is no longer written"
        elif name not in before:
            yield f"{name}: is new"
        elif before[name] != after[name]:
            yield from _of_texts(name, before[name], after[name])


def _of_texts(name: str, before: str, after: str) -> Iterator[str]:
    try:
        values = json.loads(before), json.loads(after)
    except ValueError:
        old, new = before.splitlines(), after.splitlines()
        if len(old) == len(new):  # so that a sum that ends differently does not hide the lines that matter
            new = [first if _alike(first, second) else second for first, second in zip(old, new, strict=True)]
        yield from unified_diff(old, new, f"{name} (expected)", f"{name} (now)", lineterm="", n=1)
    else:
        yield from (f"{name}: {line}" for line in _of_values("$", *values))


def _of_values(path: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from (f"{path}.{key}: is gone, was {_short(before[key])}" for key in before if key not in after)
        yield from (f"{path}.{key}: is new, {_short(after[key])}" for key in after if key not in before)
        common = [key for key in before if key in after]
        if common != [key for key in after if key in before]:
            yield f"{path}: the keys stand in another order"
        for key in common:
            yield from _of_values(f"{path}.{key}", before[key], after[key])
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} → {len(after)} entries"
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from _of_values(f"{path}[{number}]", old, new)
    elif type(before) is not type(after) or not (
        math.isclose(before, after, rel_tol=_RELATIVE_OF_FITS if ".breakeven." in path else _RELATIVE, abs_tol=0)
        if isinstance(before, float)
        else before == after
    ):
        yield f"{path}: {_short(before)} → {_short(after)}"


def _short(value: Any, most: int = 160) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}…"


def _alike(before: str, after: str) -> bool:
    """Whether lines differ in nothing but the last digits of exact numbers."""
    if before == after:
        return True
    if _NUMBER.split(before) != _NUMBER.split(after):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    return all(
        old == new
        or (
            min(len(old), len(new)) > _EXACT_DIGITS
            and math.isclose(float(old), float(new), rel_tol=_RELATIVE, abs_tol=0)
        )
        for old, new in pairs
    )
