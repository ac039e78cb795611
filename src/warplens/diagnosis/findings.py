"""What a diagnosis is made of: findings with their evidence, ceiling and remedies, and the verdict over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.analysis.prediction import Prediction
    from warplens.diagnosis.moments import Moment
    from warplens.diagnosis.whatif import WhatIfs
    from warplens.profile import Note


Severity: TypeAlias = Literal["critical", "warning", "info"]
Confidence: TypeAlias = Literal["high", "medium", "low"]

#: From the worst to the mildest.
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")

#: From the surest on.
CONFIDENCES: Final[tuple[Confidence, ...]] = ("high", "medium", "low")

#: Causes of idle time that are as long as the host takes to issue work, which tracing makes slower.
ISSUING: Final = ("launch", "graph-launch", "refill")

#: Categories of kernels that read, do a few operations a number, and write: their time is that of the memory traffic.
PASSES: Final = ("elementwise", "reduction", "normalization", "softmax", "copy-cast", "random")

#: What the names of evidence end in → the unit of the number.
EVIDENCE_UNITS: Final = {
    "_ns": "nanoseconds",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes per second",
    "_share": "0 to 1",
    "_per_step": "a step, or the window where it has no steps",
    "_per_s": "a second",
    "_count": "how many",
    "_factor": "times",
}


@dataclass(frozen=True)
class Basis:
    """What the interval of a gain is made of: a kind of model (`rule.Model`), and the least and the most gain by it.

    Between these lies what the host's pace leaves open; how far off the model is comes on top.
    """

    model: str
    least: float
    most: float


@dataclass(frozen=True)
class Remedy:
    """Something to do about a finding.

    Attributes:
        action: what, in a few words.
        how: the code, option or command, line by line; what is not code is a comment (`#`).
        expected: what it should bring, and how that is known.
        gain: how many times as fast the program does the same work, without a profiler, with this remedy alone; None
            where that cannot be told. That of the first remedy that has one is what the finding expects.
        gain_interval: the 90 % interval of that gain; None with `gain`.
        gain_by_batch: where more work is done at a time: so many times as much, and what that brings for the same work.
            `gain` is one of these, `expected` says which.
        basis: what `gain_interval` is made of; None with `gain`.
    """

    action: str
    how: str
    expected: str
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    gain_by_batch: Mapping[int, float] | None = None
    basis: Basis | None = None


#: By what a finding is located: by calls that hold the host, by pauses of the launching thread, or by work.
Located: TypeAlias = Literal["waits", "copies", "allocations", "pauses", "work"]


@dataclass(frozen=True)
class Place:
    """Where in the program a part of a finding comes from. What is not known is None."""

    kind: str  #: what is counted there: `waits`, `copies`, `allocations`, `pauses`, `launches`, `kernels`
    count: int  #: how many of them are there, `of_count` how many the finding speaks of
    of_count: int
    share: float  #: of the finding's time; of their number where none of them costs time by itself
    operator: str | None  #: the innermost operator around them
    range: str | None  #: the innermost annotated range, without numbers of steps and calls
    module: str | None  #: the two innermost modules, `BertOutput.LayerNorm`
    file: str | None  #: the source file with the last folder above it, if any
    line: int | None  #: the line where the function begins, which is what profilers record
    function: str | None  #: the innermost function of the program, PyTorch and Python's own library left out


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    Attributes:
        id: that of a rule.
        title: one sentence for people.
        severity: by the gain; findings that only inform are `info` whatever theirs is.
        confidence: how sure the cause is, given what the profile records.
        expected: how many times as fast the program gets without a profiler by the best of the remedies; None where the
            profile cannot tell.
        expected_interval: the 90 % interval of the gain; None with `expected`.
        bound: speed-up that no remedy can exceed, from the physics of the same mathematics; None where the
            profile cannot tell.
        evidence: named numbers; the end of a name is the unit (`EVIDENCE_UNITS`).
        where: names of the ranges or kernels that have the most of it, the first the most.
        remedies: what to do: first what `expected` is the gain of, then by what each brings, of unknown gain last. What
            brings more than the first, such as a larger batch, asks for more.
        refute: the experiment that would show that this is wrong.
        places: where in the program most of it comes from, the first the most.
        basis: what `expected_interval` is made of; None where no gain is expected.
    """

    id: str
    title: str
    severity: Severity
    confidence: Confidence
    expected: float | None
    expected_interval: tuple[float, float] | None
    bound: float | None
    evidence: Mapping[str, int | float]
    where: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    refute: str
    places: tuple[Place, ...] = ()
    basis: Basis | None = None

    @property
    def gain_ceiling(self) -> float | None:
        """The bound, by its older name."""
        return self.bound

    @property
    def gain(self) -> float | None:
        """The one number by which findings are ranked and shown: what is expected, else the bound."""
        return self.expected if self.expected is not None else self.bound

    @property
    def is_throughput(self) -> bool:
        """Whether the gain is one of work in the same time: the step hardly gets longer with more in it."""
        return self.id in ("small-kernels", "weight-bound") and "passes_per_step" not in self.evidence

    @property
    def gained(self) -> str:
        """What the gain is a factor of, in words behind it."""
        return "the work in the same time" if self.is_throughput else "as fast without it"


