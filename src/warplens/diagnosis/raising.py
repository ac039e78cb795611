"""From a claim to a finding: its ceiling, its severity, and what its remedies promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.diagnosis.findings import Finding, ceiling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Confidence, Remedy, Severity

__all__ = ["UNPROFILED", "at_most", "gain_of", "modelled", "raised", "weight"]

_NS_PER_MS = 1e6

#: Evidence of findings whose ceiling the profiler changed: what it would be without.
UNPROFILED: Final = "unprofiled_ceiling_factor"

#: Ceilings that differ by less are the same.
_SAME: Final = 0.005

#: A prediction this far above a finding's ceiling removes more than that finding's cause.
_MORE = 1.1


def raised(
    facts: Facts,
    id_: str,
    claimed_ns: int,
    *,
    title: str,
    confidence: Confidence,
    evidence: Mapping[str, int | float | None],
    where: tuple[str, ...],
    remedies: tuple[Remedy, ...],
    refute: str,
    warning: float | None = None,
    informs: bool = False,
    on_gpu: bool = False,
    issuing_ns: int = 0,
) -> Finding | None:
    """The finding, unless its cause costs too little to be told from chance.

    Args:
        facts: the window.
        id_: of the finding.
        claimed_ns: wall time that the cause claims.
        title, confidence, where, remedies, refute: as in `Finding`.
        evidence: the same; numbers that are None were not recorded and are left out.
        warning: the ceiling from which on it is a warning, where the general one is too low.
        informs: it only informs, whatever its ceiling.
        on_gpu: it makes the GPU slower and leaves the host as it is, which then sets the pace.
        issuing_ns: of the claimed time, the part in which the host issued work, which the profiler made longer.
            Severity goes by the ceiling without that addition.
    """
    limits = facts.thresholds
    gain = gain_of(facts, claimed_ns, on_gpu=on_gpu)
    if gain < limits.raise_ceiling:
        return None
    real = gain if on_gpu else _unprofiled(facts, claimed_ns, issuing_ns)
    least = max(limits.warning_ceiling, warning or 0.0)
    severity: Severity = "info"
    if not informs and real >= least:
        severity = "critical" if real >= max(limits.critical_ceiling, least) else "warning"
    known = {name: value for name, value in evidence.items() if value is not None}
    if abs(real - gain) > _SAME * gain:
        known[UNPROFILED] = real
    return Finding(id_, title, severity, confidence, gain, known, where, remedies, refute)


def gain_of(facts: Facts, claimed_ns: int, *, on_gpu: bool) -> float:
    """The ceiling of a claim. Time that the GPU saves helps only until the host's own time sets the pace."""
    least = facts.least_host_ns if on_gpu else 0
    return ceiling(facts.wall_ns, max(min(claimed_ns, facts.wall_ns - least), 0))


def _unprofiled(facts: Facts, claimed_ns: int, issuing_ns: int) -> float:
    """The ceiling of a claim in the window as it would be if the profiler had not made launches slower."""
    wall = facts.wall_ns - facts.added_ns
    return ceiling(wall, min(claimed_ns - (1 - facts.unprofiled_share) * issuing_ns, wall))


def weight(finding: Finding) -> float:
    """What findings are ranked by: their ceilings, without what the profiler added."""
    return float(finding.evidence.get(UNPROFILED, finding.gain_ceiling or 0.0))


def at_most(facts: Facts, claimed_ns: int, *, on_gpu: bool = False) -> str:
    """What can be gained at most, as people say it."""
    return f"at most {gain_of(facts, claimed_ns, on_gpu=on_gpu):.2f}× (the ceiling of this finding)"


def modelled(facts: Facts, change: str, claimed_ns: int) -> str:
    """What a change is predicted to bring; its ceiling where nothing was predicted."""
    found = facts.predictions.get(change)
    if found is None:
        return at_most(facts, claimed_ns)
    more = "; takes other findings' causes along" if found.speedup > ceiling(facts.wall_ns, claimed_ns) * _MORE else ""
    unit = "a step" if facts.window.steps else "for the window"
    return (
        f"modelled: {found.measured_ns / _NS_PER_MS:.2f} → {found.predicted_ns / _NS_PER_MS:.2f} ms {unit} "
        f"({found.speedup:.2f}×{more})"
    )
