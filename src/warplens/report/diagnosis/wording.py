"""Evidence, ceilings and places of findings as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.diagnosis.findings import DESCRIPTIVE
from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warplens.diagnosis import Coverage, Diagnosis, Finding

__all__ = ["at_most", "change_title", "coverage_lines", "evidence_items", "evidence_text", "places", "standing"]

#: Endings of evidence names, longest first, with what they are written as.
_ENDINGS: Final = (
    ("_bytes_per_s", fmt.bandwidth),
    ("_bytes_per_step", lambda value: f"{fmt.data_size(value)} a step"),
    ("_ns_per_step", lambda value: f"{fmt.duration(value)} a step"),
    ("_ns_per_wait", lambda value: f"{fmt.duration(value)} a wait"),
    ("_per_step", lambda value: f"{fmt.number(value)} a step"),
    ("_share", fmt.share),
    ("_bytes", fmt.data_size),
    ("_count", fmt.number),
    ("_factor", lambda value: f"{fmt.number(value)}×"),
    ("_ns", fmt.duration),
)

_CHANGES: Final = {
    "free-launches": "launches cost nothing",
    "cuda-graph": "one CUDA graph a step",
    "no-synchronization": "no waits inside the step",
    "async-copies": "pinned, asynchronous copies",
    "cached-allocation": "no allocations inside the step",
    "no-host-stall": "no pauses of the host",
}

#: What the ceiling of a cause says.
_LEFT: Final = ", at most {} faster without it"

#: A ceiling beyond this says no more than that hardly anything would be left.
_MANY: Final = 100.0


def at_most(gain: float | None) -> str:
    """A ceiling: `1.23×`; `–` where it is not known."""
    if gain is None:
        return fmt.MISSING
    return f">{_MANY:.0f}×" if gain > _MANY else f"{gain:.2f}×"


def standing(finding: Finding) -> str:
    """Severity, confidence and ceiling in a few words."""
    rest = "" if finding.id in DESCRIPTIVE or finding.gain_ceiling is None else _LEFT
    return f"{finding.severity}, confidence {finding.confidence}{rest.format(at_most(finding.gain_ceiling))}"


def evidence_items(evidence: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """What each number is, in words, and the number with its unit."""
    for name, value in evidence.items():
        ending, write = next(((end, write) for end, write in _ENDINGS if name.endswith(end)), ("", fmt.number))
        yield name.removesuffix(ending).replace("_", " "), write(value)


def evidence_text(evidence: Mapping[str, float]) -> str:
    """All numbers in one line."""
    return ", ".join(f"{what} {value}" for what, value in evidence_items(evidence))


def places(finding: Finding) -> str:
    """The ranges or kernels of a finding in one line."""
    return ", ".join(fmt.shorten_kernel(name) for name in finding.where)


def change_title(change: str) -> str:
    """What a prediction changes, in words."""
    return _CHANGES.get(change, change.replace("-", " "))


def coverage_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """How much the diagnosis rests on, and what could not be asked."""
    covered: Coverage = diagnosis.coverage
    if covered.wall_ns:
        steps = f"{fmt.count(covered.steps)} steps" if covered.steps != 1 else "one step"
        yield (
            f"rests on: {steps if covered.steps else 'a window without steps'}; findings account for "
            f"{fmt.share(covered.claimed_ns / covered.wall_ns)} of the time, none of it twice"
            + (
                f"; the cause is known of {fmt.share(covered.idle_attributed_share)} of the idle time"
                if covered.idle_attributed_share is not None
                else ""
            )
            + (
                f"; counters stand for {fmt.share(covered.counters_share)} of the kernel time"
                if covered.counters_share
                else ""
            )
        )
    for line in covered.unavailable:
        yield f"not asked: {line}"
