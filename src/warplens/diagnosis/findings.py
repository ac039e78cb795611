"""Data of a diagnosis: findings with their evidence, gain and remedies, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from warplens.analysis import kernel_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.analysis.prediction import Prediction
    from warplens.diagnosis.moments import Moment
    from warplens.diagnosis.whatif import WhatIfs
    from warplens.profile import Note


Severity: TypeAlias = Literal["critical", "warning", "info"]
Confidence: TypeAlias = Literal["high", "medium", "low"]

#: From worst to mildest.
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")

#: From most to least certain.
CONFIDENCES: Final[tuple[Confidence, ...]] = ("high", "medium", "low")

#: Causes of idle time during which the host issues work, which tracing slows down.
ISSUING: Final = ("launch", "graph-launch", "refill")

PASSES: Final = kernel_names.PASSES

#: End of the name of a number in `Finding.evidence` → its unit.
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
    """Basis of a gain and its interval: a kind of model (`rule.Model`), and the least and the largest gain by it.

    These differ by the unknown pace of the host; the error of the model is added to them.
    """

    model: str
    least: float
    most: float
    #: GPU work that goes away, as a share of the window without a profiler; None if the gain was not replayed
    work_share: float | None = None


#: Placeholder in `Remedy.expected` for the gain of the remedy.
GAIN: Final = "{gain}"


@dataclass(frozen=True)
class Remedy:
    """Something to do about a finding.

    Attributes:
        action: what, in a few words.
        how: the code, option or command, line by line; other text is in comments (`#`).
        expected: the expected effect, and how it is known.
        gain: speed-up for the same work without a profiler, with this remedy alone; None if unknown. The first known
            gain is that of the finding.
        gain_interval: the 90 % interval of that gain; None with `gain`.
        gain_by_batch: for more work at a time: multiple of the work → gain for the same work. `gain` is one of these;
            `expected` says which.
        basis: basis of `gain_interval`; None with `gain`.
        id: key of its counterparts for other frameworks and engines; empty if it has none. Not part of any output.
        compiles: whether its code compiles, which a compiled program does already. Not part of any output.
        captures: whether its code captures CUDA graphs, likewise.
    """

    action: str
    how: str
    expected: str = GAIN
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    gain_by_batch: Mapping[int, float] | None = None
    basis: Basis | None = None
    id: str = field(default="", kw_only=True, repr=False)
    compiles: bool = field(default=False, kw_only=True, repr=False)
    captures: bool = field(default=False, kw_only=True, repr=False)


#: How a finding is located: by calls that block the host, by pauses of the launching thread, or by work.
Located: TypeAlias = Literal["waits", "copies", "allocations", "pauses", "work"]


@dataclass(frozen=True)
class Place:
    """A place in the program that a part of a finding comes from. Unknown attributes are None."""

    kind: str  #: counted objects: `waits`, `copies`, `allocations`, `pauses`, `launches`, `kernels`
    count: int  #: how many of them are at this place
    of_count: int  #: how many belong to the finding
    share: float  #: of the finding's time; of the number of objects if none of them costs time by itself
    operator: str | None  #: the innermost operator around them
    #: the innermost annotated range, without numbers of steps and calls; None for one around the whole window
    range: str | None
    module: str | None  #: the two innermost modules, `BertOutput.LayerNorm`
    file: str | None  #: the source file with the last folder above it, if any
    line: int | None  #: the line where the function begins, which is what profilers record
    function: str | None  #: the innermost function of the program, without PyTorch and Python's standard library


@dataclass(frozen=True)
class Variant:
    """One of the ways in which a rule speaks of its cause. Empty texts are those of the rule.

    Attributes:
        title: one sentence for people, with `{name}` in place of its numbers.
        headline: the verdict, as in `Rule.headline`.
        refutation: the experiment that would refute it.
    """

    title: str = ""
    headline: str = ""
    refutation: str = ""


#: The variant without texts of its own.
USUAL: Final = Variant()


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    Attributes:
        id: that of a rule.
        title: one sentence for people.
        severity: by the gain; `info` for findings that only inform.
        confidence: how certain the cause is, given the recorded data.
        expected: speed-up of the program without a profiler by the first remedy with a gain; None if unknown.
        expected_interval: the 90 % interval of the gain; None with `expected`.
        bound: speed-up without all of the cause, from the physics of the same mathematics, if its pauses are 1.7
            times as long as recorded (`pace.NOISE`); None if unknown.
        evidence: named numbers; the end of a name is the unit (`EVIDENCE_UNITS`).
        where: names of the ranges or kernels with the most of it, the largest first.
        remedies: what to do: first the remedy with the gain `expected`, then by gain, unknown gains last. Later
            remedies with a larger gain need more, such as a larger batch.
        refute: the experiment that would refute this finding.
        places: the places in the program that most of it comes from, the largest first.
        basis: basis of `expected_interval`; None without an expected gain.
        shares_with: id of the finding that most of this one's GPU time is counted for; empty if it is its own.
        variant: which one of its rule it is; not part of any output.
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
    shares_with: str = ""
    variant: Variant = field(default=USUAL, compare=False, repr=False)

    @property
    def gain_ceiling(self) -> float | None:
        """The bound, by its older name."""
        return self.bound

    @property
    def gain(self) -> float | None:
        """The number by which findings are ranked and shown: the expected gain, else the bound."""
        return self.expected if self.expected is not None else self.bound

    @property
    def work_share(self) -> float:
        """GPU work that the first remedy removes, as in `Basis`; 0 if unknown."""
        return 0.0 if self.basis is None else self.basis.work_share or 0.0

    @property
    def is_throughput(self) -> bool:
        """Whether the gain is more work in the same time: the step hardly gets longer with more work in it."""
        return self.id in ("small-kernels", "weight-bound") and "passes_per_step" not in self.evidence

    @property
    def gained(self) -> str:
        """Text after the gain: what it is a factor of."""
        return "the work in the same time" if self.is_throughput else "as fast without it"


@dataclass(frozen=True)
class PhaseVerdict:
    """The main limiter of one phase of a training step."""

    phase: str  #: `forward`, `backward` or `optimizer`
    verdict: str  #: that of a rule
    verdict_known: bool  #: whether the verdict rests on data, as in `Diagnosis`
    #: expected, gain_ceiling: expected speed-up of the phase by the first remedy, and the largest; None if unknown
    expected: float | None
    gain_ceiling: float | None
    wall_ns: int  #: time of the phase: its GPU work and the pauses that this work ended
    busy_ns: int  #: GPU work of the phase
    share: float  #: of the window's time
    #: part of the time of the whole window's verdict that lies in this phase; None if that verdict claims none
    of_verdict_share: float | None = None


@dataclass(frozen=True)
class Coverage:
    """How much of the window the diagnosis rests on."""

    wall_ns: int  #: the analysed time, summed over the GPUs
    #: busy_ns, idle_ns: its two parts
    busy_ns: int
    idle_ns: int
    steps: float  #: steps of the window, with the parts of those that it cuts; 0 without a whole one
    idle_attributed_share: float | None  #: share of the idle time with a recorded cause; None without idle time
    #: share of the idle time that a rule explains, or that the GPU takes to start queued work; None without idle time.
    #: A wait for another stream, GPU or program has a recorded cause, but nothing explains it.
    idle_explained_share: float | None
    claimed_ns: int  #: wall time that findings claim; no nanosecond is claimed twice
    counters_share: float | None  #: share of the kernel time with hardware counters; None without counters
    unavailable: tuple[str, ...]  #: questions that this profile cannot answer, and how to answer them
    gpus: int = 1  #: over which times, launches and shares are summed


@dataclass(frozen=True)
class UnprofiledStep:
    """A step without the profiler: as it was measured, or as the profile lets expect."""

    step_ns: int
    #: low_ns, high_ns: the range that the pace of the host leaves open; `step_ns` where that was measured
    low_ns: int
    high_ns: int
    measured: bool  #: whether `step_ns` was given; otherwise it is modelled
    #: host time for issuing work without the profiler, over that with it; None if a measured step does not show it
    host_share: float | None


@dataclass(frozen=True)
class Headline:
    """The verdict for people, in parts. Its text is one sentence with limit and gain, and the other sentences.

    Attributes:
        limit: what limits the program; without a full stop if a gain follows.
        opening: `LIMITED_BY` if `limit` completes it, so that outputs may name the limiter alone.
        gain: of the main limiter.
        reasons: why there may be nothing to do, or why a finding with a larger gain comes after it.
        together: what remedies bring together.
        left_out: parts of the profile that the window leaves out.
        ranks: whose limit it is, in a run of several ranks.
        others: what holds for other ranks of a run.
    """

    limit: str
    opening: str = ""
    gain: str = ""
    reasons: tuple[str, ...] = ()
    together: str = ""
    left_out: tuple[str, ...] = ()
    ranks: str = ""
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        limit = f"{self.opening}{self.limit}"
        if self.ranks:
            limit = f"On {self.ranks}: {limit[:1].lower()}{limit[1:]}"
        if self.gain:
            limit += f"; {self.gain}."
        return " ".join(filter(None, (limit, *self.reasons, self.together, *self.left_out, *self.others)))

    def without_gain(self) -> Headline:
        """The same limit with a full stop instead of its gain."""
        return replace(self, limit=f"{self.limit}.", gain="") if self.gain else self


#: Begin of a headline that names the limiter.
LIMITED_BY: Final = "Limited by "


@dataclass(frozen=True)
class Diagnosis:
    """The limits of a window, and what to do about them.

    Attributes:
        verdict: id of the rule of the main limiter; the first finding has it.
        headline_parts: the verdict for people.
        headline_share: the share of the window that the headline gives to the main limiter; None if it gives none.
        unprofiled_share: the same share of the time without the profiler; None without `headline_share`.
        findings: the one to mend first, which may be the cause of one with a larger gain; then the worst first.
        per_phase: a verdict for each phase of the window.
        predictions: modelled step times under single changes.
        coverage: how much the diagnosis rests on.
        notes: gaps in what the profile recorded.
        moments: the worst instances of the findings, in their order, up to three of each.
        what_if: gains of the remedies, one by one and in pairs; None if they cannot be modelled.
        without_profiler: a step without the profiler; None if the window has no steps or cannot be replayed.
        verdict_known: whether data show the limiter; otherwise the profile cannot answer, part of the work may be
            padding, or no cause shows and too little of the work is known to compute how near the GPU is to its roofs.
    """

    verdict: str
    headline_parts: Headline
    findings: tuple[Finding, ...]
    per_phase: tuple[PhaseVerdict, ...]
    predictions: tuple[Prediction, ...]
    coverage: Coverage
    notes: tuple[Note, ...]
    moments: tuple[Moment, ...] = ()
    what_if: WhatIfs | None = None
    headline_share: float | None = None
    unprofiled_share: float | None = None
    without_profiler: UnprofiledStep | None = None
    verdict_known: bool = True

    @property
    def headline(self) -> str:
        """One sentence for people; further ones if there is more to say."""
        return str(self.headline_parts)

    def finding(self, id_: str) -> Finding | None:
        """The finding with this id, if it was raised."""
        return next((finding for finding in self.findings if finding.id == id_), None)


#: Largest expected gain. Larger factors only mean that hardly anything of the window would be left, and are no bound.
MANY: Final = 100.0


def times(gain: float) -> str:
    """A factor as text, to three digits, as no model is more precise: `1.23×`, `53.2×`; from `MANY` on, `>100×`."""
    if gain >= MANY:
        return f">{MANY:.0f}×"
    decimals = 2 if gain < 9.995 else 1 if gain < 99.95 else 0
    return f"{gain:.{decimals}f}×"


def percent(share: float) -> str:
    """A share as text: `12.3 %`."""
    return f"{100 * share:.1f} %"


def about(gain: float) -> str:
    """An expected gain as text."""
    return f"about {times(gain)}" if gain < MANY else "many times"


def ceiling(wall_ns: int, claimed_ns: float) -> float:
    """Amdahl's law: speed-up of the whole if this part of its time goes away.

    Source: G. M. Amdahl, "Validity of the single processor approach", AFIPS 1967. If the part is the whole, one
    nanosecond is left, so that the result is finite.
    """
    return wall_ns / max(wall_ns - claimed_ns, 1.0) if wall_ns > 0 else 1.0