@dataclass(frozen=True)
class PhaseVerdict:
    """The main limiter of one phase of a training step."""

    phase: str  #: `forward`, `backward` or `optimizer`
    verdict: str  #: that of a rule
    #: expected, gain_ceiling: what its best remedy brings and at most can bring, on the time of the phase; None where
    #: the profile cannot tell
    expected: float | None
    gain_ceiling: float | None
    wall_ns: int  #: time of the phase: its GPU work and the pauses that this work ended
    busy_ns: int  #: GPU work of the phase
    share: float  #: of the window's time


@dataclass(frozen=True)
class Coverage:
    """How much of the window the diagnosis rests on."""

    wall_ns: int  #: the time that was judged, summed over the GPUs
    #: busy_ns, idle_ns: its two parts
    busy_ns: int
    idle_ns: int
    steps: int  #: steps of the window
    idle_attributed_share: float | None  #: of the idle time, with a recorded cause; None where nothing was idle
    claimed_ns: int  #: wall time that findings claim; no nanosecond is claimed twice
    counters_share: float | None  #: of the kernel time, with hardware counters; None without counters
    unavailable: tuple[str, ...]  #: what could not be asked of this profile, and what would answer it
    gpus: int = 1  #: over which times, launches and shares are summed


@dataclass(frozen=True)
class Diagnosis:
    """What limits a window, and what to do about it.

    Attributes:
        verdict: id of the main limiter, that of a rule; the first finding has it.
        headline: one sentence for people.
        headline_share: the share of the window that it gives to the main limiter; null where it gives none.
        findings: the worst first.
        per_phase: the same verdict for each phase that the window has.
        predictions: modelled step times under single changes.
        coverage: how much the diagnosis rests on.
        notes: what the profile cannot tell.
        moments: the worst instances of the findings, in their order, up to three of each.
        what_if: what the remedies bring, one by one and in pairs; None where that cannot be modelled.
        verdict_known: whether the profile shows what the verdict says; else it shows no cause, and too little of the
            work to say how near the GPU is to its roofs.
    """

    verdict: str
    headline: str
    findings: tuple[Finding, ...]
    per_phase: tuple[PhaseVerdict, ...]
    predictions: tuple[Prediction, ...]
    coverage: Coverage
    notes: tuple[Note, ...]
    moments: tuple[Moment, ...] = ()
    what_if: WhatIfs | None = None
    headline_share: float | None = None
    verdict_known: bool = True

    def finding(self, id_: str) -> Finding | None:
        """The finding with this id, if it was raised."""
        return next((found for found in self.findings if found.id == id_), None)


#: A factor of this size says no more than that hardly anything of the window would be left. It is the most that is
#: expected, and no bound.
MANY: Final = 100.0


def times(gain: float) -> str:
    """A factor in words, to three digits, for no model of ours is surer: `1.23×`, `53.2×`; from `MANY` on, `>100×`."""
    if gain >= MANY:
        return f">{MANY:.0f}×"
    decimals = 2 if gain < 9.995 else 1 if gain < 99.95 else 0
    return f"{gain:.{decimals}f}×"


def percent(share: float) -> str:
    """A share in words: `12.3 %`."""
    return f"{100 * share:.1f} %"


def about(gain: float) -> str:
    """What a remedy is expected to bring, in words."""
    return f"about {times(gain)}" if gain < MANY else "many times"


def ceiling(wall_ns: int, claimed_ns: float) -> float:
    """Amdahl's law: how much faster the whole gets if this part of its time takes none.

    Source: G. M. Amdahl, "Validity of the single processor approach", AFIPS 1967. A part that is the whole leaves one
    nanosecond, so that the result stays finite.
    """
    return wall_ns / max(wall_ns - claimed_ns, 1.0) if wall_ns > 0 else 1.0
