"""The stated part of a profile that numbers speak of, and how it is written on a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from warplens.errors import UsageError

__all__ = ["Step", "Window", "parse_span"]

_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1}
_TIME = re.compile(r"^\s*(?P<number>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s|)\s*$")


@dataclass(frozen=True)
class Step:
    """One repetition of the workload. `index` counts from 1 over all steps found, left-out ones included."""

    index: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Wall time of the step."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Window:
    """The part of the profile under analysis.

    Attributes:
        start_ns, end_ns: the half-open interval, in the profile's clock.
        kind: `steady` (repeating steps, warm-up left out), `device` (no steps were found: from the first to the last
            GPU work), `all` (everything recorded) or `explicit` (as the user asked).
        how: one sentence for people on how it was found.
        steps: the steps inside; empty where none were found.
        range_name: only work launched inside ranges of this name counts; None for all work.
    """

    start_ns: int
    end_ns: int
    kind: str
    how: str
    steps: tuple[Step, ...] = ()
    range_name: str | None = None

    @property
    def duration_ns(self) -> int:
        """Length of the interval."""
        return self.end_ns - self.start_ns


def parse_span(text: str) -> tuple[int | None, int | None]:
    """Begin and end in nanoseconds of `START:END`, e.g. `1.5s:2s`, `250ms:`, `:3000000`; None for an open side.

    Raises:
        UsageError: the text is not of that form, or its end is not after its begin.
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise UsageError(f"window {text!r} is not steady, all or START:END (for example 1.5s:2s)")
    start, end = (_time_ns(part, text) if part.strip() else None for part in parts)
    if start is not None and end is not None and end <= start:
        raise UsageError(f"window {text!r} ends before it begins")
    return start, end


def _time_ns(part: str, text: str) -> int:
    match = _TIME.match(part)
    if match is None:
        raise UsageError(f"window {text!r}: {part!r} is not a time (use ns, us, ms or s, for example 250ms)")
    whole, _, fraction = match["number"].partition(".")
    unit = _UNITS_NS[match["unit"]]
    sign = -1 if whole.startswith("-") else 1
    # Decimal digits are scaled as integers: 0.1 s must be 100,000,000 ns exactly.
    return int(whole) * unit + sign * (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
